"""GCE: FedAvg with the generalised cross-entropy (Zhang and Sabuncu, NeurIPS 2018).

The paper is not about federated learning. Here its loss of section 3.2 takes the place of
cross-entropy in each client's local SGD, and nothing else changes:

  `L_q(f(x), y) = (1 - f_y(x)^q) / q`,  q in (0, 1]

between cross-entropy (q -> 0, which fits every label) and half the mean absolute error (q = 1,
which forgives wrong labels and learns slowly). Its gradient is that of cross-entropy times
f_y(x)^q: an example whose label the model does not believe counts less.

Of the paper's two losses this is L_q. The truncated one leaves out examples with `f_y(x) <= k`, by
alternate convex search over models that were validated on the way; it is not here.

Deviations: the loss is a mean over the batch, as cross-entropy is here (the paper sums; the public
code, which is not the authors', takes the mean, too). That code raises the softmax to the power q,
with a gradient of NaN where float32 rounds f_y(x) to 0; here it is 0. The paper has no smoothed,
tempered or flipped labels: with --label_smoothing, --temperature or private labels L_q takes the
place of `-log p` in the cross-entropy that these flags make, see
`losses.generalised_cross_entropy`.
"""

from tff_noise import types
from tff_noise.algorithms import algorithm
from tff_noise.algorithms import parameters
from tff_noise.clients import label_loss
from tff_noise.clients import program
from tff_noise.federated import computation
from tff_noise.federated import task as task_lib
from tff_noise.models import losses


def client(p: parameters.GCEParams, training: types.LocalTraining) -> program.ClientProgram:
  """Local SGD on L_q."""

  def loss(logits, labels):
    return losses.generalised_cross_entropy(logits, labels, q=p.q, form=training.loss)

  return label_loss.client(loss, training)


def build(task: task_lib.Task, p: parameters.GCEParams) -> algorithm.Algorithm:
  """Samples and trains in every round."""
  train = computation.train('a round of train', task, client(p, task.training))
  return algorithm.of_rounds(task, train)
