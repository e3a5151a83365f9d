"""An audit of a label-flipping mechanism as it really runs: ask it often, and count.

The proof of randomised response is about a formula. What runs is a program, and programs flip with
the wrong probability, only within the classes a client holds, or with one seed for all clients.
Here the program is a black box, `Mechanism`, and every test is a statistical one with an exact
false-alarm rate, but for chi-square, whose distribution is a limit.

* Lower bounds of epsilon (`lower_bounds`): one above the claim refutes the claim.
* Agreement with what is declared: the rate at which labels are kept over all reports, the
  transition matrix and flips beyond the classes a client holds (`declared_table`), the reports of
  any part of the questions (`scan`), independence between clients and examples (`shared_draws`),
  and whether asking again gives the same report.

Whom it asks about what comes from the auditor's seed (`queries`): a mechanism cannot know which
clients, ids and calls are looked at. Events, pairs, cells and sample sizes are fixed by that seed,
and the significance level is split over all of them; choosing the best event afterwards would be no
bound. What is noticed with what probability is in `power`.

**No test certifies.** `PASSED` means that no violation was found. A mechanism that is bad with a
probability of 1e-6, for one client in a million or in a pattern that looks like chance passes.
Above all it is assumed that an example is asked with one label: reports of one example under two
labels share their randomness in `mechanism.flip` and together reveal more than epsilon.
"""

import decimal
import math
import secrets
from collections.abc import Sequence

import numpy as np

from tff_noise.audit import black_box
from tff_noise.audit import declared_table
from tff_noise.audit import lower_bounds
from tff_noise.audit import queries
from tff_noise.audit import scan as scan_lib
from tff_noise.audit import shared_draws
from tff_noise.privacy import mechanism as mechanism_lib

Verdict = black_box.Verdict

# Examples that are asked about again, of each size of calls, for each of `trials`.
_AGAIN = 60
# Of the level of an audit: the share of `keep_rate`, which has the most to find.
KEEP_RATE_SHARE = 0.25


def _counts(answers: Sequence[queries.Answer], num_classes: int) -> np.ndarray:
  """Returns int64 `[K, K]`, the reports (columns) of each label (rows)."""
  labels, reports = (
      np.concatenate([getattr(answer, name) for answer in answers]).astype(np.int64)
      for name in ('labels', 'reports')
  )
  return np.bincount(labels * num_classes + reports, minlength=num_classes**2).reshape(
      num_classes, num_classes
  )


@black_box.finding('independence')
def independence(
    report: black_box.Mechanism,
    mechanism: mechanism_lib.RandomizedResponse,
    trials: int,
    alpha: float,
    seed: int = 0,
) -> black_box.Finding:
  """Tests that clients and examples do not share their randomness.

  One seed for all clients passes every test of single reports and agrees always. All pairs of many
  random clients are compared at the same ids; examples at every distance up to .8 * trials in dense
  blocks, by id and by position; and runs of reports that occur twice are looked for in streams of
  many clients and places, at round distances and at random ones. Draws that repeat now and then,
  at distances that no block or stream has, are not found.

  Args:
    report: The mechanism.
    mechanism: What it is declared to be.
    trials: Examples of each client.
    alpha: Probability of failing independent reports, at most.
    seed: The auditor's: whom it asks about which examples.

  Returns:
    `value` is the agreement rate least like that of independent reports, `claim` theirs,
    a^2 + (K - 1) b^2. `NO_EVIDENCE` if not even equal reports throughout would have been noticed.

  Raises:
    ValueError: If an argument is out of range.
  """
  black_box.check(alpha, trials=trials)
  if not trials:
    return black_box.nothing('no trials')
  draws = {name: queries.draws_of(seed, name) for name in ('clients', 'distances', 'repeats')}
  level = alpha / len(draws)
  looks = (
      shared_draws.clients(report, mechanism, trials, draws['clients']),
      shared_draws.distances(report, mechanism, trials, draws['distances']),
      shared_draws.repeats(report, mechanism, trials, level, draws['repeats']),
  )
  worst = min(looks, key=lambda look: look.log_p)
  claim = shared_draws.agreement(mechanism)
  if worst.log_p <= math.log(level):
    return Verdict.FAILED, worst.detail, worst.rate, claim
  if max(look.sees for look in looks[:2]) > math.log(level):
    detail = f'too few pairs to notice equal reports; {worst.detail}'
    return Verdict.NO_EVIDENCE, detail, worst.rate, claim
  return Verdict.PASSED, worst.detail, worst.rate, claim


@black_box.finding('memoisation')
def memoisation(
    report: black_box.Mechanism,
    mechanism: mechanism_lib.RandomizedResponse,
    trials: int,
    alpha: float,
    declared_memoised: bool,
    seed: int = 0,
    answers: Sequence[queries.Answer] | None = None,
) -> black_box.Finding:
  """Tests that an example asked again gives the same report, or a fresh one, as declared.

  Fresh reports that count as one release cost epsilon each time unnoticed; memoised ones that count
  as fresh keep their error however often they are averaged. Examples are asked again in another
  order and other company, more or fewer at a time: a memoised report that depends on any of that
  is not the same.

  Args:
    report: The mechanism.
    mechanism: What it is declared to be.
    trials: The budget: about 60 times as many examples of large calls are asked again, and as many
      of small calls.
    alpha: Probability of failing fresh reports that are declared so; memoised ones never fail.
    declared_memoised: Whether reports are declared to be the same each time.
    seed: The auditor's: whom it asks about which examples.
    answers: What was answered before; asked for if None.

  Returns:
    `value` is the share of reports that agree with the first; `claim` is 1 if declared memoised,
    otherwise a^2 + (K - 1) b^2. `NO_EVIDENCE` if the opposite would not have been noticed.

  Raises:
    ValueError: If an argument is out of range.
  """
  black_box.check(alpha, trials=trials)
  if not trials:
    return black_box.nothing('no trials')
  draw = queries.draws_of(seed, 'again')
  num_classes, expected = mechanism.num_classes, shared_draws.agreement(mechanism)
  if answers is None:
    answers = queries.record(report, queries.Examples(draw), num_classes, max(1, trials // 100))
  same, total = queries.again(report, draw, num_classes, answers, _AGAIN * trials)
  rate, detail = same / total, f'{same} of {total} repeated reports agree'
  if not declared_memoised:
    detail += f', fresh ones with probability {expected:.4g}'
    if black_box.two_sided(same, total, expected) <= alpha:
      return Verdict.FAILED, detail, rate, expected
    if black_box.two_sided(total, total, expected) > alpha:
      return Verdict.NO_EVIDENCE, f'too few to notice equal reports; {detail}', rate, expected
    return Verdict.PASSED, detail, rate, expected
  if same < total:
    return Verdict.FAILED, detail, rate, 1.0
  if expected**total > alpha:
    return Verdict.NO_EVIDENCE, f'too few to tell from fresh reports; {detail}', rate, 1.0
  return Verdict.PASSED, detail, rate, 1.0


def new_seed() -> int:
  """Returns a seed for an auditor from the system's randomness, in `[0, 2**63)`."""
  return secrets.randbits(63)


def audit(
    report: black_box.Mechanism,
    mechanism: mechanism_lib.RandomizedResponse,
    *,
    trials: int = 20_000,
    alpha: float = 1e-6,
    declared_memoised: bool = True,
    seed: int | None = None,
) -> tuple[black_box.Finding, ...]:
  """Runs every test of a mechanism against what it is declared to be.

  A quarter of the level goes to `keep_rate`, the rest evenly to the others, each of which splits it
  over its comparisons (Bonferroni): a mechanism that is as declared fails any of them with
  probability alpha at most. That is exact or bounded from above but for the chi-square half of
  `transition`, and it is the chance of the mechanism's own draws: with one key, the same seed gives
  the same findings.

  First 600 * trials reports are asked for, half of them before and half after about 5.8 * trials
  small calls, of which 5 * trials or more are about one client; `keep_rate`, `transition`, `scan`
  and `memoisation` look at these. The other tests ask for their own.

  Args:
    report: The mechanism as it runs. It is asked about any clients below 2^31 and any ids below
      2^63: give it a key that no real report uses.
    mechanism: What it is declared to be, the claimed epsilon and the table.
    trials: The budget, in reports for each world of `two_worlds`; 0 gives `NO_EVIDENCE` throughout.
    alpha: Probability of any false alarm, in (0, 1).
    declared_memoised: Whether an example asked again is declared to give the same report.
    seed: The auditor's: whom it asks about which examples; from the system's randomness if None.

  Returns:
    The findings of `two_worlds`, `one_run`, `keep_rate`, `transition`, `support`, `scan`,
    `independence` and `memoisation`. None of them certifies anything.

  Raises:
    ValueError: If trials or alpha is out of range, or the mechanism's epsilon is not a number.
  """
  black_box.check(alpha, trials=trials)
  num_classes = mechanism.num_classes
  # As written, not that of the table: a table may be wrong.
  try:
    claim = float(decimal.Decimal(mechanism.epsilon))
  except decimal.InvalidOperation as e:
    raise ValueError(f'expected a decimal epsilon, got {mechanism.epsilon!r}') from e
  seed = new_seed() if seed is None else seed
  level = alpha * (1 - KEEP_RATE_SHARE) / 7
  of_record = _of_record(report, mechanism, trials, alpha, level, declared_memoised, seed)
  return (
      lower_bounds.two_worlds(report, num_classes, claim, trials, level, seed=seed),
      lower_bounds.one_run(report, num_classes, claim, trials, level, seed),
      of_record['keep rate'],
      of_record['transition'],
      declared_table.support(report, mechanism, trials, level, seed),
      of_record['scan'],
      independence(report, mechanism, trials, level, seed),
      of_record['memoisation'],
  )


def _of_record(report, mechanism, trials, alpha, level, declared_memoised, seed):
  """Returns the findings about the many reports of `queries.record`, by name."""
  num_classes = mechanism.num_classes
  try:
    answers = queries.record(
        report, queries.Examples(queries.draws_of(seed, 'record')), num_classes, trials
    )
  except black_box.NoAnswer as e:
    names = ('keep rate', 'transition', 'scan', 'memoisation')
    return {n: black_box.Finding(n, Verdict.FAILED, str(e), math.nan, math.nan) for n in names}
  if answers:
    counts = _counts(answers, num_classes)
  else:
    counts = np.zeros((num_classes, num_classes), np.int64)
  findings = (
      declared_table.keep_rate(counts, mechanism, alpha * KEEP_RATE_SHARE),
      declared_table.goodness_of_fit(counts, mechanism.transition_matrix(), level),
      scan_lib.scan(answers, counts, mechanism, trials, level, queries.draws_of(seed, 'scan')),
      memoisation(
          report, mechanism, trials, level, declared_memoised, seed=seed, answers=answers
      ),
  )
  return {finding.name: finding for finding in findings}
