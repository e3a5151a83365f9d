"""Whether reports share their randomness: between clients, ids, calls, at any distance.

Three looks, each with a valid level: every distance within dense blocks of ids and of positions,
all pairs of many clients at the same ids, and any run of reports that occurs twice in streams of
many clients and places.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tff_noise.audit import black_box
from tff_noise.audit import queries
from tff_noise.privacy import mechanism as mechanism_lib

# Clients that are compared pair by pair.
_CLIENTS = 40
# Blocks whose distances are scanned; examples of one for each of `trials`.
_BLOCKS, _BLOCK_SIZE = 4, 1.6
# Streams of this many examples, that many for each of `trials`; places to start from.
_STREAM, _STREAMS_PER_TRIAL = 512, 0.03
# Rulers, each a dense stream, its examples for each of `trials`, and short streams behind it.
_RULERS, _DENSE, _TEETH = 6, 0.8, 64


class Look(NamedTuple):
  """What one look found.

  Attributes:
    log_p: The logarithm of the p-value, multiplied by the look's number of tests; at most 0.
    detail: What was seen.
    rate: The share of pairs that agree.
    expected: That of independent ones.
    sees: The logarithm of the p-value had all pairs agreed.
  """

  log_p: float
  detail: str
  rate: float
  expected: float
  sees: float


def agreement(mechanism: mechanism_lib.RandomizedResponse) -> float:
  """Returns the probability that two independent reports of one label agree, a^2 + (K - 1) b^2."""
  a, b = mechanism.keep_probability, mechanism.other_probability
  return a**2 + (mechanism.num_classes - 1) * b**2


def _look(names, agreed, pairs, expected) -> Look:
  """Holds numbers of agreeing pairs, `[t]`, against independence."""
  tests = len(names)
  log_p = np.log(tests) + black_box.log_two_sided_bound(agreed, pairs, expected)
  worst = int(log_p.argmin())
  sees = np.log(tests) + black_box.log_two_sided_bound(pairs, pairs, expected).max()
  detail = (
      f'{names[worst]} agree in {agreed[worst]} of {pairs[worst]}, '
      f'independent ones with probability {expected:.4g}'
  )
  return Look(
      min(0.0, float(log_p[worst])), detail, float(agreed[worst] / pairs[worst]), expected,
      float(sees),
  )


def clients(
    report: black_box.Mechanism,
    mechanism: mechanism_lib.RandomizedResponse,
    trials: int,
    draw: np.random.Generator,
) -> Look:
  """Compares all pairs of many clients, the same labels and ids of each."""
  num_classes = mechanism.num_classes
  drawn = queries.Examples(draw)
  chosen = {drawn.client() for _ in range(_CLIENTS // 2)}
  # Some that differ from these in one bit, or by a round number.
  for client in list(chosen):
    chosen.add(client ^ 1 << int(draw.integers(queries.CLIENT_BITS)))
    chosen.add((client + 10 ** int(draw.integers(7))) % 2**queries.CLIENT_BITS)
  chosen = draw.permutation(sorted(chosen))[:_CLIENTS].tolist()
  _, ids = drawn.ids(trials)
  labels = drawn.labels(trials, num_classes)
  reports = np.stack([
      black_box.ask(report, num_classes, labels, ids, client) for client in chosen
  ]).astype(np.int8 if num_classes <= 127 else np.int32)
  names, agreed = [], []
  for i, j in itertools.combinations(range(len(chosen)), 2):
    names.append(f'reports of clients {chosen[i]} and {chosen[j]}')
    agreed.append(int((reports[i] == reports[j]).sum()))
  return _look(names, np.array(agreed), np.full(len(names), trials), agreement(mechanism))


def _distances(reports: np.ndarray, what: str) -> Iterator[tuple[str, int, int]]:
  """Yields every distance, and of how many disjoint pairs that far apart how many agree."""
  for lag in range(1, len(reports) // 2 + 1):
    name = f'reports of {what} {lag} apart'
    # Disjoint pairs: no report is used twice, so the number that agree is binomial. Starting later
    # gives the other pairs: a draw that serves two batches repeats in every other one.
    for rest in (reports, reports[lag:]):
      whole = len(rest) // (2 * lag)
      if whole:
        blocks = rest[: whole * 2 * lag].reshape(-1, 2, lag)
        yield name, int(np.count_nonzero(blocks[:, 0] == blocks[:, 1])), whole * lag


def distances(
    report: black_box.Mechanism,
    mechanism: mechanism_lib.RandomizedResponse,
    trials: int,
    draw: np.random.Generator,
) -> Look:
  """Compares examples of one label at every distance, of ids and of positions in the call."""
  num_classes, size = mechanism.num_classes, int(_BLOCK_SIZE * trials)
  drawn, found = queries.Examples(draw), []
  narrow = np.int8 if num_classes <= 127 else np.int32
  for block in range(_BLOCKS):
    client, first = drawn.place(size)
    # Half in order; half shuffled, to tell distances of ids from those of positions.
    order = np.arange(size) if block % 2 else draw.permutation(size)
    labels = np.full(size, draw.integers(num_classes), np.int32)
    reports = black_box.ask(report, num_classes, labels, first + order, client)
    by_id = np.empty(size, narrow)
    by_id[order] = reports
    found += _distances(by_id, 'examples')
    if not block % 2:
      found += _distances(reports.astype(narrow), 'positions')
  if not found:
    return Look(0.0, 'no pairs', agreement(mechanism), agreement(mechanism), 0.0)
  names, agreed, pairs = zip(*found, strict=True)
  look = _look(names, np.array(agreed), np.array(pairs), agreement(mechanism))
  # Whether the nearest would have been noticed: the farthest have few pairs.
  nearest = black_box.log_two_sided_bound(pairs[0], pairs[0], agreement(mechanism))
  return look._replace(sees=float(np.log(len(names)) + nearest))


class _Stream(NamedTuple):
  """Examples next to each other: `size` of a client's, from an id."""

  client: int
  first: int
  size: int


def _related(drawn: queries.Examples, count: int) -> Iterator[_Stream]:
  """Yields streams in related places, of one client and of two, at round distances."""
  draw = drawn.draw
  made = 0
  while made < count:
    client, base = drawn.place(_STREAM)
    yield _Stream(client, base, _STREAM)
    made += 1
    for _ in range(15):
      by = 1 << int(draw.integers(62)) if draw.random() < 0.5 else 10 ** int(draw.integers(18))
      step = int(draw.integers(1, _STREAM))
      near = 1 << int(draw.integers(queries.CLIENT_BITS))
      other = [
          (client, base + by), (client ^ near, base), (client + step, base - step),
          (client + 1, base + by), (base % 2**queries.CLIENT_BITS, client),
      ][int(draw.integers(5))]
      if other[0] < 2**queries.CLIENT_BITS and drawn.take(*other, _STREAM):
        yield _Stream(*other, _STREAM)
        made += 1


def _ruler(drawn: queries.Examples, dense: int) -> Iterator[_Stream]:
  """Yields a dense stream and short ones behind it: every distance up to `_TEETH * dense`."""
  client, base = drawn.place((_TEETH + 1) * dense + _STREAM)
  yield _Stream(client, base, dense)
  for tooth in range(1, _TEETH + 1):
    yield _Stream(client, base + tooth * dense, min(dense, _STREAM))


def repeats(
    report: black_box.Mechanism,
    mechanism: mechanism_lib.RandomizedResponse,
    trials: int,
    alpha: float,
    draw: np.random.Generator,
) -> Look:
  """Looks for a run of reports that occurs twice in streams of one label.

  Of two runs of length w, at least one report is not yet seen at every step, so they are equal with
  probability max(a, b)^w at most, and any of m runs with that times m^2 / 2: w is chosen for this
  to be alpha at most.
  """
  num_classes = mechanism.num_classes
  drawn = queries.Examples(draw)
  places = list(_related(drawn, max(2, int(_STREAMS_PER_TRIAL * trials))))
  for _ in range(_RULERS):
    places += _ruler(drawn, max(1, int(_DENSE * trials)))
  label = draw.integers(num_classes)
  likeliest = max(mechanism.keep_probability, mechanism.other_probability)
  runs = 2 * np.log(sum(place.size for place in places)) - np.log(2)
  # With one to spare for the rounding of floats.
  width = int(np.ceil((np.log(alpha) - runs) / np.log(likeliest))) + 1 if likeliest < 1 else _STREAM
  expected = agreement(mechanism)
  nothing = Look(0.0, 'no run of reports occurs twice', expected, expected, 0.0)
  if width >= _STREAM:
    return nothing
  streams = []
  for place in places:
    ids = place.first + np.arange(place.size)
    labels = np.full(place.size, label, np.int32)
    streams.append(black_box.ask(report, num_classes, labels, ids, place.client))
  same = _equal_runs(streams, width)
  if same is None:
    return nothing._replace(sees=-np.inf)
  (one, i), (other, j) = same
  detail = (
      f'{width} reports of client {places[one].client} from id {places[one].first + i} are those '
      f'of client {places[other].client} from id {places[other].first + j}: they'
      f' agree in {width} of {width}'
  )
  return Look(math.log(alpha), detail, 1.0, expected, -np.inf)


def _equal_runs(streams: Sequence[np.ndarray], width: int):
  """Returns two places, (stream, offset), of equal runs of `width` reports, or None."""
  sizes = np.array([len(stream) for stream in streams])
  reports = np.concatenate(streams).astype(np.uint64)
  owner = np.repeat(np.arange(len(sizes)), sizes)
  offsets = np.arange(len(reports)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
  starts = np.flatnonzero(offsets + width <= sizes[owner])
  # Runs of one hash are looked up.
  hashes = np.zeros(len(starts), np.uint64)
  with np.errstate(over='ignore'):
    for step in range(width):
      hashes = (hashes + reports[starts + step] + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
      hashes ^= hashes >> np.uint64(29)
  order = np.argsort(hashes, kind='stable')
  for at in np.flatnonzero(hashes[order][1:] == hashes[order][:-1])[:1000]:
    one, other = starts[order[at]], starts[order[at + 1]]
    if np.array_equal(reports[one : one + width], reports[other : other + width]):
      return tuple((int(owner[run]), int(offsets[run])) for run in (one, other))
  return None
