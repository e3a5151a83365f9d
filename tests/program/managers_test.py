"""Tests of what a run directory's managers write."""

import asyncio
import collections
import csv
import errno
from unittest import mock

import numpy as np
import tensorboard.summary
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from tensorboard.backend.event_processing import event_accumulator

from tff_noise import types
from tff_noise.program import managers
from tff_noise.program import run_directory


def _row(stage, test_accuracy, clients):
  return {'stage': stage, 'test_accuracy': test_accuracy, 'clients': clients}


_TOLD = []


def told(path, flags):
  return lambda row, done: _TOLD.append((path, flags['rounds'], row['clients'], done))


def returns_nothing(path, flags):
  del path, flags


def takes_nothing():
  pass


def fails(path, flags):
  del path, flags
  return lambda row, done: row['loss']


class MetricsManagersTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.run_dir = run_directory.RunDirectory(self.create_tempdir().full_path)

  def _release(self, *rows, hook=None, stages=('warm up', 'train', 'a, "b"')):
    async def release():
      built = managers.build_metrics_managers(self.run_dir, stages, hook)
      for key, row in enumerate(rows, 1):
        for manager in built:
          await manager.release(row, key)

    asyncio.run(release())

  def _hook(self, name):
    return managers.build_hook(f'{__name__}:{name}', 'runs/a', {'rounds': 3})

  def test_a_hook_is_made_of_the_run(self):
    self.assertEqual(self._hook('told')({'clients': 3}, 1), None)
    self.assertEqual(_TOLD, [('runs/a', 3, 3, 1)])

  def test_mistakes_of_hooks_are_told_in_one_line(self):
    with self.assertRaisesRegex(types.UsageError, 'has to return a function .* returned None'):
      self._hook('returns_nothing')
    with self.assertRaisesRegex(types.UsageError, r'\(TypeError: takes_nothing\(\) takes 0'):
      self._hook('takes_nothing')
    with self.assertRaisesRegex(types.RunError, r"failed in round 2 \(KeyError: 'loss'\)"):
      self._hook('fails')({}, 2)

  def test_a_hook_gets_every_row(self):
    got = []
    self._release(
        _row('warm up', 0.5, 3), _row('train', 0.75, 4), hook=lambda *args: got.append(args)
    )
    self.assertEqual(got, [
        ({'stage': 'warm up', 'test_accuracy': 0.5, 'clients': 3}, 1),
        ({'stage': 'train', 'test_accuracy': 0.75, 'clients': 4}, 2),
    ])

  def test_tensorboard_has_one_name_whatever_the_stage_and_no_gaps_as_values(self):
    self._release(_row('warm up', 0.5, 3), _row('train', np.nan, 3), _row('train', 0.75, 4))
    events = event_accumulator.EventAccumulator(self.run_dir.file('tensorboard'))
    events.Reload()
    values = {
        tag: [
            (e.step, e.tensor_proto.float_val[0] if e.tensor_proto.float_val else None)
            for e in events.Tensors(tag)
        ]
        for tag in events.Tags()['tensors']
    }
    self.assertEqual(set(values), {'test accuracy', 'clients', 'stage'})
    self.assertEqual([step for step, _ in values['test accuracy']], [1, 3])
    self.assertEqual([step for step, _ in values['stage']], [1, 2, 3])
    legend = events.SummaryMetadata('stage').summary_description
    self.assertStartsWith(legend, '1 warm up, 2 train, 3 ')

  def test_files_are_those_of_tffs_own_manager(self):
    rows = [
        _row('a, "b"', np.float32(0.1), 3),
        {**_row('train', np.nan, np.int64(4)), 'more': 1e-9},
        _row('train', 0.25, 5),
    ]
    theirs = self.run_dir.file('theirs.csv')
    manager = tff.program.CSVFileReleaseManager(theirs, key_fieldname='round')
    self._release(*rows)

    async def release():
      for key, row in enumerate(rows, 1):
        await manager.release(collections.namedtuple('Row', row)(**row), key)

    asyncio.run(release())
    with open(theirs, 'rb') as file, open(self.run_dir.file('metrics.csv'), 'rb') as ours:
      self.assertEqual(ours.read(), file.read())

  def test_a_full_disk_is_what_it_is_elsewhere(self):
    full = tf.errors.ResourceExhaustedError(None, None, 'No space left on device')
    with mock.patch.object(tensorboard.summary.Writer, 'flush', side_effect=full):
      with self.assertRaises(OSError) as caught:
        self._release(_row('train', 0.5, 3))
    self.assertEqual(caught.exception.errno, errno.ENOSPC)

  def test_a_damaged_file_is_refused_and_left_as_it_is(self):
    for content in (
        '', 'round,stage\r\n', 'stage,loss\r\ntrain,1\r\n', 'round,loss\r\n2,1\r\n',
        'round,loss\r\n1,1,9\r\n', 'round,loss\r\n1\r\n', 'round,loss\r\n\0,1\r\n',
    ):
      path = self.run_dir.file('metrics.csv')
      with open(path, 'w', encoding='utf-8', newline='') as file:
        file.write(content)
      with self.assertRaisesRegex(types.UsageError, 'metrics.csv is damaged .*--overwrite'):
        managers.build_metrics_managers(self.run_dir, ['train'])
      with open(path, encoding='utf-8', newline='') as file:
        self.assertEqual(file.read(), content)

  def test_rounds_without_the_rows_before_them_are_refused(self):
    manager = managers.build_timing_manager(self.run_dir)
    asyncio.run(manager.release({'seconds': 1.0}, 1))
    with self.assertRaisesRegex(types.RunError, 'timing.csv has 1 rounds before round 3: bring'):
      asyncio.run(manager.release({'seconds': 1.0}, 3))

  def test_rows_of_a_round_that_is_run_again_are_replaced(self):
    self._release(_row('train', 0.5, 3), _row('train', 0.6, 3))
    self._release(_row('train', 0.5, 3), _row('train', 0.6, 3))
    with open(self.run_dir.file('metrics.csv'), encoding='utf-8') as file:
      lines = file.read().splitlines()
    self.assertEqual(
        lines, ['round,stage,test_accuracy,clients', '1,train,0.5,3', '2,train,0.6,3']
    )

  def test_of_many_rounds_only_the_last_is_formatted(self):
    manager = managers.build_timing_manager(self.run_dir)
    with mock.patch.object(csv.DictWriter, 'writerows', autospec=True) as formatted:
      for i in range(1, 6):
        asyncio.run(manager.release({'seconds': 1.0}, i))
    rows = [call.args[1] for call in formatted.call_args_list]
    self.assertEqual([len(r) for r in rows], [2, 1, 1, 1, 1])


if __name__ == '__main__':
  absltest.main()
