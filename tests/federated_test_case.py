"""A test case that runs TFF computations on this project's local runtime."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Callable, Mapping
from typing import Any

from absl.testing import parameterized

from tff_noise import types
from tff_noise.data import client_data
from tff_noise.federated import uplink
from tff_noise.methods import method
from tff_noise.privacy import ledger as ledger_lib
from tff_noise.program import managers
from tff_noise.program import run_directory
from tff_noise.program import training
from tff_noise.runtimes import local


def open_ledger(schedule: method.Schedule, path: str = '') -> ledger_lib.Ledger:
  """Returns the ledger of a run of `schedule`, in memory if no path is given."""
  return ledger_lib.Ledger(schedule.fields, uplink.to_json(schedule.fields), path)


def run(
    schedule: method.Schedule,
    federation: types.Federation,
    folder: str,
    copies: str | None = None,
    evaluations: Mapping[str, Callable[[Any], Mapping[str, float]]] | None = None,
) -> tuple[training.ProgramState, str]:
  """Runs or resumes in `folder`, with a checkpoint after each round.

  Args:
    schedule: What to run.
    federation: On which clients.
    folder: The run directory.
    copies: Where a copy of it as it is after each round goes, under the round's number.
    evaluations: By name, what is measured after each round.

  Returns:
    The last state, and the text of `metrics.csv`.
  """
  run_dir = run_directory.RunDirectory(folder)

  def on_round(result):
    if copies is not None:
      shutil.copytree(folder, os.path.join(copies, str(result.round_num)))

  state = asyncio.run(
      training.run_schedule(
          schedule=schedule,
          federation=federation,
          datasets=client_data.federation_datasets(federation),
          evaluations=evaluations or {},
          state_manager=managers.build_state_manager(run_dir),
          metrics_managers=managers.build_metrics_managers(run_dir),
          timing_manager=managers.build_timing_manager(run_dir),
          on_round=on_round,
          eval_every=1,
          checkpoint_every=1,
          ledger=open_ledger(schedule, run_dir.file('ledger.jsonl')),
      )
  )
  with open(run_dir.file('metrics.csv'), encoding='utf-8') as file:
    return state, file.read()


class FederatedTestCase(parameterized.TestCase):
  """Starts one worker for the class, stops it after the last test."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    stack = contextlib.ExitStack()
    cls.addClassCleanup(stack.close)
    stack.enter_context(local.runtime(max_concurrent_clients=2))
