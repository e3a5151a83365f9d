"""Tests of what validation would choose, against numbers computed by hand."""

import json
import os

from absl.testing import absltest

from tests.compare import grid_case
from tff_noise.compare import by_validation
from tff_noise.compare import documents
from tff_noise.compare import grid as grid_lib
from tff_noise.compare import tables

_METRIC = grid_case.METRIC
# By method and setting, of each seed.
_VALIDATION = {
    ('fedavg', 'noise_rate=0.2'): (0.5, 0.6, 0.5),
    ('feddpcont', 'noise_rate=0.2'): (0.4, 0.7, 0.6),
    ('fedavg', 'noise_rate=0.4'): (0.3, 0.3, 0.3),
    ('feddpcont', 'noise_rate=0.4'): (0.2, 0.2, 0.4),
}


class ByValidationTest(grid_case.GridCase):

  def _results(self, validation=None):
    self.write()
    for (method, setting), values in (validation or _VALIDATION).items():
      for seed, value in enumerate(values):
        path = os.path.join(self.path(self.cell(method, setting, seed)), 'summary.json')
        with open(path, encoding='utf-8') as file:
          summary = json.load(file)
        summary['last10_validation_accuracy'] = value
        summary['validation_chosen_test_accuracy'] = summary['best_test_accuracy'] - 0.05 * seed
        with open(path, 'w', encoding='utf-8') as file:
          json.dump(summary, file)
    return tables.collect(self.grid)

  def test_methods_by_hand(self):
    found = by_validation.methods_table(self.grid, self._results(), _METRIC)
    # FedAvg's 80, then FedDPCont's 91 and 92, where always FedDPCont has 91.
    self.assertEqual(
        found.rows[0],
        ('noise_rate=0.2', 'feddpcont (2), fedavg (1)', '87.67', 'feddpcont 91.00',
         '-3.33 [-17.68, +11.01]'),
    )
    # FedAvg's 70 and 60, then FedDPCont's 64; always FedAvg has 65.
    self.assertEqual(
        found.rows[1],
        ('noise_rate=0.4', 'fedavg (2), feddpcont (1)', '64.67', 'fedavg 65.00',
         '-0.33 [-1.77, +1.10]'),
    )
    self.assertEqual([row[1:] for row in found.rows[2:]], [
        ('always feddpcont', '', '', '-0.17'),
        ('what validation chooses', '', '', '-1.83'),
        ('always fedavg', '', '', '-4.50'),
    ])

  def test_a_setting_in_which_one_method_alone_validates_has_no_choice(self):
    some = {k: v for k, v in _VALIDATION.items() if k != ('fedavg', 'noise_rate=0.4')}
    found = by_validation.methods_table(self.grid, self._results(some), _METRIC)
    self.assertEqual(found.rows[1], ('noise_rate=0.4', '–', '–', '–', '–'))
    self.assertEqual(
        found.notes[-1], 'Of too few runs that validate: noise_rate=0.4 without fedavg.'
    )
    self.assertEqual(found.rows[2][0], 'of that setting')

  def test_means_are_of_settings_in_which_all_that_validate_do(self):
    self.grid = grid_lib.from_flags(
        ['fedavg', 'feddpcont', 'gce'], ['noise_rate=0.2,0.4'], [0, 1, 2], ['--rounds=2'],
        self.root, metric=_METRIC, baseline=None,
    )
    for cell in self.grid.cells:
      if (cell.method, cell.setting) != ('gce', 'noise_rate=0.4'):
        key = ('fedavg' if cell.method == 'gce' else cell.method, cell.setting, cell.seed)
        grid_case.write_run(self.path(cell), cell.config, grid_case.ACCURACY[key])
    self.write = lambda: None  # They are.
    results = self._results({**_VALIDATION, ('gce', 'noise_rate=0.2'): (0.1, 0.1, 0.1)})
    found = by_validation.methods_table(self.grid, results, _METRIC)
    self.assertEqual(
        [row[:2] for row in found.rows[2:]],
        [('of that setting', name) for name in (
            'always feddpcont', 'what validation chooses', 'always fedavg', 'always gce')],
    )

  def test_only_seeds_that_all_have_count(self):
    some = {**_VALIDATION, ('fedavg', 'noise_rate=0.2'): (0.5, 0.6)}
    found = by_validation.methods_table(self.grid, self._results(some), _METRIC)
    self.assertEqual(
        found.rows[0][1:4], ('fedavg (1), feddpcont (1)', '85.50', 'feddpcont 90.50')
    )

  def test_rounds_by_hand(self):
    found = by_validation.rounds_table(self.grid, self._results(), 'last10_test_accuracy')
    # The last 10 are 10 below the best, the chosen round 0, 5 and 10.
    for row in found.rows:
      self.assertEqual(row[1:], ('+5.00 [-7.42, +17.42]',) * 2)

  def test_a_comparison_has_them_where_runs_validate_and_only_there(self):
    title = 'of the method that validation chooses'
    text = documents.to_markdown(self.grid, self._results())
    # By the last 10, which nobody chose on the test set, though the grid is of the best.
    self.assertIn(f'mean of the last 10 evaluations, percent: {title}', text)
    self.assertIn('| 77.67 | feddpcont 81.00 | -3.33 [-17.68, +11.01] |', text)

  def test_a_comparison_of_runs_that_do_not_validate_is_silent(self):
    self.write()
    self.assertFalse(by_validation.has(tables.collect(self.grid)))
    self.assertNotIn('chooses', documents.to_markdown(self.grid, tables.collect(self.grid)))


if __name__ == '__main__':
  absltest.main()
