"""The scene of an experiment: who holds which example, and which labels were changed.

A scene is built once from a seed, saved with the run, and can be used again by another run, so that
methods are compared on the same clients with the same wrong labels. It is the only place where
ground truth lives; federated computations never see it.
"""

import os
import zipfile
import zlib
from typing import NamedTuple

import numpy as np

from tff_noise import rng
from tff_noise import types
from tff_noise.data import noise
from tff_noise.data import partition

# What NumPy, zip and zlib raise for a file that is damaged or of another kind.
_DAMAGE = (
    OSError, ValueError, TypeError, KeyError, EOFError, RuntimeError,
    zipfile.BadZipFile, zlib.error,
)


class SceneSpec(NamedTuple):
  """What a scene is drawn from.

  Attributes:
    num_clients: C.
    partition: A key of `partition.PARTITIONS`.
    openset_q: Q, for open-set partitions, in (0, 1).
    noise: A key of `noise.NOISES`.
    noise_rate: eta, in [0, 1].
  """

  num_clients: int
  partition: str
  openset_q: float
  noise: str
  noise_rate: float


class Scene(NamedTuple):
  """Attributes:

    client_of: int32 `[n]`, the owner of each training example.
    noisy_label: int32 `[n]`, what the owner believes.
    clean_label: int32 `[n]`, ground truth.
    nominal_rate: float64 `[C]`, mean nominal flip probability over the client's examples.
    is_noisy_client: bool `[C]`, `nominal_rate > 0`.
    notes: One sentence for each correction the partition needed.
  """

  client_of: np.ndarray
  noisy_label: np.ndarray
  clean_label: np.ndarray
  nominal_rate: np.ndarray
  is_noisy_client: np.ndarray
  notes: tuple[str, ...]

  @property
  def flipped(self) -> np.ndarray:
    """bool `[n]`, the labels that noise changed."""
    return self.noisy_label != self.clean_label

  @property
  def sizes(self) -> np.ndarray:
    """int64 `[C]`, examples a client."""
    return np.bincount(self.client_of, minlength=len(self.nominal_rate))

  @property
  def realised_rate(self) -> np.ndarray:
    """float64 `[C]`, the share of changed labels of each client."""
    wrong = np.bincount(self.client_of, self.flipped, minlength=len(self.nominal_rate))
    return wrong / self.sizes


def build(dataset: types.Dataset, spec: SceneSpec, seed: int) -> Scene:
  """Draws labels, then owners: the open-set partitions split the *noisy* labels."""
  clean = dataset.train_y.astype(np.int32)
  noisy = noise.corrupt(
      spec.noise,
      clean,
      num_classes=dataset.num_classes,
      rate=spec.noise_rate,
      rng=rng.generator(seed, 'label noise'),
  )
  owners = partition.split(
      spec.partition,
      noisy.labels,
      num_classes=dataset.num_classes,
      num_clients=spec.num_clients,
      q=spec.openset_q,
      rng=rng.generator(seed, 'partition'),
  )
  sizes = np.bincount(owners.client_of, minlength=spec.num_clients)
  nominal = np.bincount(
      owners.client_of, noisy.flip_probability, minlength=spec.num_clients
  ) / sizes
  return Scene(owners.client_of, noisy.labels, clean, nominal, nominal > 0, owners.notes)


def save(scene: Scene, path: str) -> None:
  """Writes the scene to `path` (`.npz`), whole or not at all."""
  temporary = path + '.partial'
  with open(temporary, 'wb') as file:
    np.savez_compressed(file, **scene._replace(notes=np.array(scene.notes, np.str_))._asdict())
  os.replace(temporary, path)


def load(path: str, dataset: types.Dataset) -> Scene:
  """Reads a scene and checks it against the data set it is to be used with.

  Raises:
    types.UsageError: If the file is missing, damaged, or belongs to other data.
  """
  scene = read(path)
  _check(scene, dataset, path)
  return scene


def read(path: str) -> Scene:
  """Reads a scene that is consistent in itself, without the data set it belongs to.

  Raises:
    types.UsageError: If the file is missing or damaged.
  """
  try:
    with np.load(path, allow_pickle=False) as file:
      arrays = {name: file[name] for name in Scene._fields}
  except FileNotFoundError:
    raise types.UsageError(f'scene {path}: no such file') from None
  except _DAMAGE as error:
    reason = (str(error).splitlines() or [''])[0]
    raise types.UsageError(
        f'scene {path} cannot be read ({type(error).__name__}: {reason})'
    ) from error
  _check_arrays(arrays, path)
  return Scene(
      client_of=arrays['client_of'].astype(np.int32),
      noisy_label=arrays['noisy_label'].astype(np.int32),
      clean_label=arrays['clean_label'].astype(np.int32),
      nominal_rate=arrays['nominal_rate'].astype(np.float64),
      is_noisy_client=arrays['is_noisy_client'],
      notes=tuple(map(str, arrays['notes'])),
  )


def _check_arrays(arrays, path):
  """Raises `UsageError` where an array is not of the documented kind."""
  kinds = {
      'client_of': 'i', 'noisy_label': 'i', 'clean_label': 'i', 'nominal_rate': 'f',
      'is_noisy_client': 'b', 'notes': 'U',
  }
  for name, kind in kinds.items():
    if arrays[name].ndim != 1 or arrays[name].dtype.kind != kind:
      raise types.UsageError(
          f'scene {path}: {name} must be a vector of kind {kind!r}, found '
          f'{arrays[name].dtype} of shape {arrays[name].shape}'
      )
  rate = arrays['nominal_rate']
  if not (np.isfinite(rate) & (rate >= 0) & (rate <= 1)).all():
    raise types.UsageError(f'scene {path}: nominal_rate is not within 0 to 1')
  if rate.shape != arrays['is_noisy_client'].shape:
    raise types.UsageError(f'scene {path}: nominal_rate and is_noisy_client differ in length')
  if len({len(arrays[name]) for name in ('client_of', 'noisy_label', 'clean_label')}) != 1:
    raise types.UsageError(f'scene {path}: its labels and clients differ in length')
  for name in ('noisy_label', 'clean_label'):
    if len(arrays[name]) and arrays[name].min() < 0:
      raise types.UsageError(f'scene {path}: {name} has a negative label')
  owner = arrays['client_of']
  if not len(owner) or owner.min() < 0 or owner.max() >= len(rate):
    raise types.UsageError(f'scene {path}: client_of is not within 0 to {len(rate) - 1}')


def _check(scene, dataset, path):
  """Raises `UsageError` where the scene and the data set do not fit together."""
  n = len(dataset.train_y)
  for name in ('client_of', 'noisy_label', 'clean_label'):
    if getattr(scene, name).shape != (n,):
      raise types.UsageError(
          f'scene {path}: {name} has shape {getattr(scene, name).shape}, '
          f'{dataset.name} has {n} training examples'
      )
  bad = np.flatnonzero((scene.noisy_label < 0) | (scene.noisy_label >= dataset.num_classes))
  if len(bad):
    raise types.UsageError(
        f'scene {path}: label {scene.noisy_label[bad[0]]} of example {bad[0]} is out of range, '
        f'{dataset.name} has labels 0 to {dataset.num_classes - 1}'
    )
  if not np.array_equal(scene.clean_label, dataset.train_y):
    raise types.UsageError(f'scene {path}: its clean labels are not those of {dataset.name}')
  if (scene.sizes == 0).any():
    raise types.UsageError(f'scene {path}: client {np.argmin(scene.sizes)} has no examples')


def federation(dataset: types.Dataset, scene: Scene, seed: int) -> types.Federation:
  """Returns what the clients hold: examples and believed labels, without the ground truth."""
  clients = []
  for client in range(len(scene.nominal_rate)):
    ids = np.flatnonzero(scene.client_of == client)
    clients.append(
        types.ClientExamples(dataset.train_x[ids], scene.noisy_label[ids], ids.astype(np.int64))
    )
  return types.Federation(tuple(clients), dataset.num_classes, seed)
