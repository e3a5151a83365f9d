"""An execution context of one's own: a worker that one started, and secure sums.

  python -m docs.examples.own_context
"""

import os
import random
import subprocess

import grpc
import portpicker
import tensorflow as tf
import tensorflow_federated as tff

from docs.examples import digits
from tff_noise import types
from tff_noise.algorithms import plain
from tff_noise.federated import aggregation
from tff_noise.federated import evaluation
from tff_noise.federated import task as task_lib

_ROUNDS = 6


def compile_computation(computation):
  """Replaces secure sums by plain ones, which workers know; then as TFF's native context."""
  computation = tff.backends.test.replace_secure_intrinsics_with_bodies(computation)
  return tff.backends.native.desugar_and_transform_to_native(computation)


def create_context(address: str) -> tff.framework.SyncExecutionContext:
  """Returns a context that computes on the TFF worker at `address`."""
  # Models are larger than the 4 MiB that gRPC takes by default.
  options = [('grpc.max_send_message_length', -1), ('grpc.max_receive_message_length', -1)]
  stub = tff.framework.RemoteExecutorGrpcStub(grpc.insecure_channel(address, options))

  def create_executor(cardinalities):
    executor = tff.framework.RemoteExecutor(stub)
    # A computation without clients says nothing about their number.
    executor.set_cardinalities({tff.CLIENTS: 0, **cardinalities})
    return executor

  return tff.framework.SyncExecutionContext(
      tff.framework.ResourceManagingExecutorFactory(create_executor),
      compile_computation,
      transform_args=tff.tensorflow.transform_args,
      transform_result=tff.tensorflow.transform_result,
  )


def train(data: digits.Digits) -> float:
  """Trains in the current context, by secure sums; returns the test accuracy."""
  task = task_lib.Task(
      data.model,
      types.LocalTraining(epochs=2, batch_size=32, learning_rate=0.1),
      aggregation=aggregation.secure_weighted_mean(
          update_bound=1.0, max_examples=int(data.federation.sizes.max())
      ),
  )
  process = plain.build_process(task).process
  evaluate = evaluation.build_evaluator(evaluation.build_evaluation(data.model), data.test)
  state = process.initialize()
  for round_num in range(1, _ROUNDS + 1):
    cohort = random.Random(round_num).sample(data.clients, 5)
    output = process.next(state, cohort)
    state = output.state
    print(round_num, output.metrics['client_work']['train']['loss'])
  return evaluate(process.get_model_weights(state))['accuracy']


def main() -> float:
  """Starts a worker, trains on it and stops it; returns the test accuracy."""
  # TensorFlow complains about the assertions in TFF's secure sums.
  tf.get_logger().setLevel('CRITICAL')
  data = digits.load()
  port = portpicker.pick_unused_port()
  binary = os.path.join(os.path.dirname(tff.__file__), 'data', 'worker_binary')
  with subprocess.Popen(
      [binary, f'--port={port}'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
  ) as worker:
    try:
      with tff.framework.get_context_stack().install(create_context(f'localhost:{port}')):
        accuracy = train(data)
    finally:
      worker.terminate()
  print(f'test accuracy {accuracy:.3f} after {_ROUNDS} rounds')
  return accuracy


if __name__ == '__main__':
  main()
