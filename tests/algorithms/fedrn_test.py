"""FedRN: its numbers by hand, a run in NumPy, its guards and limits, and what it shows to whom."""

import functools

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tests.algorithms import method_runs
from tests.program import runs
from tff_noise import params as params_lib
from tff_noise import types
from tff_noise.algorithms import catalog
from tff_noise.algorithms import fedrn
from tff_noise.algorithms import parameters
from tff_noise.clients import gaussian_mixture
from tff_noise.federated import aggregation
from tff_noise.models import keras_model
from tff_noise.privacy import protection
from tff_noise.program import flags
from tff_noise.uplink import uplink

_Params = parameters.FedRNParams
_EXPERTISE = np.array([0.8, 0.6, 0.7, 0.5], np.float32)
_OUTPUTS = np.array([[1, 0, 0], [0.8, 0.6, 0], [0, 1, 0], [0.6, 0, 0.8]], np.float32)
_NAN = np.nan
# One batch an epoch: the order of examples does not matter.
_FULL = types.LocalTraining(2, 100, 0.5, momentum=0.5, weight_decay=0.01)
_SIZES = [8, 11, 6, 13]
_IMAGE = fedrn.shared_image(toy.linear_model(), method_runs.SEED)


def _scores(client=0, expertise=_EXPERTISE, outputs=_OUTPUTS, a=0.6):
  return fedrn.scores(client, np.array(expertise, np.float32), np.array(outputs, np.float32), a)


def _neighbours(client=0, expertise=_EXPERTISE, outputs=_OUTPUTS, **params):
  return fedrn.neighbours(
      client, np.array(expertise, np.float32), np.array(outputs, np.float32), _Params(**params)
  )


class NeighboursTest(parameterized.TestCase):

  def test_scores_by_hand(self):
    np.testing.assert_allclose(_scores(), [1, 0.52, 0.4, 0.24], atol=1e-5)
    # Similarity alone, and accuracy alone.
    np.testing.assert_allclose(_scores(a=0), [1, 0.8, 0, 0.6], atol=1e-5)
    np.testing.assert_allclose(_scores(a=1), [1, 0.333333, 0.666667, 0], atol=1e-5)

  def test_weights_by_hand(self):
    found = _neighbours()
    self.assertEqual(found.ids.tolist(), [1, 2])
    np.testing.assert_allclose(found.weights, [0.520833, 0.270833, 0.208333], atol=1e-5)

  def test_of_another_client_by_hand(self):
    # The cosines of client 3 are .6, .48, 0 and 1; its own accuracy is the lowest: .4 of itself.
    np.testing.assert_allclose(
        _scores(3), [0.6 + 0.4 * 0.6, 0.2 + 0.4 * 0.48, 0.4, 0.4], atol=1e-5
    )
    found = _neighbours(3)
    self.assertEqual(found.ids.tolist(), [0, 2])
    np.testing.assert_allclose(found.weights, np.array([0.4, 0.84, 0.4]) / 1.64, atol=1e-5)

  @parameterized.parameters((1.0, [2, 1]), (0.0, [1, 3]))
  def test_best_by_accuracy_or_by_similarity_alone(self, a, expected):
    self.assertEqual(_neighbours(expertise_weight=a).ids.tolist(), expected)

  def test_without_neighbours_a_client_counts_alone(self):
    found = _neighbours(neighbours=0)
    self.assertEmpty(found.ids)
    self.assertEqual(found.weights.tolist(), [1])

  def test_equal_accuracies_are_all_the_best(self):
    np.testing.assert_allclose(_scores(expertise=[0.7] * 4), [1, 0.92, 0.6, 0.84], atol=1e-5)
    np.testing.assert_allclose(_scores(expertise=[0.0] * 4, a=1), [1] * 4)

  @parameterized.parameters(1.0, 1e-3, 0.0)
  def test_equal_outputs_are_all_alike(self, scale):
    # Of which cosines are rounded; and of 0, which have none.
    outputs = scale * np.array([[0.1, 0.7, -0.3]]) * np.array([[1], [3], [7], [0.3]])
    for client in range(4):
      np.testing.assert_allclose(_scores(client, outputs=outputs, a=0), [1] * 4)

  def test_equal_scores_are_in_the_order_of_ids(self):
    found = _neighbours(2, expertise=[0.5] * 4, outputs=[[1, 0, 0]] * 4)
    self.assertEqual(found.ids.tolist(), [0, 1])
    np.testing.assert_allclose(found.weights, [1 / 3] * 3, atol=1e-6)

  def test_scores_of_0_leave_a_client_alone(self):
    # The least accurate of two looks by accuracy, with nobody but itself.
    found = _neighbours(1, expertise=[0.8, 0.5, _NAN, _NAN], neighbours=0, expertise_weight=1.0)
    self.assertEqual(found.weights.tolist(), [1])

  def test_nobody_who_was_never_trained_is_a_neighbour(self):
    expertise = [0.8, _NAN, _NAN, 0.5]
    np.testing.assert_allclose(_scores(0, expertise), [1, _NAN, _NAN, 0])
    found = _neighbours(3, expertise)
    # Its accuracy is the worst and the other's output the least like its own.
    self.assertEqual(found.ids.tolist(), [0])
    np.testing.assert_allclose(found.weights, [0.4, 0.6, 0], atol=1e-6)
    untrained = _neighbours(1, expertise)
    self.assertEmpty(untrained.ids)
    self.assertEqual(untrained.weights.tolist(), [0, 0, 0])

  def test_are_independent_of_the_order_of_clients(self):
    draw = np.random.default_rng(0)
    expertise, outputs = draw.random(9).astype(np.float32), draw.normal(size=(9, 3))
    expertise[4] = _NAN
    order = draw.permutation(9)
    for i, client in enumerate(order):
      here, there = _neighbours(client, expertise, outputs), _neighbours(
          i, expertise[order], outputs[order]
      )
      self.assertEqual(order[there.ids].tolist(), here.ids.tolist())
      np.testing.assert_allclose(there.weights, here.weights, atol=1e-6)


class PosteriorsTest(parameterized.TestCase):

  def test_mean_by_hand(self):
    posteriors = [[0.9, 0.4, 0.6], [0.7, 0.7, 0.3], [0.2, 0.8, 0.9]]
    weights = tf.constant([0.520833, 0.270833, 0.208333])
    # (.7, .564583, .58125): clean though the client's own says .4 of the second.
    found = fedrn.weighted_posterior(tf.constant(posteriors), weights)
    np.testing.assert_allclose(found, [0.7, 0.564583, 0.58125], atol=1e-5)

  def test_posterior_is_that_of_small_losses(self):
    logits = np.array([[4, 0], [5, 0], [4.5, 0], [0, 6], [0, 5.5]], np.float32)
    found = fedrn.clean_posterior(tf.constant(logits), tf.zeros(5, tf.int32))
    np.testing.assert_allclose(found, [1, 1, 1, 0, 0], atol=1e-3)

  @parameterized.parameters(1, 4, 0)
  def test_equal_losses_are_clean(self, count):
    found = fedrn.clean_posterior(tf.ones([count, 3]), tf.zeros(count, tf.int32))
    self.assertEqual(found.numpy().tolist(), [1] * count)

  def test_what_is_not_a_number_is_the_largest_loss(self):
    logits = tf.constant([[1, 0], [_NAN, 0], [0.9, 0], [0, np.inf]])
    found = fedrn.clean_posterior(logits, tf.zeros(4, tf.int32))
    np.testing.assert_allclose(found, [1, 0, 1, 0], atol=1e-3)


class HeadTest(parameterized.TestCase):

  _X = np.array([[1, 0], [0, 2], [1, 1], [-1, 2], [3, 1]], np.float32)
  _Y = np.array([0, 1, 1, 0, 0], np.int32)

  def _tuned(self, clean, training, bias=True, seed=(0, 0)):
    head = [tf.constant([[0.5, -1], [1, 0]]), *([tf.constant([0.1, -0.2])] if bias else [])]
    return fedrn.tuned_logits(
        tf.constant(self._X), tf.constant(self._Y), tf.constant(clean), head, training,
        tf.constant(seed, tf.int32),
    ).numpy()

  def _in_numpy(self, rows, training, bias=True):
    w, b = np.array([[0.5, -1], [1, 0]]), np.array([0.1, -0.2]) if bias else np.zeros(2)
    p = _softmax(self._X[rows] @ w + b) - np.eye(2)[self._Y[rows]]
    of_b = p.mean(axis=0) + training.weight_decay * b
    w = w - training.learning_rate * (self._X[rows].T @ p / len(p) + training.weight_decay * w)
    return self._X @ w + (b - training.learning_rate * of_b if bias else 0)

  @parameterized.parameters(True, False)
  def test_is_trained_one_epoch_on_the_clean_examples(self, bias):
    clean = [True, False, True, True, False]
    found = self._tuned(clean, _FULL, bias)
    np.testing.assert_allclose(
        found, self._in_numpy(np.flatnonzero(clean), _FULL, bias), atol=1e-5
    )

  def test_nobody_clean_is_everybody(self):
    np.testing.assert_allclose(
        self._tuned([False] * 5, _FULL), self._in_numpy(np.arange(5), _FULL), atol=1e-5
    )

  def test_visits_each_once_in_batches_with_momentum(self):
    # Two steps, of one example and of one: in one of two orders.
    training = types.LocalTraining(3, 1, 0.5, momentum=0.5)
    clean = np.array([False, True, False, False, True])

    def steps(order):
      w, m = np.array([[0.5, -1], [1, 0]]), 0
      for i in order:
        p = _softmax(self._X[[i]] @ w) - np.eye(2)[self._Y[[i]]]
        m = 0.5 * m + self._X[[i]].T @ p
        w = w - 0.5 * m
      return self._X @ w

    found = [self._tuned(clean, training, bias=False, seed=(0, s)) for s in range(6)]
    either = [steps([1, 4]), steps([4, 1])]
    chosen = [min((0, 1), key=lambda j, f=f: np.abs(f - either[j]).max()) for f in found]
    for f, j in zip(found, chosen, strict=True):
      np.testing.assert_allclose(f, either[j], atol=1e-5)
    self.assertEqual(set(chosen), {0, 1})

  def test_is_found(self):
    self.assertEqual(fedrn.head_of(toy.linear_model('batch')), (2, None))
    self.assertEqual(fedrn.head_of(toy.image_model()), (0, 1))
    self.assertEqual(fedrn.head_of(_two_layers()), (2, 3))

  @parameterized.parameters('tanh', 'normalised', 'other features')
  def test_of_another_form_is_refused_in_one_line(self, form):
    x = tf.keras.Input((2,))
    features = tf.keras.layers.Dense(3)(x)
    logits = tf.keras.layers.Dense(2, activation='tanh' if form == 'tanh' else None)(features)
    if form == 'normalised':
      logits = tf.keras.layers.LayerNormalization()(logits)
    model = keras_model.from_keras(
        tf.keras.Model(x, [logits, x if form == 'other features' else features])
    )
    with self.assertRaisesRegex(types.UsageError, '^fedrn trains the last layer .* --model whose'):
      fedrn.head_of(model)


class SharedImageTest(absltest.TestCase):

  def test_is_gaussian_and_bytes_where_the_model_takes_them(self):
    image = fedrn.shared_image(toy.image_model((40, 50, 3)), 0)
    self.assertEqual((image.shape, image.dtype), ((1, 40, 50, 3), np.uint8))
    self.assertBetween(image.mean(), 126, 129)
    self.assertBetween(image.std(), 60, 64)  # Less than 64, for it is cut.
    self.assertEqual(fedrn.shared_image(toy.linear_model(), 0).dtype, np.float32)

  def test_is_a_function_of_the_seed(self):
    first, again, other = (fedrn.shared_image(toy.linear_model(), s) for s in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    self.assertGreater(np.abs(first - other).max(), 0)


def _softmax(z):
  e = np.exp(z - z.max(axis=-1, keepdims=True))
  return e / e.sum(axis=-1, keepdims=True)


def _two_layers():
  x = tf.keras.Input((2,))
  features = tf.keras.layers.Dense(3, activation='relu', name='hidden')(x)
  return keras_model.from_keras(tf.keras.Model(x, [tf.keras.layers.Dense(2)(features), features]))


def _task(federation, base='', **changes):
  return method_runs.task(
      federation, base, **{
          'training': _FULL, 'rounds': 4, 'stages': {'warm_up': 2, 'neighbours': 2},
          'clients_per_round': len(federation.clients), **changes,
      }
  )


def _in_numpy(federation, p, rounds, warm_up, image):
  """The global model, the table, and who was left out in the last round, on full batches."""
  clients = federation.clients
  weights, table = np.zeros((2, 2)), []
  for t in range(rounds):
    visited = [np.ones(len(c.y), bool) for c in clients]
    if t >= warm_up:
      expertise, outputs, models = (np.array(v) for v in zip(*table, strict=True))
      for k, c in enumerate(clients):
        score = _scores(k, expertise, outputs, p.expertise_weight)
        others = sorted(set(range(len(clients))) - {k}, key=lambda j, s=score: -s[j])
        chosen = [k, *others[: p.neighbours]]
        first = _posterior(c.x @ models[k], c.y)
        clean = first > 0.5
        # Each neighbour's whole model is its head.
        posteriors = [first] + [
            _posterior(c.x @ _steps(models[j], c.x[clean], c.y[clean], 1), c.y) for j in chosen[1:]
        ]
        posterior = np.average(posteriors, axis=0, weights=score[chosen])
        visited[k] = posterior > 0.5
    models = [
        _steps(weights, c.x[v], c.y[v], 2) for c, v in zip(clients, visited, strict=True)
    ]
    table = [
        ((np.argmax(c.x @ w, axis=1) == c.y).mean(), (image @ w)[0], w)
        for c, w in zip(clients, models, strict=True)
    ]
    weights = np.average(models, axis=0, weights=federation.sizes)
  return weights, table, visited


def _posterior(logits, labels):
  each = -np.log(_softmax(logits)[np.arange(len(labels)), labels]).astype(np.float32)
  settings = gaussian_mixture.Settings(reg_covar=5e-4, tolerance=1e-2, max_iterations=100)
  return gaussian_mixture.clean_posterior(tf.constant(each), settings).numpy()


def _steps(w, x, y, epochs):
  m = 0
  for _ in range(epochs):
    gradient = x.T @ (_softmax(x @ w) - np.eye(2)[y]) / len(y) + _FULL.weight_decay * w
    m = _FULL.momentum * m + gradient
    w = w - _FULL.learning_rate * m
  return w


_FEDERATION = toy.two_corners(_SIZES)


@functools.cache
def _built(name='fedrn', **params):
  """An algorithm for four clients: tests share what takes seconds to build."""
  return method_runs.build(name, _task(_FEDERATION), **params)


def _states(federation=_FEDERATION, rounds=4, name='fedrn', **params):
  """The state before the first round and after each."""
  return runs.states(_built(name, **params), _task(federation), federation, rounds)


def _round_after(name, round_num, cohort):
  """One round of a cohort of this size after `round_num` of which nobody remembers anything."""
  task = _task(_FEDERATION, clients_per_round=cohort)
  algorithm = _built(name)
  clients = runs.clients_of(algorithm, task, _FEDERATION)
  clients.begin_round(round_num + 1, 'a test')
  state = algorithm.round(algorithm.init()._replace(round_num=round_num), clients.view)
  return state, clients


class RunTest(federated_test_case.FederatedTestCase):

  @parameterized.parameters(
      {}, {'neighbours': 3, 'expertise_weight': 0.1}, {'neighbours': 0},
  )
  def test_a_run_is_that_of_numpy(self, **params):
    last = _states(**params)[-1]
    weights, table, visited = _in_numpy(_FEDERATION, _Params(**params), 4, 2, _IMAGE)
    np.testing.assert_allclose(last.state.weights.trainable[0], weights, atol=1e-5)
    expertise, outputs, models = zip(*table, strict=True)
    np.testing.assert_allclose(last.records['expertise'], expertise, atol=1e-6)
    np.testing.assert_allclose(last.records['output'], outputs, atol=1e-5)
    np.testing.assert_allclose(last.records['model'], np.reshape(models, (4, 4)), atol=1e-5)
    np.testing.assert_array_equal(last.own['last_model'], last.records['model'])
    for kept, v in zip(last.own['clean_posterior'], visited, strict=True):
      np.testing.assert_array_equal(kept > 0.5, v)
    # In two rounds of all clients.
    self.assertEqual(last.records['chosen'].sum(), 2 * 4 * params.get('neighbours', 2))
    # Or this would say little of the selection.
    left_out = [np.sum(~v) for v in visited]
    self.assertGreater(sum(left_out), 0)
    self.assertLess(sum(left_out), sum(_SIZES) / 2)

  def test_neighbours_change_what_is_clean(self):
    # Or the same numbers would come without them.
    alone, together = (
        np.concatenate(_in_numpy(_FEDERATION, _Params(neighbours=h), 4, 2, _IMAGE)[2])
        for h in (0, 2)
    )
    self.assertGreater((alone != together).sum(), 0)

  def test_warm_up_is_fed_avg(self):
    for found, expected in zip(_states(rounds=2), _states(rounds=2, name='fedavg'), strict=True):
      np.testing.assert_array_equal(
          found.state.weights.trainable[0], expected.state.weights.trainable[0]
      )

  @parameterized.parameters('', 'median')
  def test_where_all_are_clean_it_is_the_optimizer_alone(self, base):
    changes = {
        'training': types.LocalTraining(2, 3, 0.2), 'rounds': 3, 'clients_per_round': 3,
        'stages': {'warm_up': 1, 'neighbours': 2},
    }
    found, _ = method_runs.trained(
        'fedrn', _FEDERATION, _task(_FEDERATION, base, **changes), threshold=-1.0
    )
    expected, _ = method_runs.trained(
        base or 'fedavg', _FEDERATION, _task(_FEDERATION, **changes)
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)

  def test_equal_losses_are_fed_avg(self):
    # All examples of a client are the same.
    clients = tuple(
        types.ClientExamples(
            np.tile([[x, 1]], (n, 1)).astype(np.float32), np.full(n, n % 2, np.int32), np.arange(n)
        )
        for x, n in ((1, 3), (2, 4), (-1, 1), (3, 2))
    )
    federation = types.Federation(clients, 2, 3)
    found, expected = (_states(federation, name=name)[-1] for name in ('fedrn', 'fedavg'))
    np.testing.assert_allclose(
        found.state.weights.trainable[0], expected.state.weights.trainable[0], atol=1e-6
    )

  def test_is_independent_of_the_order_of_clients(self):
    order = [2, 0, 3, 1]
    other = _FEDERATION._replace(clients=tuple(_FEDERATION.clients[i] for i in order))
    first, second = _states()[-1], _states(other)[-1]
    np.testing.assert_allclose(
        first.state.weights.trainable[0], second.state.weights.trainable[0], atol=1e-6
    )
    for name, value in first.records.items():
      np.testing.assert_allclose(value[order], second.records[name], atol=1e-5)

  def test_clients_that_were_never_trained_take_all_examples(self):
    # Without a warm-up the first round is FedAvg's, whatever it is called.
    state, clients = _round_after('fedrn', 2, cohort=2)
    expected, _ = _round_after('fedavg', 2, cohort=2)
    np.testing.assert_array_equal(
        state.weights.trainable[0], expected.weights.trainable[0]
    )
    seen = np.isfinite(state.records['expertise'])
    self.assertEqual(seen.sum(), 2)
    self.assertEqual((state.records['model'] != 0).any(axis=1).tolist(), seen.tolist())
    # Nobody has judged anything, and there was nobody to choose.
    self.assertTrue(np.isnan(np.concatenate(clients.own['clean_posterior'])).all())
    self.assertEqual(state.records['chosen'].sum(), 0)

  def test_models_that_are_not_finite_are_not_kept(self):
    # Of clients with an example that is no number, without any, with one, without a class.
    clients = tuple(
        types.ClientExamples(
            np.array(x, np.float32).reshape(-1, 2), np.array(y, np.int32), np.arange(len(y))
        )
        for x, y in (([[np.inf, 1]], [0]), ([], []), ([[1, 2]], [1]), ([[1, 0], [2, 1]], [0, 0]))
    )
    last = _states(types.Federation(clients, 2, 3))[-1]
    np.testing.assert_array_equal(
        np.isfinite(last.records['expertise']), [False, False, True, True]
    )
    for value in (last.records['model'], last.records['output'], last.own['last_model']):
      self.assertTrue(np.isfinite(value).all())
      np.testing.assert_array_equal(np.array(value)[:2], 0)
    self.assertTrue(np.isfinite(last.state.weights.trainable[0]).all())

  def test_last_model_stays_while_later_ones_are_not_finite(self):
    algorithm = _built()
    clients = runs.clients_of(algorithm, _task(_FEDERATION), _FEDERATION)
    clients.begin_round(1, 'warm_up')
    first = algorithm.round(algorithm.init(), clients.view)._replace(round_num=2)
    kept = list(clients.own['last_model'])
    broken = tf.nest.map_structure(lambda w: np.full_like(w, np.nan), first.models)
    clients.begin_round(3, 'neighbours')
    second = algorithm.round(first._replace(models=broken), clients.view)
    for name in ('expertise', 'output', 'model'):
      np.testing.assert_array_equal(second.records[name], first.records[name])
    np.testing.assert_array_equal(clients.own['last_model'], kept)

  def test_batch_norm_by_fed_bn(self):
    federation = toy.two_corners([5, 1, 4])
    task = _task(federation, 'fedbn', model=toy.linear_model('batch'))
    state, _ = method_runs.run('fedrn', federation, task)
    # Kernel, scale, shift, mean and variance.
    self.assertEqual(state.records['model'].shape, (3, 4 + 4 * 2))
    for value in (*tf.nest.flatten(state.models), *state.records.values()):
      self.assertTrue(np.isfinite(value).all())

  def test_images_are_augmented_where_training_augments_them(self):
    draw = np.random.default_rng(0)
    clients = tuple(
        types.ClientExamples(
            draw.integers(0, 256, (n, 6, 5, 1)).astype(np.uint8),
            draw.integers(0, 2, n).astype(np.int32), np.arange(n),
        )
        for n in (9, 12, 7)
    )
    federation = types.Federation(clients, 2, 3)
    task = _task(
        federation, model=toy.image_model(), training=_FULL._replace(augmentation='crop_flip')
    )
    found = [
        method_runs.run('fedrn', federation, task, augmented=augmented)[0].weights.trainable[0]
        for augmented in (True, False)
    ]
    self.assertTrue(np.isfinite(found).all())
    self.assertGreater(np.abs(found[0] - found[1]).max(), 1e-6)

  def test_a_fifth_of_the_rounds_warms_up_unless_said(self):
    stages = method_runs.build('fedrn', _task(_FEDERATION, stages={}, rounds=500)).stages
    self.assertEqual(stages, {'warm_up': 100, 'neighbours': 400})


class UplinkTest(federated_test_case.FederatedTestCase):

  def test_shows_models_to_the_server_and_to_others(self):
    shown = {
        (f.name, f.type_spec, f.disclosure) for f in _built().fields
        if f.disclosure.shows_single_clients
    }
    self.assertEqual(shown, {
        ('expertise, output, model of single clients',
         '<client=int32,expertise=float32,output=float32[2],model=float32[4]>',
         uplink.Disclosure.PER_CLIENT),
        ('neighbour_models of other clients', 'float32[2,4]', uplink.Disclosure.OTHER_CLIENTS),
        ('neighbour_weights of other clients', 'float32[3]', uplink.Disclosure.OTHER_CLIENTS),
    })

  def test_without_neighbours_nothing_reaches_others(self):
    self.assertNotIn(
        uplink.Disclosure.OTHER_CLIENTS, {f.disclosure for f in _built(neighbours=0).fields}
    )

  def test_bytes(self):
    _, clients = _round_after('fedrn', 2, cohort=3)
    # Update, its weight, three sums; then id, accuracy, two outputs, the model.
    self.assertEqual(clients.traffic.bytes_up, 3 * (16 + 4 + 12 + 4 + 4 + 8 + 16))
    # The model and the round's number; two models and three weights.
    self.assertEqual(clients.traffic.bytes_down, 3 * (16 + 4 + 2 * 16 + 12))


class RefusalsTest(federated_test_case.FederatedTestCase):

  def _build(self, sizes=(4, 4, 4), params=None, **changes):
    return method_runs.build(
        'fedrn', _task(toy.two_corners(sizes), **changes), **(params or {})
    )

  def test_more_neighbours_than_others(self):
    with self.assertRaisesRegex(
        types.UsageError, '^--param=neighbours=3 must be below the number of clients, 3: '
    ):
      self._build(params={'neighbours': 3})

  def test_no_round(self):
    with self.assertRaisesRegex(types.UsageError, '^--stages leaves no round to run$'):
      self._build(stages={'warm_up': 0, 'neighbours': 0})

  def test_noise_on_updates(self):
    noisy = aggregation.dp_mean(
        protection.NoisySum(1.0, 1.0, cohort=3, population=3), noise_key=bytes(32), secure=False
    )
    with self.assertRaisesRegex(types.UsageError, '^--client_dp_noise protects updates alone'):
      self._build(aggregation=noisy)

  @parameterized.parameters(
      ((), '^fedrn shows the server each client\'s model, .* --allow_per_client_disclosure'),
      (('--allow_per_client_disclosure', '--aggregation=secure_sum'),
       '^--aggregation=secure_sum cannot be given with --method=fedrn'),
  )
  def test_what_was_not_allowed(self, more, message):
    with self.assertRaisesRegex(types.UsageError, message):
      flags.config_from(flags.parse(['train', '--method=fedrn', *more]))

  @parameterized.parameters(
      ('neighbours=-1', 'neighbours must not be negative, got -1'),
      ('expertise_weight=1.1', r'expertise_weight must be in \[0, 1\], got 1.1'),
      ('threshold=1', 'threshold must be below 1, got 1.0'),
      ('augmented=1', "augmented must be true or false, got '1'"),
  )
  def test_out_of_range(self, param, message):
    with self.assertRaisesRegex(types.UsageError, f'^--param: {message}$'):
      params_lib.parse('fedrn', _Params, [param])

  def test_defaults_are_those_of_the_public_codes_scripts(self):
    p = catalog.ALGORITHMS['fedrn'].params()
    self.assertEqual((p.neighbours, p.expertise_weight, p.threshold), (2, 0.6, 0.5))


if __name__ == '__main__':
  absltest.main()
