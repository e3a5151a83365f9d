"""The algorithms, by name, without TensorFlow: one entry each, and every optimizer as one."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tff_noise import params as params_lib
from tff_noise import types
from tff_noise.algorithms import fedcorr_params
from tff_noise.algorithms import parameters
from tff_noise.optimizers import catalog as optimizers

_OURS = 'tff_noise.algorithms.'


class Entry(NamedTuple):
  """An algorithm on the command line.

  Attributes:
    name: Its name.
    title: One line for `--list_methods`.
    paper: Where it comes from.
    place: `package.module:function`, from (`task.Task`, parameters) to the algorithm.
    params: Frozen dataclass of its own parameters; `__post_init__` checks them.
    stages: The names that --stages takes.
    per_client: What the server, or another client, sees of single clients, which no secure sum can
      hide; '' for nothing.
    takes_base: Whether it can run on the optimizer that --base names.
    compares_models: Whether the server compares models of single clients, so that no update can be
      summed securely.
    chooses_clients: Whether it says itself who takes part in its rounds, or in some of them.
    corrects_labels: Whether clients change their labels.
    reports_labels: Whether clients' labels are counted, as `--label_prior` says.
    fewest_clients: Below which a sum over all clients would hide nothing.
    plans_rounds: Whether what happens in a round depends on how many there are; so it does where
      there are `stages`.
    report: Modules of `tff_noise.report` with its sections of the report; of methods of this
      package alone.
    uses_public: Whether clients compare models on the images of --public_dataset.
    averages_models: Whether the server averages models of clients.
    stage_of_param: By name of a parameter that is the length of a stage, that stage: --stages says
      it in its place.
    starts_anew: From parameters and the lengths that --stages gives, to the flag by which the last
      stage starts from new weights, or '' where it does not.
  """

  name: str
  title: str
  paper: str
  place: str
  params: type
  stages: tuple[str, ...] = ()
  per_client: str = ''
  takes_base: bool = False
  compares_models: bool = False
  chooses_clients: bool = False
  corrects_labels: bool = False
  reports_labels: bool = False
  fewest_clients: int = 1
  plans_rounds: bool = False
  report: tuple[str, ...] = ()
  uses_public: bool = False
  averages_models: bool = True
  stage_of_param: Mapping[str, str] = {}
  starts_anew: Callable[[Any, Mapping[str, int]], str] = lambda params, lengths: ''

  @property
  def is_extensible(self) -> bool:
    """Whether rounds can be added to a finished run: none depends on how many there are."""
    return not self.stages and not self.plans_rounds

  def build(self, task: Any, params: Any) -> Any:
    """Returns the `algorithm.Algorithm` for a `task.Task`; loads TensorFlow.

    Raises:
      types.UsageError: If what a user's place names is not there, or returns something else.
    """
    from tff_noise.algorithms import algorithm

    if self.place.startswith(_OURS):
      function = params_lib.implementation(self.place)
    else:
      function = params_lib.named(self.place, f'method={self.name}: place')
    if self.name in optimizers.OPTIMIZERS:
      function = functools.partial(function, optimizer=self.name)
    built = function(task, params)
    if not isinstance(built, algorithm.Algorithm):
      raise types.UsageError(
          f'{self.place}, the place of the method {self.name}, has to return an '
          f'algorithm.Algorithm, returned a {type(built).__name__}'
      )
    return built


_ENTRIES = (
    Entry('clipfl', 'prune the clients whose models are seldom among the best',
          'Morafah et al., 2024', 'clipfl:build', parameters.ClipFLParams,
          stages=('identify', 'train'), takes_base=True, compares_models=True,
          chooses_clients=True, report=('pruning',),
          per_client="each client's model, which it compares, and with selector=lid its LID score"),
    Entry('coteaching', 'two networks, each trained on what the other finds easy',
          'Han et al., Co-teaching: Robust Training of Deep Neural Networks with Extremely Noisy '
          'Labels, NeurIPS 2018',
          'coteaching:build', parameters.CoTeachingParams, takes_base=True),
    Entry('dividemix', 'two networks split the labels for each other and guess those they drop',
          'Li et al., DivideMix: Learning with Noisy Labels as Semi-supervised Learning, ICLR 2020',
          'dividemix:build', parameters.DivideMixParams, stages=('warm_up', 'divide'),
          takes_base=True, report=('posteriors',)),
    Entry('elr', 'early-learning regularisation: clients pull towards their earlier predictions',
          'Liu et al., Early-Learning Regularization Prevents Memorization of Noisy Labels, '
          'NeurIPS 2020',
          'elr:build', parameters.ELRParams, takes_base=True),
    Entry('fedcorr', 'finds noisy clients by LID, corrects labels in three stages',
          'Xu et al., FedCorr: Multi-Stage Federated Learning for Label Noise Correction, CVPR '
          '2022',
          'fedcorr:build', fedcorr_params.FedCorrParams,
          stages=('preprocess', 'finetune', 'usual'), takes_base=True, chooses_clients=True,
          corrects_labels=True, report=('label_correction',),
          stage_of_param={'iterations': 'preprocess'},
          per_client='the LID score and the estimated noise of each client, and in pre-processing '
          'with one client a round its model'),
    Entry('fedtally', 'a filter of noisy labels from sums alone: clients as annotators whose noise '
          'rates are inferred',
          'of this package; no paper', 'fedtally:build', parameters.FedTallyParams,
          takes_base=True, plans_rounds=True, report=('tallies',)),
    Entry('feddiv', 'one filter of noisy labels, a mixture over the losses of all clients',
          'Li et al., FedDiv: Collaborative Noise Filtering for Federated Learning with Noisy '
          'Labels, AAAI 2024',
          'feddiv:build', parameters.FedDivParams, stages=('warm_up', 'train'), takes_base=True,
          report=('posteriors',), stage_of_param={'warm_up_iterations': 'warm_up'}),
    Entry('feddpcont', 'contrastive labels drawn from a label distribution learned under label-DP',
          'Di et al., Federated Learning with Local Openset Noisy Labels, ECCV 2024',
          'feddpcont:build', parameters.FedDPContParams, takes_base=True, reports_labels=True,
          fewest_clients=2,
          report=('label_prior',)),
    Entry('fedelc', 'noisy clients, found by their losses, learn their labels beside the model',
          'Jiang et al., Tackling Noisy Clients in Federated Learning with End-to-end Label '
          'Correction, CIKM 2024',
          'fedelc:build', parameters.FedELCParams, stages=('warm_up', 'noise_robust'),
          takes_base=True, compares_models=True, corrects_labels=True,
          report=('class_losses', 'corrected_labels'),
          per_client="each client's losses by class, once, and in the second stage its model, "
          'which it compares'),
    Entry('fedlsr', 'self-regularisation: predictions of two views of a batch, mixed and compared',
          'Jiang et al., Towards Federated Learning against Noisy Labels via Local '
          'Self-Regularization, CIKM 2022',
          'fedlsr:build', parameters.FedLSRParams, takes_base=True, plans_rounds=True),
    Entry('fednoro', 'noisy clients, found by their losses, learn from the global model',
          'Wu et al., FedNoRo: Towards Noise-Robust Federated Learning by Addressing Class '
          'Imbalance and Label Noise Heterogeneity, IJCAI 2023',
          'fednoro:build', parameters.FedNoRoParams, stages=('warm_up', 'noise_robust'),
          takes_base=True, compares_models=True, report=('class_losses',),
          per_client="each client's losses by class, once, and in the second stage its model, "
          'which it compares'),
    Entry('fedrn', 'clients find their clean examples with the models of reliable neighbours',
          'Kim et al., FedRN: Exploiting k-Reliable Neighbors Towards Robust Federated Learning, '
          'CIKM 2022',
          'fedrn:build', parameters.FedRNParams, stages=('warm_up', 'neighbours'),
          takes_base=True, compares_models=True, report=('neighbours', 'posteriors'),
          per_client="each client's model, its accuracy on its own labels and its output on a "
          'shared image, and other clients the models of some'),
    Entry('gce', 'the generalised cross-entropy, which trusts unlikely labels less',
          'Zhang and Sabuncu, Generalized Cross Entropy Loss for Training Deep Neural Networks '
          'with Noisy Labels, NeurIPS 2018',
          'gce:build', parameters.GCEParams, takes_base=True),
    Entry('jointopt', 'labels become the mean of earlier predictions, which two terms keep apart',
          'Tanaka et al., Joint Optimization Framework for Learning with Noisy Labels, CVPR 2018',
          'jointopt:build', parameters.JointOptParams, stages=('warm_up', 'joint', 'retrain'),
          takes_base=True, corrects_labels=True, report=('corrected_labels',),
          starts_anew=lambda params, lengths: (
              '--stages=...,retrain:LENGTH' if lengths.get('retrain') else '')),
    Entry('lc', 'loss correction: clients estimate how their labels were changed',
          'Patrini et al., Making Deep Neural Networks Robust to Label Noise: a Loss Correction '
          'Approach, CVPR 2017',
          'lc:build', parameters.LCParams, stages=('train', 'correct'), takes_base=True,
          report=('transition',),
          starts_anew=lambda params, lengths: (
              '--param=restart=true' if params.restart and lengths.get('correct') != 0 else '')),
    Entry('rhfl', 'models of their own, which learn from the mean prediction on public images',
          'Fang and Ye, Robust Federated Learning with Noisy and Heterogeneous Clients, CVPR 2022',
          'rhfl:build', parameters.RHFLParams, stages=('pretrain', 'collaborate'),
          chooses_clients=True, fewest_clients=3, uses_public=True, averages_models=False),
    Entry('rofl', 'class centroids that all clients share, small losses, and pseudo-labels',
          'Yang et al., Robust Federated Learning with Noisy Labels, IEEE Intelligent Systems 2022',
          'rofl:build', parameters.RoFLParams, takes_base=True, plans_rounds=True),
    Entry('sce', 'the symmetric cross-entropy: cross-entropy and its reverse',
          'Wang et al., Symmetric Cross Entropy for Robust Learning with Noisy Labels, ICCV 2019',
          'sce:build', parameters.SCEParams, takes_base=True),
    Entry('trevision', 'importance reweighting by a transition matrix that training revises',
          'Xia et al., Are Anchor Points Really Indispensable in Label-Noise Learning?, NeurIPS '
          '2019',
          'trevision:build', parameters.TRevisionParams,
          stages=('estimate', 'correct', 'revise'), takes_base=True, report=('transition',)),
)


ALGORITHMS = {
    **{
        o.name: Entry(
            o.name, o.title, o.paper, f'{_OURS}plain:build', o.params,
            per_client=o.per_client, compares_models=o.compares_models,
            chooses_clients=o.chooses_clients,
        )
        for o in optimizers.OPTIMIZERS.values()
    },
    **{e.name: e._replace(place=f'{_OURS}{e.place}') for e in _ENTRIES},
}

def entry(name: str) -> Entry:
  """Returns the entry that --method names: one of `ALGORITHMS`, or a user's `package.module:ENTRY`.

  Raises:
    KeyError: If it is neither.
    types.UsageError: If a user's cannot be imported, or is not what an entry has to be.
  """
  if ':' not in name:
    return ALGORITHMS[name]
  own = params_lib.named(name, 'method')
  if not isinstance(own, Entry):
    raise types.UsageError(
        f'--method={name} must be a tff_noise.algorithms.catalog.Entry, got a {type(own).__name__}'
    )
  if own.name in ALGORITHMS:
    raise types.UsageError(
        f'--method={name}: {own.name} is the name of another method; give the Entry its own'
    )
  _check_own(name, own)
  return own


# Of values that --param gives.
_OF_PARAMS = (bool, int, float, str)


def _check_own(name, entry):
  """Tells what else would be an error of Python's, in a place that says nothing of it."""
  if str(entry.place).count(':') != 1:
    raise types.UsageError(
        f'--method={name}: its place has to be package.module:function, got {entry.place!r}'
    )
  if type(entry.stages) is not tuple or any(type(stage) is not str for stage in entry.stages):
    raise types.UsageError(
        f'--method={name}: its stages have to be a tuple of names, got {entry.stages!r}'
    )
  kind = entry.params
  is_dataclass = isinstance(kind, type) and dataclasses.is_dataclass(kind)
  if not is_dataclass or not kind.__dataclass_params__.frozen or any(
      type(f.default) not in _OF_PARAMS or not f.init for f in dataclasses.fields(kind)
  ):
    raise types.UsageError(
        f'--method={name}: its params have to be a frozen dataclass whose fields have defaults, '
        'each true or false, a whole number, a number (1.0) or a text'
    )
