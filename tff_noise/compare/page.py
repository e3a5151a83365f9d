"""The comparison as a page: tables, accuracy curves with bands over seeds, heat maps."""

import os
from collections.abc import Sequence

import numpy as np
from matplotlib import figure as mfigure

from tff_noise.compare import documents
from tff_noise.compare import grid as grid_lib
from tff_noise.compare import metrics
from tff_noise.compare import pictures
from tff_noise.compare import tables
from tff_noise.program import run_directory
from tff_noise.report import blocks
from tff_noise.report import html
from tff_noise.report import sections

# With fewer values a table says as much.
_FEWEST_SWEPT = 3


def write(
    folder: str,
    grid: grid_lib.Grid,
    results: Sequence[tables.Result],
    command: str = '',
    also: Sequence[str] = (),
) -> str:
  """Writes `comparison.html` and `plots/` into `folder`; returns the path of the page.

  Args:
    folder: It is there.
    grid: What was compared.
    results: Of its cells.
    command: What makes the page again.
    also: Forms of the pictures besides PNG: 'pdf', 'svg'.
  """
  built = _sections(folder, grid, results, command)
  drawn = [b for section in built for b in section.blocks if isinstance(b, blocks.Picture)]
  html.write_pictures(folder, drawn, also)
  path = os.path.join(folder, 'comparison.html')
  run_directory.write_text(path, html.render(grid.title, built))
  return path


def _sections(folder, grid, results, command):
  finished = sum(r.record is not None for r in results)
  head = [
      blocks.Numbers((
          blocks.Number(str(finished), 'finished runs', f'of {len(results)} in the grid'),
          blocks.Number(str(len(grid.seeds)), 'seeds', ', '.join(map(str, grid.seeds))),
      )),
  ]
  head += [blocks.Text(f'Run at {grid.scale}.'), _settings(grid)]
  codes = sorted({r.record.code for r in results if r.record is not None and r.record.code})
  if codes:
    head.append(blocks.Text(f'Digest of the code that made the runs: {", ".join(codes)}.'))
  if command:
    head.append(blocks.Code(command))
  listed = tables.problems(results)
  if listed:
    head.append(
        blocks.Table(
            ('without a result',),
            [[line] for line in listed],
            summary=f'Without a result: {len(listed)}',
        )
    )
  head.append(_runs(folder, grid))
  built = [sections.Built('What was run', head)]
  sweep = swept_figure(grid, results, grid.metric)
  if sweep is not None:
    picture = blocks.Picture('swept', sweep, 'Over the flag that settings differ in.')
    built.append(sections.Built('Over what is swept', [picture]))
  over_settings = _heat_map(grid, results)
  if over_settings is not None:
    built.append(sections.Built('Over settings', [over_settings]))
  differences = differences_figure(grid, results, grid.metric)
  if differences is not None:
    picture = blocks.Picture(
        'differences', differences,
        'Each by itself: of twenty of no difference one is filled. The numbers are below.',
    )
    built.append(sections.Built(f'Differences to {grid.baseline}', [picture]))
  found = tables.mean_ranks(grid, results, grid.metric)
  if found is not None:
    figure = pictures.mean_ranks(
        found.mean, found.groups, found.critical_difference, title=metrics.get(grid.metric).title
    )
    caption = (
        'The further left, the better. A bar joins a method to the last one that is not told '
        'apart from it; between them may be some that are.'
    )
    built.append(
        sections.Built('Ranks over settings', [blocks.Picture('mean_ranks', figure, caption)])
    )
  for table in documents.all_tables(grid, results):
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


def _settings(grid):
  """A row for each column of the grid: what its runs are on, as far as all methods share it."""
  rows = []
  for setting in grid.settings:
    flags = [cell.config.identity() for cell in grid.cells if cell.setting == setting]
    shared = {k: v for k, v in flags[0].items() if all(f[k] == v for f in flags)}
    noises = {sections.noise_text(of_cell) for of_cell in flags}
    noise = noises.pop() if len(noises) == 1 else 'by method'
    if shared.get('scene'):
      noise = f'scene {shared["scene"]}'
    rows.append((setting, *(
        str(shared.get(name, 'by method')) for name in ('dataset', 'partition')
    ), noise, *(
        str(shared.get(name, 'by method'))
        for name in ('model', 'clients', 'clients_per_round', 'local_epochs', 'rounds')
    )))
  return blocks.Table(
      ('setting', 'data', 'partition', 'noise', 'model', 'clients', 'of them in a round',
       'local epochs', 'rounds'), rows,
  )


def _runs(folder, grid):
  """Links to the runs' reports, which `bin/report` draws, or else to their folders."""
  rows = []
  for cell in grid.cells:
    shown, run = cell.config.name(), cell.config.path()
    there = [path for path in (os.path.join(run, 'report.html'), run) if os.path.exists(path)]
    if there:
      shown = blocks.Link(shown, os.path.relpath(there[0], folder))
    rows.append((cell.method, cell.setting, str(cell.seed), shown))
  return blocks.Table(
      ('method', 'setting', 'seed', 'run: its report, or its folder till bin/report has drawn one'),
      rows, 'All runs',
  )


def swept_figure(
    grid: grid_lib.Grid, results: Sequence[tables.Result], metric: str
) -> mfigure.Figure | None:
  """Returns a line chart where settings differ in one number alone, otherwise None."""
  flags = {c.setting: c.config.identity() for c in grid.cells if c.method == grid.baseline}
  first = next(iter(flags.values()), {})
  names = [n for n in first if any(f[n] != first[n] for f in flags.values())]
  if len(names) != 1 or len(flags) < _FEWEST_SWEPT:
    return None
  place = {setting: f[names[0]] for setting, f in flags.items()}
  if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in place.values()):
    return None
  values = {
      place[s]: {
          m: np.array(list(tables.reached_by_seed(results, metric, m, s).values()))
          for m in grid.methods
      } for s in grid.settings if s in place
  }
  return pictures.swept(values, name=names[0], title=metrics.get(metric).title)


def differences_figure(
    grid: grid_lib.Grid, results: Sequence[tables.Result], metric: str
) -> mfigure.Figure | None:
  """Returns the picture of the paired differences to the baseline; None if there are none.

  Args:
    grid: What was compared.
    results: Of its cells.
    metric: What is drawn.
  """
  table = tables.entries(grid, results, metric)
  found = {
      setting: {
          method: (d.mean, d.low, d.high)
          for method in grid.methods
          if method != grid.baseline and (d := table[method, setting].difference).n
      }
      for setting in grid.settings
  }
  found = {setting: by_method for setting, by_method in found.items() if by_method}
  if not found:
    return None
  title = metrics.get(metric).title
  return pictures.differences(
      found, title=f'{title}: difference to {grid.baseline}',
      x='means over seeds, paired, and 95 % intervals (arrows: longer); filled: 0 is outside',
  )


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
  figure = pictures.heat_map(
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
      pictures.accuracy_curves(by_method, title=setting),
      f'{setting}: test accuracy, mean over seeds and one standard deviation on either side.',
  )
