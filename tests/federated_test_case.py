"""A test case that runs TFF computations on this project's local runtime."""

import contextlib
from unittest import mock

from absl.testing import parameterized

from tff_noise.runtimes import connection
from tff_noise.runtimes import local


class FederatedTestCase(parameterized.TestCase):
  """Starts one worker for the class, stops it after the last test."""

  # Whether errors say what TensorFlow says.
  SHOWS_CLIENT_ERRORS = False
  # Whether graphs are optimised before they are sent, as programs have it: that takes a fifth of
  # the time of tests that run few rounds. A session makes the same of them, if not as well.
  OPTIMIZES_GRAPHS = False

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    stack = contextlib.ExitStack()
    cls.addClassCleanup(stack.close)
    if not cls.OPTIMIZES_GRAPHS:
      stack.enter_context(
          mock.patch.object(connection, '_OPTIMIZE', mock.Mock(transform=lambda x: (x, False)))
      )
    stack.enter_context(
        local.runtime(max_concurrent_clients=2, shows_client_errors=cls.SHOWS_CLIENT_ERRORS)
    )
