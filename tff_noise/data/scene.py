"""The scene of an experiment: who holds which example, and which labels were changed.

A scene is built once from a seed, saved with the run, and can be used again by another run, so that
methods are compared on the same clients with the same wrong labels. It is the only place where
ground truth lives; federated computations never see it. (Paths of images of --dataset=image_folder
have the folder of the true class in them, and clients' examples are in the order of the data: no
method looks at either.)
"""

import io
import os
import tokenize
import zipfile
import zlib
from typing import NamedTuple

import numpy as np

from tff_noise import errors
from tff_noise import rng
from tff_noise import types
from tff_noise.data import noise
from tff_noise.data import partition

# What NumPy, zip and zlib raise for a file that is damaged or of another kind.
_DAMAGE = (
    OSError, ValueError, TypeError, KeyError, EOFError, RuntimeError, OverflowError, MemoryError,
    zipfile.BadZipFile, zlib.error, tokenize.TokenError,
)

# The arrays of a scene's file, and which kind of NumPy's each is.
_KINDS = {
    'client_of': 'i', 'noisy_label': 'i', 'clean_label': 'i', 'nominal_rate': 'f',
    'is_noisy_client': 'b', 'notes': 'U', 'client_names': 'U', 'is_withheld': 'b',
    'clean_rate': 'f',
}
_MAY_LACK = ('client_names', 'is_withheld', 'clean_rate')

_LARGEST_LABEL = np.iinfo(np.int32).max

# The owner of an example that no client holds: the server keeps it, clean, for validation.
SERVER = -1


class SceneSpec(NamedTuple):
  """What a scene is drawn from.

  Attributes:
    partition: Who holds what.
    noise: Which labels are changed.
    validation_fraction: Share of the training examples that the server holds out, in [0, 1).
    client_validation_fraction: Share of its examples that each client withholds from training,
      rounded down, in [0, 1).
  """

  partition: partition.PartitionSpec
  noise: noise.NoiseSpec
  validation_fraction: float = 0.0
  client_validation_fraction: float = 0.0


class Scene(NamedTuple):
  """Who holds which training examples, and what is believed and known of their labels.

  Attributes:
    client_of: int32 `[n]`, the owner of each training example; `SERVER` for what it holds out.
    noisy_label: int32 `[n]`, what the owner believes.
    clean_label: int32 `[n]`, ground truth; `types.UNKNOWN` where nobody knows it.
    nominal_rate: float64 `[C]`, mean nominal flip probability over those of the client's examples
      that it trains on for which it is known; nan where it is for none.
    is_noisy_client: bool `[C]`, whose `nominal_rate` is above `clean_rate`.
    notes: One sentence for each correction the partition needed, and warnings about the noise.
    client_names: C texts, what the data call the clients; empty where they are called 0 to C-1.
    is_withheld: bool `[n]`, which examples their client does not train on: it looks with them, and
      the labels that it believes, how good models are. None where none are.
    clean_rate: The largest rate at which a client counts as clean; above 0 where clients' rates are
      those that their labels came to, as with labels of people.
  """

  client_of: np.ndarray
  noisy_label: np.ndarray
  clean_label: np.ndarray
  nominal_rate: np.ndarray
  is_noisy_client: np.ndarray
  notes: tuple[str, ...]
  client_names: tuple[str, ...] = ()
  is_withheld: np.ndarray | None = None
  clean_rate: float = 0.0

  @property
  def num_clients(self) -> int:
    """C."""
    return len(self.nominal_rate)

  @property
  def is_trained_on(self) -> np.ndarray:
    """bool `[n]`, the clients' examples that they train on; sizes and rates are of these."""
    owned = self.client_of != SERVER
    return owned if self.is_withheld is None else owned & ~self.is_withheld

  @property
  def is_known(self) -> np.ndarray:
    """bool `[n]`, those whose true class is known."""
    return self.is_trained_on & (self.clean_label != types.UNKNOWN)

  @property
  def flipped(self) -> np.ndarray:
    """bool `[n]`, those whose label is known to be wrong."""
    return self.is_known & (self.noisy_label != self.clean_label)

  @property
  def sizes(self) -> np.ndarray:
    """int64 `[C]`, examples a client."""
    return np.bincount(self.client_of[self.is_trained_on], minlength=self.num_clients)

  @property
  def server_size(self) -> int:
    """How many examples the server holds out."""
    return int((self.client_of == SERVER).sum())

  @property
  def withheld_size(self) -> int:
    """How many all clients withhold from training."""
    return 0 if self.is_withheld is None else int(self.is_withheld.sum())

  @property
  def realised_rate(self) -> np.ndarray:
    """float64 `[C]`, the share of wrong labels among each client's known ones; nan without any."""
    return _client_mean(self.flipped, self.client_of, self.is_known, self.num_clients)

  @property
  def is_graded(self) -> bool:
    """Whether clients' rates are those that their labels came to, as with labels of people."""
    return self.clean_rate > 0

  @property
  def noise_rate(self) -> float:
    """The share of wrong labels among all known ones; nan if none is known."""
    known = self.is_known.sum()
    return float(self.flipped.sum() / known) if known else float('nan')


def _client_mean(values, client_of, mask, num_clients):
  """float64 `[C]`, each client's mean of `values` where `mask` holds; nan where it never does."""
  owner = client_of[mask]
  count = np.bincount(owner, minlength=num_clients)
  total = np.bincount(owner, values[mask], minlength=num_clients)
  return np.divide(total, count, out=np.full(num_clients, np.nan), where=count > 0)


def build(dataset: types.Dataset, spec: SceneSpec, seed: int) -> Scene:
  """Draws the server's part, labels and owners.

  The order is fixed: the open-set partitions split *noisy* labels (FedDPCont, section 3.3), so
  noise comes first; the others split clean labels, and noise comes after (FedCorr, section 3.1).

  Raises:
    types.UsageError: If the data set, the partition and the noise do not fit together.
  """
  splits_noisy = partition.splits_noisy_labels(spec.partition.name)
  if splits_noisy and noise.needs_clients(spec.noise.name):
    raise types.UsageError(
        f'--noise={spec.noise.name} gives each client a rate of its own and needs the clients '
        f'first, --partition={spec.partition.name} splits labels that are noisy already: use '
        'another partition, or a noise that is the same for all clients'
    )
  clean = dataset.train_y.astype(np.int32)
  ids = np.flatnonzero(~_held_out(dataset, spec, seed))

  def corrupt(client_of):
    return noise.corrupt(
        spec.noise,
        dataset,
        ids,
        client_of=client_of,
        num_clients=0 if client_of is None else int(client_of.max()) + 1,
        rng=rng.generator(seed, 'label noise'),
    )

  def split(labels):
    return partition.split(
        spec.partition,
        labels,
        num_classes=dataset.num_classes,
        natural=None if dataset.client is None else dataset.client[ids],
        rng=rng.generator(seed, 'partition'),
    )

  if splits_noisy:
    noisy = corrupt(None)
    owners = split(noisy.labels)
  else:
    owners = split(best_known(dataset)[ids])
    noisy = corrupt(owners.client_of)
  client_of = np.full(len(clean), SERVER, np.int32)
  client_of[ids] = owners.client_of
  withheld = _withheld(client_of, spec.client_validation_fraction, seed)
  found = _assemble(clean, ids, client_of, owners, noisy, withheld)
  if spec.partition.name == 'natural':
    return found._replace(client_names=dataset.client_names)
  return found


def _withheld(client_of, fraction, seed):
  """bool `[n]`, a share of each client's examples, drawn at random; None if none are asked for."""
  if not fraction:
    return None
  withheld = np.zeros(len(client_of), bool)
  examples = _by_client(client_of, client_of != SERVER, int(client_of.max()) + 1)
  for client, ids in enumerate(examples):
    order = rng.generator(seed, 'client validation', client).permutation(ids)
    # A tenth of 30 are 3, whatever a tenth is in binary; and one is left to train on.
    count = min(int(fraction * len(ids) + 1e-9), len(ids) - 1)
    withheld[order[:count]] = True
  if not withheld.any():
    largest = max(map(len, examples))
    raise types.UsageError(
        f'--client_validation_fraction={fraction} of the {largest} examples of the largest client '
        'is none; use a larger one, or leave it out'
    )
  return withheld


def _held_out(dataset, spec, seed):
  """bool `[n]`, a random share of the examples, drawn from those whose true class is known."""
  n = len(dataset.train_y)
  mask = np.zeros(n, bool)
  wanted = round(spec.validation_fraction * n)
  if spec.validation_fraction and not wanted:
    raise types.UsageError(
        f'--validation_fraction={spec.validation_fraction} of {n} examples is none; use a larger '
        'one, or leave it out'
    )
  if wanted:
    order = rng.generator(seed, 'validation').permutation(n)
    order = order[dataset.train_y[order] != types.UNKNOWN]
    if spec.partition.name == 'natural' and dataset.client is not None:
      # Every client keeps an example, or the data's clients would not be the scene's.
      order = np.delete(order, np.unique(dataset.client[order], return_index=True)[1])
    if wanted > len(order):
      raise types.UsageError(
          f'--validation_fraction={spec.validation_fraction} asks for {wanted} examples whose true '
          f'label is known, {len(order)} can be taken; use a smaller one or --validation_dir'
      )
    mask[order[:wanted]] = True
  if mask.all():
    raise types.UsageError(
        f'--validation_fraction={spec.validation_fraction} leaves no example for the clients'
    )
  return mask


def best_known(dataset: types.Dataset) -> np.ndarray:
  """Returns int32 `[n]`, the clean labels, and what people said where these are not known."""
  if dataset.human_y is None:
    return dataset.train_y
  return np.where(dataset.train_y == types.UNKNOWN, dataset.human_y, dataset.train_y)


def _assemble(clean, ids, client_of, owners, noisy, withheld):
  labels = clean.copy()
  labels[ids] = noisy.labels
  probability = noisy.flip_probability
  known = np.isfinite(probability)
  if withheld is not None:
    known &= ~withheld[ids]
  nominal = _client_mean(probability, owners.client_of, known, int(owners.client_of.max()) + 1)
  return Scene(
      client_of, labels, clean, nominal, nominal > noisy.clean_rate, (*owners.notes, *noisy.notes),
      is_withheld=withheld, clean_rate=noisy.clean_rate,
  )


def centralised(scene: Scene) -> Scene:
  """Returns the scene in which one client holds what all of them hold, with the same labels."""
  known = np.isfinite(scene.nominal_rate)
  rate = np.nan
  if known.any():
    # A client's rate is of those of its examples for which it is known.
    counts = np.bincount(scene.client_of[scene.is_known], minlength=scene.num_clients)
    rate = np.average(scene.nominal_rate[known], weights=counts[known])
  return scene._replace(
      client_of=np.where(scene.client_of == SERVER, SERVER, 0).astype(np.int32),
      nominal_rate=np.array([rate]),
      is_noisy_client=np.array([rate > scene.clean_rate]),
      client_names=(),
  )


def save(scene: Scene, path: str) -> None:
  """Writes the scene to `path` (`.npz`), whole or not at all."""
  content = io.BytesIO()  # What compresses complains of a disk that is full in its own way.
  arrays = scene._asdict() | {
      'notes': np.array(scene.notes, np.str_), 'clean_rate': np.float64(scene.clean_rate),
  }
  if not scene.client_names:
    del arrays['client_names']
  if scene.is_withheld is None:
    del arrays['is_withheld']
  np.savez_compressed(content, **arrays)
  temporary = path + '.partial'
  with open(temporary, 'wb') as file:
    file.write(content.getvalue())
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
      arrays = {
          name: file[name] for name in _KINDS if name not in _MAY_LACK or name in file.files
      }
  except FileNotFoundError:
    raise types.UsageError(f'scene {path}: no such file') from None
  except _DAMAGE as error:
    reason = errors.first_line(error)
    raise types.UsageError(
        f'scene {path} cannot be read ({type(error).__name__}: {reason})'
    ) from error
  _check_arrays(arrays, path)
  scene = Scene(
      client_of=arrays['client_of'].astype(np.int32),
      noisy_label=arrays['noisy_label'].astype(np.int32),
      clean_label=arrays['clean_label'].astype(np.int32),
      nominal_rate=arrays['nominal_rate'].astype(np.float64),
      is_noisy_client=arrays['is_noisy_client'],
      notes=tuple(map(str, arrays['notes'])),
      client_names=tuple(map(str, arrays.get('client_names', ()))),
      is_withheld=_if_any(arrays.get('is_withheld')),
  )
  return scene._replace(clean_rate=float(arrays.get('clean_rate', _guessed_clean_rate(scene))))


def _guessed_clean_rate(scene):
  """That of a file of earlier versions, which did not say: drawn rates are not met exactly."""
  rate = scene.nominal_rate
  grades = np.unique(rate[np.isfinite(rate) & (rate > 0)])
  graded = len(grades) > 1 and np.array_equal(rate, scene.realised_rate, equal_nan=True)
  return noise.HUMAN_CLEAN_RATE if graded else 0.0


def _if_any(mask):
  return None if mask is None or not mask.any() else mask


def _check_arrays(arrays, path):
  """Raises `UsageError` where an array is not of the documented kind."""
  for name, array in arrays.items():
    if not isinstance(array, np.ndarray):
      raise types.UsageError(f'scene {path} cannot be read: {name} is no array')
    ndim, what = (0, 'number') if name == 'clean_rate' else (1, 'vector')
    if array.ndim != ndim or array.dtype.kind != _KINDS[name]:
      raise types.UsageError(
          f'scene {path}: {name} must be a {what} of kind {_KINDS[name]!r}, found '
          f'{array.dtype} of shape {array.shape}'
      )
  rate, clean_rate = arrays['nominal_rate'], arrays.get('clean_rate', 0)
  if not 0 <= clean_rate < 1:
    raise types.UsageError(f'scene {path}: clean_rate is no number within 0 to 1')
  if not (np.isnan(rate) | ((rate >= 0) & (rate <= 1))).all():
    raise types.UsageError(f'scene {path}: nominal_rate is not within 0 to 1')
  if rate.shape != arrays['is_noisy_client'].shape:
    raise types.UsageError(f'scene {path}: nominal_rate and is_noisy_client differ in length')
  if len(np.unique(arrays.get('client_names', np.arange(len(rate))))) != len(rate):
    raise types.UsageError(
        f'scene {path}: client_names are not {len(rate)} different names, one for each client'
    )
  of_examples = ('client_of', 'noisy_label', 'clean_label', 'is_withheld')
  if len({len(arrays[name]) for name in of_examples if name in arrays}) != 1:
    raise types.UsageError(f'scene {path}: its labels and clients differ in length')
  for name, least in (('noisy_label', 0), ('clean_label', types.UNKNOWN)):
    if len(arrays[name]) and arrays[name].min() < least:
      raise types.UsageError(f'scene {path}: {name} has a label below {least}')
    if len(arrays[name]) and arrays[name].max() > _LARGEST_LABEL:
      raise types.UsageError(f'scene {path}: {name} has a label above {_LARGEST_LABEL}')
  owner = arrays['client_of']
  if not len(owner) or owner.min() < SERVER or owner.max() >= len(rate):
    raise types.UsageError(f'scene {path}: client_of is not within {SERVER} to {len(rate) - 1}')
  if (arrays.get('is_withheld', np.zeros(1, bool)) & (owner == SERVER)).any():
    raise types.UsageError(f'scene {path}: is_withheld marks examples of the server')


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
  if scene.client_names not in ((), dataset.client_names):
    raise types.UsageError(
        f'scene {path}: its clients have other names than those of {dataset.name}: give the data '
        'that it was drawn from'
    )


def examples_of(scene: Scene) -> list[np.ndarray]:
  """Returns for each client the positions of what it trains on, int64 in ascending order."""
  return _by_client(scene.client_of, scene.is_trained_on, scene.num_clients)


def withheld_of(scene: Scene) -> list[np.ndarray]:
  """Returns likewise what each withholds, which may be nothing; `[]` where none withholds any."""
  if scene.is_withheld is None:
    return []
  return _by_client(scene.client_of, scene.is_withheld, scene.num_clients)


def _by_client(client_of, mask, num_clients):
  """For each client the positions of its examples where `mask` holds."""
  owner = np.where(mask, client_of, SERVER)
  # One sort, not a search for each client: there may be thousands.
  order = np.argsort(owner, kind='stable')
  starts = np.searchsorted(owner[order], np.arange(num_clients))
  return np.split(order, starts)[1:]


def federation(dataset: types.Dataset, scene: Scene, seed: int) -> types.Federation:
  """Returns what the clients hold: examples and believed labels, without the ground truth."""

  def held(ids_by_client):
    return tuple(
        types.ClientExamples(dataset.train_x[ids], scene.noisy_label[ids], ids.astype(np.int64))
        for ids in ids_by_client
    )

  return types.Federation(
      held(examples_of(scene)), dataset.num_classes, seed, held(withheld_of(scene)),
      scene.client_names,
  )


def validation(dataset: types.Dataset, scene: Scene) -> types.Examples | None:
  """Returns the server's clean examples: the data set's own, or those held out; None without."""
  if dataset.validation is not None:
    return dataset.validation
  held = scene.client_of == SERVER
  if not held.any():
    return None
  return types.Examples(dataset.train_x[held], scene.clean_label[held])
