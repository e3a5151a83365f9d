"""Counts of reports against a declared table."""

import math

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized
from scipy import stats

from tff_noise.audit import black_box
from tff_noise.audit import declared_table

_ALPHA = 1e-6
_PASSED, _FAILED, _NO_EVIDENCE = (
    black_box.Verdict.PASSED, black_box.Verdict.FAILED, black_box.Verdict.NO_EVIDENCE
)


class GoodnessOfFitTest(parameterized.TestCase):

  @parameterized.parameters(
      # 2 * P(X <= 430), halved alpha and four entries; too few for chi-square.
      ([[430, 570], [500, 500]], 8 * 2 * stats.binom.cdf(430, 1000, 0.5)),
      # Statistic 2 * 50^2 / 3250, halved alpha and two rows.
      ([[3300, 3200], [3250, 3250]], 4 * stats.chi2.sf(5000 / 3250, 1)),
      ([[3250, 3250], [3250, 3250]], 1.0),
      # Statistic 2 * 200^2 / 5000 = 16, below the entries' 8 * 6.5e-5.
      ([[5200, 4800], [5000, 5000]], 4 * stats.chi2.sf(16, 1)),
  )
  def test_p_value(self, counts, expected):
    finding = declared_table.goodness_of_fit(np.array(counts), np.full((2, 2), 0.5), 1e-9)
    self.assertAlmostEqual(finding.value, expected)
    self.assertEqual((finding.verdict, finding.claim), (_PASSED, 1e-9))

  def test_chi_square_adds_up_what_no_entry_shows(self):
    matrix = np.full((10, 10), 0.1)
    counts = np.full((10, 10), 10_000)
    # Each 4 standard deviations off: 160 in all, at 9 degrees of freedom.
    counts[3] += 400 * np.array([1, -1] * 5)
    finding = declared_table.goodness_of_fit(counts, matrix, _ALPHA)
    self.assertIs(finding.verdict, _FAILED)
    self.assertIn('the reports of label 3', finding.detail)
    self.assertAlmostEqual(finding.value / (20 * stats.chi2.sf(160, 9)), 1)

  def test_what_is_impossible_and_never_seen(self):
    matrix = np.array([[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1.0]])
    counts = np.array([[5000, 5000, 0], [0, 0, 0], [0, 0, 10_000]])
    finding = declared_table.goodness_of_fit(counts, matrix, _ALPHA)
    self.assertEqual((finding.verdict, finding.value), (_PASSED, 1))
    # One report that cannot be is enough.
    counts[0] = [5000, 4999, 1]
    finding = declared_table.goodness_of_fit(counts, matrix, _ALPHA)
    self.assertEqual((finding.verdict, finding.value), (_FAILED, 0))
    self.assertIn('label 0 was reported as 2 in 1 of 10000, declared 0', finding.detail)

  def test_no_reports(self):
    finding = declared_table.goodness_of_fit(np.zeros((3, 3), int), np.eye(3), _ALPHA)
    self.assertIs(finding.verdict, _NO_EVIDENCE)

  @parameterized.parameters(
      (np.zeros((2, 3), int), np.eye(2), 'expected whole counts of shape'),
      (np.zeros((2, 2)), np.eye(2), 'expected whole counts of shape'),
      (-np.eye(2, dtype=int), np.eye(2), 'expected whole counts of shape'),
      (np.zeros((2, 3), int), np.ones((2, 3)), 'expected a square transition matrix'),
      (np.eye(2, dtype=int), np.full((2, 2), math.nan), 'must be probabilities that sum to 1'),
      (np.eye(2, dtype=int), np.full((2, 2), 0.4), 'must be probabilities that sum to 1'),
      (np.eye(2, dtype=int), np.array([[1.5, -0.5]] * 2), 'must be probabilities that sum to 1'),
  )
  def test_errors(self, counts, matrix, message):
    with self.assertRaisesRegex(ValueError, message):
      declared_table.goodness_of_fit(counts, matrix, _ALPHA)


if __name__ == '__main__':
  absltest.main()
