"""The TensorFlow of this process."""

import contextlib

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest

from tests.runtimes import battery
from tff_noise.runtimes import accelerator


class AcceleratorTest(battery.Battery, absltest.TestCase):

  def setUp(self):
    super().setUp()
    stack = contextlib.ExitStack()
    self.addCleanup(stack.close)
    stack.enter_context(accelerator.runtime(2))

  def test_calls_at_the_same_time_do_not_share_variables(self):
    @tff.tensorflow.computation(np.int64)
    def count(x):
      total = tf.Variable(np.int64(0))

      @tf.function
      def run(x):
        for _ in tf.range(x):
          total.assign_add(1)
        return total.read_value()

      return run(x)

    @tff.federated_computation(tff.FederatedType(np.int64, tff.CLIENTS))
    def count_all(x):
      return tff.federated_map(count, x)

    sizes = [1000, 10, 2000, 0, 3000, 7] * 3
    self.assertEqual([int(v) for v in count_all(battery.ints(*sizes))], sizes)

  def test_says_what_computes(self):
    if not tf.config.list_physical_devices('GPU'):
      self.assertRegex(accelerator.describe_devices(), 'no GPU is seen.*requirements-gpu.txt')

  def test_returned_sequences_are_refused(self):
    @tff.tensorflow.computation(tff.SequenceType(np.int64))
    def same(data):
      return data.map(lambda x: x)

    with self.assertRaisesRegex(NotImplementedError, 'sequence'):
      same([np.int64(1)])


if __name__ == '__main__':
  absltest.main()
