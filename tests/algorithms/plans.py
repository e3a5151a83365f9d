"""Building a method for its plan alone: who takes part when, in which stages."""

import contextlib
from collections.abc import Iterator
from unittest import mock

from tff_noise.algorithms import algorithm as algorithm_lib
from tff_noise.federated import computation


@contextlib.contextmanager
def with_computations_of(algorithm: algorithm_lib.Algorithm) -> Iterator[None]:
  """While the context is open, what methods build are the computations of an algorithm, by name.

  Computations take seconds, plans nothing.
  """
  made = {c.name: c for c in algorithm.computations}
  with contextlib.ExitStack() as stack:
    for function in ('train', 'collect'):
      stack.enter_context(
          mock.patch.object(computation, function, lambda name, *args, **more: made[name])
      )
    yield
