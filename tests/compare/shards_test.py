"""Tests of shards.py: who runs which cells, and where each keeps its results."""

import collections
import os

from absl.testing import absltest
from absl.testing import parameterized

from tests.compare import grid_case
from tff_noise import types
from tff_noise.compare import documents
from tff_noise.compare import grid as grid_lib
from tff_noise.compare import records
from tff_noise.compare import shards
from tff_noise.compare import tables

_METHODS = ('fedavg', 'feddpcont', 'fedprox', 'gce', 'fednova', 'sce', 'elr')


def _grid(num_methods, num_settings, num_seeds):
  rates = ','.join(f'0.{i + 1}' for i in range(num_settings))
  return grid_lib.from_flags(
      _METHODS[:num_methods], [f'noise_rate={rates}'], range(num_seeds), [], 'runs',
      metric=grid_case.METRIC, baseline=None,
  )


def _parts(grid, count):
  return [shards.part(grid, shards.Shard(i, count)).cells for i in range(count)]


def _imbalance(parts, values, value_of):
  """By how much shards differ at most in the number of cells of any one value."""
  counts = [collections.Counter(map(value_of, cells)) for cells in parts]
  return max(max(c[v] for c in counts) - min(c[v] for c in counts) for v in values)


class PartTest(parameterized.TestCase):

  def test_by_hand(self):
    # Two methods (A, B), two settings (0, 1), one seed. A0 and A1 go to a shard each. B0 and B1 do
    # too, and not to the one that has their setting.
    grid = _grid(2, 2, 1)
    self.assertEqual(
        [[(c.method, c.setting) for c in cells] for cells in _parts(grid, 2)],
        [
            [('fedavg', 'noise_rate=0.1'), ('feddpcont', 'noise_rate=0.2')],
            [('feddpcont', 'noise_rate=0.1'), ('fedavg', 'noise_rate=0.2')],
        ],
    )

  @parameterized.product(
      shape=[(1, 1, 1), (2, 1, 3), (5, 1, 1), (5, 3, 2), (7, 4, 5)], count=[1, 2, 3, 5, 7, 20, 200]
  )
  def test_every_cell_is_in_one_shard_and_methods_are_spread(self, shape, count):
    grid = _grid(*shape)
    parts = _parts(grid, count)
    self.assertCountEqual([cell for cells in parts for cell in cells], grid.cells)
    self.assertLessEqual(_imbalance(parts, grid.methods, lambda cell: cell.method), 1)
    self.assertLessEqual(_imbalance(parts, [None], lambda cell: None), 1)
    for cells in parts:
      self.assertEqual(list(cells), [cell for cell in grid.cells if cell in cells])

  @parameterized.parameters(2, 3, 4, 5, 10, 20)
  def test_settings_are_spread_where_a_method_does_not_decide(self, count):
    grid = _grid(7, 4, 5)
    parts = _parts(grid, count)
    self.assertLessEqual(_imbalance(parts, grid.settings, lambda cell: cell.setting), 2)

  def test_a_shard_keeps_all_but_the_cells(self):
    grid = _grid(2, 2, 2)
    part = shards.part(grid, shards.Shard(1, 3))
    self.assertEqual(part._replace(cells=grid.cells), grid)


class ParseTest(parameterized.TestCase):

  def test_parse(self):
    self.assertEqual(shards.parse('3/12'), shards.Shard(3, 12))
    self.assertEqual(str(shards.Shard(3, 12)), '3/12')

  @parameterized.parameters(
      '', '1', 'a/b', '2/2', '0/0', '-1/2', '0/2/2', '0.5/2', ' 0/2', '0/2\n', '0/1234567890',
      '٠/٢',
  )
  def test_mistakes(self, text):
    with self.assertRaisesRegex(types.UsageError, '^--shard must be i/n, with i from 0 to n - 1'):
      shards.parse(text)


class ResultsTest(grid_case.GridCase):

  def test_files_of_shards_lie_beside(self):
    folder = self.create_tempdir()
    path = os.path.join(folder.full_path, 'a[1].csv')
    self.assertEqual(shards.results_files(path), [path])
    self.assertTrue(shards.results_file(path, shards.Shard(0, 12)).endswith('/a[1].0-of-12.csv'))
    for name in ('a[1].csv', 'a[1].x-of-2.csv', 'a1.0-of-2.csv', 'a[1].0-of-2.csv.partial-7',
                 'a[1].old.0-of-2.csv'):
      folder.create_file(name)
    mine = [shards.results_file(path, shards.Shard(i, 12)) for i in (0, 11)]
    for file in mine:
      folder.create_file(os.path.basename(file))
    self.assertEqual(shards.results_files(path), [*mine, path])
    self.addCleanup(os.chdir, os.getcwd())
    os.chdir(folder.full_path)
    self.assertEqual(
        shards.results_files('a[1].csv'), [*map(os.path.basename, mine), 'a[1].csv']
    )

  def test_results_of_all_shards_are_those_of_the_grid(self):
    self.write()
    path = os.path.join(self.create_tempdir().full_path, 'results.csv')
    for shard in (shards.Shard(i, 5) for i in range(5)):
      found = [(r.cell, r.record) for r in tables.collect(shards.part(self.grid, shard))]
      with open(shards.results_file(path, shard), 'w', encoding='utf-8') as file:
        file.write(records.added(file.name, found, self.grid.metrics))
    known = [records.read(file, self.grid) for file in shards.results_files(path)]
    self.assertEqual(sum(map(len, known)), 12)
    text = documents.to_markdown(self.grid, tables.collect(self.grid))
    for cell in self.grid.cells:
      os.rename(self.path(cell), self.path(cell) + '.gone')
    merged = {name: record for found in known for name, record in found.items()}
    again = tables.collect(self.grid, known=merged)
    self.assertEqual(documents.to_markdown(self.grid, again), text)


if __name__ == '__main__':
  absltest.main()
