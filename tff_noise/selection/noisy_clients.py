"""FedCorr's judgement of clients: a mixture of two Gaussians over their LID scores.

Plain NumPy and scikit-learn, at the server, between rounds.
"""

import warnings
from typing import NamedTuple

import numpy as np

from tff_noise import rng

# Ashman's D: under 2, a mixture of two equal Gaussians has one peak.
MIN_SEPARATION = 2.0
# Kass and Raftery (1995) call a difference of the BIC above 2 positive evidence.
MIN_EVIDENCE = 2.0
# Of 20 clients with 70 digits each, after 2 to 5 iterations: at most 0.53 in 24 runs without noise,
# 0.59 in 6 without noise where clients held different classes, 0.64 in 6 with noisy clients alone;
# from the third iteration on above 0.7 in 35 of 36 with both kinds. Others may lie elsewhere.
MIN_RELIABILITY = 0.65

SCORES = ('centred', 'mean', 'cumulative')


class Split(NamedTuple):
  """Clients in two parts.

  Attributes:
    noisy: bool `[C]`, the part with the larger scores; clients without a score are not in it.
    separated: Whether the two parts stand apart; without it, nobody is noisy.
    separation: Ashman's D of the two Gaussians, `|m1 - m2| / sqrt((s1^2 + s2^2) / 2)`.
    evidence: BIC of one Gaussian minus BIC of two.
    reliability: Of the scores, see `score_reliability`.
  """

  noisy: np.ndarray
  separated: bool
  separation: float
  evidence: float
  reliability: float


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


def score_reliability(lid: np.ndarray) -> float:
  """Returns which share of the variance of an iteration's LID lies between clients, at most 1.

  The intraclass correlation of single measurements, after the iterations' own means are taken out.
  Without noisy clients LID differs from client to client, but not in the same way from iteration to
  iteration; how many iterations there were does not matter.

  Args:
    lid: float64 `[T, C]`, nan where a client did not take part.

  Returns:
    nan where it cannot be told: from one iteration.
  """
  lid = lid - _quiet(np.nanmean, lid, axis=1, keepdims=True)
  count = np.isfinite(lid).sum(axis=0)
  lid, count = lid[:, count > 0], count[count > 0]
  iterations = np.isfinite(lid).any(axis=1).sum()
  freedom = count.sum() - len(count) - (iterations - 1)
  if freedom <= 0 or len(count) < 2:
    return np.nan
  means = np.nanmean(lid, axis=0)
  within = np.nansum((lid - means) ** 2) / freedom
  between = means.var(ddof=1) - within * np.mean(1 / count)
  return float(between / (between + within)) if between + within > 0 else np.nan


def stands_apart(separation: float, evidence: float, reliability: float) -> bool:
  """Whether these numbers, see `Split`, tell of two parts; nan where reliability is unknown."""
  if np.isnan(reliability):
    return separation > MIN_SEPARATION and evidence > MIN_EVIDENCE
  return separation > MIN_SEPARATION and reliability > MIN_RELIABILITY


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


def split(
    scores: np.ndarray, *, guard: bool, seed: int, reliability: float = np.nan
) -> Split:
  """Splits clients by a mixture of two Gaussians over their scores.

  A mixture always splits, also where there is nothing to split: with no noisy client, or with
  noisy ones only. The guard asks whether two Gaussians stand apart (Ashman's D) and whether
  iterations agree on who is where, or, as long as there was one alone, whether two Gaussians
  explain the scores much better than one (BIC). Otherwise nobody is called noisy. (With 20 clients
  the BIC prefers one Gaussian even where the two parts are exactly the clean and the noisy.)

  Args:
    scores: float64 `[C]`, nan for clients that are not judged.
    guard: False for the paper's behaviour.
    seed: Of the mixture's k-means start.
    reliability: Of the scores; nan if unknown.
  """
  from sklearn import mixture

  noisy = np.zeros(len(scores), bool)
  judged = np.flatnonzero(np.isfinite(scores))
  two = fit(scores, seed)
  if two is None:
    return Split(noisy, False, 0.0, 0.0, reliability)
  x = scores[judged][:, np.newaxis]
  one = mixture.GaussianMixture(1).fit(x)
  means, variances = two.means_[:, 0], two.covariances_[:, 0, 0]
  found = Split(
      noisy,
      separated=False,
      separation=float(abs(means[0] - means[1]) / np.sqrt(variances.mean())),
      evidence=float(one.bic(x) - two.bic(x)),
      reliability=reliability,
  )
  if guard and not stands_apart(*found[2:]):
    return found
  noisy[judged] = two.predict(x) == np.argmax(means)
  return found._replace(separated=True)


def mixture_seed(seed: int, iteration: int) -> int:
  """Returns the seed of the mixture over clients at the end of an iteration, 0 the first."""
  return rng.integer(seed, 'fedcorr mixture', iteration)
