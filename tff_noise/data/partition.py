"""Partitions: who holds which example.

Each partition gives every example to exactly one client and leaves no client empty. Where the
published procedures drop a remainder, crash on a class that nobody owns, or leave a client with
nothing, the rule applied here is stated, and what it changed is listed in `Partition.notes`.
"""

from typing import NamedTuple

import numpy as np
from scipy import stats


class Partition(NamedTuple):
  """The owner of each example.

  Attributes:
    client_of: int32 `[n]` in `[0, num_clients)`.
    notes: One sentence for each correction the procedure needed.
  """

  client_of: np.ndarray
  notes: tuple[str, ...]


def _iid(labels, num_classes, num_clients, q, rng):
  """Shuffles and splits; the first `n mod C` clients get one example more."""
  del num_classes, q  # Unused.
  client_of = np.empty(len(labels), np.int32)
  for client, part in enumerate(np.array_split(rng.permutation(len(labels)), num_clients)):
    client_of[part] = client
  return Partition(client_of, ())


def draw_openset_owners(
    num_clients: int, num_classes: int, q: float, rng: np.random.Generator
) -> tuple[np.ndarray, tuple[str, ...]]:
  """Draws `1_{c,k}`, which client may hold which class (FedDPCont, section 3.3).

  Each entry is Bernoulli(q), and a row that is all 0 or all 1 is drawn again until it is neither.
  That redraw is sampled directly (the number of classes from the binomial conditioned on
  `1..K-1`, then which ones), which ends for every q. A class that no client drew gets one random
  owner, so that none of its examples is dropped.

  Args:
    num_clients: C, at least 2: a single open-set client could not own every class.
    num_classes: K, at least 2.
    q: Q, the probability that a client knows a class, in (0, 1).
    rng: Source.

  Returns:
    bool `[C, K]` with 1 to K-1 classes in each row and at least one owner in each column, and the
    notes.
  """
  counts = np.arange(1, num_classes)
  log_p = stats.binom.logpmf(counts, num_classes, q)
  p = np.exp(log_p - log_p.max())
  sizes = rng.choice(counts, size=num_clients, p=p / p.sum())
  owners = np.zeros((num_clients, num_classes), bool)
  for client, size in enumerate(sizes):
    owners[client, rng.choice(num_classes, size, replace=False)] = True

  notes = []
  for k in np.flatnonzero(~owners.any(axis=0)):
    candidates = np.flatnonzero(owners.sum(axis=1) < num_classes - 1)
    if len(candidates):
      client = rng.choice(candidates)
    else:
      # Every client knows all classes but k: one of them swaps a class that others hold too.
      client = rng.integers(num_clients)
      owners[client, rng.choice(np.flatnonzero(owners[client]))] = False
    owners[client, k] = True
    notes.append(f'class {k} had no owner and was given to client {client}')
  return owners, tuple(notes)


def largest_remainder(total: int, shares: np.ndarray) -> np.ndarray:
  """Splits `total` into integers proportional to `shares`, the largest fractions rounded up.

  Args:
    total: A non-negative integer.
    shares: float `[m]`, non-negative with sum 1.

  Returns:
    int64 `[m]` with sum exactly `total`.
  """
  exact = total * shares
  parts = np.floor(exact).astype(np.int64)
  missing = total - parts.sum()
  parts[np.argsort(-(exact - parts), kind='stable')[:missing]] += 1
  return parts


def _fill_empty_clients(client_of, labels, owners, rng):
  """Gives each empty client one example, of a class it may hold where such an example is spare."""
  num_clients, _ = owners.shape
  notes = []
  for client in np.flatnonzero(np.bincount(client_of, minlength=num_clients) == 0):
    sizes = np.bincount(client_of, minlength=num_clients)
    spare = sizes[client_of] > 1
    candidates = np.flatnonzero(spare & owners[client][labels])
    if not len(candidates):
      # One example is one class: whatever it is, the client stays an open-set client (K >= 2).
      candidates = np.flatnonzero(spare)
    donors = client_of[candidates]
    richest = candidates[sizes[donors] == sizes[donors].max()]
    example = rng.choice(richest)
    notes.append(
        f'client {client} was empty and got one example of class {labels[example]} '
        f'from client {client_of[example]}'
    )
    client_of[example] = client
  return tuple(notes)


def _openset(labels, num_classes, num_clients, q, rng, draw_shares):
  """FedDPCont, section 3.3: splits each class of *noisy* labels among the clients that know it."""
  owners, notes = draw_openset_owners(num_clients, num_classes, q, rng)
  client_of = np.full(len(labels), -1, np.int32)
  for k in range(num_classes):
    members = rng.permutation(np.flatnonzero(labels == k))
    # The order is drawn so that the remainder does not always favour low client ids.
    clients = rng.permutation(np.flatnonzero(owners[:, k]))
    sizes = largest_remainder(len(members), draw_shares(len(clients), rng))
    client_of[members] = np.repeat(clients, sizes)
  return Partition(client_of, notes + _fill_empty_clients(client_of, labels, owners, rng))


def _openset_uniform(labels, num_classes, num_clients, q, rng):
  """Uniform allocation: `|D_k| / |I_k|` examples to each owner, the remainder spread at random."""
  return _openset(
      labels, num_classes, num_clients, q, rng, lambda m, _: np.full(m, 1 / m)
  )


def _openset_dirichlet(labels, num_classes, num_clients, q, rng):
  """Non-uniform allocation: `|D_k| * u_c` examples, u from Dir(1) over the owners."""
  return _openset(
      labels, num_classes, num_clients, q, rng, lambda m, rng: rng.dirichlet(np.ones(m))
  )


PARTITIONS = {
    'iid': _iid,
    'openset_uniform': _openset_uniform,
    'openset_dirichlet': _openset_dirichlet,
}


def split(
    name: str,
    labels: np.ndarray,
    *,
    num_classes: int,
    num_clients: int,
    q: float,
    rng: np.random.Generator,
) -> Partition:
  """Returns the partition called `name`.

  Args:
    name: A key of `PARTITIONS`.
    labels: int `[n]`, the labels the partition looks at: the noisy ones, for open-set partitions.
    num_classes: K.
    num_clients: C, at most n; at least 2 for open-set partitions.
    q: Q of the open-set partitions, in (0, 1); others ignore it.
    rng: Source.
  """
  return PARTITIONS[name](labels, num_classes, num_clients, q, rng)
