"""Lines of the closing summary that several algorithms have."""

from collections.abc import Mapping, Sequence
from typing import Any

from tff_noise.privacy import estimator
from tff_noise.privacy import mechanism as mechanism_lib


def noisy_clients(summary: Mapping[str, Any], count: int, verdict: str) -> str:
  """Returns how many clients were set apart, and whether that was right where it is known.

  Args:
    summary: Of the run, with `clients`, and `noisy_client_precision` and `_recall` where known.
    count: How many.
    verdict: As what, such as 'taken for noisy'.
  """
  line = f'  noisy clients   {count} of {summary["clients"]} {verdict}'
  precision, recall = (summary.get(f'noisy_client_{n}') for n in ('precision', 'recall'))
  if precision is None:
    return line
  if recall is None:
    return line + ', though none is'
  return line + f' (precision {precision:.2f}, recall {recall:.2f})'


def label_communication(
    estimate: estimator.LabelEstimate,
    mechanism: mechanism_lib.RandomizedResponse | None,
    prior: str,
) -> dict[str, Any]:
  """Returns what a label communication came to, for `summary.json`."""
  return {
      'label_communication': {
          'prior': prior,
          'epsilon': None if mechanism is None else mechanism.epsilon,
          'num_labels': estimate.num_labels,
          'raw': estimate.raw.tolist(),
          'estimate': estimate.prior.tolist(),
          'standard_error': estimate.standard_error.tolist(),
          'signal': estimate.signal,
          'informative': estimate.informative,
      }
  }


def label_sharing(summary: Mapping[str, Any]) -> Sequence[str]:
  """Returns the same in words."""
  labels = summary['label_communication']
  if labels['epsilon'] is None:
    return ['  label sharing   unflipped histogram: no privacy (the upper bound of the paper)']
  verdict = 'informative' if labels['informative'] else 'NOT informative'
  if labels['informative'] and labels['signal'] < estimator.FAINT_SIGNAL:
    verdict = 'precise enough, but the prior hardly uses it'
  return [
      f'  label sharing   epsilon {labels["epsilon"]} for each label; the estimate from '
      f'{labels["num_labels"]} labels is {verdict}',
      f'                  (largest standard error {max(labels["standard_error"]):.3f}, a class has '
      f'{1 / len(labels["raw"]):.3f} on average)',
      f'                  prior {labels["prior"]} keeps {labels["signal"]:.0%} of its signal',
  ]
