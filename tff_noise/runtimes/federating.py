"""Runs a federated computation step by step: the server here, the clients on a `ClientSide`.

TFF's own executor for this is part of its C++ worker. This one lets the clients be computed
elsewhere, by the TensorFlow of this process or by several workers, without splitting the
computation in two: what clients compute is computed once, stays where it was computed until it is
summed, and may depend on an earlier sum.
"""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.core.impl.compiler import building_blocks
from tensorflow_federated.python.core.impl.executors import executor_base
from tensorflow_federated.python.core.impl.executors import executor_value_base

from tff_noise.runtimes import blocks
from tff_noise.runtimes import tensorflow_function

# From clients to the same clients.
AT_CLIENTS = frozenset((
    'federated_eval_at_clients', 'federated_map', 'federated_map_all_equal',
    'federated_value_at_clients', 'federated_zip_at_clients',
))


class Function(NamedTuple):
  """A function of the computation.

  Attributes:
    block: Its building block.
    bindings: The values of the names it refers to.
  """

  block: building_blocks.ComputationBuildingBlock
  bindings: Mapping[str, Any]


# From a function and its argument to its value, unplaced.
Call = Callable[[Function, Any], Any]
# From an intrinsic and its argument to its value.
CallIntrinsic = Callable[[building_blocks.Intrinsic, Any], Any]


class ClientSide(abc.ABC):
  """Where clients' values are kept and computed; a *placed* value is whatever it likes."""

  @abc.abstractmethod
  def place(self, value: Any, type_signature: tff.FederatedType) -> Any:
    """Returns the placed value of a list with one value a client, or of one value for all."""

  @abc.abstractmethod
  def apply(self, intrinsic: building_blocks.Intrinsic, argument: Any) -> Any:
    """Returns the placed result of one of `AT_CLIENTS`."""

  @abc.abstractmethod
  def aggregate(self, intrinsic: building_blocks.Intrinsic, argument: Any) -> Sequence[Any]:
    """Returns sums over parts of the clients, in order, that `merge` makes one; at least one."""

  @abc.abstractmethod
  def collect(self, placed: Any, type_signature: tff.FederatedType) -> Any:
    """Undoes `place`."""


class ServerSide:
  """Evaluates building blocks with the TensorFlow of this process.

  Compiled functions are kept for as long as this object lives.
  """

  def __init__(self, on_placed: Callable[[Mapping[str, int]], None] = lambda _: None):
    """Keeps nothing yet.

    Args:
      on_placed: Called when a function has run for the first time, in the thread that ran it, with
        the number of its operations on each device.
    """
    self._on_placed = on_placed
    self._config = tf.compat.v1.ConfigProto(allow_soft_placement=True)
    self._blocks = {}
    self._functions = {}

  def function(self, computation: tff.Computation) -> Function:
    """Returns a computation as a function; the same one each time it is asked for."""
    if computation not in self._blocks:
      self._blocks[computation] = blocks.of(computation)
    return Function(self._blocks[computation], {})

  def call(
      self, function: Function, argument: Any, call_intrinsic: CallIntrinsic | None = None
  ) -> Any:
    """Returns the value of a function.

    Args:
      function: To call.
      argument: Its argument; None where it takes none.
      call_intrinsic: Computes what is federated in it; None where nothing may be.
    """
    block = function.block
    if isinstance(block, building_blocks.CompiledComputation):
      return self._run(self._compiled(block), argument)
    if isinstance(block, building_blocks.Lambda):
      bindings = {**function.bindings, block.parameter_name: argument}
      return self._evaluate(block.result, bindings, call_intrinsic)
    if isinstance(block, building_blocks.Intrinsic) and call_intrinsic is not None:
      return call_intrinsic(block, argument)
    raise NotImplementedError(f'{block} is not a function this runtime can call.')

  def _compiled(self, block):
    # Keyed by object, which is kept: comparing graphs would take longer than running them.
    if id(block) not in self._functions:
      function = tensorflow_function.TensorFlowFunction(block.proto, self._config)
      self._functions[id(block)] = (block, function)
    return self._functions[id(block)][1]

  def _run(self, function, argument):
    is_new = not function.placement
    value = function(argument)
    if is_new:
      self._on_placed(function.placement)
    return value

  def _evaluate(self, block, bindings, call_intrinsic):

    def value_of(part):
      return self._evaluate(part, bindings, call_intrinsic)

    match block:
      case building_blocks.Reference():
        return bindings[block.name]
      case building_blocks.Block():
        for name, local in block.locals:
          bindings = {**bindings, name: value_of(local)}
        return value_of(block.result)
      case building_blocks.Struct():
        return tff.structure.Struct(
            (name, value_of(part)) for name, part in tff.structure.iter_elements(block)
        )
      case building_blocks.Selection():
        source = value_of(block.source)
        return getattr(source, block.name) if block.index is None else source[block.index]
      case building_blocks.Call():
        argument = None if block.argument is None else value_of(block.argument)
        return self.call(value_of(block.function), argument, call_intrinsic)
      case building_blocks.Literal():
        return block.value
      case (
          building_blocks.CompiledComputation()
          | building_blocks.Lambda()
          | building_blocks.Intrinsic()
      ):
        return Function(block, bindings)
    raise NotImplementedError(f'A {type(block).__name__} cannot be run by this runtime.')


class FederatingExecutor(executor_base.Executor):
  """A TFF executor for one number of clients."""

  def __init__(self, server: ServerSide, clients: ClientSide):
    self._server = server
    self._clients = clients

  def close(self):
    """Nothing outlives a call."""

  async def create_value(self, value, type_spec=None):
    """See base class."""
    if isinstance(value, tff.Computation):
      return _Embedded(self._server.function(value), value.type_signature, self)
    return _Embedded(self._embed(value, type_spec), type_spec, self)

  async def create_call(self, comp, arg=None):
    """See base class."""
    argument = None if arg is None else arg.value
    return _Embedded(self._call(comp.value, argument), comp.type_signature.result, self)

  async def create_struct(self, elements):
    """See base class."""
    elements = list(tff.structure.iter_elements(tff.structure.from_container(elements)))
    return _Embedded(
        tff.structure.Struct((name, v.value) for name, v in elements),
        tff.StructType([(name, v.type_signature) for name, v in elements]),
        self,
    )

  async def create_selection(self, source, index):
    """See base class."""
    return _Embedded(source.value[index], source.type_signature[index], self)

  def _embed(self, value, type_signature):
    if isinstance(type_signature, tff.FederatedType):
      if type_signature.placement is tff.CLIENTS:
        member = type_signature.member
        if type_signature.all_equal:
          return self._clients.place(self._embed(value, member), type_signature)
        return self._clients.place([self._embed(v, member) for v in value], type_signature)
      return self._embed(value, type_signature.member)
    if isinstance(type_signature, tff.StructType):
      parts = tff.structure.from_container(value)
      return tff.structure.Struct(
          (name, self._embed(part, part_type))
          for part, (name, part_type) in zip(
              parts, tff.structure.iter_elements(type_signature), strict=True
          )
      )
    if isinstance(type_signature, tff.TensorType):
      if type_signature.dtype.type is np.str_:
        return value
      return np.asarray(value, type_signature.dtype)
    return value

  def collect(self, value, type_signature):
    """Returns a value as TFF's contexts expect it of an executor."""
    if isinstance(type_signature, tff.FederatedType):
      if type_signature.placement is tff.CLIENTS:
        return self._clients.collect(value, type_signature)
      return self.collect(value, type_signature.member)
    if isinstance(type_signature, tff.StructType):
      return tff.structure.Struct(
          (name, self.collect(part, part_type))
          for part, (name, part_type) in zip(
              value, tff.structure.iter_elements(type_signature), strict=True
          )
      )
    return value

  def _call(self, function, argument):
    return self._server.call(function, argument, self._intrinsic)

  def _intrinsic(self, block, argument):
    if block.uri in AT_CLIENTS:
      return self._clients.apply(block, argument)
    match block.uri:
      case 'federated_broadcast':
        return self._clients.place(argument, block.type_signature.result)
      case 'federated_aggregate':
        return self._aggregate(block, argument)
      case 'federated_apply':
        return self._call(*argument)
      case 'federated_eval_at_server':
        return self._call(argument, None)
      case 'federated_value_at_server' | 'federated_zip_at_server':
        return argument
    raise NotImplementedError(f'The intrinsic {block.uri} is not known to this runtime.')

  def _aggregate(self, block, argument):
    total, *others = self._clients.aggregate(block, argument)
    merge, report = argument[3], argument[4]
    for other in others:
      total = self._call(merge, tff.structure.Struct([(None, total), (None, other)]))
    return self._call(report, total)


class _Embedded(executor_value_base.ExecutorValue):
  """A value in a `FederatingExecutor`."""

  def __init__(self, value, type_signature, executor):
    self.value = value
    self._type_signature = type_signature
    self._executor = executor

  @property
  def type_signature(self):
    return self._type_signature

  @property
  def reference(self):
    return self.value

  async def compute(self):
    return self._executor.collect(self.value, self._type_signature)
