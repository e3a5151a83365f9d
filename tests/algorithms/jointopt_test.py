"""JointOpt: its loss and labels beside numbers by hand, whole runs in NumPy, and its stages."""

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
from tff_noise.algorithms import jointopt
from tff_noise.clients import seeds
from tff_noise.federated import task as task_lib
from tff_noise.models import losses
from tff_noise.optimizers import catalog as optimizers
from tff_noise.program import training

_LOGITS = np.array([[2, 1, 0], [0, 3, 0]], np.float32)
_OUTPUTS = np.array(
    [[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.8, 0.1, 0.1], [0.7, 0.2, 0.1]], np.float32
)
_UNIFORM = class_prior.of('uniform', tf.constant([0]), 3)


def _softmax(z):
  p = np.exp(z - z.max(axis=1, keepdims=True))
  return p / p.sum(axis=1, keepdims=True)


def _stages(warm_up=0, joint=0, retrain=0):
  return {'warm_up': warm_up, 'joint': joint, 'retrain': retrain}


def _task(federation, base='', **stages):
  lengths = _stages(**stages)
  return method_runs.task(federation, base, stages=lengths, rounds=sum(lengths.values()))


class LossTest(parameterized.TestCase):

  def test_terms_by_hand(self):
    y = np.array([[1, 0, 0], [0.1, 0.8, 0.1]], np.float32)
    l_c = losses.soft_cross_entropy(_LOGITS, y).numpy()
    l_p = jointopt.prior_term(_LOGITS, _UNIFORM).numpy()
    l_e = losses.entropy(_LOGITS).numpy()
    np.testing.assert_allclose([l_c, l_p, l_e], [0.551264, 1.426004, 0.599495], atol=1e-5)
    self.assertAlmostEqual(l_p - np.log(3), 0.327392, places=5)  # KL(pi, mean s)
    np.testing.assert_allclose(
        np.exp(losses.log_mean_prediction(_LOGITS)), [0.355260, 0.577086, 0.067655], atol=1e-5
    )
    self.assertAlmostEqual(l_c + 1.2 * l_p + 0.8 * l_e, 2.742065, places=5)

  def test_terms_stay_finite_where_probabilities_are_0(self):
    logits = tf.constant([[500.0, 0.0, -500.0]])
    for prior in (_UNIFORM, tf.constant([1.0, 0.0, 0.0])):
      with tf.GradientTape() as tape:
        tape.watch(logits)
        value = jointopt.prior_term(logits, prior) + losses.entropy(logits)
      self.assertTrue(np.isfinite(value.numpy()))
      self.assertTrue(np.isfinite(tape.gradient(value, logits).numpy()).all())

  def test_prior_of_a_client_are_the_shares_of_its_labels(self):
    prior = class_prior.of('labels', tf.constant([0, 0, 1, 0]), 3)
    np.testing.assert_allclose(prior, [0.75, 0.25, 0])
    np.testing.assert_allclose(_UNIFORM, [1 / 3] * 3)
    # Least where the mean prediction is the prior.
    at_prior = jointopt.prior_term(tf.math.log([[0.75, 0.25, 1e-9]]), prior)
    elsewhere = jointopt.prior_term(tf.math.log([[0.7, 0.2, 0.1]]), prior)
    self.assertLess(at_prior, elsewhere)


class LabelsTest(absltest.TestCase):

  def _recorded(self, outputs, window):
    history, count = np.zeros((1, window, 3), np.float32), np.zeros(1, np.int32)
    for s in outputs:
      history, count = jointopt.recorded(history, count, tf.constant([0]), s[np.newaxis])
    return history, count

  def test_mean_of_those_that_are_there(self):
    history, count = self._recorded(_OUTPUTS, 10)
    y = jointopt.soft_labels(history, count, tf.constant([2]))
    np.testing.assert_allclose(y, [[0.7, 0.2, 0.1]], atol=1e-6)
    # What the code of FedRN has until 10 are there.
    np.testing.assert_allclose(np.mean(history, axis=1), [[0.28, 0.08, 0.04]], atol=1e-6)

  def test_the_oldest_make_room(self):
    history, count = self._recorded(_OUTPUTS, 3)
    y = jointopt.soft_labels(history, count, tf.constant([2]))
    np.testing.assert_allclose(y, _OUTPUTS[1:].mean(axis=0, keepdims=True), atol=1e-6)
    self.assertEqual(count.numpy(), 4)

  def test_given_label_where_nothing_is(self):
    history, count = np.zeros((2, 4, 3), np.float32), np.array([0, 1], np.int32)
    history[1, 0] = [0.5, 0.25, 0.25]
    y = jointopt.soft_labels(history, count, tf.constant([2, 2]))
    np.testing.assert_array_equal(y, [[0, 0, 1], [0.5, 0.25, 0.25]])

  def test_records_at_the_positions_of_the_batch(self):
    history, count = np.zeros((3, 2, 3), np.float32), np.array([1, 0, 2], np.int32)
    found, counts = jointopt.recorded(history, count, tf.constant([2, 0]), _OUTPUTS[:2])
    history[2, 0], history[0, 1] = _OUTPUTS[:2]
    np.testing.assert_array_equal(found, history)
    np.testing.assert_array_equal(counts, [2, 0, 3])


class _NumPy:
  """Clients' JointOpt on the linear model, all of one client, in float64."""

  def __init__(self, federation, alpha, beta, window):
    self.x, self.y, _ = federation.clients[0]
    self.alpha, self.beta, self.window = alpha, beta, window
    self.w = np.zeros((2, 2))
    self.outputs = [[] for _ in self.y]

  def soft(self, i):
    last = self.outputs[i][-self.window:]
    return np.mean(last, axis=0) if last else np.eye(2)[self.y[i]]

  def round(self, round_num, epochs, kind, record=True):
    n = len(self.y)
    for epoch in range(epochs):
      seed = seeds.fold(rng.tf_seed(method_runs.SEED, 'local training'), round_num, 0, epoch)
      order = seeds.batch_order(seed, n).numpy()
      for first in range(0, n, 3):
        batch = order[first : first + 3]
        s = _softmax(self.x[batch] @ self.w)
        targets = np.array([self.soft(i) for i in batch])
        if kind == 'warm_up':
          targets = np.eye(2)[self.y[batch]]
        of_logits = (s - targets) / len(batch)
        if kind == 'joint':
          # d L_p / dz = (s <q, s> - s q) / b, q = pi / mean s; d L_e / dz = -s (log s + H) / b.
          q = 0.5 / s.mean(axis=0)
          of_prior = s * ((s * q).sum(axis=1, keepdims=True) - q)
          entropies = -(s * np.log(s)).sum(axis=1, keepdims=True)
          of_entropy = -s * (np.log(s) + entropies)
          of_logits += (self.alpha * of_prior + self.beta * of_entropy) / len(batch)
        if record:
          for i, row in zip(batch, s, strict=True):
            self.outputs[i].append(row)
        self.w -= 0.2 * self.x[batch].T @ of_logits


class TrainingTest(federated_test_case.FederatedTestCase):

  @parameterized.parameters((1.2, 0.8, 3), (0.5, 2.0, 10))
  def test_whole_run_equals_numpy(self, alpha, beta, window):
    federation = toy.two_corners([7])
    task = _task(federation, warm_up=2, joint=2, retrain=2)
    found, clients = method_runs.trained(
        'jointopt', federation, task, alpha=alpha, beta=beta, window=window, joint_epochs=4
    )
    expected = _NumPy(federation, alpha, beta, window)
    for round_num in (1, 2):
      expected.round(round_num, 2, 'warm_up')
    for round_num in (3, 4):
      expected.round(round_num, 4, 'joint')
    before = expected.w
    labels = [expected.soft(i).argmax() for i in range(7)]
    expected.w = np.zeros((2, 2))
    for round_num in (5, 6):
      expected.round(round_num, 2, 'retrain', record=False)
    np.testing.assert_allclose(found, expected.w, atol=1e-5)
    np.testing.assert_array_equal(clients.own[jointopt.LABELS][0], labels)
    np.testing.assert_array_equal(clients.own[jointopt.COUNT][0], np.full(7, 12))
    self.assertGreater(np.abs(before - expected.w).max(), 0.01)

  def test_labels_that_only_retraining_uses_are_written_too(self):
    federation = toy.two_corners([7])
    task = _task(federation, warm_up=2, retrain=1)
    _, clients = method_runs.trained('jointopt', federation, task)
    expected = _NumPy(federation, 1.2, 0.8, 10)
    for round_num in (1, 2):
      expected.round(round_num, 2, 'warm_up')
    labels = [expected.soft(i).argmax() for i in range(7)]
    self.assertNotEqual(labels, federation.clients[0].y.tolist())
    np.testing.assert_array_equal(clients.own[jointopt.LABELS][0], labels)

  def test_codes_warm_up_has_the_joint_loss_on_given_labels(self):
    federation = toy.two_corners([7])
    task = _task(federation, warm_up=1)
    found, clients = method_runs.trained('jointopt', federation, task, warm_up_loss='joint')
    expected = _NumPy(federation, 1.2, 0.8, 10)
    expected.soft = lambda i: np.eye(2)[expected.y[i]]
    expected.round(1, 2, 'joint')
    np.testing.assert_allclose(found, expected.w, atol=1e-5)
    np.testing.assert_array_equal(clients.own[jointopt.LABELS][0], federation.clients[0].y)

  @parameterized.parameters('', 'scaffold')
  def test_without_terms_and_new_labels_it_is_the_optimizer_alone(self, base):
    federation = toy.two_corners([5, 7, 1])
    task = _task(federation, base, warm_up=3)
    weights, clients = method_runs.trained('jointopt', federation, task)
    alone, _ = method_runs.trained(base or 'fedavg', federation, method_runs.task(federation))
    np.testing.assert_allclose(weights, alone, atol=1e-6)
    # Outputs are recorded all the same.
    self.assertGreater(max(history.max() for history in clients.own[jointopt.HISTORY]), 0.5)
    for labels, examples in zip(clients.own[jointopt.LABELS], federation.clients, strict=True):
      np.testing.assert_array_equal(labels, examples.y)

  def test_first_epoch_of_a_new_client_is_on_given_labels(self):
    federation = toy.two_corners([5, 7])
    task = _task(federation, joint=1)
    weights, _ = method_runs.trained(
        'jointopt', federation, task, alpha=0.0, beta=0.0, joint_epochs=1
    )
    local = task.training._replace(epochs=1)
    alone, _ = method_runs.trained('fedavg', federation, task._replace(training=local))
    np.testing.assert_allclose(weights, alone, atol=1e-6)

  def test_epochs_of_the_joint_stage_are_its_own(self):
    federation = toy.two_corners([5])
    task = _task(federation, warm_up=1, joint=1)
    for epochs, expected in ((3, 2 + 3), (0, 2 + 2)):
      _, clients = method_runs.run('jointopt', federation, task, joint_epochs=epochs)
      np.testing.assert_array_equal(clients.own[jointopt.COUNT][0], np.full(5, expected))

  def test_who_was_never_drawn_keeps_its_labels(self):
    federation = toy.two_corners([4, 3, 5, 4])
    task = _task(federation, joint=2)._replace(clients_per_round=1)
    _, clients = method_runs.run('jointopt', federation, task, joint_epochs=5)
    rested = np.flatnonzero(clients.participations == 0)
    self.assertNotEmpty(rested)
    for client in rested:
      np.testing.assert_array_equal(
          clients.own[jointopt.LABELS][client], federation.clients[client].y
      )
      np.testing.assert_array_equal(clients.own[jointopt.HISTORY][client], 0)

  def test_labels_of_a_separable_class_are_corrected(self):
    x = np.repeat([[2, 0], [0, 2]], 8, axis=0).astype(np.float32)
    truth = np.repeat([0, 1], 8).astype(np.int32)
    given = truth.copy()
    given[[0, 9]] = 1 - given[[0, 9]]
    federation = method_runs.one_client(x, given)
    task = _task(federation, warm_up=2, joint=4)
    _, clients = method_runs.run('jointopt', federation, task)
    np.testing.assert_array_equal(clients.own[jointopt.LABELS][0], truth)
    self.assertEqual(clients.own[jointopt.LABELS][0].dtype, np.int32)

  @parameterized.parameters('', 'scaffold')
  def test_retrains_as_a_run_that_begins_there(self, base):
    # Nothing of the stages before stays but the labels: here the given ones, of no joint round.
    federation = toy.two_corners([5, 7])
    task = _task(federation, base, warm_up=2, retrain=1)
    algorithm = method_runs.build('jointopt', task)
    clients = runs.clients_of(algorithm, task, federation)
    state = algorithm.init()
    for _ in range(2):
      state = training.run_round(algorithm, state, clients)
    clients.forget(clients.everybody, jointopt.HISTORY, jointopt.COUNT)
    again = training.run_round(algorithm, state, clients).weights.trainable[0]
    plain = method_runs.build(base or 'fedavg', method_runs.task(federation))
    fresh = runs.clients_of(plain, task, federation)
    start = plain.init()._replace(round_num=2)  # It is part of the seeds.
    alone = training.run_round(plain, start, fresh).weights.trainable[0]
    np.testing.assert_allclose(again, alone, atol=1e-6)

  def test_a_stage_of_more_epochs_has_the_optimizers_bounds_of_these(self):
    # Of clients of equal size FedNova is FedAvg; were a_k cut it would go less far.
    federation = toy.two_corners([6, 6, 6])
    found, expected = (
        method_runs.trained(
            'jointopt', federation, _task(federation, base, warm_up=1, joint=2), joint_epochs=6
        )[0]
        for base in ('fednova', '')
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)

  def test_who_trains_from_scratch_was_never_asked_for_its_loss(self):
    federation = toy.two_corners([5, 7, 3])
    task = _task(federation, warm_up=2, retrain=1)
    entry = optimizers.OPTIMIZERS['poc']
    params = entry.params(candidates=3, loss='stale')
    task = task._replace(optimizer=entry.build(task, params))
    *_, before, last = runs.states(method_runs.build('jointopt', task), task, federation)
    self.assertTrue(np.isfinite(before.records['last_loss']).all())
    self.assertEqual(np.isinf(last.records['last_loss']).sum(), 1)

  def test_own_state_of_an_update_that_is_not_finite_is_not_kept(self):
    federation = method_runs.one_client()
    x = method_runs.X.copy()
    x[0, 0] = np.inf
    broken = federation._replace(clients=(federation.clients[0]._replace(x=x),))
    _, clients = method_runs.run('jointopt', broken, _task(broken, joint=1))
    self.assertEqual(clients.traffic.rejected, 1)
    np.testing.assert_array_equal(clients.own[jointopt.HISTORY][0], 0)
    np.testing.assert_array_equal(clients.own[jointopt.LABELS][0], method_runs.Y)

  def test_client_of_one_example_and_of_none(self):
    federation = toy.two_corners([1, 0, 4])
    task = _task(federation, warm_up=1, joint=2)._replace(clients_per_round=3)
    weights, clients = method_runs.trained(
        'jointopt', federation, task, prior='labels', joint_epochs=2
    )
    self.assertTrue(np.isfinite(weights).all())
    self.assertEqual(clients.own[jointopt.HISTORY][1].shape, (0, 10, 2))

  def test_sends_what_fed_avg_sends(self):
    task = _task(toy.two_corners([5, 7]), warm_up=1, joint=1, retrain=1)
    fields = method_runs.build('jointopt', task).fields
    self.assertEqual(fields, method_runs.build('fedavg', task).fields)


class StagesTest(federated_test_case.FederatedTestCase):

  def test_lengths_by_default(self):
    task = method_runs.task(toy.two_corners([5]), rounds=50)
    self.assertEqual(jointopt.stage_lengths(task), _stages(20, 30))
    task = task._replace(stages={'retrain': 10})
    self.assertEqual(jointopt.stage_lengths(task), _stages(20, 20, 10))

  @parameterized.parameters(({}, 10), ({}, 20), ({'retrain': 40}, 50), (_stages(), 50))
  def test_too_few_rounds_are_refused(self, stages, rounds):
    task = method_runs.task(toy.two_corners([5]), rounds=rounds, stages=stages)
    message = '^--(rounds=.* or set --stages=.*|stages leaves no round to run)$'
    with self.assertRaisesRegex(types.UsageError, message):
      jointopt.stage_lengths(task)

  def test_private_labels_are_refused(self):
    task = method_runs.task(toy.two_corners([5]), rounds=50)
    task = task._replace(label_privacy=task_lib.LabelPrivacy('1', 'shrinkage', in_training=True))
    with self.assertRaisesRegex(types.UsageError, '^--training_labels=private: '):
      method_runs.build('jointopt', task)


class ParamsTest(parameterized.TestCase):

  @parameterized.parameters(
      ('alpha=-1', 'alpha must not be negative, got -1.0'),
      ('beta=-1', 'beta must not be negative, got -1.0'),
      ('window=0', 'window must be positive, got 0'),
      ('joint_epochs=-1', 'joint_epochs must not be negative, got -1'),
      ('prior=given', "prior must be one of .*, got 'given'"),
      ('warm_up_loss=none', "warm_up_loss must be one of .*, got 'none'"),
  )
  def test_out_of_range_is_refused_in_one_line(self, param, message):
    with self.assertRaisesRegex(types.UsageError, f'^--param: {message}$'):
      params_lib.parse('jointopt', catalog.ALGORITHMS['jointopt'].params, [param])

  def test_defaults_are_those_for_symmetric_noise(self):
    params = catalog.ALGORITHMS['jointopt'].params()
    self.assertEqual((params.alpha, params.beta, params.window), (1.2, 0.8, 10))


if __name__ == '__main__':
  absltest.main()
