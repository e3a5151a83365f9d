"""Values that the server sees by client: stacked, one row for each client of the round.

They cannot go through secure aggregation, which shows sums alone. Every row carries its client's
id, so nothing depends on the order in which a runtime brings results.
"""

import collections
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_noise.uplink import bounds
from tff_noise.uplink import uplink

INTRINSIC = 'federated_aggregate'
CLIENT = 'client'
# More of them cost time in every call, fewer memory where rows are long: `benchmarks/NOTES.md`.
_PLACES = 16


def reports_type(reports: tuple[uplink.UplinkReport, ...]) -> tff.StructWithPythonType:
  """The TFF type of what one client reports: `<client=int32, ...>`."""
  return tff.to_type(
      collections.OrderedDict(
          [(CLIENT, np.int32), *((r.name, r.type_spec) for r in reports)]
      )
  )


def pack_reports(examples, reports: Mapping[str, tf.Tensor]):
  """The reports of a client under its id, or nothing where there are none."""
  if not reports:
    return collections.OrderedDict()
  return collections.OrderedDict([(CLIENT, examples['client']), *reports.items()])


def stack_type(row_type: tff.StructWithPythonType) -> tff.StructWithPythonType:
  """The TFF type of what `collect` makes of rows of `row_type`."""
  return tff.to_type(
      collections.OrderedDict(
          (name, tff.TensorType(t.dtype.as_numpy_dtype, (None, *t.shape)))
          for name, t in _specs(row_type).items()
      )
  )


def _specs(row_type):
  return tff.types.type_to_tf_tensor_specs(row_type)


def collect(value: tff.Value) -> tff.Value:
  """Collects a row of every client, inside a federated computation.

  TFF's worker keeps every accumulator of an aggregation until the last is done. Were each a longer
  stack, k clients would take k^2 / 2 rows. So rows wait side by side, uncopied, and are joined
  when `_PLACES` are taken: k rows, and k^2 / (2 * `_PLACES`) more.

  Args:
    value: `{<client=int32, ...>}@CLIENTS`, a flat structure of tensors.

  Returns:
    `<client=int32[?], ...>@SERVER`, the tensors stacked, one entry for each client.
  """
  row_type = value.type_signature.member
  stacked = stack_type(row_type)
  # Joined rows, then the places.
  accumulator = tff.to_type([stacked] * (1 + _PLACES))

  @tff.tensorflow.computation
  def zero():
    return [_empty(row_type)] * (1 + _PLACES)

  @tff.tensorflow.computation(accumulator, row_type)
  def add(stacks, row):
    joined, *places = stacks
    new = _of_any_length({name: t[tf.newaxis] for name, t in row.items()})
    return tf.cond(
        tf.size(places[-1][CLIENT]) > 0,
        lambda: [_join(stacks), new, *[_empty(row_type)] * (_PLACES - 1)],
        lambda: [joined, new, *places[:-1]],
    )

  @tff.tensorflow.computation(accumulator, accumulator)
  def merge(first, second):
    return [_join([*first, *second]), *[_empty(row_type)] * _PLACES]

  @tff.tensorflow.computation(accumulator)
  def report(stacks):
    return _join(stacks)

  return tff.federated_aggregate(value, zero(), add, merge, report)


def _join(stacks):
  names = stacks[0].keys()
  return collections.OrderedDict((n, tf.concat([s[n] for s in stacks], axis=0)) for n in names)


def _empty(row_type):
  return _of_any_length({
      name: np.zeros((0, *t.shape), t.dtype.as_numpy_dtype)
      for name, t in _specs(row_type).items()
  })


def _of_any_length(stack):
  """Hides the length: TFF wants every accumulator in exactly the same type."""
  return collections.OrderedDict(
      (name, tf.raw_ops.PlaceholderWithDefault(input=t, shape=[None, *t.shape[1:]]))
      for name, t in stack.items()
  )


def fields(reports: tuple[uplink.UplinkReport, ...]) -> tuple[uplink.UplinkField, ...]:
  """The uplink of `collect`: one struct that holds all reports of a client."""
  if not reports:
    return ()
  row_type = reports_type(reports)
  names = ', '.join(r.name for r in reports)
  lower, upper = zip(*map(bounds.limits, reports), strict=True)
  reasons = '; '.join(f'{r.name}: {r.reason}' for r in reports)
  return (
      uplink.UplinkField(
          f'{names} of single clients',
          str(row_type),
          INTRINSIC,
          uplink.Disclosure.PER_CLIENT,
          min(lower),
          max(upper),
          reasons,
          uplink.num_bytes(row_type),
      ),
  )


def in_order(reports: Mapping[str, np.ndarray], clients: np.ndarray) -> dict[str, np.ndarray]:
  """Returns collected reports in the order of `clients`.

  Args:
    reports: As `collect` gives them.
    clients: int `[k]`, the ids of those that took part.

  Raises:
    ValueError: If the reports are not those of exactly these clients.
  """
  ids = np.asarray(reports[CLIENT])
  if not np.array_equal(np.sort(ids), np.sort(clients)):
    raise ValueError(f'reports of clients {sorted(ids)}, expected {sorted(clients)}')
  position = {client: i for i, client in enumerate(ids.tolist())}
  order = [position[client] for client in np.asarray(clients).tolist()]
  return {name: np.asarray(v)[order] for name, v in reports.items() if name != CLIENT}
