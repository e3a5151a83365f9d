"""Tests of what protections cost."""

import json
import math

from absl.testing import absltest
from absl.testing import parameterized
from dp_accounting.pld import privacy_loss_distribution

from tff_noise.privacy import accountant
from tff_noise.privacy import protection

_LABEL, _EXAMPLE, _CLIENT = protection.Unit
_REPORTS = protection.LabelReports(10, '0.81')
_NOISE = protection.NoisySum(2.0, 0.5, cohort=10, population=100)
_DISCRETE = _NOISE._replace(mechanism=protection.DISCRETE_GAUSSIAN, noise_source='system')
_TURNS = _NOISE._replace(sampling=protection.CYCLIC)
_TREE = _TURNS._replace(mechanism=protection.TREE)
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

  @parameterized.parameters(
      # Of 100 clients 10 a round: the first in rounds 1, 11 and 21; in nodes 1, 1-2, 1-4 and 1-8.
      (_TURNS, (1, 10, 11, 20, 21), (1, 1, 2, 2, 3)),
      (_TURNS._replace(mechanism=protection.DISCRETE_GAUSSIAN), (1, 10, 11), (1, 1, 2)),
      (_TREE, (1, 2, 3, 4, 7, 8, 10), (1, 2, 2, 3, 3, 4, 4)),
      (_TREE._replace(population=20), (1, 2, 3, 4), (1, 2, 3, 7)),
      (_TREE._replace(population=10), (1, 2, 3, 4), (1, 5, 6, 22)),
  )
  def test_turns_cost_what_as_many_rounds_with_everybody_do(self, shield, times, rounds):
    for released, expected in zip(times, rounds, strict=True):
      cost = protection.cost(shield, released, _CLIENT, _DELTA)
      gaussian = accountant.gaussian_epsilon(
          2.0, population=10, cohort=10, rounds=expected, delta=_DELTA
      )
      self.assertBetween(cost.epsilon / gaussian, 1, 1 + 1e-8)
      self.assertEqual((cost.delta, cost.status), (_DELTA, protection.Status.CONDITIONAL))

  def test_a_tree_by_privacy_loss_distributions(self):
    # mu = 2 sqrt(4) / Z = 2.
    single = privacy_loss_distribution.from_gaussian_mechanism(0.5)
    self.assertAlmostEqual(
        protection.cost(_TREE, 8, _CLIENT, _DELTA).epsilon,
        single.get_epsilon_for_delta(_DELTA), delta=1e-3,
    )

  @parameterized.parameters(
      # The table of docs/privacy.md: secret, not secret, cyclic, and a tree with as much noise.
      (100, 60, 4.0, (10.97, 23.35, 14.83, 20.81)), (1000, 200, 4.0, (1.736, 54.38, 7.511, 4.529)),
      (1000, 200, 1.0, (27.25, 519.7, 46.21, 25.37)),
  )
  def test_the_table_of_the_documentation(self, population, rounds, multiplier, expected):
    # The sum over t rounds has the noise of t of them, or of as many nodes as t has digits 1.
    digits = [bin(t).count('1') for t in range(1, rounds + 1)]
    same = multiplier * math.sqrt((rounds + 1) / 2 / (sum(digits) / rounds))
    fixed = protection.NoisySum(multiplier, 1.0, 50, population)
    turns = fixed._replace(sampling=protection.CYCLIC)
    in_tree = turns._replace(mechanism=protection.TREE, noise_multiplier=same)
    for shield, epsilon in zip(
        (fixed, fixed._replace(population=50), turns, in_tree), expected, strict=True
    ):
      found = protection.cost(shield, rounds, _CLIENT, _DELTA).epsilon
      self.assertAlmostEqual(found / epsilon, 1, delta=1e-3)

  def test_a_tree_costs_nobody_knows_what_where_clients_are_drawn(self):
    for sampling in (protection.FIXED, 'poisson'):
      cost = protection.cost(_TREE._replace(sampling=sampling), 1, _CLIENT, _DELTA)
      self.assertEqual((cost.epsilon, cost.status), (math.inf, protection.Status.NONE))

  @parameterized.parameters([[2]], [[1, 3]], [[1, 1]], [[1, 2, 2, 3]], [[2, 1]])
  def test_turns_that_were_left_out_or_doubled_leave_no_guarantee(self, rounds):
    for shield in (_TURNS, _TREE):
      self.assertIsNone(protection.in_rounds(shield, rounds))
      both = protection.with_reports(shield, _REPORTS)
      self.assertEqual(protection.in_rounds(both, rounds), _REPORTS)
      self.assertEqual(protection.in_rounds(shield, [1, 2, 3]), shield)
      self.assertEqual(protection.in_rounds(shield, []), shield)
    for shield in (_NOISE, _DISCRETE, _REPORTS, None):
      self.assertEqual(protection.in_rounds(shield, rounds), shield)

  @parameterized.parameters((_REPORTS,), (_NOISE,), (_COUNTS,), (None,), (_TREE,))
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
      (_DISCRETE,), (_TURNS,), (_TREE._replace(reports=_REPORTS),),
      (_POISSON,), (_POISSON._replace(reports=_REPORTS),),
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
      (_TURNS, '2 times that norm on their sum;', 'the rounds that one client takes part in; '
       'cohorts of 10 have turns in a public order of 100 clients'),
      (_TREE, 'added by the server, of 2 times that norm on each node of a binary tree',
       'the nodes of the tree, by the rounds of each that one client takes part in'),
      (_TREE, 'drawn from the seed', 'without amplification by sampling; replacing one client. It '
       'is about noise in real numbers'),
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
