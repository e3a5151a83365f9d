"""Coordinate-wise median of the clients' models in place of their mean (Yin et al. 2018).

Every client counts alike, whatever the number of its examples. The server has to see the updates of
single clients, and holds k of them for a cohort of k. It withstands less than half of a cohort
sending anything; where clients hold different classes it is no estimate of the mean.
"""

from tff_noise.federated import optimizer
from tff_noise.federated import stacked
from tff_noise.federated import task as task_lib
from tff_noise.optimizers import parameters


def build(task: task_lib.Task, params: parameters.MedianParams) -> optimizer.FederatedOptimizer:
  """FedAvg with a median in place of the mean."""
  del params  # There are none.
  return optimizer.fed_avg(task.model.weights_type)._replace(combine=stacked.median)
