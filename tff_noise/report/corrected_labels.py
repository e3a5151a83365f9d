"""What became of the labels that clients corrected: a section, and parts of FedCorr's."""

from collections.abc import Mapping

import numpy as np

from tff_noise import types
from tff_noise.algorithms import catalog
from tff_noise.data import scene as scene_lib
from tff_noise.program import ground_truth
from tff_noise.report import blocks
from tff_noise.report import class_matrices
from tff_noise.report import correction_plots
from tff_noise.report import runs
from tff_noise.report import scene_statistics


def _applies(run):
  method = catalog.ALGORITHMS.get(run.flags.get('method'))
  return method is not None and 'corrected_labels' in method.report and len(run.rounds) > 0


def _build(run, scene):
  labels = read(run, scene)
  shown = words(scene, labels)
  if not run.finished:
    shown = [blocks.Text('The corrected labels are written at the end of the run.')]
  return shown + curves(run, scene) + matrices(run, scene, labels)


def read(run: runs.Run, scene: scene_lib.Scene) -> np.ndarray | None:
  """Returns the labels that clients ended with, int32 `[n]`; None where the run has written none.

  Raises:
    types.UsageError: If they are not those of the scene's examples.
  """
  labels = runs.read_labels(run)
  if labels is not None and labels.shape != scene.noisy_label.shape:
    raise types.UsageError(
        f'{run.path}/labels.npz has {len(labels)} labels, scene.npz has {len(scene.noisy_label)}'
    )
  return labels


def words(scene: scene_lib.Scene, labels: np.ndarray | None) -> list[blocks.Block]:
  """Returns in words what became of the labels; nothing where there are none."""
  if labels is None:
    return []
  total = int(scene.is_trained_on.sum())
  result = ground_truth.correction_summary(scene, labels)
  changed = result['labels_changed']
  if not changed:
    return [blocks.Text(f'None of the {total:,} labels was changed.')]
  if 'label_accuracy_after' not in result:
    return [blocks.Text(
        f'{changed:,} of {total:,} labels were changed; whether that was right, nobody knows.'
    )]
  right, harmed = (
      result[f'labels_changed_{how}'] for how in ('to_the_true_one', 'that_were_right')
  )
  unknown = result['labels_changed_of_unknown_truth']
  other = changed - unknown - right - harmed
  before, after = (1 - result[f'label_accuracy_{when}'] for when in ('before', 'after'))
  shown = [blocks.Text(
      f'{changed:,} of {total:,} labels were changed: {right:,} to the true one, {other:,} from '
      f'one wrong label to another, {harmed:,} were right before'
      + (f'; of {unknown:,} nobody knows.' if unknown else '.')
      + f' Wrong labels: {before:.1%} before, {after:.1%} after.'
  )]
  worse = int(np.sum(wrong_shares(scene, labels) > scene.realised_rate))
  if after > before:
    shown.append(blocks.Text(
        f'The correction made the labels worse: {before:.1%} were wrong before, {after:.1%} are '
        'now.', 'warning',
    ))
  elif worse:
    shown.append(blocks.Text(
        f'{clients_have(worse)} more wrong labels than before.', 'notice'
    ))
  return shown


def clients_have(count: int) -> str:
  """Returns the first words of a sentence about that many clients."""
  return '1 client has' if count == 1 else f'{count} clients have'


def wrong_shares(scene: scene_lib.Scene, labels: np.ndarray) -> np.ndarray:
  """Returns float64 `[C]`, the true share of wrong labels of each client at the end."""
  return scene._replace(noisy_label=labels).realised_rate


def curves(
    run: runs.Run, scene: scene_lib.Scene, measures: Mapping[str, np.ndarray] | None = None
) -> list[blocks.Block]:
  """Returns the share of wrong labels over the rounds, where the run measured it.

  Args:
    run: The run.
    scene: Its scene.
    measures: float64 `[rounds]` by name, how well noisy clients were told, drawn below.
  """
  right = run.metrics.get('label_accuracy')
  if right is None or right.dtype.kind != 'f' or not np.isfinite(right).any():
    return []
  caption = 'Share of wrong labels among all that the clients hold; a dot where it changes.'
  if measures:
    caption += (
        ' Precision: of the clients taken for noisy, the share that is; recall: of the noisy '
        'clients, the share that was found; F1: their harmonic mean.'
    )
  return [blocks.Picture(
      'corrections',
      correction_plots.correction_curves(
          run.rounds, 1 - right, measures or {}, run.metrics.get('stage', ()),
          before=scene.noise_rate,
      ),
      caption,
  )]


def matrices(
    run: runs.Run, scene: scene_lib.Scene, labels: np.ndarray | None
) -> list[blocks.Block]:
  """Returns which labels the true classes had and have; nothing where none was changed."""
  if labels is None or not scene.is_known.any() or not (labels != scene.noisy_label).any():
    return []
  known = scene.is_known
  classes = 1 + int(max(a[known].max() for a in (scene.clean_label, scene.noisy_label, labels)))
  left_out = int(scene.is_trained_on.sum() - known.sum())
  figure = class_matrices.label_corrections(
      *(scene_statistics.transitions(scene, a, classes) for a in (scene.noisy_label, labels)),
      run.names_of_classes(classes), left_out=left_out,
  )
  return [blocks.Picture(
      'label_corrections', figure,
      'Labels of each true class (row), in percent of the class, as they came and at the end. A '
      'column that grows darker is a class that the correction prefers.',
  )]


SECTION = blocks.Section('What became of the labels', _applies, _build)
