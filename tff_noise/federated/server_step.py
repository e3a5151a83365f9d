"""From what clients send to the next model: the server sees sums alone, or single contributions."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_noise.clients import local_sgd
from tff_noise.clients import program as program_lib
from tff_noise.federated import aggregation as aggregation_lib
from tff_noise.federated import optimizer as optimizer_lib
from tff_noise.federated import stacked
from tff_noise.federated import task as task_lib
from tff_noise.uplink import per_client
from tff_noise.uplink import uplink


class Parts(NamedTuple):
  """What the server's step is built from."""

  task: task_lib.Task
  declared: program_lib.Declared
  optimizer: optimizer_lib.FederatedOptimizer
  selector: stacked.Selector | None
  server_state_type: tff.Type
  output_type: tff.StructWithPythonType

  def sums(self, but: tuple[uplink.UplinkSum, ...] = ()) -> tuple[uplink.UplinkSum, ...]:
    """What is summed over the clients besides their updates."""
    if self.task.aggregation.scalar is None:
      return ()
    return (*local_sgd.TRAINING_SUMS, *(s for s in self.declared.sums if s not in but))


class Stepped(NamedTuple):
  """Values at the server after a round."""

  weights: tff.Value
  server: tff.Value
  aggregator: tff.Value
  sums: tff.Value
  measurements: tff.Value
  reports: tff.Value | None


class Step(NamedTuple):
  """From the clients' output to the next model.

  Attributes:
    initialize: The aggregator's.
    next: From (state, clients' output, the server's own data) to `Stepped`.
    fields: All that leaves a client.
  """

  initialize: Callable[[], tff.Value]
  next: Callable[[tff.Value, tff.Value, tff.Value | None], Stepped]
  fields: tuple[uplink.UplinkField, ...]


def mean_step(parts: Parts) -> Step:
  """The server sees sums alone."""
  server, aggregation, reports = (
      parts.optimizer.server, parts.task.aggregation, parts.declared.reports
  )
  update_type = parts.output_type.update
  weight_type = np.int32 if aggregation.by_client else np.float32
  mean = aggregation.update.create(update_type, tff.TensorType(weight_type))
  sums = parts.sums()

  @tff.tensorflow.computation(
      parts.server_state_type, parts.task.model.weights_type, update_type, _sums_type(sums)
  )
  def next_server(state, weights, update, sums):
    inputs = optimizer_lib.ServerInputs(weights, update, sums)
    # What a factory of the user's makes of nothing may be 0 / 0.
    zeros = tf.nest.map_structure(tf.zeros_like, update)
    return server.next(
        state, inputs._replace(update=optimizer_lib.unless_empty(inputs, update, zeros))
    )

  def next_fn(state, output, server_data):
    del server_data  # Unused.
    beside = output.local.client if aggregation.by_client else output.weight
    average = mean.next(state.aggregator, output.update, beside)
    totals = sum_of(output.sums, sums, aggregation)
    server_state, weights = tff.federated_map(
        next_server, (state.finalizer, state.global_model_weights, average.result, totals)
    )
    return Stepped(
        weights, server_state, average.state, totals, average.measurements,
        per_client.collect(output.reports) if reports else None,
    )

  return Step(
      mean.initialize,
      next_fn,
      (
          *aggregation.update_fields(update_type),
          *sum_fields(sums, aggregation),
          *per_client.fields(reports),
      ),
  )


def stacked_step(parts: Parts) -> Step:
  """The server sees the contributions of single clients."""
  optimizer, selector, task = parts.optimizer, parts.selector, parts.task
  in_rows = optimizer.client.sums
  sums = parts.sums(but=in_rows)
  update_type = parts.output_type.update
  row_type = stacked.row_type(update_type, in_rows, parts.declared.reports)
  server_data_type = () if selector is None else selector.server_data_type or ()

  @tff.tensorflow.computation(parts.output_type)
  def make_row(output):
    return stacked.make_row(output, in_rows)

  @tff.tensorflow.computation(
      parts.server_state_type, task.model.weights_type, per_client.stack_type(row_type),
      np.int32, server_data_type,
  )
  def next_server(state, weights, rows, round_num, server_data):
    score = None if selector is None else selector.build_score()

    @tf.function(autograph=False)
    def run(state, weights, rows, round_num, server_data):
      decision = stacked.decide(
          rows,
          weights=weights,
          update_type=update_type,
          optimizer=optimizer,
          keep=score and stacked.best_of(selector, score, server_data, round_num, task.seed),
      )
      return (*optimizer.server.next(state, decision.inputs), decision.reports)

    return run(state, weights, rows, round_num, server_data)

  @tff.tensorflow.computation
  def nothing():
    return ()

  def next_fn(state, output, server_data):
    rows = per_client.collect(tff.federated_map(make_row, output))
    if server_data is None:
      server_data = tff.federated_eval(nothing, tff.SERVER)
    server_state, weights, reports = tff.federated_map(
        next_server,
        (
            state.finalizer, state.global_model_weights, rows,
            tff.federated_map(_round_num(state), state.client_work), server_data,
        ),
    )
    return Stepped(
        weights, server_state, state.aggregator,
        sum_of(output.sums, sums, task.aggregation), tff.federated_value((), tff.SERVER),
        reports,
    )

  reason = 'what is made of single updates, such as their middle, cannot be told from their sum'
  if optimizer.weigh is not None:
    reason = 'what updates are weighted by cannot be told from their sum'
  if selector is not None:
    reason = selector.reason
  return Step(
      lambda: tff.federated_value((), tff.SERVER),
      next_fn,
      (
          *sum_fields(sums, task.aggregation),
          *stacked.fields(update_type, in_rows, parts.declared.reports, reason),
      ),
  )


def _round_num(state):
  @tff.tensorflow.computation(state.client_work.type_signature.member)
  def round_num(client_work_state):
    return client_work_state['round_num']

  return round_num


def _sums_type(sums):
  return tff.to_type(collections.OrderedDict((s.name, s.type_spec) for s in sums))


def sum_fields(sums, aggregation):
  return tuple(field for s in sums for field in aggregation.scalar_fields(s))


def sum_of(contributions, sums, aggregation: aggregation_lib.Aggregation):
  """Sums what the clients send besides updates."""
  totals = collections.OrderedDict()
  for s in sums:
    process = aggregation.scalar(s).create(s.type_spec)
    # These processes have no state: their bounds are constants.
    totals[s.name] = process.next(process.initialize(), contributions[s.name]).result
  return tff.federated_zip(totals) if totals else tff.federated_value(totals, tff.SERVER)
