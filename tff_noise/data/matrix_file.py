"""Vectors and matrices of numbers that a flag names as a file."""

import os
import tokenize
import zipfile

import numpy as np

from tff_noise import types

SUFFIXES = ('.npy', '.csv', '.txt')
_KINDS = f'a file of numbers is {", ".join(SUFFIXES[:-1])} or {SUFFIXES[-1]}'


def read(path: str, flag: str) -> np.ndarray:
  """Reads numbers: `.npy`, or text with one row a line, split by commas or blanks.

  Args:
    path: The file. In text, `#` starts a comment.
    flag: The flag that names it, for messages: `--openset_q`.

  Returns:
    float64, `[columns]` for a single row or column of text, otherwise `[rows, columns]`. All
    entries are finite.

  Raises:
    types.UsageError: If the file is missing, damaged, or holds anything but numbers.
  """
  suffix = os.path.splitext(path)[1].lower()
  name = f'{flag}={path}'
  if suffix not in SUFFIXES:
    raise types.UsageError(f'{name}: {_KINDS}')
  try:
    values = _read_npy(path) if suffix == '.npy' else _read_text(path)
  except FileNotFoundError:
    raise types.UsageError(f'{name}: no such file; {_KINDS}') from None
  except (
      OSError, ValueError, EOFError, MemoryError, OverflowError, zipfile.BadZipFile,
      tokenize.TokenError,
  ) as error:
    raise types.UsageError(f'{name} cannot be read ({_one_line(error)}); {_KINDS}') from error
  if values.ndim not in (1, 2) or not values.size:
    raise types.UsageError(
        f'{name} has an array of shape {values.shape}; a vector or a matrix is needed'
    )
  if not np.isfinite(values).all():
    place = ', '.join(map(str, np.argwhere(~np.isfinite(values))[0]))
    raise types.UsageError(f'{name}: the entry at [{place}] is not finite; correct the file')
  return values


def _read_npy(path):
  # Only arrays: a file that NumPy would have to unpickle can run any code.
  with open(path, 'rb') as file:
    values = np.lib.format.read_array(file, allow_pickle=False)
  if values.dtype.kind not in 'iufb':
    raise ValueError(f'its entries are {values.dtype}, not numbers')
  return values.astype(np.float64)


def _read_text(path):
  with open(path, encoding='utf-8-sig') as file:
    lines = [line.split('#')[0].replace(',', ' ') for line in file]
  lines = [line for line in lines if line.strip()]
  if not lines:
    raise ValueError('it is empty')
  return np.atleast_1d(np.loadtxt(lines, np.float64))


def _one_line(error):
  """The first line of the message, without NumPy's advice to programmers."""
  return (str(error).splitlines() or [type(error).__name__])[0].split(';')[0].rstrip('.')
