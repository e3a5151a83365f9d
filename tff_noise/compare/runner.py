"""Runs the cells of a grid that are not finished, in processes that run one after another.

A cell is an ordinary run of `bin/train`: one that is there is not run again, one that was
interrupted continues, and one that fails leaves its output and does not stop the others: the
process that ran it is replaced.
"""

import concurrent.futures
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tff_noise import child
from tff_noise.compare import grid
from tff_noise.program import inputs
from tff_noise.runtimes import worker_process

# What a run leaves behind in a process is some 30 MB.
_CELLS_OF_A_PROCESS = 40
_CELLS = child.WITHOUT_FIRST + (
    "import runpy; runpy.run_module('tff_noise.compare.cells', run_name='__main__')"
)


class Outcome(NamedTuple):
  """How a cell ended.

  Attributes:
    cell: The cell.
    status: Its exit status; of its process where that ended, -1 where all was stopped, or none
      could be started.
    seconds: How long it took.
    message: The last line of its output if it failed, or why there is no output.
    log: Where all of its output is.
  """

  cell: grid.Cell
  status: int
  seconds: float
  message: str
  log: str


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
    log_dir: Where the output of each run is written; made if needed.
    on_outcome: Called in this thread after each cell.
  """
  os.makedirs(log_dir, exist_ok=True)
  jobs = max(1, min(jobs, len(cells)))
  workers = [_Worker(cores, _clients_at_once(cores, jobs)) for cores in _cores(jobs)]
  idle = queue.SimpleQueue()
  for worker in workers:
    idle.put(worker)
  outcomes = []
  with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
    # As it is when the grid begins, whenever a process loads it.
    codes = _codes(cells)
    futures = [
        pool.submit(_run_cell, idle, cell, code, log_dir)
        for cell, code in zip(cells, codes, strict=True)
    ]
    try:
      for future in concurrent.futures.as_completed(futures):
        outcomes.append(future.result())
        on_outcome(outcomes[-1])
    finally:
      for future in futures:
        future.cancel()
      _stop(worker.last() for worker in workers)
  return outcomes


def _cores(jobs):
  """The cores of each of `jobs` processes: their own, if there are so many; none for any."""
  cores = sorted(os.sched_getaffinity(0))
  if worker_process.cores() < len(cores):
    return [[]] * jobs  # A container has time on all of them; others beside it would take the same.
  return [cores[i::jobs] if jobs <= len(cores) else cores for i in range(jobs)]


def _clients_at_once(cores, jobs):
  """How many clients a process may compute that has no cores of its own; None where it has."""
  return None if cores else max(1, worker_process.cores() // jobs)


def _codes(cells):
  """Of each cell; equal ones are looked at once."""
  known = {}
  for cell in cells:
    c = cell.config
    own = c.method, c.model, c.aggregation, tuple(c.param), tuple(c.base_param)
    if own not in known:
      known[own] = inputs.code(c)
    yield known[own]


def _run_cell(idle, cell, code, log_dir):
  log = os.path.join(log_dir, cell.config.name() + '.log')
  worker = idle.get()
  started = time.monotonic()
  try:
    status, message = worker.run(cell, code, log)
  finally:
    idle.put(worker)  # Or whoever waits for one would wait for ever.
  seconds = time.monotonic() - started
  return Outcome(cell, status, seconds, (message or _last_line(log)) if status else '', log)


class _Worker:
  """A process that runs cells, replaced by a new one after a failure or many cells.

  It is killed when the thread ends that started it, which is that of the first `run`.
  """

  def __init__(self, cores: Sequence[int], clients_at_once: int | None):
    self._stopped = False
    self._cores = cores
    self._clients_at_once = clients_at_once
    self._lock = threading.Lock()
    self._process = None
    self._done = 0

  def run(self, cell: grid.Cell, code: str, log: str) -> tuple[int, str]:
    """Runs a cell, of this code; returns its exit status and why there is no output, if so.

    The status is that of its process where that ended.
    """
    try:
      process = self._running()
    except OSError as error:
      return -1, f'no process can be started ({error.strerror})'
    if process is None:
      return -1, ''
    try:
      process.stdin.write(json.dumps([log, code, *self._arguments(cell)]) + '\n')
      process.stdin.flush()
      reply = process.stdout.readline()
    except BrokenPipeError:
      reply = ''
    self._done += 1
    # One that dies while it writes leaves half a line.
    whole = reply.endswith('\n')
    status, message = json.loads(reply) if whole else (process.wait() or -1, '')
    if status or self._done == _CELLS_OF_A_PROCESS:
      _stop([self._taken()])
    return status, message

  def _arguments(self, cell):
    config, more = cell.config, []
    if self._clients_at_once and config.runtime == 'local' and not config.max_concurrent_clients:
      more = [f'--max_concurrent_clients={self._clients_at_once}']
    return [*cell.arguments, *more]

  def _running(self):
    """The process, a new one if there is none; None once it was stopped."""
    with self._lock:
      if self._stopped:
        return None
      if self._process is None:
        self._done = 0
        self._process = child.start(
            [sys.executable, '-c', _CELLS, *map(str, self._cores)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=_environment(),
        )
      return self._process

  def last(self) -> subprocess.Popen | None:
    """Returns the process, if there is one, to be stopped; there will be no other."""
    self._stopped = True
    return self._taken()

  def _taken(self):
    with self._lock:
      process, self._process = self._process, None
    return process


def _stop(processes):
  """Ends processes, all at once."""
  processes = [process for process in processes if process is not None]
  child.stop(*processes)
  for process in processes:
    process.stdout.close()
    # What could not be sent to one that has died is sent again here.
    with contextlib.suppress(BrokenPipeError):
      process.stdin.close()


def _environment() -> Mapping[str, str]:
  # A child must find the project wherever this program found it.
  return {**os.environ, 'PYTHONPATH': os.pathsep.join(map(os.path.abspath, sys.path))}


def _last_line(path):
  """Of what a run has said; it may have ended before it said a thing."""
  if not os.path.exists(path):
    return 'no output'
  with open(path, encoding='utf-8', errors='replace') as file:
    lines = [line.strip() for line in file if line.strip()]
  return lines[-1] if lines else 'no output'
