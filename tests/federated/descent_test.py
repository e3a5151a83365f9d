"""Tests for descent: steps in place are TFF's own steps, and no call sees another's momentum."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise.federated import descent
from tff_noise.runtimes import local

_SHAPES = ((3, 4), (), (5,))
_STEPS = 6


def _random(rng, *prefix):
  return [rng.normal(size=(*prefix, *shape)).astype(np.float32) for shape in _SHAPES]


def _descend(learning_rate, momentum):
  """From weights and gradients `[_STEPS, ...]` to the weights after these steps."""
  weights_type = [(np.float32, shape) for shape in _SHAPES]
  gradients_type = [(np.float32, (_STEPS, *shape)) for shape in _SHAPES]

  @tff.tensorflow.computation(weights_type, gradients_type)
  def computation(weights, gradients):
    variables = [tf.Variable(tf.zeros(shape)) for shape in _SHAPES]
    step = descent.build_sgd(variables, learning_rate, momentum)

    @tf.function(autograph=False)
    def run(weights, gradients):
      for variable, weight in zip(variables, weights, strict=True):
        variable.assign(weight)
      for i in range(_STEPS):
        step([g[i] for g in gradients])
      return [v.read_value() for v in variables]

    return run(weights, gradients)

  return computation


class DescentTest(parameterized.TestCase):

  @parameterized.product(learning_rate=(0.0, 0.01, 0.3), momentum=(0.0, 0.5, 0.99))
  def test_equals_sgdm_of_tff(self, learning_rate, momentum):
    rng = np.random.default_rng(0)
    optimizer = tff.learning.optimizers.build_sgdm(learning_rate, momentum or None)
    with local.runtime(2):
      computation = _descend(learning_rate, momentum)
      for _ in range(2):  # The second starts without momentum, as the first did.
        weights, gradients = _random(rng), _random(rng, _STEPS)
        expected = [tf.constant(w) for w in weights]
        state = optimizer.initialize([tf.TensorSpec(s) for s in _SHAPES])
        for i in range(_STEPS):
          state, expected = optimizer.next(
              state, expected, [tf.constant(g[i]) for g in gradients]
          )
        actual = computation(weights, gradients)
        for a, e in zip(actual, expected, strict=True):
          np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-5)


if __name__ == '__main__':
  absltest.main()
