"""Child processes that do not outlive this one, however it ends."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

# Runs in the child before it becomes the command: asks the kernel (PR_SET_PDEATHSIG = 1) for
# SIGKILL when the parent is gone, however it went. Not as a preexec_fn: threads may hold locks.
_DIE_WITH_PARENT = """
import ctypes, os, sys
parent = int(sys.argv[1])
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == parent:
  os.execv(sys.argv[2], sys.argv[2:])
"""

# What code that is given by `-c` begins with: without what Python puts first of itself, the folder
# where the user stands, in which there may be another checkout.
WITHOUT_FIRST = 'import sys; sys.path[:1] = [p for p in sys.path[:1] if p]; '

_STOP_SECONDS = 5
# Longer than a program takes to unwind.
_UNHEARD_SECONDS = 30.0


@contextlib.contextmanager
def terminable() -> Iterator[None]:
  """Makes Ctrl-C and SIGTERM unwind this program at once, so that its children are stopped.

  At once under `asyncio.run` too, which otherwise takes Ctrl-C for itself and tells the program at
  its next `await`: after the round. And once more after a while, if the program is still here:
  Python throws away what is raised while it collects garbage.
  """
  asked = []

  def unwind(signum, frame):
    del frame  # Unused.
    if signum != signal.SIGALRM or not asked:
      asked.append(signum)
    signal.setitimer(signal.ITIMER_REAL, _UNHEARD_SECONDS)
    raise KeyboardInterrupt if asked[-1] == signal.SIGINT else SystemExit(128 + asked[-1])

  numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
  previous = {number: signal.signal(number, unwind) for number in numbers}
  try:
    yield
  finally:
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number, handler in previous.items():
      signal.signal(number, handler)


def start(command: Sequence[str], **options: Any) -> subprocess.Popen:
  """Starts `command`, an absolute path and its arguments, in a session of its own.

  The child is killed when the *thread* that started it ends: start it from one that outlives it. A
  Ctrl-C in the terminal does not reach it; whoever started it stops it.

  Args:
    command: What to run.
    **options: Of `subprocess.Popen`.
  """
  return subprocess.Popen(
      [sys.executable, '-S', '-c', _DIE_WITH_PARENT, str(os.getpid()), *command],
      start_new_session=True,
      **options,
  )


def stop(*processes: subprocess.Popen) -> None:
  """Ends children by SIGTERM, and by SIGKILL if they take too long; returns when all are gone."""
  for process in processes:
    process.terminate()
  deadline = time.monotonic() + _STOP_SECONDS
  for process in processes:
    try:
      process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
      process.kill()
      process.wait()
