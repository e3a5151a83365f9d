"""Losses, as pure functions of logits and labels.

Each returns the mean over the batch, float32 `[]`; logits are float32 `[b, K]`.
"""

import tensorflow as tf


def cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
  """Mean of `-log softmax(logits)[label]` for labels int32 `[b]`."""
  return tf.reduce_mean(
      tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
  )


def floored_log_probabilities(logits: tf.Tensor, floor: float) -> tf.Tensor:
  """`log(softmax(logits) + floor)`, float32 `[b, K]`, bounded below by `log(floor)`.

  A contrastive loss without it is linear in the logits: `CE(y) - CE(y') = z_y' - z_y`, unbounded
  below, with a gradient that never fades.
  """
  return tf.math.log(tf.nn.softmax(logits) + floor)


def contrastive_cross_entropy(
    logits: tf.Tensor, labels: tf.Tensor, contrast: tf.Tensor, *, weight: tf.Tensor, floor: float
) -> tf.Tensor:
  """FedDPCont, equation 2: `l(f(x), y) - beta * l(f(x), y')`, with a floor under probabilities.

  Args:
    logits: float32 `[b, K]`.
    labels: int32 `[b]`, y.
    contrast: float32 `[b or 1, K]`, how much each class is pushed away: one-hot rows for drawn labels
      y', or the distribution they would be drawn from, which has the same mean and no sampling
      noise.
    weight: beta.
    floor: See `floored_log_probabilities`.
  """
  log_p = floored_log_probabilities(logits, floor)
  attraction = -tf.gather(log_p, labels, axis=1, batch_dims=1)
  repulsion = -tf.reduce_sum(contrast * log_p, axis=1)
  return tf.reduce_mean(attraction - weight * repulsion)
