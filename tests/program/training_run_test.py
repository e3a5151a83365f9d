"""Tests of what a run says before it begins."""

import contextlib
import io
import os
import types as python_types
from unittest import mock

import numpy as np
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tff_noise import types
from tff_noise.algorithms import algorithm as algorithm_lib
from tff_noise.privacy import protection
from tff_noise.program import run_directory
from tff_noise.program import summary
from tff_noise.program import training_run

_NOISE = protection.NoisySum(1.0, 1.0, 2, 20)


class SayBudgetTest(parameterized.TestCase):

  def _said(self, shield=_NOISE, target=None, clients=20):
    """Of 12 of 30 rounds."""
    config = python_types.SimpleNamespace(client_dp_noise=0.5, target_client_epsilon=target)
    field = python_types.SimpleNamespace(protection=shield)
    algorithm = python_types.SimpleNamespace(fields=(field,), rounds=12, planned_rounds=30)
    units = {protection.Unit.CLIENT: clients, protection.Unit.LABEL: 50}
    said = io.StringIO()
    with mock.patch.object(summary, 'units', lambda scene: units), contextlib.redirect_stderr(said):
      training_run._say_budget(
          config, python_types.SimpleNamespace(algorithm=algorithm), scene=None
      )
    return said.getvalue()

  def test_how_far_a_target_goes(self):
    self.assertEqual(self._said(), '')
    self.assertEqual(
        self._said(target=2.5),
        'budget: --client_dp_noise=0.5 allows 12 of 30 rounds within --target_client_epsilon=2.5\n',
    )

  @parameterized.parameters((99_999, False), (100_000, True))
  def test_delta_of_one_over_the_clients(self, clients, warned):
    expected = f'WARNING: delta 1e-05 is not below one over the number of clients, {clients}:'
    self.assertEqual(self._said(clients=clients).startswith(f'privacy: {expected}'), warned)
    # Without a claim there is no delta.
    self.assertEqual(self._said(None, clients=clients), '')


class _Stop(Exception):
  pass


class RoundingTest(absltest.TestCase):

  def test_noise_is_not_drawn_again_where_sums_are_rounded_otherwise(self):
    run = run_directory.locate(self.create_tempdir().full_path, 'run')
    os.mkdir(run.path)
    content = {'execution': {'runtime': 'local'}, 'versions': training_run._versions()}
    run_directory.write_json(run.file('config.json'), content)

    def check(noise, runtime):
      training_run._check_rounding(
          python_types.SimpleNamespace(client_dp_noise=noise, runtime=runtime), run
      )

    check(1.0, 'local')
    check(0.0, 'accelerator')
    with self.assertRaisesRegex(types.UsageError, 'was begun with --runtime local: others round'):
      check(1.0, 'accelerator')
    content['versions']['numpy'] = '0.1'
    run_directory.write_json(run.file('config.json'), content)
    with self.assertRaisesRegex(types.UsageError, 'was begun with numpy 0.1: others round'):
      check(1.0, 'local')
    content['versions'] = training_run._versions()
    content['execution']['TF_NUM_INTRAOP_THREADS'] = '1'
    run_directory.write_json(run.file('config.json'), content)
    with mock.patch.dict(os.environ, TF_NUM_INTRAOP_THREADS='4'):
      check(0.0, 'local')
      with self.assertRaisesRegex(types.UsageError, 'begun with TF_NUM_INTRAOP_THREADS 1: others'):
        check(1.0, 'local')
    check(1.0, 'local')

  def test_the_ledger_knows_whether_rounds_repeat(self):
    run = run_directory.locate(self.create_tempdir().full_path, 'run')
    os.mkdir(run.path)
    prepared = python_types.SimpleNamespace(
        algorithm=python_types.SimpleNamespace(fields=()), federation=None
    )
    config = python_types.SimpleNamespace(runtime='accelerator')
    for begun, now, expected in (
        ({}, True, True), ({'repeats': True}, False, False), ({'repeats': False}, True, False),
        ({'runtime': 'accelerator'}, True, True), ({'runtime': 'local'}, True, False),
    ):
      run_directory.write_json(run.file('config.json'), {'execution': begun})
      with (
          mock.patch.object(training_run.opening, 'repeats', lambda _, now=now: now),
          mock.patch.object(training_run.ledger_seal, 'of_run'),
          mock.patch.object(training_run.ledger_lib, 'Ledger', side_effect=_Stop) as opened,
          self.assertRaises(_Stop),
      ):
        training_run._train(config, prepared, None, {}, None, run, None)
      self.assertEqual(opened.call_args.kwargs['repeats'], expected)


class EvaluationsTest(federated_test_case.FederatedTestCase):

  def test_one_that_fails_is_told_as_one(self):
    no_class = types.Examples(np.ones((3, 2), np.float32), np.full(3, 7, np.int32))
    dataset = python_types.SimpleNamespace(
        test_x=no_class.x, test_y=no_class.y, validation=no_class
    )
    evaluations = training_run.evaluations_of(toy.linear_model(), dataset, scene=None)
    weights = tff.learning.models.ModelWeights([np.ones((2, 2), np.float32)], [])
    for name in ('test', 'validation'):
      with self.assertRaisesRegex(
          types.RunError, f'^the evaluation on the {name} set failed: [A-Z_]+'
      ) as caught:
        evaluations[name]([algorithm_lib.Evaluated(None, weights)])
      self.assertNotIn('client 0', str(caught.exception))


if __name__ == '__main__':
  absltest.main()
