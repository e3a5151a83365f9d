"""One step of several clients side by side on one device, against one client after the other.

  python -m benchmarks.side_by_side [CLIENTS] [BATCH]

A client's step is small, and a GPU may wait for the next one most of the time: would it pay to give
all clients of a round to one operation? A step of SGD of each of C clients with weights of its own,
on the layers of `cnn` without normalisation:

* *loop*: a `tf.function` for one client, called for one after the other, as runtimes do;
* *vectorized_map*: the same function under `tf.vectorized_map`;
* *batched products*: convolutions as products of patches, which have a batch of clients;
* *grouped convolutions*: clients as groups of channels.

All are checked against the loop before they are timed, and take turns.
"""

import os
import sys

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np
import tensorflow as tf

from benchmarks import contest
from benchmarks import workloads

_LEARNING_RATE = 0.01
_FILTERS = (32, 64)
_UNITS = 128
_REPEATS = 15
_HEIGHT, _WIDTH, _CHANNELS = workloads.IMAGE


def _weights(clients):
  """Kernels of each layer, float32 `[C, ...]`, without biases."""
  draw = np.random.default_rng(0)
  shapes = [(3, 3, _CHANNELS, _FILTERS[0]), (3, 3, *_FILTERS)]
  shapes += [(_HEIGHT * _WIDTH // 16 * _FILTERS[1], _UNITS), (_UNITS, workloads.NUM_CLASSES)]
  return [
      tf.constant(draw.normal(0, np.prod(s[:-1]) ** -0.5, (clients, *s)), tf.float32)
      for s in shapes
  ]


def _loss(labels, logits):
  """The sum over clients of their mean losses: its gradient is each client's own."""
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
  return tf.reduce_sum(tf.reduce_mean(losses, -1))


def _alone(weights, x, y):
  """The loss of one client: `weights` without C, x `[B, H, W, 3]`, y `[B]`."""
  *kernels, dense, last = weights
  for kernel in kernels:
    x = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(x, kernel, 1, 'SAME')), 2, 2, 'VALID')
  x = tf.reshape(x, [x.shape[0], -1])
  return _loss(y, tf.nn.relu(x @ dense) @ last)


def _products(weights, x, y):
  """The loss of all clients: x `[C, B, H, W, 3]`, y `[C, B]`."""
  *kernels, dense, last = weights
  clients, batch = x.shape[:2]
  for kernel in kernels:
    _, _, height, width, depth = x.shape
    patches = tf.image.extract_patches(
        tf.reshape(x, [clients * batch, height, width, depth]),
        [1, 3, 3, 1], [1, 1, 1, 1], [1, 1, 1, 1], 'SAME',
    )
    x = tf.reshape(patches, [clients, -1, 9 * depth]) @ tf.reshape(kernel, [clients, 9 * depth, -1])
    x = tf.nn.relu(tf.reshape(x, [clients * batch, height, width, -1]))
    x = tf.nn.max_pool2d(x, 2, 2, 'VALID')
    x = tf.reshape(x, [clients, batch, *x.shape[1:]])
  x = tf.reshape(x, [clients, batch, -1])
  return _loss(y, tf.nn.relu(x @ dense) @ last)


def _groups(weights, x, y):
  """The same by convolutions over `[B, H, W, C * channels]`."""
  *kernels, dense, last = weights
  clients, batch = x.shape[:2]
  x = tf.reshape(tf.transpose(x, [1, 2, 3, 0, 4]), [batch, *x.shape[2:4], -1])
  for kernel in kernels:
    kernel = tf.reshape(tf.transpose(kernel, [1, 2, 3, 0, 4]), [*kernel.shape[1:4], -1])
    x = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(x, kernel, 1, 'SAME')), 2, 2, 'VALID')
  x = tf.reshape(x, [batch, *x.shape[1:3], clients, -1])
  x = tf.reshape(tf.transpose(x, [3, 0, 1, 2, 4]), [clients, batch, -1])
  return _loss(y, tf.nn.relu(x @ dense) @ last)


def _step(loss, weights, x, y):
  with tf.GradientTape() as tape:
    tape.watch(weights)
    value = loss(weights, x, y)
  gradients = tape.gradient(value, weights)
  return [w - _LEARNING_RATE * g for w, g in zip(weights, gradients, strict=True)]


def _contenders(clients, batch):
  """By name what makes a step of all clients: gives, for each layer, C kernels."""
  weights = _weights(clients)
  images = workloads.images(clients, batch)
  x = tf.constant(np.stack([x for x, _ in images]) / 255, tf.float32)
  y = tf.constant(np.stack([y for _, y in images]), tf.int32)
  of_each = [([w[i] for w in weights], x[i], y[i]) for i in range(clients)]
  alone = tf.function(lambda *args: _step(_alone, *args), autograph=False)
  mapped = tf.function(
      lambda *args: tf.vectorized_map(lambda one: _step(_alone, *one), args), autograph=False
  )
  at_once = {
      name: tf.function(lambda *args, loss=loss: _step(loss, *args), autograph=False)
      for name, loss in (('batched products', _products), ('grouped convolutions', _groups))
  }
  found = {
      'loop': lambda: list(zip(*(alone(*one) for one in of_each), strict=True)),
      'vectorized_map': lambda: mapped(weights, x, y),
  }
  return found | {
      name: lambda function=function: function(weights, x, y) for name, function in at_once.items()
  }


def _checked(all_of_them):
  """Yields those that run on this device; raises AssertionError if one differs from the first."""
  tf.config.experimental.enable_tensor_float_32_execution(False)  # As the runtime has it.
  expected = None
  for name, step in all_of_them.items():
    try:
      found = step()
    except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
      print(f'{name}: not on this device ({error.message.splitlines()[0]})', file=sys.stderr)
      continue
    expected = found if expected is None else expected
    for value, right in zip(found, expected, strict=True):
      np.testing.assert_allclose(np.array(value), np.array(right), rtol=1e-3, atol=1e-4)
    # The last layer's are few, and what is computed is waited for.
    yield name, lambda step=step: np.array(step()[-1])


def main(arguments):
  """Prints the table."""
  clients, batch = map(int, (*arguments, *('10', '32')[len(arguments):]))
  contest.print_heading()
  steps = dict(_checked(_contenders(clients, batch)))
  contest.run(contest.Workload(f'{clients} clients, batch {batch}', _REPEATS, steps))
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
