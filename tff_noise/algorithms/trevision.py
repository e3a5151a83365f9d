"""T-revision: a transition matrix that is revised while the network is trained (Xia et al., 2019).

With `T[i, j] = P(noisy label j | true class i)`, three stages:

  `estimate`: cross-entropy; then every client estimates T by anchors (`transition.anchors`)
  `correct`: the forward loss `-log (T^T p)_y` (FedDPCont), or `mean_i beta_i l(z_i, y_i)` with
    `beta_i = p_i[y_i] / (T^T p_i)[y_i]` as a constant (`correction=reweight`, the paper)
  `revise`: T + dT in place of T, dT = 0 at first; the same reweighted loss, now over w and dT, and
    beta has a gradient: `d l / d dT[i, y] = -p_i p_y / (T^T p)_y^2 CE`

FedDPCont, which compares with it (section 9.4), has 20, 140 and 140 of its 300 rounds, a T of each
client and forward correction in the second; these shares and that loss are the default. What is not
said there: T comes from the global model of that round on the client's images as they are, and dT
is the client's own too (`revision=averaged`: summed with those of the other clients of the
round, the mean goes to all). A client that is not there when T is estimated goes on with the
identity, for which beta is 1.

The third stage has the public code's Adam with 5e-7, for w and for dT, which moves neither much:
with 0.1 of SGD, as in the other stages, accuracy on digits falls to that of guessing. Where beta
has a gradient, l = -p_y log p_y / q_y is 0 not only at p_y = 1 but also at p_y = 0: a network that
learns fast enough unlearns the labels.

The public code (xiaoboxia/T-Revision) is not what the paper says, in ways that matter:
* Its third stage has the paper's gradient; some of its versions add dT once more for every example
  of a batch, here T + dT is the same for all. In the faster loss beside that one, which `main.py`
  does not use, beta is wrapped into a new variable: dT has no gradient and stays 0, so that the
  third stage repeats the second (`gradient=code`).
* `tools.norm` divides entry (i, j) by the sum of row j, so that rows do not sum to 1
  (`normalise=code`). That shows where anchors have lost entries (`anchors=code`); else sums are 1.
* It passes over 3 % of the predictions of a class when it looks for anchors, and changes them
  (`anchors=code`, see `transition.anchors`), but on CIFAR-100.
* It chooses each stage's first model by validation on noisy labels; here stages go on, and Adam
  starts anew in each round. Its weight decay is of dT as well, here of the network alone.
* `(T^T p)_y` has no floor there; here it is 1e-8 at least. T + dT may leave the distributions.

With --training_labels=private labels are flipped after the noise: the losses account for it.
"""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_noise import types
from tff_noise.algorithms import algorithm
from tff_noise.algorithms import lc
from tff_noise.algorithms import parameters
from tff_noise.algorithms import plain
from tff_noise.clients import program
from tff_noise.clients import transition as transition_lib
from tff_noise.federated import computation
from tff_noise.federated import task as task_lib
from tff_noise.models import losses
from tff_noise.uplink import uplink

# What clients keep: dT. What they receive and send where it is averaged.
REVISION, _REVISIONS = 'revision', 'revisions'
# Entries of dT are cut to this before they are sent; T is at most 1.
_BOUND = 1.0
# Of FedDPCont's 300 rounds.
_ESTIMATE, _CORRECT = 20 / 300, 140 / 300


def stage_lengths(task: task_lib.Task) -> dict[str, int]:
  """Returns the rounds of the stages; see `algorithm.require_rounds` for errors."""
  first = task.stages.get('estimate', max(1, round(_ESTIMATE * task.rounds)))
  second = task.stages.get('correct', round(_CORRECT * task.rounds))
  last = task.stages.get('revise', task.rounds - first - second)
  stages = {'estimate': first, 'correct': second, 'revise': last}
  algorithm.require_rounds(task, stages)
  return stages


def normalised_as_in_code(rows: tf.Tensor) -> tf.Tensor:
  """Returns float32 `[K, K]`, `T[i, j] / sum_m T[j, m]`: columns are divided by sums of rows."""
  return tf.math.divide_no_nan(rows, tf.reduce_sum(rows, axis=1))


def estimated(probabilities: tf.Tensor, p: parameters.TRevisionParams) -> tf.Tensor:
  """Returns float32 `[K, K]`, T by anchors of float32 `[n, K]`; the identity for n = 0."""
  rows = transition_lib.anchors(probabilities, p.anchors)
  if p.normalise == 'row':
    return transition_lib.normalised(rows)
  return tf.cond(
      tf.shape(probabilities)[0] > 0, lambda: normalised_as_in_code(rows),
      lambda: tf.eye(probabilities.shape[1]),
  )


def correcting(
    p: parameters.TRevisionParams, training: types.LocalTraining, num_classes: int
) -> program.ClientProgram:
  """The second stage: local SGD with the client's T."""

  def loss(s):
    transition = s.client.own[lc.TRANSITION]
    if p.correction == 'forward':
      return losses.forward_corrected_cross_entropy(s.logits, s.labels, transition, training.loss)
    return losses.reweighted_cross_entropy(
        s.logits, s.labels, transition, attached=False, form=training.loss
    )

  return program.ClientProgram(loss=loss, own=_own_transition(num_classes))


def revising(
    p: parameters.TRevisionParams, training: types.LocalTraining, num_classes: int
) -> program.ClientProgram:
  """The third stage: local SGD of the network and of dT."""
  adam = tff.learning.optimizers.build_adam(p.revise_learning_rate, epsilon=1e-8)
  zeros = np.zeros((num_classes, num_classes), np.float32)

  def start(delta):
    return delta, adam.initialize(tf.TensorSpec(zeros.shape))

  def loss(s):
    delta, _ = s.carry
    with tf.GradientTape() as tape:
      tape.watch(delta)
      value = losses.reweighted_cross_entropy(
          s.logits, s.labels, s.client.own[lc.TRANSITION] + delta,
          attached=p.gradient == 'paper', form=training.loss,
      )
    slope = tape.gradient(value, delta, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return value, tf.stop_gradient(slope)

  def step(s):
    delta, state = s.carry
    state, delta = adam.next(state, delta, s.found)
    return s.gradients, (delta, state)

  revised = program.ClientProgram(loss=loss, step=step, own=_own_transition(num_classes))
  if p.revision == 'local':
    return revised._replace(
        init=lambda client: start(client.own[REVISION]),
        final=lambda result: program.Sent(own={REVISION: result.carry[0]}),
        own={**revised.own, REVISION: zeros},
    )

  def send(result):
    delta, _ = result.carry
    finite = tf.reduce_all(tf.math.is_finite(delta))
    revision = tf.where(finite, tf.clip_by_value(delta, -_BOUND, _BOUND), 0.0)
    return program.Sent(sums={_REVISIONS: revision})

  return revised._replace(
      init=lambda client: start(client.received[REVISION]),
      final=send,
      receives={REVISION: zeros},
      sums=(
          uplink.UplinkSum(
              _REVISIONS, np.float32, -_BOUND, _BOUND,
              'what is added to transition matrices, of which the mean goes to all clients',
              shape=zeros.shape,
          ),
      ),
  )


def _revise(task, p):
  """A round of the third stage, in which the optimizer reckons with Adam's steps."""
  training = task.training._replace(
      optimizer='adam', learning_rate=p.revise_learning_rate, momentum=0.0,
      schedule=types.Schedule(),
  )
  base = task.optimizer.name if task.optimizer is not None else ''
  leave = 'use another one, or leave the stage out by --stages=revise:0'
  if base == 'feddyn':
    # Its server goes on by h, however short clients' steps are: in 140 rounds to no model at all.
    raise types.UsageError(
        '--base=feddyn: the last stage of trevision takes steps that are too short for clients to '
        f'answer to what feddyn\'s server remembers: {leave}'
    )
  try:
    task = task.with_training(training)
  except types.UsageError as error:
    raise types.UsageError(
        f'--base={base}: the last stage of trevision trains by Adam, and {base} reckons with the '
        f'steps of SGD: {leave}'
    ) from error
  return computation.train(
      'a round of revise', task, revising(p, training, task.num_classes)
  )


def _own_transition(num_classes):
  return {lc.TRANSITION: np.eye(num_classes, dtype=np.float32)}


def _require_several(num_clients):
  if num_clients < 2:
    raise types.UsageError(
        '--param=revision=averaged: a sum over one client is its own value: use more '
        '--clients_per_round, --arrivals of more clients, or --param=revision=local'
    )


def build(task: task_lib.Task, p: parameters.TRevisionParams) -> algorithm.Algorithm:
  """The three stages."""
  stages = stage_lengths(task)
  num_classes = task.num_classes
  if p.revision == 'averaged' and stages['revise']:
    first = stages['estimate'] + stages['correct'] + 1
    there = [len(task.present(r)) for r in range(first, first + stages['revise'])]
    _require_several(min(task.clients_per_round, *there))
  train = computation.train('a round of estimate', task, plain.client(task.training))
  correct = computation.train(
      'a round of correct', task, correcting(p, task.training, num_classes)
  )
  revise = _revise(task, p) if stages['revise'] else None

  estimate = lc.estimation(
      task, lambda client: estimated(lc.predicted(client, task.training), p)
  )

  def round_(state, clients):
    if state.round_num == stages['estimate']:
      clients.run(estimate, state, clients.present)
    match algorithm.stage_of(stages, state.round_num + 1):
      case 'estimate':
        return clients.train(train, state, clients.sample(train, state)).state
      case 'correct':
        return clients.train(correct, state, clients.sample(correct, state)).state
      case 'revise':
        return averaged(clients.train(revise, state, clients.sample(revise, state)))

  def averaged(output):
    if p.revision == 'local':
      return output.state
    _require_several(len(output.cohort))
    finite = len(output.cohort) - int(output.sums['rejected'])
    if not finite:
      return output.state
    return output.state.send(**{REVISION: output.sums[_REVISIONS] / np.float32(finite)})

  def kept_summary(state, own):
    if not stages['correct'] + stages['revise']:
      return {}
    of_all = state.received.get(REVISION, 0)
    return lc.transition_summary(
        [kept[lc.TRANSITION] + kept.get(REVISION, of_all) for kept in own], len(own)
    )

  return algorithm.Algorithm(
      round_, algorithm.computations_of(train, estimate, correct, *filter(None, [revise])),
      stages,
      times={
          train.name: stages['estimate'], correct.name: stages['correct'],
          **({revise.name: stages['revise']} if revise else {}),
          estimate.name: min(1, stages['correct'] + stages['revise']),
      },
      report=algorithm.Report(kept_summary=kept_summary),
  )
