"""Tests of the distributed discrete Gaussian: its noise, its rounding, what a sum of it is."""

import bisect
import itertools
import math

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized
from scipy import stats

from tests import federated_test_case
from tff_noise import types
from tff_noise.federated import aggregation
from tff_noise.federated import discrete_sum
from tff_noise.privacy import discrete_gaussian
from tff_noise.privacy import protection
from tff_noise.uplink import disclosure

_TYPE = tff.to_type(
    tff.learning.models.ModelWeights([(np.float32, (2, 2)), np.float32], [(np.float32, (1,))])
)
_ADVERSARIAL = (
    np.full(6, 1e20), np.array([3e38, 0, 0, 0, 0, 0]), np.array([3e38, -3e38] * 3),
    np.full(6, 1e-45), np.array([np.inf, 0, 0, 0, 0, 0]), np.full(6, np.nan),
    np.array([np.nan, np.inf, -np.inf, 1e20, 1, 0]), np.full(6, -0.0), np.full(6, 0.2),
)


def _seed(*values):
  return tf.constant(values, tf.int64)


def _update(values):
  values = np.asarray(values, np.float32)
  return tff.learning.models.ModelWeights(
      [values[:4].reshape(2, 2), values[4]], [values[5:]]
  )


def _vector(mean):
  leaves = (*mean.trainable, *mean.non_trainable)
  return np.concatenate([np.ravel(leaf).astype(np.float64) for leaf in leaves])


class SampleTest(parameterized.TestCase):

  @parameterized.parameters((1, 3, 3), (2, 2, 5), (4, 1, 10), (3, 4, 2))
  def test_every_random_number_gives_what_the_table_says(self, variance, words, word_bits):
    table = discrete_gaussian.inversion_table(variance, words, word_bits)
    every = np.array(list(itertools.product(range(2**word_bits), repeat=words)), np.int32)
    # One number after the other, for lower words are drawn for those alone that need them.
    found = [
        int(discrete_sum.inverted(
            table, tf.constant(number[:1]), lambda i, shape, n=number: tf.fill(shape, n[i]),
            word_bits,
        )[0])
        for number in every
    ]
    weights = 2 ** (word_bits * np.arange(words - 1, -1, -1))
    expected = np.searchsorted(weights @ table, every @ weights, side='right')
    np.testing.assert_array_equal(found, expected)

  @parameterized.parameters(64, 1000, 100_000)
  def test_around_each_column_and_between(self, variance):
    table = discrete_gaussian.inversion_table(variance)
    top = np.unique(table[0]).astype(np.int64)
    draw = np.random.default_rng(0).integers(0, 2**31, 5000)
    first = np.concatenate([draw, top - 1, top, top + 1, [0, 2**31 - 1]])
    first = first[(first >= 0) & (first < 2**31)]
    for lower in (0, 1, 2**31 - 1):
      found = discrete_sum.inverted(
          table, tf.constant(first, tf.int32), lambda i, shape, lower=lower: tf.fill(shape, lower)
      )
      columns = [tuple(column) for column in table.T.tolist()]
      expected = [bisect.bisect_right(columns, (f, *[lower] * 7)) for f in first.tolist()]
      np.testing.assert_array_equal(found, expected)

  @parameterized.parameters(64, 1000, 6_700_000)
  def test_is_the_discrete_gaussian(self, variance):
    table, size = discrete_gaussian.inversion_table(variance), 200_000
    found = discrete_sum.sample(table, tf.constant([size]), _seed(1, variance)).numpy()
    # The standard errors are 1/450 of the deviation and 1/630 of it.
    deviation = math.sqrt(variance)
    self.assertLess(abs(found.mean()), 4 * deviation / 450)
    self.assertLess(abs(found.std() / deviation - 1), 4 / 630)
    edges = np.round(np.linspace(-2.5, 2.5, 40) * deviation).astype(int)
    # P(N <= k) is that of the Gaussian at k + 1/2 but for 1 / (24 v).
    ends = np.concatenate([[-np.inf], edges + 0.5, [np.inf]])
    expected = np.diff(stats.norm.cdf(ends / deviation))
    counts = np.diff(np.searchsorted(np.sort(found), ends))
    self.assertGreater(stats.chisquare(counts, expected / expected.sum() * size).pvalue, 1e-3)

  def test_seeds_give_unrelated_numbers(self):
    table = discrete_gaussian.inversion_table(1000)
    draws = [
        discrete_sum.sample(table, tf.constant([30_000]), _seed(*s)).numpy()
        for s in ((0, 0), (0, 1), (1, 0), (2**32, 0), (0, 2**32))
    ]
    for one, other in itertools.combinations(draws, 2):
      self.assertLess(abs(np.corrcoef(one, other)[0, 1]), 0.03)


class RoundingTest(parameterized.TestCase):

  def test_is_up_or_down_and_right_in_the_mean(self):
    vector = tf.constant([0.25, -0.25, 3.0, -7.9, 0.0], tf.float32)
    draws = np.array([
        discrete_sum.rounded(vector, 10**6, _seed(5, i)).numpy() for i in range(2000)
    ])
    self.assertLess(np.abs(draws - vector.numpy()).max(), 1)
    # Standard error .01.
    np.testing.assert_allclose(draws.mean(0), vector, atol=0.05)

  def test_norm_is_within_the_bound_whatever_it_takes(self):
    draw = np.random.default_rng(0)
    for entries in (3, 100, 10_000):
      grid = discrete_gaussian.grid(1.0, entries, 5)
      vector = draw.normal(size=entries)
      vector *= grid.steps / np.linalg.norm(vector)
      for bound in (grid.norm_squared, int(vector @ vector)):
        given = tf.constant(vector, tf.float32)
        found = discrete_sum.rounded(given, bound, _seed(0, entries)).numpy()
        self.assertLessEqual(found @ found, bound)
        self.assertGreater(found @ found, 0.7 * bound)
    # One that is too large in spite of all.
    np.testing.assert_array_equal(
        discrete_sum.rounded(tf.constant([9.0], tf.float32), 80, _seed(0, 0)), [0]
    )


class DiscreteMeanTest(federated_test_case.FederatedTestCase):

  def _process(self, noise=1.0, clip=1.0, cohort=2, key=bytes(32), secure=False, of=_TYPE):
    shield = protection.NoisySum(
        noise, clip, cohort=cohort, population=10, mechanism=protection.DISCRETE_GAUSSIAN
    )
    aggregate = aggregation.dp_mean(shield, noise_key=key, secure=secure)
    self.assertTrue(aggregate.by_client)
    process = aggregate.update.create(of, tff.TensorType(np.int32))
    disclosure.check(process.next, aggregate.update_fields(of))
    return process, aggregate.update_fields(of)

  @parameterized.parameters(False, True)
  def test_without_noise_it_is_the_mean_of_clipped_updates(self, secure):
    process, _ = self._process(noise=0.0, clip=2.0, cohort=4, secure=secure)
    updates = [[3, 4, 0, 0, 0, 0], [-0.3, 0, 0, 0, 0.4, 0], [0, 0, 0, 0, 0, -4]]
    mean = process.next(process.initialize(), [_update(u) for u in updates], [5, 6, 7]).result
    self.assertEqual(mean.trainable[0].shape, (2, 2))
    # Steps are 2 / 256, three clients are rounded.
    np.testing.assert_allclose(
        _vector(mean), np.array([0.9, 1.6, 0, 0, 0.4, -2]) / 4, atol=3 * 2 / 256 / 4
    )

  @parameterized.parameters(False, True)
  def test_integers_alone_leave_a_client(self, secure):
    process, fields = self._process(secure=secure)
    [edge] = disclosure.client_to_server_edges(process.next)
    [field] = fields
    self.assertEqual((edge.type_spec, field.type_spec, field.num_bytes), ('int32[6]',) * 2 + (24,))
    self.assertEqual((field.lower, field.upper), (0, 2**14 - 1))
    if secure:
      self.assertEqual((edge.intrinsic, edge.bitwidth), ('federated_secure_modular_sum', '14'))
      tff.test.assert_not_contains_unsecure_aggregation(process.next)
      with self.assertRaises(disclosure.UndeclaredUplinkError):
        disclosure.check(process.next, [field._replace(bitwidth=13)])

  @parameterized.parameters(False, True)
  def test_no_update_moves_the_sum_by_more_than_the_norm(self, secure):
    process, _ = self._process(clip=0.5, cohort=1, secure=secure)
    state, calm = process.initialize(), _update([0.1] * 6)
    grid = discrete_gaussian.grid(1.0, 6, 1)

    def total(update):
      found = _vector(process.next(state, [calm, _update(update)], [0, 1]).result)
      whole = found / (0.5 / grid.steps)
      np.testing.assert_allclose(whole, np.round(whole), atol=1e-3)
      return np.round(whole)

    # Shares of both clients are in it, and the same in each: differences are those of updates.
    still = total(np.zeros(6))
    for update in _ADVERSARIAL:
      moved = total(update) - still
      self.assertLessEqual(moved @ moved, grid.norm_squared, update)

  @parameterized.parameters(False, True)
  def test_shares_add_up_to_the_noise_of_the_sum(self, secure):
    wide = tff.to_type(tff.learning.models.ModelWeights([(np.float32, (20_000,))], []))
    process, _ = self._process(noise=1.5, clip=2.0, cohort=4, secure=secure, of=wide)
    zeros = tff.learning.models.ModelWeights([np.zeros(20_000, np.float32)], [])
    grid = discrete_gaussian.grid(1.5, 20_000, 4)
    state = process.initialize()
    expected = 1.5 * 2 * math.sqrt(grid.norm_squared) / grid.steps / 4
    output = process.next(state, [zeros] * 4, [0, 1, 2, 3])
    first = np.asarray(output.result.trainable[0])
    # The standard error of a deviation is half a percent.
    self.assertAlmostEqual(first.std() / expected, 1, delta=0.02)
    # A share is missing: less noise than was declared.
    fewer = np.asarray(process.next(state, [zeros] * 3, [0, 1, 2]).result.trainable[0])
    self.assertAlmostEqual(fewer.std() / expected, math.sqrt(3 / 4), delta=0.02)
    # Again the same, in any order; another round, other clients: unrelated.
    again = process.next(state, [zeros] * 4, [3, 2, 1, 0]).result.trainable[0]
    np.testing.assert_array_equal(first, again)
    for other in (
        process.next(output.state, [zeros] * 4, [0, 1, 2, 3]),
        process.next(state, [zeros] * 4, [4, 5, 6, 7]),
    ):
      self.assertLess(abs(np.corrcoef(first, other.result.trainable[0])[0, 1]), 0.03)

  def test_too_much_noise_is_one_line(self):
    with self.assertRaisesRegex(types.UsageError, '^--client_dp_noise: .* 1e.06 on 6 .*; use'):
      self._process(noise=1e6)


if __name__ == '__main__':
  absltest.main()
