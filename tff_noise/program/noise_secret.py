"""The secret that a run's noise on updates is drawn from."""

import hashlib
import os

import numpy as np

from tff_noise import rng
from tff_noise import types
from tff_noise.privacy import noise_key
from tff_noise.program import code_version
from tff_noise.program import run_config


def system_key() -> bytes:
  """Returns 32 bytes of the system's cryptographic generator, for `--noise_source=system`."""
  return os.urandom(32)


def of_run(
    config: run_config.RunConfig, federation: types.Federation, system: bytes | None = None
) -> bytes:
  """Returns 32 bytes that no run has whose releases may differ from this one's.

  They are a function of every flag that determines the result, of the code, of what the clients
  hold and of the files that flags name. Two runs that differ in any of these draw unrelated noise,
  so that what they release cannot be subtracted; a run that is continued draws the same again.

  Args:
    config: The flags.
    federation: What the clients hold.
    system: Of `system_key`, with `--noise_source=system`; drawn here if not given. Unused with
      `--noise_source=seed`.
  """
  if config.noise_source == 'system':
    secret = system or system_key()
  else:
    secret = rng.key(config.seed, 'client-level noise')
  files = {name: _file_digest(getattr(config, name)) for name in ('weights', 'arrivals')}
  return noise_key.derive(
      secret, config.identity(), code_version.digest(), _data_digest(federation), files
  )


def _data_digest(federation):
  digest = hashlib.sha256()
  for client in federation.clients:
    for values in client:
      values = np.asarray(values)
      digest.update(f'{values.dtype.str}{values.shape}'.encode())
      content = repr(values.tolist()).encode() if values.dtype.hasobject else values.tobytes()
      digest.update(content)
  return digest.hexdigest()


def _file_digest(path):
  """'' where a flag names no file."""
  if path is None or not os.path.isfile(path):
    return ''
  with open(path, 'rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()
