"""Matrices of classes as pictures: what became of each true class, by noise or by a model."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib import colors as mcolors
from matplotlib import figure as mfigure
from matplotlib import ticker

from tff_noise.report import figure_style as style

# More classes are added up.
_MAX_MATRIX = 200
_MAX_ANNOTATED = 14
_MAX_CORRECTED = 10  # Two matrices share the width.


@style.styled
def transition_matrix(
    counts: np.ndarray, class_names: Sequence[str], *, left_out: int = 0
) -> mfigure.Figure:
  """Draws which labels each true class came to have, in percent of the class.

  Only wrong labels are coloured: right ones are mostly so many that no other cell would be seen.

  Args:
    counts: int `[K, K]`, examples of the true class (row) by label (column).
    class_names: K names.
    left_out: Examples that are not counted, their true class being unknown.
  """
  classes = len(counts)
  total, right = int(counts.sum()), int(np.trace(counts))
  wrong, kept, first = _wrong_and_kept(counts)
  small = classes <= _MAX_ANNOTATED
  side = float(np.clip(1.6 + 0.48 * classes, 2.9, 6.6))
  figure = style.new_figure(height=side + 0.3, width=float(np.clip(side + 1.6, 5.6, style.WIDTH)))
  panels = figure.subplots(
      1, 1 if small else 2, sharey=True, squeeze=False, width_ratios=(1,) if small else (10, 1)
  )[0]
  axes = panels[0]
  grey = len(first) == classes
  image = _draw_wrong(axes, wrong, grey)
  if small:
    _annotate(axes, image, wrong, kept)
  else:
    _draw_kept(panels[1], kept)
  if right < total:
    _wrong_bar(figure, panels, image, grey)
  style.class_axis(axes.xaxis, class_names, first, 'label after noise')
  style.class_axis(axes.yaxis, class_names, first, 'true class')
  text = f'Transition matrix: {total - right:,} of {total:,} labels are wrong'
  if right < total:
    text += f' ({1 - right / max(total, 1):.1%})'
  style.heading(figure, text, left_out)
  return figure


@style.styled
def label_corrections(
    before: np.ndarray, after: np.ndarray, class_names: Sequence[str], *, left_out: int = 0
) -> mfigure.Figure:
  """Draws two transition matrices side by side, on one scale: before and after a correction.

  Args:
    before: int `[K, K]`, examples of the true class (row) by label (column).
    after: int `[K, K]`, the same examples by their labels after the correction.
    class_names: K names.
    left_out: Examples that are not counted, their true class being unknown.
  """
  figure = _matrices(
      [
          _Matrix(*_wrong_and_kept(counts), name, _wrong_share(counts))
          for counts, name in ((before, 'labels before'), (after, 'labels after'))
      ],
      class_names,
  )
  style.heading(figure, 'Labels before and after the correction', left_out)
  return figure


@style.styled
def transition_estimate(
    estimate: np.ndarray,
    counts: np.ndarray | None,
    class_names: Sequence[str],
    *,
    left_out: int = 0,
) -> mfigure.Figure:
  """Draws an estimated transition matrix beside the true one, on one scale.

  Args:
    estimate: float `[K, K]`, P(label | true class) of each true class (row).
    counts: int `[K, K]`, examples of the true class (row) by label (column); None if unknown.
    class_names: K names.
    left_out: Examples that are not counted, their true class being unknown.
  """
  mean = 1 - float(np.trace(estimate)) / len(estimate)
  matrices = [_Matrix(
      *_wrong_and_kept(estimate, np.ones(len(estimate))), 'label',
      f'estimate: {mean:.1%} wrong on average',
  )]
  if counts is not None:
    matrices.append(
        _Matrix(*_wrong_and_kept(counts), 'label', f'truth: {_wrong_share(counts)}')
    )
  figure = _matrices(matrices, class_names)
  style.heading(figure, 'How labels were changed', left_out if counts is not None else 0)
  return figure


@style.styled
def wrong_labels(
    estimate: np.ndarray, counts: np.ndarray | None, class_names: Sequence[str]
) -> mfigure.Figure:
  """Draws which class it is if a label is wrong, as it is believed and as it is, on one scale.

  Args:
    estimate: float `[K, K]`, P(true class | label, wrong) of each label (row), 0 on the diagonal.
    counts: int `[K, K]`, wrong examples by label (row) and true class; None if unknown.
    class_names: K names.
  """
  tables = {'from sums': estimate} | ({} if counts is None else {'truth': counts})
  matrices = []
  for title, values in tables.items():
    wrong, kept, first = _wrong_and_kept(values)
    matrices.append(_Matrix(wrong, np.full_like(kept, np.nan), first, 'true class', title))
  figure = _matrices(matrices, class_names, rows='label')
  style.heading(figure, 'What is behind wrong labels', 0)
  return figure


@style.styled
def confusion_matrix(counts: np.ndarray, class_names: Sequence[str]) -> mfigure.Figure:
  """Draws what each true class is taken for, in percent of the class.

  Args:
    counts: int `[K, K]`, examples of the true class (row) by predicted class (column).
    class_names: K names.
  """
  matrix = _Matrix(*_wrong_and_kept(counts), 'predicted class', _wrong_share(counts))
  figure = _matrices([matrix], class_names, 'predictions')
  style.heading(figure, 'What each class is taken for', 0)
  return figure


class _Matrix(NamedTuple):
  """Percentages as `_wrong_and_kept` gives them, the label of the columns, and a title."""

  wrong: np.ndarray
  kept: np.ndarray
  first: np.ndarray
  columns: str
  title: str


def _matrices(matrices, class_names, what='labels', rows='true class'):
  """A figure of one or two matrices side by side, on one scale."""
  classes, share = len(class_names), 1 / len(matrices)
  side = (style.WIDTH - 1.6) / 2
  figure = style.new_figure(
      height=float(np.clip(1.7 + 0.42 * classes, 3.8, side + 1.7)),
      width=style.WIDTH if len(matrices) > 1 else side + 1.6,
  )
  panels = figure.subplots(1, len(matrices), sharey=True, squeeze=False)[0]
  figure.get_layout_engine().set(wspace=0.03)
  most = max([float(np.nanmax(m.wrong)) for m in matrices if np.nansum(m.wrong)], default=0.0)
  for axes, m in zip(panels, matrices, strict=True):
    grey = len(m.first) == classes
    image = _draw_wrong(axes, m.wrong, grey, most)
    if classes <= _MAX_CORRECTED:
      _annotate(axes, image, m.wrong, m.kept)
    style.class_axis(axes.xaxis, class_names, m.first, m.columns, share=share)
    axes.set_xlabel(axes.get_xlabel().replace(' (', '\n('))
    axes.set_title(m.title, fontweight='normal')
  style.class_axis(panels[0].yaxis, class_names, m.first, rows)
  if most:
    _wrong_bar(figure, panels, image, grey, what, rows)
  return figure


def _wrong_share(counts):
  total = int(counts.sum())
  wrong = total - int(np.trace(counts))
  return f'{wrong:,} of {total:,} wrong ({wrong / max(total, 1):.1%})'


def _wrong_and_kept(counts, sizes=None):
  """Returns percentages of the true class, of consecutive classes together where there are many.

  Args:
    counts: `[K, K]`, examples, or shares of them.
    sizes: `[K]`, what they are shares of; sums of rows if not given.

  Returns:
    float `[groups, groups]`, wrong labels, nan for classes without examples; float `[groups]`,
    right labels; int `[groups]`, the first class of each.
  """
  off = counts.copy()
  np.fill_diagonal(off, 0)
  off, first = style.grouped(off, _MAX_MATRIX)
  off = style.grouped(off.T, _MAX_MATRIX)[0].T
  sizes = counts.sum(axis=1) if sizes is None else sizes
  sizes = np.add.reduceat(sizes, first).astype(float)
  sizes[sizes == 0] = np.nan
  right = np.add.reduceat(np.diagonal(counts), first)
  return 100 * off / sizes[:, np.newaxis], 100 * right / sizes, first


def _draw_wrong(axes, wrong, grey, most=None):
  """Colours the wrong labels, `most` percent darkest; the diagonal is grey where it has none."""
  cmap = style.sequential()
  shown = np.ma.masked_invalid(np.where(wrong > 0, wrong, np.nan))
  most = most or (float(shown.max()) if shown.count() else 1.0)
  image = axes.imshow(
      shown, aspect='auto', interpolation='none', cmap=cmap,
      norm=mcolors.PowerNorm(0.5, 0, most),
  )
  if grey:
    diagonal = np.ma.masked_equal(np.eye(len(wrong)), 0)
    axes.imshow(
        diagonal, aspect='auto', interpolation='none', cmap=mcolors.ListedColormap([style.LIGHT])
    )
  axes.spines[:].set_visible(True)
  axes.spines[:].set(color=style.FAINT, linewidth=0.6)
  return image


def _wrong_bar(figure, panels, image, grey, what='labels', rows='true class'):
  bar = figure.colorbar(image, ax=list(panels), pad=0.02, aspect=30)
  bar.outline.set_visible(False)
  bar.locator = ticker.FixedLocator(_root_ticks(image.norm.vmax))
  bar.formatter = ticker.FuncFormatter(lambda value, _: f'{value:g}')
  bar.minorlocator = ticker.NullLocator()
  note = f'; grey: right {what}' if grey else ''
  bar.set_label(f'wrong {what}, % of the {rows}\n(square-root scale; white: none{note})')


def _annotate(axes, image, wrong, kept):
  values = wrong.copy()
  np.fill_diagonal(values, kept)
  for (row, column), value in np.ndenumerate(values):
    on_diagonal = row == column
    if value > 0 or on_diagonal:
      color = 'black' if on_diagonal else style.text_color(image.cmap(image.norm(value)))
      axes.text(
          column, row, _percent(value), ha='center', va='center', color=color,
          fontsize=9 if len(values) <= 10 else 7.5, fontweight='bold' if on_diagonal else 'normal',
      )


def _draw_kept(axes, kept):
  """A bar for each class: the right labels, which have no colour in the matrix."""
  axes.barh(np.arange(len(kept)), kept, height=1.0, color=style.FAINT)
  axes.set_xlim(0, 100)
  axes.set_xticks([0, 50, 100])
  axes.set_xlabel('right, %')
  axes.tick_params(axis='y', left=False, labelleft=False)
  axes.grid(axis='x')


def _percent(value):
  if np.isnan(value) or not value:
    return '–' if np.isnan(value) else '0'
  return '<0.1' if value < 0.05 else f'{value:.1f}' if value < 99.95 else f'{value:.0f}'


def _root_ticks(most):
  """Round numbers up to `most`, spread on a scale of square roots."""
  ticks = [0.0]
  for power in range(-3, 3):
    for factor in (1, 2, 5):
      tick = float(f'{factor}e{power}')
      if tick <= most and np.sqrt(tick) - np.sqrt(ticks[-1]) > 0.11 * np.sqrt(most):
        ticks.append(tick)
  return ticks
