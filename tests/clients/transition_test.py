"""Estimates of transition matrices: by hand, against NumPy, and of clients that show little."""

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise.clients import transition

_PREDICTED = np.array([
    [0.97, 0.02, 0.01], [0.96, 0.03, 0.01], [0.96, 0.02, 0.02], [0.5, 0.4, 0.1],
    [0.01, 0.98, 0.01], [0.02, 0.96, 0.02], [0.03, 0.02, 0.95], [0.3, 0.3, 0.4],
], np.float32)
_LABELS = np.array([0, 0, 1, 1, 1, 2, 2, 2], np.int32)


def _hundred():
  """100 predictions of which some stand out."""
  p = np.tile(np.float32([0.3, 0.3, 0.4]), (100, 1))
  p[0:3], p[3], p[10:13], p[20:24] = (
      [0.5, 0.45, 0.05], [0.48, 0.3, 0.22], [0.2, 0.6, 0.2], [0.1, 0.1, 0.8]
  )
  return p


def _in_numpy(p, choice):
  p, rows = p.copy(), []
  for i in range(p.shape[1]):
    column = p[:, i] if choice == 'code' else p[:, i].copy()
    if choice != 'largest':
      column[column >= np.percentile(column, 97, method='higher')] = 0
    rows.append(p[column.argmax()].copy())
  rows = np.array(rows)
  sums = rows.sum(axis=1, keepdims=True)
  return np.where(sums > 0, rows / np.where(sums > 0, sums, 1), np.eye(p.shape[1]))


class CountsTest(parameterized.TestCase):

  def test_by_hand(self):
    # A prediction of .95 is not above it.
    counts = transition.confident_counts(tf.constant(_PREDICTED), _LABELS, 0.95)
    np.testing.assert_array_equal(counts, [[2, 1, 0], [0, 1, 1], [0, 0, 0]])
    np.testing.assert_allclose(
        transition.normalised(counts), [[2 / 3, 1 / 3, 0], [0, 0.5, 0.5], [0, 0, 1]], atol=1e-6
    )

  def test_rows_are_divided_by_their_own_sums(self):
    rows = tf.constant([[0.8, 0.15, 0], [0.1, 0.6, 0.2], [0, 0.3, 0.9]])
    np.testing.assert_allclose(
        transition.normalised(rows),
        [[0.842105, 0.157895, 0], [0.111111, 0.666667, 0.222222], [0, 0.25, 0.75]], atol=1e-6,
    )

  @parameterized.parameters((1, [[0, 1], [0, 1]]), (0, [[1, 0], [0, 1]]))
  def test_of_one_example(self, label, expected):
    counts = transition.confident_counts(tf.constant([[0.99, 0.01]]), np.int32([label]), 0.95)
    np.testing.assert_array_equal(transition.normalised(counts), expected)

  def test_of_nothing_confident_it_is_the_identity(self):
    counts = transition.confident_counts(tf.fill([4, 3], 1 / 3), np.zeros(4, np.int32), 0.95)
    np.testing.assert_array_equal(transition.normalised(counts), np.eye(3))


class AnchorsTest(parameterized.TestCase):

  @parameterized.parameters(
      ('filtered', [[0.48, 0.3, 0.22], [0.5, 0.45, 0.05], [0.3, 0.3, 0.4]]),
      ('code', [[0.48, 0.3, 0.22], [0, 0.9, 0.1], [0.3, 0.3, 0.4]]),
      ('largest', [[0.5, 0.45, 0.05], [0.2, 0.6, 0.2], [0.1, 0.1, 0.8]]),
  )
  def test_by_hand(self, choice, expected):
    # Public code sets what it passes over to 0: the second row has lost its .5.
    found = transition.normalised(transition.anchors(tf.constant(_hundred()), choice))
    np.testing.assert_allclose(found, expected, atol=1e-6)

  @parameterized.product(choice=('largest', 'filtered', 'code'), seed=(0, 1, 2), n=(1, 2, 34, 200))
  def test_numpy_says_the_same(self, choice, seed, n):
    p = np.random.default_rng(seed).dirichlet(np.ones(4), n).astype(np.float32)
    found = transition.normalised(transition.anchors(tf.constant(p), choice)).numpy()
    np.testing.assert_allclose(found, _in_numpy(p, choice), atol=1e-6)
    np.testing.assert_allclose(found.sum(axis=1), np.ones(4), atol=1e-5)

  def test_rows_are_as_they_were_predicted(self):
    found = transition.anchors(tf.constant(_hundred()), 'code')
    np.testing.assert_allclose(found[1], [0, 0.45, 0.05], atol=1e-6)

  @parameterized.parameters('largest', 'filtered', 'code')
  def test_without_examples_there_are_none(self, choice):
    found = transition.anchors(tf.zeros([0, 3]), choice)
    np.testing.assert_array_equal(transition.normalised(found), np.eye(3))


class WithoutFlipsTest(absltest.TestCase):

  def test_undoes_flips(self):
    t = np.random.default_rng(0).dirichlet(np.ones(5), 5).astype(np.float32)
    keep = 0.4
    flip = np.full((5, 5), 0.15) + 0.25 * np.eye(5)
    found = transition.without_flips(tf.constant(t @ flip, tf.float32), keep)
    np.testing.assert_allclose(found, t, atol=1e-5)
    np.testing.assert_array_equal(transition.without_flips(tf.constant(t), 1.0), t)

  def test_never_leaves_the_distributions(self):
    found = transition.without_flips(tf.constant([[1.0, 0, 0], [0, 0, 1], [0.4, 0.3, 0.3]]), 0.6)
    np.testing.assert_allclose(found, [[1, 0, 0], [0, 0, 1], [0.5, 0.25, 0.25]], atol=1e-6)


if __name__ == '__main__':
  absltest.main()
