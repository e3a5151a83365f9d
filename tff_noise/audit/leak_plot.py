"""The picture of the update leak: what a client holds, and what the server makes of its update."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib import ticker

from tff_noise.report import figure_style as style

if TYPE_CHECKING:
  from tff_noise.audit import update_leak

_COLUMNS = 2


def _chosen(demonstration):
  """The attacks on the labels of the first victim, one for each setting of the first method."""
  attacks = [a for a in demonstration.attacks if a.target == 'labels' and a.method != '-']
  if not attacks:
    raise ValueError('the demonstration has no attack on labels')
  first = attacks[0]
  same = (first.method, first.rounds, first.victim)
  return [a for a in attacks if (a.method, a.rounds, a.victim) == same]


def _panel(axes, attack):
  classes = np.arange(len(attack.truth))
  axes.bar(classes, attack.truth, width=0.84, color=style.LIGHT, label='labels the client holds')
  axes.vlines(classes, attack.truth, attack.recovered, color=style.MIDDLE, linewidth=1.2)
  axes.plot(
      classes, attack.recovered, 'D', color=style.MIDDLE, markersize=5.5, clip_on=False,
      label='recovered from what the server sees',
  )
  axes.set_title(f'{attack.setting}: {attack.total_variation:.0%} misplaced')
  axes.set_xlim(-0.8, len(classes) - 0.2)
  axes.set_xticks(style.ticks(len(classes), style.MAX_TICKS // _COLUMNS))


@style.styled
def _figure(attacks):
  rows = -(-len(attacks) // _COLUMNS)
  figure = style.new_figure(height=0.9 + 1.75 * rows)
  panels = figure.subplots(rows, _COLUMNS, sharex=True, sharey=True, squeeze=False)
  for axes, attack in zip(panels.flat, attacks, strict=False):
    _panel(axes, attack)
  for axes in panels.flat[len(attacks):]:
    axes.set_visible(False)
  for axes in panels[:, 0]:
    axes.set_ylabel('share of labels')
    axes.yaxis.set_major_locator(ticker.MaxNLocator(4))
  panels[0, 0].set_ylim(bottom=0)
  for column in range(_COLUMNS):
    # The lowest that is seen in its column.
    lowest = [axes for axes in panels[:, column] if axes.get_visible()][-1]
    lowest.set_xlabel('class')
    lowest.tick_params(labelbottom=True)
  handles, labels = panels[0, 0].get_legend_handles_labels()
  figure.legend(handles, labels, loc='outside lower center', ncols=2)
  return figure


def draw(demonstration: update_leak.Demonstration, path: str) -> None:
  """Writes the picture of the first client that was attacked, a panel for each setting, as PNG.

  A panel's title says which share of the labels the server would put in wrong classes, the total
  variation distance. Bars and markers differ in shape and lightness, not in hue alone.

  Args:
    demonstration: With attacks on labels.
    path: Of the file, `.png`.

  Raises:
    ValueError: If nothing was attacked.
  """
  attacks = _chosen(demonstration)
  with open(path, 'wb') as file:
    file.write(style.png(_figure(attacks)))
