"""Heaps of glibc's malloc: as many as cores, so that the memory of long runs stays flat.

By default threads get up to eight heaps a core. Weights come and go in all of them, and none gives
back what the others need. `MALLOC_ARENA_MAX`, where the user has set it, holds.
"""

import ctypes
import os
from collections.abc import Mapping

_VARIABLE = 'MALLOC_ARENA_MAX'
_M_ARENA_MAX = -8  # <malloc.h>


def limit() -> None:
  """Limits those of this process; call it before threads are started."""
  if _VARIABLE not in os.environ:
    ctypes.CDLL(None).mallopt(_M_ARENA_MAX, os.cpu_count())


def environment() -> Mapping[str, str]:
  """Returns the environment of a child process with the limit."""
  return {_VARIABLE: str(os.cpu_count()), **os.environ}
