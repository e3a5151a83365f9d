"""Values become the messages that TFF makes of them."""

import asyncio
import collections
import sys
from unittest import mock

import ml_dtypes
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized
from tensorflow_federated.proto.v0 import executor_pb2
from tensorflow_federated.python.core.impl.executors import value_serialization

from tff_noise.runtimes import messages

_MATRIX = tff.TensorType(np.float32, (2, 3))
_WEIGHTS = tff.StructType([
    ('trainable', [_MATRIX, tff.TensorType(np.float32, (3,))]), ('non_trainable', [])
])
_STATE = tff.StructType([
    ('weights', _WEIGHTS), ('round', np.int32), (None, tff.TensorType(np.int64, (2,)))
])


def _matrix(first):
  return np.arange(first, first + 6, dtype=np.float32).reshape(2, 3)


def _weights(first):
  trainable = [_matrix(first), np.ones(3, np.float32)]
  return collections.OrderedDict(trainable=trainable, non_trainable=[])


def _state(first):
  return tff.structure.Struct(
      [('weights', _weights(first)), ('round', np.int32(7)), (None, np.array([1, -2]))]
  )


def _written(value, type_signature):
  message = executor_pb2.Value()
  messages.write(message, value, type_signature)
  return message


class WriteTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('matrix', _matrix(0), _MATRIX),
      ('columns_first', np.asfortranarray(_matrix(0)), _MATRIX),
      ('every_other', np.arange(6, dtype=np.int64)[::2], tff.TensorType(np.int64, (3,))),
      ('other_byte_order', _matrix(0).astype('>f4'), _MATRIX),
      ('masked', np.ma.MaskedArray(_matrix(0), _matrix(0) > 2), _MATRIX),
      ('short_floats', _matrix(0).astype(ml_dtypes.bfloat16),
       tff.TensorType(ml_dtypes.bfloat16, (2, 3))),
      ('no_rows', np.zeros((0, 3), np.float32), tff.TensorType(np.float32, (0, 3))),
      ('any_number', np.zeros((4, 3), np.float32), tff.TensorType(np.float32, (None, 3))),
      ('other_width', np.arange(3, dtype=np.int32), tff.TensorType(np.int64, (3,))),
      ('booleans', np.array([True, False]), tff.TensorType(np.bool_, (2,))),
      ('scalar', np.float32(1.5), tff.TensorType(np.float32)),
      ('python_number', 3, tff.TensorType(np.int32)),
      ('list', [1, 2, 3], tff.TensorType(np.int32, (3,))),
      ('text', 'abc', tff.TensorType(np.str_)),
      ('texts', np.array([b'a', b'bc'], object), tff.TensorType(np.str_, (2,))),
      ('nothing', (), tff.StructType([])),
      ('state', _state(0), _STATE),
      ('at_server', _state(0), tff.FederatedType(_STATE, tff.SERVER)),
      ('at_clients', [_state(0), _state(9)], tff.FederatedType(_STATE, tff.CLIENTS)),
      ('same_at_clients', _state(0), tff.FederatedType(_STATE, tff.CLIENTS, all_equal=True)),
      ('at_no_client', [], tff.FederatedType(_STATE, tff.CLIENTS)),
      ('parts_placed', [_matrix(0), [_matrix(1), _matrix(2)]], tff.StructType([
          tff.FederatedType(_MATRIX, tff.SERVER), tff.FederatedType(_MATRIX, tff.CLIENTS)
      ])),
  )
  def test_as_tff_does(self, value, type_signature):
    expected, _ = value_serialization.serialize_value(value, type_signature)
    self.assertEqual(_written(value, type_signature), expected)

  def test_data_stay_as_they_are(self):
    data = [tf.data.Dataset.range(3), tf.data.Dataset.range(5)]
    at_clients = tff.FederatedType(tff.SequenceType(np.int64), tff.CLIENTS)
    # Twice the same data set are not the same bytes, by TFF's own function either.
    found, _ = value_serialization.deserialize_value(_written(data, at_clients), at_clients)
    self.assertEqual(
        [list(part.as_numpy_iterator()) for part in found], [[0, 1, 2], [0, 1, 2, 3, 4]]
    )

  @parameterized.named_parameters(
      ('shape', np.zeros((3, 2), np.float32), _MATRIX),
      ('kind', np.zeros((2, 3), np.int32), _MATRIX),
      ('too_wide', np.zeros((2, 3)), _MATRIX),
      ('too_few', [_matrix(0)], tff.StructType([_MATRIX, _MATRIX])),
      ('within', [_state(0), [_weights(0), np.int32(7), np.array([1.5, 2])]],
       tff.FederatedType(_STATE, tff.CLIENTS)),
  )
  def test_refuses_what_tff_refuses(self, value, type_signature):
    with self.assertRaises(TypeError):
      value_serialization.serialize_value(value, type_signature)
    with self.assertRaises(TypeError):
      _written(value, type_signature)

  def test_clients_values_may_be_in_any_sequence(self):
    at_clients = tff.FederatedType(_MATRIX, tff.CLIENTS)
    values = (_matrix(0), _matrix(1))
    self.assertEqual(_written(values, at_clients), _written(list(values), at_clients))


class _Worker:
  """Notes what it is asked to forget, until it is gone."""

  def __init__(self):
    self.forgotten, self.made, self.gone = [], 0, False

  def get_executor(self, request):
    del request  # Unused.
    return executor_pb2.GetExecutorResponse(executor=executor_pb2.ExecutorId(id='e'))

  def create_value(self, request):
    del request  # Unused.
    self.made += 1
    return executor_pb2.CreateValueResponse(value_ref=executor_pb2.ValueRef(id=str(self.made)))

  def dispose(self, request):
    if self.gone:
      raise ValueError('Cannot invoke RPC on closed channel!')
    self.forgotten += [ref.id for ref in request.value_ref]

  def dispose_executor(self, request):
    self.forgotten.append(request.executor.id)


class WritingExecutorTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self._worker = _Worker()
    self._executor = messages.WritingExecutor(self._worker)
    self._executor.set_cardinalities({tff.CLIENTS: 2})

  def _value(self):
    return asyncio.run(self._executor.create_value(_weights(0), _WEIGHTS))

  def test_what_nobody_holds_is_forgotten_before_the_executor(self):
    held = self._value()
    self._value()
    self._value()
    self._executor.close()
    self.assertEqual(self._worker.forgotten, ['2', '3', 'e'])
    del held  # Of an executor that is closed, but may be there for others.
    self.assertEqual(self._worker.forgotten, ['2', '3', 'e', '1'])

  def test_what_is_made_while_the_executor_is_closed_is_forgotten_too(self):
    create = self._worker.create_value

    def closes_meanwhile(request):
      self._executor.close()
      return create(request)

    self._worker.create_value = closes_meanwhile
    self._value()
    self.assertEqual(self._worker.forgotten, ['e', '1'])

  def test_a_worker_that_is_gone_has_nothing_to_forget(self):
    self._worker.gone = True
    said = self.enter_context(mock.patch.object(sys, 'unraisablehook'))
    for _ in range(25):  # More than are forgotten at a time.
      self._value()
    self._executor.close()
    self.assertEqual(self._worker.forgotten, ['e'])
    said.assert_not_called()


if __name__ == '__main__':
  absltest.main()
