"""Pictures of how clients and their labels were judged, against the truth.

Each function takes plain data and returns a Matplotlib figure, as in `plots`.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib import figure as mfigure
from matplotlib import ticker

from tff_noise.report import figure_style as style

_BARS = 10
_GROUPS = {
    'right labels': {'facecolor': style.LIGHT, 'edgecolor': style.DARK, 'hatch': '////'},
    'wrong labels': {'facecolor': style.DARK, 'edgecolor': 'white'},
    'truth unknown': {'facecolor': style.FAINT, 'edgecolor': 'white', 'hatch': '...'},
}
_FILLS = {'clean': 'white', 'noisy': style.DARK, 'truth unknown': style.FAINT}


@style.styled
def posteriors(groups: Mapping[str, np.ndarray]) -> mfigure.Figure:
  """Draws how posteriors of groups of labels are distributed, in percent of each group.

  Args:
    groups: float `[n]` in [0, 1], by name: 'right labels', 'wrong labels' or 'truth unknown'.
  """
  figure, axes = style.new_axes(height=3.2, width=6)
  edges = np.linspace(0, 1, _BARS + 1)
  groups = {name: values for name, values in groups.items() if len(values)}
  width = 0.9 / _BARS / len(groups)
  for i, (name, values) in enumerate(groups.items()):
    # Rounding may have led out of [0, 1].
    counts = np.histogram(np.clip(values, 0, 1), edges)[0]
    axes.bar(
        edges[:-1] + 0.05 / _BARS + i * width, 100 * counts / len(values), width, align='edge',
        linewidth=0.6, label=f'{name}: {len(values):,}', **_GROUPS[name],
    )
  axes.set_xlim(0, 1)
  axes.set_xticks(edges[::2])
  axes.yaxis.set_major_formatter(ticker.FormatStrFormatter('%g %%'))
  axes.grid(axis='y')
  axes.set_title('How likely clients found their labels right')
  axes.set_xlabel('posterior of being right')
  axes.set_ylabel('share of the group')
  figure.legend(loc='outside lower center', ncols=len(groups))
  return figure


class OfClients(NamedTuple):
  """A number of every client.

  Attributes:
    title: Above the panel.
    name: For its axis.
    values: float `[C]`, nan for a client without one.
  """

  title: str
  name: str
  values: np.ndarray


@style.styled
def against_noise(
    panels: Sequence[OfClients], rate: np.ndarray, noisy: np.ndarray, known: np.ndarray
) -> mfigure.Figure:
  """Draws numbers of each client against its true share of wrong labels, side by side.

  Args:
    panels: What is drawn, at most two.
    rate: float `[C]`, the true share of wrong labels; nan where it is unknown.
    noisy: bool `[C]`, whether a client is noisy.
    known: bool `[C]`, whether that is known.
  """
  truths = {'clean': known & ~noisy, 'noisy': known & noisy, 'truth unknown': ~known}
  width = style.WIDTH if len(panels) > 1 else 5
  figure = style.new_figure(height=3.4, width=width)
  figure.get_layout_engine().set(wspace=0.04)
  low, high = float(np.nanmin(rate)), float(np.nanmax(rate))
  room = 0.06 * (high - low) or 0.05
  for axes, panel in zip(
      figure.subplots(1, len(panels), sharex=True, squeeze=False)[0], panels, strict=True
  ):
    drawn = np.isfinite(rate) & np.isfinite(panel.values)
    for truth, of_truth in truths.items():
      which = drawn & of_truth
      if which.any():
        axes.scatter(
            rate[which], panel.values[which], s=38 if len(rate) <= 40 else 20,
            facecolor=_FILLS[truth], edgecolor=style.DARK, linewidths=0.8, clip_on=False, zorder=3,
            label=f'{truth}: {which.sum()}' if panel is panels[0] else None,
        )
    axes.set_title(panel.title)
    axes.set_xlabel('true share of wrong labels')
    axes.set_ylabel(panel.name)
    axes.set_xlim(low - room, high + room)
    axes.set_ylim(0, 1.08 * float(np.nanmax(panel.values[drawn], initial=0)) or 1)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(5))
    axes.grid(True)
    if np.array_equal(panel.values[drawn], np.round(panel.values[drawn])):
      axes.yaxis.set_major_locator(ticker.MaxNLocator(6, integer=True))
  figure.legend(loc='outside lower center', ncols=3)
  return figure
