"""How fast this checkout is against an older one, by the programs that people run, in turn.

  python -m benchmarks.checkouts --before=DIR rounds [--repeats=3] [--only=REGEX]
  python -m benchmarks.checkouts --before=DIR grid --grid=FILE [--repeats=3]

`rounds` trains image models with `bin/train` on random images of CIFAR-10's size and prints seconds
a round, without the first and without evaluation, beside the plain loop's, floating-point
operations a second and the share of them that a matrix product of this machine does; and the most
memory that a program and all its processes held, each page counted once (PSS). `grid` prints cells
an hour of `bin/compare` on as many jobs as cores, from nothing; the grid must be one that both
checkouts can read. Give it seeds that are reported nowhere. Medians of runs.
"""

import argparse
import csv
import glob
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import psutil

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

_MIB = 2**20
_SAMPLE_SECONDS = 0.5
_TEST_IMAGES = 100
_EPOCHS = 1
# Training goes forwards once and back twice: to the inputs and to the weights.
_PASSES = 3


class Workload(NamedTuple):
  """Clients of the same size, a model, and how many rounds a run has."""

  model: str
  clients: int
  size: int
  batch_size: int
  rounds: int

  def title(self) -> str:
    return f'{self.model}, {self.clients} x {self.size}, batch {self.batch_size}'


_WORKLOADS = (
    Workload('cnn', 10, 500, 32, 8),
    Workload('cnn', 50, 50, 10, 8),
    Workload('resnet18', 10, 50, 32, 3),
    Workload('vit_tiny', 10, 50, 32, 3),
)


class Measured(NamedTuple):
  """Of a run: seconds of its rounds but the first, and its processes' most MiB together."""

  seconds: list[float]
  peak_mib: float


class _Peak:
  """Asks a process and its children how much memory they hold, as long as it is open."""

  def __init__(self, process: subprocess.Popen):
    self.mib = 0.0
    self._process = psutil.Process(process.pid)
    self._over = threading.Event()
    self._thread = threading.Thread(target=self._look)

  def __enter__(self):
    self._thread.start()
    return self

  def __exit__(self, *error):
    self._over.set()
    self._thread.join()

  def _look(self):
    while not self._over.wait(_SAMPLE_SECONDS):
      self.mib = max(self.mib, _pss(self._process) / _MIB)


def _pss(process):
  """Bytes that a process and its children hold, pages that several share counted once."""
  total = 0
  try:
    for one in (process, *process.children(recursive=True)):
      total += one.memory_full_info().pss
  except psutil.NoSuchProcess:
    pass  # One has just ended.
  return total


def run(checkout: str, module: str, flags: Sequence[str]) -> float:
  """Runs a program of a checkout to its end; returns its and its processes' peak MiB."""
  process = subprocess.Popen(
      [sys.executable, '-m', module, *flags], cwd=checkout, stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
  )
  with _Peak(process) as peak:
    said, _ = process.communicate()
  if process.returncode:
    raise SystemExit(f'{checkout}: {module} {" ".join(flags)}\n{said}')
  return peak.mib


def train(checkout: str, workload: Workload, data: str, scratch: str) -> Measured:
  """Trains in a new folder of `scratch`."""
  root = tempfile.mkdtemp(dir=scratch)
  peak = run(checkout, 'bin.train', [
      '--method=fedavg', '--dataset=npz', f'--data_dir={data}', f'--model={workload.model}',
      f'--clients={workload.clients}', f'--clients_per_round={workload.clients}',
      '--partition=iid', f'--batch_size={workload.batch_size}', f'--local_epochs={_EPOCHS}',
      f'--rounds={workload.rounds}', f'--eval_every={workload.rounds}', '--learning_rate=0.01',
      '--noise=none', f'--root_dir={root}',
  ])
  (timing,) = glob.glob(os.path.join(root, '*', 'timing.csv'))
  with open(timing, encoding='utf-8') as file:
    seconds = [float(row['seconds']) for row in csv.DictReader(file)]
  return Measured(seconds[1:], peak)


def write_images(path: str, num_training: int) -> None:
  """Writes random images of CIFAR-10's size and labels of ten classes, as `--dataset=npz` has."""
  draw = np.random.default_rng(0)

  def examples(suffix, count):
    x = draw.integers(0, 256, (count, 32, 32, 3)).astype(np.uint8)
    return {f'x{suffix}': x, f'y{suffix}': np.arange(count) % 10}

  np.savez(path, **examples('', num_training), **examples('_test', _TEST_IMAGES))


def _network(model):
  from tff_noise.models import architectures
  return architectures.MODELS[model]((32, 32, 3), 10, pixel_scale=1 / 255)


def forward_operations(model: str) -> int:
  """Floating-point operations of one image's forward pass: convolutions and matrix products."""
  import tensorflow as tf
  network = _network(model)
  images = tf.TensorSpec((1, 32, 32, 3), tf.uint8)
  graph = tf.function(network).get_concrete_function(images).graph
  options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
  options['output'] = 'none'
  return tf.compat.v1.profiler.profile(graph, options=options).total_float_ops


def machine_operations() -> float:
  """Operations a second of the best of some large products of float32 matrices."""
  import tensorflow as tf
  size = 2048
  matrix = tf.random.stateless_uniform((size, size), (0, 0))
  best = np.inf
  for _ in range(12):
    start = time.perf_counter()
    tf.matmul(matrix, matrix).numpy()
    best = min(best, time.perf_counter() - start)
  return 2 * size**3 / best


def loop_seconds(workload: Workload) -> list[float]:
  """The plain loop of `round_time` on this workload, once for each round but the first."""
  from benchmarks import round_time
  from benchmarks import workloads
  network = _network(workload.model)
  loop = round_time.plain_loop(
      network, workloads.images(workload.clients, workload.size), workload.batch_size
  )
  seconds = []
  for _ in range(workload.rounds):
    start = time.perf_counter()
    loop()
    seconds.append(time.perf_counter() - start)
  return seconds[1:]


def _rounds(arguments, scratch):
  # Else the loops' own memory and threads would stay for the runs that follow.
  peak = _in_child(machine_operations)
  print(f'matrix product: {peak / 1e9:.0f} GFLOP/s\n')
  print('| workload | before, s | after, s | before / after | plain loop, s | after / loop '
        '| GFLOP/s | of the product | before, MiB | after, MiB | after / before |')
  print('| --- ' * 11 + '|')
  for workload in _WORKLOADS:
    if not re.search(arguments.only, workload.title()):
      continue
    data = os.path.join(scratch, f'{workload.clients}x{workload.size}.npz')
    if not os.path.exists(data):
      write_images(data, workload.clients * workload.size)
    sides = {'before': [], 'after': []}
    loop = []
    for repeat in range(arguments.repeats):
      checkouts = [('before', arguments.before), ('after', '.')]
      for side, checkout in checkouts[:: 1 if repeat % 2 else -1]:
        sides[side].append(train(checkout, workload, data, scratch))
      loop += _in_child(loop_seconds, workload)
    before, after = (
        float(np.median([s for one in sides[side] for s in one.seconds])) for side in sides
    )
    old, new = (max(one.peak_mib for one in sides[side]) for side in sides)
    examples = workload.clients * workload.size * _EPOCHS
    forward = _in_child(forward_operations, workload.model)
    rate = _PASSES * forward * examples / after
    print(
        f'| {workload.title()} | {before:.2f} | {after:.2f} | {before / after:.2f} '
        f'| {np.median(loop):.2f} | {after / np.median(loop):.2f} | {rate / 1e9:.0f} '
        f'| {rate / peak:.2f} | {old:.0f} | {new:.0f} | {new / old:.2f} |',
        flush=True,
    )


def _in_child(function, *arguments):
  """What `function` returns in a process of its own."""
  with multiprocessing.get_context('spawn').Pool(1) as pool:
    return pool.apply(function, arguments)


def _grid(arguments, scratch):
  jobs = len(os.sched_getaffinity(0))
  grid = os.path.abspath(arguments.grid)
  seconds = {'before': [], 'after': []}
  for repeat in range(arguments.repeats):
    checkouts = [('before', arguments.before), ('after', '.')]
    for side, checkout in checkouts[:: 1 if repeat % 2 else -1]:
      root = tempfile.mkdtemp(dir=scratch)
      start = time.perf_counter()
      run(checkout, 'bin.compare', [
          f'--grid={grid}', '--scale=reduced', f'--jobs={jobs}', f'--root_dir={root}'
      ])
      seconds[side].append(time.perf_counter() - start)
      cells = len(glob.glob(os.path.join(root, '*', 'summary.json')))
      print(f'{side}: {cells} cells in {seconds[side][-1]:.0f} s', flush=True)
  before, after = (float(np.median(values)) for values in seconds.values())
  print(f'{3600 * cells / before:.0f} cells an hour before, {3600 * cells / after:.0f} after: '
        f'{before / after:.2f} times as many')


def main() -> int:
  """Prints a table."""
  parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
  parser.add_argument('--before', metavar='DIR', required=True, help='checkout of the older code')
  parser.add_argument('--repeats', type=int, default=3, help='runs of each side')
  parser.add_argument('--only', metavar='REGEX', default='', help='workloads whose title it finds')
  parser.add_argument('--grid', metavar='FILE', help='for `grid`')
  parser.add_argument('what', choices=('rounds', 'grid'))
  arguments = parser.parse_args()
  if arguments.what == 'grid' and not arguments.grid:
    parser.error('--grid must be given')
  with tempfile.TemporaryDirectory() as scratch:
    (_rounds if arguments.what == 'rounds' else _grid)(arguments, scratch)
  return 0


if __name__ == '__main__':
  sys.exit(main())
