"""Tests of the pictures and numbers of a scene: they show what they are given, at every size."""

import os

import matplotlib
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized
from matplotlib.backends import backend_agg

from tests.report import pictured
from tff_noise.report import class_matrices
from tff_noise.report import figure_style
from tff_noise.report import noise_rates
from tff_noise.report import scene_plots

_SIZES = ((1, 1), (3, 2), (20, 10), (20, 13), (100, 100), (101, 26), (500, 20), (10_000, 10),
          (30, 1000))
_FIGURES = (
    'bubbles', 'before_and_after', 'transition_matrix', 'noise_histogram', 'label_corrections'
)


def _figure(picture, clients, classes):
  rng = np.random.default_rng(0)
  counts = rng.integers(0, 9, (clients, classes)) * (1 + rng.integers(0, 20, (clients, 1)))
  names = pictured.names(classes)
  if picture == 'bubbles':
    return scene_plots.bubbles(counts, names)
  if picture == 'before_and_after':
    after = np.roll(counts, 1, axis=1)
    return scene_plots.before_and_after(counts, after, names, left_out=12)
  if picture in ('transition_matrix', 'label_corrections'):
    matrix = rng.integers(0, 3, (classes, classes)) + 50 * np.eye(classes, dtype=int)
    if picture == 'label_corrections':
      after = np.diag(matrix.sum(axis=1))
      return class_matrices.label_corrections(matrix, after, names, left_out=12)
    return class_matrices.transition_matrix(matrix, names, left_out=12)
  rates = np.linspace(0, 1, clients)
  nominal = np.where(rates < 0.5, 0, rates)
  return noise_rates.histogram(rates, nominal, nominal > 0)


def _renderer(figure):
  canvas = backend_agg.FigureCanvasAgg(figure)
  canvas.draw()
  return canvas.get_renderer()


def _seen(figure):
  """(text, box) of everything written beside and in the axes, but for ticks beyond the limits."""
  renderer = _renderer(figure)
  texts = [*figure.legends, *([figure._suptitle] if figure._suptitle else [])]
  for axes in figure.axes:
    texts += axes.texts
    if axes.axison:
      texts += [axes._left_title, axes.xaxis.label, axes.yaxis.label]
      for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        texts += [t.label1 for t in axis.get_major_ticks() if low <= t.get_loc() <= high]
  return [
      (t, t.get_window_extent(renderer)) for t in texts
      if t.get_visible() and (t in figure.legends or t.get_text())
  ]


def _touching(boxes):
  return [
      (i, j) for i, a in enumerate(boxes) for j, b in enumerate(boxes[i + 1:], i + 1)
      if min(a.x1, b.x1) > max(a.x0, b.x0) and min(a.y1, b.y1) > max(a.y0, b.y0)
  ]


class ReadableTest(parameterized.TestCase):

  @parameterized.product(picture=_FIGURES, size=_SIZES)
  def test_is_drawn_and_no_text_is_cut_off_or_touches(self, picture, size):
    figure = _figure(picture, *size)
    seen = _seen(figure)
    for text, box in seen:
      self.assertGreaterEqual(box.x0, -1, text)
      self.assertGreaterEqual(box.y0, -1, text)
      self.assertLessEqual(box.x1, figure.bbox.width + 1, text)
      self.assertLessEqual(box.y1, figure.bbox.height + 1, text)
    touching = _touching([box for _, box in seen])
    self.assertEqual([(seen[i][0], seen[j][0]) for i, j in touching], [])
    self.assertLessEqual(max(figure.get_size_inches()), 9)

  @parameterized.product(picture=_FIGURES, size=_SIZES)
  def test_ticks_are_bounded(self, picture, size):
    figure = _figure(picture, *size)
    _renderer(figure)
    for axes in figure.axes:
      for axis in (axes.xaxis, axes.yaxis):
        self.assertLessEqual(len(axis.get_ticklocs()), 25)

  @parameterized.parameters(*_FIGURES)
  def test_same_data_same_bytes(self, picture):
    self.assertEqual(
        figure_style.png(_figure(picture, 20, 10)), figure_style.png(_figure(picture, 20, 10))
    )

  def test_names_are_no_formulas(self):
    names = ['$x^', '\\frac{$', 'a_b']
    counts = np.arange(9).reshape(3, 3)
    figure_style.png(scene_plots.bubbles(counts, names))
    figure_style.png(scene_plots.before_and_after(counts, counts, names))
    figure_style.png(class_matrices.transition_matrix(counts, names))

  def test_settings_of_the_user_neither_matter_nor_change(self):
    expected = figure_style.png(_figure('bubbles', 3, 2))
    with matplotlib.rc_context({'font.size': 30}):
      self.assertEqual(figure_style.png(_figure('bubbles', 3, 2)), expected)

  @parameterized.parameters(2, 5, 12)
  def test_classes_differ_in_lightness(self, classes):
    grey = scene_plots._class_colors(classes)[:, :3] @ (0.299, 0.587, 0.114)
    # Neighbours: of few classes in turn, of many from dark to light.
    self.assertTrue((np.abs(np.diff(grey)) > (0.1 if len(grey) <= 10 else 0.03)).all(), grey)


class BubblesTest(parameterized.TestCase):

  def test_area_is_proportional_and_places_are_right(self):
    figure = scene_plots.bubbles(np.array([[100, 0], [25, 400]]), ['cat', 'dog'])
    drawn = figure.axes[0].collections[0]
    places = dict(zip(map(tuple, drawn.get_offsets()), drawn.get_sizes(), strict=True))
    self.assertCountEqual(places, [(0, 0), (1, 0), (1, 1)])  # Nobody's class has no bubble.
    self.assertAlmostEqual(places[1, 1] / places[0, 0], 4)
    self.assertAlmostEqual(places[0, 0] / places[1, 0], 4)
    self.assertEqual(pictured.labels(figure.axes[0].yaxis), ['cat', 'dog'])
    self.assertIn('Who holds what: 525 examples, 2 clients, 2 classes', pictured.texts(figure))

  @parameterized.parameters(1, 7, 53, 2075, 999_999)
  def test_sizes_of_the_legend(self, most):
    figure = scene_plots.bubbles(np.array([[most, 1]]), ['a', 'b'])
    numbers = [int(t.get_text().replace(',', '')) for t in figure.axes[1].texts[1:]]
    self.assertEqual(numbers[0], most)
    self.assertEqual(numbers, sorted(set(numbers), reverse=True))
    self.assertGreaterEqual(numbers[-1], 1)
    areas = figure.axes[1].collections[0].get_sizes()
    dots = areas > 1  # Others are drawn larger than they are, to be seen at all.
    np.testing.assert_allclose(
        (areas / areas[0])[dots], (np.array(numbers) / most)[dots], rtol=1e-6
    )

  def test_no_examples(self):
    figure_style.png(scene_plots.bubbles(np.zeros((3, 2), int), ['a', 'b']))

  def test_many_clients_are_sampled_by_size_and_it_says_so(self):
    counts = np.random.default_rng(0).permutation(np.arange(1, 10_001))[:, np.newaxis]
    figure = scene_plots.bubbles(counts, ['a'])
    axes = figure.axes[0]
    self.assertLen(axes.collections[0].get_offsets(), 40)
    self.assertEqual(pictured.labels(axes.xaxis)[0], '126')  # The middle of the first fortieth.
    self.assertEqual(pictured.labels(axes.xaxis)[-1], '9,876')
    self.assertIn('40 of 10,000 clients', axes.get_xlabel())
    text = 'Who holds what: 50,005,000 examples, 10,000 clients, 1 classes'
    self.assertIn(text, pictured.texts(figure))

  def test_forty_clients_are_all_drawn_under_their_names(self):
    axes = scene_plots.bubbles(np.ones((40, 2), int), ['a', 'b']).axes[0]
    self.assertEqual(pictured.labels(axes.xaxis)[:3], ['0', '2', '4'])
    self.assertLen(axes.collections[0].get_offsets(), 80)

  def test_some_of_equal_clients_have_their_names(self):
    axes = scene_plots.bubbles(np.ones((100, 2), int), ['a', 'b']).axes[0]
    self.assertEqual(pictured.labels(axes.xaxis)[:2], ['1', '21'])
    self.assertEqual(axes.get_xlabel(), 'client (40 of 100, all of one size)')

  def test_many_classes_are_added_up_and_it_says_so(self):
    axes = scene_plots.bubbles(np.ones((2, 1000), int), pictured.names(1000)).axes[0]
    self.assertLen(axes.collections[0].get_offsets(), 200)
    self.assertIn('groups of 10 consecutive classes', axes.get_ylabel())
    self.assertEqual(pictured.labels(axes.yaxis)[:2], ['0', '50'])


class BeforeAndAfterTest(parameterized.TestCase):

  def _bars(self, axes):
    """(client, from, to) of each rectangle."""
    boxes = [p.get_extents() for p in axes.collections[0].get_paths()]
    return [(round((b.y0 + b.y1) / 2), b.x0, b.x1) for b in boxes]

  def test_bars_are_the_counts(self):
    figure = scene_plots.before_and_after(
        np.array([[3, 2], [0, 4]]), np.array([[1, 4], [4, 0]]), ['cat', 'dog']
    )
    before, after = figure.axes
    self.assertEqual(self._bars(before), [(0, 0, 3), (0, 3, 5), (1, 0, 4)])
    self.assertEqual(self._bars(after), [(0, 0, 1), (0, 1, 5), (1, 0, 4)])
    colors = before.collections[0].get_facecolors()
    np.testing.assert_array_equal(colors[1], colors[2])  # Both are dogs.
    np.testing.assert_array_equal(colors[0], after.collections[0].get_facecolors()[2])
    self.assertContainsSubset(
        ['cat', 'dog', 'true labels', 'labels after noise',
         'Labels before and after noise: 9 examples, 2 clients, 2 classes'], pictured.texts(figure),
    )

  def test_left_out_examples_are_stated(self):
    one = np.array([[1]])
    figure = scene_plots.before_and_after(one, one, ['a'], left_out=1234)
    self.assertIn(
        '1,234 more are left out: their true class is unknown', figure.get_suptitle()
    )

  def test_very_uneven_clients_are_shown_in_percent(self):
    counts = np.array([[1000, 1000], [1, 3], [5, 0]])
    figure = scene_plots.before_and_after(counts, counts, ['a', 'b'])
    self.assertEqual(
        self._bars(figure.axes[0]),
        [(0, 0, 50), (0, 50, 100), (1, 0, 25), (1, 25, 100), (2, 0, 100)],
    )
    self.assertStartsWith(figure.axes[0].get_xlabel(), "% of the client's examples")

  @parameterized.parameters((12, True), (13, False))
  def test_legend_or_colour_bar(self, classes, legend):
    counts = np.ones((3, classes), int)
    figure = scene_plots.before_and_after(counts, counts, pictured.names(classes))
    self.assertEqual(bool(figure.legends), legend)
    self.assertLen(figure.axes, 2 if legend else 3)

  def test_client_without_examples(self):
    counts = np.array([[0, 0], [500, 500], [1, 1]])
    figure_style.png(scene_plots.before_and_after(counts, counts, ['a', 'b']))


class DrawTest(parameterized.TestCase):

  def _draw(self, scene, classes):
    folder = os.path.join(self.create_tempdir().full_path, 'made')
    names = scene_plots.draw(scene, pictured.names(classes), folder)
    self.assertCountEqual(os.listdir(folder), names)
    for name in names:
      with open(os.path.join(folder, name), 'rb') as file:
        self.assertStartsWith(file.read(), b'\x89PNG')
    return names

  @parameterized.parameters((300, 3, 2), (5000, 20, 10), (20_000, 100, 100))
  def test_four_pictures(self, examples, clients, classes):
    self.assertEqual(
        self._draw(pictured.large(examples, clients, classes), classes),
        ['bubbles.png', 'before_and_after.png', 'transition_matrix.png', 'noise_rates.png'],
    )

  def test_without_true_classes_there_are_two(self):
    scene = pictured.scene([0, 0, 1], [0, 1, 1], [-1, -1, -1], [np.nan, np.nan])
    self.assertEqual(self._draw(scene, 2), ['bubbles.png', 'noise_rates.png'])

  def test_what_each_picture_counts(self):
    # An example of the server, which is clean, and one whose true class is unknown.
    scene = pictured.scene([0, 0, 1, 1, -1], [0, 1, 1, 2, 0], [0, 0, -1, 2, 0], [0.5, 0.0])
    given = {}

    def keep(module, name):
      original = getattr(module, name)

      def wrapper(*args, **kwargs):
        given[name] = (args, kwargs)
        return original(*args, **kwargs)

      self.enter_context(absltest.mock.patch.object(module, name, wrapper))

    keep(scene_plots, 'bubbles')
    keep(scene_plots, 'before_and_after')
    keep(class_matrices, 'transition_matrix')
    keep(noise_rates, 'histogram')
    self._draw(scene, 3)
    np.testing.assert_array_equal(given['bubbles'][0][0], [[1, 1, 0], [0, 1, 1]])
    (before, after, _), options = given['before_and_after']
    np.testing.assert_array_equal(before, [[2, 0, 0], [0, 0, 1]])
    np.testing.assert_array_equal(after, [[1, 1, 0], [0, 0, 1]])
    self.assertEqual(options, {'left_out': 1})
    (matrix, _), options = given['transition_matrix']
    np.testing.assert_array_equal(matrix, [[1, 1, 0], [0, 0, 0], [0, 0, 1]])
    self.assertEqual(options, {'left_out': 1})
    np.testing.assert_array_equal(given['histogram'][0], [[0.5, 0.0], [0.5, 0.0], [True, False]])


if __name__ == '__main__':
  absltest.main()
