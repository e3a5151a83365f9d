"""The local runtime: TFF's C++ worker, under this process's own lifecycle.

The stock runtime leaks its worker at exit, lets it inherit the pipe on stdout, leaves its port open
to the network, and retries for ever when it dies. Here the worker is started once, is silent, is
reached through a socket file alone (see `sandbox`), is stopped on every way out, is killed by the
kernel if this process disappears, and is replaced when it dies.
"""

import collections
import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.core.impl.executors import executor_factory

from tff_noise import loading
from tff_noise import types
from tff_noise.runtimes import client_error
from tff_noise.runtimes import connection
from tff_noise.runtimes import data_cache
from tff_noise.runtimes import worker_process

# A computation is tried twice; a run may lose this many workers.
_MAX_RESTARTS = 10
# Bytes of a folder in which the names of sockets have room.
_LONGEST_FOLDER = 80
_SIGN_OF_LIFE_SECONDS = 2.0
# For numbers of clients, as many as TFF keeps.
_EXECUTORS = 10
# Until one whose connection broke is seen to have ended.
_END_SECONDS = 5


@contextlib.contextmanager
def runtime(
    max_concurrent_clients: int, *, silence: float = 30.0, shows_client_errors: bool = False
) -> Iterator[None]:
  """Runs TFF computations on a local worker while the context is open.

  Call it from the main thread: the worker's life is tied to the thread that starts it.

  Args:
    max_concurrent_clients: How many clients are computed at the same time, positive.
    silence: Seconds without a sign of life after which the worker is replaced. Long computations
      are no silence.
    shows_client_errors: Whether errors say what TensorFlow says, which may hold clients' data.

  Raises:
    worker_process.WorkerError: If the worker does not start; in a computation, if it dies twice.
    client_error.ClientError: In a computation, if that of a client fails.
  """
  loading.end_quietly()
  # TFF's secure sums make TensorFlow complain about each of its own assertions.
  tf.get_logger().setLevel('CRITICAL')
  with tempfile.TemporaryDirectory(prefix='tff_noise_', dir=_folder_of_sockets()) as folder:
    context = _LocalContext(
        lambda life: worker_process.WorkerProcess(
            f'unix:{os.path.join(folder, str(life))}',
            max_concurrent_calls=max_concurrent_clients,
            allow_exposed=True,
        ),
        silence,
        shows_client_errors,
    )
    try:
      with tff.framework.get_context_stack().install(context):
        yield
    finally:
      context.close()


def _folder_of_sockets():
  """The usual one, but where the names of sockets, 107 bytes at most, would be too long in it."""
  try:
    usual = tempfile.gettempdir()
  except FileNotFoundError:
    raise types.UsageError(
        'no folder for temporary files can be written to: set TMPDIR to one'
    ) from None
  return None if len(os.fsencode(usual)) <= _LONGEST_FOLDER else '/tmp'


class _Executors(executor_factory.ExecutorFactory):
  """One for each number of clients, the last few.

  TFF's `ResourceManagingExecutorFactory` drops the others without closing them: where cohorts are
  of ever other sizes, as those of Poisson sampling, a worker keeps their values for good.
  """

  def __init__(self, create: Callable[[executor_factory.CardinalitiesType], Any]):
    self._create = create
    self._held = collections.OrderedDict()

  def create_executor(self, cardinalities):
    key = frozenset(cardinalities.items())
    if key not in self._held:
      self._held[key] = self._create(cardinalities)
    self._held.move_to_end(key)
    if len(self._held) > _EXECUTORS:
      self._held.popitem(last=False)[1].close()
    return self._held[key]

  def clean_up_executor(self, cardinalities):
    executor = self._held.pop(frozenset(cardinalities.items()), None)
    if executor is not None:
      executor.close()


class _LocalContext(tff.framework.SyncContext):
  """Computes on a worker that is replaced when it dies."""

  def __init__(
      self,
      start: Callable[[int], worker_process.WorkerProcess],
      silence: float,
      shows_client_errors: bool,
  ):
    self._start = start
    self._shows_client_errors = shows_client_errors
    self._restarts = 0
    self._data_cache = data_cache.DataCache()
    self._connect()
    self._closed = threading.Event()
    self._watcher = threading.Thread(target=self._watch, args=(silence,), daemon=True)
    self._watcher.start()
    if self._worker.exposed:
      print(
          f'runtime: {self._worker.exposed} to isolate TFF\'s worker: while this runs, whoever '
          'reaches this machine over the network can run programs in it',
          file=sys.stderr,
      )

  def _connect(self):
    self._worker = self._start(self._restarts)
    self._channel = connection.open_channel(self._worker.door)
    self._watched = (self._worker, connection.open_channel(self._worker.door))
    stub = connection.Stub(self._channel)

    def create_executor(cardinalities):
      executor = data_cache.CachingExecutor(stub, self._data_cache)
      executor.set_cardinalities({tff.CLIENTS: 0, **cardinalities})
      return executor

    self._once = connection.OnceContext(_Executors(create_executor))

  def close(self) -> None:
    """Stops the worker, for good."""
    self._closed.set()
    self._disconnect()
    self._watcher.join()

  def _disconnect(self):
    self._data_cache.forget()
    self._watched[1].close()
    self._channel.close()
    self._worker.stop()

  def _watch(self, silence):
    while not self._closed.wait(min(_SIGN_OF_LIFE_SECONDS, silence)):
      worker, channel = self._watched
      if connection.sign_of_life(channel, silence):
        # The computation then fails, and is repeated on a new one.
        worker.kill()

  def invoke(self, comp, arg):
    """See `tff.framework.SyncContext`."""
    try:
      return self._invoke(comp, arg)
    except tff.framework.RetryableError:
      self._restart()
    try:
      return self._invoke(comp, arg)
    except tff.framework.RetryableError:
      raise worker_process.WorkerError(
          f'the TFF worker died twice in the same computation ({self._fate()}); '
          'the same command continues from the last checkpoint; where memory ran out, with fewer '
          '--max_concurrent_clients'
      ) from None

  def _invoke(self, comp, arg):
    return client_error.explained(
        self._once.invoke, comp, arg, shows_values=self._shows_client_errors
    )

  def _fate(self):
    status = self._worker.wait(_END_SECONDS)
    return 'it does not answer' if status is None else f'status {status}'

  def _restart(self):
    fate = self._fate()
    self._disconnect()
    self._restarts += 1
    if self._restarts > _MAX_RESTARTS:
      raise worker_process.WorkerError(
          f'the TFF worker died {self._restarts} times in this run (at last: {fate})'
      )
    print(
        f'runtime: the TFF worker ended ({fate}); a new one repeats the computation',
        file=sys.stderr,
    )
    self._connect()
