"""Loading TensorFlow Federated, for a program that owns its process."""

import atexit
import contextlib
import functools
import gc
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def large_modules() -> Iterator[None]:
  """Loads large modules, once, in two thirds of the time; saves a second at the program's end too.

  They are 650,000 objects that live as long as the program, but Python looks through them for
  garbage while they come, in its later collections and once more at its end. Objects that exist
  after the block are never looked at again: those in cycles stay, and so a second block does
  nothing. TFF's default context, whose worker any host could reach, is taken away: whatever is
  computed outside a runtime fails.
  """
  if 'tensorflow_federated' in sys.modules:
    yield
    return
  gc.disable()
  try:
    yield
    if 'tensorflow_federated' in sys.modules:
      remove_default_context()
    gc.freeze()
  finally:
    gc.enable()


def remove_default_context() -> None:
  """Takes away TFF's default context, which prints an error where it is there at Python's end."""
  import tensorflow_federated as tff

  class NoContext(tff.framework.SyncContext):

    def invoke(self, comp, arg):
      raise RuntimeError('TFF computations need a runtime: see tff_noise.runtimes')

  tff.framework.set_default_context(NoContext())


@functools.cache
def end_quietly() -> None:
  """Takes TFF's default context away when Python ends; until then programs may compute with it."""
  atexit.register(remove_default_context)
