"""Images and networks of the sizes that speed is measured on."""

import numpy as np
import tensorflow as tf

from tff_noise.models import architectures

IMAGE = (32, 32, 3)
NUM_CLASSES = 10


def images(num_clients: int, size: int) -> list[tuple[np.ndarray, np.ndarray]]:
  """Returns for each client uint8 `[size, 32, 32, 3]` and int64 `[size]`, random."""
  draw = np.random.default_rng(0)
  return [
      (
          draw.integers(0, 256, (size, *IMAGE)).astype(np.uint8),
          draw.integers(0, NUM_CLASSES, size),
      )
      for _ in range(num_clients)
  ]


def large_cnn(units: int = 380) -> tf.keras.Model:
  """The small CNN with a wider dense layer: 1.6 M parameters, 4,106 for each of its `units`."""
  image = tf.keras.Input(IMAGE, dtype=tf.uint8)
  x = tf.keras.layers.Rescaling(1 / 255)(image)
  for filters in (32, 64):
    x = tf.keras.layers.Conv2D(filters, 5, padding='same', activation='relu')(x)
    x = tf.keras.layers.MaxPooling2D()(x)
  x = tf.keras.layers.Dense(units, activation='relu')(tf.keras.layers.Flatten()(x))
  return tf.keras.Model(image, [tf.keras.layers.Dense(NUM_CLASSES)(x), x])


def cnn() -> tf.keras.Model:
  """The program's `--model=cnn`, with group norm."""
  return architectures.cnn(IMAGE, NUM_CLASSES, pixel_scale=1 / 255)
