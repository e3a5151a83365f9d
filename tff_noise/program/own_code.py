"""Which files the code of a user's own is written in, without running any of it."""

import ast
import os
import re
import sys
import sysconfig
from collections.abc import Iterator, Sequence

from tff_noise import params
from tff_noise import types
from tff_noise.program import code_version

# Of Python and of what is installed, a package's version says more than its files.
_INSTALLED = tuple(
    sysconfig.get_path(name) + os.sep for name in ('stdlib', 'platstdlib', 'purelib', 'platlib')
)
# As entries of catalogs name what they are built by.
_PLACE = re.compile(r'([\w.]+):\w+')


def sources_of(place: str) -> Sequence[str]:
  """Returns the paths of the file that `place` is in and of what that imports, and so on.

  A text in it such as `package.module:function` counts as an import. Left out is what is installed,
  and what the digest of this package is of. Not found is what is imported by a name that is worked
  out when code runs, and, where it is not there before, what is imported inside of `try` or as a
  name out of a package that is.

  Args:
    place: `package.module:NAME`, see `params.named`.

  Raises:
    types.UsageError: If something is imported that is not there before the code runs: nobody could
      tell whether it is the same another time.
  """
  found, new = {}, [place.partition(':')[0]]
  while new:
    module = new.pop()
    path = params.source_of(module)
    if module in found or not path or _is_installed(module, path):
      continue
    found[module] = path
    if path.endswith('.py'):
      new += _imported(module, path)
    # What its packages run before it.
    new += [module.rpartition('.')[0]] if '.' in module else []
  return sorted(set(found.values()))


def places(texts: Sequence[str]) -> list[str]:
  """Returns what names modules in parameters such as `loss=package.module:function`."""
  values = [value for text in texts for value in text.partition('=')[2].split('+')]
  return [value for value in values if _PLACE.fullmatch(value) and params.source_of(value)]


def _is_installed(module, path):
  return (
      code_version.covers(module) or path.startswith(_INSTALLED)
      or not params.INSTALLED_FOLDERS.isdisjoint(path.split(os.sep))
  )


def _require_found(module, path):
  top = module.partition('.')[0]
  if top in sys.stdlib_module_names or _is_installed(top, params.source_of(top)):
    return  # Packages that are installed may make modules as they run.
  if not params.is_there(module):
    raise types.UsageError(
        f'{path} imports {module}, which is not found before it runs: put the folder that it is in '
        'on the PYTHONPATH'
    )


def _imported(module: str, path: str) -> Iterator[str]:
  """Names of modules, and some of what is in them."""
  with open(path, 'rb') as file:
    try:
      tree = ast.parse(file.read())
    except (SyntaxError, ValueError):
      return  # Whoever imports it is told.
  optional = {
      id(node) for part in ast.walk(tree) if isinstance(part, ast.Try) for node in ast.walk(part)
  }
  package = module if os.path.basename(path) == '__init__.py' else module.rpartition('.')[0]
  for node in ast.walk(tree):
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
      place = _PLACE.fullmatch(node.value)
      if place:
        yield place.group(1)
    elif isinstance(node, ast.Import):
      for alias in node.names:
        if id(node) not in optional:
          _require_found(alias.name, path)
        yield alias.name
    elif isinstance(node, ast.ImportFrom):
      above = package.split('.')[: len(package.split('.')) - node.level + 1] if node.level else []
      source = '.'.join([*above, *([node.module] if node.module else [])])
      if id(node) not in optional and not node.level:
        _require_found(source, path)
      yield source
      yield from (f'{source}.{alias.name}' for alias in node.names)
