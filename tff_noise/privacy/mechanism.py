"""K-ary randomised response on labels: exact integer table, keyed PRF, one report per example.

FedDPCont, section 4.2: a label is kept with probability a = e^eps / (e^eps + K - 1) and becomes
each other label with probability b = 1 / (e^eps + K - 1), the row y of T_DP.

Two things make the guarantee hold in floating-point computers and repeated runs:

* The probabilities are integers out of W = 2^62. b is rounded up, so that the mechanism's own
  epsilon, ln(A / B), is never above the one claimed.
* The random number of an example is HMAC-SHA256 of its id under a key. An example that is asked
  again gives the same report (RAPPOR's memoisation), so asking again costs nothing. An example
  whose label was changed must not be asked again: its two reports would share one random number,
  and together give both labels away.

`tf.random` must not be used for this: seeded operations share draws between clients, and unseeded
ones start from 32 bits of entropy.
"""

import decimal
import hashlib
import hmac
import math
import re
from typing import NamedTuple

import numpy as np

from tff_noise import rng
from tff_noise import types

_BITS = 62
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


def simulation_key(seed: int) -> bytes:
  """Returns the PRF's key of a simulation: whoever knows the seed can undo the flips."""
  return rng.key(seed, 'label reports')


def _message(*parts: bytes) -> bytes:
  # Length-prefixed: ('a|b', 'c') and ('a', 'b|c') must not give the same message.
  return b''.join(len(p).to_bytes(8, 'big') + p for p in parts)


def draw(key: bytes, client: int, example: int, purpose: str) -> int:
  """Returns the PRF's integer in `[0, 2**62)` for one example's report."""
  message = _message(str(client).encode(), str(example).encode(), purpose.encode())
  digest = hmac.digest(key, message, hashlib.sha256)
  return int.from_bytes(digest[:8], 'big') >> (64 - _BITS)


def respond(mechanism: RandomizedResponse, label: int, number: int) -> int:
  """Returns the report for `label` at the random `number` in `[0, 2**62)`."""
  if number < mechanism.keep:
    return label
  other = (number - mechanism.keep) // mechanism.other
  return other if other < label else other + 1


def flip_labels(
    labels: np.ndarray,
    example_ids: np.ndarray,
    *,
    client: int,
    mechanism: RandomizedResponse,
    key: bytes,
) -> np.ndarray:
  """Returns the report of each label, the same however often it is asked for.

  Args:
    labels: int `[n]` in `[0, K)`.
    example_ids: int `[n]`, distinct: two examples with one id would share their randomness.
    client: The client's id.
    mechanism: The mechanism.
    key: The PRF's key. On a device, 256 secret bits of its own; in a simulation, derived from the
      experiment's seed, and then no privacy claim is made for the simulated people.

  Returns:
    int32 `[n]`.

  Raises:
    ValueError: If labels or ids are not integers, a label is out of range or an id occurs twice.
  """
  labels, example_ids = np.asarray(labels), np.asarray(example_ids)
  if len(labels) == 0:
    return np.zeros(0, np.int32)
  if not all(np.issubdtype(a.dtype, np.integer) for a in (labels, example_ids)):
    raise ValueError(f'client {client}: labels and ids must be integers')
  if (labels.min() < 0 or labels.max() >= mechanism.num_classes):
    raise ValueError(
        f'client {client}: labels must be in 0 to {mechanism.num_classes - 1}, '
        f'found {labels.min()} to {labels.max()}'
    )
  if not len(np.unique(example_ids)) == len(example_ids) == len(labels):
    raise ValueError(f'client {client}: needs one distinct id for each label')
  # The table, not the text of epsilon: '0.81' and '0.810' are one mechanism and one report.
  purpose = f'label report v1 K={mechanism.num_classes} B={mechanism.other}'
  return np.array(
      [
          respond(mechanism, int(y), draw(key, client, int(i), purpose))
          for y, i in zip(labels, example_ids, strict=True)
      ],
      np.int32,
  )


def histogram(labels: np.ndarray, num_classes: int) -> np.ndarray:
  """Returns int64 `[K]`, the count of each label in `[0, num_classes)`."""
  return np.bincount(labels, minlength=num_classes).astype(np.int64)
