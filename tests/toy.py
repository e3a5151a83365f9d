"""A model of four weights and data small enough to compute by hand."""

import numpy as np
import tensorflow as tf

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


def client(index: int, x: list[list[float]], y: list[int]) -> tf.data.Dataset:
  """One client of the linear model."""
  return client_data.client_dataset(np.array(x, np.float32).reshape(-1, 2), np.array(y), index)
