"""Tests of the tree of DP-FTRL against the covariance of its noise, by hand and dp_accounting."""

import dp_accounting
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized
from dp_accounting import rdp

from tff_noise.privacy import tree

_REPLACE = dp_accounting.NeighboringRelation.REPLACE_SPECIAL


def _pieces(rounds):
  """The stretches that rounds 1 to `rounds` are cut into, the longest first, as (from, to)."""
  pieces, start, length = [], 0, 1 << rounds.bit_length()
  while start < rounds:
    while start + length > rounds:
      length //= 2
    pieces.append((start + 1, start + length))
    start += length
  return pieces


def _covariance(rounds):
  """float64 `[R, R]`, of the noise of the releases, in units of a node's variance."""
  names = sorted({piece for t in range(1, rounds + 1) for piece in _pieces(t)})
  on_sums = np.array(
      [[name in _pieces(t) for name in names] for t in range(1, rounds + 1)], np.float64
  )
  on_releases = np.diff(on_sums, axis=0, prepend=0)
  return on_releases @ on_releases.T


def _turns(population, cohort, rounds):
  """float64 `[R, C]`, 1 where a client takes part."""
  found = np.zeros((rounds, population))
  for place in range(rounds * cohort):
    found[place // cohort, place % population] = 1
  return found


class NodesTest(absltest.TestCase):

  def test_nodes_by_hand(self):
    # What is released in rounds 1 to 8, and the sums of rounds 1, 1-2, 3, 1-4, 5, 5-6, 7, 1-8.
    released = np.array([1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7])
    np.testing.assert_array_equal(
        tree.nodes(released), [1, 11, 100, 1111, 1e4, 11e4, 1e6, 11111111]
    )
    self.assertEqual([tree.before(t) for t in range(1, 9)], [0, 0, 2, 0, 4, 4, 6, 0])
    self.assertEqual(tree.nodes(np.ones((3, 2), np.float32)).tolist(), [[1, 1], [2, 2], [1, 1]])

  def test_they_are_the_pieces_that_sums_are_made_of(self):
    for rounds in range(1, 70):
      ends, last = [], rounds
      while last:
        ends.append((tree.before(last) + 1, last))
        last = tree.before(last)
      self.assertEqual(ends[::-1], _pieces(rounds))


class SensitivityTest(parameterized.TestCase):

  @parameterized.parameters(
      # One client, in every round: 1; 1 + 4; and 1; and 16.
      (1, 1, [0, 1, 5, 6, 22]),
      # In every second: the second of two phases never has more.
      (2, 1, [0, 1, 2, 3, 7]),
      # Once in four rounds, the first time in the first: nodes 1, 1-2, 1-4.
      (4, 1, [0, 1, 2, 2, 3]),
      # 0 1 | 2 0 | 1 2 | 0 1: client 0 in rounds 1, 2 and 4, client 1 in 1, 3 and 4.
      (3, 2, [0, 1, 5, 5, 14]),
  )
  def test_by_hand(self, population, cohort, expected):
    found = [tree.squared_sensitivity(population, cohort, r) for r in range(5)]
    self.assertEqual(found, expected)

  # Of 17 clients, 3 a round, the first is not the one that has most.
  @parameterized.parameters((1, 1), (2, 1), (3, 1), (3, 2), (7, 3), (17, 3), (20, 1), (100, 7))
  def test_is_that_of_gaussian_noise_with_this_covariance(self, population, cohort):
    # N(x, V) against N(x + u, V) is one Gaussian of squared sensitivity u V^-1 u.
    for rounds in range(1, 34):
      precision = np.linalg.inv(_covariance(rounds))
      # So that moves of a client in different directions do not add up to more.
      self.assertGreater(precision.min(), -1e-9)
      moved = _turns(population, cohort, rounds)
      exact = np.einsum('ac,ab,bc->c', moved, precision, moved).max()
      self.assertAlmostEqual(
          tree.squared_sensitivity(population, cohort, rounds), exact, delta=1e-6
      )

  @parameterized.parameters(1, 2, 3, 4, 7, 8, 60, 200)
  def test_clients_that_take_part_once_as_dp_accounting_has_it(self, rounds):
    squared = tree.squared_sensitivity(10 * rounds, 10, rounds)
    self.assertEqual(squared, int(np.floor(np.log2(rounds))) + 1)
    # A client that is added or removed moves a node by S, one that is replaced by 2 S.
    for multiplier in (1.0, 4.0):
      epsilons = []
      for event in (
          dp_accounting.SingleEpochTreeAggregationDpEvent(multiplier / 2, rounds),
          dp_accounting.GaussianDpEvent(multiplier / 2 / np.sqrt(squared)),
      ):
        accountant = rdp.RdpAccountant(neighboring_relation=_REPLACE)
        epsilons.append(accountant.compose(event).get_epsilon(1e-5))
      self.assertAlmostEqual(epsilons[0], epsilons[1], places=9)

  def test_grows_with_rounds_and_with_the_cohort(self):
    for cohort in (1, 3, 5):
      by_rounds = [tree.squared_sensitivity(20, cohort, r) for r in range(50)]
      self.assertEqual(by_rounds, sorted(by_rounds))
      more = [tree.squared_sensitivity(20, 2 * cohort, r) for r in range(50)]
      self.assertTrue(all(a <= b for a, b in zip(by_rounds, more, strict=True)))


if __name__ == '__main__':
  absltest.main()
