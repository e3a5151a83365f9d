"""What the secure sum of flipped labels costs: epsilon for one who sees nothing but the sum.

The sum of one-hot reports is their histogram, which is what a shuffler shows: n reports without
their senders, n the number of labels, not of clients. The bounds therefore hold under conditions
this module cannot check:

* The secure sum is real, and n counts only labels of clients that do not collude with the server.
* The cohort is fixed and public. From the sums of two cohorts that differ in one client, the
  difference shows that client's reports, and only the local epsilon is left.
* Nothing else about the labels is released: model updates trained on them are.

A simulation has no secure aggregation, so the numbers are about the deployed form alone.

Guarantees are the upper bounds. The lower bounds say how much smaller they could be at best.
"""

import math
import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import stats

from tff_noise.privacy import accountant
from tff_noise.privacy import mechanism as mechanism_lib

# Points of the profile of one release that is composed.
_GRID = 200
# Numbers of uniform reports that one of them stands for: up to so many times as many, and of more
# than so many stretches the last for all.
_STRETCH = 1.08
_STRETCHES = 24

_Profile = Callable[[float], float]


class CentralEpsilon(NamedTuple):
  """Bounds of the epsilon of one sum.

  Attributes:
    upper: The guarantee, at most the local epsilon.
    lower: No proof can give less than this. Not a guarantee.
    delta: At which both hold.
  """

  upper: float
  lower: float
  delta: float


def _negligible(tail: float) -> float:
  """Returns a probability that is small beside `tail` and not 0."""
  return max(tail * accountant.SLACK, sys.float_info.min)


def _window(count: int, probability: float, tail: float) -> np.ndarray:
  """Returns the outcomes of a binomial, int64 `[O(sqrt count)]`, but for `tail` on either side."""
  # Bernstein: P(|X - mean| >= t) on one side is at most exp(-t^2 / (2 (variance + t / 3))).
  mean, level = count * probability, -math.log(tail)
  variance = mean * (1 - probability)
  reach = level / 3 + math.sqrt(level * level / 9 + 2 * variance * level)
  return np.arange(max(0, math.floor(mean - reach)), min(count, math.ceil(mean + reach)) + 1)


def _excess(count: np.ndarray, probability: float, threshold: np.ndarray) -> np.ndarray:
  """Returns E[(X - threshold)_+] for X ~ Bin(count, probability), elementwise."""
  first = np.floor(threshold) + 1
  mean = count * probability
  # E[X; X >= k] = mean P(X >= k) + mean (1 - p) P(X' = k - 1), X' of one trial less: nearly all
  # of the mean cancels before rounding could.
  boundary = stats.binom.pmf(first - 1, np.maximum(count - 1, 0), probability)
  with np.errstate(divide='ignore', over='ignore'):  # Far out, where it is 0.
    tail = stats.binom.sf(first - 1, count, probability)
  value = (mean - threshold) * tail + mean * (1 - probability) * boundary
  return np.where(count > 0, np.maximum(value, 0), 0)


def _blanket(
    mechanism: mechanism_lib.RandomizedResponse, num_labels: int, tail: float
) -> tuple[_Profile, float]:
  """Returns the privacy blanket's profile and a probability at which it does not hold.

  Balle, Bell, Gascon and Nissim 2019, lemma 5.3. A report is uniform with probability K b. With m
  the number of uniform reports, the replaced label's included, and h0, h1 how many of them are the
  old and the new label:
  delta(e) = E[K / m ((a - b) (h0 - e^e h1) + b m (1 - e^e))_+].
  The mean of m exchangeable terms is closer to its expectation the larger m, so the smallest m of a
  stretch stands for all of it; the m of the first is exceeded with probability 1 - `tail`.
  """
  uniform = mechanism.num_classes * mechanism.other_probability
  others = 0
  if num_labels > 1:
    with np.errstate(divide='ignore'):  # From a tail of 1e-300 on.
      others = max(0, int(stats.binom.ppf(tail, num_labels - 1, uniform)))
  fewer = float(stats.binom.cdf(others - 1, num_labels - 1, uniform)) if others > 0 else 0.0
  firsts = _stretches(others, num_labels - 1)
  # Where they are less likely than they are said to be, more is left to the stretches before.
  least_likely = stats.binom.sf(np.array(firsts[1:]) - 1, num_labels - 1, uniform)
  reached = np.array([1.0, *least_likely * (1 - accountant.SLACK), 0.0])
  parts = [
      (chance, _of_uniform_reports(mechanism, first + 1, tail))
      for first, chance in zip(firsts, reached[:-1] - reached[1:], strict=True) if chance > 0
  ]

  def profile(epsilon: float) -> float:
    return sum(chance * part(epsilon) for chance, part in parts) * (1 + accountant.SLACK)

  return profile, fewer * (1 + accountant.SLACK)


def _stretches(least: int, most: int) -> list[int]:
  """Returns with which numbers the stretches from `least` to `most` begin."""
  firsts = [least]
  while len(firsts) < _STRETCHES and firsts[-1] < most:
    firsts.append(min(most, max(firsts[-1] + 1, int(firsts[-1] * _STRETCH))))
  return firsts


def _of_uniform_reports(
    mechanism: mechanism_lib.RandomizedResponse, size: int, tail: float
) -> _Profile:
  """Returns the profile where m, the number of uniform reports, is `size`, see `_blanket`."""
  num_classes = mechanism.num_classes
  gap = (mechanism.keep - mechanism.other) / 2**62
  new = _window(size, 1 / num_classes, _negligible(tail))
  # The sum over what lies outside the window is at most K (a - b) times its probability.
  missing = 2 * num_classes * gap * _negligible(tail)
  weights = stats.binom.pmf(new, size, 1 / num_classes)
  floor = mechanism.other_probability * size / gap

  def profile(epsilon: float) -> float:
    threshold = math.exp(epsilon) * new + floor * math.expm1(epsilon)
    old = _excess(size - new, 1 / (num_classes - 1), threshold)
    total = num_classes * gap / size * float(weights @ old)
    return missing + total * (1 + accountant.SLACK)

  return profile


def _third_class(
    mechanism: mechanism_lib.RandomizedResponse, num_labels: int, delta: float
) -> _Profile:
  """Returns a profile below the true one: all other labels are of one third class.

  What is counted are the reports of the old label (h0), of the new one (h1) and the rest, merged
  into one. Merging is post-processing, hence less than the truth with 4 classes or more; with 3
  nothing is merged and the profile is that of these neighbours. With s = (K - 2) / (E + K - 3), E =
  a / b and (h0, h1) of n reports that are each label with probability b:
  delta(e) = E[(E h0 + h1 + s (n - h0 - h1) - e^e (h0 + E h1 + s (n - h0 - h1)))_+] / n.
  """
  b, num_classes = mechanism.other_probability, mechanism.num_classes
  ratio = mechanism.keep / mechanism.other
  rest = (num_classes - 2) / (ratio + num_classes - 3)
  new = _window(num_labels, b, _negligible(delta))
  weights = stats.binom.pmf(new, num_labels, b)

  def profile(epsilon: float) -> float:
    growth = math.exp(epsilon)
    per_old = ratio - rest - growth * (1 - rest)
    per_new = growth * (ratio - rest) - (1 - rest)
    threshold = (per_new * new + num_labels * rest * math.expm1(epsilon)) / per_old
    old = _excess(num_labels - new, b / (1 - b), threshold)
    return per_old / num_labels * float(weights @ old) * (1 - accountant.SLACK)

  return profile


def central_epsilon(
    mechanism: mechanism_lib.RandomizedResponse, num_labels: int, delta: float
) -> CentralEpsilon:
  """Returns bounds of the epsilon of one sum of flipped labels; neighbours replace one label.

  Args:
    mechanism: What flipped the labels.
    num_labels: n, how many honest labels are in the sum, at least 1.
    delta: In [0, 1). At 0 a sum is as bad as its reports: a histogram that only the replaced label
      could explain has the local ratio.

  Returns:
    The bounds. With 2 classes there is no third class for the lower one and it is 0.

  Raises:
    ValueError: If an argument is out of range.
  """
  accountant.check_count('num_labels', num_labels, 1)
  accountant.check_delta(delta, zero=True)
  local = accountant.randomized_response_epsilon(mechanism, 1, delta)
  if delta == 0:
    return CentralEpsilon(local, local, delta)
  blanket, fewer = _blanket(mechanism, num_labels, delta / 100)
  _, upper = accountant.solve(blanket, delta - fewer, local)
  lower = 0.0
  if mechanism.num_classes > 2:
    lower, _ = accountant.solve(_third_class(mechanism, num_labels, delta), delta, local)
  return CentralEpsilon(min(upper, local), lower, delta)


def composed_central_epsilon(
    mechanism: mechanism_lib.RandomizedResponse, num_labels: int, releases: int, delta: float
) -> float:
  """Returns an upper bound of the epsilon of several sums, each of freshly flipped labels.

  Whoever sees single reports, not their sums, has the local epsilon of that many releases.

  Args:
    mechanism: What flipped the labels, anew for each sum.
    num_labels: How many honest labels are in each sum, at least 1.
    releases: The most sums that any one label takes part in.
    delta: In [0, 1); 0 gives the basic composition of the reports.

  Raises:
    ValueError: If an argument is out of range.
  """
  accountant.check_count('num_labels', num_labels, 1)
  local = accountant.randomized_response_epsilon(mechanism, releases, delta)
  if delta == 0 or releases == 0:
    return local
  if releases == 1:
    return central_epsilon(mechanism, num_labels, delta).upper
  blanket, fewer = _blanket(mechanism, num_labels, delta / (100 * releases))
  # Above the last point a loss counts as infinite: it may cost little of delta.
  _, last = accountant.solve(blanket, delta * 1e-4 / releases, mechanism.actual_epsilon)
  last = min(last, mechanism.actual_epsilon)
  if last == 0:
    return 0.0
  interval = last / _GRID
  deltas = np.array([blanket(i * interval) for i in range(_GRID + 1)])
  if last == mechanism.actual_epsilon:
    deltas[-1] = 0  # What the blanket cannot show, but the mechanism has.
  composed = accountant.composed_epsilon(
      np.minimum(deltas, 1), interval, releases, delta - releases * fewer
  )
  return min(local, composed)
