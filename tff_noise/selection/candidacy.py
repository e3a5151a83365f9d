"""Noisy clients from how often their models were not among the best of a round: ClipFL."""

import numpy as np

from tff_noise import rng

SCORES = ('count', 'rate')


def scores(candidacies: np.ndarray, participations: np.ndarray, rule: str) -> np.ndarray:
  """Returns float64 `[C]`, the Noise Candidacy Scores.

  Args:
    candidacies: int64 `[C]`, rounds in which a client took part and was not among the best.
    participations: int64 `[C]`, rounds in which it took part.
    rule: 'count', the paper's number of candidacies, which grows with how often a client was drawn;
      or 'rate', candidacies in each participation. Either is 0 for a client that was never drawn.
  """
  if rule == 'count':
    return candidacies.astype(np.float64)
  return candidacies / np.maximum(participations, 1)


def prune(score: np.ndarray, share: float, seed: int) -> np.ndarray:
  """Returns bool `[C]`, the `floor(share * C)` clients with the largest scores.

  The paper does not say who goes of those with equal scores: here it is drawn.

  Args:
    score: float64 `[C]`.
    share: p, in [0, 1).
    seed: The experiment's seed.
  """
  count = int(share * len(score) + 1e-9)  # 0.29 * 100 is 28.999...
  ticket = rng.generator(seed, 'ties of candidacy').permutation(len(score))
  order = np.lexsort((ticket, -score))
  pruned = np.zeros(len(score), bool)
  pruned[order[:count]] = True
  return pruned
