"""Tests of the selection policies."""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized
from scipy import stats

from tff_noise import rng
from tff_noise.selection import policies


class UniformTest(parameterized.TestCase):

  @parameterized.parameters((1, 1), (2, 1), (10, 10), (20, 5), (1000, 1), (1000, 999))
  def test_distinct_ascending_and_in_range(self, num_clients, clients_per_round):
    for round_num in range(1, 51):
      chosen = policies.uniform(7, round_num, np.arange(num_clients), clients_per_round)
      self.assertEqual((chosen.dtype, chosen.shape), (np.int64, (clients_per_round,)))
      self.assertTrue((np.diff(chosen) > 0).all(), chosen)
      self.assertTrue(0 <= chosen[0] and chosen[-1] < num_clients, chosen)

  def test_function_of_seed_and_round(self):
    first = [policies.uniform(0, r, np.arange(50), 10).tolist() for r in range(1, 21)]
    # In reverse order: nothing may be carried from one call to the next.
    again = [policies.uniform(0, r, np.arange(50), 10).tolist() for r in range(20, 0, -1)][::-1]
    self.assertEqual(first, again)

  def test_other_round_or_seed_other_clients(self):
    cohorts = {
        tuple(policies.uniform(seed, r, np.arange(50), 10))
        for seed in range(10)
        for r in range(1, 11)
    }
    # 1e10 subsets: 100 draws repeat one with probability 5e-7.
    self.assertLen(cohorts, 100)

  def test_every_client_and_every_pair_is_equally_likely(self):
    rounds, n, k = 4000, 6, 3
    chosen = np.zeros((rounds, n))
    for r in range(rounds):
      chosen[r, policies.uniform(0, r + 1, np.arange(n), k)] = 1
    together = chosen.T @ chosen
    # Client: k / n, standard error sqrt(.25 / 4000) = .0079. Pair: k(k-1) / n(n-1) = .2, .0063.
    np.testing.assert_allclose(np.diag(together) / rounds, 0.5, atol=4 * 0.0079)
    np.testing.assert_allclose(together[np.triu_indices(n, 1)] / rounds, 0.2, atol=4 * 0.0063)

  def test_every_subset_is_equally_likely(self):
    subsets, counts = np.unique(
        [policies.uniform(1, r, np.arange(5), 2) for r in range(3000)], axis=0, return_counts=True
    )
    self.assertLen(subsets, 10)
    self.assertGreater(stats.chisquare(counts).pvalue, 1e-4)

  def test_draws_candidates_only_and_all_of_them_where_there_are_too_few(self):
    candidates = np.array([3, 4, 9, 17])
    seen = set()
    for round_num in range(1, 41):
      chosen = policies.uniform(0, round_num, candidates, 2)
      self.assertLen(chosen, 2)
      seen |= set(chosen.tolist())
    self.assertEqual(seen, {3, 4, 9, 17})
    np.testing.assert_array_equal(policies.uniform(0, 1, candidates, 4), candidates)
    np.testing.assert_array_equal(policies.uniform(0, 1, candidates, 50), candidates)

  def test_all_candidates_are_drawn_as_before_there_were_any(self):
    # Runs that are there are continued: the cohorts of everybody must not change.
    chosen = policies.uniform(0, 1, np.arange(50), 10)
    drawn = rng.generator(0, 'client selection', 1).choice(50, 10, replace=False)
    np.testing.assert_array_equal(chosen, np.sort(drawn))


class CyclicTest(parameterized.TestCase):

  def _rounds(self, num_clients, clients_per_round, rounds, seed=0):
    return [
        policies.cyclic(seed, r, np.arange(num_clients), clients_per_round).tolist()
        for r in range(1, rounds + 1)
    ]

  @parameterized.parameters((1, 1), (2, 1), (10, 10), (20, 5), (7, 3), (1000, 999))
  def test_distinct_ascending_and_in_range(self, num_clients, clients_per_round):
    for round_num in range(1, 31):
      chosen = policies.cyclic(7, round_num, np.arange(num_clients), clients_per_round)
      self.assertEqual((chosen.dtype, chosen.shape), (np.int64, (clients_per_round,)))
      self.assertTrue((np.diff(chosen) > 0).all(), chosen)
      self.assertTrue(0 <= chosen[0] and chosen[-1] < num_clients, chosen)

  @parameterized.parameters((12, 4), (12, 5), (7, 3), (10, 9), (5, 1), (6, 6))
  def test_at_most_once_in_any_window_and_as_often_as_the_others(self, num_clients, size):
    cohorts, window = self._rounds(num_clients, size, 60), num_clients // size
    for first in range(60 - window + 1):
      taken = [client for cohort in cohorts[first : first + window] for client in cohort]
      self.assertLen(set(taken), window * size)
    for rounds in range(1, 61):
      counts = np.bincount(
          [c for cohort in cohorts[:rounds] for c in cohort], minlength=num_clients
      )
      self.assertLessEqual(np.ptp(counts), 1)

  def test_goes_through_one_order(self):
    # 12 clients, 4 a round: the fourth round is the first one again.
    cohorts = self._rounds(12, 4, 9)
    self.assertEqual(sorted(c for cohort in cohorts[:3] for c in cohort), list(range(12)))
    self.assertEqual(cohorts[3:6], cohorts[:3])
    self.assertEqual(cohorts[6:], cohorts[:3])
    # With 5 a round it goes on after the last with the first.
    order = [client for [client] in self._rounds(12, 1, 12)]
    expected = [[order[(5 * r + j) % 12] for j in range(5)] for r in range(9)]
    self.assertEqual(self._rounds(12, 5, 9), [sorted(cohort) for cohort in expected])

  def test_the_order_is_of_the_seed(self):
    orders = {tuple(c for [c] in self._rounds(9, 1, 9, seed)) for seed in range(20)}
    self.assertLen(orders, 20)  # Of 362,880: two are alike with probability 5e-4.
    self.assertEqual(self._rounds(9, 2, 9, 3), self._rounds(9, 2, 9, 3))


class ProportionalTest(parameterized.TestCase):

  sizes = np.array([5, 1, 10, 2, 2, 20])

  @parameterized.parameters((1, 1), (2, 1), (10, 10), (20, 5), (200, 199))
  def test_distinct_ascending_and_in_range(self, num_clients, count):
    sizes = np.arange(num_clients) % 7 + 1
    for round_num in range(1, 51):
      chosen = policies.proportional(7, round_num, np.arange(num_clients), sizes, count)
      self.assertEqual((chosen.dtype, chosen.shape), (np.int64, (count,)))
      self.assertTrue((np.diff(chosen) > 0).all(), chosen)
      self.assertTrue(0 <= chosen[0] and chosen[-1] < num_clients, chosen)

  def test_draws_candidates_only_and_all_of_them_where_there_are_too_few(self):
    candidates = np.array([0, 3, 5])
    seen = set()
    for round_num in range(1, 61):
      chosen = policies.proportional(0, round_num, candidates, self.sizes, 2)
      self.assertLen(chosen, 2)
      seen |= set(chosen.tolist())
    self.assertEqual(seen, {0, 3, 5})
    for count in (3, 4, 50):
      found = policies.proportional(0, 1, candidates, self.sizes, count)
      np.testing.assert_array_equal(found, candidates)

  def test_function_of_seed_and_round(self):
    def draw(seed, round_num):
      return tuple(policies.proportional(seed, round_num, np.arange(50), np.full(50, 3), 10))

    first = [draw(0, r) for r in range(1, 21)]
    # In reverse order: nothing may be carried from one call to the next.
    self.assertEqual(first, [draw(0, r) for r in range(20, 0, -1)][::-1])
    # 1e10 subsets: 100 draws repeat one with probability 5e-7.
    self.assertLen({draw(seed, r) for seed in range(10) for r in range(1, 11)}, 100)

  def test_is_another_draw_than_the_uniform_one(self):
    # With the same stream the candidates of a round would be tied to its uniform cohort.
    same = [
        np.array_equal(
            policies.proportional(0, r, np.arange(50), np.full(50, 3), 10),
            policies.uniform(0, r, np.arange(50), 10),
        )
        for r in range(1, 21)
    ]
    self.assertFalse(any(same))

  def test_one_draw_is_proportional_to_examples(self):
    candidates = np.array([0, 2, 3, 5])
    rounds = 4000
    counts = np.zeros(6)
    for r in range(rounds):
      counts[policies.proportional(0, r, candidates, self.sizes, 1)] += 1
    self.assertEqual(counts[[1, 4]].tolist(), [0, 0])
    share = np.array([5, 10, 2, 20]) / 37  # Of the candidates' examples, not of everybody's.
    self.assertGreater(stats.chisquare(counts[candidates], rounds * share).pvalue, 1e-4)
    # And not uniform by far: standard error of a share at most .0079.
    self.assertGreater(counts[5] / rounds - counts[3] / rounds, 0.4)

  def test_pairs_are_drawn_one_after_the_other_without_replacement(self):
    # Sizes 1, 1, 2: {0, 1} has 1/4 * 1/3 * 2 = 1/6, the pairs with client 2 5/12 each.
    rounds = 4000
    pairs, counts = np.unique(
        [policies.proportional(1, r, np.arange(3), np.array([1, 1, 2]), 2) for r in range(rounds)],
        axis=0, return_counts=True,
    )
    self.assertEqual(pairs.tolist(), [[0, 1], [0, 2], [1, 2]])
    expected = rounds * np.array([1 / 6, 5 / 12, 5 / 12])
    self.assertGreater(stats.chisquare(counts, expected).pvalue, 1e-4)

  def test_equal_sizes_are_a_uniform_draw(self):
    subsets, counts = np.unique(
        [policies.proportional(1, r, np.arange(5), np.full(5, 9), 2) for r in range(3000)],
        axis=0, return_counts=True,
    )
    self.assertLen(subsets, 10)
    self.assertGreater(stats.chisquare(counts).pvalue, 1e-4)


class LargestTest(parameterized.TestCase):

  @parameterized.parameters(
      (1, [7]), (2, [3, 7]), (3, [3, 7, 9]), (4, [1, 3, 7, 9]), (9, [1, 3, 7, 9])
  )
  def test_by_hand(self, count, expected):
    losses = np.array([-1.0, 2.0, 5.0, 0.5])
    for round_num in range(1, 6):
      found = policies.largest(0, round_num, np.array([1, 3, 7, 9]), losses, count)
      self.assertEqual(found.tolist(), expected)

  def test_losses_belong_to_the_clients_beside_them(self):
    clients, losses = np.array([9, 1, 7, 3]), np.array([0.5, 4.0, 5.0, 2.0])
    self.assertEqual(policies.largest(0, 1, clients, losses, 2).tolist(), [1, 7])

  def test_nan_counts_as_largest(self):
    losses = np.array([1.0, np.nan, 1e30, np.nan])
    found = policies.largest(0, 1, np.arange(4), losses, 2)
    self.assertEqual(found.tolist(), [1, 3])
    self.assertEqual(policies.largest(0, 1, np.arange(4), losses, 3).tolist(), [1, 2, 3])

  def test_nan_and_infinity_are_ties(self):
    losses = np.array([np.inf, np.nan, -np.inf, 3.0])
    chosen = {policies.largest(0, r, np.arange(4), losses, 1).item() for r in range(1, 41)}
    self.assertEqual(chosen, {0, 1})

  def test_losses_are_not_changed(self):
    losses = np.array([1.0, np.nan, 2.0])
    policies.largest(0, 1, np.arange(3), losses, 2)
    np.testing.assert_array_equal(losses, [1.0, np.nan, 2.0])

  def test_ties_are_broken_by_seed_and_round(self):
    def draw(seed, round_num):
      return tuple(policies.largest(seed, round_num, np.arange(50), np.zeros(50), 10))

    first = [draw(0, r) for r in range(1, 21)]
    self.assertEqual(first, [draw(0, r) for r in range(20, 0, -1)][::-1])
    self.assertLen({draw(seed, r) for seed in range(10) for r in range(1, 11)}, 100)

  def test_every_tied_client_is_equally_likely(self):
    # Client 2 is always in, client 5 never; two of the other four.
    losses = np.array([1.0, 1.0, 2.0, 1.0, 1.0, 0.0])
    subsets, counts = np.unique(
        [policies.largest(0, r, np.arange(6), losses, 3) for r in range(3000)],
        axis=0, return_counts=True,
    )
    self.assertLen(subsets, 6)
    self.assertTrue((subsets == 2).any(axis=1).all())
    self.assertFalse((subsets == 5).any())
    self.assertGreater(stats.chisquare(counts).pvalue, 1e-4)


class PoissonTest(parameterized.TestCase):

  def test_is_a_function_of_seed_and_round(self):
    drawn = [tuple(policies.poisson(7, r, 20, 10)) for r in range(1, 50)]
    self.assertEqual(drawn, [tuple(policies.poisson(7, r, 20, 10)) for r in range(1, 50)])
    self.assertGreater(len(set(drawn)), 40)
    self.assertNotEqual(drawn, [tuple(policies.poisson(8, r, 20, 10)) for r in range(1, 50)])

  def test_ascending_ids_and_all_sizes(self):
    drawn = [policies.poisson(3, r, 5, 2) for r in range(1, 500)]
    for chosen in drawn:
      self.assertEqual(chosen.dtype, np.int64)
      self.assertEqual(chosen.tolist(), sorted(set(chosen.tolist())))
      self.assertTrue(np.isin(chosen, np.arange(5)).all())
    # (3/5)^5 = .078 of them are empty, (2/5)^5 = .010 full.
    self.assertEqual({len(c) for c in drawn}, set(range(6)))

  def test_each_takes_part_by_itself_with_the_same_probability(self):
    clients, expected, rounds = 8, 2, 20_000
    there = np.zeros((rounds, clients))
    for r in range(rounds):
      there[r, policies.poisson(0, r, clients, expected)] = 1
    q = expected / clients
    five_sigma = 5 * np.sqrt(q * (1 - q) / rounds)
    np.testing.assert_allclose(there.mean(axis=0), q, atol=five_sigma)
    # A cohort of fixed size has a covariance of -q (1 - q) / 7 = -.027.
    covariance = np.cov(there.T)
    np.testing.assert_allclose(covariance, q * (1 - q) * np.eye(clients), atol=five_sigma)

  def test_everybody_where_all_are_expected(self):
    for r in range(1, 20):
      np.testing.assert_array_equal(policies.poisson(1, r, 6, 6), np.arange(6))


if __name__ == '__main__':
  absltest.main()
