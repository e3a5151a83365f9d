"""Tests of the report's section on transition matrices.

The scene of `run_files` has 3, 5 and 4 examples of its classes; of these one of class 0 has become
2, one of class 1 became 0, one of class 2 became 1.
"""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tests.report import run_files
from tests.report import section_test_case
from tff_noise import types
from tff_noise.data import scene as scene_lib
from tff_noise.report import runs
from tff_noise.report import scene_statistics
from tff_noise.report import sections
from tff_noise.report import transition


def _realised():
  scene = run_files.scene()
  counts = scene_statistics.transitions(scene, scene.noisy_label, 3)
  return counts / counts.sum(axis=1, keepdims=True)


class TransitionTest(section_test_case.SectionTestCase):

  SECTION = transition.SECTION

  def contents(self, estimate=None, **changes):
    estimate = _realised() if estimate is None else estimate
    found = {'estimate': np.asarray(estimate).tolist(), 'clients': 3, 'shared': False}
    return {
        'config': run_files.config(method='lc'),
        'summary': section_test_case.summary('lc', transition={**found, **changes}),
    }

  def test_is_part_of_the_report_of_runs_with_an_estimate(self):
    run = self.read()
    titles = [s.title for s in sections.build(run, runs.read_scene(run))]
    self.assertIn(transition.SECTION.title, titles)
    other = runs.read_run(run_files.write(self.path + '_other'))
    self.assertFalse(transition.SECTION.applies(other))
    unfinished = runs.read_run(run_files.write_unfinished(self.path + '_unfinished'))
    self.assertFalse(transition.SECTION.applies(unfinished))

  def test_what_is_right_is_0_away(self):
    first, second = self.texts(self.section())
    self.assertStartsWith(first.text, 'Mean of the matrices of 3 clients')
    self.assertIn('a row is 0.000 away', second.text)
    away = np.abs(np.eye(3) - _realised()).sum() / 6
    self.assertIn(f'the identity, is {away:.3f} away', second.text)
    self.assertEqual(second.tone, 'plain')

  def test_what_is_worse_than_nothing_is_a_notice(self):
    *_, last = self.texts(self.section(estimate=np.full((3, 3), 1 / 3)))
    self.assertEqual(last.tone, 'notice')

  def test_identity_corrects_nothing(self):
    *_, last = self.texts(self.section(estimate=np.eye(3)))
    self.assertStartsWith(last.text, 'The estimate is the identity: the loss is not corrected. ')
    self.assertEqual(last.tone, 'notice')

  def test_one_for_all(self):
    first, *_ = self.texts(self.section(shared=True))
    self.assertEqual(first.text, 'One matrix that all 3 clients share, pooled from what they sent.')

  def test_picture_has_one_scale(self):
    (picture,) = self.pictures(self.section()).values()
    left, right = (axes.images[0].norm.vmax for axes in picture.figure.axes[:2])
    self.assertEqual(left, right)
    self.assertAlmostEqual(left, 100 * (_realised() - np.eye(3)).max(), places=4)

  def test_rows_of_a_revised_matrix_are_as_they_are(self):
    (picture,) = self.pictures(self.section(
        estimate=[[1.2, -0.2, 0.1], [0.1, 0.9, 0], [0, 0.5, 1.5]]
    )).values()
    self.assertIn('below 0', picture.caption)
    texts = [text.get_text() for text in picture.figure.axes[0].texts]
    self.assertContainsSubset(['120', '10.0', '50.0', '150'], texts)

  def test_class_without_examples_does_not_count(self):
    estimate = np.zeros((4, 4))
    estimate[:3, :3] = _realised()
    estimate[3, 0] = 1
    *_, last = self.texts(self.section(estimate=estimate))
    self.assertIn('a row is 0.000 away', last.text)

  def test_truth_that_nobody_knows(self):
    run_files.write(self.path, **self.contents())
    scene_lib.save(section_test_case.unknown_truth(), self.path + '/scene.npz')
    run = runs.read_run(self.path)
    shown = transition.SECTION.build(run, runs.read_scene(run))
    self.assertIn('nobody knows', self.texts(shown)[1].text)
    self.assertNotIn('Right:', self.pictures(shown)['transition_estimate'].caption)

  @parameterized.parameters(
      {'estimate': [[1.0, 0.0]]}, {'estimate': [[float('nan')]]}, {'estimate': [[1, 0], [1]]},
      {'estimate': 'none'}, {'clients': 'many'}, {'clients': None},
  )
  def test_damaged(self, estimate=((1.0,),), **changes):
    contents = self.contents(**changes)
    contents['summary']['transition']['estimate'] = estimate
    run = runs.read_run(run_files.write(self.path, **contents))
    with self.assertRaisesRegex(types.UsageError, 'summary.json is damaged: transition'):
      transition.SECTION.build(run, runs.read_scene(run))

  def test_fewer_classes_than_the_scene(self):
    with self.assertRaisesRegex(types.UsageError, 'estimates 2 classes, scene.npz has more'):
      self.section(estimate=np.eye(2))


if __name__ == '__main__':
  absltest.main()
