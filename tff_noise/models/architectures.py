"""Keras architectures. Each takes raw pixels, scales them itself, and gives logits and features.

All share one signature, `f(input_shape, num_classes, *, norm, pixel_scale, pixel_offset,
image_size)`, from uint8 `[b, height, width, channels]` to float32 `[b, K]` and `[b, d]`; see
`layers.pixels` for what happens to the pixels.

Normalisation is a parameter because the papers' models use batch norm, whose statistics are
averaged with the weights, while group norm needs no such rule and is the default.
"""

import tensorflow as tf

from tff_noise.models import layers
from tff_noise.models import resnet
from tff_noise.models import vision_transformer


def mlp(
    input_shape: tuple[int, ...], num_classes: int, *, norm: str = 'group', **pixels
) -> tf.keras.Model:
  """Two hidden layers of 128 units: `uint8[b, ...] -> (float32[b, K], float32[b, 128])`."""
  raw, x = layers.pixels(input_shape, **pixels)
  x = tf.keras.layers.Flatten(name='flatten')(x)
  for i in range(2):
    x = tf.keras.layers.Dense(128, name=f'dense_{i}')(x)
    x = layers.normalization(norm, f'norm_{i}')(x)
    x = tf.keras.layers.ReLU(name=f'relu_{i}')(x)
  return layers.model(raw, x, num_classes)


def cnn(
    input_shape: tuple[int, ...], num_classes: int, *, norm: str = 'group', **pixels
) -> tf.keras.Model:
  """Two 3x3 convolutions (32, 64) with pooling and a dense layer of 128 units.

  `uint8[b, height, width, channels] -> (float32[b, K], float32[b, 128])`; height and width at
  least 4.
  """
  raw, x = layers.pixels(input_shape, **pixels)
  for i, filters in enumerate((32, 64)):
    x = tf.keras.layers.Conv2D(filters, 3, padding='same', name=f'conv_{i}')(x)
    x = layers.normalization(norm, f'norm_{i}')(x)
    # The other way round has the same values and gradients, of four times as many numbers.
    x = tf.keras.layers.MaxPool2D(name=f'pool_{i}')(x)
    x = tf.keras.layers.ReLU(name=f'relu_{i}')(x)
  x = tf.keras.layers.Flatten(name='flatten')(x)
  x = tf.keras.layers.Dense(128, activation='relu', name='dense')(x)
  return layers.model(raw, x, num_classes)


MODELS = {
    'mlp': mlp,
    'cnn': cnn,
    'resnet18': resnet.resnet18,
    'resnet34': resnet.resnet34,
    'resnet50': resnet.resnet50,
    'vit_tiny': vision_transformer.vit_tiny,
}
