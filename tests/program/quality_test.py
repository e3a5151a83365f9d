"""Tests of measures of predictions, against numbers worked out by hand."""

import numpy as np
from absl.testing import absltest

from tests.report import run_files
from tff_noise import types
from tff_noise.program import quality

_NAN = float('nan')


class QualityTest(absltest.TestCase):

  def test_rows_of_the_confusion_matrix_are_true_classes(self):
    labels, guesses = np.array([0, 0, 1, types.UNKNOWN, 2]), np.array([0, 2, 1, 1, 0])
    expected = [[1, 0, 1], [0, 1, 0], [1, 0, 0]]
    np.testing.assert_array_equal(quality.confusion_matrix(labels, guesses, 3), expected)
    nobody = quality.confusion_matrix(np.full(2, types.UNKNOWN), guesses[:2], 3)
    np.testing.assert_array_equal(nobody, np.zeros((3, 3)))

  def test_accuracy_by_class_is_unknown_where_a_class_was_not_tried(self):
    found = quality.class_accuracy(np.array([[3, 1, 0], [0, 0, 0], [1, 1, 2]]))
    np.testing.assert_array_equal(found, [0.75, _NAN, 0.5])

  def test_a_client_is_judged_by_the_classes_that_it_holds(self):
    scene = run_files.scene(
        client_of=np.array([0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2], np.int32),
        clean_label=np.array([0, 0, 2, 2, 2, 2, 2, 0, 1, 1, 1, 1], np.int32),
    )
    confusion = np.array([[3, 1, 0], [4, 0, 0], [1, 1, 2]])
    found = quality.client_accuracy(confusion, scene)
    np.testing.assert_allclose(found, [(2 * 0.75 + 0.5) / 3, 0.5, 0.75 / 5])
    untried = quality.client_accuracy(np.array([[3, 1, 0], [0, 0, 0], [1, 1, 2]]), scene)
    np.testing.assert_allclose(untried, [(2 * 0.75 + 0.5) / 3, 0.5, _NAN])

  def test_the_worst_tenth_is_at_least_one_client(self):
    self.assertEqual(quality.worst_tenth(np.array([0.5, _NAN, 0.25, 0.75])), 0.25)
    self.assertAlmostEqual(quality.worst_tenth(np.arange(20) / 20), 0.025)
    self.assertTrue(np.isnan(quality.worst_tenth(np.array([_NAN]))))
    self.assertTrue(np.isnan(quality.worst_tenth(np.array([]))))

  def test_the_worst_clients_are_those_whose_mean_is_told(self):
    accuracy = np.random.RandomState(0).permutation(np.r_[np.arange(20) / 20, _NAN])
    worst = quality.worst_clients(accuracy)
    self.assertCountEqual(accuracy[worst], [0, 0.05])
    self.assertEqual(quality.worst_tenth(accuracy), accuracy[worst].mean())
    np.testing.assert_array_equal(quality.worst_clients(np.array([0.5, _NAN, 0.5])), [1, 0, 0])
    self.assertFalse(quality.worst_clients(np.array([_NAN, _NAN])).any())

  def test_calibration_of_four_examples(self):
    probabilities = np.array([[0.95, 0.05], [0.9, 0.1], [0.45, 0.55], [0.5, 0.5], [1, 0]])
    labels = np.array([0, 1, 1, 1, types.UNKNOWN])
    found = quality.calibration(probabilities, labels)
    np.testing.assert_array_equal(found.count, [0, 0, 0, 0, 0, 2, 0, 0, 0, 2])
    np.testing.assert_allclose(found.confidence[[5, 9]], [0.525, 0.925])
    np.testing.assert_allclose(found.accuracy[[5, 9]], [0.5, 0.5])
    self.assertAlmostEqual(found.error, (2 * 0.025 + 2 * 0.425) / 4)
    self.assertTrue(np.isnan(quality.calibration(probabilities[:0], labels[:0]).error))

  def test_what_is_no_number_is_in_no_bin(self):
    found = quality.calibration(np.array([[0.95, 0.05], [np.nan, np.nan]]), np.array([0, 0]))
    self.assertEqual((found.count.sum(), found.count[9]), (1, 1))
    self.assertTrue(np.isnan(found.error))


if __name__ == '__main__':
  absltest.main()
