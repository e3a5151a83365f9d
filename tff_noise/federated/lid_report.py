"""The LID score of a client's local model, as a report to the server (FedCorr, section 3.2)."""

import collections
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tff_noise.federated import client_work
from tff_noise.federated import intrinsic_dimension
from tff_noise.federated import uplink

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


def reporting(neighbours: int) -> Mapping[str, Any]:
  """Returns the fields of `client_work.ClientWork` that make every client report its LID."""

  def finish(inputs: client_work.FinishInputs) -> client_work.Finished:
    logits = inputs.predict(False)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=inputs.labels, logits=logits)
    reports = collections.OrderedDict([(NAME, value(logits, losses, neighbours))])
    return client_work.Finished(inputs.local, reports=reports)

  return {'finish': finish, 'reports': (REPORT,)}
