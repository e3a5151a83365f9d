"""Tests of the pictures and numbers of a scene: they show what they are given, at every size."""

import os
import time

import matplotlib
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized
from matplotlib.backends import backend_agg

from tff_noise.data import scene as scene_lib
from tff_noise.report import figure_style
from tff_noise.report import scene_plots

_SIZES = ((1, 1), (3, 2), (20, 10), (20, 13), (100, 100), (101, 26), (500, 20), (10_000, 10),
          (30, 1000))
_PICTURES = ('bubbles', 'before_and_after', 'transition_matrix', 'noise_histogram')
_FIGURES = (*_PICTURES, 'label_corrections')


def _scene(client_of, noisy, clean, nominal, notes=()):
  nominal = np.asarray(nominal, float)
  return scene_lib.Scene(
      np.asarray(client_of, np.int32), np.asarray(noisy, np.int32), np.asarray(clean, np.int32),
      nominal, nominal > 0, tuple(notes),
  )


def _large(examples, clients, classes, seed=0):
  rng = np.random.default_rng(seed)
  client_of = rng.integers(0, clients, examples)
  client_of[:clients] = np.arange(clients)
  clean = rng.integers(0, classes, examples)
  noisy = np.where(rng.random(examples) < 0.4, rng.integers(0, classes, examples), clean)
  return _scene(client_of, noisy, clean, np.where(np.arange(clients) % 3, 0.4, 0))


def _names(classes):
  return [f'a class named {i}' for i in range(classes)]


def _figure(picture, clients, classes):
  rng = np.random.default_rng(0)
  counts = rng.integers(0, 9, (clients, classes)) * (1 + rng.integers(0, 20, (clients, 1)))
  names = _names(classes)
  if picture == 'bubbles':
    return scene_plots.bubbles(counts, names)
  if picture == 'before_and_after':
    after = np.roll(counts, 1, axis=1)
    return scene_plots.before_and_after(counts, after, names, left_out=12)
  if picture in ('transition_matrix', 'label_corrections'):
    matrix = rng.integers(0, 3, (classes, classes)) + 50 * np.eye(classes, dtype=int)
    if picture == 'label_corrections':
      return scene_plots.label_corrections(matrix, np.diag(matrix.sum(axis=1)), names, left_out=12)
    return scene_plots.transition_matrix(matrix, names, left_out=12)
  rates = np.linspace(0, 1, clients)
  return scene_plots.noise_histogram(rates, np.where(rates < 0.5, 0, rates))


def _renderer(figure):
  canvas = backend_agg.FigureCanvasAgg(figure)
  canvas.draw()
  return canvas.get_renderer()


def _texts(figure):
  return [t.get_text() for t in figure.findobj(matplotlib.text.Text) if t.get_text()]


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


def _labels(axis):
  return [t.get_text() for t in axis.get_ticklabels()]


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
    figure_style.png(scene_plots.transition_matrix(counts, names))

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
    self.assertEqual(_labels(figure.axes[0].yaxis), ['cat', 'dog'])
    self.assertIn('Who holds what: 525 examples, 2 clients, 2 classes', _texts(figure))

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
    self.assertEqual(_labels(axes.xaxis)[0], '126')  # The middle of the first fortieth.
    self.assertEqual(_labels(axes.xaxis)[-1], '9,876')
    self.assertIn('40 of 10,000 clients', axes.get_xlabel())
    self.assertIn('Who holds what: 50,005,000 examples, 10,000 clients, 1 classes', _texts(figure))

  def test_forty_clients_are_all_drawn_under_their_names(self):
    axes = scene_plots.bubbles(np.ones((40, 2), int), ['a', 'b']).axes[0]
    self.assertEqual(_labels(axes.xaxis)[:3], ['0', '2', '4'])
    self.assertLen(axes.collections[0].get_offsets(), 80)

  def test_some_of_equal_clients_have_their_names(self):
    axes = scene_plots.bubbles(np.ones((100, 2), int), ['a', 'b']).axes[0]
    self.assertEqual(_labels(axes.xaxis)[:2], ['1', '21'])
    self.assertEqual(axes.get_xlabel(), 'client (40 of 100, all of one size)')

  def test_many_classes_are_added_up_and_it_says_so(self):
    axes = scene_plots.bubbles(np.ones((2, 1000), int), _names(1000)).axes[0]
    self.assertLen(axes.collections[0].get_offsets(), 200)
    self.assertIn('groups of 10 consecutive classes', axes.get_ylabel())
    self.assertEqual(_labels(axes.yaxis)[:2], ['0', '50'])


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
         'Labels before and after noise: 9 examples, 2 clients, 2 classes'], _texts(figure),
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
    figure = scene_plots.before_and_after(counts, counts, _names(classes))
    self.assertEqual(bool(figure.legends), legend)
    self.assertLen(figure.axes, 2 if legend else 3)

  def test_client_without_examples(self):
    counts = np.array([[0, 0], [500, 500], [1, 1]])
    figure_style.png(scene_plots.before_and_after(counts, counts, ['a', 'b']))


class TransitionMatrixTest(parameterized.TestCase):

  def test_cells_are_percent_of_the_true_class(self):
    counts = np.array([[6, 2, 0], [0, 9999, 1], [0, 0, 0]])
    figure = scene_plots.transition_matrix(counts, ['cat', 'dog', 'owl'])
    cells = {t.get_position(): t.get_text() for t in figure.axes[0].texts}
    self.assertEqual(cells, {
        (0, 0): '75.0', (1, 0): '25.0', (1, 1): '100', (2, 1): '<0.1', (2, 2): '–',
    })
    self.assertIn('Transition matrix: 3 of 10,008 labels are wrong (0.0%)', _texts(figure))
    self.assertEqual(_labels(figure.axes[0].yaxis), ['cat', 'dog', 'owl'])

  @parameterized.parameters((14, True), (15, False))
  def test_numbers_or_bars(self, classes, numbers):
    counts = np.full((classes, classes), 2)
    axes = scene_plots.transition_matrix(counts, _names(classes)).axes
    self.assertEqual(bool(axes[0].texts), numbers)
    if not numbers:
      np.testing.assert_allclose([b.get_width() for b in axes[1].patches], 100 / classes)

  def test_diagonal_does_not_drown_the_rest(self):
    counts = 10_000 * np.eye(100, dtype=int) + 10 * np.roll(np.eye(100, dtype=int), 1, axis=1)
    image = scene_plots.transition_matrix(counts, _names(100)).axes[0].images[0]
    self.assertAlmostEqual(image.norm.vmax, 100 * 10 / 10_010)
    shown = image.get_array()
    self.assertEqual(shown.count(), 100)  # The pairs alone: zeros and the diagonal are white.
    self.assertFalse(np.ma.getmaskarray(shown)[0, 1])

  def test_confusions_within_a_group_of_classes_are_not_taken_for_right(self):
    counts = np.zeros((400, 400), int)
    counts[0, 0], counts[0, 1], counts[2, 399] = 6, 2, 5
    image, strip = scene_plots.transition_matrix(counts, _names(400)).axes[:2]
    shown = image.images[0].get_array()
    self.assertEqual(shown.shape, (200, 200))
    self.assertAlmostEqual(shown[0, 0], 25)
    self.assertAlmostEqual(shown[1, 199], 100)
    self.assertAlmostEqual(strip.patches[0].get_width(), 75)

  def test_all_clean(self):
    figure = scene_plots.transition_matrix(5 * np.eye(3, dtype=int), _names(3))
    self.assertIn('Transition matrix: 0 of 15 labels are wrong', _texts(figure))
    self.assertLen(figure.axes, 1)  # No scale of what is not there.

  def test_counts_are_not_changed(self):
    counts = np.ones((3, 3), int)
    scene_plots.transition_matrix(counts, _names(3))
    np.testing.assert_array_equal(counts, np.ones((3, 3)))


class LabelCorrectionsTest(parameterized.TestCase):

  def test_both_on_one_scale(self):
    before, after = np.array([[6, 4], [0, 10]]), np.array([[9, 1], [2, 8]])
    figure = scene_plots.label_corrections(before, after, ['a', 'b'])
    panels = [axes for axes in figure.axes if axes.get_title(loc='left')]
    self.assertEqual(
        [axes.get_title(loc='left') for axes in panels],
        ['4 of 20 wrong (20.0%)', '3 of 20 wrong (15.0%)'],
    )
    self.assertEqual([axes.images[0].norm.vmax for axes in panels], [40, 40])
    self.assertCountEqual([t.get_text() for t in panels[0].texts], ['60.0', '40.0', '100'])
    self.assertCountEqual([t.get_text() for t in panels[1].texts], ['90.0', '10.0', '20.0', '80.0'])

  def test_nothing_wrong_before(self):
    figure = scene_plots.label_corrections(
        np.array([[10, 0], [0, 0]]), np.array([[8, 2], [0, 0]]), ['a', 'b']
    )
    self.assertEqual(figure.axes[0].images[0].norm.vmax, 20)

  def test_nothing_wrong_at_all(self):
    scene_plots.label_corrections(3 * np.eye(2, dtype=int), 3 * np.eye(2, dtype=int), ['a', 'b'])

  def test_transitions_are_of_the_clients_known_examples(self):
    scene = _scene([0, 0, -1, 1, 1], [0, 1, 1, 1, 0], [0, 0, 1, 1, -1], [0.5, 0])
    np.testing.assert_array_equal(
        scene_plots.transitions(scene, scene.noisy_label, 2), [[1, 1], [0, 1]]
    )
    np.testing.assert_array_equal(
        scene_plots.transitions(scene, np.zeros(5, int), 2), [[2, 0], [1, 0]]
    )


class NoiseHistogramTest(parameterized.TestCase):

  def _bars(self, axes):
    return [(round(b.get_x(), 3), b.get_height()) for b in axes.patches if b.get_height()]

  def test_rates_that_are_both_are_drawn_once(self):
    rates = np.array([0.1, 0.3, np.nan])
    self.assertLen(scene_plots.noise_histogram(realised=rates, nominal=rates).axes, 1)

  def test_heights_by_hand(self):
    figure = scene_plots.noise_histogram(
        realised=np.array([0, 0.3, 0.39, 0.0]), nominal=np.array([0, 0.4, 0.4 - 1e-15, 0.3])
    )
    nominal, realised = figure.axes
    self.assertEqual(self._bars(nominal), [(-0.04, 1), (0.3, 1), (0.4, 2)])
    # At 0 are a clean client, and above it a noisy one that was lucky.
    self.assertEqual(self._bars(realised), [(-0.04, 1), (-0.04, 1), (0.3, 1), (0.38, 1)])
    self.assertEqual([t.get_text() for t in realised.texts], ['2'])
    self.assertContainsSubset(['clean clients: 1', 'noisy clients: 3'], _texts(figure))

  @parameterized.parameters((3, '43\n(bar cut)\n40 clean\n3 noisy'), (0, '40\n(bar cut)'))
  def test_who_is_in_a_bar_that_is_cut(self, lucky, expected):
    nominal = np.repeat([0, 0.4], [40, 5 + lucky])
    realised = np.concatenate([np.zeros(40 + lucky), np.linspace(0.1, 0.5, 5)])
    _, axes = scene_plots.noise_histogram(realised, nominal).axes
    self.assertEqual([t.get_text() for t in axes.texts], [expected])

  @parameterized.parameters(0.001, 0.07, 0.1, 0.2, 0.3, 0.45, 0.6, 0.999, 1.0)
  def test_every_client_is_in_one_bin(self, top):
    rates = np.concatenate([[0, 0], np.linspace(0, top, 41), np.arange(0, top, 0.05)])
    for axes in scene_plots.noise_histogram(rates, rates).axes:
      self.assertEqual(sum(b.get_height() for b in axes.patches), len(rates))

  def test_unknown_rates_are_counted(self):
    nan = np.nan
    figure = scene_plots.noise_histogram(
        realised=np.array([nan, 0.2, 0.3]), nominal=np.array([0.0, nan, nan])
    )
    self.assertContainsSubset(
        ['Nominal noise rate: median 0.000, largest 0.000; unknown for 2 of 3 clients',
         'Realised noise rate: median 0.250, largest 0.300; unknown for 1 of 3 clients',
         'clients of unknown nominal rate: 2'], _texts(figure),
    )

  def test_nothing_known(self):
    figure = scene_plots.noise_histogram(np.full(3, np.nan), np.full(3, np.nan))
    self.assertEqual(_texts(figure).count('unknown for all clients'), 1)
    self.assertIn('Noise rate, nominal as realised: unknown for 3 of 3 clients', _texts(figure))

  def test_many_clean_clients_do_not_flatten_the_rest(self):
    rates = np.concatenate([np.zeros(900), np.linspace(0.5, 0.9, 100)])
    axes = scene_plots.noise_histogram(rates, rates).axes[0]
    self.assertEqual([t.get_text() for t in axes.texts], ['900\n(bar cut)'])
    self.assertLess(axes.get_ylim()[1], 100)


class DrawTest(parameterized.TestCase):

  def _draw(self, scene, classes):
    folder = os.path.join(self.create_tempdir().full_path, 'made')
    names = scene_plots.draw(scene, _names(classes), folder)
    self.assertCountEqual(os.listdir(folder), names)
    for name in names:
      with open(os.path.join(folder, name), 'rb') as file:
        self.assertStartsWith(file.read(), b'\x89PNG')
    return names

  @parameterized.parameters((300, 3, 2), (5000, 20, 10), (20_000, 100, 100))
  def test_four_pictures(self, examples, clients, classes):
    self.assertEqual(
        self._draw(_large(examples, clients, classes), classes),
        ['bubbles.png', 'before_and_after.png', 'transition_matrix.png', 'noise_rates.png'],
    )

  def test_without_true_classes_there_are_two(self):
    scene = _scene([0, 0, 1], [0, 1, 1], [-1, -1, -1], [np.nan, np.nan])
    self.assertEqual(self._draw(scene, 2), ['bubbles.png', 'noise_rates.png'])

  def test_what_each_picture_counts(self):
    # An example of the server, which is clean, and one whose true class is unknown.
    scene = _scene([0, 0, 1, 1, -1], [0, 1, 1, 2, 0], [0, 0, -1, 2, 0], [0.5, 0.0])
    given = {}

    def keep(name):
      original = getattr(scene_plots, name)

      def wrapper(*args, **kwargs):
        given[name] = (args, kwargs)
        return original(*args, **kwargs)

      self.enter_context(absltest.mock.patch.object(scene_plots, name, wrapper))

    for name in _PICTURES:
      keep(name)
    self._draw(scene, 3)
    np.testing.assert_array_equal(given['bubbles'][0][0], [[1, 1, 0], [0, 1, 1]])
    (before, after, _), options = given['before_and_after']
    np.testing.assert_array_equal(before, [[2, 0, 0], [0, 0, 1]])
    np.testing.assert_array_equal(after, [[1, 1, 0], [0, 0, 1]])
    self.assertEqual(options, {'left_out': 1})
    (matrix, _), options = given['transition_matrix']
    np.testing.assert_array_equal(matrix, [[1, 1, 0], [0, 0, 0], [0, 0, 1]])
    self.assertEqual(options, {'left_out': 1})
    np.testing.assert_array_equal(given['noise_histogram'][0], [[0.5, 0.0], [0.5, 0.0]])


class StatisticsTest(parameterized.TestCase):

  def test_by_hand(self):
    scene = _scene(
        client_of=[0, 0, 0, 0, 1, 1, 2, -1, -1],
        noisy=[0, 1, 1, 2, 2, 2, 0, 1, 1],
        clean=[0, 0, 0, 1, 2, 2, -1, 1, 1],
        nominal=[0.5, 0.0, np.nan],
        notes=['class 1 had no owner'],
    )
    self.assertEqual(
        scene_plots.statistics(scene, ['cat', 'dog', 'owl']).splitlines(),
        ['examples            7 of 3 clients, 2 more held by the server',
         'classes             3',
         'examples a client   min 1, median 2, max 4',
         'classes a client    min 1, median 1, max 3',
         'wrong labels        3 of 6 (50.0%)',
         '                    true class unknown: 1 examples',
         'noisy clients       1 of 3, unknown for 1',
         '  nominal rate      min 0.500, median 0.500, max 0.500',
         '  realised rate     min 0.750, median 0.750, max 0.750',
         'unknown clients',
         '  realised rate     unknown',
         'common confusions   cat labelled dog: 2 (66.7%)',
         '                    dog labelled owl: 1 (100.0%)',
         'notes',
         '  class 1 had no owner'],
    )

  def test_clean(self):
    text = scene_plots.statistics(_scene([0, 1], [0, 1], [0, 1], [0, 0]), ['a', 'b'])
    self.assertIn('wrong labels        0 of 2 (0.0%)\nnoisy clients       0 of 2', text)
    self.assertNotIn('confusions', text)
    self.assertNotIn('notes', text)

  def test_nothing_known(self):
    scene = _scene([0, 1], [0, 1], [-1, -1], [np.nan, np.nan])
    text = scene_plots.statistics(scene, ['a', 'b'])
    self.assertIn('wrong labels        unknown', text)
    self.assertIn('noisy clients       0 of 2, unknown for 2', text)

  def test_at_most_three_confusions_the_most_frequent_first(self):
    clean, noisy = [0] * 3 + [1] * 2 + [2] * 4 + [3], [1] * 3 + [2] * 2 + [3] * 4 + [0]
    text = scene_plots.statistics(_scene([0] * 10, noisy, clean, [1]), list('abcd'))
    lines = text.splitlines()
    self.assertEqual([line[20:] for line in lines if 'labelled' in line],
                     ['c labelled d: 4 (100.0%)', 'a labelled b: 3 (100.0%)',
                      'b labelled c: 2 (100.0%)'])

  def test_fits_into_a_terminal(self):
    scene = _large(300_000, 10_000, 100)._replace(notes=('a long note ' * 20,) * 3)
    names = [f'a very long name of a class that nobody would print {i}' for i in range(100)]
    for line in scene_plots.statistics(scene, names).splitlines():
      self.assertLessEqual(len(line), 80, line)

  def test_notes_are_limited(self):
    scene = _scene([0], [0], [0], [0], notes=[f'note {i}' for i in range(1200)])
    lines = scene_plots.statistics(scene, ['a']).splitlines()
    self.assertEqual(lines[-2:], ['  note 9', '  and 1,190 more'])

  def test_a_million_examples_take_seconds_at_most(self):
    scene = _large(1_000_000, 10_000, 100)
    start = time.monotonic()
    scene_plots.statistics(scene, _names(100))
    self.assertLess(time.monotonic() - start, 5)  # 0.1 s on a quiet machine.


if __name__ == '__main__':
  absltest.main()
