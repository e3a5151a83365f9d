"""The mean of a run's models, weighted towards the last, evaluated in place of the last one.

theta_t = b theta_{t-1} + (1 - b) w_t with b = min(share, t / (t + 4)) and theta_0 = w_0, after the
averaging of iterates of Polyak and Juditsky (SIAM J. Control Optim. 1992); early rounds weigh less,
so that it is not held back by the initial model. Each later stage begins anew, with the model after
its first round: some methods restart there. Training goes on from w_t: clients see nothing of the
mean, and nothing more is sent or released. It is what `average` of FedTally evaluates, whose
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
    types.UsageError: If it has no global model, or that is not what is evaluated.
  """
  optimizer = built.optimizer
  if optimizer is None or built.evaluate is not None or optimizer.evaluated is not None:
    raise types.UsageError(
        '--average_models is for methods that are evaluated by their global model: leave it out, '
        'or use another --method or --base'
    )

  def round_(state, clients):
    new = built.round(state, clients)
    # What is no next state is told by whoever asked for it.
    if new is state or not isinstance(new, algorithm_lib.State):
      return new
    return new._replace(models={**new.models, AVERAGED: mean_after(state, new.weights)})

  def mean_after(state, weights):
    in_stage = _round_in_stage(built.stages, state.round_num + 1)
    if not state.round_num:
      return next_mean(state.weights, weights, share, in_stage)
    if in_stage == 1:
      return weights
    return next_mean(state.models[AVERAGED], weights, share, in_stage)

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


def _round_in_stage(stages, round_num):
  """Which round of its stage it is, from 1."""
  for rounds in stages.values():
    if round_num <= rounds:
      break
    round_num -= rounds
  return round_num


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
