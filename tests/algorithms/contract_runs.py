"""The small runs on which the contract of algorithms is tested."""

import collections
from typing import Any, NamedTuple

import numpy as np

from tests import toy
from tff_noise import types
from tff_noise.algorithms import algorithm as algorithm_lib
from tff_noise.algorithms import catalog
from tff_noise.federated import task as task_lib
from tff_noise.selection import availability as availability_lib

ROUNDS = 3
# Of an algorithm that has stages, each: two iterations, or two rounds.
_STAGE_LENGTH = 2
# Parameters for which everything that an algorithm does happens on four small clients: FedCorr with
# the paper's split, which always calls some client noisy, so that labels are corrected.
PARAMS = {
    'clipfl': {'keep': 1},
    'fedcorr': {
        'split_guard': False, 'confidence': 0.01, 'relabel_ratio': 1.0, 'lid_neighbours': 2,
    },
    'fedlsr': {'view': 'training'},  # These clients hold no images.
}
# And fields of its task: clients of RHFL collaborate in rounds of three or more.
_TASK = {'rhfl': {'clients_per_round': 3}}

# By algorithm, what its losses have looked at, and those that were built, in order.
LOOKED, _BUILDING = collections.defaultdict(set), []


class _WatchedForm(types.CrossEntropy):
  """Plain cross-entropy, which knows what of it a loss has looked at."""

  def __getattribute__(self, name):
    if _BUILDING and name in types.CrossEntropy._fields:
      LOOKED[_BUILDING[-1]].add(name)
    return super().__getattribute__(name)


def federation() -> types.Federation:
  """Returns four small clients."""
  draw = np.random.default_rng(0)
  # The third holds more than the 20 neighbours of an intrinsic dimension, the second one example.
  sizes = (4, 1, 27, 3)
  clients, first = [], 0
  for n in sizes:
    x = draw.normal(size=(n, 2)).astype(np.float32)
    y = draw.integers(0, 2, n).astype(np.int32)
    clients.append(types.ClientExamples(x, y, np.arange(first, first + n)))
    first += n
  return types.Federation(tuple(clients), 2, 3)


def task(entry: catalog.Entry, **changes: Any) -> task_lib.Task:
  """Returns what the entry is built from: three rounds for those clients, and its stages."""
  num_clients, sizes = len(federation().clients), federation().sizes
  stages = dict.fromkeys(entry.stages, _STAGE_LENGTH)
  return task_lib.Task(**{
      'model': toy.linear_model('batch'),
      'training': types.LocalTraining(2, 3, 0.1, loss=_WatchedForm()),
      'label_privacy': task_lib.LabelPrivacy('1.0', 'shrinkage'),
      'rounds': ROUNDS + num_clients * sum(stages.values()),
      'stages': stages,
      'clients_per_round': 2,
      'availability': availability_lib.always(num_clients),
      'client_sizes': sizes,
      'seed': federation().seed,
      'public': np.array([[1, 0], [0, 1], [1, 1]], np.float32),
      'validation': types.Examples(np.eye(2, dtype=np.float32), np.array([0, 1], np.int32)),
      **_TASK.get(entry.name, {}),
      **changes,
  })


class Built(NamedTuple):
  """An algorithm, and the task it was built from."""

  algorithm: algorithm_lib.Algorithm
  task: task_lib.Task


def build(name: str, **changes: Any) -> Built:
  """Returns an algorithm of the catalog for those clients; `changes` are of its task."""
  entry = catalog.entry(name)
  built_from = task(entry, **changes)
  _BUILDING.append(name)
  return Built(entry.build(built_from, entry.params(**PARAMS.get(name, {}))), built_from)
