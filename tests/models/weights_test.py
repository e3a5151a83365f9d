"""Tests of initial weights from files."""

import functools
import os

import h5py
import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tff_noise import types
from tff_noise.models import architectures
from tff_noise.models import keras_model
from tff_noise.models import weights

_SEED = 4


def _network(num_classes=3, norm='batch', name='cnn', **kwargs):
  return architectures.MODELS[name]((8, 8, 1), num_classes, norm=norm, **kwargs)


def _model(*args, **kwargs):
  return keras_model.from_keras(_network(*args, **kwargs))


def _filled(network):
  """Gives every variable values of its own, moving statistics included."""
  for i, variable in enumerate(network.weights):
    variable.assign(np.random.default_rng(i).random(variable.shape))
  return network


@functools.cache
def _filled_and_model(name):
  return _filled(_network(name=name)), _model(name=name)


def _checkpoint(network, path):
  optimizer = tf.keras.optimizers.Adam()
  optimizer.build(network.trainable_variables)
  return tf.train.Checkpoint(model=network, optimizer=optimizer).save(path)


def _save_weights(suffix):
  def save(network, path):
    network.save_weights(path + suffix)
    return path + suffix

  return save


def _save_model(network, path):
  network.save(path + '.h5')
  return path + '.h5'


_FORMATS = {
    'h5': _save_weights('.h5'),
    'weights.h5': _save_weights('.weights.h5'),
    'whole model': _save_model,
    'checkpoint': _checkpoint,
    'checkpoint of weights': _save_weights('.ckpt'),
}


class LoadTest(federated_test_case.FederatedTestCase):

  def setUp(self):
    super().setUp()
    self._path = os.path.join(self.create_tempdir().full_path, 'file')

  def _assert_refused(self, message, model, path):
    with self.assertRaisesRegex(types.UsageError, message) as caught:
      weights.load(model, path, _SEED)
    self.assertNotIn('\n', str(caught.exception))

  @parameterized.parameters(False, True)
  def test_each_of_several_networks(self, equal):
    network = _filled(_network())
    path = _save_weights('.h5')(network, self._path)
    model = keras_model.several(_model(), 2, 'first', equal=equal)
    found = weights.load(model, path, _SEED)
    num_layers = sum(1 for x in network.layers if x.weights)
    self.assertEqual(found.num_layers, 2 * num_layers - (not equal))
    expected = [v.numpy() for v in network.trainable_variables]
    for i, value in enumerate(found.weights.trainable[: len(expected)]):
      np.testing.assert_array_equal(value, expected[i])
    second = found.weights.trainable[len(expected) :]
    for i, value in enumerate(second[:-2]):
      np.testing.assert_array_equal(value, expected[i])
    # The head: without its own the second network would be the first.
    self.assertEqual(np.array_equal(second[-2], expected[-2]), equal)

  @parameterized.parameters(*_FORMATS)
  def test_a_linear_head_beside_a_network_stays_if_the_file_has_none(self, save):
    network = _filled(_network())
    found = weights.load(
        keras_model.with_probe(_model()), _FORMATS[save](network, self._path), _SEED
    )
    self.assertEqual(found.num_layers, sum(1 for x in network.layers if x.weights))
    *ours, kernel, bias = found.weights.trainable
    for value, variable in zip(ours, network.trainable_variables, strict=True):
      np.testing.assert_array_equal(value, variable.numpy())
    self.assertFalse(kernel.any() or bias.any())

  @parameterized.product(save=list(_FORMATS), name=['cnn', 'vit_tiny', 'resnet18'])
  def test_every_layer_of_every_format(self, save, name):
    network, model = _filled_and_model(name)
    path = _FORMATS[save](network, self._path)
    found = weights.load(model, path, _SEED)
    self.assertEqual(found.num_layers, sum(1 for x in network.layers if x.weights))
    for kind in ('trainable', 'non_trainable'):
      ours, theirs = getattr(found.weights, kind), getattr(network, f'{kind}_variables')
      for value, variable in zip(ours, theirs, strict=True):
        self.assertIsInstance(value, np.ndarray)
        np.testing.assert_array_equal(value, variable.numpy())

  def test_weights_of_keras_3(self):
    network, model = _filled_and_model('cnn')
    before, path = _FORMATS['weights.h5'](network, self._path), self._path + '3.weights.h5'
    with h5py.File(before) as source, h5py.File(path, 'w') as file:
      # The same counting of classes in another group; layers without weights may have no variables.
      source.copy('_layer_checkpoint_dependencies', file, 'layers')
      for layer in file['layers'].values():
        if not len(layer['vars']):
          del layer['vars']
      file.create_group('optimizer/vars')
    found = weights.load(model, path, _SEED).weights
    for value, variable in zip(found.trainable, network.trainable_variables, strict=True):
      np.testing.assert_array_equal(value, variable.numpy())

  @parameterized.parameters(*_FORMATS)
  def test_head_of_other_classes_keeps_its_seeded_weights(self, save):
    network = _filled(_network(num_classes=5))
    path = _FORMATS[save](network, self._path)
    model = _model()
    found = weights.load(model, path, _SEED)
    self.assertEqual(found.num_layers, 5)
    expected = keras_model.build_initial_weights(model, _SEED)()
    np.testing.assert_array_equal(found.weights.trainable[0], network.weights[0])
    np.testing.assert_array_equal(found.weights.trainable[-2], expected.trainable[-2])
    np.testing.assert_array_equal(found.weights.trainable[-1], expected.trainable[-1])

  @parameterized.parameters(*_FORMATS)
  def test_file_without_head(self, save):
    network = _network()
    body = _filled(tf.keras.Model(network.input, network.outputs[1]))
    found = weights.load(_model(), _FORMATS[save](body, self._path), _SEED)
    self.assertEqual(found.num_layers, 5)
    np.testing.assert_array_equal(found.weights.trainable[0], body.weights[0])

  def test_published_body_of_resnet50(self):
    # The files on Keras's server are of this kind; they were written by this call.
    body = tf.keras.applications.ResNet50(include_top=False, weights=None, input_shape=(32, 32, 3))
    path = _FORMATS['h5'](_filled(body), self._path)
    model = keras_model.from_keras(architectures.MODELS['resnet50']((32, 32, 3), 2, norm='batch'))
    found = weights.load(model, path, _SEED)
    self.assertEqual(found.num_layers, 106)
    np.testing.assert_array_equal(found.weights.trainable[0], body.weights[0])
    np.testing.assert_array_equal(found.weights.non_trainable[-1], body.weights[-1])
    group = keras_model.from_keras(architectures.MODELS['resnet50']((32, 32, 3), 2))
    self._assert_refused(
        r'layer conv1_bn has shapes \[64\], \[64\], \[64\], \[64\] in the file and has shapes '
        r'\[64\], \[64\] in the model.*normalisation',
        group,
        path,
    )

  @parameterized.parameters(*_FORMATS)
  def test_wrong_shape(self, save):
    network = architectures.MODELS['cnn']((8, 8, 3), 3, norm='batch')
    self._assert_refused(
        r'layer conv_0 has shapes \[3, 3, 3, 32\], \[32\] in the file and .* \[3, 3, 1, 32\]',
        _model(),
        _FORMATS[save](network, self._path),
    )

  @parameterized.parameters(*_FORMATS)
  def test_head_of_other_features(self, save):
    def network(copies):
      x = tf.keras.Input((4,))
      hidden = tf.keras.layers.Dense(5, name='dense')(x)
      features = tf.keras.layers.Flatten()(tf.keras.layers.RepeatVector(copies)(hidden))
      return tf.keras.Model(x, [tf.keras.layers.Dense(3, name='logits')(features), features])

    self._assert_refused(
        r'layer logits has shapes \[5, 3\], \[3\] in the file and has shapes \[10, 3\], \[3\]',
        keras_model.from_keras(network(2)),
        _FORMATS[save](network(1), self._path),
    )

  def test_layer_the_model_does_not_know(self):
    path = _FORMATS['h5'](architectures.MODELS['resnet34']((8, 8, 1), 3), self._path)
    self._assert_refused(
        'layer stage_0_block_2_conv_0 has shapes .* in the file and is not in the model',
        _model(name='resnet18', norm='group'),
        path,
    )

  @parameterized.parameters(*_FORMATS)
  def test_layer_the_file_does_not_know(self, save):
    network = _network()
    part = tf.keras.Model(network.input, network.get_layer('conv_1').output)
    self._assert_refused(
        'layer norm_1 is not in the file and has shapes', _model(),
        _FORMATS[save](part, self._path),
    )

  @parameterized.parameters('h5', 'checkpoint')
  def test_nothing_matches(self, save):
    self._assert_refused(
        'no layer of .* it has stem_conv, stem_norm, .*the model conv_0, norm_0, ',
        _model(),
        _FORMATS[save](_network(name='resnet18'), self._path),
    )

  def test_head_alone_is_no_match(self):
    x = tf.keras.Input((128,))
    head = tf.keras.Model(x, tf.keras.layers.Dense(3, name='logits')(x))
    self._assert_refused(
        'no layer of .* it has logits,', _model(), _FORMATS['h5'](head, self._path)
    )

  def test_a_model_within_the_model_is_refused(self):
    inputs = tf.keras.Input([4])
    body = tf.keras.Sequential(
        [tf.keras.layers.Dense(3), tf.keras.layers.BatchNormalization()], name='body'
    )
    features = body(inputs)
    logits = tf.keras.layers.Dense(2, name='logits')(features)
    network = tf.keras.Model(inputs, [logits, features])
    path = self.create_tempdir().full_path + '/w.h5'
    network.save_weights(path)
    with self.assertRaisesRegex(types.UsageError, 'read into body, which is a model within'):
      weights.load(keras_model.from_keras(network), path, _SEED)

  def test_missing(self):
    self._assert_refused(
        f'there is no weights file {self._path}: give .* without .index', _model(), self._path
    )

  def test_foreign(self):
    with open(self._path, 'wb') as f:
      f.write(b'PK' + bytes(100))
    self._assert_refused('is no weights file .*: give a Keras H5', _model(), self._path)
    self._assert_refused('is no weights file', _model(), os.path.dirname(self._path))

  def test_index_is_not_the_prefix(self):
    path = _checkpoint(_network(), self._path)
    self._assert_refused('without .index', _model(), path + '.index')

  def test_hdf5_of_other_contents(self):
    with h5py.File(self._path, 'w') as f:
      f['x'] = np.zeros(3)
    self._assert_refused('HDF5 file without Keras layers', _model(), self._path)
    with h5py.File(self._path, 'w') as f:
      f.attrs['layer_names'] = ['conv_0']
    self._assert_refused('is no weights file', _model(), self._path)

  def test_cut_off_files(self):
    for path in (_FORMATS['h5'](_network(), self._path), _checkpoint(_network(), self._path)):
      for name in (path, path + '.index', path + '.data-00000-of-00001'):
        if os.path.exists(name):
          os.truncate(name, os.path.getsize(name) // 2)
      self._assert_refused('is no weights file', _model(), path)

  def test_checkpoint_without_its_data(self):
    path = _checkpoint(_network(), self._path)
    os.remove(path + '.data-00000-of-00001')
    self._assert_refused('is no weights file', _model(), path)

  def test_checkpoint_of_tensorflow_1(self):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
      variable = tf.compat.v1.get_variable('conv_0/kernel', (2,), use_resource=False)
      session.run(variable.initializer)
      path = tf.compat.v1.train.Saver([variable]).save(session, self._path)
    self._assert_refused('checkpoint of TensorFlow 1', _model(), path)

  def test_checkpoint_without_layers(self):
    path = tf.train.Checkpoint(x=tf.Variable(1.0)).save(self._path)
    self._assert_refused('no layer of .* it has none', _model(), path)


if __name__ == '__main__':
  absltest.main()
