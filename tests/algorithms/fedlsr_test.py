"""FedLSR: its terms by hand, the two views in clients' training, and what it degenerates to."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tests.algorithms import method_runs
from tff_noise import params as params_lib
from tff_noise import types
from tff_noise.algorithms import catalog
from tff_noise.algorithms import fedlsr

_ENTRY = catalog.ALGORITHMS['fedlsr']
_FIRST = np.array([[2, 1, 0]], np.float32)
_SECOND = np.array([[1, 2, 0]], np.float32)
_LABELS = np.array([0], np.int32)
# What makes cross-entropy of FedLSR where both views are equal.
_PLAIN = {
    'view': 'training', 'consistency_weight': 0.0, 'entropy_weight': 0.0, 'sharpness': 1.0,
    'cross_entropy': 'log',
}
# Of a model whose predictions have moved.
_SLOPES = np.array([[1, -0.5], [0.25, 0.75]], np.float32)


def _images(*sizes):
  draw = np.random.default_rng(0)
  clients = [
      types.ClientExamples(
          draw.integers(0, 256, (n, 6, 5, 1)).astype(np.uint8),
          draw.integers(0, 2, n).astype(np.int32), np.arange(n),
      )
      for n in sizes
  ]
  return types.Federation(tuple(clients), 2, 3)


def _run(name, federation, task, **params):
  """Runs all rounds; returns the first trained weights, and the training loss of the last."""
  state, clients = method_runs.run(name, federation, task, **params)
  return state.weights.trainable[0], clients.traffic.train_loss


def _softmax(logits):
  e = np.exp(logits - logits.max(axis=-1, keepdims=True))
  return e / e.sum(axis=-1, keepdims=True)


class TermsTest(parameterized.TestCase):

  def test_mixed_prediction(self):
    for sharpness, expected in (
        (1.0, [0.370882, 0.539087, 0.090031]), (2.0, [0.315292, 0.666129, 0.018579])
    ):
      found = tf.exp(fedlsr.log_mixed(_FIRST, _SECOND, 0.3, sharpness))
      np.testing.assert_allclose(found, [expected], atol=1e-5)

  @parameterized.parameters((0.0, _SECOND), (1.0, _FIRST))
  def test_a_share_of_all_is_one_view_and_the_other_gets_no_gradient(self, share, seen):
    views = [tf.constant(_FIRST), tf.constant(_SECOND)]
    with tf.GradientTape() as tape:
      tape.watch(views)
      log_p = fedlsr.log_mixed(*views, share, 1.0)
      first = log_p[0, 0]
    np.testing.assert_allclose(tf.exp(log_p), _softmax(seen), atol=1e-6)
    unseen = tape.gradient(first, views)[0 if seen is _SECOND else 1]
    np.testing.assert_array_equal(unseen, np.zeros((1, 3)))

  @parameterized.parameters(('probabilities', 1.151684), ('log', 1.154257))
  def test_cross_entropy(self, kind, expected):
    log_p = fedlsr.log_mixed(_FIRST, _SECOND, 0.3, 2.0)
    found = fedlsr.cross_entropy(log_p, _LABELS, kind, types.CrossEntropy())
    self.assertAlmostEqual(found.numpy(), expected, delta=1e-5)

  @parameterized.parameters((10, 1.461150, 2.461150), (100, 3.622207, 4.622207))
  def test_range_of_the_public_cross_entropy(self, num_classes, lowest, highest):
    sure = 100 * np.eye(num_classes, dtype=np.float32)[:1]
    log_p = fedlsr.log_mixed(sure, sure, 0.5, 2.0)
    for label, expected in ((0, lowest), (1, highest)):
      labels = np.array([label], np.int32)
      found = fedlsr.cross_entropy(log_p, labels, 'probabilities', types.CrossEntropy())
      self.assertAlmostEqual(found.numpy(), expected, delta=1e-5)

  @parameterized.parameters(('probabilities', -0.18, 0.02), ('log', -1.8, 0.2))
  def test_gradient_where_nothing_is_known(self, kind, right, wrong):
    # Cross-entropy's is (-.9, .1, ...); log p_s has twice that, for the square.
    logits = tf.zeros([1, 10])
    with tf.GradientTape() as tape:
      tape.watch(logits)
      log_p = fedlsr.log_mixed(logits, logits, 0.3, 2.0)
      value = fedlsr.cross_entropy(log_p, _LABELS, kind, types.CrossEntropy())
    np.testing.assert_allclose(tape.gradient(value, logits), [[right] + 9 * [wrong]], atol=1e-5)

  def test_a_view_that_rules_the_label_out_has_a_finite_gradient(self):
    # exp(-2000) is 0 in float32.
    logits = tf.constant([[-1000.0, 1000.0]])
    with tf.GradientTape() as tape:
      tape.watch(logits)
      log_p = fedlsr.log_mixed(logits, logits, 0.3, 2.0)
      value = fedlsr.cross_entropy(log_p, _LABELS, 'log', types.CrossEntropy())
    np.testing.assert_allclose(tape.gradient(value, logits), [[-2, 2]], atol=1e-5)

  @parameterized.parameters(('batch_mean', 0.501099), ('mean', 0.167033))
  def test_divergence(self, reduction, expected):
    first, second = fedlsr.distilled(_FIRST), fedlsr.distilled(_SECOND)
    np.testing.assert_allclose(first, [[0.950330, 0.047314, 0.002356]], atol=1e-5)
    found = fedlsr.divergence(first, second, reduction)
    self.assertAlmostEqual(found.numpy(), expected, delta=1e-5)

  def test_equal_views_do_not_diverge(self):
    logits = tf.constant(_FIRST)
    with tf.GradientTape() as tape:
      tape.watch(logits)
      value = fedlsr.divergence(
          fedlsr.distilled(logits), fedlsr.distilled(tf.constant(_FIRST)), 'mean'
      )
    self.assertEqual(value.numpy(), 0)
    np.testing.assert_allclose(tape.gradient(value, logits), np.zeros((1, 3)), atol=1e-6)

  def test_impossible_classes_are_clipped(self):
    found = fedlsr.distilled(np.array([[1000, 0]], np.float32))
    np.testing.assert_allclose(found, [[1, 1e-6]], rtol=1e-5)

  @parameterized.parameters(('softmax', 0.992881), ('plain', 0.207022))
  def test_entropy(self, kind, expected):
    found = fedlsr.entropy(fedlsr.distilled(_FIRST), kind)
    self.assertAlmostEqual(found.numpy(), expected, delta=1e-5)

  @parameterized.parameters((3, 0.975328, 1.098612), (10, 2.229181, 2.302585))
  def test_public_entropy_hardly_moves(self, num_classes, lowest, highest):
    sure = np.eye(num_classes, dtype=np.float32)[:1]
    self.assertAlmostEqual(fedlsr.entropy(sure, 'softmax').numpy(), lowest, delta=1e-5)
    unsure = np.full((1, num_classes), 1 / num_classes, np.float32)
    self.assertAlmostEqual(fedlsr.entropy(unsure, 'softmax').numpy(), highest, delta=1e-5)

  @parameterized.parameters((5, 0.1), (19, 0.38), (20, 0.4), (100, 0.4))
  def test_ramp(self, round_num, expected):
    self.assertAlmostEqual(0.4 * fedlsr.ramp(round_num, 20.0).numpy(), expected, places=6)

  def test_without_a_ramp_it_is_all_there_in_the_first_round(self):
    self.assertEqual(fedlsr.ramp(1, 0).numpy(), 1)


class TrainingTest(federated_test_case.FederatedTestCase):

  @parameterized.parameters('', 'fedprox', 'scaffold', 'feddyn')
  def test_without_its_terms_it_is_the_optimizer_alone(self, base):
    federation = toy.two_corners([5, 7, 4])
    task = method_runs.task(federation, base)  # --base
    weights, _ = _run('fedlsr', federation, task, **_PLAIN)
    alone, _ = _run(base or 'fedavg', federation, method_runs.task(federation))
    np.testing.assert_allclose(weights, alone, atol=1e-6)
    whole, _ = _run('fedlsr', federation, task, view='training')
    self.assertGreater(np.abs(whole - alone).max(), 1e-2)

  def test_one_step_by_hand(self):
    # At W = 0 p_s is (1/2, 1/2), and so is its softmax q: the gradient (q - e_y) dp_s/dz x with
    # dp_s/dz = 2 (diag(p) - p p^T). softmax(s_1) has the largest entropy, log 2, and no gradient.
    x, y = np.array([[1, 0]], np.float32), np.array([0], np.int32)
    federation = types.Federation((types.ClientExamples(x, y, np.arange(1)),), 2, 3)
    task = method_runs.task(federation, training=types.LocalTraining(1, 1, 1.0), rounds=1)
    weights, loss = _run('fedlsr', federation, task, view='training')
    np.testing.assert_allclose(weights, [[0.5, -0.5], [0, 0]], atol=1e-6)
    self.assertAlmostEqual(loss, 1.6 * np.log(2), places=5)

  def test_loss_of_equal_views_equals_numpy(self):
    federation = toy.two_corners([6])
    task = method_runs.task(federation, training=types.LocalTraining(1, 6, 0.1), rounds=1)
    algorithm = method_runs.build('fedlsr', task, view='training', entropy='plain')
    process = algorithm.computations[0].process
    state = process.set_model_weights(
        process.initialize(), tff.learning.models.ModelWeights([_SLOPES], [])
    )
    [examples] = federation.clients
    output = process.next(state, [toy.client(0, examples.x, examples.y)])
    z = examples.x @ _SLOPES
    p_s = _softmax(2 * np.log(_softmax(z)))
    s = _softmax(3 * z)
    expected = -np.log(_softmax(p_s)[np.arange(6), examples.y]).mean() - 0.6 * (
        (s * np.log(s)).sum(axis=1).mean()
    )
    self.assertAlmostEqual(
        output.metrics['client_work']['train']['loss'], expected, delta=1e-5
    )

  def test_views_differ_and_the_weight_of_their_divergence_rises(self):
    federation = _images(4)
    # A batch of all examples and a step of nothing: the loss is that of the first weights.
    task = method_runs.task(
        federation, model=toy.image_model(), training=types.LocalTraining(1, 4, 1e-9), rounds=2
    )

    def added(**params):
      without, with_ = (
          _run('fedlsr', federation, task, consistency_weight=w, entropy_weight=0.0, **params)[1]
          for w in (0.0, 10.0)
      )
      return with_ - without

    whole = added(ramp_rounds=0)
    self.assertGreater(whole, 1e-2)
    self.assertAlmostEqual(added(ramp_rounds=4), whole / 2, places=5)
    self.assertAlmostEqual(added(), whole, places=5)  # Two rounds: the ramp ends in the first.
    self.assertAlmostEqual(added(view='training'), 0, places=6)

  def test_training_view_is_another_draw_of_the_augmentation(self):
    federation = _images(4)
    losses = [
        _run(
            'fedlsr', federation, method_runs.task(
                federation, model=toy.image_model(), rounds=1,
                training=types.LocalTraining(1, 4, 1e-9, augmentation=augmentation),
            ),
            view='training', consistency_weight=weight, entropy_weight=0.0, ramp_rounds=0,
        )[1]
        for augmentation in ('none', 'crop_flip') for weight in (0.0, 100.0)
    ]
    self.assertAlmostEqual(losses[0], losses[1], places=6)
    self.assertGreater(losses[3] - losses[2], 1e-3)

  def test_colour_images_train(self):
    draw = np.random.default_rng(1)
    examples = types.ClientExamples(
        draw.integers(0, 256, (5, 6, 5, 3)).astype(np.uint8), np.array([0, 1, 0, 1, 1], np.int32),
        np.arange(5),
    )
    federation = types.Federation((examples,), 2, 3)
    task = method_runs.task(federation, model=toy.image_model((6, 5, 3)))
    weights, _ = _run('fedlsr', federation, task)
    again, _ = _run('fedlsr', federation, task)
    self.assertTrue(np.isfinite(weights).all())
    np.testing.assert_array_equal(weights, again)

  def test_sends_what_fed_avg_sends_and_keeps_nothing(self):
    task = method_runs.task(toy.two_corners([5, 7]))
    algorithm = method_runs.build('fedlsr', task, view='training')
    self.assertEqual(algorithm.fields, method_runs.build('fedavg', task).fields)
    self.assertEmpty(algorithm.own)

  def test_what_is_no_image_is_refused_in_one_line(self):
    with self.assertRaisesRegex(types.UsageError, '^--param=view=code changes images .*training$'):
      method_runs.build('fedlsr', method_runs.task(toy.two_corners([5])))
    task = method_runs.task(toy.two_corners([5]), model=toy.image_model((6, 5, 2)))
    with self.assertRaisesRegex(types.UsageError, r'of 1 or 3 channels, .*\[6, 5, 2\]'):
      method_runs.build('fedlsr', task)


class ParamsTest(parameterized.TestCase):

  @parameterized.parameters(
      ('consistency_weight=-1', 'consistency_weight must not be negative, got -1.0'),
      ('entropy_weight=-1', 'entropy_weight must not be negative, got -1.0'),
      ('sharpness=0', 'sharpness must be positive, got 0.0'),
      ('ramp_rounds=-2', 'ramp_rounds must be a number of rounds, or -1 for a fifth of all, '
       'got -2'),
      ('cross_entropy=sum', "cross_entropy must be one of probabilities, log, got 'sum'"),
      ('divergence=sum', "divergence must be one of mean, batch_mean, got 'sum'"),
      ('entropy=sum', "entropy must be one of softmax, plain, got 'sum'"),
      ('view=sum', "view must be one of code, training, got 'sum'"),
  )
  def test_mistakes_are_refused_in_one_line(self, param, message):
    with self.assertRaisesRegex(types.UsageError, f'^--param: {message}$'):
      params_lib.parse('fedlsr', _ENTRY.params, [param])

  def test_defaults_are_the_public_codes(self):
    params = _ENTRY.params()
    self.assertEqual((params.consistency_weight, params.entropy_weight), (0.4, 0.6))


if __name__ == '__main__':
  absltest.main()
