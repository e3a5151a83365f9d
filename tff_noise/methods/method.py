"""What a method is: parameters, and a schedule of stages built from the shared parts.

This file and the head of each method's file import no TensorFlow: names and parameters are listed
and checked before it is loaded.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tff_noise import types
from tff_noise.selection import policies

if TYPE_CHECKING:
  from tff_noise.federated import aggregation
  from tff_noise.federated import compose
  from tff_noise.federated import uplink
  from tff_noise.models import keras_model
  from tff_noise.privacy import ledger


class LabelPrivacy(NamedTuple):
  """How labels are communicated, for methods that do.

  Attributes:
    epsilon: Of one label's report, decimal text.
    prior: A key of `estimator.PRIORS`.
  """

  epsilon: str
  prior: str


class Task(NamedTuple):
  """All a method is built from.

  Attributes:
    model: What is trained.
    training: How clients train.
    aggregation: How updates are aggregated.
    label_privacy: How labels are communicated.
    rounds: R.
    clients_per_round: Cohort size.
    client_sizes: int64 `[C]`, public numbers of examples.
    seed: The experiment's seed.
  """

  model: keras_model.KerasModel
  training: types.LocalTraining
  aggregation: aggregation.Aggregation
  label_privacy: LabelPrivacy
  rounds: int
  clients_per_round: int
  client_sizes: np.ndarray
  seed: int


class Stage(NamedTuple):
  """A stretch of rounds with one process.

  Attributes:
    name: Shown in `metrics.csv`.
    rounds: Its length.
    round_process: What runs in each round.
    select: From the round number, 1 in the run's first round, to the ids of its clients.
    enter: Run once before the stage's first round, from (federation, server state) to (server
      state, records); None for nothing. What it learns is part of the program's state.
    records: Zeros in the shape and type of what `enter` records.
    initial_local: For a process with client state: from a client's examples to its first state.
    columns: From the round number to the method's own columns in `metrics.csv`.
  """

  name: str
  rounds: int
  round_process: compose.RoundProcess
  select: Callable[[int], np.ndarray]
  enter: Callable[[types.Federation, Any], tuple[Any, Mapping[str, np.ndarray]]] | None = None
  records: Mapping[str, np.ndarray] = {}
  initial_local: Callable[[types.ClientExamples], Any] | None = None
  columns: Callable[[int], Mapping[str, float]] = lambda _: {}


class Schedule(NamedTuple):
  """A method, ready to run.

  Attributes:
    stages: In order. The server's state is handed from each to the next.
    fields: Every value that leaves clients in the whole run.
    releases: From (rounds done, records) to the privacy ledger's entries.
    summary: From the records to the method's own part of `summary.json`.
  """

  stages: tuple[Stage, ...]
  fields: tuple[uplink.UplinkField, ...]
  releases: Callable[[int, Mapping[str, np.ndarray]], Sequence[ledger.Release]]
  summary: Callable[[Mapping[str, np.ndarray]], Mapping[str, Any]] = lambda _: {}


class Method(NamedTuple):
  """An entry of the registry.

  Attributes:
    name: Its name on the command line.
    title: One line for `--list_methods`.
    paper: Where it comes from.
    params: Frozen dataclass of its own parameters; `__post_init__` checks them.
    build: From (task, params) to the schedule; imports TensorFlow.
  """

  name: str
  title: str
  paper: str
  params: type
  build: Callable[[Task, Any], Schedule]


def parse_params(method: Method, assignments: Sequence[str]) -> Any:
  """Returns `method.params` from texts `NAME=VALUE`.

  Raises:
    types.UsageError: For an unknown name, a name given twice, or a value its field cannot take.
  """
  fields = {f.name: f for f in dataclasses.fields(method.params)}
  values = {}
  for assignment in assignments:
    name, separator, text = assignment.partition('=')
    if not separator:
      raise types.UsageError(f'--param must be NAME=VALUE, got {assignment!r}')
    if name not in fields:
      known = ', '.join(fields) or 'none'
      raise types.UsageError(f'--param: {method.name} has no {name!r}; it has: {known}')
    if name in values:
      raise types.UsageError(f'--param: {name} is given twice')
    values[name] = _parse_value(name, text, type(fields[name].default))
  try:
    return method.params(**values)
  except ValueError as error:
    raise types.UsageError(f'--param: {error}') from error


def _parse_value(name: str, text: str, kind: type) -> Any:
  if kind is bool:
    if text.lower() not in ('true', 'false'):
      raise types.UsageError(f'--param: {name} must be true or false, got {text!r}')
    return text.lower() == 'true'
  try:
    value = kind(text)
  except ValueError:
    noun = {int: 'an integer', float: 'a number'}[kind]
    raise types.UsageError(f'--param: {name} must be {noun}, got {text!r}') from None
  if kind is float and not math.isfinite(value):
    raise types.UsageError(f'--param: {name} must be finite, got {text!r}')
  return value


def require_positive(params: Any, *names: str) -> None:
  """Raises `ValueError` unless each named parameter is above 0."""
  for name in names:
    if getattr(params, name) <= 0:
      raise ValueError(f'{name} must be positive, got {getattr(params, name)}')


def require_not_negative(params: Any, *names: str) -> None:
  """Raises `ValueError` if a named parameter is below 0."""
  for name in names:
    if getattr(params, name) < 0:
      raise ValueError(f'{name} must not be negative, got {getattr(params, name)}')


def require_one_of(params: Any, name: str, allowed: Sequence[str]) -> None:
  """Raises `ValueError` unless the named parameter is one of `allowed`."""
  if getattr(params, name) not in allowed:
    raise ValueError(f'{name} must be one of {", ".join(allowed)}, got {getattr(params, name)!r}')


def uniform_selection(task: Task) -> Callable[[int], np.ndarray]:
  """Returns the selection of `clients_per_round` clients, uniform without replacement."""
  return lambda round_num: policies.uniform(
      task.seed, round_num, len(task.client_sizes), task.clients_per_round
  )
