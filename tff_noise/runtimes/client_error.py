"""What the driver learns of a client's computation that failed: whose it was, the kind of error.

What TensorFlow says of an error may hold the client's data (`indices[0] = 7 is not in [0, 7)`), so
it stays where it was said, unless a run asks for it, which ends all of the run's claims of privacy
(`--debug_client_errors`).
"""

from collections.abc import Callable
from typing import Any

import grpc
import tensorflow as tf
import tensorflow_federated as tff

from tff_noise import types
from tff_noise.runtimes import client_probe

_KINDS = {code.value[0]: code.name for code in grpc.StatusCode}
_HOW_TO_SEE = (
    '--debug_client_errors, or shows_client_errors=True of a runtime of your own, shows what it '
    'says, and ends all claims of privacy'
)


class ClientError(types.RunError):
  """The computation of a client failed, or one on what clients sent.

  Attributes:
    position: The client's place among those of the call, from 0; None where no client fails alone.
    reason: The kind of the error, such as INVALID_ARGUMENT; with `shows_values` what TensorFlow
      said, in one line.
  """

  def __init__(self, position: int | None, error: Exception, *, shows_values: bool = False):
    """From the client's position and what TensorFlow or a worker raised; keeps no more of it."""
    self.position = position
    self.reason = f'{_kind(error)} ({_HOW_TO_SEE})'
    if shows_values:
      self.reason = f'{_kind(error)}: {_essence(_message(error))}'
    who = 'of clients, or on what they sent,' if position is None else f'of client {position}'
    super().__init__(f'the computation {who} of the round failed: {self.reason}')


def _kind(error):
  if isinstance(error, tf.errors.OpError):
    return _KINDS.get(error.error_code, 'UNKNOWN')
  return error.code().name


def _message(error):
  return error.message if isinstance(error, tf.errors.OpError) else error.details() or ''


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
    run: Callable[[tff.Computation, Any], Any],
    computation: tff.Computation,
    argument: Any,
    *,
    shows_values: bool = False,
) -> Any:
  """Returns `run(computation, argument)`; says which client it was, where one fails at a worker.

  A worker does not tell. So what the clients compute is run again, one by one, until one fails
  alone. Nothing of these runs leaves a client but that it has ended: see `client_probe`.

  Args:
    run: From a computation and its argument to a result.
    computation: To run.
    argument: Its argument.
    shows_values: Whether errors say what TensorFlow says, which may hold clients' data.

  Raises:
    ClientError: Where something fails in a computation with clients.
    grpc.RpcError, tf.errors.OpError: Where a computation without clients does.
    types.UsageError: If clients' data sets are not of the computation's type.
  """
  try:
    return run(computation, argument)
  except tff.framework.RetryableError:
    raise
  except TypeError as error:
    if 'Cannot serialize dataset' not in str(error):
      raise
    raise types.UsageError(
        'clients\' examples are of another type than the model takes: give its tf.keras.Input the '
        f'dtype and shape of the data, and scale inside ({error})'
    ) from error
  except (grpc.RpcError, tf.errors.OpError) as error:
    count = num_clients(argument, computation.type_signature.parameter)
    if not count:
      raise
    failed = ClientError(None, error, shows_values=shows_values)
    # What this process computes is not a client's, or says itself whose it is.
    at_worker = isinstance(error, grpc.RpcError)
  # Outside of `except`: an error keeps what it was raised from, and that has the values.
  if at_worker:
    failed = _located(run, computation, argument, count, shows_values) or failed
  raise failed


def _located(run, computation, argument, count, shows_values):
  """The error of the first client that fails alone; None if none does."""
  probe = client_probe.build(computation)
  if probe is None:
    return None
  for position in range(count):
    try:
      run(probe, only(argument, computation.type_signature.parameter, position))
    except tff.framework.RetryableError:
      raise
    except grpc.RpcError as error:
      return ClientError(position, error, shows_values=shows_values)
  return None
