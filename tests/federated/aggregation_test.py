"""Tests of the aggregations."""

import numpy as np
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tff_noise.federated import aggregation
from tff_noise.privacy import protection
from tff_noise.uplink import disclosure
from tff_noise.uplink import uplink

_TYPE = tff.to_type(
    tff.learning.models.ModelWeights([(np.float32, (2,)), np.float32], [(np.float32, (1,))])
)


def _update(a, b, c):
  return tff.learning.models.ModelWeights(
      [np.array(a, np.float32), np.float32(b)], [np.array(c, np.float32)]
  )


def _mean(aggregate, updates, weights):
  process = aggregate.update.create(_TYPE, tff.TensorType(np.float32))
  return process.next(process.initialize(), updates, [np.float32(w) for w in weights]).result


# What the clip has to survive: as (trainable [2], trainable [], non-trainable [1]).
_ADVERSARIAL = (
    ([1e20, 1e20], 1e20, [1e20]), ([3e38, -3e38], 3e38, [-3e38]), ([3e38, 0], 0, [0]),
    ([1e-45, -1e-45], 1e-40, [0]), ([np.inf, 0], 0, [0]), ([np.nan, 1], 0, [0]),
    ([-np.inf, np.inf], np.nan, [1e20]), ([-0.0, -0.0], -0.0, [-0.0]), ([0.5, 0.5], 0.5, [0.5]),
)

_BOTH = (
    ('mean', aggregation.weighted_mean()),
    ('secure', aggregation.secure_weighted_mean(update_bound=2.0, max_examples=4)),
)


class AggregationTest(federated_test_case.FederatedTestCase):

  @parameterized.named_parameters(*_BOTH)
  def test_weighted_mean_by_hand(self, aggregate):
    result = _mean(aggregate, [_update([1, 0], 2, [-1]), _update([0, 1], -2, [1])], [1, 3])
    np.testing.assert_allclose(result.trainable[0], [0.25, 0.75], atol=1e-6)
    np.testing.assert_allclose(result.trainable[1], -1, atol=1e-6)
    np.testing.assert_allclose(result.non_trainable[0], [0.5], atol=1e-6)

  @parameterized.named_parameters(*_BOTH)
  def test_no_examples_at_all_give_a_zero_update(self, aggregate):
    result = _mean(aggregate, [_update([0, 0], 0, [0])] * 2, [0, 0])
    np.testing.assert_array_equal(result.trainable[0], [0, 0])

  @parameterized.named_parameters(*_BOTH)
  def test_declares_what_the_compiled_computation_sends(self, aggregate):
    process = aggregate.update.create(_TYPE, tff.TensorType(np.float32))
    disclosure.check(process.next, aggregate.update_fields(_TYPE))

  @parameterized.product(
      named=_BOTH, dtype_and_bound=[(np.int32, 0, 1), (np.float32, -8.0, 8.0)]
  )
  def test_scalars_are_summed_and_declared(self, named, dtype_and_bound):
    _, aggregate = named
    dtype, lower, upper = dtype_and_bound
    scalar = uplink.UplinkSum('count', dtype, lower, upper, 'a test')
    process = aggregate.scalar(scalar).create(tff.TensorType(dtype))
    result = process.next(process.initialize(), [dtype(1), dtype(0), dtype(1)]).result
    self.assertAlmostEqual(float(result), 2, places=5)
    disclosure.check(process.next, aggregate.scalar_fields(scalar))

  def test_secure_mean_uses_secure_sums_alone(self):
    aggregate = aggregation.secure_weighted_mean(update_bound=2.0, max_examples=4)
    process = aggregate.update.create(_TYPE, tff.TensorType(np.float32))
    tff.test.assert_not_contains_unsecure_aggregation(process.next)

  def test_secure_mean_clips_each_clients_entries(self):
    aggregate = aggregation.secure_weighted_mean(update_bound=2.0, max_examples=4)
    result = _mean(aggregate, [_update([100, -100], 1, [0]), _update([0, 0], 1, [0])], [4, 4])
    np.testing.assert_allclose(result.trainable[0], [1, -1], atol=1e-6)

  def test_secure_mean_agrees_with_the_plain_one_on_random_updates(self):
    rng = np.random.default_rng(0)
    updates = [_update(rng.normal(size=2).clip(-2, 2), 0, rng.normal(size=1)) for _ in range(9)]
    weights = rng.integers(0, 5, 9)
    plain, secure = (_mean(aggregate, updates, weights) for _, aggregate in _BOTH)
    np.testing.assert_allclose(plain.trainable[0], secure.trainable[0], atol=1e-6)
    np.testing.assert_allclose(plain.non_trainable[0], secure.non_trainable[0], atol=1e-6)


class NoisyMeanTest(federated_test_case.FederatedTestCase):
  """DP-FedAvg's aggregation."""

  def _aggregate(self, noise=0.0, clip=1.0, cohort=4, key=bytes(32), secure=False):
    shield = protection.NoisySum(noise, clip, cohort=cohort, population=10)
    return aggregation.dp_mean(shield, noise_key=key, secure=secure)

  @parameterized.parameters(False, True)
  def test_mean_of_clipped_updates_over_the_fixed_cohort_by_hand(self, secure):
    # Norms 5, 1/2 and 2; of a cohort of four three came, and their examples do not count.
    updates = [_update([3, 4], 0, [0]), _update([0.3, 0], 0, [-0.4]), _update([0, 0], 2, [0])]
    result = _mean(self._aggregate(secure=secure), updates, [1, 100, 7])
    np.testing.assert_allclose(result.trainable[0], [(0.6 + 0.3) / 4, 0.8 / 4], atol=1e-6)
    np.testing.assert_allclose(result.trainable[1], 1 / 4, atol=1e-6)
    np.testing.assert_allclose(result.non_trainable[0], [-0.4 / 4], atol=1e-6)

  def test_clips_to_the_given_norm(self):
    result = _mean(self._aggregate(clip=2.5), [_update([3, 4], 0, [0])], [1])
    np.testing.assert_allclose(result.trainable[0], [1.5 / 4, 2 / 4], atol=1e-6)

  @parameterized.parameters(False, True)
  def test_nothing_but_the_update_leaves_a_client(self, secure):
    aggregate = self._aggregate(noise=1.0, clip=2.0, secure=secure)
    process = aggregate.update.create(_TYPE, tff.TensorType(np.float32))
    fields = aggregate.update_fields(_TYPE)
    disclosure.check(process.next, fields)
    edges = disclosure.client_to_server_edges(process.next)
    # A secure sum also counts the contributions, all of which are 1.
    self.assertLen(edges, 2 if secure else 1)
    self.assertEqual({f.protection for f in fields},
                     {protection.NoisySum(1.0, 2.0, cohort=4, population=10)})
    self.assertEqual((fields[0].name, fields[0].lower, fields[0].upper), ('update', -2, 2))
    self.assertIsNone(aggregate.scalar)
    self.assertEqual(aggregate.scalar_fields(None), ())
    if secure:
      tff.test.assert_not_contains_unsecure_aggregation(process.next)

  @parameterized.parameters(False, True)
  def test_no_update_moves_the_sum_by_more_than_the_norm(self, secure):
    # Before: 1e20 everywhere made the plain sum NaN, and the secure one moved by S sqrt(d).
    process = self._aggregate(clip=0.5, cohort=1, secure=secure).update.create(
        _TYPE, tff.TensorType(np.float32)
    )
    state, calm = process.initialize(), _update([0.1, 0.1], 0, [0])

    def total(*updates):
      result = process.next(state, list(updates), [np.float32(1)] * len(updates)).result
      leaves = (*result.trainable, *result.non_trainable)
      return np.concatenate([np.ravel(leaf).astype(np.float64) for leaf in leaves])

    alone = total(calm)
    for update in _ADVERSARIAL:
      moved = total(calm, _update(*update)) - alone
      # What float32 makes of the sum is on top.
      self.assertLessEqual(np.linalg.norm(moved), 0.5 * (1 + 1e-6), update)

  def test_noise_of_one_release_is_not_that_of_another(self):
    # (4 o1 - o4) / 3 of the first rounds with Z = 1 and Z = 4 was the mean without noise.
    updates = [_update([0.3, -0.2], 0.1, [0.4])] * 2
    first, *others = (
        np.asarray(_mean(self._aggregate(**given), updates, [1, 1]).trainable[0]) - 0.0
        for given in (
            {'noise': 1.0}, {'noise': 4.0}, {'noise': 1.0, 'clip': 2.0},
            {'noise': 1.0, 'secure': True}, {'noise': 1.0, 'key': bytes([1] * 32)},
        )
    )
    mean = np.array([0.3, -0.2]) / 2
    noise = first - mean
    for other, scale in zip(others, (4, 2, 1, 1), strict=True):
      self.assertFalse(np.isclose((other - mean) / scale, noise, rtol=1e-2).any())

  @parameterized.parameters(0.0, 0.7)
  def test_secure_sum_agrees_with_the_plain_one(self, noise):
    # The noise of one is not that of the other.
    noise *= 1e-6
    draw = np.random.default_rng(0)
    updates = [
        _update(draw.normal(size=2), draw.normal(), draw.normal(size=1)) for _ in range(4)
    ]
    plain, secure = (
        _mean(self._aggregate(noise=noise, secure=secure), updates, [1] * 4)
        for secure in (False, True)
    )
    # Rounded to 2 / 2^32 each; then float32.
    for a, b in zip(plain.trainable, secure.trainable, strict=True):
      np.testing.assert_allclose(a, b, atol=1e-6)
    np.testing.assert_allclose(plain.non_trainable[0], secure.non_trainable[0], atol=1e-6)

  def test_noise_is_that_of_the_sum_over_the_cohort(self):
    wide = tff.to_type(tff.learning.models.ModelWeights([(np.float32, (200, 100))], []))
    aggregate = self._aggregate(noise=1.5, clip=2.0)
    process = aggregate.update.create(wide, tff.TensorType(np.float32))
    zeros = tff.learning.models.ModelWeights([np.zeros((200, 100), np.float32)], [])
    result = process.next(process.initialize(), [zeros] * 2, [np.float32(1)] * 2).result
    values = np.asarray(result.trainable[0])
    # 20,000 numbers: the standard error of their deviation is half a percent.
    self.assertAlmostEqual(values.std() / (1.5 * 2 / 4), 1, delta=0.02)
    self.assertAlmostEqual(values.mean(), 0, delta=0.02)

  def test_noise_is_a_function_of_key_and_round(self):
    updates, weights = [_update([0, 0], 0, [0])] * 2, [np.float32(1)] * 2

    def rounds(key, secure=False):
      aggregate = self._aggregate(noise=1.0, key=key, secure=secure)
      process = aggregate.update.create(_TYPE, tff.TensorType(np.float32))
      state, found = process.initialize(), []
      for _ in range(3):
        output = process.next(state, updates, weights)
        # From the same state, as a run that is continued has it, the same once more.
        again = process.next(state, updates, weights)
        np.testing.assert_array_equal(again.result.trainable[0], output.result.trainable[0])
        state = output.state
        found.append(np.asarray(output.result.trainable[0]).tolist())
      return found

    first = rounds(bytes(32))
    self.assertEqual(rounds(bytes(32)), first)
    self.assertLen(set(map(str, [*first, *rounds(bytes([1] * 32))])), 6)


if __name__ == '__main__':
  absltest.main()
