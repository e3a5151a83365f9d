"""Mean ranks of methods over all settings of a grid, and how far apart they have to be.

In each setting and seed methods are ranked, 1 the best, ties by the mean of their places. A
seed's cells share clients and initial weights, so the ranks of a seed are averaged over settings
first: seeds are what is independent. The settings are taken as they are; others may rank otherwise.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tff_noise.compare import statistics

# With fewer, a table by setting says as much.
MIN_METHODS, MIN_SETTINGS = 3, 3
# Nominal. Tukey's range takes it that all methods vary alike over seeds; where half of them vary
# ten times as much as the others, this becomes 5 to 6 % (`ranks_test`).
_LEVEL = 0.01


class Ranks(NamedTuple):
  """Mean ranks.

  Attributes:
    mean: By method, the best first.
    critical_difference: Two methods whose mean ranks are further apart differ.
    groups: The first and the last method of each largest row of neighbours that do not differ.
    settings: Over how many settings.
    seeds: Over how many seeds.
  """

  mean: Mapping[str, float]
  critical_difference: float
  groups: tuple[tuple[str, str], ...]
  settings: int
  seeds: int


def rank(
    values: Mapping[str, Mapping[str, Mapping[int, float]]], *, highest: bool = True
) -> Ranks | None:
  """Returns the mean ranks of the methods that have all settings of three seeds or more.

  Args:
    values: By setting, by method, by seed; infinite for what was not reached.
    highest: Whether high values are good.

  Returns:
    None for fewer than three methods, settings or seeds.
  """
  by_setting = [{m: v for m, v in of_setting.items() if v} for of_setting in values.values()]
  if len(by_setting) < MIN_SETTINGS:
    return None
  # One that is short of seeds is left out, or there would be no ranks of all others either.
  seeds_of = {
      m: set.intersection(*(set(of_setting.get(m, ())) for of_setting in by_setting))
      for m in by_setting[0]
  }
  methods = [m for m, seeds in seeds_of.items() if len(seeds) >= statistics.MIN_SEEDS]
  if len(methods) < MIN_METHODS:
    return None
  seeds = set.intersection(*(seeds_of[m] for m in methods))
  if len(seeds) < statistics.MIN_SEEDS:
    return None
  from scipy import stats  # Takes a second: only where it is used.

  cells = np.array([  # [seeds, settings, methods]
      [[of_setting[m][seed] for m in methods] for of_setting in by_setting]
      for seed in sorted(seeds)
  ])
  by_seed = stats.rankdata(-cells if highest else cells, axis=2).mean(axis=1)
  mean = by_seed.mean(axis=0)
  order = np.argsort(mean, kind='stable')
  difference = critical_difference(by_seed)
  return Ranks(
      {methods[i]: float(mean[i]) for i in order},
      difference,
      tuple((methods[order[a]], methods[order[b]]) for a, b in _rows(mean[order], difference)),
      len(by_setting),
      len(seeds),
  )


def critical_difference(by_seed: np.ndarray) -> float:
  """Returns how far apart two means have to be: Tukey's range of methods, in blocks of seeds.

  Args:
    by_seed: float64 `[n, k]`, of each seed and method, both at least 2.
  """
  n, k = by_seed.shape
  degrees = (n - 1) * (k - 1)
  residual = (
      by_seed - by_seed.mean(axis=0) - by_seed.mean(axis=1, keepdims=True) + by_seed.mean()
  )
  error = math.sqrt(np.square(residual).sum() / degrees / n)
  return _studentized_range(k, degrees) * error


@functools.cache
def _studentized_range(k, degrees):
  from scipy import stats

  return float(stats.studentized_range.isf(_LEVEL, k, degrees))


def _rows(means: np.ndarray, difference: float) -> Sequence[tuple[int, int]]:
  """The first and last places of the largest rows within the difference, of two and more."""
  ends = [int(np.flatnonzero(means <= first + difference)[-1]) for first in means]
  return [
      (first, last) for first, last in enumerate(ends)
      if last > first and (first == 0 or last > ends[first - 1])
  ]
