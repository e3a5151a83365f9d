"""Tests of what a client's program can do, by hand and in NumPy on the linear model."""

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tests.clients import one_client
from tff_noise.clients import program
from tff_noise.clients import seeds
from tff_noise.data import client_data
from tff_noise.models import images
from tff_noise.models import keras_model
from tff_noise.models import losses
from tff_noise.uplink import uplink

# Seven examples, of which five may be visited.
_SEVEN = ([[1, 0], [0, 1], [2, 1], [1, 2], [3, 0], [0, 3], [1, 1]], [0, 1, 1, 0, 1, 0, 1])
_FIVE = (True, False, True, True, False, True, True)


def _written(log, step, **values):
  """What a program carries: rows of a log, by name, with those of this step added."""
  return {
      name: tf.tensor_scatter_nd_update(log[name], [[step.number]], [tf.convert_to_tensor(value)])
      for name, value in values.items()
  }


def _logged(num_steps, **first):
  """Attributes of a program that carries a log of rows, by name, and keeps it in the end.

  Args:
    num_steps: How many rows.
    **first: What the rows are at first.
  """
  log = {name: np.stack([value] * num_steps) for name, value in first.items()}
  return {
      'init': lambda client: {name: tf.constant(v) for name, v in log.items()},
      'own': log,
      'final': lambda result: program.Sent(own=result.carry),
  }


def _logging(*names, **values):
  """Returns a `step` that leaves the gradients and logs attributes and `values` of what it sees."""
  def step(s):
    found = {name: getattr(s, name) for name in names}
    found.update({name: value(s) for name, value in values.items()})
    return s.gradients, _written(s.carry, s, **found)

  return step


class ColumnsTest(federated_test_case.FederatedTestCase):

  def test_are_of_the_received_model_however_long_training_goes_on(self):
    def columns(client):
      logits = client.predict()
      _, features = client.predict_with_features()
      return program.Columns({
          'margin': logits[:, 0] - logits[:, 1], 'size': tf.reduce_sum(features, axis=1)
      })

    # The logits are (2, 0), (0, 1), (2, 1): margins 2, -1 and 1. The features are the inputs: sizes
    # 1, 1 and 2. Summed over x times margin that is (3, 0), over x times size (3, 3).
    output = one_client.run(
        toy.client(0, *one_client.EXAMPLES),
        weights=[[2, 0], [0, 1]],
        training={'epochs': 2, 'batch_size': 2, 'learning_rate': 10.0},
        columns=columns,
        loss=lambda s: tf.reduce_sum(
            s.columns['margin'] * s.logits[:, 0] + s.columns['size'] * s.logits[:, 1]
        ),
    )
    np.testing.assert_allclose(output.update.trainable[0], [[60, 60], [0, 60]], atol=1e-4)

  def test_are_of_the_model_that_training_starts_from(self):
    # Twice what was received: margins 4, -2 and 2.
    output = one_client.run(
        toy.client(0, *one_client.EXAMPLES),
        weights=[[2, 0], [0, 1]],
        training=one_client.ONE_STEP,
        start=lambda client: tf.nest.map_structure(lambda w: 2 * w, client.weights),
        columns=lambda c: program.Columns({'margin': c.predict()[:, 0] - c.predict()[:, 1]}),
        loss=lambda s: tf.reduce_sum(s.columns['margin'] * s.logits[:, 0]),
    )
    np.testing.assert_allclose(output.update.trainable[0], [[6, 0], [0, 0]], atol=1e-5)

  def test_may_look_with_other_weights_and_leave_the_networks_own(self):
    def columns(client):
      other = tf.nest.map_structure(lambda w: 2 * w, client.weights)
      of_other, before = client.predict(weights=other), client.predict()
      return program.Columns({'margin': of_other[:, 0] - of_other[:, 1] - before[:, 0]})

    # Margins 2 (2, -1, 1) less the logits (2, 0, 2): (2, -2, 0), and no step starts elsewhere.
    output = one_client.run(
        toy.client(0, *one_client.EXAMPLES),
        weights=[[2, 0], [0, 1]],
        training=one_client.ONE_STEP,
        columns=columns,
        loss=lambda s: tf.reduce_sum(s.columns['margin'] * s.logits[:, 0]),
    )
    np.testing.assert_allclose(output.update.trainable[0], [[2, 0], [-2, 0]], atol=1e-5)

  def test_may_look_at_images_that_are_not_the_clients(self):
    def columns(client):
      # Of another number than the client's examples.
      logits = client.predict(images=tf.constant([[1.0, 2.0], [3.0, 4.0]]))
      return program.Columns({'of_image': tf.repeat(logits[1:], client.num_examples, axis=0)})

    # The second image's logits are (6, 4), their sum 10: with each of the inputs (1, 0), (0, 1) and
    # (1, 1) the gradient is 10 x.
    output = one_client.run(
        toy.client(0, *one_client.EXAMPLES),
        weights=[[2, 0], [0, 1]],
        training=one_client.ONE_STEP,
        columns=columns,
        loss=lambda s: tf.reduce_sum(
            tf.reduce_sum(s.columns['of_image'], axis=1) * s.logits[:, 0]
        ),
    )
    np.testing.assert_allclose(output.update.trainable[0], [[20, 0], [20, 0]], atol=1e-5)

  def test_of_several_programs_are_seen_by_both_and_the_last_labels_count(self):
    output = one_client.run(
        toy.client(0, [[1, 0]] * 2, [0, 0]),
        training=one_client.ONE_STEP,
        columns=lambda c: program.Columns({'a': tf.constant([1.0, 2.0])}, labels=c.labels + 5),
        loss=lambda s: tf.reduce_sum(s.logits[:, 0] * s.columns['a'] * s.columns['b']),
        optimizer=program.ClientProgram(
            columns=lambda c: program.Columns(
                {'b': tf.constant([10.0, 100.0])}, labels=c.labels + 9
            )
        ),
        sums=(
            uplink.UplinkSum('labels', np.int32, 0, 100, 'a test'),
            uplink.UplinkSum('columns', np.float32, 0, 1000, 'a test'),
        ),
        final=lambda r: program.Sent(sums={
            'labels': tf.reduce_sum(r.labels),
            'columns': tf.tensordot(r.columns['a'], r.columns['b'], 1),
        }),
    )
    np.testing.assert_allclose(output.update.trainable[0], [[210, 0], [0, 0]])
    self.assertEqual((output.sums['labels'], output.sums['columns']), (18, 210))


class VisitTest(federated_test_case.FederatedTestCase):

  def _counted(self, visit, **more):
    """How often each of seven examples was visited, and what the client sent."""
    def count(s):
      return s.gradients, tf.tensor_scatter_nd_add(
          s.carry, s.positions[:, tf.newaxis], tf.ones_like(s.positions)
      )

    output = one_client.run(
        toy.client(4, *_SEVEN),
        training={'epochs': 2, 'batch_size': 2, 'learning_rate': 0.5},
        columns=lambda c: program.Columns(visit=tf.constant(visit)),
        init=lambda c: tf.zeros_like(c.labels),
        step=count,
        own={'visits': program.PerExample(np.int32(0))},
        sums=(uplink.UplinkSum('steps', np.int32, 0, 100, 'a test'),),
        final=lambda r: program.Sent(own={'visits': r.carry}, sums={'steps': r.steps}),
        **more,
    )
    return output.local.own['visits'].tolist(), output

  @parameterized.parameters(
      # ceil(5 / 2), ceil(1 / 2) and ceil(7 / 2) steps in each of two epochs.
      (_FIVE, [2, 0, 2, 2, 0, 2, 2], 6),
      ([False] * 6 + [True], [0] * 6 + [2], 2),
      ([True] * 7, [2] * 7, 8),
      ([False] * 7, [2] * 7, 8),
  )
  def test_only_these_are_visited_and_all_if_there_are_none(self, visit, visits, steps):
    found, output = self._counted(visit)
    self.assertEqual(found, visits)
    self.assertEqual(output.sums['steps'], steps)
    # The mean is weighted by all examples of the client.
    self.assertEqual((output.weight, output.sums['examples']), (7, 7))

  def test_trains_on_these_in_their_part_of_the_order(self):
    _, output = self._counted(_FIVE)
    x, y = (np.array(v) for v in _SEVEN)
    weights = np.zeros((2, 2))
    for batch in one_client.batches(7, 2, 2, client=4, visit=_FIVE):
      weights -= 0.5 * one_client.gradient(weights, x[batch], y[batch])
    np.testing.assert_allclose(output.update.trainable[0], -weights, atol=1e-6)

  @parameterized.parameters((_FIVE, 5), ([False] * 7, 7))
  def test_what_is_drawn_is_for_these(self, visit, count):
    # Each epoch draws 0 to n - 1, which each step sees once.
    _, output = self._counted(
        visit,
        draw=lambda e: {'drawn': tf.range(e.num_examples)},
        loss=lambda s: tf.reduce_sum(tf.cast(s.columns['drawn'], tf.float32)),
    )
    steps = 2 * -(-count // 2)
    # Of the batches' losses the mean is sent, times the examples.
    self.assertAlmostEqual(
        output.sums['loss'], 7 * 2 * sum(range(count)) / steps, places=4
    )

  def test_what_is_drawn_may_depend_on_columns_of_all_examples(self):
    # Each visited example draws the values of examples that are not visited, in turn.
    value = 10.0 ** np.arange(7, dtype=np.float32)

    def draw(epoch):
      others = tf.boolean_mask(epoch.columns['value'], ~np.array(_FIVE))
      return {'drawn': tf.gather(others, tf.range(epoch.num_examples) % 2)}

    output = one_client.run(
        toy.client(4, *_SEVEN),
        training={'epochs': 1, 'batch_size': 7, 'learning_rate': 1.0},
        columns=lambda c: program.Columns({'value': tf.constant(value)}, visit=tf.constant(_FIVE)),
        draw=draw,
        loss=lambda s: tf.reduce_sum(s.columns['drawn']),
    )
    # Of seven examples the loss is sent.
    self.assertAlmostEqual(output.sums['loss'] / 7, 3 * 10 + 2 * 10_000, places=2)


class StepTest(federated_test_case.FederatedTestCase):

  def test_sees_positions_columns_numbers_and_a_seed_of_its_own(self):
    of_example = np.array([10, 20, 30], np.float32)
    output = one_client.run(
        toy.client(3, *one_client.EXAMPLES),
        seed=5,
        round_num=2,
        training={'epochs': 2, 'batch_size': 1},
        columns=lambda c: program.Columns({'value': tf.constant(of_example)}),
        # The loss sees what the step does.
        loss=lambda s: (
            one_client.cross_entropy(s), (s.positions[0], s.columns['value'][0], s.number, s.seed)
        ),
        step=_logging(
            'number', 'epoch', 'epoch_step', 'seed',
            position=lambda s: s.positions[0],
            label=lambda s: s.labels[0],
            value=lambda s: s.columns['value'][0],
            found_position=lambda s: s.found[0],
            found_value=lambda s: s.found[1],
            found_number=lambda s: s.found[2],
            found_seed=lambda s: s.found[3],
        ),
        **_logged(
            6,
            **dict.fromkeys(
                ('number', 'epoch', 'epoch_step', 'position', 'label', 'found_position',
                 'found_number'), np.int32(-1),
            ),
            **dict.fromkeys(('value', 'found_value'), np.float32(-1)),
            **dict.fromkeys(('seed', 'found_seed'), np.zeros(2, np.int32)),
        ),
    )
    log = output.local.own
    order = np.concatenate(list(one_client.batches(3, 2, 1, seed=5, round_num=2, client=3)))
    self.assertEqual(log['position'].tolist(), order.tolist())
    self.assertEqual(log['label'].tolist(), np.array(one_client.EXAMPLES[1])[order].tolist())
    self.assertEqual(log['value'].tolist(), of_example[order].tolist())
    self.assertEqual(log['number'].tolist(), [0, 1, 2, 3, 4, 5])
    self.assertEqual(log['epoch'].tolist(), [0, 0, 0, 1, 1, 1])
    self.assertEqual(log['epoch_step'].tolist(), [0, 1, 2, 0, 1, 2])
    self.assertLen({tuple(seed) for seed in log['seed'].tolist()}, 6)
    for name in ('position', 'value', 'number', 'seed'):
      np.testing.assert_array_equal(log[f'found_{name}'], log[name])

  @parameterized.parameters({'seed': 1}, {'round_num': 2}, {'client': 1})
  def test_seeds_differ_by_experiment_round_and_client(self, **change):
    def seeds_of(client=0, **more):
      output = one_client.run(
          toy.client(client, *one_client.EXAMPLES), training={'epochs': 2, 'batch_size': 1},
          step=_logging('seed'), **_logged(6, seed=np.zeros(2, np.int32)), **more,
      )
      return {tuple(seed) for seed in output.local.own['seed'].tolist()}

    self.assertEqual(seeds_of(), seeds_of())
    self.assertLen({*seeds_of(), *seeds_of(**change)}, 12)


class ViewTest(federated_test_case.FederatedTestCase):

  def _views(self, augmentation):
    """Views of a batch of three under the seeds (1, 2), (3, 4) and (1, 2), and what is trained on.

    The model's logits are the sums of an image's left and right half.
    """
    x = np.random.default_rng(0).integers(0, 256, (3, 6, 4, 1)).astype(np.uint8)
    kernel = np.stack([np.arange(24) % 4 < 2, np.arange(24) % 4 >= 2], axis=1)
    output = one_client.run(
        client_data.client_dataset(x, np.zeros(3), 0),
        model=toy.image_model((6, 4, 1)),
        weights=(kernel, np.zeros(2)),
        training={
            'epochs': 1, 'batch_size': 3, 'learning_rate': 0.0, 'augmentation': augmentation
        },
        step=_logging(
            'positions', 'logits', 'seed', **{
                name: lambda s, seed=seed: s.view(tf.constant(seed))
                for name, seed in (('one', (1, 2)), ('other', (3, 4)), ('again', (1, 2)))
            }, images=lambda s: s.images, of_step=lambda s: s.view(s.seed),
        ),
        **_logged(
            1, positions=np.zeros(3, np.int32), logits=np.zeros((3, 2), np.float32),
            seed=np.zeros(2, np.int32),
            **dict.fromkeys(
                ('one', 'other', 'again', 'images', 'of_step'), np.zeros((3, 6, 4, 1), np.uint8)
            ),
        ),
    )
    log = {name: v[0] for name, v in output.local.own.items()}
    return x[log['positions']], kernel, log

  def test_is_augmented_anew_from_its_seed(self):
    x, kernel, log = self._views('crop_flip')
    np.testing.assert_array_equal(log['one'], log['again'])
    self.assertTrue((log['one'] != log['other']).any())
    for name, seed in (('one', (1, 2)), ('other', (3, 4))):
      expected = images.crop_and_flip(x, seeds.fold(np.array(seed, np.int32), seeds.VIEW, 0))
      np.testing.assert_array_equal(log[name], expected)
      # It is another one than the step trains on.
      logits = log[name].reshape(3, 24) / 255 @ kernel
      self.assertGreater(np.abs(log['logits'] - logits).max(), 0.01)
    # Which is the step's own.
    trained_on = images.crop_and_flip(x, seeds.fold(log['seed'], seeds.AUGMENT)).numpy()
    np.testing.assert_array_equal(log['images'], trained_on)
    # Under the step's own seed too.
    self.assertTrue((log['of_step'] != trained_on).any())
    np.testing.assert_allclose(
        log['logits'], trained_on.reshape(3, 24) / 255 @ kernel, atol=1e-5
    )

  def test_is_the_image_itself_where_training_does_not_augment(self):
    x, kernel, log = self._views('none')
    np.testing.assert_array_equal(log['one'], x)
    np.testing.assert_array_equal(log['other'], x)
    np.testing.assert_allclose(log['logits'], x.reshape(3, 24) / 255 @ kernel, atol=1e-5)

  def test_has_gradients_through_the_network_that_is_trained(self):
    # The logits of class 1 of thrice (1, 0), (0, 1) and (1, 1): the gradient is thrice the sum.
    def loss(s):
      logits, features = s.forward(3 * s.view(s.seed))
      return tf.reduce_sum(logits[:, 1]) + 0 * tf.reduce_sum(features)

    output = one_client.run(
        toy.client(0, *one_client.EXAMPLES), training=one_client.ONE_STEP, loss=loss
    )
    np.testing.assert_allclose(output.update.trainable[0], [[0, 6], [0, 6]])


class ReceivedModelTest(federated_test_case.FederatedTestCase):

  @parameterized.parameters(False, True)
  def test_stays_as_it_was_received_while_training_goes_on(self, elsewhere):
    # The gradient is 1 in each entry: the weights fall by 1 in each of three epochs.
    received = np.array([[1, 2], [3, 4]], np.float32)
    output = one_client.run(
        toy.client(0, [[1, 0]], [0]),
        weights=received,
        training={'epochs': 3, 'batch_size': 1, 'learning_rate': 1.0},
        start=(
            lambda c: tf.nest.map_structure(lambda w: w + 10, c.weights)
        ) if elsewhere else None,
        step=lambda s: (
            [tf.ones_like(g) for g in s.gradients],
            _written(
                s.carry, s, received=s.received_forward(s.view(s.seed))[0],
                features=s.received_forward(s.view(s.seed))[1],
                trained=s.forward(s.view(s.seed))[0],
            ),
        ),
        uses_received_model=True,
        **_logged(
            3,
            **dict.fromkeys(('received', 'features', 'trained'), np.zeros((1, 2), np.float32)),
        ),
    )
    log = output.local.own
    shift = 10 if elsewhere else 0
    np.testing.assert_allclose(log['received'][:, 0] - shift, [[1, 2]] * 3)
    np.testing.assert_allclose(log['features'][:, 0], [[1, 0]] * 3)
    np.testing.assert_allclose(
        log['trained'][:, 0] - shift, [[1, 2], [0, 1], [-1, 0]], atol=1e-5
    )

  def test_teaches_the_one_that_is_trained(self):
    # A loss between both models' logits, and none of the labels, in NumPy.
    def loss(s):
      logits, _ = s.received_forward(s.view(s.seed))
      return tf.reduce_mean((s.logits - 2 * logits) ** 2) / 2

    received = np.array([[1.0, 2.0], [3.0, 4.0]])
    output = one_client.run(
        toy.client(0, *one_client.EXAMPLES), weights=received,
        training={'epochs': 3, 'batch_size': 2, 'learning_rate': 0.1}, loss=loss,
        uses_received_model=True,
    )
    x, weights = np.array(one_client.EXAMPLES[0]), received
    for batch in one_client.batches(3, 3, 2):
      error = x[batch] @ (weights - 2 * received)
      weights = weights - 0.1 * x[batch].T @ error / error.size
    np.testing.assert_allclose(output.update.trainable[0], received - weights, atol=1e-5)

  def test_normalises_by_the_statistics_that_were_received(self):
    ones = np.ones(2, np.float32)
    # gamma, beta, W; mean, variance: (x - 10) / sqrt(1 + .001).
    output = one_client.run(
        toy.client(0, [[1, 0], [19, 0]], [0, 1]),
        model=toy.linear_model('batch'),
        weights=(ones, 0 * ones, np.eye(2)),
        statistics=(10 * ones, ones),
        training={'epochs': 3, 'batch_size': 2},
        step=_logging(
            received=lambda s: tf.sort(s.received_forward(s.view(s.seed))[0][:, 0]),
        ),
        uses_received_model=True,
        **_logged(3, received=np.zeros(2, np.float32)),
    )
    np.testing.assert_allclose(
        output.local.own['received'], [[-9, 9]] * 3 / np.sqrt(1.001), rtol=1e-5
    )

  def test_is_not_there_where_no_program_asks_for_it(self):
    seen = []

    def loss(s):
      seen.append(s.received_forward)
      return one_client.cross_entropy(s)

    one_client.run(toy.client(0, *one_client.EXAMPLES), loss=loss)
    self.assertEqual(set(seen), {None})


class CarryTest(federated_test_case.FederatedTestCase):

  def test_goes_from_init_through_the_steps_to_final(self):
    # From what all and this client receive, by 2 a + 1 in each of four steps of size 1 and 2.
    def step(s):
      total = 2 * s.carry['total'] + 1
      seen = s.carry['seen'] + tf.size(s.labels)
      return s.gradients, {'total': total, 'seen': seen}

    output = one_client.run(
        toy.client(0, *one_client.EXAMPLES),
        training={'epochs': 2, 'batch_size': 2},
        receives={'first': np.float32(3)},
        init=lambda c: {'total': c.received['first'], 'seen': tf.constant(0)},
        step=step,
        sums=(
            uplink.UplinkSum('total', np.float32, 0, 1000, 'a test'),
            uplink.UplinkSum('seen', np.int32, 0, 1000, 'a test'),
        ),
        final=lambda r: program.Sent(sums=r.carry),
    )
    # 3, 7, 15, 31, 63.
    self.assertEqual((output.sums['total'], output.sums['seen']), (63, 6))

  def test_is_seen_by_the_loss_and_each_program_has_its_own(self):
    # The method's is n in step n, and the gradient; the optimizer's is what it was at first.
    output = one_client.run(
        toy.client(0, [[1, 0]] * 4, [0] * 4),
        training={'epochs': 1, 'batch_size': 1, 'learning_rate': 1.0},
        init=lambda c: tf.constant(0.0),
        loss=lambda s: s.logits[0, 0] * s.carry,
        step=lambda s: (s.gradients, s.carry + 1),
        sums=(uplink.UplinkSum('of_method', np.float32, 0, 9, 'a test'),),
        final=lambda r: program.Sent(sums={'of_method': r.carry}),
        optimizer=program.ClientProgram(
            init=lambda c: tf.fill([2], 7.0),
            own={'of_optimizer': np.zeros(2, np.float32)},
            final=lambda r: program.Sent(own={'of_optimizer': r.carry}),
        ),
    )
    np.testing.assert_allclose(output.update.trainable[0], [[0 + 1 + 2 + 3, 0], [0, 0]])
    self.assertEqual(output.sums['of_method'], 4)
    self.assertEqual(output.local.own['of_optimizer'].tolist(), [7, 7])

  def test_of_an_optimizer_changes_with_the_gradients_of_its_own(self):
    # A sum of gradients, as the program before left them: 2 of the loss, times 5, in two steps.
    output = one_client.run(
        toy.client(0, [[2, 0]] * 2, [0] * 2),
        training={'epochs': 1, 'batch_size': 1, 'learning_rate': 1.0},
        loss=lambda s: s.logits[0, 0],
        step=one_client.in_steps(lambda s: [5 * g for g in s.gradients]),
        optimizer=program.ClientProgram(
            init=lambda c: [tf.zeros_like(w) for w in c.weights.trainable],
            step=lambda s: (
                [g + 1 for g in s.gradients],
                [total + g for total, g in zip(s.carry, s.gradients, strict=True)],
            ),
            own={'total': [np.zeros((2, 2), np.float32)]},
            final=lambda r: program.Sent(own={'total': r.carry}),
        ),
    )
    np.testing.assert_allclose(output.local.own['total'][0], [[20, 0], [0, 0]])
    np.testing.assert_allclose(output.update.trainable[0], [[22, 2], [2, 2]])


class SeveralNetworksTest(federated_test_case.FederatedTestCase):

  @parameterized.parameters(None, 'batch')
  def test_sgd_on_both_is_two_separate_sgds(self, norm):
    model = toy.linear_model(norm)
    draw = np.random.default_rng(0)
    weights = [
        tuple(draw.normal(size=t.shape) for t in model.weights_type.trainable) for _ in range(2)
    ]
    statistics = [
        tuple(draw.random(t.shape).astype(np.float32) for t in model.weights_type.non_trainable)
        for _ in range(2)
    ]
    how = {
        'seed': 3,
        'training': {
            'epochs': 3, 'batch_size': 3, 'learning_rate': 0.3, 'momentum': 0.5,
            'weight_decay': 0.1,
        },
    }
    together = one_client.run(
        toy.client(5, *_SEVEN),
        model=keras_model.several(model, 2, 'first'),
        weights=sum(weights, ()),
        statistics=sum(statistics, ()),
        loss=lambda s: sum(losses.cross_entropy(z, s.labels) for z in s.logits),
        **how,
    )
    alone = [
        one_client.run(toy.client(5, *_SEVEN), model=model, weights=w, statistics=m, **how)
        for w, m in zip(weights, statistics, strict=True)
    ]
    for kind in ('trainable', 'non_trainable'):
      expected = [t for output in alone for t in getattr(output.update, kind)]
      for found, wanted in zip(getattr(together.update, kind), expected, strict=True):
        # To the bit; but what TensorFlow makes of a norm differs in the last one.
        np.testing.assert_allclose(found, wanted, rtol=0, atol=0 if norm is None else 1e-6)
        self.assertGreater(np.abs(found).max(), 0)
    np.testing.assert_allclose(
        together.sums['loss'], sum(output.sums['loss'] for output in alone), rtol=1e-5
    )

  def test_logits_features_and_predictions_are_lists(self):
    kernels = np.array([[1.0, 0], [0, 2]]), np.array([[3.0, 1], [1, 0]])
    kept = {
        name: program.PerExample(np.zeros(2, np.float32))
        for name in ('first', 'second', 'feature', 'last', 'some')
    }

    def final(result):
      first, second = result.client.predict()
      logits, features = result.client.predict_with_features()
      some = result.client.predict(positions=tf.constant([2, 2, 0]))[1]
      return program.Sent(own={
          'first': first, 'second': second, 'feature': features[1], 'last': logits[1], 'some': some,
      })

    # Each step moves both kernels by their number and 1 in all, whatever the example.
    output = one_client.run(
        toy.client(0, *one_client.EXAMPLES),
        model=keras_model.several(toy.linear_model(), 2, 'first'),
        weights=kernels,
        training={'epochs': 1, 'batch_size': 3, 'learning_rate': 1.0},
        loss=lambda s: sum(
            i * tf.reduce_mean(z) * tf.reduce_mean(f)
            for i, (z, f) in enumerate(zip(s.logits, s.features, strict=True))
        ),
        step=one_client.in_steps(lambda s: [0 * g - i for i, g in enumerate(s.gradients)]),
        own=kept,
        final=final,
    )
    x, own = np.array(one_client.EXAMPLES[0]), output.local.own
    np.testing.assert_allclose(own['first'], x @ kernels[0])
    np.testing.assert_allclose(own['second'], x @ (kernels[1] + 1))
    np.testing.assert_allclose(own['last'], own['second'])
    np.testing.assert_allclose(own['some'], own['second'][[2, 2, 0]])
    np.testing.assert_allclose(own['feature'], x)

  def test_one_of_them_can_look_alone_and_trains_alone(self):
    # Logits of the second on other images, twice, times those of the first.
    def loss(s):
      first, second = (network(2 * s.images, True) for network in s.networks)
      return tf.reduce_sum(tf.stop_gradient(first[0]) * second[0]) + tf.reduce_sum(0 * second[1])

    kernels = np.array([[1.0, 0], [0, 2]]), np.array([[3.0, 1], [1, 0]])
    output = one_client.run(
        toy.client(0, *one_client.EXAMPLES),
        model=keras_model.several(toy.linear_model(), 2, 'first'), weights=kernels,
        training=one_client.ONE_STEP, loss=loss,
    )
    x = 2 * np.array(one_client.EXAMPLES[0])
    np.testing.assert_allclose(output.update.trainable[0], np.zeros((2, 2)))
    np.testing.assert_allclose(output.update.trainable[1], x.T @ x @ kernels[0])

  @parameterized.parameters((True, False), (False, True))
  def test_statistics_move_by_what_a_network_is_trained_on(self, *trains):
    model = toy.linear_model('batch')

    def loss(s):
      return tf.add_n([
          tf.reduce_sum(network(3 * s.images, trained)[0])
          for network, trained in zip(s.networks, trains, strict=True)
      ])

    first = ([0, 0], [1, 1]) * 2
    output = one_client.run(
        toy.client(0, *one_client.EXAMPLES),
        model=keras_model.several(model, 2, 'first'), loss=loss, training=one_client.ONE_STEP,
        statistics=[np.array(v, np.float32) for v in first],
    )
    x = np.array(one_client.EXAMPLES[0])
    for i, trained in enumerate(trains):
      mean = 0.1 * x.mean(axis=0)  # The step itself.
      if trained:
        mean = 0.9 * mean + 0.1 * 3 * x.mean(axis=0)
      np.testing.assert_allclose(-output.update.non_trainable[2 * i], mean, rtol=1e-5)

  def test_a_single_network_is_the_one_that_is_trained(self):
    def loss(s):
      [network] = s.networks
      return tf.reduce_sum(network(2 * s.images, True)[0])

    output = one_client.run(
        toy.client(0, *one_client.EXAMPLES), training=one_client.ONE_STEP, loss=loss
    )
    np.testing.assert_allclose(output.update.trainable[0], [[4, 4], [4, 4]])

  def test_received_networks_are_all_there(self):
    # The second is taught by the first as it was received: twice its logits.
    def loss(s):
      logits, _ = s.received_forward(s.view(s.seed))
      return tf.reduce_sum(s.logits[1] * logits[0])

    kernels = np.array([[1.0, 0], [0, 2]]), np.array([[3.0, 1], [1, 0]])
    output = one_client.run(
        toy.client(0, *one_client.EXAMPLES),
        model=keras_model.several(toy.linear_model(), 2, 'first'), weights=kernels,
        training={'epochs': 2, 'batch_size': 3, 'learning_rate': 1.0}, loss=loss,
        uses_received_model=True,
    )
    x = np.array(one_client.EXAMPLES[0])
    np.testing.assert_allclose(output.update.trainable[0], np.zeros((2, 2)))
    np.testing.assert_allclose(output.update.trainable[1], 2 * x.T @ x @ kernels[0])


_OWN = {
    'vectors': program.PerExample(np.array([1, 2], np.float32)),
    'labels': program.GivenLabels(),
    'flags': program.PerExample(np.bool_(True)),
    'structure': {'matrix': np.eye(2, dtype=np.float32), 'pair': [np.int32(3), np.int32(4)]},
}


class OwnStateTest(federated_test_case.FederatedTestCase):

  def test_types_and_first_values(self):
    self.assertEqual(
        str(program.own_type(_OWN)),
        '<flags=bool[?],labels=int32[?],structure=<matrix=float32[2,2],pair=<int32,int32>>,'
        'vectors=float32[?,2]>',
    )
    first = {
        name: program.initial_own(v, np.array([5, 0, 6], np.int64))
        for name, v in _OWN.items()
    }
    np.testing.assert_array_equal(first['vectors'], [[1, 2]] * 3)
    self.assertEqual((first['labels'].tolist(), first['labels'].dtype), ([5, 0, 6], np.int32))
    self.assertEqual(first['flags'].tolist(), [True] * 3)
    self.assertEqual(first['structure']['pair'], [3, 4])

  @parameterized.parameters((0.1, True), (1e38, False))
  def test_is_what_final_says_unless_the_update_is_not_finite(self, learning_rate, kept):
    def final(result):
      own = result.client.own
      return program.Sent(own={
          'vectors': own['vectors'] + tf.cast(result.labels, tf.float32)[:, tf.newaxis],
          'labels': own['labels'] + 1,
          'structure': {
              'matrix': 2 * own['structure']['matrix'],
              'pair': [v + 10 for v in own['structure']['pair']],
          },
      })

    output = one_client.run(
        toy.client(0, [[1e3, 1e3], [1e3, -1e3]], [0, 1]),
        training={'epochs': 2, 'batch_size': 2, 'learning_rate': learning_rate},
        own=_OWN, final=final,
    )
    self.assertEqual(output.sums['rejected'], not kept)
    own = output.local.own
    np.testing.assert_array_equal(own['vectors'], [[1, 2], [2, 3] if kept else [1, 2]])
    self.assertEqual(own['labels'].tolist(), [1, 2] if kept else [0, 1])
    # What is not named stays.
    self.assertEqual(own['flags'].tolist(), [True, True])
    np.testing.assert_array_equal(own['structure']['matrix'], np.eye(2) * (2 if kept else 1))
    self.assertEqual(own['structure']['pair'], [13, 14] if kept else [3, 4])

  @parameterized.parameters(1, 0)
  def test_an_update_that_final_breaks_is_left_out_as_one_that_diverged(self, length):
    # Normalised where there is nothing to normalise: all labels are right and nothing is learned.
    def final(result):
      update = tf.nest.map_structure(lambda t: length * t / tf.norm(0 * t), result.update)
      own = result.client.own['vectors']
      return program.Sent(update=update, weight=result.num_examples, own={'vectors': own + 1})

    output = one_client.run(toy.client(0, *one_client.EXAMPLES), own=_OWN, final=final)
    np.testing.assert_array_equal(output.update.trainable[0], np.zeros((2, 2)))
    self.assertEqual((output.weight, output.sums['examples']), (0, 0))
    self.assertEqual((output.sums['loss'], output.sums['rejected']), (0, 1))
    np.testing.assert_array_equal(output.local.own['vectors'][0], [1, 2])

  def test_of_a_client_without_examples(self):
    output = one_client.run(toy.client(0, [], []), own=_OWN)
    self.assertEqual(output.local.own['vectors'].shape, (0, 2))
    self.assertEqual(output.local.own['labels'].shape, (0,))


class MessagesTest(federated_test_case.FederatedTestCase):

  def test_are_seen_before_in_and_after_the_steps(self):
    # Each of two steps moves by 3 of the message times 5 of the column that is made of it.
    output = one_client.run(
        toy.client(0, [[1, 0]] * 2, [0] * 2),
        training={'epochs': 1, 'batch_size': 1, 'learning_rate': 1.0},
        messages=(
            uplink.Message('pair', np.float32, 'a test', shape=(2,)),
            uplink.Message('number', np.int32, 'a test'),
        ),
        addressed={'pair': np.array([3, 4], np.float32), 'number': np.int32(7)},
        columns=lambda c: program.Columns({'one': tf.fill([2], c.messages['pair'][1] + 1)}),
        loss=lambda s: s.logits[0, 0] * s.client.messages['pair'][0] * s.columns['one'][0],
        sums=(uplink.UplinkSum('number', np.int32, 0, 100, 'a test'),),
        final=lambda r: program.Sent(sums={'number': r.client.messages['number']}),
    )
    np.testing.assert_allclose(output.update.trainable[0], [[30, 0], [0, 0]])
    self.assertEqual(output.sums['number'], 7)


class DeclaredTest(absltest.TestCase):

  def test_is_what_both_declare(self):
    a, b = (
        program.ClientProgram(
            own={name: np.float32(0)},
            receives={name: np.int32(1)},
            messages=(uplink.Message(name, np.float32, 'a test'),),
            sums=(uplink.UplinkSum(name, np.float32, 0, 1, 'a test'),),
            reports=(uplink.UplinkReport(name, np.float32, 0, 1, 'a test'),),
        )
        for name in 'ab'
    )
    declared = program.declared((a, b))
    self.assertEqual(declared.own, {'a': 0, 'b': 0})
    self.assertEqual(declared.receives, {'a': 1, 'b': 1})
    for sent in (declared.messages, declared.sums, declared.reports):
      self.assertEqual([value.name for value in sent], ['a', 'b'])

  def test_one_name_of_two_programs_is_refused(self):
    for what, value, message in (
        ('own', {'twin': np.float32(0)}, "two programs of a client have a 'twin'"),
        ('receives', {'twin': np.float32(0)}, "two programs of a client have a 'twin'"),
        ('messages', (uplink.Message('twin', np.float32, 'a test'),), 'declared twice: twin, twin'),
        ('sums', (uplink.UplinkSum('twin', np.float32, 0, 1, 'a test'),), 'twice: twin, twin'),
        ('reports', (uplink.UplinkReport('twin', np.int32, 0, 1, 'a test'),), 'twice: twin, twin'),
    ):
      twin = program.ClientProgram(**{what: value})
      with self.subTest(what), self.assertRaisesRegex(ValueError, message):
        program.declared((twin, twin))


if __name__ == '__main__':
  absltest.main()
