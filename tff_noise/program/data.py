"""From the configuration to the data: the data set and the scene, without TensorFlow."""

import os

import numpy as np

from tff_noise import rng
from tff_noise import types
from tff_noise.data import image_folder
from tff_noise.data import natural_clients
from tff_noise.data import scene as scene_lib
from tff_noise.data import sources
from tff_noise.program import run_config

# Which examples a subset has must not change with the experiment's seed, as the test set does not.
_SUBSET_SEED = 0


def load_dataset(config: run_config.RunConfig) -> types.Dataset:
  """Reads the data set and the server's own validation images, and checks the flags against it.

  Raises:
    types.UsageError: If files are missing or damaged, or flags do not suit the data.
  """
  dataset = sources.load(config.data_spec())
  if config.subset:
    dataset = _subset(dataset, config.subset)
  check_flags(config, dataset)
  if config.public_dataset is not None:
    dataset = dataset._replace(public=_public_images(config, dataset))
  if config.validation_dir is None:
    return dataset
  if len(dataset.image_shape) != 3:
    raise types.UsageError(
        '--validation_dir is a folder of images, and the examples of '
        f'--dataset={config.dataset} are features: use --validation_fraction'
    )
  folder = os.path.expanduser(config.validation_dir)
  examples = image_folder.read_labelled(folder, dataset.class_names)
  if dataset.train_x.dtype.kind != 'S':
    examples = examples._replace(x=image_folder.read_pixels(
        examples.x, dataset.image_shape, dataset.largest_pixel
    ))
  return dataset._replace(validation=examples)


def check_flags(config: run_config.RunConfig, dataset: types.Dataset) -> None:
  """Raises `UsageError` if flags do not suit the data, which may have been read for other flags."""
  if dataset.train_x.dtype.kind == 'f' and (config.image_size or config.augmentation != 'none'):
    raise types.UsageError(
        '--image_size and --augmentation are for images, and the data are features: leave them out'
    )
  config.check_with_data(len(dataset.train_y), dataset.num_classes)


def _subset(dataset, size):
  """The data set with so many of its training examples, the same for every seed."""
  count = len(dataset.train_y)
  if size > count:
    raise types.UsageError(f'--subset must be at most the {count} training examples, got {size}')
  ids = np.sort(rng.generator(_SUBSET_SEED, 'subset').permutation(count)[:size])
  labels = scene_lib.best_known(dataset)
  absent = np.setdiff1d(labels[labels != types.UNKNOWN], labels[ids])
  if absent.size:
    raise types.UsageError(
        f'--subset={size} has no example of {len(absent)} of the {dataset.num_classes} classes: '
        'nobody could learn them; give more'
    )

  def part(values):
    return None if values is None else values[ids]

  client, names = None, ()
  if dataset.client is not None:
    client, names = natural_clients.part(dataset.client[ids], dataset.client_names)
  return dataset._replace(
      train_x=dataset.train_x[ids], train_y=dataset.train_y[ids], human_y=part(dataset.human_y),
      client=client, client_names=names,
      train_rows=ids if dataset.train_rows is None else dataset.train_rows[ids],
  )


def _public_images(config, dataset):
  """The images of another data set, some of them drawn at random; its labels are not looked at."""
  folder = config.public_dir or config.data_dir
  spec = sources.DataSpec(config.public_dataset, folder, '', config.image_size)
  try:
    other = sources.load_images(spec)
  except types.UsageError as error:
    # It names the flags of the clients' data.
    text = str(error).replace('--dataset', '--public_dataset')
    raise types.UsageError(text.replace('--data_dir', '--public_dir')) from error
  same = (other.image_shape, other.train_x.dtype.kind, other.largest_pixel) == (
      dataset.image_shape, dataset.train_x.dtype.kind, dataset.largest_pixel
  )
  if not same or dataset.train_x.dtype.kind == 'S':
    raise types.UsageError(
        f'--public_dataset={config.public_dataset} has images of {_kind(other)}, those of '
        f'--dataset={config.dataset} are {_kind(dataset)}: public images have to be pixels of the '
        'same shape and scale'
    )
  draw = rng.generator(config.seed, 'public images')
  chosen = draw.permutation(len(other.train_x))[: config.public_examples]
  return other.train_x[np.sort(chosen)]


def _kind(dataset):
  return f'{dataset.image_shape}, 0 to {dataset.largest_pixel}'


def load_scene(
    config: run_config.RunConfig, dataset: types.Dataset, saved: str | None
) -> scene_lib.Scene:
  """Returns the scene of `saved`, or of `--scene`, or a new one.

  Args:
    config: The configuration.
    dataset: From `load_dataset`.
    saved: Path of the run's own scene, if it has one already.

  Raises:
    types.UsageError: If it cannot be drawn or read, or a client's data cannot be carried.
  """
  path = saved or config.scene
  if path is not None:
    scene = scene_lib.load(path, dataset)
  else:
    scene = scene_lib.build(dataset, config.scene_spec(), config.seed)
  if config.validation_dir is not None and scene.server_size and not saved:
    raise types.UsageError(
        f'--validation_dir cannot be given with --scene={path}, in which the server holds out '
        f'{scene.server_size} examples: both say what it validates on; leave one of them out'
    )
  if config.centralised:
    scene = scene_lib.centralised(scene)
  config.check_clients(scene.num_clients)
  # Its mistakes are told before TensorFlow is loaded.
  config.availability(scene.num_clients, scene.client_names)
  noisy = config.client_dp_noise or config.target_client_epsilon is not None
  if scene.is_withheld is not None and noisy:
    raise types.UsageError(
        '--client_validation_fraction, or a --scene that was drawn with it, cannot be given with '
        'client DP, whose noise protects updates alone: give the server a set of its own '
        '(--validation_dir)'
    )
  _check_client_bytes(config, dataset, scene)
  return scene


def require_validation(
    config: run_config.RunConfig, dataset: types.Dataset, scene: scene_lib.Scene
) -> None:
  """Raises `UsageError` if training shall stop early by examples that there are not."""
  none = scene_lib.validation(dataset, scene) is None and scene.is_withheld is None
  if config.early_stopping and none:
    raise types.UsageError(
        '--early_stopping needs a validation set: give --client_validation_fraction, or a clean '
        'one by --validation_fraction or --validation_dir'
    )


def _check_client_bytes(config, dataset, scene):
  """Raises `UsageError` where TFF could not carry a client's pixels."""
  # A client trains and validates in computations of their own.
  withheld = [len(ids) for ids in scene_lib.withheld_of(scene)]
  sizes = np.maximum(scene.sizes, withheld or 0)
  largest = int(np.argmax(sizes))
  size = int(sizes[largest]) * dataset.train_x[:1].nbytes
  if size > types.MAX_PIXEL_BYTES:
    fixed = config.centralised or config.scene or config.partition == 'natural'
    fewer = 'a smaller --subset' if fixed else 'more --clients'
    fewer = 'another scene, drawn with a smaller --subset' if config.scene else fewer
    raise types.UsageError(
        f'client {largest} would hold {size / 2**20:.0f} MiB of pixels, TFF carries at most '
        f'100 MiB for a client: use {fewer}, or give the images as files '
        '(--dataset=image_folder, of 224 pixels a side but for --image_size), which are read where '
        'the client computes'
    )
