"""Workers on this host that come and go, in real processes."""

import concurrent.futures
import contextlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from unittest import mock

import grpc
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from tensorflow_federated.python.core.impl.executors import executors_errors

from tests.runtimes import battery
from tests.runtimes import gate as gate_lib
from tests.runtimes import workers as workers_lib
from tff_noise import types
from tff_noise.runtimes import connection
from tff_noise.runtimes import remote
from tff_noise.runtimes import worker_process

_SILENCE_SECONDS = 2.0
_WAIT_SECONDS = 120


class RemoteTestCase(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.said = io.StringIO()
    self.enter_context(contextlib.redirect_stderr(self.said))

  def start(self, count, **options):
    workers = workers_lib.Workers(count)
    self.addCleanup(workers.stop_all)
    self.enter_context(remote.runtime(workers.addresses, silence=_SILENCE_SECONDS, **options))
    return workers


class RemoteTest(battery.Battery, RemoteTestCase):

  def setUp(self):
    super().setUp()
    self.start(3)


class SpreadTest(RemoteTestCase):

  def test_all_workers_compute_at_the_same_time(self):
    self.start(3)
    gate = gate_lib.Gate(self.create_tempdir().full_path)

    def open_when_all_have_begun():
      # Each runs two clients at a time: six have begun only if three workers are at it.
      gate.wait(6)
      gate.open()

    opener = threading.Thread(target=open_when_all_have_begun)
    opener.start()
    self.assertEqual(gate.total()(battery.ints(*range(9))), 36)
    opener.join()

  def test_what_clients_compute_is_computed_once(self):
    self.start(2)
    folder = self.create_tempdir().full_path

    @tff.tensorflow.computation(np.int64)
    def counted(x):
      # A new file for each time this is computed.
      name = tf.strings.as_string(tf.random.uniform([], maxval=2**62, dtype=tf.int64))
      with tf.control_dependencies([tf.io.write_file(tf.strings.join([folder, '/', name]), 'x')]):
        return tf.identity(x)

    @tff.federated_computation(tff.FederatedType(np.int64, tff.CLIENTS))
    def total_and_values(x):
      computed = tff.federated_map(counted, x)
      return tff.federated_sum(computed), computed

    total, values = total_and_values(battery.ints(1, 2, 3, 4, 5))
    self.assertEqual((total, [int(v) for v in values]), (15, [1, 2, 3, 4, 5]))
    self.assertLen(os.listdir(folder), 5)


class FaultTest(RemoteTestCase):

  def _in_the_round(self, workers, fault, **options):
    """Does `fault` to the first worker while it computes; returns what is summed."""
    gate = gate_lib.Gate(self.create_tempdir().full_path)

    def act():
      gate.wait()
      fault(workers.process(workers.addresses[0]))
      gate.open()

    actor = threading.Thread(target=act)
    actor.start()
    try:
      return gate.total()(battery.ints(1, 2, 3, 4, 5, 6))
    finally:
      actor.join()

  def test_killed_in_a_round(self):
    workers = self.start(2)
    self.assertEqual(self._in_the_round(workers, lambda p: p.kill()), 21)
    self.assertIn(f'worker {workers.addresses[0]} is gone', self.said.getvalue())

  def test_stopped_in_a_round(self):
    workers = self.start(2)
    self.assertEqual(self._in_the_round(workers, lambda p: p.send_signal(signal.SIGSTOP)), 21)
    self.assertRegex(
        self.said.getvalue(), f'worker {workers.addresses[0]} is gone .no sign of life'
    )

  def test_a_long_computation_is_no_silence(self):
    self.start(1)
    gate = gate_lib.Gate(self.create_tempdir().full_path)
    opener = threading.Timer(3 * _SILENCE_SECONDS, gate.open)
    opener.start()
    self.assertEqual(gate.total()(battery.ints(1, 2)), 3)
    self.assertEqual(self.said.getvalue(), '')

  def test_all_gone_and_one_back(self):
    workers = self.start(2)
    first, second = workers.addresses
    gate = gate_lib.Gate(self.create_tempdir().full_path)
    context = tff.framework.get_context_stack().current

    def in_context():
      # The runtime of a context stack is its thread's own.
      with tff.framework.get_context_stack().install(context):
        return gate.total()(battery.ints(1, 2, 3, 4, 5, 6))

    # In another thread, since workers end with the thread that started them.
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
      total = threads.submit(in_context)
      gate.wait()
      workers.stop(first)
      workers.stop(second)
      while 'all workers are gone' not in self.said.getvalue():
        time.sleep(0.01)
      workers.start(second)
      gate.open()
      self.assertEqual(total.result(_WAIT_SECONDS), 21)
    self.assertIn(f'worker {second} is back', self.said.getvalue())

  def test_all_gone_for_good(self):
    workers = self.start(1, patience=1.0)
    workers.stop(workers.addresses[0])
    gate = gate_lib.Gate(self.create_tempdir().full_path)
    gate.open()
    with self.assertRaisesRegex(worker_process.WorkerError, 'none came back within 1 s'):
      gate.total()(battery.ints(1, 2))


class _Executor:
  """Of a worker that is alive or not; computes values as they are."""

  def __init__(self, worker):
    self._worker = worker

  def set_cardinalities(self, cardinalities):
    del cardinalities  # Unused.
    if self._worker.dead:
      raise executors_errors.RetryableGRPCError(_Gone())

  async def create_value(self, value, type_signature):
    del type_signature  # Unused.
    if self._worker.dies:
      raise executors_errors.RetryableGRPCError(_Gone())
    return mock.Mock(compute=mock.AsyncMock(return_value=value))


class _Gone(grpc.RpcError):

  def code(self):
    return grpc.StatusCode.UNAVAILABLE


class ShareTest(absltest.TestCase):

  def _fetch(self, stubs):
    """Computes a number on the first of these workers that can; returns it, and who is gone."""
    peers = [mock.Mock(stub=stub) for stub in stubs]
    for peer in peers:
      peer.lose = lambda stub, problem, peer=peer: setattr(peer, 'stub', None)
    pool = mock.Mock(
        present=lambda: [remote.Present(p, p.stub) for p in peers if p.stub is not None]
    )
    share = remote._Share(pool, 0, slice(0, 1))
    share.steps.append(remote._Step(None, 7, tff.TensorType(np.int32)))
    with mock.patch.object(remote.messages, 'WritingExecutor', _Executor):
      return share.fetch(remote._Handle(0)), [p.stub is None for p in peers]

  def test_workers_that_were_gone_already_are_no_attempts(self):
    stubs = [mock.Mock(dead=i < 4, dies=False) for i in range(5)]
    self.assertEqual(self._fetch(stubs), (7, [True] * 4 + [False]))

  def test_what_three_workers_died_of_is_not_tried_again(self):
    stubs = [mock.Mock(dead=False, dies=i < 2) for i in range(3)]
    self.assertEqual(self._fetch(stubs), (7, [True, True, False]))
    with self.assertRaisesRegex(worker_process.WorkerError, '^3 workers were lost in the same'):
      self._fetch([mock.Mock(dead=False, dies=i < 3) for i in range(5)])


class PoolTest(RemoteTestCase):

  def test_who_waits_for_a_worker_hears_that_the_pool_is_closed(self):
    [port] = workers_lib.free_ports(1)
    pool = remote.Pool(
        [f'127.0.0.1:{port}'] * 3, silence=_SILENCE_SECONDS, patience=10 * _WAIT_SECONDS
    )
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
      waits = threads.submit(pool.present)
      while 'all workers are gone' not in self.said.getvalue():
        time.sleep(0.01)
      pool.close()
      with self.assertRaisesRegex(worker_process.WorkerError, 'closed'):
        waits.result(_WAIT_SECONDS)


class NetworkTest(RemoteTestCase):
  """A worker beyond a cable, which is cut."""

  _CABLE, _HERE, _THERE = 'tffnoise0', '10.231.77.1', '10.231.77.2'

  def _shell(self, *command):
    return subprocess.run(command, capture_output=True, check=False, text=True)

  def setUp(self):
    super().setUp()
    if not (shutil.which('ip') and shutil.which('nsenter')):
      self.skipTest('ip or nsenter is not installed')
    # Keeps a network namespace until its standard input ends.
    keeper = subprocess.Popen(
        ['unshare', '--net', 'sh', '-c', 'echo && cat'],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )
    self.addCleanup(keeper.communicate)
    keeper.stdout.readline()
    inside = ('nsenter', '--net', f'--target={keeper.pid}')
    for command in (
        ('ip', 'link', 'add', self._CABLE, 'type', 'veth', 'peer', 'name', 'far', 'netns',
         str(keeper.pid)),
        ('ip', 'addr', 'add', f'{self._HERE}/30', 'dev', self._CABLE),
        ('ip', 'link', 'set', self._CABLE, 'up'),
        (*inside, 'ip', 'addr', 'add', f'{self._THERE}/30', 'dev', 'far'),
        (*inside, 'ip', 'link', 'set', 'far', 'up'),
        (*inside, 'ip', 'link', 'set', 'lo', 'up'),
    ):
      done = self._shell(*command)
      if done.returncode:
        self.skipTest(f'this machine allows no network of its own: {done.stderr.strip()}')
    far = subprocess.Popen(
        [*inside, sys.executable, '-m', 'bin.worker', f'--host={self._THERE}',
         '--allow_beyond_loopback'],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
    )
    self.addCleanup(far.communicate)
    self.addCleanup(far.terminate)
    self.assertIn('ready', far.stderr.readline())

  def test_cut_in_a_round_and_mended(self):
    near = workers_lib.Workers(1)
    self.addCleanup(near.stop_all)
    far = f'{self._THERE}:8470'
    gate = gate_lib.Gate(self.create_tempdir().full_path)

    def cut():
      gate.wait(4)  # Two clients at each.
      self._shell('ip', 'link', 'set', self._CABLE, 'down')
      gate.open()

    with remote.runtime([far, *near.addresses], silence=_SILENCE_SECONDS):
      cutter = threading.Thread(target=cut)
      cutter.start()
      self.assertEqual(gate.total()(battery.ints(*range(8))), 28)
      cutter.join()
      self.assertIn(f'worker {far} is gone (no sign of life', self.said.getvalue())
      self._shell('ip', 'link', 'set', self._CABLE, 'up')
      while f'worker {far} is back' not in self.said.getvalue():
        time.sleep(0.01)
      self.assertEqual(gate.total()(battery.ints(*range(8))), 28)


class ProxyTest(absltest.TestCase):

  def test_clients_data_do_not_go_through_a_proxy(self):
    with socket.create_server(('127.0.0.1', 0)) as worker, socket.create_server(
        ('127.0.0.1', 0)
    ) as proxy:
      worker.settimeout(30)
      variables = {
          name: f'http://127.0.0.1:{proxy.getsockname()[1]}'
          for name in ('http_proxy', 'grpc_proxy', 'https_proxy')
      }
      with mock.patch.dict(os.environ, variables):
        for name in ('no_proxy', 'no_grpc_proxy'):
          os.environ.pop(name, None)
        channel = connection.open_channel(f'tcp:127.0.0.1:{worker.getsockname()[1]}')
        self.addCleanup(channel.close)
        channel.subscribe(lambda _: None, try_to_connect=True)
        accepted, _ = worker.accept()
        accepted.close()


class RefusalTest(RemoteTestCase):

  def _refused(self, message, *addresses):
    with self.assertRaisesRegex(types.UsageError, message) as caught:
      self.enter_context(remote.runtime(addresses, silence=_SILENCE_SECONDS))
    self.assertNotIn('\n', str(caught.exception))

  def test_nobody_answers(self):
    [port] = workers_lib.free_ports(1)
    self._refused('no worker can be used: .*refused.*bin/worker', f'127.0.0.1:{port}')

  def test_who_answers_is_no_worker(self):
    with socket.create_server(('127.0.0.1', 0)) as server:
      threading.Thread(target=lambda: server.accept()[0].close(), daemon=True).start()
      self._refused('not a worker|reset', f'127.0.0.1:{server.getsockname()[1]}')

  def test_other_versions(self):
    older = json.loads(json.dumps(worker_process.versions()))
    older['tensorflow'] = '2.13.0'
    with mock.patch.object(worker_process, 'versions', return_value=older):
      workers = workers_lib.Workers(1)
    self.addCleanup(workers.stop_all)
    self._refused('it has tensorflow 2.13.0.*this program tensorflow 2.14', *workers.addresses)

  def test_one_of_two_is_enough(self):
    workers = workers_lib.Workers(1)
    self.addCleanup(workers.stop_all)
    [port] = workers_lib.free_ports(1)
    with remote.runtime([f'127.0.0.1:{port}', *workers.addresses], silence=_SILENCE_SECONDS):
      self.assertEqual(battery.double(4), 8)
    self.assertRegex(self.said.getvalue(), f'going on without worker 127.0.0.1:{port}')


if __name__ == '__main__':
  absltest.main()
