"""Tests of privacy profiles of several mechanisms against closed forms and finite sums."""

import collections
import itertools
import math

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized
from scipy import stats

from tff_noise.privacy import accountant
from tff_noise.privacy import composition
from tff_noise.privacy import discrete_gaussian
from tff_noise.privacy import mechanism

_REPORT = accountant.ReportLoss(mechanism.randomized_response('0.81', 10))
_OTHER = accountant.ReportLoss(mechanism.randomized_response('2', 10))
_EPSILONS = np.linspace(0, 6, 61)
_DELTAS = (1e-9, 1e-7, 1e-5, 1e-3, 0.1)


def _gaussian(epsilon, mu):
  """Of any sign."""
  return stats.norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * stats.norm.cdf(
      -mu / 2 - epsilon / mu
  )


def _sampled(epsilon, mu, share):
  """Of any sign: below 0 the mirror image of neighbours that may be exchanged."""
  if epsilon < 0:
    return 1 - math.exp(epsilon) + math.exp(epsilon) * _sampled(-epsilon, mu, share)
  return share * _gaussian(math.log1p(math.expm1(epsilon) / share), mu)


def _losses(report):
  """The loss of one report and its probabilities."""
  table = report.mechanism
  a, b = table.keep_probability, table.other_probability
  return {table.actual_epsilon: a, -table.actual_epsilon: b, 0.0: 1 - a - b}


def _with_report(report, profile, epsilon):
  """Exact delta of a report and something else whose profile is given for any sign."""
  return math.fsum(p * profile(epsilon - loss) for loss, p in _losses(report).items())


def _reports(epsilon, *reports):
  """Exact delta of reports, by all outcomes."""
  total = collections.Counter()
  for outcome in itertools.product(*(_losses(r).items() for r in reports)):
    total[sum(loss for loss, _ in outcome)] += math.prod(p for _, p in outcome)
  return math.fsum(p * -math.expm1(epsilon - loss) for loss, p in total.items() if loss > epsilon)


class ExactTest(parameterized.TestCase):

  def _check(self, losses, exact, slack):
    profile = composition.compose(losses, 1e-10)
    deltas = profile.delta(_EPSILONS)
    expected = np.array([exact(e) for e in _EPSILONS])
    self.assertTrue((deltas >= expected).all(), (deltas - expected).min())
    np.testing.assert_allclose(deltas, expected, rtol=slack, atol=1e-10)
    self.assertTrue((np.diff(deltas) <= 0).all())
    for delta in _DELTAS:
      epsilon = profile.epsilon(delta)
      self.assertLessEqual(exact(epsilon), delta)
      self.assertLessEqual(profile.delta(np.array([epsilon]))[0], delta * (1 + 1e-12))
      # A little less would not do.
      if epsilon:
        self.assertGreater(exact(epsilon * (1 - 10 * slack) - 1e-6), delta * (1 - 1e-2))

  def test_one_report(self):
    table = _REPORT.mechanism
    gap = table.keep_probability - table.other_probability
    profile = composition.compose({_REPORT: 1}, 1e-10)
    epsilons = np.array([0, 0.3, 0.8099, 0.81 + 1e-15, 1, 50])
    deltas = profile.delta(epsilons)
    self.assertAlmostEqual(deltas[0], gap, places=9)  # The total variation.
    expected = table.keep_probability - math.exp(0.3) * table.other_probability
    self.assertAlmostEqual(deltas[1], expected, places=9)
    self.assertGreater(deltas[2], 0)
    np.testing.assert_array_equal(deltas[3:], 0)
    self.assertAlmostEqual(
        profile.epsilon(1e-3),
        math.log((table.keep_probability - 1e-3) / table.other_probability),
        places=7,
    )
    self._check({_REPORT: 1}, lambda e: _reports(e, _REPORT), 1e-8)

  def test_independent_reports_of_one_mechanism(self):
    self._check({_REPORT: 5}, lambda e: _reports(e, *[_REPORT] * 5), 1e-8)
    pure = composition.compose({_REPORT: 5}, 1e-10)
    self.assertEqual(pure.delta(np.array([0, 4.05 + 1e-14]))[1], 0)

  def test_reports_of_two_mechanisms(self):
    self._check({_REPORT: 2, _OTHER: 1}, lambda e: _reports(e, _REPORT, _REPORT, _OTHER), 1e-4)

  def test_noise_without_sampling_is_one_gaussian(self):
    # 9 * 0.1^2 + 0.4^2 = 0.5^2
    losses = {accountant.GaussianLoss(0.1): 9, accountant.GaussianLoss(0.4): 1}
    self._check(losses, lambda e: _gaussian(e, 0.5), 1e-6)

  def test_noise_and_a_report(self):
    losses = {accountant.GaussianLoss(0.6): 1, accountant.GaussianLoss(0.8): 1, _REPORT: 1}
    self._check(losses, lambda e: _with_report(_REPORT, lambda x: _gaussian(x, 1.0), e), 1e-4)

  @parameterized.parameters(0.01, 0.3)
  def test_a_sampled_sum_and_a_report(self, share):
    losses = {accountant.GaussianLoss(2.0, share): 1, _REPORT: 1}
    self._check(
        losses, lambda e: _with_report(_REPORT, lambda x: _sampled(x, 2.0, share), e), 1e-4
    )

  def test_below_the_least_delta_that_was_asked_for_the_bound_is_one_all_the_same(self):
    profile = composition.compose({accountant.GaussianLoss(2.0, 0.3): 1, _REPORT: 1}, 0.5)
    for epsilon, delta in zip(_EPSILONS, profile.delta(_EPSILONS), strict=True):
      exact = _with_report(_REPORT, lambda x: _sampled(x, 2.0, 0.3), epsilon)
      self.assertGreaterEqual(delta, exact)

  def test_one_sampled_sum(self):
    self._check({accountant.GaussianLoss(2.0, 0.1): 1}, lambda e: _sampled(e, 2.0, 0.1), 1e-6)

  def test_nothing_costs_nothing(self):
    profile = composition.compose({}, 1e-10)
    np.testing.assert_array_equal(profile.delta(_EPSILONS), 0)
    self.assertEqual(profile.epsilon(1e-5), 0)


class SampledTest(parameterized.TestCase):

  @parameterized.product(delta=_DELTAS, setting=[(2, 0.1), (1, 0.5), (20, 0.01)])
  def test_runs_of_the_same_noise_are_one_long_run(self, delta, setting):
    noise, share = setting
    cohort = round(100 * share)
    expected = accountant.gaussian_epsilon(
        noise, population=100, cohort=cohort, rounds=30, delta=delta
    )
    first = accountant.GaussianLoss(2 / noise, cohort / 100)
    # Apart, so that their distributions are convolved.
    second = first._replace(mu=first.mu * (1 + 1e-13))
    profile = composition.compose({first: 10, second: 20}, 1e-10)
    self.assertAlmostEqual(profile.epsilon(delta), expected, delta=3e-4 * expected + 1e-9)
    # The accountant's own is an upper bound, too; delta is nowhere far below.
    at = float(profile.delta(np.array([expected]))[0])
    self.assertBetween(at / delta, 0.99 if expected else 0, 1.01)

  def test_everybody_in_every_round_is_no_sampling(self):
    nearly = composition.compose({accountant.GaussianLoss(0.2, 1 - 1e-9): 25, _REPORT: 1}, 1e-10)
    whole = composition.compose({accountant.GaussianLoss(0.2): 25, _REPORT: 1}, 1e-10)
    self.assertAlmostEqual(nearly.epsilon(1e-5) / whole.epsilon(1e-5), 1, delta=1e-4)

  def test_never_more_than_without_sampling_and_grows_with_every_release(self):
    one = accountant.GaussianLoss(1.0, 0.2)
    two = accountant.GaussianLoss(0.5, 0.7)
    epsilons = [
        composition.compose(losses, 1e-10).epsilon(1e-5)
        for losses in (
            {one: 3}, {one: 4}, {one: 4, two: 1}, {one: 4, two: 2, _REPORT: 1},
            {one._replace(share=1.0): 4, two._replace(share=1.0): 2, _REPORT: 1},
        )
    ]
    self.assertTrue((np.diff(epsilons) > 0).all(), epsilons)

  def test_below_what_convolutions_resolve_the_bound_without_a_grid_remains(self):
    losses = {accountant.GaussianLoss(1.0, 0.2): 4, _REPORT: 1}
    tiny = composition.compose(losses, 1e-30).epsilon(1e-30)
    whole = accountant.gaussian_epsilon(2, population=9, cohort=9, rounds=4, delta=1e-30)
    self.assertAlmostEqual(tiny, whole + 0.81, places=6)

  @parameterized.parameters(1e-6, 0.01, 1e6)
  def test_extreme_noise(self, noise):
    losses = {accountant.GaussianLoss(2 / noise, 0.1): 10, accountant.GaussianLoss(1, 0.1): 10}
    profile = composition.compose(losses, 1e-10)
    alone = accountant.gaussian_epsilon(noise, population=100, cohort=10, rounds=10, delta=1e-5)
    self.assertGreaterEqual(profile.epsilon(1e-5), alone * (1 - 1e-4))
    self.assertLess(profile.epsilon(1e-5), math.inf)
    deltas = profile.delta(np.linspace(0, profile.epsilon(1e-5), 5))
    self.assertTrue(((deltas >= 0) & (deltas <= 1)).all())
    self.assertTrue((np.diff(deltas) <= 0).all())

  def test_delta_has_to_be_one(self):
    with self.assertRaisesRegex(ValueError, 'delta must be in'):
      composition.compose({_REPORT: 1}, 1e-10).epsilon(0.0)


class DistanceTest(absltest.TestCase):

  def test_samples_that_are_off_cost_delta(self):
    exact = accountant.GaussianLoss(0.5)
    off = exact._replace(distance=1e-6)
    epsilons = np.array([0, 1.0, 2.0])
    more = composition.compose({off: 3}, 1e-10).delta(epsilons) - composition.compose(
        {exact: 3}, 1e-10
    ).delta(epsilons)
    np.testing.assert_allclose(more, 3e-6 * (1 + np.exp(epsilons)), rtol=1e-6)
    # Where it is not negligible nothing is claimed.
    self.assertEqual(composition.compose({off: 3}, 1e-10).epsilon(1e-5), math.inf)

  def test_what_holds_at_an_epsilon_holds_at_larger_ones(self):
    loss = accountant.GaussianLoss(2.0, distance=discrete_gaussian.DISTANCE)
    deltas = composition.compose({loss: 5}, 1e-10).delta(np.linspace(0, 400, 41))
    self.assertTrue((np.diff(deltas) <= 0).all())
    self.assertLess(deltas[-1], 1e-20)

  def test_that_of_the_discrete_gaussian_is_negligible_until_it_is_not(self):
    def epsilon(rounds):
      loss = accountant.GaussianLoss(2.0, distance=discrete_gaussian.DISTANCE)
      return composition.compose({loss: rounds}, 1e-10).epsilon(1e-5)

    for rounds in (20, 60):
      expected = accountant.discrete_gaussian_epsilon(
          1.0, population=20, cohort=20, rounds=rounds, delta=1e-5
      )
      if math.isinf(expected):
        self.assertEqual(epsilon(rounds), math.inf)
      else:
        self.assertAlmostEqual(epsilon(rounds), expected, places=5)


if __name__ == '__main__':
  absltest.main()
