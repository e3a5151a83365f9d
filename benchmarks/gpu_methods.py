"""Every method on the GPU against the same on the CPU: whose numbers differ?

  python -m benchmarks.gpu_methods [--processes=N]

Trains each method of the catalog on the contract test's few small clients, through the accelerator
runtime, with the GPU and without it, in 2 N processes at a time. Prints by how much the last state
differs: the largest difference in an array over the largest number of the array, and whether what
is no float (labels, counts, who took part) is equal. Where TensorFlow sees no GPU, the CPU's
numbers are held against themselves. Takes three minutes on 16 cores.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import traceback

import numpy as np

from tff_noise import child
from tff_noise.algorithms import catalog


def run_part(folder: str, part: int, parts: int) -> None:
  """Trains every `parts`-th method from the `part`-th on; writes its last state to NAME.npz.

  One that fails leaves its traceback and no file, and costs the others nothing.
  """
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  from tff_noise.runtimes import accelerator

  accelerator.take_memory_as_needed()  # A task is built before its runtime opens.
  print(accelerator.describe_devices(), file=sys.stderr)
  for name in list(catalog.ALGORITHMS)[part::parts]:
    try:
      leaves = _last_state(name)
    except Exception:
      # The others are still to be shown.
      traceback.print_exc()
      continue
    np.savez(os.path.join(folder, f'{name}.npz'), *leaves)


def _last_state(name):
  """Returns the arrays of the last state of a method's run."""
  import tensorflow as tf

  from tests.algorithms import contract_runs
  from tests.program import runs
  from tff_noise.runtimes import accelerator

  built = contract_runs.build(name)
  with accelerator.runtime(2), tempfile.TemporaryDirectory() as run:
    state, _ = runs.run(built.algorithm, built.task, contract_runs.federation(), run)
  leaves = map(np.asarray, tf.nest.flatten((state.state, state.own)))
  return [x.astype(bytes) if x.dtype.kind == 'O' else x for x in leaves]


def difference(here: str, there: str) -> tuple[float, bool]:
  """Compares two states.

  Args:
    here: Path of one.
    there: Of the other, whose numbers differences are measured by.

  Returns:
    The largest relative difference of floats, infinite where one alone is a number, and whether
    everything else is equal.
  """
  worst, equal = 0.0, True
  with np.load(here) as ours, np.load(there) as theirs:
    for name in theirs.files:
      a, b = ours[name], theirs[name]
      if b.dtype.kind != 'f':
        equal = equal and np.array_equal(a, b)
      elif a.shape != b.shape or np.any(np.isfinite(a) != np.isfinite(b)):
        worst = np.inf
      else:
        a, b = a[np.isfinite(a)], b[np.isfinite(b)]
        if np.any(a != b):
          worst = max(worst, float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)))
  return worst, equal


def _start(folder, part, parts, environment):
  command = [
      sys.executable, '-m', 'benchmarks.gpu_methods', f'--folder={folder}', f'--part={part}',
      f'--processes={parts}',
  ]
  return child.start(
      command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
      stdout=subprocess.DEVNULL,
  )


def main() -> int:
  """Prints the table; returns 1 if a method failed on one of the two."""
  parser = argparse.ArgumentParser(
      prog='gpu_methods', description=__doc__, allow_abbrev=False,
      formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('--processes', type=int, default=1, metavar='N', help='for each device')
  parser.add_argument('--folder', help=argparse.SUPPRESS)
  parser.add_argument('--part', type=int, help=argparse.SUPPRESS)
  values = parser.parse_args()
  if values.folder:
    run_part(values.folder, values.part, values.processes)
    return 0
  with child.terminable(), tempfile.TemporaryDirectory() as root, contextlib.ExitStack() as stack:
    environments = {'gpu': {}, 'cpu': {'CUDA_VISIBLE_DEVICES': '-1'}}
    for name in environments:
      os.mkdir(os.path.join(root, name))
    processes = [
        _start(os.path.join(root, name), part, values.processes, environment)
        for part in range(values.processes) for name, environment in environments.items()
    ]
    for process in processes:
      stack.callback(child.stop, process)
    for process in processes:
      process.wait()
    print('| method | floats | the rest |\n| --- | --- | --- |')
    whole = True
    for name in catalog.ALGORITHMS:
      paths = [os.path.join(root, place, f'{name}.npz') for place in environments]
      if all(map(os.path.exists, paths)):
        worst, equal = difference(*paths)
        print(f'| {name} | {worst:.1e} | {"equal" if equal else "differs"} |')
      else:
        whole = False
        print(f'| {name} | failed | |')
  return 0 if whole else 1


if __name__ == '__main__':
  sys.exit(main())
