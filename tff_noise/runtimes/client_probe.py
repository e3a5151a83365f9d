"""What clients compute in a computation, run for one thing alone: whether it ends."""

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.core.impl.compiler import building_block_factory
from tensorflow_federated.python.core.impl.compiler import building_blocks
from tensorflow_federated.python.core.impl.computation import computation_impl

from tff_noise.runtimes import blocks
from tff_noise.runtimes import federating

# What computes at clients, and what moves nothing from clients to the server.
_MAPS = frozenset({'federated_eval_at_clients', 'federated_map', 'federated_map_all_equal'})
_NO_RELEASES = federating.AT_CLIENTS | {
    'federated_apply', 'federated_broadcast', 'federated_eval_at_server',
    'federated_value_at_server', 'federated_zip_at_server',
}


def build(computation: tff.Computation) -> tff.Computation | None:
  """Returns what clients compute before anything that was sent comes back to them.

  Args:
    computation: `(A -> R)` with clients.

  Returns:
    `(A -> <{bool}@CLIENTS,...>)`: True of each client, for each function that is mapped over them.
    None of a client's values is in it, and nothing of it is at the server. None where nothing is
    mapped over clients.
  """
  block = tff.framework.to_call_dominant(blocks.of(computation))
  if not isinstance(block, building_blocks.Lambda):
    return None
  if not isinstance(block.result, building_blocks.Block):
    return None
  unknown = {name for name, _ in block.result.locals}
  kept, ended = [], []
  for name, value in block.result.locals:
    # Names are unique in this form.
    if _references(value) & unknown or not _uses_only(value, _NO_RELEASES):
      continue
    unknown.remove(name)
    kept.append((name, value))
    if _is_map(value) and _has_tensors(value.type_signature.member):
      ended.append(_ended(building_blocks.Reference(name, value.type_signature)))
  if not ended:
    return None
  return computation_impl.ConcreteComputation.from_building_block(
      building_blocks.Lambda(
          block.parameter_name,
          block.parameter_type,
          building_blocks.Block(kept, building_blocks.Struct(ended)),
      )
  )


def _is_map(value):
  return (
      isinstance(value, building_blocks.Call)
      and isinstance(value.function, building_blocks.Intrinsic)
      and value.function.uri in _MAPS
  )


def _uses_only(value, intrinsics):
  return {b.uri for b in _parts(value) if isinstance(b, building_blocks.Intrinsic)} <= intrinsics


def _references(value):
  return {b.name for b in _parts(value) if isinstance(b, building_blocks.Reference)}


def _parts(value):
  """Every building block in one."""
  found = []

  def visit(block):
    found.append(block)
    return block, False

  tff.framework.transform_postorder(value, visit)
  return found


def _has_tensors(type_signature):
  """A function of clients may return nothing."""
  return tff.types.contains(type_signature, lambda t: isinstance(t, tff.TensorType))


def _ended(value):
  """`{bool}@CLIENTS`: True, once `value` is computed."""

  @tff.tensorflow.computation(value.type_signature.member)
  def ended(value):
    # The results of building blocks have lost their Python containers.
    parts = tff.structure.flatten(value) if isinstance(value, tff.structure.Struct) else [value]
    with tf.control_dependencies(tf.nest.flatten(parts)):
      return tf.constant(True)

  return building_block_factory.create_federated_map(
      ended.to_compiled_building_block(), value
  )
