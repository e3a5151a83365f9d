"""The local runtime: TFF's C++ worker, under this process's own lifecycle.

The stock runtime leaks its worker at exit, lets it inherit the pipe on stdout, and retries for ever
when it dies. Here the worker is started once, is silent, is stopped on every way out, and is killed
by the kernel if this process disappears.

Secure sums are replaced by plain ones before they run: a simulation shows the data flow, not the
cryptography.
"""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator

import grpc
import portpicker
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.core.backends.native import compiler as native_compiler
from tensorflow_federated.python.core.backends.test import compiler as test_compiler
from tensorflow_federated.python.core.environments.tensorflow_frontend import tensorflow_computation

from tff_noise.program import child

_START_SECONDS = 60
_MAX_MESSAGE_BYTES = 2 * 1000**3
_CHANNEL_OPTIONS = (
    ('grpc.max_message_length', _MAX_MESSAGE_BYTES),
    ('grpc.max_receive_message_length', _MAX_MESSAGE_BYTES),
    ('grpc.max_send_message_length', _MAX_MESSAGE_BYTES),
)


class WorkerError(RuntimeError):
  """The TFF worker did not start, or died."""


@contextlib.contextmanager
def local(max_concurrent_clients: int) -> Iterator[None]:
  """Runs TFF computations on a local worker while the context is open.

  Call it from the main thread: the worker's life is tied to the thread that starts it.

  Args:
    max_concurrent_clients: How many clients are computed at the same time, positive.

  Raises:
    WorkerError: If the worker does not start.
  """
  # TFF's secure sums make TensorFlow complain about each of its own assertions.
  tf.get_logger().setLevel('CRITICAL')
  port = portpicker.pick_unused_port()
  process = _start(port, max_concurrent_clients)
  try:
    _wait_until_ready(process, port)
    context = _context(process, port)
    with tff.framework.get_context_stack().install(context):
      yield
  finally:
    child.stop(process)


def _start(port, max_concurrent_clients):
  binary = os.path.join(os.path.dirname(tff.__file__), 'data', 'worker_binary')
  worker = [
      binary,
      f'--port={port}',
      f'--max_concurrent_computation_calls={max_concurrent_clients}',
  ]
  return child.start(
      worker,
      stdin=subprocess.DEVNULL,
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
  )


def _wait_until_ready(process, port):
  deadline = time.monotonic() + _START_SECONDS
  while time.monotonic() < deadline:
    _check_alive(process)
    with contextlib.suppress(OSError), socket.create_connection(('127.0.0.1', port), timeout=1):
      return
    time.sleep(0.02)
  raise WorkerError(f'the TFF worker did not answer within {_START_SECONDS} s')


def _check_alive(process):
  if process.poll() is not None:
    raise WorkerError(
        f'the TFF worker ended with status {process.returncode}; the run can be started again '
        'with the same command and continues from its last checkpoint'
    )


def _context(process, port):
  channel = grpc.insecure_channel(f'127.0.0.1:{port}', _CHANNEL_OPTIONS)
  stub = tff.framework.RemoteExecutorGrpcStub(channel)

  def create_executor(cardinalities):
    # TFF retries a call whose worker is gone; this is where a retry learns that it is.
    _check_alive(process)
    executor = tff.framework.RemoteExecutor(stub)
    executor.set_cardinalities({tff.CLIENTS: 0, **cardinalities})
    return executor

  def compile_computation(computation):
    return native_compiler.desugar_and_transform_to_native(
        test_compiler.replace_secure_intrinsics_with_bodies(computation)
    )

  return tff.framework.SyncExecutionContext(
      tff.framework.ResourceManagingExecutorFactory(create_executor),
      compile_computation,
      transform_args=tensorflow_computation.transform_args,
      transform_result=tensorflow_computation.transform_result,
  )
