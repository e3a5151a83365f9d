"""Tests of the discrete Gaussian: samples, tables and grid, against their definitions."""

import fractions
import math

import mpmath
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized
from scipy import stats

from tff_noise.privacy import discrete_gaussian


def _probabilities(variance, most):
  """P(N = k) for k from -most to most."""
  k = np.arange(-most, most + 1)
  weights = np.exp(-(k**2) / (2 * variance))
  return weights / weights.sum()


class TableTest(parameterized.TestCase):

  @parameterized.parameters(1, 64, 1000)
  def test_is_the_distribution_function_to_all_its_bits(self, variance):
    table = discrete_gaussian.inversion_table(variance)
    with mpmath.workdps(120):
      weights = [
          mpmath.exp(-mpmath.mpf(k * k) / (2 * variance)) for k in range(table.shape[1] + 99)
      ]
      total = weights[0] + 2 * mpmath.fsum(weights[1:])
      so_far = weights[0]
      for k in range(table.shape[1]):
        so_far += 2 * weights[k] if k else 0
        found = sum(int(word) << (31 * (7 - i)) for i, word in enumerate(table[:, k]))
        self.assertLessEqual(abs(found - so_far / total * 2**248), 2, k)
      # What is left out.
      self.assertLess(1 - so_far / total, mpmath.mpf(2) ** -248)

  def test_distance_of_a_release_is_what_is_declared(self):
    largest = math.sqrt(2 * 2**28 * 250 * math.log(2)) + 2
    self.assertLess((largest + 2) * 2**-248 * discrete_gaussian.LARGEST_RELEASE,
                    discrete_gaussian.DISTANCE)


class GridTest(parameterized.TestCase):

  @parameterized.product(
      multiplier=(1e-4, 0.1, 1.0, 1.5), entries=(1, 30, 650, 1_600_000), cohort=(1, 7, 50)
  )
  def test_costs_no_more_than_the_gaussian_and_never_wraps(self, multiplier, entries, cohort):
    grid = discrete_gaussian.grid(multiplier, entries, cohort)
    wanted = fractions.Fraction(multiplier) ** 2 * grid.norm_squared + 9
    self.assertGreaterEqual(cohort * grid.variance, wanted)
    self.assertGreaterEqual(grid.variance, 64)
    self.assertGreaterEqual(grid.steps, 4 * math.sqrt(entries))
    self.assertLess(math.sqrt(grid.norm_squared) / grid.steps, 1.06)
    deviation = math.sqrt(cohort * grid.variance)
    self.assertGreaterEqual(
        2 ** (grid.modulus_bits - 1), cohort * math.sqrt(grid.norm_squared) + 18 * deviation
    )

  def test_without_noise_there_is_none(self):
    self.assertEqual(discrete_gaussian.grid(0.0, 10, 3).variance, 0)

  @parameterized.parameters((1e4, 1_600_000, 10), (1.0, 2**39, 4), (1.0, 100, 2**30))
  def test_too_much_is_refused(self, multiplier, entries, cohort):
    with self.assertRaisesRegex(ValueError, 'too much for discrete noise$'):
      discrete_gaussian.grid(multiplier, entries, cohort)

  @parameterized.parameters((64, 2), (64, 50), (100, 7))
  def test_shares_add_up_to_one_discrete_gaussian(self, variance, clients):
    most = 40 * math.isqrt(variance) * clients // 4
    share, total = _probabilities(variance, most), None
    for _ in range(clients):
      total = share if total is None else np.convolve(total, share)[most:-most]
    expected = _probabilities(variance * clients, most)
    usual = expected > 1e-12
    np.testing.assert_allclose(total[usual], expected[usual], rtol=1e-9)

  def test_is_a_rounded_gaussian_of_a_little_less_variance(self):
    # N(0, V - 9), then N_Z(x, 9) of what it is, by numerical integration: N_Z(0, V).
    variance, at = 64.0, np.arange(-200, 201)
    x = np.linspace(-100, 100, 200_001)
    rounding = np.exp(-((at[:, np.newaxis] - x[np.newaxis, ::100]) ** 2) / 18)
    rounding /= rounding.sum(0)
    density = stats.norm.pdf(x[::100], scale=math.sqrt(variance - 9)) * (x[100] - x[0])
    found = rounding @ density
    expected = _probabilities(variance, 200)
    usual = expected > 1e-12
    np.testing.assert_allclose(found[usual], expected[usual], rtol=1e-9)


if __name__ == '__main__':
  absltest.main()
