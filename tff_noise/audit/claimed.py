"""What a run declares of protection, held against its flags: a claim is no more than they give.

Whoever has the key of a ledger can write another declaration and chain the ledger anew; the flags
then have to be other ones as well, of which metrics and checkpoints tell.
"""

from tff_noise import types
from tff_noise.algorithms import catalog
from tff_noise.audit import finding
from tff_noise.data import scene as scene_lib
from tff_noise.privacy import protection
from tff_noise.program import client_noise
from tff_noise.program import flags
from tff_noise.report import runs

_CLAIMS = 'uplink.json: no value is said to be better protected than by the flags'
# What label communication sends, see `federated.label_histogram`, and the 1 of each client that
# goes with a secure sum, see `federated.aggregation`.
_HISTOGRAM, _CONTRIBUTIONS = 'label histogram', ': contributions'
_SECURE_SUM = 'federated_secure_sum_bitwidth'


def check(run: runs.Run, scene: scene_lib.Scene) -> finding.Finding:
  """Compares each declared protection with what the flags of the run give.

  Args:
    run: With a declaration.
    scene: Who holds what.
  """
  if not run.class_names:
    return finding.no_evidence(_CLAIMS, 'config.json does not say how many classes there are')
  try:
    config = flags.config_of_run(run.flags)
  except (types.UsageError, TypeError) as error:
    return finding.no_evidence(_CLAIMS, f'its flags are not those of this code: {error}')
  reports = protection.LabelReports(len(run.class_names), config.label_epsilon)
  given = {None, *_noisy_sums(config, scene.num_clients)}
  if config.training_labels == 'private':
    given |= {reports, *(n._replace(reports=reports) for n in given if n is not None)}
  counted = set()
  # Of a method of one's own only its code, which is not looked at here, says whether it asks.
  communicates = ':' in config.method or catalog.entry(config.method).reports_labels
  if communicates and config.label_prior != 'none':
    epsilon = reports.mechanism.epsilon  # As the histogram's declaration writes it.
    counted = {reports._replace(num_labels=int(scene.sizes.sum()), epsilon=epsilon)}
  names, wrong = {str(field.get('name')) for field in run.uplink}, []
  histogram = (_HISTOGRAM, f'int64[{len(run.class_names)}]', _SECURE_SUM)
  for field in run.uplink:
    name, claim = str(field.get('name')), protection.from_json(field.get('protection'))
    sent = (name, field.get('type_spec'), field.get('intrinsic'))
    more = counted if sent == histogram else set()
    more |= {protection.Counts()} if _is_of_contributions(field, names) else set()
    if claim not in given | more:
      wrong.append(name)
  if wrong:
    return finding.failed(_CLAIMS, f'the flags give something else to: {", ".join(wrong)}')
  return finding.passed(_CLAIMS, f'{len(run.uplink)} values')


def _is_of_contributions(field, names):
  """Whether it is the 1 that each client adds to a sum which is declared, too."""
  stem, ending, rest = str(field.get('name')).rpartition(_CONTRIBUTIONS)
  one = ('int32', _SECURE_SUM, 1, 1)
  return bool(ending) and not rest and stem in names and one == tuple(
      field.get(key) for key in ('type_spec', 'intrinsic', 'lower', 'upper')
  )


def _noisy_sums(config, num_clients):
  """What noise on updates may be declared as."""
  if not config.client_dp_noise:
    return ()
  return [
      client_noise.of_config(config, num_clients, keeps_state=keeps) for keeps in (False, True)
  ]
