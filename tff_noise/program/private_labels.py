"""Training on flipped labels alone: the label epsilon then holds for the whole run.

Every client replaces its labels by their memoised reports before anything else happens, and trains
with a loss that knows the flips (forward correction). Whatever it sends is computed from the
reports, which is post-processing (cf. Ghazi et al. 2021).
"""

from tff_noise import types
from tff_noise.algorithms import algorithm as algorithm_lib
from tff_noise.federated import task as task_lib
from tff_noise.privacy import mechanism as mechanism_lib
from tff_noise.privacy import protection


def flip(federation: types.Federation, epsilon: str, num_classes: int) -> types.Federation:
  """Returns the federation whose labels are the reports of its labels.

  They are the reports that clients would make in `federated.label_histogram`: one for an example.
  """
  mechanism = mechanism_lib.randomized_response(epsilon, num_classes)

  def flipped(clients):
    reports = mechanism_lib.simulated_reports(
        {i: (c.y, c.example_id) for i, c in enumerate(clients)}, federation.seed, mechanism
    )
    return tuple(c._replace(y=y) for c, y in zip(clients, reports, strict=True))

  return federation._replace(
      clients=flipped(federation.clients), withheld=flipped(federation.withheld)
  )


def train_on_reports(task: task_lib.Task) -> task_lib.Task:
  """Returns the task whose loss knows that labels are reports."""
  mechanism = mechanism_lib.randomized_response(
      task.label_privacy.epsilon, task.model.num_classes
  )
  loss = task.training.loss._replace(keep_probability=mechanism.keep_probability)
  return task._replace(
      training=task.training._replace(loss=loss),
      label_privacy=task.label_privacy._replace(in_training=True),
  )


def declare(algorithm: algorithm_lib.Algorithm, task: task_lib.Task) -> algorithm_lib.Algorithm:
  """Returns the algorithm in which whatever clients send is declared to depend on reports alone."""
  return algorithm.with_reports(
      protection.LabelReports(task.model.num_classes, task.label_privacy.epsilon)
  )
