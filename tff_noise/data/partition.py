"""Partitions: who holds which example.

Each partition gives every example to exactly one client and leaves no client empty. Where the
published procedures drop a remainder, crash on a class that nobody owns, or leave a client with
nothing, the rule applied here is stated, and what it changed is listed in `Partition.notes`.
"""

from typing import NamedTuple

import numpy as np

from tff_noise import types
from tff_noise.data import corrections
from tff_noise.data import openset


class PartitionSpec(NamedTuple):
  """What a partition is drawn from.

  Attributes:
    name: A key of `PARTITIONS`.
    num_clients: C; ignored by 'natural', where the data say it.
    p: Of 'bernoulli_dirichlet', the probability that a client holds a class, in (0, 1].
    alpha: Of 'bernoulli_dirichlet' and 'dirichlet', positive: the smaller, the more uneven.
    min_size: Examples that every client has at least.
    q: Q of the open-set partitions, the probability that a client knows a class: one number in
      (0, 1), or float `[K]`, or float `[C, K]`, in [0, 1].
  """

  name: str
  num_clients: int
  p: float = 0.7
  alpha: float = 1.0
  min_size: int = 1
  q: float | np.ndarray = 0.5


class Partition(NamedTuple):
  """The owner of each example.

  Attributes:
    client_of: int32 `[n]` in `[0, num_clients)`.
    notes: One sentence for each correction the procedure needed, or a summary of many.
  """

  client_of: np.ndarray
  notes: tuple[str, ...]


class _Drawn(NamedTuple):
  """A partition as the published procedure has it: clients may be empty.

  Attributes:
    client_of: int32 `[n]`.
    may_hold: See `corrections.top_up`.
    notes: See `Partition`.
  """

  client_of: np.ndarray
  may_hold: tuple[np.ndarray, ...] = ()
  notes: tuple[str, ...] = ()


class _Examples(NamedTuple):
  """What is split: labels `[n]`, the number of classes K and of clients C, and the column."""

  labels: np.ndarray
  num_classes: int
  num_clients: int
  natural: np.ndarray | None


def _iid(spec, examples, rng):
  """Shuffles and splits; the first `n mod C` clients get one example more."""
  del spec  # Unused.
  n, num_clients = len(examples.labels), examples.num_clients
  sizes = n // num_clients + (np.arange(num_clients) < n % num_clients)
  client_of = np.empty(n, np.int32)
  client_of[rng.permutation(n)] = np.repeat(np.arange(num_clients), sizes)
  return _Drawn(client_of)


def _natural(spec, examples, rng):
  """Takes the clients that the data name."""
  del spec, rng  # Unused.
  return _Drawn(examples.natural.astype(np.int32))


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


def _split_classes(examples, owners, draw_sizes, rng):
  """Returns int32 `[n]`: the examples of each class at random among its owners.

  Args:
    examples: What is split.
    owners: bool `[C, K]` with an owner in each column.
    draw_sizes: From the number of examples and of owners to int `[owners]`, what each one gets.
    rng: Source.
  """
  client_of = np.empty(len(examples.labels), np.int32)
  for k in range(examples.num_classes):
    members = rng.permutation(np.flatnonzero(examples.labels == k))
    # The order is drawn so that the remainder does not always favour low client ids.
    clients = rng.permutation(np.flatnonzero(owners[:, k]))
    client_of[members] = np.repeat(clients, draw_sizes(len(members), len(clients)))
  return client_of


def _dirichlet_shares(alpha, m, rng):
  """Draws float `[m]` from `Dir(alpha, ..., alpha)`, for every alpha that a float can be.

  A Dirichlet vector is one of Gamma(alpha) variables divided by its sum. Those of a small alpha
  underflow to 0 all together, so their logarithms are drawn: `Gamma(alpha)` has the law of
  `Gamma(alpha + 1) * U^(1 / alpha)`, and `-log U` that of an exponential variable.
  """
  alpha = max(alpha, 1e-300)  # Below, 1 / alpha is infinite; one owner gets all in either case.
  logs = np.log(rng.standard_gamma(alpha + 1, m)) - rng.standard_exponential(m) / alpha
  shares = np.exp(logs - logs.max())
  return shares / shares.sum()


def _dirichlet(spec, examples, rng):
  """Splits each class by shares z ~ Dir(alpha) over all clients.

  NIID-Bench and FedZoo draw the whole partition again until every client has some 10 examples, and
  give nothing more of a class to a client that has its n / C already. With a small alpha or many
  clients such a draw practically never comes and their loop never ends, and once all clients are
  full their shares are 0 / 0. Here there is one draw, and clients with fewer than `min_size`
  examples are topped up.
  """
  everybody = np.ones((examples.num_clients, examples.num_classes), bool)

  def draw_sizes(total, m):
    return largest_remainder(total, _dirichlet_shares(spec.alpha, m, rng))

  return _Drawn(_split_classes(examples, everybody, draw_sizes, rng))


def draw_bernoulli_owners(
    num_clients: int, num_classes: int, p: float, rng: np.random.Generator
) -> tuple[np.ndarray, tuple[str, ...]]:
  """Draws FedCorr's Phi (section 3.1): which client holds which class.

  `Phi_ij ~ Bernoulli(p)`, and the public code draws a row without any class again. Here a row
  starts with its first class, drawn from the geometric law cut off at K, which ends for every p.
  A class without owner, on which the public code crashes, gets one random owner.

  Args:
    num_clients: N.
    num_classes: M.
    p: p, in (0, 1].
    rng: Source.

  Returns:
    bool `[N, M]` with a class in each row and an owner in each column, and the notes.
  """
  weights = (1 - p) ** np.arange(num_classes)
  first = rng.choice(num_classes, num_clients, p=weights / weights.sum())[:, np.newaxis]
  owners = rng.random((num_clients, num_classes)) < p
  classes = np.arange(num_classes)
  owners = (owners & (classes > first)) | (classes == first)
  notes = []
  for k in np.flatnonzero(~owners.any(axis=0)):
    client = rng.integers(num_clients)
    owners[client, k] = True
    notes.append(f'class {k} had no owner and was given to client {client}')
  return owners, corrections.summarise(notes)


def _bernoulli_dirichlet(spec, examples, rng):
  """FedCorr, section 3.1: each example of class j goes to an owner drawn from q_j ~ Dir(alpha)."""
  owners, notes = draw_bernoulli_owners(examples.num_clients, examples.num_classes, spec.p, rng)

  def draw_sizes(total, m):
    # Drawing an owner for each example is drawing the counts, then which examples they are.
    return rng.multinomial(total, _dirichlet_shares(spec.alpha, m, rng))

  return _Drawn(_split_classes(examples, owners, draw_sizes, rng), (owners,), notes)


def _openset(spec, examples, rng, draw_shares):
  """FedDPCont, section 3.3: splits each class of *noisy* labels among the clients that know it."""
  openset.check(spec.q, examples.num_clients, examples.num_classes)
  owners, notes = openset.draw_owners(
      examples.num_clients, examples.num_classes, spec.q, rng
  )
  client_of = _split_classes(
      examples, owners, lambda total, m: largest_remainder(total, draw_shares(m)), rng
  )
  may_hold = (owners,) if np.ndim(spec.q) == 0 else (
      owners, np.broadcast_to(spec.q > 0, owners.shape)
  )
  return _Drawn(client_of, may_hold, notes)


def _openset_uniform(spec, examples, rng):
  """Uniform allocation: `|D_k| / |I_k|` examples to each owner, the remainder spread at random."""
  return _openset(spec, examples, rng, lambda m: np.full(m, 1 / m))


def _openset_dirichlet(spec, examples, rng):
  """Non-uniform allocation: `|D_k| * u_c` examples, u from Dir(1) over the owners."""
  return _openset(spec, examples, rng, lambda m: rng.dirichlet(np.ones(m)))


PARTITIONS = {
    'iid': _iid,
    'bernoulli_dirichlet': _bernoulli_dirichlet,
    'dirichlet': _dirichlet,
    'openset_uniform': _openset_uniform,
    'openset_dirichlet': _openset_dirichlet,
    'natural': _natural,
}


def splits_noisy_labels(name: str) -> bool:
  """Whether the partition called `name` looks at noisy labels; the others look at clean ones."""
  return name in ('openset_uniform', 'openset_dirichlet')


def check(spec: PartitionSpec) -> None:
  """Raises `UsageError` if a value is out of its range, as far as that is known without data."""
  if spec.name not in PARTITIONS:
    raise types.UsageError(
        f'--partition must be one of {", ".join(PARTITIONS)}, got {spec.name!r}'
    )
  for flag, holds, allowed, value in (
      ('partition_p', 0 < spec.p <= 1, 'in (0, 1]', spec.p),
      ('partition_alpha', 0 < spec.alpha < np.inf, 'positive and finite', spec.alpha),
      ('partition_min_size', spec.min_size >= 1, 'at least 1', spec.min_size),
      ('clients', spec.num_clients >= 1 or spec.name == 'natural', 'at least 1', spec.num_clients),
  ):
    if not holds:
      raise types.UsageError(f'--{flag} must be {allowed}, got {value}')
  if splits_noisy_labels(spec.name):
    openset.check(spec.q, spec.num_clients)


def split(
    spec: PartitionSpec,
    labels: np.ndarray,
    *,
    num_classes: int,
    natural: np.ndarray | None = None,
    rng: np.random.Generator,
) -> Partition:
  """Draws a partition.

  Args:
    spec: What it is drawn from.
    labels: int `[n]`, the labels the partition looks at: see `splits_noisy_labels`.
    num_classes: K.
    natural: int `[n]`, who holds the examples by nature, or None; only 'natural' looks at it.
    rng: Source.

  Raises:
    types.UsageError: If the specification is wrong, or does not suit the data.
  """
  check(spec)
  examples = _examples(spec, labels, num_classes, natural)
  drawn = PARTITIONS[spec.name](spec, examples, rng)
  notes = corrections.top_up(
      drawn.client_of,
      examples.labels,
      num_clients=examples.num_clients,
      num_classes=examples.num_classes,
      min_size=spec.min_size,
      may_hold=drawn.may_hold,
      keep_open=splits_noisy_labels(spec.name),
      rng=rng,
  )
  return Partition(drawn.client_of, drawn.notes + notes)


def _examples(spec, labels, num_classes, natural):
  """Returns what is split; raises `UsageError` if that cannot be done."""
  num_clients = spec.num_clients
  if spec.name == 'natural':
    num_clients = _count_clients(natural, len(labels))
  if spec.name in ('iid', 'natural'):
    # Labels have no influence, and may be unknown: all examples are alike.
    labels, num_classes = np.zeros(len(labels), np.int32), 1
  outside = np.count_nonzero((labels < 0) | (labels >= num_classes))
  if outside:
    raise types.UsageError(
        f'--partition={spec.name} splits the examples by their labels, {outside} of {len(labels)} '
        'have none that is known: use --partition=iid or natural, or --noise=human with an '
        'open-set one'
    )
  if len(labels) < num_clients * spec.min_size:
    remedy = '' if spec.name == 'natural' else '--clients or '
    raise types.UsageError(
        f'{num_clients} clients with at least {spec.min_size} examples each need '
        f'{num_clients * spec.min_size} training examples, there are {len(labels)}: lower '
        f'{remedy}--partition_min_size'
    )
  return _Examples(labels, num_classes, num_clients, natural)


def _count_clients(natural, n):
  """Returns C of a client column; raises `UsageError` if there is none or it is no such column."""
  if natural is None:
    raise types.UsageError(
        '--partition=natural needs data that say who holds what: --dataset=npz with a client array '
        '(an integer or a text for each example); use another partition otherwise'
    )
  if natural.shape != (n,) or natural.dtype.kind not in 'iu' or (n and natural.min() < 0):
    raise types.UsageError(
        f'--partition=natural: the client column must have one integer from 0 for each of the {n} '
        f'training examples, found {natural.dtype} of shape {natural.shape}; correct it, or use '
        'another partition'
    )
  return int(natural.max(initial=0)) + 1
