"""FedAdam, FedYogi, FedAdagrad: adaptive server optimizers (Reddi et al. 2021, algorithm 2).

With `Delta_t = sum_k (n_k / n_S) (w_k - w_t)`, entry by entry:

  `m_t = beta1 m_{t-1} + (1 - beta1) Delta_t`
  `v_t = v_{t-1} + Delta_t^2`                                               FedAdagrad
  `v_t = v_{t-1} - (1 - beta2) Delta_t^2 sign(v_{t-1} - Delta_t^2)`         FedYogi
  `v_t = beta2 v_{t-1} + (1 - beta2) Delta_t^2`                             FedAdam
  `w_{t+1} = w_t + eta m_t / (sqrt(v_t) + tau)`

There is no bias correction, unlike in the Adam of Keras or `tff.learning.optimizers`. The algorithm
asks for `v_{-1} >= tau^2` and leaves the value open: it is tau^2 here, the smallest allowed, and m
starts at 0. (Public code that starts v at 0 takes a first step up to twice as long.)

As everywhere here the mean is weighted by examples, where algorithm 2 prints `1/|S|`. Moving
statistics are averaged past the optimizer. A round in which nobody had a finite update changes
nothing: by m alone the server would move on.
"""

import collections
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_noise.federated import optimizer
from tff_noise.federated import task as task_lib
from tff_noise.optimizers import parameters


def _adam(v: tf.Tensor, squared: tf.Tensor, params: parameters.FedAdamParams) -> tf.Tensor:
  return params.beta2 * v + (1 - params.beta2) * squared


def _yogi(v: tf.Tensor, squared: tf.Tensor, params: parameters.FedAdamParams) -> tf.Tensor:
  return v - (1 - params.beta2) * squared * tf.sign(v - squared)


def _adagrad(v: tf.Tensor, squared: tf.Tensor, params: parameters.FedAdagradParams) -> tf.Tensor:
  del params  # Nothing decays.
  return v + squared


def _build_with(
    second_moment: Callable[[tf.Tensor, tf.Tensor, Any], tf.Tensor],
) -> Callable[[task_lib.Task, Any], optimizer.FederatedOptimizer]:
  """Returns what builds the optimizer whose v_t is `second_moment(v_{t-1}, Delta_t^2, params)`."""

  def build(task, params):
    shapes = [t.shape for t in task.model.weights_type.trainable]

    def initialize():
      return collections.OrderedDict(
          m=[tf.zeros(shape) for shape in shapes],
          v=[tf.fill(shape, tf.constant(params.tau**2, tf.float32)) for shape in shapes],
      )

    def step(state, inputs):
      delta = [-u for u in inputs.update.trainable]  # Delta_t
      m = [
          params.beta1 * m + (1 - params.beta1) * d for m, d in zip(state['m'], delta, strict=True)
      ]
      v = [second_moment(v, d * d, params) for v, d in zip(state['v'], delta, strict=True)]
      trainable = [
          w + params.server_learning_rate * m / (tf.sqrt(v) + params.tau)
          for w, m, v in zip(inputs.weights.trainable, m, v, strict=True)
      ]
      weights = tff.learning.models.ModelWeights(trainable, optimizer.averaged_statistics(inputs))
      return optimizer.unless_empty(
          inputs, (collections.OrderedDict(m=m, v=v), weights), (state, inputs.weights)
      )

    return optimizer.FederatedOptimizer(optimizer.ServerOptimizer(initialize, step))

  return build


fed_adam = _build_with(_adam)
fed_yogi = _build_with(_yogi)
fed_adagrad = _build_with(_adagrad)
