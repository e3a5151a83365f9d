"""Tests of image files and augmentation inside the clients' computation."""

import os

import numpy as np
import tensorflow_federated as tff
from absl.testing import absltest
from PIL import Image

from tests import federated_test_case
from tests import toy
from tests.clients import one_client
from tff_noise import types
from tff_noise.data import client_data
from tff_noise.federated import evaluation
from tff_noise.models import losses

_SHAPE = (6, 5, 3)


def _weights():
  kernel = np.random.default_rng(1).normal(size=(90, 2)).astype(np.float32)
  return tff.learning.models.ModelWeights([kernel, np.zeros(2, np.float32)], [])


class ImageInputTest(federated_test_case.FederatedTestCase):

  def setUp(self):
    super().setUp()
    draw = np.random.default_rng(0)
    self.x = draw.integers(0, 256, (7, *_SHAPE)).astype(np.uint8)
    self.y = draw.integers(0, 2, 7).astype(np.int32)
    folder = self.create_tempdir().full_path
    paths = [os.path.join(folder, f'{i}.png') for i in range(7)]
    for path, image in zip(paths, self.x, strict=True):
      Image.fromarray(image).save(path)
    self.paths = np.array([p.encode() for p in paths])

  def _update(self, x, *, image_files=False, augmentation='none', round_num=1, client=0, **more):
    return one_client.run(
        client_data.client_dataset(x, self.y, client),
        model=toy.image_model(_SHAPE, image_files=image_files),
        weights=tuple(_weights().trainable),
        round_num=round_num,
        seed=5,
        training={
            'epochs': 2, 'batch_size': 3, 'learning_rate': 0.1, 'augmentation': augmentation
        },
        **more,
    ).update.trainable[0]

  def test_files_train_like_their_pixels(self):
    np.testing.assert_array_equal(
        self._update(self.paths, image_files=True), self._update(self.x)
    )

  def test_data_type_of_files(self):
    model = toy.image_model(_SHAPE, image_files=True)
    self.assertEqual(str(model.data_type), '<x=str[?],y=int32[?],client=int32>*')

  def test_files_evaluate_like_their_pixels(self):
    examples = types.Examples(self.x, self.y)
    of_pixels = evaluation.build_evaluation(toy.image_model(_SHAPE))
    of_files = evaluation.build_evaluation(toy.image_model(_SHAPE, image_files=True))
    expected = evaluation.build_evaluator(of_pixels, examples)(_weights())
    found = evaluation.build_evaluator(of_files, examples._replace(x=self.paths))(_weights())
    for name, value in expected.items():
      np.testing.assert_array_equal(found[name], value)
    self.assertGreater(expected['loss'], 0)

  def test_parts_that_tff_can_carry_give_the_whole(self):
    examples = types.Examples(self.x, self.y)
    computation = evaluation.build_evaluation(toy.image_model(_SHAPE))
    whole = evaluation.build_evaluator(computation, examples)(_weights())
    for name, size in (('_MAX_CHUNK_BYTES', 2 * self.x[0].nbytes), ('_SHARE', 2), ('_SHARE', 3)):
      with absltest.mock.patch.object(evaluation, name, size):
        parts = evaluation.build_evaluator(computation, examples)(_weights())
      self.assertAlmostEqual(parts['accuracy'], whole['accuracy'], places=6)
      self.assertAlmostEqual(parts['loss'], whole['loss'], places=6)
      np.testing.assert_array_equal(parts['confusion'], whole['confusion'])

  def test_augmentation_is_a_function_of_round_and_client(self):
    plain = self._update(self.x)
    first = self._update(self.x, augmentation='crop_flip')
    self.assertFalse(np.array_equal(first, plain))
    np.testing.assert_array_equal(self._update(self.x, augmentation='crop_flip'), first)
    other_round = self._update(self.x, augmentation='crop_flip', round_num=2)
    other_client = self._update(self.x, augmentation='crop_flip', client=1)
    self.assertFalse(np.array_equal(other_round, first))
    self.assertFalse(np.array_equal(other_client, first))

  def test_augmented_files_train_like_augmented_pixels(self):
    np.testing.assert_array_equal(
        self._update(self.paths, image_files=True, augmentation='crop_flip'),
        self._update(self.x, augmentation='crop_flip'),
    )

  def test_views_of_files_are_those_of_their_pixels(self):
    def of_view(s):
      return losses.cross_entropy(s.forward(s.view(s.seed + 1))[0], s.labels)

    of_files, of_pixels = (
        self._update(x, image_files=image_files, augmentation='crop_flip', loss=of_view)
        for x, image_files in ((self.paths, True), (self.x, False))
    )
    np.testing.assert_array_equal(of_files, of_pixels)
    self.assertFalse(np.array_equal(of_files, self._update(self.x, augmentation='crop_flip')))

  def test_missing_file_is_named(self):
    self.paths[3] = b'nowhere/lost.png'
    with self.assertRaisesRegex(Exception, 'nowhere/lost.png'):
      self._update(self.paths, image_files=True)


if __name__ == '__main__':
  absltest.main()
