"""A longer run that takes over the rounds of a shorter one is the longer run."""

import contextlib
import io
import os
import shutil
import tempfile
from unittest import mock

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise import types
from tff_noise.audit import several
from tff_noise.data import sources
from tff_noise.privacy import ledger
from tff_noise.program import code_version
from tff_noise.program import extension
from tff_noise.program import flags
from tff_noise.program import inputs
from tff_noise.program import ledger_seal
from tff_noise.program import model_files
from tff_noise.program import run
from tff_noise.program import run_directory
from tff_noise.program import trained_models
from tff_noise.program import training_run

_SHORT, _LONG = 2, 4
_SAME = ('metrics.csv', 'clients.csv')


def _config(root, name, **changes):
  given = {
      'method': 'feddpcont', 'rounds': _LONG, 'clients': 4, 'clients_per_round': 2,
      'local_epochs': 1, 'batch_size': 512, 'checkpoint_every': 2, 'validation_fraction': 0.1,
      'log_level': 'quiet', 'root_dir': root, 'run_name': name, **changes,
  }
  words = [f'--{k}={v}' for k, v in given.items() if v is not None]
  return flags.config_from(flags.parse(['test', *words]))


class ExtensionTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.root = tempfile.mkdtemp(dir=absltest.get_default_test_tmpdir())
    run.run(_config(cls.root, 'short', rounds=_SHORT))
    cls.short = os.path.join(cls.root, 'short')

  def _content(self, name, file):
    with open(os.path.join(self.root, name, file), 'rb') as opened:
      return opened.read()

  def test_is_the_longer_run_and_leaves_the_shorter_as_it_was(self):
    before = {name: self._content('short', name) for name in os.listdir(self.short)
              if os.path.isfile(os.path.join(self.short, name))}
    run.run(_config(self.root, 'extended', extend=self.short))
    run.run(_config(self.root, 'whole'))
    for file in _SAME:
      self.assertEqual(self._content('extended', file), self._content('whole', file), file)
    for which in (model_files.FINAL, model_files.BEST):
      extended, whole = (
          trained_models.load(run_directory.locate(self.root, name), which)
          for name in ('extended', 'whole')
      )
      self.assertEqual(extended[:2], whole[:2], which)
      for one, other in zip(extended.models, whole.models, strict=True):
        for ours, theirs in zip(one.trainable, other.trainable, strict=True):
          np.testing.assert_array_equal(ours, theirs)
    for name, content in before.items():
      self.assertEqual(self._content('short', name), content, name)
    # The chain is that of the longer configuration, the exchanges are those of both.
    chains = {}
    for name in ('short', 'extended', 'whole'):
      directory = run_directory.locate(self.root, name)
      declared = run_directory.read_json(directory.file('uplink.json'))
      seal = ledger_seal.of_run(directory)
      chains[name] = ledger.read(directory.file('ledger.jsonl'), declared, seal)
    (short, short_head), (extended, head), (whole, _) = chains.values()
    self.assertEqual(extended[: len(short)], short)
    self.assertNotEqual(head, short_head)
    self.assertEqual(
        [e._replace(cohort='') for e in extended], [e._replace(cohort='') for e in whole]
    )
    with self.assertRaisesRegex(types.UsageError, 'are one run; give the one whose'):
      several.audit([several.read(self.short), several.read(self.root + '/extended')], 1e-5)

  def test_tells_of_all_codes_that_made_what_it_takes_over(self):
    source = os.path.join(self.root, 'two_codes')
    shutil.copytree(self.short, source)
    os.remove(os.path.join(source, 'summary.json'))
    shutil.rmtree(os.path.join(source, 'state'))
    with mock.patch.object(code_version, 'digest', lambda: 'other'):
      run.run(_config(self.root, 'two_codes', rounds=_SHORT, resume_other_code=True))
      with mock.patch.object(training_run, '_versions', lambda: {'numpy': 'of later rounds'}):
        run.run(_config(self.root, 'of_two_codes', extend=source))
    versions = [
        run_directory.read_json(os.path.join(self.root, name, 'config.json'))['versions']
        for name in ('two_codes', 'of_two_codes')
    ]
    self.assertEqual(*versions)
    for name in ('two_codes', 'of_two_codes'):
      directory = run_directory.locate(self.root, name)
      seal = ledger_seal.of_run(directory)
      declared = run_directory.read_json(directory.file('uplink.json'))
      lines = ledger.read_lines(directory.file('ledger.jsonl'), declared, seal)
      self.assertEqual(ledger.codes(lines, seal), {code_version.digest(), 'other'}, name)
      # Labels were flipped by both, and nobody knows whether with the same coins.
      privacy = run_directory.read_json(directory.file('privacy.json'))
      labels = [r['epsilon'] for r in privacy['releases'] if r['name'] == 'label histogram']
      self.assertEqual(labels, ['inf'], name)

  def _named_by_flags(self):
    """A copy of the short run under the name that its flags give it, alone in a folder."""
    root = self.create_tempdir().full_path
    source = os.path.join(root, _config(root, None, rounds=_SHORT).name())
    shutil.copytree(self.short, source)
    return root, source

  def test_more_rounds_go_on_from_a_run_that_is_named_by_its_flags(self):
    root, source = self._named_by_flags()
    with contextlib.redirect_stderr(io.StringIO()) as said:
      run.run(_config(root, None))
    self.assertIn(f'extend: the rounds of {source} are taken over', said.getvalue())
    with open(os.path.join(source, 'metrics.csv'), 'rb') as short:
      with open(_config(root, None).path() + '/metrics.csv', 'rb') as long:
        self.assertStartsWith(long.read(), short.read())

  def test_nothing_else_is_gone_on_from(self):
    root, source = self._named_by_flags()

    def found(**changes):
      config = _config(root, changes.pop('name', None), **changes)
      dataset = sources.load(sources.DataSpec('digits'))
      run_ = extension.find(config, inputs.recorded(config, dataset))
      return run_ and run_.path

    self.assertEqual(found(), source)
    for changes in (
        {'learning_rate': 0.5}, {'rounds': _SHORT}, {'seed': 1}, {'name': 'x'}, {'overwrite': True},
        {'resume': False},
    ):
      self.assertIsNone(found(**changes), changes)
    # What is another run by its flags alone is nobody's surprise; the rest is told.
    with contextlib.redirect_stderr(io.StringIO()) as said:
      self.assertIsNone(found(learning_rate=0.5))
    self.assertEqual(said.getvalue(), '')
    with contextlib.redirect_stderr(io.StringIO()) as said:
      with mock.patch.object(code_version, 'digest', lambda: 'other'):
        self.assertIsNone(found())
    self.assertRegex(
        said.getvalue(),
        r'^extend: this run begins anew: run \w+ was made by code \w+, this is other\n$',
    )
    with contextlib.redirect_stderr(io.StringIO()) as said:
      with mock.patch.object(inputs, 'recorded', lambda *_: {'training images': 'other'}):
        self.assertIsNone(found())
    self.assertRegex(
        said.getvalue(),
        r'^extend: this run begins anew: run feddpcont\w+ was made from other training images\b.*$',
    )
    self.assertNotIn('bring back', said.getvalue())
    # The longest of several; one that ended early, or has not ended, is none.
    longer = os.path.join(root, _config(root, None, rounds=_SHORT + 1).name())
    shutil.copytree(source, longer)
    content = run_directory.read_json(os.path.join(longer, 'config.json'))
    content['flags']['rounds'] = _SHORT + 1
    run_directory.write_json(os.path.join(longer, 'config.json'), content)
    run_directory.write_json(os.path.join(longer, 'summary.json'), {'rounds': _SHORT + 1})
    state = os.path.join(longer, 'state')
    shutil.copyfile(
        os.path.join(state, f'round_{_SHORT}.npz'),
        os.path.join(state, f'round_{_SHORT + 1}.npz'),
    )
    # Its ledger is sealed under other flags.
    with mock.patch.object(ledger_seal, 'other_code_of', lambda run: ''):
      self.assertEqual(found(), longer)
      run_directory.write_json(os.path.join(longer, 'summary.json'), {'rounds': _SHORT})
      self.assertEqual(found(), source)
    shutil.rmtree(longer)
    with open(os.path.join(source, 'summary.json'), 'r+b') as file:
      content = file.read()
      file.truncate(0)
      with contextlib.redirect_stderr(io.StringIO()) as said:
        self.assertIsNone(found())
      self.assertRegex(said.getvalue(), r'^extend: this run begins anew: .*summary.json .*\n$')
      file.seek(0)
      file.write(content)
    shutil.rmtree(os.path.join(source, 'state'))
    with contextlib.redirect_stderr(io.StringIO()) as said:
      self.assertIsNone(found())
    self.assertRegex(said.getvalue(), r'this run begins anew: run \w+ has lost its last state')
    os.remove(os.path.join(source, 'summary.json'))
    self.assertIsNone(found())

  def test_a_run_that_is_there_says_that_it_looks_at_no_other(self):
    path = os.path.join(self.root, 'nowhere')
    with contextlib.redirect_stderr(io.StringIO()) as said:
      run.run(_config(self.root, 'short', rounds=_SHORT, extend=path))
    self.assertIn(f'goes on by itself; --extend={path} is not looked at', said.getvalue())

  @parameterized.parameters(
      ({'learning_rate': 0.5}, 'other flags: --learning_rate was .*, now 0.5. Give the same'),
      ({'rounds': _SHORT}, 'has 2 rounds: give more --rounds'),
      ({'eval_every': 3}, 'other flags: --eval_every'),
      ({'extend': None, 'name': 'short'}, 'was 2, now 4.*; --extend=.*/short and another --run'),
  )
  def test_what_is_no_longer_run_of_the_same(self, changes, why):
    with self.assertRaisesRegex(types.UsageError, why):
      run.run(_config(self.root, **{'name': 'never', 'extend': self.short, **changes}))
    self._assert_nothing_written('never')

  def _assert_nothing_written(self, name):
    self.assertFalse(os.path.exists(os.path.join(self.root, name)))

  @parameterized.parameters(
      ({'method': 'rofl'}, '--method=rofl plans its rounds by how many there are'),
      ({'method': 'jointopt'}, '--method=jointopt plans its rounds'),
      ({'client_dp_noise': 1.0}, 'noise on updates is keyed by all flags'),
      ({'eval_every': 4}, 'its last round was evaluated, which --eval_every=4 would not do'),
  )
  def test_what_cannot_be_extended(self, changes, why):
    # Of a run whose files say that it had these flags.
    other = os.path.join(self.create_tempdir().full_path, 'other')
    shutil.copytree(self.short, other)
    config = _config(self.root, 'never', extend=other, **changes)
    content = run_directory.read_json(os.path.join(other, 'config.json'))
    content['flags'] = {**config.identity(), 'rounds': _SHORT}
    run_directory.write_json(os.path.join(other, 'config.json'), content)
    with self.assertRaisesRegex(types.UsageError, why):
      extension.check(config, run_directory.RunDirectory(other))

  def test_no_run_an_unfinished_one_and_one_that_ended_early(self):
    for path, message in (
        (os.path.join(self.root, 'nowhere'), 'nowhere: no such run; name the folder of a finished'),
        (self.create_tempdir().full_path, 'is no finished run: continue it first'),
    ):
      with self.assertRaisesRegex(types.UsageError, message):
        run.run(_config(self.root, 'never', extend=path))
    ended = os.path.join(self.create_tempdir().full_path, 'ended')
    shutil.copytree(self.short, ended)
    state = os.path.join(ended, 'state')
    os.rename(os.path.join(state, f'round_{_SHORT}.npz'), os.path.join(state, 'round_1.npz'))
    with self.assertRaisesRegex(types.UsageError, 'ended after round 1 of 2'):
      run.run(_config(self.root, 'never', extend=ended))
    self._assert_nothing_written('never')

  def test_damaged_files_are_told_and_leave_nothing(self):
    damaged = os.path.join(self.create_tempdir().full_path, 'damaged')
    shutil.copytree(self.short, damaged)
    with open(os.path.join(damaged, 'ledger.jsonl'), encoding='utf-8') as file:
      text = file.read()
    with open(os.path.join(damaged, 'ledger.jsonl'), 'w', encoding='utf-8') as file:
      file.write(text.replace('"clients": 2', '"clients": 3', 1))
    with self.assertRaisesRegex(types.UsageError, 'does not follow from what is before it'):
      run.run(_config(self.root, 'never', extend=damaged))
    self._assert_nothing_written('never')


if __name__ == '__main__':
  absltest.main()
