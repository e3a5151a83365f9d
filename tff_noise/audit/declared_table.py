"""Whether reports come as often as a declared transition matrix says: no less and no more noise."""

import numpy as np
from scipy import stats

from tff_noise.audit import black_box
from tff_noise.audit import queries
from tff_noise.privacy import mechanism as mechanism_lib

Verdict = black_box.Verdict

# The tail of chi-square is a good approximation only far from the discreteness of the counts.
_CHI_SQUARE_EXPECTED = 1000


def goodness_of_fit(counts: np.ndarray, matrix: np.ndarray, alpha: float) -> black_box.Finding:
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
  return black_box.Finding('transition', *_goodness_of_fit(counts, matrix, alpha))


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


def _check_matrix(matrix: np.ndarray) -> np.ndarray:
  matrix = np.asarray(matrix, np.float64)
  if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) < 2:
    raise ValueError(f'expected a square transition matrix, found shape {matrix.shape}')
  # NaN is not at least 0.
  if not (matrix >= 0).all() or not np.allclose(matrix.sum(axis=1), 1, rtol=0, atol=1e-9):
    raise ValueError('rows of the transition matrix must be probabilities that sum to 1')
  return matrix


@black_box.finding('transition')
def transition(
    report: black_box.Mechanism, matrix: np.ndarray, per_row: int, alpha: float, seed: int = 0
) -> black_box.Finding:
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
  examples = queries.Examples(queries.draws_of(seed, 'transition'))
  reports = queries.ask_clients(report, num_classes, labels, examples)
  counts = np.bincount(labels * num_classes + reports, minlength=num_classes**2)
  return _goodness_of_fit(counts.reshape(num_classes, num_classes), matrix, alpha)


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


@black_box.finding('support')
def support(
    report: black_box.Mechanism,
    mechanism: mechanism_lib.RandomizedResponse,
    trials: int,
    alpha: float,
    seed: int = 0,
) -> black_box.Finding:
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
  rows, draw = [], queries.draws_of(seed, 'support')
  examples = queries.Examples(draw)
  for present in _present(num_classes, draw):
    reports = queries.ask_clients(report, num_classes, np.resize(present, trials), examples)
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


def _present(num_classes: int, draw: np.random.Generator) -> tuple[tuple[int, ...], ...]:
  """Returns the sets of classes that clients of `support` hold: one, two, half, all but one."""
  every = tuple(range(num_classes))
  mixed = draw.permutation(num_classes)
  sets = (every[:1], every[-1:], every[:2], every[: num_classes // 2], every[1:], *(
      tuple(sorted(mixed[:size].tolist())) for size in (1, 2, num_classes // 2, num_classes - 1)
  ))
  return tuple(dict.fromkeys(s for s in sets if len(s) < num_classes))
