"""FedAvg: federated averaging (McMahan et al. 2017).

`w_{t+1} = w_t + alpha_g * sum_k (n_k / n_S) (w_k - w_t)` over the round's clients S.
"""

from tff_noise.federated import optimizer
from tff_noise.federated import task as task_lib
from tff_noise.optimizers import parameters


def build(task: task_lib.Task, params: parameters.FedAvgParams) -> optimizer.FederatedOptimizer:
  """The step above at the server; clients send `w_t - w_k`."""
  return optimizer.fed_avg(task.model.weights_type, params.server_learning_rate)
