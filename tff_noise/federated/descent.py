"""A client's steps of SGD: the weights change in place."""

from collections.abc import Callable, Sequence

import tensorflow as tf


def build_sgd(
    variables: Sequence[tf.Variable], learning_rate: float, momentum: float
) -> Callable[[Sequence[tf.Tensor]], None]:
  """Returns what takes a step, given the gradients of `variables`.

  As `tff.learning.optimizers.build_sgdm`: `v <- momentum v + g`, `w <- w - learning_rate v`. That
  one makes three new tensors for each of the weights, where TensorFlow's own kernels read and
  write each number once; for small batches, most of a step is moving weights in memory.

  Call it once in a computation, outside of `tf.function`, since it makes variables (v, at zero as
  the computation begins); call what it returns inside of one, which orders effects.
  """
  if not momentum:

    def step(gradients):
      for variable, gradient in zip(variables, gradients, strict=True):
        tf.raw_ops.ResourceApplyGradientDescent(
            var=variable.handle, alpha=learning_rate, delta=gradient
        )

    return step
  velocities = [tf.Variable(tf.zeros(v.shape, v.dtype), trainable=False) for v in variables]

  def step_with_momentum(gradients):
    for variable, velocity, gradient in zip(variables, velocities, gradients, strict=True):
      tf.raw_ops.ResourceApplyMomentum(
          var=variable.handle,
          accum=velocity.handle,
          lr=learning_rate,
          grad=gradient,
          momentum=momentum,
      )

  return step_with_momentum
