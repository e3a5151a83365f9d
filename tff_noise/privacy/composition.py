"""What releases of several mechanisms cost together: one privacy profile of all of them.

Two bounds, of which at each epsilon the less counts:

* Without a grid: all Gaussians are one, whose squared sensitivity is the sum of theirs, whatever
  the cohorts are; reports add their epsilons. It is exact for noise without sampling, and delta is
  0 where reports alone are composed basically.
* On a grid: each release's profile becomes losses (`accountant.losses`), and losses of independent
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
from dp_accounting.pld import pld_pmf

from tff_noise.privacy import accountant

# Points of the grid up to the largest loss of one release.
_GRID = 40_000
# What convolutions may cut off, which counts as infinite losses.
_TAIL = 1e-15


class Profile(NamedTuple):
  """The privacy profile of releases together: delta as a function of epsilon, from above.

  Attributes:
    mu: Of the Gaussian that all noisy sums without protection by sampling are; 0 without any.
    pure: The sum of the epsilons of all reports.
    single: Where all of it is one release: this one.
    grid: The losses of all together, where there is more than one.
    error: By how much delta may be off where it comes from `grid`.
    distance: How far all samples together may be from their distributions, in total variation.
  """

  mu: float
  pure: float
  single: accountant.Loss | None
  grid: pld_pmf.DensePLDPmf | None
  error: float
  distance: float

  def delta(self, epsilons: np.ndarray) -> np.ndarray:
    """Returns float64 `[n]`, upper bounds of delta at `epsilons`, ascending from 0 or more on."""
    bounds = [self._without_grid(epsilons)]
    if self.grid is not None:
      bounds.append(
          np.asarray(self.grid.get_delta_for_epsilon(epsilons)) * (1 + accountant.SLACK)
          + self.error
      )
    deltas = np.min(bounds, axis=0)
    if self.distance:
      deltas = deltas + (1 + np.exp(np.minimum(epsilons, 700.0))) * self.distance
    # What holds at an epsilon holds at every larger one.
    return np.minimum.accumulate(np.minimum(deltas, 1.0))

  def epsilon(self, delta: float) -> float:
    """Returns an upper bound of epsilon at a `delta` in (0, 1), as `delta` has it.

    Infinite where the distance of samples is not negligible.
    """
    accountant.check_delta(delta, zero=False)
    reduced = delta * (1 - accountant.SLACK)
    high = self.pure
    if self.mu:
      high += accountant.GaussianLoss(self.mu).largest(reduced * (1 - 1e-6))
    _, epsilon = accountant.solve(
        lambda e: float(self._without_grid(np.array([e]))[0]), reduced, high
    )
    if self.grid is not None and reduced > self.error:
      # Once more for the factor that `delta` has.
      target = (reduced - self.error) * (1 - accountant.SLACK)
      epsilon = min(epsilon, float(self.grid.get_epsilon_for_delta(target)))
    largest = math.log(delta * accountant.SLACK)
    if self.distance and math.log(2 * self.distance) + epsilon > largest:
      return math.inf
    return epsilon

  def _without_grid(self, epsilons):
    beyond = epsilons - self.pure
    deltas = np.zeros(len(epsilons))
    if self.mu:
      deltas = accountant.GaussianLoss(self.mu).profile(np.maximum(beyond, 0.0))
    deltas = np.where(beyond >= 0, deltas, 1.0)
    if self.single is not None:
      deltas = np.minimum(deltas, self.single.profile(epsilons))
    return deltas * (1 + accountant.SLACK)


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
  grid, error = _convolved(merged, smallest) if several else (None, 0.0)
  return Profile(
      mu=_together(gaussians),
      pure=math.fsum(n * loss.largest(0.0) for loss, n in reports.items()),
      single=next(iter(merged)) if merged and not several else None,
      grid=grid,
      error=error,
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
  """Returns the losses of all releases on one grid, and the error of delta."""
  tail = smallest * 1e-6 / sum(losses.values())
  largest = [loss.largest(tail) for loss in losses]
  # The losses of reports of one mechanism are on a grid of their own.
  alone = len(losses) == 1 and isinstance(next(iter(losses)), accountant.ReportLoss)
  interval = largest[0] if alone else max(largest) / _GRID
  whole, error = None, 0.0
  for (loss, releases), last in zip(losses.items(), largest, strict=True):
    points = interval * np.arange(math.ceil(last / interval * (1 - 1e-12)) + 1)
    part = accountant.losses(loss.profile(points) * (1 + accountant.SLACK), interval)
    error += accountant.convolution_error(releases) + accountant.convolution_error(1)
    if releases > 1:
      part = part.self_compose(releases, _TAIL)
    whole = part if whole is None else whole.compose(part, _TAIL)
  return whole, error
