"""What a federated optimizer is: what it adds to local training, and the server's step.

A method says what a client trains on; a federated optimizer says how the clients' training becomes
the next global model. `compose.build_round_process` takes one of each. The optimizers themselves
are in `tff_noise.optimizers`.

Everything here is a function of TensorFlow values; `compose` puts them into TFF computations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_noise import types
from tff_noise.federated import client_pass
from tff_noise.federated import uplink
from tff_noise.models import keras_model

_Weights = tff.learning.models.ModelWeights


class Setting(NamedTuple):
  """What an optimizer is built for.

  Attributes:
    model: What is trained.
    training: How clients train.
    client_sizes: int64 `[C]`, public numbers of examples.
    clients_per_round: Cohort size.
    seed: The experiment's seed.
  """

  model: keras_model.KerasModel
  training: types.LocalTraining
  client_sizes: np.ndarray
  clients_per_round: int = 1
  seed: int = 0


class StepInputs(NamedTuple):
  """What a client's rule may look at in each local step.

  Attributes:
    gradients: Of the method's loss, one for each trainable variable.
    weights: The variables' values.
    anchor: Their values at the start of the round.
    state: The client's optimizer state as it came.
    received: What the server sent besides the model.
  """

  gradients: list[tf.Tensor]
  weights: list[tf.Tensor]
  anchor: list[tf.Tensor]
  state: Any
  received: Any


class LocalResult(NamedTuple):
  """What a client's rule may look at after the last local step.

  Attributes:
    update: `w_t - w_c`, a structure of the model's weights, the difference of where the client
      started from and where it ended. Zeros if that is not finite.
    weights: w_c.
    steps: int32, the number of local steps.
    num_examples: float32, n_c; 0 if the update is not finite.
    loss: float32, the mean training loss of the round.
    state: The client's optimizer state as it came.
    received: What the server sent besides the model.
  """

  update: tff.learning.models.ModelWeights
  weights: tff.learning.models.ModelWeights
  steps: tf.Tensor
  num_examples: tf.Tensor
  loss: tf.Tensor
  state: Any
  received: Any


class Sent(NamedTuple):
  """What a client's rule makes of a `LocalResult`.

  Attributes:
    update: What is averaged at the server; by default the model update itself.
    state: The client's new optimizer state; not kept if the update is not finite.
    sums: A value for each of `ClientRule.sums`.
    reports: A value for each of `ClientRule.reports`.
  """

  update: Any
  state: Any
  sums: Mapping[str, tf.Tensor] = {}
  reports: Mapping[str, tf.Tensor] = {}


def _send_update(result: LocalResult) -> Sent:
  return Sent(result.update, result.state)


class ClientRule(NamedTuple):
  """What an optimizer adds to a client's local training; by default nothing.

  Attributes:
    initial_state: Optimizer state of a client that never took part, as NumPy values; `()` for none.
    start: From the broadcast weights and the client's optimizer state to the weights that training
      starts from; None for the broadcast ones.
    gradients: From `StepInputs` to what is used in place of the gradients, before weight decay;
      None for the gradients.
    send: From `LocalResult` to `Sent`.
    sums: Scalars that `send` adds to the model update, to be summed over clients.
    reports: Scalars of which the server sees whose they are.
  """

  initial_state: Any = ()
  start: Callable[[_Weights, Any], _Weights] | None = None
  gradients: Callable[[StepInputs], list[tf.Tensor]] | None = None
  send: Callable[[LocalResult], Sent] = _send_update
  sums: tuple[uplink.UplinkSum, ...] = ()
  reports: tuple[uplink.UplinkReport, ...] = ()


class ServerInputs(NamedTuple):
  """What the server's step may look at.

  Attributes:
    weights: w_t.
    update: The mean over clients of what they sent, weighted by their examples; 0 if nobody's
      update was finite.
    sums: By name: float32 `examples`, those of all clients whose update was finite, and what
      `ClientRule.sums` sum to. There may be others, for which nothing is promised. Empty where
      nothing but updates may leave a client.
  """

  weights: tff.learning.models.ModelWeights
  update: Any
  sums: Mapping[str, tf.Tensor]


class ServerRule(NamedTuple):
  """The server's step.

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


def _moved_by_update(inputs: ServerInputs) -> tff.learning.models.ModelWeights:
  return tf.nest.map_structure(tf.subtract, inputs.weights, inputs.update)


class Choice(NamedTuple):
  """How an optimizer chooses among the clients that might take part in a round.

  Candidates are drawn with probabilities proportional to their examples; those with the largest
  losses take part.

  Attributes:
    ratio: d/m, candidates for each client that takes part, at least 1.
    poll: Asks candidates, whose `local` is the number of the round, for their `loss` under the
      global model; None to take what each reported
      (`ClientRule.reports` has `loss`) when it last took part, and first those that never did.
  """

  ratio: float
  poll: client_pass.ClientPass | None


class FederatedOptimizer(NamedTuple):
  """An optimizer, by composition.

  Attributes:
    server: The server's step.
    client: What it adds to local training.
    combine: From updates, float32 `[k, P]`, and weights, `[k]`, to what takes the place of their
      mean, `[P]`; needs to see single updates. None for the mean.
    client_model: From `ServerInputs` of one client alone to its local model, for a server that
      compares models; None where clients never send a whole one.
    restrict: From the server's state, the optimizer states of the clients that go on, and their
      numbers of examples to the state in which the server goes on with them alone; None where it
      remembers nothing of single clients. In NumPy, between rounds.
    choice: Who takes part; None for a uniform draw.
    evaluated: From the server's weights and all clients' optimizer states to the weights that are
      evaluated; None for the server's. In NumPy, like `own_models`.
    own_models: The same, to the weights of the clients that have a model of their own; None where
      they have none.
  """

  server: ServerRule
  client: ClientRule = ClientRule()
  combine: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = None
  client_model: Callable[[ServerInputs], tff.learning.models.ModelWeights] | None = _moved_by_update
  restrict: Callable[[Any, list[Any], np.ndarray], Any] | None = None
  choice: Choice | None = None
  evaluated: Callable[[_Weights, tuple[Any, ...]], _Weights] | None = None
  own_models: Callable[[_Weights, tuple[Any, ...]], list[_Weights]] | None = None


def apply_update(
    optimizer: tff.learning.optimizers.Optimizer, weights_type: tff.StructWithPythonType
) -> ServerRule:
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

  return ServerRule(lambda: optimizer.initialize(specs), step)


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


def mean_state(states: list[Any], sizes: np.ndarray) -> Any:
  """Returns the mean of clients' optimizer states, weighted by their examples; in NumPy.

  Args:
    states: Structures of arrays.
    sizes: int64, numbers of examples, at least 1 in all.
  """
  share = (sizes / sizes.sum()).astype(np.float32)
  return tf.nest.map_structure(
      lambda *values: sum(p * np.asarray(v) for p, v in zip(share, values, strict=True)), *states
  )
