"""Tests of what several runs expose people to together."""

import math

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise.privacy import accountant
from tff_noise.privacy import exposure
from tff_noise.privacy import protection
from tff_noise.privacy import several_runs

_LABEL, _EXAMPLE, _CLIENT = protection.Unit
_REPORTS = protection.LabelReports(10, '0.81')
_NOISE = protection.NoisySum(2.0, 0.5, cohort=10, population=100)
_OWNERS = np.array([0, 0, 1, 1, 2, 2])
_LABELS = np.array([3, 4, 5, 3, 4, 5])
_DELTA = 1e-5


def _run(times, seed, *, owners=_OWNERS, labels=_LABELS, noise=None, codes=('a',)):
  keys = frozenset([f'{seed} {times}' if noise is None else noise])
  return several_runs.Run(
      times, seed, np.asarray(owners), np.asarray(labels), keys, frozenset(codes)
  )


def _of(unit, *runs):
  """What all runs together expose a unit to."""
  exposed = several_runs.exposed(runs)
  [over_all] = [e.exposure for e in exposed if e.exposure.unit is unit and len(e.runs) == len(runs)]
  return over_all


def _epsilon(unit, *runs):
  return _of(unit, *runs).total(_DELTA).cost.epsilon


class NoiseTest(parameterized.TestCase):

  @parameterized.parameters(*protection.Unit)
  def test_runs_of_different_seeds_are_one_long_run(self, unit):
    together = _of(unit, _run({_NOISE: 10}, 0), _run({_NOISE: 20}, 1)).total(_DELTA)
    expected = accountant.gaussian_epsilon(
        2.0, population=100, cohort=10, rounds=30, delta=_DELTA
    )
    self.assertAlmostEqual(together.cost.epsilon, expected, places=5)
    added = sum(
        protection.cost(_NOISE, rounds, unit, _DELTA / 2).epsilon for rounds in (10, 20)
    )
    self.assertAlmostEqual(together.added, added, places=9)

  def test_runs_of_one_seed_have_no_protection_by_sampling(self):
    other = _NOISE._replace(noise_multiplier=4.0)
    together = _of(_CLIENT, _run({_NOISE: 10}, 7), _run({other: 20}, 7), _run({_NOISE: 5}, 8))
    self.assertEqual(together.losses, {
        accountant.GaussianLoss(1.0): 10,
        accountant.GaussianLoss(0.5): 20,
        accountant.GaussianLoss(1.0, 0.1): 5,
    })
    # The square root of the sum of squares.
    two = _epsilon(_CLIENT, _run({_NOISE: 10}, 7), _run({other: 20}, 7))
    one = accountant.gaussian_epsilon(
        2 / math.sqrt(15), population=9, cohort=9, rounds=1, delta=_DELTA
    )
    self.assertAlmostEqual(two, one, places=6)

  def test_a_run_of_the_same_seed_tells_cohorts_without_adding_noise(self):
    private = protection.with_reports(None, _REPORTS)
    together = _of(_LABEL, _run({_NOISE: 10}, 7), _run({private: 10}, 7))
    self.assertIn(accountant.GaussianLoss(1.0), together.losses)

  def test_the_same_noise_has_no_sum(self):
    runs = _run({_NOISE: 10}, 0, noise='a'), _run({_NOISE: 10}, 0, noise='a')
    self.assertEqual(several_runs.same_noise(runs), [(0, 1)])
    for unit in protection.Unit:
      self.assertEqual(_of(unit, *runs).flaw, 'runs 1 and 2 drew the same noise')
    # It is nothing to a label that is protected by reports alone.
    shield = protection.with_reports(_NOISE, _REPORTS)
    runs = tuple(run._replace(times={shield: 10}) for run in runs)
    self.assertAlmostEqual(_epsilon(_LABEL, *runs), 0.81, places=12)
    self.assertEqual(_epsilon(_CLIENT, *runs), math.inf)

  def test_one_run_without_a_guarantee_is_none_for_all(self):
    exposed = _of(_EXAMPLE, _run({_NOISE: 10}, 0), _run({None: 1}, 1), _run({_NOISE: 1}, 2))
    self.assertEqual(exposed.flaw, 'in run 2 values are released that nothing protects')
    self.assertEqual(exposed.total(_DELTA).cost.epsilon, math.inf)

  def test_one_run_costs_what_it_costs_alone(self):
    run = _run({_NOISE: 30, _REPORTS: 1}, 0)
    total = _of(_LABEL, run).total(_DELTA)
    self.assertAlmostEqual(
        total.added, protection.total(run.times, _LABEL, _DELTA).epsilon, places=12
    )


class ReportsTest(parameterized.TestCase):

  def test_the_same_reports_count_once(self):
    histogram = _REPORTS._replace(num_labels=6)
    runs = _run({_REPORTS: 30}, 0), _run({histogram: 1}, 0), _run(
        {protection.LabelReports(10, '0.810'): 2}, 0
    )
    self.assertAlmostEqual(_epsilon(_LABEL, *runs), 0.81, places=12)

  def test_reports_under_another_secret_add_up(self):
    runs = _run({_REPORTS: 30}, 0), _run({_REPORTS: 30}, 1), _run({_REPORTS: 1}, 1)
    self.assertAlmostEqual(_epsilon(_LABEL, *runs), 1.62, places=12)

  def test_other_code_may_flip_otherwise_by_the_same_random_number(self):
    def runs(one, other, **changes):
      return (
          _run({_REPORTS: 30}, 0, codes=one), _run({_REPORTS: 30}, 0, codes=other, **changes)
      )

    self.assertAlmostEqual(_epsilon(_LABEL, *runs('a', 'a')), 0.81, places=12)
    self.assertEqual(
        _of(_LABEL, *runs('a', 'b')).flaw,
        'runs 1 and 2, by other codes, may flip labels otherwise by the same random number',
    )
    self.assertIn('in run 1 labels are reported by several', _of(_LABEL, *runs('ab', 'b')).flaw)
    self.assertEqual(_epsilon(_LABEL, *runs('a', 'b')), math.inf)
    # Nothing of labels, and other clients' numbers are others.
    self.assertEmpty(several_runs.two_codes(runs('a', 'b', owners=[5, 5, 6, 6, 7, 7])))
    noise = _run({_NOISE: 1}, 0, codes='a'), _run({_NOISE: 1}, 1, codes='b')
    self.assertLess(_epsilon(_CLIENT, *noise), math.inf)

  @parameterized.parameters((1, 0.81), (2, math.inf), (3, math.inf))
  def test_one_run_alone_costs_what_is_said_of_it(self, codes, epsilon):
    run = _run({_REPORTS: 30}, 0, codes=[str(i) for i in range(codes)])
    alone = protection.total(run.times, _LABEL, _DELTA, codes)
    self.assertAlmostEqual(alone.epsilon, epsilon, places=12)
    self.assertEqual(_of(_LABEL, run).total(_DELTA).cost, alone)
    self.assertEqual(exposure.of_run(run.times, _LABEL, codes).total(_DELTA).cost, alone)

  def test_reports_of_another_mechanism_add_up(self):
    runs = _run({_REPORTS: 30}, 0), _run({protection.LabelReports(10, '2'): 30}, 0)
    self.assertAlmostEqual(_epsilon(_LABEL, *runs), 2.81, places=12)

  def test_reports_of_examples_that_another_client_holds_add_up(self):
    # Client 0's examples alone are where they were.
    other = [0, 0, 2, 2, 1, 1]
    runs = _run({_REPORTS: 1}, 0), _run({_REPORTS: 1}, 0, owners=other)
    self.assertAlmostEqual(_epsilon(_LABEL, *runs), 1.62, places=12)
    # Nobody has three: the worst example counts.
    third = _run({_REPORTS: 1}, 0, owners=[0, 0, 1, 1, 1, 1])
    self.assertAlmostEqual(_epsilon(_LABEL, *runs, third), 1.62, places=12)
    everywhere = _run({_REPORTS: 1}, 0, owners=[1, 1, 0, 0, 0, 2])
    self.assertAlmostEqual(_epsilon(_LABEL, *runs, everywhere), 2.43, places=12)

  def test_one_random_number_for_two_labels_has_no_bound(self):
    changed = _LABELS.copy()
    changed[4] = 9
    runs = _run({_REPORTS: 1}, 0), _run({_REPORTS: 1}, 0, labels=changed)
    self.assertEqual(several_runs.two_labels(runs), [(0, 1)])
    self.assertEqual(
        _of(_LABEL, *runs).flaw,
        'runs 1 and 2 report different labels of one example by the same random number',
    )
    # Not if the client, the seed or the mechanism is another.
    for other in (
        _run({_REPORTS: 1}, 0, labels=changed, owners=[0, 0, 1, 1, 3, 3]),
        _run({_REPORTS: 1}, 1, labels=changed),
        _run({protection.LabelReports(10, '2'): 1}, 0, labels=changed),
        _run({_NOISE: 1}, 0, labels=changed),
    ):
      self.assertEmpty(several_runs.two_labels((runs[0], other)))
      self.assertEmpty(_of(_LABEL, runs[0], other).flaw)

  def test_with_noise_both_count(self):
    runs = _run({_NOISE: 30}, 0), _run({_REPORTS: 30}, 1), _run({_REPORTS: 30}, 2)
    self.assertEqual(_of(_LABEL, *runs).losses, {
        accountant.GaussianLoss(1.0, 0.1): 30, accountant.ReportLoss(_REPORTS.mechanism): 2,
    })
    total = _of(_LABEL, *runs).total(_DELTA)
    noise = protection.cost(_NOISE, 30, _LABEL, _DELTA).epsilon
    self.assertAlmostEqual(total.added, noise + 1.62, places=9)
    self.assertBetween(total.composed, noise, total.added)


class DataTest(absltest.TestCase):

  def test_clients_are_known_by_what_they_hold(self):
    renamed = _run({}, 0, owners=[2, 2, 0, 0, 1, 1])
    other = _run({}, 0, owners=[0, 0, 0, 1, 2, 2])
    self.assertEqual(
        several_runs.same_clients([_run({}, 0), other, renamed, _run({}, 1)]),
        [(0, 2, 3), (1,)],
    )

  def test_examples_of_another_scene_are_the_same_and_clients_are_not(self):
    runs = (
        _run({_NOISE: 10}, 0), _run({_NOISE: 20}, 1, owners=[0, 0, 0, 1, 1, 2]),
        _run({_NOISE: 20}, 2),
    )
    self.assertLess(_epsilon(_EXAMPLE, *runs), math.inf)
    self.assertIn('clients differ', _of(_CLIENT, *runs).flaw)
    groups = {e.runs: e.exposure for e in several_runs.exposed(runs)[3:]}
    self.assertEqual(set(groups), {(0, 2), (1,)})
    self.assertEqual(
        {i: e.losses for i, e in groups.items()},
        {
            (0, 2): {accountant.GaussianLoss(1.0, 0.1): 30},
            (1,): {accountant.GaussianLoss(1.0, 0.1): 20},
        },
    )

  def test_flaws_of_groups_have_the_numbers_of_all(self):
    runs = (
        _run({_NOISE: 10}, 0), _run({_NOISE: 20}, 1, owners=[0, 0, 0, 1, 1, 2], noise='a'),
        _run({_NOISE: 20}, 2, owners=[0, 0, 0, 1, 1, 2], noise='a'),
    )
    groups = {e.runs: e.exposure.flaw for e in several_runs.exposed(runs)[3:]}
    self.assertEqual(groups, {(0,): '', (1, 2): 'runs 2 and 3 drew the same noise'})

  def test_labels_that_differ_cost_examples_nothing_more(self):
    other = _run({_NOISE: 20}, 1, labels=_LABELS[::-1].copy())
    self.assertEmpty(_of(_EXAMPLE, _run({_NOISE: 10}, 0), other).flaw)
    self.assertEmpty(_of(_CLIENT, _run({_NOISE: 10}, 0), other).flaw)

  def test_what_the_server_holds_in_one_run_it_knows(self):
    held = _run({_REPORTS: 1}, 1, owners=[0, 0, 1, 1, 2, -1])
    exposed = _of(_LABEL, _run({_REPORTS: 1}, 0), held)
    self.assertIn('in run 2 the server holds examples', exposed.flaw)
    # The same ones in both runs are nobody's.
    self.assertAlmostEqual(_epsilon(_LABEL, held, held._replace(seed=2)), 1.62, places=12)

  def test_seeds_that_are_shared_are_named(self):
    runs = [_run({}, seed) for seed in (3, 1, 3, 2, 3)]
    self.assertEqual(several_runs.same_seed(runs), [(0, 2, 4)])


if __name__ == '__main__':
  absltest.main()
