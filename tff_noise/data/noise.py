"""Label noise: transition matrices and the labels drawn from them.

`T[i, j]` is the probability that the clean label i is observed as j (FedDPCont, section 3.2).
"""

from typing import NamedTuple

import numpy as np


class NoisyLabels(NamedTuple):
  """Labels after noise, with the ground truth an experiment needs for its metrics.

  Attributes:
    labels: int32 `[n]`, the observed labels.
    flip_probability: float64 `[n]`, the nominal probability that this label was changed.
  """

  labels: np.ndarray
  flip_probability: np.ndarray


def symmetric_matrix(num_classes: int, rate: float) -> np.ndarray:
  """Returns T with `T_ii = 1 - eta` and `eta / (K - 1)` elsewhere (FedDPCont, section 5.2)."""
  matrix = np.full((num_classes, num_classes), rate / (num_classes - 1))
  np.fill_diagonal(matrix, 1 - rate)
  return matrix


def random_matrix(num_classes: int, rate: float, rng: np.random.Generator) -> np.ndarray:
  """Returns FedDPCont's "random" T (section 5.2).

  `T_ii = 1 - (eta + Unif(-.05, .05))`, off-diagonal row `(1 - T_ii) * Dir(1)`. The paper prints the
  diagonal as `eta + Unif(-.05, .05)` with eta the noise rate; its own accuracies, which fall with
  eta, show that the complement is meant.

  Args:
    num_classes: K, at least 2.
    rate: eta, in [0, 1].
    rng: Source of the matrix.
  """
  diagonal = np.clip(1 - (rate + rng.uniform(-0.05, 0.05, num_classes)), 0, 1)
  matrix = np.diag(diagonal)
  for i in range(num_classes):
    others = np.arange(num_classes) != i
    matrix[i, others] = (1 - diagonal[i]) * rng.dirichlet(np.ones(num_classes - 1))
  return matrix


def apply_matrix(labels: np.ndarray, matrix: np.ndarray, rng: np.random.Generator) -> NoisyLabels:
  """Draws an observed label for each clean one from its row of `matrix`."""
  cumulative = np.cumsum(matrix, axis=1)
  # Rounding may leave the last entry a hair under 1, where a draw could fall off the end.
  cumulative[:, -1] = 1.0
  draws = rng.random(len(labels))[:, np.newaxis]
  noisy = (draws >= cumulative[labels]).sum(axis=1).astype(np.int32)
  return NoisyLabels(noisy, 1 - matrix[labels, labels])


def _none(labels, num_classes, rate, rng):
  del num_classes, rate, rng  # Unused.
  return NoisyLabels(labels.astype(np.int32), np.zeros(len(labels)))


def _symmetric(labels, num_classes, rate, rng):
  return apply_matrix(labels, symmetric_matrix(num_classes, rate), rng)


def _random(labels, num_classes, rate, rng):
  return apply_matrix(labels, random_matrix(num_classes, rate, rng), rng)


NOISES = {'none': _none, 'symmetric': _symmetric, 'random': _random}


def corrupt(
    name: str, labels: np.ndarray, *, num_classes: int, rate: float, rng: np.random.Generator
) -> NoisyLabels:
  """Returns `labels` after the noise called `name`.

  Args:
    name: A key of `NOISES`.
    labels: int `[n]` in `[0, num_classes)`.
    num_classes: K, at least 2.
    rate: eta in [0, 1]; 'none' ignores it.
    rng: Source of the matrix and of the flips.
  """
  return NOISES[name](labels, num_classes, rate, rng)
