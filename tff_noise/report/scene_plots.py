"""A scene in pictures and numbers: who holds what, and what noise did to the labels.

The figures take counts and rates, so they draw any federation; `draw` and `statistics` read them
off a scene. What cannot be drawn one by one is sampled (clients) or added up (classes), and the
figure says so. All of it but `bubbles` is ground truth, which no federated computation sees.
"""

import os
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib import collections as mcollections
from matplotlib import colors as mcolors
from matplotlib import figure as mfigure
from matplotlib import patches as mpatches
from matplotlib import ticker

from tff_noise.data import scene as scene_lib
from tff_noise.report import figure_style as style

# More clients, or classes, than this are not told apart on a page.
# Of more, bars are slivers and bubbles dots.
_MAX_CLIENTS = 40
_MAX_CLASSES = 100
_MAX_MATRIX = 200
_MAX_ANNOTATED = 14
_MAX_CORRECTED = 10  # Two matrices share the width.
_MAX_LEGEND = 12
_COLUMNS = 80
_MAX_NOTES = 10
# Points: a smaller bubble would not be seen, though to hold a class or not matters.
_DOT = 0.9
_CATEGORIES = (
    '#332288', '#88ccee', '#117733', '#ddcc77', '#cc6677', '#bbbbbb', '#aa4499', '#999933',
    '#882255', '#44aa99',
)
# Lightness and hatching tell them apart before hue does.
_KINDS = {
    'clean clients': {
        'facecolor': style.LIGHT, 'edgecolor': style.DARK, 'hatch': '////', 'linewidth': 0.6,
    },
    'noisy clients': {'facecolor': style.DARK, 'edgecolor': 'white', 'linewidth': 0.6},
    'clients of unknown nominal rate': {
        'facecolor': style.MIDDLE, 'edgecolor': 'white', 'hatch': '...', 'linewidth': 0.6,
    },
}


@style.styled
def bubbles(counts: np.ndarray, class_names: Sequence[str]) -> mfigure.Figure:
  """Draws a bubble for each client and class, its area the number of examples (FedCorr, figure 2).

  Args:
    counts: int `[C, K]`, examples of each class that each client holds.
    class_names: K names.
  """
  clients = _drawn_clients(counts)
  shown, first = _grouped(counts[clients], _MAX_CLASSES)
  height = float(np.clip(1.6 + 0.3 * len(first), 2.6, 7.6))
  pitch = 72 * min((style.WIDTH - 1.6) / len(clients), (height - 1.4) / len(first))
  largest = _bubble_diameter(shown[shown > 0], pitch)
  figure = style.new_figure(height)
  axes, key = figure.subplots(2, 1, height_ratios=(72 * height - 60, max(largest, 12) + 2))
  most = int(shown.max(initial=1))
  x, y = np.nonzero(shown)
  order = np.argsort(-shown[x, y], kind='stable')  # The small are drawn above the large.
  _draw_bubbles(axes, x[order], y[order], shown[x, y][order] / most, largest)
  axes.grid(True, linewidth=0.4)
  _client_axis(axes.xaxis, counts, clients)
  style.class_axis(axes.yaxis, class_names, first, 'class of the label held')
  axes.set_xlim(-0.8, len(clients) - 0.2)
  axes.set_ylim(len(first) - 0.2, -0.8)
  axes.set_title(f'Who holds what: {_totals(counts)}')
  _draw_size_key(key, most, largest)
  return figure


@style.styled
def before_and_after(
    clean_counts: np.ndarray,
    noisy_counts: np.ndarray,
    class_names: Sequence[str],
    *,
    left_out: int = 0,
) -> mfigure.Figure:
  """Draws the labels of each client before and after noise, as stacked bars (ClipFL, figure 4).

  Args:
    clean_counts: int `[C, K]`, examples of each true class.
    noisy_counts: int `[C, K]`, the same examples by the class that the client believes.
    class_names: K names.
    left_out: Examples that are in neither, their true class being unknown.
  """
  clients = _drawn_clients(clean_counts)
  before, first = _grouped(clean_counts[clients], _MAX_CLASSES)
  after, _ = _grouped(noisy_counts[clients], _MAX_CLASSES)
  sizes = before.sum(axis=1)
  # Beside a client of 5,000 examples, nobody sees the classes of one of 50.
  uneven = np.median(sizes) < 0.15 * sizes.max(initial=0)
  scale = 100 / np.maximum(sizes, 1) if uneven else np.ones(len(sizes))
  figure = style.new_figure(height=float(np.clip(1.7 + 0.27 * len(clients), 2.8, 8.2)))
  panels = figure.subplots(1, 2, sharex=True, sharey=True)
  figure.get_layout_engine().set(wspace=0.04)  # The last and the first number do not meet.
  colors = _class_colors(len(first))
  for axes, values, name in zip(
      panels, (before, after), ('true labels', 'labels after noise'), strict=True
  ):
    axes.add_collection(_stacked(values * scale[:, np.newaxis], colors))
    axes.set_xlabel("% of the client's examples (sizes differ widely)" if uneven else 'examples')
    axes.set_title(name, fontweight='normal')
    axes.xaxis.set_major_locator(ticker.MaxNLocator(5, integer=True, steps=(1, 2, 5, 10)))
    axes.xaxis.set_major_formatter(ticker.StrMethodFormatter('{x:,.0f}'))
    axes.tick_params(axis='y', length=2)
  _client_axis(panels[0].yaxis, clean_counts, clients)
  panels[0].set_xlim(0, 100 if uneven else 1.02 * max(int(sizes.max(initial=0)), 1))
  panels[0].set_ylim(len(clients) - 0.4, -0.6)
  _class_key(figure, panels, class_names, first, colors)
  _heading(figure, f'Labels before and after noise: {_totals(clean_counts)}', left_out)
  return figure


@style.styled
def transition_matrix(
    counts: np.ndarray, class_names: Sequence[str], *, left_out: int = 0
) -> mfigure.Figure:
  """Draws which labels each true class came to have, in percent of the class.

  Only wrong labels are coloured: right ones are mostly so many that no other cell would be seen.

  Args:
    counts: int `[K, K]`, examples of the true class (row) by label (column).
    class_names: K names.
    left_out: Examples that are not counted, their true class being unknown.
  """
  classes = len(counts)
  total, right = int(counts.sum()), int(np.trace(counts))
  wrong, kept, first = _wrong_and_kept(counts)
  small = classes <= _MAX_ANNOTATED
  side = float(np.clip(1.6 + 0.48 * classes, 2.9, 6.6))
  figure = style.new_figure(height=side + 0.3, width=float(np.clip(side + 1.6, 5.6, style.WIDTH)))
  panels = figure.subplots(
      1, 1 if small else 2, sharey=True, squeeze=False, width_ratios=(1,) if small else (10, 1)
  )[0]
  axes = panels[0]
  grey = len(first) == classes
  image = _draw_wrong(axes, wrong, grey)
  if small:
    _annotate(axes, image, wrong, kept)
  else:
    _draw_kept(panels[1], kept)
  if right < total:
    _wrong_bar(figure, panels, image, grey)
  style.class_axis(axes.xaxis, class_names, first, 'label after noise')
  style.class_axis(axes.yaxis, class_names, first, 'true class')
  text = f'Transition matrix: {total - right:,} of {total:,} labels are wrong'
  _heading(figure, f'{text} ({1 - right / max(total, 1):.1%})' if right < total else text, left_out)
  return figure


@style.styled
def label_corrections(
    before: np.ndarray, after: np.ndarray, class_names: Sequence[str], *, left_out: int = 0
) -> mfigure.Figure:
  """Draws two transition matrices side by side, on one scale: before and after a correction.

  Args:
    before: int `[K, K]`, examples of the true class (row) by label (column).
    after: int `[K, K]`, the same examples by their labels after the correction.
    class_names: K names.
    left_out: Examples that are not counted, their true class being unknown.
  """
  figure = _matrices(
      [
          _Matrix(*_wrong_and_kept(counts), name, _wrong_share(counts))
          for counts, name in ((before, 'labels before'), (after, 'labels after'))
      ],
      class_names,
  )
  _heading(figure, 'Labels before and after the correction', left_out)
  return figure


@style.styled
def transition_estimate(
    estimate: np.ndarray,
    counts: np.ndarray | None,
    class_names: Sequence[str],
    *,
    left_out: int = 0,
) -> mfigure.Figure:
  """Draws an estimated transition matrix beside the true one, on one scale.

  Args:
    estimate: float `[K, K]`, P(label | true class) of each true class (row).
    counts: int `[K, K]`, examples of the true class (row) by label (column); None if unknown.
    class_names: K names.
    left_out: Examples that are not counted, their true class being unknown.
  """
  mean = 1 - float(np.trace(estimate)) / len(estimate)
  matrices = [_Matrix(
      *_wrong_and_kept(estimate, np.ones(len(estimate))), 'label',
      f'estimate: {mean:.1%} wrong on average',
  )]
  if counts is not None:
    matrices.append(
        _Matrix(*_wrong_and_kept(counts), 'label', f'truth: {_wrong_share(counts)}')
    )
  figure = _matrices(matrices, class_names)
  _heading(figure, 'How labels were changed', left_out if counts is not None else 0)
  return figure


@style.styled
def wrong_labels(
    estimate: np.ndarray, counts: np.ndarray | None, class_names: Sequence[str]
) -> mfigure.Figure:
  """Draws which class it is if a label is wrong, as it is believed and as it is, on one scale.

  Args:
    estimate: float `[K, K]`, P(true class | label, wrong) of each label (row), 0 on the diagonal.
    counts: int `[K, K]`, wrong examples by label (row) and true class; None if unknown.
    class_names: K names.
  """
  tables = {'from sums': estimate} | ({} if counts is None else {'truth': counts})
  matrices = []
  for title, values in tables.items():
    wrong, kept, first = _wrong_and_kept(values)
    matrices.append(_Matrix(wrong, np.full_like(kept, np.nan), first, 'true class', title))
  figure = _matrices(matrices, class_names, rows='label')
  _heading(figure, 'What is behind wrong labels', 0)
  return figure


@style.styled
def confusion_matrix(counts: np.ndarray, class_names: Sequence[str]) -> mfigure.Figure:
  """Draws what each true class is taken for, in percent of the class.

  Args:
    counts: int `[K, K]`, examples of the true class (row) by predicted class (column).
    class_names: K names.
  """
  matrix = _Matrix(*_wrong_and_kept(counts), 'predicted class', _wrong_share(counts))
  figure = _matrices([matrix], class_names, 'predictions')
  _heading(figure, 'What each class is taken for', 0)
  return figure


class _Matrix(NamedTuple):
  """Percentages as `_wrong_and_kept` gives them, the label of the columns, and a title."""

  wrong: np.ndarray
  kept: np.ndarray
  first: np.ndarray
  columns: str
  title: str


def _matrices(matrices, class_names, what='labels', rows='true class'):
  """A figure of one or two matrices side by side, on one scale."""
  classes, share = len(class_names), 1 / len(matrices)
  side = (style.WIDTH - 1.6) / 2
  figure = style.new_figure(
      height=float(np.clip(1.7 + 0.42 * classes, 3.8, side + 1.7)),
      width=style.WIDTH if len(matrices) > 1 else side + 1.6,
  )
  panels = figure.subplots(1, len(matrices), sharey=True, squeeze=False)[0]
  figure.get_layout_engine().set(wspace=0.03)
  most = max([float(np.nanmax(m.wrong)) for m in matrices if np.nansum(m.wrong)], default=0.0)
  for axes, m in zip(panels, matrices, strict=True):
    grey = len(m.first) == classes
    image = _draw_wrong(axes, m.wrong, grey, most)
    if classes <= _MAX_CORRECTED:
      _annotate(axes, image, m.wrong, m.kept)
    style.class_axis(axes.xaxis, class_names, m.first, m.columns, share=share)
    axes.set_xlabel(axes.get_xlabel().replace(' (', '\n('))
    axes.set_title(m.title, fontweight='normal')
  style.class_axis(panels[0].yaxis, class_names, m.first, rows)
  if most:
    _wrong_bar(figure, panels, image, grey, what, rows)
  return figure


def _wrong_share(counts):
  total = int(counts.sum())
  wrong = total - int(np.trace(counts))
  return f'{wrong:,} of {total:,} wrong ({wrong / max(total, 1):.1%})'


@style.styled
def noise_histogram(realised: np.ndarray, nominal: np.ndarray) -> mfigure.Figure:
  """Draws how many clients have which noise rate, nominal above realised, or one that is both.

  Clean clients are those of nominal rate 0. A rate of exactly 0 has a bar of its own.

  Args:
    realised: float `[C]` in [0, 1], share of wrong labels; nan where it is unknown.
    nominal: float `[C]` in [0, 1], mean flip probability; nan where it is unknown.
  """
  kinds = dict(zip(_KINDS, (nominal == 0, nominal > 0, np.isnan(nominal)), strict=True))
  edges = _rate_edges(np.concatenate([nominal, realised]))
  shown = {'Nominal noise rate': nominal, 'Realised noise rate': realised}
  if np.array_equal(nominal, realised, equal_nan=True):
    shown = {'Noise rate, nominal as realised': realised}  # Labels of people have no other.
  figure = style.new_figure(height=0.8 + 1.8 * len(shown))
  panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
  for axes, (name, rates) in zip(panels, shown.items(), strict=True):
    _draw_rates(axes, rates, kinds, edges)
    axes.set_title(f'{name}: {_rate_summary(rates)}')
    axes.set_ylabel('clients')
  figure.align_ylabels(panels)
  _rate_axis(panels[-1], edges)
  handles = [
      mpatches.Patch(label=f'{kind}: {mask.sum():,}', **_KINDS[kind])
      for kind, mask in kinds.items() if mask.any()
  ]
  if handles:
    figure.legend(handles=handles, loc='outside lower center', ncols=3)
  return figure


def draw(
    scene: scene_lib.Scene, class_names: Sequence[str], folder: str, also: Sequence[str] = ()
) -> list[str]:
  """Writes the pictures of a scene.

  Args:
    scene: The scene.
    class_names: K names.
    folder: Where to; it is made if it does not exist.
    also: Forms besides PNG: 'pdf', 'svg'.

  Returns:
    The names of the files. Without any known true class there are only `bubbles.png` and
    `noise_rates.png`.
  """
  clients, classes = scene.num_clients, len(class_names)
  held, known = scene.client_of != scene_lib.SERVER, scene.is_known

  def by_client(labels, mask):
    return _count(scene.client_of[mask], labels[mask], clients, classes)

  figures = {'bubbles': bubbles(by_client(scene.noisy_label, held), class_names)}
  if known.any():
    left_out = int(held.sum() - known.sum())
    figures['before_and_after'] = before_and_after(
        by_client(scene.clean_label, known), by_client(scene.noisy_label, known), class_names,
        left_out=left_out,
    )
    figures['transition_matrix'] = transition_matrix(
        transitions(scene, scene.noisy_label, classes), class_names, left_out=left_out
    )
  figures['noise_rates'] = noise_histogram(scene.realised_rate, scene.nominal_rate)
  os.makedirs(folder, exist_ok=True)
  written = []
  for name, figure in figures.items():
    for ending, content in style.in_forms(figure, also).items():
      file_name = f'{name}.{ending}'
      with open(os.path.join(folder, file_name), 'wb') as file:
        file.write(content)
      written.append(file_name)
  return written


def transitions(scene: scene_lib.Scene, labels: np.ndarray, classes: int) -> np.ndarray:
  """Returns int64 `[K, K]`, the clients' examples of each true class (row) by label (column).

  Args:
    scene: The ground truth; examples of unknown true class are not counted.
    labels: int `[n]`, what the clients believe.
    classes: K.
  """
  known = scene.is_known
  return _count(scene.clean_label[known], labels[known], classes, classes)


def statistics(scene: scene_lib.Scene, class_names: Sequence[str]) -> str:
  """Returns a scene in numbers, for a terminal of 80 columns.

  Args:
    scene: The scene.
    class_names: K names.
  """
  clients, classes = scene.num_clients, len(class_names)
  held = scene.client_of != scene_lib.SERVER
  counts = _count(scene.client_of[held], scene.noisy_label[held], clients, classes)
  matrix = transitions(scene, scene.noisy_label, classes)
  at_server = len(held) - int(held.sum())
  rows = [
      ('examples', f'{held.sum():,} of {clients:,} clients'
       + (f', {at_server:,} more held by the server' if at_server else '')),
      ('classes', f'{classes:,}'),
      ('examples a client', _spread(counts.sum(axis=1))),
      ('classes a client', _spread((counts > 0).sum(axis=1))),
      *_noise_rows(scene, matrix, int(held.sum())),
      *_confusion_rows(matrix, class_names),
  ]
  return '\n'.join([f'{name:<20}{value}'.rstrip() for name, value in rows] + _notes(scene.notes))


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
          f'{style.short(class_names[true])} labelled {style.short(class_names[label])}: '
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


def _count(rows, columns, num_rows, num_columns):
  """int64 `[num_rows, num_columns]`, how often each pair occurs."""
  cells = rows.astype(np.int64) * num_columns + columns
  return np.bincount(cells, minlength=num_rows * num_columns).reshape(num_rows, num_columns)


def _drawn_clients(counts):
  """The clients to draw: all, or some that stand for the others' sizes, from small to large."""
  clients = len(counts)
  if clients <= _MAX_CLIENTS:
    return np.arange(clients)
  # The middles of equal parts: the very largest client would make all others small.
  ranks = ((np.arange(_MAX_CLIENTS) + 0.5) * clients / _MAX_CLIENTS).astype(int)
  return np.argsort(counts.sum(axis=1), kind='stable')[ranks]


def _client_axis(axis, counts, clients):
  """Names the clients that are drawn, or says which they are."""
  if len(clients) == len(counts):
    ticks = style.ticks(len(clients), style.MAX_TICKS)
    axis.set_ticks(ticks, [str(tick) for tick in ticks])
    axis.set_label_text('client')
    return
  ticks = np.linspace(0, len(clients) - 1, 6).round().astype(int)
  sizes = counts[clients].sum(axis=1)
  if (sizes == sizes[0]).all():
    axis.set_ticks(ticks, [str(client) for client in clients[ticks]])
    axis.set_label_text(f'client ({len(clients)} of {len(counts):,}, all of one size)')
    return
  axis.set_ticks(ticks, [f'{size:,}' for size in sizes[ticks]])
  axis.set_label_text(
      f'examples of the client ({len(clients)} of {len(counts):,} clients, evenly spaced by size; '
      f'the largest has {counts.sum(axis=1).max():,})'
  )


def _grouped(counts, limit):
  """Adds consecutive classes, the last axis, so that at most `limit` groups are left.

  Returns:
    int `[..., groups]`, and int `[groups]`, the first class of each.
  """
  classes = counts.shape[-1]
  first = np.arange(0, classes, -(-classes // limit))
  return np.add.reduceat(counts, first, axis=-1), first


def _class_colors(classes):
  """Colours of categories, neighbours of different lightness, for every kind of colour vision.

  Paul Tol's muted scheme; of more classes than it has, a scale of lightness.
  """
  if classes <= len(_CATEGORIES):
    return mcolors.to_rgba_array(_CATEGORIES[:classes])
  positions = np.linspace(0.1, 0.92, max(classes, 2))[:classes]
  return matplotlib.colormaps['inferno'](positions)


def _stacked(values, colors):
  """One rectangle for each non-empty cell of `values` `[rows, classes]`, as one object to draw."""
  right = values.cumsum(axis=1)
  row, column = np.nonzero(values)
  x1 = right[row, column]
  x0 = x1 - values[row, column]
  y0, y1 = row - 0.4, row + 0.4
  corners = np.stack([x0, y0, x1, y0, x1, y1, x0, y1], axis=1).reshape(-1, 4, 2)
  lines = values.shape[0] <= 40 and values.shape[1] <= _MAX_LEGEND
  return mcollections.PolyCollection(
      corners, facecolors=colors[column], edgecolors='white', linewidths=0.4 if lines else 0,
      antialiaseds=lines,  # Smoothed edges of thin neighbours would shine through.
  )


def _class_key(figure, panels, class_names, first, colors):
  """A legend of the classes, or a colour bar where they are too many."""
  if len(first) <= _MAX_LEGEND:
    names = [style.short(name) for name in class_names]
    handles = [
        mpatches.Patch(color=color, label=name) for color, name in zip(colors, names, strict=True)
    ]
    columns = int(np.clip(100 // (max(map(len, names)) + 6), 1, min(10, len(names))))
    figure.legend(handles=handles, loc='outside lower center', ncols=columns, handlelength=1.2)
    return
  norm = mcolors.Normalize(-0.5, len(first) - 0.5)
  mappable = matplotlib.cm.ScalarMappable(norm, mcolors.ListedColormap(colors))
  bar = figure.colorbar(mappable, ax=list(panels), pad=0.01, aspect=30)
  bar.outline.set_visible(False)
  ticks = style.ticks(len(first), 10)
  bar.set_ticks(ticks, labels=[str(first[tick]) for tick in ticks])
  per_group = -(-len(class_names) // len(first))
  bar.set_label('class, by number' + (f' ({per_group} a colour)' if per_group > 1 else ''))


def _wrong_and_kept(counts, sizes=None):
  """Returns percentages of the true class, of consecutive classes together where there are many.

  Args:
    counts: `[K, K]`, examples, or shares of them.
    sizes: `[K]`, what they are shares of; sums of rows if not given.

  Returns:
    float `[groups, groups]`, wrong labels, nan for classes without examples; float `[groups]`,
    right labels; int `[groups]`, the first class of each.
  """
  off = counts.copy()
  np.fill_diagonal(off, 0)
  off, first = _grouped(off, _MAX_MATRIX)
  off = _grouped(off.T, _MAX_MATRIX)[0].T
  sizes = counts.sum(axis=1) if sizes is None else sizes
  sizes = np.add.reduceat(sizes, first).astype(float)
  sizes[sizes == 0] = np.nan
  right = np.add.reduceat(np.diagonal(counts), first)
  return 100 * off / sizes[:, np.newaxis], 100 * right / sizes, first


def _draw_wrong(axes, wrong, grey, most=None):
  """Colours the wrong labels, `most` percent darkest; the diagonal is grey where it has none."""
  cmap = style.sequential()
  shown = np.ma.masked_invalid(np.where(wrong > 0, wrong, np.nan))
  most = most or (float(shown.max()) if shown.count() else 1.0)
  image = axes.imshow(
      shown, aspect='auto', interpolation='none', cmap=cmap,
      norm=mcolors.PowerNorm(0.5, 0, most),
  )
  if grey:
    diagonal = np.ma.masked_equal(np.eye(len(wrong)), 0)
    axes.imshow(
        diagonal, aspect='auto', interpolation='none', cmap=mcolors.ListedColormap([style.LIGHT])
    )
  axes.spines[:].set_visible(True)
  axes.spines[:].set(color=style.FAINT, linewidth=0.6)
  return image


def _wrong_bar(figure, panels, image, grey, what='labels', rows='true class'):
  bar = figure.colorbar(image, ax=list(panels), pad=0.02, aspect=30)
  bar.outline.set_visible(False)
  bar.locator = ticker.FixedLocator(_root_ticks(image.norm.vmax))
  bar.formatter = ticker.FuncFormatter(lambda value, _: f'{value:g}')
  bar.minorlocator = ticker.NullLocator()
  note = f'; grey: right {what}' if grey else ''
  bar.set_label(f'wrong {what}, % of the {rows}\n(square-root scale; white: none{note})')


def _annotate(axes, image, wrong, kept):
  values = wrong.copy()
  np.fill_diagonal(values, kept)
  for (row, column), value in np.ndenumerate(values):
    on_diagonal = row == column
    if value > 0 or on_diagonal:
      color = 'black' if on_diagonal else style.text_color(image.cmap(image.norm(value)))
      axes.text(
          column, row, _percent(value), ha='center', va='center', color=color,
          fontsize=9 if len(values) <= 10 else 7.5, fontweight='bold' if on_diagonal else 'normal',
      )


def _draw_kept(axes, kept):
  """A bar for each class: the right labels, which have no colour in the matrix."""
  axes.barh(np.arange(len(kept)), kept, height=1.0, color=style.FAINT)
  axes.set_xlim(0, 100)
  axes.set_xticks([0, 50, 100])
  axes.set_xlabel('right, %')
  axes.tick_params(axis='y', left=False, labelleft=False)
  axes.grid(axis='x')


def _percent(value):
  if np.isnan(value) or not value:
    return '–' if np.isnan(value) else '0'
  return '<0.1' if value < 0.05 else f'{value:.1f}' if value < 99.95 else f'{value:.0f}'


def _root_ticks(most):
  """Round numbers up to `most`, spread on a scale of square roots."""
  ticks = [0.0]
  for power in range(-3, 3):
    for factor in (1, 2, 5):
      tick = float(f'{factor}e{power}')
      if tick <= most and np.sqrt(tick) - np.sqrt(ticks[-1]) > 0.11 * np.sqrt(most):
        ticks.append(tick)
  return ticks


def _rate_edges(rates):
  """Edges of bins from 0 to above the largest rate, at most 25 of a round width."""
  rates = rates[np.isfinite(rates)]
  top = float(rates.max(initial=0.1))
  width = next(w for w in (0.005, 0.01, 0.02, 0.05) if top / w <= 25)
  bins = min(int(top / width + 1e-6) + 1, round(1 / width))
  return (np.arange(bins + 1) * width).round(9)


def _draw_rates(axes, rates, kinds, edges):
  """Stacks the kinds of clients in each bin, and left of them those of rate 0."""
  axes.grid(axis='y')
  axes.yaxis.set_major_locator(ticker.MaxNLocator(5, integer=True))
  axes.yaxis.set_major_formatter(ticker.StrMethodFormatter('{x:,.0f}'))
  width = edges[1]
  x = np.concatenate([[-2 * width], edges[:-1]])
  bottom = np.zeros(len(x), np.int64)
  at_zero = {}
  for kind, mask in kinds.items():
    known = rates[mask & np.isfinite(rates)].round(9)  # Means differ in the last bits.
    zero = known == 0
    heights = np.concatenate([[zero.sum()], np.histogram(known[~zero], edges)[0]])
    axes.bar(x, heights, width, bottom, align='edge', **_KINDS[kind])
    bottom += heights
    at_zero[kind] = int(heights[0])
  if not bottom.any():
    axes.text(0.5, 0.5, 'unknown for all clients', transform=axes.transAxes, ha='center',
              color=style.FAINT)
    axes.yaxis.set_major_locator(ticker.NullLocator())
  _show_zero(axes, bottom, x[0] + width / 2, at_zero)


def _show_zero(axes, heights, x, kinds):
  """Prints the number of clients of rate 0, and cuts their bar where it would flatten the rest."""
  zero, most = int(heights[0]), int(heights[1:].max(initial=0))
  cut = most and zero > max(4 * most, 30)
  top = max(1.18 * (2 * most if cut else max(zero, most)), 1)
  axes.set_ylim(0, top)
  if zero:
    text = f'{zero:,}\n(bar cut)' if cut else f'{zero:,}'
    if cut and max(kinds.values()) < zero:  # What of it is above the cut is not seen.
      text += ''.join(f'\n{n:,} {k.split()[0]}' for k, n in kinds.items() if n)
    axes.annotate(
        text, (x, 0.97 * top if cut else zero), (0, 2),
        textcoords='offset points', ha='center', va='top' if cut else 'bottom', fontsize=8,
        bbox={'facecolor': 'white', 'edgecolor': 'none', 'pad': 1} if cut else None,
    )


def _rate_axis(axes, edges):
  width, top = edges[1], edges[-1]
  step = next(s for s in (0.01, 0.02, 0.05, 0.1) if top / s <= 11)
  ticks = np.arange(0, top + step / 2, step)
  axes.set_xlim(-2.6 * width, top + 0.6 * width)
  axes.set_xticks([-1.5 * width, *ticks], ['none', *(f'{tick:g}' for tick in ticks)])
  axes.set_xlabel(f'share of wrong labels (none: exactly 0; bins of {width:g})')


def _rate_summary(rates):
  known = rates[np.isfinite(rates)]
  parts = [f'median {np.median(known):.3f}, largest {known.max():.3f}'] if len(known) else []
  if len(known) < len(rates):
    parts.append(f'unknown for {len(rates) - len(known):,} of {len(rates):,} clients')
  return '; '.join(parts)


def _bubble_diameter(values, pitch):
  """Points of the largest bubble: most bubbles shall fit into `pitch`, only a few overlap."""
  if not len(values):
    return pitch
  spread = np.sqrt(values.max() / np.quantile(values, 0.9))
  return float(min(0.95 * pitch * min(spread, 3), max(0.95 * pitch, 26), 30))


def _draw_bubbles(axes, x, y, share, largest):
  diameter = np.maximum(largest * np.sqrt(share), _DOT)
  axes.scatter(
      x, y, s=diameter**2, facecolor=style.DARK, edgecolor='white', alpha=0.85, clip_on=False,
      linewidths=np.where(diameter > 6, 0.5, 0),
  )


def _draw_size_key(axes, most, largest):
  """A legend of our own: Matplotlib's neither makes room for large markers nor centres them."""
  axes.set_axis_off()
  axes.set_xlim(0, 1)
  axes.set_ylim(-1, 1)
  axes.text(0.2, 0, 'examples, by area:', ha='right', va='center')
  sizes = _legend_sizes(most)
  x = 0.27 + 0.16 * np.arange(len(sizes))
  _draw_bubbles(axes, x, np.zeros(len(x)), np.array(sizes) / most, largest)
  for position, size in zip(x, sizes, strict=True):
    axes.annotate(
        f'{size:,}', (position, 0), (largest * np.sqrt(size / most) / 2 + 4, 0),
        textcoords='offset points', va='center',
    )


def _legend_sizes(most):
  """The largest and up to three round numbers to compare bubbles with."""
  round_numbers = np.outer(10 ** np.arange(10), (1, 2, 5)).ravel()
  sizes = [most]
  for share in (0.5, 0.15, 0.04):
    below = round_numbers[round_numbers <= share * most]
    if len(below) and below[-1] < sizes[-1]:
      sizes.append(int(below[-1]))
  return sizes


def _totals(counts):
  clients, classes = counts.shape
  return f'{int(counts.sum()):,} examples, {clients:,} clients, {classes:,} classes'


def _heading(figure, text, left_out):
  """A title for all panels, with what they do not show."""
  if left_out:
    text += f'\n{left_out:,} more are left out: their true class is unknown'
  figure.suptitle(text, x=0.01, ha='left', fontsize=10, fontweight='bold')
