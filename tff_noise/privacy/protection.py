"""What protects the values that leave a client, and what that costs.

A guarantee is about a unit, what two neighbouring data sets differ in. The units are nested, from
fine to coarse: a guarantee for a client holds for its examples and their labels too, never the
other way round. Epsilons of different units are never added.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tff_noise import types
from tff_noise.privacy import accountant
from tff_noise.privacy import cyclic
from tff_noise.privacy import mechanism as mechanism_lib
from tff_noise.privacy import noise_key
from tff_noise.privacy import tree


class Unit(enum.Enum):
  """What two neighbours differ in: one is replaced by another, and all numbers stay.

  Where cohorts are Poisson samples, a client is added or removed instead; see `neighbours`.
  """

  LABEL = 'the label of one example'
  EXAMPLE = 'one example'
  CLIENT = 'one client'


class Status(enum.Enum):
  """How far a guarantee goes: proved, given a pseudorandom function; on conditions; not at all."""

  PROVED = 'proved'
  CONDITIONAL = 'conditional'
  NONE = 'none'


class Counts(NamedTuple):
  """Numbers of examples, which replacing an example or its label does not change.

  Not of those whose training went well: that depends on what they are.
  """


class LabelReports(NamedTuple):
  """Depends on labels through one memoised report of randomised response for each example alone.

  Whatever is computed from the same reports is post-processing and costs nothing more.

  Attributes:
    num_classes: K.
    epsilon: The claimed epsilon, as written.
    num_labels: How many reports of one cohort a secure sum hides each in; 0 where there is none.
  """

  num_classes: int
  epsilon: str
  num_labels: int = 0

  @property
  def mechanism(self) -> mechanism_lib.RandomizedResponse:
    """What flips the labels."""
    return mechanism_lib.randomized_response(self.epsilon, self.num_classes)


# Mechanisms of `NoisySum`.
GAUSSIAN, DISCRETE_GAUSSIAN, TREE = 'gaussian', 'discrete_gaussian', 'tree'
# How the cohorts of `NoisySum` come about.
FIXED, POISSON, CYCLIC = 'fixed', 'poisson', 'cyclic'


class NoisySum(NamedTuple):
  """The sum of the clients' vectors, each cut to norm S, with noise: DP-FedAvg.

  Attributes:
    noise_multiplier: Standard deviation of the noise over S; of a tree, on each node.
    clip: S, the L2 norm.
    cohort: Clients in a round, or how many are expected in a Poisson sample.
    population: Clients among whom the server draws the cohort, uniformly and secretly; equal to
      `cohort` where the draw gives no protection. All clients, where they have turns.
    reports: What the vectors depend on labels through, where that is reports alone.
    mechanism: GAUSSIAN, in floating point, added by the server; DISCRETE_GAUSSIAN, in integers, of
      which each client of the cohort adds an equal share; or TREE, the former on the nodes of
      `privacy.tree` in place of the sums.
    noise_source: Of `noise_key.SOURCES`.
    sampling: FIXED, a cohort of this size is drawn in each round; POISSON, every client is in it
      with probability `share` by itself; or CYCLIC, clients have turns in a public order, see
      `privacy.cyclic`.
  """

  noise_multiplier: float
  clip: float
  cohort: int
  population: int
  reports: LabelReports | None = None
  mechanism: str = GAUSSIAN
  noise_source: str = 'seed'
  sampling: str = FIXED

  @property
  def share(self) -> float:
    """The probability with which a client is in a cohort."""
    return self.cohort / self.population


Protection = Counts | LabelReports | NoisySum | None

_KINDS = {'counts': Counts, 'label reports': LabelReports, 'noisy sum': NoisySum}
# The types of protections.
KINDS = (*_KINDS.values(), type(None))


class Cost(NamedTuple):
  """What releases cost a unit.

  Attributes:
    epsilon: Infinite without a guarantee.
    delta: 0 for a pure guarantee.
    status: How far it goes.
  """

  epsilon: float
  delta: float
  status: Status


_FREE = Cost(0.0, 0.0, Status.PROVED)
_UNBOUNDED = Cost(math.inf, 0.0, Status.NONE)


def with_reports(protection: Protection, reports: LabelReports) -> Protection:
  """Returns the protection of a value that is computed from reports in place of labels."""
  if protection is None:
    return reports
  return protection._replace(reports=reports) if isinstance(protection, NoisySum) else protection


def own_unit(protection: Protection) -> Unit:
  """Returns the coarsest unit that a protection is about."""
  if isinstance(protection, NoisySum):
    return Unit.CLIENT
  if isinstance(protection, Counts):
    return Unit.EXAMPLE
  return Unit.LABEL


_EPSILON = {
    GAUSSIAN: accountant.gaussian_epsilon,
    DISCRETE_GAUSSIAN: accountant.discrete_gaussian_epsilon,
    TREE: accountant.gaussian_epsilon,
}


def with_clients(protection: Protection, clients: int) -> Protection:
  """Returns the protection of a release that `clients` took part in.

  Shares of the noise that are missing leave less than was declared, which nothing is claimed for.
  """
  if isinstance(protection, NoisySum) and protection.mechanism == DISCRETE_GAUSSIAN:
    return protection if clients >= protection.cohort else None
  return protection


def in_rounds(protection: Protection, rounds: Sequence[int]) -> Protection:
  """Returns the protection of releases in these rounds, 1 the run's first.

  Turns are counted from the first round on, one release in each: of others nothing is claimed but
  what reports give.
  """
  if not isinstance(protection, NoisySum) or protection.sampling != CYCLIC:
    return protection
  return protection if list(rounds) == list(range(1, len(rounds) + 1)) else protection.reports


def full_rounds(noisy_sum: NoisySum, times: int) -> int:
  """Returns how many rounds of all clients cost as much as `times` in which clients have turns."""
  population, cohort = noisy_sum.population, noisy_sum.cohort
  if noisy_sum.mechanism == TREE:
    return tree.squared_sensitivity(population, cohort, times)
  return int(cyclic.participations(population, cohort, times).max())


def cost(
    protection: Protection, times: int, unit: Unit, delta: float, codes: int = 1
) -> Cost:
  """Returns what `times` releases cost each unit.

  Args:
    protection: What all of them are protected by.
    times: How often values were released, at least 0; where clients have turns, in the first
      rounds, once in each.
    unit: What the epsilon is about.
    delta: Of a Gaussian mechanism, in (0, 1).
    codes: How many codes made them. Nothing bounds reports by several: other code may flip labels
      otherwise, by the same random number.
  """
  if times == 0:
    return _FREE
  protection = for_unit(protection, unit, codes)
  if protection is None:
    return _UNBOUNDED
  if isinstance(protection, Counts):
    return _FREE
  if isinstance(protection, LabelReports):
    if codes > 1:
      return _UNBOUNDED
    return Cost(protection.mechanism.actual_epsilon, 0.0, Status.PROVED)
  if protection.mechanism == TREE and protection.sampling != CYCLIC:
    return _UNBOUNDED  # Nobody knows how often a client takes part in the rounds of a node.
  if protection.sampling == POISSON:
    # A client that is replaced, as for smaller units, is one removed and one added.
    added = unit is Unit.CLIENT
    account = accountant.poisson_gaussian_epsilon if added else accountant.poisson_replaced_epsilon
    epsilon = account(protection.noise_multiplier, protection.share, times, delta)
    return Cost(epsilon, delta, Status.CONDITIONAL)
  population, cohort, rounds = protection.population, protection.cohort, times
  if protection.sampling == CYCLIC:
    population, rounds = cohort, full_rounds(protection, times)
  epsilon = _EPSILON[protection.mechanism](
      protection.noise_multiplier, population=population, cohort=cohort, rounds=rounds, delta=delta
  )
  return Cost(epsilon, delta, Status.CONDITIONAL)


def is_poisson(protection: Protection) -> bool:
  """Returns whether a protection counts on cohorts that are Poisson samples."""
  return isinstance(protection, NoisySum) and protection.sampling == POISSON


def neighbours(protections: Iterable[Protection], unit: Unit) -> str:
  """Returns what neighbours are whose unit is so protected: 'replaced', or 'added or removed'."""
  added = unit is Unit.CLIENT and any(map(is_poisson, protections))
  return 'added or removed' if added else 'replaced'


def for_unit(protection: Protection, unit: Unit, codes: int = 1) -> Protection:
  """Returns what protects a unit: labels their reports, where there are such; None if nothing.

  Reports to several codes protect nothing, see `cost`: then it is the noise on the sum, if any.
  """
  reported = unit is Unit.LABEL and isinstance(protection, NoisySum) and protection.reports
  if reported and codes == 1:
    return protection.reports
  covered = list(Unit).index(unit) <= list(Unit).index(own_unit(protection))
  return protection if covered else None


def total(times: Mapping[Protection, int], unit: Unit, delta: float, codes: int = 1) -> Cost:
  """Returns what all releases together cost each unit, by basic composition of the mechanisms.

  Reports of one mechanism are the same reports wherever they are used, and count once for each
  code.

  Args:
    times: How often values were released under each protection.
    unit: What the epsilon is about.
    delta: Of all Gaussian mechanisms together, in (0, 1).
    codes: How many codes made the releases, see `cost`.
  """
  made = [(for_unit(p, unit, codes), n) for p, n in times.items() if n]
  # '0.81' and '0.810' are one mechanism, and so the same reports.
  distinct = {
      (p.mechanism.num_classes, p.mechanism.other) if isinstance(p, LabelReports) else p: (p, n)
      for p, n in made
  }
  gaussian = sum(isinstance(p, NoisySum) for p, _ in distinct.values())
  costs = [cost(p, n, unit, delta / max(gaussian, 1), codes) for p, n in distinct.values()]
  status = max((c.status for c in costs), key=list(Status).index, default=Status.PROVED)
  if status is Status.NONE:
    return _UNBOUNDED
  return Cost(math.fsum(c.epsilon for c in costs), math.fsum(c.delta for c in costs), status)


class Description(NamedTuple):
  """A protection in plain words.

  Attributes:
    mechanism: What it is.
    accounting: How repeated releases add up, and on what conditions.
  """

  mechanism: str
  accounting: str


def describe(protection: Protection) -> Description:
  """Returns a protection in plain words."""
  if protection is None:
    return Description('none: computed from the true local data', 'no finite epsilon')
  if isinstance(protection, Counts):
    return Description(
        'none needed: does not depend on labels or on what an example is', 'costs nothing'
    )
  if isinstance(protection, LabelReports):
    mechanism = protection.mechanism
    return Description(
        f'K-ary randomised response, K={mechanism.num_classes}, claimed epsilon '
        f'{mechanism.epsilon}, keeps a label with probability {mechanism.keep_probability:.6f}',
        'one memoised report for each example and code, whatever its later label and however often '
        'used; '
        'given a pseudorandom function, whose key stays with the client',
    )
  on = 'their sum'
  if protection.mechanism == TREE:
    on = (
        'each node of a binary tree of their sums over rounds, of which the sums over all rounds '
        'so far are made'
    )
  return Description(
      f'updates cut to norm {protection.clip:g}, {_NOISE[protection.mechanism]} of '
      f'{protection.noise_multiplier:g} times that norm on {on}; '
      f'{_SOURCE[protection.noise_source]}',
      f'{_accounting(protection)}{_CAVEAT[protection.mechanism]}',
  )


def _accounting(protection):
  """How a noisy sum adds up over rounds, and what neighbours are."""
  if protection.sampling == POISSON:
    return (
        f'exact composition for Poisson samples: each of {protection.population} clients takes '
        f'part in a round with probability {protection.share:g} by itself, and neither who does '
        'nor how many do is known (ledger.jsonl and metrics.csv have how many; with '
        f'{_COHORTS[protection.noise_source]} cohorts can be drawn again); adding or removing one '
        'client. An example or a label is replaced, which is accounted for as replacing a client'
    )
  if protection.sampling == CYCLIC:
    composed = 'the rounds'
    if protection.mechanism == TREE:
      composed = 'the nodes of the tree, by the rounds of each'
    return (
        f'exact composition of {composed} that one client takes part in; cohorts of '
        f'{protection.cohort} have turns in a public order of {protection.population} clients; '
        'without amplification by sampling; replacing one client'
    )
  if protection.population > protection.cohort:
    return (
        f'exact composition for a fixed cohort of {protection.cohort}, drawn uniformly without '
        f'replacement from {protection.population} clients and kept secret, as '
        f'{_COHORTS[protection.noise_source]}, which they follow from, has to be; replacing one '
        'client'
    )
  return 'composition without amplification by sampling; replacing one client'


_NOISE = {
    GAUSSIAN: 'Gaussian noise in floating point, added by the server,',
    DISCRETE_GAUSSIAN: 'discrete Gaussian noise in integers, an equal share added by each client,',
    TREE: 'Gaussian noise in floating point, added by the server,',
}
# What cohorts are drawn by.
_COHORTS = {'seed': '--seed', 'system': 'noise.key'}
_SOURCE = {
    'seed': 'drawn from the seed, with which it can be subtracted',
    'system': 'drawn from a key of the system, with which it can be subtracted',
}
_FLOATING_POINT = (
    '. It is about noise in real numbers, which this is not: the noise of a run is in floating '
    'point, bounded and on a grid, and the epsilon does not hold for it as it stands'
)
_CAVEAT = {
    GAUSSIAN: _FLOATING_POINT,
    TREE: _FLOATING_POINT,
    DISCRETE_GAUSSIAN: (
        '. Given a pseudorandom function, it holds for one who sees the sum alone and none of the '
        'shares, each of which has to be in it: clients that work together with the observer, or '
        'drop out, take theirs away'
    ),
}


def to_json(protection: Protection) -> Mapping[str, Any] | None:
  """Returns what `from_json` reads."""
  if protection is None:
    return None
  [kind] = [name for name, cls in _KINDS.items() if isinstance(protection, cls)]
  content = {'kind': kind, **protection._asdict()}
  if isinstance(protection, NoisySum):
    content['reports'] = to_json(protection.reports)
    if protection.sampling == FIXED:
      # As earlier versions write it, which noise is keyed by.
      del content['sampling']
  return content


def from_json(content: Mapping[str, Any] | None) -> Protection:
  """Returns the protection that `to_json` wrote.

  Raises:
    ValueError: If it is none.
  """
  if content is None:
    return None
  try:
    values = dict(content)
    if 'reports' in values:
      values['reports'] = from_json(values['reports'])
    found = _KINDS[values.pop('kind')](**values)
  except (KeyError, TypeError, ValueError) as error:
    raise ValueError(f'not a protection: {content!r}') from error
  if not _IS_SOUND[type(found)](found):
    raise ValueError(f'not a protection: {content!r}')
  return found


def _are_sound_reports(reports):
  try:
    return _is_count(reports.num_labels) and reports.mechanism is not None
  except types.UsageError:
    return False


def _is_sound_sum(noisy_sum):
  numbers = (noisy_sum.noise_multiplier, noisy_sum.clip)
  sizes = (noisy_sum.cohort, noisy_sum.population)
  return (
      all(type(n) in (int, float) and 0 < n < math.inf for n in numbers)
      and all(map(_is_count, sizes)) and 0 < noisy_sum.cohort <= noisy_sum.population
      and (noisy_sum.reports is None or isinstance(noisy_sum.reports, LabelReports))
      and noisy_sum.mechanism in _EPSILON
      and noisy_sum.noise_source in noise_key.SOURCES
      and noisy_sum.sampling in (FIXED, POISSON, CYCLIC)
  )


def _is_count(value):
  return type(value) is int and value >= 0


_IS_SOUND = {Counts: lambda _: True, LabelReports: _are_sound_reports, NoisySum: _is_sound_sum}
