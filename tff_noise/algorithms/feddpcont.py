"""FedDPCont: contrastive labels under label differential privacy (Di et al., ECCV 2024).

1. Label communication, once, before the first round (algorithm 1; section 4.1 says "in every
   communication round", which with fresh flips would cost R * eps; the memoised report is asked for
   once). Each client flips its labels by K-ary randomised response; the histograms are summed
   securely; the server inverts the flips to p_hat.
2. Training (algorithm 2): the local loss is `l(f(x), y) - beta * l(f(x), y')` with y' drawn from
   p_hat, fresh for each example and epoch, as line 13 has it.

E (line 11 of algorithm 2 repeats a step on the whole client so often; "local updating iterations"
there and in section 5.1) is epochs over mini-batches here, --local_epochs; the letter is
--batch_size of at least the largest client, where an epoch is one step.

Where the paper errs or is silent: line 18 of algorithm 2 has the wrong sign and no weights, FedAvg
as in section 3.1 is meant; at beta = 1 the literal loss is linear in the logits and unbounded
below, so the contrastive term has a floor under its probability (the same authors' code for CORES
and CAL adds 1e-8 inside the logarithm); p_hat may be negative, see `estimator.estimate`, and by
default is shrunk towards uniform by its own noise (`--label_prior=inverse` is the paper's); clients
that join later (--arrivals) communicate their labels before the first round with all others; beta
is constant 1 by default and may be warmed up and ramped.
"""

import numpy as np
import tensorflow as tf

from tff_noise import types
from tff_noise.algorithms import algorithm
from tff_noise.algorithms import parameters
from tff_noise.algorithms import summary_lines
from tff_noise.clients import program
from tff_noise.federated import computation
from tff_noise.federated import label_histogram
from tff_noise.federated import optimizer
from tff_noise.federated import task as task_lib
from tff_noise.models import losses
from tff_noise.privacy import estimator

_Params = parameters.FedDPContParams
_DEFAULTS = _Params()


def contrastive_weight(round_num, p: _Params):
  """beta in round `round_num`, a number or a tensor, 1 the first: 0, a linear ramp, `p.weight`."""
  if p.warmup_rounds == 0 and p.ramp_rounds <= 1:
    return p.weight  # A constant costs no operations in the client's graph.
  ramp = (round_num - p.warmup_rounds) / max(p.ramp_rounds, 1)
  if not tf.is_tensor(round_num):
    return p.weight * min(max(ramp, 0.0), 1.0)
  return p.weight * tf.cast(tf.clip_by_value(ramp, 0, 1), tf.float32)


def client(p: _Params, training: types.LocalTraining, num_classes: int) -> program.ClientProgram:
  """Algorithm 2: local SGD on `l(f(x), y) - beta l(f(x), y')`, or its expectation over y'."""

  def draw(epoch):
    # y' ~ p_hat, fresh for every example and epoch. 1e-30 keeps log(0) out and is never drawn.
    log_prior = tf.math.log(epoch.client.received['label_prior'] + 1e-30)
    # TensorFlow's kernel for GPUs draws others from the same seed (its issues 58445 and 58450).
    with tf.device('/CPU:0'):
      drawn = tf.random.stateless_categorical(
          log_prior[tf.newaxis], epoch.num_examples, epoch.seed, dtype=tf.int32
      )
    return {'contrast': drawn[0]}

  def loss(s):
    if p.contrast == 'sampled':
      contrastive, contrast = losses.contrastive_cross_entropy, s.columns['contrast']
    else:
      contrastive = losses.expected_contrastive_cross_entropy
      contrast = s.client.received['label_prior']
    beta = contrastive_weight(s.client.round_num, p)
    return contrastive(
        s.logits, s.labels, contrast, weight=beta, floor=p.log_floor, form=training.loss
    )

  return program.ClientProgram(
      loss,
      draw=draw if p.contrast == 'sampled' else None,
      receives={'label_prior': np.full(num_classes, 1 / num_classes, np.float32)},
  )


def build_process(task: task_lib.Task, p: _Params = _DEFAULTS) -> computation.Computation:
  """Returns FedDPCont's training as a `tff.learning.templates.LearningProcess`, with its uplink.

  `next` is `(<state=S@SERVER, data={D*}@CLIENTS> -> <state=S@SERVER, metrics=M@SERVER>)`. Clients
  receive `<label_prior=float32[K]>`, uniform until `Computation.send` puts p_hat there.

  Raises:
    types.UsageError: If both the task's optimizer and `p` say how long the server's step is.
  """
  if task.optimizer is not None and p.server_learning_rate != 1:
    raise types.UsageError(
        '--param=server_learning_rate is that of FedAvg: with --base give that of the optimizer, '
        '--base_param=server_learning_rate=..., where it has one'
    )
  return computation.train(
      'a round of train', task, client(p, task.training, task.num_classes),
      optimizer=task.optimizer
      or optimizer.fed_avg(task.model.weights_type, p.server_learning_rate),
  )


def build(task: task_lib.Task, p: _Params) -> algorithm.Algorithm:
  """Algorithm 1 once, then algorithm 2 in every round; with --label_prior=uniform that alone."""
  train = build_process(task, p)
  columns = {'columns': lambda s: {'contrastive_weight': contrastive_weight(s.round_num, p)}}
  privacy, mechanism = task.label_privacy, task.label_privacy.mechanism(task.num_classes)
  if privacy.prior == 'uniform':  # What clients receive at first; nobody is asked for labels.
    return algorithm.of_rounds(task, train)._replace(report=algorithm.Report(**columns))
  labels = label_histogram.of_task(task)  # Clients flip; one secure sum.

  def estimate(records):
    return estimator.estimate(
        records['label_histogram'], privacy.prior, mechanism,
        num_labels=int(task.client_sizes.sum()),
    )

  def communicate_labels(state, clients):  # Algorithm 1
    histogram = clients.run(labels, state, clients.everybody).sums['label_histogram']
    state = state.record(label_histogram=np.asarray(histogram, np.int64))
    prior = estimate(state.records).prior  # p_hat
    if privacy.in_training:
      # Contrastive labels are of the kind that the loss is about: reports.
      prior = prior @ mechanism.transition_matrix()
    return state.send(label_prior=prior.astype(np.float32))

  def round_(state, clients):  # Algorithm 2
    if state.round_num == 0:
      state = communicate_labels(state, clients)
    return clients.train(train, state, clients.sample(train, state)).state

  return algorithm.Algorithm(
      round_, algorithm.computations_of(labels, train), stages={'train': task.rounds},
      records={'label_histogram': np.zeros(task.num_classes, np.int64)}, times={labels.name: 1},
      report=algorithm.Report(
          **columns,
          summary=lambda records: summary_lines.label_communication(
              estimate(records), mechanism, privacy.prior
          ),
          lines=summary_lines.label_sharing,
      ),
  )
