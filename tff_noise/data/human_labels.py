"""CIFAR-10N and CIFAR-100N: what people called the training images of CIFAR.

J. Wei, Z. Zhu, H. Cheng, T. Liu, G. Niu, Y. Liu: Learning with Noisy Labels Revisited: A Study
Using Real-World Human Annotations. ICLR 2022.

The labels are published for two orders of the images: that of CIFAR's original release, which is
ours, and that of TensorFlow Datasets, which stores the images shuffled. A label file of the other
order would be no noisy labels but random ones, without any error. So the clean labels that
come with them are compared with those of the images.
"""

import os
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np

from tff_noise import errors
from tff_noise import types
from tff_noise.data import unpickle

URL = 'http://www.noisylabels.com'

# The label sets, by number of classes; the first is the usual one.
CHOICES = {10: ('worse', 'aggre', 'random1', 'random2', 'random3'), 100: ('fine',)}

_CLEAN = 'clean_label'
# The published .npy of CIFAR-100N has noise_label where its .pt has noisy_label.
_COLUMNS = {
    'worse': ('worse_label',),
    'aggre': ('aggre_label',),
    'random1': ('random_label1',),
    'random2': ('random_label2',),
    'random3': ('random_label3',),
    'fine': ('noisy_label', 'noise_label'),
}

# Files in the order of the original release first.
_FILES = ('CIFAR-{}_human.npz', 'CIFAR-{}_human.pt', 'cifar{}n_labels.npz', 'CIFAR-{}_human.npy',
          'CIFAR-{}_human_ordered.npy')
_ORDER_FILE = 'image_order_c{}.npy'

# What NumPy, zip and zlib raise for a file that is damaged or of another kind.
_DAMAGE = (
    OSError, ValueError, TypeError, KeyError, EOFError, RuntimeError, MemoryError,
    tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)

# How a file of `torch.save` before version 1.6 begins: two pickles with these numbers.
_TORCH_MAGIC = 0x1950A86A20F9469CFC6C
_TORCH_PROTOCOL = 1001


def _read_npz(file: BinaryIO, path):
  del path  # Only in the messages, and those are the caller's.
  with np.load(file, allow_pickle=False) as archive:
    return {name: archive[name] for name in archive.files}


def _read_npy(file: BinaryIO, path):
  """Reads a vector, or the dictionary that `numpy.save` pickled."""
  version = np.lib.format.read_magic(file)
  readers = {
      (1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0,
  }
  if version not in readers:
    raise ValueError(f'.npy version {version}')
  _, _, dtype = readers[version](file)
  if dtype.hasobject:
    # NumPy's own way to read it would run whatever the file says.
    return unpickle.load(file, path)
  file.seek(0)
  return np.load(file, allow_pickle=False)


def _read_torch_zip(file: BinaryIO, path):
  with zipfile.ZipFile(file) as archive:
    names = [name for name in archive.namelist() if name.endswith('/data.pkl')]
    if len(names) != 1:
      raise ValueError('no data.pkl')
    with archive.open(names[0]) as pickled:
      return unpickle.load(pickled, path)


def _read_torch(file: BinaryIO, path):
  """Reads what `torch.save` wrote, in the present or the old format."""
  if zipfile.is_zipfile(file):
    return _read_torch_zip(file, path)
  file.seek(0)
  for expected in (_TORCH_MAGIC, _TORCH_PROTOCOL):
    if unpickle.load(file, path) != expected:
      raise ValueError('no torch file')
  unpickle.load(file, path)  # About the machine that wrote it.
  return unpickle.load(file, path)


_READERS = {'.npz': _read_npz, '.npy': _read_npy, '.pt': _read_torch}


def _read(path):
  """Returns the content of a label file: a dictionary, or a vector."""
  try:
    with open(path, 'rb') as file:
      return _READERS[os.path.splitext(path)[1]](file, path)
  except types.UsageError:
    raise
  except _DAMAGE as error:
    reason = errors.first_line(error)
    raise types.UsageError(
        f'{path} cannot be read ({type(error).__name__}: {reason}); get it from {URL} again'
    ) from error


def _find(directories, names):
  """Returns the path of the first file there is, or None."""
  for name in names:
    for directory in directories:
      path = os.path.join(directory, name)
      if os.path.isfile(path):
        return path
  return None


def _column(content, names, path):
  """Returns the first of the columns `names` of a label file as int64 `[n]`."""
  if not isinstance(content, dict):
    raise types.UsageError(
        f'{path} must hold a dictionary or a vector of labels, found '
        f'{type(content).__name__}; get it from {URL} again'
    )
  name = next((name for name in names if name in content), None)
  if name is None:
    raise types.UsageError(
        f'{path} has no column {" or ".join(names)}, only {", ".join(map(repr, content))}; choose '
        f'among these with --human_labels, or get the whole file from {URL}'
    )
  labels = unpickle.integers(content[name])
  if labels is None:
    raise types.UsageError(
        f'{path}: its column {name} is no vector of integers; get the file from {URL} again'
    )
  return labels


def _check(labels, path, size, num_classes):
  """Raises `UsageError` where labels do not fit the images."""
  if len(labels) != size:
    raise types.UsageError(
        f'{path} has {len(labels)} labels, there are {size} training images; get the label file '
        f'from {URL}, and the images from their release'
    )
  bad = np.flatnonzero((labels < 0) | (labels >= num_classes))
  if len(bad):
    raise types.UsageError(
        f'{path}: label {labels[bad[0]]} of image {bad[0]} is out of range, labels are 0 to '
        f'{num_classes - 1}; get the file from {URL} again'
    )


def _wrong_order(path, num_classes):
  """Returns the error that explains the trap."""
  return types.UsageError(
      f'{path}: its clean labels are not those of the images: it is of another data set or, as '
      '*_ordered.npy are, in the image order of TensorFlow Datasets and not of the original '
      f'release; use CIFAR-{num_classes}_human.pt of {URL}, or put '
      f'{_ORDER_FILE.format(num_classes)} beside it'
  )


def _read_order(path, size):
  """Returns the permutation in an order file."""
  order = unpickle.integers(_read(path))
  if order is None or not np.array_equal(np.sort(order), np.arange(size)):
    raise types.UsageError(
        f'{path} must hold each of the numbers 0 to {size - 1} once; get it from {URL} again'
    )
  return order


def _reordered(labels, clean, clean_labels, path, num_classes):
  """Returns `labels` in the order in which `clean` are the clean labels of the images."""
  if np.array_equal(clean, clean_labels):
    return labels
  order_path = os.path.join(os.path.dirname(path), _ORDER_FILE.format(num_classes))
  if os.path.isfile(order_path):
    order = _read_order(order_path, len(labels))
    # As published, entry i says which image of the original release is number i elsewhere: its
    # inverse takes the labels back. The other direction costs nothing to try.
    for back in (np.argsort(order), order):
      if np.array_equal(clean[back], clean_labels):
        return labels[back]
  raise _wrong_order(path, num_classes)


def _check_agreement(labels, clean_labels, path, num_classes):
  """Raises `UsageError` where labels that come without clean ones look like random ones."""
  agreement = np.mean(labels == clean_labels)
  # In another order a share of 1 / num_classes agrees; of the published labels, 60 % or more do.
  if agreement < 2 / num_classes:
    raise types.UsageError(
        f'{path}: only {agreement:.1%} of its labels are those of the images, as in labels of '
        f'another image order; use CIFAR-{num_classes}_human.pt of {URL}'
    )


def load(
    which: str, directories: Sequence[str], clean_labels: np.ndarray, num_classes: int
) -> np.ndarray:
  """Reads the labels that people gave.

  Args:
    which: One of `CHOICES[num_classes]`; '' for the first of them, or what a file of one set has.
    directories: Where to look for the files, the first place first.
    clean_labels: int `[n]`, of the training images, in their order.
    num_classes: 10 or 100, which says which data set it is.

  Returns:
    int32 `[n]`, in the order of `clean_labels`.

  Raises:
    types.UsageError: If there is no such file, it is damaged, or it does not belong to the images.
  """
  names = [name.format(num_classes) for name in _FILES]
  path = _find(directories, names)
  if path is None:
    raise types.UsageError(
        f'cifar{num_classes}n: no {" or ".join(names)} in {" or ".join(directories)}; put one of '
        f'them there, they are published at {URL}, nothing is downloaded'
    )
  content = _read(path)
  if isinstance(content, np.ndarray):
    if which and len(CHOICES[num_classes]) > 1:
      raise types.UsageError(
          f'{path} holds one set of labels and does not say which: leave --human_labels={which} out'
      )
    labels = _column({'of labels': content}, ('of labels',), path)
    _check(labels, path, len(clean_labels), num_classes)
    _check_agreement(labels, clean_labels, path, num_classes)
  else:
    labels = _column(content, _COLUMNS[which or CHOICES[num_classes][0]], path)
    clean = _column(content, (_CLEAN,), path)
    for column in (labels, clean):
      _check(column, path, len(clean_labels), num_classes)
    labels = _reordered(labels, clean, clean_labels, path, num_classes)
  return labels.astype(np.int32)
