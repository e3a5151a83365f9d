"""The progress of a run on stderr: a bar on a terminal, a line now and then elsewhere."""

import contextlib
import datetime
import math
import sys
import time
from collections.abc import Callable, Iterator

import tqdm

from tff_noise.program import training

_LINES = 20
# A short bar, so that what follows it fits into 80 columns.
_BAR = '{percentage:3.0f}%|{bar:16}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]'


@contextlib.contextmanager
def bar(
    total_rounds: int, log_level: str = 'info'
) -> Iterator[Callable[[training.RoundResult], None]]:
  """Gives the function to call after each round.

  Args:
    total_rounds: How many there are.
    log_level: 'quiet' says nothing, 'debug' has a line for each round, on a terminal too.
  """
  if log_level == 'quiet':
    yield lambda _: None
    return
  if log_level == 'debug' or not sys.stderr.isatty():
    yield _Lines(total_rounds, total_rounds if log_level == 'debug' else _LINES)
    return
  with tqdm.tqdm(total=total_rounds, bar_format=_BAR, dynamic_ncols=True) as shown:
    accuracy = math.nan

    def update(result):
      nonlocal accuracy
      if not math.isnan(result.metrics['test_accuracy']):
        accuracy = result.metrics['test_accuracy']
      shown.set_postfix_str(
          f'accuracy {accuracy:.4f}, {result.seconds:.2f} s/round', refresh=False
      )
      if shown.n == 0:
        shown.initial = shown.n = result.round_num - 1  # A resumed run starts in the middle.
      shown.update()

    yield update


class _Lines:
  """Prints a line for some of the rounds."""

  def __init__(self, total_rounds: int, lines: int):
    self._total, self._every = total_rounds, max(1, total_rounds // lines)
    # From the end of the first round on, in which everything is compiled.
    self._started, self._done = 0.0, 0
    # Not every round is evaluated.
    self._accuracy = 'not measured yet'

  def __call__(self, result: training.RoundResult) -> None:
    number, metrics = result.round_num, result.metrics
    if not self._done:
      self._started = time.monotonic()
      if number > 1:
        print(f'continued from round {number} on', file=sys.stderr)
    rate = (time.monotonic() - self._started) / self._done if self._done else result.seconds
    self._done += 1
    if not math.isnan(metrics['test_accuracy']):
      self._accuracy = f'{metrics["test_accuracy"]:.4f}'
    if number % self._every == 0 or number == self._total:
      left = datetime.timedelta(seconds=round(rate * (self._total - number)))
      print(
          f'round {number}/{self._total}  test accuracy {self._accuracy}  '
          f'train loss {metrics["train_loss"]:.4f}  {rate:.2f} s/round, {left} left',
          file=sys.stderr,
          flush=True,
      )
