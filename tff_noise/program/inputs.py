"""What a run is made from beside flags and code: its data, and the files that flags name.

A run keeps digests of them, so that neither a finished run's numbers are shown for other data, nor
a run goes on with them. A method or a model of the user's own has one for each name among the files
that it is written in, see `own_code`.
"""

import glob
import hashlib
import os
from collections.abc import Mapping

import numpy as np

from tff_noise import params
from tff_noise import types
from tff_noise import weights_file
from tff_noise.program import code_version
from tff_noise.program import own_code
from tff_noise.program import run_config
from tff_noise.program import run_directory

# For whoever trains.
OR_ANOTHER = ', begin another run (--run_name), or this one anew (--overwrite)'
# Flags that name files, but for those that the scene is drawn from, which is kept itself.
_FILES = ('weights', 'arrivals')
_JPEG, _SCAN = types.IMAGE_SIGNATURES[0], b'\xda'
# These, or numbers.
_OF_SCENE = ('scene', 'noise_matrix', 'openset_q')


def require(config: run_config.RunConfig, *, begun: bool) -> None:
  """Raises `UsageError` if a file or a module that flags name is not there.

  What is in it is found out when it is used, after TensorFlow is loaded; that takes seconds, and a
  grid has many runs of it.

  Args:
    config: The flags.
    begun: Whether the run has its scene, and no need of the files that it was drawn from.
  """
  if config.weights is not None:
    weights_file.require(config.weights)
  if not begun:
    config.check_starts_anew()
  for flag in ('arrivals', *(() if begun else ('scene', 'noise_matrix'))):
    path = getattr(config, flag)
    if path is not None and not path.startswith('uniform:') and not os.path.isfile(path):
      raise types.UsageError(f'--{flag}={path}: no such file')
  if not begun and config.scene is None:
    config.check_openset_q()
  for flag in ('model', 'aggregation', 'metrics_hook'):
    place = getattr(config, flag)
    if place and ':' in place:
      params.require_module(place, flag)


def digests(config: run_config.RunConfig, dataset: types.Dataset) -> dict[str, str]:
  """Returns a digest of each part of what a run computes with, by what it is called.

  Files of images are read whole for it, once.

  Args:
    config: The flags.
    dataset: From `data.load_dataset`.

  Returns:
    16 hexadecimal digits each; '' where a flag names what is no file. What there is not has none.
  """
  return {**of_data(dataset), **of_files(config)}


def of_files(config: run_config.RunConfig) -> dict[str, str]:
  """Returns the digests of the files that flags name, code of the user's own among them."""
  paths = {f'--{name}': _paths(getattr(config, name)) for name in _FILES}
  there = {name: _of_files(found) for name, found in paths.items() if found is not None}
  return {**there, **of_code(config)}


def of_code(config: run_config.RunConfig) -> dict[str, str]:
  """Returns the digests of code of the user's own, which the digest of this package's has not."""
  files = {}
  for name, place in _own_places(config).items():
    files |= _by_name(name, own_code.sources_of(place))
  return {f'--{name}': _of_files(paths) for name, paths in files.items()}


def code(config: run_config.RunConfig) -> str:
  """Returns a text that is another if code is that a run computes with, of the user's own too."""
  own = {p for place in _own_places(config).values() for p in own_code.sources_of(place)}
  return ' '.join([code_version.digest(), *(f'{p} {_of_files([p])}' for p in sorted(own))])


def _own_places(config):
  """What names code of the user's own, by the flag that does."""
  named = {n: getattr(config, n) for n in ('method', 'model', 'aggregation')}
  own = {name: place for name, place in named.items() if ':' in place}
  for flag in ('param', 'base_param'):
    own |= {f'{flag}={p}': p for p in own_code.places(getattr(config, flag))}
  return own


def of_data(dataset: types.Dataset) -> dict[str, str]:
  """Returns the digests of the data alone."""
  validation = dataset.validation or types.Examples(None, None)
  parts = {
      'training images': dataset.train_x,
      'training labels': dataset.train_y,
      'test images': dataset.test_x,
      'test labels': dataset.test_y,
      'human labels': dataset.human_y,
      'owners': dataset.client,
      'validation images': validation.x,
      'validation labels': validation.y,
      'public images': dataset.public,
  }
  return {name: _of_array(values) for name, values in parts.items() if values is not None}


def recorded(config: run_config.RunConfig, dataset: types.Dataset) -> dict[str, str]:
  """Returns `digests`, and those of what a run does not compute with but must not be shown for.

  These are the names of classes and of clients, and the files that the scene is drawn from, where
  they still are: a run keeps its scene and needs them no more. Nor does its noise depend on whether
  they are there.
  """
  return {**recorded_of_data(dataset), **recorded_of_files(config)}


def recorded_of_data(dataset: types.Dataset) -> dict[str, str]:
  """Returns the part of `recorded` that is of the data."""
  named = {'class names': dataset.class_names}
  if dataset.client is not None:
    named['client names'] = dataset.client_names
  return {**of_data(dataset), **{what: _of_texts(names) for what, names in named.items()}}


def recorded_of_files(config: run_config.RunConfig) -> dict[str, str]:
  """Returns the part of `recorded` that is of the files that flags name."""
  drawn = {f'--{name}': getattr(config, name) for name in _OF_SCENE}
  there = {name: path for name, path in drawn.items() if path and os.path.isfile(path)}
  return {**of_files(config), **{name: _of_files([path]) for name, path in there.items()}}


def check(run: run_directory.RunDirectory, now: Mapping[str, str], otherwise: str = '') -> None:
  """Raises `UsageError` if a run was made from other inputs than these, naming what differs.

  Args:
    run: The run.
    now: From `recorded`, or `digests`.
    otherwise: What else than bringing them back can be done.
  """
  _require_same(run, _recorded_by(run, now), now, otherwise)


def difference(run: run_directory.RunDirectory, now: Mapping[str, str]) -> str:
  """Returns a sentence on which inputs, see `check`, a run has others of; '' for none."""
  return _difference(run, _recorded_by(run, now), now)


def check_data(run: run_directory.RunDirectory, dataset: types.Dataset) -> None:
  """As `check`, of the data alone."""
  now = of_data(dataset)
  then = {name: d for name, d in _recorded_by(run, now).items() if not name.startswith('--')}
  _require_same(run, then, now, '')


def check_model(run: run_directory.RunDirectory, config: run_config.RunConfig) -> None:
  """As `check`, of the code alone in which the user's own model is written."""
  files = of_files(config)
  then, now = (
      {name: digest for name, digest in found.items() if name.startswith('--model ')}
      for found in (_recorded_by(run, files), files)
  )
  _require_same(run, then, now, ', or load the SavedModel in its models/, which needs no code')


def _recorded_by(run, now):
  """Runs of earlier versions have none recorded."""
  return run_directory.read_json(run.file('config.json')).get('inputs', now)


def _require_same(run, then, now, otherwise):
  if found := _difference(run, then, now):
    raise types.UsageError(f'{found}: bring back what it was made from{otherwise}')


def _difference(run, then, now):
  kept = {'class names', 'client names', *(f'--{name}' for name in _OF_SCENE)}.difference(
      then.keys() & now.keys()
  )
  changed = [n for n in {**then, **now} if then.get(n) != now.get(n) and n not in kept]
  return f'run {run.name} was made from other {", ".join(changed)}' if changed else ''


def _of_texts(texts):
  return hashlib.sha256('\0'.join(texts).encode()).hexdigest()[:16]


def _of_array(values):
  if values.dtype.kind == 'S':
    return _of_image_files(values)
  values = np.ascontiguousarray(values)
  digest = hashlib.sha256(f'{values.dtype.str}{values.shape}'.encode())
  digest.update(values.data)
  return digest.hexdigest()[:16]


def _of_image_files(paths):
  """By their names within the folder that all are in: it may lie elsewhere another time."""
  paths = [os.fsdecode(path) for path in paths]
  folder = os.path.commonpath([os.path.dirname(path) for path in paths])
  digest = hashlib.sha256()
  for path in paths:
    content = _of_image_file(path)
    digest.update(os.fsencode(f'{path[len(folder):]}\0{content}\0'))
  return digest.hexdigest()[:16]


def _of_image_file(path):
  try:
    with open(path, 'rb') as file:
      content = file.read()
      file.seek(0)
      digest = _digest(file)
  except OSError as error:
    raise types.UsageError(
        f'{path} cannot be read ({error.strerror}): replace or remove it'
    ) from error
  if not content.startswith(types.IMAGE_SIGNATURES):
    raise types.UsageError(f'{path} is neither JPEG nor PNG: replace or remove it')
  if not _has_end(content):  # Else TensorFlow's decoder fails in some round, and names no file.
    raise types.UsageError(f'{path} is cut off: replace or remove it')
  return digest


def _has_end(content):
  """Whether a JPEG or PNG file has the mark at its end, after which there may be anything."""
  if not content.startswith(_JPEG):
    return b'IEND' in content
  at = 2
  # Segments up to the scan, which has no such mark in it; a preview in a segment has one.
  while content[at : at + 1] == b'\xff' and content[at + 1 : at + 2] != _SCAN:
    is_fill = content[at + 1 : at + 2] == b'\xff'
    at += 1 if is_fill else 2 + int.from_bytes(content[at + 2 : at + 4], 'big')
  return b'\xff\xd9' in content[at:]


def _by_name(flag, paths):
  """Files by the flag that asks for their code and their names: who changed one is told which."""
  found = {}
  for path in paths:
    found.setdefault(f'{flag} ({os.path.basename(path)})', []).append(path)
  return found


def _paths(path):
  """The file, or those of the checkpoint whose prefix it is."""
  if path is None or not weights_file.is_checkpoint(path):
    return path and [path]
  return [path + '.index', *sorted(glob.glob(glob.escape(path) + '.data-*'))]


def _digest(file):
  """As `hashlib.file_digest`, which Python 3.10 has not."""
  digest = hashlib.sha256()
  while block := file.read(2**20):
    digest.update(block)
  return digest.hexdigest()


def _of_files(paths):
  """'' where there is none."""
  found = []
  for name in filter(os.path.isfile, paths):
    try:
      with open(name, 'rb') as file:
        found.append(_digest(file))
    except OSError as error:
      raise types.UsageError(f'{name} cannot be read ({error.strerror})') from error
  return hashlib.sha256(' '.join(found).encode()).hexdigest()[:16] if found else ''
