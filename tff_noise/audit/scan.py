"""Whether a mechanism misbehaves anywhere: for some clients, ids, calls, positions, company.

Under randomised response the shift of a report, (report - label) mod K, is independent of
everything that the auditor chose. So the reports are sorted into cells by features of the
questions, and the shifts of each cell are held against the declared probabilities. Cells are fixed
by the questions alone, before any report is seen: the level is split over all of them.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tff_noise.audit import black_box
from tff_noise.audit import queries
from tff_noise.privacy import mechanism as mechanism_lib

# Reports that are sorted by every feature, and by remainders of ids, for each of `trials`.
_REPORTS, _REMAINDER_REPORTS = 15, 10
# Small calls among them, for each of `trials`, and what is small.
_SMALL_CALLS, _SMALL = 0.5, 3
# Halvings of an order; remainders of ids up to this, and larger ones; random parities.
_HALVINGS, _MODULI, _LARGE_MODULI, _PARITIES = 8, 1025, (1234, 2000, 2048, 4096, 5000, 10_000), 16
# Cells that are sorted by label too, classes whose shifts are told apart.
_CROSSED, _SHIFTS = 64, 32


class Feature(NamedTuple):
  """Cells of reports.

  Attributes:
    name: What they have in common, with `{}` for the number of the cell, or two of them for its row
      and column.
    cells: int `[n]`, the cell of each report, from 0.
    columns: Cells of a row; 0 if they are in no rows.
  """

  name: str
  cells: np.ndarray
  columns: int = 0

  def of(self, cell: int) -> str:
    """Returns the name of a cell."""
    return self.name.format(*(divmod(cell, self.columns) if self.columns else (cell,)))

  def times(self, other: 'Feature') -> 'Feature':
    """Returns the cells of pairs; neither feature is one of pairs."""
    columns = int(other.cells.max()) + 1
    return Feature(
        f'{self.name}, {other.name}', self.cells * columns + other.cells, columns
    )


class Worst(NamedTuple):
  """The cell that is least like declared.

  Attributes:
    log_p: The logarithm of its p-value, not yet multiplied by the number of tests.
    tests: How many tests there were.
    detail: What was seen.
    rate: The share of the shift.
    expected: What is declared.
    largest: Reports of the largest cell.
  """

  log_p: float
  tests: int
  detail: str
  rate: float
  expected: float
  largest: int


class _Table(NamedTuple):
  """Reports and what they were asked with, `[n]` each: int64 `ids`, int32 all others."""

  labels: np.ndarray
  shifts: np.ndarray
  ids: np.ndarray
  clients: np.ndarray
  calls: np.ndarray
  positions: np.ndarray
  sizes: np.ndarray
  before: np.ndarray
  after: np.ndarray
  first: np.ndarray

  def sample(self, draw, size):
    if size >= len(self.labels):
      return self
    chosen = np.sort(draw.choice(len(self.labels), size, replace=False))
    return _Table(*(column[chosen] for column in self))


def _table(draw, answers, num_classes, trials):
  """Returns the table of a part of the reports: some of every large call, some small calls."""
  sizes = np.array([len(a.ids) for a in answers])
  small, large = np.flatnonzero(sizes <= _SMALL), np.flatnonzero(sizes > _SMALL)
  small = draw.permutation(small)[: int(np.ceil(_SMALL_CALLS * trials))]
  share = min(1.0, _REPORTS * trials / max(1, sizes[large].sum()))
  columns = []
  for call in np.sort(np.append(small, large)).tolist():
    answer, size = answers[call], sizes[call]
    at = np.arange(size)
    # Those at both ends too: positions are odd there, if anywhere.
    if size > 64 and share < 1:
      some = draw.integers(size, size=int(np.ceil(size * share)))
      at = np.unique(np.concatenate([at[:4], some, at[-4:]]))
    labels = answer.labels
    columns.append((
        labels[at], (answer.reports[at].astype(np.int32) - labels[at]) % num_classes,
        answer.ids[at], np.full(len(at), answer.client), np.full(len(at), call), at,
        np.full(len(at), size), labels[at - 1], labels[(at + 1) % size],
        np.full(len(at), labels[0]),
    ))
  joined = [np.concatenate(column) for column in zip(*columns, strict=True)]
  # Ids alone need 64 bits.
  table = _Table(*(column.astype(np.int32) for column in joined))
  return table._replace(ids=joined[_Table._fields.index('ids')].astype(np.int64))


def _ordered(name, values) -> Iterator[Feature]:
  """Yields the halves, quarters, ... of an order, equal values together."""
  _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
  # The middle of the ranks of each value, in [0, 1).
  ranks = ((np.cumsum(counts) - counts / 2) / len(values))[inverse]
  for halving in range(1, _HALVINGS + 1):
    yield Feature(f'{name}: part {{}} of {2**halving} in order', (ranks * 2**halving).astype(int))


def _coarse(table: _Table) -> list[Feature]:
  """Returns features of few cells, which are looked at in pairs too."""
  def magnitude(values):
    return np.floor(np.log2(values.astype(np.float64) + 1)).astype(int)

  return [
      Feature('label {}', table.labels),
      Feature('clients of magnitude 2^{}', magnitude(table.clients)),
      Feature('ids of magnitude 2^{}', magnitude(table.ids)),
      Feature('positions of magnitude 2^{}', magnitude(table.positions)),
      Feature('calls of a size of magnitude 2^{}', magnitude(table.sizes)),
      Feature('sixteenth {} of all calls', table.calls * 16 // (table.calls.max() + 1)),
      Feature('the label before was {}', table.before),
      Feature('the next label was {}', table.after),
      Feature("the call's first label was {}", table.first),
      Feature('ids with the last two bits {}', table.ids & 3),
      Feature('clients with the last two bits {}', table.clients & 3),
      Feature('positions with the last two bits {}', table.positions & 3),
  ]


def _features(draw, table: _Table) -> Iterator[Feature]:
  for name, values in (
      ('clients', table.clients), ('ids', table.ids), ('calls', table.calls),
      ('positions', table.positions), ('sizes of calls', table.sizes),
      ('places from the end', table.sizes - table.positions),
  ):
    yield from _ordered(name, values)
  for name, values, bits in (
      ('ids', table.ids, 63), ('clients', table.clients, 31), ('positions', table.positions, 17),
      ('calls', table.calls, 17),
  ):
    for bit in range(bits):
      yield Feature(f'{name} with bit {bit} {{}}', values >> bit & 1)
    for _ in range(_PARITIES):
      mask = int(draw.integers(1, 2**bits))
      yield Feature(f'{name} with parity {{}} under {mask:#x}', _parity(values & mask))
  for modulus in range(2, 130):
    yield Feature(f'clients {{}} mod {modulus}', table.clients % modulus)
    yield Feature(f'positions {{}} mod {modulus}', table.positions % modulus)
    yield Feature(f'calls {{}} mod {modulus}', table.calls % modulus)
  _, clients = np.unique(table.clients, return_inverse=True)
  yield Feature('client number {} of those asked', clients)
  yield Feature('call {}', table.calls)
  yield Feature('position {}', np.minimum(table.positions, 4096))


def _parity(values):
  # To the lowest bit, from however many there are.
  for shift in (32, 16, 8, 4, 2, 1):
    if shift < 8 * values.itemsize:
      values = values ^ values >> shift
  return values & 1


def _remainders(table: _Table) -> Iterator[Feature]:
  for modulus in (*range(2, _MODULI), *_LARGE_MODULI):
    yield Feature(f'ids {{}} mod {modulus}', table.ids % modulus)


def _pairs(features: Sequence[Feature]) -> Iterator[Feature]:
  for i, one in enumerate(features):
    for other in features[:i]:
      yield one.times(other)


def _crossed(features, labels, num_classes):
  """Yields the features, those of few cells by label too."""
  for feature in features:
    yield feature
    if int(feature.cells.max()) < _CROSSED and num_classes <= _SHIFTS:
      yield feature.times(Feature('label {}', labels))


def _worst_of(features, shifts, probabilities) -> Worst:
  """Returns the worst of all cells of some features."""
  num_classes = len(probabilities)
  # With many classes only whether a label was kept.
  kept_only = num_classes > _SHIFTS
  if kept_only:
    shifts, probabilities = (shifts > 0).astype(np.int64), np.array(
        [probabilities[0], 1 - probabilities[0]]
    )
  width = len(probabilities)
  worst, tests, largest = None, 0, 0
  for feature in features:
    counts = np.bincount(feature.cells * width + shifts)
    counts = np.resize(np.append(counts, np.zeros(-len(counts) % width, counts.dtype)), (
        -(-len(counts) // width), width
    ))
    cells = np.flatnonzero(counts.any(axis=1))
    counts = counts[cells]
    totals = counts.sum(axis=1, keepdims=True)
    log_p = black_box.log_two_sided_bound(counts, totals, probabilities)
    tests += log_p.size
    largest = max(largest, int(totals.max()))
    if worst is None or log_p.min() < worst[0]:
      row, shift = np.unravel_index(log_p.argmin(), log_p.shape)
      count, total = int(counts[row, shift]), int(totals[row, 0])
      what = 'kept their label' if shift == 0 else (
          'changed it' if kept_only else f'are {shift} past their label, modulo {num_classes}'
      )
      detail = (
          f'{feature.of(int(cells[row]))}: {count} of {total} reports {what}; declared '
          f'{probabilities[shift]:.4g}'
      )
      worst = float(log_p.min()), detail, count / total, float(probabilities[shift])
  log_p, detail, rate, expected = worst
  return Worst(log_p, tests, detail, rate, expected, largest)


def _pooled(counts: np.ndarray, probabilities: np.ndarray) -> Worst:
  """Returns the worst of shifts and of reports other than the label, over all reports."""
  num_classes, other = len(counts), probabilities[1]
  rows, total = np.arange(num_classes), int(counts.sum())
  tests = []
  for shift in range(1, num_classes):
    kind = f'{shift} past their label, modulo {num_classes}'
    tests.append((kind, int(counts[rows, (rows + shift) % num_classes].sum()), total))
  for k in range(num_classes):
    others = np.delete(counts, k, axis=0)
    tests.append((f'{k} where the label is another', int(others[:, k].sum()), int(others.sum())))
  names, agreed, totals = zip(*[test for test in tests if test[2]], strict=True)
  log_p = black_box.log_two_sided_bound(agreed, totals, other)
  worst = int(log_p.argmin())
  detail = (
      f'all: {agreed[worst]} of {totals[worst]} reports are {names[worst]}; declared {other:.4g}'
  )
  return Worst(
      float(log_p[worst]), len(names), detail, agreed[worst] / totals[worst], float(other), total
  )


@black_box.finding('scan')
def scan(
    answers: Sequence[queries.Answer],
    counts: np.ndarray,
    mechanism: mechanism_lib.RandomizedResponse,
    trials: int,
    alpha: float,
    draw: np.random.Generator,
) -> black_box.Found:
  """Tests that reports are as declared in every cell of many features of the questions.

  Features are clients, ids, calls, positions and sizes by order, magnitude, bits, random parities
  and remainders, the labels in the same call, and pairs of the coarse ones. Over all reports those
  of one class and those at one distance from the label are counted.

  Args:
    answers: What was asked and answered; no client twice about an example.
    counts: int `[K, K]`, all reports (columns) of each label (rows).
    mechanism: What is declared.
    trials: The budget: about 15 times as many reports are sorted, 10 times as many by remainders
      of ids.
    alpha: Probability of failing the declared mechanism, at most.
    draw: The auditor's randomness.

  Returns:
    `value` is the share of the shift least like declared, `claim` the declared one. `NO_EVIDENCE`
    if no cell is large enough to notice that all its labels are kept.

  Raises:
    ValueError: If an argument is out of range.
  """
  black_box.check(alpha, trials=trials)
  if not answers:
    return black_box.nothing('no reports')
  num_classes = mechanism.num_classes
  table = _table(draw, answers, num_classes, trials)
  fewer = table.sample(draw, _REMAINDER_REPORTS * trials)
  probabilities = np.full(num_classes, mechanism.other_probability)
  probabilities[0] = mechanism.keep_probability
  coarse = _coarse(table)
  groups = (
      (_crossed([*coarse, *_features(draw, table)], table.labels, num_classes), table.shifts),
      (_pairs(coarse), table.shifts),
      (_remainders(fewer), fewer.shifts),
  )
  found = [_worst_of(features, shifts, probabilities) for features, shifts in groups]
  found.append(_pooled(counts, probabilities))
  # The level is split evenly over the groups, and in each over its tests.
  logs = [np.log(len(found) * w.tests) + w.log_p for w in found]
  worst = found[int(np.argmin(logs))]
  log_p = min(0.0, min(logs))
  tests = sum(w.tests for w in found)
  detail = f'{worst.detail}; p-value at most {np.exp(log_p):.3g} over {tests} cells'
  if log_p <= np.log(alpha):
    return black_box.Verdict.FAILED, detail, worst.rate, worst.expected
  largest = max(w.largest for w in found)
  all_kept = black_box.log_two_sided_bound(largest, largest, mechanism.keep_probability)
  if np.log(len(found) * max(w.tests for w in found)) + all_kept > np.log(alpha):
    detail = f'too few reports to notice missing noise; {detail}'
    return black_box.Verdict.NO_EVIDENCE, detail, worst.rate, worst.expected
  return black_box.Verdict.PASSED, detail, worst.rate, worst.expected
