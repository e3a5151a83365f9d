"""Keras architectures. Each takes raw pixels, scales them itself, and gives logits and features.

Layer normalisation is a parameter because the papers' models use batch norm, whose statistics are
averaged with the weights, while group norm needs no such rule and is the default.
"""

import tensorflow as tf

_GROUPS = 8


def _normalization(norm: str, name: str):
  if norm == 'batch':
    return tf.keras.layers.BatchNormalization(name=name)
  return tf.keras.layers.GroupNormalization(groups=_GROUPS, name=name)


def _input(input_shape, pixel_scale):
  pixels = tf.keras.Input(input_shape, dtype='uint8', name='pixels')
  return pixels, tf.keras.layers.Rescaling(pixel_scale, name='scale')(pixels)


def _model(pixels, features, num_classes):
  logits = tf.keras.layers.Dense(num_classes, name='logits')(features)
  return tf.keras.Model(pixels, [logits, features])


def mlp(
    input_shape: tuple[int, ...], num_classes: int, *, norm: str = 'group', pixel_scale: float = 1.0
) -> tf.keras.Model:
  """Two hidden layers of 128 units: `uint8[b, ...] -> (float32[b, K], float32[b, 128])`."""
  pixels, x = _input(input_shape, pixel_scale)
  x = tf.keras.layers.Flatten(name='flatten')(x)
  for i in range(2):
    x = tf.keras.layers.Dense(128, name=f'dense_{i}')(x)
    x = _normalization(norm, f'norm_{i}')(x)
    x = tf.keras.layers.ReLU(name=f'relu_{i}')(x)
  return _model(pixels, x, num_classes)


def cnn(
    input_shape: tuple[int, ...], num_classes: int, *, norm: str = 'group', pixel_scale: float = 1.0
) -> tf.keras.Model:
  """Two 3x3 convolutions (32, 64) with pooling and a dense layer of 128 units.

  `uint8[b, height, width, channels] -> (float32[b, K], float32[b, 128])`; height and width at
  least 4.
  """
  pixels, x = _input(input_shape, pixel_scale)
  for i, filters in enumerate((32, 64)):
    x = tf.keras.layers.Conv2D(filters, 3, padding='same', name=f'conv_{i}')(x)
    x = _normalization(norm, f'norm_{i}')(x)
    x = tf.keras.layers.ReLU(name=f'relu_{i}')(x)
    x = tf.keras.layers.MaxPool2D(name=f'pool_{i}')(x)
  x = tf.keras.layers.Flatten(name='flatten')(x)
  x = tf.keras.layers.Dense(128, activation='relu', name='dense')(x)
  return _model(pixels, x, num_classes)


MODELS = {'mlp': mlp, 'cnn': cnn}
