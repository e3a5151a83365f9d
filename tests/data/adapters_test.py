"""Tests of data of others as a file for --dataset=npz."""

import os
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise import types
from tff_noise.data import adapters
from tff_noise.data import npz_file


class _ClientData:
  """As far as `tff.simulation.datasets.ClientData` is looked at."""

  client_ids = ('b', 'a')

  def create_tf_dataset_for_client(self, name):
    labels = {'a': [0, 1], 'b': [2, 0, 1]}[name]
    images = tf.fill([len(labels), 4, 5], np.float32(0.5))
    return tf.data.Dataset.from_tensor_slices({'pixels': images, 'label': labels})


class AdaptersTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.path = os.path.join(self.create_tempdir().full_path, 'data.npz')

  def _load(self, clients, **more):
    adapters.write_npz(self.path, clients, **more)
    return npz_file.load(self.path)

  def test_client_data(self):
    dataset = self._load(
        _ClientData(), x='pixels', y='label', test=[(np.zeros((4, 5), np.float32), 1)],
        class_names=('x', 'y', 'z'),
    )
    self.assertEqual(dataset.train_x.shape, (5, 4, 5, 1))
    self.assertEqual(int(dataset.train_x[0, 0, 0, 0]), 128)
    np.testing.assert_array_equal(dataset.train_y, [2, 0, 1, 0, 1])
    np.testing.assert_array_equal(dataset.client, [1, 1, 1, 0, 0])
    self.assertEqual(dataset.client_names, ('a', 'b'))
    self.assertEqual((dataset.test_y.tolist(), dataset.class_names), ([1], ('x', 'y', 'z')))

  @parameterized.parameters(list, lambda clients: dict(enumerate(clients)))
  def test_data_sets_of_features_in_a_list_or_by_name(self, form):
    clients = form([
        tf.data.Dataset.from_tensor_slices((np.full((3, 2), c, np.float64), [0, 1, 2]))
        for c in range(2)
    ])
    dataset = self._load(clients, test=[([0.5, 0.5], 0)])
    np.testing.assert_array_equal(dataset.train_x[:, 0], [0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(dataset.client, [0, 0, 0, 1, 1, 1])
    self.assertEqual(dataset.client_names, ())

  def test_labels_in_a_row_of_their_own(self):
    dataset = self._load([[(np.zeros(2), [c]) for c in (1, 0)] for _ in range(2)],
                         test=[(np.zeros(2), np.array([1]))])
    self.assertEqual((dataset.train_y.tolist(), dataset.test_y.tolist()), ([1, 0, 1, 0], [1]))

  def test_tensors_of_another_library(self):
    class Tensor:  # Torch's: size is a method, and what NumPy makes of it an array.
      ndim = 0

      def __init__(self, value):
        self._value = np.asarray(value)

      def size(self):
        return self._value.shape

      def __array__(self, dtype=None):
        return self._value.astype(dtype)

    dataset = self._load([[(Tensor([c, 2.5]), Tensor(c)) for c in (0, 1)]], test=[([7, 2.5], 0)])
    self.assertEqual(dataset.train_y.tolist(), [0, 1])

  def test_ids_of_client_data_are_checked_as_names_are(self):
    for ids, message in (
        (('1', 1), "found '1', 1"), (('b', 'a', 'b'), "two clients are named 'b'")
    ):
      with mock.patch.object(_ClientData, 'client_ids', ids):
        with self.assertRaisesRegex(types.UsageError, message):
          adapters.write_npz(self.path, _ClientData(), x='pixels', y='label')

  def test_clients_keep_their_names(self):
    for keys, expected in (((30, 7), ('7', '30')), (('w 9', 'w 10'), ('w 10', 'w 9'))):
      dataset = self._load(
          {key: [([float(k)], k % 2) for k in range(2)] for key in keys}, test=[([0.5], 0)]
      )
      np.testing.assert_array_equal(dataset.client, [1, 1, 0, 0])
      self.assertEqual(dataset.client_names, expected)

  def test_a_test_set_of_clients_names_as_an_array_and_whole_numbers(self):
    dataset = self._load(
        _ClientData(), x='pixels', y='label', test=_ClientData(),
        class_names=np.array(['x', 'y', 'z']),
    )
    np.testing.assert_array_equal(dataset.test_y, [2, 0, 1, 0, 1])
    self.assertEqual(dataset.class_names, ('x', 'y', 'z'))
    dataset = self._load([[([c, 2], c) for c in range(2)]], test=[([7, 2], 0)])
    np.testing.assert_array_equal(dataset.train_x, [[0, 2], [1, 2]])
    np.testing.assert_array_equal(dataset.test_x, [[7, 2]])

  def test_the_file_has_the_name_that_was_given(self):
    path = self.path.removesuffix('.npz')
    adapters.write_npz(path, [[([0.5], i % 2) for i in range(9)]])
    self.assertEqual(os.listdir(os.path.dirname(path)), ['data'])
    self.assertEqual(npz_file.load(path).num_classes, 2)

  def test_a_file_that_was_there_stays_where_the_new_one_is_none(self):
    adapters.write_npz(self.path, [[([0.5], i % 2) for i in range(9)]])
    with self.assertRaises(types.UsageError):
      adapters.write_npz(self.path, [[([0.5], 1) for _ in range(9)]])
    self.assertEqual(npz_file.load(self.path).num_classes, 2)

  def test_a_folder_that_is_not_there(self):
    self.path = os.path.join(self.path, 'data.npz')
    with self.assertRaisesRegex(types.UsageError, 'cannot be written to'):
      self._load(_ClientData(), x='pixels', y='label')

  def test_mistakes_say_what_was_found(self):
    image = np.zeros((2, 2), np.uint8)
    for clients, message in (
        ([[{'image': image, 'label': 0}]], "'x' and 'y' .* found image, label"),
        ([()], 'client 0 has no examples: leave out'),
        ([[(image, 1.7)]], 'a label must be an integer from 0 to 2147483647, found 1.7'),
        ([[(image, np.inf)]], 'a label must be an integer from 0 to 2147483647, found inf'),
        ([[(np.stack([image, image]), [0, 1])]], r'has 2 labels. Give dataset.unbatch\(\) if'),
        ([[(image[np.newaxis], [0])]], r'shape .1, 2, 2. .* is a batch of one: give dataset.unb'),
        ([[(np.zeros((1, 16)), np.zeros(1, int))]], r'shape .1, 16. with a label of shape .1. is'),
        ([[(image, 'cat')]], "a label must be an integer from 0 to 2147483647, found 'cat'"),
        ([[(image, 2**63)]], 'an integer from 0 to 2147483647, found 9223372036854775808'),
        ([[(image, -1)]], 'a label must be an integer from 0 to 2147483647, found -1'),
        ([['x', 'y']], r"found 'x'; of a table, give zip\(features, labels\)"),
        ([['x1', 'id']], r"found 'x1'; of a table, give zip\(features, labels\)"),
        ([[{0: image, 1: 0}]], "'x' and 'y' .* found 0, 1"),
        (None, 'clients must be a ClientData, or a list .* found NoneType'),
        ([None], 'clients must be a list with the examples of each, found NoneType'),
        ([[(image, 0), (image[:1], 1)]], 'one shape'),
        ([[(np.full((2, 2), 7.0), 0)]], r'floats in .0, 1.'),
        ([], 'there are no examples'),
        ([[(image, 0)], []], 'client 1 has no examples: leave out'),
        ({'ward': [(image, 0)], 'b': []}, 'client b has no examples: leave out'),
        ({'ward': [(image, 0)], 1: [(image, 1)]}, "texts, or all by integers .* found 'ward', 1: "),
        ({True: [(image, 0)], False: [(image, 1)]}, 'texts, or all by integers .* found True, Fa'),
        ({2**64: [(image, 0)], 1: [(image, 1)]}, 'texts, or all by integers of 64 bits, found'),
        ({'a': [(image, 0)], 'a\0': [(image, 1)]}, r"integers .* found 'a', 'a.x00': give other"),
        ({'a\ud800': [([0.5], i % 2) for i in range(9)]}, 'is no text that UTF-8 has: give client'),
        ([(image, 0), (image, 1)], r'found an example in their place: of one client, give \[ex'),
        ([[([[1.0, 2.0], [3.0]], 0)]], 'an array of numbers, found rows of other lengths'),
        (tf.data.Dataset.range(3), r'found _RangeDataset: of one client, give \[examples\]'),
        ([[({'a': 1.0}, 0)]], 'an array of numbers, found dict: give'),
        ([[(None, 0)]], 'an array of numbers, found NoneType'),
        ([[('a text', 0)]], 'an array of numbers, found str'),
        ([[(0.5, 0), (0.25, 1)]], r'a single number .* of shape \[1\]'),
        ([[(np.full((2, 2), np.nan), 0)]], r'floats in .0, 1.'),
        # What the file's reader says, of the file that was asked for.
        ([[([0.5], 1 + i % 3) for i in range(9)]], f'^{self.path}: no example of x has label 0, '),
        ([[([np.nan], i % 3) for i in range(9)]], f'^{self.path}: x has features that are not fin'),
        ([[([1e300], i % 3) for i in range(9)]], f'^{self.path}: x has features that are not fin'),
    ):
      with self.assertRaisesRegex(types.UsageError, message):
        adapters.write_npz(self.path, clients)
      self.assertFalse(os.path.exists(self.path))

  def test_what_is_no_path_and_what_are_no_names_is_told_before_examples_are_read(self):
    for path in (3, None, '', b'', 'a\0b'):
      with self.assertRaisesRegex(types.UsageError, 'path must be that of a file, found'):
        adapters.write_npz(path, None)
    for names in (
        5, 'ab', {'a': 1}, [b'a', b'b'], [None, 'b'], np.array([['a', 'b']]), np.array('a'),
    ):
      with self.assertRaisesRegex(types.UsageError, 'class_names must be a list of texts, found'):
        adapters.write_npz(self.path, None, class_names=names)

  def test_a_path_of_bytes(self):
    images = [(np.full((2, 2), i, np.uint8), i % 2) for i in range(9)]
    adapters.write_npz(os.fsencode(self.path), [images])
    self.assertTrue(os.path.exists(self.path))


if __name__ == '__main__':
  absltest.main()
