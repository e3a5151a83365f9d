"""What of a run can be compared: the metrics of grids."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tff_noise import types
from tff_noise.report import runs

_ROUNDS = 'rounds_to_accuracy'


class Metric(NamedTuple):
  """A number of a finished run.

  Attributes:
    title: Heading of its tables, with its unit.
    value: From a run to the number; None where the method has no such number, or it is undefined,
      infinite where a run did not come so far.
    highest: Whether high values are good.
  """

  title: str
  value: Callable[[runs.Run], float | None]
  highest: bool = True


def _share(key):
  """A share in `summary.json`, in percent."""

  def value(run):
    share = run.summary.get(key)
    return None if share is None else 100 * share

  return value


def _megabytes(run):
  # Earlier runs have what was asked besides rounds by itself.
  up = run.summary['bytes_up'] + run.summary.get('extra_bytes_up', 0)
  return (up + run.summary['bytes_down']) / 1e6


_METRICS = {
    'best_test_accuracy': Metric('Best test accuracy, percent', _share('best_test_accuracy')),
    'last10_test_accuracy': Metric(
        'Test accuracy, mean of the last 10 evaluations, percent', _share('last10_test_accuracy')
    ),
    'validation_chosen_test_accuracy': Metric(
        'Test accuracy in the round chosen by validation, percent',
        _share('validation_chosen_test_accuracy'),
    ),
    'last10_validation_accuracy': Metric(
        'Accuracy in validation, of the server or else of clients, mean of the last 10, percent',
        _share('last10_validation_accuracy'),
    ),
    'final_test_accuracy': Metric('Final test accuracy, percent', _share('final_test_accuracy')),
    'noisy_client_precision': Metric(
        'Truly noisy among the clients taken for noisy, percent', _share('noisy_client_precision')
    ),
    'noisy_client_recall': Metric(
        'Taken for noisy among the truly noisy clients, percent', _share('noisy_client_recall')
    ),
    'noisy_client_f1': Metric('F1 of noisy clients, percent', _share('noisy_client_f1')),
    'noisy_client_auc': Metric(
        'Pairs of clients that the score puts in order (AUC), percent', _share('noisy_client_auc')
    ),
    'label_accuracy': Metric(
        'Right labels after correction, percent', _share('label_accuracy_after')
    ),
    'megabytes': Metric('Traffic of all clients, both ways, MB', _megabytes, highest=False),
}
FIXED = tuple(_METRICS)
NAMES = (*FIXED, f'{_ROUNDS}:PERCENT')


def recorded(names: Sequence[str]) -> tuple[str, ...]:
  """Returns what is kept of each run of a grid with these metrics, in order."""
  return tuple(dict.fromkeys((*FIXED, *names)))


def get(name: str) -> Metric:
  """Returns a metric by its name.

  Args:
    name: One of `NAMES`, such as 'best_test_accuracy' or 'rounds_to_accuracy:90'.

  Raises:
    types.UsageError: If there is none of that name.
  """
  if name in _METRICS:
    return _METRICS[name]
  kind, _, percent = str(name).partition(':')
  try:
    target = float(percent) if kind == _ROUNDS else math.nan
  except ValueError:
    target = math.nan
  if not 0 < target <= 100:
    raise types.UsageError(f'metric must be one of {", ".join(NAMES)}; got {name!r}')
  return Metric(f'Rounds to a test accuracy of {target:g} percent', _rounds_to(target), False)


def _rounds_to(percent):

  def value(run):
    accuracy = np.asarray(run.metrics.get('test_accuracy', ()), np.float64)
    # A mean over images is rounded: 90 % are .9 and not a digit less.
    reached = run.rounds[accuracy >= percent / 100 - 1e-6]
    return float(reached[0]) if len(reached) else math.inf

  return value
