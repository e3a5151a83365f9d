"""Tests of the picture of clients' noise rates: every client is in it once."""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tests.report import pictured
from tff_noise.report import noise_rates


def _histogram(realised, nominal):
  return noise_rates.histogram(realised, nominal, nominal > 0)


class NoiseHistogramTest(parameterized.TestCase):

  def _bars(self, axes):
    return [(round(b.get_x(), 3), b.get_height()) for b in axes.patches if b.get_height()]

  def test_rates_that_are_both_are_drawn_once(self):
    rates = np.array([0.1, 0.3, np.nan])
    self.assertLen(_histogram(realised=rates, nominal=rates).axes, 1)

  def test_heights_by_hand(self):
    figure = _histogram(
        realised=np.array([0, 0.3, 0.39, 0.0]), nominal=np.array([0, 0.4, 0.4 - 1e-15, 0.3])
    )
    nominal, realised = figure.axes
    self.assertEqual(self._bars(nominal), [(-0.04, 1), (0.3, 1), (0.4, 2)])
    # At 0 are a clean client, and above it a noisy one that was lucky.
    self.assertEqual(self._bars(realised), [(-0.04, 1), (-0.04, 1), (0.3, 1), (0.38, 1)])
    self.assertEqual([t.get_text() for t in realised.texts], ['2'])
    self.assertContainsSubset(['clean clients: 1', 'noisy clients: 3'], pictured.texts(figure))

  @parameterized.parameters((3, '43\n(bar cut)\n40 clean\n3 noisy'), (0, '40\n(bar cut)'))
  def test_who_is_in_a_bar_that_is_cut(self, lucky, expected):
    nominal = np.repeat([0, 0.4], [40, 5 + lucky])
    realised = np.concatenate([np.zeros(40 + lucky), np.linspace(0.1, 0.5, 5)])
    _, axes = _histogram(realised, nominal).axes
    self.assertEqual([t.get_text() for t in axes.texts], [expected])

  @parameterized.parameters(0.001, 0.07, 0.1, 0.2, 0.3, 0.45, 0.6, 0.999, 1.0)
  def test_every_client_is_in_one_bin(self, top):
    rates = np.concatenate([[0, 0], np.linspace(0, top, 41), np.arange(0, top, 0.05)])
    for axes in _histogram(rates, rates).axes:
      self.assertEqual(sum(b.get_height() for b in axes.patches), len(rates))

  def test_unknown_rates_are_counted(self):
    nan = np.nan
    figure = _histogram(
        realised=np.array([nan, 0.2, 0.3]), nominal=np.array([0.0, nan, nan])
    )
    self.assertContainsSubset(
        ['Nominal noise rate: median 0.000, largest 0.000; unknown for 2 of 3 clients',
         'Realised noise rate: median 0.250, largest 0.300; unknown for 1 of 3 clients',
         'clients of unknown nominal rate: 2'], pictured.texts(figure),
    )

  def test_of_labels_of_people_some_wrong_ones_make_no_client_noisy(self):
    rates = np.array([0.03, 0.05, 0.2, np.nan])
    figure = noise_rates.histogram(rates, rates, np.array([False, False, True, False]))
    self.assertContainsSubset(
        ['clean clients: 2', 'noisy clients: 1', 'clients of unknown nominal rate: 1'],
        pictured.texts(figure),
    )

  def test_nothing_known(self):
    figure = _histogram(np.full(3, np.nan), np.full(3, np.nan))
    self.assertEqual(pictured.texts(figure).count('unknown for all clients'), 1)
    text = 'Noise rate, nominal as realised: unknown for 3 of 3 clients'
    self.assertIn(text, pictured.texts(figure))

  def test_many_clean_clients_do_not_flatten_the_rest(self):
    rates = np.concatenate([np.zeros(900), np.linspace(0.5, 0.9, 100)])
    axes = _histogram(rates, rates).axes[0]
    self.assertEqual([t.get_text() for t in axes.texts], ['900\n(bar cut)'])
    self.assertLess(axes.get_ylim()[1], 100)


if __name__ == '__main__':
  absltest.main()
