"""What tables need of a finished run, and a file that keeps it where the run is not.

A run directory takes megabytes, a record a line: a file of records can be kept in a repository, and
what one machine or day has not run another can add.
"""

import csv
import hashlib
import io
import math
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tff_noise import types
from tff_noise.compare import grid as grid_lib
from tff_noise.compare import metrics
from tff_noise.privacy import rounding
from tff_noise.program import inputs
from tff_noise.program import run_config
from tff_noise.report import runs

_KEY = ('setting', 'method', 'seed')
_ABOUT = ('flags', 'code')
_COSTS = ('seconds_per_round', 'bytes_up', 'bytes_down', 'label_epsilon', 'run_epsilon')
_FIRST = _KEY + _ABOUT + _COSTS  # Metrics follow.
# Where data lie whose name says what they are.
_PLACES_OF_DATA = frozenset({'data_dir', 'public_dir'})
# Of these a place is all that says what they are.
_UNNAMED = ('npz', 'image_folder')


class Record(NamedTuple):
  """What is compared of a finished run.

  Attributes:
    code: Digest of the code that made it, '' where that was not recorded.
    values: Metrics by name; None where the run has no such number.
    seconds: Median of a round.
    up: Bytes that all clients sent.
    down: Bytes that they received.
    label_epsilon: Of the label channel; 'none' if labels are shared without privacy, '' if they are
      not shared.
    run_epsilon: Of the whole run, for the label of one example, as text: with its delta, where that
      is not 0.
    curve: Test accuracy after each round, float64 `[rounds]`, nan where none was taken; None from a
      file.
  """

  code: str
  values: Mapping[str, float | None]
  seconds: float
  up: float
  down: float
  label_epsilon: str
  run_epsilon: str
  curve: np.ndarray | None = None


def from_run(run: runs.Run, names: Sequence[str]) -> Record:
  """Returns the record of a finished run, with the metrics of these names."""
  labels = [r for r in run.privacy['releases'] if r['name'] == 'label histogram']
  label_epsilon = ''
  if labels:
    epsilon = labels[0]['epsilon']
    label_epsilon = 'none' if epsilon == 'inf' else rounding.up(epsilon)
  return Record(
      code=run.code,
      values={name: metrics.get(name).value(run) for name in names},
      seconds=run.summary['seconds_per_round'],
      # Earlier runs have what was asked besides rounds by itself.
      up=run.summary['bytes_up'] + run.summary.get('extra_bytes_up', 0),
      down=run.summary['bytes_down'],
      label_epsilon=label_epsilon,
      run_epsilon=_bound(run.privacy['totals'][0]),
      curve=run.metrics['test_accuracy'],
  )


def _bound(total):
  """An epsilon from above, with its delta where it has one."""
  epsilon, delta = float(total['epsilon']), total.get('delta', 0)
  return rounding.up(epsilon) + (f' at delta {delta:g}' if delta and epsilon < math.inf else '')


def read(path: str, grid: grid_lib.Grid) -> dict[str, Record]:
  """Returns records by the name of the run, of the grid's cells that a file has; {} without a file.

  Raises:
    types.UsageError: If the file is no such file, was made with other flags than the grid's, or has
      not all of its metrics.
  """
  rows = _rows(path)
  found = {}
  for cell in grid.cells:
    row = rows.get(_key(cell))
    if row is None:
      continue
    # Rows of before had nothing of own code.
    if row['flags'] not in (_digest(cell), _digest_of_flags(cell)):
      own = ', or other code of your own' if inputs.of_code(cell.config) else ''
      raise types.UsageError(
          f'{path}: {cell.method}, {cell.setting}, seed {cell.seed} was made with other flags than '
          f'the grid asks for{own}; give another --results'
      )
    missing = [name for name in grid.metrics if name not in row]
    if missing:
      raise types.UsageError(f'{path} does not have {", ".join(missing)}; give another --results')
    found[cell.config.name()] = _record(path, row)
  return found


def is_in(there: Record | None, record: Record) -> bool:
  """Returns whether a file's record of a cell says what `record` does, as far as both go."""
  return there is not None and there.code == record.code and all(
      there.values[name] == value for name, value in record.values.items() if name in there.values
  )


def require_metrics(path: str, names: Sequence[str]) -> None:
  """Raises `UsageError` if records of a grid with these metrics could not be added to a file."""
  _require_columns(path, _rows(path), names)


def _require_columns(path, rows, names):
  there = {name for row in rows.values() for name in row}
  if there - {*_FIRST, *metrics.recorded(names)} or (there and {*names} - there):
    raise types.UsageError(f'{path} has other metrics than this grid; give another --results')


def added(
    path: str, found: Sequence[tuple[grid_lib.Cell, Record]], names: Sequence[str]
) -> str:
  """Returns what the file at `path` is to be, with these records besides those it has.

  Rows of earlier versions, which knew fewer metrics, stay without the others.

  Args:
    path: The file.
    found: Cells and their records.
    names: The grid's metrics.

  Raises:
    types.UsageError: If what is there is no such file, or has other metrics.
  """
  rows = _rows(path)
  _require_columns(path, rows, names)
  for cell, record in found:
    # Of another shard's file there may be more.
    values = {name: _text(record.values.get(name)) for name in metrics.recorded(names)}
    costs = map(_text, (
        record.seconds, record.up, record.down, record.label_epsilon, record.run_epsilon
    ))
    about = (_digest(cell), record.code)
    key = _key(cell)
    rows[key] = dict(zip(_FIRST, (*key, *about, *costs), strict=True)) | values
  output = io.StringIO()
  writer = csv.DictWriter(
      output, _FIRST + metrics.recorded(names), restval='', lineterminator='\n'
  )
  writer.writeheader()
  writer.writerows(rows[key] for key in sorted(rows, key=lambda k: (k[0], k[1], int(k[2]))))
  return output.getvalue()


def _rows(path):
  """From (setting, method, seed) to the row, texts by column."""
  if not os.path.exists(path):
    return {}
  try:
    with open(path, encoding='utf-8', newline='') as file:
      reader = csv.DictReader(file, strict=True)
      rows, columns = list(reader), reader.fieldnames
    if tuple(columns or _FIRST)[:len(_FIRST)] != _FIRST:
      raise ValueError('its columns are others')
    for row in rows:
      if tuple(row)[:len(_FIRST)] != _FIRST or None in row or None in row.values():
        raise ValueError('its columns are others')
      if str(int(row['seed'])) != row['seed']:
        raise ValueError(f'a seed is written {row["seed"]!r}')
    found = {}
    for row in rows:
      key = tuple(row[name] for name in _KEY)
      if key in found:
        raise ValueError(f'{key[1]}, {key[0]}, seed {key[2]} is there twice')
      found[key] = row
    return found
  except (OSError, ValueError, csv.Error) as error:
    raise types.UsageError(
        f'{path} is no file of results ({error}); give another --results'
    ) from None


def _record(path, row):
  try:
    values = {name: _number(text) for name, text in row.items() if name not in _FIRST}
    costs = seconds, up, down = [float(row[name]) for name in _COSTS[:3]]
    if not all(0 <= cost < math.inf for cost in costs):
      raise ValueError(f'costs are {costs}')
    float(row['run_epsilon'].partition(' ')[0])
    if any(v is not None and math.isnan(v) for v in values.values()):
      raise ValueError('a metric is nan')
  except ValueError as error:
    raise types.UsageError(f'{path} is damaged ({error}); give another --results') from None
  return Record(row['code'], values, seconds, up, down, row['label_epsilon'], row['run_epsilon'])


def _key(cell):
  return cell.setting, cell.method, str(cell.seed)


def _digest(cell):
  """Of the flags, and of the code of one's own that they name."""
  own = [f'{name} {digest}' for name, digest in sorted(inputs.of_code(cell.config).items())]
  return _digest_of_flags(cell, own)


def _digest_of_flags(cell, own=()):
  """Of the flags that the grid gives and that decide what comes of the run.

  The run's name is of all flags, so that a version with one more would refuse every file.
  """
  left_out = run_config.EXECUTION_ONLY
  if not {cell.config.dataset, cell.config.public_dataset} & {*_UNNAMED}:
    left_out |= _PLACES_OF_DATA
  last = {_flag(text): text for text in cell.arguments}
  given = sorted(
      text for text in cell.arguments
      if last[_flag(text)] == text and _flag(text)[0] not in left_out
  )
  return hashlib.sha256('\n'.join([*given, *own]).encode()).hexdigest()[:8]


def _flag(text):
  """What a text of a command line sets: a flag, and which parameter; of several the last counts."""
  name, _, value = text.removeprefix('--').partition('=')
  return name, value.partition('=')[0] if name in ('param', 'base_param') else ''


def _text(value):
  if value is None or isinstance(value, str):
    return value or ''
  return '' if math.isnan(value) else repr(float(value))


def _number(text):
  return None if text == '' else float(text)

