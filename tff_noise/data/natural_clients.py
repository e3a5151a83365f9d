"""The clients that a data set itself knows, by numbers and by what it calls them."""

import numpy as np

from tff_noise.data import names as names_lib

_MOST_CHARACTERS = 200


def number(called: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
  """Returns the clients as 0 to C-1, in the order of their names, and the names.

  Texts that are all whole numbers, such as '9' and '10', are in the order of these.

  Args:
    called: `[n]`, integers or texts, what the holder of each example is called.

  Returns:
    int32 `[n]`, every number below C being there, and C texts; none where they only repeat the
    numbers.

  Raises:
    ValueError: If a name is none that a file of results could have.
  """
  found, client = np.unique(called, return_inverse=True)
  if called.dtype.kind == 'U':
    _require_printable(found)
    values = [int(name) if name.isdecimal() and name.isascii() else -1 for name in found]
    if [str(value) for value in values] == found.tolist():
      return number(np.array(values, object)[client])
  return client.astype(np.int32), _unless_numbers(map(str, found))


def part(client: np.ndarray, names: tuple[str, ...]) -> tuple[np.ndarray, tuple[str, ...]]:
  """Returns what `number` does for those of its clients that are left, in the same order.

  Args:
    client: int32 `[m]`, some of the numbers that it returned.
    names: The names that it returned.
  """
  left, renumbered = np.unique(client, return_inverse=True)
  return renumbered.astype(np.int32), _unless_numbers(names[k] if names else str(k) for k in left)


def _require_printable(names):
  for name in map(str, names):
    if len(name) > _MOST_CHARACTERS:
      raise ValueError(f'{name[:20]!r}... has {len(name)} characters, of {_MOST_CHARACTERS}')
    if not names_lib.is_utf8(name):
      raise ValueError(f'{name!r} is no text that UTF-8 has')
    if names_lib.has_control(name):
      raise ValueError(f'{name!r} has a line break or another control character')


def _unless_numbers(names):
  names = tuple(names)
  return () if names == tuple(map(str, range(len(names)))) else names
