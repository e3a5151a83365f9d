"""DivideMix: its equations by hand, whole runs in NumPy, guards, and what equals FedAvg."""

from unittest import mock

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
from tff_noise.algorithms import class_prior
from tff_noise.algorithms import dividemix
from tff_noise.algorithms import parameters
from tff_noise.clients import gaussian_mixture
from tff_noise.clients import mixup
from tff_noise.clients import program
from tff_noise.clients import seeds
from tff_noise.federated import evaluation
from tff_noise.models import keras_model
from tff_noise.models import losses
from tff_noise.program import flags
from tff_noise.program import training

_Params = parameters.DivideMixParams
# With which, and all labels clean, two networks are trained as by FedAvg.
_NOTHING = {'alpha': 0.0, 'sharpening': 1.0, 'penalty_weight': 0.0, 'unlabelled_weight': 0.0}


def _logits(*p):
  return tf.math.log(tf.constant(p, tf.float32))


def _nothing(kind):
  return kind(**dict.fromkeys(kind._fields))


def _linear():
  """Two inputs, two classes, no bias, random initial weights."""
  x = tf.keras.Input((2,))
  logits = tf.keras.layers.Dense(2, use_bias=False, name='logits')(x)
  return keras_model.from_keras(tf.keras.Model(x, [logits, x]))


def _task(federation, base='', warm_up=1, divide=2, **changes):
  return method_runs.task(federation, base, **{
      'model': _linear(), 'rounds': warm_up + divide,
      'stages': {'warm_up': warm_up, 'divide': divide}, **changes,
  })


def _run(federation, task, **params):
  return method_runs.run('dividemix', federation, task, **params)


def _all_clean():
  """All labels are clean, whatever the losses."""
  return mock.patch.object(gaussian_mixture, 'clean_posterior', tf.ones_like)


def _none_clean():
  return mock.patch.object(gaussian_mixture, 'clean_posterior', tf.zeros_like)


class EquationsTest(parameterized.TestCase):

  def test_posterior_of_the_small_losses(self):
    np.testing.assert_allclose(
        gaussian_mixture.min_max(tf.constant([0.2, 0.3, 2.1, 1.9, 0.25])),
        [0, 0.052632, 1, 0.894737, 0.026316], atol=1e-5,
    )
    each = tf.constant([0.02, 0.05, 0.03, 0.04, 0.9, 0.95, 0.85, 0.5])
    np.testing.assert_allclose(
        gaussian_mixture.clean_posterior(each),
        [0.999989, 0.999977, 0.999988, 0.999985, 0, 0, 0, 0], atol=1e-5,
    )
    mixture = gaussian_mixture.fit(gaussian_mixture.min_max(each), gaussian_mixture.DIVIDEMIX)
    np.testing.assert_allclose(mixture.means, [0.016129, 0.838697], atol=1e-5)

  def test_co_guessing(self):
    outputs = ((0.6, 0.3, 0.1), (0.5, 0.4, 0.1), (0.7, 0.2, 0.1), (0.6, 0.2, 0.2))
    guessed = dividemix.co_guess([_logits(p) for p in outputs], 0.5)
    np.testing.assert_allclose(guessed, [[0.797784, 0.167590, 0.034626]], atol=1e-5)
    unsharpened = dividemix.co_guess([_logits(p) for p in outputs], 1.0)
    np.testing.assert_allclose(unsharpened, [[0.6, 0.275, 0.125]], atol=1e-5)

  def test_co_refinement(self):
    views = [_logits((0.6, 0.2, 0.2)), _logits((0.4, 0.4, 0.2))]  # In the mean (.5, .3, .2).
    labels, w = tf.constant([1]), tf.constant([0.7])
    np.testing.assert_allclose(
        dividemix.co_refine(labels, w, views, 1.0), [[0.15, 0.79, 0.06]], atol=1e-5
    )
    np.testing.assert_allclose(
        dividemix.co_refine(labels, w, views, 0.5), [[0.034605, 0.959859, 0.005537]], atol=1e-5
    )
    # A label that is certain stays as it is.
    np.testing.assert_allclose(
        dividemix.co_refine(labels, tf.ones(1), views, 0.5), [[0, 1, 0]], atol=1e-6
    )

  def test_sharpening_of_very_small_and_zero_probabilities(self):
    p = tf.constant([[1.0, 0, 0], [1e-30, 1e-30, 0], [0.5, 0.3, 0.2]])
    found = dividemix.sharpen(p, 0.001)
    np.testing.assert_allclose(found, [[1, 0, 0], [0.5, 0.5, 0], [1, 0, 0]], atol=1e-6)

  def test_losses(self):
    z = tf.constant([[2.0, 1, 0]])
    t = tf.constant([[0.8, 0.1, 0.1]])
    self.assertAlmostEqual(dividemix.labelled_loss(z, t).numpy(), 0.707606, delta=1e-5)
    # A mean over classes, too: the sum is .039206.
    self.assertAlmostEqual(dividemix.unlabelled_loss(z, t).numpy(), 0.013069, delta=1e-6)
    self.assertAlmostEqual(losses.entropy(z).numpy(), 0.832396, delta=1e-5)
    uniform = class_prior.of('uniform', None, 3)
    # Of the mean over two, which is (.7, .2, .1).
    both = _logits((0.9, 0.05, 0.05), (0.5, 0.35, 0.15))
    self.assertAlmostEqual(dividemix.prior_penalty(both, uniform).numpy(), 0.324287, delta=1e-5)

  def test_objective_adds_them(self):
    z = tf.constant([[2.0, 1, 0], [2.0, 1, 0]])
    t = tf.constant([[0.8, 0.1, 0.1], [0.8, 0.1, 0.1]])
    prior = tf.constant([0.5, 0.5, 0.0])
    reg = 0.5 * np.log(0.5 / 0.665241) + 0.5 * np.log(0.5 / 0.244728)
    found = dividemix.objective(z, t, 1, 25.0, prior, 2.0)
    self.assertAlmostEqual(found.numpy(), 0.707606 + 25 * 0.0130687 + 2 * reg, delta=1e-4)
    self.assertAlmostEqual(
        dividemix.objective(z, t, 2, 25.0, prior, 0.0).numpy(), 0.707606, delta=1e-5
    )

  def test_penalty_is_0_at_the_prior_and_finite_where_nothing_is_predicted(self):
    prior = tf.constant([0.2, 0.8, 0.0])
    at_prior = tf.concat([_logits((0.2, 0.8)), [[-1e9]]], axis=1)
    self.assertAlmostEqual(dividemix.prior_penalty(at_prior, prior).numpy(), 0, places=5)
    z = tf.constant([[0.0, 500.0, 0.0]])
    with tf.GradientTape() as tape:
      tape.watch(z)
      value = dividemix.prior_penalty(z, prior)
    self.assertAlmostEqual(value.numpy(), 100 + 0.2 * np.log(0.2) + 0.8 * np.log(0.8), delta=1e-3)
    np.testing.assert_allclose(tape.gradient(value, z), [[-0.2, 0.2, 0]], atol=1e-6)

  def test_prior_of_labels(self):
    found = class_prior.of('labels', tf.constant([3, 0, 3, 3]), 4)
    np.testing.assert_allclose(found, [0.25, 0, 0, 0.75])
    empty = class_prior.of('labels', tf.zeros([0], tf.int32), 2)
    np.testing.assert_allclose(empty, [0, 0])

  @parameterized.parameters((10, 0), (12.5, 3.90625), (18, 12.5), (26, 25), (40, 25), (3, 0))
  def test_ramp(self, t, weight):
    self.assertAlmostEqual(dividemix.unlabelled_weight(t, 10, _Params()).numpy(), weight, places=5)

  def test_no_ramp(self):
    self.assertEqual(dividemix.unlabelled_weight(10, 10, _Params(ramp_rounds=0)).numpy(), 25)

  def test_unlabelled_examples_are_all_used_before_any_is_again(self):
    unlabelled = tf.constant([False, True, True, False, True])
    orders = set()
    for i in range(20):
      found = dividemix.cycled(unlabelled, 7, tf.constant([0, i])).numpy()
      self.assertCountEqual(found[:3], [1, 2, 4])
      np.testing.assert_array_equal(found[3:], found[:4])
      orders.add(tuple(found))
    self.assertLen(orders, 6)
    none = dividemix.cycled(tf.zeros(3, tf.bool), 2, tf.constant([0, 0]))
    np.testing.assert_array_equal(none, [-1, -1])
    self.assertEqual(dividemix.cycled(unlabelled, 0, tf.constant([0, 0])).shape, (0,))


class ClientTest(parameterized.TestCase):
  """The parts of a client's program, eagerly."""

  def _program(self, **params):
    return dividemix.client(_Params(**params), types.LocalTraining(epochs=4), 2, 2)

  def _columns(self, *logits, **params):
    client = _nothing(program.Client)._replace(
        labels=tf.zeros(len(logits[0]), tf.int32),
        outputs=lambda *_: ([tf.constant(z, tf.float32) for z in logits], None),
    )
    return self._program(**params).columns(client)

  def test_the_losses_of_the_other_decide(self):
    # Of label 0. The first network finds the first two examples easy, the second the last two.
    easy, hard = [5, 0], [0, 5]
    found = self._columns([easy, easy, hard, hard], [hard, hard, easy, easy])
    clean = found.values['clean'].numpy()
    np.testing.assert_array_equal(clean[:, 0], [False, False, True, True])
    np.testing.assert_array_equal(clean[:, 1], [True, True, False, False])
    self.assertTrue(found.visit.numpy().all())
    np.testing.assert_allclose(found.values['clean_posterior'], clean, atol=1e-5)

  def test_visits_what_is_clean_for_a_network(self):
    easy, hard = [5, 0], [0, 5]
    found = self._columns([easy, easy, hard, hard], [easy, hard, hard, hard])
    np.testing.assert_array_equal(found.visit, [True, True, False, False])

  def test_equal_losses_are_all_clean(self):
    found = self._columns([[1, 0]] * 3, [[0, 0]] * 3)
    np.testing.assert_array_equal(found.values['clean_posterior'], np.ones((3, 2)))
    found = self._columns([[1, 0]], [[0, 3]], threshold=0.99)
    np.testing.assert_array_equal(found.values['clean'], [[True, True]])

  def _step(self, clean, unlabelled, weights=(1.0, 2.0), **params):
    """The loss of a step of four examples of eight, and what networks and `load` were asked.

    Args:
      clean: bool `[4, 2]`.
      unlabelled: int32 `[4, 2]`.
      weights: Of each network, whose logits are these times images `[n, 2]`.
      **params: Of the method.
    """
    x = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)
    calls, loads = [], []

    def load(positions, seed):
      loads.append((positions.numpy().tolist(), tuple(seed.numpy())))
      return tf.gather(x, positions)

    def network(i):
      def forward(images, trained):
        calls.append((i, trained, len(images)))
        return weights[i] * images, images
      return forward

    positions = tf.constant([6, 0, 3, 5])
    images = tf.gather(x, positions)
    step = _nothing(program.Step)._replace(
        client=_nothing(program.Client)._replace(round_num=tf.constant(11)),
        logits=[w * images for w in weights], labels=tf.constant([0, 1, 1, 0]),
        positions=positions, images=images, load=load, networks=(network(0), network(1)),
        columns={
            'clean': tf.constant(clean), 'clean_posterior': tf.fill([4, 2], 0.75),
            'unlabelled_0': tf.constant(unlabelled)[:, 0],
            'unlabelled_1': tf.constant(unlabelled)[:, 1],
        },
        seed=tf.constant([1, 2]), epoch=tf.constant(2), carry=tf.constant([0.5, 0.5]),
    )
    return self._program(**params).loss(step).numpy(), calls, loads

  def test_each_network_guesses_beside_the_other_and_draws_its_own(self):
    clean = np.array([[1, 1], [0, 1], [1, 0], [1, 1]], bool)
    unlabelled = np.array([[1, 2], [1, 4], [2, 7], [7, 2]], np.int32)
    value, calls, loads = self._step(clean, unlabelled)
    self.assertTrue(np.isfinite(value))
    # Second views and two of U in training mode, two of U of the other, and all mixed.
    self.assertEqual(
        calls,
        [(0, True, 9), (1, False, 6), (0, True, 12), (1, True, 9), (0, False, 6), (1, True, 12)],
    )
    self.assertEqual(
        [positions for positions, _ in loads],
        [[6, 3, 5], [1, 2, 7], [1, 2, 7], [6, 0, 5], [2, 4, 2], [2, 4, 2]],
    )
    self.assertLen({seed for _, seed in loads}, 6)

  def test_loss_without_mixing_by_hand(self):
    # lambda_u: 10 rounds and half of one were done, of which 2 warm-up: 8.5 / 16.
    clean = np.array([[1, 0]] * 2 + [[0, 0]] * 2, bool)
    unlabelled = np.array([[1, -1], [2, -1], [4, -1], [7, -1]], np.int32)
    value, calls, _ = self._step(clean, unlabelled, alpha=0.0, penalty_weight=0.0)
    self.assertEqual({i for i, trained, _ in calls if trained}, {0})
    x = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)
    p_x, p_u = _softmax(x[[6, 0]]), _softmax(x[[1, 2]])
    r = 0.75 * np.eye(2)[[0, 1]] + 0.25 * p_x
    q = (p_u + _softmax(2 * x[[1, 2]])) / 2
    r, q = (v**2 / (v**2).sum(1, keepdims=True) for v in (r, q))
    l_x = -(r * np.log(p_x)).sum(1).mean()
    self.assertAlmostEqual(value, l_x + 25 * 8.5 / 16 * ((p_u - q) ** 2).mean(), delta=1e-5)

  def test_without_clean_examples_a_network_has_no_loss(self):
    value, calls, loads = self._step(np.zeros((4, 2), bool), np.ones((4, 2), np.int32))
    self.assertEqual((value, calls, loads), (0, [], []))

  def test_without_unlabelled_examples_nobody_guesses(self):
    value, calls, _ = self._step(
        np.ones((4, 2), bool), np.full((4, 2), -1, np.int32), penalty_weight=0.0
    )
    self.assertEqual(calls, [(0, True, 4), (0, True, 8), (1, True, 4), (1, True, 8)])
    self.assertTrue(np.isfinite(value))

  def test_mixes_at_least_half_of_the_first(self):
    for i in range(10):
      seed = tf.constant([i, 0])
      share, order = dividemix.mixture(4.0, 6, seed)
      self.assertBetween(share.numpy(), 0.5, 1)
      self.assertCountEqual(order.numpy(), range(6))
      self.assertEqual(dividemix.mixture(0.0, 6, seed)[0].numpy(), 1)


def _softmax(z):
  p = np.exp(z - z.max(axis=1, keepdims=True))
  return p / p.sum(axis=1, keepdims=True)


class _NumPy:
  """The method for two linear networks without augmentation."""

  def __init__(self, federation, weights, params, task):
    self.clients, self.w, self.p, self.task = federation.clients, weights, params, task
    # Shares of clean examples, of each client in each round.
    self.splits = []
    # w of each client in its last round.
    self.posteriors = [None] * len(self.clients)

  def round(self, t):
    """One round; t counts from 0."""
    sizes = np.array([len(c.y) for c in self.clients], float)
    found = [self._client(t, k) for k in range(len(sizes))]
    self.w = [
        sum(n * one[m] for n, one in zip(sizes, found, strict=True)) / sizes.sum()
        for m in range(2)
    ]

  def _client(self, t, k):
    (x, y, _), w, local = self.clients[k], [v.copy() for v in self.w], self.task.training
    divides = t >= self.task.stages['warm_up']
    epochs = (divides and self.p.divide_epochs) or local.epochs
    posterior = np.ones((len(y), 2))
    if divides:
      posterior = np.stack([
          gaussian_mixture.clean_posterior(
              tf.constant(-np.log(_softmax(x @ v)[np.arange(len(y)), y]), tf.float32)
          ) for v in w[::-1]
      ], axis=1)
    clean = posterior > self.p.threshold
    self.splits.append(clean.mean())
    self.posteriors[k] = posterior
    for epoch in range(epochs):
      seed = seeds.fold(rng.tf_seed(method_runs.SEED, 'local training'), t + 1, k, epoch)
      order = seeds.batch_order(seed, len(y)).numpy()
      if clean.any():
        order = order[clean.any(1)[order]]
      u = [self._drawn(~clean[:, m], len(order), seed, m) for m in range(2)]
      for first in range(0, len(order), local.batch_size):
        part = slice(first, first + local.batch_size)
        i, step_seed = order[part], seeds.fold(seed, seeds.FIRST_STEP + first)
        if divides:
          time = t + epoch / epochs
          g = [
              self._gradient(x, y, w, m, i, u[m][part], posterior, clean, step_seed, time)
              for m in range(2)
          ]
        else:
          g = [self._cross_entropy(x[i], y[i], v) for v in w]
        w = [v - local.learning_rate * d for v, d in zip(w, g, strict=True)]
    return w

  def _cross_entropy(self, x, y, w):
    p = _softmax(x @ w)
    entropy = (p * np.log(p)).sum(1, keepdims=True)
    of_z = p - np.eye(2)[y] + self.p.warm_up_entropy * p * (np.log(p) - entropy)
    return x.T @ of_z / len(y)

  def _drawn(self, unlabelled, count, seed, m):
    positions = np.flatnonzero(unlabelled)
    if not len(positions):
      return np.full(count, -1)
    shuffled = tf.random.experimental.stateless_shuffle(
        positions, seeds.fold(seed, seeds.DRAW, m)
    ).numpy()
    return np.tile(shuffled, count)[:count]

  def _gradient(self, x, y, w, m, i, u, posterior, clean, step_seed, time):
    of_m = clean[i, m]
    i, u = i[of_m], u[of_m]
    u = u[u >= 0]
    if not len(i):
      return np.zeros((2, 2))
    weight = posterior[i, m][:, np.newaxis]
    r = weight * np.eye(2)[y[i]] + (1 - weight) * _softmax(x[i] @ w[m])
    q = (_softmax(x[u] @ w[0]) + _softmax(x[u] @ w[1])) / 2
    r, q = (
        v ** (1 / self.p.sharpening) / (v ** (1 / self.p.sharpening)).sum(1, keepdims=True)
        for v in (r, q)
    )
    images = np.concatenate([x[i], x[i], x[u], x[u]])
    targets = np.concatenate([r, r, q, q])
    own, share = seeds.fold(step_seed, seeds.OWN + m), 1.0
    if self.p.alpha:
      share = mixup.draw_share(seeds.fold(own, 3), self.p.alpha).numpy()
      share = max(share, 1 - share)
    other = tf.random.experimental.stateless_shuffle(
        tf.range(len(images)), seeds.fold(own, 4)
    ).numpy()
    images, targets = (share * v + (1 - share) * v[other] for v in (images, targets))
    s, n = _softmax(images @ w[m]), 2 * len(i)
    # Of L_x, then through the softmax of L_u and of the penalty.
    of_z = np.concatenate([(s[:n] - targets[:n]) / n, np.zeros((len(s) - n, 2))])
    of_s = -self.p.penalty_weight * self._prior(y) / s.mean(0) / len(s) * np.ones_like(s)
    ramp = 1.0
    if self.p.ramp_rounds:
      ramp = np.clip((time - self.task.stages['warm_up']) / self.p.ramp_rounds, 0, 1)
    if len(u):
      of_s[n:] += self.p.unlabelled_weight * ramp * 2 * (s[n:] - targets[n:]) / s[n:].size
    of_z += s * (of_s - (s * of_s).sum(1, keepdims=True))
    return images.T @ of_z

  def _prior(self, y):
    if self.p.prior == 'labels':
      return np.bincount(y, minlength=2) / len(y)
    return np.full(2, 0.5)


class TrainingTest(federated_test_case.FederatedTestCase):

  def _assert_equals_numpy(self, federation, task, **params):
    """Runs and compares; returns the shares of clean examples, of each client in each round."""
    algorithm = method_runs.build('dividemix', task, **params)
    state, clients = algorithm.init(), runs.clients_of(algorithm, task, federation)
    expected = _NumPy(federation, list(state.weights.trainable), _Params(**params), task)
    for t in range(task.rounds):
      state = training.run_round(algorithm, state, clients)
      expected.round(t)
    np.testing.assert_allclose(state.weights.trainable, expected.w, atol=2e-5)
    for kept, w in zip(clients.own['clean_posterior'], expected.posteriors, strict=True):
      np.testing.assert_allclose(kept, w.mean(axis=1), atol=1e-3)
    [evaluated] = algorithm.evaluated(state, [])
    self.assertEqual(evaluated.model.combination, params.get('evaluate', 'sum_logits'))
    return expected.splits

  @parameterized.named_parameters(
      ('published', {}),
      ('other_readings', {
          'ramp_rounds': 1, 'unlabelled_weight': 3.0, 'prior': 'labels', 'penalty_weight': 2.0,
          'divide_epochs': 3, 'warm_up_entropy': 1.0, 'evaluate': 'first',
      }),
      ('without_mixing', {'alpha': 0.0, 'ramp_rounds': 0, 'sharpening': 1.0, 'threshold': 0.999}),
  )
  def test_equals_numpy(self, params):
    # Batches of 4 and the rest, of one example too; clients of 14, 9 and 1.
    federation = toy.two_corners([14, 9, 1])
    task = _task(
        federation, divide=3, clients_per_round=3, training=types.LocalTraining(2, 4, 0.3)
    )
    splits = self._assert_equals_numpy(federation, task, **params)
    # Something was dropped, and the one example kept.
    self.assertBetween(np.mean(splits[-3:-1]), 0.1, 0.99)
    self.assertEqual(splits[-1], 1)

  def test_one_client_has_everything(self):
    federation = method_runs.one_client(*toy.two_corners([30]).clients[0][:2])
    task = _task(federation, training=types.LocalTraining(1, 8, 0.2))
    self.assertEqual((task.num_clients, task.clients_per_round), (1, 1))
    self._assert_equals_numpy(federation, task)

  def test_one_client_can_be_asked_for(self):
    config = flags.config_from(flags.parse([
        'train', '--method=dividemix', '--clients=1', '--clients_per_round=1', '--partition=iid',
    ]))
    config.check_clients(1)
    self.assertEqual((config.clients, config.clients_per_round), (1, 1))

  def test_a_stage_of_more_epochs_has_the_optimizers_bounds_of_these(self):
    # Of clients of equal size FedNova is FedAvg; were a_k cut it would go less far.
    federation = toy.two_corners([6, 6, 6])
    with _all_clean():
      found, expected = (
          _run(federation, _task(federation, base), **{**_NOTHING, 'divide_epochs': 6})[0]
          .weights.trainable
          for base in ('fednova', '')
      )
    np.testing.assert_allclose(found, expected, atol=1e-5)

  @parameterized.parameters('', 'scaffold')
  def test_where_all_is_clean_these_are_two_runs(self, base):
    # As Co-teaching that forgets nothing, which coteaching_test compares with runs of FedAvg.
    federation = toy.two_corners([5, 7, 4])
    two, _ = method_runs.run(
        'coteaching', federation, _task(federation, base, stages={}), forget_rate=0.0
    )
    with _all_clean():
      same, _ = _run(federation, _task(federation, base), **_NOTHING)
    np.testing.assert_allclose(same.weights.trainable, two.weights.trainable, atol=1e-6)

  def test_equal_networks_part_where_they_draw_for_themselves(self):
    federation = toy.two_corners([9, 7])
    # Both start at 0.
    task = _task(federation, model=toy.linear_model(), divide=3)
    algorithm = method_runs.build('dividemix', task)
    clients = runs.clients_of(algorithm, task, federation)
    state = training.run_round(algorithm, algorithm.init(), clients)
    np.testing.assert_array_equal(*state.weights.trainable)
    weights = [algorithm.report.columns(state)['unlabelled_weight']]
    for _ in range(3):
      state = training.run_round(algorithm, state, clients)
      weights.append(algorithm.report.columns(state)['unlabelled_weight'])
    self.assertGreater(np.abs(np.subtract(*state.weights.trainable)).max(), 1e-4)
    np.testing.assert_allclose(weights, [0, 0, 25 / 16, 50 / 16])
    x, y, _ = federation.clients[1]
    p = _softmax(sum(x @ w for w in state.weights.trainable))
    evaluator = evaluation.build_evaluators(task.model, {'test': types.Examples(x, y)})['test']
    found = evaluator(algorithm.evaluated(state, []))
    self.assertAlmostEqual(found['loss'], -np.log(p[np.arange(len(y)), y]).mean(), places=5)

  def test_warm_up_takes_a_fifth_where_nothing_is_said(self):
    task = _task(toy.two_corners([3, 3]), rounds=50)
    for given, expected in (
        ({}, (10, 40)), ({'warm_up': 20}, (20, 30)), ({'warm_up': 50}, (50, 0)),
        ({'divide': 3}, (10, 3)),
    ):
      found = dividemix.stage_lengths(task._replace(stages=given))
      self.assertEqual((found['warm_up'], found['divide']), expected)
    with self.assertRaisesRegex(types.UsageError, 'leaves nothing for the stage divide'):
      dividemix.stage_lengths(task._replace(stages={'warm_up': 60}))


class KeptTest(federated_test_case.FederatedTestCase):

  def test_who_did_not_divide_has_judged_nothing(self):
    federation = toy.two_corners([6, 5, 7])
    _, clients = _run(federation, _task(federation, warm_up=2, divide=0))
    self.assertNotIn('clean_posterior', {
        name for name, kept in clients.own.items() if not np.isnan(np.concatenate(kept)).all()
    })
    _, clients = _run(federation, _task(federation, warm_up=0, divide=1, clients_per_round=1))
    judged = [np.isfinite(kept).all() for kept in clients.own['clean_posterior']]
    self.assertEqual(judged, (clients.participations > 0).tolist())
    self.assertEqual(sum(judged), 1)


class GuardsTest(federated_test_case.FederatedTestCase):

  def _assert_trained(self, federation, rejected=0, **changes):
    task = _task(federation, warm_up=0, **changes)
    state, clients = _run(federation, task, prior='labels')
    for value in tf.nest.flatten(state.weights):
      self.assertTrue(np.isfinite(value).all())
    self.assertEqual(clients.traffic.rejected, rejected)

  def test_without_clean_labels_nothing_is_learned(self):
    federation = toy.two_corners([5, 4])
    task = _task(federation, warm_up=0, divide=1)
    first = method_runs.build('dividemix', task).init()
    with _none_clean():
      state, clients = _run(federation, task)
    np.testing.assert_array_equal(state.weights.trainable, first.weights.trainable)
    self.assertEqual(clients.traffic.rejected, 0)

  def test_batch_norm_a_missing_class_and_clients_of_one_example_and_none(self):
    federation = toy.two_corners([9, 7, 1, 0])
    one_class = federation.clients[0]._replace(y=np.zeros(9, np.int32))
    federation = federation._replace(clients=(one_class, *federation.clients[1:]))
    self._assert_trained(
        federation, model=toy.linear_model('batch'), clients_per_round=4,
        training=types.LocalTraining(2, 4, 0.1, momentum=0.9, weight_decay=0.01),
    )

  def test_images_convolutions_and_augmentation(self):
    pixels = tf.keras.Input((8, 8, 1), dtype='uint8')
    z = tf.keras.layers.Rescaling(1 / 255)(pixels)
    z = tf.keras.layers.Conv2D(3, 3, padding='same')(z)
    z = tf.keras.layers.BatchNormalization(momentum=0.9)(z)
    z = tf.keras.layers.MaxPooling2D()(tf.keras.layers.ReLU()(z))
    features = tf.keras.layers.GlobalAveragePooling2D()(z)
    network = tf.keras.Model(pixels, [tf.keras.layers.Dense(3)(features), features])
    draw = np.random.default_rng(0)
    # The second has nothing unlabelled.
    clients = tuple(
        types.ClientExamples(
            draw.integers(0, 256, (n, 8, 8, 1)).astype(np.uint8),
            draw.integers(0, 3, n).astype(np.int32), np.arange(n),
        ) for n in (11, 1)
    )
    self._assert_trained(
        types.Federation(clients, 3, method_runs.SEED), divide=1,
        model=keras_model.from_keras(network),
        training=types.LocalTraining(2, 4, 0.1, augmentation='crop_flip'),
    )

  def test_nobodys_update_counts_whose_losses_are_not_finite(self):
    federation = toy.two_corners([5, 6])
    x = federation.clients[0].x.copy()
    x[0, 0] = np.inf
    broken = federation.clients[0]._replace(x=x)
    self._assert_trained(
        federation._replace(clients=(broken, federation.clients[1])), rejected=1, divide=1
    )

  def test_reports_are_refused_in_one_line(self):
    task = _task(toy.two_corners([4, 4]))
    task = task._replace(label_privacy=task.label_privacy._replace(in_training=True))
    with self.assertRaisesRegex(
        types.UsageError, '^--training_labels=private: .*with --stages=warm_up:3,divide:0 it'
    ):
      method_runs.build('dividemix', task)

  def test_no_round_is_refused_in_one_line(self):
    task = _task(toy.two_corners([4, 4]), warm_up=0, divide=0)
    with self.assertRaisesRegex(types.UsageError, '^--stages leaves no round to run$'):
      method_runs.build('dividemix', task)

  def test_a_loss_that_nothing_trains_on_is_refused(self):
    smooth = types.CrossEntropy(label_smoothing=0.1)
    task = _task(toy.two_corners([4, 4]), warm_up=0, divide=2)
    with self.assertRaisesRegex(types.UsageError, '^--label_smoothing and .* there is none: set '):
      method_runs.build('dividemix', task.with_training(task.training._replace(loss=smooth)))

  def test_sends_what_fedavg_sends_of_two_models(self):
    task = _task(toy.two_corners([4, 4]))
    [two] = method_runs.build('coteaching', task._replace(stages={})).computations
    for c in method_runs.build('dividemix', task).computations:
      self.assertEqual(c.fields, two.fields)
      self.assertEqual(c.broadcast_bytes, two.broadcast_bytes)
    self.assertEqual(catalog.ALGORITHMS['dividemix'].per_client, '')


class ParamsTest(parameterized.TestCase):

  @parameterized.parameters(
      ('threshold=1', 'threshold must be at least 0 and below 1, got 1.0'),
      ('sharpening=0', 'sharpening must be positive, got 0.0'),
      ('alpha=-1', r'alpha must be 0, for none, or in \[0.05, 1e6\], got -1.0'),
      ('alpha=0.01', r'alpha must be 0, for none, or in \[0.05, 1e6\], got 0.01'),
      ('unlabelled_weight=-1', 'unlabelled_weight must not be negative, got -1.0'),
      ('ramp_rounds=-1', 'ramp_rounds must not be negative, got -1'),
      ('penalty_weight=-1', 'penalty_weight must not be negative, got -1.0'),
      ('warm_up_entropy=-1', 'warm_up_entropy must not be negative, got -1.0'),
      ('divide_epochs=-1', 'divide_epochs must not be negative, got -1'),
      ('prior=data', "prior must be one of uniform, labels, got 'data'"),
      ('evaluate=both', "evaluate must be one of sum_logits, first, got 'both'"),
  )
  def test_out_of_range_is_refused_in_one_line(self, param, message):
    with self.assertRaisesRegex(types.UsageError, f'^--param: {message}$'):
      params_lib.parse('dividemix', _Params, [param])

  def test_defaults_are_the_public_codes(self):
    p = _Params()
    self.assertEqual((p.threshold, p.sharpening, p.alpha), (0.5, 0.5, 4.0))
    self.assertEqual((p.unlabelled_weight, p.ramp_rounds, p.penalty_weight), (25.0, 16, 1.0))
    self.assertEqual((p.prior, p.evaluate), ('uniform', 'sum_logits'))


if __name__ == '__main__':
  absltest.main()
