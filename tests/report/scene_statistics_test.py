"""Tests of the numbers of a scene."""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tests.report import pictured
from tff_noise.report import scene_statistics


class TransitionsTest(parameterized.TestCase):

  def test_transitions_are_of_the_clients_known_examples(self):
    scene = pictured.scene([0, 0, -1, 1, 1], [0, 1, 1, 1, 0], [0, 0, 1, 1, -1], [0.5, 0])
    np.testing.assert_array_equal(
        scene_statistics.transitions(scene, scene.noisy_label, 2), [[1, 1], [0, 1]]
    )
    np.testing.assert_array_equal(
        scene_statistics.transitions(scene, np.zeros(5, int), 2), [[2, 0], [1, 0]]
    )


class StatisticsTest(parameterized.TestCase):

  def test_by_hand(self):
    scene = pictured.scene(
        client_of=[0, 0, 0, 0, 1, 1, 2, -1, -1],
        noisy=[0, 1, 1, 2, 2, 2, 0, 1, 1],
        clean=[0, 0, 0, 1, 2, 2, -1, 1, 1],
        nominal=[0.5, 0.0, np.nan],
        notes=['class 1 had no owner'],
    )
    self.assertEqual(
        scene_statistics.text(scene, ['cat', 'dog', 'owl']).splitlines(),
        ['examples            7 of 3 clients, 2 more held by the server',
         'classes             3',
         'examples a client   min 1, median 2, max 4',
         'classes a client    min 1, median 1, max 3',
         'wrong labels        3 of 6 (50.0%)',
         '                    true class unknown: 1 examples',
         'noisy clients       1 of 3, unknown for 1',
         '  nominal rate      min 0.500, median 0.500, max 0.500',
         '  realised rate     min 0.750, median 0.750, max 0.750',
         'unknown clients',
         '  realised rate     unknown',
         'common confusions   cat labelled dog: 2 (66.7%)',
         '                    dog labelled owl: 1 (100.0%)',
         'notes',
         '  class 1 had no owner'],
    )

  def test_what_clients_withhold_is_counted_apart(self):
    scene = pictured.scene([0, 0, 0, 1, -1], [0, 1, 1, 1, 0], [0, 1, 0, 1, 0], [0.5, 0])
    withheld = np.array([0, 0, 1, 0, 0], bool)
    text = scene_statistics.text(scene._replace(is_withheld=withheld), ['a', 'b'])
    self.assertStartsWith(
        text, 'examples            3 of 2 clients, 1 more held by the server\n'
        '  to validate with  1 more of the clients\n',
    )
    self.assertIn('wrong labels        0 of 3 (0.0%)', text)

  def test_clean(self):
    text = scene_statistics.text(pictured.scene([0, 1], [0, 1], [0, 1], [0, 0]), ['a', 'b'])
    self.assertIn('wrong labels        0 of 2 (0.0%)\nnoisy clients       0 of 2', text)
    self.assertNotIn('confusions', text)
    self.assertNotIn('notes', text)

  def test_clients_have_names(self):
    scene = pictured.scene([0, 1, 2, 3], [0, 1, 0, 1], [0, 1, 0, 1], [0, 0, 0, 0])
    named = scene._replace(client_names=('ward $1', 'b' * 20, 'c', 'd'))
    row = 'names of clients    ward $1, bbbbbbbbbbbbb..., c'
    self.assertIn(f'\n{row}, ...\nclasses ', scene_statistics.text(named, ['a', 'b']))
    self.assertNotIn('names', scene_statistics.text(scene, ['a', 'b']))
    three = pictured.scene([0, 1, 2], [0, 1, 0], [0, 1, 0], [0, 0, 0])
    three = three._replace(client_names=named.client_names[:3])
    self.assertIn(f'\n{row}\nclasses ', scene_statistics.text(three, ['a', 'b']))

  def test_nothing_known(self):
    scene = pictured.scene([0, 1], [0, 1], [-1, -1], [np.nan, np.nan])
    text = scene_statistics.text(scene, ['a', 'b'])
    self.assertIn('wrong labels        unknown', text)
    self.assertIn('noisy clients       0 of 2, unknown for 2', text)

  def test_at_most_three_confusions_the_most_frequent_first(self):
    clean, noisy = [0] * 3 + [1] * 2 + [2] * 4 + [3], [1] * 3 + [2] * 2 + [3] * 4 + [0]
    text = scene_statistics.text(pictured.scene([0] * 10, noisy, clean, [1]), list('abcd'))
    lines = text.splitlines()
    self.assertEqual([line[20:] for line in lines if 'labelled' in line],
                     ['c labelled d: 4 (100.0%)', 'a labelled b: 3 (100.0%)',
                      'b labelled c: 2 (100.0%)'])

  def test_fits_into_a_terminal(self):
    scene = pictured.large(300_000, 10_000, 100)._replace(notes=('a long note ' * 20,) * 3)
    names = [f'a very long name of a class that nobody would print {i}' for i in range(100)]
    for line in scene_statistics.text(scene, names).splitlines():
      self.assertLessEqual(len(line), 80, line)

  def test_notes_are_limited(self):
    scene = pictured.scene([0], [0], [0], [0], notes=[f'note {i}' for i in range(1200)])
    lines = scene_statistics.text(scene, ['a']).splitlines()
    self.assertEqual(lines[-2:], ['  note 9', '  and 1,190 more'])


if __name__ == '__main__':
  absltest.main()
