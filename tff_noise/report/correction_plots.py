"""Pictures of methods that look for noisy clients and correct labels.

Each function takes plain data and returns a Matplotlib figure, as in `plots`. A client's fill says
what it is (the truth), its shape what the server took it for, so both can be read in grey print.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib import figure as mfigure
from matplotlib import lines as mlines
from matplotlib import patches as mpatches
from matplotlib import patheffects
from matplotlib import ticker

from tff_noise.report import figure_style as style
from tff_noise.report import plots

# Fill and hatch of a bar, fill of a marker: clean, noisy, unknown.
_TRUTHS = {
    'clean': ({'facecolor': style.LIGHT, 'edgecolor': style.DARK, 'hatch': '////'}, 'white'),
    'noisy': ({'facecolor': style.DARK, 'edgecolor': 'white'}, style.DARK),
    'truth unknown': (
        {'facecolor': style.FAINT, 'edgecolor': 'white', 'hatch': '...'}, style.FAINT,
    ),
}
_SHAPES = {'taken for clean': 'o', 'taken for noisy': '^'}
_REGION = '#f6e3d6'
# More misjudged clients than this are not ringed and named.
_MAX_NAMED = 12
# Shares that differ by less differ by rounding.
_ROUNDING = 1e-9
# Lines that may lie on each other: the wide first, seen beneath the narrow.
_MEASURES = {
    'recall': {'color': '#9fb4d3', 'linewidth': 5, 'marker': 's', 'markersize': 7},
    'precision': {'color': style.MIDDLE, 'linewidth': 2.2, 'marker': 'v', 'markersize': 6},
    'F1': {'color': style.DARK, 'linewidth': 1.2, 'linestyle': '--', 'marker': 'o',
           'markersize': 3.5},
}


class Judgement(NamedTuple):
  """What is true of the clients, and what the server took them for.

  Attributes:
    rate: float `[C]` in [0, 1], the true share of wrong labels; nan where it is unknown.
    noisy: bool `[C]`, whether a client is noisy.
    known: bool `[C]`, whether it is known if a client is noisy.
    taken: bool `[C]`, whether the server took it for noisy.
    names: C texts, what the data call the clients; empty where they have numbers alone.
  """

  rate: np.ndarray
  noisy: np.ndarray
  known: np.ndarray
  taken: np.ndarray
  names: tuple[str, ...] = ()

  @property
  def wrong(self) -> np.ndarray:
    """bool `[C]`, the clients that the server is known to have misjudged."""
    return self.known & (self.noisy != self.taken)

  def of_truth(self, truth: str) -> np.ndarray:
    """bool `[C]`, the clients of one of `_TRUTHS`."""
    return {
        'clean': self.known & ~self.noisy, 'noisy': self.known & self.noisy,
        'truth unknown': ~self.known,
    }[truth]


class Scores(NamedTuple):
  """One score of every client.

  Attributes:
    name: For its axis.
    title: Two lines at most.
    values: float `[C]`, nan for a client without one.
    components: float `[2, 3]`, weight, mean and standard deviation of two Gaussians, the lower
      first; None where there are none.
    decides: Whether the server split the clients by this score.
  """

  name: str
  title: str
  values: np.ndarray
  components: np.ndarray | None
  decides: bool


@style.styled
def client_scores(scores: Sequence[Scores], judgement: Judgement) -> mfigure.Figure:
  """Draws how scores are distributed, and how they follow the noise (FedCorr, figure 3).

  Args:
    scores: One column each.
    judgement: Of the clients. Without any known rate the lower row is left out.
  """
  rows = 2 if np.isfinite(judgement.rate).any() else 1
  figure = style.new_figure(
      height=5.6 if rows == 2 else 3.2, width=style.WIDTH if len(scores) > 1 else 6
  )
  panels = figure.subplots(rows, len(scores), sharex='col', sharey='row', squeeze=False)
  figure.get_layout_engine().set(wspace=0.04)
  for column, score in zip(panels.T, scores, strict=True):
    seen = np.isfinite(score.values)
    if score.decides:
      for low, high in _noisy_ranges(score.values[seen], judgement.taken[seen]):
        for axes in column:
          axes.axvspan(low, high, color=_REGION, linewidth=0, zorder=-1)
    limits = _limits(score.values[seen])
    _draw_distribution(column[0], score, judgement)
    if rows == 2:
      _draw_clients(
          column[1], _side_by_side(score.values, judgement.rate, limits), judgement.rate, judgement
      )
    column[0].set_title(score.title)
    column[-1].set_xlabel(score.name)
    column[-1].set_xlim(*limits)
  panels[0, 0].set_ylabel('clients')
  panels[0, 0].yaxis.set_major_locator(ticker.MaxNLocator(5, integer=True))
  if rows == 2:
    panels[1, 0].set_ylabel('true share of wrong labels')
    panels[1, 0].set_ylim(*_share_limits(judgement.rate))
  figure.align_ylabels(panels[:, 0])
  _legend(figure, judgement, scores, rows)
  return figure


class Shares(NamedTuple):
  """A share of labels of every client, against the true share of wrong ones.

  Attributes:
    title: Two lines at most.
    values: float `[C]` in [0, 1], nan for a client without one.
    threshold: Drawn as a line, with its name; None for none.
  """

  title: str
  values: np.ndarray
  threshold: tuple[float, str] | None = None


@style.styled
def client_noise(shares: Sequence[Shares], judgement: Judgement) -> mfigure.Figure:
  """Draws shares of each client against its true share of wrong labels, side by side.

  Args:
    shares: One panel each, at most three.
    judgement: Of the clients; of some the rate must be known.
  """
  figure = style.new_figure(height=3.9, width=(4.2, 6.2, style.WIDTH)[len(shares) - 1])
  panels = figure.subplots(1, len(shares), sharex=True, sharey=True, squeeze=False)[0]
  figure.get_layout_engine().set(wspace=0.04)
  every = np.concatenate([judgement.rate, *(share.values for share in shares)])
  limits = _share_limits(every)
  for axes, share in zip(panels, shares, strict=True):
    axes.plot((0, 1), (0, 1), color=style.FAINT, linewidth=1, linestyle=(0, (4, 3)), zorder=0)
    if share.threshold is not None and share.threshold[0] <= limits[1]:
      value, name = share.threshold
      axes.axhline(value, color=style.MIDDLE, linewidth=1, zorder=0)
      axes.annotate(
          name, (1, value), (-2, 2), xycoords=('axes fraction', 'data'),
          textcoords='offset points', ha='right', va='bottom', color=style.MIDDLE, fontsize=8,
      )
    _draw_clients(axes, judgement.rate, share.values, judgement)
    axes.set_title(share.title, fontsize=9)
    axes.set_xlabel('true share of wrong labels\n(as the labels came)')
    axes.set_xlim(*limits)
    axes.set_ylim(*limits)
    axes.grid(True)
  panels[0].set_ylabel('share of the labels')
  handles = _client_handles(judgement)
  handles.append(mlines.Line2D([], [], color=style.FAINT, linewidth=1, linestyle=(0, (4, 3)),
                               label='equal'))
  figure.legend(handles=handles, loc='outside lower center', ncols=(1, 3, 4)[len(shares) - 1])
  return figure


@style.styled
def correction_curves(
    rounds: np.ndarray,
    wrong: np.ndarray,
    measures: dict[str, np.ndarray],
    stages: Sequence[str] = (),
    *,
    before: float,
) -> mfigure.Figure:
  """Draws the share of wrong labels over rounds, above how well noisy clients are told.

  Args:
    rounds: int `[rounds]`.
    wrong: float `[rounds]`, the share of wrong labels after each round.
    measures: float `[rounds]` by name ('precision', 'recall', 'F1'), nan where there is none; {}
      leaves the lower panel out.
    stages: The stage of each round, or nothing.
    before: The share of wrong labels as they came.
  """
  figure = style.new_figure(height=4.8 if measures else 3.2)
  panels = figure.subplots(2 if measures else 1, 1, sharex=True, squeeze=False)[:, 0]
  upper = panels[0]
  upper.grid(axis='y')
  upper.axhline(
      before, color=style.FAINT, linewidth=1.1, linestyle=(0, (4, 3)),
      label='wrong labels as they came',
  )
  x, y = np.concatenate([[0], rounds]), np.concatenate([[before], wrong])
  upper.plot(x, y, color=style.DARK, drawstyle='steps-post')
  changes = 1 + np.flatnonzero(np.abs(np.diff(y)) > _ROUNDING)
  upper.plot(x[changes], y[changes], 'o', color=style.DARK, markersize=3.5)
  top = float(np.nanmax(y))
  upper.set_ylim(0, 1.12 * top or 0.05)
  upper.yaxis.set_major_formatter(ticker.PercentFormatter(1, decimals=0 if top > 0.05 else 1))
  upper.set_ylabel('wrong labels')
  if measures:
    _draw_measures(panels[1], rounds, measures)
  figure.legend(loc='outside lower center', ncols=2 if measures else 1, handlelength=3)
  figure.align_ylabels(panels)
  plots.mark_rounds(
      panels, rounds, stages,
      f'Wrong labels of all clients: {before:.1%} before, {float(wrong[-1]):.1%} after round '
      f'{int(rounds[-1])}',
  )
  return figure


def _draw_measures(axes, rounds, measures):
  axes.grid(axis='y')
  for name, look in _MEASURES.items():
    values = measures[name]
    changes = np.flatnonzero(np.diff(np.nan_to_num(values, nan=-1), prepend=-1))
    final = f'{values[-1]:.2f}' if np.isfinite(values[-1]) else 'none'
    axes.plot(rounds, values, drawstyle='steps-post', markevery=changes.tolist(),
              label=f'{name}: {final} after round {rounds[-1]}', **look)
  axes.set_ylim(-0.05, 1.08)
  axes.set_ylabel('noisy clients:\nprecision, recall, F1')


def _noisy_ranges(values, taken):
  """The ranges of a score that hold the clients taken for noisy, each up to the middle between it
  and the next client. Of a score of which some are and some are not, none.
  """
  values, which = np.unique(values, return_inverse=True)
  taken = np.array([taken[which == i].all() for i in range(len(values))], bool)
  starts = np.flatnonzero(np.diff(taken.astype(int), prepend=0) == 1)
  ends = np.flatnonzero(np.diff(taken.astype(int), append=0) == -1)
  padded = np.concatenate([[-np.inf], values, [np.inf]])
  low, high = _limits(values)
  return [
      (max(low, (padded[i] + padded[i + 1]) / 2), min(high, (padded[j + 1] + padded[j + 2]) / 2))
      for i, j in zip(starts, ends, strict=True)
  ]


def _limits(values):
  low, high = (values.min(), values.max()) if len(values) else (0.0, 1.0)
  room = 0.08 * (high - low) or 0.5
  edges = _edges(values)
  beside = 0.2 * (edges[1] - edges[0])  # No bar ends at the frame.
  return min(low - room, edges[0] - beside), max(high + room, edges[-1] + beside)


def _share_limits(values):
  top = max(0.05, float(np.nanmax(values)))
  return -0.05 * top, 1.08 * top


def _edges(values):
  """Of the bars; of few whole numbers one each, so that none lies across a threshold."""
  bars = int(np.clip(2 * np.sqrt(len(values)), 8, 30))
  low, high = (values.min(), values.max()) if len(values) else (0, 0)
  if (values == np.round(values)).all() and high - low <= 2 * bars:
    return np.arange(low - 0.5, high + 1)
  return np.histogram_bin_edges(values, bars)


def _draw_distribution(axes, score, judgement):
  """Stacked bars of the clients, and the Gaussians as numbers of clients a bar."""
  seen = np.isfinite(score.values)
  edges = _edges(score.values[seen])
  bottom = np.zeros(len(edges) - 1)
  for truth, (look, _) in _TRUTHS.items():
    heights = np.histogram(score.values[judgement.of_truth(truth) & seen], edges)[0]
    axes.bar(edges[:-1], heights, np.diff(edges), bottom, align='edge', linewidth=0.6, **look)
    bottom += heights
  axes.grid(axis='y')
  axes.set_ylim(0, 1.05 * bottom.max() or 1)  # Empty bars on the highest would end the axis there.
  if score.components is None:
    return
  x = np.linspace(*_limits(score.values[seen]), 400)
  outline = [patheffects.withStroke(linewidth=3.2, foreground='white')]
  for (weight, mean, deviation), line in zip(score.components, ('--', '-'), strict=True):
    density = np.exp(-0.5 * ((x - mean) / deviation) ** 2) / (deviation * np.sqrt(2 * np.pi))
    clients = seen.sum() * weight * density * (edges[1] - edges[0])
    axes.plot(x, clients, line, color=style.MIDDLE, linewidth=1.6, path_effects=outline)
  # A narrow Gaussian rises far above its bars.
  axes.set_ylim(0, max(axes.get_ylim()[1], 1.15 * bottom.max()))


def _side_by_side(x, y, limits):
  """Moves clients that would hide each other apart: of equal scores and next to equal rates."""
  moved = np.array(x, np.float64)
  places = np.stack([moved, np.round(20 * np.asarray(y))], axis=1)
  span = limits[1] - limits[0]
  # They stay nearer to their own score than to another.
  room = 0.6 * min(np.diff(np.unique(x[np.isfinite(x)])), default=span)
  for place in np.unique(places[np.isfinite(places).all(axis=1)], axis=0):
    same = np.flatnonzero((places == place).all(axis=1))
    steps = np.arange(len(same)) - (len(same) - 1) / 2
    moved[same] += steps * min(0.025 * span, room / len(same))
  return moved


def _draw_clients(axes, x, y, judgement):
  """A marker for each client; those known to be misjudged are ringed and numbered, if few."""
  few = len(x) <= 40
  size = 38 if few else 20
  for truth, (_, color) in _TRUTHS.items():
    for shape, taken in zip(_SHAPES.values(), (False, True), strict=True):
      which = judgement.of_truth(truth) & (judgement.taken == taken)
      which &= np.isfinite(x) & np.isfinite(y)
      if which.any():  # Of nothing that is not clipped, Matplotlib draws a stray marker.
        axes.scatter(
            x[which], y[which], s=size, marker=shape, facecolor=color, edgecolor=style.DARK,
            linewidths=0.8, clip_on=False, zorder=3,
        )
  wrong = np.flatnonzero(judgement.wrong & np.isfinite(x) & np.isfinite(y))
  # Many rings hide what they ring; fill and shape say it, too.
  if 0 < len(wrong) <= _MAX_NAMED:
    axes.scatter(
        x[wrong], y[wrong], s=4 * size, facecolor='none', edgecolor=style.MIDDLE, linewidths=1.4,
        clip_on=False, zorder=4,
    )
    for client in wrong:
      axes.annotate(
          str(client), (x[client], y[client]), (6, 5), textcoords='offset points', fontsize=8,
          color=style.MIDDLE,
      )
  axes.grid(True)


def _client_handles(judgement):
  handles = []
  for truth, (_, color) in _TRUTHS.items():
    for name, shape in _SHAPES.items():
      which = judgement.of_truth(truth) & (judgement.taken == (shape == '^'))
      if which.any():
        handles.append(_marker(shape, color, f'{truth}, {name}: {which.sum()}'))
  if 0 < judgement.wrong.sum() <= _MAX_NAMED:
    ring = _marker('o', 'none', f'misjudged, by number: {judgement.wrong.sum()}')
    ring.set(markersize=10, markeredgecolor=style.MIDDLE, markeredgewidth=1.4)
    handles.append(ring)
  return handles


def _marker(shape, color, label):
  return mlines.Line2D(
      [], [], linestyle='', marker=shape, markersize=6, markerfacecolor=color,
      markeredgecolor=style.DARK, markeredgewidth=0.8, label=label,
  )


def _legend(figure, judgement, scores, rows):
  handles = [
      mpatches.Patch(label=f'{truth}: {mask.sum()}', linewidth=0.6, **look)
      for truth, (look, _) in _TRUTHS.items() if (mask := judgement.of_truth(truth)).any()
  ]
  if rows == 2:
    handles += _client_handles(judgement)
  if any(score.components is not None for score in scores):
    for name, line in (('lower Gaussian', '--'), ('upper Gaussian', '-')):
      handles.append(mlines.Line2D([], [], color=style.MIDDLE, linestyle=line, label=name))
  if judgement.taken.any() and any(score.decides for score in scores):
    handles.append(mpatches.Patch(color=_REGION, label='scores taken for noisy'))
  figure.legend(handles=handles, loc='outside lower center', ncols=4 if len(scores) > 1 else 2)
