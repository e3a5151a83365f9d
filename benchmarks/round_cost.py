"""Seconds a round of each method, interleaved: FedDPCont is to cost at most 5 % more than FedAvg.

  python -m benchmarks.round_cost

Two workloads: the default job's digits, where a round is mostly overhead, and 50 clients of 50
images of CIFAR-10's size on the small CNN. The methods take turns, so that whatever else the
machine does meets them all; medians, and FedAvg a second time as the control.
"""

import os
import sys
import time

import numpy as np

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

# pylint: disable=wrong-import-position
from tff_noise import types
from tff_noise.data import client_data
from tff_noise.data import noise
from tff_noise.data import partition
from tff_noise.data import scene
from tff_noise.data import sources
from tff_noise.methods import feddpcont
from tff_noise.methods import plain
from tff_noise.models import architectures
from tff_noise.models import keras_model
from tff_noise.program import runtime


def _digits():
  dataset = sources.load(sources.DataSpec('digits'))
  spec = scene.SceneSpec(
      partition.PartitionSpec('openset_uniform', 20), noise.NoiseSpec('symmetric', rate=0.4)
  )
  federation = scene.federation(dataset, scene.build(dataset, spec, 0), 0)
  model = keras_model.from_keras(architectures.mlp((8, 8, 1), 10, pixel_scale=1 / 16))
  return model, types.LocalTraining(5, 32, 0.05), client_data.federation_datasets(federation)[:10]


def _cifar_sized():
  rng = np.random.default_rng(0)
  model = keras_model.from_keras(architectures.cnn((32, 32, 3), 10, pixel_scale=1 / 255))
  datasets = [
      client_data.client_dataset(
          rng.integers(0, 256, (50, 32, 32, 3)).astype(np.uint8), rng.integers(0, 10, 50), i
      )
      for i in range(50)
  ]
  return model, types.LocalTraining(1, 10, 0.05), datasets


def _measure(model, training, datasets, repeats):
  processes = {
      'fedavg': plain.build_process(model, training=training).process,
      'feddpcont': feddpcont.build_process(model, training=training).process,
      'fedavg again': plain.build_process(model, training=training).process,
  }
  states = {name: process.initialize() for name, process in processes.items()}
  seconds = {name: [] for name in processes}
  for repeat in range(repeats + 2):
    # The order turns, so that no method always follows the same one.
    names = list(processes)
    names = names[repeat % 3 :] + names[: repeat % 3]
    for name in names:
      start = time.perf_counter()
      states[name] = processes[name].next(states[name], datasets).state
      seconds[name].append(time.perf_counter() - start)
  return {name: np.array(values[2:]) for name, values in seconds.items()}


def main():
  """Prints the table."""
  print('| workload | method | median s a round | min - max | ratio to fedavg |')
  print('| --- | --- | --- | --- | --- |')
  with runtime.local(2):
    workloads = (('digits', _digits, 150), ('50 x 50 images', _cifar_sized, 20))
    for title, workload, repeats in workloads:
      seconds = _measure(*workload(), repeats)
      for name, values in seconds.items():
        ratio = np.median(values) / np.median(seconds['fedavg'])
        print(
            f'| {title} | {name} | {np.median(values):.4f} | {values.min():.4f} - '
            f'{values.max():.4f} | {ratio:.3f} |'
        )
  return 0


if __name__ == '__main__':
  sys.exit(main())
