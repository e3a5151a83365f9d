"""Evaluation of models on examples at the server."""

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_noise import types
from tff_noise.clients import loops
from tff_noise.data import client_data
from tff_noise.models import images
from tff_noise.models import keras_model
from tff_noise.models import losses

# Of a model on examples, one number each.
MEASURES = ('accuracy', 'loss')

# Larger ones leave the processor's caches: 500 take a third longer on a CNN.
_BATCH_SIZE = 128

# An argument of TFF has at most 100 MiB, and data of this size at a time are at the worker.
_MAX_CHUNK_BYTES = 64 * 2**20
# Evaluated one batch after another: at most so many examples and so much of a chunk, or cores would
# have no work. Functions of the data alone, so that sums have the same bits everywhere.
_SHARE = 1024
_SHARES_OF_CHUNK = 8


def build_evaluation(model: keras_model.KerasModel) -> tff.Computation:
  """Returns `(<weights=W@SERVER, data={<x=X[?,...],y=int32[?]>*}@CLIENTS> ->
  <accuracy=float32, loss=float32, confusion=int32[K,K]>@SERVER)`.

  The examples are the server's. They are dealt into shares that stand in the places of clients,
  which are computed at the same time; each is as `client_data.server_dataset` makes it. Batch norm
  uses the averaged moving statistics. The loss is plain cross-entropy. In row i and column j of the
  confusion matrix is how many examples of class i are taken for j. Without examples all is zero.

  Args:
    model: The model whose weights are evaluated.
  """
  share_type = client_data.server_data_type(model.data_type)

  @tff.tensorflow.computation(model.weights_type, share_type)
  def evaluate(weights, data):
    network = keras_model.build_zeros(model)

    @tf.function(autograph=False)
    def run(weights, data):
      keras_model.assign(network, weights)
      examples = data.get_single_element()
      num_examples = tf.shape(examples['y'])[0]

      def add_batch(i, totals):
        correct, loss, confusion = totals
        start = i * _BATCH_SIZE
        labels = examples['y'][start : start + _BATCH_SIZE]
        x = images.read(examples['x'][start : start + _BATCH_SIZE], model.input_shape)
        logits = keras_model.evaluated_logits(model, network(x, training=False))
        guesses = tf.argmax(logits, axis=1, output_type=tf.int32)
        hits = tf.equal(guesses, labels)
        correct += tf.reduce_sum(tf.cast(hits, tf.float32))
        loss += losses.cross_entropy(logits, labels) * tf.cast(tf.shape(labels)[0], tf.float32)
        # Another matrix of one: for labels that are no class, `tf.math` has an assertion.
        confusion += tf.matmul(
            tf.one_hot(labels, model.num_classes), tf.one_hot(guesses, model.num_classes),
            transpose_a=True,
        )
        return correct, loss, confusion

      num_batches = (num_examples + _BATCH_SIZE - 1) // _BATCH_SIZE
      none = tf.zeros([model.num_classes, model.num_classes])
      correct, loss, confusion = loops.repeat(
          num_batches, add_batch, (tf.constant(0.0), tf.constant(0.0), none)
      )
      return collections.OrderedDict(
          examples=tf.cast(num_examples, tf.float32),
          correct=correct,
          loss=loss,
          confusion=tf.cast(confusion, tf.int32),
      )

    return run(weights, data)

  @tff.tensorflow.computation(evaluate.type_signature.result)
  def in_all(total):
    return collections.OrderedDict(
        accuracy=tf.math.divide_no_nan(total['correct'], total['examples']),
        loss=tf.math.divide_no_nan(total['loss'], total['examples']),
        confusion=total['confusion'],
    )

  @tff.federated_computation(
      tff.FederatedType(model.weights_type, tff.SERVER),
      tff.FederatedType(share_type, tff.CLIENTS),
  )
  def evaluation(weights, data):
    found = tff.federated_map(evaluate, (tff.federated_broadcast(weights), data))
    return tff.federated_map(in_all, tff.federated_sum(found))

  return evaluation


def build_evaluator(
    evaluation: tff.Computation, examples: types.Examples
) -> Callable[[Any], Mapping[str, Any]]:
  """Returns what evaluates model weights on all of `examples`, in parts that TFF can carry.

  Its results are those of `build_evaluation`, `confusion` as int64.

  Args:
    evaluation: From `build_evaluation`.
    examples: At least one.
  """
  size = max(1, _MAX_CHUNK_BYTES // max(1, examples.x[:1].nbytes))
  chunks = [_part(examples, i, size) for i in range(0, len(examples.y), size)]
  dealt = [_deal(chunk) for chunk in chunks]

  def evaluate(weights):
    results = [evaluation(weights, shares) for shares in dealt]
    of_all = [len(chunk.y) / len(examples.y) for chunk in chunks]
    means = {
        name: float(np.dot(of_all, [float(result[name]) for result in results]))
        for name in MEASURES
    }
    return {**means, 'confusion': sum(np.asarray(r['confusion'], np.int64) for r in results)}

  return evaluate


def _part(examples, start, size):
  return types.Examples(examples.x[start : start + size], examples.y[start : start + size])


def _deal(examples):
  """The shares, of equal size but for one example."""
  fitting = _MAX_CHUNK_BYTES // _SHARES_OF_CHUNK // max(1, examples.x[:1].nbytes)
  number = -(-len(examples.y) // max(1, min(_SHARE, fitting)))
  return [
      client_data.server_dataset(x, y)
      for x, y in zip(
          np.array_split(examples.x, number), np.array_split(examples.y, number), strict=True
      )
  ]


def build_evaluators(
    model: keras_model.KerasModel, sets: Mapping[str, types.Examples]
) -> dict[str, Callable[[Sequence[tuple[Any, Any]]], Mapping[str, Any]]]:
  """Returns by name what evaluates models on a set: from pairs of model and weights to the mean.

  Confusion matrices are added.

  Args:
    model: The task's, which weights are of whose model is None.
    sets: Examples by name.
  """
  # With the model, which has its id alone as long as it lives.
  own = build_evaluation(model)
  computations = {id(known): (known, own) for known in (None, model)}

  def build(examples):
    evaluators = {}

    def evaluator(other):
      key = id(other)
      if key not in computations:
        computations[key] = other, build_evaluation(other)
      if key not in evaluators:
        evaluators[key] = build_evaluator(computations[key][1], examples)
      return evaluators[key]

    def evaluate(models):
      results = [evaluator(other)(weights) for other, weights in models]
      means = {name: float(np.mean([result[name] for result in results])) for name in MEASURES}
      return {**means, 'confusion': sum(result['confusion'] for result in results)}

    return evaluate

  return {name: build(examples) for name, examples in sets.items()}
