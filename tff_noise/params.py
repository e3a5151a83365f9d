"""Parameters of methods and optimizers: frozen dataclasses, read from texts NAME=VALUE."""

import dataclasses
import importlib.util
import inspect
import math
import os
import re
import sys
import traceback
from collections.abc import Sequence
from importlib import machinery
from typing import Any

from tff_noise import loading
from tff_noise import types

# Clients count in int32, and the sum of two counts has to fit as well.
LARGEST_COUNT = 2**30
# And compute in float32.
_LARGEST = {float: types.MAX_FLOAT32, int: LARGEST_COUNT}
# What is installed lies in one of these.
INSTALLED_FOLDERS = frozenset({'site-packages', 'dist-packages'})
_WHERE = 'it has to be package.module:NAME, on the PYTHONPATH or below this folder'


def parse(owner: str, kind: type, assignments: Sequence[str], flag: str = '--param') -> Any:
  """Returns a `kind` from texts `NAME=VALUE`.

  Args:
    owner: Whose parameters they are, for messages.
    kind: A frozen dataclass; every field has a default, whose type is the field's.
    assignments: The texts.
    flag: What they were given by, for messages.

  Raises:
    types.UsageError: For an unknown name, or a value its field cannot take.
  """
  fields = {f.name: f for f in dataclasses.fields(kind)}
  values = {}
  for assignment in assignments:
    name, separator, text = assignment.partition('=')
    if not separator:
      raise types.UsageError(f'{flag} must be NAME=VALUE, got {assignment!r}')
    if name not in fields:
      known = ', '.join(fields) or 'none'
      raise types.UsageError(f'{flag}: {owner} has no {name!r}; it has: {known}')
    values[name] = _parse_value(flag, name, text, type(fields[name].default))
  try:
    return kind(**values)
  except (ValueError, TypeError, AssertionError) as error:  # A class of the user's may ask so.
    raise types.UsageError(f'{flag}: {str(error) or "it refuses these values"}') from error


def _parse_value(flag: str, name: str, text: str, kind: type) -> Any:
  if kind is bool:
    if text.lower() not in ('true', 'false'):
      raise types.UsageError(f'{flag}: {name} must be true or false, got {text!r}')
    return text.lower() == 'true'
  try:
    value = kind(text)
  except ValueError:
    noun = {int: 'an integer', float: 'a number'}[kind]
    raise types.UsageError(f'{flag}: {name} must be {noun}, got {text!r}') from None
  if kind is float and not math.isfinite(value):
    raise types.UsageError(f'{flag}: {name} must be finite, got {text!r}')
  if kind in _LARGEST and abs(value) > _LARGEST[kind]:
    raise types.UsageError(f'{flag}: {name} must be at most {_LARGEST[kind]:g}, got {text!r}')
  return value


def read_if(default: Any, other: str, *values: str) -> Any:
  """Returns a dataclass field that is read only as another one says.

  Args:
    default: The field's default.
    other: The other field's name.
    *values: Those of its values that make this one read; by default, all but 0, false and ''.
  """
  return dataclasses.field(default=default, metadata={'read_if': (other, values)})


def unread(params: Any, assignments: Sequence[str]) -> dict[str, str]:
  """Returns which of the texts `NAME=VALUE` change nothing, and what would make them.

  Args:
    params: The parameters, read from these texts and maybe others.
    assignments: The texts.
  """
  fields, found = {f.name: f for f in dataclasses.fields(params)}, {}
  for assignment in assignments:
    other, values = fields[assignment.partition('=')[0]].metadata.get('read_if', ('', ()))
    value = getattr(params, other) if other else None
    if not other or (value in values if values else value):
      continue
    found[assignment] = (
        f'{other}={" or ".join(values)}' if values else f'another {other} than {value}'
    )
  return found


# `not (value > 0)` and not `value <= 0`: NaN is refused too.


def require_positive(params: Any, *names: str) -> None:
  """Raises `ValueError` unless each named parameter is above 0."""
  for name in names:
    if not getattr(params, name) > 0:
      raise ValueError(f'{name} must be positive, got {getattr(params, name)}')


def require_not_negative(params: Any, *names: str) -> None:
  """Raises `ValueError` unless each named parameter is at least 0."""
  for name in names:
    if not getattr(params, name) >= 0:
      raise ValueError(f'{name} must not be negative, got {getattr(params, name)}')


def require_share(params: Any, *names: str) -> None:
  """Raises `ValueError` unless each named parameter is at least 0 and below 1."""
  for name in names:
    if not 0 <= getattr(params, name) < 1:
      raise ValueError(f'{name} must be at least 0 and below 1, got {getattr(params, name)}')


def require_one_of(params: Any, name: str, allowed: Sequence[str]) -> None:
  """Raises `ValueError` unless the named parameter is one of `allowed`."""
  if getattr(params, name) not in allowed:
    raise ValueError(f'{name} must be one of {", ".join(allowed)}, got {getattr(params, name)!r}')


def meanings(kind: type) -> dict[str, str]:
  """Returns what the fields of a dataclass mean, by name: what its docstring says of them."""
  text = inspect.getdoc(kind) or ''
  entries = re.split(r'\n  (?=\w+: )', text.partition('\nAttributes:')[2])
  parts = (entry.partition(': ') for entry in entries)
  return {name.strip(): ' '.join(meaning.split()) for name, _, meaning in parts if meaning}


def named(place: str, flag: str) -> Any:
  """Returns what a user names by a flag, from a module of their own.

  Args:
    place: `package.module:NAME`; looked for from where the user stands, too.
    flag: For messages.

  Raises:
    types.UsageError: If there is no such module, it cannot be imported, or has no such name.
  """
  require_module(place, flag)
  module, _, name = place.partition(':')
  try:
    with loading.large_modules():  # It may be the first to load TensorFlow Federated.
      return getattr(importlib.import_module(module), name)
  except Exception as error:  # A module of the user's may raise whatever it likes.
    line = _line_of(source_of(module), error)
    if line:
      raise types.UsageError(
          f'--{flag}={place} cannot be imported: {line} raises {type(error).__name__}: {error}'
      ) from error
    raise types.UsageError(
        f'--{flag}={place} cannot be imported ({type(error).__name__}: {error}); {_WHERE}'
    ) from error


def _line_of(path, error):
  """Where a file raised it, the last line of it that ran; '' if it was not that file's code."""
  lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
  return f'{path}, line {lines[-1]},' if lines else ''


def source_of(place: str) -> str:
  """Returns the path of the file that what `named` returns is written in; '' if there is none.

  Nothing is imported, not even a package that the module is in: it may load TensorFlow.
  """
  spec = _spec_of(place.partition(':')[0])
  return spec.origin or '' if spec else ''


def require_module(place: str, flag: str) -> None:
  """Raises `UsageError` if there is no module for `place`, see `named`; none of it is run.

  That it is there can be known only when it is imported: packages that are installed may make
  modules as they run.
  """
  module = place.partition(':')[0]
  if module == '__main__':
    raise types.UsageError(
        f'--{flag}={place} is in the program that is running, which a run cannot import: write it '
        'into a module, and name that'
    )
  top = module.partition('.')[0]
  installed = not INSTALLED_FOLDERS.isdisjoint(source_of(top).split(os.sep))
  # Of what other finders know, what is within may be theirs to find, too.
  elsewhere = machinery.PathFinder.find_spec(top) is None and _found_elsewhere(top) is not None
  if not (is_there(module) or installed or elsewhere):
    raise types.UsageError(f'--{flag}={place}: there is no module {module}; {_WHERE}')


def is_there(module: str) -> bool:
  """Returns whether a module is found, as `source_of` looks; packages may be without a source."""
  return _spec_of(module) is not None


def _spec_of(module):
  _look_here()
  spec, folders = None, None
  for part in module.split('.'):
    spec = machinery.PathFinder.find_spec(part, folders)
    if spec is None and folders is None:
      spec = _spec_elsewhere(part)
    if spec is None:
      return None
    folders = list(spec.submodule_search_locations or ())
  return spec


def _spec_elsewhere(top):
  """What has files among what other finders than the path's know."""
  spec = _found_elsewhere(top)
  has_file = spec is not None and (spec.has_location or spec.submodule_search_locations)
  return spec if has_file else None


def _found_elsewhere(top):
  """Of what is installed in a way that it can be edited, for one, or built into Python."""
  try:
    return importlib.util.find_spec(top)
  except ValueError:  # Of a module that was not found but made.
    return None


def _look_here():
  """Lets modules be found from where the user stands, too."""
  if os.getcwd() not in sys.path:
    sys.path.append(os.getcwd())


def implementation(place: str) -> Any:
  """Returns what a catalog names: the one place where names become modules that load TensorFlow.

  Args:
    place: `module:function`.
  """
  module, function = place.split(':')
  return getattr(importlib.import_module(module), function)
