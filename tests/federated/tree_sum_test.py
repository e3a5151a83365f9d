"""Tests of the noise of a tree over the rounds, against its nodes by hand."""

import dp_accounting
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tff_noise.federated import aggregation
from tff_noise.federated import gaussian_sum
from tff_noise.federated import tree_sum
from tff_noise.privacy import protection
from tff_noise.privacy import tree
from tff_noise.uplink import disclosure

_ZEROS = np.zeros(4000)
_TYPE = tff.to_type([(np.float32, (40, 80)), (np.float32, (800,))])
_TREE = protection.NoisySum(
    1.5, 2.0, cohort=4, population=8, mechanism=protection.TREE, sampling=protection.CYCLIC
)


def _process(shield=_TREE, secure=False, key=bytes(32)):
  aggregate = aggregation.dp_mean(shield, noise_key=key, secure=secure)
  return aggregate.update.create(_TYPE, tff.TensorType(np.float32))


def _update(values):
  values = np.asarray(values, np.float32)
  return [values[:3200].reshape(40, 80), values[3200:]]


def _sums(process, rounds, values=_ZEROS):
  """float64 `[rounds, d]`: what is released of each round, times the cohort; the last state."""
  state, found = process.initialize(), []
  for _ in range(rounds):
    output = process.next(state, [_update(values)] * 2, [np.float32(1)] * 2)
    state = output.state
    found.append(np.concatenate([np.ravel(part) for part in output.result]) * 4.0)
  return np.array(found, np.float64), state


class TreeSumTest(federated_test_case.FederatedTestCase):

  def test_noise_of_each_round_by_hand(self):
    # Of the first 9 rounds: the node that ends in it, and those that are taken off.
    expected = (
        (1,), (2, 1), (3,), (4, 3, 2), (5,), (6, 5), (7,), (8, 7, 6, 4), (9,)
    )
    key = np.array([7, 8], np.int64)
    parts = [tf.zeros((3, 2)), tf.zeros(())]
    node = gaussian_sum.GaussianSum(1.0, 1.0, key).noise
    noise = tree_sum.TreeSum(1.0, 1.0, key).noise
    for round_num, (end, *taken) in enumerate(expected):
      for i, found in enumerate(noise(parts, tf.constant(round_num))):
        by_hand = node(parts, end - 1)[i] - sum(node(parts, other - 1)[i] for other in taken)
        np.testing.assert_allclose(found, by_hand, atol=1e-5)

  @parameterized.parameters(False, True)
  def test_nodes_are_independent_and_of_the_deviation(self, secure):
    released, _ = _sums(_process(secure=secure), 9)
    nodes = tree.nodes(released)
    # 4,000 numbers: the standard error of their deviation is 1/90 of it, of a correlation 1/63.
    np.testing.assert_allclose(nodes.std(axis=1), 1.5 * 2.0, rtol=4 / 90)
    correlation = np.corrcoef(nodes) - np.eye(len(nodes))
    self.assertLess(np.abs(correlation).max(), 5 / 63)

  def test_noise_of_the_sum_over_a_power_of_two_is_that_of_one_node(self):
    released, _ = _sums(_process(), 8)
    totals = np.cumsum(released, axis=0).std(axis=1) / 3.0
    digits = [bin(t).count('1') for t in range(1, 9)]
    np.testing.assert_allclose(totals, np.sqrt(digits), rtol=4 / 90)
    # A round by itself has more: its own node, and one for each that is taken in.
    np.testing.assert_allclose(
        released.std(axis=1) / 3.0, np.sqrt([1, 2, 1, 3, 1, 2, 1, 4]), rtol=4 / 90
    )

  @parameterized.parameters(False, True)
  def test_clipped_updates_are_under_the_noise(self, secure):
    # Norm 10 to norm 2.
    values = _ZEROS.copy()
    values[:2] = 6.0, 8.0
    process = _process(secure=secure)
    without, _ = _sums(process, 3)
    moved = _sums(process, 3, values)[0] - without
    np.testing.assert_allclose(moved[:, :2], [[2 * 1.2, 2 * 1.6]] * 3, atol=1e-4)
    np.testing.assert_allclose(moved[:, 2:], 0, atol=1e-4)

  def test_is_a_function_of_key_and_round(self):
    process = _process()
    first, _ = _sums(process, 4)
    np.testing.assert_array_equal(_sums(process, 4)[0], first)
    # From a state that was kept, as a run that is continued has it.
    _, state = _sums(process, 3)
    output = process.next(state, [_update(_ZEROS)] * 2, [np.float32(1)] * 2)
    np.testing.assert_array_equal(
        np.concatenate([np.ravel(part) for part in output.result]) * 4.0, first[3]
    )
    other, _ = _sums(_process(key=bytes([1] * 32)), 4)
    self.assertFalse(np.isclose(other, first, rtol=1e-3).all(axis=1).any())

  def test_a_node_is_not_the_noise_of_the_same_round_without_a_tree(self):
    plain = _TREE._replace(mechanism=protection.GAUSSIAN)
    first, other = (_sums(_process(shield), 1)[0][0] for shield in (_TREE, plain))
    self.assertLess(abs(np.corrcoef(first, other)[0, 1]), 5 / 63)

  def test_state_is_the_number_of_the_round_alone(self):
    # And no noise: a checkpoint would hold it.
    _, state = _sums(_process(), 3)
    self.assertEqual({np.shape(part) for part in tf.nest.flatten(state.query_state)}, {()})
    event = dp_accounting.DpEvent.from_named_tuple(state.dp_event)
    self.assertIsInstance(event, dp_accounting.UnsupportedDpEvent)

  @parameterized.parameters(False, True)
  def test_nothing_but_the_update_leaves_a_client(self, secure):
    aggregate = aggregation.dp_mean(_TREE, noise_key=bytes(32), secure=secure)
    process, fields = _process(secure=secure), aggregate.update_fields(_TYPE)
    disclosure.check(process.next, fields)
    self.assertLen(disclosure.client_to_server_edges(process.next), 2 if secure else 1)
    self.assertEqual({f.protection for f in fields}, {_TREE})
    self.assertEqual((fields[0].name, fields[0].lower, fields[0].upper), ('update', -2, 2))


if __name__ == '__main__':
  absltest.main()
