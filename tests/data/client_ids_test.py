"""Cohorts of TFF's programs follow from the seed and the round."""

import copy
import random

import numpy as np
import tensorflow_federated as tff
from absl.testing import absltest

from tff_noise.data import client_ids

_IDS = [f'client {i}' for i in range(9)]


def _cohorts(iterator, rounds):
  return [iterator.select(4) for _ in range(rounds)]


class ClientIdsTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.source = client_ids.ClientIds(np.array(_IDS), seed=np.int64(3))

  def test_ids_without_replacement_others_in_each_round(self):
    cohorts = _cohorts(self.source.iterator(), 200)
    for cohort in cohorts:
      self.assertLen(set(cohort), 4)
    counts = [sum(c.count(i) for c in cohorts) for i in _IDS]
    # 200 * 4 / 9 = 89, four standard deviations of a binomial are 28.
    self.assertBetween(min(counts), 61, 117)
    self.assertBetween(max(counts), 61, 117)
    self.assertGreater(len({tuple(c) for c in cohorts}), 150)

  def test_the_same_again_whatever_else_is_drawn(self):
    expected = _cohorts(self.source.iterator(), 5)
    random.seed(7)
    self.assertEqual(_cohorts(self.source.iterator(), 5), expected)
    self.assertNotEqual(_cohorts(client_ids.ClientIds(_IDS, seed=4).iterator(), 5), expected)

  def test_goes_on_from_a_copy_and_from_what_was_saved(self):
    iterator = self.source.iterator()
    _cohorts(iterator, 2)
    copied, saved = copy.deepcopy(iterator), iterator.to_bytes()  # Of a NumPy seed, too.
    expected = _cohorts(iterator, 3)
    self.assertNotEqual(iterator, copied)
    restored = client_ids.ClientIdsIterator.from_bytes(saved)
    self.assertEqual(restored, copied)
    self.assertEqual(_cohorts(copied, 3), expected)
    self.assertEqual(_cohorts(restored, 3), expected)

  def test_type(self):
    expected = tff.FederatedType(np.str_, tff.CLIENTS)
    self.assertEqual(self.source.federated_type, expected)
    self.assertEqual(self.source.iterator().federated_type, expected)

  def test_mistakes(self):
    for ids in ([], ['a', 'b', 'a']):
      with self.assertRaisesRegex(ValueError, 'all different'):
        client_ids.ClientIds(ids, seed=0)
    with self.assertRaisesRegex(TypeError, "must be str, got .'int', 'int', 'int'.$"):
      client_ids.ClientIds(range(9), seed=0)
    for seed in (-1, 2**63):
      with self.assertRaisesRegex(ValueError, 'seed must be in'):
        client_ids.ClientIds(_IDS, seed)
    for k in (None, 0, 10, 2.0):
      with self.assertRaisesRegex(ValueError, f'k must be from 1 to 9, got {k}'):
        self.source.iterator().select(k)


if __name__ == '__main__':
  absltest.main()
