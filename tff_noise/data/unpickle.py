"""Reads pickles that hold NumPy arrays of numbers and plain Python values, and nothing else.

A pickle is a program: `pickle.load` calls whatever the file names. Some published data come as
pickles all the same (CIFAR's Python version, the `.npy` and `.pt` files of CIFAR-N). To the few
names that NumPy's arrays are written with, this unpickler answers with stand-ins of its own, so
that not even NumPy's code runs on what the file says before it was checked; every other name is
refused. The stand-ins also make it the same which NumPy, 1 or 2, wrote the file.
"""

import pickle
import struct
from typing import BinaryIO

import numpy as np

from tff_noise import errors
from tff_noise import types

# What the unpickler raises for a file that is damaged, cut off or of another kind.
_DAMAGE = (
    pickle.UnpicklingError, EOFError, OSError, ValueError, TypeError, KeyError, IndexError,
    AttributeError, ImportError, OverflowError, MemoryError, RecursionError, struct.error,
)

_OBJECT = frozenset(('O', 'O4', 'O8'))
_NUMBERS = frozenset(('b1', 'i1', 'i2', 'i4', 'i8', 'u1', 'u2', 'u4', 'u8', 'f2', 'f4', 'f8'))


class _Refused(Exception):
  """The file is in order as a pickle, but holds what is not read; says what."""


def _text(value):
  """Returns a Python 2 string as str, and anything else as it is."""
  return value.decode('latin1') if isinstance(value, bytes) else value


class _Dtype:
  """Stands for a `numpy.dtype` of numbers or objects."""

  __slots__ = ('is_object', 'numpy')

  def __init__(self, name, *flags):
    del flags  # Alignment and copying are of no concern.
    name = _text(name)
    if name not in _NUMBERS | _OBJECT:
      raise _Refused(f'an array of type {str(name)[:40]!r}')
    self.is_object = name in _OBJECT
    self.numpy = np.dtype(name)

  def __setstate__(self, state):
    order = _text(state[1])
    if order not in ('<', '>', '|', '='):
      raise ValueError('byte order')
    self.numpy = self.numpy.newbyteorder(order)


class _Array:
  """Stands for a `numpy.ndarray` until the whole file is read.

  A NumPy array itself is never given to the pickle, which could set its state to anything.
  """

  __slots__ = ('box', 'numpy')

  def __init__(self):
    self.numpy = None
    self.box = None

  def fill(self, data, dtype, shape, order):
    if not isinstance(data, (bytes, bytearray)) or not isinstance(dtype, _Dtype):
      raise ValueError('array data')
    self.numpy = np.frombuffer(bytes(data), dtype.numpy).reshape(shape, order=order)

  def __setstate__(self, state):
    _, shape, dtype, is_fortran, data = state
    if isinstance(dtype, _Dtype) and dtype.is_object:
      # `numpy.save` puts a dictionary into an array without dimensions.
      if shape != () or not isinstance(data, list) or len(data) != 1:
        raise _Refused('an array of Python objects')
      self.box = data
    else:
      self.fill(data, dtype, shape, 'F' if is_fortran else 'C')


class _StandIn:
  """What a pickle gets for a name it may use: it can be called, and not be changed."""

  __slots__ = ('_function',)

  def __init__(self, function):
    self._function = function

  def __call__(self, *args):
    return self._function(*args)

  def __setstate__(self, state):
    raise _Refused('a change to the program')


def _no_call(*args):
  raise _Refused('a call of numpy.ndarray')


_NDARRAY = _StandIn(_no_call)


def _reconstruct(kind, *empty):
  del empty  # The array's shape and type follow with its state.
  if kind is not _NDARRAY:
    raise _Refused('an array of a special class')
  return _Array()


def _frombuffer(data, dtype, shape, order):
  if not isinstance(dtype, _Dtype) or dtype.is_object:
    raise _Refused('an array of Python objects')
  array = _Array()
  array.fill(data, dtype, shape, order)
  return array


def _scalar(dtype, data):
  if not isinstance(dtype, _Dtype) or dtype.is_object:
    raise _Refused('a NumPy scalar of Python objects')
  return np.frombuffer(data, dtype.numpy, count=1)[0].item()


def _encode(text, encoding):
  """How protocols below 3 write bytes."""
  if _text(encoding) not in ('latin1', 'latin-1') or not isinstance(text, str):
    raise _Refused('an encoded text')
  return text.encode('latin1')


_ALLOWED = {
    ('numpy', 'ndarray'): _NDARRAY,
    ('numpy', 'dtype'): _StandIn(_Dtype),
    ('_codecs', 'encode'): _StandIn(_encode),
}
for _core in ('numpy.core', 'numpy._core'):  # NumPy 1, NumPy 2.
  _ALLOWED[f'{_core}.multiarray', '_reconstruct'] = _StandIn(_reconstruct)
  _ALLOWED[f'{_core}.multiarray', 'scalar'] = _StandIn(_scalar)
  _ALLOWED[f'{_core}.numeric', '_frombuffer'] = _StandIn(_frombuffer)


# Python's unpickler and not the faster one in C: that takes 64 GB for five bytes of a hostile file,
# and the files are few large blocks of bytes, for which it is no faster.
class _Unpickler(pickle._Unpickler):

  def load_bytearray8(self):
    # The inherited one clears as much memory as the file says it needs before it reads.
    size, = struct.unpack('<Q', self.read(8))
    self.append(bytearray(self.read(size)))

  dispatch = pickle._Unpickler.dispatch | {pickle.BYTEARRAY8[0]: load_bytearray8}

  def find_class(self, module, name):
    # The whole name is looked up: one with dots, which pickle would follow, is in no table.
    if (module, name) not in _ALLOWED:
      raise _Refused(f'{module}.{name}'[:80].encode('unicode_escape').decode())
    return _ALLOWED[module, name]

  def persistent_load(self, pid):
    raise _Refused('data outside the pickle (a torch tensor?)')


def _numbers(value):
  """Returns a stand-in's array, and anything else as it is."""
  if not isinstance(value, _Array):
    return value
  if value.box is not None:
    raise _Refused('an array of Python objects')
  return value.numpy


def _plain(value):
  """Puts the arrays themselves where their stand-ins are."""
  if isinstance(value, _Array) and value.box is not None:
    value = value.box[0]
  if isinstance(value, dict):
    return {_text(key): _numbers(item) for key, item in value.items()}
  return _numbers(value)


def load(file: BinaryIO, path: str) -> object:
  """Reads the next pickle of a file without running anything it names.

  Args:
    file: The file, opened for reading bytes, where the pickle begins.
    path: Its name, for the messages.

  Returns:
    The value. If it is an array, or a dictionary with arrays, these are read-only `numpy.ndarray`s
    of numbers. Keys of a dictionary that were Python 2 strings are `str`; values that were are
    `bytes`. A dictionary in an array without dimensions is taken out of it.

  Raises:
    types.UsageError: If it is damaged, or holds anything but numbers, texts and containers.
  """
  try:
    return _plain(_Unpickler(file, encoding='bytes').load())
  except _Refused as error:
    raise types.UsageError(
        f'{path} is refused: it holds {error}, and a data file may hold nothing but NumPy arrays '
        'of numbers and plain Python values; get it from its publisher again'
    ) from error
  except _DAMAGE as error:
    reason = errors.first_line(error)
    raise types.UsageError(
        f'{path} cannot be read ({type(error).__name__}: {reason}): it is damaged, cut off or no '
        'pickle; get it from its publisher again'
    ) from error


def integers(value: object) -> np.ndarray | None:
  """Returns a vector or a list of integers as int64 `[n]`, and None for anything else."""
  if isinstance(value, np.ndarray):
    if value.ndim != 1 or value.dtype.kind not in 'iu':
      return None
    return value.astype(np.int64)
  if not isinstance(value, list) or not all(type(item) is int for item in value):
    return None
  try:
    return np.array(value, np.int64)
  except OverflowError:
    return None
