"""Tests of the static audit: what a method sends besides its declaration is found."""

import json

import numpy as np
import tensorflow_federated as tff
from absl.testing import absltest

from tests import federated_test_case
from tff_noise.audit import computations
from tff_noise.audit import finding
from tff_noise.federated import label_communication
from tff_noise.federated import uplink
from tff_noise.methods import method
from tff_noise.privacy import ledger
from tff_noise.privacy import protection

_REPORTS = protection.LabelReports(4, '0.81', 100)
_TYPE = tff.TensorType(np.int64, (4,))


def _labels():
  return label_communication.build_label_communication(
      4, max_count=7, max_clients=20, protection=_REPORTS
  )


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

  def _check(self, computation):
    _, fields = _labels()
    return computations.check('labels', computations.Computation(computation, fields))

  def test_as_declared(self):
    seen = self._check(_labels()[0])
    self.assertIs(seen.verdict, finding.Verdict.PASSED)
    self.assertIn('1 values', seen.detail)

  def test_one_more_edge(self):
    seen = self._check(_leaky)
    self.assertIs(seen.verdict, finding.Verdict.FAILED)
    self.assertIn('sent, not declared: federated_sum int64[4]', seen.detail)

  def test_another_aggregation(self):
    seen = self._check(_wider)
    self.assertIs(seen.verdict, finding.Verdict.FAILED)
    self.assertIn('declared, not sent: federated_secure_sum_bitwidth', seen.detail)


class AuditTest(federated_test_case.FederatedTestCase):

  def _schedule(self, computation):
    _, fields = _labels()
    return method.Schedule((), {'labels': method.Exchange(computation, fields)})

  def test_a_method_and_what_a_run_of_it_costs(self):
    audit = computations.audit('Labels', self._schedule(_labels()[0]), 20, 1e-5, {'method': 'x'})
    self.assertFalse(audit.failed)
    content = json.loads(audit.json())
    self.assertEqual(content['edges']['labels'][0]['type_spec'], 'int64[4]')
    self.assertAlmostEqual(content['privacy']['totals'][0]['epsilon'], 0.81)
    self.assertIn('label histogram', audit.text())

  def test_a_leaky_method_fails(self):
    audit = computations.audit('Labels', self._schedule(_leaky), 20, 1e-5, {})
    self.assertTrue(audit.failed)

  def test_the_plan_has_every_exchange(self):
    schedule = self._schedule(_labels()[0])
    [entry] = computations.planned(schedule, 20)
    self.assertEqual((entry.fields, entry.clients), ((0,), 20))
    declared = uplink.to_json(schedule.fields)
    self.assertLen(ledger.releases([entry], declared), 1)


if __name__ == '__main__':
  absltest.main()
