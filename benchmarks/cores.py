"""What cores give where each has a process of its own, against threads of one process.

  python -m benchmarks.cores

The plain loop of `round_time` over all clients, once in one process whose TensorFlow has a thread
for each core, once cut into a process for each core, pinned to it and with one thread, which all
run at the same time. Nothing is sent or summed between processes: no runtime that spreads clients
over single-threaded processes is faster than that.
"""

import contextlib
import os
import subprocess
import sys

from benchmarks import contest
from tff_noise import child

_WORKLOADS = {'50x50': (50, 50, 10), '10x500': (10, 500, 32)}
_NETWORKS = ('large_cnn', 'cnn')
_REPEATS = 12


class _Loop:
  """A process that trains `num_clients` clients, one after the other, each time it is told to."""

  def __init__(self, cores, network, num_clients, size, batch_size):
    self._process = child.start(
        [
            sys.executable, '-m', 'benchmarks.cores', network,
            *map(str, (num_clients, size, batch_size, *cores)),
        ],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )
    self.wait()

  def begin(self):
    print(file=self._process.stdin, flush=True)

  def wait(self):
    if not self._process.stdout.readline():
      raise RuntimeError(f'A process ended with status {self._process.wait()}; see above.')

  def close(self):
    child.stop(self._process)


def _serve(network, num_clients, size, batch_size, *cores):
  os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
  os.sched_setaffinity(0, map(int, cores))
  from benchmarks import round_time
  from benchmarks import workloads
  build = getattr(workloads, network)
  run = round_time.plain_loop(
      build(), workloads.images(int(num_clients), int(size)), int(batch_size)
  )
  run()
  print(flush=True)
  for _ in sys.stdin:
    run()
    print(flush=True)


def _together(loops):
  for loop in loops:
    loop.begin()
  for loop in loops:
    loop.wait()


def main() -> int:
  """Prints the table."""
  contest.print_heading()
  cores = sorted(os.sched_getaffinity(0))
  for network in _NETWORKS:
    for name, (num_clients, *rest) in _WORKLOADS.items():
      with contextlib.ExitStack() as stack:

        def start(cores, count, network=network, rest=rest, stack=stack):
          loop = _Loop(cores, network, count, *rest)
          stack.callback(loop.close)
          return loop

        one = [start(cores, num_clients)]
        many = [
            start([core], len(range(i, num_clients, len(cores)))) for i, core in enumerate(cores)
        ]
        contest.run(contest.Workload(f'{network}, {name}', _REPEATS, {
            f'1 process, {len(cores)} threads': lambda one=one: _together(one),
            f'{len(cores)} processes': lambda many=many: _together(many),
        }))
  return 0


if __name__ == '__main__':
  sys.exit(_serve(*sys.argv[1:]) if sys.argv[1:] else main())
