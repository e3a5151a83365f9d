"""When a run ends before its last round: once its models have long not become better.

A function of the validation accuracies alone, so that a run that is resumed ends where it would
have, and an audit can tell where that is. Only evaluations of the last stage count: a method has
its other stages to do more than to raise the accuracy.
"""

from collections.abc import Iterable, Sequence


def is_over(patience: int, best_round: int, evaluated: Iterable[int]) -> bool:
  """Returns whether the last stage has had enough evaluations without a better one.

  Args:
    patience: How many are enough, positive; 0 for never.
    best_round: The first of those with the best accuracy so far, of any stage.
    evaluated: The rounds of the last stage that were evaluated so far.
  """
  return bool(patience) and sum(number > best_round for number in evaluated) >= patience


def ends_after(
    patience: int, rounds: Sequence[int], in_last_stage: Sequence[bool], accuracy: Sequence[float]
) -> int | None:
  """Returns after which round a run ends, None if it does not before its last.

  Args:
    patience: As of `is_over`.
    rounds: Those that were evaluated, ascending.
    in_last_stage: Whether each is of the last stage.
    accuracy: On the validation set, of each.
  """
  best, best_round, counted = -1.0, 0, []
  for number, counts, value in zip(rounds, in_last_stage, accuracy, strict=True):
    if value > best:
      best, best_round = value, number
    counted += [number] if counts else []
    if is_over(patience, best_round, counted):
      return number
  return None
