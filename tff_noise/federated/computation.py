"""Computations in which clients take part, each with every field that leaves a client.

`train` composes a round of federated learning from its parts:

```
  server state ──► broadcast ──► client programs ┬─ update, weight ──► mean ──► server step ──┐
                        ▲                        ├─ sums ───────────► sum  ──► metrics       │
   client data ─────────┤                        ├─ reports ──► by client ──► metrics        │
                        │                        └─ local ──► back to the client's own store │
   client's own state ──┘                                       next global model ◄──────────┘
```

Where clients keep nothing and get no messages this becomes a
`tff.learning.templates.LearningProcess`, for any TFF program or runtime. Otherwise a
`processes.StatefulProcess`, whose `next` has a third, client-placed argument and result. Both are
one function here, so they cannot drift apart. `collect` is the same without a next model: what
clients send is summed, or shown by client.
"""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import numpy as np
import tensorflow_federated as tff

from tff_noise import types
from tff_noise.clients import local_sgd
from tff_noise.clients import program as program_lib
from tff_noise.federated import aggregation as aggregation_lib
from tff_noise.federated import learning_round
from tff_noise.federated import optimizer as optimizer_lib
from tff_noise.federated import processes
from tff_noise.federated import server_step
from tff_noise.federated import stacked
from tff_noise.federated import task as task_lib
from tff_noise.models import keras_model
from tff_noise.privacy import protection as protection_lib
from tff_noise.uplink import disclosure
from tff_noise.uplink import per_client
from tff_noise.uplink import uplink

# What TensorFlow says of an error may be any of a client's values.
_SHOWN_ERRORS = uplink.UplinkField(
    'error messages', 'str', 'none', uplink.Disclosure.PER_CLIENT, None, None,
    'shown where a computation fails, as --debug_client_errors asks', 0,
)


class Computation(NamedTuple):
  """A computation in which clients take part, and the account of what they send.

  Attributes:
    name: Unique in its algorithm.
    process: What runs.
    fields: Every value that leaves a client, checked against the compiled `next`.
    declared: What its clients keep, receive and send.
    broadcast_bytes: Size of what the server sends to each client, messages left aside.
    optimizer: The federated optimizer; None where no model is updated.
    server_data: What a process with `server_data_type` is given.
    on_labels: Whether clients take part with their labels alone, see `label_histogram`.
    on_withheld: Whether with what they do not train on, `types.Federation.withheld`.
    sends_model: Whether the server sends a model.
    trains: Whether clients train on their examples: who takes part counts as a participant of the
      round.
    model: What is trained, where a model is updated.
    shows_errors: Whether errors of its clients are shown with their values.
    update_type: TFF type of what is averaged by the task's aggregation, or seen by client; None
      where no model is updated.
  """

  name: str
  process: tff.learning.templates.LearningProcess | processes.StatefulProcess | processes.Collection
  fields: tuple[uplink.UplinkField, ...]
  declared: program_lib.Declared = program_lib.declared(())
  broadcast_bytes: int = 0
  optimizer: optimizer_lib.FederatedOptimizer | None = None
  server_data: Any = None
  on_labels: bool = False
  sends_model: bool = True
  trains: bool = False
  model: keras_model.KerasModel | None = None
  shows_errors: bool = False
  update_type: tff.Type | None = None
  on_withheld: bool = False

  @property
  def next(self) -> tff.Computation:
    """What clients take part in."""
    return self.process.next

  @property
  def is_noisy(self) -> bool:
    """Whether noise is added to what clients send, see `aggregation.dp_mean`."""
    return any(isinstance(f.protection, protection_lib.NoisySum) for f in self.fields)

  def send(self, state: Any, **values: Any) -> Any:
    """Returns the state of a learning process whose clients receive these values from now on.

    Args:
      state: Of `process`.
      **values: All that clients receive besides the model, see `ClientProgram.receives`.

    Raises:
      ValueError: If these are not all of it, or have other shapes or kinds of numbers.
    """
    first = self.declared.receives
    if values.keys() != first.keys():
      raise ValueError(f'{self.name!r} sends {sorted(first)}, got {sorted(values)}')
    typed = {n: program_lib.as_first(n, first[n], value) for n, value in values.items()}
    return self.process.set_hparams(state, program_lib.in_order(typed))

  def initial_input(self, labels: np.ndarray) -> uplink.ClientInput:
    """Returns what a client that has not taken part yet brings, if it gets no messages.

    Args:
      labels: int32 `[n_c]`, the client's.
    """
    own = {
        name: program_lib.initial_own(first, labels) for name, first in self.declared.own.items()
    }
    return uplink.ClientInput(program_lib.in_order(own), collections.OrderedDict())

  def require_company(self, num_clients: int) -> None:
    """Raises `UsageError` where a secure sum would be over one client, and so be its value."""
    summed = [field.name for field in self.fields if field.disclosure.is_secure_sum]
    if num_clients == 1 and summed:
      raise types.UsageError(
          f'a round of {self.name!r} may be over one client, and a secure sum over one client is '
          f'that client: its {summed[0]} would be seen; use --aggregation=mean, which says so, or '
          'larger cohorts'
      )

  @property
  def uplink_bytes(self) -> int:
    """Size of what each client sends."""
    return sum(field.num_bytes for field in self.fields)

  @property
  def messages_bytes(self) -> int:
    """Size of what the server sends to each client alone."""
    return sum(uplink.num_bytes(m.type_spec) for m in self.declared.messages)

  @property
  def released(self) -> tuple[uplink.UplinkField, ...]:
    """Everything that somebody gets to see of a client: fields, messages about others, errors."""
    return (
        *self.fields,
        *(uplink.field_of_message(m) for m in self.declared.messages if m.from_others),
        *((_SHOWN_ERRORS,) if self.shows_errors else ()),
    )


def train(
    name: str,
    task: task_lib.Task,
    program: program_lib.ClientProgram,
    *,
    optimizer: optimizer_lib.FederatedOptimizer | None = None,
    selector: stacked.Selector | None = None,
    server_data: Any = None,
) -> Computation:
  """Composes a round of training.

  Args:
    name: Unique in its algorithm.
    task: What is trained, how, and by which aggregation.
    program: What clients do; with a loss.
    optimizer: In place of the task's, which is FedAvg if the task has none.
    selector: Whose updates the server uses; all, if not given.
    server_data: What the selector compares models on, as TFF takes it.

  Returns:
    The round and its uplink. Its metrics are `client_work.train`: `loss` (the mean over
    examples of each client's mean over its batches), `examples`, `rejected` (clients left out), and
    one entry for each of the program's sums; and `reports`, what clients reported and a selector
    found, if there are any.

  Raises:
    disclosure.UndeclaredUplinkError: If the compiled computation sends what is not declared.
    TypeError: If the task's model or training is of another type than `Task` says.
    ValueError: If programs send values by names that training has, or by one name.
  """
  _require_types(task)
  model = task.model
  optimizer = optimizer or task.optimizer or optimizer_lib.fed_avg(model.weights_type)
  programs = (program, optimizer.client)
  declared = program_lib.declared(programs)
  for sent, taken in (
      (declared.sums, {s.name for s in local_sgd.TRAINING_SUMS}),
      (declared.reports, stacked.NAMES),
  ):
    for name in sorted(taken & {s.name for s in sent}):
      raise ValueError(f'a client program sends {name!r}, which is sent of each: name it otherwise')
  if task.aggregation.scalar is None:
    _require_updates_alone(model, declared, optimizer, selector)
  initialize_server = tff.tensorflow.computation(optimizer.server.initialize)
  server_state_type = initialize_server.type_signature.result
  is_stacked = selector is not None or optimizer.sees_updates
  client = local_sgd.build(
      model, programs, seed=task.seed, training=task.training,
      optimizer_type=tff.tensorflow.computation(
          optimizer.server.broadcast, server_state_type
      ).type_signature.result,
      identified=is_stacked,
  )
  parts = server_step.Parts(
      task, declared, optimizer, selector, server_state_type, client.type_signature.result
  )
  step = (server_step.stacked_step if is_stacked else server_step.mean_step)(parts)
  process = learning_round.build(parts, step, client, initialize_server)
  broadcast_bytes = disclosure.check(process.next, step.fields)
  return Computation(
      name, process, step.fields, declared, broadcast_bytes, optimizer, server_data, trains=True,
      model=model, update_type=parts.output_type.update,
  )


def collect(
    name: str,
    task: task_lib.Task,
    program: program_lib.ClientProgram,
    *,
    model: keras_model.KerasModel | None = None,
    training: types.LocalTraining | None = None,
    public: np.ndarray | None = None,
    sends_model: bool = True,
    mean_for: str = '',
) -> Computation:
  """Composes a computation in which no model is updated.

  Args:
    name: Unique in its algorithm.
    task: What the clients compute with, and how sums are taken.
    program: What clients do. Where they look at the global model, it is as the task's optimizer has
      them start from it.
    model: In place of the task's.
    training: How clients train models of their own; None for no training.
    public: Images `[S, ...]` that everybody knows, on which clients compute in place of their own
      examples; they are part of the computation, and nothing of them is sent.
    sends_model: Whether clients get the global model.
    mean_for: What the mean over clients of the program's update, weighted by their examples, is
      for; '' where none is taken.

  Returns:
    The computation and its uplink: sums and reports of the program, the mean of its updates, and of
    clients that train their loss, examples, and whether their training failed.

  Raises:
    types.UsageError: If nothing but updates may leave a client.
    disclosure.UndeclaredUplinkError: If the compiled computation sends what is not declared.
  """
  programs = (program,)
  if sends_model and model is None:
    programs = (program, *_start_of_optimizer(task))
  model = model or task.model
  declared = program_lib.declared(programs)
  sums = (*(local_sgd.TRAINING_SUMS if training else ()), *declared.sums)
  if task.aggregation.scalar is None and (sums or declared.reports or mean_for):
    sent = ', '.join([value.name for value in (*sums, *declared.reports)] or [name])
    raise types.UsageError(
        f'--client_dp_noise protects updates alone, and here clients send: {sent}'
    )
  client = local_sgd.build(
      model, programs, seed=task.seed, training=training, sends_model=sends_model,
      averages=bool(mean_for), public=public,
  )
  update_type = client.type_signature.result.update
  mean = None
  if mean_for:
    mean = task.aggregation.update.create(update_type, tff.TensorType(np.float32))
  broadcast_type, data_type, local_type = client.type_signature.parameter

  @tff.federated_computation(
      tff.FederatedType(broadcast_type, tff.SERVER),
      tff.FederatedType(data_type, tff.CLIENTS),
      tff.FederatedType(local_type, tff.CLIENTS),
  )
  def next_fn(broadcast, data, local):
    output = tff.federated_map(client, (tff.federated_broadcast(broadcast), data, local))
    collected = tff.federated_value((), tff.SERVER)
    if declared.reports:
      collected = per_client.collect(output.reports)
    average = tff.federated_value((), tff.SERVER)
    if mean is not None:
      # Without noise a mean has no state that would go on.
      average = mean.next(mean.initialize(), output.update, output.weight).result
    return collections.OrderedDict(
        sums=server_step.sum_of(output.sums, sums, task.aggregation), reports=collected,
        mean=average, local=output.local,
    )

  fields = (
      *_mean_fields(name, mean_for, task.aggregation, update_type),
      *server_step.sum_fields(sums, task.aggregation),
      *per_client.fields(declared.reports),
  )
  broadcast_bytes = disclosure.check(next_fn, fields)
  return Computation(
      name, processes.Collection(next_fn), fields, declared, broadcast_bytes,
      sends_model=sends_model, trains=training is not None and public is None,
  )


def _start_of_optimizer(task):
  """Programs of clients that put parts of their own into the global model, and look at that."""
  if task.optimizer is None or task.optimizer.client.start is None:
    return ()
  client = task.optimizer.client
  return (program_lib.ClientProgram(start=client.start, own=client.own),)


def _mean_fields(name, mean_for, aggregation, update_type):
  """Those of a mean of updates, by the name of what is averaged."""
  if not mean_for:
    return ()
  return tuple(
      f._replace(name=f.name.replace('update', name, 1), reason=mean_for)
      for f in aggregation.update_fields(update_type)
  )


def _require_types(task):
  """Raises `TypeError` where a program of one's own gives what only looks like it."""
  for name, expected in (
      ('model', keras_model.KerasModel), ('training', types.LocalTraining),
      ('aggregation', aggregation_lib.Aggregation),
  ):
    found = getattr(task, name)
    if not isinstance(found, expected):
      hint = ' (keras_model.from_keras makes one of a Keras model)' if name == 'model' else ''
      raise TypeError(
          f'Task.{name} has to be of type {expected.__name__}{hint}, found {type(found).__name__}'
      )


def _require_updates_alone(model, declared, optimizer, selector):
  """Raises `UsageError` where clients would send more than one noise protects."""
  if selector is not None or optimizer.sees_updates:
    raise types.UsageError(
        '--client_dp_noise protects a sum of updates, and here the server takes single models'
    )
  if optimizer.evaluated is not None or optimizer.own_models is not None:
    raise types.UsageError(
        '--client_dp_noise protects updates alone, and here what clients keep is evaluated too, '
        'which no noise protects: use another optimizer than fedbn'
    )
  sent = [value.name for value in (*declared.sums, *declared.reports)]
  if optimizer.server.counts_examples:
    sent.append('examples')
  if sent:
    raise types.UsageError(
        '--client_dp_noise protects updates alone, and here clients also send: ' + ', '.join(sent)
    )
  if len(model.weights_type.non_trainable):
    raise types.UsageError(
        '--client_dp_noise would put noise on batch statistics: use --norm=group'
    )
