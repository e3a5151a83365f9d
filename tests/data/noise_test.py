"""Tests of the noise models."""

import hashlib
from unittest import mock

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized
from scipy import stats

from tff_noise import rng
from tff_noise import types
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


def _dataset(labels, num_classes=10, **fields):
  """A data set of those clean labels; its images are black, 1 x 1."""
  labels = np.asarray(labels, np.int32)
  values = {
      'name': 'toy',
      'train_x': np.zeros((len(labels), 1, 1, 1), np.uint8),
      'train_y': labels,
      'test_x': np.zeros((1, 1, 1, 1), np.uint8),
      'test_y': np.zeros(1, np.int32),
      'num_classes': num_classes,
      'image_shape': (1, 1, 1),
      'pixel_scale': 1.0,
      'pixel_offset': 0.0,
      'class_names': tuple(map(str, range(num_classes))),
  }
  return types.Dataset(**{**values, **fields})


def _corrupt(name, labels, *, rng, num_classes=10, client_of=None, num_clients=0, **values):
  """Corrupts all of a data set of those labels."""
  return noise.corrupt(
      noise.NoiseSpec(name, **values), _dataset(labels, num_classes), np.arange(len(labels)),
      client_of=client_of, num_clients=num_clients, rng=rng,
  )


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


class ClassMapMatrixTest(parameterized.TestCase):

  def test_pairflip(self):
    np.testing.assert_allclose(
        noise.pairflip_matrix(3, 0.45), [[0.55, 0.45, 0], [0, 0.55, 0.45], [0.45, 0, 0.55]]
    )

  def test_map_with_classes_that_are_not_confused(self):
    np.testing.assert_allclose(
        noise.class_map_matrix(np.array([0, 0, 3, 2]), 0.3),
        [[1, 0, 0, 0], [0.3, 0.7, 0, 0], [0, 0, 0.7, 0.3], [0, 0, 0.3, 0.7]],
    )

  @parameterized.parameters(0.0, 1.0)
  def test_ends(self, rate):
    expected = np.eye(5) if rate == 0 else np.roll(np.eye(5), 1, axis=1)
    np.testing.assert_array_equal(noise.pairflip_matrix(5, rate), expected)


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

  def test_trailing_classes_of_probability_zero_are_never_drawn(self):
    # The ten entries sum to .9999999999999999; what is missing belongs to the tenth, not the last.
    matrix = np.tile([0.1] * 10 + [0.0], (11, 1))
    noisy = noise.apply_matrix(np.zeros(1, int), matrix, _Draws([np.nextafter(1, 0)]))
    self.assertEqual(noisy.labels.tolist(), [9])

  def test_equals_one_comparison_with_every_edge(self):
    matrix = noise.random_matrix(50, 0.5, _generator(20))
    labels = _generator(21).integers(0, 50, 5000)
    edges = np.cumsum(matrix, axis=1)
    edges[:, -1] = 1
    draws = _generator(22).random(5000)
    np.testing.assert_array_equal(
        noise.apply_matrix(labels, matrix, _Draws(draws)).labels,
        (draws[:, np.newaxis] >= edges[labels]).sum(axis=1),
    )

  def test_no_labels(self):
    noisy = noise.apply_matrix(np.zeros(0, int), np.eye(3), _generator())
    self.assertEqual((noisy.labels.shape, noisy.flip_probability.shape), ((0,), (0,)))


class CorruptTest(parameterized.TestCase):

  def _arguments(self, n):
    """What every noise can work on."""
    random = _generator(100)
    labels = np.arange(n, dtype=np.int32) % 10
    human = np.where(random.random(n) < 0.2, (labels + 1) % 10, labels)
    dataset = _dataset(
        labels, human_y=human, similar_class=(0, 0, 1, 2, 3, 4, 5, 6, 7, 8),
        train_x=random.integers(0, 256, (n, 4, 4, 3), np.uint8), image_shape=(4, 4, 3),
    )
    return dataset, random.integers(0, 7, n, np.int32)

  @parameterized.parameters(*((name,) for name in noise.NOISES))
  def test_types_ranges_and_the_callers_array(self, name):
    dataset, client_of = self._arguments(500)
    before = dataset.train_y.copy()
    noisy = noise.corrupt(
        noise.NoiseSpec(name, rate=0.3, matrix=np.eye(10)), dataset, np.arange(500),
        client_of=client_of, num_clients=7, rng=_generator(),
    )
    self.assertEqual((noisy.labels.dtype, noisy.labels.shape), (np.int32, (500,)))
    self.assertEqual(noisy.flip_probability.dtype, np.float64)
    self.assertEqual(noisy.flip_probability.shape, (500,))
    self.assertBetween(noisy.flip_probability.min(), 0, 1)
    self.assertBetween(noisy.flip_probability.max(), 0, 1)
    self.assertBetween(noisy.labels.min(), 0, 9)
    self.assertBetween(noisy.labels.max(), 0, 9)
    self.assertEqual(noisy.notes, ())
    np.testing.assert_array_equal(dataset.train_y, before)
    self.assertFalse(np.shares_memory(noisy.labels, dataset.train_y))

  @parameterized.parameters(*((name,) for name in noise.NOISES))
  def test_only_the_given_examples(self, name):
    # The others are the server's. Here the given ones are those of classes 3 and 4.
    dataset, client_of = self._arguments(2000)
    ids = np.flatnonzero(np.isin(dataset.train_y, [3, 4]))[::-1]
    noisy = noise.corrupt(
        noise.NoiseSpec(name, rate=0.1, rho=0.3, matrix=noise.symmetric_matrix(10, 0.1)),
        dataset, ids, client_of=client_of[ids], num_clients=7, rng=_generator(1),
    )
    self.assertLen(noisy.labels, 400)
    # Their order is that of ids: most labels are still the clean ones.
    self.assertGreater((noisy.labels == dataset.train_y[ids]).mean(), 0.6)

  @parameterized.parameters(*((name,) for name in noise.NOISES if name not in ('none', 'human')))
  def test_other_generator_other_flips(self, name):
    dataset, client_of = self._arguments(1000)
    first, again, other = (
        noise.corrupt(
            noise.NoiseSpec(name, rate=0.5, matrix=noise.symmetric_matrix(10, 0.5)), dataset,
            np.arange(1000), client_of=client_of, num_clients=7, rng=_generator(i),
        ).labels
        for i in (10, 10, 11)
    )
    np.testing.assert_array_equal(first, again)
    self.assertGreater((first != other).sum(), 100)

  def test_none_ignores_the_rate(self):
    labels = np.arange(100) % 10
    noisy = _corrupt('none', labels, rate=0.9, rng=_generator())
    np.testing.assert_array_equal(noisy.labels, labels)
    np.testing.assert_array_equal(noisy.flip_probability, np.zeros(100))

  @parameterized.product(name=['symmetric', 'random'], rate=[0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
  def test_realised_rate_is_the_one_asked_for(self, name, rate):
    n = 20_000
    labels = np.arange(n) % 10
    noisy = _corrupt(name, labels, rate=rate, rng=_generator(8))
    realised = (noisy.labels != labels).mean()
    # Given the matrix, the standard error is at most sqrt(.25 / 20000) = .0035.
    self.assertAlmostEqual(realised, noisy.flip_probability.mean(), delta=4 * 0.0035)
    # The random diagonal adds .1 / sqrt(12 * 10) = .009, and its clipping at the ends .0125.
    self.assertAlmostEqual(realised, rate, delta=0.0125 + 4 * 0.0097)

  def test_symmetric_flips_go_to_all_other_classes_alike(self):
    noisy = _corrupt('symmetric', np.zeros(9000, int), rate=0.9, rng=_generator(9))
    # 900 each, standard error 28.
    np.testing.assert_allclose(np.bincount(noisy.labels, minlength=10), 900, atol=4 * 28.5)

  @parameterized.parameters(
      # Drawn by the first release, with which the results in the README were made.
      ('none', 0.4, 1000, 10, 'd21390edb7d0bcbd'),
      ('symmetric', 0.4, 1000, 10, 'c64b71b7673a196b'),
      ('symmetric', 0.8, 20_000, 100, '89a4d510bc1c7232'),
      ('random', 0.4, 1000, 10, '4f37088069fda14e'),
      ('random', 0.8, 20_000, 100, 'dc2233e2f67790f8'),
  )
  def test_published_results_keep_their_labels(self, name, rate, n, num_classes, digest):
    labels = _corrupt(
        name, np.arange(n) % num_classes, num_classes=num_classes, rate=rate,
        rng=rng.generator(0, 'golden noise'),
    ).labels
    self.assertEqual(hashlib.sha256(labels.astype('<i4').tobytes()).hexdigest()[:16], digest)

  @parameterized.parameters(*((name,) for name in noise.NOISES if name != 'human'))
  def test_unknown_clean_labels(self, name):
    labels = np.array([0, 1, types.UNKNOWN, 2, types.UNKNOWN])
    arguments = {
        'client_of': np.zeros(5, np.int32), 'num_clients': 1, 'matrix': np.eye(10),
    }
    with self.assertRaisesRegex(types.UsageError, '^--noise=.* 2 of 5 .* use --noise=human$'):
      _corrupt(name, labels, rng=_generator(), **arguments)
    # An unknown label that is not asked for does no harm.
    dataset = _dataset(labels, similar_class=tuple(range(10)))
    noise.corrupt(
        noise.NoiseSpec(name, matrix=np.eye(10)), dataset, np.array([0, 1, 3]),
        client_of=np.zeros(3, np.int32), num_clients=1, rng=_generator(),
    )


class PairflipTest(absltest.TestCase):

  def test_goes_to_the_next_class_at_the_rate(self):
    labels = np.arange(20_000) % 5
    noisy = _corrupt('pairflip', labels, num_classes=5, rate=0.3, rng=_generator(30))
    changed = noisy.labels != labels
    np.testing.assert_array_equal(noisy.labels[changed], (labels[changed] + 1) % 5)
    # Standard error .0032.
    self.assertAlmostEqual(changed.mean(), 0.3, delta=4 * 0.0033)
    np.testing.assert_allclose(noisy.flip_probability, 0.3)


class AsymmetricTest(absltest.TestCase):

  def test_goes_to_the_similar_class(self):
    labels = np.arange(20_000) % 4
    similar = np.array([1, 1, 3, 2])
    noisy = noise.corrupt(
        noise.NoiseSpec('asymmetric', rate=0.4), _dataset(labels, 4, similar_class=tuple(similar)),
        np.arange(20_000), rng=_generator(31),
    )
    changed = noisy.labels != labels
    self.assertFalse(changed[labels == 1].any())
    np.testing.assert_array_equal(noisy.labels[changed], similar[labels[changed]])
    # Standard error .004.
    self.assertAlmostEqual(changed[labels != 1].mean(), 0.4, delta=4 * 0.0041)
    np.testing.assert_allclose(noisy.flip_probability, np.where(labels == 1, 0, 0.4))

  def test_data_set_without_a_map(self):
    with self.assertRaisesRegex(types.UsageError, 'published for toy: use --noise=pairflip'):
      _corrupt('asymmetric', np.arange(10), rng=_generator())


class MatrixTest(parameterized.TestCase):

  def test_rows_are_the_probabilities(self):
    matrix = np.array([[0.7, 0.3, 0], [0, 1, 0], [0.2, 0.2, 0.6]])
    labels = np.repeat([0, 1, 2], 10_000)
    noisy = _corrupt('matrix', labels, num_classes=3, matrix=matrix, rng=_generator(32))
    realised = np.histogram2d(labels, noisy.labels, bins=(range(4), range(4)))[0] / 10_000
    # Standard error at most .005.
    np.testing.assert_allclose(realised, matrix, atol=4 * 0.005)
    self.assertEqual(realised[matrix == 0].sum(), 0)
    np.testing.assert_allclose(noisy.flip_probability, np.repeat([0.3, 0, 0.4], 10_000))

  def test_tolerated_sums_are_made_one(self):
    matrix = np.array([[1 - 5e-7, 0, 0], [0, 1 + 5e-7, 0], [0, 0, 1]])
    noisy = _corrupt('matrix', np.arange(3), num_classes=3, matrix=matrix, rng=_generator())
    np.testing.assert_array_equal(noisy.flip_probability, np.zeros(3))

  @parameterized.parameters(
      ([[1, 0], [0, 1]], 'shape .2, 2., toy has 3 classes: give 3 rows of 3'),
      ([[1, 0, 0], [0, 1, 0]], 'shape .2, 3.'),
      ([1, 0, 0], 'shape .3,.'),
      ([[1, 0, 0], [0, 0.9, 0.2], [0, 0, 1]], 'row 1 .from 0. sums to 1.1, every row'),
      ([[1, 0, 0], [0, 1, 0], [0, 0, 1 - 2e-6]], 'row 2 .* sums to'),
      ([[1, 0, 0], [0, 1, 0], [0, 1.5, -0.5]], 'got -0.5 in row 2, column 2'),
      ([[1, 0, 0], [0, np.nan, 0], [0, 0, 1]], 'got nan in row 1, column 1'),
      ([[np.inf, 0, 0], [0, 1, 0], [0, 0, 1]], 'row 0 .* sums to inf'),
      ([[0, 0, 0], [0, 1, 0], [0, 0, 1]], 'row 0 .* sums to 0'),
      (None, '=matrix needs --noise_matrix'),
  )
  def test_refused(self, matrix, message):
    matrix = None if matrix is None else np.array(matrix, float)
    with self.assertRaisesRegex(types.UsageError, r'^--noise[^\n]*' + message):
      _corrupt('matrix', np.arange(3), num_classes=3, matrix=matrix, rng=_generator())


class HumanTest(parameterized.TestCase):

  def test_nothing_is_drawn(self):
    dataset = _dataset(
        [0, 1, types.UNKNOWN, 3, types.UNKNOWN], 4, human_y=np.array([0, 2, 3, 3, 0], np.int64)
    )
    random = _generator(33)
    noisy = noise.corrupt(noise.NoiseSpec('human'), dataset, np.array([4, 1, 0, 2]), rng=random)
    self.assertEqual(noisy.labels.tolist(), [0, 2, 0, 3])
    self.assertEqual(noisy.labels.dtype, np.int32)
    np.testing.assert_array_equal(noisy.flip_probability, [np.nan, 1, 0, np.nan])
    self.assertEqual(noisy.notes, ())
    self.assertEqual(random.random(), _generator(33).random())

  def test_data_set_without_human_labels(self):
    with self.assertRaisesRegex(
        types.UsageError, 'toy has no human labels.*cifar10n, cifar100n, clothing1m or npz'
    ):
      _corrupt('human', np.arange(10), rng=_generator())

  @parameterized.parameters(types.UNKNOWN, 4)
  def test_label_that_is_no_class(self, label):
    dataset = _dataset([0, 1], 4, human_y=np.array([0, label]))
    with self.assertRaisesRegex(types.UsageError, '1 of 2 human labels .* within 0 to 3'):
      noise.corrupt(noise.NoiseSpec('human'), dataset, np.arange(2), rng=_generator())


class InstanceTest(parameterized.TestCase):

  def _images(self, n, num_classes, shape, **fields):
    random = _generator(40)
    return _dataset(
        random.integers(0, num_classes, n), num_classes,
        train_x=random.integers(0, 256, (n, *shape), np.uint8), image_shape=shape, **fields,
    )

  @parameterized.parameters(
      ((3, 4, 1), {}),
      ((3, 4, 3), {'pixel_scale': (0.01, 0.02, 0.03), 'pixel_offset': (-1.0, 0.0, 0.5)}),
  )
  def test_is_the_published_algorithm(self, shape, fields):
    dataset = self._images(300, 5, shape, **fields)
    ids = _generator(41).permutation(300)[:200]
    noisy = noise.corrupt(noise.NoiseSpec('instance', rate=0.5), dataset, ids, rng=_generator(42))

    # One image after the other, as in the paper.
    random = _generator(42)
    low, high = stats.norm.cdf([-5, 5])
    q = 0.5 + 0.1 * stats.norm.ppf(low + random.random(200) * (high - low))
    draws = random.random(200)
    size = int(np.prod(shape))
    weights = [random.standard_normal((size, 5), np.float32) for _ in range(5)]
    for i, example in enumerate(ids):
      y = dataset.train_y[example]
      x = dataset.train_x[example] * np.array(dataset.pixel_scale) + dataset.pixel_offset
      p = x.reshape(-1) @ weights[y]
      p[y] = -np.inf
      p = q[i] * np.exp(p - p.max()) / np.exp(p - p.max()).sum()
      p[y] = 1 - q[i]
      self.assertAlmostEqual(noisy.flip_probability[i], q[i])
      if draws[i] >= q[i]:
        self.assertEqual(noisy.labels[i], y)
      else:
        p[y] = 0
        self.assertEqual(noisy.labels[i], (draws[i] >= np.cumsum(p)).sum())

  def test_parts_have_no_influence(self):
    dataset = self._images(500, 3, (2, 2, 1))
    whole, parts = [], []
    for labels, rows, pixels in ((whole, 4096, 2**24), (parts, 7, 2**24), (parts, 4096, 4)):
      with mock.patch.multiple(noise, _CHUNK=rows, _CHUNK_PIXELS=pixels):
        labels.append(noise.corrupt(
            noise.NoiseSpec('instance', rate=0.4), dataset, np.arange(500), rng=_generator(43)
        ).labels)
    np.testing.assert_array_equal(parts, whole * 2)

  def test_flips_depend_on_the_image(self):
    # Two images, of one class: the flipped labels of equal images are mostly the same class.
    x = np.zeros((2000, 8, 8, 1), np.uint8)
    x[:1000, :4] = 255
    x[1000:, 4:] = 255
    dataset = _dataset(
        np.zeros(2000, int), train_x=x, image_shape=(8, 8, 1), pixel_scale=1 / 255
    )
    noisy = noise.corrupt(
        noise.NoiseSpec('instance', rate=0.4), dataset, np.arange(2000), rng=_generator(44)
    )
    top = []
    for labels in (noisy.labels[:1000], noisy.labels[1000:]):
      flipped = np.bincount(labels, minlength=10)[1:]
      # Uniform flips would be a ninth; logits here have standard deviation sqrt(32) = 5.7.
      self.assertGreater(flipped.max() / flipped.sum(), 0.5)
      top.append(flipped.argmax())
    self.assertNotEqual(*top)

  @parameterized.parameters(0.0, 0.05, 0.4, 0.97, 1.0)
  def test_rates_are_truncated_normal(self, rate):
    dataset = self._images(5000, 4, (1, 1, 1))
    noisy = noise.corrupt(
        noise.NoiseSpec('instance', rate=rate), dataset, np.arange(5000), rng=_generator(45)
    )
    law = stats.truncnorm(-rate / 0.1, (1 - rate) / 0.1, loc=rate, scale=0.1)
    self.assertGreater(stats.kstest(noisy.flip_probability, law.cdf).pvalue, 1e-4)
    realised = (noisy.labels != dataset.train_y).mean()
    # Standard error at most .0071.
    self.assertAlmostEqual(realised, noisy.flip_probability.mean(), delta=4 * 0.0071)

  def test_flips_by_hand(self):
    # Class 1 of three keeps its label from .5 on; below, classes 0 and 2 have .25 each.
    shares = np.tile([0.5, 0.0, 0.5], (5, 1))
    draws = np.array([0.0, np.nextafter(0.25, 0), 0.25, np.nextafter(0.5, 0), 0.5])
    self.assertEqual(
        noise._draw_flips(1, np.full(5, 0.5), shares, draws).tolist(), [0, 0, 2, 2, 1]
    )

  def test_largest_draw_finds_a_class_where_the_shares_sum_below_one(self):
    shares = np.array([[0.1] * 10 + [0.0]])
    self.assertLess(np.cumsum(shares)[-1], 1)
    draws = np.array([np.nextafter(1, 0)])
    self.assertEqual(noise._draw_flips(10, np.ones(1), shares, draws).tolist(), [9])

  def test_image_files(self):
    dataset = _dataset([0, 1], train_x=np.array([b'/a.jpg', b'/b.jpg']))
    with self.assertRaisesRegex(types.UsageError, 'image files .*: use --noise=symmetric'):
      noise.corrupt(noise.NoiseSpec('instance'), dataset, np.arange(2), rng=_generator())


class ClientUniformTest(parameterized.TestCase):

  def _clients(self, sizes):
    return _generator(50).permutation(np.repeat(np.arange(len(sizes)), sizes)).astype(np.int32)

  def test_exactly_the_share_of_each_client_is_chosen(self):
    client_of = self._clients([10, 0, 7, 1, 100, 30])
    mu = np.array([0.5, 0.9, 0.5, 0.4, 0.123, 1.0])
    chosen = noise._choose_exactly(client_of, mu, _generator(51))
    # 5, 0, 3.5 to the even 4, .4 to 0, 12.3 to 12, 30.
    self.assertEqual(np.bincount(client_of[chosen], minlength=6).tolist(), [5, 0, 4, 0, 12, 30])

  def test_every_example_is_chosen_alike(self):
    client_of = np.zeros(10, np.int32)
    chosen = sum(
        noise._choose_exactly(client_of, np.array([0.3]), _generator(52, i)).astype(int)
        for i in range(1000)
    )
    # 300 each, standard error 14.5.
    np.testing.assert_allclose(chosen, 300, atol=4 * 14.5)

  @parameterized.product(semantics=['paper', 'reference'], num_classes=[2, 10, 100])
  def test_rates(self, semantics, num_classes):
    client_of = self._clients([4000] * 10)
    labels = _generator(53).integers(0, num_classes, 40_000)
    noisy = _corrupt(
        'client_uniform', labels, num_classes=num_classes, client_of=client_of, num_clients=10,
        rho=0.6, tau=0.3, semantics=semantics, rng=_generator(54),
    )
    changed = noisy.labels != labels
    mus = []
    for client in range(10):
      mine = client_of == client
      self.assertLen(np.unique(noisy.flip_probability[mine]), 1)
      mus.append(noisy.flip_probability[mine][0] * num_classes / (num_classes - 1))
      # Standard error at most .0079.
      self.assertAlmostEqual(
          changed[mine].mean(), mus[-1] * (num_classes - 1) / num_classes, delta=4.5 * 0.0079
      )
    noisy_mus = [mu for mu in mus if mu]
    self.assertBetween(len(noisy_mus), 1, 9)
    self.assertBetween(min(noisy_mus), 0.3, 1)
    self.assertBetween(max(noisy_mus), 0.3, 1)

  @parameterized.parameters('paper', 'reference')
  def test_new_labels_are_uniform_over_all_classes(self, semantics):
    # The public code draws from randint(0, 10) whatever K is. mu is 1 but for a hair.
    noisy = _corrupt(
        'client_uniform', np.zeros(50_000, int), num_classes=20, num_clients=1, rho=1.0,
        client_of=np.zeros(50_000, np.int32), tau=np.nextafter(1, 0), semantics=semantics,
        rng=_generator(55),
    )
    # 2500 each, class 0, the true one, included; standard error 49.
    np.testing.assert_allclose(np.bincount(noisy.labels, minlength=20), 2500, atol=4 * 49)
    np.testing.assert_allclose(noisy.flip_probability, 0.95)

  def test_share_of_noisy_clients(self):
    client_of = np.arange(2000, dtype=np.int32)
    noisy = _corrupt(
        'client_uniform', np.zeros(2000, int), client_of=client_of, num_clients=2000, rho=0.3,
        tau=0.0, rng=_generator(56),
    )
    mu = noisy.flip_probability / 0.9
    # 600, standard error 20; and uniform from tau.
    self.assertBetween((mu > 0).sum(), 518, 682)
    self.assertGreater(stats.kstest(mu[mu > 0], 'uniform').pvalue, 1e-4)

  @parameterized.parameters((0.0, 0), (1.0, 50))
  def test_no_client_and_every_client(self, rho, count):
    labels = np.arange(5000) % 10
    client_of = self._clients([100] * 50)
    noisy = _corrupt(
        'client_uniform', labels, client_of=client_of, num_clients=50, rho=rho, rng=_generator(57)
    )
    self.assertLen(np.unique(client_of[noisy.labels != labels]), count)
    self.assertEqual(noisy.notes, ())

  def test_draw_without_noisy_clients_is_noted(self):
    noisy = _corrupt(
        'client_uniform', np.zeros(6, int), client_of=self._clients([2, 2, 2]), num_clients=3,
        rho=1e-9, rng=_generator(58),
    )
    self.assertEqual(noisy.notes, ('no client is noisy: none of 3 was drawn with rho 1e-09',))


class ClientSymmetricTest(parameterized.TestCase):

  @parameterized.parameters((0.0, 0), (0.5, 10), (0.33, 7), (1.0, 20))
  def test_exactly_the_share_of_clients_is_noisy(self, rho, count):
    labels = np.arange(20_000) % 10
    client_of = _generator(60).permutation(np.arange(20_000, dtype=np.int32) % 20)
    noisy = _corrupt(
        'client_symmetric', labels, client_of=client_of, num_clients=20, rho=rho, rate=0.5,
        rng=_generator(61),
    )
    changed = noisy.labels != labels
    is_noisy = np.bincount(client_of, changed) > 0
    self.assertEqual(is_noisy.sum(), count)
    np.testing.assert_array_equal(noisy.flip_probability, 0.5 * is_noisy[client_of])
    if count:
      # Standard error at most .006.
      self.assertAlmostEqual(changed[is_noisy[client_of]].mean(), 0.5, delta=4 * 0.006)

  def test_flips_go_to_all_other_classes_alike(self):
    noisy = _corrupt(
        'client_symmetric', np.full(9000, 3), client_of=np.zeros(9000, np.int32), num_clients=1,
        rho=1.0, rate=1.0, rng=_generator(62),
    )
    counts = np.bincount(noisy.labels, minlength=10)
    self.assertEqual(counts[3], 0)
    # 1000 each, standard error 30.
    np.testing.assert_allclose(np.delete(counts, 3), 1000, atol=4 * 30)

  def test_other_generator_other_clients(self):
    client_of = np.arange(1000, dtype=np.int32)
    first, other = (
        _corrupt(
            'client_symmetric', np.zeros(1000, int), client_of=client_of, num_clients=1000,
            rho=0.5, rng=_generator(i),
        ).flip_probability > 0
        for i in (63, 64)
    )
    self.assertBetween((first != other).sum(), 400, 600)


class IdentifiabilityTest(parameterized.TestCase):

  def _notes(self, name, num_classes, **values):
    n = 40 * num_classes
    dataset = _dataset(
        np.arange(n) % num_classes, num_classes,
        similar_class=(1, 0, *range(2, num_classes)) if num_classes > 2 else (1, 0),
    )
    return noise.corrupt(
        noise.NoiseSpec(name, **values), dataset, np.arange(n),
        client_of=np.arange(n, dtype=np.int32) % 4, num_clients=4, rng=_generator(70),
    ).notes

  @parameterized.product(num_classes=[2, 3, 4, 5, 7, 10, 100])
  def test_symmetric_from_where_all_labels_are_alike(self, num_classes):
    limit = (num_classes - 1) / num_classes
    for name in ('symmetric', 'client_symmetric'):
      self.assertEqual(self._notes(name, num_classes, rate=limit - 1e-3), ())
      for rate in (limit, 1.0):
        (note,) = self._notes(name, num_classes, rate=rate)
        self.assertStartsWith(note, 'WARNING: ')
        self.assertIn(f'{num_classes} of {num_classes} classes', note)
        self.assertNotIn('\n', note)

  def test_client_symmetric_without_noisy_clients(self):
    self.assertEqual(self._notes('client_symmetric', 10, rho=0.0, rate=1.0), ())
    self.assertIn('at the noisy clients', self._notes('client_symmetric', 10, rate=1.0)[0])
    self.assertEqual(
        self._notes('client_symmetric', 10, rho=0.1, rate=0.5),
        ('no client is noisy: rho 0.1 of 4 clients is none',),
    )

  def test_pairflip_and_asymmetric_from_one_half(self):
    for name, count in (('pairflip', 5), ('asymmetric', 2)):
      self.assertEqual(self._notes(name, 5, rate=0.49), ())
      (note,) = self._notes(name, 5, rate=0.5)
      self.assertStartsWith(note, f'WARNING: {count} of 5 classes')

  def test_random(self):
    self.assertEqual(self._notes('random', 10, rate=0.3), ())
    # A diagonal of .2 among nine others that share .8 unevenly.
    (note,) = self._notes('random', 10, rate=0.8)
    self.assertRegex(note, r'^WARNING: ([5-9]|10) of 10 classes')

  def test_matrix(self):
    matrix = np.array([[0.6, 0.4, 0], [0.5, 0.5, 0], [0.2, 0.5, 0.3]])
    (note,) = self._notes('matrix', 3, matrix=matrix)
    self.assertStartsWith(note, 'WARNING: 2 of 3 classes')

  def test_instance(self):
    # Black images: every other class is alike, and the mean matrix that of symmetric noise.
    self.assertEqual(self._notes('instance', 3, rate=0.5), ())
    (note,) = self._notes('instance', 10, rate=0.0)
    self.assertRegex(note, r'^rates are drawn from N\(0, 0\.1\^2\) .* \d\.\d% on average$')
    (note,) = self._notes('instance', 3, rate=0.8)
    self.assertStartsWith(note, 'WARNING: averaged over the images, 3 of 3 classes')

  @parameterized.parameters('none', 'symmetric', 'random', 'pairflip', 'asymmetric')
  def test_no_warning_without_noise(self, name):
    self.assertEqual(self._notes(name, 10, rate=0.0), ())


class CheckTest(parameterized.TestCase):

  @parameterized.parameters(
      ('noise', {'name': 'salt'}, 'one of none, .*, client_symmetric, got salt'),
      ('noise_rate', {'rate': -0.1}, r'in \[0, 1\], got -0.1'),
      ('noise_rate', {'rate': 1.1}, ''),
      ('noise_rate', {'rate': float('nan')}, ''),
      ('noise_rho', {'rho': -0.1}, ''),
      ('noise_rho', {'rho': 1.1}, ''),
      ('noise_rho', {'rho': float('nan')}, ''),
      ('noise_tau', {'tau': -0.1}, ''),
      ('noise_tau', {'tau': 1.0}, r'in \[0, 1\), got 1.0'),
      ('noise_tau', {'tau': float('nan')}, ''),
      ('noise_semantics', {'semantics': 'code'}, 'paper or reference, got code'),
  )
  def test_ranges(self, flag, values, message):
    spec = noise.NoiseSpec('symmetric')._replace(**values)
    pattern = f'^--{flag} must be [^\n]*{message}[^\n]*$'
    with self.assertRaisesRegex(types.UsageError, pattern):
      noise.check(spec)
    with self.assertRaisesRegex(types.UsageError, pattern):
      noise.corrupt(spec, _dataset(np.arange(5)), np.arange(5), rng=_generator())

  @parameterized.parameters(*((name,) for name in noise.NOISES))
  def test_ends_of_the_ranges(self, name):
    for rate in (0, 1, 0.0, 1.0):
      noise.check(noise.NoiseSpec(name, rate=rate, rho=rate, tau=0))

  def test_matrix_may_come_later(self):
    noise.check(noise.NoiseSpec('matrix'))

  def test_matrix_without_data(self):
    with self.assertRaisesRegex(types.UsageError, 'row 1 .* sums to 0.5'):
      noise.check(noise.NoiseSpec('matrix', matrix=np.array([[1, 0], [0, 0.5]])))
    with self.assertRaisesRegex(types.UsageError, r'shape \(2, 3\)'):
      noise.check(noise.NoiseSpec('matrix', matrix=np.ones((2, 3)) / 3))

  def test_noises_that_need_the_clients(self):
    names = [name for name in noise.NOISES if noise.needs_clients(name)]
    self.assertEqual(names, ['client_uniform', 'client_symmetric'])
    for name in names:
      with self.assertRaisesRegex(ValueError, 'needs client_of'):
        _corrupt(name, np.arange(10), rng=_generator())


if __name__ == '__main__':
  absltest.main()
