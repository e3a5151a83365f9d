"""FedProx: a proximal term keeps local models near the global one (Li et al. 2020, equation 2).

A client minimises `F_k(w) + mu/2 ||w - w_t||^2` over the trainable weights; the server averages as
FedAvg does. The term's gradient `mu (w - w_t)` is added to the loss's in every step. It is 0 in the
first one, where w = w_t, and nowhere else: code that anchors to the variables themselves, and not
to their values at the start of the round, has a term that is always 0.

`term=norm` is the norm without the square, `mu ||w - w_t||`, which public code of noisy-label
methods calls FedProx too: a force of constant size mu towards w_t, however near that is.
"""

from collections.abc import Sequence

import tensorflow as tf

from tff_noise.clients import program
from tff_noise.federated import optimizer
from tff_noise.federated import task as task_lib
from tff_noise.optimizers import parameters


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
  moved = [w - w_t for w, w_t in zip(weights, anchor, strict=True)]
  if term == 'norm':
    # The gradient of ||w - w_t|| at 0 is taken as 0, the smallest of its subgradients.
    mu = tf.math.divide_no_nan(mu, tf.linalg.global_norm(moved))
  return [g + mu * m for g, m in zip(gradients, moved, strict=True)]


def build(task: task_lib.Task, params: parameters.FedProxParams) -> optimizer.FederatedOptimizer:
  """FedAvg whose clients add the gradient of the proximal term."""

  def step(s):
    return add_proximal(s.gradients, s.weights, s.anchor, params.mu, params.term), s.carry

  server = optimizer.fed_avg(task.model.weights_type).server
  return optimizer.FederatedOptimizer(server, program.ClientProgram(step=step))
