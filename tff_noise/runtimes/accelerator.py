"""The accelerator runtime: the TensorFlow of this process, which sees a GPU where there is one."""

import concurrent.futures
import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping

import tensorflow as tf
import tensorflow_federated as tff

from tff_noise import loading
from tff_noise.runtimes import client_error
from tff_noise.runtimes import connection
from tff_noise.runtimes import federating


@contextlib.contextmanager
def runtime(
    max_concurrent_clients: int, *, shows_client_errors: bool = False
) -> Iterator[None]:
  """Runs TFF computations in this process while the context is open.

  Products and convolutions are as `full_precision` has them.

  Args:
    max_concurrent_clients: How many clients are computed at the same time, positive.
    shows_client_errors: Whether errors say what TensorFlow says, which may hold clients' data.

  Raises:
    client_error.ClientError: In a computation, if that of a client fails.
  """
  loading.end_quietly()
  tf.get_logger().setLevel('CRITICAL')
  take_memory_as_needed()
  server = federating.ServerSide(_Placements().say)
  with full_precision(), _threads(max_concurrent_clients) as threads:

    def create_executor(cardinalities):
      num_clients = cardinalities.get(tff.CLIENTS, 0)
      here = _Here(server.call, threads, num_clients, shows_client_errors)
      return federating.FederatingExecutor(server, here)

    context = _Context(
        connection.OnceContext(tff.framework.ResourceManagingExecutorFactory(create_executor)),
        shows_client_errors,
    )
    with tff.framework.get_context_stack().install(context):
      yield


@contextlib.contextmanager
def _threads(count):
  """A pool of threads; on the way out what has begun is waited for, and no more."""
  threads = concurrent.futures.ThreadPoolExecutor(count)
  try:
    yield threads
  finally:
    threads.shutdown(cancel_futures=True)


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
  """Keeps all 23 bits of float32 in products and convolutions while the context is open.

  TensorFlow's default for GPUs from Ampere on is 10 (TF32). This is a setting of the whole process:
  of two contexts that are open at a time the one that closes last has to be the one opened first.
  """
  before = tf.config.experimental.tensor_float_32_execution_enabled()
  tf.config.experimental.enable_tensor_float_32_execution(False)
  try:
    yield
  finally:
    tf.config.experimental.enable_tensor_float_32_execution(before)


def take_memory_as_needed() -> None:
  """Keeps TensorFlow from taking all of a GPU's memory, if it has not used the GPU yet.

  By a variable of the environment, which holds for whatever uses a GPU first, a session or not; one
  that is set already is left.
  """
  os.environ.setdefault('TF_FORCE_GPU_ALLOW_GROWTH', 'true')


def has_gpu() -> bool:
  """Returns whether TensorFlow sees one."""
  return bool(tf.config.list_physical_devices('GPU'))


def describe_devices() -> str:
  """Returns a line about what computes."""
  gpus = tf.config.list_physical_devices('GPU')
  if not gpus:
    return (
        'no GPU is seen by TensorFlow, so the CPU computes; for a GPU, install '
        'requirements-gpu.txt and an NVIDIA driver'
    )
  names = [tf.config.experimental.get_device_details(g).get('device_name', g.name) for g in gpus]
  return f'{len(gpus)} GPU: {", ".join(names)}'


class _Placements:
  """Says where the operations of the largest computation run, mostly that of a client."""

  def __init__(self):
    self._largest = 0
    self._lock = threading.Lock()

  def say(self, placement: Mapping[str, int]) -> None:
    """Says it on stderr if no computation before had as many operations."""
    size = sum(placement.values())
    with self._lock:
      if size <= self._largest:
        return
      self._largest = size
      parts = ', '.join(f'{count} on {device}' for device, count in sorted(placement.items()))
      print(f'runtime: operations of the largest computation so far: {parts}', file=sys.stderr)


class _Context(tff.framework.SyncContext):
  """Keeps what TensorFlow says of errors on what clients sent; `_Here` knows those of clients."""

  def __init__(self, once, shows_client_errors):
    self._once = once
    self._shows_client_errors = shows_client_errors

  def invoke(self, comp, arg):
    """See `tff.framework.SyncContext`."""
    return client_error.explained(
        self._once.invoke, comp, arg, shows_values=self._shows_client_errors
    )


class _Here(federating.ClientSide):
  """Clients in this process: a placed value is the list of its clients' values."""

  def __init__(
      self, call: federating.Call, threads, num_clients: int, shows_client_errors: bool
  ):
    self._call = call
    self._shows_client_errors = shows_client_errors
    self._threads = threads
    self._num_clients = num_clients

  def place(self, value, type_signature):
    return [value] * self._num_clients if type_signature.all_equal else list(value)

  def apply(self, intrinsic, argument):
    match intrinsic.uri:
      case 'federated_value_at_clients':
        return [argument] * self._num_clients
      case 'federated_eval_at_clients':
        return self._map(argument, [None] * self._num_clients)
      case 'federated_zip_at_clients':
        names = [name for name, _ in tff.structure.iter_elements(argument)]
        return [
            tff.structure.Struct(zip(names, values, strict=True))
            for values in zip(*argument, strict=True)
        ]
    function, values = argument
    return self._map(function, values)

  def _map(self, function, values):
    def run(position, value):
      try:
        return self._call(function, value)
      except tf.errors.OpError as error:
        failed = client_error.ClientError(
            position, error, shows_values=self._shows_client_errors
        )
      raise failed

    return list(self._threads.map(run, range(len(values)), values))

  def aggregate(self, intrinsic, argument):
    del intrinsic  # Unused.
    values, total, accumulate = argument[0], argument[1], argument[2]
    for value in values:
      total = self._call(accumulate, tff.structure.Struct([(None, total), (None, value)]))
    return [total]

  def collect(self, placed, type_signature):
    return placed[0] if type_signature.all_equal else placed
