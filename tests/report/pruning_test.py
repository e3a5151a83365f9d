"""Tests of the report's section on pruned clients."""

import os

from absl.testing import absltest
from absl.testing import parameterized

from tests.report import run_files
from tff_noise import types
from tff_noise.report import blocks
from tff_noise.report import figure_style
from tff_noise.report import pruning
from tff_noise.report import runs
from tff_noise.report import sections


def _config(**parameters):
  return {
      **run_files.config(method='clipfl'),
      'method_parameters': {'selector': 'validation', 'keep': 5, 'score': 'count', **parameters},
  }


def _clients(**changes):
  return {
      'client': [0, 1, 2], 'candidacies': [4, 0, 3], 'candidacy_score': [4, 0, 3],
      'taken_for_noisy': [1, 0, 1], **changes,
  }


class PruningTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.path = os.path.join(self.create_tempdir().full_path, 'a_run')

  def _run(self, found=2, **contents):
    summary = run_files.summary(method='clipfl', clipfl={'pruned_clients': found})
    del summary['label_communication']
    contents = {'config': _config(), 'summary': summary, 'clients': _clients(), **contents}
    return runs.read_run(run_files.write(self.path, **contents))

  def _blocks(self, **contents):
    run = self._run(**contents)
    return pruning.SECTION.build(run, runs.read_scene(run))

  def _texts(self, **contents):
    return [b for b in self._blocks(**contents) if isinstance(b, blocks.Text)]

  def test_is_part_of_the_report_of_clipfl_alone(self):
    run = self._run()
    self.assertIn(
        pruning.SECTION.title, [s.title for s in sections.build(run, runs.read_scene(run))]
    )
    self.assertFalse(pruning.SECTION.applies(runs.read_run(run_files.write(self.path + '_other'))))

  @parameterized.parameters(
      ({}, "by accuracy on the server's clean set; the best 5 were averaged."),
      ({'selector': 'lid', 'keep': 3}, '(LID) of their predictions; the best 3 were averaged.'),
  )
  def test_words(self, parameters, expected):
    first, second = self._texts(config=_config(**parameters))
    self.assertStartsWith(first.text, '2 of 3 clients were pruned.')
    self.assertEndsWith(first.text, expected)
    self.assertEqual(
        second.text,
        'Against the ground truth: 2 of the 2 noisy clients were found; nobody clean was taken for '
        'noisy.',
    )
    self.assertEqual(second.tone, 'plain')

  def test_wronged_clients_are_named(self):
    *_, last = self._texts(clients=_clients(taken_for_noisy=[1, 1, 0]))
    self.assertIn('missed: client 2; taken for noisy though clean: client 1.', last.text)
    self.assertEqual(last.tone, 'notice')

  @parameterized.parameters('count', 'rate')
  def test_picture(self, score):
    *_, picture = self._blocks(config=_config(score=score))
    self.assertStartsWith(figure_style.png(picture.figure), b'\x89PNG')
    self.assertEqual(picture.figure.axes[-1].get_xlabel(), pruning._NAMES[score])

  def test_run_that_is_not_finished(self):
    (only,) = self._blocks(summary=None, privacy=None, clients=None)
    self.assertIn('at the end of the run', only.text)

  @parameterized.parameters({'selector': 'god'}, {'score': 'luck'})
  def test_damaged(self, **parameters):
    with self.assertRaisesRegex(types.UsageError, 'is damaged: clipfl'):
      self._blocks(config=_config(**parameters))

  def test_other_clients_than_the_scene(self):
    with self.assertRaisesRegex(types.UsageError, 'has 2 clients, scene.npz has 3'):
      self._blocks(clients={name: values[:2] for name, values in _clients().items()})


if __name__ == '__main__':
  absltest.main()
