"""Tests of client data as TFF takes them."""

import numpy as np
import tree
from absl.testing import absltest

from tff_noise import types
from tff_noise.data import client_data


def _federation(num_clients):
  clients = tuple(
      types.ClientExamples(np.full((2, 1), i, np.uint8), np.array([i, i]), np.arange(2))
      for i in range(num_clients)
  )
  return types.Federation(clients, num_classes=num_clients, seed=0)


def _client(dataset):
  return int(dataset.get_single_element()['client'])


class FederationDatasetsTest(absltest.TestCase):

  def test_by_client_id(self):
    datasets = client_data.federation_datasets(_federation(3))
    self.assertLen(datasets, 3)
    self.assertEqual([_client(d) for d in datasets], [0, 1, 2])
    self.assertEqual(_client(datasets[np.int64(2)]), 2)
    self.assertEqual(_client(datasets[-1]), 2)
    self.assertEqual([_client(d) for d in datasets[1:]], [1, 2])
    with self.assertRaises(IndexError):
      datasets[3]

  def test_all_of_them_may_be_a_cohort(self):
    datasets = client_data.federation_datasets(_federation(3))
    # As TFF takes an argument apart.
    seen = tree.map_structure(lambda data: data, datasets)
    self.assertEqual([_client(d) for d in seen], [0, 1, 2])

  def test_features_are_taken_as_the_model_has_them(self):
    features = np.array([[0.5, 1.5]])
    data = client_data.client_dataset(features, np.array([1]), 0)
    self.assertEqual(data.element_spec['x'].dtype.name, 'float32')

  def test_each_example_has_a_label(self):
    with self.assertRaisesRegex(types.UsageError, 'client 4 has 3 examples and 2 labels'):
      client_data.client_dataset(np.zeros((3, 2), np.uint8), np.array([1, 0]), 4)

  def test_labels_are_numbers_of_classes(self):
    images = np.zeros((3, 2), np.uint8)
    for labels, found in (
        (np.array([0, -1, 1]), r'int64 \[3\]'),
        (np.array([0, 0.5, 1]), r'float64 \[3\]'),
        (np.array([0, np.nan, 1]), r'float64 \[3\]'),
        (np.array(['cat', 'cow', 'cat']), r'<U3 \[3\]'),
        (np.eye(3), r'float64 \[3, 3\]'),
    ):
      with self.assertRaisesRegex(types.UsageError, 'labels of client 4 .* found ' + found):
        client_data.client_dataset(images, labels, 4)
    client_data.client_dataset(images, np.array([0., 1., 2.]), 4)

  def test_data_are_the_clients_own(self):
    examples = client_data.federation_datasets(_federation(3))[1].get_single_element()
    np.testing.assert_array_equal(examples['x'], [[1], [1]])
    np.testing.assert_array_equal(examples['y'], [1, 1])

  def test_only_the_last_that_were_asked_for_are_kept(self):
    datasets = client_data.federation_datasets(_federation(1001))
    first = datasets[0]
    self.assertIs(datasets[0], first)
    for client in range(1, 1001):
      datasets[client]
    self.assertIsNot(datasets[0], first)


if __name__ == '__main__':
  absltest.main()
