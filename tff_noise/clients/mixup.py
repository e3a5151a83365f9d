"""Mixup: training on blends of images (Zhang et al. 2018)."""

from collections.abc import Callable, Mapping

import tensorflow as tf

from tff_noise import types
from tff_noise.clients import program
from tff_noise.clients import seeds

# Names of the columns: the other image of a blend, by its place in the batch, its label, and the
# share of the first.
OTHERS, OTHER_LABELS, SHARE = 'others', 'other_labels', 'share'


def transform(
    alpha: float,
) -> Callable[[program.Batch], tuple[tf.Tensor, Mapping[str, tf.Tensor]]]:
  """Returns a `ClientProgram.transform`: every image is blended with another of its batch.

  `lambda x_i + (1 - lambda) x_j` with lambda from Beta(alpha, alpha), drawn once a batch. Its
  columns are `OTHERS` and `OTHER_LABELS`, int32 `[b]`, and `SHARE`, float32, lambda.

  Args:
    alpha: Positive; 0 for none, which gives the labels themselves and 1.
  """

  def blend(batch):
    if not alpha:
      others = tf.range(tf.shape(batch.labels)[0])
      return batch.images, {
          OTHERS: others, OTHER_LABELS: batch.labels, SHARE: tf.constant(1.0)
      }
    for_share, for_others = tf.unstack(
        tf.random.experimental.stateless_split(seeds.fold(batch.seed, seeds.MIX), 2)
    )
    share = draw_share(for_share, alpha)
    other = tf.random.experimental.stateless_shuffle(
        tf.range(tf.shape(batch.labels)[0]), for_others
    )
    columns = {OTHERS: other, OTHER_LABELS: tf.gather(batch.labels, other), SHARE: share}
    return mixed(batch.images, other, share), columns

  return blend


def draw_share(seed: tf.Tensor, alpha: float) -> tf.Tensor:
  """Returns float32 `[]`, lambda from Beta(alpha, alpha).

  Raises:
    types.UsageError: If alpha is below `types.SMALLEST_MIXUP_ALPHA`.
  """
  if alpha < types.SMALLEST_MIXUP_ALPHA:
    raise types.UsageError(
        f'alpha of mixup must be 0, for none, or at least {types.SMALLEST_MIXUP_ALPHA}, got '
        f'{alpha}: float32 has no numbers as small as those that a smaller one is drawn by'
    )
  # Beta(a, a) is G / (G + G') of two Gamma(a).
  gamma = tf.random.stateless_gamma([2], seed, alpha)
  return tf.math.divide_no_nan(gamma[0], gamma[0] + gamma[1])


def loss(of_labels: Callable[[tf.Tensor], tf.Tensor], step: program.Step) -> tf.Tensor:
  """Returns `lambda l(y_i) + (1 - lambda) l(y_j)`, of a step on what `transform` blended.

  Args:
    of_labels: l, from labels, int32 `[b]`, to the mean over the batch.
    step: The step.
  """
  share, others = step.columns[SHARE], step.columns[OTHER_LABELS]
  return share * of_labels(step.labels) + (1 - share) * of_labels(others)


def mixed(images: tf.Tensor, other: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
  """Returns `lambda x_i + (1 - lambda) x_j`, of the images' shape and dtype.

  Args:
    images: `[b, ...]`, x; bytes stay bytes: blended pixels are rounded.
    other: int32 `[b]`, j of each i.
    share: float32, lambda.
  """
  pixels = tf.cast(images, tf.float32)
  blended = share * pixels + (1 - share) * tf.gather(pixels, other)
  if images.dtype.is_integer:
    blended = tf.round(blended)
  return tf.cast(blended, images.dtype)
