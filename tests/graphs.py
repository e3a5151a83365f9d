"""What the graphs of a computation compute, apart from how TensorFlow calls their parts."""

import tensorflow_federated as tff
from tensorflow_federated.python.core.impl.computation import computation_impl
from tensorflow_federated.python.tensorflow_libs import serialization_utils

from tff_noise.uplink import operations


def contents(computation: tff.Computation) -> list[list[list[tuple[str, bytes]]]]:
  """Returns of each graph, and of each function in it, its operations and their constants."""
  proto = computation_impl.ConcreteComputation.get_proto(computation)
  found = []
  for local, _ in operations.local_computations(proto):
    graph = serialization_utils.unpack_graph_def(local.tensorflow.graph_def)
    functions = [function.node_def for function in graph.library.function]
    # Functions have numbers in their names, and are in the order of these.
    found.append(sorted(map(_operations, [graph.node, *functions])))
  return found


def _operations(nodes):
  # A call's operation is its function's name.
  return [
      (node.op.rstrip('0123456789'), node.attr['value'].tensor.SerializeToString())
      for node in nodes
  ]
