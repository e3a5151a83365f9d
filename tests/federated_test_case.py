"""A test case that runs TFF computations on this project's local runtime."""

import contextlib

from absl.testing import parameterized

from tff_noise.federated import uplink
from tff_noise.methods import method
from tff_noise.privacy import ledger as ledger_lib
from tff_noise.program import runtime


def open_ledger(schedule: method.Schedule, path: str = '') -> ledger_lib.Ledger:
  """Returns the ledger of a run of `schedule`, in memory if no path is given."""
  return ledger_lib.Ledger(schedule.fields, uplink.to_json(schedule.fields), path)


class FederatedTestCase(parameterized.TestCase):
  """Starts one worker for the class, stops it after the last test."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    stack = contextlib.ExitStack()
    cls.addClassCleanup(stack.close)
    stack.enter_context(runtime.local(max_concurrent_clients=2))
