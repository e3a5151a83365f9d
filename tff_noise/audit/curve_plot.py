"""The picture of delta against epsilon."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from matplotlib import figure as mfigure
from matplotlib import ticker

from tff_noise.privacy import rounding
from tff_noise.report import figure_style as style

# Below it nothing is drawn: a delta that is 0 is there, too.
FLOOR = 1e-10


class Curve(NamedTuple):
  """Upper bounds of delta.

  Attributes:
    names: Of the units it is about.
    epsilons: float64 `[n]`, ascending from 0.
    deltas: float64 `[n]`, descending.
    total: (epsilon, delta) as the audit reports them.
  """

  names: tuple[str, ...]
  epsilons: np.ndarray
  deltas: np.ndarray
  total: tuple[float, float]


@style.styled
def draw(curves: list[Curve]) -> mfigure.Figure:
  """Returns the picture, a panel for each curve."""
  figure = style.new_figure(height=0.5 + 2.4 * len(curves))
  panels = figure.subplots(len(curves), 1, squeeze=False)[:, 0]
  for axes, curve in zip(panels, curves, strict=True):
    _panel(axes, curve)
  panels[-1].set_xlabel('epsilon')
  return figure


def _panel(axes, curve):
  axes.grid()
  # The last point is the first that lies on the floor.
  until = int(np.argmax(curve.deltas <= FLOOR)) or len(curve.deltas) - 1
  shown = slice(0, until + 1)
  axes.plot(
      curve.epsilons[shown], np.maximum(curve.deltas[shown], FLOOR), color=style.DARK, clip_on=False
  )
  epsilon, delta = curve.total
  axes.plot(
      epsilon, max(delta, FLOOR), 'D', color=style.MIDDLE, markersize=6, clip_on=False,
      label=f'total: epsilon {rounding.up(epsilon)} at delta {delta:g}',
  )
  axes.set_yscale('log')
  axes.set_ylim(FLOOR, 1)
  axes.yaxis.set_major_locator(ticker.LogLocator(numticks=6))
  axes.yaxis.set_minor_locator(ticker.NullLocator())
  axes.set_xlim(0, 1.02 * max(curve.epsilons[until], epsilon if math.isfinite(epsilon) else 0))
  axes.set_ylabel('delta, at most')
  axes.set_title('; '.join(curve.names))
  axes.legend(loc='lower left')
