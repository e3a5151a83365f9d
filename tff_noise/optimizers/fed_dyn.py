"""FedDyn: a linear term aligns local optima with the global one (Acar et al. 2021, algorithm 1).

Client k keeps h_k, in the end the gradient of its loss at the global optimum, and minimises

  `F_k(w) - <h_k, w> + alpha/2 ||w - w_t||^2`,

whose gradient `g - h_k + alpha (w - w_t)` takes the place of the loss's. Then

  `h_k <- h_k - alpha (w_k - w_t)`                                           (clients of the round)
  `h <- h - alpha sum_{k in S} (n_k / n) (w_k - w_t)`
  `w_{t+1} = sum_{k in S} (n_k / n_S) w_k - h / alpha`

with n the examples of all clients, in the round or not. `h = sum_k (n_k / n) h_k` always, but
under a method that weighs clients otherwise (fedtally, fednoro, fedelc), whose mean it then is that
h moves by, times n_S / n; and where a secure sum clips, or --aggregation is a factory of one's own
that clips or weighs: then h parts from the h_k for good, and the model comes to rest where the
gradient is their difference, not 0. The paper counts clients, this counts examples, as FedAvg does;
with clients of equal size it is the paper's.
The objective is then FedAvg's, the mean loss of all examples.

The server does not tend to FedAvg as alpha does to 0. With `u_t` the mean of `w_t - w_k` its step
is `w_{t+1} = w_t - u_t - sum_{s <= t} (n_{S_s} / n) u_s`, whatever alpha is: `1 + n_S / n` times
FedAvg's step in the first round, and past updates are never forgotten. alpha is what makes clients
answer to that; the smaller it is, the more rounds they take to turn a long step round.

Trained to the end, h_k is the gradient at w_k; a few steps get it on average only. The optimum is a
fixed point all the same. Local weight decay is part of F_k. Moving statistics are averaged. A round
in which nobody had a finite update changes nothing: by h alone the server would move on.
"""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_noise.clients import program
from tff_noise.federated import optimizer
from tff_noise.federated import task as task_lib
from tff_noise.optimizers import parameters

_GRADIENT = 'feddyn_gradient'  # h_k


def build(task: task_lib.Task, params: parameters.FedDynParams) -> optimizer.FederatedOptimizer:
  """Clients keep h_k; the server keeps h, their mean over all clients."""
  alpha = params.alpha
  trainable_types = list(task.model.weights_type.trainable)

  def regularize(s):
    gradients = [
        g - h_k + alpha * (w - w_t)
        for g, h_k, w, w_t in zip(
            s.gradients, s.client.own[_GRADIENT], s.weights, s.anchor, strict=True
        )
    ]
    return gradients, s.carry

  def final(result):
    # `update` is w_t - w_k: the sign turns.
    h_k = [
        h + alpha * u
        for h, u in zip(result.client.own[_GRADIENT], result.update.trainable, strict=True)
    ]
    return program.Sent(own={_GRADIENT: h_k})

  def initialize():
    return collections.OrderedDict(
        h=[tf.zeros(t.shape, t.dtype) for t in trainable_types],
        population=tf.constant(float(task.known_sizes().sum())),  # n
    )

  def step(state, inputs):
    update = inputs.update.trainable
    share = inputs.sums['examples'] / state['population']  # n_S / n
    new_h = [h + alpha * share * u for h, u in zip(state['h'], update, strict=True)]
    trainable = [
        w - u - h / alpha for w, u, h in zip(inputs.weights.trainable, update, new_h, strict=True)
    ]
    weights = tff.learning.models.ModelWeights(trainable, optimizer.averaged_statistics(inputs))
    new_h, weights = optimizer.unless_empty(
        inputs, (new_h, weights), (state['h'], inputs.weights)
    )
    return collections.OrderedDict(state, h=new_h), weights

  return optimizer.FederatedOptimizer(
      optimizer.ServerOptimizer(initialize, step, counts_examples=True),
      program.ClientProgram(
          step=regularize,
          final=final,
          own={_GRADIENT: [np.zeros(t.shape, t.dtype) for t in trainable_types]},
      ),
      # h is the mean of the h_k of those that go on.
      restriction=optimizer.Restriction(
          _GRADIENT,
          lambda state, mean, n: collections.OrderedDict(state, h=mean, population=n),
      ),
  )
