"""Parameters of the federated optimizers, without TensorFlow: checked before it is loaded."""

import dataclasses

from tff_noise import params as params_lib


@dataclasses.dataclass(frozen=True)
class ARFLParams:
  """Parameters of residual-based reweighting.

  Attributes:
    weight: lambda, positive: the larger, the farther a value may lie from the line and count fully.
    threshold: delta, in [0, 1): below which share of its weight a value is moved to the line.
  """

  weight: float = 2.0
  threshold: float = 0.1

  def __post_init__(self):
    params_lib.require_positive(self, 'weight')
    params_lib.require_share(self, 'threshold')


@dataclasses.dataclass(frozen=True)
class FedAvgParams:
  """FedAvg's own parameters.

  Attributes:
    server_learning_rate: alpha_g, positive.
  """

  server_learning_rate: float = 1.0

  def __post_init__(self):
    params_lib.require_positive(self, 'server_learning_rate')


@dataclasses.dataclass(frozen=True)
class FedProxParams:
  """FedProx's own parameters.

  Attributes:
    mu: Weight of the proximal term; 0 is FedAvg.
    term: 'squared' for `mu/2 ||w - w_t||^2`, 'norm' for `mu ||w - w_t||`.
  """

  mu: float = 0.001
  term: str = params_lib.read_if('squared', 'mu')

  def __post_init__(self):
    params_lib.require_not_negative(self, 'mu')
    params_lib.require_one_of(self, 'term', ('squared', 'norm'))


@dataclasses.dataclass(frozen=True)
class FedNovaParams:
  """FedNova has no parameters: the momentum is that of local training."""


@dataclasses.dataclass(frozen=True)
class FedAdamParams:
  """Parameters of FedAdam and FedYogi.

  Attributes:
    server_learning_rate: eta, positive.
    beta1: Decay of the first moment, in [0, 1).
    beta2: Decay of the second moment, in [0, 1).
    tau: Adaptivity, positive: smaller adapts more.
  """

  server_learning_rate: float = 0.01
  beta1: float = 0.9
  beta2: float = 0.99
  tau: float = 0.001

  def __post_init__(self):
    params_lib.require_positive(self, 'server_learning_rate', 'tau')
    params_lib.require_share(self, 'beta1', 'beta2')


@dataclasses.dataclass(frozen=True)
class FedAdagradParams:
  """Parameters of FedAdagrad.

  Attributes:
    server_learning_rate: eta, positive.
    beta1: Decay of the first moment, in [0, 1); 0 as Adagrad has none.
    tau: Adaptivity, positive: smaller adapts more.
  """

  server_learning_rate: float = 0.01
  beta1: float = 0.0
  tau: float = 0.001

  def __post_init__(self):
    params_lib.require_positive(self, 'server_learning_rate', 'tau')
    params_lib.require_share(self, 'beta1')


@dataclasses.dataclass(frozen=True)
class FedDynParams:
  """FedDyn's own parameters.

  Attributes:
    alpha: Weight of the dynamic regulariser, positive.
  """

  alpha: float = 0.01

  def __post_init__(self):
    params_lib.require_positive(self, 'alpha')


@dataclasses.dataclass(frozen=True)
class ScaffoldParams:
  """SCAFFOLD's own parameters.

  Attributes:
    server_learning_rate: eta_g, positive.
  """

  server_learning_rate: float = 1.0

  def __post_init__(self):
    params_lib.require_positive(self, 'server_learning_rate')


@dataclasses.dataclass(frozen=True)
class FedBNParams:
  """FedBN has no parameters."""


@dataclasses.dataclass(frozen=True)
class MedianParams:
  """The median has no parameters of its own."""


@dataclasses.dataclass(frozen=True)
class PowerOfChoiceParams:
  """Power-of-Choice's own parameters.

  Attributes:
    candidates: d, at least the clients of a round (with so many, it is a draw in proportion to
      examples).
    loss: 'all', of all of a candidate's examples; 'batch', of one batch (cpow-d); 'stale', of the
      last time it took part (rpow-d).
  """

  candidates: int = 20
  loss: str = 'all'

  def __post_init__(self):
    params_lib.require_positive(self, 'candidates')
    params_lib.require_one_of(self, 'loss', ('all', 'batch', 'stale'))
