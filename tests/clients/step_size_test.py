"""Tests of how step sizes change over rounds."""

import math

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise import step_sizes
from tff_noise import types
from tff_noise.clients import step_size


class StepSizeTest(parameterized.TestCase):

  @parameterized.parameters(
      ('exponential:0.5', [1, 0.5, 0.25, 0.125, 0.0625]),
      ('steps:0.1:2,4', [1, 1, 0.1, 0.1, 0.01]),
      ('steps:.5:1', [1, 0.5, 0.5, 0.5, 0.5]),
      ('cosine:4', [
          1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2, (1 - math.sqrt(0.5)) / 2
      ]),
      ('cosine:1', [1, 1, 1, 1, 1]),
  )
  def test_factors_by_hand(self, text, expected):
    schedule = step_sizes.parse(text)
    factor = tf.function(lambda round_num: step_size.factor(schedule, round_num))
    found = [factor(tf.constant(t, tf.int32)) for t in range(1, 6)]
    self.assertEqual({f.dtype for f in found}, {tf.float32})
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    training = types.LocalTraining(learning_rate=0.3, schedule=schedule)
    np.testing.assert_allclose(
        step_size.of_round(training, tf.constant(3)), 0.3 * expected[2], rtol=1e-6
    )

  def test_a_constant_one_is_the_flag_itself(self):
    training = types.LocalTraining(learning_rate=0.3, schedule=step_sizes.parse('constant'))
    self.assertEqual(training, types.LocalTraining(learning_rate=0.3))
    self.assertEqual(step_size.of_round(training, tf.constant(7)), 0.3)

  @parameterized.parameters(
      '', 'linear:3', 'constant:1', 'exponential', 'exponential:', 'exponential:1',
      'exponential:0', 'exponential:nan', 'exponential:-0.5', 'exponential:0.5:3', 'steps:0.1',
      'steps:0.1:', 'steps:0.1:4,2', 'steps:0.1:2,2', 'steps:0.1:0,2', 'steps:0.1:1.5',
      'steps:2:3', 'cosine', 'cosine:0', 'cosine:-1', 'cosine:3,4', 'cosine:9999999999',
  )
  def test_what_is_no_schedule_is_a_line(self, text):
    with self.assertRaisesRegex(
        types.UsageError, '^--learning_rate_schedule must be constant, exp.*, got .*$'
    ):
      step_sizes.parse(text)


if __name__ == '__main__':
  absltest.main()
