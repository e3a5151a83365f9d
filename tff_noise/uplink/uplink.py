"""Everything a client may send, declared: the file a privacy review starts from.

A client's result is split in three (`ClientOutput`): `update`, with its `weight`, and `sums` reach
an aggregator; `local` goes back to the client's own store and nowhere else. Each value on its way
to the server is an `UplinkField`; `disclosure.check` compares the fields with the compiled
computation and refuses whatever is not declared, metrics included.
"""

import enum
from collections.abc import Mapping, Sequence
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
  OTHER_CLIENTS: the server uses single contributions, and passes them on to other clients.
  """

  SUM = 'sum'
  SECURE_SUM = 'secure sum'
  DP_SECURE_SUM = 'DP, secure sum'
  PER_CLIENT = 'per client'
  OTHER_CLIENTS = 'other clients'

  @property
  def shows_single_clients(self) -> bool:
    """Whether somebody else than the client uses its value by itself."""
    return self in (Disclosure.PER_CLIENT, Disclosure.OTHER_CLIENTS)

  @property
  def is_secure_sum(self) -> bool:
    """Whether nobody sees a client's own value, as long as others send theirs."""
    return self in (Disclosure.SECURE_SUM, Disclosure.DP_SECURE_SUM)


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
    bitwidth: Of each number in a secure sum, b of one modulo 2^b; None elsewhere.
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
  """What a client sends besides its update, to be summed over clients.

  Attributes:
    name: Its key in the client's `sums` and in what comes of the computation.
    dtype: np.float32 or np.int32.
    lower: Smallest value of any entry of one client's contribution, which is cut to it.
    upper: Largest.
    reason: Why it is needed.
    shape: Of the contribution; `()` for a number.
  """

  name: str
  dtype: type
  lower: float
  upper: float
  reason: str
  shape: tuple[int, ...] = ()

  @property
  def type_spec(self) -> tff.TensorType:
    """TFF type of one client's contribution."""
    return tff.TensorType(self.dtype, self.shape)


class UplinkReport(NamedTuple):
  """A value of which the server wants to know which client it comes from.

  Attributes:
    name: Its key in the client's `reports` and in what comes of the computation.
    dtype: np.float32 or np.int32.
    lower: Smallest value of any entry.
    upper: Largest.
    reason: Why it is needed, and why a sum would not do.
    shape: Of one client's value; `()` for a number.
  """

  name: str
  dtype: type
  lower: float
  upper: float
  reason: str
  shape: tuple[int, ...] = ()

  @property
  def type_spec(self) -> tff.TensorType:
    """TFF type of one client's value."""
    return tff.TensorType(self.dtype, self.shape)


class Message(NamedTuple):
  """What the server sends to single clients, to each its own value.

  Attributes:
    name: Its key in the client's `messages`.
    dtype: Of its entries.
    reason: Why the client needs it.
    shape: Of one client's value; `()` for a number.
    from_others: Whether it holds values of other clients, which is a release of these.
    protection: What protects those clients' values; None for nothing.
  """

  name: str
  dtype: type
  reason: str
  shape: tuple[int, ...] = ()
  from_others: bool = False
  protection: protection_lib.Protection = None

  @property
  def type_spec(self) -> tff.TensorType:
    """TFF type of one client's value."""
    return tff.TensorType(self.dtype, self.shape)


class ClientInput(NamedTuple):
  """What is a client's alone in a computation, beside its data.

  Attributes:
    own: By name, what it kept from earlier computations; it never leaves the client.
    messages: By name, what the server sends to this client.
  """

  own: Any = ()
  messages: Any = ()


class ReturnedState(NamedTuple):
  """What a client keeps after its computation, with its name on it: runtimes may change the order.

  Attributes:
    client: int32, its id.
    own: By name.
  """

  client: Any
  own: Any


def by_client(
    returned: Sequence[ReturnedState], clients: Sequence[int]
) -> dict[int, Mapping[str, Any]]:
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
  return {i: r.own for i, r in zip(ids, returned, strict=True)}


class ClientOutput(NamedTuple):
  """What a client's computation returns.

  Attributes:
    update: What is averaged: `w_t - w_c` in the structure of the model's weights, unless the
      federated optimizer sends something else; `()` where nothing is.
    weight: float32, the weight of `update` in the mean.
    sums: OrderedDict of tensors, one for each `UplinkSum`.
    reports: OrderedDict of tensors, `client` and one for each `UplinkReport`; empty without
      any, but in rows of single clients, which always say whose they are.
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


def num_entries(type_spec: tff.Type) -> int:
  """Returns how many numbers a value has, likewise."""
  if isinstance(type_spec, tff.TensorType):
    return int(np.prod(type_spec.shape, dtype=np.int64))
  return sum(num_entries(part) for part in type_spec)


def field_of_message(message: Message) -> UplinkField:
  """Returns the release that a message with values of other clients is."""
  return UplinkField(
      f'{message.name} of other clients', str(message.type_spec), 'message',
      Disclosure.OTHER_CLIENTS, None, None, message.reason, num_bytes(message.type_spec),
      message.protection,
  )


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
