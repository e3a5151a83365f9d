"""A method and a model of one's own, without a change of tff_noise.

  python -m bin.train --method=docs.examples.own_method:METHOD --param=weight=0.5
  python -m bin.train --model=docs.examples.own_method:network

METHOD says nothing that loads TensorFlow: its parameters are read before. The method here is FedAvg
whose loss mixes cross-entropy with the mean absolute error, which forgives wrong labels (Ghosh et
al., Robust Loss Functions under Label Noise for Deep Neural Networks, AAAI 2017).
"""

import dataclasses

from tff_noise.algorithms import catalog


@dataclasses.dataclass(frozen=True)
class Params:
  """Its own parameters: a field is --param=weight=..., its default's type that of the value."""

  weight: float = 0.5  # Of the mean absolute error, in [0, 1].

  def __post_init__(self):
    if not 0 <= self.weight <= 1:
      raise ValueError(f'weight must be in [0, 1], got {self.weight}')


METHOD = catalog.Entry(
    name='mae', title='cross-entropy mixed with the mean absolute error', paper='an example',
    place='docs.examples.own_method:build', params=Params, takes_base=True,
)


def build(task, params):
  """Returns the algorithm: what a client computes, and what the server does in a round."""
  from tff_noise.algorithms import algorithm
  from tff_noise.clients import label_loss
  from tff_noise.federated import computation
  from tff_noise.models import losses

  def loss(logits, labels):
    # `training.loss` has smoothing, temperature and the flips of private labels.
    cross_entropy = losses.cross_entropy(logits, labels, task.training.loss)
    # 1 - p_y is half the mean absolute error, and L_q of GCE for q = 1.
    absolute = losses.generalised_cross_entropy(logits, labels, q=1.0, form=task.training.loss)
    return (1 - params.weight) * cross_entropy + params.weight * absolute

  # Of logits and labels alone: --mixup_alpha and --logit_adjustment are added to it.
  client = label_loss.client(loss, task.training)
  return algorithm.of_rounds(task, computation.train('a round of train', task, client))


def network(input_shape, num_classes, *, norm, **pixels):
  """Returns a small network, as those of `tff_noise.models.architectures`: `[logits, features]`."""
  import tensorflow as tf

  from tff_noise.models import layers

  raw, x = layers.pixels(input_shape, **pixels)
  x = tf.keras.layers.Flatten()(x)
  x = tf.keras.layers.Dense(32, activation='relu', name='hidden')(x)
  return layers.model(raw, layers.normalization(norm, 'norm')(x), num_classes)
