"""Tests of the report's section on what sums told FedTally's server.

The scene of `run_files` has three clients and three classes, and three of twelve labels wrong.
"""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tests.report import run_files
from tests.report import section_test_case
from tff_noise import types
from tff_noise.data import scene as scene_lib
from tff_noise.program import ground_truth
from tff_noise.report import runs
from tff_noise.report import sections
from tff_noise.report import tallies


def _found(**changes):
  table = (1 - np.eye(3)) / 2
  return {
      'rates': [0.0, 0.2, 0.4], 'clients_by_rate': [0.5, 0.25, 0.25], 'mean_rate': 0.15,
      'table': table.tolist(),
      **changes,
  }


def _columns(**changes):
  return {
      'anchor': [1.0, 0.5, 0.4, 0.4], 'mean_noise_rate': [0.1, 0.15, 0.15, 0.15],
      'sharpness': [1.0, 1.0, 1.2, 1.3], **changes,
  }


class TalliesTest(section_test_case.SectionTestCase):

  SECTION = tallies.SECTION

  def contents(self, columns=None, config=None, **changes):
    return {
        'metrics': run_files.metrics(**_columns(**(columns or {}))),
        'config': config or run_files.config(method='fedtally'),
        'summary': section_test_case.summary('fedtally', fedtally=_found(**changes)),
    }

  def test_is_part_of_the_report(self):
    run = self.read()
    titles = [s.title for s in sections.build(run, runs.read_scene(run))]
    self.assertIn(tallies.SECTION.title, titles)
    other = runs.read_run(run_files.write(self.path + '_other'))
    self.assertFalse(tallies.SECTION.applies(other))

  def test_says_what_sums_say_and_what_is_true(self):
    (text,) = self.texts(self.section())
    truth = np.nanmean(run_files.scene().realised_rate)
    self.assertIn('a client is 15.0%', text.text)
    self.assertEndsWith(text.text, f'In truth it is {truth:.1%}.')

  def test_rates_beside_those_of_the_clients(self):
    axes = self.pictures(self.section())['noise_rates_from_sums'].figure.axes[0]
    heights = [bar.get_height() for bar in axes.patches]
    np.testing.assert_allclose(heights[:3], [50, 25, 25])
    self.assertAlmostEqual(sum(heights[3:]), 100)
    self.assertEqual([t.get_text() for t in axes.get_xticklabels()], ['0', '20', '40'])

  def test_private_labels_are_reports(self):
    config = run_files.config(
        method='fedtally', training_labels='private', label_epsilon='1', seed=3
    )
    shown = self.section(config={**config, 'class_names': ['a', 'b', 'c']})
    reported = ground_truth.reported(run_files.scene(), '1', 3, 3)
    self.assertNotEqual(reported.noise_rate, run_files.scene().noise_rate)
    self.assertIn('before they are flipped', self.texts(shown)[0].text)
    pictures = self.pictures(shown)
    right = pictures['model_and_labels'].figure.axes[0].lines[1]
    np.testing.assert_allclose(right.get_ydata(), 100 * (1 - reported.noise_rate))
    self.assertEqual(right.get_label(), "clients' reports")
    self.assertIn('with the known flips', pictures['anchor'].caption)
    self.assertIn('behind the wrong reports', pictures['corrections_from_sums'].caption)

  def test_what_is_behind_wrong_labels(self):
    # One of class 0 is labelled 2, one of class 1 is 0, one of class 2 is 1.
    picture = self.pictures(self.section())['corrections_from_sums']
    ours, truth = (
        {t.get_text() for t in axes.texts} for axes in picture.figure.axes[:2]
    )
    self.assertEqual((ours, truth), ({'50.0', '–'}, {'100', '–'}))

  def test_truth_that_nobody_knows(self):
    run_files.write(self.path, **self.contents())
    scene_lib.save(section_test_case.unknown_truth(), self.path + '/scene.npz')
    run = runs.read_run(self.path)
    shown = tallies.SECTION.build(run, runs.read_scene(run))
    self.assertIn('nobody knows', self.texts(shown)[0].text)
    pictures = self.pictures(shown)
    self.assertLen(pictures['noise_rates_from_sums'].figure.axes[0].patches, 3)
    self.assertNotIn('Right:', pictures['corrections_from_sums'].caption)
    self.assertNotIn('model_and_labels', pictures)

  @parameterized.parameters(
      {'rates': [0.0]}, {'rates': 'none'}, {'clients_by_rate': [1.0]}, {'mean_rate': float('nan')},
      {'table': [[0.0, 1.0]]},
  )
  def test_damaged(self, **wrong):
    with self.assertRaisesRegex(types.UsageError, 'summary.json is damaged: fedtally'):
      self.section(**wrong)

  @parameterized.product(name=('sharpness', 'loss_q'), value=('nan', 'low'))
  def test_damaged_columns(self, name, value):
    with self.assertRaisesRegex(types.UsageError, 'metrics.csv is damaged: one of anchor'):
      self.section(columns={name: [1.0, 1.0, value, 1.0]})

  def test_rounds_on_one_axis(self):
    lines = self.pictures(self.section())['anchor'].figure.axes[0].lines
    np.testing.assert_allclose(lines[0].get_ydata(), [100, 50, 40, 40])

  def test_q_where_it_follows(self):
    self.assertLen(self.pictures(self.section())['anchor'].figure.axes, 2)
    picture = self.pictures(self.section(columns={'loss_q': [0.7, 0.6, 0.5, 0.4]}))['anchor']
    np.testing.assert_allclose(picture.figure.axes[2].lines[0].get_ydata(), [0.7, 0.6, 0.5, 0.4])
    self.assertIn('its q follows', picture.caption)

  def test_where_the_model_passes_its_labels(self):
    # Three of twelve labels are wrong.
    for accuracy, title in (
        ([0.25, np.nan, 0.8, 0.7], 'passes them in round 3'), ([0.75] * 4, 'never passes them')
    ):
      axes = self.pictures(self.section(columns={'test_accuracy': accuracy}))[
          'model_and_labels'
      ].figure.axes[0]
      self.assertIn(f'75.0% of labels are right; the model {title}', axes.get_title(loc='left'))
      measured = [100 * a for a in accuracy if np.isfinite(a)]
      np.testing.assert_allclose(axes.lines[0].get_ydata(), measured)
      np.testing.assert_allclose(axes.lines[1].get_ydata(), 75)
      self.assertEqual(axes.lines[0].get_marker(), 'o')  # One evaluation is seen.

  def test_fewer_classes_than_the_scene(self):
    with self.assertRaisesRegex(types.UsageError, 'a table of 2 classes, scene.npz has more'):
      self.section(table=[[0.0, 1.0], [1.0, 0.0]])


if __name__ == '__main__':
  absltest.main()
