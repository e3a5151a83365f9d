"""By what a server tells good local models from bad ones: ClipFL's clean set, and without one."""

import tensorflow as tf

from tff_noise.clients import prediction
from tff_noise.data import client_data
from tff_noise.federated import stacked
from tff_noise.models import keras_model


def validation(model: keras_model.KerasModel, keep: int) -> stacked.Selector:
  """Returns a selector by accuracy on clean examples at the server (ClipFL, section 4.1).

  Args:
    model: What is trained.
    keep: m.
  """

  def build_score():
    network = keras_model.build_zeros(model)

    def score(inputs):
      examples = inputs.server_data.get_single_element()
      labels = examples['y']

      def accuracy(i):
        predicted = _predict(network, model, inputs.model(i), examples['x'])
        return tf.reduce_mean(tf.cast(tf.equal(predicted, labels), tf.float32))

      return _for_each(accuracy, inputs.num_clients, tf.float32)

    return score

  return stacked.Selector(
      build_score,
      keep,
      'the server evaluates the model of each client, which their sum does not tell',
      client_data.server_data_type(model.data_type),
  )


def agreement(model: keras_model.KerasModel, keep: int) -> stacked.Selector:
  """Returns a selector by how often a model's class is that of the round's other models.

  It needs images at the server, whose labels are not looked at. Models that learnt from wrong
  labels err each in its own way; those that learnt from right ones agree.

  Args:
    model: What is trained.
    keep: m.
  """

  def build_score():
    network = keras_model.build_zeros(model)

    def score(inputs):
      x = inputs.server_data.get_single_element()['x']
      classes = _for_each(
          lambda i: _predict(network, model, inputs.model(i), x), inputs.num_clients, tf.int32
      )
      # Who sent nothing has no vote: its model is the one that all received.
      has_vote = tf.cast(inputs.finite, tf.float32)
      votes = tf.einsum('knc,k->nc', tf.one_hot(classes, model.num_classes), has_vote)
      # [n, k], without its own vote.
      others = tf.gather(votes, tf.transpose(classes), axis=1, batch_dims=1) - has_vote
      return tf.math.divide_no_nan(
          tf.reduce_mean(others, axis=0), tf.reduce_sum(has_vote) - has_vote
      )

    return score

  return stacked.Selector(
      build_score,
      keep,
      'the server compares the predictions of the clients\' models, which their sum does not tell',
      client_data.server_data_type(model.data_type),
  )


def reported(name: str, keep: int) -> stacked.Selector:
  """Returns a selector by a number that clients report, the smaller the better.

  Args:
    name: Of the report, see `ClientProgram.reports`.
    keep: m.
  """
  return stacked.Selector(
      lambda: lambda inputs: -inputs.reports[name],
      keep,
      'the server uses the updates of some clients alone, which their sum does not have',
  )


def _for_each(function, num_clients, dtype):
  return tf.map_fn(
      function, tf.range(num_clients), fn_output_signature=dtype, parallel_iterations=1
  )


def _predict(network, model, weights, x):
  """int32 `[n]`, the classes that a model with these weights predicts."""
  keras_model.assign(network, weights)
  half = tf.shape(x)[0] // 2
  # As two loops, which run at the same time; in a worker an operation alone has one thread.
  logits = [prediction.predict(network, model.input_shape, part) for part in (x[:half], x[half:])]
  return tf.argmax(tf.concat(logits, 0), axis=1, output_type=tf.int32)
