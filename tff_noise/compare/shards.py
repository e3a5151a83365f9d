"""Parts of a grid for machines that know nothing of each other.

Who runs what is a function of the grid's cells alone, so nobody has to hand them out: shards that
were given the same grid never run the same cell, and one that was lost is run again.
"""

import collections
import glob
import os
import re
from typing import NamedTuple

from tff_noise import types
from tff_noise.compare import grid as grid_lib


class Shard(NamedTuple):
  """One part of a grid.

  Attributes:
    index: Which, from 0 to `count` - 1.
    count: How many there are.
  """

  index: int
  count: int

  def __str__(self):
    return f'{self.index}/{self.count}'


def parse(text: str, flag: str = 'shard') -> Shard:
  """Returns the shard that is written 'i/n', by this flag.

  Raises:
    types.UsageError: If it is not, or there is no such shard.
  """
  match = re.fullmatch(r'([0-9]{1,9})/([0-9]{1,9})', text)
  shard = Shard(*map(int, match.groups())) if match else None
  if shard is None or shard.index >= shard.count:
    raise types.UsageError(
        f'--{flag} must be i/n, with i from 0 to n - 1, such as 0/4; got {text!r}'
    )
  return shard


def part(grid: grid_lib.Grid, shard: Shard) -> grid_lib.Grid:
  """Returns the grid with the cells of one shard alone, in the grid's order.

  A method's cells take about as long as each other, and those of another method may take ten times
  as long. So a method's cells are spread first: each goes to a shard with fewest of its method, of
  these to one with fewest cells, of these to one with fewest of its setting. Shards then differ by
  at most one cell of each method, and by at most one cell in all.
  """
  # Of more shards than cells, the last are empty.
  shards = range(min(shard.count, len(grid.cells)))
  of_method, of_setting, total = (collections.Counter() for _ in range(3))
  chosen = set()
  # Method by method, whatever the order of the grid: the cells of one then end on fewest cells.
  for cell in sorted(grid.cells, key=lambda cell: grid.methods.index(cell.method)):
    index = min(
        shards,
        key=lambda i: (of_method[i, cell.method], total[i], of_setting[i, cell.setting]),
    )
    of_method[index, cell.method] += 1
    of_setting[index, cell.setting] += 1
    total[index] += 1
    if index == shard.index:
      chosen.add(cell.config.name())
  return grid._replace(cells=tuple(c for c in grid.cells if c.config.name() in chosen))


def results_file(path: str, shard: Shard) -> str:
  """Returns the shard's own file of results beside that of all: shards never write the same one."""
  base, extension = os.path.splitext(path)
  return f'{base}.{shard.index}-of-{shard.count}{extension}'


def results_files(path: str) -> list[str]:
  """Returns the files of shards that lie beside `path`, and last `path` itself."""
  base, extension = os.path.splitext(path)
  found = glob.glob(f'{glob.escape(base)}.*{glob.escape(extension)}')
  of_shard = re.compile(re.escape(base) + r'\.[0-9]+-of-[0-9]+' + re.escape(extension))
  return [*sorted(filter(of_shard.fullmatch, found)), path]
