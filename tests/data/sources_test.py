"""Tests of the data sets."""

import os
import pathlib
import subprocess
import sys
from unittest import mock

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized
from sklearn import datasets

from tff_noise import types
from tff_noise.data import sources

_COARSE = {0: 4, 1: 1, 2: 14}  # Of the first classes of CIFAR-100.


def _write_cifar(root, name):
  """Writes images in the binary layout: three classes, class k being images of the colour k."""
  folder, files, record = {
      'cifar10': (
          'cifar-10-batches-bin',
          [*(f'data_batch_{i}.bin' for i in range(1, 6)), 'test_batch.bin'],
          lambda k: bytes([k]) + bytes([k]) * 3072,
      ),
      'cifar100': (
          'cifar-100-binary',
          ['train.bin', 'test.bin'],
          lambda k: bytes([_COARSE[k], k]) + bytes([k]) * 3072,
      ),
  }[name]
  (root / folder).mkdir()
  for file in files:
    (root / folder / file).write_bytes(b''.join(map(record, range(3))))


def _write_human(path, num_train, **columns):
  np.savez(path, clean_label=np.arange(num_train) % 3, **columns)


def _write_clothing1m(root):
  keys = [f'images/{k}.jpg' for k in range(14)]
  (root / 'images').mkdir()
  for key in keys:
    (root / key).touch()
  lines = [f'{key} {k}' for k, key in enumerate(keys)]
  for name, content in (('noisy_label_kv', lines), ('clean_label_kv', lines),
                        ('noisy_train_key_list', keys), ('clean_test_key_list', keys)):
    (root / f'{name}.txt').write_text('\n'.join(content) + '\n')


def _write_image_folder(root):
  for name in ('train/a/1.jpg', 'train/b/1.jpg', 'test/a/1.jpg', 'test/b/1.jpg'):
    (root / name).parent.mkdir(parents=True)
    (root / name).touch()


def _write_all(root):
  """Writes every data set that needs files into one folder."""
  for name, num_train in (('cifar10', 15), ('cifar100', 3)):
    _write_cifar(root, name)
    labels = np.arange(num_train) % 3
    labels[0] = 2
    column = 'worse_label' if name == 'cifar10' else 'noisy_label'
    _write_human(root / f'CIFAR-{name[5:]}_human.npz', num_train, **{column: labels})
  _write_clothing1m(root)
  _write_image_folder(root)
  x = np.arange(20, dtype=np.uint8).reshape(5, 2, 2)
  np.savez(root / 'own.npz', x=x, y=np.arange(5) % 2, x_test=x, y_test=np.arange(5) % 2)


def _spec(name, root, **kwargs):
  own = root / 'own.npz' if name == 'npz' else root
  return sources.DataSpec(name, str(own), **kwargs)


class _Test(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.create_tempdir().full_path)

  def assert_refused(self, message, spec):
    with self.assertRaisesRegex(types.UsageError, message) as raised:
      sources.load(spec)
    self.assertNotIn('\n', str(raised.exception))


class EveryDatasetTest(_Test):

  @parameterized.parameters(*((name,) for name in sources.DATASETS))
  def test_keeps_the_contract_of_types_dataset(self, name):
    _write_all(self.root)
    dataset = sources.load(_spec(name, self.root))
    self.assertEqual(dataset.name, name)
    for x, y in ((dataset.train_x, dataset.train_y), (dataset.test_x, dataset.test_y)):
      self.assertEqual(y.dtype, np.int32)
      self.assertEqual(y.shape, (len(x),))
      self.assertTrue(((y >= 0) & (y < dataset.num_classes)).all())
      if x.dtype.kind == 'S':
        self.assertEqual((x.ndim, dataset.image_shape), (1, (224, 224, 3)))
      else:
        self.assertEqual((x.dtype, x.shape[1:]), (np.uint8, dataset.image_shape))
    for values in (dataset.pixel_scale, dataset.pixel_offset):
      self.assertIn(np.size(values), (1, dataset.image_shape[2]))
    self.assertLen(set(dataset.class_names), dataset.num_classes)
    if dataset.similar_class is not None:
      self.assertLen(dataset.similar_class, dataset.num_classes)
      self.assertBetween(max(dataset.similar_class), 0, dataset.num_classes - 1)
    if dataset.human_y is not None:
      self.assertEqual(dataset.human_y.dtype, np.int32)
      self.assertEqual(dataset.human_y.shape, dataset.train_y.shape)

  def test_names_and_their_order(self):
    self.assertEqual(list(sources.DATASETS), [
        'digits', 'cifar10', 'cifar100', 'cifar10n', 'cifar100n', 'clothing1m', 'image_folder',
        'npz',
    ])

  def test_unknown_name(self):
    with self.assertRaises(KeyError):
      sources.load(sources.DataSpec('no such data'))

  @parameterized.parameters(*((name,) for name in sources.DATASETS if name != 'digits'))
  def test_data_dir_is_needed(self, name):
    for data_dir in (None, ''):
      self.assert_refused(
          rf'^--dataset={name} needs --data_dir: give .*; nothing is downloaded$',
          sources.DataSpec(name, data_dir),
      )

  @parameterized.parameters(*((name,) for name in sources.DATASETS if name != 'digits'))
  def test_nothing_is_there(self, name):
    self.assert_refused(str(self.root), sources.DataSpec(name, str(self.root)))

  def test_home_folder(self):
    _write_image_folder(self.root)
    with mock.patch.dict(os.environ, HOME=str(self.root.parent)):
      dataset = sources.load(sources.DataSpec('image_folder', f'~/{self.root.name}'))
    self.assertEqual(dataset.test_x[0], os.fsencode(self.root / 'test/a/1.jpg'))

  @parameterized.parameters('clothing1m', 'image_folder')
  def test_image_size(self, name):
    _write_all(self.root)
    self.assertEqual(
        sources.load(_spec(name, self.root, image_size=64)).image_shape, (64, 64, 3)
    )

  def test_importing_loads_nothing_heavy(self):
    code = (
        'import sys; from tff_noise.data import sources; '
        'print([m for m in ("sklearn", "scipy", "PIL", "tensorflow") if m in sys.modules])'
    )
    output = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True, check=True,
        env=os.environ | {'PYTHONPATH': os.pathsep.join(filter(None, sys.path))},
        cwd=pathlib.Path(types.__file__).parent.parent,
    ).stdout
    self.assertEqual(output.strip(), '[]')


class HumanLabelsTest(_Test):

  @parameterized.parameters('cifar10', 'cifar100')
  def test_images_are_those_without_human_labels(self, name):
    _write_all(self.root)
    plain = sources.load(_spec(name, self.root))
    human = sources.load(_spec(f'{name}n', self.root))
    self.assertIsNone(plain.human_y)
    self.assertEqual((human.human_y[:3] != human.train_y[:3]).tolist(), [True, False, False])
    for field, a, b in zip(plain._fields, plain, human, strict=True):
      if field not in ('name', 'human_y'):
        np.testing.assert_array_equal(a, b, field)

  def test_the_usual_choice_and_others(self):
    _write_cifar(self.root, 'cifar10')
    choices = {
        'worse': 'worse_label', 'aggre': 'aggre_label', 'random1': 'random_label1',
        'random2': 'random_label2', 'random3': 'random_label3',
    }
    _write_human(self.root / 'cifar10n_labels.npz', 15, **{
        column: np.full(15, i) for i, column in enumerate(choices.values())
    })
    for i, choice in enumerate(choices):
      spec = _spec('cifar10n', self.root, human_labels=choice)
      self.assertEqual(sources.load(spec).human_y.tolist(), [i] * 15)
    self.assertEqual(sources.load(_spec('cifar10n', self.root)).human_y.tolist(), [0] * 15)

  def test_cifar100n_has_one_choice(self):
    _write_all(self.root)
    by_default = sources.load(_spec('cifar100n', self.root))
    named = sources.load(_spec('cifar100n', self.root, human_labels='fine'))
    np.testing.assert_array_equal(by_default.human_y, named.human_y)

  @parameterized.parameters(
      ('cifar10n', 'fine', 'it must be one of worse, aggre, random1, random2, random3'),
      ('cifar10n', 'worst', 'it must be one of worse, .*random3'),
      ('cifar100n', 'worse', 'it must be one of fine'),
      ('cifar10', 'worse', 'leave it out'),
      ('digits', 'worse', 'leave it out'),
  )
  def test_unknown_choice(self, name, choice, message):
    _write_all(self.root)
    self.assert_refused(
        f'^--human_labels={choice} is not known for --dataset={name}: {message}$',
        _spec(name, self.root, human_labels=choice) if name != 'digits'
        else sources.DataSpec(name, human_labels=choice),
    )

  @parameterized.parameters(
      'noise_label', 'cifar-10-batches-bin', 'cifar-10-batches-py/noise_label'
  )
  def test_places_of_the_label_file(self, folder):
    _write_cifar(self.root, 'cifar10')
    (self.root / folder).mkdir(parents=True, exist_ok=True)
    _write_human(self.root / folder / 'CIFAR-10_human.npz', 15, worse_label=np.ones(15, int))
    self.assertEqual(sources.load(_spec('cifar10n', self.root)).human_y.tolist(), [1] * 15)

  def test_data_dir_is_the_layouts_folder(self):
    _write_cifar(self.root, 'cifar10')
    folder = self.root / 'cifar-10-batches-bin'
    _write_human(folder / 'CIFAR-10_human.npz', 15, worse_label=np.ones(15, int))
    self.assertEqual(sources.load(_spec('cifar10n', folder)).human_y.tolist(), [1] * 15)

  def test_missing_labels(self):
    _write_cifar(self.root, 'cifar100')
    self.assert_refused('^cifar100n: no CIFAR-100_human.npz or', _spec('cifar100n', self.root))


class DigitsTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.digits = sources.load(sources.DataSpec('digits'))

  def test_all_classes_on_both_sides(self):
    # Or accuracy would not mean what it says.
    for y in (self.digits.train_y, self.digits.test_y):
      np.testing.assert_array_equal(np.unique(y), np.arange(10))

  def test_shapes_and_pixels(self):
    self.assertEqual(self.digits.train_x.shape, (1400, 8, 8, 1))
    self.assertEqual(self.digits.test_x.shape, (397, 8, 8, 1))
    for x in (self.digits.train_x, self.digits.test_x):
      self.assertEqual((x.min(), x.max()), (0, 16))
    self.assertEqual((self.digits.pixel_scale, self.digits.pixel_offset), (1 / 16, 0.0))

  def test_names_and_similar_classes(self):
    self.assertEqual(self.digits.class_names, tuple('0123456789'))
    confused = {k: s for k, s in enumerate(self.digits.similar_class) if s != k}
    self.assertEqual(confused, {2: 7, 3: 8, 5: 6, 6: 5, 7: 1})

  def test_every_image_is_used_exactly_once_and_keeps_its_label(self):
    bunch = datasets.load_digits()
    x = np.concatenate([self.digits.train_x, self.digits.test_x])
    y = np.concatenate([self.digits.train_y, self.digits.test_y])
    found = sorted((image.tobytes(), int(label)) for image, label in zip(x, y, strict=True))
    expected = sorted(
        (image.astype(np.uint8).tobytes(), int(label))
        for image, label in zip(bunch.images, bunch.target, strict=True)
    )
    self.assertEqual(found, expected)

  def test_split_is_the_same_every_time(self):
    np.random.seed(123)
    again = sources.load(sources.DataSpec('digits'))
    np.testing.assert_array_equal(again.train_x, self.digits.train_x)
    np.testing.assert_array_equal(again.test_y, self.digits.test_y)

  def test_split_is_pinned(self):
    # Another split would make published accuracies incomparable.
    self.assertEqual(self.digits.train_y[:12].tolist(), [9, 9, 8, 6, 5, 4, 6, 9, 1, 6, 7, 9])
    self.assertEqual(self.digits.test_y[:12].tolist(), [4, 9, 2, 9, 9, 2, 4, 9, 1, 2, 0, 3])

  def test_split_is_shuffled_over_writers(self):
    # The file is sorted by writer, so its tail alone would be a test on strangers.
    bunch = datasets.load_digits()
    tail = {image.astype(np.uint8).tobytes() for image in bunch.images[1400:]}
    in_test = sum(image.tobytes() in tail for image in self.digits.test_x)
    # Expected 397 * 397 / 1797 = 88, standard error 7.4.
    self.assertBetween(in_test, 88 - 30, 88 + 30)


if __name__ == '__main__':
  absltest.main()
