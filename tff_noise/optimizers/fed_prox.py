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
from typing import TYPE_CHECKING

from tff_noise import params as params_lib
from tff_noise.optimizers import spec

if TYPE_CHECKING:
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


def _build(setting: optimizer.Setting, params: FedProxParams) -> optimizer.FederatedOptimizer:
  import tensorflow as tf

  from tff_noise.federated import optimizer

  def add_proximal(inputs):
    moved = [w - w_t for w, w_t in zip(inputs.weights, inputs.anchor, strict=True)]
    if params.term == 'norm':
      # The gradient of ||w - w_t|| at 0 is taken as 0, the smallest of its subgradients.
      norm = tf.linalg.global_norm(moved)
      moved = [tf.math.divide_no_nan(m, norm) for m in moved]
    return [g + params.mu * m for g, m in zip(inputs.gradients, moved, strict=True)]

  return optimizer.FederatedOptimizer(
      optimizer.fed_avg(setting.model.weights_type).server,
      optimizer.ClientRule(gradients=add_proximal),
  )


SPEC = spec.OptimizerSpec(
    name='fedprox',
    title='FedAvg with a proximal term in local training',
    paper='Li et al., MLSys 2020',
    params=FedProxParams,
    build=_build,
)
