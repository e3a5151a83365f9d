"""FedELC: its loss and labels by hand, whole runs in NumPy, what clients keep, guards."""

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
from tff_noise.algorithms import fedelc
from tff_noise.algorithms import parameters
from tff_noise.clients import seeds
from tff_noise.program import training

_Params = parameters.FedELCParams


def _softmax(z):
  e = np.exp(z - z.max(axis=-1, keepdims=True))
  return e / e.sum(axis=-1, keepdims=True)


class FormulasTest(parameterized.TestCase):

  # p = (.665241, .244728, .090031), of entropy .832397.
  _Z = np.array([[2.0, 1.0, 0.0]], np.float32)

  def test_loss_by_hand(self):
    # y^d is uniform: Lc = log 3 - H, Lo = log 3, Le = H.
    found = fedelc.objective(
        tf.constant(self._Z), tf.zeros((1, 3)), tf.constant([1]), _Params()
    )
    h = 0.832397
    expected = (np.log(3) - h) / 3 + 0.5 * np.log(3) + 0.2 * h / 3
    self.assertAlmostEqual(float(found), expected, delta=1e-5)

  def test_of_its_own_prediction_the_divergence_is_zero(self):
    p = _Params(compatibility_weight=0.0, entropy_weight=0.0)
    found = fedelc.objective(tf.constant(self._Z), tf.constant(self._Z), tf.constant([0]), p)
    self.assertAlmostEqual(float(found), 0, delta=1e-6)

  @parameterized.parameters(*range(4))
  def test_labels_move_against_the_gradient_of_the_loss(self, seed):
    draw = np.random.default_rng(seed)
    logits, y = (tf.constant(draw.normal(size=(5, 4)), tf.float32) for _ in range(2))
    labels = tf.constant(draw.integers(0, 4, 5), tf.int32)
    p = _Params(label_learning_rate=7.0, compatibility_weight=0.3)
    with tf.GradientTape() as tape:
      tape.watch(y)
      loss = fedelc.objective(logits, y, labels, p)
    expected = y - 7.0 * tape.gradient(loss, y)
    np.testing.assert_allclose(fedelc.moved(y, logits, labels, 5, p), expected, atol=1e-5)
    # A smaller batch moves its labels no further.
    np.testing.assert_allclose(
        fedelc.moved(y[:1], logits[:1], labels[:1], 5, p), expected[:1], atol=1e-5
    )

  def test_move_by_hand(self):
    # y^d is uniform: (1/3 - p) / 3 + (1/3 - (1, 0, 0)) / 2, times 1000 / 2.
    p = np.array([0.665241, 0.244728, 0.090031])
    gradient = (1 / 3 - p) / 3 + (1 / 3 - np.array([1, 0, 0])) / 2
    found = fedelc.moved(tf.zeros((1, 3)), tf.constant(self._Z), tf.constant([0]), 2, _Params())
    np.testing.assert_allclose(found, [-500 * gradient], atol=1e-3)

  def test_of_a_label_that_is_nearly_certain_by_hand(self):
    # y~ = (10, 0, 0): KL(p || y^d), and its gradient y^d - p.
    y, z, labels = tf.constant([[10.0, 0, 0]]), tf.constant(self._Z), tf.constant([0])
    alone = _Params(compatibility_weight=0.0, entropy_weight=0.0, label_learning_rate=3.0)
    self.assertAlmostEqual(
        float(fedelc.objective(z, y, labels, alone)), 2.515286 / 3, delta=1e-5
    )
    np.testing.assert_allclose(
        y - fedelc.moved(y, z, labels, 1, alone), [[0.334668, -0.244683, -0.089985]], atol=1e-5
    )

  def test_certain_labels_are_finite(self):
    y = tf.constant([[1e4, -1e4]])
    z = tf.constant([[-1e3, 1e3]])
    self.assertTrue(np.isfinite(float(fedelc.objective(z, y, tf.constant([1]), _Params()))))
    self.assertTrue(
        np.isfinite(fedelc.moved(y, z, tf.constant([1]), 1, _Params()).numpy()).all()
    )


_STAGES = {'warm_up': 2, 'noise_robust': 3}
_task = functools.partial(method_runs.task, rounds=5, stages=_STAGES, clients_per_round=4)


@functools.cache
def _flipped(noisy=(1, 3)):
  """Clients around two corners, of whom the noisy ones have wrong labels alone."""
  draw = np.random.default_rng(1)
  clients = []
  for i, n in enumerate((8, 6, 7, 9)):
    y = (np.arange(n) % 2).astype(np.int32)
    x = (3 * np.eye(2)[y] + draw.normal(0, 0.3, (n, 2))).astype(np.float32)
    clients.append(types.ClientExamples(x, (1 - y if i in noisy else y), np.arange(n)))
  return types.Federation(tuple(clients), 2, method_runs.SEED)


@functools.cache
def _built():
  return method_runs.build('fedelc', _task(_flipped()))


class _NumPy:
  """FedELC on the linear model, with labels that move at the end of an epoch, as in the code."""

  def __init__(self, federation, p, task):
    self.clients, self.p, self.training = federation.clients, p, task.training
    self.w, self.noisy, self.warm_up = np.zeros((2, 2)), np.array([0, 1, 0, 1], bool), 2
    self.label_logits = [p.scale * np.eye(2)[c.y] for c in self.clients]

  def round(self, t):
    late = t >= self.warm_up
    models = [
        self._correct(t, k) if late and self.noisy[k] else self._adjust(t, k) for k in range(4)
    ]
    n = np.array([len(c.y) for c in self.clients], float)
    if late:
      d = np.array([
          min(np.linalg.norm(w - models[j]) for j in (0, 2)) if bad else 0
          for w, bad in zip(models, self.noisy, strict=True)
      ])
      n *= np.exp(-d / d.max())
    self.w = np.average(models, axis=0, weights=n)

  def _batches(self, t, k, epoch):
    seed = seeds.fold(rng.tf_seed(method_runs.SEED, 'local training'), t + 1, k, epoch)
    order, b = seeds.batch_order(seed, len(self.clients[k].y)).numpy(), self.training.batch_size
    return [order[i : i + b] for i in range(0, len(order), b)]

  def _adjust(self, t, k):
    (x, y, _), w = self.clients[k], self.w.copy()
    pi = np.bincount(y, minlength=2) / len(y)
    for epoch in range(self.training.epochs):
      for i in self._batches(t, k, epoch):
        of_logits = _softmax(x[i] @ w + np.log(pi)) - np.eye(2)[y[i]]
        w -= self.training.learning_rate * x[i].T @ of_logits / len(i)
    return w

  def _correct(self, t, k):
    (x, y, _), w, p = self.clients[k], self.w.copy(), self.p
    label_logits = self.label_logits[k]
    for epoch in range(self.training.epochs):
      gradient = np.zeros_like(label_logits)
      for i in self._batches(t, k, epoch):
        q, yd = _softmax(x[i] @ w), _softmax(label_logits[i])
        gradient[i] = (yd - q) / 2 + p.compatibility_weight * (yd - np.eye(2)[y[i]])
        # Of sum q log q, of -sum q log yd.
        of_q = (1 - p.entropy_weight) * np.log(q) - np.log(yd)
        of_logits = q * (of_q - (q * of_q).sum(1, keepdims=True)) / 2
        w -= self.training.learning_rate * x[i].T @ of_logits / len(i)
      label_logits = label_logits - p.label_learning_rate / self.training.batch_size * gradient
    self.label_logits[k] = p.scale * (_softmax(label_logits) + _softmax(x @ w)) / 2
    return w


class RunTest(federated_test_case.FederatedTestCase):

  @parameterized.named_parameters(
      ('slow_labels', {'label_learning_rate': 3.0, 'scale': 2.0}),
      ('labels_that_stay', {'label_learning_rate': 0.0, 'entropy_weight': 0.7}),
      ('no_compatibility', {'compatibility_weight': 0.0, 'label_learning_rate': 1.0}),
  )
  def test_equals_numpy(self, params):
    federation = _flipped()
    task = _task(federation)
    expected = _NumPy(federation, _Params(**params), task)
    state, clients = method_runs.run('fedelc', federation, task, **params)
    for t in range(5):
      expected.round(t)
    np.testing.assert_array_equal(state.records['noisy'], expected.noisy)
    np.testing.assert_allclose(state.weights.trainable[0], expected.w, atol=1e-5)
    for k in (1, 3):
      soft = expected.label_logits[k] / _Params(**params).scale
      np.testing.assert_allclose(clients.own[fedelc.SOFT_LABELS][k], soft, atol=1e-5)
      np.testing.assert_array_equal(clients.own[fedelc.LABELS][k], soft.argmax(axis=1))

  def test_clean_clients_keep_what_was_given_and_noisy_ones_correct_it(self):
    federation = _flipped(noisy=(3,))
    task = _task(federation, rounds=8, stages={'warm_up': 4, 'noise_robust': 4})
    _, clients = method_runs.run(
        'fedelc', federation, task, compatibility_weight=0.0, label_learning_rate=100.0
    )
    for k, examples in enumerate(federation.clients):
      labels = clients.own[fedelc.LABELS][k]
      self.assertEqual(labels.dtype, np.int32)
      if k == 3:  # All given labels are wrong.
        self.assertGreater(np.mean(labels == 1 - examples.y), 0.8)
      else:
        np.testing.assert_array_equal(labels, examples.y)
        self.assertFalse(clients.own[fedelc.SOFT_LABELS][k].any())

  def test_warm_up_is_fednoros(self):
    federation = _flipped()
    task = _task(federation, stages={'warm_up': 4, 'noise_robust': 0})
    found, clients = method_runs.trained('fedelc', federation, task)
    other, _ = method_runs.trained('fednoro', federation, task)
    np.testing.assert_array_equal(found, other)
    self.assertFalse(np.concatenate(clients.own[fedelc.SOFT_LABELS]).any())

  def test_clients_of_one_example_one_class_or_none(self):
    draw = np.random.default_rng(0)
    clients = tuple(
        types.ClientExamples(
            draw.normal(size=(n, 2)).astype(np.float32), np.array(y, np.int32), np.arange(n)
        )
        for n, y in ((1, [0]), (0, []), (4, [1] * 4), (5, [0, 1, 0, 1, 1]), (2, [1, 0]))
    )
    federation = types.Federation(clients, 2, method_runs.SEED)
    task = _task(federation, model=toy.linear_model('batch'), clients_per_round=5)
    state, simulated = method_runs.run('fedelc', federation, task)
    self.assertTrue(state.records['noisy'].any())
    for value in tf.nest.flatten((state.weights, simulated.own)):
      self.assertTrue(np.isfinite(value).all())
    self.assertEqual(simulated.own[fedelc.SOFT_LABELS][1].shape, (0, 2))

  def test_labels_of_an_update_that_is_not_finite_stay(self):
    federation, task, algorithm = _flipped(), _task(_flipped()), _built()
    healthy = runs.clients_of(algorithm, task, federation)
    state = algorithm.init()
    for _ in range(3):
      state = training.run_round(algorithm, state, healthy)
    x = federation.clients[1].x.copy()  # A noisy one.
    x[0, 0] = np.inf
    broken = federation._replace(clients=(
        federation.clients[0], federation.clients[1]._replace(x=x), *federation.clients[2:]
    ))
    clients = runs.clients_of(algorithm, task, broken)
    clients.resume(healthy.own, healthy.participations, healthy.aggregators)
    state = training.run_round(algorithm, state, clients)
    self.assertEqual(clients.traffic.rejected, 1)
    self.assertTrue(np.isfinite(state.weights.trainable[0]).all())
    before, after = (c.own[fedelc.SOFT_LABELS] for c in (healthy, clients))
    np.testing.assert_array_equal(after[1], before[1])
    self.assertGreater(np.abs(after[3] - before[3]).max(), 0)

  def test_nothing_of_the_labels_is_sent(self):
    fednoro = method_runs.build('fednoro', _task(_flipped()))
    self.assertEqual(_built().fields, fednoro.fields)
    self.assertEqual(_built().report.labels, 'labels')


class UsageTest(parameterized.TestCase):

  @parameterized.parameters(
      ('scale=0', 'scale must be positive, got 0.0'),
      ('label_learning_rate=-1', 'label_learning_rate must not be negative, got -1.0'),
      ('compatibility_weight=-1', 'compatibility_weight must not be negative, got -1.0'),
      ('entropy_weight=-1', 'entropy_weight must not be negative, got -1.0'),
  )
  def test_out_of_range_is_refused_in_one_line(self, param, message):
    with self.assertRaisesRegex(types.UsageError, f'^--param: {message}$'):
      params_lib.parse('fedelc', _Params, [param])

  def test_defaults_are_the_public_codes(self):
    p = _Params()
    self.assertEqual((p.scale, p.label_learning_rate), (10.0, 1000.0))
    self.assertEqual((p.compatibility_weight, p.entropy_weight), (0.5, 0.2))

  def test_stages_are_a_sixth_and_the_rest(self):
    algorithm = method_runs.build('fedelc', _task(_flipped(), rounds=120, stages={}))
    self.assertEqual(dict(algorithm.stages), {'warm_up': 20, 'noise_robust': 100})
    self.assertEqual(catalog.ALGORITHMS['fedelc'].stages, tuple(algorithm.stages))


if __name__ == '__main__':
  absltest.main()
