"""Tests of the composed rounds."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tff_noise import types
from tff_noise.federated import aggregation
from tff_noise.federated import client_work
from tff_noise.federated import compose
from tff_noise.federated import disclosure
from tff_noise.federated import optimizer
from tff_noise.federated import per_client
from tff_noise.federated import uplink
from tff_noise.models import losses

_ONE_STEP = types.LocalTraining(epochs=1, batch_size=10, learning_rate=1.0)


def _cross_entropy(inputs):
  return losses.cross_entropy(inputs.logits, inputs.labels)


def _counting_work():
  """Each client keeps how often it took part, and sends its number of steps."""
  return client_work.ClientWork(
      _cross_entropy,
      _ONE_STEP,
      local_type=tff.TensorType(np.int32),
      sums=(uplink.UplinkSum('steps', np.int32, 0, 1000, 'a test'),),
      finish=lambda i: client_work.Finished(i.local + 1, {'steps': i.steps}),
  )


def _own(*values):
  """Clients' states that only a method has."""
  return [uplink.ClientState(np.int32(v)) for v in values]


class StatelessTest(federated_test_case.FederatedTestCase):

  def test_is_a_learning_process_with_the_documented_types(self):
    work = client_work.ClientWork(_cross_entropy, hparams={'scale': np.float32(1)})
    result = compose.build_round_process(toy.linear_model(), work, seed=0)
    process = result.process
    self.assertIsInstance(process, tff.learning.templates.LearningProcess)
    state = (
        '<global_model_weights=<trainable=<float32[2,2]>,non_trainable=<>>,distributor=<>,'
        'client_work=<round_num=int32,hparams=<scale=float32>>,'
        'aggregator=<value_sum_process=<>,weight_sum_process=<>>,'
        'finalizer=<learning_rate=float32>>@SERVER'
    )
    data = '{<x=float32[?,2],y=int32[?],client=int32>*}@CLIENTS'
    metrics = (
        '<client_work=<train=<loss=float32,examples=float32,rejected=int32>>,'
        'aggregator=<mean_value=<>,mean_weight=<>>>@SERVER'
    )
    self.assertEqual(str(process.initialize.type_signature), f'( -> {state})')
    self.assertEqual(
        str(process.next.type_signature),
        f'(<state={state},data={data}> -> <state={state},metrics={metrics}>)',
    )
    self.assertEqual(str(process.get_hparams.type_signature.result), '<scale=float32>')

  def test_one_round_of_two_clients_by_hand(self):
    process = compose.build_round_process(
        toy.linear_model(), client_work.ClientWork(_cross_entropy, _ONE_STEP), seed=0
    ).process
    # Client 0: gradient [[-.5, .5], [0, 0]], one example. Client 1: two equal examples of class 1
    # at x = (0, 2), gradient [[0, 0], [1, -1]]. Mean with weights 1/3 and 2/3.
    data = [toy.client(0, [[1, 0]], [0]), toy.client(1, [[0, 2], [0, 2]], [1, 1])]
    output = process.next(process.initialize(), data)
    weights = process.get_model_weights(output.state).trainable[0]
    np.testing.assert_allclose(weights, [[1 / 6, -1 / 6], [-2 / 3, 2 / 3]], atol=1e-6)
    train = output.metrics['client_work']['train']
    self.assertAlmostEqual(train['loss'], np.log(2), places=5)
    self.assertEqual(train['examples'], 3)
    self.assertEqual(output.state.client_work['round_num'], 2)

  def test_secure_sum_gives_the_same_round(self):
    def weights(aggregate):
      process = compose.build_round_process(
          toy.linear_model('batch'),
          client_work.ClientWork(_cross_entropy, _ONE_STEP),
          seed=0,
          aggregation=aggregate,
      ).process
      state = process.initialize()
      for _ in range(3):
        state = process.next(
            state, [toy.client(0, [[1, 0], [2, 1]], [0, 1]), toy.client(1, [[0, 2]], [1])]
        ).state
      return tf.nest.flatten(process.get_model_weights(state).trainable)

    secure = aggregation.secure_weighted_mean(update_bound=10.0, max_examples=2)
    for plain, quantized in zip(weights(None), weights(secure), strict=True):
      np.testing.assert_allclose(plain, quantized, atol=1e-5)

  def test_client_that_diverged_is_left_out_and_counted(self):
    process = compose.build_round_process(
        toy.linear_model(), client_work.ClientWork(_cross_entropy, _ONE_STEP), seed=0
    ).process
    data = [toy.client(0, [[1, 0]], [0]), toy.client(1, [[np.nan, 0]], [0])]
    output = process.next(process.initialize(), data)
    self.assertEqual(output.metrics['client_work']['train']['rejected'], 1)
    weights = process.get_model_weights(output.state).trainable[0]
    np.testing.assert_allclose(weights, [[0.5, -0.5], [0, 0]], atol=1e-6)

  def test_round_without_any_example_changes_nothing(self):
    process = compose.build_round_process(
        toy.linear_model(), client_work.ClientWork(_cross_entropy, _ONE_STEP), seed=0
    ).process
    output = process.next(process.initialize(), [toy.client(0, [], [])])
    weights = process.get_model_weights(output.state).trainable[0]
    np.testing.assert_array_equal(weights, np.zeros((2, 2)))
    self.assertEqual(output.metrics['client_work']['train']['loss'], 0)

  def test_hyper_parameters_set_at_the_server_reach_the_clients(self):
    work = client_work.ClientWork(
        lambda i: i.logits[0, 0] * i.hparams['scale'],
        _ONE_STEP,
        hparams={'scale': np.float32(1)},
    )
    process = compose.build_round_process(toy.linear_model(), work, seed=0).process
    state = process.set_hparams(
        process.initialize(), collections.OrderedDict(scale=np.float32(5))
    )
    state = process.next(state, [toy.client(0, [[1, 0]], [0])]).state
    self.assertAlmostEqual(process.get_model_weights(state).trainable[0][0, 0], -5, places=5)
    self.assertEqual(process.get_hparams(state)['scale'], 5)

  def test_weights_can_be_set(self):
    process = compose.build_round_process(
        toy.linear_model(), client_work.ClientWork(_cross_entropy), seed=0
    ).process
    weights = tff.learning.models.ModelWeights([np.ones((2, 2), np.float32)], [])
    state = process.set_model_weights(process.initialize(), weights)
    np.testing.assert_array_equal(process.get_model_weights(state).trainable[0], np.ones((2, 2)))
    self.assertEqual(state.client_work['round_num'], 1)

  @parameterized.parameters('batch', 'group')
  def test_norms_train_as_in_keras(self, norm):
    model = toy.linear_model(norm)
    training = types.LocalTraining(epochs=2, batch_size=10, learning_rate=0.1)
    process = compose.build_round_process(
        model, client_work.ClientWork(_cross_entropy, training), seed=0
    ).process
    x, y = np.array([[1, 2], [3, -1], [0, 5]], np.float32), np.array([0, 1, 1])
    state = process.next(process.initialize(), [toy.client(0, x.tolist(), y.tolist())]).state

    # The same full-batch steps, eagerly, by Keras itself.
    network = tf.keras.Model.from_config(model.config)
    for _ in range(2):
      with tf.GradientTape() as tape:
        loss = losses.cross_entropy(network(x, training=True)[0], y)
      gradients = tape.gradient(loss, network.trainable_variables)
      for variable, gradient in zip(network.trainable_variables, gradients, strict=True):
        variable.assign_sub(0.1 * gradient)
    weights = process.get_model_weights(state)
    for expected, found in zip(
        [*network.trainable_variables, *network.non_trainable_variables],
        [*weights.trainable, *weights.non_trainable],
        strict=True,
    ):
      np.testing.assert_allclose(expected.numpy(), found, atol=1e-6)

  def test_batch_statistics_are_averaged_by_examples(self):
    model = toy.linear_model('batch')
    training = types.LocalTraining(epochs=1, batch_size=10, learning_rate=0.1)
    process = compose.build_round_process(
        model,
        client_work.ClientWork(_cross_entropy, training),
        seed=0,
        optimizer=optimizer.fed_avg(model.weights_type, 0.5),
    ).process
    data = [toy.client(0, [[4, 0]], [0]), toy.client(1, [[8, 0]] * 3, [0] * 3)]
    state = process.next(process.initialize(), data).state
    # Momentum .9: the moving means are .4 and .8; the server's step size does not touch them.
    moving_mean = process.get_model_weights(state).non_trainable[0]
    np.testing.assert_allclose(moving_mean, [0.25 * 0.4 + 0.75 * 0.8, 0], atol=1e-6)


class StatefulTest(federated_test_case.FederatedTestCase):

  def test_weights_and_hyper_parameters_can_be_set(self):
    work = _counting_work()._replace(hparams={'scale': np.float32(1)})
    process = compose.build_round_process(toy.linear_model(), work, seed=0).process
    weights = tff.learning.models.ModelWeights([np.ones((2, 2), np.float32)], [])
    state = process.set_model_weights(process.initialize(), weights)
    state = process.set_hparams(state, collections.OrderedDict(scale=np.float32(5)))
    np.testing.assert_array_equal(process.get_model_weights(state).trainable[0], np.ones((2, 2)))
    self.assertEqual(process.get_hparams(state)['scale'], 5)
    self.assertEqual(state.client_work['round_num'], 1)

  def test_three_arguments_and_a_client_placed_result(self):
    result = compose.build_round_process(toy.linear_model(), _counting_work(), seed=0)
    parameter = result.process.next.type_signature.parameter
    self.assertLen(parameter, 3)
    self.assertEqual(str(parameter[2]), '{<own=int32,optimizer=<>>}@CLIENTS')
    self.assertEqual(
        str(result.process.next.type_signature.result.local),
        '{<client=int32,own=int32,optimizer=<>>}@CLIENTS',
    )

  def test_states_come_back_with_their_clients_ids(self):
    process = compose.build_round_process(toy.linear_model(), _counting_work(), seed=0).process
    data = [toy.client(i, [[1, i]] * (i + 1), [0] * (i + 1)) for i in range(6)]
    state = process.initialize()
    local = _own(*(100 * i for i in range(6)))
    for _ in range(5):
      output = process.next(state, data, local)
      kept = uplink.by_client(output.local[::-1], range(6))
      state, local = output.state, [kept[i] for i in range(6)]
    self.assertEqual([int(v.own) for v in local], [100 * i + 5 for i in range(6)])

  def test_states_of_other_clients_are_refused(self):
    returned = [uplink.ReturnedState(i, 10 * i, ()) for i in (2, 1)]
    self.assertEqual(
        uplink.by_client(returned, [1, 2]),
        {1: uplink.ClientState(10), 2: uplink.ClientState(20)},
    )
    for others in ([1], [1, 2, 3], [1, 3], [1, 1]):
      with self.assertRaisesRegex(ValueError, r'states of clients \[1, 2\], expected'):
        uplink.by_client(returned, others)

  def test_local_state_is_no_uplink(self):
    result = compose.build_round_process(toy.linear_model(), _counting_work(), seed=0)
    self.assertEqual(
        [f.name for f in result.fields],
        ['update', 'update weight', 'loss', 'examples', 'rejected', 'steps'],
    )
    self.assertLen(disclosure.client_to_server_edges(result.process.next), 6)

  def test_own_sums_are_metrics(self):
    process = compose.build_round_process(toy.linear_model(), _counting_work(), seed=0).process
    data = [toy.client(i, [[1, i]], [0]) for i in range(3)]
    output = process.next(process.initialize(), data, _own(0, 0, 0))
    self.assertEqual(output.metrics['client_work']['train']['steps'], 3)

  def test_trains_as_the_stateless_process_does(self):
    data = [toy.client(0, [[1, 0], [2, 1]], [0, 1]), toy.client(1, [[0, 2]], [1])]
    stateful = compose.build_round_process(toy.linear_model(), _counting_work(), seed=0).process
    stateless = compose.build_round_process(
        toy.linear_model(), client_work.ClientWork(_cross_entropy, _ONE_STEP), seed=0
    ).process
    first = stateful.next(stateful.initialize(), data, _own(0, 0)).state
    second = stateless.next(stateless.initialize(), data).state
    np.testing.assert_array_equal(
        stateful.get_model_weights(first).trainable[0],
        stateless.get_model_weights(second).trainable[0],
    )


def _first_logit(inputs):
  """A loss whose gradient is the mean input for class 0, whatever the weights."""
  return tf.reduce_mean(inputs.logits[:, 0])


# Gradients [[1, 0], [0, 0]] and [[5, 0], [0, 0]], with weights 1/4 and 3/4: their mean is 4.
_ONE_AND_FIVE = (
    toy.client(0, [[1, 0]], [0]), toy.client(1, [[5, 0]] * 3, [0] * 3)
)


def _shifting_optimizer():
  """The server sends a number that clients add to their gradients, and learns the next from sums.

  It goes half of the mean update, and the number grows by twice the examples over the examples.
  """
  def step(state, inputs):
    state = collections.OrderedDict(
        shift=state['shift'] + inputs.sums['twice'] / inputs.sums['examples'],
        seen=state['seen'] + inputs.sums['examples'],
    )
    return state, tf.nest.map_structure(lambda w, u: w - u / 2, inputs.weights, inputs.update)

  return optimizer.FederatedOptimizer(
      optimizer.ServerRule(
          lambda: collections.OrderedDict(shift=tf.constant(0.0), seen=tf.constant(0.0)),
          step,
          broadcast=lambda state: collections.OrderedDict(number=state['shift']),
      ),
      optimizer.ClientRule(
          gradients=lambda i: [g + i.received['number'] for g in i.gradients],
          send=lambda r: optimizer.Sent(r.update, r.state, {'twice': 2 * r.num_examples}),
          sums=(uplink.UplinkSum('twice', np.float32, 0, 100, 'a test'),),
      ),
  )


def _remembering_optimizer(model):
  """FedAvg whose clients add to their gradients a number, which grows by 100 a round."""
  return optimizer.fed_avg(model.weights_type)._replace(
      client=optimizer.ClientRule(
          initial_state=np.float32(0),
          gradients=lambda i: [g + i.state for g in i.gradients],
          send=lambda r: optimizer.Sent(r.update, r.state + 100),
      )
  )


class OptimizerTest(federated_test_case.FederatedTestCase):

  def test_fed_avg_if_none_is_given(self):
    model = toy.linear_model('batch')
    weights = []
    for given in (None, optimizer.fed_avg(model.weights_type)):
      process = compose.build_round_process(
          model, client_work.ClientWork(_cross_entropy, _ONE_STEP), seed=0, optimizer=given
      ).process
      state = process.next(process.initialize(), list(_ONE_AND_FIVE)).state
      weights.append(process.get_model_weights(state))
    for first, second in zip(*map(tf.nest.flatten, weights), strict=True):
      np.testing.assert_array_equal(first, second)
    # The step is one: weights are the mean of the clients' steps of half their input.
    np.testing.assert_allclose(weights[0].non_trainable[0], [0.1 * 4, 0], atol=1e-6)

  @parameterized.parameters(None, 'secure')
  def test_three_rounds_of_a_server_with_state_broadcast_and_sums_by_hand(self, kind):
    aggregate = None
    if kind == 'secure':
      aggregate = aggregation.secure_weighted_mean(update_bound=100.0, max_examples=3)
    result = compose.build_round_process(
        toy.linear_model(), client_work.ClientWork(_first_logit, _ONE_STEP), seed=0,
        optimizer=_shifting_optimizer(), aggregation=aggregate,
    )
    process = result.process
    # Nobody keeps anything.
    self.assertIsInstance(process, tff.learning.templates.LearningProcess)
    state = process.initialize()
    self.assertEqual(dict(state.finalizer), {'shift': 0, 'seen': 0})
    for expected, shift, seen in (
        # Half of [[4, 0], [0, 0]], of that plus 2 in every entry, and plus 4.
        ([[-2, 0], [0, 0]], 2, 4),
        ([[-5, -1], [-1, -1]], 4, 8),
        ([[-9, -3], [-3, -3]], 6, 12),
    ):
      output = process.next(state, list(_ONE_AND_FIVE))
      state = output.state
      weights = process.get_model_weights(state).trainable[0]
      np.testing.assert_allclose(weights, expected, atol=1e-5)
      self.assertAlmostEqual(state.finalizer['shift'], shift, places=4)
      self.assertAlmostEqual(state.finalizer['seen'], seen, places=4)
      self.assertAlmostEqual(output.metrics['client_work']['train']['twice'], 8, places=4)

  def test_what_the_optimizer_sends_is_declared_and_counted(self):
    result = compose.build_round_process(
        toy.linear_model(), client_work.ClientWork(_first_logit, _ONE_STEP), seed=0,
        optimizer=_shifting_optimizer(),
    )
    self.assertEqual(
        [f.name for f in result.fields],
        ['update', 'update weight', 'loss', 'examples', 'rejected', 'twice'],
    )
    self.assertEqual(result.uplink_bytes, 16 + 4 + 4 * 4)
    with self.assertRaisesRegex(disclosure.UndeclaredUplinkError, 'sent, not declared'):
      disclosure.check(result.process.next, result.fields[:-1])
    # Four weights, the number of the round, and the optimizer's.
    self.assertEqual(result.broadcast_bytes, 16 + 4 + 4)
    self.assertEqual(result.optimizer.client.initial_state, ())

  @parameterized.parameters(None, 'secure')
  def test_another_structure_than_the_models_is_averaged_and_declared(self, kind):
    aggregate = None
    if kind == 'secure':
      aggregate = aggregation.secure_weighted_mean(update_bound=100.0, max_examples=3)

    def step(state, inputs):
      # The first row of the weights goes against the direction, the second by the size.
      change = tf.stack([inputs.update['direction'], tf.repeat(inputs.update['size'], 2)])
      weights = inputs.weights
      return state, tff.learning.models.ModelWeights(
          [weights.trainable[0] - change], weights.non_trainable
      )

    result = compose.build_round_process(
        toy.linear_model(), client_work.ClientWork(_first_logit, _ONE_STEP), seed=0,
        optimizer=optimizer.FederatedOptimizer(
            optimizer.ServerRule(lambda: (), step),
            optimizer.ClientRule(
                send=lambda r: optimizer.Sent(
                    collections.OrderedDict(
                        direction=r.update.trainable[0][0], size=r.num_examples
                    ),
                    r.state,
                )
            ),
        ),
        aggregation=aggregate,
    )
    process = result.process
    state = process.next(process.initialize(), list(_ONE_AND_FIVE)).state
    # (1 * 1 + 3 * 5) / 4 and (1 * 1 + 3 * 3) / 4.
    weights = process.get_model_weights(state).trainable[0]
    np.testing.assert_allclose(weights, [[-4, 0], [-2.5, -2.5]], atol=1e-5)

    self.assertLen(disclosure.client_to_server_edges(process.next), len(result.fields))
    plain = '<direction=float32[2],size=float32>'
    if kind is None:
      self.assertEqual((result.fields[0].type_spec, result.fields[0].num_bytes), (plain, 12))
    else:
      tff.test.assert_not_contains_unsecure_aggregation(process.next)
    with self.assertRaisesRegex(disclosure.UndeclaredUplinkError, 'sent, not declared'):
      disclosure.check(process.next, result.fields[1:])

  @parameterized.parameters(
      # Gradients [0, 0] are 1 + m of a method's number m, 0 and 1, plus the optimizer's, 10 and 20,
      # which is all of the other entries; then the numbers are 1, 2 and 110, 120.
      (True, False, 'own=int32,optimizer=<>', 1.5, 0, 4, 0),
      (False, True, 'own=<>,optimizer=float32', 16, 15, 16 + 116, 15 + 115),
      (True, True, 'own=int32,optimizer=float32', 16.5, 15, 16.5 + 117.5, 15 + 115),
  )
  def test_clients_keep_what_method_and_optimizer_keep(
      self, of_method, of_optimizer, local_type, first, others, second, others_second
  ):
    model = toy.linear_model()
    work = client_work.ClientWork(_first_logit, _ONE_STEP)
    if of_method:
      work = work._replace(
          loss=lambda i: _first_logit(i) * (1 + tf.cast(i.local, tf.float32)),
          local_type=tff.TensorType(np.int32),
          finish=lambda i: client_work.Finished(i.local + 1),
      )
    result = compose.build_round_process(
        model, work, seed=0, optimizer=_remembering_optimizer(model) if of_optimizer else None
    )
    process = result.process
    self.assertIsInstance(process, compose.StatefulProcess)
    self.assertEqual(str(process.local_type), f'<{local_type}>')
    self.assertEqual(
        str(process.next.type_signature.result.local), f'{{<client=int32,{local_type}>}}@CLIENTS'
    )
    self.assertEqual(result.optimizer.client.initial_state, 0 if of_optimizer else ())
    # It is no uplink.
    self.assertEqual(
        [f.name for f in result.fields], ['update', 'update weight', 'loss', 'examples', 'rejected']
    )
    self.assertLen(disclosure.client_to_server_edges(process.next), 5)

    data = [toy.client(i, [[1, 0]], [0]) for i in range(2)]
    local = [
        uplink.ClientState(
            np.int32(i) if of_method else (), np.float32(10 * (i + 1)) if of_optimizer else ()
        )
        for i in range(2)
    ]
    state = process.initialize()
    for total, rest in ((first, others), (second, others_second)):
      output = process.next(state, data, local)
      kept = uplink.by_client(output.local, range(2))
      state, local = output.state, [kept[i] for i in range(2)]
      weights = process.get_model_weights(state).trainable[0]
      np.testing.assert_allclose(weights, [[-total, -rest], [-rest, -rest]], rtol=1e-5)
    for i, kept in enumerate(local):
      self.assertEqual(kept.own, i + 2 if of_method else ())
      self.assertEqual(kept.optimizer, 10 * (i + 1) + 200 if of_optimizer else ())

  def test_sum_that_is_not_declared_stays_at_the_client(self):
    model = toy.linear_model()
    result = compose.build_round_process(
        model, client_work.ClientWork(_first_logit, _ONE_STEP), seed=0,
        optimizer=optimizer.fed_avg(model.weights_type)._replace(
            client=optimizer.ClientRule(
                send=lambda r: optimizer.Sent(r.update, r.state, {'twice': 2 * r.num_examples})
            )
        ),
    )
    self.assertLen(disclosure.client_to_server_edges(result.process.next), 5)
    output = result.process.next(result.process.initialize(), list(_ONE_AND_FIVE))
    self.assertNotIn('twice', output.metrics['client_work']['train'])

  def test_diverged_client_does_not_touch_what_others_send(self):
    process = compose.build_round_process(
        toy.linear_model(), client_work.ClientWork(_first_logit, _ONE_STEP), seed=0,
        optimizer=_shifting_optimizer(),
    ).process
    data = [*_ONE_AND_FIVE, toy.client(2, [[np.nan, 0]] * 2, [0] * 2)]
    state = process.next(process.initialize(), data).state
    weights = process.get_model_weights(state).trainable[0]
    np.testing.assert_allclose(weights, [[-2, 0], [0, 0]], atol=1e-6)
    self.assertEqual(dict(state.finalizer), {'shift': 2, 'seen': 4})


def _reporting_work(**changes):
  """Each client reports its number of steps and the norm of its update."""
  return client_work.ClientWork(
      _cross_entropy,
      types.LocalTraining(epochs=1, batch_size=1, learning_rate=1.0),
      reports=(
          uplink.UplinkReport('steps', np.int32, 0, 1000, 'a test'),
          uplink.UplinkReport('norm', np.float32, 0.0, 1e6, 'a test'),
      ),
      finish=lambda i: client_work.Finished(
          reports={'steps': i.steps, 'norm': tf.linalg.global_norm(i.update.trainable)}
      ),
  )._replace(**changes)


class ReportsTest(federated_test_case.FederatedTestCase):

  def test_are_metrics_by_client(self):
    process = compose.build_round_process(toy.linear_model(), _reporting_work(), seed=0).process
    # At W = 0 one step on x moves the weights by +-x / 2: its norm is |x| / sqrt(2).
    data = [toy.client(8, [[3, 4]], [0]), toy.client(2, [[0, 0]] * 3, [1] * 3)]
    output = process.next(process.initialize(), data)
    reports = per_client.in_order(output.metrics['reports'], np.array([8, 2]))
    self.assertEqual(reports['steps'].tolist(), [1, 3])
    np.testing.assert_allclose(reports['norm'], [5 / np.sqrt(2), 0], atol=1e-5)
    self.assertEqual(output.metrics['client_work']['train']['examples'], 4)

  def test_are_declared(self):
    result = compose.build_round_process(toy.linear_model(), _reporting_work(), seed=0)
    self.assertEqual(result.fields[-1:], per_client.fields(_reporting_work().reports))
    self.assertIs(result.fields[-1].disclosure, uplink.Disclosure.PER_CLIENT)
    # An update and its weight, three sums; and id, steps and norm.
    self.assertEqual(result.uplink_bytes, 16 + 4 + 3 * 4 + 3 * 4)
    with self.assertRaisesRegex(disclosure.UndeclaredUplinkError, 'sent, not declared'):
      disclosure.check(result.process.next, result.fields[:-1])

  def test_what_is_not_declared_stays_at_the_client(self):
    work = _reporting_work(reports=())
    result = compose.build_round_process(toy.linear_model(), work, seed=0)
    self.assertLen(disclosure.client_to_server_edges(result.process.next), 5)
    output = result.process.next(result.process.initialize(), [toy.client(0, [[1, 0]], [0])])
    self.assertNotIn('reports', output.metrics)

  def test_other_than_declared_does_not_build(self):
    work = _reporting_work(reports=_reporting_work().reports[:1])
    with self.assertRaisesRegex(disclosure.UndeclaredUplinkError, 'sent, not declared'):
      compose.build_round_process(toy.linear_model(), work, seed=0)

  def test_do_not_change_the_training(self):
    data = [toy.client(0, [[1, 0], [2, 1]], [0, 1]), toy.client(1, [[0, 2]], [1])]
    weights = []
    for work in (_reporting_work(), _reporting_work(reports=(), finish=None)):
      process = compose.build_round_process(toy.linear_model(), work, seed=0).process
      state = process.next(process.initialize(), data).state
      weights.append(process.get_model_weights(state).trainable[0])
    np.testing.assert_array_equal(*weights)


class HandOverTest(federated_test_case.FederatedTestCase):

  def _process(self, work, momentum=None):
    model = toy.linear_model()
    step = tff.learning.optimizers.build_sgdm(1.0, momentum)
    return compose.build_round_process(
        model, work, seed=0,
        optimizer=optimizer.FederatedOptimizer(optimizer.apply_update(step, model.weights_type)),
    ).process

  def _after_two_rounds(self, process, *local):
    state = process.initialize()
    for _ in range(2):
      state = process.next(state, [toy.client(0, [[1, 2]], [0])], *local).state
    return state

  def test_keeps_model_and_number_of_the_round(self):
    first = self._process(client_work.ClientWork(_cross_entropy, _ONE_STEP))
    second = self._process(_counting_work())
    state = self._after_two_rounds(first)
    handed = compose.hand_over(second, state)
    np.testing.assert_array_equal(
        second.get_model_weights(handed).trainable[0], first.get_model_weights(state).trainable[0]
    )
    self.assertEqual(handed.client_work['round_num'], 3)
    # It runs, and goes on counting.
    output = second.next(handed, [toy.client(0, [[1, 2]], [0])], _own(0))
    self.assertEqual(output.state.client_work['round_num'], 4)

  def test_the_same_work_goes_on_as_if_nothing_had_happened(self):
    # Two steps in an epoch: their order is a function of the round.
    work = client_work.ClientWork(
        _cross_entropy, types.LocalTraining(epochs=2, batch_size=1, learning_rate=0.3)
    )
    process = self._process(work)
    data = [toy.client(0, [[1, 2], [2, 0], [1, 1]], [0, 1, 1])]
    state = process.next(process.initialize(), data).state
    expected = process.next(state, data).state
    found = process.next(compose.hand_over(self._process(work), state), data).state
    np.testing.assert_array_equal(
        found.global_model_weights.trainable[0], expected.global_model_weights.trainable[0]
    )

  def test_optimizer_state_and_hyper_parameters_are_new(self):
    work = client_work.ClientWork(
        _cross_entropy, _ONE_STEP, hparams={'scale': np.float32(7)}
    )
    process = self._process(work, momentum=0.9)
    state = self._after_two_rounds(process)
    state = process.set_hparams(state, collections.OrderedDict(scale=np.float32(1)))
    fresh = process.initialize()
    moving = tf.nest.flatten(state.finalizer)
    self.assertTrue(any(np.abs(a - b).max() > 0 for a, b in zip(
        moving, tf.nest.flatten(fresh.finalizer), strict=True
    )))
    handed = compose.hand_over(process, state)
    for a, b in zip(
        tf.nest.flatten(handed.finalizer), tf.nest.flatten(fresh.finalizer), strict=True
    ):
      np.testing.assert_array_equal(a, b)
    self.assertEqual(process.get_hparams(handed)['scale'], 7)


class DisclosureTest(federated_test_case.FederatedTestCase):

  def test_aggregation_that_sends_more_than_it_declares_does_not_build(self):
    leaky = aggregation.weighted_mean()._replace(
        update=tff.aggregators.MeanFactory(
            tff.aggregators.SecureSumFactory(1.0), no_nan_division=True
        )
    )
    with self.assertRaises(disclosure.UndeclaredUplinkError):
      compose.build_round_process(
          toy.linear_model(), client_work.ClientWork(_cross_entropy), seed=0, aggregation=leaky
      )

  @parameterized.parameters(None, 'secure')
  def test_secure_aggregation_leaves_no_plain_sum(self, kind):
    aggregate = None
    if kind == 'secure':
      aggregate = aggregation.secure_weighted_mean(update_bound=1.0, max_examples=10)
    process = compose.build_round_process(
        toy.linear_model(), client_work.ClientWork(_cross_entropy), seed=0, aggregation=aggregate
    ).process
    if kind == 'secure':
      tff.test.assert_not_contains_unsecure_aggregation(process.next)
    else:
      tff.test.assert_not_contains_secure_aggregation(process.next)


if __name__ == '__main__':
  absltest.main()
