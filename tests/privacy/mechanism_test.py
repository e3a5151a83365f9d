"""Tests of K-ary randomised response against the numbers and test vector of its reference."""

import decimal
import fractions
import hashlib
import hmac
import math
import random

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized
from scipy import stats

from tff_noise import rng
from tff_noise import types
from tff_noise.audit import shared_draws
from tff_noise.privacy import mechanism

_W = 2**62
_WORD = 2**64 - 1
_SECRET = np.array([7, -3], np.int64)
_MANY = 20_000
# ln 2.25, ln 3.25 and ln 24.75: the epsilons at which K = 10, 14, 100 keep a label with .2.
_LN_225 = '0.81093021621632876396'
_LN_325 = '1.1786549963416462053'
_LN_2475 = '3.2088254890146993757'


def _exact_epsilon(table):
  """ln(A / B) in 80 digits."""
  context = decimal.Context(prec=80)
  return context.ln(context.divide(decimal.Decimal(table.keep), decimal.Decimal(table.other)))


_TABLE = mechanism.randomized_response('0.81', 10)


def _flip(labels, *, secret=_SECRET, table=_TABLE, ids=None):
  ids = np.arange(len(labels)) if ids is None else ids
  return mechanism.flip(np.asarray(labels), np.asarray(ids), secret, table)


def _respond(table, label, number):
  return mechanism.respond(np.array([label]), np.array([number]), table).item()


def _rule(table, label, number):
  """The report of one label at one number, with Python's integers."""
  if number < table.keep:
    return label
  other = (number - table.keep) // table.other
  return other if other < label else other + 1


def _threefry(key, counter):
  """Threefry-2x64-20 of Salmon et al. 2011, section 4, with Python's integers."""
  schedule = (*key, key[0] ^ key[1] ^ 0x1BD11BDAA9FC1A22)
  x, y = (c + k & _WORD for c, k in zip(counter, key, strict=True))
  for r in range(20):
    x = x + y & _WORD
    bits = (16, 42, 12, 31, 16, 32, 24, 21)[r % 8]
    y = (y << bits & _WORD | y >> 64 - bits) ^ x
    if (r + 1) % 4 == 0:
      s = (r + 1) // 4
      x, y = x + schedule[s % 3] & _WORD, y + schedule[(s + 1) % 3] + s & _WORD
  return x, y


def _draw(example_id, secret, table):
  purpose = f'label report v1 K={table.num_classes} B={table.other}'
  word = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], 'big')
  key = tuple(int(s) & _WORD for s in secret)
  return _threefry(key, (int(example_id) & _WORD, word))[0] >> 2


class TableTest(parameterized.TestCase):

  @parameterized.parameters(
      ('0.81', 10, 921651016806572908, 410003889068979444),
      ('1.18', 14, 923330041677578110, 283719690519216138),
      ('3.21', 100, 923204145197820127, 37257392658884523),
  )
  def test_integers_of_the_reference(self, epsilon, num_classes, keep, other):
    table = mechanism.randomized_response(epsilon, num_classes)
    self.assertEqual((table.keep, table.other), (keep, other))

  @parameterized.parameters(
      (10, '0.01', 0.1009036069, 0.09989959923),
      (10, '0.81', 0.1998512069, 0.08890542145),
      (10, _LN_225, 0.2, 0.0888888889),
      (10, '1', 0.2319693167, 0.08533674259),
      (10, '2', 0.4508530604, 0.06101632662),
      (10, '4', 0.8584864498, 0.0157237278),
      (14, '1.17', 0.1986187955, 0.06164470804),
      (14, '1.18', 0.2002152874, 0.06152190097),
      (14, _LN_325, 0.2, 0.0615384615),
      (14, '4', 0.8076870448, 0.01479330425),
      (100, '0.01', 0.01009948666, 0.009998995084),
      (100, '3.21', 0.200187988, 0.008078909212),
      (100, _LN_2475, 0.2, 0.0080808081),
      (100, '4', 0.3554609871, 0.006510495079),
  )
  def test_probabilities_of_the_reference(self, num_classes, epsilon, keep, other):
    table = mechanism.randomized_response(epsilon, num_classes)
    # Ten digits are printed.
    np.testing.assert_allclose(table.keep_probability, keep, rtol=1e-9)
    np.testing.assert_allclose(table.other_probability, other, rtol=1e-8)

  @parameterized.parameters((10, _LN_225), (14, _LN_325), (100, _LN_2475))
  def test_actual_epsilon_of_the_papers_settings(self, num_classes, epsilon):
    table = mechanism.randomized_response(epsilon, num_classes)
    self.assertAlmostEqual(table.actual_epsilon, math.log((num_classes - 1) / 4), places=12)

  def test_two_classes_are_warners_randomised_response(self):
    table = mechanism.randomized_response('1', 2)
    self.assertAlmostEqual(table.keep_probability, math.e / (math.e + 1))
    self.assertEqual(table.keep + table.other, _W)

  def test_integers_sum_to_the_whole_and_never_exceed_the_claim(self):
    source = random.Random(0)
    for _ in range(200):
      num_classes = source.choice([2, 3, 10, 14, 100, 1000])
      epsilon = f'{10 ** source.uniform(-9, 1.55):.8g}'
      table = mechanism.randomized_response(epsilon, num_classes)
      setting = f'K={num_classes} epsilon={epsilon}: {table}'
      self.assertEqual(table.keep + (num_classes - 1) * table.other, _W, setting)
      self.assertGreater(table.keep, table.other, setting)
      self.assertGreater(table.other, 0, setting)
      # In exact arithmetic, as this is the guarantee.
      self.assertLessEqual(_exact_epsilon(table), decimal.Decimal(epsilon), setting)
      # And not by giving it away: B is the smallest integer that keeps the claim.
      tighter = table._replace(
          keep=table.keep + num_classes - 1, other=table.other - 1
      )
      if tighter.other > 0:
        self.assertGreater(_exact_epsilon(tighter), decimal.Decimal(epsilon), setting)

  def test_reported_epsilon_is_that_of_the_integers(self):
    for epsilon in ('0.001', '0.5', '0.81', '3.21', '20'):
      table = mechanism.randomized_response(epsilon, 10)
      exact = float(_exact_epsilon(table))
      self.assertAlmostEqual(table.actual_epsilon, exact, delta=2 * math.ulp(exact))

  def test_reported_epsilon_is_never_above_the_claim(self):
    draw = np.random.default_rng(0)
    for _ in range(500):
      epsilon = f'{draw.uniform(0.001, 10):.3f}'
      table = mechanism.randomized_response(epsilon, int(draw.integers(2, 101)))
      self.assertLessEqual(decimal.Decimal(table.actual_epsilon), decimal.Decimal(epsilon))

  @parameterized.parameters(' 0.81', '0.81 ', '8.1e-1', '+0.81', '.81', '0.810')
  def test_other_spellings_of_a_number(self, epsilon):
    table = mechanism.randomized_response(epsilon, 10)
    self.assertEqual(table.keep, 921651016806572908)

  def test_epsilon_keeps_digits_that_a_float_has_not(self):
    plain = mechanism.randomized_response('0.81', 10)
    more = mechanism.randomized_response('0.81000000000000003', 10)
    self.assertEqual(float('0.81000000000000003'), 0.81)
    self.assertGreater(more.keep, plain.keep)

  def test_largest_epsilon_of_a_table(self):
    # ln(2^62 - 9) = 42.97512519, where the weight of another label reaches 1. Just below it is
    # between 1 and 2, rounded up.
    self.assertEqual(mechanism.randomized_response('42.97512', 10).other, 2)
    with self.assertRaises(types.UsageError):
      mechanism.randomized_response('42.97513', 10)

  def test_transition_matrix(self):
    table = mechanism.randomized_response(_LN_225, 10)
    matrix = table.transition_matrix()
    np.testing.assert_allclose(np.diag(matrix), 0.2)
    np.testing.assert_allclose(matrix[~np.eye(10, dtype=bool)], 0.8 / 9)
    np.testing.assert_allclose(matrix.sum(axis=1), 1)


class EpsilonErrorTest(parameterized.TestCase):

  @parameterized.parameters(
      '0', '-0', '0.0', '-1', '-1e-9', 'NaN', 'nan', 'sNaN', 'inf', '-inf', 'Infinity',
      '0.81abc', 'abc', '', ' ', '0,81', '1/2', '0x1', '0.8.1',
  )
  def test_not_a_positive_number(self, epsilon):
    with self.assertRaisesRegex(
        types.UsageError, f'^epsilon must be a positive decimal number, got {epsilon!r}$'
    ):
      mechanism.randomized_response(epsilon, 10)

  @parameterized.parameters('43', '50', '1e6', '1e999999', '9' * 100)
  def test_so_large_that_another_label_has_no_weight(self, epsilon):
    with self.assertRaisesRegex(
        types.UsageError, f"epsilon must be at most 42.9.* for 10 classes, got '{epsilon}'"
    ):
      mechanism.randomized_response(epsilon, 10)

  # For 2 and 4 classes, which divide 2^62, the weights would be equal; for 10, A below B.
  @parameterized.product(epsilon=['1e-19', '1e-30', '1e-999999'], num_classes=[2, 4, 10])
  def test_so_small_that_all_labels_are_equally_likely(self, epsilon, num_classes):
    with self.assertRaisesRegex(types.UsageError, f"epsilon '{epsilon}' is too small"):
      mechanism.randomized_response(epsilon, num_classes)

  def test_beyond_the_range_of_decimals(self):
    with self.assertRaisesRegex(types.UsageError, 'epsilon'):
      mechanism.randomized_response('1e9999999999999999999999', 10)

  @parameterized.parameters(1, 0, -3, True, False)
  def test_too_few_classes(self, num_classes):
    with self.assertRaisesRegex(
        types.UsageError, f'needs at least 2 classes, got {num_classes}'
    ):
      mechanism.randomized_response('0.81', num_classes)


class ThreefryTest(parameterized.TestCase):

  @parameterized.parameters(
      ((0, 0), (0, 0), (0xC2B6E3A8C2C69865, 0x6F81ED42F350084D)),
      ((_WORD, _WORD), (_WORD, _WORD), (0xE02CB7C4D95D277A, 0xD06633D0893B8B68)),
      (
          (0x243F6A8885A308D3, 0x13198A2E03707344),
          (0xA4093822299F31D0, 0x082EFA98EC4E6C89),
          (0x263C7D30BB0F0AF1, 0x56BE8361D3311526),
      ),
  )
  def test_known_answers_of_random123(self, counter, key, expected):
    words = mechanism.threefry(
        np.array(key, np.uint64), tuple(np.array([c], np.uint64) for c in counter)
    )
    self.assertEqual(tuple(w.item() for w in words), expected)
    self.assertEqual(_threefry(key, counter), expected)

  def test_leaves_its_arguments_as_they_are(self):
    key, counter = np.array([1, 2], np.uint64), np.arange(5).astype(np.uint64)
    mechanism.threefry(key, (counter, counter))
    self.assertEqual((key.tolist(), counter.tolist()), ([1, 2], [0, 1, 2, 3, 4]))


class RespondTest(parameterized.TestCase):

  def test_vector_of_the_reference(self):
    # Which draws by HMAC-SHA256; the rule for a number is the same.
    reports = []
    for i in range(12):
      digest = hmac.digest(bytes(range(32)), b'client-7|ex-%d|label|v1' % i, hashlib.sha256)
      number = int.from_bytes(digest, 'big') >> (256 - 62)
      reports.append(_respond(_TABLE, 3, number))
    self.assertEqual(reports, [8, 5, 5, 1, 6, 4, 3, 3, 4, 7, 3, 3])

  def test_edges_of_the_intervals(self):
    for label in range(10):
      self.assertEqual(_respond(_TABLE, label, 0), label)
      self.assertEqual(_respond(_TABLE, label, _TABLE.keep - 1), label)
    self.assertEqual(_respond(_TABLE, 0, _TABLE.keep), 1)
    self.assertEqual(_respond(_TABLE, 0, _W - 1), 9)
    self.assertEqual(_respond(_TABLE, 9, _W - 1), 8)
    self.assertEqual(_respond(_TABLE, 9, _TABLE.keep), 0)

  @parameterized.parameters(2, 3, 10)
  def test_every_other_label_has_one_interval_of_the_same_length(self, num_classes):
    table = mechanism.randomized_response('1.5', num_classes)
    for label in range(num_classes):
      others = [k for k in range(num_classes) if k != label]
      for j, other in enumerate(others):
        start = table.keep + j * table.other
        self.assertEqual(_respond(table, label, start), other)
        self.assertEqual(_respond(table, label, start + table.other - 1), other)

  @parameterized.parameters(('0.81', 10), ('1', 2), ('3.21', 100), ('42.9', 10), ('1e-9', 3))
  def test_equals_the_rule_in_exact_integers_around_every_step(self, epsilon, num_classes):
    table = mechanism.randomized_response(epsilon, num_classes)
    steps = [table.keep + k * table.other for k in range(num_classes)]
    numbers = sorted({0, 1, *(s + d for s in steps for d in (-1, 0, 1) if s + d < _W)})
    self.assertEqual(numbers[-1], _W - 1)
    for label in {0, 1, num_classes // 2, num_classes - 1}:
      self.assertEqual(
          mechanism.respond(np.full(len(numbers), label), np.array(numbers), table).tolist(),
          [_rule(table, label, r) for r in numbers],
      )

  def test_exact_distribution_of_a_small_table(self):
    # All numbers of a table of 20 instead of 2^62.
    table = mechanism.RandomizedResponse(4, 'ln 4', 8, 4)
    for label in range(4):
      reports = mechanism.respond(np.full(20, label), np.arange(20), table)
      counts = np.bincount(reports, minlength=4)
      self.assertEqual(counts.tolist(), [8 if k == label else 4 for k in range(4)])

  def test_likelihood_ratio_is_bounded_by_the_claim_for_every_pair_and_report(self):
    weights = {True: _TABLE.keep, False: _TABLE.other}
    worst = max(
        fractions.Fraction(weights[report == y], weights[report == other])
        for report in range(10) for y in range(10) for other in range(10)
    )
    bound = decimal.Context(prec=60).exp(decimal.Decimal('0.81'))
    self.assertLessEqual(worst, fractions.Fraction(bound))


class SecretTest(absltest.TestCase):

  def test_is_a_function_of_seed_and_client(self):
    secret = mechanism.simulation_secret(3, 4)
    self.assertEqual((secret.shape, secret.dtype), ((2,), np.int64))
    self.assertEqual(secret.tobytes(), rng.key(3, 'label report secret', 4)[:16])
    others = [mechanism.simulation_secret(*a) for a in ((3, 5), (4, 4), (4, 3))]
    self.assertLen({s.tobytes() for s in (secret, *others)}, 4)
    self.assertLen({int(h) for s in (secret, *others) for h in s}, 8)


class DrawTest(parameterized.TestCase):

  @parameterized.parameters(('0.81', 10), ('3.21', 100))
  def test_is_threefry_of_id_secret_and_table(self, epsilon, num_classes):
    table = mechanism.randomized_response(epsilon, num_classes)
    edges = [0, 1, -1, 2**32, 2**63 - 1, -(2**63), 123456789012345678]
    ids = np.array(edges + list(range(5, 200)), np.int64)
    for secret in (_SECRET, mechanism.simulation_secret(1, 2), np.array([0, -(2**63)])):
      numbers = mechanism.draw(ids, secret, table)
      self.assertEqual(numbers.dtype, np.int64)
      self.assertEqual(numbers.tolist(), [_draw(i, secret, table) for i in ids])

  def test_pinned(self):
    # Another value here is another report for every label of every published run.
    self.assertEqual(mechanism.draw(np.array([0]), _SECRET, _TABLE).item(), 2250614924751069257)
    self.assertEqual(_flip(np.arange(10)).tolist(), [4, 9, 3, 9, 4, 5, 7, 1, 5, 2])

  def test_numbers_are_uniform_over_62_bits(self):
    numbers = mechanism.draw(np.arange(_MANY), _SECRET, _TABLE) / _W
    self.assertBetween(numbers.min(), 0, 0.001)
    self.assertBetween(numbers.max(), 0.999, 1 - 1e-12)
    self.assertGreater(stats.kstest(numbers, 'uniform').pvalue, 1e-4)

  def assert_independent(self, first, second):
    """Numbers of `_MANY` examples: none equal, half of the bits, reports agree as by chance."""
    self.assertFalse(np.any(first == second))
    bits = np.unpackbits((first ^ second).view(np.uint8)).sum() / (62 * _MANY)
    self.assertAlmostEqual(bits, 0.5, delta=5 * 0.5 / np.sqrt(62 * _MANY))
    labels = np.arange(_MANY) % 10
    a, b = (mechanism.respond(labels, r, _TABLE) for r in (first, second))
    expected = shared_draws.agreement(_TABLE)
    spread = np.sqrt(expected * (1 - expected) / _MANY)
    self.assertAlmostEqual((a == b).mean(), expected, delta=5 * spread)

  @parameterized.parameters(
      ((1, 0),), ((0, 1),), ((2**32, 0),), ((0, 2**32),), ((-(2**63), 0),), ((0, -(2**63)),)
  )
  def test_every_part_of_the_secret_counts(self, change):
    ids = np.arange(_MANY)
    self.assert_independent(
        mechanism.draw(ids, _SECRET, _TABLE),
        mechanism.draw(ids, _SECRET ^ np.array(change, np.int64), _TABLE),
    )

  def test_halves_of_the_secret_are_not_exchangeable(self):
    ids = np.arange(_MANY)
    self.assert_independent(
        mechanism.draw(ids, _SECRET, _TABLE), mechanism.draw(ids, _SECRET[::-1], _TABLE)
    )

  @parameterized.parameters(1, 2**16, 2**31, 2**32, 2**48, 2**62, -(2**63))
  def test_every_part_of_the_id_counts(self, change):
    # Ids that differ in this bit alone; 2i for a change of 1, so that the two sets are disjoint.
    ids = np.arange(_MANY) * 2
    self.assert_independent(
        mechanism.draw(ids, _SECRET, _TABLE),
        mechanism.draw(ids ^ np.int64(change), _SECRET, _TABLE),
    )

  def test_numbers_depend_on_the_table_and_not_on_how_epsilon_is_written(self):
    ids = np.arange(_MANY)
    first, other, same = (
        mechanism.draw(ids, _SECRET, mechanism.randomized_response(e, 10))
        for e in ('0.81', '0.82', '0.810')
    )
    self.assert_independent(first, other)
    np.testing.assert_array_equal(first, same)


class FlipTest(parameterized.TestCase):

  def test_asked_again_the_report_is_the_same(self):
    labels = np.arange(100) % 10
    np.testing.assert_array_equal(_flip(labels), _flip(labels))

  def test_a_report_depends_on_neither_order_nor_batch(self):
    ids = np.random.default_rng(0).choice(2**62, 500, replace=False)
    labels = ids % 10
    once = _flip(labels, ids=ids)
    order = np.random.default_rng(1).permutation(500)
    np.testing.assert_array_equal(_flip(labels[order], ids=ids[order]), once[order])
    batches = [_flip(labels[i : i + 7], ids=ids[i : i + 7]) for i in range(0, 500, 7)]
    np.testing.assert_array_equal(np.concatenate(batches), once)

  def test_relabelled_example_uses_the_same_random_number(self):
    # The memo is keyed by the example: an example whose number says "keep" keeps any label.
    zeros, ones = _flip(np.zeros(500, int)), _flip(np.ones(500, int))
    np.testing.assert_array_equal(zeros == 0, ones == 1)
    # And one that says "class 5" says so for both.
    np.testing.assert_array_equal(zeros[zeros > 1], ones[(zeros > 1)])

  def test_client_seed_ids_epsilon_and_classes_change_the_reports(self):
    labels = np.zeros(300, int)
    base = _flip(labels, secret=mechanism.simulation_secret(0, 0))
    others = {
        'client': _flip(labels, secret=mechanism.simulation_secret(0, 1)),
        'seed': _flip(labels, secret=mechanism.simulation_secret(1, 0)),
        'ids': _flip(
            labels, secret=mechanism.simulation_secret(0, 0), ids=np.arange(300) + 300
        ),
        # So near that with the same draws hardly any report would differ.
        'epsilon': _flip(
            labels, secret=mechanism.simulation_secret(0, 0),
            table=mechanism.randomized_response('0.8100001', 10),
        ),
        'classes': _flip(
            labels, secret=mechanism.simulation_secret(0, 0),
            table=mechanism.randomized_response('0.81', 11),
        ),
    }
    for name, reports in others.items():
      # Independent reports agree with probability 1/9: 33 of 300, standard error 5.4.
      self.assertLess((base == reports).sum(), 66, name)

  def test_two_clients_with_equal_labels_agree_as_independent_ones_do(self):
    # A shared seed would pass every test of the marginal distribution and agree everywhere.
    table = mechanism.randomized_response(_LN_225, 10)
    labels = np.arange(_MANY) % 10
    first, second = (
        _flip(labels, secret=mechanism.simulation_secret(0, c), table=table) for c in (0, 1)
    )
    agreement = (first == second).mean()
    a, b = table.keep_probability, table.other_probability
    self.assertAlmostEqual(a**2 + 9 * b**2, 1 / 9)
    # Standard error sqrt(1/9 * 8/9 / 20000) = .0022.
    self.assertAlmostEqual(agreement, 1 / 9, delta=4 * 0.0022)

  def test_reports_of_neighbouring_examples_are_independent(self):
    reports = _flip(np.zeros(_MANY, int))
    table = np.histogram2d(reports[:-1], reports[1:], bins=np.arange(11) - 0.5)[0]
    self.assertGreater(stats.chi2_contingency(table)[1], 1e-4)

  @parameterized.parameters(('0.81', 10), ('1', 2), ('3', 3))
  def test_reports_follow_the_transition_matrix(self, epsilon, num_classes):
    table = mechanism.randomized_response(epsilon, num_classes)
    n = 60_000 // num_classes
    labels = np.repeat(np.arange(num_classes), n)
    reports = _flip(labels, table=table)
    edges = np.arange(num_classes + 1) - 0.5
    counts = np.histogram2d(labels, reports, bins=edges)[0]
    for row, expected in zip(counts, table.transition_matrix(), strict=True):
      self.assertGreater(stats.chisquare(row, n * expected).pvalue, 1e-5)

  def test_every_class_is_reported_also_where_the_client_has_only_one(self):
    # Flips within the classes a client holds would tell which ones it holds.
    self.assertEqual(set(_flip(np.full(500, 4)).tolist()), set(range(10)))

  def test_empty_client(self):
    reports = _flip(np.zeros(0, int))
    self.assertEqual((reports.dtype, reports.shape), (np.int32, (0,)))

  @parameterized.parameters(np.int8, np.uint8, np.int32, np.uint64)
  def test_types_of_labels_and_ids_are_irrelevant(self, dtype):
    labels = np.arange(100) % 10
    reports = _flip(labels.astype(dtype), ids=np.arange(100).astype(dtype))
    np.testing.assert_array_equal(reports, _flip(labels))
    self.assertEqual(reports.dtype, np.int32)

  @parameterized.parameters(([0, 10],), ([-1, 3],), ([10**9, 0],))
  def test_label_out_of_range_is_refused(self, labels):
    with self.assertRaisesRegex(
        ValueError, f'labels must be in 0 to 9, found {min(labels)} to {max(labels)}'
    ):
      _flip(labels)

  @parameterized.parameters(([4, 4],), ([4],), ([4, 5, 6],), ([4, 4, 5],))
  def test_duplicated_or_missing_ids_are_refused(self, ids):
    with self.assertRaisesRegex(ValueError, 'needs one distinct id for each label'):
      _flip([0, 1], ids=ids)

  def test_labels_and_ids_must_be_whole(self):
    with self.assertRaisesRegex(ValueError, 'must be integers'):
      _flip([0.5, 1.7])
    with self.assertRaisesRegex(ValueError, 'must be integers'):
      _flip([0, 1], ids=[1.2, 1.7])

  @parameterized.parameters(
      (np.zeros(2, np.int64), 'the secret must not be zero'),
      (np.ones(4, np.int64), r'expected a secret of int64\[2\], got int64\[4\]'),
      (np.ones(2, np.int32), r'expected a secret of int64\[2\], got int32'),
  )
  def test_secret_must_be_one(self, secret, message):
    with self.assertRaisesRegex(ValueError, message):
      _flip([0, 1], secret=secret)

  def test_all_clients_at_once_are_each_alone(self):
    draw = np.random.default_rng(0)
    clients = [
        (draw.integers(0, 10, n), draw.permutation(50)[:n], mechanism.simulation_secret(1, i))
        for i, n in enumerate((3, 0, 40, 1))
    ]
    self.assertEqual(mechanism.flip_all([], _TABLE), [])
    found = mechanism.flip_all(clients, _TABLE)
    for reports, (labels, ids, secret) in zip(found, clients, strict=True):
      self.assertEqual(reports.dtype, np.int32)
      np.testing.assert_array_equal(reports, mechanism.flip(labels, ids, secret, _TABLE))

  @parameterized.parameters(
      ([[4, 4], [4]], 'needs one distinct id'), ([[4], [5, 6]], 'needs one distinct id'),
  )
  def test_ids_of_one_of_many_are_checked(self, ids, message):
    labels = [[0, 1], [2]]
    with self.assertRaisesRegex(ValueError, message):
      mechanism.flip_all([(y, i, _SECRET) for y, i in zip(labels, ids, strict=True)], _TABLE)

  def test_spellings_of_one_epsilon_give_one_report(self):
    reports = [
        _flip(np.arange(10), table=mechanism.randomized_response(epsilon, 10)).tolist()
        for epsilon in ('0.81', '0.810', '8.1e-1')
    ]
    self.assertEqual(reports[0], reports[1])
    self.assertEqual(reports[0], reports[2])


class HistogramTest(absltest.TestCase):

  def test_counts_every_class(self):
    counts = mechanism.histogram(np.array([2, 0, 2]), 4)
    self.assertEqual(counts.tolist(), [1, 0, 2, 0])
    self.assertEqual(counts.dtype, np.int64)

  def test_no_labels(self):
    self.assertEqual(mechanism.histogram(np.zeros(0, np.int32), 3).tolist(), [0, 0, 0])


if __name__ == '__main__':
  absltest.main()
