"""What an algorithm is: `init`, and `round(state, clients) -> state` in the order of its paper.

An algorithm reaches clients through `Clients` alone, by computations that it lists. It gets what
they declare that clients send, and public facts: ids, numbers of examples, who is there. It never
gets their data, nor what they keep, but for what measures a simulation (`Algorithm.evaluate`, the
summaries of its `Report`) and must not go back into rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from tff_noise import types
from tff_noise.clients import program as program_lib
from tff_noise.federated import computation as computation_lib
from tff_noise.federated import optimizer as optimizer_lib
from tff_noise.federated import task as task_lib
from tff_noise.models import keras_model
from tff_noise.privacy import protection
from tff_noise.uplink import uplink

# Arrays of fixed shapes, by name.
Records = Mapping[str, np.ndarray]

# Under which the global model is in `State.models`.
MODEL = 'model'


class State(NamedTuple):
  """What an algorithm knows between rounds; a resume needs nothing else of it.

  Attributes:
    models: Weights by name; the global model is `MODEL`.
    optimizers: The state of each federated optimizer's server, by its name.
    received: By name, what clients receive besides the model, see `ClientProgram.receives`.
    records: What the algorithm remembers.
    round_num: Rounds done in the whole run.
  """

  models: Mapping[str, Any]
  optimizers: Mapping[str, Any]
  received: Mapping[str, Any]
  records: Records
  round_num: int = 0

  @property
  def weights(self) -> Any:
    """The global model's, `tff.learning.models.ModelWeights`."""
    return self.models[MODEL]

  def record(self, **records: np.ndarray) -> State:
    """Returns the state that remembers these now.

    Raises:
      ValueError: If one was not there from the start, or had another shape or type.
    """
    for name, value in records.items():
      first = self.records.get(name, value)
      if (np.shape(value), np.asarray(value).dtype) != (np.shape(first), np.asarray(first).dtype):
        raise ValueError(f'the record {name!r} changes its shape or type')
    return self._replace(records=_changed(self.records, records, 'record'))

  def send(self, **values: Any) -> State:
    """Returns the state in which clients receive these values from now on.

    Raises:
      ValueError: If one is none that they receive, or had another shape or kind of numbers.
    """
    received = _changed(self.received, values, 'value that clients receive')
    return self._replace(received={
        **received,
        **{n: program_lib.as_first(n, self.received[n], v) for n, v in values.items()},
    })


def _changed(values, changes, what):
  """The values with changes."""
  unknown = changes.keys() - values.keys()
  if unknown:
    raise ValueError(f'{sorted(unknown)[0]!r} is no {what} of this algorithm')
  return {**values, **changes}


def _equal(first, second):
  """Whether two structures of arrays are the same."""
  pairs = zip(tf.nest.flatten(first), tf.nest.flatten(second), strict=False)
  return len(tf.nest.flatten(first)) == len(tf.nest.flatten(second)) and all(
      np.array_equal(a, b) for a, b in pairs
  )


class Output(NamedTuple):
  """What comes of a computation.

  Attributes:
    state: With the next model, where it was a round of training.
    cohort: int64 `[k]`, who took part, ascending.
    sums: What was summed, by name; `loss` is a mean over examples.
    reports: `[k, ...]` by name, what the server sees by client, in the order of the cohort.
    mean: The mean of what clients sent as their update, where a computation without a next model
      takes one.
  """

  state: State
  cohort: np.ndarray
  sums: Mapping[str, np.ndarray]
  reports: Mapping[str, np.ndarray]
  mean: Any = ()


class Clients(Protocol):
  """All that an algorithm can do with clients in a round.

  Whatever is asked of them is checked against the algorithm's computations and entered into the
  privacy ledger before anything leaves a client.
  """

  @property
  def everybody(self) -> np.ndarray:
    """int64 `[C]`, the ids of all clients."""

  @property
  def present(self) -> np.ndarray:
    """int64, the ids of the clients that are there in this round, ascending."""

  def sample(
      self,
      computation: computation_lib.Computation,
      state: State,
      among: np.ndarray | None = None,
      size: int | None = None,
  ) -> np.ndarray:
    """Returns int64, who takes part in a round of `computation`, ascending.

    A uniform draw without replacement, unless the computation's optimizer chooses otherwise. Where
    the task says so, those whose turn it is; or a Poisson sample of everybody, in which there may
    be nobody: `train` is called all the same, as noise alone is released.

    Args:
      computation: What they are to take part in.
      state: The state.
      among: Ids of those that may; those of them that are there do. All if not given.
      size: How many, if not the task's clients per round; fewer if fewer may.

    Raises:
      types.UsageError: If none may; if others than everybody are asked for of a Poisson sample, or
        where clients have turns.
    """

  def train(
      self,
      computation: computation_lib.Computation,
      state: State,
      cohort: np.ndarray,
      **messages: np.ndarray,
  ) -> Output:
    """Runs a round of training.

    Args:
      computation: From `computation.train`.
      state: Whose model, and what belongs to it, is used.
      cohort: int64 `[k]`, ids, ascending.
      **messages: `[k, ...]`, what each client of the cohort alone receives.

    Raises:
      ValueError: If the algorithm does not list the computation, or a value is not as declared.
      types.RunError: If the computation of a client fails.
    """

  def run(
      self,
      computation: computation_lib.Computation,
      state: State,
      cohort: np.ndarray,
      **messages: np.ndarray,
  ) -> Output:
    """Runs a computation without a next model; arguments and errors are those of `train`.

    For an empty cohort there is nothing to run: sums and reports are empty.
    """

  def forget(self, cohort: np.ndarray, *names: str) -> None:
    """Tells clients to drop what they keep under these names: it is as it was at first."""


class Report(NamedTuple):
  """What an algorithm says of a run.

  Attributes:
    columns: From the state to its own columns in `metrics.csv`.
    summary: From the records to its own part of `summary.json`.
    kept_summary: From the state and what each client keeps, by name, to a further part of it: a
      simulation can look, as in `Algorithm.evaluate`.
    labels: Name of what clients keep of their labels, int32 `[n_c]`; '' if it corrects none.
    posterior: Name of what clients keep of how likely each label is right, float32 `[n_c]` in
      [0, 1], nan where they have not judged it; '' if they do not.
    noisy_clients: From the records to bool `[C]`, the clients the server takes for noisy; None
      for an algorithm that does not tell clients apart.
    client_columns: From the records to float `[C]` by name, its columns in `clients.csv`.
    client_scores: Which of these are meant to be higher for noisier clients.
    lines: From the content of `summary.json` to its own lines of the closing summary, between those
      about label noise and those about labels. Of its own part it has the names given there; in
      the file those that are a run's begin with `own_`.
  """

  columns: Callable[[State], Mapping[str, float]] = lambda state: {}
  summary: Callable[[Records], Mapping[str, Any]] = lambda records: {}
  kept_summary: Callable[[State, Sequence[Mapping[str, Any]]], Mapping[str, Any]] = (
      lambda state, own: {}
  )
  labels: str = ''
  posterior: str = ''
  noisy_clients: Callable[[Records], np.ndarray] | None = None
  client_columns: Callable[[Records], Mapping[str, np.ndarray]] = lambda records: {}
  client_scores: tuple[str, ...] = ()
  lines: Callable[[Mapping[str, Any]], Sequence[str]] = lambda summary: ()


class Evaluated(NamedTuple):
  """A model to be evaluated.

  Attributes:
    model: What the weights are of; None for the task's.
    weights: Its weights.
  """

  model: Any
  weights: Any


class Algorithm(NamedTuple):
  """An algorithm, ready to run.

  Attributes:
    round: One round, from the state and the clients to the next state.
    computations: All that clients take part in.
    stages: Names of stretches of rounds and their lengths, in order; some may be 0.
    records: First values of what it remembers.
    models: First weights by name, in place of the global model's.
    times: By name of a computation, in how many rounds of a run it takes part at most; in all,
      where it is not named. For audits without a run.
    cohorts: By name of a computation that the algorithm does not ask of a sample, over how few
      clients it may be.
    step_ends: Where rounds belong together, such as an iteration over all clients: the rounds, 1
      the run's first, that end such a step. The model is evaluated at their ends. Rounds of stages
      without any are steps by themselves.
    evaluate: From the state and what each client keeps, by name, to the models whose mean accuracy
      is the algorithm's; None for the model that the last optimizer makes. A simulation can look at
      what clients keep.
    report: What it says of a run.
    ends_after: After how many rounds a run ends, though its stages may have more; None if it does
      not.
  """

  round: Callable[[State, Clients], State]
  computations: tuple[computation_lib.Computation, ...]
  stages: Mapping[str, int]
  records: Mapping[str, np.ndarray] = {}
  models: Mapping[str, Any] = {}
  times: Mapping[str, int] = {}
  cohorts: Mapping[str, int] = {}
  step_ends: tuple[int, ...] = ()
  evaluate: Callable[[State, Sequence[Mapping[str, Any]]], list[Evaluated]] | None = None
  report: Report = Report()
  ends_after: int | None = None

  def init(self) -> State:
    """Returns the state before the first round; no client is asked.

    Raises:
      ValueError: If computations, or different optimizers, have the same name.
    """
    names = [c.name for c in self.computations]
    if len(set(names)) < len(names):
      raise ValueError(f'two computations of an algorithm have one name: {", ".join(names)}')
    records = {name: np.array(value) for name, value in self.records.items()}
    state = State(dict(self.models), {}, {}, records)
    for c in self.computations:
      state.received.update(c.declared.receives)
      if c.optimizer is None:
        continue
      server = c.process.initialize()
      state.models.setdefault(MODEL, server.global_model_weights)
      first = state.optimizers.setdefault(c.optimizer.name, server.finalizer)
      if not _equal(first, server.finalizer):
        raise ValueError(f'two optimizers of an algorithm have the name {c.optimizer.name!r}')
      if c.optimizer.sampler is not None:
        records.update({n: np.array(v) for n, v in c.optimizer.sampler.records.items()})
    return state

  @property
  def optimizer(self) -> optimizer_lib.FederatedOptimizer | None:
    """The last federated optimizer; None where no model is updated."""
    found = [c.optimizer for c in self.computations if c.optimizer is not None]
    return found[-1] if found else None

  @property
  def model(self) -> keras_model.KerasModel | None:
    """What the global model's weights are of, where that is known; else they are the task's."""
    found = [c.model for c in self.computations if c.optimizer is not None]
    return found[-1] if found else None

  def evaluated(self, state: State, own: Sequence[Mapping[str, Any]]) -> list[Evaluated]:
    """Returns the models that are evaluated; `own` is what each client keeps, by name."""
    if self.evaluate is not None:
      return self.evaluate(state, own)
    if self.optimizer.evaluated is not None:
      return [Evaluated(self.model, self.optimizer.evaluated(state.weights, own))]
    return [Evaluated(self.model, state.weights)]

  def own_models(self, state: State, own: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Returns weights of `model` that clients have for themselves at the end of a run."""
    if self.optimizer is None or self.optimizer.own_models is None:
      return []
    return self.optimizer.own_models(state.weights, own)

  @property
  def rounds(self) -> int:
    """Rounds of the whole run."""
    if self.ends_after is None:
      return self.planned_rounds
    return min(self.ends_after, self.planned_rounds)

  @property
  def planned_rounds(self) -> int:
    """Rounds of all stages."""
    return sum(self.stages.values())

  def stage_of(self, round_num: int) -> str:
    """Returns the stage that a round, 1 the run's first, is part of."""
    return stage_of(self.stages, round_num)

  @property
  def fields(self) -> tuple[uplink.UplinkField, ...]:
    """Everything that is released of clients in the whole run."""
    # Several computations send the same.
    return tuple(dict.fromkeys(field for c in self.used for field in c.released))

  @property
  def used(self) -> tuple[computation_lib.Computation, ...]:
    """The computations that take part in some round: not those of stages that are skipped."""
    return tuple(c for c in self.computations if self.times.get(c.name, self.rounds))

  def smallest_cohorts(self, task: task_lib.Task) -> Mapping[str, int]:
    """Returns the smallest cohort that each computation may have, as far as a plan can tell."""
    there = min((len(task.present(r)) for r in range(1, self.rounds + 1)), default=task.num_clients)
    sampled = 0 if task.sampling == protection.POISSON else min(task.clients_per_round, there)
    return {
        c.name: task.num_clients if c.on_labels else self.cohorts.get(c.name, sampled)
        for c in self.used
    }

  @property
  def own(self) -> Mapping[str, program_lib.OwnState]:
    """By name, what clients keep, as it is at first."""
    return {name: first for c in self.computations for name, first in c.declared.own.items()}

  def showing_errors(self) -> Algorithm:
    """Returns the algorithm whose computations declare that errors show clients' data."""
    return self._replace(
        computations=tuple(c._replace(shows_errors=True) for c in self.computations)
    )

  def with_reports(self, reports: protection.LabelReports) -> Algorithm:
    """Returns the algorithm whose clients hold reports in place of labels."""

    def protected(values):
      return tuple(
          v._replace(protection=protection.with_reports(v.protection, reports)) for v in values
      )

    return self._replace(
        computations=tuple(
            c._replace(
                fields=protected(c.fields),
                # What is passed on to other clients was computed from reports, too.
                declared=c.declared._replace(messages=protected(c.declared.messages)),
            )
            for c in self.computations
        )
    )


def stage_of(stages: Mapping[str, int], round_num: int) -> str:
  """Returns the stage that a round, 1 the run's first, is part of."""
  for name, rounds in stages.items():
    if round_num <= rounds:
      return name
    round_num -= rounds
  raise ValueError('there are fewer rounds')


def require_rounds(task: task_lib.Task, stages: Mapping[str, int], main: str = '') -> None:
  """Raises `UsageError` if the length of a stage is negative, or if all are 0.

  Args:
    task: Says how many there are.
    stages: Rounds of each.
    main: The stage without which it is another method: it is skipped if --stages says so alone.
  """
  for name, rounds in stages.items():
    if rounds < 0 or (name == main and not rounds and name not in task.stages):
      raise types.UsageError(
          f'--rounds={task.rounds} leaves nothing for the stage {name}, the others take '
          f'{sum(stages.values()) - rounds}: use more --rounds, or set --stages={name}:LENGTH'
      )
  if not sum(stages.values()):
    raise types.UsageError('--stages leaves no round to run')


def require_labels_kept(task: task_lib.Task, method: str, otherwise: str = '') -> None:
  """Raises `UsageError` if labels are reports, which a method would replace.

  Args:
    task: What is trained.
    method: Its name.
    otherwise: Flags with which it replaces none, if there are any.
  """
  if task.label_privacy.in_training:
    what = f'some; with {otherwise} it replaces none' if otherwise else 'them'
    raise types.UsageError(
        '--training_labels=private: the loss is right only for labels that were flipped, and '
        f'{method} replaces {what}'
    )


def computations_of(
    *computations: computation_lib.Computation,
) -> tuple[computation_lib.Computation, ...]:
  """Returns each computation once, those that its optimizer's sampler asks included.

  Raises:
    types.UsageError: If two of them have one name, by which they are known.
  """
  found = {}
  for c in computations:
    asked = () if c.optimizer is None or c.optimizer.sampler is None else (
        c.optimizer.sampler.computations
    )
    for one in (*asked, c):
      if found.setdefault(one.name, one) is not one:
        raise types.UsageError(
            f'two computations are named {one.name!r}: give each a name of its own'
        )
  return tuple(found.values())


def from_scratch(state: State, clients: Clients, train: computation_lib.Computation) -> State:
  """Returns the state in which the model is new, and the optimizer remembers nothing.

  Args:
    state: Its further models and records stay.
    clients: Forget what the optimizer keeps on them, all of them.
    train: A computation that trains the model from now on.
  """
  first = train.process.initialize()
  clients.forget(clients.everybody, *train.optimizer.client.own)
  state = state._replace(
      models={**state.models, MODEL: first.global_model_weights},
      optimizers={**state.optimizers, train.optimizer.name: first.finalizer},
  )
  sampler = train.optimizer.sampler
  if sampler is None:
    return state
  return state.record(**{name: np.array(value) for name, value in sampler.records.items()})


def two_stages(
    task: task_lib.Task, first: str, rounds: int, second: str, main: str = ''
) -> dict[str, int]:
  """Returns the rounds of two stages, the second of what the first leaves, unless --stages says.

  Args:
    task: Says how many rounds there are, and the lengths that are given.
    first: A stage.
    rounds: Its length, if none is given.
    second: The other stage.
    main: See `require_rounds`, also for errors.
  """
  length = task.stages.get(first, rounds)
  stages = {first: length, second: task.stages.get(second, task.rounds - length)}
  require_rounds(task, stages, main=main)
  return stages


def of_rounds(task: task_lib.Task, train: computation_lib.Computation) -> Algorithm:
  """Returns the algorithm that samples and trains in every round, and nothing else."""

  def round_(state, clients):
    return clients.train(train, state, clients.sample(train, state)).state

  return Algorithm(round_, computations_of(train), {'train': task.rounds})
