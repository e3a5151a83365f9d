"""Tests of what tries are chosen on."""

import numpy as np
from absl.testing import absltest

from benchmarks import tune_methods
from tff_noise import types
from tff_noise.data import scene as scene_lib
from tff_noise.program import flags


def _dataset(n):
  x = np.arange(n, dtype=np.uint8).reshape(n, 1, 1, 1)
  y = (np.arange(n) % 3).astype(np.int32)
  return types.Dataset(
      'toy', x, y, x[:1], y[:1], num_classes=3, image_shape=(1, 1, 1), pixel_scale=1.0,
      pixel_offset=0.0, class_names=('a', 'b', 'c'),
  )


class TuneMethodsTest(absltest.TestCase):

  def test_what_clients_withhold_is_the_validation_set_with_the_labels_they_believe(self):
    client_of = np.repeat(np.arange(3), (4, 2, 3)).astype(np.int32)
    dataset = _dataset(len(client_of))
    withheld = np.array([0, 1, 0, 0, 0, 0, 1, 0, 1], bool)
    scene = scene_lib.Scene(
        client_of, (dataset.train_y + 1) % 3, dataset.train_y, np.ones(3), np.ones(3, bool), (),
        is_withheld=withheld,
    )
    given, left = tune_methods._with_noisy_validation(dataset, scene)
    self.assertEqual(given.validation.x.ravel().tolist(), [1, 6, 8])
    np.testing.assert_array_equal(given.validation.y, scene.noisy_label[withheld])
    np.testing.assert_array_equal(left.sizes, scene.sizes)
    self.assertEqual(left.client_of[withheld].tolist(), [scene_lib.SERVER] * 3)
    self.assertIsNone(left.is_withheld)

  def test_clients_withhold_a_tenth_unless_the_server_has_a_clean_set(self):
    for given, withheld in (((), 20 * 7), (('--validation_fraction=0.1',), 0)):
      config = flags.config_from(flags.parse(['train', '--partition=iid', *given]))
      dataset, scene = tune_methods._load(config)
      self.assertIsNone(scene.is_withheld)
      noisy = dataset.validation
      self.assertEqual(0 if noisy is None else len(noisy.y), withheld)
      self.assertEqual(scene.sizes.sum(), len(dataset.train_y) - scene.server_size)


if __name__ == '__main__':
  absltest.main()
