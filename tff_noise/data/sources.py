"""The data sets, by name."""

import numpy as np

from tff_noise import rng
from tff_noise import types

# The split must be the same for every experiment seed, or accuracies could not be compared.
_SPLIT_SEED = 0
_DIGITS_TRAIN = 1400


def _digits() -> types.Dataset:
  """scikit-learn's digits: 1,797 real 8x8 scans with 17 grey levels, 1,400 of them for training."""
  from sklearn import datasets  # Takes half a second: only where it is asked for.

  bunch = datasets.load_digits()
  x = bunch.images.astype(np.uint8)[..., np.newaxis]
  y = bunch.target.astype(np.int32)
  # The file is sorted by writer: without a shuffle, the test set would hold other hands only.
  order = rng.generator(_SPLIT_SEED, 'digits split').permutation(len(y))
  train, test = order[:_DIGITS_TRAIN], order[_DIGITS_TRAIN:]
  return types.Dataset('digits', x[train], y[train], x[test], y[test], 10, 1 / 16)


DATASETS = {'digits': _digits}


def load(name: str) -> types.Dataset:
  """Returns the data set called `name`; raises `KeyError` for a name not in `DATASETS`."""
  return DATASETS[name]()
