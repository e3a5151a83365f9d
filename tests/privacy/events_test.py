"""Tests of releases as events of dp_accounting."""

import json
import math
import pathlib

import dp_accounting
from absl.testing import absltest
from absl.testing import parameterized
from dp_accounting import pld
from dp_accounting import rdp

from tff_noise.privacy import events
from tff_noise.privacy import exposure
from tff_noise.privacy import protection

_LABEL, _EXAMPLE, _CLIENT = protection.Unit
_REPORTS = protection.LabelReports(10, '0.81')
_WHOLE = protection.NoisySum(2.0, 0.5, cohort=10, population=10)
_SAMPLED = _WHOLE._replace(population=100)
_COUNTS = protection.Counts()
_REPLACE = dp_accounting.NeighboringRelation.REPLACE_ONE


def _event(times, unit):
  content = events.to_json(exposure.of_run(times, unit))
  return events.from_json(json.loads(json.dumps(content)))


class EventsTest(parameterized.TestCase):

  @parameterized.parameters(
      (_WHOLE, dp_accounting.GaussianDpEvent(1.0)),
      (_SAMPLED, dp_accounting.SampledWithoutReplacementDpEvent(
          100, 10, dp_accounting.GaussianDpEvent(1.0)
      )),
      (_WHOLE._replace(mechanism=protection.DISCRETE_GAUSSIAN), dp_accounting.GaussianDpEvent(1.0)),
      (_SAMPLED._replace(sampling=protection.POISSON), dp_accounting.PoissonSampledDpEvent(
          0.1, dp_accounting.GaussianDpEvent(1.0)
      )),
      (None, dp_accounting.NonPrivateDpEvent()),
  )
  def test_comes_back_as_events(self, shield, expected):
    self.assertEqual(
        _event({shield: 30, _COUNTS: 2}, _EXAMPLE),
        dp_accounting.ComposedDpEvent([dp_accounting.SelfComposedDpEvent(expected, 30)]),
    )

  # A client with turns 1, 11 and 21 is in the nodes that end in 1, 2, 4, 8, 11, 12, 21, 22 and 24,
  # and twice in that of 16.
  @parameterized.parameters((protection.GAUSSIAN, 3), (protection.TREE, 13))
  def test_turns_are_counted(self, mechanism, count):
    shield = _SAMPLED._replace(sampling=protection.CYCLIC, mechanism=mechanism)
    self.assertEqual(
        _event({shield: 30}, _CLIENT).events,
        [dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(1.0), count)],
    )

  def test_is_about_a_unit(self):
    # Reports and counts protect no client.
    event = _event({_WHOLE: 3, _REPORTS: 1, _COUNTS: 1}, _CLIENT)
    self.assertEqual(
        [e.event for e in event.events],
        [dp_accounting.GaussianDpEvent(1.0), *[dp_accounting.NonPrivateDpEvent()] * 2],
    )

  def test_accountants_of_dp_accounting_agree(self):
    expected = protection.cost(_WHOLE, 30, _CLIENT, 1e-5).epsilon
    accountant = pld.PLDAccountant(_REPLACE).compose(_event({_WHOLE: 30}, _CLIENT))
    self.assertAlmostEqual(accountant.get_epsilon(1e-5) / expected, 1, places=6)

  def test_accountants_of_dp_accounting_give_more_for_sampling(self):
    ours = protection.cost(_SAMPLED, 30, _CLIENT, 1e-5).epsilon
    accountant = rdp.RdpAccountant(neighboring_relation=_REPLACE)
    theirs = accountant.compose(_event({_SAMPLED: 30}, _CLIENT)).get_epsilon(1e-5)
    self.assertBetween(theirs, ours, 2 * ours)

  def test_reports_are_refused_by_accountants_that_do_not_know_them(self):
    content = events.to_json(exposure.Exposure(_LABEL, (), {_REPORTS.mechanism: 2}))
    self.assertEqual(content['events'][0]['class'], 'RandomizedResponseDpEvent')
    # Independent reports one by one: their event's repetitions would be ignored.
    self.assertLen(content['events'], 2)
    self.assertAlmostEqual(content['events'][0]['noise_parameter'], 0.8890542145, places=9)
    self.assertEqual(content['events'][0]['num_buckets'], 10)
    event = events.from_json(content)
    self.assertEqual(event.events, [dp_accounting.UnsupportedDpEvent()] * 2)
    for accountant in (
        pld.PLDAccountant(_REPLACE), rdp.RdpAccountant(neighboring_relation=_REPLACE)
    ):
      self.assertFalse(accountant.supports(event))

  def test_what_has_no_bound_together_is_not_private(self):
    exposed = exposure.of_run({_WHOLE: 2}, _CLIENT)._replace(flaw='the same noise')
    event = events.from_json(events.to_json(exposed))
    accountant = pld.PLDAccountant(_REPLACE).compose(event)
    self.assertEqual(accountant.get_epsilon(1e-5), math.inf)

  def test_what_is_not_known_is_refused_as_well(self):
    exposed = exposure.of_run({_WHOLE._replace(mechanism='magic'): 2}, _CLIENT)
    self.assertEqual(
        events.from_json(events.to_json(exposed)),
        dp_accounting.ComposedDpEvent([dp_accounting.UnsupportedDpEvent()]),
    )


class PageTest(absltest.TestCase):

  def test_its_lines_read_what_is_written(self):
    page = pathlib.Path('docs/privacy.md').read_text(encoding='utf-8')
    [code] = [b.split('```')[0] for b in page.split('```python\n')[1:] if 'def read' in b]
    names = {}
    exec(code, names)
    for times in ({_SAMPLED: 30, _REPORTS: 1}, {_WHOLE: 2, None: 3}):
      content = events.to_json(exposure.of_run(times, _LABEL))
      self.assertEqual(names['read'](content), events.from_json(content))


if __name__ == '__main__':
  absltest.main()
