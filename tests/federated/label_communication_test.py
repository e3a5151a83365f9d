"""Tests of the secure sum of label histograms."""

import numpy as np
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tff_noise.federated import label_communication
from tff_noise.federated import uplink
from tff_noise.privacy import protection as protection_lib

_REPORTS = protection_lib.LabelReports(3, '0.81', num_labels=35)


def _build(**changes):
  arguments = {'max_count': 7, 'max_clients': 5, 'protection': _REPORTS, **changes}
  return label_communication.build_label_communication(3, **arguments)


class LabelCommunicationTest(federated_test_case.FederatedTestCase):

  def test_type_admits_histograms_and_nothing_else(self):
    computation, _ = _build()
    self.assertEqual(
        str(computation.type_signature), '({int64[3]}@CLIENTS -> int64[3]@SERVER)'
    )

  def test_only_a_secure_sum(self):
    computation, fields = _build()
    tff.test.assert_not_contains_unsecure_aggregation(computation)
    self.assertLen(fields, 1)
    self.assertEqual(fields[0].intrinsic, 'federated_secure_sum_bitwidth')

  def test_sum_is_exact(self):
    computation, _ = _build()
    histograms = [np.array(h, np.int64) for h in ([1, 0, 7], [0, 0, 0], [2, 5, 6])]
    np.testing.assert_array_equal(computation(histograms), [3, 5, 13])

  def test_largest_count_passes_and_one_more_fails(self):
    computation, fields = _build()
    self.assertEqual(fields[0].upper, 7)
    zeros = np.zeros(3, np.int64)
    np.testing.assert_array_equal(computation([zeros + 7, zeros]), [7, 7, 7])
    with self.assertRaisesRegex(Exception, 'larger than maximum'):
      computation([zeros + 8, zeros])

  @parameterized.parameters((_REPORTS, 'DP_SECURE_SUM'), (None, 'SECURE_SUM'))
  def test_declares_whether_the_labels_are_flipped(self, protection, expected):
    _, fields = _build(protection=protection)
    self.assertIs(fields[0].disclosure, uplink.Disclosure[expected])
    self.assertEqual(fields[0].protection, protection)

  def test_one_client_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'at least 2 clients'):
      _build(max_clients=1)

  @parameterized.parameters(0, 2**61)
  def test_counts_that_could_overflow_are_refused(self, max_count):
    with self.assertRaisesRegex(ValueError, 'max_count'):
      _build(max_count=max_count)

  @parameterized.named_parameters(
      ('negative', np.array([0, -1, 3]), 'counts must be in 0 to 7, found -1 to 3'),
      ('too many', np.array([0, 8, 3]), 'found 0 to 8'),
      ('narrow', np.array([0, 1, 3], np.int32), r'expected int64\[3\], got int32'),
      ('another K', np.array([0, 1]), r'got int64\[2\]'),
      ('shares', np.array([0.5, 0.5, 0.0]), 'got float64'),
  )
  def test_what_tff_would_sum_to_something_else_is_refused(self, counts, message):
    _, (field,) = label_communication.build_label_communication(
        3, max_count=5, max_clients=4, protection=None
    )
    good = np.array([7, 0, 0])
    label_communication.check_histograms([good], field)
    with self.assertRaisesRegex(ValueError, f'client 1: .*{message}'):
      label_communication.check_histograms([good, counts], field)


if __name__ == '__main__':
  absltest.main()
