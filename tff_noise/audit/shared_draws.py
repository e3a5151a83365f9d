"""Whether reports share their randomness: between clients, ids, calls, at any distance.

Three looks, each with a valid level: every distance within dense blocks of ids and of positions,
all pairs of many clients at the same ids, and any run of reports that occurs twice in streams of
many clients and places.
"""

import itertools
from collections.abc import Iterator
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


def _stream_places(drawn: queries.Examples, count: int) -> Iterator[tuple[int, int]]:
  """Yields places of streams: related ones, of one client and of two, at round distances."""
  draw = drawn.draw
  made = 0
  while made < count:
    client, base = drawn.place(_STREAM)
    yield client, base
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
        yield other
        made += 1


def repeats(
    report: black_box.Mechanism,
    mechanism: mechanism_lib.RandomizedResponse,
    trials: int,
    alpha: float,
    draw: np.random.Generator,
) -> Look:
  """Looks for a run of reports that occurs twice in streams of one label.

  Of two runs of length w, at most one is not yet seen at every step, so they are equal with
  probability max(a, b)^w at most, and any of m runs with that times m^2 / 2: w is chosen for this
  to be alpha.
  """
  num_classes = mechanism.num_classes
  count = max(2, int(_STREAMS_PER_TRIAL * trials))
  drawn = queries.Examples(draw)
  places = list(_stream_places(drawn, count))
  labels = np.full(_STREAM, draw.integers(num_classes), np.int32)
  likeliest = max(mechanism.keep_probability, mechanism.other_probability)
  runs = 2 * np.log(len(places) * _STREAM) - np.log(2)
  # Rounded up, with one to spare for the rounding of floats.
  width = int(np.ceil((np.log(alpha) - runs) / np.log(likeliest))) + 1 if likeliest < 1 else _STREAM
  nothing = Look(0.0, 'no run of reports occurs twice', 0.0, 0.0, 0.0)
  if width > _STREAM:
    return nothing
  streams = np.stack([
      black_box.ask(report, num_classes, labels, base + np.arange(_STREAM), client)
      for client, base in places
  ])
  same = _equal_runs(streams, width)
  seen = nothing._replace(sees=-np.inf, expected=0.0)
  if same is None:
    return seen
  (s, i), (t, j) = same
  detail = (
      f'{width} reports of client {places[s][0]} from id {places[s][1] + i} are those of client '
      f'{places[t][0]} from id {places[t][1] + j}'
  )
  return Look(float(np.log(alpha)), detail, 1.0, agreement(mechanism), -np.inf)


def _equal_runs(streams: np.ndarray, width: int):
  """Returns two places, (stream, offset), of equal runs of `width` reports, or None."""
  count, length = streams.shape
  starts = length - width + 1
  # A polynomial modulo 2**64; equal hashes are looked up.
  hashes = np.zeros((count, starts), np.uint64)
  with np.errstate(over='ignore'):
    for offset in range(width):
      part = streams[:, offset : offset + starts].astype(np.uint64) + np.uint64(1)
      hashes = (hashes + part) * np.uint64(0x9E3779B97F4A7C15)
      hashes ^= hashes >> np.uint64(29)
  flat = hashes.ravel()
  order = np.argsort(flat, kind='stable')
  for at in np.flatnonzero(flat[order][1:] == flat[order][:-1])[:1000]:
    one, other = (divmod(int(order[k]), starts) for k in (at, at + 1))
    if all(
        streams[one[0], one[1] + k] == streams[other[0], other[1] + k] for k in range(width)
    ):
      return one, other
  return None
