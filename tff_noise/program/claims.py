"""What a method may claim of protection: nothing by itself, only what parts of this package give.

Noise on updates is the task's aggregation's, flips of labels are label communication's, or were
made before the method gets to the labels (`private_labels`). A method that writes a claim beside a
value of its own would be believed by the ledger, the accountant and every audit.
"""

from tff_noise import types
from tff_noise.algorithms import algorithm as algorithm_lib
from tff_noise.federated import computation as computation_lib
from tff_noise.federated import label_histogram
from tff_noise.federated import task as task_lib
from tff_noise.privacy import protection


def check(name: str, algorithm: algorithm_lib.Algorithm, task: task_lib.Task) -> None:
  """Holds the claims of a method, as it was built, against what protects its values.

  Args:
    name: What the method is called by whoever chose it.
    algorithm: The method.
    task: What it was built from.

  Raises:
    types.UsageError: If it claims more; or if, with noise on updates, it looks at what clients
      keep, which no noise is on.
  """
  for computation in algorithm.used:
    _check_computation(name, computation, task)
  if task.aggregation.protection is None:
    return
  looks = [what for what, is_there in (
      ('models that clients keep are evaluated', algorithm.evaluate is not None),
      ('what clients keep is summarised', algorithm.report.kept_summary is not _KEEPS_NOTHING),
  ) if is_there]
  if looks:
    raise types.UsageError(
        f'--client_dp_noise protects updates alone, and with --method={name} {looks[0]}, which '
        'no noise is on: use another method, or leave --client_dp_noise out'
    )


_KEEPS_NOTHING = algorithm_lib.Report().kept_summary


def _check_computation(name, computation, task):
  given = _given(computation, task)
  for field in computation.released:
    claim = field.protection
    free = isinstance(claim, protection.Counts) and field.lower is not None and (
        field.lower == field.upper
    )
    if claim is not None and not free and field not in given:
      raise types.UsageError(
          f'--method={name} declares that {field.name!r} is protected '
          f'({type(claim).__name__}), and nothing that it is built from does that: leave '
          'the declaration out; --client_dp_noise, --training_labels=private and '
          'label_histogram.of_task protect, and declare it themselves'
      )


def _given(computation: computation_lib.Computation, task: task_lib.Task):
  """The fields that the parts of a computation declare, with what protects them."""
  if computation.on_labels:
    return label_histogram.fields_of_task(task)
  if computation.update_type is None:
    return ()
  return task.aggregation.update_fields(computation.update_type)
