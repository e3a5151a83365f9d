"""Tests of what ties a ledger to its run, and of going on with other code."""

import json
import os
import stat
from unittest import mock

import numpy as np
from absl.testing import absltest

from tests.report import run_files
from tff_noise import types
from tff_noise.privacy import ledger
from tff_noise.program import code_version
from tff_noise.program import ledger_seal
from tff_noise.program import run_directory


class SealTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    path = os.path.join(self.create_tempdir().full_path, 'run')
    self.run_ = run_directory.RunDirectory(run_files.write(path))

  def test_the_key_is_its_owners_and_of_no_other_run(self):
    mode = os.stat(self.run_.file('ledger.key')).st_mode
    self.assertEqual(stat.S_IMODE(mode), 0o600)
    other = run_directory.RunDirectory(
        run_files.write(os.path.join(self.create_tempdir().full_path, 'run'))
    )
    seals = [ledger_seal.of_run(run) for run in (self.run_, other)]
    self.assertLen({seal.key for seal in seals}, 2)
    # Equal files under two keys: nobody can try configurations, such as seeds.
    self.assertLen({seal.run for seal in seals}, 2)

  def test_is_of_configuration_scene_and_code(self):
    before = ledger_seal.of_run(self.run_)
    self.assertEqual(before, ledger_seal.of_run(self.run_))
    self.assertEqual(before.code, 'abc123')
    run_directory.write_json(self.run_.file('config.json'), run_files.config(seed=4))
    changed = ledger_seal.of_run(self.run_)
    self.assertNotEqual(before.run, changed.run)
    with open(self.run_.file('scene.npz'), 'ab') as file:
      file.write(b'x')
    self.assertNotEqual(changed.run, ledger_seal.of_run(self.run_).run)

  def test_files_that_are_missing_or_damaged_are_named(self):
    with open(self.run_.file('ledger.key'), 'wb') as file:
      file.write(b'short')
    with self.assertRaisesRegex(types.UsageError, 'ledger.key (is no key|cannot be read)'):
      ledger_seal.of_run(self.run_)
    os.remove(self.run_.file('ledger.key'))
    with self.assertRaisesRegex(types.UsageError, 'ledger.key cannot be read'):
      ledger_seal.of_run(self.run_)

  def test_other_code_is_refused_unless_it_is_allowed(self):
    with mock.patch.object(code_version, 'digest', lambda: 'abc123'):
      ledger_seal.check_code(self.run_, False)
    with mock.patch.object(code_version, 'digest', lambda: 'def456'):
      with self.assertRaisesRegex(types.UsageError, 'made by code abc123, this is def456.*--resum'):
        ledger_seal.check_code(self.run_, False)
      ledger_seal.check_code(self.run_, True)
      # From then on that is the code that made it.
      with open(self.run_.file('uplink.json'), encoding='utf-8') as file:
        declared = json.load(file)
      book = ledger.Ledger(
          range(len(declared)), declared, self.run_.file('ledger.jsonl'),
          ledger_seal.of_run(self.run_), code_version.digest(),
      )
      book.record(1, 'train', [0], np.arange(3))
      ledger_seal.check_code(self.run_, False)
    with mock.patch.object(code_version, 'digest', lambda: 'abc123'):
      with self.assertRaisesRegex(types.UsageError, 'made by code def456, this is abc123'):
        ledger_seal.check_code(self.run_, False)

  def test_who_is_refused_is_told_which_files_are_other(self):
    with mock.patch.object(code_version, 'digest', lambda: 'abc123'):
      code_version.write(self.run_.path, None)
    path = self.run_.file('code.json')
    kept = run_directory.read_json(path)
    names = ('clients/loops.py', 'data/scene.py', 'heaps.py', 'rng.py')
    kept['files'] |= {f'tff_noise/{name}': 'other' for name in names}
    kept['files']['tff_noise/gone.py'] = 'other'
    self.assertNotIn('tff_noise/report/runs.py', kept['files'])
    run_directory.write_json(path, kept)
    with self.assertRaisesRegex(
        types.UsageError,
        r'\(other: tff_noise/clients/loops.py, tff_noise/data/scene.py, tff_noise/gone.py and 2 mo',
    ):
      ledger_seal.check_code(self.run_, False)
    # What is kept is of the code that made it last, or says nothing.
    run_directory.write_json(path, {**kept, 'code': 'def456'})
    with self.assertRaisesRegex(types.UsageError, r'this is [0-9a-f]{12}: use'):
      ledger_seal.check_code(self.run_, False)


if __name__ == '__main__':
  absltest.main()
