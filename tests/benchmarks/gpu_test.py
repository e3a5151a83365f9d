"""The benchmark of a GPU, on a CPU: what it runs, what it makes of it, what it installs."""

import base64
import contextlib
import hashlib
import io
import os
import re
import subprocess
import sys
import zipfile
from unittest import mock

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from benchmarks import gpu
from tff_noise.program import flags as program_flags

_WAIT_SECONDS = 800


def _script(folder, name, *lines):
  """Makes a program of a shell's lines."""
  path = os.path.join(folder, name)
  os.makedirs(folder, exist_ok=True)
  with open(path, 'w', encoding='utf-8') as file:
    file.write('\n'.join(['#!/bin/sh', *lines, '']))
  os.chmod(path, 0o755)
  return path


class WholeTest(parameterized.TestCase):

  def test_tables_of_the_smallest_size(self):
    programs = self.create_tempdir().full_path
    _script(
        programs, 'nvidia-smi', 'echo 0, 500', 'echo [N/A], [N/A]',
        'while echo 40, 1700; do sleep 0.1; done',
    )
    environment = {
        **os.environ,
        'PYTHONPATH': os.pathsep.join(sys.path),
        'PATH': os.pathsep.join([programs, os.environ['PATH']]),
    }
    ran = subprocess.run(
        [sys.executable, '-m', 'benchmarks.gpu', '--sizes=tiny'], env=environment, check=False,
        capture_output=True, text=True, timeout=_WAIT_SECONDS,
    )
    self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
    rows = [line.strip('| ').split(' | ') for line in ran.stdout.splitlines() if '|' in line]
    table, parity = rows[:-3], rows[-3:]
    self.assertEqual([row[0] for row in table[2:]], [
        'cnn', 'FedCorr, cnn, preprocess', 'FedCorr, cnn, finetune', 'FedCorr, cnn, usual',
    ])
    for row in table[2:]:
      self.assertLen(row, len(table[0]))
      self.assertGreater(float(row[1]), 0)
      self.assertGreater(float(row[2]), 0)
      self.assertEqual(row[4], '1')
      self.assertEqual(row[6], '1200')
    # FedCorr's client does more than FedAvg's.
    plain, *corrected = (sum(map(int, re.findall(r'(\d+) on', row[7]))) for row in table[2:])
    self.assertGreater(min(corrected), 1.5 * plain)
    self.assertEqual(
        [parity[0][0], parity[2][0]], ['one round, against the CPU', 'cnn, CPU, a millionth']
    )
    self.assertGreater(float(parity[2][1]), 0)
    self.assertLess(max(map(float, parity[2][1:])), 1e-2)

  @parameterized.parameters(*gpu.SIZES)
  def test_flags_of_every_size_are_those_of_the_program(self, name):
    for flags in gpu.workloads(gpu.SIZES[name]).values():
      flags = ['train', '--dataset=npz', '--data_dir=images.npz', '--partition=iid', *flags]
      config = program_flags.config_from(program_flags.parse(flags))
      self.assertEqual(config.clients, config.clients_per_round)

  def test_each_row_trains_what_it_says(self):
    told = {
        name: [flag for flag in flags if flag.startswith(('--model=', '--max_concurrent'))]
        for name, flags in gpu.workloads(gpu.SIZES['full']).items()
    }
    cnn = '--model=cnn'
    self.assertEqual(told, {
        'resnet18': ['--model=resnet18'], 'cnn': [cnn], 'FedCorr, cnn': [cnn],
        **{f'cnn, {n} at a time': [cnn, f'--max_concurrent_clients={n}'] for n in (1, 4, 8)},
    })


class RunTest(absltest.TestCase):

  def _run(self, folder='', **values):
    return gpu.Run(folder, **{'said': '', 'rounds': [], 'samples': [], **values})

  def test_busy_from_the_first_round_to_the_last_and_memory_of_all(self):
    samples = [gpu.Sample(t, b, m) for t, b, m in (
        (0.5, 0, 100), (2, 30, 900), (3, 60, 1100), (4, 90, 700), (4.5, 100, 700)
    )]
    run = self._run(rounds=[2, 3.5, 4], samples=samples)
    self.assertEqual((run.busy(), run.memory()), ('60 %', '1000'))
    self.assertEqual(self._run(rounds=[2, 4]).busy(), 'n/a')
    self.assertEqual(self._run(rounds=[2, 4]).memory(), 'n/a')
    self.assertEqual(self._run(rounds=[1], samples=samples).busy(), 'n/a')

  def test_last_placement_is_that_of_the_largest_computation(self):
    said = 'runtime: 1 GPU: A\n' + ''.join(
        f'runtime: operations of the largest computation so far: {p}\nround 1/2\n'
        for p in ('3 on CPU:0', '2 on CPU:0, 9 on GPU:0')
    )
    self.assertEqual(self._run(said=said).operations(), '2 on CPU:0, 9 on GPU:0')

  def test_seconds_by_stage(self):
    folder = self.create_tempdir()
    folder.create_file('metrics.csv', 'round,stage,train_loss\n1,a,2\n2,a,1\n3,b,1\n')
    folder.create_file('timing.csv', 'round,seconds\n1,0.5\n2,0.25\n3,4\n')
    run = self._run(folder.full_path)
    self.assertEqual(run.seconds(), {'a': [0.5, 0.25], 'b': [4.0]})

  def _with_weights(self, *values):
    folder = self.create_tempdir().full_path
    os.mkdir(os.path.join(folder, 'state'))
    leaves = {f'state/models/model/{i}': value for i, value in enumerate(values)}
    np.savez(os.path.join(folder, 'state', 'round_1.npz'), **leaves)
    return self._run(folder)

  def test_relative_difference(self):
    # A bias of zeros tells nothing; 0.25 of 4 is more than 0.5 of 10.
    there = self._with_weights([0.0, 0.0], [4.0, -1.0], [-10.0])
    here = self._with_weights([0.0, 0.0], [4.0, -0.75], [-10.5])
    self.assertEqual(gpu.relative_difference(here, there), 0.0625)
    self.assertEqual(gpu.relative_difference(there, there), 0)

  def test_repeated_rounds_are_held_against_each_other(self):
    asked = []

    def train(name, flags, environment, root):
      del root  # Unused.
      asked.append((name, environment, '--slowly' in flags))
      run = self._with_weights([4.0, 1.0 + len(asked) % 2])
      for file, text in (('metrics', 'train_loss,test_loss\n2,4\n'), ('timing', 'seconds\n3\n')):
        with open(os.path.join(run.folder, f'{file}.csv'), 'w', encoding='utf-8') as written:
          written.write(text)
      return run

    ways = {'': gpu.Way({}), ', slowly': gpu.Way({'SLOW': '1'}, ('--slowly',))}
    with mock.patch.object(gpu, '_train', train):
      rows = list(gpu._repeated_rows('cnn', gpu.SIZES['tiny'], ways, ''))
    self.assertEqual(rows, [
        ('cnn', '2.5e-01', '0.0e+00', '0.0e+00'), ('cnn, slowly', '2.5e-01', '0.0e+00', '0.0e+00'),
    ])
    self.assertLen({name for name, *_ in asked}, 4)  # No run is another's.
    self.assertEqual([(e, s) for _, e, s in asked], [({}, False)] * 2 + [({'SLOW': '1'}, True)] * 2)

  def test_a_run_that_fails_costs_the_others_nothing(self):
    def fails():
      yield ('first',)
      raise subprocess.CalledProcessError(1, ['train'], stderr='round 1\ntrain: no memory\n')

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
      whole = gpu._print_table(('name',), {'bad': fails(), 'good': iter([('2',)])})
    self.assertFalse(whole)
    self.assertEqual(
        said.getvalue().splitlines(),
        ['| name |', '| --- |', '| first |', '| bad | failed: train: no memory |', '| 2 |', ''],
    )


class InstallTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.wheels = self.create_tempdir().full_path

  def _wheel(self, name, version):
    """Makes a wheel of one module; returns its line in a lock."""
    about = f'{name}-{version}.dist-info'
    files = {
        f'{name}.py': f'VERSION = {version!r}\n',
        f'{about}/METADATA': f'Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n',
        f'{about}/WHEEL': 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n',
    }
    record = ''.join(f'{path},,\n' for path in (*files, f'{about}/RECORD'))
    path = os.path.join(self.wheels, f'{name}-{version}-py3-none-any.whl')
    with zipfile.ZipFile(path, 'w') as archive:
      for file, content in {**files, f'{about}/RECORD': record}.items():
        archive.writestr(file, content)
    # Of the wheel that the index has, which need not be this one.
    digest = base64.b16encode(hashlib.sha256(name.encode()).digest()).decode().lower()
    return f'{name}=={version} \\\n    --hash=sha256:{digest}\n'

  def _lock(self, *lines):
    return self.create_tempfile(content='# A lock.\n' + ''.join(lines)).full_path

  def test_installs_the_locked_versions_into_an_environment_of_its_own(self):
    locked = self._wheel('made_up_probe', '1.0')
    self._wheel('made_up_probe', '2.0')
    lock = self._lock(locked)
    python = gpu.install(self.wheels, lock)
    self.assertTrue(python.startswith(self.wheels))
    script = 'import made_up_probe, sys; print(made_up_probe.VERSION, sys.prefix)'
    said = subprocess.run(
        [python, '-c', script], check=True, capture_output=True, text=True, env={}
    ).stdout.split()
    self.assertEqual(said, ['1.0', os.path.join(self.wheels, 'env')])
    self.assertEqual(gpu.install(self.wheels, lock), python)  # It is there.

  def test_missing_wheel(self):
    lock = self._lock(self._wheel('made_up_probe', '1.0'), 'made_up_other==3.1 \\\n    --hash=x\n')
    with self.assertRaisesRegex(gpu.Mistake, 'cannot be installed: .*made_up_other==3.1'):
      gpu.install(self.wheels, lock)

  def test_python_that_lies_with_the_wheels_is_asked_and_a_mistake_is_a_line(self):
    _script(os.path.join(self.wheels, 'python', 'bin'), 'python3', 'echo 3.12')
    # By a Python that has no packages.
    ran = subprocess.run(
        [sys.executable, '-S', '-m', 'benchmarks.gpu', f'--wheels={self.wheels}'],
        env={'PYTHONPATH': os.path.dirname(os.path.dirname(gpu.__file__))}, check=False,
        capture_output=True, text=True,
    )
    self.assertEqual((ran.returncode, ran.stdout), (2, ''), ran.stderr)
    self.assertRegex(
        ran.stderr.splitlines()[-1],
        r'^gpu: error: .* has no wheels for Python 3.12 \(.*/python/bin/python3\)',
    )


if __name__ == '__main__':
  absltest.main()
