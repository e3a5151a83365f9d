"""Tests of trained models for others: they say what the run's models say, without this package."""

import os
import subprocess
import sys
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tff_noise import types
from tff_noise.models import architectures
from tff_noise.models import keras_model
from tff_noise.models import portable

_LOADER = """
import sys
import numpy as np, tensorflow as tf
pixels = np.load(sys.argv[1])
keras, saved = tf.keras.models.load_model(sys.argv[2]), tf.saved_model.load(sys.argv[3])
np.save(sys.argv[4], np.stack([keras(pixels), saved.serve(pixels)]))
assert not any(name.startswith('tff_noise') for name in sys.modules)
"""


def _pixels(count=5, shape=(8, 8, 1)):
  return np.random.default_rng(0).integers(0, 256, (count, *shape)).astype(np.uint8)


def _trained(model):
  """With weights drawn here, moving variances positive."""
  draw = np.random.default_rng(1)
  initial = keras_model.build_initial_weights(model, 0)()
  changed = [
      [w + np.abs(draw.normal(0, 0.3, w.shape)).astype(np.float32) for w in part]
      for part in (initial.trainable, initial.non_trainable)
  ]
  return portable.Trained(model.config, model.combination, model.draws, *changed)


def _expected(model, trained, pixels):
  """float32 `[b, K]`, by the network itself, as runs evaluate it."""
  network = keras_model.build_zeros(model)
  for variables, values in (
      (network.trainable_variables, trained.trainable),
      (network.non_trainable_variables, trained.non_trainable),
  ):
    for variable, value in zip(variables, values, strict=True):
      variable.assign(value)
  logits = keras_model.evaluated_logits(model, network(pixels, training=False))
  return tf.nn.softmax(logits).numpy()


@tf.keras.saving.register_keras_serializable(package='portable_test')
class _Doubled(tf.keras.layers.Layer):

  def call(self, x):
    return 2 * x


@tf.keras.saving.register_keras_serializable(package='portable_test')
def _softened(x):
  return x / 2


@tf.keras.saving.register_keras_serializable(package='portable_test')
class _Halves(tf.keras.initializers.Initializer):

  def __call__(self, shape, dtype=None, **kwargs):
    return tf.fill(shape, tf.constant(0.5, dtype or tf.float32))


class PortableTest(federated_test_case.FederatedTestCase):

  @parameterized.parameters(('mlp', 'group'), ('cnn', 'batch'), ('vit_tiny', 'group'))
  def test_says_what_the_network_says(self, name, norm):
    network = architectures.MODELS[name]((8, 8, 1), 4, norm=norm, pixel_scale=1 / 255)
    model = keras_model.from_keras(network)
    trained = _trained(model)
    built = portable.build(trained)
    np.testing.assert_allclose(
        built(_pixels()), _expected(model, trained, _pixels()), rtol=1e-4, atol=1e-5
    )
    self.assertEqual(portable.is_stock(built), name != 'vit_tiny')

  @parameterized.parameters(*keras_model.COMBINATIONS)
  def test_several_networks_are_combined_as_they_are_evaluated(self, combination):
    one = keras_model.from_keras(architectures.mlp((8, 8, 1), 4))
    model = keras_model.several(one, 2, combination)
    trained = _trained(model)
    found = portable.build(trained)(_pixels())
    np.testing.assert_allclose(
        found, _expected(model, trained, _pixels()), rtol=1e-4, atol=1e-6
    )

  def test_a_linear_head_beside_a_network_is_left_out(self):
    one = keras_model.from_keras(architectures.mlp((8, 8, 1), 4))
    model = keras_model.with_probe(one)
    trained = _trained(model)
    built = portable.build(trained)
    np.testing.assert_allclose(
        built(_pixels()), _expected(model, trained, _pixels()), rtol=1e-4, atol=1e-6
    )
    self.assertLen(built.weights, len(trained.trainable) - 2)
    self.assertTrue(portable.is_stock(built))

  def test_a_layer_of_the_users_own_is_found_and_no_stock(self):
    raw = tf.keras.Input((8, 8, 1), dtype=tf.uint8)
    x = _Doubled()(tf.keras.layers.Flatten()(tf.keras.layers.Rescaling(1 / 255)(raw)))
    network = tf.keras.Model(raw, [tf.keras.layers.Dense(4)(x), x])
    model = keras_model.from_keras(network)
    trained = _trained(model)
    self.assertTrue(portable.has_own_parts(trained))
    built = portable.build(trained)
    self.assertFalse(portable.is_stock(built))
    np.testing.assert_allclose(
        built(_pixels()), _expected(model, trained, _pixels()), rtol=1e-4, atol=1e-5
    )
    registered = tf.keras.saving.get_custom_objects()
    with mock.patch.dict(registered, clear=True):
      with self.assertRaisesRegex(types.UsageError, 'of your own that are not registered'):
        portable.build(trained)

  def test_functions_of_the_users_own_are_parts_and_initialisers_are_not(self):
    def has_own(**dense):
      raw = tf.keras.Input((8, 8, 1), dtype=tf.uint8)
      x = tf.keras.layers.Flatten()(tf.keras.layers.Rescaling(1 / 255)(raw))
      x = tf.keras.layers.Dense(4, **dense)(x)
      network = tf.keras.Model(raw, [tf.keras.layers.Dense(4)(x), x])
      return portable.has_own_parts(_trained(keras_model.from_keras(network)))

    self.assertTrue(has_own(activation=_softened))
    self.assertFalse(has_own(activation='relu'))
    self.assertFalse(has_own(kernel_initializer=_Halves()))
    for name in ('vit_tiny', 'cnn'):
      stock = keras_model.from_keras(architectures.MODELS[name]((8, 8, 1), 4))
      self.assertFalse(portable.has_own_parts(_trained(stock)), name)

  def test_loads_where_this_package_is_not(self):
    model = keras_model.from_keras(architectures.mlp((8, 8, 1), 4))
    trained, folder = _trained(model), self.create_tempdir().full_path
    built = portable.build(trained)
    paths = [os.path.join(folder, name) for name in ('x.npy', 'a.keras', 'saved', 'found.npy')]
    np.save(paths[0], _pixels())
    built.save(paths[1])
    built.export(paths[2])
    environment = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
    outside = [p for p in sys.path if p and not os.path.isdir(os.path.join(p, 'tff_noise'))]
    environment['PYTHONPATH'] = os.pathsep.join(outside)
    subprocess.run(
        [sys.executable, '-c', _LOADER, *paths], env=environment, cwd=folder, check=True
    )
    for found in np.load(paths[3]):
      np.testing.assert_allclose(
          found, _expected(model, trained, _pixels()), rtol=1e-4, atol=1e-6
      )


if __name__ == '__main__':
  absltest.main()
