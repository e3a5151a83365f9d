"""Tests of the losses."""

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise.models import losses

_LOGITS = np.array([[1.0, 2.0, 0.5], [0.0, -1.0, 3.0]], np.float32)
_LABELS = np.array([1, 0], np.int32)


def _log_softmax(logits):
  return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


class LossesTest(parameterized.TestCase):

  def test_cross_entropy_is_the_mean_of_minus_log_probability(self):
    expected = -np.mean(_log_softmax(_LOGITS)[[0, 1], _LABELS])
    self.assertAlmostEqual(losses.cross_entropy(_LOGITS, _LABELS).numpy(), expected, places=6)

  def test_floor_bounds_log_probabilities(self):
    logits = np.array([[0.0, -1000.0]], np.float32)
    values = losses.floored_log_probabilities(logits, 1e-8).numpy()
    np.testing.assert_allclose(values, [[0, np.log(1e-8)]], atol=1e-6)

  def test_contrastive_loss_is_a_difference_of_logits_where_the_floor_is_far(self):
    # CE(y) - CE(y') = z_y' - z_y: the log-sum-exp cancels at beta = 1.
    contrast_labels = np.array([2, 1])
    expected = np.mean(_LOGITS[[0, 1], contrast_labels] - _LOGITS[[0, 1], _LABELS])
    loss = losses.contrastive_cross_entropy(
        _LOGITS, _LABELS, np.eye(3, dtype=np.float32)[contrast_labels], weight=1.0, floor=1e-12
    )
    self.assertAlmostEqual(loss.numpy(), expected, places=5)

  def test_contrast_with_the_own_label_cancels(self):
    loss = losses.contrastive_cross_entropy(
        _LOGITS, _LABELS, np.eye(3, dtype=np.float32)[_LABELS], weight=1.0, floor=1e-8
    )
    self.assertAlmostEqual(loss.numpy(), 0, places=6)

  def test_weight_zero_is_cross_entropy(self):
    loss = losses.contrastive_cross_entropy(
        _LOGITS, _LABELS, np.ones((1, 3), np.float32) / 3, weight=0.0, floor=1e-12
    )
    self.assertAlmostEqual(loss.numpy(), losses.cross_entropy(_LOGITS, _LABELS).numpy(), places=5)

  def test_expected_contrast_is_the_mean_of_sampled_contrasts(self):
    prior = np.array([[0.2, 0.5, 0.3]], np.float32)

    def loss(contrast):
      return losses.contrastive_cross_entropy(
          _LOGITS[:1], _LABELS[:1], contrast, weight=0.7, floor=1e-8
      ).numpy()

    sampled = sum(p * loss(np.eye(3, dtype=np.float32)[[k]]) for k, p in enumerate(prior[0]))
    self.assertAlmostEqual(loss(prior), sampled, places=5)

  @parameterized.parameters(50.0, 1000.0)
  def test_gradient_fades_where_the_contrast_has_won(self, margin):
    # Without the floor it would be +-1 for ever, and the logits would run away.
    logits = tf.constant([[margin, -margin]])
    with tf.GradientTape() as tape:
      tape.watch(logits)
      loss = losses.contrastive_cross_entropy(
          logits, tf.constant([0]), tf.constant([[0.0, 1.0]]), weight=1.0, floor=1e-8
      )
    np.testing.assert_allclose(tape.gradient(loss, logits).numpy(), 0, atol=1e-6)


if __name__ == '__main__':
  absltest.main()
