"""What the mains in `bin` share: reading flags, and how a program ends."""

import contextlib
import copy
import errno
import importlib.util
import io
import itertools
import logging
import os
import re
import sys
import textwrap
from collections.abc import Callable, Sequence

from absl import flags

from tff_noise import types


def parse(
    defined: flags.FlagValues, argv: Sequence[str], *, known_only: bool = False
) -> tuple[flags.FlagValues, list[str]]:
  """Reads `argv` (program name first) into a copy of the flags that a program defines.

  Args:
    defined: The flags.
    argv: The command line.
    known_only: Whether arguments that are not defined are left for another reader, not refused.

  Returns:
    The flag values, and what is left of the command line.

  Raises:
    types.UsageError: For a value of the wrong type, an unknown flag or a stray argument.
  """
  values = copy.deepcopy(defined)
  try:
    _require_names_of_files(argv[1:])
    # Once: a file may be a pipe.
    words = [_at_home(w) for w in values.read_flags_from_files(list(argv[1:]), force_gnu=False)]
    if any(re.match('--?undefok(=|$)', word) for word in words):  # absl's own flag.
      raise types.UsageError('--undefok is not taken: it would hide flags that are misspelt')
    rest = values([argv[0], *words], known_only=known_only)[1:]
  except flags.IllegalFlagValueError as error:
    raise types.UsageError(_wrong_value(defined, error)) from error
  except (flags.Error, ValueError) as error:  # ValueError: --noNAME=VALUE, a file that is no text.
    raise types.UsageError(_refused(error)) from error
  if rest and not known_only:
    raise types.UsageError(f'unexpected argument {rest[0]!r}; flags are written --name=value')
  return values, rest


# They are in a run's name and among what an auditor gets: as they were given, see `data.sources`.
_AS_GIVEN = re.compile('--?(data_dir|public_dir|validation_dir)=')


def _at_home(word):
  """With the home folder in place of a leading ~, which no shell knows after a "="."""
  if _AS_GIVEN.match(word):
    return word
  return re.sub('(?<=[=,])~(?=/|$)', lambda _: os.path.expanduser('~'), word)


def _require_names_of_files(words):
  """Refuses a --flagfile without one, which absl takes for none."""
  for word, following in itertools.pairwise([*words, '']):
    flag, equals, value = word.partition('=')
    if flag in ('--flagfile', '-flagfile') and not (value if equals else following).strip():
      raise types.UsageError('--flagfile= names no file; name one, or leave it out')


def _wrong_value(defined, error):
  """What absl says as "flag --NAME=VALUE: " and the words of Python's `int` or `float`."""
  text = ' '.join(str(error).split())
  name = text.removeprefix('flag --').partition('=')[0]
  wanted = {
      'int': 'a whole number', 'float': 'a number', 'bool': 'true or false',
  }.get(defined[name].flag_type() if name in defined else '')
  value = text.removeprefix(f'flag --{name}=').removesuffix(f': {error.__context__}')
  return f'--{name} must be {wanted}, got {value!r}' if wanted else text


def _refused(error):
  text = ' '.join(str(error).split()).removeprefix('ERROR:: ')
  if isinstance(error, flags.CantOpenFlagFileError):
    reason = error.__context__
    return (
        f'--flagfile={reason.filename} cannot be read ({reason.strerror}); it is a file with a '
        'flag on each line'
    )
  if text.startswith('Missing value for flag '):
    return text + '; flags are written --name=value'
  if isinstance(error, UnicodeDecodeError):
    return f'--flagfile is no text ({text}); it has a flag on each line'
  return text


# What absl appends to the help of a flag that may be given several times.
_REPEATED = ';\n    repeat this option to specify a list of values'


def help_lines(flag: flags.Flag) -> list[str]:
  """Returns what `--help` says of a flag: its name, default and meaning."""
  shown = (flag.default_as_str or '').strip("'")  # absl's texts are in quotes.
  default = '' if flag.default in (None, [], '') else f' [{shown}]'
  text, *repeated = flag.help.split(_REPEATED)
  text += ' It may be given several times.' if repeated else ''
  return [
      f'  --{flag.name}{default}',
      *textwrap.wrap(text, 92, initial_indent=' ' * 6, subsequent_indent=' ' * 6),
  ]


def as_called(text: str) -> str:
  """Returns a text with programs called as they are here: by Bazel, or where this is installed."""
  if importlib.util.find_spec('tff_noise.bin') is None:
    return text
  return re.sub(r'\./bazelw run //bin:(\w+) --', r'tff-noise-\1', text)


def _fill_numbers_of_streams():
  """Else a file of the run would have the number of a stream that was closed, and its output."""
  number = os.open(os.devnull, os.O_RDWR)
  while number <= 2:
    number = os.dup(number)
  os.close(number)


def run(name: str, body: Callable[[], int], again: str = '') -> int:
  """Runs a program where the user stands, and returns its exit status.

  Args:
    name: The program's, at the head of its messages.
    body: What it does; returns the exit status.
    again: What is said after Ctrl-C, and where the disk is full, of how to go on.

  Returns:
    That of `body`; 2 after one line on stderr about what to change; 1 after one about what went
    wrong; 130 after Ctrl-C; 141 where nobody reads its output any more.
  """
  # `bazel run` starts programs in its own tree; paths are meant from where the user stands.
  os.chdir(os.environ.get('BUILD_WORKING_DIRECTORY', '.'))
  _fill_numbers_of_streams()
  if sys.stderr is None:  # Closed by who started the program.
    sys.stderr = open(2, 'w', encoding='utf-8', closefd=False)
  if isinstance(sys.stdout, io.TextIOWrapper):
    sys.stdout.reconfigure(errors='replace')  # Tables have signs that not every terminal knows.
  try:
    status = body()
    if sys.stdout is not None:  # Closed by who started the program.
      sys.stdout.flush()
    return status
  except BrokenPipeError:
    # Whoever reads, as `head` does, has enough; Python would complain when it ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141
  except (types.UsageError, types.RunError) as error:
    # One line, whatever values of the user's are in it, and the last where both streams are one.
    if sys.stdout is not None:
      with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    print(f'{name}: {" ".join(str(error).splitlines())}', file=sys.stderr)
    return 2 if isinstance(error, types.UsageError) else 1
  except ModuleNotFoundError as error:
    if error.name != 'tensorflow_federated':
      raise
    print(
        f'{name}: TensorFlow Federated is not installed: pip install --no-deps '
        'tensorflow-federated==0.87.0 (pip cannot install it with what it asks for; it is for '
        'Linux on x86-64 with glibc 2.31 or later)',
        file=sys.stderr,
    )
    return 2
  except OSError as error:
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) and error.filename is not None:
      print(
          f'{name}: {os.fsdecode(error.filename)} cannot be read or written ({error.strerror}): '
          'get the right to, or name another place', file=sys.stderr,
      )
      return 2
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
      raise
    print(
        f'{name}: no space is left on the disk, or of your share of it; make room, and '
        f'{again or "the same command goes on"}',
        file=sys.stderr,
    )
    return 1
  except KeyboardInterrupt:
    print(f'{name}: {"; ".join(filter(None, ("interrupted", again)))}', file=sys.stderr)
    return 130


def check_forms(also: Sequence[str]) -> None:
  """Raises `UsageError` unless --also names forms that pictures can have."""
  unknown = set(also) - {'pdf', 'svg'}
  if unknown:
    raise types.UsageError(f'--also must be pdf, svg or both, got {min(unknown)}')


def load_matplotlib() -> None:
  """Loads Matplotlib, which takes a second, without what is said of caches that cannot be written.

  Where it has no list of fonts yet it asks `fc-list`, which writes to the stderr of this process.
  """
  logging.getLogger('matplotlib').setLevel(logging.ERROR)
  with _discarded_stderr():
    importlib.import_module('matplotlib.font_manager')


@contextlib.contextmanager
def _discarded_stderr():
  """For child processes too."""
  sys.stderr.flush()
  kept = os.dup(2)
  try:
    with open(os.devnull, 'wb') as nowhere:
      os.dup2(nowhere.fileno(), 2)
    yield
  finally:
    os.dup2(kept, 2)
    os.close(kept)
