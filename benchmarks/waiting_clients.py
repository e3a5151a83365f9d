"""Seconds a round on one, two and three workers, of clients that wait rather than compute.

  python -m benchmarks.waiting_clients

Devices are slow, not the machine that simulates them: 12 clients sleep for half a second each, one
at a time at each worker, all workers on this host. What is left of the time beyond 6, 3 and 2
seconds is what spreading costs.
"""

import contextlib
import os
import socket
import sys

import numpy as np

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.data.experimental.ops import testing

from benchmarks import contest
from tff_noise.runtimes import remote
from tff_noise.runtimes import worker_process

_NUM_CLIENTS = 12
# Taken twice: before the element, and before the end of the data.
_SLEEP_MICROSECONDS = 250_000
_REPEATS = 5


def _total():
  @tff.tensorflow.computation(np.int64)
  def wait(x):
    data = tf.data.Dataset.from_tensors(x).apply(testing.sleep(_SLEEP_MICROSECONDS))
    return data.get_single_element()

  @tff.federated_computation(tff.FederatedType(np.int64, tff.CLIENTS))
  def total(x):
    return tff.federated_sum(tff.federated_map(wait, x))

  return total


def _address():
  with socket.create_server(('127.0.0.1', 0)) as probe:
    return f'127.0.0.1:{probe.getsockname()[1]}'


def _contender(stack, count):
  addresses = [_address() for _ in range(count)]
  for address in addresses:
    worker = worker_process.WorkerProcess(
        f'tcp:{address}', max_concurrent_calls=1, allow_exposed=False
    )
    stack.callback(worker.stop)
  stack.enter_context(remote.runtime(addresses))
  context = tff.framework.get_context_stack().current
  total = _total()
  values = [np.int64(i) for i in range(_NUM_CLIENTS)]

  def run():
    with tff.framework.get_context_stack().install(context):
      return total(values)

  return run


def main():
  """Prints the table."""
  contest.print_heading()
  with contextlib.ExitStack() as stack:
    contest.run(
        contest.Workload(
            f'{_NUM_CLIENTS} clients that wait 0.5 s', _REPEATS,
            {f'workers: {n}': _contender(stack, n) for n in (1, 2, 3)},
        )
    )
  return 0


if __name__ == '__main__':
  sys.exit(main())
