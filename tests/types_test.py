"""Tests of the shared types."""

import numpy as np
from absl.testing import absltest

from tff_noise import types


class FederationTest(absltest.TestCase):

  def test_sizes_count_the_examples_of_each_client(self):
    clients = tuple(
        types.ClientExamples(np.zeros((n, 2, 2, 1), np.uint8), np.zeros(n, np.int32), np.arange(n))
        for n in (3, 1, 2)
    )
    sizes = types.Federation(clients, num_classes=2, seed=0).sizes
    np.testing.assert_array_equal(sizes, [3, 1, 2])
    self.assertEqual(sizes.dtype, np.int64)

  def test_clients_and_federation_have_no_place_for_ground_truth(self):
    # What a method sees is these fields. A new one must be argued for here.
    self.assertEqual(types.ClientExamples._fields, ('x', 'y', 'example_id'))
    # Names are public: they are whom --arrivals names.
    self.assertEqual(
        types.Federation._fields, ('clients', 'num_classes', 'seed', 'withheld', 'client_names')
    )


class UsageErrorTest(absltest.TestCase):

  def test_is_a_value_error(self):
    # `parse_params` and library users catch ValueError.
    self.assertIsInstance(types.UsageError('x'), ValueError)


if __name__ == '__main__':
  absltest.main()
