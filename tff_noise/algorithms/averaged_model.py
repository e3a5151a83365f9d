"""The mean of a run's models, weighted towards the last, evaluated in place of the last one.

theta_t = b theta_{t-1} + (1 - b) w_t with b = min(share, t / (t + 4)) and theta_0 = w_0. It is the
exponential mean of Polyak and Juditsky (SIAM J. Control Optim. 1992), whose first rounds weigh less
so that it is not held back by the initial model. Training goes on from w_t: clients see nothing of
the mean, and nothing more is sent or released. It is what `average` of FedTally evaluates, whose
clients look with it besides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_noise import types
from tff_noise.algorithms import algorithm as algorithm_lib
from tff_noise.models import keras_model

# Under which it is in `State.models`.
AVERAGED = 'averaged'


def of(
    built: algorithm_lib.Algorithm, model: keras_model.KerasModel, share: float
) -> algorithm_lib.Algorithm:
  """Returns the algorithm that is evaluated by the mean of its models.

  Args:
    built: The algorithm.
    model: What its weights are of, where it does not say so itself.
    share: The weight of the old mean, in (0, 1).

  Raises:
    types.UsageError: If it has no global model, or says itself what is evaluated.
  """
  if built.optimizer is None or built.evaluate is not None:
    raise types.UsageError(
        '--average_models is for methods that are evaluated by their global model: leave it out, '
        'or use another --method'
    )

  def round_(state, clients):
    new = built.round(state, clients)
    # What is no next state is told by whoever asked for it.
    if new is state or not isinstance(new, algorithm_lib.State):
      return new
    mean = state.models[AVERAGED] if state.round_num else state.weights
    mean = next_mean(mean, new.weights, share, state.round_num + 1)
    return new._replace(models={**new.models, AVERAGED: mean})

  def evaluate(
      state: algorithm_lib.State, own: Sequence[Mapping[str, Any]]
  ) -> list[algorithm_lib.Evaluated]:
    if not state.round_num:
      return built.evaluated(state, own)
    mean = {**state.models, algorithm_lib.MODEL: state.models[AVERAGED]}
    return built.evaluated(state._replace(models=mean), own)

  return built._replace(
      round=round_, evaluate=evaluate,
      models={**built.models, AVERAGED: zeros(built.model or model)},
  )


def next_mean(
    mean: tff.learning.models.ModelWeights,
    weights: tff.learning.models.ModelWeights,
    share: float,
    round_num: int,
) -> tff.learning.models.ModelWeights:
  """Returns theta after round t, `b theta + (1 - b) w` with `b = min(share, t / (t + 4))`.

  Args:
    mean: theta, before the first round the initial weights.
    weights: w, after the round.
    share: In [0, 1).
    round_num: t, from 1.
  """
  b = min(share, round_num / (round_num + 4))
  return tf.nest.map_structure(
      lambda old, new: (b * np.asarray(old) + (1 - b) * np.asarray(new)).astype(new.dtype),
      mean, weights,
  )


def zeros(model: keras_model.KerasModel) -> tff.learning.models.ModelWeights:
  """Returns zeros as the weights of `model`."""
  return tff.learning.models.ModelWeights(*(
      [np.zeros(t.shape, t.dtype) for t in tensors]
      for tensors in (model.weights_type.trainable, model.weights_type.non_trainable)
  ))
