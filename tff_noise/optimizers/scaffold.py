"""SCAFFOLD: control variates against client drift (Karimireddy et al. 2020, algorithm 1).

Client k keeps c_k, the server c, estimates of the gradients of the client's and of the mean loss.
Local steps use `g - c_k + c` in place of the gradient. After K steps of size eta, option II:

  `c_k+ = c_k - c + (w_t - w_k) / (K eta)`                                   (equation 4)
  `c <- c + sum_{k in S} (n_k / n) (c_k+ - c_k)`
  `w_{t+1} = w_t + eta_g sum_{k in S} (n_k / n_S) (w_k - w_t)`               (equation 5)

with n the examples of all clients, in the round or not: `c = sum_k (n_k / n) c_k` always, but
under a method that weighs clients otherwise (fedtally, fednoro, fedelc), whose mean it then is that
c moves by, times n_S / n. The paper counts clients, this counts examples, as FedAvg does; with
clients of equal size it is the paper's.

With local momentum, which the paper does not have, K is replaced by a(K), the sum of momentum's
coefficients, see `momentum`: then `(w_t - w_k) / (a eta)` is a mean of corrected gradients again,
and c_k+ a mean of the client's own. Divided by K alone it would be up to `1 / (1 - rho)` times too
large. Weight decay is added after the correction and thus is part of what c_k estimates: this is
SCAFFOLD on the losses with decay.

A client sends `eta (c_k+ - c_k)` beside its update: times eta it is of the size of one step, so a
bound that fits updates in a secure sum fits it too. Where that clips, or --aggregation is a factory
of one's own that clips or weighs, c is no longer the mean of the c_k, for good, and the model comes
to rest where the gradient is their difference, not 0. Moving statistics have no variate and are
averaged.
"""

import collections

import numpy as np
import tensorflow as tf

from tff_noise.clients import program
from tff_noise.clients import step_size
from tff_noise.federated import optimizer
from tff_noise.federated import task as task_lib
from tff_noise.optimizers import momentum
from tff_noise.optimizers import parameters

_VARIATE = 'scaffold_variate'  # c_k


def build(task: task_lib.Task, params: parameters.ScaffoldParams) -> optimizer.FederatedOptimizer:
  """Clients keep c_k, and send how it changes; the server keeps c, their mean over all clients."""
  task.training.require_sgd('scaffold')
  eta = task.training.learning_rate
  trainable_types = list(task.model.weights_type.trainable)
  average = optimizer.fed_avg(task.model.weights_type, params.server_learning_rate).server

  def correct(s):
    gradients = [
        g - c_k + c
        for g, c_k, c in zip(s.gradients, s.client.own[_VARIATE], s.client.optimizer, strict=True)
    ]
    return gradients, s.carry

  def final(result):
    client = result.client
    a = momentum.accumulated_tensor(result.steps, task.training.momentum)  # a(K)
    # Of the round's own step size, if there is a schedule.
    a *= step_size.factor(task.training.schedule, client.round_num)
    # c_k+ - c_k times eta; a client that took no step has learnt nothing about its gradient.
    change = [
        tf.where(result.steps > 0, tf.math.divide_no_nan(u, a) - eta * c, tf.zeros_like(c))
        for u, c in zip(result.update.trainable, client.optimizer, strict=True)
    ]
    variate = [  # c_k+
        c_k + d / eta for c_k, d in zip(client.own[_VARIATE], change, strict=True)
    ]
    return program.Sent(
        collections.OrderedDict(model=result.update, variate=change), own={_VARIATE: variate}
    )

  def initialize():
    return collections.OrderedDict(
        average=average.initialize(),
        variate=[tf.zeros(t.shape, t.dtype) for t in trainable_types],
        population=tf.constant(float(task.known_sizes().sum())),  # n
    )

  def step(state, inputs):
    share = inputs.sums['examples'] / state['population']  # n_S / n
    variate = [
        c + share * d / eta
        for c, d in zip(state['variate'], inputs.update['variate'], strict=True)
    ]
    averaging, weights = average.next(
        state['average'], inputs._replace(update=inputs.update['model'])
    )
    return collections.OrderedDict(state, average=averaging, variate=variate), weights

  return optimizer.FederatedOptimizer(
      optimizer.ServerOptimizer(
          initialize, step, broadcast=lambda state: state['variate'], counts_examples=True
      ),
      program.ClientProgram(
          step=correct,
          final=final,
          own={_VARIATE: [np.zeros(t.shape, t.dtype) for t in trainable_types]},
      ),
      client_model=lambda inputs: tf.nest.map_structure(
          tf.subtract, inputs.weights, inputs.update['model']
      ),
      # c is the mean of the c_k of those that go on.
      restriction=optimizer.Restriction(
          _VARIATE,
          lambda state, mean, n: collections.OrderedDict(state, variate=mean, population=n),
      ),
  )
