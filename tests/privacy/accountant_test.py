"""Tests of composition against closed forms, exact sums and dp_accounting."""

import math

import dp_accounting
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized
from dp_accounting import rdp
from dp_accounting.pld import privacy_loss_distribution
from scipy import stats

from tff_noise.privacy import accountant
from tff_noise.privacy import discrete_gaussian
from tff_noise.privacy import mechanism

# ln 2.25, ln 3.25 and ln 24.75: the epsilons at which K = 10, 14, 100 keep a label with .2.
_LN_225 = '0.81093021621632876396'
_LN_325 = '1.1786549963416462053'
_LN_2475 = '3.2088254890146993757'

_NAN = float('nan')


def _loss_probabilities(table, releases):
  """P(S_R = j) for j = -R, ..., R, as a plain sum of trinomials."""
  a, b = table.keep_probability, table.other_probability
  rest = 1 - a - b

  def term(plus, minus):
    zero = releases - plus - minus
    if zero and not rest > 1e-15:
      return 0.0
    log = math.lgamma(releases + 1)
    for count, probability in ((plus, a), (minus, b), (zero, rest)):
      if count:
        log += count * math.log(probability) - math.lgamma(count + 1)
    return math.exp(log)

  probabilities = {}
  for j in range(-releases, releases + 1):
    first = max(0, -j)
    probabilities[j] = math.fsum(
        term(k + j, k) for k in range(first, (releases - j) // 2 + 1)
    )
  return probabilities


def _exact_delta(table, probabilities, epsilon):
  step = table.actual_epsilon
  return math.fsum(
      p * -math.expm1(epsilon - j * step) for j, p in probabilities.items() if j * step > epsilon
  )


def _exact_epsilon(table, releases, delta):
  probabilities = _loss_probabilities(table, releases)
  low, high = 0.0, releases * table.actual_epsilon
  for _ in range(60):
    middle = (low + high) / 2
    if _exact_delta(table, probabilities, middle) > delta:
      low = middle
    else:
      high = middle
  return high


def _gaussian_delta(epsilon, mu):
  return stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(
      -mu / 2 - epsilon / mu
  )


def _renyi(noise, population, cohort, rounds, delta):
  """dp_accounting's bound for the same sampling, noise over the sensitivity 2 S."""
  event = dp_accounting.SampledWithoutReplacementDpEvent(
      population, cohort, dp_accounting.GaussianDpEvent(noise / 2)
  )
  renyi = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
  renyi.compose(dp_accounting.SelfComposedDpEvent(event, rounds))
  return renyi.get_epsilon(delta)


class RandomizedResponseTest(parameterized.TestCase):

  @parameterized.parameters(
      (10, _LN_225, 1, 0.810880),
      (10, _LN_225, 10, 6.347229),
      (10, _LN_225, 30, 12.143320),
      (10, _LN_225, 100, 26.660238),
      (10, _LN_225, 300, 57.945255),
      (14, _LN_325, 300, 91.574998),
      (100, _LN_2475, 300, 285.531973),
      (10, '1', 10, 7.993306),
      (10, '0.1', 300, 3.357717),
  )
  def test_the_references_table(self, num_classes, epsilon, releases, expected):
    table = mechanism.randomized_response(epsilon, num_classes)
    actual = accountant.randomized_response_epsilon(table, releases, 1e-5)
    # Six decimals are printed, and those of the last digits are what slack may change.
    self.assertAlmostEqual(actual, expected, delta=2e-6)

  @parameterized.product(
      setting=[(10, _LN_225), (14, _LN_325), (100, _LN_2475), (3, '0.3'), (2, '0.81')],
      releases=[1, 2, 10, 300],
      delta=[1e-9, 1e-5, 0.1],
  )
  def test_just_above_the_exact_sum(self, setting, releases, delta):
    table = mechanism.randomized_response(setting[1], setting[0])
    exact = _exact_epsilon(table, releases, delta)
    actual = accountant.randomized_response_epsilon(table, releases, delta)
    self.assertGreaterEqual(actual, exact * (1 - 1e-14))
    # At the smallest delta, the slack for the convolution is a hundredth of it.
    self.assertLessEqual(actual, exact * (1 + (1e-2 if delta < 1e-8 else 1e-6)))

  def test_delta_at_epsilon_two(self):
    table = mechanism.randomized_response(_LN_225, 10)
    delta = _exact_delta(table, _loss_probabilities(table, 10), 2)
    # By rational arithmetic with e^2 to 50 digits.
    self.assertAlmostEqual(delta, 0.09930328815104072, places=14)
    epsilon = accountant.randomized_response_epsilon(table, 10, delta)
    self.assertGreaterEqual(epsilon, 2)
    self.assertAlmostEqual(epsilon, 2, places=7)

  @parameterized.parameters('0.01', '0.81', '3', '12')
  def test_never_above_basic_composition_or_the_claim(self, epsilon):
    table = mechanism.randomized_response(epsilon, 10)
    for delta in (0, 1e-300, 1e-15, 1e-12, 1e-5, 0.5):
      with self.subTest(delta=delta):
        self.assertLessEqual(
            accountant.randomized_response_epsilon(table, 1, delta), float(epsilon)
        )
        for releases in (2, 7, 500):
          self.assertLessEqual(
              accountant.randomized_response_epsilon(table, releases, delta),
              releases * table.actual_epsilon,
          )

  def test_without_delta_composition_is_basic(self):
    table = mechanism.randomized_response('0.81', 10)
    self.assertEqual(
        accountant.randomized_response_epsilon(table, 300, 0), 300 * table.actual_epsilon
    )
    self.assertEqual(accountant.randomized_response_epsilon(table, 1, 0), table.actual_epsilon)

  def test_nothing_released_costs_nothing(self):
    table = mechanism.randomized_response('0.81', 10)
    self.assertEqual(accountant.randomized_response_epsilon(table, 0, 0), 0)
    self.assertEqual(accountant.randomized_response_epsilon(table, 0, 1e-5), 0)

  def test_grows_with_releases_and_falls_with_delta(self):
    table = mechanism.randomized_response('0.81', 10)
    in_releases = [accountant.randomized_response_epsilon(table, r, 1e-5) for r in range(1, 60)]
    self.assertTrue((np.diff(in_releases) > 0).all())
    deltas = (0, 1e-14, 1e-11, 1e-8, 1e-5, 1e-2, 0.5, 0.99)
    in_delta = [accountant.randomized_response_epsilon(table, 30, d) for d in deltas]
    self.assertTrue((np.diff(in_delta) <= 0).all(), in_delta)

  def test_repetitions_are_counted(self):
    # Later versions of dp_accounting have an event for this mechanism that ignores its count.
    table = mechanism.randomized_response('1', 10)
    self.assertGreater(accountant.randomized_response_epsilon(table, 10, 1e-5), 7.99)

  def test_the_noise_parameter_is_not_the_probability_of_a_wrong_label(self):
    table = mechanism.randomized_response(_LN_225, 10)

    def library(noise):
      loss = privacy_loss_distribution.from_randomized_response(noise, 10)
      return loss.get_epsilon_for_delta(0)

    ours = accountant.randomized_response_epsilon(table, 1, 0)
    self.assertAlmostEqual(library(10 * table.other_probability), ours, delta=1e-4)
    self.assertAlmostEqual(library(1 - table.keep_probability), 1.2528, delta=1e-4)

  @parameterized.parameters(
      (-1, 1e-5, 'releases'),
      (1.5, 1e-5, 'releases'),
      (_NAN, 1e-5, 'releases'),
      (True, 1e-5, 'releases'),
      (1, -1e-9, 'delta'),
      (1, 1, 'delta'),
      (1, _NAN, 'delta'),
      (0, _NAN, 'delta'),
  )
  def test_refuses(self, releases, delta, message):
    table = mechanism.randomized_response('0.81', 10)
    with self.assertRaisesRegex(ValueError, message):
      accountant.randomized_response_epsilon(table, releases, delta)


class ComposedTest(absltest.TestCase):

  def test_two_points_hold_randomised_response_exactly(self):
    table = mechanism.randomized_response('0.81', 10)
    profile = np.array([table.keep_probability - table.other_probability, 0])
    self.assertAlmostEqual(
        accountant.composed_epsilon(profile, table.actual_epsilon, 30, 1e-5),
        accountant.randomized_response_epsilon(table, 30, 1e-5),
        places=8,
    )

  def test_many_gaussians_are_one(self):
    mu, rounds, interval = 0.1, 100, 1e-3
    grid = interval * np.arange(1000)
    profile = np.array([_gaussian_delta(epsilon, mu) for epsilon in grid])
    composed = accountant.composed_epsilon(profile, interval, rounds, 1e-5)
    at = _gaussian_delta(composed, mu * math.sqrt(rounds))
    self.assertLessEqual(at, 1e-5)
    self.assertGreater(at, 0.999e-5)

  def test_solve_brackets_and_stops(self):
    below, above = accountant.solve(lambda epsilon: math.exp(-epsilon), 1e-3, 100)
    self.assertLess(below, math.log(1000))
    self.assertGreater(above, math.log(1000))
    self.assertLess(above - below, 1e-7)
    self.assertEqual(accountant.solve(lambda epsilon: math.exp(-epsilon), 1e-3, 1), (1, math.inf))
    self.assertEqual(accountant.solve(lambda epsilon: 1e-4, 1e-3, 1), (0, 0))


class GaussianTest(parameterized.TestCase):

  @parameterized.parameters((1, 0.1, 300, 12.3979), (1, 1, 1, 4.3772), (0.5, 0.1, 300, 57.4397))
  def test_poisson_sampling_of_the_reference(self, noise, share, rounds, expected):
    actual = accountant.poisson_gaussian_epsilon(noise, share, rounds, 1e-5)
    self.assertAlmostEqual(actual, expected, delta=5.1e-5)

  def test_replacing_a_client_counts_twice_the_clipping_norm(self):
    replaced = accountant.gaussian_epsilon(2, population=10, cohort=10, rounds=1, delta=1e-5)
    added = accountant.poisson_gaussian_epsilon(1, 1, 1, 1e-5)
    self.assertAlmostEqual(replaced, 4.3772, delta=5e-5)
    self.assertAlmostEqual(replaced, added, places=9)
    self.assertLessEqual(_gaussian_delta(replaced, 1), 1e-5)

  def test_without_sampling_rounds_are_one_release(self):
    epsilon = accountant.gaussian_epsilon(20, population=7, cohort=7, rounds=100, delta=1e-5)
    at = _gaussian_delta(epsilon, 1)
    self.assertLessEqual(at, 1e-5)
    self.assertAlmostEqual(at, 1e-5, delta=1e-11)

  @parameterized.parameters((1, 100, 10), (2, 1000, 3), (0.5, 50, 49))
  def test_one_round_is_the_amplification_theorem(self, noise, population, cohort):
    delta, share = 1e-5, cohort / population
    epsilon = accountant.gaussian_epsilon(
        noise, population=population, cohort=cohort, rounds=1, delta=delta
    )
    plain = math.log1p(math.expm1(epsilon) / share)
    at = share * _gaussian_delta(plain, 2 / noise)
    self.assertLessEqual(at, delta)
    self.assertGreater(at, 0.999 * delta)

  @parameterized.parameters((1, 100, 10, 300), (4, 1000, 10, 300), (20, 100, 10, 300))
  def test_between_poisson_sampling_and_renyi(self, noise, population, cohort, rounds):
    actual = accountant.gaussian_epsilon(
        noise, population=population, cohort=cohort, rounds=rounds, delta=1e-5
    )
    # The same amplification, but in one order of the neighbours alone.
    below = accountant.poisson_gaussian_epsilon(noise / 2, cohort / population, rounds, 1e-5)
    above = _renyi(noise, population, cohort, rounds, 1e-5)
    self.assertGreater(actual, below)
    self.assertLess(actual, above)

  def test_the_comparison_of_the_docstring(self):
    actual = accountant.gaussian_epsilon(2, population=100, cohort=10, rounds=300, delta=1e-5)
    self.assertAlmostEqual(actual, 14.4496, delta=1e-4)
    self.assertAlmostEqual(_renyi(2, 100, 10, 300, 1e-5), 26.0, delta=0.05)

  def test_monotone(self):
    def epsilon(noise=2, population=100, cohort=10, rounds=30, delta=1e-5):
      return accountant.gaussian_epsilon(
          noise, population=population, cohort=cohort, rounds=rounds, delta=delta
      )

    self.assertLess(epsilon(), epsilon(rounds=31))
    self.assertLess(epsilon(), epsilon(cohort=11))
    self.assertLess(epsilon(cohort=99), epsilon(cohort=100))
    self.assertLess(epsilon(population=101), epsilon())
    self.assertLess(epsilon(noise=2.1), epsilon())
    self.assertLess(epsilon(delta=2e-5), epsilon())

  def test_limits(self):
    for rounds, noise, expected in ((0, 1, 0), (0, 0, 0), (1, 0, math.inf)):
      with self.subTest(rounds=rounds, noise=noise):
        self.assertEqual(
            accountant.gaussian_epsilon(
                noise, population=9, cohort=3, rounds=rounds, delta=1e-5
            ),
            expected,
        )
        self.assertEqual(
            accountant.poisson_gaussian_epsilon(noise, 0.5, rounds, 1e-5), expected
        )
    self.assertEqual(accountant.poisson_gaussian_epsilon(1, 0, 10, 1e-5), 0)

  @parameterized.parameters(.058, .06, .065)
  def test_noise_at_which_dp_accounting_overflows(self, noise):
    # A client that is removed is one whose update is replaced by 0.
    found = accountant.poisson_gaussian_epsilon(noise, 0.07, 100, 1e-5)
    self.assertLess(found, accountant.poisson_gaussian_epsilon(noise, 1, 100, 1e-5) / 2)
    for rounds in (1, 30):
      self.assertLessEqual(
          accountant.poisson_gaussian_epsilon(noise, 0.9, rounds, 1e-5),
          accountant.poisson_gaussian_epsilon(noise, 1, rounds, 1e-5),
      )
    more, less = (
        accountant.poisson_gaussian_epsilon(noise * by, 0.07, 100, 1e-5) for by in (0.98, 1.02)
    )
    self.assertBetween(found, less, more)

  def test_extreme_noise_and_delta(self):
    for noise in (1e-6, 0.01, 1e3, 1e6):
      with self.subTest(noise=noise):
        epsilon = accountant.gaussian_epsilon(
            noise, population=100, cohort=10, rounds=10, delta=1e-6
        )
        whole = accountant.gaussian_epsilon(
            noise, population=10, cohort=10, rounds=10, delta=1e-6
        )
        self.assertLessEqual(epsilon, whole)
        self.assertGreaterEqual(epsilon, 0)
    # Below what a convolution resolves, the bound without sampling remains.
    tiny = [
        accountant.gaussian_epsilon(2, population=100, cohort=cohort, rounds=10, delta=1e-30)
        for cohort in (10, 100)
    ]
    self.assertEqual(tiny[0], tiny[1])
    self.assertLess(tiny[0], math.inf)

  @parameterized.parameters(
      ({'cohort': 11}, 'at most the population'),
      ({'cohort': 0}, 'cohort'),
      ({'cohort': 2.0}, 'cohort'),
      ({'population': 0}, 'population'),
      ({'rounds': -1}, 'rounds'),
      ({'rounds': True}, 'rounds'),
      ({'delta': 0}, 'delta'),
      ({'delta': 1}, 'delta'),
      ({'delta': _NAN}, 'delta'),
      ({'noise_multiplier': -1}, 'noise multiplier'),
      ({'noise_multiplier': _NAN}, 'noise multiplier'),
      ({'noise_multiplier': math.inf}, 'noise multiplier'),
  )
  def test_refuses(self, change, message):
    valid = {'noise_multiplier': 1, 'population': 10, 'cohort': 5, 'rounds': 3, 'delta': 1e-5}
    with self.assertRaisesRegex(ValueError, message):
      accountant.gaussian_epsilon(**{**valid, **change})

  @parameterized.parameters(
      (1, -0.1, 1, 1e-5, 'sampling probability'),
      (1, 1.1, 1, 1e-5, 'sampling probability'),
      (1, _NAN, 1, 1e-5, 'sampling probability'),
      (_NAN, 0.1, 1, 1e-5, 'noise multiplier'),
      (1, 0.1, -1, 1e-5, 'rounds'),
      (1, 0.1, 1, 0, 'delta'),
  )
  def test_poisson_refuses(self, noise, share, rounds, delta, message):
    with self.assertRaisesRegex(ValueError, message):
      accountant.poisson_gaussian_epsilon(noise, share, rounds, delta)


def _pair(noise, share, z):
  """The densities at z of the pair that replacing a client under Poisson sampling is."""
  rest = (1 - share) * stats.norm.pdf(z)
  return (
      rest + share * stats.norm.pdf(z, 1 / noise), rest + share * stats.norm.pdf(z, -1 / noise)
  )


def _one_replaced(noise, share, epsilon):
  """delta of one round, by numeric integration: right to ten digits."""
  reach = 40 + 1 / noise
  z, step = np.linspace(-reach, reach, 2_000_001, retstep=True)
  p, q = _pair(noise, share, z)
  return np.maximum(0, p - math.exp(epsilon) * q).sum() * step


def _at_least(noise, share, rounds, epsilon):
  """A lower bound of delta of many rounds: losses rounded down, and cut at a finite one."""
  interval, size = 2e-4, 2**20
  reach = 12 + 1 / noise
  # Cells of the line; what is in a cell has no smaller loss than at its left end.
  z = np.linspace(-reach, reach, 400_001)
  p, q = _pair(noise, share, z)
  losses = np.floor(np.log(p / q)[:-1] / interval).astype(int)
  masses = (1 - share) * np.diff(stats.norm.cdf(z)) + share * np.diff(stats.norm.cdf(z, 1 / noise))
  spectrum = np.fft.rfft(np.bincount(losses % size, masses, minlength=size))
  composed = np.fft.irfft(spectrum**rounds, size)
  total = np.arange(size)
  total = interval * np.where(total < size // 2, total, total - size)
  mean = masses @ losses
  deviation = math.sqrt(rounds * (masses @ (losses - mean) ** 2))
  assert abs(rounds * mean) + 20 * deviation < size // 2  # Nothing comes round.
  above = total > epsilon
  return float((composed[above] * -np.expm1(epsilon - total[above])).sum())


class PoissonReplacedTest(parameterized.TestCase):

  @parameterized.parameters((1, 0.1), (0.5, 0.3), (3, 0.01), (2, 0.9), (0.1, 0.5))
  def test_one_round_is_the_pair_by_numeric_integration(self, noise, share):
    epsilon = accountant.poisson_replaced_epsilon(noise, share, 1, 1e-5)
    self.assertLessEqual(_one_replaced(noise, share, epsilon), 1e-5 * (1 + 1e-9))
    self.assertGreater(_one_replaced(noise, share, epsilon), 0.999e-5)

  @parameterized.parameters((1, 0.1, 30), (2, 0.1, 300), (0.8, 0.3, 10), (4, 0.5, 100))
  def test_just_above_a_lower_bound_of_many_rounds(self, noise, share, rounds):
    epsilon = accountant.poisson_replaced_epsilon(noise, share, rounds, 1e-5)
    self.assertLessEqual(_at_least(noise, share, rounds, epsilon), 1e-5)
    self.assertGreater(_at_least(noise, share, rounds, 0.99 * epsilon), 1e-5)

  @parameterized.parameters(0.0, 60.0, 120.0, 180.0)
  def test_no_records_are_told_apart_better(self, angle):
    # Records of the plane by Monte Carlo, at angles: at 180 degrees it is the pair itself.
    noise, share, epsilon, n = 0.7, 0.3, 1.0, 400_000
    old = np.array([1.0, 0.0]) / noise
    turn = math.radians(angle)
    new = np.array([math.cos(turn), math.sin(turn)]) / noise
    draw = np.random.default_rng(0)
    seen = draw.normal(size=(n, 2)) + old * (draw.random((n, 1)) < share)

    def density(record):
      # Over that of noise alone.
      return (1 - share) + share * np.exp(seen @ record - record @ record / 2)

    gain = np.maximum(0, 1 - math.exp(epsilon) * density(new) / density(old))
    claimed = _one_replaced(noise, share, epsilon)
    error = 4 * gain.std() / math.sqrt(n)
    self.assertLessEqual(gain.mean(), claimed + error)
    if angle == 180:
      self.assertGreaterEqual(gain.mean(), claimed - error)

  @parameterized.parameters((1, 0.1, 100), (2, 0.02, 1000), (0.3, 0.5, 20), (50, 0.2, 500))
  def test_between_adding_one_and_cohorts_of_fixed_size(self, noise, share, rounds):
    actual = accountant.poisson_replaced_epsilon(noise, share, rounds, 1e-5)
    self.assertGreater(actual, accountant.poisson_gaussian_epsilon(noise, share, rounds, 1e-5))
    fixed = accountant.gaussian_epsilon(
        noise, population=1000, cohort=round(1000 * share), rounds=rounds, delta=1e-5
    )
    self.assertLessEqual(actual, fixed)

  def test_no_more_than_two_steps_of_group_privacy(self):
    # (e, d) for each step is (2 e, (1 + exp(e)) d) for both.
    step = accountant.poisson_gaussian_epsilon(2.0, 0.1, 300, 1e-8)
    delta = (1 + math.exp(step)) * 1e-8
    self.assertLess(accountant.poisson_replaced_epsilon(2.0, 0.1, 300, delta), 2 * step)

  def test_with_everybody_in_every_round_it_is_the_gaussian(self):
    expected = accountant.gaussian_epsilon(2, population=7, cohort=7, rounds=9, delta=1e-5)
    self.assertEqual(accountant.poisson_replaced_epsilon(2, 1, 9, 1e-5), expected)
    almost = accountant.poisson_replaced_epsilon(2, 1 - 1e-9, 9, 1e-5)
    self.assertBetween(almost, expected * (1 - 1e-6), expected)

  @parameterized.parameters(1e-4, 2e-4, 0.01, 1e3, 1e6)
  def test_extreme_noise(self, noise):
    for account in (accountant.poisson_replaced_epsilon, accountant.poisson_gaussian_epsilon):
      epsilon = account(noise, 0.2, 10, 1e-6)
      self.assertLessEqual(epsilon, account(noise, 1, 10, 1e-6))
      self.assertGreaterEqual(epsilon, 0)
    # With almost no noise sampling hides nobody, but from who draws no sample of him.
    if noise < 0.001:
      whole = accountant.poisson_replaced_epsilon(noise, 1, 10, 1e-6)
      self.assertGreater(accountant.poisson_replaced_epsilon(noise, 0.2, 10, 1e-6), whole / 10)

  def test_limits(self):
    self.assertEqual(accountant.poisson_replaced_epsilon(1, 0.5, 0, 1e-5), 0)
    self.assertEqual(accountant.poisson_replaced_epsilon(1, 0, 3, 1e-5), 0)
    self.assertEqual(accountant.poisson_replaced_epsilon(0, 0.5, 3, 1e-5), math.inf)
    with self.assertRaisesRegex(ValueError, 'sampling probability'):
      accountant.poisson_replaced_epsilon(1, 1.1, 3, 1e-5)

  def test_monotone(self):
    def epsilon(noise=2, share=0.1, rounds=30, delta=1e-5):
      return accountant.poisson_replaced_epsilon(noise, share, rounds, delta)

    self.assertLess(epsilon(), epsilon(rounds=31))
    self.assertLess(epsilon(), epsilon(share=0.11))
    self.assertLess(epsilon(noise=2.1), epsilon())
    self.assertLess(epsilon(delta=2e-5), epsilon())


class DiscreteGaussianTest(parameterized.TestCase):

  @parameterized.parameters((1.0, 64), (0.5, 400), (3.0, 64))
  def test_covers_the_exact_profile_of_the_sum_of_shares(self, multiplier, variance):
    # In one dimension, rounded records of norm 2 S apart: all probabilities by convolution.
    clients, delta, most = 4, 1e-6, 2000
    k = np.arange(-most, most + 1)
    share = np.exp(-(k**2) / (2 * variance))
    share /= share.sum()
    total = share
    for _ in range(clients - 1):
      total = np.convolve(total, share)[most:-most]
    # The largest norm that this noise is said to be enough for.
    norm = int(math.sqrt((clients * variance - discrete_gaussian.SMOOTHING) / multiplier**2))
    moved = np.roll(total, 2 * norm)
    epsilon = accountant.discrete_gaussian_epsilon(
        multiplier, population=9, cohort=9, rounds=1, delta=delta
    )
    exact = np.maximum(0, total - math.exp(epsilon) * moved)[2 * norm :].sum()
    self.assertLessEqual(exact, delta * (1 + 1e-6))
    # Not by far: a tenth less would not do, but for what the norm is rounded by.
    less = np.maximum(0, total - math.exp(0.9 * epsilon) * moved)[2 * norm :].sum()
    if norm > 30:
      self.assertGreater(less, delta)

  def test_is_infinite_where_the_distance_of_samples_is_not_negligible(self):
    def cost(multiplier, rounds):
      return accountant.discrete_gaussian_epsilon(
          multiplier, population=20, cohort=20, rounds=rounds, delta=1e-5
      )

    self.assertEqual(cost(1.0, 0), 0)
    self.assertBetween(cost(1.0, 20), 70, 90)
    self.assertEqual(cost(1.0, 60), math.inf)
    self.assertEqual(cost(0.0, 1), math.inf)


if __name__ == '__main__':
  absltest.main()
