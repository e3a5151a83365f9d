"""Tests of what protections cost."""

import json
import math

from absl.testing import absltest
from absl.testing import parameterized

from tff_noise.privacy import accountant
from tff_noise.privacy import protection

_LABEL, _EXAMPLE, _CLIENT = protection.Unit
_REPORTS = protection.LabelReports(10, '0.81')
_NOISE = protection.NoisySum(2.0, 0.5, cohort=10, population=100)
_DISCRETE = _NOISE._replace(mechanism=protection.DISCRETE_GAUSSIAN, noise_source='system')
_POISSON = _NOISE._replace(sampling=protection.POISSON)
_COUNTS = protection.Counts()
_DELTA = 1e-5


def _total(times, unit=_LABEL):
  return protection.total(times, unit, _DELTA)


class CostTest(parameterized.TestCase):

  @parameterized.parameters(1, 300)
  def test_memoised_reports_cost_once(self, times):
    cost = protection.cost(_REPORTS, times, _LABEL, _DELTA)
    self.assertAlmostEqual(cost.epsilon, 0.81, places=12)
    self.assertLessEqual(cost.epsilon, 0.81)
    self.assertEqual((cost.delta, cost.status), (0, protection.Status.PROVED))

  @parameterized.parameters(
      (_REPORTS, _EXAMPLE), (_REPORTS, _CLIENT), (_COUNTS, _CLIENT), (None, _LABEL)
  )
  def test_nothing_is_promised_beyond_the_own_unit(self, shield, unit):
    cost = protection.cost(shield, 1, unit, _DELTA)
    self.assertEqual((cost.epsilon, cost.status), (math.inf, protection.Status.NONE))

  @parameterized.parameters(*protection.Unit)
  def test_a_guarantee_for_clients_holds_for_examples_and_labels(self, unit):
    cost = protection.cost(_NOISE, 30, unit, _DELTA)
    expected = accountant.gaussian_epsilon(
        2.0, population=100, cohort=10, rounds=30, delta=_DELTA
    )
    self.assertEqual((cost.epsilon, cost.delta), (expected, _DELTA))
    self.assertIs(cost.status, protection.Status.CONDITIONAL)

  def test_poisson_samples_cost_by_adding_a_client_and_by_replacing_what_is_smaller(self):
    self.assertEqual(_POISSON.share, 0.1)
    cost = protection.cost(_POISSON, 30, _CLIENT, _DELTA)
    added = accountant.poisson_gaussian_epsilon(2.0, 0.1, 30, _DELTA)
    self.assertEqual(cost, protection.Cost(added, _DELTA, protection.Status.CONDITIONAL))
    replaced = accountant.poisson_replaced_epsilon(2.0, 0.1, 30, _DELTA)
    self.assertGreater(replaced, added)
    for unit in (_LABEL, _EXAMPLE):
      self.assertEqual(protection.cost(_POISSON, 30, unit, _DELTA).epsilon, replaced)
    both = protection.with_reports(_POISSON, _REPORTS)
    self.assertAlmostEqual(protection.cost(both, 30, _LABEL, _DELTA).epsilon, 0.81)

  def test_neighbours(self):
    for unit in (_LABEL, _EXAMPLE):
      self.assertEqual(protection.neighbours([_POISSON], unit), 'replaced')
    self.assertEqual(protection.neighbours([_REPORTS, _POISSON], _CLIENT), 'added or removed')
    self.assertEqual(protection.neighbours([_NOISE, None], _CLIENT), 'replaced')

  def test_discrete_noise_costs_what_gaussian_noise_does(self):
    cost, gaussian = (
        protection.cost(shield, 30, _CLIENT, _DELTA) for shield in (_DISCRETE, _NOISE)
    )
    self.assertBetween(cost.epsilon / gaussian.epsilon, 1, 1 + 1e-8)
    self.assertEqual((cost.delta, cost.status), (_DELTA, protection.Status.CONDITIONAL))

  def test_a_share_that_is_missing_leaves_no_guarantee(self):
    self.assertEqual(protection.with_clients(_DISCRETE, 10), _DISCRETE)
    self.assertIsNone(protection.with_clients(_DISCRETE, 9))
    # The server adds all of its noise, whoever comes.
    self.assertEqual(protection.with_clients(_NOISE, 9), _NOISE)
    self.assertIsNone(protection.with_clients(None, 9))

  @parameterized.parameters((_REPORTS,), (_NOISE,), (_COUNTS,), (None,))
  def test_what_was_not_released_costs_nothing(self, shield):
    self.assertEqual(protection.cost(shield, 0, _CLIENT, _DELTA).epsilon, 0)

  def test_numbers_of_examples_are_free_for_labels_and_examples(self):
    for unit in (_LABEL, _EXAMPLE):
      self.assertEqual(protection.cost(_COUNTS, 9, unit, _DELTA).epsilon, 0)


class TotalTest(parameterized.TestCase):

  def test_nothing_costs_nothing(self):
    self.assertEqual(_total({}), protection.Cost(0, 0, protection.Status.PROVED))

  def test_one_release_without_guarantee_makes_the_total_infinite(self):
    self.assertEqual(_total({_REPORTS: 1, None: 1}).epsilon, math.inf)
    self.assertAlmostEqual(_total({_REPORTS: 1, None: 0}).epsilon, 0.81)

  def test_what_is_computed_from_the_same_reports_is_free(self):
    in_a_sum = _REPORTS._replace(num_labels=1400)
    same = protection.LabelReports(10, '0.810')
    total = _total({_REPORTS: 300, in_a_sum: 1, same: 4})
    self.assertAlmostEqual(total.epsilon, 0.81, places=12)

  def test_reports_of_another_mechanism_add_up(self):
    other = protection.LabelReports(10, '1')
    self.assertAlmostEqual(_total({_REPORTS: 1, other: 1}).epsilon, 1.81, places=12)

  def test_mechanisms_share_delta(self):
    other = _NOISE._replace(noise_multiplier=3.0)
    total = _total({_NOISE: 30, other: 30, _REPORTS: 1})
    parts = [
        protection.cost(shield, 30, _LABEL, _DELTA / 2).epsilon for shield in (_NOISE, other)
    ]
    self.assertAlmostEqual(total.epsilon, sum(parts) + 0.81, places=9)
    self.assertAlmostEqual(total.delta, _DELTA)
    self.assertIs(total.status, protection.Status.CONDITIONAL)

  def test_label_reports_leave_clients_without_guarantee(self):
    self.assertEqual(_total({_NOISE: 1, _REPORTS: 1}, _CLIENT).epsilon, math.inf)
    self.assertLess(_total({_NOISE: 1}, _CLIENT).epsilon, math.inf)

  def test_noise_on_what_is_computed_from_reports_costs_labels_the_reports(self):
    both = protection.with_reports(_NOISE, _REPORTS)
    self.assertAlmostEqual(_total({both: 30, _REPORTS: 1}).epsilon, 0.81, places=12)
    self.assertEqual(_total({both: 30}, _CLIENT), _total({_NOISE: 30}, _CLIENT))
    self.assertEqual(protection.cost(both, 30, _LABEL, _DELTA).epsilon, _total({both: 1}).epsilon)
    self.assertEqual(protection.with_reports(None, _REPORTS), _REPORTS)
    self.assertEqual(protection.with_reports(_COUNTS, _REPORTS), _COUNTS)


class JsonTest(parameterized.TestCase):

  @parameterized.parameters(
      (_REPORTS,), (_NOISE,), (_NOISE._replace(reports=_REPORTS),), (_COUNTS,), (None,),
      (_DISCRETE,), (_POISSON,), (_POISSON._replace(reports=_REPORTS),),
  )
  def test_comes_back(self, shield):
    content = json.loads(json.dumps(protection.to_json(shield)))
    self.assertEqual(protection.from_json(content), shield)
    self.assertIs(type(protection.from_json(content)), type(shield))

  def test_cohorts_of_fixed_size_are_written_as_earlier_versions_did(self):
    # Noise is keyed by it, and their files are read.
    content = {
        'kind': 'noisy sum', 'noise_multiplier': 2.0, 'clip': 0.5, 'cohort': 10, 'population': 100,
        'reports': None, 'mechanism': 'gaussian', 'noise_source': 'seed',
    }
    self.assertEqual(protection.to_json(_NOISE), content)
    self.assertEqual(protection.from_json(content), _NOISE)
    self.assertEqual(protection.to_json(_POISSON), {**content, 'sampling': 'poisson'})

  @parameterized.parameters(
      ({},), ({'kind': 'magic'},), ({'kind': 'label reports'},), ({'kind': 'counts', 'x': 1},), (3,)
  )
  def test_anything_else_is_refused(self, content):
    with self.assertRaisesRegex(ValueError, 'not a protection'):
      protection.from_json(content)

  @parameterized.parameters(
      (_REPORTS, 'claimed epsilon 0.81', 'memoised'),
      (_REPORTS, 'claimed epsilon 0.81', 'given a pseudorandom function'),
      (_NOISE, 'norm 0.5, Gaussian noise in floating point', 'from 100 clients'),
      (_NOISE, 'drawn from the seed', 'the epsilon does not hold for it as it stands'),
      (_DISCRETE, 'an equal share added by each client, of 2', 'drop out, take theirs away'),
      (_DISCRETE, 'drawn from a key of the system', 'Given a pseudorandom function'),
      (_NOISE._replace(population=10), 'Gaussian', 'without amplification'),
      (_NOISE, 'Gaussian', 'replacing one client'),
      (_POISSON, 'Gaussian', 'each of 100 clients takes part in a round with probability 0.1'),
      (_POISSON, 'Gaussian', 'nor how many do is known'),
      (_POISSON, 'Gaussian', 'adding or removing one client. An example or a label is replaced'),
      (_COUNTS, 'none needed', 'costs nothing'),
      (None, 'none: computed from the true local data', 'no finite epsilon'),
  )
  def test_is_told_in_plain_words(self, shield, mechanism, accounting):
    words = protection.describe(shield)
    self.assertIn(mechanism, words.mechanism)
    self.assertIn(accounting, words.accounting)


if __name__ == '__main__':
  absltest.main()
