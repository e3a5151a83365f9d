"""The pictures: each function takes plain data and returns a Matplotlib figure.

All of them can be read in grey print: lightness, line style and marker tell series apart before
hue does. The same data give the same bytes. Matplotlib's settings are changed only while a figure
is made or written, so a program that draws its own pictures keeps its own style.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib import axes as maxes
from matplotlib import colors as mcolors
from matplotlib import figure as mfigure
from matplotlib import patheffects
from matplotlib import ticker

from tff_noise.report import figure_style as style


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

  Where there is validation it draws that too, and marks the round that is chosen by it.

  Args:
    rounds: int `[rounds]`.
    values: float `[rounds]`, nan where the round was not evaluated.
    stages: The stage of each round, or nothing.
    validation: Accuracy in validation, of the server or of clients, float `[rounds]`, nan as
      `values`; None where there is none.
  """
  figure, axes = style.new_axes(height=3.7)
  known = np.isfinite(values)
  x, y = rounds[known], values[known]
  if validation is not None and np.isfinite(validation[known]).any():
    _draw_validation(axes, x, y, validation[known])
  line(axes, x, y, style.DARK)
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
  axes.plot(
      rounds, validation, color=style.FAINT, linewidth=1.1, label='validation',
      marker='o' if len(rounds) == 1 else None,  # Of one there is no line.
  )
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
    line(axes, rounds[known], values[known], color)
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
  line(axes, rounds[known], values[known], style.DARK)
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
  round_axis(axes, rounds)
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
    nominal: np.ndarray, realised: np.ndarray, sizes: np.ndarray, *, noisy: np.ndarray,
    numbers: np.ndarray,
) -> mfigure.Figure:
  """Draws nominal and realised noise of each client, sorted, above its number of examples.

  Args:
    nominal: float `[clients]`, mean flip probability.
    realised: float `[clients]`, share of wrong labels.
    sizes: int `[clients]`, examples.
    noisy: bool `[clients]`, who counts as noisy.
    numbers: int `[clients]`, their numbers in the federation.
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
    lower.set_xticks(x, numbers[order])
    lower.set_xlabel('client, sorted by nominal, then by realised noise')
  else:
    lower.set_xticks(style.ticks(clients, style.MAX_TICKS))
    lower.set_xlabel('clients in the order of nominal, then of realised noise')
  upper.set_title(
      f'Label noise: {noisy.sum()} of {clients} clients are noisy, {int(sizes.sum()):,} examples'
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


def line(axes: maxes.Axes, x: np.ndarray, y: np.ndarray, color: str, label: str = '') -> None:
  """Draws a line, with markers where there are few enough to be told apart.

  Args:
    axes: Where.
    x: int `[n]`, rounds.
    y: float `[n]`.
    color: Its colour.
    label: Its name, if there is a legend.
  """
  axes.grid(axis='y')
  marker = 'o' if len(x) <= 30 else None
  # Not joined over rounds that are missing: where a step is twice as long as both beside it.
  steps, gaps = np.diff(x), np.zeros(0, int)
  if len(steps) > 2:
    beside = np.maximum(np.append(steps[1:], 0), np.append(0, steps[:-1]))
    gaps = 1 + np.flatnonzero(steps > 2 * beside)
  axes.plot(
      np.insert(x.astype(float), gaps, np.nan), np.insert(y.astype(float), gaps, np.nan),
      color=color, marker=marker, markersize=3.5, label=label,
  )
  if not len(x):
    axes.text(
        0.5, 0.5, 'nothing measured', transform=axes.transAxes, ha='center', color=style.FAINT
    )


def round_axis(axes: maxes.Axes, rounds: np.ndarray) -> None:
  """Gives the x axis its name, its ends and its ticks, for int `[rounds]`."""
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
  round_axis(panels[-1], rounds)
  spans = stage_spans(stages)
  _mark_stages(panels, spans)
  _title(panels[0], title, spans)
