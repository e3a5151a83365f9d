"""FedAvg against TFF's own."""

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
from tff_noise.algorithms import catalog
from tff_noise.algorithms import plain
from tff_noise.clients import seeds
from tff_noise.data import client_data
from tff_noise.federated import optimizer
from tff_noise.federated import task as task_lib
from tff_noise.models import architectures
from tff_noise.models import keras_model
from tff_noise.uplink import uplink

_SEED = 5
_SIZES = (7, 12, 1, 20)


def _examples(client):
  draw = np.random.default_rng(client)
  n = _SIZES[client]
  return draw.integers(0, 17, (n, 8, 8, 1)).astype(np.uint8), draw.integers(0, 10, n)


def _stock_process(training, server_learning_rate):
  """TFF's FedAvg on the same network with a single output."""
  network = architectures.mlp((8, 8, 1), 10, pixel_scale=1 / 16)
  model = tff.learning.models.functional_model_from_keras(
      tf.keras.Model(network.input, network.outputs[0]),
      tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      (tf.TensorSpec((None, 8, 8, 1), tf.uint8), tf.TensorSpec((None,), tf.int32)),
      lambda: collections.OrderedDict(loss=tf.keras.metrics.SparseCategoricalCrossentropy()),
  )
  return tff.learning.algorithms.build_weighted_fed_avg(
      model,
      client_optimizer_fn=tff.learning.optimizers.build_sgdm(
          training.learning_rate, training.momentum or None
      ),
      server_optimizer_fn=tff.learning.optimizers.build_sgdm(server_learning_rate),
  )


def _stock_data(client, round_num, training):
  """The batches that our client draws, as a data set of batches."""
  x, y = _examples(client)
  base = rng.tf_seed(_SEED, 'local training')
  data = None
  for epoch in range(training.epochs):
    seed = seeds.fold(base, round_num, client, epoch)
    order = seeds.batch_order(seed, len(y)).numpy()
    batches = tf.data.Dataset.from_tensor_slices(
        (x[order], y[order].astype(np.int32))
    ).batch(training.batch_size)
    data = batches if data is None else data.concatenate(batches)
  return data


class FedAvgTest(federated_test_case.FederatedTestCase):

  @parameterized.parameters((1.0, 0.0), (0.5, 0.9))
  def test_equals_tff_on_the_same_batches(self, server_learning_rate, momentum):
    training = types.LocalTraining(
        epochs=2, batch_size=5, learning_rate=0.1, momentum=momentum
    )
    stock = _stock_process(training, server_learning_rate)
    model = keras_model.from_keras(architectures.mlp((8, 8, 1), 10, pixel_scale=1 / 16))
    fed_avg = optimizer.fed_avg(model.weights_type, server_learning_rate)
    ours = plain.build_process(task_lib.Task(model, training, _SEED, optimizer=fed_avg)).process
    state = ours.initialize()
    stock_state = stock.set_model_weights(stock.initialize(), ours.get_model_weights(state))
    for round_num, cohort in enumerate([(0, 1), (1, 2, 3), (0, 2, 3)], start=1):
      state = ours.next(
          state, [client_data.client_dataset(*_examples(c), c) for c in cohort]
      ).state
      stock_state = stock.next(
          stock_state, [_stock_data(c, round_num, training) for c in cohort]
      ).state
    for expected, found in zip(
        stock.get_model_weights(stock_state).trainable,
        ours.get_model_weights(state).trainable,
        strict=True,
    ):
      np.testing.assert_allclose(found, expected, atol=1e-6)

  def test_server_learning_rate_scales_the_step(self):
    def weights(rate):
      model = toy.linear_model()
      fed_avg = optimizer.fed_avg(model.weights_type, rate)
      process = plain.build_process(task_lib.Task(model, optimizer=fed_avg)).process
      state = process.next(process.initialize(), [toy.client(0, [[1, 0]], [0])]).state
      return process.get_model_weights(state).trainable[0]

    np.testing.assert_allclose(weights(2.0), 2 * weights(1.0), atol=1e-6)

  def test_data_of_another_type_than_the_model_takes_are_refused_in_one_line(self):
    built = plain.build_process(task_lib.Task(toy.linear_model(), types.LocalTraining(), _SEED))
    data = client_data.client_dataset(np.zeros((3, 2), np.uint8), np.zeros(3, np.int32), 0)
    with self.assertRaisesRegex(
        types.UsageError, "^clients' examples are of another type than the model takes: give its"
    ):
      built.process.next(built.process.initialize(), [data])


class ReleasesTest(parameterized.TestCase):

  @parameterized.parameters(
      ('fedavg', []),
      ('scaffold', []),
      ('median', ['<client=int32,update=float32[4],weight=float32>']),
      ('poc', ['<client=int32,loss=float32>']),
  )
  def test_what_is_seen_of_single_clients_is_declared(self, name, expected):
    entry = catalog.ALGORITHMS[name]
    task = task_lib.Task(
        toy.linear_model(), client_sizes=np.array([4, 4]), clients_per_round=2, rounds=7
    )
    algorithm = entry.build(task, entry.params())
    seen = [f for f in algorithm.fields if f.disclosure is uplink.Disclosure.PER_CLIENT]
    self.assertEqual([f.type_spec for f in seen], expected)
    self.assertEqual({f.protection for f in seen}, {None} if expected else set())
    self.assertEqual(bool(expected), bool(entry.per_client))
    # A stage of no rounds sends nothing.
    never = entry.build(task._replace(rounds=0), entry.params())
    self.assertEmpty(never.fields)


if __name__ == '__main__':
  absltest.main()
