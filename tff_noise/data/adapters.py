"""Data that others hold, brought into the .npz file that `--dataset=npz` reads."""

import collections
import numbers
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tff_noise import types
from tff_noise.data import npz_file

_MAX_LABEL = np.iinfo(np.int32).max


def write_npz(
    path: str | os.PathLike,
    clients: Any,
    *,
    test: Iterable[Any] | None = None,
    x: str = 'x',
    y: str = 'y',
    class_names: Sequence[str] = (),
) -> None:
  """Writes examples, and who holds them, to a file for `--dataset=npz --partition=natural`.

  Args:
    path: The file, written if all of it can be read again.
    clients: A `tff.simulation.datasets.ClientData`; or one iterable of examples for each client,
      such as a `tf.data.Dataset`, in a list or by name, a text or an integer. `clients.csv` of a
      run has the names.
    test: Examples for the test set, or a `ClientData` of them; without them a fifth of all become
      it, of which a client keeps at least one for training.
    x: Where an example is a mapping, under which name its image (uint8, or floats in [0, 1]) or its
      features are. An example may also be a pair.
    y: And under which its label is, an integer from 0 on.
    class_names: K names, if they have some.

  Raises:
    types.UsageError: If `path` is no path, `class_names` are no texts, an example is neither, a
      client has none, examples have different shapes, or `--dataset=npz` would refuse the file.
  """
  path = _path(path)
  names = _names(class_names)
  xs, ys, owners = [], [], []
  for name, examples in _by_client(clients):
    if isinstance(examples, tuple) and examples and isinstance(examples[-1], numbers.Number):
      raise types.UsageError(
          'clients must be a list with the examples of each, found an example in their place: of '
          'one client, give [examples]'
      )
    for example in _numpy(examples, 'clients must be a list with the examples of each'):
      image, label = _pair(example, x, y)
      xs.append(image)
      ys.append(label)
      owners.append(name)
    if name not in owners[-1:]:
      raise types.UsageError(f'client {name} has no examples: leave out those that have none')
  arrays = {'x': _stacked(xs), 'y': np.array(ys), 'client': np.array(owners)}
  if test is not None:
    several = _by_client(test) if hasattr(test, 'client_ids') else [('', test)]
    pairs = [
        _pair(example, x, y)
        for _, examples in several
        for example in _numpy(examples, 'test must be examples, not by client')
    ]
    arrays |= {
        'x_test': _stacked([image for image, _ in pairs]),
        'y_test': np.array([label for _, label in pairs]),
    }
  if names:
    arrays['class_names'] = np.array(names)
  try:
    _write(path, arrays)
  except OSError as error:
    raise types.UsageError(f'{path} cannot be written to ({error.strerror})') from error


def _path(path):
  if isinstance(path, str | bytes | os.PathLike):
    found = os.fsdecode(path)
    if found and '\0' not in found:
      return found
  raise types.UsageError(f'path must be that of a file, found {path!r}: name one')


def _names(class_names):
  given = () if class_names is None else class_names
  if isinstance(given, np.ndarray):
    given = given.tolist()
  if isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping):
    names = list(given)
    if all(isinstance(name, str) for name in names):
      return names
  raise types.UsageError(f'class_names must be a list of texts, found {class_names!r}')


def _write(path, arrays):
  """Puts a file in its place if it is one that `--dataset=npz` takes."""
  with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(path))) as folder:
    written = os.path.join(folder, 'data.npz')
    np.savez(written, **arrays)
    try:
      npz_file.load(written)
    except types.UsageError as error:
      raise types.UsageError(str(error).replace(written, str(path))) from None
    os.replace(written, path)


def _by_client(clients):
  """The name and the examples of each client in turn."""
  if hasattr(clients, 'create_tf_dataset_for_client'):
    _require_names(list(clients.client_ids))
    return ((name, clients.create_tf_dataset_for_client(name)) for name in clients.client_ids)
  if not isinstance(clients, Iterable) or hasattr(clients, 'as_numpy_iterator'):
    raise types.UsageError(
        'clients must be a ClientData, or a list or mapping with the examples of each, found '
        f'{type(clients).__name__}: of one client, give [examples]'
    )
  if not isinstance(clients, Mapping):
    return enumerate(clients)
  _require_names(list(clients))
  return clients.items()


def _is_text(name):
  return isinstance(name, str) and '\0' not in name


def _is_number(name):
  is_one = isinstance(name, numbers.Integral) and not isinstance(name, bool)
  return is_one and abs(int(name)) < 2**63


def _require_names(names):
  """Raises `UsageError` for names that an array of NumPy's would have as others, or as the same."""
  if not (all(map(_is_text, names)) or all(map(_is_number, names))):
    raise types.UsageError(
        'clients must be named by texts, or all by integers of 64 bits, found '
        f'{", ".join(map(repr, names[:3]))}: give other texts for them'
    )
  if len(set(names)) < len(names):
    twice = collections.Counter(names).most_common(1)[0][0]
    raise types.UsageError(f'two clients are named {twice!r}: give each a name of its own')


def _numpy(examples, wanted):
  """A `tf.data.Dataset` as NumPy; anything else as it is."""
  if not isinstance(examples, Iterable) or isinstance(examples, str):
    raise types.UsageError(f'{wanted}, found {type(examples).__name__} in their place')
  return getattr(examples, 'as_numpy_iterator', examples.__iter__)()


def _pair(example, x, y):
  # What iterating over a table gives: the name of a column. One of two letters would be a pair.
  if isinstance(example, str):
    raise types.UsageError(
        f'an example must be a pair of image and label, found {example!r}; of a table, give '
        'zip(features, labels)'
    )
  try:
    image, label = (example[x], example[y]) if isinstance(example, Mapping) else example
  except (KeyError, TypeError, ValueError) as error:
    what = ', '.join(map(str, example)) if isinstance(example, Mapping) else type(example).__name__
    raise types.UsageError(
        f'an example must be a pair of image and label, or a mapping with {x!r} and {y!r} (name '
        f'others by x= and y=), found {what}: of arrays, give zip(images, labels)'
    ) from error
  label = np.asarray(label)
  if label.size != 1:
    raise types.UsageError(
        f'an example has {label.size} labels. Give dataset.unbatch() if these are batches, '
        'np.argmax(label) if classes are marked'
    )
  try:
    image = np.asarray(image)
  except ValueError as error:
    raise types.UsageError(
        f'an image, or features, must be an array of numbers, found rows of other lengths ({error})'
    ) from error
  if label.ndim and image.ndim > 1 and len(image) == 1:
    raise types.UsageError(
        f'an example of shape {list(image.shape)} with a label of shape {list(label.shape)} is a '
        'batch of one: give dataset.unbatch(), or the label as a number'
    )
  label = label.item()  # Keras has each in a row of its own.
  try:
    if int(label) == label and 0 <= label <= _MAX_LABEL:
      return image, int(label)
  except (TypeError, ValueError, OverflowError):
    pass
  raise types.UsageError(
      f'a label must be an integer from 0 to {_MAX_LABEL}, found {label!r}; number the classes'
  )


def _stacked(xs):
  """`[n, ...]`; images of floats in [0, 1] become bytes, as files have them."""
  if not xs:
    raise types.UsageError('there are no examples: give some')
  shapes = {image.shape for image in xs}
  if len(shapes) != 1:
    raise types.UsageError(
        f'all examples must have one shape, found {sorted(shapes)}: bring them to one'
    )
  found = np.stack(xs)
  if found.dtype.kind not in 'iufb':
    what = f'{found.dtype} of shape {xs[0].shape}' if xs[0].ndim else type(xs[0].item()).__name__
    raise types.UsageError(
        f'an image, or features, must be an array of numbers, found {what}: give the pixels, or '
        'the columns of a table as one array'
    )
  if found.ndim == 1:
    raise types.UsageError(
        'an example has a single number in place of an image or features: give an array of shape '
        '[1]'
    )
  if found.ndim == 2 and found.dtype.kind in 'iub':
    return found.astype(np.float32)  # Features, which files have as floats.
  if found.ndim == 2 or found.dtype == np.uint8:
    return found
  if found.dtype.kind != 'f' or not (found.min() >= 0 and found.max() <= 1):
    raise types.UsageError(
        f'images must be bytes, or floats in [0, 1], found {found.dtype} in [{found.min()}, '
        f'{found.max()}]: convert them'
    )
  return np.round(255 * found).astype(np.uint8)
