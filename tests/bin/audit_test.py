"""Tests of bin/audit as a user runs it."""

import json
import os
import subprocess
import sys
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from tests.report import run_files


class AuditTest(parameterized.TestCase):

  def _run(self, *flags):
    return subprocess.run(
        [sys.executable, '-m', 'bin.audit', *flags],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(p for p in sys.path if p)},
    )

  def test_a_method_without_running_it(self):
    out = self.create_tempdir().full_path
    # A file may be for several kinds of runs, and name what has no effect on this one.
    flags = self.create_tempfile(
        content='--method=feddpcont\n--training_labels=private\n--noise_rho=0.3\n'
    )
    result = self._run(f'--flagfile={flags.full_path}', '--rounds=7', f'--out_dir={out}')
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertIn('4 passed', result.stdout)
    with open(os.path.join(out, 'audit.json'), encoding='utf-8') as file:
      content = json.load(file)
    self.assertAlmostEqual(content['privacy']['totals'][0]['epsilon'], 0.81)
    self.assertEqual(max(r['times'] for r in content['privacy']['releases']), 7)
    for name in ('audit.html', 'audit.txt'):
      with open(os.path.join(out, name), encoding='utf-8') as file:
        self.assertIn('Audit of --method=feddpcont', file.read())

  def test_a_method_of_ones_own_whose_clients_withhold_examples(self):
    folder = self.create_tempdir().full_path
    with open(os.path.join(folder, 'audited_here.py'), 'w', encoding='utf-8') as file:
      file.write(
          'from tff_noise.algorithms import catalog\n'
          "METHOD = catalog.ALGORITHMS['elr']._replace(name='mine')\n"
      )
    self.enter_context(mock.patch.object(sys, 'path', [*sys.path, folder]))
    result = self._run('--method=audited_here:METHOD', '--client_validation_fraction=0.1')
    self.assertEqual(result.returncode, 0, result.stderr)

  def test_a_run_whose_files_do_not_fit_fails(self):
    run = run_files.write(os.path.join(self.create_tempdir().full_path, 'run'))
    result = self._run(f'--run_dir={run}')
    self.assertEqual(result.returncode, 1, result.stderr)
    self.assertIn('failed', result.stdout)
    self.assertTrue(os.path.exists(os.path.join(run, 'audit.html')))

  def test_runs_together(self):
    root = self.create_tempdir().full_path
    runs = [
        run_files.write_unfinished(
            os.path.join(root, name), config=run_files.config(seed=seed), metrics=None, timing=None
        )
        for name, seed in (('a', 1), ('b', 2))
    ]
    out = os.path.join(root, 'out')
    result = self._run(f'--runs={",".join(runs)}', f'--out_dir={out}', '--delta=1e-6')
    # No round is done: no evidence of what they released.
    self.assertEqual(result.returncode, 3, result.stdout + result.stderr)
    self.assertIn('Audit of 2 runs together', result.stdout)
    self.assertCountEqual(os.listdir(out), [
        'audit.html', 'audit.json', 'audit.txt', 'delta_epsilon.csv', 'events.json',
    ])
    with open(os.path.join(out, 'audit.json'), encoding='utf-8') as file:
      self.assertEqual(json.load(file)['delta'], 1e-6)
    run_files.write(runs[0])  # Rounds, and no entries.
    result = self._run(f'--runs={",".join(runs)}')
    self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
    self.assertIn('round 1 has none', result.stdout)

  def test_the_mechanism(self):
    result = self._run('--mechanism', '--trials=400', '--alpha=1e-6')
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertIn('both in NumPy and in TensorFlow', ' '.join(result.stdout.split()))

  @parameterized.parameters(
      (('--method=fedavg', '--label_prior=uniform'), '--label_prior has no effect here'),
      ((), 'one of --run_dir, --runs, --method and --mechanism'),
      (('--mechanism', '--label_epsilon=-2'), '--label_epsilon, --num_classes: epsilon must be'),
      (('--runs=x', '--method=fedavg'), '--runs and --method are audits of their own: give one'),
      (('--runs=x,y', '--trials=3'), '--trials cannot be given with --runs'),
      (('--runs=/nowhere/at/all,x',), 'not a run'),
      (('--mechanism', '--method=fedavg'), '--method and --mechanism are audits of their own'),
      (('--mechanism', '--rounds=3'), "'--rounds=3' can be given with --method only"),
      (('--method=fedavg', '--trials=3'), '--trials cannot be given with --method'),
      (('--method=nothing',), '--method must be one of'),
      (('--method=fedavg', '--roundz=3'), 'roundz'),
      (('--mechanism', '--label_epsilon=-1'), 'epsilon must be a positive decimal'),
      (('--method=fedavg', '--delta=0'), '--delta must be in (0, 1), got 0'),
      (('--mechanism', '--delta=0.1'), '--delta cannot be given with --mechanism'),
      (('--run_dir=x', '--label_epsilon=1'), '--label_epsilon cannot be given with --run_dir'),
      (('--run_dir=/nowhere/at/all',), 'not a run'),
  )
  def test_mistakes_are_one_line_and_status_2(self, flags, message):
    result = self._run(*flags)
    self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
    self.assertIn(message, result.stderr)
    self.assertLen(result.stderr.strip().splitlines(), 1)

  def test_help(self):
    self.assertIn('--run_dir=runs/NAME', self._run('--help').stdout)


if __name__ == '__main__':
  absltest.main()
