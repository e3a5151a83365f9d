"""Tests of what a run directory's managers write."""

import asyncio
import collections

import numpy as np
from absl.testing import absltest
from tensorboard.backend.event_processing import event_accumulator

from tff_noise.program import managers
from tff_noise.program import run_directory

_Row = collections.namedtuple('_Row', ('stage', 'test_accuracy', 'clients'))


class MetricsManagersTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.run_dir = run_directory.RunDirectory(self.create_tempdir().full_path)

  def _release(self, *rows):
    async def release():
      built = managers.build_metrics_managers(self.run_dir)
      for key, row in enumerate(rows, 1):
        for manager in built:
          await manager.release(row, key)

    asyncio.run(release())

  def test_tensorboard_has_a_group_for_each_stage_and_no_gaps_as_values(self):
    self._release(_Row('warm up', 0.5, 3), _Row('train', np.nan, 3), _Row('train', 0.75, 4))
    events = event_accumulator.EventAccumulator(self.run_dir.file('tensorboard'))
    events.Reload()
    values = {
        tag: [
            (e.step, e.tensor_proto.float_val[0] if e.tensor_proto.float_val else None)
            for e in events.Tensors(tag)
        ]
        for tag in events.Tags()['tensors']
    }
    self.assertEqual(
        set(values),
        {'warm up/test accuracy', 'warm up/clients', 'train/test accuracy', 'train/clients'},
    )
    self.assertEqual([step for step, _ in values['train/test accuracy']], [3])

  def test_rows_of_a_round_that_is_run_again_are_replaced(self):
    self._release(_Row('train', 0.5, 3), _Row('train', 0.6, 3))
    self._release(_Row('train', 0.5, 3), _Row('train', 0.6, 3))
    with open(self.run_dir.file('metrics.csv'), encoding='utf-8') as file:
      lines = file.read().splitlines()
    self.assertEqual(
        lines, ['round,stage,test_accuracy,clients', '1,train,0.5,3', '2,train,0.6,3']
    )


if __name__ == '__main__':
  absltest.main()
