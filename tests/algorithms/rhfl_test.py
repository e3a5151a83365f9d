"""RHFL: its numbers by hand, whole runs in NumPy, what it sends, its guards and its limits."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tests.program import runs
from tff_noise import params as params_lib
from tff_noise import types
from tff_noise.algorithms import catalog
from tff_noise.algorithms import parameters
from tff_noise.algorithms import rhfl
from tff_noise.federated import aggregation
from tff_noise.federated import evaluation
from tff_noise.federated import task as task_lib
from tff_noise.models import keras_model
from tff_noise.privacy import protection
from tff_noise.selection import availability
from tff_noise.uplink import uplink

_Params = parameters.RHFLParams
_PUBLIC = np.array([[1, 0], [0.5, 1], [-1, 2], [2, 2], [0, -1]], np.float32)
_LOG_ZERO = np.log(1e-4)
_LOGITS = np.array([[2.0, 1.0, 0.0]], np.float32)


def _softmax(z):
  e = np.exp(z - z.max(axis=-1, keepdims=True))
  return e / e.sum(axis=-1, keepdims=True)


def _weights(last, now, **params):
  """v of losses, as the server's sum of u would normalise it."""
  drops = [rhfl.loss_drop(np.float32(a), np.float32(b)) for a, b in zip(last, now, strict=True)]
  total = tf.add_n(drops)
  u = np.stack([rhfl.confidence(q, total, len(drops), _Params(**params)) for q in drops])
  return np.stack(drops), u / u.sum()


class FormulasTest(parameterized.TestCase):

  def test_weights_by_hand(self):
    drops, weights = _weights([2, 2, 2, 2], [1.6, 1.8, 1.9, 2.1])
    np.testing.assert_allclose(drops, [0.25, 0.111111, 0.052632, -0.047619], atol=1e-6)
    np.testing.assert_allclose(weights, [0.307034, 0.253987, 0.234491, 0.204488], atol=1e-5)
    # What the others weigh in client 0's targets.
    self.assertAlmostEqual(1 - weights[0], 0.692966, delta=1e-5)

  @parameterized.parameters(
      # Losses rose in all: who lost most weighs most.
      ([1.9, 2.1, 2.2, 1.95], [0.127561, 0.293089, 0.419766, 0.159583]),
      # The sum is almost 0: one weighs everything.
      ([1.9, 2.1, 2.0, 2.0], [0.989570, 0.000045, 0.005193, 0.005193]),
  )
  def test_literal_weights_where_drops_cancel_by_hand(self, now, expected):
    np.testing.assert_allclose(_weights([2] * 4, now)[1], expected, atol=1e-4)

  def test_guarded_weights_are_equal_where_drops_do_not_sum_to_more_than_nothing(self):
    weights = _weights([2] * 4, [1.9, 2.1, 2.2, 1.95], confidence='guarded')[1]
    np.testing.assert_allclose(weights, np.full(4, 0.25), atol=1e-7)
    guarded, literal = (
        _weights([2] * 4, [1.6, 1.8, 1.9, 2.1], confidence=c)[1] for c in ('guarded', 'literal')
    )
    np.testing.assert_array_equal(guarded, literal)

  @parameterized.parameters('literal', 'guarded')
  def test_weights_are_equal_in_the_first_round_and_without_beta(self, confidence):
    for last, beta in ((-1, 0.5), (2, 0.0)):
      weights = _weights([last] * 3, [1, 2, 3], beta=beta, confidence=confidence)[1]
      np.testing.assert_allclose(weights, np.full(3, 1 / 3), atol=1e-7)

  @parameterized.parameters(
      ([2, 2, 2], [1, 4, 2]), ([2, 2, 2], [0, 1, 1]), ([1e-30] * 3, [1e30, 1, 1]),
      ([2, np.nan, 2], [np.nan, 2, np.inf]), ([0, 0, 0], [0, 0, 0]),
  )
  def test_weights_are_finite_and_within_their_bound(self, last, now):
    for confidence in ('literal', 'guarded'):
      drops = [rhfl.loss_drop(np.float32(a), np.float32(b)) for a, b in zip(last, now, strict=True)]
      for q in drops:
        self.assertLessEqual(abs(q), 100)
        u = rhfl.confidence(q, tf.add_n(drops), 3, _Params(confidence=confidence)).numpy()
        self.assertBetween(u, 0, float(np.float32(np.exp(10.5))))

  def test_divergences_by_hand(self):
    p1, p2 = _softmax(np.array([[1, 2, 0.5]])), np.full((1, 3), 1 / 3)
    for targets, expected in ((p1, 0.410667), (p2, 0.308994)):
      value = rhfl.divergence(tf.constant(targets, tf.float32), _LOGITS)
      self.assertAlmostEqual(value.numpy(), expected, delta=1e-5)

  def test_divergences_to_several_are_one_to_their_mean_and_a_constant(self):
    p1, p2 = _softmax(np.array([[1, 2, 0.5]])), np.full((1, 3), 1 / 3)
    # As the third client sees it, whose own weight is 0.5.
    own = _softmax(_LOGITS)
    mean, share = rhfl.of_others(
        *(tf.constant(v, tf.float32) for v in (0.3 * p1 + 0.2 * p2 + 0.5 * own, 1.0, own, 0.5))
    )
    self.assertAlmostEqual(share.numpy(), 0.5, places=6)
    np.testing.assert_allclose(mean, 0.6 * p1 + 0.4 * p2, atol=1e-6)
    value = rhfl.divergence(mean, _LOGITS).numpy()
    self.assertAlmostEqual(value, 0.161905 / 0.5, delta=1e-5)
    self.assertAlmostEqual(share.numpy() * value + 0.023093, 0.184999, delta=1e-5)

  def test_nothing_is_learned_from_equal_predictions(self):
    logits = tf.constant(_LOGITS)
    targets, share = rhfl.of_others(
        4.8 * tf.nn.softmax(logits), tf.constant(4.8), tf.nn.softmax(logits), tf.constant(1.6)
    )
    self.assertAlmostEqual(share.numpy(), 2 / 3, places=6)
    with tf.GradientTape() as tape:
      tape.watch(logits)
      value = rhfl.divergence(targets, logits)
    self.assertAlmostEqual(value.numpy(), 0, places=6)
    np.testing.assert_allclose(tape.gradient(value, logits), np.zeros((1, 3)), atol=2e-7)

  def test_targets_of_certain_predictions_are_finite(self):
    targets, logits = tf.constant([[1.0, 0.0]]), tf.constant([[-1e4, 1e4]])
    with tf.GradientTape() as tape:
      tape.watch(logits)
      value = rhfl.divergence(targets, logits)
    self.assertEqual(value.numpy(), 2e4)
    np.testing.assert_allclose(tape.gradient(value, logits), [[-1, 1]])

  def test_others_of_nobody_are_nothing(self):
    mean, share = rhfl.of_others(tf.zeros([2, 3]), 0.0, tf.zeros([2, 3]), 0.0)
    np.testing.assert_array_equal(mean, np.zeros((2, 3)))
    self.assertEqual(share.numpy(), 0)


def _task(federation, **changes):
  return task_lib.Task(**{
      'model': toy.linear_model(), 'training': types.LocalTraining(2, 100, 0.05), 'seed': 3,
      'rounds': 4, 'client_sizes': federation.sizes, 'public': _PUBLIC,
      'clients_per_round': len(federation.clients), **changes,
  })


def _build(task, **params):
  entry = catalog.ALGORITHMS['rhfl']
  return entry.build(task, entry.params(**{'pretrain_epochs': 3, **params}))


def _models(algorithm, task, federation):
  """The kernels of all clients after each round, and the clients at the end."""
  found = runs.states(algorithm, task, federation)
  return [
      [kept['rhfl_model']['trainable'][0] for kept in s.own_of_clients] for s in found[1:]
  ], found[-1]


class _InNumPy:
  """Linear models of clients, trained on full batches."""

  def __init__(self, federation, p: _Params, learning_rate=0.05, epochs=2, temperature=1.0):
    self.clients, self.p = federation.clients, p
    # Of linear models that is what divides their logits.
    self.x = [c.x.astype(float) / temperature for c in self.clients]
    self.public = _PUBLIC / temperature
    self.learning_rate, self.epochs = learning_rate, epochs
    self.w = [np.zeros((2, 2)) for _ in self.clients]
    self.last = [None] * len(self.clients)

  def _loss(self, k):
    x, y = self.x[k], self.clients[k].y
    of_label = _softmax(x @ self.w[k])[np.arange(len(y)), y]
    each = -self.p.forward * np.log(of_label) - self.p.reverse * _LOG_ZERO * (1 - of_label)
    return each.mean()

  def train(self, k, epochs):
    x, y = self.x[k], self.clients[k].y
    for _ in range(epochs):
      p = _softmax(x @ self.w[k])
      one = np.eye(2)[y]
      of_label = (p * one).sum(1, keepdims=True)
      gradient = self.p.forward * (p - one) + self.p.reverse * _LOG_ZERO * of_label * (one - p)
      self.w[k] -= self.learning_rate * x.T @ gradient / len(y)

  def collaborate(self):
    n = len(self.clients)
    now = [self._loss(k) for k in range(n)]
    q = np.array([0 if a is None else (a - b) / b for a, b in zip(self.last, now, strict=True)])
    u = np.exp(1 / (n - 1) + self.p.beta * (q / q.sum() if q.sum() else q))
    v = u / u.sum()
    outputs = [_softmax(self.public @ w) for w in self.w]  # p_j, all of the round's start.
    for k in range(n):
      m = s = 0
      for t in range(1, self.p.public_epochs + 1):
        # One batch: the gradient of sum_{j != k} v_j KL(p_j || p) as it is written.
        p = _softmax(self.public @ self.w[k])
        gradient = sum(
            v[j] * self.public.T @ (p - outputs[j]) / len(_PUBLIC) for j in range(n) if j != k
        )
        step = gradient / (np.abs(gradient) + 1e-8)
        if self.p.adam == 'kept':
          m, s = 0.9 * m + 0.1 * gradient, 0.999 * s + 0.001 * gradient**2
          step = np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(s) + 1e-8)
        self.w[k] = self.w[k] - self.p.public_learning_rate * step
    self.last = now

  def run(self, rounds):
    found = []
    for t in range(rounds):
      if t:
        self.collaborate()
      for k in range(len(self.clients)):
        self.train(k, self.epochs if t else self.p.pretrain_epochs)
      found.append([w.copy() for w in self.w])
    return found


class RunTest(federated_test_case.FederatedTestCase):

  @parameterized.parameters(
      {}, {'beta': 3.0}, {'forward': 1.0, 'reverse': 0.0}, {'public_learning_rate': 0.02},
      # From the second step on it shows that a client does not learn from itself.
      {'public_epochs': 4, 'public_learning_rate': 0.02},
      {'public_epochs': 4, 'public_learning_rate': 0.05, 'adam': 'kept'},
  )
  def test_a_run_is_that_of_numpy(self, **params):
    federation = toy.two_corners([5, 7, 4, 9])
    p = _Params(**{'pretrain_epochs': 3, **params})
    task = _task(federation)
    found, _ = _models(_build(task, **params), task, federation)
    for models, expected in zip(found, _InNumPy(federation, p).run(4), strict=True):
      np.testing.assert_allclose(models, expected, atol=1e-5)

  def test_a_temperature_is_of_predictions_too(self):
    federation = toy.two_corners([5, 7, 4, 9])
    p = {'pretrain_epochs': 3, 'public_epochs': 4, 'public_learning_rate': 0.05, 'adam': 'kept'}
    loss = types.CrossEntropy(temperature=3.0)
    task = _task(federation, training=types.LocalTraining(2, 100, 0.05, loss=loss))
    found, _ = _models(_build(task, **p), task, federation)
    expected = _InNumPy(federation, _Params(**p), temperature=3.0).run(4)
    np.testing.assert_allclose(found, expected, atol=1e-5)

  def test_models_differ_and_come_closer_on_public_images(self):
    federation = toy.two_corners([5, 7, 4])
    task = _task(federation, rounds=2, training=types.LocalTraining(1, 100, 0.0))
    algorithm = _build(task, public_epochs=20, public_batch_size=2, public_learning_rate=0.01)
    # Without steps on their own examples nothing moves them apart: from different models on.
    clients, state = runs.clients_of(algorithm, task, federation), algorithm.init()
    own = clients.own
    draw = np.random.default_rng(0)
    own['rhfl_model'] = [
        {**kept, 'trainable': [draw.normal(size=(2, 2)).astype(np.float32)]}
        for kept in own['rhfl_model']
    ]
    clients.resume(own, clients.participations, clients.aggregators)

    def apart():
      outputs = [_softmax(_PUBLIC @ m['trainable'][0]) for m in clients.own['rhfl_model']]
      return max(np.abs(a - b).max() for a in outputs for b in outputs)

    before = apart()
    clients.begin_round(2, 'collaborate')
    algorithm.round(state._replace(round_num=1), clients.view)
    self.assertLess(apart(), 0.5 * before)

  def test_kept_adam_moves_in_other_steps(self):
    federation = toy.two_corners([5, 7, 4])
    task = _task(federation)
    kept, anew = (
        _models(_build(task, adam=adam, public_batch_size=2), task, federation)[0][-1]
        for adam in ('kept', 'each_batch')
    )
    self.assertGreater(np.abs(np.subtract(kept, anew)).max(), 1e-5)
    self.assertTrue(np.isfinite(kept).all())

  def test_two_clients_do_not_learn_from_each_other(self):
    # Client 2 leaves before the third round: from there on each of the others trains alone.
    federation = toy.two_corners([5, 7, 4])
    there = availability.Availability(np.array([1, 1, 1]), np.array([9, 9, 3]))
    task = _task(federation, availability=there)
    found, last = _models(_build(task), task, federation)
    expected = _InNumPy(federation, _Params(pretrain_epochs=3))
    expected.run(2)
    for _ in range(2):
      for k in range(2):
        expected.train(k, 2)
    np.testing.assert_allclose(found[-1], expected.w, atol=1e-5)
    self.assertEqual(last.participations.tolist(), [4, 4, 2])

  def test_models_without_a_number_and_clients_without_examples_say_nothing(self):
    odd = types.ClientExamples(
        np.array([[np.inf, 1]], np.float32), np.array([0], np.int32), np.array([0])
    )
    empty = types.ClientExamples(
        np.zeros((0, 2), np.float32), np.zeros(0, np.int32), np.zeros(0, int)
    )
    federation = types.Federation((*toy.two_corners([5, 7]).clients, odd, empty), 2, 3)
    task = _task(federation)
    found, last = _models(_build(task), task, federation)
    self.assertTrue(np.isfinite(found).all())
    self.assertTrue(np.isfinite(list(last.state.received.values())[1]).all())
    for kept in last.own_of_clients:
      self.assertTrue(np.isfinite(kept['rhfl_drop']))

  def test_batch_norm(self):
    federation = toy.two_corners([5, 1, 4])
    task = _task(federation, model=toy.linear_model('batch'))
    last = runs.states(_build(task), task, federation)[-1]
    for value in tf.nest.flatten(last.own):
      self.assertTrue(np.isfinite(value).all())

  def test_accuracy_is_the_mean_of_the_clients_models(self):
    federation = toy.two_corners([5, 7, 4])
    task = _task(federation)
    algorithm = _build(task)
    found, last = _models(algorithm, task, federation)
    test = types.Examples(
        *(np.concatenate([getattr(c, f) for c in federation.clients]) for f in ('x', 'y'))
    )
    evaluate = evaluation.build_evaluators(task.model, {'test': test})['test']
    expected = np.mean([(np.argmax(test.x @ w, axis=1) == test.y).mean() for w in found[-1]])
    accuracy = evaluate(algorithm.evaluated(last.state, last.own_of_clients))['accuracy']
    self.assertAlmostEqual(accuracy, expected, places=6)


def _narrow(name):
  """Models of 2 inputs and classes with another number of weights each."""
  x = tf.keras.Input((2,))
  features = tf.keras.layers.Dense({'narrow': 3, 'wide': 5}[name], name='hidden')(x)
  return keras_model.from_keras(
      tf.keras.Model(x, [tf.keras.layers.Dense(2)(features), features])
  )


class ArchitecturesTest(federated_test_case.FederatedTestCase):

  def _run(self, sizes, architectures, **changes):
    federation = toy.two_corners(sizes)
    task = _task(federation, build_model=_narrow, **changes)
    algorithm = _build(task, architectures=architectures)
    return algorithm, runs.states(algorithm, task, federation)

  def test_clients_train_models_of_their_own_architecture(self):
    algorithm, found = self._run([5, 7, 4, 6, 3], 'narrow+wide')
    models = algorithm.evaluated(found[-1].state, found[-1].own_of_clients)
    widths = [m.model.num_features for m in models]
    self.assertEqual(widths, [3, 3, 3, 5, 5])  # Clients 0, 2, 4, then 1 and 3.
    first = {m.model.num_features: m.weights for m in algorithm.evaluated(
        found[0].state, found[0].own_of_clients
    )}
    for m in models:
      for a, b in zip(m.weights.trainable, first[m.model.num_features].trainable, strict=True):
        self.assertEqual(a.shape, b.shape)
      self.assertGreater(
          np.abs(np.subtract(m.weights.trainable[0], first[m.model.num_features].trainable[0]))
          .max(), 1e-3,
      )

  def test_all_architectures_say_what_the_others_learn(self):
    # The sums that clients get are over both.
    _, found = self._run([5, 7, 4, 6], 'narrow+wide')
    received = found[2].state.received
    np.testing.assert_allclose(
        received['outputs'].sum(axis=1), np.full(len(_PUBLIC), received['output_weights']),
        rtol=1e-5,
    )
    self.assertAlmostEqual(received['output_weights'], 4 * np.exp(1 / 3), places=4)

  def test_one_architecture_named_twice_is_as_one(self):
    _, twice = self._run([5, 7, 4, 6], 'narrow+narrow')
    _, once = self._run([5, 7, 4, 6], 'narrow')
    for k in range(4):
      a = twice[-1].own_of_clients[k][f'rhfl_model_of_narrow_{k % 2}']
      b = once[-1].own_of_clients[k]['rhfl_model_of_narrow_0']
      tf.nest.map_structure(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), a, b)

  def test_one_of_its_kind_sits_a_round_out(self):
    there = availability.Availability(np.array([1] * 5), np.array([9, 9, 9, 2, 9]))
    _, found = self._run([5, 7, 4, 6, 3], 'narrow+wide', availability=there)
    # From the second round on client 1 is the only one with a wide model.
    self.assertEqual(found[-1].participations.tolist(), [4, 1, 4, 1, 4])

  @parameterized.parameters(('narrow+wide', 2), ('narrow', 3))
  def test_sums_are_over_those_of_an_architecture(self, architectures, smallest):
    there = availability.Availability(np.array([1] * 5), np.array([9, 9, 3, 2, 9]))
    task = _task(toy.two_corners([5, 7, 4, 6, 3]), build_model=_narrow, availability=there)
    found = _build(task, architectures=architectures).smallest_cohorts(task)
    self.assertEqual(set(found.values()), {smallest})

  def test_architecture_of_one_client_is_refused(self):
    with self.assertRaisesRegex(types.UsageError, '^--param=architectures has 2 for 3 clients: '):
      self._run([5, 7, 4], 'narrow+wide')


class RefusalsTest(federated_test_case.FederatedTestCase):

  @parameterized.parameters(
      ({'public': None}, '^rhfl: clients compare .* --public_dataset, with --public_dir '),
      ({'clients_per_round': 2}, '^rhfl: of fewer than 3 clients .* --clients_per_round than 2$'),
      ({'public': np.zeros((100, 2**20), np.uint8)}, '^rhfl: the public images have 100 MiB, '),
      ({'stages': {'pretrain': 0, 'collaborate': 0}}, '^--stages leaves no round to run$'),
  )
  def test_in_one_line(self, changes, message):
    with self.assertRaisesRegex(types.UsageError, message):
      _build(_task(toy.two_corners([4, 4, 4]), **changes))

  def test_rounds_that_seldom_have_two_of_an_architecture(self):
    task = _task(toy.two_corners([4] * 5), build_model=_narrow, clients_per_round=3)
    with self.assertRaisesRegex(types.UsageError, '=3 of 2 architectures .* too few: use 4 or'):
      _build(task, architectures='narrow+wide')

  def test_noise_on_updates_in_one_line(self):
    noisy = aggregation.dp_mean(
        protection.NoisySum(1.0, 1.0, cohort=3, population=3), noise_key=bytes(32), secure=False
    )
    with self.assertRaisesRegex(types.UsageError, '^--client_dp_noise protects updates alone'):
      _build(_task(toy.two_corners([4, 4, 4]), aggregation=noisy))

  @parameterized.parameters(
      ('beta=-1', 'beta must not be negative, got -1.0'),
      ('confidence=paper', "confidence must be one of literal, guarded, got 'paper'"),
      ('adam=no', "adam must be one of each_batch, kept, got 'no'"),
      ('pretrain_epochs=0', 'pretrain_epochs must be positive, got 0'),
  )
  def test_out_of_range_in_one_line(self, param, message):
    with self.assertRaisesRegex(types.UsageError, f'^--param: {message}$'):
      params_lib.parse('rhfl', _Params, [param])

  def test_without_a_loss_in_one_line(self):
    with self.assertRaisesRegex(types.UsageError, '^--param: forward and reverse are both 0'):
      params_lib.parse('rhfl', _Params, ['forward=0', 'reverse=0'])

  def test_defaults_are_the_public_codes(self):
    p = _Params()
    self.assertEqual((p.forward, p.reverse, p.beta, p.pretrain_epochs), (0.1, 1.0, 0.5, 40))
    self.assertEqual((p.public_batch_size, p.public_learning_rate), (256, 1e-3))
    self.assertEqual((p.confidence, p.adam), ('literal', 'each_batch'))


class UplinkTest(federated_test_case.FederatedTestCase):

  def test_sends_sums_and_neither_a_model_nor_a_value_of_a_single_client(self):
    fields = _build(_task(toy.two_corners([4, 4, 4]))).fields
    self.assertEqual(
        {(f.name, f.type_spec) for f in fields},
        {
            ('loss', 'float32'), ('examples', 'float32'), ('rejected', 'int32'),
            ('loss_drops', 'float32'), ('outputs', 'float32[5,2]'), ('output_weights', 'float32'),
        },
    )
    self.assertEqual({f.disclosure for f in fields}, {uplink.Disclosure.SUM})
    self.assertEqual(catalog.ALGORITHMS['rhfl'].per_client, '')

  def test_secure_sums_give_the_same(self):
    federation = toy.two_corners([6, 4, 5])
    task = _task(federation)
    secure = task._replace(
        aggregation=aggregation.secure_weighted_mean(update_bound=1.0, max_examples=6)
    )
    algorithm = _build(secure)
    for c in algorithm.computations:
      tff.test.assert_not_contains_unsecure_aggregation(c.next)
    found, expected = (
        _models(_build(t), t, federation)[0][-1] for t in (secure, task)
    )
    # Adam's first step has the sign of a gradient: near 0 a rounding turns it.
    np.testing.assert_allclose(found, expected, atol=1e-4)

  def test_bytes_are_those_of_what_is_asked(self):
    federation = toy.two_corners([6, 4, 5])
    task = _task(federation, rounds=2)
    algorithm = _build(task)
    clients, state = runs.clients_of(algorithm, task, federation), algorithm.init()
    clients.begin_round(2, 'collaborate')
    algorithm.round(state._replace(round_num=1), clients.view)
    s, k = len(_PUBLIC), 2
    training = 3 * 4  # Loss, examples, rejected; on public images too.
    up = 4 + 4 * (s * k + 1) + 2 * training
    # The round's number each time, N and the drops' sum, and these with the outputs' sums.
    down = 4 + (4 + 8) + (4 + 8 + 4 * (s * k + 1)) + 4
    self.assertEqual(clients.traffic.bytes_up, 3 * up)
    self.assertEqual(clients.traffic.bytes_down, 3 * down)


if __name__ == '__main__':
  absltest.main()
