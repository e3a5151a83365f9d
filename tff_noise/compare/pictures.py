"""Pictures of comparisons: each function takes plain data and returns a Matplotlib figure.

As those of a run, `tff_noise.report.plots`, they can be read in grey print, and the same data give
the same bytes.
"""

import math
import textwrap
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib import colors as mcolors
from matplotlib import figure as mfigure

from tff_noise.report import figure_style as style
from tff_noise.report import plots

# Values of which the largest is so many times the smallest have an axis of powers.
_WIDE_SPAN = 50
# Of a heat map, in whose cells a deviation has room.
_WIDE_COLUMNS = 12
# In a line of a legend.
_LEGEND_LETTERS = 100
# Of names beside mean ranks there is room for so many letters, and an inch for each ten more.
_RANK_LETTERS, _LETTERS_AN_INCH = 24, 10
_MARKERS = 'osD^vPX<>*'
_LINES = ('-', '--', '-.', ':', (0, (5, 1, 1, 1, 1, 1)))


@style.styled
def accuracy_curves(
    curves: Mapping[str, np.ndarray], *, title: str
) -> mfigure.Figure:
  """Draws each method's mean test accuracy over rounds, with one standard deviation over seeds.

  Args:
    curves: float `[seeds, rounds]` by method; nan where a round was not evaluated.
    title: What is compared, in a few words.
  """
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
      mean, deviation = 100 * y.mean(axis=0), 100 * y.std(axis=0, ddof=1)
      axes.fill_between(
          x, mean - deviation, mean + deviation, color=color, alpha=0.16, linewidth=0
      )
  axes.set_ylabel('test accuracy, percent')
  plots.round_axis(axes, np.arange(1, longest + 1))
  axes.set_title(f'{style.plain(title)}: mean over n seeds, ±1 standard deviation')
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
    if not len(x):
      continue
    seeds = [values[v][method] for v in x]
    axes.errorbar(
        x, [np.mean(s) for s in seeds], [np.std(s, ddof=1) if len(s) > 1 else 0 for s in seeds],
        color=palette[index], linestyle=_LINES[index % len(_LINES)],
        marker=_MARKERS[index % len(_MARKERS)], markersize=5, capsize=3, label=style.plain(method),
    )
  at = sorted(values)
  if at[0] > 0 and at[-1] >= _WIDE_SPAN * at[0]:
    axes.set_xscale('log')
    axes.minorticks_off()
  elif at[0] == 0 and len(at) > 2 and at[-1] >= _WIDE_SPAN * at[1]:
    axes.set_xscale('symlog', linthresh=at[1])
    axes.minorticks_off()
  axes.set_xticks(at, [f'{value:g}' for value in at])
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

  A filled dot's interval excludes 0. An interval that would make the scale much wider than the dots
  need ends in an arrow.

  Args:
    values: By setting, one at least, then by method, what the dot and the ends of the interval are;
      the ends nan where there is none.
    title: Of the picture.
    x: What the numbers are.
  """
  methods = list(dict.fromkeys(method for found in values.values() for method in found))
  names = [textwrap.fill(style.plain(method), 30) for method in methods]
  titles = [textwrap.fill(style.plain(setting), 34) for setting in values]
  columns = min(3, len(values))
  rows = math.ceil(len(values) / columns)
  lines = sum(name.count('\n') + 1 for name in names)
  above = max(text.count('\n') + 1 for text in titles)
  figure = style.new_figure(height=0.8 + rows * (0.3 + 0.17 * above + 0.18 * lines))
  panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
  for axes in panels.flat[len(values):]:
    axes.axis('off')
  left, right = _scale([numbers for found in values.values() for numbers in found.values()])
  for axes, text, found in zip(panels.flat, titles, values.values(), strict=False):
    axes.axvline(0, color=style.FAINT, linewidth=1)
    for method, (mean, low, high) in found.items():
      y = methods.index(method)
      axes.plot([max(low, left), min(high, right)], [y, y], color=style.DARK, linewidth=1.2)
      for marker, end, cut in (('<', left, low < left), ('>', right, high > right)):
        if cut:
          axes.plot(end, y, marker, color=style.DARK, markersize=4, clip_on=False)
      told = low > 0 or high < 0
      axes.plot(
          mean, y, 'o', color=style.DARK, markersize=5,
          markerfacecolor=style.DARK if told else 'white',
      )
    axes.set_title(text, fontsize=9)
    axes.grid(axis='x')
    axes.tick_params(axis='x', labelbottom=True)
  panels[0, 0].set_xlim(left, right)
  panels[0, 0].set_ylim(len(methods) - 0.4, -0.6)
  panels[0, 0].set_yticks(range(len(methods)), names)
  figure.supxlabel(x, fontsize=9)
  figure.suptitle(
      textwrap.fill(style.plain(title), 100), x=0.01, ha='left', fontsize=10, fontweight='bold'
  )
  return figure


def _scale(differences):
  """Both ends: 0, all dots and their intervals, but these no further than the dots are apart."""
  dots = [0.0, *(mean for mean, _, _ in differences)]
  ends = [end for _, low, high in differences for end in (low, high) if math.isfinite(end)]
  room = (max(dots) - min(dots)) or 1.0
  left = max(min([*dots, *ends]), min(dots) - room)
  right = min(max([*dots, *ends]), max(dots) + room)
  return left - 0.05 * room, right + 0.05 * room


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
  more = max(0, max(map(len, names)) - _RANK_LETTERS)
  figure, axes = style.new_axes(
      height=height, width=style.WIDTH + 2 * more / _LETTERS_AN_INCH
  )
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
    shown = style.plain(name)
    text = f'{shown}  {value:.2f}' if on_left else f'{value:.2f}  {shown}'
    axes.text(side, y, f' {text} ', ha='right' if on_left else 'left', va='center')
  axes.set_title(f'{style.plain(title)}: mean rank')
  return figure


@style.styled
def costs(
    groups: Mapping[str, Sequence[tuple[str, str, float, bool]]], *, title: str, x: str,
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
      axes.text(1.01, -y - i, cost, transform=right, va='center')
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
    spread: float `[methods, settings]`, printed after a plus-minus sign where there is room.
    counts: int `[methods, settings]`, the number of seeds behind each cell.
  """
  rows, columns = values.shape
  figure, axes = style.new_axes(
      height=1.5 + 0.42 * rows, width=float(np.clip(2.6 + 1.05 * columns, 4.5, 16))
  )
  axes.grid(False)
  wide = columns <= _WIDE_COLUMNS
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
    if not missing and spread is not None and np.isfinite(spread[row, column]) and wide:
      text += f' ±{spread[row, column]:.2f}'
    color = 'black' if missing else style.text_color(cmap(norm(value)))
    axes.text(column, row, text, ha='center', va='center', fontsize=8 if wide else 7, color=color)
  axes.set_yticks(range(rows), [textwrap.fill(style.plain(name), 40) for name in methods])
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
    columns = max(1, min(3, len(handles), _LEGEND_LETTERS // max(map(len, labels))))
    labels = [textwrap.fill(label, _LEGEND_LETTERS) for label in labels]
    lines = sum(label.count('\n') + 1 for label in labels) / columns
    width, height = figure.get_size_inches()
    # The axes keep the room that they have beside three lines.
    figure.set_size_inches(width, height + 0.19 * max(0, math.ceil(lines) - 3))
    figure.legend(handles, labels, loc='outside lower center', ncols=columns, handlelength=3.2)


def _seeds(counts):
  """'(n = 5 seeds)', or the range where cells differ, or nothing."""
  if counts is None or not np.any(counts):
    return ''
  least, most = int(np.min(counts)), int(np.max(counts))
  return f'(n = {most} seeds)' if least == most else f'(n = {least} to {most} seeds)'


def _palette(count):
  """Colours from dark to light, apart for every kind of colour vision and in grey."""
  return [
      mcolors.to_hex(matplotlib.colormaps['inferno'](position))
      for position in np.linspace(0.12, 0.78, max(count, 2))[:count]
  ]
