"""Tests of the clip: what it lets through, against every kind of vector."""

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise.federated import clipping

_LARGEST = float(np.finfo(np.float32).max)
_DENORMAL = 1e-45


def _clip(parts, norm, margin=0.0):
  clipped = clipping.clip_to_norm([tf.constant(p, tf.float32) for p in parts], norm, margin)
  return [c.numpy() for c in clipped]


def _norm(parts):
  return np.sqrt(sum(np.sum(np.square(p, dtype=np.float64)) for p in parts))


class ClipTest(parameterized.TestCase):

  @parameterized.parameters(0.5, 1.0, 1e-30, 1e10)
  def test_large_vectors_are_cut_to_the_norm_in_their_direction(self, norm):
    for parts in (
        [np.full(1000, 1e20)], [np.full((10, 7), -_LARGEST), np.array(1e-3)],
        [np.array([3.0, 4.0]) * norm], [np.zeros(99), np.array([_LARGEST])],
        [np.array([1.0, 1e-38]) * 1e4 * norm],
    ):
      clipped = _clip(parts, norm)
      self.assertLessEqual(_norm(clipped), norm)
      self.assertGreater(_norm(clipped), norm * (1 - 1e-5))
      for found, part in zip(clipped, parts, strict=True):
        np.testing.assert_allclose(
            found, np.float64(part) * (norm / _norm(parts)), rtol=1e-5, atol=1e-37
        )

  def test_vectors_within_the_norm_stay_as_they_are(self):
    for parts in (
        [np.array([0.3, 0.4])], [np.array([-0.0, 0.0])], [np.array([1e-30, -1e-30])], [np.zeros(0)],
    ):
      for found, part in zip(_clip(parts, 0.6), parts, strict=True):
        np.testing.assert_array_equal(found, np.float32(part))

  def test_denormals_come_through_or_become_zero(self):
    [found] = _clip([np.array([_DENORMAL, -_DENORMAL, 1e-39])], 1.0)
    self.assertTrue(np.isfinite(found).all())
    self.assertLess(np.abs(found).max(), 1e-38)

  @parameterized.parameters(np.inf, -np.inf, np.nan)
  def test_vectors_that_are_not_finite_become_zero(self, value):
    for parts in (
        [np.full(3, value)], [np.array([1.0, value]), np.array(2.0)], [np.ones(5), np.array(value)],
        [np.array([np.inf, -np.inf, np.nan, 1e20])],
    ):
      for found in _clip(parts, 1.0):
        np.testing.assert_array_equal(found, np.zeros_like(found))

  def test_margin_is_kept(self):
    draw = np.random.default_rng(0)
    for size in (1, 10, 100_000):
      clipped = _clip([draw.normal(99, 9, size)], 2.0, margin=1e-3)
      self.assertLessEqual(_norm(clipped), 2.0 * (1 - 1e-3))
      self.assertGreater(_norm(clipped), 2.0 * (1 - 1.01e-3))


if __name__ == '__main__':
  absltest.main()
