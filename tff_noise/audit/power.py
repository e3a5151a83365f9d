"""What the audit of a mechanism notices, with what probability, at what budget.

Computed for `declared_table.keep_rate` alone, exactly: the whole audit notices no less. An error
shows there by how much it moves the rate at which labels are kept.
"""

import numpy as np
from scipy import stats

from tff_noise.audit import empirical_audit
from tff_noise.audit import queries
from tff_noise.privacy import mechanism as mechanism_lib


def probability_noticed(
    claimed: mechanism_lib.RandomizedResponse, keep: float, trials: int, alpha: float
) -> float:
  """Returns the probability that `keep_rate` of `audit` fails a mechanism.

  Args:
    claimed: What is declared.
    keep: The probability with which a label is really kept, independently, in [0, 1].
    trials: The budget of `audit`, at least 1.
    alpha: The level of `audit`, in (0, 1).

  Returns:
    The probability of the test's critical region, exact, for the 600 * trials reports that are
    always asked for; small calls add some 2 %.
  """
  reports = queries.REPORTS * trials
  # The p-value is twice the smaller tail.
  level = alpha * empirical_audit.KEEP_RATE_SHARE / 2
  declared = stats.binom(reports, claimed.keep_probability)
  # The most and the fewest kept labels whose tail is at most the level.
  low, high = int(declared.ppf(level)), int(declared.isf(level))
  low -= declared.cdf(low) > level
  high += declared.sf(high - 1) > level
  real = stats.binom(reports, keep)
  return float(real.cdf(low) + real.sf(high - 1))


def keep_of(epsilon: float, num_classes: int) -> float:
  """Returns the probability with which randomised response of an epsilon keeps a label."""
  # e^epsilon / (e^epsilon + K - 1), without overflow.
  return 1 / (1 + (num_classes - 1) * np.exp(-epsilon))


def rare_event_keep(claimed: mechanism_lib.RandomizedResponse, rate: float) -> float:
  """Returns how often a label is kept if reports are the true label with probability `rate`."""
  return claimed.keep_probability + rate * (1 - claimed.keep_probability)


def smallest_noticed(
    claimed: mechanism_lib.RandomizedResponse, trials: int, alpha: float, probability: float
) -> tuple[float, float]:
  """Returns the smallest error of epsilon, and rate of true labels, noticed with a probability.

  Args:
    claimed: What is declared.
    trials: The budget of `audit`, at least 1.
    alpha: The level of `audit`, in (0, 1).
    probability: With which they are noticed, in (alpha, 1).

  Returns:
    By how much the real epsilon is above the declared one, and the share of reports that are the
    true label whatever the draw; infinity and 1 if the largest is not noticed.
  """
  claim = claimed.actual_epsilon

  def smallest(largest, keep):
    if probability_noticed(claimed, keep(largest), trials, alpha) < probability:
      return None
    low, high = 0.0, largest
    for _ in range(50):
      middle = (low + high) / 2
      if probability_noticed(claimed, keep(middle), trials, alpha) < probability:
        low = middle
      else:
        high = middle
    return high

  error = smallest(40.0, lambda e: keep_of(claim + e, claimed.num_classes))
  rate = smallest(1.0, lambda r: rare_event_keep(claimed, r))
  return (np.inf if error is None else error), (1.0 if rate is None else rate)
