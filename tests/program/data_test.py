"""Tests of the way from flags to the data set and the scene."""

import os

import numpy as np
from absl.testing import absltest
from PIL import Image

from tff_noise import types
from tff_noise.data import scene as scene_lib
from tff_noise.program import data
from tff_noise.program import flags

_FEW = ('--clients=2', '--clients_per_round=2')


def _config(*arguments):
  return flags.config_from(flags.parse(['train', '--method=fedavg', *arguments]))


def _load(*arguments):
  config = _config(*arguments)
  dataset = data.load_dataset(config)
  return dataset, data.load_scene(config, dataset, None)


class DataTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = self.create_tempdir().full_path

  def _npz(self, n=40, size=(8, 8, 3), **more):
    path = os.path.join(self.folder, 'mine.npz')
    draw = np.random.default_rng(0)
    arrays = {
        'x': draw.integers(0, 256, (n, *size)).astype(np.uint8), 'y': np.arange(n) % 4,
        'x_test': draw.integers(0, 256, (8, *size)).astype(np.uint8), 'y_test': np.arange(8) % 4,
    }
    np.savez(path, **{**arrays, **more})
    return f'--data_dir={path}'

  def _image_folder(self, names, per_class=3, size=(9, 7)):
    folder = os.path.join(self.folder, 'validation')
    for i, name in enumerate(names):
      os.makedirs(os.path.join(folder, name))
      for j in range(per_class):
        image = Image.fromarray(np.full((*size, 3), 20 * i, np.uint8))
        image.save(os.path.join(folder, name, f'{j}.png'))
    return folder

  def test_fraction_is_held_out_clean_and_from_no_client(self):
    dataset, scene = _load('--validation_fraction=0.1', '--noise_rate=0.5')
    held = scene.client_of == scene_lib.SERVER
    self.assertEqual(held.sum(), 140)
    np.testing.assert_array_equal(scene.noisy_label[held], dataset.train_y[held])
    self.assertEqual(scene.sizes.sum(), 1260)
    validation = scene_lib.validation(dataset, scene)
    np.testing.assert_array_equal(validation.x, dataset.train_x[held])
    np.testing.assert_array_equal(validation.y, dataset.train_y[held])
    owned = np.concatenate(
        [c.example_id for c in scene_lib.federation(dataset, scene, 0).clients]
    )
    np.testing.assert_array_equal(np.sort(owned), np.flatnonzero(~held))

  def test_a_subset_is_the_same_for_every_seed(self):
    path = self._npz(client=np.repeat(np.arange(20), 2))
    given = ('--dataset=npz', path, '--subset=10', '--partition=natural')
    first, scene = _load(*given, '--clients_per_round=2')
    other, _ = _load(*given, '--clients_per_round=2', '--seed=5')
    self.assertLen(first.train_y, 10)
    self.assertLen(first.test_y, 8)
    np.testing.assert_array_equal(first.train_x, other.train_x)
    self.assertEqual(scene.num_clients, len(np.unique(first.client)))
    self.assertLen(scene.client_names, scene.num_clients)
    self.assertContainsSubset(scene.client_names, map(str, range(20)))
    with self.assertRaisesRegex(types.UsageError, 'at most the 40 training examples, got 41'):
      _load('--dataset=npz', path, '--subset=41', *_FEW)
    with self.assertRaisesRegex(types.UsageError, '--subset=1 has no example of '):
      _load('--dataset=npz', path, '--subset=1', *_FEW)

  def test_a_subset_has_the_classes_that_people_said_where_no_truth_is_known(self):
    unknown = np.full(40, types.UNKNOWN, np.int32)
    unknown[:2] = 0, 1
    dataset = types.Dataset(
        'x', np.zeros((40, 2, 2, 1), np.uint8), unknown, None, None, 4, (2, 2, 1), 1.0, 0.0,
        tuple('abcd'), human_y=np.arange(40, dtype=np.int32) % 4,
    )
    found = data._subset(dataset, 30)
    self.assertEqual({*found.human_y}, {0, 1, 2, 3})
    lacks = dataset._replace(human_y=np.where(np.arange(40) == 7, 3, 0).astype(np.int32))
    with self.assertRaisesRegex(types.UsageError, 'no example of . of the 4 classes'):
      data._subset(lacks, 1)

  def test_features_are_no_images(self):
    x = np.random.default_rng(0).normal(size=(40, 3))
    path = self._npz(x=x, x_test=x[:8])
    given = ('--dataset=npz', path, *_FEW)
    with self.assertRaisesRegex(types.UsageError, '--validation_dir is a folder of images'):
      _load(*given, f'--validation_dir={self._image_folder(["0", "1", "2", "3"])}')
    self.assertEqual(_load(*given)[0].train_x.dtype, np.float32)
    for flag in ('--augmentation=crop_flip', '--image_size=9'):
      with self.assertRaisesRegex(types.UsageError, 'are for images, and the data are features'):
        _load(*given, flag)

  def test_without_it_the_server_has_nothing(self):
    dataset, scene = _load()
    self.assertIsNone(scene_lib.validation(dataset, scene))

  def test_centralised_has_the_labels_of_the_federation(self):
    noise = ('--partition=iid', '--noise=client_uniform', '--noise_rho=0.5')
    _, scene = _load(*noise)
    _, together = _load(*noise, '--centralised', '--clients_per_round=1')
    self.assertEqual((scene.num_clients, together.num_clients), (20, 1))
    np.testing.assert_array_equal(together.noisy_label, scene.noisy_label)
    path = os.path.join(self.folder, 'scene.npz')
    scene_lib.save(scene, path)
    _, loaded = _load(f'--scene={path}', '--centralised', '--clients_per_round=1')
    np.testing.assert_array_equal(loaded.sizes, [1400])

  def test_centralised_has_rounds_of_one_client(self):
    with self.assertRaisesRegex(
        types.UsageError, '^--clients_per_round must be 1 with --centralised, got 10$'
    ):
      _config('--centralised')

  def test_method_that_hides_in_a_sum_is_not_centralised(self):
    with self.assertRaisesRegex(types.UsageError, '^feddpcont needs at least 2 clients, got 1'):
      _config('--centralised', '--clients_per_round=1', '--method=feddpcont')

  def test_own_directory_is_read_at_the_size_of_the_data(self):
    folder = self._image_folder(['1', '3'])
    dataset, scene = _load(
        '--dataset=npz', self._npz(), '--clients=4', '--clients_per_round=2', '--partition=iid',
        f'--validation_dir={folder}',
    )
    validation = scene_lib.validation(dataset, scene)
    self.assertEqual(validation.x.shape, (6, 8, 8, 3))
    self.assertEqual(validation.x.dtype, np.uint8)
    np.testing.assert_array_equal(validation.y, [1, 1, 1, 3, 3, 3])
    self.assertEqual(scene.sizes.sum(), 40)

  def test_files_of_images_get_the_scale_of_digits(self):
    folder = os.path.join(self.folder, 'white')
    os.makedirs(os.path.join(folder, '3'))
    image = Image.fromarray(np.full((8, 8), 255, np.uint8))
    image.save(os.path.join(folder, '3', 'a.png'))
    dataset, _ = _load(f'--validation_dir={folder}')
    np.testing.assert_array_equal(dataset.validation.x, 16)

  def test_public_images_of_another_scale_are_refused(self):
    x = np.zeros((40, 8, 8, 1), np.uint8)
    path = os.path.join(self.folder, 'grey.npz')
    np.savez(path, x=x, y=np.arange(40) % 4, x_test=x[:8], y_test=np.arange(8) % 4)
    with self.assertRaisesRegex(types.UsageError, '0 to 16, those of --dataset=npz are .*0 to 255'):
      _load('--dataset=npz', f'--data_dir={path}', *_FEW, '--public_dataset=digits')

  def test_two_ways_to_validate_are_refused(self):
    with self.assertRaisesRegex(types.UsageError, '--validation_dir and --validation_fraction'):
      _config('--validation_dir=x', '--validation_fraction=0.1')

  def test_a_scene_in_which_the_server_holds_some_out_is_a_way_to_validate(self):
    dataset, scene = _load(*_FEW, '--validation_fraction=0.25')
    path = os.path.join(self.folder, 'scene.npz')
    scene_lib.save(scene, path)
    folder = self._image_folder(['1', '3'])
    with self.assertRaisesRegex(
        types.UsageError,
        f'^--validation_dir cannot .* the server holds out {scene.server_size} examples',
    ):
      _load('--clients_per_round=2', f'--scene={path}', f'--validation_dir={folder}')
    self.assertIsNotNone(scene_lib.validation(dataset, scene))

  def test_public_images_are_some_of_the_other_set_without_labels(self):
    draw = np.random.default_rng(1)
    theirs = os.path.join(self.folder, 'theirs.npz')
    x = draw.integers(0, 256, (30, 8, 8, 3)).astype(np.uint8)
    np.savez(theirs, x=x, y=np.arange(30) % 3, x_test=x[:3], y_test=np.arange(3))
    flags_ = (
        '--dataset=npz', self._npz(), *_FEW, '--public_dataset=npz', f'--public_dir={theirs}',
        '--public_examples=12',
    )
    dataset, _ = _load(*flags_)
    self.assertEqual((dataset.public.shape, dataset.public.dtype), ((12, 8, 8, 3), np.uint8))
    found = [int(np.flatnonzero((x == image).all(axis=(1, 2, 3)))[0]) for image in dataset.public]
    self.assertLen(set(found), 12)
    self.assertEqual(found, sorted(found))
    np.testing.assert_array_equal(dataset.public, _load(*flags_)[0].public)
    self.assertFalse(np.array_equal(dataset.public, _load(*flags_, '--seed=1')[0].public))

  def test_public_images_need_no_labels_and_none_is_set_aside(self):
    theirs = os.path.join(self.folder, 'theirs.npz')
    np.savez(theirs, x=np.zeros((30, 8, 8, 3), np.uint8))
    dataset, _ = _load(
        '--dataset=npz', self._npz(), *_FEW, '--public_dataset=npz', f'--public_dir={theirs}'
    )
    self.assertLen(dataset.public, 30)

  def test_public_images_are_looked_for_where_the_data_are(self):
    dataset, _ = _load('--dataset=npz', self._npz(n=9), *_FEW, '--public_dataset=npz')
    self.assertLen(dataset.public, 9)
    self.assertIsNone(_load('--dataset=npz', self._npz(), *_FEW)[0].public)

  def test_public_images_of_another_shape_are_refused(self):
    with self.assertRaisesRegex(
        types.UsageError,
        r'^--public_dataset=digits has images of \(8, 8, 1\), 0 to 16, those of --dataset=npz '
        r'are \(8, 8, 3\), 0 to 255',
    ):
      _load('--dataset=npz', self._npz(), *_FEW, '--public_dataset=digits')

  def test_natural_clients_come_from_the_data(self):
    client = np.repeat([7, 3, 9, 3], 10)
    _, scene = _load(
        '--dataset=npz', self._npz(client=client), '--partition=natural', '--clients_per_round=3',
        '--noise=none',
    )
    np.testing.assert_array_equal(scene.sizes, [20, 10, 10])
    with self.assertRaisesRegex(types.UsageError, 'clients_per_round must be at most'):
      _load('--dataset=npz', self._npz(client=client), '--partition=natural')

  def test_human_labels_of_ones_own_file(self):
    clean = np.arange(40) % 4
    _, scene = _load(
        '--dataset=npz', self._npz(y=np.roll(clean, 1), clean_y=clean), '--partition=iid',
        '--noise=human', '--clients=4', '--clients_per_round=2',
    )
    np.testing.assert_array_equal(scene.noisy_label, np.roll(clean, 1))
    self.assertEqual(scene.noise_rate, 1)

  def test_too_large_a_client_is_refused_with_the_remedy(self):
    path = self._npz(n=12, size=(1700, 1700, 3))
    arguments = (
        '--dataset=npz', path, '--partition=iid', '--noise=none', '--clients_per_round=1',
    )
    with self.assertRaisesRegex(types.UsageError, 'would hold 99 MiB.*at most 100 MiB.*--clients'):
      _load(*arguments, '--clients=1')
    with self.assertRaisesRegex(types.UsageError, 'use a smaller --subset, or give the images'):
      _load(*arguments, '--clients=2', '--centralised')
    _, scene = _load(*arguments, '--clients=2')
    self.assertEqual(scene.num_clients, 2)

  def test_what_clients_withhold_is_refused_beside_noise_on_updates_however_it_came(self):
    path = os.path.join(self.folder, 'scene.npz')
    _, scene = _load('--client_validation_fraction=0.2')
    scene_lib.save(scene, path)
    private = ('--client_dp_noise=1', '--client_dp_clip=1')
    for given in ('--client_validation_fraction=0.2', f'--scene={path}'):
      with self.assertRaisesRegex(
          types.UsageError, '^--client_validation_fraction, or a --scene .* cannot be given with '
          'client DP'
      ):
        _load(given, *private)
    _load(*private)

  def test_the_pixels_that_a_client_withholds_are_limited_too(self):
    path = self._npz(n=14, size=(1700, 1700, 3))
    arguments = (
        '--dataset=npz', path, '--partition=iid', '--noise=none', '--clients_per_round=1',
        '--clients=1',
    )
    _load(*arguments, '--client_validation_fraction=0.5')
    with self.assertRaisesRegex(types.UsageError, 'client 0 would hold 107 MiB'):
      _load(*arguments, '--client_validation_fraction=0.95')

  def test_noise_by_client_and_open_set_clients_exclude_each_other(self):
    with self.assertRaisesRegex(types.UsageError, '--noise=client_uniform .*--partition=openset'):
      _load('--noise=client_uniform')

  def test_synthetic_noise_on_a_set_of_human_labels_is_refused(self):
    with self.assertRaisesRegex(types.UsageError, 'noise must be human for --dataset=cifar10n'):
      _config('--dataset=cifar10n')

  def test_matrix_needs_its_file(self):
    with self.assertRaisesRegex(types.UsageError, '--noise_matrix must be given'):
      _load('--noise=matrix')
    path = os.path.join(self.folder, 'T.csv')
    np.savetxt(path, np.roll(np.eye(10), 1, axis=1), delimiter=',')
    _, scene = _load('--noise=matrix', f'--noise_matrix={path}')
    np.testing.assert_array_equal(scene.noisy_label, (scene.clean_label + 1) % 10)

  def test_q_of_each_class_from_a_file(self):
    path = os.path.join(self.folder, 'q.csv')
    np.savetxt(path, np.linspace(0.1, 0.9, 10))
    _, scene = _load(f'--openset_q={path}', '--noise=none', '--clients=200')
    holds = np.zeros((200, 10), bool)
    holds[scene.client_of, scene.noisy_label] = True
    self.assertLess(holds[:, 0].mean(), 0.3)
    self.assertGreater(holds[:, 9].mean(), 0.7)


if __name__ == '__main__':
  absltest.main()
