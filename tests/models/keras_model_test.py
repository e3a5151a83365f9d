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


class _Penalty(tf.keras.layers.Layer):

  def call(self, x):
    self.add_loss(tf.reduce_mean(x))
    return x


class FromKerasTest(parameterized.TestCase):

  def test_types_of_a_batch_norm_model(self):
    model = toy.linear_model('batch')
    self.assertEqual(
        str(model.weights_type),
        '<trainable=<float32[2],float32[2],float32[2,2]>,non_trainable=<float32[2],float32[2]>>',
    )
    self.assertEqual(str(model.data_type), '<x=float32[?,2],y=int32[?],client=int32>*')
    self.assertEqual((model.num_classes, model.num_features), (2, 2))

  @parameterized.product(name=['mlp', 'cnn'], norm=['group', 'batch'])
  def test_architectures_take_bytes_and_give_logits_and_features(self, name, norm):
    network = architectures.MODELS[name]((8, 8, 1), 10, norm=norm, pixel_scale=1 / 16)
    logits, features = network(np.full((3, 8, 8, 1), 16, np.uint8))
    self.assertEqual(logits.shape, (3, 10))
    self.assertEqual(features.shape, (3, 128))
    model = keras_model.from_keras(network)
    self.assertEqual((model.num_classes, model.num_features), (10, 128))
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

  def test_what_is_no_model_or_not_built_is_refused(self):
    with self.assertRaisesRegex(TypeError, 'tf.keras.Model, found NoneType'):
      keras_model.from_keras(None)
    with self.assertRaisesRegex(ValueError, 'Sequential has no tf.keras.Input'):
      keras_model.from_keras(tf.keras.Sequential([tf.keras.layers.Dense(3)]))

  def test_a_subclassed_model_is_refused(self):
    class Model(tf.keras.Model):
      pass

    with self.assertRaisesRegex(ValueError, 'functional Keras model, found a subclassed one'):
      keras_model.from_keras(Model())

  @parameterized.parameters(
      (tf.keras.layers.Dropout(0.5), 'draws random numbers of its own'),
      (tf.keras.layers.GaussianNoise(0.1), 'draws random numbers of its own'),
      (tf.keras.layers.RandomFlip(), 'draws random numbers of its own'),
      (tf.keras.layers.Dropout(0), ''),
      (tf.keras.layers.Conv2D(1, 1, bias_regularizer='l2'), 'has bias_regularizer, which would be'),
      (tf.keras.layers.ReLU(activity_regularizer='l1'), 'has activity_regularizer, which would be'),
      (_Penalty(), 'A layer calls add_loss, which would be left out'),
      (tf.keras.layers.Normalization(), 'is int64: weights that are averaged'),
      (tf.keras.layers.Normalization(mean=0.0, variance=1.0), ''),
  )
  def test_layers_that_no_federation_could_repeat_or_average_are_refused(self, layer, message):
    x = tf.keras.Input((4, 4, 1))
    features = tf.keras.layers.Flatten()(layer(x))
    network = tf.keras.Model(x, [tf.keras.layers.Dense(2)(features), features])
    if not message:
      keras_model.from_keras(network)
      return
    with self.assertRaisesRegex(ValueError, message):
      keras_model.from_keras(network)


  @parameterized.parameters(
      lambda x: tf.keras.layers.Dense(2, 'softmax')(x),
      lambda x: tf.keras.layers.Softmax()(tf.keras.layers.Dense(2)(x)),
      lambda x: tf.keras.layers.Activation('softmax')(tf.keras.layers.Dense(2)(x)),
      lambda x: tf.keras.layers.Activation('linear')(tf.keras.layers.Dense(2, 'softmax')(x)),
      lambda x: tf.cast(tf.keras.layers.Dense(2, 'sigmoid')(x), tf.float32),
      lambda x: tf.nn.softmax(tf.keras.layers.Dense(2)(x)),
  )
  def test_probabilities_in_place_of_logits_are_refused(self, head):
    x = tf.keras.Input((4,))
    with self.assertRaisesRegex(ValueError, 'makes probabilities, and logits are expected'):
      keras_model.from_keras(tf.keras.Model(x, [head(x), x]))


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


class SeveralNetworksTest(federated_test_case.FederatedTestCase):

  def setUp(self):
    super().setUp()
    self.one = keras_model.from_keras(architectures.mlp((8, 8, 1), 10, norm='batch'))

  def _initial(self, model):
    weights = keras_model.build_initial_weights(model, 3)()
    return weights.trainable, weights.non_trainable

  def _parts(self, model, copies):
    """The networks' weights, one after another."""
    for values in self._initial(model):
      length = len(values) // copies
      yield [values[i : i + length] for i in range(0, len(values), length)]

  def test_weights_are_those_of_one_network_after_another(self):
    model = keras_model.several(self.one, 3, 'first')
    for kind in ('trainable', 'non_trainable'):
      self.assertEqual(
          list(getattr(model.weights_type, kind)), 3 * list(getattr(self.one.weights_type, kind))
      )
    self.assertEqual(model.data_type, self.one.data_type)

  def test_the_first_starts_as_it_would_alone_and_the_others_do_not(self):
    (first, second, third), _ = self._parts(keras_model.several(self.one, 3, 'first'), 3)
    for found, expected in zip(first, self._initial(self.one)[0], strict=True):
      np.testing.assert_array_equal(found, expected)
    for a, b in ((first, second), (first, third), (second, third)):
      self.assertGreater(np.abs(a[0] - b[0]).max(), 0.01)
      self.assertGreater(np.abs(a[-2] - b[-2]).max(), 0.01)  # The head's kernel.

  def test_equal_ones(self):
    for parts in self._parts(keras_model.several(self.one, 2, 'first', equal=True), 2):
      for a, b in zip(*parts, strict=True):
        np.testing.assert_array_equal(a, b)

  def test_networks_in_the_order_of_their_weights_and_outputs(self):
    model = keras_model.several(toy.linear_model(), 2, 'first')
    network = keras_model.build_seeded(model, 0)
    for variable, value in zip(network.weights, (1.0, 2.0), strict=True):
      variable.assign(np.full((2, 2), value))
    (first, second), _ = keras_model.outputs_of(network(np.ones((1, 2), np.float32)))
    np.testing.assert_array_equal(first, [[2, 2]])
    np.testing.assert_array_equal(second, [[4, 4]])
    parts = keras_model.networks_of(model, network)
    self.assertEqual([p.weights[0].numpy()[0, 0] for p in parts], [1, 2])
    self.assertEqual(keras_model.networks_of(toy.linear_model(), network), [network])


class ProbeTest(federated_test_case.FederatedTestCase):

  def setUp(self):
    super().setUp()
    self.one = keras_model.from_keras(architectures.mlp((8, 8, 1), 10, norm='batch'))
    self.model = keras_model.with_probe(self.one)
    self.x = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 1), np.uint8)

  def test_starts_at_zero_beside_a_network_that_is_as_it_would_be_alone(self):
    for name in ('num_classes', 'num_features', 'data_type', 'input_shape', 'combination'):
      self.assertEqual(getattr(self.model, name), getattr(self.one, name))
    alone, both = (keras_model.build_seeded(m, 3) for m in (self.one, self.model))
    z, features = alone(self.x)
    (found, probe), of_both = keras_model.outputs_of(both(self.x))
    np.testing.assert_array_equal(found, z)
    for value in of_both:
      np.testing.assert_array_equal(value, features)
    np.testing.assert_array_equal(probe, np.zeros((5, 10)))
    np.testing.assert_array_equal(keras_model.evaluated_logits(self.model, both(self.x)), z)
    self.assertEqual(both.count_params(), alone.count_params() + (self.one.num_features + 1) * 10)

  def test_trains_nothing_but_itself(self):
    network = keras_model.build_seeded(self.model, 3)
    probe = network.get_layer(keras_model.PROBE)
    probe.kernel.assign_add(np.ones((self.one.num_features, 10), np.float32))
    with tf.GradientTape() as tape:
      loss = tf.reduce_sum(network(self.x)[2])
    gradients = tape.gradient(loss, network.trainable_variables)
    trained = [
        v.ref() for v, g in zip(network.trainable_variables, gradients, strict=True)
        if g is not None
    ]
    self.assertEqual(trained, [v.ref() for v in probe.weights])

  def test_of_a_network_of_image_files(self):
    files = toy.image_model(image_files=True)
    self.assertEqual(keras_model.with_probe(files).data_type, files.data_type)


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
