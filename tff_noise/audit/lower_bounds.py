"""Lower bounds of the epsilon of a mechanism that is asked: above its claim they refute it.

The two-world game with Clopper-Pearson intervals (as Jagielski et al. 2020), and one run with many
random labels (Steinke, Nasr, Jagielski 2023). They see too little noise, never too much.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats

from tff_noise.audit import black_box
from tff_noise.audit import queries
from tff_noise.privacy import rounding

Verdict = black_box.Verdict


def _check_claim(num_classes: int, claim: float) -> None:
  if not isinstance(num_classes, (int, np.integer)) or num_classes < 2:
    raise ValueError(f'num_classes must be a whole number of at least 2, got {num_classes!r}')
  if not 0 <= claim < math.inf:
    raise ValueError(f'claim must be a finite epsilon of at least 0, got {claim!r}')


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


@black_box.finding('two worlds')
def two_worlds(
    report: black_box.Mechanism,
    num_classes: int,
    claim: float,
    trials: int,
    alpha: float,
    pairs: Sequence[tuple[int, int]] | None = None,
    seed: int = 0,
) -> black_box.Finding:
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
  draw = queries.draws_of(seed, 'two worlds')
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
        queries.ask_clients(report, num_classes, np.full(trials, label), examples)
        for label in (y, z)
    ]
    for name, event in _events(y, z, num_classes):
      here, there = (int(event(reports).sum()) for reports in worlds)
      for label, one, other, zero in ((y, here, z, there), (z, there, y, here)):
        bounds.append((
            epsilon_lower_bound(one, trials, zero, trials, level),
            f'{name} for label {label}: {one} of {trials}, for label {other}: {zero}',
        ))
  bound, detail = max(bounds, key=lambda b: b[0])
  detail = f'{detail}; epsilon is at least {rounding.down(bound)}, claimed {claim:.4g}'
  if bound > claim:
    return Verdict.FAILED, detail, bound, claim
  if epsilon_lower_bound(trials, trials, 0, trials, level) <= claim:
    return Verdict.NO_EVIDENCE, f'{trials} trials cannot refute epsilon {claim:.4g}', bound, claim
  return Verdict.PASSED, detail, bound, claim


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


@black_box.finding('one run')
def one_run(
    report: black_box.Mechanism,
    num_classes: int,
    claim: float,
    examples: int,
    alpha: float,
    seed: int = 0,
) -> black_box.Finding:
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
  draw = queries.draws_of(seed, 'one run')
  labels = np.where(draw.integers(0, 2, examples), second, first)
  client, ids = queries.Examples(draw).ids(examples)
  reports = black_box.ask(report, num_classes, labels, ids, client)
  guesses = int(((reports == first) | (reports == second)).sum())
  correct = int((reports == labels).sum())
  bound = one_run_lower_bound(guesses, correct, alpha)
  detail = (
      f'{correct} of {guesses} guesses correct; '
      f'epsilon is at least {rounding.down(bound)}, claimed {claim:.4g}'
  )
  if bound > claim:
    return Verdict.FAILED, detail, bound, claim
  if not guesses or one_run_lower_bound(examples, examples, alpha) <= claim:
    return Verdict.NO_EVIDENCE, f'{examples} examples cannot refute the claim', bound, claim
  return Verdict.PASSED, detail, bound, claim
