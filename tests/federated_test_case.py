"""A test case that runs TFF computations on this project's local runtime."""

import contextlib

from absl.testing import parameterized

from tff_noise.runtimes import local


class FederatedTestCase(parameterized.TestCase):
  """Starts one worker for the class, stops it after the last test."""

  # Whether errors say what TensorFlow says.
  SHOWS_CLIENT_ERRORS = False

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    stack = contextlib.ExitStack()
    cls.addClassCleanup(stack.close)
    stack.enter_context(
        local.runtime(max_concurrent_clients=2, shows_client_errors=cls.SHOWS_CLIENT_ERRORS)
    )
