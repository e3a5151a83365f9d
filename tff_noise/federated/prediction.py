"""Predictions of a Keras model for all examples of a client, in batches."""

import tensorflow as tf

from tff_noise.federated import loops
from tff_noise.federated import seeds
from tff_noise.models import images

_BATCH_SIZE = 64


def predict(network, input_shape, x, seed=None) -> tf.Tensor:
  """Returns float32 `[n, K]`, the logits of all examples, computed in batches.

  Args:
    network: The Keras model.
    input_shape: Of one example.
    x: `[n, ...]`, pixels or paths.
    seed: int32 `[2]`; images are shifted and mirrored at random where it is given.
  """
  num_examples = tf.shape(x)[0]
  # At least one, which may be empty: no batch at all has no shape.
  num_batches = tf.maximum(1, (num_examples + _BATCH_SIZE - 1) // _BATCH_SIZE)
  parts = tf.TensorArray(
      tf.float32, num_batches, infer_shape=False, element_shape=(None, network.outputs[0].shape[-1])
  )

  def predict_batch(i, parts):
    start = i * _BATCH_SIZE
    batch = tf.range(start, tf.minimum(start + _BATCH_SIZE, num_examples))
    pixels = images.read(tf.gather(x, batch), input_shape)
    if seed is not None:
      pixels = images.crop_and_flip(pixels, seeds.fold(seed, i))
    logits, _ = network(pixels, training=False)
    return parts.write(i, logits)

  return loops.repeat(num_batches, predict_batch, parts).concat()
