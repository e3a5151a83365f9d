"""How two states are compared, and that a method that fails costs the others nothing."""

import contextlib
import io
import os
from unittest import mock

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from benchmarks import gpu_methods

_NAN = np.nan


class GpuMethodsTest(parameterized.TestCase):

  def _file(self, *arrays):
    path = self.create_tempfile().full_path + '.npz'
    np.savez(path, *map(np.asarray, arrays))
    return path

  @parameterized.parameters(
      (([1.0, -4.0], [7], [b'a']), ([1.0, -4.0], [7], [b'a']), (0, True)),
      (([1.5, -4.0], [8.0]), ([1.0, -4.0], [8.0]), (0.125, True)),  # Of the array's largest.
      (([1.0], [3, 4]), ([1.0], [3, 5]), (0, False)),
      (([1.0], [b'a']), ([1.0], [b'b']), (0, False)),
      (([1.0, 2.0],), ([1.0],), (np.inf, True)),
      (([_NAN, 2.0],), ([_NAN, 1.0],), (1, True)),
      (([_NAN, 1.0],), ([1.0, 1.0],), (np.inf, True)),
      (([1.0, 1.0],), ([1.0, np.inf],), (np.inf, True)),
      (([],), ([],), (0, True)),
      (([0.0],), ([0.0],), (0, True)),
  )
  def test_difference(self, here, there, expected):
    self.assertEqual(gpu_methods.difference(self._file(*here), self._file(*there)), expected)

  def test_a_method_that_fails_costs_the_others_nothing(self):
    folder, said = self.create_tempdir().full_path, io.StringIO()

    def last_state(name):
      if name == 'bad':
        raise ValueError('no such kernel')
      return [np.ones(2)]

    with (
        mock.patch.object(gpu_methods, '_last_state', last_state),
        mock.patch.object(gpu_methods.catalog, 'ALGORITHMS', dict.fromkeys('a b bad c d'.split())),
        contextlib.redirect_stderr(said),
    ):
      gpu_methods.run_part(folder, 0, 2)
    self.assertCountEqual(os.listdir(folder), ['a.npz', 'd.npz'])
    self.assertIn('no such kernel', said.getvalue())


if __name__ == '__main__':
  absltest.main()
