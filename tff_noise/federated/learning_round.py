"""The process of a round of training, from its parts."""

from __future__ import annotations

import collections
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_noise.clients import program as program_lib
from tff_noise.federated import processes
from tff_noise.federated import server_step
from tff_noise.models import keras_model
from tff_noise.uplink import uplink

_Process = tff.learning.templates.LearningProcess | processes.StatefulProcess


def build(
    parts: server_step.Parts,
    step: server_step.Step,
    client: tff.Computation,
    initialize_server: tff.Computation,
) -> _Process:
  """Returns the process.

  It is stateful only where clients keep state or get messages, or the server brings data.

  Args:
    parts: What the round is made of.
    step: From what clients send to the next model.
    client: `(<broadcast, data, local> -> output)`, see `local_sgd.build`.
    initialize_server: `( -> parts.server_state_type)`.
  """
  initialize = _initialize(parts, step, initialize_server)
  state_type = initialize.type_signature.result
  local_type = client.type_signature.parameter[2]
  server_data_type = None if parts.selector is None else parts.selector.server_data_type
  run_round = _run_round(parts, step, client, state_type)
  hparams_type = program_lib.received_type(parts.declared.receives)
  accessors = processes.accessors(state_type.member, hparams_type)
  data_type = tff.FederatedType(parts.task.model.data_type, tff.CLIENTS)
  declared = parts.declared
  if not declared.own and not declared.messages and server_data_type is None:
    get_model_weights, set_model_weights, get_hparams, set_hparams = accessors
    return tff.learning.templates.LearningProcess(
        initialize,
        _stateless_next(run_round, state_type, data_type),
        get_model_weights,
        set_model_weights,
        get_hparams_fn=get_hparams,
        set_hparams_fn=set_hparams,
    )
  next_fn = _stateful_next(run_round, state_type, data_type, local_type, server_data_type)
  return processes.StatefulProcess(initialize, next_fn, *accessors, local_type, server_data_type)


def _constant(value):
  return tf.constant(np.asarray(value))  # Of a Python number TensorFlow has another type.


def _initialize(parts, step, initialize_server):
  """`( -> processes.State@SERVER)`."""
  model, hparams = parts.task.model, program_lib.in_order(parts.declared.receives)
  initial_weights = keras_model.build_initial_weights(model, parts.task.seed)
  distributor = tff.learning.templates.build_broadcast_process(model.weights_type)

  @tff.tensorflow.computation
  def initial_client_work():
    return collections.OrderedDict(
        round_num=1, hparams=tf.nest.map_structure(_constant, hparams)
    )

  @tff.federated_computation
  def initialize():
    return tff.federated_zip(
        processes.State(
            global_model_weights=tff.federated_eval(initial_weights, tff.SERVER),
            distributor=distributor.initialize(),
            client_work=tff.federated_eval(initial_client_work, tff.SERVER),
            aggregator=step.initialize(),
            finalizer=tff.federated_eval(initialize_server, tff.SERVER),
        )
    )

  return initialize


def _run_round(parts, step, client, state_type) -> Callable[..., tuple]:
  """What `next` does, from (state, data, local, server data) to (state, metrics, local)."""

  @tff.tensorflow.computation(state_type.member.client_work)
  def next_client_work(state):
    return collections.OrderedDict(round_num=state['round_num'] + 1, hparams=state['hparams'])

  @tff.tensorflow.computation(
      parts.task.model.weights_type, state_type.member.client_work, parts.server_state_type
  )
  def make_broadcast(weights, state, server_state):
    return program_lib.Broadcast(
        weights, state['round_num'], state['hparams'],
        parts.optimizer.server.broadcast(server_state),
    )

  def run_round(state, data, local, server_data=None):
    broadcast = tff.federated_broadcast(
        tff.federated_map(
            make_broadcast, (state.global_model_weights, state.client_work, state.finalizer)
        )
    )
    output = tff.federated_map(client, (broadcast, data, local))
    stepped = step.next(state, output, server_data)
    next_state = tff.federated_zip(
        processes.State(
            global_model_weights=stepped.weights,
            distributor=state.distributor,
            client_work=tff.federated_map(next_client_work, state.client_work),
            aggregator=stepped.aggregator,
            finalizer=stepped.server,
        )
    )
    return next_state, tff.federated_zip(_metrics(stepped)), output.local

  return run_round


def _stateless_next(run_round, state_type, data_type):
  """`(<state, data@CLIENTS> -> <state, metrics>)`."""

  @tff.tensorflow.computation
  def no_local():
    return uplink.ClientInput(collections.OrderedDict(), collections.OrderedDict())

  @tff.federated_computation(state_type, data_type)
  def next_fn(state, data):
    local = tff.federated_eval(no_local, tff.CLIENTS)
    state, metrics, _ = run_round(state, data, local)
    return tff.learning.templates.LearningProcessOutput(state, metrics)

  return next_fn


def _stateful_next(run_round, state_type, data_type, local_type, server_data_type):
  """`(<state, data@CLIENTS, local@CLIENTS[, server_data@SERVER]> -> <state, metrics, local>)`."""
  local_type = tff.FederatedType(local_type, tff.CLIENTS)
  if server_data_type is None:

    @tff.federated_computation(state_type, data_type, local_type)
    def next_fn(state, data, local):
      return processes.StatefulOutput(*run_round(state, data, local))

    return next_fn

  @tff.federated_computation(
      state_type, data_type, local_type, tff.FederatedType(server_data_type, tff.SERVER)
  )
  def next_on_data(state, data, local, server_data):
    return processes.StatefulOutput(*run_round(state, data, local, server_data))

  return next_on_data


def _metrics(stepped):
  """TFF's metric layout."""
  return collections.OrderedDict(
      client_work=tff.federated_zip(
          collections.OrderedDict(
              train=tff.federated_map(tff.tensorflow.computation(mean_loss), stepped.sums)
          )
      ),
      aggregator=stepped.measurements,
      **({} if stepped.reports is None else {'reports': stepped.reports}),
  )


def mean_loss(sums: collections.OrderedDict) -> collections.OrderedDict:
  """Returns sums in which the loss is the mean over examples, nan without any."""
  if 'loss' not in sums:
    return sums
  mean = tf.math.divide_no_nan(sums['loss'], sums['examples'])
  loss = tf.where(sums['examples'] > 0, mean, np.nan)
  return collections.OrderedDict(sums, loss=loss)
