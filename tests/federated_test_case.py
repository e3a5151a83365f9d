"""A test case that runs TFF computations on this project's local runtime."""

import contextlib
from unittest import mock

from absl.testing import parameterized

from tff_noise import loading
from tff_noise.runtimes import connection
from tff_noise.runtimes import local

loading.remove_default_context()


def unoptimised_graphs() -> contextlib.AbstractContextManager:
  """Returns a context in which runtimes send graphs as they were built, not put through Grappler.

  That takes a fifth of the time of tests that run few rounds. Last digits differ from programs'.
  """
  as_built = mock.Mock(transform=lambda block: (block, False))
  return mock.patch.object(connection, '_OPTIMIZE', as_built)


class FederatedTestCase(parameterized.TestCase):
  """Starts one worker for the class, stops it after the last test."""

  # Whether errors say what TensorFlow says.
  SHOWS_CLIENT_ERRORS = False
  # Whether graphs are optimised before they are sent, as programs have it.
  OPTIMIZES_GRAPHS = False

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    stack = contextlib.ExitStack()
    cls.addClassCleanup(stack.close)
    if not cls.OPTIMIZES_GRAPHS:
      stack.enter_context(unoptimised_graphs())
    stack.enter_context(
        local.runtime(max_concurrent_clients=2, shows_client_errors=cls.SHOWS_CLIENT_ERRORS)
    )
