"""Data and computations are sent once, and never mistaken for others."""

import collections
import contextlib
import io
from unittest import mock

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest

from tests.runtimes import processes
from tff_noise.runtimes import client_error
from tff_noise.runtimes import data_cache
from tff_noise.runtimes import local

_SIZE = 1000
_VALUES = tff.TensorType(np.int64, (_SIZE,))
_DATA = tff.FederatedType(
    tff.SequenceType(collections.OrderedDict(x=_VALUES, client=np.int32)), tff.CLIENTS
)
_OF_NOBODY = tff.FederatedType(tff.SequenceType(collections.OrderedDict(x=_VALUES)), tff.CLIENTS)


def _sum_of(data):
  values = data.get_single_element()['x']
  with tf.control_dependencies([tf.debugging.assert_non_negative(values)]):
    return tf.reduce_sum(values)


_sum = tff.tensorflow.computation(_sum_of, _DATA.member)
_sum_of_nobodys = tff.tensorflow.computation(_sum_of, _OF_NOBODY.member)


@tff.federated_computation(_DATA)
def _total(data):
  return tff.federated_sum(tff.federated_map(_sum, data))


@tff.federated_computation(_DATA, tff.FederatedType(np.int64, tff.SERVER))
def _total_and(data, number):
  return tff.federated_sum(tff.federated_map(_sum, data)), number


@tff.federated_computation(_OF_NOBODY)
def _total_of_nobodys(data):
  return tff.federated_sum(tff.federated_map(_sum_of_nobodys, data))


@tff.federated_computation(tff.FederatedType(_DATA.member, tff.SERVER))
def _at_server(data):
  return tff.federated_map(_sum, data)


@tff.federated_computation(
    tff.FederatedType(_DATA.member, tff.SERVER), _DATA,
    tff.FederatedType(_DATA.member, tff.CLIENTS, all_equal=True),
)
def _at_both(server, clients, same):
  return (
      tff.federated_map(_sum, server),
      tff.federated_sum(tff.federated_map(_sum, clients)),
      tff.federated_sum(tff.federated_map(_sum, same)),
  )


@tff.federated_computation(
    tff.FederatedType(_OF_NOBODY.member, tff.SERVER), _OF_NOBODY
)
def _nobodys_at_both(server, clients):
  return (
      tff.federated_map(_sum_of_nobodys, server),
      tff.federated_sum(tff.federated_map(_sum_of_nobodys, clients)),
  )


def _constant(value):
  return tff.federated_computation(lambda: tff.federated_value(value, tff.SERVER))


def _dataset(value):
  return tf.data.Dataset.from_tensors(
      collections.OrderedDict(x=np.full(_SIZE, value, np.int64), client=np.int32(0))
  )


def _nobodys(value):
  return tf.data.Dataset.from_tensors(collections.OrderedDict(x=np.full(_SIZE, value, np.int64)))


class DataCacheTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.enter_context(local.runtime(2))
    self._sent = 0
    self._computations_sent = 0
    create_value = tff.framework.RemoteExecutorGrpcStub.create_value

    def count(stub, request):
      kind = request.value.WhichOneof('value')
      self._computations_sent += kind == 'computation'
      if kind == 'federated':
        self._sent += request.value.federated.ByteSize() > 8 * _SIZE
      return create_value(stub, request)

    self.enter_context(
        mock.patch.object(tff.framework.RemoteExecutorGrpcStub, 'create_value', count)
    )

  def test_the_same_data_are_sent_once(self):
    data = [_dataset(1), _dataset(2)]
    for _ in range(3):
      self.assertEqual(_total(data), 3 * _SIZE)
    self.assertEqual(self._sent, 1)
    # Whatever computation asks for them.
    self.assertEqual(_total_and(list(data), 7), (3 * _SIZE, 7))
    self.assertEqual(self._sent, 1)

  def test_computations_are_sent_once_to_each_number_of_clients(self):
    one, two = _dataset(1), _dataset(2)
    for sent, data in ((1, [one]), (1, [two]), (2, [one, two]), (2, [two])):
      self.assertEqual(_total(data), sum(_SIZE * (1 if d is one else 2) for d in data))
      self.assertEqual(self._computations_sent, sent)
    self.assertEqual(_total_and([one], 7), (_SIZE, 7))
    self.assertEqual(self._computations_sent, 3)

  def test_data_of_the_server_are_sent_once(self):
    one, two, five = _dataset(1), _dataset(2), [_dataset(i) for i in range(5)]
    for sent, data in ((1, one), (1, one), (2, two), (2, one)):
      self.assertEqual(_at_server(data), _SIZE * (1 if data is one else 2))
      self.assertEqual(self._sent, sent)
    # Beside clients', and never in place of theirs.
    self.assertEqual(_total([one]), _SIZE)
    self.assertEqual(_at_server(one), _SIZE)
    self.assertEqual(self._sent, 3)
    for data in (*five, five[0]):
      _at_server(data)
    self.assertEqual(self._sent, 3 + 6)  # Four are kept, so that the first of five has gone.

  def test_data_of_nobody_stay_beside_those_of_changing_clients(self):
    test = [_nobodys(1), _nobodys(2)]
    for i in range(3):
      self.assertEqual(_total_of_nobodys(test), 3 * _SIZE)
      self.assertEqual(_total([_dataset(i)]), i * _SIZE)
      self.assertEqual(self._sent, 1 + i + 1)

  def test_one_data_set_at_both_places_is_two_values(self):
    one = _dataset(1)
    for _ in range(2):
      self.assertEqual(_at_both(one, [one], one), (_SIZE, _SIZE, _SIZE))
    # Those without an id may be the server's and stand in a client's place.
    nobodys = _nobodys(2)
    for _ in range(2):
      self.assertEqual(_nobodys_at_both(nobodys, [nobodys]), (2 * _SIZE, 2 * _SIZE))

  def test_a_worker_forgets_all_but_the_last_numbers_of_clients(self):
    close = data_cache.CachingExecutor.close
    closed = []
    with mock.patch.object(
        data_cache.CachingExecutor, 'close', lambda self: closed.append(self) or close(self)
    ):
      for count in (*range(1, 13), 1):
        self.assertEqual(_total([_dataset(1)] * count), count * _SIZE)
    # Ten are kept: of 13 the first two are closed, and that of 3 when there is one for 1 again.
    self.assertLen(set(closed), 3)

  def test_of_many_computations_the_first_is_sent_again(self):
    made = [_constant(i) for i in range(130)]
    for i, computation in enumerate(made):
      self.assertEqual(computation(), i)
    for sent in (131, 131):
      self.assertEqual(made[0](), 0)
      self.assertEqual(self._computations_sent, sent)

  def test_other_data_are_sent(self):
    one, two, three = _dataset(1), _dataset(2), _dataset(3)
    for sent, data, total in (
        (1, [one, two], 3), (2, [one, three], 4), (3, [three, one], 4), (4, [one], 1),
        (5, [one, two], 3), (6, [_dataset(1), two], 3), (6, [], 0),
    ):
      self.assertEqual(_total(data), total * _SIZE)
      self.assertEqual(self._sent, sent)

  def test_lists_may_change(self):
    data = [[{'x': np.full(_SIZE, 1), 'client': 0}]]
    self.assertEqual(_total(data), _SIZE)
    data[0][0] = {'x': np.full(_SIZE, 2), 'client': 0}
    self.assertEqual(_total(data), 2 * _SIZE)

  def test_after_an_error_they_are_sent_again(self):
    good, bad = _dataset(1), _dataset(-1)
    self.assertEqual(_total([good]), _SIZE)
    for _ in range(2):
      with self.assertRaises(client_error.ClientError):
        _total([bad])
    self._sent = 0
    self.assertEqual(_total([good]), _SIZE)
    self.assertEqual(self._sent, 1)

  def test_a_new_worker_gets_them_too(self):
    data = [_dataset(1), _dataset(2)]
    said = io.StringIO()
    for _ in range(2):
      self.assertEqual(_total(data), 3 * _SIZE)
      with contextlib.redirect_stderr(said):
        processes.tff_workers()[0].kill()
        self.assertEqual(_total(data), 3 * _SIZE)
    self.assertNotIn('Exception', said.getvalue())
    self.assertEqual(self._sent, 3)


if __name__ == '__main__':
  absltest.main()
