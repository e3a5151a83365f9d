"""Tests of a run's pictures: what is in them, that they can be read, that they do not change."""

import re
import warnings

import matplotlib
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tests.report import pictured
from tff_noise.report import figure_style
from tff_noise.report import plots


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


def _noise_rates(nominal, realised, sizes):
  return plots.noise_rates(
      nominal, realised, sizes, noisy=nominal > 0, numbers=np.arange(len(sizes))
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
        'noise_rates': lambda: _noise_rates(*_rates(size)),
        'label_distribution': lambda: _label_distribution(size),
        'far_label_distribution': lambda: _label_distribution(size, error=20.0),
    }[picture]()
    self._assert_apart(figure)

  @parameterized.parameters(1, 2, 7, 100, 300, 5000)
  def test_curves_tick_labels_are_apart(self, rounds):
    x = np.arange(1, rounds + 1)
    self._assert_apart(plots.accuracy(x, x / rounds))
    self._assert_apart(plots.losses(x, x * 1e5, -x * 1e-5))
    self._assert_apart(plots.seconds(x.astype(float)))

  def _assert_apart(self, figure):
    labels = [w for axes in figure.axes for w in (axes.get_xticklabels, axes.get_yticklabels)]
    self.assertEmpty(pictured.overlaps(figure, *labels))

  @parameterized.named_parameters(
      ('label_distribution', lambda: _label_distribution(10)),
      ('noise_rates', lambda: _noise_rates(*_rates(100))),
      ('accuracy', lambda: plots.accuracy(_ROUNDS, _VALUES, _STAGES)),
  )
  def test_no_text_is_cut_off(self, make):
    figure = make()
    renderer = pictured.rendered(figure)
    legends = figure.findobj(matplotlib.legend.Legend)
    texts = [t for axes in figure.axes for t in (
        axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label, *axes.texts
    )]
    for text in [*legends, *(t for t in texts if t.get_text())]:
      box = text.get_window_extent(renderer)
      self.assertGreaterEqual(box.x0, -1, text)
      self.assertLessEqual(box.x1, figure.bbox.width + 1, text)
      self.assertLessEqual(box.y1, figure.bbox.height + 1, text)

  def test_more_labels_are_darker(self):
    figure = plots.federation(np.array([[1, 2], [3, 4]]), _names(2))
    image = figure.axes[0].images[0]
    grey = image.cmap(image.norm(np.arange(1, 5)))[:, :3] @ (0.299, 0.587, 0.114)
    self.assertTrue((np.diff(grey) < -0.1).all(), grey)
    self.assertLess(grey[0], 0.85)  # One label is not taken for none.


class ContentTest(parameterized.TestCase):

  def test_classes_have_their_names(self):
    texts = pictured.texts(plots.federation(np.array([[1, 2], [3, 4]]), ('cat', 'sea $ lion')))
    self.assertContainsSubset(['cat', r'sea \$ lion', 'class of the noisy label'], texts)
    # Too many, or alike once they are cut, they are numbered.
    for names in (tuple(f'c{k}' for k in range(30)), ('a very long name 1', 'a very long name 2')):
      texts = pictured.texts(plots.federation(np.ones((3, len(names)), int), names))
      self.assertIn('class of the noisy label, by number', texts)
      self.assertNoCommonElements(names, texts)

  @parameterized.parameters(
      (('cat', 'dog'), True), (('Äpfel', 'été'), True), (('猫', '犬'), False), (('a', 'a'), False),
  )
  def test_names_that_the_font_cannot_write_are_numbers(self, names, told):
    found = figure_style.told_apart(names)
    self.assertEqual(found, list(names) if told else None)
    figure = plots.federation(np.full((2, 2), 7), names)
    with warnings.catch_warnings():
      warnings.simplefilter('error')
      figure_style.png(figure)

  def test_stage_spans(self):
    self.assertEqual(
        plots.stage_spans(['a', 'a', 'b', 'a']), [('a', 1, 2), ('b', 3, 3), ('a', 4, 4)]
    )
    self.assertEqual(plots.stage_spans([]), [])

  def test_accuracy_marks_stages_and_best_round(self):
    values = _VALUES.copy()
    values[39] = 0.95
    figure = plots.accuracy(_ROUNDS, values, _STAGES)
    texts = pictured.texts(figure)
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
        ['validation', f'chosen by validation: {_VALUES[11]:.3f} in round 12'],
        pictured.texts(figure),
    )
    nothing = np.full(3, np.nan)
    self.assertIn(
        'nothing measured', pictured.texts(plots.accuracy(np.arange(1, 4), nothing, (), nothing))
    )

  def test_one_stage_is_not_marked(self):
    self.assertNotIn('train', pictured.texts(plots.accuracy(_ROUNDS, _VALUES, ['train'] * 100)))

  def test_rounds_without_evaluation_are_left_out(self):
    values = np.where(_ROUNDS % 5 == 0, _VALUES, np.nan)
    figure = plots.accuracy(_ROUNDS, values)
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_xdata(), np.arange(5, 101, 5))
    self.assertIn('Test accuracy, 20 evaluations', pictured.texts(figure))

  def test_nothing_measured(self):
    nothing = np.full(3, np.nan)
    rounds = np.arange(1, 4)
    self.assertIn('nothing measured', pictured.texts(plots.accuracy(rounds, nothing)))
    self.assertIn('nothing measured', pictured.texts(plots.losses(rounds, nothing, nothing)))
    self.assertIn('nothing measured', pictured.texts(plots.seconds(nothing)))

  def test_federation_states_its_counts(self):
    figure = plots.federation(np.array([[1, 0], [1200, 34]]), _names(2))
    texts = pictured.texts(figure)
    self.assertIn('Who holds what: 1,235 labels of 2 clients, 2 classes', texts)
    self.assertContainsSubset(['1200', '34'], texts)

  def test_noise_is_sorted_and_keeps_client_names(self):
    figure = _noise_rates(
        np.array([0.4, 0.0, 0.2]), np.array([0.5, 0.0, 0.1]), np.array([10, 20, 30])
    )
    upper, lower = figure.axes
    pictured.rendered(figure)
    self.assertEqual([t.get_text() for t in lower.get_xticklabels()], ['1', '2', '0'])
    self.assertEqual([bar.get_height() for bar in lower.patches], [20, 30, 10])
    np.testing.assert_array_equal(upper.lines[0].get_ydata(), [0, 0.2, 0.4])
    self.assertIn('Label noise: 2 of 3 clients are noisy, 60 examples', pictured.texts(figure))

  def test_clients_have_the_numbers_of_their_federation(self):
    figure = plots.noise_rates(
        np.array([0.1, 0.3, 0.2]), np.array([0.1, 0.3, 0.2]), np.array([10, 20, 30]),
        noisy=np.array([False, True, True]), numbers=np.array([1, 2, 4]),
    )
    pictured.rendered(figure)
    labels = [t.get_text() for t in figure.axes[1].get_xticklabels()]
    self.assertEqual(labels, ['1', '4', '2'])
    self.assertIn('Label noise: 2 of 3 clients are noisy, 60 examples', pictured.texts(figure))

  def test_clients_of_equal_noise_are_sorted_by_what_was_realised(self):
    figure = _noise_rates(
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

  def test_accuracy_is_not_joined_over_rounds_that_are_missing(self):
    for measured, pieces in (
        ([1, 2, 3, 9, 10, 11], 2), ([5, 10, 15, 20], 1), ([20, 40, 60, 61, 62, 63], 1), ([1, 9], 1),
    ):
      values = np.full(70, np.nan)
      values[np.array(measured) - 1] = 0.5
      line = plots.accuracy(np.arange(1, 71), values).axes[0].lines[0]
      drawn = np.isfinite(np.asarray(line.get_xdata(orig=False), float))
      self.assertEqual(1 + np.sum(~drawn), pieces, measured)

  def test_names_are_no_formulas(self):
    names = ['$x^', '$\\frac{$', 'a_b']
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
