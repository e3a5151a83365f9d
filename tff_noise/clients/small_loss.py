"""How many of a batch are kept where the examples of the smallest losses are trusted."""

import tensorflow as tf


def num_kept(rate: tf.Tensor, batch_size: tf.Tensor) -> tf.Tensor:
  """int32 `[]`, the whole part of `(1 - rate) b`, and at least 1; `rate` is float64."""
  kept = (1 - rate) * tf.cast(batch_size, tf.float64)
  # (1 - 0.9) * 10 is 0.9999999999999998.
  return tf.maximum(tf.cast(tf.floor(kept + 1e-9), tf.int32), 1)
