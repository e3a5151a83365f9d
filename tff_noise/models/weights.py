"""Initial weights from a file: a Keras H5 weights file or a TensorFlow checkpoint.

Every layer but the classification head has to fit: a model of which half starts from noise because
a name was different would train, badly, without a word.
"""

import re
from typing import NamedTuple

import h5py
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.core.protobuf import trackable_object_graph_pb2

from tff_noise import types
from tff_noise import weights_file
from tff_noise.models import keras_model

_HEAD = 'logits'

# Layer name to the arrays of the layer, in the order of `tf.keras.layers.Layer.weights`.
_Arrays = dict[str, list[np.ndarray]]


class LoadedWeights(NamedTuple):
  """Initial weights of which some come from a file.

  Attributes:
    weights: `tff.learning.models.ModelWeights` of np.ndarray, of `KerasModel.weights_type`.
    num_layers: How many layers came from the file, positive.
  """

  weights: tff.learning.models.ModelWeights
  num_layers: int


def load(model: keras_model.KerasModel, path: str, seed: int) -> LoadedWeights:
  """Returns the initial weights of `model`, those the file holds being the file's.

  Args:
    model: The model. Of several networks each gets what the file holds; but those that start from
      a draw of their own keep their own heads, or they would be one network several times.
    path: A Keras H5 file (of `save_weights` or `save`, or a published `keras.applications` file
      without top), or the prefix of a checkpoint (of `tf.train.Checkpoint(model=...)` or
      `save_weights`). Layers are found by name; in a `.weights.h5` file, which has no names, as
      the n-th of their class. Variables beside a network may be missing.
    seed: Of the head where the file has none, or one of other classes: as
      `keras_model.build_initial_weights` gives it.

  Raises:
    types.UsageError: If there is no such file, or it is of another kind, or a layer other than the
      head differs from the model's in name or shape, or is a model itself.
  """
  network = keras_model.build_seeded(model, seed)
  num_layers = 0
  for part, draw in zip(keras_model.networks_of(model, network), model.draws or ('',), strict=True):
    num_layers += _load(part, path, skipped=(_HEAD,) if draw else ())
  return LoadedWeights(
      tf.nest.map_structure(lambda value: value.numpy(), keras_model.read(network)), num_layers
  )


def _load(network, path, skipped):
  """Assigns what a file holds to one network; returns how many layers it was."""
  layers = {layer.name: layer for layer in network.layers if layer.weights}
  nested = [name for name, layer in layers.items() if isinstance(layer, tf.keras.Model)]
  if nested:
    # Each kind of file has the weights within in an order of its own.
    raise types.UsageError(
        f'weights file {path} cannot be read into {nested[0]}, which is a model within the model: '
        'call its layers one by one where the model is made'
    )
  found = _read(path, layers)
  _check_fit(path, layers, found)
  loaded = [
      name for name in layers
      if name not in skipped and _shapes(layers[name].weights) == _shapes(found.get(name))
  ]
  for name in loaded:
    for variable, value in zip(layers[name].weights, found[name], strict=True):
      variable.assign(value.astype(variable.dtype.as_numpy_dtype))
  return len(loaded)


def _shapes(arrays):
  return None if arrays is None else [tuple(a.shape) for a in arrays]


def _check_fit(path, layers, found):
  """Refuses a file that is not of this architecture, whatever its head."""
  if not found.keys() & layers.keys() - {_HEAD}:
    raise types.UsageError(
        f'no layer of weights file {path} is in the model: it has {_some(found)}, the model '
        f'{_some(layers)}; give a file of the same architecture'
    )
  for name in [*layers, *found]:
    ours = _shapes(layers[name].weights) if name in layers else None
    theirs = _shapes(found.get(name))
    if name == keras_model.PROBE and theirs is None:
      continue  # It stays as it is.
    if ours != theirs and not (name == _HEAD and _differs_in_classes_only(ours, theirs)):
      raise types.UsageError(
          f'weights file {path} does not fit the model: layer {name} {_describe(theirs)} in the '
          f'file and {_describe(ours)} in the model; give a file of the same architecture and '
          f'normalisation (only the head, {_HEAD}, may differ)'
      )


def _differs_in_classes_only(ours, theirs):
  return ours is not None and (
      theirs is None or [s[:-1] for s in ours] == [s[:-1] for s in theirs]
  )


def _describe(shapes):
  return 'is not' if shapes is None else 'has shapes ' + ', '.join(str(list(s)) for s in shapes)


def _some(names):
  return ', '.join([*list(names)[:3], '...'][: len(names)]) or 'none'


def _read(path, layers) -> _Arrays:
  """Reads a file of any kind; layers without weights are left out."""
  weights_file.require(path)
  checkpoint = weights_file.is_checkpoint(path)
  try:
    found = _read_checkpoint(path, layers) if checkpoint else _read_h5(path, layers)
  # KeyError: what an H5 file of other contents lacks. ValueError: what a protocol buffer raises.
  except (OSError, KeyError, ValueError, tf.errors.OpError) as e:
    raise types.UsageError(
        f'{path} is no weights file ({_one_line(e)}): give a Keras H5 file or the prefix of a '
        'TensorFlow checkpoint (its path without .index)'
    ) from e
  return {name: arrays for name, arrays in found.items() if arrays}


def _one_line(error):
  return ' '.join(str(error).split())[:200]


def _read_h5(path, layers):
  with h5py.File(path) as file:
    for top in ('_layer_checkpoint_dependencies', 'layers'):  # Of Keras 2.14, and of Keras 3.
      if top in file:
        return _read_h5_without_names(file[top], layers)
    group = file['model_weights'] if 'model_weights' in file else file
    if 'layer_names' not in group.attrs:
      raise KeyError('an HDF5 file without Keras layers')
    return {
        name: [np.asarray(group[name][weight]) for weight in _texts(group[name], 'weight_names')]
        for name in _texts(group, 'layer_names')
    }


def _texts(group, attribute):
  """The strings of an attribute, which Keras wrote as bytes in its earlier versions."""
  return [t.decode() if isinstance(t, bytes) else t for t in group.attrs[attribute]]


def _read_h5_without_names(group, layers):
  """Keras 3's format: layers are counted within their class, from `conv2d`, `conv2d_1` on."""
  names = {}
  counts = {}
  for layer in layers.values():
    kind = _snake_case(type(layer).__name__)
    count = counts[kind] = counts.get(kind, -1) + 1
    names[f'{kind}_{count}' if count else kind] = layer.name
  variables = {key: entry.get('vars', {}) for key, entry in group.items()}
  return {
      names.get(key, key): [np.asarray(own[str(i)]) for i in range(len(own))]
      for key, own in variables.items()
  }


def _snake_case(name):
  """As Keras does, which calls a Conv2D conv2d."""
  name = re.sub('(.)([A-Z][a-z]+)', r'\1_\2', name)
  return re.sub('([a-z])([A-Z])', r'\1_\2', name).lower()


def _read_checkpoint(prefix, layers):
  reader = tf.train.load_checkpoint(prefix)
  if not reader.has_tensor('_CHECKPOINTABLE_OBJECT_GRAPH'):
    raise ValueError('a checkpoint of TensorFlow 1')
  graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(
      reader.get_tensor('_CHECKPOINTABLE_OBJECT_GRAPH')
  )
  found = {}
  for node in graph.nodes:
    for entry in node.attributes:
      # Neither the optimizer's nor the checkpoint's own counter.
      if re.search(r'(^|/)layer(_with_weights)?-\d+/', entry.checkpoint_key) and (
          '.OPTIMIZER_SLOT' not in entry.checkpoint_key
      ):
        layer, _, variable = entry.full_name.rpartition('/')
        found.setdefault(layer, {})[variable] = reader.get_tensor(entry.checkpoint_key)
  return {name: _ordered(values, layers.get(name)) for name, values in found.items()}


def _ordered(values, layer):
  """The arrays of a layer in the model's order, those that the model does not know last."""
  order = [] if layer is None else [_variable_name(v) for v in layer.weights]
  order = [v for v in order if v in values] + sorted(values.keys() - {*order})
  return [values[v] for v in order]


def _variable_name(variable):
  return variable.name.rpartition('/')[2].partition(':')[0]
