"""Heaps of glibc's malloc, set so that the memory of long runs stays flat.

By default threads get up to eight heaps a core. Weights come and go in all of them, none gives back
what the others need, and how much of its end each gives back is chance. Variables that the user has
set, such as `MALLOC_ARENA_MAX`, hold.
"""

import ctypes
import os
from collections.abc import Mapping

_HEAPS = 'MALLOC_ARENA_MAX'
_M_ARENA_MAX = -8  # <malloc.h>
# TensorFlow has its own allocator for tensors; what is left to malloc are messages, for which one
# heap is as fast as many if it need not ask for its end again in each round.
_WORKER = {
    _HEAPS: '1',
    # Bytes. The most that glibc allows: larger blocks are mapped one by one.
    'MALLOC_MMAP_THRESHOLD_': str(32 * 2**20),
    # Bytes, more than there are: the end is kept.
    'MALLOC_TRIM_THRESHOLD_': str(2**40),
}


def limit() -> None:
  """Gives this process as many heaps as cores; call it before threads are started."""
  if _HEAPS not in os.environ:
    ctypes.CDLL(None).mallopt(_M_ARENA_MAX, os.cpu_count())


def worker_environment() -> Mapping[str, str]:
  """Returns the environment of a worker: one heap, which keeps what it got."""
  return {**_WORKER, **os.environ}
