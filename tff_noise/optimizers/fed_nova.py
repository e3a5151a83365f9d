"""FedNova: updates are normalised by the number of local steps (Wang et al. 2020).

Clients with more data take more steps, so in FedAvg's mean they count twice: by their weight and by
the length of their update. FedNova averages directions, and then goes as far as the mean client:

  `d_k = (w_t - w_k) / a_k`
  `w_{t+1} = w_t - tau_eff sum_k p_k d_k`, `tau_eff = sum_k p_k a_k`, `p_k = n_k / n_S`,

with a_k of SGD with local momentum, see `momentum`. With equal a_k this is FedAvg. (Their d_k also
has the step size in the denominator, which the server's step puts back. A method that weighs
clients by more than n_k, such as fedtally, does so in the mean of the d_k alone.)

The paper has no moving statistics; they are averaged as FedAvg does, not normalised: they are no
gradients, and their change does not grow with the number of steps. (Public code normalises them.)
"""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_noise.clients import program
from tff_noise.federated import optimizer
from tff_noise.federated import task as task_lib
from tff_noise.optimizers import momentum
from tff_noise.optimizers import parameters
from tff_noise.uplink import uplink

_NORMALIZER = 'normalizer'


def _largest_normalizer(task: task_lib.Task) -> float:
  """Returns `max_k n_k a_k`, a public number: both factors grow with n_k."""
  training = task.training
  largest = max(1, int(task.known_sizes().max()))
  steps = training.epochs * -(-largest // training.batch_size)
  return largest * momentum.accumulated(float(steps), training.momentum)


def build(task: task_lib.Task, params: parameters.FedNovaParams) -> optimizer.FederatedOptimizer:
  """Clients send d_k and n_k a_k; the server goes tau_eff times the mean of the d_k."""
  del params  # There are none.
  task.training.require_sgd('fednova')
  model_weights = tff.learning.models.ModelWeights

  def final(result):
    a = momentum.accumulated_tensor(result.steps, task.training.momentum)  # a_k
    # Without a step a_k is 0, and so is the update.
    direction = [tf.math.divide_no_nan(u, a) for u in result.update.trainable]  # d_k
    return program.Sent(
        model_weights(direction, result.update.non_trainable),
        sums={_NORMALIZER: result.num_examples * a},
    )

  def step(state, inputs):
    tau_eff = tf.math.divide_no_nan(inputs.sums[_NORMALIZER], inputs.sums['examples'])
    trainable = [
        w - tau_eff * d
        for w, d in zip(inputs.weights.trainable, inputs.update.trainable, strict=True)
    ]
    return state, model_weights(trainable, optimizer.averaged_statistics(inputs))

  normalizer = uplink.UplinkSum(
      _NORMALIZER, np.float32, 0.0, _largest_normalizer(task),
      'number of local steps times examples, of which the mean client\'s steps are computed',
  )
  return optimizer.FederatedOptimizer(
      optimizer.ServerOptimizer(lambda: (), step),
      program.ClientProgram(final=final, sums=(normalizer,)),
      # Of one client alone tau_eff is a_k: the step undoes the normalisation.
      client_model=lambda inputs: step((), inputs)[1],
  )
