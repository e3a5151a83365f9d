"""Tests of a client's local training, by hand on the linear model."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tff_noise import rng
from tff_noise import types
from tff_noise.data import client_data
from tff_noise.federated import client_work
from tff_noise.federated import optimizer
from tff_noise.federated import seeds
from tff_noise.federated import uplink
from tff_noise.models import keras_model
from tff_noise.models import losses

_EXAMPLES = ([[1, 0], [0, 1], [1, 1]], [0, 1, 1])
_NO_RULE = optimizer.ClientRule()


def _cross_entropy(inputs):
  return losses.cross_entropy(inputs.logits, inputs.labels)


def _zero_weights(model):
  return tf.nest.map_structure(
      lambda t: np.zeros(t.shape, np.float32),
      tff.learning.models.ModelWeights(
          list(model.weights_type.trainable), list(model.weights_type.non_trainable)
      ),
  )


def _run(
    data, *, loss=_cross_entropy, weights=None, round_num=1, local=(), seed=0,
    rule=_NO_RULE, kept=(), received=(), **work,
):
  """A client's result; `kept` is its optimizer state, `received` what the server sends for it."""
  model = toy.linear_model()
  training = types.LocalTraining(**work.pop('training', {}))
  received_type = tf.nest.map_structure(lambda v: tff.TensorType(v.dtype, v.shape), received)
  update = client_work.build_client_update(
      model, client_work.ClientWork(loss, training, **work), seed, rule, received_type
  )
  hparams = collections.OrderedDict(work.get('hparams', {}))
  if weights is None:
    weights = np.zeros((2, 2), np.float32)
  broadcast = client_work.Broadcast(
      tff.learning.models.ModelWeights([weights], []), round_num, hparams, received
  )
  return update(broadcast, data, uplink.ClientState(local, kept))


def _gradient(weights, x, y):
  """Gradient of the mean cross-entropy of the linear model, in NumPy."""
  logits = x @ weights
  p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
  return x.T @ (p - np.eye(2)[y]) / len(y)


class LocalTrainingTest(federated_test_case.FederatedTestCase):

  def test_one_step_by_hand(self):
    # At W = 0 both probabilities are 1/2: the gradient is x^T (p - e_y) = [[-.5, .5], [0, 0]].
    output = _run(
        toy.client(0, [[1, 0]], [0]),
        training={'epochs': 1, 'batch_size': 1, 'learning_rate': 1.0},
    )
    np.testing.assert_allclose(output.update.trainable[0], [[-0.5, 0.5], [0, 0]], atol=1e-6)
    self.assertEqual(output.weight, 1)
    self.assertAlmostEqual(output.sums['loss'], np.log(2), places=5)
    self.assertEqual(output.sums['examples'], 1)
    self.assertEqual(output.sums['rejected'], 0)

  def test_type_signature(self):
    work = client_work.ClientWork(_cross_entropy)
    computation = client_work.build_client_update(toy.linear_model(), work, 0)
    self.assertEqual(
        str(computation.type_signature.result),
        '<update=<trainable=<float32[2,2]>,non_trainable=<>>,weight=float32,'
        'sums=<loss=float32,examples=float32,rejected=int32>,reports=<>,'
        'local=<client=int32,own=<>,optimizer=<>>>',
    )

  @parameterized.parameters((1, 1), (2, 2), (3, 5), (2, 10))
  def test_equals_numpy_over_epochs_and_batches(self, epochs, batch_size):
    x, y = np.array(_EXAMPLES[0], np.float32), np.array(_EXAMPLES[1])
    output = _run(
        toy.client(7, *_EXAMPLES),
        seed=3,
        round_num=4,
        training={
            'epochs': epochs, 'batch_size': batch_size, 'learning_rate': 0.3, 'momentum': 0.5,
            'weight_decay': 0.1,
        },
    )

    weights, velocity, batch_losses = np.zeros((2, 2)), np.zeros((2, 2)), []
    for epoch in range(epochs):
      seed = seeds.fold(rng.tf_seed(3, 'local training'), 4, 7, epoch)
      order = seeds.batch_order(seed, 3).numpy()
      for start in range(0, 3, batch_size):
        batch = order[start : start + batch_size]
        log_p = x[batch] @ weights
        log_p -= np.log(np.exp(log_p).sum(axis=1, keepdims=True))
        batch_losses.append(-np.mean(log_p[np.arange(len(batch)), y[batch]]))
        velocity = 0.5 * velocity + _gradient(weights, x[batch], y[batch]) + 0.1 * weights
        weights = weights - 0.3 * velocity
    np.testing.assert_allclose(output.update.trainable[0], -weights, atol=1e-6)
    self.assertAlmostEqual(output.sums['loss'], 3 * np.mean(batch_losses), places=5)

  def test_client_without_examples_sends_nothing(self):
    output = _run(toy.client(0, [], []))
    np.testing.assert_array_equal(output.update.trainable[0], np.zeros((2, 2)))
    self.assertEqual(output.weight, 0)
    self.assertEqual(output.sums['loss'], 0)

  def test_update_that_is_not_finite_is_left_out_and_counted(self):
    output = _run(toy.client(0, [[np.inf, 1]], [0]))
    np.testing.assert_array_equal(output.update.trainable[0], np.zeros((2, 2)))
    self.assertEqual(output.weight, 0)
    self.assertEqual(output.sums['loss'], 0)
    self.assertEqual(output.sums['rejected'], 1)


class RandomnessTest(federated_test_case.FederatedTestCase):

  def _update(self, seed=0, round_num=1, client=0, learning_rate=0.5):
    return _run(
        toy.client(client, *_EXAMPLES), seed=seed, round_num=round_num,
        training={'epochs': 2, 'batch_size': 1, 'learning_rate': learning_rate},
        # Random noise on the loss shows the step's seed, whatever the order of the batches.
        loss=lambda i: _cross_entropy(i) * (1 + tf.random.stateless_uniform((), i.seed)),
    ).update.trainable[0]

  def test_same_seed_round_and_client_repeat(self):
    np.testing.assert_array_equal(self._update(), self._update())

  @parameterized.parameters({'seed': 1}, {'round_num': 2}, {'client': 1})
  def test_each_part_changes_the_draws(self, **change):
    self.assertGreater(np.abs(self._update() - self._update(**change)).max(), 1e-4)

  def test_steps_and_epochs_draw_differently(self):
    total = _run(
        toy.client(0, [[1, 0]] * 4, [0] * 4),
        training={'epochs': 3, 'batch_size': 2, 'learning_rate': 1.0},
        # The gradient of this loss is the step's draw: their sum is the update.
        loss=lambda i: tf.reduce_sum(i.logits[0, 0]) * tf.random.stateless_uniform((), i.seed),
    ).update.trainable[0][0, 0]
    draws = []
    base = rng.tf_seed(0, 'local training')
    for epoch in range(3):
      seed = seeds.fold(base, 1, 0, epoch)
      for start in (0, 2):
        step = tf.random.experimental.stateless_fold_in(seed, 2 + start)
        draws.append(tf.random.stateless_uniform((), step).numpy())
    self.assertLen(set(draws), 6)
    self.assertAlmostEqual(total, sum(draws), places=5)

  def test_every_epoch_visits_every_example_once_in_its_own_order(self):
    base = rng.tf_seed(0, 'local training')
    orders = [seeds.batch_order(seeds.fold(base, 1, 0, e), 50).numpy() for e in range(3)]
    for order in orders:
      np.testing.assert_array_equal(np.sort(order), np.arange(50))
    self.assertFalse((orders[0] == orders[1]).all())


class MethodPartsTest(federated_test_case.FederatedTestCase):

  def test_loss_sees_round_and_broadcast_hyper_parameters(self):
    output = _run(
        toy.client(0, [[1, 0]], [0]),
        round_num=3,
        hparams={'scale': np.float32(2)},
        training={'epochs': 1, 'batch_size': 1, 'learning_rate': 1.0},
        loss=lambda i: i.logits[0, 0] * i.hparams['scale'] * tf.cast(i.round_num, tf.float32),
    )
    self.assertAlmostEqual(output.update.trainable[0][0, 0], 6, places=5)

  def test_loss_gets_what_was_drawn_for_each_example_of_the_epoch(self):
    output = _run(
        toy.client(0, [[1, 0]] * 5, [0] * 5),
        training={'epochs': 2, 'batch_size': 2, 'learning_rate': 1.0},
        hparams={'offset': np.float32(10)},
        draw=lambda i: i.hparams['offset'] + tf.range(i.num_examples, dtype=tf.float32),
        # The update sums what the batches drew: 10 to 14 twice, whatever the order of examples.
        loss=lambda i: i.logits[0, 0] * tf.reduce_sum(i.drawn),
    )
    self.assertAlmostEqual(output.update.trainable[0][0, 0], 2 * 60, places=3)

  def test_each_epoch_draws_afresh(self):
    def total(epochs):
      return _run(
          toy.client(0, [[1, 0]] * 5, [0] * 5),
          training={'epochs': epochs, 'batch_size': 5, 'learning_rate': 1.0},
          draw=lambda i: tf.random.stateless_uniform(i.num_examples[tf.newaxis], i.seed),
          loss=lambda i: i.logits[0, 0] * tf.reduce_sum(i.drawn),
      ).update.trainable[0][0, 0]

    self.assertGreater(abs(total(2) - 2 * total(1)), 1e-3)

  def test_finish_sends_sums_and_keeps_local_state(self):
    output = _run(
        toy.client(0, *_EXAMPLES),
        local=np.int32(10),
        local_type=tff.TensorType(np.int32),
        training={'epochs': 2, 'batch_size': 2},
        sums=(uplink.UplinkSum('steps', np.int32, 0, 100, 'a test'),),
        finish=lambda i: client_work.Finished(i.local + i.steps, {'steps': i.steps}),
    )
    self.assertEqual(output.sums['steps'], 4)
    self.assertEqual(output.local.own, 14)


class LabelsTest(federated_test_case.FederatedTestCase):

  def test_trains_on_the_labels_of_the_clients_own_state(self):
    training = {'epochs': 2, 'batch_size': 2, 'learning_rate': 0.5}
    local_type = tff.to_type(collections.OrderedDict(labels=tff.TensorType(np.int32, (None,))))
    local = collections.OrderedDict(labels=np.array([1, 0, 0], np.int32))
    own = _run(
        toy.client(0, *_EXAMPLES), training=training, local=local, local_type=local_type,
        labels=lambda y, state: state['labels'],
    )
    expected = _run(toy.client(0, _EXAMPLES[0], [1, 0, 0]), training=training)
    others = _run(toy.client(0, *_EXAMPLES), training=training)
    np.testing.assert_array_equal(own.update.trainable[0], expected.update.trainable[0])
    self.assertGreater(np.abs(own.update.trainable[0] - others.update.trainable[0]).max(), 0.1)
    # Nothing else changes the state.
    np.testing.assert_array_equal(own.local.own['labels'], [1, 0, 0])

  def test_labels_of_the_data_are_there_to_be_corrected(self):
    output = _run(
        toy.client(0, *_EXAMPLES), local=np.int32(1), local_type=tff.TensorType(np.int32),
        labels=lambda y, state: (y + state) % 2,
        sums=(uplink.UplinkSum('ones', np.int32, 0, 100, 'a test'),),
        finish=lambda i: client_work.Finished(i.local, {'ones': tf.reduce_sum(i.labels)}),
    )
    # Of [0, 1, 1], turned round.
    self.assertEqual(output.sums['ones'], 1)
    self.assertEqual(output.weight, 3)


class GradientTest(federated_test_case.FederatedTestCase):

  def test_counts_the_steps_of_each_epoch(self):
    output = _run(
        toy.client(0, [[1, 0]] * 5, [0] * 5),
        training={'epochs': 2, 'batch_size': 2, 'learning_rate': 1.0},
        gradient=lambda i: [tf.ones_like(g) * tf.cast(i.epoch_step, tf.float32)
                            for g in i.gradients],
    )
    # Steps 0, 1, 2 in both epochs.
    np.testing.assert_allclose(output.update.trainable[0], np.full((2, 2), 6))

  def test_anchor_is_what_the_server_sent(self):
    # g = w - w' + 1: the distance goes 0, -.5, -.75, -.875.
    output = _run(
        toy.client(0, [[1, 0]] * 3, [0] * 3),
        weights=np.array([[1, 2], [3, 4]], np.float32),
        training={'epochs': 1, 'batch_size': 1, 'learning_rate': 0.5},
        gradient=lambda i: [w - a + 1 for w, a in zip(i.weights, i.anchor, strict=True)],
    )
    np.testing.assert_allclose(output.update.trainable[0], np.full((2, 2), 0.875), atol=1e-6)

  def test_sees_the_gradient_of_the_loss_and_what_the_loss_sees(self):
    # At W = 0 the gradient is [[-.5, .5], [0, 0]]; times 3, plus 10.
    output = _run(
        toy.client(0, [[1, 0]], [0]),
        training={'epochs': 1, 'batch_size': 1, 'learning_rate': 1.0},
        hparams={'scale': np.float32(3)},
        local=np.float32(10),
        local_type=tff.TensorType(np.float32),
        gradient=lambda i: [g * i.hparams['scale'] + i.local for g in i.gradients],
    )
    np.testing.assert_allclose(output.update.trainable[0], [[8.5, 11.5], [10, 10]], atol=1e-5)

  def test_weight_decay_and_momentum_come_after_it(self):
    output = _run(
        toy.client(0, [[1, 0]] * 2, [0] * 2),
        weights=np.full((2, 2), 8, np.float32),
        training={'epochs': 1, 'batch_size': 1, 'learning_rate': 1.0, 'weight_decay': 0.25,
                  'momentum': 0.5},
        gradient=lambda i: [tf.ones_like(g) for g in i.gradients],
    )
    # v = 1 + .25 * 8 = 3, w = 5; v = .5 * 3 + 1 + .25 * 5 = 3.75, w = 1.25.
    np.testing.assert_allclose(output.update.trainable[0], np.full((2, 2), 6.75), atol=1e-5)


_ONE_STEP = {'epochs': 1, 'batch_size': 10, 'learning_rate': 1.0}


def _moved_start(weights, state):
  """Starts from the broadcast weights plus the client's number."""
  return tf.nest.map_structure(lambda w: w + state, weights)


class OptimizerRuleTest(federated_test_case.FederatedTestCase):
  """What a federated optimizer adds to local training."""

  def test_type_signature(self):
    rule = optimizer.ClientRule(
        initial_state=collections.OrderedDict(drift=[np.zeros((2, 2), np.float32)]),
        send=lambda r: optimizer.Sent(r.steps, r.state, {'moved': r.num_examples}),
        sums=(uplink.UplinkSum('moved', np.float32, 0, 1, 'a test'),),
    )
    work = client_work.ClientWork(_cross_entropy, local_type=tff.TensorType(np.int32))
    computation = client_work.build_client_update(
        toy.linear_model(), work, 0, rule, tff.TensorType(np.float32, (3,))
    )
    local = 'own=int32,optimizer=<drift=<float32[2,2]>>>'
    parameter = computation.type_signature.parameter
    self.assertEqual(str(parameter['broadcast']['optimizer']), 'float32[3]')
    self.assertEqual(str(parameter['local']), f'<{local}')
    self.assertEqual(
        str(computation.type_signature.result),
        '<update=int32,weight=float32,'
        'sums=<loss=float32,examples=float32,rejected=int32,moved=float32>,reports=<>,'
        f'local=<client=int32,{local}>',
    )

  def test_without_a_rule_nothing_changes(self):
    training = {'epochs': 2, 'batch_size': 2, 'learning_rate': 0.3, 'momentum': 0.5,
                'weight_decay': 0.1}
    weights = np.array([[1, 2], [3, 4]], np.float32)
    plain, ruled = (
        _run(toy.client(0, *_EXAMPLES), training=training, weights=weights, **more)
        for more in (
            {},
            {
                'rule': optimizer.ClientRule(
                    initial_state=np.float32(0),
                    start=lambda weights, state: weights,
                    gradients=lambda i: i.gradients,
                ),
                'kept': np.float32(3),
                'received': np.float32(4),
            },
        )
    )
    np.testing.assert_array_equal(plain.update.trainable[0], ruled.update.trainable[0])
    self.assertEqual(plain.sums, ruled.sums)
    self.assertEqual(ruled.local.optimizer, 3)

  def test_training_starts_from_the_weights_of_start(self):
    # The loss is the weight [0, 0] times x = 2, here (1 + 10) * 2; one step moves it by -2.
    output = _run(
        toy.client(0, [[2, 0]], [0]),
        weights=np.array([[1, 2], [3, 4]], np.float32),
        training=_ONE_STEP,
        loss=lambda i: i.logits[0, 0],
        rule=optimizer.ClientRule(
            initial_state=np.float32(0),
            start=_moved_start,
            send=lambda r: optimizer.Sent((r.update, r.weights), r.state),
        ),
        kept=np.float32(10),
    )
    self.assertEqual(output.sums['loss'], 22)
    update, end = output.update
    # Relative to where training started, not to what was broadcast.
    np.testing.assert_allclose(update.trainable[0], [[2, 0], [0, 0]], atol=1e-5)
    np.testing.assert_allclose(end.trainable[0], [[9, 12], [13, 14]], atol=1e-5)

  @parameterized.parameters('method', 'optimizer')
  def test_anchor_is_where_training_started(self, whose):
    # g = w - w' + 1: the distance goes 0, -.5, -.75, -.875.
    def pulled(i):
      return [w - a + 1 for w, a in zip(i.weights, i.anchor, strict=True)]

    output = _run(
        toy.client(0, [[1, 0]] * 3, [0] * 3),
        weights=np.array([[1, 2], [3, 4]], np.float32),
        training={'epochs': 1, 'batch_size': 1, 'learning_rate': 0.5},
        gradient=pulled if whose == 'method' else None,
        rule=optimizer.ClientRule(
            initial_state=np.float32(0),
            start=_moved_start,
            gradients=pulled if whose == 'optimizer' else None,
        ),
        kept=np.float32(10),
        sums=(uplink.UplinkSum('moved', np.float32, -10, 10, 'a test'),),
        finish=lambda i: client_work.Finished(sums={'moved': i.update.trainable[0][0, 0]}),
    )
    np.testing.assert_allclose(output.update.trainable[0], np.full((2, 2), 0.875), atol=1e-5)
    self.assertAlmostEqual(output.sums['moved'], 0.875, places=5)

  def test_gradients_come_after_the_methods_and_before_weight_decay(self):
    # Equal weights: the gradient of the loss is [[-.5, .5], [0, 0]]. Twice that by the method;
    # three times that plus 10 by the optimizer, [[7, 13], [10, 10]]; plus .25 * 8.
    output = _run(
        toy.client(0, [[1, 0]], [0]),
        weights=np.full((2, 2), 8, np.float32),
        training={**_ONE_STEP, 'weight_decay': 0.25},
        gradient=lambda i: [2 * g for g in i.gradients],
        rule=optimizer.ClientRule(gradients=lambda i: [3 * g + 10 for g in i.gradients]),
    )
    np.testing.assert_allclose(output.update.trainable[0], [[9, 15], [12, 12]], atol=1e-5)

  def test_local_momentum_comes_after_gradients(self):
    output = _run(
        toy.client(0, [[1, 0]] * 2, [0] * 2),
        weights=np.full((2, 2), 8, np.float32),
        training={'epochs': 1, 'batch_size': 1, 'learning_rate': 1.0, 'weight_decay': 0.25,
                  'momentum': 0.5},
        rule=optimizer.ClientRule(gradients=lambda i: [w * 0 + 1 for w in i.weights]),
    )
    # v = 1 + .25 * 8 = 3, w = 5; v = .5 * 3 + 1 + .25 * 5 = 3.75, w = 1.25.
    np.testing.assert_allclose(output.update.trainable[0], np.full((2, 2), 6.75), atol=1e-5)

  def test_state_and_what_the_server_sends_are_seen_in_every_step_and_at_the_end(self):
    # Each of three steps moves every weight by -(100 + 2), and by the gradient of the loss.
    output = _run(
        toy.client(0, [[1, 0]] * 3, [0] * 3),
        training={'epochs': 1, 'batch_size': 1, 'learning_rate': 1.0},
        loss=lambda i: i.logits[0, 0],
        rule=optimizer.ClientRule(
            initial_state=np.float32(0),
            gradients=lambda i: [g + i.state + i.received['shift'] for g in i.gradients],
            send=lambda r: optimizer.Sent(
                r.update,
                r.state + r.received['shift'],
                {'steps': r.steps, 'product': r.num_examples * r.state * r.received['scale']},
            ),
            sums=(
                uplink.UplinkSum('steps', np.int32, 0, 10, 'a test'),
                uplink.UplinkSum('product', np.float32, 0, 1e4, 'a test'),
            ),
        ),
        kept=np.float32(100),
        received=collections.OrderedDict(shift=np.float32(2), scale=np.float32(7)),
    )
    np.testing.assert_allclose(
        output.update.trainable[0], [[309, 306], [306, 306]], atol=1e-3
    )
    self.assertEqual(output.local.optimizer, 102)
    self.assertEqual(output.sums['steps'], 3)
    self.assertEqual(output.sums['product'], 3 * 100 * 7)
    # What a method and every training sends is there as well.
    self.assertEqual(output.sums['examples'], 3)
    self.assertEqual(output.weight, 3)

  def test_method_and_optimizer_keep_and_send_their_own(self):
    output = _run(
        toy.client(0, *_EXAMPLES),
        local=np.int32(5),
        local_type=tff.TensorType(np.int32),
        sums=(uplink.UplinkSum('of_method', np.int32, 0, 100, 'a test'),),
        finish=lambda i: client_work.Finished(i.local + 1, {'of_method': i.local}),
        rule=optimizer.ClientRule(
            initial_state=np.float32(0),
            send=lambda r: optimizer.Sent(
                collections.OrderedDict(twice=2 * r.num_examples), r.state / 2,
                {'of_optimizer': r.state},
            ),
            sums=(uplink.UplinkSum('of_optimizer', np.float32, 0, 100, 'a test'),),
        ),
        kept=np.float32(9),
    )
    self.assertEqual(output.local, uplink.ReturnedState(0, 6, 4.5))
    self.assertEqual(dict(output.update), {'twice': 6})
    self.assertEqual((output.sums['of_method'], output.sums['of_optimizer']), (5, 9))

  @parameterized.parameters((0.5, False), (1e38, True))
  def test_diverged_client_keeps_its_states_and_adds_nothing(self, learning_rate, diverged):
    output = _run(
        toy.client(3, [[1e3, 1e3], [1e3, -1e3]], [0, 1]),
        training={'epochs': 2, 'batch_size': 2, 'learning_rate': learning_rate},
        local=np.float32(4),
        local_type=tff.TensorType(np.float32),
        finish=lambda i: client_work.Finished(tf.constant(1.0)),
        rule=optimizer.ClientRule(
            initial_state=collections.OrderedDict(
                drift=np.zeros((2, 2), np.float32), seen=np.int32(0)
            ),
            send=lambda r: optimizer.Sent(
                r.update,
                collections.OrderedDict(
                    drift=r.state['drift'] + r.weights.trainable[0], seen=r.state['seen'] + 1
                ),
                {'distance': tf.reduce_sum(tf.abs(r.update.trainable[0])), 'clients': 1,
                 'sent': r.num_examples},
            ),
            sums=(
                uplink.UplinkSum('distance', np.float32, 0, 1e6, 'a test'),
                uplink.UplinkSum('clients', np.int32, 0, 1, 'a test'),
                uplink.UplinkSum('sent', np.float32, 0, 10, 'a test'),
            ),
        ),
        kept=collections.OrderedDict(drift=np.full((2, 2), 7, np.float32), seen=np.int32(8)),
    )
    self.assertEqual(output.sums['rejected'], diverged)
    if diverged:
      np.testing.assert_array_equal(output.local.optimizer['drift'], np.full((2, 2), 7))
      np.testing.assert_array_equal(output.update.trainable[0], np.zeros((2, 2)))
      self.assertEqual(output.sums['distance'], 0)
    else:
      end = -output.update.trainable[0]
      np.testing.assert_allclose(output.local.optimizer['drift'], 7 + end, rtol=1e-6)
      self.assertGreater(np.abs(end).max(), 100)
      self.assertAlmostEqual(output.sums['distance'], np.abs(end).sum(), places=2)
    self.assertEqual(output.local.own, 4 if diverged else 1)
    self.assertEqual(output.local.optimizer['seen'], 8 if diverged else 9)
    self.assertEqual(output.weight, 0 if diverged else 2)
    self.assertEqual(output.sums['sent'], 0 if diverged else 2)
    self.assertEqual(output.sums['clients'], 0 if diverged else 1)

  def test_client_without_examples_sends_nothing_from_wherever_it_starts(self):
    output = _run(
        toy.client(0, [], []),
        rule=optimizer.ClientRule(
            initial_state=np.float32(0),
            start=_moved_start,
            gradients=lambda i: [g + i.state for g in i.gradients],
        ),
        kept=np.float32(10),
    )
    np.testing.assert_array_equal(output.update.trainable[0], np.zeros((2, 2)))
    self.assertEqual((output.weight, output.local.optimizer), (0, 10))


class MixupTest(federated_test_case.FederatedTestCase):

  def _shown(self, x, y, alpha, *, batch_size=3, round_num=1, client=0, columns=10):
    """Runs one step whose update shows what a batch of three was mixed to.

    Column i of the update is image i as the loss got it, columns 3 + i and 6 + i are the image
    times its own label and its other's, column 9 is image 0 times lambda.
    """
    inputs = tf.keras.Input(x.shape[1:], dtype=x.dtype.name)
    features = tf.keras.layers.Rescaling(1.0)(inputs)
    logits = tf.keras.layers.Dense(columns, use_bias=False)(features)
    model = keras_model.from_keras(tf.keras.Model(inputs, [logits, features]))

    def loss(i):
      labels, others = tf.cast(i.labels, tf.float32), tf.cast(i.mixed_labels, tf.float32)
      total = i.logits[0, 9] * i.mixed_share
      for k in range(3):
        total += i.logits[k, k] + i.logits[k, 3 + k] * labels[k] + i.logits[k, 6 + k] * others[k]
      return total

    work = client_work.ClientWork(
        loss, types.LocalTraining(1, batch_size, learning_rate=1.0), mixup=alpha
    )
    update = client_work.build_client_update(model, work, 0)
    kernel = np.zeros((x.shape[1], columns), np.float32)
    broadcast = client_work.Broadcast(
        tff.learning.models.ModelWeights([kernel], []), round_num, {}
    )
    data = client_data.client_dataset(x, y, client)
    shown = update(broadcast, data, uplink.ClientState()).update.trainable[0].T
    images, total = shown[:3], shown.sum(axis=1)
    return images, *(total[[k, k + 1, k + 2]] / total[:3] for k in (3, 6)), total[9] / total[0]

  @parameterized.parameters(np.uint8, np.float32)
  def test_blends_images_with_others_of_the_batch(self, dtype):
    x = np.random.default_rng(0).integers(1, 256, (3, 40)).astype(dtype)
    mixed_with_another = 0
    for round_num in range(1, 5):
      images, labels, others, share = self._shown(
          x, np.array([1, 2, 3]), 1.0, round_num=round_num
      )
      # The labels, 1 to 3, say which images these are.
      self.assertCountEqual(labels.round().tolist(), [1, 2, 3])
      self.assertCountEqual(others.round().tolist(), [1, 2, 3])
      np.testing.assert_allclose(labels, labels.round(), atol=1e-4)
      self.assertBetween(share, 0, 1)
      own, other = (x[k.round().astype(int) - 1].astype(float) for k in (labels, others))
      blended = share * own + (1 - share) * other
      if dtype is np.uint8:
        np.testing.assert_array_equal(images, images.round())
        self.assertLessEqual(np.abs(images - blended).max(), 0.5 + 1e-3)
      else:
        np.testing.assert_allclose(images, blended, atol=1e-2)
        self.assertFalse(np.array_equal(images, images.round()))
      mixed_with_another += (labels.round() != others.round()).sum()
    self.assertGreater(mixed_with_another, 0)

  @parameterized.parameters(np.uint8, np.float32)
  def test_off_leaves_images_and_labels_alone(self, dtype):
    x = np.random.default_rng(0).integers(1, 256, (3, 40)).astype(dtype)
    images, labels, others, share = self._shown(x, np.array([1, 2, 3]), 0.0)
    np.testing.assert_array_equal(images, x[labels.round().astype(int) - 1])
    np.testing.assert_array_equal(labels, others)
    self.assertEqual(share, 1)

  def test_off_trains_to_the_same_bits_as_a_loss_that_knows_no_mixup(self):
    def mixed(i):
      other = losses.cross_entropy(i.logits, i.mixed_labels)
      return i.mixed_share * _cross_entropy(i) + (1 - i.mixed_share) * other

    training = {'epochs': 3, 'batch_size': 2, 'learning_rate': 0.3, 'momentum': 0.5}
    first = _run(toy.client(0, *_EXAMPLES), training=training)
    second = _run(toy.client(0, *_EXAMPLES), training=training, loss=mixed, mixup=0.0)
    np.testing.assert_array_equal(first.update.trainable[0], second.update.trainable[0])
    self.assertEqual(first.sums, second.sums)

  @parameterized.parameters((1.0, 1 / 12), (0.2, 1 / 5.6), (8.0, 1 / 68))
  def test_share_follows_the_beta_distribution(self, alpha, variance):
    # Batches of one: the update of weight i is lambda of the batch with example i.
    count = 600
    inputs = tf.keras.Input((count,))
    logits = tf.keras.layers.Dense(1, use_bias=False)(inputs)
    model = keras_model.from_keras(tf.keras.Model(inputs, [logits, inputs]))
    work = client_work.ClientWork(
        lambda i: i.logits[0, 0] * i.mixed_share, types.LocalTraining(1, 1, learning_rate=1.0),
        mixup=alpha,
    )
    broadcast = client_work.Broadcast(
        tff.learning.models.ModelWeights([np.zeros((count, 1), np.float32)], []), 1, {}
    )
    data = client_data.client_dataset(np.eye(count, dtype=np.float32), np.zeros(count), 0)
    update = client_work.build_client_update(model, work, 0)
    shares = update(broadcast, data, uplink.ClientState()).update.trainable[0][:, 0]
    self.assertBetween(shares.min(), 0, 1)
    self.assertBetween(shares.max(), 0, 1)
    # Beta(a, a): mean 1/2, variance 1 / (4 (2 a + 1)); within 4 standard errors.
    self.assertAlmostEqual(shares.mean(), 0.5, delta=4 * np.sqrt(variance / count))
    self.assertAlmostEqual(shares.var(), variance, delta=0.2 * variance)
    # Each batch draws its own; float32 has few numbers next to 1.
    self.assertGreater(len(set(shares.tolist())), 0.9 * count)

  @parameterized.parameters({'round_num': 2}, {'client': 1})
  def test_draws_are_a_function_of_round_and_client(self, **change):
    x = np.random.default_rng(0).integers(1, 256, (3, 40)).astype(np.uint8)
    y = np.array([1, 2, 3])
    first, again, other = (self._shown(x, y, 1.0, **c) for c in ({}, {}, change))
    np.testing.assert_array_equal(first[0], again[0])
    self.assertNotEqual(first[3], other[3])

  def test_vanishing_alpha_stays_finite(self):
    # Both gammas may be 0 in float32.
    x = np.random.default_rng(0).integers(1, 256, (3, 40)).astype(np.uint8)
    for round_num in range(1, 4):
      images, *_, share = self._shown(x, np.array([1, 2, 3]), 1e-4, round_num=round_num)
      self.assertTrue(np.isfinite(images).all())
      self.assertBetween(share, 0, 1)


class FinishTest(federated_test_case.FederatedTestCase):

  def _finish(self, data, num_examples, **work):
    return _run(
        data, local=np.zeros((num_examples, 2), np.float32),
        local_type=tff.TensorType(np.float32, (None, 2)), **work,
    )

  def test_predicts_by_the_trained_local_model(self):
    output = self._finish(
        toy.client(0, *_EXAMPLES), len(_EXAMPLES[0]), training={'epochs': 2, 'batch_size': 2},
        finish=lambda i: client_work.Finished(i.predict(False)),
    )
    x = np.array(_EXAMPLES[0], np.float32)
    np.testing.assert_allclose(output.local.own, x @ -output.update.trainable[0], atol=1e-6)
    self.assertGreater(np.abs(output.local.own).max(), 0.1)

  def test_predicts_every_example_once_over_many_batches(self):
    count = 1000
    x = np.random.default_rng(0).normal(size=(count, 2)).astype(np.float32)
    output = self._finish(
        toy.client(0, x.tolist(), [0] * count), count, weights=np.eye(2, dtype=np.float32),
        training={'epochs': 1, 'batch_size': count, 'learning_rate': 1e-30},
        finish=lambda i: client_work.Finished(i.predict(False)),
    )
    np.testing.assert_allclose(output.local.own, x, atol=1e-5)

  def test_reports_carry_the_clients_id(self):
    output = _run(
        toy.client(17, *_EXAMPLES),
        reports=(uplink.UplinkReport('steps', np.int32, 0, 100, 'a test'),),
        training={'epochs': 2, 'batch_size': 2},
        finish=lambda i: client_work.Finished(reports={'steps': i.steps}),
    )
    self.assertEqual(dict(output.reports), {'client': 17, 'steps': 4})

  def test_client_without_examples_finishes_too(self):
    output = self._finish(
        toy.client(5, [], []), 0, mixup=1.0,
        labels=lambda y, local: y,
        gradient=lambda i: i.gradients,
        reports=(uplink.UplinkReport('steps', np.int32, 0, 100, 'a test'),),
        finish=lambda i: client_work.Finished(i.predict(True), reports={'steps': i.steps}),
    )
    np.testing.assert_array_equal(output.update.trainable[0], np.zeros((2, 2)))
    self.assertEqual(output.weight, 0)
    self.assertEqual(output.local.own.shape, (0, 2))
    self.assertEqual(dict(output.reports), {'client': 5, 'steps': 0})

  @parameterized.parameters((0.5, 6.0, 1.0), (1e38, 0.0, 0.0))
  def test_diverged_client_keeps_its_state_and_adds_nothing(self, learning_rate, total, state):
    output = _run(
        toy.client(3, [[1e3, 1e3], [1e3, -1e3]], [0, 1]),
        local=np.zeros((), np.float32), local_type=tff.TensorType(np.float32),
        sums=(uplink.UplinkSum('total', np.float32, 0, 10, 'a test'),),
        reports=(uplink.UplinkReport('seen', np.int32, 0, 100, 'a test'),),
        training={'epochs': 2, 'batch_size': 2, 'learning_rate': learning_rate},
        finish=lambda i: client_work.Finished(
            tf.constant(1.0), {'total': tf.constant(6.0)}, {'seen': tf.constant(9)}
        ),
    )
    self.assertEqual(float(output.sums['total']), total)
    self.assertEqual(float(output.local.own), state)
    self.assertEqual(dict(output.reports), {'client': 3, 'seen': 9})

  def _predictions(self, augmentation, *, round_num=1, client=0, seed=0):
    """Predictions of plain and of augmented images, by an image model that hardly learns."""
    pixels = tf.keras.Input((6, 5, 1), dtype='uint8')
    features = tf.keras.layers.Flatten()(tf.keras.layers.Rescaling(1 / 255)(pixels))
    model = keras_model.from_keras(
        tf.keras.Model(pixels, [tf.keras.layers.Dense(2)(features), features])
    )
    work = client_work.ClientWork(
        _cross_entropy,
        types.LocalTraining(1, 5, learning_rate=1e-30, augmentation=augmentation),
        local_type=tff.to_type([(np.float32, (None, 2))] * 2),
        finish=lambda i: client_work.Finished([i.predict(False), i.predict(True)]),
    )
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, (5, 6, 5, 1)).astype(np.uint8)
    kernel = draw.normal(size=(30, 2)).astype(np.float32)
    weights = tff.learning.models.ModelWeights([kernel, np.zeros(2, np.float32)], [])
    update = client_work.build_client_update(model, work, seed)
    output = update(
        client_work.Broadcast(weights, round_num, {}),
        client_data.client_dataset(x, np.zeros(5), client),
        uplink.ClientState([np.zeros((5, 2), np.float32)] * 2),
    )
    np.testing.assert_allclose(output.local.own[0], x.reshape(5, 30) / 255 @ kernel, atol=1e-5)
    return output.local.own

  def test_predicts_on_augmented_images_where_training_augments_them(self):
    plain, augmented = self._predictions('crop_flip')
    self.assertGreater(np.abs(plain - augmented).max(), 1e-2)
    np.testing.assert_array_equal(*self._predictions('none'))

  def test_augmentation_of_predictions_is_a_function_of_seed_round_and_client(self):
    first = self._predictions('crop_flip')[1]
    np.testing.assert_array_equal(self._predictions('crop_flip')[1], first)
    for change in ({'seed': 1}, {'round_num': 2}, {'client': 1}):
      other = self._predictions('crop_flip', **change)[1]
      self.assertGreater(np.abs(other - first).max(), 1e-2, change)


if __name__ == '__main__':
  absltest.main()
