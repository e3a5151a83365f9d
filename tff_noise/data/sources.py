"""The data sets, by name."""

import os
from typing import NamedTuple

import numpy as np

from tff_noise import rng
from tff_noise import types
from tff_noise.data import cifar
from tff_noise.data import clothing1m
from tff_noise.data import human_labels
from tff_noise.data import image_folder
from tff_noise.data import npz_file

# The split must be the same for every experiment seed, or accuracies could not be compared.
_SPLIT_SEED = 0
_DIGITS_TRAIN = 1400

# Digits that look alike: 2 is taken for 7, 3 for 8, 5 and 6 for each other, 7 for 1 (Patrini et
# al., Making Deep Neural Networks Robust to Label Noise: a Loss Correction Approach, CVPR 2017).
_SIMILAR_DIGIT = (0, 1, 7, 8, 4, 6, 5, 1, 8, 9)


class DataSpec(NamedTuple):
  """Which data set, and where it lies.

  Attributes:
    name: A key of `DATASETS`.
    data_dir: The folder with its files; or None, for `digits`.
    human_labels: Which of the label sets of CIFAR-N; empty for the usual one, which is `worse` for
      `cifar10n` and `fine` for `cifar100n`.
    image_size: The side of the square that image files are brought to, 0 for the usual. Images that
      are arrays stay as they are; it is for the model to resize them.
  """

  name: str
  data_dir: str | None = None
  human_labels: str = ''
  image_size: int = 0


def largest_pixel(name: str) -> int:
  """Returns `Dataset.largest_pixel` of a data set that is not read."""
  return 16 if name == 'digits' else 255


def _digits(spec: DataSpec) -> types.Dataset:
  """scikit-learn's digits: 1,797 real 8x8 scans with 17 grey levels, 1,400 of them for training."""
  from sklearn import datasets  # Takes half a second: only where it is asked for.

  del spec  # They come with scikit-learn.
  bunch = datasets.load_digits()
  x = bunch.images.astype(np.uint8)[..., np.newaxis]
  y = bunch.target.astype(np.int32)
  # The file is sorted by writer: without a shuffle, the test set would hold other hands only.
  order = rng.generator(_SPLIT_SEED, 'digits split').permutation(len(y))
  train, test = order[:_DIGITS_TRAIN], order[_DIGITS_TRAIN:]
  return types.Dataset(
      name='digits',
      train_x=x[train],
      train_y=y[train],
      test_x=x[test],
      test_y=y[test],
      num_classes=10,
      image_shape=(8, 8, 1),
      pixel_scale=1 / 16,
      pixel_offset=0.0,
      class_names=tuple(map(str, range(10))),
      similar_class=_SIMILAR_DIGIT,
      largest_pixel=largest_pixel('digits'),
  )


def _cifar10(spec: DataSpec) -> types.Dataset:
  return cifar.load('cifar10', spec.data_dir)


def _cifar100(spec: DataSpec) -> types.Dataset:
  return cifar.load('cifar100', spec.data_dir)


def _with_human_labels(images, spec):
  """Returns CIFAR with the labels that people gave its training images."""
  dataset = cifar.load(images, spec.data_dir)
  folders = (spec.data_dir, *(os.path.join(spec.data_dir, f) for f in cifar.FOLDERS[images]))
  human_y = human_labels.load(
      spec.human_labels,
      [place for folder in folders for place in (folder, os.path.join(folder, 'noise_label'))],
      dataset.train_y,
      dataset.num_classes,
  )
  return dataset._replace(name=spec.name, human_y=human_y)


def _cifar10n(spec: DataSpec) -> types.Dataset:
  return _with_human_labels('cifar10', spec)


def _cifar100n(spec: DataSpec) -> types.Dataset:
  return _with_human_labels('cifar100', spec)


def _clothing1m(spec: DataSpec) -> types.Dataset:
  return clothing1m.load(spec.data_dir, spec.image_size)


def _image_folder(spec: DataSpec) -> types.Dataset:
  return image_folder.load(spec.data_dir, spec.image_size)


def _npz(spec: DataSpec) -> types.Dataset:
  return npz_file.load(spec.data_dir)


DATASETS = {
    'digits': _digits,
    'cifar10': _cifar10,
    'cifar100': _cifar100,
    'cifar10n': _cifar10n,
    'cifar100n': _cifar100n,
    'clothing1m': _clothing1m,
    'image_folder': _image_folder,
    'npz': _npz,
}

# What --data_dir must be; a data set that is not named here needs none.
_DATA_DIR = {
    'cifar10': f'the folder with cifar-10-batches-bin/ or cifar-10-batches-py/ of {cifar.URL}',
    'cifar100': f'the folder with cifar-100-binary/ or cifar-100-python/ of {cifar.URL}',
    'cifar10n': (
        'the folder with cifar-10-batches-bin/ or cifar-10-batches-py/, and CIFAR-10_human.pt of '
        f'{human_labels.URL}'
    ),
    'cifar100n': (
        'the folder with cifar-100-binary/ or cifar-100-python/, and CIFAR-100_human.pt of '
        f'{human_labels.URL}'
    ),
    'clothing1m': 'the folder with noisy_label_kv.txt, the other lists and images/',
    'image_folder': 'a folder with train/<class>/*.jpg and test/<class>/*.jpg',
    'npz': 'an .npz file with the arrays x and y, or the folder with it',
}

_HUMAN_LABELS = {'cifar10n': human_labels.CHOICES[10], 'cifar100n': human_labels.CHOICES[100]}


def load(spec: DataSpec) -> types.Dataset:
  """Reads a data set.

  Raises:
    KeyError: If its name is not in `DATASETS`.
    types.UsageError: If its files are missing or not as they must be, or it has no such labels.
  """
  return DATASETS[spec.name](_checked(spec))


def load_images(spec: DataSpec) -> types.Dataset:
  """As `load`, for training images without labels: a file of one's own need not have any.

  Raises:
    KeyError: As `load`.
    types.UsageError: As `load`.
  """
  checked = _checked(spec)
  if spec.name == 'npz':
    return npz_file.load_images(checked.data_dir)
  return DATASETS[spec.name](checked)


def _checked(spec):
  """The spec with the folder as it is; raises `UsageError` where it lacks one."""
  if spec.name in _DATA_DIR and not spec.data_dir:
    raise types.UsageError(
        f'--dataset={spec.name} needs --data_dir: give {_DATA_DIR[spec.name]}; nothing is '
        'downloaded'
    )
  choices = _HUMAN_LABELS.get(spec.name, ())
  if spec.human_labels and spec.human_labels not in choices:
    raise types.UsageError(
        f'--human_labels={spec.human_labels} is not known for --dataset={spec.name}: '
        f'{"it must be one of " + ", ".join(choices) if choices else "leave it out"}'
    )
  return spec._replace(data_dir=spec.data_dir and os.path.expanduser(spec.data_dir))
