"""How good predictions are: by class, by client, and whether their probabilities are right."""

from typing import NamedTuple

import numpy as np

from tff_noise import types
from tff_noise.data import scene as scene_lib

_BINS = 10
# Of clients, whose mean accuracy says how the worst fare.
_WORST_SHARE = 0.1


def confusion_matrix(labels: np.ndarray, guesses: np.ndarray, num_classes: int) -> np.ndarray:
  """Returns int64 `[K, K]`: in row i and column j how many examples of class i are taken for j.

  Args:
    labels: int `[n]`; examples of `types.UNKNOWN` class are in none.
    guesses: int `[n]` in `[0, K)`.
    num_classes: K.
  """
  from sklearn import metrics  # Takes half a second: only where it is asked for.

  known = labels != types.UNKNOWN
  if not known.any():
    return np.zeros((num_classes, num_classes), np.int64)
  return metrics.confusion_matrix(labels[known], guesses[known], labels=np.arange(num_classes))


def class_accuracy(confusion: np.ndarray) -> np.ndarray:
  """Returns float64 `[K]`, the share of each class that is recognised; nan where it has nobody."""
  count = confusion.sum(1)
  found = np.full(len(count), np.nan)
  return np.divide(np.diag(confusion), count, out=found, where=count > 0)


def client_accuracy(confusion: np.ndarray, scene: scene_lib.Scene) -> np.ndarray:
  """Returns float64 `[C]`, accuracy on examples of the classes that each client holds, as it does.

  That is the mean of the accuracy by class, weighted with the shares of the true classes among a
  client's training examples: what the client would see on new examples of its own kind. nan where
  nobody knows a true class of the client's, or a class that it holds was not tried.
  """
  of_class = class_accuracy(confusion)
  known = scene.is_known
  held = np.zeros((scene.num_clients, len(of_class)))
  np.add.at(held, (scene.client_of[known], scene.clean_label[known]), 1)
  right = np.where(held > 0, held * of_class, 0).sum(1)
  total = held.sum(1)
  return np.divide(right, total, out=np.full(len(total), np.nan), where=total > 0)


def worst_clients(accuracy: np.ndarray) -> np.ndarray:
  """Returns bool `[C]`, the lowest tenth of the clients whose accuracy is known, at least one."""
  worst = np.zeros(len(accuracy), bool)
  known = int(np.isfinite(accuracy).sum())
  if known:
    # nan is sorted last.
    worst[np.argsort(accuracy, kind='stable')[: max(1, round(_WORST_SHARE * known))]] = True
  return worst


def worst_tenth(accuracy: np.ndarray) -> float:
  """Returns the mean of the lowest tenth of the clients, at least one; nan without any."""
  worst = worst_clients(accuracy)
  return float(np.sort(accuracy[worst]).mean()) if worst.any() else np.nan


class Calibration(NamedTuple):
  """How sure predictions are against how often they are right, in ten bins of equal width.

  Attributes:
    confidence: float64 `[10]`, mean probability of the predicted class; nan in an empty bin.
    accuracy: float64 `[10]`, share that is right; nan in an empty bin.
    count: int64 `[10]`.
    error: Expected calibration error, the mean of their differences over examples, in [0, 1] (Guo
      et al., On Calibration of Modern Neural Networks, ICML 2017, equation 3); nan where some
      probabilities are no numbers, which are in no bin.
  """

  confidence: np.ndarray
  accuracy: np.ndarray
  count: np.ndarray
  error: float


def calibration(probabilities: np.ndarray, labels: np.ndarray) -> Calibration:
  """Returns the calibration of predictions.

  Args:
    probabilities: float `[n, K]`.
    labels: int `[n]`, the true classes; examples of `types.UNKNOWN` class are left out.
  """
  known = labels != types.UNKNOWN
  probabilities, labels = probabilities[known].astype(np.float64), labels[known]
  sure = probabilities.max(1)
  right = probabilities.argmax(1) == labels
  finite = np.isfinite(sure)
  sure, right = sure[finite], right[finite]
  place = np.minimum((sure * _BINS).astype(int), _BINS - 1)
  count = np.bincount(place, minlength=_BINS)

  def mean(values):
    total = np.bincount(place, values, _BINS)
    return np.divide(total, count, out=np.full(_BINS, np.nan), where=count > 0)

  confidence, accuracy = mean(sure), mean(right)
  gap = np.where(count > 0, count * np.abs(confidence - accuracy), 0)
  error = float(gap.sum() / count.sum()) if count.sum() and finite.all() else np.nan
  return Calibration(confidence, accuracy, count, error)
