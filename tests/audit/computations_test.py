"""Tests of the static audit: what a method sends besides its declaration is found."""

import functools
import json

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest

from tests import federated_test_case
from tff_noise.algorithms import algorithm
from tff_noise.audit import computations
from tff_noise.audit import finding
from tff_noise.federated import computation
from tff_noise.federated import label_histogram
from tff_noise.federated import processes
from tff_noise.privacy import costs as costs_lib
from tff_noise.privacy import protection
from tff_noise.uplink import uplink

_REPORTS = protection.LabelReports(4, '0.81', 100)
_TWENTY = {protection.Unit.CLIENT: 20}
_TYPE = tff.TensorType(np.int64, (4,))


@functools.cache
def _labels():
  mechanism = _REPORTS.mechanism
  return label_histogram.build_label_histogram(
      4, max_count=7, max_clients=20, mechanism=mechanism, protection=_REPORTS
  )


def _computation(process):
  """Of this process, with what label communication declares."""
  return computation.Computation('labels', processes.Collection(process), _labels()[1])


def _algorithm(process):
  return algorithm.Algorithm(None, (_computation(process),), {'train': 3}, times={'labels': 1})


@tff.federated_computation(tff.FederatedType(_TYPE, tff.CLIENTS))
def _leaky(histograms):
  """Sends the secure sum, and the histograms once more in the open."""
  return (
      tff.federated_secure_sum_bitwidth(histograms, 3), tff.federated_sum(histograms)
  )


@tff.federated_computation(tff.FederatedType(_TYPE, tff.CLIENTS))
def _wider(histograms):
  return tff.federated_sum(histograms)


class CheckTest(federated_test_case.FederatedTestCase):

  def test_as_declared(self):
    seen = computations.check(_computation(_labels()[0]))
    self.assertIs(seen.verdict, finding.Verdict.PASSED)
    self.assertIn('1 values', seen.detail)

  def test_one_more_edge(self):
    seen = computations.check(_computation(_leaky))
    self.assertIs(seen.verdict, finding.Verdict.FAILED)
    self.assertIn('sent, not declared: federated_sum int64[4]', seen.detail)

  def test_another_aggregation(self):
    seen = computations.check(_computation(_wider))
    self.assertIs(seen.verdict, finding.Verdict.FAILED)
    self.assertIn('declared, not sent: federated_secure_sum_bitwidth', seen.detail)


  def test_a_side_door(self):
    @tff.tensorflow.computation(_TYPE)
    def printed(histogram):
      with tf.control_dependencies([tf.print(histogram)]):
        return tf.identity(histogram)

    @tff.federated_computation(tff.FederatedType(_TYPE, tff.CLIENTS))
    def prints(histograms):
      return tff.federated_secure_sum_bitwidth(tff.federated_map(printed, histograms), 3)

    seen = computations.check(_computation(prints))
    self.assertIs(seen.verdict, finding.Verdict.FAILED)
    self.assertRegex(seen.detail, 'the operation (StringFormat|PrintV2)')

  def test_a_secure_sum_over_one_client(self):
    seen = computations.check_cohort(_computation(_labels()[0]), 1)
    self.assertIs(seen.verdict, finding.Verdict.FAILED)
    self.assertIn('a secure sum over one client is that client', seen.detail)
    seen = computations.check_cohort(_computation(_labels()[0]), 2)
    self.assertIs(seen.verdict, finding.Verdict.PASSED)


class AuditTest(federated_test_case.FederatedTestCase):

  def test_a_method_and_what_a_run_of_it_costs(self):
    audit = computations.audit(
        'Labels', _algorithm(_labels()[0]), _TWENTY, {'labels': 20}, 1e-5, {'method': 'x'}
    )
    self.assertFalse(audit.failed)
    content = json.loads(audit.json())
    self.assertEqual(content['edges']['labels'][0]['type_spec'], 'int64[4]')
    self.assertAlmostEqual(content['privacy']['totals'][0]['epsilon'], 0.81)
    self.assertIn('label histogram', audit.text())

  def test_a_leaky_method_fails(self):
    audit = computations.audit('Labels', _algorithm(_leaky), _TWENTY, {'labels': 20}, 1e-5, {})
    self.assertTrue(audit.failed)

  def test_what_is_not_named_is_planned_for_every_round(self):
    labels = _algorithm(_labels()[0])._replace(times={})
    self.assertLen(computations.planned(labels, 20), 3)

  def test_noise_is_planned_for_every_round_whatever_a_method_says(self):
    noisy = protection.NoisySum(1.0, 1.0, cohort=2, population=20)
    asked = _computation(_labels()[0])
    asked = asked._replace(fields=tuple(f._replace(protection=noisy) for f in asked.fields))
    method = algorithm.Algorithm(None, (asked,), {'train': 3}, times={'labels': 1})
    self.assertLen(computations.planned(method, 20), 3)

  def test_the_plan_has_every_exchange(self):
    labels = _algorithm(_labels()[0])
    [entry] = computations.planned(labels, 20)
    self.assertEqual((entry.fields, entry.clients), ((0,), 20))
    declared = uplink.to_json(labels.fields)
    self.assertLen(costs_lib.releases([entry], declared), 1)


if __name__ == '__main__':
  absltest.main()
