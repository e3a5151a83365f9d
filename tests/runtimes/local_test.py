"""The local worker's life, in real processes."""

import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from unittest import mock

import numpy as np
import psutil
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized
from tensorflow_federated.python.common_libs import tracing

from tests.runtimes import battery
from tests.runtimes import gate as gate_lib
from tests.runtimes import processes
from tff_noise.runtimes import client_error
from tff_noise.runtimes import local
from tff_noise.runtimes import worker_process

_WAIT_SECONDS = 120

_PRELUDE = """
import os, signal, sys
from tff_noise import loading
with loading.large_modules():
  import numpy as np
  import tensorflow_federated as tff
  from tests.runtimes import processes
  from tff_noise.runtimes import local

@tff.federated_computation(tff.FederatedType(np.int64, tff.CLIENTS))
def total(x):
  return tff.federated_secure_sum_bitwidth(x, 8)

def say(*words):
  print(*words, flush=True)
"""


def _program(body, *prefix):
  return subprocess.Popen(
      [*prefix, sys.executable, '-c', _PRELUDE + textwrap.dedent(body)],
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path), 'TF_CPP_MIN_LOG_LEVEL': '3'},
  )


def _can_isolate():
  with local.runtime(1):
    (worker,) = processes.tff_workers()
    return _network(worker.pid) != _network(os.getpid())


def _network(pid):
  return os.readlink(f'/proc/{pid}/ns/net')


class LocalTest(battery.Battery, parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.enter_context(local.runtime(2))


class _Spans(tracing.TracingProvider):
  """Counts spans, as a user's own provider may."""

  def __init__(self):
    self.count = 0

  def span(self, *unused):
    self.count += 1
    yield None


class SpansTest(absltest.TestCase):

  def test_who_traces_tff_goes_on_to(self):
    before, spans = list(tracing._global_tracing_providers), _Spans()
    self.addCleanup(tracing.set_tracing_providers, before)
    tracing.add_tracing_provider(spans)
    with local.runtime(1):
      kept = tracing._global_tracing_providers
      self.assertLen(kept, len(before) + 1)
      self.assertIs(kept[-1], spans)
      self.assertFalse(any(type(p) is tracing.LoggingTracingProvider for p in kept))
      tff.federated_computation(lambda: tff.federated_value(1, tff.SERVER))()
    self.assertGreater(spans.count, 10)


def _filter_gradient(seed):
  """The gradient of a convolution's filters, a sum over 64 images and all of their places."""
  def normal(i, shape):
    return tf.random.stateless_normal(shape, (seed, i))

  return tf.raw_ops.Conv2DBackpropFilter(
      input=normal(0, (64, 16, 16, 8)), filter_sizes=(3, 3, 8, 32),
      out_backprop=normal(1, (64, 16, 16, 32)), strides=[1] * 4, padding='SAME',
  )


class CoresTest(absltest.TestCase):

  def test_of_a_container_with_less_time_there_are_fewer(self):
    allowed = len(os.sched_getaffinity(0))
    file = self.create_tempfile()
    for text, expected in (
        ('max 100000', allowed), ('50000 100000', 1), ('150000 100000', min(2, allowed)),
        (f'{allowed * 300000} 100000', allowed), ('', allowed),
    ):
      file.write_text(text)
      with mock.patch.object(worker_process, '_QUOTAS', ((file.full_path,),)):
        self.assertEqual(worker_process.cores(), expected)
    with mock.patch.object(worker_process, '_QUOTAS', ((file.full_path + '.none',),)):
      self.assertEqual(worker_process.cores(), allowed)

  def test_likewise_of_the_first_version_of_control_groups(self):
    allowed = len(os.sched_getaffinity(0))
    quota, period = self.create_tempfile('quota'), self.create_tempfile('period', '100000\n')
    files = ('no such file',), (quota.full_path, period.full_path)
    for text, expected in (('-1\n', allowed), ('50000\n', 1), ('150000\n', min(2, allowed))):
      quota.write_text(text)
      with mock.patch.object(worker_process, '_QUOTAS', files):
        self.assertEqual(worker_process.cores(), expected)

  def test_sums_have_the_same_bits_on_one_core_and_on_all(self):
    gradient = tff.tensorflow.computation(_filter_gradient, np.int32)
    round_fn = tff.federated_computation(
        lambda seed: tff.federated_sum(tff.federated_map(gradient, seed)),
        tff.FederatedType(np.int32, tff.CLIENTS),
    )
    cores = os.sched_getaffinity(0)
    if len(cores) == 1:
      self.skipTest('one core has no other to differ from')
    self.addCleanup(os.sched_setaffinity, 0, cores)
    found = []
    for used, clients_at_once in ((cores, 1), (cores, 4), ({min(cores)}, 2)):
      os.sched_setaffinity(0, used)
      with local.runtime(clients_at_once):
        found.append(round_fn([1, 2, 3]))
    for other in found[1:]:
      np.testing.assert_array_equal(other, found[0])


class ShownErrorsTest(absltest.TestCase):

  def test_what_tensorflow_says_is_shown_where_it_is_asked_for(self):
    with local.runtime(2, shows_client_errors=True):
      with self.assertRaisesRegex(client_error.ClientError, 'client 1 .*more than I take'):
        battery.picky_total(0, battery.ints(1, 9))


class LifeTest(absltest.TestCase):

  def test_no_thread_asks_again_and_again_for_the_state_of_a_channel(self):
    # One that is closed meanwhile is an error on stderr, in no one's call.
    with local.runtime(1):
      self.assertEqual(tff.tensorflow.computation(lambda: tf.constant(7))(), 7)
      found = [
          frame.f_code.co_name
          for frame in sys._current_frames().values()
          if os.path.basename(os.path.dirname(frame.f_code.co_filename)) == 'grpc'
      ]
    self.assertEmpty(found)

  def test_nobody_is_left_afterwards(self):
    with local.runtime(1):
      started = processes.descendants()
      self.assertLen(processes.tff_workers(), 1)
    for process in started:
      self.assertTrue(processes.gone(process.pid))

  def test_nobody_is_left_after_an_error(self):
    with self.assertRaisesRegex(ValueError, 'mine'), local.runtime(1):
      started = processes.descendants()
      raise ValueError('mine')
    for process in started:
      self.assertTrue(processes.gone(process.pid))

  def test_a_worker_that_dies_in_a_computation_is_replaced(self):
    gate = gate_lib.Gate(self.create_tempdir().full_path)
    said = io.StringIO()
    with local.runtime(2), contextlib.redirect_stderr(said):
      (first,) = processes.tff_workers()

      def kill():
        gate.wait()
        first.kill()
        gate.open()

      killer = threading.Thread(target=kill)
      killer.start()
      self.assertEqual(gate.total()(battery.ints(1, 2, 3)), 6)
      killer.join()
      (second,) = processes.tff_workers()
    self.assertNotEqual(first.pid, second.pid)
    self.assertRegex(said.getvalue(), 'ended .status 137.*a new one repeats')
    self.assertTrue(processes.gone(second.pid))

  def test_a_worker_that_hangs_in_a_computation_is_replaced(self):
    gate = gate_lib.Gate(self.create_tempdir().full_path)
    with local.runtime(2, silence=2.0), contextlib.redirect_stderr(io.StringIO()) as said:
      (first,) = processes.tff_workers()

      def hang():
        gate.wait()
        first.send_signal(signal.SIGSTOP)
        gate.open()

      hanger = threading.Thread(target=hang)
      hanger.start()
      self.assertEqual(gate.total()(battery.ints(1, 2, 3)), 6)
      hanger.join()
    self.assertIn('a new one repeats', said.getvalue())
    self.assertTrue(processes.gone(first.pid))

  def test_a_computation_that_kills_workers_is_given_up(self):
    gate = gate_lib.Gate(self.create_tempdir().full_path)
    done = threading.Event()

    def kill():
      while not done.is_set():
        # Looking for them finds some that die meanwhile, too.
        with contextlib.suppress(psutil.NoSuchProcess):
          for worker in processes.tff_workers():
            worker.kill()

    with local.runtime(2), contextlib.redirect_stderr(io.StringIO()):
      computation = gate.total()
      killer = threading.Thread(target=kill)
      killer.start()
      try:
        with self.assertRaisesRegex(worker_process.WorkerError, 'died twice|did not start'):
          computation(battery.ints(1))
      finally:
        done.set()
        killer.join()

  def test_too_many_deaths_end_the_run(self):
    @tff.tensorflow.computation
    def one():
      return 1

    with local.runtime(1), contextlib.redirect_stderr(io.StringIO()):
      with self.assertRaisesRegex(worker_process.WorkerError, 'died 11 times'):
        for _ in range(12):
          self.assertEqual(one(), 1)
          processes.tff_workers()[0].kill()


class ExposureTest(absltest.TestCase):
  """Whoever reaches TFF's worker runs any graph in it: nobody may."""

  def setUp(self):
    super().setUp()
    if not _can_isolate():
      self.skipTest('this machine allows no network namespaces')

  def test_connections_from_outside_are_refused(self):
    with local.runtime(1):
      (worker,) = processes.tff_workers()
      [port] = [int(a.partition('=')[2]) for a in worker.cmdline() if a.startswith('--port=')]
      addresses = {'127.0.0.1', '::1', socket.gethostbyname(socket.gethostname())}
      for address in addresses:
        with self.subTest(address), self.assertRaises(OSError):
          socket.create_connection((address, port), timeout=5).close()
      # It does listen, in a network whose only addresses are loopback's.
      with open(f'/proc/{worker.pid}/net/fib_trie', encoding='utf-8') as file:
        hosts = {line.split()[-1] for line in file if '|--' in line}
      self.assertTrue(all(host.startswith('127.') for host in hosts), hosts)

  def test_nothing_listens_on_the_network(self):
    before = {c.laddr for c in psutil.net_connections('tcp') if c.status == psutil.CONN_LISTEN}
    with local.runtime(1):
      pids = {p.pid for p in processes.descendants()}
      opened = [
          c for c in psutil.net_connections('tcp')
          if c.status == psutil.CONN_LISTEN and c.laddr not in before and c.pid in pids
      ]
    self.assertEmpty(opened)

  def test_the_socket_is_its_owners(self):
    with local.runtime(1):
      [relay] = psutil.Process().children()
      [door] = [a.partition('unix:')[2] for a in relay.cmdline() if a.startswith('--door=')]
      self.assertEqual(os.stat(door).st_mode & 0o777, 0o600)
      self.assertEqual(os.stat(os.path.dirname(door)).st_mode & 0o777, 0o700)
    self.assertFalse(os.path.exists(door))

  def test_where_it_cannot_be_isolated_the_user_is_told(self):
    # A user namespace that may have no network namespaces in it.
    program = _program(
        """
        with local.runtime(1):
          say(total([np.int64(1), np.int64(2)]))
        """,
        'unshare', '--user', '--map-root-user', 'sh', '-c',
        'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"', 'sh',
    )
    out, err = program.communicate(timeout=_WAIT_SECONDS)
    self.assertEqual(out.strip(), '3', err)
    self.assertRegex(err, 'runtime: .*No space left.* isolate')

  def test_a_network_whose_device_may_not_be_used_is_not_entered(self):
    # As distributions of Linux have it that take rights from user namespaces.
    body = '''
      import os
      from unittest import mock
      from tff_noise.runtimes import sandbox
      before = os.readlink('/proc/self/ns/net')
      forbidden = PermissionError(1, 'Operation not permitted')
      with mock.patch.object(sandbox.fcntl, 'ioctl', side_effect=forbidden):
        print(sandbox.isolate())
      print(os.readlink('/proc/self/ns/net') == before)
      print(sandbox.isolate() or os.readlink('/proc/self/ns/net') != before)
    '''
    done = subprocess.run(
        [sys.executable, '-c', textwrap.dedent(body)], capture_output=True, text=True, check=True,
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
    )
    self.assertEqual(
        done.stdout.splitlines(), ['its loopback device: Operation not permitted', 'True', 'True']
    )


class ExitTest(parameterized.TestCase):

  def _start(self, after):
    """Starts a program that prints its children's pids and then does `after`."""
    program = _program(f"""
        with local.runtime(1):
          assert total([np.int64(1), np.int64(2)]) == 3
          say(*(p.pid for p in processes.descendants()))
          {after}
    """)
    self.addCleanup(program.stdout.close)
    self.addCleanup(program.stderr.close)
    line = program.stdout.readline()
    if not line:
      self.fail(program.stderr.read())
    return program, [int(pid) for pid in line.split()]

  @parameterized.parameters(
      ('pass', 0), ('sys.exit(3)', 3), ('raise ValueError("mine")', 1)
  )
  def test_nobody_after_exit(self, after, status):
    program, started = self._start(after)
    self.assertEqual(program.wait(_WAIT_SECONDS), status)
    self.assertTrue(all(map(processes.gone, started)))

  @parameterized.parameters(signal.SIGINT, signal.SIGKILL)
  def test_nobody_after_a_signal(self, number):
    program, started = self._start('signal.pause()')
    program.send_signal(number)
    program.wait(_WAIT_SECONDS)
    self.assertTrue(all(map(processes.gone, started)))

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
