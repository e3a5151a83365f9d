"""Tests of the bounds for sums of flipped labels against tables and exhaustive enumeration."""

import collections
import functools
import itertools
import math
import warnings

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise.privacy import accountant
from tff_noise.privacy import amplification
from tff_noise.privacy import mechanism

# ln 2.25, ln 3.25 and ln 24.75: the epsilons at which K = 10, 14, 100 keep a label with .2.
_EPSILON = {
    10: '0.81093021621632876396',
    14: '1.1786549963416462053',
    100: '3.2088254890146993757',
}
# K, n, lower and upper at delta 1e-6, upper at 1e-5; decimals as printed there.
_TABLE = (
    (10, 100, 0.195917, 0.225932, 0.190032),
    (10, 1000, 0.058237, 0.060482, 0.049651),
    (10, 10_000, 0.016841, 0.017043, 0.013437),
    (10, 50_000, 0.007003, 0.007044, 0.005337),
    (10, 100_000, 0.004785, 0.004806, 0.003564),
    (10, 1_000_000, 0.001327, 0.001330, 0.000891),
    (14, 1000, 0.089712, 0.093615, 0.077718),
    (14, 100_000, 0.007458, 0.007494, 0.005697),
    (14, 1_000_000, 0.002088, 0.002093, 0.001463),
    (100, 100, 1.071776, 1.236912, 1.093877),
    (100, 1000, 0.367354, 0.385647, 0.332200),
    (100, 50_000, 0.046512, 0.046856, 0.038263),
    (100, 1_000_000, 0.009183, 0.009206, 0.007071),
)
# n, K, local epsilon, central epsilon, delta of the worst neighbours, full blanket.
_BRUTE = (
    (6, 3, '1', 0.3, 0.0819179400, 0.0822872089),
    (8, 4, '2', 0.5, 0.2473933928, 0.2478851319),
    (7, 5, _EPSILON[10], 0.2, 0.0368205013, 0.0374718564),
)


def _sum_of_reports(table, labels):
  """The distribution of the histogram of the flipped labels, by adding one label at a time."""
  distribution = {(0,) * table.num_classes: 1.0}
  for label in labels:
    following = collections.defaultdict(float)
    for counts, probability in distribution.items():
      for report in range(table.num_classes):
        chance = table.keep_probability if report == label else table.other_probability
        added = counts[:report] + (counts[report] + 1,) + counts[report + 1 :]
        following[added] += probability * chance
    distribution = following
  return distribution


def _pair(table, others):
  old = _sum_of_reports(table, (0,) + others)
  new = _sum_of_reports(table, (1,) + others)
  return np.array([old[counts] for counts in old]), np.array([new[counts] for counts in old])


def _hockey_stick(old, new, epsilon):
  return float(np.maximum(old - math.exp(epsilon) * new, 0).sum())


@functools.cache
def _worst_delta(epsilon0, num_classes, num_labels, epsilon):
  """The largest delta over all labels of the others; the replaced label is 0 or 1."""
  table = mechanism.randomized_response(epsilon0, num_classes)
  return max(
      _hockey_stick(*_pair(table, others), epsilon)
      for others in itertools.combinations_with_replacement(range(num_classes), num_labels - 1)
  )


def _full_blanket(table, num_labels, epsilon):
  """The blanket's delta, summed over every number of uniform reports and what they are."""
  a, b, classes = table.keep_probability, table.other_probability, table.num_classes
  share, total = classes * b, 0.0
  for others in range(num_labels):
    m = others + 1
    chance = math.comb(num_labels - 1, others) * share**others * (1 - share) ** (
        num_labels - 1 - others
    )
    for h0 in range(m + 1):
      for h1 in range(m - h0 + 1):
        rest = m - h0 - h1
        ways = math.comb(m, h0) * math.comb(m - h0, h1) * (classes - 2) ** rest / classes**m
        growth = math.exp(epsilon)
        value = (a - b) * (h0 - growth * h1) + b * m * (1 - growth)
        total += chance * ways * classes / m * max(value, 0)
  return total


class CentralTest(parameterized.TestCase):

  @parameterized.parameters(*_TABLE)
  def test_the_references_table(self, num_classes, num_labels, lower, upper, upper_5):
    table = mechanism.randomized_response(_EPSILON[num_classes], num_classes)
    bounds = amplification.central_epsilon(table, num_labels, 1e-6)
    np.testing.assert_allclose(bounds.lower, lower, rtol=0, atol=0.6e-6)
    looser = amplification.central_epsilon(table, num_labels, 1e-5)
    # There one number of uniform reports stands for all larger ones: few of them cost much.
    for found, printed in ((bounds.upper, upper), (looser.upper, upper_5)):
      self.assertLess(found, printed + 0.6e-6)
      self.assertGreater(found, printed * (1 - 1.2 / math.sqrt(num_labels)) - 0.6e-6)

  @parameterized.parameters((10, '3', 60), (4, '5', 60), (10, '0.5', 40))
  def test_is_little_above_the_whole_blanket(self, num_classes, epsilon0, num_labels):
    table = mechanism.randomized_response(epsilon0, num_classes)
    for delta in (1e-6, 1e-3):
      upper = amplification.central_epsilon(table, num_labels, delta).upper
      self.assertLessEqual(_full_blanket(table, num_labels, upper), delta)
      self.assertGreater(_full_blanket(table, num_labels, 0.92 * upper), delta)

  @parameterized.parameters(*_BRUTE)
  def test_every_neighbour_lies_below_the_upper_bound(
      self, num_labels, num_classes, epsilon0, epsilon, delta, blanket
  ):
    table = mechanism.randomized_response(epsilon0, num_classes)
    worst = _worst_delta(epsilon0, num_classes, num_labels, epsilon)
    self.assertAlmostEqual(worst, delta, places=9)
    self.assertAlmostEqual(_full_blanket(table, num_labels, epsilon), blanket, places=9)
    # The true epsilon at this delta is `epsilon`.
    bounds = amplification.central_epsilon(table, num_labels, worst)
    self.assertGreaterEqual(bounds.upper, epsilon)
    self.assertLessEqual(bounds.lower, epsilon)
    # We replace the number of uniform reports by a quantile, which only adds to the blanket.
    bounds = amplification.central_epsilon(table, num_labels, blanket)
    self.assertGreaterEqual(bounds.upper, epsilon * (1 - 1e-7))

  @parameterized.parameters((3, '0.5', 9), (3, '3', 5), (4, '1', 6), (5, '2', 5))
  def test_bounds_hold_over_the_whole_profile(self, num_classes, epsilon0, num_labels):
    table = mechanism.randomized_response(epsilon0, num_classes)
    for share in (0.05, 0.3, 0.6, 0.9):
      epsilon = share * float(epsilon0)
      worst = _worst_delta(epsilon0, num_classes, num_labels, epsilon)
      bounds = amplification.central_epsilon(table, num_labels, worst)
      with self.subTest(epsilon=epsilon):
        self.assertGreaterEqual(bounds.upper, epsilon)
        self.assertLessEqual(bounds.lower, epsilon * (1 + 1e-12))

  def test_says_nothing_of_what_is_0_far_out(self):
    table = mechanism.randomized_response('8', 10)
    with warnings.catch_warnings():
      warnings.simplefilter('error')
      amplification.central_epsilon(table, 50_000, 1e-5)

  def test_the_lower_bound_is_exact_for_three_classes(self):
    table = mechanism.randomized_response('1', 3)
    lower = amplification.central_epsilon(table, 6, 0.0819179400).lower
    self.assertAlmostEqual(lower, 0.3, places=7)

  def test_the_lower_bound_is_no_guarantee(self):
    # The merged profile is 0.036388426 where some neighbours have 0.036820501.
    table = mechanism.randomized_response(_EPSILON[10], 5)
    bounds = amplification.central_epsilon(table, 7, 0.036388426)
    self.assertAlmostEqual(bounds.lower, 0.2, places=6)
    self.assertGreater(_worst_delta(_EPSILON[10], 5, 7, 0.2), 0.0368)
    self.assertGreater(bounds.upper, 0.2)

  @parameterized.product(
      setting=[(2, '0.81'), (3, '4'), (10, '0.01'), (10, '0.81'), (100, '10'), (10, '40')],
      num_labels=[1, 2, 3, 50, 3000],
      delta=[0, 5e-324, 1e-300, 1e-20, 1e-9, 1e-6, 0.5, 0.999],
  )
  def test_in_order_and_at_most_local(self, setting, num_labels, delta):
    table = mechanism.randomized_response(setting[1], setting[0])
    bounds = amplification.central_epsilon(table, num_labels, delta)
    self.assertLessEqual(0, bounds.lower)
    self.assertLessEqual(bounds.lower, bounds.upper)
    self.assertLessEqual(
        bounds.upper, accountant.randomized_response_epsilon(table, 1, delta)
    )

  def test_two_classes_have_no_lower_bound(self):
    table = mechanism.randomized_response('0.81', 2)
    bounds = amplification.central_epsilon(table, 1000, 1e-6)
    self.assertEqual(bounds.lower, 0)
    self.assertLess(bounds.upper, 0.2)
    # Against all splits of the other labels.
    worst = _worst_delta('0.81', 2, 30, 0.3)
    self.assertGreaterEqual(amplification.central_epsilon(table, 30, worst).upper, 0.3)

  def test_one_label_has_the_local_epsilon(self):
    table = mechanism.randomized_response('0.81', 10)
    bounds = amplification.central_epsilon(table, 1, 1e-5)
    self.assertEqual(bounds.upper, accountant.randomized_response_epsilon(table, 1, 1e-5))
    self.assertAlmostEqual(bounds.lower, bounds.upper, places=7)

  def test_falls_with_labels_and_delta_and_grows_with_epsilon(self):
    table = mechanism.randomized_response('0.81', 10)
    sizes = [amplification.central_epsilon(table, n, 1e-6) for n in (1, 10, 100, 101, 1000, 10_000)]
    self.assertTrue((np.diff([bounds.upper for bounds in sizes]) <= 0).all(), sizes)
    self.assertTrue((np.diff([bounds.lower for bounds in sizes]) <= 0).all(), sizes)
    deltas = [amplification.central_epsilon(table, 500, d) for d in (0, 1e-20, 1e-9, 1e-6, 0.01)]
    self.assertTrue((np.diff([bounds.upper for bounds in deltas]) <= 0).all(), deltas)
    local = [
        amplification.central_epsilon(mechanism.randomized_response(e, 10), 500, 1e-6)
        for e in ('0.1', '0.81', '2', '5')
    ]
    self.assertTrue((np.diff([bounds.upper for bounds in local]) > 0).all(), local)

  @parameterized.parameters(
      (0, 1e-6, 'num_labels'),
      (-5, 1e-6, 'num_labels'),
      (10.0, 1e-6, 'num_labels'),
      (10, 1, 'delta'),
      (10, -1e-6, 'delta'),
      (10, float('nan'), 'delta'),
  )
  def test_refuses(self, num_labels, delta, message):
    table = mechanism.randomized_response('0.81', 10)
    with self.assertRaisesRegex(ValueError, message):
      amplification.central_epsilon(table, num_labels, delta)
    with self.assertRaisesRegex(ValueError, message):
      amplification.composed_central_epsilon(table, num_labels, 3, delta)

  def test_a_million_labels(self):
    table = mechanism.randomized_response('0.81', 10)
    once = amplification.central_epsilon(table, 1_000_000, 1e-6)
    self.assertLess(once.upper, amplification.central_epsilon(table, 10_000, 1e-6).lower)
    often = amplification.composed_central_epsilon(table, 1_000_000, 300, 1e-6)
    self.assertGreater(often, once.upper)


class ComposedCentralTest(parameterized.TestCase):

  @parameterized.parameters(
      (10, 50_000, 300, 1e-6, 0.15495),
      (10, 50_000, 300, 1e-5, 0.13050),
      (10, 5000, 300, 1e-6, 0.53320),
      (10, 5000, 300, 1e-5, 0.45980),
      (10, 5000, 30, 1e-6, 0.15527),
      (10, 5000, 30, 1e-5, 0.13077),
      (100, 50_000, 300, 1e-6, 0.99754),
      (100, 50_000, 300, 1e-5, 0.86928),
  )
  def test_the_references_values(self, num_classes, num_labels, releases, delta, expected):
    # Those round every loss up to a multiple of 1e-5, so they are above ours by 0.5e-5 for each
    # release; for few classes that is the whole difference.
    table = mechanism.randomized_response(_EPSILON[num_classes], num_classes)
    actual = amplification.composed_central_epsilon(table, num_labels, releases, delta)
    self.assertLess(actual, expected)
    self.assertAlmostEqual(actual, expected - 0.5e-5 * releases, delta=1e-3)
    if num_classes == 10:
      self.assertAlmostEqual(actual, expected - 0.5e-5 * releases, delta=2e-4)

  @parameterized.parameters((3, '1', 30, 0.5), (3, '3', 25, 1.5), (4, '1', 9, 0.5))
  def test_two_sums_lie_below_the_bound(self, num_classes, epsilon0, num_labels, epsilon):
    table = mechanism.randomized_response(epsilon0, num_classes)
    old, new = _pair(table, (2,) * (num_labels - 1))
    delta = _hockey_stick(np.outer(old, old), np.outer(new, new), epsilon)
    actual = amplification.composed_central_epsilon(table, num_labels, 2, delta)
    self.assertGreaterEqual(actual, epsilon)
    self.assertLessEqual(actual, accountant.randomized_response_epsilon(table, 2, delta))

  def test_limits(self):
    table = mechanism.randomized_response('0.81', 10)
    self.assertEqual(amplification.composed_central_epsilon(table, 1000, 0, 1e-6), 0)
    self.assertEqual(
        amplification.composed_central_epsilon(table, 1000, 1, 1e-6),
        amplification.central_epsilon(table, 1000, 1e-6).upper,
    )
    self.assertEqual(
        amplification.composed_central_epsilon(table, 1000, 5, 0), 5 * table.actual_epsilon
    )

  def test_grows_with_releases_and_is_at_most_basic(self):
    table = mechanism.randomized_response('0.81', 10)
    values = [
        amplification.composed_central_epsilon(table, 1000, r, 1e-6) for r in (0, 1, 2, 3, 10, 100)
    ]
    self.assertTrue((np.diff(values) > 0).all(), values)
    each = amplification.central_epsilon(table, 1000, 1e-7).upper
    self.assertLess(values[4], 10 * each)

  def test_refuses_negative_releases(self):
    with self.assertRaisesRegex(ValueError, 'releases'):
      amplification.composed_central_epsilon(
          mechanism.randomized_response('0.81', 10), 1000, -1, 1e-6
      )


if __name__ == '__main__':
  absltest.main()
