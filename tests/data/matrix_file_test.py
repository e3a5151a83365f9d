"""Tests of reading vectors and matrices from files."""

import os

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise import types
from tff_noise.data import matrix_file

# A header that promises more than memory can have.
_HEADER = b"{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000000000000,), }\n"
_HUGE = b'\x93NUMPY\x01\x00' + len(_HEADER).to_bytes(2, 'little') + _HEADER
_UNREADABLE_HEADER = _HUGE.replace(b'}', b'(')


class MatrixFileTest(parameterized.TestCase):

  def _path(self, name, content=None):
    path = os.path.join(self.create_tempdir().full_path, name)
    if content is not None:
      with open(path, 'wb') as file:
        file.write(content)
    return path

  def _npy(self, array, **kwargs):
    path = self._path('q.npy')
    np.save(path, array, **kwargs)
    return path

  def _error(self, path):
    """The message, which must be one line with the flag and the file."""
    with self.assertRaises(types.UsageError) as caught:
      matrix_file.read(path, '--openset_q')
    message = str(caught.exception)
    self.assertNotIn('\n', message)
    self.assertStartsWith(message, f'--openset_q={path}')
    return message

  @parameterized.parameters(
      ([[0.5, 0.25], [1.0, 0.0]],),
      ([0.1, 0.2, 0.3],),
      (np.array([[1, 0], [0, 1]], np.int8),),
      (np.array([[True, False]]),),
      (np.float32([[0.5], [0.25]]),),
  )
  def test_npy(self, array):
    values = matrix_file.read(self._npy(np.array(array)), '--flag')
    self.assertEqual((values.dtype, values.shape), (np.float64, np.shape(array)))
    np.testing.assert_array_equal(values, array)

  @parameterized.parameters(
      ('q.csv', b'0.5,0.25\n1,0\n', [[0.5, 0.25], [1, 0]]),
      ('q.CSV', b'0.5, 0.25\r\n1, 0\r\n', [[0.5, 0.25], [1, 0]]),
      ('q.txt', b'0.5 0.25\n1\t0', [[0.5, 0.25], [1, 0]]),
      ('q.txt', b'# Q\n\n0.5 0.25 # client 0\n  \n1e-3 0\n', [[0.5, 0.25], [0.001, 0]]),
      ('q.csv', b'\xef\xbb\xbf0.5,0.25\n', [0.5, 0.25]),  # As spreadsheets write it.
      ('q.csv', b'0.5\n0.25\n1\n', [0.5, 0.25, 1]),
      ('q.csv', b'0.5\n', [0.5]),
  )
  def test_text(self, name, content, expected):
    values = matrix_file.read(self._path(name, content), '--flag')
    self.assertEqual((values.dtype, values.shape), (np.float64, np.shape(expected)))
    np.testing.assert_array_equal(values, expected)

  def test_missing_file(self):
    self.assertIn('no such file', self._error(self._path('none.csv')))

  @parameterized.parameters('q.npz', 'q', 'q.xlsx', '.csv')
  def test_other_kinds_of_file(self, name):
    self.assertIn('.npy, .csv or .txt', self._error(self._path(name, b'0.5')))

  def test_directory(self):
    path = self._path('folder.csv')
    os.mkdir(path)
    self.assertIn('cannot be read', self._error(path))

  @parameterized.parameters(
      ('q.csv', b'', 'empty'),
      ('q.csv', b'# only a comment\n', 'empty'),
      ('q.csv', b'a,b\n1,2\n', "could not convert string 'a'"),
      ('q.csv', b'1,2\n3\n', 'number of columns changed from 2 to 1'),
      ('q.csv', b'\xff\xfe\x00', 'codec'),
      ('q.npy', b'', ''),
      ('q.npy', b'0.5,0.25', 'magic string'),
      ('q.npy', b'\x93NUMPY\x01\x00', ''),
      ('q.npy', _HUGE, ''),
      ('q.npy', _UNREADABLE_HEADER, ''),
  )
  def test_damaged_file(self, name, content, reason):
    message = self._error(self._path(name, content))
    self.assertIn('cannot be read', message)
    self.assertIn(reason, message)

  def test_truncated_npy(self):
    path = self._npy(np.ones((4, 4)))
    with open(path, 'r+b') as file:
      file.truncate(os.path.getsize(path) - 8)
    self.assertIn('cannot be read', self._error(path))

  def test_pickled_objects_are_not_loaded(self):
    self.assertIn(
        'Object arrays', self._error(self._npy(np.array([{}, 1], object), allow_pickle=True))
    )

  @parameterized.parameters((np.array(['a', 'b']),), (np.array([1j]),))
  def test_other_entries(self, array):
    self.assertIn('not numbers', self._error(self._npy(array)))

  @parameterized.parameters((np.float64(0.5),), (np.ones((2, 2, 2)),), (np.ones((0, 3)),))
  def test_other_shapes(self, array):
    self.assertIn(f'shape {array.shape}', self._error(self._npy(array)))

  @parameterized.parameters(('q.csv', b'0.5,nan\n1,0\n'), ('q.txt', b'1 inf\n0 0'))
  def test_entry_that_is_not_finite(self, name, content):
    self.assertIn('[0, 1]', self._error(self._path(name, content)))


if __name__ == '__main__':
  absltest.main()
