"""The pictures: each function takes plain data and returns a Matplotlib figure.

All of them can be read in grey print: lightness, line style and marker tell series apart before
hue does. The same data give the same bytes. Matplotlib's settings are changed only while a figure
is made or written, so a program that draws its own pictures keeps its own style.
"""

import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib import axes as maxes
from matplotlib import colors as mcolors
from matplotlib import figure as mfigure
from matplotlib import patheffects
from matplotlib import ticker

from tff_noise.report import figure_style as style

_MARKERS = 'osD^vPX<>*'
_LINES = ('-', '--', '-.', ':', (0, (5, 1, 1, 1, 1, 1)))


class Span(NamedTuple):
  """Consecutive rounds of one stage, both ends included."""

  name: str
  first: int
  last: int


def stage_spans(stages: Sequence[str]) -> list[Span]:
  """Returns the stages in the order of the rounds; `stages` has one name a round, from 1."""
  spans, first = [], 1
  for name, group in itertools.groupby(stages):
    last = first + len(list(group)) - 1
    spans.append(Span(str(name), first, last))
    first = last + 1
  return spans


@style.styled
def accuracy(
    rounds: np.ndarray,
    values: np.ndarray,
    stages: Sequence[str] = (),
    validation: np.ndarray | None = None,
) -> mfigure.Figure:
  """Draws test accuracy over rounds, with the stages and the best round marked.

  Where the server validates it draws that too, and marks the round that is chosen by it.

  Args:
    rounds: int `[rounds]`.
    values: float `[rounds]`, nan where the round was not evaluated.
    stages: The stage of each round, or nothing.
    validation: Accuracy on the server's validation set, float `[rounds]`, nan as `values`; None
      where it has none.
  """
  figure, axes = style.new_axes(height=3.7)
  known = np.isfinite(values)
  x, y = rounds[known], values[known]
  if validation is not None and np.isfinite(validation[known]).any():
    _draw_validation(axes, x, y, validation[known])
  _line(axes, x, y, style.DARK)
  if len(y):
    best = int(np.argmax(y))
    axes.plot(
        x[best], y[best], 'D', color=style.MIDDLE, markersize=7, markeredgecolor='white',
        label=f'best: {y[best]:.3f} in round {x[best]}',
    )
    figure.legend(loc='outside lower center', ncols=3)
  axes.set_ylabel('test accuracy (share correct)')
  mark_rounds([axes], rounds, stages, f'Test accuracy, {len(y)} evaluations')
  return figure


def _draw_validation(axes, rounds, test, validation):
  axes.plot(rounds, validation, color=style.FAINT, linewidth=1.1, label='validation')
  chosen = int(np.nanargmax(validation))
  axes.plot(
      # The best round is seen within it where both are one.
      rounds[chosen], test[chosen], 's', color='none', markersize=12, markeredgecolor=style.DARK,
      markeredgewidth=1.5, zorder=3,
      label=f'chosen by validation: {test[chosen]:.3f} in round {rounds[chosen]}',
  )


@style.styled
def losses(
    rounds: np.ndarray, train: np.ndarray, test: np.ndarray, stages: Sequence[str] = ()
) -> mfigure.Figure:
  """Draws test and training loss, below each other: they are not the same function.

  Args:
    rounds: int `[rounds]`.
    train: float `[rounds]`, the method's own objective, which may be negative.
    test: float `[rounds]`, cross entropy; nan where the round was not evaluated.
    stages: The stage of each round, or nothing.
  """
  figure = style.new_figure(height=4.4)
  upper, lower = figure.subplots(2, 1, sharex=True)
  for axes, values, name, color in (
      (upper, test, 'test loss\n(cross entropy, nats)', style.DARK),
      (lower, train, "training loss\n(the method's objective)", style.MIDDLE),
  ):
    known = np.isfinite(values)
    _line(axes, rounds[known], values[known], color)
    axes.set_ylabel(name)
  figure.align_ylabels([upper, lower])
  mark_rounds([upper, lower], rounds, stages, f'Losses, {len(rounds)} rounds')
  return figure


@style.styled
def seconds(values: np.ndarray) -> mfigure.Figure:
  """Draws the wall time of each round.

  Args:
    values: float `[rounds]`, nan where it was not recorded.
  """
  figure, axes = style.new_axes(height=2.6)
  rounds = np.arange(1, len(values) + 1)
  known = np.isfinite(values)
  _line(axes, rounds[known], values[known], style.DARK)
  axes.set_ylabel('seconds')
  median = float(np.median(values[known])) if known.any() else 0.0
  # The first round compiles: on a linear axis it would press all others flat.
  if known.any() and values[known].min() > 0 and values[known].max() > 8 * median:
    axes.set_yscale('log')
    axes.set_ylabel('seconds (log scale)')
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f'{value:g}'))
    axes.yaxis.set_minor_locator(ticker.NullLocator())
  else:
    axes.set_ylim(bottom=0)
  _round_axis(axes, rounds)
  axes.set_title(
      f'Seconds a round: median {median:.3g}, {known.sum()} rounds in {values[known].sum():.3g} s'
  )
  return figure


@style.styled
def federation(counts: np.ndarray, class_names: Sequence[str]) -> mfigure.Figure:
  """Draws how many labels of each class every client holds.

  Args:
    counts: int `[clients, classes]`.
    class_names: Of the classes.
  """
  clients, classes = counts.shape
  figure, axes = style.new_axes(height=float(np.clip(1.3 + 0.26 * classes, 2.4, 6.4)))
  axes.grid(False)
  shown = np.ma.masked_equal(counts.T, 0)
  cmap = style.sequential()
  norm = mcolors.Normalize(1, max(int(counts.max()), 2))
  image = axes.imshow(
      shown, aspect='auto', interpolation='none', cmap=cmap, origin='lower',
      norm=norm,
  )
  if clients <= 25 and classes <= 12:
    for (row, column), count in np.ndenumerate(counts.T):
      if count:
        axes.text(
            column, row, str(count), ha='center', va='center', fontsize=7,
            color=style.text_color(cmap(norm(count))),
        )
  else:
    bar = figure.colorbar(image, ax=axes, pad=0.01, aspect=30)
    bar.set_label('labels (white: none)')
    bar.locator = ticker.MaxNLocator(6, integer=True, steps=(1, 2, 5, 10))
    bar.outline.set_visible(False)
  axes.set_xticks(style.ticks(clients, style.MAX_TICKS))
  axes.tick_params(length=2)
  axes.set_xlabel('client')
  style.class_axis(axes.yaxis, class_names, np.arange(classes), 'class of the noisy label')
  axes.set_title(
      f'Who holds what: {int(counts.sum()):,} labels of {clients} clients, {classes} classes'
  )
  return figure


@style.styled
def noise_rates(
    nominal: np.ndarray, realised: np.ndarray, sizes: np.ndarray
) -> mfigure.Figure:
  """Draws nominal and realised noise of each client, sorted, above its number of examples.

  Args:
    nominal: float `[clients]`, mean flip probability.
    realised: float `[clients]`, share of wrong labels.
    sizes: int `[clients]`, examples.
  """
  # Rounded: a mean of equal probabilities differs from client to client in the last bits.
  order = np.lexsort((realised, nominal.round(9)))
  clients = len(order)
  x = np.arange(clients)
  figure = style.new_figure(height=4.2)
  upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
  size = 5.5 if clients <= 40 else 3.5
  upper.vlines(x, nominal[order], realised[order], color=style.FAINT, linewidth=0.7)
  upper.plot(
      x, nominal[order], '_', color=style.DARK, markersize=2 * size, markeredgewidth=2,
      label='nominal',
  )
  upper.plot(x, realised[order], 'o', color=style.MIDDLE, markersize=size, label='realised')
  top = max(0.05, 1.08 * max(nominal.max(), realised.max()))
  upper.set_ylim(-0.04 * top, top)  # Clients without noise are not cut in half.
  upper.set_ylabel('share of wrong labels')
  # Beside the title: inside the axes it would hide clients.
  upper.legend(loc='lower right', bbox_to_anchor=(1, 0.99), ncols=2, borderpad=0)
  lower.bar(x, sizes[order], width=0.8, color=style.DARK)
  lower.set_ylabel('examples')
  lower.yaxis.set_major_locator(ticker.MaxNLocator(4, integer=True))
  figure.align_ylabels([upper, lower])
  lower.set_xlim(-0.8, clients - 0.2)
  if clients <= style.MAX_TICKS:
    lower.set_xticks(x, order)
    lower.set_xlabel('client, sorted by nominal, then by realised noise')
  else:
    lower.set_xticks(style.ticks(clients, style.MAX_TICKS))
    lower.set_xlabel('clients in the order of nominal, then of realised noise')
  noisy = int((nominal > 0).sum())
  upper.set_title(
      f'Label noise: {noisy} of {clients} clients are noisy, {int(sizes.sum()):,} examples'
  )
  return figure


@style.styled
def label_distribution(
    clean: np.ndarray,
    noisy: np.ndarray,
    raw: np.ndarray,
    standard_error: np.ndarray,
    prior: np.ndarray,
    class_names: Sequence[str],
    *,
    prior_name: str,
    num_labels: int,
) -> mfigure.Figure:
  """Draws what the server learned about the labels, beside the truth it never sees.

  Args:
    clean: float `[classes]`, shares of the true labels.
    noisy: float `[classes]`, shares of the labels the clients hold.
    raw: float `[classes]`, the plain inverse; may be negative.
    standard_error: float `[classes]`, of `raw`.
    prior: float `[classes]`, what contrastive labels are drawn from.
    class_names: Of the classes.
    prior_name: How `prior` is made from `raw`.
    num_labels: Labels behind the estimate.
  """
  classes = len(clean)
  x = np.arange(classes)
  size = 6 if classes <= 30 else 3.5
  largest = max(clean.max(), noisy.max(), prior.max())
  # An estimate that is mostly noise would press everything else flat.
  apart = float(np.max(np.abs(raw) + standard_error)) > 5 * largest
  figure = style.new_figure(height=4.8 if apart else 4.0)
  panels = figure.subplots(2 if apart else 1, 1, sharex=True, squeeze=False)[:, 0]
  upper, lower = panels[0], panels[-1]
  bars = upper.bar(x, clean, width=0.84, color=style.LIGHT, label='clean labels')
  # Classes up to 0.5 on either side, so that steps meet the sides of the bars.
  steps = upper.stairs(noisy, np.arange(classes + 1) - 0.5, color=style.FAINT, linewidth=1.3,
                       label='noisy labels: what is to be estimated')
  inverse = lower.errorbar(
      x, raw, standard_error, fmt='o', color=style.MIDDLE, markersize=size, markerfacecolor='white',
      elinewidth=1.1, capsize=size / 2, label='plain inverse ±1 standard error',
  )
  (used,) = upper.plot(
      x, prior, 'D', color=style.DARK, markersize=size,
      label=f'prior used: {style.plain(prior_name)}',
  )
  lower.axhline(0, color='black', linewidth=0.7)
  lower.set_xlim(-0.8, classes - 0.2)
  style.class_axis(lower.xaxis, class_names, x, 'class')
  for axes in panels:
    axes.set_ylabel('share of the labels')
  figure.align_ylabels(panels)
  upper.set_title(f'Label distribution, {classes} classes, estimated from {num_labels:,} labels')
  # By columns: the truth to the left, what the server has to the right.
  figure.legend(handles=[bars, steps, inverse, used], loc='outside lower center', ncols=2)
  return figure


@style.styled
def accuracy_curves(
    curves: Mapping[str, np.ndarray], *, title: str = 'Test accuracy', band: str = 'std'
) -> mfigure.Figure:
  """Draws each method's mean test accuracy over rounds, with a band over its seeds.

  Args:
    curves: float `[seeds, rounds]` by method; nan where a round was not evaluated.
    title: What is compared, in a few words.
    band: 'std', the mean and one standard deviation (of the sample) on either side, or 'range',
      from the smallest to the largest seed.
  """
  if band not in ('std', 'range'):
    raise ValueError(f"band must be 'std' or 'range', got {band!r}")
  figure, axes = style.new_axes(height=4.4)
  longest = max((values.shape[1] for values in curves.values()), default=0)
  palette = _palette(len(curves))
  for index, (method, values) in enumerate(curves.items()):
    known = np.flatnonzero(np.isfinite(values).all(axis=0))
    if not len(known):
      continue
    x, y = known + 1, values[:, known]
    step = max(1, len(x) // 8)
    color = palette[index]
    axes.plot(
        x, 100 * y.mean(axis=0), color=color, linestyle=_LINES[index % len(_LINES)],
        marker=_MARKERS[index % len(_MARKERS)], markersize=5,
        # Set off against each other, so that markers of close curves do not hide each other.
        markevery=(index * step // max(1, len(curves)) % step, step),
        label=f'{style.plain(method)} (n = {len(y)})',
    )
    if len(y) > 1:
      low, high = _band(100 * y, band)
      axes.fill_between(x, low, high, color=color, alpha=0.16, linewidth=0)
  axes.set_ylabel('test accuracy, percent')
  _round_axis(axes, np.arange(1, longest + 1))
  spread = {'std': '±1 standard deviation', 'range': 'smallest to largest'}[band]
  axes.set_title(f'{style.plain(title)}: mean over n seeds, {spread}')
  _methods_below(figure, axes)
  return figure


@style.styled
def swept(
    values: Mapping[float, Mapping[str, np.ndarray]], *, name: str, title: str
) -> mfigure.Figure:
  """Draws each method's mean over a setting that is swept, with one standard deviation.

  Args:
    values: float `[seeds]` by method, by the value of the setting.
    name: Of the setting.
    title: What the numbers are.
  """
  figure, axes = style.new_axes(height=4.0)
  methods = list(dict.fromkeys(m for by_method in values.values() for m in by_method))
  palette = _palette(len(methods))
  for index, method in enumerate(methods):
    x = np.array(sorted(v for v, by_method in values.items() if len(by_method.get(method, ()))))
    seeds = [values[v][method] for v in x]
    axes.errorbar(
        x, [np.mean(s) for s in seeds], [np.std(s, ddof=1) if len(s) > 1 else 0 for s in seeds],
        color=palette[index], linestyle=_LINES[index % len(_LINES)],
        marker=_MARKERS[index % len(_MARKERS)], markersize=5, capsize=3, label=style.plain(method),
    )
  axes.set_xticks(sorted(values))
  axes.grid(axis='y')
  axes.set_xlabel(style.plain(name))
  axes.set_title(f'{style.plain(title)}: mean over seeds, ±1 standard deviation')
  _methods_below(figure, axes)
  return figure


@style.styled
def differences(
    values: Mapping[str, Mapping[str, tuple[float, float, float]]], *, title: str, x: str
) -> mfigure.Figure:
  """Draws a dot and an interval for each method, a panel for each setting, all on one scale.

  A filled dot's interval excludes 0. The scale is that of the dots: longer intervals are cut.

  Args:
    values: By setting, then by method, what the dot and the ends of the interval are; the ends nan
      where there is none.
    title: Of the picture.
    x: What the numbers are.
  """
  methods = list(dict.fromkeys(method for found in values.values() for method in found))
  columns = min(3, len(values))
  rows = math.ceil(len(values) / columns)
  figure = style.new_figure(height=0.8 + rows * (0.45 + 0.18 * len(methods)))
  panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
  for axes, (setting, found) in itertools.zip_longest(
      panels.flat, values.items(), fillvalue=('', {})
  ):
    if not found:
      axes.axis('off')
      continue
    axes.axvline(0, color=style.FAINT, linewidth=1)
    for method, (mean, low, high) in found.items():
      y = methods.index(method)
      told = low > 0 or high < 0
      axes.plot([low, high], [y, y], color=style.DARK, linewidth=1.2)
      axes.plot(
          mean, y, 'o', color=style.DARK, markersize=5,
          markerfacecolor=style.DARK if told else 'white',
      )
    axes.set_title(textwrap.fill(style.plain(setting), 34), fontsize=9)
    axes.grid(axis='x')
    axes.tick_params(axis='x', labelbottom=True)
  means = [0.0, *(mean for found in values.values() for mean, _, _ in found.values())]
  room = 0.15 * (max(means) - min(means)) or 1.0
  panels[0, 0].set_xlim(min(means) - room, max(means) + room)
  panels[0, 0].set_ylim(len(methods) - 0.4, -0.6)
  panels[0, 0].set_yticks(range(len(methods)), [style.plain(method) for method in methods])
  figure.supxlabel(x, fontsize=9)
  figure.suptitle(textwrap.fill(style.plain(title), 100), x=0.01, ha='left', fontsize=10,
                  fontweight='bold')
  return figure


@style.styled
def mean_ranks(
    means: Mapping[str, float],
    groups: Sequence[tuple[str, str]],
    critical_difference: float,
    *,
    title: str,
) -> mfigure.Figure:
  """Draws mean ranks on a line, bars over those that are not told apart (Demsar, JMLR 2006).

  Args:
    means: By method, the best first.
    groups: First and last method of each bar.
    critical_difference: How far apart two have to be; drawn as a yardstick.
    title: What was ranked.
  """
  names, values = list(means), list(means.values())
  left = (len(names) + 1) // 2
  line = 0.22  # Inches of a line of text.
  bars = 0.5 + 0.5 * len(groups)  # Lines that the bars take.
  height = (left + bars + 4) * line + 0.4
  figure, axes = style.new_axes(height=height)
  span = max(len(names) - 1, 1)
  low, high = 1 - 0.42 * span, len(names) + 0.42 * span
  axes.set_xlim(low, high)
  axes.set_ylim(-(left + bars + 1), 3)
  axes.axis('off')
  axes.plot([1, len(names)], [0, 0], color='black', linewidth=1)
  for place in style.ticks(len(names), 13) + 1:
    axes.plot([place, place], [0, 0.25], color='black', linewidth=1)
    axes.text(place, 0.45, str(place), ha='center', va='bottom')
  ruler = min(1 + critical_difference, high)
  axes.plot([1, ruler], [2, 2], color=style.MIDDLE, linewidth=2)
  axes.text(1, 2.2, f'critical difference {critical_difference:.2f}', color=style.MIDDLE)
  for i, (first, last) in enumerate(groups):
    axes.plot(
        [means[first] - 0.08, means[last] + 0.08], [-0.5 - 0.5 * i] * 2, color=style.MIDDLE,
        linewidth=3, solid_capstyle='butt',
    )
  for i, (name, value) in enumerate(zip(names, values, strict=True)):
    on_left = i < left
    y = -(bars + 1 + (i if on_left else len(names) - 1 - i))
    side = 1 - 0.04 * span if on_left else len(names) + 0.04 * span
    axes.plot([value, value, side], [0, y, y], color=style.DARK, linewidth=0.8)
    text = f'{style.plain(name)}  {value:.2f}' if on_left else f'{value:.2f}  {style.plain(name)}'
    axes.text(side, y, f' {text} ', ha='right' if on_left else 'left', va='center')
  axes.set_title(f'{style.plain(title)}: mean rank')
  return figure


@style.styled
def costs(
    groups: Mapping[str, Sequence[tuple[str, float, float, bool]]], *, title: str, x: str,
    beside: str,
) -> mfigure.Figure:
  """Draws a dot for each method on a line of its own, group below group, and its cost as a number.

  Args:
    groups: By name, of each method its name, cost, place on the axis, and whether it is filled: no
      other is as good for as little.
    title: Of the picture.
    x: What the places are.
    beside: What the costs are.
  """
  groups = {name: rows for name, rows in groups.items() if rows}
  lines = sum(map(len, groups.values())) + 2 * len(groups)
  figure, axes = style.new_axes(height=1.1 + 0.2 * lines)
  y, ticks = 0.0, []
  right = axes.get_yaxis_transform()
  for name, rows in groups.items():
    axes.text(0, -y, f' {style.plain(name)}', transform=right, fontweight='bold', va='center')
    for i, (method, cost, place, filled) in enumerate(rows, start=1):
      axes.plot(
          place, -y - i, 'o', color=style.DARK, markerfacecolor=style.DARK if filled else 'white',
          markersize=6,
      )
      axes.text(1.01, -y - i, f'{cost:,.0f}', transform=right, va='center')
      ticks.append((-y - i, style.plain(method)))
    y += len(rows) + 2
  axes.text(1.01, 0, beside, transform=right, va='center', fontsize=8)
  axes.set_yticks(*zip(*ticks, strict=True))
  axes.set_ylim(-y + 1, 1)
  axes.grid(axis='x')
  axes.grid(axis='y', linewidth=0.4)
  axes.set_xlabel(x)
  axes.set_title(title)
  return figure


@style.styled
def heat_map(
    values: np.ndarray,
    methods: Sequence[str],
    settings: Sequence[str],
    *,
    title: str,
    spread: np.ndarray | None = None,
    counts: np.ndarray | None = None,
) -> mfigure.Figure:
  """Draws a number for each method and setting, printed in its cell; the darker, the larger.

  Args:
    values: float `[methods, settings]`, nan where there is none.
    methods: Names of the rows.
    settings: Names of the columns.
    title: What the numbers are.
    spread: float `[methods, settings]`, printed after a plus-minus sign.
    counts: int `[methods, settings]`, the number of seeds behind each cell.
  """
  rows, columns = values.shape
  figure, axes = style.new_axes(
      height=1.5 + 0.42 * rows, width=float(np.clip(2.6 + 1.05 * columns, 4.5, 16))
  )
  axes.grid(False)
  known = values[np.isfinite(values)]
  low, high = (known.min(), known.max()) if len(known) else (0.0, 1.0)
  norm = mcolors.Normalize(low, high if high > low else low + 1)
  cmap = style.sequential()
  axes.imshow(
      np.ma.masked_invalid(values), aspect='auto', interpolation='none', cmap=cmap, norm=norm
  )
  for (row, column), value in np.ndenumerate(values):
    missing = not np.isfinite(value)
    text = '–' if missing else f'{value:.2f}'
    if not missing and spread is not None and np.isfinite(spread[row, column]):
      text += f' ±{spread[row, column]:.2f}'
    color = 'black' if missing else style.text_color(cmap(norm(value)))
    axes.text(column, row, text, ha='center', va='center', fontsize=8, color=color)
  axes.set_yticks(range(rows), [style.plain(name) for name in methods])
  steep = max((len(name) for name in settings), default=0) > 12
  axes.set_xticks(range(columns), [style.plain(name) for name in settings])
  if steep:
    axes.tick_params(axis='x', rotation=30)
    for label in axes.get_xticklabels():
      label.set_horizontalalignment('right')
      label.set_rotation_mode('anchor')
  axes.tick_params(length=0)
  axes.spines[:].set_visible(False)
  # Over the cells alone, beside which the methods' names stand: of two columns 30 letters a line.
  seeds = _seeds(counts).replace(' ', '\u00a0')
  text = textwrap.fill(f'{style.plain(title)} {seeds}', 14 + 8 * columns)
  axes.set_title(text.replace('\u00a0', ' '))
  return figure


@style.styled
def decision_map(
    cells: Mapping[tuple[str, str], tuple[float, Sequence[str]]], *, title: str, rows: str,
    columns: str,
) -> mfigure.Figure:
  """Draws a box for each row and column with lines of text; the darker, the larger its number.

  Args:
    cells: By row and column, the number and the lines, of which the first is set in bold.
    title: What it is.
    rows: What the rows are.
    columns: What the columns are.
  """
  names, others = (tuple(dict.fromkeys(keys)) for keys in zip(*cells, strict=True))
  lines = max(len(text) for _, text in cells.values())
  figure, axes = style.new_axes(height=1.3 + (0.25 + 0.16 * lines) * len(names))
  axes.grid(False)
  values = np.full((len(names), len(others)), np.nan)
  for (row, column), (value, _) in cells.items():
    values[names.index(row), others.index(column)] = value
  cmap = style.sequential()
  norm = mcolors.Normalize(min(0.0, np.nanmin(values)), max(1.0, np.nanmax(values)))
  axes.imshow(
      np.ma.masked_invalid(values), aspect='auto', interpolation='none', cmap=cmap, norm=norm
  )
  for (row, column), (value, text) in cells.items():
    x, y = others.index(column), names.index(row)
    for i, line in enumerate(text):
      axes.annotate(
          style.plain(line), (x, y), xytext=(0, 11.5 * ((lines - 1) / 2 - i)),
          textcoords='offset points', ha='center', va='center', fontsize=8,
          fontweight='normal' if i else 'bold', color=style.text_color(cmap(norm(value))),
      )
  axes.set_xticks(np.arange(len(others) - 1) + 0.5, minor=True)
  axes.set_yticks(np.arange(len(names) - 1) + 0.5, minor=True)
  axes.grid(which='minor', color='white', linewidth=2.5)
  axes.set_yticks(range(len(names)), [style.plain(name) for name in names])
  axes.set_xticks(range(len(others)), [style.plain(name) for name in others])
  axes.tick_params(length=0, which='both')
  axes.spines[:].set_visible(False)
  axes.set(xlabel=columns, ylabel=rows)
  axes.set_title(textwrap.fill(style.plain(title), 90))
  return figure


def _methods_below(figure, axes):
  """The legend of the methods, outside."""
  handles, labels = axes.get_legend_handles_labels()
  if handles:
    figure.legend(handles, labels, loc='outside lower center', ncols=min(3, len(handles)),
                  handlelength=3.2)


def _seeds(counts):
  """'(n = 5 seeds)', or the range where cells differ, or nothing."""
  if counts is None or not np.any(counts):
    return ''
  least, most = int(np.min(counts)), int(np.max(counts))
  return f'(n = {most} seeds)' if least == most else f'(n = {least} to {most} seeds)'


def _line(axes, x, y, color):
  """A line, with markers where there are few enough to be told apart."""
  axes.grid(axis='y')
  marker = 'o' if len(x) <= 30 else None
  # Not joined over rounds that are missing: where a step is twice as long as both beside it.
  steps, gaps = np.diff(x), np.zeros(0, int)
  if len(steps) > 2:
    beside = np.maximum(np.append(steps[1:], 0), np.append(0, steps[:-1]))
    gaps = 1 + np.flatnonzero(steps > 2 * beside)
  axes.plot(
      np.insert(x.astype(float), gaps, np.nan), np.insert(y.astype(float), gaps, np.nan),
      color=color, marker=marker, markersize=3.5,
  )
  if not len(x):
    axes.text(
        0.5, 0.5, 'nothing measured', transform=axes.transAxes, ha='center', color=style.FAINT
    )


def _round_axis(axes, rounds):
  axes.set_xlabel('round')
  axes.xaxis.set_major_locator(ticker.MaxNLocator(10, integer=True, steps=(1, 2, 5, 10)))
  if len(rounds):
    axes.set_xlim(0.5 if len(rounds) < 20 else 0, rounds[-1] + 0.5)


def _mark_stages(panels, spans):
  """A line where a stage begins, and its name where there is room for it."""
  if len(spans) < 2:
    return
  total = spans[-1].last
  top = panels[0]
  for span in spans:
    for axes in panels:
      if span.first > 1:
        axes.axvline(span.first - 0.5, color=style.FAINT, linewidth=0.9, linestyle=(0, (4, 3)))
    room = (span.last - span.first + 1) / total * style.WIDTH * 0.88 * 72  # In points.
    name = style.plain(_shorten(span.name))
    if room > 5.6 * len(name) + 4:
      top.text(
          (span.first + span.last) / 2, 1.02, name, transform=top.get_xaxis_transform(),
          ha='center', va='bottom', color='#444444', fontsize=8.5,
      )
    elif room > 11:
      top.text(
          (span.first + span.last) / 2, 0.02, name, transform=top.get_xaxis_transform(),
          ha='center', va='bottom', rotation=90, color='#444444', fontsize=8, zorder=5,
          path_effects=[patheffects.withStroke(linewidth=3, foreground='white')],
      )


def _title(axes, text, spans):
  # Names of stages stand between the axes and the title.
  axes.set_title(text, pad=18 if len(spans) > 1 else 6)


def _shorten(text):
  return text if len(text) <= 28 else text[:25] + '...'


def mark_rounds(
    panels: Sequence[maxes.Axes], rounds: np.ndarray, stages: Sequence[str], title: str
) -> None:
  """Gives panels above each other their axis of rounds, the marks of the stages, and a title.

  Args:
    panels: From above; they share their x axis.
    rounds: int `[rounds]`.
    stages: The stage of each round, or nothing.
    title: Of the uppermost.
  """
  _round_axis(panels[-1], rounds)
  spans = stage_spans(stages)
  _mark_stages(panels, spans)
  _title(panels[0], title, spans)


def _palette(count):
  """Colours from dark to light, apart for every kind of colour vision and in grey."""
  return [
      mcolors.to_hex(matplotlib.colormaps['inferno'](position))
      for position in np.linspace(0.12, 0.78, max(count, 2))[:count]
  ]


def _band(values, band):
  if band == 'range':
    return values.min(axis=0), values.max(axis=0)
  mean, deviation = values.mean(axis=0), values.std(axis=0, ddof=1)
  return mean - deviation, mean + deviation
