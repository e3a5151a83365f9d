"""What a federated optimizer is: what it adds to local training, and the server's step.

An algorithm says what a client trains on; a federated optimizer says how the clients' training
becomes the next global model. `computation.train` takes one of each. The optimizers themselves are
in `tff_noise.optimizers`.

Everything here is a function of TensorFlow values; `computation` puts them into TFF computations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_noise.clients import program

_Weights = tff.learning.models.ModelWeights


class ServerInputs(NamedTuple):
  """What the server's step may look at.

  Attributes:
    weights: w_t.
    update: The mean over clients of what they sent, weighted by their examples, or as the method
      says; 0 if nobody's update was finite.
    sums: By name: float32 `examples`, those of all clients whose update was finite, and what the
      sums of the optimizer's client program come to. There may be others, for which nothing is
      promised. Empty where nothing but updates may leave a client.
  """

  weights: tff.learning.models.ModelWeights
  update: Any
  sums: Mapping[str, tf.Tensor]


class ServerOptimizer(NamedTuple):
  """The server's step, from the aggregate to the next model.

  Attributes:
    initialize: `( -> state)`.
    next: `(state, ServerInputs) -> (state, w_{t+1})`.
    broadcast: `state -> ` what clients receive besides the model.
    counts_examples: Whether `next` cannot do without the sum `examples`.
  """

  initialize: Callable[[], Any]
  next: Callable[[Any, ServerInputs], tuple[Any, tff.learning.models.ModelWeights]]
  broadcast: Callable[[Any], Any] = lambda state: ()
  counts_examples: bool = False


def moved_by_update(inputs: ServerInputs) -> tff.learning.models.ModelWeights:
  """Returns a client's local model where it sends how far it went, `w_t - w_k`."""
  return tf.nest.map_structure(tf.subtract, inputs.weights, inputs.update)


class Sampler(NamedTuple):
  """How an optimizer chooses who takes part in a round, where that is no uniform draw.

  Attributes:
    choose: From (what an algorithm can do with clients, the state, int64 the ids of those that may
      take part, how many are to) to the ids of those that do, ascending.
    records: By name, first values of what it remembers, see `State.records`.
    observe: From the records, the cohort and what it reported in the round to the next records.
    computations: What it asks clients.
  """

  choose: Callable[[Any, Any, np.ndarray, int], np.ndarray]
  records: Mapping[str, np.ndarray] = {}
  observe: Callable[..., Mapping[str, np.ndarray]] = lambda records, cohort, reports: records
  computations: tuple[Any, ...] = ()


class Restriction(NamedTuple):
  """How a server goes on with some of its clients alone, of whom it remembers a mean.

  Attributes:
    own: Name of what clients keep whose mean over them the server has, weighted by their examples.
    apply: From the server's state, that mean and float32, the examples of the clients that go on,
      to the next state; in NumPy, between rounds.
  """

  own: str
  apply: Callable[[Any, Any, np.float32], Any]


class Contributions(NamedTuple):
  """What a server that sees single updates may weigh them by; clients in ascending order of ids.

  Attributes:
    weights: float32 `[k]`, n_c; 0 of those that are not used.
    reports: `[k]` by name, what the clients reported, see `ClientProgram.reports`.
    tensors: From a client's place to the tensors in which its local model differs from those of the
      others: its update, or its model, where what it sends is not how far it went.
  """

  weights: tf.Tensor
  reports: Mapping[str, tf.Tensor]
  tensors: Callable[[tf.Tensor], list[tf.Tensor]]


class FederatedOptimizer(NamedTuple):
  """An optimizer, by composition.

  Attributes:
    server: The server's step.
    client: What it adds to local training; no loss.
    combine: From updates, float32 `[k, P]`, and weights, `[k]`, to what takes the place of their
      mean, `[P]`; needs to see single updates. None for the mean.
    weigh: From `Contributions` to float32 `[k]`, the weights that take the place of the clients'
      numbers of examples; needs to see single updates. None for these numbers.
    client_model: From `ServerInputs` of one client alone to its local model, for a server that
      compares models; None where clients never send a whole one.
    restriction: None where the server remembers nothing of single clients.
    sampler: Who takes part; None for a uniform draw.
    evaluated: From the server's weights and what each client keeps, by name, to the weights that
      are evaluated; None for the server's. In NumPy, like `own_models`: a simulation can look.
    own_models: The same, to the weights of the clients that have a model of their own; None where
      they have none.
    name: Two computations of an algorithm whose optimizers have one name share the server's state.
    rebuild: From a `task.Task` to the same optimizer for it; None where nobody says how.
  """

  server: ServerOptimizer
  client: program.ClientProgram = program.ClientProgram()
  combine: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = None
  weigh: Callable[[Contributions], tf.Tensor] | None = None
  client_model: Callable[[ServerInputs], tff.learning.models.ModelWeights] | None = moved_by_update
  restriction: Restriction | None = None
  sampler: Sampler | None = None
  evaluated: Callable[[_Weights, Sequence[Mapping[str, Any]]], _Weights] | None = None
  own_models: Callable[[_Weights, Sequence[Mapping[str, Any]]], list[_Weights]] | None = None
  name: str = 'fedavg'
  rebuild: Callable[[Any], FederatedOptimizer] | None = None

  @property
  def sees_updates(self) -> bool:
    """Whether the server sees the updates of single clients."""
    return self.combine is not None or self.weigh is not None


def apply_update(
    optimizer: tff.learning.optimizers.Optimizer, weights_type: tff.StructWithPythonType
) -> ServerOptimizer:
  """A step of `optimizer` on the trainable weights; batch statistics are averaged past it.

  The mean update is `sum_c p_c (w_t - w_c)`, a gradient for the server's optimizer; with SGD of
  step size alpha_g this is `w_{t+1} = w_t + alpha_g * sum_c p_c (w_c - w_t)`. (FedDPCont,
  algorithm 2, line 18 prints the opposite sign, against its section 3.1.) Moving statistics are no
  parameters, so no step size or server momentum may touch them: `s_{t+1} = sum_c p_c s_c`.

  Args:
    optimizer: The server's optimizer.
    weights_type: TFF type of `tff.learning.models.ModelWeights`.
  """
  specs = [tf.TensorSpec(t.shape, t.dtype) for t in weights_type.trainable]

  def step(state, inputs):
    state, trainable = optimizer.next(state, inputs.weights.trainable, inputs.update.trainable)
    return state, tff.learning.models.ModelWeights(trainable, averaged_statistics(inputs))

  return ServerOptimizer(lambda: optimizer.initialize(specs), step)


def unless_empty(inputs: ServerInputs, new: Any, old: Any) -> Any:
  """Returns `new`, or `old` if nobody contributed to `inputs`.

  A mean update of 0 is no reason to stand still for a server that moves by what it remembers.

  Args:
    inputs: What came from the clients.
    new: The result of the server's step, a structure of tensors.
    old: What it was before.
  """
  if 'examples' not in inputs.sums:
    return new  # Under client-level noise nobody may know.
  # Half an example: the sum may have been quantised.
  anyone = inputs.sums['examples'] > 0.5
  return tf.nest.map_structure(lambda a, b: tf.where(anyone, a, b), new, old)


def averaged_statistics(inputs: ServerInputs) -> list[tf.Tensor]:
  """Returns the non-trainable weights after a mean over clients."""
  return tf.nest.map_structure(
      tf.subtract, inputs.weights.non_trainable, inputs.update.non_trainable
  )


def fed_avg(
    weights_type: tff.StructWithPythonType, server_learning_rate: float = 1.0
) -> FederatedOptimizer:
  """FedAvg (McMahan et al. 2017): `w_{t+1} = w_t + alpha_g * sum_c p_c (w_c - w_t)`."""
  step = tff.learning.optimizers.build_sgdm(server_learning_rate)
  return FederatedOptimizer(apply_update(step, weights_type))
