"""Tests of passes over the clients, by hand on the linear model."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest

from tests import federated_test_case
from tests import toy
from tff_noise.data import client_data
from tff_noise.federated import client_pass
from tff_noise.federated import disclosure
from tff_noise.federated import per_client
from tff_noise.federated import uplink
from tff_noise.models import keras_model

_LABELS = tff.to_type(collections.OrderedDict(labels=tff.TensorType(np.int32, (None,))))
_CONFIDENT = uplink.UplinkReport('confident', np.int32, 0, 100, 'a test')


def _own(*labels):
  return collections.OrderedDict(labels=np.array(labels, np.int32))


def _relabel(inputs):
  """Takes the model's label where its margin is above 1, and says how often."""
  logits = inputs.predict(False)
  sure = tf.abs(logits[:, 0] - logits[:, 1]) > 1
  labels = tf.where(sure, tf.argmax(logits, axis=1, output_type=tf.int32), inputs.local['labels'])
  return client_pass.PassOutputs(
      collections.OrderedDict(labels=labels),
      {'confident': tf.reduce_sum(tf.cast(sure, tf.int32))},
  )


def _weights(kernel=((1, 0), (0, 1))):
  return tff.learning.models.ModelWeights([np.array(kernel, np.float32)], [])


class PassTest(federated_test_case.FederatedTestCase):

  def test_type_signature(self):
    built = client_pass.build_client_pass(
        toy.linear_model(), _relabel, _LABELS, (_CONFIDENT,), seed=0
    )
    self.assertEqual(
        str(built.run.type_signature),
        '(<weights=<trainable=<float32[2,2]>,non_trainable=<>>@SERVER,'
        'data={<x=float32[?,2],y=int32[?],client=int32>*}@CLIENTS,'
        'local={<labels=int32[?]>}@CLIENTS> -> '
        '<reports=<client=int32[?],confident=int32[?]>@SERVER,'
        'local={<client=int32,own=<labels=int32[?]>,optimizer=<>>}@CLIENTS>)',
    )

  def test_clients_change_their_own_states_by_the_global_model(self):
    built = client_pass.build_client_pass(
        toy.linear_model(), _relabel, _LABELS, (_CONFIDENT,), seed=0
    )
    # The logits are the inputs: margins 3, 0 and 2; 1; 5.
    data = [
        toy.client(4, [[0, 3], [2, 2], [2, 0]], [0, 0, 0]),
        toy.client(9, [[1, 0]], [1]),
        toy.client(6, [[0, 5]], [0]),
    ]
    output = built.run(_weights(), data, [_own(0, 0, 1), _own(1), _own(1)])
    self.assertEqual([v.own['labels'].tolist() for v in output['local']], [[1, 0, 0], [1], [1]])
    reports = per_client.in_order(output['reports'], np.array([4, 9, 6]))
    self.assertEqual(reports['confident'].tolist(), [2, 0, 1])

  def test_sees_the_labels_of_the_data_and_the_id(self):
    def work(inputs):
      labels = inputs.labels * 100 + inputs.client
      return client_pass.PassOutputs(collections.OrderedDict(labels=labels))

    built = client_pass.build_client_pass(toy.linear_model(), work, _LABELS, seed=0)
    data = [toy.client(3, [[1, 0], [1, 0]], [1, 0]), toy.client(5, [[1, 0]], [1])]
    output = built.run(_weights(), data, [_own(7, 7), _own(7)])
    self.assertEqual([v.own['labels'].tolist() for v in output['local']], [[103, 3], [105]])
    self.assertEmpty(output['reports'])

  def test_client_without_examples(self):
    built = client_pass.build_client_pass(
        toy.linear_model(), _relabel, _LABELS, (_CONFIDENT,), seed=0
    )
    data = [toy.client(0, [], []), toy.client(1, [[0, 5]], [0])]
    output = built.run(_weights(), data, [_own(), _own(0)])
    self.assertEqual([v.own['labels'].tolist() for v in output['local']], [[], [1]])
    reports = per_client.in_order(output['reports'], np.array([0, 1]))
    self.assertEqual(reports['confident'].tolist(), [0, 1])

  def test_statistics_of_norms_are_those_of_the_global_model(self):
    ones = np.ones(2, np.float32)
    # gamma, beta, W; mean, variance: (x - 10) / 1 turns the sign of x.
    weights = tff.learning.models.ModelWeights(
        [ones, 0 * ones, np.array([[1, -1], [0, 0]], np.float32)], [10 * ones, ones]
    )
    built = client_pass.build_client_pass(
        toy.linear_model('batch'), _relabel, _LABELS, (_CONFIDENT,), seed=0
    )
    data = [toy.client(0, [[1, 0], [19, 0]], [0, 1])]
    (kept,) = built.run(weights, data, [_own(0, 1)])['local']
    self.assertEqual(kept.own['labels'].tolist(), [1, 0])

  def test_predicts_some_examples(self):
    local_type = tff.TensorType(np.float32, (None, 2))

    def work(inputs):
      last = tf.shape(inputs.labels)[0] - 1
      return client_pass.PassOutputs(inputs.predict_some(tf.stack([last, 0, last])))

    built = client_pass.build_client_pass(toy.linear_model(), work, local_type, seed=0)
    data = [toy.client(4, [[1, 2], [3, 4], [5, 6]], [0, 1, 0]), toy.client(9, [[7, 8]], [1])]
    output = built.run(_weights(((1, 0), (1, 2))), data, [np.zeros((0, 2), np.float32)] * 2)
    first, second = (kept.own for kept in output['local'])
    # (a, b) has the logits (a + b, 2 b).
    self.assertEqual(first.tolist(), [[11, 12], [3, 4], [11, 12]])
    self.assertEqual(second.tolist(), [[15, 16]] * 3)

  def test_seed_is_the_clients_own_and_that_of_the_experiment(self):
    def work(inputs):
      return client_pass.PassOutputs(inputs.seed)

    def seeds(seed, *clients):
      built = client_pass.build_client_pass(
          toy.linear_model(), work, tff.TensorType(np.int32, (2,)), seed=seed
      )
      data = [toy.client(c, [[1, 0]], [0]) for c in clients]
      output = built.run(_weights(), data, [np.zeros(2, np.int32)] * len(clients))
      return [tuple(kept.own) for kept in output['local']]

    first = seeds(0, 3, 5, 8)
    self.assertEqual(seeds(0, 8, 3), [first[2], first[0]])
    self.assertLen({*first, *seeds(1, 3, 5, 8)}, 6)

  def test_predicts_every_example_once_over_many_batches(self):
    count = 1000  # Not a multiple of the batch of a prediction.
    y = np.arange(count) % 2
    x = np.where(y[:, np.newaxis] == 0, [9.0, 0.0], [0.0, 9.0])
    built = client_pass.build_client_pass(
        toy.linear_model(), _relabel, _LABELS, (_CONFIDENT,), seed=0
    )
    output = built.run(
        _weights(), [toy.client(0, x.tolist(), y.tolist())], [_own(*[0] * count)]
    )
    np.testing.assert_array_equal(output['local'][0].own['labels'], y)
    self.assertEqual(output['reports']['confident'].tolist(), [count])


class DisclosureTest(federated_test_case.FederatedTestCase):

  def test_reports_are_all_that_leaves_a_client(self):
    built = client_pass.build_client_pass(
        toy.linear_model(), _relabel, _LABELS, (_CONFIDENT,), seed=0
    )
    self.assertEqual(built.fields, per_client.fields((_CONFIDENT,)))
    disclosure.check(built.run, built.fields)
    self.assertLen(disclosure.client_to_server_edges(built.run), 1)

  def test_without_reports_nothing_does(self):
    def work(inputs):
      return client_pass.PassOutputs(inputs.local)

    built = client_pass.build_client_pass(toy.linear_model(), work, _LABELS, seed=0)
    self.assertEqual(built.fields, ())
    self.assertEmpty(disclosure.client_to_server_edges(built.run))

  def test_report_that_is_not_declared_does_not_build(self):
    with self.assertRaises(disclosure.UndeclaredUplinkError):
      client_pass.build_client_pass(
          toy.linear_model(), _relabel, _LABELS,
          (_CONFIDENT, _CONFIDENT._replace(name='more')), seed=0,
      )


class AugmentedTest(federated_test_case.FederatedTestCase):

  def _predict(self, augmented, seed=0, client=0):
    pixels = tf.keras.Input((6, 5, 1), dtype='uint8')
    features = tf.keras.layers.Flatten()(tf.keras.layers.Rescaling(1 / 255)(pixels))
    model = keras_model.from_keras(
        tf.keras.Model(pixels, [tf.keras.layers.Dense(2)(features), features])
    )
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, (5, 6, 5, 1)).astype(np.uint8)
    weights = tff.learning.models.ModelWeights(
        [draw.normal(size=(30, 2)).astype(np.float32), np.zeros(2, np.float32)], []
    )
    local_type = tff.TensorType(np.float32, (None, 2))
    built = client_pass.build_client_pass(
        model, lambda i: client_pass.PassOutputs(i.predict(augmented)), local_type, seed=seed
    )
    data = client_data.client_dataset(x, np.zeros(5), client)
    output = built.run(weights, [data], [np.zeros((5, 2), np.float32)])
    plain = x.reshape(5, 30) / 255 @ weights.trainable[0]
    return output['local'][0].own, plain

  def test_plain_images_by_hand(self):
    found, expected = self._predict(False)
    np.testing.assert_allclose(found, expected, atol=1e-5)

  def test_augmented_images_are_others_and_a_function_of_seed_and_client(self):
    first, plain = self._predict(True)
    self.assertGreater(np.abs(first - plain).max(), 1e-2)
    np.testing.assert_array_equal(self._predict(True)[0], first)
    for change in ({'seed': 1}, {'client': 1}):
      self.assertGreater(np.abs(self._predict(True, **change)[0] - first).max(), 1e-2)


if __name__ == '__main__':
  absltest.main()
