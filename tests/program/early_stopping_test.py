"""Tests of when a run ends early."""

from absl.testing import absltest
from absl.testing import parameterized

from tff_noise.program import early_stopping

_UP_DOWN = [0.5, 0.7, 0.6, 0.7, 0.65, 0.8]


class EarlyStoppingTest(parameterized.TestCase):

  @parameterized.parameters(
      (0, None),
      # Equal is not better, and the first of the best counts.
      (1, 3), (2, 4), (3, 5), (4, None),
  )
  def test_ends_after_so_many_that_are_not_better(self, patience, expected):
    found = early_stopping.ends_after(patience, [1, 2, 3, 4, 5, 6], [True] * 6, _UP_DOWN)
    self.assertEqual(found, expected)

  def test_rounds_that_were_not_evaluated_do_not_count(self):
    found = early_stopping.ends_after(2, [5, 10, 15, 20, 25, 30], [True] * 6, _UP_DOWN)
    self.assertEqual(found, 20)

  @parameterized.parameters((1, 4), (2, 5))
  def test_earlier_stages_raise_the_bar_but_end_nothing(self, patience, expected):
    in_last_stage = [False, False, False, True, True, True]
    found = early_stopping.ends_after(patience, [1, 2, 3, 4, 5, 6], in_last_stage, _UP_DOWN)
    self.assertEqual(found, expected)

  def test_a_better_one_starts_the_count_anew(self):
    accuracy = [0.5, 0.4, 0.6, 0.5, 0.7, 0.6, 0.6]
    found = early_stopping.ends_after(2, [1, 2, 3, 4, 5, 6, 7], [True] * 7, accuracy)
    self.assertEqual(found, 7)


if __name__ == '__main__':
  absltest.main()
