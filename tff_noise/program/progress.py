"""The progress of a run on stderr: a bar on a terminal, a line now and then elsewhere."""

import contextlib
import math
import sys
from collections.abc import Callable, Iterator

import tqdm

from tff_noise.program import training

_LINES = 20
# A short bar, so that what follows it fits into 80 columns.
_BAR = '{percentage:3.0f}%|{bar:16}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]'


@contextlib.contextmanager
def bar(total_rounds: int) -> Iterator[Callable[[training.RoundResult], None]]:
  """Gives the function to call after each round."""
  if not sys.stderr.isatty():
    yield lambda result: _print_line(result, total_rounds)
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


def _print_line(result, total_rounds):
  every = max(1, total_rounds // _LINES)
  if result.round_num % every == 0 or result.round_num == total_rounds:
    metrics = result.metrics
    print(
        f'round {result.round_num}/{total_rounds}  test accuracy {metrics["test_accuracy"]:.4f}  '
        f'train loss {metrics["train_loss"]:.4f}  {result.seconds:.2f} s',
        file=sys.stderr,
        flush=True,
    )
