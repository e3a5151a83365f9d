"""Tests of the noise models."""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise import rng
from tff_noise.data import noise


class _Draws:
  """A generator whose uniform draws are given."""

  def __init__(self, values):
    self._values = np.array(values)

  def random(self, n):
    assert n == len(self._values)
    return self._values


def _generator(*ids):
  return rng.generator(0, 'noise test', *ids)


class SymmetricMatrixTest(parameterized.TestCase):

  def test_values(self):
    np.testing.assert_allclose(
        noise.symmetric_matrix(4, 0.3),
        [[0.7, 0.1, 0.1, 0.1], [0.1, 0.7, 0.1, 0.1], [0.1, 0.1, 0.7, 0.1], [0.1, 0.1, 0.1, 0.7]],
    )

  def test_paper_case_keeps_the_diagonal_on_top(self):
    # methods.md 2.2: eta = .8, K = 10: diagonal .2, off-diagonal .089.
    matrix = noise.symmetric_matrix(10, 0.8)
    self.assertAlmostEqual(matrix[3, 3], 0.2)
    self.assertAlmostEqual(matrix[3, 4], 0.8 / 9)

  def test_two_classes_swap_at_rate_one(self):
    np.testing.assert_array_equal(noise.symmetric_matrix(2, 1.0), [[0, 1], [1, 0]])

  @parameterized.product(num_classes=[2, 3, 10, 100], rate=[0.0, 0.05, 0.5, 0.9, 1.0])
  def test_rows_are_distributions(self, num_classes, rate):
    matrix = noise.symmetric_matrix(num_classes, rate)
    np.testing.assert_allclose(matrix.sum(axis=1), 1)
    self.assertGreaterEqual(matrix.min(), 0)


class RandomMatrixTest(parameterized.TestCase):

  @parameterized.product(num_classes=[2, 3, 10, 100], rate=[0.0, 0.01, 0.2, 0.5, 0.8, 0.97, 1.0])
  def test_rows_are_distributions_with_the_diagonal_near_its_rate(self, num_classes, rate):
    for seed in range(20):
      matrix = noise.random_matrix(num_classes, rate, _generator(seed))
      np.testing.assert_allclose(matrix.sum(axis=1), 1)
      self.assertGreaterEqual(matrix.min(), 0)
      self.assertLessEqual(matrix.max(), 1)
      # The complement of the noise rate, not the rate itself as the paper prints it.
      self.assertBetween(np.diag(matrix).min(), max(0.95 - rate, 0) - 1e-12, 1)
      self.assertBetween(np.diag(matrix).max(), 0, min(1.05 - rate, 1) + 1e-12)

  @parameterized.parameters((0.0, 1.0), (1.0, 0.0))
  def test_diagonal_is_clipped_at_the_ends(self, rate, end):
    diagonal = np.diag(noise.random_matrix(200, rate, _generator(1)))
    # Half of Unif(-.05, .05) is beyond the end: 100 of 200, standard error 7.
    self.assertBetween((diagonal == end).sum(), 70, 130)

  def test_diagonal_is_uniform_in_its_interval(self):
    diagonal = np.diag(noise.random_matrix(2000, 0.4, _generator(2)))
    # Standard error of the mean: .1 / sqrt(12 * 2000) = .00065.
    self.assertAlmostEqual(diagonal.mean(), 0.6, delta=4 * 0.00065)
    self.assertAlmostEqual(diagonal.std(), 0.1 / np.sqrt(12), delta=0.002)

  def test_off_diagonal_is_a_flat_dirichlet(self):
    # A share of Dir(1) over m entries has mean 1 / m and variance (m - 1) / (m^2 (m + 1)).
    shares = []
    for seed in range(1000):
      matrix = noise.random_matrix(4, 0.5, _generator(seed))
      shares.append(matrix[1, [0, 2, 3]] / (1 - matrix[1, 1]))
    shares = np.array(shares)
    variance = 2 / (9 * 4)
    # Standard error sqrt(variance / 1000) = .0075.
    np.testing.assert_allclose(shares.mean(axis=0), 1 / 3, atol=4 * 0.0075)
    np.testing.assert_allclose(shares.var(axis=0), variance, rtol=0.2)

  def test_two_classes(self):
    # One other class takes all that the diagonal leaves.
    matrix = noise.random_matrix(2, 0.3, _generator(3))
    np.testing.assert_allclose(matrix[0, 1], 1 - matrix[0, 0])

  def test_other_generator_other_matrix(self):
    first, again, other = (noise.random_matrix(5, 0.3, _generator(i)) for i in (4, 4, 5))
    np.testing.assert_array_equal(first, again)
    self.assertFalse(np.isclose(first, other).any())


class ApplyMatrixTest(parameterized.TestCase):

  def test_identity_keeps_every_label(self):
    labels = np.arange(1000) % 7
    noisy = noise.apply_matrix(labels, np.eye(7), _generator())
    np.testing.assert_array_equal(noisy.labels, labels)
    np.testing.assert_array_equal(noisy.flip_probability, np.zeros(1000))

  def test_permutation_permutes(self):
    # Pairflip: y -> y + 1 mod K. The last class needs the wrap to the first column.
    permutation = np.array([1, 2, 3, 0])
    noisy = noise.apply_matrix(np.arange(400) % 4, np.eye(4)[permutation], _generator())
    np.testing.assert_array_equal(noisy.labels, permutation[np.arange(400) % 4])
    np.testing.assert_array_equal(noisy.flip_probability, np.ones(400))

  def test_intervals_are_closed_below_and_open_above(self):
    # The row [.25, .5, .25] has the edges .25 and .75, exact in binary.
    matrix = np.tile([0.25, 0.5, 0.25], (3, 1))
    draws = [0.0, np.nextafter(0.25, 0), 0.25, np.nextafter(0.75, 0), 0.75, np.nextafter(1, 0)]
    noisy = noise.apply_matrix(np.zeros(6, int), matrix, _Draws(draws))
    self.assertEqual(noisy.labels.tolist(), [0, 0, 1, 1, 2, 2])

  def test_class_of_probability_zero_is_never_drawn(self):
    matrix = np.array([[0.0, 0.5, 0.0, 0.5]] * 4)
    noisy = noise.apply_matrix(
        np.zeros(4, int), matrix, _Draws([0.0, 0.5, np.nextafter(0.5, 0), np.nextafter(1, 0)])
    )
    self.assertEqual(noisy.labels.tolist(), [1, 3, 1, 3])

  def test_largest_draw_stays_in_range_where_the_row_sums_below_one(self):
    # Ten times .1 is .9999999999999999: the largest draw is not below it.
    row = np.full(10, 0.1)
    self.assertLess(np.cumsum(row)[-1], 1)
    noisy = noise.apply_matrix(
        np.zeros(1, int), np.tile(row, (10, 1)), _Draws([np.nextafter(1, 0)])
    )
    self.assertEqual(noisy.labels.tolist(), [9])

  def test_flip_probability_is_the_complement_of_the_own_diagonal(self):
    matrix = np.array([[0.9, 0.1, 0.0], [0.2, 0.5, 0.3], [0.0, 0.0, 1.0]])
    noisy = noise.apply_matrix(np.array([2, 0, 1, 1]), matrix, _generator())
    np.testing.assert_allclose(noisy.flip_probability, [0, 0.1, 0.5, 0.5])
    self.assertEqual(noisy.labels.dtype, np.int32)

  def test_realised_transitions_follow_the_matrix(self):
    n = 20_000
    matrix = noise.random_matrix(5, 0.4, _generator(6))
    labels = np.repeat(np.arange(5), n)
    noisy = noise.apply_matrix(labels, matrix, _generator(7)).labels
    realised = np.histogram2d(labels, noisy, bins=(range(6), range(6)))[0] / n
    # Each entry within 4.5 standard errors sqrt(p (1 - p) / n); 25 entries.
    np.testing.assert_array_less(
        np.abs(realised - matrix), 4.5 * np.sqrt(matrix * (1 - matrix) / n) + 1e-12
    )

  def test_no_labels(self):
    noisy = noise.apply_matrix(np.zeros(0, int), np.eye(3), _generator())
    self.assertEqual((noisy.labels.shape, noisy.flip_probability.shape), ((0,), (0,)))


class CorruptTest(parameterized.TestCase):

  @parameterized.parameters(*((name,) for name in noise.NOISES))
  def test_types_ranges_and_the_callers_array(self, name):
    labels = np.arange(500) % 10
    before = labels.copy()
    noisy = noise.corrupt(name, labels, num_classes=10, rate=0.3, rng=_generator())
    self.assertEqual((noisy.labels.dtype, noisy.labels.shape), (np.int32, (500,)))
    self.assertEqual(noisy.flip_probability.dtype, np.float64)
    self.assertBetween(noisy.labels.min(), 0, 9)
    self.assertBetween(noisy.labels.max(), 0, 9)
    np.testing.assert_array_equal(labels, before)

  def test_none_ignores_the_rate(self):
    labels = np.arange(100) % 10
    noisy = noise.corrupt('none', labels, num_classes=10, rate=0.9, rng=_generator())
    np.testing.assert_array_equal(noisy.labels, labels)
    np.testing.assert_array_equal(noisy.flip_probability, np.zeros(100))

  @parameterized.product(name=['symmetric', 'random'], rate=[0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
  def test_realised_rate_is_the_one_asked_for(self, name, rate):
    n = 20_000
    labels = np.arange(n) % 10
    noisy = noise.corrupt(name, labels, num_classes=10, rate=rate, rng=_generator(8))
    realised = (noisy.labels != labels).mean()
    # Given the matrix, the standard error is at most sqrt(.25 / 20000) = .0035.
    self.assertAlmostEqual(realised, noisy.flip_probability.mean(), delta=4 * 0.0035)
    # The random diagonal adds .1 / sqrt(12 * 10) = .009, and its clipping at the ends .0125.
    self.assertAlmostEqual(realised, rate, delta=0.0125 + 4 * 0.0097)

  def test_symmetric_flips_go_to_all_other_classes_alike(self):
    labels = np.zeros(9000, int)
    noisy = noise.corrupt('symmetric', labels, num_classes=10, rate=0.9, rng=_generator(9))
    # 900 each, standard error 28.
    np.testing.assert_allclose(np.bincount(noisy.labels, minlength=10), 900, atol=4 * 28.5)

  @parameterized.parameters('symmetric', 'random')
  def test_other_generator_other_flips(self, name):
    labels = np.arange(1000) % 10
    first, again, other = (
        noise.corrupt(name, labels, num_classes=10, rate=0.5, rng=_generator(i)).labels
        for i in (10, 10, 11)
    )
    np.testing.assert_array_equal(first, again)
    self.assertGreater((first != other).sum(), 200)

  def test_flips_do_not_follow_the_position(self):
    # One draw for the whole batch, or one for each class, would flip them together.
    noisy = noise.corrupt(
        'symmetric', np.zeros(1000, int), num_classes=2, rate=0.5, rng=_generator(12)
    )
    # 500 of 1000, standard error 16; runs of equal labels likewise.
    self.assertBetween(noisy.labels.sum(), 430, 570)
    self.assertBetween((np.diff(noisy.labels) != 0).sum(), 430, 570)


if __name__ == '__main__':
  absltest.main()
