"""A whole method, server steps and stages with it, in a program without flags and files: FedTally.

  python -m docs.examples.run_method
"""

from docs.examples import digits
from tff_noise import types
from tff_noise.algorithms import catalog
from tff_noise.federated import evaluation
from tff_noise.federated import task as task_lib
from tff_noise.privacy import ledger as ledger_lib
from tff_noise.program import clients as clients_lib
from tff_noise.program import training
from tff_noise.runtimes import local
from tff_noise.uplink import uplink

_ROUNDS = 15


def main() -> float:
  """Trains; returns the test accuracy."""
  data = digits.load()
  task = task_lib.Task(
      data.model,
      types.LocalTraining(epochs=1, batch_size=32, learning_rate=0.1),
      client_sizes=data.federation.sizes,
      clients_per_round=5,
      rounds=_ROUNDS,
  )
  entry = catalog.ALGORITHMS['fedtally']
  algorithm = entry.build(task, entry.params(average=0.8, elr_weight=2.0))
  # What is released is entered before it is; with a path into a file, here in memory.
  ledger = ledger_lib.Ledger(algorithm.fields, uplink.to_json(algorithm.fields))
  test = evaluation.build_evaluators(data.model, {'test': data.test})['test']

  with local.runtime(max_concurrent_clients=2):
    clients = clients_lib.SimulatedClients(algorithm, task, data.federation, data.clients, ledger)
    state = training.initial_state(algorithm)
    while state.round_num < algorithm.rounds:
      state = training.run_round(algorithm, state, clients)
      print(
          f'round {state.round_num} ({algorithm.stage_of(state.round_num)}): '
          f'{clients.traffic.clients} clients sent {clients.traffic.bytes_up:,} bytes'
      )
    own = clients_lib.by_client(clients.own, len(data.clients))
    accuracy = test(algorithm.evaluated(state, own))['accuracy']
  print(f'test accuracy {accuracy:.3f} after {_ROUNDS} rounds')
  return accuracy


if __name__ == '__main__':
  main()
