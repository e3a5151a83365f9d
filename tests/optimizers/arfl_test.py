"""Tests of residual-based reweighting: numbers by hand, NumPy in loops, its guards."""

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests.optimizers import rounds
from tff_noise import params as params_lib
from tff_noise import types
from tff_noise.optimizers import arfl
from tff_noise.optimizers import catalog
from tff_noise.optimizers import parameters

_TRAINING = rounds.full_batch(3)
_W = np.array([[0.3, -0.2], [0.1, 0.4]])
_SIX = np.array([1, 1.25, 0.9, 1.1, 1.02, 3])
_FIVE = np.array([1, 1.25, 0.9, 1.1, 1.7])
_THREE_WEIGHTS = np.array(
    [[1, 2, -1], [1.2, 2.2, -0.8], [0.9, 1.9, -1.3], [1.1, 2.6, -1.1], [5, -3, 4]]
)


def _column(y):
  return tf.constant(y, tf.float64)[:, tf.newaxis]


def _combine(rows, weights=None, **params):
  rows = np.asarray(rows, np.float32)
  weights = np.ones(len(rows)) if weights is None else weights
  update, share = arfl.combine(
      tf.constant(rows), tf.constant(weights, tf.float32), parameters.ARFLParams(**params)
  )
  return update.numpy(), share.numpy()


def _in_loops(rows, weight, threshold):
  """The same in NumPy, client by client and weight by weight."""
  n, size = rows.shape
  c, moved = np.zeros(n), rows.astype(np.float64)
  for j in range(size):
    y = rows[:, j].astype(np.float64)
    rank = np.argsort(np.argsort(y, kind='stable'), kind='stable')
    s = np.sort(y)
    b = np.median([
        np.median([(s[k] - s[i]) / (k - i) for k in range(n) if k != i]) for i in range(n)
    ])
    line = np.median(s) - b * (n - 1) / 2 + b * rank
    r = np.abs(y - line)
    scale = 1.4826 * (1 + 5 / (n - 1)) * np.median(np.sort(r)[1:]) + 1e-7
    design = np.stack([np.ones(n), rank], axis=1)
    leverage = np.diag(design @ np.linalg.inv(design.T @ design) @ design.T)
    v = np.array([
        1.0 if e == 0 else min(1.0, weight * np.sqrt(2 / n) * np.sqrt(1 - h) / e)
        for e, h in zip(r / scale, leverage, strict=True)
    ])
    c += v * (v.std(ddof=1) if v.std(ddof=1) >= 1e-6 else 0)
    moved[:, j] = np.where(v < threshold, line, y)
  share = c**2 / (c**2).sum()
  return share @ moved, share


class FormulaTest(parameterized.TestCase):

  def test_line_and_confidence_by_hand(self):
    order = np.argsort(_SIX)
    line = arfl.repeated_median_line(_column(_SIX[order]))
    np.testing.assert_allclose(
        line[:, 0],
        np.array([0.931875, 1.188125, 0.846458, 1.102708, 1.017292, 1.273542])[order], atol=1e-6,
    )
    v = arfl.confidence(_column(_SIX[order]), line, 2.0)
    np.testing.assert_allclose(v[:, 0], [1, 1, 1, 1, 1, 0.084678], atol=1e-6)

  def test_what_lies_far_is_moved_to_the_line(self):
    scores, moved = arfl.reweighted(_column(_SIX), 2.0, 0.1)
    np.testing.assert_allclose(
        scores[:, 0], 0.373678 * np.array([1, 1, 1, 1, 1, 0.084678]), atol=1e-6
    )
    np.testing.assert_allclose(moved[:, 0], [*_SIX[:-1], 1.273542], atol=1e-6)

  def test_what_lies_less_far_stays_and_counts_less(self):
    order = np.argsort(_FIVE)
    line = arfl.repeated_median_line(_column(_FIVE[order]))
    np.testing.assert_allclose(line[:, 0], 0.85 + 0.125 * np.arange(5), atol=1e-6)
    v = np.array([1, 1, 1, 1, 0.285930])
    np.testing.assert_allclose(
        arfl.confidence(_column(_FIVE[order]), line, 2.0)[:, 0], v[order], atol=1e-6
    )
    scores, moved = arfl.reweighted(_column(_FIVE), 2.0, 0.1)
    np.testing.assert_allclose(scores[:, 0], 0.319342 * v, atol=1e-6)
    np.testing.assert_array_equal(moved[:, 0], _FIVE)

  @parameterized.parameters(
      (_SIX[:, np.newaxis], [1.054314], [0.199714] * 5 + [0.001432]),
      (_FIVE[:, np.newaxis], [1.075269], [0.244993] * 4 + [0.020030]),
      ([[1], [1], [1], [1], [5]], [1], [0.25] * 4 + [0]),
      (_THREE_WEIGHTS, [1.050117, 2.174637, -1.049805], [0.249883] * 4 + [0.000468]),
  )
  def test_combination_by_hand(self, rows, expected, share):
    update, found = _combine(rows)
    np.testing.assert_allclose(update, expected, atol=1e-5)
    np.testing.assert_allclose(found, share, atol=1e-5)

  def test_updates_and_models_have_the_same_shares(self):
    update, share = _combine(_THREE_WEIGHTS)
    for sign, shift in ((1, 7), (-1, 0), (-1, 3)):
      other, same = _combine(sign * _THREE_WEIGHTS + shift)
      np.testing.assert_allclose(other, sign * update + shift, atol=1e-5)
      np.testing.assert_allclose(same, share, atol=1e-5)

  @parameterized.parameters((1e-4, 4e-6), (1e-6, 5.04e-4))
  def test_small_values_count_more_alike(self, scale, gain):
    # By the 1e-7 that is added to s.
    _, share = _combine(_THREE_WEIGHTS)
    _, of_small = _combine(scale * _THREE_WEIGHTS)
    self.assertAlmostEqual(of_small[4] - share[4], gain, delta=1e-6)

  @parameterized.parameters(*range(6))
  def test_numpy_in_loops_says_the_same(self, seed):
    draw = np.random.default_rng(seed)
    n = draw.integers(4, 13)
    rows = draw.normal(size=(n, 30)).astype(np.float32)
    rows[0] += draw.choice([0, 5])
    weight, threshold = draw.uniform(0.5, 3), draw.uniform(0.05, 0.5)
    update, share = _combine(rows, weight=weight, threshold=threshold)
    expected, of_clients = _in_loops(rows, weight, threshold)
    np.testing.assert_allclose(share, of_clients, atol=1e-5)
    np.testing.assert_allclose(update, expected, atol=1e-5)

  def test_more_weights_than_are_held_at_a_time(self):
    rows = np.random.default_rng(0).normal(size=(5, 4500)).astype(np.float32)
    update, share = _combine(rows)
    expected, of_clients = _in_loops(rows, 2.0, 0.1)
    np.testing.assert_allclose(share, of_clients, atol=1e-5)
    np.testing.assert_allclose(update, expected, atol=1e-5)

  def test_a_client_apart_counts_little(self):
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(10, 500))
    share = _combine(rows)[1]
    self.assertAlmostEqual(share.min(), 0.095036, delta=1e-5)
    self.assertAlmostEqual(share.max(), 0.103374, delta=1e-5)
    for shift, expected in ((3, 0.010799), (7, 0.000272)):
      rows[0] += shift
      self.assertAlmostEqual(_combine(rows)[1][0], expected, delta=1e-5)
    # And one, or three, whose models are three times as far from the others.
    for count, expected in ((1, [0.029532]), (3, [0.050223, 0.05672, 0.05036])):
      rows = draw.normal(size=(10, 500))
      rows[:count] *= 3
      np.testing.assert_allclose(_combine(rows)[1][:count], expected, atol=1e-5)


class GuardTest(parameterized.TestCase):

  @parameterized.parameters(4, 5, 10)
  def test_equal_clients_are_the_client(self, n):
    update, share = _combine([[0.1, -3, 1e-7, 0]] * n)
    np.testing.assert_allclose(update, [0.1, -3, 1e-7, 0], rtol=1e-6)
    np.testing.assert_allclose(share, np.full(n, 1 / n), rtol=1e-6)

  def test_values_on_a_line_are_averaged(self):
    update, _ = _combine(np.arange(5)[:, np.newaxis] * [0.1, 3, -1e-3])
    np.testing.assert_allclose(update, [0.2, 6, -2e-3], rtol=1e-5)

  @parameterized.parameters(1, 2, 3)
  def test_of_fewer_than_four_it_is_the_unweighted_mean(self, n):
    rows = np.random.default_rng(n).normal(size=(n, 7))
    np.testing.assert_allclose(_combine(rows, [5.0, 1, 2][:n])[0], rows.mean(axis=0), atol=1e-6)

  def test_without_bound_it_is_the_unweighted_mean(self):
    update, _ = _combine(_THREE_WEIGHTS, weight=1e9)
    np.testing.assert_allclose(update, _THREE_WEIGHTS.mean(axis=0), atol=1e-5)

  def test_rows_without_weight_are_left_out(self):
    rows = np.insert(_THREE_WEIGHTS, [1, 4], np.nan, axis=0)
    update, share = _combine(rows, [3, 0, 1, 1, 9, 0, 1])
    np.testing.assert_allclose(update, [1.050117, 2.174637, -1.049805], atol=1e-5)
    np.testing.assert_allclose(
        share, [0.249883, 0, 0.249883, 0.249883, 0.249883, 0, 0.000468], atol=1e-5
    )

  def test_of_none_it_is_zero(self):
    update, share = _combine(_THREE_WEIGHTS, np.zeros(5))
    np.testing.assert_array_equal(update, np.zeros(3))
    np.testing.assert_array_equal(share, np.zeros(5))


class RoundTest(federated_test_case.FederatedTestCase):

  _CLIENTS = (
      *rounds.DISAGREEING, ([[1, 2], [-1, 1]], [1, 0]), ([[0, 1], [3, 1], [1, 1]], [0, 0, 1]),
      ([[2, 2]], [0]),
  )

  def test_is_the_combination_of_local_models(self):
    federation = rounds.Federation('arfl', self._CLIENTS, _TRAINING, weights=_W)
    expected = _W
    for _ in range(2):
      federation.round()
      models = np.array([rounds.train(expected, client, 3) for client in self._CLIENTS])
      flat, _ = _in_loops(models.reshape(len(models), -1), 2.0, 0.1)
      expected = flat.reshape(2, 2)
      np.testing.assert_allclose(federation.w, expected, atol=1e-4)

  def test_client_that_diverged_or_holds_nothing_is_left_out(self):
    expected = rounds.Federation('arfl', self._CLIENTS, _TRAINING, weights=_W)
    expected.round()
    federation = rounds.Federation(
        'arfl', (*self._CLIENTS, ([[3e38, 0.0]], [1]), ([], [])), _TRAINING, weights=_W
    )
    self.assertEqual(federation.round()['rejected'], 1)
    np.testing.assert_array_equal(federation.w, expected.w)

  def test_is_declared_to_show_single_clients(self):
    fields = rounds.Federation('arfl', self._CLIENTS, _TRAINING).built.fields
    self.assertIn('model updates of single clients', {f.name for f in fields})
    self.assertNotEmpty(catalog.OPTIMIZERS['arfl'].per_client)

  @parameterized.parameters(
      ('weight=0', 'weight must be positive'), ('threshold=1', 'threshold must be')
  )
  def test_out_of_range_is_refused_in_one_line(self, given, message):
    with self.assertRaisesRegex(types.UsageError, f'^--param: .*{message}'):
      params_lib.parse('arfl', parameters.ARFLParams, [given])


if __name__ == '__main__':
  absltest.main()
