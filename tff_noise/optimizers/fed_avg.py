"""FedAvg: federated averaging (McMahan et al. 2017).

`w_{t+1} = w_t + alpha_g * sum_k (n_k / n_S) (w_k - w_t)` over the round's clients S.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from tff_noise import params as params_lib
from tff_noise.optimizers import spec

if TYPE_CHECKING:
  from tff_noise.federated import optimizer


@dataclasses.dataclass(frozen=True)
class FedAvgParams:
  """FedAvg's own parameters.

  Attributes:
    server_learning_rate: alpha_g, positive.
  """

  server_learning_rate: float = 1.0

  def __post_init__(self):
    params_lib.require_positive(self, 'server_learning_rate')


def _build(setting: optimizer.Setting, params: FedAvgParams) -> optimizer.FederatedOptimizer:
  from tff_noise.federated import optimizer

  return optimizer.fed_avg(setting.model.weights_type, params.server_learning_rate)


SPEC = spec.OptimizerSpec(
    name='fedavg',
    title='weighted mean of the clients\' models',
    paper='McMahan et al., AISTATS 2017',
    params=FedAvgParams,
    build=_build,
)
