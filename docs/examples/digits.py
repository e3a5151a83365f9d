"""What the examples train on: digits with wrong labels, held by ten clients."""

from typing import NamedTuple

import tensorflow as tf

from tff_noise import types
from tff_noise.data import client_data
from tff_noise.data import noise
from tff_noise.data import partition
from tff_noise.data import scene
from tff_noise.data import sources
from tff_noise.models import architectures
from tff_noise.models import keras_model


class Digits(NamedTuple):
  """The data and the model.

  Attributes:
    model: A Keras model with the outputs `[logits, features]`, as TFF needs it.
    federation: What the clients hold, in NumPy.
    clients: The same as TFF takes it, by client id.
    test: Clean examples at the server.
  """

  model: keras_model.KerasModel
  federation: types.Federation
  clients: list[tf.data.Dataset]
  test: types.Examples


def load() -> Digits:
  """Returns digits of which 20 % have a wrong label."""
  dataset = sources.load(sources.DataSpec('digits'))
  spec = scene.SceneSpec(partition.PartitionSpec('iid', 10), noise.NoiseSpec('symmetric', rate=0.2))
  federation = scene.federation(dataset, scene.build(dataset, spec, seed=0), seed=0)
  return Digits(
      keras_model.from_keras(architectures.mlp((8, 8, 1), 10, pixel_scale=1 / 16)),
      federation,
      client_data.federation_datasets(federation),
      types.Examples(dataset.test_x, dataset.test_y),
  )
