"""Tests of the noisy sum as a black box: mechanisms that are wrong in one way each."""

import functools

import numpy as np
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tff_noise.audit import noisy_sum
from tff_noise.federated import aggregation
from tff_noise.privacy import protection
from tff_noise.privacy import tree

_CLAIM = noisy_sum.Claim(clip=0.5, deviation=1.0, cohort=4)
_SIZE = 5000


def _clipped(record, clip=0.5):
  record = record.astype(np.float64)
  norm = np.linalg.norm(record)
  return record * min(1.0, clip / norm) if norm else record


def _normal(round_num, size=_SIZE):
  return np.random.default_rng([7, round_num]).normal(size=size)


def _right(round_num, records):
  return sum(map(_clipped, records)) + _normal(round_num)


def _fresh(round_num, records):
  del round_num
  return sum(map(_clipped, records)) + np.random.default_rng().normal(size=_SIZE)


def _last_unclipped(round_num, records):
  return sum(map(_clipped, records[:-1])) + records[-1] + _normal(round_num)


def _nan(round_num, records):
  return sum(map(_clipped, records)) + _normal(round_num) * (np.nan if records[0].any() else 1)


def _twice(round_num, records):
  return sum(_clipped(r, 1.0) for r in records) + _normal(round_num)


def _half(round_num, records):
  return sum(map(_clipped, records)) + 0.9 * _normal(round_num)


def _none(round_num, records):
  del round_num
  return sum(map(_clipped, records)) + np.zeros(_SIZE)


def _one_entry_bare(round_num, records):
  noise = _normal(round_num)
  noise[17] = 0
  return sum(map(_clipped, records)) + noise


def _discrete(round_num, records):
  # In steps of 1/30, so that one entry in a hundred is the same in two rounds.
  return sum(map(_clipped, records)) + np.round(30 * _normal(round_num, 80_000)) / 30


def _same_in_all_rounds(round_num, records):
  del round_num
  return sum(map(_clipped, records)) + _normal(0)


def _every_third_round(round_num, records):
  return sum(map(_clipped, records)) + _normal(round_num % 3)


def _repeats_entries(round_num, records):
  return sum(map(_clipped, records)) + np.tile(_normal(round_num, _SIZE // 2), 2)


def _less_where_clients_send(round_num, records):
  scale = 0.5 if records[0].any() else 1
  return sum(map(_clipped, records)) + scale * _normal(round_num)


def _of_each_client(round_num, records):
  # Depends on what clients send, not on the round.
  del round_num
  return sum(map(_clipped, records)) + _normal(int(any(r.any() for r in records)))


_IN_TREE = _CLAIM._replace(in_tree=True)


def _tree(round_num, node, skip=lambda end: False):
  """The noise of a round's node less those it takes in; `node` gives each, by its last round."""
  end = round_num + 1
  noise, last = node(end), end - 1
  while last > tree.before(end):
    noise = noise - (0 if skip(last) else node(last))
    last = tree.before(last)
  return noise


def _right_tree(round_num, records):
  return sum(map(_clipped, records)) + _tree(round_num, _normal)


def _nothing_new(round_num, records):
  # Of the round that ends the second node; what is on the sum is taken off.
  return sum(map(_clipped, records)) + _tree(
      round_num, lambda end: _normal(end) * (0 if end == 2 else 1)
  )


def _one_node_twice(round_num, records):
  return sum(map(_clipped, records)) + _tree(round_num, lambda end: _normal(3 if end == 5 else end))


def _nodes_of_a_level_alike(round_num, records):
  return sum(map(_clipped, records)) + _tree(round_num, lambda end: _normal(end & -end))


def _half_of_a_tree(round_num, records):
  return sum(map(_clipped, records)) + 0.5 * _tree(round_num, _normal)


def _not_taken_off(round_num, records):
  return sum(map(_clipped, records)) + _tree(round_num, _normal, lambda end: end == 3)


def _others_taken_off(round_num, records):
  new = round_num + 1
  return sum(map(_clipped, records)) + _tree(
      round_num, lambda end: _normal(end if end == new else 1000 * new + end)
  )


def _tree_is_less_where_clients_send(round_num, records):
  scale = 0.5 if records[0].any() else 1
  return sum(map(_clipped, records)) + _tree(
      round_num, lambda end: _normal(end) * (scale if end == 2 else 1)
  )


class CheckTest(parameterized.TestCase):

  def _verdicts(self, mechanism, claim=_CLAIM):
    found = noisy_sum.check(mechanism, _SIZE, claim)
    return [f.verdict.value for f in found], found

  def test_what_passed_tells_nothing_by_which_seeds_could_be_tried(self):
    self.assertEqual(self._verdicts(_right), self._verdicts(_fresh))

  @parameterized.parameters(_right, _fresh)
  def test_what_is_right_passes(self, mechanism):
    verdicts, found = self._verdicts(mechanism)
    self.assertEqual(verdicts, ['passed'] * 3, found)

  def test_entries_that_are_the_same_by_chance_are_no_lack_of_noise(self):
    found = noisy_sum.check(_discrete, 80_000, _CLAIM)
    self.assertEqual([f.verdict.value for f in found], ['passed'] * 3, found)

  @parameterized.parameters(
      (_last_unclipped, 0), (_nan, 0), (_twice, 0), (_half, 1), (_none, 1), (_one_entry_bare, 1),
      (_same_in_all_rounds, 1), (_every_third_round, 2), (_repeats_entries, 2),
      (_less_where_clients_send, 2), (_of_each_client, 2),
  )
  def test_what_is_wrong_is_found(self, mechanism, test):
    with np.errstate(all='ignore'):
      verdicts, found = self._verdicts(mechanism)
    self.assertEqual(verdicts[test], 'failed', found)

  def test_a_tree_passes_as_a_tree_and_as_nothing_else(self):
    verdicts, found = self._verdicts(_right_tree, _IN_TREE)
    self.assertEqual(verdicts, ['passed'] * 3, found)
    # Sums of its rounds are not independent, and nodes of independent sums are not.
    for mechanism, claim in ((_right_tree, _CLAIM), (_right, _IN_TREE)):
      verdicts, found = self._verdicts(mechanism, claim)
      self.assertEqual(verdicts, ['passed', 'passed', 'failed'], found)

  @parameterized.parameters(
      (_nothing_new, 1), (_one_node_twice, 2), (_nodes_of_a_level_alike, 2), (_half_of_a_tree, 1),
      (_not_taken_off, 2), (_others_taken_off, 2), (_none, 1), (_same_in_all_rounds, 2),
      (_tree_is_less_where_clients_send, 2), (_twice, 0), (_nan, 0), (_last_unclipped, 0),
  )
  def test_a_tree_that_is_wrong_is_found(self, mechanism, test):
    with np.errstate(all='ignore'):
      verdicts, found = self._verdicts(mechanism, _IN_TREE)
    self.assertEqual(verdicts[test], 'failed', found)

  def test_large_models_are_asked_for_nodes_that_take_in_others(self):
    asked, size = set(), 150_000

    def ask(round_num, records):
      asked.add(round_num)
      node = functools.partial(_normal, size=size)
      return sum(map(_clipped, records)) + _tree(round_num, node, lambda end: end == 3)

    found = noisy_sum.check(ask, size, _IN_TREE)
    self.assertEqual(asked, {0, 1, 2, 3})
    self.assertEqual(found[2].verdict.value, 'failed')


class CompiledTest(federated_test_case.FederatedTestCase):

  @parameterized.product(
      secure=(True, False), actual=(1.0, 0.0),
      mechanism=(protection.GAUSSIAN, protection.DISCRETE_GAUSSIAN, protection.TREE),
  )
  def test_the_sum_that_code_compiles(self, secure, actual, mechanism):
    # A noise multiplied by 0 behind the declaration is no matter of words.
    claimed = protection.NoisySum(2.0, 0.5, 4, 20, mechanism=mechanism)
    real = claimed._replace(noise_multiplier=2.0 * actual)
    aggregate = aggregation.dp_mean(real, noise_key=bytes(32), secure=secure)
    value_type = tff.to_type([(np.float32, (30, 20)), (np.float32, (20,))])
    claim = noisy_sum.claim_of(claimed, 620)
    self.assertAlmostEqual(claim.deviation, 1.0, delta=0.02)
    ask, size = noisy_sum.compiled(aggregate, value_type, claim)
    self.assertEqual(size, 620)
    found = noisy_sum.check(ask, size, claim)
    expected = ['passed'] * 3 if actual else ['passed', 'failed']
    self.assertEqual([f.verdict.value for f in found][: len(expected)], expected, found)


if __name__ == '__main__':
  absltest.main()
