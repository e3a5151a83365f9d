"""Runs a client's computation, by default on the linear model, and the same training in NumPy."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests import toy
from tff_noise import rng
from tff_noise import types
from tff_noise.clients import local_sgd
from tff_noise.clients import program
from tff_noise.clients import seeds
from tff_noise.models import losses
from tff_noise.uplink import uplink

EXAMPLES = ([[1, 0], [0, 1], [1, 1]], [0, 1, 1])
ONE_STEP = {'epochs': 1, 'batch_size': 10, 'learning_rate': 1.0}
_NOTHING = program.ClientProgram()


def cross_entropy(step):
  """The loss of plain training."""
  return losses.cross_entropy(step.logits, step.labels)


def run(
    data, *, model=None, weights=None, statistics=(), round_num=1, seed=0, training=None, kept=None,
    received=None, addressed=None, optimizer=_NOTHING, sent=(), **of_method,
):
  """Returns the `uplink.ClientOutput` of a client.

  Args:
    data: The client's.
    model: The linear model if not given.
    weights: The linear model's, or a tuple of all trainable ones; 0 if not given.
    statistics: The weights that are not trained.
    round_num: The round's number.
    seed: The experiment's.
    training: Attributes of `types.LocalTraining`.
    kept: By name, what the client kept, where it is not as at first.
    received: By name, what all clients receive, where it is not as at first.
    addressed: By name, the messages to this client.
    optimizer: The federated optimizer's program.
    sent: What the optimizer's server sends.
    **of_method: Attributes of the method's program; its loss is cross-entropy if not given.
  """
  model = model or toy.linear_model()
  programs = (program.ClientProgram(**{'loss': cross_entropy, **of_method}), optimizer)
  declared = program.declared(programs)
  client = local_sgd.build(
      model, programs, seed=seed, training=types.LocalTraining(**(training or {})),
      optimizer_type=tff.to_type(
          tf.nest.map_structure(lambda v: tff.TensorType(v.dtype, v.shape), sent)
      ),
  )
  labels = next(iter(data))['y'].numpy()
  own = {name: program.initial_own(first, labels) for name, first in declared.own.items()}
  if weights is None:
    weights = tuple(np.zeros(t.shape) for t in model.weights_type.trainable)
  elif not isinstance(weights, tuple):
    weights = (weights,)
  broadcast = program.Broadcast(
      tff.learning.models.ModelWeights(
          [np.array(w, np.float32) for w in weights], list(statistics)
      ),
      round_num,
      program.in_order({**declared.receives, **(received or {})}),
      sent,
  )
  return client(
      broadcast,
      data,
      uplink.ClientInput(
          program.in_order({**own, **(kept or {})}), program.in_order(addressed or {})
      ),
  )


def in_steps(change):
  """Returns a program's `step` that changes gradients, and nothing that is carried."""
  return lambda step: (change(step), step.carry)


def gradient(weights, x, y):
  """Of the mean cross-entropy of the linear model."""
  logits = x @ weights
  p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
  return x.T @ (p - np.eye(2)[y]) / len(y)


def batches(num_examples, epochs, batch_size, *, seed=0, round_num=1, client=0, visit=None):
  """Yields the positions of each step's examples, in the order of the steps."""
  for epoch in range(epochs):
    of_epoch = seeds.fold(rng.tf_seed(seed, 'local training'), round_num, client, epoch)
    order = seeds.batch_order(of_epoch, num_examples).numpy()
    if visit is not None:
      order = order[np.asarray(visit)[order]]
    for start in range(0, len(order), batch_size):
      yield order[start : start + batch_size]
