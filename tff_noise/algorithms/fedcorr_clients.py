"""What FedCorr's clients compute: training with its loss, statistics, and correction of labels.

`fedcorr.py` has the method: its stages and what the server decides.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_noise.algorithms import fedcorr_params
from tff_noise.clients import gaussian_mixture
from tff_noise.clients import lid_report
from tff_noise.clients import mixup
from tff_noise.clients import program
from tff_noise.clients import relabel
from tff_noise.federated import computation
from tff_noise.federated import optimizer
from tff_noise.federated import task as task_lib
from tff_noise.models import losses
from tff_noise.optimizers import fed_prox
from tff_noise.uplink import uplink

# What a client keeps: the labels it believes, and the loss of each under its own last model.
LABELS, _LOSSES = 'labels', 'losses'
_OWN_LABELS = {LABELS: program.GivenLabels()}
_OWN_LOSSES = {_LOSSES: program.PerExample(np.float32(0))}


class Computations(NamedTuple):
  """The computations of FedCorr.

  Attributes:
    preprocess: A round of pre-processing.
    correct: A noisy client splits its examples, estimates its noise and relabels some.
    finetune: A round of fine-tuning.
    relabel_all: A client relabels every example of which the global model is confident.
    usual: A round of usual training: of fine-tuning, on the optimizer that --base names.
  """

  preprocess: computation.Computation
  correct: computation.Computation
  finetune: computation.Computation
  relabel_all: computation.Computation
  usual: computation.Computation


def build(
    task: task_lib.Task, params: fedcorr_params.FedCorrParams, smallest: int = 2
) -> Computations:
  """Composes FedCorr's computations for a task; `smallest` is the smallest cohort of a round."""
  # By a name of its own: with --base=fedavg it would share that one's state, and step size.
  fed_avg = optimizer.fed_avg(task.model.weights_type)._replace(name='fedcorr')
  late_mixup = params.follows('late_mixup') == 'on'
  training = _training(task, params, mixed=late_mixup)
  finetune = computation.train('a round of finetune', task, training, optimizer=fed_avg)
  usual = finetune
  if task.optimizer is not None:
    usual = computation.train('a round of usual', task, training)
  preprocess = computation.train(
      'a round of preprocess', task, _preprocessing(task, params), optimizer=fed_avg
  )
  return Computations(
      preprocess=preprocess._replace(fields=_fields_of_cohort(preprocess.fields, smallest)),
      correct=computation.collect('correction', task, _correction(task, params)),
      finetune=finetune,
      relabel_all=computation.collect('relabelling', task, _relabelling(task, params)),
      usual=usual,
  )


def _fields_of_cohort(fields, smallest):
  """In a round of one client, the sum over the round is that client's own value."""
  if smallest > 1:
    return fields
  return tuple(
      f._replace(
          disclosure=uplink.Disclosure.PER_CLIENT,
          reason=f.reason + '; in a round of one client the sum is its own (--param=fraction)',
      )
      for f in fields
  )


def _training(task, params, *, mixed):
  """Local SGD on the client's own labels, on mixup batches where that is asked for."""

  def loss(s):
    return mixup.loss(
        lambda labels: losses.cross_entropy(s.logits, labels, task.training.loss), s
    )

  return program.ClientProgram(
      loss=loss,
      columns=lambda client: program.Columns(labels=client.own[LABELS]),
      transform=mixup.transform(params.mixup_alpha if mixed and params.mixup else 0.0),
      own=_OWN_LABELS,
  )


def _preprocessing(task, params):
  """Training with the proximal term of equation 5, then the statistics."""
  from_iteration = params.proximal > 0 and params.follows('proximal_anchor') == 'iteration'
  term = params.follows('proximal_term')
  augmented = _on_augmented(task, params)

  def proximal(s):
    anchor = s.client.received['anchor'] if from_iteration else s.anchor
    strength = params.proximal * s.client.messages['noise']  # beta mu
    if term == 'squared':
      # Equation 5 has no half before the square.
      strength *= 2
    else:
      # The public code has none in an epoch's first step.
      strength = tf.where(tf.equal(s.epoch_step, 0), 0.0, strength)
    return fed_prox.add_proximal(s.gradients, s.weights, anchor, strength, term), s.carry

  def statistics(result):
    logits = _predict(task, result.client, augmented)
    sample_losses = _sample_losses(logits, result.labels, params.follows('sample_loss'))
    lid = lid_report.value(logits, sample_losses, params.lid_neighbours)  # Equation 2
    return program.Sent(own={_LOSSES: sample_losses}, reports={lid_report.NAME: lid})

  noise = uplink.Message(
      'noise', np.float32, 'its estimated noise, by which the proximal term is weighted'
  )
  anchor = [np.zeros(t.shape, t.dtype) for t in task.model.weights_type.trainable]
  return _training(task, params, mixed=True)._replace(
      step=proximal if params.proximal else None,
      final=statistics,
      own={**_OWN_LABELS, **_OWN_LOSSES},
      receives={'anchor': anchor} if from_iteration else {},
      messages=(noise,),
      reports=(lid_report.REPORT,),
  )


def _predict(task, client, augmented):
  """float32 `[n, K]`, the logits of the probabilities that training is about.

  A model that was trained with a temperature of 10 and is certain at .2 would be at .997 without.
  """
  return client.predict(augmented) / task.training.loss.temperature


def _sample_losses(logits: tf.Tensor, labels: tf.Tensor, reading: str) -> tf.Tensor:
  """float32 `[n]`, the loss of each example; the public code takes the softmax twice."""
  if reading == 'double_softmax':
    logits = tf.nn.softmax(logits)
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def _on_augmented(task, params):
  """Whether statistics are computed on augmented images, as in the public code."""
  augments = task.training.augmentation != 'none'
  return augments and params.follows('statistics_images') == 'augmented'


def _correction(task, params):
  """What a noisy client does at the end of an iteration (equations 6 and 7)."""
  augmented = _on_augmented(task, params)
  strict = params.follows('confidence_bound') == 'strict'

  def correct(result):
    client = result.client
    labels, suspicion = client.own[LABELS], client.own[_LOSSES]
    suspicious = gaussian_mixture.larger_component(suspicion, gaussian_mixture.fit(suspicion))
    noise = tf.reduce_mean(tf.cast(suspicious, tf.float32))
    if params.correction:
      logits = _predict(task, client, augmented)
      if params.follows('ranking_model') == 'global':
        suspicion = _sample_losses(logits, labels, params.follows('sample_loss'))
      chosen = relabel.largest_losses(suspicion, suspicious, params.relabel_ratio)
      labels = relabel.relabel(labels, tf.nn.softmax(logits), chosen, params.confidence, strict)
    return program.Sent(own={LABELS: labels}, reports={'noise': noise})

  report = uplink.UplinkReport(
      'noise', np.float32, 0.0, 1.0,
      'estimated share of wrong labels, by which the server chooses whom to fine-tune on',
  )
  return program.ClientProgram(
      final=correct, own={**_OWN_LABELS, **_OWN_LOSSES}, reports=(report,)
  )


def _relabelling(task, params):
  """What a noisy client does after fine-tuning: all its examples may be relabelled."""
  augmented = _on_augmented(task, params)
  strict = params.follows('confidence_bound') == 'strict'

  def relabel_all(result):
    labels = result.client.own[LABELS]
    predictions = tf.nn.softmax(_predict(task, result.client, augmented))
    everywhere = tf.ones_like(labels, tf.bool)
    labels = relabel.relabel(labels, predictions, everywhere, params.confidence, strict)
    return program.Sent(own={LABELS: labels})

  return program.ClientProgram(final=relabel_all, own=_OWN_LABELS)
