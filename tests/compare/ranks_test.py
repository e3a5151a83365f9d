"""Tests of mean ranks: by hand, and how often they show a difference that is not there."""

import math

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized
from scipy import stats

from tff_noise.compare import ranks

# By setting, by method, of seeds 0, 1, 2.
_VALUES = {
    'first': {'a': [9, 9, 8], 'b': [5, 8, 9], 'c': [1, 1, 1], 'd': [0, 0, 0]},
    'second': {'a': [7, 7, 7], 'b': [7, 5, 6], 'c': [1, 2, 3], 'd': [0, 1, 2]},
    'third': {'a': [3, 3, 3], 'b': [2, 2, 2], 'c': [1, 1, 1], 'd': [0, 0, 0]},
}


def _rank(values=None, **options):
  values = values or _VALUES
  return ranks.rank(
      {s: {m: dict(enumerate(v)) for m, v in of.items()} for s, of in values.items()}, **options
  )


class RankTest(parameterized.TestCase):

  def test_means_by_hand(self):
    found = _rank()
    # Of a: 1, 1.5, 1; 1, 1, 1; 2, 1, 1. Of b: 2, 1.5, 2; 2, 2, 2; 1, 2, 2.
    self.assertEqual(list(found.mean), ['a', 'b', 'c', 'd'])
    np.testing.assert_allclose(list(found.mean.values()), [10.5 / 9, 16.5 / 9, 3, 4])
    self.assertEqual((found.settings, found.seeds), (3, 3))

  def test_critical_difference_by_hand(self):
    by_seed = np.array([[3.5, 5.5, 9, 12], [3, 6, 9, 12], [4, 5, 9, 12]]) / 3
    # Of a and b the residuals are 0 and +-1/6, of c and d 0: their square sum is 4 / 36.
    error = math.sqrt(4 / 36 / 6 / 3)
    expected = stats.studentized_range.isf(0.01, 4, 6) * error
    self.assertAlmostEqual(ranks.critical_difference(by_seed), expected)
    self.assertAlmostEqual(_rank().critical_difference, expected)

  def test_lowest_is_best_and_what_was_not_reached_is_last(self):
    values = {s: {m: [-v for v in of[m]] for m in 'abcd'} for s, of in _VALUES.items()}
    self.assertEqual(_rank(values, highest=False), _rank())
    for of in values.values():
      of['d'] = [math.inf] * 3
    self.assertEqual(_rank(values, highest=False), _rank())

  def test_rows_of_what_is_not_told_apart(self):
    # b and c are 1.17 apart, a and b .67; the critical difference is .55. Of a and b alone, who
    # are .67, 1 and .33 apart, it would be .96.
    self.assertEqual(_rank().groups, (('a', 'b'),))
    self.assertEqual(_rank().alike, ('a', 'b'))
    equal = {s: {m: of['a' if m == 'b' else m] for m in 'abcd'} for s, of in _VALUES.items()}
    self.assertEqual(_rank(equal).groups, (('a', 'b'),))
    # Of three that are equal the largest row alone.
    three = {s: {m: [9, 9, 9] if m in 'abc' else [0, 0, 0] for m in 'abcd'} for s in _VALUES}
    self.assertEqual(_rank(three).groups, (('a', 'c'),))

  @parameterized.parameters(
      (lambda v: {s: v[s] for s in ('first', 'second')},),
      (lambda v: {s: {m: of[m] for m in 'ab'} for s, of in v.items()},),
      (lambda v: {s: {m: seeds[:2] for m, seeds in of.items()} for s, of in v.items()},),
      (lambda v: {**v, 'third': {m: [] for m in 'abcd'}},),
  )
  def test_too_little_of_anything_decides_nothing(self, change):
    self.assertIsNone(_rank(change(_VALUES)))

  def test_a_method_without_a_setting_is_left_out(self):
    found = _rank({**_VALUES, 'third': {**_VALUES['third'], 'b': []}})
    self.assertEqual(list(found.mean), ['a', 'c', 'd'])

  def test_a_method_that_is_short_of_seeds_is_left_out(self):
    found = _rank({**_VALUES, 'third': {**_VALUES['third'], 'b': [2, 2]}})
    self.assertEqual((list(found.mean), found.seeds), (['a', 'c', 'd'], 3))
    self.assertEqual(found.left_out, ('b',))

  def test_two_that_lack_different_seeds_leave_the_others_theirs(self):
    seeds = {'a': range(5), 'b': (0, 1, 2), 'c': (2, 3, 4), 'd': range(5), 'e': range(5)}
    found = ranks.rank({
        s: {m: {i: float('abcde'.index(m)) for i in of} for m, of in seeds.items()}
        for s in ('first', 'second', 'third')
    })
    self.assertEqual((list(found.mean), found.seeds), (['e', 'd', 'b', 'a'], 3))
    self.assertEqual(found.left_out, ('c',))

  @parameterized.parameters(
      # Methods, seeds, how much more half of them vary, what seeds have in common over settings.
      (4, 5, 1.0, 0.0, 0.02), (23, 5, 1.0, 0.5, 0.02), (23, 3, 10.0, 0.0, 0.075),
      (23, 5, 10.0, 0.0, 0.075), (8, 10, 10.0, 0.0, 0.05),
  )
  def test_of_equal_methods_few_tables_show_a_difference(self, k, n, spread, shared, at_most):
    draw = np.random.default_rng(0)
    tables, settings = 1000, 4
    scale = np.where(np.arange(k) < k // 2, spread, 1.0)
    own = draw.standard_normal((tables, n, settings, k))
    of_seed = draw.standard_normal((tables, n, 1, k))
    cells = scale * (math.sqrt(shared) * of_seed + math.sqrt(1 - shared) * own)
    shown = [
        np.ptp(by_seed.mean(axis=0)) > ranks.critical_difference(by_seed)
        for by_seed in stats.rankdata(cells, axis=3).mean(axis=2)
    ]
    self.assertLessEqual(np.mean(shown), at_most)

  @parameterized.parameters((5, 3), (5, 10), (24, 5), (24, 10))
  def test_of_two_equal_ones_among_others_that_differ(self, k, n):
    draw = np.random.default_rng(0)
    cells = draw.standard_normal((1000, n, 4, k)) + 10.0 * np.maximum(np.arange(k) - 1, 0)
    shown = [
        ranks.told_apart(by_seed)[0, 1]
        for by_seed in stats.rankdata(cells, axis=3).mean(axis=2)
    ]
    self.assertLessEqual(np.mean(shown), 0.06)

  @parameterized.parameters((12, 3, 0.1), (24, 3, 0.1), (24, 5, 0.05), (24, 10, 0.03))
  def test_of_pairs_of_equals_among_others_that_differ(self, k, n, at_most):
    draw = np.random.default_rng(0)
    # Three pairs of equals; half of the variance is the seed's own, over all settings.
    place = np.repeat(np.arange(k), np.where(np.arange(k) < 3, 2, 1))[:k]
    own = draw.standard_normal((1000, n, 4, k)) + draw.standard_normal((1000, n, 1, k))
    shown = [
        ranks.told_apart(by_seed)[[0, 2, 4], [1, 3, 5]].any()
        for by_seed in stats.rankdata(own + 20.0 * place, axis=3).mean(axis=2)
    ]
    self.assertLessEqual(np.mean(shown), at_most)

  @parameterized.parameters(5, 10)
  def test_of_three_that_reach_among_others_that_do_not(self, n):
    draw = np.random.default_rng(0)
    cells = draw.standard_normal((1000, n, 4, 24))
    cells[..., 3:] = np.inf
    shown = [
        ranks.told_apart(by_seed)[:3, :3].any()
        for by_seed in stats.rankdata(cells, axis=3).mean(axis=2)
    ]
    self.assertLessEqual(np.mean(shown), 0.06)


if __name__ == '__main__':
  absltest.main()
