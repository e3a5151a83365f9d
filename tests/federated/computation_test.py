"""Tests of computations in which clients take part: rounds of training, and those without a model.

By hand on the linear model.
"""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tests.clients import one_client
from tests.program import runs
from tff_noise import types
from tff_noise.algorithms import algorithm
from tff_noise.clients import program
from tff_noise.data import client_data
from tff_noise.federated import aggregation
from tff_noise.federated import computation
from tff_noise.federated import optimizer
from tff_noise.federated import processes
from tff_noise.federated import selectors
from tff_noise.federated import task as task_lib
from tff_noise.models import keras_model
from tff_noise.models import losses
from tff_noise.privacy import protection
from tff_noise.uplink import disclosure
from tff_noise.uplink import per_client
from tff_noise.uplink import uplink

_ONE_STEP = types.LocalTraining(**one_client.ONE_STEP)
_PLAIN = program.ClientProgram(one_client.cross_entropy)
_SECURE = aggregation.secure_weighted_mean(update_bound=100.0, max_examples=3)
_BOTH = (('plain', aggregation.weighted_mean()), ('secure', _SECURE))


def _task(*, model=None, training=_ONE_STEP, **more):
  return task_lib.Task(model or toy.linear_model(), training, **more)


def _train(client=_PLAIN, *, optimizer=None, selector=None, name='a round', **of_task):
  return computation.train(
      name, _task(**of_task), client, optimizer=optimizer, selector=selector
  )


def _counting(**more):
  """Each client keeps how often it took part, and sends its number of steps."""
  return program.ClientProgram(
      one_client.cross_entropy,
      own={'times': np.int32(0)},
      sums=(uplink.UplinkSum('steps', np.int32, 0, 1000, 'a test'),),
      final=lambda r: program.Sent(
          own={'times': r.client.own['times'] + 1}, sums={'steps': r.steps}
      ),
      **more,
  )


def _input(messages=None, **own):
  """What is a client's alone."""
  return uplink.ClientInput(program.in_order(own), program.in_order(messages or {}))


def _times(*values):
  return [_input(times=np.int32(v)) for v in values]


def _weights(*trainable):
  return tff.learning.models.ModelWeights([np.array(w, np.float32) for w in trainable], [])


class TaskTest(absltest.TestCase):

  def test_what_only_looks_like_a_part_of_it_is_refused(self):
    task = task_lib.Task(toy.linear_model())
    network = tf.keras.Sequential([tf.keras.layers.Dense(3)])
    for other, message in (
        ({'model': network}, r'Task.model .* KerasModel \(keras_model.from_keras .*, found Seq'),
        ({'training': {'epochs': 1}}, 'Task.training .* LocalTraining, found dict'),
        ({'aggregation': None}, 'Task.aggregation .* Aggregation, found NoneType'),
    ):
      with self.assertRaisesRegex(TypeError, message):
        computation.train('train', task._replace(**other), program.ClientProgram())

  def test_what_programs_send_has_no_name_that_training_has(self):
    task = _task()
    for sends in (
        {'sums': (uplink.UplinkSum('examples', np.float32, 0, 1, 'a test'),)},
        {'reports': (uplink.UplinkReport('kept', np.float32, 0, 1, 'a test'),)},
    ):
      with self.assertRaisesRegex(ValueError, "sends '(examples|kept)', which is sent of each"):
        computation.train('train', task, program.ClientProgram(**sends))


class StatelessTest(federated_test_case.FederatedTestCase):

  def test_what_the_server_sends_may_be_a_python_number(self):
    train = computation.train(
        'train', _task(), _PLAIN._replace(receives={
            'rate': 0.5, 'count': np.uint8(3), 'late': False, 'pair': [1.0, 2.0],
        })
    )
    first = train.process.initialize()
    state = algorithm.State({}, {}, train.declared.receives, {})
    state = state.send(rate=np.float32(0.25), count=4, late=1, pair=[3, np.float64(4)])
    sent = train.send(first, **state.received)
    self.assertEqual(sent.client_work['hparams']['rate'], 0.25)
    self.assertEqual(list(sent.client_work['hparams']['pair']), [3.0, 4.0])
    self.assertEqual(sent.client_work['hparams']['late'], True)
    for wrong in ({'count': 0.7}, {'count': 256}, {'rate': np.zeros(2)}, {'rates': 1.0}):
      with self.assertRaisesRegex(ValueError, '^.(count|rate|rates)'):
        state.send(**wrong)

  def test_is_a_learning_process_with_the_documented_types(self):
    process = _train(_PLAIN._replace(receives={'scale': np.float32(1)})).process
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
    process = _train().process
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
      process = _train(model=toy.linear_model('batch'), aggregation=aggregate).process
      state = process.initialize()
      for _ in range(3):
        state = process.next(
            state, [toy.client(0, [[1, 0], [2, 1]], [0, 1]), toy.client(1, [[0, 2]], [1])]
        ).state
      return tf.nest.flatten(process.get_model_weights(state).trainable)

    secure = aggregation.secure_weighted_mean(update_bound=10.0, max_examples=2)
    of_both = weights(aggregation.weighted_mean()), weights(secure)
    for plain, quantized in zip(*of_both, strict=True):
      np.testing.assert_allclose(plain, quantized, atol=1e-5)

  def test_client_that_diverged_is_left_out_and_counted(self):
    process = _train().process
    data = [toy.client(0, [[1, 0]], [0]), toy.client(1, [[np.nan, 0]], [0])]
    output = process.next(process.initialize(), data)
    self.assertEqual(output.metrics['client_work']['train']['rejected'], 1)
    weights = process.get_model_weights(output.state).trainable[0]
    np.testing.assert_allclose(weights, [[0.5, -0.5], [0, 0]], atol=1e-6)

  def test_round_without_any_example_changes_nothing(self):
    process = _train().process
    output = process.next(process.initialize(), [toy.client(0, [], [])])
    weights = process.get_model_weights(output.state).trainable[0]
    np.testing.assert_array_equal(weights, np.zeros((2, 2)))
    # There is none, which 0 would hide.
    self.assertTrue(np.isnan(output.metrics['client_work']['train']['loss']))

  def test_hyper_parameters_set_at_the_server_reach_the_clients(self):
    built = _train(
        program.ClientProgram(
            lambda s: s.logits[0, 0] * s.client.received['scale'],
            receives={'scale': np.float32(1)},
        )
    )
    process = built.process
    state = built.send(process.initialize(), scale=5)
    state = process.next(state, [toy.client(0, [[1, 0]], [0])]).state
    self.assertAlmostEqual(process.get_model_weights(state).trainable[0][0, 0], -5, places=5)
    self.assertEqual(process.get_hparams(state)['scale'], 5)

  def test_hyper_parameters_are_set_together_and_by_their_names(self):
    built = _train(_PLAIN._replace(receives={'b': np.zeros(2, np.int32), 'a': np.float32(1)}))
    state = built.process.initialize()
    sent = built.process.get_hparams(built.send(state, a=2, b=np.array([3.0, 4.0])))
    self.assertEqual((sent['a'], sent['b'].tolist(), sent['b'].dtype), (2, [3, 4], np.int32))
    for values in ({'a': 2}, {'a': 2, 'b': [3, 4], 'c': 5}, {}):
      with self.assertRaisesRegex(ValueError, r"'a round' sends \['a', 'b'\], got "):
        built.send(state, **values)
    with self.assertRaisesRegex(ValueError, r"'b', .* was int32\[2\] and is int64\[3\]"):
      built.send(state, a=2, b=[3, 4, 5])
    for wrong in ([3, 4.5], [3, 2**40], [3, np.nan], ['3', '4'], [None, 4]):
      with self.assertRaisesRegex(ValueError, "'b', which clients receive, was int32"):
        built.send(state, a=2, b=wrong)

  def test_weights_can_be_set(self):
    process = _train().process
    state = process.set_model_weights(process.initialize(), _weights(np.ones((2, 2))))
    np.testing.assert_array_equal(process.get_model_weights(state).trainable[0], np.ones((2, 2)))
    self.assertEqual(state.client_work['round_num'], 1)

  @parameterized.parameters('batch', 'group')
  def test_norms_train_as_in_keras(self, norm):
    model = toy.linear_model(norm)
    process = _train(
        model=model, training=types.LocalTraining(epochs=2, batch_size=10, learning_rate=0.1)
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
    process = _train(
        model=model,
        training=types.LocalTraining(epochs=1, batch_size=10, learning_rate=0.1),
        optimizer=optimizer.fed_avg(model.weights_type, 0.5),
    ).process
    data = [toy.client(0, [[4, 0]], [0]), toy.client(1, [[8, 0]] * 3, [0] * 3)]
    state = process.next(process.initialize(), data).state
    # Momentum .9: the moving means are .4 and .8; the server's step size does not touch them.
    moving_mean = process.get_model_weights(state).non_trainable[0]
    np.testing.assert_allclose(moving_mean, [0.25 * 0.4 + 0.75 * 0.8, 0], atol=1e-6)

  def test_training_in_place_of_the_tasks(self):
    # Three steps of 1/2 against the gradient of the first logit, in place of one step of 1.
    task = _task().with_training(types.LocalTraining(epochs=3, batch_size=1, learning_rate=0.5))
    process = computation.train('a round', task, program.ClientProgram(_first_logit)).process
    state = process.next(process.initialize(), [toy.client(0, [[1, 0]], [0])]).state
    np.testing.assert_allclose(
        process.get_model_weights(state).trainable[0], [[-1.5, 0], [0, 0]], atol=1e-6
    )


class StatefulTest(federated_test_case.FederatedTestCase):

  def test_weights_and_hyper_parameters_can_be_set(self):
    process = _train(_counting(receives={'scale': np.float32(1)})).process
    state = process.set_model_weights(process.initialize(), _weights(np.ones((2, 2))))
    state = process.set_hparams(state, collections.OrderedDict(scale=np.float32(5)))
    np.testing.assert_array_equal(process.get_model_weights(state).trainable[0], np.ones((2, 2)))
    self.assertEqual(process.get_hparams(state)['scale'], 5)
    self.assertEqual(state.client_work['round_num'], 1)

  def test_three_arguments_and_a_client_placed_result(self):
    signature = _train(_counting()).next.type_signature
    self.assertLen(signature.parameter, 3)
    self.assertEqual(str(signature.parameter[2]), '{<own=<times=int32>,messages=<>>}@CLIENTS')
    self.assertEqual(
        str(signature.result.local), '{<client=int32,own=<times=int32>>}@CLIENTS'
    )

  def test_what_a_client_brings_at_first(self):
    own = {
        'times': np.int32(7), 'labels': program.GivenLabels(),
        'scores': program.PerExample(np.float32(2)),
    }
    built = _train(_PLAIN._replace(own=own))
    brought = built.initial_input(np.array([1, 0]))
    self.assertEqual(list(brought.own), ['labels', 'scores', 'times'])
    self.assertEqual(brought.own['times'], 7)
    self.assertEqual(brought.own['labels'].tolist(), [1, 0])
    self.assertEqual(brought.own['scores'].tolist(), [2, 2])
    # It fits, and as nothing changes it, it comes back.
    data = [toy.client(0, [[1, 0], [2, 1]], [1, 0])]
    (kept,) = built.next(built.process.initialize(), data, [brought]).local
    self.assertEqual(kept.own['scores'].tolist(), [2, 2])

  def test_states_come_back_with_their_clients_ids(self):
    process = _train(_counting()).process
    data = [toy.client(i, [[1, i]] * (i + 1), [0] * (i + 1)) for i in range(6)]
    state = process.initialize()
    local = _times(*(100 * i for i in range(6)))
    for _ in range(5):
      output = process.next(state, data, local)
      kept = uplink.by_client(output.local[::-1], range(6))
      state, local = output.state, [_input(**kept[i]) for i in range(6)]
    self.assertEqual([int(v.own['times']) for v in local], [100 * i + 5 for i in range(6)])

  def test_states_of_other_clients_are_refused(self):
    returned = [uplink.ReturnedState(i, {'times': 10 * i}) for i in (2, 1)]
    self.assertEqual(
        uplink.by_client(returned, [1, 2]), {1: {'times': 10}, 2: {'times': 20}}
    )
    for others in ([1], [1, 2, 3], [1, 3], [1, 1]):
      with self.assertRaisesRegex(ValueError, r'states of clients \[1, 2\], expected'):
        uplink.by_client(returned, others)

  def test_local_state_is_no_uplink(self):
    result = _train(_counting())
    self.assertEqual(
        [f.name for f in result.fields],
        ['update', 'update weight', 'loss', 'examples', 'rejected', 'steps'],
    )
    self.assertLen(disclosure.client_to_server_edges(result.next), 6)

  def test_own_sums_are_metrics(self):
    process = _train(_counting()).process
    data = [toy.client(i, [[1, i]], [0]) for i in range(3)]
    output = process.next(process.initialize(), data, _times(0, 0, 0))
    self.assertEqual(output.metrics['client_work']['train']['steps'], 3)

  def test_trains_as_the_stateless_process_does(self):
    data = [toy.client(0, [[1, 0], [2, 1]], [0, 1]), toy.client(1, [[0, 2]], [1])]
    stateful, stateless = _train(_counting()).process, _train().process
    first = stateful.next(stateful.initialize(), data, _times(0, 0)).state
    second = stateless.next(stateless.initialize(), data).state
    np.testing.assert_array_equal(
        stateful.get_model_weights(first).trainable[0],
        stateless.get_model_weights(second).trainable[0],
    )


def _first_logit(step):
  """A loss whose gradient is the mean input for class 0, whatever the weights."""
  return tf.reduce_mean(step.logits[:, 0])


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
      optimizer.ServerOptimizer(
          lambda: collections.OrderedDict(shift=tf.constant(0.0), seen=tf.constant(0.0)),
          step,
          broadcast=lambda state: collections.OrderedDict(number=state['shift']),
      ),
      program.ClientProgram(
          step=one_client.in_steps(
              lambda s: [g + s.client.optimizer['number'] for g in s.gradients]
          ),
          final=lambda r: program.Sent(sums={'twice': 2 * r.num_examples}),
          sums=(uplink.UplinkSum('twice', np.float32, 0, 100, 'a test'),),
      ),
  )


def _remembering_optimizer(model):
  """FedAvg whose clients add to their gradients a number, which grows by 100 a round."""
  return optimizer.fed_avg(model.weights_type)._replace(
      client=program.ClientProgram(
          own={'number': np.float32(0)},
          step=one_client.in_steps(
              lambda s: [g + s.client.own['number'] for g in s.gradients]
          ),
          final=lambda r: program.Sent(own={'number': r.client.own['number'] + 100}),
      )
  )


class OptimizerTest(federated_test_case.FederatedTestCase):

  def test_fed_avg_if_none_is_given(self):
    model = toy.linear_model('batch')
    weights = []
    given = optimizer.fed_avg(model.weights_type)
    for result in (
        _train(model=model),
        _train(model=model, optimizer=given),
        computation.train('a round', _task(model=model)._replace(optimizer=given), _PLAIN),
    ):
      process = result.process
      state = process.next(process.initialize(), list(_ONE_AND_FIVE)).state
      weights.append(process.get_model_weights(state))
    for first, *others in zip(*map(tf.nest.flatten, weights), strict=True):
      for other in others:
        np.testing.assert_array_equal(first, other)
    # The step is one: weights are the mean of the clients' steps of half their input.
    np.testing.assert_allclose(weights[0].non_trainable[0], [0.1 * 4, 0], atol=1e-6)

  def test_given_one_comes_before_the_tasks(self):
    model = toy.linear_model()
    task = _task(model=model)._replace(optimizer=optimizer.fed_avg(model.weights_type, 0.5))
    client = program.ClientProgram(_first_logit)
    for given, moved in ((None, 2), (optimizer.fed_avg(model.weights_type, 0.25), 1)):
      process = computation.train('a round', task, client, optimizer=given).process
      state = process.next(process.initialize(), list(_ONE_AND_FIVE)).state
      np.testing.assert_allclose(
          process.get_model_weights(state).trainable[0], [[-moved, 0], [0, 0]], atol=1e-6
      )

  @parameterized.named_parameters(*_BOTH)
  def test_three_rounds_of_a_server_with_state_broadcast_and_sums_by_hand(self, aggregate):
    process = _train(
        program.ClientProgram(_first_logit), optimizer=_shifting_optimizer(),
        aggregation=aggregate,
    ).process
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
    result = _train(program.ClientProgram(_first_logit), optimizer=_shifting_optimizer())
    self.assertEqual(
        [f.name for f in result.fields],
        ['update', 'update weight', 'loss', 'examples', 'rejected', 'twice'],
    )
    self.assertEqual(result.uplink_bytes, 16 + 4 + 4 * 4)
    with self.assertRaisesRegex(disclosure.UndeclaredUplinkError, 'sent, not declared'):
      disclosure.check(result.next, result.fields[:-1])
    # Four weights, the number of the round, and the optimizer's.
    self.assertEqual(result.broadcast_bytes, 16 + 4 + 4)
    self.assertEqual(result.declared.own, {})

  @parameterized.named_parameters(*_BOTH)
  def test_another_structure_than_the_models_is_averaged_and_declared(self, aggregate):
    def step(state, inputs):
      # The first row of the weights goes against the direction, the second by the size.
      change = tf.stack([inputs.update['direction'], tf.repeat(inputs.update['size'], 2)])
      weights = inputs.weights
      return state, tff.learning.models.ModelWeights(
          [weights.trainable[0] - change], weights.non_trainable
      )

    result = _train(
        program.ClientProgram(_first_logit),
        optimizer=optimizer.FederatedOptimizer(
            optimizer.ServerOptimizer(lambda: (), step),
            program.ClientProgram(
                final=lambda r: program.Sent(
                    collections.OrderedDict(
                        direction=r.update.trainable[0][0], size=r.num_examples
                    )
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
    if aggregate is not _SECURE:
      self.assertEqual((result.fields[0].type_spec, result.fields[0].num_bytes), (plain, 12))
    else:
      tff.test.assert_not_contains_unsecure_aggregation(process.next)
    with self.assertRaisesRegex(disclosure.UndeclaredUplinkError, 'sent, not declared'):
      disclosure.check(process.next, result.fields[1:])

  @parameterized.parameters(
      # Gradients [0, 0] are 1 + m of a method's number m, 0 and 1, plus the optimizer's, 10 and 20,
      # which is all of the other entries; then the numbers are 1, 2 and 110, 120.
      (True, False, 'times=int32', 1.5, 0, 4, 0),
      (False, True, 'number=float32', 16, 15, 16 + 116, 15 + 115),
      (True, True, 'number=float32,times=int32', 16.5, 15, 16.5 + 117.5, 15 + 115),
  )
  def test_clients_keep_what_method_and_optimizer_keep(
      self, of_method, of_optimizer, local_type, first, others, second, others_second
  ):
    model = toy.linear_model()
    client = program.ClientProgram(_first_logit)
    if of_method:
      client = program.ClientProgram(
          loss=lambda s: _first_logit(s) * (1 + tf.cast(s.client.own['times'], tf.float32)),
          own={'times': np.int32(0)},
          final=lambda r: program.Sent(own={'times': r.client.own['times'] + 1}),
      )
    result = _train(
        client, model=model, optimizer=_remembering_optimizer(model) if of_optimizer else None
    )
    process = result.process
    self.assertIsInstance(process, processes.StatefulProcess)
    self.assertEqual(str(process.local_type), f'<own=<{local_type}>,messages=<>>')
    self.assertEqual(
        str(process.next.type_signature.result.local),
        f'{{<client=int32,own=<{local_type}>>}}@CLIENTS',
    )
    self.assertEqual(result.optimizer.client.own, {'number': 0} if of_optimizer else {})
    # It is no uplink.
    self.assertEqual(
        [f.name for f in result.fields], ['update', 'update weight', 'loss', 'examples', 'rejected']
    )
    self.assertLen(disclosure.client_to_server_edges(process.next), 5)

    data = [toy.client(i, [[1, 0]], [0]) for i in range(2)]
    local = [
        _input(
            **({'times': np.int32(i)} if of_method else {}),
            **({'number': np.float32(10 * (i + 1))} if of_optimizer else {}),
        )
        for i in range(2)
    ]
    state = process.initialize()
    for total, rest in ((first, others), (second, others_second)):
      output = process.next(state, data, local)
      kept = uplink.by_client(output.local, range(2))
      state, local = output.state, [_input(**kept[i]) for i in range(2)]
      weights = process.get_model_weights(state).trainable[0]
      np.testing.assert_allclose(weights, [[-total, -rest], [-rest, -rest]], rtol=1e-5)
    for i, kept in enumerate(local):
      self.assertEqual(kept.own.get('times'), i + 2 if of_method else None)
      self.assertEqual(kept.own.get('number'), 10 * (i + 1) + 200 if of_optimizer else None)

  def test_sum_that_is_not_declared_does_not_build(self):
    model = toy.linear_model()
    with self.assertRaisesRegex(types.UsageError, r"declares the sums \[\] and sends \['twice'\]"):
      _train(
          program.ClientProgram(_first_logit),
          model=model,
          optimizer=optimizer.fed_avg(model.weights_type)._replace(
              client=program.ClientProgram(
                  final=lambda r: program.Sent(sums={'twice': 2 * r.num_examples})
              )
          ),
      )

  def test_diverged_client_does_not_touch_what_others_send(self):
    process = _train(
        program.ClientProgram(_first_logit), optimizer=_shifting_optimizer()
    ).process
    data = [*_ONE_AND_FIVE, toy.client(2, [[np.nan, 0]] * 2, [0] * 2)]
    state = process.next(process.initialize(), data).state
    weights = process.get_model_weights(state).trainable[0]
    np.testing.assert_allclose(weights, [[-2, 0], [0, 0]], atol=1e-6)
    self.assertEqual(dict(state.finalizer), {'shift': 2, 'seen': 4})


def _reporting(**changes):
  """Each client reports its number of steps and the norm of its update."""
  return program.ClientProgram(
      one_client.cross_entropy,
      reports=(
          uplink.UplinkReport('steps', np.int32, 0, 1000, 'a test'),
          uplink.UplinkReport('norm', np.float32, 0.0, 1e6, 'a test'),
      ),
      final=lambda r: program.Sent(
          reports={'steps': r.steps, 'norm': tf.linalg.global_norm(r.update.trainable)}
      ),
  )._replace(**changes)


class ReportsTest(federated_test_case.FederatedTestCase):

  def _train(self, **changes):
    return _train(
        _reporting(**changes),
        training=types.LocalTraining(epochs=1, batch_size=1, learning_rate=1.0),
    )

  def test_are_metrics_by_client(self):
    process = self._train().process
    # At W = 0 one step on x moves the weights by +-x / 2: its norm is |x| / sqrt(2).
    data = [toy.client(8, [[3, 4]], [0]), toy.client(2, [[0, 0]] * 3, [1] * 3)]
    output = process.next(process.initialize(), data)
    reports = per_client.in_order(output.metrics['reports'], np.array([8, 2]))
    self.assertEqual(reports['steps'].tolist(), [1, 3])
    np.testing.assert_allclose(reports['norm'], [5 / np.sqrt(2), 0], atol=1e-5)
    self.assertEqual(output.metrics['client_work']['train']['examples'], 4)

  def test_are_declared(self):
    result = self._train()
    self.assertEqual(result.fields[-1:], per_client.fields(_reporting().reports))
    self.assertIs(result.fields[-1].disclosure, uplink.Disclosure.PER_CLIENT)
    # An update and its weight, three sums; and id, steps and norm.
    self.assertEqual(result.uplink_bytes, 16 + 4 + 3 * 4 + 3 * 4)
    with self.assertRaisesRegex(disclosure.UndeclaredUplinkError, 'sent, not declared'):
      disclosure.check(result.next, result.fields[:-1])

  @parameterized.parameters(0, 1)
  def test_other_than_declared_does_not_build(self, declared):
    with self.assertRaisesRegex(types.UsageError, r"and sends \['steps', 'norm'\]"):
      self._train(reports=_reporting().reports[:declared])

  def test_do_not_change_the_training(self):
    data = [toy.client(0, [[1, 0], [2, 1]], [0, 1]), toy.client(1, [[0, 2]], [1])]
    weights = []
    for changes in ({}, {'reports': (), 'final': None}):
      process = self._train(**changes).process
      state = process.next(process.initialize(), data).state
      weights.append(process.get_model_weights(state).trainable[0])
    np.testing.assert_array_equal(*weights)


def _vectors(result):
  """Twice and thrice the mean input of each of a client's examples, which it keeps."""
  mean = result.client.own['mean']
  return program.Sent(
      sums={'twice': 2 * mean, 'parity': tf.cast(mean, tf.int32) % 2},
      reports={'thrice': 3 * mean},
  )


_VECTORS = program.ClientProgram(
    own={'mean': np.zeros(3, np.float32)},
    sums=(
        uplink.UplinkSum('twice', np.float32, -8.0, 8.0, 'a test', shape=(3,)),
        uplink.UplinkSum('parity', np.int32, 0, 1, 'another test', shape=(3,)),
    ),
    reports=(uplink.UplinkReport('thrice', np.float32, -100.0, 100.0, 'a test', shape=(3,)),),
    final=_vectors,
)
_MEANS = [[1, -2, 3], [100, -100, 0.5], [0, 0, 2]]
# Sums of (2, -4, 6), (200, -200, 1), (0, 0, 4), each cut to 8; and of the parities.
_TWICE = [10, -12, 11]
_PARITY = [1, 0, 1]


class VectorsTest(federated_test_case.FederatedTestCase):

  def _run(self, kind, aggregate):
    """Returns the built computation, sums and reports of the clients 4, 9 and 6."""
    data = [toy.client(i, [[1, 0]], [0]) for i in (4, 9, 6)]
    local = [_input(mean=np.array(m, np.float32)) for m in _MEANS]
    if kind == 'train':
      built = _train(_VECTORS._replace(loss=_first_logit), aggregation=aggregate)
      metrics = built.next(built.process.initialize(), data, local).metrics
      return built, metrics['client_work']['train'], metrics['reports']
    built = computation.collect('a look', _task(aggregation=aggregate), _VECTORS)
    output = built.next(_broadcast(), data, local)
    return built, output['sums'], output['reports']

  @parameterized.product(kind=('train', 'collect'), named=_BOTH)
  def test_sums_and_reports_by_hand(self, kind, named):
    _, aggregate = named
    _, sums, reports = self._run(kind, aggregate)
    # Cut by each client, whoever sums.
    np.testing.assert_allclose(sums['twice'], _TWICE, atol=1e-4)
    self.assertEqual(np.asarray(sums['parity']).tolist(), _PARITY)
    thrice = per_client.in_order(reports, np.array([9, 6, 4]))['thrice']
    # Cut to their bounds, and in the order that is asked for.
    np.testing.assert_allclose(thrice, [[100, -100, 1.5], [0, 0, 6], [3, -6, 9]])

  @parameterized.product(kind=('train', 'collect'), named=_BOTH)
  def test_are_declared_as_they_are_sent(self, kind, named):
    name, aggregate = named
    built, _, _ = self._run(kind, aggregate)
    disclosure.check(built.next, built.fields)
    fields = {f.name: f for f in built.fields}
    twice, parity = fields['twice'], fields['parity']
    self.assertIsNone(parity.protection)
    self.assertEqual((twice.lower, twice.upper, parity.lower, parity.upper), (-8, 8, 0, 1))
    if name == 'secure':
      # Quantised numbers of 8 bytes, and a count for each sum.
      self.assertEqual((twice.type_spec, parity.type_spec), ('int64[3]', 'int64[3]'))
      self.assertEqual((twice.num_bytes, parity.num_bytes), (24, 24))
      self.assertEqual(twice.bitwidth, 32)
      self.assertEqual(fields['twice: contributions'].num_bytes, 4)
      self.assertIs(twice.disclosure, uplink.Disclosure.SECURE_SUM)
    else:
      self.assertEqual((twice.type_spec, parity.type_spec), ('float32[3]', 'int32[3]'))
      self.assertEqual((twice.num_bytes, parity.num_bytes), (12, 12))
      self.assertIs(twice.disclosure, uplink.Disclosure.SUM)
    report = built.fields[-1]
    self.assertEqual(report.type_spec, '<client=int32,thrice=float32[3]>')
    self.assertEqual((report.num_bytes, report.lower, report.upper), (16, -100, 100))
    for i, field in enumerate(built.fields):
      if field.name in ('twice', 'parity', report.name):
        with self.assertRaisesRegex(disclosure.UndeclaredUplinkError, 'sent, not declared'):
          disclosure.check(built.next, (*built.fields[:i], *built.fields[i + 1 :]))

  def test_other_shape_than_declared_does_not_build(self):
    for shape in ((), (2,)):
      sums = (_VECTORS.sums[0]._replace(shape=shape), _VECTORS.sums[1])
      with self.assertRaises((TypeError, ValueError)):
        computation.collect('a look', _task(), _VECTORS._replace(sums=sums))

  def test_of_an_optimizer_are_summed_over_the_clients_that_are_used(self):
    # The server has single contributions, and uses those of the two with the smallest report.
    model = toy.linear_model()

    def step(state, inputs):
      return inputs.sums['twice'], inputs.weights

    result = _train(
        program.ClientProgram(
            _first_logit,
            reports=(uplink.UplinkReport('first', np.float32, -100, 100, 'a test'),),
            final=lambda r: program.Sent(reports={'first': r.client.own['mean'][0]}),
        ),
        model=model,
        optimizer=optimizer.FederatedOptimizer(
            optimizer.ServerOptimizer(lambda: tf.zeros(3), step),
            _VECTORS._replace(
                reports=(), sums=_VECTORS.sums[:1],
                final=lambda r: program.Sent(sums={'twice': 2 * r.client.own['mean']}),
            ),
        ),
        selector=selectors.reported('first', 2),
    )
    self.assertEqual(
        result.fields[-1].type_spec,
        '<client=int32,update=float32[4],weight=float32,twice=float32[3],first=float32>',
    )
    data = [toy.client(i, [[1, 0]], [0]) for i in (4, 9, 6)]
    local = [_input(mean=np.array(m, np.float32)) for m in _MEANS]
    state = result.next(result.process.initialize(), data, local).state
    np.testing.assert_allclose(state.finalizer, [2, -4, 10])


class MessagesTest(federated_test_case.FederatedTestCase):

  def _train(self, **changes):
    """Clients move their weights by what they are told, and report a part of it."""
    message = uplink.Message('told', np.float32, 'a test', shape=(2,))._replace(**changes)
    return _train(
        program.ClientProgram(
            _first_logit,
            step=one_client.in_steps(
                lambda s: [0 * g + s.client.messages['told'][0] for g in s.gradients]
            ),
            messages=(message,),
            reports=(uplink.UplinkReport('second', np.float32, 0, 100, 'a test'),),
            final=lambda r: program.Sent(reports={'second': r.client.messages['told'][1]}),
        )
    )

  def test_each_client_gets_its_own(self):
    built = self._train()
    self.assertIsInstance(built.process, processes.StatefulProcess)
    self.assertEqual(str(built.process.local_type), '<own=<>,messages=<told=float32[2]>>')
    local = [_input({'told': np.array(v, np.float32)}) for v in ([1, 10], [5, 50])]
    output = built.next(built.process.initialize(), list(_ONE_AND_FIVE), local)
    # One example and three: (1 + 3 * 5) / 4.
    np.testing.assert_allclose(
        built.process.get_model_weights(output.state).trainable[0], np.full((2, 2), -4)
    )
    reports = per_client.in_order(output.metrics['reports'], np.array([1, 0]))
    self.assertEqual(reports['second'].tolist(), [50, 10])

  @parameterized.parameters(False, True)
  def test_from_others_is_a_release_of_theirs(self, from_others):
    built = self._train(from_others=from_others)
    # Not of the client that gets it, which sends no more than before.
    self.assertEqual(built.uplink_bytes, 16 + 4 + 3 * 4 + 8)
    self.assertEqual(built.messages_bytes, 8)
    self.assertEqual(built.released[: len(built.fields)], built.fields)
    released = built.released[len(built.fields) :]
    if not from_others:
      self.assertEmpty(released)
      return
    (field,) = released
    self.assertIs(field.disclosure, uplink.Disclosure.OTHER_CLIENTS)
    self.assertTrue(field.disclosure.shows_single_clients)
    self.assertEqual((field.name, field.type_spec), ('told of other clients', 'float32[2]'))
    self.assertEqual((field.num_bytes, field.reason), (8, 'a test'))
    self.assertIsNone(field.protection)

  def test_from_others_is_protected_by_what_protects_the_others(self):
    shield = protection.LabelReports(2, '1.0')
    (field,) = self._train(from_others=True, protection=shield).released[-1:]
    self.assertIs(field.disclosure, uplink.Disclosure.OTHER_CLIENTS)
    self.assertEqual(field.protection, shield)

  def test_of_a_computation_without_a_next_model(self):
    look = program.ClientProgram(
        own={'heard': np.int32(0)},
        messages=(uplink.Message('told', np.int32, 'a test', from_others=True),),
        final=lambda r: program.Sent(
            own={'heard': r.client.own['heard'] + r.client.messages['told']}
        ),
    )
    built = computation.collect('a look', _task(), look)
    self.assertEmpty(built.fields)
    self.assertEqual(
        [f.disclosure for f in built.released], [uplink.Disclosure.OTHER_CLIENTS]
    )
    local = [_input({'told': np.int32(v)}, heard=np.int32(v * 10)) for v in (3, 4)]
    output = built.next(_broadcast(), list(_ONE_AND_FIVE), local)
    kept = uplink.by_client(output['local'], [0, 1])
    self.assertEqual([kept[i]['heard'] for i in (0, 1)], [33, 44])

  def test_of_a_cohort_are_in_its_order(self):
    look = computation.collect(
        'a look',
        _task(),
        program.ClientProgram(
            own={'heard': np.zeros(2, np.float32)},
            messages=(uplink.Message('told', np.float32, 'a test', (2,)),),
            final=lambda r: program.Sent(own={'heard': r.client.messages['told']}),
        ),
        sends_model=False,
    )
    state, clients = _simulate(look)
    clients.run(look, state, np.array([0, 2]), told=np.array([[1, 2], [3, 4]], np.float32))
    self.assertEqual([v.tolist() for v in clients.own['heard']], [[1, 2], [0, 0], [3, 4]])


_FEDERATION = types.Federation(
    tuple(
        types.ClientExamples(np.array(x, np.float32), np.array(y, np.int32), np.arange(len(y)))
        for x, y in (
            ([[1, 0]], [0]), ([[5, 0]] * 3, [0] * 3), ([[1, 2], [2, 0], [1, 1]], [0, 1, 1])
        )
    ),
    2,
    0,
)


def _simulate(*computations):
  """Returns an algorithm's first state, and its clients, which take part as they are asked."""
  listed = algorithm.Algorithm(lambda state, clients: state, computations, {'train': 100})
  return listed.init(), runs.clients_of(listed, _task(), _FEDERATION)


def _next(state):
  """Between two rounds."""
  return state._replace(round_num=state.round_num + 1)


class BetweenComputationsTest(federated_test_case.FederatedTestCase):
  """What goes on from one computation of an algorithm to the next."""

  def _momentum(self, name, momentum=0.9):
    model = toy.linear_model()
    step = tff.learning.optimizers.build_sgdm(1.0, momentum)
    return optimizer.FederatedOptimizer(
        optimizer.apply_update(step, model.weights_type), name=name
    )

  def test_model_and_number_of_the_round_do(self):
    one_epoch = types.LocalTraining(epochs=2, batch_size=1, learning_rate=0.3)
    first, second = (
        _train(client, name=name, training=one_epoch)
        for name, client in (('first', _PLAIN), ('second', _counting()))
    )
    cohort = np.array([2])
    state, clients = _simulate(first, second)
    for round_num, trained in enumerate((first, first, second), start=1):
      # The order of the examples is a function of the round.
      weights = np.array(state.weights.trainable[0], np.float64)
      output = clients.train(trained, state, cohort)
      state = _next(output.state)
      x, y = _FEDERATION.clients[2].x, _FEDERATION.clients[2].y
      for batch in one_client.batches(3, 2, 1, round_num=round_num, client=2):
        weights -= 0.3 * one_client.gradient(weights, x[batch], y[batch])
      np.testing.assert_allclose(state.weights.trainable[0], weights, atol=1e-5)
    self.assertEqual(clients.own['times'], [0, 0, 1])

  def test_the_same_one_goes_on_as_its_process_does(self):
    built = _train(training=types.LocalTraining(epochs=2, batch_size=1, learning_rate=0.3))
    data = [toy.client(2, [[1, 2], [2, 0], [1, 1]], [0, 1, 1])]
    expected = built.process.initialize()
    state, clients = _simulate(built)
    for _ in range(3):
      expected = built.next(expected, data).state
      state = _next(clients.train(built, state, np.array([2])).state)
    np.testing.assert_array_equal(
        state.weights.trainable[0], expected.global_model_weights.trainable[0]
    )

  @parameterized.parameters(
      # The gradient is 1: v = 1, 1.9, 2.71, in all 5.61; or v = 1 again for another optimizer.
      ('one', 5.61, [2.71]), ('another', 3.9, [1.9, 1.0])
  )
  def test_optimizers_of_one_name_share_the_servers_state(self, name, total, velocities):
    client = program.ClientProgram(_first_logit)
    first = _train(client, name='first', optimizer=self._momentum('one'))
    second = _train(client, name='second', optimizer=self._momentum(name))
    state, clients = _simulate(first, second)
    for trained in (first, first, second):
      state = _next(clients.train(trained, state, np.array([0])).state)
    self.assertAlmostEqual(float(state.weights.trainable[0][0, 0]), -total, places=4)
    self.assertEqual(set(state.optimizers), {'one', name})
    for of_server, velocity in zip(state.optimizers.values(), velocities, strict=True):
      largest = max(np.max(v) for v in tf.nest.flatten(of_server['accumulator']))
      self.assertAlmostEqual(float(largest), velocity, places=4)

  def test_what_all_receive_is_kept_until_it_is_changed(self):
    def scaled(name, first):
      return _train(
          program.ClientProgram(
              lambda s: _first_logit(s) * s.client.received[name],
              receives={name: np.float32(first)},
          ),
          name=f'by {name}',
      )

    a, b = scaled('a', 1), scaled('b', 10)
    state, clients = _simulate(a, b)
    for trained, sent, moved in (
        (a, {}, 1), (b, {}, 11), (a, {'a': 2}, 13), (b, {}, 23), (a, {}, 25), (b, {'b': 5}, 30)
    ):
      state = state.send(**{name: np.float32(v) for name, v in sent.items()})
      state = _next(clients.train(trained, state, np.array([0])).state)
      self.assertAlmostEqual(float(state.weights.trainable[0][0, 0]), -moved, places=4)
    with self.assertRaisesRegex(ValueError, "'c' is no value that clients receive"):
      state.send(c=np.float32(0))


def _broadcast(weights=None, received=None, round_num=1):
  """What the server sends in a computation without a next model: the identity, if not given."""
  if weights is None:
    weights = _weights(np.eye(2))
  return program.Broadcast(weights, np.int32(round_num), program.in_order(received or {}))


_CONFIDENT = uplink.UplinkReport('confident', np.int32, 0, 1000, 'a test')


def _relabel(result):
  """Takes the model's label where its margin is above 1, and says how often."""
  logits = result.client.predict()
  sure = tf.abs(logits[:, 0] - logits[:, 1]) > 1
  labels = tf.where(
      sure, tf.argmax(logits, axis=1, output_type=tf.int32), result.client.own['labels']
  )
  return program.Sent(
      own={'labels': labels}, reports={'confident': tf.reduce_sum(tf.cast(sure, tf.int32))}
  )


_RELABELLING = program.ClientProgram(
    own={'labels': program.GivenLabels()}, reports=(_CONFIDENT,), final=_relabel
)


def _labels(*labels):
  return _input(labels=np.array(labels, np.int32))


def _collect(client=_RELABELLING, *, seed=0, **more):
  return computation.collect('a look', _task(seed=seed), client, **more)


def _kept(output, name, *clients):
  """What clients keep, in the order that is given."""
  kept = uplink.by_client(output['local'], clients)
  return [np.asarray(kept[client][name]).tolist() for client in clients]


class LookTest(federated_test_case.FederatedTestCase):
  """Clients look at the global model and their data, and train nothing."""

  def test_type_signature(self):
    self.assertEqual(
        str(_collect().next.type_signature),
        '(<broadcast=<weights=<trainable=<float32[2,2]>,non_trainable=<>>,round_num=int32,'
        'received=<>,optimizer=<>>@SERVER,'
        'data={<x=float32[?,2],y=int32[?],client=int32>*}@CLIENTS,'
        'local={<own=<labels=int32[?]>,messages=<>>}@CLIENTS> -> '
        '<sums=<>@SERVER,reports=<client=int32[?],confident=int32[?]>@SERVER,mean=<>@SERVER,'
        'local={<client=int32,own=<labels=int32[?]>>}@CLIENTS>)',
    )

  def test_clients_change_their_own_states_by_the_global_model(self):
    # The logits are the inputs: margins 3, 0 and 2; 1; 5.
    data = [
        toy.client(4, [[0, 3], [2, 2], [2, 0]], [0, 0, 0]),
        toy.client(9, [[1, 0]], [1]),
        toy.client(6, [[0, 5]], [0]),
    ]
    output = _collect().next(_broadcast(), data, [_labels(0, 0, 1), _labels(1), _labels(1)])
    self.assertEqual(_kept(output, 'labels', 4, 9, 6), [[1, 0, 0], [1], [1]])
    reports = per_client.in_order(output['reports'], np.array([4, 9, 6]))
    self.assertEqual(reports['confident'].tolist(), [2, 0, 1])

  def test_sees_the_labels_of_the_data_the_id_and_what_all_receive(self):
    look = program.ClientProgram(
        own={'labels': program.GivenLabels()},
        receives={'more': np.int32(0)},
        final=lambda r: program.Sent(
            own={
                'labels': r.client.labels * 100 + r.client.id + r.client.received['more']
                + r.client.round_num
            }
        ),
    )
    data = [toy.client(3, [[1, 0], [1, 0]], [1, 0]), toy.client(5, [[1, 0]], [1])]
    output = _collect(look).next(
        _broadcast(received={'more': np.int32(2000)}, round_num=40), data,
        [_labels(7, 7), _labels(7)],
    )
    self.assertEqual(_kept(output, 'labels', 3, 5), [[2143, 2043], [2145]])
    self.assertEmpty(output['reports'])

  def test_client_without_examples(self):
    data = [toy.client(0, [], []), toy.client(1, [[0, 5]], [0])]
    output = _collect().next(_broadcast(), data, [_labels(), _labels(0)])
    self.assertEqual(_kept(output, 'labels', 0, 1), [[], [1]])
    reports = per_client.in_order(output['reports'], np.array([0, 1]))
    self.assertEqual(reports['confident'].tolist(), [0, 1])

  def test_statistics_of_norms_are_those_of_the_global_model(self):
    ones = np.ones(2, np.float32)
    # gamma, beta, W; mean, variance: (x - 10) / 1 turns the sign of x.
    weights = tff.learning.models.ModelWeights(
        [ones, 0 * ones, np.array([[1, -1], [0, 0]], np.float32)], [10 * ones, ones]
    )
    output = _collect(model=toy.linear_model('batch')).next(
        _broadcast(weights), [toy.client(0, [[1, 0], [19, 0]], [0, 1])], [_labels(0, 1)]
    )
    self.assertEqual(_kept(output, 'labels', 0), [[1, 0]])

  def test_predicts_some_examples(self):
    def final(result):
      last = result.client.num_examples - 1
      logits = result.client.predict(positions=tf.stack([last, 0, last]))
      again, features = result.client.predict_with_features(positions=tf.stack([0, last, 0]))
      return program.Sent(own={'some': logits, 'again': again, 'features': features})

    look = program.ClientProgram(
        own=dict.fromkeys(('some', 'again', 'features'), np.zeros((3, 2), np.float32)),
        final=final,
    )
    data = [toy.client(4, [[1, 2], [3, 4], [5, 6]], [0, 1, 0]), toy.client(9, [[7, 8]], [1])]
    output = _collect(look).next(
        _broadcast(_weights(((1, 0), (1, 2)))), data, [_input(**look.own)] * 2
    )
    # (a, b) has the logits (a + b, 2 b).
    first, second = _kept(output, 'some', 4, 9)
    self.assertEqual(first, [[11, 12], [3, 4], [11, 12]])
    self.assertEqual(second, [[15, 16]] * 3)
    self.assertEqual(_kept(output, 'again', 4, 9)[0], [[3, 4], [11, 12], [3, 4]])
    self.assertEqual(_kept(output, 'features', 4, 9)[0], [[1, 2], [5, 6], [1, 2]])

  def test_seed_is_the_clients_own_and_that_of_the_experiment(self):
    look = program.ClientProgram(
        own={'seed': np.zeros(2, np.int32)},
        final=lambda r: program.Sent(own={'seed': r.client.seed}),
    )

    def seeds(seed, *clients):
      output = _collect(look, seed=seed).next(
          _broadcast(), [toy.client(c, [[1, 0]], [0]) for c in clients],
          [_input(**look.own)] * len(clients),
      )
      return [tuple(v) for v in _kept(output, 'seed', *clients)]

    first = seeds(0, 3, 5, 8)
    self.assertEqual(seeds(0, 8, 3), [first[2], first[0]])
    self.assertLen({*first, *seeds(1, 3, 5, 8)}, 6)

  def test_predicts_every_example_once_over_many_batches(self):
    count = 1000  # Not a multiple of the batch of a prediction.
    y = np.arange(count) % 2
    x = np.where(y[:, np.newaxis] == 0, [9.0, 0.0], [0.0, 9.0])
    output = _collect().next(
        _broadcast(), [toy.client(0, x.tolist(), y.tolist())], [_labels(*[0] * count)]
    )
    self.assertEqual(_kept(output, 'labels', 0), [y.tolist()])
    self.assertEqual(output['reports']['confident'].tolist(), [count])

  def test_reports_are_all_that_leaves_a_client(self):
    built = _collect()
    self.assertEqual(built.fields, per_client.fields((_CONFIDENT,)))
    disclosure.check(built.next, built.fields)
    self.assertLen(disclosure.client_to_server_edges(built.next), 1)
    # The model and the number of the round come down.
    self.assertEqual((built.uplink_bytes, built.broadcast_bytes), (8, 16 + 4))
    self.assertFalse(built.trains)

  def test_without_reports_nothing_does(self):
    built = _collect(
        program.ClientProgram(
            own={'labels': program.GivenLabels()},
            final=lambda r: program.Sent(own=r.client.own),
        )
    )
    self.assertEqual(built.fields, ())
    self.assertEmpty(disclosure.client_to_server_edges(built.next))

  def test_report_that_is_not_declared_does_not_build(self):
    with self.assertRaisesRegex(types.UsageError, r"and sends \['confident'\]"):
      _collect(_RELABELLING._replace(reports=(_CONFIDENT, _CONFIDENT._replace(name='more'))))

  def _predict(self, augmented, seed=0, client=0):
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, (5, 6, 5, 1)).astype(np.uint8)
    kernel = draw.normal(size=(30, 2)).astype(np.float32)
    look = program.ClientProgram(
        own={'logits': program.PerExample(np.zeros(2, np.float32))},
        final=lambda r: program.Sent(own={'logits': r.client.predict(augmented)}),
    )
    output = _collect(look, seed=seed, model=toy.image_model()).next(
        _broadcast(_weights(kernel, np.zeros(2))),
        [client_data.client_dataset(x, np.zeros(5), client)],
        [_input(logits=np.zeros((5, 2), np.float32))],
    )
    return np.array(_kept(output, 'logits', client)[0]), x.reshape(5, 30) / 255 @ kernel

  def test_plain_images_by_hand(self):
    found, expected = self._predict(False)
    np.testing.assert_allclose(found, expected, atol=1e-5)

  def test_augmented_images_are_others_and_a_function_of_seed_and_client(self):
    first, plain = self._predict(True)
    self.assertGreater(np.abs(first - plain).max(), 1e-2)
    np.testing.assert_array_equal(self._predict(True)[0], first)
    for change in ({'seed': 1}, {'client': 1}):
      self.assertGreater(np.abs(self._predict(True, **change)[0] - first).max(), 1e-2)


class MeanTest(federated_test_case.FederatedTestCase):
  """Means of what clients keep or train, of which no next model is made."""

  def _of_kept(self, aggregate):
    mean_of = program.ClientProgram(
        own={'pair': np.zeros(2, np.float32)},
        final=lambda r: program.Sent(
            collections.OrderedDict(pair=r.client.own['pair'], one=tf.constant(1.0))
        ),
    )
    return computation.collect(
        'prototypes', _task(aggregation=aggregate), mean_of, mean_for='what clients agree on'
    )

  @parameterized.named_parameters(*_BOTH)
  def test_is_weighted_by_examples(self, aggregate):
    built = self._of_kept(aggregate)
    data = [*_ONE_AND_FIVE, toy.client(2, [], [])]
    local = [
        _input(pair=np.array(v, np.float32)) for v in ([1, 2], [5, -2], [99, 99])
    ]
    output = built.next(_broadcast(), data, local)
    # (1 * 1 + 3 * 5) / 4 and (1 * 2 - 3 * 2) / 4; who has no examples has no say.
    np.testing.assert_allclose(output['mean']['pair'], [4, -1], atol=1e-5)
    self.assertAlmostEqual(float(output['mean']['one']), 1, places=5)
    self.assertEmpty(output['sums'])

  def test_of_nobodys_examples_is_zero_whatever_they_would_send(self):
    built = self._of_kept(aggregation.weighted_mean())
    output = built.next(
        _broadcast(), [toy.client(2, [], [])], [_input(pair=np.full(2, np.nan, np.float32))]
    )
    np.testing.assert_array_equal(output['mean']['pair'], [0, 0])

  @parameterized.named_parameters(*_BOTH)
  def test_is_declared_under_the_name_of_the_computation(self, aggregate):
    built = self._of_kept(aggregate)
    disclosure.check(built.next, built.fields)
    self.assertEqual({f.reason for f in built.fields}, {'what clients agree on'})
    names = [f.name for f in built.fields]
    if aggregate is _SECURE:
      tff.test.assert_not_contains_unsecure_aggregation(built.next)
      self.assertEqual(
          names,
          ['prototypes', 'prototypes: contributions', 'prototypes weight',
           'prototypes weight: contributions'],
      )
      self.assertEqual([f.num_bytes for f in built.fields], [24, 4, 8, 4])
    else:
      self.assertEqual(names, ['prototypes', 'prototypes weight'])
      self.assertEqual([f.num_bytes for f in built.fields], [12, 4])

  def test_of_trained_updates_leaves_the_global_model_alone(self):
    built = computation.collect(
        'a trial', _task(), program.ClientProgram(_first_logit), training=_ONE_STEP,
        mean_for='a test',
    )
    output = built.next(_broadcast(), list(_ONE_AND_FIVE), [_input()] * 2)
    np.testing.assert_allclose(output['mean'].trainable[0], [[4, 0], [0, 0]], atol=1e-6)
    self.assertEqual(output['sums']['examples'], 4)
    self.assertEqual(
        [f.name for f in built.fields],
        ['a trial', 'a trial weight', 'loss', 'examples', 'rejected'],
    )

  def test_where_noise_protects_updates_alone_nothing_is_collected(self):
    noisy = aggregation.dp_mean(
        protection.NoisySum(1.0, 1.0, cohort=2, population=10), noise_key=bytes(32), secure=False
    )
    for client, more, sent in (
        (_RELABELLING, {}, 'confident'),
        (_VECTORS, {}, 'twice, parity, thrice'),
        (_PLAIN, {'training': _ONE_STEP}, 'loss, examples, rejected'),
        (_PLAIN, {'mean_for': 'a test'}, 'a look'),
    ):
      with self.assertRaisesRegex(types.UsageError, f'--client_dp_noise .* send: {sent}$'):
        computation.collect('a look', _task(aggregation=noisy), client, **more)
    silent = _RELABELLING._replace(
        reports=(), final=lambda r: program.Sent(own={'labels': r.client.labels})
    )
    self.assertEmpty(computation.collect('a look', _task(aggregation=noisy), silent).fields)


class OwnModelsTest(federated_test_case.FederatedTestCase):
  """Clients train models of their own, of which the server knows nothing."""

  _TRAINING = types.LocalTraining(epochs=2, batch_size=2, learning_rate=0.25, momentum=0.5)

  def _build(self, aggregate=None, model=None):
    model = model or toy.linear_model()
    first = [np.zeros(t.shape, np.float32) for t in model.weights_type.trainable]

    def final(result):
      return program.Sent(
          own={'model': list(result.weights.trainable)}, sums={'steps': result.steps}
      )

    own_model = program.ClientProgram(
        one_client.cross_entropy,
        start=lambda c: tff.learning.models.ModelWeights(list(c.own['model']), []),
        own={'model': first},
        sums=(uplink.UplinkSum('steps', np.int32, 0, 100, 'a test'),),
        final=final,
    )
    return computation.collect(
        'own models', _task(aggregation=aggregate or aggregation.weighted_mean()), own_model,
        model=model, training=self._TRAINING, sends_model=False,
    )

  def test_each_goes_on_from_its_own_in_numpy(self):
    built = self._build()
    kept = {4: np.array([[1, 2], [3, 4]], np.float32), 9: np.zeros((2, 2), np.float32)}
    examples = {4: one_client.EXAMPLES, 9: ([[1, 0], [0, 2]], [1, 0])}
    expected = {client: np.array(w, np.float64) for client, w in kept.items()}
    data = [toy.client(client, *examples[client]) for client in kept]
    for round_num in (1, 2):
      output = built.next(
          _broadcast((), round_num=round_num), data, [_input(model=[w]) for w in kept.values()]
      )
      for client, (x, y) in examples.items():
        velocity = 0
        for batch in one_client.batches(len(y), 2, 2, round_num=round_num, client=client):
          gradient = one_client.gradient(
              expected[client], np.array(x)[batch], np.array(y)[batch]
          )
          velocity = 0.5 * velocity + gradient
          expected[client] = expected[client] - 0.25 * velocity
      returned = uplink.by_client(output['local'], kept)
      kept = {client: returned[client]['model'][0] for client in kept}
      for client, weights in kept.items():
        np.testing.assert_allclose(weights, expected[client], atol=1e-5)
      # Two batches and one in each of two epochs.
      self.assertEqual(output['sums']['steps'], 4 + 2)
      self.assertEqual((output['sums']['examples'], output['sums']['rejected']), (5, 0))
      self.assertEmpty(output['mean'])

  @parameterized.named_parameters(*_BOTH)
  def test_nothing_but_sums_leaves_a_client_and_no_model_comes(self, aggregate):
    built = self._build(aggregate)
    self.assertEqual(
        str(built.next.type_signature.parameter['broadcast']),
        '<weights=<>,round_num=int32,received=<>,optimizer=<>>@SERVER',
    )
    self.assertEqual(
        [f.name for f in built.fields if 'contributions' not in f.name],
        ['loss', 'examples', 'rejected', 'steps'],
    )
    self.assertLen(disclosure.client_to_server_edges(built.next), len(built.fields))
    self.assertEqual((built.sends_model, built.trains), (False, True))
    # The number of the round; and the two bounds of each secure sum.
    self.assertEqual(built.broadcast_bytes, 4 + (4 * 8 if aggregate is _SECURE else 0))
    self.assertEqual(built.uplink_bytes, 4 * 12 if aggregate is _SECURE else 4 * 4)

  def test_model_that_diverges_is_not_kept(self):
    built = self._build()
    start = np.full((2, 2), 3, np.float32)
    output = built.next(
        _broadcast(()), [toy.client(0, [[np.nan, 0]], [0])], [_input(model=[start])]
    )
    np.testing.assert_array_equal(output['local'][0].own['model'][0], start)
    self.assertEqual((output['sums']['rejected'], output['sums']['steps']), (1, 0))

  def test_of_another_architecture_than_the_global_one(self):
    inputs = tf.keras.Input((2,))
    wide = keras_model.from_keras(
        tf.keras.Model(inputs, [tf.keras.layers.Dense(3, use_bias=False)(inputs), inputs])
    )
    built = self._build(model=wide)
    output = built.next(
        _broadcast(()), [toy.client(0, *one_client.EXAMPLES)],
        [_input(model=[np.zeros((2, 3), np.float32)])],
    )
    model = output['local'][0].own['model'][0]
    self.assertEqual(model.shape, (2, 3))
    self.assertGreater(np.abs(model).max(), 0.1)

  def test_looks_at_its_own_model_without_training(self):
    look = program.ClientProgram(
        start=lambda c: tff.learning.models.ModelWeights(list(c.own['model']), []),
        own={'model': [np.zeros((2, 2), np.float32)]},
        sums=(uplink.UplinkSum('logits', np.float32, -100, 100, 'a test', shape=(2,)),),
        final=lambda r: program.Sent(sums={'logits': tf.reduce_sum(r.client.predict(), axis=0)}),
    )
    built = _collect(look, sends_model=False)
    kernels = np.array([[[1, 0], [0, 1]], [[0, 2], [3, 0]]], np.float32)
    output = built.next(
        _broadcast(()), [toy.client(i, [[1, 2], [3, 4]], [0, 1]) for i in range(2)],
        [_input(model=[kernel]) for kernel in kernels],
    )
    # (4, 6) and (18, 8).
    np.testing.assert_allclose(output['sums']['logits'], [22, 14])
    self.assertEqual([f.name for f in built.fields], ['logits'])

  def test_trains_on_public_images_in_place_of_its_own(self):
    # Towards the logits (5, 0) of the first image and (0, 5) of the second, whatever it has itself.
    public = np.array([[2, 0], [0, 1]], np.float32)
    targets = np.array([[5, 0], [0, 5]], np.float32)
    client = program.ClientProgram(
        lambda s: tf.reduce_mean(tf.reduce_sum((s.logits - s.columns['targets']) ** 2, axis=1)),
        columns=lambda c: program.Columns({'targets': tf.constant(targets)}),
        start=lambda c: tff.learning.models.ModelWeights(list(c.own['model']), []),
        own={'model': [np.zeros((2, 2), np.float32)]},
        sums=(uplink.UplinkSum('ids', np.int32, 0, 100, 'a test'),),
        final=lambda r: program.Sent(
            own={'model': list(r.weights.trainable)}, sums={'ids': r.client.id}
        ),
    )
    training = types.LocalTraining(epochs=3, batch_size=2, learning_rate=0.125)
    built = _collect(client, training=training, public=public, sends_model=False)
    data = [toy.client(7, *one_client.EXAMPLES), toy.client(9, [], [])]
    zeros = np.zeros((2, 2), np.float32)
    output = built.next(_broadcast(()), data, [_input(model=[zeros])] * 2)
    expected = zeros
    for _ in range(3):
      expected = expected - 0.125 * public.T @ (public @ expected - targets)
    for returned in output['local']:
      np.testing.assert_allclose(returned.own['model'][0], expected, atol=1e-6)
    self.assertEqual((output['sums']['examples'], output['sums']['ids']), (4, 16))
    # It is no round of training on clients' examples.
    self.assertFalse(built.trains)

  def test_predicts_public_images(self):
    public = np.array([[1, 2], [3, 4], [0, 1]], np.float32)
    look = program.ClientProgram(
        sums=(uplink.UplinkSum('logits', np.float32, -100, 100, 'a test', shape=(3, 2)),),
        final=lambda r: program.Sent(sums={'logits': r.client.predict()}),
    )
    built = _collect(look, public=public)
    kernel = np.array([[1, 0], [2, -1]], np.float32)
    weights = tff.learning.models.ModelWeights([kernel], [])
    output = built.next(_broadcast(weights), [toy.client(0, [], [])] * 2, [_input()] * 2)
    np.testing.assert_allclose(output['sums']['logits'], 2 * public @ kernel)

  def test_looks_at_its_data_without_any_model(self):
    look = program.ClientProgram(
        sums=(uplink.UplinkSum('ones', np.int32, 0, 100, 'a test'),),
        final=lambda r: program.Sent(sums={'ones': tf.reduce_sum(r.client.labels)}),
    )
    built = _collect(look, sends_model=False)
    output = built.next(
        _broadcast(()), [toy.client(i, *one_client.EXAMPLES) for i in range(2)], [_input()] * 2
    )
    self.assertEqual(output['sums']['ones'], 4)
    self.assertEqual((built.broadcast_bytes, built.uplink_bytes, built.trains), (4, 4, False))


class DisclosureTest(federated_test_case.FederatedTestCase):

  def test_aggregation_that_sends_more_than_it_declares_does_not_build(self):
    leaky = aggregation.weighted_mean()._replace(
        update=tff.aggregators.MeanFactory(
            tff.aggregators.SecureSumFactory(1.0), no_nan_division=True
        )
    )
    with self.assertRaises(disclosure.UndeclaredUplinkError):
      _train(aggregation=leaky)

  @parameterized.named_parameters(*_BOTH)
  def test_secure_aggregation_leaves_no_plain_sum(self, aggregate):
    built = _train(aggregation=aggregate)
    if aggregate is _SECURE:
      tff.test.assert_not_contains_unsecure_aggregation(built.next)
    else:
      tff.test.assert_not_contains_secure_aggregation(built.next)

  def test_programs_of_method_and_optimizer_with_one_name_are_refused(self):
    model = toy.linear_model()
    with self.assertRaisesRegex(ValueError, "two programs of a client have a 'number'"):
      _train(
          _PLAIN._replace(own={'number': np.int32(0)}),
          model=model, optimizer=_remembering_optimizer(model),
      )


if __name__ == '__main__':
  absltest.main()
