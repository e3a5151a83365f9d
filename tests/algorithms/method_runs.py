"""Whole runs of a method on a linear model, alone or on an optimizer, for tests of methods."""

from typing import Any

import numpy as np

from tests import toy
from tests.program import runs
from tff_noise import types
from tff_noise.algorithms import algorithm as algorithm_lib
from tff_noise.algorithms import catalog
from tff_noise.federated import task as task_lib
from tff_noise.optimizers import catalog as optimizers
from tff_noise.program import clients as clients_lib
from tff_noise.program import training

SEED = 3
# Four points of two classes, for losses that are computed by hand or in NumPy.
X = np.array([[1, 0], [0, 2], [1, 1], [-1, 2]], np.float32)
Y = np.array([0, 1, 1, 0], np.int32)


def task(federation: types.Federation, base: str = '', **changes: Any) -> task_lib.Task:
  """Returns a task of three rounds of two clients; `base` names an optimizer, '' for none."""
  made = task_lib.Task(
      model=toy.linear_model(), training=types.LocalTraining(2, 3, 0.2), seed=SEED, rounds=3,
      client_sizes=federation.sizes, clients_per_round=min(2, len(federation.clients)),
  )._replace(**changes)
  if base:
    entry = optimizers.OPTIMIZERS[base]
    made = made._replace(optimizer=entry.build(made, entry.params()))
  return made


def one_client(x: np.ndarray = X, y: np.ndarray = Y) -> types.Federation:
  """Returns a federation of one client with these examples."""
  return types.Federation((types.ClientExamples(x, y, np.arange(len(y))),), 2, SEED)


def build(name: str, task_: task_lib.Task, **params: Any) -> algorithm_lib.Algorithm:
  """Returns the method of this name."""
  entry = catalog.ALGORITHMS[name]
  return entry.build(task_, entry.params(**params))


def run(
    name: str,
    federation: types.Federation,
    task_: task_lib.Task,
    state: algorithm_lib.State | None = None,
    **params: Any,
) -> tuple[algorithm_lib.State, clients_lib.SimulatedClients]:
  """Runs all rounds, or those after `state`; returns the last state, and the clients."""
  algorithm = build(name, task_, **params)
  clients = runs.clients_of(algorithm, task_, federation)
  state = state or algorithm.init()
  while state.round_num < algorithm.rounds:
    state = training.run_round(algorithm, state, clients)
  return state, clients


def trained(
    name: str, federation: types.Federation, task_: task_lib.Task, **params: Any
) -> tuple[np.ndarray, clients_lib.SimulatedClients]:
  """Runs all rounds; returns the last weights of the linear model, and the clients."""
  state, clients = run(name, federation, task_, **params)
  return state.weights.trainable[0], clients
