"""Tests of the mean of a run's models: training is the same, what is evaluated is the mean."""

import numpy as np
import tensorflow as tf
from absl.testing import absltest

from tests import federated_test_case
from tests.algorithms import contract_runs
from tests.program import runs
from tff_noise import types
from tff_noise.algorithms import algorithm as algorithm_lib
from tff_noise.algorithms import averaged_model


def _run(built, task, folder):
  state, _ = runs.run(built, task, contract_runs.federation(), folder)
  return state.state


class AveragedModelTest(federated_test_case.FederatedTestCase):

  def setUp(self):
    super().setUp()
    self.built, self.task = contract_runs.build('fedavg')

  def _of(self, share=0.8):
    return averaged_model.of(self.built, self.task.model, share)

  def test_mean_by_hand_beside_the_same_training(self):
    weights, built = [], self._of()

    def watched(state, clients):
      new = built.round(state, clients)
      weights.append(new.weights)
      return new

    first = tf.nest.flatten(built.init().weights)
    last = _run(built._replace(round=watched), self.task, self.create_tempdir().full_path)
    plain = _run(self.built, self.task, self.create_tempdir().full_path)
    tf.nest.map_structure(np.testing.assert_array_equal, last.weights, plain.weights)
    # Three rounds: b is 1/5, 2/6 and 3/7, below .8.
    self.assertLen(weights, 3)
    expected = first
    for b, now in zip((1 / 5, 2 / 6, 3 / 7), map(tf.nest.flatten, weights), strict=True):
      expected = [b * mean + (1 - b) * w for mean, w in zip(expected, now, strict=True)]
    (found,) = built.evaluated(last, [])
    for mean, value in zip(expected, tf.nest.flatten(found.weights), strict=True):
      np.testing.assert_allclose(value, mean, rtol=1e-5, atol=1e-7)
    self.assertFalse(np.allclose(tf.nest.flatten(found.weights)[0], first[0]))

  def test_each_later_stage_begins_anew(self):
    seen = []
    stages = {'first': 1, 'none': 0, 'second': 2}
    built = averaged_model.of(self.built._replace(stages=stages), self.task.model, 0.8)

    def watched(state, clients):
      new = built.round(state, clients)
      seen.append((new.weights, new.models[averaged_model.AVERAGED]))
      return new

    _run(built._replace(round=watched), self.task, self.create_tempdir().full_path)
    _, (second, mean_of_second), (third, mean_of_third) = seen
    tf.nest.map_structure(np.testing.assert_array_equal, mean_of_second, second)
    # The stage's second round: b is 2/6.
    tf.nest.map_structure(
        lambda found, old, new: np.testing.assert_allclose(
            found, old / 3 + new * 2 / 3, rtol=1e-5, atol=1e-7
        ),
        mean_of_third, second, third,
    )

  def test_before_the_first_round_it_is_the_initial_model(self):
    built = self._of()
    state = built.init()
    (found,) = built.evaluated(state, [])
    tf.nest.map_structure(np.testing.assert_array_equal, found.weights, state.weights)

  def test_a_small_share_is_the_weight_of_the_old_mean(self):
    old, new = [np.float32(0)], [np.float32(1)]
    for share, round_num, expected in ((0.1, 1, 0.9), (0.8, 1, 0.8), (0.8, 16, 0.2), (0, 5, 1)):
      (found,) = averaged_model.next_mean(old, new, share, round_num)
      self.assertAlmostEqual(float(found), expected, places=6)
      self.assertEqual(found.dtype, np.float32)

  def test_what_is_not_evaluated_by_its_global_model_is_refused(self):
    for name in ('rhfl', 'fedtally', 'fedbn'):
      built, task = contract_runs.build(name)
      if name == 'fedtally':
        built = built._replace(evaluate=lambda state, own: [algorithm_lib.Evaluated(None, state)])
      with self.assertRaisesRegex(types.UsageError, '^--average_models is for methods that are'):
        averaged_model.of(built, task.model, 0.5)


if __name__ == '__main__':
  absltest.main()
