"""FedBN: normalisation layers stay with the client (Li et al. 2021, algorithm 1).

A client trains all of the model, keeps what its normalisation layers have become - scale and
shift, and batch norm's moving statistics - and starts from that when it takes part again. All else
is averaged as FedAvg does. Nothing of a normalisation layer is sent. The paper has batch norm
alone; layer and group norm, which have scale and shift but no moving statistics, are treated alike.

So the server has no model to be evaluated: the normalisation layers of its weights are as they were
before the first round, and so they are in a client that takes part for the first time. Two are
evaluated in its place, by a simulation that can look at clients: in each round the weights with the
mean of the clients' normalisation layers, and at the end each client's own model, all on the same
test set. What a method asks clients to find with the global model, they find with the layers of
their own in it.
"""

import collections
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_noise import types
from tff_noise.clients import program
from tff_noise.federated import optimizer
from tff_noise.federated import task as task_lib
from tff_noise.models import keras_model
from tff_noise.optimizers import parameters

_NORMS = 'fedbn_norms'


class NormPlaces(NamedTuple):
  """Where the normalisation layers' variables are among a model's weights.

  Attributes:
    trainable: Indices into `ModelWeights.trainable`, ascending.
    non_trainable: Indices into `ModelWeights.non_trainable`, ascending.
  """

  trainable: tuple[int, ...]
  non_trainable: tuple[int, ...]


def norm_places(model: keras_model.KerasModel) -> NormPlaces:
  """Returns where the variables of batch, group and layer normalisation are.

  Builds the network, which takes a second for a large one.

  Raises:
    types.UsageError: If the model has no such layer.
  """
  network = keras_model.build_zeros(model)
  kinds = (
      tf.keras.layers.BatchNormalization,
      tf.keras.layers.GroupNormalization,
      tf.keras.layers.LayerNormalization,
  )
  # By identity, and in all depths: names need not be unique, layers may be nested.
  kept = {
      id(variable)
      for layer in network.submodules
      if isinstance(layer, kinds)
      for variable in layer.weights
  }
  if not kept:
    raise types.UsageError(
        'fedbn keeps normalisation layers with the client, but this model has none: choose a '
        'model with such layers (--norm=batch or --norm=group), or another optimizer'
    )
  return NormPlaces(*(
      tuple(i for i, variable in enumerate(variables) if id(variable) in kept)
      for variables in (network.trainable_variables, network.non_trainable_variables)
  ))


def _take(places: NormPlaces, weights: tff.learning.models.ModelWeights):
  """Returns the normalisation layers' entries of `weights`."""
  return collections.OrderedDict(
      trainable=[weights.trainable[i] for i in places.trainable],
      non_trainable=[weights.non_trainable[i] for i in places.non_trainable],
  )


def _put(
    places: NormPlaces, weights: tff.learning.models.ModelWeights, norms: Mapping[str, Any]
) -> tff.learning.models.ModelWeights:
  """Returns `weights` with the normalisation layers' entries replaced by `norms`."""
  trainable, non_trainable = list(weights.trainable), list(weights.non_trainable)
  for i, value in zip(places.trainable, norms['trainable'], strict=True):
    trainable[i] = value
  for i, value in zip(places.non_trainable, norms['non_trainable'], strict=True):
    non_trainable[i] = value
  return type(weights)(trainable, non_trainable)


def _others(
    places: NormPlaces, weights: tff.learning.models.ModelWeights
) -> tff.learning.models.ModelWeights:
  """Returns the entries of `weights` that belong to no normalisation layer: shorter lists."""
  return type(weights)(
      [t for i, t in enumerate(weights.trainable) if i not in places.trainable],
      [t for i, t in enumerate(weights.non_trainable) if i not in places.non_trainable],
  )


def build(task: task_lib.Task, params: parameters.FedBNParams) -> optimizer.FederatedOptimizer:
  """Clients keep their normalisation layers; the server averages the rest."""
  del params  # There are none.
  places = norm_places(task.model)
  weights_type = task.model.weights_type

  def keep_if(condition, new, old):
    return tf.nest.map_structure(lambda a, b: tf.where(condition, a, b), new, old)

  def start(client):
    own = client.own[_NORMS]
    return keep_if(own['seen'], _put(places, client.weights, own), client.weights)

  def final(result):
    trained = collections.OrderedDict(seen=True, **_take(places, result.weights))
    # Without a step nothing was learnt: the client stays one that never took part.
    own = keep_if(result.steps > 0, trained, result.client.own[_NORMS])
    return program.Sent(_others(places, result.update), own={_NORMS: own})

  def step(state, inputs):
    unmoved = tf.nest.map_structure(tf.zeros_like, inputs.weights)
    update = _scatter(places, unmoved, inputs.update)
    return state, tf.nest.map_structure(tf.subtract, inputs.weights, update)

  zeros = [
      [np.zeros(group[i].shape, group[i].dtype) for i in indices]
      for group, indices in (
          (list(weights_type.trainable), places.trainable),
          (list(weights_type.non_trainable), places.non_trainable),
      )
  ]
  unseen = collections.OrderedDict(
      seen=np.bool_(False), trainable=zeros[0], non_trainable=zeros[1]
  )
  return optimizer.FederatedOptimizer(
      optimizer.ServerOptimizer(lambda: (), step),
      program.ClientProgram(
          start=start,
          final=final,
          own={_NORMS: unseen},
      ),
      client_model=None,  # Its normalisation layers are never sent.
      evaluated=lambda weights, own: with_mean_norms(places, weights, [o[_NORMS] for o in own]),
      own_models=lambda weights, own: [
          with_norms(places, weights, o[_NORMS]) for o in own if bool(np.asarray(o[_NORMS]['seen']))
      ],
  )


def _scatter(places, weights, others):
  """Returns `weights` with all but the normalisation layers' entries replaced by `others`."""
  trainable, non_trainable = iter(others.trainable), iter(others.non_trainable)
  return type(weights)(
      [w if i in places.trainable else next(trainable) for i, w in enumerate(weights.trainable)],
      [
          w if i in places.non_trainable else next(non_trainable)
          for i, w in enumerate(weights.non_trainable)
      ],
  )


def with_norms(
    places: NormPlaces,
    weights: tff.learning.models.ModelWeights,
    state: Mapping[str, Any],
) -> tff.learning.models.ModelWeights:
  """Returns a client's model: the server's weights with the client's own normalisation layers.

  Args:
    places: Where the normalisation layers are.
    weights: The server's, as NumPy arrays.
    state: What the client keeps. Of one that never took part the server's own are used.
  """
  return with_mean_norms(places, weights, [state])


def with_mean_norms(
    places: NormPlaces,
    weights: tff.learning.models.ModelWeights,
    states: Sequence[Mapping[str, Any]],
) -> tff.learning.models.ModelWeights:
  """Returns the server's weights with the mean of the clients' normalisation layers.

  The unweighted mean, of moving variances too, which leaves out how far clients' means are apart.

  Args:
    places: Where the normalisation layers are.
    weights: The server's, as NumPy arrays.
    states: What clients keep; those of clients that never took part do not count, and
      `weights` is what it was if all are such.
  """
  seen = [state for state in states if bool(np.asarray(state['seen']))]
  if not seen:
    return weights
  norms = {
      name: [
          # In float64: float32 would lose digits over many clients.
          np.mean(values, axis=0, dtype=np.float64).astype(np.asarray(values[0]).dtype)
          for values in zip(*(state[name] for state in seen), strict=True)
      ]
      for name in ('trainable', 'non_trainable')
  }
  return _put(places, weights, norms)
