"""Parameters of the algorithms, without TensorFlow: read and checked before it is loaded.

FedCorr's, which are many, are in `fedcorr_params`.
"""

import dataclasses

from tff_noise import params as params_lib
from tff_noise import types
from tff_noise.selection import candidacy


def _require_mixup(params, name='mixup_alpha'):
  """Raises `ValueError` if alpha of mixup is neither 0 nor one that float32 can draw by."""
  alpha = getattr(params, name)
  if alpha and not types.SMALLEST_MIXUP_ALPHA <= alpha <= 1e6:
    raise ValueError(
        f'{name} must be 0, for none, or in [{types.SMALLEST_MIXUP_ALPHA}, 1e6], got {alpha}'
    )


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
  score: str = params_lib.read_if('count', 'prune')
  selector: str = 'validation'
  lid_neighbours: int = params_lib.read_if(20, 'selector', 'lid')

  def __post_init__(self):
    params_lib.require_positive(self, 'keep')
    params_lib.require_share(self, 'prune')
    params_lib.require_one_of(self, 'score', candidacy.SCORES)
    params_lib.require_one_of(self, 'selector', ('validation', 'agreement', 'lid'))
    if self.lid_neighbours < 2:
      raise ValueError(f'lid_neighbours must be at least 2, got {self.lid_neighbours}')


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
  ramp_rounds: int = params_lib.read_if(10, 'forget_rate')
  schedule: str = params_lib.read_if('paper', 'forget_rate')
  initial: str = 'different'
  evaluate: str = 'first'

  def __post_init__(self):
    params_lib.require_share(self, 'forget_rate')
    params_lib.require_positive(self, 'ramp_rounds')
    params_lib.require_one_of(self, 'schedule', ('paper', 'code'))
    params_lib.require_one_of(self, 'initial', ('different', 'equal'))
    params_lib.require_one_of(self, 'evaluate', ('first', 'mean_probability'))


@dataclasses.dataclass(frozen=True)
class DivideMixParams:
  """DivideMix's own parameters.

  Attributes:
    threshold: p_thr, above which posterior a label is kept, in [0, 1).
    sharpening: T of the targets, positive.
    alpha: Of Beta(alpha, alpha), by which images are mixed, in [0.05, 1e6]; 0 for no mixture.
    unlabelled_weight: lambda_u of examples whose labels were dropped, at least 0.
    ramp_rounds: In how many rounds lambda_u rises from 0; 0 for the full weight at once.
    penalty_weight: Of the distance of the mean prediction to the prior, at least 0; 1 in the paper.
    prior: That prior: 'uniform' (the paper), or the shares of the client's own 'labels'.
    warm_up_entropy: Weight of the negative entropy in the warm-up, at least 0; 1 in the public code
      for asymmetric noise.
    divide_epochs: Local epochs after the warm-up; 0 for --local_epochs.
    evaluate: What is evaluated: 'sum_logits', of both networks, or the 'first' one.
  """

  threshold: float = 0.5
  sharpening: float = 0.5
  alpha: float = 4.0
  unlabelled_weight: float = 25.0
  ramp_rounds: int = params_lib.read_if(16, 'unlabelled_weight')
  penalty_weight: float = 1.0
  prior: str = params_lib.read_if('uniform', 'penalty_weight')
  warm_up_entropy: float = 0.0
  divide_epochs: int = 0
  evaluate: str = 'sum_logits'

  def __post_init__(self):
    params_lib.require_share(self, 'threshold')
    params_lib.require_positive(self, 'sharpening')
    params_lib.require_not_negative(
        self, 'unlabelled_weight', 'ramp_rounds', 'penalty_weight', 'warm_up_entropy',
        'divide_epochs',
    )
    _require_mixup(self, 'alpha')
    params_lib.require_one_of(self, 'prior', ('uniform', 'labels'))
    params_lib.require_one_of(self, 'evaluate', ('sum_logits', 'first'))


@dataclasses.dataclass(frozen=True)
class ELRParams:
  """ELR's own parameters.

  Attributes:
    weight: lambda of the regulariser, at least 0; at 0 the method is FedAvg.
    beta: How much of an example's target stays when its next prediction enters, in [0, 1).
  """

  weight: float = 3.0
  beta: float = params_lib.read_if(0.7, 'weight')

  def __post_init__(self):
    params_lib.require_not_negative(self, 'weight')
    params_lib.require_share(self, 'beta')


@dataclasses.dataclass(frozen=True)
class FedDivParams:
  """FedDiv's own parameters.

  Attributes:
    confidence: zeta, above which a prediction takes a label's place, in (0, 1]; 1 for none.
    clean_below: The estimated noise up to which a client trains on all it has, in [0, 1).
    relabel_above: The estimated noise above which relabelled examples are used, in [0, 1), where
      `confidence` allows any; the paper has that of `clean_below`.
    sampler_from: Rounds of a client before it drops examples of which the global model and its own
      say different things, and relabels any, at least 0; the paper has none.
    debias: xi, how much of log p^ is taken from its own logits, at least 0.
    momentum: m, how much of p^ stays in a round, in [0, 1).
    bias_confidence: How certain predictions are that p^ is made of, in [0, 1); 0 for all, as in the
      paper.
    mixup_alpha: Of the Beta distribution of mixup, in [0.05, 1e6], or 0 for no mixup.
    prior_weight: eta, of the divergence of mean predictions from uniform, at least 0; the paper has
      0 where clients are alike.
    sample_loss: The cross-entropy of a 'double_softmax' (the public code), or of a 'single' one.
    filter_steps: Steps of EM on a client, at least 1; the paper lets it end.
    variances: Averaged by squared weights (the public 'code'), or as in the 'paper'.
    warm_up_iterations: How often each client trains in the warm-up on average, at least 0.
  """

  confidence: float = 0.75
  clean_below: float = 0.1
  relabel_above: float = 0.2
  sampler_from: int = 5
  debias: float = 0.5
  momentum: float = 0.2
  bias_confidence: float = 0.85
  mixup_alpha: float = 1.0
  prior_weight: float = 1.0
  sample_loss: str = 'double_softmax'
  filter_steps: int = 3
  variances: str = 'code'
  warm_up_iterations: int = 5

  def __post_init__(self):
    params_lib.require_positive(self, 'confidence', 'filter_steps')
    if self.confidence > 1:
      raise ValueError(f'confidence must be at most 1, got {self.confidence}')
    params_lib.require_share(self, 'clean_below', 'relabel_above', 'momentum', 'bias_confidence')
    params_lib.require_not_negative(
        self, 'sampler_from', 'debias', 'prior_weight', 'warm_up_iterations'
    )
    _require_mixup(self)
    params_lib.require_one_of(self, 'sample_loss', ('double_softmax', 'single'))
    params_lib.require_one_of(self, 'variances', ('code', 'paper'))


@dataclasses.dataclass(frozen=True)
class FedTallyParams:
  """FedTally's own parameters.

  Attributes:
    warm_up_share: Of all rounds before labels are filtered, in [0, 1).
    learned_prior: Whether the prior over noise rates follows what clients' posteriors sum to.
    noise_by_class: Whether each class of a client has a noise rate of its own.
    average: b, how much of the mean model stays in a round, in [0, 1); 0 for no mean model.
    mixup_alpha: Of the Beta distribution of mixup, in [0.05, 1e6], or 0 for no mixup.
    loss_q: q of the generalised cross-entropy that the network is trained by, in [0, 1], and then a
      linear head beside it judges labels; 0 for cross-entropy, and one head.
    elr_weight: lambda of ELR's regulariser, not negative; 0 for none, and nothing that clients
      keep. Without `loss_q` and `mixup_alpha`.
    elr_beta: How much of an example's target stays in a step, in [0, 1).
    least_q: What q falls to from `loss_q` where clients' noise rates explain what the surest
      predictions deny of labels, in [0, loss_q), or 1 for the same q in all rounds.
    held_out: The share of a client's examples that it does not train on, by whose labels the server
      tells how good the model is, in [0, 1).
    max_sharpness: How sharp the model that judges labels may become, at least 1; 1 for as it is.
      Above 1 with `held_out` alone.
    top_share: The share of predictions that count as sure, in (0, 1].
  """

  warm_up_share: float = 0.15
  learned_prior: bool = False
  noise_by_class: bool = False
  average: float = 0.0
  mixup_alpha: float = 0.0
  elr_weight: float = 0.0
  elr_beta: float = params_lib.read_if(0.7, 'elr_weight')
  loss_q: float = 0.0
  least_q: float = params_lib.read_if(1.0, 'loss_q')
  held_out: float = 0.0
  max_sharpness: float = 1.0
  top_share: float = 0.2

  def __post_init__(self):
    params_lib.require_share(self, 'warm_up_share', 'average', 'held_out', 'elr_beta')
    _require_mixup(self)
    params_lib.require_positive(self, 'top_share')
    params_lib.require_not_negative(self, 'loss_q', 'least_q', 'elr_weight')
    if self.elr_weight and (self.loss_q or self.mixup_alpha):
      raise ValueError(
          'elr_weight goes with neither loss_q nor mixup_alpha: a bounded loss does not hold it, '
          'and examples that are mixed have no target; leave it or them out'
      )
    for name in ('loss_q', 'least_q'):
      if getattr(self, name) > 1:
        raise ValueError(f'{name} must be at most 1, got {getattr(self, name)}')
    if self.loss_q and self.loss_q <= self.least_q < 1:
      raise ValueError(
          f'least_q must be below loss_q, or 1 for the same q in all rounds, got {self.least_q}'
      )
    if self.top_share > 1:
      raise ValueError(f'top_share must be at most 1, got {self.top_share}')
    if self.max_sharpness < 1:
      raise ValueError(f'max_sharpness must be at least 1, got {self.max_sharpness}')
    if self.max_sharpness > 1 and not self.held_out:
      raise ValueError('max_sharpness above 1 asks labels that no client trains on: give held_out')

  @property
  def follows_anchor(self) -> bool:
    """Whether q of the bounded loss is another in each round."""
    return self.least_q < self.loss_q


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

  contrast: str = params_lib.read_if('sampled', 'weight')
  weight: float = 1.0
  warmup_rounds: int = params_lib.read_if(0, 'weight')
  ramp_rounds: int = params_lib.read_if(0, 'weight')
  log_floor: float = params_lib.read_if(1e-8, 'weight')
  server_learning_rate: float = 1.0

  def __post_init__(self):
    params_lib.require_one_of(self, 'contrast', ('sampled', 'expected'))
    params_lib.require_not_negative(self, 'weight', 'warmup_rounds', 'ramp_rounds')
    params_lib.require_positive(self, 'log_floor', 'server_learning_rate')
    if self.log_floor >= 1:
      raise ValueError(f'log_floor must be below 1, got {self.log_floor}')


@dataclasses.dataclass(frozen=True)
class FedELCParams:
  """FedELC's own parameters.

  Attributes:
    scale: K, what the logits of learned labels are at first, and again after each round, times
      their probabilities; positive.
    label_learning_rate: lambda, the step size of the learned labels, at least 0.
    compatibility_weight: alpha, how much the given labels pull at them, at least 0.
    entropy_weight: beta of the predictions' entropy, at least 0.
  """

  scale: float = 10.0
  label_learning_rate: float = 1000.0
  compatibility_weight: float = 0.5
  entropy_weight: float = 0.2

  def __post_init__(self):
    params_lib.require_positive(self, 'scale')
    params_lib.require_not_negative(
        self, 'label_learning_rate', 'compatibility_weight', 'entropy_weight'
    )


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
  ramp_rounds: int = params_lib.read_if(-1, 'consistency_weight')
  cross_entropy: str = 'probabilities'
  divergence: str = params_lib.read_if('mean', 'consistency_weight')
  entropy: str = params_lib.read_if('softmax', 'entropy_weight')
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
class FedNoRoParams:
  """FedNoRo's own parameters.

  Attributes:
    weight: a, the weight of the distillation at the end of its rise, in [0, 1].
    temperature: tau of the teacher, positive.
    ramp_end: The round, counted from 0, in which that weight is reached; -1 for
      39 of 90 rounds of the second stage, which is 49 of 100 by default.
    kl: 'code', in which a class that the client has not adds a constant, or 'present', nothing.
    distance: Between models: the sum of the norms of 'tensors' (the public code), or 'flat'.
  """

  weight: float = 0.8
  temperature: float = params_lib.read_if(0.8, 'weight')
  ramp_end: int = params_lib.read_if(-1, 'weight')
  kl: str = params_lib.read_if('code', 'weight')
  distance: str = 'tensors'

  def __post_init__(self):
    if not 0 <= self.weight <= 1:
      raise ValueError(f'weight must be from 0 to 1, got {self.weight}')
    params_lib.require_positive(self, 'temperature')
    if self.ramp_end < -1:
      raise ValueError(
          f'ramp_end must be a round, or -1 for 39 of 90 of its stage, got {self.ramp_end}'
      )
    params_lib.require_one_of(self, 'kl', ('code', 'present'))
    params_lib.require_one_of(self, 'distance', ('tensors', 'flat'))


@dataclasses.dataclass(frozen=True)
class FedRNParams:
  """FedRN's own parameters.

  Attributes:
    neighbours: h, whose models a client looks with beside its own, at least 0.
    expertise_weight: a, of accuracy beside similarity in the choice of neighbours, in [0, 1].
    threshold: Posterior above which an example is clean, below 1; below 0 all are.
    augmented: Whether losses and accuracies are of augmented images, where training augments (the
      public code).
  """

  neighbours: int = 2
  expertise_weight: float = params_lib.read_if(0.6, 'neighbours')
  threshold: float = 0.5
  augmented: bool = True

  def __post_init__(self):
    params_lib.require_not_negative(self, 'neighbours')
    if not 0 <= self.expertise_weight <= 1:
      raise ValueError(f'expertise_weight must be in [0, 1], got {self.expertise_weight}')
    if not self.threshold < 1:
      raise ValueError(f'threshold must be below 1, got {self.threshold}')


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
class JointOptParams:
  """JointOpt's own parameters.

  Attributes:
    alpha: Of L_p, which pulls the mean prediction of a batch towards the prior, at least 0.
    beta: Of L_e, the entropy of predictions, at least 0.
    window: Of how many of its last outputs an example's label is the mean, at least 1.
    joint_epochs: Local epochs in the stage joint, at least 0; 0 for --local_epochs.
    prior: pi, 'uniform' over classes, or the shares of the client's given 'labels'.
    warm_up_loss: 'cross_entropy' alone, or the 'joint' loss, on given labels.
  """

  alpha: float = 1.2
  beta: float = 0.8
  window: int = 10
  joint_epochs: int = 20
  prior: str = params_lib.read_if('uniform', 'alpha')
  warm_up_loss: str = 'cross_entropy'

  def __post_init__(self):
    params_lib.require_not_negative(self, 'alpha', 'beta', 'joint_epochs')
    params_lib.require_positive(self, 'window')
    params_lib.require_one_of(self, 'prior', ('uniform', 'labels'))
    params_lib.require_one_of(self, 'warm_up_loss', ('cross_entropy', 'joint'))


@dataclasses.dataclass(frozen=True)
class LCParams:
  """Parameters of loss correction.

  Attributes:
    correction: Of the loss: 'forward' or 'backward'.
    estimator: Of T: 'counts' of confident predictions (FedDPCont), 'anchor' (the paper), 'given'.
    scope: Whether each 'client' has a T of its own, or there is one, 'pooled' by a sum.
    confidence: Above which a prediction counts, in [0, 1).
    anchors: Which example a row of T is the prediction of: the one with the 'largest' probability,
      'filtered' by a quantile, or the same as the public 'code' has it.
    transition: File of the given T.
    restart: Whether the model starts anew when losses are corrected.
  """

  correction: str = 'forward'
  estimator: str = 'counts'
  scope: str = 'client'
  confidence: float = params_lib.read_if(0.95, 'estimator', 'counts')
  anchors: str = params_lib.read_if('largest', 'estimator', 'anchor')
  transition: str = ''
  restart: bool = False

  def __post_init__(self):
    params_lib.require_one_of(self, 'correction', ('forward', 'backward'))
    params_lib.require_one_of(self, 'estimator', ('counts', 'anchor', 'given'))
    params_lib.require_one_of(self, 'scope', ('client', 'pooled'))
    params_lib.require_share(self, 'confidence')
    params_lib.require_one_of(self, 'anchors', ('largest', 'filtered', 'code'))
    if self.transition and self.estimator != 'given':
      raise ValueError('transition names the T of estimator=given, and T is estimated here')
    if self.estimator == 'given' and self.scope == 'pooled':
      raise ValueError('scope=pooled pools estimates, and with estimator=given there are none')


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
  confidence: str = params_lib.read_if('literal', 'beta')
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
  centroid_gradient: str = params_lib.read_if('none', 'centroid_weight')
  centroid_reduction: str = params_lib.read_if('sum', 'centroid_gradient', 'features')
  entropy_weight: float = 0.8
  forget: float = 0.2
  forget_rounds: int = params_lib.read_if(10, 'forget')
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


@dataclasses.dataclass(frozen=True)
class TRevisionParams:
  """T-revision's own parameters.

  Attributes:
    correction: Of the loss in the second stage: 'forward' (FedDPCont), or 'reweight' (the paper).
    gradient: Whether the weights of the third stage have a gradient, as in the 'paper', or not, as
      in a loss of the public 'code' that its program does not use: then T is not revised.
    anchors: Which example a row of T is the prediction of: the one with the 'largest' probability,
      'filtered' by a quantile, or the same as the public 'code' has it.
    normalise: What the rows of T are divided by: their sums, each 'row' by its own, or as the
      public 'code' has it, each column by the sum of the row of its number.
    revision: Whether each client has a dT of its own, 'local', or it is 'averaged'.
    revise_learning_rate: Adam's, of the network and of dT in the third stage, positive.
  """

  correction: str = 'forward'
  gradient: str = 'paper'
  anchors: str = 'largest'
  normalise: str = 'row'
  revision: str = 'local'
  revise_learning_rate: float = 5e-7

  def __post_init__(self):
    params_lib.require_one_of(self, 'correction', ('forward', 'reweight'))
    params_lib.require_one_of(self, 'gradient', ('paper', 'code'))
    params_lib.require_one_of(self, 'anchors', ('largest', 'filtered', 'code'))
    params_lib.require_one_of(self, 'normalise', ('row', 'code'))
    params_lib.require_one_of(self, 'revision', ('local', 'averaged'))
    params_lib.require_positive(self, 'revise_learning_rate')
