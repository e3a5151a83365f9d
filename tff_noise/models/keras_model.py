"""The one path from a Keras model to TFF.

TFF's `functional_model_from_keras` refuses batch norm and never updates non-trainable weights. Here
the model is rebuilt from its Keras config inside each computation, its variables are assigned
from the broadcast weights and updated in place, and *all* weights, moving statistics included,
come back. Group norm and batch norm models take the same path, and so do several networks that are
trained together (`several`) and a second head (`with_probe`): they are one structure of weights,
about which servers, optimizers, DP, secure sums and checkpoints need not know.

A Keras model that was built before but never called is invalidated when another is built inside
a TFF computation (Keras 2.14 forgets the graph it belongs to): keep the `KerasModel` instead.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_noise import rng
from tff_noise.data import client_data

# Which prediction of several networks is evaluated: the first one's, the mean of their
# probabilities, or the softmax of the sum of their logits.
COMBINATIONS = ('first', 'mean_probability', 'sum_logits')

# The head of `with_probe`.
PROBE = 'probe'
_NETWORK = 'network_'
# What makes probabilities of logits.
_OF_PROBABILITIES = (tf.keras.activations.softmax, tf.keras.activations.sigmoid)


class KerasModel(NamedTuple):
  """A Keras model as TFF needs it: a recipe, and the types of what goes in and out.

  Attributes:
    config: The model's Keras config; outputs are `[logits, features]`, of each network in turn.
    num_classes: K, the last dimension of the logits.
    num_features: d, the last dimension of the features.
    weights_type: TFF type of `tff.learning.models.ModelWeights`.
    data_type: TFF type of one client's data, see `client_data.client_dataset`.
    input_shape: Of one example as the model takes it.
    combination: Of several networks one of `COMBINATIONS`.
    draws: Of several networks, what tells their draws of initial weights apart: two with the same
      text start equal, and one with '' as the network would alone.
  """

  config: dict[str, Any]
  num_classes: int
  num_features: int
  weights_type: tff.StructWithPythonType
  data_type: tff.SequenceType
  input_shape: tuple[int, ...]
  combination: str = 'first'
  draws: tuple[str, ...] = ()


def from_keras(
    model: tf.keras.Model, *, image_files: bool = False, combination: str = 'first'
) -> KerasModel:
  """Describes `model`, which maps a batch to `[logits, features]`.

  Args:
    model: A functional Keras model with one input and two outputs, float `[b, K]` and `[b, d]`, or
      two for each of several networks, see `several`. Custom layers must be registered with
      `tf.keras.saving.register_keras_serializable`.
    image_files: Whether clients hold paths of image files, which are read in their computation.
    combination: Which prediction of several networks is evaluated, see `COMBINATIONS`.

  Raises:
    TypeError: If it is no Keras model.
    ValueError: If the model has not one input and outputs of these ranks, draws random numbers by
      itself, or has variables that are no floating-point numbers.
  """
  if not isinstance(model, tf.keras.Model):
    raise TypeError(f'Expected a tf.keras.Model, found {type(model).__name__}')
  if isinstance(model, tf.keras.Sequential) and model.inputs is None:
    raise ValueError(
        'The Sequential has no tf.keras.Input, so its weights are not known, and one output: '
        'build it as tf.keras.Model(pixels, [logits, features]).'
    )
  if model.inputs is None:
    raise ValueError(
        'Expected a functional Keras model, found a subclassed one, whose graph is not known: '
        'build it as tf.keras.Model(pixels, [logits, features]); what is special about it can be a '
        'layer.'
    )
  _require_determinism(model)
  _require_no_penalty(model)
  _require_floats(model)
  if len(model.inputs) != 1 or not model.outputs or len(model.outputs) % 2:
    raise ValueError(
        'Expected a model with one input and the outputs [logits, features], found '
        f'{len(model.inputs)} inputs and {len(model.outputs)} outputs.'
    )
  logits, features = model.outputs[:2]
  if len(logits.shape) != 2 or len(features.shape) != 2:
    raise ValueError(
        f'Expected logits [b, K] and features [b, d], found {logits.shape} and {features.shape}.'
    )
  _require_logits(logits)
  pixels = model.inputs[0]
  input_shape = tuple(pixels.shape[1:])
  if image_files:
    data_type = client_data.client_data_type(np.str_, ())
  else:
    data_type = client_data.client_data_type(pixels.dtype.as_numpy_dtype, input_shape)
  return KerasModel(
      model.get_config(),
      logits.shape[-1],
      features.shape[-1],
      tff.to_type(
          tff.learning.models.ModelWeights(
              trainable=[_variable_type(v) for v in model.trainable_variables],
              non_trainable=[_variable_type(v) for v in model.non_trainable_variables],
          )
      ),
      data_type,
      input_shape,
      combination,
  )


def _require_logits(outputs):
  """The loss has the softmax; what only casts may be after one of the model's."""
  while True:
    history = outputs._keras_history
    layer, activation = history.layer, getattr(history.layer, 'activation', None)
    operation = getattr(layer, 'symbol', '')  # Of a function in place of a layer.
    if isinstance(layer, tf.keras.layers.Softmax) or activation in _OF_PROBABILITIES or (
        operation.rpartition('.')[2] in {f.__name__ for f in _OF_PROBABILITIES}
    ):
      raise ValueError(
          f'The layer {layer.name} makes probabilities, and logits are expected: leave its softmax '
          'out, which is in the loss.'
      )
    is_linear = activation is tf.keras.activations.linear
    if operation != 'cast' and not (isinstance(layer, tf.keras.layers.Activation) and is_linear):
      return
    outputs = layer.get_input_at(history.node_index)


def _require_determinism(model):
  """Keras draws by a state of the process: a round done again would not give the same."""
  for layer in model._flatten_layers():
    is_random = isinstance(layer, tf.keras.__internal__.layers.BaseRandomLayer)
    if is_random and getattr(layer, 'rate', getattr(layer, 'stddev', 1)):
      raise ValueError(
          f'The layer {layer.name} ({type(layer).__name__}) draws random numbers of its own, which '
          'are no function of seed, round and client: leave it out. --augmentation, --weight_decay '
          'and --label_smoothing regularise too.'
      )


def _require_no_penalty(model):
  """Losses here are functions of logits: what layers add would be left out of them."""
  for layer in model._flatten_layers():
    kinds = [name for name, value in vars(layer).items() if name.endswith('regularizer') and value]
    if kinds:
      raise ValueError(
          f'The layer {layer.name} has {kinds[0].strip("_")}, which would be left out of the '
          'loss: leave it out. --weight_decay regularises.'
      )
  if model.losses:
    raise ValueError(
        'A layer calls add_loss, which would be left out of the loss: leave it out. --weight_decay '
        'regularises.'
    )


def _require_floats(model):
  for variable in model.variables:
    if not variable.dtype.is_floating:
      raise ValueError(
          f'The variable {variable.name} is {variable.dtype.name}: weights that are averaged have '
          'to be floating-point numbers. (Normalization takes mean= and variance= in place of '
          'adapt(), which counts.)'
      )


def several(
    model: KerasModel, copies: int, combination: str, *, equal: bool = False
) -> KerasModel:
  """Returns a model of several networks of one architecture, each with initial weights of its own.

  Its weights are those of the networks, one after another; steps see a list of logits and one of
  features. The first network starts as it would alone.

  Args:
    model: Of one network.
    copies: How many, at least 1.
    combination: What is evaluated, see `COMBINATIONS`.
    equal: Whether all networks start with the same weights.

  Raises:
    ValueError: If there is no such combination.
  """
  if combination not in COMBINATIONS:
    raise ValueError(f'combination must be one of {", ".join(COMBINATIONS)}, got {combination!r}')
  network = build_zeros(model)
  pixels = tf.keras.Input(network.inputs[0].shape[1:], dtype=network.inputs[0].dtype)
  outputs = []
  for i in range(copies):
    config = {**model.config, 'name': f'{_NETWORK}{i}'}
    outputs += tf.keras.Model.from_config(config)(pixels)
  together = from_keras(tf.keras.Model(pixels, outputs), combination=combination)
  return together._replace(
      data_type=model.data_type,
      draws=tuple('' if equal or i == 0 else f'/{_NETWORK}{i}' for i in range(copies)),
  )


def networks_of(model: KerasModel, network: tf.keras.Model) -> list[tf.keras.Model]:
  """Returns the networks that `network`, built from `model`, is made of: itself if it is one."""
  return networks_in(network, len(model.draws))


def networks_in(network: tf.keras.Model, count: int) -> list[tf.keras.Model]:
  """Returns the `count` networks of which `several` made one; itself for 0."""
  return [network.get_layer(f'{_NETWORK}{i}') for i in range(count)] or [network]


def with_probe(model: KerasModel) -> KerasModel:
  """Returns the model with a second, linear head on its features, which does not train them.

  Steps see logits as the list `[z, u]` and features twice; u, float32 `[b, K]`, starts at 0. What
  is evaluated stays z.

  Args:
    model: Of one network.
  """
  network = build_zeros(model)
  logits, features = network.outputs
  # One layer, after all others: initial weights are drawn by a layer's place among them.
  probe = Probe(model.num_classes, kernel_initializer='zeros', dtype='float32', name=PROBE)
  probed = tf.keras.Model(network.inputs, [logits, features, probe(features), features])
  return _extended(model, probed)


@tf.keras.saving.register_keras_serializable(package='tff_noise')
class Probe(tf.keras.layers.Dense):
  """A dense layer that hands no gradient back; see `with_probe`."""

  def call(self, inputs):
    return super().call(tf.stop_gradient(inputs))


def _extended(model, network):
  """Describes `network`, `build_zeros` of the model with something beside it."""
  # The model's own initialisers, which `build_zeros` took away, are in its config.
  config = _with_layers_of(network.get_config(), model.config)
  described = from_keras(network, combination=model.combination)
  return described._replace(config=config, data_type=model.data_type)


def _with_layers_of(config, original):
  layers = {layer['name']: layer for layer in original['layers']}
  return {
      **config,
      'layers': [
          {**layer, 'config': layers[layer['name']]['config']} if layer['name'] in layers else layer
          for layer in config['layers']
      ],
  }


def outputs_of(outputs: list[tf.Tensor]) -> tuple[Any, Any]:
  """Returns logits and features of what a network gave: tensors, of several networks lists."""
  if len(outputs) == 2:
    return outputs[0], outputs[1]
  return list(outputs[::2]), list(outputs[1::2])


def evaluated_logits(model: KerasModel, outputs: list[tf.Tensor]) -> tf.Tensor:
  """Returns float32 `[b, K]`, what a model is evaluated by, from all outputs of its network."""
  return combined_logits(model, outputs[::2])


def combined_logits(model: KerasModel, logits: list[tf.Tensor]) -> tf.Tensor:
  """Returns the same from the logits of each of its networks, see `COMBINATIONS`."""
  if len(logits) == 1 or model.combination == 'first':
    return logits[0]
  if model.combination == 'sum_logits':
    return tf.add_n(logits)
  log_p = tf.stack([tf.nn.log_softmax(z) for z in logits])
  return tf.reduce_logsumexp(log_p, axis=0) - np.log(len(logits))


def _variable_type(variable):
  return (np.dtype(variable.dtype.as_numpy_dtype), tuple(variable.shape))


def _with_initializers(config: Any, replace: Callable[[dict[str, Any], str], Any], path='') -> Any:
  """Returns `config` with every `..._initializer` entry replaced by `replace(entry, path)`."""
  if isinstance(config, dict):
    return {
        key: (
            replace(value, f'{path}/{key}')
            if key.endswith('_initializer') and value is not None
            else _with_initializers(value, replace, f'{path}/{key}')
        )
        for key, value in config.items()
    }
  if isinstance(config, (list, tuple)):
    return type(config)(
        _with_initializers(value, replace, f'{path}/{i}') for i, value in enumerate(config)
    )
  return config


def build_zeros(model: KerasModel) -> tf.keras.Model:
  """Builds the Keras model with zero variables, for weights that are assigned right after.

  Random initialisers would run again in every client's call, for nothing.
  """
  return build_zeros_of(model.config)


def build_zeros_of(config: Mapping[str, Any]) -> tf.keras.Model:
  """Builds the Keras model of a `KerasModel.config` with zero variables."""
  return tf.keras.Model.from_config(config_of_zeros(config))


def config_of_zeros(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a `KerasModel.config` whose initialisers are zeros."""
  zeros = tf.keras.initializers.serialize(tf.keras.initializers.Zeros())
  return _with_initializers(config, lambda *_: zeros)


def build_seeded(model: KerasModel, seed: int) -> tf.keras.Model:
  """Builds the Keras model with each random initialiser seeded from (seed, its place)."""
  # Layer 0 is the input.
  inside = {f'/layers/{i}/config': draw for i, draw in enumerate(model.draws, 1)}

  def seeded(initializer, path):
    if 'seed' not in initializer.get('config', {}):
      return initializer
    for prefix, draw in inside.items():
      if path.startswith(prefix + '/'):
        path = draw + path.removeprefix(prefix)
        break
    value = rng.integer(seed, 'initializer ' + path)
    return {**initializer, 'config': {**initializer['config'], 'seed': value}}

  return tf.keras.Model.from_config(_with_initializers(model.config, seeded))


def assign(model: tf.keras.Model, weights: tff.learning.models.ModelWeights) -> None:
  """Assigns `weights` to the variables of `model`; inside a `tf.function`, which orders effects."""
  tf.nest.map_structure(lambda variable, value: variable.assign(value), _variables(model), weights)


def read(model: tf.keras.Model) -> tff.learning.models.ModelWeights:
  """Returns the values of the model's variables, in the structure of `KerasModel.weights_type`."""
  return tf.nest.map_structure(lambda variable: variable.read_value(), _variables(model))


def _variables(model):
  return tff.learning.models.ModelWeights(
      list(model.trainable_variables), list(model.non_trainable_variables)
  )


def build_initial_weights(model: KerasModel, seed: int) -> tff.Computation:
  """Returns `( -> W)`, the initial weights: a function of `seed` and the architecture alone."""

  @tff.tensorflow.computation
  def initial_weights():
    return read(build_seeded(model, seed))

  return initial_weights
