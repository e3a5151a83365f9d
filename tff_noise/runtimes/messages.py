"""Structures as messages to a TFF worker, written in place.

TFF makes a message of every part of a structure and copies it into that of the next larger one: of
a model of 44 MB some 1.5 GB in every round.
"""

import contextlib
from typing import Any

import grpc
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import executor_pb2
from tensorflow_federated.python.core.impl.executors import remote_executor
from tensorflow_federated.python.core.impl.executors import value_serialization
from tensorflow_federated.python.core.impl.types import type_serialization


def write(message: executor_pb2.Value, value: Any, type_signature: tff.Type) -> None:
  """Writes into an empty message what TFF's `serialize_value` returns.

  Args:
    message: Where to.
    value: A value that fits the type; clients' values may be in any sequence.
    type_signature: Its type.

  Raises:
    TypeError: If the value does not fit its type.
  """
  match type_signature:
    case tff.StructType():
      _write_struct(message.struct, value, type_signature)
    case tff.FederatedType():
      _write_federated(message.federated, value, type_signature)
    case _:
      whole, _ = value_serialization.serialize_value(value, type_signature)
      message.CopyFrom(whole)


def _write_struct(message, value, type_signature):
  message.SetInParent()  # Though it may have no elements.
  parts = tff.structure.from_container(value)
  if len(parts) != len(type_signature):
    raise TypeError(f'{len(parts)} elements do not fit {type_signature}')
  for part, (name, part_type) in zip(
      parts, tff.structure.iter_elements(type_signature), strict=True
  ):
    element = message.element.add()
    if name:
      element.name = name
    write(element.value, part, part_type)


def _write_federated(message, value, type_signature):
  for part in [value] if type_signature.all_equal else value:
    write(message.value.add(), part, type_signature.member)
  message.type.CopyFrom(type_serialization.serialize_type(type_signature).federated)


class WritingExecutor(tff.framework.RemoteExecutor):
  """Sends structures and federated values as `write` makes them, all else as TFF does.

  A worker forgets the values of an executor with the last one for as many clients. If the program
  of another was killed that never comes, so values are disposed of by themselves, before it is
  closed and after.
  """

  _closed_id = None

  async def create_value(self, value, type_spec=None):
    """See base class."""
    if not isinstance(type_spec, (tff.StructType, tff.FederatedType)):
      return await super().create_value(value, type_spec)
    self._check_has_executor_id()
    request = executor_pb2.CreateValueRequest(executor=self._executor_id)
    write(request.value, value, type_spec)
    response = self._stub.create_value(request)
    return remote_executor.RemoteValue(response.value_ref, type_spec, self)

  def close(self):
    """See base class."""
    request = self._dispose_request
    if request is not None and request.value_ref:
      with _if_it_is_there():
        self._stub.dispose(request)
    self._closed_id = self._executor_id
    super().close()

  def _dispose(self, value_ref, value_executor_id):
    # Called as values are collected, when an error would go nowhere but to stderr.
    with _if_it_is_there():
      if value_executor_id is not None and value_executor_id == self._executor_id:
        super()._dispose(value_ref, value_executor_id)
        return
      # What a call of another thread returned in the meantime has no executor any more.
      executor = value_executor_id or self._closed_id
      self._stub.dispose(executor_pb2.DisposeRequest(executor=executor, value_ref=[value_ref]))


def _if_it_is_there():
  """Of a worker that is gone, or whose connection is closed, nothing is left to dispose of."""
  return contextlib.suppress(grpc.RpcError, tff.framework.RetryableError, ValueError)
