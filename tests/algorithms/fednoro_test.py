"""FedNoRo: its numbers by hand, whole runs in NumPy, guards, what it sends, and what is FedAvg."""

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
from tff_noise import rng
from tff_noise import types
from tff_noise.algorithms import catalog
from tff_noise.algorithms import fednoro
from tff_noise.algorithms import fednoro_stages
from tff_noise.algorithms import parameters
from tff_noise.clients import seeds
from tff_noise.federated import optimizer
from tff_noise.program import training
from tff_noise.selection import availability
from tff_noise.selection import class_losses
from tff_noise.uplink import uplink

_Params = parameters.FedNoRoParams
_PLAIN = types.CrossEntropy()
_Z = np.array([[2.0, 1.0, 0.0]], np.float32)
_TEACHER = np.array([[1.0, 2.0, 0.5]], np.float32)


def _log_prior(*counts, form=_PLAIN):
  labels = np.repeat(np.arange(len(counts)), counts).astype(np.int32)
  return fednoro_stages.log_prior(tf.constant(labels), len(counts), form)


def _softmax(z):
  e = np.exp(z - z.max(axis=-1, keepdims=True))
  return e / e.sum(axis=-1, keepdims=True)


class LogitAdjustmentTest(parameterized.TestCase):

  @parameterized.parameters(
      ([[0.0, 0, 0]], (0.510826, 1.203973, 2.302585)), (_Z, (0.187720, 1.880867, 3.979479))
  )
  def test_loss_by_hand(self, logits, expected):
    log_pi = _log_prior(6, 3, 1)
    for y, value in enumerate(expected):
      found = fednoro_stages.logit_adjusted(tf.constant(logits), tf.constant([y]), log_pi, _PLAIN)
      self.assertAlmostEqual(float(found), value, delta=1e-5)

  def test_equal_shares_change_nothing(self):
    for y in range(3):
      found = fednoro_stages.logit_adjusted(
          tf.constant(_Z), tf.constant([y]), _log_prior(4, 4, 4), _PLAIN
      )
      self.assertAlmostEqual(float(found), -np.log(_softmax(_Z))[0, y], delta=1e-6)

  def test_class_without_examples_has_no_probability_and_no_gradient(self):
    # Even where the model is sure of it.
    logits = tf.constant([[0.0, 1, 20]])
    with tf.GradientTape() as tape:
      tape.watch(logits)
      loss = fednoro_stages.logit_adjusted(
          logits, tf.constant([0]), _log_prior(1, 1, 0), _PLAIN
      )
    self.assertAlmostEqual(float(loss), np.log(1 + np.e), delta=1e-5)
    self.assertAlmostEqual(float(tape.gradient(loss, logits)[0, 2]), 0, delta=1e-6)
    self.assertEqual(
        fednoro_stages.has_class(_log_prior(1, 1, 0)).numpy().tolist(), [True, True, False]
    )

  def test_smoothed_loss_of_an_absent_class_is_finite(self):
    form = types.CrossEntropy(label_smoothing=0.1)
    loss = fednoro_stages.logit_adjusted(
        tf.constant(_Z), tf.constant([0]), _log_prior(3, 2, 0, form=form), form
    )
    self.assertTrue(np.isfinite(float(loss)))

  def test_temperature_divides_the_logits_alone(self):
    form = types.CrossEntropy(temperature=4.0)
    found = fednoro_stages.logit_adjusted(
        tf.constant(4 * _Z), tf.constant([1]), _log_prior(6, 3, 1), form
    )
    self.assertAlmostEqual(float(found), 1.880867, delta=1e-5)

  def test_shares_behind_reports(self):
    # Of labels (1/2, 1/2, 0): kept with .6, each other .2.
    form = types.CrossEntropy(keep_probability=0.6)
    found = _log_prior(4, 4, 2, form=form)
    np.testing.assert_allclose(found[:2], np.log([0.5, 0.5]), atol=1e-5)
    self.assertFalse(fednoro_stages.has_class(found)[2])

  def test_losses_by_class(self):
    logits = np.array([[2.0, 1, 0], [2, 1, 0], [0, 0, 0]], np.float32)
    found = fednoro_stages.class_losses(
        tf.constant(logits), tf.constant([0, 1, 1]), 3, _PLAIN
    )
    np.testing.assert_allclose(
        found, [0.407606, (1.407606 + np.log(3)) / 2, np.nan], atol=1e-5
    )


  def test_loss_that_is_no_number_is_the_largest_not_none(self):
    # Or the model's worst class would pass for one that the client has not.
    logits = np.array([[np.nan, 1, 0], [2, 1, 0]], np.float32)
    found = fednoro_stages.class_losses(tf.constant(logits), tf.constant([0, 1]), 3, _PLAIN)
    np.testing.assert_allclose(found, [100, 1.407606, np.nan], atol=1e-5)


class DistillationTest(parameterized.TestCase):

  def _kl(self, counts, kind='code', teacher=_TEACHER):
    log_pi = _log_prior(*counts)
    return fednoro.distillation(
        tf.constant(_Z) + log_pi, tf.constant(teacher), 0.8, fednoro_stages.has_class(log_pi), kind
    )

  def test_teacher_by_hand(self):
    np.testing.assert_allclose(
        tf.nn.softmax(_TEACHER / 0.8), [[0.198981, 0.694512, 0.106507]], atol=1e-5
    )

  @parameterized.parameters('code', 'present')
  def test_all_classes_there(self, kind):
    kl = float(self._kl((6, 3, 1), kind))
    self.assertAlmostEqual(kl, 0.954507, delta=1e-5)
    self.assertAlmostEqual(0.4 * kl + 0.6 * 1.880867, 1.510323, delta=1e-5)

  def test_absent_class_adds_a_constant_or_nothing(self):
    code, present = (float(self._kl((60, 40, 0), k)) for k in ('code', 'present'))
    self.assertAlmostEqual(code, 0.359118, delta=1e-5)
    self.assertAlmostEqual(present, 0.597645, delta=1e-5)
    self.assertAlmostEqual(code - present, -0.238527, delta=1e-5)
    log_q = tf.nn.log_softmax(tf.constant(_Z) + _log_prior(60, 40, 0))
    np.testing.assert_allclose(log_q[0, :2], [-0.219339, -1.624804], atol=1e-5)

  def test_readings_have_one_gradient(self):
    gradients = []
    for kind in ('code', 'present'):
      log_pi = _log_prior(60, 40, 0)
      logits = tf.constant(_Z)
      with tf.GradientTape() as tape:
        tape.watch(logits)
        kl = fednoro.distillation(
            logits + log_pi, tf.constant(_TEACHER), 0.8, fednoro_stages.has_class(log_pi), kind
        )
      gradients.append(tape.gradient(kl, logits).numpy())
    np.testing.assert_array_equal(*gradients)
    self.assertGreater(np.abs(gradients[0]).max(), 0.1)

  def test_certain_teacher_is_finite(self):
    teacher = np.array([[1000.0, 0, 0]], np.float32)
    self.assertTrue(np.isfinite(float(self._kl((6, 3, 1), teacher=teacher))))

  def test_rise_by_hand(self):
    expected = {10: 0.005390, 20: 0.050400, 30: 0.244177, 49: 0.8, 60: 0.8}
    for t, value in expected.items():
      found = fednoro.distillation_weight(tf.constant(t), 10, 49, 0.8)
      self.assertAlmostEqual(float(found), value, delta=1e-5)

  @parameterized.parameters((10, 90, 49), (4, 36, 20), (5, 45, 24), (50, 50, 72), (20, 20, 29))
  def test_rises_over_the_same_share_of_its_stage(self, warm_up, robust, end):
    stages = {'warm_up': warm_up, 'noise_robust': robust}
    self.assertEqual(fednoro.ramp_end(stages, parameters.FedNoRoParams()), end)
    self.assertEqual(fednoro.ramp_end(stages, parameters.FedNoRoParams(ramp_end=7)), 7)

  def test_rise_of_no_length(self):
    for t in (3, 4):
      for end in (1, 3):
        found = fednoro.distillation_weight(tf.constant(t), 3, end, 0.8)
        self.assertAlmostEqual(float(found), 0.8, delta=1e-6)


def _contributions(updates, weights, noisy):
  """Updates of a tensor of two numbers and one of one."""
  updates = tf.constant(updates, tf.float32)
  return optimizer.Contributions(
      tf.constant(weights, tf.float32), {'noisy': tf.constant(noisy)},
      lambda i: [updates[i, :2], updates[i, 2:]],
  )


class AggregationTest(parameterized.TestCase):

  def test_weights_by_hand(self):
    found = fednoro_stages.weights_by_distance(
        tf.constant([100.0, 200, 100, 400]), tf.constant([0.0, 0, 2, 1])
    )
    np.testing.assert_allclose(
        found / tf.reduce_sum(found), [0.172592, 0.345185, 0.063493, 0.418730], atol=1e-5
    )

  @parameterized.parameters(('tensors', 17), ('flat', 13))
  def test_distance_by_hand(self, kind, expected):
    contributions = _contributions([[3, 4, 5], [0, 0, -7]], [1, 1], [1, 0])
    found = fednoro_stages.distances(contributions, tf.constant([True, False]), kind)
    np.testing.assert_allclose(found, [expected, 0], atol=1e-5)

  def test_nearest_clean_client_of_those_that_are_used(self):
    # The last one is nearest, and of no weight.
    contributions = _contributions(
        [[1, 0, 0], [0, 0, 0], [5, 0, 0], [1.5, 0, 0]], [2, 3, 4, 0], [1, 0, 0, 0]
    )
    noisy = contributions.reports['noisy'] > 0
    np.testing.assert_allclose(
        fednoro_stages.distances(contributions, noisy, 'tensors'), [1, 0, 0, 0]
    )
    np.testing.assert_allclose(
        fednoro_stages.weigh('tensors')(contributions), [2 * np.exp(-1), 3, 4, 0], rtol=1e-6
    )

  def test_model_that_is_too_far_to_be_measured_has_a_weight(self):
    contributions = _contributions([[1e25, 0, 0], [1, 0, 0], [0, 0, 0]], [2, 3, 4], [1, 1, 0])
    np.testing.assert_allclose(
        fednoro_stages.weigh('tensors')(contributions), [2 * np.exp(-1), 3, 4], rtol=1e-6
    )

  @parameterized.parameters(
      ([0, 0, 0],), ([1, 1, 1],), ([1, 0, 0], [[1, 1, 1]] * 3), ([1, 0, 0], None, [5, 0, 0]),
      ([1, 0, 0], None, [0, 5, 2]), ([1, 1, 0], None, [0, 0, 0]),
  )
  def test_without_a_distance_weights_are_examples(self, noisy, updates=None, weights=(2, 3, 4)):
    updates = updates or [[1, 2, 3], [4, 5, 6], [9, 9, 8]]
    found = fednoro_stages.weigh('tensors')(_contributions(updates, weights, noisy))
    np.testing.assert_array_equal(found, weights)


_STAGES = {'warm_up': 2, 'noise_robust': 3}
_task = functools.partial(method_runs.task, rounds=5, stages=_STAGES, clients_per_round=4)


def _flipped(sizes=(8, 6, 7, 9), noisy=(1, 3)):
  """Clients around two corners; all labels of the noisy ones are wrong."""
  draw = np.random.default_rng(1)
  clients = []
  for i, n in enumerate(sizes):
    y = (np.arange(n) % 2).astype(np.int32)
    x = (3 * np.eye(2)[y] + draw.normal(0, 0.3, (n, 2))).astype(np.float32)
    clients.append(types.ClientExamples(x, (1 - y if i in noisy else y), np.arange(n)))
  return types.Federation(tuple(clients), 2, method_runs.SEED)


@functools.cache
def _ran():
  """The last state of a run of all defaults."""
  return method_runs.run('fednoro', _flipped(), _task(_flipped()))[0]


@functools.cache
def _built():
  return method_runs.build('fednoro', _task(_flipped()))


class _NumPy:
  """FedNoRo on the linear model."""

  def __init__(self, federation, p, task):
    self.clients, self.p, self.training = federation.clients, p, task.training
    self.w, self.noisy = np.zeros((2, 2)), np.zeros(len(federation.clients), bool)
    self.warm_up = task.stages['warm_up']
    self.end = p.ramp_end if p.ramp_end >= 0 else round(
        task.stages['warm_up'] + 39 / 90 * task.stages['noise_robust']
    )

  def round(self, t):
    if t == self.warm_up:
      losses = np.array([self._losses(x, y) for x, y, _ in self.clients])
      self.noisy = class_losses.noisy_clients(losses)
    models = [self._train(t, k) for k in range(len(self.clients))]
    n = np.array([len(c.y) for c in self.clients], float)
    if t >= self.warm_up and self.noisy.any() and not self.noisy.all():
      d = np.array([
          min(np.linalg.norm(w - models[j]) for j in np.flatnonzero(~self.noisy)) if bad else 0
          for w, bad in zip(models, self.noisy, strict=True)
      ])
      n *= np.exp(-d / d.max())
    self.w = np.average(models, axis=0, weights=n)

  def _losses(self, x, y):
    each = -np.log(_softmax(x @ self.w))[np.arange(len(y)), y]
    return [each[y == j].mean() if (y == j).any() else np.nan for j in range(2)]

  def _train(self, t, k):
    (x, y, _), w, s = self.clients[k], self.w.copy(), self.training
    pi = np.bincount(y, minlength=2) / len(y)
    lam = 0.0
    if self.noisy[k]:
      rises = self.end - self.warm_up
      done = np.clip((t - self.warm_up) / rises, 0, 1) if rises > 0 else 1
      lam = self.p.weight * np.exp(-5 * (1 - done) ** 2)
    for epoch in range(s.epochs):
      seed = seeds.fold(rng.tf_seed(method_runs.SEED, 'local training'), t + 1, k, epoch)
      order = seeds.batch_order(seed, len(y)).numpy()
      for first in range(0, len(y), s.batch_size):
        i = order[first : first + s.batch_size]
        q = pi * np.exp(x[i] @ w)
        q /= q.sum(1, keepdims=True)
        teacher = _softmax(x[i] @ self.w / self.p.temperature)
        # Of a class that is not there nothing is learned.
        of_kl = q * (teacher * (pi > 0)).sum(1, keepdims=True) - teacher * (pi > 0)
        of_logits = lam * of_kl + (1 - lam) * (q - np.eye(2)[y[i]])
        w -= s.learning_rate * x[i].T @ of_logits / len(i)
    return w


class RunTest(federated_test_case.FederatedTestCase):

  @parameterized.named_parameters(
      ('defaults', {}), ('at_once', {'ramp_end': 0, 'weight': 0.9, 'temperature': 0.5}),
  )
  def test_equals_numpy(self, params):
    federation = _flipped()
    task = _task(federation)
    expected = _NumPy(federation, _Params(**params), task)
    state, _ = method_runs.run('fednoro', federation, task, **params)
    for t in range(5):
      expected.round(t)
    np.testing.assert_array_equal(state.records['noisy'], [False, True, False, True])
    np.testing.assert_array_equal(expected.noisy, state.records['noisy'])
    np.testing.assert_allclose(state.weights.trainable[0], expected.w, atol=1e-5)

  def test_clients_that_lack_a_class_equal_numpy(self):
    # A client of one class, and one of a single example.
    federation = _flipped()
    one_class = federation.clients[3]
    first = one_class._replace(
        x=one_class.x[one_class.y == 0], y=one_class.y[one_class.y == 0], example_id=np.arange(4)
    )
    alone = types.ClientExamples(np.array([[2, 2]], np.float32), np.array([1], np.int32),
                                 np.arange(1))
    federation = federation._replace(clients=(*federation.clients[:3], first, alone))
    task = _task(federation, clients_per_round=5)
    expected = _NumPy(federation, _Params(), task)
    state, clients = method_runs.run('fednoro', federation, task)
    for t in range(5):
      expected.round(t)
    self.assertTrue(state.records['noisy'].any())
    np.testing.assert_array_equal(expected.noisy, state.records['noisy'])
    np.testing.assert_array_equal(
        np.isnan(state.records['class_losses']), [[0, 0]] * 3 + [[0, 1], [1, 0]]
    )
    np.testing.assert_allclose(state.weights.trainable[0], expected.w, atol=1e-5)
    self.assertEqual(clients.traffic.rejected, 0)

  def test_losses_that_are_reported_are_not_those_of_rescaled_gradients(self):
    federation, found = _flipped(), []
    for reading in ('divide', 'rescale'):
      loss = types.CrossEntropy(temperature=10.0, temperature_reading=reading)
      training = types.LocalTraining(1, 100, 1e-9, loss=loss)
      task = _task(federation, training=training)
      found.append(method_runs.run('fednoro', federation, task)[0].records['class_losses'])
    np.testing.assert_allclose(*found, rtol=1e-4)
    self.assertLess(np.nanmax(found[1]), 2)

  def test_losses_that_are_reported(self):
    federation = _flipped()
    task = _task(federation)
    expected, state = _NumPy(federation, _Params(), task), _ran()
    for t in range(2):
      expected.round(t)
    np.testing.assert_allclose(
        state.records['class_losses'],
        [expected._losses(x, y) for x, y, _ in federation.clients], atol=1e-5,
    )

  def test_of_fed_bn_the_losses_are_of_models_with_the_clients_own_layers(self):
    federation = _flipped()
    task = _task(federation, 'fedbn', model=toy.linear_model('batch'))
    ran = runs.states(method_runs.build('fednoro', task), task, federation, rounds=3)
    before, after = ran[2:]
    for i, (x, y, _) in enumerate(federation.clients):
      own = before.own['fedbn_norms'][i]
      (gamma, beta), (mean, variance) = own['trainable'], own['non_trainable']
      z = (gamma * (x - mean) / np.sqrt(variance + 1e-3) + beta) @ before.state.weights.trainable[2]
      each = -np.log(_softmax(z))[np.arange(len(y)), y]
      np.testing.assert_allclose(
          after.records['class_losses'][i], [each[y == j].mean() for j in range(2)], atol=1e-5
      )

  @parameterized.parameters('', 'scaffold')
  def test_of_equal_shares_the_warm_up_is_the_optimizer_alone(self, base):
    federation = _flipped(sizes=(6, 8, 4, 6))
    task = _task(federation, base, stages={'warm_up': 3, 'noise_robust': 0})  # --base
    found, _ = method_runs.trained('fednoro', federation, task)
    alone, _ = method_runs.trained(
        base or 'fedavg', federation, _task(federation)._replace(rounds=3)
    )
    np.testing.assert_allclose(found, alone, atol=1e-6)

  def test_without_noisy_clients_it_is_fed_avg_of_the_adjusted_loss(self):
    # Two clients are never split.
    federation = toy.two_corners([5, 7])
    task = _task(federation, clients_per_round=2)
    found, _ = method_runs.trained('fednoro', federation, task)
    warm_up, _ = method_runs.trained(
        'fednoro', federation, task._replace(stages={'warm_up': 5, 'noise_robust': 0})
    )
    np.testing.assert_allclose(found, warm_up, atol=1e-6)
    fed_avg, _ = method_runs.trained('fedavg', federation, task)
    self.assertGreater(np.abs(found - fed_avg).max(), 1e-2)

  def test_cohorts_without_a_clean_or_a_noisy_client(self):
    federation = _flipped()
    task = _task(federation, clients_per_round=1, stages={'warm_up': 1, 'noise_robust': 8})
    state, clients = method_runs.run('fednoro', federation, task)
    self.assertTrue(np.isfinite(state.weights.trainable[0]).all())
    self.assertGreater((clients.participations > 0).sum(), 2)

  def test_batch_norm_and_clients_without_examples(self):
    # One noisy client alone would weigh exp(-1) whatever its distance.
    federation = _flipped((8, 0, 1, 6, 7, 5), noisy=(0, 3))
    task = _task(federation, model=toy.linear_model('batch'), clients_per_round=6)
    weights = []
    for distance in ('tensors', 'flat'):
      state, _ = method_runs.run('fednoro', federation, task, distance=distance)
      weights.append(np.concatenate([np.ravel(w) for w in tf.nest.flatten(state.weights)]))
      self.assertTrue(np.isfinite(weights[-1]).all())
      self.assertTrue(np.isnan(state.records['class_losses'][1]).all())
      np.testing.assert_array_equal(np.flatnonzero(state.records['noisy']), [0, 3])
    self.assertGreater(np.abs(weights[0] - weights[1]).max(), 1e-5)

  def test_update_that_is_not_finite_weighs_nothing(self):
    federation = _flipped()
    task = _task(federation)
    algorithm = _built()
    healthy = runs.clients_of(algorithm, task, federation)
    state = algorithm.init()
    for _ in range(3):
      state = training.run_round(algorithm, state, healthy)
    x = federation.clients[0].x.copy()  # A clean one.
    x[0, 0] = np.inf
    broken = federation._replace(
        clients=(federation.clients[0]._replace(x=x), *federation.clients[1:])
    )
    clients = runs.clients_of(algorithm, task, broken)
    clients.resume(healthy.own, healthy.participations, healthy.aggregators)
    state = training.run_round(algorithm, state, clients)
    self.assertEqual(clients.traffic.rejected, 1)
    self.assertTrue(np.isfinite(state.weights.trainable[0]).all())

  def test_late_clients_count_as_clean(self):
    federation = _flipped()
    task = _task(
        federation, availability=availability.Availability(np.array([1, 1, 1, 4]), np.full(4, 99)),
    )
    state, _ = method_runs.run('fednoro', federation, task)
    self.assertTrue(np.isnan(state.records['class_losses'][3]).all())
    np.testing.assert_array_equal(state.records['noisy'], [False, True, False, False])


class UplinkTest(federated_test_case.FederatedTestCase):

  def test_sends_sums_first_then_losses_once_then_models(self):
    task, algorithm = _task(_flipped()), _built()
    warm_up, look, robust = algorithm.computations
    self.assertEqual(warm_up.fields, method_runs.build('fedavg', task).fields)
    [losses] = look.fields
    self.assertIs(losses.disclosure, uplink.Disclosure.PER_CLIENT)
    self.assertIn('class_losses=float32[2]', losses.type_spec)
    *sums, models = robust.fields
    self.assertEqual({f.disclosure for f in sums}, {uplink.Disclosure.SUM})
    self.assertIs(models.disclosure, uplink.Disclosure.PER_CLIENT)
    self.assertIn('noisy=int32', models.type_spec)
    self.assertEqual((look.messages_bytes, robust.messages_bytes), (0, 4))
    self.assertEqual(
        dict(algorithm.times),
        {'a round of warm_up': 2, 'a look for noisy clients': 1, 'a round of noise_robust': 3},
    )
    self.assertTrue(catalog.ALGORITHMS['fednoro'].compares_models)

  def test_what_it_says_of_a_run(self):
    state, report = _ran(), _built().report
    summary = {'clients': 4, **report.summary(state.records)}
    self.assertEqual(summary['fednoro'], {'judged_clients': 4, 'noisy_clients': 2})
    self.assertEqual(report.lines(summary), ['  noisy clients   2 of 4 taken for noisy'])
    self.assertEqual(report.columns(state), {'noisy_clients': 2})
    scores = report.client_columns(state.records)['class_loss_score']
    self.assertGreater(scores[[1, 3]].min(), scores[[0, 2]].max())

  def test_without_the_second_stage_nobody_is_looked_at(self):
    report = _built().report
    summary = {'clients': 4, **report.summary(_built().init().records)}
    self.assertIn('not looked for', report.lines(summary)[0])


class UsageTest(parameterized.TestCase):

  @parameterized.parameters(
      (100, {}, (10, 90)), (3, {}, (1, 2)), (1, {}, (1, 0)), (100, {'warm_up': 20}, (20, 80)),
      (100, {'warm_up': 0}, (0, 100)), (10, {'warm_up': 20, 'noise_robust': 5}, (20, 5)),
  )
  def test_lengths_of_stages(self, rounds, stages, expected):
    task = _task(_flipped(), rounds=rounds, stages=stages)
    self.assertEqual(tuple(fednoro_stages.stage_lengths(task, 0.1).values()), expected)

  @parameterized.parameters(
      ({'warm_up': 9}, '^--rounds=5 leaves nothing for the stage noise_robust, the others take 9'),
      ({'warm_up': 0, 'noise_robust': 0}, '^--stages leaves no round to run$'),
  )
  def test_no_rounds(self, stages, message):
    with self.assertRaisesRegex(types.UsageError, message):
      method_runs.build('fednoro', _task(_flipped(), stages=stages))

  def test_base_that_takes_no_mean(self):
    with self.assertRaisesRegex(types.UsageError, '^--base: fednoro weights models.*median.*$'):
      method_runs.build('fednoro', _task(_flipped(), 'median'))

  @parameterized.parameters(
      ('weight=1.5', 'weight must be from 0 to 1, got 1.5'),
      ('temperature=0', 'temperature must be positive, got 0.0'),
      ('ramp_end=-2', 'ramp_end must be a round, or -1 for 39 of 90 of its stage, got -2'),
      ('kl=paper', "kl must be one of code, present, got 'paper'"),
      ('distance=cosine', "distance must be one of tensors, flat, got 'cosine'"),
  )
  def test_out_of_range_is_refused_in_one_line(self, param, message):
    with self.assertRaisesRegex(types.UsageError, f'^--param: {message}$'):
      params_lib.parse('fednoro', _Params, [param])

  def test_defaults_are_the_public_codes(self):
    p = _Params()
    self.assertEqual((p.weight, p.temperature, p.kl, p.distance), (0.8, 0.8, 'code', 'tensors'))


if __name__ == '__main__':
  absltest.main()
