"""A scene in numbers: who holds what, and what noise did to the labels."""

import textwrap
from collections.abc import Sequence

import numpy as np

from tff_noise.data import scene as scene_lib
from tff_noise.report import figure_style as style

_COLUMNS = 80
_MAX_NAMES = 3
_MAX_NOTES = 10


def text(scene: scene_lib.Scene, class_names: Sequence[str]) -> str:
  """Returns a scene in numbers, for a terminal of 80 columns.

  Args:
    scene: The scene.
    class_names: K names.
  """
  clients, classes = scene.num_clients, len(class_names)
  held = scene.is_trained_on
  counts = count(scene.client_of[held], scene.noisy_label[held], clients, classes)
  matrix = transitions(scene, scene.noisy_label, classes)
  rows = [
      ('examples', f'{held.sum():,} of {clients:,} clients'
       + (f', {scene.server_size:,} more held by the server' if scene.server_size else '')),
      *([('  to validate with', f'{scene.withheld_size:,} more of the clients')]
        if scene.withheld_size else []),
      *_name_rows(scene.client_names),
      ('classes', f'{classes:,}'),
      ('examples a client', _spread(counts.sum(axis=1))),
      ('classes a client', _spread((counts > 0).sum(axis=1))),
      *_noise_rows(scene, matrix, int(held.sum())),
      *_confusion_rows(matrix, class_names),
  ]
  return '\n'.join([f'{name:<20}{value}'.rstrip() for name, value in rows] + _notes(scene.notes))


def transitions(scene: scene_lib.Scene, labels: np.ndarray, classes: int) -> np.ndarray:
  """Returns int64 `[K, K]`, the clients' examples of each true class (row) by label (column).

  Args:
    scene: The ground truth; examples of unknown true class are not counted.
    labels: int `[n]`, what the clients believe.
    classes: K.
  """
  known = scene.is_known
  return count(scene.clean_label[known], labels[known], classes, classes)


def count(
    rows: np.ndarray, columns: np.ndarray, num_rows: int, num_columns: int
) -> np.ndarray:
  """Returns int64 `[num_rows, num_columns]`, how often each pair occurs."""
  cells = rows.astype(np.int64) * num_columns + columns
  return np.bincount(cells, minlength=num_rows * num_columns).reshape(num_rows, num_columns)


def _name_rows(names):
  if not names:
    return []
  first = ', '.join(style.cut(name) for name in names[:_MAX_NAMES])
  return [('names of clients', first + (', ...' if len(names) > _MAX_NAMES else ''))]


def _noise_rows(scene, matrix, examples):
  known, wrong = int(matrix.sum()), int(matrix.sum() - np.trace(matrix))
  rows = [('wrong labels', f'{wrong:,} of {known:,} ({wrong / known:.1%})' if known else 'unknown')]
  if known < examples:
    rows.append(('', f'true class unknown: {examples - known:,} examples'))
  noisy, unknown = scene.is_noisy_client, np.isnan(scene.nominal_rate)
  rows.append(('noisy clients', f'{noisy.sum():,} of {len(noisy):,}'
               + (f', more than {scene.clean_rate:.0%} wrong' if scene.clean_rate else '')
               + (f', unknown for {unknown.sum():,}' if unknown.any() else '')))
  if noisy.any():
    rows.append(('  nominal rate', _spread(scene.nominal_rate[noisy])))
    rows.append(('  realised rate', _spread(scene.realised_rate[noisy])))
  if unknown.any():
    rows.append(('unknown clients', ''))
    rows.append(('  realised rate', _spread(scene.realised_rate[unknown])))
  return rows


def _confusion_rows(matrix, class_names):
  """The three most frequent pairs of a true class and a wrong label."""
  sizes, wrong = matrix.sum(axis=1), matrix.copy()
  np.fill_diagonal(wrong, 0)
  rows = []
  for cell in np.argsort(-wrong, axis=None, kind='stable')[:3]:
    true, label = divmod(int(cell), len(wrong))
    if wrong[true, label]:
      number, size = int(wrong[true, label]), int(sizes[true])
      rows.append((
          '' if rows else 'common confusions',
          f'{style.cut(class_names[true])} labelled {style.cut(class_names[label])}: '
          f'{number:,} ({number / size:.1%})',
      ))
  return rows


def _notes(notes):
  lines = [
      line for note in notes[:_MAX_NOTES]
      for line in textwrap.wrap(note, _COLUMNS, initial_indent='  ', subsequent_indent='    ')
  ]
  if len(notes) > _MAX_NOTES:
    lines.append(f'  and {len(notes) - _MAX_NOTES:,} more')
  return ['notes', *lines] if lines else []


def _spread(values):
  """Minimum, median and maximum of those that are known."""
  values = values[np.isfinite(values)]
  if not len(values):
    return 'unknown'
  form = ',.10g' if values.dtype.kind in 'iu' else '.3f'
  low, middle, high = (format(f(values), form) for f in (np.min, np.median, np.max))
  return f'min {low}, median {middle}, max {high}'
