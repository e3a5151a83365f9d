"""FedDPCont under `tff.learning.programs.train_model`, labels communicated first.

  python -m docs.examples.train_model FOLDER
"""

import asyncio
import collections
import gc
import os
import sys

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from docs.examples import digits
from tff_noise import types
from tff_noise.algorithms import feddpcont
from tff_noise.data import client_data
from tff_noise.data import client_ids
from tff_noise.federated import evaluation
from tff_noise.federated import label_histogram
from tff_noise.federated import task as task_lib
from tff_noise.privacy import estimator
from tff_noise.privacy import mechanism as mechanism_lib
from tff_noise.privacy import protection

_ROUNDS = 6


# `train_model` has several rounds released and saved at the same time. These take one after
# another, or rows are lost, and states that are removed twice end in a traceback.
class Rows(tff.program.CSVFileReleaseManager):
  """A file of metrics."""

  def __init__(self, path: str):
    super().__init__(path, key_fieldname='round')
    self._turn = asyncio.Lock()

  async def release(self, value, key):
    async with self._turn:
      await super().release(value, key)


class States(tff.program.FileProgramStateManager):
  """Checkpoints."""

  def __init__(self, folder: str):
    super().__init__(folder)
    self._turn = asyncio.Lock()

  async def save(self, program_state, version):
    async with self._turn:
      await super().save(program_state, version)


def write_clients(federation: types.Federation, folder: str) -> None:
  """Writes what each client has where its computation will read it."""
  for client, examples in enumerate(federation.clients):
    held = {'x': examples.x, **label_histogram.client_labels(federation, client)}
    for name, value in held.items():
      path = os.path.join(folder, str(client), name)
      os.makedirs(os.path.dirname(path), exist_ok=True)
      tf.io.write_file(path, tf.io.serialize_tensor(value))


def _tensor(folder, client_id, name, dtype, shape):
  content = tf.io.read_file(tf.strings.join([folder, client_id, name], os.sep))
  return tf.ensure_shape(tf.io.parse_tensor(content, dtype), shape)


def build_reader(folder: str) -> tff.Computation:
  """Returns `(str -> D*)`, from a client's id to its data."""

  @tff.tensorflow.computation(np.str_)
  def read(client_id):
    return tf.data.Dataset.from_tensors(
        collections.OrderedDict(
            x=_tensor(folder, client_id, 'x', tf.uint8, (None, 8, 8, 1)),
            y=_tensor(folder, client_id, 'y', tf.int32, (None,)),
            client=tf.strings.to_number(client_id, tf.int32),
        )
    )

  return read


def build_label_reader(folder: str) -> tff.Computation:
  """Returns `(str -> <y=int32[?],example_id=int64[?],secret=int64[2]>)`, from a client's id."""

  @tff.tensorflow.computation(np.str_)
  def read(client_id):
    return collections.OrderedDict(
        y=_tensor(folder, client_id, 'y', tf.int32, (None,)),
        example_id=_tensor(folder, client_id, 'example_id', tf.int64, (None,)),
        secret=_tensor(folder, client_id, 'secret', tf.int64, (2,)),
    )

  return read


async def estimate_labels(federation: types.Federation, folder: str) -> np.ndarray:
  """Returns p_hat from one private report for each label; labels stay where clients compute."""
  mechanism = mechanism_lib.randomized_response('2.0', federation.num_classes)
  num_labels = int(federation.sizes.sum())
  communicate, _ = label_histogram.build_label_histogram(
      federation.num_classes,
      max_count=int(federation.sizes.max()),
      max_clients=len(federation.clients),
      mechanism=mechanism,
      protection=protection.LabelReports(
          federation.num_classes, mechanism.epsilon, num_labels=num_labels
      ),
  )
  read = build_label_reader(folder)

  @tff.federated_computation(tff.FederatedType(np.str_, tff.CLIENTS))
  def communicate_by_id(client_ids):
    return communicate(tff.federated_map(read, client_ids))

  client_ids = [str(client) for client in range(len(federation.clients))]
  total = await tff.program.materialize_value(communicate_by_id(client_ids))
  return estimator.estimate(total, 'shrinkage', mechanism, num_labels=num_labels).prior


async def train(data: digits.Digits, folder: str) -> float:
  """Runs the program; returns the test accuracy of the last model."""
  training = types.LocalTraining(epochs=2, batch_size=32, learning_rate=0.1)
  built = feddpcont.build_process(task_lib.Task(data.model, training))
  clients = os.path.join(folder, 'clients')
  process = tff.simulation.compose_dataset_computation_with_learning_process(
      build_reader(clients), built.process
  )
  start = await tff.program.materialize_value(process.initialize())
  prior = await estimate_labels(data.federation, clients)
  start = built.send(start, label_prior=prior)
  start = await tff.program.materialize_value(start)
  models = tff.program.SavedModelFileReleaseManager(folder, 'model_')
  await tff.learning.programs.train_model(
      train_process=process,
      initial_train_state=start,
      train_data_source=client_ids.ClientIds(
          [str(client) for client in range(len(data.clients))], seed=0
      ),
      train_per_round_clients=5,
      train_total_rounds=_ROUNDS,
      program_state_manager=States(os.path.join(folder, 'state')),
      model_output_manager=models,
      train_metrics_manager=Rows(os.path.join(folder, 'metrics.csv')),
      evaluation_manager=None,
      evaluation_periodicity=_ROUNDS,
  )
  released = await models.get_value(f'training_checkpoint_round_{_ROUNDS}')
  last = tf.nest.pack_sequence_as(start, tf.nest.flatten(released))
  evaluate = evaluation.build_evaluation(data.model)
  test = client_data.server_dataset(data.test.x, data.test.y)
  result = await tff.program.materialize_value(evaluate(process.get_model_weights(last), [test]))
  return float(result['accuracy'])


def main(folder: str) -> float:
  """Trains or goes on; returns the test accuracy and leaves metrics and states in `folder`."""
  # TensorFlow complains about the assertions in TFF's secure sums.
  tf.get_logger().setLevel('CRITICAL')
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
  if len(sys.argv) != 2:
    sys.exit('give a folder for what comes of it, as in the docstring')
  main(sys.argv[1])
