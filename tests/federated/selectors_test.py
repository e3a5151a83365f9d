"""Selectors of local models: their scores by hand and against NumPy."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tests import toy
from tff_noise.data import client_data
from tff_noise.federated import selectors
from tff_noise.federated import stacked
from tff_noise.models import architectures
from tff_noise.models import keras_model

# Classes are the larger coordinate's, the smaller one's, and always 0.
_LARGER, _SMALLER, _ZERO = np.eye(2), np.eye(2)[::-1], np.zeros((2, 2))
_X = np.array([[1, 0], [0, 1], [2, 1], [1, 3]], np.float32)


def _score(selector, models, x, y, reports=None, finite=None):
  """What `selector` says of linear models, inside a graph as in a server's computation."""
  server_data = client_data.server_dataset(np.asarray(x, np.float32), y)
  models = tf.constant(np.array(models, np.float32).reshape(-1, 2, 2))
  finite = tf.ones(len(models), tf.bool) if finite is None else tf.constant(finite)
  build = selector.build_score()

  @tf.function
  def score(server_data, models):
    inputs = stacked.SelectorInputs(
        lambda i: tff.learning.models.ModelWeights([models[i]], []),
        tf.shape(models)[0], finite, reports or {}, server_data,
    )
    return build(inputs)

  return score(server_data, models).numpy()


def _predictions(models, x):
  """int `[k, n]`."""
  return np.argmax(np.einsum('nd,kdc->knc', x, models), axis=2)


def _random_examples(draw, count):
  return draw.normal(size=(count, 2)).astype(np.float32), draw.integers(0, 2, count)


class ValidationTest(parameterized.TestCase):

  def test_accuracy_by_hand(self):
    selector = selectors.validation(toy.linear_model(), 2)
    # The larger one's classes are 0, 1, 0, 1.
    found = _score(selector, [_LARGER, _SMALLER, _ZERO], _X, [0, 1, 0, 0])
    np.testing.assert_allclose(found, [0.75, 0.25, 0.75])
    self.assertEqual(found.dtype, np.float32)
    self.assertEqual(selector.keep, 2)
    self.assertTrue(selector.reason)

  @parameterized.parameters(1, 99, 100, 101, 250, 300)
  def test_any_number_of_examples(self, count):
    draw = np.random.default_rng(count)
    x, y = _random_examples(draw, count)
    models = draw.normal(size=(4, 2, 2)).astype(np.float32)
    found = _score(selectors.validation(toy.linear_model(), 2), models, x, y)
    np.testing.assert_allclose(found, (_predictions(models, x) == y).mean(axis=1), rtol=1e-6)

  def test_last_batch_counts(self):
    # All are wrong but the last one of 201.
    x, y = np.repeat(_X[:1], 201, axis=0), np.ones(201, np.int32)
    y[-1] = 0
    found = _score(selectors.validation(toy.linear_model(), 1), [_LARGER], x, y)
    np.testing.assert_allclose(found, [1 / 201])

  def test_model_is_evaluated_with_its_own_moving_statistics(self):
    # With means of 0 the first coordinate is larger; with (4, 0) taken off it is the second.
    selector = selectors.validation(toy.linear_model('batch'), 1)
    build = selector.build_score()
    server_data = client_data.server_dataset(np.array([[2, 1], [3, 1]], np.float32), [1, 1])
    means = tf.constant([[0.0, 0], [4, 0]])

    def model(i):
      ones, zeros = tf.ones(2), tf.zeros(2)
      return tff.learning.models.ModelWeights([ones, zeros, tf.eye(2)], [means[i], ones])

    @tf.function
    def score(server_data):
      return build(stacked.SelectorInputs(
          model, tf.constant(2), tf.constant([True, True]), {}, server_data
      ))

    np.testing.assert_allclose(score(server_data), [0, 1])

  def test_images(self):
    model = keras_model.from_keras(architectures.mlp((8, 8, 1), 10, pixel_scale=1 / 16))
    selector = selectors.validation(model, 1)
    self.assertEqual(
        selector.server_data_type, client_data.server_data_type(model.data_type)
    )
    x = np.zeros((3, 8, 8, 1), np.uint8)
    server_data = client_data.server_dataset(x, [2, 2, 0])
    build = selector.build_score()
    # Zeros, but for the bias of class 2.
    weights = [np.zeros(t.shape, np.float32) for t in model.weights_type.trainable]
    weights[-1][2] = 1

    @tf.function
    def score(server_data):
      inputs = stacked.SelectorInputs(
          lambda i: tff.learning.models.ModelWeights([tf.constant(w) for w in weights], []),
          tf.constant(2), tf.constant([True, True]), {}, server_data,
      )
      return build(inputs)

    np.testing.assert_allclose(score(server_data), [2 / 3, 2 / 3])


class AgreementTest(parameterized.TestCase):

  def test_by_hand(self):
    # Classes 0101, 1010 and 0000: the first two never agree, either does with the third twice.
    selector = selectors.agreement(toy.linear_model(), 2)
    found = _score(selector, [_LARGER, _SMALLER, _ZERO], _X, np.zeros(4))
    np.testing.assert_allclose(found, [0.25, 0.25, 0.5])
    self.assertEqual(found.dtype, np.float32)

  def test_who_sent_nothing_has_no_vote(self):
    # The third's model is that which all received: without it the first two are as before.
    selector = selectors.agreement(toy.linear_model(), 2)
    models, y = [_LARGER, _SMALLER, _ZERO, _LARGER], np.zeros(4)
    found = _score(selector, models, _X, y, finite=[True, True, False, True])
    np.testing.assert_allclose(found[[0, 1, 3]], [0.5, 0, 0.5])

  def test_labels_are_not_looked_at(self):
    selector = selectors.agreement(toy.linear_model(), 2)
    models = [_LARGER, _SMALLER, _ZERO]
    np.testing.assert_array_equal(
        _score(selector, models, _X, [0, 1, 0, 1]), _score(selector, models, _X, [1, 1, 1, 0])
    )

  def test_alone_nobody_agrees(self):
    found = _score(selectors.agreement(toy.linear_model(), 2), [_LARGER], _X, np.zeros(4))
    np.testing.assert_array_equal(found, [0])

  def test_all_the_same(self):
    found = _score(selectors.agreement(toy.linear_model(), 2), [_LARGER] * 5, _X, np.zeros(4))
    np.testing.assert_allclose(found, np.ones(5))

  @parameterized.parameters((2, 100), (3, 1), (5, 230))
  def test_mean_over_all_pairs(self, num_clients, count):
    draw = np.random.default_rng(count)
    x, y = _random_examples(draw, count)
    models = draw.normal(size=(num_clients, 2, 2)).astype(np.float32)
    classes = _predictions(models, x)
    expected = [
        np.mean([(classes[i] == classes[j]).mean() for j in range(num_clients) if j != i])
        for i in range(num_clients)
    ]
    found = _score(selectors.agreement(toy.linear_model(), 2), models, x, y)
    np.testing.assert_allclose(found, expected, rtol=1e-5)

  def test_the_odd_one_out_is_last(self):
    # Four know better or worse which coordinate is larger; one says the opposite.
    draw = np.random.default_rng(0)
    models = [_LARGER + draw.normal(0, 0.2, (2, 2)) for _ in range(4)]
    models.insert(2, _SMALLER)
    x, y = _random_examples(draw, 150)
    found = _score(selectors.agreement(toy.linear_model(), 2), models, x, y)
    self.assertEqual(np.argmin(found), 2)
    self.assertLess(found[2], 0.2)


class ReportedTest(parameterized.TestCase):

  def test_smaller_is_better(self):
    selector = selectors.reported('lid', 3)
    reports = {'lid': tf.constant([3.0, 1.5, 0.0]), 'other': tf.constant([0.0, 0, 0])}
    inputs = stacked.SelectorInputs(
        lambda i: None, tf.constant(3), tf.ones(3, tf.bool), reports, ()
    )
    found = selector.build_score()(inputs).numpy()
    np.testing.assert_array_equal(found, [-3, -1.5, 0])
    self.assertEqual(np.argsort(-found).tolist(), [2, 1, 0])
    self.assertEqual((selector.keep, selector.server_data_type), (3, None))

  def test_what_is_not_a_number_is_not_kept(self):
    selector = selectors.reported('lid', 2)
    keep = stacked.best_of(selector, selector.build_score(), (), tf.constant(1), 0)
    clients = tf.range(3)
    reports = {'lid': tf.constant([np.nan, 5.0, np.inf])}
    _, kept = keep(lambda i: None, clients, tf.ones(3, tf.bool), reports)
    self.assertEqual(kept.numpy().tolist(), [False, True, False])


if __name__ == '__main__':
  absltest.main()
