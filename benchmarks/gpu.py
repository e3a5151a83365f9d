"""The day a GPU is there: one command that measures the accelerator runtime on it.

  python -m benchmarks.gpu [--wheels=DIR] [--sizes=tiny]

Trains with `bin/train --runtime=accelerator`, as users do, on images made up from a seed: ResNet-18
and `cnn` on 10 clients x 500 images x 5 epochs, `cnn` with other numbers of clients at a time, the
stages of FedCorr, and a round on the GPU and on the CPU from the same weights. Prints Markdown:

* seconds a round without evaluation; a stage's first round, which waits for kernels, by itself;
* of the whole run, from nvidia-smi: the share of time in which the device was busy after the first
  round, and the most memory that it held beyond what it holds without the run;
* on which devices TensorFlow put the operations of the largest computation (a client's, mostly);
* how far weights (the largest difference, over the largest weight of its tensor) and losses of a
  round are from the CPU's. Training magnifies differences: as a yardstick, how far the CPU is from
  itself with a learning rate a millionth larger, about what rounding does to a sum;
* how far those of a round on a GPU are from those of the same round once more.

--sizes=tiny takes a minute on two idle cores, and shows that all of it runs, on `cnn` alone.

Where nothing can be fetched, --wheels names a folder that was filled elsewhere, by the same Python:

  python3.11 -m pip wheel --no-deps --require-hashes -r requirements-gpu.txt -w DIR

It is installed into DIR/env, once, and what is measured runs there. If the machine has neither
Python 3.10 nor 3.11, put one into DIR/python (DIR/python/bin/python3).
"""

import argparse
import contextlib
import csv
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tff_noise import child

# Until --wheels is installed, nothing is there but Python itself.
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_REQUIREMENTS = os.path.join(_ROOT, 'requirements-gpu.txt')
_PYTHONS = ('3.10', '3.11')
_SAMPLE_MS = 100


class Sizes(NamedTuple):
  """How much is trained.

  Attributes:
    clients: C, all of which take part in every round.
    images: Of each client.
    epochs: Of a client in a round.
    rounds: Of a run, and of each stage of FedCorr after pre-processing, which takes C rounds.
    models: What is trained by FedAvg.
    correction: The model on which FedCorr is run.
    at_a_time: How many clients of `correction` are computed side by side, beside the program's
      default.
    compared: The models of which a round of two clients and one epoch is computed twice.
  """

  clients: int
  images: int
  epochs: int
  rounds: int
  models: tuple[str, ...]
  correction: str
  at_a_time: tuple[int, ...]
  compared: tuple[str, ...]


SIZES = {
    'full': Sizes(10, 500, 5, 4, ('resnet18', 'cnn'), 'cnn', (1, 4, 8), ('cnn', 'resnet18')),
    'tiny': Sizes(2, 8, 1, 2, ('cnn',), 'cnn', (), ('cnn',)),
}


class Way(NamedTuple):
  """A way to compute a round: variables of the environment, and flags."""

  environment: Mapping[str, str]
  flags: tuple[str, ...] = ()


_CPU = {'CUDA_VISIBLE_DEVICES': '-1'}
_MILLIONTH = Way(_CPU, ('--learning_rate=0.01000001',))
# NVIDIA's libraries sum in whatever order their threads come.
_ORDERED = Way({'TF_DETERMINISTIC_OPS': '1'}, ('--max_concurrent_clients=1',))


class Mistake(Exception):
  """What whoever started this has to change."""


class Sample(NamedTuple):
  """What nvidia-smi says of the first GPU: when (s), busy (%), memory in use (MiB)."""

  time: float
  busy: float
  memory: float


class Run(NamedTuple):
  """A run of bin/train.

  Attributes:
    folder: Its run directory.
    said: Its stderr.
    rounds: When each round ended, s.
    samples: Of the GPU; none without nvidia-smi.
  """

  folder: str
  said: str
  rounds: list[float]
  samples: list[Sample]

  def rows(self) -> list[dict[str, str]]:
    """Returns metrics.csv, with the seconds of timing.csv."""
    found = []
    for name in ('metrics.csv', 'timing.csv'):
      with open(os.path.join(self.folder, name), encoding='utf-8') as file:
        found.append(list(csv.DictReader(file)))
    return [{**metrics, **timing} for metrics, timing in zip(*found, strict=True)]

  def seconds(self) -> dict[str, list[float]]:
    """Returns the seconds of rounds, by stage."""
    stages = {}
    for row in self.rows():
      stages.setdefault(row['stage'], []).append(float(row['seconds']))
    return stages

  def busy(self) -> str:
    """Returns the share of time in which the GPU computed, from the first round's end on."""
    shares = [s.busy for s in self.samples if self.rounds[0] <= s.time <= self.rounds[-1]]
    return f'{statistics.fmean(shares):.0f} %' if shares else 'n/a'

  def memory(self) -> str:
    """Returns MiB."""
    used = [s.memory for s in self.samples]
    return f'{max(used) - min(used):.0f}' if used else 'n/a'

  def operations(self) -> str:
    """Returns how many operations of the largest computation each device ran."""
    return re.findall(r'^runtime: operations .*?: (.*)$', self.said, re.MULTILINE)[-1]


def install(wheels: str, requirements: str = _REQUIREMENTS) -> str:
  """Installs what `requirements` locks from the folder `wheels`; returns the path of its Python.

  Raises:
    Mistake: If there is no Python for it, or a wheel is missing.
  """
  python = os.path.join(wheels, 'python', 'bin', 'python3')
  python = python if os.path.exists(python) else sys.executable
  asked = [python, '-c', 'import sys; print("%d.%d" % sys.version_info[:2])']
  version = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
  if version not in _PYTHONS:
    raise Mistake(
        f'TensorFlow Federated has no wheels for Python {version} ({python}): start this with '
        f'Python {" or ".join(_PYTHONS)}, or put one into {os.path.join(wheels, "python")}'
    )
  folder = os.path.join(wheels, 'env')
  found = os.path.join(folder, 'bin', 'python')
  with open(requirements, encoding='utf-8') as file:
    # Without the hashes, which were checked when the wheels came; some were built there.
    pinned = re.findall(r'^[^\s#]+==[^\s;]+', file.read(), re.MULTILINE)
  for command in (
      [python, '-m', 'venv', folder],
      [found, '-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', '--no-index',
       '--no-deps', '--find-links', wheels, *pinned],
  ):
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
      reason = (made.stderr or made.stdout).strip().splitlines()[-1:]
      raise Mistake(f'--wheels={wheels} cannot be installed: {" ".join(reason)}')
  return found


@contextlib.contextmanager
def _sampled() -> Iterator[list[Sample]]:
  """Gives the list to which samples of the first GPU are added while the block runs."""
  samples = []
  program = shutil.which('nvidia-smi')
  if program is None:
    yield samples
    return
  process = child.start(
      [program, '--id=0', '--query-gpu=utilization.gpu,memory.used',
       '--format=csv,noheader,nounits', f'--loop-ms={_SAMPLE_MS}'],
      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
  )

  def read():
    for line in process.stdout:
      with contextlib.suppress(ValueError):  # Where the driver does not tell: [N/A].
        busy, memory = map(float, line.split(','))
        samples.append(Sample(time.monotonic(), busy, memory))

  reader = threading.Thread(target=read)
  reader.start()
  try:
    yield samples
  finally:
    child.stop(process)
    reader.join()
    process.stdout.close()


def _environment(more):
  return {
      **os.environ, 'PYTHONPATH': os.pathsep.join(map(os.path.abspath, sys.path)),
      # The GPU that nvidia-smi counts as the first.
      'CUDA_DEVICE_ORDER': 'PCI_BUS_ID', 'CUDA_VISIBLE_DEVICES': '0', **more,
  }


def _devices() -> str:
  """Returns what the runtime says of what computes."""
  program = 'from tff_noise.runtimes import accelerator; print(accelerator.describe_devices())'
  return subprocess.run(
      [sys.executable, '-c', program], check=True, text=True, env=_environment({}),
      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
  ).stdout.strip()


def _train(name: str, flags: Sequence[str], environment: Mapping[str, str], root: str) -> Run:
  """Runs bin/train; raises `subprocess.CalledProcessError` if it fails."""
  command = [
      sys.executable, '-m', 'bin.train', '--runtime=accelerator', '--dataset=npz',
      f'--data_dir={os.path.join(root, "images.npz")}', '--partition=iid', '--learning_rate=0.01',
      '--checkpoint_every=1', '--eval_every=1000', f'--root_dir={root}', f'--run_name={name}',
      *flags,
  ]
  said, rounds = [], []
  with _sampled() as samples:
    process = child.start(
        command, env=_environment(environment), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    )
    try:
      for line in process.stderr:
        said.append(line)
        if line.startswith('round '):
          rounds.append(time.monotonic())
      status = process.wait()
    finally:
      child.stop(process)
      process.stderr.close()
  if status:
    raise subprocess.CalledProcessError(status, command, stderr=''.join(said))
  return Run(os.path.join(root, name), ''.join(said), rounds, samples)


def workloads(sizes: Sizes) -> dict[str, tuple[str, ...]]:
  """Returns flags of bin/train, by what stands in the table."""
  common = (f'--clients={sizes.clients}', f'--local_epochs={sizes.epochs}')
  all_of_them = f'--clients_per_round={sizes.clients}'
  plain = (*common, all_of_them, '--method=fedavg', '--noise=none', f'--rounds={sizes.rounds}')
  return {
      **{model: (*plain, f'--model={model}') for model in sizes.models},
      **{
          f'{sizes.correction}, {number} at a time': (
              *plain, f'--model={sizes.correction}', f'--max_concurrent_clients={number}'
          )
          for number in sizes.at_a_time
      },
      f'FedCorr, {sizes.correction}': (
          *common, all_of_them, '--method=fedcorr', '--allow_per_client_disclosure',
          '--noise=client_uniform', f'--model={sizes.correction}',
          f'--stages=preprocess:1,finetune:{sizes.rounds},usual:{sizes.rounds}',
          f'--param=lid_neighbours={min(20, sizes.images // 2)}',
      ),
  }


def _make_images(path, sizes):
  """Random images and labels, CIFAR-10's in kind."""
  import numpy as np

  draw = np.random.default_rng(0)
  total = sizes.clients * sizes.images
  arrays = {}
  for name, number in (('', total), ('_test', max(16, total // 50))):
    arrays[f'x{name}'] = draw.integers(0, 256, (number, 32, 32, 3)).astype(np.uint8)
    # Each class is there, however few examples there are.
    arrays[f'y{name}'] = draw.permutation(np.arange(number) % min(10, total))
  np.savez(path, **arrays)


def relative_difference(here: Run, there: Run) -> float:
  """Returns the largest difference of two runs' last weights, over the largest of their tensor."""
  import numpy as np

  def weights(run):
    (state,) = os.listdir(os.path.join(run.folder, 'state'))  # Of one round.
    with np.load(os.path.join(run.folder, 'state', state)) as file:
      return {name: file[name] for name in file.files if '/models/model/' in name}

  ours, theirs = weights(here), weights(there)
  return max(
      float(np.abs(ours[name] - value).max() / np.abs(value).max())
      for name, value in theirs.items() if np.any(value)
  )


def _workload_rows(name, flags, root):
  """Rows of the first table: one a stage."""
  run = _train(re.sub(r'\W+', '_', name), flags, {}, root)
  for stage, (first, *others) in run.seconds().items():
    yield (
        name if stage == 'train' else f'{name}, {stage}', f'{first:.3f}',
        f'{statistics.median(others):.3f}', f'{min(others):.3f} - {max(others):.3f}',
        str(len(others)), run.busy(), run.memory(), run.operations(),
    )


def _one_round(name, model, sizes, way, root):
  flags = (
      '--method=fedavg', '--noise=none', f'--model={model}', f'--clients={sizes.clients}',
      '--clients_per_round=2', '--local_epochs=1', '--rounds=1', *way.flags,
  )
  return _train(f'{model}_{name}', flags, way.environment, root)


def _differences(here, there):
  """Cells of the second table and the third: by how much two runs of one round differ."""
  (ours,), (theirs,) = here.rows(), there.rows()
  losses = (
      abs(float(ours[loss]) / float(theirs[loss]) - 1) for loss in ('train_loss', 'test_loss')
  )
  return [f'{value:.1e}' for value in (relative_difference(here, there), *losses)]


def _parity_rows(model, sizes, ways, root):
  """Rows of the second table: one for each way to compute what the CPU computes."""
  there = _one_round('cpu', model, sizes, Way(_CPU), root)
  for number, (name, way) in enumerate(ways.items()):
    here = _one_round(number, model, sizes, way, root)
    yield (f'{model}{name}', *_differences(here, there))


def _repeated_rows(model, sizes, ways, root):
  """Rows of the third table: the same round twice, on the GPU both times."""
  for number, (name, way) in enumerate(ways.items()):
    first, again = (_one_round(f'{number}_{run}', model, sizes, way, root) for run in 'ab')
    yield (f'{model}{name}', *_differences(again, first))


def _print_row(cells):
  print('| ' + ' | '.join(cells) + ' |', flush=True)


def _print_table(header, rows_by_name):
  """Prints a table; returns whether no run failed, which costs the others nothing."""
  _print_row(header)
  _print_row(['---'] * len(header))
  whole = True
  for name, rows in rows_by_name.items():
    try:
      for cells in rows:
        _print_row(cells)
    except subprocess.CalledProcessError as error:
      whole = False
      _print_row((name, f'failed: {(error.stderr.strip().splitlines() or [""])[-1]}'))
  print()
  return whole


def _measure(sizes, root):
  """Prints what computes, and the tables; returns whether all of it ran."""
  _make_images(os.path.join(root, 'images.npz'), sizes)
  devices = _devices()
  print(f'{devices}\n', flush=True)
  ran = _print_table(
      ('workload', 'first round, s', 'others, median', 'min - max', 'rounds', 'device busy',
       'device memory, MiB', 'operations'),
      {name: _workload_rows(name, flags, root) for name, flags in workloads(sizes).items()},
  )
  compared = ('weights', 'train loss', 'test loss')

  def table(title, rows, ways):
    by_model = {model: rows(model, sizes, ways, root) for model in sizes.compared}
    return _print_table((title, *compared), by_model)

  against_cpu, yardstick = 'one round, against the CPU', {', CPU, a millionth': _MILLIONTH}
  if devices.startswith('no GPU'):
    return table(against_cpu, _parity_rows, yardstick) and ran
  half = Way({}, ('--mixed_precision',))
  ways = {'': Way({}), ', bfloat16': half, **yardstick}
  parity = table(against_cpu, _parity_rows, ways)
  ways = {'': Way({}), ', deterministic operations, one client at a time': _ORDERED}
  repeated = table('one round, against itself', _repeated_rows, ways)
  return ran and parity and repeated


def main(argv: Sequence[str]) -> int:
  """Prints the tables; returns 0 if everything ran."""
  parser = argparse.ArgumentParser(
      prog='gpu', description=__doc__, allow_abbrev=False,
      formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('--wheels', metavar='DIR', help='folder of wheels to run with')
  parser.add_argument('--sizes', choices=tuple(SIZES), default='full', help='how much is trained')
  values = parser.parse_args(argv)
  if values.wheels:
    try:
      python = install(os.path.abspath(values.wheels))
    except Mistake as mistake:
      parser.error(str(mistake))
    os.chdir(_ROOT)
    os.execve(
        python, [python, '-m', 'benchmarks.gpu', f'--sizes={values.sizes}'],
        {**os.environ, 'PYTHONPATH': _ROOT},
    )
  with child.terminable(), tempfile.TemporaryDirectory() as root:
    return 0 if _measure(SIZES[values.sizes], root) else 1


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
