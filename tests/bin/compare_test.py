"""The comparison command, in real processes."""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import psutil
from absl.testing import absltest
from absl.testing import parameterized

_WAIT_SECONDS = 300
_GRID = ('--methods=fedavg,feddpcont', '--seeds=0', '--rounds=1', '--clients=4',
         '--clients_per_round=2')


def _start(*arguments, path=()):
  return subprocess.Popen(
      [sys.executable, '-m', 'bin.compare', *arguments],
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      env={**os.environ, 'PYTHONPATH': os.pathsep.join([*path, *sys.path])},
  )


def _run(*arguments, path=()):
  process = _start(*arguments, path=path)
  out, err = process.communicate(timeout=_WAIT_SECONDS)
  return process.returncode, out, err


@functools.cache
def _whole_grid():
  """Runs the grid once, for all tests that only look at it: its root, status and what it said."""
  root = tempfile.mkdtemp(dir=absltest.get_default_test_tmpdir())
  return root, *_run(f'--root_dir={root}', *_GRID)


class CompareTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.root = self.create_tempdir().full_path

  def _compare(self, *arguments):
    return _run(f'--root_dir={self.root}', *_GRID, *arguments)

  def _runs(self):
    names = os.listdir(self.root) if os.path.exists(self.root) else []
    return sorted(n for n in names if n.startswith('fed'))

  def _summary_paths(self):
    return [os.path.join(self.root, name, 'summary.json') for name in self._runs()]

  def _summaries(self):
    return {path: os.stat(path).st_mtime_ns for path in self._summary_paths()}

  def test_runs_tabulates_and_does_not_run_again(self):
    whole, status, out, err = _whole_grid()
    self.assertEqual(status, 0, err)
    shutil.copytree(whole, self.root, dirs_exist_ok=True)
    self.assertIn('| feddpcont |', out)
    self.assertIn('[2/2]', err)
    (folder,) = os.listdir(os.path.join(self.root, 'compare'))
    files = os.listdir(os.path.join(self.root, 'compare', folder))
    self.assertContainsSubset({'table.md', 'table.tex', 'table.csv', 'comparison.html'}, files)
    before = self._summaries()
    self.assertLen(before, 2)
    status, again, err = self._compare()
    self.assertEqual(status, 0, err)
    self.assertIn('2 runs, 2 of them finished', err)
    self.assertEqual(again, out)
    self.assertEqual(self._summaries(), before)

  def test_runs_of_other_data_are_not_compared(self):
    whole, status, out, err = _whole_grid()
    self.assertEqual(status, 0, err)
    shutil.copytree(whole, self.root, dirs_exist_ok=True)
    path = os.path.join(self.root, self._runs()[0], 'config.json')
    with open(path, encoding='utf-8') as file:
      content = json.load(file)
    content['inputs']['training images'] = '0' * 16
    with open(path, 'w', encoding='utf-8') as file:
      json.dump(content, file)
    status, again, err = self._compare()
    self.assertEqual((status, again), (2, ''))
    self.assertRegex(err, r'^compare: run \w+ was made from other training images: .*--norun.*\n$')
    status, again, err = self._compare('--norun')
    self.assertEqual((status, again), (0, out), err)

  def test_what_a_file_of_results_has_is_not_run(self):
    whole, status, out, err = _whole_grid()
    self.assertEqual(status, 0, err)
    results = os.path.join(self.create_tempdir().full_path, 'results.csv')
    status, _, err = _run(f'--root_dir={whole}', f'--results={results}', *_GRID)
    self.assertEqual(status, 0, err)
    status, again, err = self._compare(f'--results={results}')
    self.assertEqual(status, 0, err)
    self.assertIn('2 runs, 2 of them finished', err)
    self.assertEqual(again, out)
    self.assertEmpty(self._runs())

  def test_a_file_with_more_metrics_is_tabulated_and_not_written(self):
    whole, status, out, err = _whole_grid()
    self.assertEqual(status, 0, err)
    shutil.copytree(whole, self.root, dirs_exist_ok=True)
    elsewhere = self.create_tempdir().full_path
    results = os.path.join(elsewhere, 'results.csv')
    more = '--metric=best_test_accuracy,rounds_to_accuracy:90'
    status, _, err = self._compare(f'--results={results}', more)
    self.assertEqual(status, 0, err)
    before = os.stat(results).st_mtime_ns
    for root in (self.root, elsewhere):
      status, again, err = _run(f'--root_dir={root}', f'--results={results}', *_GRID)
      self.assertEqual((status, again), (0, out), err)
    self.assertEqual(os.stat(results).st_mtime_ns, before)

  def test_shards_at_the_same_time_are_the_grid_and_a_lost_one_is_run_again(self):
    results = os.path.join(self.create_tempdir().full_path, 'results.csv')
    flags = (f'--root_dir={self.root}', f'--results={results}', *_GRID)
    processes = [_start(*flags, f'--shard={i}/2') for i in range(2)]
    for i, process in enumerate(processes):
      out, err = process.communicate(timeout=_WAIT_SECONDS)
      self.assertEqual((process.returncode, out), (0, f'shard {i}/2: 1 of 1 cells are done\n'), err)
      self.assertIn('[1/1]', err)
    self.assertLen(self._runs(), 2)
    (folder,) = os.listdir(os.path.join(self.root, 'compare'))
    self.assertEqual(os.listdir(os.path.join(self.root, 'compare', folder)), ['logs'])

    of_shard = [results.replace('.csv', f'.{i}-of-2.csv') for i in range(2)]
    (lost,) = (name for name in self._runs() if name.startswith('feddpcont'))
    shutil.rmtree(os.path.join(self.root, lost))
    os.remove(of_shard[1])
    before = self._summaries()
    status, out, err = _run(*flags, '--shard=1/2', '--norun')
    self.assertEqual((status, out), (
        1, 'shard 1/2: 0 of 1 cells are done\n- feddpcont, all, seed 0: not run\n'
    ), err)
    self.assertEqual(_run(*flags, '--shard=1/2')[0], 0)
    self.assertContainsSubset(before.items(), self._summaries().items())
    self.assertLen(self._runs(), 2)

    # The folders together are the grid, and so are the files of the shards alone.
    status, out, err = self._compare('--norun')
    self.assertEqual(status, 0, err)
    self.assertFalse(os.path.exists(results))
    self.root = os.path.join(self.create_tempdir().full_path, 'elsewhere')
    status, again, err = self._compare(f'--results={results}')
    self.assertEqual((status, again), (0, out), err)
    self.assertEmpty(self._runs())
    for file in of_shard:
      os.remove(file)
    self.assertEqual(self._compare(f'--results={results}')[:2], (0, out))

  def test_failed_cell_is_named_and_loses_no_other(self):
    whole, status, _, err = _whole_grid()
    self.assertEqual(status, 0, err)
    (run,) = (name for name in os.listdir(whole) if name.startswith('fedavg'))
    shutil.copytree(os.path.join(whole, run), os.path.join(self.root, run))
    os.remove(os.path.join(self.root, run, 'summary.json'))
    with open(os.path.join(self.root, run, 'scene.npz'), 'wb') as file:
      file.write(b'damaged')
    status, out, err = self._compare()
    self.assertEqual(status, 1)
    self.assertRegex(err, r'fedavg, all, seed 0 failed with status 2: train: scene .* be read')
    self.assertIn('Without a result', out)
    self.assertRegex(out, r'\| feddpcont \| \*\*\d')

  def test_killed_and_started_again_it_redoes_nothing_and_changes_no_number(self):
    whole, status, _, err = _whole_grid()
    self.assertEqual(status, 0, err)
    results = os.path.join(self.create_tempdir().full_path, 'results.csv')
    process = _start(f'--root_dir={self.root}', f'--results={results}', *_GRID)
    while process.poll() is None and not os.path.exists(results):
      time.sleep(0.05)  # Polls; what follows does not depend on how long it took.
    process.kill()
    process.communicate(timeout=_WAIT_SECONDS)
    finished = {p: os.stat(p).st_mtime_ns for p in self._summary_paths() if os.path.exists(p)}
    self.assertNotEmpty(finished)
    with open(results, encoding='utf-8') as file:
      self.assertIn('\nall,fedavg,0,', file.read())
    self.assertEqual(self._compare()[0], 0)
    self.assertEqual({p: os.stat(p).st_mtime_ns for p in finished}, finished)
    for name in self._runs():
      contents = []
      for root in (whole, self.root):
        with open(os.path.join(root, name, 'metrics.csv'), encoding='utf-8') as file:
          contents.append(file.read())
      self.assertEqual(*contents)

  def test_killed_it_takes_its_runs_along(self):
    process = _start(f'--root_dir={self.root}', *_GRID, '--rounds=100000', '--methods=fedavg')
    children = []
    while process.poll() is None and len(children) < 2:
      # The run, and the run's TFF worker.
      children = psutil.Process(process.pid).children(recursive=True)
      time.sleep(0.05)  # Polls; what follows does not depend on how long it took.
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=_WAIT_SECONDS)
    _, alive = psutil.wait_procs(children, timeout=_WAIT_SECONDS)
    self.assertEmpty([p for p in alive if p.status() != psutil.STATUS_ZOMBIE])

  def test_tabulates_what_is_there_without_running(self):
    status, out, err = self._compare('--norun')
    self.assertEqual(status, 1)
    self.assertIn('fedavg, all, seed 0: not run', out)
    self.assertEmpty(self._runs())
    self.assertNotIn('[1/', err)


class MistakeTest(parameterized.TestCase):

  @parameterized.parameters(
      (['--grid=missing.yaml'], 'missing.yaml cannot be read'),
      (['--methods=fedavgg'], '--method must be one of fedavg, fedprox, '),
      (['--seeds=a'], '--seeds must be whole numbers'),
      (['--jobs=0'], '--jobs must be at least 1'),
      (['--metric=accuracy'], 'metric must be one of'),
      (['--vary=noise_rate'], 'expected flag=value'),
      (['--no_such_flag=1'], 'no_such_flag'),
      (['stray'], "unexpected argument 'stray'"),
      (['--grid=x.yaml', '--methods=fedavg'], '--methods cannot be given with --grid'),
      (['--methods=fedavg,fedavg'], 'is given twice'),
      (['--shard=2/2'], "--shard must be i/n, with i from 0 to n - 1, such as 0/4"),
      (['--shard='], '--shard must be i/n'),
      (['--results=no_folder/r.csv'], 'no_folder is no folder that can be written to; make it'),
      (['--scale=full'], '--scale needs a grid file: give --grid, or leave it out'),
      (['--noresume'], '--resume cannot be set in a grid'),
      (['--dataset=cifar10', '--data_dir=nowhere'], 'nowhere'),
      (['--model=nowhere:network'], '--model=nowhere:network: there is no module nowhere; it has'),
      (['--metrics_hook=nowhere:hook'], '--metrics_hook=nowhere:hook: there is no module nowhere'),
      (['--weights=nowhere.h5'], 'there is no weights file nowhere.h5: give a Keras H5 file'),
  )
  def test_one_line_and_status_two_without_tensorflow(self, arguments, message):
    stub = self.create_tempdir()
    stub.create_file('tensorflow.py', content='raise RuntimeError("imported too early")')
    root = os.path.join(self.create_tempdir().full_path, 'runs')
    status, out, err = _run(f'--root_dir={root}', *arguments, path=[stub.full_path])
    self.assertEqual(status, 2, err)
    self.assertEqual(out, '')
    self.assertLen(err.splitlines(), 1, err)
    self.assertIn(message, err)
    self.assertFalse(os.path.exists(root))

  def test_help(self):
    status, out, _ = _run('--help')
    self.assertEqual(status, 0)
    self.assertIn('--grid', out)


if __name__ == '__main__':
  absltest.main()
