"""Seconds a round of what algorithms add to training, against training alone, interleaved.

  python -m benchmarks.round_cost [NAME...]

FedDPCont is to cost at most 5 % more than FedAvg; LID and mixture at most 10 % of a round of
FedCorr's pre-processing at 500 examples a client; ClipFL's comparing 10 models of 1.6 M parameters
on 5,000 images less than the training of the round. The contenders of a workload take turns, so
that whatever else the machine does meets them all; medians, and the first a second time as the
control.
"""

import functools
import os
import sys

import numpy as np

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

from benchmarks import contest
from benchmarks import workloads
from tff_noise import types
from tff_noise.algorithms import fedcorr_clients
from tff_noise.algorithms import fedcorr_params
from tff_noise.algorithms import feddpcont
from tff_noise.algorithms import plain
from tff_noise.clients import program
from tff_noise.data import client_data
from tff_noise.data import noise
from tff_noise.data import partition
from tff_noise.data import scene
from tff_noise.data import sources
from tff_noise.federated import computation
from tff_noise.federated import selectors
from tff_noise.federated import task as task_lib
from tff_noise.models import architectures
from tff_noise.models import keras_model
from tff_noise.runtimes import local


def _round(built, datasets, *more):
  """A round, always from the same state: what is trained does not change what it costs."""
  process = built.process
  state = process.initialize()
  return lambda: process.next(state, datasets, *more)


def _images(num_clients, size):
  return [
      client_data.client_dataset(x, y, client)
      for client, (x, y) in enumerate(workloads.images(num_clients, size))
  ]


def _cnn():
  return keras_model.from_keras(workloads.cnn())


def _label_communication(title, task, datasets, repeats):
  return contest.Workload(title, repeats, {
      'fedavg': _round(plain.build_process(task), datasets),
      'feddpcont': _round(feddpcont.build_process(task), datasets),
  })


def _digits():
  dataset = sources.load(sources.DataSpec('digits'))
  spec = scene.SceneSpec(
      partition.PartitionSpec('openset_uniform', 20), noise.NoiseSpec('symmetric', rate=0.4)
  )
  federation = scene.federation(dataset, scene.build(dataset, spec, 0), 0)
  network = architectures.mlp((8, 8, 1), 10, pixel_scale=1 / 16)
  return _label_communication(
      'FedDPCont, 10 clients of digits',
      task_lib.Task(keras_model.from_keras(network), types.LocalTraining(5, 32, 0.05)),
      client_data.federation_datasets(federation)[:10],
      150,
  )


def _small_images():
  return _label_communication(
      'FedDPCont, 50 clients x 50 images',
      task_lib.Task(_cnn(), types.LocalTraining(1, 10, 0.05)),
      _images(50, 50),
      20,
  )


def _label_correction(size, repeats):
  """One client, as in FedCorr's pre-processing; 5 epochs of batches of 10, the paper's."""
  datasets, labels = _images(1, size), np.zeros(size, np.int32)
  task = task_lib.Task(_cnn(), types.LocalTraining(5, 10, 0.01), client_sizes=np.array([size]))
  # Without the proximal term, which is no statistic, fine-tuning is pre-processing without them.
  c = fedcorr_clients.build(task, fedcorr_params.FedCorrParams(mixup=False, proximal=0.0))
  weights = c.finetune.process.initialize().global_model_weights
  broadcast = program.Broadcast(weights, np.int32(1), program.in_order({}))
  own = c.correct.initial_input(labels)
  judged = own._replace(messages=program.in_order({'noise': np.float32(0)}))
  return contest.Workload(f'FedCorr, a client of {size:,} images', repeats, {
      'training': _round(c.finetune, datasets, [c.finetune.initial_input(labels)]),
      'training, LID': _round(c.preprocess, datasets, [judged]),
      'mixture and relabelling': lambda: c.correct.next(broadcast, datasets, [own]),
  })


def _selection(local_epochs, size, clean, repeats):
  training = types.LocalTraining(local_epochs, 10, 0.01)
  datasets, labels = _images(10, size), np.zeros(size, np.int32)
  task = task_lib.Task(keras_model.from_keras(workloads.large_cnn()), training)
  selected = computation.train(
      'a round of identify', task, plain.client(training),
      selector=selectors.validation(task.model, 5),
  )
  [server_data] = _images(1, clean)
  return contest.Workload(
      f'ClipFL, 10 clients x {size} images, epochs: {local_epochs}, clean images: {clean:,}',
      repeats,
      {
          'fedavg': _round(plain.build_process(task), datasets),
          'clipfl': _round(
              selected, datasets, [selected.initial_input(labels)] * len(datasets), server_data
          ),
      },
  )


_WORKLOADS = {
    'feddpcont_digits': _digits,
    'feddpcont_images': _small_images,
    'fedcorr_500': functools.partial(_label_correction, 500, 10),
    'fedcorr_5000': functools.partial(_label_correction, 5000, 4),
    'clipfl': functools.partial(_selection, 1, 500, 5000, 3),
    # The paper's ten epochs, a tenth of the images on both sides.
    'clipfl_paper': functools.partial(_selection, 10, 50, 500, 5),
}


def main(names):
  """Prints the table of the workloads of these names; all without any."""
  contest.print_heading()
  with local.runtime(2):
    for name in names or _WORKLOADS:
      contest.run(_WORKLOADS[name]())
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
