"""An executor that sends computations and the server's data once, clients' if they are others.

The data of a client bear its id, as `client_data.client_dataset` makes them. Others are the
server's, though they may stand in clients' places for an evaluation.
"""

import tensorflow as tf
import tensorflow_federated as tff

from tff_noise.runtimes import identity_cache
from tff_noise.runtimes import messages

# A value has at most 100 MiB, a part of an evaluation's data 64 (see federated/evaluation.py).
_KEPT_OF_SERVER = 4
_KEPT_COMPUTATIONS = 128


class DataCache:
  """Data at the worker: the clients' of the last call that had any, and the server's last few."""

  def __init__(self):
    self.forget()

  def forget(self) -> None:
    """Lets the worker, if it is still there, drop the data."""
    self.clients = identity_cache.IdentityCache(1)
    self.server = identity_cache.IdentityCache(_KEPT_OF_SERVER)


class CachingExecutor(messages.WritingExecutor):
  """Sends computations and the server's data once, the clients' if they are not the last call's.

  In a federation where all clients take part in every round they never change.
  """

  def __init__(self, stub: tff.framework.RemoteExecutorGrpcStub, cache: DataCache):
    super().__init__(stub)
    self._cache = cache
    self._computations = identity_cache.IdentityCache(_KEPT_COMPUTATIONS)

  async def create_value(self, value, type_spec=None):
    """See base class."""
    if isinstance(value, tff.framework.ConcreteComputation):
      return await self._computation(value, type_spec)
    if not _is_data(value, type_spec):
      return await super().create_value(value, type_spec)
    at_server = type_spec.placement is tff.SERVER
    of_clients = not at_server and _has_id(type_spec.member)
    held = self._cache.clients if of_clients else self._cache.server
    objects = (self, type_spec.placement, *([value] if at_server else value))
    found = held.find(*objects)
    if found is None:
      held.make_room()
      found = await super().create_value(value, type_spec)
      held.add(found, *objects)
    return found

  def close(self):
    """See base class."""
    self._computations.clear()
    super().close()

  async def _computation(self, computation, type_spec):
    sent = self._computations.find(computation)
    if sent is None:
      sent = await super().create_value(computation, type_spec)
      self._computations.add(sent, computation)
    return sent


def _has_id(sequence_type):
  element = sequence_type.element
  return isinstance(element, tff.StructType) and 'client' in tff.structure.name_list(element)


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
