"""Contenders that take turns, and the table of their times."""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

_WARM_UP = 1


class Workload(NamedTuple):
  """Contenders that take turns, so that whatever else the machine does meets all of them.

  Attributes:
    title: Printed.
    repeats: How often each runs.
    contenders: By name; each runs one round when called. Ratios are to the first.
  """

  title: str
  repeats: int
  contenders: Mapping[str, Callable[[], Any]]


def measure(workload: Workload) -> dict[str, np.ndarray]:
  """Returns float64 seconds by contender, the first a second time as the control.

  The order turns, so that no contender always follows the same other one.
  """
  names = list(workload.contenders)
  turns = {**workload.contenders, f'{names[0]} again': workload.contenders[names[0]]}
  names = list(turns)
  seconds = {name: [] for name in names}
  for repeat in range(workload.repeats + _WARM_UP):
    first = repeat % len(names)
    for name in names[first:] + names[:first]:
      start = time.perf_counter()
      turns[name]()
      seconds[name].append(time.perf_counter() - start)
  return {name: np.array(values[_WARM_UP:]) for name, values in seconds.items()}


def print_heading() -> None:
  """Prints the head of the table that `run` fills."""
  print('| workload | contender | median s a round | min - max | ratio to the first |')
  print('| --- | --- | --- | --- | --- |')


def run(workload: Workload) -> None:
  """Measures and prints rows of the table."""
  seconds = measure(workload)
  first = np.median(next(iter(seconds.values())))
  for contender, values in seconds.items():
    print(
        f'| {workload.title} | {contender} | {np.median(values):.4f} | {values.min():.4f} - '
        f'{values.max():.4f} | {np.median(values) / first:.3f} |',
        flush=True,
    )
