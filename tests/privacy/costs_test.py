"""Tests of what releases cost."""

import json
import math

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tests.privacy import uplinks
from tff_noise.privacy import amplification
from tff_noise.privacy import costs as costs_lib
from tff_noise.privacy import ledger
from tff_noise.privacy import protection


class TotalsTest(parameterized.TestCase):

  def _entries(self, *fields, cohorts=('a',)):
    return [
        ledger.Entry(i, 'train', f, 10, cohorts[i % len(cohorts)]) for i, f in enumerate(fields)
    ]

  def test_one_unprotected_value_leaves_no_label_guarantee(self):
    costs = costs_lib.totals(self._entries((0,), (1, 2)), uplinks.DECLARED)
    self.assertEqual({c.epsilon for c in costs.values()}, {math.inf})

  def test_what_was_declared_and_never_sent_costs_nothing(self):
    costs = costs_lib.totals(self._entries((0,), (2,)), uplinks.DECLARED)
    self.assertAlmostEqual(costs[protection.Unit.LABEL].epsilon, 0.81)
    self.assertEqual(costs[protection.Unit.CLIENT].epsilon, math.inf)

  def test_rounds_of_noise_compose_and_values_of_one_round_do_not(self):
    declared = uplinks.declare(update=uplinks.NOISE, variate=uplinks.NOISE)
    costs = costs_lib.totals(self._entries((0, 1), (0, 1), (0, 1)), declared)
    expected = protection.cost(uplinks.NOISE, 3, protection.Unit.CLIENT, costs_lib.DELTA).epsilon
    self.assertEqual(costs[protection.Unit.CLIENT].epsilon, expected)

  def test_turns_are_counted_from_the_first_round_on(self):
    shield = uplinks.NOISE._replace(sampling=protection.CYCLIC, mechanism=protection.TREE)
    declared = uplinks.declare(labels=uplinks.REPORTS, update=shield, size=shield)
    for rounds, held in (((1, 2, 3), True), ((1,), True), ((1, 3), False), ((2, 3), False)):
      book = ledger.Ledger(uplinks.NAMES, declared)
      for round_num in rounds:
        book.record(round_num, 'train', ['size', 'update'], np.arange(10))
      client = protection.Unit.CLIENT
      expected = protection.cost(shield if held else None, len(rounds), client, 1e-5)
      self.assertEqual(costs_lib.totals(book.entries, declared)[client], expected)
      for release in costs_lib.releases(book.entries, declared):
        self.assertEqual((release.cost.epsilon, release.times), (expected.epsilon, len(rounds)))

  def test_poisson_samples_say_that_a_client_is_added_or_removed(self):
    shield = uplinks.NOISE._replace(sampling=protection.POISSON)
    declared = uplinks.declare(update=shield)
    content = costs_lib.to_json(self._entries((0,), (0,)), declared)
    label, example, client = content['totals']
    self.assertEqual(label['epsilon'], example['epsilon'])
    self.assertGreater(label['epsilon'], client['epsilon'])
    self.assertRegex(
        content['statement'], 'costs one client, added or removed, epsilon [0-9.]+ at delta 1e-05'
    )
    self.assertRegex(content['statement'], 'costs one example epsilon [0-9.]+ at')
    self.assertIn('adding or removing one client', content['releases'][0]['accounting'])
    fixed = costs_lib.to_json(self._entries((0,)), uplinks.declare(update=uplinks.NOISE))
    self.assertNotIn('removed', json.dumps(fixed))

  def test_round_without_clients_costs_what_any_round_does(self):
    declared = uplinks.declare(update=uplinks.NOISE._replace(sampling=protection.POISSON))
    entries = self._entries((0,), (0,), (0,))
    empty = [entries[0], entries[1]._replace(clients=0), entries[2]]
    self.assertEqual(costs_lib.totals(entries, declared), costs_lib.totals(empty, declared))

  @parameterized.parameters((99_999, 0), (100_000, 1), (1_000_000, 1))
  def test_delta_of_one_over_the_clients_is_told(self, clients, warnings):
    entries, declared = self._entries((0,)), uplinks.declare(update=uplinks.NOISE)
    units = {protection.Unit.CLIENT: clients, protection.Unit.EXAMPLE: 50}
    said = costs_lib.to_json(entries, declared, units=units)['statement']
    self.assertEqual(said.count('WARNING'), warnings)
    if warnings:
      self.assertIn(f'delta 1e-05 is not below one over the number of clients, {clients}:', said)
    # At another delta, and where there is none.
    self.assertNotIn('WARNING', costs_lib.to_json(entries, declared, 1e-7, units)['statement'])
    reports = costs_lib.to_json(entries, uplinks.declare(labels=uplinks.REPORTS), units=units)
    self.assertNotIn('WARNING', reports['statement'])

  def test_each_value_says_how_often_it_was_sent(self):
    labels, update, size = costs_lib.releases(self._entries((0,), (1, 2), (1, 2)), uplinks.DECLARED)
    self.assertEqual((labels.times, update.times, size.times), (1, 2, 2))
    self.assertEqual((update.cost.epsilon, size.cost.epsilon), (math.inf, 0))

  def test_a_sum_over_a_fixed_cohort_has_a_central_bound(self):
    (labels,) = costs_lib.releases(self._entries((0,), (0,)), uplinks.DECLARED)
    self.assertAlmostEqual(labels.central.upper, 0.0496, places=3)
    self.assertLess(labels.central.lower, labels.central.upper)

  def test_reports_by_several_codes_have_no_bound(self):
    (labels,) = costs_lib.releases(self._entries((0,), (0,)), uplinks.DECLARED, codes=2)
    self.assertEqual(labels.cost.epsilon, math.inf)
    self.assertIsNone(labels.central)

  def test_two_cohorts_have_none(self):
    (labels,) = costs_lib.releases(self._entries((0,), (0,), cohorts=('a', 'b')), uplinks.DECLARED)
    self.assertIsNone(labels.central)


class JsonTest(parameterized.TestCase):

  def _content(self, *fields, declared=uplinks.DECLARED, delta=costs_lib.DELTA, codes=1):
    entries = [ledger.Entry(i, 'train', f, 10, 'a') for i, f in enumerate(fields)]
    # `allow_nan=False` refuses Infinity, which other languages' parsers cannot read.
    content = costs_lib.to_json(entries, declared, delta, codes=codes)
    return json.loads(json.dumps(content, allow_nan=False))

  def test_infinity_is_text(self):
    content = self._content((0,), (1, 2))
    epsilons = [r['epsilon'] for r in content['releases']]
    self.assertAlmostEqual(epsilons[0], 0.81)
    self.assertEqual(epsilons[1:], ['inf', 0])
    self.assertEqual([r['status'] for r in content['releases']], ['proved', 'none', 'proved'])
    self.assertEqual([t['epsilon'] for t in content['totals']], ['inf'] * 3)
    self.assertEqual([t['unit'] for t in content['totals']], [u.value for u in protection.Unit])

  @parameterized.parameters(1e-3, 1e-7)
  def test_says_at_which_delta_bounds_of_a_sum_hold_and_of_what(self, delta):
    labels, update = self._content((0,), (1,), delta=delta)['releases']
    bounds = labels['central_epsilon']
    expected = amplification.central_epsilon(uplinks.REPORTS.mechanism, 1000, delta)
    self.assertEqual({name: bounds[name] for name in expected._fields}, expected._asdict())
    self.assertEqual(bounds['delta'], delta)
    self.assertIn('of this sum alone, not of the run', bounds['holds'])
    self.assertIsNone(update['central_epsilon'])

  @parameterized.parameters(({},), ({'protection': {'kind': 'magic'}},))
  def test_declaration_without_protections_is_refused(self, changes):
    declared = [{'name': 'labels', 'disclosure': 'sum', **changes}]
    with self.assertRaisesRegex(ledger.LedgerError, 'does not say what protects'):
      self._content(declared=declared)

  def test_says_that_updates_and_simulation_protect_nobody(self):
    statement = self._content((0,), (1, 2))['statement']
    self.assertIn('Theorem 1 of FedDPCont covers the label sharing only', statement)
    self.assertIn('no finite label epsilon', statement)
    self.assertIn('protects nobody', statement)
    self.assertNotIn('Theorem', self._content((1, 2))['statement'])

  def test_says_why_labels_that_are_reported_have_none(self):
    private = uplinks.declare(update=uplinks.REPORTS, size=uplinks.REPORTS)
    self.assertIn('epsilon 0.81.', self._content((0, 1), declared=private)['statement'])
    statement = self._content((0, 1), declared=private, codes=2)['statement']
    self.assertIn('Labels were reported to several codes, which may flip otherwise', statement)
    shown = uplinks.declare(update=uplinks.REPORTS, errors=None)
    statement = self._content((0, 1), declared=shown)['statement']
    self.assertIn('Nothing protects labels in: errors; so the run', statement)
    for text in ('true local labels', 'Theorem 1'):
      self.assertNotIn(text, statement)

  def test_noise_protects_labels_that_several_codes_had_reports_of(self):
    declared = uplinks.declare(update=uplinks.NOISE._replace(reports=uplinks.REPORTS))
    label, _, client = self._content((0,), declared=declared, codes=2)['totals']
    self.assertEqual(label['epsilon'], client['epsilon'])
    label, _, client = self._content((0,), declared=declared)['totals']
    self.assertAlmostEqual(label['epsilon'], 0.81)
    self.assertGreater(client['epsilon'], 1)

  def test_says_for_which_units_an_epsilon_holds(self):
    statement = self._content((0,), declared=uplinks.declare(labels=uplinks.REPORTS))['statement']
    self.assertIn('costs the label of one example epsilon 0.81.', statement)
    self.assertNotIn('one client', statement)
    statement = self._content((0,), declared=uplinks.declare(update=uplinks.NOISE))['statement']
    self.assertRegex(statement, r'costs one client epsilon [0-9.]+ at delta 1e-05\.')

  def test_names_what_the_server_sees_of_single_clients(self):
    declared = [{**uplinks.declare(lid=None)[0], 'disclosure': 'per client'}]
    statement = self._content((0,), declared=declared)['statement']
    self.assertIn('One by one, not in sums, the server sees: lid.', statement)

  def test_is_one_paragraph(self):
    for fields in ([(0,), (1, 2)], [(1, 2)], [(0,)]):
      statement = self._content(*fields)['statement']
      self.assertNotRegex(statement, r'\s\s|\n|^\s|\s$')
      self.assertEndsWith(statement, '.')


if __name__ == '__main__':
  absltest.main()
