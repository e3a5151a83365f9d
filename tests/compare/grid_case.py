"""A grid of two methods, two settings and three seeds, with runs written by hand."""

import json
import os

from absl.testing import parameterized

from tff_noise.compare import grid as grid_lib

METRIC = 'best_test_accuracy'
# Fractions by (method, setting, seed).
ACCURACY = {
    ('fedavg', 'noise_rate=0.2', 0): 0.80,
    ('fedavg', 'noise_rate=0.2', 1): 0.84,
    ('fedavg', 'noise_rate=0.2', 2): 0.82,
    ('feddpcont', 'noise_rate=0.2', 0): 0.90,
    ('feddpcont', 'noise_rate=0.2', 1): 0.91,
    ('feddpcont', 'noise_rate=0.2', 2): 0.92,
    ('fedavg', 'noise_rate=0.4', 0): 0.70,
    ('fedavg', 'noise_rate=0.4', 1): 0.60,
    ('fedavg', 'noise_rate=0.4', 2): 0.65,
    ('feddpcont', 'noise_rate=0.4', 0): 0.66,
    ('feddpcont', 'noise_rate=0.4', 1): 0.64,
    ('feddpcont', 'noise_rate=0.4', 2): 0.64,
}


def write_run(path, config, accuracy, *, code='c0de', rounds=2):
  """Writes a finished run directory with the given best accuracy."""
  os.makedirs(path)
  unit = 'the label of one example'
  common = {'recipient': 'server', 'mechanism': 'm', 'accounting': 'a', 'unit': unit, 'delta': 0.0,
            'central_epsilon': None}
  label = {
      **common, 'name': 'label histogram', 'aggregation': 'DP, secure sum', 'epsilon': 0.81,
      'status': 'proved', 'times': 1,
  }
  updates = {
      **common, 'name': 'update', 'aggregation': 'sum', 'epsilon': 'inf', 'status': 'none',
      'times': rounds,
  }
  releases, up = [updates], {'bytes_up': 3_500_000}
  if config.method == 'feddpcont':
    # As runs said it when what was asked besides rounds was counted by itself.
    releases, up = [label, updates], {'bytes_up': 3_000_000, 'extra_bytes_up': 500_000}
  for name, content in (
      ('config.json', {'flags': config.identity(), 'code': code}),
      ('summary.json', {
          'best_test_accuracy': accuracy, 'best_round': 1, 'last10_test_accuracy': accuracy - 0.1,
          'final_test_accuracy': accuracy - 0.2, 'rounds': rounds, 'seconds_per_round': 0.5,
          'seconds': 1.0, **up, 'bytes_down': 2_000_000,
      }),
      ('privacy.json', {
          'releases': releases,
          'totals': [
              {'unit': u, 'epsilon': 'inf', 'delta': 0.0, 'status': 'none'}
              for u in (unit, 'one example', 'one client')
          ],
          'statement': 's',
      }),
      ('uplink.json', []),
  ):
    with open(os.path.join(path, name), 'w', encoding='utf-8') as file:
      json.dump(content, file)
  with open(os.path.join(path, 'metrics.csv'), 'w', encoding='utf-8') as file:
    file.write('round,stage,test_accuracy\n')
    file.writelines(f'{r},train,{accuracy}\n' for r in range(1, rounds + 1))
  with open(os.path.join(path, 'timing.csv'), 'w', encoding='utf-8') as file:
    file.write('round,seconds\n')
    file.writelines(f'{r},0.5\n' for r in range(1, rounds + 1))


class GridCase(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.root = self.create_tempdir().full_path
    self.grid = grid_lib.from_flags(
        ['fedavg', 'feddpcont'], ['noise_rate=0.2,0.4'], [0, 1, 2], ['--rounds=2'], self.root,
        metric=METRIC, baseline=None,
    )

  def path(self, cell):
    return os.path.join(self.root, cell.config.name())

  def write(self, *without, code=lambda cell: 'c0de'):
    for cell in self.grid.cells:
      key = (cell.method, cell.setting, cell.seed)
      if key not in without:
        write_run(self.path(cell), cell.config, ACCURACY[key], code=code(cell))

  def cell(self, method, setting, seed):
    (found,) = [c for c in self.grid.cells if (c.method, c.setting, c.seed) ==
                (method, setting, seed)]
    return found
