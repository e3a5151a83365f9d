"""SCAFFOLD, whose clients keep a control variate between rounds, in a loop of one's own.

  python -m docs.examples.client_state
"""

import random

from docs.examples import digits
from tff_noise import types
from tff_noise.algorithms import plain
from tff_noise.federated import evaluation
from tff_noise.federated import task as task_lib
from tff_noise.optimizers import catalog
from tff_noise.runtimes import local
from tff_noise.uplink import uplink

_ROUNDS = 6


def main() -> float:
  """Trains; returns the test accuracy."""
  data = digits.load()
  task = task_lib.Task(
      data.model,
      types.LocalTraining(epochs=2, batch_size=32, learning_rate=0.1),
      client_sizes=data.federation.sizes,
  )
  scaffold = catalog.OPTIMIZERS['scaffold']
  built = plain.build_process(task._replace(optimizer=scaffold.build(task, scaffold.params())))
  process = built.process
  evaluate = evaluation.build_evaluator(evaluation.build_evaluation(data.model), data.test)

  # By client id.
  inputs = [built.initial_input(examples.y) for examples in data.federation.clients]
  with local.runtime(max_concurrent_clients=2):
    state = process.initialize()
    for round_num in range(1, _ROUNDS + 1):
      cohort = random.Random(round_num).sample(range(len(data.clients)), 5)
      output = process.next(state, [data.clients[i] for i in cohort], [inputs[i] for i in cohort])
      state = output.state
      for client, own in uplink.by_client(output.local, cohort).items():
        inputs[client] = inputs[client]._replace(own=own)
    accuracy = evaluate(process.get_model_weights(state))['accuracy']
  print(f'test accuracy {accuracy:.3f} after {_ROUNDS} rounds')
  return accuracy


if __name__ == '__main__':
  main()
