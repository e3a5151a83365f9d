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

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tff_noise import params as params_lib
from tff_noise.optimizers import empty_round
from tff_noise.optimizers import spec

if TYPE_CHECKING:
  import tensorflow as tf

  from tff_noise.federated import optimizer


@dataclasses.dataclass(frozen=True)
class FedAdamParams:
  """Parameters of FedAdam and FedYogi.

  Attributes:
    server_learning_rate: eta, positive.
    beta1: Decay of the first moment, in [0, 1).
    beta2: Decay of the second moment, in [0, 1).
    tau: Adaptivity, positive: smaller adapts more.
  """

  server_learning_rate: float = 0.01
  beta1: float = 0.9
  beta2: float = 0.99
  tau: float = 0.001

  def __post_init__(self):
    params_lib.require_positive(self, 'server_learning_rate', 'tau')
    params_lib.require_share(self, 'beta1', 'beta2')


@dataclasses.dataclass(frozen=True)
class FedAdagradParams:
  """Parameters of FedAdagrad.

  Attributes:
    server_learning_rate: eta, positive.
    beta1: Decay of the first moment, in [0, 1); 0 as Adagrad has none.
    tau: Adaptivity, positive: smaller adapts more.
  """

  server_learning_rate: float = 0.01
  beta1: float = 0.0
  tau: float = 0.001

  def __post_init__(self):
    params_lib.require_positive(self, 'server_learning_rate', 'tau')
    params_lib.require_share(self, 'beta1')


def _adam(v: tf.Tensor, squared: tf.Tensor, params: FedAdamParams) -> tf.Tensor:
  return params.beta2 * v + (1 - params.beta2) * squared


def _yogi(v: tf.Tensor, squared: tf.Tensor, params: FedAdamParams) -> tf.Tensor:
  import tensorflow as tf

  return v - (1 - params.beta2) * squared * tf.sign(v - squared)


def _adagrad(v: tf.Tensor, squared: tf.Tensor, params: FedAdagradParams) -> tf.Tensor:
  del params  # Nothing decays.
  return v + squared


def _build(
    second_moment: Callable[[tf.Tensor, tf.Tensor, Any], tf.Tensor],
) -> Callable[[optimizer.Setting, Any], optimizer.FederatedOptimizer]:
  """Returns what builds the optimizer whose v_t is `second_moment(v_{t-1}, Delta_t^2, params)`."""

  def build(setting, params):
    import tensorflow as tf
    import tensorflow_federated as tff

    from tff_noise.federated import optimizer

    shapes = [t.shape for t in setting.model.weights_type.trainable]

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
      return empty_round.unless_empty(
          inputs, (collections.OrderedDict(m=m, v=v), weights), (state, inputs.weights)
      )

    return optimizer.FederatedOptimizer(optimizer.ServerRule(initialize, step))

  return build


_PAPER = 'Reddi et al., ICLR 2021'

FED_ADAM = spec.OptimizerSpec(
    name='fedadam',
    title='Adam at the server',
    paper=_PAPER,
    params=FedAdamParams,
    build=_build(_adam),
)

FED_YOGI = spec.OptimizerSpec(
    name='fedyogi',
    title='Yogi at the server',
    paper=_PAPER,
    params=FedAdamParams,
    build=_build(_yogi),
)

FED_ADAGRAD = spec.OptimizerSpec(
    name='fedadagrad',
    title='Adagrad at the server',
    paper=_PAPER,
    params=FedAdagradParams,
    build=_build(_adagrad),
)
