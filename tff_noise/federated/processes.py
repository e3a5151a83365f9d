"""What a computation runs, beside TFF's `LearningProcess`.

`StatefulProcess` is one whose clients keep something between rounds; a `Collection` trains no model
of the server's.
"""

from __future__ import annotations

import collections
from typing import NamedTuple

import tensorflow_federated as tff

State = tff.learning.templates.LearningAlgorithmState


class StatefulProcess(NamedTuple):
  """A learning process whose clients keep something between rounds, or get messages of their own.

  Attributes:
    initialize: `( -> S@SERVER)`.
    next: `(<state=S@SERVER, data={D*}@CLIENTS, local={L}@CLIENTS> ->
      <state=S@SERVER, metrics=M@SERVER, local={R}@CLIENTS>)`. L is an `uplink.ClientInput`, R an
      `uplink.ReturnedState`, with the client's id: see `uplink.by_client`.
    get_model_weights: `(S -> W)`.
    set_model_weights: `(<S, W> -> S)`.
    get_hparams: `(S -> H)`, what the server sends to all besides the model.
    set_hparams: `(<S, H> -> S)`.
    local_type: L.
    server_data_type: TFF type of a fourth, server-placed argument: what the server compares
      clients' models on. None if there is none.
  """

  initialize: tff.Computation
  next: tff.Computation
  get_model_weights: tff.Computation
  set_model_weights: tff.Computation
  get_hparams: tff.Computation
  set_hparams: tff.Computation
  local_type: tff.Type
  server_data_type: tff.Type | None = None


class StatefulOutput(NamedTuple):
  """The result of `StatefulProcess.next`."""

  state: object
  metrics: object
  local: object


def without_clients(whole: tff.Computation) -> tff.Computation:
  """Returns a round of nobody: without what clients get back.

  TFF computes a round without clients, but cannot read a value that is placed at nobody.

  Args:
    whole: `next` of a `StatefulProcess` without a `server_data_type`.

  Returns:
    `(<state=S@SERVER, data={D*}@CLIENTS, local={L}@CLIENTS> ->
    <state=S@SERVER, metrics=M@SERVER>)`.
  """

  @tff.federated_computation(*whole.type_signature.parameter)
  def next_fn(state, data, local):
    output = whole(state, data, local)
    return tff.learning.templates.LearningProcessOutput(output.state, output.metrics)

  return next_fn


class Collection(NamedTuple):
  """What runs where no model is updated.

  Attributes:
    next: `(<broadcast=B@SERVER, data={D*}@CLIENTS, local={L}@CLIENTS> ->
      <sums=M@SERVER, reports=R@SERVER, mean=A@SERVER, local={S}@CLIENTS>)`; B a
      `program.Broadcast`, L an `uplink.ClientInput`, S an `uplink.ReturnedState`. Of labels alone
      `({D}@CLIENTS -> M@SERVER)`.
  """

  next: tff.Computation


# What runs, of one kind or another.
KINDS = (Collection, StatefulProcess, tff.learning.templates.LearningProcess)


def accessors(state_type, hparams_type):
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
  fields = {name: getattr(state, name) for name in State.__annotations__}
  return State(**{**fields, **changes})
