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
_MMAP_THRESHOLD = 32 * 2**20  # Bytes, the most that glibc allows: larger blocks are mapped.
_TRIM_THRESHOLD = 2**40  # Bytes, more than there are: the end of a heap is kept.


def limit() -> None:
  """Gives this process as many heaps as cores; call it before threads are started."""
  if _HEAPS not in os.environ:
    ctypes.CDLL(None).mallopt(_M_ARENA_MAX, os.cpu_count())


def worker_environment() -> Mapping[str, str]:
  """Returns the environment of a worker: a heap for two cores, which keeps what it got.

  Measured on two cores, where rounds with one heap that keeps its end are as fast as with two, and
  memory varies less (`benchmarks/NOTES.md`).
  """
  return {
      _HEAPS: str(max(1, os.cpu_count() // 2)),
      'MALLOC_MMAP_THRESHOLD_': str(_MMAP_THRESHOLD),
      'MALLOC_TRIM_THRESHOLD_': str(_TRIM_THRESHOLD),
      **os.environ,
  }
