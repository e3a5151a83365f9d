"""Tests of clients by number and by name."""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise.data import natural_clients


class NaturalClientsTest(parameterized.TestCase):

  @parameterized.parameters(
      ([2, 0, 1, 0], [2, 0, 1, 0], ()),
      ([8, 3, -1, 3], [2, 1, 0, 1], ('-1', '3', '8')),
      ([1, 2, 2], [0, 1, 1], ('1', '2')),
      (['w', 'é', 'w'], [0, 1, 0], ('w', 'é')),
      (['10', '9', '10'], [1, 0, 1], ('9', '10')),
      (['1', '0'], [1, 0], ()),
      (['10', '09', '10'], [1, 0, 1], ('09', '10')),
  )
  def test_by_hand(self, called, client, names):
    found, found_names = natural_clients.number(np.array(called))
    np.testing.assert_array_equal(found, client)
    self.assertEqual((found.dtype, found_names), (np.int32, names))
    again, again_names = natural_clients.part(found, found_names)
    np.testing.assert_array_equal(again, client)
    self.assertEqual(again_names, names)

  @parameterized.parameters(
      ('a' * 201, "^'a+'... has 201 char"), ('a\ud800', 'is no text that UT'),
      ('a\r', 'has a line break'),
  )
  def test_what_no_file_of_results_could_have_is_refused(self, name, message):
    with self.assertRaisesRegex(ValueError, message):
      natural_clients.number(np.array([name, 'b']))

  @parameterized.parameters(
      ([0, 1, 2, 3], ('2', '3')), ([5, 7, 12, 9], ('9', '12')), (['a', 'b', 'c', 'd'], ('c', 'd'))
  )
  def test_a_part_keeps_names_and_order(self, called, left):
    client, names = natural_clients.number(np.array(called))
    part, part_names = natural_clients.part(client[client >= 2], names)
    np.testing.assert_array_equal(
        np.array(part_names)[part], np.array(list(map(str, called)))[client >= 2]
    )
    self.assertEqual(part_names, tuple(map(str, left)))


if __name__ == '__main__':
  absltest.main()
