"""Tests of the architectures."""

import functools

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise import types
from tff_noise.models import architectures
from tff_noise.models import keras_model
from tff_noise.models import layers
from tff_noise.models import vision_transformer

_WIDTHS = {
    'mlp': 128, 'cnn': 128, 'resnet18': 512, 'resnet34': 512, 'resnet50': 2048, 'vit_tiny': 192
}


@functools.cache
def _network(name, norm):
  """Of images of 32 by 32, for tests that leave its weights alone."""
  return architectures.MODELS[name](
      (32, 32, 3), 7, norm=norm, pixel_scale=1 / 255, pixel_offset=-0.5
  )


def _pixels(*shape):
  return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


def _count(variables):
  return sum(int(np.prod(v.shape)) for v in variables)


def _names_and_shapes(network):
  return [(v.name, tuple(v.shape)) for v in network.weights]


def _model_input(network, pixels):
  """What the first layer after the scaling sees."""
  return tf.keras.Model(network.input, network.get_layer('scale').output)(pixels).numpy()


class EveryArchitectureTest(parameterized.TestCase):

  def test_all_are_tested(self):
    self.assertEqual(list(_WIDTHS), list(architectures.MODELS))

  @parameterized.product(name=list(_WIDTHS), norm=['group', 'batch'])
  def test_bytes_to_logits_and_features_and_rebuilt(self, name, norm):
    network = _network(name, norm)
    logits, features = network(_pixels(2, 32, 32, 3))
    self.assertEqual((logits.shape, features.shape), ((2, 7), (2, _WIDTHS[name])))
    self.assertEqual((logits.dtype, features.dtype), (tf.float32, tf.float32))
    self.assertTrue(np.isfinite(logits).all())
    self.assertGreater(np.abs(features[0] - features[1]).max(), 1e-4)
    self.assertEqual(
        len(network.non_trainable_variables) > 0, norm == 'batch' and name != 'vit_tiny'
    )
    # Weights travel as lists: a model rebuilt in another order would take them for each other.
    model = keras_model.from_keras(network)
    zeros, seeded = keras_model.build_zeros(model), keras_model.build_seeded(model, 1)
    self.assertEqual(_names_and_shapes(zeros), _names_and_shapes(network))
    self.assertEqual(_names_and_shapes(seeded), _names_and_shapes(network))
    self.assertTrue(all((v.numpy() == 0).all() for v in zeros.weights))

  @parameterized.parameters('resnet18', 'resnet50', 'vit_tiny')
  def test_seeded(self, name):
    model = keras_model.from_keras(_network(name, 'group'))
    first, again, other = (
        [v.numpy() for v in keras_model.build_seeded(model, seed).weights] for seed in (1, 1, 2)
    )
    random = 0
    for a, b, c in zip(first, again, other, strict=True):
      np.testing.assert_array_equal(a, b)
      random += int((a != c).any())
    # The class token, the positions and 4 kernels in each of 12 blocks; patches and logits.
    self.assertEqual(random, {'resnet18': 21, 'resnet50': 54, 'vit_tiny': 52}[name])
    # No two places share random numbers.
    starts = [a.ravel()[0] for a, c in zip(first, other, strict=True) if (a != c).any()]
    self.assertLen(set(starts), random)

  @parameterized.parameters('mlp', 'resnet50')
  def test_batch_norm_has_the_constants_of_pytorch(self, name):
    network = _network(name, 'batch')
    norms = [x for x in network.layers if isinstance(x, tf.keras.layers.BatchNormalization)]
    self.assertNotEmpty(norms)
    self.assertEqual({(x.momentum, x.epsilon) for x in norms}, {(0.9, 1e-5)})

  @parameterized.parameters(
      ('resnet18', 10, 0, 11_173_962),
      ('resnet34', 100, 0, 21_328_292),
      # Keras's convolutions have biases: 26,560 parameters more than torchvision's.
      ('resnet50', 14, 0, 23_563_278),
      ('vit_tiny', 10, 224, 5_526_346),
  )
  def test_trainable_parameters(self, name, num_classes, image_size, expected):
    network = architectures.MODELS[name](
        (32, 32, 3), num_classes, norm='batch', image_size=image_size
    )
    self.assertEqual(_count(network.trainable_variables), expected)


class PixelsTest(parameterized.TestCase):

  def test_one_number(self):
    network = architectures.mlp((1, 3, 1), 2, pixel_scale=0.5, pixel_offset=-1.0)
    found = _model_input(network, np.array([0, 2, 255], np.uint8).reshape(1, 1, 3, 1))
    np.testing.assert_allclose(found.ravel(), [-1, 0, 126.5])

  def test_one_number_for_each_channel_also_when_rebuilt(self):
    network = architectures.mlp(
        (1, 2, 3), 2, pixel_scale=(1.0, 0.5, 2.0), pixel_offset=(0.0, -1.0, 10.0)
    )
    rebuilt = keras_model.build_seeded(keras_model.from_keras(network), 0)
    pixels = np.array([[1, 2, 3], [255, 0, 7]], np.uint8).reshape(1, 1, 2, 3)
    for model in (network, rebuilt):
      found = _model_input(model, pixels)
      self.assertEqual(found.dtype, np.float32)
      np.testing.assert_allclose(found[0, 0], [[1, 0, 16], [255, -1, 24]])

  def test_resized_before_scaling_and_not_rounded(self):
    network = architectures.mlp((2, 2, 1), 2, image_size=4, pixel_scale=10.0)
    pixels = np.array([0, 1, 0, 1], np.uint8).reshape(1, 2, 2, 1)
    found = _model_input(network, pixels)
    # Half-pixel centres: at -.25 (held), .25, .75, 1.25 (held).
    np.testing.assert_allclose(found[0, :, :, 0], [[0, 2.5, 7.5, 10]] * 4, rtol=1e-6)

  def test_images_of_any_shape_become_square(self):
    network = architectures.MODELS['resnet18']((5, 9, 3), 2, image_size=8)
    self.assertEqual(network.get_layer('scale').output_shape, (None, 8, 8, 3))

  def test_no_layer_without_resizing(self):
    # It would move the layers behind it, and so their seeds.
    network = architectures.mlp((2, 2, 1), 2, pixel_offset=1.0)
    self.assertEqual([x.name for x in network.layers[:3]], ['pixels', 'scale', 'flatten'])


class InitialWeightsTest(parameterized.TestCase):

  @parameterized.parameters(
      ('mlp', [0.08984049, 0.14980473, 0.18265711]),
      ('cnn', [0.08175512, 0.08154336, -0.00788662]),
      ('resnet18', [-0.00900969, 0.07707678, -0.04025656]),
  )
  def test_architectures_start_where_they_did(self, name, expected):
    # A layer more or renamed would change every published number.
    model = keras_model.from_keras(architectures.MODELS[name]((8, 8, 1), 10))
    kernels = [w for w in keras_model.build_seeded(model, 3).weights if 'kernel' in w.name]
    np.testing.assert_allclose([k.numpy().ravel()[0] for k in kernels[:3]], expected, atol=1e-6)


class CnnTest(parameterized.TestCase):

  def test_is_the_network_that_rectifies_before_it_pools(self):
    network = architectures.cnn((8, 8, 1), 3)
    chain = network.layers[1:]
    swapped = list(chain)
    names = [x.name for x in chain]
    for i in range(2):
      pool, relu = names.index(f'pool_{i}'), names.index(f'relu_{i}')
      swapped[pool], swapped[relu] = chain[relu], chain[pool]
    found = []
    for layers_ in (chain, swapped):
      with tf.GradientTape() as tape:
        x = tf.constant(_pixels(3, 8, 8, 1))
        for layer in layers_:
          x = layer(x)
        loss = tf.reduce_sum(tf.sin(x))
      found.append([x, *tape.gradient(loss, network.trainable_variables)])
    np.testing.assert_array_equal(found[0][0], network(_pixels(3, 8, 8, 1))[0])
    self.assertLess(names.index('pool_0'), names.index('relu_0'))
    for ours, other in zip(*found, strict=True):
      np.testing.assert_array_equal(ours, other)


class ResNetTest(parameterized.TestCase):

  def test_strided_convolutions_are_padded_as_in_pytorch(self):
    # On both sides: the first kernel's centre is on the first pixel, not on the second.
    network = architectures.MODELS['resnet18']((8, 8, 3), 2)
    convolution = tf.keras.Model(
        network.get_layer('stage_0_block_1_relu_1').output,
        network.get_layer('stage_1_block_0_conv_0').output,
    )
    kernel = np.zeros((3, 3, 64, 128), np.float32)
    kernel[1, 1, 5, 7] = 1
    convolution.trainable_variables[0].assign(kernel)
    x = np.random.default_rng(0).normal(size=(1, 8, 8, 64)).astype(np.float32)
    np.testing.assert_allclose(convolution(x)[0, :, :, 7], x[0, ::2, ::2, 5], rtol=1e-6)

  def test_others_are_padded_by_zeros_on_both_sides(self):
    network = architectures.MODELS['resnet18']((8, 8, 3), 2)
    convolution = network.get_layer('stage_0_block_0_conv_0')
    kernel = np.zeros((3, 3, 64, 64), np.float32)
    kernel[0, 0, 5, 7] = kernel[2, 2, 6, 8] = 1
    convolution.set_weights([kernel])
    x = np.random.default_rng(0).normal(size=(1, 8, 8, 64)).astype(np.float32)
    padded = np.pad(x[0], [(1, 1), (1, 1), (0, 0)])
    y = convolution(x)[0].numpy()
    np.testing.assert_allclose(y[..., 7], padded[:-2, :-2, 5], rtol=1e-6)
    np.testing.assert_allclose(y[..., 8], padded[2:, 2:, 6], rtol=1e-6)

  def test_resnet50_is_that_of_keras(self):
    reference = tf.keras.applications.ResNet50(
        include_top=False, weights=None, pooling='avg', input_shape=(32, 32, 3)
    )
    network = architectures.MODELS['resnet50']((32, 32, 3), 2, norm='batch', pixel_scale=1 / 255)
    names = [x.name for x in network.layers if x.weights]
    self.assertEqual(names, [x.name for x in reference.layers if x.weights] + ['logits'])
    reference.set_weights([w.numpy() for w in network.weights if 'logits' not in w.name])
    pixels = _pixels(2, 32, 32, 3)
    expected = reference(pixels / np.float32(255)).numpy()
    np.testing.assert_allclose(network(pixels)[1], expected, rtol=1e-2, atol=1e-3 * expected.max())

  def test_group_norm_keeps_the_names(self):
    network = _network('resnet50', 'group')
    self.assertIsInstance(
        network.get_layer('conv5_block3_3_bn'), tf.keras.layers.GroupNormalization
    )


class VisionTransformerTest(parameterized.TestCase):

  @parameterized.parameters(
      (32, 0, 4), (60, 0, 4), (64, 0, 16), (68, 0, 4), (224, 0, 16), (30, 224, 16), (30, 32, 4)
  )
  def test_patches(self, size, image_size, patch):
    network = architectures.MODELS['vit_tiny']((size, size, 3), 2, image_size=image_size)
    self.assertEqual(network.get_layer('patches').kernel_size, (patch, patch))
    tokens = ((image_size or size) // patch) ** 2 + 1
    self.assertEqual(network.get_layer('tokens').output_shape, (None, tokens, 192))

  @parameterized.parameters((30, 32), (2, 2), (225, 225), (0, 0))
  def test_images_without_patches_are_refused(self, height, width):
    with self.assertRaisesRegex(
        types.UsageError, rf'{height} x {width} pixels.*multiples of 4, .*image size of 32 or 224'
    ) as caught:
      architectures.MODELS['vit_tiny']((height, width, 3), 2)
    self.assertNotIn('\n', str(caught.exception))

  def test_class_token_and_positions(self):
    layer = vision_transformer.Tokens(token_initializer='ones', position_initializer='ones')
    found = layer(np.full((2, 3, 4), 5, np.float32)).numpy()
    np.testing.assert_array_equal(found[:, 0], np.full((2, 4), 2))
    np.testing.assert_array_equal(found[:, 1:], np.full((2, 3, 4), 6))

  def test_attention_is_that_of_keras(self):
    # [b, n, heads * depth], with kernels that change nothing.
    q, k, v = np.random.default_rng(0).normal(size=(3, 2, 5, 6)).astype(np.float32)
    reference = tf.keras.layers.MultiHeadAttention(3, 2)
    reference(q, v, k)
    eye = np.eye(6, dtype=np.float32)
    reference.set_weights(
        [eye.reshape(6, 3, 2), np.zeros((3, 2))] * 3 + [eye.reshape(3, 2, 6), np.zeros(6)]
    )
    found = vision_transformer.SelfAttention(3)(np.concatenate([q, k, v], axis=-1))
    np.testing.assert_allclose(found, reference(q, v, k), atol=1e-5)

  def test_order_of_patches_matters_only_by_position(self):
    network = architectures.MODELS['vit_tiny']((8, 8, 1), 2, pixel_scale=1 / 255)
    pixels = _pixels(1, 8, 8, 1)
    turned = np.concatenate([pixels[:, 4:], pixels[:, :4]], axis=1)
    self.assertGreater(np.abs(network(pixels)[1] - network(turned)[1]).max(), 1e-4)
    network.get_layer('tokens').position.assign(tf.zeros((1, 5, 192)))
    np.testing.assert_allclose(network(pixels)[1], network(turned)[1], atol=1e-4)

  def test_gelu_is_the_exact_one(self):
    network = architectures.MODELS['vit_tiny']((8, 8, 1), 2)
    gelu = network.get_layer('block_0_mlp_0').activation
    self.assertAlmostEqual(float(gelu(tf.constant(-2.0))), -0.0455003, places=6)

  def test_norm_changes_nothing(self):
    group, batch = (architectures.MODELS['vit_tiny']((8, 8, 1), 2, norm=n).get_config()['layers']
                    for n in ('group', 'batch'))
    self.assertEqual(str(group), str(batch))


class NormalizationTest(absltest.TestCase):

  def test_eight_groups(self):
    self.assertEqual(layers.normalization('group', 'x').groups, 8)


if __name__ == '__main__':
  absltest.main()
