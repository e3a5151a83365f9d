"""Tests of the estimated label distribution against the numbers of its reference."""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise import rng
from tff_noise.privacy import estimator
from tff_noise.privacy import mechanism

_PRIVATE = tuple(p for p in estimator.PRIORS if p != 'none')


def _k3():
  """K = 3, epsilon = ln 2: a = 1/2, b = 1/4."""
  return mechanism.randomized_response('0.69314718055994530942', 3)


def _keeping_a_fifth(num_classes):
  """The papers' p = .2: epsilon = ln((K - 1) / 4)."""
  epsilon = {10: '0.81093021621632876', 14: '1.17865499634164621', 100: '3.20882548901469938'}
  return mechanism.randomized_response(epsilon[num_classes], num_classes)


class ProjectSimplexTest(parameterized.TestCase):

  @parameterized.parameters(
      ([0.5, 0.6, -0.1], [0.45, 0.55, 0]),
      ([1.2, -0.1, -0.1], [1, 0, 0]),
      ([0.45, 0.45, 0.3, -0.2], [23 / 60, 23 / 60, 14 / 60, 0]),
      ([-1, -1, 3], [0, 0, 1]),
      ([0.2, 0.3, 0.5], [0.2, 0.3, 0.5]),
      ([1, 0, 0], [1, 0, 0]),
      ([0, 0, 0], [1 / 3] * 3),
      ([-5, -5], [0.5, 0.5]),
      ([7], [1]),
  )
  def test_numbers_of_the_reference(self, values, expected):
    np.testing.assert_allclose(estimator.project_simplex(np.array(values)), expected, atol=1e-12)

  def test_is_the_nearest_point(self):
    # Optimality of a projection p of v: (v - p) . (s - p) <= 0 for every corner s of the simplex.
    random = rng.generator(0, 'projection test')
    for _ in range(200):
      values = random.normal(size=int(random.integers(1, 30))) * random.choice([0.01, 1, 100])
      point = estimator.project_simplex(values)
      self.assertAlmostEqual(point.sum(), 1)
      self.assertGreaterEqual(point.min(), 0)
      self.assertLess(((values - point) - (values - point) @ point).max(), 1e-9)


class InverseTest(parameterized.TestCase):

  def test_example_of_the_reference(self):
    raw, _ = estimator.inverse(
        np.array([30, 20, 10, 10, 10, 5, 5, 5, 3, 2]), _keeping_a_fifth(10)
    )
    np.testing.assert_allclose(
        raw, [1.9, 1, 0.1, 0.1, 0.1, -0.35, -0.35, -0.35, -0.53, -0.62], atol=1e-12
    )

  def test_three_classes(self):
    raw, _ = estimator.inverse(np.array([4, 3, 1]), _k3())
    np.testing.assert_allclose(raw, [1, 0.5, -0.5], atol=1e-12)

  @parameterized.parameters(
      ('0.81', 10, 8.212070198, -0.8013411331),
      ('1.18', 14, 6.766567051, -0.4435820809),
      ('3.21', 100, 5.163322302, -0.04205376063),
  )
  def test_one_report_gives_a_row_of_the_inverse_matrix(self, epsilon, num_classes, own, other):
    table = mechanism.randomized_response(epsilon, num_classes)
    raw, _ = estimator.inverse(np.eye(num_classes, dtype=int)[2], table)
    np.testing.assert_allclose(raw[2], own, rtol=1e-8)
    np.testing.assert_allclose(np.delete(raw, 2), other, rtol=1e-8)
    # And that is what inverting T_DP gives.
    np.testing.assert_allclose(raw, np.linalg.inv(table.transition_matrix())[2], rtol=1e-8)

  def test_undoes_the_transition_matrix_and_keeps_the_sum(self):
    table = mechanism.randomized_response('0.81', 10)
    truth = rng.generator(0, 'truth').dirichlet(np.ones(10))
    reports = truth @ table.transition_matrix() * 1000
    raw, _ = estimator.inverse(reports, table)
    np.testing.assert_allclose(raw, truth)

  @parameterized.parameters(
      (10, 50_000, 0.0120000), (10, 500, 0.1200000), (100, 50_000, 0.0022754),
      (14, 1_000_006, 0.0018421),
  )
  def test_standard_error_of_uniform_labels(self, num_classes, total, expected):
    # Equal counts are estimated as uniform exactly.
    counts = np.full(num_classes, total // num_classes)
    _, error = estimator.inverse(counts, _keeping_a_fifth(num_classes))
    np.testing.assert_allclose(error, expected, rtol=3e-5)

  def test_standard_error_at_a_tiny_epsilon(self):
    _, error = estimator.inverse(
        np.full(10, 5000), mechanism.randomized_response('0.01', 10)
    )
    np.testing.assert_allclose(error, 1.3362847, rtol=1e-6)

  def test_standard_error_of_five_of_ten_classes(self):
    # 45,000 labels, whose expected reports are whole numbers: 1/9 and 4/45 of them.
    raw, error = estimator.inverse(np.array([5000] * 5 + [4000] * 5), _keeping_a_fifth(10))
    np.testing.assert_allclose(raw, [0.2] * 5 + [0] * 5, atol=1e-12)
    # The reference is for 50,000.
    np.testing.assert_allclose(
        error * np.sqrt(0.9), [0.0125220] * 5 + [0.0114543] * 5, rtol=1e-5
    )

  def test_standard_error_by_hand(self):
    # pi = (2/3, 1/3, 0), N = 3: variances 11/9, 10/9, 1 in the reference. N = 12 here.
    raw, error = estimator.inverse(np.array([5, 4, 3]), _k3())
    np.testing.assert_allclose(raw, [2 / 3, 1 / 3, 0], atol=1e-12)
    np.testing.assert_allclose(error**2, np.array([11 / 9, 10 / 9, 1]) / 4)

  def test_unbiased_with_the_error_it_reports(self):
    table = _keeping_a_fifth(10)
    labels = np.array([4000, 3000, 2000, 1000, 0, 0, 0, 0, 0, 0])
    random = rng.generator(0, 'reports')
    repetitions = 4000
    reports = sum(
        random.multinomial(n, row, size=repetitions)
        for n, row in zip(labels, table.transition_matrix(), strict=True)
    )
    raw = np.array([estimator.inverse(h, table)[0] for h in reports])
    truth = labels / 10_000
    _, error = estimator.inverse(truth @ table.transition_matrix() * 10_000, table)
    # Ten means within 4.5 standard errors; deviations within 4.5 / sqrt(2 * 4000) = 5 %.
    np.testing.assert_array_less(
        np.abs(raw.mean(axis=0) - truth), 4.5 * error / np.sqrt(repetitions)
    )
    np.testing.assert_allclose(raw.std(axis=0), error, rtol=0.05)


class EstimateTest(parameterized.TestCase):

  def test_inverse_prior_cuts_and_rescales(self):
    result = estimator.estimate(np.array([4, 3, 1]), 'inverse', _k3())
    # [1, .5, -.5] -> [1, .5, 0] / 1.5.
    np.testing.assert_allclose(result.prior, [2 / 3, 1 / 3, 0], atol=1e-12)
    np.testing.assert_allclose(result.raw, [1, 0.5, -0.5], atol=1e-12)
    self.assertEqual((result.signal, result.num_labels), (1.0, 8))

  def test_projected_prior(self):
    result = estimator.estimate(
        np.array([30, 20, 10, 10, 10, 5, 5, 5, 3, 2]), 'projected', _keeping_a_fifth(10)
    )
    np.testing.assert_allclose(result.prior, [0.95, 0.05] + [0] * 8, atol=1e-12)
    self.assertEqual((result.signal, result.num_labels), (1.0, 100))

  def test_shrinkage_by_hand(self):
    # N = 1200: raw (2/3, 1/3, 0), distance to uniform squared 2/9, summed variance
    # (11 + 10 + 9) / 9 * 3 / 1200 = 1/120, so s = 1 - 9/240 = .9625.
    result = estimator.estimate(np.array([500, 400, 300]), 'shrinkage', _k3())
    self.assertAlmostEqual(result.signal, 0.9625)
    np.testing.assert_allclose(
        result.prior, 1 / 3 + 0.9625 * np.array([1 / 3, 0, -1 / 3]), atol=1e-12
    )
    np.testing.assert_allclose(result.raw, [2 / 3, 1 / 3, 0], atol=1e-12)

  def test_shrinkage_projects_what_stays_negative(self):
    # N = 8000: raw (1, .5, -.5), distance squared 7/6. Shares for the variance (1, .5, 0):
    # sum 1/4 + 7/32 + 3/16 = 21/32, times 16 / 8000 = .0013125. s = 1 - .001125 = .998875.
    result = estimator.estimate(np.array([4000, 3000, 1000]), 'shrinkage', _k3())
    self.assertAlmostEqual(result.signal, 0.998875)
    shrunk = 1 / 3 + 0.998875 * np.array([2 / 3, 1 / 6, -5 / 6])
    # The last is negative and cut; half of it is taken from each of the others.
    expected = [shrunk[0] + shrunk[2] / 2, shrunk[1] + shrunk[2] / 2, 0]
    np.testing.assert_allclose(result.prior, expected, atol=1e-12)

  def test_shrinkage_gives_up_where_noise_is_all_there_is(self):
    # The same histogram as by hand with N = 12: s = 1 - (5/6) / (2/9) < 0.
    result = estimator.estimate(np.array([5, 4, 3]), 'shrinkage', _k3())
    self.assertEqual(result.signal, 0)
    np.testing.assert_allclose(result.prior, [1 / 3] * 3)

  def test_shrinkage_of_an_exactly_uniform_histogram(self):
    # The distance to uniform is 0 and must not be divided by.
    result = estimator.estimate(np.array([7, 7, 7]), 'shrinkage', _k3())
    self.assertEqual(result.signal, 0)
    np.testing.assert_allclose(result.prior, [1 / 3] * 3)

  def test_shrinkage_is_nearer_to_balanced_classes_in_a_small_federation(self):
    # What the default is for: 1400 labels of ten about equally frequent classes. (It is not
    # better everywhere: with five of ten classes absent the cut inverse is a little nearer.)
    table = mechanism.randomized_response('0.81', 10)
    random = rng.generator(0, 'small federation')
    error = dict.fromkeys(_PRIVATE, 0.0)
    for _ in range(200):
      histogram = sum(random.multinomial(140, row) for row in table.transition_matrix())
      for prior in _PRIVATE:
        error[prior] += ((estimator.estimate(histogram, prior, table).prior - 0.1) ** 2).sum()
    self.assertLess(error['shrinkage'], error['inverse'] / 5)
    self.assertLess(error['shrinkage'], error['projected'] / 5)

  def test_counts_without_privacy(self):
    result = estimator.estimate(np.array([1, 0, 3]), 'none', None)
    np.testing.assert_array_equal(result.prior, [0.25, 0, 0.75])
    np.testing.assert_array_equal(result.raw, result.prior)
    np.testing.assert_array_equal(result.standard_error, np.zeros(3))
    self.assertEqual((result.signal, result.informative, result.num_labels), (1.0, True, 4))

  @parameterized.product(prior=_PRIVATE, case=[(500, False), (50_000, True), (0.01, False)])
  def test_informative_compares_the_error_with_a_uniform_share(self, prior, case):
    # K = 10: the standard error .12 of 500 labels is above 1/10, the .012 of 50,000 below, and
    # epsilon .01 has 1.3 even then.
    size, informative = case
    table = _keeping_a_fifth(10)
    if size == 0.01:
      size, table = 50_000, mechanism.randomized_response('0.01', 10)
    result = estimator.estimate(np.full(10, size // 10), prior, table)
    self.assertIs(result.informative, informative)

  def test_informative_looks_at_the_worst_class(self):
    # Variances (11, 10, 9) / 9 * 3 / N against 1/9: N = 24 fails and N = 36 passes for all
    # classes; at 32 the first class alone fails.
    for total, passes in ((24, [0, 0, 0]), (36, [1, 1, 1])):
      histogram = np.array([5, 4, 3]) * total // 12
      result = estimator.estimate(histogram, 'inverse', _k3())
      np.testing.assert_array_equal(result.standard_error < 1 / 3, passes)
      self.assertEqual(result.informative, all(passes))

  @parameterized.parameters(*((p,) for p in estimator.PRIORS))
  def test_prior_is_always_a_distribution(self, prior):
    random = rng.generator(0, 'histograms')
    for i in range(200):
      num_classes = int(random.choice([2, 3, 10, 100]))
      epsilon = str(random.choice(['1e-9', '0.01', '0.81', '5', '20']))
      total = int(random.choice([1, 2, 30, 10**6]))
      histogram = random.multinomial(
          total, random.dirichlet(np.full(num_classes, random.choice([0.01, 1.0])))
      )
      table = None if prior == 'none' else mechanism.randomized_response(epsilon, num_classes)
      result = estimator.estimate(histogram, prior, table)
      setting = f'{prior} run {i}: epsilon={epsilon} {histogram}'
      self.assertEqual(result.prior.shape, (num_classes,))
      self.assertAlmostEqual(result.prior.sum(), 1, msg=setting)
      self.assertBetween(result.prior.min(), 0, 1, setting)
      self.assertBetween(result.signal, 0, 1, setting)
      self.assertTrue(np.isfinite(result.standard_error).all(), setting)
      self.assertIsInstance(result.informative, bool)  # It goes into JSON.
      self.assertEqual(result.num_labels, total)


class EstimateErrorTest(parameterized.TestCase):

  @parameterized.product(
      prior=estimator.PRIORS, histogram=[(0, 0, 0), (-1, 5, 5), (0, 0, -1)]
  )
  def test_negative_or_no_counts(self, prior, histogram):
    table = None if prior == 'none' else _k3()
    with self.assertRaisesRegex(
        ValueError, 'expected non-negative whole counts with a positive sum, found'
    ):
      estimator.estimate(np.array(histogram), prior, table)

  @parameterized.parameters(*((p,) for p in _PRIVATE))
  def test_mechanism_of_another_number_of_classes(self, prior):
    with self.assertRaisesRegex(ValueError, 'expected a mechanism for 4 classes, found .*num_cl'):
      estimator.estimate(np.ones(4, int), prior, _k3())

  @parameterized.parameters(*((p,) for p in _PRIVATE))
  def test_no_mechanism(self, prior):
    with self.assertRaisesRegex(ValueError, 'expected a mechanism for 4 classes, found None'):
      estimator.estimate(np.ones(4, int), prior, None)

  def test_unknown_prior(self):
    with self.assertRaisesRegex(
        ValueError, "unknown prior 'bayes', expected one of shrinkage, projected, inverse, none"
    ):
      estimator.estimate(np.ones(3, int), 'bayes', _k3())


if __name__ == '__main__':
  absltest.main()
