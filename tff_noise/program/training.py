"""The training loop: the only one, for every algorithm.

It asks the algorithm for the next round until there is none, and receives every effect (where state
is saved, where metrics go), so it knows no paths. All that a resume needs is in `ProgramState`; all
randomness is a function of (seed, round, client). So a run that is killed and continued repeats the
rounds since its last checkpoint and arrives at the same numbers.
"""

import asyncio
import concurrent.futures
import contextlib
import gc
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_noise import types
from tff_noise.algorithms import algorithm as algorithm_lib
from tff_noise.federated import evaluation
from tff_noise.privacy import ledger as ledger_lib
from tff_noise.program import checkpoints
from tff_noise.program import clients as clients_lib


class ProgramState(NamedTuple):
  """Everything a resume needs.

  Attributes:
    state: The algorithm's.
    own: What each client keeps: by name, by client id.
    participations: int64 `[C]`, rounds each client took part in.
    aggregators: The state of each computation's aggregation, by the computation's name.
    ledger: How far the run is in its privacy ledger.
  """

  state: algorithm_lib.State
  own: clients_lib.OwnStates
  participations: np.ndarray
  aggregators: Mapping[str, Any]
  ledger: ledger_lib.Position

  @property
  def digest(self) -> bytes:
    """SHA-256 of all of it but what the ledger knows itself."""
    return checkpoints.digest(self._replace(ledger=()))

  @property
  def round_num(self) -> int:
    """Rounds done in the whole run."""
    return self.state.round_num

  @property
  def records(self) -> algorithm_lib.Records:
    """What the algorithm remembers."""
    return self.state.records

  @property
  def own_of_clients(self) -> list[Mapping[str, Any]]:
    """What each client keeps, by name."""
    return clients_lib.by_client(self.own, len(self.participations))


class RoundResult(NamedTuple):
  """What a round did, for those who watch.

  Attributes:
    round_num: 1 in the run's first round.
    metrics: Flat values of `metrics.csv`.
    seconds: Wall time of the round without its evaluation at the server.
  """

  round_num: int
  metrics: dict[str, Any]
  seconds: float


def program_state(
    state: algorithm_lib.State, clients: clients_lib.SimulatedClients, ledger: ledger_lib.Ledger
) -> ProgramState:
  """Returns all of it as it is now."""
  return ProgramState(
      state, clients.own, clients.participations, clients.aggregators, ledger.position
  )


def entered(state: ProgramState, ledger: ledger_lib.Ledger) -> ProgramState | None:
  """Enters into the ledger that a state is saved, before it is, as releases are.

  Returns:
    What a run can be continued from, or None where a run that is continued did not save before.
  """
  if not ledger.save(state.round_num, state.digest):
    return None
  return state._replace(ledger=ledger.position)


def initial_state(algorithm: algorithm_lib.Algorithm, weights: Any = None) -> algorithm_lib.State:
  """Returns the state before the first round, with these weights if there are any."""
  state = algorithm.init()
  if weights is None:
    return state
  return state._replace(models={**state.models, algorithm_lib.MODEL: weights})


def run_round(
    algorithm: algorithm_lib.Algorithm,
    state: algorithm_lib.State,
    clients: clients_lib.SimulatedClients,
) -> algorithm_lib.State:
  """Runs the next round; returns the next state. What it cost is in `clients.traffic`.

  Raises:
    types.RunError: If the computation of a client fails.
    types.UsageError: If the algorithm's round returns no state.
    ValueError: If the algorithm does what its noise does not allow.
  """
  round_num = state.round_num + 1
  clients.begin_round(round_num, algorithm.stage_of(round_num))
  try:
    new = algorithm.round(state, clients.view)
  finally:
    clients.end_round()
  if not isinstance(new, algorithm_lib.State):
    raise types.UsageError(
        f"the method's round has to return the next State, found {type(new).__name__}"
    )
  if new is state and state.models and clients.traffic.clients:
    raise types.UsageError(
        "the method's round returned the state that it was given, though clients trained: return "
        'that of their output'
    )
  for name in ('models', 'optimizers', 'received', 'records'):
    before, after = getattr(state, name).keys(), getattr(new, name).keys()
    if before != after:
      raise types.UsageError(
          f"the method's round returned a State whose {name} are {', '.join(sorted(after))}, and "
          f"began with {', '.join(sorted(before))}: what a run keeps has to be there from its "
          'start, as Algorithm and its computations declare it'
      )
  state = new
  clients.require_noise()
  # The state is saved while the next round runs: what changes it in place fails there and then.
  for value in tf.nest.flatten(state):
    if isinstance(value, np.ndarray):
      value.flags.writeable = False
  return state._replace(round_num=round_num)


async def run(
    *,
    algorithm: algorithm_lib.Algorithm,
    clients: clients_lib.SimulatedClients,
    evaluations: Mapping[str, Callable[[Sequence[algorithm_lib.Evaluated]], Mapping[str, float]]],
    state_manager: tff.program.ProgramStateManager,
    metrics_managers: Sequence[tff.program.ReleaseManager],
    timing_manager: tff.program.ReleaseManager,
    on_round: Callable[[RoundResult], None],
    ground_truth: Callable[[ProgramState], Mapping[str, float]] = lambda _: {},
    eval_every: int,
    checkpoint_every: int,
    ledger: ledger_lib.Ledger,
    initial_weights: Any = None,
    on_evaluated: Callable[..., None] = lambda *_: None,
    with_state: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    is_over: Callable[[int], bool] = lambda _: False,
) -> ProgramState:
  """Runs every round that is left, and returns the final state.

  Args:
    algorithm: What runs.
    clients: As they are before the first round.
    evaluations: By name ('test', 'validation'): from the models that are evaluated to `accuracy`
      and `loss`.
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
    initial_weights: What a new run starts from in place of the algorithm's own initial weights.
    on_evaluated: Called with the round, its values such as 'test_accuracy' and the algorithm's own,
      and the models that have them, before the round's row is written.
    with_state: Called after each round whose state is saved; within what it returns that is done,
      in another thread.
    is_over: Whether the run ends after a round, before its last one; asked after `on_evaluated`,
      and of the round that is continued from.
  """
  state = initial_state(algorithm, initial_weights)
  versions = await state_manager.get_versions()
  if versions and versions[-1]:
    saved = await state_manager.load(versions[-1], program_state(state, clients, ledger))
    ledger.resume(saved.ledger, saved.digest)
    state = saved.state
    clients.resume(saved.own, saved.participations, saved.aggregators)
  total_rounds = algorithm.rounds

  async def write(state, saving, done, metrics, seconds):
    # Metrics first: a state that is saved has all its rows, and a row without its state is
    # replaced when the round is run again.
    for manager in metrics_managers:
      await manager.release(metrics, done)
    await timing_manager.release({'seconds': seconds}, done)
    if state is not None:
      with saving:
        await state_manager.save(state, done)
    on_round(RoundResult(done, metrics, seconds))
    # Weights hang in cycles of objects, which Python looks for every hundred rounds.
    gc.collect(generation=1)

  with _Background() as background:
    ended = is_over(state.round_num)
    while not ended and state.round_num < total_rounds:
      started = time.monotonic()
      state = run_round(algorithm, state, clients)
      seconds = time.monotonic() - started
      now, done = program_state(state, clients, ledger), state.round_num
      columns = algorithm.report.columns(state)
      evaluated = {f'{name}_{m}': np.nan for name in evaluations for m in evaluation.MEASURES}
      if evaluations and is_evaluated(algorithm, done, eval_every):
        models = algorithm.evaluated(state, now.own_of_clients)
        for name, evaluate in evaluations.items():
          values = evaluate(models)
          evaluated.update({f'{name}_{m}': float(values[m]) for m in evaluation.MEASURES})
        on_evaluated(done, {**columns, **evaluated}, models)
        ended = is_over(done)
      traffic, truth = clients.traffic, ground_truth(now)
      measured = {
          'stage': algorithm.stage_of(done),
          **evaluated,
          # Nobody knows them where nothing but updates may leave a client.
          'train_loss': traffic.train_loss,
          'clients': traffic.clients,
          'rejected': traffic.rejected,
          'bytes_up': traffic.bytes_up,
          'bytes_down': traffic.bytes_down,
      }
      _require_free_names(columns, {**measured, **truth})
      metrics = {**measured, **columns, **truth}
      is_saved = ended or done == total_rounds or done % checkpoint_every == 0
      # If it ends with an error there, this state is none that the ledger has and nobody else.
      await background.wait()
      saved = entered(now, ledger) if is_saved else None
      saving = None if saved is None else with_state()
      await background.start(write, saved, saving, done, metrics, seconds)
    await background.wait()
    return program_state(state, clients, ledger)


def _require_free_names(columns, measured):
  """The method's columns are beside those that a run has, not in their place."""
  # A model is chosen by the server's validation, where a column says that there is one.
  known = {'round', *measured, *(f'validation_{m}' for m in evaluation.MEASURES)}
  taken = sorted(columns.keys() & known)
  if taken:
    raise types.UsageError(
        f"the columns {', '.join(taken)} of the method's report have names of columns that every "
        'run has: call them otherwise'
    )


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


def evaluated_in_last_stage(
    algorithm: algorithm_lib.Algorithm, eval_every: int, up_to: int
) -> list[int]:
  """Returns the rounds of the last stage, up to a round, after which models are evaluated."""
  *_, length = filter(None, algorithm.stages.values())
  rounds = range(algorithm.planned_rounds - length + 1, up_to + 1)
  return [number for number in rounds if is_evaluated(algorithm, number, eval_every)]


def is_evaluated(algorithm: algorithm_lib.Algorithm, round_num: int, eval_every: int) -> bool:
  """Returns whether models are evaluated after a round, the run's first being 1."""
  first = 1
  for rounds in algorithm.stages.values():
    if round_num < first + rounds:
      break
    first += rounds
  last = first + rounds - 1
  if round_num in (last, algorithm.rounds):
    return True
  ends = [end for end in algorithm.step_ends if first <= end <= last]
  if not ends:
    return (round_num - first + 1) % eval_every == 0
  return round_num in ends and (1 + ends.index(round_num)) % eval_every == 0
