"""JointOpt: labels are optimised together with the weights (Tanaka et al., CVPR 2018).

The paper is not about federated learning. A network with a large step size fits clean labels before
wrong ones; so labels Y follow its predictions s, `[b, K]`, while it learns from them:

  `L = -mean_i sum_j Y_ij log s_ij + alpha L_p + beta L_e`
  `L_p = -sum_j pi_j log mean_i s_ij`,  `L_e = -mean_i sum_j s_ij log s_ij`
  `Y_i = ` the mean of the last 10 epochs' s_i

L_p keeps all predictions from becoming one class, pi being the prior distribution of classes; L_e
makes each one sharp. (L_p is the paper's Kullback-Leibler divergence but for a constant.) Three
stages: `warm_up`, on the given labels; `joint`, on Y; `retrain`, of new weights, by cross-entropy
alone, on the Y in the end. s are outputs of training steps, augmented where images are, each
epoch's by other weights; from the first round on a client keeps the last 10 of each of its
examples, and nobody else sees them. Clients send what FedAvg's send.

FedCorr, whose tables have it, says that it has 20 rounds of FedAvg first, then E = 20 local epochs,
and nothing of the rest: `joint_epochs=20`, and a warm-up of 20 rounds by cross-entropy alone. In
the public codes, the authors' (DaikiTanaka-UT/JointOptimization) and FedRN's federated one
(ElvinKim/FedRN, which has the local epochs of all methods, 10 ... 15 outputs, and a fifth of all
rounds of warm-up), L_p and L_e act from the first step on: `warm_up_loss=joint`. alpha and beta are
those of both for symmetric noise; for asymmetric noise the authors have 0.8 and 0.4. Nobody
retrains in federated form, and by default this does not: --stages=...,retrain:N.

Where this differs from public code:
- Outputs that are not there yet do not count: Y is the mean of those that exist, and the given
  label where none does. In FedRN's code they are zeros, so that Y sums to less than 1 for as long.
- Y moves before each visit of an example. There it moves after each epoch, which is the same, but
  that a client's first epoch after the warm-up still has the old Y in FedRN's code.
- A client's Y rests while it is not drawn: 10 outputs may be those of several rounds.
- pi is uniform in all codes, also where a client's classes are not; `prior=labels` are the shares
  of its given labels.

Retraining starts from the run's first weights, and whatever the optimizer keeps is dropped.
--label_smoothing and --temperature change the cross-entropy alone; s is the softmax of the logits.
Private labels are refused: their loss is right only while labels stay as they were flipped.
"""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from tff_noise import types
from tff_noise.algorithms import algorithm
from tff_noise.algorithms import class_prior
from tff_noise.algorithms import parameters
from tff_noise.clients import program
from tff_noise.federated import computation
from tff_noise.federated import task as task_lib
from tff_noise.models import losses

# What a client keeps of each example: its last outputs s, how many there were, and argmax Y.
HISTORY, COUNT, LABELS = 'history', 'recorded', 'labels'

WARM_UP, JOINT, RETRAIN = 'warm_up', 'joint', 'retrain'

_WARM_UP_ROUNDS = 20


def soft_labels(
    history: tf.Tensor, count: tf.Tensor, labels: tf.Tensor
) -> tf.Tensor:
  """Returns float32 `[b, K]`, Y: the mean of what was recorded, and the label where nothing was.

  Args:
    history: float32 `[b, W, K]`, the last outputs in any order, zeros where there are none yet.
    count: int32 `[b]`, how many were recorded, at least 0.
    labels: int32 `[b]`, as given.
  """
  window, num_classes = history.shape[1:]
  filled = tf.cast(tf.clip_by_value(count, 1, window), tf.float32)[:, tf.newaxis]
  mean = tf.reduce_sum(history, axis=1) / filled
  given = tf.one_hot(labels, num_classes)
  return tf.where(tf.equal(count, 0)[:, tf.newaxis], given, mean)


def recorded(
    history: tf.Tensor, count: tf.Tensor, positions: tf.Tensor, s: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns history and count after outputs took the place of the oldest.

  Args:
    history: float32 `[n, W, K]`, of all examples.
    count: int32 `[n]`.
    positions: int32 `[b]`, whose outputs, each once.
    s: float32 `[b, K]`.
  """
  slots = tf.gather(count, positions) % history.shape[1]
  history = tf.tensor_scatter_nd_update(history, tf.stack([positions, slots], axis=1), s)
  return history, tf.tensor_scatter_nd_add(count, positions[:, tf.newaxis], tf.ones_like(positions))


def prior_term(logits: tf.Tensor, prior: tf.Tensor) -> tf.Tensor:
  """Returns float32 `[]`, L_p of logits `[b, K]` and pi, float32 `[K]`; at least pi's entropy."""
  return -tf.reduce_sum(prior * losses.log_mean_prediction(logits))


def client(
    p: parameters.JointOptParams, training: types.LocalTraining, num_classes: int, stage: str
) -> program.ClientProgram:
  """What a client does in one of the stages."""
  regularised = stage == JOINT or (stage == WARM_UP and p.warm_up_loss == 'joint')

  def loss(s):
    history, count = (tf.gather(kept, s.positions) for kept in s.carry)
    if stage == WARM_UP:
      value = losses.cross_entropy(s.logits, s.labels, training.loss)
    else:
      y = soft_labels(history, count, s.labels)  # Before this step's own output.
      value = losses.soft_cross_entropy(s.logits, y, training.loss)
    if regularised:
      prior = class_prior.of(p.prior, s.client.labels, num_classes)
      value += p.alpha * prior_term(s.logits, prior) + p.beta * losses.entropy(s.logits)  # L_e
    return value, tf.nn.softmax(s.logits)

  def record(s):
    return s.gradients, recorded(*s.carry, s.positions, s.found)

  def keep(result):
    history, count = result.carry
    own = {HISTORY: history, COUNT: count}
    if stage != WARM_UP:
      y = soft_labels(history, count, result.client.labels)
      own[LABELS] = tf.argmax(y, axis=1, output_type=tf.int32)
    return program.Sent(own=own)

  own = {
      HISTORY: program.PerExample(np.zeros((p.window, num_classes), np.float32)),
      COUNT: program.PerExample(np.int32(0)),
  }
  return program.ClientProgram(
      loss=loss,
      init=lambda client: (client.own[HISTORY], client.own[COUNT]),
      step=None if stage == RETRAIN else record,
      final=keep,
      own=own if stage == WARM_UP else {**own, LABELS: program.GivenLabels()},
  )


def stage_lengths(task: task_lib.Task) -> Mapping[str, int]:
  """Returns the rounds of each stage; see `algorithm.require_rounds` for errors."""
  warm_up = task.stages.get(WARM_UP, _WARM_UP_ROUNDS)
  retrain = task.stages.get(RETRAIN, 0)
  joint = task.stages.get(JOINT, task.rounds - warm_up - retrain)
  stages = {WARM_UP: warm_up, JOINT: joint, RETRAIN: retrain}
  algorithm.require_rounds(task, stages, main=JOINT)
  return stages


def build(task: task_lib.Task, p: parameters.JointOptParams) -> algorithm.Algorithm:
  """Samples and trains in every round, by the loss of its stage.

  Raises:
    types.UsageError: If no round is left, or labels are reports.
  """
  algorithm.require_labels_kept(task, 'jointopt')
  stages = stage_lengths(task)
  epochs = p.joint_epochs or task.training.epochs
  longer = task.with_training(task.training._replace(epochs=epochs))
  by_stage = {
      stage: computation.train(
          f'a round of {stage}', longer if stage == JOINT else task,
          client(p, task.training, task.num_classes, stage),
      )
      for stage in stages
  }

  def round_(state, clients):
    stage = algorithm.stage_of(stages, state.round_num + 1)
    if stage == RETRAIN and state.round_num == stages[WARM_UP] + stages[JOINT]:
      state = algorithm.from_scratch(state, clients, by_stage[RETRAIN])
    train = by_stage[stage]
    return clients.train(train, state, clients.sample(train, state)).state

  return algorithm.Algorithm(
      round_, algorithm.computations_of(*by_stage.values()), stages,
      times={by_stage[stage].name: rounds for stage, rounds in stages.items()},
      report=algorithm.Report(labels=LABELS),
  )
