"""What a method is: parameters, and a schedule of stages built from the shared parts.

This file and the head of each method's file import no TensorFlow: names and parameters are listed
and checked before it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tff_noise import types
from tff_noise.selection import availability as availability_lib
from tff_noise.selection import policies

if TYPE_CHECKING:
  import tensorflow_federated as tff

  from tff_noise.federated import aggregation
  from tff_noise.federated import client_work
  from tff_noise.federated import compose
  from tff_noise.federated import optimizer as optimizer_lib
  from tff_noise.federated import stacked
  from tff_noise.federated import uplink
  from tff_noise.models import keras_model
  from tff_noise.privacy import protection as protection_lib


class LabelPrivacy(NamedTuple):
  """How labels are communicated, for methods that do.

  Attributes:
    epsilon: Of one label's report, decimal text.
    prior: A key of `estimator.PRIORS`.
    in_training: Whether clients' labels are the reports themselves, so that nothing else of them is
      ever used.
    flips: Who flips labels for the label communication: the 'driver' of the simulation, or each
      'client' in its own computation.
  """

  epsilon: str
  prior: str
  in_training: bool = False
  flips: str = 'driver'


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
    optimizer: What --base says a method runs on; None for what the method says, mostly FedAvg.
    validation: Clean examples that the server holds; None for none.
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
  optimizer: optimizer_lib.FederatedOptimizer | None = None
  validation: types.Examples | None = None

  def setting(self) -> optimizer_lib.Setting:
    """Returns what an optimizer is built for."""
    from tff_noise.federated import optimizer as optimizer_lib

    return optimizer_lib.Setting(
        self.model, self.training, self.client_sizes, self.clients_per_round, self.seed
    )

  def build_process(
      self,
      work: client_work.ClientWork,
      *,
      optimizer: optimizer_lib.FederatedOptimizer | None = None,
      judge: stacked.Judge | None = None,
  ) -> compose.RoundProcess:
    """Returns the process of this task with the given work of a client.

    Args:
      work: What clients do.
      optimizer: In place of the task's.
      judge: Whose updates are used; all, if not given.
    """
    from tff_noise.federated import compose

    return compose.build_round_process(
        self.model,
        work,
        seed=self.seed,
        optimizer=optimizer or self.optimizer,
        aggregation=self.aggregation,
        judge=judge,
    )


# What a method remembers between rounds: arrays of fixed shapes, part of every checkpoint.
Records = Mapping[str, np.ndarray]


class Clients(NamedTuple):
  """The clients, for what happens between rounds.

  Attributes:
    federation: What they hold.
    datasets: Their data as TFF takes it, by client id.
    announce: Called with the name of an exchange of the schedule and the ids of its clients, right
      before it runs: what they are about to send goes into the privacy ledger first.
  """

  federation: types.Federation
  datasets: Sequence[Any]
  announce: Callable[[str, np.ndarray], None]


class Progress(NamedTuple):
  """How far a method is.

  Attributes:
    server: The server's state.
    local: What each client keeps for the method, by client id; empty without any.
    records: What the method remembers.
    round_num: Rounds done in the whole run.
    local_optimizer: What each client keeps for the federated optimizer; empty without any.
  """

  server: Any
  local: tuple[Any, ...]
  records: Records
  round_num: int
  local_optimizer: tuple[Any, ...] = ()


class Exchange(NamedTuple):
  """A computation besides the rounds in which clients send something.

  Attributes:
    computation: What runs.
    fields: Every value that leaves a client.
    bytes_down: Size of what each client receives.
  """

  computation: tff.Computation
  fields: tuple[uplink.UplinkField, ...]
  bytes_down: int = 0


class Chooser(NamedTuple):
  """Chooses among the candidates of a round, see `optimizer.Choice`.

  Attributes:
    choose: From the clients, the progress and candidates' ids to the ids that take part.
    records: A start in the shape and type of what it puts into the records.
    remember: From the records, the round's reports and its cohort to the next records.
    poll: What candidates are asked; None where nothing is.
  """

  choose: Callable[[Clients, Progress, np.ndarray], np.ndarray]
  records: Records
  remember: Callable[[Records, Records, np.ndarray], Records]
  poll: Exchange | None


class Stage(NamedTuple):
  """A stretch of rounds with one process.

  Attributes:
    name: Shown in `metrics.csv`.
    rounds: Its length.
    round_process: What runs in each round.
    select: From the round's number, 1 in the run's first, and the records to the ids of its
      clients, or of the candidates for `chooser`.
    chooser: Who of the candidates takes part; None for all.
    step_ends: Where rounds belong together, such as an iteration over all clients: the rounds of
      the stage, 1 in its first, that end such a step. The model is evaluated at their ends. Empty:
      every round is a step.
    enter: Run once before the stage's first round; None to go on with the state as it is. Returns
      a state that `round_process` takes.
    after: Run after each round, with what the clients reported (in the order of the cohort) and
      the cohort; None for nothing.
    records: Zeros in the shape and type of what the stage puts into the records.
    held: What a process with a judge takes as the server's own, see `stacked.Judge`.
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
  held: Any = None
  chooser: Chooser | None = None
  initial_local: Callable[[types.ClientExamples], Any] | None = None
  columns: Callable[[int, Records], Mapping[str, float]] = lambda *_: {}

  @property
  def poll(self) -> Exchange | None:
    """What the candidates of a round are asked; None where nothing is."""
    return None if self.chooser is None else self.chooser.poll

  @property
  def fields(self) -> tuple[uplink.UplinkField, ...]:
    """Every value that leaves clients in a round."""
    asked = () if self.poll is None else self.poll.fields
    return (*asked, *self.round_process.fields)


class Schedule(NamedTuple):
  """A method, ready to run.

  Attributes:
    stages: In order; those of no rounds are skipped.
    exchanges: By name, what else clients take part in, see `Clients.announce`.
    summary: From the records to the method's own part of `summary.json`.
    labels: From a client's own state to the labels it believes now, int32 `[n_c]`; None for a
      method that corrects none.
    noisy_clients: From the records to bool `[C]`, the clients the server takes for noisy; None for
      a method that does not judge clients.
    client_columns: From the records to float `[C]` by name, the method's columns in `clients.csv`.
    client_scores: Which of these are meant to be higher for noisier clients.
  """

  stages: tuple[Stage, ...]
  exchanges: Mapping[str, Exchange] = {}
  summary: Callable[[Records], Mapping[str, Any]] = lambda _: {}
  labels: Callable[[Any], np.ndarray] | None = None
  noisy_clients: Callable[[Records], np.ndarray] | None = None
  client_columns: Callable[[Records], Mapping[str, np.ndarray]] = lambda _: {}
  client_scores: tuple[str, ...] = ()

  @property
  def fields(self) -> tuple[uplink.UplinkField, ...]:
    """Every value that leaves clients in the whole run."""
    exchanges = [exchange.fields for exchange in self.exchanges.values()]
    stages = [stage.fields for stage in self.stages if stage.rounds]
    # Several stages send the same.
    return tuple(dict.fromkeys(field for sent in (*exchanges, *stages) for field in sent))

  def with_reports(self, reports: protection_lib.LabelReports) -> Schedule:
    """Returns the schedule whose clients hold reports in place of labels."""
    from tff_noise.privacy import protection

    def protect(sender):
      return sender and sender._replace(
          fields=tuple(
              f._replace(protection=protection.with_reports(f.protection, reports))
              for f in sender.fields
          )
      )

    stages = tuple(
        stage._replace(
            round_process=protect(stage.round_process),
            chooser=stage.chooser and stage.chooser._replace(poll=protect(stage.chooser.poll)),
        )
        for stage in self.stages
    )
    exchanges = {name: protect(exchange) for name, exchange in self.exchanges.items()}
    return self._replace(stages=stages, exchanges=exchanges)


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
    takes_base: Whether it can run on the optimizer that --base names.
    compares_models: Whether the server compares models of single clients, so that no update can be
      summed securely.
    corrects_labels: Whether clients change their labels.
  """

  name: str
  title: str
  paper: str
  params: type
  build: Callable[[Task, Any], Schedule]
  stages: tuple[str, ...] = ()
  per_client: str = ''
  takes_base: bool = False
  compares_models: bool = False
  corrects_labels: bool = False


def uniform_selection(task: Task) -> Callable[[int, Records], np.ndarray]:
  """Returns the selection of `clients_per_round` of those who are there, without replacement."""
  return lambda round_num, _: draw_cohort(task, round_num, task.availability.present(round_num))


def draw_cohort(
    task: Task, round_num: int, candidates: np.ndarray, size: int | None = None
) -> np.ndarray:
  """Returns the cohort of a round, int64 in ascending order; for a chooser, its candidates.

  Args:
    task: The task.
    round_num: 1 in the run's first round.
    candidates: Who may take part.
    size: How many take part, if not `task.clients_per_round`.

  Raises:
    types.UsageError: If there is no candidate.
  """
  size = size or task.clients_per_round
  if not len(candidates):
    raise types.UsageError(
        f'no client can take part in round {round_num}: none that may is there (--arrivals)'
    )
  choice = None if task.optimizer is None else task.optimizer.choice
  if choice is None:
    return policies.uniform(task.seed, round_num, candidates, size)
  return policies.proportional(
      task.seed, round_num, candidates, task.client_sizes, round(choice.ratio * size)
  )


_LAST_LOSS = 'last_loss'


def build_chooser(
    task: Task, size: Callable[[Records], int] | None = None
) -> Chooser | None:
  """Returns the chooser of stages that run on `task.optimizer`; None if it has no choice.

  Args:
    task: The task.
    size: From the records to how many clients take part, if not `task.clients_per_round`.
  """
  choice = None if task.optimizer is None else task.optimizer.choice
  if choice is None:
    return None
  from tff_noise.federated import per_client
  from tff_noise.federated import uplink

  def ask(clients, progress, candidates):
    if choice.poll is None:
      return progress.records[_LAST_LOSS][candidates]
    output = choice.poll.run(
        progress.server.global_model_weights,
        [clients.datasets[i] for i in candidates],
        [np.int32(progress.round_num + 1)] * len(candidates),
    )
    return per_client.in_order(output['reports'], candidates)['loss']

  def choose(clients, progress, candidates):
    losses = ask(clients, progress, candidates)
    count = task.clients_per_round if size is None else size(progress.records)
    return policies.largest(task.seed, progress.round_num + 1, candidates, losses, count)

  def remember(records, reports, cohort):
    if choice.poll is not None:
      return records
    last = records[_LAST_LOSS].copy()
    last[cohort] = reports['loss']
    return {**records, _LAST_LOSS: last}

  if choice.poll is None:
    return Chooser(
        choose, {_LAST_LOSS: np.full(len(task.client_sizes), np.inf)}, remember, poll=None
    )
  received = uplink.num_bytes(task.model.weights_type)
  return Chooser(choose, {}, remember, Exchange(choice.poll.run, choice.poll.fields, received))
