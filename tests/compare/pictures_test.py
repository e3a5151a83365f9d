"""Tests of the pictures of comparisons: what is in them, and that they can be read."""

import matplotlib
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tests.report import pictured
from tff_noise.compare import pictures
from tff_noise.report import figure_style


class ReadableTest(parameterized.TestCase):

  @parameterized.parameters(1, 3, 12)
  def test_heat_map_labels_are_apart(self, count):
    names = [f'a rather long setting {i}' for i in range(count)]
    values = np.full((count, count), 0.5)
    figure = pictures.heat_map(values, names, names, title='t', spread=values, counts=None)
    axes = figure.axes[0]
    self.assertEmpty(pictured.overlaps(figure, axes.get_yticklabels))
    self.assertEmpty(pictured.overlaps(figure, lambda: axes.texts))

  @parameterized.parameters(2, 5, 9)
  def test_methods_differ_in_lightness_line_and_marker(self, count):
    figure = pictures.accuracy_curves(
        {str(i): np.full((2, 5), i / 9) for i in range(count)}, title='t'
    )
    lines = figure.axes[0].lines
    grey = [np.dot(matplotlib.colors.to_rgb(line.get_color()), (0.299, 0.587, 0.114))
            for line in lines]
    self.assertTrue((np.diff(grey) > 0.03).all(), grey)
    self.assertLess(max(grey), 0.75)  # Still dark enough on white.
    self.assertLen({(line.get_linestyle(), line.get_marker()) for line in lines}, count)


  @parameterized.parameters(1, 2, 7, 100, 300, 5000)
  def test_ticks_of_curves_are_apart(self, rounds):
    figure = pictures.accuracy_curves({'a': np.ones((2, rounds))}, title='t')
    (axes,) = figure.axes
    self.assertEmpty(pictured.overlaps(figure, axes.get_xticklabels, axes.get_yticklabels))

  def test_nothing_of_curves_is_cut_off(self):
    curves = {f'method {i} with a name': np.ones((5, 9)) for i in range(9)}
    figure = pictures.accuracy_curves(curves, title='t')
    renderer = pictured.rendered(figure)
    for part in (*figure.findobj(matplotlib.legend.Legend), figure.axes[0]._left_title):
      box = part.get_window_extent(renderer)
      self.assertBetween(box.x0, -1, box.x1)
      self.assertLessEqual(box.x1, figure.bbox.width + 1, part)

  def test_long_names_are_not_cut_off(self):
    name = 'feddpcont:label_prior=inverse:param=weight=0.{}:learning_rate=0.1'
    names = [name.format(i) for i in range(24)]
    for figure in (
        pictures.accuracy_curves({n: np.ones((3, 9)) for n in names}, title='t'),
        pictures.heat_map(np.ones((24, 1)), names, ['all'], title='t'),
        pictures.mean_ranks({n: i for i, n in enumerate(names, 1)}, (), 1.0, title='t'),
    ):
      renderer = pictured.rendered(figure)
      axes = figure.axes[0]
      legends = figure.findobj(matplotlib.legend.Legend)
      for part in (*legends, *axes.texts, *axes.get_yticklabels()):
        box = part.get_window_extent(renderer)
        # Beside mean ranks with a space at its end.
        self.assertBetween(box.x0, -6, box.x1)
        self.assertLessEqual(box.x1, figure.bbox.width + 6, part)
      for legend in legends:
        box = legend.get_window_extent(renderer)
        self.assertLess(box.y1, axes.get_window_extent(renderer).y0)

  def test_powers_beside_0_have_places_of_their_own(self):
    values = {v: {'a': np.ones(3), 'none': np.zeros(0)} for v in (0, 0.0001, 0.01, 1)}
    figure = pictures.swept(values, name='x', title='t')
    (axes,) = figure.axes
    self.assertEmpty(pictured.overlaps(figure, axes.get_xticklabels))
    [legend] = figure.findobj(matplotlib.legend.Legend)
    self.assertEqual([t.get_text() for t in legend.get_texts()], ['a'])

  @parameterized.parameters((1, 9, 1), (5, 9, 1), (19, 9, 1), (1, 1, 5), (4, 1, 5), (4, 3, 9))
  def test_differences_are_apart_and_have_room(self, count, methods, words):
    found = {f'method {i} ' + 'with a name ' * words: (i, i - 1.0, i + 1.0) for i in range(methods)}
    figure = pictures.differences(
        {f'{i} of ' + 'a rather long setting ' * words: found for i in range(count)},
        title='t', x='x',
    )
    panels = [axes for axes in figure.axes if axes.lines]
    self.assertLen(panels, count)
    renderer = pictured.rendered(figure)
    for axes in panels:
      box = axes.get_window_extent(renderer)
      self.assertGreater(box.width, 0.1 * figure.bbox.width)
      self.assertGreater(box.height, 10 * methods)
    labels = [w for axes in panels for w in (axes.get_xticklabels, axes.get_yticklabels)]
    self.assertEmpty(pictured.overlaps(figure, *labels))


class ContentTest(absltest.TestCase):

  def test_mean_and_band_by_hand(self):
    curves = {'a': np.array([[0.1, 0.4], [0.3, 0.8]]), 'b': np.array([[0.5, 0.5]])}
    axes = pictures.accuracy_curves(curves, title='t').axes[0]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [20, 60])
    self.assertLen(axes.collections, 1)  # One seed has no spread.
    lowest = axes.collections[0].get_paths()[0].vertices[:, 1].min()
    self.assertAlmostEqual(lowest, 20 - np.sqrt(200))

  def test_curves_state_their_seeds_and_skip_gaps(self):
    curves = {'a': np.array([[np.nan, 0.5, np.nan, 0.6]]), 'empty': np.full((2, 4), np.nan)}
    figure = pictures.accuracy_curves(curves, title='t')
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_xdata(), [2, 4])
    self.assertIn('a (n = 1)', pictured.texts(figure))
    self.assertLen(figure.axes[0].lines, 1)

  def test_a_sweep_is_drawn_over_its_values_in_order(self):
    figure = pictures.swept(
        {0.4: {'a': np.array([50.0, 60.0])}, 0.2: {'a': np.array([80.0]), 'b': np.array([70.0])}},
        name='noise_rate', title='Best',
    )
    line = figure.axes[0].containers[0].lines[0]
    np.testing.assert_allclose(line.get_xdata(orig=False), [0.2, 0.4])
    np.testing.assert_allclose(line.get_ydata(orig=False), [80, 55])
    self.assertContainsSubset(['noise_rate', 'a', 'b'], pictured.texts(figure))

  def test_a_sweep_over_powers_has_an_axis_of_powers(self):
    for values, scale in (((0.001, 0.01, 1.0), 'log'), ((0.2, 0.8), 'linear'), ((0, 9), 'linear')):
      figure = pictures.swept(
          {v: {'a': np.array([50.0])} for v in values}, name='learning_rate', title='Best'
      )
      axes = figure.axes[0]
      self.assertEqual(axes.get_xscale(), scale)
      pictured.rendered(figure)
      shown = [t.get_text() for t in axes.get_xticklabels()]
      self.assertEqual(shown, [f'{v:g}' for v in values])
      self.assertEmpty(pictured.overlaps(figure, axes.get_xticklabels))

  def test_long_names_are_fewer_to_a_line_of_the_legend(self):
    for name, columns in (('m', 3), (40 * 'm', 2), (80 * 'm', 1)):
      curves = {f'{name}{i}': np.array([[0.5, 0.6]]) for i in range(3)}
      figure = pictures.accuracy_curves(curves, title='t')
      self.assertEqual(figure.legends[0]._ncols, columns)

  def test_heat_map_of_many_columns_has_room_for_its_numbers(self):
    values = np.full((2, 30), 90.12)
    figure = pictures.heat_map(
        values, ['m', 'n'], [f's{i}' for i in range(30)], title='Best',
        spread=np.full((2, 30), 0.34),
    )
    self.assertIn('90.12', pictured.texts(figure))
    self.assertEmpty(pictured.overlaps(figure, lambda: figure.axes[0].texts))

  def test_heat_map_prints_its_numbers(self):
    figure = pictures.heat_map(
        np.array([[0.5, np.nan]]), ['m'], ['s', 't'], title='Best', spread=np.array([[0.25, 0.1]]),
        counts=np.array([[5, 3]]),
    )
    expected = ['0.50 ±0.25', '–', 'Best (n = 3 to 5 seeds)']
    self.assertContainsSubset(expected, pictured.texts(figure))

  def test_differences_are_filled_where_they_are_told(self):
    figure = pictures.differences(
        {
            '$s': {'a': (2.0, 1.0, 3.0), 'b': (-1.0, -3.0, 1.0)},
            't': {'b': (-2.0, np.nan, np.nan)},
        },
        title='t', x='x',
    )
    first, second = figure.axes
    dots = [
        [(*line.get_xdata(), *line.get_ydata(), line.get_markerfacecolor() != 'white')
         for line in axes.lines if line.get_marker() == 'o']
        for axes in (first, second)
    ]
    self.assertEqual(dots, [[(2, 0, True), (-1, 1, False)], [(-2, 1, False)]])
    intervals = [tuple(line.get_xdata()) for line in first.lines if line.get_linewidth() == 1.2]
    self.assertEqual(intervals, [(1, 3), (-3, 1)])
    self.assertEqual([t.get_text() for t in first.get_yticklabels()], ['a', 'b'])
    self.assertEqual(first.get_xlim(), second.get_xlim())
    self.assertBetween(first.get_xlim()[0], -4, -3)
    self.assertBetween(first.get_xlim()[1], 3, 4)
    lower, upper = first.get_ylim()
    self.assertBetween(upper, -1, 0)  # The first method is above the others.
    self.assertBetween(lower, 1, 2)
    figure_style.png(figure)

  def test_an_interval_far_longer_than_the_others_ends_in_an_arrow(self):
    (axes,) = pictures.differences(
        {'s': {'a': (1.0, 0.5, 1.5), 'b': (2.0, -50.0, 3.0)}}, title='t', x='x'
    ).axes
    left, right = axes.get_xlim()
    self.assertBetween(left, -3, -2)
    self.assertBetween(right, 3, 4)
    arrows = [line for line in axes.lines if line.get_marker() in '<>']
    self.assertEqual([(*a.get_xdata(), *a.get_ydata()) for a in arrows], [(left, 1)])

  def test_decision_map_has_its_lines_where_they_belong(self):
    cells = {
        ('symmetric', 'IID'): (12.0, ['ELR 96.3', '+12.0 to $x$']),
        ('none', 'open-set'): (-0.5, ['FedAvg 98.0']),
    }
    figure = pictures.decision_map(cells, title='t', rows='noise', columns='federation')
    (axes,) = figure.axes
    self.assertEqual([t.get_text() for t in axes.get_xticklabels()], ['IID', 'open-set'])
    self.assertEqual([t.get_text() for t in axes.get_yticklabels()], ['symmetric', 'none'])
    places = {t.get_text(): t.xy for t in axes.texts}
    self.assertEqual(places['ELR 96.3'], (0, 0))
    self.assertEqual(places['FedAvg 98.0'], (1, 1))
    figure_style.png(figure)

  def test_heat_map_of_equal_or_no_numbers(self):
    for value, text in ((0.5, '0.50'), (np.nan, '–')):
      figure = pictures.heat_map(np.full((1, 1), value), ['m'], ['s'], title='t')
      self.assertIn(text, pictured.texts(figure))

  def test_names_are_no_formulas(self):
    names = ['$x^', '$\\frac{$', 'a_b']
    curves = {name: np.ones((1, 3)) for name in names}
    figure_style.png(pictures.accuracy_curves(curves, title='$$\\x$'))
    figure_style.png(pictures.heat_map(np.ones((3, 3)), names, names, title='$$\\x$'))


if __name__ == '__main__':
  absltest.main()
