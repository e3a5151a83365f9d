"""Tests of the split of clients into clean and noisy."""

import warnings

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

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

  @parameterized.product(seed=list(range(5)), guard=[True, False])
  def test_with_everybody_there_the_rules_split_alike(self, seed, guard):
    scores, _ = _gaussians(seed, 40, distance=4)
    draw = np.random.default_rng(seed)
    # LID falls as training goes on, for everybody.
    lid = scores + draw.normal(size=(5, 40)) + np.array([[40.0], [30], [25], [22], [21]])
    splits = [
        noisy_clients.split(noisy_clients.client_scores(lid, rule), guard=guard, seed=0)
        for rule in noisy_clients.SCORES
    ]
    self.assertTrue(splits[0].noisy.any())
    for other in splits[1:]:
      np.testing.assert_array_equal(other.noisy, splits[0].noisy)
      # The mixture adds 1e-6 to variances, which is not relative to the scale.
      self.assertAlmostEqual(other.separation, splits[0].separation, places=3)
      self.assertAlmostEqual(other.evidence, splits[0].evidence, places=3)

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
    split = noisy_clients.split(scores, guard=True, seed=0)
    self.assertEqual(split.noisy.tolist(), [False] * 4 + [True] * 4)
    self.assertEqual(split.noisy.dtype, bool)
    self.assertIs(split.separated, True)
    self.assertAlmostEqual(split.separation, 10 / 0.5, places=3)
    # log L of one: n = 8, variance 25.25; of two: variance .25 and a part's weight 1/2. The BIC
    # is -2 log L + p log n, with 2 and 5 parameters.
    one = -4 * (np.log(2 * np.pi * 25.25) + 1)
    two = -4 * (np.log(2 * np.pi * 0.25) + 1) + 8 * np.log(0.5)
    self.assertAlmostEqual(split.evidence, 2 * (two - one) - 3 * np.log(8), places=3)

  def test_noisy_is_the_larger_part_of_scores_whatever_the_mixture_calls_it(self):
    for seed in range(10):
      scores, noisy = _gaussians(seed, 20, distance=10, noisy_share=0.3)
      split = noisy_clients.split(scores, guard=True, seed=seed)
      np.testing.assert_array_equal(split.noisy, noisy)
      split = noisy_clients.split(-scores, guard=True, seed=seed)
      np.testing.assert_array_equal(split.noisy, ~noisy)

  def test_order_of_clients_does_not_matter(self):
    scores, _ = _gaussians(0, 20, distance=6)
    order = np.random.default_rng(0).permutation(20)
    first = noisy_clients.split(scores, guard=True, seed=0)
    second = noisy_clients.split(scores[order], guard=True, seed=0)
    np.testing.assert_array_equal(first.noisy[order], second.noisy)

  @parameterized.parameters(True, False)
  def test_clients_without_a_score_are_not_judged(self, guard):
    scores = np.array([_NAN, 0.0, 1, 0, 1, _NAN, 10, 11, 10, 11, np.inf])
    split = noisy_clients.split(scores, guard=guard, seed=0)
    self.assertEqual(np.flatnonzero(split.noisy).tolist(), [6, 7, 8, 9])
    judged = noisy_clients.split(scores[np.isfinite(scores)], guard=guard, seed=0)
    self.assertEqual(split[1:4], judged[1:4])

  @parameterized.product(
      scores=[[], [_NAN] * 3, [1.0], [1.0, 9.0], [1.0, 9.0, _NAN], [2.0] * 7, [1.0, 9.0] * 4],
      guard=[True, False],
  )
  def test_fewer_than_three_scores_are_not_split(self, scores, guard):
    split = noisy_clients.split(np.array(scores), guard=guard, seed=0)
    self.assertEqual(split.noisy.tolist(), [False] * len(scores))
    self.assertEqual(split[1:4], (False, 0.0, 0.0))

  def test_without_the_guard_there_is_always_a_noisy_client(self):
    for seed in range(20):
      split = noisy_clients.split(_gaussians(seed, 20)[0], guard=False, seed=seed)
      self.assertTrue(split.separated)
      self.assertBetween(split.noisy.sum(), 1, 19)

  def test_guard_changes_the_verdict_and_not_the_numbers(self):
    scores, _ = _gaussians(1, 20)
    with_guard = noisy_clients.split(scores, guard=True, seed=0)
    without = noisy_clients.split(scores, guard=False, seed=0)
    self.assertEqual(with_guard[2:4], without[2:4])
    self.assertFalse(with_guard.separated)
    self.assertFalse(with_guard.noisy.any())
    self.assertTrue(without.separated)

  def test_is_a_function_of_the_seed(self):
    scores, _ = _gaussians(2, 30, distance=2)
    first = noisy_clients.split(scores, guard=False, seed=5)
    second = noisy_clients.split(scores, guard=False, seed=5)
    np.testing.assert_array_equal(first.noisy, second.noisy)
    self.assertEqual(first[1:4], second[1:4])


class ReliabilityTest(parameterized.TestCase):

  def test_is_the_intraclass_correlation_that_cronbachs_alpha_implies(self):
    lid = np.random.default_rng(0).gamma(5, size=(4, 15)) + np.linspace(0, 5, 15)
    items = lid.var(axis=1, ddof=1).sum()
    alpha = 4 / 3 * (1 - items / lid.sum(axis=0).var(ddof=1))
    # Spearman and Brown: alpha = 4 r / (1 + 3 r).
    self.assertAlmostEqual(noisy_clients.score_reliability(lid), alpha / (4 - 3 * alpha))

  def test_what_all_clients_share_in_an_iteration_does_not_matter(self):
    lid = np.random.default_rng(0).normal(size=(3, 9))
    shifted = lid + np.array([[10.0], [0], [-3]])
    self.assertAlmostEqual(
        noisy_clients.score_reliability(lid), noisy_clients.score_reliability(shifted)
    )

  def test_with_late_clients_it_estimates_the_same(self):
    found = []
    for seed in range(200):
      draw = np.random.default_rng(seed)
      lid = draw.normal(size=(4, 40)) + draw.normal(size=40)
      lid[:2, draw.random(40) < 0.5] = _NAN
      found.append(noisy_clients.score_reliability(lid))
    # Variance 1 between clients, and 1 by chance.
    self.assertBetween(np.mean(found), 0.47, 0.53)

  @parameterized.parameters(
      ([[1.0, 2, 3]],), ([[_NAN] * 3] * 2,), ([[1.0, _NAN], [2, _NAN]],), ([[1.0, 1], [1, 1]],),
      ([[1.0, 2, _NAN], [_NAN, _NAN, 3]],),
  )
  def test_cannot_be_told(self, lid):
    with warnings.catch_warnings():
      warnings.simplefilter('error')
      self.assertTrue(np.isnan(noisy_clients.score_reliability(np.array(lid))))

  @parameterized.parameters((_NAN, True), (0.9, True), (0.65, False), (-0.3, False))
  def test_guard_asks_for_it(self, reliability, separated):
    scores, _ = _gaussians(0, 20, distance=10)
    split = noisy_clients.split(scores, guard=True, seed=0, reliability=reliability)
    self.assertEqual((split.separated, split.noisy.any()), (separated, separated))
    self.assertTrue(
        noisy_clients.split(scores, guard=False, seed=0, reliability=reliability).separated
    )

  def test_evidence_is_asked_for_after_one_iteration_alone(self):
    self.assertFalse(noisy_clients.stands_apart(3.0, -1.0, _NAN))
    self.assertTrue(noisy_clients.stands_apart(3.0, -1.0, 0.9))
    self.assertFalse(noisy_clients.stands_apart(1.9, 9.0, 0.9))

  def test_without_noisy_clients_it_is_seldom_high(self):
    draw = np.random.default_rng(0)
    found = [noisy_clients.score_reliability(draw.normal(size=(3, 20))) for _ in range(300)]
    self.assertLess(np.mean(np.array(found) > noisy_clients.MIN_RELIABILITY), 0.01)


class GuardTest(parameterized.TestCase):
  """How often the guard errs, over 50 draws each."""

  def _separated(self, count, distance, noisy_share=0.5):
    splits = [
        noisy_clients.split(_gaussians(s, count, distance, noisy_share)[0], guard=True, seed=s)
        for s in range(50)
    ]
    return sum(split.separated for split in splits)

  @parameterized.parameters((20, 5), (100, 1))
  def test_one_gaussian_is_not_split(self, count, at_most):
    # Found: 2 and 0 of 50; 16 and 0 of 300.
    self.assertLessEqual(self._separated(count, 0), at_most)

  @parameterized.product(noisy_share=[0.2, 0.5, 0.8])
  def test_two_far_apart_are_split(self, noisy_share):
    # Found: 47 or 48, and 50.
    self.assertGreaterEqual(self._separated(20, 6, noisy_share), 44)
    self.assertEqual(self._separated(100, 6, noisy_share), 50)

  @parameterized.parameters(
      # Clients, distance of the means in standard deviations, split in how many of 50 (found).
      (20, 2, 0, 6),  # 2
      (20, 3, 1, 10),  # 4
      (20, 4, 12, 28),  # 19
      (100, 2, 0, 5),  # 1
      (100, 3, 14, 30),  # 21
      (100, 4, 47, 50),  # 50
  )
  def test_in_between_it_would_rather_not_split(self, count, distance, low, high):
    self.assertBetween(self._separated(count, distance), low, high)


if __name__ == '__main__':
  absltest.main()
