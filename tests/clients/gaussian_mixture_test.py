"""Tests of the mixture of two Gaussians, against scikit-learn."""

import warnings

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized
from sklearn import cluster
from sklearn import exceptions
from sklearn import mixture

from tests import federated_test_case
from tff_noise.clients import gaussian_mixture

_SEEDS = range(30)


def _sample(seed, least_distance, most_distance):
  """float32 `[n]`, from a random mixture with means at most this far from each other."""
  rng = np.random.default_rng(seed)
  n = rng.integers(30, 400)
  deviations = rng.uniform(0.3, 1.2, 2)
  distance = rng.uniform(least_distance, most_distance)
  second = rng.uniform(size=n) < rng.uniform(0.2, 0.8)
  mean = np.where(second, distance, 0) + rng.normal()
  return rng.normal(mean, np.where(second, *deviations)).astype(np.float32)


def _column(x):
  # Public code and ours work in float64.
  return x.astype(np.float64)[:, np.newaxis]


def _fit(x):
  fitted = gaussian_mixture.fit(tf.constant(x, tf.float32))
  return gaussian_mixture.Mixture(*(t.numpy() for t in fitted))


def _larger(x, fitted):
  return gaussian_mixture.larger_component(tf.constant(x, tf.float32), fitted).numpy()


def _right_of_best_split(x):
  """bool `[n]`, by trying all splits."""
  values = np.sort(x.astype(np.float64))
  costs = [
      values[:m].var() * m + values[m:].var() * (len(x) - m) for m in range(1, len(values))
  ]
  return x > values[np.argmin(costs)]


def _from_best_split(x, **settings):
  """scikit-learn's mixture, started from the best split."""
  reg_covar = settings.get('reg_covar', 1e-6)
  right = _right_of_best_split(x)
  parts = [x[~right].astype(np.float64), x[right].astype(np.float64)]
  return mixture.GaussianMixture(
      2,
      weights_init=[len(p) / len(x) for p in parts],
      means_init=[[p.mean()] for p in parts],
      precisions_init=[[[1 / (p.var() + reg_covar)]] for p in parts],
      **settings,
  )


class AgainstScikitLearnTest(parameterized.TestCase):

  def _assert_same(self, x, theirs):
    with warnings.catch_warnings():
      # Stopped by the number of iterations: so does ours.
      warnings.simplefilter('ignore', exceptions.ConvergenceWarning)
      theirs = theirs.fit(_column(x))
    ours = _fit(x)
    order = np.argsort(theirs.means_[:, 0])
    np.testing.assert_allclose(ours.means, theirs.means_[order, 0], atol=1e-6)
    np.testing.assert_allclose(ours.variances, theirs.covariances_[order, 0, 0], rtol=1e-5)
    np.testing.assert_allclose(ours.weights, theirs.weights_[order], atol=1e-6)
    self.assertAlmostEqual(ours.log_likelihood, theirs.lower_bound_, places=8)
    self.assertEqual(ours.iterations, theirs.n_iter_)
    np.testing.assert_array_equal(_larger(x, ours), theirs.predict(_column(x)) == order[1])

  @parameterized.parameters(*_SEEDS)
  def test_same_fit_from_the_same_start(self, seed):
    # Down to no separation at all.
    x = _sample(seed, 0, 6)
    self._assert_same(x, _from_best_split(x))

  @parameterized.parameters(*_SEEDS)
  def test_same_fit_as_by_default_where_components_are_apart(self, seed):
    # Nearer ones: scikit-learn's k-means may stop a point or two before its optimum.
    x = _sample(seed, 4, 9)
    labels = cluster.KMeans(2, n_init=1, random_state=seed).fit(_column(x)).labels_
    found = labels == labels[np.argmax(x)]
    np.testing.assert_array_equal(found, _right_of_best_split(x))
    self._assert_same(x, mixture.GaussianMixture(2, random_state=seed))

  @parameterized.parameters(*_SEEDS)
  def test_split_is_the_best_of_all(self, seed):
    x = np.sort(_sample(seed, 0, 6))
    split = gaussian_mixture._best_split(tf.constant(x, tf.float64)).numpy()
    right = _right_of_best_split(x)
    np.testing.assert_array_equal(split, np.stack([~right, right], axis=1))

  def test_losses_of_half_noisy_labels(self):
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.exponential(0.1, 250), rng.normal(4, 1, 250)]).astype(np.float32)
    self._assert_same(x, _from_best_split(x))
    noisy = _larger(x, _fit(x))
    self.assertGreater(np.mean(noisy[250:]), 0.95)
    self.assertLess(np.mean(noisy[:250]), 0.1)

  @parameterized.parameters(1, 3, 50)
  def test_same_steps_from_a_given_start(self, steps):
    x = _sample(4, 1, 3)
    means, variances, weights = [0.2, 0.9], [0.5, 0.02], [0.3, 0.7]
    expected = mixture.GaussianMixture(
        2, max_iter=steps, tol=0, means_init=_column(np.array(means)), weights_init=weights,
        precisions_init=1 / np.array(variances)[:, np.newaxis, np.newaxis],
    )
    with warnings.catch_warnings():
      warnings.simplefilter('ignore', exceptions.ConvergenceWarning)
      expected.fit(_column(x))
    found = gaussian_mixture.fit(
        tf.constant(x), gaussian_mixture.Settings(tolerance=0.0, max_iterations=steps),
        gaussian_mixture.given(means, variances, weights),
    )
    order = expected.means_[:, 0].argsort()
    np.testing.assert_allclose(found.means, expected.means_[order, 0], rtol=1e-6)
    np.testing.assert_allclose(found.variances, expected.covariances_[order, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(found.weights, expected.weights_[order], rtol=1e-6)
    self.assertEqual(found.iterations.numpy(), steps)

  def test_stops_after_a_hundred_iterations(self):
    settings = gaussian_mixture.Settings(tolerance=0.0)
    fitted = gaussian_mixture.fit(tf.constant(_sample(0, 6, 6)), settings)
    self.assertEqual(fitted.iterations.numpy(), 100)

  @parameterized.parameters(np.nan, np.inf)
  def test_ends_even_where_a_value_is_not_finite(self, value):
    self.assertLessEqual(_fit([1, 2, 3, value]).iterations, 100)


class ByHandTest(parameterized.TestCase):

  def test_two_values(self):
    fitted = _fit([1, 3, 3, 3])
    np.testing.assert_allclose(fitted.means, [1, 3])
    np.testing.assert_allclose(fitted.variances, [1e-6, 1e-6])
    np.testing.assert_allclose(fitted.weights, [0.25, 0.75])
    entropy = 0.25 * np.log(0.25) + 0.75 * np.log(0.75)
    self.assertAlmostEqual(fitted.log_likelihood, entropy - np.log(2e-6 * np.pi) / 2)
    # The second step sees that the first changed nothing.
    self.assertEqual(fitted.iterations, 2)
    np.testing.assert_array_equal(_larger([3, 1, 3], fitted), [True, False, True])

  def test_two_points(self):
    np.testing.assert_array_equal(_larger([5, -1], _fit([5, -1])), [True, False])

  def test_wide_component_takes_both_tails(self):
    fitted = gaussian_mixture.Mixture(
        *(np.array(v, np.float64) for v in ([0, 1], [0.01, 4], [0.5, 0.5])), 0.0, 1
    )
    np.testing.assert_array_equal(_larger([-3, 0, 0.1, 3], fitted), [True, False, False, True])

  def test_fields(self):
    fitted = _fit(_sample(0, 3, 6))
    self.assertEqual([np.shape(f) for f in fitted], [(2,), (2,), (2,), (), ()])
    self.assertEqual([f.dtype for f in fitted], [np.float64] * 4 + [np.int32])

  @parameterized.parameters([[]], [[2.5]], [[2.5] * 7], [[0.0, -0.0]])
  def test_fewer_than_two_distinct_values_are_one_component(self, x):
    fitted = _fit(x)
    mean = np.mean(x) if x else 0
    np.testing.assert_allclose(fitted.means, [mean, mean])
    np.testing.assert_allclose(fitted.variances, [1e-6, 1e-6])
    np.testing.assert_array_equal(fitted.weights, [1, 0])
    self.assertTrue(np.isfinite(fitted.log_likelihood))
    self.assertEqual(fitted.iterations, 0)
    np.testing.assert_array_equal(_larger(x, fitted), np.zeros(len(x), bool))


class PointsTest(parameterized.TestCase):

  def test_permuted_points_have_the_same_mixture(self):
    x = _sample(3, 1, 3)
    order = np.random.default_rng(0).permutation(len(x))
    for one, other in zip(_fit(x), _fit(x[order]), strict=True):
      np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(_larger(x[order], _fit(x[order])), _larger(x, _fit(x))[order])

  @parameterized.parameters(1e3, 1e12, 3e38)
  def test_extreme_outlier_is_a_component(self, outlier):
    x = np.append(np.random.default_rng(0).normal(size=99), outlier).astype(np.float32)
    fitted = _fit(x)
    self.assertTrue(all(np.isfinite(f).all() for f in fitted))
    np.testing.assert_allclose(fitted.means, [x[:-1].mean(), x[-1]], rtol=1e-5)
    np.testing.assert_allclose(fitted.weights, [0.99, 0.01], rtol=1e-6)
    np.testing.assert_array_equal(_larger(x, fitted), [False] * 99 + [True])

  def test_narrow_components_far_from_zero(self):
    # 1e4 and the fourth float32 after it.
    x = np.repeat(np.float32([1e4, 1e4 + 2**-8]), 20)
    np.testing.assert_array_equal(_larger(x, _fit(x)), np.repeat([False, True], 20))


class CleanPosteriorTest(parameterized.TestCase):

  def test_min_max_by_hand(self):
    found = gaussian_mixture.min_max(tf.constant([0.2, 0.3, 2.1, 1.9, 0.25]))
    np.testing.assert_allclose(found, [0, 0.052632, 1, 0.894737, 0.026316], atol=1e-6)

  @parameterized.parameters(
      (5e-4, [0.016129, 0.838697], [0.999989, 0.999977, 0.999988, 0.999985]),
      (1e-6, [0.016129, 0.838701], [0.999991, 0.999981, 0.999995, 0.999993]),
  )
  def test_divide_mixs_by_hand(self, reg_covar, means, posterior):
    settings = gaussian_mixture.DIVIDEMIX._replace(reg_covar=reg_covar)
    losses = tf.constant([0.02, 0.05, 0.03, 0.04, 0.9, 0.95, 0.85, 0.5])
    fitted = gaussian_mixture.fit(gaussian_mixture.min_max(losses), settings)
    np.testing.assert_allclose(fitted.means, means, atol=1e-6)
    np.testing.assert_allclose(
        gaussian_mixture.clean_posterior(losses, settings), [*posterior, 0, 0, 0, 0], atol=2e-6
    )

  @parameterized.parameters(*range(5))
  def test_scikit_learn_has_the_same_posterior(self, seed):
    x = _sample(seed, 3, 6)
    x = (x - x.min()) / (x.max() - x.min())
    theirs = _from_best_split(x, reg_covar=5e-4, tol=1e-2, max_iter=10)
    with warnings.catch_warnings():
      warnings.simplefilter('ignore', exceptions.ConvergenceWarning)
      theirs.fit(_column(x))
    expected = theirs.predict_proba(_column(x))[:, np.argmin(theirs.means_[:, 0])]
    found = gaussian_mixture.clean_posterior(tf.constant(x))
    np.testing.assert_allclose(found, expected, atol=1e-4)

  @parameterized.parameters(([],), ([3.0],), ([2.0, 2.0, 2.0],))
  def test_equal_losses_are_all_clean(self, losses):
    found = gaussian_mixture.clean_posterior(tf.constant(losses, tf.float32))
    np.testing.assert_array_equal(found, np.ones(len(losses)))


class InTffTest(federated_test_case.FederatedTestCase):

  def test_runs_in_a_computation_with_unknown_number_of_points(self):
    @tff.tensorflow.computation(tff.TensorType(np.float32, (None,)))
    def larger(x):
      @tf.function
      def run(x):
        fitted = gaussian_mixture.fit(x)
        return gaussian_mixture.larger_component(x, fitted), fitted.means

      return run(x)

    x = _sample(1, 4, 6)
    for n in (len(x), 5000, 2, 1, 0):
      values = np.resize(x, n)
      is_larger, means = larger(values)
      np.testing.assert_array_equal(is_larger, _larger(values, _fit(values)))
      np.testing.assert_allclose(means, _fit(values).means, rtol=1e-9)


if __name__ == '__main__':
  absltest.main()
