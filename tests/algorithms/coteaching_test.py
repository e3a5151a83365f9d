"""Tests of Co-teaching: its equations, and that two networks are two runs of FedAvg."""

import os

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tests.program import runs
from tff_noise import types
from tff_noise.algorithms import catalog
from tff_noise.algorithms import coteaching
from tff_noise.algorithms import parameters
from tff_noise.clients import program
from tff_noise.federated import aggregation
from tff_noise.federated import evaluation
from tff_noise.federated import task as task_lib
from tff_noise.models import keras_model
from tff_noise.optimizers import catalog as optimizers
from tff_noise.privacy import protection
from tff_noise.program import training

# The last batch of most is smaller than the others; one holds a single example.
_FEDERATION = toy.two_corners((7, 1, 12, 9))
_TRAINING = types.LocalTraining(epochs=2, batch_size=4, learning_rate=0.1, momentum=0.9)
# Rules that treat weights entry by entry.
_BASES = ('fedavg', 'fedprox', 'fednova', 'fedadam', 'feddyn', 'scaffold', 'median')


def _params(**changes):
  return parameters.CoTeachingParams(**changes)


def _model(norm='none'):
  """Two inputs, a hidden layer of five, random initial weights."""
  x = tf.keras.Input((2,), name='x')
  features = tf.keras.layers.Dense(5, name='hidden')(x)
  if norm == 'batch':
    features = tf.keras.layers.BatchNormalization(momentum=0.9, name='norm')(features)
  features = tf.keras.layers.ReLU(name='relu')(features)
  logits = tf.keras.layers.Dense(2, name='logits')(features)
  return keras_model.from_keras(tf.keras.Model(x, [logits, features]))


def _task(**changes):
  return task_lib.Task(
      _model(), _TRAINING, _FEDERATION.seed, client_sizes=_FEDERATION.sizes, clients_per_round=3,
      rounds=3,
  )._replace(**changes)


def _build(task=None, **params):
  return catalog.ALGORITHMS['coteaching'].build(task or _task(), _params(**params))


def _based(task, base, **params):
  """The task on an optimizer."""
  entry = optimizers.OPTIMIZERS[base]
  return task._replace(optimizer=entry.build(task, entry.params(**params)))


def _states(algorithm, task, start=None):
  """The states of a run, the first one included."""
  clients = runs.clients_of(algorithm, task, _FEDERATION)
  states = [algorithm.init()]
  if start is not None:
    states[0].models['model'] = start
  for _ in range(task.rounds):
    states.append(training.run_round(algorithm, states[-1], clients))
  return states


def _networks(weights):
  """The weights of the two networks."""
  trainable, non_trainable = (
      (v[: len(v) // 2], v[len(v) // 2 :]) for v in (weights.trainable, weights.non_trainable)
  )
  return [
      tff.learning.models.ModelWeights(t, n) for t, n in zip(trainable, non_trainable, strict=True)
  ]


class ParametersTest(parameterized.TestCase):

  @parameterized.parameters(
      ({'forget_rate': 1.0}, 'forget_rate must be at least 0 and below 1, got 1.0'),
      ({'forget_rate': -0.1}, 'forget_rate must be at least 0'),
      ({'ramp_rounds': 0}, 'ramp_rounds must be positive, got 0'),
      ({'schedule': 'linear'}, "schedule must be one of paper, code, got 'linear'"),
      ({'initial': 'same'}, "initial must be one of different, equal, got 'same'"),
      ({'evaluate': 'both'}, "evaluate must be one of first, mean_probability, got 'both'"),
  )
  def test_ranges(self, given, message):
    with self.assertRaisesRegex(ValueError, f'^{message}'):
      _params(**given)


class EquationsTest(parameterized.TestCase):

  def test_schedules(self):
    paper, code = (_params(schedule=s) for s in ('paper', 'code'))
    np.testing.assert_allclose(
        [coteaching.forget_rate(t, paper) for t in range(1, 14)],
        [0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.12, 0.14, 0.16, 0.18, 0.2, 0.2, 0.2],
    )
    np.testing.assert_allclose(
        [coteaching.forget_rate(t, code) for t in range(1, 14)],
        # The epoch of index 0 is only evaluated there.
        [*np.linspace(0, 0.2, 10)[1:], 0.2, 0.2, 0.2, 0.2],
    )
    self.assertAlmostEqual(float(coteaching.forget_rate(1, code)), 0.022222, places=6)

  def test_shortest_schedules(self):
    for schedule, first in (('paper', 0), ('code', 0.2)):
      p = _params(ramp_rounds=1, schedule=schedule)
      self.assertEqual([coteaching.forget_rate(t, p) for t in (1, 2, 3)], [first, 0.2, 0.2])

  def test_longest_schedule(self):
    p = _params(ramp_rounds=2**31 - 1)
    self.assertAlmostEqual(float(coteaching.forget_rate(2**30, p)), 0.1, places=6)

  def test_each_learns_what_the_other_finds_easy(self):
    l_f, l_g = tf.constant([0.1, 2.0, 0.5, 0.3]), tf.constant([0.4, 0.2, 1.5, 0.1])
    with tf.GradientTape(persistent=True) as tape:
      tape.watch([l_f, l_g])
      # D_f = {0, 3}, D_g = {3, 1}.
      loss_f, loss_g = coteaching.crossed(l_f, l_g, 2)
      both = loss_f + loss_g
    np.testing.assert_allclose([loss_f, loss_g], [1.15, 0.25], atol=1e-5)
    # The public code divides by 2 again.
    np.testing.assert_allclose([loss_f / 2, loss_g / 2], [0.575, 0.125], atol=1e-5)
    np.testing.assert_allclose(tf.convert_to_tensor(tape.gradient(both, l_f)), [0, 0.5, 0, 0.5])
    np.testing.assert_allclose(tf.convert_to_tensor(tape.gradient(both, l_g)), [0.5, 0, 0, 0.5])

  def test_ties_are_broken_by_place(self):
    l_f, l_g = tf.constant([1.0, 0.0, 1.0, 1.0]), tf.constant([1.0, 2.0, 4.0, 8.0])
    _, loss_g = coteaching.crossed(l_f, l_g, 3)  # D_f = {1, 0, 2}
    self.assertAlmostEqual(loss_g.numpy(), (2 + 1 + 4) / 3, places=6)

  @parameterized.parameters((1, (1, 3, 5, 7)), (2, (1, 3)), (3, (1,)), (9, (1,)))
  def test_loss_of_a_step(self, round_num, kept):
    # tau = 0.75, T_k = 2: R = 1, 0.625, 0.25, 0.25, ... Both networks give the same logits.
    own = coteaching.client(_params(forget_rate=0.75, ramp_rounds=2), types.LocalTraining())
    z = tf.math.log(tf.exp([5.0, 1.0, 7.0, 3.0]) - 1)  # log(1 + exp(z)) is the loss of label 1.
    logits = tf.stack([z, tf.zeros(4)], axis=1)
    step = _nothing(program.Step)._replace(
        client=_nothing(program.Client)._replace(round_num=round_num), logits=[logits, logits],
        labels=tf.ones(4, tf.int32),
    )
    self.assertAlmostEqual(own.loss(step).numpy(), 2 * np.mean(kept), places=4)


def _nothing(kind):
  return kind(**dict.fromkeys(kind._fields))


class TwoNetworksTest(federated_test_case.FederatedTestCase):

  def _assert_same(self, first, second, atol=0.0):
    for a, b in zip(tf.nest.flatten(first), tf.nest.flatten(second), strict=True):
      np.testing.assert_allclose(a, b, rtol=0, atol=atol)

  def _assert_different(self, first, second):
    for a, b in zip(first.trainable, second.trainable, strict=True):
      self.assertGreater(np.abs(a - b).max(), 1e-4)

  @parameterized.parameters('none', 'batch')
  def test_without_forgetting_these_are_two_runs(self, norm):
    self._assert_two_runs(_task(model=_model(norm)), 'fedavg')

  @parameterized.parameters(('fedbn', 'batch'), *((base, 'none') for base in _BASES))
  def test_also_on_other_optimizers_and_with_weight_decay(self, base, norm):
    # Decay is added to gradients in one order or another: rounding differs.
    training_ = _TRAINING._replace(weight_decay=0.01)
    self._assert_two_runs(_task(model=_model(norm), training=training_), base, atol=1e-6)

  def _assert_two_runs(self, task, base, atol=0.0):
    based = _based(task, base)
    both = _states(_build(based, forget_rate=0.0), based)
    alone = catalog.ALGORITHMS[base].build(task, optimizers.OPTIMIZERS[base].params())
    for i in range(2):
      # The first network starts as the model of this seed does.
      start = None if i == 0 else _networks(both[0].weights)[i]
      for together, one in zip(both, _states(alone, task, start), strict=True):
        self._assert_same(_networks(together.weights)[i], one.weights, atol)

  @parameterized.parameters('none', 'batch')
  def test_equal_networks_stay_equal(self, norm):
    task = _task(model=_model(norm))
    for state in _states(_build(task, initial='equal', forget_rate=0.5, ramp_rounds=1), task):
      self._assert_same(*_networks(state.weights))

  def test_what_is_forgotten_matters_from_the_second_round_on(self):
    task = _task()
    with_all, without = (
        _states(_build(forget_rate=rate, ramp_rounds=1), task) for rate in (0.0, 0.5)
    )
    self._assert_same(with_all[1].weights, without[1].weights)
    self._assert_different(with_all[2].weights, without[2].weights)
    for state in without[1:]:
      self._assert_different(*_networks(state.weights))

  def test_keeps_one_of_each_batch_though_almost_all_are_forgotten(self):
    task = _task(clients_per_round=4)
    states = _states(_build(forget_rate=0.99, ramp_rounds=1), task)
    for state in states:
      for value in tf.nest.flatten(state.weights):
        self.assertTrue(np.isfinite(value).all())
    self._assert_different(states[-2].weights, states[-1].weights)

  def test_power_of_choice_asks_for_the_mean_loss(self):
    task = _based(_task(), 'poc', candidates=4, loss='all')
    algorithm = _build(task)
    *_, state = _states(algorithm, task)
    [poll] = [c for c in algorithm.computations if not c.trains]
    clients = runs.clients_of(algorithm, task, _FEDERATION)
    examples = _FEDERATION.clients[2]
    expected = [
        -np.log(p[np.arange(len(p)), examples.y]).mean()
        for p in self._probabilities(task.model, state.weights, examples.x)
    ]
    self.assertGreater(abs(expected[0] - expected[1]), 1e-3)
    found = clients.run(poll, state, np.array([2])).reports['loss']
    np.testing.assert_allclose(found, [np.mean(expected)], atol=1e-5)

  def _probabilities(self, model, weights, x):
    found = []
    for part in _networks(weights):
      network = keras_model.build_zeros(model)
      keras_model.assign(network, part)
      found.append(tf.nn.softmax(network(x, training=False)[0]).numpy())
    return found

  @parameterized.parameters('fedavg', 'fedbn')
  def test_evaluates_the_first_or_both(self, base):
    task = _based(_task(model=_model('batch')), base)
    examples = types.Examples(
        np.concatenate([c.x for c in _FEDERATION.clients]),
        np.concatenate([c.y for c in _FEDERATION.clients]),
    )
    for evaluate in ('first', 'mean_probability'):
      algorithm = _build(task, evaluate=evaluate)
      clients = runs.clients_of(algorithm, task, _FEDERATION)
      state = training.run_round(algorithm, algorithm.init(), clients)
      own = training.program_state(state, clients, runs.open_ledger(algorithm)).own_of_clients
      [evaluated] = models = algorithm.evaluated(state, own)
      found = evaluation.build_evaluators(task.model, {'test': examples})['test'](models)
      p = self._probabilities(task.model, evaluated.weights, examples.x)
      p = p[0] if evaluate == 'first' else np.mean(p, axis=0)
      own_loss = -np.log(p[np.arange(len(p)), examples.y]).mean()
      self.assertAlmostEqual(found['loss'], own_loss, places=5)
      self.assertAlmostEqual(found['accuracy'], (p.argmax(1) == examples.y).mean(), places=6)
      self.assertLen(algorithm.own_models(state, own), 3 if base == 'fedbn' else 0)

  def test_share_that_is_forgotten_is_a_column(self):
    task = _task()
    algorithm = _build(ramp_rounds=2)
    found = [algorithm.report.columns(state) for state in _states(algorithm, task)[1:]]
    self.assertEqual(found, [{'forget_rate': 0.0}, {'forget_rate': 0.1}, {'forget_rate': 0.2}])

  def test_resumes_to_the_same_numbers(self):
    task, root = _task(), self.create_tempdir().full_path
    folder, copies = os.path.join(root, 'run'), os.path.join(root, 'copies')
    for made in (folder, copies):
      os.mkdir(made)
    whole, metrics = runs.run(_build(ramp_rounds=2), task, _FEDERATION, folder, copies)
    resumed, same = runs.run(
        _build(ramp_rounds=2), task, _FEDERATION, os.path.join(copies, '2')
    )
    self.assertEqual(same, metrics)
    self._assert_same(resumed.state.weights, whole.state.weights)


class PrivacyTest(federated_test_case.FederatedTestCase):

  def test_secure_sums_alone(self):
    task = _task()
    secure = task._replace(
        aggregation=aggregation.secure_weighted_mean(update_bound=10.0, max_examples=12)
    )
    algorithm = _build(secure)
    [train] = algorithm.computations
    tff.test.assert_not_contains_unsecure_aggregation(train.next)
    plain = _states(_build(task), task)[-1]
    for a, b in zip(
        tf.nest.flatten(plain.weights),
        tf.nest.flatten(_states(algorithm, secure)[-1].weights), strict=True,
    ):
      np.testing.assert_allclose(a, b, atol=1e-5)

  def test_sends_what_fedavg_sends_of_two_models(self):
    [train] = _build().computations
    [alone] = catalog.ALGORITHMS['fedavg'].build(
        _task(), optimizers.OPTIMIZERS['fedavg'].params()
    ).computations
    self.assertEqual([f.name for f in train.fields], [f.name for f in alone.fields])
    sizes = {f.name: f.num_bytes for f in alone.fields}
    for field in train.fields:
      times = 2 if field.name == 'update' else 1
      self.assertEqual(field.num_bytes, times * sizes[field.name], field.name)

  def test_client_noise_cuts_both_networks_together(self):
    noise = protection.NoisySum(1e-6, clip=0.01, cohort=3, population=4)
    task = _task(
        clients_per_round=1,
        aggregation=aggregation.dp_mean(noise, noise_key=bytes(32), secure=False),
    )
    algorithm = _build(task, forget_rate=0.5, ramp_rounds=1)
    first, *_, last = _states(algorithm, task._replace(rounds=1))
    moved = [
        a - b for a, b in zip(last.weights.trainable, first.weights.trainable, strict=True)
    ]
    # One client, of a cohort of three.
    norms = [np.sqrt(sum((m**2).sum() for m in part)) for part in (moved[:4], moved[4:], moved)]
    self.assertAlmostEqual(norms[2], 0.01 / 3, places=6)
    self.assertGreater(min(norms), 0.1 * norms[2])


if __name__ == '__main__':
  absltest.main()
