"""Tests of which method to use, against numbers computed by hand."""

import dataclasses
import warnings
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from tests.compare import grid_case
from tff_noise.compare import choices
from tff_noise.compare import tables

_METRIC = grid_case.METRIC


class ChoicesTest(grid_case.GridCase):

  def _marked(self, **by_method):
    """The grid, some of whose methods need flags."""
    cells = tuple(
        c._replace(config=dataclasses.replace(c.config, **by_method.get(c.method, {})))
        for c in self.grid.cells
    )
    return self.grid._replace(cells=cells)

  def test_what_a_server_sees_follows_from_flags(self):
    config = self.grid.cells[0].config
    for flags, kind in (
        ({}, choices.SUMS),
        ({'allow_per_client_disclosure': True}, choices.CLIENTS),
        ({'allow_per_client_disclosure': True, 'validation_fraction': 0.1}, choices.DATA),
        ({'public_dataset': 'digits'}, choices.DATA),
    ):
      self.assertEqual(choices.kind(dataclasses.replace(config, **flags)), kind)

  def test_a_method_is_of_the_kind_that_shows_most(self):
    first = self.grid.cells[0]
    config = dataclasses.replace(first.config, allow_per_client_disclosure=True)
    shown = first._replace(config=config)
    grid = self.grid._replace(cells=(shown, *self.grid.cells[1:]))
    self.assertEqual(choices.kinds(grid)[first.method], choices.CLIENTS)

  def test_best_of_a_kind_by_hand(self):
    self.write()
    results = tables.collect(self.grid)
    found = choices.choose(self.grid, results, _METRIC, 'noise_rate=0.2', choices.SUMS)
    # FedAvg 82, FedDPCont 9 more, with a standard error of 1.
    self.assertEqual((found.method, found.alike), ('feddpcont', 0))
    self.assertAlmostEqual(found.mean, 91)
    self.assertAlmostEqual(found.gain.low, 9 - 4.3027, places=4)
    self.assertIsNone(
        choices.choose(self.grid, results, _METRIC, 'noise_rate=0.2', choices.CLIENTS)
    )

  def test_a_method_that_did_not_come_so_far_in_every_seed_is_no_choice(self):
    self.write()
    metric = 'rounds_to_accuracy:82'  # FedAvg has 80 in one seed.
    grid = self.grid._replace(metrics=(metric,))
    with warnings.catch_warnings():
      warnings.simplefilter('error')  # Of what is computed with infinity.
      found = choices.choose(grid, tables.collect(grid), metric, 'noise_rate=0.2', choices.SUMS)
    self.assertEqual((found.method, found.mean), ('feddpcont', 1))
    self.assertEqual(found.gain.n, 0)

  def test_each_kind_has_its_own_best(self):
    self.write()
    results = tables.collect(self.grid)
    grid = self._marked(feddpcont={'allow_per_client_disclosure': True})
    row = choices.table(grid, results, _METRIC).rows[0]
    self.assertStartsWith(row[1], 'fedavg 82.00')
    self.assertStartsWith(row[2], 'feddpcont 91.00, +9.00 [+4.70, +13.30]')
    self.assertEqual(row[3], '–')

  def test_front_by_hand(self):
    self.write()
    results = tables.collect(self.grid)
    means = {p.method: p for p in choices.points(self.grid, results, _METRIC, choices.TRAFFIC)}
    best = max(means.values(), key=lambda p: p.mean)
    self.assertTrue(best.on_front)
    # As many bytes for less, and nothing that it hides.
    for p in means.values():
      beaten = p.mean < best.mean and p.cost >= best.cost
      self.assertEqual(p.on_front, not beaten, p)
    # Who shows less stays, whatever its accuracy.
    grid = self._marked(**{best.method: {'allow_per_client_disclosure': True}})
    again = choices.points(grid, results, _METRIC, choices.TRAFFIC)
    self.assertTrue(all(p.on_front for p in again))
    self.assertEqual(again[-1].method, best.method)

  @parameterized.parameters((3.0, True), (7.0, False))
  def test_less_accuracy_is_on_the_front_for_fewer_bytes_alone(self, megabytes, on_front):
    self.write()
    results = tables.collect(self.grid)
    # FedAvg has 73.5 in the mean of two settings, FedDPCont 77.83.
    cost = choices.Cost('MB', lambda costs: costs)
    with mock.patch.object(tables, 'costs', lambda _, method, setting: {
        'fedavg': megabytes, 'feddpcont': 5.0,
    }[method]):
      found = choices.points(self.grid, results, _METRIC, cost)
    self.assertEqual(
        [(p.method, p.cost, p.on_front) for p in found],
        [('feddpcont', 5, True), ('fedavg', megabytes, on_front)],
    )

  def test_an_easy_seed_alone_puts_nobody_on_the_front(self):
    easy = {0: 90.0, 1: 91.0, 2: 90.0, 3: 60.0, 4: 61.0}
    values = {'fedavg': easy, 'feddpcont': {0: 89.0, 1: 90.0, 2: 88.5}}
    self.write()
    results = tables.collect(self.grid)
    with mock.patch.object(
        tables, 'reached_by_seed', lambda results, metric, method, setting: values[method]
    ), mock.patch.object(tables, 'costs', lambda *_: 5.0):
      found = choices.points(
          self.grid, results, _METRIC, choices.Cost('MB', lambda costs: costs)
      )
    self.assertEqual(
        [(p.method, p.on_front) for p in found], [('fedavg', True), ('feddpcont', False)]
    )

  @parameterized.parameters((0.4, '0.4'), (12.34, '12.3'), (213.4, '213'), (1234.5, '1,234'))
  def test_a_cost_as_text(self, cost, text):
    self.assertEqual(choices.cost_text(cost), text)

  def test_front_by_time(self):
    self.write()
    results = tables.collect(self.grid)
    means = {
        p.method: p.mean for p in choices.points(self.grid, results, _METRIC, choices.TIME)
    }
    # All take half a second a round, and show as little: the best alone is beaten by none.
    table = choices.front_table(self.grid, results, _METRIC, choices.TIME)
    self.assertEqual(table.header[-1], 'ms a round')
    self.assertEqual({row[-1] for row in table.rows}, {'500'})
    best = max(means, key=means.get)
    self.assertEqual([row[0] for row in table.rows if row[0].startswith('**')], [f'**{best}**'])


if __name__ == '__main__':
  absltest.main()
