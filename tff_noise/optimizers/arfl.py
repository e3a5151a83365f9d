"""Residual-based reweighting, what FedCorr's tables call ARFL (Fu et al. 2019, arXiv 1912.11464).

For each single weight of the model the server sorts the n clients' values y and lays a line through
(rank, y) by repeated medians; clients that lie far from the lines of many weights count little:

  `b = med_i med_{j != i} (y_j - y_i) / (j - i)`, `a = med y - b (n - 1) / 2`
  `r_i = y_i - (a + b rank_i)`, `e_i = r_i / s`, `s = 1.4826 (1 + 5 / (n - 1)) M + 1e-7`
  `v_i = min(1, lambda sqrt(2 / n) H_i / |e_i|)`
  `y_i <- a + b rank_i` where `v_i < delta`
  `c_i = sum over weights of v_i std(v)`, `w_{t+1} = sum_i c_i^2 y_i / sum_j c_j^2`

with M the median of |r| without the smallest and `H_i = sqrt(1 - h_i)`, h_i the leverage of rank_i.
This is the default of the public code (`IRLS_aggregation_split_restricted` of
fushuhao6/Attack-Resistant-Federated-Learning); the square of c is in the code alone. Numbers of
examples do not count. Moving statistics of batch norm are weights like all others. Medians of an
even number are the mean of the middle two. It shifts with y, so it works on updates as on models.

Where all v are 1 (identical clients, values on a line) std(v) = 0, and the public code divides 0 by
0; of three clients residuals are (x, 0, x), so that rounding alone would decide. Here it is the
unweighted mean where no c is above 0 and of fewer than four clients, and a std(v) below 1e-6 is 0.
Updates that are not finite are left out, as in the code.

The server sees each client's model. It finds models that lie apart from most, so it has nothing to
hold on to where most are noisy, and where clients hold different classes it gives the rare ones
little weight.
"""

import tensorflow as tf

from tff_noise.federated import optimizer
from tff_noise.federated import task as task_lib
from tff_noise.optimizers import parameters

# Weights of the model at a time: n^2 numbers of each are held, as in the public code.
_CHUNK = 2000
# Of fewer clients a line through their values says nothing.
_FEWEST = 4
# Below which a standard deviation of v is rounding.
_SMALLEST_STD = 1e-6


def _median(ordered):
  """`[...]`, of values `[n, ...]` in ascending order; the mean of the middle two of an even n."""
  n = tf.shape(ordered)[0]
  return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def repeated_median_line(ordered: tf.Tensor) -> tf.Tensor:
  """Returns float64 `[n, p]`, the line `a + b rank` through values that ascend in each column.

  Args:
    ordered: float64 `[n, p]`, n at least 2.
  """
  n = tf.shape(ordered)[0]
  rank = tf.cast(tf.range(n), ordered.dtype)
  run = rank[:, tf.newaxis] - rank
  rise = ordered[:, tf.newaxis] - ordered
  slopes = rise / tf.where(tf.equal(run, 0), tf.ones_like(run), run)[..., tf.newaxis]
  # The last in order, and left out: j = i.
  itself = tf.eye(n, dtype=tf.bool)[..., tf.newaxis]
  slopes = tf.sort(tf.where(itself, tf.constant(float('inf'), ordered.dtype), slopes), axis=0)
  b = _median(tf.sort(_median(slopes[:-1]), axis=0))
  a = _median(ordered) - b * (tf.cast(n, ordered.dtype) - 1) / 2
  return a + b * rank[:, tf.newaxis]


def confidence(ordered: tf.Tensor, line: tf.Tensor, weight: float) -> tf.Tensor:
  """Returns float64 `[n, p]`, v of values in ascending order.

  Args:
    ordered: float64 `[n, p]`, n at least 2.
    line: The same, from `repeated_median_line`.
    weight: lambda.
  """
  n = tf.cast(tf.shape(ordered)[0], ordered.dtype)
  residual = tf.abs(ordered - line)
  m = _median(tf.sort(residual, axis=0)[1:])
  s = 1.4826 * (1 + 5 / (n - 1)) * m + 1e-7
  rank = tf.range(n, dtype=ordered.dtype) - (n - 1) / 2
  leverage = 1 / n + rank**2 / tf.reduce_sum(rank**2)  # h
  reach = weight * tf.sqrt(2 / n) * tf.sqrt(tf.maximum(1 - leverage, 0))  # lambda sqrt(2 / n) H
  return tf.minimum(reach[:, tf.newaxis] / tf.maximum(residual / s, 1e-300), 1.0)


def reweighted(
    values: tf.Tensor, weight: float, threshold: float
) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns `v std(v)` of each client and weight, and y after those with v < delta are moved.

  Args:
    values: float64 `[n, p]`, y.
    weight: lambda.
    threshold: delta.
  """
  order = tf.argsort(values, axis=0, stable=True)
  ordered = tf.experimental.numpy.take_along_axis(values, order, axis=0)
  line = repeated_median_line(ordered)
  v = confidence(ordered, line, weight)
  restricted = tf.where(v < threshold, line, ordered)
  n = tf.cast(tf.shape(v)[0], v.dtype)
  std = tf.math.reduce_std(v, axis=0) * tf.sqrt(n / (n - 1))
  std = tf.where(std < _SMALLEST_STD, tf.zeros_like(std), std)
  back = tf.argsort(order, axis=0)
  return tuple(
      tf.experimental.numpy.take_along_axis(t, back, axis=0) for t in (v * std, restricted)
  )


def combine(
    updates: tf.Tensor, weights: tf.Tensor, p: parameters.ARFLParams
) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns float32 `[P]`, in place of the mean, and float32 `[k]`, the clients' shares in it.

  Args:
    updates: float32 `[k, P]`.
    weights: float32 `[k]`, 0 of those that are left out; they count no further.
    p: lambda and delta.
  """
  used = weights > 0
  rows = tf.boolean_mask(updates, used)
  n, size = tf.shape(rows)[0], tf.shape(rows)[1]
  chunks = (size + _CHUNK - 1) // _CHUNK
  # A column of zeros has v = 1 and std(v) = 0.
  padded = tf.pad(rows, [[0, 0], [0, chunks * _CHUNK - size]])
  by_chunk = tf.transpose(tf.reshape(padded, [n, chunks, _CHUNK]), [1, 0, 2])

  def of_chunk(values):
    scores, restricted = reweighted(tf.cast(values, tf.float64), p.weight, p.threshold)
    return tf.reduce_sum(scores, axis=1), tf.cast(restricted, tf.float32)

  def by_residuals():
    scores, restricted = tf.map_fn(
        of_chunk, by_chunk, fn_output_signature=(tf.float64, tf.float32)
    )
    c = tf.reduce_sum(scores, axis=0)
    c = tf.math.divide_no_nan(c, tf.reduce_max(c)) ** 2
    total = tf.reduce_sum(c)
    share = tf.where(total > 0, c / tf.maximum(total, 1e-300), 1 / tf.cast(n, tf.float64))
    share = tf.cast(share, tf.float32)
    return tf.reshape(tf.einsum('cnp,n->cp', restricted, share), [-1])[:size], share

  def unweighted():
    share = tf.fill([n], tf.math.divide_no_nan(1.0, tf.cast(n, tf.float32)))
    return tf.linalg.matvec(rows, share, transpose_a=True), share

  update, share = tf.cond(n >= _FEWEST, by_residuals, unweighted)
  return update, tf.scatter_nd(tf.where(used), share, tf.shape(weights, tf.int64))


def build(task: task_lib.Task, params: parameters.ARFLParams) -> optimizer.FederatedOptimizer:
  """FedAvg with residual-based reweighting in place of the mean."""
  return optimizer.fed_avg(task.model.weights_type)._replace(
      combine=lambda updates, weights: combine(updates, weights, params)[0]
  )
