"""The cluster files of docs/scale.md start shards that are the whole grid together."""

import contextlib
import io
import os
import pathlib
import re
import subprocess

import yaml
from absl.testing import absltest

from bin import compare

_SLURM = pathlib.Path('docs/examples/slurm_array.sh').resolve()
_KUBERNETES = pathlib.Path('docs/examples/kubernetes_job.yaml')


def _slurm(folder):
  """The command line of each task of the array, as the script starts it."""
  python = pathlib.Path(folder, 'env/bin/python')
  python.parent.mkdir(parents=True)
  python.write_text('#!/bin/sh\nfor argument; do echo "$argument"; done\n')
  python.chmod(0o755)
  options = dict(re.findall(r'^#SBATCH --([a-z-]+)=(.*)$', _SLURM.read_text(), re.MULTILINE))
  first, last = map(int, options['array'].split('-'))
  for task in range(first, last + 1):
    environment = {
        'PATH': os.environ['PATH'],
        'SLURM_ARRAY_TASK_ID': str(task),
        'SLURM_CPUS_PER_TASK': options['cpus-per-task'],
    }
    said = subprocess.run(
        ['bash', '-eu', _SLURM], cwd=folder, env=environment, check=True, capture_output=True,
        text=True,
    )
    yield said.stdout.splitlines()


def _kubernetes():
  """The command line of each pod of the job, as Kubernetes expands it."""
  job = yaml.safe_load(_KUBERNETES.read_text())
  assert (job['kind'], job['spec']['completionMode']) == ('Job', 'Indexed')
  (container,) = job['spec']['template']['spec']['containers']
  for index in range(job['spec']['completions']):
    arguments = [a.replace('$(JOB_COMPLETION_INDEX)', str(index)) for a in container['args']]
    yield [*container['command'][1:], *arguments]


class ShardsTest(absltest.TestCase):

  def _left(self, arguments):
    """What the program says is left, where nothing was run."""
    root = self.create_tempdir().full_path
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
      status = compare.main(['compare', *arguments, '--norun', f'--root_dir={root}'])
    self.assertEqual(status, 1)
    return re.findall(r'^- (.*: not run)$', said.getvalue(), re.MULTILINE)

  def _assert_covers(self, commands):
    lines = []
    for command in commands:
      self.assertEqual(command[:2], ['-m', 'bin.compare'])
      lines += self._left(command[2:])
    whole = self._left([a for a in command[2:] if not a.startswith('--shard=')])
    self.assertNotEmpty(whole)
    self.assertCountEqual(lines, whole)

  def test_slurm(self):
    self._assert_covers(_slurm(self.create_tempdir().full_path))

  def test_kubernetes(self):
    self._assert_covers(_kubernetes())


if __name__ == '__main__':
  absltest.main()
