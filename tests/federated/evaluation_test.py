"""Tests of the evaluation at the server."""

import numpy as np
import tensorflow_federated as tff
from absl.testing import absltest

from tests import federated_test_case
from tests import toy
from tff_noise.federated import evaluation

_WEIGHTS = tff.learning.models.ModelWeights


class EvaluationTest(federated_test_case.FederatedTestCase):

  def test_type_signature(self):
    computation = evaluation.build_evaluation(toy.linear_model())
    self.assertEqual(
        str(computation.type_signature),
        '(<weights=<trainable=<float32[2,2]>,non_trainable=<>>@SERVER,'
        'data=<x=float32[?,2],y=int32[?],client=int32>*@SERVER> -> '
        '<accuracy=float32,loss=float32>@SERVER)',
    )

  def test_accuracy_and_loss_by_hand(self):
    computation = evaluation.build_evaluation(toy.linear_model())
    weights = _WEIGHTS([np.array([[1, 0], [0, 1]], np.float32)], [])
    result = computation(weights, toy.client(0, [[2, 0], [0, 2], [2, 0], [2, 0]], [0, 1, 0, 1]))
    self.assertAlmostEqual(result['accuracy'], 0.75)
    right, wrong = np.log(1 + np.exp(-2)), np.log(1 + np.exp(2))
    self.assertAlmostEqual(result['loss'], (3 * right + wrong) / 4, places=5)

  def test_every_example_counts_once_over_many_batches(self):
    computation = evaluation.build_evaluation(toy.linear_model())
    weights = _WEIGHTS([np.array([[1, 0], [0, 1]], np.float32)], [])
    y = np.arange(1203) % 2
    x = np.where(y[:, np.newaxis] == 0, [1.0, 0.0], [0.0, 1.0])
    x[:3] = x[:3, ::-1]  # Three wrong ones.
    result = computation(weights, toy.client(0, x.tolist(), y.tolist()))
    self.assertAlmostEqual(result['accuracy'], 1200 / 1203, places=6)

  def test_moving_statistics_are_used(self):
    computation = evaluation.build_evaluation(toy.linear_model('batch'))
    ones = np.ones(2, np.float32)
    # gamma, beta, W; mean, variance: (x - 10) / 1 turns the sign of x.
    weights = _WEIGHTS(
        [ones, 0 * ones, np.array([[1, -1], [0, 0]], np.float32)], [10 * ones, ones]
    )
    result = computation(weights, toy.client(0, [[1, 0], [19, 0]], [1, 0]))
    self.assertEqual(result['accuracy'], 1)

  def test_no_examples_give_zero(self):
    result = evaluation.build_evaluation(toy.linear_model())(
        _WEIGHTS([np.zeros((2, 2), np.float32)], []), toy.client(0, [], [])
    )
    self.assertEqual(result['accuracy'], 0)
    self.assertEqual(result['loss'], 0)


if __name__ == '__main__':
  absltest.main()
