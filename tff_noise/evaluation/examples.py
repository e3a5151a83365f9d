"""What a trained model is evaluated on."""

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tff_noise import types
from tff_noise.data import image_folder
from tff_noise.data import npz_file
from tff_noise.data import scene as scene_lib
from tff_noise.data import sources
from tff_noise.program import data as data_lib
from tff_noise.program import flags
from tff_noise.program import inputs
from tff_noise.program import run_directory
from tff_noise.report import runs


class Source(NamedTuple):
  """What a model is evaluated on.

  Attributes:
    on: 'test' or 'validation' of the run's own data.
    dataset: Another data set, whose test set it is, of an npz without one all of it; or None.
    data_dir: Where that lies.
    images: A folder of images; or None.
  """

  on: str
  dataset: str | None = None
  data_dir: str | None = None
  images: str | None = None

  @property
  def name(self) -> str:
    """In names of files and in sentences."""
    if self.images:
      return f'images_{os.path.basename(os.path.abspath(self.images))}'
    return self.dataset or self.on

  @property
  def where(self) -> str:
    """In a sentence: on examples of ..."""
    if self.images:
      return self.images
    if self.dataset == 'npz':
      return self.data_dir
    return f'the test set of {self.dataset}' if self.dataset else f'the {self.on} set'


def load(
    run: runs.Run, source: Source
) -> tuple[types.Dataset, types.Examples, Sequence[str]]:
  """Returns the data set whose classes there are, the examples, and what these are called.

  Raises:
    types.UsageError: If files are missing or damaged, or the run's own data are not what they were.
  """
  config = flags.config_of_run(run.flags)
  if source.dataset is None:
    dataset = data_lib.load_dataset(config)
    inputs.check_data(run_directory.RunDirectory(run.path), dataset)
  else:
    if source.dataset not in sources.DATASETS:
      raise types.UsageError(
          f'--dataset must be one of {", ".join(sources.DATASETS)}; got {source.dataset!r}'
      )
    dataset = _in_order_of(run, _on_scale_of(config.dataset, _other(run, config, source)))
  if source.images:
    found = image_folder.read_any(source.images, dataset.class_names)
    return dataset, found, names(found.x)
  if source.on == 'test':
    found = types.Examples(dataset.test_x, dataset.test_y)
    return dataset, found, names(found.x, dataset.test_rows)
  scene = runs.read_scene(run)
  found = scene_lib.validation(dataset, scene)
  if found is None:
    where = 'with its clients alone' if scene.withheld_size else 'nowhere'
    raise types.UsageError(f'{run.path} has its validation set {where}: --on=test')
  rows = None
  if dataset.validation is None:
    rows = np.flatnonzero(scene.client_of == scene_lib.SERVER)
    rows = rows if dataset.train_rows is None else dataset.train_rows[rows]
  return dataset, found, names(found.x, rows)


def _other(run, config, source):
  if source.dataset == 'npz' and source.data_dir:
    file = npz_file.find(os.path.expanduser(source.data_dir))
    # Of what the run was trained on, its test set alone.
    if config.dataset != 'npz' or os.path.realpath(file) != _trained_on(config):
      return npz_file.load_test(file, len(run.class_names))
  return sources.load(sources.DataSpec(source.dataset, source.data_dir, '', config.image_size))


def _trained_on(config):
  """The file of the run's own data; they may lie elsewhere by now."""
  path = os.path.expanduser(config.data_dir)
  return os.path.realpath(npz_file.find(path)) if os.path.exists(path) else ''


def _on_scale_of(name, dataset):
  """The data set with pixels on the scale of that of the run; files of images are brought to it."""
  largest = sources.largest_pixel(name)
  x = dataset.test_x
  if x.dtype.kind == 'u' and (dataset.largest_pixel < largest or x.max(initial=0) > largest):
    raise types.UsageError(
        f'the run is of --dataset={name}, whose pixels are 0 to {largest}, and those of '
        f'--dataset={dataset.name} are on another scale, 0 to {dataset.largest_pixel}: give files '
        'of images, which are brought to that of the run'
    )
  return dataset._replace(largest_pixel=largest)


def _in_order_of(run, dataset):
  """The data set whose classes are numbered as the run's, by their names where both have some."""
  numbers = tuple(map(str, range(dataset.num_classes)))
  known, given = tuple(run.class_names), dataset.class_names
  if len(known) != len(given) or known == given:
    return dataset
  if set(known) != set(given):
    if numbers in (known, given):
      return dataset  # Of one of them nobody said what the numbers stand for.
    raise types.UsageError(
        f'{run.path} tells {", ".join(known)} apart, the data have {", ".join(given)}: give data '
        'of the same classes, with the same names'
    )
  number = np.array([known.index(name) for name in given], np.int32)
  y = np.where(dataset.test_y == types.UNKNOWN, types.UNKNOWN, number[dataset.test_y])
  return dataset._replace(test_y=y.astype(np.int32), class_names=known)


def names(x: np.ndarray, rows: np.ndarray | None = None) -> Sequence[str]:
  """Returns what examples are called: paths of files, or their `rows`, by default their places."""
  if x.dtype.kind == 'S':
    return [os.fsdecode(path) for path in x]
  return [str(row) for row in (range(len(x)) if rows is None else rows)]
