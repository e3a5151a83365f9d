"""A mixture of two Gaussians on the line, fitted by EM inside a TensorFlow graph.

Methods split a client's examples by their losses with
`sklearn.mixture.GaussianMixture(n_components=2)`; losses stay on the client, so the fit has to run
in its computation.
"""

import math
from typing import NamedTuple

import tensorflow as tf

# Added to a component's summed responsibilities, which are divided by. scikit-learn's value.
_MIN_COUNT = 10 * 2.0**-52


class Settings(NamedTuple):
  """How EM runs; the defaults are scikit-learn's.

  Attributes:
    reg_covar: Added to each variance.
    tolerance: Change of the mean log-likelihood at which EM stops.
    max_iterations: The most iterations.
  """

  reg_covar: float = 1e-6
  tolerance: float = 1e-3
  max_iterations: int = 100


_DEFAULTS = Settings()
# DivideMix's (Li et al., ICLR 2020).
DIVIDEMIX = Settings(reg_covar=5e-4, tolerance=1e-2, max_iterations=10)


class Mixture(NamedTuple):
  """Two components, in the order of their means.

  Float64, as in float32 two narrow components far from 0 would lose their distance.

  Attributes:
    means: float64 `[2]`, ascending.
    variances: float64 `[2]`, at least `Settings.reg_covar`.
    weights: float64 `[2]`, with sum 1.
    log_likelihood: float64 `[]`, the mean over the points that EM stopped at: scikit-learn's
      `lower_bound_`, that of the parameters before the last M-step.
    iterations: int32 `[]`, 0 where there was nothing to separate.
  """

  means: tf.Tensor
  variances: tf.Tensor
  weights: tf.Tensor
  log_likelihood: tf.Tensor
  iterations: tf.Tensor


def given(means: tf.Tensor, variances: tf.Tensor, weights: tf.Tensor) -> Mixture:
  """Returns a mixture that was not fitted here; the arguments, `[2]`, are its attributes."""
  values = (tf.cast(v, tf.float64) for v in (means, variances, weights))
  return Mixture(*values, tf.constant(-math.inf, tf.float64), tf.constant(0))


def fit(
    x: tf.Tensor, settings: Settings = _DEFAULTS, start: Mixture | None = None
) -> Mixture:
  """Fits `p(x) = sum_j w_j N(x; m_j, v_j)` by EM from the best split into two clusters.

  The same steps and stopping rule as scikit-learn 1.x. Only the start differs: the optimum of
  2-means, which on the line is found exactly, where scikit-learn takes the result of one randomly
  started k-means. So the result is a function of the points alone, in any order.

  Fewer than two distinct values are one component: both means are that value (0 for n = 0), and the
  weight of the second is 0.

  Args:
    x: float32 `[n]`. The caller guarantees finite values; with others the loop ends, but nothing is
      promised of the result.
    settings: How EM runs.
    start: Where EM starts instead.
  """
  # Sorted for the split, and so that even the rounding of sums does not depend on the order.
  x = tf.sort(tf.cast(x, tf.float64))
  separable = tf.reduce_max(x) > tf.reduce_min(x)
  reg = settings.reg_covar
  if start is None:
    start = given(*_m_step(x, _best_split(x), reg))

  def unfinished(mixture, change):
    del mixture
    return tf.abs(change) >= settings.tolerance

  def step(mixture, change):
    del change
    log_densities = _log_densities(x, mixture)
    total = tf.reduce_logsumexp(log_densities, axis=1)
    log_likelihood = tf.reduce_mean(total)
    parameters = _m_step(x, tf.exp(log_densities - total[:, tf.newaxis]), reg)
    new = Mixture(*parameters, log_likelihood, mixture.iterations + 1)
    return new, log_likelihood - mixture.log_likelihood

  first_change = tf.where(separable, tf.constant(math.inf, tf.float64), 0.0)
  mixture, _ = tf.while_loop(
      unfinished, step, (start, first_change), maximum_iterations=settings.max_iterations
  )
  one = _one_component(x, reg)
  return Mixture(*(tf.where(separable, a, b) for a, b in zip(_sorted(mixture), one, strict=True)))


def larger_component(x: tf.Tensor, mixture: Mixture) -> tf.Tensor:
  """bool `[n]`, where the component of the larger mean has a posterior above 1 / 2.

  This is no threshold on x: where the variances differ, both tails belong to the wider component,
  so that a wide component of large losses also takes the very smallest ones, as in the public code.

  Args:
    x: float32 `[n]`, finite.
    mixture: From `fit`.
  """
  log_densities = _log_densities(tf.cast(x, tf.float64), mixture)
  return log_densities[:, 1] > log_densities[:, 0]


def smaller_posterior(x: tf.Tensor, mixture: Mixture) -> tf.Tensor:
  """float32 `[n]`, the posterior of the component of the smaller mean; 1 where there is but one.

  Args:
    x: float32 `[n]`, finite.
    mixture: From `fit`.
  """
  log_densities = _log_densities(tf.cast(x, tf.float64), mixture)
  log_posterior = log_densities[:, 0] - tf.reduce_logsumexp(log_densities, axis=1)
  return tf.cast(tf.exp(log_posterior), tf.float32)


def clean_posterior(losses: tf.Tensor, settings: Settings = DIVIDEMIX) -> tf.Tensor:
  """float32 `[n]`, how likely examples are clean: the posterior of the small losses.

  Of a mixture of the losses, scaled to [0, 1] as in DivideMix. Equal losses are all clean: in
  public code they are 0 / 0.

  Args:
    losses: float32 `[n]`, finite.
    settings: How EM runs.
  """
  scaled = min_max(losses)
  return smaller_posterior(scaled, fit(scaled, settings))


def min_max(x: tf.Tensor) -> tf.Tensor:
  """float32 `[n]`, `(x - min x) / (max x - min x)`; 0 where all are equal."""
  low, high = tf.reduce_min(x), tf.reduce_max(x)
  return tf.math.divide_no_nan(x - low, high - low)


def _best_split(x):
  """float64 `[n, 2]`, zeros and ones: the two clusters of least within-cluster squares.

  Optimal clusters on the line are intervals, so the n - 1 splits of the sorted x are all there are.
  Least squares within are largest squares between, `m (n - m) / n * (mean_1 - mean_2)^2`.
  """
  n = tf.size(x)
  m = tf.range(1, tf.maximum(n, 1))
  left, right = tf.cast(m, tf.float64), tf.cast(n - m, tf.float64)
  # Centred, so that the sums keep their digits.
  sums = tf.cumsum(x - _mean(x))
  means = sums[:-1] / left, (sums[-1:] - sums[:-1]) / right
  between = left * right * tf.math.squared_difference(*means)
  # One more entry for n < 2, where there is no split and nothing exceeds the threshold.
  best = tf.argmax(tf.concat([between, [-1.0]], axis=0))
  threshold = tf.gather(tf.concat([x, [math.inf]], axis=0), best)
  # By value and not by position, so that equal values stay together.
  exceeds = tf.cast(x > threshold, tf.float64)
  return tf.stack([1 - exceeds, exceeds], axis=1)


def _mean(x):
  """float64 `[]`, 0 for n = 0."""
  return tf.math.divide_no_nan(tf.reduce_sum(x), tf.cast(tf.size(x), tf.float64))


def _m_step(x, responsibilities, reg_covar):
  """Means, variances and weights, float64 `[2]` each, from responsibilities `[n, 2]`."""
  counts = tf.reduce_sum(responsibilities, axis=0) + _MIN_COUNT
  means = tf.linalg.matvec(responsibilities, x, transpose_a=True) / counts
  squares = tf.math.squared_difference(x[:, tf.newaxis], means)
  variances = tf.reduce_sum(responsibilities * squares, axis=0) / counts + reg_covar
  return means, variances, counts / tf.reduce_sum(counts)


def _log_densities(x, mixture):
  """float64 `[n, 2]`, `log(w_j N(x; m_j, v_j))`."""
  squares = tf.math.squared_difference(x[:, tf.newaxis], mixture.means) / mixture.variances
  norms = tf.math.log(2 * math.pi * mixture.variances)
  return tf.math.log(mixture.weights) - (norms + squares) / 2


def _sorted(mixture):
  # EM may exchange the order of the components it started from.
  order = tf.argsort(mixture.means, stable=True)
  parameters = (mixture.means, mixture.variances, mixture.weights)
  return Mixture(*(tf.gather(p, order) for p in parameters), *mixture[3:])


def _one_component(x, reg_covar):
  """The mixture of equal values, or of none."""
  mean = _mean(x)
  variance = tf.constant(reg_covar, tf.float64)
  return Mixture(
      means=tf.stack([mean, mean]),
      variances=tf.stack([variance, variance]),
      weights=tf.constant([1.0, 0.0], tf.float64),
      log_likelihood=-tf.math.log(2 * math.pi * variance) / 2,
      iterations=tf.constant(0),
  )
