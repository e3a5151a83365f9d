"""Tests of FedBN."""

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tests.optimizers import rounds
from tests.program import runs
from tff_noise import types
from tff_noise.algorithms import catalog as algorithms
from tff_noise.federated import task as task_lib
from tff_noise.models import architectures
from tff_noise.models import keras_model
from tff_noise.optimizers import catalog
from tff_noise.optimizers import fed_bn
from tff_noise.selection import availability

_TRAINING = rounds.full_batch(3)
_NORMS = 'fedbn_norms'


def _nested_model():
  """A custom layer, a model in the model, and all three kinds of normalisation."""
  inner_in = tf.keras.Input((4,))
  inner = tf.keras.Model(inner_in, tf.keras.layers.BatchNormalization()(inner_in))
  x = tf.keras.Input((2,))
  y = tf.keras.layers.Dense(4)(x)
  y = tf.keras.layers.LayerNormalization()(inner(y))
  y = tf.keras.layers.GroupNormalization(groups=2)(tf.keras.layers.Dense(4)(y))
  return keras_model.from_keras(tf.keras.Model(x, [tf.keras.layers.Dense(2)(y), y]))


class FedBNTest(federated_test_case.FederatedTestCase):

  def _federation(self, norm='batch', **options):
    return rounds.Federation(
        'fedbn', rounds.DISAGREEING, _TRAINING, toy.linear_model(norm), **options
    )

  @parameterized.parameters('batch', 'group')
  def test_nothing_of_a_normalisation_layer_is_sent(self, norm):
    # Of gamma [2], beta [2], W [2, 2] and perhaps two moving statistics [2], only W.
    (update,) = (f for f in self._federation(norm).built.fields if f.name == 'update')
    self.assertEqual(update.type_spec, '<trainable=<float32[2,2]>,non_trainable=<>>')
    self.assertEqual(update.num_bytes, 16)

  @parameterized.parameters('batch', 'group')
  def test_the_server_averages_the_rest_and_leaves_normalisation_alone(self, norm):
    federation = self._federation(norm)
    before = federation.weights
    federation.round()
    # In the first round all train as in FedAvg.
    plain = rounds.Federation('fedavg', rounds.DISAGREEING, _TRAINING, toy.linear_model(norm))
    plain.round()
    *norms, w = federation.weights.trainable
    np.testing.assert_allclose(w, plain.weights.trainable[-1], atol=1e-6)
    for found, first in zip(norms, before.trainable, strict=False):
      np.testing.assert_array_equal(found, first)
    for found, first in zip(
        federation.weights.non_trainable, before.non_trainable, strict=True
    ):
      np.testing.assert_array_equal(found, first)

  @parameterized.parameters('batch', 'group')
  def test_a_client_goes_on_from_its_own_normalisation(self, norm):
    federation = self._federation(norm)
    federation.round()
    self.assertTrue(all(kept['seen'] for kept in federation.own(_NORMS)))
    own = federation.own(_NORMS)[1]
    # The same round of FedAvg from the model that the client should start from.
    alone = rounds.Federation('fedavg', rounds.DISAGREEING, _TRAINING, toy.linear_model(norm))
    places = fed_bn.norm_places(federation.model)
    alone.state = alone.process.set_model_weights(
        alone.state, fed_bn.with_norms(places, federation.weights, own)
    )
    alone.round(1)
    federation.round(1)
    found = fed_bn.with_norms(places, federation.weights, federation.own(_NORMS)[1])
    for expected, value in zip(
        tf.nest.flatten(alone.weights), tf.nest.flatten(found), strict=True
    ):
      np.testing.assert_allclose(value, expected, atol=1e-6)
    # And these have moved from round to round.
    self.assertGreater(
        max(
            np.abs(np.subtract(a, b)).max()
            for a, b in zip(own['trainable'], federation.own(_NORMS)[1]['trainable'], strict=True)
        ),
        1e-4,
    )

  def test_clients_keep_different_normalisation(self):
    federation = self._federation()
    federation.round()
    mean_0, mean_1 = (np.asarray(kept['non_trainable'][0]) for kept in federation.own(_NORMS))
    # Moving means after three batches of all examples: (1 - 0.9^3) times the examples' mean.
    np.testing.assert_allclose(mean_0, (1 - 0.9**3) * np.array([4 / 6, 2 / 6]), atol=1e-5)
    np.testing.assert_allclose(mean_1, (1 - 0.9**3) * np.array([12 / 9, 6 / 9]), atol=1e-5)

  def test_client_without_a_step_stays_one_that_never_took_part(self):
    federation = rounds.Federation(
        'fedbn', (rounds.DISAGREEING[0], ([], [])), _TRAINING, toy.linear_model('batch')
    )
    federation.round()
    self.assertEqual([bool(kept['seen']) for kept in federation.own(_NORMS)], [True, False])

  def test_model_without_normalisation_is_refused(self):
    task, entry = task_lib.Task(toy.linear_model()), catalog.OPTIMIZERS['fedbn']
    with self.assertRaisesRegex(types.UsageError, 'this model has none.*--norm=batch'):
      entry.build(task, entry.params())


class RunTest(federated_test_case.FederatedTestCase):
  """Rounds of the training loop, in which three of four clients take part."""

  def setUp(self):
    super().setUp()
    draw = np.random.default_rng(0)
    self.federation = types.Federation(
        tuple(
            types.ClientExamples(
                draw.normal(i, 1, (n, 2)).astype(np.float32),
                draw.integers(0, 2, n).astype(np.int32), np.arange(n),
            )
            for i, n in enumerate((4, 7, 5, 6))
        ),
        2, 3,
    )
    self.task = task_lib.Task(
        toy.linear_model('batch'),
        types.LocalTraining(2, 4, 0.2),
        seed=3,
        client_sizes=self.federation.sizes,
        clients_per_round=2,
        rounds=3,
        # The last client never comes.
        availability=availability.Availability(np.array([1, 1, 1, 9]), np.full(4, 99)),
    )
    entry = algorithms.ALGORITHMS['fedbn']
    self.algorithm = entry.build(self.task, entry.params())

  def test_evaluated_weights_have_the_mean_of_the_seen_clients_norms(self):
    states = runs.states(self.algorithm, self.task, self.federation)
    seen_in_all = set()
    for state in states:
      seen = np.flatnonzero(state.participations)
      seen_in_all.add(len(seen))
      ((model, weights),) = self.algorithm.evaluated(state.state, state.own_of_clients)
      self.assertIs(model, self.algorithm.model)
      server = state.state.weights
      # gamma and beta, then W; moving mean and variance.
      np.testing.assert_array_equal(weights.trainable[2], server.trainable[2])
      for kind, count in (('trainable', 2), ('non_trainable', 2)):
        for i in range(count):
          expected = getattr(server, kind)[i]
          if len(seen):
            expected = np.mean([state.own[_NORMS][c][kind][i] for c in seen], axis=0)
          np.testing.assert_allclose(getattr(weights, kind)[i], expected, rtol=1e-5, atol=1e-6)
          # The server's own have not moved.
          np.testing.assert_array_equal(
              getattr(server, kind)[i], getattr(states[0].state.weights, kind)[i]
          )
    self.assertGreater(len(seen_in_all), 1)
    self.assertGreater(np.abs(weights.non_trainable[0]).max(), 0.1)

  def test_every_client_that_was_seen_has_a_model_of_its_own(self):
    states = runs.states(self.algorithm, self.task, self.federation)
    for state in states:
      seen = np.flatnonzero(state.participations)
      models = self.algorithm.own_models(state.state, state.own_of_clients)
      self.assertLen(models, len(seen))
      server = state.state.weights
      for client, model in zip(seen, models, strict=True):
        own = state.own[_NORMS][client]
        self.assertTrue(own['seen'])
        for found, expected in zip(
            (*model.trainable, *model.non_trainable),
            (*own['trainable'], server.trainable[2], *own['non_trainable']),
            strict=True,
        ):
          np.testing.assert_array_equal(found, expected)
    self.assertEqual(np.flatnonzero(states[-1].participations).tolist(), [0, 1, 2])
    self.assertFalse(states[-1].own[_NORMS][3]['seen'])


class EvaluationTest(absltest.TestCase):

  def _weights(self, model, value):
    zeros = keras_model.read(keras_model.build_zeros(model))
    return tf.nest.map_structure(lambda v: np.full(v.shape, value, np.float32), zeros)

  def _state(self, value, seen=True):
    return {
        'seen': np.bool_(seen),
        'trainable': [np.full(2, value, np.float32)] * 2,
        'non_trainable': [np.full(2, 10 * value, np.float32)] * 2,
    }

  def test_a_clients_model_has_its_own_norms_and_the_servers_rest(self):
    model = toy.linear_model('batch')
    weights = self._weights(model, 7.0)
    found = fed_bn.with_norms(fed_bn.norm_places(model), weights, self._state(3.0))
    self.assertEqual([np.unique(v).tolist() for v in found.trainable], [[3], [3], [7]])
    self.assertEqual([np.unique(v).tolist() for v in found.non_trainable], [[30], [30]])
    self.assertEqual(np.unique(weights.trainable[0]).tolist(), [7])  # Not changed in place.

  def test_unseen_clients_have_the_servers(self):
    model = toy.linear_model('batch')
    found = fed_bn.with_norms(
        fed_bn.norm_places(model), self._weights(model, 7.0), self._state(3.0, seen=False)
    )
    self.assertEqual([np.unique(v).tolist() for v in found.trainable], [[7], [7], [7]])

  def test_the_mean_is_over_clients_that_were_seen(self):
    model = toy.linear_model('batch')
    states = [self._state(1.0), self._state(100.0, seen=False), self._state(4.0)]
    found = fed_bn.with_mean_norms(fed_bn.norm_places(model), self._weights(model, 7.0), states)
    self.assertEqual([np.unique(v).tolist() for v in found.trainable], [[2.5], [2.5], [7]])
    self.assertEqual([np.unique(v).tolist() for v in found.non_trainable], [[25], [25]])
    self.assertEqual(found.trainable[0].dtype, np.float32)
    for nobody in ([], states[1:2]):
      found = fed_bn.with_mean_norms(fed_bn.norm_places(model), self._weights(model, 7.0), nobody)
      self.assertEqual([np.unique(v).tolist() for v in found.trainable], [[7], [7], [7]])


class NormPlacesTest(absltest.TestCase):

  def _sizes(self, model):
    network = keras_model.build_zeros(model)
    places = fed_bn.norm_places(model)
    return (
        [network.trainable_variables[i].name.split('/')[-1] for i in places.trainable],
        [network.non_trainable_variables[i].name.split('/')[-1] for i in places.non_trainable],
        len(network.trainable_variables),
    )

  def test_all_kinds_at_all_depths_are_found(self):
    trainable, non_trainable, count = self._sizes(_nested_model())
    self.assertEqual(trainable, ['gamma:0', 'beta:0'] * 3)
    self.assertEqual(non_trainable, ['moving_mean:0', 'moving_variance:0'])
    self.assertEqual(count, 6 + 6)  # And three dense layers.

  def test_of_an_architecture_exactly_the_scales_and_shifts(self):
    for norm in ('batch', 'group'):
      model = keras_model.from_keras(architectures.MODELS['resnet18']((32, 32, 3), 10, norm=norm))
      trainable, non_trainable, _ = self._sizes(model)
      self.assertEqual(set(trainable), {'gamma:0', 'beta:0'})
      self.assertLen(trainable, 40)
      self.assertLen(non_trainable, 40 if norm == 'batch' else 0)


if __name__ == '__main__':
  absltest.main()
