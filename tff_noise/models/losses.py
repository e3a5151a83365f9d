"""Losses, as pure functions of logits and labels.

Each returns the mean over the batch, float32 `[]`; logits are float32 `[b, K]`. What `l` stands for
in the papers' equations is `types.CrossEntropy`: plain, or smoothed and tempered as in ClipFL.
"""

import math

import tensorflow as tf

from tff_noise import types

_PLAIN = types.CrossEntropy()


def _class_losses(logits, form):
  """float32 `[b, K]`, the loss of every possible label.

  `l(k) = -(1 - s) log p_k - (s / K) sum_j log p_j` with `p = softmax(z / T)`, or, of labels that
  were flipped, `(a - b) softmax(z / T) + b`.
  """
  log_p = tf.nn.log_softmax(logits / form.temperature)
  if form.keep_probability < 1:
    other = (1 - form.keep_probability) / (logits.shape[-1] - 1)
    log_p = tf.math.log((form.keep_probability - other) * tf.exp(log_p) + other)
  s = form.label_smoothing
  values = -(1 - s) * log_p - s * tf.reduce_mean(log_p, axis=1, keepdims=True)
  return values * _gradient_scale(form)


def _gradient_scale(form):
  # Both gradients of z / T carry a factor 1 / T; distillation restores their size by T^2.
  return form.temperature**2 if form.temperature_reading == 'rescale' else 1.0


def _example_losses(logits, labels, form):
  """float32 `[b]`, the loss of the given labels."""
  if form.label_smoothing == 0 and form.temperature == form.keep_probability == 1:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
  return tf.gather(_class_losses(logits, form), labels, axis=1, batch_dims=1)


def cross_entropy(
    logits: tf.Tensor, labels: tf.Tensor, form: types.CrossEntropy = _PLAIN
) -> tf.Tensor:
  """Mean of `l(logits, label)` for labels int32 `[b]`."""
  return tf.reduce_mean(_example_losses(logits, labels, form))


def contrastive_cross_entropy(
    logits: tf.Tensor,
    labels: tf.Tensor,
    contrast: tf.Tensor,
    *,
    weight,
    floor: float,
    form: types.CrossEntropy = _PLAIN,
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
    form: What l is.
  """
  attraction = _example_losses(logits, labels, form)
  repulsion = _example_losses(logits, contrast, form)
  return tf.reduce_mean(attraction - weight * tf.minimum(repulsion, -math.log(floor)))


def expected_contrastive_cross_entropy(
    logits: tf.Tensor,
    labels: tf.Tensor,
    prior: tf.Tensor,
    *,
    weight,
    floor: float,
    form: types.CrossEntropy = _PLAIN,
) -> tf.Tensor:
  """The expectation of `contrastive_cross_entropy` over y' drawn from `prior`, float32 `[K]`.

  It has the same mean and no sampling noise.
  """
  losses = _class_losses(logits, form)
  attraction = tf.gather(losses, labels, axis=1, batch_dims=1)
  repulsion = tf.linalg.matvec(tf.minimum(losses, -math.log(floor)), prior)
  return tf.reduce_mean(attraction - weight * repulsion)
