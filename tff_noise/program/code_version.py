"""Which code made a run: a digest of the sources that can change its numbers."""

import hashlib
import pathlib

# What reads runs afterwards, and programs (which only a wheel has here), change no number.
_READERS = ('audit', 'bin', 'compare', 'evaluation', 'report')


def covers(module: str) -> bool:
  """Returns whether `digest` is of a module, too."""
  package, *names = module.split('.')
  return package == 'tff_noise' and not (names and names[0] in _READERS)


def digest() -> str:
  """Returns 12 hexadecimal digits, equal for equal sources of data, models, methods and program."""
  package = pathlib.Path(__file__).parent.parent
  content = hashlib.sha256()
  for path in sorted(package.rglob('*.py')):
    name = path.relative_to(package)
    if name.parts[0] not in _READERS:
      content.update(str(name).encode() + b'\0' + path.read_bytes() + b'\0')
  return content.hexdigest()[:12]
