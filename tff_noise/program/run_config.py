"""The resolved configuration of a run, checked before anything heavy is loaded."""

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Sequence

from tff_noise import params as params_lib
from tff_noise import step_sizes
from tff_noise import types
from tff_noise.algorithms import catalog
from tff_noise.data import matrix_file
from tff_noise.data import noise
from tff_noise.data import partition
from tff_noise.data import scene
from tff_noise.data import sources
from tff_noise.optimizers import catalog as optimizers
from tff_noise.privacy import estimator
from tff_noise.privacy import mechanism
from tff_noise.privacy import noise_key
from tff_noise.selection import availability

# Far below float32's own: a step size times a gradient has to stay finite.
_LARGEST = 1e30
MODELS = ('mlp', 'cnn', 'resnet18', 'resnet34', 'resnet50', 'vit_tiny')
NORMS = ('group', 'batch')
LOCAL_OPTIMIZERS = ('sgd', 'adam')
LOG_LEVELS = ('quiet', 'info', 'debug')
AUGMENTATIONS = ('none', 'crop_flip')
TEMPERATURE_READINGS = ('divide', 'rescale')
AGGREGATIONS = ('mean', 'secure_sum')
# What else they may be.
_OWN = {
    'method': '; or package.module:ENTRY of your own',
    'model': '; or package.module:function of your own',
    'aggregation': (
        "; or package.module:function of your own or of TFF's, "
        'tensorflow_federated.python.learning:robust_aggregator for one'
    ),
}
RUNTIMES = ('local', 'remote', 'accelerator')
TRAINING_LABELS = ('local', 'private')
CLIENT_SAMPLINGS = ('fixed', 'poisson', 'cyclic')
CLIENT_DP_MECHANISMS = ('gaussian', 'discrete_gaussian', 'tree')

# Where a run lies and how it is executed never change its result, but for the last bits of numbers
# that another runtime sums in another order; so a run may be continued with other values of these.
EXECUTION_ONLY = frozenset({
    'root_dir', 'run_name', 'resume', 'resume_other_code', 'overwrite', 'extend', 'runtime',
    'workers', 'max_concurrent_clients', 'checkpoint_every', 'metrics_hook', 'log_level',
})


@dataclasses.dataclass(frozen=True)
class RunConfig:
  """One field for each flag, of the same name; `flags.py` documents them.

  Raises:
    types.UsageError: On construction, if a value is out of range or two do not fit together.
  """

  method: str
  param: tuple[str, ...]
  base: str
  base_param: tuple[str, ...]
  stages: str | None
  allow_per_client_disclosure: bool
  dataset: str
  data_dir: str | None
  human_labels: str
  subset: int
  validation_fraction: float
  validation_dir: str | None
  client_validation_fraction: float
  public_dataset: str | None
  public_dir: str | None
  public_examples: int
  clients: int
  partition: str
  partition_p: float
  partition_alpha: float
  partition_min_size: int
  openset_q: str
  scene: str | None
  centralised: bool
  noise: str
  noise_rate: float
  noise_rho: float
  noise_tau: float
  noise_semantics: str
  noise_matrix: str | None
  model: str
  norm: str
  image_size: int
  weights: str | None
  rounds: int
  early_stopping: int
  average_models: float
  clients_per_round: int
  client_sampling: str
  arrivals: str | None
  local_epochs: int
  batch_size: int
  learning_rate: float
  learning_rate_schedule: str
  local_optimizer: str
  momentum: float
  weight_decay: float
  augmentation: str
  label_smoothing: float
  temperature: float
  temperature_reading: str
  mixup_alpha: float
  logit_adjustment: float
  seed: int
  aggregation: str
  update_bound: float
  label_epsilon: str
  label_prior: str
  training_labels: str
  client_dp_noise: float
  client_dp_clip: float
  client_dp_mechanism: str
  target_client_epsilon: float | None
  noise_source: str
  debug_client_errors: bool
  runtime: str
  workers: tuple[str, ...]
  max_concurrent_clients: int | None
  mixed_precision: bool
  run_name: str | None
  root_dir: str
  resume: bool
  resume_other_code: bool
  overwrite: bool
  extend: str | None
  eval_every: int
  checkpoint_every: int
  metrics_hook: str | None
  log_level: str

  def __post_init__(self):
    self._require_choices()
    self._require_counts()
    self._require_training()
    self._require_client_dp()
    self._require_early_stopping()
    self._require_data()
    self._require('seed', 0 <= self.seed < 2**63, 'in [0, 2**63)')
    self._require_clients()
    self._require_run_name()
    self.method_params()
    self.base_params()
    self.stage_lengths()
    self._require_turns()
    self._require_disclosure()
    self._require_visible_models()
    self._require_private_labels()
    self._require_workers()

  def _require_choices(self):
    for name, allowed in (
        ('method', catalog.ALGORITHMS if ':' not in self.method else (self.method,)),
        ('dataset', sources.DATASETS),
        ('partition', partition.PARTITIONS),
        ('noise', noise.NOISES),
        ('model', MODELS if ':' not in self.model else (self.model,)),
        ('norm', NORMS),
        ('augmentation', AUGMENTATIONS),
        ('local_optimizer', LOCAL_OPTIMIZERS),
        ('temperature_reading', TEMPERATURE_READINGS),
        ('aggregation', AGGREGATIONS if ':' not in self.aggregation else (self.aggregation,)),
        ('label_prior', (*estimator.PRIORS, 'uniform')),
        ('training_labels', TRAINING_LABELS),
        ('client_sampling', CLIENT_SAMPLINGS),
        ('client_dp_mechanism', CLIENT_DP_MECHANISMS),
        ('noise_source', noise_key.SOURCES),
        ('runtime', RUNTIMES),
        ('log_level', LOG_LEVELS),
    ):
      own = _OWN.get(name, '')
      self._require(name, getattr(self, name) in allowed, 'one of ' + ', '.join(allowed) + own)

  def _require_counts(self):
    for name in ('clients', 'clients_per_round', 'rounds', 'local_epochs', 'batch_size',
                 'eval_every', 'checkpoint_every', 'public_examples'):
      self._require(name, getattr(self, name) >= 1, 'at least 1')
    for name in ('local_epochs', 'batch_size'):
      most = params_lib.LARGEST_COUNT
      self._require(name, getattr(self, name) <= most, f'at most {most}')
    at_once = self.max_concurrent_clients
    self._require('max_concurrent_clients', at_once is None or at_once >= 1, 'at least 1')

  def _require_training(self):
    step_sizes.parse(self.learning_rate_schedule)  # Its mistakes are told here.
    for name in ('learning_rate', 'temperature'):
      self._require(name, 0 < getattr(self, name) <= _LARGEST, 'a positive number')
    # Times a client's number of examples, and the clients of a round, it has to be a float32.
    self._require('update_bound', 0 < self.update_bound <= 1e9, 'a positive number, at most 1e9')
    self._require('weight_decay', 0 <= self.weight_decay <= _LARGEST, 'at least 0')
    self._require('momentum', 0 <= self.momentum < 1, 'in [0, 1)')
    if self.local_optimizer != 'sgd':
      self._require(
          'momentum', not self.momentum, f'0 with --local_optimizer={self.local_optimizer}'
      )
    self._require(
        'mixup_alpha',
        not self.mixup_alpha or types.SMALLEST_MIXUP_ALPHA <= self.mixup_alpha <= 1e6,
        f'0, for none, or from {types.SMALLEST_MIXUP_ALPHA} to 1e6',
    )
    self._require('logit_adjustment', 0 <= self.logit_adjustment <= 1e6, 'from 0 to 1e6')
    if self.logit_adjustment and self.training_labels == 'private':
      raise types.UsageError(
          '--logit_adjustment cannot be given with --training_labels=private: it counts labels, '
          'and these are flipped; leave one of them out'
      )

  def _require_client_dp(self):
    # As a float32, it has to be a normal number.
    clip = self.client_dp_clip
    self._require('client_dp_clip', 1e-30 <= clip <= _LARGEST, 'in [1e-30, 1e30]')
    multiplier = self.client_dp_noise
    self._require(
        'client_dp_noise', multiplier == 0 or 1e-4 <= multiplier <= 1e6, '0, or in [1e-4, 1e6]'
    )
    target = self.target_client_epsilon
    self._require(
        'target_client_epsilon', target is None or 0 < target <= 1e6, 'positive, at most 1e6'
    )
    self._require_poisson_sampling()
    if ':' in self.aggregation and (multiplier or target is not None):
      raise types.UsageError(
          '--aggregation of your own cannot be given with client DP, which aggregates by itself'
      )
    if self.client_dp_mechanism == 'discrete_gaussian' and self.arrivals is not None:
      raise types.UsageError(
          '--client_dp_mechanism=discrete_gaussian cannot be given with --arrivals: every client '
          'of a cohort of fixed size has to add its share of the noise'
      )

  def _require_early_stopping(self):
    self._require('early_stopping', self.early_stopping >= 0, 'at least 0')
    self._require('average_models', 0 <= self.average_models < 1, 'at least 0 and below 1')
    if self.early_stopping and (self.client_dp_noise or self.target_client_epsilon is not None):
      raise types.UsageError(
          '--early_stopping cannot be given with client DP, whose cost has to be known before a '
          'run; --target_client_epsilon ends one'
      )

  def _require_data(self):
    for name in ('validation_fraction', 'client_validation_fraction', 'label_smoothing'):
      self._require(name, 0 <= getattr(self, name) < 1, 'in [0, 1)')
    if self.validation_dir is not None and self.validation_fraction:
      raise types.UsageError(
          '--validation_dir and --validation_fraction cannot be given together: both say what the '
          'server validates on'
      )
    if self.public_dataset is not None:
      self._require('public_dataset', self.public_dataset in sources.DATASETS,
                    'one of ' + ', '.join(sources.DATASETS))
    elif self.public_dir is not None:
      raise types.UsageError('--public_dir is given without --public_dataset: name the data set')
    for name in ('image_size', 'subset'):
      self._require(name, getattr(self, name) >= 0, 'at least 0')
    self._require_human_labels()

  def _require_clients(self):
    if self.scene is None:
      noise.check(self._noise_spec(matrix=None))
      partition.check(self._partition_spec(self._q(of_file=0.5)))
      if self.partition != 'natural' and not self.centralised:
        self.check_clients(self.clients)
    if self.centralised:
      self._require('clients_per_round', self.clients_per_round == 1, '1 with --centralised')
      self.check_clients(1)

  def _require_run_name(self):
    if self.run_name is not None:
      self._require(
          'run_name',
          re.fullmatch(r'[A-Za-z0-9][A-Za-z0-9._-]{0,199}', self.run_name) is not None,
          'at most 200 letters, digits, dots, dashes and underscores, the first a letter or digit',
      )

  def _require(self, name, holds, allowed):
    if not holds:
      value = getattr(self, name)
      got = 'nothing' if value in (None, ()) else value
      raise types.UsageError(f'--{name} must be {allowed}, got {got}')

  def _require_human_labels(self):
    """Data sets that are sets of human labels are not for synthetic noise."""
    names = ('cifar10n', 'cifar100n', 'clothing1m')
    if self.scene is None and self.dataset in names:
      self._require('noise', self.noise == 'human', f'human for --dataset={self.dataset}')

  def _require_turns(self):
    """Where clients have turns, nothing else says who takes part; a tree of noise needs them."""
    if self.client_sampling != 'cyclic':
      if self.client_dp_mechanism == 'tree':
        raise types.UsageError(
            '--client_dp_mechanism=tree needs --client_sampling=cyclic: what it costs depends on '
            'how often a client takes part, which has to be known'
        )
      return
    if self.arrivals is not None:
      raise types.UsageError(
          '--client_sampling=cyclic cannot be given with --arrivals: a client whose turn it is has '
          'to be there'
      )
    for name in self._of_which('chooses_clients'):
      raise types.UsageError(
          f'--client_sampling=cyclic cannot be given with {name}, which chooses clients itself'
      )

  def _of_which(self, attribute):
    """The method and the optimizer of whose entries in the catalogs this holds, as flags."""
    entries = {f'--method={self.method}': catalog.entry(self.method)}
    if self.base:
      entries[f'--base={self.base}'] = optimizers.OPTIMIZERS[self.base]
    return [name for name, entry in entries.items() if getattr(entry, attribute)]

  def _require_disclosure(self):
    """What a secure sum cannot hide has to be asked for."""
    if self.allow_per_client_disclosure:
      return
    shown = {self.method: catalog.entry(self.method).per_client}
    if self.base:
      shown[f'--base={self.base}'] = optimizers.OPTIMIZERS[self.base].per_client
    for name, what in shown.items():
      if what:
        raise types.UsageError(
            f'{name} shows the server {what}; no secure aggregation can hide that, since the '
            'server needs to know whose it is: allow it with --allow_per_client_disclosure, or use '
            'another method'
        )

  def _require_visible_models(self):
    """A secure sum has nothing to compare."""
    if self.aggregation == 'mean':
      return
    for name in self._of_which('compares_models'):
      raise types.UsageError(
          f'--aggregation={self.aggregation} cannot be given with {name}: the server compares the '
          'models of single clients, of which a sum keeps nothing'
      )

  def _require_poisson_sampling(self):
    """Cohorts of any size are for a server that adds noise to whatever comes."""
    if self.client_sampling != 'poisson':
      return
    given = '--client_sampling=poisson'
    noisy = self.client_dp_noise or self.target_client_epsilon is not None
    self._require('client_dp_noise', noisy, f'above 0 with {given}')
    self._require(
        'client_dp_mechanism', self.client_dp_mechanism == 'gaussian', f'gaussian with {given}'
    )
    self._require('aggregation', self.aggregation == 'mean', f'mean with {given}')
    if self.arrivals is not None:
      raise types.UsageError(
          f'{given} cannot be given with --arrivals: every client has to be there with the same '
          'probability in every round; use --client_sampling=fixed'
      )

  def _require_private_labels(self):
    """What trains on reports instead of labels needs a flip, and labels that stay."""
    if self.training_labels == 'local':
      return
    self._require('label_prior', self.label_prior != 'none',
                  'another than none with --training_labels=private')
    if catalog.entry(self.method).corrects_labels:
      raise types.UsageError(
          f'--training_labels=private cannot be given with --method={self.method}, which corrects '
          'labels: the loss on flipped labels is right only as long as they stay as they are'
      )

  def _require_workers(self):
    """Who computes clients elsewhere has to say where."""
    if self.runtime != 'remote':
      self._require('workers', not self.workers, f'empty with --runtime={self.runtime}')
      return
    self._require('workers', bool(self.workers), 'HOST:PORT,... with --runtime=remote')
    for address in self.workers:
      if not re.fullmatch(r'(\[[0-9a-fA-F:.]+\]|[\w-]{1,63}(\.[\w-]{1,63})*):[0-9]{1,5}', address):
        raise types.UsageError(f'--workers must be HOST:PORT,..., got {address!r}')
    if len(set(self.workers)) < len(self.workers):
      raise types.UsageError('--workers names one worker twice')

  def check_clients(self, num_clients: int) -> None:
    """Raises `UsageError` if there are too few clients, drawn or of a loaded scene."""
    if self.clients_per_round > num_clients:
      raise types.UsageError(
          f'--clients_per_round must be at most the number of clients, {num_clients}, '
          f'got {self.clients_per_round}'
      )
    fewest = catalog.entry(self.method).fewest_clients
    if num_clients < fewest:
      raise types.UsageError(
          f'{self.method} needs at least {fewest} clients, got {num_clients}: a sum over fewer '
          f'hides nothing; {self._for_more_clients()}'
      )

  def _for_more_clients(self):
    if self.centralised:
      return 'leave --centralised out'
    drawn = self.scene is None and self.partition != 'natural'
    return 'use more --clients' if drawn else 'use another --method'

  def check_with_data(self, num_examples: int, num_classes: int) -> None:
    """Raises `UsageError` if the data set is too small, or epsilon does not suit its classes."""
    drawn = self.scene is None and self.partition != 'natural'
    if drawn and self.clients > num_examples:
      raise types.UsageError(
          f'--clients must be at most the {num_examples} training examples of {self.dataset}, '
          f'got {self.clients}'
      )
    try:
      mechanism.randomized_response(self.label_epsilon, num_classes)
    except types.UsageError as error:
      raise types.UsageError(f'--label_epsilon: {error}') from error

  def method_params(self):
    """Returns the parameters of the method, its own dataclass."""
    return params_lib.parse(self.method, catalog.entry(self.method).params, self.param)

  def base_params(self):
    """Returns the parameters of the optimizer that --base names, its own dataclass; or None.

    Raises:
      types.UsageError: If there is no such optimizer, or the method does not run on another.
    """
    if not self.base:
      if self.base_param:
        raise types.UsageError('--base_param needs --base: the optimizer whose parameters they are')
      return None
    self._require('base', self.base in optimizers.OPTIMIZERS,
                  'one of ' + ', '.join(optimizers.OPTIMIZERS))
    if not catalog.entry(self.method).takes_base:
      able = ', '.join(name for name, m in catalog.ALGORITHMS.items() if m.takes_base)
      raise types.UsageError(
          f'--base cannot be given with --method={self.method}, which brings its own optimizer, '
          f'only with {able}, and with entries of your own that say takes_base=True'
      )
    return params_lib.parse(
        self.base, optimizers.OPTIMIZERS[self.base].params, self.base_param, '--base_param'
    )

  def stage_lengths(self) -> dict[str, int]:
    """Returns the lengths that --stages gives, by name.

    Raises:
      types.UsageError: If it is no list of lengths, or the method has no such stage.
    """
    known = catalog.entry(self.method).stages
    lengths = {}
    for part in self.stages.split(',') if self.stages else ():
      match = re.fullmatch(r'\s*(\w+):([0-9]{1,6})\s*', part)
      if match is None:
        raise types.UsageError(f'--stages must be NAME:LENGTH,..., got {part!r}')
      name, length = match.groups()
      if name not in known or name in lengths:
        raise types.UsageError(
            f'--stages: {name} {"is given twice" if name in lengths else "is no stage"}; '
            f'{self.method} has {", ".join(known) or "none"}'
        )
      lengths[name] = int(length)
    return lengths

  def availability(
      self, num_clients: int, client_names: Sequence[str] = ()
  ) -> availability.Availability:
    """Returns who is there in which round, see `availability.parse`.

    Raises:
      types.UsageError: If --arrivals cannot be read.
    """
    if self.arrivals is None:
      return availability.always(num_clients)
    return availability.parse(self.arrivals, num_clients, self.seed, client_names)

  def data_spec(self) -> sources.DataSpec:
    """Returns what the data set is read from."""
    return sources.DataSpec(self.dataset, self.data_dir, self.human_labels, self.image_size)

  def scene_spec(self) -> scene.SceneSpec:
    """Returns what the scene is drawn from; reads the files that flags name.

    Raises:
      types.UsageError: If such a file is missing or is not a matrix of numbers.
    """
    matrix = None
    if self.noise == 'matrix':
      self._require('noise_matrix', self.noise_matrix is not None, 'given with --noise=matrix')
      matrix = matrix_file.read(self.noise_matrix, '--noise_matrix')
    return scene.SceneSpec(
        self._partition_spec(self._q()), self._noise_spec(matrix), self.validation_fraction,
        self.client_validation_fraction,
    )

  def _partition_spec(self, q):
    return partition.PartitionSpec(
        self.partition,
        self.clients,
        p=self.partition_p,
        alpha=self.partition_alpha,
        min_size=self.partition_min_size,
        q=q,
    )

  def check_starts_anew(self) -> None:
    """Raises `UsageError` if a later stage starts anew, and a flag takes all for one training."""
    entry = catalog.entry(self.method)
    anew = entry.starts_anew(self.method_params(), self.stage_lengths())
    if self.weights is not None and anew:
      raise types.UsageError(
          f'--weights cannot be given with {anew} of {self.method}, which starts anew from weights '
          'drawn by --seed: leave one of them out'
      )
    if self.early_stopping and anew:
      raise types.UsageError(
          f'--early_stopping cannot be given with {anew} of {self.method}, which starts anew: its '
          'models would have to be better than those of the stages before; leave one of them out'
      )

  def check_openset_q(self) -> None:
    """Raises `UsageError` if a file that --openset_q names is missing or does not fit."""
    partition.check(self._partition_spec(self._q()))

  def _q(self, of_file=None):
    """Q: one number for all clients and classes, or a file of them; what it has, if not given."""
    try:
      return float(self.openset_q)
    except ValueError:
      if not self.openset_q.lower().endswith(matrix_file.SUFFIXES):
        raise types.UsageError(
            f'--openset_q must be a number in (0, 1), or a file of numbers '
            f'({", ".join(matrix_file.SUFFIXES)}), got {self.openset_q!r}'
        ) from None
      if of_file is not None:
        return of_file  # It is read where the scene is drawn: a run has its scene.
      return matrix_file.read(self.openset_q, '--openset_q')

  def _noise_spec(self, matrix):
    return noise.NoiseSpec(
        self.noise,
        rate=self.noise_rate,
        rho=self.noise_rho,
        tau=self.noise_tau,
        semantics=self.noise_semantics,
        matrix=matrix,
    )

  @property
  def local_training(self) -> types.LocalTraining:
    """The flags of local training."""
    return types.LocalTraining(
        self.local_epochs,
        self.batch_size,
        self.learning_rate,
        self.momentum,
        self.weight_decay,
        self.augmentation,
        types.CrossEntropy(self.label_smoothing, self.temperature, self.temperature_reading),
        self.local_optimizer,
        step_sizes.parse(self.learning_rate_schedule),
        self.mixup_alpha,
        self.logit_adjustment,
    )

  def identity(self) -> dict[str, object]:
    """Returns the flags that determine the result, as JSON has them."""
    values = {k: v for k, v in dataclasses.asdict(self).items() if k not in EXECUTION_ONLY}
    return {**values, 'param': sorted(self.param), 'base_param': sorted(self.base_param)}

  def execution(self) -> dict[str, object]:
    """Returns the other flags: where a run lies and how it was first executed."""
    return {k: v for k, v in dataclasses.asdict(self).items() if k in EXECUTION_ONLY}

  def path(self) -> str:
    """Returns where the run directory lies."""
    return os.path.join(self.root_dir, self.name())

  def name(self) -> str:
    """Returns `run_name`, or a name that is a function of `identity`."""
    if self.run_name is not None:
      return self.run_name
    text = json.dumps(self.identity(), sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    method = re.sub(r'[^A-Za-z0-9]+', '-', self.method)
    return f'{method}_{self.dataset}_seed{self.seed}_{digest}'
