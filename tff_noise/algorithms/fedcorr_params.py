"""The parameters of FedCorr, and where the paper and its public code differ.

The public code differs from the paper in ways of which eight are parameters here, which `semantics`
sets together. Not among them: it ranks all of a client's examples for relabelling, not only the
suspicious ones. Two parameters are ours alone: `split_guard`, by default off, and `score`, of which
the paper's is 'cumulative'.
"""

import dataclasses

from tff_noise import params as params_lib
from tff_noise import types
from tff_noise.selection import noisy_clients

# The two readings of each difference: the paper's, then the public code's.
_DIFFERENCES = {
    'proximal_term': ('squared', 'norm'),
    'proximal_anchor': ('iteration', 'received'),
    'sample_loss': ('cross_entropy', 'double_softmax'),
    'ranking_model': ('global', 'local'),
    'late_mixup': ('off', 'on'),
    'relabelled_clients': ('threshold', 'last_split'),
    'confidence_bound': ('inclusive', 'strict'),
    'statistics_images': ('plain', 'augmented'),
}


@dataclasses.dataclass(frozen=True)
class FedCorrParams:
  """FedCorr's own parameters.

  Attributes:
    semantics: 'paper', or 'reference' for what the public code does; sets what is left empty of
      the eight below.
    iterations: T1, at least 0. An iteration costs as much as C / clients_per_round rounds; the
      rounds that are left of --rounds go to fine-tuning and usual training as 500 to 450, unless
      --stages says otherwise.
    fraction: Share of the clients in a round of pre-processing, in [0, 1]; 0 for one client.
    mixup: Whether pre-processing trains on mixup batches.
    mixup_alpha: alpha of its Beta distribution, in [0.05, 1e6].
    proximal: beta of the proximal term, at least 0.
    correction: Whether labels are corrected.
    relabel_ratio: pi, the share of a noisy client's suspicious examples that may be relabelled, in
      [0, 1].
    confidence: theta, the least confidence of the global model, in (0, 1].
    clean_threshold: kappa, the largest estimated noise of a client that fine-tuning takes, in
      [0, 1].
    lid_neighbours: k of the LID score, at least 2. Clients with no more examples are not judged,
      nobody fine-tunes on them, and they keep their labels. From k of about half a client's
      examples on, LID ranks clients worse or the wrong way round.
    score: How the LID of several iterations becomes one score, see
      `noisy_clients.client_scores`: 'centred', 'mean' or the paper's 'cumulative'. They differ
      only where clients join late or drop out.
    split_guard: Whether nobody is called noisy, and so all estimates are 0, before iterations agree
      on who has the larger LID, see `noisy_clients.agreement`; false is the paper. Needs 2
      iterations.
    proximal_term: 'squared', `beta mu ||w - w'||^2` (eq. 5), or 'norm', without the square and
      without the first batch of each epoch.
    proximal_anchor: w' is the global model at the start of the 'iteration' (eq. 5), or as the
      client 'received' it, which other clients have trained since.
    sample_loss: 'cross_entropy', or 'double_softmax': the softmax of the prediction vector taken
      for logits.
    ranking_model: Whether the examples to relabel have the largest losses of the 'global' model
      (eq. 6) or of the 'local' one, right after its training.
    late_mixup: 'off', or 'on': mixup in all stages.
    relabelled_clients: After fine-tuning, those above kappa ('threshold') or the noisy ones of the
      'last_split'.
    confidence_bound: Whether a confidence of exactly theta suffices: 'inclusive' or 'strict'.
    statistics_images: Whether LID, losses and predictions are computed on 'plain' images or on
      'augmented' ones, as training sees them; relabelling looks at the same random crops each time.
  """

  semantics: str = 'paper'
  iterations: int = 5
  fraction: float = 0.0
  mixup: bool = True
  mixup_alpha: float = params_lib.read_if(1.0, 'mixup')
  proximal: float = 5.0
  correction: bool = True
  relabel_ratio: float = params_lib.read_if(0.5, 'correction')
  confidence: float = params_lib.read_if(0.5, 'correction')
  clean_threshold: float = 0.1
  lid_neighbours: int = 20
  score: str = 'centred'
  split_guard: bool = False
  proximal_term: str = params_lib.read_if('', 'proximal')
  proximal_anchor: str = params_lib.read_if('', 'proximal')
  sample_loss: str = ''
  ranking_model: str = params_lib.read_if('', 'correction')
  late_mixup: str = params_lib.read_if('', 'mixup')
  relabelled_clients: str = params_lib.read_if('', 'correction')
  confidence_bound: str = params_lib.read_if('', 'correction')
  statistics_images: str = ''

  def __post_init__(self):
    params_lib.require_one_of(self, 'semantics', ('paper', 'reference'))
    params_lib.require_one_of(self, 'score', noisy_clients.SCORES)
    for name, readings in _DIFFERENCES.items():
      params_lib.require_one_of(self, name, ('', *readings))
    params_lib.require_not_negative(self, 'iterations', 'proximal')
    if not types.SMALLEST_MIXUP_ALPHA <= self.mixup_alpha <= 1e6:
      raise ValueError(
          f'mixup_alpha must be in [{types.SMALLEST_MIXUP_ALPHA}, 1e6], got {self.mixup_alpha}; '
          'for no mixup give mixup=false'
      )
    for name in ('fraction', 'relabel_ratio', 'clean_threshold'):
      if not 0 <= getattr(self, name) <= 1:
        raise ValueError(f'{name} must be in [0, 1], got {getattr(self, name)}')
    if not 0 < self.confidence <= 1:
      raise ValueError(f'confidence must be in (0, 1], got {self.confidence}')
    if self.lid_neighbours < 2:
      raise ValueError(f'lid_neighbours must be at least 2, got {self.lid_neighbours}')

  def follows(self, difference: str) -> str:
    """Returns the reading of a difference: its own, or that of `semantics`."""
    return getattr(self, difference) or _DIFFERENCES[difference][self.semantics == 'reference']
