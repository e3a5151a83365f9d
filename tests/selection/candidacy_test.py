"""Tests of ClipFL's noise candidacy scores and of who is pruned by them."""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise.selection import candidacy


class ScoresTest(parameterized.TestCase):

  # Of four clients the last was never drawn.
  _CANDIDACIES = np.array([3, 0, 2, 0])
  _PARTICIPATIONS = np.array([6, 2, 2, 0])

  @parameterized.parameters(('count', [3, 0, 2, 0]), ('rate', [0.5, 0, 1, 0]))
  def test_by_hand(self, rule, expected):
    with np.errstate(all='raise'):
      found = candidacy.scores(self._CANDIDACIES, self._PARTICIPATIONS, rule)
    np.testing.assert_array_equal(found, expected)
    self.assertEqual(found.dtype, np.float64)

  def test_rules_disagree_where_clients_are_drawn_unequally(self):
    # By the count client 0 goes, by the rate client 2.
    for rule, first in (('count', 0), ('rate', 2)):
      score = candidacy.scores(self._CANDIDACIES, self._PARTICIPATIONS, rule)
      self.assertEqual(np.flatnonzero(candidacy.prune(score, 0.25, 0)).tolist(), [first], rule)

  @parameterized.parameters(*candidacy.SCORES)
  def test_input_is_not_changed(self, rule):
    candidacies = self._CANDIDACIES.copy()
    score = candidacy.scores(candidacies, self._PARTICIPATIONS, rule)
    score += 1
    np.testing.assert_array_equal(candidacies, self._CANDIDACIES)


class PruneTest(parameterized.TestCase):

  @parameterized.parameters(
      (100, 0.29, 29), (100, 0.57, 57), (100, 0.58, 58), (100, 0.5, 50), (100, 0.0, 0),
      (100, 0.999, 99), (10, 0.35, 3), (3, 0.5, 1), (3, 1 / 3, 1), (1, 0.9, 0), (7, 2 / 7, 2),
  )
  def test_how_many(self, num_clients, share, expected):
    score = np.random.default_rng(0).integers(0, 5, num_clients).astype(np.float64)
    pruned = candidacy.prune(score, share, 0)
    self.assertEqual((pruned.shape, pruned.dtype), ((num_clients,), bool))
    self.assertEqual(pruned.sum(), expected)

  def test_all_shares_in_percent_of_a_hundred_clients(self):
    score = np.zeros(100)
    self.assertEqual(
        [candidacy.prune(score, percent / 100, 0).sum() for percent in range(100)],
        list(range(100)),
    )

  def test_largest_scores_by_hand(self):
    score = np.array([1.0, 7, 3, 0, 5])
    for share, expected in ((0.2, [1]), (0.4, [1, 4]), (0.6, [1, 2, 4]), (0.8, [0, 1, 2, 4])):
      self.assertEqual(np.flatnonzero(candidacy.prune(score, share, 0)).tolist(), expected)

  def test_nobody_who_stays_has_a_larger_score(self):
    draw = np.random.default_rng(0)
    for seed in range(200):
      num_clients = int(draw.integers(1, 40))
      score = draw.integers(0, 4, num_clients).astype(np.float64)
      count = int(draw.integers(0, num_clients))
      pruned = candidacy.prune(score, count / num_clients, seed)
      self.assertEqual(pruned.sum(), count)
      if 0 < count:
        self.assertGreaterEqual(score[pruned].min(), score[~pruned].max())

  @parameterized.parameters(*candidacy.SCORES)
  def test_who_was_never_drawn_is_kept_before_others(self, rule):
    candidacies, participations = np.array([1, 0, 2, 0, 1, 0]), np.array([9, 0, 2, 0, 1, 0])
    score = candidacy.scores(candidacies, participations, rule)
    for seed in range(20):
      self.assertEqual(np.flatnonzero(candidacy.prune(score, 0.5, seed)).tolist(), [0, 2, 4])

  def test_ties_are_drawn_by_the_seed(self):
    # Client 2 always goes, two of the four with score 1 do, client 5 never.
    score = np.array([1.0, 1, 3, 1, 1, 0])
    draws = np.array([candidacy.prune(score, 0.5, seed) for seed in range(600)])
    np.testing.assert_array_equal(draws, [candidacy.prune(score, 0.5, s) for s in range(600)])
    self.assertTrue(draws[:, 2].all())
    self.assertFalse(draws[:, 5].any())
    # Each of the four 300 times, with standard deviation 12; each pair of the six 100 times, 9.
    tied = draws[:, [0, 1, 3, 4]]
    np.testing.assert_allclose(tied.sum(axis=0), 300, atol=60)
    _, counts = np.unique(tied, axis=0, return_counts=True)
    np.testing.assert_allclose(counts, np.full(6, 100), atol=45)


if __name__ == '__main__':
  absltest.main()
