"""SCAFFOLD, whose clients keep a control variate between rounds, in a loop of one's own.

  python -m docs.examples.client_state
"""

import random

from docs.examples import digits
from tff_noise import types
from tff_noise.federated import evaluation
from tff_noise.federated import optimizer as optimizer_lib
from tff_noise.federated import uplink
from tff_noise.methods import plain
from tff_noise.optimizers import registry
from tff_noise.runtimes import local

_ROUNDS = 6


def main() -> float:
  """Trains; returns the test accuracy."""
  data = digits.load()
  training = types.LocalTraining(epochs=2, batch_size=32, learning_rate=0.1)
  entry = registry.OPTIMIZERS['scaffold']
  optimizer = entry.build(
      optimizer_lib.Setting(
          data.model, training, data.federation.sizes, clients_per_round=5, seed=0
      ),
      entry.params(),
  )
  process = plain.build_process(data.model, training=training, optimizer=optimizer).process
  evaluate = evaluation.build_evaluator(evaluation.build_evaluation(data.model), data.test)

  # By client id; `own` is for the method, which keeps nothing here.
  kept = [uplink.ClientState(own=(), optimizer=optimizer.client.initial_state)] * len(data.clients)
  with local.runtime(max_concurrent_clients=2):
    state = process.initialize()
    for round_num in range(1, _ROUNDS + 1):
      cohort = random.Random(round_num).sample(range(len(data.clients)), 5)
      output = process.next(state, [data.clients[i] for i in cohort], [kept[i] for i in cohort])
      state = output.state
      for client, own in uplink.by_client(output.local, cohort).items():
        kept[client] = own
    accuracy = evaluate(process.get_model_weights(state))['accuracy']
  print(f'test accuracy {accuracy:.3f} after {_ROUNDS} rounds')
  return accuracy


if __name__ == '__main__':
  main()
