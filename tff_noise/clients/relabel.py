"""Which labels FedCorr replaces, and by what."""

import tensorflow as tf

# A softmax of float32 is exact to a few units of its last digit, which differ between kinds of CPU.
_ROUNDING = 1e-6


def largest_losses(losses: tf.Tensor, candidates: tf.Tensor, ratio: float) -> tf.Tensor:
  """FedCorr, equation 6: `argmax_{D' in D_n, |D'| = pi |D_n|} L_CE(D')`.

  The `floor(pi |D_n|)` candidates of the largest losses; of equal losses the first. The public code
  rounds down as well, `int()`, but ranks all examples of the client and not the candidates alone.

  Args:
    losses: float32 `[n]`, finite.
    candidates: bool `[n]`, D_n: the examples that the losses' mixture calls noisy.
    ratio: pi, from 0 to 1.

  Returns:
    bool `[n]`, true for some of the candidates.
  """
  # A product just below a whole number counts as one: 0.29 * 100 is 28.999999999999996.
  size = tf.math.count_nonzero(candidates, dtype=tf.int32)
  count = tf.cast(tf.floor(tf.cast(size, tf.float64) * ratio + 1e-9), tf.int32)
  ranked = tf.where(candidates, losses, tf.constant(-float('inf'), losses.dtype))
  order = tf.argsort(ranked, direction='DESCENDING', stable=True)
  return tf.logical_and(tf.math.invert_permutation(order) < count, candidates)


def relabel(
    labels: tf.Tensor, predictions: tf.Tensor, chosen: tf.Tensor, confidence: float, strict: bool
) -> tf.Tensor:
  """FedCorr, equation 7: `y <- argmax f_G(x)` for the chosen x with `max f_G(x) >= theta`.

  Args:
    labels: int32 `[n]`, y.
    predictions: float32 `[n, K]`, probabilities f_G(x) of the global model. A NaN is never
      confident: its label stays.
    chosen: bool `[n]`, such as from `largest_losses`.
    confidence: theta.
    strict: Whether the maximum has to exceed theta, as in the public code and in the words of the
      paper; reaching it suffices in equation 7.

  Returns:
    int32 `[n]`.
  """
  largest = tf.reduce_max(predictions, axis=1)
  # What is equal but for rounding is equal.
  confident = largest > confidence + _ROUNDING if strict else largest >= confidence - _ROUNDING
  predicted = tf.argmax(predictions, axis=1, output_type=labels.dtype)
  return tf.where(tf.logical_and(chosen, confident), predicted, labels)
