"""Which client's computation failed."""

from collections.abc import Callable
from typing import Any

import grpc
import tensorflow_federated as tff

from tff_noise import types


class ClientError(types.RunError):
  """The computation of a client failed.

  Attributes:
    position: The client's place among those of the call, from 0.
    reason: What TensorFlow said, in one line.
  """

  def __init__(self, position: int, message: str):
    """From the client's position and all that TensorFlow said."""
    self.position = position
    self.reason = _essence(message)
    super().__init__(f'the computation of client {position} of the round failed: {self.reason}')


def _essence(message):
  """The line that says what is wrong: the last one before those that say in which node."""
  lines = [line.strip() for line in message.splitlines() if line.strip()]
  found = next((i for i, line in enumerate(lines) if line.startswith('[[')), len(lines))
  return lines[max(0, found - 1)] if lines else 'TensorFlow does not say why'


def num_clients(argument: Any, type_signature: tff.Type | None) -> int | None:
  """Returns how many clients `argument` has values of; None where it has none at all."""
  sizes = set()
  _visit(argument, type_signature, lambda values: sizes.add(len(values)) or values)
  return sizes.pop() if len(sizes) == 1 else None


def only(argument: Any, type_signature: tff.Type, position: int) -> Any:
  """Returns `argument` with the values of one client alone."""
  return _visit(argument, type_signature, lambda values: [values[position]])


def _visit(value, type_signature, change):
  """Returns `value` with `change` applied to each list of clients' values."""
  if isinstance(type_signature, tff.FederatedType):
    if type_signature.placement is tff.CLIENTS and not type_signature.all_equal:
      return change(value)
    return value
  if isinstance(type_signature, tff.StructType) and tff.types.contains(
      type_signature, lambda t: isinstance(t, tff.FederatedType)
  ):
    parts = tff.structure.from_container(value)
    return tff.structure.Struct(
        (name, _visit(part, type_of_part, change))
        for (name, part), (_, type_of_part) in zip(
            tff.structure.iter_elements(parts), tff.structure.iter_elements(type_signature),
            strict=True,
        )
    )
  return value


def explained(
    run: Callable[[Any], Any], argument: Any, type_signature: tff.Type | None
) -> Any:
  """Returns `run(argument)`; says which client it was, where one fails at a worker.

  A worker does not tell. So the clients are run again, one by one, until one fails alone.

  Args:
    run: From an argument to a result.
    argument: Of the computation.
    type_signature: Of the argument.

  Raises:
    ClientError: Where the computation of a client fails.
    grpc.RpcError: Where another does.
  """
  try:
    return run(argument)
  except tff.framework.RetryableError:
    raise
  except grpc.RpcError:
    for position in range(num_clients(argument, type_signature) or 0):
      try:
        run(only(argument, type_signature, position))
      except tff.framework.RetryableError:
        raise
      except grpc.RpcError as error:
        raise ClientError(position, error.details()) from None
    raise
