"""What holds in every runtime."""

import collections
from unittest import mock

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_noise.runtimes import client_error
from tff_noise.runtimes import connection

_INT = tff.FederatedType(np.int64, tff.CLIENTS)


def ints(*values):
  """Values of clients."""
  return [np.int64(v) for v in values]


@tff.tensorflow.computation(np.int64)
def double(x):
  return 2 * x


@tff.tensorflow.computation(np.int64, np.int64)
def add(x, y):
  return x + y


def _left_by_others(wrap):
  """Each client leaves its value in a variable with a name, and says whether that was there."""

  def leave(x):
    variable = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], container='', shared_name='left')
    found = tf.cast(tf.raw_ops.VarIsInitializedOp(resource=variable), tf.int32)
    with tf.control_dependencies([found]):
      left = tf.raw_ops.AssignVariableOp(resource=variable, value=x)
    # Functions order what they do by themselves.
    with tf.control_dependencies([] if left is None else [left]):
      return tf.identity(found)

  at_client = tff.tensorflow.computation(lambda x: wrap(leave)(x), np.float32)

  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def at_all(x):
    return tff.federated_map(at_client, x)

  return at_all


class Battery:
  """Tests for a test case whose computations run in some runtime."""

  def test_secure_sum(self):
    @tff.federated_computation(_INT)
    def total(x):
      return tff.federated_secure_sum_bitwidth(x, 8)

    self.assertEqual(total(ints(*range(10))), 45)

  def test_sum_wherever_the_clients_argument_stands(self):
    server = tff.FederatedType(np.int64, tff.SERVER)

    @tff.tensorflow.computation(np.int64, np.int64)
    def product(x, y):
      return x * y

    @tff.federated_computation(_INT, server)
    def first(x, s):
      return tff.federated_sum(tff.federated_map(product, (x, tff.federated_broadcast(s))))

    @tff.federated_computation(server, _INT)
    def last(s, x):
      return tff.federated_sum(tff.federated_map(product, (x, tff.federated_broadcast(s))))

    @tff.federated_computation(_INT, server, _INT)
    def around(x, s, y):
      return tff.federated_sum(
          tff.federated_map(add, (x, y))
      ), tff.federated_sum(tff.federated_map(product, (x, tff.federated_broadcast(s))))

    values = ints(1, 2, 3, 4)
    self.assertEqual(first(values, 2), 20)
    self.assertEqual(last(2, values), 20)
    self.assertEqual(tuple(around(values, 2, ints(10, 20, 30, 40))), (110, 20))

  def test_clients_results_come_back_in_order(self):
    @tff.federated_computation(_INT, _INT)
    def doubled(x, y):
      return tff.federated_map(double, y), tff.federated_map(double, x)

    first, second = doubled(ints(*range(20)), ints(*range(20, 40)))
    self.assertEqual([int(v) for v in first], list(range(40, 80, 2)))
    self.assertEqual([int(v) for v in second], list(range(0, 40, 2)))

  def test_no_client_reads_what_another_left_under_a_name(self):
    for wrap in (lambda leave: leave, tf.function):
      found = _left_by_others(wrap)
      for _ in range(2):
        self.assertEqual([int(v) for v in found([np.float32(i) for i in range(6)])], [0] * 6)

  def test_a_sum_may_depend_on_another(self):
    @tff.federated_computation(_INT)
    def shifted(x):
      total = tff.federated_broadcast(tff.federated_sum(x))
      return tff.federated_sum(tff.federated_map(add, (x, total)))

    self.assertEqual(shifted(ints(1, 2, 3)), 6 + 3 * 6)

  def test_no_client_and_fewer_clients_than_workers(self):
    @tff.federated_computation(_INT)
    def total(x):
      return tff.federated_sum(tff.federated_map(double, x))

    self.assertEqual(total([]), 0)
    self.assertEqual(total(ints(3)), 6)

  def test_values_without_clients(self):
    @tff.federated_computation(tff.FederatedType(np.int64, tff.SERVER))
    def at_server(x):
      return tff.federated_map(double, x), tff.federated_value(np.int64(7), tff.SERVER)

    self.assertEqual(double(4), 8)
    self.assertEqual(tuple(at_server(3)), (6, 7))

  def test_the_same_value_for_all_clients(self):
    @tff.federated_computation(tff.FederatedType(np.int64, tff.CLIENTS, all_equal=True), _INT)
    def both(same, x):
      seven = tff.federated_value(np.int64(7), tff.CLIENTS)
      return tff.federated_sum(
          tff.federated_map(add, (tff.federated_map(add, (same, x)), seven))
      ), seven

    total, seven = both(100, ints(1, 2, 3))
    self.assertEqual(total, 306 + 21)
    self.assertEqual(seven, 7)

  def test_structures_data_sets_and_strings(self):
    element = tff.to_type(
        collections.OrderedDict(x=tff.TensorType(np.float32, (None, 2)), name=np.str_)
    )

    @tff.tensorflow.computation(tff.SequenceType(element))
    def read(data):
      first = data.get_single_element()
      return collections.OrderedDict(
          rows=tf.shape(first['x'])[0], total=tf.reduce_sum(first['x']), name=first['name']
      )

    @tff.federated_computation(tff.FederatedType(tff.SequenceType(element), tff.CLIENTS))
    def read_all(data):
      return tff.federated_map(read, data)

    datasets = [
        tf.data.Dataset.from_tensors(
            collections.OrderedDict(x=np.full((n, 2), n, np.float32), name=f'client {n}')
        )
        for n in (1, 2, 3, 4)
    ]
    found = read_all(datasets)
    self.assertEqual([int(f['rows']) for f in found], [1, 2, 3, 4])
    self.assertEqual([float(f['total']) for f in found], [2.0, 8.0, 18.0, 32.0])
    self.assertEqual(
        [f['name'].decode() if isinstance(f['name'], bytes) else str(f['name']) for f in found],
        [f'client {n}' for n in (1, 2, 3, 4)],
    )

  def test_the_client_that_fails_is_named_and_the_runtime_stays_usable(self):
    kinds = 'INTERNAL|INVALID_ARGUMENT'
    with self.assertRaisesRegex(client_error.ClientError, f'client 3 .*: ({kinds}) ') as caught:
      picky_total(0, ints(1, 2, 3, 9, 4))
    self.assertEqual(caught.exception.position, 3)
    self.assertNotIn('\n', str(caught.exception))
    self.assertEqual(picky_total(0, ints(1, 2, 3))[0], 6)

  def test_an_error_does_not_say_what_a_client_holds(self):
    secret = 987654
    with self.assertRaises(client_error.ClientError) as caught:
      picky_total(0, ints(1, secret))
    self.assertNotRegex(_all_of(caught.exception), f'{secret}|more than I take')

  def test_an_error_on_what_clients_sent_does_not_say_it_either(self):
    @tff.federated_computation(_INT)
    def picky_server(x):
      return tff.federated_map(picky, tff.federated_sum(tff.federated_map(double, x)))

    with self.assertRaises(client_error.ClientError) as caught:
      picky_server(ints(1, 493827))
    self.assertIsNone(caught.exception.position)
    self.assertNotRegex(_all_of(caught.exception), '987656|more than I take')

  def test_explaining_an_error_releases_nothing(self):
    # Who fails is looked for by running clients alone: a sum over one would be that client's value.
    invoke, ran = connection.OnceContext.invoke, []

    def watch(context, computation, argument):
      ran.append(computation.type_signature.result)
      return invoke(context, computation, argument)

    with mock.patch.object(connection.OnceContext, 'invoke', watch):
      with self.assertRaises(client_error.ClientError):
        picky_total(0, ints(1, 2, 3, 9, 4))
    self.assertIs(ran[0], picky_total.type_signature.result)
    for result in ran[1:]:
      self.assertEqual(str(result), '<{bool}@CLIENTS>')


@tff.tensorflow.computation(np.int64)
def picky(x):
  with tf.control_dependencies([tf.debugging.assert_less(x, np.int64(7), 'more than I take')]):
    return tf.identity(x)


@tff.federated_computation(tff.FederatedType(np.int64, tff.SERVER), _INT)
def picky_total(s, x):
  return tff.federated_sum(tff.federated_map(picky, x)), s


def _all_of(error):
  """Everything that can be read of an error, with those that it was raised from."""
  said = []
  while error is not None:
    said += [repr(error), str(error), str(vars(error))]
    error = error.__cause__ or error.__context__
  return ' '.join(said)
