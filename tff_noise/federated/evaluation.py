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

# Larger ones leave the processor's caches: 500 take a third longer on a CNN.
_BATCH_SIZE = 128

# TFF carries at most 100 MiB in one argument.
_MAX_CHUNK_BYTES = 64 * 2**20


def build_evaluation(model: keras_model.KerasModel) -> tff.Computation:
  """Returns `(<weights=W@SERVER, data=D*@SERVER> -> <accuracy=float32, loss=float32>@SERVER)`.

  `data` is one element that holds all examples, as `client_data.client_dataset` makes it; its
  `client` is ignored. Batch norm uses the averaged moving statistics. The loss is plain
  cross-entropy. An empty set gives 0 and 0.

  Args:
    model: The model whose weights are evaluated.
  """

  @tff.tensorflow.computation(model.weights_type, model.data_type)
  def evaluate(weights, data):
    network = keras_model.build_zeros(model)

    @tf.function(autograph=False)
    def run(weights, data):
      keras_model.assign(network, weights)
      examples = data.get_single_element()
      num_examples = tf.shape(examples['y'])[0]

      def add_batch(i, totals):
        correct, loss = totals
        start = i * _BATCH_SIZE
        labels = examples['y'][start : start + _BATCH_SIZE]
        x = images.read(examples['x'][start : start + _BATCH_SIZE], model.input_shape)
        logits = keras_model.evaluated_logits(model, network(x, training=False))
        hits = tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), labels)
        correct += tf.reduce_sum(tf.cast(hits, tf.float32))
        loss += losses.cross_entropy(logits, labels) * tf.cast(tf.shape(labels)[0], tf.float32)
        return correct, loss

      num_batches = (num_examples + _BATCH_SIZE - 1) // _BATCH_SIZE
      correct, loss = loops.repeat(num_batches, add_batch, (tf.constant(0.0), tf.constant(0.0)))
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


def build_evaluator(
    evaluation: tff.Computation, examples: types.Examples
) -> Callable[[Any], Mapping[str, float]]:
  """Returns what evaluates model weights on all of `examples`, in parts that TFF can carry.

  Args:
    evaluation: From `build_evaluation`.
    examples: At least one.
  """
  size = max(1, _MAX_CHUNK_BYTES // max(1, examples.x[:1].nbytes))
  chunks = [
      (
          client_data.client_dataset(examples.x[i : i + size], examples.y[i : i + size], 0),
          len(examples.y[i : i + size]),
      )
      for i in range(0, len(examples.y), size)
  ]

  def evaluate(weights):
    results = [evaluation(weights, data) for data, _ in chunks]
    share = [count / len(examples.y) for _, count in chunks]
    return {
        name: float(np.dot(share, [float(result[name]) for result in results]))
        for name in ('accuracy', 'loss')
    }

  return evaluate


def build_evaluators(
    model: keras_model.KerasModel, sets: Mapping[str, types.Examples]
) -> dict[str, Callable[[Sequence[tuple[Any, Any]]], Mapping[str, float]]]:
  """Returns by name what evaluates models on a set: from pairs of model and weights to the mean.

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
      return {
          name: float(np.mean([result[name] for result in results]))
          for name in ('accuracy', 'loss')
      }

    return evaluate

  return {name: build(examples) for name, examples in sets.items()}
