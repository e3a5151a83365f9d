"""Outputs of a Keras model for all examples of a client, in batches."""

from collections.abc import Sequence

import tensorflow as tf

from tff_noise.clients import loops
from tff_noise.clients import seeds
from tff_noise.models import images

_BATCH_SIZE = 64


def outputs(
    network: tf.keras.Model,
    input_shape: tuple[int, ...],
    x: tf.Tensor,
    seed: tf.Tensor | None,
    used: Sequence[int],
) -> list[tf.Tensor]:
  """Returns float32 `[n, d]` of each output of a network on all examples, computed in batches.

  Args:
    network: The Keras model.
    input_shape: Of one example.
    x: `[n, ...]`, pixels or paths.
    seed: int32 `[2]`; images are shifted and mirrored at random where it is given.
    used: Which of the outputs.
  """
  num_examples = tf.shape(x)[0]
  # At least one, which may be empty: no batch at all has no shape.
  num_batches = tf.maximum(1, (num_examples + _BATCH_SIZE - 1) // _BATCH_SIZE)
  parts = [
      tf.TensorArray(
          tf.float32, num_batches, infer_shape=False,
          element_shape=(None, network.outputs[i].shape[-1]),
      )
      for i in used
  ]

  def predict_batch(i, parts):
    start = i * _BATCH_SIZE
    batch = tf.range(start, tf.minimum(start + _BATCH_SIZE, num_examples))
    pixels = images.read(tf.gather(x, batch), input_shape)
    if seed is not None:
      pixels = images.crop_and_flip(pixels, seeds.fold(seed, i))
    given = network(pixels, training=False)
    return [part.write(i, given[j]) for part, j in zip(parts, used, strict=True)]

  return [part.concat() for part in loops.repeat(num_batches, predict_batch, parts)]


def predict(network: tf.keras.Model, input_shape: tuple[int, ...], x: tf.Tensor) -> tf.Tensor:
  """Returns float32 `[n, K]`, the logits of all examples; arguments are those of `outputs`."""
  return outputs(network, input_shape, x, seed=None, used=(0,))[0]
