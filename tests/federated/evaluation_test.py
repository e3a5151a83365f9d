"""Tests of the evaluation at the server."""

import numpy as np
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tff_noise import types
from tff_noise.data import client_data
from tff_noise.federated import evaluation
from tff_noise.models import keras_model

_WEIGHTS = tff.learning.models.ModelWeights


def _share(x, y):
  return client_data.server_dataset(np.asarray(x, np.float32), np.asarray(y, np.int32))


class EvaluationTest(federated_test_case.FederatedTestCase):

  def test_type_signature(self):
    computation = evaluation.build_evaluation(toy.linear_model())
    self.assertEqual(
        str(computation.type_signature),
        '(<weights=<trainable=<float32[2,2]>,non_trainable=<>>@SERVER,'
        'data={<x=float32[?,2],y=int32[?]>*}@CLIENTS> -> '
        '<accuracy=float32,loss=float32,confusion=int32[2,2]>@SERVER)',
    )

  def test_accuracy_and_loss_by_hand(self):
    computation = evaluation.build_evaluation(toy.linear_model())
    weights = _WEIGHTS([np.array([[1, 0], [0, 1]], np.float32)], [])
    result = computation(weights, [_share([[2, 0], [0, 2], [2, 0], [2, 0]], [0, 1, 0, 1])])
    self.assertAlmostEqual(result['accuracy'], 0.75)
    np.testing.assert_array_equal(result['confusion'], [[2, 0], [1, 1]])
    right, wrong = np.log(1 + np.exp(-2)), np.log(1 + np.exp(2))
    self.assertAlmostEqual(result['loss'], (3 * right + wrong) / 4, places=5)

  def test_every_example_counts_once_over_many_batches(self):
    computation = evaluation.build_evaluation(toy.linear_model())
    weights = _WEIGHTS([np.array([[1, 0], [0, 1]], np.float32)], [])
    y = np.arange(1203) % 2
    x = np.where(y[:, np.newaxis] == 0, [1.0, 0.0], [0.0, 1.0])
    x[:3] = x[:3, ::-1]  # Three wrong ones.
    result = computation(weights, [_share(x, y)])
    self.assertAlmostEqual(result['accuracy'], 1200 / 1203, places=6)

  def test_shares_count_by_their_examples(self):
    computation = evaluation.build_evaluation(toy.linear_model())
    weights = _WEIGHTS([np.array([[1, 0], [0, 2]], np.float32)], [])
    x, y = [[2, 0], [0, 2], [2, 0], [1, 1]], [0, 1, 1, 0]
    whole = computation(weights, [_share(x, y)])
    shares = computation(
        weights, [_share(x[:3], y[:3]), _share(np.zeros((0, 2)), []), _share(x[3:], y[3:])]
    )
    self.assertAlmostEqual(shares['accuracy'], 0.5)
    self.assertAlmostEqual(shares['loss'], whole['loss'], places=6)
    np.testing.assert_array_equal(shares['confusion'], whole['confusion'])

  def test_moving_statistics_are_used(self):
    computation = evaluation.build_evaluation(toy.linear_model('batch'))
    ones = np.ones(2, np.float32)
    # gamma, beta, W; mean, variance: (x - 10) / 1 turns the sign of x.
    weights = _WEIGHTS(
        [ones, 0 * ones, np.array([[1, -1], [0, 0]], np.float32)], [10 * ones, ones]
    )
    result = computation(weights, [_share([[1, 0], [19, 0]], [1, 0])])
    self.assertEqual(result['accuracy'], 1)

  def test_no_examples_give_zero(self):
    result = evaluation.build_evaluation(toy.linear_model())(
        _WEIGHTS([np.zeros((2, 2), np.float32)], []), [_share(np.zeros((0, 2)), [])]
    )
    self.assertEqual(result['accuracy'], 0)
    self.assertEqual(result['loss'], 0)


# Examples on which each combination of three networks is right another number of times. (Of two
# networks and classes the mean probability and the sum of the logits have the same sign.)
_X, _Y = np.array([[1, 0], [0, 1], [3, 1], [1, 3], [2, -1]], np.float32), np.array([0, 1, 1, 0, 1])
_KERNELS = [
    np.array(kernel, np.float32)
    for kernel in ([[0, -4], [0, 3]], [[0, 1], [1, -4]], [[-4, 4], [-2, -4]])
]


def _log_probabilities(logits):
  return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def _expected(combination):
  """Accuracy and loss of the three networks, in NumPy."""
  logits = [_X.astype(np.float64) @ kernel for kernel in _KERNELS]
  log_p = {
      'first': lambda: _log_probabilities(logits[0]),
      'mean_probability': lambda: np.log(
          np.mean([np.exp(_log_probabilities(z)) for z in logits], axis=0)
      ),
      'sum_logits': lambda: _log_probabilities(sum(logits)),
  }[combination]()
  return np.mean(log_p.argmax(axis=1) == _Y), -np.mean(log_p[np.arange(len(_Y)), _Y])


class SeveralNetworksTest(federated_test_case.FederatedTestCase):

  @parameterized.parameters(*keras_model.COMBINATIONS)
  def test_are_evaluated_by_their_combination(self, combination):
    model = keras_model.several(toy.linear_model(), 3, combination)
    result = evaluation.build_evaluation(model)(
        _WEIGHTS(_KERNELS, []), [_share(_X, _Y)]
    )
    accuracy, loss = _expected(combination)
    self.assertAlmostEqual(result['accuracy'], accuracy, places=6)
    self.assertAlmostEqual(result['loss'], loss, places=5)

  def test_combinations_differ(self):
    # Or the test above would show nothing.
    self.assertEqual([_expected(c)[0] for c in keras_model.COMBINATIONS], [0.4, 0.2, 0.6])

  def test_unknown_combination_is_refused(self):
    with self.assertRaisesRegex(ValueError, "one of first, mean_probability, sum_logits.*'last'"):
      keras_model.several(toy.linear_model(), 3, 'last')


class EvaluatorsTest(federated_test_case.FederatedTestCase):

  def test_mean_over_models_on_each_set(self):
    sets = {
        'all': types.Examples(_X, _Y.astype(np.int32)),
        'one': types.Examples(_X[:1], _Y[:1].astype(np.int32)),
    }
    evaluators = evaluation.build_evaluators(toy.linear_model(), sets)
    alone = [
        {name: evaluate([(None, _WEIGHTS([kernel], []))]) for name, evaluate in evaluators.items()}
        for kernel in _KERNELS
    ]
    logits = _X.astype(np.float64) @ _KERNELS[1]
    log_p = _log_probabilities(logits)[np.arange(len(_Y)), _Y]
    self.assertAlmostEqual(alone[1]['all']['loss'], -log_p.mean(), places=5)
    self.assertAlmostEqual(alone[1]['one']['loss'], -log_p[0], places=5)
    for name, evaluate in evaluators.items():
      both = evaluate([(None, _WEIGHTS([kernel], [])) for kernel in _KERNELS])
      for measure in ('accuracy', 'loss'):
        self.assertAlmostEqual(
            both[measure], np.mean([one[name][measure] for one in alone]), places=6
        )
      np.testing.assert_array_equal(
          both['confusion'], sum(one[name]['confusion'] for one in alone)
      )

  def test_models_of_their_own_each_by_its_own(self):
    # Nobody but the evaluators holds the models: no two may be taken for one.
    evaluators = evaluation.build_evaluators(
        toy.linear_model(), {'test': types.Examples(_X, _Y.astype(np.int32))}
    )
    model, weights = keras_model.several(toy.linear_model(), 3, 'first'), _WEIGHTS(_KERNELS, [])
    for _ in range(2):
      for combination in keras_model.COMBINATIONS:
        found = evaluators['test']([(model._replace(combination=combination), weights)])
        accuracy, loss = _expected(combination)
        self.assertAlmostEqual(found['loss'], loss, places=5)
        self.assertAlmostEqual(found['accuracy'], accuracy, places=6)


if __name__ == '__main__':
  absltest.main()
