"""How good the trained model is, by class and by client: a section of the report."""

from collections.abc import Sequence

import numpy as np

from tff_noise.program import quality
from tff_noise.report import blocks
from tff_noise.report import class_matrices
from tff_noise.report import client_list
from tff_noise.report import runs


def _applies(run):
  return run.finished and runs.read_confusion(run) is not None


def _build(run, scene):
  confusion = runs.read_confusion(run)
  names = run.names_of_classes(len(confusion))
  by_client = quality.client_accuracy(confusion, scene)
  return shown(confusion, names, by_client, scene.client_names, 'the test set')


def shown(
    confusion: np.ndarray,
    class_names: tuple[str, ...],
    by_client: np.ndarray | None,
    client_names: Sequence[str],
    where: str,
) -> list[blocks.Block]:
  """Returns accuracies by class and by client.

  Args:
    confusion: int64 `[K, K]`, true classes by what they are taken for.
    class_names: K names.
    by_client: float64 `[C]`, nan where it is not known; None if nobody asks.
    client_names: C names; empty where clients have numbers alone.
    where: Of which examples it is.
  """
  of_class = quality.class_accuracy(confusion)
  known = np.flatnonzero(np.isfinite(of_class))
  if not len(known):
    return [blocks.Text(f'Nobody knows the true classes of {where}.')]
  worst = known[np.argmin(of_class[known])]
  numbers = [
      blocks.Number(
          f'{np.trace(confusion) / confusion.sum():.4f}', 'accuracy',
          f'{int(confusion.sum()):,} predictions on {where}',
      ),
      blocks.Number(f'{of_class[worst]:.4f}', 'lowest accuracy of a class', class_names[worst]),
  ]
  found = [blocks.Numbers(numbers)]
  if by_client is not None and np.isfinite(by_client).any():
    numbers += [
        blocks.Number(f'{np.nanmean(by_client):.4f}', 'mean accuracy of the clients'),
        blocks.Number(
            f'{quality.worst_tenth(by_client):.4f}', 'of their worst tenth',
            client_list.listed(quality.worst_clients(by_client), client_names),
        ),
    ]
    found.append(blocks.Text(
        f'Of a client: the mean of the accuracy by class on {where}, weighted with the true '
        'classes of its own examples.'
    ))
  found.append(blocks.Picture(
      'confusion', class_matrices.confusion_matrix(confusion, class_names),
      'Percent of each true class (row) that is taken for another (column); right ones are grey.',
  ))
  taken = np.where(np.eye(len(confusion), dtype=bool), -1, confusion)
  rows = [
      (
          class_names[k], f'{int(confusion[k].sum()):,}', f'{of_class[k]:.4f}',
          class_names[int(taken[k].argmax())] if taken[k].max() > 0 else '–',
      )
      for k in known
  ]
  found.append(blocks.Table(
      ('class', 'predictions', 'accuracy', 'most often taken for'), rows, 'Accuracy by class'
  ))
  return found


SECTION = blocks.Section('How good the model is', _applies, _build)
