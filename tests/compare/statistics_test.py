"""Tests of what a few seeds tell: by hand, and how often it errs where nothing differs."""

import math

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise.compare import statistics


def _by_method(values):
  """By method and seed, from `[seeds, methods]`."""
  return {str(m): dict(enumerate(column)) for m, column in enumerate(values.T)}


def _all_may_be_best(draw, seeds, methods, tables, deviations=1.0):
  """The share of tables in which all of some methods of equal means may be the best."""
  kept = 0
  for _ in range(tables):
    values = draw((seeds, methods)) * deviations + 2 * draw((seeds, 1))
    kept += all(statistics.may_be_best(_by_method(values)).values())
  return kept / tables


class PairedTest(parameterized.TestCase):

  def test_by_hand(self):
    difference = statistics.paired({0: 3.0, 1: 5.0, 2: 7.0}, {0: 1.0, 1: 2.0, 2: 3.0})
    # 2, 3, 4: mean 3, standard error 1 / sqrt(3), t of two degrees of freedom 4.3027.
    self.assertAlmostEqual(difference.mean, 3)
    self.assertAlmostEqual(difference.low, 3 - 4.302653 / math.sqrt(3), places=5)
    self.assertAlmostEqual(difference.high, 3 + 4.302653 / math.sqrt(3), places=5)
    self.assertEqual(difference.n, 3)
    self.assertTrue(math.isnan(difference.p))

  @parameterized.parameters(0, 1, 2)
  def test_fewer_than_three_seeds_have_no_interval(self, seeds):
    difference = statistics.paired({s: s + 3.0 for s in range(seeds)}, dict.fromkeys(range(9), 1.0))
    self.assertEqual(difference.n, seeds)
    self.assertTrue(math.isnan(difference.low) and math.isnan(difference.high))

  @parameterized.parameters((0.0, 3), (0.5, 3), (0.5, 5))
  def test_a_few_equal_differences_have_no_interval(self, value, seeds):
    difference = statistics.paired(dict.fromkeys(range(seeds), value), dict.fromkeys(range(9), 0))
    self.assertEqual((difference.mean, difference.n), (value, seeds))
    self.assertTrue(math.isnan(difference.low) and math.isnan(difference.high))

  def test_equal_differences_of_a_coarse_metric_in_float32(self):
    # Two of 300 examples more in each seed, as runs write their shares.
    first, second = (
        {seed: 100 * float(np.float32((right + more) / 300)) for seed, right in enumerate(rights)}
        for rights, more in (((271, 283, 266), 2), ((271, 283, 266), 0))
    )
    self.assertGreater(np.ptp([first[seed] - second[seed] for seed in first]), 0)
    self.assertTrue(math.isnan(statistics.paired(first, second).low))
    self.assertTrue(statistics.may_be_best({'a': first, 'b': second})['b'])
    # One example more in one of them is no such digit.
    first[0] += 100 / 300
    self.assertFalse(math.isnan(statistics.paired(first, second).low))

  def test_six_equal_differences_are_told(self):
    difference = statistics.paired(dict.fromkeys(range(6), 0.5), dict.fromkeys(range(6), 0))
    self.assertEqual((difference.low, difference.high, difference.p), (0.5, 0.5, 2 / 64))
    more = statistics.paired(dict.fromkeys(range(20), 0.5), dict.fromkeys(range(20), 0))
    self.assertEqual((more.low, more.high), (0.5, 0.5))

  def test_pairs_are_common_seeds_only(self):
    difference = statistics.paired({0: 3.0, 1: 5.0, 2: 100.0}, {0: 1.0, 1: 1.0, 7: 50.0})
    self.assertEqual((difference.mean, difference.n), (3, 2))

  @parameterized.parameters(
      # All six of one sign: that and its opposite, of 64.
      ([1, 2, 3, 4, 5, 6], 2 / 64), ([-1, -2, -3, -4, -5, -6], 2 / 64),
      # Sum 19 of 21: the smallest one changes sign, or none does.
      ([-1, 2, 3, 4, 5, 6], 4 / 64), ([0.0] * 6, 1),
      # Their sum is 0, but not in floating point.
      ([0.1, 0.2, -0.3, 0.4, -0.4, 0.0], 1),
  )
  def test_sign_flips_by_hand(self, values, expected):
    difference = statistics.paired(dict(enumerate(values)), dict.fromkeys(range(6), 0))
    self.assertAlmostEqual(difference.p, expected)

  @parameterized.parameters(3, 5, 10)
  def test_interval_excludes_no_difference_in_one_case_of_twenty(self, seeds):
    draw = np.random.default_rng(seeds)
    excluded = 0
    for _ in range(2000):
      values = _by_method(draw.normal(size=(seeds, 2)))
      found = statistics.paired(values['0'], values['1'])
      excluded += not found.low <= 0 <= found.high
    # Standard error .0049. Percentile bootstrap intervals excluded it in 26, 16 and 11 %.
    self.assertBetween(excluded / 2000, 0.035, 0.065)

  def test_sign_flip_test_holds_its_level(self):
    draw = np.random.default_rng(0)
    found = [
        statistics.paired(dict(enumerate(draw.exponential(size=8) - draw.exponential(size=8))),
                          dict.fromkeys(range(8), 0)).p
        for _ in range(1000)
    ]
    self.assertLessEqual(np.mean(np.array(found) <= 0.05), 0.07)


class MayBeBestTest(parameterized.TestCase):

  def test_by_hand(self):
    # Against the first: t of -.2, -.1, .3 is small; 10 points with a standard error of .1 are not.
    values = {
        'first': {0: 50.0, 1: 51.0, 2: 52.0}, 'level': {0: 50.2, 1: 51.1, 2: 51.6},
        'behind': {0: 40.1, 1: 41.0, 2: 41.8},
    }
    self.assertEqual(
        statistics.may_be_best(values), {'first': True, 'level': True, 'behind': False}
    )
    self.assertEqual(
        statistics.may_be_best(values, highest=False),
        {'first': False, 'level': False, 'behind': True},
    )

  def test_same_difference_on_every_seed(self):
    # Of three it does not tell how differences vary, of six it does.
    for seeds, told in ((3, False), (5, False), (6, True), (20, True)):
      values = {'a': dict.fromkeys(range(seeds), 2.0), 'b': dict.fromkeys(range(seeds), 1.0)}
      self.assertEqual(statistics.may_be_best(values), {'a': True, 'b': not told})
      self.assertEqual(statistics.may_be_best({'a': values['a'], 'b': values['a']}),
                       {'a': True, 'b': True})

  def test_not_decided(self):
    two = {0: 1.0, 1: 9.0}
    self.assertEqual(statistics.may_be_best({'a': two, 'b': two}), {'a': None, 'b': None})
    three = {0: 1.0, 1: 2.0, 2: 3.0}
    self.assertEqual(
        statistics.may_be_best({'a': two, 'b': three, 'c': three}),
        {'a': None, 'b': True, 'c': True},
    )
    self.assertEqual(statistics.may_be_best({'b': three}), {'b': None})
    # Three seeds each, of which they share two.
    other = {1: 2.0, 2: 3.0, 3: 4.0}
    self.assertEqual(statistics.may_be_best({'b': three, 'c': other}), {'b': None, 'c': None})

  def test_who_lacks_hard_seeds_is_not_ahead_for_that(self):
    values = {
        'whole': {0: 81.0, 1: 85.5, 2: 82.7, 3: 60.0, 4: 61.0}, 'part': {0: 80.0, 1: 84.0, 2: 82.0},
        'behind': {0: 70.0, 1: 75.0, 2: 72.0, 3: 50.0, 4: 52.0}, 'begun': {3: 99.0},
    }
    # Its mean is higher, and it is below in each seed that both have.
    self.assertEqual(statistics.best_of(values), 'whole')
    self.assertEqual(statistics.best_of(values, highest=False), 'behind')
    self.assertEqual(
        statistics.may_be_best(values),
        {'whole': True, 'part': True, 'behind': False, 'begun': None},
    )
    # Nor does one that is late take the seeds of the others away.
    values['late'] = {0: 0.0, 1: 1.0, 2: 2.0}
    self.assertEqual(statistics.best_of(values), 'whole')
    self.assertFalse(statistics.may_be_best(values)['behind'])

  def test_who_has_enough_seeds_alone_is_not_the_best_for_that(self):
    values = {'a': {0: 70.0, 1: 71.0, 2: 70.5}, 'b': {0: 90.0, 1: 91.0}, 'c': {}}
    self.assertEqual(statistics.best_of(values), 'b')
    self.assertEqual(statistics.may_be_best(values), {'a': None, 'b': None, 'c': None})
    self.assertIsNone(statistics.best_of({'a': {}}))

  def test_seeds_that_no_two_share(self):
    values = {'a': {0: 80.0, 1: 81.0, 2: 82.5}, 'b': {3: 90.0, 4: 91.0, 5: 92.0}}
    self.assertEqual(statistics.may_be_best(values), {'a': None, 'b': None})
    self.assertEqual(statistics.best_of(values), 'b')
    self.assertEqual(statistics.best_of({'a': {0: 80.0}, 'b': {1: 79.0, 2: 79.0}}), 'a')
    # Three each, of which any two share two.
    values = {
        m: dict.fromkeys(seeds, 1.0)
        for m, seeds in (('a', (0, 1, 2)), ('b', (0, 1, 3)), ('c', (1, 2, 3)))
    }
    self.assertEqual(statistics.may_be_best(values), dict.fromkeys('abc'))

  @parameterized.parameters(*range(5))
  def test_adjusted_means_of_what_only_methods_and_seeds_make(self, number):
    draw = np.random.default_rng(number)
    of_methods, of_seeds = draw.normal(size=4), draw.normal(size=7)
    values = {
        str(m): {int(s): of_methods[m] + of_seeds[s] for s in draw.permutation(7)[: 4 + m % 3]}
        for m in range(4)
    }
    found = statistics.adjusted_means(values)
    self.assertAlmostEqual(found['3'] - found['0'], of_methods[3] - of_methods[0], places=9)
    whole = {m: {s: 1.5 * s for s in range(3)} for m in 'ab'}
    self.assertEqual(statistics.adjusted_means(whole), {'a': 1.5, 'b': 1.5})

  def test_a_difference_without_an_interval_has_none_in_its_text(self):
    first, second = {0: 2.0, 1: 3.0, 2: 5.0}, {0: 1.0, 1: 2.0, 2: 4.0}
    self.assertEqual(statistics.text(statistics.paired(first, second)), '+1.00')
    second[2] = 3.5
    self.assertRegex(
        statistics.text(statistics.paired(first, second), digits=1), r'^\+1\.2 \[\+0\.4, \+1\.9\]$'
    )

  def test_two_methods_are_a_t_test(self):
    # The best of two is ahead in both directions: the two-sided point.
    self.assertAlmostEqual(statistics.critical_value(2, 5), 2.776, delta=0.05)

  @parameterized.product(seeds=[3, 5, 10], methods=[2, 5, 12])
  def test_equal_methods_all_may_be_the_best_in_95_of_100_tables(self, seeds, methods):
    draw = np.random.default_rng([seeds, methods]).standard_normal
    # Standard error .007. By bootstrap intervals all five had their mark in 30 to 40 %.
    self.assertBetween(_all_may_be_best(draw, seeds, methods, 1000), 0.93, 0.975)

  @parameterized.named_parameters(
      ('one_varies_more', 'standard_normal', (5, 1, 1, 1, 1)),
      ('two_vary_more', 'standard_normal', (3, 3, 1, 1, 1)),
      ('one_varies_less', 'standard_normal', (0.1, 1, 1, 1, 1)),
      ('skewed', 'standard_exponential', 1),
  )
  def test_other_distributions_are_no_worse(self, name, deviations):
    draw = getattr(np.random.default_rng(1), name)
    kept = _all_may_be_best(
        lambda size: draw(size) - (name == 'standard_exponential'), 5, 5, 1000, np.array(deviations)
    )
    self.assertGreater(kept, 0.93)

  @parameterized.product(seeds=[3, 5], chance=[0.8, 0.9])
  def test_equal_methods_of_a_coarse_metric(self, seeds, chance):
    # Precision of ten pruned clients.
    draw = np.random.default_rng([seeds, int(100 * chance)])
    kept = 0
    for _ in range(600):
      values = 10.0 * draw.binomial(10, chance, size=(seeds, 8))
      kept += all(statistics.may_be_best(_by_method(values)).values())
    self.assertGreater(kept / 600, 0.92)

  def test_what_is_behind_is_told(self):
    draw = np.random.default_rng(2).standard_normal
    told = 0
    for _ in range(200):
      values = draw((10, 5)) - np.array([0, 0, 0, 0, 3])
      told += not statistics.may_be_best(_by_method(values))['4']
    self.assertGreater(told / 200, 0.95)


if __name__ == '__main__':
  absltest.main()
