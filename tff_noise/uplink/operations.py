"""Static check: what clients and server run computes, and does nothing else.

A computation's edges (`disclosure`) are not all that could lead out of it: a graph can write a
file, print, call Python, or fail with its data in the error's message. So every operation of every
graph, those of the functions of its library included, has to be one of a list. Server graphs are
held to it too: what sums single clients' values runs there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import computation_pb2
from tensorflow_federated.proto.v0 import data_type_pb2
from tensorflow_federated.python.core.impl.computation import computation_impl
from tensorflow_federated.python.tensorflow_libs import serialization_utils

from tff_noise import types

# No operation of these lists writes, prints, reads a file or a clock, calls Python, sends, keeps
# anything for another call, be it in the memory of a constant. What is not listed is refused.
_MATHEMATICS = """
    Abs Acos Acosh Add AddN AddV2 All Any ApproximateEqual ArgMax ArgMin Asin Asinh Atan Atan2
    Atanh BatchMatMul BatchMatMulV2 BatchMatMulV3 Betainc Bincount BitwiseAnd BitwiseOr BitwiseXor
    Bucketize Cast Ceil ClipByValue Cos Cosh Cross Cumprod Cumsum CumulativeLogsumexp
    DenseBincount Digamma Div DivNoNan Einsum Equal Erf Erfc Erfinv Exp Expm1 Floor FloorDiv
    FloorMod Greater GreaterEqual HistogramFixedWidth Igamma IgammaGradA Igammac Inv InvGrad
    Invert IsFinite IsInf IsNan LeftShift Less LessEqual Lgamma LinSpace Log Log1p LogicalAnd
    LogicalNot LogicalOr MatMul Max Maximum Mean Min Minimum Mod Mul MulNoNan Ndtri Neg NextAfter
    NotEqual Polygamma PopulationCount Pow Prod Range RealDiv Reciprocal ReciprocalGrad RightShift
    Rint Round Rsqrt RsqrtGrad SegmentMax SegmentMaxV2 SegmentMean SegmentMin SegmentMinV2
    SegmentProd SegmentProdV2 SegmentSum SegmentSumV2 Select SelectV2 Sigmoid SigmoidGrad Sign Sin
    Sinh Sqrt SqrtGrad Square SquaredDifference Sub Sum Tan Tanh TanhGrad TruncateDiv TruncateMod
    UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum Xdivy Xlog1py
    Xlogy Zeta Cholesky CholeskyGrad LogMatrixDeterminant Lu MatrixDeterminant MatrixExponential
    MatrixInverse MatrixSolve MatrixSolveLs MatrixSquareRoot MatrixTriangularSolve Qr
    SelfAdjointEigV2 Svd
"""
_ARRAYS = """
    BatchToSpace BatchToSpaceND Bitcast BroadcastArgs BroadcastGradientArgs BroadcastTo Concat
    ConcatOffset ConcatV2 Const DepthToSpace Diag DiagPart DynamicPartition DynamicStitch
    EnsureShape ExpandDims ExtractImagePatches Fill Gather GatherNd GatherV2 Identity IdentityN
    InvertPermutation MatrixBandPart MatrixDiag MatrixDiagPart MatrixDiagPartV2
    MatrixDiagPartV3 MatrixDiagV2 MatrixDiagV3 MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3
    MirrorPad MirrorPadGrad OneHot OnesLike OptionalFromValue OptionalGetValue OptionalHasValue
    OptionalNone Pack Pad PadV2 ParallelDynamicStitch Placeholder
    PlaceholderWithDefault PreventGradient Rank Reshape ResourceGather Reverse ReverseSequence
    ReverseV2 Roll ScatterNd LowerBound UpperBound Shape ShapeN Size Slice Snapshot SpaceToBatch
    SpaceToBatchND SpaceToDepth Split SplitV Squeeze StopGradient StridedSlice StridedSliceGrad
    TensorScatterAdd TensorScatterMax TensorScatterMin TensorScatterSub TensorScatterUpdate
    TensorStridedSliceUpdate Tile TopK TopKV2 Transpose Unique UniqueV2 UniqueWithCounts
    UniqueWithCountsV2 Unpack UnravelIndex Where ZerosLike
"""
_NETWORKS = """
    AvgPool AvgPool3D AvgPool3DGrad AvgPoolGrad BiasAdd BiasAddGrad BiasAddV1 Conv2D
    Conv2DBackpropFilter Conv2DBackpropInput Conv3D Conv3DBackpropFilterV2 Conv3DBackpropInputV2
    DepthwiseConv2dNative DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput
    Elu EluGrad FusedBatchNorm FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3
    FusedBatchNormV2 FusedBatchNormV3 InTopK InTopKV2 L2Loss LRN LRNGrad LeakyRelu LeakyReluGrad
    LogSoftmax MaxPool MaxPoolGrad MaxPoolGradGrad MaxPoolGradV2 MaxPoolV2 MaxPoolWithArgmax
    NthElement Relu Relu6 Relu6Grad ReluGrad Selu SeluGrad Softmax SoftmaxCrossEntropyWithLogits
    Softplus SoftplusGrad Softsign SoftsignGrad SparseSoftmaxCrossEntropyWithLogits
"""
# A function of their seed and nothing else; and the noise of `gaussian_sum`, at the server alone.
_RANDOMNESS = """
    RandomStandardNormal StatelessMultinomial StatelessParameterizedTruncatedNormal
    StatelessRandomBinomial StatelessRandomGammaV2 StatelessRandomGammaV3 StatelessRandomGetAlg
    StatelessRandomGetKeyCounter StatelessRandomGetKeyCounterAlg StatelessRandomNormal
    StatelessRandomNormalV2 StatelessRandomPoisson StatelessRandomUniform
    StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2 StatelessRandomUniformInt
    StatelessRandomUniformIntV2 StatelessRandomUniformV2 StatelessShuffle StatelessTruncatedNormal
    StatelessTruncatedNormalV2
"""
# Of images in memory; what reads them is `ReadFile`, below.
_IMAGES = """
    AdjustContrastv2 AdjustHue AdjustSaturation CropAndResize DecodeImage DecodeJpeg DecodePng
    HSVToRGB ImageProjectiveTransformV2 ImageProjectiveTransformV3 RGBToHSV ResizeArea
    ResizeBicubic ResizeBicubicGrad ResizeBilinear ResizeBilinearGrad ResizeNearestNeighbor
    ResizeNearestNeighborGrad ScaleAndTranslate ScaleAndTranslateGrad
"""
_CONTROL = """
    Case Enter Exit If LoopCond Merge NextIteration NoOp PartitionedCall StatefulPartitionedCall
    StatelessCase StatelessIf StatelessWhile Switch SymbolicGradient While
"""
# Lists and variables of one call.
_VALUES = """
    EmptyTensorList TensorListConcatV2 TensorListElementShape TensorListFromTensor
    TensorListGather TensorListGetItem TensorListLength TensorListPopBack TensorListPushBack
    TensorListReserve TensorListResize TensorListScatterV2 TensorListSetItem TensorListSplit
    TensorListStack AssignAddVariableOp AssignSubVariableOp AssignVariableOp DestroyResourceOp
    ReadVariableOp ResourceApplyAdam ResourceApplyGradientDescent ResourceApplyKerasMomentum
    ResourceApplyMomentum ResourceScatterAdd ResourceScatterUpdate VarHandleOp VarIsInitializedOp
    VariableShape
"""
# A client's data set is an argument; the variables of a graph lie in no data set.
_DATA_SETS = 'DatasetToSingleElement OptionsDataset'
# With rules of their own, see `check`.
_RULED = 'Assert ReadFile StringLength Substr'

ALLOWED = frozenset(
    ' '.join((
        _MATHEMATICS, _ARRAYS, _NETWORKS, _RANDOMNESS, _IMAGES, _CONTROL, _VALUES, _DATA_SETS,
        _RULED,
    )).split()
)

# What makes strings, and what may be done with those: never read the file of that name.
_MAKES_STRINGS = frozenset({'ReadFile', 'Substr'})
_TAKES_STRINGS = frozenset({
    'Assert', 'DecodeImage', 'DecodeJpeg', 'DecodePng', 'Equal', 'NotEqual', 'StringLength',
    'Substr',
})
# What tells something of a text. The name of a client's file may say what is on it.
_TELLS = frozenset({
    'Equal', 'NotEqual', 'StringLength', 'Substr', 'Unique', 'UniqueV2', 'UniqueWithCounts',
    'UniqueWithCountsV2', 'Where',
})


_TEXT = tf.string.as_datatype_enum
_UNSEEDED = re.compile('Random|Multinomial|ParameterizedTruncated|Stateful.*Random|TruncatedNormal')


class OperationError(types.UsageError):
  """A computation does more than compute."""


class _Scope(NamedTuple):
  """Nodes that can refer to each other: a graph, or a function of its library.

  Attributes:
    name: Of the function; '' for the graph.
    nodes: All of them.
    results: References to what it returns.
  """

  name: str
  nodes: Sequence[Any]
  results: Sequence[str]


def check(computation: tff.Computation) -> None:
  """Checks every operation of a computation.

  Allowed is what `ALLOWED` lists, where
  * an assertion's message holds constants alone, but for one on what the server has already;
  * a file that is read is one that a data set among the arguments names: names that the graph
    makes, or gets elsewhere, are refused;
  * names of files are for reading these, and tell nothing else;
  * functions are those of the graph's own library.

  Raises:
    OperationError: If there is another operation.
  """
  whole = computation_impl.ConcreteComputation.get_proto(computation)
  for proto, at_server in local_computations(whole):
    kind = proto.WhichOneof('computation')
    if kind != 'tensorflow':
      raise OperationError(f'a computation is of the kind {kind!r}, which cannot be looked into')
    scopes, functions = _scopes(proto.tensorflow)
    for scope in scopes:
      _check_scope(scope, functions, at_server)
      _check_names(scope)
    if any(node.op == 'ReadFile' for scope in scopes for node in scope.nodes):
      _check_parameter(proto.type.function.parameter)
      for scope in scopes:
        _check_texts(scope)


def unseeded_randomness(computation: tff.Computation) -> frozenset[str]:
  """Returns the operations of a computation that draw random numbers which no argument fixes."""
  whole = computation_impl.ConcreteComputation.get_proto(computation)
  return frozenset(
      node.op
      for proto, _ in local_computations(whole) if proto.WhichOneof('computation') == 'tensorflow'
      for scope in _scopes(proto.tensorflow)[0]
      for node in scope.nodes if _UNSEEDED.match(node.op)
  )


def _scopes(proto: computation_pb2.TensorFlow) -> tuple[list[_Scope], frozenset[str]]:
  """What of a graph can run, and the names of its functions.

  Of the graph, that is what its results need; of its functions, all. (TFF itself leaves assertions
  in its graphs that nothing needs.)
  """
  graph = serialization_utils.unpack_graph_def(proto.graph_def)
  results = tuple(_results(proto.result))
  nodes = {node.name: node for node in graph.node}
  needed = _closure(
      (*map(_node_of, results), *((proto.initialize_op,) if proto.initialize_op else ())),
      lambda name: map(_node_of, nodes[name].input),
  )
  functions = {function.signature.name: function for function in graph.library.function}
  scopes = [_Scope('', [node for node in graph.node if node.name in needed], results)]
  # What `SymbolicGradient` calls in place of a function that it names.
  gradients = {g.function_name: g.gradient_func for g in graph.library.gradient}
  called = _closure(
      _called(scopes[0].nodes) & functions.keys(),
      lambda name: (_called(functions[name].node_def) | {gradients.get(name)}) & functions.keys(),
  )
  for function in graph.library.function:
    if function.signature.name in called:
      scopes.append(_Scope(
          function.signature.name, function.node_def,
          (*function.ret.values(), *function.control_ret.values()),
      ))
  return scopes, frozenset(functions)


def _closure(first: Iterable[str], following: Callable[[str], Iterable[str]]) -> set[str]:
  """All that is reached."""
  found, new = set(), list(first)
  while new:
    name = new.pop()
    if name not in found:
      found.add(name)
      new.extend(following(name))
  return found


def _called(nodes):
  """The names of operations, of which some are functions, and of functions in attributes."""
  return {name for node in nodes for name in (node.op, *_functions_of(node))}


def local_computations(
    proto: computation_pb2.Computation, at_server: bool = False
) -> Iterator[tuple[computation_pb2.Computation, bool]]:
  """What a computation is made of and TFF cannot take apart, graphs; whether the server maps it.

  What the server maps is given what the server has already. Functions of an aggregation are not
  that: they see single clients' values.
  """
  kind = proto.WhichOneof('computation')
  if kind == 'call' and proto.call.function.intrinsic.uri == 'federated_apply':
    function, *values = [element.value for element in proto.call.argument.struct.element]
    yield from local_computations(function, at_server=True)
    for value in values:
      yield from local_computations(value, at_server)
  elif kind in _MADE_OF:
    for part in _MADE_OF[kind](getattr(proto, kind)):
      yield from local_computations(part, at_server)
  elif kind not in _LEAVES:
    yield proto, at_server


_LEAVES = frozenset({'intrinsic', 'literal', 'placement', 'reference'})
# The parts of computations that have some.
_MADE_OF: Mapping[str, Any] = {
    'lambda': lambda x: (x.result,),
    'block': lambda x: (*(local.value for local in x.local), x.result),
    'call': lambda x: (x.function, *((x.argument,) if x.HasField('argument') else ())),
    'struct': lambda x: (element.value for element in x.element),
    'selection': lambda x: (x.source,),
}


def _results(binding) -> Iterator[str]:
  """The names of the tensors that a graph returns."""
  kind = binding.WhichOneof('binding')
  if kind == 'tensor':
    yield binding.tensor.tensor_name
  elif kind == 'sequence':
    yield binding.sequence.variant_tensor_name
  elif kind == 'struct':
    for element in binding.struct.element:
      yield from _results(element)


def _check_scope(scope, functions, at_server):
  constants = {node.name for node in scope.nodes if node.op == 'Const'}
  for node in scope.nodes:
    if node.op not in ALLOWED and node.op not in functions:
      raise _error(scope, node, 'is not on the list of what may be done with data')
    if _UNSEEDED.match(node.op) and not at_server:
      raise _error(
          scope, node, 'draws what a round that is repeated would draw anew: use '
          'tf.random.stateless operations, with seeds of the step or the client, and no dropout in '
          'a --model'
      )
    if not _functions_of(node) <= functions:
      raise _error(scope, node, 'calls a function that is not in the graph')
    if node.op == 'Assert' and not at_server and not constants.issuperset(_sources(node)[1:]):
      raise _error(scope, node, 'would show data in its message: assert with a constant text')


def _made_texts(scope):
  """Nodes with the contents of files, parts of these, and constants."""
  return {
      node.name for node in scope.nodes
      if node.op in _MAKES_STRINGS or (node.op == 'Const' and node.attr['dtype'].type == _TEXT)
  }


def _check_names(scope):
  """No other text than the content of a file is looked into."""
  made = _made_texts(scope)
  for node in scope.nodes:
    # The first two take nothing else, and have no type.
    if node.op in ('StringLength', 'Substr'):
      texts = _sources(node)[:1]
    elif node.op in _TELLS and node.attr['T'].type == _TEXT:
      texts = _sources(node)
    else:
      continue
    if not made.issuperset(texts):
      raise _error(scope, node, 'looks into a text that is not what a file holds, such as its name')


def _check_texts(scope):
  """Where files are read, no text may be made that could name another one."""
  made = _made_texts(scope)
  for node in scope.nodes:
    if node.op not in _TAKES_STRINGS and not made.isdisjoint(_sources(node)):
      raise _error(scope, node, 'takes a text that the graph made: files are those of the data set')
  for reference in scope.results:
    if _node_of(reference) in made:
      raise OperationError(
          f'the text {reference!r} is returned{_place(scope)}: a graph may not make names of files'
      )


def _sources(node):
  """The nodes, or arguments, whose values a node takes."""
  return [_node_of(reference) for reference in node.input if not reference.startswith('^')]


def _functions_of(node):
  """The names of the functions that a node's attributes refer to."""
  names = set()
  for value in node.attr.values():
    if value.HasField('func'):
      names.add(value.func.name)
    names.update(function.name for function in value.list.func)
  return names


def _node_of(reference):
  """The node of `node:0`, `node:output:0` or `^node`."""
  return reference.lstrip('^').partition(':')[0]


def _check_parameter(type_proto):
  """Names of files have to be in a data set."""
  kind = type_proto.WhichOneof('type')
  if kind == 'tensor' and type_proto.tensor.dtype == data_type_pb2.DT_STRING:
    raise OperationError(
        'a computation reads files, and is given a text that is in no data set: files are those of '
        'the data set'
    )
  if kind == 'struct':
    for element in type_proto.struct.element:
      _check_parameter(element.value)


def _place(scope):
  return f' by the function {scope.name!r}' if scope.name else ''


def _error(scope, node, what):
  place = f' in the function {scope.name!r}' if scope.name else ''
  return OperationError(
      f'the operation {node.op} ({node.name!r}{place}) {what}; see tff_noise/uplink/operations.py'
  )
