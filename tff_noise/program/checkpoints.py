"""Checkpoints: states of a run, each a file of NumPy arrays that has their places as names.

TFF's own file manager writes a SavedModel, a traced graph, for each state: a third of a second,
or most of what a short run cost beside its rounds (benchmarks/NOTES.md).
"""

import asyncio
import hashlib
import io
import os
import re
from typing import Any

import numpy as np
import tensorflow_federated as tff
import tree

from tff_noise import errors
from tff_noise import types
from tff_noise.program import run_directory

_KEPT = 2
_NAME = re.compile(r'round_(\d+)\.npz')


class CheckpointManager(tff.program.ProgramStateManager):
  """Keeps the last two states in a folder, `round_N.npz` after round N, whole or not at all.

  A state is a structure of arrays and of Python's numbers, texts and bytes; it is read back as it
  was, to the bit, dtypes and types of numbers included.
  """

  def __init__(self, folder: str):
    self._folder = folder

  def path(self, version: int) -> str:
    """Where the state after round `version` is."""
    return os.path.join(self._folder, f'round_{version}.npz')

  async def get_versions(self) -> list[int] | None:
    """See base class."""
    return self._numbers() or None

  async def load(self, version: int, structure: Any) -> Any:
    """See base class.

    Raises:
      types.UsageError: If the state cannot be read; the file is kept.
    """
    path = self.path(version)
    if not os.path.exists(path):
      raise tff.program.ProgramStateNotFoundError(version)
    try:
      return read(path, structure)
    # Damage surfaces as one of half a dozen error types of zipfile, zlib and NumPy.
    except Exception as error:
      reason = errors.first_line(error)
      raise types.UsageError(
          f'checkpoint {path} cannot be read ({type(error).__name__}: {reason}). It was kept; move '
          'it away to continue from the one before, or from the start if there is none'
      ) from error

  async def save(self, program_state: Any, version: int) -> None:
    """See base class; what changes the state's arrays meanwhile is wrong."""
    path = self.path(version)
    if os.path.exists(path):
      raise tff.program.ProgramStateExistsError(version=version, path=self._folder)
    state = await tff.program.materialize_value(program_state)
    await asyncio.to_thread(self._write, state, path)

  def _write(self, state, path):
    os.makedirs(self._folder, exist_ok=True)
    content = io.BytesIO()
    np.savez(content, **{name: _array(name, leaf) for name, leaf in _named(state).items()})
    run_directory.write_bytes(path, content.getbuffer())
    self._remove(_KEPT)

  def _remove(self, kept):
    numbers = self._numbers()
    for number in numbers[: len(numbers) - kept]:
      os.remove(self.path(number))

  def _numbers(self):
    if not os.path.isdir(self._folder):
      return []
    found = map(_NAME.fullmatch, os.listdir(self._folder))
    return sorted(int(match[1]) for match in found if match)

  async def remove_all(self) -> None:
    """See base class."""
    self._remove(0)


def digest(state: Any) -> bytes:
  """Returns SHA-256 of a state: of all leaves' places, types, shapes and values."""
  found = hashlib.sha256()
  for name, leaf in _named(state).items():
    array = _array(name, leaf)
    found.update(f'{name} {array.dtype.str} {array.shape} '.encode())
    found.update(np.ascontiguousarray(array).data)
  return found.digest()


def read(path: str, structure: Any) -> Any:
  """Returns the state in the file at `path`, in this structure.

  Raises:
    ValueError: If the file holds other places than the structure has.
  """
  examples = _named(structure)
  with np.load(path) as file:
    missing, unknown = {*examples} - {*file.files}, {*file.files} - {*examples}
    if missing or unknown:
      raise ValueError(f'it lacks {sorted(missing)} and has {sorted(unknown)}, which it should not')
    leaves = [_like(example, _member(file, name)) for name, example in examples.items()]
  return tree.unflatten_as(structure, leaves)


def _member(file, name):
  # Asked by its name, NumPy's file looks through all names: minutes for what many clients keep.
  with file.zip.open(f'{name}.npy') as member:
    return np.lib.format.read_array(member, allow_pickle=False)


def _named(state):
  """The leaves by their places, in order."""
  places = [('/'.join(map(str, path)), leaf) for path, leaf in tree.flatten_with_path(state)]
  named = dict(places)
  if len(named) < len(places):
    raise ValueError('two places of a state have the same name')
  return named


def _array(name, leaf):
  # NumPy would cut zeros off the end of bytes, which TFF's DP aggregators have for texts.
  array = np.frombuffer(leaf, np.uint8) if isinstance(leaf, bytes) else np.asarray(leaf)
  # What NumPy would pickle, or read back as something else.
  if array.dtype.kind in 'OSV':
    raise TypeError(
        f'{name} is {type(leaf).__name__}; a state has numbers, texts, bytes and arrays of numbers'
    )
  return array


def _like(example, array):
  if isinstance(example, bytes):
    return array.tobytes()
  # NumPy's float64 is a float, too, and stays what it is.
  plain = isinstance(example, bool | int | float | str) and not isinstance(example, np.generic)
  return array.item() if plain else array[()]
