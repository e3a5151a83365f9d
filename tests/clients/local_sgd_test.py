"""Tests of a client's local training, by hand on the linear model."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tests.clients import one_client
from tff_noise import rng
from tff_noise import types
from tff_noise.clients import local_sgd
from tff_noise.clients import mixup
from tff_noise.clients import program
from tff_noise.clients import seeds
from tff_noise.data import client_data
from tff_noise.uplink import uplink


class LocalTrainingTest(federated_test_case.FederatedTestCase):

  def test_one_step_by_hand(self):
    # At W = 0 both probabilities are 1/2: the gradient is x^T (p - e_y) = [[-.5, .5], [0, 0]].
    output = one_client.run(
        toy.client(0, [[1, 0]], [0]),
        training={'epochs': 1, 'batch_size': 1, 'learning_rate': 1.0},
    )
    np.testing.assert_allclose(output.update.trainable[0], [[-0.5, 0.5], [0, 0]], atol=1e-6)
    self.assertEqual(output.weight, 1)
    self.assertAlmostEqual(output.sums['loss'], np.log(2), places=5)
    self.assertEqual(output.sums['examples'], 1)
    self.assertEqual(output.sums['rejected'], 0)

  def test_type_signature(self):
    computation = local_sgd.build(
        toy.linear_model(), (program.ClientProgram(one_client.cross_entropy),), seed=0,
        training=types.LocalTraining(),
    )
    parameter = computation.type_signature.parameter
    self.assertEqual(
        str(parameter['broadcast']),
        '<weights=<trainable=<float32[2,2]>,non_trainable=<>>,round_num=int32,received=<>,'
        'optimizer=<>>',
    )
    self.assertEqual(str(parameter['local']), '<own=<>,messages=<>>')
    self.assertEqual(
        str(computation.type_signature.result),
        '<update=<trainable=<float32[2,2]>,non_trainable=<>>,weight=float32,'
        'sums=<loss=float32,examples=float32,rejected=int32>,reports=<>,'
        'local=<client=int32,own=<>>>',
    )

  @parameterized.parameters((1, 1), (2, 2), (3, 5), (2, 10))
  def test_equals_numpy_over_epochs_and_batches(self, epochs, batch_size):
    x, y = np.array(one_client.EXAMPLES[0], np.float32), np.array(one_client.EXAMPLES[1])
    output = one_client.run(
        toy.client(7, *one_client.EXAMPLES),
        seed=3,
        round_num=4,
        training={
            'epochs': epochs, 'batch_size': batch_size, 'learning_rate': 0.3, 'momentum': 0.5,
            'weight_decay': 0.1,
        },
    )

    weights, velocity, batch_losses = np.zeros((2, 2)), np.zeros((2, 2)), []
    for batch in one_client.batches(3, epochs, batch_size, seed=3, round_num=4, client=7):
      log_p = x[batch] @ weights
      log_p -= np.log(np.exp(log_p).sum(axis=1, keepdims=True))
      batch_losses.append(-np.mean(log_p[np.arange(len(batch)), y[batch]]))
      gradient = one_client.gradient(weights, x[batch], y[batch])
      velocity = 0.5 * velocity + gradient + 0.1 * weights
      weights = weights - 0.3 * velocity
    np.testing.assert_allclose(output.update.trainable[0], -weights, atol=1e-6)
    self.assertAlmostEqual(output.sums['loss'], 3 * np.mean(batch_losses), places=5)

  @parameterized.parameters('sgd', 'adam')
  def test_a_schedule_is_another_step_size_in_each_round(self, optimizer):
    def update(rate, schedule, round_num):
      training = {
          'epochs': 2, 'batch_size': 2, 'learning_rate': rate, 'optimizer': optimizer,
          'schedule': schedule,
      }
      output = one_client.run(
          toy.client(7, *one_client.EXAMPLES), seed=3, round_num=round_num, training=training
      )
      return output.update.trainable[0]

    halved = types.Schedule('steps', 0.5, (3, 4))
    for round_num, rate in ((3, 0.25), (4, 0.125), (5, 0.0625)):
      np.testing.assert_array_equal(
          update(0.25, halved, round_num), update(rate, types.Schedule(), round_num)
      )

  def test_adam_by_hand(self):
    # The gradients of the only entry that has any are 2, -1 and .5; lambda is .25.
    rate, decay = 0.125, 0.25
    output = one_client.run(
        toy.client(0, [[1, 0]] * 3, [0] * 3),
        weights=[[3, 0], [0, 0]],
        training={
            'epochs': 1, 'batch_size': 1, 'learning_rate': rate, 'weight_decay': decay,
            'optimizer': 'adam',
        },
        loss=lambda s: s.logits[0, 0] * tf.gather([2.0, -1.0, 0.5], s.number),
    )
    w, first, second = 3.0, 0.0, 0.0
    for t, gradient in enumerate((2.0, -1.0, 0.5), start=1):
      gradient += decay * w
      first = 0.9 * first + 0.1 * gradient
      second = 0.999 * second + 0.001 * gradient**2
      w -= rate * (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)
    np.testing.assert_allclose(output.update.trainable[0], [[3 - w, 0], [0, 0]], atol=1e-5)
    # The first step alone is as long as the rate, and so is none of SGD's.
    self.assertBetween(3 - w, rate, 3 * rate)

  def test_adam_starts_afresh_in_every_round(self):
    training = {'epochs': 2, 'batch_size': 2, 'learning_rate': 0.1, 'optimizer': 'adam'}
    x, y = (np.array(v) for v in one_client.EXAMPLES)
    weights = np.zeros((2, 2))
    for round_num in (1, 2):
      output = one_client.run(
          toy.client(0, *one_client.EXAMPLES), weights=weights, round_num=round_num,
          training=training,
      )
      first = second = np.zeros((2, 2))
      start = weights
      steps = one_client.batches(3, 2, 2, round_num=round_num)
      for t, batch in enumerate(steps, start=1):
        gradient = one_client.gradient(weights, x[batch], y[batch])
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        step = (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)
        weights = weights - 0.1 * step
      np.testing.assert_allclose(output.update.trainable[0], start - weights, atol=2e-5)

  def test_client_without_examples_sends_nothing(self):
    output = one_client.run(toy.client(0, [], []))
    np.testing.assert_array_equal(output.update.trainable[0], np.zeros((2, 2)))
    self.assertEqual(output.weight, 0)
    self.assertEqual(output.sums['loss'], 0)

  def test_update_that_is_not_finite_is_left_out_and_counted(self):
    output = one_client.run(toy.client(0, [[np.inf, 1]], [0]))
    np.testing.assert_array_equal(output.update.trainable[0], np.zeros((2, 2)))
    self.assertEqual(output.weight, 0)
    self.assertEqual(output.sums['loss'], 0)
    self.assertEqual(output.sums['rejected'], 1)


class RandomnessTest(federated_test_case.FederatedTestCase):

  def _update(self, seed=0, round_num=1, client=0, learning_rate=0.5):
    return one_client.run(
        toy.client(client, *one_client.EXAMPLES), seed=seed, round_num=round_num,
        training={'epochs': 2, 'batch_size': 1, 'learning_rate': learning_rate},
        # Random noise on the loss shows the step's seed, whatever the order of the batches.
        loss=lambda s: one_client.cross_entropy(s) * (1 + tf.random.stateless_uniform((), s.seed)),
    ).update.trainable[0]

  def test_same_seed_round_and_client_repeat(self):
    np.testing.assert_array_equal(self._update(), self._update())

  @parameterized.parameters({'seed': 1}, {'round_num': 2}, {'client': 1})
  def test_each_part_changes_the_draws(self, **change):
    self.assertGreater(np.abs(self._update() - self._update(**change)).max(), 1e-4)

  def test_steps_and_epochs_draw_differently(self):
    total = one_client.run(
        toy.client(0, [[1, 0]] * 4, [0] * 4),
        training={'epochs': 3, 'batch_size': 2, 'learning_rate': 1.0},
        # The gradient of this loss is the step's draw: their sum is the update.
        loss=lambda s: tf.reduce_sum(s.logits[0, 0]) * tf.random.stateless_uniform((), s.seed),
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

  def test_loss_sees_round_and_what_all_receive(self):
    output = one_client.run(
        toy.client(0, [[1, 0]], [0]),
        round_num=3,
        receives={'scale': np.float32(2)},
        training={'epochs': 1, 'batch_size': 1, 'learning_rate': 1.0},
        loss=lambda s: (
            s.logits[0, 0] * s.client.received['scale'] * tf.cast(s.client.round_num, tf.float32)
        ),
    )
    self.assertAlmostEqual(output.update.trainable[0][0, 0], 6, places=5)

  def test_loss_gets_what_was_drawn_for_each_example_of_the_epoch(self):
    def draw(epoch):
      offset = epoch.client.received['offset']
      return {'drawn': offset + tf.range(epoch.num_examples, dtype=tf.float32)}

    output = one_client.run(
        toy.client(0, [[1, 0]] * 5, [0] * 5),
        training={'epochs': 2, 'batch_size': 2, 'learning_rate': 1.0},
        receives={'offset': np.float32(10)},
        draw=draw,
        # The update sums what the batches drew: 10 to 14 twice, whatever the order of examples.
        loss=lambda s: s.logits[0, 0] * tf.reduce_sum(s.columns['drawn']),
    )
    self.assertAlmostEqual(output.update.trainable[0][0, 0], 2 * 60, places=3)

  def test_each_epoch_draws_afresh(self):
    def total(epochs):
      return one_client.run(
          toy.client(0, [[1, 0]] * 5, [0] * 5),
          training={'epochs': epochs, 'batch_size': 5, 'learning_rate': 1.0},
          draw=lambda e: {
              'drawn': tf.random.stateless_uniform(e.num_examples[tf.newaxis], e.seed)
          },
          loss=lambda s: s.logits[0, 0] * tf.reduce_sum(s.columns['drawn']),
      ).update.trainable[0][0, 0]

    self.assertGreater(abs(total(2) - 2 * total(1)), 1e-3)

  def test_final_sends_sums_and_keeps_own_state(self):
    output = one_client.run(
        toy.client(0, *one_client.EXAMPLES),
        own={'seen': np.int32(0)},
        kept={'seen': np.int32(10)},
        training={'epochs': 2, 'batch_size': 2},
        sums=(uplink.UplinkSum('steps', np.int32, 0, 100, 'a test'),),
        final=lambda r: program.Sent(
            own={'seen': r.client.own['seen'] + r.steps}, sums={'steps': r.steps}
        ),
    )
    self.assertEqual(output.sums['steps'], 4)
    self.assertEqual(output.local.own['seen'], 14)


class LabelsTest(federated_test_case.FederatedTestCase):

  def test_trains_on_the_labels_of_the_clients_own_state(self):
    training = {'epochs': 2, 'batch_size': 2, 'learning_rate': 0.5}
    own = one_client.run(
        toy.client(0, *one_client.EXAMPLES), training=training,
        own={'labels': program.GivenLabels()},
        kept={'labels': np.array([1, 0, 0], np.int32)},
        columns=lambda c: program.Columns(labels=c.own['labels']),
    )
    expected = one_client.run(
        toy.client(0, one_client.EXAMPLES[0], [1, 0, 0]), training=training
    )
    others = one_client.run(toy.client(0, *one_client.EXAMPLES), training=training)
    np.testing.assert_array_equal(own.update.trainable[0], expected.update.trainable[0])
    self.assertGreater(np.abs(own.update.trainable[0] - others.update.trainable[0]).max(), 0.1)
    # Nothing else changes the state.
    np.testing.assert_array_equal(own.local.own['labels'], [1, 0, 0])

  def test_labels_of_the_data_are_there_to_be_corrected(self):
    output = one_client.run(
        toy.client(0, *one_client.EXAMPLES),
        own={'shift': np.int32(1)},
        columns=lambda c: program.Columns(labels=(c.labels + c.own['shift']) % 2),
        sums=(uplink.UplinkSum('ones', np.int32, 0, 100, 'a test'),),
        final=lambda r: program.Sent(sums={'ones': tf.reduce_sum(r.labels)}),
    )
    # Of [0, 1, 1], turned round.
    self.assertEqual(output.sums['ones'], 1)
    self.assertEqual(output.weight, 3)


class GradientTest(federated_test_case.FederatedTestCase):

  def test_counts_the_steps_of_each_epoch(self):
    output = one_client.run(
        toy.client(0, [[1, 0]] * 5, [0] * 5),
        training={'epochs': 2, 'batch_size': 2, 'learning_rate': 1.0},
        step=one_client.in_steps(
            lambda s: [tf.ones_like(g) * tf.cast(s.epoch_step, tf.float32) for g in s.gradients]
        ),
    )
    # Steps 0, 1, 2 in both epochs.
    np.testing.assert_allclose(output.update.trainable[0], np.full((2, 2), 6))

  def test_anchor_is_what_the_server_sent(self):
    # g = w - w' + 1: the distance goes 0, -.5, -.75, -.875.
    output = one_client.run(
        toy.client(0, [[1, 0]] * 3, [0] * 3),
        weights=[[1, 2], [3, 4]],
        training={'epochs': 1, 'batch_size': 1, 'learning_rate': 0.5},
        step=one_client.in_steps(_pulled),
    )
    np.testing.assert_allclose(output.update.trainable[0], np.full((2, 2), 0.875), atol=1e-6)

  def test_sees_the_gradient_of_the_loss_and_what_the_loss_sees(self):
    # At W = 0 the gradient is [[-.5, .5], [0, 0]]; times 3, plus 10.
    output = one_client.run(
        toy.client(0, [[1, 0]], [0]),
        training={'epochs': 1, 'batch_size': 1, 'learning_rate': 1.0},
        receives={'scale': np.float32(3)},
        own={'more': np.float32(10)},
        step=one_client.in_steps(
            lambda s: [g * s.client.received['scale'] + s.client.own['more'] for g in s.gradients]
        ),
    )
    np.testing.assert_allclose(output.update.trainable[0], [[8.5, 11.5], [10, 10]], atol=1e-5)

  def test_weight_decay_and_momentum_come_after_it(self):
    output = one_client.run(
        toy.client(0, [[1, 0]] * 2, [0] * 2),
        weights=np.full((2, 2), 8),
        training={'epochs': 1, 'batch_size': 1, 'learning_rate': 1.0, 'weight_decay': 0.25,
                  'momentum': 0.5},
        step=one_client.in_steps(lambda s: [tf.ones_like(g) for g in s.gradients]),
    )
    # v = 1 + .25 * 8 = 3, w = 5; v = .5 * 3 + 1 + .25 * 5 = 3.75, w = 1.25.
    np.testing.assert_allclose(output.update.trainable[0], np.full((2, 2), 6.75), atol=1e-5)


def _pulled(step):
  return [w - a + 1 for w, a in zip(step.weights, step.anchor, strict=True)]


def _moved_start(client):
  """Starts from the received weights plus a number that the client keeps."""
  return tf.nest.map_structure(lambda w: w + client.own['number'], client.weights)


_NUMBER = {'number': np.float32(0)}
_TEN = {'number': np.float32(10)}


class OptimizerTest(federated_test_case.FederatedTestCase):
  """What a federated optimizer's program adds to local training."""

  def test_type_signature(self):
    of_optimizer = program.ClientProgram(
        own={'drift': [np.zeros((2, 2), np.float32)]},
        final=lambda r: program.Sent(r.steps, sums={'moved': r.num_examples}),
        sums=(uplink.UplinkSum('moved', np.float32, 0, 1, 'a test'),),
    )
    of_method = program.ClientProgram(one_client.cross_entropy, own={'seen': np.int32(0)})
    computation = local_sgd.build(
        toy.linear_model(), (of_method, of_optimizer), seed=0, training=types.LocalTraining(),
        optimizer_type=tff.TensorType(np.float32, (3,)),
    )
    own = 'own=<drift=<float32[2,2]>,seen=int32>'
    parameter = computation.type_signature.parameter
    self.assertEqual(str(parameter['broadcast']['optimizer']), 'float32[3]')
    self.assertEqual(str(parameter['local']), f'<{own},messages=<>>')
    self.assertEqual(
        str(computation.type_signature.result),
        '<update=int32,weight=float32,'
        'sums=<loss=float32,examples=float32,rejected=int32,moved=float32>,reports=<>,'
        f'local=<client=int32,{own}>>',
    )

  @parameterized.parameters(
      ({}, r"declares the sums \['moved'\] and sends \[\]: Sent needs a value for each"),
      (program.Sent(sums={'moved': 1.0, 'more': 1.0}), r"and sends \['moved', 'more'\]"),
      (program.Sent(reports={'seen': 1.0}, sums={'moved': 1.0}), r'declares the reports \[\]'),
      (program.Sent(own={'last': 1.0}, sums={'moved': 1.0}), r"keeps \['last'\], of which its"),
      ({'moved': 1.0}, 'has to return Sent, returned dict'),
  )
  def test_slips_in_names_are_told(self, sent, message):
    mine = program.ClientProgram(
        one_client.cross_entropy, final=lambda _: sent or program.Sent(),
        sums=(uplink.UplinkSum('moved', np.float32, 0, 1, 'a test'),),
    )
    with self.assertRaisesRegex(types.UsageError, message):
      local_sgd.build(toy.linear_model(), (mine,), seed=0, training=types.LocalTraining())

  @parameterized.parameters(
      (program.Sent(sums={'moved': 1}),
       r"declares 'moved' in its sums, float32 \(\): `final` sends int32 \(\)"),
      (program.Sent(sums={'moved': np.zeros(2, np.float32)}), r'`final` sends float32 \(2,\)'),
      (program.Sent(own={'seen': np.float32(1)}, sums={'moved': 1.0}),
       r"keeps 'seen' as its own, int32 \(\): `final` sends float32 \(\)"),
      (program.Sent(own={'seen': [1, 2]}, sums={'moved': 1.0}), 'keeps .* something of another'),
      (program.Sent([np.zeros((2, 2))], sums={'moved': 1.0}), 'trains a .* something of another'),
      (program.Sent(tff.learning.models.ModelWeights([np.zeros(4)], []), sums={'moved': 1.0}),
       r'sends another update, float32 \(2, 2\): `final` sends float64 \(4,\)'),
      (program.Sent(own={'drift': np.zeros((2, 3), np.float32)}, sums={'moved': 1.0}),
       r"keeps 'drift' as its own, float32 \(None, 2\): `final` sends float32 \(2, 3\)"),
  )
  def test_slips_in_types_are_told(self, sent, message):
    mine = program.ClientProgram(
        one_client.cross_entropy, final=lambda _: sent,
        own={'seen': np.int32(0), 'drift': program.PerExample(np.zeros(2, np.float32))},
        sums=(uplink.UplinkSum('moved', np.float32, 0, 1, 'a test'),),
    )
    with self.assertRaisesRegex(types.UsageError, message):
      local_sgd.build(toy.linear_model(), (mine,), seed=0, training=types.LocalTraining())

  @parameterized.parameters(
      (lambda s: one_client.cross_entropy(s) * tf.ones(tf.shape(s.labels)), r'float32 \(None,\)'),
      (lambda s: tf.cast(one_client.cross_entropy(s), tf.float64), r'float64 \(\)'),
      (lambda s: (s.logits, ()), r'float32 \(None, 2\)'),
      (lambda s: None, 'None'),
  )
  def test_a_loss_is_one_number(self, loss, what):
    with self.assertRaisesRegex(types.UsageError, f'`loss` has to .* returned {what}$'):
      local_sgd.build(
          toy.linear_model(), (program.ClientProgram(loss),), seed=0,
          training=types.LocalTraining(),
      )

  @parameterized.parameters((3, 3), (200, 100), (-200, -5))
  def test_sums_are_cut_to_their_bounds_before_they_are_sent(self, value, expected):
    output = one_client.run(
        toy.client(0, *one_client.EXAMPLES),
        sums=(uplink.UplinkSum('sum', np.int32, -5, 100, 'a test'),),
        final=lambda r: program.Sent(sums={'sum': tf.constant(value)}),
    )
    self.assertEqual(output.sums['sum'], expected)

  def test_that_adds_nothing_changes_nothing(self):
    training = {'epochs': 2, 'batch_size': 2, 'learning_rate': 0.3, 'momentum': 0.5,
                'weight_decay': 0.1}
    plain, ruled = (
        one_client.run(
            toy.client(0, *one_client.EXAMPLES), training=training, weights=[[1, 2], [3, 4]], **more
        )
        for more in (
            {},
            {
                'optimizer': program.ClientProgram(
                    own=_NUMBER,
                    start=lambda client: client.weights,
                    step=one_client.in_steps(lambda s: s.gradients),
                ),
                'kept': {'number': np.float32(3)},
                'sent': np.float32(4),
            },
        )
    )
    np.testing.assert_array_equal(plain.update.trainable[0], ruled.update.trainable[0])
    self.assertEqual(plain.sums, ruled.sums)
    self.assertEqual(ruled.local.own['number'], 3)

  def test_training_starts_from_the_weights_of_start(self):
    # The loss is the weight [0, 0] times x = 2, here (1 + 10) * 2; one step moves it by -2.
    output = one_client.run(
        toy.client(0, [[2, 0]], [0]),
        weights=[[1, 2], [3, 4]],
        training=one_client.ONE_STEP,
        loss=lambda s: s.logits[0, 0],
        optimizer=program.ClientProgram(
            own=_NUMBER, start=_moved_start, final=lambda r: program.Sent((r.update, r.weights))
        ),
        kept=_TEN,
    )
    self.assertEqual(output.sums['loss'], 22)
    update, end = output.update
    # Relative to where training started, not to what was broadcast.
    np.testing.assert_allclose(update.trainable[0], [[2, 0], [0, 0]], atol=1e-5)
    np.testing.assert_allclose(end.trainable[0], [[9, 12], [13, 14]], atol=1e-5)

  @parameterized.parameters('method', 'optimizer')
  def test_anchor_is_where_training_started(self, whose):
    # g = w - w' + 1: the distance goes 0, -.5, -.75, -.875.
    pulled = one_client.in_steps(_pulled)
    output = one_client.run(
        toy.client(0, [[1, 0]] * 3, [0] * 3),
        weights=[[1, 2], [3, 4]],
        training={'epochs': 1, 'batch_size': 1, 'learning_rate': 0.5},
        step=pulled if whose == 'method' else None,
        optimizer=program.ClientProgram(
            own=_NUMBER, start=_moved_start, step=pulled if whose == 'optimizer' else None
        ),
        kept=_TEN,
        sums=(uplink.UplinkSum('moved', np.float32, -10, 10, 'a test'),),
        final=lambda r: program.Sent(sums={'moved': r.update.trainable[0][0, 0]}),
    )
    np.testing.assert_allclose(output.update.trainable[0], np.full((2, 2), 0.875), atol=1e-5)
    self.assertAlmostEqual(output.sums['moved'], 0.875, places=5)

  def test_gradients_come_after_the_methods_and_before_weight_decay(self):
    # Equal weights: the gradient of the loss is [[-.5, .5], [0, 0]]. Twice that by the method;
    # three times that plus 10 by the optimizer, [[7, 13], [10, 10]]; plus .25 * 8.
    output = one_client.run(
        toy.client(0, [[1, 0]], [0]),
        weights=np.full((2, 2), 8),
        training={**one_client.ONE_STEP, 'weight_decay': 0.25},
        step=one_client.in_steps(lambda s: [2 * g for g in s.gradients]),
        optimizer=program.ClientProgram(
            step=one_client.in_steps(lambda s: [3 * g + 10 for g in s.gradients])
        ),
    )
    np.testing.assert_allclose(output.update.trainable[0], [[9, 15], [12, 12]], atol=1e-5)

  def test_local_momentum_comes_after_gradients(self):
    output = one_client.run(
        toy.client(0, [[1, 0]] * 2, [0] * 2),
        weights=np.full((2, 2), 8),
        training={'epochs': 1, 'batch_size': 1, 'learning_rate': 1.0, 'weight_decay': 0.25,
                  'momentum': 0.5},
        optimizer=program.ClientProgram(
            step=one_client.in_steps(lambda s: [w * 0 + 1 for w in s.weights])
        ),
    )
    # v = 1 + .25 * 8 = 3, w = 5; v = .5 * 3 + 1 + .25 * 5 = 3.75, w = 1.25.
    np.testing.assert_allclose(output.update.trainable[0], np.full((2, 2), 6.75), atol=1e-5)

  def test_own_state_and_what_the_server_sends_are_seen_in_every_step_and_at_the_end(self):
    def final(result):
      number, sent = result.client.own['number'], result.client.optimizer
      return program.Sent(
          own={'number': number + sent['shift']},
          sums={'steps': result.steps, 'product': result.num_examples * number * sent['scale']},
      )

    # Each of three steps moves every weight by -(100 + 2), and by the gradient of the loss.
    output = one_client.run(
        toy.client(0, [[1, 0]] * 3, [0] * 3),
        training={'epochs': 1, 'batch_size': 1, 'learning_rate': 1.0},
        loss=lambda s: s.logits[0, 0],
        optimizer=program.ClientProgram(
            own=_NUMBER,
            step=one_client.in_steps(
                lambda s: [
                    g + s.client.own['number'] + s.client.optimizer['shift'] for g in s.gradients
                ]
            ),
            final=final,
            sums=(
                uplink.UplinkSum('steps', np.int32, 0, 10, 'a test'),
                uplink.UplinkSum('product', np.float32, 0, 1e4, 'a test'),
            ),
        ),
        kept={'number': np.float32(100)},
        sent=collections.OrderedDict(shift=np.float32(2), scale=np.float32(7)),
    )
    np.testing.assert_allclose(
        output.update.trainable[0], [[309, 306], [306, 306]], atol=1e-3
    )
    self.assertEqual(output.local.own['number'], 102)
    self.assertEqual(output.sums['steps'], 3)
    self.assertEqual(output.sums['product'], 3 * 100 * 7)
    # What a method and every training sends is there as well.
    self.assertEqual(output.sums['examples'], 3)
    self.assertEqual(output.weight, 3)

  def test_method_and_optimizer_keep_and_send_their_own(self):
    output = one_client.run(
        toy.client(0, *one_client.EXAMPLES),
        own={'of_method': np.int32(5)},
        sums=(uplink.UplinkSum('of_method', np.int32, 0, 100, 'a test'),),
        final=lambda r: program.Sent(
            own={'of_method': r.client.own['of_method'] + 1},
            sums={'of_method': r.client.own['of_method']},
        ),
        optimizer=program.ClientProgram(
            own={'of_optimizer': np.float32(9)},
            final=lambda r: program.Sent(
                collections.OrderedDict(twice=2 * r.num_examples),
                own={'of_optimizer': r.client.own['of_optimizer'] / 2},
                sums={'of_optimizer': r.client.own['of_optimizer']},
            ),
            sums=(uplink.UplinkSum('of_optimizer', np.float32, 0, 100, 'a test'),),
        ),
    )
    self.assertEqual(
        output.local, uplink.ReturnedState(0, {'of_method': 6, 'of_optimizer': 4.5})
    )
    self.assertEqual(dict(output.update), {'twice': 6})
    self.assertEqual((output.sums['of_method'], output.sums['of_optimizer']), (5, 9))

  def test_the_last_update_gets_the_one_before(self):
    # One step of 2 in the first entry; the method doubles it, the optimizer adds 1 to all.
    def changed(change):
      return lambda r: program.Sent(tf.nest.map_structure(change, r.update))

    output = one_client.run(
        toy.client(0, [[2, 0]], [0]), training=one_client.ONE_STEP, loss=lambda s: s.logits[0, 0],
        final=changed(lambda u: 2 * u),
        optimizer=program.ClientProgram(final=changed(lambda u: u + 1)),
    )
    np.testing.assert_allclose(output.update.trainable[0], [[5, 1], [1, 1]])

  @parameterized.parameters((0.5, 1.25, 1.25), (0.5, 9.0, 2.0), (0.5, -1.0, 0.0), (1e38, 1.0, 0.0))
  def test_a_program_weighs_its_update_by_at_most_its_examples(self, learning_rate, wanted, given):
    output = one_client.run(
        toy.client(3, [[1e3, 1e3], [1e3, -1e3]], [0, 1]),
        training={'epochs': 2, 'batch_size': 2, 'learning_rate': learning_rate},
        final=lambda r: program.Sent(weight=tf.constant(wanted)),
    )
    self.assertAlmostEqual(output.weight, given)
    # A weight of 0 leaves nothing of the update; the losses' mean is of examples, as ever.
    self.assertEqual(np.abs(output.update.trainable[0]).max() > 0, given > 0)
    self.assertEqual(output.sums['examples'], 0 if learning_rate > 1 else 2)

  @parameterized.parameters((0.5, False), (1e38, True))
  def test_diverged_client_keeps_its_states_and_adds_nothing(self, learning_rate, diverged):
    def final(result):
      own = result.client.own
      return program.Sent(
          own={
              'drift': own['drift'] + result.weights.trainable[0],
              'of_optimizer': own['of_optimizer'] + 1,
          },
          sums={
              'distance': tf.reduce_sum(tf.abs(result.update.trainable[0])), 'clients': 1,
              'sent': result.num_examples,
          },
      )

    output = one_client.run(
        toy.client(3, [[1e3, 1e3], [1e3, -1e3]], [0, 1]),
        training={'epochs': 2, 'batch_size': 2, 'learning_rate': learning_rate},
        own={'of_method': np.float32(4)},
        final=lambda r: program.Sent(own={'of_method': tf.constant(1.0)}),
        optimizer=program.ClientProgram(
            own={'drift': np.full((2, 2), 7, np.float32), 'of_optimizer': np.int32(8)},
            final=final,
            sums=(
                uplink.UplinkSum('distance', np.float32, 0, 1e6, 'a test'),
                uplink.UplinkSum('clients', np.int32, 0, 1, 'a test'),
                uplink.UplinkSum('sent', np.float32, 0, 10, 'a test'),
            ),
        ),
    )
    own = output.local.own
    self.assertEqual(output.sums['rejected'], diverged)
    if diverged:
      np.testing.assert_array_equal(own['drift'], np.full((2, 2), 7))
      np.testing.assert_array_equal(output.update.trainable[0], np.zeros((2, 2)))
      self.assertEqual(output.sums['distance'], 0)
    else:
      end = -output.update.trainable[0]
      np.testing.assert_allclose(own['drift'], 7 + end, rtol=1e-6)
      self.assertGreater(np.abs(end).max(), 100)
      self.assertAlmostEqual(output.sums['distance'], np.abs(end).sum(), places=2)
    self.assertEqual(own['of_method'], 4 if diverged else 1)
    self.assertEqual(own['of_optimizer'], 8 if diverged else 9)
    self.assertEqual(output.weight, 0 if diverged else 2)
    self.assertEqual(output.sums['sent'], 0 if diverged else 2)
    self.assertEqual(output.sums['clients'], 0 if diverged else 1)

  def test_client_without_examples_sends_nothing_from_wherever_it_starts(self):
    output = one_client.run(
        toy.client(0, [], []),
        optimizer=program.ClientProgram(
            own=_NUMBER,
            start=_moved_start,
            step=one_client.in_steps(lambda s: [g + s.client.own['number'] for g in s.gradients]),
        ),
        kept=_TEN,
    )
    np.testing.assert_array_equal(output.update.trainable[0], np.zeros((2, 2)))
    self.assertEqual((output.weight, output.local.own['number']), (0, 10))


_LOGITS = {'logits': program.PerExample(np.zeros(2, np.float32))}


class FinalTest(federated_test_case.FederatedTestCase):

  def test_predicts_by_the_trained_local_model(self):
    output = one_client.run(
        toy.client(0, *one_client.EXAMPLES), training={'epochs': 2, 'batch_size': 2},
        own=_LOGITS, final=lambda r: program.Sent(own={'logits': r.client.predict()}),
    )
    x, logits = np.array(one_client.EXAMPLES[0], np.float32), output.local.own['logits']
    np.testing.assert_allclose(logits, x @ -output.update.trainable[0], atol=1e-6)
    self.assertGreater(np.abs(logits).max(), 0.1)

  def test_predicts_every_example_once_over_many_batches(self):
    count = 1000
    x = np.random.default_rng(0).normal(size=(count, 2)).astype(np.float32)
    output = one_client.run(
        toy.client(0, x.tolist(), [0] * count), weights=np.eye(2),
        training={'epochs': 1, 'batch_size': count, 'learning_rate': 1e-30},
        own=_LOGITS, final=lambda r: program.Sent(own={'logits': r.client.predict()}),
    )
    np.testing.assert_allclose(output.local.own['logits'], x, atol=1e-5)

  def test_reports_carry_the_clients_id(self):
    output = one_client.run(
        toy.client(17, *one_client.EXAMPLES),
        reports=(uplink.UplinkReport('steps', np.int32, 0, 100, 'a test'),),
        training={'epochs': 2, 'batch_size': 2},
        final=lambda r: program.Sent(reports={'steps': r.steps}),
    )
    self.assertEqual(dict(output.reports), {'client': 17, 'steps': 4})

  def test_client_without_examples_finishes_too(self):
    output = one_client.run(
        toy.client(5, [], []),
        transform=mixup.transform(1.0),
        columns=lambda c: program.Columns(labels=c.labels),
        step=one_client.in_steps(lambda s: s.gradients),
        own=_LOGITS,
        reports=(uplink.UplinkReport('steps', np.int32, 0, 100, 'a test'),),
        final=lambda r: program.Sent(
            own={'logits': r.client.predict(augmented=True)}, reports={'steps': r.steps}
        ),
    )
    np.testing.assert_array_equal(output.update.trainable[0], np.zeros((2, 2)))
    self.assertEqual(output.weight, 0)
    self.assertEqual(output.local.own['logits'].shape, (0, 2))
    self.assertEqual(dict(output.reports), {'client': 5, 'steps': 0})

  @parameterized.parameters((0.5, 6.0, 1.0), (1e38, 0.0, 0.0))
  def test_diverged_client_keeps_its_state_and_adds_nothing(self, learning_rate, total, state):
    output = one_client.run(
        toy.client(3, [[1e3, 1e3], [1e3, -1e3]], [0, 1]),
        own=_NUMBER,
        sums=(uplink.UplinkSum('total', np.float32, 0, 10, 'a test'),),
        reports=(uplink.UplinkReport('seen', np.int32, 0, 100, 'a test'),),
        training={'epochs': 2, 'batch_size': 2, 'learning_rate': learning_rate},
        final=lambda r: program.Sent(
            own={'number': tf.constant(1.0)}, sums={'total': tf.constant(6.0)},
            reports={'seen': tf.constant(9)},
        ),
    )
    self.assertEqual(float(output.sums['total']), total)
    self.assertEqual(float(output.local.own['number']), state)
    self.assertEqual(dict(output.reports), {'client': 3, 'seen': 9})

  def _predictions(self, augmentation, *, round_num=1, client=0, seed=0):
    """Predictions of plain and of augmented images, by an image model that hardly learns."""
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, (5, 6, 5, 1)).astype(np.uint8)
    kernel = draw.normal(size=(30, 2)).astype(np.float32)
    output = one_client.run(
        client_data.client_dataset(x, np.zeros(5), client),
        model=toy.image_model(),
        weights=(kernel, np.zeros(2)),
        round_num=round_num,
        seed=seed,
        training={
            'epochs': 1, 'batch_size': 5, 'learning_rate': 1e-30, 'augmentation': augmentation
        },
        own={name: program.PerExample(np.zeros(2, np.float32)) for name in ('plain', 'augmented')},
        final=lambda r: program.Sent(
            own={'plain': r.client.predict(), 'augmented': r.client.predict(augmented=True)}
        ),
    )
    own = output.local.own
    np.testing.assert_allclose(own['plain'], x.reshape(5, 30) / 255 @ kernel, atol=1e-5)
    return own['plain'], own['augmented']

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
