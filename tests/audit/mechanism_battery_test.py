"""Every mechanism of the battery is caught, and what is not is as improbable as computed."""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized
from scipy import stats

from tests.audit import bad_mechanisms
from tff_noise.audit import black_box
from tff_noise.audit import declared_table
from tff_noise.audit import empirical_audit
from tff_noise.audit import power
from tff_noise.privacy import mechanism

_TABLE = bad_mechanisms.TABLE
_FAILED = black_box.Verdict.FAILED


def _failed(report, trials, seed=0):
  findings = empirical_audit.audit(report, _TABLE, trials=trials, seed=seed)
  return [finding for finding in findings if finding.verdict is _FAILED]


class BatteryTest(parameterized.TestCase):

  @parameterized.parameters(*bad_mechanisms.CAUGHT_SOON)
  def test_caught_soon(self, name):
    self.assertNotEmpty(_failed(bad_mechanisms.CAUGHT_SOON[name], 2000))

  def test_the_right_one_passes(self):
    self.assertEmpty(_failed(bad_mechanisms.right, 2000))

  def test_caught_by_the_default(self):
    # The one that needs all of the default budget's calls; the others are the benchmark's.
    report = bad_mechanisms.CAUGHT_BY_DEFAULT['after 100,000 calls']
    self.assertNotEmpty(_failed(report, 20_000))

  @parameterized.parameters((0.83, 2000), (0.85, 1000))
  def test_a_small_error_of_epsilon(self, epsilon, trials):
    self.assertGreater(
        power.probability_noticed(_TABLE, power.keep_of(epsilon, 10), trials, 1e-6), 0.99
    )
    names = [f.name for f in _failed(bad_mechanisms.of_epsilon(epsilon), trials)]
    self.assertIn('keep rate', names)


class PowerTest(parameterized.TestCase):

  def test_keep(self):
    self.assertAlmostEqual(power.keep_of(_TABLE.actual_epsilon, 10), _TABLE.keep_probability)
    # .2 + .5 * .8, nearly.
    keep = _TABLE.keep_probability
    self.assertAlmostEqual(power.rare_event_keep(_TABLE, 0.5), (1 + keep) / 2)

  @parameterized.parameters(0.81, 0.85, 0.9, 0.75)
  def test_is_that_of_simulated_audits(self, epsilon):
    trials, alpha, runs = 50, 0.01, 2000
    keep = power.keep_of(epsilon, 10)
    expected = power.probability_noticed(_TABLE, keep, trials, alpha)
    kept = np.random.default_rng(0).binomial(600 * trials, keep, runs)
    alarms = 0
    for k in kept.tolist():
      # Which other class is reported is nothing to this test.
      counts = np.zeros((10, 10), int)
      counts[0, :2] = k, 600 * trials - k
      share = alpha * empirical_audit.KEEP_RATE_SHARE
      alarms += declared_table.keep_rate(counts, _TABLE, share).verdict is _FAILED
    self.assertBetween(
        alarms, stats.binom.ppf(1e-4, runs, expected), stats.binom.ppf(1 - 1e-4, runs, expected)
    )

  def test_a_right_mechanism_is_noticed_with_the_level_at_most(self):
    for alpha in (1e-6, 0.2):
      noticed = power.probability_noticed(_TABLE, _TABLE.keep_probability, 100, alpha)
      self.assertBetween(noticed, 0.5 * alpha / 4, alpha / 4)

  def test_smallest_noticed(self):
    error, rate = power.smallest_noticed(_TABLE, 20_000, 1e-6, 0.95)
    for keep in (
        power.keep_of(_TABLE.actual_epsilon + error, 10), power.rare_event_keep(_TABLE, rate)
    ):
      self.assertAlmostEqual(power.probability_noticed(_TABLE, keep, 20_000, 1e-6), 0.95, places=4)
    # In closed form: (5.16 + 1.64) standard deviations.
    self.assertAlmostEqual(rate * 0.8, 6.8 * 0.4 / 12e6**0.5, delta=2e-5)

  def test_nothing_is_noticed(self):
    # Labels as they are keep such an epsilon.
    table = mechanism.randomized_response('20', 10)
    self.assertEqual(power.smallest_noticed(table, 1, 1e-6, 0.95), (np.inf, 1.0))


if __name__ == '__main__':
  absltest.main()
