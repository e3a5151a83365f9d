"""Lower bounds of epsilon hold, by hand and by the binomial distribution."""

import math

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized
from scipy import stats

from tff_noise.audit import lower_bounds


class EpsilonLowerBoundTest(parameterized.TestCase):

  @parameterized.parameters(
      (500, 500, 0, 500, 0.01, 4.541916),
      (2000, 10_000, 889, 10_000, 0.05, 0.708358),
      (200, 1000, 89, 1000, 0.05, 0.482673),
      (20_000, 100_000, 8889, 100_000, 0.05, 0.778628),
      (2000, 10_000, 615, 10_000, 0.05, 1.063014),
      (20_000, 100_000, 6154, 100_000, 0.05, 1.141979),
      (2000, 10_000, 81, 10_000, 0.05, 2.950195),
      (20_000, 100_000, 808, 100_000, 0.05, 3.127797),
  )
  def test_reference(self, tp, trials1, fp, trials0, alpha, expected):
    bound = lower_bounds.epsilon_lower_bound(tp, trials1, fp, trials0, alpha)
    self.assertAlmostEqual(bound, expected, delta=6e-7)

  def test_all_and_none_in_closed_form(self):
    # Clopper-Pearson of n of n is (alpha / 2)^(1 / n), and of 0 of n one minus that.
    edge = 0.005 ** (1 / 500)
    bound = lower_bounds.epsilon_lower_bound(500, 500, 0, 500, 0.01)
    self.assertAlmostEqual(bound, math.log(edge / (1 - edge)), places=9)

  def test_delta_is_taken_from_the_first_world(self):
    exact = lower_bounds.epsilon_lower_bound(500, 500, 250, 500, 0.01)
    loose = lower_bounds.epsilon_lower_bound(500, 500, 250, 500, 0.01, delta=0.1)
    edge = 0.005 ** (1 / 500)
    self.assertAlmostEqual(loose, exact + math.log((edge - 0.1) / edge), places=9)
    self.assertEqual(lower_bounds.epsilon_lower_bound(100, 500, 0, 500, 0.01, delta=0.5), 0)

  @parameterized.parameters(
      (0, 0, 0, 0), (0, 0, 3, 5), (5, 5, 0, 0), (0, 5, 0, 5), (5, 5, 5, 5), (1, 9, 8, 9)
  )
  def test_no_evidence_is_zero(self, *counts):
    self.assertEqual(lower_bounds.epsilon_lower_bound(*counts, alpha=0.05), 0)

  def test_covers_the_true_epsilon(self):
    draws = np.random.default_rng(0)
    counts = draws.binomial(500, [[0.2], [0.8 / 9]], (2, 2000))
    bounds = [lower_bounds.epsilon_lower_bound(a, 500, b, 500, 0.2) for a, b in counts.T.tolist()]
    above = int((np.array(bounds) > math.log(2.25)).sum())
    self.assertLessEqual(above, stats.binom.ppf(1 - 1e-4, 2000, 0.2))

  @parameterized.parameters(
      ((6, 5, 0, 5, 0.05), 'more events than trials: 6 of 5, 0 of 5'),
      ((5, 5, 6, 5, 0.05), 'more events than trials'),
      ((-1, 5, 0, 5, 0.05), 'true_positives must be a whole number of at least 0, got -1'),
      ((0, 5.0, 0, 5, 0.05), 'trials1 must be a whole number'),
      ((0, 5, 0, 5, 0.0), 'alpha must be between 0 and 1, got 0.0'),
      ((0, 5, 0, 5, 1), 'alpha must be between 0 and 1, got 1'),
      ((0, 5, 0, 5, math.nan), 'alpha must be between 0 and 1, got nan'),
      ((0, 5, 0, 5, 0.05, 1.0), 'delta must be at least 0 and below 1, got 1.0'),
      ((0, 5, 0, 5, 0.05, math.nan), 'delta must be at least 0'),
  )
  def test_errors(self, args, message):
    with self.assertRaisesRegex(ValueError, message):
      lower_bounds.epsilon_lower_bound(*args)


class OneRunLowerBoundTest(parameterized.TestCase):

  @parameterized.parameters(
      (1000, 692, 0.05, 0.0, 1000, 0.695039),
      (1000, 692, 0.05, 1e-5, 1000, 0.694773),
      (1000, 600, 0.05, 0.0, 1000, 0.297468),
      (1000, 800, 0.05, 0.0, 1000, 1.254330),
      (100, 100, 0.05, 0.0, None, 3.492965),
      (100, 100, 0.01, 0.0, None, 3.054876),
      (2889, 2000, 0.05, 0.0, 10_000, 0.743878),
      (2889, 2000, 0.05, 1e-6, 10_000, 0.743785),
  )
  def test_reference(self, guesses, correct, alpha, delta, examples, expected):
    bound = lower_bounds.one_run_lower_bound(guesses, correct, alpha, delta, examples)
    self.assertAlmostEqual(bound, expected, delta=6e-7)

  def test_all_correct_in_closed_form(self):
    # q^100 = alpha.
    rate = 0.01 ** (1 / 100)
    bound = lower_bounds.one_run_lower_bound(100, 100, 0.01)
    self.assertAlmostEqual(bound, math.log(rate / (1 - rate)), places=9)

  @parameterized.parameters((0, 0), (10, 0), (10, 5), (10, 7), (1, 1))
  def test_no_evidence_is_zero(self, guesses, correct):
    self.assertEqual(lower_bounds.one_run_lower_bound(guesses, correct, 0.05), 0)

  def test_large_delta_leaves_nothing(self):
    self.assertEqual(lower_bounds.one_run_lower_bound(100, 100, 0.05, delta=0.5), 0)

  @parameterized.parameters(
      ((5, 6, 0.05), 'expected correct <= guesses <= examples, got 6, 5, 5'),
      ((5, 5, 0.05, 0.0, 4), 'expected correct <= guesses <= examples, got 5, 5, 4'),
      ((5, -1, 0.05), 'correct must be a whole number'),
      ((5, 5, 2), 'alpha must be between 0 and 1, got 2'),
      ((5, 5, 0.05, -0.1), 'delta must be at least 0'),
  )
  def test_errors(self, args, message):
    with self.assertRaisesRegex(ValueError, message):
      lower_bounds.one_run_lower_bound(*args)


if __name__ == '__main__':
  absltest.main()
