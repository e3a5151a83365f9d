"""K-ary randomised response on labels: exact integer table, keyed function, a report per example.

FedDPCont, section 4.2: a label is kept with probability a = e^eps / (e^eps + K - 1) and becomes
each other label with probability b = 1 / (e^eps + K - 1), the row y of T_DP.

Two things make the guarantee hold in floating-point computers and repeated runs:

* The probabilities are integers out of W = 2^62. b is rounded up, so that the mechanism's own
  epsilon, ln(A / B), is never above the one claimed.
* The random number of an example is Threefry of its id under its client's secret. An example that
  is asked again gives the same report (RAPPOR's memoisation), so asking again costs nothing. An
  example whose label was changed must not be asked again: its two reports would share one random
  number, and together give both labels away.

The secret has 128 bits. On a device these are 16 bytes of `secrets.token_bytes`, drawn once, kept
for as long as the examples and never sent. In a simulation they are `simulation_secret`, a function
of the seed, and no privacy is claimed for the simulated people.

Threefry-2x64 with 20 rounds (Salmon, Moraes, Dror, Shaw 2011) is Threefish, the cipher in Skein,
with smaller words and fewer rounds. Its authors claim statistical quality, not cryptographic
strength: that reports cannot be predicted without the secret is an assumption.

`federated.label_histogram` has the same function, to the bit, as TensorFlow operations, for clients
that flip in their own computation. `tf.random` does not do it: seeded operations share draws
between clients, and unseeded ones start from 32 bits of entropy. As for the stateless ones, CPU
kernels know Philox only and answer `alg='threefry'` with an error outside of XLA, keys have 64
bits, and one call has one counter, not one for each example.
"""

import decimal
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tff_noise import rng
from tff_noise import types

_BITS = 62
# Threefry-2x64: C240 of Skein 1.3, by how many bits round r mod 8 rotates, and how many rounds.
PARITY = 0x1BD11BDAA9FC1A22
ROTATIONS = (16, 42, 12, 31, 16, 32, 24, 21)
ROUNDS = 20
_SHIFTS = tuple((np.uint64(bits), np.uint64(64 - bits)) for bits in ROTATIONS)
# Of the 64 bits of a word, a number takes the top 62.
DROPPED_BITS = 64 - _BITS
# Enough for ln and exp of any epsilon the table accepts to be exact in all 62 bits.
_CONTEXT = decimal.Context(prec=60)
_POSITIVE = re.compile(r'\+?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,6})?')


class RandomizedResponse(NamedTuple):
  """The mechanism as an integer table out of W = 2**62: `keep + (K - 1) * other == W`.

  Attributes:
    num_classes: K.
    epsilon: The claimed epsilon, as written.
    keep: A, the weight of the true label.
    other: B, the weight of each other label.
  """

  num_classes: int
  epsilon: str
  keep: int
  other: int

  @property
  def keep_probability(self) -> float:
    """a."""
    return self.keep / 2**_BITS

  @property
  def other_probability(self) -> float:
    """b."""
    return self.other / 2**_BITS

  @property
  def actual_epsilon(self) -> float:
    """ln(A / B), rounded down; at most the claimed epsilon."""
    exact = _CONTEXT.subtract(
        _CONTEXT.ln(decimal.Decimal(self.keep)), _CONTEXT.ln(decimal.Decimal(self.other))
    )
    value = float(exact)
    return value if decimal.Decimal(value) <= exact else math.nextafter(value, 0)

  def transition_matrix(self) -> np.ndarray:
    """T_DP, float64 `[K, K]`: row y is the distribution of the report of label y."""
    matrix = np.full((self.num_classes,) * 2, self.other_probability)
    np.fill_diagonal(matrix, self.keep_probability)
    return matrix


def randomized_response(epsilon: str, num_classes: int) -> RandomizedResponse:
  """Builds the mechanism for a decimal `epsilon`.

  Args:
    epsilon: A positive decimal number as text, such as '0.81': a float would already be rounded.
    num_classes: K, at least 2.

  Raises:
    types.UsageError: If epsilon is not a positive finite number, or so large that 62 bits cannot
      represent the probability of another label, or K is below 2.
  """
  total = 2**_BITS
  if not isinstance(num_classes, (int, np.integer)) or not 2 <= num_classes < total:
    raise types.UsageError(f'randomised response needs at least 2 classes, got {num_classes!r}')
  num_classes = int(num_classes)
  if not isinstance(epsilon, str) or not _POSITIVE.fullmatch(epsilon.strip()):
    raise types.UsageError(f'epsilon must be a positive decimal number, got {epsilon!r}')
  value = decimal.Decimal(epsilon.strip())
  if value == 0:
    raise types.UsageError(f'epsilon must be a positive decimal number, got {epsilon!r}')
  # Above this, B would be less than 1 and rounding it up would no longer be a small change.
  limit = _CONTEXT.ln(decimal.Decimal(total - (num_classes - 1)))
  if value > limit:
    allowed = limit.quantize(decimal.Decimal('0.01'), decimal.ROUND_FLOOR)
    raise types.UsageError(
        f'epsilon must be at most {allowed} for {num_classes} classes, got {epsilon!r}'
    )
  weight = _CONTEXT.divide(
      decimal.Decimal(total), _CONTEXT.add(_CONTEXT.exp(value), decimal.Decimal(num_classes - 1))
  )
  other = int(weight.to_integral_value(decimal.ROUND_CEILING))
  keep = total - (num_classes - 1) * other
  if keep <= other:
    raise types.UsageError(
        f'epsilon {epsilon!r} is too small: in {_BITS} bits every label would be equally likely'
    )
  return RandomizedResponse(num_classes, epsilon.strip(), keep, other)


def simulation_secret(seed: int, client: int) -> np.ndarray:
  """Returns int64 `[2]`, a client's secret in a simulation: whoever knows the seed knows it too."""
  secret = rng.key(seed, 'label report secret', client)[:16]
  return np.frombuffer(secret, '<i8').astype(np.int64)


def threefry(
    key: np.ndarray, counter: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
  """Encrypts counters by Threefry-2x64-20, a permutation of 128 bits for each key.

  Args:
    key: uint64 `[2]`, or `[2, n]`, one for each counter.
    counter: Two uint64 `[n]`; one may be a scalar.

  Returns:
    Two uint64 `[n]`.
  """
  schedule = (key[0], key[1], key[0] ^ key[1] ^ np.uint64(PARITY))
  # All sums are modulo 2**64; NumPy warns of that for scalars alone. The first two make new arrays,
  # so that the sums in place change no argument.
  with np.errstate(over='ignore'):
    x, y = counter[0] + schedule[0], counter[1] + schedule[1]
    for r in range(ROUNDS):
      left, right = _SHIFTS[r % 8]
      x += y
      y = (y << left | y >> right) ^ x
      if r % 4 == 3:
        injection = (r + 1) // 4
        x += schedule[injection % 3]
        y += (schedule[(injection + 1) % 3] + np.uint64(injection))
  return x, y


def table_word(mechanism: RandomizedResponse) -> int:
  """Returns 64 bits that name the table: another epsilon has random numbers of its own."""
  # Without the text of epsilon: '0.81' and '0.810' are one mechanism and one report.
  purpose = f'label report v1 K={mechanism.num_classes} B={mechanism.other}'
  return int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], 'big')


def draw(
    example_ids: np.ndarray, secret: np.ndarray, mechanism: RandomizedResponse
) -> np.ndarray:
  """Returns each example's random number, a function of its id, the secret and the table alone.

  The secret is the cipher's whole key. The id is one half of the block, so that two ids never have
  the same block; the table is the other half.

  Args:
    example_ids: int64 `[n]`, any values.
    secret: int64 `[2]`, the client's; or `[2, n]`, that of each example's client.
    mechanism: The mechanism.

  Returns:
    int64 `[n]` in `[0, 2**62)`.
  """
  counter = (example_ids.astype(np.uint64), np.uint64(table_word(mechanism)))
  word, _ = threefry(secret.astype(np.uint64), counter)
  return (word >> np.uint64(DROPPED_BITS)).astype(np.int64)


def respond(
    labels: np.ndarray, numbers: np.ndarray, mechanism: RandomizedResponse
) -> np.ndarray:
  """Returns the report of each label at its random number.

  Args:
    labels: int `[n]` in `[0, K)`.
    numbers: int64 `[n]` in `[0, 2**62)`.
    mechanism: The mechanism.

  Returns:
    int32 `[n]` in `[0, K)`.
  """
  # Exact: all in int64, where 2**62 fits. Below `keep` the quotient is negative and not used.
  others = (numbers - mechanism.keep) // mechanism.other
  others += others >= labels
  return np.where(numbers < mechanism.keep, labels, others).astype(np.int32)


def flip(
    labels: np.ndarray,
    example_ids: np.ndarray,
    secret: np.ndarray,
    mechanism: RandomizedResponse,
) -> np.ndarray:
  """Returns the report of each label, the same however often, in whatever batch it is asked for.

  An example whose label was changed must not be asked again, see above.

  Args:
    labels: int `[n]` in `[0, K)`.
    example_ids: int `[n]`, distinct within the client: equal ones would share their randomness.
    secret: int64 `[2]`, the client's own 128 bits; not zero.
    mechanism: The mechanism.

  Returns:
    int32 `[n]` in `[0, K)`.

  Raises:
    ValueError: If labels, ids or secret are not as above.
  """
  return flip_all([(labels, example_ids, secret)], mechanism)[0]


def simulated_reports(
    clients: Mapping[int, tuple[np.ndarray, np.ndarray]], seed: int, mechanism: RandomizedResponse
) -> list[np.ndarray]:
  """Returns the reports of a simulation's clients, by id (labels, example ids), in their order."""
  return flip_all(
      [(y, ids, simulation_secret(seed, client)) for client, (y, ids) in clients.items()], mechanism
  )


def flip_all(
    clients: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], mechanism: RandomizedResponse
) -> list[np.ndarray]:
  """Returns what `flip` does for each of many clients: (labels, example ids, secret).

  At once, since most of them have few labels.

  Raises:
    ValueError: As `flip`.
  """
  if not clients:
    return []
  labels, ids, secrets = (list(map(np.asarray, values)) for values in zip(*clients, strict=True))
  for secret in secrets:
    if secret.shape != (2,) or secret.dtype != np.int64:
      raise ValueError(f'expected a secret of int64[2], got {secret.dtype}{list(secret.shape)}')
    if not secret.any():
      raise ValueError('the secret must not be zero: it was never drawn')
  sizes = [len(y) for y in labels]
  same_sizes = sizes == [len(i) for i in ids]
  owner = np.repeat(np.arange(len(sizes)), sizes)
  labels, ids = np.concatenate(labels), np.concatenate(ids)
  if not same_sizes or not _distinct(owner, ids):
    raise ValueError('needs one distinct id for each label')
  if len(labels):
    _check_labels(labels, ids, mechanism)
    numbers = draw(ids, np.stack(secrets)[owner].T, mechanism)
    labels = respond(labels, numbers, mechanism)
  return np.split(labels.astype(np.int32), np.cumsum(sizes)[:-1])


def _distinct(owner, ids):
  """Whether nobody has an id twice."""
  order = np.lexsort((ids, owner))
  same = (owner[order][1:] == owner[order][:-1]) & (ids[order][1:] == ids[order][:-1])
  return not same.any()


def _check_labels(labels, ids, mechanism):
  if not all(np.issubdtype(a.dtype, np.integer) for a in (labels, ids)):
    raise ValueError('labels and ids must be integers')
  if labels.min() < 0 or labels.max() >= mechanism.num_classes:
    raise ValueError(
        f'labels must be in 0 to {mechanism.num_classes - 1}, '
        f'found {labels.min()} to {labels.max()}'
    )


def histogram(labels: np.ndarray, num_classes: int) -> np.ndarray:
  """Returns int64 `[K]`, the count of each label in `[0, num_classes)`."""
  return np.bincount(labels, minlength=num_classes).astype(np.int64)
