"""Seconds a round of what methods add to training, against training alone, interleaved.

  python -m benchmarks.round_cost [NAME...]

FedDPCont is to cost at most 5 % more than FedAvg; LID and mixture at most 10 % of a round of
FedCorr's pre-processing at 500 examples a client; ClipFL's judging of 10 models of 1.6 M parameters
on 5,000 images less than the training of the round. The contenders of a workload take turns, so
that whatever else the machine does meets them all; medians, and the first a second time as the
control.
"""

import functools
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

# pylint: disable=wrong-import-position
import tensorflow as tf

from tff_noise import types
from tff_noise.data import client_data
from tff_noise.data import noise
from tff_noise.data import partition
from tff_noise.data import scene
from tff_noise.data import sources
from tff_noise.federated import judges
from tff_noise.federated import uplink
from tff_noise.methods import fedcorr
from tff_noise.methods import fedcorr_clients
from tff_noise.methods import feddpcont
from tff_noise.methods import method
from tff_noise.methods import plain
from tff_noise.models import architectures
from tff_noise.models import keras_model
from tff_noise.program import runtime
from tff_noise.selection import availability

_IMAGE = (32, 32, 3)
_NUM_CLASSES = 10
_NUM_JUDGED_ON = 5000
_WARM_UP = 1


class Workload(NamedTuple):
  """Contenders that take turns; each runs one round when called.

  Attributes:
    title: Printed.
    repeats: How often each runs.
    contenders: By name; ratios are to the first.
  """

  title: str
  repeats: int
  contenders: Mapping[str, Callable[[], Any]]


def _round(process, datasets, *more):
  """A round, always from the same state: what is trained does not change what it costs."""
  state = process.initialize()
  return lambda: process.next(state, datasets, *more)


def _images(num_clients, size):
  draw = np.random.default_rng(0)
  return [
      client_data.client_dataset(
          draw.integers(0, 256, (size, *_IMAGE)).astype(np.uint8),
          draw.integers(0, _NUM_CLASSES, size),
          i,
      )
      for i in range(num_clients)
  ]


def _cnn():
  return keras_model.from_keras(architectures.cnn(_IMAGE, _NUM_CLASSES, pixel_scale=1 / 255))


def _large_cnn():
  """The small CNN with a wider dense layer: 1.6 M parameters."""
  image = tf.keras.Input(_IMAGE, dtype=tf.uint8)
  x = tf.keras.layers.Rescaling(1 / 255)(image)
  for filters in (32, 64):
    x = tf.keras.layers.Conv2D(filters, 5, padding='same', activation='relu')(x)
    x = tf.keras.layers.MaxPooling2D()(x)
  x = tf.keras.layers.Dense(380, activation='relu')(tf.keras.layers.Flatten()(x))
  logits = tf.keras.layers.Dense(_NUM_CLASSES)(x)
  return keras_model.from_keras(tf.keras.Model(image, [logits, x]))


def _label_communication(title, model, training, datasets, repeats):
  fed_avg = _round(plain.build_process(model, training=training).process, datasets)
  return Workload(title, repeats, {
      'fedavg': fed_avg,
      'feddpcont': _round(feddpcont.build_process(model, training=training).process, datasets),
  })


def _digits():
  dataset = sources.load(sources.DataSpec('digits'))
  spec = scene.SceneSpec(
      partition.PartitionSpec('openset_uniform', 20), noise.NoiseSpec('symmetric', rate=0.4)
  )
  federation = scene.federation(dataset, scene.build(dataset, spec, 0), 0)
  return _label_communication(
      'FedDPCont, 10 clients of digits',
      keras_model.from_keras(architectures.mlp((8, 8, 1), 10, pixel_scale=1 / 16)),
      types.LocalTraining(5, 32, 0.05),
      client_data.federation_datasets(federation)[:10],
      150,
  )


def _small_images():
  return _label_communication(
      'FedDPCont, 50 clients x 50 images', _cnn(), types.LocalTraining(1, 10, 0.05),
      _images(50, 50), 20,
  )


def _task(model, training, num_clients, size):
  return method.Task(
      model=model, training=training, aggregation=None, label_privacy=None, rounds=1, stages={},
      clients_per_round=num_clients, availability=availability.always(num_clients),
      client_sizes=np.full(num_clients, size), seed=0,
  )


def _label_correction(size, repeats):
  """One client, as in FedCorr's pre-processing; 5 epochs of batches of 10, the paper's."""
  training = types.LocalTraining(5, 10, 0.01)
  datasets = _images(1, size)
  task = _task(_cnn(), training, 1, size)
  # Without the proximal term, which is no statistic, fine-tuning is pre-processing without them.
  params = fedcorr.FedCorrParams(mixup=False, proximal=0.0)
  parts = fedcorr_clients.build(task, params)
  examples = types.ClientExamples(None, np.zeros(size, np.int32), None)
  own = fedcorr.initial_local(examples)
  state = [uplink.ClientState(own, ())]
  weights = parts.finetune.process.initialize().global_model_weights
  return Workload(f'FedCorr, a client of {size:,} images', repeats, {
      'training': _round(parts.finetune.process, datasets, state),
      'training, LID': _round(parts.preprocess.process, datasets, state),
      'mixture and relabelling': lambda: parts.correct.run(weights, datasets, [own]),
  })


def _judging(local_epochs, repeats):
  training = types.LocalTraining(local_epochs, 10, 0.01)
  datasets = _images(10, 500)
  task = _task(_large_cnn(), training, 10, 500)
  work = plain.cross_entropy_work(training)
  judged = task.build_process(work, judge=judges.validation(task.model, 5)).process
  [held] = _images(1, _NUM_JUDGED_ON)
  return Workload(
      f'ClipFL, 10 clients x 500 images, {local_epochs} epoch, 5,000 clean images', repeats, {
          'fedavg': _round(task.build_process(work).process, datasets),
          'judged': _round(judged, datasets, [uplink.ClientState()] * len(datasets), held),
      },
  )


_WORKLOADS = {
    'feddpcont_digits': _digits,
    'feddpcont_images': _small_images,
    'fedcorr_500': functools.partial(_label_correction, 500, 10),
    'fedcorr_5000': functools.partial(_label_correction, 5000, 4),
    'clipfl': functools.partial(_judging, 1, 3),
}


def _measure(workload):
  """float64 seconds by contender; the order turns, so that no one always follows the same."""
  names = list(workload.contenders)
  turns = {**workload.contenders, f'{names[0]} again': workload.contenders[names[0]]}
  names = list(turns)
  seconds = {name: [] for name in names}
  for repeat in range(workload.repeats + _WARM_UP):
    first = repeat % len(names)
    for name in names[first:] + names[:first]:
      start = time.perf_counter()
      turns[name]()
      seconds[name].append(time.perf_counter() - start)
  return {name: np.array(values[_WARM_UP:]) for name, values in seconds.items()}


def main(names):
  """Prints the table of the workloads of these names; all without any."""
  print('| workload | contender | median s a round | min - max | ratio to the first |')
  print('| --- | --- | --- | --- | --- |')
  with runtime.local(2):
    for name in names or _WORKLOADS:
      workload = _WORKLOADS[name]()
      seconds = _measure(workload)
      first = np.median(next(iter(seconds.values())))
      for contender, values in seconds.items():
        print(
            f'| {workload.title} | {contender} | {np.median(values):.4f} | {values.min():.4f} - '
            f'{values.max():.4f} | {np.median(values) / first:.3f} |',
            flush=True,
        )
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
