"""Seconds and memory when clients, cohorts and models become many and large.

  python -m benchmarks.scale [PART...]

* population: 100 to 10,000 clients of the same size, cohorts of 20 of them: what the training loop
  takes in the driver and in the worker. FedDPCont, since all clients take part in its labels.
* cohort: 10 to 500 small clients a round.
* model: 0.1 to 11 million parameters, 10 clients a round.
* stack: the worker's memory where the server sees single models, 5 to 80 clients a round.
* labels: FedDPCont's label communication of 1,000,000 clients. Every label is flipped, by the NumPy
  form; of 100 shards that are summed one after the other, one is flipped and summed in TFF.

Memory is what is resident in a process of its own, in MiB.
"""

import functools
import gc
import multiprocessing
import os
import re
import sys
import time

import numpy as np
import psutil

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

from benchmarks import contest
from benchmarks import workloads
from tff_noise import types
from tff_noise.algorithms import catalog
from tff_noise.algorithms import plain
from tff_noise.data import client_data
from tff_noise.federated import computation
from tff_noise.federated import label_histogram
from tff_noise.federated import selectors
from tff_noise.federated import task as task_lib
from tff_noise.models import architectures
from tff_noise.models import keras_model
from tff_noise.models import resnet
from tff_noise.privacy import estimator
from tff_noise.privacy import ledger as ledger_lib
from tff_noise.privacy import mechanism as mechanism_lib
from tff_noise.privacy import protection
from tff_noise.program import clients as clients_lib
from tff_noise.program import training
from tff_noise.runtimes import local
from tff_noise.uplink import uplink

_MIB = 2**20
_EPSILON = '0.81'
_ONE_EPOCH = types.LocalTraining(1, 10, 0.01)

_IMAGES_PER_CLIENT = 20
_POPULATIONS = (100, 1_000, 10_000)
_COHORT = 20
_POPULATION_ROUNDS = 20

_COHORTS = (10, 50, 100, 200, 500)
_COHORT_REPEATS = 4

# Of the CNN's dense layer: 0.1, 1.6 and 11.0 million parameters.
_UNITS = (12, 380, 2660)
_MODEL_CLIENTS = 10
_MODEL_ROUNDS = 6

_STACK_COHORTS = (5, 10, 20, 40, 80)
_CLEAN_IMAGES = 100

_LABEL_CLIENTS = 1_000_000
_LABELS_PER_CLIENT = 5
_SHARD_CLIENTS = 10_000


def _resident(pid='self', field='VmRSS'):
  """MiB of a process; its most ever with 'VmHWM'."""
  with open(f'/proc/{pid}/status', encoding='utf-8') as file:
    return int(re.search(rf'{field}:\s+(\d+)', file.read())[1]) / 1024


def _worker():
  """The process id of TFF's worker."""
  [worker] = [p for p in psutil.Process().children(recursive=True) if p.name() == 'worker_binary']
  return worker.pid


def _fresh(function, *args):
  """Returns the result of `function` in a process that has done nothing else."""
  print(f'{function.__name__} {args}', file=sys.stderr, flush=True)
  with multiprocessing.get_context('spawn').Pool(1) as pool:
    return pool.apply(function, args)


def _table(*columns):
  print('| ' + ' | '.join(columns) + ' |')
  print('|' + ' --- |' * len(columns), flush=True)


def _row(*values):
  print('| ' + ' | '.join(values) + ' |', flush=True)


def _federation(num_clients):
  draw = np.random.default_rng(0)
  clients = [
      types.ClientExamples(
          draw.integers(0, 256, (_IMAGES_PER_CLIENT, 16, 16, 1)).astype(np.uint8),
          draw.integers(0, 10, _IMAGES_PER_CLIENT).astype(np.int32),
          np.arange(i * _IMAGES_PER_CLIENT, (i + 1) * _IMAGES_PER_CLIENT),
      )
      for i in range(num_clients)
  ]
  return types.Federation(tuple(clients), num_classes=10, seed=0)


def _fed_dp_cont(federation):
  """Returns the task and the algorithm."""
  network = architectures.mlp((16, 16, 1), federation.num_classes, pixel_scale=1 / 255)
  task = task_lib.Task(
      keras_model.from_keras(network), _ONE_EPOCH, client_sizes=federation.sizes,
      clients_per_round=_COHORT, rounds=1 + _POPULATION_ROUNDS,
  )
  entry = catalog.ALGORITHMS['feddpcont']
  return task, entry.build(task, entry.params())


def _population(num_clients):
  """Returns MiB before the clients, of their data, of driver and worker after; seconds."""
  _, algorithm = _fed_dp_cont(_federation(2))
  with local.runtime(2):
    # What TensorFlow takes with its first computation is not the clients'.
    algorithm.init()
    before = _resident()
    federation = _federation(num_clients)
    task, algorithm = _fed_dp_cont(federation)
    clients = clients_lib.SimulatedClients(
        algorithm, task, federation, client_data.federation_datasets(federation),
        ledger_lib.Ledger(algorithm.fields, uplink.to_json(algorithm.fields), ''),
    )
    state = algorithm.init()
    marks = [time.perf_counter()]
    for _ in range(algorithm.rounds):
      state = training.run_round(algorithm, state, clients)
      marks.append(time.perf_counter())
    gc.collect()
    seconds = np.diff(marks)
    pixels = sum(client.x.nbytes for client in federation.clients) / _MIB
    return (
        pixels, _resident() - before, _resident(), _resident(_worker()),
        _resident(_worker(), 'VmHWM'), seconds[0], np.median(seconds[1:]),
    )


def population() -> None:
  """Prints what the number of clients costs."""
  _table(
      'clients', 'MiB of pixels', 'driver, more than before', 'driver', 'worker',
      'worker at most', 's of labels and first round', 's a round',
  )
  for num_clients in _POPULATIONS:
    *memory, first, others = _fresh(_population, num_clients)
    _row(f'{num_clients:,}', *(f'{m:.0f}' for m in memory), f'{first:.1f}', f'{others:.3f}')


def cohort() -> None:
  """Prints what a client more in the round costs, and how far from a line it is."""
  clients = [
      client_data.client_dataset(x, y, i)
      for i, (x, y) in enumerate(workloads.images(max(_COHORTS), _IMAGES_PER_CLIENT))
  ]
  process = plain.build_process(
      task_lib.Task(keras_model.from_keras(workloads.cnn()), _ONE_EPOCH)
  ).process
  with local.runtime(2):
    state = process.initialize()
    memory = []
    for size in _COHORTS:  # Ascending, so that the most ever is that of the last.
      process.next(state, clients[:size])
      memory.append(_resident(_worker(), 'VmHWM'))
    seconds = contest.measure(contest.Workload('cohort', _COHORT_REPEATS, {
        str(size): functools.partial(process.next, state, clients[:size]) for size in _COHORTS
    }))
  medians = np.array([np.median(seconds[str(size)]) for size in _COHORTS])
  slope, start = np.polyfit(_COHORTS, medians, 1)
  line = start + slope * np.array(_COHORTS)
  _table('cohort', 'median s a round', 'min - max', 'ms a client', 'line', 'worker at most')
  for size, median, fitted, peak in zip(_COHORTS, medians, line, memory, strict=True):
    values = seconds[str(size)]
    _row(
        str(size), f'{median:.3f}', f'{values.min():.3f} - {values.max():.3f}',
        f'{1000 * median / size:.2f}', f'{fitted:.3f}', f'{peak:.0f}',
    )
  residual = ((medians - line) ** 2).sum() / ((medians - medians.mean()) ** 2).sum()
  print(f'\n{start:.3f} s + {1000 * slope:.2f} ms a client, R^2 = {1 - residual:.5f}', flush=True)


def _model(units):
  """Returns parameters, seconds a round, MiB of driver and worker; of ResNet-18 without units."""
  if units:
    network = workloads.large_cnn(units)
  else:
    network = resnet.resnet18(workloads.IMAGE, workloads.NUM_CLASSES, pixel_scale=1 / 255)
  parameters = network.count_params()
  clients = [
      client_data.client_dataset(x, y, i)
      for i, (x, y) in enumerate(workloads.images(_MODEL_CLIENTS, _IMAGES_PER_CLIENT))
  ]
  process = plain.build_process(
      task_lib.Task(keras_model.from_keras(network), _ONE_EPOCH)
  ).process
  with local.runtime(2):
    state = process.initialize()
    seconds = []
    for _ in range(1 + _MODEL_ROUNDS):
      start = time.perf_counter()
      state = process.next(state, clients).state
      seconds.append(time.perf_counter() - start)
    return (
        parameters, np.median(seconds[1:]), _resident(), _resident(_worker()),
        _resident(_worker(), 'VmHWM'),
    )


def model() -> None:
  """Prints what the size of the model costs."""
  _table('model', 'parameters', 'MiB of weights', 's a round', 'driver', 'worker', 'worker at most')
  for units in (*_UNITS, 0):
    parameters, seconds, *memory = _fresh(_model, units)
    name = f'CNN, dense layer of {units}' if units else 'ResNet-18'
    _row(
        name, f'{parameters:,}', f'{4 * parameters / _MIB:.1f}', f'{seconds:.2f}',
        *(f'{m:.0f}' for m in memory),
    )


def _stacked(size, selects):
  """Returns the worker's MiB at most; of FedAvg, or of ClipFL's round."""
  clients = [
      client_data.client_dataset(x, y, i)
      for i, (x, y) in enumerate(workloads.images(size, _IMAGES_PER_CLIENT))
  ]
  [(x, y)] = workloads.images(1, _CLEAN_IMAGES)
  network = keras_model.from_keras(workloads.large_cnn())
  built = computation.train(
      'a round', task_lib.Task(network, _ONE_EPOCH), plain.client(_ONE_EPOCH),
      selector=selectors.validation(network, size // 2) if selects else None,
  )
  process, more = built.process, ()
  if selects:
    more = ([built.initial_input(y)] * size, client_data.client_dataset(x, y, 0))
  with local.runtime(2):
    process.next(process.initialize(), clients, *more)
    return _resident(_worker(), 'VmHWM')


def stack() -> None:
  """Prints what the worker keeps where the server sees single models of 6.2 MiB."""
  _table('cohort', 'summed: worker at most', 'stacked: worker at most', 'stacked, a client')
  for size in _STACK_COHORTS:
    summed, stacked = (_fresh(_stacked, size, selects) for selects in (False, True))
    _row(str(size), f'{summed:.0f}', f'{stacked:.0f}', f'{stacked / size:.0f}')


def _shard(first, truth):
  """Returns the labels of one shard of clients, int64 `[clients, labels]`."""
  return np.random.default_rng(first).choice(
      len(truth), (_SHARD_CLIENTS, _LABELS_PER_CLIENT), p=truth
  )


def _flipped(labels, first, mechanism):
  """Returns the histogram of the reports of one shard of clients."""
  ids = np.arange(_LABELS_PER_CLIENT)
  reports = mechanism_lib.flip_all(
      [(y, ids, mechanism_lib.simulation_secret(0, first + i)) for i, y in enumerate(labels)],
      mechanism,
  )
  return mechanism_lib.histogram(np.concatenate(reports), mechanism.num_classes)


def _labels():
  """Returns names and values of what was measured."""
  truth = np.arange(1, 11) / 55
  mechanism = mechanism_lib.randomized_response(_EPSILON, len(truth))
  num_labels = _LABEL_CLIENTS * _LABELS_PER_CLIENT
  communicate, _ = label_histogram.build_label_histogram(
      len(truth), max_count=_LABELS_PER_CLIENT, max_clients=_LABEL_CLIENTS, mechanism=mechanism,
      protection=protection.LabelReports(len(truth), _EPSILON, num_labels=num_labels),
  )
  ids = np.arange(_LABELS_PER_CLIENT)
  federation = types.Federation(
      tuple(types.ClientExamples(None, y, ids) for y in _shard(0, truth)), len(truth), seed=0
  )
  with local.runtime(2):
    held = [label_histogram.client_labels(federation, i) for i in range(_SHARD_CLIENTS)]
    communicate(held)  # Compiles.
    start = time.perf_counter()
    through_tff = communicate(held)
    tff_seconds = time.perf_counter() - start
    np.testing.assert_array_equal(through_tff, _flipped(_shard(0, truth), 0, mechanism))
    worker = _resident(_worker(), 'VmHWM')
  before = _resident()
  total, exact = np.zeros((2, len(truth)), np.int64)
  flip_seconds = 0.0
  for first in range(0, _LABEL_CLIENTS, _SHARD_CLIENTS):
    shard = _shard(first, truth)
    start = time.perf_counter()
    total += _flipped(shard, first, mechanism)
    flip_seconds += time.perf_counter() - start
    exact += mechanism_lib.histogram(shard.ravel(), len(truth))
  grown = _resident() - before
  estimate = estimator.estimate(total, 'shrinkage', mechanism, num_labels=num_labels)
  error = np.abs(estimate.raw - exact / num_labels)
  shards = _LABEL_CLIENTS // _SHARD_CLIENTS
  many = np.random.default_rng(0).choice(len(truth), num_labels, p=truth)
  start = time.perf_counter()
  mechanism_lib.flip(
      many, np.arange(num_labels), mechanism_lib.simulation_secret(0, 0), mechanism
  )
  one_client_seconds = time.perf_counter() - start
  return {
      'clients, labels': f'{_LABEL_CLIENTS:,}, {num_labels:,}',
      'flips and counts, in NumPy': f'{flip_seconds:.0f} s',
      f'{num_labels:,} flips of one client, in NumPy': f'{one_client_seconds:.1f} s',
      f'a shard of {_SHARD_CLIENTS:,} clients in TFF': f'{tff_seconds:.1f} s',
      f'{shards} such shards (not run)': f'{shards * tff_seconds:.0f} s',
      'driver, more than before the flips': f'{grown:.0f} MiB',
      'worker at most': f'{worker:.0f} MiB',
      'largest standard error of a share': f'{estimate.standard_error.max():.6f}',
      'largest error of a share': f'{error.max():.6f}',
      'the same in standard errors': f'{(error / estimate.standard_error).max():.2f}',
  }


def labels() -> None:
  """Prints what the label communication of a million clients costs and gives."""
  _table('', 'measured')
  for name, value in _fresh(_labels).items():
    _row(name, value)


_PARTS = {part.__name__: part for part in (population, cohort, model, stack, labels)}


def main(names) -> None:
  """Prints the tables of these parts; of all without any."""
  for name in names or _PARTS:
    print(f'\n{name}\n', flush=True)
    _PARTS[name]()


if __name__ == '__main__':
  main(sys.argv[1:])
