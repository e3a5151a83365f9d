"""Tests of what a run is measured by."""

import math
import types as python_types

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise.compare import metrics

# Of the metrics that a summary has under another name.
_KEYS = {'label_accuracy': 'label_accuracy_after'}


def _run(summary=None, rounds=(), accuracy=()):
  return python_types.SimpleNamespace(
      summary=summary or {}, rounds=np.array(rounds), metrics={'test_accuracy': np.array(accuracy)}
  )


class MetricsTest(parameterized.TestCase):

  def test_each_is_its_own_number_of_the_summary(self):
    shares = [name for name in metrics.FIXED if name != 'megabytes']
    summary = {_KEYS.get(name, name): i / 100 for i, name in enumerate(shares, 1)}
    # Names that are near, and not meant.
    summary |= {'label_accuracy_before': 0.99, 'validation_chosen_round': 0.98}
    for i, name in enumerate(shares, 1):
      self.assertAlmostEqual(metrics.get(name).value(_run(summary)), i, msg=name)

  def test_megabytes_are_both_ways_and_of_what_was_asked_besides(self):
    summary = {'bytes_up': 3_000_000, 'bytes_down': 2_000_000}
    self.assertEqual(metrics.get('megabytes').value(_run(summary)), 5)
    self.assertEqual(metrics.get('megabytes').value(_run(summary | {'extra_bytes_up': 5e5})), 5.5)

  @parameterized.parameters((0.8999995, 2), (0.89999, math.inf))
  def test_rounds_to_an_accuracy(self, second, expected):
    run = _run(rounds=(1, 2), accuracy=(0.5, second))
    self.assertEqual(metrics.get('rounds_to_accuracy:90').value(run), expected)


if __name__ == '__main__':
  absltest.main()
