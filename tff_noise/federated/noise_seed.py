"""Seeds of noise in a graph, for TensorFlow's stateless operations."""

import numpy as np
import tensorflow as tf


def derive(key: np.ndarray | tf.Tensor, *numbers) -> tf.Tensor:
  """Returns int64 `[2]`, a seed of its own for each sequence of numbers.

  `stateless_fold_in` would not do: it keeps 32 bits of the seed beside the number, which can be
  tried out.

  Args:
    key: int64 `[2]`.
    *numbers: Integers, or integer tensors of shape `[]`.
  """
  key = tf.convert_to_tensor(key, tf.int64)
  for number in numbers:
    mixed = tf.stack([key[0], tf.bitwise.bitwise_xor(key[1], tf.cast(number, tf.int64))])
    key = tf.random.stateless_uniform([2], mixed, minval=None, maxval=None, dtype=tf.int64)
  return key
