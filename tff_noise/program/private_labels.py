"""Training on flipped labels alone: the label epsilon then holds for the whole run.

Every client replaces its labels by their memoised reports before anything else happens, and trains
with a loss that knows the flips (forward correction). Whatever it sends is computed from the
reports, which is post-processing (cf. Ghazi et al. 2021).
"""

from tff_noise import types
from tff_noise.methods import method
from tff_noise.privacy import mechanism as mechanism_lib
from tff_noise.privacy import protection


def flip(federation: types.Federation, epsilon: str, num_classes: int) -> types.Federation:
  """Returns the federation whose labels are the reports of its labels."""
  mechanism = mechanism_lib.randomized_response(epsilon, num_classes)
  key = mechanism_lib.simulation_key(federation.seed)
  clients = tuple(
      examples._replace(
          y=mechanism_lib.flip_labels(
              examples.y, examples.example_id, client=i, mechanism=mechanism, key=key
          )
      )
      for i, examples in enumerate(federation.clients)
  )
  return federation._replace(clients=clients)


def train_on_reports(task: method.Task) -> method.Task:
  """Returns the task whose loss knows that labels are reports."""
  mechanism = mechanism_lib.randomized_response(
      task.label_privacy.epsilon, task.model.num_classes
  )
  loss = task.training.loss._replace(keep_probability=mechanism.keep_probability)
  return task._replace(
      training=task.training._replace(loss=loss),
      label_privacy=task.label_privacy._replace(in_training=True),
  )


def declare(schedule: method.Schedule, task: method.Task) -> method.Schedule:
  """Returns the schedule in which whatever clients send is declared to depend on reports alone."""
  return schedule.with_reports(
      protection.LabelReports(task.model.num_classes, task.label_privacy.epsilon)
  )
