"""What the architectures share: raw pixels in, normalisation, logits and features out."""

from collections.abc import Sequence

import tensorflow as tf

from tff_noise.models import group_norm

_GROUPS = 8


def pixels(
    input_shape: tuple[int, ...],
    *,
    pixel_scale: float | Sequence[float] = 1.0,
    pixel_offset: float | Sequence[float] = 0.0,
    image_size: int = 0,
    dtype: str = 'uint8',
):
  """Returns the input, `[b, *input_shape]`, and the same as scaled float32.

  Args:
    input_shape: (height, width, channels); without `image_size` any shape.
    pixel_scale: With `pixel_offset`: `x * scale + offset`. One number, or one for each channel.
    pixel_offset: See `pixel_scale`.
    image_size: Height and width of what follows, interpolated bilinearly from the pixels without
      rounding to bytes; 0 leaves the images as they are.
    dtype: Of the input: uint8, or float32 of features that are no pixels.
  """
  raw = tf.keras.Input(input_shape, dtype=dtype, name='pixels')
  x = raw
  # Without a resized image no layer: a place in the config is part of an initialiser's seed.
  if image_size:
    x = tf.keras.layers.Resizing(image_size, image_size, name='resize')(x)
  scale, offset = (
      # A Keras config turns tuples into dictionaries that `Rescaling` does not read.
      list(value) if isinstance(value, Sequence) else value for value in (pixel_scale, pixel_offset)
  )
  return raw, tf.keras.layers.Rescaling(scale, offset, name='scale')(x)


def normalization(norm: str, name: str) -> tf.keras.layers.Layer:
  """Returns batch norm with PyTorch's constants, which the papers' code uses, or group norm."""
  if norm == 'batch':
    return tf.keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=name)
  return group_norm.GroupNormalization(_GROUPS, name=name)


def model(raw, features, num_classes: int, **head) -> tf.keras.Model:
  """Returns the model from `raw` to `[logits, features]`.

  Args:
    raw: The input.
    features: float32 `[b, d]`.
    num_classes: K.
    **head: Of the dense layer that gives the logits.
  """
  if features.dtype != tf.float32:
    features = tf.keras.layers.Activation('linear', dtype='float32', name='features')(features)
  # Losses are computed in float32 under mixed precision too.
  logits = tf.keras.layers.Dense(num_classes, name='logits', dtype='float32', **head)(features)
  return tf.keras.Model(raw, [logits, features])
