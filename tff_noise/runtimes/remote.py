"""The remote runtime: clients spread over TFF workers, on one host or many.

TFF's `MergeableCompExecutionContext` computes workers one after another, returns clients' results
in the order of completion, and returns wrong sums where clients' values are not the last argument.
Here the clients of a call are cut into *shares*, one for each worker, in order. What is done with a
share is written down; if its worker is lost, another one repeats it from the start. Computations
are functions of their arguments, so whoever repeats one gets the same.
"""

import asyncio
import concurrent.futures
import contextlib
import itertools
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import grpc
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.core.impl.compiler import building_blocks
from tensorflow_federated.python.core.impl.executors import executor_factory

from tff_noise import loading
from tff_noise import types
from tff_noise.runtimes import client_error
from tff_noise.runtimes import connection
from tff_noise.runtimes import federating
from tff_noise.runtimes import messages
from tff_noise.runtimes import peer as peer_lib
from tff_noise.runtimes import worker_process

_SIGN_OF_LIFE_SECONDS = 2.0
# Of a share, which may be what its workers die of.
_MAX_ATTEMPTS = 3
# Of workers for it, of which some may be found to be gone.
_MAX_CHOICES = 100


@contextlib.contextmanager
def runtime(
    addresses: Sequence[str],
    *,
    silence: float = 30.0,
    patience: float = 300.0,
    shows_client_errors: bool = False,
) -> Iterator[None]:
  """Runs TFF computations on the workers at `addresses` while the context is open.

  Args:
    addresses: `HOST:PORT` of each, at least one; started by `bin/worker`.
    silence: Seconds without a sign of life after which a worker counts as gone. Long computations
      are no silence.
    patience: Seconds to wait for one to come back when all are gone.
    shows_client_errors: Whether errors say what TensorFlow says, which may hold clients' data.

  Raises:
    types.UsageError: If no worker answers, or one has other versions of TFF or TensorFlow.
    worker_process.WorkerError: In a computation, if all workers are gone for too long.
    client_error.ClientError: In a computation, if that of a client fails.
  """
  loading.end_quietly()
  tf.get_logger().setLevel('CRITICAL')
  pool = Pool(addresses, silence=silence, patience=patience)
  try:
    pool.check()
    with tff.framework.get_context_stack().install(_RemoteContext(pool, shows_client_errors)):
      yield
  finally:
    pool.close()


class Present(NamedTuple):
  """A worker, and what computations were sent through when it was last seen."""

  peer: peer_lib.Peer
  stub: connection.Stub | None


def _present(peer):
  return Present(peer, peer.stub)


class Pool:
  """The workers."""

  def __init__(self, addresses: Sequence[str], *, silence: float, patience: float):
    self._patience = patience
    self._closed = False
    self._changed = threading.Condition()
    self._peers = [
        peer_lib.Peer(
            address, silence=silence, every=min(_SIGN_OF_LIFE_SECONDS, silence),
            on_change=self._notify,
        )
        for address in addresses
    ]

  def _notify(self):
    with self._changed:
      self._changed.notify_all()

  def check(self) -> None:
    """Raises `types.UsageError` if there is no worker; names those that are missing."""
    missing = [f'{p.address} ({p.problem})' for p in self._peers if p.stub is None]
    if len(missing) == len(self._peers):
      raise types.UsageError(
          f'no worker can be used: {"; ".join(missing)}; start them with bin/worker'
      )
    for problem in missing:
      print(f'runtime: going on without worker {problem}', file=sys.stderr)

  def close(self) -> None:
    """Closes all connections; who waits for a worker waits no more."""
    self._closed = True
    self._notify()
    for peer in self._peers:
      peer.close()
    for peer in self._peers:
      peer.join()

  def present(self) -> list[Present]:
    """Returns the workers that are there, in order, at least one; waits while there is none.

    Raises:
      worker_process.WorkerError: If none comes back in time, or the pool is closed.
    """
    deadline = time.monotonic() + self._patience
    said = False
    while True:
      if self._closed:
        raise worker_process.WorkerError('the connections to all workers are closed')
      if present := [p for p in map(_present, self._peers) if p.stub is not None]:
        return present
      left = deadline - time.monotonic()
      if left <= 0:
        raise worker_process.WorkerError(
            f'all workers are gone, and none came back within {self._patience:.0f} s; the same '
            'command continues from the last checkpoint, but for rounds that had noise'
        )
      if not said:
        print(
            f'runtime: all workers are gone; waiting up to {self._patience:.0f} s for one',
            file=sys.stderr,
        )
        said = True
      with self._changed:
        self._changed.wait(min(left, 1.0))


class _RemoteContext(tff.framework.SyncContext):
  """Computes clients on the workers and the server here."""

  def __init__(self, pool, shows_client_errors):
    self._factory = _Factory(pool)
    self._shows_client_errors = shows_client_errors
    self._once = connection.OnceContext(self._factory)

  def invoke(self, comp, arg):
    """See `tff.framework.SyncContext`."""

    def run(computation, argument):
      try:
        return self._once.invoke(computation, argument)
      finally:
        self._factory.close()

    return client_error.explained(run, comp, arg, shows_values=self._shows_client_errors)


class _Factory(executor_factory.ExecutorFactory):
  """Executors of one call each."""

  def __init__(self, pool):
    self._pool = pool
    self._server = federating.ServerSide()
    self._clients = None

  def create_executor(self, cardinalities):
    self._clients = _Spread(self._pool, cardinalities.get(tff.CLIENTS, 0))
    return federating.FederatingExecutor(self._server, self._clients)

  def clean_up_executor(self, cardinalities):
    """Done by `close`."""

  def close(self):
    if self._clients is not None:
      self._clients.close()
    self._clients = None


class _Handle(NamedTuple):
  """A placed value: the result of a share's step of this number."""

  step: int


class _Step(NamedTuple):
  """What is done with a share.

  Attributes:
    intrinsic: What is called; None for a value of the driver.
    argument: Its argument; placed values are `_Handle`s.
    type_signature: Of the argument.
  """

  intrinsic: building_blocks.Intrinsic | None
  argument: Any
  type_signature: tff.Type


class _Spread(federating.ClientSide):
  """The clients of one call, over the workers that were there when it began."""

  def __init__(self, pool: Pool, num_clients: int):
    self._pool = pool
    self._num_clients = num_clients
    self._shares = None
    self._threads = None

  def _use_shares(self):
    """Made when the first client's value is: many computations have none."""
    if self._shares is None:
      count = max(1, min(len(self._pool.present()), self._num_clients))
      bounds = [round(i * self._num_clients / count) for i in range(count + 1)]
      self._shares = [
          _Share(self._pool, i, slice(*ends)) for i, ends in enumerate(itertools.pairwise(bounds))
      ]
      self._threads = concurrent.futures.ThreadPoolExecutor(count)
    return self._shares

  def close(self):
    """Lets the workers forget the call."""
    for share in self._shares or ():
      share.close()
    if self._threads is not None:
      # Of what is still computed nobody waits for the result.
      self._threads.shutdown(wait=False, cancel_futures=True)

  def place(self, value, type_signature):
    shares = self._use_shares()
    for share in shares:
      own = value if type_signature.all_equal else value[share.clients]
      share.steps.append(_Step(None, own, type_signature))
    return _Handle(len(shares[0].steps) - 1)

  def apply(self, intrinsic, argument):
    shares = self._use_shares()
    for share in shares:
      share.steps.append(_Step(intrinsic, argument, intrinsic.type_signature.parameter))
    return _Handle(len(shares[0].steps) - 1)

  def aggregate(self, intrinsic, argument):
    parts = [argument[i] for i in range(4)]
    partial, identity = _without_report(intrinsic)
    handle = self.apply(
        partial, tff.structure.Struct([*((None, p) for p in parts), (None, identity)])
    )
    return self._fetch(handle)

  def collect(self, placed, type_signature):
    results = self._fetch(placed)
    if type_signature.all_equal:
      return results[0]
    return [value for share in results for value in share]

  def _fetch(self, handle):
    """Returns the results of all shares, in order; they are computed at the same time."""
    return list(self._threads.map(lambda share: share.fetch(handle), self._use_shares()))


def _without_report(intrinsic):
  """Returns the aggregation that stops before its report, and the report it has instead."""
  value, zero, accumulate, merge, _ = (
      t for _, t in tff.structure.iter_elements(intrinsic.type_signature.parameter)
  )
  identity = building_blocks.Lambda('total', zero, building_blocks.Reference('total', zero))
  partial = building_blocks.Intrinsic(
      intrinsic.uri,
      tff.FunctionType(
          tff.StructType([value, zero, accumulate, merge, identity.type_signature]),
          tff.FederatedType(zero, tff.SERVER),
      ),
  )
  return partial, federating.Function(identity, {})


class _Share:
  """Some of the clients of a call, at one worker at a time.

  Attributes:
    clients: Which.
    steps: All that is done with them in this call.
  """

  def __init__(self, pool: Pool, index: int, clients: slice):
    self.clients = clients
    self.steps = []
    self._pool = pool
    self._index = index
    self._worker = None
    self._executor = None
    self._results = []
    self._closed = False

  def fetch(self, handle: _Handle) -> Any:
    """Returns the value of a step; of another worker, if this one is lost."""
    attempts = 0
    for _ in range(_MAX_CHOICES):
      try:
        if self._executor is None:
          self._choose()
        attempts += 1
        return asyncio.run(self._compute(handle))
      except (tff.framework.RetryableError, grpc.RpcError, ValueError) as error:
        if self._closed or not self._is_lost(error):
          raise
      self._executor, self._results = None, []
      if attempts == _MAX_ATTEMPTS:
        break
    raise worker_process.WorkerError(
        f'{attempts} workers were lost in the same computation; the same command continues '
        'from the last checkpoint, but for rounds that had noise'
    )

  def close(self) -> None:
    """Lets the worker forget this share; whoever still computes it does not begin anew."""
    self._closed = True
    self._results = []
    if self._executor is not None:
      with contextlib.suppress(ValueError):  # Where the worker was lost since.
        self._executor.close()

  def _choose(self):
    present = self._pool.present()
    self._worker = present[self._index % len(present)]
    executor = messages.WritingExecutor(self._worker.stub)
    executor.set_cardinalities({tff.CLIENTS: self.clients.stop - self.clients.start})
    self._executor = executor
    if self._closed:  # While it was asked for.
      executor.close()
      raise worker_process.WorkerError('the computation was given up')

  def _is_lost(self, error):
    """Whether the worker is gone, and not the computation wrong."""
    if isinstance(error, tff.framework.RetryableError):
      self._worker.peer.lose(self._worker.stub, error.code().name)
    # A worker without a sign of life is disconnected, which ends its calls in other ways.
    return self._worker.peer.stub is not self._worker.stub

  async def _compute(self, handle):
    while len(self._results) <= handle.step:
      self._results.append(await self._take(self.steps[len(self._results)]))
    return await self._results[handle.step].compute()

  async def _take(self, step):
    if step.intrinsic is None:
      return await self._executor.create_value(step.argument, step.type_signature)
    function = await self._executor.create_value(
        step.intrinsic.proto, step.intrinsic.type_signature
    )
    return await self._executor.create_call(
        function, await self._send(step.argument, step.type_signature)
    )

  async def _send(self, value, type_signature):
    if isinstance(value, _Handle):
      return self._results[value.step]
    if isinstance(value, federating.Function):
      return await self._executor.create_value(value.block.proto, value.block.type_signature)
    if isinstance(type_signature, tff.StructType) and tff.types.contains(
        type_signature, lambda t: isinstance(t, (tff.FederatedType, tff.FunctionType))
    ):
      parts = [
          (name, await self._send(part, part_type))
          for part, (name, part_type) in zip(
              value, tff.structure.iter_elements(type_signature), strict=True
          )
      ]
      return await self._executor.create_struct(tff.structure.Struct(parts))
    return await self._executor.create_value(value, type_signature)
