"""Parameters of the algorithms, without TensorFlow: read and checked before it is loaded.

FedCorr's, which are many, are in `fedcorr_params`.
"""

import dataclasses

from tff_noise import params as params_lib
from tff_noise.selection import candidacy


@dataclasses.dataclass(frozen=True)
class ClipFLParams:
  """ClipFL's own parameters.

  Attributes:
    keep: m, how many models of a round are averaged in the first phase, at most the cohort's size.
    prune: p, the share of clients that is pruned, in [0, 1).
    score: 'count', the paper's number of candidacies, or 'rate', candidacies per participation.
    selector: By what models are compared: 'validation', 'agreement' or 'lid'.
    lid_neighbours: k of the LID score, at least 2.
  """

  keep: int = 5
  prune: float = 0.5
  score: str = 'count'
  selector: str = 'validation'
  lid_neighbours: int = 20

  def __post_init__(self):
    params_lib.require_positive(self, 'keep')
    params_lib.require_share(self, 'prune')
    params_lib.require_one_of(self, 'score', candidacy.SCORES)
    params_lib.require_one_of(self, 'selector', ('validation', 'agreement', 'lid'))
    if self.lid_neighbours < 2:
      raise ValueError(f'lid_neighbours must be at least 2, got {self.lid_neighbours}')


@dataclasses.dataclass(frozen=True)
class ELRParams:
  """ELR's own parameters.

  Attributes:
    weight: lambda of the regulariser, at least 0; at 0 the method is FedAvg.
    beta: How much of an example's target stays when its next prediction enters, in [0, 1).
  """

  weight: float = 3.0
  beta: float = 0.7

  def __post_init__(self):
    params_lib.require_not_negative(self, 'weight')
    params_lib.require_share(self, 'beta')


@dataclasses.dataclass(frozen=True)
class CoTeachingParams:
  """Co-teaching's own parameters.

  Attributes:
    forget_rate: tau, the share of a batch that is left out in the end, in [0, 1). The paper takes
      the true rate of noise, which nobody knows outside of a simulation.
    ramp_rounds: T_k, rounds over which the share rises linearly from 0, at least 1.
    schedule: 'paper', which starts at 0 and reaches tau in round T_k + 1, or 'code', the public
      code's, which starts above 0 and reaches it in round T_k - 1.
    initial: 'different' initial weights of the two networks, or 'equal' ones, as FedDPCont's
      appendix has them, with which they stay equal but for rounding.
    evaluate: What is evaluated, the 'first' network or the 'mean_probability' of both.
  """

  forget_rate: float = 0.2
  ramp_rounds: int = 10
  schedule: str = 'paper'
  initial: str = 'different'
  evaluate: str = 'first'

  def __post_init__(self):
    params_lib.require_share(self, 'forget_rate')
    params_lib.require_positive(self, 'ramp_rounds')
    params_lib.require_one_of(self, 'schedule', ('paper', 'code'))
    params_lib.require_one_of(self, 'initial', ('different', 'equal'))
    params_lib.require_one_of(self, 'evaluate', ('first', 'mean_probability'))


@dataclasses.dataclass(frozen=True)
class FedDPContParams:
  """FedDPCont's own parameters.

  Attributes:
    contrast: 'sampled', labels drawn from p_hat (the paper), or 'expected', the expectation over
      p_hat: the same mean without sampling noise.
    weight: beta at full strength; 1 in the paper.
    warmup_rounds: Rounds of plain cross-entropy first (beta = 0).
    ramp_rounds: Rounds over which beta then rises linearly to `weight`.
    log_floor: Probability of y' under which it is not pushed down further, in (0, 1).
    server_learning_rate: alpha_g, positive.
  """

  contrast: str = 'sampled'
  weight: float = 1.0
  warmup_rounds: int = 0
  ramp_rounds: int = 0
  log_floor: float = 1e-8
  server_learning_rate: float = 1.0

  def __post_init__(self):
    params_lib.require_one_of(self, 'contrast', ('sampled', 'expected'))
    params_lib.require_not_negative(self, 'weight', 'warmup_rounds', 'ramp_rounds')
    params_lib.require_positive(self, 'log_floor', 'server_learning_rate')
    if self.log_floor >= 1:
      raise ValueError(f'log_floor must be below 1, got {self.log_floor}')


@dataclasses.dataclass(frozen=True)
class FedLSRParams:
  """FedLSR's own parameters.

  Attributes:
    consistency_weight: gamma of the divergence between the two views, at least 0.
    entropy_weight: lambda_e of the predictions' entropy, at least 0.
    sharpness: What the mixed prediction is raised to, positive.
    ramp_rounds: In how many rounds gamma rises from 0; 0 for the full weight at once, -1 for a
      fifth of all rounds, as the public code has it.
    cross_entropy: Of what: 'probabilities', taken for logits (the public code), or their 'log'.
    divergence: A 'mean' over examples and classes (the public code), or a 'batch_mean'.
    entropy: Of the 'softmax' of the prediction (the public code), or 'plain'.
    view: What makes the second view: the public 'code', or the 'training', by --augmentation.
  """

  consistency_weight: float = 0.4
  entropy_weight: float = 0.6
  sharpness: float = 2.0
  ramp_rounds: int = -1
  cross_entropy: str = 'probabilities'
  divergence: str = 'mean'
  entropy: str = 'softmax'
  view: str = 'code'

  def __post_init__(self):
    params_lib.require_not_negative(self, 'consistency_weight', 'entropy_weight')
    params_lib.require_positive(self, 'sharpness')
    params_lib.require_one_of(self, 'cross_entropy', ('probabilities', 'log'))
    params_lib.require_one_of(self, 'divergence', ('mean', 'batch_mean'))
    params_lib.require_one_of(self, 'entropy', ('softmax', 'plain'))
    params_lib.require_one_of(self, 'view', ('code', 'training'))
    if self.ramp_rounds < -1:
      raise ValueError(
          'ramp_rounds must be a number of rounds, or -1 for a fifth of all, got '
          f'{self.ramp_rounds}'
      )


@dataclasses.dataclass(frozen=True)
class GCEParams:
  """GCE's own parameters.

  Attributes:
    q: Between cross-entropy (towards 0) and half the mean absolute error (1), in (0, 1].
  """

  q: float = 0.7

  def __post_init__(self):
    if not 0 < self.q <= 1:
      raise ValueError(f'q must be above 0 and at most 1, got {self.q}')


@dataclasses.dataclass(frozen=True)
class RHFLParams:
  """RHFL's own parameters.

  Attributes:
    beta: How much a client's weight depends on how its loss fell, at least 0.
    confidence: 'literal', or 'guarded', equal weights where the sum of the drops tells nothing.
    forward: alpha, the factor of the cross-entropy in the loss, at least 0.
    reverse: That of the reverse cross-entropy, at least 0.
    pretrain_epochs: Epochs of a round of training alone, at least 1.
    public_epochs: Epochs over the public images in a round, at least 1.
    public_batch_size: Images of a step.
    public_learning_rate: Adam's, positive.
    adam: Whether it starts anew for 'each_batch' (the public code), or is 'kept' through a round.
    architectures: Those of clients 0, 1, ... in turn, joined by +; '' for --model alone.
  """

  beta: float = 0.5
  confidence: str = 'literal'
  forward: float = 0.1
  reverse: float = 1.0
  pretrain_epochs: int = 40
  public_epochs: int = 1
  public_batch_size: int = 256
  public_learning_rate: float = 0.001
  adam: str = 'each_batch'
  architectures: str = ''

  def __post_init__(self):
    params_lib.require_not_negative(self, 'beta', 'forward', 'reverse')
    params_lib.require_one_of(self, 'confidence', ('literal', 'guarded'))
    params_lib.require_positive(
        self, 'pretrain_epochs', 'public_epochs', 'public_batch_size', 'public_learning_rate'
    )
    params_lib.require_one_of(self, 'adam', ('each_batch', 'kept'))
    if self.forward == self.reverse == 0:
      raise ValueError('forward and reverse are both 0: there would be no loss')


@dataclasses.dataclass(frozen=True)
class RoFLParams:
  """RoFL's own parameters; rounds are counted from 0, as t in its public code.

  Attributes:
    centroid_weight: lambda_cen of the distances to the centroids, at least 0.
    centroid_gradient: What they move: 'none', nothing (the public code), or the 'features' (its
      formula, without what takes the gradient away).
    centroid_reduction: Whether they are a 'sum' over a batch's confident examples (the public
      code), or a 'mean', as the other terms of the loss.
    entropy_weight: lambda_e of the predictions' entropy, at least 0.
    forget: Share of a batch that is left out for its large losses, in [0, 1).
    forget_rounds: T_k, in how many rounds that share rises from 0; 0 for the full share at once.
    pseudo_labels_from: T_pl, the round from which predictions take the place of labels that the
      centroids contradict, and in which lambda_cen reaches its value; -1 for a tenth of all rounds,
      as the public code has 100 of 1,000, and 1 at least.
    first_weights: By what the centroids of the first round are averaged: 'random', their cosines
      with random ones (the public code), or 'equal', over the clients that have the class.
    feature_bound: What entries of centroids are cut to before they are sent, positive.
  """

  centroid_weight: float = 1.0
  centroid_gradient: str = 'none'
  centroid_reduction: str = 'sum'
  entropy_weight: float = 0.8
  forget: float = 0.2
  forget_rounds: int = 10
  pseudo_labels_from: int = -1
  first_weights: str = 'random'
  feature_bound: float = 16.0

  def __post_init__(self):
    params_lib.require_one_of(self, 'centroid_gradient', ('none', 'features'))
    params_lib.require_one_of(self, 'centroid_reduction', ('sum', 'mean'))
    params_lib.require_one_of(self, 'first_weights', ('random', 'equal'))
    params_lib.require_not_negative(self, 'centroid_weight', 'entropy_weight', 'forget_rounds')
    params_lib.require_share(self, 'forget')
    params_lib.require_positive(self, 'feature_bound')
    if self.pseudo_labels_from < -1:
      raise ValueError(
          'pseudo_labels_from must be a round, or -1 for a tenth of all rounds, got '
          f'{self.pseudo_labels_from}'
      )


@dataclasses.dataclass(frozen=True)
class SCEParams:
  """SCE's own parameters.

  Attributes:
    alpha: Weight of the cross-entropy, at least 0.
    beta: Weight of the reverse one, at least 0.
  """

  alpha: float = 0.1
  beta: float = 1.0

  def __post_init__(self):
    params_lib.require_not_negative(self, 'alpha', 'beta')
    if not self.alpha + self.beta:
      raise ValueError('alpha and beta must not both be 0')
