"""How clients say labels were changed, beside how they were: a section of LC and T-revision."""

import numpy as np

from tff_noise import types
from tff_noise.report import blocks
from tff_noise.report import class_matrices
from tff_noise.report import scene_statistics


def _applies(run):
  return run.finished and 'transition' in run.summary


def _build(run, scene):
  estimate, text = _checked(run)
  classes = len(estimate)
  known = scene.is_known
  held = scene.is_trained_on
  if max(a.max(initial=0) for a in (scene.noisy_label[held], scene.clean_label[known])) >= classes:
    raise types.UsageError(
        f'{run.path}: summary.json estimates {classes} classes, scene.npz has more'
    )
  shown = [blocks.Text(text)]
  counts = None
  if known.any():
    counts = scene_statistics.transitions(scene, scene.noisy_label, classes)
    shown.append(_distances(estimate, counts))
  else:
    shown.append(blocks.Text('How the labels really were changed, nobody knows.'))
  figure = class_matrices.transition_estimate(
      estimate, counts, run.names_of_classes(classes), left_out=int(held.sum() - known.sum())
  )
  caption = 'P(label | true class), in percent; rows are true classes.'
  if counts is not None:
    caption += ' Right: what really became of the classes, which nobody in the federation sees.'
  if (estimate < 0).any():
    caption += ' Entries below 0, which a revision may have, are white.'
  return [*shown, blocks.Picture('transition_estimate', figure, caption)]


def _distances(estimate, counts):
  """In words, how far the estimate is from what happened, and how far no correction would be."""
  sizes = counts.sum(axis=1, keepdims=True)
  there = sizes[:, 0] > 0
  realised = counts[there] / sizes[there]

  def distance(matrix):
    return float(np.abs(matrix[there] - realised).sum(axis=1).mean() / 2)

  ours, none = distance(estimate), distance(np.eye(len(estimate)))
  nothing = np.array_equal(estimate, np.eye(len(estimate)))
  return blocks.Text(
      ('The estimate is the identity: the loss is not corrected. ' if nothing else '')
      + f'Against the ground truth: on average of the classes, a row is {ours:.3f} away from what '
      f'really happened (half the sum of the absolute differences: 0 is equal, 1 is all wrong); no '
      f'correction at all, the identity, is {none:.3f} away.',
      'plain' if ours < none or not none else 'notice',
  )


def _checked(run):
  """float64 `[K, K]`, and what it is, in words; `UsageError` where the summary is damaged."""
  try:
    found = run.summary['transition']
    estimate = np.array(found['estimate'], np.float64)
    square = estimate.ndim == 2 and estimate.shape[0] == estimate.shape[1] > 0
    clients = int(found['clients'])
    text = (
        f'One matrix that all {clients} clients share, pooled from what they sent.'
        if found['shared'] else
        f'Mean of the matrices of {clients} clients: each has its own, and counts alike, one that '
        'has estimated none with the identity.'
    )
  except (KeyError, TypeError, ValueError):
    square = False
  if not square or not np.isfinite(estimate).all():
    raise types.UsageError(f'{run.path}/summary.json is damaged: transition')
  return estimate, text


SECTION = blocks.Section('What the method saw: how labels were changed', _applies, _build)
