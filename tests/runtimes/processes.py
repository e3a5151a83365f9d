"""What tests of real processes look at."""

import psutil

_WAIT_SECONDS = 120


def descendants() -> set[psutil.Process]:
  """All processes that this one started, and those that they started."""
  return set(psutil.Process().children(recursive=True))


def tff_workers(parent: psutil.Process | None = None) -> list[psutil.Process]:
  """TFF's own programs among the descendants of `parent`, by default of this process."""
  parent = parent or psutil.Process()
  return [p for p in parent.children(recursive=True) if p.name() == 'worker_binary']


def gone(pid: int) -> bool:
  """Waits until the process does not run; whoever inherits a killed one may never reap it."""
  try:
    process = psutil.Process(pid)
    if process.status() == psutil.STATUS_ZOMBIE:
      return True
    process.wait(_WAIT_SECONDS)
    return True
  except psutil.NoSuchProcess:
    return True
  except psutil.TimeoutExpired:
    return process.status() == psutil.STATUS_ZOMBIE
