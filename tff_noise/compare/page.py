"""The comparison as a page: tables, accuracy curves with bands over seeds, heat maps."""

import os
from collections.abc import Sequence

import numpy as np

from tff_noise.compare import grid as grid_lib
from tff_noise.compare import metrics
from tff_noise.compare import tables
from tff_noise.program import run_directory
from tff_noise.report import blocks
from tff_noise.report import figure_style
from tff_noise.report import html
from tff_noise.report import plots
from tff_noise.report import sections


def write(folder: str, grid: grid_lib.Grid, results: Sequence[tables.Result]) -> str:
  """Writes `comparison.html` and `plots/` into `folder`; returns the path of the page."""
  built = _sections(grid, results)
  os.makedirs(os.path.join(folder, 'plots'), exist_ok=True)
  for section in built:
    for block in section.blocks:
      if isinstance(block, blocks.Picture):
        path = os.path.join(folder, 'plots', block.name + '.png')
        run_directory.write_bytes(path, figure_style.png(block.figure))
  path = os.path.join(folder, 'comparison.html')
  run_directory.write_text(path, html.render(grid.title, built))
  return path


def _sections(grid, results):
  finished = sum(r.record is not None for r in results)
  head = [
      blocks.Numbers((
          blocks.Number(str(finished), 'finished runs', f'of {len(results)} in the grid'),
          blocks.Number(str(len(grid.seeds)), 'seeds', ', '.join(map(str, grid.seeds))),
      )),
  ]
  head.append(blocks.Text(f'Run at {grid.scale}.'))
  listed = tables.problems(results)
  if listed:
    head.append(
        blocks.Table(
            ('without a result',),
            [[line] for line in listed],
            summary=f'Without a result: {len(listed)}',
        )
    )
  built = [sections.Built('What was run', head)]
  over_settings = _heat_map(grid, results)
  if over_settings is not None:
    built.append(sections.Built('Over settings', [over_settings]))
  for table in tables.all_tables(grid, results):
    rows = [[_starred(text) for text in row] for row in table.rows]
    built.append(
        sections.Built(
            table.title,
            [
                blocks.Table(table.header, rows),
                *(blocks.Text(note.replace('Bold:', '★:')) for note in table.notes),
            ],
        )
    )
  curves = [_curves(grid, results, i, s) for i, s in enumerate(grid.settings)]
  built.append(sections.Built('Over rounds', [c for c in curves if c is not None]))
  return built


def _starred(text):
  """The page's cells cannot be bold: a star marks what is. Numbers keep together."""
  text = text.replace(' ± ', '\u00a0±\u00a0').replace(' †', '\u00a0†')
  return text.replace('**', '') + '\u00a0★' if text.startswith('**') else text


def _heat_map(grid, results):
  table = tables.entries(grid, results, grid.metric)
  methods = [m for m in grid.methods if any(table[m, s].spread.n for s in grid.settings)]
  if not methods:
    return None
  shape = (len(methods), len(grid.settings))
  spreads = [table[m, s].spread for m in methods for s in grid.settings]
  metric = metrics.get(grid.metric)
  figure = plots.heat_map(
      np.array([s.mean for s in spreads]).reshape(shape),
      methods,
      grid.settings,
      title=metric.title,
      spread=np.array([s.sd for s in spreads]).reshape(shape),
      counts=np.array([s.n for s in spreads]).reshape(shape),
  )
  return blocks.Picture(
      'over_settings', figure, 'Mean and standard deviation over seeds; the darker, the higher.'
  )


def _curves(grid, results, index, setting):
  """Test accuracy of every method in one setting, over the rounds all its seeds have."""
  by_method = {}
  for method in grid.methods:
    curves = [
        r.record.curve
        for r in results
        if (r.cell.method, r.cell.setting) == (method, setting)
        and r.record is not None and r.record.curve is not None
    ]
    if curves:
      rounds = min(map(len, curves))
      by_method[method] = np.stack([c[:rounds] for c in curves])
  if not by_method:
    return None
  return blocks.Picture(
      f'over_rounds_{index}',
      plots.accuracy_curves(by_method, title=setting),
      f'{setting}: test accuracy, mean over seeds and one standard deviation on either side.',
  )
