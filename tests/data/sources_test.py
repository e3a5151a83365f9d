"""Tests of the data sets."""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized
from sklearn import datasets

from tff_noise.data import sources


class EveryDatasetTest(parameterized.TestCase):

  @parameterized.parameters(*((name,) for name in sources.DATASETS))
  def test_keeps_the_contract_of_types_dataset(self, name):
    dataset = sources.load(name)
    self.assertEqual(dataset.name, name)
    for x, y in ((dataset.train_x, dataset.train_y), (dataset.test_x, dataset.test_y)):
      self.assertEqual((x.dtype, y.dtype), (np.uint8, np.int32))
      self.assertEqual((x.ndim, y.shape), (4, (len(x),)))
      # All classes on both sides, or accuracy would not mean what it says.
      np.testing.assert_array_equal(np.unique(y), np.arange(dataset.num_classes))
    self.assertAlmostEqual(dataset.train_x.max() * dataset.pixel_scale, 1)

  def test_unknown_name(self):
    with self.assertRaises(KeyError):
      sources.load('no such data')


class DigitsTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.digits = sources.load('digits')

  def test_shapes_and_pixels(self):
    self.assertEqual(self.digits.train_x.shape, (1400, 8, 8, 1))
    self.assertEqual(self.digits.test_x.shape, (397, 8, 8, 1))
    for x in (self.digits.train_x, self.digits.test_x):
      self.assertEqual((x.min(), x.max()), (0, 16))
    self.assertEqual(self.digits.pixel_scale, 1 / 16)

  def test_every_image_is_used_exactly_once_and_keeps_its_label(self):
    bunch = datasets.load_digits()
    x = np.concatenate([self.digits.train_x, self.digits.test_x])
    y = np.concatenate([self.digits.train_y, self.digits.test_y])
    found = sorted((image.tobytes(), int(label)) for image, label in zip(x, y, strict=True))
    expected = sorted(
        (image.astype(np.uint8).tobytes(), int(label))
        for image, label in zip(bunch.images, bunch.target, strict=True)
    )
    self.assertEqual(found, expected)

  def test_split_is_the_same_every_time(self):
    np.random.seed(123)
    again = sources.load('digits')
    np.testing.assert_array_equal(again.train_x, self.digits.train_x)
    np.testing.assert_array_equal(again.test_y, self.digits.test_y)

  def test_split_is_pinned(self):
    # Another split would make published accuracies incomparable.
    self.assertEqual(self.digits.train_y[:12].tolist(), [9, 9, 8, 6, 5, 4, 6, 9, 1, 6, 7, 9])
    self.assertEqual(self.digits.test_y[:12].tolist(), [4, 9, 2, 9, 9, 2, 4, 9, 1, 2, 0, 3])

  def test_split_is_shuffled_over_writers(self):
    # The file is sorted by writer, so its tail alone would be a test on strangers.
    bunch = datasets.load_digits()
    tail = {image.astype(np.uint8).tobytes() for image in bunch.images[1400:]}
    in_test = sum(image.tobytes() in tail for image in self.digits.test_x)
    # Expected 397 * 397 / 1797 = 88, standard error 7.4.
    self.assertBetween(in_test, 88 - 30, 88 + 30)


if __name__ == '__main__':
  absltest.main()
