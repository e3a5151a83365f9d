"""Everything a client may send, declared: the file a privacy review starts from.

A client's result is split in three (`ClientOutput`): `update`, with its `weight`, and `sums` reach
an aggregator; `local` goes back to the client's own store and nowhere else. Each value on its way
to the server is an `UplinkField`; `disclosure.check` compares the fields with the compiled
computation and refuses whatever is not declared, metrics included.
"""

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow_federated as tff

from tff_noise.privacy import protection as protection_lib


class Disclosure(enum.Enum):
  """Who can see a client's own contribution to a field.

  SUM: the aggregating server handles single contributions, and keeps their sum.
  SECURE_SUM: the sum alone, where a real secure aggregation protocol runs (a TFF simulation shows
    the data flow, not the cryptography).
  DP_SECURE_SUM: the same, of contributions that are differentially private by themselves.
  PER_CLIENT: the server uses single contributions; impossible under secure aggregation.
  """

  SUM = 'sum'
  SECURE_SUM = 'secure sum'
  DP_SECURE_SUM = 'DP, secure sum'
  PER_CLIENT = 'per client'


class UplinkField(NamedTuple):
  """One value on its way from a client to the server.

  Attributes:
    name: Its name in `uplink.json` and in errors.
    type_spec: TFF type, as text, of what travels: after quantisation, where there is any.
    intrinsic: URI of the TFF intrinsic that carries it.
    disclosure: Who can see it.
    lower: Smallest value a client may contribute to any entry; None if unbounded.
    upper: Largest, likewise.
    reason: Why the method needs it.
    num_bytes: Size of one client's contribution.
    protection: What protects a contribution, or the sum; None for nothing.
    bitwidth: Of each number in a secure sum; None elsewhere.
  """

  name: str
  type_spec: str
  intrinsic: str
  disclosure: Disclosure
  lower: float | None
  upper: float | None
  reason: str
  num_bytes: int
  protection: protection_lib.Protection = None
  bitwidth: int | None = None


class UplinkSum(NamedTuple):
  """A scalar the client work sends besides the model update, to be summed over clients.

  Attributes:
    name: Its key in the client's `sums` and in the round's metrics.
    dtype: np.float32 or np.int32.
    lower: Smallest contribution of one client; the secure sum clips to it.
    upper: Largest.
    reason: Why it is needed.
    protection: What protects it; None for nothing.
  """

  name: str
  dtype: type
  lower: float
  upper: float
  reason: str
  protection: protection_lib.Protection = None


class UplinkReport(NamedTuple):
  """A scalar of which the server wants to know which client it comes from.

  Attributes:
    name: Its key in the client's `reports` and in the round's `reports`.
    dtype: np.float32 or np.int32.
    lower: Smallest value.
    upper: Largest.
    reason: Why it is needed, and why a sum would not do.
  """

  name: str
  dtype: type
  lower: float
  upper: float
  reason: str


class ClientState(NamedTuple):
  """What a client keeps between rounds; it never leaves the client.

  Attributes:
    own: The method's part, such as corrected labels; `()` if there is none.
    optimizer: The federated optimizer's part, such as a control variate; `()` if there is none.
  """

  own: Any = ()
  optimizer: Any = ()


class ReturnedState(NamedTuple):
  """What a client keeps after its computation, with its name on it: runtimes may change the order.

  Attributes:
    client: int32, its id.
    own: See `ClientState`.
    optimizer: See `ClientState`.
  """

  client: Any
  own: Any
  optimizer: Any


def by_client(returned: Sequence[ReturnedState], clients: Sequence[int]) -> dict[int, ClientState]:
  """Returns what clients keep, by their ids.

  Args:
    returned: Of a computation, in any order.
    clients: The ids of those that took part.

  Raises:
    ValueError: If they are not those of exactly these clients.
  """
  ids = [int(r.client) for r in returned]
  if sorted(ids) != sorted(clients):
    raise ValueError(f'states of clients {sorted(ids)}, expected {sorted(clients)}')
  return {i: ClientState(r.own, r.optimizer) for i, r in zip(ids, returned, strict=True)}


class ClientOutput(NamedTuple):
  """What a client's computation returns.

  Attributes:
    update: What is averaged: `w_t - w_c` in the structure of the model's weights, unless the
      federated optimizer sends something else.
    weight: float32, the weight of `update` in the mean.
    sums: OrderedDict of scalars, one for each `UplinkSum`.
    reports: OrderedDict of scalars, `client` and one for each `UplinkReport`; empty without any.
    local: The client's `ReturnedState`; never aggregated.
  """

  update: Any
  weight: Any
  sums: Any
  reports: Any
  local: Any


def num_bytes(type_spec: tff.Type) -> int:
  """Returns the size of a value of an unplaced type without sequences or unknown dimensions."""
  if isinstance(type_spec, tff.TensorType):
    return int(np.prod(type_spec.shape, dtype=np.int64)) * np.dtype(type_spec.dtype).itemsize
  return sum(num_bytes(part) for part in type_spec)


def to_json(fields: tuple[UplinkField, ...]) -> list[dict[str, Any]]:
  """Returns the content of `uplink.json`."""
  return [
      {
          **f._asdict(),
          'disclosure': f.disclosure.value,
          'protection': protection_lib.to_json(f.protection),
      }
      for f in fields
  ]
