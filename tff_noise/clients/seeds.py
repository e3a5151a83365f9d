"""Seeds of what is random in a client's computation, for TensorFlow's stateless operations."""

import numpy as np
import tensorflow as tf

# What is folded into a seed, so that no two uses of it share random numbers. Into a client's, where
# epochs count from 0: for images that are looked at, for what a program draws for its columns.
PREDICT, COLUMNS = -1, -2
# Into an epoch's: for its order, for what programs draw, and from here on for its steps.
SHUFFLE, DRAW, FIRST_STEP = 0, 1, 2
# Into a step's: for its images, for mixup, for a further view; from here on a method's own.
AUGMENT, MIX, VIEW, OWN = 0, 1, 2, 3


def fold(seed: np.ndarray, *ids) -> tf.Tensor:
  """int32 `[2]`, a seed of its own for each sequence of ids.

  An epoch's is `fold(seed, round, client, epoch)`.
  """
  for part in ids:
    seed = tf.random.experimental.stateless_fold_in(seed, part)
  return seed


def batch_order(seed_of_epoch: tf.Tensor, num_examples: tf.Tensor) -> tf.Tensor:
  """int32 `[n]`, the order in which an epoch visits the examples."""
  return tf.random.experimental.stateless_shuffle(
      tf.range(num_examples), fold(seed_of_epoch, SHUFFLE)
  )
