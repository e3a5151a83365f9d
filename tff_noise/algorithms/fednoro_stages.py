"""What FedNoRo and FedELC share: a warm-up, a look for noisy clients, an aggregation by distance.

1. warm_up: FedAvg, where each client's cross-entropy is adjusted to the shares pi_c of its labels,
   `LA(z, y) = CE(z + log pi_c, y)`. Sums alone: nobody's model is seen.
2. noisy clients, once: each client that is there reports its mean loss under the model for each
   class it has, `CE(z, y)`, which is not adjusted; the server splits clients by these
   (`selection/class_losses`) and from here on tells each, by one bit, what it takes it for.
3. noise_robust: noisy clients train as the method says, the others as before, and models are
   weighted by `n_c exp(-d_c / max d)`, with d_c the distance of a noisy client's model to the
   nearest clean one of the round, 0 for clean clients.

Clients that are not there at the look, such as late ones, count as clean.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tff_noise import types
from tff_noise.algorithms import algorithm
from tff_noise.algorithms import summary_lines
from tff_noise.clients import program
from tff_noise.federated import computation
from tff_noise.federated import optimizer as optimizer_lib
from tff_noise.federated import task as task_lib
from tff_noise.models import losses
from tff_noise.selection import class_losses as server
from tff_noise.uplink import uplink

WARM_UP, NOISE_ROBUST = 'warm_up', 'noise_robust'

# What a client is told, and sends back so that the server finds it beside the client's model; and
# what it reports at the look for noisy clients.
NOISY, _CLASS_LOSSES = 'noisy', 'class_losses'

# In place of log 0: far below what logits differ by, but finite, so that a smoothed loss is, too.
_LOG_ZERO = -60.0
_LARGEST_LOSS = 100.0


def log_prior(labels: tf.Tensor, num_classes: int, form: types.CrossEntropy) -> tf.Tensor:
  """Returns float32 `[K]`, log pi_c of a client's labels, int32 `[n_c]`; -60 for log 0.

  Of reports in place of labels it is the estimate of the shares of the labels behind them.
  """
  counts = tf.reduce_sum(tf.one_hot(labels, num_classes), axis=0)
  shares = tf.math.divide_no_nan(counts, tf.reduce_sum(counts))
  if form.keep_probability < 1:
    other = (1 - form.keep_probability) / (num_classes - 1)
    shares = tf.maximum(shares - other, 0.0)
    shares = tf.math.divide_no_nan(shares, tf.reduce_sum(shares))
  return tf.where(shares > 0, tf.math.log(shares), _LOG_ZERO)


def has_class(log_prior_: tf.Tensor) -> tf.Tensor:
  """Returns bool `[K]`, which classes a client has, from its `log_prior`."""
  return log_prior_ > _LOG_ZERO


def adjusted(logits: tf.Tensor, log_prior_: tf.Tensor, form: types.CrossEntropy) -> tf.Tensor:
  """Returns float32 `[b, K]`, `z + log pi_c`; with a temperature T the sum is taken of `z / T`."""
  return logits + form.temperature * log_prior_


def logit_adjusted(
    logits: tf.Tensor, labels: tf.Tensor, log_prior_: tf.Tensor, form: types.CrossEntropy
) -> tf.Tensor:
  """Returns float32 `[]`, the mean of LA of logits `[b, K]` and labels int32 `[b]`."""
  return losses.cross_entropy(adjusted(logits, log_prior_, form), labels, form)


def class_losses(
    logits: tf.Tensor, labels: tf.Tensor, num_classes: int, form: types.CrossEntropy
) -> tf.Tensor:
  """Returns float32 `[K]`, the mean loss of each label's examples; nan where there are none.

  A loss that is not finite counts as the largest that may be reported.
  """
  each = losses.example_losses(logits, labels, form)
  each = tf.where(tf.math.is_finite(each), each, _LARGEST_LOSS)
  sums, counts = (
      tf.math.unsorted_segment_sum(v, labels, num_classes) for v in (each, tf.ones_like(each))
  )
  return tf.where(counts > 0, tf.math.divide_no_nan(sums, counts), np.nan)


def distances(
    contributions: optimizer_lib.Contributions, noisy: tf.Tensor, kind: str
) -> tf.Tensor:
  """Returns float32 `[k]`, d_c: 0 of clean clients, and of all if nobody is clean.

  Args:
    contributions: What the clients sent, and in what their models differ.
    noisy: bool `[k]`.
    kind: 'tensors', the sum of the norms of each tensor's difference, statistics of batch norm
      included, or 'flat', one norm of all.
  """
  used = contributions.weights > 0

  def between(pair):
    ours, theirs = contributions.tensors(pair[0]), contributions.tensors(pair[1])
    parts = [a - b for a, b in zip(ours, theirs, strict=True)]
    if kind == 'flat':
      parts = [tf.concat([tf.reshape(part, [-1]) for part in parts], axis=0)]
    return tf.add_n([tf.norm(part) for part in parts])

  pairs = tf.where((used & noisy)[:, tf.newaxis] & (used & ~noisy)[tf.newaxis, :])
  each = tf.map_fn(between, pairs, fn_output_signature=tf.float32)
  nearest = tf.math.unsorted_segment_min(each, pairs[:, 0], tf.shape(used)[0])
  return tf.where(tf.reduce_any(used & ~noisy) & used & noisy, nearest, 0.0)


def weights_by_distance(weights: tf.Tensor, d: tf.Tensor) -> tf.Tensor:
  """Returns float32 `[k]`, `n_c exp(-d_c / max d)`: n_c, float32 `[k]`, where all d are 0."""
  return weights * tf.exp(-tf.math.divide_no_nan(d, tf.reduce_max(d)))


def weigh(kind: str) -> Callable[[optimizer_lib.Contributions], tf.Tensor]:
  """Returns the distance-aware aggregation, for `optimizer.FederatedOptimizer.weigh`."""

  def weights(contributions):
    noisy = contributions.reports[NOISY] > 0
    return weights_by_distance(contributions.weights, distances(contributions, noisy, kind))

  return weights


def is_noisy(client: program.Client) -> tf.Tensor:
  """Returns bool `[]`, what the server takes the client for."""
  return client.messages[NOISY] > 0


def warm_up_program(task: task_lib.Task) -> program.ClientProgram:
  """Local SGD on LA."""
  form = task.training.loss
  return program.ClientProgram(
      loss=lambda s: logit_adjusted(s.logits, s.labels, s.carry, form),
      init=lambda client: log_prior(client.labels, task.num_classes, form),
  )


def build(
    task: task_lib.Task,
    name: str,
    robust: program.ClientProgram,
    stages: Mapping[str, int],
    *,
    distance: str = 'tensors',
    labels: str = '',
) -> algorithm.Algorithm:
  """Returns the two stages as one function of a round.

  Args:
    task: What is trained.
    name: The method's.
    robust: What clients do in the second stage, in which `is_noisy` tells them apart.
    stages: From `stage_lengths`.
    distance: Between models, see `distances`.
    labels: What clients keep of their labels, see `algorithm.Report`.

  Raises:
    types.UsageError: If the optimizer takes no mean that weights could change.
  """
  optimizer = task.optimizer or optimizer_lib.fed_avg(task.model.weights_type)
  if optimizer.sees_updates:
    raise types.UsageError(
        f'--base: {name} weights models by their distance, and {optimizer.name} takes no mean by '
        'numbers of examples; use another one'
    )
  # The same server in both stages, by its name.
  warm_up = computation.train(
      'a round of warm_up', task, warm_up_program(task), optimizer=optimizer
  )
  look = computation.collect('a look for noisy clients', task, _look(task))
  noise_robust = computation.train(
      'a round of noise_robust', task, _told(robust),
      optimizer=optimizer._replace(weigh=weigh(distance)),
  )

  def round_(state, clients):
    if state.round_num < stages[WARM_UP]:
      return clients.train(warm_up, state, clients.sample(warm_up, state)).state
    if state.round_num == stages[WARM_UP]:
      state = look_for_noisy(state, clients)
    cohort = clients.sample(noise_robust, state)
    noisy = state.records['noisy'][cohort].astype(np.int32)
    return clients.train(noise_robust, state, cohort, noisy=noisy).state

  def look_for_noisy(state, clients):
    found = state.records['class_losses'].copy()
    cohort = clients.present
    found[cohort] = clients.run(look, state, cohort).reports[_CLASS_LOSSES]
    return state.record(class_losses=found, noisy=server.noisy_clients(found))

  return algorithm.Algorithm(
      round_, algorithm.computations_of(warm_up, look, noise_robust), stages,
      records={
          'class_losses': np.full((task.num_clients, task.num_classes), np.nan),
          'noisy': np.zeros(task.num_clients, bool),
      },
      times={
          warm_up.name: stages[WARM_UP], look.name: int(stages[NOISE_ROBUST] > 0),
          noise_robust.name: stages[NOISE_ROBUST],
      },
      report=algorithm.Report(
          columns=lambda state: {'noisy_clients': int(state.records['noisy'].sum())},
          summary=lambda records: {name: _summary(records)},
          labels=labels,
          noisy_clients=lambda records: records['noisy'],
          client_columns=lambda records: {
              'class_loss_score': server.scores(records['class_losses']),
              'taken_for_noisy': records['noisy'].astype(int),
          },
          client_scores=('class_loss_score',),
          lines=lambda summary: _lines(summary, summary[name]),
      ),
  )


def stage_lengths(task: task_lib.Task, warm_up_share: float) -> Mapping[str, int]:
  """Returns the rounds of each stage; of the first, if not given, a share of all, and at least 1.

  See `algorithm.require_rounds` for errors.
  """
  warm_up = max(1, round(warm_up_share * task.rounds))
  return algorithm.two_stages(task, WARM_UP, warm_up, NOISE_ROBUST)


def _look(task):
  """A client's losses by class, on its images as they are."""
  # T^2 is for gradients: times it, all losses would be cut to one.
  form = task.training.loss._replace(temperature_reading='divide')

  def report(result):
    client = result.client
    found = class_losses(client.predict(), client.labels, task.num_classes, form)
    return program.Sent(reports={_CLASS_LOSSES: found})

  losses_by_class = uplink.UplinkReport(
      _CLASS_LOSSES, np.float32, 0.0, _LARGEST_LOSS,
      'mean losses of the classes it has, none for the others, by which the server tells noisy '
      'clients from clean ones',
      shape=(task.num_classes,),
  )
  return program.ClientProgram(final=report, reports=(losses_by_class,))


def _told(robust):
  """The program of a client that is told what it is taken for, and says so beside its model."""

  def final(result):
    sent = program.Sent() if robust.final is None else robust.final(result)
    return sent._replace(reports={NOISY: result.client.messages[NOISY]})

  return robust._replace(
      final=final,
      messages=(
          uplink.Message(NOISY, np.int32, 'whether it is taken for noisy, and trains accordingly'),
      ),
      reports=(
          uplink.UplinkReport(
              NOISY, np.int32, 0, 1,
              'what the server told it, sent back: it marks the models that are weighted down',
          ),
      ),
  )


def _summary(records: algorithm.Records) -> Mapping[str, Any]:
  judged = np.isfinite(records['class_losses']).any(axis=1)
  return {'judged_clients': int(judged.sum()), 'noisy_clients': int(records['noisy'].sum())}


def _lines(summary, found):
  if not found['judged_clients']:
    return [f'  noisy clients   not looked for: no round of {NOISE_ROBUST}']
  return [summary_lines.noisy_clients(summary, found['noisy_clients'], 'taken for noisy')]
