"""Runs the cells of a grid that are not finished, each as a process of its own.

A cell is an ordinary run of `bin/train`: one that is there is not run again, one that was
interrupted continues, and one that fails leaves its output and does not stop the others.
"""

import concurrent.futures
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tff_noise import child
from tff_noise.compare import grid


class Outcome(NamedTuple):
  """How a cell ended.

  Attributes:
    cell: The cell.
    status: The exit status of its process, 0 where it was finished already.
    seconds: How long it took; 0 where it was finished already.
    message: The last line of a failed process's output.
    log: Where all of its output is.
  """

  cell: grid.Cell
  status: int
  seconds: float
  message: str
  log: str


class _Processes:
  """The running children, so that an interruption can end them."""

  def __init__(self):
    self._lock = threading.Lock()
    self._running = set()
    self._stopped = False

  def run(self, command: Sequence[str], log: str, environment: dict[str, str]) -> int | None:
    """Runs `command` to its end; returns its exit status, None if all were stopped before."""
    with open(log, 'wb') as output:
      with self._lock:
        if self._stopped:
          return None
        process = child.start(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        self._running.add(process)
      status = process.wait()
      with self._lock:
        self._running.remove(process)
    return status

  def stop(self) -> None:
    """Ends every running child and starts no more."""
    with self._lock:
      self._stopped = True
      running = list(self._running)
    for process in running:
      child.stop(process)


def is_finished(cell: grid.Cell) -> bool:
  """Whether the cell's run has its summary."""
  run = os.path.join(cell.config.path(), 'summary.json')
  return os.path.exists(run)


def run_cells(
    cells: Sequence[grid.Cell],
    *,
    jobs: int,
    log_dir: str,
    on_outcome: Callable[[Outcome], None],
) -> list[Outcome]:
  """Runs `cells`, `jobs` at a time; returns the outcomes in the order they ended.

  Args:
    cells: Cells with a configuration.
    jobs: Processes at the same time, positive.
    log_dir: Where the output of each process is written; made if needed.
    on_outcome: Called in this thread after each cell.
  """
  os.makedirs(log_dir, exist_ok=True)
  processes = _Processes()
  environment = {
      **os.environ,
      # `python -m bin.train` must find the project wherever this program found it.
      'PYTHONPATH': os.pathsep.join(os.path.abspath(p) for p in sys.path if p or p == ''),
  }
  outcomes = []
  with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
    futures = [pool.submit(_run_cell, processes, cell, log_dir, environment) for cell in cells]
    try:
      for future in concurrent.futures.as_completed(futures):
        outcomes.append(future.result())
        on_outcome(outcomes[-1])
    except BaseException:
      for future in futures:
        future.cancel()
      processes.stop()
      raise
  return outcomes


def _run_cell(processes, cell, log_dir, environment):
  log = os.path.join(log_dir, cell.config.name() + '.log')
  started = time.monotonic()
  status = processes.run(
      [sys.executable, '-m', 'bin.train', *cell.arguments], log, environment
  )
  seconds = time.monotonic() - started
  message = '' if status == 0 else _last_line(log)
  return Outcome(cell, -1 if status is None else status, seconds, message, log)


def _last_line(path):
  with open(path, encoding='utf-8', errors='replace') as file:
    lines = [line.strip() for line in file if line.strip()]
  return lines[-1] if lines else 'no output'
