"""Tests of runs from Python, of methods and models of one's own among them."""

import asyncio
import contextlib
import io
import json
import os
import sys
from unittest import mock

import numpy as np
import tensorflow as tf  # Keras that a test imports first loads no models.
from absl.testing import absltest

import tff_noise
from docs.examples import own_method
from tff_noise import api
from tff_noise import types

_OWN = 'docs.examples.own_method'


class ApiTest(absltest.TestCase):

  def _train(self, **flags):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
      run = tff_noise.train(root_dir=self.root, clients=4, clients_per_round=2, **flags)
    return run, said.getvalue()

  def setUp(self):
    super().setUp()
    self.root = self.create_tempdir().full_path

  def test_own_method_and_model_run_within_an_event_loop_and_are_continued(self):
    async def notebook():
      return self._train(
          rounds=2, method=f'{_OWN}:METHOD', model=f'{_OWN}:network', param=['weight=0.25'],
          metrics_hook='docs.examples.metrics_hook:json_lines',
      )

    # As in a program that `bazel run` has started.
    here = os.getcwd()
    # Nor is a program of the same name where the user stands the one.
    project = self.create_tempdir()
    project.create_file('bin/train.py', content='raise SystemExit(7)\n')
    with mock.patch.dict(os.environ, BUILD_WORKING_DIRECTORY=self.create_tempdir().full_path):
      os.chdir(project.full_path)
      self.addCleanup(os.chdir, here)
      self.root, root = os.path.relpath(self.root), self.root
      run, said = asyncio.run(notebook())
      self.root = root
    self.assertIn('round 2/2', said)
    self.assertEqual(run.summary['rounds'], 2)
    self.assertLen(run.metrics['test_accuracy'], 2)
    with open(run.file('metrics.jsonl'), encoding='utf-8') as file:
      lines = [json.loads(line) for line in file]
    self.assertEqual([line['test_accuracy'] for line in lines], list(run.metrics['test_accuracy']))
    self.assertIn('docs-examples-own-method-METHOD_digits_seed0', run.path)
    self.assertTrue(os.path.exists(run.file('report.html')))
    self.assertTrue(tf.executing_eagerly())
    probabilities = run.model(np.zeros((3, 8, 8, 1), np.uint8))
    np.testing.assert_allclose(np.sum(probabilities, 1), np.ones(3), rtol=1e-5)
    again, said = self._train(
        rounds=2, method=f'{_OWN}:METHOD', model=f'{_OWN}:network', param=['weight=0.25'],
    )
    self.assertEqual(again.path, run.path)
    self.assertIn('is complete', said)
    # The digest of the code covers this package alone.
    with open(run.file('config.json'), encoding='utf-8') as file:
      inputs = json.load(file)['inputs']
    self.assertContainsSubset(['--method (own_method.py)', '--model (own_method.py)'], inputs)

  def test_code_of_a_method_stays_out_of_this_process_and_may_be_edited(self):
    folder = self.create_tempdir()
    with open(own_method.__file__, encoding='utf-8') as file:
      code = file.read()
    self.addCleanup(sys.path.remove, folder.full_path)
    sys.path.insert(0, folder.full_path)
    folder.create_file('edited_method.py', content=code)
    with self.assertRaisesRegex(types.UsageError, "has no 'mass'"):
      self._train(method='edited_method:METHOD', param=['mass=0.25'], rounds=1)
    folder.create_file('edited_method.py', content=code.replace('weight', 'mass'))
    with self.assertRaisesRegex(types.UsageError, r'mass must be in \[0, 1\], got 2'):
      self._train(method='edited_method:METHOD', param=['mass=2'], rounds=1)
    self.assertNotIn('edited_method', sys.modules)

  def test_a_run_that_is_killed_is_told_by_its_signal(self):
    with self.assertRaisesRegex(types.RunError, '^the run was ended by SIGKILL; last it said: so'):
      api._say('import os; print("so far", flush=True); os.kill(os.getpid(), 9)', [], lambda _: 0)

  def test_a_mistake_is_told_though_more_was_printed_before(self):
    code = (
        'import sys\nfrom tff_noise import types\nfrom tff_noise.program import command_line\n'
        'def body():\n  print("a summary")\n  raise types.UsageError("what is wrong")\n'
        'sys.exit(command_line.run("train", body))'
    )
    # Python would write what is printed to a pipe at the end.
    with mock.patch.dict(os.environ):
      os.environ.pop('PYTHONUNBUFFERED', None)
      with self.assertRaisesRegex(types.UsageError, '^what is wrong$'):
        api._say(code, [], lambda _: None)

  def test_mistakes_are_exceptions_with_the_line_of_the_program(self):
    for flags, message in (
        ({'method': 'nope'}, '^--method must be one of'),
        ({'method': f'{_OWN}:METHOD', 'param': 'weight=2'}, r'weight must be in \[0, 1\], got 2'),
        ({'method': f'{_OWN}:Params'}, 'must be a tff_noise.algorithms.catalog.Entry'),
        ({'method': 'no.such:METHOD'}, 'there is no module no.such; it has to be package.module'),
        # Found by the process of the run alone.
        ({'dataset': 'npz', 'data_dir': '/nowhere'}, '^--data_dir=/nowhere is neither a file'),
        ({'model': f'{_OWN}:nope'}, 'has no attribute'),
        ({'method': 'gce', 'param': {'q': 'much'}}, '^--param: q must be a number'),
        # A list of what has commas between on the command line.
        ({'workers': ['a:1', 'b:2']}, "empty with --runtime=local, got .*'a:1', 'b:2'"),
        ({'method': own_method.METHOD}, '^method has to be a text or a number, got a Entry: what'),
        ({'model': '__main__:network'}, '^--model=__main__:network is in the program that is runn'),
        ({'list_methods': True}, '^list_methods is for the command line'),
    ):
      with self.assertRaisesRegex(types.UsageError, message):
        self._train(**flags)

  def test_an_example_of_parameters_checks_them(self):
    with self.assertRaisesRegex(ValueError, 'weight must be in'):
      own_method.Params(weight=-1)


if __name__ == '__main__':
  absltest.main()
