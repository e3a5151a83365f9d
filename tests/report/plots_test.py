"""Tests of the pictures: what is in them, that they can be read, that they do not change."""

import re

import matplotlib
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized
from matplotlib.backends import backend_agg

from tff_noise.report import figure_style
from tff_noise.report import plots


def _rendered(figure):
  canvas = backend_agg.FigureCanvasAgg(figure)
  canvas.draw()
  return canvas.get_renderer()


def _texts(figure):
  """Every text of a figure, of legends too."""
  return [t.get_text() for t in figure.findobj(matplotlib.text.Text) if t.get_text()]


def _boxes(figure, labels):
  renderer = _rendered(figure)
  return [t.get_window_extent(renderer) for t in labels() if t.get_visible() and t.get_text()]


def _overlaps(boxes):
  return [
      (i, j)
      for i, a in enumerate(boxes)
      for j, b in enumerate(boxes[i + 1:], i + 1)
      if min(a.x1, b.x1) > max(a.x0, b.x0) and min(a.y1, b.y1) > max(a.y0, b.y0)
  ]


def _names(classes):
  return tuple(map(str, range(classes)))


def _shares(classes):
  return np.full(classes, 1 / classes)


def _label_distribution(classes, error=0.01):
  uniform = _shares(classes)
  return plots.label_distribution(
      uniform, uniform, uniform, np.full(classes, error), uniform, _names(classes),
      prior_name='shrinkage', num_labels=1234,
  )


def _rates(clients):
  return np.linspace(0, 1, clients), np.linspace(0.1, 0.9, clients), np.arange(1, clients + 1)


_STAGES = ('preprocess',) * 5 + ('finetune',) * 35 + ('usual',) * 60
_ROUNDS = np.arange(1, 101)
_VALUES = np.linspace(0.1, 0.9, 100)


class ReadableTest(parameterized.TestCase):

  @parameterized.product(
      picture=('federation', 'noise_rates', 'label_distribution', 'far_label_distribution'),
      size=(1, 20, 25, 26, 100, 250),
  )
  def test_no_tick_label_overlaps_another(self, picture, size):
    figure = {
        'federation': lambda: plots.federation(np.full((size, size), 7), _names(size)),
        'noise_rates': lambda: plots.noise_rates(*_rates(size)),
        'label_distribution': lambda: _label_distribution(size),
        'far_label_distribution': lambda: _label_distribution(size, error=20.0),
    }[picture]()
    self._assert_apart(figure)

  @parameterized.parameters(1, 3, 12)
  def test_heat_map_labels_are_apart(self, count):
    names = [f'a rather long setting {i}' for i in range(count)]
    values = np.full((count, count), 0.5)
    figure = plots.heat_map(values, names, names, title='t', spread=values, counts=None)
    axes = figure.axes[0]
    self.assertEmpty(_overlaps(_boxes(figure, axes.get_yticklabels)))
    self.assertEmpty(_overlaps(_boxes(figure, lambda: axes.texts)))

  @parameterized.parameters(1, 2, 7, 100, 300, 5000)
  def test_curves_tick_labels_are_apart(self, rounds):
    x = np.arange(1, rounds + 1)
    self._assert_apart(plots.accuracy(x, x / rounds))
    self._assert_apart(plots.losses(x, x * 1e5, -x * 1e-5))
    self._assert_apart(plots.seconds(x.astype(float)))
    self._assert_apart(plots.accuracy_curves({'a': np.ones((2, rounds))}))

  def _assert_apart(self, figure):
    for axes in figure.axes:
      for labels in (axes.get_xticklabels, axes.get_yticklabels):
        self.assertEmpty(_overlaps(_boxes(figure, labels)))

  @parameterized.named_parameters(
      ('label_distribution', lambda: _label_distribution(10)),
      ('noise_rates', lambda: plots.noise_rates(*_rates(100))),
      ('accuracy', lambda: plots.accuracy(_ROUNDS, _VALUES, _STAGES)),
      ('curves', lambda: plots.accuracy_curves(
          {f'method {i} with a name': np.ones((5, 9)) for i in range(9)}
      )),
  )
  def test_no_text_is_cut_off(self, make):
    figure = make()
    renderer = _rendered(figure)
    legends = figure.findobj(matplotlib.legend.Legend)
    texts = [t for axes in figure.axes for t in (
        axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label, *axes.texts
    )]
    for text in [*legends, *(t for t in texts if t.get_text())]:
      box = text.get_window_extent(renderer)
      self.assertGreaterEqual(box.x0, -1, text)
      self.assertLessEqual(box.x1, figure.bbox.width + 1, text)
      self.assertLessEqual(box.y1, figure.bbox.height + 1, text)

  @parameterized.parameters(2, 5, 9)
  def test_methods_differ_in_lightness_line_and_marker(self, count):
    figure = plots.accuracy_curves({str(i): np.full((2, 5), i / 9) for i in range(count)})
    lines = figure.axes[0].lines
    grey = [np.dot(matplotlib.colors.to_rgb(line.get_color()), (0.299, 0.587, 0.114))
            for line in lines]
    self.assertTrue((np.diff(grey) > 0.03).all(), grey)
    self.assertLess(max(grey), 0.75)  # Still dark enough on white.
    self.assertLen({(line.get_linestyle(), line.get_marker()) for line in lines}, count)

  def test_more_labels_are_darker(self):
    figure = plots.federation(np.array([[1, 2], [3, 4]]), _names(2))
    image = figure.axes[0].images[0]
    grey = image.cmap(image.norm(np.arange(1, 5)))[:, :3] @ (0.299, 0.587, 0.114)
    self.assertTrue((np.diff(grey) < -0.1).all(), grey)
    self.assertLess(grey[0], 0.85)  # One label is not taken for none.


class ContentTest(parameterized.TestCase):

  def test_classes_have_their_names(self):
    texts = _texts(plots.federation(np.array([[1, 2], [3, 4]]), ('cat', 'sea $ lion')))
    self.assertContainsSubset(['cat', r'sea \$ lion', 'class of the noisy label'], texts)
    # Too many, or alike once they are cut, they are numbered.
    for names in (tuple(f'c{k}' for k in range(30)), ('a very long name 1', 'a very long name 2')):
      texts = _texts(plots.federation(np.ones((3, len(names)), int), names))
      self.assertIn('class of the noisy label, by number', texts)
      self.assertNoCommonElements(names, texts)

  def test_stage_spans(self):
    self.assertEqual(
        plots.stage_spans(['a', 'a', 'b', 'a']), [('a', 1, 2), ('b', 3, 3), ('a', 4, 4)]
    )
    self.assertEqual(plots.stage_spans([]), [])

  def test_accuracy_marks_stages_and_best_round(self):
    values = _VALUES.copy()
    values[39] = 0.95
    figure = plots.accuracy(_ROUNDS, values, _STAGES)
    texts = _texts(figure)
    # Beside the axes, where no name of a stage is.
    self.assertLen(figure.legends, 1)
    self.assertContainsSubset(
        ['preprocess', 'finetune', 'usual', 'best: 0.950 in round 40',
         'Test accuracy, 100 evaluations', 'round', 'test accuracy (share correct)'],
        texts,
    )

  def test_accuracy_shows_validation_and_the_round_that_it_chooses(self):
    validation = np.where(_ROUNDS % 2 == 0, 0.5, np.nan)
    validation[11] = 0.9
    figure = plots.accuracy(_ROUNDS, np.where(_ROUNDS % 2 == 0, _VALUES, np.nan), (), validation)
    self.assertContainsSubset(
        ['validation', f'chosen by validation: {_VALUES[11]:.3f} in round 12'], _texts(figure)
    )
    nothing = np.full(3, np.nan)
    self.assertIn(
        'nothing measured', _texts(plots.accuracy(np.arange(1, 4), nothing, (), nothing))
    )

  def test_one_stage_is_not_marked(self):
    self.assertNotIn('train', _texts(plots.accuracy(_ROUNDS, _VALUES, ['train'] * 100)))

  def test_rounds_without_evaluation_are_left_out(self):
    values = np.where(_ROUNDS % 5 == 0, _VALUES, np.nan)
    figure = plots.accuracy(_ROUNDS, values)
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_xdata(), np.arange(5, 101, 5))
    self.assertIn('Test accuracy, 20 evaluations', _texts(figure))

  def test_nothing_measured(self):
    nothing = np.full(3, np.nan)
    rounds = np.arange(1, 4)
    self.assertIn('nothing measured', _texts(plots.accuracy(rounds, nothing)))
    self.assertIn('nothing measured', _texts(plots.losses(rounds, nothing, nothing)))
    self.assertIn('nothing measured', _texts(plots.seconds(nothing)))

  def test_federation_states_its_counts(self):
    figure = plots.federation(np.array([[1, 0], [1200, 34]]), _names(2))
    texts = _texts(figure)
    self.assertIn('Who holds what: 1,235 labels of 2 clients, 2 classes', texts)
    self.assertContainsSubset(['1200', '34'], texts)

  def test_noise_is_sorted_and_keeps_client_names(self):
    figure = plots.noise_rates(
        np.array([0.4, 0.0, 0.2]), np.array([0.5, 0.0, 0.1]), np.array([10, 20, 30])
    )
    upper, lower = figure.axes
    _rendered(figure)
    self.assertEqual([t.get_text() for t in lower.get_xticklabels()], ['1', '2', '0'])
    self.assertEqual([bar.get_height() for bar in lower.patches], [20, 30, 10])
    np.testing.assert_array_equal(upper.lines[0].get_ydata(), [0, 0.2, 0.4])
    self.assertIn('Label noise: 2 of 3 clients are noisy, 60 examples', _texts(figure))

  def test_clients_of_equal_noise_are_sorted_by_what_was_realised(self):
    figure = plots.noise_rates(
        np.array([0.4, 0.4 - 1e-15]), np.array([0.3, 0.5]), np.array([10, 20])
    )
    np.testing.assert_array_equal(figure.axes[0].lines[1].get_ydata(), [0.3, 0.5])

  def test_hopeless_estimate_does_not_flatten_the_rest(self):
    near, far = _label_distribution(10), _label_distribution(10, error=2.0)
    self.assertEqual((len(near.axes), len(far.axes)), (1, 2))
    self.assertLess(far.axes[0].get_ylim()[1], 0.2)

  def test_slow_first_round_does_not_flatten_the_rest(self):
    slow, even = plots.seconds(np.array([10.0, 0.1, 0.1])), plots.seconds(np.ones(3))
    self.assertEqual((slow.axes[0].get_yscale(), even.axes[0].get_yscale()), ('log', 'linear'))

  def test_mean_and_band_by_hand(self):
    curves = {'a': np.array([[0.1, 0.4], [0.3, 0.8]]), 'b': np.array([[0.5, 0.5]])}
    for band, low in (('std', 20 - np.sqrt(200)), ('range', 10)):
      axes = plots.accuracy_curves(curves, band=band).axes[0]
      np.testing.assert_allclose(axes.lines[0].get_ydata(), [20, 60])
      self.assertLen(axes.collections, 1)  # One seed has no spread.
      self.assertAlmostEqual(axes.collections[0].get_paths()[0].vertices[:, 1].min(), low)

  def test_curves_state_their_seeds_and_skip_gaps(self):
    curves = {'a': np.array([[np.nan, 0.5, np.nan, 0.6]]), 'empty': np.full((2, 4), np.nan)}
    figure = plots.accuracy_curves(curves)
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_xdata(), [2, 4])
    self.assertIn('a (n = 1)', _texts(figure))
    self.assertLen(figure.axes[0].lines, 1)

  def test_accuracy_is_not_joined_over_rounds_that_are_missing(self):
    for measured, pieces in (
        ([1, 2, 3, 9, 10, 11], 2), ([5, 10, 15, 20], 1), ([20, 40, 60, 61, 62, 63], 1), ([1, 9], 1),
    ):
      values = np.full(70, np.nan)
      values[np.array(measured) - 1] = 0.5
      line = plots.accuracy(np.arange(1, 71), values).axes[0].lines[0]
      drawn = np.isfinite(np.asarray(line.get_xdata(orig=False), float))
      self.assertEqual(1 + np.sum(~drawn), pieces, measured)

  def test_a_sweep_is_drawn_over_its_values_in_order(self):
    figure = plots.swept(
        {0.4: {'a': np.array([50.0, 60.0])}, 0.2: {'a': np.array([80.0]), 'b': np.array([70.0])}},
        name='noise_rate', title='Best',
    )
    line = figure.axes[0].containers[0].lines[0]
    np.testing.assert_allclose(line.get_xdata(orig=False), [0.2, 0.4])
    np.testing.assert_allclose(line.get_ydata(orig=False), [80, 55])
    self.assertContainsSubset(['noise_rate', 'a', 'b'], _texts(figure))

  def test_unknown_band(self):
    with self.assertRaisesRegex(ValueError, "band must be 'std' or 'range', got 'x'"):
      plots.accuracy_curves({}, band='x')

  def test_heat_map_prints_its_numbers(self):
    figure = plots.heat_map(
        np.array([[0.5, np.nan]]), ['m'], ['s', 't'], title='Best', spread=np.array([[0.25, 0.1]]),
        counts=np.array([[5, 3]]),
    )
    self.assertContainsSubset(['0.50 ±0.25', '–', 'Best (n = 3 to 5 seeds)'], _texts(figure))

  def test_differences_are_filled_where_they_are_told(self):
    figure = plots.differences(
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
    figure_style.png(figure)

  def test_decision_map_has_its_lines_where_they_belong(self):
    cells = {
        ('symmetric', 'IID'): (12.0, ['ELR 96.3', '+12.0 to $x$']),
        ('none', 'open-set'): (-0.5, ['FedAvg 98.0']),
    }
    figure = plots.decision_map(cells, title='t', rows='noise', columns='federation')
    (axes,) = figure.axes
    self.assertEqual([t.get_text() for t in axes.get_xticklabels()], ['IID', 'open-set'])
    self.assertEqual([t.get_text() for t in axes.get_yticklabels()], ['symmetric', 'none'])
    places = {t.get_text(): t.xy for t in axes.texts}
    self.assertEqual(places['ELR 96.3'], (0, 0))
    self.assertEqual(places['FedAvg 98.0'], (1, 1))
    figure_style.png(figure)

  def test_heat_map_of_equal_or_no_numbers(self):
    self.assertIn('0.50', _texts(plots.heat_map(np.full((1, 1), 0.5), ['m'], ['s'], title='t')))
    self.assertIn('–', _texts(plots.heat_map(np.full((1, 1), np.nan), ['m'], ['s'], title='t')))

  def test_names_are_no_formulas(self):
    names = ['$x^', '$\\frac{$', 'a_b']
    curves = {name: np.ones((1, 3)) for name in names}
    figure_style.png(plots.accuracy_curves(curves, title='$$\\x$'))
    figure_style.png(plots.heat_map(np.ones((3, 3)), names, names, title='$$\\x$'))
    figure_style.png(plots.accuracy(np.arange(1, 4), np.ones(3), names))


class WrittenTest(absltest.TestCase):

  def test_is_drawn_once_and_a_second_form_keeps_the_layout_of_the_first(self):
    figure = plots.accuracy(_ROUNDS, _VALUES)
    (axes,) = figure.axes
    draw, drawn = figure.draw, []
    figure.draw = lambda renderer: drawn.append(renderer) or draw(renderer)
    unlaid = axes.get_position().bounds
    figure_style.svg(figure, 'a')
    laid = axes.get_position().bounds
    self.assertNotEqual(laid, unlaid)
    figure_style.png(figure)
    figure_style.for_print(figure, 'pdf')
    self.assertEqual(axes.get_position().bounds, laid)
    self.assertLen(drawn, 3)

  def test_same_data_same_bytes(self):
    self.assertEqual(
        figure_style.svg(plots.accuracy(_ROUNDS, _VALUES), 'a'),
        figure_style.svg(plots.accuracy(_ROUNDS, _VALUES), 'a'),
    )
    self.assertEqual(
        figure_style.png(plots.federation(np.ones((5, 5), int), _names(5))),
        figure_style.png(plots.federation(np.ones((5, 5), int), _names(5))),
    )

  def test_for_papers_the_same_data_give_the_same_bytes(self):
    for kind, start in (('pdf', b'%PDF'), ('svg', b'<?xml')):
      first, again = (
          figure_style.for_print(plots.accuracy(_ROUNDS, _VALUES), kind) for _ in range(2)
      )
      self.assertEqual(first, again)
      self.assertTrue(first.startswith(start))

  def test_settings_of_the_user_neither_matter_nor_change(self):
    expected = figure_style.png(plots.accuracy(_ROUNDS, _VALUES))
    with matplotlib.rc_context({'font.size': 30, 'lines.linewidth': 9}):
      self.assertEqual(figure_style.png(plots.accuracy(_ROUNDS, _VALUES)), expected)
      self.assertEqual(matplotlib.rcParams['font.size'], 30)

  def test_svg_fits_into_a_page(self):
    svg = figure_style.svg(plots.federation(np.ones((100, 100), int), _names(100)), 'who')
    self.assertStartsWith(svg, '<svg')
    self.assertNotIn('http', svg)
    self.assertIn('viewBox', svg)
    ids = re.findall(r'\bid="([^"]*)"', svg)
    self.assertTrue(all(i.startswith('who-') for i in ids))
    for used in re.findall(r'(?:href="#|url\(#)([^")]*)', svg):
      self.assertIn(used, ids)
    self.assertLess(len(svg), 300_000)

  def test_png_is_large_enough_to_print(self):
    png = figure_style.png(plots.accuracy(_ROUNDS, _VALUES))
    self.assertEqual(png[:8], b'\x89PNG\r\n\x1a\n')
    self.assertGreaterEqual(int.from_bytes(png[16:20], 'big'), 1000)
    self.assertStartsWith(figure_style.data_url(png), 'data:image/png;base64,iVBOR')


if __name__ == '__main__':
  absltest.main()
