"""Local intrinsic dimension (LID) of a client's predictions, FedCorr's sign of label noise.

The predictions of a model trained on clean labels gather around few points; noise scatters them, so
that around each the number of neighbours grows faster with the radius: in more dimensions.
"""

import tensorflow as tf

# An infinite estimate, from neighbours all equally far, becomes this. More than any dimension that
# K <= 100 predicted probabilities, K - 1 of them free, can have.
MAX_DIMENSION = 100.0

# Floor of r_i / r_max, so that one exact duplicate is one very near neighbour. The public code adds
# the same 1e-6 to r_max and to the sum of logarithms, not to r_i: there a duplicate makes the
# logarithm -inf and the point's LID 0, however its other neighbours lie.
_MIN_RATIO = 1e-6

# Differences of coordinates held at a time, 8 bytes each.
_BLOCK_ENTRIES = 2**20


def lid_scores(predictions: tf.Tensor, neighbours: int) -> tf.Tensor:
  """FedCorr, equation 2: `LID(x) = -((1 / k) sum_i log(r_i(x) / r_max(x)))^-1`.

  r_1, ..., r_k are the distances from x to its k nearest other points, r_max the largest of them.
  If x has d dimensions around it, the estimate's mean is `d * k / (k - 2)` (its k - 1 terms that
  are not 0 are independent and exponential with mean 1 / d), so 11 % too large at the paper's
  k = 20; near the edge of the points' support it is too small.

  Scores do not change if all points are moved or scaled. Where equation 2 is undefined:

  *   k or fewer points: the n - 1 others are the neighbours and n - 1 replaces k. One neighbour
      alone is at distance r_max: `MAX_DIMENSION`. No neighbour: 0.
  *   Duplicates of x: `r_i / r_max` is at least 1e-6. All k neighbours duplicates: 0, a point.
  *   Neighbours all equally far, so that the sum is 0: `MAX_DIMENSION`, which bounds every score.

  Every entry is compared with every other, O(n^2 K) time, in blocks of O(n K) memory. Subtracting
  coordinate by coordinate in float64, and not by `|a|^2 + |b|^2 - 2ab`, keeps all digits of how the
  near-duplicates differ that a saturated softmax gives.

  Args:
    predictions: float32 `[n, K]`, finite; the model's output f(x) for each example.
    neighbours: k, at least 2.

  Returns:
    float32 `[n]`, in the examples' order, finite, from 0 to `MAX_DIMENSION`.
  """
  points = tf.cast(predictions, tf.float64)
  n, dimensions = tf.unstack(tf.shape(points, tf.int64))
  k = tf.cast(tf.clip_by_value(n - 1, 0, neighbours), tf.int32)
  block = tf.maximum(_BLOCK_ENTRIES // tf.maximum(n * dimensions, 1), 1)

  def add_block(scores):
    start = tf.size(scores, tf.int64)
    rows = tf.range(start, tf.minimum(start + block, n))
    return [tf.concat([scores, _scores(_nearest_squares(points, rows, k))], axis=0)]

  [scores] = tf.while_loop(
      lambda scores: tf.size(scores, tf.int64) < n,
      add_block,
      [tf.zeros([0], tf.float64)],
      shape_invariants=[tf.TensorShape([None])],
      parallel_iterations=1,  # Each would hold a block.
  )
  return tf.cast(scores, tf.float32)


def lid_score(predictions: tf.Tensor, neighbours: int) -> tf.Tensor:
  """A client's LID score: the mean of `lid_scores` over its examples, float32 `[]`.

  0 for a client without examples. See `lid_scores` for the arguments.
  """
  scores = lid_scores(predictions, neighbours)
  return tf.math.divide_no_nan(tf.reduce_sum(scores), tf.cast(tf.size(scores), tf.float32))


def _nearest_squares(points, rows, k):
  """float64 `[rows, k]`, squared distances of some points to their nearest others, ascending."""
  x = tf.gather(points, rows)
  differences = tf.math.squared_difference(x[:, tf.newaxis, :], points[tf.newaxis, :, :])
  squares = tf.reduce_sum(differences, axis=2)
  # A point is no neighbour of itself, its duplicates are: told apart by index. Not by `==`, which
  # compares the Python objects inside TFF's graphs.
  itself = tf.equal(rows[:, tf.newaxis], tf.range(tf.shape(points, tf.int64)[0]))
  squares = tf.where(itself, tf.constant(float('inf'), tf.float64), squares)
  return -tf.math.top_k(-squares, k).values


def _scores(squares):
  """Equation 2 from squared distances, float64 `[rows, k]` to `[rows]`; k may be 0."""
  largest = tf.reduce_max(squares, axis=1, keepdims=True)
  ratios = tf.math.divide_no_nan(squares, largest)
  # log(r_i / r_max) is half the logarithm of the squares' ratio.
  logs = tf.math.log(tf.maximum(ratios, _MIN_RATIO**2)) / 2
  k = tf.cast(tf.shape(squares)[1], tf.float64)
  # Where the sum is 0 or almost, the second term keeps the quotient at the bound.
  scores = k / tf.maximum(-tf.reduce_sum(logs, axis=1), tf.maximum(k, 1) / MAX_DIMENSION)
  return tf.where(largest[:, 0] > 0, scores, tf.zeros_like(scores))
