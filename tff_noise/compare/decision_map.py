"""Which method where: noises against federations, the best of each, and by how much.

A grid has a map where its settings are named `federation, noise`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from tff_noise import types
from tff_noise.compare import grid as grid_lib
from tff_noise.compare import metrics
from tff_noise.compare import statistics
from tff_noise.compare import tables

# Of --method: what a user can have by changing one term and nothing else.
_ROBUST_LOSSES = ('gce', 'sce')


class Place(NamedTuple):
  """What is best in a setting.

  Attributes:
    noise: The setting's.
    federation: The setting's.
    method: The one with the best mean.
    mean: Its mean over seeds.
    gain: Against the baseline, paired over seeds, its interval by itself.
    loss: The best robust loss; '' where the grid has none but its baseline, or `method` is one.
    gain_to_loss: Against that loss; None where there is none.
    alike: The others that may be the best too (corrected for picking), in the grid's order.
  """

  noise: str
  federation: str
  method: str
  mean: float
  gain: statistics.Difference
  loss: str
  gain_to_loss: statistics.Difference | None
  alike: tuple[str, ...]


def places(
    grid: grid_lib.Grid, results: Sequence[tables.Result], metric: str
) -> list[Place]:
  """Returns the settings in which each method has a result, in the grid's order.

  Raises:
    types.UsageError: If there is none.
  """
  losses = {c.method for c in grid.cells if c.config.method in _ROBUST_LOSSES} - {grid.baseline}
  found = []
  for setting in grid.settings:
    values = {m: tables.reached_by_seed(results, metric, m, setting) for m in grid.methods}
    if all(values.values()):
      found.append(_place(setting, values, losses, grid.baseline, metrics.get(metric).highest))
  if not found:
    raise types.UsageError(f'{grid.title}: in no setting has each method a result')
  return found


def _place(setting, values, losses, baseline, highest):
  mean = {m: statistics.spread(v.values()).mean for m, v in values.items()}
  best = statistics.best_of(values, highest=highest)
  may_be = statistics.may_be_best(values, highest=highest)
  loss = ''
  if losses and best not in losses:
    loss = statistics.best_of({m: values[m] for m in sorted(losses)}, highest=highest)
  federation, _, noise = setting.partition(', ')
  return Place(
      noise or federation, federation if noise else '', best, mean[best],
      statistics.paired(values[best], values[baseline]), loss,
      statistics.paired(values[best], values[loss]) if loss else None,
      tuple(m for m, kept in may_be.items() if kept and m != best),
  )


def table(grid: grid_lib.Grid, results: Sequence[tables.Result], metric: str) -> tables.Table:
  """The best of each noise (rows) in each federation (columns)."""
  found = {(p.noise, p.federation): p for p in places(grid, results, metric)}
  noises, federations = (tuple(dict.fromkeys(names)) for names in zip(*found, strict=True))
  rows = tuple(
      (noise, *(_text(found.get((noise, f)), grid.baseline) for f in federations))
      for noise in noises
  )
  return tables.Table(
      f'{metrics.get(metric).title}: the best by noise and federation',
      ('noise', *federations), rows,
      (
          f'The highest mean, its differences to {grid.baseline} and to the better of the robust '
          'losses, each with a 95 % interval of Student\'s t by itself, and how many others may '
          'be the best too (paired t, corrected for picking). The highest of many is flattered.',
      ),
  )


def lines(place: Place, grid: grid_lib.Grid) -> list[str]:
  """Returns what stands in its box in a picture, without intervals."""
  found = [f'{place.method} {place.mean:.1f}']
  if place.alike:
    found[0] += f', or {len(place.alike)} more'
  if place.method != grid.baseline:
    found.append(_gain(place.gain, grid.baseline))
  if place.loss:
    found.append(_gain(place.gain_to_loss, place.loss))
  return found


def _gain(difference, other):
  return f'{difference.mean:+.1f} to {other}' if difference.n else f'no seed of {other}'


def _text(place, baseline):
  if place is None:
    return '–'
  parts = [f'**{place.method}** {place.mean:.1f}']
  if place.method != baseline:
    parts.append(f'{statistics.text(place.gain, digits=1)} to {baseline}')
  if place.loss:
    parts.append(f'{statistics.text(place.gain_to_loss, digits=1)} to {place.loss}')
  if place.alike:
    parts.append(f'or one of {len(place.alike)} more')
  return '; '.join(parts)
