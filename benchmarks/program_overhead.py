"""What a run costs beside its computations: the program between rounds, and memory over many.

  python -m benchmarks.program_overhead

FedAvg on 10 clients of CIFAR-10-sized images with the CNN of 1.6 M parameters, a round of about a
second, through the training loop with its files, checkpoints and ledger as `bin/train` has them,
without evaluation, which is a computation too; then 200 rounds of it on one small batch a client.
"""

import asyncio
import os
import sys
import tempfile
import time

import numpy as np
import psutil

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

from tff_noise import loading

with loading.large_modules():
  import tensorflow_federated as tff

from benchmarks import workloads
from tff_noise import heaps
from tff_noise import types
from tff_noise.algorithms import catalog
from tff_noise.data import client_data
from tff_noise.federated import task as task_lib
from tff_noise.models import keras_model
from tff_noise.privacy import ledger
from tff_noise.program import clients as clients_lib
from tff_noise.program import managers
from tff_noise.program import run_directory
from tff_noise.program import training
from tff_noise.runtimes import local
from tff_noise.uplink import uplink

_MIB = 2**20
_COHORT = 10


class _Timed(tff.framework.SyncContext):
  """Adds up the seconds that another context computes."""

  def __init__(self, context: tff.framework.SyncContext):
    self.seconds = 0.0
    self._context = context

  def invoke(self, comp, arg):
    started = time.perf_counter()
    try:
      return self._context.invoke(comp, arg)
    finally:
      self.seconds += time.perf_counter() - started


def _run(size, rounds, on_round):
  """Runs FedAvg with `size` images a client; returns seconds in computations and in all."""
  examples = [
      types.ClientExamples(x, y.astype(np.int32), np.arange(i * size, (i + 1) * size))
      for i, (x, y) in enumerate(workloads.images(_COHORT, size))
  ]
  federation = types.Federation(tuple(examples), workloads.NUM_CLASSES, 0)
  task = task_lib.Task(
      keras_model.from_keras(workloads.large_cnn()),
      types.LocalTraining(1, 10, 0.001),
      client_sizes=federation.sizes,
      clients_per_round=_COHORT,
      rounds=rounds,
  )
  fed_avg = catalog.ALGORITHMS['fedavg']
  algorithm = fed_avg.build(task, fed_avg.params())
  timed = _Timed(tff.framework.get_context_stack().current)
  with tempfile.TemporaryDirectory() as folder:
    directory = run_directory.RunDirectory(folder)
    started = time.perf_counter()
    entries = ledger.Ledger(
        algorithm.fields, uplink.to_json(algorithm.fields), directory.file('ledger.jsonl')
    )
    clients = clients_lib.SimulatedClients(
        algorithm, task, federation, client_data.federation_datasets(federation), entries
    )
    with tff.framework.get_context_stack().install(timed):
      asyncio.run(
          training.run(
              algorithm=algorithm,
              clients=clients,
              evaluations={},
              state_manager=managers.build_state_manager(directory),
              metrics_managers=managers.build_metrics_managers(
                  directory, list(algorithm.stages)
              ),
              timing_manager=managers.build_timing_manager(directory),
              on_round=on_round,
              eval_every=1,
              checkpoint_every=5,
              ledger=entries,
          )
      )
    return timed.seconds, time.perf_counter() - started


def _overhead():
  rounds = 20
  computed, total = _run(110, rounds, lambda result: None)
  print(
      f'{rounds} rounds of {computed / rounds:.3f} s: '
      f'{1000 * (total - computed) / rounds:.1f} ms a round beside them, '
      f'{100 * (total - computed) / computed:.2f} %',
      flush=True,
  )


def _memory():
  processes = {'driver': psutil.Process()}
  processes.update(
      {p.name(): p for p in psutil.Process().children(recursive=True) if 'binary' in p.name()}
  )
  at = (5, 20, 50, 100, 150, 200)
  print('| round | ' + ' | '.join(f'{name}, MiB' for name in processes) + ' |')
  print('| --- |' + ' --- |' * len(processes))

  def on_round(result):
    if result.round_num in at:
      cells = ' | '.join(f'{p.memory_info().rss / _MIB:.0f}' for p in processes.values())
      print(f'| {result.round_num} | {cells} |', flush=True)

  _run(10, max(at), on_round)


def main():
  """Prints both."""
  heaps.limit()
  with local.runtime(2):
    _overhead()
    _memory()
  return 0


if __name__ == '__main__':
  sys.exit(main())
