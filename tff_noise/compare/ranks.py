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
_LEVEL_OF_TWO = 0.05


class Ranks(NamedTuple):
  """Mean ranks.

  Attributes:
    mean: By method, the best first.
    critical_difference: Two methods whose mean ranks are nearer do not differ.
    groups: The first and the last method of each largest row whose ends do not differ.
    alike: The first, and those that are not told apart from it.
    settings: Over how many settings.
    seeds: Over how many seeds.
    left_out: Methods with some seeds, and too few.
  """

  mean: Mapping[str, float]
  critical_difference: float
  groups: tuple[tuple[str, str], ...]
  alike: tuple[str, ...]
  settings: int
  seeds: int
  left_out: tuple[str, ...]


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
  seeds = _common(seeds_of, methods)
  while methods and len(seeds) < statistics.MIN_SEEDS:
    methods.remove(min(reversed(methods), key=lambda m: len(seeds_of[m])))
    seeds = _common(seeds_of, methods)
  if len(methods) < MIN_METHODS:
    return None
  from scipy import stats  # Takes a second: only where it is used.

  cells = np.array([  # [seeds, settings, methods]
      [[of_setting[m][seed] for m in methods] for of_setting in by_setting]
      for seed in sorted(seeds)
  ])
  by_seed = stats.rankdata(-cells if highest else cells, axis=2).mean(axis=1)
  mean = by_seed.mean(axis=0)
  order = np.argsort(mean, kind='stable')
  told = told_apart(by_seed[:, order])
  names = [methods[i] for i in order]
  return Ranks(
      dict(zip(names, mean[order].tolist(), strict=True)),
      critical_difference(by_seed),
      tuple((names[a], names[b]) for a, b in _rows(told)),
      tuple(m for m, apart in zip(names, told[0], strict=True) if not apart),
      len(by_setting),
      len(seeds),
      tuple(m for m in dict.fromkeys(m for of in by_setting for m in of) if m not in methods),
  )


def _common(seeds_of, methods):
  return set.intersection(*(seeds_of[m] for m in methods)) if methods else set()


def told_apart(by_seed: np.ndarray) -> np.ndarray:
  """Returns bool `[k, k]`, which methods differ.

  They do where their means are further apart than Tukey's range allows, by the error of all methods
  and by that of the two, each with its degrees of freedom: those that are always in one place, or
  tie wherever they reach nothing, vary in nothing and would lend their certainty to others. By that
  of two, which few seeds tell, the range is at 5 %.

  Args:
    by_seed: float64 `[n, k]`, of each seed and method, both at least 2.
  """
  n, k = by_seed.shape
  mean = by_seed.mean(axis=0)
  pairs = by_seed[:, :, np.newaxis] - by_seed[:, np.newaxis, :]
  of_two = pairs.std(axis=0, ddof=1) / math.sqrt(2 * n)
  limit = np.maximum(
      critical_difference(by_seed), _studentized_range(k, n - 1, _LEVEL_OF_TWO) * of_two
  )
  return np.abs(mean[:, np.newaxis] - mean) > limit


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
  return _studentized_range(k, degrees, _LEVEL) * error


@functools.cache
def _studentized_range(k, degrees, level):
  from scipy import stats

  return float(stats.studentized_range.isf(level, k, degrees))


def _rows(told: np.ndarray) -> Sequence[tuple[int, int]]:
  """The first and last places of the longest rows whose ends are not told apart, of two or more."""
  ends = [int(np.flatnonzero(~apart)[-1]) for apart in told]
  return [
      (first, last) for first, last in enumerate(ends)
      if last > max([first, *ends[:first]])
  ]
