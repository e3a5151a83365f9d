"""bin/worker and a run that uses it, in real processes."""

import csv
import os
import re
import signal
import socket
import subprocess
import sys

import psutil
from absl.testing import absltest
from absl.testing import parameterized

from tests.runtimes import processes
from tests.runtimes import workers
from tff_noise.runtimes import worker_process

_ENVIRON = {k: v for k, v in os.environ.items() if not k.startswith('TF_')}
_WAIT_SECONDS = 300
_SMALL = ('--rounds=3', '--clients=6', '--clients_per_round=4')


def _start(program, *arguments):
  return subprocess.Popen(
      [sys.executable, '-m', f'bin.{program}', *arguments],
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      env={**_ENVIRON, 'PYTHONPATH': os.pathsep.join(sys.path)},
  )


def _run(program, *arguments):
  process = _start(program, *arguments)
  out, err = process.communicate(timeout=_WAIT_SECONDS)
  return process.returncode, out, err


class WorkerTest(parameterized.TestCase):

  def _worker(self, host='127.0.0.1'):
    """Starts one; returns it, its processes and its address when it is ready."""
    [port] = workers.free_ports(1)
    worker = _start('worker', f'--host={host}', f'--port={port}', '--allow_beyond_loopback')
    self.addCleanup(worker.communicate)
    self.addCleanup(worker.kill)
    line = ''
    while 'ready' not in line:
      line = worker.stderr.readline()
      self.assertNotEqual(line, '', 'it ended without being ready')
    said = re.fullmatch(r'worker: ready on (\S+) .*tensorflow-federated 0.*\n', line)
    self.assertTrue(said, line)
    self.assertEndsWith(said[1], f':{port}')
    return worker, psutil.Process(worker.pid).children(recursive=True), said[1]

  def test_a_run_on_two_workers_equals_a_local_one(self):
    root = self.create_tempdir().full_path
    addresses = ','.join(self._worker()[2] for _ in range(2))
    # Two workers add up in another order; FedDPCont's floor makes 2e-2 of 1e-7 within a round.
    calm = ('--method=fedavg', '--learning_rate=0.03')
    rows = {}
    for runtime, more in (('local', ()), ('remote', (f'--workers={addresses}',))):
      status, _, err = _run(
          'train', *_SMALL, *calm, f'--root_dir={root}', f'--run_name={runtime}',
          f'--runtime={runtime}', *more,
      )
      self.assertEqual(status, 0, err)
      with open(os.path.join(root, runtime, 'metrics.csv'), encoding='utf-8') as file:
        rows[runtime] = list(csv.DictReader(file))
    for local, remote in zip(rows['local'], rows['remote'], strict=True):
      for name in ('train_loss', 'test_loss', 'test_accuracy'):
        self.assertAlmostEqual(float(local[name]), float(remote[name]), places=4)

  def test_a_worker_on_ipv6_is_named_as_it_is_printed(self):
    try:
      socket.create_server(('::1', 0), family=socket.AF_INET6).close()
    except OSError:
      self.skipTest('this machine has no IPv6')
    _, _, address = self._worker('::1')
    self.assertStartsWith(address, '[::1]:')
    self.assertIn('tensorflow-federated', worker_process.ask_versions(address))

  @parameterized.parameters((signal.SIGTERM, 143), (signal.SIGINT, 130))
  def test_leaves_nobody(self, number, status):
    worker, started, _ = self._worker()
    self.assertLen(processes.tff_workers(psutil.Process(worker.pid)), 1)
    worker.send_signal(number)
    self.assertEqual(worker.wait(_WAIT_SECONDS), status)
    self.assertTrue(all(processes.gone(p.pid) for p in started))

  def test_says_that_its_worker_ended(self):
    worker, _, _ = self._worker()
    processes.tff_workers(psutil.Process(worker.pid))[0].kill()
    self.assertEqual(worker.wait(_WAIT_SECONDS), 1)
    self.assertRegex(worker.stderr.read(), r'^worker: .*ended with status 137\n$')

  @parameterized.parameters(
      (('--host=0.0.0.0',), 'lets other machines run any program here.*--allow_beyond_loopback'),
      (('--host=10.1.2.3',), 'tunnel'),
      (('--host=example.org',), '--host must be an IP address'),
      (('--port=0',), r'--port must be in \[1, 65535\]'),
      (('--max_concurrent_clients=0',), 'at least 1'),
      (('--workers=1',), 'workers'),
      (('stray',), 'unexpected argument'),
  )
  def test_mistakes_are_one_line(self, arguments, message):
    status, out, err = _run('worker', *arguments)
    self.assertEqual((status, out), (2, ''))
    self.assertRegex(err, '^worker: .*' + message)
    self.assertEqual(err.count('\n'), 1)

  def test_help_names_every_flag(self):
    status, out, _ = _run('worker', '--help')
    self.assertEqual(status, 0)
    for name in ('host', 'port', 'max_concurrent_clients', 'allow_beyond_loopback'):
      self.assertIn(f'--{name}', out)

  def test_a_port_in_use_is_one_line(self):
    _, _, address = self._worker()
    status, _, err = _run('worker', '--port=' + address.rpartition(':')[2])
    self.assertEqual(status, 1)
    self.assertRegex(err, '^worker: .*cannot listen on .*in use')
    self.assertEqual(err.count('\n'), 1)

  @parameterized.parameters(
      (('--runtime=remote',), '--workers must be HOST:PORT'),
      (('--runtime=remote', '--workers=here'), "--workers must be HOST:PORT,..., got 'here'"),
      (('--runtime=remote', '--workers=a:1,a:1'), 'one worker twice'),
      (('--workers=a:1',), '--workers must be empty with --runtime=local'),
      (('--runtime=gpu',), '--runtime must be one of local, remote, accelerator'),
      (('--runtime=remote', '--workers=127.0.0.1:1'), 'no worker can be used: 127.0.0.1:1'),
  )
  def test_a_run_that_cannot_begin_leaves_nothing(self, arguments, message):
    root = self.create_tempdir().full_path
    status, _, err = _run('train', f'--root_dir={root}', *arguments)
    self.assertEqual(status, 2)
    self.assertRegex(err.splitlines()[-1], '^train: .*' + message)
    self.assertEmpty(os.listdir(root))


if __name__ == '__main__':
  absltest.main()
