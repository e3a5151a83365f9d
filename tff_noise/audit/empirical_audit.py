"""An audit of a label-flipping mechanism as it really runs: ask it often, and count.

The proof of randomised response is about a formula. What runs is a program, and programs flip with
the wrong probability, only within the classes a client holds, or with one seed for all clients.
Here the program is a black box, `Mechanism`, and every test is a statistical one with an exact
false-alarm rate, but for chi-square, whose distribution is a limit.

* Lower bounds of epsilon: the two-world game with Clopper-Pearson intervals (as Jagielski et al.
  2020), and one run with many random labels (Steinke, Nasr, Jagielski 2023). A bound above the
  claim refutes the claim. They see too little noise, never too much.
* Agreement with what is declared: the transition matrix, flips beyond the classes a client holds,
  independence between clients and examples, and whether asking again gives the same report.

Events, pairs and sample sizes are fixed beforehand, and the significance level is split over all of
them; choosing the best event afterwards would be no bound.

**No test certifies.** `PASSED` means that no violation was found. A mechanism that is bad with a
probability of 1e-6, for one client in a thousand or in a pattern not listed here passes. Above all
it is assumed that an example is asked with one label: reports of one example under two labels share
their randomness in `mechanism.flip` and together reveal more than epsilon.
"""

import decimal
import enum
import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from tff_noise import rng
from tff_noise.privacy import mechanism as mechanism_lib

# What is audited: `report(labels int32 [n], example_ids int64 [n], client) -> int32 [n]`, labels
# and reports in [0, K), ids distinct. It may draw anew each time or remember.
Mechanism = Callable[[np.ndarray, np.ndarray, int], np.ndarray]

# Samples of one test come from several clients, so that the draws of one do not decide it.
_CLIENTS = 4
# Pairs of clients and distances between examples whose reports are compared: neighbours, batches.
_CLIENT_PAIRS = ((0, 1), (0, 2), (1, 1000))
_LAGS = (1, 32, 500)
# The tail of chi-square is a good approximation only far from the discreteness of the counts.
_CHI_SQUARE_EXPECTED = 1000
# Reports that `audit` asks for to fill the rows of a transition matrix: a second.
_TRANSITION_REPORTS = 2_000_000


class Verdict(enum.Enum):
  """What a test says.

  PASSED: no violation was found, although a mechanism without noise (or, for independence and
    memoisation, one that repeats or changes its draws) would have been noticed. Not a proof.
  FAILED: a violation was found, or the mechanism did not answer.
  NO_EVIDENCE: there were no or too few samples to notice anything. Not a pass.
  """

  PASSED = 'passed'
  FAILED = 'failed'
  NO_EVIDENCE = 'no evidence'


class Finding(NamedTuple):
  """The result of one test.

  Attributes:
    name: The test.
    verdict: What it says.
    detail: What was seen, in one line.
    value: The number found; NaN without samples, or if the mechanism did not answer.
    claim: What `value` was held against, NaN where `value` is; the tests say what both are.
  """

  name: str
  verdict: Verdict
  detail: str
  value: float
  claim: float


class _NoAnswer(Exception):
  """The mechanism raised, or returned what cannot be reports."""


def _check(alpha: float, **counts: int) -> None:
  if not 0 < alpha < 1:
    raise ValueError(f'alpha must be between 0 and 1, got {alpha!r}')
  for name, count in counts.items():
    if not isinstance(count, (int, np.integer)) or count < 0:
      raise ValueError(f'{name} must be a whole number of at least 0, got {count!r}')


def _check_claim(num_classes: int, claim: float) -> None:
  _check_classes(num_classes)
  if not 0 <= claim < math.inf:
    raise ValueError(f'claim must be a finite epsilon of at least 0, got {claim!r}')


def _check_classes(num_classes: int) -> None:
  if not isinstance(num_classes, (int, np.integer)) or num_classes < 2:
    raise ValueError(f'num_classes must be a whole number of at least 2, got {num_classes!r}')


def _finding(name: str):
  """Decorates a test: `FAILED` if the mechanism does not answer, under the test's name."""

  def decorate(test):
    @functools.wraps(test)
    def guarded(*args, **kwargs) -> Finding:
      try:
        return Finding(name, *test(*args, **kwargs))
      except _NoAnswer as e:
        return Finding(name, Verdict.FAILED, str(e), math.nan, math.nan)

    return guarded

  return decorate


def _nothing(detail: str) -> tuple[Verdict, str, float, float]:
  return Verdict.NO_EVIDENCE, detail, math.nan, math.nan


def _ask(
    report: Mechanism, num_classes: int, labels: np.ndarray, ids: np.ndarray, client: int
) -> np.ndarray:
  """Returns the reports of one client, int64 `[n]` in `[0, num_classes)`; raises `_NoAnswer`."""
  try:
    # Copies: a mechanism that flips in place must not change what the next question asks.
    reports = np.asarray(report(labels.astype(np.int32), ids.astype(np.int64), client))
  except Exception as e:
    raise _NoAnswer(f'the mechanism raised {type(e).__name__}: {e}') from e
  if reports.shape != labels.shape or not np.issubdtype(reports.dtype, np.integer):
    raise _NoAnswer(
        f'expected {len(labels)} whole reports, found {reports.dtype} of shape {reports.shape}'
    )
  if len(reports) and (reports.min() < 0 or reports.max() >= num_classes):
    raise _NoAnswer(
        f'reports must be in 0 to {num_classes - 1}, found {reports.min()} to {reports.max()}'
    )
  return reports.astype(np.int64)


def _ask_clients(
    report: Mechanism, num_classes: int, labels: np.ndarray, first_id: int = 0
) -> np.ndarray:
  """Returns the reports of `labels`, which are split over clients and have ids of their own."""
  parts = np.array_split(np.arange(len(labels)), _CLIENTS)
  return np.concatenate(
      [
          _ask(report, num_classes, labels[part], part + first_id, client)
          for client, part in enumerate(parts)
          if len(part)
      ]
  )


def _two_sided(successes, trials, probability):
  """Returns the p-value of the exact binomial test, twice the smaller tail; broadcasts."""
  lower = stats.binom.cdf(successes, trials, probability)
  upper = stats.binom.sf(np.asarray(successes) - 1, trials, probability)
  return np.minimum(1, 2 * np.minimum(lower, upper))


def epsilon_lower_bound(
    true_positives: int,
    trials1: int,
    false_positives: int,
    trials0: int,
    alpha: float,
    delta: float = 0.0,
) -> float:
  """Returns a lower bound of epsilon from how often one event happens in two neighbouring worlds.

  ln((L - delta) / U), with L the Clopper-Pearson lower bound of the event's probability in world 1
  and U the upper one in world 0, each at alpha / 2 (Jagielski et al. 2020, section 4). The event
  has to be chosen before looking.

  Args:
    true_positives: How often the event happened in world 1, in `[0, trials1]`.
    trials1: Number of independent trials in world 1.
    false_positives: How often it happened in world 0, in `[0, trials0]`.
    trials0: Number of independent trials in world 0.
    alpha: Probability of a bound above the true epsilon, at most; in (0, 1).
    delta: Of (epsilon, delta)-privacy, in [0, 1).

  Returns:
    The bound, at least 0: 0 also says "no evidence", as without any trials.

  Raises:
    ValueError: If a count is above its trials or negative, or alpha or delta is out of range.
  """
  _check(
      alpha,
      true_positives=true_positives,
      trials1=trials1,
      false_positives=false_positives,
      trials0=trials0,
  )
  _check_delta(delta)
  if true_positives > trials1 or false_positives > trials0:
    raise ValueError(
        f'more events than trials: {true_positives} of {trials1}, {false_positives} of {trials0}'
    )
  # Without an event L is 0; this is also the case without trials.
  if true_positives == 0 or trials0 == 0:
    return 0.0
  lower = stats.beta.ppf(alpha / 2, true_positives, trials1 - true_positives + 1)
  missed = trials0 - false_positives
  upper = 1 - stats.beta.ppf(alpha / 2, missed, false_positives + 1) if missed else 1.0
  return max(0.0, math.log((lower - delta) / upper)) if lower > delta else 0.0


def _check_delta(delta: float) -> None:
  if not 0 <= delta < 1:
    raise ValueError(f'delta must be at least 0 and below 1, got {delta!r}')


def _one_run_p_value(
    epsilon: float, guesses: int, correct: int, delta: float, examples: int
) -> float:
  """Returns the p-value of "it is (epsilon, delta)-private" (Steinke et al. 2023, theorem 5.2)."""
  rate = 1 / (1 + math.exp(-epsilon))
  value = float(stats.binom.sf(correct - 1, guesses, rate))
  if delta > 0 and correct > 0:
    before = np.cumsum(stats.binom.pmf(np.arange(correct - 1, -1, -1), guesses, rate))
    value += 2 * examples * delta * float((before / np.arange(1, correct + 1)).max())
  return value


def one_run_lower_bound(
    guesses: int, correct: int, alpha: float, delta: float = 0.0, examples: int | None = None
) -> float:
  """Returns a lower bound of epsilon from guesses of many independent random bits in one run.

  Steinke, Nasr and Jagielski 2023: under epsilon, the number of correct guesses is dominated by
  Binomial(guesses, e^epsilon / (1 + e^epsilon)), plus a term for delta (theorem 5.2). The bound is
  the epsilon at which the p-value reaches alpha.

  Args:
    guesses: Number of bits guessed, r; the others were abstained from.
    correct: Number of correct guesses, v, in `[0, guesses]`.
    alpha: Probability of a bound above the true epsilon, at most; in (0, 1).
    delta: Of (epsilon, delta)-privacy, in [0, 1).
    examples: Number of random bits, m, at least `guesses`; None for as many. Matters with delta.

  Returns:
    The bound, at least 0: 0 also says "no evidence", as without any guesses.

  Raises:
    ValueError: If more guesses are correct than were made, more were made than there are examples,
      or alpha or delta is out of range.
  """
  examples = guesses if examples is None else examples
  _check(alpha, guesses=guesses, correct=correct, examples=examples)
  _check_delta(delta)
  if not correct <= guesses <= examples:
    raise ValueError(
        f'expected correct <= guesses <= examples, got {correct}, {guesses}, {examples}'
    )
  if _one_run_p_value(0.0, guesses, correct, delta, examples) >= alpha:
    return 0.0
  # In float64 the rate is 1 at epsilon 40, where any number of correct guesses is plausible.
  low, high = 0.0, 40.0
  for _ in range(60):
    middle = (low + high) / 2
    if _one_run_p_value(middle, guesses, correct, delta, examples) < alpha:
      low = middle
    else:
      high = middle
  return low


def label_pairs(num_classes: int) -> tuple[tuple[int, int], ...]:
  """Returns the pairs of labels that `two_worlds` tells apart, at the ends and in the middle."""
  middle = num_classes // 2
  pairs = {}
  for pair in ((0, 1), (num_classes - 1, 0), (middle, middle - 1)):
    pairs.setdefault(frozenset(pair), pair)
  return tuple(pairs.values())


def _events(y: int, z: int, num_classes: int) -> list[tuple[str, Callable]]:
  """Returns the events of a pair of labels, fixed before any report is seen."""
  events = [
      (f'report == {y}', lambda reports: reports == y),
      (f'report == {z}', lambda reports: reports == z),
  ]
  others = [k for k in range(num_classes) if k not in (y, z)]
  if others:
    # A label that moves the weight of third classes leaks through them.
    third = others[-1]
    events.append((f'report == {third}', lambda reports: reports == third))
    events.append((f'report not in {{{y}, {z}}}', lambda reports: (reports != y) & (reports != z)))
  return events


@_finding('two worlds')
def two_worlds(
    report: Mechanism,
    num_classes: int,
    claim: float,
    trials: int,
    alpha: float,
    pairs: Sequence[tuple[int, int]] | None = None,
) -> Finding:
  """Holds the two-world lower bound of epsilon against the claim.

  World 1 asks for label y only, world 0 for y' only, and each report is one trial: a mechanism that
  treats examples separately, as declared, cannot use the others. For each pair the events are
  report y, report y', one third class, and any third class, each in both directions; the level is
  split over all of them.

  Args:
    report: The mechanism.
    num_classes: K.
    claim: The claimed epsilon, finite and at least 0.
    trials: Reports per world and pair.
    alpha: Probability of failing a mechanism that keeps the claim, at most.
    pairs: Pairs (y, y') of different labels; those of `label_pairs` if None.

  Returns:
    `value` is the largest lower bound of epsilon, `claim` the claimed epsilon. `NO_EVIDENCE` if not
    even labels reported as they are would have refuted the claim.

  Raises:
    ValueError: If an argument is out of range.
  """
  _check(alpha, trials=trials)
  _check_claim(num_classes, claim)
  pairs = label_pairs(num_classes) if pairs is None else tuple(pairs)
  if any(y == z or not (0 <= y < num_classes and 0 <= z < num_classes) for y, z in pairs):
    raise ValueError(f'pairs must be of different labels in 0 to {num_classes - 1}, got {pairs}')
  if not pairs or not trials:
    return _nothing('no trials')
  level = alpha / sum(2 * len(_events(y, z, num_classes)) for y, z in pairs)
  bounds = []
  for y, z in pairs:
    worlds = [
        _ask_clients(report, num_classes, np.full(trials, label), first_id=index * trials)
        for index, label in enumerate((y, z))
    ]
    for name, event in _events(y, z, num_classes):
      here, there = (int(event(reports).sum()) for reports in worlds)
      for label, one, other, zero in ((y, here, z, there), (z, there, y, here)):
        bounds.append((
            epsilon_lower_bound(one, trials, zero, trials, level),
            f'{name} for label {label}: {one} of {trials}, for label {other}: {zero}',
        ))
  bound, detail = max(bounds, key=lambda b: b[0])
  detail = f'{detail}; epsilon is at least {bound:.4g}, claimed {claim:.4g}'
  if bound > claim:
    return Verdict.FAILED, detail, bound, claim
  if epsilon_lower_bound(trials, trials, 0, trials, level) <= claim:
    return Verdict.NO_EVIDENCE, f'{trials} trials cannot refute epsilon {claim:.4g}', bound, claim
  return Verdict.PASSED, detail, bound, claim


@_finding('one run')
def one_run(
    report: Mechanism, num_classes: int, claim: float, examples: int, alpha: float, seed: int = 0
) -> Finding:
  """Holds the one-run lower bound of epsilon against the claim.

  Each example has a random label out of a pair (y, y + 1), all classes in turn, in one call for one
  client. The report is the guess where it is one of the pair; tight for randomised response.

  Args:
    report: The mechanism.
    num_classes: K.
    claim: The claimed epsilon, finite and at least 0.
    examples: Number of examples.
    alpha: Probability of failing a mechanism that keeps the claim, at most.
    seed: Of the random labels.

  Returns:
    `value` is the lower bound of epsilon, `claim` the claimed epsilon. `NO_EVIDENCE` if nothing
    could be guessed or not even correct guesses of all examples would have refuted the claim.

  Raises:
    ValueError: If an argument is out of range.
  """
  _check(alpha, examples=examples)
  _check_claim(num_classes, claim)
  if not examples:
    return _nothing('no examples')
  first = np.arange(examples) % num_classes
  second = (first + 1) % num_classes
  bits = rng.generator(seed, 'empirical audit').integers(0, 2, examples)
  labels = np.where(bits, second, first)
  reports = _ask(report, num_classes, labels, np.arange(examples), 0)
  guesses = int(((reports == first) | (reports == second)).sum())
  correct = int((reports == labels).sum())
  bound = one_run_lower_bound(guesses, correct, alpha)
  detail = (
      f'{correct} of {guesses} guesses correct; '
      f'epsilon is at least {bound:.4g}, claimed {claim:.4g}'
  )
  if bound > claim:
    return Verdict.FAILED, detail, bound, claim
  if not guesses or one_run_lower_bound(examples, examples, alpha) <= claim:
    return Verdict.NO_EVIDENCE, f'{examples} examples cannot refute the claim', bound, claim
  return Verdict.PASSED, detail, bound, claim


def goodness_of_fit(counts: np.ndarray, matrix: np.ndarray, alpha: float) -> Finding:
  """Holds counts of reports against a declared transition matrix, too little and too much noise.

  Half of alpha goes to a chi-square test of each row (df one less than its nonzero entries; only
  rows that expect at least 1000 of each report, as the distribution is a limit), half to an exact
  binomial test of each entry.

  Args:
    counts: int `[K, K]`, reports (columns) of each label (rows). A label without any is left out.
    matrix: float `[K, K]`, the declared matrix; rows sum to 1. Where it is 0 one report fails.
    alpha: Probability of failing a mechanism with this matrix; in (0, 1).

  Returns:
    `value` is the smallest p-value, multiplied by the number of tests, `claim` is alpha.
    `NO_EVIDENCE` if a row has too few reports to notice that it is always the likeliest one.

  Raises:
    ValueError: If counts and matrix do not fit, are negative, or a row does not sum to 1.
  """
  return Finding('transition', *_goodness_of_fit(counts, matrix, alpha))


def _check_matrix(matrix: np.ndarray) -> np.ndarray:
  matrix = np.asarray(matrix, np.float64)
  if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) < 2:
    raise ValueError(f'expected a square transition matrix, found shape {matrix.shape}')
  # NaN is not at least 0.
  if not (matrix >= 0).all() or not np.allclose(matrix.sum(axis=1), 1, rtol=0, atol=1e-9):
    raise ValueError('rows of the transition matrix must be probabilities that sum to 1')
  return matrix


def _goodness_of_fit(counts, matrix, alpha):
  _check(alpha)
  matrix, counts = _check_matrix(matrix), np.asarray(counts)
  if (
      counts.shape != matrix.shape
      or not np.issubdtype(counts.dtype, np.integer)
      or (counts < 0).any()
  ):
    raise ValueError(f'expected whole counts of shape {matrix.shape}, found {counts}')
  seen = np.flatnonzero(counts.sum(axis=1))
  if not len(seen):
    return _nothing('no reports')
  counts, matrix = counts[seen], matrix[seen]
  totals = counts.sum(axis=1, keepdims=True)
  cells = 2 * counts.size * _two_sided(counts, totals, matrix)
  row, report = np.unravel_index(cells.argmin(), cells.shape)
  value = min(1.0, float(cells[row, report]))
  detail = (
      f'label {seen[row]} was reported as {report} in {counts[row, report]} of '
      f'{totals[row, 0]}, declared {matrix[row, report]:.4g}'
  )
  rows = 2 * len(seen) * np.array(
      [_chi_square(c, p) for c, p in zip(counts, matrix, strict=True)]
  )
  if rows.min() < value:
    value = float(rows.min())
    detail = f'the reports of label {seen[rows.argmin()]} fit the declared row worst'
  detail += f'; p-value {value:.3g} for {len(seen)} labels'
  if value <= alpha:
    return Verdict.FAILED, detail, value, alpha
  # Every report the likeliest of its row: labels as they are. A row of one entry needs no evidence.
  likeliest = np.where(matrix == 1, 0, matrix).max(axis=1)
  if 2 * counts.size * (likeliest ** totals[:, 0]).max() > alpha:
    return Verdict.NO_EVIDENCE, f'too few reports to notice missing noise; {detail}', value, alpha
  return Verdict.PASSED, detail, value, alpha


def _chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
  """Returns the p-value of one row; 1 if it expects too few of a report for this test."""
  possible = probabilities > 0
  expected = counts.sum() * probabilities[possible]
  if expected.min() < _CHI_SQUARE_EXPECTED or len(expected) < 2:
    return 1.0
  statistic = ((counts[possible] - expected) ** 2 / expected).sum()
  return float(stats.chi2.sf(statistic, len(expected) - 1))


@_finding('transition')
def transition(report: Mechanism, matrix: np.ndarray, per_row: int, alpha: float) -> Finding:
  """Holds the reports of every label against the declared matrix: `goodness_of_fit`.

  Every client that is asked holds all classes.

  Args:
    report: The mechanism.
    matrix: float `[K, K]`, the declared matrix.
    per_row: Reports of each label; 60 000 see an epsilon of .9 or .7 for .81 and 10 classes.
    alpha: Probability of failing a mechanism with this matrix.

  Returns:
    `value`, `claim` and `NO_EVIDENCE` as of `goodness_of_fit`.

  Raises:
    ValueError: If an argument is out of range.
  """
  _check(alpha, per_row=per_row)
  num_classes = len(_check_matrix(matrix))
  if not per_row:
    return _nothing('no reports')
  labels = np.arange(per_row * num_classes) % num_classes
  reports = _ask_clients(report, num_classes, labels)
  counts = np.bincount(labels * num_classes + reports, minlength=num_classes**2)
  return _goodness_of_fit(counts.reshape(num_classes, num_classes), matrix, alpha)


def agreement(mechanism: mechanism_lib.RandomizedResponse) -> float:
  """Returns the probability that two independent reports of one label agree, a^2 + (K - 1) b^2."""
  a, b = mechanism.keep_probability, mechanism.other_probability
  return a**2 + (mechanism.num_classes - 1) * b**2


def _agreement_verdict(
    names: Sequence[str], agreed: np.ndarray, pairs: np.ndarray, expected: float, alpha: float
) -> tuple[Verdict, str, float, float]:
  """Tests numbers of agreeing pairs, int `[t]`, against independence, split over the t tests."""
  p_values = len(names) * _two_sided(agreed, pairs, expected)
  worst = int(p_values.argmin())
  rate = float(agreed[worst] / pairs[worst])
  detail = (
      f'{names[worst]} agree in {agreed[worst]} of {pairs[worst]}, '
      f'independent ones with probability {expected:.4g}'
  )
  if p_values[worst] <= alpha:
    return Verdict.FAILED, detail, rate, expected
  if len(names) * _two_sided(pairs, pairs, expected).max() > alpha:
    return Verdict.NO_EVIDENCE, f'too few pairs to notice equal reports; {detail}', rate, expected
  return Verdict.PASSED, detail, rate, expected


@_finding('independence')
def independence(
    report: Mechanism, mechanism: mechanism_lib.RandomizedResponse, trials: int, alpha: float
) -> Finding:
  """Tests that clients and examples do not share their randomness.

  Clients with the same labels and ids are compared, and examples of one client with the same label,
  next to each other, 32 and 500 apart. One seed for all clients passes every test of single
  reports and agrees always. Draws that repeat at other distances are not found.

  Args:
    report: The mechanism.
    mechanism: What it is declared to be.
    trials: Examples of each client.
    alpha: Probability of failing independent reports, at most.

  Returns:
    `value` is the agreement rate least like that of independent reports, `claim` theirs,
    a^2 + (K - 1) b^2. `NO_EVIDENCE` if not even equal reports throughout would have been noticed.

  Raises:
    ValueError: If an argument is out of range.
  """
  _check(alpha, trials=trials)
  if not trials:
    return _nothing('no trials')
  num_classes, ids = mechanism.num_classes, np.arange(trials)
  names, equal = [], []
  clients = {
      client: _ask(report, num_classes, ids % num_classes, ids, client)
      for client in sorted({c for pair in _CLIENT_PAIRS for c in pair})
  }
  for first, second in _CLIENT_PAIRS:
    names.append(f'reports of clients {first} and {second}')
    equal.append(clients[first] == clients[second])
  reports = _ask(report, num_classes, np.zeros(trials, np.int64), ids, _CLIENTS)
  for lag in _LAGS:
    # Disjoint pairs: no report is used twice, so the number that agree is binomial.
    blocks = reports[: trials // (2 * lag) * 2 * lag].reshape(-1, 2, lag)
    if len(blocks):
      names.append(f'reports of examples {lag} apart')
      equal.append((blocks[:, 0] == blocks[:, 1]).ravel())
  return _agreement_verdict(
      names,
      np.array([int(e.sum()) for e in equal]),
      np.array([len(e) for e in equal]),
      agreement(mechanism),
      alpha,
  )


@_finding('memoisation')
def memoisation(
    report: Mechanism,
    mechanism: mechanism_lib.RandomizedResponse,
    trials: int,
    alpha: float,
    declared_memoised: bool,
) -> Finding:
  """Tests that an example asked again gives the same report, or a fresh one, as declared.

  Fresh reports that count as one release cost epsilon each time unnoticed; memoised ones that count
  as fresh keep their error however often they are averaged.

  Args:
    report: The mechanism.
    mechanism: What it is declared to be.
    trials: Examples that are asked twice, and, if memoised, every other one of them a third time,
      in another order.
    alpha: Probability of failing fresh reports that are declared so; memoised ones never fail.
    declared_memoised: Whether reports are declared to be the same each time.

  Returns:
    `value` is the share of reports that agree with the first; `claim` is 1 if declared memoised,
    otherwise a^2 + (K - 1) b^2. `NO_EVIDENCE` if the opposite would not have been noticed.

  Raises:
    ValueError: If an argument is out of range.
  """
  _check(alpha, trials=trials)
  if not trials:
    return _nothing('no trials')
  num_classes, ids = mechanism.num_classes, np.arange(trials)
  ask = functools.partial(_ask, report, num_classes)
  labels, expected = ids % num_classes, agreement(mechanism)
  first, again = ask(labels, ids, 0), ask(labels, ids, 0)
  if not declared_memoised:
    counts = np.array([int((first == again).sum())]), np.array([trials])
    return _agreement_verdict(['reports of an example asked twice'], *counts, expected, alpha)
  fewer = ids[::-2]
  same = np.concatenate([first == again, first[fewer] == ask(labels[fewer], fewer, 0)])
  rate, detail = float(same.mean()), f'{int(same.sum())} of {len(same)} repeated reports agree'
  if not same.all():
    return Verdict.FAILED, detail, rate, 1.0
  if expected**trials > alpha:
    return Verdict.NO_EVIDENCE, f'too few to tell from fresh reports; {detail}', rate, 1.0
  return Verdict.PASSED, detail, rate, 1.0


def _present(num_classes: int) -> tuple[tuple[int, ...], ...]:
  """Returns the sets of classes that clients of `support` hold: one, two, half, all but one."""
  every = tuple(range(num_classes))
  sets = (every[:1], every[-1:], every[:2], every[: num_classes // 2], every[1:])
  return tuple(dict.fromkeys(s for s in sets if len(s) < num_classes))


@_finding('support')
def support(
    report: Mechanism, mechanism: mechanism_lib.RandomizedResponse, trials: int, alpha: float
) -> Finding:
  """Tests that a client reports classes it does not hold as often as declared.

  Flips within the classes at hand give a matrix that looks right where a client holds all classes,
  and tell for certain which classes a client holds.

  Args:
    report: The mechanism.
    mechanism: What it is declared to be.
    trials: Reports for each set of classes.
    alpha: Probability of failing the declared mechanism, at most.

  Returns:
    `value` is the rate of an absent class least like the declared one, `claim` that one, b.
    `NO_EVIDENCE` if not even an absent class never reported would have been noticed.

  Raises:
    ValueError: If an argument is out of range.
  """
  _check(alpha, trials=trials)
  if not trials:
    return _nothing('no trials')
  num_classes, other = mechanism.num_classes, mechanism.other_probability
  rows = []
  for present in _present(num_classes):
    labels = np.resize(present, trials)
    counts = np.bincount(_ask_clients(report, num_classes, labels), minlength=num_classes)
    rows += [(len(present), k, int(counts[k])) for k in range(num_classes) if k not in present]
  p_values = len(rows) * _two_sided(np.array([count for *_, count in rows]), trials, other)
  held, absent, count = rows[int(p_values.argmin())]
  detail = (
      f'clients with {held} of {num_classes} classes reported class {absent}, which they do not '
      f'hold, in {count} of {trials}, declared {other:.4g}'
  )
  rate = count / trials
  if p_values.min() <= alpha:
    # Unless it is never reported at all, which `transition` finds.
    leak = '; if only those who hold it report it, epsilon is infinite' if count == 0 else ''
    return Verdict.FAILED, detail + leak, rate, other
  if len(rows) * _two_sided(0, trials, other) > alpha:
    return Verdict.NO_EVIDENCE, f'too few reports to miss a class; {detail}', rate, other
  return Verdict.PASSED, detail, rate, other


def audit(
    report: Mechanism,
    mechanism: mechanism_lib.RandomizedResponse,
    *,
    trials: int = 20_000,
    alpha: float = 1e-6,
    declared_memoised: bool = True,
    seed: int = 0,
) -> tuple[Finding, ...]:
  """Runs every test of a mechanism against what it is declared to be.

  The level is split evenly over the tests, and by each test over its comparisons (Bonferroni): a
  mechanism that is as declared fails any of them with probability alpha at most. That is exact but
  for the chi-square half of `transition`, and it is the chance of the mechanism's own draws: with
  one key, the same audit gives the same findings.

  The transition matrix gets 3 * trials reports of each label, fewer above 33 classes, where the
  whole is kept to 2 million: a second of `mechanism.flip`.

  Args:
    report: The mechanism as it runs. It is asked about clients 0 to 4 and 1000 and about ids from 0
      on: give it a key that no real report uses.
    mechanism: What it is declared to be, the claimed epsilon and the table.
    trials: Reports for each world, client, or set of classes; 0 gives `NO_EVIDENCE` throughout.
    alpha: Probability of any false alarm, in (0, 1).
    declared_memoised: Whether an example asked again is declared to give the same report.
    seed: Of the random labels of `one_run`.

  Returns:
    The findings of `two_worlds`, `one_run`, `transition`, `support`, `independence` and
    `memoisation`. None of them certifies anything.

  Raises:
    ValueError: If trials or alpha is out of range, or the mechanism's epsilon is not a number.
  """
  _check(alpha, trials=trials)
  num_classes, matrix = mechanism.num_classes, mechanism.transition_matrix()
  # As written, not that of the table: a table may be wrong.
  try:
    claim = float(decimal.Decimal(mechanism.epsilon))
  except decimal.InvalidOperation as e:
    raise ValueError(f'expected a decimal epsilon, got {mechanism.epsilon!r}') from e
  level = alpha / 6
  per_row = min(3 * trials, _TRANSITION_REPORTS // num_classes)
  return (
      two_worlds(report, num_classes, claim, trials, level),
      one_run(report, num_classes, claim, trials, level, seed),
      transition(report, matrix, per_row, level),
      support(report, mechanism, trials, level),
      independence(report, mechanism, trials, level),
      memoisation(report, mechanism, trials, level, declared_memoised),
  )
