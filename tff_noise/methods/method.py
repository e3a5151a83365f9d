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
from tff_noise.selection import availability as availability_lib
from tff_noise.selection import policies

if TYPE_CHECKING:
  from tff_noise.federated import aggregation
  from tff_noise.federated import client_work
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
    stages: Lengths of stages, by name, where --stages gives them.
    clients_per_round: Cohort size.
    availability: Who is there in which round.
    client_sizes: int64 `[C]`, public numbers of examples.
    seed: The experiment's seed.
  """

  model: keras_model.KerasModel
  training: types.LocalTraining
  aggregation: aggregation.Aggregation
  label_privacy: LabelPrivacy
  rounds: int
  stages: Mapping[str, int]
  clients_per_round: int
  availability: availability_lib.Availability
  client_sizes: np.ndarray
  seed: int

  def build_process(self, work: client_work.ClientWork) -> compose.RoundProcess:
    """Returns FedAvg with the given work of a client: how methods train that do not say more."""
    from tff_noise.federated import compose

    return compose.build_round_process(
        self.model, work, seed=self.seed, aggregation=self.aggregation
    )


# What a method remembers between rounds: arrays of fixed shapes, part of every checkpoint.
Records = Mapping[str, np.ndarray]


class Clients(NamedTuple):
  """The clients, for what happens between rounds.

  Attributes:
    federation: What they hold.
    datasets: Their data as TFF takes it, by client id.
  """

  federation: types.Federation
  datasets: Sequence[Any]


class Progress(NamedTuple):
  """How far a method is.

  Attributes:
    server: The server's state.
    local: The clients' own states, by client id; empty without client state.
    records: What the method remembers.
    round_num: Rounds done in the whole run.
  """

  server: Any
  local: tuple[Any, ...]
  records: Records
  round_num: int


class Stage(NamedTuple):
  """A stretch of rounds with one process.

  Attributes:
    name: Shown in `metrics.csv`.
    rounds: Its length.
    round_process: What runs in each round.
    select: From the round's number, 1 in the run's first, and the records to the ids of its
      clients.
    step_ends: Where rounds belong together, such as an iteration over all clients: the rounds of
      the stage, 1 in its first, that end such a step. The model is evaluated at their ends. Empty:
      every round is a step.
    enter: Run once before the stage's first round; None to go on with the state as it is. Returns
      a state that `round_process` takes.
    after: Run after each round, with what the clients reported (in the order of the cohort) and
      the cohort; None for nothing.
    records: Zeros in the shape and type of what the stage puts into the records.
    initial_local: For a process with client state: from a client's examples to a first state.
    columns: From the round number and the records to the method's own columns in `metrics.csv`.
  """

  name: str
  rounds: int
  round_process: compose.RoundProcess
  select: Callable[[int, Records], np.ndarray]
  step_ends: tuple[int, ...] = ()
  enter: Callable[[Clients, Progress], Progress] | None = None
  after: Callable[[Clients, Progress, Records, np.ndarray], Progress] | None = None
  records: Mapping[str, np.ndarray] = {}
  initial_local: Callable[[types.ClientExamples], Any] | None = None
  columns: Callable[[int, Records], Mapping[str, float]] = lambda *_: {}


class Schedule(NamedTuple):
  """A method, ready to run.

  Attributes:
    stages: In order; those of no rounds are skipped.
    fields: Every value that leaves clients in the whole run.
    releases: From (rounds done, records) to the privacy ledger's entries.
    summary: From the records to the method's own part of `summary.json`.
    labels: From a client's own state to the labels it believes now, int32 `[n_c]`; None for a
      method that corrects none.
    noisy_clients: From the records to bool `[C]`, the clients the server takes for noisy; None for
      a method that does not judge clients.
    client_columns: From the records to float `[C]` by name, the method's columns in `clients.csv`.
    client_scores: Which of these are meant to be higher for noisier clients.
    extra_bytes_up: From the records to what all clients together have sent outside the rounds.
  """

  stages: tuple[Stage, ...]
  fields: tuple[uplink.UplinkField, ...]
  releases: Callable[[int, Records], Sequence[ledger.Release]]
  summary: Callable[[Records], Mapping[str, Any]] = lambda _: {}
  labels: Callable[[Any], np.ndarray] | None = None
  noisy_clients: Callable[[Records], np.ndarray] | None = None
  client_columns: Callable[[Records], Mapping[str, np.ndarray]] = lambda _: {}
  client_scores: tuple[str, ...] = ()
  extra_bytes_up: Callable[[Records], int] = lambda _: 0


class Method(NamedTuple):
  """An entry of the registry.

  Attributes:
    name: Its name on the command line.
    title: One line for `--list_methods`.
    paper: Where it comes from.
    params: Frozen dataclass of its own parameters; `__post_init__` checks them.
    build: From (task, params) to the schedule; imports TensorFlow.
    stages: The names that --stages takes.
    per_client: What the server sees of single clients, which no secure sum can hide; '' for
      nothing.
  """

  name: str
  title: str
  paper: str
  params: type
  build: Callable[[Task, Any], Schedule]
  stages: tuple[str, ...] = ()
  per_client: str = ''


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


def uniform_selection(task: Task) -> Callable[[int, Records], np.ndarray]:
  """Returns the selection of `clients_per_round` of those who are there, without replacement."""
  return lambda round_num, _: draw_cohort(task, round_num, task.availability.present(round_num))


def draw_cohort(task: Task, round_num: int, candidates: np.ndarray) -> np.ndarray:
  """Returns the cohort of a round, drawn from `candidates`, int64 in ascending order.

  Raises:
    types.UsageError: If there is no candidate.
  """
  if not len(candidates):
    raise types.UsageError(
        f'no client can take part in round {round_num}: none that may is there (--arrivals)'
    )
  return policies.uniform(task.seed, round_num, candidates, task.clients_per_round)
