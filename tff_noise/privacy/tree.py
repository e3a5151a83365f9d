"""The tree of DP-FTRL: sums over stretches of rounds, of which the sum over the first t is made.

Kairouz, McMahan, Song, Thakkar, Thakurta and Xu, Practical and Private (Deep) Learning without
Sampling or Shuffling, ICML 2021. The sum over rounds 1 to t has the noise of the nodes into which
the binary digits of t cut these rounds: one for each digit that is 1, log2(t) + 1 at most. They are
left children alone, and of these one ends in each round: that of round t is over the rounds from
`before(t)` + 1 to t, as many as the largest power of two that divides t. So the last round names a
node, level and index do not have to.

The releases of R rounds and the nodes that end in them are functions of each other, and given those
before it a node is a sum with Gaussian noise of its own. Hence a run is the adaptive composition of
R Gaussian mechanisms, which is one whose squared sensitivity is the sum of theirs.
"""

import numpy as np

from tff_noise.privacy import cyclic


def before(round_num):
  """Returns the last round before the node that ends in this one: its lowest binary 1 made a 0.

  Args:
    round_num: At least 1, an integer, or an array or a tensor of these.
  """
  return round_num & (round_num - 1)


def nodes(releases: np.ndarray) -> np.ndarray:
  """Returns float64 `[R, ...]`, the node that ends in each round, noise and all.

  Args:
    releases: float `[R, ...]`, those of all rounds from the first.
  """
  sums = np.concatenate([np.zeros_like(releases[:1], np.float64), np.cumsum(releases, axis=0)])
  ends = np.arange(1, len(sums))
  return sums[ends] - sums[before(ends)]


def squared_sensitivity(population: int, cohort: int, rounds: int) -> int:
  """Returns by how much a client moves all nodes, at most, in cyclic rounds of `cohort` clients.

  It moves a node by as many times its part in one round as it takes part in the node's rounds, c:
  the maximum over clients of the sum of c^2, in units of the square of that part. Rounds in all of
  which every client takes part once, each with noise of its own, cost as much as so many.

  Args:
    population: C, the clients of `cyclic`.
    cohort: k, 1 to C.
    rounds: R, those released, at least 0.

  Raises:
    ValueError: If an argument is out of range.
  """
  total = np.zeros_like(cyclic.participations(population, cohort, rounds))
  for end in range(1, rounds + 1):
    until, since = (
        cyclic.participations(population, cohort, r) for r in (end, before(end))
    )
    total += (until - since) ** 2
  return int(total.max())
