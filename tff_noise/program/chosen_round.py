"""By what a run chooses one of its rounds.

By accuracy on the server's clean examples, where it has some; else on what clients withhold, with
the labels that they believe. Imports no TensorFlow.
"""

import math
from collections.abc import Container, Iterable, Mapping

# Columns of `metrics.csv`.
BY_SERVER, BY_CLIENTS = 'validation_accuracy', 'client_validation_accuracy'


def column(names: Container[str]) -> str | None:
  """Returns the one of `names` that chooses; None where none does."""
  return next((name for name in (BY_SERVER, BY_CLIENTS) if name in names), None)


def accuracies(rows: Iterable[Mapping[str, str]], done: int) -> dict[int, float]:
  """Returns by round what one is chosen by, of the rows of `metrics.csv` up to round `done`."""
  found = {}
  for row in rows:
    value = float(row.get(column(row) or '') or 'nan')
    if int(row['round']) <= done and not math.isnan(value):
      found[int(row['round'])] = value
  return found


def best(accuracies: Mapping[int, float]) -> tuple[float, int]:
  """Returns the highest accuracy and the first round that has it; (-1, 0) where there are none."""
  highest = max(accuracies.values(), default=-1)
  return highest, min((r for r, value in accuracies.items() if value == highest), default=0)


def words(chosen_by: str | None) -> str:
  """Returns on which examples; of None, as summaries of earlier versions have it, the server's."""
  if chosen_by == BY_CLIENTS:
    return 'the examples that clients withhold'
  return "the server's validation set"
