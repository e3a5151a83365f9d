"""Tests of what tries are chosen on."""

import numpy as np
from absl.testing import absltest

from benchmarks import tune_methods
from tff_noise import types
from tff_noise.data import scene as scene_lib


def _dataset(n):
  x = np.arange(n, dtype=np.uint8).reshape(n, 1, 1, 1)
  y = (np.arange(n) % 3).astype(np.int32)
  return types.Dataset(
      'toy', x, y, x[:1], y[:1], num_classes=3, image_shape=(1, 1, 1), pixel_scale=1.0,
      pixel_offset=0.0, class_names=('a', 'b', 'c'),
  )


class TuneMethodsTest(absltest.TestCase):

  def test_a_tenth_of_each_client_is_withheld_with_the_labels_it_believes(self):
    sizes = (25, 9, 10, 16)
    client_of = np.repeat(np.arange(4), sizes).astype(np.int32)
    dataset = _dataset(len(client_of))
    scene = scene_lib.Scene(
        client_of, (dataset.train_y + 1) % 3, dataset.train_y, np.ones(4), np.ones(4, bool), ()
    )
    withheld, left = tune_methods._with_noisy_validation(dataset, scene, 101)
    np.testing.assert_array_equal(left.sizes, [23, 9, 9, 15])
    ids = withheld.validation.x.ravel()
    self.assertEqual(sorted(client_of[ids]), [0, 0, 2, 3])
    np.testing.assert_array_equal(left.client_of[ids], [scene_lib.SERVER] * 4)
    np.testing.assert_array_equal(withheld.validation.y, scene.noisy_label[ids])
    again, _ = tune_methods._with_noisy_validation(dataset, scene, 101)
    np.testing.assert_array_equal(again.validation.x, withheld.validation.x)
    np.testing.assert_array_equal(scene.client_of, client_of)


if __name__ == '__main__':
  absltest.main()
