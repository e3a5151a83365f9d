"""The worker's life, in real processes."""

import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import psutil
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise.program import runtime

_WAIT_SECONDS = 120

_PRELUDE = """
import os, signal, sys
import numpy as np
import psutil
import tensorflow_federated as tff
from tff_noise.program import runtime

@tff.federated_computation(tff.FederatedType(np.int64, tff.CLIENTS))
def total(x):
  return tff.federated_secure_sum_bitwidth(x, 8)

def say(*words):
  print(*words, flush=True)
"""


def _worker():
  """The worker that this process started."""
  (child,) = psutil.Process().children()
  return child


def _program(body):
  return subprocess.Popen(
      [sys.executable, '-c', _PRELUDE + textwrap.dedent(body)],
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
  )


def _gone(pid):
  """Waits until the process does not run; whoever inherits a killed one may never reap it."""
  try:
    process = psutil.Process(pid)
    if process.status() == psutil.STATUS_ZOMBIE:
      return True
    process.wait(_WAIT_SECONDS)
    return True
  except psutil.NoSuchProcess:
    return True
  except psutil.TimeoutExpired:
    return process.status() == psutil.STATUS_ZOMBIE


class LocalTest(absltest.TestCase):

  def test_secure_sums_run(self):
    @tff.federated_computation(tff.FederatedType(np.int64, tff.CLIENTS))
    def total(x):
      return tff.federated_secure_sum_bitwidth(x, 8)

    with runtime.local(2):
      self.assertEqual(total([np.int64(i) for i in range(10)]), 45)

  def test_worker_is_gone_afterwards(self):
    with runtime.local(1):
      pid = _worker().pid
    self.assertTrue(_gone(pid))

  def test_worker_is_gone_after_an_error(self):
    with self.assertRaisesRegex(ValueError, 'mine'), runtime.local(1):
      pid = _worker().pid
      raise ValueError('mine')
    self.assertTrue(_gone(pid))

  def test_dead_worker_is_an_error_and_no_endless_retry(self):
    @tff.tensorflow.computation
    def one():
      return 1

    with runtime.local(1):
      self.assertEqual(one(), 1)
      worker = _worker()
      worker.kill()
      with self.assertRaisesRegex(runtime.WorkerError, 'ended with status -9.*same command'):
        one()

  def test_results_come_back_in_the_order_of_the_clients(self):
    @tff.tensorflow.computation(np.int32)
    def double(x):
      return 2 * x

    @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
    def doubled(x):
      return tff.federated_map(double, x)

    with runtime.local(4):
      for _ in range(5):
        self.assertEqual(
            [int(v) for v in doubled([np.int32(i) for i in range(20)])], list(range(0, 40, 2))
        )


class ExitTest(parameterized.TestCase):

  def _start(self, after):
    """Starts a program that prints its worker's pid and then does `after`."""
    program = _program(f"""
        with runtime.local(1):
          assert total([np.int64(1), np.int64(2)]) == 3
          say(psutil.Process().children()[0].pid)
          {after}
    """)
    self.addCleanup(program.stdout.close)
    self.addCleanup(program.stderr.close)
    line = program.stdout.readline()
    if not line:
      self.fail(program.stderr.read())
    return program, int(line)

  @parameterized.parameters(
      ('pass', 0), ('sys.exit(3)', 3), ('raise ValueError("mine")', 1)
  )
  def test_no_worker_after_exit(self, after, status):
    program, worker = self._start(after)
    self.assertEqual(program.wait(_WAIT_SECONDS), status)
    self.assertTrue(_gone(worker))

  @parameterized.parameters(signal.SIGINT, signal.SIGKILL)
  def test_no_worker_after_a_signal(self, number):
    program, worker = self._start('signal.pause()')
    program.send_signal(number)
    program.wait(_WAIT_SECONDS)
    self.assertTrue(_gone(worker))

  def test_pipe_is_closed_at_exit(self):
    # The stock runtime's worker inherits stdout, and a reader waits for ever.
    program, _ = self._start('pass')
    self.assertEqual(program.stdout.read(), '')
    program.wait(_WAIT_SECONDS)

  def test_worker_says_nothing(self):
    program, _ = self._start('pass')
    out, err = program.communicate(timeout=_WAIT_SECONDS)
    self.assertEqual(out, '')
    self.assertNotIn('worker', err)


if __name__ == '__main__':
  absltest.main()
