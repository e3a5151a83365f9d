"""Label noise: transition matrices and the labels drawn from them.

`T[i, j]` is the probability that the clean label i is observed as j (FedDPCont, section 3.2).
"""

from typing import NamedTuple

import numpy as np
from scipy import special
from scipy import stats

from tff_noise import types

# The largest error of a sum of probabilities that a person wrote down.
_TOLERANCE = 1e-6

# At most so many images, and pixels of them, are floating-point numbers at the same time.
_CHUNK = 4096
_CHUNK_PIXELS = 2**24

# Standard deviation of the rates of single examples (Xia et al. 2020, Algorithm 2).
_INSTANCE_STDDEV = 0.1
# From which on it is said that they do not come to the rate that was asked for.
_FAR_FROM_RATE = 0.01


# People err at every client: one wrong label makes none of them noisy. FedCorr's kappa, the largest
# estimated noise of a client that it takes for clean.
HUMAN_CLEAN_RATE = 0.1


class NoiseSpec(NamedTuple):
  """What label noise is drawn from.

  Attributes:
    name: A key of `NOISES`.
    rate: eta, in [0, 1]; mu of a noisy client for 'client_symmetric'. 'none', 'matrix', 'human' and
      'client_uniform' ignore it.
    rho: Of the noises by client: the share of noisy clients, in [0, 1].
    tau: Of 'client_uniform': the least noise of a noisy client, in [0, 1).
    semantics: Of 'client_uniform': a key of `SEMANTICS`.
    matrix: Of 'matrix': float `[K, K]`, T.
  """

  name: str
  rate: float = 0.4
  rho: float = 0.6
  tau: float = 0.5
  semantics: str = 'paper'
  matrix: np.ndarray | None = None


class NoisyLabels(NamedTuple):
  """Labels after noise, with the ground truth an experiment needs for its metrics.

  Attributes:
    labels: int32 `[m]`, the observed labels.
    flip_probability: float64 `[m]`, the nominal probability that this label was changed; nan where
      nobody knows.
    notes: Sentences about the draw, warnings among them.
    clean_rate: The largest rate at which a client counts as clean.
  """

  labels: np.ndarray
  flip_probability: np.ndarray
  notes: tuple[str, ...] = ()
  clean_rate: float = 0.0


class _Examples(NamedTuple):
  """What is corrupted.

  Attributes:
    dataset: Whole.
    ids: int `[m]`, positions in its training data.
    labels: int32 `[m]`, their clean labels.
    client_of: int32 `[m]`, their owners, or None.
    num_clients: C.
  """

  dataset: types.Dataset
  ids: np.ndarray
  labels: np.ndarray
  client_of: np.ndarray | None
  num_clients: int

  @property
  def num_classes(self) -> int:
    """K."""
    return self.dataset.num_classes


def symmetric_matrix(num_classes: int, rate: float) -> np.ndarray:
  """Returns T with `T_ii = 1 - eta` and `eta / (K - 1)` elsewhere (FedDPCont, section 5.2)."""
  matrix = np.full((num_classes, num_classes), rate / (num_classes - 1))
  np.fill_diagonal(matrix, 1 - rate)
  return matrix


def random_matrix(num_classes: int, rate: float, rng: np.random.Generator) -> np.ndarray:
  """Returns FedDPCont's "random" T (section 5.2).

  `T_ii = 1 - (eta + Unif(-.05, .05))`, off-diagonal row `(1 - T_ii) * Dir(1)`. The paper prints the
  diagonal as `eta + Unif(-.05, .05)` with eta the noise rate; its own accuracies, which fall with
  eta, show that the complement is meant.

  Args:
    num_classes: K, at least 2.
    rate: eta, in [0, 1].
    rng: Source of the matrix.
  """
  diagonal = np.clip(1 - (rate + rng.uniform(-0.05, 0.05, num_classes)), 0, 1)
  matrix = np.diag(diagonal)
  for i in range(num_classes):
    others = np.arange(num_classes) != i
    matrix[i, others] = (1 - diagonal[i]) * rng.dirichlet(np.ones(num_classes - 1))
  return matrix


def class_map_matrix(observed: np.ndarray, rate: float) -> np.ndarray:
  """Returns T with `T_ii = 1 - eta` and `T_i,observed(i) = eta`; 1 where `observed(i) = i`.

  Args:
    observed: int `[K]`, what each class is taken for.
    rate: eta, in [0, 1].
  """
  classes = np.arange(len(observed))
  matrix = np.diag(np.where(observed == classes, 1, 1 - rate))
  confused = np.flatnonzero(observed != classes)
  matrix[confused, observed[confused]] = rate
  return matrix


def pairflip_matrix(num_classes: int, rate: float) -> np.ndarray:
  """Returns T with `T_ii = 1 - eta` and `T_i,(i + 1 mod K) = eta` (Co-teaching).

  The public code of RoFL and FedRN takes class i for `i - 1` instead.
  """
  return class_map_matrix((np.arange(num_classes) + 1) % num_classes, rate)


def apply_matrix(labels: np.ndarray, matrix: np.ndarray, rng: np.random.Generator) -> NoisyLabels:
  """Draws an observed label for each clean one from its row of `matrix`."""
  cumulative = _cumulative(matrix)
  draws = rng.random(len(labels))
  noisy = np.empty(len(labels), np.int32)
  # Class by class: a row of T for each example would be n x K numbers.
  for k in range(len(matrix)):
    members = np.flatnonzero(labels == k)
    noisy[members] = np.searchsorted(cumulative[k], draws[members], side='right')
  return NoisyLabels(noisy, 1 - np.diag(matrix)[labels], _warn_unidentifiable(matrix))


def _cumulative(matrix):
  """Returns the sums of each row from the left, exactly 1 from its last positive entry on."""
  cumulative = np.cumsum(matrix, axis=1)
  # Rounding may leave a sum a hair under 1, where a draw could fall off the end.
  num_classes = matrix.shape[1]
  last = num_classes - 1 - np.argmax(matrix[:, ::-1] > 0, axis=1)
  cumulative[np.arange(num_classes) >= last[:, np.newaxis]] = 1.0
  return cumulative


def _warn_unidentifiable(matrix, where=''):
  """Returns a warning if the true class is not the most frequent label of each class."""
  diagonal = np.diag(matrix)
  others = matrix - np.diag(np.full(len(matrix), np.inf))
  # With the tolerance, for eta = (K - 1) / K makes all entries equal but for rounding.
  count = np.count_nonzero(diagonal <= others.max(axis=1) + 1e-9)
  if not count:
    return ()
  return (
      f'WARNING: {where}{count} of {len(matrix)} classes are labelled as some other class at least '
      'as often as correctly, so that labels alone cannot tell which class is the true one; '
      'methods that trust the majority of labels learn the wrong one',
  )


def _none(spec, examples, rng):
  del spec, rng  # Unused.
  return NoisyLabels(examples.labels.astype(np.int32), np.zeros(len(examples.labels)))


def _symmetric(spec, examples, rng):
  return apply_matrix(examples.labels, symmetric_matrix(examples.num_classes, spec.rate), rng)


def _random(spec, examples, rng):
  return apply_matrix(examples.labels, random_matrix(examples.num_classes, spec.rate, rng), rng)


def _pairflip(spec, examples, rng):
  return apply_matrix(examples.labels, pairflip_matrix(examples.num_classes, spec.rate), rng)


def _asymmetric(spec, examples, rng):
  """Similar classes are confused, as the data set's map says (Patrini et al. 2017)."""
  similar = examples.dataset.similar_class
  if similar is None:
    raise types.UsageError(
        f'--noise=asymmetric needs a map of similar classes, none is published for '
        f'{examples.dataset.name}: use --noise=pairflip, or your own --noise=matrix --noise_matrix'
    )
  return apply_matrix(examples.labels, class_map_matrix(np.array(similar), spec.rate), rng)


def _matrix(spec, examples, rng):
  num_classes = examples.num_classes
  if spec.matrix is None:
    raise types.UsageError('--noise=matrix needs --noise_matrix, a file with a row for each class')
  if spec.matrix.shape != (num_classes, num_classes):
    raise types.UsageError(
        f'--noise_matrix has shape {spec.matrix.shape}, {examples.dataset.name} has {num_classes} '
        f'classes: give {num_classes} rows of {num_classes} numbers'
    )
  # Sums that are off by what is tolerated would otherwise all go to the last class.
  matrix = spec.matrix / spec.matrix.sum(axis=1, keepdims=True)
  return apply_matrix(examples.labels, matrix, rng)


def _human(spec, examples, rng):
  """What people said: nothing is drawn."""
  del spec, rng  # Unused.
  dataset = examples.dataset
  if dataset.human_y is None:
    raise types.UsageError(
        f'--noise=human: {dataset.name} has no human labels; use --dataset=cifar10n, cifar100n, '
        'clothing1m or npz with a clean_y array, or another noise'
    )
  labels = dataset.human_y[examples.ids].astype(np.int32)
  outside = np.count_nonzero((labels < 0) | (labels >= dataset.num_classes))
  if outside:
    raise types.UsageError(
        f'--noise=human: {outside} of {len(labels)} human labels of {dataset.name} are not within '
        f'0 to {dataset.num_classes - 1}; correct the file'
    )
  known = examples.labels != types.UNKNOWN
  return NoisyLabels(
      labels, np.where(known, labels != examples.labels, np.nan), clean_rate=HUMAN_CLEAN_RATE
  )


def _instance(spec, examples, rng):
  """Xia et al. 2020, "Part-dependent label noise", Algorithm 2: the image says what it looks like.

  Rates `q_i ~ N(eta, 0.1^2)` within [0, 1], so that the realised one is not exactly eta near the
  ends. A weight matrix `W_k ~ N(0, 1)`, S x K, for each class k; an example of class k flips with
  probability q_i, to class j with the softmax of `x_i W_k` over the classes other than k.
  """
  dataset = examples.dataset
  if dataset.train_x.dtype.kind == 'S':
    raise types.UsageError(
        f'--noise=instance looks at all pixels, {dataset.name} are image files that are read only '
        'where a client computes: use --noise=symmetric, pairflip, random or matrix'
    )
  rates = _truncated_normal(spec.rate, len(examples.ids), rng)
  draws = rng.random(len(examples.ids))
  labels = examples.labels.copy()
  mean = np.eye(dataset.num_classes)
  pixels = int(np.prod(dataset.train_x.shape[1:]))
  for k in np.unique(labels):
    members = np.flatnonzero(examples.labels == k)
    weights = rng.standard_normal((pixels, dataset.num_classes), np.float32)
    flipped = np.zeros(dataset.num_classes)
    for chunk in _chunks(members, pixels):
      shares = _softmax_of_others(_pixels(dataset, examples.ids[chunk]) @ weights, k)
      labels[chunk] = _draw_flips(k, rates[chunk], shares, draws[chunk])
      flipped += rates[chunk] @ shares
    mean[k] = flipped / len(members)
    mean[k, k] = 1 - mean[k].sum()
  notes = _warn_unidentifiable(mean, 'averaged over the images, ')
  if abs(rates.mean() - spec.rate) > _FAR_FROM_RATE:
    notes += (
        f'rates are drawn from N({spec.rate:g}, {_INSTANCE_STDDEV:g}^2) within [0, 1], and come to '
        f'{rates.mean():.1%} on average',
    )
  return NoisyLabels(labels, rates, notes)


def _truncated_normal(mean, n, rng):
  """Draws float64 `[n]` from `N(mean, 0.1^2)` within [0, 1]."""
  low, high = (np.array([0, 1]) - mean) / _INSTANCE_STDDEV
  return stats.truncnorm.rvs(
      low, high, loc=mean, scale=_INSTANCE_STDDEV, size=n, random_state=rng
  )


def _chunks(members, pixels):
  """Splits `members` so that the pixels of a part are few enough to be floats together."""
  rows = max(1, min(_CHUNK, _CHUNK_PIXELS // pixels))
  return (members[i:i + rows] for i in range(0, len(members), rows))


def _pixels(dataset, ids):
  """Returns float32 `[m, S]`, what the model would see, flattened."""
  scale, offset = np.float32(dataset.pixel_scale), np.float32(dataset.pixel_offset)
  return (dataset.train_x[ids] * scale + offset).reshape(len(ids), -1)


def _softmax_of_others(logits, k):
  """Returns float64 `[m, K]`, the softmax over the classes other than k, and 0 for k."""
  logits[:, k] = -np.inf
  return special.softmax(logits.astype(np.float64), axis=1)


def _draw_flips(k, rates, shares, draws):
  """Returns `[m]`: k where `draws >= rates`, otherwise a class by its share."""
  cumulative = np.cumsum(shares, axis=1)
  cumulative /= cumulative[:, -1:]  # Ends in exactly 1: a draw below the rate finds a class.
  changed = (draws[:, np.newaxis] >= rates[:, np.newaxis] * cumulative).sum(axis=1)
  return np.where(draws < rates, changed, k)


def _client_uniform(spec, examples, rng):
  """FedCorr, section 3.1: some clients label a share mu ~ Unif(tau, 1) of theirs at random.

  A client is noisy with probability rho. The new label is uniform over all K classes, the true one
  included: a label changes with probability `mu (K - 1) / K`. The public code has the new label
  from `randint(0, 10)`, whatever K is; that is not reproduced.
  """
  client_of, num_classes = examples.client_of, examples.num_classes
  is_noisy = rng.random(examples.num_clients) < spec.rho
  mu = np.where(is_noisy, rng.uniform(spec.tau, 1, examples.num_clients), 0)
  chosen = SEMANTICS[spec.semantics](client_of, mu, rng)
  uniform = rng.integers(num_classes, size=len(client_of), dtype=np.int32)
  labels = np.where(chosen, uniform, examples.labels)
  notes = ()
  if spec.rho and not is_noisy.any():
    notes = (f'no client is noisy: none of {len(mu)} was drawn with rho {spec.rho:g}',)
  return NoisyLabels(labels, mu[client_of] * (num_classes - 1) / num_classes, notes)


def _choose_exactly(client_of, mu, rng):
  """Chooses exactly `round(mu_c * n_c)` examples of each client, at random (the paper)."""
  sizes = np.bincount(client_of, minlength=len(mu))
  order = rng.permutation(len(client_of))
  by_client = order[np.argsort(client_of[order], kind='stable')]
  rank = np.arange(len(client_of)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
  chosen = np.empty(len(client_of), bool)
  chosen[by_client] = rank < np.repeat(np.rint(mu * sizes), sizes)
  return chosen


def _choose_independently(client_of, mu, rng):
  """Chooses each example with probability `mu_c` (FedCorr's public code)."""
  return rng.random(len(client_of)) < mu[client_of]


SEMANTICS = {'paper': _choose_exactly, 'reference': _choose_independently}


def _client_symmetric(spec, examples, rng):
  """ClipFL: exactly `round(rho * C)` clients have symmetric noise of rate mu."""
  client_of, num_classes = examples.client_of, examples.num_classes
  count = round(spec.rho * examples.num_clients)
  mu = np.zeros(examples.num_clients)
  mu[rng.choice(examples.num_clients, count, replace=False)] = spec.rate
  changed = rng.random(len(client_of)) < mu[client_of]
  shift = rng.integers(1, num_classes, size=len(client_of), dtype=np.int32)
  labels = (examples.labels + changed * shift) % num_classes
  matrix = symmetric_matrix(num_classes, mu.max(initial=0))
  notes = _warn_unidentifiable(matrix, 'at the noisy clients, ')
  if not count and spec.rho > 0:
    notes = (f'no client is noisy: rho {spec.rho:g} of {len(mu)} clients is none',)
  return NoisyLabels(labels, mu[client_of], notes)


NOISES = {
    'none': _none,
    'symmetric': _symmetric,
    'random': _random,
    'pairflip': _pairflip,
    'asymmetric': _asymmetric,
    'instance': _instance,
    'matrix': _matrix,
    'human': _human,
    'client_uniform': _client_uniform,
    'client_symmetric': _client_symmetric,
}


def needs_clients(name: str) -> bool:
  """Whether the noise called `name` has a rate for each client, so that the split comes first."""
  return name in ('client_uniform', 'client_symmetric')


def check(spec: NoiseSpec) -> None:
  """Raises `UsageError` if a value is out of its range, as far as that is known without data.

  That 'matrix' has a matrix at all is for `corrupt` to see: flags are checked before files.
  """
  for flag, holds, allowed, value in (
      ('noise', spec.name in NOISES, f'one of {", ".join(NOISES)}', spec.name),
      ('noise_rate', 0 <= spec.rate <= 1, 'in [0, 1]', spec.rate),
      ('noise_rho', 0 <= spec.rho <= 1, 'in [0, 1]', spec.rho),
      ('noise_tau', 0 <= spec.tau < 1, 'in [0, 1)', spec.tau),
      ('noise_semantics', spec.semantics in SEMANTICS, ' or '.join(SEMANTICS), spec.semantics),
  ):
    if not holds:
      raise types.UsageError(f'--{flag} must be {allowed}, got {value}')
  if spec.name == 'matrix' and spec.matrix is not None:
    _check_matrix(spec.matrix)


def _check_matrix(matrix):
  """Raises `UsageError` unless `matrix` is square and its rows are distributions."""
  if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
    raise types.UsageError(
        f'--noise_matrix must have a row and a column for each class, got shape {matrix.shape}'
    )
  bad = np.argwhere(~(matrix >= 0))
  if len(bad):
    i, j = bad[0]
    raise types.UsageError(
        f'--noise_matrix must have no entry below 0, got {matrix[i, j]} in row {i}, column {j} '
        '(from 0)'
    )
  sums = matrix.sum(axis=1)
  bad = np.flatnonzero(~(np.abs(sums - 1) <= _TOLERANCE))
  if len(bad):
    raise types.UsageError(
        f'--noise_matrix: row {bad[0]} (from 0) sums to {sums[bad[0]]:g}, every row must sum to 1'
    )


def corrupt(
    spec: NoiseSpec,
    dataset: types.Dataset,
    ids: np.ndarray,
    *,
    client_of: np.ndarray | None = None,
    num_clients: int = 0,
    rng: np.random.Generator,
) -> NoisyLabels:
  """Draws the observed labels of some training examples.

  Args:
    spec: What they are drawn from.
    dataset: The data set.
    ids: int `[m]`, positions of the examples in its training data.
    client_of: int32 `[m]` in `[0, num_clients)`, who holds them. Only the noises that
      `needs_clients` look at it, and cannot do without.
    num_clients: C.
    rng: Source.

  Raises:
    types.UsageError: If the specification is wrong, or does not suit the data.
    ValueError: If the noise needs `client_of` and there is none.
  """
  check(spec)
  if needs_clients(spec.name) and client_of is None:
    raise ValueError(f'the noise {spec.name} needs client_of')
  labels = dataset.train_y[ids].astype(np.int32)
  unknown = np.count_nonzero(labels == types.UNKNOWN)
  if unknown and spec.name != 'human':
    raise types.UsageError(
        f'--noise={spec.name} changes true labels, {unknown} of {len(labels)} training examples of '
        f'{dataset.name} have none that is known: use --noise=human'
    )
  return NOISES[spec.name](spec, _Examples(dataset, ids, labels, client_of, num_clients), rng)
