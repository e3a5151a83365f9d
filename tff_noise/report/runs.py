"""Run directories, read back: checked, and fast enough for tables over hundreds of runs."""

import csv
import os
import tokenize
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tff_noise import errors
from tff_noise import types
from tff_noise.data import scene as scene_lib
from tff_noise.privacy import protection
from tff_noise.program import code_version
from tff_noise.program import ground_truth
from tff_noise.program import run_directory
from tff_noise.program import summary as summary_lib

# Columns of metrics.csv that are texts even where every value looks like a number.
_TEXTS = frozenset({'stage'})

# Columns of metrics.csv that are counts, with which is reckoned.
_COUNTED = frozenset(('clients', 'rejected', 'bytes_up', 'bytes_down'))

# What NumPy, zip and zlib raise for a file that is damaged or of another kind.
_DAMAGE = (
    OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile, zlib.error,
    tokenize.TokenError,
)

class Run(NamedTuple):
  """What a run directory holds, without its scene and checkpoints.

  Attributes:
    path: Absolute path of the directory.
    name: Its last part.
    flags: The flags that determine the result, by name.
    method_parameters: The method's own parameters, by name.
    versions: Version of Python and of each recorded package.
    code: Digest of the code that made the run, '' where it was not recorded.
    hook: Whose code ran beside it, by `--metrics_hook`; '' for nobody's.
    class_names: Of the data set; () where they were not recorded.
    inputs: Digests of what it was made from, see `program.inputs`; {} where they were not recorded.
    noise: What tells its noise from that of other runs, see `program.noise_secret.name`; '' where
      there is none, or it was not recorded.
    summary: `summary.json`, or None while the run is not finished.
    privacy: `privacy.json`, or None where it is not there yet.
    uplink: `uplink.json`, one mapping a field, or None where it is not there yet.
    metrics: The columns of `metrics.csv`, each `[rounds]`: float64, nan where nothing was measured,
      or str ('stage', and whatever is no number). Without any round: no columns.
    seconds: float64 `[rounds]`, wall time of each round; nan where it was not recorded.
  """

  path: str
  name: str
  flags: Mapping[str, Any]
  method_parameters: Mapping[str, Any]
  versions: Mapping[str, str]
  code: str
  hook: str
  class_names: Sequence[str]
  inputs: Mapping[str, str]
  noise: str
  summary: Mapping[str, Any] | None
  privacy: Mapping[str, Any] | None
  uplink: Sequence[Mapping[str, Any]] | None
  metrics: Mapping[str, np.ndarray]
  seconds: np.ndarray

  @property
  def rounds(self) -> np.ndarray:
    """int64 `[rounds]`, the numbers of the rounds done."""
    return self.metrics['round'].astype(np.int64) if self.metrics else np.zeros(0, np.int64)

  def names_of_classes(self, classes: int) -> tuple[str, ...]:
    """Returns the names of the first `classes` classes; numbers where they were not recorded."""
    if len(self.class_names) < classes:
      return tuple(map(str, range(classes)))
    return tuple(self.class_names[:classes])

  @property
  def finished(self) -> bool:
    """Whether the run came to its end."""
    return self.summary is not None


def read_run(path: str) -> Run:
  """Returns the run in the directory `path`, finished or not.

  Raises:
    types.UsageError: If it is no run, or a file in it is damaged; the message names the file. A
      file that only a finished run has may be missing until `summary.json` is there.
  """
  directory = run_directory.RunDirectory(os.path.abspath(path))
  if not directory.exists:
    raise types.UsageError(f'{path} is not a run: no such directory')
  if not os.path.lexists(directory.file('config.json')):
    raise types.UsageError(
        f'{path} is not a run: it has no config.json; give the folder of one, such as runs/NAME'
    )
  config = _read_config(directory)
  summary = _optional_json(directory, 'summary.json', _check_summary)
  finished = summary is not None
  privacy = _optional_json(directory, 'privacy.json', _check_privacy, finished)
  uplink = _optional_json(directory, 'uplink.json', _check_uplink, finished)
  metrics = _read_columns(directory.file('metrics.csv'), finished)
  if finished and summary['rounds'] != len(metrics.get('round', ())):
    raise types.UsageError(
        f'{directory.file("metrics.csv")} has {len(metrics.get("round", ()))} rounds, '
        f'summary.json tells of {summary["rounds"]}'
    )
  timing = _read_columns(directory.file('timing.csv'), finished)
  begun = str(config.get('execution', {}).get('metrics_hook') or '')
  return Run(
      path=directory.path,
      name=directory.name,
      flags=config['flags'],
      method_parameters=config.get('method_parameters', {}),
      versions=config.get('versions', {}),
      code=str(config.get('code', '')),
      hook=', '.join(dict.fromkeys(
          ([begun] if begun else []) + list(map(str, code_version.hooks_of(directory.path)))
      )),
      class_names=tuple(map(str, config.get('class_names', ()))),
      inputs=config.get('inputs', {}),
      noise=str(config.get('noise', '')),
      summary=summary,
      privacy=privacy,
      uplink=uplink,
      metrics=metrics,
      seconds=_seconds(metrics, timing, directory.file('timing.csv')),
  )


def accuracy(run: Run) -> summary_lib.Accuracy | None:
  """Returns the run's test accuracy so far, or None where it was never measured."""
  if 'test_accuracy' not in run.metrics:
    return None
  return summary_lib.accuracy(run.rounds, run.metrics['test_accuracy'])


def read_scene(run: Run) -> scene_lib.Scene:
  """Returns the run's scene, without the data set it belongs to.

  Raises:
    types.UsageError: If the file is missing, damaged, or contradicts itself.
  """
  return scene_lib.read(os.path.join(run.path, 'scene.npz'))


def trains_on_reports(run: Run) -> bool:
  """Whether clients know nothing of their labels but reports, --training_labels=private."""
  return run.flags.get('training_labels') == 'private'


def as_clients_know(run: Run, scene: scene_lib.Scene) -> scene_lib.Scene:
  """Returns the scene with the labels that clients train on, which may be reports.

  Raises:
    types.UsageError: If the run does not say how they are made.
  """
  if not trains_on_reports(run):
    return scene
  try:
    return ground_truth.reported(
        scene, run.flags['label_epsilon'], len(run.class_names), run.flags['seed']
    )
  except (KeyError, TypeError, ValueError) as error:
    raise types.UsageError(f'{run.path}/config.json is damaged: {error!r}') from error


def read_clients(run: Run) -> dict[str, np.ndarray]:
  """Returns the columns of `clients.csv`, float64 `[C]`; {} where an unfinished run has none yet.

  The clients' names, which may be anything, are left out.

  Raises:
    types.UsageError: If the file is damaged, or missing in a finished run.
  """
  path = os.path.join(run.path, 'clients.csv')
  columns = _read_table(path, 'client', run.finished)
  columns.pop('name', None)
  if columns and not np.array_equal(columns['client'], np.arange(len(columns['client']))):
    raise types.UsageError(f'{path} is damaged: its clients are not 0, 1, 2, ...')
  for name, values in columns.items():
    if values.dtype.kind != 'f':
      raise types.UsageError(f'{path} is damaged: {name} is not a column of numbers')
  return columns


def read_confusion(run: Run) -> np.ndarray | None:
  """Returns int64 `[K, K]`, true classes by what they are taken for; None where there is none.

  Raises:
    types.UsageError: If the file is damaged.
  """
  path = os.path.join(run.path, 'confusion.csv')
  if not os.path.lexists(path):
    return None
  try:
    found = np.loadtxt(path, np.int64, delimiter=',', ndmin=2)
  except _DAMAGE as error:
    raise types.UsageError(f'{path} cannot be read ({errors.first_line(error)})') from error
  if found.shape[0] != found.shape[1] or found.min(initial=0) < 0:
    raise types.UsageError(f'{path} is damaged: it is no square matrix of counts')
  return found


def read_labels(run: Run) -> np.ndarray | None:
  """Returns the labels the clients ended with, int32 `[n]`; None where the run has written none.

  Raises:
    types.UsageError: If the file is damaged.
  """
  path = os.path.join(run.path, 'labels.npz')
  if not os.path.lexists(path):
    return None
  labels = _read_array(path, 'label')
  if labels.ndim != 1 or labels.dtype.kind != 'i' or labels.min(initial=0) < 0:
    raise types.UsageError(f'{path} is damaged: label is not a vector of labels')
  return labels.astype(np.int32)


def read_posteriors(run: Run) -> np.ndarray:
  """Returns how likely clients found each label right, float32 `[n]`, nan where none judged it.

  Raises:
    types.UsageError: If the file is missing or damaged.
  """
  path = os.path.join(run.path, 'posteriors.npz')
  posteriors = _read_array(path, 'posterior')
  is_vector = posteriors.ndim == 1 and posteriors.dtype.kind == 'f'
  if not is_vector or np.isinf(posteriors).any():
    raise types.UsageError(f'{path} is damaged: posterior is not a vector of probabilities')
  return posteriors.astype(np.float32)


def _read_array(path, name):
  try:
    with np.load(path, allow_pickle=False) as file:
      return file[name]
  except _DAMAGE as error:
    raise types.UsageError(
        f'{path} cannot be read ({type(error).__name__}: {errors.first_line(error)})'
    ) from error


def _read_config(directory):
  path = directory.file('config.json')
  config = run_directory.read_json(path)
  if not isinstance(config, dict) or not isinstance(config.get('flags'), dict):
    raise types.UsageError(f'{path} has no flags; is {directory.path} a run?')
  for name in ('method_parameters', 'versions', 'inputs', 'execution'):
    if not isinstance(config.get(name, {}), dict):
      raise types.UsageError(f'{path} is damaged: {name} is not a mapping')
  return config


def _optional_json(directory, name, check, required=False):
  """Returns the checked content of a JSON file, or None if it is missing and may be."""
  path = directory.file(name)
  if not required and not os.path.lexists(path):
    return None
  content = run_directory.read_json(path)
  wrong = check(content)
  if wrong:
    raise types.UsageError(f'{path} is damaged: {wrong}')
  return content


def _check_summary(content):
  """Returns what is wrong with `summary.json`, '' if nothing is."""
  if not isinstance(content, dict):
    return 'it is not a mapping'
  numbers = (
      'best_test_accuracy', 'best_round', 'last10_test_accuracy', 'final_test_accuracy', 'rounds',
      'seconds_per_round', 'seconds',
  )
  bad = [name for name in numbers if not _is_number(content.get(name))]
  return f'{bad[0]} is not a number' if bad else ''


def _is_number(value):
  return isinstance(value, int | float) and not isinstance(value, bool)


def _check_privacy(content):
  """Returns what is wrong with `privacy.json`, '' if nothing is."""
  if not isinstance(content, dict):
    return 'it is not a mapping'
  for name in ('releases', 'totals'):
    if not _is_rows(content.get(name)):
      return f'{name} is not a list of mappings'
  return '' if isinstance(content.get('statement'), str) else 'it has no statement'


def _check_uplink(content):
  """Returns what is wrong with `uplink.json`, '' if nothing is."""
  if not _is_rows(content):
    return 'it is not a list of mappings'
  for row in content:
    for name in ('name', 'disclosure'):
      if not isinstance(row.get(name), str):
        return f'a value of it has no {name}'
    try:
      protection.from_json(row.get('protection'))
    except ValueError as error:
      return str(error)
  return ''


def _is_rows(value):
  return isinstance(value, list) and all(isinstance(row, dict) for row in value)


def _read_columns(path, required):
  """Returns the columns of a CSV file with one row a round; nothing if it may be missing and is."""
  columns = _read_table(path, 'round', required)
  if columns:
    _check_rounds(columns['round'], path)
  for name in _COUNTED & columns.keys():
    if columns[name].dtype.kind != 'f':
      raise types.UsageError(f'{path} is damaged: {name} is not a column of numbers')
  return columns


def _read_table(path, key, required):
  """Returns the columns of a CSV file that has a column `key`; nothing without rows."""
  if not required and not os.path.lexists(path):
    return {}
  try:
    with open(path, encoding='utf-8', newline='') as file:
      rows = list(csv.reader(file, strict=True))
  except (OSError, ValueError, csv.Error) as error:
    raise types.UsageError(f'{path} cannot be read ({errors.first_line(error)})') from error
  if not rows or key not in rows[0]:
    raise types.UsageError(f'{path} is damaged: its first line names no column "{key}"')
  header, *rows = rows
  for line, row in enumerate(rows, 2):
    if len(row) != len(header):
      raise types.UsageError(
          f'{path} is damaged: line {line} has {len(row)} values for {len(header)} columns'
      )
  if not rows:
    return {}
  return {
      name: _column(name, values)
      for name, values in zip(header, zip(*rows, strict=True), strict=True)
  }


def _column(name, values):
  """Numbers where all of `values` are numbers or empty, else texts."""
  if name not in _TEXTS:
    try:
      return np.array([float(value or 'nan') for value in values])
    except ValueError:
      pass
  return np.array(values, np.str_)


def _check_rounds(rounds, path):
  if rounds.dtype.kind != 'f' or not np.array_equal(rounds, np.arange(1, len(rounds) + 1)):
    raise types.UsageError(f'{path} is damaged: its rounds are not 1, 2, 3, ...')


def _seconds(metrics, timing, path):
  """Seconds of each round of `metrics`: a kill may leave either file a row ahead of the other."""
  rounds = len(metrics.get('round', ()))
  seconds = timing.get('seconds', np.zeros(0))
  if timing and ('seconds' not in timing or seconds.dtype.kind != 'f'):
    raise types.UsageError(f'{path} is damaged: it has no column of seconds')
  aligned = np.full(rounds, np.nan)
  aligned[: len(seconds)] = seconds[:rounds]
  return aligned
