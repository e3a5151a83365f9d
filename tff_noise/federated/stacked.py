"""Aggregation by a server that sees single contributions: stacked, one row for each client.

What a coordinate-wise median or a ranking of clients' models needs, and no secure sum can give: of
a sum nobody can tell the middle, nor which client's model was bad. Rows carry their client's id and
are sorted by it, so nothing depends on the order in which a runtime brings results. For k clients
a round the stack is k times the size of a contribution, and the worker at its most holds seven to
eight times that (`python -m benchmarks.scale stack`).
"""

import collections
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_noise import rng
from tff_noise.federated import optimizer as optimizer_lib
from tff_noise.uplink import per_client
from tff_noise.uplink import uplink

_UPDATE, _WEIGHT = 'update', 'weight'
# What is reported of the selection, beside the clients' own reports.
SCORE, KEPT = 'score', 'kept'
# The field of the uplink.
UPDATES = 'model updates of single clients'
# What a row has, or is found of it, besides what clients report.
NAMES = frozenset((_UPDATE, _WEIGHT, SCORE, KEPT, 'client'))


class SelectorInputs(NamedTuple):
  """What a selector may look at; clients in ascending order of their ids.

  Attributes:
    model: From i to the weights of the i-th client's model, `tff.learning.models.ModelWeights`.
    num_clients: int32, k.
    finite: bool `[k]`, whose update can be used; the model of the others is the received one.
    reports: `[k]` by name, what the clients reported, see `ClientProgram.reports`.
    server_data: What the server holds, or `()`.
  """

  model: Callable[[tf.Tensor], tff.learning.models.ModelWeights]
  num_clients: tf.Tensor
  finite: tf.Tensor
  reports: Mapping[str, tf.Tensor]
  server_data: Any


class Selector(NamedTuple):
  """Tells the server whose contributions of a round to use: the best few.

  Attributes:
    build_score: Run once in the server's computation, where it may build Keras models; returns a
      function from `SelectorInputs` to float32 `[k]`, higher for better.
    keep: m, how many of the best are used; fewer if fewer are finite. Ties are broken at random,
      anew in each round.
    reason: Why the server needs to see single models.
    server_data_type: TFF type of what the server compares models on, such as clean examples; None
      for nothing.
  """

  build_score: Callable[[], Callable[[SelectorInputs], tf.Tensor]]
  keep: int
  reason: str
  server_data_type: tff.Type | None = None


class Decision(NamedTuple):
  """What comes of the contributions.

  Attributes:
    inputs: Of the server's step.
    reports: `[k]` by name: `client`, what the clients reported, and, where a selector was asked,
      float32 `score` and bool `kept`.
  """

  inputs: optimizer_lib.ServerInputs
  reports: Mapping[str, tf.Tensor]


def row_type(
    update_type: tff.Type,
    sums: tuple[uplink.UplinkSum, ...],
    reports: tuple[uplink.UplinkReport, ...],
) -> tff.StructWithPythonType:
  """Returns the TFF type of what one client sends, `<client, update, weight, sums, reports>`."""
  return tff.to_type(
      collections.OrderedDict([
          (per_client.CLIENT, np.int32),
          (_UPDATE, tff.TensorType(np.float32, (uplink.num_entries(update_type),))),
          (_WEIGHT, np.float32),
          *((s.name, s.type_spec) for s in sums),
          *((r.name, r.type_spec) for r in reports),
      ])
  )


def make_row(output: uplink.ClientOutput, sums: tuple[uplink.UplinkSum, ...]) -> Any:
  """Returns one client's row, of `row_type`. `output.reports` has the client's id."""
  flat = [tf.reshape(t, [-1]) for t in tf.nest.flatten(output.update)]
  return collections.OrderedDict([
      (per_client.CLIENT, output.reports[per_client.CLIENT]),
      (_UPDATE, tf.concat(flat, axis=0)),
      (_WEIGHT, output.weight),
      *((s.name, output.sums[s.name]) for s in sums),
      *((n, v) for n, v in output.reports.items() if n != per_client.CLIENT),
  ])


def decide(
    rows: Mapping[str, tf.Tensor],
    *,
    weights: tff.learning.models.ModelWeights,
    update_type: tff.Type,
    optimizer: optimizer_lib.FederatedOptimizer,
    keep: Callable[..., tuple[tf.Tensor, tf.Tensor]] | None,
) -> Decision:
  """Combines the contributions of the clients that are used.

  Args:
    rows: As `per_client.collect` gives them.
    weights: w_t.
    update_type: TFF type of an update.
    optimizer: Whose update this is, and how rows are combined.
    keep: From `best_of`; None to use all.
  """
  rows = {name: tf.gather(v, tf.argsort(rows[per_client.CLIENT])) for name, v in rows.items()}
  finite = rows[_WEIGHT] > 0
  sums = {s.name: rows[s.name] for s in optimizer.client.sums}
  given = {per_client.CLIENT, _UPDATE, _WEIGHT, *sums}
  reports = {name: v for name, v in rows.items() if name not in given}

  def inputs_of(update, used):
    totals = {name: tf.reduce_sum(_where(used, v), axis=0) for name, v in sums.items()}
    totals['examples'] = tf.reduce_sum(tf.where(used, rows[_WEIGHT], 0.0))
    return optimizer_lib.ServerInputs(weights, unflatten(update, update_type), totals)

  def model(i):
    alone = tf.equal(tf.range(tf.shape(finite)[0]), i)
    return optimizer.client_model(inputs_of(rows[_UPDATE][i], alone))

  def tensors(i):
    if optimizer.client_model in (None, optimizer_lib.moved_by_update):
      return tf.nest.flatten(unflatten(rows[_UPDATE][i], update_type))
    return tf.nest.flatten(model(tf.cast(i, tf.int32)))

  used, found = finite, {}
  if keep is not None:
    score, used = keep(model, rows[per_client.CLIENT], finite, reports)
    found = {SCORE: score, KEPT: used}
  combine = optimizer.combine or weighted_mean
  weights_of_rows = tf.where(used, rows[_WEIGHT], 0.0)
  if optimizer.weigh is not None:
    weights_of_rows = optimizer.weigh(
        optimizer_lib.Contributions(weights_of_rows, reports, tensors)
    )
  update = combine(rows[_UPDATE], weights_of_rows)
  shown = collections.OrderedDict(
      [(per_client.CLIENT, rows[per_client.CLIENT]), *reports.items(), *found.items()]
  )
  return Decision(inputs_of(update, used), shown)


def _where(used, rows):
  """The rows that are used, the others 0."""
  of_row = tf.reshape(used, [-1] + [1] * (rows.shape.rank - 1))
  return tf.where(of_row, rows, tf.zeros_like(rows))


def best_of(
    selector: Selector,
    score: Callable[[SelectorInputs], tf.Tensor],
    server_data: Any,
    round_num: tf.Tensor,
    seed: int,
) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
  """Returns what tells the clients' scores and which of them are used.

  Args:
    selector: Who selects.
    score: From its `build_score`.
    server_data: What it compares models on.
    round_num: For what is random.
    seed: Likewise.
  """

  def keep(model, clients, finite, reports):
    inputs = SelectorInputs(model, tf.shape(clients)[0], finite, reports, server_data)
    scores = score(inputs)
    # Not a number is no reason to be used, not even where places are left.
    usable = finite & tf.math.is_finite(scores)
    scores = tf.where(usable, scores, -np.inf)
    return scores, usable & _best(scores, selector.keep, clients, round_num, seed)

  return keep


def _best(score, keep, clients, round_num, seed):
  """bool `[k]`, which clients have the `keep` largest scores."""
  base = tf.random.experimental.stateless_fold_in(rng.tf_seed(seed, 'ties of scores'), round_num)
  ticket = tf.map_fn(
      lambda client: tf.random.stateless_uniform(
          (), tf.random.experimental.stateless_fold_in(base, client)
      ),
      clients,
      fn_output_signature=tf.float32,
  )
  shuffled = tf.argsort(ticket)
  order = tf.gather(
      shuffled, tf.argsort(tf.gather(score, shuffled), direction='DESCENDING', stable=True)
  )
  return tf.argsort(order) < keep  # The inverse of a permutation: each client's rank.


def weighted_mean(updates: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
  """Returns `sum_c n_c x_c / sum_c n_c`, float32 `[P]`; 0 where the weights sum to 0.

  Args:
    updates: float32 `[k, P]`.
    weights: float32 `[k]`.
  """
  return tf.math.divide_no_nan(tf.linalg.matvec(updates, weights, transpose_a=True),
                               tf.reduce_sum(weights))


def median(updates: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
  """Returns the coordinate-wise median, float32 `[P]`, of the rows of positive weight; 0 of none.

  Of an even number it is the mean of the middle two. The weights count no further (Yin et al.
  2018).

  Args:
    updates: float32 `[k, P]`.
    weights: float32 `[k]`.
  """
  rows = tf.boolean_mask(updates, weights > 0)
  count = tf.shape(rows)[0]

  def middle():
    ordered = tf.sort(rows, axis=0)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2

  return tf.cond(count > 0, middle, lambda: tf.reduce_sum(rows, axis=0))


def unflatten(flat: tf.Tensor, type_spec: tff.Type) -> Any:
  """Returns float32 `[P]` as a value of `type_spec`."""
  like = tff.types.structure_from_tensor_type_tree(lambda t: t, type_spec)
  leaves = tf.nest.flatten(like)
  parts = tf.split(flat, [int(np.prod(t.shape)) for t in leaves])
  return tf.nest.pack_sequence_as(
      like, [tf.reshape(p, t.shape) for p, t in zip(parts, leaves, strict=True)]
  )


def fields(
    update_type: tff.Type,
    sums: tuple[uplink.UplinkSum, ...],
    reports: tuple[uplink.UplinkReport, ...],
    reason: str,
) -> tuple[uplink.UplinkField, ...]:
  """The uplink of `per_client.collect` of such rows."""
  sent = row_type(update_type, sums, reports)
  reasons = '; '.join([reason, *(f'{r.name}: {r.reason}' for r in (*sums, *reports))])
  return (
      uplink.UplinkField(
          UPDATES, str(sent), per_client.INTRINSIC,
          uplink.Disclosure.PER_CLIENT, None, None, reasons, uplink.num_bytes(sent),
      ),
  )
