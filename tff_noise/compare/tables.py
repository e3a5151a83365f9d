"""Tables over a grid, computed from run directories and files of records alone.

A cell that is missing, unfinished or broken is listed,
and its table entry says on how many seeds it rests; nothing is averaged over silently.
"""

import collections
import csv
import io
import math
import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from tff_noise import types
from tff_noise.compare import grid as grid_lib
from tff_noise.compare import metrics
from tff_noise.compare import ranks
from tff_noise.compare import records
from tff_noise.compare import statistics
from tff_noise.privacy import rounding
from tff_noise.report import runs


class Result(NamedTuple):
  """A cell and what was found for it.

  Attributes:
    cell: The cell.
    record: Of its finished run, or None.
    problem: Why there is none, or ''.
  """

  cell: grid_lib.Cell
  record: records.Record | None
  problem: str


def collect(
    grid: grid_lib.Grid,
    *,
    known: Mapping[str, records.Record] = MappingProxyType({}),
    mixed_code: bool = False,
) -> list[Result]:
  """Reads the run of every cell.

  Args:
    grid: The grid.
    known: Records by the name of the run, for cells that are not finished here.
    mixed_code: Whether runs made by different code may stand in one table.

  Raises:
    types.UsageError: If a run was made with other flags than the grid's, or (unless `mixed_code`)
      runs were made by different code.
  """
  names = metrics.recorded(grid.metrics)
  results = [_result(cell, names, known) for cell in grid.cells]
  made_by = {}
  for result in results:
    if result.record is not None:
      made_by.setdefault(result.record.code, []).append(result.cell.config.name())
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


def _result(cell, names, known):
  path = cell.config.path()
  if not os.path.isdir(path):
    record = known.get(cell.config.name())
    return Result(cell, record, '' if record else 'not run')
  # A cell that another machine finished is not run here, whatever this one has of it.
  record = known.get(cell.config.name())
  try:
    run = runs.read_run(path)
  except types.UsageError as error:
    return Result(cell, record, '' if record else f'broken: {error}')
  if run.flags != cell.config.identity():
    raise types.UsageError(f'{path} was made with other flags than the grid asks for')
  if not run.finished and record:
    return Result(cell, record, '')
  if not run.finished:
    return Result(cell, None, f'not finished: {len(run.rounds)} of {cell.config.rounds} rounds')
  return Result(cell, records.from_run(run, names), '')


def problems(results: Sequence[Result]) -> list[str]:
  """Returns one line for each cell without a finished run."""
  return [
      f'{r.cell.method}, {r.cell.setting}, seed {r.cell.seed}: {r.problem}'
      for r in results if r.problem
  ]


def by_seed(
    results: Sequence[Result], metric: str, method: str, setting: str
) -> dict[int, float]:
  """Returns the metric of each finished seed of one method and setting that has it."""
  found = {
      r.cell.seed: r.record.values.get(metric)  # Records of earlier versions have not all.
      for r in results
      if r.record is not None and (r.cell.method, r.cell.setting) == (method, setting)
  }
  return {seed: v for seed, v in found.items() if v is not None and not math.isnan(v)}


class Entry(NamedTuple):
  """One method in one setting.

  Attributes:
    spread: Of the metric; infinite where a seed did not come so far.
    difference: Against the baseline.
    best: Whether its mean is the setting's best, see `statistics.best_of`.
    may_be_best: Whether it may be the best method, see `statistics.may_be_best`; None where that is
      not decided.
    published: The paper's (mean, sd), or None.
    runs: Number of finished seeds.
    unreached: How many of them did not come so far.
  """

  spread: statistics.Spread
  difference: statistics.Difference
  best: bool
  may_be_best: bool | None
  published: tuple[float, float | None] | None
  runs: int
  unreached: int


def reached_by_seed(
    results: Sequence[Result], metric: str, method: str, setting: str
) -> dict[int, float]:
  """Returns `by_seed`, and nothing where a seed did not come so far: a mean would be infinite."""
  values = by_seed(results, metric, method, setting)
  return {} if any(map(math.isinf, values.values())) else values


def entries(
    grid: grid_lib.Grid, results: Sequence[Result], metric: str
) -> dict[tuple[str, str], Entry]:
  """Returns the entry of each (method, setting)."""
  runs_of = collections.Counter(
      (r.cell.method, r.cell.setting) for r in results if r.record is not None
  )
  highest = metrics.get(metric).highest
  table = {}
  for setting in grid.settings:
    unreached = {
        m: sum(map(math.isinf, by_seed(results, metric, m, setting).values()))
        for m in grid.methods
    }
    finite = {m: reached_by_seed(results, metric, m, setting) for m in grid.methods}
    spreads = {m: statistics.spread(v.values()) for m, v in finite.items()}
    known = [m for m in grid.methods if spreads[m].n]
    may_be_best = statistics.may_be_best({m: finite[m] for m in known}, highest=highest)
    best = statistics.best_of(finite, highest=highest)
    for method in grid.methods:
      table[method, setting] = Entry(
          spread=spreads[method],
          difference=statistics.paired(finite[method], finite[grid.baseline]),
          best=method == best,
          may_be_best=may_be_best.get(method),
          published=grid.published.get((method, setting)),
          runs=runs_of[method, setting],
          unreached=unreached[method],
      )
  return table


class Costs(NamedTuple):
  """What one method costs in one setting; nan and '' where no run is finished.

  Attributes:
    seconds: Median over seeds of the median seconds a round.
    up: Bytes that all clients send in a run, mean over seeds.
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
      r.record
      for r in results
      if r.record is not None and (r.cell.method, r.cell.setting) == (method, setting)
  ]
  if not found:
    return Costs(math.nan, math.nan, math.nan, '', '')
  first = found[0]
  seconds = float(np.median([record.seconds for record in found]))
  # They differ between seeds where sizes of clients, or what is found, decide who trains.
  up, down = (round(np.mean([getattr(r, name) for r in found])) for name in ('up', 'down'))
  # One seed's run may have been continued by other code, which leaves no bound.
  largest = max(found, key=lambda record: float(record.run_epsilon.partition(' ')[0]))
  return Costs(seconds, up, down, first.label_epsilon, largest.run_epsilon)


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


def metric_table(grid: grid_lib.Grid, results: Sequence[Result], metric: str) -> Table:
  """Mean ± standard deviation of each method (rows) in each setting (columns).

  In the table of the grid's own metric, a method's published numbers are the row below ours.
  """
  table = entries(grid, results, metric)
  decided = [s for s in grid.settings if any(table[m, s].may_be_best for m in grid.methods)]
  rows = []
  for method in grid.methods:
    row = [table[method, setting] for setting in grid.settings]
    rows.append((method, *(
        _entry_text(entry, len(grid.seeds), setting in decided)
        for setting, entry in zip(grid.settings, row, strict=True)
    )))
    if metric == grid.metric and any(entry.published for entry in row):
      published = (_plus_minus(*e.published) if e.published else '–' for e in row)
      rows.append((f'{method}, paper', *published))
  notes = [f'{len(grid.seeds)} seeds; mean ± standard deviation. {_marks(grid, metric, decided)}']
  if grid.published and metric == grid.metric:
    notes.append(f'Paper: {grid.source}. Ours: {grid.scale}.')
  return Table(metrics.get(metric).title, ('method', *grid.settings), tuple(rows), tuple(notes))


def _marks(grid, metric, decided):
  """What the marks of a table mean."""
  best = 'highest' if metrics.get(metric).highest else 'lowest'
  text = f'Bold: the {best} mean of its column, where seeds are missing adjusted for these.'
  if decided:
    text += (
        ' †: may be the best method of its column too: where all methods are equal, all are marked '
        'in 95 of 100 columns (paired t, corrected for picking the best of them). ?: not decided, '
        f'for it takes {statistics.MIN_SEEDS} seeds.'
    )
  if len(decided) < len(grid.settings):
    text += (
        f' Not decided, without marks: it takes {statistics.MIN_SEEDS} seeds of two methods'
        + (f' ({", ".join(s for s in grid.settings if s not in decided)}).' if decided else '.')
    )
  return text


def _entry_text(entry, num_seeds, decided):
  if not entry.runs:
    return 'no run'
  if entry.unreached:
    return f'not reached in {entry.unreached} of {entry.runs}'
  if not entry.spread.n:
    return '–'
  shown = _plus_minus(entry.spread.mean, entry.spread.sd)
  if entry.spread.n < num_seeds:
    shown += f' (n={entry.spread.n})'
  if entry.best:
    return f'**{shown}**'
  if decided and entry.may_be_best is None:
    return f'{shown} ?'
  return f'{shown} †' if entry.may_be_best else shown


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
      why = 'not decided' if difference.n < statistics.MIN_SEEDS else 'the same in each'
      return f'{difference.mean:+.2f}, {why} (n={difference.n})'
    p = '' if math.isnan(difference.p) else f', p={difference.p:.3f}'
    return (
        f'{difference.mean:+.2f} [{difference.low:+.2f}, {difference.high:+.2f}] '
        f'(n={difference.n}{p})'
    )

  rows = tuple(
      (method, *(text(method, setting) for setting in grid.settings))
      for method in grid.methods
      if method != grid.baseline
  )
  return Table(
      f'{metrics.get(metric).title}: difference to {grid.baseline}',
      ('method', *grid.settings),
      rows,
      (
          'Paired over seeds (same clients, labels and initial weights), with 95 % intervals of '
          "Student's t, each by itself: of twenty of no difference one excludes 0. p: of the exact "
          f'sign-flip test, of 6 to 16 seeds. Fewer than {statistics.MIN_SEEDS} decide '
          'nothing, nor do fewer than 6 that are all equal.',
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
            _bound(cost.run_epsilon),
        ))
  return Table(
      'Costs',
      ('method', 'setting', 's a round', 'MB up', 'MB down', 'label epsilon', 'run epsilon'),
      tuple(rows),
      (
          'Seconds: median over rounds and seeds, without evaluation on the test set. Traffic: all '
          'clients, whole run. Label epsilon: of the label channel alone; run epsilon: of all '
          'releases, for the label of one example.',
      ),
  )


def _bound(text):
  """Runs of earlier versions have all digits."""
  epsilon, space, rest = text.partition(' ')
  return rounding.up(float(epsilon)) + space + rest


def _megabytes(value):
  return f'{value / 1e6:.3g}'


def mean_ranks(
    grid: grid_lib.Grid, results: Sequence[Result], metric: str
) -> ranks.Ranks | None:
  """Returns the mean ranks over settings, where there are enough of everything."""
  values = {s: {m: by_seed(results, metric, m, s) for m in grid.methods} for s in grid.settings}
  return ranks.rank(values, highest=metrics.get(metric).highest)


def rank_table(found: ranks.Ranks, metric: str) -> Table:
  """The mean rank of each method, the best first."""
  left_out = ()
  if found.left_out:
    left_out = (f'Left out, with too few seeds: {", ".join(found.left_out)}.',)
  return Table(
      f'{metrics.get(metric).title}: mean rank',
      ('method', f'mean rank over {found.settings} settings'),
      tuple((m, f'{r:.2f} †' if m in found.alike else f'{r:.2f}') for m, r in found.mean.items()),
      (
          f'Of {len(found.mean)} methods in each setting and seed, 1 the best; mean over '
          f'{found.settings} settings, and {found.seeds} seeds. Critical difference '
          f'{found.critical_difference:.2f}: methods whose mean ranks are further apart differ '
          "(Tukey's range at 1 %), if by the variance of the two alone they do as well (at 5 %): "
          f'{95 if found.seeds > 4 else 91} of 100 tables show no difference that is not there, '
          'where methods vary unequally over seeds or come in groups of equals, too. †: not told '
          'apart from the first. Other settings may rank otherwise.',
          *left_out,
      ),
  )


_COLUMNS = (
    'metric', 'method', 'setting', 'n', 'mean', 'sd', 'baseline', 'difference', 'difference_low',
    'difference_high', 'sign_flip_p', 'pairs', 'best', 'may_be_best', 'unreached',
    'published_mean', 'published_sd', 'seconds_per_round', 'bytes_up', 'bytes_down',
    'label_epsilon', 'run_epsilon',
)


def to_csv(grid: grid_lib.Grid, results: Sequence[Result]) -> str:
  """Returns one row for each metric, method and setting; unknown numbers are empty."""
  output = io.StringIO()
  writer = csv.writer(output, lineterminator='\n')
  writer.writerow(_COLUMNS)
  for metric in grid.metrics:
    for (method, setting), entry in entries(grid, results, metric).items():
      cost = costs(results, method, setting)
      published = entry.published if metric == grid.metric and entry.published else (None, None)
      writer.writerow([
          _number(v)
          for v in (
              metric, method, setting, *_counted(entry.spread), grid.baseline,
              *entry.difference, int(entry.best), _flag(entry.may_be_best), entry.unreached,
              *published, *cost,
          )
      ])
  return output.getvalue()


def _flag(value):
  return None if value is None else int(value)


def _counted(value):
  return value.n, value.mean, value.sd


def _number(value: Any) -> Any:
  if value is None or (isinstance(value, float) and math.isnan(value)):
    return ''
  return f'{value:.6g}' if isinstance(value, float) else value
