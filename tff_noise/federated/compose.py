"""One round of federated learning, composed from its parts.

```
  server state ──► broadcast ──► client update ──┬─ update, weight ──► mean ──► server step ──┐
                        ▲                        ├─ sums ───────────► sum  ──► metrics       │
   client data ─────────┤                        ├─ reports ──► by client ──► metrics        │
                        │                        └─ local ──► back to the client's own store │
   client's own state ──┘                                       next global model ◄──────────┘
```

Without client state this becomes a `tff.learning.templates.LearningProcess`, for any TFF program or
runtime. With it, a `StatefulProcess`, whose `next` has a third, client-placed argument and result.
Both are one function here, so they cannot drift apart.
"""

import collections
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_noise import types
from tff_noise.federated import aggregation as aggregation_lib
from tff_noise.federated import client_work
from tff_noise.federated import disclosure
from tff_noise.federated import optimizer as optimizer_lib
from tff_noise.federated import per_client
from tff_noise.federated import stacked
from tff_noise.federated import uplink
from tff_noise.models import keras_model

_State = tff.learning.templates.LearningAlgorithmState


class StatefulProcess(NamedTuple):
  """A learning process whose clients keep something between rounds.

  Attributes:
    initialize: `( -> S@SERVER)`.
    next: `(<state=S@SERVER, data={D*}@CLIENTS, local={L}@CLIENTS> ->
      <state=S@SERVER, metrics=M@SERVER, local={R}@CLIENTS>)`. R is an `uplink.ReturnedState`, L
      with the client's id: see `uplink.by_client`.
    get_model_weights: `(S -> W)`.
    set_model_weights: `(<S, W> -> S)`.
    get_hparams: `(S -> H)`.
    set_hparams: `(<S, H> -> S)`.
    local_type: L, an `uplink.ClientState`.
    held_type: TFF type of a fourth, server-placed argument: what the server judges clients' models
      by. None if there is none.
  """

  initialize: tff.Computation
  next: tff.Computation
  get_model_weights: tff.Computation
  set_model_weights: tff.Computation
  get_hparams: tff.Computation
  set_hparams: tff.Computation
  local_type: tff.Type
  held_type: tff.Type | None = None


class StatefulOutput(NamedTuple):
  """The result of `StatefulProcess.next`."""

  state: object
  metrics: object
  local: object


class RoundProcess(NamedTuple):
  """A process and the account of what its clients send.

  Attributes:
    process: What runs.
    fields: Every value that leaves a client in a round, checked against the compiled `next`.
    broadcast_bytes: Size of what each client of a round receives.
    optimizer: The federated optimizer.
  """

  process: tff.learning.templates.LearningProcess | StatefulProcess
  fields: tuple[uplink.UplinkField, ...]
  broadcast_bytes: int
  optimizer: optimizer_lib.FederatedOptimizer

  @property
  def uplink_bytes(self) -> int:
    """Size of what each client of a round sends."""
    return sum(field.num_bytes for field in self.fields)


def build_round_process(
    model: keras_model.KerasModel,
    work: client_work.ClientWork,
    *,
    seed: int,
    optimizer: optimizer_lib.FederatedOptimizer | None = None,
    aggregation: aggregation_lib.Aggregation | None = None,
    judge: stacked.Judge | None = None,
) -> RoundProcess:
  """Composes the process of one method.

  Args:
    model: The Keras model to train.
    work: What each client does.
    seed: The experiment's seed: initial weights and all client randomness.
    optimizer: How the clients' training becomes the next model; FedAvg if not given.
    aggregation: `weighted_mean()` if not given; with a judge or a robust optimizer, of scalars
      alone.
    judge: Who is asked, at the server, whose updates to use; all are, if not given.

  Returns:
    The process and its uplink. Its metrics are `client_work.train`: `loss` (mean over examples),
    `examples`, `rejected` (clients left out), and one entry for each of `work.sums`; and `reports`,
    a vector for each of `work.reports` and of what a judge found, if there are any.

  Raises:
    disclosure.UndeclaredUplinkError: If the compiled computation sends what is not declared.
  """
  optimizer = optimizer or optimizer_lib.fed_avg(model.weights_type)
  aggregation = aggregation or aggregation_lib.weighted_mean()
  if aggregation.scalar is None:
    _require_updates_alone(model, work, optimizer, judge)
  server, rule = optimizer.server, optimizer.client
  initialize_server = tff.tensorflow.computation(server.initialize)
  server_state_type = initialize_server.type_signature.result
  received_type = tff.tensorflow.computation(
      server.broadcast, server_state_type
  ).type_signature.result
  is_stacked = judge is not None or optimizer.combine is not None
  update_client = client_work.build_client_update(
      model, work, seed, rule, received_type, identified=is_stacked
  )
  parts = _Parts(
      model, work, optimizer, aggregation, judge, seed, server_state_type,
      update_client.type_signature.result,
  )
  step = _stacked_step(parts) if is_stacked else _mean_step(parts)
  distributor = tff.learning.templates.build_broadcast_process(model.weights_type)
  initial_weights = keras_model.build_initial_weights(model, seed)
  hparams_type = client_work.hparams_type(work)

  @tff.tensorflow.computation
  def initial_client_work():
    hparams = collections.OrderedDict((k, tf.constant(v)) for k, v in work.hparams.items())
    return collections.OrderedDict(round_num=1, hparams=hparams)

  @tff.federated_computation
  def initialize():
    return tff.federated_zip(
        _State(
            global_model_weights=tff.federated_eval(initial_weights, tff.SERVER),
            distributor=distributor.initialize(),
            client_work=tff.federated_eval(initial_client_work, tff.SERVER),
            aggregator=step.initialize(),
            finalizer=tff.federated_eval(initialize_server, tff.SERVER),
        )
    )

  state_type = initialize.type_signature.result
  local_type = client_work.state_type(work, rule)
  held_type = None if judge is None else judge.held_type
  has_state = bool(tf.nest.flatten(rule.initial_state)) or work.local_type is not None
  stateless = not has_state and held_type is None

  @tff.tensorflow.computation(state_type.member.client_work)
  def next_client_work(state):
    return collections.OrderedDict(round_num=state['round_num'] + 1, hparams=state['hparams'])

  @tff.tensorflow.computation(
      model.weights_type, state_type.member.client_work, server_state_type
  )
  def make_broadcast(weights, state, server_state):
    return client_work.Broadcast(
        weights, state['round_num'], state['hparams'], server.broadcast(server_state)
    )

  def run_round(state, data, local, held=None):
    broadcast = tff.federated_broadcast(
        tff.federated_map(
            make_broadcast, (state.global_model_weights, state.client_work, state.finalizer)
        )
    )
    output = tff.federated_map(update_client, (broadcast, data, local))
    stepped = step.next(state, output, held)
    next_state = tff.federated_zip(
        _State(
            global_model_weights=stepped.weights,
            distributor=state.distributor,
            client_work=tff.federated_map(next_client_work, state.client_work),
            aggregator=stepped.aggregator,
            finalizer=stepped.server,
        )
    )
    metrics = _metrics(stepped)
    return next_state, tff.federated_zip(metrics), output.local

  data_type = tff.FederatedType(model.data_type, tff.CLIENTS)

  if stateless:

    @tff.tensorflow.computation
    def no_local():
      return uplink.ClientState()

    @tff.federated_computation(state_type, data_type)
    def next_fn(state, data):
      local = tff.federated_eval(no_local, tff.CLIENTS)
      state, metrics, _ = run_round(state, data, local)
      return tff.learning.templates.LearningProcessOutput(state, metrics)

  elif held_type is None:

    @tff.federated_computation(
        state_type, data_type, tff.FederatedType(local_type, tff.CLIENTS)
    )
    def next_fn(state, data, local):
      return StatefulOutput(*run_round(state, data, local))

  else:

    @tff.federated_computation(
        state_type,
        data_type,
        tff.FederatedType(local_type, tff.CLIENTS),
        tff.FederatedType(held_type, tff.SERVER),
    )
    def next_fn(state, data, local, held):
      return StatefulOutput(*run_round(state, data, local, held))

  disclosure.check(next_fn, step.fields)

  get_model_weights, set_model_weights, get_hparams, set_hparams = _accessors(
      state_type.member, hparams_type
  )
  if stateless:
    process = tff.learning.templates.LearningProcess(
        initialize,
        next_fn,
        get_model_weights,
        set_model_weights,
        get_hparams_fn=get_hparams,
        set_hparams_fn=set_hparams,
    )
  else:
    process = StatefulProcess(
        initialize,
        next_fn,
        get_model_weights,
        set_model_weights,
        get_hparams,
        set_hparams,
        local_type,
        held_type,
    )
  broadcast_bytes = uplink.num_bytes(make_broadcast.type_signature.result)
  return RoundProcess(process, step.fields, broadcast_bytes, optimizer)


def _require_updates_alone(model, work, optimizer, judge):
  """Raises `UsageError` where clients would send more than one noise protects."""
  rule = optimizer.client
  if judge is not None or optimizer.combine is not None:
    raise types.UsageError(
        '--client_dp_noise protects a sum of updates, and here the server takes single models'
    )
  sent = [value.name for value in (*work.sums, *work.reports, *rule.sums, *rule.reports)]
  if optimizer.server.counts_examples:
    sent.append('examples')
  if sent:
    raise types.UsageError(
        '--client_dp_noise protects updates alone, and here clients also send: ' + ', '.join(sent)
    )
  if len(model.weights_type.non_trainable):
    raise types.UsageError(
        '--client_dp_noise would put noise on batch statistics: use --norm=group'
    )


class _Parts(NamedTuple):
  """What the server's step is built from."""

  model: keras_model.KerasModel
  work: client_work.ClientWork
  optimizer: optimizer_lib.FederatedOptimizer
  aggregation: aggregation_lib.Aggregation
  judge: stacked.Judge | None
  seed: int
  server_state_type: tff.Type
  output_type: tff.StructWithPythonType

  @property
  def reports(self) -> tuple[uplink.UplinkReport, ...]:
    """What the server sees by client."""
    return (*self.work.reports, *self.optimizer.client.reports)

  def sums(self, *more: uplink.UplinkSum) -> tuple[uplink.UplinkSum, ...]:
    """What is summed over the clients besides their updates."""
    if self.aggregation.scalar is None:
      return ()
    return (*client_work.TRAINING_SUMS, *self.work.sums, *more)


class _Stepped(NamedTuple):
  """Values at the server after a round."""

  weights: tff.Value
  server: tff.Value
  aggregator: tff.Value
  sums: tff.Value
  measurements: tff.Value
  reports: tff.Value | None


class _Step(NamedTuple):
  """From the clients' output to the next model.

  Attributes:
    initialize: The aggregator's.
    next: From (state, clients' output, what the server holds) to `_Stepped`.
    fields: All that leaves a client.
  """

  initialize: Callable[[], tff.Value]
  next: Callable[[tff.Value, tff.Value, tff.Value | None], _Stepped]
  fields: tuple[uplink.UplinkField, ...]


def _mean_step(parts: _Parts) -> _Step:
  """The server sees sums alone."""
  server, rule = parts.optimizer.server, parts.optimizer.client
  update_type = parts.output_type.update
  mean = parts.aggregation.update.create(update_type, tff.TensorType(np.float32))
  declared = parts.sums(*rule.sums)

  @tff.tensorflow.computation(
      parts.server_state_type, parts.model.weights_type, update_type, _sums_type(declared)
  )
  def next_server(state, weights, update, sums):
    return server.next(state, optimizer_lib.ServerInputs(weights, update, sums))

  def next_fn(state, output, held):
    del held  # Unused.
    average = mean.next(state.aggregator, output.update, output.weight)
    sums = _sum(output.sums, declared, parts.aggregation)
    server_state, weights = tff.federated_map(
        next_server, (state.finalizer, state.global_model_weights, average.result, sums)
    )
    reports = per_client.collect(output.reports) if parts.reports else None
    return _Stepped(weights, server_state, average.state, sums, average.measurements, reports)

  return _Step(
      mean.initialize,
      next_fn,
      (
          *parts.aggregation.update_fields(update_type),
          *_scalar_fields(declared, parts.aggregation),
          *per_client.fields(parts.reports),
      ),
  )


def _stacked_step(parts: _Parts) -> _Step:
  """The server sees the contributions of single clients."""
  server, rule = parts.optimizer.server, parts.optimizer.client
  declared = parts.sums()
  row_type = stacked.row_type(parts.output_type.update, rule.sums, parts.reports)
  held_type = () if parts.judge is None else parts.judge.held_type or ()

  @tff.tensorflow.computation(parts.output_type)
  def make_row(output):
    return stacked.make_row(output, rule.sums)

  @tff.tensorflow.computation(
      parts.server_state_type, parts.model.weights_type, per_client.stack_type(row_type),
      np.int32, held_type,
  )
  def next_server(state, weights, rows, round_num, held):
    score = None if parts.judge is None else parts.judge.build_score()

    @tf.function(autograph=False)
    def run(state, weights, rows, round_num, held):
      decision = stacked.decide(
          rows,
          weights=weights,
          update_like=_update_like(rule, weights, server.broadcast(state)),
          optimizer=parts.optimizer,
          keep=score and stacked.best_of(parts.judge, score, held, round_num, parts.seed),
      )
      return (*server.next(state, decision.inputs), decision.reports)

    return run(state, weights, rows, round_num, held)

  @tff.tensorflow.computation
  def nothing():
    return ()

  def next_fn(state, output, held):
    rows = per_client.collect(tff.federated_map(make_row, output))
    if held is None:
      held = tff.federated_eval(nothing, tff.SERVER)
    server_state, weights, reports = tff.federated_map(
        next_server,
        (
            state.finalizer, state.global_model_weights, rows,
            tff.federated_map(_round_num(state), state.client_work), held,
        ),
    )
    return _Stepped(
        weights, server_state, state.aggregator,
        _sum(output.sums, declared, parts.aggregation), tff.federated_value((), tff.SERVER),
        reports,
    )

  reason = (
      'the middle of the clients\' updates cannot be told from their sum'
      if parts.judge is None
      else parts.judge.reason
  )
  return _Step(
      lambda: tff.federated_value((), tff.SERVER),
      next_fn,
      (
          *_scalar_fields(declared, parts.aggregation),
          *stacked.fields(parts.output_type.update, rule.sums, parts.reports, reason),
      ),
  )


def _round_num(state):
  @tff.tensorflow.computation(state.client_work.type_signature.member)
  def round_num(client_work_state):
    return client_work_state['round_num']

  return round_num


def _update_like(rule, weights, received):
  """A value in the structure of what clients send."""
  zeros = tf.nest.map_structure(tf.zeros_like, weights)
  initial = tf.nest.map_structure(tf.convert_to_tensor, rule.initial_state)
  return rule.send(
      optimizer_lib.LocalResult(
          zeros, weights, tf.constant(0), tf.constant(0.0), tf.constant(0.0), initial, received
      )
  ).update


def _sums_type(sums):
  return tff.to_type(collections.OrderedDict((s.name, tff.TensorType(s.dtype)) for s in sums))


def _scalar_fields(sums, aggregation):
  return tuple(field for s in sums for field in aggregation.scalar_fields(s))


def _sum(contributions, sums, aggregation):
  """Sums the clients' scalars."""
  totals = collections.OrderedDict()
  for s in sums:
    process = aggregation.scalar(s).create(tff.TensorType(s.dtype))
    # These processes have no state: their bounds are constants.
    totals[s.name] = process.next(process.initialize(), contributions[s.name]).result
  return tff.federated_zip(totals) if totals else tff.federated_value(totals, tff.SERVER)


def _metrics(stepped):
  """Turns the summed loss into a mean; TFF's metric layout."""

  @tff.tensorflow.computation
  def finalize(sums):
    if not sums:
      return sums
    loss = tf.math.divide_no_nan(sums['loss'], sums['examples'])
    return collections.OrderedDict(sums, loss=loss)

  train = tff.federated_map(finalize, stepped.sums)
  return collections.OrderedDict(
      client_work=tff.federated_zip(collections.OrderedDict(train=train)),
      aggregator=stepped.measurements,
      **({} if stepped.reports is None else {'reports': stepped.reports}),
  )


def _accessors(state_type, hparams_type):
  """The four computations by which a program reads and changes a state between rounds."""

  @tff.tensorflow.computation(state_type)
  def get_model_weights(state):
    return state.global_model_weights

  @tff.tensorflow.computation(state_type, state_type.global_model_weights)
  def set_model_weights(state, weights):
    return _replace(state, global_model_weights=weights)

  @tff.tensorflow.computation(state_type)
  def get_hparams(state):
    return state.client_work['hparams']

  @tff.tensorflow.computation(state_type, hparams_type)
  def set_hparams(state, hparams):
    client_state = collections.OrderedDict(
        round_num=state.client_work['round_num'], hparams=hparams
    )
    return _replace(state, client_work=client_state)

  return get_model_weights, set_model_weights, get_hparams, set_hparams


def _replace(state, **changes):
  fields = {name: getattr(state, name) for name in _State.__annotations__}
  return _State(**{**fields, **changes})


def replace_optimizer_state(state, optimizer_state):
  """Returns a process's state with another state of its federated optimizer's server."""
  return _replace(state, finalizer=optimizer_state)


def hand_over(
    process: tff.learning.templates.LearningProcess | StatefulProcess,
    state,
    *,
    keep_optimizer: bool = False,
):
  """Returns a new state of `process` that goes on from another process's state.

  The model and the number of the round (of which the clients' random numbers are a function) are
  kept; optimizer state and hyper-parameters are those of a new state.

  Args:
    process: Of the next stage.
    state: Of the last one.
    keep_optimizer: Whether both have the same optimizer, whose state goes on.
  """
  fresh = process.initialize()
  return _replace(
      fresh,
      global_model_weights=state.global_model_weights,
      client_work=collections.OrderedDict(
          round_num=state.client_work['round_num'], hparams=fresh.client_work['hparams']
      ),
      finalizer=state.finalizer if keep_optimizer else fresh.finalizer,
  )
