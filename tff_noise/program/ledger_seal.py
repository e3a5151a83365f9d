"""What ties a run's ledger to its configuration, scene and code, and who may go on with it."""

import os

from tff_noise import types
from tff_noise.privacy import ledger
from tff_noise.program import code_version
from tff_noise.program import run_directory

# Stays with who owns the run: with it, cohorts can be tried until one fits an entry.
_KEY = 'ledger.key'


def write_key(folder: str, key: bytes | None = None) -> None:
  """Writes the key of a new run, drawn from the system if not given, readable by its owner alone.

  Not from the seed: whoever guessed that would have the key.
  """
  run_directory.write_secret(os.path.join(folder, _KEY), key or os.urandom(32))


def of_run(run: run_directory.RunDirectory) -> ledger.Seal:
  """Returns the seal of a run's ledger.

  Raises:
    types.UsageError: If the run has not the files that it is made from.
  """
  config, scene, _ = (_read(run, name) for name in ('config.json', 'scene.npz', _KEY))
  key = run_directory.read_secret(run.file(_KEY))
  code = run_directory.read_json(run.file('config.json')).get('code', '')
  return ledger.Seal(ledger.commitment(key, config, scene), str(code), key)


def _read(run, name):
  path = run.file(name)
  try:
    with open(path, 'rb') as file:
      return file.read()
  except OSError as error:
    raise types.UsageError(
        f'{path} cannot be read ({error.strerror}): without it nobody can tell whether the ledger '
        'is that of this run; work on it where it was made (runs of earlier versions have no '
        f'{_KEY})'
    ) from error


_OTHERWISE = (
    'use the same code, begin another run (--run_name), this one anew (--overwrite), or give '
    '--resume_other_code, by which a finished run is shown, and the ledger and every audit '
    'tell of one that goes on'
)


def check_code(
    run: run_directory.RunDirectory, other_code: bool, otherwise: str = _OTHERWISE
) -> None:
  """Raises `UsageError` if other code made the run so far, and that is not allowed.

  It would release other values in place of those that were released since the last checkpoint.

  Args:
    run: The run.
    other_code: Whether that is allowed.
    otherwise: What can be done.
  """
  found = other_code_of(run)
  if found and not other_code:
    raise types.UsageError(f'{found}: {otherwise}')


def other_code_of(run: run_directory.RunDirectory) -> str:
  """Returns a sentence on the code that made a run so far; '' if it is this.

  Raises:
    types.UsageError: If that cannot be read.
  """
  seal = of_run(run)
  lines = []
  if os.path.exists(run.file('uplink.json')):
    declared = run_directory.read_json(run.file('uplink.json'))
    lines = ledger.read_lines(run.file('ledger.jsonl'), declared, seal)
  then, now = ledger.last_code(lines, seal), code_version.digest()
  if then == now:
    return ''
  files = code_version.differences(run, then)
  more = f' and {len(files) - 3} more' if len(files) > 3 else ''
  where = f' (other: {", ".join(files[:3])}{more})' if files else ''
  return f'run {run.name} was made by code {then or "unknown"}, this is {now}{where}'
