"""Losses, as pure functions of logits and labels.

Each returns the mean over the batch, float32 `[]`; logits are float32 `[b, K]`.
"""

import math

import tensorflow as tf


def cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
  """Mean of `-log softmax(logits)[label]` for labels int32 `[b]`."""
  return tf.reduce_mean(
      tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
  )


def contrastive_cross_entropy(
    logits: tf.Tensor, labels: tf.Tensor, contrast: tf.Tensor, *, weight, floor: float
) -> tf.Tensor:
  """FedDPCont, equation 2: `l(f(x), y) - beta * l(f(x), y')` with drawn labels y'.

  Where y' has a probability below `floor`, its term is constant. Without that the loss at beta = 1
  is linear in the logits, `CE(y) - CE(y') = z_y' - z_y`: unbounded below, with a gradient that
  never fades.

  Args:
    logits: float32 `[b, K]`.
    labels: int32 `[b]`, y.
    contrast: int32 `[b]`, y'.
    weight: beta, a number or a scalar tensor.
    floor: Smallest probability of y' that is still pushed down.
  """
  attraction = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
  repulsion = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=contrast, logits=logits)
  return tf.reduce_mean(attraction - weight * tf.minimum(repulsion, -math.log(floor)))


def expected_contrastive_cross_entropy(
    logits: tf.Tensor, labels: tf.Tensor, prior: tf.Tensor, *, weight, floor: float
) -> tf.Tensor:
  """The expectation of `contrastive_cross_entropy` over y' drawn from `prior`, float32 `[K]`.

  It has the same mean and no sampling noise.
  """
  log_p = tf.nn.log_softmax(logits)
  attraction = -tf.gather(log_p, labels, axis=1, batch_dims=1)
  repulsion = -tf.linalg.matvec(tf.maximum(log_p, math.log(floor)), prior)
  return tf.reduce_mean(attraction - weight * repulsion)
