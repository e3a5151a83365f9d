"""Tests of the tables, against numbers computed by hand."""

import csv
import io
import json
import os

from absl.testing import absltest
from absl.testing import parameterized

from tests.compare import grid_case
from tff_noise import types
from tff_noise.compare import tables

_METRIC = grid_case.METRIC


class StatisticsTest(grid_case.GridCase):

  def test_mean_and_deviation_by_hand(self):
    self.write()
    entry = tables.entries(self.grid, tables.collect(self.grid), _METRIC)[
        'fedavg', 'noise_rate=0.2']
    self.assertAlmostEqual(entry.spread.mean, 82)
    self.assertAlmostEqual(entry.spread.sd, 2)
    self.assertEqual(entry.spread.n, 3)

  def test_paired_difference_by_hand(self):
    self.write()
    entry = tables.entries(self.grid, tables.collect(self.grid), _METRIC)[
        'feddpcont', 'noise_rate=0.2']
    # 10, 7 and 10 points.
    self.assertAlmostEqual(entry.difference.mean, 9)
    self.assertEqual(entry.difference.n, 3)
    # The resampled means are 7 to 10; 1/27 of them are 7, so the 2.5 % point is 7.
    self.assertAlmostEqual(entry.difference.low, 7)
    self.assertAlmostEqual(entry.difference.high, 10)

  def test_other_metric_has_its_own_numbers(self):
    self.write()
    entry = tables.entries(self.grid, tables.collect(self.grid), 'last10_test_accuracy')[
        'fedavg', 'noise_rate=0.2']
    self.assertAlmostEqual(entry.spread.mean, 72)

  def test_best_is_marked_and_what_is_not_told_apart_from_it(self):
    self.write()
    table = tables.entries(self.grid, tables.collect(self.grid), _METRIC)
    self.assertTrue(table['feddpcont', 'noise_rate=0.2'].best)
    self.assertFalse(table['fedavg', 'noise_rate=0.2'].not_distinguishable)
    # 65 against 64.67: differences 4, -4, 1.
    self.assertTrue(table['fedavg', 'noise_rate=0.4'].best)
    self.assertTrue(table['feddpcont', 'noise_rate=0.4'].not_distinguishable)

  def test_one_seed_has_neither_deviation_nor_interval(self):
    difference = tables.paired({0: 3.0}, {0: 1.0})
    self.assertEqual((difference.mean, difference.n), (2, 1))
    self.assertNotEqual(difference.low, difference.low)
    self.assertNotEqual(tables.spread([3.0]).sd, tables.spread([3.0]).sd)

  def test_pairs_are_common_seeds_only(self):
    difference = tables.paired({0: 3.0, 1: 5.0, 2: 100.0}, {0: 1.0, 1: 1.0, 7: 50.0})
    self.assertEqual((difference.mean, difference.n), (3, 2))

  def test_interval_is_the_same_every_time(self):
    first = tables.paired({0: 1.0, 1: 4.0, 2: 2.0}, {0: 0.0, 1: 0.0, 2: 0.0})
    self.assertEqual(first, tables.paired({0: 1.0, 1: 4.0, 2: 2.0}, {0: 0.0, 1: 0.0, 2: 0.0}))


class ProblemsTest(grid_case.GridCase):

  def test_missing_run_is_listed_and_counted(self):
    self.write(('fedavg', 'noise_rate=0.4', 1))
    results = tables.collect(self.grid)
    self.assertEqual(
        tables.problems(results), ['fedavg, noise_rate=0.4, seed 1: not run']
    )
    entry = tables.entries(self.grid, results, _METRIC)['fedavg', 'noise_rate=0.4']
    self.assertEqual((entry.spread.n, round(entry.spread.mean, 6)), (2, 67.5))
    self.assertIn('(n=2)', tables.to_markdown(self.grid, results))

  def test_unfinished_run_is_listed(self):
    self.write()
    os.remove(os.path.join(self.path(self.cell('fedavg', 'noise_rate=0.4', 1)), 'summary.json'))
    (line,) = tables.problems(tables.collect(self.grid))
    self.assertEqual(line, 'fedavg, noise_rate=0.4, seed 1: not finished: 2 of 2 rounds')

  @parameterized.parameters('summary.json', 'metrics.csv', 'privacy.json')
  def test_broken_run_is_listed_with_its_file(self, name):
    self.write()
    broken = os.path.join(self.path(self.cell('feddpcont', 'noise_rate=0.2', 2)), name)
    with open(broken, 'w', encoding='utf-8') as file:
      file.write('{')
    results = tables.collect(self.grid)
    (line,) = tables.problems(results)
    self.assertStartsWith(line, 'feddpcont, noise_rate=0.2, seed 2: broken: ')
    self.assertIn(broken, line)
    entry = tables.entries(self.grid, results, _METRIC)['feddpcont', 'noise_rate=0.2']
    self.assertEqual(entry.spread.n, 2)

  def test_mixed_code_is_refused_and_named(self):
    self.write(code=lambda cell: 'aaa' if cell.seed else 'bbb')
    with self.assertRaisesRegex(types.UsageError, 'different code: 4 by bbb .*8 by aaa'):
      tables.collect(self.grid)
    self.assertLen(tables.collect(self.grid, mixed_code=True), 12)

  def test_run_made_with_other_flags_is_refused(self):
    self.write()
    cell = self.cell('fedavg', 'noise_rate=0.2', 0)
    path = os.path.join(self.path(cell), 'config.json')
    with open(path, 'w', encoding='utf-8') as file:
      json.dump({'flags': {**cell.config.identity(), 'rounds': 99}, 'code': 'c0de'}, file)
    with self.assertRaisesRegex(types.UsageError, f'{self.path(cell)} was made with other flags'):
      tables.collect(self.grid)

  def test_nothing_run_yet(self):
    results = tables.collect(self.grid)
    self.assertLen(tables.problems(results), 12)
    self.assertIn('no run', tables.to_markdown(self.grid, results))


class RenderTest(grid_case.GridCase):

  def test_markdown(self):
    self.write()
    text = tables.to_markdown(self.grid, tables.collect(self.grid))
    self.assertIn('| fedavg | 82.00 ± 2.00 | **65.00 ± 5.00** |', text)
    self.assertIn('| feddpcont | **91.00 ± 1.00** | 64.67 ± 1.15 † |', text)
    self.assertIn('| feddpcont | +9.00 [+7.00, +10.00] (n=3) |', text)
    self.assertIn('| feddpcont | noise_rate=0.2 | 0.500 | 3.5 | 2 | 0.81 | inf |', text)
    self.assertIn('| fedavg | noise_rate=0.2 | 0.500 | 3.5 | 2 | – | inf |', text)
    self.assertNotIn('Without a result', text)

  def test_published_numbers_stand_beside_ours(self):
    self.write()
    grid = self.grid._replace(
        published={('fedavg', 'noise_rate=0.2'): (76.84, 0.91)}, source='The paper'
    )
    text = tables.to_markdown(grid, tables.collect(grid))
    self.assertIn('| fedavg | 82.00 ± 2.00 |', text)
    self.assertIn('| fedavg, paper | 76.84 ± 0.91 | – |', text)
    self.assertIn('Paper: The paper. Ours: scale "command line": --rounds=2.', text)

  def test_not_available_is_shown_as_such(self):
    self.write()
    cells = tuple(
        c._replace(config=None, lacking='method x') if c.method == 'feddpcont' else c
        for c in self.grid.cells
    )
    grid = self.grid._replace(cells=cells)
    text = tables.to_markdown(grid, tables.collect(grid))
    self.assertNotIn('| feddpcont |', text)
    self.assertIn('- feddpcont, 2 settings: not available: method x', text)

  def test_csv_has_the_same_numbers(self):
    self.write()
    rows = list(csv.DictReader(io.StringIO(
        tables.to_csv(self.grid, tables.collect(self.grid)))))
    self.assertLen(rows, 2 * 2 * 2)
    (row,) = [r for r in rows if (r['metric'], r['method'], r['setting']) ==
              (_METRIC, 'feddpcont', 'noise_rate=0.2')]
    self.assertEqual(
        (row['n'], row['mean'], row['sd'], row['difference'], row['difference_low'], row['best']),
        ('3', '91', '1', '9', '7', '1'),
    )
    self.assertEqual((row['bytes_up'], row['label_epsilon']), ('3500000', '0.81'))

  def test_latex_is_escaped(self):
    self.write()
    text = tables.to_latex(self.grid, tables.collect(self.grid))
    self.assertIn(r'fedavg & 82.00 $\pm$ 2.00 & \textbf{65.00 $\pm$ 5.00} \\', text)
    self.assertIn(r'noise\_rate=0.2', text)
    self.assertNotRegex(text, r'(?m)^[^%\n]*(?<!\\)_')


if __name__ == '__main__':
  absltest.main()
