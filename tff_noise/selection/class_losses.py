"""FedNoRo's judgement of clients: a mixture of two Gaussians over their losses by class.

Plain NumPy and scikit-learn, at the server, between rounds.
"""

import warnings

import numpy as np

# Of the mixtures whose verdicts are compared.
_SEEDS = range(9)


def scaled(losses: np.ndarray) -> np.ndarray:
  """Returns losses, each class in [0, 1] from its smallest to its largest among the clients.

  Args:
    losses: float64 `[C, K]`, mean losses by class; nan where a client has no example of it.

  Returns:
    float64 `[C, K]`. A client without the class has 0, the smallest, and so has everybody where all
    are equal. Rows of clients that have no class at all, which are not judged, are nan.
  """
  judged = np.isfinite(losses).any(axis=1)
  filled = np.where(np.isfinite(losses), losses, np.inf)
  low = np.min(filled, axis=0, initial=np.inf)
  above = np.where(np.isfinite(losses), losses, low) - np.where(np.isfinite(low), low, 0)
  above = np.where(np.isfinite(above), above, 0)
  span = np.max(above, axis=0, initial=0)
  return np.where(judged[:, np.newaxis], above / np.where(span > 0, span, 1), np.nan)


def scores(losses: np.ndarray) -> np.ndarray:
  """Returns float64 `[C]`, the sum of a client's scaled losses; nan for one that is not judged."""
  return scaled(losses).sum(axis=1)


def noisy_clients(losses: np.ndarray) -> np.ndarray:
  """Returns bool `[C]`, the part with the larger losses of a mixture in K dimensions.

  The verdict that most of nine mixtures share, which differ by their random starts; of equally
  frequent ones the first. A mixture of two always finds two parts, also where nobody is noisy.

  Args:
    losses: float64 `[C, K]`, as for `scaled`. Fewer than three different clients are not split, and
      clients that are not judged are not noisy.
  """
  x = scaled(losses)
  judged = np.flatnonzero(np.isfinite(x).all(axis=1))
  noisy = np.zeros(len(x), bool)
  x = x[judged]
  if len(np.unique(x, axis=0)) < 3:
    return noisy
  verdicts = [tuple(_larger_part(x, seed)) for seed in _SEEDS]
  noisy[judged] = max(verdicts, key=verdicts.count)  # The first of those that are most frequent.
  return noisy


def _larger_part(x, seed):
  """bool `[n]`, the component with the larger sum of means."""
  from sklearn import exceptions  # Takes a second: only where it is used.
  from sklearn import mixture

  with warnings.catch_warnings():
    # EM that has not come to rest has a verdict, too.
    warnings.simplefilter('ignore', exceptions.ConvergenceWarning)
    fitted = mixture.GaussianMixture(2, random_state=seed).fit(x)
  return fitted.predict(x) == np.argmax(fitted.means_.sum(axis=1))
