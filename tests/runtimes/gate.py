"""A client's computation that tells when it has begun, and goes on when it is told to."""

import os
import time

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

_WAIT_SECONDS = 120


class Gate:
  """Two files, through which a computation in a worker and a test speak."""

  def __init__(self, folder: str):
    self._begun = os.path.join(folder, 'begun')
    self._open = os.path.join(folder, 'open')

  def open(self) -> None:
    """Lets computations pass from now on."""
    with open(self._open, 'w', encoding='utf-8'):
      pass

  def wait(self, count: int = 1) -> None:
    """Returns when `count` clients have begun.

    Raises:
      TimeoutError: If they do not.
    """
    deadline = time.monotonic() + _WAIT_SECONDS
    folder = os.path.dirname(self._begun)
    while sum(name.startswith('begun') for name in os.listdir(folder)) < count:
      if time.monotonic() > deadline:
        raise TimeoutError('no client has begun')
      time.sleep(0.01)

  def total(self) -> tff.Computation:
    """Returns `{int64}@CLIENTS -> int64@SERVER`, a sum; clients wait until the gate is open."""

    @tff.tensorflow.computation(np.int64)
    def pass_through(x):
      @tf.function
      def run(x):
        begun = tf.io.write_file(tf.strings.join([self._begun, tf.strings.as_string(x)]), 'x')
        # First, or the loop may keep all of TensorFlow's threads busy.
        with tf.control_dependencies([begun]):
          waiting = tf.identity(True)
        while waiting:
          # Of a name without a star it says that it is there, without looking.
          waiting = tf.equal(tf.size(tf.io.matching_files(self._open + '*')), 0)
        # TensorFlow leaves out a loop whose result nobody needs.
        return x + tf.cast(waiting, tf.int64)

      return run(x)

    @tff.federated_computation(tff.FederatedType(np.int64, tff.CLIENTS))
    def total(x):
      return tff.federated_sum(tff.federated_map(pass_through, x))

    return total
