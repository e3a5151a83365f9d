"""A mechanism as a black box: asking it, and what a test of it says."""

import enum
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import special
from scipy import stats

# What is audited: `report(labels int32 [n], example_ids int64 [n], client) -> int32 [n]`, labels
# and reports in [0, K), ids distinct. It may draw anew each time or remember.
Mechanism = Callable[[np.ndarray, np.ndarray, int], np.ndarray]


class Verdict(enum.Enum):
  """What a test says.

  PASSED: no violation was found, although a mechanism without noise (or, for independence and
    memoisation, one that repeats or changes its draws) would have been noticed. Not a proof.
  FAILED: a violation was found, or the mechanism did not answer.
  NO_EVIDENCE: there were no or too few samples to notice anything. Not a pass.
  """

  PASSED = 'passed'
  FAILED = 'failed'
  NO_EVIDENCE = 'no evidence'


class Finding(NamedTuple):
  """The result of one test.

  Attributes:
    name: The test.
    verdict: What it says.
    detail: What was seen, in one line.
    value: The number found; NaN without samples, or if the mechanism did not answer.
    claim: What `value` was held against, NaN where `value` is; the tests say what both are.
  """

  name: str
  verdict: Verdict
  detail: str
  value: float
  claim: float


# What a test finds, without its name: verdict, detail, value, claim.
Found = tuple[Verdict, str, float, float]


class NoAnswer(Exception):
  """The mechanism raised, or returned what cannot be reports."""


def check(alpha: float, **counts: int) -> None:
  """Raises ValueError unless alpha is in (0, 1) and every count a whole number of at least 0."""
  if not 0 < alpha < 1:
    raise ValueError(f'alpha must be between 0 and 1, got {alpha!r}')
  for name, count in counts.items():
    if not isinstance(count, (int, np.integer)) or count < 0:
      raise ValueError(f'{name} must be a whole number of at least 0, got {count!r}')


def finding(name: str):
  """Decorates a test: `FAILED` if the mechanism does not answer, under the test's name."""

  def decorate(test):
    @functools.wraps(test)
    def guarded(*args, **kwargs) -> Finding:
      try:
        return Finding(name, *test(*args, **kwargs))
      except NoAnswer as e:
        return Finding(name, Verdict.FAILED, str(e), math.nan, math.nan)

    return guarded

  return decorate


def nothing(detail: str) -> Found:
  """Returns what a test without samples finds."""
  return Verdict.NO_EVIDENCE, detail, math.nan, math.nan


def ask(
    report: Mechanism, num_classes: int, labels: np.ndarray, ids: np.ndarray, client: int
) -> np.ndarray:
  """Returns the reports of one client, int64 `[n]` in `[0, num_classes)`; raises `NoAnswer`."""
  try:
    # Copies: a mechanism that flips in place must not change what the next question asks.
    reports = np.asarray(report(labels.astype(np.int32), ids.astype(np.int64), client))
  except Exception as e:
    raise NoAnswer(f'the mechanism raised {type(e).__name__}: {e}') from e
  if reports.shape != labels.shape or not np.issubdtype(reports.dtype, np.integer):
    raise NoAnswer(
        f'expected {len(labels)} whole reports, found {reports.dtype} of shape {reports.shape}'
    )
  if len(reports) and (reports.min() < 0 or reports.max() >= num_classes):
    raise NoAnswer(
        f'reports must be in 0 to {num_classes - 1}, found {reports.min()} to {reports.max()}'
    )
  return reports.astype(np.int64)


def two_sided(successes, trials, probability):
  """Returns the p-value of the exact binomial test, twice the smaller tail; broadcasts."""
  lower = stats.binom.cdf(successes, trials, probability)
  upper = stats.binom.sf(np.asarray(successes) - 1, trials, probability)
  return np.minimum(1, 2 * np.minimum(lower, upper))


def log_two_sided_bound(successes, trials, probability) -> np.ndarray:
  """Returns the logarithm of a bound from above of the p-value of `two_sided`; broadcasts.

  Chernoff's 2 exp(-n KL(k / n || p)): valid for every n, and cheap for millions of counts.
  """
  successes, trials, probability = map(np.asarray, (successes, trials, probability))
  # n KL(k / n || p) = k ln(k / (n p)) + (n - k) ln((n - k) / (n (1 - p))).
  divergence = special.rel_entr(successes, trials * probability) + special.rel_entr(
      trials - successes, trials * (1 - probability)
  )
  return np.minimum(0, math.log(2) - divergence)
