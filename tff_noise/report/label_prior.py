"""What FedDPCont's server learned about the labels: a section of the report."""

import numpy as np

from tff_noise import types
from tff_noise.privacy import estimator
from tff_noise.report import blocks
from tff_noise.report import plots

_VECTORS = ('raw', 'estimate', 'standard_error')


def _applies(run):
  return run.finished and 'label_communication' in run.summary


def _shares(labels, classes):
  """float64 `[K]`, the share of each class; nan without labels, which draws nothing."""
  return np.bincount(labels, minlength=classes) / (len(labels) or np.nan)


def _build(run, scene):
  labels = _checked(run)
  classes = len(labels['raw'])
  clean = _shares(scene.clean_label[scene.is_known], classes)
  noisy = _shares(scene.noisy_label[scene.is_trained_on], classes)
  if len(clean) > classes or len(noisy) > classes:
    raise types.UsageError(
        f'{run.path}: summary.json estimates {classes} classes, scene.npz has more'
    )
  raw, prior, error = (np.array(labels[n]) for n in ('raw', 'estimate', 'standard_error'))
  figure = plots.label_distribution(
      clean, noisy, raw, error, prior, run.names_of_classes(classes),
      prior_name=labels['prior'], num_labels=labels['num_labels'],
  )
  uniform = np.full(classes, 1 / classes)
  no_gain = _distance(prior, noisy) >= _distance(uniform, noisy)
  shown = [blocks.Text(verdict(labels), 'plain' if labels['informative'] else 'notice')]
  if no_gain:
    shown.append(blocks.Text(
        f'Against the ground truth: the prior is {_distance(prior, noisy):.3f} away from the noisy '
        f'labels, the uniform distribution, which needs no label, {_distance(uniform, noisy):.3f}.',
        'notice',
    ))
  return [
      *shown,
      blocks.Picture(
          'label_distribution',
          figure,
          'Bars and steps are the ground truth, which the server never sees. The error bars are '
          "the estimate's own, from the flips alone.",
      ),
      blocks.Table(
          ('distribution', 'distance from the noisy labels'),
          [
              (name, f'{_distance(values, noisy):.3f}')
              for name, values in (
                  (f'prior used: {labels["prior"]}', prior),
                  ('plain inverse', raw),
                  ('uniform, which needs no label', uniform),
              )
          ],
      ),
      blocks.Text(
          'Distance: half the sum of the absolute differences, 0 for equal distributions; up to 1 '
          'for distributions, more for an inverse with negative entries.'
      ),
  ]


def verdict(labels) -> str:
  """Returns in words whether the estimate says anything, and what the prior makes of it.

  Args:
    labels: 'label_communication' of `summary.json`.
  """
  if labels['epsilon'] is None:
    return (
        f'The {labels["num_labels"]:,} labels were counted unflipped: the distribution is exact, '
        'and nothing protects it. This is the upper bound of the paper, not a private method.'
    )
  largest, average = max(labels['standard_error']), 1 / len(labels['raw'])
  if labels['informative']:
    first = (
        f'The estimate is informative by its error: the largest standard error, {largest:.3f}, is '
        f'below {average:.3f}, what a class has on average.'
    )
  else:
    first = (
        f'The estimate is NOT informative: its largest standard error, {largest:.3f}, is not below '
        f'{average:.3f}, what a class has on average. Whatever the accuracy, it does not come '
        'from knowledge of the labels.'
    )
  text = (
      f'{first} It comes from {labels["num_labels"]:,} labels at epsilon {labels["epsilon"]}. The '
      f'prior "{labels["prior"]}" keeps {labels["signal"]:.0%} of its signal'
  )
  if labels['signal'] < estimator.FAINT_SIGNAL:
    return f'{text}, so contrastive labels were drawn almost uniformly.'
  return f'{text}.'


def _distance(values, noisy):
  """Total variation distance."""
  return float(np.abs(values - noisy).sum() / 2)


def _checked(run):
  """The content of the summary; `UsageError` where it is not what FedDPCont writes."""
  labels = run.summary['label_communication']
  try:
    lengths = {len(np.array(labels[name], np.float64)) for name in _VECTORS}
    good = len(lengths) == 1 and lengths != {0}
    f'{labels["num_labels"]:,} {labels["signal"]:.0%}'
    good = good and {'prior', 'epsilon', 'informative'} <= labels.keys()
  except (TypeError, ValueError, KeyError, AttributeError):
    good = False
  if not good:
    raise types.UsageError(f'{run.path}/summary.json is damaged: label_communication')
  return labels


SECTION = blocks.Section('What the method saw: the label distribution', _applies, _build)
