"""The clients of a simulation, as an algorithm sees them: `algorithm.Clients`.

What an algorithm asks of clients goes through here. It is checked against what the algorithm lists,
entered into the privacy ledger before it runs, counted in bytes both ways, and answered with what
the computation declares. What clients keep lies here, by client id; the training loop saves it, and
an algorithm, which gets a view with the functions of `algorithm.Clients` alone, has no name by
which it could read it. This guards against mistakes and shortcuts: Python hides nothing from code
that looks into closures on purpose.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow_federated as tff

from tff_noise import types
from tff_noise.algorithms import algorithm as algorithm_lib
from tff_noise.clients import program as program_lib
from tff_noise.data import client_data
from tff_noise.federated import computation as computation_lib
from tff_noise.federated import label_histogram
from tff_noise.federated import learning_round
from tff_noise.federated import processes
from tff_noise.federated import stacked
from tff_noise.federated import task as task_lib
from tff_noise.privacy import ledger as ledger_lib
from tff_noise.privacy import protection
from tff_noise.runtimes import client_error
from tff_noise.selection import policies
from tff_noise.uplink import per_client
from tff_noise.uplink import uplink

# What each client keeps: by name, by client id. Lists are replaced, never changed.
OwnStates = Mapping[str, list[Any]]


class Traffic(NamedTuple):
  """What a round cost and how its training went.

  Attributes:
    clients: How many trained.
    bytes_up: Sent by all clients together, to the server.
    bytes_down: Received by all of them.
    train_loss: The mean over their examples; nan where nobody may know it.
    rejected: How many had an update that was not finite; nan where that does not leave a client.
  """

  clients: int = 0
  bytes_up: int = 0
  bytes_down: int = 0
  train_loss: float = np.nan
  rejected: float = 0


def _initial_own(algorithm: algorithm_lib.Algorithm, federation: types.Federation) -> OwnStates:
  """Returns what clients keep before the first round."""
  return {
      name: [program_lib.initial_own(initial, examples.y) for examples in federation.clients]
      for name, initial in sorted(algorithm.own.items())
  }


def _initial_aggregators(algorithm):
  return {
      c.name: c.process.initialize().aggregator
      for c in algorithm.used if c.optimizer is not None
  }


def by_client(own: OwnStates, num_clients: int) -> list[Mapping[str, Any]]:
  """Returns what each client keeps, by name."""
  return [{name: states[i] for name, states in own.items()} for i in range(num_clients)]


@dataclasses.dataclass(frozen=True)
class _View:
  """The functions of `algorithm.Clients` in one round, and nothing else that is had of clients."""

  everybody: np.ndarray
  present: np.ndarray
  sample: Callable[..., np.ndarray]
  train: Callable[..., algorithm_lib.Output]
  run: Callable[..., algorithm_lib.Output]
  forget: Callable[..., None]


class SimulatedClients:
  """The clients, for who runs a simulation; an algorithm gets their `view`. See the module."""

  def __init__(
      self,
      algorithm: algorithm_lib.Algorithm,
      task: task_lib.Task,
      federation: types.Federation,
      datasets: Sequence[Any],
      ledger: ledger_lib.Ledger,
  ):
    """Takes the clients as they are before a run's first round.

    Args:
      algorithm: Whose computations they take part in.
      task: What it was built from.
      federation: What they hold.
      datasets: The same as TFF takes it, by client id.
      ledger: Where everything is entered that clients send, before they do.

    Raises:
      ValueError: If several computations of the algorithm draw noise.
    """
    noisy = [c.name for c in algorithm.used if c.is_noisy]
    if len(noisy) > 1:
      # Noise is a function of how often its own computation has run: they would draw the same.
      raise ValueError(f'one computation at most can draw noise, and here {noisy} do')
    self._draws_noise = bool(noisy)
    self._listed = {c.name: c for c in algorithm.used}
    # As it was compiled and checked, whatever becomes of the process.
    self._next = {c.name: c.next for c in algorithm.used}
    self._next_of_nobody = {}
    self._task, self._federation, self._datasets = task, federation, datasets
    withheld = federation._replace(clients=federation.withheld)
    self._withheld = client_data.federation_datasets(withheld)
    self._ledger = ledger
    self._own = _initial_own(algorithm, federation)
    # Not the algorithm's: noise is a function of them, and drawn twice it would cancel itself.
    self._aggregators = _initial_aggregators(algorithm)
    self._first = algorithm.own
    self._participations = np.zeros(len(federation.clients), np.int64)
    self._failure = None
    self.begin_round(1, '')

  def begin_round(self, round_num: int, stage: str) -> None:
    """Called before each round, 1 the run's first."""
    self._round_num, self._stage = round_num, stage
    self._has_released_noise = False
    self.traffic = Traffic()

  def end_round(self) -> None:
    """Called after each round.

    Raises:
      types.RunError: If the computation of a client failed, whatever the algorithm made of that.
    """
    if self._failure is not None:
      raise self._failure

  def require_noise(self) -> None:
    """Called after each round that went well.

    Raises:
      ValueError: If there was no release with noise, where a run has them: which rounds have one
        could depend on who was drawn.
    """
    if self._draws_noise and not self._has_released_noise:
      raise ValueError(
          f'round {self._round_num} had no release with noise: each has to have one, whoever is '
          'drawn for it'
      )

  @property
  def view(self) -> algorithm_lib.Clients:
    """What an algorithm gets to see of the clients in this round."""
    return _View(
        self.everybody, self.present,
        lambda *args, **more: self.sample(*args, **more),
        lambda *args, **more: self.train(*args, **more),
        lambda *args, **more: self.run(*args, **more),
        lambda *args: self.forget(*args),
    )

  @property
  def own(self) -> OwnStates:
    """What clients keep."""
    return dict(self._own)

  @property
  def participations(self) -> np.ndarray:
    """int64 `[C]`, rounds that each client took part in."""
    return self._participations

  @property
  def aggregators(self) -> Mapping[str, Any]:
    """The state of each computation's aggregation, by the computation's name."""
    return self._aggregators

  def resume(
      self, own: OwnStates, participations: np.ndarray, aggregators: Mapping[str, Any]
  ) -> None:
    """Goes on from what a checkpoint holds."""
    self._aggregators = dict(aggregators)
    self._own = {name: list(states) for name, states in own.items()}
    self._participations = np.asarray(participations)

  @property
  def everybody(self) -> np.ndarray:
    """See `algorithm.Clients`."""
    return np.arange(len(self._federation.clients))

  @property
  def present(self) -> np.ndarray:
    """See `algorithm.Clients`."""
    return self._task.present(self._round_num)

  def sample(
      self,
      computation: computation_lib.Computation,
      state: algorithm_lib.State,
      among: np.ndarray | None = None,
      size: int | None = None,
  ) -> np.ndarray:
    """See `algorithm.Clients`."""
    if self._task.sampling == protection.POISSON:
      return self._poisson_sample(computation, among, size)
    may = self.present if among is None else np.intersect1d(among, self.present)
    if not len(may):
      raise types.UsageError(
          f'no client can take part in round {self._round_num}: no eligible client is there '
          '(--arrivals)'
      )
    optimizer = computation.optimizer
    chooses = optimizer is not None and optimizer.sampler is not None
    if self._task.sampling == protection.CYCLIC:
      if chooses or among is not None or size is not None or len(may) < len(self.everybody):
        raise types.UsageError(
            f'--client_sampling=cyclic cannot be given with {computation.name!r}, which chooses '
            'among clients, or where some are not there: use --client_sampling=fixed, or another '
            'method'
        )
      return policies.cyclic(
          self._task.seed, self._round_num, may, self._task.clients_per_round
      )
    size = size or self._task.clients_per_round
    if chooses:
      return optimizer.sampler.choose(self.view, state, may, size)
    return policies.uniform(self._task.cohort_seed, self._round_num, may, size)

  def _poisson_sample(self, computation, among, size):
    optimizer = computation.optimizer
    chooses = optimizer is not None and optimizer.sampler is not None
    if among is not None or size is not None or chooses:
      raise types.UsageError(
          f'--client_sampling=poisson cannot be given with {computation.name!r}, whose cohorts are '
          'not drawn from everybody alike: use --client_sampling=fixed, or another method'
      )
    return policies.poisson(
        self._task.cohort_seed, self._round_num, self._task.num_clients,
        self._task.clients_per_round,
    )

  def train(
      self,
      computation: computation_lib.Computation,
      state: algorithm_lib.State,
      cohort: np.ndarray,
      **messages: np.ndarray,
  ) -> algorithm_lib.Output:
    """See `algorithm.Clients`."""
    cohort = self._cohort(cohort)
    listed, messages = self._check(computation, messages, cohort)
    if listed.optimizer is None:
      raise ValueError(f'{listed.name!r} has no next model: it is run, not trained')
    self._require_sample(listed, state, cohort)
    self._record(listed, cohort)
    process = listed.process
    args = [self._process_state(listed, state), self._data(listed, cohort)]
    stateful = isinstance(process, processes.StatefulProcess)
    if stateful:
      args.append(self._inputs(listed, cohort, messages))
      if process.server_data_type is not None:
        args.append(listed.server_data)
    output = self._call(listed, cohort, args)
    reports = _reports_in_order(output.metrics.get('reports'), cohort)
    if stateful and len(cohort):
      used = reports.get(stacked.KEPT, np.ones(len(cohort), bool))
      self._keep(listed, cohort, output.local, used)
    self._aggregators = {**self._aggregators, listed.name: output.state.aggregator}
    sums = output.metrics['client_work']['train']
    self._count(listed, cohort, sums)
    return algorithm_lib.Output(
        _next_state(listed, state, output.state, cohort, reports), cohort, sums, reports
    )

  def run(
      self,
      computation: computation_lib.Computation,
      state: algorithm_lib.State,
      cohort: np.ndarray,
      **messages: np.ndarray,
  ) -> algorithm_lib.Output:
    """See `algorithm.Clients`."""
    cohort = self._cohort(cohort)
    listed, messages = self._check(computation, messages, cohort)
    if listed.optimizer is not None:
      raise ValueError(f'{listed.name!r} makes a next model: it is trained, not run')
    if listed.on_withheld:
      # Who withholds nothing is not asked: a secure sum is over those that have something to add.
      has = np.array([len(c.y) > 0 for c in self._federation.withheld], bool)
      cohort = cohort[has[cohort]]
    if not len(cohort):
      return algorithm_lib.Output(state, cohort, {}, {})
    self._record(listed, cohort)
    if listed.on_labels:
      if len(cohort) < len(self.everybody):
        raise ValueError(
            f'{listed.name!r} is with everybody: what is claimed for it counts the labels of all'
        )
      flipped = self._task.label_privacy.in_training
      data = [label_histogram.client_labels(self._federation, i, flipped) for i in cohort]
      histogram = self._call(listed, cohort, [data])
      self._count(listed, cohort, {})
      return algorithm_lib.Output(state, cohort, {label_histogram.NAME: histogram}, {})
    output = self._call(
        listed,
        cohort,
        [
            _broadcast(listed, state), self._data(listed, cohort),
            self._inputs(listed, cohort, messages),
        ],
    )
    self._keep(listed, cohort, output['local'], np.ones(len(cohort), bool))
    sums = learning_round.mean_loss(output['sums'])
    self._count(listed, cohort, sums)
    reports = _reports_in_order(output['reports'], cohort)
    return algorithm_lib.Output(state, cohort, sums, reports, output['mean'])

  def forget(self, cohort: np.ndarray, *names: str) -> None:
    """See `algorithm.Clients`."""
    for name in names:
      states = list(self._own[name])
      for client in self._cohort(cohort):
        labels = self._federation.clients[client].y
        states[client] = program_lib.initial_own(self._first[name], labels)
      self._own[name] = states

  def _cohort(self, cohort):
    """Returns a copy of its own: what is entered is who takes part."""
    ids = np.array(cohort)
    if not len(ids):
      return ids.astype(np.int64)
    known = ids.ndim == 1 and ids.dtype.kind in 'iu' and np.isin(ids, self.everybody).all()
    if not known or len(np.unique(ids)) < len(ids):
      raise ValueError(f'a cohort has to be ids of clients, each once, got {ids}')
    return ids.astype(np.int64)

  def _check(self, computation, messages, cohort):
    """Returns the computation as it is listed, and the messages."""
    listed = self._listed.get(computation.name)
    if listed is None or listed.process is not computation.process:
      raise types.UsageError(
          f'the algorithm does not list the computation {computation.name!r}: its computations '
          'have to be algorithm.computations_of(...) all that it runs'
      )
    declared = {m.name: m for m in listed.declared.messages}
    if messages.keys() != declared.keys():
      raise ValueError(
          f'{listed.name!r} sends to single clients {sorted(declared)}, got {sorted(messages)}'
      )
    # Not all cohorts are known before a run.
    listed.require_company(len(cohort))
    messages = {name: np.array(values) for name, values in messages.items()}
    for name, values in messages.items():
      wanted = np.dtype(declared[name].dtype), (len(cohort), *declared[name].shape)
      if (values.dtype, values.shape) != wanted:
        raise ValueError(f'the message {name!r} has to be {wanted[0]}{list(wanted[1])}')
    return listed, messages

  def _process_state(self, computation, state):
    """The state of the computation's own process."""
    return tff.learning.templates.LearningAlgorithmState(
        global_model_weights=state.weights,
        distributor=(),
        aggregator=self._aggregators[computation.name],
        finalizer=state.optimizers[computation.optimizer.name],
        client_work=collections.OrderedDict(
            round_num=state.round_num + 1, hparams=_received(computation, state)
        ),
    )

  def _require_sample(self, computation, state, cohort):
    """What noise is claimed to cost is of the draw of its round, which answers once."""
    if not computation.is_noisy:
      return
    if self._has_released_noise:
      raise ValueError(
          f'{computation.name!r} would be the second release with noise in round '
          f'{self._round_num}: the cohort, drawn once, would answer twice'
      )
    if computation.optimizer.sampler is not None:
      raise ValueError(f'{computation.name!r} draws noise, and its optimizer chooses clients')
    if not np.array_equal(np.sort(cohort), np.sort(self.sample(computation, state))):
      raise ValueError(f'the cohort of {computation.name!r} is not the sample of its round')
    self._has_released_noise = True

  def _record(self, computation, cohort):
    self._ledger.record(self._round_num, self._stage, computation.released, cohort)

  def _data(self, computation, cohort):
    datasets = self._withheld if computation.on_withheld else self._datasets
    return [datasets[client] for client in cohort]

  def _inputs(self, computation, cohort, messages):
    """What is each client's alone."""
    names = sorted(computation.declared.own)
    return [
        uplink.ClientInput(
            collections.OrderedDict((name, self._own[name][client]) for name in names),
            program_lib.in_order({name: values[i] for name, values in messages.items()}),
        )
        for i, client in enumerate(cohort)
    ]

  def _call(self, computation, cohort, args):
    try:
      return self._compiled(computation, cohort)(*args)
    except client_error.ClientError as error:
      who = 'clients' if error.position is None else f'client {cohort[error.position]}'
      failed = f'round {self._round_num}: the computation of {who} failed'
      self._failure = types.RunError(f'{failed}: {error.reason}')
    # Even the kind of an error is for who runs this, not for the algorithm.
    raise types.RunError(failed)

  def _compiled(self, computation, cohort):
    name, whole = computation.name, self._next[computation.name]
    if len(cohort) or not isinstance(computation.process, processes.StatefulProcess):
      return whole
    if name not in self._next_of_nobody:
      self._next_of_nobody[name] = processes.without_clients(whole)
    return self._next_of_nobody[name]

  def _keep(self, computation, cohort, returned, used):
    """Keyed by client id: only what the computation declares changes, and of the cohort alone."""
    kept = uplink.by_client(returned, cohort)
    # What the server's optimizer left out, the client's has to forget: they belong together.
    of_optimizer = () if computation.optimizer is None else computation.optimizer.client.own
    for name in computation.declared.own:
      states = list(self._own[name])
      for client, was_used in zip(cohort, used, strict=True):
        if was_used or name not in of_optimizer:
          states[client] = kept[client][name]
      self._own[name] = states

  def _count(self, computation, cohort, sums):
    t, count = self.traffic, len(cohort)
    down = computation.broadcast_bytes + computation.messages_bytes
    t = t._replace(
        bytes_up=t.bytes_up + count * computation.uplink_bytes,
        bytes_down=t.bytes_down + count * down,
    )
    if computation.trains:
      participations = self._participations.copy()
      participations[cohort] += 1
      self._participations = participations
      # The mean of several groups of clients that train different models, of which each counts
      # alike.
      loss = float(sums.get('loss', np.nan))
      if t.clients:
        loss = (t.train_loss * t.clients + loss * count) / (t.clients + count)
      t = t._replace(
          clients=t.clients + count, train_loss=loss,
          rejected=t.rejected + (int(sums['rejected']) if 'rejected' in sums else np.nan),
      )
    self.traffic = t


def _received(computation, state):
  names = computation.declared.receives
  return program_lib.in_order({name: state.received[name] for name in names})


def _next_state(computation, state, server, cohort, reports):
  optimizer = computation.optimizer
  if optimizer.sampler is not None:
    state = state._replace(records=optimizer.sampler.observe(state.records, cohort, reports))
  return state._replace(
      models={**state.models, algorithm_lib.MODEL: server.global_model_weights},
      optimizers={**state.optimizers, optimizer.name: server.finalizer},
  )


def _broadcast(computation, state):
  return program_lib.Broadcast(
      state.weights if computation.sends_model else (),
      np.int32(state.round_num + 1),
      _received(computation, state),
  )


def _reports_in_order(collected, cohort):
  return per_client.in_order(collected, cohort) if collected else {}
