"""A TensorFlow computation of TFF, run by the TensorFlow of this process.

TFF's worker has a TensorFlow of its own, built without CUDA; this one sees a GPU. Like the worker,
it runs graphs in sessions, not as functions of eager TensorFlow: variables made in a client's
computation then belong to one call at a time, and names in one graph cannot clash with another's.
They go with the call: the next one, of another client, cannot read them.
"""

import collections
import contextlib
import queue
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.tensorflow_libs import serialization_utils


class TensorFlowFunction:
  """Callable in several threads at once; each call has a session to itself.

  Values are nested `tff.structure.Struct` of NumPy arrays, scalars or bytes, and of
  `tf.data.Dataset` for sequences.

  Attributes:
    placement: How many operations TensorFlow has put on each device ('GPU:0'), once it was called.
  """

  def __init__(self, proto: Any, config: tf.compat.v1.ConfigProto):
    """Imports the graph.

    Args:
      proto: A TFF computation proto that holds TensorFlow.
      config: Of its sessions.

    Raises:
      NotImplementedError: If it returns a sequence.
    """
    function = proto.tensorflow
    self._parameter = function.parameter if function.HasField('parameter') else None
    self._result = function.result
    self._config = config
    self._idle = queue.LifoQueue()
    self._graph = tf.Graph()
    with self._graph.as_default():
      self._sequences = {}
      tf.import_graph_def(
          serialization_utils.unpack_graph_def(function.graph_def),
          input_map=self._sequence_inputs(),
          name='',
      )
      self._forget = _destroy_variables(self._graph.as_graph_def())
    self._token = function.session_token_tensor_name
    self._initialize = function.initialize_op
    self.placement: Mapping[str, int] = {}
    self._fetches = []
    _visit_result(self._result, self._fetches.append)

  def _sequence_inputs(self):
    """Sequences come as serialised data sets."""
    inputs = {}
    for name in _sequence_names(self._parameter):
      serialised = tf.compat.v1.placeholder(tf.string, [])
      inputs[name] = tf.raw_ops.DatasetFromGraph(graph_def=serialised)
      self._sequences[name] = serialised
    return inputs

  def __call__(self, argument: Any) -> Any:
    """Returns the result.

    Raises:
      tf.errors.OpError: If TensorFlow fails.
    """
    feeds = {}
    if self._parameter is not None:
      self._feed(self._parameter, argument, feeds)
    with self._session() as session:
      if self._initialize:
        session.run(self._initialize)
      if self._token:
        feeds[self._token] = b''
      fetched = iter(self._run(session, feeds))
    return _visit_result(self._result, lambda _: next(fetched))

  def _run(self, session, feeds):
    if self.placement:
      return session.run(self._fetches, feeds)
    # The first time, TensorFlow is asked what it has made of the graph.
    metadata = tf.compat.v1.RunMetadata()
    options = tf.compat.v1.RunOptions(output_partition_graphs=True)
    fetched = session.run(self._fetches, feeds, options=options, run_metadata=metadata)
    self.placement = _placement(metadata.partition_graphs)
    return fetched

  @contextlib.contextmanager
  def _session(self) -> Iterator[tf.compat.v1.Session]:
    try:
      session = self._idle.get_nowait()
    except queue.Empty:
      session = tf.compat.v1.Session(graph=self._graph, config=self._config)
    try:
      yield session
    finally:
      session.run(self._forget)
      self._idle.put(session)

  def _feed(self, binding, value, feeds):
    kind = binding.WhichOneof('binding')
    if kind == 'tensor':
      feeds[binding.tensor.tensor_name] = value
    elif kind == 'sequence':
      feeds[self._sequences[binding.sequence.variant_tensor_name]] = _serialise(value)
    else:
      for element, part in zip(binding.struct.element, value, strict=True):
        self._feed(element, part, feeds)


def _destroy_variables(graph_def):
  """Returns an operation that forgets all variables of a graph and of its functions.

  Those with a name, which a session keeps for the next call; others go with the call.
  """
  nodes = [*graph_def.node, *(n for f in graph_def.library.function for n in f.node_def)]
  named = {
      (node.attr['container'].s, node.attr['shared_name'].s)
      for node in nodes if node.op == 'VarHandleOp'
  }
  forget = []
  for container, name in sorted(named):
    handle = tf.raw_ops.VarHandleOp(
        dtype=tf.float32, shape=[], container=container.decode(), shared_name=name.decode()
    )
    forget.append(tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True))
  return tf.group(*forget)


def _placement(graphs):
  """How many nodes each device has; of '/job:localhost/replica:0/task:0/device:GPU:0', the end."""
  return collections.Counter(
      node.device.rpartition('device:')[2] for graph in graphs for node in graph.node
  )


def _sequence_names(binding):
  if binding is None:
    return
  kind = binding.WhichOneof('binding')
  if kind == 'sequence':
    yield binding.sequence.variant_tensor_name
  elif kind == 'struct':
    for element in binding.struct.element:
      yield from _sequence_names(element)


def _serialise(dataset):
  variant = tf.data.experimental.to_variant(dataset)
  return tf.raw_ops.DatasetToGraphV2(input_dataset=variant).numpy()


def _visit_result(binding, visit):
  kind = binding.WhichOneof('binding')
  if kind == 'tensor':
    return visit(binding.tensor.tensor_name)
  if kind == 'sequence':
    raise NotImplementedError('A computation that returns a sequence runs in TFF\'s worker alone.')
  return tff.structure.Struct((None, _visit_result(e, visit)) for e in binding.struct.element)
