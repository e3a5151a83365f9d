"""Tests of the local intrinsic dimension."""

from unittest import mock

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tff_noise.clients import intrinsic_dimension


def _scores(points, k):
  return intrinsic_dimension.lid_scores(tf.constant(points, tf.float32), k).numpy()


def _oracle(points, k):
  """Equation 2, point by point."""
  points = np.asarray(points, np.float32).astype(np.float64)
  scores = []
  for i, x in enumerate(points):
    r = np.sort(np.linalg.norm(np.delete(points, i, axis=0) - x, axis=1))[:k]
    scores.append(-1 / np.mean(np.log(np.maximum(r / r[-1], 1e-6))))
  return np.array(scores)


def _softmax(logits):
  powers = np.exp(logits - logits.max(axis=1, keepdims=True))
  return (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)


def _cube(d, n):
  """Uniform points of a d-cube turned into ten dimensions; which are far from its faces."""
  rng = np.random.default_rng(d)
  rotation = np.linalg.qr(rng.normal(size=(10, 10)))[0]
  inside = rng.uniform(size=(n, d))
  far = np.minimum(inside, 1 - inside).min(axis=1) > 0.2
  return (inside @ rotation[:d]).astype(np.float32), far


class ByHandTest(parameterized.TestCase):

  def test_four_points_of_a_line(self):
    # From 0: distances 1, 2, 4. From 1: 1, 1, 3. From 2: 1, 2, 2. From 4: 2, 3, 4.
    expected = [
        -3 / np.log(1 / 4 * 2 / 4),
        -3 / np.log(1 / 3 * 1 / 3),
        -3 / np.log(1 / 2),
        -3 / np.log(2 / 4 * 3 / 4),
    ]
    points = [[0, 0], [1, 0], [2, 0], [4, 0]]
    np.testing.assert_allclose(_scores(points, 3), expected, rtol=1e-6)
    score = intrinsic_dimension.lid_score(tf.constant(points, tf.float32), 3)
    self.assertEqual(score.dtype, tf.float32)
    self.assertEqual(score.shape, [])
    self.assertAlmostEqual(score.numpy(), np.mean(expected), places=5)

  def test_only_the_nearest_count(self):
    # The two nearest of 0 are at 1 and 2.
    self.assertAlmostEqual(_scores([[0], [1], [2], [4], [50]], 2)[0], 2 / np.log(2), places=5)

  def test_fewer_points_than_neighbours(self):
    points = [[0, 0], [1, 0], [2, 0], [4, 0]]
    np.testing.assert_array_equal(_scores(points, 20), _scores(points, 3))

  def test_no_neighbour_is_no_dimension_and_a_single_one_the_bound(self):
    self.assertEqual(_scores(np.zeros([0, 3]), 20).shape, (0,))
    np.testing.assert_array_equal(_scores([[1, 2]], 20), [0])
    np.testing.assert_array_equal(_scores([[1, 2], [3, 4]], 20), [100, 100])

  def test_score_of_a_client_without_examples(self):
    self.assertEqual(intrinsic_dimension.lid_score(tf.zeros([0, 3]), 20).numpy(), 0)

  def test_only_duplicates_are_a_point(self):
    np.testing.assert_array_equal(_scores(np.full([30, 3], 0.3), 20), np.zeros(30))

  def test_duplicates_count_as_very_near_neighbours(self):
    # From each copy of 0: distances 0 and 1. From 1: 1 and 1.
    near = -2 / np.log(1e-6)
    np.testing.assert_allclose(_scores([[0], [0], [1]], 2), [near, near, 100], rtol=1e-6)

  def test_neighbours_all_equally_far_give_the_bound(self):
    np.testing.assert_array_equal(_scores(np.eye(6), 5), np.full(6, 100))


class ManyPointsTest(parameterized.TestCase):

  @parameterized.product(n=[7, 60], dimensions=[2, 10], k=[3, 20])
  def test_equals_brute_force(self, n, dimensions, k):
    points = np.random.default_rng(n).dirichlet(np.full(dimensions, 0.5), n)
    np.testing.assert_allclose(_scores(points, k), _oracle(points, k), rtol=1e-5)

  @parameterized.parameters(1, 3 * 61 * 10, 60 * 61 * 10)
  def test_blocks_do_not_show(self, entries):
    # One row a block; three, the last block with one row; all but one.
    points = np.random.default_rng(0).dirichlet(np.ones(10), 61)
    whole = _scores(points, 5)
    with mock.patch.object(intrinsic_dimension, '_BLOCK_ENTRIES', entries):
      np.testing.assert_array_equal(_scores(points, 5), whole)

  def test_permuted_points_have_permuted_scores(self):
    rng = np.random.default_rng(1)
    points, order = rng.dirichlet(np.ones(4), 80), rng.permutation(80)
    np.testing.assert_array_equal(_scores(points[order], 6), _scores(points, 6)[order])

  @parameterized.parameters(1, 2, 5)
  def test_finds_the_dimension_of_a_cube(self, d):
    points, far = _cube(d, 2000)
    self.assertAlmostEqual(_scores(points, 40)[far].mean() / d, 1, delta=0.1)

  @parameterized.product(d=[1, 2, 5], k=[10, 20])
  def test_few_neighbours_overestimate_by_the_known_factor(self, d, k):
    points, far = _cube(d, 2000)
    self.assertAlmostEqual(_scores(points, k)[far].mean() / (d * k / (k - 2)), 1, delta=0.05)


class DigitsTest(parameterized.TestCase):
  """What a saturated softmax gives: points much nearer to each other than to 0."""

  @parameterized.parameters(1e-3, 1e-6, 1e-9, 1e-15)
  def test_near_duplicates_keep_their_distances(self, scale):
    rng = np.random.default_rng(2)
    offsets = rng.exponential(scale, size=(50, 9))
    points = np.concatenate([np.ones([50, 1]), offsets], axis=1)
    np.testing.assert_allclose(_scores(points, 8), _oracle(offsets, 8), rtol=1e-4)

  @parameterized.parameters(1, 5, 20)
  def test_softmax_of_large_logits(self, factor):
    rng = np.random.default_rng(3)
    points = _softmax(factor * rng.normal(size=(300, 10)))
    np.testing.assert_allclose(_scores(points, 20), _oracle(points, 20), rtol=1e-4)

  def test_softmax_of_infinite_ratios(self):
    points = _softmax(1e4 * np.random.default_rng(4).normal(size=(300, 5)))
    scores = _scores(points, 20)
    self.assertTrue(np.isfinite(scores).all())
    self.assertEqual(np.median(scores), 0)

  def test_one_hot_predictions_are_points(self):
    points = np.eye(5)[np.random.default_rng(4).integers(0, 5, 300)]
    np.testing.assert_array_equal(_scores(points, 20), np.zeros(300))

  def test_every_finite_input_gives_finite_scores(self):
    largest, smallest = np.finfo(np.float32).max, np.finfo(np.float32).tiny
    points = np.random.default_rng(5).choice([-largest, -smallest, 0, smallest, largest], (60, 3))
    scores = _scores(points, 7)
    self.assertTrue(np.isfinite(scores).all())
    self.assertBetween(scores.min(), 0, 100)
    self.assertBetween(scores.max(), 0, 100)


class InTffTest(federated_test_case.FederatedTestCase):

  def test_runs_in_a_computation_with_unknown_number_of_examples(self):
    @tff.tensorflow.computation(tff.TensorType(np.float32, (None, 4)))
    def score(predictions):
      return tf.function(lambda p: intrinsic_dimension.lid_score(p, 5))(predictions)

    points = np.random.default_rng(6).dirichlet(np.ones(4), 40).astype(np.float32)
    for n in (40, 3, 1, 0):
      expected = _scores(points[:n], 5).mean() if n else 0
      self.assertAlmostEqual(score(points[:n]), expected, places=4)


if __name__ == '__main__':
  absltest.main()
