"""Coordinate-wise median of the clients' models in place of their mean (Yin et al. 2018).

Every client counts alike, whatever the number of its examples. The server has to see the updates of
single clients, and holds k of them for a cohort of k. It withstands less than half of a cohort
sending anything; where clients hold different classes it is no estimate of the mean.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from tff_noise.optimizers import spec

if TYPE_CHECKING:
  from tff_noise.federated import optimizer


@dataclasses.dataclass(frozen=True)
class MedianParams:
  """The median has no parameters of its own."""


def _build(setting: optimizer.Setting, params: MedianParams) -> optimizer.FederatedOptimizer:
  from tff_noise.federated import optimizer
  from tff_noise.federated import stacked

  del params  # Unused.
  return optimizer.fed_avg(setting.model.weights_type)._replace(combine=stacked.median)


SPEC = spec.OptimizerSpec(
    name='median',
    title='coordinate-wise median of the clients\' models',
    paper='Yin et al., ICML 2018',
    params=MedianParams,
    build=_build,
    per_client="each client's model, of whose parameters it takes the middle",
    compares_models=True,
)
