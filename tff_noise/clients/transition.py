"""Estimates of a client's label transition matrix, `T[i, j] = P(noisy label j | true class i)`.

From the predictions of a network that was trained on the noisy labels. Rows are distributions; of a
class about which nothing was found, the row of the identity.
"""

import tensorflow as tf

from tff_noise.clients import loops

# The share of predictions of a class that is passed over for outliers.
_QUANTILE = 0.97


def confident_counts(p: tf.Tensor, labels: tf.Tensor, confidence: float) -> tf.Tensor:
  """Returns int32 `[K, K]`, `C[i, j] = #{x: max p > confidence, argmax p = i, y = j}`.

  FedDPCont's, section 9.2: confident predictions are taken for true classes.

  Args:
    p: float32 `[n, K]`, probabilities.
    labels: int32 `[n]`, y.
    confidence: In [0, 1); a prediction of exactly this does not count.
  """
  num_classes = p.shape[1]
  is_confident = tf.cast(tf.reduce_max(p, axis=1) > confidence, tf.int32)
  cell = tf.argmax(p, axis=1, output_type=tf.int32) * num_classes + labels
  counts = tf.math.unsorted_segment_sum(is_confident, cell, num_classes**2)
  return tf.reshape(counts, [num_classes, num_classes])


def normalised(counts: tf.Tensor) -> tf.Tensor:
  """Returns float32 `[K, K]`, rows divided by their sums; those of the identity where that is 0."""
  counts = tf.cast(counts, tf.float32)
  sums = tf.reduce_sum(counts, axis=1, keepdims=True)
  return tf.where(sums > 0, tf.math.divide_no_nan(counts, sums), tf.eye(counts.shape[0]))


def anchors(p: tf.Tensor, choice: str) -> tf.Tensor:
  """Returns float32 `[K, K]`: row i is the prediction for the example that looks most like class i.

  Patrini et al. 2017, equation 12, with all of the client's examples; 0 without any. Rows are not
  divided by their sums yet, which are 1 but for what `choice` has set to 0.

  Args:
    p: float32 `[n, K]`, probabilities.
    choice: Which example, by p_i: the 'largest'; or 'filtered', the largest below the 97 %
      quantile; or 'code', the same of the public code, which sets what it passes over to 0 in p
      itself, for all classes that follow: so a row may lack what it is most certain of.
  """
  num_classes, n = p.shape[1], tf.shape(p)[0]
  # numpy.percentile(..., method='higher')
  place = tf.cast(tf.math.ceil(_QUANTILE * tf.cast(n - 1, tf.float64) - 1e-9), tf.int32)

  def of_class(i, carried):
    p, rows = carried
    column = p[:, i]
    if choice != 'largest':
      column = tf.where(column >= tf.sort(column)[place], 0.0, column)
    if choice == 'code':
      p = tf.where(tf.equal(tf.range(num_classes), i), column[:, tf.newaxis], p)
    row = p[tf.argmax(column, output_type=tf.int32)]
    return p, tf.tensor_scatter_nd_update(rows, [[i]], [row])

  none = tf.zeros([num_classes, num_classes])
  return tf.cond(
      n > 0, lambda: loops.repeat(num_classes, of_class, (p, none))[1], lambda: none
  )


def without_flips(transition: tf.Tensor, keep_probability: float) -> tf.Tensor:
  """Returns float32 `[K, K]`, T before labels were flipped: `(T - b) / (a - b)`, at least 0.

  Args:
    transition: float32 `[K, K]`, T of labels that were flipped.
    keep_probability: a; 1 if none was.
  """
  if keep_probability == 1:
    return transition
  other = (1 - keep_probability) / (transition.shape[0] - 1)
  return normalised(tf.maximum((transition - other) / (keep_probability - other), 0.0))
