"""Tests of data sets that are folders of images."""

import os
import pathlib

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized
from PIL import Image

from tff_noise import types
from tff_noise.data import image_folder


class _Test(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.create_tempdir().full_path)

  def touch(self, *names):
    for name in names:
      path = self.root / name
      path.parent.mkdir(parents=True, exist_ok=True)
      path.touch()

  def paths(self, *names):
    return [os.fsencode(self.root / name) for name in names]


class LoadTest(_Test):

  def write(self):
    self.touch(
        'train/dog/2.JPG', 'train/dog/10.jpeg', 'train/cat/b.png', 'train/cat/a.Png',
        'test/dog/1.jpg', 'test/cat/1.jpg',
    )

  def assert_refused(self, message, **kwargs):
    with self.assertRaisesRegex(types.UsageError, message) as raised:
      image_folder.load(str(self.root), **kwargs)
    self.assertNotIn('\n', str(raised.exception))

  def test_sorted_paths_and_classes(self):
    self.write()
    dataset = image_folder.load(str(self.root))
    self.assertEqual(dataset.class_names, ('cat', 'dog'))
    self.assertEqual(dataset.train_x.tolist(), self.paths(
        'train/cat/a.Png', 'train/cat/b.png', 'train/dog/10.jpeg', 'train/dog/2.JPG'
    ))
    self.assertEqual(dataset.train_y.tolist(), [0, 0, 1, 1])
    self.assertEqual(dataset.test_x.tolist(), self.paths('test/cat/1.jpg', 'test/dog/1.jpg'))
    self.assertEqual(dataset.test_y.tolist(), [0, 1])

  def test_contract(self):
    self.write()
    dataset = image_folder.load(str(self.root))
    self.assertEqual((dataset.name, dataset.num_classes), ('image_folder', 2))
    self.assertEqual(dataset.image_shape, (224, 224, 3))
    self.assertEqual((dataset.train_x.dtype.kind, dataset.train_y.dtype), ('S', np.int32))
    self.assertIsNone(dataset.human_y)
    np.testing.assert_allclose(
        np.array([255] * 3) * dataset.pixel_scale + dataset.pixel_offset,
        [(1 - 0.485) / 0.229, (1 - 0.456) / 0.224, (1 - 0.406) / 0.225],
    )

  def test_relative_folder(self):
    self.write()
    self.addCleanup(os.chdir, os.getcwd())
    os.chdir(self.root.parent)
    dataset = image_folder.load(self.root.name)
    self.assertEqual(dataset.test_x[0], os.fsencode(self.root.resolve() / 'test/cat/1.jpg'))

  def test_image_size(self):
    self.write()
    self.assertEqual(image_folder.load(str(self.root), 96).image_shape, (96, 96, 3))
    self.assert_refused('--image_size=-3 is not a number of pixels: give 1 or more', image_size=-3)

  def test_hidden_files_are_ignored(self):
    self.write()
    self.touch('train/.DS_Store', 'train/.git/x', 'train/cat/.thumbs', 'test/dog/.a.jpg')
    self.assertLen(image_folder.load(str(self.root)).train_x, 4)
    self.assertLen(image_folder.load(str(self.root)).test_x, 2)

  def test_test_set_may_lack_classes(self):
    self.write()
    self.touch('train/ant/1.jpg')
    self.assertEqual(image_folder.load(str(self.root)).test_y.tolist(), [1, 2])

  def test_names_beyond_ascii(self):
    self.write()
    self.touch('train/Käfer/ä ö.jpg')
    dataset = image_folder.load(str(self.root))
    self.assertEqual(dataset.class_names, ('Käfer', 'cat', 'dog'))
    self.assertTrue(os.path.isfile(dataset.train_x[0]))

  def test_names_that_tables_cannot_show(self):
    self.write()
    self.touch('train/two\nlines/1.jpg')
    self.assert_refused('whose name has a line break or another control character: rename it')

  @parameterized.parameters('train', 'test')
  def test_missing_part(self, part):
    other = 'test' if part == 'train' else 'train'
    self.touch(f'{other}/cat/1.jpg', f'{other}/dog/1.jpg')
    self.assert_refused(rf'{self.root}/{part} is no folder: --data_dir must hold train/ and test/')

  def test_no_class(self):
    self.write()
    (self.root / 'empty').mkdir()
    (self.root / 'train').rename(self.root / 'old')
    (self.root / 'empty').rename(self.root / 'train')
    self.assert_refused(f'{self.root}/train holds no class: it must have a folder of images')

  def test_one_class(self):
    self.touch('train/cat/1.jpg', 'test/cat/1.jpg')
    self.assert_refused(f'{self.root}/train has one class only, cat: give at least two')

  @parameterized.parameters('train', 'test')
  def test_empty_class(self, part):
    self.write()
    (self.root / part / 'cat' / ('b.png' if part == 'train' else '1.jpg')).unlink()
    if part == 'train':
      (self.root / 'train/cat/a.Png').unlink()
    self.assert_refused(f'{self.root}/{part}/cat holds no image: put files that end in .jpg')

  def test_unknown_class_in_the_test_set(self):
    self.write()
    self.touch('test/cow/1.jpg')
    self.assert_refused(
        f'{self.root}/test/cow is the folder of an unknown class: the classes are cat, dog;'
    )

  @parameterized.parameters(
      'train/cat/notes.txt', 'test/dog/1.gif', 'train/cat/jpg', 'train/cat/more/1.jpg',
      'train/cat/folder.jpg/1.jpg',
  )
  def test_stray_file_in_a_class(self, name):
    self.write()
    self.touch(name)
    stray = '/'.join(name.split('/')[:3])
    self.assert_refused(
        rf'{self.root}/{stray} is no image file: .* only files that end in \.jpg, \.jpeg, \.png;'
    )

  def test_a_link_to_nothing_is_no_reason_to_remove_an_image(self):
    self.write()
    os.symlink('/nowhere/0.jpg', os.path.join(self.root, 'train/cat/0.jpg'))
    self.assert_refused(f'{self.root}/train/cat/0.jpg is a link to what is not there: bring')

  @parameterized.parameters('train/notes.txt', 'test/1.jpg')
  def test_stray_file_beside_the_classes(self, name):
    self.write()
    self.touch(name)
    self.assert_refused(f'{self.root}/{name} is not in the folder of a class: .* move or remove')


class ReadLabelledTest(_Test):

  def test_labels_are_positions_in_the_names_given(self):
    self.touch('a/1.jpg', 'c/1.jpg', 'c/2.jpg')
    examples = image_folder.read_labelled(str(self.root), ('c', 'b', 'a'))
    self.assertEqual(examples.x.tolist(), self.paths('a/1.jpg', 'c/1.jpg', 'c/2.jpg'))
    self.assertEqual((examples.y.tolist(), examples.y.dtype), ([2, 0, 0], np.int32))

  def test_unknown_class(self):
    self.touch('a/1.jpg', 'd/1.jpg')
    with self.assertRaisesRegex(types.UsageError, '/d is the folder of an unknown class'):
      image_folder.read_labelled(str(self.root), ('a', 'b'))

  def test_missing_folder(self):
    message = rf'{self.root}/no cannot be read \(No such file or directory\): a folder with'
    with self.assertRaisesRegex(types.UsageError, message):
      image_folder.read_labelled(str(self.root / 'no'), ('a', 'b'))


class ReadPixelsTest(_Test):

  def save(self, name, pixels, mode=None):
    image = Image.fromarray(np.asarray(pixels, np.uint8))
    (image.convert(mode) if mode else image).save(self.root / name)
    return np.array([os.fsencode(self.root / name)])

  def test_rgb(self):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8)
    read = image_folder.read_pixels(self.save('a.png', pixels), (4, 6, 3))
    self.assertEqual(read.dtype, np.uint8)
    np.testing.assert_array_equal(read, pixels[None])

  def test_grey(self):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6), np.uint8)
    paths = self.save('a.png', pixels)
    np.testing.assert_array_equal(
        image_folder.read_pixels(paths, (4, 6, 1)), pixels[None, ..., None]
    )
    np.testing.assert_array_equal(
        image_folder.read_pixels(paths, (4, 6, 3)), np.repeat(pixels[None, ..., None], 3, axis=3)
    )

  @parameterized.parameters('RGBA', 'P', 'L', 'CMYK')
  def test_other_modes_of_colour(self, mode):
    pixels = np.full((4, 4, 3), 255)
    name = 'a.jpg' if mode == 'CMYK' else 'a.png'
    read = image_folder.read_pixels(self.save(name, pixels, mode), (4, 4, 3))
    np.testing.assert_allclose(read, 255, atol=2)

  def test_sixteen_bits_keep_the_higher_byte(self):
    pixels = np.array([[0, 255, 256], [32768, 65279, 65535]], np.uint16)
    Image.fromarray(pixels).save(self.root / 'a.png')
    paths = np.array([os.fsencode(self.root / 'a.png')])
    read = image_folder.read_pixels(paths, (2, 3, 1))
    np.testing.assert_array_equal(read[0, :, :, 0], [[0, 0, 1], [128, 254, 255]])

  def test_pixels_of_another_kind_are_refused(self):
    Image.fromarray(np.ones((2, 2), np.float32)).save(self.root / 'a.png', format='TIFF')
    with self.assertRaisesRegex(types.UsageError, 'its pixels are of mode F'):
      image_folder.read_pixels(np.array([os.fsencode(self.root / 'a.png')]), (2, 2, 1))

  def test_scale_of_the_data_set(self):
    read = image_folder.read_pixels(self.save('a.png', [[0, 128, 255]]), (1, 3, 1), 16)
    np.testing.assert_array_equal(read[0, 0, :, 0], [0, 8, 16])
    self.assertEqual(read.dtype, np.uint8)

  def test_colour_to_grey(self):
    pixels = np.zeros((2, 2, 3))
    pixels[..., 1] = 200  # ITU-R 601: green counts 587 of 1000.
    read = image_folder.read_pixels(self.save('a.png', pixels), (2, 2, 1))
    np.testing.assert_allclose(read, 117, atol=1)

  def test_resized_to_height_and_width(self):
    pixels = np.zeros((8, 4, 3))
    pixels[4:] = 240  # The lower half is white.
    read = image_folder.read_pixels(self.save('a.png', pixels), (2, 6, 3))[0]
    self.assertEqual(read.shape, (2, 6, 3))
    self.assertLess(read[0].max(), 60)
    self.assertGreater(read[1].min(), 180)

  def test_several_keep_their_order(self):
    paths = np.concatenate([
        self.save(f'{i}.png', np.full((3, 3, 3), i)) for i in (5, 1, 3)
    ])
    self.assertEqual(image_folder.read_pixels(paths, (3, 3, 3))[:, 0, 0, 0].tolist(), [5, 1, 3])

  def test_unreadable(self):
    good = (self.save('good.png', np.zeros((9, 9, 3))), (self.root / 'good.png').read_bytes())[1]
    for name, content in (('a.jpg', b'text'), ('b.png', b''), ('c.png', good[:-30])):
      (self.root / name).write_bytes(content)
      message = rf'^{self.root}/{name} cannot be read as an image \(.*\): replace or remove it$'
      with self.assertRaisesRegex(types.UsageError, message):
        image_folder.read_pixels(np.array([os.fsencode(self.root / name)]), (9, 9, 3))
    with self.assertRaisesRegex(types.UsageError, '/none.png cannot be read as an image'):
      image_folder.read_pixels(np.array([os.fsencode(self.root / 'none.png')]), (9, 9, 3))

  def test_channels_that_image_files_do_not_have(self):
    with self.assertRaisesRegex(types.UsageError, r'1 channel \(grey\) or 3 \(RGB\), not the 2'):
      image_folder.read_pixels(self.save('a.png', np.zeros((3, 3, 3))), (3, 3, 2))


if __name__ == '__main__':
  absltest.main()
