"""What validation would choose: a method in each setting, and a round in each run.

Of runs that validate, on clean examples of the server or on what clients withhold with the labels
that they believe. A choice between methods is fair where all validate on the same examples.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from tff_noise.compare import grid as grid_lib
from tff_noise.compare import metrics
from tff_noise.compare import statistics
from tff_noise.compare import tables

_MEASURE, _ROUND = 'last10_validation_accuracy', 'validation_chosen_test_accuracy'


def _values(grid, results, metric, setting) -> Mapping[str, Mapping[int, float]]:
  """By method and seed, where every method that validates, on seeds enough, has both numbers."""
  found = {}
  for method in grid.methods:
    measured = tables.by_seed(results, _MEASURE, method, setting)
    if measured:
      found[method] = {
          seed: (measured[seed], value)
          for seed, value in tables.by_seed(results, metric, method, setting).items()
          if seed in measured
      }
  found = statistics.of_enough_seeds(found)
  seeds = set.intersection(*map(set, found.values())) if found else set()
  return {m: {s: values[s] for s in sorted(seeds)} for m, values in found.items()}


def has(results: Sequence[tables.Result]) -> bool:
  """Returns whether some run validates."""
  return any(r.record is not None and r.record.values.get(_MEASURE) is not None for r in results)


def methods_table(
    grid: grid_lib.Grid, results: Sequence[tables.Result], metric: str
) -> tables.Table:
  """Which method the highest validation accuracy chooses, and what that comes to.

  The last rows are means over the settings that have all methods that validate in any: of the
  choice, and of each method if it is always taken.

  Args:
    grid: The grid.
    results: Of its cells.
    metric: A metric of which high values are good.
  """
  rows, behind = [], {}
  of_settings = {setting: _values(grid, results, metric, setting) for setting in grid.settings}
  validating = set().union(*of_settings.values())
  for setting, values in of_settings.items():
    if len(values) < 2 or not any(values.values()):
      rows.append((setting, *['–'] * 4))
      continue
    tested = {m: {s: v[1] for s, v in of.items()} for m, of in values.items()}
    means = {m: float(np.mean(list(v.values()))) for m, v in tested.items()}
    highest = max(means, key=means.get)
    names = {s: max(values, key=lambda m: values[m][s][0]) for s in tested[highest]}
    chosen = {s: tested[m][s] for s, m in names.items()}
    mean = float(np.mean(list(chosen.values())))
    if set(values) == validating:
      for name, value in {'what validation chooses': mean, **means}.items():
        behind.setdefault(name, []).append(value - means[highest])
    rows.append((
        setting, _counted(list(names.values())), f'{mean:.2f}',
        f'{highest} {means[highest]:.2f}', _difference(chosen, tested[highest]),
    ))
  for name, values in sorted(behind.items(), key=lambda item: -np.mean(item[1])):
    what = name if name == 'what validation chooses' else f'always {name}'
    where = f'mean of {len(values)} settings' if len(values) > 1 else 'of that setting'
    rows.append((where, what, '', '', f'{np.mean(values):+.2f}'))
  return tables.Table(
      f'{metrics.get(metric).title}: of the method that validation chooses',
      ('setting', 'chosen (seeds)', 'comes to', 'highest mean', 'behind it'), tuple(rows),
      (
          'In each setting and seed by itself the method of the highest validation accuracy, mean '
          'of the last 10; of equals the first of the grid. It is fair where all validate on the '
          'same examples. The highest mean was picked on test labels, and so is flattered.',
          *_left_out(of_settings, validating),
      ),
  )


def rounds_table(
    grid: grid_lib.Grid, results: Sequence[tables.Result], metric: str
) -> tables.Table:
  """Test accuracy in the round that validation chooses, less another metric of the same runs."""

  def text(method, setting):
    chosen = tables.by_seed(results, _ROUND, method, setting)
    if not chosen:
      return '–'
    return _difference(chosen, tables.by_seed(results, metric, method, setting))

  return tables.Table(
      f'Test accuracy in the round that validation chooses, less: {metrics.get(metric).title}',
      ('method', *grid.settings),
      tuple((m, *(text(m, s) for s in grid.settings)) for m in grid.methods),
      ("Paired over seeds, with 95 % intervals of Student's t, each by itself.",),
  )


def _left_out(of_settings, validating):
  """Says which of the methods that validate are no candidates of a setting, if any."""
  without = [
      f'{setting} without {", ".join(sorted(validating - set(values)))}'
      for setting, values in of_settings.items() if validating - set(values)
  ]
  return [f'Of too few runs that validate: {"; ".join(without)}.'] if without else []


def _counted(names):
  """Names with how often they occur, the most frequent first."""
  counts = {name: names.count(name) for name in names}
  return ', '.join(f'{m} ({n})' for m, n in sorted(counts.items(), key=lambda item: -item[1]))


def _difference(first, second):
  return statistics.text(statistics.paired(first, second))
