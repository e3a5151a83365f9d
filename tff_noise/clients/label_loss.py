"""Local training by a loss of logits and labels, and what any such loss may have besides.

Two parts, of no method's own, that `types.LocalTraining` turns on for all of them alike:

Logit adjustment (Menon et al., ICLR 2021; by client as in FedLC, Zhang et al., ICML 2022):
  `l(z + tau T log K pi_c, y)`, `pi_c(k) = (n_k + 1) / (n + K)`
with n_k the client's examples of label k and T the temperature by which l divides logits. The model
has not to know what a client has few of.

Mixup (Zhang et al., ICLR 2018), of the images of a batch:
  `x = lambda x_i + (1 - lambda) x_j`, `lambda l(z, y_i) + (1 - lambda) l(z, y_j)`,
  `lambda ~ Beta(alpha, alpha)`, drawn once a batch.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_noise import types
from tff_noise.clients import mixup
from tff_noise.clients import program


def client(
    loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], training: types.LocalTraining, **more: Any
) -> program.ClientProgram:
  """Returns local training by `loss`, with the parts that `training` asks for.

  Args:
    loss: From logits, float32 `[b, K]`, and labels, int32 `[b]`, to the mean over the batch.
    training: Whose parts they are.
    **more: Further attributes of the program, but for `loss` and `transform`.
  """

  def whole(s):
    logits = s.logits
    if training.logit_adjustment:
      # By place: `watched_loss` asks whether the loss itself looks at it.
      strength = training.logit_adjustment * training.loss[1]
      logits += strength * log_prior(tf.one_hot(s.client.labels, logits.shape[-1]))
    if not training.mixup_alpha:
      return loss(logits, s.labels)
    return mixup.loss(lambda labels: loss(logits, labels), s)

  transform = mixup.transform(training.mixup_alpha) if training.mixup_alpha else None
  return program.ClientProgram(loss=whole, transform=transform, is_of_labels=True, **more)


def log_prior(labels: tf.Tensor) -> tf.Tensor:
  """Returns float32 `[K]`, `log K pi` of labels, float32 `[n, K]`, a distribution each."""
  num_classes = labels.shape[1]
  n = tf.cast(tf.shape(labels)[0], tf.float32)
  pi = (tf.reduce_sum(labels, axis=0) + 1) / (n + num_classes)
  return tf.math.log(num_classes * pi)


def require_of_labels(client_: program.ClientProgram, training: types.LocalTraining) -> None:
  """Raises `UsageError` where `training` asks for parts that the program has no place for."""
  if client_.is_of_labels or not (training.mixup_alpha or training.logit_adjustment):
    return
  flag = '--mixup_alpha' if training.mixup_alpha else '--logit_adjustment'
  raise types.UsageError(
      f'{flag} is for methods whose clients do no more than train by a loss of logits and labels, '
      'fedavg and the other optimizers, gce, sce and clipfl: leave it out, or use one of these'
  )
