"""By what a run chooses one of its rounds.

By accuracy on the server's clean examples, where it has some; else on what clients withhold, with
the labels that they believe. Imports no TensorFlow.
"""

from collections.abc import Container

# Columns of `metrics.csv`.
BY_SERVER, BY_CLIENTS = 'validation_accuracy', 'client_validation_accuracy'


def column(names: Container[str]) -> str | None:
  """Returns the one of `names` that chooses; None where none does."""
  return next((name for name in (BY_SERVER, BY_CLIENTS) if name in names), None)


def words(chosen_by: str | None) -> str:
  """Returns on which examples; of None, as summaries of earlier versions have it, the server's."""
  if chosen_by == BY_CLIENTS:
    return 'the examples that clients withhold'
  return "the server's validation set"
