"""One connection to a TFF worker: computations are compiled, sent and run, once and no more."""

import asyncio
import concurrent.futures
from typing import Any

import grpc
import tensorflow as tf
import tensorflow_federated as tff
from absl import logging
from tensorflow_federated.proto.v0 import executor_pb2
from tensorflow_federated.proto.v0 import executor_pb2_grpc
from tensorflow_federated.python.common_libs import tracing
from tensorflow_federated.python.core.backends.test import compiler as test_compiler
from tensorflow_federated.python.core.environments.tensorflow_backend import (
    compiled_computation_transformations,
)
from tensorflow_federated.python.core.environments.tensorflow_backend import (
    tensorflow_tree_transformations,
)
from tensorflow_federated.python.core.environments.tensorflow_frontend import tensorflow_computation
from tensorflow_federated.python.core.impl.compiler import building_blocks
from tensorflow_federated.python.core.impl.computation import computation_impl
from tensorflow_federated.python.core.impl.context_stack import context_stack_impl
from tensorflow_federated.python.tensorflow_libs import serialization_utils

from tff_noise.runtimes import blocks
from tff_noise.runtimes import identity_cache

_GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
# How the names of all of TFF's secure sums start.
_SECURE_SUMS = b'federated_secure_'
_NOBODY = executor_pb2.DisposeExecutorRequest(executor=executor_pb2.ExecutorId(id='nobody'))

# Computations that are kept, as by TFF.
_COMPILED = 128
_MAX_MESSAGE_BYTES = 2 * 1000**3
_CHANNEL_OPTIONS = (
    ('grpc.max_message_length', _MAX_MESSAGE_BYTES),
    ('grpc.max_receive_message_length', _MAX_MESSAGE_BYTES),
    ('grpc.max_send_message_length', _MAX_MESSAGE_BYTES),
    # Clients' data go to the worker that was named, whatever `http_proxy` says.
    ('grpc.enable_http_proxy', 0),
)


def compile_computation(computation: tff.Computation) -> tff.Computation:
  """Returns the computation as TFF's executors run it.

  Secure sums are replaced by plain ones: a simulation shows the data flow, not the cryptography.
  """
  proto = computation_impl.ConcreteComputation.get_proto(computation)
  # Looking for sums to replace in a computation without any takes a quarter of all this.
  if _SECURE_SUMS in proto.SerializeToString():
    computation = test_compiler.replace_secure_intrinsics_with_bodies(computation)
  block = blocks.of(computation)
  block, _ = tensorflow_tree_transformations.replace_intrinsics_with_bodies(block)
  block, _ = tff.framework.transform_postorder(tff.framework.to_call_dominant(block), _prepared)
  return computation_impl.ConcreteComputation(
      computation_proto=block.proto, context_stack=context_stack_impl.context_stack
  )


def _prepared(block):
  """A graph as TFF's `desugar_and_transform_to_native` has it, which walks over all three times.

  Optimised are graphs that call functions, of some 25 of a round one or two, by which these become
  part of the graph; of the others a session makes the same at its first run.
  """
  if not isinstance(block, building_blocks.CompiledComputation):
    return block, False
  if serialization_utils.unpack_graph_def(block.proto.tensorflow.graph_def).library.function:
    block, _ = _OPTIMIZE.transform(block)
  block, _ = _CALL_PLAINLY.transform(block)
  return _IDENTIFY.transform(block)


def _aggressive():
  """Of TFF's own compiler."""
  config = tf.compat.v1.ConfigProto()
  options = config.graph_options.rewrite_options
  for name in (
      'memory_optimization', 'constant_folding', 'arithmetic_optimization', 'loop_optimization',
      'function_optimization',
  ):
    setattr(options, name, options.AGGRESSIVE)
  return config


_OPTIMIZE = compiled_computation_transformations.TensorFlowOptimizer(_aggressive())
_CALL_PLAINLY = compiled_computation_transformations.DisableCallOpGrappler()
_IDENTIFY = compiled_computation_transformations.AddUniqueIDs()


def open_channel(door: str) -> grpc.Channel:
  """Returns a channel to `unix:PATH` or `tcp:HOST:PORT`."""
  return grpc.insecure_channel(door.removeprefix('tcp:'), _CHANNEL_OPTIONS)


class Stub(tff.framework.RemoteExecutorGrpcStub):
  """TFF's stub, of a channel that nobody watches.

  TFF has a thread of gRPC's ask for the channel's state five times a second, so that `is_ready` can
  tell, which nothing here asks. It may say that the channel is closed, by a traceback on stderr.
  """

  def __init__(self, channel: grpc.Channel):
    self._channel = channel
    self._channel_status = False
    self._stub = executor_pb2_grpc.ExecutorGroupStub(channel)


def sign_of_life(channel: grpc.Channel, silence: float) -> str:
  """Returns '' if the worker answers within `silence` seconds, whatever it says, or what is wrong.

  Ask on a channel of its own: long computations and large messages then do not count as silence.
  """
  try:
    executor_pb2_grpc.ExecutorGroupStub(channel).DisposeExecutor(_NOBODY, timeout=silence)
  except grpc.RpcError as error:
    if error.code() in _GONE:
      return f'no sign of life within {silence:g} s'
  except ValueError:
    pass  # Closed meanwhile by who owns the channel.
  return ''


class _NoLog(tracing.TracingProvider):
  """Tells nothing of a span."""

  def span(self, *unused_args):
    """See base class."""
    yield None


def _log_no_spans():
  """TFF's own provider writes two debug messages for each of a round's 400 spans, to nobody.

  Another takes its place, since spans that are open have one value for each provider.
  """
  tracing.set_tracing_providers([
      _NoLog() if isinstance(provider, tracing.LoggingTracingProvider) else provider
      for provider in tracing._global_tracing_providers
  ])


class _Compiled:
  """Computations by identity; TFF's pipeline hashes all bytes of a computation at each call."""

  def __init__(self):
    self._compiled = identity_cache.IdentityCache(_COMPILED)

  def compile(self, comp: tff.Computation) -> tff.Computation:
    """Returns the computation as `compile_computation` makes it, once."""
    compiled = self._compiled.find(comp)
    if compiled is None:
      compiled = compile_computation(comp)
      self._compiled.add(compiled, comp)
    return compiled


class OnceContext(tff.framework.SyncContext):
  """Compiles and invokes computations, without TFF's own retry, which has no limit."""

  def __init__(self, executor_factory: tff.framework.ExecutorFactory):
    self._context = tff.framework.AsyncExecutionContext(
        executor_factory,
        transform_args=tensorflow_computation.transform_args,
        transform_result=tensorflow_computation.transform_result,
    )
    self._context._compiler_pipeline = _Compiled()
    if not logging.level_debug():
      _log_no_spans()
    # Python waits for this thread before it ends. TFF's own runner leaves its thread in the middle
    # of a call after Ctrl-C, and gRPC then aborts the program.
    self._thread = concurrent.futures.ThreadPoolExecutor(1)

  def invoke(self, comp: tff.Computation, arg: Any) -> Any:
    """Returns the result.

    Raises:
      tff.framework.RetryableError: If the worker is gone.
      grpc.RpcError: If the worker says that the computation failed.
    """
    once = tff.framework.AsyncExecutionContext.invoke.__wrapped__
    # Made where it is awaited: after Ctrl-C in between, Python would say that nobody did.
    return self._thread.submit(lambda: asyncio.run(once(self._context, comp, arg))).result()
