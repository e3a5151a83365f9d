"""Losses, as pure functions of logits and labels.

Each but `example_losses` and `log_mean_prediction` returns the mean over the batch, float32 `[]`;
logits are float32 `[b, K]`. What `l` stands for in the papers' equations is `types.CrossEntropy`:
plain, or smoothed and tempered as in ClipFL.
"""

import math

import tensorflow as tf

from tff_noise import types

_PLAIN = types.CrossEntropy()
# A q that float32 rounds to 0 would make 0 / 0 of the generalised cross-entropy; long before, it is
# the cross-entropy to the last digit.
_SMALLEST_Q = 1e-30
# Of a transition matrix, so that its logarithm is finite, and of what is divided by.
_SMALLEST_ENTRY, _SMALLEST_DIVISOR = 1e-30, 1e-8
# What the reverse cross-entropy takes for log 0.
_LOG_ZERO = math.log(1e-4)


def _log_probabilities(logits, form):
  """float32 `[b, K]`, log p: `p = softmax(z / T)`; of labels that were flipped `(a - b) p + b`."""
  log_p = tf.nn.log_softmax(logits / form.temperature)
  if form.keep_probability < 1:
    other = (1 - form.keep_probability) / (logits.shape[-1] - 1)
    log_p = tf.math.log((form.keep_probability - other) * tf.exp(log_p) + other)
  return log_p


def _smoothed(values, form):
  """float32 `[b, K]`, `(1 - s) l(k) + (s / K) sum_j l(j)` of the losses l of every label."""
  s = form.label_smoothing
  values = (1 - s) * values + s * tf.reduce_mean(values, axis=1, keepdims=True)
  return values * _gradient_scale(form)


def _class_losses(logits, form):
  """float32 `[b, K]`, the loss of every possible label."""
  return _smoothed(-_log_probabilities(logits, form), form)


def _gradient_scale(form):
  # Both gradients of z / T carry a factor 1 / T; distillation restores their size by T^2.
  return form.temperature**2 if form.temperature_reading == 'rescale' else 1.0


def example_losses(
    logits: tf.Tensor, labels: tf.Tensor, form: types.CrossEntropy = _PLAIN
) -> tf.Tensor:
  """float32 `[b]`, `l(logits, label)` of each example, for labels int32 `[b]`."""
  if form.label_smoothing == 0 and form.temperature == form.keep_probability == 1:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
  return tf.gather(_class_losses(logits, form), labels, axis=1, batch_dims=1)


def cross_entropy(
    logits: tf.Tensor, labels: tf.Tensor, form: types.CrossEntropy = _PLAIN
) -> tf.Tensor:
  """Mean of `l(logits, label)` for labels int32 `[b]`."""
  return tf.reduce_mean(example_losses(logits, labels, form))


def soft_cross_entropy(
    logits: tf.Tensor, targets: tf.Tensor, form: types.CrossEntropy = _PLAIN
) -> tf.Tensor:
  """Mean of `sum_k t_k l(logits, k)` for targets t, float32 `[b, K]`; no gradient is stopped."""
  return tf.reduce_mean(tf.reduce_sum(targets * _class_losses(logits, form), axis=1))


def entropy(logits: tf.Tensor) -> tf.Tensor:
  """Mean of `-sum_j p_j log p_j`, from 0 to log K."""
  log_p = tf.nn.log_softmax(logits)
  return -tf.reduce_mean(tf.reduce_sum(tf.exp(log_p) * log_p, axis=1))


def log_mean_prediction(logits: tf.Tensor) -> tf.Tensor:
  """float32 `[K]`, the logarithm of the batch's mean p; finite where each p is nearly 0."""
  log_sum = tf.reduce_logsumexp(tf.nn.log_softmax(logits), axis=0)
  return log_sum - tf.math.log(tf.cast(tf.shape(logits)[0], tf.float32))


def generalised_cross_entropy(
    logits: tf.Tensor, labels: tf.Tensor, *, q: float, form: types.CrossEntropy = _PLAIN
) -> tf.Tensor:
  """Mean of `L_q = (1 - p_y^q) / q` (Zhang and Sabuncu 2018): GCE.

  `q -> 0` is cross-entropy, `q = 1` is `1 - p_y`, half the mean absolute error. The gradient is
  that of cross-entropy times p_y^q. It is computed from log p_y, as `-expm1(q log p_y) / q`: a
  power of a p_y that float32 rounds to 0 has the gradient `0 * inf`, and for small q the difference
  from 1 has no digits.

  Args:
    logits: float32 `[b, K]`.
    labels: int32 `[b]`, y.
    q: In (0, 1].
    form: What p is, and whether labels are smoothed: `-log p` in its l is replaced by L_q.
  """
  values = _generalised_losses(logits, q, form)
  return tf.reduce_mean(tf.gather(values, labels, axis=1, batch_dims=1))


def soft_generalised_cross_entropy(
    logits: tf.Tensor,
    targets: tf.Tensor,
    *,
    q: float | tf.Tensor,
    form: types.CrossEntropy = _PLAIN,
) -> tf.Tensor:
  """Mean of `sum_k t_k (1 - p_k^q) / q` for targets t, float32 `[b, K]`; q may be computed."""
  return tf.reduce_mean(tf.reduce_sum(targets * _generalised_losses(logits, q, form), axis=1))


def _generalised_losses(logits, q, form):
  """float32 `[b, K]`, L_q of every possible label."""
  q = tf.maximum(tf.cast(q, tf.float32), _SMALLEST_Q)
  return _smoothed(-tf.math.expm1(q * _log_probabilities(logits, form)) / q, form)


def symmetric_cross_entropy(
    logits: tf.Tensor,
    labels: tf.Tensor,
    *,
    forward: float,
    reverse: float,
    form: types.CrossEntropy = _PLAIN,
) -> tf.Tensor:
  """Mean of `alpha CE + beta RCE` (Wang et al. 2019), the symmetric cross-entropy.

  The reverse one has prediction and label in each other's place, and 1e-4 for the zeros of the
  label: `RCE = -sum_j p_j log max([j = y], 1e-4) = 9.21 (1 - p_y)`.

  Args:
    logits: float32 `[b, K]`.
    labels: int32 `[b]`, y.
    forward: alpha.
    reverse: beta.
    form: What p is, and whether labels are smoothed: both terms of every label are.
  """
  log_p = _log_probabilities(logits, form)
  values = _smoothed(-forward * log_p - reverse * _LOG_ZERO * (1 - tf.exp(log_p)), form)
  return tf.reduce_mean(tf.gather(values, labels, axis=1, batch_dims=1))


def forward_corrected_cross_entropy(
    logits: tf.Tensor, labels: tf.Tensor, transition: tf.Tensor, form: types.CrossEntropy = _PLAIN
) -> tf.Tensor:
  """Mean of `-log (T^T p)_y` (Patrini et al. 2017): forward correction.

  Its gradient is `p - p o T[:, y] / (T^T p)_y`. Entries of T are at least 1e-30, so that a label
  which T excludes has a finite loss.

  Args:
    logits: float32 `[b, K]`.
    labels: int32 `[b]`, y.
    transition: float32 `[K, K]`, T; its rows, true classes, are distributions of noisy labels.
    form: What p is, and whether labels are smoothed; labels that were flipped, were so after T.
  """
  log_t = tf.math.log(tf.maximum(_flipped(transition, form), _SMALLEST_ENTRY))
  log_p = tf.nn.log_softmax(logits / form.temperature)
  log_q = tf.reduce_logsumexp(log_p[:, :, tf.newaxis] + log_t, axis=1)  # log T^T p
  return tf.reduce_mean(tf.gather(_smoothed(-log_q, form), labels, axis=1, batch_dims=1))


def backward_corrected_cross_entropy(
    logits: tf.Tensor, labels: tf.Tensor, transition: tf.Tensor, form: types.CrossEntropy = _PLAIN
) -> tf.Tensor:
  """Mean of `sum_j (T^-1)[y, j] (-log p_j)` (Patrini et al. 2017): backward correction.

  Over noisy labels its expectation is the loss of the true one, `T l_B = -log p`. It has no lower
  bound. A T without an inverse has its pseudo-inverse. Arguments are those of
  `forward_corrected_cross_entropy`.
  """
  inverse = tf.linalg.pinv(_flipped(transition, form))
  log_p = tf.nn.log_softmax(logits / form.temperature)
  values = _smoothed(-tf.matmul(log_p, inverse, transpose_b=True), form)
  return tf.reduce_mean(tf.gather(values, labels, axis=1, batch_dims=1))


def reweighted_cross_entropy(
    logits: tf.Tensor,
    labels: tf.Tensor,
    transition: tf.Tensor,
    *,
    attached: bool,
    form: types.CrossEntropy = _PLAIN,
) -> tf.Tensor:
  """Mean of `beta_i l(z_i, y_i)`, `beta_i = p_i[y_i] / (T^T p_i)[y_i]` (Xia et al. 2019).

  Args:
    logits: float32 `[b, K]`.
    labels: int32 `[b]`, y.
    transition: float32 `[K, K]`, T; its rows need not be distributions.
    attached: Whether beta has a gradient.
    form: What l and p are; labels that were flipped, were so after T.
  """
  p = tf.nn.softmax(logits / form.temperature)
  q = tf.maximum(tf.matmul(p, _flipped(transition, form)), _SMALLEST_DIVISOR)
  beta = tf.gather(p / q, labels, axis=1, batch_dims=1)
  if not attached:
    beta = tf.stop_gradient(beta)
  plain = form._replace(keep_probability=1.0)
  return tf.reduce_mean(beta * example_losses(logits, labels, plain))


def _flipped(transition, form):
  """float32 `[K, K]`, T, or that of labels which were flipped after it, `(a - b) T + b`."""
  if form.keep_probability == 1:
    return transition
  other = (1 - form.keep_probability) / (transition.shape[-1] - 1)
  return (form.keep_probability - other) * transition + other


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
  attraction = example_losses(logits, labels, form)
  repulsion = example_losses(logits, contrast, form)
  largest = -math.log(floor) * _gradient_scale(form)
  return tf.reduce_mean(attraction - weight * tf.minimum(repulsion, largest))


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
  largest = -math.log(floor) * _gradient_scale(form)
  repulsion = tf.linalg.matvec(tf.minimum(losses, largest), prior)
  return tf.reduce_mean(attraction - weight * repulsion)
