"""Tests of how often clients have their turn, against an order that is gone through."""

import itertools
import math

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise.privacy import cyclic


class ParticipationsTest(parameterized.TestCase):

  def test_by_hand(self):
    # 0 1 2 | 3 4 0 | 1 2 3 | 4 0 1: of 5 clients 3 a round.
    expected = ([0] * 5, [1, 1, 1, 0, 0], [2, 1, 1, 1, 1], [2, 2, 2, 2, 1], [3, 3, 2, 2, 2])
    for rounds, counts in enumerate(expected):
      self.assertEqual(cyclic.participations(5, 3, rounds).tolist(), counts)
    # Of 6 clients 4 a round: 0 1 2 3 | 4 5 0 1 | 2 3 4 5, two always together.
    self.assertEqual(cyclic.participations(6, 4, 2).tolist(), [2, 1, 1])
    # Everybody in each.
    self.assertEqual(cyclic.participations(4, 4, 7).tolist(), [7])

  @parameterized.parameters(*itertools.product((1, 2, 5, 6, 12), (1, 2, 3, 4, 12)))
  def test_is_what_comes_of_going_through_the_order(self, population, cohort):
    if cohort > population:
      return
    taken, counts = itertools.cycle(range(population)), np.zeros(population, int)
    together = math.gcd(population, cohort)
    for rounds in range(30):
      found = cyclic.participations(population, cohort, rounds)
      np.testing.assert_array_equal(np.repeat(found, together), counts)
      self.assertEqual(found.max(), found[0])
      counts[list(itertools.islice(taken, cohort))] += 1

  @parameterized.parameters(
      (0, 1, 1, 'population must be .* at least 1'), (4, 0, 1, 'cohort must be'),
      (4, 5, 1, 'the cohort must be at most the population, 4, got 5'),
      (4, 2, -1, 'rounds must be'), (4, 2, 1.5, 'rounds must be'),
  )
  def test_refuses(self, population, cohort, rounds, message):
    with self.assertRaisesRegex(ValueError, message):
      cyclic.participations(population, cohort, rounds)


if __name__ == '__main__':
  absltest.main()
