"""How likely clients found their labels right, and which were: a section of the report."""

import numpy as np

from tff_noise import types
from tff_noise.program import ground_truth
from tff_noise.report import blocks
from tff_noise.report import judgement_plots
from tff_noise.report import runs


def _applies(run):
  return run.finished and 'wrong_label_auc' in run.summary


def _build(run, scene):
  posteriors = _checked(run, scene)
  scene = runs.as_clients_know(run, scene)
  held = scene.is_trained_on
  judged = held & np.isfinite(posteriors)
  what = 'reports of labels' if runs.trains_on_reports(run) else 'labels'
  text = f'Clients judged {judged.sum():,} of their {held.sum():,} {what}'
  if not judged.any():
    return [blocks.Text(text + ': there was no round in which they do.')]
  shown = [blocks.Text(
      text + ', each when the client last trained. Posterior: how likely the label is right, by '
      'the small losses in a mixture of two Gaussians.'
  )]
  known = judged & scene.is_known
  if not known.any():
    shown.append(blocks.Text('Which of these labels are wrong, nobody knows.'))
    groups = {'truth unknown': posteriors[judged]}
  else:
    groups = {
        'right labels': posteriors[known & ~scene.flipped],
        'wrong labels': posteriors[known & scene.flipped],
    }
    shown.append(_verdict(ground_truth.wrong_label_auc(scene, posteriors)))
  left_out = int(judged.sum() - known.sum()) if known.any() else 0
  caption = 'Share of the labels in each tenth part of a posterior of 1.'
  if left_out:
    caption += f' {left_out:,} labels are left out: their truth is unknown.'
  return [*shown, blocks.Picture('posteriors', judgement_plots.posteriors(groups), caption)]


def _verdict(auc):
  if np.isnan(auc):
    return blocks.Text('Right and wrong labels cannot be compared: only one of both is there.')
  return blocks.Text(
      f'Against the ground truth: in {auc:.1%} of all pairs of a wrong and a right label the wrong '
      'one has the smaller posterior (the area under the ROC curve; 50 % is guessing).',
      'plain' if auc > 0.5 else 'notice',
  )


def _checked(run, scene):
  """float32 `[n]`; `UsageError` where they are not the scene's."""
  posteriors = runs.read_posteriors(run)
  if posteriors.shape != scene.noisy_label.shape:
    raise types.UsageError(
        f'{run.path}/posteriors.npz has {len(posteriors)} labels, scene.npz has '
        f'{len(scene.noisy_label)}'
    )
  return posteriors


SECTION = blocks.Section('Which labels clients found right', _applies, _build)
