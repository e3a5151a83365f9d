"""FedNoRo's split of clients by their losses of each class."""

import warnings

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized
from sklearn import mixture

from tff_noise.selection import class_losses

_NAN = np.nan
_LOSSES = np.array([
    [0.5, 0.4, _NAN], [0.6, 0.5, 0.3], [1.5, 1.8, 1.2], [1.4, 1.6, 1.0],
])


class ScaledTest(parameterized.TestCase):

  def test_by_hand(self):
    expected = [[0, 0, 0], [0.1, 0.071429, 0], [1, 1, 1], [0.9, 0.857143, 0.777778]]
    np.testing.assert_allclose(class_losses.scaled(_LOSSES), expected, atol=1e-6)
    np.testing.assert_allclose(
        class_losses.scores(_LOSSES), [0, 0.171429, 3, 2.534921], atol=1e-6
    )

  def test_equal_losses_and_classes_that_nobody_has_are_zero(self):
    losses = np.array([[2.0, 7, _NAN], [4, 7, _NAN], [3, _NAN, _NAN]])
    with warnings.catch_warnings():
      warnings.simplefilter('error')
      found = class_losses.scaled(losses)
    np.testing.assert_array_equal(found, [[0, 0, 0], [1, 0, 0], [0.5, 0, 0]])

  def test_who_has_no_class_is_not_judged_and_does_not_count(self):
    losses = np.vstack([_LOSSES, np.full(3, _NAN)])
    with warnings.catch_warnings():
      warnings.simplefilter('error')
      found = class_losses.scaled(losses)
    np.testing.assert_array_equal(found[:4], class_losses.scaled(_LOSSES))
    self.assertTrue(np.isnan(found[4]).all())
    self.assertTrue(np.isnan(class_losses.scores(losses)[4]))
    np.testing.assert_array_equal(
        class_losses.noisy_clients(losses), [False, False, True, True, False]
    )

  def test_input_is_not_changed(self):
    losses = _LOSSES.copy()
    class_losses.noisy_clients(losses)
    np.testing.assert_array_equal(losses, _LOSSES)


class SplitTest(parameterized.TestCase):

  def test_by_hand(self):
    found = class_losses.noisy_clients(_LOSSES)
    self.assertEqual(found.dtype, bool)
    np.testing.assert_array_equal(found, [False, False, True, True])

  @parameterized.parameters(*range(6))
  def test_most_frequent_verdict_of_nine_mixtures(self, seed):
    # Hardly apart, so that mixtures of other starts differ.
    draw = np.random.default_rng(seed)
    losses = draw.gamma(4, size=(12, 3)) + (np.arange(12) % 3 == 0)[:, np.newaxis]
    x = (losses - losses.min(0)) / (losses.max(0) - losses.min(0))
    votes = []
    for start in range(9):
      fitted = mixture.GaussianMixture(2, random_state=start).fit(x)
      larger = fitted.means_.sum(1).argmax()
      votes.append(set(np.flatnonzero(fitted.predict(x) == larger).tolist()))
    counts = [votes.count(vote) for vote in votes]
    expected = votes[counts.index(max(counts))]
    found = class_losses.noisy_clients(losses)
    self.assertEqual(set(np.flatnonzero(found).tolist()), expected)

  def test_mixtures_that_disagree_are_there_in_the_test_above(self):
    disagree = 0
    for seed in range(6):
      draw = np.random.default_rng(seed)
      losses = draw.gamma(4, size=(12, 3)) + (np.arange(12) % 3 == 0)[:, np.newaxis]
      x = (losses - losses.min(0)) / (losses.max(0) - losses.min(0))
      verdicts = {
          tuple(mixture.GaussianMixture(2, random_state=s).fit(x).predict(x)
                == mixture.GaussianMixture(2, random_state=s).fit(x).means_.sum(1).argmax())
          for s in range(9)
      }
      disagree += len(verdicts) > 1
    self.assertGreater(disagree, 0)

  def test_twenty_clients_of_ten_classes(self):
    draw = np.random.default_rng(0)
    noisy = np.arange(20) % 5 < 2
    losses = 0.5 + 0.1 * draw.random((20, 10))
    losses[noisy] += draw.uniform(0.5, 1, (8, 1))
    losses[draw.random((20, 10)) < 0.3] = _NAN
    np.testing.assert_array_equal(class_losses.noisy_clients(losses), noisy)

  @parameterized.parameters(
      ([[1.0, 2.0]],), ([[1.0, 2], [3, 4]],), ([[1.0, 2]] * 5,), ([[1.0, 2], [3, 4]] * 3,),
      ([[_NAN, _NAN]] * 4,), ([[1.0, 2], [3, 4], [_NAN, _NAN]],),
  )
  def test_fewer_than_three_different_clients_are_not_split(self, losses):
    self.assertFalse(class_losses.noisy_clients(np.array(losses)).any())


if __name__ == '__main__':
  absltest.main()
