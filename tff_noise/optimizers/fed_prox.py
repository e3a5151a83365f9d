"""FedProx: a proximal term keeps local models near the global one (Li et al. 2020, equation 2).

A client minimises `F_k(w) + mu/2 ||w - w_t||^2` over the trainable weights; the server averages as
FedAvg does. The term's gradient `mu (w - w_t)` is added to the loss's in every step. It is 0 in the
first one, where w = w_t, and nowhere else: code that anchors to the variables themselves, and not
to their values at the start of the round, has a term that is always 0.

`term=norm` is the norm without the square, `mu ||w - w_t||`, which public code of noisy-label
methods calls FedProx too: a force of constant size mu towards w_t, however near that is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tff_noise import params as params_lib
from tff_noise.optimizers import spec

if TYPE_CHECKING:
  import tensorflow as tf

  from tff_noise.federated import optimizer

_TERMS = ('squared', 'norm')


@dataclasses.dataclass(frozen=True)
class FedProxParams:
  """FedProx's own parameters.

  Attributes:
    mu: Weight of the proximal term; 0 is FedAvg.
    term: 'squared' for `mu/2 ||w - w_t||^2`, 'norm' for `mu ||w - w_t||`.
  """

  mu: float = 0.001
  term: str = 'squared'

  def __post_init__(self):
    params_lib.require_not_negative(self, 'mu')
    params_lib.require_one_of(self, 'term', _TERMS)


def add_proximal(
    gradients: Sequence[tf.Tensor],
    weights: Sequence[tf.Tensor],
    anchor: Sequence[tf.Tensor],
    mu: float | tf.Tensor,
    term: str,
) -> list[tf.Tensor]:
  """Adds the gradient of a proximal term to `gradients`.

  Args:
    gradients: Of the loss.
    weights: w.
    anchor: w_t.
    mu: Weight of the term, a scalar.
    term: 'squared' or 'norm', see `FedProxParams`.
  """
  import tensorflow as tf

  moved = [w - w_t for w, w_t in zip(weights, anchor, strict=True)]
  if term == 'norm':
    # The gradient of ||w - w_t|| at 0 is taken as 0, the smallest of its subgradients.
    mu = tf.math.divide_no_nan(mu, tf.linalg.global_norm(moved))
  return [g + mu * m for g, m in zip(gradients, moved, strict=True)]


def _build(setting: optimizer.Setting, params: FedProxParams) -> optimizer.FederatedOptimizer:
  from tff_noise.federated import optimizer

  def gradients(inputs):
    return add_proximal(
        inputs.gradients, inputs.weights, inputs.anchor, params.mu, params.term
    )

  return optimizer.FederatedOptimizer(
      optimizer.fed_avg(setting.model.weights_type).server,
      optimizer.ClientRule(gradients=gradients),
  )


SPEC = spec.OptimizerSpec(
    name='fedprox',
    title='FedAvg with a proximal term in local training',
    paper='Li et al., MLSys 2020',
    params=FedProxParams,
    build=_build,
)
