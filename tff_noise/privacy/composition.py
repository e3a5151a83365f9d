"""What releases of several mechanisms cost together: one privacy profile of all of them.

Two bounds, of which at each epsilon the less counts:

* Without a grid: all Gaussians are one, whose squared sensitivity is the sum of theirs, whatever
  the cohorts are; reports add their epsilons. It is exact for noise without sampling, and delta is
  0 where reports alone are composed basically.
* On a grid: each release's profile becomes losses (`accountant.connect`), and losses of independent
  releases add, so their distributions are convolved (Doroshenko et al. 2022; Zhu, Dong and Wang
  2022, for pairs that dominate both orders of any neighbours).

Every release may depend on all before it. Which mechanisms there are, and how often each is used,
must not: that is fixed before the first of them.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from dp_accounting.pld import common
from scipy import signal

from tff_noise.privacy import accountant

# Points of the grid up to the largest loss of one release.
_GRID = 40_000
# What is cut off at either end of a distribution after a convolution, counted as an error of delta.
_TAIL = 1e-14


class _Grid(NamedTuple):
  """Privacy losses of several releases together.

  Attributes:
    losses: float64 `[n]`, ascending, evenly spaced.
    masses: float64 `[n]`, their probabilities; rounding may leave some below 0.
    infinity: The probability of an infinite loss.
    error: By how much a delta may be off.
  """

  losses: np.ndarray
  masses: np.ndarray
  infinity: float
  error: float

  def delta(self, epsilon):
    """Returns an upper bound; dp_accounting's own overflows from an epsilon of 710 on."""
    above = slice(int(np.searchsorted(self.losses, epsilon, 'right')), None)
    lost = self.masses[above] @ -np.expm1(epsilon - self.losses[above])
    return (self.infinity + float(lost)) * (1 + accountant.SLACK) + self.error


class Profile(NamedTuple):
  """The privacy profile of releases together: delta as a function of epsilon, from above.

  Attributes:
    mu: Of the Gaussian that all noisy sums without protection by sampling are; 0 without any.
    pure: The sum of the epsilons of all reports.
    single: Where all of it is one release: this one.
    grid: The losses of all together, where there is more than one.
    distance: How far all samples together may be from their distributions, in total variation.
  """

  mu: float
  pure: float
  single: accountant.Loss | None
  grid: _Grid | None
  distance: float

  def delta(self, epsilons: np.ndarray) -> np.ndarray:
    """Returns float64 `[n]`, upper bounds of delta at `epsilons`, ascending from 0 or more on."""
    deltas = np.array([self._bound(epsilon) for epsilon in epsilons])
    if self.distance:
      deltas += (1 + np.exp(np.minimum(epsilons, 700.0))) * self.distance
    # What holds at an epsilon holds at every larger one.
    return np.minimum.accumulate(np.minimum(deltas, 1.0))

  def epsilon(self, delta: float) -> float:
    """Returns an upper bound of epsilon at a `delta` in (0, 1).

    Infinite where the distance of samples is not negligible.
    """
    accountant.check_delta(delta, zero=False)
    reduced = delta * (1 - accountant.SLACK)
    high = self.pure
    if self.mu:
      high += accountant.GaussianLoss(self.mu).largest(reduced * (1 - 1e-6))
    _, epsilon = accountant.solve(self._bound, reduced, high)
    largest = math.log(delta * accountant.SLACK)
    if self.distance and math.log(2 * self.distance) + epsilon > largest:
      return math.inf
    return epsilon

  def _bound(self, epsilon):
    """delta but for the distance of samples."""
    bounds = [1.0]
    if epsilon >= self.pure:
      beyond = np.array([epsilon - self.pure])
      bounds.append(accountant.GaussianLoss(self.mu).profile(beyond)[0] if self.mu else 0.0)
    if self.single is not None:
      bounds.append(self.single.profile(np.array([epsilon]))[0])
    bounds = [float(bound) * (1 + accountant.SLACK) for bound in bounds]
    if self.grid is not None:
      bounds.append(self.grid.delta(epsilon))
    return min(bounds)


def compose(losses: Mapping[accountant.Loss, int], smallest: float) -> Profile:
  """Returns the privacy profile of releases together.

  Args:
    losses: Of one release each, and of how many: at least 1.
    smallest: The least delta that is asked for, in (0, 1).
  """
  gaussians = {loss: n for loss, n in losses.items() if isinstance(loss, accountant.GaussianLoss)}
  reports = {loss: n for loss, n in losses.items() if loss not in gaussians}
  merged = _merged(gaussians)
  merged.update(reports)
  several = sum(merged.values()) > 1
  return Profile(
      mu=_together(gaussians),
      pure=math.fsum(n * loss.largest(0.0) for loss, n in reports.items()),
      single=next(iter(merged)) if merged and not several else None,
      grid=_convolved(merged, smallest) if several else None,
      distance=math.fsum(n * loss.distance for loss, n in losses.items()),
  )


def _together(gaussians):
  return math.sqrt(math.fsum(n * loss.mu**2 for loss, n in gaussians.items()))


def _merged(gaussians):
  """All that are not sampled as one release; the distance of samples is counted apart."""
  merged = collections.Counter()
  for loss, n in gaussians.items():
    if loss.share < 1:
      merged[loss._replace(distance=0.0)] += n
  whole = {loss: n for loss, n in gaussians.items() if loss.share == 1}
  if whole:
    merged[accountant.GaussianLoss(_together(whole))] = 1
  return merged


def _convolved(losses, smallest):
  """Returns the losses of all releases on one grid."""
  tail = smallest * 1e-6 / sum(losses.values())
  largest = [loss.largest(tail) for loss in losses]
  # The losses of reports of one mechanism are on a grid of their own.
  alone = len(losses) == 1 and isinstance(next(iter(losses)), accountant.ReportLoss)
  interval = largest[0] if alone else max(largest) / _GRID
  lowest, masses, finite, error = 0, np.ones(1), 0.0, 0.0
  for (loss, releases), last in zip(losses.items(), largest, strict=True):
    points = interval * np.arange(math.ceil(last / interval * (1 - 1e-12)) + 1)
    one = accountant.connect(loss.profile(points) * (1 + accountant.SLACK), interval)
    cut, part = common.self_convolve(one.masses, releases, _TAIL)
    start, masses = _without_tails(signal.fftconvolve(masses, part))
    lowest += start + cut - releases * (len(one.masses) // 2)
    # In logarithms, as nearly all losses are finite.
    finite += releases * math.log1p(-one.infinity)
    # Once for each convolution, and what each cuts off.
    error += 2 * accountant.convolution_error(releases) + 3 * _TAIL
  positions = lowest + np.arange(len(masses))
  return _Grid(interval * positions, masses, -math.expm1(finite), error)


def _without_tails(masses):
  """Returns where the rest begins, and the rest."""
  start = int(np.searchsorted(np.maximum.accumulate(np.cumsum(masses)), _TAIL))
  end = int(np.searchsorted(np.maximum.accumulate(np.cumsum(masses[::-1])), _TAIL))
  return start, masses[start : len(masses) - end]
