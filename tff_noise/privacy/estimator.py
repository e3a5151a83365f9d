"""The server's estimate of the label distribution from the summed, flipped histogram.

FedDPCont, algorithm 1, line 9: p_hat = (T_DP^T)^-1 p_check. With a the keep probability and b that
of each other label this is p_hat_k = (h_k / N - b) / (a - b). It sums to 1, is unbiased, and may be
negative: in a small federation, or for an absent class, about half the time.

Everything here is post-processing of a differentially private output and costs no privacy.
"""

from typing import NamedTuple

import numpy as np

from tff_noise.privacy import mechanism as mechanism_lib

# Below this share of its signal a prior is almost uniform.
FAINT_SIGNAL = 0.1
PRIORS = ('shrinkage', 'projected', 'inverse', 'none')


class LabelEstimate(NamedTuple):
  """An estimated label distribution.

  Attributes:
    prior: float64 `[K]` on the simplex, what clients draw contrastive labels from.
    raw: float64 `[K]`, the plain inverse p_hat; sums to 1, entries may be negative.
    standard_error: float64 `[K]`, of `raw`; 0 for 'none'. Projecting never increases the
      distance to the truth, and shrinking is meant to decrease it: on the safe side for both.
    signal: The share of the estimate that 'shrinkage' keeps, in [0, 1]; 1 for the others.
    informative: Whether the largest standard error is below 1 / K, the size of what is estimated.
      If not, the estimate says nothing, whatever the accuracy of the run.
    num_labels: N.
  """

  prior: np.ndarray
  raw: np.ndarray
  standard_error: np.ndarray
  signal: float
  informative: bool
  num_labels: int


def project_simplex(values: np.ndarray) -> np.ndarray:
  """Returns the nearest point of the probability simplex, float64 `[K]` (Duchi et al. 2008)."""
  ordered = np.sort(values)[::-1]
  excess = np.cumsum(ordered) - 1
  rank = np.arange(1, len(values) + 1)
  count = np.flatnonzero(ordered > excess / rank)[-1] + 1
  return np.maximum(values - excess[count - 1] / count, 0)


def inverse(
    histogram: np.ndarray, mechanism: mechanism_lib.RandomizedResponse
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the plain inverse and its standard error, both float64 `[K]`.

  The labels are fixed and only the flips are random:
  Var_k = [pi_k a (1 - a) + (1 - pi_k) b (1 - b)] / (N (a - b)^2), with the estimate for pi.

  Args:
    histogram: int `[K]`, counts of flipped labels with a positive sum.
    mechanism: The mechanism that flipped them.
  """
  a, b = mechanism.keep_probability, mechanism.other_probability
  total = histogram.sum()
  raw = (histogram / total - b) / (a - b)
  share = np.clip(raw, 0, 1)
  variance = (share * a * (1 - a) + (1 - share) * b * (1 - b)) / (total * (a - b) ** 2)
  return raw, np.sqrt(variance)


def estimate(
    histogram: np.ndarray,
    prior: str,
    mechanism: mechanism_lib.RandomizedResponse | None,
    *,
    num_labels: int | None = None,
) -> LabelEstimate:
  """Estimates the distribution of the clients' labels.

  'inverse' is the paper's. A distribution to draw from cannot be negative and the paper does not
  say what to do, so negative entries are cut to 0 and the rest is scaled to sum 1. 'projected'
  takes the nearest distribution. 'shrinkage' moves the inverse towards uniform by its own
  signal-to-noise, s = max(0, 1 - sum_k Var_k / sum_k (p_hat_k - 1/K)^2), the positive-part
  James-Stein factor, and projects. 'none' takes the counts as they are.

  Args:
    histogram: int `[K]`, summed over clients; flipped labels, unless `prior` is 'none'.
    prior: One of `PRIORS`.
    mechanism: What flipped the labels; None with 'none' alone.
    num_labels: N, where it is known beforehand.

  Raises:
    ValueError: If the histogram has a negative count or no counts at all or does not fit the
      mechanism or N, or `prior` is unknown.
  """
  histogram = np.asarray(histogram)
  if not np.issubdtype(histogram.dtype, np.integer) or (histogram < 0).any() or not histogram.sum():
    raise ValueError(f'expected non-negative whole counts with a positive sum, found {histogram}')
  if num_labels is not None and histogram.sum() != num_labels:
    raise ValueError(f'expected {num_labels} labels, found {histogram.sum()}')
  if prior not in PRIORS:
    raise ValueError(f'unknown prior {prior!r}, expected one of {", ".join(PRIORS)}')
  num_classes, total = len(histogram), int(histogram.sum())
  if prior == 'none':
    exact = histogram / total
    return LabelEstimate(exact, exact, np.zeros(num_classes), 1.0, True, total)
  if mechanism is None or mechanism.num_classes != num_classes:
    raise ValueError(f'expected a mechanism for {num_classes} classes, found {mechanism}')

  uniform = np.full(num_classes, 1 / num_classes)
  raw, error = inverse(histogram, mechanism)
  signal = 1.0
  if prior == 'inverse':
    positive = np.maximum(raw, 0)
    final = positive / positive.sum()
  elif prior == 'projected':
    final = project_simplex(raw)
  else:
    spread = float(((raw - uniform) ** 2).sum())
    noise = float((error**2).sum())
    signal = max(0.0, 1 - noise / spread) if spread > 0 else 0.0
    final = project_simplex(uniform + signal * (raw - uniform))
  informative = bool(error.max() < 1 / num_classes)
  return LabelEstimate(final, raw, error, signal, informative, total)
