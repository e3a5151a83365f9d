"""Tests for the cut of what clients send to its bounds."""

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise.uplink import bounds
from tff_noise.uplink import uplink

_SUM = uplink.UplinkSum('sum', np.int32, -1, 2**31 - 1, 'a test', (2,))
_REPORT = uplink.UplinkReport('report', np.float32, -1.0, 50.0, 'a test')


class CutTest(parameterized.TestCase):

  @parameterized.parameters(
      (51.0, 50.0), (-1e30, -1.0), (np.inf, 50.0), (7.5, 7.5), (np.nan, np.nan),
  )
  def test_values_are_cut_and_none_stays_none(self, value, expected):
    found = bounds.cut([_SUM, _REPORT], {'report': tf.constant(value, tf.float32)})
    np.testing.assert_array_equal(found['report'], np.float32(expected))

  def test_each_entry_is_cut_in_its_own_type(self):
    found = bounds.cut([_SUM], {'sum': tf.constant([-2, 2**31 - 1])})
    np.testing.assert_array_equal(found['sum'], np.array([-1, 2**31 - 1], np.int32))

  def test_another_shape_is_a_mistake(self):
    with self.assertRaises((ValueError, tf.errors.InvalidArgumentError)):
      bounds.cut([_REPORT], {'report': tf.zeros([2])})


if __name__ == '__main__':
  absltest.main()
