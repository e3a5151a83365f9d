"""Evaluation of the global model on examples at the server."""

import collections

import tensorflow as tf
import tensorflow_federated as tff

from tff_noise.models import keras_model
from tff_noise.models import losses

_BATCH_SIZE = 500


def build_evaluation(model: keras_model.KerasModel) -> tff.Computation:
  """Returns `(<weights=W@SERVER, data=D*@SERVER> -> <accuracy=float32, loss=float32>@SERVER)`.

  `data` is one element that holds all examples, as `client_data.client_dataset` makes it; its
  `client` is ignored. Batch norm uses the averaged moving statistics. An empty set gives 0 and 0.

  Args:
    model: The model whose weights are evaluated.
  """

  @tff.tensorflow.computation(model.weights_type, model.data_type)
  def evaluate(weights, data):
    network = keras_model.build_zeros(model)

    @tf.function
    def run(weights, data):
      keras_model.assign(network, weights)
      examples = data.get_single_element()
      num_examples = tf.shape(examples['y'])[0]
      correct, loss = tf.constant(0.0), tf.constant(0.0)
      for start in tf.range(0, num_examples, _BATCH_SIZE):
        labels = examples['y'][start : start + _BATCH_SIZE]
        logits, _ = network(examples['x'][start : start + _BATCH_SIZE], training=False)
        hits = tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), labels)
        correct += tf.reduce_sum(tf.cast(hits, tf.float32))
        loss += losses.cross_entropy(logits, labels) * tf.cast(tf.shape(labels)[0], tf.float32)
      total = tf.cast(num_examples, tf.float32)
      return collections.OrderedDict(
          accuracy=tf.math.divide_no_nan(correct, total),
          loss=tf.math.divide_no_nan(loss, total),
      )

    return run(weights, data)

  @tff.federated_computation(
      tff.FederatedType(model.weights_type, tff.SERVER),
      tff.FederatedType(model.data_type, tff.SERVER),
  )
  def evaluation(weights, data):
    return tff.federated_map(evaluate, (weights, data))

  return evaluation
