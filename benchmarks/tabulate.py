"""Seconds to read and tabulate 200 runs of 300 rounds, pictures apart: the bar is 10.

  python -m benchmarks.tabulate
"""

import os
import statistics
import tempfile
import time

from tests.compare import grid_case
from tff_noise.compare import documents
from tff_noise.compare import grid as grid_lib
from tff_noise.compare import page
from tff_noise.compare import tables

_REPEATS = 5


def main() -> None:
  """Prints medians of 5."""
  with tempfile.TemporaryDirectory() as root:
    grid = grid_lib.from_flags(
        ['fedavg', 'feddpcont', 'feddpcont:label_prior=inverse', 'feddpcont:label_prior=none'],
        ['noise_rate=0.1,0.2,0.3,0.4,0.5'], range(10), ['--rounds=300'], root,
        metric='best_test_accuracy', baseline=None,
    )
    for i, cell in enumerate(grid.cells):
      grid_case.write_run(cell.config.path(), cell.config, 0.5 + i / 1000, rounds=300)
    seconds, drawn = [], []
    for _ in range(_REPEATS):
      start = time.perf_counter()
      results = tables.collect(grid)
      for render in (documents.to_markdown, documents.to_latex, tables.to_csv):
        render(grid, results)
      seconds.append(time.perf_counter() - start)
      start = time.perf_counter()
      page.write(os.path.join(root, 'page'), grid, results)
      drawn.append(time.perf_counter() - start)
    print(
        f'{len(grid.cells)} runs of 300 rounds: {statistics.median(seconds):.2f} s, '
        f'the page with its pictures {statistics.median(drawn):.2f} s more'
    )


if __name__ == '__main__':
  main()
