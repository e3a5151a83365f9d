"""Tests of the section on how good the model is, against a matrix counted by hand."""

import os

import numpy as np
from absl.testing import absltest

from tests.report import section_test_case
from tff_noise.report import blocks
from tff_noise.report import by_class
from tff_noise.report import runs
from tff_noise.report import sections

_CONFUSION = np.array([[3, 1, 0], [0, 4, 0], [2, 0, 2]])


class ByClassTest(section_test_case.SectionTestCase):

  SECTION = by_class.SECTION

  def test_by_hand(self):
    shown = by_class.shown(_CONFUSION, ('a', 'b', 'c'), np.array([0.5, 0.75]), (), 'the test set')
    (numbers,) = [b for b in shown if isinstance(b, blocks.Numbers)]
    self.assertEqual(
        [n.value for n in numbers.numbers], ['0.7500', '0.5000', '0.6250', '0.5000']
    )
    self.assertEqual(numbers.numbers[1].remark, 'c')
    (table,) = [b for b in shown if isinstance(b, blocks.Table)]
    self.assertEqual(
        [tuple(row) for row in table.rows],
        [('a', '4', '0.7500', 'b'), ('b', '4', '1.0000', '–'), ('c', '4', '0.5000', 'a')],
    )

  def test_is_part_of_the_report_of_a_run_with_a_matrix(self):
    run = self.read()
    self.assertFalse(self.SECTION.applies(run))
    np.savetxt(os.path.join(run.path, 'confusion.csv'), _CONFUSION, '%d', delimiter=',')
    self.assertTrue(self.SECTION.applies(run))
    titles = [s.title for s in sections.build(run, runs.read_scene(run))]
    self.assertIn(self.SECTION.title, titles)


if __name__ == '__main__':
  absltest.main()
