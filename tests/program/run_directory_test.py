"""Tests of the run directory."""

import json
import os
import shutil
import subprocess
import sys
import threading
from unittest import mock

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise import types
from tff_noise.program import run_directory

# Holds the lock of the run argv[1] until its input ends.
_CREATOR = """
import os, sys
from tff_noise.program import run_directory

def write(folder):
  print('writing', flush=True)
  sys.stdin.readline()
  open(os.path.join(folder, 'theirs'), 'w').close()

run_directory.create(run_directory.locate(sys.argv[1], 'run'), write)
"""
_HOLDER = """
import sys
from tff_noise.program import run_directory
with run_directory.locked(run_directory.RunDirectory(sys.argv[1])):
  print('locked', flush=True)
  sys.stdin.read()
"""


class RunDirectoryTestCase(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.root = self.create_tempdir().full_path
    self.run_ = run_directory.locate(self.root, 'run')

  def make(self, **files):
    """Creates the run with the given JSON files in it."""

    def write(folder):
      for name, content in files.items():
        run_directory.write_json(os.path.join(folder, name + '.json'), content)

    run_directory.create(self.run_, write)

  def assert_one_line(self, error, pattern):
    self.assertRegex(str(error), pattern)
    self.assertNotIn('\n', str(error))


class PathsTest(RunDirectoryTestCase):

  def test_paths(self):
    self.assertEqual(self.run_.path, os.path.join(self.root, 'run'))
    self.assertEqual(self.run_.name, 'run')
    self.assertEqual(self.run_.file('a.json'), os.path.join(self.root, 'run', 'a.json'))

  def test_exists_once_it_was_created(self):
    self.assertFalse(self.run_.exists)
    self.make()
    self.assertTrue(self.run_.exists)

  def test_a_file_is_not_a_run(self):
    with open(self.run_.path, 'w', encoding='utf-8'):
      pass
    self.assertFalse(self.run_.exists)


class BytesTest(RunDirectoryTestCase):

  def test_are_on_the_disk_before_they_have_their_name(self):
    path, order = os.path.join(self.root, 'file'), []
    with mock.patch.object(os, 'fsync', side_effect=lambda fd: order.append(os.fstat(fd).st_size)):
      with mock.patch.object(os, 'replace', side_effect=lambda *names: order.append('named')):
        run_directory.write_bytes(path, b'content')
    self.assertEqual(order, [len(b'content'), 'named'])


class ArraysTest(RunDirectoryTestCase):

  def test_are_there_whole_or_not_at_all(self):
    path = os.path.join(self.root, 'a.npz')
    run_directory.write_arrays(path, x=np.arange(3))
    with self.assertRaises(OSError):
      with mock.patch.object(os, 'replace', side_effect=OSError(28, 'No space')):
        run_directory.write_arrays(path, x=np.arange(4))
    self.assertEqual(os.listdir(self.root), ['a.npz'])
    with np.load(path) as found:
      np.testing.assert_array_equal(found['x'], [0, 1, 2])


class LocateTest(RunDirectoryTestCase):

  def test_makes_the_root_and_its_parents_but_not_the_run(self):
    root = os.path.join(self.root, 'a', 'b')
    run = run_directory.locate(root, 'r')
    self.assertEqual(os.listdir(root), [])
    self.assertEqual(run.path, os.path.join(root, 'r'))

  def test_path_stays_where_it_was_when_the_working_directory_changes(self):
    self.addCleanup(os.chdir, os.getcwd())
    os.chdir(self.root)
    self.assertEqual(run_directory.locate('x', 'r').path, os.path.join(self.root, 'x', 'r'))

  @parameterized.parameters('file', 'file/below')
  def test_file_in_the_way(self, name):
    with open(os.path.join(self.root, 'file'), 'w', encoding='utf-8'):
      pass
    root = os.path.join(self.root, name)
    with self.assertRaises(types.UsageError) as caught:
      run_directory.locate(root, 'r')
    self.assert_one_line(caught.exception, rf'^--root_dir {root} cannot be written to \(\w.*\)$')
    with self.assertRaisesRegex(types.UsageError, f'^--out_dir {root} cannot'):
      run_directory.locate(root, '', flag='out_dir')

  def test_root_that_takes_no_files(self):
    # /proc refuses new files even to root, who ignores permissions.
    if not os.path.isdir('/proc/self'):
      self.skipTest('no /proc')
    with self.assertRaisesRegex(types.UsageError, '^--root_dir /proc/self cannot be written to'):
      run_directory.locate('/proc/self', 'r')


class CreateTest(RunDirectoryTestCase):

  def test_appears_complete_under_its_name(self):
    seen = []

    def write(folder):
      seen.append(self.run_.exists)
      self.assertEqual(os.path.dirname(folder), self.root)  # One file system: a rename suffices.
      run_directory.write_json(os.path.join(folder, 'a.json'), 1)

    run_directory.create(self.run_, write)
    self.assertEqual(seen, [False])
    self.assertEqual(os.listdir(self.root), ['run'])
    self.assertEqual(run_directory.read_json(self.run_.file('a.json')), 1)

  def test_others_may_read_it(self):
    # mkdtemp's own mode would keep everybody else out.
    self.make()
    self.assertEqual(os.stat(self.run_.path).st_mode & 0o777, 0o755)

  def test_write_that_fails_leaves_no_run(self):
    def write(folder):
      run_directory.write_json(os.path.join(folder, 'a.json'), 1)
      raise KeyboardInterrupt

    with self.assertRaises(KeyboardInterrupt):
      run_directory.create(self.run_, write)
    self.assertEqual(os.listdir(self.root), [])
    self.make(b=2)
    self.assertEqual(os.listdir(self.root), ['run'])
    self.assertEqual(os.listdir(self.run_.path), ['b.json'])

  def test_run_that_another_process_made_meanwhile_is_kept(self):
    self.make(a=1)
    run_directory.create(self.run_, lambda folder: self.fail('not needed'))
    self.assertEqual(os.listdir(self.run_.path), ['a.json'])

  def test_two_starts_at_once_make_one_run(self):
    start = subprocess.Popen(
        [sys.executable, '-c', _CREATOR, self.root],
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(p for p in sys.path if p)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )
    self.addCleanup(start.communicate)
    self.assertEqual(start.stdout.readline(), 'writing\n')

    # The other process is in the middle of `write`; this one waits for it and then finds the run.
    release = threading.Timer(0, lambda: (start.stdin.write('go\n'), start.stdin.flush()))
    release.start()
    run_directory.create(self.run_, lambda folder: None)
    release.join()
    self.assertEqual(os.listdir(self.run_.path), ['theirs'])

  def test_leftovers_of_killed_starts_are_removed(self):
    for name in ('.run.partial-abc', '.run.partial-xyz'):
      os.makedirs(os.path.join(self.root, name, 'deep'))
    self.make()
    self.assertEqual(os.listdir(self.root), ['run'])

  def test_one_that_is_there_is_replaced_where_that_is_asked_for(self):
    self.make(config=1)
    run_directory.create(
        self.run_, lambda folder: os.mkdir(os.path.join(folder, 'b')), replaces=True
    )
    self.assertEqual(os.listdir(self.root), ['run'])
    self.assertEqual(os.listdir(self.run_.path), ['b'])

  def test_one_that_is_there_stays_where_its_replacement_fails_or_it_is_being_written(self):
    self.make(config=1)
    with self.assertRaises(ZeroDivisionError):
      run_directory.create(self.run_, lambda folder: 1 / 0, replaces=True)
    with run_directory.locked(self.run_):
      with self.assertRaisesRegex(types.UsageError, 'being written by another process'):
        run_directory.create(self.run_, lambda folder: None, replaces=True)
    self.assertEqual(os.listdir(self.root), ['run'])
    self.assertEqual(os.listdir(self.run_.path), ['config.json'])

  def test_one_that_cannot_begin_leaves_what_was_there(self):
    def begin():
      self.assertTrue(os.path.exists(self.run_.file('new')))
      raise types.UsageError('mine')

    def write(folder):
      for name in ('config.json', 'new'):
        with open(os.path.join(folder, name), 'w', encoding='utf-8') as file:
          file.write('{}')

    with self.assertRaisesRegex(types.UsageError, 'mine'):
      run_directory.create(self.run_, write, begin=begin)
    self.assertEqual(os.listdir(self.root), [])
    self.make(config=1)
    with self.assertRaisesRegex(types.UsageError, 'mine'):
      run_directory.create(self.run_, write, replaces=True, begin=begin)
    self.assertEqual(os.listdir(self.root), ['run'])
    self.assertEqual(os.listdir(self.run_.path), ['config.json'])

  def test_what_is_no_run_is_never_replaced(self):
    os.mkdir(self.run_.path)
    run_directory.create(self.run_, lambda folder: None, replaces=True)  # Empty.
    with open(self.run_.file('thesis.tex'), 'w', encoding='utf-8'):
      pass
    for refused in (
        lambda: run_directory.create(self.run_, lambda folder: None, replaces=True),
        lambda: run_directory.require_replaceable(self.run_),
    ):
      with self.assertRaises(types.UsageError) as caught:
        refused()
      self.assert_one_line(caught.exception, 'run is no run, for .*give another --run_name')
    self.assertEqual(os.listdir(self.run_.path), ['thesis.tex'])

  def test_a_run_that_lies_elsewhere_is_never_replaced(self):
    run_directory.create(self.run_, lambda folder: None)
    elsewhere = os.path.join(self.create_tempdir().full_path, 'run')
    os.rename(self.run_.path, elsewhere)
    os.symlink(elsewhere, self.run_.path)
    with self.assertRaises(types.UsageError) as caught:
      run_directory.create(self.run_, lambda folder: None, replaces=True)
    self.assert_one_line(caught.exception, 'run is a link: .*remove the link')
    self.assertEqual(os.listdir(self.root), ['run'])

  def test_other_runs_are_left_alone(self):
    others = ('run2', '.run2.partial-abc', 'run.partial-1', '.arun.partial-abc')
    for name in others:
      os.mkdir(os.path.join(self.root, name))
    self.make()
    self.assertEqual(sorted(os.listdir(self.root)), sorted((*others, 'run')))

  def test_root_with_characters_of_patterns(self):
    root = os.path.join(self.root, 'a[b]*?')
    run = run_directory.locate(root, 'run')
    os.mkdir(os.path.join(root, '.run.partial-abc'))
    run_directory.create(run, lambda folder: None)
    self.assertEqual(os.listdir(root), ['run'])


class JsonTest(RunDirectoryTestCase):

  def test_round_trip(self):
    path = os.path.join(self.root, 'a.json')
    content = {'a': [1, 2.5, None, True, 'é'], 'b': {}}
    run_directory.write_json(path, content)
    self.assertEqual(run_directory.read_json(path), content)
    self.assertEqual(os.listdir(self.root), ['a.json'])

  def test_key_order_is_kept_and_the_file_ends_with_a_line(self):
    path = os.path.join(self.root, 'a.json')
    run_directory.write_json(path, {'b': 1, 'a': 2})
    with open(path, encoding='utf-8') as file:
      self.assertEqual(file.read(), '{\n  "b": 1,\n  "a": 2\n}\n')

  @parameterized.parameters(float('nan'), float('inf'), object())
  def test_what_json_cannot_hold_leaves_the_old_file(self, value):
    path = os.path.join(self.root, 'a.json')
    run_directory.write_json(path, 'old')
    with self.assertRaises((ValueError, TypeError)):
      run_directory.write_json(path, {'a': value})
    self.assertEqual(run_directory.read_json(path), 'old')

  @parameterized.parameters(
      b'', b'{"a": 1', b'not json', b'\xff\xfe', b'{"epsilon": 0.1, "epsilon": 16}',
      b'[{"b": {"a": 1, "a": 1}}]',
  )
  def test_damaged_file(self, content):
    path = os.path.join(self.root, 'a.json')
    with open(path, 'wb') as file:
      file.write(content)
    with self.assertRaises(types.UsageError) as caught:
      run_directory.read_json(path)
    self.assert_one_line(caught.exception, f'^{path} cannot be read ')

  def test_missing_file(self):
    path = os.path.join(self.root, 'none.json')
    with self.assertRaises(types.UsageError) as caught:
      run_directory.read_json(path)
    self.assert_one_line(caught.exception, f'^{path} cannot be read .*No such file')


class CheckSameRunTest(RunDirectoryTestCase):

  def test_same_flags(self):
    identity = {'seed': 0, 'param': ['a=1'], 'scene': None, 'rate': 0.1}
    self.make(config={'flags': identity})
    run_directory.check_same_run(self.run_, identity, {})

  def test_changed_flags_are_named_with_both_values(self):
    self.make(config={'flags': {'seed': 0, 'rounds': 5, 'rate': 0.1}})
    with self.assertRaises(types.UsageError) as caught:
      run_directory.check_same_run(self.run_, {'seed': 1, 'rounds': 5, 'rate': 0.2}, {})
    self.assert_one_line(
        caught.exception,
        '^run run was started with other flags: --rate was 0.1, now 0.2; --seed was 0, now 1. '
        '.*--run_name, or --overwrite to begin it anew$',
    )
    self.assertNotIn('--rounds', str(caught.exception))

  def test_more_rounds_of_a_run_that_had_all_of_its_own(self):
    self.make(config={'flags': {'seed': 0, 'rounds': 5}})
    # Not finished; ended early; finished.
    for summary, can_be_extended in ((None, False), ({'rounds': 3}, False), ({'rounds': 5}, True)):
      if summary:
        run_directory.write_json(self.run_.file('summary.json'), summary)
      with self.assertRaises(types.UsageError) as caught:
        run_directory.check_same_run(self.run_, {'seed': 0, 'rounds': 9}, {})
      self.assertEqual(f'--extend={self.run_.path}' in str(caught.exception), can_be_extended)

  @parameterized.parameters(
      ({'method': 'fedavg'}, True), ({'method': 'mine:METHOD'}, True),
      ({'method': 'fedtally'}, False), ({'method': 'lc'}, False),
      ({'method': 'fedavg', 'client_dp_noise': 1.0}, False),
      ({'method': 'fedavg', 'eval_every': 5}, True), ({'method': 'fedavg', 'eval_every': 3}, False),
  )
  def test_rounds_are_added_where_none_depends_on_how_many_there_are(self, flags, can_be_extended):
    self.make(config={'flags': {**flags, 'rounds': 5}})
    run_directory.write_json(self.run_.file('summary.json'), {'rounds': 5})
    with self.assertRaises(types.UsageError) as caught:
      run_directory.check_same_run(self.run_, {**flags, 'rounds': 9}, {})
    self.assertEqual('--extend=' in str(caught.exception), can_be_extended)

  def test_flag_that_the_run_did_not_know(self):
    self.make(config={'flags': {'seed': 0}})
    with self.assertRaisesRegex(types.UsageError, '--new was 2, now 3'):
      run_directory.check_same_run(self.run_, {'seed': 0, 'new': 3}, {'new': 2, 'seed': 7})
    run_directory.check_same_run(self.run_, {'seed': 0, 'new': 2}, {'new': 2, 'seed': 7})

  def test_folder_without_configuration(self):
    self.make()
    with self.assertRaisesRegex(types.UsageError, 'config.json cannot be read'):
      run_directory.check_same_run(self.run_, {'seed': 0}, {})

  def test_configuration_without_flags(self):
    for config in ({}, [], {'flags': []}):
      self.make(config=config)
      with self.assertRaisesRegex(types.UsageError, 'config.json has no flags'):
        run_directory.check_same_run(self.run_, {'seed': 0}, {})
      shutil.rmtree(self.run_.path)

  def test_flag_that_is_gone(self):
    self.make(config={'flags': {'seed': 0, 'old': 1}})
    with self.assertRaisesRegex(types.UsageError, '--old was 1, now None'):
      run_directory.check_same_run(self.run_, {'seed': 0}, {})


class LockTest(RunDirectoryTestCase):

  def _start_holder(self):
    environment = {**os.environ, 'PYTHONPATH': os.pathsep.join(p for p in sys.path if p)}
    holder = subprocess.Popen(
        [sys.executable, '-c', _HOLDER, self.run_.path],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )
    self.addCleanup(holder.communicate)
    self.addCleanup(holder.kill)
    self.assertEqual(holder.stdout.readline(), 'locked\n')
    return holder

  def test_second_process_is_refused_until_the_first_ends(self):
    self.make()
    holder = self._start_holder()
    with self.assertRaises(types.UsageError) as caught:
      with run_directory.locked(self.run_):
        self.fail('entered a locked run')
    self.assert_one_line(caught.exception, '^run run is being written by another process$')
    holder.communicate()
    with run_directory.locked(self.run_):
      pass

  def test_lock_of_a_killed_process_is_gone(self):
    self.make()
    holder = self._start_holder()
    holder.kill()
    holder.wait()
    with run_directory.locked(self.run_):
      pass

  def test_lock_is_free_after_the_context_even_if_it_fails(self):
    self.make()
    with self.assertRaises(KeyError):
      with run_directory.locked(self.run_):
        raise KeyError
    self._start_holder()

  def test_other_runs_are_not_locked(self):
    self.make()
    other = run_directory.locate(self.root, 'other')
    run_directory.create(other, lambda folder: None)
    self._start_holder()
    with run_directory.locked(other):
      pass

  def test_lock_changes_nothing_else_in_the_run(self):
    self.make(config={'flags': {}})
    with run_directory.locked(self.run_):
      pass
    self.assertEqual(sorted(os.listdir(self.run_.path)), ['config.json'])
    self.assertEqual(json.dumps(run_directory.read_json(self.run_.file('config.json'))),
                     '{"flags": {}}')


if __name__ == '__main__':
  absltest.main()
