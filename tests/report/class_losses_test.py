"""Tests of the report's section on FedNoRo's and FedELC's verdict; clients 0 and 2 are noisy."""

from absl.testing import absltest
from absl.testing import parameterized

from tests.report import run_files
from tests.report import section_test_case
from tff_noise import types
from tff_noise.report import class_losses
from tff_noise.report import runs
from tff_noise.report import sections


class ClassLossesTest(section_test_case.SectionTestCase):

  SECTION = class_losses.SECTION

  def contents(self, method='fednoro', judged=3, noisy=2, **changes):
    found = {'judged_clients': judged, 'noisy_clients': noisy}
    clients = {
        'client': [0, 1, 2], 'class_loss_score': [2.5, 0.5, 2], 'taken_for_noisy': [1, 0, 1]
    }
    return {
        'config': run_files.config(method=method),
        'summary': section_test_case.summary(method, **{method: found}), 'clients': clients,
        **changes,
    }

  @parameterized.parameters('fednoro', 'fedelc')
  def test_is_part_of_the_report(self, method):
    run = self.read(method=method)
    titles = [s.title for s in sections.build(run, runs.read_scene(run))]
    self.assertIn(class_losses.SECTION.title, titles)

  def test_is_no_part_of_other_reports(self):
    other = runs.read_run(run_files.write(self.path + '_other'))
    self.assertFalse(class_losses.SECTION.applies(other))

  def test_words(self):
    first, second = self.texts(self.section())
    self.assertStartsWith(first.text, '2 of 3 clients were taken for noisy, once, after')
    self.assertEqual(
        second.text,
        'Against the ground truth: 2 of the 2 noisy clients were found; nobody clean was taken for '
        'noisy.',
    )
    self.assertEqual(second.tone, 'plain')

  def test_wronged_and_missing_clients(self):
    shown = self.section(judged=2, noisy=1, clients={
        'client': [0, 1, 2], 'class_loss_score': [2.5, 3, 'nan'], 'taken_for_noisy': [0, 1, 0],
    })
    first, second = self.texts(shown)
    self.assertEndsWith(first.text, ' Not there, and so taken for clean: 1.')
    self.assertEqual(second.tone, 'notice')
    self.assertEqual(list(self.pictures(shown)), ['class_loss_scores'])

  def test_picture(self):
    (picture,) = self.pictures(self.section(method='fedelc')).values()
    self.assertIn('scaled losses', picture.figure.axes[-1].get_xlabel())

  def test_truth_that_nobody_knows(self):
    shown = self.section(scene=section_test_case.unknown_truth())
    self.assertIn('nobody knows', self.texts(shown)[1].text)
    self.assertEqual(list(self.pictures(shown)), ['class_loss_scores'])

  def test_without_a_second_stage(self):
    (only,) = self.section(judged=0, noisy=0)
    self.assertStartsWith(only.text, 'Nobody was judged')

  def test_run_that_is_not_finished(self):
    (only,) = self.section(summary=None, privacy=None, clients=None)
    self.assertIn('at the end of the run', only.text)

  @parameterized.parameters({'noisy': 'all'}, {'judged': None})
  def test_damaged(self, **changes):
    with self.assertRaisesRegex(types.UsageError, 'summary.json is damaged: fednoro'):
      self.section(**changes)


if __name__ == '__main__':
  absltest.main()
