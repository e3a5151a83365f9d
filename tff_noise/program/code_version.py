"""Which code made a run: a digest of the sources that can change its numbers."""

import hashlib
import os
import pathlib

from tff_noise.program import run_directory

# What reads runs afterwards, and programs (which only a wheel has here), change no number.
_READERS = ('audit', 'bin', 'compare', 'evaluation', 'report')
# Digests file by file: by them who is refused is told which file it was.
_FILE = 'code.json'


def covers(module: str) -> bool:
  """Returns whether `digest` is of a module, too."""
  package, *names = module.split('.')
  return package == 'tff_noise' and not (names and names[0] in _READERS)


def digest() -> str:
  """Returns 12 hexadecimal digits, equal for equal sources of data, models, methods and program."""
  content = ''.join(f'{name}\0{of_file}\0' for name, of_file in _files().items())
  return _of_bytes(content.encode())


def write(folder: str, hook: str | None, *, repeats: bool = True) -> None:
  """Keeps in a run's folder which code it goes on with, and what else is of all who went on.

  Args:
    folder: The run's.
    hook: `--metrics_hook`, of which all are kept.
    repeats: Whether rounds come to the same bits again where it goes on; kept if they ever did not.
  """
  hooks = dict.fromkeys((*hooks_of(folder), *([hook] if hook else ())))
  run_directory.write_json(os.path.join(folder, _FILE), {
      'code': digest(), 'files': _files(), 'hooks': list(hooks),
      'repeats': repeats and repeated(folder),
  })


def carry(source: run_directory.RunDirectory, folder: str) -> None:
  """Keeps in a run's folder which hooks ran beside the run whose rounds it takes over, and whether
  these repeat.
  """
  begun = run_directory.read_json(source.file('config.json')).get('execution', {})
  for hook in (begun.get('metrics_hook'), *hooks_of(source.path)):
    write(folder, hook, repeats=begun.get('repeats', True) and repeated(source.path))


def hooks_of(folder: str) -> list[str]:
  """Returns the hooks that ran beside a run, as far as its folder says."""
  path = os.path.join(folder, _FILE)
  return run_directory.read_json(path).get('hooks', []) if os.path.exists(path) else []


def repeated(folder: str) -> bool:
  """Returns whether rounds came to the same bits again wherever a run went on so far."""
  path = os.path.join(folder, _FILE)
  return not os.path.exists(path) or run_directory.read_json(path).get('repeats', True)


def differences(run: run_directory.RunDirectory, code: str) -> list[str]:
  """Returns the files that differ from those of `code`; none where the run does not say."""
  if not os.path.exists(run.file(_FILE)):
    return []
  kept, now = run_directory.read_json(run.file(_FILE)), _files()
  if kept.get('code') != code:
    return []
  then = kept['files']
  return sorted(name for name in {**then, **now} if then.get(name) != now.get(name))


def _files():
  package = pathlib.Path(__file__).parent.parent
  paths = [path.relative_to(package) for path in sorted(package.rglob('*.py'))]
  return {
      f'tff_noise/{path.as_posix()}': _of_bytes((package / path).read_bytes())
      for path in paths
      # Editors keep copies under names with a dot first, which nobody can import.
      if path.parts[0] not in _READERS and not any(part.startswith('.') for part in path.parts)
  }


def _of_bytes(content):
  return hashlib.sha256(content).hexdigest()[:12]
