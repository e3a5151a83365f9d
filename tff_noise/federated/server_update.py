"""The server's step from the aggregated update to the next global model."""

import tensorflow as tf
import tensorflow_federated as tff


def build_server_update(
    optimizer: tff.learning.optimizers.Optimizer, weights_type: tff.StructWithPythonType
) -> tff.learning.templates.FinalizerProcess:
  """Applies `optimizer` to the trainable weights; batch statistics are averaged past it.

  The aggregated update is `sum_c p_c (w_t - w_c)`, a gradient for the server's optimizer; with SGD
  of step size alpha_g this is `w_{t+1} = w_t + alpha_g * sum_c p_c (w_c - w_t)`. (FedDPCont,
  algorithm 2, line 18 prints the opposite sign, against its section 3.1.) Moving statistics are no
  parameters, so no step size or server momentum may touch them: `s_{t+1} = sum_c p_c s_c`.

  Args:
    optimizer: The server's optimizer.
    weights_type: TFF type of `tff.learning.models.ModelWeights`.

  Returns:
    A process with `next` of type
    `<S@SERVER, W@SERVER, W@SERVER> -> <state=S@SERVER, result=W@SERVER, measurements=<>@SERVER>`.
  """
  tensor_specs = [
      tf.TensorSpec(t.shape, t.dtype) for t in weights_type.trainable
  ]

  @tff.tensorflow.computation
  def initialize_tf():
    return optimizer.initialize(tensor_specs)

  @tff.federated_computation
  def initialize():
    return tff.federated_eval(initialize_tf, tff.SERVER)

  state_type = initialize_tf.type_signature.result

  @tff.tensorflow.computation(state_type, weights_type, weights_type)
  def next_tf(state, weights, update):
    state, trainable = optimizer.next(state, weights.trainable, update.trainable)
    non_trainable = tf.nest.map_structure(
        tf.subtract, weights.non_trainable, update.non_trainable
    )
    return state, tff.learning.models.ModelWeights(trainable, non_trainable)

  @tff.federated_computation(
      tff.FederatedType(state_type, tff.SERVER),
      tff.FederatedType(weights_type, tff.SERVER),
      tff.FederatedType(weights_type, tff.SERVER),
  )
  def next_fn(state, weights, update):
    state, weights = tff.federated_map(next_tf, (state, weights, update))
    return tff.templates.MeasuredProcessOutput(
        state, weights, tff.federated_value((), tff.SERVER)
    )

  return tff.learning.templates.FinalizerProcess(initialize, next_fn)
