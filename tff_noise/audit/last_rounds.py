"""The rounds between a run's last two checkpoints, computed again by this code.

It ties what was audited of the code, such as flips and noise, to what the run did, by states that
the ledger is committed to. How far the models are from the run's is held against how far the rounds
moved them: under other labels or without the noise they end elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tff_noise.audit import finding
from tff_noise.data import client_data
from tff_noise.privacy import ledger
from tff_noise.program import clients as clients_lib
from tff_noise.program import run_config
from tff_noise.program import task as task_lib
from tff_noise.program import training
from tff_noise.program import training_run
from tff_noise.uplink import uplink

_ROUNDS = 'state: the rounds up to the last checkpoint, computed again by this code, end at it'
# Of the way. Another machine sums in another order, which large steps blow up; without flips of
# labels at an epsilon of 1, or without noise, it is the whole way.
_APART = 0.5


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
  clients, start = _first(config, prepared)
  if len(states) > 1:
    start = states[-2]
    clients.resume(start.own, start.participations, start.aggregators)
  again = _after(last.round_num, prepared, clients, start.state)
  began, ended, ends = map(_vector, (start, last, again))
  apart, way = _length(ended - ends), max(_length(ended - began), _length(ends - began))
  rounds = f'rounds {start.round_num + 1} to {last.round_num}'
  if apart and not apart <= _APART * way:
    found = finding.failed if same_code else finding.no_evidence
    return found(_ROUNDS, f'{rounds} end at other models')
  # No more: with the clients' data, seeds could be tried until one gives the same number.
  return finding.passed(_ROUNDS, f'{rounds}, to {_APART:.0%} of how far they go')


def _first(config, prepared):
  """The run's clients, and its state, before its first round."""
  algorithm, task, federation = prepared.algorithm, prepared.task, prepared.federation
  book = ledger.Ledger(algorithm.fields, uplink.to_json(algorithm.fields))
  datasets = client_data.federation_datasets(federation)
  clients = clients_lib.SimulatedClients(algorithm, task, federation, datasets, book)
  state = training.initial_state(algorithm, training_run.initial_weights(config, prepared))
  return clients, training.program_state(state, clients, book)


def _after(round_num, prepared, clients, state):
  while state.round_num < round_num:
    state = training.run_round(prepared.algorithm, state, clients)
  return training.ProgramState(state, clients.own, clients.participations, clients.aggregators, ())


def _vector(state: training.ProgramState) -> np.ndarray:
  """The numbers of all models; of what clients keep, where the server has no model."""
  values: Any = state.state.models or state.own
  arrays = map(np.asarray, tf.nest.flatten(values))
  parts = [a.ravel().astype(np.float64) for a in arrays if a.dtype.kind == 'f']
  return np.concatenate([np.zeros(0), *parts])


def _length(vector):
  return float(np.linalg.norm(vector))
