"""The training loop: the only one, for every method.

It asks the schedule for the next round until there is none, and receives every effect (where state
is saved, where metrics go), so it knows no paths. All that a resume needs is in `ProgramState`; all
randomness is a function of (seed, round, client). So a run that is killed and continued repeats the
rounds since its last checkpoint and arrives at the same numbers.
"""

import asyncio
import collections
import concurrent.futures
import functools
import gc
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_noise import types
from tff_noise.federated import compose
from tff_noise.federated import per_client
from tff_noise.federated import stacked
from tff_noise.federated import uplink
from tff_noise.methods import method
from tff_noise.privacy import ledger as ledger_lib
from tff_noise.runtimes import client_error


class ProgramState(NamedTuple):
  """Everything a resume needs.

  Attributes:
    server: The server's state.
    round_num: Rounds done in the whole run.
    stage: Index of the current stage; equal to the number of stages at the end.
    stage_round: Rounds done in the current stage; -1 before it was entered.
    participations: int64 `[C]`, rounds each client took part in.
    records: What entering the stages has recorded, see `method.Stage.records`.
    local: What each client keeps for the method; empty without any.
    local_optimizer: What each client keeps for the federated optimizer; empty without any.
    ledger: How far the run is in its privacy ledger.
  """

  server: Any
  round_num: int
  stage: int
  stage_round: int
  participations: np.ndarray
  records: dict[str, np.ndarray]
  local: tuple[Any, ...]
  local_optimizer: tuple[Any, ...]
  ledger: ledger_lib.Position


class RoundResult(NamedTuple):
  """What a round did, for those who watch.

  Attributes:
    round_num: 1 in the run's first round.
    metrics: Flat values of `metrics.csv`.
    seconds: Wall time of the round without its evaluation.
  """

  round_num: int
  metrics: dict[str, Any]
  seconds: float


def initial_state(
    schedule: method.Schedule, federation: types.Federation, stage_index: int = 0
) -> ProgramState:
  """Returns a state of the structure that every state of a stage has; of the first, its start."""
  stage = schedule.stages[stage_index]
  local = ()
  if stage.initial_local is not None:
    local = tuple(stage.initial_local(examples) for examples in federation.clients)
  return ProgramState(
      server=stage.round_process.process.initialize(),
      round_num=0,
      stage=stage_index,
      stage_round=-1,
      participations=np.zeros(len(federation.clients), np.int64),
      records=_initial_records(schedule),
      local=local,
      local_optimizer=_initial_optimizer_states(stage, federation),
      ledger=ledger_lib.Position(0, np.zeros(32, np.uint8)),
  )


def _initial_records(schedule):
  records = {}
  for stage in schedule.stages:
    chosen_by = {} if stage.chooser is None else stage.chooser.records
    records.update({name: np.array(v) for name, v in {**stage.records, **chosen_by}.items()})
  return records


def _initial_optimizer_states(stage, federation):
  initial = stage.round_process.optimizer.client.initial_state
  return (initial,) * len(federation.clients) if tf.nest.flatten(initial) else ()


def stage_of_round(schedule: method.Schedule, round_num: int) -> int:
  """Returns the index of the stage that round `round_num`, 1 in the run's first, is part of."""
  ends = np.cumsum([stage.rounds for stage in schedule.stages])
  return int(np.searchsorted(ends, round_num))


def next_stage(
    schedule: method.Schedule, state: ProgramState
) -> tuple[method.Stage | None, ProgramState]:
  """Returns the stage of the next round, None at the end, and the state that knows it."""
  while state.stage < len(schedule.stages):
    stage = schedule.stages[state.stage]
    if max(state.stage_round, 0) < stage.rounds:
      return stage, state
    state = state._replace(stage=state.stage + 1, stage_round=-1)
  return None, state


def run_round(
    schedule: method.Schedule,
    state: ProgramState,
    federation: types.Federation,
    datasets: Sequence[Any],
    ledger: ledger_lib.Ledger,
) -> tuple[ProgramState, Mapping[str, Any]]:
  """Runs one round of the state's stage; returns the next state and the training metrics.

  Args:
    schedule: The method.
    state: With a stage that has rounds left, see `next_stage`.
    federation: The clients.
    datasets: Their data sets, by client id.
    ledger: Where everything is entered that clients send, before they do.
  """
  stage = schedule.stages[state.stage]
  record = functools.partial(ledger.record, state.round_num + 1, stage.name)
  clients = method.Clients(
      federation, datasets, lambda name, ids: record(schedule.exchanges[name].fields, ids)
  )
  if state.stage_round < 0:
    state = _enter(stage, state, clients)
  cohort = candidates = stage.select(state.round_num + 1, state.records)
  if stage.chooser is not None:
    record(() if stage.poll is None else stage.poll.fields, candidates)
    cohort = stage.chooser.choose(clients, _progress(state), candidates)
  record(stage.round_process.fields, cohort)
  data = [datasets[client] for client in cohort]
  process = stage.round_process.process
  try:
    if isinstance(process, compose.StatefulProcess):
      held = () if process.held_type is None else (stage.held,)
      output = process.next(state.server, data, _client_states(state, cohort), *held)
      state = _with_client_states(state, cohort, output)
    else:
      output = process.next(state.server, data)
  except client_error.ClientError as error:
    raise types.RunError(
        f'round {state.round_num + 1}: the computation of client {cohort[error.position]} failed: '
        f'{error.reason}'
    ) from error
  participations = state.participations.copy()
  participations[cohort] += 1
  state = state._replace(
      server=output.state,
      round_num=state.round_num + 1,
      stage_round=max(state.stage_round, 0) + 1,
      participations=participations,
  )
  collected = output.metrics.get('reports')
  reports = per_client.in_order(collected, cohort) if collected else {}
  if stage.chooser is not None:
    state = state._replace(records=dict(stage.chooser.remember(state.records, reports, cohort)))
  if stage.after is not None:
    state = _adopt(state, stage.after(clients, _progress(state), reports, cohort))
  state = state._replace(ledger=ledger.position)
  counts = {'clients': len(cohort), 'candidates': len(candidates)}
  return state, {**output.metrics['client_work']['train'], **counts}


def _client_states(state, cohort):
  def of(states, client):
    return states[client] if states else ()

  return [
      uplink.ClientState(of(state.local, c), of(state.local_optimizer, c)) for c in cohort
  ]


def _with_client_states(state, cohort, output):
  """Keyed by client id: only the cohort's own states change."""
  local, local_optimizer = list(state.local), list(state.local_optimizer)
  kept = uplink.by_client(output.local, cohort)
  for client, used in zip(cohort, _used(output, cohort), strict=True):
    if local:
      local[client] = kept[client].own
    # What the server's optimizer left out, the client's has to forget: they belong together.
    if local_optimizer and used:
      local_optimizer[client] = kept[client].optimizer
  return state._replace(local=tuple(local), local_optimizer=tuple(local_optimizer))


def _used(output, cohort):
  """bool, for each client of the cohort whether its contribution was used."""
  reports = output.metrics.get('reports') or {}
  if stacked.KEPT not in reports:
    return np.ones(len(cohort), bool)
  return per_client.in_order(reports, cohort)[stacked.KEPT]


def _enter(stage, state, clients):
  """The state in which a stage begins: client states are kept where both stages have them."""
  initial = _initial_optimizer_states(stage, clients.federation)
  if _shapes(initial[:1]) != _shapes(state.local_optimizer[:1]):
    state = state._replace(local_optimizer=initial)
  if stage.initial_local is None:
    state = state._replace(local=())
  elif not state.local:
    local = tuple(stage.initial_local(examples) for examples in clients.federation.clients)
    state = state._replace(local=local)
  if stage.enter is not None:
    state = _adopt(state, stage.enter(clients, _progress(state)))
  return state


def _shapes(states):
  return [np.shape(v) for v in tf.nest.flatten(states)]


def _progress(state):
  return method.Progress(
      state.server, state.local, state.records, state.round_num, state.local_optimizer
  )


def _adopt(state, progress):
  return state._replace(
      server=progress.server,
      local=tuple(progress.local),
      records=dict(progress.records),
      local_optimizer=tuple(progress.local_optimizer),
  )


async def run_schedule(
    *,
    schedule: method.Schedule,
    federation: types.Federation,
    datasets: Sequence[Any],
    evaluations: Mapping[str, Callable[[Any], Mapping[str, float]]],
    state_manager: tff.program.ProgramStateManager,
    metrics_managers: Sequence[tff.program.ReleaseManager],
    timing_manager: tff.program.ReleaseManager,
    on_round: Callable[[RoundResult], None],
    ground_truth: Callable[[ProgramState], Mapping[str, float]] = lambda _: {},
    eval_every: int,
    checkpoint_every: int,
    ledger: ledger_lib.Ledger,
    initial_weights: Any = None,
) -> ProgramState:
  """Runs every round that is left, and returns the final state.

  Args:
    schedule: The method's stages.
    federation: The clients.
    datasets: Their data sets, by client id.
    evaluations: By name ('test', 'validation'): from model weights to `accuracy` and `loss`.
    state_manager: Where states are saved, by round; the newest one is continued from.
    metrics_managers: Where each round's metrics are released, keyed by round.
    timing_manager: Where each round's wall time goes.
    on_round: Called after each round, when all that it leaves behind is written, in another thread
      while the next round computes.
    ground_truth: From a state to columns of `metrics.csv` that only a simulation knows.
    eval_every: Steps (rounds, where a stage has no longer ones) between evaluations; the last
      round of a stage is always evaluated.
    checkpoint_every: Rounds between saved states; the last round is always saved.
    ledger: Where everything is entered that clients send; at its start.
    initial_weights: What a new run starts from in place of the process's own initial weights.
  """
  state = initial_state(schedule, federation)
  if initial_weights is not None:
    set_weights = schedule.stages[0].round_process.process.set_model_weights
    state = state._replace(server=set_weights(state.server, initial_weights))
  versions = await state_manager.get_versions()
  if versions and versions[-1]:
    structure = initial_state(schedule, federation, stage_of_round(schedule, versions[-1]))
    state = _plain_numbers(await state_manager.load(versions[-1], structure))
    ledger.resume(state.ledger)
  total_rounds = sum(stage.rounds for stage in schedule.stages)

  async def write(state, metrics, seconds):
    # Metrics first: a state that is saved has all its rows, and a row without its state is
    # replaced when the round is run again.
    done = state.round_num
    for manager in metrics_managers:
      await manager.release(_row(metrics), done)
    await timing_manager.release({'seconds': seconds}, done)
    if done % checkpoint_every == 0 or done == total_rounds:
      await state_manager.save(state, done)
    on_round(RoundResult(done, metrics, seconds))
    # Weights hang in cycles of objects, which Python looks for every hundred rounds.
    gc.collect(generation=1)

  with _Background() as background:
    while True:
      stage, state = next_stage(schedule, state)
      if stage is None:
        await background.wait()
        return state
      started = time.monotonic()
      state, train = run_round(schedule, state, federation, datasets, ledger)
      seconds = time.monotonic() - started
      done = state.round_num
      evaluated = {f'{name}_{m}': np.nan for name in evaluations for m in ('accuracy', 'loss')}
      if evaluations and _is_evaluated(stage, state.stage_round, eval_every):
        weights = evaluated_weights(stage, state)
        for name, evaluate in evaluations.items():
          evaluated.update({f'{name}_{m}': float(v) for m, v in evaluate(weights).items()})
      metrics = {
          'stage': stage.name,
          **evaluated,
          # Nobody knows them where nothing but updates may leave a client.
          'train_loss': float(train.get('loss', np.nan)),
          'clients': train['clients'],
          'rejected': int(train.get('rejected', 0)),
          **_traffic(stage, train),
          **stage.columns(done, state.records),
          **ground_truth(state),
      }
      await background.start(write, state, metrics, seconds)


class _Background:
  """Runs one coroutine after another in a thread of its own."""

  def __init__(self):
    self._thread = concurrent.futures.ThreadPoolExecutor(1)
    self._last = None

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self._thread.shutdown()

  async def start(self, function: Callable[..., Coroutine[Any, Any, None]], *args) -> None:
    """Starts `function(*args)` when the one before has ended; raises the error of that one."""
    await self.wait()
    self._last = self._thread.submit(lambda: asyncio.run(function(*args)))

  async def wait(self) -> None:
    """Returns when the last one has ended; raises its error."""
    if self._last is not None:
      # Awaited in every round, so that who cancels the task is heard.
      await asyncio.wrap_future(self._last)


def evaluated_weights(stage: method.Stage, state: ProgramState) -> Any:
  """Returns the weights that are evaluated, mostly the server's."""
  weights = state.server.global_model_weights
  evaluated = stage.round_process.optimizer.evaluated
  return weights if evaluated is None else evaluated(weights, state.local_optimizer)


def own_models(schedule: method.Schedule, state: ProgramState) -> list[Any]:
  """Returns the weights of clients' own models at the end of a run, where there are such."""
  last = [stage for stage in schedule.stages if stage.rounds][-1].round_process
  if last.optimizer.own_models is None:
    return []
  return last.optimizer.own_models(state.server.global_model_weights, state.local_optimizer)


def _traffic(stage, train):
  """Bytes of a round, those of asking candidates included."""
  up = train['clients'] * stage.round_process.uplink_bytes
  down = train['clients'] * stage.round_process.broadcast_bytes
  if stage.poll is not None:
    up += train['candidates'] * sum(field.num_bytes for field in stage.poll.fields)
    down += train['candidates'] * stage.poll.bytes_down
  return {'bytes_up': up, 'bytes_down': down}


def _is_evaluated(stage, stage_round, eval_every):
  if stage_round == stage.rounds:
    return True
  step = stage_round
  if stage.step_ends:
    if stage_round not in stage.step_ends:
      return False
    step = 1 + stage.step_ends.index(stage_round)
  return step % eval_every == 0


def _row(metrics: Mapping[str, Any]) -> Any:
  """Returns the metrics as a named tuple, whose order TFF's managers keep; they sort mappings."""
  return _row_type(*metrics)(*metrics.values())


# Types stay in memory, and so would one for every round.
@functools.cache
def _row_type(*columns):
  return collections.namedtuple('Metrics', columns)


def _plain_numbers(state: ProgramState) -> ProgramState:
  """Undoes the state manager's turning of integers into NumPy scalars."""
  return state._replace(
      round_num=int(state.round_num),
      stage=int(state.stage),
      stage_round=int(state.stage_round),
      ledger=ledger_lib.Position(*state.ledger),
  )
