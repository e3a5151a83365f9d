"""The run directory: what a run writes, whole or not at all.

A directory appears under its final name only when its configuration and scene are in it, so a run
killed while starting leaves nothing that looks like a run.
"""

import contextlib
import fcntl
import glob
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from tff_noise import types
from tff_noise.algorithms import catalog


class RunDirectory(NamedTuple):
  """The paths of one run."""

  path: str

  @property
  def name(self) -> str:
    """The run's name."""
    return os.path.basename(self.path)

  def file(self, name: str) -> str:
    """The path of a file or folder in it."""
    return os.path.join(self.path, name)

  @property
  def exists(self) -> bool:
    """Whether the run was started before."""
    return os.path.isdir(self.path)


def remove_partial(folder: str) -> None:
  """Removes what writers left in a folder that were killed; nobody else may be writing there."""
  for pattern in ('*.partial-*', '.partial-*'):
    for leftover in glob.glob(os.path.join(glob.escape(folder), pattern)):
      if os.path.isdir(leftover):
        shutil.rmtree(leftover)
      else:
        os.remove(leftover)


def write_bytes(path: str, content: bytes | memoryview) -> None:
  """Writes `content` to `path`, whole or not at all, also beside another process that does so.

  On the disk, too, when it returns: a machine that stops may keep a name and lose its content.
  """
  temporary = f'{path}.partial-{os.getpid()}'
  try:
    with open(temporary, 'wb') as file:
      file.write(content)
      file.flush()
      os.fsync(file.fileno())
    os.replace(temporary, path)
  except BaseException:
    with contextlib.suppress(FileNotFoundError):
      os.remove(temporary)
    raise


def write_text(path: str, text: str) -> None:
  """Writes `text` to `path` as `write_bytes` does."""
  write_bytes(path, text.encode())


def write_arrays(path: str, **arrays: np.ndarray) -> None:
  """Writes arrays to a `.npz` file, whole or not at all."""
  content = io.BytesIO()  # What compresses complains of a disk that is full in its own way.
  np.savez_compressed(content, **arrays)
  write_bytes(path, content.getbuffer())


def write_secret(path: str, content: bytes) -> None:
  """Writes what nobody but the run's owner may read, as hexadecimal digits, to a new file."""
  descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
  with open(descriptor, 'w', encoding='ascii') as file:
    file.write(content.hex() + '\n')
    file.flush()
    os.fsync(file.fileno())


def read_secret(path: str) -> bytes:
  """Returns what `write_secret` wrote.

  Raises:
    types.UsageError: If it is missing or damaged.
  """
  try:
    with open(path, encoding='ascii') as file:
      content = bytes.fromhex(file.read())
  except (OSError, ValueError) as error:
    raise types.UsageError(f'{path} cannot be read ({error})') from error
  if len(content) != 32:
    raise types.UsageError(f'{path} is no key of 32 bytes')
  return content


def write_json(path: str, content: Any) -> None:
  """Writes `content` to `path`, whole or not at all."""
  write_text(path, json.dumps(content, indent=2, allow_nan=False) + '\n')


def read_json(path: str) -> Any:
  """Returns the content of a JSON file.

  Raises:
    types.UsageError: If it is missing or damaged.
  """
  try:
    with open(path, encoding='utf-8') as file:
      return json.load(file, object_pairs_hook=_without_doubles)
  except (OSError, ValueError, RecursionError) as error:
    raise types.UsageError(f'{path} cannot be read ({error})') from error


def _without_doubles(pairs):
  """Who reads a key twice may take the first or the last: nobody else would know which."""
  content = dict(pairs)
  if len(content) < len(pairs):
    raise ValueError('a key is there twice')
  return content


def require_no_run(folder: str) -> None:
  """Raises `UsageError` if files would come to lie in a run's folder, over those of the run."""
  if os.path.exists(os.path.join(folder, 'config.json')):
    raise types.UsageError(
        f'--out_dir {folder} is the folder of a run, whose files would be lost: name another, such '
        'as one in it'
    )


def locate(root_dir: str, name: str, flag: str = 'root_dir') -> RunDirectory:
  """Returns the run directory `name` under `root_dir`, which is made if it can be.

  Args:
    root_dir: The folder.
    name: Of the directory in it.
    flag: Which flag gave the folder.

  Raises:
    types.UsageError: If `root_dir` cannot be made or written to.
  """
  root = os.path.abspath(root_dir)
  try:
    os.makedirs(root, exist_ok=True)
    with tempfile.TemporaryFile(dir=root):
      pass
  except OSError as error:
    raise types.UsageError(
        f'--{flag} {root_dir} cannot be written to ({error.strerror})'
    ) from error
  run = RunDirectory(os.path.join(root, name))
  if os.path.lexists(run.path) and not run.exists:
    raise types.UsageError(f'{run.path} is in the way: it is not a directory')
  return run


def create(
    run: RunDirectory,
    write: Callable[[str], None],
    *,
    replaces: bool = False,
    begin: Callable[[], None] = lambda: None,
) -> None:
  """Makes the run directory with what `write(folder)` puts into it, in one step.

  Args:
    run: The run.
    write: Called with the path of a new folder.
    replaces: Whether a run that is there is removed; if not, it stays, as one that another process
      has made meanwhile.
    begin: Called when the directory is there, before what it replaces is removed; if it raises,
      all is as it was.

  Raises:
    types.UsageError: If another process is writing what would be removed, or it is no run.
  """
  root = os.path.dirname(run.path)
  # The dot keeps it apart from every run: their names cannot start with one.
  prefix = f'.{run.name}.partial-'
  with _flock(os.open(root, os.O_RDONLY), fcntl.LOCK_EX):
    if run.exists and not replaces:
      return
    require_replaceable(run)
    _remove(root, prefix)  # Whoever left these is dead: it would hold the lock.
    folder, aside = tempfile.mkdtemp(prefix=prefix, dir=root), None
    try:
      os.chmod(folder, 0o755)
      write(folder)
      if run.exists:
        with locked(run):
          aside = tempfile.mkdtemp(prefix=prefix, dir=root)
          os.rename(run.path, aside)
      os.rename(folder, run.path)
      try:
        begin()
      except BaseException:
        os.rename(run.path, folder)
        if aside is not None:
          os.rename(aside, run.path)
        raise
      _remove(root, prefix)
    except BaseException:
      shutil.rmtree(folder, ignore_errors=True)
      raise


def require_replaceable(run: RunDirectory) -> None:
  """Raises `UsageError` where a link is in the way, or a folder, neither a run nor empty."""
  if os.path.islink(run.path):
    raise types.UsageError(
        f'{run.path} is a link: what it leads to is not replaced; remove the link, or give another '
        '--run_name or --root_dir'
    )
  if run.exists and os.listdir(run.path) and not os.path.exists(run.file('config.json')):
    raise types.UsageError(
        f'{run.path} is no run, for it has no config.json: --overwrite removes nothing but runs; '
        'give another --run_name or --root_dir'
    )


def _remove(root, prefix):
  for folder in glob.glob(os.path.join(glob.escape(root), glob.escape(prefix) + '*')):
    shutil.rmtree(folder)


@contextlib.contextmanager
def _flock(descriptor, operation, held='the lock is held'):
  try:
    try:
      fcntl.flock(descriptor, operation)
    except BlockingIOError:
      raise types.UsageError(held) from None
    yield
  finally:
    os.close(descriptor)


def is_complete(run: RunDirectory) -> bool:
  """Returns whether a run is finished: its summary is written last of all."""
  return os.path.exists(run.file('summary.json'))


_OR = (
    'Give the same flags to continue it, another --run_name, or --overwrite to begin it anew'
)
# Where nothing but the number of rounds is another.
_OR_EXTEND = '; --extend={path} and another --run_name add rounds to a finished run'


def check_same_run(
    run: RunDirectory,
    identity: Mapping[str, Any],
    defaults: Mapping[str, Any],
    otherwise: str = _OR,
) -> None:
  """Raises `UsageError` if the existing run was started with other flags, naming them.

  Args:
    run: The run.
    identity: The flags now.
    defaults: What they are where nobody gives them, as a run has those that came after it.
    otherwise: What can be done.
  """
  path = run.file('config.json')
  content = read_json(path)
  flags = content.get('flags') if isinstance(content, dict) else None
  if not isinstance(flags, dict):
    raise types.UsageError(f'{path} has no flags; is {run.path} a run?')
  flags = {**{n: value for n, value in defaults.items() if n in identity}, **flags}
  names = [n for n in sorted({*flags, *identity}) if flags.get(n) != identity.get(n)]
  changed = [f'--{name} was {flags.get(name)}, now {identity.get(name)}' for name in names]
  if changed:
    longer = names == ['rounds'] and _can_be_extended(run, flags)
    raise types.UsageError(
        f'run {run.name} was started with other flags: {"; ".join(changed)}. {otherwise}'
        + (_OR_EXTEND.format(path=run.path) if longer else '')
    )


def _can_be_extended(run, flags):
  """Whether a run is finished, not early, and none of its rounds depends on how many there are."""
  method = catalog.ALGORITHMS.get(flags.get('method'))  # None where it is the user's own.
  if flags.get('client_dp_noise') or (method is not None and not method.is_extensible):
    return False
  if flags.get('rounds', 0) % flags.get('eval_every', 1):
    return False  # The last round of a run is evaluated, that of a longer one would not be.
  ended = is_complete(run) and read_json(run.file('summary.json')).get('rounds')
  return ended == flags.get('rounds')


@contextlib.contextmanager
def locked(run: RunDirectory) -> Iterator[None]:
  """Keeps a second process out of the run while the context is open.

  The lock ends with the process, however it ends.

  Raises:
    types.UsageError: If another process holds it.
  """
  held = f'run {run.name} is being written by another process'
  with _flock(os.open(run.path, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB, held):
    yield
