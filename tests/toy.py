"""A model of four weights and data small enough to compute by hand."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tff_noise import types
from tff_noise.data import client_data
from tff_noise.models import keras_model


def linear_model(norm: str | None = None) -> keras_model.KerasModel:
  """Two inputs, two classes, no bias: the logits are `x @ W`, W starting at 0."""
  x = tf.keras.Input((2,), name='x')
  features = x
  if norm == 'batch':
    features = tf.keras.layers.BatchNormalization(momentum=0.9, name='norm')(features)
  elif norm == 'group':
    features = tf.keras.layers.GroupNormalization(groups=1, name='norm')(features)
  logits = tf.keras.layers.Dense(
      2, use_bias=False, kernel_initializer='zeros', name='logits'
  )(features)
  return keras_model.from_keras(tf.keras.Model(x, [logits, features]))


def image_model(
    shape: tuple[int, int, int] = (6, 5, 1), image_files: bool = False
) -> keras_model.KerasModel:
  """Two classes of small images, linear in their pixels divided by 255, with a bias."""
  pixels = tf.keras.Input(shape, dtype='uint8')
  features = tf.keras.layers.Flatten()(tf.keras.layers.Rescaling(1 / 255)(pixels))
  network = tf.keras.Model(pixels, [tf.keras.layers.Dense(2)(features), features])
  return keras_model.from_keras(network, image_files=image_files)


def client(index: int, x: list[list[float]], y: list[int]) -> tf.data.Dataset:
  """One client of the linear model."""
  return client_data.client_dataset(np.array(x, np.float32).reshape(-1, 2), np.array(y), index)


def two_corners(sizes: Sequence[int]) -> types.Federation:
  """Clients with points around two corners, a third of the labels at random."""
  draw = np.random.default_rng(0)
  clients = []
  for n in sizes:
    y = draw.integers(0, 2, n).astype(np.int32)
    x = (np.eye(2)[y] + draw.normal(0, 0.3, (n, 2))).astype(np.float32)
    clients.append(types.ClientExamples(x, (y + (draw.random(n) < 0.3)) % 2, np.arange(n)))
  return types.Federation(tuple(clients), 2, 3)
