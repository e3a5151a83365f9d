"""What the graphs of a computation compute, apart from how TensorFlow calls their parts."""

import tensorflow_federated as tff
from tensorflow_federated.python.core.impl.computation import computation_impl
from tensorflow_federated.python.tensorflow_libs import serialization_utils

from tff_noise.uplink import operations


def contents(computation: tff.Computation) -> list[list[list[tuple[str, bytes]]]]:
  """Returns of each graph, and of each function in it, its operations and their constants."""
  # Functions have numbers in their names, and are in the order of these.
  return [sorted(map(_operations, functions)) for functions in _nodes(computation)]


def devices(computation: tff.Computation, operation: str) -> set[str]:
  """Returns where the graphs want the operations of this name to run; '' for anywhere."""
  return {
      node.device for functions in _nodes(computation) for nodes in functions for node in nodes
      if node.op == operation
  }


def _nodes(computation):
  """Of each graph, the operations of itself and of each function in it."""
  proto = computation_impl.ConcreteComputation.get_proto(computation)
  for local, _ in operations.local_computations(proto):
    graph = serialization_utils.unpack_graph_def(local.tensorflow.graph_def)
    yield [graph.node, *(function.node_def for function in graph.library.function)]


def _operations(nodes):
  # A call's operation is its function's name.
  return [
      (node.op.rstrip('0123456789'), node.attr['value'].tensor.SerializeToString())
      for node in nodes
  ]
