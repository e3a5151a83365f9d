"""Residual networks (He et al. 2016).

ResNet-18 and 34 are the variants for small images that the papers use: the stem is one 3x3
convolution without pooling. ResNet-50 is Keras's own, for which weights of ImageNet are published.

Convolutions start from He's normal distribution over the fan-out, as in torchvision; the papers'
ResNet-18 and 34 leave PyTorch's default, uniform within `1 / sqrt(fan_in)`.
"""

import tensorflow as tf

from tff_noise.models import layers

_FILTERS = (64, 128, 256, 512)


def resnet18(
    input_shape: tuple[int, int, int], num_classes: int, *, norm: str = 'group', **pixels
) -> tf.keras.Model:
  """`uint8[b, height, width, channels] -> (float32[b, K], float32[b, 512])`, any size."""
  return _small_images(input_shape, num_classes, (2, 2, 2, 2), norm, pixels)


def resnet34(
    input_shape: tuple[int, int, int], num_classes: int, *, norm: str = 'group', **pixels
) -> tf.keras.Model:
  """`uint8[b, height, width, channels] -> (float32[b, K], float32[b, 512])`, any size."""
  return _small_images(input_shape, num_classes, (3, 4, 6, 3), norm, pixels)


def resnet50(
    input_shape: tuple[int, int, int], num_classes: int, *, norm: str = 'group', **pixels
) -> tf.keras.Model:
  """`uint8[b, height, width, channels] -> (float32[b, K], float32[b, 2048])`, any size.

  The layers keep Keras's names, `conv1_bn` also where it is a group norm, so that a published
  "notop" file fits the model with batch norm. Unlike torchvision's, the convolutions have biases
  and a stage's first 1x1 convolution, not its 3x3, has the stride.
  """
  _, x = layers.pixels(input_shape, **pixels)
  body = tf.keras.applications.ResNet50(
      include_top=False, weights=None, input_tensor=x, pooling='avg'
  )

  def clone(layer):
    config = layer.get_config()
    if isinstance(layer, tf.keras.layers.BatchNormalization):
      return layers.normalization(norm, layer.name)
    if isinstance(layer, tf.keras.layers.Conv2D):
      config['kernel_initializer'] = _he_normal()
    return type(layer).from_config(config)

  # The clone starts at the pixels: one flat model, whose initialisers all have a place of their
  # own in the config.
  body = tf.keras.models.clone_model(body, clone_function=clone)
  return layers.model(body.input, body.output, num_classes)


def _he_normal():
  return tf.keras.initializers.VarianceScaling(2.0, 'fan_out', 'untruncated_normal')


def _small_images(input_shape, num_classes, blocks, norm, pixels):
  raw, x = layers.pixels(input_shape, **pixels)
  x = _convolution(x, _FILTERS[0], 3, 1, 'stem_conv')
  x = layers.normalization(norm, 'stem_norm')(x)
  x = tf.keras.layers.ReLU(name='stem_relu')(x)
  for i, (filters, count) in enumerate(zip(_FILTERS, blocks, strict=True)):
    for j in range(count):
      stride = 2 if i and not j else 1
      x = _basic_block(x, filters, stride, norm, f'stage_{i}_block_{j}')
  return layers.model(
      raw, tf.keras.layers.GlobalAveragePooling2D(name='pool')(x), num_classes
  )


def _basic_block(x, filters, stride, norm, name):
  shortcut = x
  if stride > 1:  # In these networks also where, and only where, the width changes.
    shortcut = _convolution(x, filters, 1, stride, f'{name}_shortcut_conv')
    shortcut = layers.normalization(norm, f'{name}_shortcut_norm')(shortcut)
  x = _convolution(x, filters, 3, stride, f'{name}_conv_0')
  x = layers.normalization(norm, f'{name}_norm_0')(x)
  x = tf.keras.layers.ReLU(name=f'{name}_relu_0')(x)
  x = _convolution(x, filters, 3, 1, f'{name}_conv_1')
  x = layers.normalization(norm, f'{name}_norm_1')(x)
  x = tf.keras.layers.Add(name=f'{name}_add')([x, shortcut])
  return tf.keras.layers.ReLU(name=f'{name}_relu_1')(x)


def _convolution(x, filters, size, stride, name):
  padding = 'same' if stride == 1 else 'valid'
  if stride > 1 and size > 1:
    # Not padding='same': with a stride that pads one side only, PyTorch both.
    x = tf.keras.layers.ZeroPadding2D(size // 2, name=f'{name}_pad')(x)
  return tf.keras.layers.Conv2D(
      filters, size, stride, padding, use_bias=False, kernel_initializer=_he_normal(), name=name
  )(x)
