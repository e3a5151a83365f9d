"""What a client computes, as a program of three parts: `init`, `step`, `final`.

A method is such a program, so is what a federated optimizer adds to local training, and so is a
look at the data without training, which has no steps. Where there are several, the method comes
first: each one's `step` gets the gradients of the one before, each one's `final` the update.

The functions are traced without AutoGraph: they loop with `loops.repeat`, branch with `tf.cond`,
and compare with `tf.equal`.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_noise.uplink import uplink

_Weights = tff.learning.models.ModelWeights


class PerExample(NamedTuple):
  """What a client keeps for each of its examples.

  Attributes:
    value: What each entry is at first, a NumPy scalar or an array: `[n_c, *value.shape]` is kept.
  """

  value: np.ndarray


class GivenLabels(NamedTuple):
  """What a client keeps of its labels, int32 `[n_c]`: at first as they were given."""


# What a client keeps before it first takes part: a structure of NumPy values, or one of these two.
OwnState = Any | PerExample | GivenLabels


def own_type(own: Mapping[str, OwnState]) -> tff.Type:
  """The TFF type of a client's own state."""
  return _struct({name: _type_of(initial) for name, initial in own.items()})


def _type_of(initial):
  if isinstance(initial, GivenLabels):
    return tff.TensorType(np.int32, (None,))
  if isinstance(initial, PerExample):
    value = np.asarray(initial.value)
    return tff.TensorType(value.dtype, (None, *value.shape))
  return _types_of_values(initial)


def in_order(values: Mapping[str, Any]) -> collections.OrderedDict[str, Any]:
  """Returns values by name, in the one order in which they travel."""
  return collections.OrderedDict(sorted(values.items()))


def _struct(types_by_name):
  return tff.to_type(in_order(types_by_name))


def _types_of_values(values):
  return tff.to_type(
      tf.nest.map_structure(lambda v: tff.TensorType(np.asarray(v).dtype, np.shape(v)), values)
  )


def initial_own(initial: OwnState, labels: np.ndarray) -> Any:
  """Returns what a client keeps before it first takes part.

  Args:
    initial: As a program declares it.
    labels: int32 `[n_c]`, the client's.
  """
  if isinstance(initial, GivenLabels):
    return labels.astype(np.int32)
  if isinstance(initial, PerExample):
    value = np.asarray(initial.value)
    return np.tile(value, (len(labels),) + (1,) * value.ndim)
  return initial


def as_first(name: str, first: Any, values: Any) -> Any:
  """Returns what the server sends from now on, in the types of what it sent first.

  Args:
    name: Under which clients receive it.
    first: An array or a structure of arrays.
    values: The same structure; a list of numbers is one array where `first` is.

  Raises:
    ValueError: If an array has another shape, or numbers that its first type does not hold: a
      fraction or a large number where whole ones of 32 bits are sent.
  """

  def cast(before, value):
    before, value = np.asarray(before), np.asarray(value)
    # Real numbers are rounded to the type, whole ones are never.
    is_rounded = before.dtype.kind not in 'biu' and np.can_cast(
        value.dtype, before.dtype, 'same_kind'
    )
    with np.errstate(invalid='ignore'):
      is_held = is_rounded or (
          value.dtype.kind in 'biuf' and np.array_equal(value.astype(before.dtype), value)
      )
    if value.shape != before.shape or not is_held:
      raise ValueError(
          f'{name!r}, which clients receive, was {before.dtype}{list(before.shape)} and is '
          f'{value.dtype}{list(value.shape)}'
      )
    return value.astype(before.dtype, copy=False)

  whole = values if tf.nest.is_nested(first) else np.asarray(values)
  return tf.nest.map_structure(cast, first, whole)


def received_type(received: Mapping[str, Any]) -> tff.Type:
  """The TFF type of what the server sends to all besides the model, given its first values."""
  return _struct({name: _types_of_values(value) for name, value in received.items()})


def messages_type(messages: tuple[uplink.Message, ...]) -> tff.Type:
  """The TFF type of what the server sends to one client alone."""
  return _struct({m.name: m.type_spec for m in messages})


class Broadcast(NamedTuple):
  """What the server sends to each client.

  Attributes:
    weights: w_t; `()` where there is no global model.
    round_num: int32, 1 in the first round.
    received: By name, see `ClientProgram.receives`.
    optimizer: What the federated optimizer's server sends besides.
  """

  weights: Any
  round_num: Any
  received: Any
  optimizer: Any = ()


class Client(NamedTuple):
  """What a client knows before its first step and in all of them.

  Attributes:
    id: int32, the client's number.
    weights: w_t as received; `()` where there is no global model.
    round_num: int32, 1 in the first round.
    received: By name, what the server sent to all.
    optimizer: What the federated optimizer's server sent.
    own: By name, what the client kept, as it came.
    messages: By name, what the server sent to this client.
    labels: int32 `[n_c]`, the client's labels as they are in its data.
    seed: int32 `[2]`, differs for each client, and in training for each round.
    outputs: From the arguments of `predict` and whether features are wanted to both.
  """

  id: tf.Tensor
  weights: Any
  round_num: tf.Tensor
  received: Mapping[str, Any]
  optimizer: Any
  own: Mapping[str, Any]
  messages: Mapping[str, tf.Tensor]
  labels: tf.Tensor
  seed: tf.Tensor
  outputs: Callable[[bool, tf.Tensor | None, Any, tf.Tensor | None, bool], tuple[Any, Any]]

  @property
  def num_examples(self) -> tf.Tensor:
    """int32, n_c."""
    return tf.shape(self.labels)[0]

  def predict(
      self,
      augmented: bool = False,
      positions: tf.Tensor | None = None,
      weights: _Weights | None = None,
      images: tf.Tensor | None = None,
  ) -> Any:
    """Returns float32 `[n_c, K]`, logits of the network as it is now: before, or after training.

    Of a model of several networks a list.

    Args:
      augmented: Whether on augmented images, where training augments them.
      positions: int32 `[m]`, of which examples; all if not given.
      weights: Of the network in place of its own.
      images: `[m, ...]` as the model takes them, in place of the client's examples.
    """
    return self.outputs(augmented, positions, weights, images, False)[0]

  def predict_with_features(
      self,
      augmented: bool = False,
      positions: tf.Tensor | None = None,
      weights: _Weights | None = None,
  ) -> tuple[Any, Any]:
    """Returns `predict`, and beside it float32 `[n_c, d]`, the features."""
    return self.outputs(augmented, positions, weights, None, True)


class Columns(NamedTuple):
  """Values for each example, computed once, before the first step.

  Attributes:
    values: By name, `[n_c, ...]`; a step sees those of its batch.
    labels: int32 `[n_c]`, what is trained on; None for the data's labels.
    visit: bool `[n_c]`, the examples that epochs visit; None for all. If it has none, all are.
  """

  values: Mapping[str, tf.Tensor] = {}
  labels: tf.Tensor | None = None
  visit: tf.Tensor | None = None


class Epoch(NamedTuple):
  """What is drawn for an epoch may depend on this.

  Attributes:
    client: The client.
    number: int32, 0 in the first.
    num_examples: int32, how many the epoch visits.
    seed: int32 `[2]`, differs for each round, client and epoch.
    columns: By name, `Columns.values` of all examples, `[n_c, ...]`.
  """

  client: Client
  number: tf.Tensor
  num_examples: tf.Tensor
  seed: tf.Tensor
  columns: Mapping[str, tf.Tensor]


class Batch(NamedTuple):
  """Images of a step before the network sees them.

  Attributes:
    images: `[b, ...]`, as the model takes them.
    labels: int32 `[b]`.
    seed: int32 `[2]`.
  """

  images: tf.Tensor
  labels: tf.Tensor
  seed: tf.Tensor


class Step(NamedTuple):
  """What a step may look at.

  Attributes:
    client: What the client knows.
    logits: float32 `[b, K]`; of a model of several networks a list, and so are features.
    features: float32 `[b, d]`, the last hidden layer.
    labels: int32 `[b]`.
    positions: int32 `[b]`, where the examples are among the client's.
    columns: By name, the batch's part of `Columns`, of what was drawn for the epoch, and of what
      `ClientProgram.transform` gave.
    number: int32, steps before this one.
    epoch: int32, 0 in the first.
    epoch_step: int32, 0 in an epoch's first.
    seed: int32 `[2]`, differs for each round, client and step: fold `seeds.OWN` or more into it.
    carry: What the program carries through its steps.
    images: `[b, ...]`, what the network saw.
    view: From int32 `[2]`, a seed, to the batch's images, augmented anew; as they are, if training
      does not augment.
    load: From int32 `[m]`, positions among the client's examples, and int32 `[2]`, a seed, to their
      images, augmented where training augments.
    forward: From images to the logits and features of the network that is trained.
    networks: For each network of the model: from images, and whether it is trained on them (batch
      norm takes, and moves by, their statistics), to logits and features.
    received_forward: The same, of the model that training starts from; see `uses_received_model`.
    gradients: One for each trainable variable; `()` in the loss. So are the three below.
    weights: The variables' values.
    anchor: Their values before the first step.
    found: What the loss returned beside its value.
  """

  client: Client
  logits: Any
  features: Any
  labels: tf.Tensor
  positions: tf.Tensor
  columns: Mapping[str, tf.Tensor]
  number: tf.Tensor
  epoch: tf.Tensor
  epoch_step: tf.Tensor
  seed: tf.Tensor
  carry: Any
  images: tf.Tensor
  view: Callable[[tf.Tensor], tf.Tensor]
  load: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
  forward: Callable[[tf.Tensor], tuple[Any, Any]]
  networks: tuple[Callable[[tf.Tensor, bool], tuple[tf.Tensor, tf.Tensor]], ...]
  received_forward: Callable[[tf.Tensor], tuple[Any, Any]] | None
  gradients: Any = ()
  weights: Any = ()
  anchor: Any = ()
  found: Any = ()


class Result(NamedTuple):
  """What a client knows after its last step.

  Attributes:
    client: What it knew before; `client.predict` is of the trained network now.
    update: `w_t - w_c` in the structure of the model's weights; zeros if that is not finite. What
      the program before made of it, where there is one. `()` without training.
    weights: w_c, the trained weights; zeros if they are not finite.
    steps: int32, local steps.
    num_examples: float32, n_c; 0 if the update is not finite.
    loss: float32, the mean of the batches' losses.
    labels: int32 `[n_c]`, the labels that were trained on.
    columns: By name, `Columns.values` of all programs, `[n_c, ...]`; {} without training.
    carry: What the program carries.
  """

  client: Client
  update: Any
  weights: Any
  steps: tf.Tensor
  num_examples: tf.Tensor
  loss: tf.Tensor
  labels: tf.Tensor
  columns: Mapping[str, tf.Tensor]
  carry: Any


class Sent(NamedTuple):
  """What a program makes of a `Result`.

  Of a client whose update is not finite only the reports are used: its sums are 0 and its own state
  stays.

  Attributes:
    update: In place of `Result.update`; None to leave it.
    own: By name, what the client keeps from now on; what is not named stays.
    sums: A value for each of `ClientProgram.sums`.
    reports: A value for each of `ClientProgram.reports`.
    weight: float32, of the update in the mean, from 0 to n_c, in place of n_c; None to leave it.
      Where noise is on the mean all clients weigh the same, whatever this is; but 0 leaves the
      update out.
  """

  update: Any = None
  own: Mapping[str, Any] = {}
  sums: Mapping[str, tf.Tensor] = {}
  reports: Mapping[str, tf.Tensor] = {}
  weight: tf.Tensor | None = None


class ClientProgram(NamedTuple):
  """A client's program; what is left out is as in FedAvg.

  Attributes:
    loss: From `Step` to a scalar; or to one and something more, which `step` finds in `found`. None
      for a program that adds to another, and for one without training.
    start: From `Client` to the weights that training starts from; None for the received ones.
    columns: From `Client` to `Columns`, before the first step: the network has the weights that
      training starts from.
    init: From `Client` to what the program carries through its steps: tensors of fixed shapes.
    draw: From `Epoch` to tensors `[n, ...]` by name, an entry for each example of the epoch in the
      order in which they are visited. Once an epoch, not once a step: steps stay short.
    transform: From `Batch` to the images that the network sees, and columns by name.
    step: From `Step` to the gradients that are used in place of the given ones, before weight
      decay, and what is carried on; None to leave both.
    final: From `Result` to `Sent`; None to send the update.
    own: By name, what a client keeps between rounds, as it is at first.
    receives: By name, first values of what the server sends to all besides the model.
    messages: What it sends to single clients.
    sums: What `final` sends to be summed.
    reports: What `final` sends for the server to see by client.
    uses_received_model: Whether steps look at the model that training starts from, which is the
      received one but for what `start` puts into it: another network.
    is_of_labels: Whether `label_loss` made it.
  """

  loss: Callable[[Step], Any] | None = None
  start: Callable[[Client], _Weights] | None = None
  columns: Callable[[Client], Columns] | None = None
  init: Callable[[Client], Any] = lambda client: ()
  draw: Callable[[Epoch], Mapping[str, tf.Tensor]] | None = None
  transform: Callable[[Batch], tuple[tf.Tensor, Mapping[str, tf.Tensor]]] | None = None
  step: Callable[[Step], tuple[list[tf.Tensor], Any]] | None = None
  final: Callable[[Result], Sent] | None = None
  own: Mapping[str, OwnState] = {}
  receives: Mapping[str, Any] = {}
  messages: tuple[uplink.Message, ...] = ()
  sums: tuple[uplink.UplinkSum, ...] = ()
  reports: tuple[uplink.UplinkReport, ...] = ()
  uses_received_model: bool = False
  is_of_labels: bool = False


class Declared(NamedTuple):
  """What several programs declare together; the attributes are those of `ClientProgram`."""

  own: Mapping[str, OwnState]
  receives: Mapping[str, Any]
  messages: tuple[uplink.Message, ...]
  sums: tuple[uplink.UplinkSum, ...]
  reports: tuple[uplink.UplinkReport, ...]


def declared(programs: tuple[ClientProgram, ...]) -> Declared:
  """Returns what the programs declare together.

  Raises:
    ValueError: If two declare the same name.
  """
  own, receives = {}, {}
  for program in programs:
    for mine, all_of_them in ((program.own, own), (program.receives, receives)):
      twice = mine.keys() & all_of_them.keys()
      if twice:
        raise ValueError(f'two programs of a client have a {sorted(twice)[0]!r}')
      all_of_them.update(mine)
  messages = tuple(m for program in programs for m in program.messages)
  sums = tuple(s for program in programs for s in program.sums)
  reports = tuple(r for program in programs for r in program.reports)
  for sent in (messages, sums, reports):
    names = [value.name for value in sent]
    if len(set(names)) < len(names):
      raise ValueError(f'a name is declared twice: {", ".join(names)}')
  return Declared(own, receives, messages, sums, reports)
