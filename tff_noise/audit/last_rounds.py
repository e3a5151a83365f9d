"""The rounds between a run's last two checkpoints, computed again by this code.

It ties what was audited of the code, such as flips and noise, to what the run did, by states that
the ledger is committed to. How far the models are from the run's is held against how far the rounds
moved them: under other labels or without the noise they end elsewhere.
"""

import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tff_noise.algorithms import algorithm as algorithm_lib
from tff_noise.algorithms import averaged_model
from tff_noise.audit import computed_again
from tff_noise.audit import finding
from tff_noise.program import clients as clients_lib
from tff_noise.program import run_config
from tff_noise.program import task as task_lib
from tff_noise.program import training

_ROUNDS = 'state: the rounds up to the last checkpoint, computed again by this code, end at it'
# Of the way. Another machine sums in another order, which large steps blow up; without flips of
# labels at an epsilon of 1, or without noise, it is the whole way.
_APART = 0.5
# Of noise most of the way is, and rounding leaves it as it is: less of it shows.
_APART_IN_NOISE = 0.1


def check(
    config: run_config.RunConfig,
    prepared: task_lib.Prepared,
    states: Sequence[training.ProgramState],
    same_code: bool,
) -> finding.Finding:
  """Computes the rounds between the last two checkpoints, or up to the only one.

  Args:
    config: The run's.
    prepared: Its method.
    states: Its checkpoints, the oldest first.
    same_code: Whether this code made it; noise of other code is other noise.
  """
  if not states:
    return finding.no_evidence(_ROUNDS, 'there is no checkpoint')
  last = states[-1]
  if last.round_num > prepared.algorithm.rounds:
    return finding.failed(_ROUNDS, f'the configuration has no round {last.round_num}')
  clients, start = computed_again.begin(config, prepared)
  if len(states) > 1:
    start = states[-2].state
    clients.resume(states[-2].own, states[-2].participations, states[-2].aggregators)
  began = _vector(start, clients.own)
  again = computed_again.go_on(prepared.algorithm, clients, start, last.round_num)
  if start.round_num >= last.round_num:
    return finding.no_evidence(_ROUNDS, 'there is no round between the last two checkpoints')
  ended, ends = _vector(last.state, last.own), _vector(again, clients.own)
  apart, way = _length(ended - ends), max(_length(ended - began), _length(ends - began))
  rounds = f'rounds {start.round_num + 1} to {last.round_num}'
  # Of a model that diverged there is no distance, and of infinity every share is the whole.
  near = math.isfinite(way) and apart <= _APART * way
  if not (near or np.array_equal(ended, ends, equal_nan=True)):
    found = finding.failed if same_code else finding.no_evidence
    return found(_ROUNDS, f'{rounds} end at other models')
  allowed = _APART
  if any(c.is_noisy for c in prepared.algorithm.used):
    allowed = _APART_IN_NOISE
    if apart > allowed * way:
      return finding.no_evidence(
          _ROUNDS, f'{rounds} end further apart than {allowed:.0%} of how far they go, where noise '
          'is the same but for rounding'
      )
  # No more: with the clients' data, seeds could be tried until one gives the same number.
  return finding.passed(_ROUNDS, f'{rounds}, to {allowed:.0%} of how far they go')


def _vector(state: algorithm_lib.State, own: clients_lib.OwnStates) -> np.ndarray:
  """The numbers of all models; of what clients keep, where the server has no model."""
  # A mean of models goes less far, and begins at 0.
  models = {name: m for name, m in state.models.items() if name != averaged_model.AVERAGED}
  arrays = map(np.asarray, tf.nest.flatten(models or own))
  parts = [a.ravel().astype(np.float64) for a in arrays if a.dtype.kind == 'f']
  return np.concatenate([np.zeros(0), *parts])


def _length(vector):
  return float(np.linalg.norm(vector))
