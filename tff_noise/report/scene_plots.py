"""A scene in pictures: who holds what, and what noise did to the labels.

The figures take counts, so they draw any federation; `draw` reads them off a scene. What cannot be
drawn one by one is sampled (clients) or added up (classes), and the figure says so. All of it but
`bubbles` is ground truth, which no federated computation sees.
"""

import os
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib import collections as mcollections
from matplotlib import colors as mcolors
from matplotlib import figure as mfigure
from matplotlib import patches as mpatches
from matplotlib import ticker

from tff_noise.data import scene as scene_lib
from tff_noise.report import class_matrices
from tff_noise.report import figure_style as style
from tff_noise.report import noise_rates
from tff_noise.report import scene_statistics

# Of more clients, or classes, than this bars are slivers and bubbles dots.
_MAX_CLIENTS = 40
_MAX_CLASSES = 100
_MAX_LEGEND = 12
# Points: a smaller bubble would not be seen, though to hold a class or not matters.
_DOT = 0.9
_CATEGORIES = (
    '#332288', '#88ccee', '#117733', '#ddcc77', '#cc6677', '#bbbbbb', '#aa4499', '#999933',
    '#882255', '#44aa99',
)


@style.styled
def bubbles(counts: np.ndarray, class_names: Sequence[str]) -> mfigure.Figure:
  """Draws a bubble for each client and class, its area the number of examples (FedCorr, figure 2).

  Args:
    counts: int `[C, K]`, examples of each class that each client holds.
    class_names: K names.
  """
  clients = _drawn_clients(counts)
  shown, first = style.grouped(counts[clients], _MAX_CLASSES)
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
  before, first = style.grouped(clean_counts[clients], _MAX_CLASSES)
  after, _ = style.grouped(noisy_counts[clients], _MAX_CLASSES)
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
  style.heading(figure, f'Labels before and after noise: {_totals(clean_counts)}', left_out)
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
  held, known = scene.is_trained_on, scene.is_known

  def by_client(labels, mask):
    return scene_statistics.count(scene.client_of[mask], labels[mask], clients, classes)

  figures = {'bubbles': bubbles(by_client(scene.noisy_label, held), class_names)}
  if known.any():
    left_out = int(held.sum() - known.sum())
    figures['before_and_after'] = before_and_after(
        by_client(scene.clean_label, known), by_client(scene.noisy_label, known), class_names,
        left_out=left_out,
    )
    figures['transition_matrix'] = class_matrices.transition_matrix(
        scene_statistics.transitions(scene, scene.noisy_label, classes), class_names,
        left_out=left_out,
    )
  figures['noise_rates'] = noise_rates.histogram(
      scene.realised_rate, scene.nominal_rate, scene.is_noisy_client
  )
  os.makedirs(folder, exist_ok=True)
  written = []
  for name, figure in figures.items():
    for ending, content in style.in_forms(figure, also).items():
      file_name = f'{name}.{ending}'
      with open(os.path.join(folder, file_name), 'wb') as file:
        file.write(content)
      written.append(file_name)
  return written


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
    names = style.told_apart(class_names) or list(map(str, range(len(class_names))))
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
