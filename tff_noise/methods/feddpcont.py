"""FedDPCont: contrastive labels under label differential privacy (Di et al., ECCV 2024).

1. Label communication, once, before the first round (algorithm 1; section 4.1 says "in every
   communication round", which with fresh flips would cost R * eps; the memoised report is asked for
   once). Each client flips its labels by K-ary randomised response; the histograms are summed
   securely; the server inverts the flips to p_hat.
2. Training (algorithm 2): the local loss is `l(f(x), y) - beta * l(f(x), y')` with y' drawn from
   p_hat, fresh for each example and epoch, as line 13 has it.

Where the paper errs or is silent: line 18 of algorithm 2 has the wrong sign and no weights, FedAvg
as in section 3.1 is meant; at beta = 1 the literal loss is linear in the logits and unbounded
below, so the contrastive term has a floor under its probability (the same authors' code for CORES
and CAL adds 1e-8 inside the logarithm); p_hat may be negative, see `estimator.estimate`; beta is
constant 1 by default and may be warmed up and ramped.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from tff_noise import params as params_lib
from tff_noise import types
from tff_noise.methods import method
from tff_noise.privacy import estimator
from tff_noise.privacy import mechanism as mechanism_lib
from tff_noise.privacy import protection

if TYPE_CHECKING:
  import tensorflow_federated as tff

  from tff_noise.federated import aggregation as aggregation_lib
  from tff_noise.federated import compose
  from tff_noise.federated import optimizer as optimizer_lib
  from tff_noise.models import keras_model


# The exchange of labels, before the first round.
_LABELS = 'label communication'


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


def contrastive_weight(round_num, params: FedDPContParams):
  """beta in round `round_num` (1 is the first): 0, then a linear ramp, then `params.weight`.

  Works on numbers and tensors alike.
  """
  if params.warmup_rounds == 0 and params.ramp_rounds <= 1:
    return params.weight  # A constant costs no operations in the client's graph.
  progress = (round_num - params.warmup_rounds) / max(params.ramp_rounds, 1)
  return params.weight * _clip_to_unit(progress)


def _clip_to_unit(value):
  if isinstance(value, (int, float)):
    return min(max(value, 0.0), 1.0)
  import tensorflow as tf

  return tf.cast(tf.clip_by_value(value, 0, 1), tf.float32)


def build_process(
    model: keras_model.KerasModel,
    *,
    training: types.LocalTraining = types.LocalTraining(),
    params: FedDPContParams = FedDPContParams(),
    seed: int = 0,
    aggregation: aggregation_lib.Aggregation | None = None,
    optimizer: optimizer_lib.FederatedOptimizer | None = None,
) -> compose.RoundProcess:
  """Returns FedDPCont's training as a `tff.learning.templates.LearningProcess`, with its uplink.

  `next` is `(<state=S@SERVER, data={D*}@CLIENTS> -> <state=S@SERVER, metrics=M@SERVER>)`. Its
  hyper-parameters are `<label_prior=float32[K]>`, uniform until `set_label_prior` puts p_hat there.

  Args:
    model: The Keras model.
    training: Local training.
    params: FedDPCont's own parameters.
    seed: Of initial weights, batches and contrastive labels.
    aggregation: The weighted mean by plain sums if not given.
    optimizer: In place of FedAvg with `params.server_learning_rate`.
  """
  import tensorflow as tf

  from tff_noise.federated import client_work
  from tff_noise.federated import compose
  from tff_noise.federated import optimizer as optimizer_lib
  from tff_noise.models import losses

  def draw(inputs: client_work.DrawInputs) -> tf.Tensor:
    # y' ~ p_hat, fresh for every example and epoch. 1e-30 keeps log(0) out and is never drawn.
    log_prior = tf.math.log(inputs.hparams['label_prior'] + 1e-30)
    return tf.random.stateless_categorical(
        log_prior[tf.newaxis], inputs.num_examples, inputs.seed, dtype=tf.int32
    )[0]

  def sampled_loss(inputs: client_work.LossInputs) -> tf.Tensor:
    return losses.contrastive_cross_entropy(
        inputs.logits,
        inputs.labels,
        inputs.drawn,
        weight=contrastive_weight(inputs.round_num, params),
        floor=params.log_floor,
        form=training.loss,
    )

  def expected_loss(inputs: client_work.LossInputs) -> tf.Tensor:
    return losses.expected_contrastive_cross_entropy(
        inputs.logits,
        inputs.labels,
        inputs.hparams['label_prior'],
        weight=contrastive_weight(inputs.round_num, params),
        floor=params.log_floor,
        form=training.loss,
    )

  sampled = params.contrast == 'sampled'
  uniform = np.full(model.num_classes, 1 / model.num_classes, np.float32)
  return compose.build_round_process(
      model,
      client_work.ClientWork(
          sampled_loss if sampled else expected_loss,
          training,
          hparams=collections.OrderedDict(label_prior=uniform),
          draw=draw if sampled else None,
      ),
      seed=seed,
      optimizer=optimizer
      or optimizer_lib.fed_avg(model.weights_type, params.server_learning_rate),
      aggregation=aggregation,
  )


def set_label_prior(
    process: tff.learning.templates.LearningProcess, state: Any, prior: np.ndarray
) -> Any:
  """Returns `state` with p_hat, float `[K]` on the simplex, as what contrastive labels follow."""
  hparams = collections.OrderedDict(label_prior=np.asarray(prior, np.float32))
  return process.set_hparams(state, hparams)


def client_histogram(
    client: int,
    examples: types.ClientExamples,
    mechanism: mechanism_lib.RandomizedResponse | None,
    *,
    num_classes: int,
    key: bytes,
) -> np.ndarray:
  """Returns int64 `[K]`, what one client puts into the secure sum: counts of its flipped labels.

  Without a mechanism the labels are counted as they are: reports, or the paper's "No DP".
  """
  labels = examples.y
  if mechanism is not None:
    labels = mechanism_lib.flip_labels(
        labels, examples.example_id, client=client, mechanism=mechanism, key=key
    )
  return mechanism_lib.histogram(labels, num_classes)


def _build(task: method.Task, params: FedDPContParams) -> method.Schedule:
  from tff_noise.federated import client_flips
  from tff_noise.federated import label_communication

  if task.optimizer is not None and params.server_learning_rate != 1:
    raise types.UsageError(
        '--param=server_learning_rate is that of FedAvg: with --base give that of the optimizer, '
        '--base_param=server_learning_rate=..., where it has one'
    )
  num_classes = task.model.num_classes
  prior = task.label_privacy.prior
  mechanism = (
      None
      if prior == 'none'
      else mechanism_lib.randomized_response(task.label_privacy.epsilon, num_classes)
  )
  in_client = task.label_privacy.flips == 'client'
  label_sum = {
      'max_count': int(task.client_sizes.max()),
      'max_clients': len(task.client_sizes),
      'protection': mechanism
      and protection.LabelReports(
          num_classes, mechanism.epsilon, num_labels=int(task.client_sizes.sum())
      ),
  }
  if in_client:
    communicate, label_fields = client_flips.build_client_label_communication(
        num_classes, mechanism=mechanism, **label_sum
    )
  else:
    communicate, label_fields = label_communication.build_label_communication(
        num_classes, **label_sum
    )
  round_process = build_process(
      task.model,
      training=task.training,
      params=params,
      seed=task.seed,
      aggregation=task.aggregation,
      optimizer=task.optimizer,
  )

  chooser = method.build_chooser(task)

  def estimate(records: method.Records) -> estimator.LabelEstimate:
    histogram = records['label_histogram']
    num_labels = int(task.client_sizes.sum())
    return estimator.estimate(histogram, prior, mechanism, num_labels=num_labels)

  def enter(clients: method.Clients, progress: method.Progress) -> method.Progress:
    federation = clients.federation
    if in_client:
      sent = [client_flips.client_labels(federation, i) for i in range(len(federation.clients))]
    else:
      key = mechanism_lib.simulation_key(federation.seed)
      flip = None if task.label_privacy.in_training else mechanism
      sent = [
          client_histogram(i, examples, flip, num_classes=num_classes, key=key)
          for i, examples in enumerate(federation.clients)
      ]
      label_communication.check_histograms(sent, label_fields[0])
    clients.announce(_LABELS, np.arange(len(sent)))
    records = {'label_histogram': np.asarray(communicate(sent), np.int64)}
    contrast = estimate(records).prior
    if task.label_privacy.in_training:
      # Contrastive labels are of the kind that the loss is about: reports.
      contrast = contrast @ mechanism.transition_matrix()
    server = set_label_prior(round_process.process, progress.server, contrast)
    return progress._replace(server=server, records={**progress.records, **records})

  stage = method.Stage(
      name='train',
      rounds=task.rounds,
      round_process=round_process,
      select=method.uniform_selection(task),
      chooser=chooser,
      enter=enter,
      records={'label_histogram': np.zeros(num_classes, np.int64)},
      columns=lambda r, _: {'contrastive_weight': contrastive_weight(r, params)},
  )
  return method.Schedule(
      stages=(stage,),
      exchanges={_LABELS: method.Exchange(communicate, label_fields)},
      summary=lambda records: _summary(estimate(records), mechanism, prior),
  )


def _summary(label_estimate, mechanism, prior):
  return {
      'label_communication': {
          'prior': prior,
          'epsilon': None if mechanism is None else mechanism.epsilon,
          'num_labels': label_estimate.num_labels,
          'raw': label_estimate.raw.tolist(),
          'estimate': label_estimate.prior.tolist(),
          'standard_error': label_estimate.standard_error.tolist(),
          'signal': label_estimate.signal,
          'informative': label_estimate.informative,
      }
  }


METHOD = method.Method(
    name='feddpcont',
    title='contrastive labels drawn from a label distribution learned under label-DP',
    paper='Di et al., Federated Learning with Local Openset Noisy Labels, ECCV 2024',
    params=FedDPContParams,
    build=_build,
    takes_base=True,
)
