"""Tables over a grid, computed from the run directories alone.

Accuracies are in percent. A cell that is missing, unfinished, broken or not available is listed,
and its table entry says on how many seeds it rests; nothing is averaged over silently.
"""

import csv
import io
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tff_noise import rng
from tff_noise import types
from tff_noise.compare import grid as grid_lib
from tff_noise.report import runs

_RESAMPLES = 10_000
_INTERVAL = (2.5, 97.5)
TITLES = {
    'best_test_accuracy': 'Best test accuracy',
    'last10_test_accuracy': 'Test accuracy, mean of the last 10 evaluations',
}


class Result(NamedTuple):
  """A cell and what was found for it.

  Attributes:
    cell: The cell.
    run: Its finished run, or None.
    problem: Why there is none, or ''.
  """

  cell: grid_lib.Cell
  run: runs.Run | None
  problem: str


class Spread(NamedTuple):
  """Mean and standard deviation (n - 1) over seeds; both nan without any."""

  mean: float
  sd: float
  n: int


class Difference(NamedTuple):
  """A paired difference over the seeds that both methods have.

  Attributes:
    mean: Mean difference.
    low: Lower end of the 95 % bootstrap interval; nan for fewer than 2 seeds.
    high: Upper end.
    n: Number of pairs.
  """

  mean: float
  low: float
  high: float
  n: int


def collect(grid: grid_lib.Grid, *, mixed_code: bool = False) -> list[Result]:
  """Reads the run of every cell.

  Args:
    grid: The grid.
    mixed_code: Whether runs made by different code may stand in one table.

  Raises:
    types.UsageError: If a run was made with other flags than the grid's, or (unless `mixed_code`)
      runs were made by different code.
  """
  results = [_result(cell) for cell in grid.cells]
  made_by = {}
  for result in results:
    if result.run is not None:
      made_by.setdefault(result.run.code, []).append(result.run.name)
  if len(made_by) > 1 and not mixed_code:
    groups = '; '.join(
        f'{len(names)} by {code or "unknown"} (such as {names[0]})'
        for code, names in made_by.items()
    )
    raise types.UsageError(
        f'the runs were made by different code: {groups}. Run them again in another --root_dir, or '
        'give --mixed_code to compare them all the same'
    )
  return results


def _result(cell):
  if cell.config is None:
    return Result(cell, None, f'not available: {cell.lacking}')
  path = cell.config.path()
  if not os.path.isdir(path):
    return Result(cell, None, 'not run')
  try:
    run = runs.read_run(path)
  except types.UsageError as error:
    return Result(cell, None, f'broken: {error}')
  if run.flags != cell.config.identity():
    raise types.UsageError(f'{path} was made with other flags than the grid asks for')
  if not run.finished:
    return Result(cell, None, f'not finished: {len(run.rounds)} of {cell.config.rounds} rounds')
  return Result(cell, run, '')


def problems(results: Sequence[Result]) -> list[str]:
  """Returns one line for each cell without a finished run, those not available in one line each."""
  lines = []
  lacking = {}
  for result in results:
    if result.cell.lacking:
      lacking.setdefault((result.cell.method, result.problem), []).append(result.cell.setting)
    elif result.problem:
      cell = result.cell
      lines.append(f'{cell.method}, {cell.setting}, seed {cell.seed}: {result.problem}')
  for (method, problem), settings in lacking.items():
    lines.append(f'{method}, {len(set(settings))} settings: {problem}')
  return lines


def by_seed(
    results: Sequence[Result], metric: str, method: str, setting: str
) -> dict[int, float]:
  """Returns the metric of each finished seed of one method and setting, in percent."""
  return {
      r.cell.seed: 100 * r.run.summary[metric]
      for r in results
      if r.run is not None and (r.cell.method, r.cell.setting) == (method, setting)
  }


def spread(values: Sequence[float]) -> Spread:
  """Returns mean, standard deviation and number of `values`."""
  values = np.asarray(list(values), np.float64)
  if not len(values):
    return Spread(math.nan, math.nan, 0)
  sd = float(values.std(ddof=1)) if len(values) > 1 else math.nan
  return Spread(float(values.mean()), sd, len(values))


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Difference:
  """Returns `first - second` over common seeds with a percentile bootstrap interval.

  With few seeds such an interval is too narrow rather than too wide; n is always printed with it.
  """
  common = sorted(set(first) & set(second))
  differences = np.array([first[s] - second[s] for s in common])
  if len(differences) < 2:
    mean = float(differences.mean()) if len(differences) else math.nan
    return Difference(mean, math.nan, math.nan, len(differences))
  draws = rng.generator(0, 'bootstrap').integers(
      len(differences), size=(_RESAMPLES, len(differences))
  )
  low, high = np.percentile(differences[draws].mean(axis=1), _INTERVAL)
  return Difference(float(differences.mean()), float(low), float(high), len(differences))


class Entry(NamedTuple):
  """One method in one setting.

  Attributes:
    spread: Of the metric.
    difference: Against the baseline.
    best: Whether its mean is the setting's highest.
    not_distinguishable: Whether its paired difference to the best has an interval that holds 0.
    published: The paper's (mean, sd), or None.
    lacking: What it needs that this version has not.
  """

  spread: Spread
  difference: Difference
  best: bool
  not_distinguishable: bool
  published: tuple[float, float | None] | None
  lacking: str


def entries(
    grid: grid_lib.Grid, results: Sequence[Result], metric: str
) -> dict[tuple[str, str], Entry]:
  """Returns the entry of each (method, setting)."""
  lacking = {(c.method, c.setting): c.lacking for c in grid.cells}
  table = {}
  for setting in grid.settings:
    values = {m: by_seed(results, metric, m, setting) for m in grid.methods}
    known = [m for m in grid.methods if values[m]]
    best = max(known, key=lambda m: spread(values[m].values()).mean, default=None)
    for method in grid.methods:
      behind = paired(values[best], values[method]) if best and values[method] else None
      table[method, setting] = Entry(
          spread=spread(values[method].values()),
          difference=paired(values[method], values[grid.baseline]),
          best=method == best,
          not_distinguishable=method != best and behind is not None and behind.low <= 0,
          published=grid.published.get((method, setting)),
          lacking=lacking[method, setting],
      )
  return table


class Costs(NamedTuple):
  """What one method costs in one setting; nan and '' where no run is finished.

  Attributes:
    seconds: Median over seeds of the median seconds a round.
    up: Bytes that all clients send in a run.
    down: Bytes that they receive.
    label_epsilon: Of the label channel; 'none' if labels are shared without privacy, '' if they
      are not shared.
    run_epsilon: Of the whole run, as text.
  """

  seconds: float
  up: float
  down: float
  label_epsilon: str
  run_epsilon: str


def costs(results: Sequence[Result], method: str, setting: str) -> Costs:
  """Returns the costs of one method in one setting."""
  found = [
      r.run
      for r in results
      if r.run is not None and (r.cell.method, r.cell.setting) == (method, setting)
  ]
  if not found:
    return Costs(math.nan, math.nan, math.nan, '', '')
  first = found[0]
  labels = [r for r in first.privacy['releases'] if r['name'] == 'label histogram']
  label_epsilon = ''
  if labels:
    epsilon = labels[0]['epsilon']
    label_epsilon = 'none' if epsilon == 'inf' else f'{epsilon:.4g}'
  return Costs(
      seconds=float(np.median([r.summary['seconds_per_round'] for r in found])),
      # Earlier runs have what was asked besides rounds by itself.
      up=first.summary['bytes_up'] + first.summary.get('extra_bytes_up', 0),
      down=first.summary['bytes_down'],
      label_epsilon=label_epsilon,
      run_epsilon=str(first.privacy['totals'][0]['epsilon']),
  )


class Table(NamedTuple):
  """A table as texts.

  Attributes:
    title: Its heading.
    header: Column names.
    rows: Texts, as long as the header.
    notes: Sentences below it.
  """

  title: str
  header: tuple[str, ...]
  rows: tuple[tuple[str, ...], ...]
  notes: tuple[str, ...]


_MARKS = (
    'Bold: the highest mean of its column. †: its paired difference to the highest has a 95 % '
    'bootstrap interval that holds 0, so these runs do not tell them apart.'
)


def accuracy_table(grid: grid_lib.Grid, results: Sequence[Result], metric: str) -> Table:
  """Mean ± standard deviation of each method (rows) in each setting (columns).

  In the table of the grid's own metric, a method's published numbers are the row below ours; of a
  method that is not available they are its only row.
  """
  table = entries(grid, results, metric)
  rows = []
  for method in grid.methods:
    row = [table[method, setting] for setting in grid.settings]
    if not all(entry.lacking for entry in row):
      rows.append((method, *(_accuracy_text(entry, len(grid.seeds)) for entry in row)))
    if metric == grid.metric and any(entry.published for entry in row):
      published = (_plus_minus(*e.published) if e.published else '–' for e in row)
      rows.append((f'{method}, paper', *published))
  notes = [f'{len(grid.seeds)} seeds; mean ± standard deviation. {_MARKS}']
  if grid.published and metric == grid.metric:
    notes.append(f'Paper: {grid.source}. Ours: {grid.scale}.')
  return Table(f'{TITLES[metric]}, percent', ('method', *grid.settings), tuple(rows), tuple(notes))


def _accuracy_text(entry, num_seeds):
  if entry.lacking:
    return 'not available'
  if not entry.spread.n:
    return 'no run'
  shown = _plus_minus(entry.spread.mean, entry.spread.sd)
  if entry.spread.n < num_seeds:
    shown += f' (n={entry.spread.n})'
  if entry.best:
    return f'**{shown}**'
  return f'{shown} †' if entry.not_distinguishable else shown


def _plus_minus(mean, sd):
  return f'{mean:.2f}' if sd is None or math.isnan(sd) else f'{mean:.2f} ± {sd:.2f}'


def difference_table(grid: grid_lib.Grid, results: Sequence[Result], metric: str) -> Table:
  """Paired difference of each method against the baseline, with its interval."""
  table = entries(grid, results, metric)

  def text(method, setting):
    difference = table[method, setting].difference
    if method == grid.baseline or not difference.n:
      return '–'
    if math.isnan(difference.low):
      return f'{difference.mean:+.2f} (n={difference.n})'
    return (
        f'{difference.mean:+.2f} [{difference.low:+.2f}, {difference.high:+.2f}] '
        f'(n={difference.n})'
    )

  rows = tuple(
      (method, *(text(method, setting) for setting in grid.settings))
      for method in grid.methods
      if method != grid.baseline and not all(table[method, s].lacking for s in grid.settings)
  )
  return Table(
      f'{TITLES[metric]}, percent: difference to {grid.baseline}',
      ('method', *grid.settings),
      rows,
      (
          'Paired over seeds (same clients, labels, initial weights and cohorts), in points, with '
          '95 % percentile bootstrap intervals; with few seeds these are rather too narrow.',
      ),
  )


def cost_table(grid: grid_lib.Grid, results: Sequence[Result]) -> Table:
  """Time, traffic and privacy of each method in each setting that was run."""
  rows = []
  for method in grid.methods:
    for setting in grid.settings:
      cost = costs(results, method, setting)
      if not math.isnan(cost.seconds):
        rows.append((
            method,
            setting,
            f'{cost.seconds:.3f}',
            _megabytes(cost.up),
            _megabytes(cost.down),
            cost.label_epsilon or '–',
            cost.run_epsilon,
        ))
  return Table(
      'Costs',
      ('method', 'setting', 's a round', 'MB up', 'MB down', 'label epsilon', 'run epsilon'),
      tuple(rows),
      (
          'Seconds: median over rounds and seeds, without evaluation. Traffic: all clients, whole '
          'run. Label epsilon: of the label channel alone; run epsilon: of all releases.',
      ),
  )


def _megabytes(value):
  return f'{value / 1e6:.3g}'


def all_tables(grid: grid_lib.Grid, results: Sequence[Result]) -> list[Table]:
  """Returns every table, the grid's own metric first."""
  metrics = sorted(grid_lib.METRICS, key=lambda m: m != grid.metric)
  tables = []
  for metric in metrics:
    tables += [accuracy_table(grid, results, metric), difference_table(grid, results, metric)]
  return [*tables, cost_table(grid, results)]


def to_markdown(grid: grid_lib.Grid, results: Sequence[Result]) -> str:
  """Returns all tables and the list of problems as Markdown."""
  lines = [f'# {grid.title}', '', f'Run at {grid.scale}.', '']
  for table in all_tables(grid, results):
    lines += [f'## {table.title}', '', _row(table.header), _row(['---'] * len(table.header))]
    lines += [_row(row) for row in table.rows]
    lines += ['', *table.notes, '']
  listed = problems(results)
  if listed:
    lines += ['## Without a result', '', *(f'- {line}' for line in listed), '']
  return '\n'.join(lines)


def _row(texts):
  return '| ' + ' | '.join(text.replace('|', '\\|') for text in texts) + ' |'


def to_latex(grid: grid_lib.Grid, results: Sequence[Result]) -> str:
  """Returns all tables as LaTeX `tabular`s, for a document that loads booktabs."""
  lines = []
  for table in all_tables(grid, results):
    lines += [
        f'% {table.title}',
        '\\begin{tabular}{l' + 'r' * (len(table.header) - 1) + '}',
        '\\toprule',
        ' & '.join(_latex(text) for text in table.header) + ' \\\\',
        '\\midrule',
        *(' & '.join(_latex(text) for text in row) + ' \\\\' for row in table.rows),
        '\\bottomrule',
        '\\end{tabular}',
        *(f'% {note}' for note in table.notes),
        '',
    ]
  return '\n'.join(lines)


def _latex(text):
  bold = text.startswith('**')
  text = text.replace('**', '')
  for plain, escaped in (
      ('\\', r'\textbackslash{}'), ('_', r'\_'), ('%', r'\%'), ('&', r'\&'), ('#', r'\#'),
      ('±', r'$\pm$'), ('†', r'$\dagger$'), ('–', '--'),
  ):
    text = text.replace(plain, escaped)
  return rf'\textbf{{{text}}}' if bold else text


_COLUMNS = (
    'metric', 'method', 'setting', 'n', 'mean', 'sd', 'baseline', 'difference', 'difference_low',
    'difference_high', 'pairs', 'best', 'not_distinguishable', 'published_mean', 'published_sd',
    'seconds_per_round', 'bytes_up', 'bytes_down', 'label_epsilon', 'run_epsilon', 'lacking',
)


def to_csv(grid: grid_lib.Grid, results: Sequence[Result]) -> str:
  """Returns one row for each metric, method and setting; unknown numbers are empty."""
  output = io.StringIO()
  writer = csv.writer(output, lineterminator='\n')
  writer.writerow(_COLUMNS)
  for metric in grid_lib.METRICS:
    for (method, setting), entry in entries(grid, results, metric).items():
      cost = costs(results, method, setting)
      published = entry.published if metric == grid.metric and entry.published else (None, None)
      writer.writerow([
          _number(v)
          for v in (
              metric, method, setting, *_counted(entry.spread), grid.baseline,
              *entry.difference, int(entry.best), int(entry.not_distinguishable), *published,
              *cost, entry.lacking,
          )
      ])
  return output.getvalue()


def _counted(value: Spread):
  return value.n, value.mean, value.sd


def _number(value: Any) -> Any:
  if value is None or (isinstance(value, float) and math.isnan(value)):
    return ''
  return f'{value:.6g}' if isinstance(value, float) else value
