"""Tests of who is there in which round."""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise import types
from tff_noise.selection import availability


class PresentTest(parameterized.TestCase):

  def test_from_the_round_it_joins_to_the_one_before_it_leaves(self):
    found = availability.Availability(np.array([1, 3, 2]), np.array([4, 5, availability.NEVER]))
    self.assertEqual(
        [found.present(r).tolist() for r in (1, 2, 3, 4, 5, 10**9)],
        [[0], [0, 2], [0, 1, 2], [1, 2], [2], [2]],
    )
    self.assertEqual(found.present(1).dtype, np.int64)

  def test_always(self):
    found = availability.always(3)
    for round_num in (1, 2, 10**9):
      self.assertEqual(found.present(round_num).tolist(), [0, 1, 2])


class UniformTest(parameterized.TestCase):

  def test_share_joins_late_and_nobody_leaves(self):
    found = availability.parse('uniform:0.5:10', 1000, 0)
    self.assertTrue((found.leaves == availability.NEVER).all())
    self.assertBetween(found.joins.min(), 1, 1)
    self.assertBetween(found.joins.max(), 10, 10)
    # 500 were drawn, of which a tenth, 50 (standard error 6.7), join in round 1 all the same.
    self.assertBetween((found.joins > 1).sum(), 450 - 27, 450 + 27)
    later = np.bincount(found.joins[found.joins > 1], minlength=11)[2:]
    self.assertLess(np.abs(later - 50).max(), 4 * 6.7)

  @parameterized.parameters('uniform:0:10', 'uniform:1:1', 'uniform:0.0:999')
  def test_nobody_late(self, text):
    np.testing.assert_array_equal(availability.parse(text, 5, 0).joins, np.ones(5))

  def test_everybody_may_be_late(self):
    self.assertGreater(availability.parse('uniform:1:1000000', 20, 0).joins.min(), 1)

  def test_is_a_function_of_the_seed(self):
    def joins(seed):
      return availability.parse('uniform:.5:100', 20, seed).joins.tolist()

    self.assertEqual(joins(3), joins(3))
    self.assertNotEqual(joins(3), joins(4))

  @parameterized.parameters(
      'uniform:1.1:10', 'uniform:0.5:0', 'uniform:0.5.5:10', 'uniform:.:10', 'uniform:2:0'
  )
  def test_out_of_range(self, text):
    with self.assertRaises(types.UsageError) as caught:
      availability.parse(text, 5, 0)
    self.assertEqual(
        str(caught.exception),
        f'--arrivals={text}: SHARE must be in [0, 1] and LAST_ROUND at least 1',
    )

  @parameterized.parameters(
      'uniform', 'uniform:0.5', 'uniform:-0.5:10', 'uniform:nan:10', 'uniform:0.5:-1',
      'uniform:0.5:1.5', 'poisson:0.5:10', 'uniform:0.5:9999999999',
  )
  def test_other_texts_are_names_of_files(self, text):
    with self.assertRaises(types.UsageError) as caught:
      availability.parse(text, 5, 0)
    self.assertEqual(
        str(caught.exception),
        f'--arrivals={text} cannot be read (FileNotFoundError); it takes a file with the columns '
        'client, joins, leaves, or uniform:SHARE:LAST_ROUND',
    )


class FileTest(parameterized.TestCase):

  def _parse(self, content, num_clients=4):
    self.path = self.create_tempfile('arrivals.csv', content=content).full_path
    return availability.parse(self.path, num_clients, 0)

  def _lists(self, found):
    leaves = [None if r == availability.NEVER else r for r in found.leaves.tolist()]
    return found.joins.tolist(), leaves

  def test_clients_that_are_not_named_are_always_there(self):
    found = self._parse('client,joins,leaves\n2,5,9\n0, 3 ,\n')
    self.assertEqual(self._lists(found), ([3, 1, 5, 1], [None, None, 9, None]))

  def test_leaving_may_be_left_out_and_columns_may_be_in_any_order(self):
    self.assertEqual(self._lists(self._parse('joins,client\n5,1\n'))[0], [1, 5, 1, 1])

  def test_round_zero_is_the_first(self):
    self.assertEqual(self._lists(self._parse('client,joins\n1,0\n'))[0], [1, 1, 1, 1])

  def test_only_a_heading(self):
    found = self._parse('client,joins,leaves\n')
    self.assertEqual(self._lists(found), ([1] * 4, [None] * 4))

  @parameterized.parameters(
      ('client,joins\n4,1\n', 2, 'there is no client 4, they are 0 to 3'),
      ('client,joins\n1,1\n1.0,1\n', 3, "client must be a whole number, got '1.0'"),
      ('client,joins\n-1,1\n', 2, "client must be a whole number, got '-1'"),
      ('client,joins\n1,soon\n', 2, "joins must be a whole number, got 'soon'"),
      ('client,joins\n1,\n', 2, "joins must be a whole number, got ''"),
      ('client,joins\n1\n', 2, "joins must be a whole number, got ''"),
      ('client,joins\n1,2,5\n', 2, 'it has more values than there are columns'),
      ('client,joins\n1,1234567890\n', 2, "joins must be a whole number, got '1234567890'"),
      ('client,joins,leaves\n1,1,never\n', 2, "leaves must be a whole number, got 'never'"),
      ('client,joins,leaves\n1,5,5\n', 2, 'client 1 leaves before it has joined'),
      ('client,joins,leaves\n1,0,1\n', 2, 'client 1 leaves before it has joined'),
      ('client,joins\n1,3\n0,1\n1,4\n', 4,
       'client 1 is named twice; give each client one line'),
  )
  def test_mistakes_are_named_with_their_line(self, content, line, message):
    with self.assertRaises(types.UsageError) as caught:
      self._parse(content)
    self.assertEqual(str(caught.exception), f'--arrivals={self.path}, line {line}: {message}')

  @parameterized.parameters(
      ('1,3,5\n2,3,5\n', '1, 3, 5'), ('id,joins\n1,3\n', 'id, joins'), ('client\n1\n', 'client'),
      ('', 'none'), ('client,joins,leave\n1,2,5\n', 'client, joins, leave'),
      ('client,joins, leaves\n1,2,5\n', 'client, joins,  leaves'),
  )
  def test_other_columns_are_refused(self, content, columns):
    with self.assertRaisesRegex(
        types.UsageError, f'has the columns {columns}; it takes a file with the columns client'
    ):
      self._parse(content)

  def test_clients_that_the_data_call_by_names(self):
    path = self.create_tempfile(content='client,joins\n1,5\n10,7\n').full_path
    names = ('1', '2', '10')
    self.assertEqual(availability.parse(path, 3, 0, names).joins.tolist(), [5, 1, 7])
    with self.assertRaisesRegex(types.UsageError, "line 3: there is no client '10', .* them 1, 2$"):
      availability.parse(path, 2, 0, names[:2])

  def test_mark_at_the_start_of_a_file_does_not_matter(self):
    self.assertEqual(self._lists(self._parse('\ufeffclient,joins\n1,5\n'))[0], [1, 5, 1, 1])

  @parameterized.parameters(b'client,joins\n\xff\xfe,1\n', b'client\n' + b'1' * 200_000)
  def test_files_that_are_no_text(self, content):
    path = self.create_tempfile('arrivals.csv', content=content, mode='wb').full_path
    with self.assertRaisesRegex(
        types.UsageError, r'^--arrivals=.* cannot be read \((UnicodeDecodeError|Error)\); it takes'
    ):
      availability.parse(path, 4, 0)

  def test_folder(self):
    folder = self.create_tempdir().full_path
    with self.assertRaisesRegex(types.UsageError, r'cannot be read \(IsADirectoryError\)'):
      availability.parse(folder, 4, 0)


if __name__ == '__main__':
  absltest.main()
