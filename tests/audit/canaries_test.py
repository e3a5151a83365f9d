"""What trained models tell about canaries: how they are drawn, inserted and guessed."""

import math

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tff_noise import types
from tff_noise.audit import arms
from tff_noise.audit import canaries as canaries_lib


def _canaries(m=300, seed=0):
  labels = np.arange(m, dtype=np.int32) % 10
  images = np.arange(m, dtype=np.uint8).reshape(m, 1)
  return canaries_lib.draw(types.Examples(images, labels), 10, 7, seed)


class CanariesTest(parameterized.TestCase):

  def test_pairs_are_different_wrong_labels_and_bits_are_coins(self):
    canaries = _canaries()
    self.assertTrue((canaries.pairs[:, 0] != canaries.pairs[:, 1]).all())
    self.assertTrue((canaries.pairs != np.arange(300)[:, np.newaxis] % 10).all())
    self.assertBetween(canaries.pairs.min(), 0, 9)
    self.assertBetween(canaries.pairs.max(), 0, 9)
    self.assertBetween(canaries.bits.sum(), 110, 190)  # 150 +- 4.6 standard deviations.
    self.assertBetween(np.bincount(canaries.client, minlength=7).min(), 42, 43)

  def test_with_two_classes_there_is_no_pair(self):
    with self.assertRaisesRegex(ValueError, 'two wrong labels'):
      canaries_lib.draw(types.Examples(np.zeros((1, 1)), np.zeros(1, int)), 2, 1, 0)

  def test_insertion_adds_and_changes_nothing_else(self):
    empty = types.ClientExamples(
        np.zeros((0, 1), np.uint8), np.zeros(0, np.int32), np.zeros(0, np.int64)
    )
    own = types.ClientExamples(
        np.array([[250]], np.uint8), np.array([4], np.int32), np.array([17])
    )
    canaries = _canaries()
    found = canaries_lib.insert(types.Federation((own, *[empty] * 6), 10, 0), canaries)
    self.assertEqual(found.sizes.sum(), 301)
    self.assertEqual(found.clients[0].x[0, 0], 250)
    ids = np.concatenate([c.example_id for c in found.clients])
    self.assertCountEqual(ids.tolist(), [17, *range(18, 318)])
    np.testing.assert_array_equal(found.clients[3].y, canaries.y[canaries.client == 3])
    self.assertEqual(found.clients[3].y.dtype, np.int32)

  def test_model_that_remembers_tells_all_and_a_contrary_one_nothing(self):
    canaries = _canaries()
    logits = np.eye(10)[canaries.y]
    self.assertEqual(canaries_lib.guess(logits, canaries, 1.0), (300, 300))
    self.assertEqual(canaries_lib.guess(-logits, canaries, 1.0), (300, 0))

  def test_only_the_surest_are_guessed(self):
    canaries = _canaries()
    # A third is remembered well; of the others the model believes the opposite, faintly.
    strength = np.where(np.arange(300) % 3 == 0, 1.0, -0.1)
    logits = np.eye(10)[canaries.y] * strength[:, np.newaxis]
    self.assertEqual(canaries_lib.guess(logits, canaries, 1 / 3), (100, 100))
    self.assertEqual(canaries_lib.guess(logits, canaries, 1.0), (300, 100))

  @parameterized.parameters(0, -0.5, 1.5, math.nan)
  def test_share_out_of_range(self, share):
    with self.assertRaisesRegex(ValueError, 'share'):
      canaries_lib.guess(np.zeros((300, 10)), _canaries(), share)

  def test_model_that_saw_no_canaries_is_right_by_chance(self):
    logits = np.random.default_rng(1).normal(size=(300, 10))
    _, correct = canaries_lib.guess(logits, _canaries(), 1.0)
    self.assertBetween(correct, 110, 190)

  @parameterized.parameters(
      (0.0, math.inf, 'no evidence'), (0.0, 0.81, 'no evidence'),
      (0.5, 0.81, 'epsilon is at least 0.50'), (0.9, 0.81, 'claim refuted'),
  )
  def test_verdict_is_never_a_pass(self, bound, claim, expected):
    row = canaries_lib.CanaryRow(arms.Arm('fedavg'), 1, 10, 5, 3, bound, claim, 0.5)
    self.assertEqual(row.verdict, expected)


class ExposureTest(federated_test_case.FederatedTestCase):

  @parameterized.parameters(
      (arms.Arm('feddpcont'), math.inf),
      (arms.Arm('feddpcont', epsilon=arms.EPSILON), 0.81),
      # One round with the noise of 10 among 20 clients.
      (arms.Arm('fedavg', noise=1.0), 8.98146),
  )
  def test_through_training(self, arm, claim):
    [row] = canaries_lib.canary_exposure(0, arms=(arm,), rounds=1, canaries=40)
    self.assertEqual((row.rounds, row.canaries, row.guesses), (1, 40, 20))
    self.assertBetween(row.correct, 0, 20)
    self.assertBetween(row.accuracy, 0, 1)
    self.assertAlmostEqual(row.claim, claim, places=4)


if __name__ == '__main__':
  absltest.main()
