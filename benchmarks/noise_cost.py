"""Seconds a round without noise, with the server's Gaussian and with the clients' discrete one.

  python -m benchmarks.noise_cost [NAME...]

All train the CNN of 1.6 M parameters of `round_time`, for one epoch of FedAvg. `docs/privacy.md`
has its table.
"""

import functools
import os
import sys

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

from benchmarks import contest
from benchmarks import workloads
from tff_noise import types
from tff_noise.algorithms import plain
from tff_noise.data import client_data
from tff_noise.federated import aggregation
from tff_noise.federated import task as task_lib
from tff_noise.models import keras_model
from tff_noise.privacy import protection
from tff_noise.runtimes import local

_LEARNING_RATE = 0.01


def _rounds(aggregate, clients, batch_size):
  """A function that runs a round."""
  training = types.LocalTraining(1, batch_size, _LEARNING_RATE)
  model = keras_model.from_keras(workloads.large_cnn())
  process = plain.build_process(task_lib.Task(model, training, aggregation=aggregate)).process
  datasets = [client_data.client_dataset(x, y, i) for i, (x, y) in enumerate(clients)]
  state = process.initialize()
  return lambda: process.next(state, datasets)


def _noisy(mechanism, cohort):
  claim = protection.NoisySum(1.0, 0.3, cohort=cohort, population=cohort, mechanism=mechanism)
  return aggregation.dp_mean(claim, noise_key=bytes(32), secure=False)


def _workload(num_clients, size, batch_size, repeats):
  clients = workloads.images(num_clients, size)
  return contest.Workload(
      f'{num_clients} clients x {size} images, batch {batch_size}',
      repeats,
      {
          'Gaussian': _rounds(_noisy(protection.GAUSSIAN, num_clients), clients, batch_size),
          'no noise': _rounds(aggregation.weighted_mean(), clients, batch_size),
          'discrete Gaussian': _rounds(
              _noisy(protection.DISCRETE_GAUSSIAN, num_clients), clients, batch_size
          ),
      },
  )


_WORKLOADS = {
    '50x50': functools.partial(_workload, 50, 50, 10, 12),
    '10x500': functools.partial(_workload, 10, 500, 32, 12),
}


def main(names):
  """Prints the table of the workloads of these names; all without any."""
  contest.print_heading()
  with local.runtime(2):
    for name in names or _WORKLOADS:
      contest.run(_WORKLOADS[name]())


if __name__ == '__main__':
  main(sys.argv[1:])
