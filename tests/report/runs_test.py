"""Tests of the reader of run directories."""

import os
import shutil

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tests.report import run_files
from tff_noise import types
from tff_noise.program import code_version
from tff_noise.program import summary
from tff_noise.report import runs


class ReadRunTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.path = os.path.join(self.create_tempdir().full_path, 'a_run')

  def test_everything_of_a_finished_run(self):
    run = runs.read_run(run_files.write(self.path) + '/')
    self.assertEqual((run.path, run.name, run.code), (self.path, 'a_run', 'abc123'))
    self.assertTrue(run.finished)
    self.assertEqual(run.flags['noise_rate'], 0.4)
    self.assertEqual(run.method_parameters, {'weight': 0.5})
    self.assertEqual(run.versions['numpy'], '1.25.2')
    self.assertEqual(run.summary, run_files.summary())
    self.assertEqual(run.privacy, run_files.PRIVACY)
    self.assertEqual(run.uplink, run_files.UPLINK)
    self.assertEqual(list(run.metrics), list(run_files.metrics()))
    self.assertEqual(run.metrics['stage'].tolist(), ['warm', 'warm', 'train', 'train'])
    self.assertEqual(run.metrics['train_loss'].dtype, np.float64)
    np.testing.assert_array_equal(run.metrics['train_loss'], [1, -1, -2, -3])
    np.testing.assert_array_equal(run.rounds, [1, 2, 3, 4])
    np.testing.assert_array_equal(run.seconds, [2, 0.5, 0.5, 0.5])

  def test_whose_code_ran_beside(self):
    self.assertEqual(runs.read_run(run_files.write(self.path)).hook, '')
    for hook, found in ((None, ''), ('my.code:watch', 'my.code:watch')):
      config = {**run_files.config(), 'execution': {'metrics_hook': hook}}
      run_files.write_json(os.path.join(self.path, 'config.json'), config)
      self.assertEqual(runs.read_run(self.path).hook, found)
    # With another, or none, when it went on.
    for hook in ('my.code:watch', None, 'other:hook'):
      code_version.write(self.path, hook)
    self.assertEqual(runs.read_run(self.path).hook, 'my.code:watch, other:hook')

  def test_numbers_texts_and_gaps(self):
    columns = run_files.metrics(
        test_accuracy=['nan', 0.5, 'nan', 0.75], lid=['', 1, 2, ''], stage=[1, 1, 2, 2],
        remark=['a', '1', '2', '3'],
    )
    run = runs.read_run(run_files.write(self.path, metrics=columns))
    np.testing.assert_array_equal(run.metrics['test_accuracy'], [np.nan, 0.5, np.nan, 0.75])
    np.testing.assert_array_equal(run.metrics['lid'], [np.nan, 1, 2, np.nan])
    self.assertEqual(run.metrics['stage'].tolist(), ['1', '1', '2', '2'])
    self.assertEqual(run.metrics['remark'].tolist(), ['a', '1', '2', '3'])

  def test_unfinished_run(self):
    run = runs.read_run(run_files.write_unfinished(self.path))
    self.assertFalse(run.finished)
    self.assertIsNone(run.privacy)
    self.assertLen(run.rounds, 4)

  def test_run_without_a_round(self):
    run = runs.read_run(
        run_files.write_unfinished(self.path, metrics=None, timing=None, uplink=None)
    )
    self.assertEqual((dict(run.metrics), len(run.rounds), len(run.seconds)), ({}, 0, 0))
    self.assertIsNone(runs.accuracy(run))

  @parameterized.parameters(
      ([1, 2], [2.0, 0.5], [2.0, 0.5, np.nan, np.nan]),
      ([1, 2, 3, 4, 5], [1.0] * 5, [1.0] * 4),
  )
  def test_times_of_a_killed_run_may_lag_or_lead(self, rounds, seconds, expected):
    run = runs.read_run(
        run_files.write_unfinished(self.path, timing={'round': rounds, 'seconds': seconds})
    )
    np.testing.assert_array_equal(run.seconds, expected)

  def test_old_config_without_code_and_versions(self):
    run = runs.read_run(run_files.write(self.path, config={'flags': {'seed': 1}}))
    self.assertEqual((run.code, run.versions, run.method_parameters), ('', {}, {}))

  def test_no_such_directory(self):
    with self.assertRaisesRegex(types.UsageError, 'nowhere is not a run: no such directory'):
      runs.read_run(os.path.join(self.path, 'nowhere'))

  @parameterized.parameters(
      'config.json', 'metrics.csv', 'timing.csv', 'privacy.json', 'uplink.json'
  )
  def test_finished_run_with_a_missing_file(self, name):
    run_files.write(self.path)
    os.remove(os.path.join(self.path, name))
    self._assert_refused(name, '')

  @parameterized.parameters(
      ('config.json', '{"flags": ', 'cannot be read'),
      ('config.json', '[]', 'has no flags'),
      ('config.json', '{"flags": 3}', 'has no flags'),
      ('config.json', '{"flags": {}, "versions": 3}', 'versions is not a mapping'),
      ('summary.json', '[]', 'it is not a mapping'),
      ('summary.json', '{"best_test_accuracy": "high"}', 'best_test_accuracy is not a number'),
      ('summary.json', '{"best_test_accuracy": 0.5}', 'best_round is not a number'),
      ('privacy.json', '[]', 'it is not a mapping'),
      ('privacy.json', '{"releases": [1]}', 'releases is not a list'),
      ('privacy.json', '{"releases": [], "totals": []}', 'it has no statement'),
      ('uplink.json', '{}', 'it is not a list'),
      ('metrics.csv', '', 'names no column "round"'),
      ('metrics.csv', 'a,b\n1,2\n', 'names no column "round"'),
      ('metrics.csv', 'round,a\n1,2\n2\n', 'line 3 has 1 values for 2 columns'),
      ('metrics.csv', 'round,a\n1,2\n3,4\n', 'its rounds are not 1, 2, 3'),
      ('metrics.csv', 'round,a\nx,2\n', 'its rounds are not 1, 2, 3'),
      ('metrics.csv', 'round,a\n1,"2', 'cannot be read'),
      ('metrics.csv', 'round,clients\n1,many\n', 'clients is not a column of numbers'),
      ('config.json', '[' * 100_000, 'cannot be read'),
      ('metrics.csv', 'round,test_accuracy\n1,0.5\n', 'has 1 rounds, summary.json tells of 4'),
      ('metrics.csv', 'round,test_accuracy\n', 'has 0 rounds, summary.json tells of 4'),
      ('timing.csv', 'round,seconds\n1,fast\n', 'no column of seconds'),
      ('timing.csv', 'round\n1\n', 'no column of seconds'),
  )
  def test_damaged_file(self, name, content, message):
    run_files.write(self.path)
    with open(os.path.join(self.path, name), 'w', encoding='utf-8') as file:
      file.write(content)
    self._assert_refused(name, message)

  def test_bytes_that_are_no_text(self):
    run_files.write(self.path)
    with open(os.path.join(self.path, 'metrics.csv'), 'wb') as file:
      file.write(b'\xff\xfe\x00')
    self._assert_refused('metrics.csv', 'cannot be read')

  def _assert_refused(self, name, message):
    with self.assertRaisesRegex(types.UsageError, message) as caught:
      runs.read_run(self.path)
    self.assertIn(name, str(caught.exception))
    self.assertNotIn('\n', str(caught.exception))


class AccuracyTest(absltest.TestCase):

  def _accuracy(self, values):
    path = self.create_tempdir().full_path
    n = len(values)
    columns = {'round': range(1, n + 1), 'stage': ['train'] * n, 'test_accuracy': values}
    return runs.accuracy(
        runs.read_run(run_files.write_unfinished(path, metrics=columns, timing=None))
    )

  def test_by_hand(self):
    self.assertEqual(
        self._accuracy([0.25, 0.75, 0.75, 0.5]), summary.Accuracy(0.75, 2, 0.5625, 0.5, 4)
    )

  def test_last_ten_evaluations_only(self):
    values = [1.0] * 5 + [0.5, 0.25] * 5
    self.assertEqual(self._accuracy(values), summary.Accuracy(1.0, 1, 0.375, 0.25, 15))

  def test_rounds_without_evaluation_do_not_count(self):
    self.assertEqual(
        self._accuracy(['nan', 0.5, 'nan', 1.0]), summary.Accuracy(1.0, 4, 0.75, 1.0, 2)
    )

  def test_never_evaluated(self):
    self.assertIsNone(self._accuracy(['nan', 'nan']))


class ReadSceneTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.run_ = runs.read_run(run_files.write(self.create_tempdir().full_path))
    self.path = os.path.join(self.run_.path, 'scene.npz')

  def test_is_what_was_saved(self):
    read, saved = runs.read_scene(self.run_), run_files.scene()
    for name in ('client_of', 'noisy_label', 'clean_label', 'nominal_rate', 'is_noisy_client'):
      np.testing.assert_array_equal(getattr(read, name), getattr(saved, name), name)
    self.assertEqual(read.notes, saved.notes)
    self.assertEqual(read.flipped.sum(), 3)

  def test_missing(self):
    os.remove(self.path)
    with self.assertRaisesRegex(types.UsageError, r'scene .*scene.npz: no such file'):
      runs.read_scene(self.run_)

  def test_damaged(self):
    with open(self.path, 'r+b') as file:
      file.truncate(100)
    with self.assertRaisesRegex(types.UsageError, 'scene.npz cannot be read'):
      runs.read_scene(self.run_)

  def test_other_file(self):
    shutil.copyfile(os.path.join(self.run_.path, 'config.json'), self.path)
    with self.assertRaisesRegex(types.UsageError, 'scene.npz cannot be read'):
      runs.read_scene(self.run_)

  @parameterized.parameters(
      ({'client_of': np.zeros(12)}, 'client_of must be a vector'),
      ({'client_of': np.full(12, 3)}, 'client_of is not within -1 to 2'),
      ({'noisy_label': np.full(12, -1)}, 'noisy_label has a label below 0'),
      ({'clean_label': np.zeros(11, int)}, 'differ in length'),
      ({'nominal_rate': np.zeros(2)}, 'differ in length'),
      ({'is_noisy_client': np.zeros((3, 1), bool)}, 'is_noisy_client must be a vector'),
  )
  def test_contradictions(self, changes, message):
    run_files.write(self.run_.path, scene=run_files.scene(**changes))
    with self.assertRaisesRegex(types.UsageError, message):
      runs.read_scene(self.run_)


class ReadClientsAndLabelsTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.path = self.create_tempdir().full_path

  def _run(self, **contents):
    return runs.read_run(run_files.write(self.path, **contents))

  def test_clients(self):
    columns = runs.read_clients(self._run(clients={'client': [0, 1], 'lid': [1.5, 'nan']}))
    np.testing.assert_array_equal(columns['client'], [0, 1])
    np.testing.assert_array_equal(columns['lid'], [1.5, np.nan])

  def test_names_of_clients_are_no_column_of_numbers(self):
    run = self._run(clients={'client': [0, 1], 'name': ['ward 3', 7]})
    self.assertEqual(list(runs.read_clients(run)), ['client'])

  def test_unfinished_run_has_none_yet(self):
    run = runs.read_run(run_files.write_unfinished(self.path))
    self.assertEqual(runs.read_clients(run), {})
    self.assertIsNone(runs.read_labels(run))

  def test_finished_run_without_clients(self):
    with self.assertRaisesRegex(types.UsageError, 'clients.csv cannot be read'):
      runs.read_clients(self._run())

  @parameterized.parameters(
      ({'client': [1, 0]}, 'its clients are not 0, 1, 2'),
      ({'client': ['a', 'b']}, 'its clients are not 0, 1, 2'),
      ({'lid': [1, 2]}, 'its first line names no column "client"'),
      ({'client': [0, 1], 'lid': ['high', 2]}, 'lid is not a column of numbers'),
  )
  def test_damaged_clients(self, columns, message):
    with self.assertRaisesRegex(types.UsageError, f'clients.csv is damaged: {message}'):
      runs.read_clients(self._run(clients=columns))

  def test_labels(self):
    labels = runs.read_labels(self._run(labels=np.array([2, 0, 1], np.int64)))
    self.assertEqual((labels.tolist(), labels.dtype), ([2, 0, 1], np.int32))

  @parameterized.parameters(([[0], [1]],), ([0.5],), ([-1, 0],))
  def test_labels_that_are_none(self, labels):
    with self.assertRaisesRegex(types.UsageError, 'labels.npz is damaged'):
      runs.read_labels(self._run(labels=np.array(labels)))

  def test_damaged_labels(self):
    run = self._run(labels=np.zeros(3, int))
    with open(os.path.join(self.path, 'labels.npz'), 'r+b') as file:
      file.truncate(60)
    with self.assertRaisesRegex(types.UsageError, 'labels.npz cannot be read'):
      runs.read_labels(run)


if __name__ == '__main__':
  absltest.main()
