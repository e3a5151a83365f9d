"""Group normalisation whose gradient is written out.

Keras's goes over a batch some twenty times forwards and back, and was half of a step of the default
image model. This one has the same weights, configuration and results.
"""

import math

import numpy as np
import tensorflow as tf


@tf.keras.saving.register_keras_serializable(package='tff_noise')
class GroupNormalization(tf.keras.layers.GroupNormalization):
  """Keras's layer for channels in the last dimension; computes in float32 whatever its inputs are.

  Wu & He 2018, "Group Normalization", equations 1 to 6.
  """

  def get_build_config(self) -> None:
    """None: rebuilt from a configuration before its first call, weights lack the layer's name."""

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    """Normalises float `[b, ..., C]` over each example's positions and each group's channels."""
    normalized = _of_features if inputs.shape.rank == 2 else _of_positions
    outputs = normalized(
        tf.cast(inputs, tf.float32), tf.cast(self.gamma, tf.float32),
        tf.cast(self.beta, tf.float32), self.groups, self.epsilon,
    )
    return tf.cast(outputs, inputs.dtype)


def _of_features(inputs, gamma, beta, groups, epsilon):
  """Of `[b, C]`: what counts is the number of operations, each longer than its arithmetic."""
  channels = inputs.shape[1]

  def by_group(x):
    return tf.reshape(x, [-1, groups, channels // groups])

  def mean(x):
    return tf.reduce_mean(x, 2, keepdims=True)

  @tf.custom_gradient
  def normalize(inputs, gamma, beta):
    x = by_group(inputs)
    centered = x - mean(x)  # x - mu
    inverse = tf.math.rsqrt(mean(tf.square(centered)) + epsilon)  # 1 / sigma
    normal = centered * inverse  # xhat
    flat = tf.reshape(normal, [-1, channels])

    def gradient(dy):
      of_normal = by_group(dy * gamma)
      # dx = (gamma dy - <gamma dy> - xhat <gamma dy xhat>) / sigma, <> the mean over a group.
      dx = of_normal - mean(of_normal) - normal * mean(of_normal * normal)
      return (
          tf.reshape(dx * inverse, [-1, channels]),
          tf.reduce_sum(dy * flat, 0),
          tf.reduce_sum(dy, 0),
      )

    return tf.nn.bias_add(flat * gamma, beta), gradient

  return normalize(inputs, gamma, beta)


def _of_positions(inputs, gamma, beta, groups, epsilon):
  """Of `[b, ..., C]`: what counts is how often a batch goes through memory."""
  *positions, channels = inputs.shape[1:]
  num_positions = math.prod(positions)
  # The quickest way to repeat a mean for each channel of its group.
  each_channel = np.full([1, 1, channels // groups], 1 / num_positions, np.float32)

  def mean(sums):
    """Of `[b, C]` sums over positions, to means over groups, `[b, C]`."""
    of_groups = tf.reshape(sums, [-1, groups, channels // groups])
    means = tf.reduce_mean(of_groups, 2, keepdims=True)
    return tf.reshape(means * each_channel, [-1, channels])

  @tf.custom_gradient
  def normalize(inputs, gamma, beta):
    x = tf.reshape(inputs, [-1, num_positions, channels])
    centered = x - mean(tf.reduce_sum(x, 1))[:, None]  # x - mu
    variance = mean(tf.reduce_sum(tf.square(centered), 1))
    inverse = tf.math.rsqrt(variance + epsilon)  # 1 / sigma
    scale = inverse * gamma
    y = tf.nn.bias_add(centered * scale[:, None], beta)

    def gradient(upstream):
      dy = tf.reshape(upstream, tf.shape(x))
      sums = tf.reduce_sum(dy, 1)
      products = tf.reduce_sum(dy * centered, 1) * inverse  # With xhat = (x - mu) / sigma.
      # dx = (gamma dy - <gamma dy> - xhat <gamma dy xhat>) / sigma, <> the mean over a group.
      along = mean(products * gamma) * tf.square(inverse)
      dx = dy * scale[:, None] - centered * along[:, None]
      dx -= (mean(sums * gamma) * inverse)[:, None]
      return tf.reshape(dx, tf.shape(inputs)), tf.reduce_sum(products, 0), tf.reduce_sum(sums, 0)

    return tf.reshape(y, tf.shape(inputs)), gradient

  return normalize(inputs, gamma, beta)
