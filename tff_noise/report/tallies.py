"""What sums over clients told FedTally's server of their noise: a section of the report."""

from typing import NamedTuple

import numpy as np
from matplotlib import colors as mcolors
from matplotlib import figure as mfigure

from tff_noise import types
from tff_noise.data import scene as scene_lib
from tff_noise.report import blocks
from tff_noise.report import figure_style as style
from tff_noise.report import plots

_MAX_ANNOTATED = 12


class _Found(NamedTuple):
  """What `summary.json` has.

  Attributes:
    rates: float `[G]`.
    shares: float `[G]`, of clients by noise rate.
    mean_rate: Of these.
    table: float `[K, K]`, which class it is if the label (row) is wrong.
    history: float `[3, rounds]`: anchor, mean rate, sharpness.
  """

  rates: np.ndarray
  shares: np.ndarray
  mean_rate: float
  table: np.ndarray
  history: np.ndarray


def _applies(run):
  return run.finished and 'fedtally' in run.summary


def _build(run, scene):
  found = _checked(run)
  classes = len(found.table)
  known = scene.is_known
  held = scene.client_of != scene_lib.SERVER
  if max(a.max(initial=0) for a in (scene.noisy_label[held], scene.clean_label[known])) >= classes:
    raise types.UsageError(
        f'{run.path}: summary.json has a table of {classes} classes, scene.npz has more'
    )
  truth = scene.realised_rate if known.any() else None
  text = (
      f'From sums over clients alone, the mean noise rate of a client is {found.mean_rate:.1%}; '
      'the server knows of no client which rate is its own.'
  )
  if truth is None:
    text += ' What it really is, nobody knows.'
  else:
    text += f' In truth it is {np.nanmean(truth):.1%}.'
  wrong = None
  if scene.flipped.any():
    wrong = np.zeros((classes, classes))
    np.add.at(wrong, (scene.noisy_label[scene.flipped], scene.clean_label[scene.flipped]), 1)
  names = run.names_of_classes(classes)
  return [
      blocks.Text(text),
      blocks.Picture(
          'noise_rates_from_sums', _rates_picture(found, truth),
          'How noise rates are spread over clients, as the last rounds\' sums say'
          + ('' if truth is None else ', and as it is, which the server does not see') + '.',
      ),
      blocks.Picture(
          'corrections_from_sums', _table_picture(found.table, wrong, names),
          'Which class an example has if its label (row) is wrong, in percent: where clients '
          'give a label up, they believe this'
          + ('' if wrong is None else '. Right: what really is behind the wrong labels') + '.',
      ),
      blocks.Picture(
          'anchor', _history_picture(found.history),
          'The anchor is the share of labels that the model\'s surest predictions deny. Above a '
          'sharpness of 1 (--param=max_sharpness) the model is sharpened while the smallest anchor '
          'so far exceeds the mean noise rate.',
      ),
  ]


def _checked(run):
  """What the summary has; `UsageError` where it is damaged."""
  try:
    found = run.summary['fedtally']
    history = found['history']
    read = _Found(
        np.array(found['rates'], np.float64), np.array(found['clients_by_rate'], np.float64),
        float(found['mean_rate']), np.array(found['table'], np.float64),
        np.array([history[n] for n in ('anchor', 'mean_rate', 'sharpness')], np.float64),
    )
    fits = read.rates.shape == read.shares.shape == (len(read.rates),) and len(read.rates) > 1
    classes = len(read.table)
    fits = fits and read.table.shape == (classes, classes) and read.history.ndim == 2
  except (KeyError, TypeError, ValueError):
    fits = False
  if not fits or not all(np.isfinite(values).all() for values in read):
    raise types.UsageError(f'{run.path}/summary.json is damaged: fedtally')
  return read


@style.styled
def _rates_picture(found: _Found, truth: np.ndarray | None) -> mfigure.Figure:
  figure, axes = style.new_axes(height=3.2)
  # Not to scale: the first rates are closer together than the others.
  x, width = np.arange(len(found.rates)), 0.8 if truth is None else 0.4
  first = x if truth is None else x - width / 2
  axes.bar(first, 100 * found.shares, width, color=style.DARK, label='from sums')
  if truth is not None:
    truth = truth[np.isfinite(truth)]
    nearest = np.abs(truth[:, np.newaxis] - found.rates).argmin(axis=1)
    counts = np.bincount(nearest, minlength=len(found.rates))
    shares = 100 * counts / max(len(truth), 1)
    axes.bar(x + width / 2, shares, width, color=style.MIDDLE, label='truth')
    axes.legend(loc='upper right')
  axes.grid(axis='y')
  axes.set_xticks(x, [f'{100 * rate:.0f}' for rate in found.rates])
  axes.set_xlabel('noise rate: wrong labels of a client, %')
  axes.set_ylabel('clients, %')
  axes.set_title(f'Noise rates of clients: {found.mean_rate:.1%} on average, from sums')
  return figure


@style.styled
def _table_picture(table, wrong, names):
  panels = [(100 * table, 'from sums')]
  if wrong is not None:
    sizes = wrong.sum(axis=1, keepdims=True)
    shares = np.divide(100 * wrong, sizes, out=np.full(wrong.shape, np.nan), where=sizes > 0)
    panels.append((shares, 'truth'))
  classes, share = len(names), 1 / len(panels)
  side = (style.WIDTH - 1.6) / 2
  figure = style.new_figure(
      height=float(np.clip(1.7 + 0.42 * classes, 3.2, side + 1.7)),
      width=style.WIDTH if len(panels) > 1 else side + 1.6,
  )
  most = max(1.0, max(np.nanmax(values) for values, _ in panels))
  all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
  first = np.arange(classes)
  for axes, (values, title) in zip(all_axes, panels, strict=True):
    shown = np.ma.masked_invalid(np.where(values > 0, values, np.nan))
    image = axes.imshow(
        shown, aspect='auto', interpolation='none', cmap=style.sequential(),
        norm=mcolors.Normalize(0, most),
    )
    if classes <= _MAX_ANNOTATED:
      for (row, column), value in np.ndenumerate(values):
        if value > 0:
          axes.text(
              column, row, f'{value:.0f}', ha='center', va='center', fontsize=8,
              color=style.text_color(image.cmap(image.norm(value))),
          )
    style.class_axis(axes.xaxis, names, first, 'true class', share=share)
    axes.set_title(title, fontweight='normal')
  style.class_axis(all_axes[0].yaxis, names, first, 'wrong label')
  bar = figure.colorbar(image, ax=list(all_axes), pad=0.02, aspect=30)
  bar.outline.set_visible(False)
  bar.set_label('% of the wrong labels of the row')
  figure.suptitle(
      'What is behind wrong labels', x=0.01, ha='left', fontsize=10, fontweight='bold'
  )
  return figure


@style.styled
def _history_picture(history: np.ndarray) -> mfigure.Figure:
  anchor, mean_rate, sharpness = history
  rounds = np.arange(1, len(anchor) + 1)
  figure = style.new_figure(height=4.2)
  upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
  upper.plot(rounds, 100 * anchor, color=style.MIDDLE, label='anchor')
  upper.plot(rounds, 100 * mean_rate, color=style.DARK, label='mean noise rate')
  upper.set_ylim(0, 103)
  upper.set_ylabel('labels that are wrong, %')
  upper.legend(loc='upper right')
  lower.plot(rounds, sharpness, color=style.DARK)
  lower.set_ylim(0.9, max(2.0, 1.05 * sharpness.max(initial=1)))
  lower.set_ylabel('sharpness')
  for axes in (upper, lower):
    axes.grid(axis='y')
  figure.align_ylabels([upper, lower])
  plots.mark_rounds([upper, lower], rounds, (), f'What the sums say, {len(rounds)} rounds')
  return figure


SECTION = blocks.Section('What sums told of noise', _applies, _build)
