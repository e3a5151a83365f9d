"""pi of DivideMix and JointOpt: the shares of classes that mean predictions are held to."""

import tensorflow as tf


def of(kind: str, labels: tf.Tensor, num_classes: int) -> tf.Tensor:
  """Returns float32 `[K]`, pi.

  Args:
    kind: 'uniform' over classes, or the shares of the client's own 'labels', 0 without any.
    labels: int32 `[n_c]`.
    num_classes: K.
  """
  if kind == 'uniform':
    return tf.fill([num_classes], 1 / num_classes)
  counts = tf.math.unsorted_segment_sum(tf.ones_like(labels, tf.float32), labels, num_classes)
  return tf.math.divide_no_nan(counts, tf.reduce_sum(counts))
