"""What updates tell about labels: the identity behind the attack, and the attack."""

import math

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tff_noise import types
from tff_noise.algorithms import feddpcont
from tff_noise.algorithms import fedtally
from tff_noise.audit import update_leak
from tff_noise.data import client_data
from tff_noise.federated import task as task_lib
from tff_noise.models import keras_model
from tff_noise.models import losses
from tff_noise.privacy import mechanism as mechanism_lib


class IdentityTest(parameterized.TestCase):

  def _gradient(self, logits, y, contrast, floor):
    z = tf.constant([logits])
    with tf.GradientTape() as tape:
      tape.watch(z)
      loss = losses.contrastive_cross_entropy(
          z, tf.constant([y]), tf.constant([contrast]), weight=1.0, floor=floor
      )
    return loss.numpy(), tape.gradient(loss, z).numpy()[0]

  def test_at_beta_one_the_loss_is_a_difference_of_logits(self):
    loss, gradient = self._gradient([0.5, -1.25, 2.0], 0, 2, 1e-8)
    self.assertAlmostEqual(loss, 1.5, places=5)  # z_y' - z_y = 2 - .5.
    np.testing.assert_allclose(gradient, [-1, 0, 1], atol=1e-6)

  def test_below_the_floor_only_cross_entropy_is_left(self):
    # p = (1, e^-30, e^-30): y' is below 1e-8, and what is left of `p - e_y` is nothing.
    _, gradient = self._gradient([30.0, 0.0, 0.0], 0, 2, 1e-8)
    np.testing.assert_allclose(gradient, 0, atol=1e-6)
    _, gradient = self._gradient([math.log(2), 0.0, 0.0], 0, 2, 0.3)
    np.testing.assert_allclose(gradient, [-0.5, 0.25, 0.25], atol=1e-6)


class RecoveredHistogramTest(parameterized.TestCase):

  @parameterized.parameters(
      # Shares (.5, .3, .2), compared with (.2, .2, .6); move by hand.
      ({}, [0.3, 0.1, -0.4]),
      # a = .6, b = .2: gradients are .4 times as large.
      ({'keep_probability': 0.6}, [0.12, 0.04, -0.16]),
      ({'below_floor': 0.5}, [0.15, 0.05, -0.2]),
  )
  def test_by_hand(self, how, gradient):
    found = update_leak.recovered_histogram(
        0.1 * 4 * np.array(gradient), learning_rate=0.1, num_steps=4, num_labels=50,
        reference=np.array([0.2, 0.2, 0.6]), **how,
    )
    np.testing.assert_allclose(found, [25, 15, 10], atol=1e-9)

  @parameterized.parameters(
      {'learning_rate': 0}, {'num_steps': 0}, {'learning_rate': math.nan},
      {'keep_probability': 0.5}, {'keep_probability': 1.1}, {'below_floor': 1.0},
      {'below_floor': -0.1},
  )
  def test_errors(self, **wrong):
    arguments = {
        'learning_rate': 0.1, 'num_steps': 1, 'num_labels': 1, 'reference': np.array([0.5, 0.5])
    }
    with self.assertRaises(ValueError):
      update_leak.recovered_histogram(np.zeros(2), **{**arguments, **wrong})

  def test_labels_from_reports_inverts_the_flips(self):
    mechanism = mechanism_lib.randomized_response('0.81', 4)
    shares = np.array([0.5, 0.3, 0.2, 0.0])
    reports = shares @ mechanism.transition_matrix()
    np.testing.assert_allclose(
        update_leak.labels_from_reports(reports, mechanism), shares, atol=1e-9
    )

  @parameterized.parameters((1, 5), (32, 5), (33, 10), (100, 20))
  def test_num_local_steps(self, num_examples, expected):
    training = types.LocalTraining(epochs=5, batch_size=32)
    self.assertEqual(update_leak.num_local_steps(num_examples, training), expected)


def _attack(**changes):
  attack = update_leak.Attack(
      'fedavg', 'own update', 0, 'labels', (0, 0), np.array([0.5, 0.5, 0]), np.array([0.5, 0, 0.5])
  )
  return attack._replace(**changes)


class DemonstrationTest(absltest.TestCase):

  def test_distance_and_correlation_by_hand(self):
    self.assertAlmostEqual(_attack().total_variation, 0.5)
    self.assertAlmostEqual(_attack().correlation, -0.5)
    self.assertTrue(math.isnan(_attack(recovered=np.full(3, 1 / 3)).correlation))

  def test_rows_are_means_of_one_kind(self):
    exact = _attack(recovered=_attack().truth, below_floor=0.2)
    rows = update_leak.Demonstration((_attack(), _attack(rounds=9), exact)).rows()
    self.assertEqual([(r.rounds, r.attacks) for r in rows], [(0, 2), (9, 1)])
    self.assertAlmostEqual(rows[0].total_variation, 0.25)
    self.assertAlmostEqual(rows[0].total_variation_error, 0.25)
    self.assertAlmostEqual(rows[0].correlation, 0.25)
    self.assertAlmostEqual(rows[0].below_floor, 0.2)
    self.assertTrue(math.isnan(rows[1].total_variation_error))
    self.assertTrue(math.isnan(rows[1].below_floor))


def _linear_model():
  x = tf.keras.Input((2,), name='x')
  return keras_model.from_keras(tf.keras.Model(x, [tf.keras.layers.Dense(3, name='logits')(x), x]))


class AttackTest(federated_test_case.FederatedTestCase):

  def test_exact_where_contrastive_labels_are_known(self):
    training = types.LocalTraining(epochs=1, batch_size=4, learning_rate=0.05)
    built = feddpcont.build_process(task_lib.Task(_linear_model(), training, 3))
    process = built.process
    labels = np.array([0] * 5 + [1] * 6 + [2])
    x = np.random.default_rng(0).normal(size=(12, 2)).astype(np.float32)
    certain = np.array([0.0, 0.0, 1.0])
    state = built.send(process.initialize(), label_prior=certain)
    before = process.get_model_weights(state).trainable[-1]
    state = process.next(state, [client_data.client_dataset(x, labels, 0)]).state
    found = update_leak.recovered_histogram(
        process.get_model_weights(state).trainable[-1] - before,
        learning_rate=0.05, num_steps=update_leak.num_local_steps(12, training), num_labels=12,
        reference=certain,
    )
    np.testing.assert_allclose(found, [5, 6, 1], atol=1e-4)

  def test_labels_are_targets_and_what_was_moved(self):
    draw = np.random.default_rng(0)
    r = draw.dirichlet(np.ones(3), 50).astype(np.float32)
    y = draw.integers(0, 3, 50).astype(np.int32)
    judged = fedtally.filtered(
        tf.constant(r), y, tf.constant(fedtally.first_table(3)), np.full(3, 0.4, np.float32)
    )
    q = judged.clean.numpy()[:, np.newaxis] * np.eye(3)[y] + judged.wrong.numpy()
    corrections = np.zeros((3, 3))
    np.add.at(corrections, y, judged.wrong.numpy())
    found = update_leak.labels_of_targets(q.mean(axis=0), corrections, 50)
    np.testing.assert_allclose(found, np.bincount(y) / 50, atol=1e-6)

  def test_sums_of_one_client_add_to_what_its_update_tells(self):
    demonstration = update_leak.demonstrate(
        0, methods=('fedtally',), scenes=1, victims=6, rounds=(0, 20), noises=()
    )
    rows = {(r.setting, r.target, r.rounds): r for r in demonstration.rows()}
    # Before it filters, what it trains on is what it holds.
    self.assertNotIn(('own update and sums', 'labels', 0), rows)
    self.assertGreater(rows['own update', 'labels', 0].correlation, 0.5)
    update, both = (
        rows[s, 'labels', 20].total_variation for s in ('own update', 'own update and sums')
    )
    self.assertLess(both, update)

  def test_protections_in_order_and_what_private_labels_leave(self):
    demonstration = update_leak.demonstrate(
        0, methods=('feddpcont',), scenes=1, victims=4, rounds=(0,), noises=(1.0,)
    )
    rows = {(r.setting, r.target): r for r in demonstration.rows()}
    own = rows['own update', 'labels']
    undone = rows['own update, floor undone', 'labels']
    together = rows['secure sum of 10', 'labels']
    pooled, noisy = (rows[s, 'cohort'] for s in ('secure sum of 10', 'DP-FedAvg, noise 1'))
    nothing = rows['no update: uniform', 'labels']
    self.assertGreater(own.correlation, 0.9)
    self.assertLess(own.total_variation, 0.5 * nothing.total_variation)
    self.assertLess(undone.total_variation, own.total_variation)
    # The sum tells of the cohort, and of the client little more than nothing.
    self.assertLess(own.total_variation, 0.5 * together.total_variation)
    self.assertLess(pooled.total_variation, rows['no update: uniform', 'cohort'].total_variation)
    self.assertGreater(pooled.correlation, noisy.correlation)
    self.assertLess(pooled.total_variation, noisy.total_variation)
    # The floor is at work, but not where the loss knows that labels are flipped.
    private = 'private labels, epsilon 0.81'
    self.assertBetween(own.below_floor, 0.05, 0.6)
    self.assertEqual(rows[private, 'reports'].below_floor, 0)
    attacks = {(a.setting, a.target, a.victim): a for a in demonstration.attacks}
    seen = [a for a in demonstration.attacks if (a.setting, a.target) == (private, 'reports')]
    self.assertLen(seen, 4)
    for attack in seen:
      # What is recovered is the histogram of the reports, not that of the labels.
      labels = attacks['own update', 'labels', attack.victim].truth
      self.assertLess(
          attack.total_variation, attack._replace(truth=labels).total_variation
      )
    self.assertGreater(rows[private, 'labels'].total_variation, 2 * own.total_variation)


if __name__ == '__main__':
  absltest.main()
