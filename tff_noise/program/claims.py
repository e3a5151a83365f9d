"""What a method may claim of protection: nothing by itself, only what parts of this package give.

Noise on updates is the task's aggregation's, flips of labels are label communication's, or were
made before the method gets to the labels (`private_labels`). A method that writes a claim beside a
value of its own would be believed by the ledger, the accountant and every audit.
"""

from tff_noise import types
from tff_noise.algorithms import algorithm as algorithm_lib
from tff_noise.clients import program as program_lib
from tff_noise.federated import computation as computation_lib
from tff_noise.federated import label_histogram
from tff_noise.federated import optimizer as optimizer_lib
from tff_noise.federated import processes
from tff_noise.federated import task as task_lib
from tff_noise.privacy import protection
from tff_noise.uplink import disclosure
from tff_noise.uplink import operations
from tff_noise.uplink import uplink

# Of the one that goes with a secure sum.
_CONTRIBUTIONS = ': contributions'


def check(name: str, algorithm: algorithm_lib.Algorithm, task: task_lib.Task) -> None:
  """Holds the claims of a method, as it was built, against what protects its values.

  Args:
    name: What the method is called by whoever chose it.
    algorithm: The method.
    task: What it was built from.

  Raises:
    types.UsageError: If it sends other values than it declares, or claims more; or if, with noise
      on updates, it chooses clients or looks at what they keep, which no noise is on.
  """
  _require_plain(name, algorithm)
  for computation in algorithm.used:
    try:
      disclosure.check(computation.next, computation.fields)
    except (disclosure.UndeclaredUplinkError, operations.OperationError) as error:
      lines = ' '.join(str(error).split())
      raise types.UsageError(f'--method={name}: {computation.name!r}: {lines}') from error
    _check_claims(name, computation, task)
  if task.aggregation.protection is None:
    return
  for what in _unprotected(algorithm):
    raise types.UsageError(
        f'--client_dp_noise protects updates of clients that are drawn, and with --method={name} '
        f'{what}, which no noise is on: use another method, or leave --client_dp_noise out'
    )


def _require_plain(name, algorithm):
  """What is derived from these could say one thing when it is checked and another when it runs."""
  kinds = [(algorithm, algorithm_lib.Algorithm), (algorithm.report, algorithm_lib.Report)]
  kinds += [(plan, dict) for plan in (algorithm.stages, algorithm.times, algorithm.cohorts)]
  for c in algorithm.computations:
    kinds += [(c, computation_lib.Computation), (c.declared, program_lib.Declared)]
    kinds += [(f, uplink.UplinkField) for f in c.fields]
    kinds += [(m, uplink.Message) for m in c.declared.messages]
    kinds += [(p.protection, protection.KINDS) for p in (*c.fields, *c.declared.messages)]
    kinds += [(c.process, processes.KINDS)]
    if c.optimizer is not None:
      kinds += [(c.optimizer, optimizer_lib.FederatedOptimizer)]
    if len(set(c.fields)) < len(c.fields):
      raise types.UsageError(f'--method={name}: {c.name!r} declares a value twice')
  for value, kind in kinds:
    allowed = kind if isinstance(kind, tuple) else (kind,)
    if type(value) not in allowed:
      wanted = ' or '.join(k.__name__ for k in allowed)
      raise types.UsageError(
          f'--method={name}: {type(value).__name__} stands where {wanted} has to be, itself and '
          'nothing derived from it'
      )


def _check_claims(name, computation, task):
  if computation.on_labels:
    if label_histogram.is_of_task(computation, task):
      return
    raise types.UsageError(
        f'--method={name}: clients take part in {computation.name!r} with their labels, and it is '
        'not label_histogram.of_task, the only computation that is for that'
    )
  given = ()
  if computation.update_type is not None:
    given = task.aggregation.update_fields(computation.update_type)
  sums = {f.name + _CONTRIBUTIONS for f in computation.fields if f.protection is None}
  for field in computation.released:
    claim = field.protection
    # Beside a sum without protection nothing is claimed of a client's 1 that could be wrong.
    if claim == protection.Counts() and field.name in sums:
      continue
    if claim is not None and field not in given:
      raise types.UsageError(
          f'--method={name} declares that {field.name!r} is protected '
          f'({type(claim).__name__}), and nothing that it is built from does that: leave '
          'the declaration out; --client_dp_noise, --training_labels=private and '
          'label_histogram.of_task protect, and declare it themselves'
      )


def _unprotected(algorithm):
  """What else a method with noise on updates does with clients."""
  report, plain = algorithm.report, algorithm_lib.Report()
  optimizers = [c.optimizer for c in algorithm.used if c.optimizer is not None]
  for what, is_there in (
      ('models that clients keep are evaluated', algorithm.evaluate is not None or any(
          o.evaluated is not None or o.own_models is not None for o in optimizers
      )),
      ('what clients keep is summarised', report.kept_summary is not plain.kept_summary),
      ('labels that clients keep are written', report.labels or report.posterior),
      ('clients are judged by themselves', report.noisy_clients or report.client_scores),
      ('who takes part is chosen', any(o.sampler is not None for o in optimizers)),
  ):
    if is_there:
      yield what
