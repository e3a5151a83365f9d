"""Writes tables and pictures into pages, from grids and their files of results.

  python -m benchmarks.pages docs/evidence*.md docs/comparisons.md

What stands between two lines such as

  <!-- table: configs/grids/G.yaml docs/R.csv best_test_accuracy mean -->
  <!-- end -->

is written anew: `mean`, `difference` (to the grid's baseline), `ranks`, `choices` (the best by what
a server sees), `map` (by noise and federation), `front` or `front_time` (against bytes, or
seconds), `orders` (the papers', see claims.py), `chosen` or `chosen_rounds` (by validation). With
`picture:` in place of `table:`, of `ranks`, `map`, `front`, `front_time`, `sweep` (over the flag
that settings differ in) or `differences`, a PNG is drawn beside the page. No run is made or read; a
test holds that tables have what the files say.
Runs of different code may stand in one file: the page has to say so.
"""

import functools
import os
import re
import sys
from collections.abc import Sequence

from benchmarks import claims
from tff_noise import types
from tff_noise.compare import by_validation
from tff_noise.compare import choices
from tff_noise.compare import decision_map
from tff_noise.compare import documents
from tff_noise.compare import grid as grid_lib
from tff_noise.compare import metrics
from tff_noise.compare import records
from tff_noise.compare import tables
from tff_noise.program import command_line
from tff_noise.program import run_directory

_END = '<!-- end -->'
_BLOCK = re.compile(
    r'^(<!-- (table|picture): (\S+) (\S+) (\S+) (\S+) -->)\n.*?^' + _END, re.MULTILINE | re.DOTALL
)
_BEGIN = re.compile(r'^<!-- (table|picture): ', re.MULTILINE)
_COLUMNS = 12
_NOWHERE = 'no run is read from here'


def _found_ranks(grid, results, metric):
  found = tables.mean_ranks(grid, results, metric)
  if found is None:
    raise types.UsageError(f'{grid.title}: too few settings, methods or seeds for ranks')
  return found


def _ranks(grid, results, metric):
  return tables.rank_table(_found_ranks(grid, results, metric), metric)


_TABLES = {
    'mean': tables.metric_table,
    'difference': tables.difference_table,
    'ranks': _ranks,
    'choices': choices.table,
    'map': decision_map.table,
    'front': functools.partial(choices.front_table, cost=choices.TRAFFIC),
    'front_time': functools.partial(choices.front_table, cost=choices.TIME),
    'orders': claims.table,
    'chosen': by_validation.methods_table,
    'chosen_rounds': by_validation.rounds_table,
}


def _draw_ranks(grid, results, metric):
  from tff_noise.compare import pictures
  found = _found_ranks(grid, results, metric)
  return pictures.mean_ranks(
      found.mean, found.groups, found.critical_difference, title=metrics.get(metric).title
  )


def _draw_front(grid, results, metric, cost):
  from tff_noise.compare import pictures
  found = choices.points(grid, results, metric, cost)
  if not found:
    raise types.UsageError(f'{grid.title}: no method has seeds enough in each setting')
  groups = {
      f'The server has {kind}': [
          (p.method, choices.cost_text(p.cost), p.mean, p.on_front) for p in found if p.kind == kind
      ]
      for kind in choices.KINDS
  }
  return pictures.costs(
      groups, x=f'{metrics.get(metric).title}, mean over settings and seeds', beside=cost.unit,
      title='What accuracy costs, and what it shows (filled: none is better in all three)',
  )


def _draw_map(grid, results, metric):
  from tff_noise.compare import pictures
  places = decision_map.places(grid, results, metric)
  sign, way = (1, 'above') if metrics.get(metric).highest else (-1, 'below')
  return pictures.decision_map(
      {(p.noise, p.federation): (sign * p.gain.mean, decision_map.lines(p, grid)) for p in places},
      title=f'{metrics.get(metric).title}: the best of {len(grid.methods)} (the darker, the more '
      f'{way} {grid.baseline})',
      rows='noise', columns='federation',
  )


def _draw_sweep(grid, results, metric):
  from tff_noise.compare import page
  figure = page.swept_figure(grid, results, metric)
  if figure is None:
    raise types.UsageError(f'{grid.title}: its settings do not differ in one number alone')
  return figure


def _draw_differences(grid, results, metric):
  from tff_noise.compare import page
  figure = page.differences_figure(grid, results, metric)
  if figure is None:
    raise types.UsageError(f'{grid.title}: nothing has a difference to {grid.baseline}')
  return figure


_PICTURES = {
    'ranks': _draw_ranks, 'map': _draw_map, 'sweep': _draw_sweep,
    'front': functools.partial(_draw_front, cost=choices.TRAFFIC),
    'front_time': functools.partial(_draw_front, cost=choices.TIME),
    'differences': _draw_differences,
}


@functools.cache  # A page asks for the same files several times, and they take seconds.
def read(grid_path: str, results_path: str) -> tuple[grid_lib.Grid, Sequence[tables.Result]]:
  """Returns a grid at its reduced scale and what the file has of it.

  Raises:
    types.UsageError: If one of them cannot be read, or they do not belong together.
  """
  if not os.path.isfile(results_path):
    raise types.UsageError(f'{results_path} is not there: name a file of results')
  grid = grid_lib.load(grid_path, 'reduced', None, [], _NOWHERE)
  known = records.read(results_path, grid)
  return grid, tables.collect(grid, known=known, mixed_code=True)


def rendered(text: str) -> str:
  """Returns a page with all its tables anew; pictures are as they are.

  Raises:
    types.UsageError: If a block asks for what is not there.
  """

  def lines(grid, results, metric, name):
    return documents.rows_as_markdown(_fitting(_TABLES[name](grid, results, metric)))

  return _replaced(text, 'table', _TABLES, lines)


def _fitting(table):
  """Settings as rows, where they are more columns than a page has room for."""
  if len(table.header) <= _COLUMNS:
    return table
  header, *rows = zip(table.header, *table.rows, strict=True)
  return table._replace(header=('setting', *header[1:]), rows=tuple(rows))


def draw(path: str, text: str) -> str:
  """Draws the pictures of a page beside it; returns the page with links to them."""
  from tff_noise.report import figure_style

  page = os.path.splitext(os.path.basename(path))[0]
  drawn = set()

  def lines(grid, results, metric, name):
    file = f'{page}_{name}.png'
    if file in drawn:
      raise types.UsageError(f'{path}: one picture of the kind {name} a page; there are two')
    drawn.add(file)
    content = figure_style.png(_PICTURES[name](grid, results, metric))
    run_directory.write_bytes(os.path.join(os.path.dirname(path), file), content)
    return [f'![{name}, {metric}]({file})']

  return _replaced(text, 'picture', _PICTURES, lines)


def _replaced(text, kind, known, lines):
  """The text, in whose blocks of this kind stands what `lines` gives."""

  def block(match):
    line, found, grid_path, results_path, metric, name = match.groups()
    if found != kind:
      return match.group()
    if name not in known:
      raise types.UsageError(f'{line}: expected one of {", ".join(known)}')
    grid, results = read(grid_path, results_path)
    return '\n'.join([line, '', *lines(grid, results, metric, name), '', _END])

  if len(_BEGIN.findall(text)) != len(_BLOCK.findall(text)):
    raise types.UsageError(
        f'a block is not <!-- table: GRID CSV METRIC NAME -->, or has no {_END} of its own'
    )
  return _BLOCK.sub(block, text)


def main(argv: Sequence[str]) -> None:
  """Writes pages anew."""
  if len(argv) < 2:
    raise types.UsageError('name the pages, such as docs/evidence.md')
  command_line.load_matplotlib()
  for path in argv[1:]:
    try:
      with open(path, encoding='utf-8') as file:
        text = file.read()
    except OSError as error:
      raise types.UsageError(f'{path} cannot be read ({error.strerror})') from None
    run_directory.write_text(path, draw(path, rendered(text)))


if __name__ == '__main__':
  sys.exit(command_line.run('pages', lambda: main(sys.argv)))
