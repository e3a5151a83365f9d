"""FedDyn: a linear term aligns local optima with the global one (Acar et al. 2021, algorithm 1).

Client k keeps h_k, in the end the gradient of its loss at the global optimum, and minimises

  `F_k(w) - <h_k, w> + alpha/2 ||w - w_t||^2`,

whose gradient `g - h_k + alpha (w - w_t)` takes the place of the loss's. Then

  `h_k <- h_k - alpha (w_k - w_t)`                                           (clients of the round)
  `h <- h - alpha sum_{k in S} (n_k / n) (w_k - w_t)`
  `w_{t+1} = sum_{k in S} (n_k / n_S) w_k - h / alpha`

with n the examples of all clients, in the round or not. `h = sum_k (n_k / n) h_k` always. The paper
counts clients, this counts examples, as FedAvg does; with clients of equal size it is the paper's.
The objective is then FedAvg's, the mean loss of all examples.

The server does not tend to FedAvg as alpha does to 0. With `u_t` the mean of `w_t - w_k` its step
is `w_{t+1} = w_t - u_t - sum_{s <= t} (n_{S_s} / n) u_s`, whatever alpha is: `1 + n_S / n` times
FedAvg's step in the first round, and past updates are never forgotten. alpha is what makes clients
answer to that; the smaller it is, the more rounds they take to turn a long step round.

Trained to the end, h_k is the gradient at w_k; a few steps get it on average only. The optimum is a
fixed point all the same. Local weight decay is part of F_k. Moving statistics are averaged. A round
in which nobody had a finite update changes nothing: by h alone the server would move on.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING

from tff_noise import params as params_lib
from tff_noise.optimizers import empty_round
from tff_noise.optimizers import spec

if TYPE_CHECKING:
  from tff_noise.federated import optimizer


@dataclasses.dataclass(frozen=True)
class FedDynParams:
  """FedDyn's own parameters.

  Attributes:
    alpha: Weight of the dynamic regulariser, positive.
  """

  alpha: float = 0.01

  def __post_init__(self):
    params_lib.require_positive(self, 'alpha')


def _build(setting: optimizer.Setting, params: FedDynParams) -> optimizer.FederatedOptimizer:
  import numpy as np
  import tensorflow as tf
  import tensorflow_federated as tff

  from tff_noise.federated import optimizer

  alpha = params.alpha
  trainable_types = list(setting.model.weights_type.trainable)

  def regularize(inputs):
    return [
        g - h_k + alpha * (w - w_t)
        for g, h_k, w, w_t in zip(
            inputs.gradients, inputs.state, inputs.weights, inputs.anchor, strict=True
        )
    ]

  def send(result):
    # `update` is w_t - w_k: the sign turns.
    h_k = [h + alpha * u for h, u in zip(result.state, result.update.trainable, strict=True)]
    return optimizer.Sent(result.update, h_k)

  def initialize():
    return collections.OrderedDict(
        h=[tf.zeros(t.shape, t.dtype) for t in trainable_types],
        population=tf.constant(float(setting.client_sizes.sum())),  # n
    )

  def step(state, inputs):
    update = inputs.update.trainable
    share = inputs.sums['examples'] / state['population']  # n_S / n
    new_h = [a + alpha * share * u for a, u in zip(state['h'], update, strict=True)]
    trainable = [
        w - u - a / alpha for w, u, a in zip(inputs.weights.trainable, update, new_h, strict=True)
    ]
    weights = tff.learning.models.ModelWeights(trainable, optimizer.averaged_statistics(inputs))
    new_h, weights = empty_round.unless_empty(
        inputs, (new_h, weights), (state['h'], inputs.weights)
    )
    return collections.OrderedDict(state, h=new_h), weights

  return optimizer.FederatedOptimizer(
      optimizer.ServerRule(initialize, step, counts_examples=True),
      optimizer.ClientRule(
          initial_state=[np.zeros(t.shape, t.dtype) for t in trainable_types],
          gradients=regularize,
          send=send,
      ),
      # h is the mean of the h_k of those that go on.
      restrict=lambda state, gradients, sizes: collections.OrderedDict(
          state, h=optimizer.mean_state(gradients, sizes), population=np.float32(sizes.sum())
      ),
  )


SPEC = spec.OptimizerSpec(
    name='feddyn',
    title='dynamic regularisation; clients keep a gradient',
    paper='Acar et al., ICLR 2021',
    params=FedDynParams,
    build=_build,
)
