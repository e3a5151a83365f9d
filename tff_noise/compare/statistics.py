"""What a few seeds tell: means, paired differences, and which methods may be the best.

Methods are compared seed by seed, since cells of a seed share clients, labels and initial weights.
"""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tff_noise import rng

# With fewer seeds nothing is decided: two differences hardly tell how much a third would differ.
MIN_SEEDS = 3
# All 2^n changes of signs are gone through up to 16; with fewer than 6 none has p below .05.
_SIGN_FLIP_SEEDS = range(6, 17)
_LEVEL = 0.05
_RESOLUTION = 1e-6
_SIMULATIONS = 50_000
# From so many seeds on equal differences tell something.
_EQUAL_TELL = _SIGN_FLIP_SEEDS.start


class Spread(NamedTuple):
  """Mean and standard deviation (n - 1) over seeds; both nan without any."""

  mean: float
  sd: float
  n: int


class Difference(NamedTuple):
  """A paired difference over the seeds that both methods have.

  Attributes:
    mean: Mean difference.
    low: Lower end of the 95 % interval of Student's t; nan for fewer than `MIN_SEEDS`, and for
      fewer than 6 that are all equal, as a few of a coarse metric easily are.
    high: Upper end.
    p: Of the exact sign-flip test, two-sided: the share of all changes of signs under which the
      mean is as far from 0; nan for fewer than 6 or more than 16 seeds.
    n: Number of pairs.
  """

  mean: float
  low: float
  high: float
  p: float
  n: int


def spread(values: Sequence[float]) -> Spread:
  """Returns mean, standard deviation and number of `values`."""
  values = np.asarray(list(values), np.float64)
  if not len(values):
    return Spread(math.nan, math.nan, 0)
  sd = float(values.std(ddof=1)) if len(values) > 1 else math.nan
  return Spread(float(values.mean()), sd, len(values))


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Difference:
  """Returns `first - second` over common seeds with its paired t interval."""
  differences = _differences(first, second)
  n = len(differences)
  mean = float(differences.mean()) if n else math.nan
  if n < MIN_SEEDS or not (n >= _EQUAL_TELL or _vary(differences, first, second)):
    return Difference(mean, math.nan, math.nan, math.nan, n)
  from scipy import stats  # Takes a second: only where it is used.

  half = float(stats.t.isf(_LEVEL / 2, n - 1) * _standard_error(differences))
  return Difference(mean, mean - half, mean + half, _sign_flip(differences), n)


def text(difference: Difference, digits: int = 2) -> str:
  """Returns a difference and its interval, if any: '+1.20 [+0.30, +2.10]'; '–' of no pair."""
  if not difference.n:
    return '–'
  shown = f'{difference.mean:+.{digits}f}'
  if math.isnan(difference.low):
    return shown
  return f'{shown} [{difference.low:+.{digits}f}, {difference.high:+.{digits}f}]'


def may_be_best(
    values: Mapping[str, Mapping[int, float]], *, highest: bool = True
) -> dict[str, bool | None]:
  """Returns which methods may be the best of all, given that the best was picked afterwards.

  A method may be, unless the paired t statistic of the one with the best mean against it is above
  what the largest such statistic among as many equal methods exceeds in 5 % of cases (simulated).
  So where all are equal, all are left in 95 % of tables. No common variance is assumed; methods of
  unequal variance are left in at least as often (`statistics_test`).

  Args:
    values: By method, by seed.
    highest: Whether high values are good.

  Returns:
    By method; None for one of fewer than `MIN_SEEDS` seeds or that shares fewer with the best, and
    for all if there is none else.
  """
  sign = 1 if highest else -1
  compared = of_enough_seeds(values)
  result = dict.fromkeys(values)
  if len(compared) < 2 or any(len(v) < MIN_SEEDS for v in compared.values()):
    return result
  best = best_of(compared, highest=highest)
  for method, of_method in compared.items():
    differences = sign * _differences(compared[best], of_method)
    if len(differences) < MIN_SEEDS:
      continue
    limit = critical_value(len(compared), len(differences)) * _standard_error(differences)
    # Equal differences do not tell how they vary: a few of a coarse metric are easily equal.
    told = len(differences) >= _EQUAL_TELL or _vary(differences, compared[best], of_method)
    result[method] = method == best or not told or bool(differences.mean() <= limit)
  if sum(kept is not None for kept in result.values()) < 2:
    return dict.fromkeys(values)
  return result


def best_of(values: Mapping[str, Mapping[int, float]], *, highest: bool = True) -> str | None:
  """Returns the method with the best `adjusted_means`; None if there are no values.

  One of fewer than `MIN_SEEDS` seeds does not compete where two others have as many.

  Args:
    values: By method, by seed.
    highest: Whether high values are good.
  """
  means = adjusted_means(of_enough_seeds(values))
  return (max if highest else min)(means, key=means.__getitem__, default=None)


def adjusted_means(values: Mapping[str, Mapping[int, float]]) -> dict[str, float]:
  """Returns means as if all methods had the same seeds, by method.

  Least squares of `x_ms = a_m + b_s`, a_m of the method and b_s of the seed: who lacks an easy seed
  is not behind for that. Plain means where all have the same, and where seeds do not link all
  methods, so that nobody can tell.

  Args:
    values: By method, by seed; none is without.
  """
  seeds = sorted({seed for v in values.values() for seed in v})
  if all(len(v) == len(seeds) for v in values.values()):
    return {m: spread([v[s] for s in seeds]).mean for m, v in values.items()}
  methods = list(values)
  cells = [(m, s) for m, v in values.items() for s in v]
  design = np.zeros((len(cells), len(methods) + len(seeds)))
  for row, (method, seed) in zip(design, cells, strict=True):
    row[methods.index(method)] = row[len(methods) + seeds.index(seed)] = 1
  found, _, rank, _ = np.linalg.lstsq(
      design, np.array([values[m][s] for m, s in cells]), rcond=None
  )
  if rank < len(methods) + len(seeds) - 1:
    # Some have no seed in common, not even by way of others.
    return {m: spread(v.values()).mean for m, v in values.items()}
  of_seeds = found[len(methods) :].mean()
  return {m: float(a + of_seeds) for m, a in zip(methods, found, strict=False)}


def of_enough_seeds(values: Mapping[str, Mapping[int, Any]]) -> dict[str, Mapping[int, Any]]:
  """Returns those of `MIN_SEEDS` seeds, or all that have any where there are no two."""
  enough = {m: v for m, v in values.items() if len(v) >= MIN_SEEDS}
  return enough if len(enough) > 1 else {m: v for m, v in values.items() if v}


@functools.cache
def critical_value(methods: int, seeds: int) -> float:
  """Returns what the largest t of the best of m equal methods against another exceeds in 5 %.

  By simulation of normal values; what a seed has in common for all methods cancels in differences.

  Args:
    methods: m, at least 2.
    seeds: At least `MIN_SEEDS`.
  """
  generator = rng.generator(0, 'critical value', methods, seeds)
  largest = []
  for part in np.array_split(np.arange(_SIMULATIONS), 50):
    values = generator.standard_normal((len(part), seeds, methods))
    best = values.mean(axis=1).argmax(axis=1)
    differences = np.take_along_axis(values, best[:, np.newaxis, np.newaxis], axis=2) - values
    error = differences.std(axis=1, ddof=1) / math.sqrt(seeds)
    mean = differences.mean(axis=1)
    largest.append(np.divide(mean, error, out=np.zeros_like(mean), where=error > 0).max(axis=1))
  return float(np.quantile(np.concatenate(largest), 1 - _LEVEL))


def _differences(first, second):
  return np.array([first[seed] - second[seed] for seed in sorted(set(first) & set(second))])


def _vary(differences, first, second):
  """Whether they differ by more than the last digits of float32, as accuracies are measured."""
  values = np.abs([*first.values(), *second.values()])
  return np.ptp(differences) > _RESOLUTION * values[np.isfinite(values)].max(initial=0)


def _standard_error(differences):
  return differences.std(ddof=1) / math.sqrt(len(differences))


def _sign_flip(differences):
  if len(differences) not in _SIGN_FLIP_SEEDS:
    return math.nan
  signs = np.array(list(itertools.product((1, -1), repeat=len(differences))))
  sums = np.abs(signs @ differences)
  # Sums of the same numbers in another order differ in their last digits.
  slack = 1e-12 * np.abs(differences).sum()
  return float(np.mean(sums >= abs(differences.sum()) - slack))
