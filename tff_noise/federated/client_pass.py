"""A pass over the clients without training: each looks at the global model and its own data.

What it learns goes into its own state, or to the server in reports.
"""

import collections
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_noise import rng
from tff_noise.federated import disclosure
from tff_noise.federated import per_client
from tff_noise.federated import prediction
from tff_noise.federated import seeds
from tff_noise.federated import uplink
from tff_noise.models import keras_model


class PassInputs(NamedTuple):
  """What a client knows in a pass.

  Attributes:
    predict: To float32 `[n_c, K]`, the logits of the global model; of True on images that are
      shifted and mirrored at random.
    predict_some: The same for examples of these positions, int32 `[b]`, on images as they are.
    labels: int32 `[n_c]`, the data's labels.
    seed: int32 `[2]`, the client's own in this pass.
    client: int32, its id.
    local: The client's own state.
  """

  predict: Callable[[bool], tf.Tensor]
  predict_some: Callable[[tf.Tensor], tf.Tensor]
  labels: tf.Tensor
  seed: tf.Tensor
  client: tf.Tensor
  local: Any


class PassOutputs(NamedTuple):
  """What a pass results in.

  Attributes:
    local: The client's new own state.
    reports: A value for each report.
  """

  local: Any
  reports: Mapping[str, tf.Tensor] = {}


class ClientPass(NamedTuple):
  """A pass and the account of what its clients send.

  Attributes:
    run: `(<weights=W@SERVER, data={D*}@CLIENTS, local={L}@CLIENTS> -> <reports=R@SERVER,
      local={S}@CLIENTS>)`; R is `<>` without reports, S an `uplink.ReturnedState`.
    fields: Every value that leaves a client.
  """

  run: tff.Computation
  fields: tuple[uplink.UplinkField, ...]


def build_client_pass(
    model: keras_model.KerasModel,
    work: Callable[[PassInputs], PassOutputs],
    local_type: tff.Type,
    reports: tuple[uplink.UplinkReport, ...] = (),
    *,
    seed: int,
) -> ClientPass:
  """Composes a pass.

  Args:
    model: The model.
    work: What each client does; without AutoGraph, as in `client_work.ClientWork`.
    local_type: TFF type of the clients' own state.
    reports: What each client reports.
    seed: The experiment's seed.
  """
  base_seed = rng.tf_seed(seed, 'client pass')

  @tff.tensorflow.computation(model.weights_type, model.data_type, local_type)
  def client_pass(weights, data, local):
    network = keras_model.build_zeros(model)

    @tf.function(autograph=False)
    def run(weights, data, local):
      keras_model.assign(network, weights)
      examples = data.get_single_element()

      seed = seeds.fold(base_seed, examples['client'])

      def predict(augmented):
        return prediction.predict(
            network, model.input_shape, examples['x'], seed if augmented else None
        )

      def predict_some(positions):
        x = tf.gather(examples['x'], positions)
        return prediction.predict(network, model.input_shape, x)

      output = work(
          PassInputs(
              predict, predict_some, examples['y'], seed, examples['client'], local
          )
      )
      return collections.OrderedDict(
          reports=per_client.pack_reports(examples, output.reports),
          local=uplink.ReturnedState(examples['client'], output.local, ()),
      )

    return run(weights, data, local)

  @tff.federated_computation(
      tff.FederatedType(model.weights_type, tff.SERVER),
      tff.FederatedType(model.data_type, tff.CLIENTS),
      tff.FederatedType(local_type, tff.CLIENTS),
  )
  def run(weights, data, local):
    output = tff.federated_map(client_pass, (tff.federated_broadcast(weights), data, local))
    if reports:
      collected = per_client.collect(output['reports'])
    else:
      collected = tff.federated_value((), tff.SERVER)
    return collections.OrderedDict(reports=collected, local=output['local'])

  fields = per_client.fields(reports)
  disclosure.check(run, fields)
  return ClientPass(run, fields)
