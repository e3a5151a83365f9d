"""What FedCorr's clients compute: training with its loss, statistics, and correction of labels.

`fedcorr.py` has the method: its stages and what the server decides.
"""

from __future__ import annotations

import collections
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_noise import types
from tff_noise.federated import client_pass
from tff_noise.federated import client_work
from tff_noise.federated import compose
from tff_noise.federated import gaussian_mixture
from tff_noise.federated import lid_report
from tff_noise.federated import optimizer
from tff_noise.federated import uplink
from tff_noise.labels import relabel
from tff_noise.methods import fedcorr_params
from tff_noise.methods import method
from tff_noise.models import losses
from tff_noise.optimizers import fed_prox


def _local_type():
  return tff.to_type(
      collections.OrderedDict(
          labels=tff.TensorType(np.int32, (None,)),
          losses=tff.TensorType(np.float32, (None,)),
          noise=tff.TensorType(np.float32),
      )
  )


def _sample_losses(logits: tf.Tensor, labels: tf.Tensor, reading: str) -> tf.Tensor:
  """float32 `[n]`, the loss of each example; the public code takes the softmax twice."""
  if reading == 'double_softmax':
    logits = tf.nn.softmax(logits)
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def _split_anchor(flat: tf.Tensor, like: list[tf.Tensor]) -> list[tf.Tensor]:
  """Cuts a vector into tensors of the shapes of `like`."""
  parts = tf.split(flat, [int(np.prod(t.shape)) for t in like])
  return [tf.reshape(part, t.shape) for part, t in zip(parts, like, strict=True)]


class Parts(NamedTuple):
  """The computations of FedCorr.

  Attributes:
    preprocess: A round of pre-processing.
    finetune: A round of fine-tuning.
    usual: A round of usual training: the same on another optimizer, where --base names one.
    correct: A noisy client splits its examples, estimates its noise and relabels some.
    relabel_all: A client relabels every example of which the global model is confident.
  """

  preprocess: compose.RoundProcess
  finetune: compose.RoundProcess
  usual: compose.RoundProcess
  correct: client_pass.ClientPass
  relabel_all: client_pass.ClientPass


def build(task: method.Task, params: fedcorr_params.FedCorrParams) -> Parts:
  """Composes FedCorr's computations for a task."""
  mixup = params.mixup_alpha if params.mixup else 0.0
  local_type = _local_type()

  def work(mixup, **more):
    return client_work.ClientWork(
        loss=_mixup_loss(task.training.loss),
        training=task.training,
        mixup=mixup,
        labels=lambda _, local: local['labels'],
        local_type=local_type,
        **more,
    )

  fed_avg = optimizer.fed_avg(task.model.weights_type)
  training = work(mixup if params.follows('late_mixup') == 'on' else 0.0)
  finetune = task.build_process(training, optimizer=fed_avg)
  return Parts(
      preprocess=task.build_process(
          work(mixup, **_preprocessing(task, params)), optimizer=fed_avg
      ),
      finetune=finetune,
      usual=finetune if task.optimizer is None else task.build_process(training),
      correct=client_pass.build_client_pass(
          task.model, _correction(task, params), local_type, (_noise_report(),), seed=task.seed
      ),
      relabel_all=client_pass.build_client_pass(
          task.model, _relabelling(task, params), local_type, seed=task.seed
      ),
  )


def _mixup_loss(form: types.CrossEntropy):
  def loss(inputs):
    own = losses.cross_entropy(inputs.logits, inputs.labels, form)
    other = losses.cross_entropy(inputs.logits, inputs.mixed_labels, form)
    return inputs.mixed_share * own + (1 - inputs.mixed_share) * other

  return loss


def _preprocessing(task, params):
  """What pre-processing adds to local training: the proximal term and the statistics."""
  from_iteration = params.proximal > 0 and params.follows('proximal_anchor') == 'iteration'
  term = params.follows('proximal_term')
  augmented = _on_augmented(task, params)

  def gradient(inputs):
    anchor = inputs.anchor
    if from_iteration:
      anchor = _split_anchor(inputs.hparams['anchor'], inputs.weights)
    strength = params.proximal * inputs.local['noise']
    if term == 'squared':
      # Equation 5 has no half before the square.
      strength *= 2
    else:
      # The public code has none in an epoch's first step.
      strength = tf.where(tf.equal(inputs.epoch_step, 0), 0.0, strength)
    return fed_prox.add_proximal(inputs.gradients, inputs.weights, anchor, strength, term)

  def finish(inputs):
    logits = inputs.predict(augmented)
    sample_losses = _sample_losses(logits, inputs.labels, params.follows('sample_loss'))
    lid = lid_report.value(logits, sample_losses, params.lid_neighbours)
    local = collections.OrderedDict(inputs.local, losses=sample_losses)
    return client_work.Finished(local, reports={'lid': lid})

  size = sum(int(np.prod(t.shape)) for t in task.model.weights_type.trainable)
  return {
      'gradient': gradient if params.proximal else None,
      'hparams': {'anchor': np.zeros(size, np.float32)} if from_iteration else {},
      'finish': finish,
      'reports': (lid_report.REPORT,),
  }


def _on_augmented(task, params):
  """Whether statistics are computed on augmented images, as in the public code."""
  augments = task.training.augmentation != 'none'
  return augments and params.follows('statistics_images') == 'augmented'


def _noise_report():
  return uplink.UplinkReport(
      'noise', np.float32, 0.0, 1.0,
      'estimated share of wrong labels, by which the server chooses whom to fine-tune on',
  )


def _correction(task, params):
  """What a noisy client does at the end of an iteration (eq. 6 and 7)."""
  augmented = _on_augmented(task, params)
  strict = params.follows('confidence_bound') == 'strict'

  def correct(inputs):
    labels, suspicion = inputs.local['labels'], inputs.local['losses']
    suspicious = gaussian_mixture.larger_component(suspicion, gaussian_mixture.fit(suspicion))
    noise = tf.reduce_mean(tf.cast(suspicious, tf.float32))
    if params.correction:
      logits = inputs.predict(augmented)
      if params.follows('ranking_model') == 'global':
        suspicion = _sample_losses(logits, labels, params.follows('sample_loss'))
      chosen = relabel.largest_losses(suspicion, suspicious, params.relabel_ratio)
      labels = relabel.relabel(labels, tf.nn.softmax(logits), chosen, params.confidence, strict)
    local = collections.OrderedDict(inputs.local, labels=labels, noise=noise)
    return client_pass.PassOutputs(local, {'noise': noise})

  return correct


def _relabelling(task, params):
  """What a noisy client does after fine-tuning: all its examples may be relabelled."""
  augmented = _on_augmented(task, params)
  strict = params.follows('confidence_bound') == 'strict'

  def relabel_all(inputs):
    labels = inputs.local['labels']
    predictions = tf.nn.softmax(inputs.predict(augmented))
    everywhere = tf.ones_like(labels, tf.bool)
    labels = relabel.relabel(labels, predictions, everywhere, params.confidence, strict)
    return client_pass.PassOutputs(collections.OrderedDict(inputs.local, labels=labels))

  return relabel_all
