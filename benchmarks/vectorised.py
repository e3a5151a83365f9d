"""What one operation for many clients would give on small models, as a bound: no TFF, no method.

  python -m benchmarks.vectorised [--repeats=20]

Clients of the digits' size train a perceptron of one hidden layer, without norm, each for five
epochs of batches of ten, on one thread: one client after the other in one graph, as TFF's executor
runs a client's graph ten times; as one batch axis over the clients of a round; and over those of
several seeds. It prints milliseconds a client and the largest difference of weights.
"""

import argparse
import os
import sys
import time

import numpy as np

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import tensorflow as tf

_PIXELS, _UNITS, _CLASSES = 64, 128, 10
_EXAMPLES, _BATCH, _EPOCHS, _RATE = 90, 10, 5, 0.1
_CLIENTS = 10
_SEEDS = (1, 5, 20)


def _first_weights():
  draw = np.random.default_rng(0)
  return [
      tf.constant(draw.normal(0, 0.1, shape), tf.float32)
      for shape in ((_PIXELS, _UNITS), (1, _UNITS), (_UNITS, _CLASSES), (1, _CLASSES))
  ]


def _steps(weights, x, y):
  """Trains on `x` `[..., n, 64]` and `y` `[..., n, 10]`; each leading index is a client."""
  batches = _EXAMPLES // _BATCH

  def step(i, weights):
    start = _BATCH * (i % batches)
    images, labels = (v[..., start : start + _BATCH, :] for v in (x, y))
    with tf.GradientTape() as tape:
      tape.watch(weights)
      w1, b1, w2, b2 = weights
      logits = tf.nn.relu(images @ w1 + b1) @ w2 + b2
      losses = tf.nn.softmax_cross_entropy_with_logits(labels, logits)
      # A mean for each client: their gradients do not mix.
      loss = tf.reduce_sum(tf.reduce_mean(losses, axis=-1))
    gradients = tape.gradient(loss, weights)
    return i + 1, [w - _RATE * g for w, g in zip(weights, gradients, strict=True)]

  return tf.while_loop(lambda i, _: i < _EPOCHS * batches, step, [0, weights])[1]


@tf.function
def _one_by_one(x, y):
  return tf.map_fn(
      lambda data: _steps(_first_weights(), *data), (x, y), parallel_iterations=1,
      fn_output_signature=[tf.float32] * 4,
  )


@tf.function
def _at_once(x, y):
  clients = tf.shape(x)[0]
  weights = [tf.tile(w[tf.newaxis], [clients, 1, 1]) for w in _first_weights()]
  return _steps(weights, x, y)


def _best(function, x, y, repeats):
  """Seconds of the fastest of some calls, and the last result."""
  function(x, y)
  best = np.inf
  for _ in range(repeats):
    start = time.perf_counter()
    result = function(x, y)
    best = min(best, time.perf_counter() - start)
  return best, result


def main() -> int:
  """Prints a table."""
  parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
  parser.add_argument('--repeats', type=int, default=20)
  arguments = parser.parse_args()
  tf.config.threading.set_intra_op_parallelism_threads(1)
  tf.config.threading.set_inter_op_parallelism_threads(1)
  draw = np.random.default_rng(1)
  print('| clients at once | one by one, ms a client | at once, ms a client | times | difference |')
  print('| --- | --- | --- | --- | --- |')
  for seeds in _SEEDS:
    count = seeds * _CLIENTS
    x = tf.constant(draw.random((count, _EXAMPLES, _PIXELS)), tf.float32)
    y = tf.one_hot(draw.integers(0, _CLASSES, (count, _EXAMPLES)), _CLASSES)
    slow, first = _best(_one_by_one, x, y, arguments.repeats)
    fast, second = _best(_at_once, x, y, arguments.repeats)
    apart = max(np.abs(a - b).max() for a, b in zip(first, second, strict=True))
    print(f'| {count} | {1000 * slow / count:.2f} | {1000 * fast / count:.2f} '
          f'| {slow / fast:.1f} | {apart:.1g} |', flush=True)
  return 0


if __name__ == '__main__':
  sys.exit(main())
