"""What one unit is exposed to by releases, of one run or of several, and what that costs it.

Neighbours are always data sets in which one unit is replaced, so that everything can be added up.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tff_noise.privacy import accountant
from tff_noise.privacy import composition
from tff_noise.privacy import discrete_gaussian
from tff_noise.privacy import mechanism as mechanism_lib
from tff_noise.privacy import protection as protection_lib

ADDED, COMPOSED = 'added', 'composed'
# A guarantee without delta is not given up for an epsilon that is less by less than this share.
_WORTH_A_DELTA = 0.01


class Total(NamedTuple):
  """What a unit's releases cost together.

  Attributes:
    cost: The smaller of both sums; infinite where nothing is claimed.
    how: ADDED or COMPOSED, which of them it is.
    added: Epsilons of the mechanisms added up, of noisy sums at equal parts of delta.
    composed: Epsilon of all mechanisms composed; None where one of them cannot be.
  """

  cost: protection_lib.Cost
  how: str
  added: float
  composed: float | None


class Exposure(NamedTuple):
  """What one unit is exposed to.

  Attributes:
    unit: The unit.
    made: Protections of the unit (`protection.for_unit`) and in how many exchanges of a run values
      were released under each, a run after the other.
    reports: The most independent reports of one label, by mechanism; what `made` has of reports
      counts as these.
    flaw: Why nothing bounds what it costs; '' if something does.
  """

  unit: protection_lib.Unit
  made: tuple[tuple[protection_lib.Protection, int], ...]
  reports: Mapping[mechanism_lib.RandomizedResponse, int]
  flaw: str = ''

  @property
  def sums(self) -> list[tuple[protection_lib.NoisySum, int]]:
    """The noisy sums among `made`."""
    return [(p, n) for p, n in self.made if isinstance(p, protection_lib.NoisySum)]

  def added(self, delta: float) -> protection_lib.Cost:
    """Returns the sum of what the mechanisms cost, at `delta` in (0, 1) of all together."""
    if self.flaw:
      return protection_lib.Cost(math.inf, 0.0, protection_lib.Status.NONE)
    sums = self.sums
    # Of an example, which is replaced: so is a client here, as sums of another kind have it.
    example = protection_lib.Unit.EXAMPLE
    costs = [protection_lib.cost(p, n, example, delta / len(sums)) for p, n in sums]
    pure = math.fsum(n * m.actual_epsilon for m, n in self.reports.items())
    status = protection_lib.Status.CONDITIONAL if sums else protection_lib.Status.PROVED
    epsilon = math.fsum([pure, *(c.epsilon for c in costs)])
    return protection_lib.Cost(epsilon, delta if sums else 0.0, status)

  def profile(self, smallest: float) -> composition.Profile | None:
    """Returns the privacy profile of all releases; None where it is infinite or not known.

    Args:
      smallest: The least delta that is asked for, in (0, 1).
    """
    losses = self.losses
    return None if losses is None else composition.compose(losses, smallest)

  @property
  def losses(self) -> Mapping[accountant.Loss, int] | None:
    """The losses of one release each, and of how many; None where one is infinite or not known."""
    if self.flaw or any(kind(p) not in _LOSSES for p, _ in self.sums):
      return None
    losses = collections.Counter()
    for noisy_sum, times in self.sums:
      losses.update(_LOSSES[kind(noisy_sum)](noisy_sum, times))
    losses.update({accountant.ReportLoss(m): n for m, n in self.reports.items()})
    return losses

  def total(self, delta: float) -> Total:
    """Returns what all releases cost together, at `delta` in (0, 1)."""
    added, profile = self.added(delta), self.profile(delta)
    composed = None if profile is None else profile.epsilon(delta)
    worth = 1.0 if added.delta else 1 - _WORTH_A_DELTA
    if composed is None or composed >= worth * added.epsilon:
      return Total(added, ADDED, added.epsilon, composed)
    cost = protection_lib.Cost(composed, delta, added.status)
    return Total(cost, COMPOSED, added.epsilon, composed)


def of_run(
    times: Mapping[protection_lib.Protection, int], unit: protection_lib.Unit, codes: int = 1
) -> Exposure:
  """Returns what one run exposes a unit to.

  Args:
    times: In how many exchanges values were released under each protection.
    unit: The unit.
    codes: How many codes made the run: other code may flip labels otherwise, by the same random
      number.
  """
  made = tuple((protection_lib.for_unit(p, unit, codes), n) for p, n in times.items() if n)
  reports, flaw = mechanisms(p for p, _ in made), ''
  if any(p is None for p, _ in made):
    flaw = 'values are released that nothing protects'
  elif reports and codes > 1:
    flaw = 'labels are reported by several codes, which may flip otherwise by one random number'
  return Exposure(unit, made, dict.fromkeys(reports, 1), flaw)


def mechanisms(
    protections: Iterable[protection_lib.Protection],
) -> list[mechanism_lib.RandomizedResponse]:
  """Returns the different mechanisms of the reports among `protections`."""
  # '0.81' and '0.810' are one mechanism.
  found = {}
  for protection in protections:
    if isinstance(protection, protection_lib.LabelReports):
      table = protection.mechanism
      found.setdefault((table.num_classes, table.other), table)
  return list(found.values())


def kind(noisy_sum: protection_lib.NoisySum) -> tuple[str, str]:
  """Returns what a noisy sum is accounted for by: mechanism, and how cohorts come about."""
  return noisy_sum.mechanism, noisy_sum.sampling


def without_sampling(protection: protection_lib.Protection) -> protection_lib.Protection:
  """Returns the protection where cohorts are no secret."""
  drawn = isinstance(protection, protection_lib.NoisySum) and (
      protection.sampling != protection_lib.CYCLIC
  )
  if drawn:
    return protection._replace(population=protection.cohort)
  return protection


def _gaussian(noisy_sum, times, distance=0.0):
  # Replacing a client moves the sum by up to 2 S, see `accountant.gaussian_epsilon`.
  poisson = noisy_sum.sampling == protection_lib.POISSON
  loss = accountant.GaussianLoss(2 / noisy_sum.noise_multiplier, noisy_sum.share, distance, poisson)
  return {loss: times}


def _discrete_gaussian(noisy_sum, times):
  return _gaussian(noisy_sum, times, discrete_gaussian.DISTANCE)


def _turns(noisy_sum, times, distance=0.0):
  loss = accountant.GaussianLoss(2 / noisy_sum.noise_multiplier, distance=distance)
  return {loss: protection_lib.full_rounds(noisy_sum, times)}


def _discrete_turns(noisy_sum, times):
  return _turns(noisy_sum, times, discrete_gaussian.DISTANCE)


# By `kind`, the losses of a noisy sum that was released so many times: one release each, and how
# often. What is not here is not composed with others, but added.
_LOSSES = {
    (protection_lib.GAUSSIAN, protection_lib.FIXED): _gaussian,
    (protection_lib.DISCRETE_GAUSSIAN, protection_lib.FIXED): _discrete_gaussian,
    (protection_lib.GAUSSIAN, protection_lib.POISSON): _gaussian,
    (protection_lib.GAUSSIAN, protection_lib.CYCLIC): _turns,
    (protection_lib.DISCRETE_GAUSSIAN, protection_lib.CYCLIC): _discrete_turns,
    (protection_lib.TREE, protection_lib.CYCLIC): _turns,
}
