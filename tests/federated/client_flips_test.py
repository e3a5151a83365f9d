"""Tests of label reports made inside the client's TFF computation."""

import collections
import hashlib

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tff_noise import rng
from tff_noise.federated import client_flips
from tff_noise.federated import label_communication
from tff_noise.federated import uplink
from tff_noise.privacy import empirical_audit
from tff_noise.privacy import mechanism as mechanism_lib
from tff_noise.privacy import protection as protection_lib

_MECHANISM = mechanism_lib.randomized_response('0.81', 10)
_SECRET = np.array([7, -3], np.int64)
_WORD = 2**64 - 1
_MANY = 20_000


def _compile(mechanism=_MECHANISM):
  @tf.function(
      input_signature=(
          tf.TensorSpec([None], tf.int32),
          tf.TensorSpec([None], tf.int64),
          tf.TensorSpec([2], tf.int64),
      )
  )
  def flip(labels, example_ids, secret):
    return client_flips.flip(labels, example_ids, secret, mechanism)

  return lambda labels, ids, secret: flip(
      np.asarray(labels, np.int32), np.asarray(ids, np.int64), secret
  ).numpy()


_flip = _compile()


def _report(labels, ids, client):
  return _flip(labels, ids, client_flips.simulation_secret(0, client))


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


def _draw(example_id, secret, mechanism):
  purpose = f'label report v1 K={mechanism.num_classes} B={mechanism.other}'
  table = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], 'big')
  key = tuple(int(s) & _WORD for s in secret)
  return _threefry(key, (int(example_id) & _WORD, table))[0] >> 2


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
    words = client_flips.threefry(
        tf.constant(key, tf.uint64), tuple(tf.constant([c], tf.uint64) for c in counter)
    )
    self.assertEqual(tuple(int(w.numpy()[0]) for w in words), expected)
    self.assertEqual(_threefry(key, counter), expected)


class RespondTest(parameterized.TestCase):

  def _respond(self, labels, numbers, mechanism=_MECHANISM):
    respond = tf.function(lambda y, r: client_flips.respond(y, r, mechanism), autograph=False)
    return respond(tf.constant(labels, tf.int32), tf.constant(numbers, tf.int64)).numpy().tolist()

  def test_edges_by_hand(self):
    keep, last = _MECHANISM.keep, 2**62 - 1
    self.assertEqual(keep, 921651016806572908)
    self.assertEqual(
        self._respond([3, 3, 0, 0, 9, 9], [0, keep - 1, keep, last, last, keep]),
        [3, 3, 1, 9, 8, 0],
    )

  @parameterized.parameters(('0.81', 10), ('1', 2), ('3.21', 100), ('42.9', 10), ('1e-9', 3))
  def test_equals_the_rule_of_the_driver_around_every_step(self, epsilon, num_classes):
    mechanism = mechanism_lib.randomized_response(epsilon, num_classes)
    steps = [mechanism.keep + k * mechanism.other for k in range(num_classes)]
    numbers = sorted({0, 1, *(s + d for s in steps for d in (-1, 0, 1) if s + d < 2**62)})
    self.assertEqual(numbers[-1], 2**62 - 1)
    for label in {0, 1, num_classes // 2, num_classes - 1}:
      self.assertEqual(
          self._respond([label] * len(numbers), numbers, mechanism),
          [mechanism_lib.respond(mechanism, label, r) for r in numbers],
      )


class FlipTest(parameterized.TestCase):

  @parameterized.parameters(('0.81', 10), ('3.21', 100))
  def test_equals_the_rule_at_threefry_of_id_secret_and_table(self, epsilon, num_classes):
    mechanism = mechanism_lib.randomized_response(epsilon, num_classes)
    edges = [0, 1, -1, 2**32, 2**63 - 1, -(2**63), 123456789012345678]
    ids = np.array(edges + list(range(5, 200)), np.int64)
    labels = np.arange(len(ids)) % num_classes
    for secret in (_SECRET, client_flips.simulation_secret(1, 2), np.array([0, -(2**63)])):
      np.testing.assert_array_equal(
          _compile(mechanism)(labels, ids, secret),
          [
              mechanism_lib.respond(mechanism, int(y), _draw(i, secret, mechanism))
              for y, i in zip(labels, ids, strict=True)
          ],
      )

  def test_no_examples(self):
    reports = _flip([], [], _SECRET)
    self.assertEqual((reports.shape, reports.dtype), ((0,), np.int32))

  def test_a_report_depends_on_neither_order_nor_batch(self):
    ids = np.random.default_rng(0).choice(2**62, 500, replace=False)
    labels = ids % 10
    once = _flip(labels, ids, _SECRET)
    np.testing.assert_array_equal(_flip(labels, ids, _SECRET), once)
    order = np.random.default_rng(1).permutation(500)
    np.testing.assert_array_equal(_flip(labels[order], ids[order], _SECRET), once[order])
    batches = [_flip(labels[i : i + 7], ids[i : i + 7], _SECRET) for i in range(0, 500, 7)]
    np.testing.assert_array_equal(np.concatenate(batches), once)

  def assert_independent(self, first, second):
    """Numbers of `_MANY` examples: none equal, half of the bits, reports agree as by chance."""
    self.assertFalse(np.any(first == second))
    bits = np.unpackbits((first ^ second).view(np.uint8)).sum() / (62 * _MANY)
    self.assertAlmostEqual(bits, 0.5, delta=5 * 0.5 / np.sqrt(62 * _MANY))
    labels = np.arange(_MANY, dtype=np.int32) % 10
    a, b = (client_flips.respond(labels, r, _MECHANISM).numpy() for r in (first, second))
    expected = empirical_audit.agreement(_MECHANISM)
    spread = np.sqrt(expected * (1 - expected) / _MANY)
    self.assertAlmostEqual((a == b).mean(), expected, delta=5 * spread)

  @parameterized.parameters(
      ((1, 0),), ((0, 1),), ((2**32, 0),), ((0, 2**32),), ((-(2**63), 0),), ((0, -(2**63)),)
  )
  def test_every_part_of_the_secret_counts(self, change):
    ids = np.arange(_MANY)
    self.assert_independent(
        client_flips.draw(ids, _SECRET, _MECHANISM).numpy(),
        client_flips.draw(ids, _SECRET ^ np.array(change, np.int64), _MECHANISM).numpy(),
    )

  def test_halves_of_the_secret_are_not_exchangeable(self):
    ids = np.arange(_MANY)
    self.assert_independent(
        client_flips.draw(ids, _SECRET, _MECHANISM).numpy(),
        client_flips.draw(ids, _SECRET[::-1], _MECHANISM).numpy(),
    )

  @parameterized.parameters(1, 2**16, 2**31, 2**32, 2**48, 2**62, -(2**63))
  def test_every_part_of_the_id_counts(self, change):
    # Ids that differ in this bit alone; 2i for a change of 1, so that the two sets are disjoint.
    ids = np.arange(_MANY) * 2
    self.assert_independent(
        client_flips.draw(ids, _SECRET, _MECHANISM).numpy(),
        client_flips.draw(ids ^ np.int64(change), _SECRET, _MECHANISM).numpy(),
    )

  def test_numbers_depend_on_the_table_and_not_on_how_epsilon_is_written(self):
    ids = np.arange(_MANY)
    first, other, same = (
        client_flips.draw(ids, _SECRET, mechanism_lib.randomized_response(e, 10)).numpy()
        for e in ('0.81', '0.82', '0.810')
    )
    self.assert_independent(first, other)
    np.testing.assert_array_equal(first, same)

  @parameterized.named_parameters(
      ('negative label', [0, -1], [1, 2], _SECRET, 'labels must be in 0 to 9'),
      ('label of no class', [0, 10], [1, 2], _SECRET, 'labels must be in 0 to 9'),
      ('id twice', [0, 4], [71, 71], _SECRET, 'distinct'),
      ('ids missing', [0, 4], [1], _SECRET, 'one id for each label'),
      ('no secret', [0, 4], [1, 2], np.zeros(2, np.int64), 'secret must not be zero'),
  )
  def test_refuses(self, labels, ids, secret, message):
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
      _flip(labels, ids, secret)

  def test_errors_do_not_carry_data(self):
    with self.assertRaises(tf.errors.InvalidArgumentError) as raised:
      _flip([7777, 3], [88881, 88882], np.array([99991, 99992]))
    for data in ('7777', '8888', '9999'):
      self.assertNotIn(data, str(raised.exception))


class SecretTest(absltest.TestCase):

  def test_is_a_function_of_seed_and_client(self):
    secret = client_flips.simulation_secret(3, 4)
    self.assertEqual((secret.shape, secret.dtype), ((2,), np.int64))
    self.assertEqual(secret.tobytes(), rng.key(3, 'label report secret', 4)[:16])
    others = [client_flips.simulation_secret(*a) for a in ((3, 5), (4, 4), (4, 3))]
    self.assertLen({s.tobytes() for s in (secret, *others)}, 4)
    self.assertLen({int(h) for s in (secret, *others) for h in s}, 8)


class AuditTest(absltest.TestCase):

  def test_passes_the_audit_of_the_driver(self):
    findings = empirical_audit.audit(_report, _MECHANISM)
    for finding in findings:
      self.assertIs(finding.verdict, empirical_audit.Verdict.PASSED, finding)

  def test_audit_sees_one_secret_for_all_clients(self):
    finding = empirical_audit.independence(
        lambda labels, ids, _: _flip(labels, ids, _SECRET), _MECHANISM, 2000, 1e-6
    )
    self.assertIs(finding.verdict, empirical_audit.Verdict.FAILED, finding)

  def test_audit_sees_the_table_of_another_epsilon(self):
    flip = _compile(mechanism_lib.randomized_response('1.25', 10))
    finding = empirical_audit.transition(
        lambda labels, ids, client: flip(labels, ids, client_flips.simulation_secret(0, client)),
        _MECHANISM.transition_matrix(),
        5000,
        1e-6,
    )
    self.assertIs(finding.verdict, empirical_audit.Verdict.FAILED, finding)


def _build(num_classes=10, **changes):
  arguments = {
      'max_count': 70_000,
      'max_clients': 5,
      'mechanism': _MECHANISM,
      'protection': protection_lib.LabelReports(10, '0.81', num_labels=100),
      **changes,
  }
  return client_flips.build_client_label_communication(num_classes, **arguments)


def _client(labels, ids, secret):
  return collections.OrderedDict(
      y=np.asarray(labels, np.int32), example_id=np.asarray(ids, np.int64), secret=secret
  )


class ClientLabelCommunicationTest(federated_test_case.FederatedTestCase):

  def test_type(self):
    self.assertEqual(
        str(_build()[0].type_signature),
        '({<y=int32[?],example_id=int64[?],secret=int64[2]>}@CLIENTS -> int64[10]@SERVER)',
    )

  def test_only_the_secure_sum_of_histograms(self):
    computation, fields = _build()
    tff.test.assert_not_contains_unsecure_aggregation(computation)
    _, of_driver = label_communication.build_label_communication(
        10,
        max_count=70_000,
        max_clients=5,
        protection=protection_lib.LabelReports(10, '0.81', num_labels=100),
    )
    self.assertEqual(fields, of_driver)
    self.assertIs(fields[0].disclosure, uplink.Disclosure.DP_SECURE_SUM)

  def test_sum_is_that_of_flipped_histograms(self):
    clients, expected = [], np.zeros(10, np.int64)
    for client, size in enumerate((300, 0, 1, 57)):
      ids = np.random.default_rng(client).choice(10**15, size, replace=False)
      clients.append(_client(ids % 7, ids, client_flips.simulation_secret(0, client)))
      expected += mechanism_lib.histogram(_report(ids % 7, ids, client), 10)
    total = _build()[0](clients)
    self.assertEqual(np.asarray(total).dtype, np.int64)
    np.testing.assert_array_equal(total, expected)

  def test_every_row_of_the_matrix_through_the_runtime(self):
    computation, _ = _build()
    counts = np.array([
        computation([_client(np.full(_MANY, y), np.arange(_MANY), np.array([y, 1]))])
        for y in range(10)
    ])
    finding = empirical_audit.goodness_of_fit(counts, _MECHANISM.transition_matrix(), 1e-6)
    self.assertIs(finding.verdict, empirical_audit.Verdict.PASSED, finding)

  @parameterized.named_parameters(
      ('label', [0, 10], [1, 2], 'labels must be in 0 to 9'),
      ('ids', [0, 1], [2, 2], 'ids must be distinct'),
  )
  def test_a_client_with_bad_data_fails_the_sum(self, labels, ids, message):
    good = _client([1], [1], _SECRET)
    with self.assertRaisesRegex(Exception, message):
      _build()[0]([good, _client(labels, ids, _SECRET)])

  def test_a_count_above_the_bound_fails(self):
    clients = [_client(np.zeros(60), np.arange(60), _SECRET)]
    with self.assertRaisesRegex(Exception, 'larger than maximum'):
      _build(max_count=3)[0](clients)

  def test_another_way_to_write_epsilon_is_the_same_declaration(self):
    _build(protection=protection_lib.LabelReports(10, '0.810'))

  @parameterized.named_parameters(
      ('classes', {'num_classes': 9}, 'mechanism for 9 classes'),
      ('epsilon', {'protection': protection_lib.LabelReports(10, '0.8')}, 'but declared is'),
      ('nothing declared', {'protection': None}, 'but declared is'),
      ('one client', {'max_clients': 1}, 'at least 2 clients'),
      ('no count', {'max_count': 0}, 'max_count'),
      ('overflow', {'max_count': 2**61}, 'max_count'),
  )
  def test_refuses(self, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      _build(**changes)


if __name__ == '__main__':
  absltest.main()
