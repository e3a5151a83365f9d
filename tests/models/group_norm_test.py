"""Tests of group_norm.py."""

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise.models import group_norm


class GroupNormTest(parameterized.TestCase):

  def test_by_hand(self):
    layer = group_norm.GroupNormalization(2, epsilon=0.0)
    # Means 2 and 5, deviations 1 and 4: [1, 3 | 1, 9].
    np.testing.assert_allclose(layer(tf.constant([[1.0, 3.0, 1.0, 9.0]])), [[-1, 1, -1, 1]])
    # Over two positions too: means 2 and 5, deviations 1 and 4.
    x = tf.constant([[[1.0, 3.0, 1.0, 9.0], [3.0, 1.0, 9.0, 1.0]]])
    np.testing.assert_allclose(
        group_norm.GroupNormalization(2, epsilon=0.0)(x), [[[-1, 1, -1, 1], [1, -1, 1, -1]]]
    )

  @parameterized.parameters(
      ((5, 8), 2), ((5, 12), 1), ((3, 7, 16), 4), ((4, 6, 5, 8), 2), ((2, 3, 3, 3, 6), 3)
  )
  def test_is_keras_s_with_its_gradients(self, shape, groups):
    draw = np.random.default_rng(len(shape))
    # Far from 0, where a variance of squares less a square would be inexact.
    x = tf.constant(draw.normal(30, 2, shape).astype(np.float32))
    upstream = draw.normal(0, 1, shape).astype(np.float32)
    weights = list(draw.normal(1, 1, (2, shape[-1])))
    found = []
    for kind in (group_norm.GroupNormalization, tf.keras.layers.GroupNormalization):
      layer = kind(groups)
      layer.build(shape)
      layer.set_weights(weights)
      with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
        loss = tf.reduce_sum(y * upstream)
      found.append([y, *tape.gradient(loss, [x, layer.gamma, layer.beta])])
    for ours, keras in zip(*found, strict=True):
      np.testing.assert_allclose(ours, keras, atol=1e-5 * np.abs(keras).max())

  @parameterized.parameters((3, 2, 4), (6, 4))
  def test_gradient_is_that_of_differences(self, *shape):
    layer = group_norm.GroupNormalization(2)
    layer.build(shape)
    draw = np.random.default_rng(0)
    layer.set_weights(list(draw.normal(1, 1, (2, 4))))
    upstream = draw.normal(0, 1, shape)
    computed, differences = tf.test.compute_gradient(
        lambda x: tf.reduce_sum(layer(x) * upstream), [draw.normal(0, 1, shape).astype('f')]
    )
    np.testing.assert_allclose(computed[0], differences[0], atol=2e-2)

  @parameterized.parameters((2, 3, 3, 4), (2, 4))
  def test_equal_values_are_0(self, *shape):
    layer = group_norm.GroupNormalization(2)
    x = tf.fill(shape, 7.0)
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = layer(x)
    np.testing.assert_array_equal(y, np.zeros_like(x))
    np.testing.assert_array_equal(tape.gradient(y, x), np.zeros_like(x))

  @parameterized.parameters((0, 3, 4), (0, 4))
  def test_an_empty_batch(self, *shape):
    layer = group_norm.GroupNormalization(2)
    x = tf.zeros(shape)
    with tf.GradientTape() as tape:
      y = tf.reduce_sum(layer(x))
    np.testing.assert_array_equal(tape.gradient(y, layer.gamma), np.zeros(4))

  @parameterized.parameters((1, 3), (1, 3, 1))
  def test_half_precision_is_computed_in_full(self, *shape):
    layer = group_norm.GroupNormalization(1, dtype='mixed_bfloat16')
    x = tf.reshape(tf.constant([256.0, 258.0, 260.0], tf.bfloat16), shape)
    y = layer(x)
    self.assertEqual(y.dtype, tf.bfloat16)
    np.testing.assert_allclose(
        tf.reshape(tf.cast(y, tf.float32), [-1]), [-1.2247, 0, 1.2247], atol=1e-2
    )

  def test_config_and_weights_are_keras_s(self):
    ours = group_norm.GroupNormalization(2, name='norm')
    keras = tf.keras.layers.GroupNormalization(2, name='norm')
    self.assertEqual(ours.get_config(), keras.get_config())
    for layer in (ours, keras):
      layer.build((None, 4))
    self.assertEqual([w.name for w in ours.weights], [w.name for w in keras.weights])

  def test_weights_have_the_layer_s_name_in_a_model_that_is_made_again(self):
    x = tf.keras.Input((4,))
    model = tf.keras.Model(x, group_norm.GroupNormalization(2, name='norm')(x))
    again = tf.keras.Model.from_config(model.get_config())
    self.assertIsInstance(again.layers[-1], group_norm.GroupNormalization)
    self.assertEqual([w.name for w in again.weights], ['norm/gamma:0', 'norm/beta:0'])


if __name__ == '__main__':
  absltest.main()
