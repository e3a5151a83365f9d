"""Tests of how many examples of a batch are kept, by exact numbers."""

import fractions

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise.clients import small_loss


class NumKeptTest(parameterized.TestCase):

  @parameterized.parameters(
      (128, 0.2, 102), (10, 0.2, 8), (3, 0.5, 1), (4, 0.06, 3), (5, 0.0, 5),
      # None by the public code, whose loss is then not a number.
      (1, 0.2, 1), (5, 0.8, 1), (10, 0.9, 1),
      # One less by the public code: float64.
      (20, 0.9, 2),
  )
  def test_number_kept(self, batch_size, rate, expected):
    self.assertEqual(small_loss.num_kept(np.float64(rate), batch_size).numpy(), expected)

  def test_number_kept_is_the_whole_part_of_exact_numbers(self):
    sizes = np.arange(1, 130)
    for percent in range(100):
      exact = 1 - fractions.Fraction(percent, 100)
      found = small_loss.num_kept(np.float64(percent / 100), sizes).numpy()
      np.testing.assert_array_equal(found, [max(1, int(exact * b)) for b in sizes.tolist()])


if __name__ == '__main__':
  absltest.main()
