"""SCE: FedAvg with the symmetric cross-entropy (Wang et al., ICCV 2019).

The paper is not about federated learning. Here its loss takes the place of cross-entropy in each
client's local SGD, and nothing else changes:

  `SCE = alpha CE + beta RCE`,  `RCE = -sum_k p_k log [k = y] = -A (1 - p_y)`

with A for log 0: that of 1e-4, -9.21, as in RHFL's public code, whose weights 0.1 and 1 are the
defaults, too. RCE is a mean absolute error, which wrong labels fool little; CE learns where RCE is
flat. The loss is a mean over the batch. With --label_smoothing, --temperature or private labels
both terms are of the probabilities and labels that these flags make, see
`losses.symmetric_cross_entropy`.
"""

from tff_noise import types
from tff_noise.algorithms import algorithm
from tff_noise.algorithms import parameters
from tff_noise.clients import label_loss
from tff_noise.clients import program
from tff_noise.federated import computation
from tff_noise.federated import task as task_lib
from tff_noise.models import losses


def client(p: parameters.SCEParams, training: types.LocalTraining) -> program.ClientProgram:
  """Local SGD on SCE."""

  def loss(logits, labels):
    return losses.symmetric_cross_entropy(
        logits, labels, forward=p.alpha, reverse=p.beta, form=training.loss
    )

  return label_loss.client(loss, training)


def build(task: task_lib.Task, p: parameters.SCEParams) -> algorithm.Algorithm:
  """Samples and trains in every round."""
  train = computation.train('a round of train', task, client(p, task.training))
  return algorithm.of_rounds(task, train)
