"""Tests of what happens to images before the model."""

import os

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized
from PIL import Image

from tff_noise.models import images

_SEED = np.array([1, 2], np.int32)


def _numbered(count, height, width):
  """Images in which every pixel is another positive number."""
  x = 1 + np.arange(count * height * width, dtype=np.int32).reshape(count, height, width, 1)
  return tf.constant(x)


class ReadTest(parameterized.TestCase):

  def test_pixels_stay_as_they_are(self):
    x = tf.constant(np.arange(12, dtype=np.uint8).reshape(1, 2, 2, 3))
    self.assertIs(images.read(x, (2, 2, 3)), x)

  @parameterized.parameters('png', 'PNG')
  def test_file_of_the_right_size_is_its_pixels(self, suffix):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3)).astype(np.uint8)
    folder = self.create_tempdir().full_path
    paths = [os.path.join(folder, f'{i}.{suffix}') for i in range(3)]
    for path, image in zip(paths, pixels, strict=True):
      Image.fromarray(image).save(path, format='PNG')
    np.testing.assert_array_equal(images.read(tf.constant(paths), (4, 5, 3)), pixels)

  def test_other_sizes_are_brought_to_it_and_grey_becomes_colour(self):
    folder = self.create_tempdir().full_path
    paths = [os.path.join(folder, name) for name in ('small.png', 'large.jpg')]
    Image.fromarray(np.full((2, 3), 90, np.uint8)).save(paths[0])
    Image.fromarray(np.full((40, 30, 3), 200, np.uint8)).save(paths[1], quality=95)
    x = images.read(tf.constant(paths), (8, 8, 3))
    self.assertEqual(x.shape, (2, 8, 8, 3))
    self.assertEqual(x.dtype, tf.uint8)
    np.testing.assert_allclose(x[0], 90)
    np.testing.assert_allclose(x[1], 200, atol=2)

  def test_missing_file_is_named(self):
    with self.assertRaisesRegex(tf.errors.NotFoundError, 'nowhere.png'):
      images.read(tf.constant(['nowhere.png']), (8, 8, 3))


class CropAndFlipTest(parameterized.TestCase):

  def test_is_a_shift_of_the_image_mirrored_or_not(self):
    x = _numbered(64, 6, 7)
    changed = images.crop_and_flip(x, _SEED).numpy()
    self.assertEqual(changed.shape, x.shape)
    padded = np.pad(x.numpy(), [(0, 0), (4, 4), (4, 4), (0, 0)])
    seen = set()
    for i in range(64):
      found = [
          (r, c, mirrored)
          for r in range(9) for c in range(9) for mirrored in (False, True)
          if np.array_equal(
              changed[i],
              padded[i, r : r + 6, c : c + 7][:, ::-1] if mirrored
              else padded[i, r : r + 6, c : c + 7],
          )
      ]
      self.assertLen(found, 1)
      seen.add(found[0])
    # Of 162 outcomes, 64 draws hit about 53.
    self.assertGreater(len(seen), 40)
    self.assertLen({r for r, _, _ in seen}, 9)
    self.assertLen({c for _, c, _ in seen}, 9)
    self.assertLen({m for _, _, m in seen}, 2)

  def test_half_of_the_images_are_mirrored(self):
    # A mirrored row of rising numbers falls.
    changed = images.crop_and_flip(_numbered(2000, 1, 9), _SEED).numpy()[:, :, 4:6, 0]
    visible = changed.reshape(2000, 2).min(axis=1) > 0
    falling = changed[visible, 0, 0] > changed[visible, 0, 1]
    self.assertBetween(falling.mean(), 0.44, 0.56)

  def test_seed_alone_decides(self):
    x = _numbered(8, 8, 8)
    first = images.crop_and_flip(x, _SEED).numpy()
    np.testing.assert_array_equal(images.crop_and_flip(x, _SEED), first)
    self.assertFalse(np.array_equal(images.crop_and_flip(x, _SEED + 1), first))

  def test_keeps_bytes(self):
    x = tf.zeros([0, 8, 8, 3], tf.uint8)
    changed = images.crop_and_flip(x, _SEED)
    self.assertEqual(changed.shape, (0, 8, 8, 3))
    self.assertEqual(changed.dtype, tf.uint8)



class SecondViewTest(parameterized.TestCase):

  @parameterized.product(change=['mirror_and_recolour', 'rotate'], dtype=[np.uint8, np.float32])
  def test_is_a_function_of_the_seed_in_shape_type_and_range(self, change, dtype):
    x = tf.constant(np.random.default_rng(0).integers(0, 256, (4, 6, 7, 3)).astype(dtype))
    views = []
    for i in range(20):
      seed = np.array([3, i], np.int32)
      view = getattr(images, change)(x, seed)
      self.assertEqual((view.shape, view.dtype), (x.shape, x.dtype))
      self.assertBetween(tf.reduce_min(view).numpy(), 0, 255)
      self.assertBetween(tf.reduce_max(view).numpy(), 0, 255)
      np.testing.assert_array_equal(view, getattr(images, change)(x, seed))
      views.append(view.numpy().tobytes())
    self.assertGreater(len(set(views)), 15)

  def test_how_often_colours_change(self):
    x = np.random.default_rng(0).integers(60, 120, (1, 4, 5, 3)).astype(np.uint8)
    counts = dict.fromkeys(['neither', 'mirrored', 'grey'], 0)
    for i in range(400):
      view = images.mirror_and_recolour(tf.constant(x), np.array([i, 5], np.int32)).numpy()
      counts['neither'] += (view == x).all()
      counts['mirrored'] += (view == x[:, :, ::-1]).all()
      counts['grey'] += (view == view[..., :1]).all()
    # In a fifth colours stay, in four fifths of these they are not taken away.
    self.assertBetween(counts['neither'], 15, 50)  # 400 * .5 * .2 * .8 = 32
    self.assertBetween(counts['mirrored'], 15, 50)
    self.assertBetween(counts['grey'], 55, 110)  # 80

  def test_one_draw_is_for_the_whole_batch(self):
    one = np.random.default_rng(0).integers(0, 256, (1, 6, 7, 3)).astype(np.uint8)
    for change in (images.mirror_and_recolour, images.rotate):
      view = change(tf.constant(np.tile(one, (5, 1, 1, 1))), _SEED).numpy()
      np.testing.assert_array_equal(view, np.tile(view[:1], (5, 1, 1, 1)))

  def test_rotates_about_the_middle_by_up_to_30_degrees(self):
    x = np.zeros((1, 41, 41, 1), np.uint8)
    x[0, 18:23, 38] = 255  # To the right of the middle, by 18.
    x[0, 20, 20] = 1
    angles = []
    for i in range(100):
      view = images.rotate(tf.constant(x), np.array([i, 5], np.int32)).numpy()[0, :, :, 0]
      self.assertEqual(view[20, 20], 1)
      rows, columns = np.nonzero(view == 255)
      angles.append(np.degrees(np.arctan2(rows.mean() - 20, columns.mean() - 20)))
      self.assertAlmostEqual(np.hypot(rows.mean() - 20, columns.mean() - 20), 18, delta=0.7)
    self.assertBetween(min(angles), -31.5, -25)
    self.assertBetween(max(angles), 25, 31.5)


if __name__ == '__main__':
  absltest.main()
