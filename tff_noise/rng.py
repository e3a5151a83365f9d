"""Every random stream of the product, derived from (seed, purpose, round, client).

A stream depends on nothing else: not on time, host, process, or on what was drawn before. So a run
that is resumed, distributed or replayed draws the same numbers.
"""

import hashlib
import json

import numpy as np


def _digest(seed: int, purpose: str, ids: tuple[int, ...]) -> bytes:
  # JSON keeps the parts apart: ('a', 1, 2) and ('a', 12) never collide.
  message = json.dumps([int(seed), purpose, *map(int, ids)])
  return hashlib.sha256(message.encode()).digest()


def generator(seed: int, purpose: str, *ids: int) -> np.random.Generator:
  """Returns the NumPy generator of `(seed, purpose, *ids)`."""
  return np.random.Generator(np.random.PCG64(int.from_bytes(_digest(seed, purpose, ids), 'big')))


def tf_seed(seed: int, purpose: str, *ids: int) -> np.ndarray:
  """Returns int32 `[2]`, a seed for TensorFlow's stateless operations."""
  return np.frombuffer(_digest(seed, purpose, ids)[:8], '<i4').astype(np.int32)


def integer(seed: int, purpose: str, *ids: int) -> int:
  """Returns an integer in `[0, 2**31)`, a seed for libraries that take one number."""
  return int.from_bytes(_digest(seed, purpose, ids)[:4], 'big') >> 1


def key(seed: int, purpose: str, *ids: int) -> bytes:
  """Returns 32 bytes, the key of a pseudo-random function in a simulation."""
  return _digest(seed, 'key:' + purpose, ids)
