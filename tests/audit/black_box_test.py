"""Tests of what the audits of a mechanism share: bounds of p-values."""

import math

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise.audit import black_box


class LogTwoSidedBoundTest(parameterized.TestCase):

  @parameterized.parameters(
      # 2 (.5 / .3)^3 (.5 / .7)^7, and at the ends 2 (1 - p)^n and 2 p^n.
      (3, 10, 0.5, math.log(2) + 3 * math.log(0.5 / 0.3) + 7 * math.log(0.5 / 0.7)),
      (0, 9, 0.4, math.log(2) + 9 * math.log(0.6)),
      (9, 9, 0.4, math.log(2) + 9 * math.log(0.4)),
      (4, 10, 0.4, 0.0),
      (0, 0, 0.4, 0.0),
      (5, 5, 1.0, 0.0),
      (4, 5, 1.0, -math.inf),
      (0, 5, 0.0, 0.0),
      (1, 5, 0.0, -math.inf),
  )
  def test_by_hand(self, successes, trials, probability, expected):
    found = black_box.log_two_sided_bound(successes, trials, probability)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)

  def test_is_no_less_than_the_exact_p_value_and_broadcasts(self):
    trials, probabilities = np.array([1, 7, 60]), np.array([[0.05], [0.3], [0.9]])
    for share in (0, 0.2, 0.5, 1):
      successes = (share * trials).astype(np.int64)
      bound = black_box.log_two_sided_bound(successes, trials, probabilities)
      self.assertEqual(bound.shape, (3, 3))
      exact = black_box.two_sided(successes, trials, probabilities)
      self.assertTrue((np.exp(bound) >= exact * (1 - 1e-9)).all())


if __name__ == '__main__':
  absltest.main()
