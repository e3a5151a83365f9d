"""Tests of the map of noises and federations, against numbers computed by hand."""

import dataclasses

from absl.testing import absltest

from tests.compare import grid_case
from tff_noise import types
from tff_noise.compare import decision_map
from tff_noise.compare import tables

_METRIC = grid_case.METRIC
_NAMES = {'noise_rate=0.2': 'IID, symmetric 0.2', 'noise_rate=0.4': 'open-set, rho 0.4, tau 0.5'}


class DecisionMapTest(grid_case.GridCase):

  def setUp(self):
    super().setUp()
    cells = tuple(c._replace(setting=_NAMES[c.setting]) for c in self.grid.cells)
    self.named = self.grid._replace(settings=tuple(_NAMES.values()), cells=cells)

  def _results(self, *without):
    self.write(*without)
    return [
        r._replace(cell=r.cell._replace(setting=_NAMES[r.cell.setting]))
        for r in tables.collect(self.grid)
    ]

  def test_places_by_hand(self):
    first, second = decision_map.places(self.named, self._results(), _METRIC)
    self.assertEqual(
        (first.federation, first.noise, first.method), ('IID', 'symmetric 0.2', 'feddpcont')
    )
    # FedAvg 82, FedDPCont 9 more, with a standard error of 1.
    self.assertAlmostEqual(first.mean, 91)
    self.assertAlmostEqual(first.gain.low, 9 - 4.3027, places=4)
    self.assertEqual((first.loss, first.gain_to_loss, first.alike), ('', None, ()))
    # 70, 60, 65 for 66, 64, 64: a third of a point, which tells nothing.
    self.assertEqual((second.federation, second.noise), ('open-set', 'rho 0.4, tau 0.5'))
    self.assertEqual((second.method, second.alike), ('fedavg', ('feddpcont',)))

  def test_table_says_what_it_is_better_than(self):
    results = self._results()
    cells = tuple(
        c._replace(config=dataclasses.replace(c.config, method='gce')) if c.method == 'fedavg'
        else c for c in self.named.cells
    )
    grid = self.named._replace(cells=cells, baseline='feddpcont')
    table = decision_map.table(grid, results, _METRIC)
    self.assertEqual(table.header, ('noise', 'IID', 'open-set'))
    self.assertEqual(table.rows, (
        ('symmetric 0.2',
         '**feddpcont** 91.0; +9.0 [+4.7, +13.3] to fedavg', '–'),
        ('rho 0.4, tau 0.5', '–',
         '**fedavg** 65.0; +0.3 [-9.7, +10.4] to feddpcont; or one of 1 more'),
    ))

  def test_a_baseline_that_is_a_robust_loss_is_named_once(self):
    results = self._results()
    cells = tuple(
        c._replace(config=dataclasses.replace(c.config, method='gce')) if c.method == 'fedavg'
        else c for c in self.named.cells
    )
    first, _ = decision_map.places(self.named._replace(cells=cells), results, _METRIC)
    self.assertEqual(first.loss, '')

  def test_no_setting_that_is_whole(self):
    results = self._results(*(('fedavg', s, n) for s in _NAMES for n in range(3)))
    with self.assertRaisesRegex(types.UsageError, 'in no setting has each method a result'):
      decision_map.table(self.named, results, _METRIC)

  def test_a_setting_in_which_a_method_has_no_result_is_not_there(self):
    results = self._results(*(('fedavg', 'noise_rate=0.4', seed) for seed in range(3)))
    (place,) = decision_map.places(self.named, results, _METRIC)
    self.assertEqual(place.federation, 'IID')
    self.assertEqual(
        decision_map.lines(place, self.named), ['feddpcont 91.0', '+9.0 to fedavg']
    )

  def test_a_baseline_that_shares_no_seed_with_the_best(self):
    results = self._results(
        *(('fedavg', 'noise_rate=0.2', seed) for seed in (0, 1)), ('feddpcont', 'noise_rate=0.2', 2)
    )
    table = decision_map.table(self.named, results, _METRIC)
    self.assertEqual(table.rows[0][1].split('; ')[1], '– to fedavg')
    first, _ = decision_map.places(self.named, results, _METRIC)
    self.assertEqual(decision_map.lines(first, self.named)[1], 'no seed of fedavg')


if __name__ == '__main__':
  absltest.main()
