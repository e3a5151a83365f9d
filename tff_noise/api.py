"""Runs from Python: one call, in a script or a notebook.

The run is a process of its own, as from the command line: it shares nothing with this one, whose
event loop, TensorFlow and TFF context stay as they are.
"""

from __future__ import annotations

import importlib.util
import numbers
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tff_noise import child
from tff_noise import types


class TrainedRun(NamedTuple):
  """A finished run.

  Attributes:
    path: Of its directory.
    summary: The content of `summary.json`.
    metrics: A row a round: a `pandas.DataFrame` where pandas is installed, otherwise NumPy arrays
      `[rounds]` by column.
  """

  path: str
  summary: Mapping[str, Any]
  metrics: Any

  @property
  def model(self) -> Any:
    """The trained `tf.keras.Model`, from raw pixels to probabilities; loads TensorFlow.

    Raises:
      types.UsageError: Where there is not one Keras model, see `models/` in `path`.
    """
    # Where it is loaded here for the first time it prints pages about hardware that is not there.
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
    import tensorflow as tf

    file = self.file('models/final.keras')
    if not os.path.exists(file):
      raise types.UsageError(
          f'{file} is not there: clients have models of their own (models/final.npz), or one has '
          'layers that Keras does not know (models/final is a SavedModel), or the run is of '
          'bin/compare or was killed while it was written: bin/evaluate --run_dir writes it then, '
          'where there is no models/final'
      )
    return tf.keras.models.load_model(file)

  def file(self, name: str) -> str:
    """The path of a file of the run, such as 'report.html'."""
    return os.path.join(self.path, name)


def train(*, verbose: bool = True, **flags: Any) -> TrainedRun:
  """Runs or continues what flags of `bin/train` describe, and returns what came of it.

  `tff_noise.train(method='gce', dataset='digits', rounds=50, param={'q': 0.5})`; a flag that may be
  given several times, or takes texts with commas between them, takes a list, and `param` a mapping
  too.

  Args:
    verbose: Whether what the run says is printed.
    **flags: Of `bin/train`, without their dashes.

  Raises:
    types.UsageError: What `bin/train` says and ends with status 2.
    types.RunError: What it ends with otherwise.
  """
  from tff_noise.program import flags as flags_lib

  told = {'help', 'list_methods'} & set(flags)
  if told:
    raise types.UsageError(f'{min(told)} is for the command line: a call makes a run')
  arguments = [
      f'--{name}={one}' for name, value in flags.items()
      for one in _values(name, value, name in flags_lib.repeated())
  ]
  # Mistakes are told before the run's process starts.
  if ':' in str(flags.get('method', '')):
    # The code of a method of one's own is for that process: here it would stay as it is now.
    path = _say(_PATH, arguments, lambda line: None)
  else:
    path = flags_lib.config_of_command_line(['train', *arguments]).path()
  _run(arguments, verbose)
  return load(path)


def _values(name, value, repeated):
  """What a flag is given, once for each; of one that is given once, a list is one text."""
  if value is None:
    return []
  if isinstance(value, Mapping):
    return [f'{key}={_text(name, one)}' for key, one in value.items()]
  # Not the entry of a method, which is a tuple too.
  if type(value) not in (list, tuple):
    return [_text(name, value)]
  texts = [str(_text(name, one)) for one in value]
  return texts if repeated else [','.join(texts)]


def _text(name, value):
  if isinstance(value, bool | np.bool_):
    return str(value).lower()
  if not isinstance(value, str | os.PathLike | numbers.Real):
    raise types.UsageError(
        f'{name} has to be a text or a number, got a {type(value).__name__}: what is written in '
        'Python is named, as in method="package.module:ENTRY"'
    )
  return value


_START = child.WITHOUT_FIRST + "import runpy; runpy.run_path({!r}, run_name='__main__')"
_PATH = child.WITHOUT_FIRST + (
    'from tff_noise.program import command_line, flags; sys.exit(command_line.run("train", lambda: '
    'print(flags.config_of_command_line(["train", *sys.argv[1:]]).path())))'
)


def _run(arguments, verbose):
  # An installed package has the programs within it.
  installed = importlib.util.find_spec('tff_noise.bin')
  # By its place: where the user stands there may be another folder bin.
  if installed is None:
    folder = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), 'bin')
  else:  # Of an editable one they lie elsewhere.
    [folder] = installed.submodule_search_locations
  program = os.path.join(folder, 'train.py')
  _say(_START.format(program), arguments, _print if verbose else lambda line: None)


def _print(line):
  print(line, end='', flush=True)


def _say(code, arguments, on_line):
  """Runs code in a process of its own; returns the last line that it says."""
  command = [sys.executable, '-c', code, *arguments]
  path = os.pathsep.join(os.path.abspath(p) for p in sys.path)
  # By it programs find where `bazel run` was called; paths of a call are those of this process.
  env = {k: v for k, v in os.environ.items() if k != 'BUILD_WORKING_DIRECTORY'}
  process = child.start(
      command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
      text=True, env={**env, 'PYTHONPATH': path},
  )
  said = ''
  try:
    for line in process.stdout:
      said = line.rstrip() or said
      on_line(line)
    status = process.wait()
  except BaseException:
    child.stop(process)
    raise
  finally:
    process.stdout.close()
  if status < 0:
    name = signal.Signals(-status).name
    raise types.RunError(f'the run was ended by {name}; last it said: {said}')
  if status:
    raise (types.UsageError if status == 2 else types.RunError)(said.removeprefix('train: '))
  return said


def load(path: str) -> TrainedRun:
  """Returns a finished run by its directory.

  Raises:
    types.UsageError: If it is none, not finished, or damaged.
  """
  from tff_noise.report import runs

  run = runs.read_run(path)
  if not run.finished:
    raise types.UsageError(f'{path} is not finished: the same call continues it')
  metrics = dict(run.metrics)
  if importlib.util.find_spec('pandas') is not None:
    import pandas as pd

    metrics = pd.DataFrame(metrics).set_index('round')
  return TrainedRun(run.path, run.summary, metrics)
