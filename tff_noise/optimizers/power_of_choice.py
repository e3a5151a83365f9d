"""Power-of-Choice: of some candidates, those with the largest losses take part (Cho et al. 2022).

In each round d candidates are drawn with probabilities proportional to their examples, told the
global model, and report their mean loss; the m with the largest losses train. Two variants save
what that costs: cpow-d computes the loss on one batch, and rpow-d asks nobody, but takes the
training loss that each reported when it last took part, and first those that never did.

A client with wrong labels has a large loss: of noisy clients it chooses more, not fewer.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING

from tff_noise import params as params_lib
from tff_noise import types
from tff_noise.optimizers import spec

if TYPE_CHECKING:
  from tff_noise.federated import client_pass
  from tff_noise.federated import optimizer

_MAX_LOSS = 100.0
_REASON = 'mean loss on the own examples, by which the server chooses who takes part'


@dataclasses.dataclass(frozen=True)
class PowerOfChoiceParams:
  """Power-of-Choice's own parameters.

  Attributes:
    candidates: d, at least the clients of a round (with so many, it is a draw in proportion to
      examples).
    loss: 'all', of all of a candidate's examples; 'batch', of one batch (cpow-d); 'stale', of the
      last time it took part (rpow-d).
  """

  candidates: int = 20
  loss: str = 'all'

  def __post_init__(self):
    params_lib.require_positive(self, 'candidates')
    params_lib.require_one_of(self, 'loss', ('all', 'batch', 'stale'))


def _poll(setting, on_one_batch) -> client_pass.ClientPass:
  import numpy as np
  import tensorflow as tf
  import tensorflow_federated as tff

  from tff_noise.federated import client_pass
  from tff_noise.federated import seeds
  from tff_noise.federated import uplink

  def ask(inputs):
    labels = inputs.labels
    if on_one_batch:
      # `local` is the number of the round: another batch in each.
      seed = seeds.fold(inputs.seed, inputs.local)
      order = seeds.batch_order(seed, tf.shape(labels)[0])
      batch = order[: setting.training.batch_size]
      labels, logits = tf.gather(labels, batch), inputs.predict_some(batch)
    else:
      logits = inputs.predict(False)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return client_pass.PassOutputs(inputs.local, {'loss': tf.reduce_mean(losses)})

  report = uplink.UplinkReport('loss', np.float32, 0.0, _MAX_LOSS, _REASON)
  return client_pass.build_client_pass(
      setting.model, ask, tff.TensorType(np.int32), (report,), seed=setting.seed
  )


def _build(
    setting: optimizer.Setting, params: PowerOfChoiceParams
) -> optimizer.FederatedOptimizer:
  import numpy as np

  from tff_noise.federated import optimizer
  from tff_noise.federated import uplink

  if params.candidates < setting.clients_per_round:
    raise types.UsageError(
        f'power of choice needs at least --clients_per_round={setting.clients_per_round} '
        f'candidates, got candidates={params.candidates}'
    )
  fed_avg = optimizer.fed_avg(setting.model.weights_type)
  ratio = params.candidates / setting.clients_per_round
  if params.loss != 'stale':
    poll = _poll(setting, on_one_batch=params.loss == 'batch')
    return fed_avg._replace(choice=optimizer.Choice(ratio, poll))

  def send(result):
    return optimizer.Sent(
        result.update, result.state, reports=collections.OrderedDict(loss=result.loss)
    )

  # The training loss, which some methods have below 0.
  report = uplink.UplinkReport('loss', np.float32, -_MAX_LOSS, _MAX_LOSS, _REASON)
  return fed_avg._replace(
      client=optimizer.ClientRule(send=send, reports=(report,)),
      choice=optimizer.Choice(ratio, None),
  )


SPEC = spec.OptimizerSpec(
    name='poc',
    title='Power-of-Choice: of some candidates, those with the largest losses take part',
    paper='Cho et al., AISTATS 2022',
    params=PowerOfChoiceParams,
    build=_build,
    per_client="each candidate's mean loss",
)
