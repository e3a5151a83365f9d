"""Tests of the report's section on labels that clients changed.

What it shares with FedCorr's section is tested there. Examples 2, 7 and 11 have a wrong label.
"""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tests.report import run_files
from tests.report import section_test_case
from tff_noise import types
from tff_noise.report import corrected_labels
from tff_noise.report import correction_plots
from tff_noise.report import runs
from tff_noise.report import sections


def _labels(**changes):
  """The labels at the end: those of the scene but for `_EXAMPLE=label`."""
  labels = run_files.scene().noisy_label.copy()
  for example, label in changes.items():
    labels[int(example[1:])] = label
  return labels


class CorrectedLabelsTest(section_test_case.SectionTestCase):

  SECTION = corrected_labels.SECTION

  def contents(self, method='jointopt', **changes):
    return {
        'config': run_files.config(method=method), 'summary': section_test_case.summary(method),
        'metrics': run_files.metrics(label_accuracy=[0.75, 0.75, 0.75, 0.833]),
        'labels': _labels(_2=2), **changes,
    }

  def test_is_part_of_the_reports_of_two_methods(self):
    self.assertTrue(corrected_labels.SECTION.applies(self.read(method='fedelc')))
    run = self.read()
    titles = [s.title for s in sections.build(run, runs.read_scene(run))]
    self.assertIn(corrected_labels.SECTION.title, titles)

  @parameterized.parameters('fedcorr', 'feddpcont', 'unheard of')
  def test_is_no_part_of_other_reports(self, method):
    run = runs.read_run(run_files.write(
        self.path, config=run_files.config(method=method), labels=_labels()
    ))
    self.assertFalse(corrected_labels.SECTION.applies(run))

  def test_words_and_pictures(self):
    shown = self.section()
    (text,) = self.texts(shown)
    self.assertEqual(
        text.text,
        '1 of 12 labels were changed: 1 to the true one, 0 from one wrong label to another, 0 were '
        'right before. Wrong labels: 25.0% before, 16.7% after.',
    )
    self.assertEqual(list(self.pictures(shown)), ['corrections', 'label_corrections'])

  def test_there_are_dots_where_shares_differ_by_more_than_rounding(self):
    wrong = np.array([1 - 0.7, 0.3, 0.2, 0.2])
    figure = correction_plots.correction_curves(np.arange(1, 5), wrong, {}, before=0.3)
    (dots,) = (line for line in figure.axes[0].lines if line.get_marker() == 'o')
    self.assertEqual(dots.get_xdata().tolist(), [3])

  def test_labels_that_became_worse(self):
    *_, last = self.texts(self.section(labels=_labels(_0=1)))
    self.assertIn('made the labels worse', last.text)
    self.assertEqual(last.tone, 'warning')

  def test_nothing_changed(self):
    shown = self.section(labels=_labels())
    self.assertEqual(self.texts(shown)[0].text, 'None of the 12 labels was changed.')
    self.assertEqual(list(self.pictures(shown)), ['corrections'])

  def test_truth_that_nobody_knows(self):
    (only,) = self.section(
        scene=section_test_case.unknown_truth(),
        metrics=run_files.metrics(label_accuracy=['nan'] * 4),
    )
    self.assertIn('nobody knows', only.text)

  def test_run_that_is_not_finished(self):
    shown = self.section(summary=None, privacy=None, labels=None)
    self.assertIn('at the end of the run', self.texts(shown)[0].text)
    self.assertEqual(list(self.pictures(shown)), ['corrections'])

  def test_other_labels_than_the_scene(self):
    with self.assertRaisesRegex(types.UsageError, 'has 2 labels, scene.npz has 12'):
      self.section(labels=np.zeros(2, np.int32))


if __name__ == '__main__':
  absltest.main()
