"""Tests of the list of operations: side doors out of a graph are refused where it is built."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized
from tensorflow.python.framework import function
from tensorflow.python.framework import op_def_registry

from tff_noise import types
from tff_noise.federated import aggregation
from tff_noise.models import images
from tff_noise.privacy import protection
from tff_noise.uplink import operations

_EXAMPLES = tff.SequenceType(
    tff.StructWithPythonType([('x', tff.TensorType(np.float32, (None,)))], dict)
)
_FILES = tff.SequenceType(
    tff.StructWithPythonType([('x', tff.TensorType(np.str_, (None,)))], dict)
)

# Of those that the list has, what TensorFlow calls stateful, and why it does no harm: variables of
# one call; calls, whose bodies are looked at; an assertion, whose text is constant.
_STATEFUL = frozenset({
    'RandomStandardNormal', 'StatelessRandomGetAlg', 'Assert', 'AssignAddVariableOp',
    'AssignSubVariableOp', 'AssignVariableOp', 'Case',
    'DatasetToSingleElement', 'DestroyResourceOp', 'If', 'ReadVariableOp', 'ResourceApplyAdam',
    'ResourceApplyGradientDescent', 'ResourceApplyKerasMomentum', 'ResourceApplyMomentum',
    'ResourceGather', 'ResourceScatterAdd', 'ResourceScatterUpdate', 'StatefulPartitionedCall',
    'SymbolicGradient', 'VarHandleOp', 'VarIsInitializedOp', 'VariableShape', 'While',
})


def _mapped(body, data_type=_EXAMPLES):
  """A sum over what `body` makes of each client's `x`, in a function of the graph's library."""

  @tff.tensorflow.computation(data_type)
  def client(data):
    @tf.function(autograph=False)
    def run(x):
      return body(x)

    return run(data.get_single_element()['x'])

  @tff.federated_computation(tff.FederatedType(data_type, tff.CLIENTS))
  def total(data):
    return tff.federated_sum(tff.federated_map(client, data))

  return total


def _after(operation, x):
  with tf.control_dependencies([operation]):
    return tf.reduce_sum(x)


def _nested(operation):
  """In a branch of a loop."""

  def body(x):
    def step(i):
      return tf.cond(x[i] > 0, lambda: _after(operation(x), i + 1), lambda: i + 1)

    return tf.while_loop(lambda i: i < 3, step, [tf.constant(0)])[0]

  return body


def _text(x):
  return tf.strings.reduce_join(tf.strings.as_string(x))


class OperationsTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('length', lambda x: tf.strings.length(x), 'StringLength'),
      ('part', lambda x: tf.cast(tf.equal(tf.strings.substr(x, 0, 3), 'cat'), tf.int32), 'Substr'),
      ('equal', lambda x: tf.cast(tf.equal(x, 'cat/1.png'), tf.int32), 'Equal'),
      ('among each other', lambda x: tf.unique(x).idx, 'Unique'),
  )
  def test_names_of_files_are_for_reading_them_alone(self, body, name):
    # A folder of images is named after their class.
    with self.assertRaisesRegex(operations.OperationError, f'operation {name} .*such as its name'):
      operations.check(_mapped(lambda x: tf.reduce_sum(body(x)), _FILES))

  @parameterized.named_parameters(
      ('file', lambda x: tf.io.write_file('/tmp/side_door', _text(x)), 'WriteFile|AsString'),
      ('constant file', lambda x: tf.io.write_file('/tmp/side_door', 'here'), 'WriteFile'),
      # Writes into the constant, which outlives the call.
      ('memory', lambda x: tf.raw_ops.InplaceUpdate(
          x=tf.constant([1.0, 1.0]), i=[0], v=x[:1]
      ), 'InplaceUpdate'),
      ('chance', lambda x: x + tf.random.normal([]), 'RandomStandardNormal'),
      ('seeded', lambda x: x + tf.random.normal([], seed=1), 'RandomStandardNormal'),
      ('print', lambda x: tf.print(x), 'StringFormat|PrintV2'),
      ('python', lambda x: tf.py_function(lambda v: v, [x], tf.float32), 'EagerPyFunc'),
      ('numpy', lambda x: tf.numpy_function(
          lambda v: v, [x], tf.float32, stateful=False), 'PyFuncStateless'),
      ('assertion', lambda x: tf.debugging.Assert(x[0] > 0, ['labels', x]), 'Assert'),
      ('comparison', lambda x: tf.debugging.assert_positive(x), 'Assert'),
      ('listing', lambda x: tf.io.matching_files('/home/*'), 'MatchingFiles'),
      ('clock', lambda x: tf.timestamp(), 'Timestamp'),
      ('unseeded noise', lambda x: tf.random.uniform([2]), 'RandomUniform'),
      ('table', lambda x: tf.lookup.experimental.MutableHashTable(
          tf.int64, tf.float32, 0.0).size(), 'MutableHashTableV2'),
      ('queue', lambda x: tf.raw_ops.FIFOQueueV2(
          component_types=[tf.float32], shared_name='between clients'), 'FIFOQueueV2'),
      ('constant name', lambda x: tf.io.read_file('/etc/passwd'), 'ReadFile'),
      ('serialised graph', lambda x: tf.raw_ops.DatasetFromGraph(graph_def=''), 'DatasetFromGraph'),
  )
  def test_side_doors_are_refused(self, operation, name):
    for body in (lambda x: _after(operation(x), x), _nested(operation)):
      with self.assertRaisesRegex(operations.OperationError, f'^the operation ({name}) .*in the fu'
                                  ) as caught:
        operations.check(_mapped(body))
      self.assertIsInstance(caught.exception, types.UsageError)
      self.assertNotIn('\n', str(caught.exception))

  def test_gradients_that_a_function_was_given_are_looked_at_too(self):
    @function.Defun(tf.float32, tf.float32)
    def gradient(x, dy):
      with tf.control_dependencies([tf.print(x)]):
        return 2 * dy

    @function.Defun(tf.float32, grad_func=gradient)
    def square(x):
      return x * x

    @tff.tensorflow.computation(np.float32)
    def client(x):
      one = tf.ones_like(x)
      return square(x) + tf.raw_ops.SymbolicGradient(input=[x, one], Tout=[tf.float32], f=square)[0]

    with self.assertRaisesRegex(operations.OperationError, 'StringFormat|PrintV2'):
      operations.check(client)

  def test_what_the_server_runs_on_single_clients_values_is_looked_at_too(self):
    @tff.tensorflow.computation(np.float32, np.float32)
    def add(a, b):
      with tf.control_dependencies([tf.print(b)]):
        return a + b

    @tff.tensorflow.computation(np.float32)
    def same(a):
      return tf.identity(a)

    @tff.tensorflow.computation(np.float32, np.float32)
    def merge(a, b):
      return a + b

    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def total(x):
      return tff.federated_aggregate(x, np.float32(0), add, merge, same)

    with self.assertRaisesRegex(operations.OperationError, 'StringFormat|PrintV2'):
      operations.check(total)

  def test_secure_sums_and_noisy_sums_pass(self):
    # TFF asserts with data, where nothing needs it, and at the server on sums that it has.
    shield = protection.NoisySum(1.0, 1.0, cohort=2, population=2)
    for made in (
        aggregation.secure_weighted_mean(update_bound=1.0, max_examples=3),
        aggregation.dp_mean(shield, noise_key=bytes(32), secure=True),
        aggregation.dp_mean(shield, noise_key=bytes(32), secure=False),
    ):
      number = tff.TensorType(np.float32, (3,))
      process = made.update.create(number, tff.TensorType(np.float32))
      operations.check(process.next)

  def test_arithmetic_and_assertions_with_a_constant_text_pass(self):
    def body(x):
      check = tf.debugging.Assert(tf.reduce_all(x > 0), ['has to be positive'])
      with tf.control_dependencies([check]):
        noise = tf.random.stateless_normal([3], [1, 2])
        return tf.reduce_sum(tf.linalg.matvec(tf.linalg.diag(noise), tf.nn.softmax(x[:3])))

    operations.check(_mapped(body))

  def test_image_files_of_the_data_set_pass(self):
    operations.check(_mapped(lambda x: tf.reduce_sum(images.read(x, (4, 4, 3)) // 8), _FILES))

  @parameterized.named_parameters(
      ('made', lambda x: tf.io.read_file(tf.strings.substr(x[0], 0, 4))),
      ('read', lambda x: tf.io.read_file(tf.io.read_file(x[0]))),
      ('constant', lambda x: tf.map_fn(tf.io.read_file, tf.constant(['/etc/passwd']))[0]),
      ('of another function', lambda x: tf.io.read_file(
          tf.function(lambda: tf.constant('/etc/passwd'))())),
      ('chosen', lambda x: tf.io.read_file(tf.where(tf.size(x) > 3, x[0], '/etc/passwd'))),
  )
  def test_other_files_are_refused(self, read):
    with self.assertRaises(operations.OperationError):
      operations.check(_mapped(lambda x: tf.strings.length(read(x)), _FILES))

  def test_files_that_the_server_names_are_refused(self):
    @tff.tensorflow.computation(np.str_)
    def read(name):
      return tf.strings.length(tf.io.read_file(name))

    @tff.federated_computation(tff.FederatedType(np.str_, tff.SERVER))
    def total(name):
      return tff.federated_sum(tff.federated_map(read, tff.federated_broadcast(name)))

    with self.assertRaisesRegex(operations.OperationError, 'in no data set'):
      operations.check(total)

  def test_the_list_is_of_operations_that_keep_and_show_nothing(self):
    stateful = set()
    for name in operations.ALLOWED:
      definition = op_def_registry.get(name)
      self.assertIsNotNone(definition, name)
      if definition.is_stateful:
        stateful.add(name)
    self.assertContainsSubset(stateful, _STATEFUL)
    for fragment in ('Print', 'Write', 'PyFunc', 'Save', 'Debug', 'Summary', 'Send', 'Recv', 'Rpc'):
      self.assertEmpty([name for name in operations.ALLOWED if fragment in name], fragment)


if __name__ == '__main__':
  absltest.main()
