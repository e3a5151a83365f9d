"""Seconds a round: this product against a plain TensorFlow loop and TFF's stock recipe.

  python -m benchmarks.round_time [NAME...]

All train the same CNN of 1.6 M parameters for one epoch by SGD on CIFAR-10-sized images, and
average by examples. The *plain loop* is one `tf.function` over the same steps, one client after the
other, in this process: no federation, no transfer. The *stock recipe* is
`tff.learning.algorithms.build_weighted_fed_avg` with a Keras model on shuffled and batched float32
data, in TFF's stock local runtime.
"""

import collections
import functools
import gc
import os
import sys
from collections.abc import Callable, Sequence

import numpy as np

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import tensorflow as tf
import tensorflow_federated as tff

from benchmarks import contest
from benchmarks import workloads
from tff_noise import types
from tff_noise.algorithms import plain
from tff_noise.data import client_data
from tff_noise.federated import task as task_lib
from tff_noise.models import keras_model
from tff_noise.runtimes import local

_LEARNING_RATE = 0.01


def _product(clients, batch_size, context):
  """FedAvg of this product."""
  training = types.LocalTraining(1, batch_size, _LEARNING_RATE)
  task = task_lib.Task(keras_model.from_keras(workloads.large_cnn()), training)
  process = plain.build_process(task).process
  datasets = [client_data.client_dataset(x, y, i) for i, (x, y) in enumerate(clients)]
  with tff.framework.get_context_stack().install(context):
    state = process.initialize()

  def run():
    with tff.framework.get_context_stack().install(context):
      return process.next(state, datasets)

  return run


def _stock(clients, batch_size, context):
  """TFF's tutorial: a Keras model, `tf.data` with shuffle and batch, weighted FedAvg."""
  def dataset(x, y):
    examples = tf.data.Dataset.from_tensor_slices((x.astype(np.float32), y.astype(np.int32)))
    return examples.shuffle(len(y)).batch(batch_size)

  keras = workloads.large_cnn()
  # The recipe's models have one output.
  image = tf.keras.Input(workloads.IMAGE, dtype=tf.float32)
  datasets = [dataset(x, y) for x, y in clients]
  model = tff.learning.models.functional_model_from_keras(
      tf.keras.Model(image, keras(image)[0]),
      loss_fn=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      input_spec=datasets[0].element_spec,
      metrics_constructor=collections.OrderedDict(
          accuracy=tf.keras.metrics.SparseCategoricalAccuracy,
      ),
  )
  process = tff.learning.algorithms.build_weighted_fed_avg(
      model, client_optimizer_fn=tff.learning.optimizers.build_sgdm(_LEARNING_RATE)
  )
  with tff.framework.get_context_stack().install(context):
    state = process.initialize()

  def run():
    with tff.framework.get_context_stack().install(context):
      return process.next(state, datasets)

  return run


def plain_loop(
    network: tf.keras.Model, clients: Sequence[tuple[np.ndarray, np.ndarray]], batch_size: int
) -> Callable[[], list[tf.Tensor]]:
  """Returns what trains clients one after the other, in one `tf.function` of this process.

  Args:
    network: Gives logits first.
    clients: Images and labels of each, see `workloads.images`.
    batch_size: Images a step, positive.
  """
  data = [(tf.constant(x), tf.constant(y, tf.int32)) for x, y in clients]
  weights = [tf.Variable(v) for v in network.trainable_variables]
  sums = [tf.Variable(tf.zeros_like(v)) for v in weights]
  loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

  @tf.function(reduce_retracing=True)
  def train(x, y):
    variables = network.trainable_variables
    for variable, value in zip(variables, weights, strict=True):
      variable.assign(value)
    order = tf.random.shuffle(tf.range(tf.shape(y)[0]))
    for start in tf.range(0, tf.shape(y)[0], batch_size):
      batch = order[start : start + batch_size]
      with tf.GradientTape() as tape:
        loss = loss_fn(tf.gather(y, batch), network(tf.gather(x, batch), training=True)[0])
      for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
        variable.assign_sub(_LEARNING_RATE * gradient)
    share = tf.cast(tf.shape(y)[0], tf.float32)
    for total, variable in zip(sums, variables, strict=True):
      total.assign_add(share * variable)

  def run():
    for total in sums:
      total.assign(tf.zeros_like(total))
    for x, y in data:
      train(x, y)
    examples = sum(len(y) for _, y in data)
    return [total / examples for total in sums]

  return run


def _workload(num_clients, size, batch_size, repeats, contexts):
  clients = workloads.images(num_clients, size)
  product = _product(clients, batch_size, contexts['ours'])
  stock = _stock(clients, batch_size, contexts['stock'])
  # Last: Keras models built in TFF computations would make it invalid.
  loop = plain_loop(workloads.large_cnn(), clients, batch_size)
  return contest.Workload(
      f'{num_clients} clients x {size} images, batch {batch_size}', repeats,
      {'plain loop': loop, 'tff_noise': product, 'stock recipe': stock},
  )


_WORKLOADS = {
    '50x50': functools.partial(_workload, 50, 50, 10, 36),
    '10x500': functools.partial(_workload, 10, 500, 32, 20),
}


def main(names):
  """Prints the table of the workloads of these names; all without any."""
  contest.print_heading()
  with local.runtime(2):
    contexts = {
        'ours': tff.framework.get_context_stack().current,
        'stock': tff.backends.native.create_sync_local_cpp_execution_context(),
    }
    for name in names or _WORKLOADS:
      contest.run(_WORKLOADS[name](contexts))
    # The stock runtime stops its worker only if it is collected before the interpreter ends.
    contexts.clear()
    gc.collect()
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
