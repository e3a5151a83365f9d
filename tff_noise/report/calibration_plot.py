"""The picture of how sure predictions are against how often they are right."""

import numpy as np
from matplotlib import figure as mfigure

from tff_noise.program import quality
from tff_noise.report import figure_style as style


@style.styled
def draw(found: quality.Calibration) -> mfigure.Figure:
  """Returns the reliability diagram above the number of predictions by confidence."""
  figure = style.new_figure(height=4.6, width=5.6)
  top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
  width = 1 / len(found.count)
  left = width * np.arange(len(found.count))
  known = found.count > 0
  top.plot([0, 1], [0, 1], color=style.FAINT, linestyle='--', label='as sure as right')
  top.bar(
      left[known], found.accuracy[known], width, align='edge', color=style.LIGHT,
      edgecolor='white', label='share that is right',
  )
  top.plot(
      found.confidence[known], found.accuracy[known], 'o', color=style.DARK, clip_on=False,
      label='at the mean probability of a bin',
  )
  top.set_ylim(0, 1)
  top.set_xlim(0, 1)
  top.set_ylabel('share that is right')
  top.set_title(f'Expected calibration error {found.error:.4f}')
  top.legend(loc='upper left')
  bottom.bar(left, found.count, width, align='edge', color=style.DARK, edgecolor='white')
  bottom.set_ylabel('predictions')
  bottom.set_xlabel('probability of the predicted class')
  figure.align_ylabels([top, bottom])
  return figure
