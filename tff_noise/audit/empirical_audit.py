"""An audit of a label-flipping mechanism as it really runs: ask it often, and count.

The proof of randomised response is about a formula. What runs is a program, and programs flip with
the wrong probability, only within the classes a client holds, or with one seed for all clients.
Here the program is a black box, `Mechanism`, and every test is a statistical one with an exact
false-alarm rate, but for chi-square, whose distribution is a limit.

* Lower bounds of epsilon: the two-world game with Clopper-Pearson intervals (as Jagielski et al.
  2020), and one run with many random labels (Steinke, Nasr, Jagielski 2023). A bound above the
  claim refutes the claim. They see too little noise, never too much.
* Agreement with what is declared: the rate at which labels are kept over all reports, the
  transition matrix, flips beyond the classes a client holds, the reports of any part of the
  questions (`scan`), independence between clients and examples (`shared_draws`), and whether asking
  again gives the same report.

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
from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats

from tff_noise import rng
from tff_noise.audit import black_box
from tff_noise.audit import queries
from tff_noise.audit import scan as scan_lib
from tff_noise.audit import shared_draws
from tff_noise.privacy import mechanism as mechanism_lib

Mechanism = black_box.Mechanism
Verdict = black_box.Verdict
Finding = black_box.Finding
agreement = shared_draws.agreement

# Samples of one test come from several clients, so that the draws of one do not decide it.
_CLIENTS = 16
# The tail of chi-square is a good approximation only far from the discreteness of the counts.
_CHI_SQUARE_EXPECTED = 1000
# Examples that are asked about again, of each size of calls, for each of `trials`.
_AGAIN = 60
# Of the level of an audit: the share of `keep_rate`, which has the most to find.
KEEP_RATE_SHARE = 0.25


def _check_claim(num_classes: int, claim: float) -> None:
  _check_classes(num_classes)
  if not 0 <= claim < math.inf:
    raise ValueError(f'claim must be a finite epsilon of at least 0, got {claim!r}')


def _check_classes(num_classes: int) -> None:
  if not isinstance(num_classes, (int, np.integer)) or num_classes < 2:
    raise ValueError(f'num_classes must be a whole number of at least 2, got {num_classes!r}')


def _draw(seed: int, test: str) -> np.random.Generator:
  return rng.generator(seed, f'empirical audit: {test}')


def _ask_clients(
    report: Mechanism, num_classes: int, labels: np.ndarray, examples: queries.Examples
) -> np.ndarray:
  """Returns the reports of `labels`, which are split over clients and have ids of their own."""
  reports = []
  for part in np.array_split(labels, _CLIENTS):
    if len(part):
      client, ids = examples.ids(len(part))
      reports.append(black_box.ask(report, num_classes, part, ids, client))
  return np.concatenate(reports)


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
  black_box.check(
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
  black_box.check(alpha, guesses=guesses, correct=correct, examples=examples)
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
  """Returns pairs of labels that `two_worlds` tells apart, at the ends and in the middle."""
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


@black_box.finding('two worlds')
def two_worlds(
    report: Mechanism,
    num_classes: int,
    claim: float,
    trials: int,
    alpha: float,
    pairs: Sequence[tuple[int, int]] | None = None,
    seed: int = 0,
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
    pairs: Pairs (y, y') of different labels; those of `label_pairs` and a random one if None.
    seed: The auditor's: whom it asks about which examples.

  Returns:
    `value` is the largest lower bound of epsilon, `claim` the claimed epsilon. `NO_EVIDENCE` if not
    even labels reported as they are would have refuted the claim.

  Raises:
    ValueError: If an argument is out of range.
  """
  black_box.check(alpha, trials=trials)
  _check_claim(num_classes, claim)
  draw = _draw(seed, 'two worlds')
  if pairs is None:
    pairs = (*label_pairs(num_classes), tuple(draw.permutation(num_classes)[:2].tolist()))
  pairs = tuple(pairs)
  if any(y == z or not (0 <= y < num_classes and 0 <= z < num_classes) for y, z in pairs):
    raise ValueError(f'pairs must be of different labels in 0 to {num_classes - 1}, got {pairs}')
  if not pairs or not trials:
    return black_box.nothing('no trials')
  level = alpha / sum(2 * len(_events(y, z, num_classes)) for y, z in pairs)
  bounds, examples = [], queries.Examples(draw)
  for y, z in pairs:
    worlds = [
        _ask_clients(report, num_classes, np.full(trials, label), examples) for label in (y, z)
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


@black_box.finding('one run')
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
    seed: The auditor's: random labels, whom it asks about which examples.

  Returns:
    `value` is the lower bound of epsilon, `claim` the claimed epsilon. `NO_EVIDENCE` if nothing
    could be guessed or not even correct guesses of all examples would have refuted the claim.

  Raises:
    ValueError: If an argument is out of range.
  """
  black_box.check(alpha, examples=examples)
  _check_claim(num_classes, claim)
  if not examples:
    return black_box.nothing('no examples')
  first = np.arange(examples) % num_classes
  second = (first + 1) % num_classes
  draw = _draw(seed, 'one run')
  labels = np.where(draw.integers(0, 2, examples), second, first)
  client, ids = queries.Examples(draw).ids(examples)
  reports = black_box.ask(report, num_classes, labels, ids, client)
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
  black_box.check(alpha)
  matrix, counts = _check_matrix(matrix), np.asarray(counts)
  if (
      counts.shape != matrix.shape
      or not np.issubdtype(counts.dtype, np.integer)
      or (counts < 0).any()
  ):
    raise ValueError(f'expected whole counts of shape {matrix.shape}, found {counts}')
  seen = np.flatnonzero(counts.sum(axis=1))
  if not len(seen):
    return black_box.nothing('no reports')
  counts, matrix = counts[seen], matrix[seen]
  totals = counts.sum(axis=1, keepdims=True)
  cells = 2 * counts.size * black_box.two_sided(counts, totals, matrix)
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


@black_box.finding('transition')
def transition(
    report: Mechanism, matrix: np.ndarray, per_row: int, alpha: float, seed: int = 0
) -> Finding:
  """Holds the reports of every label against the declared matrix: `goodness_of_fit`.

  Every client that is asked holds all classes.

  Args:
    report: The mechanism.
    matrix: float `[K, K]`, the declared matrix.
    per_row: Reports of each label; 60 000 see an epsilon of .9 or .7 for .81 and 10 classes.
    alpha: Probability of failing a mechanism with this matrix.
    seed: The auditor's: whom it asks about which examples.

  Returns:
    `value`, `claim` and `NO_EVIDENCE` as of `goodness_of_fit`.

  Raises:
    ValueError: If an argument is out of range.
  """
  black_box.check(alpha, per_row=per_row)
  num_classes = len(_check_matrix(matrix))
  if not per_row:
    return black_box.nothing('no reports')
  labels = np.arange(per_row * num_classes) % num_classes
  reports = _ask_clients(report, num_classes, labels, queries.Examples(_draw(seed, 'transition')))
  counts = np.bincount(labels * num_classes + reports, minlength=num_classes**2)
  return _goodness_of_fit(counts.reshape(num_classes, num_classes), matrix, alpha)


def _counts(answers: Sequence[queries.Answer], num_classes: int) -> np.ndarray:
  """Returns int64 `[K, K]`, the reports (columns) of each label (rows)."""
  labels, reports = (
      np.concatenate([getattr(answer, name) for answer in answers]).astype(np.int64)
      for name in ('labels', 'reports')
  )
  return np.bincount(labels * num_classes + reports, minlength=num_classes**2).reshape(
      num_classes, num_classes
  )


@black_box.finding('keep rate')
def keep_rate(counts: np.ndarray, mechanism: mechanism_lib.RandomizedResponse, alpha: float):
  """Holds the rate at which labels are kept, over all of them, against the declared one.

  One exact binomial test of the whole diagonal: of all tests of so many reports, the one that sees
  the smallest error of epsilon; `power` says which.

  Args:
    counts: int `[K, K]`, reports (columns) of each label (rows).
    mechanism: What is declared.
    alpha: Probability of failing the declared mechanism, at most.

  Returns:
    `value` is the rate, `claim` the declared one. `NO_EVIDENCE` if keeping every label would not
    have been noticed.

  Raises:
    ValueError: If alpha is out of range.
  """
  black_box.check(alpha)
  kept, total = int(np.trace(counts)), int(counts.sum())
  if not total:
    return black_box.nothing('no reports')
  claim = mechanism.keep_probability
  p_value = float(black_box.two_sided(kept, total, claim))
  detail = (
      f'{kept} of {total} labels were kept ({kept / total:.6f}), declared {claim:.6f}; '
      f'p-value {p_value:.3g}'
  )
  if p_value <= alpha:
    return Verdict.FAILED, detail, kept / total, claim
  if black_box.two_sided(total, total, claim) > alpha:
    detail = f'too few reports to notice missing noise; {detail}'
    return Verdict.NO_EVIDENCE, detail, kept / total, claim
  return Verdict.PASSED, detail, kept / total, claim


@black_box.finding('independence')
def independence(
    report: Mechanism,
    mechanism: mechanism_lib.RandomizedResponse,
    trials: int,
    alpha: float,
    seed: int = 0,
) -> Finding:
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
  draws = {name: _draw(seed, name) for name in ('clients', 'distances', 'repeats')}
  level = alpha / len(draws)
  looks = (
      shared_draws.clients(report, mechanism, trials, draws['clients']),
      shared_draws.distances(report, mechanism, trials, draws['distances']),
      shared_draws.repeats(report, mechanism, trials, level, draws['repeats']),
  )
  worst = min(looks, key=lambda look: look.log_p)
  claim = agreement(mechanism)
  if worst.log_p <= math.log(level):
    return Verdict.FAILED, worst.detail, worst.rate, claim
  if max(look.sees for look in looks[:2]) > math.log(level):
    detail = f'too few pairs to notice equal reports; {worst.detail}'
    return Verdict.NO_EVIDENCE, detail, worst.rate, claim
  return Verdict.PASSED, worst.detail, worst.rate, claim


@black_box.finding('memoisation')
def memoisation(
    report: Mechanism,
    mechanism: mechanism_lib.RandomizedResponse,
    trials: int,
    alpha: float,
    declared_memoised: bool,
    seed: int = 0,
    answers: Sequence[queries.Answer] | None = None,
) -> Finding:
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
  draw, num_classes, expected = _draw(seed, 'again'), mechanism.num_classes, agreement(mechanism)
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


def _present(num_classes: int, draw: np.random.Generator) -> tuple[tuple[int, ...], ...]:
  """Returns the sets of classes that clients of `support` hold: one, two, half, all but one."""
  every = tuple(range(num_classes))
  mixed = draw.permutation(num_classes)
  sets = (every[:1], every[-1:], every[:2], every[: num_classes // 2], every[1:], *(
      tuple(sorted(mixed[:size].tolist())) for size in (1, 2, num_classes // 2, num_classes - 1)
  ))
  return tuple(dict.fromkeys(s for s in sets if len(s) < num_classes))


@black_box.finding('support')
def support(
    report: Mechanism,
    mechanism: mechanism_lib.RandomizedResponse,
    trials: int,
    alpha: float,
    seed: int = 0,
) -> Finding:
  """Tests that a client reports classes it does not hold as often as declared.

  Flips within the classes at hand give a matrix that looks right where a client holds all classes,
  and tell for certain which classes a client holds.

  Args:
    report: The mechanism.
    mechanism: What it is declared to be.
    trials: Reports for each set of classes.
    alpha: Probability of failing the declared mechanism, at most.
    seed: The auditor's: which classes, whom it asks about which examples.

  Returns:
    `value` is the rate of an absent class least like the declared one, `claim` that one, b.
    `NO_EVIDENCE` if not even an absent class never reported would have been noticed.

  Raises:
    ValueError: If an argument is out of range.
  """
  black_box.check(alpha, trials=trials)
  if not trials:
    return black_box.nothing('no trials')
  num_classes, other = mechanism.num_classes, mechanism.other_probability
  rows, draw = [], _draw(seed, 'support')
  examples = queries.Examples(draw)
  for present in _present(num_classes, draw):
    reports = _ask_clients(report, num_classes, np.resize(present, trials), examples)
    counts = np.bincount(reports, minlength=num_classes)
    rows += [(len(present), k, int(counts[k])) for k in range(num_classes) if k not in present]
  p_values = len(rows) * black_box.two_sided(np.array([count for *_, count in rows]), trials, other)
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
  if len(rows) * black_box.two_sided(0, trials, other) > alpha:
    return Verdict.NO_EVIDENCE, f'too few reports to miss a class; {detail}', rate, other
  return Verdict.PASSED, detail, rate, other


def new_seed() -> int:
  """Returns a seed for an auditor from the system's randomness, in `[0, 2**63)`."""
  return secrets.randbits(63)


def audit(
    report: Mechanism,
    mechanism: mechanism_lib.RandomizedResponse,
    *,
    trials: int = 20_000,
    alpha: float = 1e-6,
    declared_memoised: bool = True,
    seed: int | None = None,
) -> tuple[Finding, ...]:
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
      two_worlds(report, num_classes, claim, trials, level, seed=seed),
      one_run(report, num_classes, claim, trials, level, seed),
      of_record['keep rate'],
      of_record['transition'],
      support(report, mechanism, trials, level, seed),
      of_record['scan'],
      independence(report, mechanism, trials, level, seed),
      of_record['memoisation'],
  )


def _of_record(report, mechanism, trials, alpha, level, declared_memoised, seed):
  """Returns the findings about the many reports of `queries.record`, by name."""
  num_classes = mechanism.num_classes
  try:
    answers = queries.record(
        report, queries.Examples(_draw(seed, 'record')), num_classes, trials
    )
  except black_box.NoAnswer as e:
    names = ('keep rate', 'transition', 'scan', 'memoisation')
    return {n: Finding(n, Verdict.FAILED, str(e), math.nan, math.nan) for n in names}
  if answers:
    counts = _counts(answers, num_classes)
  else:
    counts = np.zeros((num_classes, num_classes), np.int64)
  findings = (
      keep_rate(counts, mechanism, alpha * KEEP_RATE_SHARE),
      goodness_of_fit(counts, mechanism.transition_matrix(), level),
      scan_lib.scan(answers, counts, mechanism, trials, level, _draw(seed, 'scan')),
      memoisation(
          report, mechanism, trials, level, declared_memoised, seed=seed, answers=answers
      ),
  )
  return {finding.name: finding for finding in findings}
