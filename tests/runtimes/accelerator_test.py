"""The TensorFlow of this process."""

import contextlib
import io
import os
import re
import threading
from unittest import mock

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

  def test_on_the_way_out_only_what_has_begun_is_waited_for(self):
    begun, go, done = threading.Event(), threading.Event(), []

    def client(number):
      begun.set()
      go.wait(60)
      done.append(number)

    with self.assertRaises(KeyboardInterrupt):
      with accelerator._threads(1) as threads:
        for number in range(20):
          threads.submit(client, number)
        begun.wait()
        # The first goes on when one behind it is cancelled.
        threads.submit(client, 20).add_done_callback(lambda _: go.set())
        raise KeyboardInterrupt
    self.assertEqual(done, [0])

  def test_memory_of_a_gpu_is_taken_as_needed_unless_the_user_says_otherwise(self):
    name = 'TF_FORCE_GPU_ALLOW_GROWTH'
    for said, found in ((None, 'true'), ('false', 'false')):
      with mock.patch.dict(os.environ):
        os.environ.pop(name, None)
        os.environ.update({} if said is None else {name: said})
        with accelerator.runtime(1):
          self.assertEqual(os.environ[name], found)

  def test_float32_keeps_all_of_its_bits_until_the_runtime_closes(self):
    enabled = tf.config.experimental.tensor_float_32_execution_enabled
    self.assertFalse(enabled())
    for before in (True, False):
      tf.config.experimental.enable_tensor_float_32_execution(before)
      with accelerator.runtime(1):
        self.assertFalse(enabled())
      self.assertEqual(enabled(), before)

  def test_says_what_computes(self):
    if not tf.config.list_physical_devices('GPU'):
      self.assertRegex(accelerator.describe_devices(), 'no GPU is seen.*requirements-gpu.txt')

  def test_says_where_operations_run(self):
    @tff.tensorflow.computation(np.int64)
    def small(x):
      return x + 1

    @tff.tensorflow.computation(np.int64)
    def large(x):
      for _ in range(100):
        x = 3 * x + 1
      return x

    said = io.StringIO()
    with contextlib.redirect_stderr(said):
      self.assertEqual(small(1), 2)
      self.assertEqual(small(2), 3)
      large(1)
      self.assertEqual(small(3), 4)
    lines = re.findall(r'runtime: operations.*: (.*)', said.getvalue())
    counts = [sum(map(int, re.findall(r'(\d+) on [CG]PU:0', line))) for line in lines]
    self.assertLen(counts, 2)
    self.assertLess(counts[0], 100)
    self.assertGreaterEqual(counts[1], 200)

  def test_returned_sequences_are_refused(self):
    @tff.tensorflow.computation(tff.SequenceType(np.int64))
    def same(data):
      return data.map(lambda x: x)

    with self.assertRaisesRegex(NotImplementedError, 'sequence'):
      same([np.int64(1)])


if __name__ == '__main__':
  absltest.main()
