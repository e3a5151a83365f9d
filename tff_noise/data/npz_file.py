"""A user's own data set in a NumPy file."""

import os
import tokenize
import zipfile
import zlib

import numpy as np

from tff_noise import errors
from tff_noise import rng
from tff_noise import types
from tff_noise.data import names as names_lib
from tff_noise.data import natural_clients

_EXPECTED = (
    'x (uint8 [n, height, width] or [n, height, width, channels], or features, floats [n, d]) and '
    'y (integers [n]), and may hold clean_y, client, x_test with y_test, and class_names'
)
_NAMES = frozenset(('x', 'y', 'clean_y', 'client', 'x_test', 'y_test', 'class_names'))

# The split must be the same for every experiment seed, or accuracies could not be compared.
_SPLIT_SEED = 0
_TEST_SHARE = 5  # One example in five.

# What NumPy, zip and zlib raise for a file that is damaged or of another kind.
_DAMAGE = (
    OSError, ValueError, TypeError, KeyError, EOFError, RuntimeError, MemoryError, OverflowError,
    tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)


def find(data_dir: str) -> str:
  """Returns the path of the file that `data_dir` is or holds; `UsageError` where there is none."""
  if os.path.isfile(data_dir):
    return data_dir
  if not os.path.isdir(data_dir):
    raise types.UsageError(
        f'--data_dir={data_dir} is neither a file nor a folder: give an .npz file that holds '
        f'{_EXPECTED}'
    )
  try:
    there = os.listdir(data_dir)
  except OSError as error:
    raise types.UsageError(f'--data_dir={data_dir} cannot be read ({error.strerror})') from error
  names = sorted(name for name in there if name.endswith('.npz') and not name.startswith('.'))
  if len(names) != 1:
    raise types.UsageError(
        f'--data_dir={data_dir} holds {", ".join(names) or "no .npz file"}: it must hold exactly '
        'one .npz file, or be one'
    )
  return os.path.join(data_dir, names[0])


def _read(path, needed=('x', 'y')):
  """Returns {name: array}."""
  try:
    with open(path, 'rb') as file:
      archive = np.load(file, allow_pickle=False)
      if not isinstance(archive, np.lib.npyio.NpzFile):
        raise ValueError('one array, not an archive of several')
      arrays = {name: archive[name] for name in archive.files}
    for name, array in arrays.items():
      if not isinstance(array, np.ndarray):
        raise ValueError(f'{name} is no array')
  except _DAMAGE as error:
    reason = errors.first_line(error)
    raise types.UsageError(
        f'{path} cannot be read ({type(error).__name__}: {reason}): it must be an .npz file of '
        f'plain arrays that holds {_EXPECTED}'
    ) from error
  _check_names(arrays, needed, path)
  return arrays


def _check_names(arrays, needed, path):
  """Raises `UsageError` where an array is missing, or one is there that nobody would look at."""
  missing = [name for name in needed if name not in arrays]
  if missing:
    raise types.UsageError(f'{path} has no {" and no ".join(missing)}: it must hold {_EXPECTED}')
  unknown = sorted(arrays.keys() - _NAMES)
  if unknown:
    raise types.UsageError(
        f'{path} has {", ".join(map(repr, unknown))}, which nothing reads: it must hold '
        f'{_EXPECTED}; rename or remove the others'
    )
  if ('x_test' in arrays) != ('y_test' in arrays):
    raise types.UsageError(
        f'{path} has only one of x_test and y_test: give both, or none, and a fifth of x '
        'is taken for the test'
    )


def _images(arrays, name, path):
  """Returns uint8 `[n, height, width, channels]`, or of features float32 `[n, d]`."""
  x = arrays[name]
  if x.dtype.kind == 'f' and x.ndim == 2 and x.size:
    return _features(x, name, path)
  if x.dtype != np.uint8 or x.ndim not in (3, 4) or not x.size:
    raise types.UsageError(
        f'{path}: {name} must be uint8 [n, height, width] or [n, height, width, channels], or '
        f'floats [n, d], and not empty, found {x.dtype} of shape {x.shape}; convert it, pixels in '
        '[0, 1] after multiplying by 255'
    )
  return x if x.ndim == 4 else x[..., np.newaxis]


def _features(x, name, path):
  with np.errstate(over='ignore'):  # What becomes infinite is refused.
    found = x.astype(np.float32)
  if not np.isfinite(found).all():
    raise types.UsageError(
        f'{path}: {name} has features that are not finite as float32: replace or leave them out'
    )
  return found


def _integers(arrays, name, path, size):
  """Returns int64 `[size]`."""
  y = arrays[name]
  if y.dtype.kind not in 'iu' or y.shape != (size,):
    raise types.UsageError(
        f'{path}: {name} must be {size} integers, one for each image, found {y.dtype} of shape '
        f'{y.shape}; correct it'
    )
  return y.astype(np.int64)


def _labels(arrays, name, path, size):
  """Returns int32 `[size]`, none negative."""
  y = _integers(arrays, name, path, size)
  if y.min() < 0 or y.max() > np.iinfo(np.int32).max:
    raise types.UsageError(
        f'{path}: {name} has label {y.min() if y.min() < 0 else y.max()}, labels are 0 to K-1 for '
        'K classes; number the classes so'
    )
  return y.astype(np.int32)


def _count_classes(labels, test_labels, path):
  """Returns K; `labels` are those of `x`, ascending, without repetition."""
  gap = np.flatnonzero(labels != np.arange(len(labels)))
  if gap.size:
    raise types.UsageError(
        f'{path}: no example of x has label {gap[0]}, but one has {labels[-1]}: a class without '
        f'examples would get wrong labels alone; number the {len(labels)} classes from 0 to '
        f'{len(labels) - 1}, as np.unique(y, return_inverse=True) does'
    )
  if len(labels) < 2:
    raise types.UsageError(f'{path}: all labels are 0: give examples of at least two classes')
  if test_labels.max() >= len(labels):
    raise types.UsageError(
        f'{path}: y_test has label {test_labels.max()}, which no example of x has: nobody could '
        'learn it; number the classes of both alike, or leave these examples out'
    )
  return len(labels)


def _class_names(arrays, num_classes, path):
  """Returns the names of the classes, by default their numbers."""
  if 'class_names' not in arrays:
    return tuple(map(str, range(num_classes)))
  names = arrays['class_names']
  if names.dtype.kind != 'U' or names.shape != (num_classes,):
    raise types.UsageError(
        f'{path}: class_names must be {num_classes} texts, one for each label up to the largest, '
        f'found {names.dtype} of shape {names.shape}; correct it'
    )
  odd = [name for name in names.tolist() if not names_lib.is_utf8(name)]
  if odd:
    raise types.UsageError(
        f'{path}: class_names has {odd[0]!r}, which is no text that UTF-8 has: rename it'
    )
  broken = [name for name in names.tolist() if names_lib.has_control(name)]
  if broken:
    raise types.UsageError(
        f'{path}: class_names has {broken[0]!r}, with a line break or another control character: '
        'rename it'
    )
  if len(set(names.tolist())) < num_classes:
    raise types.UsageError(
        f'{path}: class_names has a name twice: nobody could tell these classes apart; rename one'
    )
  return tuple(map(str, names))


def _split(arrays, size, path):
  """Returns where in `x` the training and the test examples are; a test set of its own is not."""
  if 'x_test' in arrays:
    return slice(None), None
  if size < _TEST_SHARE:
    raise types.UsageError(
        f'{path}: of {size} examples none can be set aside for the test; give {_TEST_SHARE} or '
        'more, or x_test and y_test'
    )
  order = rng.generator(_SPLIT_SEED, 'npz split').permutation(size)
  if 'client' in arrays and arrays['client'].shape == (size,):
    order = _without_last(order, arrays['client'])
    if not len(order):
      raise types.UsageError(
          f'{path}: each client holds one example, which it trains on, so that none can be set '
          'aside for the test; give x_test and y_test'
      )
  is_test = np.zeros(size, bool)
  is_test[order[: size // _TEST_SHARE]] = True
  return np.flatnonzero(~is_test), np.flatnonzero(is_test)


def _without_last(order, client):
  """Returns `order` without the last example of each client, which it trains on."""
  _, from_the_end = np.unique(client[order[::-1]], return_index=True)
  return np.delete(order, len(order) - 1 - from_the_end)


def _test_set(arrays, x, true_y, test, path):
  """Returns the images and labels of the test set."""
  if 'x_test' not in arrays:
    return x[test], true_y[test]
  test_x = _images(arrays, 'x_test', path)
  if (test_x.shape[1:], test_x.dtype) != (x.shape[1:], x.dtype):
    raise types.UsageError(
        f'{path}: x_test is {test_x.dtype} of shape {test_x.shape[1:]}, x is {x.dtype} of shape '
        f'{x.shape[1:]}; make them the same'
    )
  return test_x, _labels(arrays, 'y_test', path, len(test_x))


def _owners(arrays, size, train, path):
  """Returns, see `natural_clients`, those that keep a training example; None without any."""
  if 'client' not in arrays:
    return None, ()
  client = arrays['client']
  if client.dtype.kind not in 'iuU' or client.shape != (size,):
    raise types.UsageError(
        f'{path}: client must be {size} integers or texts, one for each image, found '
        f'{client.dtype} of shape {client.shape}; correct it'
    )
  try:
    return natural_clients.number(client[train])
  except ValueError as error:
    raise types.UsageError(
        f'{path}: client: {error}: give clients other names, or numbers'
    ) from None


def load(data_dir: str) -> types.Dataset:
  """Reads a data set from one `.npz` file.

  `x` are the images, or features, which the model takes as they are: bring them to a common scale.
  `y` are their labels. If there are `clean_y` too, these are the true classes
  and `y` what people called them. `client` says who holds an example, as any integer or text.
  Without `x_test` and `y_test`, one example in five, always the same ones, becomes the test set,
  with its clean label; a client keeps at least one for training.

  Args:
    data_dir: The file, or a folder with it and no other `.npz`.

  Raises:
    types.UsageError: If the file is damaged, or an array is missing or not as it must be.
  """
  path = find(data_dir)
  arrays = _read(path)
  x = _images(arrays, 'x', path)
  y = _labels(arrays, 'y', path, len(x))
  true_y = _labels(arrays, 'clean_y', path, len(x)) if 'clean_y' in arrays else y
  train, test = _split(arrays, len(x), path)
  test_x, test_y = _test_set(arrays, x, true_y, test, path)
  num_classes = _count_classes(np.union1d(y, true_y), test_y, path)
  kept = np.union1d(y[train], true_y[train])
  if len(kept) < num_classes:
    lost = np.setdiff1d(np.arange(num_classes), kept)[0]
    raise types.UsageError(
        f'{path}: all examples with label {lost} are among the fifth that is set aside for the '
        'test: nobody could learn it; give more of them, or x_test and y_test'
    )
  client, client_names = _owners(arrays, len(x), train, path)
  absent = np.setdiff1d(np.arange(num_classes), true_y)
  if absent.size and 'class_names' not in arrays:
    raise types.UsageError(
        f'{path}: no example has the true class {absent[0]} (clean_y), and there are labels up to '
        f'{num_classes - 1}: number the classes of both alike, or give class_names'
    )
  return types.Dataset(
      train_x=x[train],
      train_y=true_y[train],
      test_x=test_x,
      test_y=test_y,
      **_described(arrays, x, num_classes, path),
      human_y=y[train] if 'clean_y' in arrays else None,
      client=client,
      client_names=client_names,
      train_rows=None if test is None else train,
      test_rows=test,
  )


def load_test(data_dir: str, num_classes: int) -> types.Dataset:
  """Reads examples for a model that is trained: `x_test` and `y_test`, or where there are none all.

  Args:
    data_dir: As for `load`.
    num_classes: K of the model; a file need not have examples of each class.

  Returns:
    A data set without training examples.

  Raises:
    types.UsageError: If the file is damaged, or an array is missing or not as it must be.
  """
  path = find(data_dir)
  arrays = _read(path)
  x_name, y_name = ('x_test', 'y_test') if 'x_test' in arrays else (
      'x', 'clean_y' if 'clean_y' in arrays else 'y'
  )
  x = _images(arrays, x_name, path)
  y = _labels(arrays, y_name, path, len(x))
  if y.max() >= num_classes:
    raise types.UsageError(
        f'{path}: {y_name} has label {y.max()}, and the model tells {num_classes} classes apart: '
        'give data of the same classes'
    )
  named = np.size(arrays.get('class_names', ()))
  if named not in (0, num_classes):
    raise types.UsageError(
        f'{path}: class_names are {named}, and the model tells {num_classes} classes apart: name '
        'all of them, or leave class_names out'
    )
  return types.Dataset(
      train_x=x[:0], train_y=y[:0], test_x=x, test_y=y,
      **_described(arrays, x, num_classes, path),
  )


def load_images(data_dir: str) -> types.Dataset:
  """Reads the images `x` alone, all of them, as training examples of an unknown class.

  Args:
    data_dir: As for `load`; the file need not have labels, and they are not looked at.

  Raises:
    types.UsageError: If the file is damaged, or `x` is missing or not as it must be.
  """
  path = find(data_dir)
  x = _images(_read(path, ('x',)), 'x', path)
  nobody_knows = np.full(len(x), types.UNKNOWN, np.int32)
  return types.Dataset(
      train_x=x, train_y=nobody_knows, test_x=x[:0], test_y=nobody_knows[:0],
      **_described({}, x, 0, path),
  )


def _described(arrays, x, num_classes, path):
  """What a data set says of its images and classes."""
  return {
      'name': 'npz',
      'num_classes': num_classes,
      'image_shape': x.shape[1:],
      'pixel_scale': 1.0 if x.dtype.kind == 'f' else 1 / 255,
      'pixel_offset': 0.0,
      'class_names': _class_names(arrays, num_classes, path),
  }
