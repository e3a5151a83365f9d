"""FedCorr's judgement of clients: a mixture of two Gaussians over their LID scores.

Plain NumPy and scikit-learn, at the server, between rounds.
"""

import warnings
from typing import NamedTuple

import numpy as np

from tff_noise import rng

# What FedCorr's guard asks for: more of the variance of an iteration's LID lies between clients
# than within them. How the scores of one iteration lie tells nothing: Ashman's D of 20 clients is
# 2.9 in the median without noise, and 2.5 to 3.7 with it (docs/comparisons.md).
MIN_RELIABILITY = 0.5
# And that it is not chance, which a few clients, or iterations of few of them, easily make it.
_MAX_P = 0.01
# Sums of squares below this share of the numbers' own are of their last bits.
_ROUNDING = 1e-20

SCORES = ('centred', 'mean', 'cumulative')


class Split(NamedTuple):
  """Clients in two parts.

  Attributes:
    noisy: bool `[C]`, the part with the larger scores; clients without a score are not in it.
    separation: Ashman's D of the two Gaussians, `|m1 - m2| / sqrt((s1^2 + s2^2) / 2)`; 0 where
      nothing was split. Under 2, a mixture of two equal Gaussians has one peak.
  """

  noisy: np.ndarray
  separation: float


def client_scores(lid: np.ndarray, rule: str) -> np.ndarray:
  """Makes one score a client of its LID in each iteration.

  The paper sums them (section 3.2), which makes late clients look clean, as its conclusion says.
  With everybody there all the time the three rules differ by a factor or a constant, so the
  mixture splits the same way.

  Args:
    lid: float64 `[T, C]`, nan where a client did not take part.
    rule: 'cumulative', the paper's sum; 'mean', over the iterations a client took part in; or
      'centred', the mean of what a client's LID differs from the median of those who took part in
      the same iteration: LID falls and rises as training goes on, so the mean of a late client is
      not comparable with that of an early one.

  Returns:
    float64 `[C]`; nan for a client that never took part, 0 under 'cumulative'.
  """
  if rule == 'cumulative':
    return np.nansum(lid, axis=0)
  if rule == 'centred':
    lid = lid - _quiet(np.nanmedian, lid, axis=1, keepdims=True)
  return _quiet(np.nanmean, lid, axis=0)


def _quiet(function, *args, **kwargs):
  """NumPy warns about the mean of nothing, which is nan as it should be."""
  with warnings.catch_warnings():
    warnings.simplefilter('ignore', RuntimeWarning)
    return function(*args, **kwargs)


class Agreement(NamedTuple):
  """How far iterations agree on which clients have the larger LID.

  Attributes:
    reliability: Which share of the variance of an iteration's LID lies between clients, at most 1:
      the intraclass correlation of single measurements. nan where it cannot be told: from one
      iteration.
    p: Of the F test that there are no differences between clients; nan likewise.
  """

  reliability: float
  p: float

  @property
  def holds(self) -> bool:
    """Whether noisy clients are to be looked for."""
    return bool(self.reliability > MIN_RELIABILITY and self.p < _MAX_P)


def agreement(lid: np.ndarray) -> Agreement:
  """Compares the variance between clients with that between iterations.

  In a two-way layout with cells that may be missing, `lid = iteration + client + rest`, by least
  squares; the variance between clients by Henderson's third method (Biometrics 1953). Without noisy
  clients LID differs from client to client as well, but hardly in the same way from iteration to
  iteration, as long as clients have examples enough. How many iterations there were does not
  matter; that labels stay as they were given does: a corrected client has another LID.

  Args:
    lid: float64 `[T, C]`, nan where a client did not take part.
  """
  at, who = np.nonzero(np.isfinite(lid))
  found = lid[at, who]
  at, who = (np.unique(numbers, return_inverse=True)[1] for numbers in (at, who))
  iterations, clients = (int(numbers.max(initial=-1)) + 1 for numbers in (at, who))
  if clients < 2:
    return Agreement(np.nan, np.nan)
  # Of the rest and of each iteration but one, what clients do not explain.
  others = np.eye(iterations)[1:, at]
  design = np.array([_less_means(column, who) for column in others]).reshape(others.shape).T
  residual = _less_means(found, who)
  solution, _, rank, _ = np.linalg.lstsq(design, residual, rcond=None)
  residual = residual - design @ solution
  freedom = len(found) - clients - rank
  if freedom <= 0:
    return Agreement(np.nan, np.nan)
  from scipy import stats  # Takes a second: only where it is used.

  within = np.sum(residual**2) / freedom
  # What clients explain beyond iterations, whose expectation is `more within + (N - T) between`.
  more = clients + rank - iterations
  among = np.sum(_less_means(found, at) ** 2) - np.sum(residual**2)
  between = (among - more * within) / (len(found) - iterations)
  nothing = _ROUNDING * np.sum(found**2)
  if more < 1 or max(among, np.sum(residual**2)) <= nothing or not between + within > 0:
    return Agreement(np.nan, np.nan)
  ratio = among / more / within if within > 0 else np.inf
  return Agreement(float(between / (between + within)), float(stats.f.sf(ratio, more, freedom)))


def _less_means(values, group):
  """Returns `values`, `[n]`, less the means of their groups, whose numbers from 0 have no gap."""
  return values - (np.bincount(group, values) / np.bincount(group))[group]


def fit(scores: np.ndarray, seed: int):
  """Fits the mixture of two Gaussians that `split` looks at.

  Args:
    scores: float64 `[C]`, nan for clients that are not judged.
    seed: Of the mixture's k-means start.

  Returns:
    The fitted `sklearn.mixture.GaussianMixture`; None for fewer than three different scores.
  """
  from sklearn import mixture  # Takes a second: only where it is used.

  x = scores[np.isfinite(scores)][:, np.newaxis]
  if len(np.unique(x)) < 3:
    return None
  return mixture.GaussianMixture(2, random_state=seed).fit(x)


def split(scores: np.ndarray, seed: int) -> Split:
  """Splits clients by a mixture of two Gaussians over their scores (section 3.2).

  Args:
    scores: float64 `[C]`, nan for clients that are not judged. Fewer than three different ones are
      not split.
    seed: Of the mixture's k-means start.
  """
  noisy = np.zeros(len(scores), bool)
  judged = np.flatnonzero(np.isfinite(scores))
  mixture = fit(scores, seed)
  if mixture is None:
    return Split(noisy, 0.0)
  means, variances = mixture.means_[:, 0], mixture.covariances_[:, 0, 0]
  noisy[judged] = mixture.predict(scores[judged][:, np.newaxis]) == np.argmax(means)
  return Split(noisy, float(abs(means[0] - means[1]) / np.sqrt(variances.mean())))


def mixture_seed(seed: int, iteration: int) -> int:
  """Returns the seed of the mixture over clients at the end of an iteration, 0 the first."""
  return rng.integer(seed, 'fedcorr mixture', iteration)
