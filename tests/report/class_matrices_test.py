"""Tests of the matrices of classes: cells are what they are given, at every size."""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tests.report import pictured
from tff_noise.report import class_matrices


class TransitionMatrixTest(parameterized.TestCase):

  def test_cells_are_percent_of_the_true_class(self):
    counts = np.array([[6, 2, 0], [0, 9999, 1], [0, 0, 0]])
    figure = class_matrices.transition_matrix(counts, ['cat', 'dog', 'owl'])
    cells = {t.get_position(): t.get_text() for t in figure.axes[0].texts}
    self.assertEqual(cells, {
        (0, 0): '75.0', (1, 0): '25.0', (1, 1): '100', (2, 1): '<0.1', (2, 2): '–',
    })
    self.assertIn('Transition matrix: 3 of 10,008 labels are wrong (0.0%)', pictured.texts(figure))
    self.assertEqual(pictured.labels(figure.axes[0].yaxis), ['cat', 'dog', 'owl'])

  @parameterized.parameters((14, True), (15, False))
  def test_numbers_or_bars(self, classes, numbers):
    counts = np.full((classes, classes), 2)
    axes = class_matrices.transition_matrix(counts, pictured.names(classes)).axes
    self.assertEqual(bool(axes[0].texts), numbers)
    if not numbers:
      np.testing.assert_allclose([b.get_width() for b in axes[1].patches], 100 / classes)

  def test_diagonal_does_not_drown_the_rest(self):
    counts = 10_000 * np.eye(100, dtype=int) + 10 * np.roll(np.eye(100, dtype=int), 1, axis=1)
    image = class_matrices.transition_matrix(counts, pictured.names(100)).axes[0].images[0]
    self.assertAlmostEqual(image.norm.vmax, 100 * 10 / 10_010)
    shown = image.get_array()
    self.assertEqual(shown.count(), 100)  # The pairs alone: zeros and the diagonal are white.
    self.assertFalse(np.ma.getmaskarray(shown)[0, 1])

  def test_confusions_within_a_group_of_classes_are_not_taken_for_right(self):
    counts = np.zeros((400, 400), int)
    counts[0, 0], counts[0, 1], counts[2, 399] = 6, 2, 5
    image, strip = class_matrices.transition_matrix(counts, pictured.names(400)).axes[:2]
    shown = image.images[0].get_array()
    self.assertEqual(shown.shape, (200, 200))
    self.assertAlmostEqual(shown[0, 0], 25)
    self.assertAlmostEqual(shown[1, 199], 100)
    self.assertAlmostEqual(strip.patches[0].get_width(), 75)

  def test_all_clean(self):
    figure = class_matrices.transition_matrix(5 * np.eye(3, dtype=int), pictured.names(3))
    self.assertIn('Transition matrix: 0 of 15 labels are wrong', pictured.texts(figure))
    self.assertLen(figure.axes, 1)  # No scale of what is not there.

  def test_counts_are_not_changed(self):
    counts = np.ones((3, 3), int)
    class_matrices.transition_matrix(counts, pictured.names(3))
    np.testing.assert_array_equal(counts, np.ones((3, 3)))


class LabelCorrectionsTest(parameterized.TestCase):

  def test_both_on_one_scale(self):
    before, after = np.array([[6, 4], [0, 10]]), np.array([[9, 1], [2, 8]])
    figure = class_matrices.label_corrections(before, after, ['a', 'b'])
    panels = [axes for axes in figure.axes if axes.get_title(loc='left')]
    self.assertEqual(
        [axes.get_title(loc='left') for axes in panels],
        ['4 of 20 wrong (20.0%)', '3 of 20 wrong (15.0%)'],
    )
    self.assertEqual([axes.images[0].norm.vmax for axes in panels], [40, 40])
    self.assertCountEqual([t.get_text() for t in panels[0].texts], ['60.0', '40.0', '100'])
    self.assertCountEqual([t.get_text() for t in panels[1].texts], ['90.0', '10.0', '20.0', '80.0'])

  def test_nothing_wrong_before(self):
    figure = class_matrices.label_corrections(
        np.array([[10, 0], [0, 0]]), np.array([[8, 2], [0, 0]]), ['a', 'b']
    )
    self.assertEqual(figure.axes[0].images[0].norm.vmax, 20)

  def test_nothing_wrong_at_all(self):
    class_matrices.label_corrections(3 * np.eye(2, dtype=int), 3 * np.eye(2, dtype=int), ['a', 'b'])


if __name__ == '__main__':
  absltest.main()
