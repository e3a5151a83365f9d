"""What sums over clients told FedTally's server of their noise: a section of the report."""

from typing import NamedTuple

import numpy as np
from matplotlib import figure as mfigure

from tff_noise import types
from tff_noise.report import blocks
from tff_noise.report import class_matrices
from tff_noise.report import figure_style as style
from tff_noise.report import plots
from tff_noise.report import runs
from tff_noise.report import scene_statistics

# Columns of metrics.csv.
_COLUMNS = ('anchor', 'mean_noise_rate', 'sharpness')
_LOSS_Q = 'loss_q'  # Where it follows the other two.


class _Found(NamedTuple):
  """What `summary.json` and `metrics.csv` have.

  Attributes:
    rates: float `[G]`.
    shares: float `[G]`, of clients by noise rate.
    mean_rate: Of these.
    table: float `[K, K]`, which class it is if the label (row) is wrong.
    history: float `[3, rounds]`: anchor, mean noise rate, sharpness; `[4, rounds]` where q of the
      bounded loss follows the first two.
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
  held = scene.is_trained_on
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
  private = runs.trains_on_reports(run)
  if private:
    text += ' Rates are of labels before they are flipped for privacy.'
  known_to_clients = runs.as_clients_know(run, scene)
  wrong = None
  if known_to_clients.flipped.any():
    wrong = scene_statistics.transitions(
        known_to_clients, known_to_clients.noisy_label, classes
    ).T
    np.fill_diagonal(wrong, 0)
  names = run.names_of_classes(classes)
  label = 'report' if private else 'label'
  shown = [
      blocks.Text(text),
      blocks.Picture(
          'noise_rates_from_sums', _rates_picture(found, truth),
          'How noise rates are spread over clients, as the last rounds\' sums say'
          + ('' if truth is None else ', and as it is, which the server does not see') + '.',
      ),
      blocks.Picture(
          'corrections_from_sums', class_matrices.wrong_labels(found.table, wrong, names),
          f'Which class an example has if its {label} (row) is wrong, in percent: where clients '
          f'give a {label} up, they believe this'
          + ('' if wrong is None else f'. Right: what really is behind the wrong {label}s') + '.',
      ),
      blocks.Picture(
          'anchor', _history_picture(found.history),
          f'The anchor is the share of {label}s that the model\'s surest predictions deny. Above a '
          'sharpness of 1 (--param=max_sharpness) the model is sharpened while the anchor exceeds '
          f'the mean noise rate{" with the known flips" if private else ""}, where the sums show '
          f'that the model is better than the {label}s.'
          + (
              '' if len(found.history) == 3 else
              ' What the rates, and known flips, do not explain of the anchor is left to the '
              'loss: its q follows that within its bounds, a round later.'
          ),
      ),
  ]
  if truth is not None and runs.accuracy(run) is not None:
    shown.append(blocks.Picture(
        'model_and_labels',
        _crossing_picture(
            run.rounds, run.metrics['test_accuracy'], 1 - known_to_clients.noise_rate, label
        ),
        f'A model that is right less often than the {label}s can correct few of them: below their '
        'line what relabels does harm, unless it is sure of few. The server sees neither line.',
    ))
  return shown


def _checked(run):
  """What the run has; `UsageError` where it is damaged."""
  names = (*_COLUMNS, *((_LOSS_Q,) if _LOSS_Q in run.metrics else ()))
  columns = [run.metrics.get(name) for name in names]
  if not all(c is not None and c.dtype.kind == 'f' and np.isfinite(c).all() for c in columns):
    raise types.UsageError(f'{run.path}/metrics.csv is damaged: one of {", ".join(names)}')
  try:
    found = run.summary['fedtally']
    read = _Found(
        np.array(found['rates'], np.float64), np.array(found['clients_by_rate'], np.float64),
        float(found['mean_rate']), np.array(found['table'], np.float64),
        np.array(columns),
    )
    fits = read.rates.shape == read.shares.shape == (len(read.rates),) and len(read.rates) > 1
    classes = len(read.table)
    fits = fits and read.table.shape == (classes, classes)
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
def _history_picture(history: np.ndarray) -> mfigure.Figure:
  anchor, mean_rate, sharpness, *loss_q = history
  rounds = np.arange(1, len(anchor) + 1)
  panels = 2 + len(loss_q)
  figure = style.new_figure(height=1.4 * (1 + panels))
  upper, lower, *lowest = figure.subplots(
      panels, 1, sharex=True, height_ratios=(2, *[1] * (panels - 1))
  )
  upper.plot(rounds, 100 * anchor, color=style.MIDDLE, label='anchor')
  upper.plot(rounds, 100 * mean_rate, color=style.DARK, label='mean noise rate')
  upper.set_ylim(0, 103)
  upper.set_ylabel('labels that are wrong, %')
  upper.legend(loc='upper right')
  lower.plot(rounds, sharpness, color=style.DARK)
  lower.set_ylim(0.9, max(2.0, 1.05 * sharpness.max(initial=1)))
  lower.set_ylabel('sharpness')
  for axes, q in zip(lowest, loss_q, strict=True):
    axes.plot(rounds, q, color=style.DARK)
    axes.set_ylim(0, 1.03)
    axes.set_ylabel('q of the loss')
  together = [upper, lower, *lowest]
  for axes in together:
    axes.grid(axis='y')
  figure.align_ylabels(together)
  plots.mark_rounds(together, rounds, (), f'What the sums say, {len(rounds)} rounds')
  return figure


@style.styled
def _crossing_picture(
    rounds: np.ndarray, accuracy: np.ndarray, right: float, label: str
) -> mfigure.Figure:
  """Where the model comes to be better than what it learns from."""
  measured = np.isfinite(accuracy)
  rounds, accuracy = rounds[measured], accuracy[measured]
  figure, axes = style.new_axes(height=3.2)
  plots.line(axes, rounds, 100 * accuracy, style.DARK, label='the model, on the test set')
  axes.axhline(100 * right, color=style.MIDDLE, linestyle='--', label=f"clients' {label}s")
  axes.set_ylim(0, 103)
  axes.set_ylabel('right, %')
  axes.legend(loc='lower right')
  passed = rounds[accuracy > right]
  title = f'passes them in round {int(passed[0])}' if passed.size else 'never passes them'
  plots.mark_rounds(
      [axes], rounds, (), f'{right:.1%} of {label}s are right; the model {title}'
  )
  return figure


SECTION = blocks.Section('What sums told of noise', _applies, _build)
