"""An executor that sends computations and the server's data once, clients' if they are others."""

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import grpc
import tensorflow as tf
import tensorflow_federated as tff

# A value has at most 100 MiB, a part of an evaluation's data 64 (see federated/evaluation.py).
_KEPT_OF_SERVER = 4
_KEPT_COMPUTATIONS = 128


class _Held(NamedTuple):
  """A value at the worker; the data sets too, so that they stay themselves."""

  executor: tff.framework.RemoteExecutor
  datasets: list[Any]
  value: Any


class _Pool:
  """The last so many values of data sets at the worker."""

  def __init__(self, size: int):
    self._size = size
    self._held = []

  def find(self, executor: tff.framework.RemoteExecutor, datasets: Sequence[Any]) -> Any:
    """Returns the value of these data sets, in this order; None where it is not there."""
    for held in self._held:
      if held.executor is executor and len(held.datasets) == len(datasets):
        if all(a is b for a, b in zip(held.datasets, datasets, strict=True)):
          return held.value
    return None

  def make_room(self) -> None:
    """Lets the worker drop what has to go, or it would hold that beside the next for a while."""
    del self._held[: max(0, len(self._held) - self._size + 1)]

  def add(self, *held: Any) -> None:
    """Holds a value: executor, data sets, value."""
    self._held.append(_Held(*held))


class DataCache:
  """Data at the worker: the clients' of the last call that had any, and the server's last few."""

  def __init__(self):
    self.forget()

  def forget(self) -> None:
    """Lets the worker, if it is still there, drop the data."""
    self.clients = _Pool(1)
    self.server = _Pool(_KEPT_OF_SERVER)


class CachingExecutor(tff.framework.RemoteExecutor):
  """Sends computations and the server's data once, the clients' if they are not the last call's.

  In a federation where all clients take part in every round they never change.
  """

  def __init__(self, stub: tff.framework.RemoteExecutorGrpcStub, cache: DataCache):
    super().__init__(stub)
    self._cache = cache
    # By identity: a computation's hash is that of all its bytes. Held, so that it stays itself.
    self._computations = {}

  async def create_value(self, value, type_spec=None):
    """See base class."""
    if isinstance(value, tff.framework.ConcreteComputation):
      return await self._computation(value, type_spec)
    if not _is_data(value, type_spec):
      return await super().create_value(value, type_spec)
    at_server = type_spec.placement is tff.SERVER
    pool = self._cache.server if at_server else self._cache.clients
    datasets = [value] if at_server else value
    found = pool.find(self, datasets)
    if found is None:
      pool.make_room()
      found = await super().create_value(value, type_spec)
      pool.add(self, list(datasets), found)
    return found

  def close(self):
    """See base class."""
    self._computations.clear()
    super().close()

  async def _computation(self, computation, type_spec):
    if id(computation) not in self._computations:
      if len(self._computations) == _KEPT_COMPUTATIONS:
        self._computations.pop(next(iter(self._computations)))
      sent = await super().create_value(computation, type_spec)
      self._computations[id(computation)] = computation, sent
    return self._computations[id(computation)][1]

  def _dispose(self, *value):
    # Called as values are collected, when an error would go nowhere but to stderr.
    with contextlib.suppress(grpc.RpcError, tff.framework.RetryableError, ValueError):
      super()._dispose(*value)


def _is_data(value, type_spec):
  """Whether it is the server's data set, or one a client; lists may change and are not cached."""
  if not (
      isinstance(type_spec, tff.FederatedType) and isinstance(type_spec.member, tff.SequenceType)
  ):
    return False
  at_server = type_spec.placement is tff.SERVER
  if type_spec.all_equal != at_server:
    return False  # The same data set for all clients, which nobody here has.
  return all(isinstance(v, tf.data.Dataset) for v in ([value] if at_server else value))
