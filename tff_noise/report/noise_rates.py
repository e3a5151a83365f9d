"""How many clients have which noise rate, as a picture."""

import numpy as np
from matplotlib import figure as mfigure
from matplotlib import patches as mpatches
from matplotlib import ticker

from tff_noise.report import figure_style as style

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
def histogram(
    realised: np.ndarray, nominal: np.ndarray, noisy: np.ndarray
) -> mfigure.Figure:
  """Draws how many clients have which noise rate, nominal above realised, or one that is both.

  A rate of exactly 0 has a bar of its own.

  Args:
    realised: float `[C]` in [0, 1], share of wrong labels; nan where it is unknown.
    nominal: float `[C]` in [0, 1], mean flip probability; nan where it is unknown.
    noisy: bool `[C]`, who counts as noisy: labels of people are never all right.
  """
  unknown = np.isnan(nominal)
  kinds = dict(zip(_KINDS, (~noisy & ~unknown, noisy & ~unknown, unknown), strict=True))
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
