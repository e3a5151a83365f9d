"""A federated optimizer alone: clients train on their labels as they are, by cross-entropy.

FedAvg and whatever else `tff_noise.optimizers` has, each a method of its own.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from tff_noise import types
from tff_noise.methods import method
from tff_noise.optimizers import registry

if TYPE_CHECKING:
  from tff_noise.federated import aggregation as aggregation_lib
  from tff_noise.federated import client_work
  from tff_noise.federated import compose
  from tff_noise.federated import optimizer as optimizer_lib
  from tff_noise.models import keras_model
  from tff_noise.optimizers import spec


def cross_entropy_work(training: types.LocalTraining, **more: Any) -> client_work.ClientWork:
  """Returns local training by cross-entropy; `more` are further fields of `ClientWork`."""
  from tff_noise.federated import client_work
  from tff_noise.models import losses

  return client_work.ClientWork(
      loss=lambda inputs: losses.cross_entropy(inputs.logits, inputs.labels, training.loss),
      training=training,
      **more,
  )


def build_process(
    model: keras_model.KerasModel,
    *,
    training: types.LocalTraining = types.LocalTraining(),
    optimizer: optimizer_lib.FederatedOptimizer | None = None,
    seed: int = 0,
    aggregation: aggregation_lib.Aggregation | None = None,
) -> compose.RoundProcess:
  """Returns an optimizer as a `tff.learning.templates.LearningProcess`, with its uplink.

  `next` is `(<state=S@SERVER, data={D*}@CLIENTS> -> <state=S@SERVER, metrics=M@SERVER>)`, D* being
  the type of `client_data.client_dataset`. An optimizer whose clients keep something makes it a
  `compose.StatefulProcess`. FedAvg equals `tff.learning.algorithms.build_weighted_fed_avg` on the
  same batches.

  Args:
    model: The Keras model.
    training: Local training.
    optimizer: FedAvg if not given; others come from `tff_noise.optimizers`.
    seed: Of initial weights and batches.
    aggregation: The weighted mean by plain sums if not given.
  """
  from tff_noise.federated import compose

  return compose.build_round_process(
      model, cross_entropy_work(training), seed=seed, optimizer=optimizer, aggregation=aggregation
  )


def _build(
    task: method.Task, params: Any, *, entry: spec.OptimizerSpec
) -> method.Schedule:
  task = task._replace(optimizer=entry.build(task.setting(), params))
  round_process = task.build_process(cross_entropy_work(task.training))
  chooser = method.build_chooser(task)
  stage = method.Stage(
      'train', task.rounds, round_process, method.uniform_selection(task), chooser=chooser
  )
  return method.Schedule((stage,))


METHODS = {
    entry.name: method.Method(
        name=entry.name,
        title=entry.title,
        paper=entry.paper,
        params=entry.params,
        build=functools.partial(_build, entry=entry),
        per_client=entry.per_client,
        compares_models=entry.compares_models,
    )
    for entry in registry.OPTIMIZERS.values()
}
