"""Tests of label communication: the flip as TensorFlow operations, and the secure sum of counts."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tff_noise import types
from tff_noise.audit import black_box
from tff_noise.audit import declared_table
from tff_noise.audit import empirical_audit
from tff_noise.federated import label_histogram
from tff_noise.privacy import mechanism as mechanism_lib
from tff_noise.privacy import protection as protection_lib
from tff_noise.uplink import uplink

_MECHANISM = mechanism_lib.randomized_response('0.81', 10)
_REPORTS = protection_lib.LabelReports(10, '0.81', num_labels=100)
_SECRET = np.array([7, -3], np.int64)
_WORD = 2**64 - 1
_MANY = 20_000
_TABLES = (('0.81', 10), ('1', 2), ('3.21', 100), ('42.9', 10), ('1e-9', 3))


def _compile(mechanism=_MECHANISM):
  @tf.function(
      input_signature=(
          tf.TensorSpec([None], tf.int32),
          tf.TensorSpec([None], tf.int64),
          tf.TensorSpec([2], tf.int64),
      )
  )
  def flip(labels, example_ids, secret):
    return label_histogram.flip(labels, example_ids, secret, mechanism)

  return lambda labels, ids, secret: flip(
      np.asarray(labels, np.int32), np.asarray(ids, np.int64), secret
  ).numpy()


_flip = _compile()


def _report(labels, ids, client):
  return _flip(labels, ids, mechanism_lib.simulation_secret(0, client))


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
    words = label_histogram.threefry(
        tf.constant(key, tf.uint64), tuple(tf.constant([c], tf.uint64) for c in counter)
    )
    self.assertEqual(tuple(int(w.numpy()[0]) for w in words), expected)


class EqualToNumPyTest(parameterized.TestCase):
  """One function in two forms: not near, but the same bits."""

  @parameterized.parameters(range(5))
  def test_both_words_of_random_blocks(self, seed):
    words = np.random.default_rng(seed).integers(0, 2**64, (3, 500), np.uint64)
    key = words[0, :2]
    in_tensorflow = label_histogram.threefry(
        tf.constant(key), (tf.constant(words[1]), tf.constant(words[2]))
    )
    for a, b in zip(in_tensorflow, mechanism_lib.threefry(key, (words[1], words[2])), strict=True):
      np.testing.assert_array_equal(a.numpy(), b)

  @parameterized.parameters(*_TABLES)
  def test_reports_at_both_sides_of_every_boundary(self, epsilon, num_classes):
    mechanism = mechanism_lib.randomized_response(epsilon, num_classes)
    steps = [mechanism.keep + k * mechanism.other for k in range(num_classes)]
    numbers = sorted({0, 1, *(s + d for s in steps for d in (-1, 0, 1) if s + d < 2**62)})
    self.assertEqual(numbers[-1], 2**62 - 1)
    # In a graph, as in clients; TensorFlow might fold or divide otherwise there.
    respond = tf.function(
        lambda y, r: label_histogram.respond(y, r, mechanism), autograph=False
    )
    for label in {0, 1, num_classes // 2, num_classes - 1}:
      labels = np.full(len(numbers), label, np.int32)
      np.testing.assert_array_equal(
          respond(tf.constant(labels), tf.constant(numbers, tf.int64)).numpy(),
          mechanism_lib.respond(labels, np.array(numbers), mechanism),
      )

  @parameterized.parameters(*_TABLES)
  def test_numbers_and_reports_of_random_ids_and_secrets(self, epsilon, num_classes):
    mechanism = mechanism_lib.randomized_response(epsilon, num_classes)
    flip, source = _compile(mechanism), np.random.default_rng(num_classes)
    edges = np.array([0, 1, -1, 2**32, 2**63 - 1, -(2**63)])
    for secret in (_SECRET, np.array([0, -(2**63)]), *source.integers(-(2**63), 2**63, (3, 2))):
      ids = np.concatenate([edges, source.integers(-(2**62), 2**62, 2000)])
      labels = source.integers(0, num_classes, len(ids), np.int32)
      np.testing.assert_array_equal(
          label_histogram.draw(ids, secret, mechanism).numpy(),
          mechanism_lib.draw(ids, secret, mechanism),
      )
      reports = flip(labels, ids, secret)
      np.testing.assert_array_equal(reports, mechanism_lib.flip(labels, ids, secret, mechanism))
      self.assertEqual(reports.dtype, np.int32)

  def test_random_tables(self):
    source = np.random.default_rng(0)
    for _ in range(20):
      num_classes = int(source.integers(2, 200))
      epsilon = f'{10 ** source.uniform(-9, 1.55):.8g}'
      mechanism = mechanism_lib.randomized_response(epsilon, num_classes)
      ids = source.choice(2**62, 300, replace=False)
      labels = source.integers(0, num_classes, 300, np.int32)
      secret = source.integers(-(2**63), 2**63, 2)
      np.testing.assert_array_equal(
          label_histogram.flip(labels, ids, secret, mechanism).numpy(),
          mechanism_lib.flip(labels, ids, secret, mechanism),
          f'K={num_classes} epsilon={epsilon}',
      )


class FlipTest(parameterized.TestCase):

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
    # What one form refuses, the other does.
    with self.assertRaises(ValueError):
      mechanism_lib.flip(np.array(labels), np.array(ids), secret, _MECHANISM)

  def test_errors_do_not_carry_data(self):
    with self.assertRaises(tf.errors.InvalidArgumentError) as raised:
      _flip([7777, 3], [88881, 88882], np.array([99991, 99992]))
    for data in ('7777', '8888', '9999'):
      self.assertNotIn(data, str(raised.exception))


class AuditTest(absltest.TestCase):

  def test_passes_every_test(self):
    for finding in empirical_audit.audit(_report, _MECHANISM, trials=1000, seed=0):
      self.assertIs(finding.verdict, black_box.Verdict.PASSED, finding)

  def test_audit_sees_one_secret_for_all_clients(self):
    finding = empirical_audit.independence(
        lambda labels, ids, _: _flip(labels, ids, _SECRET), _MECHANISM, 2000, 1e-6
    )
    self.assertIs(finding.verdict, black_box.Verdict.FAILED, finding)

  def test_audit_sees_the_table_of_another_epsilon(self):
    flip = _compile(mechanism_lib.randomized_response('1.25', 10))
    finding = declared_table.transition(
        lambda labels, ids, client: flip(
            labels, ids, mechanism_lib.simulation_secret(0, client)
        ),
        _MECHANISM.transition_matrix(),
        5000,
        1e-6,
    )
    self.assertIs(finding.verdict, black_box.Verdict.FAILED, finding)


def _build(num_classes=10, **changes):
  arguments = {
      'max_count': 70_000,
      'max_clients': 5,
      'mechanism': _MECHANISM,
      'protection': _REPORTS,
      **changes,
  }
  return label_histogram.build_label_histogram(num_classes, **arguments)


def _client(labels, ids, secret):
  return collections.OrderedDict(
      y=np.asarray(labels, np.int32), example_id=np.asarray(ids, np.int64), secret=secret
  )


class LabelHistogramTest(federated_test_case.FederatedTestCase):

  SHOWS_CLIENT_ERRORS = True

  @parameterized.parameters((_MECHANISM,), (None,))
  def test_type(self, mechanism):
    self.assertEqual(
        str(_build(mechanism=mechanism)[0].type_signature),
        '({<y=int32[?],example_id=int64[?],secret=int64[2]>}@CLIENTS -> int64[10]@SERVER)',
    )

  @parameterized.parameters((_MECHANISM,), (None,))
  def test_only_the_secure_sum_of_histograms(self, mechanism):
    computation, fields = _build(mechanism=mechanism)
    tff.test.assert_not_contains_unsecure_aggregation(computation)
    self.assertLen(fields, 1)
    self.assertEqual(fields[0].intrinsic, 'federated_secure_sum_bitwidth')
    self.assertEqual(fields[0].type_spec, 'int64[10]')
    self.assertEqual(fields[0].upper, 2**17 - 1)

  @parameterized.parameters(
      (_MECHANISM, _REPORTS, 'DP_SECURE_SUM'),
      # Labels that are reports already, and the paper's "No DP".
      (None, _REPORTS, 'DP_SECURE_SUM'),
      (None, None, 'SECURE_SUM'),
  )
  def test_declares_whether_the_labels_are_flipped(self, mechanism, protection, expected):
    _, fields = _build(mechanism=mechanism, protection=protection)
    self.assertIs(fields[0].disclosure, uplink.Disclosure[expected])
    self.assertEqual(fields[0].protection, protection)

  def test_sum_is_that_of_flipped_histograms(self):
    clients, expected = [], np.zeros(10, np.int64)
    for client, size in enumerate((300, 0, 1, 57)):
      ids = np.random.default_rng(client).choice(10**15, size, replace=False)
      secret = mechanism_lib.simulation_secret(0, client)
      clients.append(_client(ids % 7, ids, secret))
      reports = mechanism_lib.flip(ids % 7, ids, secret, _MECHANISM)
      expected += mechanism_lib.histogram(reports, 10)
    total = _build()[0](clients)
    self.assertEqual(np.asarray(total).dtype, np.int64)
    np.testing.assert_array_equal(total, expected)

  def test_without_a_mechanism_labels_are_counted_as_they_are(self):
    # Neither ids nor secrets are used.
    nothing = np.zeros(2, np.int64)
    clients = [_client(y, [], nothing) for y in ([3, 3, 9], [], [0, 3])]
    np.testing.assert_array_equal(
        _build(mechanism=None)[0](clients), [1, 0, 0, 3, 0, 0, 0, 0, 0, 1]
    )

  def test_every_row_of_the_matrix_through_the_runtime(self):
    computation, _ = _build()
    counts = np.array([
        computation([_client(np.full(_MANY, y), np.arange(_MANY), np.array([y, 1]))])
        for y in range(10)
    ])
    finding = declared_table.goodness_of_fit(counts, _MECHANISM.transition_matrix(), 1e-6)
    self.assertIs(finding.verdict, black_box.Verdict.PASSED, finding)

  @parameterized.named_parameters(
      ('label', [0, 10], [1, 2], _MECHANISM, 'labels must be in 0 to 9'),
      ('ids', [0, 1], [2, 2], _MECHANISM, 'ids must be distinct'),
      ('unflipped label', [0, 10], [1, 2], None, 'labels must be in 0 to 9'),
      ('unflipped negative label', [0, -1], [1, 2], None, 'labels must be in 0 to 9'),
  )
  def test_a_client_with_bad_data_fails_the_sum(self, labels, ids, mechanism, message):
    good = _client([1], [1], _SECRET)
    with self.assertRaisesRegex(Exception, message):
      _build(mechanism=mechanism)[0]([good, _client(labels, ids, _SECRET)])

  def test_largest_count_passes_and_one_more_fails(self):
    computation, fields = _build(max_count=7, mechanism=None)
    self.assertEqual(fields[0].upper, 7)
    clients = [_client(np.zeros(n), np.arange(n), _SECRET) for n in (7, 8)]
    self.assertEqual(computation(clients[:1])[0], 7)
    with self.assertRaisesRegex(Exception, 'larger than maximum'):
      computation(clients)

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


class ClientLabelsTest(absltest.TestCase):

  def test_are_labels_ids_and_secret_in_the_types_of_the_computation(self):
    examples = types.ClientExamples(None, np.array([2, 0], np.uint8), np.array([8, 9], np.int32))
    federation = types.Federation((examples, examples), num_classes=3, seed=5)
    held = label_histogram.client_labels(federation, 1)
    self.assertEqual(
        {name: (a.dtype, a.tolist()) for name, a in held.items()},
        {
            'y': (np.int32, [2, 0]),
            'example_id': (np.int64, [8, 9]),
            'secret': (np.int64, mechanism_lib.simulation_secret(5, 1).tolist()),
        },
    )


if __name__ == '__main__':
  absltest.main()
