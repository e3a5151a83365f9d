"""Tests of the noise on a clipped sum: how large it is, and of what it is a function."""

import dp_accounting
import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized
from scipy import stats

from tff_noise.federated import gaussian_sum

_SHAPE = (150, 200)


def _query(clip=1.0, stddev=2.0, key=(3, 4)):
  return gaussian_sum.GaussianSum(clip, stddev, np.array(key, np.int64))


def _release(query, state, records):
  """Returns the noisy sum, the next state and the event, all as NumPy has them."""
  params = query.derive_sample_params(state)
  sums = query.initial_sample_state(records[0])
  for record in records:
    record = query.preprocess_record(params, record)
    sums = query.accumulate_preprocessed_record(sums, record)
  result, state, event = query.get_noised_result(sums, state)
  return tf.nest.map_structure(np.asarray, result), state, event


def _zeros():
  return [tf.zeros(_SHAPE), tf.zeros(_SHAPE)]


def _noise(query, rounds=1):
  """The noise of each round: what is released where every client sends 0."""
  state, released = query.initial_global_state(), []
  for _ in range(rounds):
    result, state, _ = _release(query, state, [_zeros()])
    released.append(result)
  return released


class NoiseTest(parameterized.TestCase):

  @parameterized.parameters(0.5, 1.0, 30.0)
  def test_is_gaussian_with_the_standard_deviation(self, stddev):
    [leaves] = _noise(_query(stddev=stddev))
    values = np.concatenate([np.ravel(leaf) for leaf in leaves])
    # 60,000 numbers: the standard error of their deviation is .3 percent, of their mean .4.
    self.assertAlmostEqual(values.std() / stddev, 1, delta=0.012)
    self.assertAlmostEqual(values.mean() / stddev, 0, delta=0.016)
    self.assertGreater(stats.kstest(values / stddev, 'norm').pvalue, 1e-3)

  def test_is_of_the_sum_whatever_the_clip_and_the_number_of_clients(self):
    [alone] = _noise(_query(clip=1.0))
    query = _query(clip=7.0)
    found, _, _ = _release(query, query.initial_global_state(), [_zeros()] * 9)
    tf.nest.map_structure(np.testing.assert_array_equal, found, alone)

  def test_is_a_function_of_key_and_round(self):
    first, second = _noise(_query(), 3), _noise(_query(), 3)
    tf.nest.map_structure(np.testing.assert_array_equal, first, second)

  def test_is_the_same_whatever_is_summed(self):
    [expected] = _noise(_query())
    query, draw = _query(), np.random.default_rng(0)
    records = [
        [tf.constant(draw.normal(0, 1e-3, _SHAPE), tf.float32) for _ in range(2)] for _ in range(3)
    ]
    found, _, _ = _release(query, query.initial_global_state(), records)
    for leaf, noise, *parts in zip(found, expected, *records, strict=True):
      np.testing.assert_allclose(leaf - noise, sum(p.numpy() for p in parts), atol=1e-5)

  def _assert_unrelated(self, first, second):
    self.assertFalse((first == second).any())
    # 30,000 pairs: standard error .006.
    self.assertLess(abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]), 0.025)

  def test_differs_between_rounds_leaves_and_keys(self):
    first, second, third = _noise(_query(), 3)
    self._assert_unrelated(first[0], first[1])
    for other in (second, third):
      for a in first:
        for b in other:
          self._assert_unrelated(a, b)
    for key in ((3, 5), (4, 4), (3, 4 + 2**32), (3 + 2**32, 4)):
      [other] = _noise(_query(key=key))
      self._assert_unrelated(first[0], other[0])

  def test_from_a_saved_state_it_goes_on_as_before(self):
    expected = _noise(_query(), 4)
    state = _query().initial_global_state()
    for done in range(4):
      # As a checkpoint has it, with a query built in another process.
      saved = tf.nest.map_structure(lambda t: tf.constant(t.numpy()), state)
      for _ in range(2):
        again, state, _ = _release(_query(), saved, [_zeros()])
        tf.nest.map_structure(np.testing.assert_array_equal, again, expected[done])

  def test_none_where_the_deviation_is_zero(self):
    [leaves] = _noise(_query(stddev=0.0))
    for leaf in leaves:
      np.testing.assert_array_equal(leaf, np.zeros(_SHAPE))

  def test_event_names_the_noise_over_the_clip(self):
    query = _query(clip=4.0, stddev=6.0)
    _, _, event = _release(query, query.initial_global_state(), [_zeros()])
    self.assertEqual(event, dp_accounting.GaussianDpEvent(1.5))


class ClipTest(absltest.TestCase):

  def test_each_record_is_cut_to_the_norm_of_all_its_leaves(self):
    query = _query(clip=2.0, stddev=0.0)
    # Norms 5, 10 and 1.
    records = [
        [tf.constant([3.0, 0.0]), tf.constant(4.0)],
        [tf.constant([0.0, -10.0]), tf.constant(0.0)],
        [tf.constant([0.6, 0.0]), tf.constant(-0.8)],
    ]
    found, _, _ = _release(query, query.initial_global_state(), records)
    np.testing.assert_allclose(found[0], [1.2 + 0.6, -2.0], atol=1e-6)
    np.testing.assert_allclose(found[1], 1.6 - 0.8, atol=1e-6)

  def test_one_client_never_moves_the_sum_by_more_than_the_norm(self):
    query, draw = _query(clip=0.5, stddev=0.0), np.random.default_rng(0)
    for scale in (1e-3, 1.0, 1e3, 1e10, 1e20, 3e37):
      record = [tf.constant(draw.normal(0, scale, 40), tf.float32) for _ in range(2)]
      found, _, _ = _release(query, query.initial_global_state(), [record])
      norm = np.sqrt(sum(np.sum(np.square(leaf, dtype=np.float64)) for leaf in found))
      self.assertLess(norm, 0.5 * (1 + 1e-5))


if __name__ == '__main__':
  absltest.main()
