"""The secret that a run's noise on updates, and its cohorts with it, are drawn from."""

import hashlib
import os

import numpy as np

from tff_noise import rng
from tff_noise import types
from tff_noise.privacy import noise_key
from tff_noise.program import code_version
from tff_noise.program import inputs
from tff_noise.program import run_config
from tff_noise.program import run_directory

# Of a run with `--noise_source=system`, readable by its owner alone.
_KEY = 'noise.key'


def system_key(
    config: run_config.RunConfig, run: run_directory.RunDirectory | None
) -> bytes | None:
  """Returns the key of a run that draws its noise from the system's, and None of one that does not.

  A new run, as None stands for, gets a new one; one that is there has its own, so that a round that
  is repeated releases the same.

  Raises:
    types.UsageError: If the key of a run is missing or damaged.
  """
  if config.noise_source != 'system' or not config.client_dp_noise:
    return None
  return run_directory.read_secret(run.file(_KEY)) if run and run.exists else os.urandom(32)


def of_cohorts(system: bytes | None, seed: int) -> int | None:
  """Returns what cohorts are drawn by beside noise of `system_key`; None for the seed.

  A seed can be tried, for the first model follows from it, and so would cohorts be known that a
  claim takes for secret. It is in the draw as well: runs that shared a key would have had cohorts
  in common, which accounts of several runs tell by seeds.
  """
  if system is None:
    return None
  return int.from_bytes(noise_key.derive(system, 'cohorts', str(seed))[:8], 'little') >> 1


def write(folder: str, key: bytes | None) -> None:
  """Writes the key of a run that has one."""
  if key is not None:
    run_directory.write_secret(os.path.join(folder, _KEY), key)


def of_run(
    config: run_config.RunConfig,
    dataset: types.Dataset,
    federation: types.Federation,
    system: bytes | None = None,
) -> bytes:
  """Returns 32 bytes that no run has whose releases may differ from this one's.

  They are a function of every flag that determines the result, of the code, of what the clients
  hold, of what the server has and of the files that flags name. Two runs that differ in any of
  these draw unrelated noise, so that what they release cannot be subtracted; a run that is
  continued draws the same again.

  Args:
    config: The flags.
    dataset: What they are drawn from, with what the server has.
    federation: What the clients hold.
    system: Of `system_key`, with `--noise_source=system`; drawn here if not given. Unused with
      `--noise_source=seed`.
  """
  return noise_key.derive(_source(config, dataset, federation, system), code_version.digest())


def name(
    config: run_config.RunConfig,
    dataset: types.Dataset,
    federation: types.Federation,
    system: bytes | None = None,
) -> str:
  """Returns what tells the noise of a run from that of others, but nothing of what it is.

  Two runs have the same key of noise if, and only if, their names and their codes are the same.
  Arguments are those of `of_run`.

  Returns:
    64 hexadecimal digits; '' for a run without noise.
  """
  if not config.client_dp_noise:
    return ''
  return noise_key.derive(_source(config, dataset, federation, system), 'name').hex()


def check(run: run_directory.RunDirectory, noise: str) -> None:
  """Raises `UsageError` if a run drew other noise so far than `noise`, of `name`.

  The rounds since its last checkpoint would be released again with other noise: for a secret cohort
  that answers twice there is no bound.
  """
  if run_directory.read_json(run.file('config.json')).get('noise', '') != noise:
    raise types.UsageError(
        f'run {run.name} was begun with other noise: its scene or its {_KEY} is not what it was; '
        'bring it back, or begin another run (--run_name)'
    )


def _source(config, dataset, federation, system):
  """Of all but the code."""
  if config.noise_source == 'system':
    secret = system or os.urandom(32)
  else:
    secret = rng.key(config.seed, 'client-level noise')
  made_from = inputs.digests(config, dataset)
  return noise_key.derive(secret, config.identity(), _data_digest(federation), made_from)


def _data_digest(federation):
  digest = hashlib.sha256()
  for client in federation.clients:
    for values in client:
      values = np.asarray(values)
      if values.dtype.kind == 'S':
        # Paths of images: their folder may lie elsewhere another time. What is in them, and which
        # of them a client has, is in the digests of inputs and in its ids.
        continue
      digest.update(f'{values.dtype.str}{values.shape}'.encode())
      content = repr(values.tolist()).encode() if values.dtype.hasobject else values.tobytes()
      digest.update(content)
  return digest.hexdigest()
