"""Tests of the tables, against numbers computed by hand."""

import csv
import io
import json
import os

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tests.compare import grid_case
from tff_noise import types
from tff_noise.compare import documents
from tff_noise.compare import grid as grid_lib
from tff_noise.compare import tables

_METRIC = grid_case.METRIC


class EntriesTest(grid_case.GridCase):

  def _entries(self, metric=_METRIC):
    grid = self.grid._replace(metrics=(metric,))
    return tables.entries(grid, tables.collect(grid), metric)

  def test_mean_and_deviation_by_hand(self):
    self.write()
    entry = self._entries()['fedavg', 'noise_rate=0.2']
    self.assertAlmostEqual(entry.spread.mean, 82)
    self.assertAlmostEqual(entry.spread.sd, 2)
    self.assertEqual((entry.spread.n, entry.runs, entry.unreached), (3, 3, 0))

  def test_paired_difference_by_hand(self):
    self.write()
    difference = self._entries()['feddpcont', 'noise_rate=0.2'].difference
    # 10, 7 and 10 points: mean 9, standard error 1, t of two degrees of freedom 4.3027.
    self.assertAlmostEqual(difference.mean, 9)
    self.assertEqual(difference.n, 3)
    self.assertAlmostEqual(difference.low, 9 - 4.3027, places=4)
    self.assertAlmostEqual(difference.high, 9 + 4.3027, places=4)

  def test_other_metric_has_its_own_numbers(self):
    self.write()
    entry = self._entries('last10_test_accuracy')['fedavg', 'noise_rate=0.2']
    self.assertAlmostEqual(entry.spread.mean, 72)

  def test_best_is_marked_and_what_is_not_told_apart_from_it(self):
    self.write()
    table = self._entries()
    self.assertTrue(table['feddpcont', 'noise_rate=0.2'].best)
    self.assertIs(table['fedavg', 'noise_rate=0.2'].may_be_best, False)
    # 65 against 64.67: differences 4, -4, 1.
    self.assertTrue(table['fedavg', 'noise_rate=0.4'].best)
    self.assertIs(table['feddpcont', 'noise_rate=0.4'].may_be_best, True)

  def test_with_two_seeds_nothing_is_decided(self):
    self.write(('fedavg', 'noise_rate=0.4', 1))
    table = self._entries()
    self.assertIsNone(table['fedavg', 'noise_rate=0.4'].may_be_best)
    self.assertIsNone(table['feddpcont', 'noise_rate=0.4'].may_be_best)
    text = documents.to_markdown(self.grid, tables.collect(self.grid))
    self.assertIn('| feddpcont | +9.00 [+4.70, +13.30] (n=3) | -2.50, not decided (n=2) |', text)
    self.assertIn(
        'Not decided, without marks: it takes 3 seeds of two methods (noise_rate=0.4).', text
    )

  def test_what_is_not_decided_in_a_column_that_is(self):
    grid = grid_lib.from_flags(
        ['fedavg', 'feddpcont', 'fedprox'], ['noise_rate=0.4'], [0, 1, 2], ['--rounds=2'],
        self.root, metric=_METRIC, baseline=None,
    )
    for cell in grid.cells:
      if cell.method != 'fedprox' or cell.seed == 0:
        accuracy = 0.9 if cell.method == 'fedprox' else grid_case.ACCURACY[
            cell.method, 'noise_rate=0.4', cell.seed
        ]
        grid_case.write_run(cell.config.path(), cell.config, accuracy)
    text = documents.to_markdown(grid, tables.collect(grid))
    # One run is not the best, however high.
    self.assertIn('| fedavg | **65.00 ± 5.00** |', text)
    self.assertIn('| feddpcont | 64.67 ± 1.15 † |', text)
    self.assertIn('| fedprox | 90.00 (n=1) ? |', text)

  def test_one_seed_decides_nothing(self):
    self.write(*((m, s, k) for m, s, k in grid_case.ACCURACY if k))
    text = documents.to_markdown(self.grid, tables.collect(self.grid))
    self.assertNotIn('†', text)
    self.assertIn('Not decided, without marks: it takes 3 seeds of two methods.', text)

  def test_rounds_to_an_accuracy(self):
    self.write()
    # 80, 84 and 82: only two come so far; the others are there in the first round.
    table = self._entries('rounds_to_accuracy:82')
    entry = table['fedavg', 'noise_rate=0.2']
    self.assertEqual((entry.spread.n, entry.runs, entry.unreached), (0, 3, 1))
    self.assertIsNone(entry.may_be_best)
    entry = table['feddpcont', 'noise_rate=0.2']
    self.assertEqual((entry.spread.mean, entry.unreached, entry.best), (1, 0, True))
    grid = self.grid._replace(metrics=('rounds_to_accuracy:82',))
    for method, count in (('fedavg', 0), ('feddpcont', 3)):
      found = tables.reached_by_seed(
          tables.collect(grid), grid.metric, method, 'noise_rate=0.2'
      )
      self.assertLen(found, count)
    text = documents.to_markdown(grid, tables.collect(grid))
    self.assertIn('## Rounds to a test accuracy of 82 percent\n', text)
    self.assertIn('| fedavg | not reached in 1 of 3 | not reached in 3 of 3 |', text)
    self.assertIn('Bold: the lowest mean', text)

  def test_low_traffic_is_the_best(self):
    self.write()
    entry = self._entries('megabytes')['fedavg', 'noise_rate=0.2']
    self.assertEqual((entry.spread.mean, entry.best, entry.may_be_best), (5.5, True, True))

  def test_metric_that_a_method_does_not_have(self):
    self.write()
    grid = self.grid._replace(metrics=('noisy_client_f1',))
    text = documents.to_markdown(grid, tables.collect(grid))
    self.assertIn('| fedavg | – | – |', text)

  def test_share_of_noisy_clients_found(self):
    self.write()
    for seed, precision in enumerate((0.9, None, 0.8)):
      path = os.path.join(
          self.path(self.cell('fedavg', 'noise_rate=0.2', seed)), 'summary.json'
      )
      with open(path, encoding='utf-8') as file:
        summary = {**json.load(file), 'noisy_client_precision': precision}
      with open(path, 'w', encoding='utf-8') as file:
        json.dump(summary, file)
    grid = self.grid._replace(metrics=('noisy_client_precision',))
    text = documents.to_markdown(grid, tables.collect(grid))
    # In one run nobody was taken for noisy.
    self.assertIn('| fedavg | **85.00 ± 7.07 (n=2)** | – |', text)


class ProblemsTest(grid_case.GridCase):

  def test_missing_run_is_listed_and_counted(self):
    self.write(('fedavg', 'noise_rate=0.4', 1))
    results = tables.collect(self.grid)
    self.assertEqual(
        tables.problems(results), ['fedavg, noise_rate=0.4, seed 1: not run']
    )
    entry = tables.entries(self.grid, results, _METRIC)['fedavg', 'noise_rate=0.4']
    self.assertEqual((entry.spread.n, round(entry.spread.mean, 6)), (2, 67.5))
    self.assertIn('(n=2)', documents.to_markdown(self.grid, results))

  def test_unfinished_run_is_listed(self):
    self.write()
    os.remove(os.path.join(self.path(self.cell('fedavg', 'noise_rate=0.4', 1)), 'summary.json'))
    (line,) = tables.problems(tables.collect(self.grid))
    self.assertEqual(line, 'fedavg, noise_rate=0.4, seed 1: not finished: 2 of 2 rounds')

  def test_what_another_machine_finished_counts(self):
    self.write()
    cell = self.cell('fedavg', 'noise_rate=0.4', 1)
    known = {cell.config.name(): tables.collect(self.grid)[self.grid.cells.index(cell)].record}
    for name in ('summary.json', 'config.json'):
      os.remove(os.path.join(self.path(cell), name))
      results = tables.collect(self.grid, known=known)
      self.assertEmpty(tables.problems(results))
      self.assertEqual(results[self.grid.cells.index(cell)].record, known[cell.config.name()])

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
    self.assertIn('no run', documents.to_markdown(self.grid, results))


class RenderTest(grid_case.GridCase):

  def test_markdown(self):
    self.write()
    text = documents.to_markdown(self.grid, tables.collect(self.grid))
    self.assertIn('| fedavg | 82.00 ± 2.00 | **65.00 ± 5.00** |', text)
    self.assertIn('| feddpcont | **91.00 ± 1.00** | 64.67 ± 1.15 † |', text)
    self.assertIn('| feddpcont | +9.00 [+4.70, +13.30] (n=3) |', text)
    self.assertIn('| feddpcont | noise_rate=0.2 | 0.500 | 3.5 | 2 | 0.81 | inf |', text)
    self.assertIn('| fedavg | noise_rate=0.2 | 0.500 | 3.5 | 2 | – | inf |', text)
    self.assertNotIn('Without a result', text)

  def test_published_numbers_stand_beside_ours(self):
    self.write()
    grid = self.grid._replace(
        published={('fedavg', 'noise_rate=0.2'): (76.84, 0.91)}, source='The paper'
    )
    text = documents.to_markdown(grid, tables.collect(grid))
    self.assertIn('| fedavg | 82.00 ± 2.00 |', text)
    self.assertIn('| fedavg, paper | 76.84 ± 0.91 | – |', text)
    self.assertIn('Paper: The paper. Ours: scale "command line": --rounds=2.', text)

  def test_a_few_equal_differences_are_said_to_be(self):
    self.write()
    results = []
    for result in tables.collect(self.grid):
      value = 80.5 if result.cell.method == 'feddpcont' else 80.0
      results.append(result._replace(record=result.record._replace(values={_METRIC: value})))
    table = tables.difference_table(self.grid, results, _METRIC)
    self.assertEqual(table.rows, (('feddpcont', *['+0.50, the same in each (n=3)'] * 2),))

  def test_csv_has_the_same_numbers(self):
    self.write()
    rows = list(csv.DictReader(io.StringIO(
        tables.to_csv(self.grid, tables.collect(self.grid)))))
    self.assertLen(rows, 2 * 2 * 2)
    (row,) = [r for r in rows if (r['metric'], r['method'], r['setting']) ==
              (_METRIC, 'feddpcont', 'noise_rate=0.2')]
    self.assertEqual(
        (row['n'], row['mean'], row['sd'], row['difference'], row['difference_low'], row['best']),
        ('3', '91', '1', '9', '4.69735', '1'),
    )
    self.assertEqual((row['bytes_up'], row['label_epsilon']), ('3500000', '0.81'))

  def test_traffic_is_the_mean_over_seeds(self):
    self.write()
    results = [
        r._replace(record=r.record._replace(up=100 + r.cell.seed, down=7))
        for r in tables.collect(self.grid)
    ]
    seeds = [r.cell.seed for r in results if r.cell.setting == 'noise_rate=0.2']
    found = tables.costs(results, 'fedavg', 'noise_rate=0.2')
    self.assertEqual((found.up, found.down), (100 + np.mean(seeds), 7))

  def test_the_runs_epsilon_is_the_largest_of_the_seeds_from_above_with_its_delta(self):
    self.write()
    of_seeds = {0: '4.123 at delta 1e-05', 1: '0.8099999999999999', 2: '4.1 at delta 1e-05'}
    results = [
        r._replace(record=r.record._replace(run_epsilon=of_seeds[r.cell.seed]))
        for r in tables.collect(self.grid)
    ]
    shown = {row[-1] for row in tables.cost_table(self.grid, results).rows}
    self.assertEqual(shown, {'4.123 at delta 1e-05'})
    alone = [r for r in results if r.cell.seed == 1]
    shown = {row[-1] for row in tables.cost_table(self.grid, alone).rows}
    self.assertEqual(shown, {'0.81'})

  def test_latex_is_escaped(self):
    self.write()
    text = documents.to_latex(self.grid, tables.collect(self.grid))
    self.assertIn(r'fedavg & 82.00 $\pm$ 2.00 & \textbf{65.00 $\pm$ 5.00} \\', text)
    self.assertIn(r'noise\_rate=0.2', text)
    self.assertNotRegex(text, r'(?m)^[^%\n]*(?<!\\)_')


  def test_whatever_a_setting_is_called_it_is_latex(self):
    self.assertEqual(
        documents._latex('[ours]') + documents._latex('*mine'), '{}[ours]{}*mine'
    )
    self.assertEqual(
        documents._latex('a|b & c_% $x^2 {y} ~ <z> \\'),
        r'a$|$b \& c\_\% \$x\^{}2 \{y\} \~{} $<$z$>$ \textbackslash{}',
    )


if __name__ == '__main__':
  absltest.main()
