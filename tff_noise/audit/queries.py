"""Whom an audit asks about which examples: drawn from the auditor's seed, without a fixed habit.

Clients and ids are of every magnitude, ids next to each other, at a stride or scattered, in order
or not, calls of one example and of many, labels of all classes or of some. In the middle many small
calls are made, so that what goes wrong after them is seen.

No client is asked twice about an example but on purpose: under the declared mechanism all reports
are independent.
"""

import collections
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tff_noise import rng
from tff_noise.audit import black_box

# Samples of one test come from several clients, so that the draws of one do not decide it.
_CLIENTS = 16
# Clients are below 2**CLIENT_BITS, ids below 2**62 and what a call spans.
CLIENT_BITS, _ID_BITS = 31, 62
# As many examples as the largest calls have, and small calls.
_LARGEST, _SMALLEST = 2**17, 3
# For each of `trials`: reports, small calls of one client, small calls of others.
REPORTS, _BUSY, _OTHERS = 600, 5.05, 0.5


class Call(NamedTuple):
  """A call.

  Attributes:
    client: Who is asked, in `[0, 2**31)`.
    ids: int64 `[n]`, distinct.
    labels: int8 or int32 `[n]`.
  """

  client: int
  ids: np.ndarray
  labels: np.ndarray


class Answer(NamedTuple):
  """A call and what was answered, `reports` as `labels`."""

  client: int
  ids: np.ndarray
  labels: np.ndarray
  reports: np.ndarray


class Examples:
  """Draws examples of which no client has one twice.

  Args:
    draw: The auditor's randomness.
  """

  def __init__(self, draw: np.random.Generator):
    self.draw = draw
    self._taken = collections.defaultdict(list)

  def client(self) -> int:
    """Returns a client: half of the time one of the first 128, else of any magnitude."""
    if self.draw.random() < 0.5:
      return int(self.draw.integers(128))
    return self._magnitude(CLIENT_BITS)

  def take(self, client: int, base: int, span: int) -> bool:
    """Takes a client's ids from `base` to `base + span`; False if some are taken or too large."""
    if base < 0 or base + span >= 2**63:
      return False
    taken = self._taken[client]
    if any(base <= last and first <= base + span for first, last in taken):
      return False
    taken.append((base, base + span))
    return True

  def place(self, span: int, client: int | None = None) -> tuple[int, int]:
    """Takes a place for ids that span so much: a client (unless given) and the first id."""
    while True:
      who = self.client() if client is None else client
      base = self._magnitude(_ID_BITS)
      if self.take(who, base, span):
        return who, base

  def ids(self, size: int, client: int | None = None) -> tuple[int, np.ndarray]:
    """Takes some ids, int64 `[size]`, next to each other, strided or scattered, in any order."""
    kind = self.draw.integers(3)
    offsets = np.arange(size, dtype=np.int64)
    if kind == 1:
      offsets *= self._magnitude(20) + 1
    elif kind == 2:
      offsets = np.cumsum(self.draw.integers(1, self._magnitude(30) + 2, size))
    who, base = self.place(int(offsets[-1]), client)
    if self.draw.random() < 0.5:
      self.draw.shuffle(offsets)
    return who, base + offsets

  def labels(self, size: int, num_classes: int) -> np.ndarray:
    """Returns labels of a call, int32 `[size]`: of all classes, of some, or of one."""
    kind = self.draw.integers(4)
    held = num_classes if kind < 2 else 1 if kind == 2 else self.draw.integers(1, num_classes + 1)
    classes = self.draw.permutation(num_classes)[:held].astype(np.int32)
    if kind == 0:
      return np.resize(classes, size)
    return classes[self.draw.integers(held, size=size)]

  def call(self, size: int, num_classes: int, client: int | None = None) -> Call:
    """Returns a call about so many examples."""
    return Call(*self.ids(size, client), self.labels(size, num_classes))

  def _magnitude(self, bits):
    return int(2 ** self.draw.uniform(0, bits)) - 1


def sizes(draw: np.random.Generator, reports: int) -> list[int]:
  """Returns sizes of calls, of any magnitude, that sum to `reports`."""
  largest = max(1, min(_LARGEST, reports // 8))
  found = []
  while reports:
    size = min(reports, int((largest + 1) ** draw.random()))
    found.append(size)
    reports -= size
  return found


def busy_calls(draw: np.random.Generator, trials: int) -> tuple[int, int]:
  """Returns how many small calls are about one client, and about others: 101,000 or more and
  10,000 or more for 20,000 trials.
  """
  return tuple(int(trials * n * draw.uniform(1, 1.1)) for n in (_BUSY, _OTHERS))


def _small_calls(examples: Examples, num_classes: int, trials: int) -> Iterator[Call]:
  """Yields the small calls, of one to three examples, of the busy client and of others."""
  busy, others = busy_calls(examples.draw, trials)
  total = busy + others
  if not total:
    return
  # One place for all: drawing one for each would take longer than the calls.
  busiest, base = examples.place(_SMALLEST * total)
  clients = [examples.place(_SMALLEST * total) for _ in range(64)] + [(busiest, base)]
  whose = np.full(total, 64)
  whose[examples.draw.choice(total, others, replace=False)] = examples.draw.integers(
      64, size=others
  )
  counts = examples.draw.integers(1, _SMALLEST + 1, total)
  labels = examples.draw.integers(num_classes, size=(total, _SMALLEST)).astype(np.int32)
  offsets = np.arange(_SMALLEST)
  for c, (who, count) in enumerate(zip(whose, counts, strict=True)):
    client, first = clients[who]
    yield Call(client, first + _SMALLEST * c + offsets[:count], labels[c, :count])


def _large_calls(examples: Examples, num_classes: int, reports: int) -> Iterator[Call]:
  for size in sizes(examples.draw, reports):
    yield examples.call(size, num_classes)


def _answer(report: black_box.Mechanism, num_classes: int, call: Call) -> Answer:
  reports = black_box.ask(report, num_classes, call.labels, call.ids, call.client)
  narrow = np.int8 if num_classes <= 127 else np.int32
  return Answer(call.client, call.ids, call.labels.astype(narrow), reports.astype(narrow))


def record(
    report: black_box.Mechanism, examples: Examples, num_classes: int, trials: int
) -> list[Answer]:
  """Asks the mechanism `REPORTS * trials` times, half before and half after many small calls.

  Args:
    report: The mechanism.
    examples: Where examples come from.
    num_classes: K.
    trials: The budget.

  Returns:
    What was answered, in the order of the calls.

  Raises:
    black_box.NoAnswer: If the mechanism does not answer.
  """
  half = REPORTS * trials // 2
  return [
      _answer(report, num_classes, call)
      for calls in (
          _large_calls(examples, num_classes, half),
          _small_calls(examples, num_classes, trials),
          _large_calls(examples, num_classes, REPORTS * trials - half),
      )
      for call in calls
  ]


def again(
    report: black_box.Mechanism,
    draw: np.random.Generator,
    num_classes: int,
    answers: Sequence[Answer],
    limit: int,
) -> tuple[int, int]:
  """Asks again about examples, in other company: of other calls, in another order, fewer or more.

  Args:
    report: The mechanism.
    draw: The auditor's randomness.
    num_classes: K.
    answers: What was answered.
    limit: Examples to ask about, of each size of calls, at most.

  Returns:
    How many reports agree with the first ones, of how many.

  Raises:
    black_box.NoAnswer: If the mechanism does not answer.
  """
  by_client = collections.defaultdict(list)
  for small in (True, False):
    left = limit
    for index in draw.permutation(len(answers)):
      size = len(answers[index].ids)
      if (size <= _SMALLEST) == small and left > 0:
        by_client[answers[index].client, small].append(answers[index])
        left -= size
  agreed = total = 0
  groups = list(by_client.values())
  for g in draw.permutation(len(groups)):
    for part in _regroup(draw, groups[g]):
      reports = black_box.ask(report, num_classes, part.labels, part.ids, part.client)
      agreed += int((reports == part.reports).sum())
      total += len(reports)
  return agreed, total


def _regroup(draw, group):
  """Yields the examples of a client's answers, shuffled, in calls of other sizes."""
  ids, labels, reports = (
      np.concatenate([getattr(a, name) for a in group]) for name in ('ids', 'labels', 'reports')
  )
  order = draw.permutation(len(ids))
  # One small call, then larger ones.
  ends = np.unique(draw.integers(1, len(ids) + 1, 2)) if len(ids) > 1 else []
  for part in np.split(order, ends):
    if len(part):
      yield Answer(group[0].client, ids[part], labels[part], reports[part])


def draws_of(seed: int, test: str) -> np.random.Generator:
  """Returns what a test of an auditor with this seed draws from."""
  return rng.generator(seed, f'empirical audit: {test}')


def ask_clients(
    report: black_box.Mechanism, num_classes: int, labels: np.ndarray, examples: Examples
) -> np.ndarray:
  """Returns the reports of `labels`, which are split over clients and have ids of their own."""
  reports = []
  for part in np.array_split(labels, _CLIENTS):
    if len(part):
      client, ids = examples.ids(len(part))
      reports.append(black_box.ask(report, num_classes, part, ids, client))
  return np.concatenate(reports)
