"""Whether a method's loss is the one that flags ask for: one of its own would be silently wrong."""

from collections.abc import Callable

from tff_noise import types
from tff_noise.federated import task as task_lib


def watched(task: task_lib.Task) -> tuple[task_lib.Task, Callable[[], bool]]:
  """Returns the task with a form of the loss that knows whether it was looked at, and whether.

  Args:
    task: What a method is built from; its loss is traced while it is built.
  """
  looked = []

  class Form(types.CrossEntropy):
    """The same values."""

    @property
    def temperature(self):
      looked.append(True)
      return self[1]

  form = Form(*task.training.loss)
  training = task.training._replace(loss=form)
  return task._replace(training=training), lambda: bool(looked)
