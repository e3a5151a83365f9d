"""A federated optimizer alone: clients train on their labels as they are, by cross-entropy.

FedAvg and whatever else `tff_noise.optimizers` has, each an algorithm of its own.
"""

from typing import Any

from tff_noise import types
from tff_noise.algorithms import algorithm
from tff_noise.clients import label_loss
from tff_noise.clients import program
from tff_noise.federated import computation
from tff_noise.federated import task as task_lib
from tff_noise.models import losses
from tff_noise.optimizers import catalog


def client(training: types.LocalTraining, **more: Any) -> program.ClientProgram:
  """Returns local training by cross-entropy; `more` are further attributes of the program."""

  def loss(logits, labels):
    return losses.cross_entropy(logits, labels, training.loss)

  return label_loss.client(loss, training, **more)


def build_process(task: task_lib.Task) -> computation.Computation:
  """Returns the task's optimizer as a `tff.learning.templates.LearningProcess`, with its uplink.

  `next` is `(<state=S@SERVER, data={D*}@CLIENTS> -> <state=S@SERVER, metrics=M@SERVER>)`, D* being
  the type of `client_data.client_dataset`. An optimizer whose clients keep something makes it a
  `processes.StatefulProcess`. FedAvg equals `tff.learning.algorithms.build_weighted_fed_avg` on
  the same batches.
  """
  return computation.train('a round of train', task, client(task.training))


def build(task: task_lib.Task, params: Any, *, optimizer: str) -> algorithm.Algorithm:
  """Returns the algorithm of one optimizer, by its name."""
  task = task._replace(optimizer=catalog.OPTIMIZERS[optimizer].build(task, params))
  return algorithm.of_rounds(task, build_process(task))
