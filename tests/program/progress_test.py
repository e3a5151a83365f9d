"""Tests of what is said of a run's progress where there is no terminal."""

import contextlib
import io
import math
import re

from absl.testing import absltest

from tff_noise.program import progress
from tff_noise.program import training


def _said(accuracies, *, first=1, total=None, log_level='info'):
  said, total = io.StringIO(), total or len(accuracies)
  with contextlib.redirect_stderr(said), progress.bar(total, log_level) as on_round:
    for i, accuracy in enumerate(accuracies, first):
      on_round(training.RoundResult(i, {'test_accuracy': accuracy, 'train_loss': 0.5}, 1.0))
  return said.getvalue().splitlines()


class ProgressTest(absltest.TestCase):

  def test_where_a_round_is_not_evaluated_the_last_accuracy_is_said(self):
    lines = _said([math.nan, 0.25, math.nan])
    accuracies = [re.search('test accuracy (.*)  train', line)[1] for line in lines]
    self.assertEqual(accuracies, ['not measured yet', '0.2500', '0.2500'])

  def test_says_how_fast_it_is_and_what_is_left(self):
    line = _said([0.5] * 3)[-1]
    self.assertRegex(
        line,
        r'^round 3/3  test accuracy 0.5000  train loss 0.5000  \d+\.\d\d s/round, 0:00:00 left',
    )

  def test_at_most_some_twenty_lines(self):
    lines = _said([0.5] * 205)
    self.assertBetween(len(lines), 20, 22)
    self.assertIn('round 205/205', lines[-1])

  def test_more_or_less_is_said_where_it_is_asked_for(self):
    self.assertEmpty(_said([0.5] * 205, log_level='quiet'))
    self.assertLen(_said([0.5] * 205, log_level='debug'), 205)

  def test_says_from_which_round_it_goes_on(self):
    lines = _said([0.5, 0.5], first=4, total=5)
    self.assertEqual(lines[0], 'continued from round 4 on')
    self.assertLen(lines, 3)


if __name__ == '__main__':
  absltest.main()
