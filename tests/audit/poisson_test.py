"""A run of Poisson samples that a budget of epsilon ends, from its flags to its audit."""

import contextlib
import io
import json
import os
import shutil
import tempfile

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise import types
from tff_noise.audit import finding
from tff_noise.audit import rebuilt
from tff_noise.audit import runs
from tff_noise.privacy import accountant
from tff_noise.privacy import costs as costs_lib
from tff_noise.privacy import ledger
from tff_noise.privacy import rounding
from tff_noise.program import data
from tff_noise.program import flags
from tff_noise.program import ledger_seal
from tff_noise.program import run_directory
from tff_noise.program import summary
from tff_noise.program import training_run
from tff_noise.report import runs as report_runs
from tff_noise.selection import policies

_CLIENTS, _EXPECTED, _SEED = 6, 1, 1
# What four rounds cost, and five do not.
_ROUNDS, _PLANNED, _TARGET = 4, 9, 3.3


def _config(root):
  return flags.config_from(flags.parse([
      'test', '--method=fedavg', f'--clients={_CLIENTS}', f'--clients_per_round={_EXPECTED}',
      f'--rounds={_PLANNED}', f'--seed={_SEED}', '--client_sampling=poisson',
      '--client_dp_noise=1', f'--target_client_epsilon={_TARGET}', '--local_epochs=1',
      '--noise_rate=0.1', '--batch_size=256', '--checkpoint_every=3', '--eval_every=3',
      f'--root_dir={root}', '--run_name=run',
  ]))


def _sizes(rounds=_ROUNDS):
  return [len(policies.poisson(_SEED, r, _CLIENTS, _EXPECTED)) for r in range(1, rounds + 1)]


def _cost(rounds):
  return accountant.poisson_gaussian_epsilon(1.0, _EXPECTED / _CLIENTS, rounds, costs_lib.DELTA)


class PoissonRunTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.config = _config(tempfile.mkdtemp(dir=absltest.get_default_test_tmpdir()))
    cls.dataset = data.load_dataset(cls.config)
    cls.scene = data.load_scene(cls.config, cls.dataset, None)
    cls.whole = run_directory.locate(cls.config.root_dir, 'run')
    cls.said = cls._train(cls.whole)

  @classmethod
  def _train(cls, directory):
    """Returns what it says."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
      training_run.run(cls.config, cls.dataset, cls.scene, directory)
    return said.getvalue()

  def setUp(self):
    super().setUp()
    path = os.path.join(self.create_tempdir().full_path, 'run')
    shutil.copytree(self.whole.path, path)
    self.run_ = run_directory.RunDirectory(path)

  def _read(self, name):
    with open(self.run_.file(name), encoding='utf-8') as file:
      return file.read()

  def _write(self, name, text):
    with open(self.run_.file(name), 'w', encoding='utf-8') as file:
      file.write(text)

  def _lines(self):
    """Those of releases."""
    lines = [json.loads(line) for line in self._read('ledger.jsonl').splitlines()]
    return [line for line in lines if 'fields' in line]

  def _audit(self):
    run = report_runs.read_run(self.run_.path)
    seal = ledger_seal.of_run(self.run_)
    code = rebuilt.audit(run, seal, self.config, self.dataset, self.scene, costs_lib.DELTA)
    return runs.audit(run, seal, costs_lib.DELTA, code, '')

  def test_cohorts_here_are_empty_single_and_larger(self):
    self.assertEqual({min(n, 2) for n in _sizes()}, {0, 1, 2})

  def test_is_not_continued_with_other_noise(self):
    os.remove(self.run_.file('summary.json'))
    config = json.loads(self._read('config.json'))
    self._write('config.json', json.dumps({**config, 'noise': '00'}))
    with self.assertRaisesRegex(types.UsageError, 'was begun with other noise'):
      training_run.run(self.config, self.dataset, self.scene, self.run_)

  def test_ends_before_the_round_that_would_pass_the_target(self):
    self.assertLessEqual(_cost(_ROUNDS), _TARGET)
    self.assertGreater(_cost(_ROUNDS + 1), _TARGET)
    run = report_runs.read_run(self.run_.path)
    self.assertLen(run.rounds, _ROUNDS)
    self.assertEqual(
        (run.summary['status'], run.summary['rounds'], run.summary['planned_rounds']),
        ('ended by budget', _ROUNDS, _PLANNED),
    )
    # How many updates were rejected leaves no client, as that depends on its data.
    self.assertTrue(np.isnan(run.metrics['rejected'][1:]).all(), run.metrics['rejected'])
    self.assertIsNone(run.summary['rejected_updates'])
    *_, client = run.privacy['totals']
    self.assertEqual(client['epsilon'], _cost(_ROUNDS))
    self.assertIn('costs one client, added or removed, epsilon', run.privacy['statement'])
    # The last model is evaluated and saved, as every third is.
    evaluated = np.isfinite(run.metrics['test_accuracy'])
    self.assertEqual(evaluated.tolist(), [False, False, True, True])
    saved = os.listdir(self.run_.file('state'))
    self.assertIn(f'round_{_ROUNDS}.npz', saved)
    self.assertIn(
        f'--client_dp_noise=1 allows {_ROUNDS} of {_PLANNED} rounds within '
        '--target_client_epsilon=3.3', self.said,
    )
    self.assertRegex(summary.text(self.run_), f'ended by budget: round 5 of {_PLANNED} would pass')

  def test_every_round_is_there_and_its_clients(self):
    run = report_runs.read_run(self.run_.path)
    self.assertEqual(run.metrics['clients'].tolist(), _sizes())
    self.assertTrue(np.isnan(run.metrics['train_loss']).all())
    self.assertEqual((run.metrics['bytes_up'] > 0).tolist(), [n > 0 for n in _sizes()])
    self.assertEqual([line['clients'] for line in self._lines()], _sizes())
    self.assertEqual(report_runs.read_clients(run)['participations'].sum(), sum(_sizes()))

  def test_stays_ended(self):
    before = {name: self._read(name) for name in ('metrics.csv', 'ledger.jsonl', 'privacy.json')}
    for name in ('summary.json', 'privacy.json'):
      os.remove(self.run_.file(name))
    self._train(self.run_)
    for name, text in before.items():
      self.assertEqual(self._read(name), text)
    self.assertEqual(json.loads(self._read('summary.json'))['status'], 'ended by budget')

  def test_passes_its_audit(self):
    audit = self._audit()
    not_passed = [f for f in audit.findings if f.verdict is not finding.Verdict.PASSED]
    self.assertEqual(not_passed, [])
    [budget] = [f for f in audit.findings if '--target_client_epsilon' in f.name]
    self.assertEqual(
        budget.detail, f'epsilon {rounding.up(_cost(_ROUNDS))} of 3.3 at delta 1e-05'
    )
    [release] = audit.content['privacy']['releases']
    self.assertIn('adding or removing one client', release['accounting'])

  def test_a_cohort_that_grew_is_found(self):
    # Of nobody one was made, with a chain that fits.
    self._forge(lambda line: {**line, 'clients': max(line['clients'], 1)})
    failed = [f.name for f in self._audit().findings if f.verdict is finding.Verdict.FAILED]
    self.assertTrue(any(name.startswith('ledger: its entries') for name in failed), failed)

  def test_a_target_that_was_passed_is_found(self):
    flags_ = json.loads(self._read('config.json'))
    flags_['flags']['target_client_epsilon'] = _cost(2)
    run = report_runs.read_run(self.run_.path)._replace(flags=flags_['flags'])
    audit = runs.audit(run, ledger_seal.of_run(self.run_), costs_lib.DELTA, None, 'no data')
    [budget] = [f for f in audit.findings if '--target_client_epsilon' in f.name]
    self.assertIs(budget.verdict, finding.Verdict.FAILED)

  def _forge(self, change):
    seal = ledger_seal.of_run(self.run_)
    declared = json.loads(self._read('uplink.json'))
    head, texts = ledger.genesis(declared, seal), []
    for line in self._lines():
      content = {k: v for k, v in change(line).items() if k not in ('previous', 'hash')}
      content['previous'] = head
      head = ledger._hash(json.dumps(content, sort_keys=True))
      texts.append(json.dumps({**content, 'hash': head}) + '\n')
    self._write('ledger.jsonl', ''.join(texts))


if __name__ == '__main__':
  absltest.main()
