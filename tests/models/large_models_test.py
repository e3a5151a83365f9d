"""Tests that the large models train inside a TFF computation."""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tff_noise import types
from tff_noise.algorithms import plain
from tff_noise.data import client_data
from tff_noise.federated import task as task_lib
from tff_noise.models import architectures
from tff_noise.models import keras_model

_NUM_CLASSES = 10


def _model(name, norm='group'):
  return keras_model.from_keras(
      architectures.MODELS[name]((32, 32, 3), _NUM_CLASSES, norm=norm, pixel_scale=1 / 255)
  )


def _client(index):
  draw = np.random.default_rng(index)
  return client_data.client_dataset(
      draw.integers(0, 256, (16, 32, 32, 3)).astype(np.uint8),
      draw.integers(0, _NUM_CLASSES, 16),
      index,
  )


class LargeModelsTest(federated_test_case.FederatedTestCase):

  @parameterized.parameters(('resnet18', 'batch'), ('resnet18', 'group'), ('vit_tiny', 'group'))
  def test_one_round_moves_every_variable(self, name, norm):
    training = types.LocalTraining(epochs=1, batch_size=8, learning_rate=0.01)
    process = plain.build_process(task_lib.Task(_model(name, norm), training)).process
    state = process.initialize()
    before = process.get_model_weights(state)
    after = process.get_model_weights(process.next(state, [_client(0), _client(1)]).state)
    for kind in ('trainable', 'non_trainable'):
      for i, (old, new) in enumerate(
          zip(getattr(before, kind), getattr(after, kind), strict=True)
      ):
        self.assertTrue(np.isfinite(new).all(), f'{kind} {i}')
        self.assertTrue((old != new).any(), f'{kind} {i} stayed')

  @parameterized.parameters('resnet50', 'vit_tiny')
  def test_initial_weights_are_those_of_the_model_built_here(self, name):
    # `weights.load` reads them without a TFF computation.
    model = _model(name, 'batch')
    found = keras_model.build_initial_weights(model, 3)()
    expected = keras_model.read(keras_model.build_seeded(model, 3))
    for kind in ('trainable', 'non_trainable'):
      for a, b in zip(getattr(found, kind), getattr(expected, kind), strict=True):
        np.testing.assert_array_equal(a, b.numpy())


if __name__ == '__main__':
  absltest.main()
