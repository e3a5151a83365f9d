"""Heaps of glibc's malloc: as many as cores, so that the memory of long runs stays flat.

By default threads get up to eight heaps a core. Weights come and go in all of them, and none gives
back what the others need.
"""

import ctypes
import os
from collections.abc import Mapping

_M_ARENA_MAX = -8  # <malloc.h>


def limit() -> None:
  """Limits those of this process; before threads are started."""
  ctypes.CDLL(None).mallopt(_M_ARENA_MAX, os.cpu_count())


def environment() -> Mapping[str, str]:
  """Returns the environment of a child process with the limit, unless the user has set one."""
  return {'MALLOC_ARENA_MAX': str(os.cpu_count()), **os.environ}
