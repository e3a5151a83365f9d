"""FedELC: noisy clients learn their labels beside the model (Jiang et al., CIKM 2024).

"Tackling Noisy Clients in Federated Learning with End-to-end Label Correction". FedNoRo's warm-up,
look for noisy clients and distance-aware aggregation (`fednoro_stages`); in the second stage noisy
clients do not distil but correct labels as PENCIL does (Yi and Wu, CVPR 2019). Each of their
examples has logits y~ of a label, `y^d = softmax(y~)`, and with p the prediction, y the given label
and C classes the loss of a batch is

  `L = Lc / C + alpha Lo + beta Le / C`
  `Lc = mean KL(p || y^d)`,  `Lo = -mean log y^d[y]`,  `Le = mean H(p)`
  `y~ <- y~ - lambda dL/dy~`

At first `y~ = K 1[y]`, and after each round, with p the prediction of the client's own model,
`y~ = K (y^d + p) / 2`. No logits are adjusted here; clean clients go on as in the warm-up.

The client keeps (y^d + p) / 2 of its examples between rounds, and its argmax as the label that it
believes now: this is a method that corrects labels (`labels.npz`, `label_accuracy`), though y stays
in Lo for ever. A client that is never drawn, or is taken for clean, believes what was given. What
is sent is FedNoRo's: nothing of the learned labels leaves a client.

The formulas are those of the public code (Sprinter1999/FedELC), of whose paper only summaries were
at hand; so are the defaults, and the stages: 20 and 100 of 120 rounds. Where this differs:
- The code moves the labels at the end of an epoch by the gradients of its steps; as an example is
  in one of them, here it moves with the step: the same numbers.
- The code leaves out an epoch's last batch, if it is smaller, and fails where there is no other.
  Here it counts as everywhere. The gradient of `mean` would be larger the smaller the batch; labels
  always take that of a batch of --batch_size, as in the code.
- The prediction after a round is that of the evaluation mode; the code has left the model in that
  of training, in which it depends on the batch. On augmented images, if training augments, in both.
- What `fednoro` says of the look, of 0 / 0 and of late clients.

--temperature divides the logits of p; --label_smoothing changes the other clients' CE alone.
Private labels are refused: learned ones do not flip as reports do.
"""

import numpy as np
import tensorflow as tf

from tff_noise.algorithms import algorithm
from tff_noise.algorithms import fednoro_stages
from tff_noise.algorithms import parameters
from tff_noise.clients import program
from tff_noise.federated import task as task_lib

# What a client keeps: the distribution of each label, 0 before there is one, and its argmax.
SOFT_LABELS, LABELS = 'soft_labels', 'labels'

_WARM_UP_SHARE = 20 / 120


def objective(
    logits: tf.Tensor, label_logits: tf.Tensor, labels: tf.Tensor, p: parameters.FedELCParams
) -> tf.Tensor:
  """Returns float32 `[]`, L.

  Args:
    logits: float32 `[b, C]`, of p.
    label_logits: float32 `[b, C]`, y~.
    labels: int32 `[b]`, y.
    p: alpha and beta.
  """
  num_classes = logits.shape[-1]
  log_p, log_y = tf.nn.log_softmax(logits), tf.nn.log_softmax(label_logits)
  entropy = -tf.reduce_sum(tf.exp(log_p) * log_p, axis=1)
  divergence = -tf.reduce_sum(tf.exp(log_p) * log_y, axis=1) - entropy
  compatibility = -tf.gather(log_y, labels, axis=1, batch_dims=1)
  return tf.reduce_mean(
      divergence / num_classes
      + p.compatibility_weight * compatibility
      + p.entropy_weight * entropy / num_classes
  )


def moved(
    label_logits: tf.Tensor,
    logits: tf.Tensor,
    labels: tf.Tensor,
    batch_size: int,
    p: parameters.FedELCParams,
) -> tf.Tensor:
  """Returns float32 `[b, C]`, `y~ - lambda dL/dy~`, with L the mean over `batch_size` examples.

  No gradient flows through it. Other arguments are those of `objective`.
  """
  num_classes = logits.shape[-1]
  y = tf.nn.softmax(label_logits)
  gradient = (y - tf.nn.softmax(logits)) / num_classes
  gradient += p.compatibility_weight * (y - tf.one_hot(labels, num_classes))
  return tf.stop_gradient(label_logits - p.label_learning_rate / batch_size * gradient)


def client(task: task_lib.Task, p: parameters.FedELCParams) -> program.ClientProgram:
  """Local SGD of the second stage, which moves the labels of noisy clients on its way."""
  training, num_classes = task.training, task.num_classes
  augmented = training.augmentation != 'none'

  def init(client):
    kept = client.own[SOFT_LABELS]
    learned = tf.reduce_any(kept > 0, axis=1, keepdims=True)
    label_logits = p.scale * tf.where(learned, kept, tf.one_hot(client.labels, num_classes))
    return fednoro_stages.log_prior(client.labels, num_classes, training.loss), label_logits

  def loss(s):
    log_pi, label_logits = s.carry
    given = tf.gather(label_logits, s.positions)

    def correct():
      logits = s.logits / training.loss.temperature
      return objective(logits, given, s.labels, p), moved(
          given, logits, s.labels, training.batch_size, p
      )

    def adjust():
      return fednoro_stages.logit_adjusted(s.logits, s.labels, log_pi, training.loss), given

    return tf.cond(fednoro_stages.is_noisy(s.client), correct, adjust)

  def step(s):
    log_pi, label_logits = s.carry
    moved_ = tf.tensor_scatter_nd_update(label_logits, s.positions[:, tf.newaxis], s.found)
    return s.gradients, (log_pi, moved_)

  def final(result):
    client = result.client

    def merged():
      prediction = tf.nn.softmax(client.predict(augmented) / training.loss.temperature)
      soft = (tf.nn.softmax(result.carry[1]) + prediction) / 2
      return soft, tf.argmax(soft, axis=1, output_type=tf.int32)

    soft, labels = tf.cond(
        fednoro_stages.is_noisy(client), merged,
        lambda: (client.own[SOFT_LABELS], client.own[LABELS]),
    )
    return program.Sent(own={SOFT_LABELS: soft, LABELS: labels})

  return program.ClientProgram(
      loss=loss, init=init, step=step, final=final,
      own={
          SOFT_LABELS: program.PerExample(np.zeros(num_classes, np.float32)),
          LABELS: program.GivenLabels(),
      },
  )


def build(task: task_lib.Task, p: parameters.FedELCParams) -> algorithm.Algorithm:
  """Returns both stages; see `fednoro_stages.build` for errors."""
  stages = fednoro_stages.stage_lengths(task, _WARM_UP_SHARE)
  return fednoro_stages.build(task, 'fedelc', client(task, p), stages, labels=LABELS)
