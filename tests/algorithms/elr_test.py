"""ELR: its targets and loss beside the public code's, what clients keep, and what equals FedAvg."""

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
from tff_noise.algorithms import elr
from tff_noise.clients import seeds
from tff_noise.program import training


def _run(name, federation, task, **params):
  """Runs all rounds; returns the first trained weights, and the clients."""
  state, clients = method_runs.run(name, federation, task, **params)
  return state.weights.trainable[0], clients


def _softmax(logits):
  p = np.exp(logits - logits.max(axis=1, keepdims=True))
  return p / p.sum(axis=1, keepdims=True)


def _public_code(targets, logits, beta):
  """The next targets and the regulariser as `ELR/model/loss.py` of the authors computes them."""
  p = np.clip(_softmax(np.asarray(logits, np.float64)), 1e-4, 1 - 1e-4)
  targets = beta * targets + (1 - beta) * (p / p.sum(axis=1, keepdims=True))
  return targets, np.log(1 - (targets * p).sum(axis=1)).mean()


class RegulariserTest(parameterized.TestCase):

  @parameterized.parameters(1, 30)
  def test_equals_the_public_code(self, scale):
    # At 30 most probabilities are clipped.
    draw = np.random.default_rng(0)
    targets, found = np.zeros((5, 4)), np.zeros((5, 4), np.float32)
    for _ in range(10):
      logits = (scale * draw.normal(size=(5, 4))).astype(np.float32)
      targets, value = _public_code(targets, logits, 0.7)
      found = elr.next_targets(found, logits, 0.7)
      np.testing.assert_allclose(found, targets, atol=1e-5)
      np.testing.assert_allclose(elr.regulariser(logits, found), value, rtol=1e-5)

  def test_by_hand(self):
    # p = (1/4, 3/4). t: .6 (.5, .2) + .4 p = (.4, .42). <p, t> = .1 + .315.
    logits = np.log(np.array([[1, 3]], np.float32))
    targets = elr.next_targets(np.array([[0.5, 0.2]], np.float32), logits, 0.6)
    np.testing.assert_allclose(targets, [[0.4, 0.42]], atol=1e-6)
    self.assertAlmostEqual(elr.regulariser(logits, targets).numpy(), np.log(0.585), places=6)

  def test_targets_of_zero_regularise_nothing(self):
    logits = tf.constant([[1.0, -2.0, 0.5]])
    with tf.GradientTape() as tape:
      tape.watch(logits)
      value = elr.regulariser(logits, tf.zeros([1, 3]))
    self.assertEqual(value.numpy(), 0)
    np.testing.assert_array_equal(tape.gradient(value, logits).numpy(), np.zeros((1, 3)))

  def test_gradient_pulls_towards_the_target_and_does_not_flow_through_it(self):
    # d log(1 - <p, t>) / dz = -p (t - <p, t>) / (1 - <p, t>).
    before = tf.constant([[0.7, 0.1, 0.0]])
    logits = tf.constant([[0.0, np.log(2), np.log(3)]], tf.float32)
    p = np.array([[1, 2, 3]]) / 6
    with tf.GradientTape() as tape:
      tape.watch(logits)
      value = elr.regulariser(logits, elr.next_targets(before, logits, 0.7))
    t = 0.7 * before.numpy() + 0.3 * p
    agreement = (p * t).sum()
    gradient = tape.gradient(value, logits).numpy()
    np.testing.assert_allclose(gradient, -p * (t - agreement) / (1 - agreement), atol=1e-6)
    self.assertEqual(gradient.argmin(), 0)  # A step against it raises the target's logit.

  @parameterized.parameters(20.0, 1e4)
  def test_certain_and_agreeing_predictions_stay_finite(self, margin):
    # The literal term is log(1 - 1).
    logits = tf.constant([[margin, -margin], [margin, -margin]])
    targets = tf.zeros([2, 2])
    for _ in range(100):
      targets = elr.next_targets(targets, logits, 0.7)
    with tf.GradientTape() as tape:
      tape.watch(logits)
      value = elr.regulariser(logits, targets)
      literal = tf.math.log(1 - tf.reduce_sum(tf.nn.softmax(logits) ** 2, axis=1))
    self.assertTrue(np.isneginf(literal.numpy()).all())
    # <p, t> is (1 - 1e-4)^2 + 1e-8.
    self.assertAlmostEqual(value.numpy(), np.log(2e-4), places=2)
    self.assertGreaterEqual(value.numpy(), np.log(1e-4))
    np.testing.assert_array_equal(tape.gradient(value, logits).numpy(), np.zeros((2, 2)))


class TrainingTest(federated_test_case.FederatedTestCase):

  def test_first_step_by_hand(self):
    # At W = 0, p = (1/2, 1/2) and t = .3 p: <p, t> = .15, and t pulls nowhere.
    federation = types.Federation(
        (types.ClientExamples(np.array([[1, 0]], np.float32), np.array([0], np.int32),
                              np.arange(1)),), 2, method_runs.SEED,
    )
    task = method_runs.task(federation, training=types.LocalTraining(1, 1, 1.0), rounds=1)
    weights, clients = _run('elr', federation, task)
    np.testing.assert_allclose(weights, [[0.5, -0.5], [0, 0]], atol=1e-6)
    np.testing.assert_allclose(clients.own[elr.TARGETS][0], [[0.15, 0.15]], atol=1e-6)
    loss = np.log(2) + 3 * np.log(0.85)
    self.assertAlmostEqual(clients.traffic.train_loss, loss, places=5)

  @parameterized.parameters((3.0, 0.7), (1.0, 0.9), (2.0, 0.0))
  def test_equals_numpy_with_the_public_codes_targets(self, weight, beta):
    # Batches of 2 and 1: each example's target has to find its way back to its place.
    federation = toy.two_corners([5])
    x, y, _ = federation.clients[0]
    task = method_runs.task(federation, training=types.LocalTraining(3, 2, 0.3), rounds=2)
    found, clients = _run('elr', federation, task, weight=weight, beta=beta)
    w, targets = np.zeros((2, 2)), np.zeros((5, 2))
    for round_num in (1, 2):
      for epoch in range(3):
        seed = seeds.fold(rng.tf_seed(method_runs.SEED, 'local training'), round_num, 0, epoch)
        order = seeds.batch_order(seed, 5).numpy()
        for batch in (order[:2], order[2:4], order[4:]):
          p = _softmax(x[batch] @ w)
          t, _ = _public_code(targets[batch], x[batch] @ w, beta)
          targets[batch] = t
          agreement = (p * t).sum(axis=1, keepdims=True)
          of_logits = p - np.eye(2)[y[batch]] - weight * p * (t - agreement) / (1 - agreement)
          w -= 0.3 * x[batch].T @ of_logits / len(batch)
    np.testing.assert_allclose(found, w, atol=1e-5)
    np.testing.assert_allclose(clients.own[elr.TARGETS][0], targets, atol=1e-5)

  @parameterized.parameters('', 'fedprox', 'scaffold', 'poc')
  def test_without_weight_it_is_the_optimizer_alone(self, base):
    federation = toy.two_corners([5, 7, 4])
    task = method_runs.task(federation, base)  # --base
    weights, clients = _run('elr', federation, task, weight=0.0)
    alone, _ = _run(base or 'fedavg', federation, method_runs.task(federation))
    np.testing.assert_allclose(weights, alone, atol=1e-6)
    # Predictions are kept all the same.
    self.assertGreater(max(t.max() for t in clients.own[elr.TARGETS]), 0.5)
    regularised, clients = _run('elr', federation, task)
    self.assertGreater(np.abs(regularised - alone).max(), 1e-2)
    self.assertEqual('scaffold_variate' in clients.own, base == 'scaffold')

  def test_keeps_targets_between_rounds_and_zeros_of_who_was_never_drawn(self):
    federation = toy.two_corners([3, 2, 4, 3])
    task = method_runs.task(federation, clients_per_round=1, rounds=2)
    _, clients = _run('elr', federation, task)
    self.assertContainsSubset([0], clients.participations.tolist())
    for client, times in enumerate(clients.participations):
      targets = clients.own[elr.TARGETS][client]
      self.assertEqual(targets.shape, (len(federation.clients[client].y), 2))
      # Two epochs in each round: the weights of all predictions sum to 1 - beta^n.
      np.testing.assert_allclose(targets.sum(axis=1), 1 - 0.7 ** (2 * times), atol=1e-6)

  def test_targets_of_an_update_that_is_not_finite_are_not_kept(self):
    federation = toy.two_corners([3, 2])
    task = method_runs.task(federation)
    algorithm = method_runs.build('elr', task)
    healthy = runs.clients_of(algorithm, task, federation)
    state = training.run_round(algorithm, algorithm.init(), healthy)
    # One image of client 0 is broken from now on.
    broken = federation.clients[0]
    x = broken.x.copy()
    x[0, 0] = np.inf
    federation = federation._replace(
        clients=(broken._replace(x=x), federation.clients[1])
    )
    clients = runs.clients_of(algorithm, task, federation)
    clients.resume(healthy.own, healthy.participations, healthy.aggregators)
    state = training.run_round(algorithm, state, clients)
    self.assertEqual(clients.traffic.rejected, 1)
    self.assertTrue(np.isfinite(state.weights.trainable[0]).all())
    np.testing.assert_array_equal(clients.own[elr.TARGETS][0], healthy.own[elr.TARGETS][0])
    np.testing.assert_allclose(
        clients.own[elr.TARGETS][1].sum(axis=1), 1 - 0.7**4, atol=1e-6
    )

  def test_client_without_examples_keeps_nothing_and_sends_nothing(self):
    federation = toy.two_corners([4, 0])
    weights, clients = _run('elr', federation, method_runs.task(federation))
    self.assertEqual(clients.own[elr.TARGETS][1].shape, (0, 2))
    self.assertTrue(np.isfinite(weights).all())

  def test_sends_what_fed_avg_sends(self):
    task = method_runs.task(toy.two_corners([5, 7]))
    regularised, plain = (method_runs.build(name, task) for name in ('elr', 'fedavg'))
    self.assertEqual(regularised.fields, plain.fields)


class ParamsTest(parameterized.TestCase):

  @parameterized.parameters(
      ('weight=-1', 'weight must not be negative, got -1.0'),
      ('beta=1', 'beta must be at least 0 and below 1, got 1.0'),
      ('beta=-0.1', 'beta must be at least 0 and below 1, got -0.1'),
  )
  def test_out_of_range_is_refused_in_one_line(self, param, message):
    with self.assertRaisesRegex(types.UsageError, f'^--param: {message}$'):
      params_lib.parse('elr', catalog.ALGORITHMS['elr'].params, [param])

  def test_defaults_are_the_public_codes(self):
    params = catalog.ALGORITHMS['elr'].params()
    self.assertEqual((params.weight, params.beta), (3.0, 0.7))


if __name__ == '__main__':
  absltest.main()
