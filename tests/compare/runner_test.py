"""Tests of runner.py and cells.py, with real processes."""

import functools
import json
import os
import subprocess
import sys
from unittest import mock

import psutil
from absl.testing import absltest

from tff_noise import child
from tff_noise.compare import grid as grid_lib
from tff_noise.compare import runner
from tff_noise.runtimes import worker_process

_FLAGS = ('--dataset=digits', '--clients=4', '--clients_per_round=2', '--rounds=1')


def _files(path):
  """What a run's result consists of."""
  contents = {}
  for name in ('metrics.csv', 'clients.csv', 'scene.npz', 'uplink.json', 'privacy.json'):
    with open(os.path.join(path, name), 'rb') as file:
      contents[name] = file.read()
  return contents


class RunnerTest(absltest.TestCase):

  def _grid(self, methods, seeds):
    self.root = self.create_tempdir().full_path
    return grid_lib.from_flags(
        methods, [], seeds, _FLAGS, self.root, metric=['best_test_accuracy'], baseline=None
    )

  def _run(self, grid, jobs=1):
    seen = []
    outcomes = runner.run_cells(
        grid.cells, jobs=jobs, log_dir=os.path.join(self.root, 'logs'), on_outcome=seen.append
    )
    self.assertEqual(seen, outcomes)
    return {(o.cell.method, o.cell.seed): o for o in outcomes}

  def test_runs_of_one_process_are_those_of_their_own(self):
    grid = self._grid(['fedavg'], [0, 1])
    outcomes = self._run(grid)
    self.assertEqual([o.status for o in outcomes.values()], [0, 0])
    last = grid.cells[-1]
    alone = self.create_tempdir().full_path
    arguments = [a for a in last.arguments if not a.startswith('--root_dir=')]
    subprocess.run(
        [sys.executable, '-m', 'bin.train', *arguments, f'--root_dir={alone}'], check=True,
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)}, capture_output=True,
    )
    self.assertEqual(
        _files(last.config.path()), _files(os.path.join(alone, last.config.name()))
    )
    # Drawn on demand.
    self.assertFalse(os.path.exists(os.path.join(last.config.path(), 'report.html')))
    with open(outcomes[last.method, last.seed].log, encoding='utf-8') as file:
      self.assertIn('test accuracy', file.read())

  def test_a_run_that_fails_harms_no_other(self):
    grid = self._grid(['fedavg'], [0, 1])
    os.makedirs(grid.cells[0].config.path())
    outcomes = self._run(grid)
    self.assertEqual([outcomes['fedavg', seed].status for seed in (0, 1)], [2, 0])
    self.assertIn('train: ', outcomes['fedavg', 0].message)

  def test_a_process_that_dies_is_the_failure_of_its_run(self):
    grid = self._grid(['fedavg'], [0, 1])

    def kill(outcome):
      if outcome.cell.seed == 0:
        for process in psutil.Process().children():
          process.kill()

    outcomes = runner.run_cells(
        grid.cells, jobs=1, log_dir=os.path.join(self.root, 'logs'), on_outcome=kill
    )
    self.assertEqual([o.status for o in outcomes], [0, -9])
    # The same grid then continues.
    self.assertEqual([o.status for o in self._run(grid).values()], [0, 0])

  def test_a_full_disk_is_told_in_a_line_and_the_next_run_is_none_the_worse(self):
    grid = self._grid(['fedavg'], [0, 1])
    logs = os.path.join(self.root, 'logs')
    os.makedirs(logs)
    log = os.path.join(logs, grid.cells[0].config.name() + '.log')
    os.symlink('/dev/full', log)
    outcomes = self._run(grid)
    self.assertEqual([outcomes['fedavg', seed].status for seed in (0, 1)], [1, 0])
    self.assertEqual(
        outcomes['fedavg', 0].message,
        f'its output cannot be written to {log} (No space left on device)',
    )

  def test_no_process_that_can_be_started_is_the_failure_of_each_run(self):
    grid = self._grid(['fedavg'], [0, 1])
    with mock.patch.object(child, 'start', side_effect=OSError(11, 'Resource unavailable')):
      outcomes = self._run(grid)
    self.assertEqual({o.message for o in outcomes.values()}, {
        'no process can be started (Resource unavailable)'
    })
    self.assertEqual({o.status for o in outcomes.values()}, {-1})

  def test_a_process_that_dies_between_runs_or_while_it_answers(self):
    for reply in ('', '[0, '):
      grid = self._grid(['fedavg'], [0, 1])
      dying = [sys.executable, '-c', f'import sys; sys.stdout.write({reply!r}); sys.exit(7)']
      start = functools.partial(child.start, dying)
      with mock.patch.object(child, 'start', lambda command, start=start, **more: start(**more)):
        outcomes = self._run(grid)
      self.assertEqual([o.status for o in outcomes.values()], [7, 7])

  def test_two_at_a_time_have_cores_of_their_own(self):
    both = runner._cores(2)
    cores = os.sched_getaffinity(0)
    if len(cores) > 1:
      self.assertEmpty({*both[0]} & {*both[1]})
      self.assertEqual({*both[0]} | {*both[1]}, cores)
    self.assertEqual(runner._cores(1000)[999], sorted(cores))

  def test_a_container_with_less_time_takes_no_cores_that_others_would_take_too(self):
    grid = self._grid(['fedavg'], [0])
    with mock.patch.object(os, 'sched_getaffinity', return_value=set(range(64))):
      with mock.patch.object(worker_process, 'cores', return_value=8):
        outcomes = self._run(grid)
    self.assertEqual(outcomes['fedavg', 0].status, 0)
    with open(grid.cells[0].config.path() + '/config.json', encoding='utf-8') as file:
      self.assertEqual(json.load(file)['execution']['max_concurrent_clients'], 8)

  def test_a_cell_of_other_code_than_the_grid_began_with_is_not_run(self):
    grid = self._grid(['fedavg'], [0])
    with mock.patch.object(runner.inputs, 'code', return_value='what it was'):
      outcomes = self._run(grid)
    self.assertEqual(outcomes['fedavg', 0].status, 2)
    self.assertIn('code was changed since the grid began', outcomes['fedavg', 0].message)
    self.assertFalse(os.path.exists(grid.cells[0].config.path()))

  def test_no_cells(self):
    grid = self._grid(['fedavg'], [0])
    self.assertEmpty(self._run(grid._replace(cells=())))


if __name__ == '__main__':
  absltest.main()
