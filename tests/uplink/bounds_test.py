"""Tests for the cut of what clients send to its bounds."""

import json

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise import types
from tff_noise.uplink import bounds
from tff_noise.uplink import uplink

_SUM = uplink.UplinkSum('sum', np.int32, -1, 2**31 - 1, 'a test', (2,))
_REPORT = uplink.UplinkReport('report', np.float32, -1.0, 50.0, 'a test')


class ClipTest(parameterized.TestCase):

  @parameterized.parameters(
      (51.0, 50.0), (-1e30, -1.0), (np.inf, 50.0), (7.5, 7.5), (np.nan, np.nan),
  )
  def test_values_are_cut_and_none_stays_none(self, value, expected):
    found = bounds.clip([_SUM, _REPORT], {'report': tf.constant(value, tf.float32)})
    np.testing.assert_array_equal(found['report'], np.float32(expected))

  def test_each_entry_is_cut_in_its_own_type(self):
    found = bounds.clip([_SUM], {'sum': tf.constant([-2, 2**31 - 1])})
    np.testing.assert_array_equal(found['sum'], np.array([-1, 2**31 - 1], np.int32))

  @parameterized.parameters(
      (np.int32, 0, 2**31), (np.int32, None, 3), (np.float32, 0, np.inf), (np.float32, 2, 1),
      (np.float32, 0, np.nan), (np.float32, 0, 1e39), (np.float32, 0, np.ones(2)),
      (np.float32, 'a', 2),
  )
  def test_bounds_that_are_none_are_told(self, dtype, lower, upper):
    declared = uplink.UplinkSum('mine', dtype, lower, upper, 'a test')
    with self.assertRaisesRegex(types.UsageError, "declares 'mine' from .* two finite numbers of"):
      bounds.limits(declared)
    with self.assertRaises(types.UsageError):
      bounds.clip([declared], {'mine': tf.constant(0, dtype)})

  @parameterized.parameters(
      (np.int32, np.int64(3), np.int64(7)), (np.dtype('float32'), np.float32(3), 7), (int, 3, 7),
  )
  def test_numbers_of_numpy_are_those_of_python(self, dtype, lower, upper):
    found = bounds.limits(uplink.UplinkSum('mine', dtype, lower, upper, 'a test'))
    self.assertEqual(json.dumps(found), '[3, 7]' if np.dtype(dtype).kind == 'i' else '[3.0, 7.0]')

  def test_another_shape_is_a_mistake(self):
    with self.assertRaises((ValueError, tf.errors.InvalidArgumentError)):
      bounds.clip([_REPORT], {'report': tf.zeros([2])})


if __name__ == '__main__':
  absltest.main()
