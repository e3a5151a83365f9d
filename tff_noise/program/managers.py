"""The state and release managers of a run directory: the one place that pairs them.

Release managers are TFF's by interface and not by code: TFF's own for CSV files and TensorBoard
take a tenth of a short round's processor time.
"""

import contextlib
import csv
import errno
import glob
import io
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorboard.summary
import tensorflow as tf
import tensorflow_federated as tff

from tff_noise import errors
from tff_noise import params
from tff_noise import types
from tff_noise.program import checkpoints
from tff_noise.program import run_directory
from tff_noise.program import summary

# Called with a round's row of `metrics.csv`, by column, and its number; twice if it is run twice.
Hook = Callable[[Mapping[str, Any], int], None]


def build_state_manager(run: run_directory.RunDirectory) -> checkpoints.CheckpointManager:
  """Returns the manager of `state/`, which keeps the last two states."""
  folder = run.file('state')
  run_directory.remove_partial(folder)
  return checkpoints.CheckpointManager(folder)


def build_metrics_managers(
    run: run_directory.RunDirectory, stages: Sequence[str], hook: Hook | None = None
) -> list[tff.program.ReleaseManager]:
  """Returns the managers of `metrics.csv` and `tensorboard/`, and of a hook.

  Args:
    run: The run.
    stages: The names of its stages, in order.
    hook: A user's, called last.
  """
  return [
      _Csv(run.file('metrics.csv')),
      _TensorBoard(run.file('tensorboard'), stages),
      *([_Hooked(hook)] if hook is not None else []),
  ]


def read_metrics(run: run_directory.RunDirectory) -> list[dict[str, Any]]:
  """Returns the rows of `metrics.csv` so far, texts but for the round.

  Raises:
    types.UsageError: If it is damaged.
  """
  path = run.file('metrics.csv')
  return _read_rounds(path) if os.path.exists(path) else []


def build_hook(place: str, path: str, flags: Mapping[str, Any]) -> Hook:
  """Returns what a user's function makes of a run's directory and flags.

  Args:
    place: The function, `package.module:function`.
    path: Of the run's directory.
    flags: Of the run, by name.

  Raises:
    types.UsageError: If it fails, or returns nothing that can be called.
  """
  function = params.named(place, 'metrics_hook')
  try:
    hook = function(path, flags)
  except Exception as error:  # It may raise whatever it likes.
    raise types.UsageError(
        f'--metrics_hook={place} is called with the path of the run and its flags '
        f'({errors.named_line(error)})'
    ) from error
  if not callable(hook):
    raise types.UsageError(
        f'--metrics_hook={place} has to return a function of a row and a round, returned {hook!r}'
    )

  def called(row, round_num):
    try:
      hook(row, round_num)
    except Exception as error:
      raise types.RunError(
          f'--metrics_hook={place} failed in round {round_num} ({errors.named_line(error)}); the '
          'run can be continued with it mended, or without it'
      ) from error

  return called


class _TensorBoard(tff.program.ReleaseManager):
  """Writes scalars, the stage as its number, 1 the first, under names for people.

  The same measure has one name whatever the stage, so that methods can be laid over each other.
  What the numbers of stages mean is in the description of their curve.
  """

  def __init__(self, folder: str, stages: Sequence[str]):
    with full_disk_is_an_os_error():
      self._writer = tensorboard.summary.Writer(folder)
    self._stages = list(stages)
    self._legend = ', '.join(f'{i} {stage}' for i, stage in enumerate(stages, 1))

  async def release(self, value: Mapping[str, Any], key: int) -> None:
    """See base class; texts and what was not measured are left out."""
    row = {**value, 'stage': 1 + self._stages.index(value['stage'])}
    with full_disk_is_an_os_error():
      for name, number in row.items():
        if not isinstance(number, str) and not math.isnan(number):
          self._writer.add_scalar(
              name.replace('_', ' '), number, key,
              description=self._legend if name == 'stage' else None,
          )
      self._writer.flush()


@contextlib.contextmanager
def full_disk_is_an_os_error():
  """As everywhere else in this program; TensorBoard writes by TensorFlow, which has its own."""
  try:
    yield
  except tf.errors.ResourceExhaustedError as error:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error


class _Hooked(tff.program.ReleaseManager):
  """Hands each round's row to a user's function."""

  def __init__(self, hook: Hook):
    self._hook = hook

  async def release(self, value: Mapping[str, Any], key: int) -> None:
    """See base class."""
    self._hook(dict(value), key)


def build_timing_manager(run: run_directory.RunDirectory) -> tff.program.ReleaseManager:
  """Returns the manager of `timing.csv`, apart from `metrics.csv`, which never depends on time."""
  return _Csv(run.file('timing.csv'))


def _read_rounds(path):
  """The rows of a file of a run that is continued."""
  try:
    rows = summary.read_rows(path)
    rounds = [int(row['round']) for row in rows]
    rows = [{**row, 'round': number} for row, number in zip(rows, rounds, strict=True)]
  except (OSError, ValueError, KeyError, csv.Error) as error:
    raise _damaged(path, f'{type(error).__name__}: {error}') from error
  if not rows or rounds != list(range(1, len(rows) + 1)):
    raise _damaged(path, f'it has rounds {rounds}')
  if any(None in (*row, *row.values()) for row in rows):
    raise _damaged(path, 'a row has more or fewer values than columns')
  return rows


def _damaged(path, reason):
  return types.UsageError(
      f'{path} is damaged ({reason}): bring it back, or begin the run anew (--overwrite)'
  )


class _Csv(tff.program.ReleaseManager):
  """Writes a row a round, and the file whole each time, so that a kill leaves no half of a row."""

  def __init__(self, path: str):
    for leftover in glob.glob(glob.escape(path) + '.partial-*'):
      os.remove(leftover)
    self._path = path
    self._rows = _read_rounds(path) if os.path.exists(path) else []
    self._columns, self._text = {}, ''

  async def release(self, value: Mapping[str, Any], key: int) -> None:
    """See base class; rows of this round and of later ones are replaced."""
    row = {name: np.asarray(v).tolist() for name, v in value.items()}
    of_later_rounds = self._rows[key - 1 :]
    del self._rows[key - 1 :]
    if len(self._rows) != key - 1:
      raise types.RunError(
          f'{self._path} has {len(self._rows)} rounds before round {key}: bring it back, or begin '
          'the run anew (--overwrite)'
      )
    row = {'round': key, **row}
    self._rows.append(row)
    if of_later_rounds or row.keys() - self._columns:
      # A column that only some rows have is empty in the others.
      self._columns = dict.fromkeys(name for row in self._rows for name in row)
      self._text = _as_csv(self._columns, [{name: name for name in self._columns}, *self._rows])
    else:  # There may be many: those before are as they were.
      self._text += _as_csv(self._columns, [row])
    run_directory.write_text(self._path, self._text)


def _as_csv(columns, rows):
  text = io.StringIO()
  csv.DictWriter(text, columns).writerows(rows)
  return text.getvalue()
