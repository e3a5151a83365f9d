"""FedAvg under `tff.simulation.run_training_process`.

  python -m docs.examples.run_training_process FOLDER
"""

import os
import random
import sys

import tensorflow_federated as tff

from docs.examples import digits
from tff_noise import types
from tff_noise.algorithms import plain
from tff_noise.federated import evaluation
from tff_noise.federated import task as task_lib
from tff_noise.runtimes import local

_ROUNDS = 6


def main(folder: str) -> float:
  """Trains; returns the test accuracy and leaves `metrics.csv` and states in `folder`."""
  data = digits.load()
  training = types.LocalTraining(epochs=2, batch_size=32, learning_rate=0.1)
  process = plain.build_process(task_lib.Task(data.model, training)).process
  evaluate = evaluation.build_evaluator(evaluation.build_evaluation(data.model), data.test)

  def select(round_num):
    return random.Random(round_num).sample(data.clients, 5)

  with local.runtime(max_concurrent_clients=2):
    state = tff.simulation.run_training_process(
        training_process=process,
        training_selection_fn=select,
        total_rounds=_ROUNDS,
        evaluation_fn=lambda state, _: evaluate(process.get_model_weights(state)),
        evaluation_selection_fn=lambda round_num: None,
        program_state_manager=tff.program.FileProgramStateManager(os.path.join(folder, 'state')),
        metrics_managers=[
            tff.program.CSVFileReleaseManager(
                os.path.join(folder, 'metrics.csv'), key_fieldname='round'
            )
        ],
    )
    accuracy = evaluate(process.get_model_weights(state))['accuracy']
  print(f'test accuracy {accuracy:.3f} after {_ROUNDS} rounds')
  return accuracy


if __name__ == '__main__':
  if len(sys.argv) != 2:
    sys.exit('give a folder for what comes of it, as in the docstring')
  main(sys.argv[1])
