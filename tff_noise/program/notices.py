"""What a user is told of data of their own that may not be what they meant."""

import numpy as np

from tff_noise import types
from tff_noise.program import effect
from tff_noise.program import run_config

# Inputs of neural networks are about 1; from here on training suffers.
_LARGEST_SCALE = 10
# One in so many examples is set aside for the test.
_TEST_SHARE = 5


def of(config: run_config.RunConfig, dataset: types.Dataset) -> list[str]:
  """Returns sentences, without newlines, for a run that begins.

  Args:
    config: The flags.
    dataset: From `data.load_dataset`.
  """
  found = (
      _of_clients(config, dataset) + _of_noise(config, dataset) + _of_test(dataset)
      + _of_classes(dataset.class_names) + _of_claims(config, dataset)
  )
  return found + (_of_pixels(dataset.train_x) if config.dataset == 'npz' else [])


def _of_clients(config, dataset):
  """Who holds what may be in the data, and by default clients are drawn."""
  if config.dataset != 'npz' or dataset.client is None or config.scene or config.centralised:
    return []
  if config.partition == 'natural' or not dataset.client.any():  # All are of one client.
    return []
  return [
      f'scene: with --partition={config.partition} clients are drawn, and client of --data_dir is '
      'not used; --partition=natural takes it'
  ]


def _of_claims(config, dataset):
  """What the server has of the clients that the data name is in no account of privacy."""
  is_claimed = (
      config.training_labels == 'private' or bool(config.client_dp_noise)
      or config.target_client_epsilon is not None
      or not effect.problem_of(config, 'label_epsilon')
  )
  if config.partition != 'natural' or not is_claimed:
    return []
  own = [] if dataset.test_rows is None else [f'the test set ({len(dataset.test_y)} examples)']
  own += ['what --validation_fraction holds out'] if config.validation_fraction else []
  if not own:
    return []
  return [
      f"privacy: {' and '.join(own)} is of clients of the data, with their labels: the server has "
      'it, and no epsilon counts it; give x_test and y_test of others, or --validation_dir'
  ]


def _of_classes(names):
  """Folders are in the order of their names as texts, where 10 is before 2."""
  if not all(name.isdecimal() for name in names):
    return []
  at = next((i for i, name in enumerate(names) if int(name) != i), None)
  if at is None:
    return []
  return [
      f'data: class {at} is called {names[at]}: where classes are numbered, as in rows of '
      '--noise_matrix, it is by their order, and class_names in config.json has it'
  ]


def _of_test(dataset):
  """What is set aside of clients that keep an example each may be little, and of few of them."""
  if dataset.test_rows is None or dataset.client is None:
    return []
  tested, trained = len(dataset.test_y), len(dataset.train_y)
  if tested >= (tested + trained) // _TEST_SHARE:
    return []
  return [
      f'data: the test set is {tested} of {tested + trained} examples, and none of a client that '
      'holds one: give x_test and y_test if that is too little to judge by'
  ]


def _of_noise(config, dataset):
  """Labels of one's own may be wrong as they are; a scene has its own."""
  if config.scene is not None or config.noise == 'human':
    return []
  if config.dataset == 'npz' and dataset.human_y is not None:
    return [
        f'scene: with --noise={config.noise} labels are made of clean_y of --data_dir, and its y, '
        'what people called them, is not used; --noise=human takes y'
    ]
  if config.noise == 'none' or config.dataset not in ('npz', 'image_folder'):
    return []
  return [
      f'scene: --noise={config.noise} makes labels of --data_dir wrong, on top of what they are; '
      '--noise=none leaves them'
  ]


def _of_pixels(x):
  """Numbers in an order or of a scale that models do not expect."""
  if x.ndim == 4 and x.shape[1] in (1, 3, 4) and x.shape[3] > 4:
    return [
        f'data: x is read as images of {x.shape[1]} by {x.shape[2]} with {x.shape[3]} channels: if '
        'channels come first, give x.transpose(0, 2, 3, 1)'
    ]
  return _of_scale(x)


def _of_scale(x):
  """Numbers that nobody brought to a common scale; models take bytes to go to 255."""
  if x.dtype.kind == 'u' and x.max() <= 1:
    return [
        f'data: no pixel of x is above {x.max()}, where bytes go to 255: if they were fractions '
        'before, multiply by 255 and convert then'
    ]
  if x.dtype.kind != 'f':
    return []
  rows = x.reshape(len(x), -1)
  scale = np.sqrt(np.einsum('ij,ij->j', rows, rows, dtype=np.float64) / len(rows))
  if scale.max() <= _LARGEST_SCALE:
    return []
  return [
      f'data: feature {scale.argmax()} has a root mean square of {scale.max():.3g}: bring each to '
      'mean 0 and standard deviation 1 (of the training set), or use a --model that does; models '
      'learn slowly otherwise, or nothing'
  ]
