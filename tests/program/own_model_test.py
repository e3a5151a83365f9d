"""Tests of the code of models that have layers of the user's own."""

import errno
import os
import sys
from unittest import mock

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest

from tff_noise import params
from tff_noise import types
from tff_noise.algorithms import algorithm
from tff_noise.models import keras_model
from tff_noise.models import portable
from tff_noise.program import exported
from tff_noise.program import flags
from tff_noise.program import inputs
from tff_noise.program import model_files
from tff_noise.program import own_model
from tff_noise.program import run_directory
from tff_noise.program import trained_models

# Registered when the function is called: its module loads no TensorFlow.
_CODE = '''
def network(input_shape, num_classes, *, norm, pixel_scale, pixel_offset, image_size):
  import tensorflow as tf

  @tf.keras.saving.register_keras_serializable(package='own_model_test')
  class Doubled(tf.keras.layers.Layer):
    def call(self, x):
      return 2 * x

  raw = tf.keras.Input(input_shape, dtype=tf.uint8)
  x = tf.keras.layers.Flatten()(tf.keras.layers.Rescaling(pixel_scale)(raw))
  return tf.keras.Model(raw, [tf.keras.layers.Dense(num_classes)(Doubled(name='mine')(x)), x])
'''


class OwnModelTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = self.create_tempdir()
    self.code = self.folder.create_file('code_of_own_model_test.py', content=_CODE)
    self.enter_context(mock.patch.object(sys, 'path', [self.folder.full_path, *sys.path]))
    self.enter_context(mock.patch.dict(sys.modules))
    place = 'code_of_own_model_test:network'
    config = flags.config_from(flags.parse(['train', f'--model={place}']))
    self.run_ = run_directory.RunDirectory(self.create_tempdir().full_path)
    content = {
        'flags': config.identity(), 'class_names': ['a', 'b'], 'inputs': inputs.of_files(config),
    }
    run_directory.write_json(self.run_.file('config.json'), content)
    network = params.named(place, 'model')(
        (2, 2, 1), 2, norm='group', pixel_scale=1.0, pixel_offset=0.0, image_size=0
    )
    self.model = model = keras_model.from_keras(network)
    weights = [variable.numpy() for variable in network.trainable_variables]
    self.trained = portable.Trained(model.config, model.combination, model.draws, weights, [])
    self.enter_context(mock.patch.dict(tf.keras.saving.get_custom_objects(), clear=True))

  def test_layers_that_a_function_registers_are_there_once_it_was_called(self):
    with self.assertRaisesRegex(types.UsageError, 'that are not registered with Keras'):
      portable.build(self.trained)
    own_model.load_code(self.run_, [self.trained])
    self.assertEqual(portable.build(self.trained)(np.zeros((3, 2, 2, 1), np.uint8)).shape, (3, 2))

  def test_is_exported_as_a_saved_model_alone(self):
    weights = tff.learning.models.ModelWeights(self.trained.trainable, [])
    trained_models.save(
        self.run_, model_files.FINAL, 1, np.nan, [algorithm.Evaluated(None, weights)], self.model
    )
    self.assertEqual(exported.write(self.run_), ['models/final'])
    loaded = tf.saved_model.load(self.run_.file('models/final'))
    self.assertEqual(loaded.serve(np.zeros((3, 2, 2, 1), np.uint8)).shape, (3, 2))

  def test_a_full_disk_is_no_mistake_of_the_user(self):
    weights = tff.learning.models.ModelWeights(self.trained.trainable, [])
    trained_models.save(
        self.run_, model_files.FINAL, 1, np.nan, [algorithm.Evaluated(None, weights)], self.model
    )
    full = tf.errors.ResourceExhaustedError(None, None, 'No space left on device')
    with mock.patch.object(tf.saved_model, 'save', side_effect=full):
      with mock.patch.object(tf.keras.Model, 'export', side_effect=full):
        with self.assertRaises(OSError) as caught:
          exported.write(self.run_)
    self.assertEqual(caught.exception.errno, errno.ENOSPC)

  def test_other_code_and_code_that_fails_are_told(self):
    sys.modules['code_of_own_model_test'].network = lambda *_, **__: 1 / 0
    with self.assertRaisesRegex(types.UsageError, r'fails \(ZeroDivisionError: .* SavedModel'):
      own_model.load_code(self.run_, [self.trained])
    self.code.write_text(_CODE.replace('2 * x', '3 * x'))
    with self.assertRaisesRegex(types.UsageError, 'made from other --model'):
      own_model.load_code(self.run_, [self.trained])

  def test_models_of_keras_layers_need_no_code(self):
    os.remove(self.code.full_path)
    config = {**self.trained.config, 'layers': [
        layer for layer in self.trained.config['layers'] if layer['name'] != 'mine'
    ]}
    own_model.load_code(self.run_, [self.trained._replace(config=config)])


if __name__ == '__main__':
  absltest.main()
