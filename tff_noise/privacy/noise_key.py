"""Keys of noise: another release has other noise.

Noise that is used for two releases cancels in their difference. So its key is a digest of all that
defines a release, below a secret that is either a function of the seed or the system's.
"""

import hashlib
import hmac
import json
from typing import Any

import numpy as np

# Where the secret comes from: 'seed' is for runs that can be repeated, and protects nobody.
SOURCES = ('seed', 'system')


def derive(key: bytes, *defines: Any) -> bytes:
  """Returns 32 bytes, HMAC-SHA256 of what defines a release.

  Args:
    key: The secret.
    *defines: As JSON takes it.
  """
  return hmac.digest(key, json.dumps(defines, sort_keys=True).encode(), hashlib.sha256)


def to_seed(key: bytes) -> np.ndarray:
  """Returns int64 `[2]`, a seed for TensorFlow's stateless operations: 128 bits of the key."""
  return np.frombuffer(key[:16], '<i8').astype(np.int64)
