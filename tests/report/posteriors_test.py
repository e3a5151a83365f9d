"""Tests of the report's section on posteriors; examples 2, 7 and 11 have a wrong label."""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tests.report import run_files
from tests.report import section_test_case
from tff_noise import types
from tff_noise.program import ground_truth
from tff_noise.report import posteriors
from tff_noise.report import runs
from tff_noise.report import sections

_FOUND = np.array([0.9, 0.8, 0.05, 0.9, 1, 0.95, 0.9, 0.1, 0.7, 0.15, 1, 0.2], np.float32)


class PosteriorsTest(section_test_case.SectionTestCase):

  SECTION = posteriors.SECTION

  def contents(self, auc=0.9, **changes):
    return {
        'config': run_files.config(method='dividemix'),
        'summary': section_test_case.summary('dividemix', wrong_label_auc=auc),
        'posteriors': _FOUND, **changes,
    }

  def _bars(self, shown):
    """Heights by group."""
    axes = self.pictures(shown)['posteriors'].figure.axes[0]
    return {c.get_label(): [bar.get_height() for bar in c] for c in axes.containers}

  def test_is_part_of_the_report_of_runs_with_posteriors(self):
    run = self.read()
    titles = [s.title for s in sections.build(run, runs.read_scene(run))]
    self.assertIn(posteriors.SECTION.title, titles)
    other = runs.read_run(run_files.write(self.path + '_other'))
    self.assertFalse(posteriors.SECTION.applies(other))

  def test_right_and_wrong_labels(self):
    shown = self.section()
    first, second = self.texts(shown)
    self.assertStartsWith(first.text, 'Clients judged 12 of their 12 labels,')
    # Of 27 pairs one is in the wrong order.
    self.assertIn(f'in {26 / 27:.1%} of all pairs', second.text)
    self.assertEqual(second.tone, 'plain')
    bars = self._bars(shown)
    self.assertEqual(list(bars), ['right labels: 9', 'wrong labels: 3'])
    for heights in bars.values():
      self.assertAlmostEqual(sum(heights), 100, places=4)
    np.testing.assert_allclose(bars['wrong labels: 3'][:3], [100 / 3] * 3)

  def test_reports_that_clients_train_on(self):
    config = run_files.config(
        method='fedrn', training_labels='private', label_epsilon='1', seed=3
    )
    shown = self.section(config={**config, 'class_names': ['a', 'b', 'c']})
    judged = ground_truth.reported(run_files.scene(), '1', 3, 3)
    first, second = self.texts(shown)
    self.assertStartsWith(first.text, 'Clients judged 12 of their 12 reports of labels,')
    self.assertIn(f'in {ground_truth.wrong_label_auc(judged, _FOUND):.1%} of all', second.text)
    wrong = int(judged.flipped.sum())
    self.assertNotEqual(wrong, 3)
    self.assertEqual(
        list(self._bars(shown)), [f'right labels: {12 - wrong}', f'wrong labels: {wrong}']
    )

  def test_a_run_that_does_not_say_how_labels_were_flipped(self):
    config = run_files.config(method='fedrn', training_labels='private', label_epsilon=None)
    with self.assertRaisesRegex(types.UsageError, 'config.json is damaged|epsilon'):
      self.section(config=config)

  def test_no_better_than_guessing(self):
    *_, last = self.texts(self.section(posteriors=1 - _FOUND))
    self.assertEqual(last.tone, 'notice')

  def test_labels_that_nobody_judged(self):
    some = np.where(np.arange(12) < 4, _FOUND, np.nan)
    shown = self.section(posteriors=some)
    self.assertStartsWith(self.texts(shown)[0].text, 'Clients judged 4 of their 12 labels,')
    self.assertEqual(list(self._bars(shown)), ['right labels: 3', 'wrong labels: 1'])
    (only,) = self.section(posteriors=np.full(12, np.nan), auc=None)
    self.assertIn('no round', only.text)

  def test_without_wrong_labels(self):
    scene = run_files.scene()
    shown = self.section(scene=scene._replace(noisy_label=scene.clean_label), auc=None)
    self.assertIn('cannot be compared', self.texts(shown)[1].text)
    self.assertEqual(list(self._bars(shown)), ['right labels: 12'])

  def test_truth_that_nobody_knows(self):
    shown = self.section(scene=section_test_case.unknown_truth(), auc=None)
    self.assertIn('nobody knows', self.texts(shown)[1].text)
    self.assertEqual(list(self._bars(shown)), ['truth unknown: 12'])

  def test_truth_of_which_some_is_known(self):
    scene = run_files.scene_with_unknowns()
    held = np.where(scene.client_of < 0, np.nan, _FOUND)
    shown = self.section(scene=scene, posteriors=held)
    self.assertStartsWith(self.texts(shown)[0].text, 'Clients judged 10 of their 10 labels,')
    self.assertIn('5 labels are left out', self.pictures(shown)['posteriors'].caption)

  @parameterized.parameters(
      ([1, 0], 'is damaged: posterior'), ([[0.5]], 'is damaged: posterior'),
      ([np.inf], 'is damaged: posterior'), ([0.5], 'has 1 labels, scene.npz has 12'),
  )
  def test_damaged(self, content, expected):
    with self.assertRaisesRegex(types.UsageError, expected):
      self.section(posteriors=np.array(content))

  def test_missing(self):
    with self.assertRaisesRegex(types.UsageError, 'posteriors.npz cannot be read'):
      self.section(posteriors=None)


if __name__ == '__main__':
  absltest.main()
