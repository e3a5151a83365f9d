"""Tests of what a unit is exposed to and what that costs."""

import math
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from tff_noise.privacy import accountant
from tff_noise.privacy import discrete_gaussian
from tff_noise.privacy import exposure
from tff_noise.privacy import protection

_LABEL, _EXAMPLE, _CLIENT = protection.Unit
_REPORTS = protection.LabelReports(10, '0.81')
_NOISE = protection.NoisySum(2.0, 0.5, cohort=10, population=100)
_DISCRETE = _NOISE._replace(mechanism=protection.DISCRETE_GAUSSIAN)
_COUNTS = protection.Counts()
_DELTA = 1e-5


class OfRunTest(parameterized.TestCase):

  @parameterized.parameters(
      ({_REPORTS: 1, None: 1}, _LABEL),
      ({_REPORTS: 1}, _EXAMPLE),
      ({_NOISE: 1, _COUNTS: 1}, _CLIENT),
  )
  def test_one_release_without_guarantee_is_a_flaw(self, times, unit):
    exposed = exposure.of_run(times, unit)
    self.assertIn('nothing protects', exposed.flaw)
    self.assertIsNone(exposed.profile(_DELTA))
    total = exposed.total(_DELTA)
    self.assertEqual(total.cost, protection.cost(None, 1, unit, _DELTA))
    self.assertEqual((total.added, total.composed), (math.inf, None))

  def test_reports_count_once_however_written(self):
    exposed = exposure.of_run(
        {_REPORTS: 300, protection.LabelReports(10, '0.810', 1400): 1}, _LABEL
    )
    self.assertEqual(list(exposed.reports.values()), [1])
    cost = exposed.total(_DELTA).cost
    self.assertEqual(cost, protection.cost(_REPORTS, 1, _LABEL, _DELTA))

  def test_noise_on_what_is_computed_from_reports_costs_labels_the_reports(self):
    times = {protection.with_reports(_NOISE, _REPORTS): 30}
    self.assertEqual(exposure.of_run(times, _LABEL).losses, exposure.of_run(
        {_REPORTS: 1}, _LABEL
    ).losses)
    self.assertEqual(
        exposure.of_run(times, _CLIENT).losses, {accountant.GaussianLoss(1.0, 0.1): 30}
    )

  def test_what_was_not_released_is_none(self):
    self.assertEqual(exposure.of_run({None: 0}, _CLIENT).total(_DELTA).cost.epsilon, 0)


class TotalTest(parameterized.TestCase):

  @parameterized.product(
      shield=[
          _NOISE, _DISCRETE, _NOISE._replace(population=10),
          *(s._replace(sampling=protection.CYCLIC) for s in (_NOISE, _DISCRETE)),
          _NOISE._replace(mechanism=protection.TREE, sampling=protection.CYCLIC),
      ],
      unit=list(protection.Unit),
  )
  def test_noise_alone_costs_what_it_did(self, shield, unit):
    total = exposure.of_run({shield: 30, _COUNTS: 0}, unit).total(_DELTA)
    expected = protection.cost(shield, 30, unit, _DELTA)
    self.assertAlmostEqual(total.added, expected.epsilon, places=12)
    self.assertAlmostEqual(total.composed, expected.epsilon, places=5)
    self.assertLessEqual(total.cost.epsilon, expected.epsilon)
    self.assertEqual(total.cost[1:], expected[1:])

  def test_poisson_samples_have_clients_that_are_replaced(self):
    shield = _NOISE._replace(sampling=protection.POISSON)
    expected = protection.cost(shield, 30, _EXAMPLE, _DELTA)
    for unit in protection.Unit:
      total = exposure.of_run({shield: 30}, unit).total(_DELTA)
      self.assertAlmostEqual(total.cost.epsilon, expected.epsilon, places=5)
      self.assertAlmostEqual(total.composed, expected.epsilon, places=5)
      self.assertLess(total.composed, protection.cost(_NOISE, 30, unit, _DELTA).epsilon)
    # Of two runs no more than of one that is as long as both.
    both = exposure.of_run({shield: 30}, _EXAMPLE)._replace(made=((shield, 30), (shield, 30)))
    longer = protection.cost(shield, 60, _EXAMPLE, _DELTA).epsilon
    self.assertAlmostEqual(both.total(_DELTA).composed, longer, places=4)

  def test_composing_is_less_than_adding(self):
    times = {_NOISE: 30, _NOISE._replace(noise_multiplier=3.0): 30, _REPORTS: 1}
    total = exposure.of_run(times, _LABEL).total(_DELTA)
    self.assertAlmostEqual(
        total.added, protection.total(times, _LABEL, _DELTA).epsilon, places=12
    )
    self.assertLess(total.composed, total.added - 1)
    self.assertEqual(total.cost, protection.Cost(
        total.composed, _DELTA, protection.Status.CONDITIONAL
    ))
    self.assertEqual(total.how, exposure.COMPOSED)

  def test_a_guarantee_without_delta_is_not_given_up_for_nothing(self):
    few, many = (
        exposure.Exposure(_LABEL, ((_REPORTS, 1),), {_REPORTS.mechanism: n}) for n in (2, 30)
    )
    total = few.total(_DELTA)
    self.assertEqual((total.cost.delta, total.how), (0, exposure.ADDED))
    self.assertAlmostEqual(total.cost.epsilon, 1.62, places=12)
    self.assertLess(total.composed, 1.62)
    total = many.total(_DELTA)
    self.assertEqual((total.cost.delta, total.how), (_DELTA, exposure.COMPOSED))
    self.assertIs(total.cost.status, protection.Status.PROVED)
    self.assertAlmostEqual(
        total.cost.epsilon,
        accountant.randomized_response_epsilon(_REPORTS.mechanism, 30, _DELTA),
        places=6,
    )
    self.assertAlmostEqual(total.added, 24.3, places=9)

  def test_a_mechanism_whose_losses_are_not_known_is_added(self):
    exposed = exposure.of_run({_NOISE: 30, _DISCRETE: 3}, _CLIENT)
    with mock.patch.dict(exposure._LOSSES):
      del exposure._LOSSES[exposure.kind(_DISCRETE)]
      total = exposed.total(_DELTA)
    self.assertEqual((total.composed, total.how), (None, exposure.ADDED))
    parts = [protection.cost(p, n, _CLIENT, _DELTA / 2).epsilon for p, n in exposed.sums]
    self.assertAlmostEqual(total.cost.epsilon, sum(parts), places=12)


class LossesTest(absltest.TestCase):

  def test_of_every_mechanism(self):
    losses = exposure.of_run({_NOISE: 30, _DISCRETE: 3}, _CLIENT).losses
    # Replacing a client moves the sum by twice the norm.
    self.assertEqual(losses, {
        accountant.GaussianLoss(1.0, 0.1): 30,
        accountant.GaussianLoss(1.0, 0.1, discrete_gaussian.DISTANCE): 3,
    })

  def test_without_sampling(self):
    self.assertEqual(exposure.without_sampling(_NOISE), _NOISE._replace(population=10))
    for shield in (_NOISE._replace(sampling=protection.CYCLIC), _REPORTS, _COUNTS, None):
      self.assertEqual(exposure.without_sampling(shield), shield)

  def test_nothing_of_a_noisy_sum_is_overlooked(self):
    # What is new here may change what a sum costs, how it is composed (`exposure._LOSSES`,
    # `without_sampling`) and which event it is (`events._SUMS`).
    self.assertEqual(protection.NoisySum._fields, (
        'noise_multiplier', 'clip', 'cohort', 'population', 'reports', 'mechanism', 'noise_source',
        'sampling',
    ))


if __name__ == '__main__':
  absltest.main()
