"""Which method to use, by what may be shown: the best of each kind in each setting.

Kinds are ordered by what a server gets to see: sums and averages over clients alone; numbers,
losses or models of single clients as well; or data of its own that no client gives, clean labels or
public images. Which kind a method is of follows from the flags that its runs have.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tff_noise.compare import grid as grid_lib
from tff_noise.compare import metrics
from tff_noise.compare import statistics
from tff_noise.compare import tables
from tff_noise.program import run_config

SUMS, CLIENTS, DATA = 'sums alone', 'single clients', 'data of its own'
KINDS = (SUMS, CLIENTS, DATA)


def kind(config: run_config.RunConfig) -> str:
  """Returns the kind of a cell's method."""
  if config.validation_fraction or config.validation_dir or config.public_dataset:
    return DATA
  return CLIENTS if config.allow_per_client_disclosure else SUMS


def kinds(grid: grid_lib.Grid) -> dict[str, str]:
  """Returns the kind of each method, the one that shows most where its cells differ.

  By what its cells ask for: a flag of all runs, such as a validation set, is of every method.
  """
  found = {}
  for cell in grid.cells:
    found.setdefault(cell.method, []).append(kind(cell.config))
  return {method: max(of_cells, key=KINDS.index) for method, of_cells in found.items()}


class Choice(NamedTuple):
  """The best method of a kind in a setting.

  Attributes:
    method: The one with the best mean.
    mean: Its mean over seeds.
    gain: Against the baseline, paired over seeds, its interval by itself.
    alike: How many others of the kind may be the best of it too.
  """

  method: str
  mean: float
  gain: statistics.Difference
  alike: int


def choose(
    grid: grid_lib.Grid, results: Sequence[tables.Result], metric: str, setting: str, of_kind: str
) -> Choice | None:
  """Returns the best of the methods of a kind, or None where none has a finished run."""
  highest, of = metrics.get(metric).highest, kinds(grid)
  values = {
      m: tables.reached_by_seed(results, metric, m, setting)
      for m in grid.methods if of[m] == of_kind
  }
  values = {m: v for m, v in values.items() if v}
  if not values:
    return None
  best = statistics.best_of(values, highest=highest)
  may_be = statistics.may_be_best(values, highest=highest)
  baseline = tables.reached_by_seed(results, metric, grid.baseline, setting)
  return Choice(
      best, statistics.spread(values[best].values()).mean,
      statistics.paired(values[best], baseline),
      sum(bool(kept) for m, kept in may_be.items() if m != best),
  )


def table(grid: grid_lib.Grid, results: Sequence[tables.Result], metric: str) -> tables.Table:
  """The choice of each kind (columns) in each setting (rows)."""

  def text(setting, of_kind):
    found = choose(grid, results, metric, setting, of_kind)
    if found is None:
      return '–'
    shown = f'{found.method} {found.mean:.2f}'
    if found.method != grid.baseline and found.gain.n >= statistics.MIN_SEEDS:
      shown += f', {statistics.text(found.gain)}'
    return shown + (f'; {found.alike} more' if found.alike else '')

  rows = tuple((s, *(text(s, k) for k in KINDS)) for s in grid.settings)
  number = {k: sum(v == k for v in kinds(grid).values()) for k in KINDS}
  return tables.Table(
      f'{metrics.get(metric).title}: the best by what the server sees',
      ('setting', *(f'{k} ({number[k]} methods)' for k in KINDS)), rows,
      (
          f'The highest mean of its kind, its difference to {grid.baseline} with a 95 % interval '
          'of Student\'s t by itself, and how many more of the kind may be the best of it (paired '
          't, corrected for picking). The highest of many is flattered.',
      ),
  )


class Cost(NamedTuple):
  """Something of which less is better.

  Attributes:
    unit: What is counted, over what.
    of: Its number, of what a method costs in a setting.
  """

  unit: str
  of: Callable[[tables.Costs], float]


# Of all clients, up and down, whole run.
TRAFFIC = Cost('MB a run', lambda costs: (costs.up + costs.down) / 1e6)
# Of a simulation, whose clients share one machine; two digits, which is as far as they repeat.
TIME = Cost('ms a round', lambda costs: float(f'{1e3 * costs.seconds:.2g}'))


def cost_text(cost: float) -> str:
  """Returns a cost as tables have it: whole numbers, and three digits of small ones."""
  return f'{cost:,.0f}' if cost >= 100 else f'{cost:.3g}'


class Point(NamedTuple):
  """A method over all settings.

  Attributes:
    method: Its name.
    kind: What its server sees.
    mean: Of the metric, over settings.
    cost: Mean over settings.
    on_front: Whether no other is at least as good in all three, and better in one.
  """

  method: str
  kind: str
  mean: float
  cost: float
  on_front: bool


def points(
    grid: grid_lib.Grid, results: Sequence[tables.Result], metric: str, cost: Cost
) -> list[Point]:
  """Returns the methods of enough seeds in every setting, by kind, those of best mean first."""
  sign, of = (1 if metrics.get(metric).highest else -1), kinds(grid)
  means = [_means(grid, results, metric, setting) for setting in grid.settings]
  found = []
  for method in grid.methods:
    if not all(method in of_setting for of_setting in means):
      continue
    costs = [cost.of(tables.costs(results, method, s)) for s in grid.settings]
    found.append(Point(
        method, of[method], float(np.mean([of_setting[method] for of_setting in means])),
        float(np.mean(costs)), False,
    ))

  def loss(p):
    return np.array([-sign * p.mean, p.cost, KINDS.index(p.kind)])

  def is_beaten(p):
    return any((loss(q) <= loss(p)).all() and (loss(q) < loss(p)).any() for q in found)

  marked = [p._replace(on_front=not is_beaten(p)) for p in found]
  return sorted(marked, key=lambda p: (KINDS.index(p.kind), -sign * p.mean))


def _means(grid, results, metric, setting):
  """Means as if all methods had the same seeds, of those that have enough."""
  values = {m: tables.reached_by_seed(results, metric, m, setting) for m in grid.methods}
  return statistics.adjusted_means(
      statistics.of_enough_seeds({m: v for m, v in values.items() if v})
  )


def front_table(
    grid: grid_lib.Grid, results: Sequence[tables.Result], metric: str, cost: Cost
) -> tables.Table:
  """Methods of enough seeds by accuracy, cost and what is shown; bold: none is better in all."""
  found = points(grid, results, metric, cost)
  rows = tuple(
      (f'**{p.method}**' if p.on_front else p.method, p.kind, f'{p.mean:.2f}', cost_text(p.cost))
      for p in found
  )
  short = [
      m for m in grid.methods if m not in {p.method for p in found}
      and all(tables.reached_by_seed(results, metric, m, s) for s in grid.settings)
  ]
  left_out = [f'Left out, with too few seeds: {", ".join(short)}.'] if short else []
  mean = f'mean over {len(grid.settings)} settings' if len(grid.settings) > 1 else 'mean'
  return tables.Table(
      f'{metrics.get(metric).title}: against what it costs',
      ('method', 'the server has', mean, cost.unit), rows,
      ('Bold: no other has as much accuracy for as little and shows as little.', *left_out),
  )
