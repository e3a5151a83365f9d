"""RoFL: its numbers by hand and in NumPy, what it sends, its guards, and what equals FedAvg."""

import functools
import os
import shutil

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tests.algorithms import method_runs
from tests.program import runs
from tff_noise import params as params_lib
from tff_noise import rng
from tff_noise import types
from tff_noise.algorithms import catalog
from tff_noise.algorithms import parameters
from tff_noise.algorithms import rofl
from tff_noise.clients import seeds
from tff_noise.federated import aggregation
from tff_noise.models import keras_model
from tff_noise.uplink import uplink

_Params = parameters.RoFLParams
_BOUND = _Params().feature_bound
# Without these RoFL is FedAvg.
_NOTHING = {'forget': 0.0, 'entropy_weight': 0.0, 'pseudo_labels_from': 100}

# The centroids and examples that several tests compute by hand.
_CENTROIDS = np.eye(2, dtype=np.float32)
_FEATURES = np.array([[0.9, 0.1], [0.2, 0.7], [0.6, 0.8]], np.float32)
_LABELS = np.array([0, 1, 0], np.int32)
_MOVED = [[0.816176, 0.330882], [0.184906, 0.722642]]


def _objective(logits, p, weight=1.0, features=_FEATURES, centroids=_CENTROIDS, predicted=_LABELS):
  return rofl.objective(
      tf.constant(logits, tf.float32), tf.convert_to_tensor(features), _LABELS, predicted,
      centroids, weight, p,
  )


class FormulasTest(parameterized.TestCase):

  def test_nearest_centroids_by_hand(self):
    np.testing.assert_array_equal(rofl.nearest(_FEATURES, _CENTROIDS), [0, 1, 1])

  def test_lengths_do_not_matter_to_what_is_nearest(self):
    centroids = np.array([[100, 0], [0, 0.01], [0, 0]], np.float32)
    features = np.array([[1, 2], [2, 1], [0, 0]], np.float32)
    np.testing.assert_array_equal(rofl.nearest(features, centroids), [1, 0, 0])

  def test_centroids_move_by_hand(self):
    means = rofl.class_means(_FEATURES, _LABELS, 2)
    np.testing.assert_allclose(means, [[0.75, 0.45], [0.2, 0.7]], atol=1e-6)
    np.testing.assert_allclose(
        rofl.similarity(_CENTROIDS, means), [0.857493, 0.961524], atol=1e-5
    )
    np.testing.assert_allclose(rofl.moved(_CENTROIDS, means), _MOVED, atol=1e-5)

  def test_centroid_of_a_class_without_examples_stays(self):
    means = rofl.class_means(_FEATURES[:1], _LABELS[:1], 2)
    np.testing.assert_array_equal(means[1], [0, 0])
    moved = rofl.moved(3 * _CENTROIDS, means)
    np.testing.assert_allclose(moved[1], [0, 3])
    self.assertGreater(np.abs(moved[0] - [3, 0]).max(), 1)

  @parameterized.parameters(
      ('sum', 1.0, 0.15), ('mean', 1.0, 0.05), ('sum', 0.25, 0.0375), ('sum', 0.0, 0.0)
  )
  def test_centroids_term_by_hand(self, reduction, weight, expected):
    # Of the two examples that agree: .1^2 + .1^2 and .2^2 + .3^2.
    p = _Params(entropy_weight=0.0, centroid_reduction=reduction)
    value = _objective(np.zeros((3, 2)), p, weight)
    self.assertAlmostEqual(value.numpy(), np.log(2) + expected, delta=1e-5)

  def test_entropy_by_hand(self):
    logits = [[2.0, 1.0, 0.0]] * 3
    values = [_objective(logits, _Params(entropy_weight=w), 0.0).numpy() for w in (0.0, 1.0)]
    self.assertAlmostEqual(values[1] - values[0], 0.832396, delta=1e-5)

  def test_entropy_of_certain_predictions_is_zero_and_finite(self):
    logits = tf.constant([[1e4, 0.0], [0.0, 1e4], [1e4, 0.0]])
    with tf.GradientTape() as tape:
      tape.watch(logits)
      value = _objective(logits, _Params(), 0.0)
    self.assertEqual(value.numpy(), 0)
    np.testing.assert_array_equal(tape.gradient(value, logits), np.zeros((3, 2)))

  def test_where_centroids_contradict_a_label_the_prediction_is_learned(self):
    # The third example: nearest is 1, the label 0. The others' predictions are not asked.
    predicted = np.array([1, 0, 1], np.int32)
    p = _Params(entropy_weight=0.0)
    logits = np.array([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]])
    losses = np.log(1 + np.exp([-1.0, -1.0, 3.0]))
    value = _objective(logits, p, 0.0, predicted=predicted)
    self.assertAlmostEqual(value.numpy(), losses.mean(), delta=1e-5)

  @parameterized.parameters('sum', 'mean')
  def test_gradient_with_respect_to_features_is_that_of_the_formula(self, reduction):
    features = tf.constant(_FEATURES)
    p = _Params(centroid_gradient='features', centroid_reduction=reduction)
    with tf.GradientTape() as tape:
      tape.watch(features)
      value = _objective(np.zeros((3, 2)), p, 0.25, features)
    # 2 lambda (f - f_k[y]) of the two that agree.
    expected = 0.5 * np.array([[-0.1, 0.1], [0.2, -0.3], [0, 0]])
    if reduction == 'mean':
      expected /= 3
    np.testing.assert_allclose(tape.gradient(value, features), expected, atol=1e-5)

  def test_public_codes_term_has_no_gradient(self):
    gradients = []
    for weight in (0.0, 5.0):
      kernel = tf.constant([[1.0, -1.0], [0.5, 2.0]])
      with tf.GradientTape() as tape:
        tape.watch(kernel)
        features = tf.matmul(_FEATURES, kernel)
        value = _objective(features, _Params(), weight, features)
      gradients.append(tape.gradient(value, kernel).numpy())
    np.testing.assert_array_equal(*gradients)

  @parameterized.parameters(
      (0, 0.2, 50, 40), (0, 0.2, 1, 1), (0, 0.5, 3, 1), (0, 0.2, 10, 8), (0, 0.06, 4, 3),
      (0, 0.9, 10, 1), (0, 0.9, 20, 2), (0, 0.0, 7, 7), (10, 0.2, 50, 50),
  )
  def test_as_many_are_confident(self, rounds, forget, batch, expected):
    rate = rofl.forget_rate(0, _Params(forget=forget, forget_rounds=rounds))
    chosen = rofl.confident(tf.zeros([batch, 2]), tf.zeros(batch, tf.int32), rate)
    np.testing.assert_array_equal(chosen, range(expected))

  def test_smallest_losses_of_the_given_labels_are_confident(self):
    logits = tf.constant([[0.0, 0.0], [3.0, 0.0], [3.0, 0.0], [0.0, 5.0]])
    chosen = rofl.confident(logits, tf.constant([0, 0, 1, 1]), tf.constant(0.5, tf.float64))
    np.testing.assert_array_equal(chosen, [3, 1])

  @parameterized.parameters((0, 0.0), (3, 0.066667), (9, 0.2), (10, 0.2), (500, 0.2))
  def test_forget_rate_rises_to_a_constant(self, t, expected):
    self.assertAlmostEqual(rofl.forget_rate(t, _Params()).numpy(), expected, places=6)

  @parameterized.parameters((0, 100, 0.0), (25, 100, 0.25), (100, 100, 1.0), (101, 100, 1.0),
                            (0, 0, 1.0), (7, 0, 1.0))
  def test_weight_of_the_centroids_rises_to_a_constant(self, t, start, expected):
    weight = rofl.centroid_weight(tf.constant(t), _Params(), start)
    self.assertAlmostEqual(weight.numpy(), expected, places=6)


class AlignmentTest(parameterized.TestCase):
  """The server's part, from what clients send."""

  def _align(self, centroids, of_clients, bound=_BOUND):
    centroids = np.array(centroids, np.float32)
    of_clients = [np.array(f, np.float32) for f in of_clients]
    cosines = np.stack([rofl.similarity(centroids, f) for f in of_clients])
    weighted = sum(c[:, np.newaxis] * f for c, f in zip(cosines, of_clients, strict=True))
    return cosines, *rofl.next_centroids(centroids, weighted, cosines.sum(0), bound)

  def test_three_clients_by_hand(self):
    clients = [[[0.8, 0.6], [0, 1]], [[1, 0], [0.6, 0.8]], [[0, 1], [0, 1]]]
    cosines, aligned, changed = self._align(np.eye(2), clients)
    np.testing.assert_allclose(cosines, [[0.8, 1], [1, 0.8], [0, 1]], atol=1e-6)
    np.testing.assert_allclose(cosines.sum(0), [1.8, 2.8], atol=1e-6)
    expected = [[0.911111, 0.266667], [0.171429, 0.942857]]
    np.testing.assert_allclose(aligned, expected, atol=1e-5)
    self.assertTrue(changed.all())
    # From single clients, as the public server has it.
    literal = np.einsum('kj,kjd->jd', cosines, np.array(clients)) / cosines.sum(0)[:, np.newaxis]
    np.testing.assert_allclose(aligned, literal, atol=1e-6)

  def test_cosines_that_cancel_leave_the_centroid(self):
    cosines, aligned, changed = self._align([[1, -1]], [[[1, 0.9]], [[0.9, 1]]])
    np.testing.assert_allclose(cosines, [[0.052559], [-0.052559]], atol=1e-5)
    np.testing.assert_array_equal(aligned, [[1, -1]])
    np.testing.assert_array_equal(changed, [False])

  def test_class_of_nobody_leaves_the_centroid(self):
    _, aligned, changed = self._align([[3, 4], [1, 2]], [[[0, 0], [2, 4]]] * 2)
    np.testing.assert_allclose(aligned, [[3, 4], [2, 4]], atol=1e-6)
    np.testing.assert_array_equal(changed, [False, True])

  def test_cosines_of_both_signs_leave_the_hull_but_not_the_bound(self):
    clients = [[[1, 0.9]], [[0.95, 1]]]
    _, aligned, _ = self._align([[1, -1]], clients)
    np.testing.assert_allclose(aligned, [[1.047598, 0.804804]], atol=1e-5)
    _, aligned, changed = self._align([[1, -1]], clients, bound=1.0)
    np.testing.assert_allclose(aligned, [[1, 0.804804]], atol=1e-5)
    self.assertTrue(changed.all())


_task = functools.partial(method_runs.task, rounds=4)


def _run(federation, task, name='rofl', state=None, **params):
  return method_runs.run(name, federation, task, state, **params)


def _federation(*clients):
  return types.Federation(
      tuple(
          types.ClientExamples(np.array(x, np.float32), np.array(y, np.int32), np.arange(len(y)))
          for x, y in clients
      ), 2, method_runs.SEED,
  )


def _after(task, t, centroids=_CENTROIDS, **params):
  """RoFL's state before round t, with the model as it is at first."""
  state = method_runs.build('rofl', task, **params).init()
  return state.send(centroids=np.array(centroids, np.float32))._replace(round_num=t)


def _cosine(a, b):
  norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
  return (a * b).sum(-1) / np.maximum(norms, 1e-8)


def _class_means(x, y):
  return np.stack([x[y == j].mean(0) if (y == j).any() else 0 * x[0] for j in range(2)])


class _NumPy:
  """RoFL on the linear model, whose features are its inputs, as the public code has it."""

  def __init__(self, federation, centroids, p, epochs, batch_size, learning_rate):
    self.clients, self.p = federation.clients, p
    self.w, self.f_g = np.zeros((2, 2)), centroids.astype(np.float64)
    self.epochs, self.batch_size, self.learning_rate = epochs, batch_size, learning_rate

  def round(self, t):
    f_k, w = zip(*(self._client(t, k) for k in range(len(self.clients))), strict=True)
    c = [_cosine(self.f_g, f) for f in f_k]
    # The server's steps; the code's mean of models is unweighted.
    weighted = sum(a[:, np.newaxis] * f for a, f in zip(c, f_k, strict=True))
    self.f_g = weighted / sum(c)[:, np.newaxis]
    self.w = np.average(w, axis=0, weights=[len(k.y) for k in self.clients])

  def _client(self, t, k):
    p, (x, y, _) = self.p, self.clients[k]
    w = self.w.copy()
    predicted = (x @ w).argmax(1) if t >= p.pseudo_labels_from else y
    f_k = _class_means(x, y) if t == 0 else self.f_g
    rate = [*np.linspace(0, p.forget, p.forget_rounds), *[p.forget] * 10][t]
    for epoch in range(self.epochs):
      seed = seeds.fold(rng.tf_seed(method_runs.SEED, 'local training'), t + 1, k, epoch)
      order = seeds.batch_order(seed, len(y)).numpy()
      for first in range(0, len(y), self.batch_size):
        i = order[first : first + self.batch_size]
        log_p = x[i] @ w - np.log(np.exp(x[i] @ w).sum(1, keepdims=True))
        losses = -log_p[np.arange(len(i)), y[i]]
        small = np.argsort(losses, kind='stable')[: max(1, int((1 - rate) * len(i)))]
        i, log_p = i[small], log_p[small]
        nearest = np.array([_cosine(f_k, v).argmax() for v in x[i]])
        targets = np.where(nearest == y[i], y[i], predicted[i])
        entropy = -(np.exp(log_p) * log_p).sum(1, keepdims=True)
        of_logits = np.exp(log_p) - np.eye(2)[targets]
        of_logits -= p.entropy_weight * np.exp(log_p) * (log_p + entropy)
        w -= self.learning_rate * x[i].T @ of_logits / len(i)
        means = _class_means(x[i], y[i])
        s2 = _cosine(f_k, means)[:, np.newaxis] ** 2
        f_k = (1 - s2) * f_k + s2 * means
    return f_k, w


class TrainingTest(federated_test_case.FederatedTestCase):

  def test_one_client_by_hand(self):
    # A batch of three, all confident: what the client sends is known from its centroids alone.
    federation = _federation((_FEATURES, _LABELS))
    task = _task(federation, training=types.LocalTraining(1, 3, 0.1), rounds=2)
    state, clients = _run(
        federation, task, state=_after(task, 1, forget=0.0), forget=0.0, pseudo_labels_from=4
    )
    # Of one client the mean is its own, whatever the cosines.
    np.testing.assert_allclose(state.received['centroids'], _MOVED, atol=1e-5)
    # At W = 0: log 2 for each, lambda_cen / 4 of .15, and .8 of an entropy of log 2.
    self.assertAlmostEqual(
        clients.traffic.train_loss, 1.8 * np.log(2) + 0.0375, delta=1e-5
    )

  @parameterized.named_parameters(
      ('from_the_start', {'pseudo_labels_from': 0}),
      ('from_the_third_round', {'pseudo_labels_from': 2}),
      ('no_forgetting', {'pseudo_labels_from': 1, 'forget': 0.0}),
      ('half_forgotten', {'pseudo_labels_from': 1, 'forget': 0.5, 'forget_rounds': 2}),
      ('without_entropy', {'pseudo_labels_from': 1, 'entropy_weight': 0.0}),
  )
  def test_equals_the_public_code_in_numpy(self, params):
    # Batches of 3 and the rest, of one example too; clients of 7, 4 and 1.
    federation = toy.two_corners([7, 4, 1])
    task = _task(federation, clients_per_round=3)
    state, _ = _run(federation, task, **params)
    expected = _NumPy(federation, rofl.first_centroids(task), _Params(**params), 2, 3, 0.2)
    for t in range(4):
      expected.round(t)
    np.testing.assert_allclose(state.weights.trainable[0], expected.w, atol=1e-5)
    np.testing.assert_allclose(state.received['centroids'], expected.f_g, atol=1e-5)

  @parameterized.parameters('', 'fedprox', 'scaffold', 'poc', 'median')
  def test_without_its_terms_it_is_the_optimizer_alone(self, base):
    federation = toy.two_corners([5, 7, 4])
    state, _ = _run(federation, _task(federation, base), **_NOTHING)  # --base
    alone, _ = _run(federation, _task(federation), base or 'fedavg')
    np.testing.assert_allclose(
        state.weights.trainable[0], alone.weights.trainable[0], atol=1e-6
    )
    whole, _ = _run(federation, _task(federation, base), forget=0.5, forget_rounds=0)
    difference = np.abs(whole.weights.trainable[0] - alone.weights.trainable[0])
    self.assertGreater(difference.max(), 1e-2)

  def test_readings_that_the_linear_model_cannot_tell_apart_change_no_weight(self):
    # Its features are its inputs: nothing trains them.
    federation = toy.two_corners([5, 7])
    task = _task(federation)
    expected, _ = _run(federation, task)
    for params in ({'centroid_weight': 9.0}, {'centroid_gradient': 'features'}):
      found, _ = _run(federation, task, **params)
      np.testing.assert_array_equal(
          found.weights.trainable[0], expected.weights.trainable[0]
      )

  def test_centroids_that_train_features_change_what_is_learned(self):
    x = tf.keras.Input((2,))
    features = tf.keras.layers.Dense(3, activation='relu')(x)
    network = tf.keras.Model(x, [tf.keras.layers.Dense(2)(features), features])
    federation = toy.two_corners([6, 6])
    task = _task(federation, model=keras_model.from_keras(network))
    weights = []
    for gradient in ('none', 'features'):
      state, _ = _run(federation, task, centroid_gradient=gradient, centroid_reduction='mean')
      self.assertEqual(state.received['centroids'].shape, (2, 3))
      weights.append(state.weights.trainable[0])
    self.assertGreater(np.abs(weights[0] - weights[1]).max(), 1e-3)

  def test_equal_first_weights_are_the_mean_of_those_who_have_the_class(self):
    federation = _federation(
        ([[1, 0], [3, 0], [0, 2]], [0, 0, 1]), ([[0, 1]], [0]), ([[4, 4]], [0])
    )
    task = _task(federation, training=types.LocalTraining(1, 3, 0.1), clients_per_round=3, rounds=1)
    state, _ = _run(federation, task, first_weights='equal', forget=0.0)
    # Means of clients are their own and stay; of class 1 only the first has any.
    np.testing.assert_allclose(state.received['centroids'], [[2, 5 / 3], [0, 2]], atol=1e-5)
    # Later rounds weigh by cosines under both readings.
    task = task._replace(rounds=2)
    readings = [
        _run(federation, task, state=_after(task, 1), first_weights=w)[0].received['centroids']
        for w in ('random', 'equal')
    ]
    np.testing.assert_array_equal(*readings)


class GuardsTest(federated_test_case.FederatedTestCase):

  def test_clients_of_one_example(self):
    federation = toy.two_corners([1, 1, 1])
    state, clients = _run(federation, _task(federation), forget=0.9, forget_rounds=0)
    self.assertTrue(np.isfinite(state.weights.trainable[0]).all())
    self.assertTrue(np.isfinite(state.received['centroids']).all())
    self.assertEqual(clients.traffic.rejected, 0)

  def test_class_that_nobody_has_keeps_its_first_centroid(self):
    federation = _federation(([[1, 2], [2, 1]], [0, 0]), ([[1, 1]], [0]))
    task = _task(federation)
    state, _ = _run(federation, task, pseudo_labels_from=1)
    first = rofl.first_centroids(task)
    np.testing.assert_allclose(state.received['centroids'][1], first[1], rtol=1e-5)
    self.assertTrue(np.isfinite(state.received['centroids']).all())
    self.assertTrue(np.isfinite(state.weights.trainable[0]).all())
    state, _ = _run(federation, task._replace(rounds=1))
    self.assertEqual(state.records['kept_centroids'], 1)

  def test_centroids_above_the_bound_are_cut_and_counted(self):
    federation = _federation(([[9, 0], [0, 3]], [0, 1]), ([[4, 0], [0, 3]], [0, 1]))
    task = _task(federation, training=types.LocalTraining(1, 2, 0.0))
    state = _after(task, 3)
    state, _ = _run(federation, task, state=state, feature_bound=5.0, forget=0.0)
    np.testing.assert_allclose(state.received['centroids'], [[4.5, 0], [0, 3]], atol=1e-5)
    self.assertEqual(state.records['cut_centroids'], 1)

  def test_nobodys_centroids_count_whose_training_failed(self):
    federation = _federation(([[np.inf, 0], [0, 1]], [0, 1]), ([[2, 1], [0, 3]], [0, 1]))
    task = _task(federation, training=types.LocalTraining(1, 2, 0.1))
    state, clients = _run(federation, task, state=_after(task, 3), forget=0.0)
    self.assertEqual(clients.traffic.rejected, 1)
    alone = _federation(([[2, 1], [0, 3]], [0, 1]))
    expected, _ = _run(
        alone, _task(alone, training=task.training), state=_after(task, 3), forget=0.0
    )
    np.testing.assert_allclose(
        state.received['centroids'], expected.received['centroids'], atol=1e-6
    )

  def test_client_without_examples(self):
    federation = toy.two_corners([4, 0])
    state, _ = _run(federation, _task(federation))
    self.assertTrue(np.isfinite(state.weights.trainable[0]).all())
    self.assertTrue(np.isfinite(state.received['centroids']).all())

  def test_batch_norm(self):
    federation = toy.two_corners([5, 1])
    state, _ = _run(federation, _task(federation, model=toy.linear_model('batch')))
    for value in tf.nest.flatten((state.weights, state.received)):
      self.assertTrue(np.isfinite(value).all())

  def test_predictions_on_reports_are_refused_in_one_line(self):
    task = _task(toy.two_corners([4, 4]))
    task = task._replace(label_privacy=task.label_privacy._replace(in_training=True))
    message = '^--training_labels=private: .* with .*_from=4 it replaces none$'
    with self.assertRaisesRegex(types.UsageError, message):
      method_runs.build('rofl', task)
    method_runs.build('rofl', task, pseudo_labels_from=4)


class UplinkTest(federated_test_case.FederatedTestCase):

  def test_sends_sums_and_no_value_of_a_single_client(self):
    task = _task(toy.two_corners([4, 4]))
    fed_avg = method_runs.build('fedavg', task).fields
    own = [f for f in method_runs.build('rofl', task).fields if f not in fed_avg]
    self.assertEqual(
        [(f.name, f.type_spec, f.disclosure) for f in own],
        [
            ('centroids', 'float32[2,2]', uplink.Disclosure.SUM),
            ('similarities', 'float32[2]', uplink.Disclosure.SUM),
            ('cut_centroids', 'int32', uplink.Disclosure.SUM),
        ],
    )
    self.assertEqual(catalog.ALGORITHMS['rofl'].per_client, '')

  def test_secure_sums_give_the_same(self):
    federation = toy.two_corners([6, 4, 5])
    task = _task(federation)
    secure = task._replace(
        aggregation=aggregation.secure_weighted_mean(update_bound=1.0, max_examples=6)
    )
    algorithm = method_runs.build('rofl', secure)
    for c in algorithm.computations:
      tff.test.assert_not_contains_unsecure_aggregation(c.next)
    found, expected = (_run(federation, t, pseudo_labels_from=2)[0] for t in (secure, task))
    np.testing.assert_allclose(
        found.weights.trainable[0], expected.weights.trainable[0], atol=1e-5
    )
    np.testing.assert_allclose(
        found.received['centroids'], expected.received['centroids'], atol=1e-4
    )

  def test_resumes_to_the_same_centroids(self):
    federation = toy.two_corners([6, 4, 5])
    task = _task(federation)
    root = self.create_tempdir().full_path
    folder, copies = (os.path.join(root, name) for name in ('run', 'copies'))
    os.mkdir(folder)
    algorithm = method_runs.build('rofl', task, pseudo_labels_from=2)
    whole, metrics = runs.run(algorithm, task, federation, folder, copies)
    self.assertIn('cut_centroids,kept_centroids', metrics)
    for stopped_after in (1, 3):
      copy = os.path.join(root, f'copy{stopped_after}')
      shutil.copytree(os.path.join(copies, str(stopped_after)), copy)
      state, same_metrics = runs.run(algorithm, task, federation, copy)
      self.assertEqual(same_metrics, metrics)
      np.testing.assert_array_equal(
          state.state.received['centroids'], whole.state.received['centroids']
      )
      np.testing.assert_array_equal(
          state.state.weights.trainable[0], whole.state.weights.trainable[0]
      )


class ParamsTest(parameterized.TestCase):

  @parameterized.parameters(
      ('centroid_gradient=paper', "centroid_gradient must be one of none, features, got 'paper'"),
      ('centroid_reduction=max', "centroid_reduction must be one of sum, mean, got 'max'"),
      ('first_weights=one', "first_weights must be one of random, equal, got 'one'"),
      ('centroid_weight=-1', 'centroid_weight must not be negative, got -1.0'),
      ('entropy_weight=-1', 'entropy_weight must not be negative, got -1.0'),
      ('forget_rounds=-1', 'forget_rounds must not be negative, got -1'),
      ('forget=1', 'forget must be at least 0 and below 1, got 1.0'),
      ('feature_bound=0', 'feature_bound must be positive, got 0.0'),
      ('pseudo_labels_from=-2',
       'pseudo_labels_from must be a round, or -1 for a tenth of all rounds, got -2'),
  )
  def test_out_of_range_is_refused_in_one_line(self, param, message):
    with self.assertRaisesRegex(types.UsageError, f'^--param: {message}$'):
      params_lib.parse('rofl', _Params, [param])

  def test_defaults_are_the_public_codes(self):
    p = _Params()
    self.assertEqual((p.centroid_weight, p.entropy_weight), (1.0, 0.8))
    self.assertEqual((p.forget, p.forget_rounds), (0.2, 10))
    self.assertEqual(
        (p.centroid_gradient, p.centroid_reduction, p.first_weights), ('none', 'sum', 'random')
    )


if __name__ == '__main__':
  absltest.main()
