"""Trained models for those who have not this package: Keras's own layers, probabilities out."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tff_noise import types
from tff_noise.models import group_norm
from tff_noise.models import keras_model


class Trained(NamedTuple):
  """A model with its weights, as files have it.

  Attributes:
    config: See `keras_model.KerasModel`, as are `combination` and `draws`.
    combination: What is evaluated of several networks.
    draws: One entry for each of several networks; empty for one.
    trainable: The values of its variables, in order.
    non_trainable: Of the others.
  """

  config: dict[str, Any]
  combination: str
  draws: tuple[str, ...]
  trainable: Sequence[np.ndarray]
  non_trainable: Sequence[np.ndarray]


def of(model: keras_model.KerasModel, weights: Any) -> Trained:
  """Returns a model with weights of the structure `model.weights_type`."""
  trainable, non_trainable = ([np.asarray(w) for w in part] for part in (
      weights.trainable, weights.non_trainable
  ))
  return Trained(model.config, model.combination, model.draws, trainable, non_trainable)


def build(trained: Trained) -> tf.keras.Model:
  """Returns the Keras model from raw pixels `[b, ...]` to probabilities, float32 `[b, K]`.

  It has Keras's own layers where there are such: the group norm of this package becomes Keras's,
  and what lies beside a network for its training is left out. Only the vision transformer has
  layers of its own, which `tf.keras.models.load_model` does not know without this package; as a
  SavedModel it needs none.

  Raises:
    types.UsageError: If it has parts of the user's own that are not registered with Keras.
  """
  try:
    network = keras_model.build_zeros_of(trained.config)
  except Exception as error:  # Keras raises whatever comes of taking a name for a layer.
    if not has_own_parts(trained):
      raise
    raise types.UsageError(
        'the model cannot be built from its configuration, for it has layers or functions of your '
        'own that are not registered with Keras: register them, or load the SavedModel of the run, '
        'which needs none of them'
    ) from error
  for variables, values in (
      (network.trainable_variables, trained.trainable),
      (network.non_trainable_variables, trained.non_trainable),
  ):
    for variable, value in zip(variables, values, strict=True):
      variable.assign(value)
  parts = keras_model.networks_in(network, len(trained.draws))
  pixels = tf.keras.Input(
      network.inputs[0].shape[1:], dtype=network.inputs[0].dtype, name='pixels'
  )
  logits = [_plain(part, i)(pixels) for i, part in enumerate(parts)]
  return tf.keras.Model(pixels, _probabilities(trained.combination, logits))


def _plain(network, number):
  """The network from pixels to logits, with Keras's own layers."""
  clone = tf.keras.models.clone_model(network, clone_function=_plain_layer)
  for layer, original in zip(clone.layers, network.layers, strict=True):
    layer.set_weights(original.get_weights())
  return tf.keras.Model(clone.inputs, clone.outputs[0], name=f'network_{number}')


def _plain_layer(layer):
  config = layer.get_config()
  if isinstance(layer, group_norm.GroupNormalization):
    return tf.keras.layers.GroupNormalization.from_config(config)
  return type(layer).from_config(config)


def _probabilities(combination, logits):
  def softmax(values):
    return tf.keras.layers.Softmax(dtype='float32')(values)

  if len(logits) == 1 or combination == 'first':
    return softmax(logits[0])
  if combination == 'sum_logits':
    return softmax(tf.keras.layers.Add(dtype='float32')(logits))
  return tf.keras.layers.Average(dtype='float32')([softmax(z) for z in logits])


def is_stock(model: tf.keras.Model) -> bool:
  """Returns whether all layers and functions are Keras's own."""
  return not any(_parts_beside(('keras',), model.get_config()))


def has_own_parts(trained: Trained) -> bool:
  """Returns whether it has layers or functions that are neither Keras's nor of this package."""
  return any(_parts_beside(('keras', 'tff_noise'), keras_model.config_of_zeros(trained.config)))


def input_of(trained: Trained) -> tuple[tuple[int | None, ...], str]:
  """Returns the shape of an example, and its dtype, that the model takes."""
  first = trained.config['layers'][0]['config']
  return tuple(first['batch_input_shape'][1:]), first['dtype']


def _parts_beside(packages, config) -> Iterator[str]:
  """Names of what is of no such package, anywhere in a configuration."""
  if isinstance(config, dict):
    name, module = config.get('class_name'), config.get('module')
    # Keras's own functions go by their name alone.
    if name == 'function' or (name and module and module.partition('.')[0] not in packages):
      yield name
    config = list(config.values())
  if isinstance(config, list | tuple):
    for part in config:
      yield from _parts_beside(packages, part)
