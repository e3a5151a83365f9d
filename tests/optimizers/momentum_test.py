"""Tests of the sum of momentum's coefficients."""

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise.optimizers import momentum


def _by_running_it(steps, rho):
  """How far momentum SGD of step size 1 goes under a gradient of 1."""
  velocity = moved = 0.0
  for _ in range(steps):
    velocity = rho * velocity + 1
    moved += velocity
  return moved


class AccumulatedTest(parameterized.TestCase):

  @parameterized.product(steps=[0, 1, 2, 7, 500], rho=[0.0, 0.5, 0.9, 0.999])
  def test_is_how_far_momentum_goes(self, steps, rho):
    expected = _by_running_it(steps, rho)
    self.assertAlmostEqual(momentum.accumulated(float(steps), rho) / max(1, expected),
                           expected / max(1, expected), places=6)
    found = momentum.accumulated_tensor(tf.constant(steps), rho)
    self.assertEqual(found.dtype, tf.float32)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)

  def test_is_the_number_of_steps_without_momentum(self):
    self.assertEqual(momentum.accumulated(13.0, 0.0), 13.0)


if __name__ == '__main__':
  absltest.main()
