"""Tests of the split of clients into clean and noisy."""

import warnings

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized
from scipy import stats

from tff_noise.selection import noisy_clients

_NAN = np.nan


def _gaussians(seed, count, distance=0.0, noisy_share=0.5):
  """Scores of `count` clients, and which of them are noisy: standard deviation 1 in both parts."""
  draw = np.random.default_rng([seed, count])
  noisy = np.arange(count) < round(noisy_share * count)
  return draw.normal(size=count) + distance * noisy, noisy


class ScoresTest(parameterized.TestCase):

  # Client 0 is there from the start, 1 misses the second iteration, 2 joins in the last, 3 never.
  _LID = np.array([
      [2.0, 6.0, _NAN, _NAN],
      [5.0, _NAN, _NAN, _NAN],
      [8.0, 9.0, 13.0, _NAN],
  ])

  @parameterized.parameters(
      ('cumulative', [15, 15, 13, 0]),
      ('mean', [5, 7.5, 13, _NAN]),
      # Medians 4, 5 and 9: client 0 differs by -2, 0, -1, client 1 by 2, 0, client 2 by 4.
      ('centred', [-1, 1, 4, _NAN]),
  )
  def test_by_hand(self, rule, expected):
    with warnings.catch_warnings():
      warnings.simplefilter('error')
      np.testing.assert_allclose(noisy_clients.client_scores(self._LID, rule), expected)

  @parameterized.parameters(*noisy_clients.SCORES)
  def test_input_is_not_changed(self, rule):
    lid = self._LID.copy()
    noisy_clients.client_scores(lid, rule)
    np.testing.assert_array_equal(lid, self._LID)

  @parameterized.parameters(*noisy_clients.SCORES)
  def test_iterations_that_have_not_been_yet_say_nothing(self, rule):
    later = np.vstack([self._LID, np.full(4, _NAN)])
    np.testing.assert_allclose(
        noisy_clients.client_scores(later, rule), noisy_clients.client_scores(self._LID, rule)
    )

  def test_nobody_has_been_seen(self):
    lid = np.full((2, 3), _NAN)
    np.testing.assert_array_equal(noisy_clients.client_scores(lid, 'cumulative'), np.zeros(3))
    for rule in ('mean', 'centred'):
      self.assertTrue(np.isnan(noisy_clients.client_scores(lid, rule)).all())

  @parameterized.product(seed=list(range(5)))
  def test_with_everybody_there_the_rules_split_alike(self, seed):
    scores, _ = _gaussians(seed, 40, distance=4)
    draw = np.random.default_rng(seed)
    # LID falls as training goes on, for everybody.
    lid = scores + draw.normal(size=(5, 40)) + np.array([[40.0], [30], [25], [22], [21]])
    splits = [
        noisy_clients.split(noisy_clients.client_scores(lid, rule), seed=0)
        for rule in noisy_clients.SCORES
    ]
    self.assertTrue(splits[0].noisy.any())
    for other in splits[1:]:
      np.testing.assert_array_equal(other.noisy, splits[0].noisy)
      # The mixture adds 1e-6 to variances, which is not relative to the scale.
      self.assertAlmostEqual(other.separation, splits[0].separation, places=3)

  def test_only_the_centred_score_of_a_late_client_is_comparable(self):
    # LID falls by 10 each iteration; client 0 is as clean as the others but joins in the last.
    lid = np.array([[31.0, 29, 30, 30], [21, 19, 20, 20], [11, 9, 10, 10]])
    late = lid.copy()
    late[:2, 0] = _NAN
    whole, part = (noisy_clients.client_scores(v, 'centred') for v in (lid, late))
    self.assertAlmostEqual(part[0], whole[0])
    self.assertEqual(np.argmin(noisy_clients.client_scores(late, 'mean')), 0)


class SplitTest(parameterized.TestCase):

  def test_parts_by_hand(self):
    # Two points twice each, 1 apart in both parts: means .5 and 10.5, variances .25.
    scores = np.array([0.0, 1, 0, 1, 10, 11, 10, 11])
    split = noisy_clients.split(scores, seed=0)
    self.assertEqual(split.noisy.tolist(), [False] * 4 + [True] * 4)
    self.assertEqual(split.noisy.dtype, bool)
    self.assertAlmostEqual(split.separation, 10 / 0.5, places=3)

  def test_noisy_is_the_larger_part_of_scores_whatever_the_mixture_calls_it(self):
    for seed in range(10):
      scores, noisy = _gaussians(seed, 20, distance=10, noisy_share=0.3)
      split = noisy_clients.split(scores, seed=seed)
      np.testing.assert_array_equal(split.noisy, noisy)
      split = noisy_clients.split(-scores, seed=seed)
      np.testing.assert_array_equal(split.noisy, ~noisy)

  def test_order_of_clients_does_not_matter(self):
    scores, _ = _gaussians(0, 20, distance=6)
    order = np.random.default_rng(0).permutation(20)
    first = noisy_clients.split(scores, seed=0)
    second = noisy_clients.split(scores[order], seed=0)
    np.testing.assert_array_equal(first.noisy[order], second.noisy)

  def test_clients_without_a_score_are_not_judged(self):
    scores = np.array([_NAN, 0.0, 1, 0, 1, _NAN, 10, 11, 10, 11, np.inf])
    split = noisy_clients.split(scores, seed=0)
    self.assertEqual(np.flatnonzero(split.noisy).tolist(), [6, 7, 8, 9])
    judged = noisy_clients.split(scores[np.isfinite(scores)], seed=0)
    self.assertEqual(split.separation, judged.separation)

  @parameterized.parameters(
      ([],), ([_NAN] * 3,), ([1.0],), ([1.0, 9.0],), ([1.0, 9.0, _NAN],), ([2.0] * 7,),
      ([1.0, 9.0] * 4,),
  )
  def test_fewer_than_three_scores_are_not_split(self, scores):
    split = noisy_clients.split(np.array(scores), seed=0)
    self.assertEqual(split.noisy.tolist(), [False] * len(scores))
    self.assertEqual(split.separation, 0)

  def test_there_is_always_a_noisy_client(self):
    for seed in range(20):
      split = noisy_clients.split(_gaussians(seed, 20)[0], seed=seed)
      self.assertBetween(split.noisy.sum(), 1, 19)

  def test_is_a_function_of_the_seed(self):
    scores, _ = _gaussians(2, 30, distance=2)
    first = noisy_clients.split(scores, seed=5)
    second = noisy_clients.split(scores, seed=5)
    np.testing.assert_array_equal(first.noisy, second.noisy)
    self.assertEqual(first.separation, second.separation)


class ReliabilityTest(parameterized.TestCase):

  def test_is_the_intraclass_correlation_that_cronbachs_alpha_implies(self):
    lid = np.random.default_rng(0).gamma(5, size=(4, 15)) + np.linspace(0, 5, 15)
    items = lid.var(axis=1, ddof=1).sum()
    alpha = 4 / 3 * (1 - items / lid.sum(axis=0).var(ddof=1))
    # Spearman and Brown: alpha = 4 r / (1 + 3 r).
    self.assertAlmostEqual(noisy_clients.agreement(lid).reliability, alpha / (4 - 3 * alpha))

  def test_what_all_clients_share_in_an_iteration_does_not_matter(self):
    lid = np.random.default_rng(0).normal(size=(3, 9))
    shifted = lid + np.array([[10.0], [0], [-3]])
    self.assertAlmostEqual(
        noisy_clients.agreement(lid).reliability, noisy_clients.agreement(shifted).reliability
    )

  def test_with_late_clients_it_estimates_the_same(self):
    found = []
    for seed in range(200):
      draw = np.random.default_rng(seed)
      lid = draw.normal(size=(4, 40)) + draw.normal(size=40)
      lid[:2, draw.random(40) < 0.5] = _NAN
      found.append(noisy_clients.agreement(lid).reliability)
    # Variance 1 between clients, and 1 by chance.
    self.assertBetween(np.mean(found), 0.47, 0.53)

  @parameterized.parameters((5, 20, 0.4, 0.5), (10, 10, 0.7, 0.5), (10, 10, 0.7, 0.0))
  def test_with_clients_missing_at_random(self, times, clients, missing, true):
    found, told = [], 0
    for seed in range(300):
      draw = np.random.default_rng(seed)
      lid = true**0.5 * draw.normal(size=clients) + (1 - true) ** 0.5 * draw.normal(
          size=(times, clients)
      ) + 3 * draw.normal(size=(times, 1))
      lid[draw.random(lid.shape) < missing] = _NAN
      agreement = noisy_clients.agreement(lid)
      found.append(agreement.reliability)
      told += agreement.p < 0.05
    # By iterations' means, in which clients that are there leave their own, -.22 to .43.
    self.assertAlmostEqual(np.mean(found), true, delta=0.06)
    if not true:
      self.assertBetween(told / 300, 0.02, 0.09)

  @parameterized.parameters(
      ([[1.0, 2, 3]],), ([[_NAN] * 3] * 2,), ([[1.0, _NAN], [2, _NAN]],), ([[1.0, 1], [1, 1]],),
      ([[1.0, 2, _NAN], [_NAN, _NAN, 3]],), ([[0.1] * 7] * 5,),
      ([[0.1, 0.1, _NAN], [0.7, 0.7, 0.7], [_NAN, 0.3, 0.3]],),
  )
  def test_cannot_be_told(self, lid):
    with warnings.catch_warnings():
      warnings.simplefilter('error')
      self.assertTrue(np.isnan(noisy_clients.agreement(np.array(lid)).reliability))

  def test_f_test_is_scipys(self):
    # Without late clients it is the analysis of variance of clients and iterations.
    lid = np.random.default_rng(0).normal(size=(4, 6)) + np.linspace(0, 2, 6)
    rest = lid - lid.mean(axis=1, keepdims=True)
    means = rest.mean(axis=0)
    ratio = 4 * means.var(ddof=1) / (((rest - means) ** 2).sum() / (3 * 5))
    self.assertAlmostEqual(noisy_clients.agreement(lid).p, stats.f.sf(ratio, 5, 15))

  @parameterized.parameters((3, 0.0), (5, 0.0), (10, 0.0), (20, 0.0), (20, 0.5))
  def test_chance_alone_holds_in_few_of_the_runs(self, clients, missing):
    draw = np.random.default_rng(clients)
    held = 0
    for _ in range(300):
      lid = draw.normal(size=(5, clients))
      lid[draw.random(lid.shape) < missing] = _NAN
      held += any(noisy_clients.agreement(lid[:t]).holds for t in range(1, 6))
    # Of the reliability alone 30, 17, 6, 1 and 17 % did.
    self.assertLess(held / 300, 0.04)

  def test_two_parts_hold(self):
    draw = np.random.default_rng(0)
    lid = draw.normal(size=(2, 20)) + 6 * (np.arange(20) < 4)
    self.assertTrue(noisy_clients.agreement(lid).holds)
    self.assertFalse(noisy_clients.agreement(lid[:1]).holds)

  def test_without_noisy_clients_it_is_seldom_high(self):
    draw = np.random.default_rng(0)
    found = [noisy_clients.agreement(draw.normal(size=(3, 20))).reliability for _ in range(300)]
    self.assertLess(np.mean(np.array(found) > noisy_clients.MIN_RELIABILITY), 0.01)


if __name__ == '__main__':
  absltest.main()
