"""Tests of records.py: tables are the same from a file as from runs."""

import csv
import os
import shutil
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from tests.compare import grid_case
from tff_noise import types
from tff_noise.compare import documents
from tff_noise.compare import grid as grid_lib
from tff_noise.compare import records
from tff_noise.compare import tables
from tff_noise.program import inputs


class RecordsTest(grid_case.GridCase):

  def setUp(self):
    super().setUp()
    self.file = os.path.join(self.create_tempdir().full_path, 'results.csv')

  def _keep(self, grid):
    """Adds what is finished to the file."""
    found = [(r.cell, r.record) for r in tables.collect(grid) if r.record]
    text = records.added(self.file, found, grid.metrics)
    with open(self.file, 'w', encoding='utf-8') as file:
      file.write(text)
    return text

  def _grid(self, seeds, rounds=2, metric=grid_case.METRIC):
    return grid_lib.from_flags(
        ['fedavg', 'feddpcont'], ['noise_rate=0.2,0.4'], seeds, [f'--rounds={rounds}'], self.root,
        metric=metric, baseline=None,
    )

  def test_tables_need_the_file_alone(self):
    self.write(('fedavg', 'noise_rate=0.4', 1))
    text = documents.to_markdown(self.grid, tables.collect(self.grid))
    self._keep(self.grid)
    shutil.rmtree(self.root)
    known = records.read(self.file, self.grid)
    self.assertLen(known, 11)
    self.assertEqual(documents.to_markdown(self.grid, tables.collect(self.grid, known=known)), text)
    self.assertIn('fedavg, noise_rate=0.4, seed 1: not run', text)

  def test_days_add_up_to_the_same_file(self):
    self.write()
    for seeds in ([2], [0, 1], [1, 2]):
      text = self._keep(self._grid(seeds))
    os.remove(self.file)
    self.assertEqual(self._keep(self.grid), text)
    rows = list(csv.DictReader(text.splitlines()))
    self.assertLen(rows, 12)
    row = rows[0]
    self.assertEqual([row[name] for name in ('setting', 'method', 'seed')],
                     ['noise_rate=0.2', 'fedavg', '0'])
    self.assertEqual(float(row['best_test_accuracy']), 80)
    self.assertEqual(float(row['bytes_up']), 3.5e6)
    self.assertEqual(row['noisy_client_f1'], '')

  def test_a_new_run_takes_its_record_s_place(self):
    self.write()
    self._keep(self.grid)
    cell = self.cell('fedavg', 'noise_rate=0.2', 0)
    shutil.rmtree(self.path(cell))
    grid_case.write_run(self.path(cell), cell.config, 0.5)
    self._keep(self.grid)
    self.assertEqual(
        records.read(self.file, self.grid)[cell.config.name()].values['best_test_accuracy'], 50
    )

  def test_where_a_run_lies_is_nothing_about_it(self):
    self.write()
    self._keep(self.grid)
    self.root = self.create_tempdir('elsewhere').full_path
    self.assertLen(records.read(self.file, self._grid([0, 1, 2])), 12)

  def test_where_named_data_lie_is_nothing_about_it(self):
    def digest(dataset, *places):
      grid = grid_lib.from_flags(
          ['fedavg'], [], [0], [f'--dataset={dataset}', *places], self.root,
          metric=grid_case.METRIC, baseline=None,
      )
      return records._digest(grid.cells[0])

    self.assertEqual(
        digest('cifar10', '--data_dir=here'), digest('cifar10', '--data_dir=there')
    )
    self.assertNotEqual(digest('npz', '--data_dir=one.npz'), digest('npz', '--data_dir=two.npz'))

  def test_of_a_flag_that_is_given_twice_the_last_counts(self):
    def digest(*given):
      grid = grid_lib.from_flags(
          ['fedprox'], [], [0], given, self.root, metric=grid_case.METRIC, baseline=None
      )
      return records._digest(grid.cells[0])

    for first, second in (
        ('--rounds=2', '--rounds=3'), ('--param=mu=1', '--param=mu=0.3'),
    ):
      self.assertNotEqual(digest(first, second), digest(second, first))
      self.assertEqual(digest(first, second), digest(second))
    self.assertNotEqual(
        digest('--param=mu=1', '--param=term=norm'), digest('--param=term=norm')
    )

  def test_how_a_run_is_executed_is_nothing_about_it(self):
    self.write()
    self._keep(self.grid)
    flags = ['--rounds=2', '--log_level=quiet', '--max_concurrent_clients=1']
    grid = grid_lib.from_flags(
        ['fedavg', 'feddpcont'], ['noise_rate=0.2,0.4'], [0], flags, self.root,
        metric=grid_case.METRIC, baseline=None,
    )
    self.assertLen(records.read(self.file, grid), 4)

  def test_other_code_of_ones_own_is_refused(self):
    self.write()
    with mock.patch.object(inputs, 'of_code', return_value={'--method': 'ab'}):
      self._keep(self.grid)
      self.assertLen(records.read(self.file, self.grid), 12)
    with mock.patch.object(inputs, 'of_code', return_value={'--method': 'cd'}):
      with self.assertRaisesRegex(types.UsageError, 'asks for, or other code of your own; give'):
        records.read(self.file, self.grid)

  def test_rows_that_know_nothing_of_own_code_are_taken(self):
    self.write()
    self._keep(self.grid)
    with mock.patch.object(inputs, 'of_code', return_value={'--method': 'cd'}):
      self.assertLen(records.read(self.file, self.grid), 12)

  def test_other_flags_are_refused(self):
    self.write()
    self._keep(self.grid)
    with self.assertRaisesRegex(types.UsageError, 'was made with other flags .* --results$'):
      records.read(self.file, self._grid([0], rounds=3))

  def test_a_metric_that_is_not_there_is_refused(self):
    self.write()
    self._keep(self.grid)
    grid = self._grid([0], metric='rounds_to_accuracy:70')
    with self.assertRaisesRegex(types.UsageError, 'does not have rounds_to_accuracy:70; give'):
      records.read(self.file, grid)
    for refused in (
        lambda: self._keep(grid), lambda: records.require_metrics(self.file, grid.metrics)
    ):
      with self.assertRaisesRegex(types.UsageError, 'has other metrics than this grid; give'):
        refused()
    records.require_metrics(self.file, self.grid.metrics)
    records.require_metrics(self.file + '_new', self.grid.metrics)

  def test_rows_of_versions_that_knew_fewer_metrics_stay(self):
    self.write()
    text = self._keep(self._grid([0, 1]))
    rows = list(csv.DictReader(text.splitlines()))
    for row in rows:
      del row['last10_validation_accuracy']
    with open(self.file, 'w', encoding='utf-8', newline='') as file:
      writer = csv.DictWriter(file, rows[0], lineterminator='\n')
      writer.writeheader()
      writer.writerows(rows)
    records.require_metrics(self.file, self.grid.metrics)
    self.assertEqual(self._keep(self._grid([2])).splitlines()[:2], text.splitlines()[:2])

  def test_what_other_files_have_besides_stays_with_them(self):
    self.write()
    found = [(r.cell, r.record) for r in tables.collect(self.grid) if r.record]
    text = records.added(self.file, found, self.grid.metrics)
    more = [
        (cell, record._replace(values={**record.values, 'rounds_to_accuracy:90': 3.0}))
        for cell, record in found
    ]
    self.assertEqual(records.added(self.file, more, self.grid.metrics), text)

  def test_a_record_without_a_metric_has_none_of_it(self):
    self.write()
    results = tables.collect(self.grid)
    for result in results:
      del result.record.values['last10_validation_accuracy']
    cell = results[0].cell
    self.assertEmpty(
        tables.by_seed(results, 'last10_validation_accuracy', cell.method, cell.setting)
    )

  def test_a_cell_that_is_there_twice_is_refused(self):
    self.write()
    text = self._keep(self.grid)
    with open(self.file, 'a', encoding='utf-8') as file:
      file.write(text.splitlines()[-1] + '\n')
    with self.assertRaisesRegex(types.UsageError, 'seed 2 is there twice'):
      records.read(self.file, self.grid)

  @parameterized.parameters(
      {'seconds_per_round': ''}, {'seconds_per_round': 'nan'}, {'bytes_up': 'inf'},
      {'bytes_down': '-1'}, {'best_test_accuracy': 'nan'}, {'run_epsilon': ''},
  )
  def test_a_number_that_is_none_is_refused(self, **wrong):
    self.write()
    rows = list(csv.DictReader(self._keep(self.grid).splitlines()))
    rows[0].update(wrong)
    with open(self.file, 'w', encoding='utf-8', newline='') as file:
      writer = csv.DictWriter(file, rows[0])
      writer.writeheader()
      writer.writerows(rows)
    with self.assertRaisesRegex(types.UsageError, 'is damaged .*give another --results'):
      records.read(self.file, self.grid)

  @parameterized.parameters('', 'a,b\n1,2\n', 'a,b\n', 'cut', 'a seed')
  def test_another_file_is_refused(self, text):
    self.write()
    self._keep(self.grid)
    if text == 'cut':
      with open(self.file, encoding='utf-8') as file:
        text = file.read()[:-30]
    if text == 'a seed':
      with open(self.file, encoding='utf-8') as file:
        text = file.read().replace('fedavg,0,', 'fedavg,00,')
    with open(self.file, 'w', encoding='utf-8') as file:
      file.write(text)
    if not text:
      self.assertEmpty(records.read(self.file, self.grid))
      return
    with self.assertRaisesRegex(types.UsageError, 'is no file of results .*; give another'):
      records.read(self.file, self.grid)


if __name__ == '__main__':
  absltest.main()
