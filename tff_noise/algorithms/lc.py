"""LC: loss correction by a transition matrix of each client (Patrini et al., CVPR 2017).

With `T[i, j] = P(noisy label j | true class i)` the loss of the noisy labels is corrected

  forward: `l_F(z, y) = -log (T^T p)_y`
  backward: `l_B(z, y) = sum_j (T^-1)[y, j] (-log p_j)`

FedDPCont's comparison (its appendix, section 9.2) is the default: FedAvg for half of the rounds
(stage `train`); then every client counts, with the global model, how often it predicts i with more
than 95 % where the label is j, and divides rows by their sums; from then on (stage `correct`)
clients train by the forward loss with their own T. Nothing but FedAvg's updates leaves a client.
FedDPCont does not say which model predicts, on which images, and what a class is given that is
never predicted with confidence: here the global model of that round, on images as they are, and
the row of the identity, which leaves its labels as they are. A client that is not there in that
round goes on with the identity, which is FedAvg.

* `estimator=anchor` is the paper's own: row i is the prediction for the example that looks most
  like class i. Its public code (giorgiop/loss-correction) passes over the 3 % that look most like
  it, for outliers (`anchors=filtered`), and does so in the predictions themselves, so that rows of
  later classes have zeros where none should be (`anchors=code`).
* `estimator=given` takes T from a file, `--param=transition=FILE`: K rows of K numbers.
* `scope=pooled`: clients send counts, or estimates, of which the server needs the sum alone; its
  rows, divided by their sums, are one T for all. A client of few examples sees few of the K^2
  transitions.
* `restart=true`: the paper trains anew once T is known. FedDPCont goes on.

The paper's code clips p, but not T^T p, so that a label which T excludes has an infinite loss;
entries of T are at least 1e-30 here. A T without inverse has its pseudo-inverse.

--temperature divides the logits of these predictions as those of the loss.

With --training_labels=private labels are flipped after the noise: they are accounted for in T, in
its estimate as in the loss.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tff_noise import types
from tff_noise.algorithms import algorithm
from tff_noise.algorithms import parameters
from tff_noise.algorithms import plain
from tff_noise.clients import program
from tff_noise.clients import transition as transition_lib
from tff_noise.data import matrix_file
from tff_noise.federated import computation
from tff_noise.federated import task as task_lib
from tff_noise.models import losses
from tff_noise.uplink import uplink

# What clients keep, or receive: T. What they send for a pooled one.
TRANSITION, _EVIDENCE = 'transition', 'transition_evidence'
# Of one client, for the secure sum.
_MAX_COUNT = 2**20
# Rows of a given T that are this far from a sum of 1 are one but for what was printed.
_ROUNDING = 1e-3

Transition = Callable[[program.Client], tf.Tensor]


def stage_lengths(task: task_lib.Task) -> dict[str, int]:
  """Returns the rounds of the stages; FedDPCont corrects in the second half."""
  return algorithm.two_stages(task, 'train', task.rounds - task.rounds // 2, 'correct')


def predicted(client: program.Client, training: types.LocalTraining) -> tf.Tensor:
  """Returns float32 `[n_c, K]`, p as the loss has it: of logits divided by --temperature."""
  return tf.nn.softmax(client.predict() / training.loss.temperature)


def evidence(
    p: parameters.LCParams, training: types.LocalTraining
) -> Callable[[program.Client], tf.Tensor]:
  """Returns what tells, with the global model, a client's int32 counts or float32 anchors."""

  def counts(client):
    return transition_lib.confident_counts(
        predicted(client, training), client.labels, p.confidence
    )

  def anchors(client):
    return transition_lib.anchors(predicted(client, training), p.anchors)

  return counts if p.estimator == 'counts' else anchors


def estimation(
    task: task_lib.Task, estimate: Callable[[program.Client], tf.Tensor]
) -> computation.Computation:
  """Clients keep what `estimate` tells of them, float32 `[K, K]`: T."""
  return computation.collect(
      'estimating transitions', task,
      program.ClientProgram(
          final=lambda result: program.Sent(own={TRANSITION: estimate(result.client)}),
          own={TRANSITION: np.eye(task.num_classes, dtype=np.float32)},
      ),
  )


def _of_evidence(
    found: tf.Tensor, p: parameters.LCParams, training: types.LocalTraining
) -> tf.Tensor:
  """Returns float32 `[K, K]`, T of what was found; counted labels may have been flipped."""
  keep = training.loss.keep_probability if p.estimator == 'counts' else 1.0
  return transition_lib.without_flips(transition_lib.normalised(found), keep)


def _pooling(
    task: task_lib.Task, found: Callable[[program.Client], tf.Tensor], p: parameters.LCParams
) -> computation.Computation:
  """Clients send what they find, to be summed."""
  counts = p.estimator == 'counts'
  sent = uplink.UplinkSum(
      _EVIDENCE, np.int32 if counts else np.float32, 0, _MAX_COUNT if counts else 1,
      'predicted class against label, of which one transition matrix for all is made',
      shape=(task.num_classes, task.num_classes),
  )
  return computation.collect(
      'pooling transitions', task,
      program.ClientProgram(
          final=lambda result: program.Sent(sums={_EVIDENCE: found(result.client)}), sums=(sent,)
      ),
  )


def client(
    p: parameters.LCParams, training: types.LocalTraining, transition: Transition, **more
) -> program.ClientProgram:
  """Local SGD on the corrected loss.

  Args:
    p: Which correction.
    training: Local training.
    transition: From what a client knows to T.
    **more: Further attributes of the program.
  """
  corrected = (
      losses.forward_corrected_cross_entropy if p.correction == 'forward'
      else losses.backward_corrected_cross_entropy
  )
  return program.ClientProgram(
      loss=lambda s: corrected(s.logits, s.labels, transition(s.client), training.loss), **more
  )


def _read_transition(path: str, num_classes: int) -> np.ndarray:
  """Returns float32 `[K, K]`, T of a file.

  Raises:
    types.UsageError: If there is no such file, or no such T in it.
  """
  if not path:
    raise types.UsageError(
        '--param=estimator=given needs the matrix: name a file of K rows, true classes, of K '
        'probabilities of labels by --param=transition=FILE'
    )
  flag = f'--param=transition={path}'
  matrix = np.atleast_2d(matrix_file.read(path, '--param=transition'))
  if matrix.shape != (num_classes, num_classes):
    raise types.UsageError(
        f'{flag} has {matrix.shape[0]} rows of {matrix.shape[1]}, and the data has {num_classes} '
        'classes'
    )
  wrong = (matrix < 0).any(axis=1) | (abs(matrix.sum(axis=1) - 1) > _ROUNDING)
  if wrong.any():
    row = int(np.flatnonzero(wrong)[0])
    raise types.UsageError(
        f'{flag}: rows are probabilities with sum 1, row {row} is {matrix[row].tolist()}'
    )
  return (matrix / matrix.sum(axis=1, keepdims=True)).astype(np.float32)


def transition_summary(matrices: Sequence[np.ndarray], num_clients: int) -> dict[str, Any]:
  """Returns 'transition' of `summary.json`: the mean of one T for each client, or the T of all.

  {} where that is not finite, as of a model that diverged.
  """
  mean = np.mean(np.asarray(matrices, np.float64), axis=0)
  if not np.isfinite(mean).all():
    return {}
  return {
      'transition': {
          'estimate': mean.tolist(), 'clients': num_clients,
          'shared': len(matrices) < num_clients,
      }
  }


def build(task: task_lib.Task, p: parameters.LCParams) -> algorithm.Algorithm:
  """FedAvg, or the task's optimizer, then the same with corrected losses."""
  stages = stage_lengths(task)
  train = computation.train('a round of train', task, plain.client(task.training))
  identity = np.eye(task.num_classes, dtype=np.float32)
  asked = ()
  if p.estimator == 'given':
    given = _read_transition(p.transition, task.num_classes)
    program_ = client(p, task.training, lambda known: tf.constant(given))
  elif p.scope == 'pooled':
    if stages['correct']:
      _require_several(len(task.present(stages['train'] + 1)))
    asked = (_pooling(task, evidence(p, task.training), p),)
    program_ = client(
        p, task.training, lambda known: known.received[TRANSITION],
        receives={TRANSITION: identity},
    )
  else:
    find = evidence(p, task.training)
    asked = (estimation(task, lambda known: _of_evidence(find(known), p, task.training)),)
    program_ = client(
        p, task.training, lambda known: known.own[TRANSITION], own={TRANSITION: identity}
    )
  correct = computation.train('a round of correct', task, program_)

  def round_(state, clients):
    if state.round_num < stages['train']:
      return clients.train(train, state, clients.sample(train, state)).state
    if state.round_num == stages['train']:
      state = switch(state, clients)
    return clients.train(correct, state, clients.sample(correct, state)).state

  def switch(state, clients):
    for c in asked:
      if p.scope == 'pooled':
        _require_several(len(clients.present))
      found = clients.run(c, state, clients.present).sums
      if p.scope == 'pooled':
        state = use(state, found[_EVIDENCE])
    return algorithm.from_scratch(state, clients, correct) if p.restart else state

  def use(state, found):
    rows = _of_evidence(tf.constant(found), p, task.training).numpy()
    return state.send(**{TRANSITION: rows}).record(**{TRANSITION: rows})

  def kept_summary(state, own):
    if not asked or not stages['correct']:
      return {}
    if p.scope == 'pooled':
      return transition_summary([state.records[TRANSITION]], len(own))
    return transition_summary([kept[TRANSITION] for kept in own], len(own))

  return algorithm.Algorithm(
      round_, algorithm.computations_of(train, *asked, correct), stages,
      records={TRANSITION: identity} if p.scope == 'pooled' else {},
      times={
          train.name: stages['train'], correct.name: stages['correct'],
          **{c.name: min(1, stages['correct']) for c in asked},
      },
      report=algorithm.Report(kept_summary=kept_summary),
  )


def _require_several(num_clients):
  if num_clients < 2:
    raise types.UsageError(
        '--param=scope=pooled: one client is there, and a sum over one is its own value: use '
        'more clients, or --param=scope=client'
    )
