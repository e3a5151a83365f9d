"""The LID score of a client's local model, as a report to the server (FedCorr, section 3.2)."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tff_noise.clients import intrinsic_dimension
from tff_noise.clients import program
from tff_noise.uplink import uplink

NAME = 'lid'

REPORT = uplink.UplinkReport(
    NAME, np.float32, 0.0, intrinsic_dimension.MAX_DIMENSION,
    'mean local intrinsic dimension of the predictions, by which the server tells noisy clients '
    'from clean ones: it needs to know whose it is',
)


def value(logits: tf.Tensor, losses: tf.Tensor, neighbours: int) -> tf.Tensor:
  """Returns float32, the LID of predictions; nan where training diverged.

  LID alone would not show that: without distances it is that of a point.

  Args:
    logits: float32 `[n_c, K]`, of the local model.
    losses: float32 `[n_c]`, its loss on each example.
    neighbours: k.
  """
  lid = intrinsic_dimension.lid_score(tf.nn.softmax(logits), neighbours)
  finite = tf.reduce_all(tf.math.is_finite(losses))
  return tf.where(finite, lid, np.float32(np.nan))


def final(
    neighbours: int, temperature: float
) -> Callable[[program.Result], program.Sent]:
  """Returns a `ClientProgram.final` that reports the LID of a model trained at a temperature."""

  def report(result):
    logits = result.client.predict() / temperature
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=result.labels, logits=logits)
    return program.Sent(reports={NAME: value(logits, losses, neighbours)})

  return report
