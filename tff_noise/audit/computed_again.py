"""A run's rounds, computed again by this code with the clients' data."""

from tff_noise.algorithms import algorithm as algorithm_lib
from tff_noise.data import client_data
from tff_noise.privacy import ledger
from tff_noise.program import clients as clients_lib
from tff_noise.program import run_config
from tff_noise.program import task as task_lib
from tff_noise.program import training
from tff_noise.program import training_run
from tff_noise.uplink import uplink


def begin(
    config: run_config.RunConfig, prepared: task_lib.Prepared
) -> tuple[clients_lib.SimulatedClients, algorithm_lib.State]:
  """Returns a run's clients, with a ledger of their own, and its state, before its first round.

  Args:
    config: The run's.
    prepared: Its method.
  """
  algorithm, task, federation = prepared.algorithm, prepared.task, prepared.federation
  book = ledger.Ledger(algorithm.fields, uplink.to_json(algorithm.fields))
  datasets = client_data.federation_datasets(federation)
  clients = clients_lib.SimulatedClients(algorithm, task, federation, datasets, book)
  return clients, training.initial_state(algorithm, training_run.initial_weights(config, prepared))


def go_on(
    algorithm: algorithm_lib.Algorithm,
    clients: clients_lib.SimulatedClients,
    state: algorithm_lib.State,
    round_num: int,
) -> algorithm_lib.State:
  """Returns the state after round `round_num` of a run whose clients and state are these."""
  while state.round_num < round_num:
    state = training.run_round(algorithm, state, clients)
  return state
