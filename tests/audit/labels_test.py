"""Tests of the audit of the label mechanism: both forms, report by report."""

from unittest import mock

from absl.testing import absltest

from tff_noise.audit import finding
from tff_noise.audit import labels
from tff_noise.privacy import mechanism

_MECHANISM = mechanism.randomized_response('0.81', 10)


class AuditTest(absltest.TestCase):

  def test_both_forms_pass(self):
    audit = labels.audit(_MECHANISM, trials=600, alpha=1e-6, seed=0)
    self.assertEqual(
        [f.verdict for f in audit.findings], [finding.Verdict.PASSED] * 8, audit.findings
    )

  def test_each_alone_is_what_is_audited(self):
    for name, build in labels.FORMS.items():
      with mock.patch.dict(labels.FORMS, {name: build}, clear=True):
        audit = labels.audit(_MECHANISM, trials=600, alpha=1e-6, seed=0)
      self.assertFalse(audit.failed, name)

  def test_a_form_that_reports_otherwise_fails(self):
    # As good a mechanism, with another table: alone it passes.
    other = mechanism.randomized_response('0.8100001', 10)
    for name, build in labels.FORMS.items():
      with mock.patch.dict(labels.FORMS, {name: lambda _, build=build: build(other)}):
        audit = labels.audit(_MECHANISM, trials=200, alpha=1e-6, seed=0)
      self.assertTrue(audit.failed, name)
      self.assertEqual(audit.content['seed'], 0)
      for found in audit.findings:
        self.assertIn('NumPy, TensorFlow', found.detail)


if __name__ == '__main__':
  absltest.main()
