"""Tests of what is asked of a report before a run."""

import contextlib
import io

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tests.algorithms import method_runs
from tff_noise import types
from tff_noise.algorithms import algorithm
from tff_noise.program import own_report


class CheckTest(federated_test_case.FederatedTestCase, parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    federation = toy.two_corners([5, 7, 4])
    cls.built = method_runs.build('elr', method_runs.task(federation))
    [cls.kept] = cls.built.own

  def _said(self, **parts):
    """What is printed."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
      built = self.built._replace(report=algorithm.Report(**parts))
      own_report.check('mine:ENTRY', built, 3)
    return said.getvalue()

  def test_a_report_in_order(self):
    self.assertEmpty(self._said(
        client_columns=lambda records: {'a': np.zeros(3)}, client_scores=('a',),
        noisy_clients=lambda records: np.zeros(3, bool), posterior=self.kept,
        columns=lambda state: {'b': 1.0}, summary=lambda records: {'c': 2},
    ))

  @parameterized.parameters(
      ({'client_columns': lambda records: {'a': np.zeros(2)}}, r'a of its report .* shape \(2,\)'),
      ({'noisy_clients': lambda records: np.zeros(4, bool)}, r'noisy_clients .* shape \(4,\)'),
      ({'client_scores': ('typo',)}, 'of typo, which client_columns has not; it has: nothing'),
      ({'labels': 'typo'}, "labels of its report is 'typo', which clients do not keep; they keep:"),
      ({'posterior': 'typo'}, "posterior of its report is 'typo'"),
      ({'client_columns': lambda records: {'a': ['x'] * 3}}, 'a of its report .* numbers, .* <U1'),
      ({'noisy_clients': lambda records: np.zeros(3)}, 'noisy_clients .* of bool, is of float64'),
      ({'columns': lambda state: {'b': None}}, 'b of the columns of its report .*, is None'),
      ({'columns': lambda state: {'b': np.zeros(2)}}, 'b of the columns of its report'),
      ({'summary': lambda records: {'c': {1}}}, 'no JSON file can hold .Object of type set'),
  )
  def test_what_is_of_nothing_is_refused(self, parts, message):
    with self.assertRaisesRegex(types.UsageError, f'^--method=mine:ENTRY: .*{message}'):
      self._said(**parts)

  @parameterized.parameters('client_columns', 'columns', 'summary', 'noisy_clients')
  def test_what_fails_is_told(self, name):
    self.assertRegex(
        self._said(**{name: lambda records: {}['gone']}),
        f"^report: {name} of --method=mine:ENTRY fails on first values .KeyError: 'gone'",
    )


if __name__ == '__main__':
  absltest.main()
