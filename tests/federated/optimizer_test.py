"""Tests of the server's step."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest

from tff_noise.federated import optimizer

_WEIGHTS = tff.learning.models.ModelWeights
_TYPE = tff.to_type(_WEIGHTS([(np.float32, (2,))], [(np.float32, (1,))]))


def _weights(trainable, non_trainable):
  return _WEIGHTS([tf.constant(trainable, tf.float32)], [tf.constant(non_trainable, tf.float32)])


class ApplyUpdateTest(absltest.TestCase):

  def _step(self, server_optimizer, steps=1):
    rule = optimizer.apply_update(server_optimizer, _TYPE)
    state, weights = rule.initialize(), _weights([1, 1], [4])
    for _ in range(steps):
      inputs = optimizer.ServerInputs(weights, _weights([0.5, -0.5], [1]), {})
      state, weights = rule.next(state, inputs)
    self.assertEqual(rule.broadcast(state), ())
    return weights

  def test_step_size_one_moves_to_the_mean_of_the_clients(self):
    weights = self._step(tff.learning.optimizers.build_sgdm(1.0))
    np.testing.assert_allclose(weights.trainable[0], [0.5, 1.5])

  def test_step_size_scales_towards_the_clients_not_away(self):
    weights = self._step(tff.learning.optimizers.build_sgdm(0.5))
    np.testing.assert_allclose(weights.trainable[0], [0.75, 1.25])

  def test_batch_statistics_bypass_step_size_and_momentum(self):
    weights = self._step(tff.learning.optimizers.build_sgdm(0.5, momentum=0.9), steps=2)
    np.testing.assert_allclose(weights.non_trainable[0], [2])
    # v1 = u, v2 = .9 u + u: w = 1 - .5 (1 + 1.9) u.
    np.testing.assert_allclose(weights.trainable[0], [1 - 1.45 * 0.5, 1 + 1.45 * 0.5])


if __name__ == '__main__':
  absltest.main()
