"""Tests of the report's section on FedRN's neighbours; clients have 1/4, 1/5, 1/3 wrong labels."""

import numpy as np
from absl.testing import absltest

from tests.report import run_files
from tests.report import section_test_case
from tff_noise import types
from tff_noise.report import neighbours
from tff_noise.report import runs
from tff_noise.report import sections


class NeighboursTest(section_test_case.SectionTestCase):

  SECTION = neighbours.SECTION

  def contents(self, chosen=(4, 12, 0), **changes):
    clients = {'client': [0, 1, 2], 'expertise': [0.5, 0.75, 'nan'], 'times_chosen': chosen}
    return {
        'config': run_files.config(method='fedrn'),
        'summary': section_test_case.summary('fedrn'), 'clients': clients, **changes,
    }

  def test_is_part_of_the_report_of_fedrn_alone(self):
    run = self.read()
    titles = [s.title for s in sections.build(run, runs.read_scene(run))]
    self.assertIn(neighbours.SECTION.title, titles)
    other = runs.read_run(run_files.write(self.path + '_other'))
    self.assertFalse(neighbours.SECTION.applies(other))

  def test_words(self):
    first, second = self.texts(self.section())
    self.assertEqual(
        first.text, 'Clients were chosen as neighbours 16 times; 1 of 3 never were.'
    )
    # (1/4 + 1/5 + 1/3) / 3, and (4 / 4 + 12 / 5) / 16.
    self.assertIn('clients have 26.1% wrong labels on average', second.text)
    self.assertIn('chosen 21.3%', second.text)
    self.assertEqual(second.tone, 'plain')

  def test_choice_of_noisier_clients_is_a_notice(self):
    *_, last = self.texts(self.section(chosen=[0, 0, 4]))
    self.assertEqual(last.tone, 'notice')

  def test_picture(self):
    (picture,) = self.pictures(self.section()).values()
    times, expertise = picture.figure.axes[:2]
    drawn = np.concatenate([c.get_offsets() for c in times.collections])
    np.testing.assert_allclose(drawn[drawn[:, 1].argsort()], [[1 / 3, 0], [1 / 4, 4], [1 / 5, 12]])
    self.assertEqual(sum(len(c.get_offsets()) for c in expertise.collections), 2)

  def test_truth_that_nobody_knows(self):
    shown = self.section(scene=section_test_case.unknown_truth())
    self.assertIn('nobody knows', shown[-1].text)

  def test_truth_of_some(self):
    (picture,) = self.pictures(self.section(scene=run_files.scene_with_unknowns())).values()
    self.assertIn('nobody knows their noise: 1.', picture.caption)

  def test_nobody_was_chosen(self):
    (only,) = self.section(chosen=[0, 0, 0])
    self.assertEqual(only.text, 'No client was ever chosen as a neighbour.')

  def test_run_that_is_not_finished(self):
    (only,) = self.section(summary=None, privacy=None, clients=None)
    self.assertIn('at the end of the run', only.text)

  def test_other_clients_than_the_scene(self):
    with self.assertRaisesRegex(types.UsageError, 'has 1 clients, scene.npz has 3'):
      self.section(clients={'client': [0]})


if __name__ == '__main__':
  absltest.main()
