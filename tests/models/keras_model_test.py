"""Tests of the path from Keras to TFF."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tff_noise.models import architectures
from tff_noise.models import keras_model
from tff_noise.program import run_config


class FromKerasTest(parameterized.TestCase):

  def test_types_of_a_batch_norm_model(self):
    model = toy.linear_model('batch')
    self.assertEqual(
        str(model.weights_type),
        '<trainable=<float32[2],float32[2],float32[2,2]>,non_trainable=<float32[2],float32[2]>>',
    )
    self.assertEqual(str(model.data_type), '<x=float32[?,2],y=int32[?],client=int32>*')
    self.assertEqual(model.num_classes, 2)

  @parameterized.product(name=['mlp', 'cnn'], norm=['group', 'batch'])
  def test_architectures_take_bytes_and_give_logits_and_features(self, name, norm):
    network = architectures.MODELS[name]((8, 8, 1), 10, norm=norm, pixel_scale=1 / 16)
    logits, features = network(np.full((3, 8, 8, 1), 16, np.uint8))
    self.assertEqual(logits.shape, (3, 10))
    self.assertEqual(features.shape, (3, 128))
    model = keras_model.from_keras(network)
    self.assertEqual(len(model.weights_type.non_trainable) > 0, norm == 'batch')

  def test_command_line_knows_every_architecture(self):
    # It lists them without loading TensorFlow.
    self.assertEqual(tuple(architectures.MODELS), run_config.MODELS)

  def test_pixels_are_scaled_inside_the_model(self):
    network = architectures.mlp((2, 2, 1), 2, pixel_scale=1 / 16)
    inner = tf.keras.Model(network.input, network.get_layer('scale').output)
    pixels = np.array([0, 4, 8, 16], np.uint8).reshape(1, 2, 2, 1)
    np.testing.assert_allclose(inner(pixels).numpy().ravel(), [0, 0.25, 0.5, 1])

  def test_one_output_is_refused(self):
    x = tf.keras.Input((2,))
    network = tf.keras.Model(x, tf.keras.layers.Dense(2)(x))
    with self.assertRaisesRegex(ValueError, r'outputs \[logits, features\].*1 outputs'):
      keras_model.from_keras(network)

  def test_logits_of_wrong_rank_are_refused(self):
    x = tf.keras.Input((2, 2))
    network = tf.keras.Model(x, [x, x])
    with self.assertRaisesRegex(ValueError, r'Expected logits \[b, K\]'):
      keras_model.from_keras(network)


class InitialWeightsTest(federated_test_case.FederatedTestCase):

  def test_function_of_the_seed_and_the_architecture_alone(self):
    def weights(seed):
      # Built anew each time: Keras counts up layer names it chose itself.
      x = tf.keras.Input((4,))
      hidden = tf.keras.layers.Dense(3)(x)
      network = tf.keras.Model(x, [tf.keras.layers.Dense(2)(hidden), hidden])
      model = keras_model.from_keras(network)
      return keras_model.build_initial_weights(model, seed)().trainable

    first, again, other = weights(1), weights(1), weights(2)
    np.testing.assert_array_equal(first[0], again[0])
    np.testing.assert_array_equal(first[2], again[2])
    self.assertGreater(np.abs(first[0] - other[0]).max(), 0.01)
    self.assertGreater(np.abs(first[2] - other[2]).max(), 0.01)

  def test_layers_of_one_shape_start_differently(self):
    model = keras_model.from_keras(architectures.mlp((8, 8, 2), 128))
    kernels = [
        w for w in keras_model.build_initial_weights(model, 0)().trainable if w.shape == (128, 128)
    ]
    self.assertLen(kernels, 3)
    self.assertGreater(np.abs(kernels[0] - kernels[1]).max(), 0.01)

  def test_constant_initialisers_are_kept(self):
    model = keras_model.from_keras(architectures.mlp((8, 8, 1), 10, norm='batch'))
    weights = keras_model.build_initial_weights(model, 0)()
    # gamma of the first norm, and its moving variance.
    np.testing.assert_array_equal(weights.trainable[2], np.ones(128))
    np.testing.assert_array_equal(weights.non_trainable[1], np.ones(128))


class ZerosAndAssignTest(federated_test_case.FederatedTestCase):

  def test_assigned_weights_are_read_back(self):
    model = toy.linear_model('batch')

    @tff.tensorflow.computation(model.weights_type)
    def round_trip(weights):
      network = keras_model.build_zeros(model)

      @tf.function
      def run(weights):
        keras_model.assign(network, weights)
        return keras_model.read(network)

      return run(weights)

    weights = tff.learning.models.ModelWeights(
        [np.full(2, 2, np.float32), np.full(2, 3, np.float32), np.full((2, 2), 4, np.float32)],
        [np.full(2, 5, np.float32), np.full(2, 6, np.float32)],
    )
    result = round_trip(weights)
    for expected, found in zip(
        weights.trainable + weights.non_trainable,
        result.trainable + result.non_trainable,
        strict=True,
    ):
      np.testing.assert_array_equal(expected, found)


if __name__ == '__main__':
  absltest.main()
