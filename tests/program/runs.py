"""Runs of algorithms on a simulation's clients, by the training loop of the programs."""

import asyncio
import os
import shutil
from collections.abc import Callable, Mapping
from typing import Any

from tff_noise import types
from tff_noise.algorithms import algorithm as algorithm_lib
from tff_noise.data import client_data
from tff_noise.federated import task as task_lib
from tff_noise.privacy import ledger as ledger_lib
from tff_noise.program import clients as clients_lib
from tff_noise.program import managers
from tff_noise.program import run_directory
from tff_noise.program import training
from tff_noise.uplink import uplink


def open_ledger(algorithm: algorithm_lib.Algorithm, path: str = '') -> ledger_lib.Ledger:
  """Returns the ledger of a run of `algorithm`, in memory if no path is given."""
  return ledger_lib.Ledger(algorithm.fields, uplink.to_json(algorithm.fields), path)


def clients_of(
    algorithm: algorithm_lib.Algorithm,
    task: task_lib.Task,
    federation: types.Federation,
    ledger: ledger_lib.Ledger | None = None,
) -> clients_lib.SimulatedClients:
  """Returns the clients before the first round, with a ledger in memory if none is given."""
  return clients_lib.SimulatedClients(
      algorithm, task, federation, client_data.federation_datasets(federation),
      ledger or open_ledger(algorithm),
  )


def all_rounds(
    algorithm: algorithm_lib.Algorithm,
    task: task_lib.Task,
    federation: types.Federation,
) -> tuple[algorithm_lib.State, clients_lib.SimulatedClients, ledger_lib.Ledger]:
  """Runs all rounds without the programs' loop; returns the last state, the clients, the ledger."""
  ledger = open_ledger(algorithm)
  clients, state = clients_of(algorithm, task, federation, ledger), algorithm.init()
  while state.round_num < algorithm.rounds:
    state = training.run_round(algorithm, state, clients)
  return state, clients, ledger


def run(
    algorithm: algorithm_lib.Algorithm,
    task: task_lib.Task,
    federation: types.Federation,
    folder: str,
    copies: str | None = None,
    evaluations: Mapping[str, Callable[[Any], Mapping[str, float]]] | None = None,
    **more: Any,
) -> tuple[training.ProgramState, str]:
  """Runs or resumes in `folder`, with a checkpoint after each round.

  Args:
    algorithm: What to run.
    task: What it was built from.
    federation: On which clients.
    folder: The run directory.
    copies: Where a copy of it as it is after each round goes, under the round's number.
    evaluations: By name, what is measured after each round.
    **more: Further arguments of `training.run`, or others in place of these.

  Returns:
    The last state, and the text of `metrics.csv`.
  """
  run_dir = run_directory.RunDirectory(folder)
  ledger = open_ledger(algorithm, run_dir.file('ledger.jsonl'))

  def on_round(result):
    if copies is not None:
      shutil.copytree(folder, os.path.join(copies, str(result.round_num)))

  state = asyncio.run(
      training.run(**{
          'algorithm': algorithm,
          'clients': clients_of(algorithm, task, federation, ledger),
          'evaluations': evaluations or {},
          'state_manager': managers.build_state_manager(run_dir),
          'metrics_managers': managers.build_metrics_managers(run_dir, list(algorithm.stages)),
          'timing_manager': managers.build_timing_manager(run_dir),
          'on_round': on_round,
          'eval_every': 1,
          'checkpoint_every': 1,
          'ledger': ledger,
          **more,
      })
  )
  with open(run_dir.file('metrics.csv'), encoding='utf-8') as file:
    return state, file.read()


def states(
    algorithm: algorithm_lib.Algorithm,
    task: task_lib.Task,
    federation: types.Federation,
    rounds: int | None = None,
    ledger: ledger_lib.Ledger | None = None,
) -> list[training.ProgramState]:
  """Returns the state before the first round and after each.

  Args:
    algorithm: What to run.
    task: What it was built from.
    federation: On which clients.
    rounds: How many; all if not given.
    ledger: Where it is entered what clients send; one in memory if not given.
  """
  ledger = ledger or open_ledger(algorithm)
  clients = clients_of(algorithm, task, federation, ledger)
  found = [training.program_state(algorithm.init(), clients, ledger)]
  for _ in range(algorithm.rounds if rounds is None else rounds):
    state = training.run_round(algorithm, found[-1].state, clients)
    found.append(training.program_state(state, clients, ledger))
  return found
