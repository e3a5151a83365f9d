"""Mechanisms that are almost randomised response: each is wrong in one habit."""

import math

import numpy as np

from tff_noise.privacy import mechanism

TABLE = mechanism.randomized_response('0.81', 10)


def uniform(seed, client, ids):
  """Uniform numbers in [0, 1) keyed by all three: the finalizer of splitmix64, twice."""
  with np.errstate(over='ignore'):
    x = np.asarray(ids).astype(np.uint64)
    for word in (client, seed):
      x = x + np.uint64((0x9E3779B97F4A7C15 * (int(word) + 1)) % 2**64)
      x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
      x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
      x = x ^ (x >> np.uint64(31))
  return (x >> np.uint64(11)) / 2**53


def respond(labels, numbers, keep=TABLE.keep_probability):
  """Randomised response of 10 classes: kept where the number is below `keep`."""
  step = (1 - keep) / 9
  other = np.clip((numbers - keep) // step, 0, 8).astype(np.int32)
  return np.where(numbers < keep, labels, other + (other >= labels)).astype(np.int32)


def right(labels, ids, client):
  return respond(labels, uniform(0, client, ids))


def of_epsilon(epsilon):
  keep = math.exp(epsilon) / (math.exp(epsilon) + 9)
  return lambda labels, ids, client: respond(labels, uniform(0, client, ids), keep)


def true_labels(labels, ids, client):
  return labels


def where(condition, wrong=true_labels):
  """Wrong where the condition of (labels, ids, client) holds."""
  return lambda *asked: np.where(condition(*asked), wrong(*asked), right(*asked)).astype(np.int32)


def numbered(place):
  """Takes the number of another example, `place(ids, client)` -> (client, ids)."""

  def report(labels, ids, client):
    other, others = place(ids, client)
    return respond(labels, uniform(0, other, others))

  return report


class After:
  """Wrong after so many calls, or calls of one client."""

  def __init__(self, calls, each_client=False, wrong=true_labels):
    self._calls, self._each, self._wrong, self._count = calls, each_client, wrong, {}

  def __call__(self, labels, ids, client):
    who = client if self._each else None
    self._count[who] = self._count.get(who, 0) + 1
    bad = self._count[who] > self._calls
    return (self._wrong if bad else right)(labels, ids, client)


def forgetful(rate):
  """Draws anew now and then."""
  draw = np.random.default_rng(0)

  def report(labels, ids, client):
    fresh = respond(labels, draw.random(len(ids)))
    return np.where(draw.random(len(ids)) < rate, fresh, right(labels, ids, client))

  return report


def swapped(labels, ids, client):
  reports = right(labels, ids, client)
  return np.where(reports == 3, 7, np.where(reports == 7, 3, reports)).astype(np.int32)


def by_position(labels, ids, client):
  shifted = uniform(0, client, ids) + 0.1 * (np.arange(len(ids)) % 2)
  return respond(labels, shifted % 1)


def neighbours_label(labels, ids, client):
  leaks = uniform(9, client, ids) < 0.05
  return np.where(leaks, np.roll(labels, 1), right(labels, ids, client)).astype(np.int32)


def last_is_true(labels, ids, client):
  return np.append(right(labels, ids, client)[:-1], labels[-1:]).astype(np.int32)


_STRONGER = of_epsilon(1.62)

# By name: caught by a tenth of the default budget.
CAUGHT_SOON = {
    'clients from 50': where(lambda y, i, c: c >= 50, of_epsilon(1)),
    'clients from 100,000': where(lambda y, i, c: c >= 10**5, _STRONGER),
    'a client of 100': where(lambda y, i, c: c % 100 == 37),
    'ids from a million': where(lambda y, i, c: i >= 10**6, _STRONGER),
    'ids below 1000': where(lambda y, i, c: i < 1000),
    'one label': where(lambda y, i, c: y == 5, _STRONGER),
    'one label, later clients': where(lambda y, i, c: (y == 5) & (c >= 50), _STRONGER),
    'one report of one class': where(lambda y, i, c: (y == 3) & (right(y, i, c) == 7)),
    'one id of 1,000': where(lambda y, i, c: i % 1000 == 7),
    'one call of 1,000': where(lambda y, i, c: uniform(8, c, i[:1]) < 1e-3),
    'draw of id - 7': numbered(lambda i, c: (c, np.where(i // 7 % 2, i - 7, i))),
    'draw of id - 1000 now and then': numbered(
        lambda i, c: (c, np.where(uniform(3, 0, i) < 0.3, i - 1000, i))
    ),
    'ids modulo 2^32': numbered(lambda i, c: (c, i % 2**32)),
    'ids modulo 100,000': numbered(lambda i, c: (c, i % 10**5)),
    'key of client plus id': numbered(lambda i, c: (0, i + c)),
    'clients modulo 2^16': numbered(lambda i, c: (c % 2**16, i)),
    'clients in pairs': numbered(lambda i, c: (c // 2, i)),
    'one key for all clients': numbered(lambda i, c: (0, i)),
    'key of the position': numbered(lambda i, c: (c, np.arange(len(i)))),
    'two classes swapped': swapped,
    'never memoised': forgetful(1),
    'not memoised in 1 of 1,000': forgetful(1e-3),
    'by position': by_position,
    'label of the neighbour': neighbours_label,
    'the last of a call': last_is_true,
    'calls of one example': lambda y, i, c: right(y, i, c) if len(y) > 1 else y,
    'after 3,000 calls': After(3000),
}

# Caught by the default budget.
CAUGHT_BY_DEFAULT = {
    'after 100,000 calls': After(10**5, wrong=of_epsilon(1)),
    'after 100,000 calls of a client': After(10**5, each_client=True),
    'draw of id - 70,000': numbered(lambda i, c: (c, np.where(i // 70_000 % 2, i - 70_000, i))),
    'true label in 1 of 1,000': where(lambda y, i, c: uniform(7, c, i) < 1e-3),
    'next label in 1 of 1,000': where(
        lambda y, i, c: uniform(7, c, i) < 1e-3, lambda y, i, c: (y + 1) % 10
    ),
    'class 0 in 1 of 1,000': where(
        lambda y, i, c: uniform(7, c, i) < 1e-3, lambda y, i, c: 0 * y
    ),
    'epsilon .83': of_epsilon(0.83),
    'epsilon .85': of_epsilon(0.85),
}
