"""What the audit of the label mechanism notices, computed and simulated: `docs/privacy.md`'s table.

    python -m benchmarks.mechanism_power [SEEDS]

prints the probability with which each budget notices an error of epsilon, or true labels in some
events, as computed and as simulated (10,000 draws of the number of kept labels); and, over so many
seeds of the auditor (default 200), how many whole audits of the right mechanism alarm at level .2.
"""

import sys

import numpy as np

from tff_noise.audit import black_box
from tff_noise.audit import declared_table
from tff_noise.audit import empirical_audit
from tff_noise.audit import power
from tff_noise.privacy import mechanism as mechanism_lib

_TRIALS = (1000, 5000, 20_000, 100_000)
_EPSILONS = (0.815, 0.82, 0.83, 0.85)
_RATES = (5e-4, 1e-3, 2e-3)
_ALPHA, _SIMULATIONS = 1e-6, 10_000
# Of the false alarms: a small budget, and a level at which they can be counted.
_ALARM_TRIALS, _ALARM_ALPHA = 60, 0.2


def _simulated(claimed, keep, trials, draw):
  """Returns the share of audits in which `keep_rate` fails."""
  total, share = 600 * trials, _ALPHA * empirical_audit.KEEP_RATE_SHARE
  counts, times = np.unique(draw.binomial(total, keep, _SIMULATIONS), return_counts=True)
  failed = 0
  for kept, often in zip(counts.tolist(), times.tolist(), strict=True):
    matrix = np.zeros((claimed.num_classes,) * 2, np.int64)
    matrix[0, :2] = kept, total - kept
    found = declared_table.keep_rate(matrix, claimed, share)
    failed += often * (found.verdict is black_box.Verdict.FAILED)
  return failed / _SIMULATIONS


def _table(claimed):
  keeps = [power.keep_of(epsilon, claimed.num_classes) for epsilon in _EPSILONS]
  keeps += [power.rare_event_keep(claimed, rate) for rate in _RATES]
  names = [f'epsilon {epsilon:g}' for epsilon in _EPSILONS]
  names += [f'{1 / rate:,.0f}' for rate in _RATES]
  print('| trials |', ' | '.join(names), '| error | share |')
  draw = np.random.default_rng(0)
  for trials in _TRIALS:
    for name, of in (
        ('', power.probability_noticed),
        (' simulated', lambda *args: _simulated(*args[:3], draw)),
    ):
      cells = [f'{of(claimed, keep, trials, _ALPHA):.3f}' for keep in keeps]
      error, rate = power.smallest_noticed(claimed, trials, _ALPHA, 0.95)
      print(f'| {trials:,}{name} |', ' | '.join(cells), f'| {error:.4f} | {rate:.5f} |', flush=True)


def _right(claimed, seed):
  draw = np.random.default_rng(seed)
  return lambda labels, ids, client: mechanism_lib.respond(
      labels, draw.integers(2**62, size=len(ids)), claimed
  )


def main(seeds: int) -> None:
  """Prints the table and the number of false alarms."""
  claimed = mechanism_lib.randomized_response('0.81', 10)
  _table(claimed)
  alarms = {}
  for seed in range(seeds):
    findings = empirical_audit.audit(
        _right(claimed, seed), claimed, trials=_ALARM_TRIALS, alpha=_ALARM_ALPHA,
        declared_memoised=False, seed=seed,
    )
    failed = [f.name for f in findings if f.verdict is black_box.Verdict.FAILED]
    for name in [*failed, *(['any'] if failed else [])]:
      alarms[name] = alarms.get(name, 0) + 1
  print(f'{seeds} audits of the right mechanism, level {_ALARM_ALPHA}: alarms {alarms}')


if __name__ == '__main__':
  main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
