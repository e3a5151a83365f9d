"""FedDPCont under `tff.learning.programs.train_model`, labels communicated first.

  python -m docs.examples.train_model FOLDER
"""

import asyncio
import collections
import gc
import os
import random
import sys

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from docs.examples import digits
from tff_noise import types
from tff_noise.data import client_data
from tff_noise.federated import evaluation
from tff_noise.federated import label_communication
from tff_noise.methods import feddpcont
from tff_noise.privacy import estimator
from tff_noise.privacy import mechanism as mechanism_lib
from tff_noise.privacy import protection

_ROUNDS = 6


def write_clients(federation: types.Federation, folder: str) -> None:
  """Writes each client's images and labels where its computation will read them."""
  for client, examples in enumerate(federation.clients):
    for name in ('x', 'y'):
      path = os.path.join(folder, str(client), name)
      os.makedirs(os.path.dirname(path), exist_ok=True)
      tf.io.write_file(path, tf.io.serialize_tensor(getattr(examples, name)))


def build_reader(folder: str) -> tff.Computation:
  """Returns `(str -> D*)`, from a client's id to its data."""

  @tff.tensorflow.computation(np.str_)
  def read(client_id):
    def tensor(name, dtype, shape):
      content = tf.io.read_file(tf.strings.join([folder, client_id, name], os.sep))
      return tf.ensure_shape(tf.io.parse_tensor(content, dtype), shape)

    return tf.data.Dataset.from_tensors(
        collections.OrderedDict(
            x=tensor('x', tf.uint8, (None, 8, 8, 1)),
            y=tensor('y', tf.int32, (None,)),
            client=tf.strings.to_number(client_id, tf.int32),
        )
    )

  return read


async def estimate_labels(federation: types.Federation) -> np.ndarray:
  """Returns p_hat from one private report for each label."""
  mechanism = mechanism_lib.randomized_response('2.0', federation.num_classes)
  num_labels = int(federation.sizes.sum())
  communicate, _ = label_communication.build_label_communication(
      federation.num_classes,
      max_count=int(federation.sizes.max()),
      max_clients=len(federation.clients),
      protection=protection.LabelReports(
          federation.num_classes, mechanism.epsilon, num_labels=num_labels
      ),
  )
  key = mechanism_lib.simulation_key(federation.seed)
  histograms = [
      feddpcont.client_histogram(
          i, examples, mechanism, num_classes=federation.num_classes, key=key
      )
      for i, examples in enumerate(federation.clients)
  ]
  total = await tff.program.materialize_value(communicate(histograms))
  return estimator.estimate(total, 'shrinkage', mechanism, num_labels=num_labels).prior


async def train(data: digits.Digits, folder: str) -> float:
  """Runs the program; returns the test accuracy of the last model."""
  training = types.LocalTraining(epochs=2, batch_size=32, learning_rate=0.1)
  process = feddpcont.build_process(data.model, training=training).process
  process = tff.simulation.compose_dataset_computation_with_learning_process(
      build_reader(os.path.join(folder, 'clients')), process
  )
  start = await tff.program.materialize_value(process.initialize())
  start = feddpcont.set_label_prior(process, start, await estimate_labels(data.federation))
  start = await tff.program.materialize_value(start)
  models = tff.program.SavedModelFileReleaseManager(folder, 'model_')
  await tff.learning.programs.train_model(
      train_process=process,
      initial_train_state=start,
      train_data_source=tff.program.ClientIdDataSource(
          [str(client) for client in range(len(data.clients))]
      ),
      train_per_round_clients=5,
      train_total_rounds=_ROUNDS,
      program_state_manager=tff.program.FileProgramStateManager(os.path.join(folder, 'state')),
      model_output_manager=models,
      train_metrics_manager=tff.program.CSVFileReleaseManager(
          os.path.join(folder, 'metrics.csv'), key_fieldname='round'
      ),
      evaluation_manager=None,
      evaluation_periodicity=_ROUNDS,
  )
  released = await models.get_value(f'training_checkpoint_round_{_ROUNDS}')
  last = tf.nest.pack_sequence_as(start, tf.nest.flatten(released))
  evaluate = evaluation.build_evaluation(data.model)
  test = client_data.client_dataset(data.test.x, data.test.y, client=0)
  result = await tff.program.materialize_value(evaluate(process.get_model_weights(last), test))
  return float(result['accuracy'])


def main(folder: str) -> float:
  """Trains or goes on; returns the test accuracy and leaves metrics and states in `folder`."""
  # TensorFlow complains about the assertions in TFF's secure sums.
  tf.get_logger().setLevel('CRITICAL')
  random.seed(0)  # TFF draws the cohorts.
  data = digits.load()
  write_clients(data.federation, os.path.join(folder, 'clients'))
  context = tff.program.NativeFederatedContext(
      tff.backends.test.create_async_test_cpp_execution_context(max_concurrent_computation_calls=2)
  )
  with tff.framework.get_context_stack().install(context):
    accuracy = asyncio.run(train(data, folder))
  # TFF stops the worker when the context is collected, but not at the end of Python.
  del context
  gc.collect()
  print(f'test accuracy {accuracy:.3f} after {_ROUNDS} rounds')
  return accuracy


if __name__ == '__main__':
  main(sys.argv[1])
