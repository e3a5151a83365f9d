"""Tests of FedCorr's choice of labels and of their replacement."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tff_noise.clients import relabel


def _largest(losses, candidates, ratio):
  chosen = relabel.largest_losses(
      tf.constant(losses, tf.float32), tf.constant(candidates, tf.bool), ratio
  )
  return np.flatnonzero(chosen.numpy()).tolist()


class LargestLossesTest(parameterized.TestCase):

  @parameterized.parameters(
      (0.0, []), (0.24, []), (0.25, [3]), (0.5, [0, 3]), (0.8, [0, 3, 4]), (1.0, [0, 1, 3, 4])
  )
  def test_by_hand(self, ratio, expected):
    losses = [2.0, 0.5, 9.0, 3.0, 1.0]
    self.assertEqual(_largest(losses, [True, True, False, True, True], ratio), expected)

  def test_of_equal_losses_the_first(self):
    self.assertEqual(_largest([1, 2, 1, 1, 2, 1], [True] * 6, 0.5), [0, 1, 4])
    self.assertEqual(_largest([1, 1, 1, 1], [False, True, True, True], 0.34), [1])

  def test_negative_losses_come_before_those_that_are_no_candidates(self):
    self.assertEqual(_largest([5, -3, -2], [False, True, True], 1.0), [1, 2])

  @parameterized.parameters(
      (0.29, 100, 29), (0.7, 10, 7), (0.1, 30, 3), (0.5, 5, 2), (0.8, 4, 3), (0.999, 1000, 999)
  )
  def test_rounds_down_the_product_of_the_decimal_number(self, ratio, size, expected):
    losses = np.arange(size + 3)
    self.assertLen(_largest(losses, [False] * 3 + [True] * size, ratio), expected)

  @parameterized.parameters([[[], []]], [[[1.0, 2.0], [False, False]]])
  def test_no_candidates(self, losses_and_candidates):
    self.assertEmpty(_largest(*losses_and_candidates, 1.0))

  def test_equals_sorting_the_candidates(self):
    rng = np.random.default_rng(0)
    for _ in range(20):
      n = rng.integers(1, 200)
      losses = rng.integers(0, 30, n).astype(np.float32)
      candidates = rng.uniform(size=n) < 0.4
      indices = sorted(np.flatnonzero(candidates), key=lambda i: (-losses[i], i))
      self.assertEqual(
          _largest(losses, candidates, 0.5), sorted(indices[: len(indices) // 2])
      )

  def test_permuted_examples_have_permuted_choices(self):
    rng = np.random.default_rng(1)
    losses, candidates = rng.normal(size=60), rng.uniform(size=60) < 0.5
    order = rng.permutation(60)
    chosen = _largest(losses[order], candidates[order], 0.5)
    self.assertCountEqual(order[chosen], _largest(losses, candidates, 0.5))


_LABELS = np.array([0, 0, 0, 0], np.int32)
# Exact in binary.
_PREDICTIONS = np.array(
    [[0.125, 0.625, 0.25], [0.25, 0.25, 0.5], [0.25, 0.375, 0.375], [0.0, 0.0, 1.0]], np.float32
)


class RelabelTest(parameterized.TestCase):

  @parameterized.parameters(
      (0.5, False, [1, 2, 0, 0]), (0.5, True, [1, 0, 0, 0]), (0.0, False, [1, 2, 1, 0]),
      (1.0, False, [0, 0, 0, 0]),
  )
  def test_by_hand(self, confidence, strict, expected):
    chosen = np.array([True, True, True, False])
    result = relabel.relabel(_LABELS, _PREDICTIONS, chosen, confidence, strict)
    self.assertEqual(result.dtype, tf.int32)
    np.testing.assert_array_equal(result, expected)

  @parameterized.parameters((0.9, False, 1), (0.9, True, 0), (1.0, False, 0))
  def test_threshold_is_read_as_float32(self, confidence, strict, expected):
    predictions = np.array([[0.1, 0.9]], np.float32)
    result = relabel.relabel(_LABELS[:1], predictions, np.array([True]), confidence, strict)
    np.testing.assert_array_equal(result, [expected])

  @parameterized.parameters((0.49999994, False, 1), (0.50000006, True, 0), (0.4999, False, 0))
  def test_what_is_equal_but_for_rounding_is_equal(self, largest, strict, expected):
    predictions = np.array([[0.1, largest]], np.float32)
    result = relabel.relabel(_LABELS[:1], predictions, np.array([True]), 0.5, strict)
    np.testing.assert_array_equal(result, [expected])

  @parameterized.parameters(False, True)
  def test_full_confidence(self, strict):
    predictions = np.array([[0.0, 1.0]], np.float32)
    result = relabel.relabel(_LABELS[:1], predictions, np.array([True]), 1.0, strict)
    np.testing.assert_array_equal(result, [0 if strict else 1])

  def test_label_stays_where_the_prediction_is_not_a_number(self):
    predictions = np.full([1, 3], np.nan, np.float32)
    result = relabel.relabel(np.array([2], np.int32), predictions, np.array([True]), 0.0, False)
    np.testing.assert_array_equal(result, [2])

  def test_permuted_examples_have_permuted_labels(self):
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 3, 50).astype(np.int32)
    predictions = rng.dirichlet(np.ones(3), 50).astype(np.float32)
    chosen, order = rng.uniform(size=50) < 0.5, rng.permutation(50)
    whole = relabel.relabel(labels, predictions, chosen, 0.5, False).numpy()
    np.testing.assert_array_equal(
        relabel.relabel(labels[order], predictions[order], chosen[order], 0.5, False), whole[order]
    )


class InTffTest(federated_test_case.FederatedTestCase):

  def test_both_run_in_a_computation_with_unknown_number_of_examples(self):
    @tff.tensorflow.computation(
        tff.TensorType(np.int32, (None,)),
        tff.TensorType(np.float32, (None,)),
        tff.TensorType(np.float32, (None, 3)),
    )
    def correct(labels, losses, predictions):
      @tf.function
      def run(labels, losses, predictions):
        chosen = relabel.largest_losses(losses, losses > 1, 0.5)
        return relabel.relabel(labels, predictions, chosen, 0.5, False)

      return run(labels, losses, predictions)

    losses = np.array([3, 4, 0, 2], np.float32)
    # Three candidates, so one is chosen.
    np.testing.assert_array_equal(correct(_LABELS, losses, _PREDICTIONS), [0, 2, 0, 0])
    for n in (1, 0):
      result = correct(_LABELS[:n], losses[:n], _PREDICTIONS[:n])
      np.testing.assert_array_equal(result, _LABELS[:n])


if __name__ == '__main__':
  absltest.main()
