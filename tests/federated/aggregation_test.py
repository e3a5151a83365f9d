"""Tests of the two aggregations."""

import numpy as np
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tff_noise.federated import aggregation
from tff_noise.federated import disclosure
from tff_noise.federated import uplink

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


if __name__ == '__main__':
  absltest.main()
