"""Tests of losses of labels, and of the parts that any of them may have."""

import types as python_types
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tests.algorithms import method_runs
from tff_noise import types
from tff_noise.clients import label_loss
from tff_noise.clients import mixup
from tff_noise.models import losses

_LOGITS = np.array([[1, 0, -1], [0, 2, 0]], np.float32)
_LABELS = np.array([0, 2], np.int32)


def _loss(training, columns=None, client_labels=(0, 0, 0, 1, 2, 2)):
  """The value of a program's loss in one step, cross-entropy being the loss of labels."""
  made = label_loss.client(
      lambda logits, labels: losses.cross_entropy(logits, labels, training.loss), training
  )
  step = python_types.SimpleNamespace(
      logits=tf.constant(_LOGITS), labels=tf.constant(_LABELS), columns=columns or {},
      client=python_types.SimpleNamespace(labels=tf.constant(client_labels)),
  )
  return float(made.loss(step))


def _cross_entropy(logits, labels):
  p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
  return -np.log(p[np.arange(len(labels)), labels]).mean()


class LossTest(parameterized.TestCase):

  def test_prior_by_hand(self):
    # n = 6, K = 3: pi = 4/9, 2/9, 3/9.
    labels = tf.one_hot([0, 0, 0, 1, 2, 2], 3)
    np.testing.assert_allclose(
        label_loss.log_prior(labels), np.log([12 / 9, 6 / 9, 1]), rtol=1e-6
    )

  def test_without_parts_it_is_the_loss(self):
    self.assertAlmostEqual(_loss(types.LocalTraining()), _cross_entropy(_LOGITS, _LABELS), 6)

  @parameterized.parameters((1.0, 1.0), (0.5, 1.0), (1.0, 10.0))
  def test_adjustment(self, tau, temperature):
    training = types.LocalTraining(
        loss=types.CrossEntropy(temperature=temperature), logit_adjustment=tau
    )
    adjusted = _LOGITS / temperature + tau * np.log([12 / 9, 6 / 9, 1])
    self.assertAlmostEqual(_loss(training), _cross_entropy(adjusted, _LABELS), 5)

  def test_mixup(self):
    others = np.array([1, 1], np.int32)
    columns = {mixup.OTHER_LABELS: tf.constant(others), mixup.SHARE: tf.constant(0.25)}
    expected = 0.25 * _cross_entropy(_LOGITS, _LABELS) + 0.75 * _cross_entropy(_LOGITS, others)
    self.assertAlmostEqual(_loss(types.LocalTraining(mixup_alpha=1.0), columns), expected, 6)

  def test_both(self):
    columns = {mixup.OTHER_LABELS: tf.constant(_LABELS), mixup.SHARE: tf.constant(0.25)}
    adjusted = _LOGITS + np.log([12 / 9, 6 / 9, 1])
    training = types.LocalTraining(mixup_alpha=1.0, logit_adjustment=1.0)
    self.assertAlmostEqual(_loss(training, columns), _cross_entropy(adjusted, _LABELS), 5)


class RunTest(federated_test_case.FederatedTestCase):

  def _trained(self, method, **parts):
    federation = method_runs.one_client(
        np.concatenate([method_runs.X, method_runs.X[:2]]), np.array([0, 1, 1, 0, 1, 1], np.int32)
    )
    task = method_runs.task(
        federation, training=types.LocalTraining(3, 6, 0.5, **parts), rounds=2
    )
    return federation.clients[0], method_runs.trained(method, federation, task)[0]

  def test_adjusted_training_equals_numpy(self):
    client, found = self._trained('fedavg', logit_adjustment=0.5)
    counts = np.bincount(client.y)
    adjustment = 0.5 * np.log(2 * (counts + 1) / (6 + 2))
    weights = np.zeros((2, 2))
    for _ in range(2 * 3):
      p = np.exp(client.x @ weights + adjustment)
      p /= p.sum(axis=1, keepdims=True)
      weights -= 0.5 * client.x.T @ (p - np.eye(2)[client.y]) / 6
    np.testing.assert_allclose(found, weights, atol=1e-5)

  @parameterized.parameters('fedavg', 'gce', 'sce')
  def test_mixup_of_all_or_nothing_is_none(self, method):
    # Every image is itself, or is another one with its label, in batches of all.
    _, plain = self._trained(method)
    for share in (0.0, 1.0):
      with mock.patch.object(mixup, 'draw_share', lambda *_, share=share: tf.constant(share)):
        _, found = self._trained(method, mixup_alpha=1.0)
      np.testing.assert_allclose(found, plain, atol=1e-5)
    _, mixed = self._trained(method, mixup_alpha=1.0)
    self.assertGreater(np.abs(mixed - plain).max(), 1e-2)

  @parameterized.parameters(
      ('fedavg', {}, 0.5), ('fedavg', {'label_smoothing': 0.2}, 0.4),
      ('fedavg', {'keep_probability': 0.75}, 0.25), ('gce', {'keep_probability': 0.75}, 0.125),
  )
  def test_one_step_of_what_the_flags_ask_for(self, method, form, expected):
    # One example (1, 0) of class 0, p = (.5, .5). Smoothed, the target is (.9, .1). With flips the
    # report is right with q = .75 p + .25 (1 - p), dq/dz = .125 at .5, and GCE with q = 1 is 1 - q.
    federation = method_runs.one_client(np.array([[1, 0]], np.float32), np.array([0], np.int32))
    training = types.LocalTraining(1, 1, 1.0, loss=types.CrossEntropy(**form))
    task = method_runs.task(federation, rounds=1, training=training)
    found, _ = method_runs.trained(method, federation, task, **{'gce': {'q': 1.0}}.get(method, {}))
    np.testing.assert_allclose(found, [[expected, -expected], [0, 0]], atol=1e-6)

  @parameterized.parameters('gce', 'sce')
  def test_adjustment_of_equal_shares_is_none(self, method):
    federation = method_runs.one_client()
    plain, adjusted = (
        method_runs.trained(method, federation, method_runs.task(
            federation, training=types.LocalTraining(1, 2, 0.5, logit_adjustment=tau)
        ))[0]
        for tau in (0.0, 1.0)
    )
    np.testing.assert_allclose(adjusted, plain, atol=1e-6)

  @parameterized.parameters('coteaching', 'dividemix', 'elr', 'feddpcont', 'fedtally', 'rhfl')
  def test_methods_whose_clients_do_more_are_refused(self, method):
    federation = toy.two_corners([5, 7, 4])
    for flag in ('mixup_alpha', 'logit_adjustment'):
      with self.assertRaisesRegex(types.UsageError, f'^--{flag}.* gce, sce and clipfl: leave'):
        method_runs.build(method, method_runs.task(
            federation, training=types.LocalTraining(1, 6, 0.5, **{flag: 0.5}),
            clients_per_round=3, public=method_runs.X,
        ))


if __name__ == '__main__':
  absltest.main()
