"""The noise on updates that flags ask for, and how far a budget of epsilon goes. No TensorFlow.

Loads the accountant, which takes about a second: imported where a budget is given, or later.
"""

import bisect
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from tff_noise import types
from tff_noise.data import scene as scene_lib
from tff_noise.privacy import costs as costs_lib
from tff_noise.privacy import protection
from tff_noise.privacy import rounding
from tff_noise.program import run_config

# Noise multipliers of four digits, 1e-4 to 1e6: 9,000 in each decade.
_MULTIPLIERS = range(90_001)


def of_config(
    config: run_config.RunConfig, num_clients: int, *, keeps_state: bool = False
) -> protection.NoisySum:
  """Returns the noisy sum of a run with `--client_dp_noise` on so many clients.

  Args:
    config: The flags.
    num_clients: C.
    keeps_state: Whether what a client sends depends on what it kept of rounds before.
  """
  # Who comes late is not drawn uniformly from all: no protection by sampling. Nor is there any
  # against the server, which draws, where it is not trusted to add the noise.
  distributed = config.client_dp_mechanism == protection.DISCRETE_GAUSSIAN
  uniform = config.arrivals is None and not (distributed and config.aggregation == 'secure_sum')
  # What other clients keep tells who was in cohorts before, and of a fixed size so who was not.
  uniform = uniform and not (keeps_state and config.client_sampling == protection.FIXED)
  in_turns = config.client_sampling == protection.CYCLIC
  return protection.NoisySum(
      config.client_dp_noise,
      config.client_dp_clip,
      cohort=config.clients_per_round,
      population=num_clients if uniform or in_turns else config.clients_per_round,
      mechanism=config.client_dp_mechanism,
      noise_source=config.noise_source,
      sampling=config.client_sampling,
  )


def with_least_noise(config: run_config.RunConfig) -> run_config.RunConfig:
  """Returns the configuration with the least noise that keeps all rounds within its target.

  One with noise of its own, or without a target, stays as it is.

  Raises:
    types.UsageError: If there is no such noise, or it cannot be known before the data are read.
  """
  target = config.target_client_epsilon
  if target is None or config.client_dp_noise:
    return config
  lengths = config.stage_lengths()
  if lengths and sum(lengths.values()) != config.rounds:
    raise types.UsageError(
        f'--target_client_epsilon counts --rounds={config.rounds}, and --stages has '
        f'{sum(lengths.values())} rounds: give one number, or --client_dp_noise'
    )
  num_clients = _num_clients(config)
  config.check_clients(num_clients)
  noisy = of_config(config, num_clients)
  return dataclasses.replace(config, client_dp_noise=_least_noise(noisy, config.rounds, target))


def _num_clients(config):
  """How many clients there are, as far as flags say."""
  if config.centralised:
    return 1
  if config.scene is not None:
    return scene_lib.read(config.scene).num_clients
  if config.partition == 'natural':
    raise types.UsageError(
        '--target_client_epsilon needs to know how many clients there are, which the data say with '
        '--partition=natural: draw them by bin/scene and give --scene, or give --client_dp_noise'
    )
  return config.clients


@functools.cache
def _least_noise(noisy, rounds, target):
  def cost(i):
    return _epsilon(noisy._replace(noise_multiplier=_multiplier(i)), rounds)

  least = bisect.bisect_left(_MULTIPLIERS, True, key=lambda i: cost(i) <= target)
  if least == len(_MULTIPLIERS):
    raise types.UsageError(
        f'--target_client_epsilon={target:g} cannot be reached: with the most noise there is '
        f'{rounds} rounds cost {cost(_MULTIPLIERS[-1]):.3g}; allow more, or run fewer --rounds'
    )
  return _multiplier(least)


def _multiplier(index):
  return float(f'{1000 + index % 9000}e{index // 9000 - 7}')


def _epsilon(noisy, rounds):
  """What rounds cost a client, at the delta of `privacy.json`."""
  return protection.cost(noisy, rounds, protection.Unit.CLIENT, costs_lib.DELTA).epsilon


def rounds_within(
    config: run_config.RunConfig, fields: Sequence[Any], rounds: int
) -> int | None:
  """Returns how many rounds a run may have within its target; None if it has none.

  Args:
    config: The flags.
    fields: All that is released of clients, `uplink.UplinkField`s, of which each round has one
      noisy sum.
    rounds: How many are planned.

  Raises:
    types.UsageError: If not even one is, or something else is released than noisy sums.
  """
  target = config.target_client_epsilon
  if target is None:
    return None
  if not config.client_dp_noise:
    raise ValueError('a target without noise: see with_least_noise')
  others = [f.name for f in fields if not isinstance(f.protection, protection.NoisySum)]
  if others:
    raise types.UsageError(
        '--target_client_epsilon holds for no run in which clients send more than noisy updates, '
        f'and here they send: {", ".join(others)}; leave it out, or use another --method'
    )
  [noisy] = {f.protection for f in fields}
  if _epsilon(noisy, rounds) <= target:
    return rounds
  allowed = bisect.bisect_left(
      range(1, rounds), True, key=lambda r: _epsilon(noisy, r) > target
  )
  if not allowed:
    raise types.UsageError(
        f'--target_client_epsilon={target:g} does not allow one round, which costs '
        f'{rounding.up(_epsilon(noisy, 1))}: use more --client_dp_noise, or leave it out, and the '
        'least that is enough is taken'
    )
  return allowed
