"""ELR: FedAvg with early-learning regularisation in each client (Liu et al., NeurIPS 2020).

The paper is not about federated learning. Networks learn the clean labels first and memorise the
wrong ones later; so what the network said of an example early on is kept, and the loss pulls
towards it (section 4 of the paper):

  `L = CE + lambda / n sum_i log(1 - <p_i, t_i>)`
  `t_i <- beta t_i + (1 - beta) p_i`, 0 at first

with p_i the network's probabilities of the example's classes, through which no gradient flows where
they make targets. As in the public code they are those of the training step itself (augmented, if
images are) and targets move before they are used: an example's first step already looks at
`(1 - beta) p_i`.

Here each client keeps the targets of its own examples between rounds and nobody else sees them: it
sends what FedAvg's clients send. The network that makes them is the one that is trained locally,
which starts from the global model in each round; an example's targets move once in each local
epoch, and rest while its client is not drawn. Those of an update that is not finite are dropped
with it. A client that was never drawn has targets of 0, for which the second term is 0.

Where the public code (its `ELR` folder, not ELR+) does more than these equations, so does this: it
clips p to [1e-4, 1 - 1e-4] and divides what enters a target by its sum. Then t sums to at most 1
and `<p, t> <= max p <= 1 - 1e-4`: the argument of the logarithm is never below 1e-4, and p has no
gradient where it was clipped. Its constructor has beta = 0.3 by default; its files for CIFAR-10
with symmetric noise have beta = 0.7 and lambda = 3, which are the defaults here, those with
asymmetric noise 0.9 and 1, those for CIFAR-100 0.9 and 7.

--label_smoothing, --temperature and private labels change CE alone; p is the softmax of the logits.
"""

import numpy as np
import tensorflow as tf

from tff_noise import types
from tff_noise.algorithms import algorithm
from tff_noise.algorithms import parameters
from tff_noise.clients import program
from tff_noise.federated import computation
from tff_noise.federated import task as task_lib
from tff_noise.models import losses

# What a client keeps: t of each of its examples.
TARGETS = 'targets'

_SMALLEST_PROBABILITY = 1e-4


def _probabilities(logits):
  """float32 `[b, K]`, p, clipped as in the public code; rows sum to 1 but for what was clipped."""
  p = tf.nn.softmax(logits)
  return tf.clip_by_value(p, _SMALLEST_PROBABILITY, 1 - _SMALLEST_PROBABILITY)


def next_targets(targets: tf.Tensor, logits: tf.Tensor, beta: float) -> tf.Tensor:
  """Returns float32 `[b, K]`, `beta t_i + (1 - beta) p_i`, without a gradient.

  Args:
    targets: float32 `[b, K]`, t_i before.
    logits: float32 `[b, K]`, of p_i; of the clipped p_i, divided by its sum.
    beta: In [0, 1).
  """
  p = tf.stop_gradient(_probabilities(logits))
  return beta * targets + (1 - beta) * p / tf.reduce_sum(p, axis=1, keepdims=True)


def regulariser(logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
  """Returns float32 `[]`, the mean of `log(1 - <p_i, t_i>)`, at least log(1e-4).

  Args:
    logits: float32 `[b, K]`, of p_i.
    targets: float32 `[b, K]`, t_i, of sums of at most 1.
  """
  agreement = tf.reduce_sum(_probabilities(logits) * targets, axis=1)  # <p_i, t_i>
  return tf.reduce_mean(tf.math.log(1 - agreement))


def keeping_targets(trained: program.ClientProgram, num_classes: int) -> program.ClientProgram:
  """Returns a program that carries its examples' targets, and keeps them between rounds.

  Args:
    trained: Its loss finds the batch's targets. What is `final` has to keep `Result.carry`.
    num_classes: K.
  """

  def keep(s):
    targets = tf.tensor_scatter_nd_update(s.carry, s.positions[:, tf.newaxis], s.found)
    return s.gradients, targets

  return trained._replace(
      init=lambda client: client.own[TARGETS],
      step=keep,
      own={TARGETS: program.PerExample(np.zeros(num_classes, np.float32))},
  )


def client(
    p: parameters.ELRParams, training: types.LocalTraining, num_classes: int
) -> program.ClientProgram:
  """Local SGD on `CE + lambda mean_i log(1 - <p_i, t_i>)`, which moves the targets on its way."""

  def loss(s):
    targets = next_targets(tf.gather(s.carry, s.positions), s.logits, p.beta)
    cross_entropy = losses.cross_entropy(s.logits, s.labels, training.loss)
    return cross_entropy + p.weight * regulariser(s.logits, targets), targets

  trained = program.ClientProgram(
      loss=loss, final=lambda result: program.Sent(own={TARGETS: result.carry})
  )
  return keeping_targets(trained, num_classes)


def build(task: task_lib.Task, p: parameters.ELRParams) -> algorithm.Algorithm:
  """Samples and trains in every round."""
  program_ = client(p, task.training, task.num_classes)
  return algorithm.of_rounds(task, computation.train('a round of train', task, program_))
