"""Tests of TFF's factories as aggregations."""

import asyncio

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tests.algorithms import method_runs
from tests.program import runs
from tff_noise import types
from tff_noise.federated import aggregation
from tff_noise.federated import own_aggregation
from tff_noise.program import checkpoints
from tff_noise.uplink import uplink

_UPDATE = toy.linear_model().weights_type
_FEDERATION = types.Federation(
    tuple(
        types.ClientExamples(x, y, np.arange(4 * c, 4 * c + 4)) for c, (x, y) in enumerate((
            (method_runs.X, method_runs.Y),
            (method_runs.X[::-1], method_runs.Y),
            (-method_runs.X, 1 - method_runs.Y),
        ))
    ), 2, method_runs.SEED,
)


def _of(factory):
  return own_aggregation.of_factory(factory, '--aggregation=m:f')


def _trained(aggregate):
  task = method_runs.task(_FEDERATION, aggregation=aggregate)
  return method_runs.run('fedavg', _FEDERATION, task)[0]


class OwnAggregationTest(federated_test_case.FederatedTestCase):

  def test_sums_are_declared_as_they_are_compiled(self):
    fields = _of(tff.aggregators.MeanFactory()).update_fields(_UPDATE)
    self.assertEqual(
        [(f.name, f.type_spec, f.intrinsic, f.num_bytes) for f in fields],
        [
            ('update, value 1 of 2', str(_UPDATE), 'federated_sum', 16),
            ('update, value 2 of 2', 'float32', 'federated_sum', 4),
        ],
    )
    self.assertEqual({f.disclosure for f in fields}, {uplink.Disclosure.SUM})
    self.assertEqual({f.protection for f in fields}, {None})

  def test_a_mean_is_the_mean(self):
    found = _trained(_of(tff.aggregators.MeanFactory()))
    expected = _trained(aggregation.weighted_mean())
    tf.nest.map_structure(np.testing.assert_array_equal, found.weights, expected.weights)

  def test_of_values_without_weights_every_client_counts_the_same(self):
    found = _trained(_of(tff.aggregators.UnweightedMeanFactory()))
    expected = _trained(aggregation.weighted_mean())  # All have as many examples.
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found.weights, expected.weights
    )

  @parameterized.parameters(
      (tff.learning.robust_aggregator, False), (tff.learning.secure_aggregator, True)
  )
  def test_those_of_tff_with_a_state_that_a_checkpoint_keeps(self, build, secure):
    aggregate = _of(build())
    fields = aggregate.update_fields(_UPDATE)
    self.assertEqual({f.disclosure.is_secure_sum for f in fields}, {secure})
    task = method_runs.task(_FEDERATION, aggregation=aggregate)
    algorithm = method_runs.build('fedavg', task)
    # Other sums are as secure as those of the update; built, it has been compared with all of them.
    self.assertEqual({f.disclosure.is_secure_sum for f in algorithm.fields}, {secure})
    _, second, *_, last = runs.states(algorithm, task, _FEDERATION)
    self.assertNotEqual(
        [np.asarray(v).tobytes() for v in tf.nest.flatten(second.aggregators)],
        [np.asarray(v).tobytes() for v in tf.nest.flatten(last.aggregators)],
    )
    manager = checkpoints.CheckpointManager(self.create_tempdir().full_path)
    asyncio.run(manager.save(last, 3))
    restored = asyncio.run(manager.load(3, last))
    states = [(s.state, s.aggregators) for s in (restored, last)]
    for mine, other in zip(*map(tf.nest.flatten, states), strict=True):
      np.testing.assert_array_equal(mine, other)

  def test_a_round_in_which_nobody_is_finite_changes_nothing(self):
    clients = [c._replace(x=np.full_like(c.x, np.nan)) for c in _FEDERATION.clients]
    federation = _FEDERATION._replace(clients=tuple(clients))
    task = method_runs.task(federation, aggregation=_of(tff.learning.robust_aggregator()))
    first, *_, last = runs.states(method_runs.build('fedavg', task), task, federation)
    tf.nest.map_structure(
        np.testing.assert_array_equal, last.state.weights, first.state.weights
    )

  @parameterized.parameters(
      (tff.learning.compression_aggregator,
       'sends values by federated_aggregate, of which nobody can say'),
      (lambda: tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(1.0, 10, 1.0),
       'draws random numbers .*Random.* that no seed repeats .* use --client_dp_noise'),
      (lambda: 'mean', "is no factory of tff.aggregators, but 'mean'"),
      (lambda: tff.aggregators.SecureModularSumFactory(8), 'cannot aggregate .*TypeError'),
  )
  def test_what_is_refused_and_why(self, build, why):
    with self.assertRaisesRegex(types.UsageError, f'^--aggregation=m:f {why}'):
      _of(build()).update_fields(_UPDATE)


if __name__ == '__main__':
  absltest.main()
