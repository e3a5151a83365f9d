"""How well the label distribution is recovered: the formula, and what the mechanism really does.

  python -m benchmarks.estimator_accuracy PICTURE.png

Draws the standard error of a share of 1 / K, relative to it, against the number of labels, and
prints as a Markdown table how many labels 10 % takes. Lines are the formula of
`tff_noise.privacy.estimator`; points are measured, `tff_noise.privacy.mechanism` flipping every
label. Takes a few seconds.
"""

import sys
from typing import NamedTuple

import numpy as np
from matplotlib import ticker

from tff_noise.privacy import estimator
from tff_noise.privacy import mechanism as mechanism_lib
from tff_noise.report import figure_style as style

_GOAL = 0.1
# Straight lines on logarithmic axes.
_NUM_LABELS = np.geomspace(100, 1e7, 2)
# How often so many labels are flipped. A standard deviation over r repetitions of K classes is off
# by a share of about 1 / sqrt(2 r (K - 1)).
_REPETITIONS = {200: 100, 2000: 40, 20_000: 10}


class Case(NamedTuple):
  """K classes and an epsilon, as text."""

  num_classes: int
  epsilon: str

  @property
  def mechanism(self) -> mechanism_lib.RandomizedResponse:
    """What flips."""
    return mechanism_lib.randomized_response(self.epsilon, self.num_classes)


# 0.81, 1.18 and 3.21 are the paper's: a label is kept with probability 0.2.
_TABLE = (
    Case(10, '0.01'), Case(10, '0.81'), Case(10, '2'), Case(10, '4'), Case(14, '1.18'),
    Case(100, '3.21'),
)
_DRAWN = (Case(10, '0.01'), Case(100, '3.21'), Case(10, '0.81'), Case(10, '2'), Case(10, '4'))


def relative_error(case: Case, num_labels: float) -> float:
  """Returns the formula's standard error of a share of 1 / K, times K."""
  expected = np.full(case.num_classes, num_labels / case.num_classes)
  _, error = estimator.inverse(expected, case.mechanism)
  return float(error[0] * case.num_classes)


def measured_error(case: Case, num_labels: int, repetitions: int) -> float:
  """Returns the same, measured: the root of the mean square over repetitions and classes."""
  labels = np.arange(num_labels) % case.num_classes
  truth = mechanism_lib.histogram(labels, case.num_classes) / num_labels
  squares = []
  for r in range(repetitions):
    reports = mechanism_lib.flip(
        labels, np.arange(num_labels), mechanism_lib.simulation_secret(0, r), case.mechanism
    )
    counts = mechanism_lib.histogram(reports, case.num_classes)
    squares.append((estimator.inverse(counts, case.mechanism)[0] - truth) ** 2)
  return float(np.sqrt(np.mean(squares)) * case.num_classes)


@style.styled
def _figure():
  figure, axes = style.new_axes(height=4.4)
  axes.set(xscale='log', yscale='log', xlim=(_NUM_LABELS[0], _NUM_LABELS[-1]), ylim=(4e-4, 300))
  axes.grid(True)
  axes.axhspan(1, 300, color=style.LIGHT, alpha=0.5, linewidth=0)
  axes.text(
      0.99, 0.97, 'uninformative: the error is larger than the share', ha='right', va='top',
      transform=axes.transAxes,
  )
  for case in _DRAWN:
    many = case.num_classes > 10
    color, marker = (style.MIDDLE, 's') if many else (style.DARK, 'o')
    axes.plot(_NUM_LABELS, [relative_error(case, n) for n in _NUM_LABELS], color=color)
    measured = [measured_error(case, n, r) for n, r in _REPETITIONS.items()]
    axes.plot(
        list(_REPETITIONS), measured, marker, color=color, markersize=5, markerfacecolor='white'
    )
    axes.annotate(
        f'K={case.num_classes}, ε={case.epsilon}',
        (_NUM_LABELS[-1], relative_error(case, _NUM_LABELS[-1])), (4, 0),
        textcoords='offset points', va='center', color=color, annotation_clip=False,
    )
  axes.plot([], [], color=style.FAINT, label='formula')
  axes.plot([], [], 'o', color=style.FAINT, markerfacecolor='white', label='measured')
  axes.legend(loc='lower left')
  axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda y, _: f'{100 * y:,g} %'))
  axes.set_xlabel('labels in the sum, N')
  axes.set_ylabel('standard error of a share of 1/K, relative')
  axes.set_title('What the server learns of the label distribution')
  return figure


def print_table() -> None:
  """Prints how many labels bring the relative standard error down to 10 %."""
  print('| K | epsilon | keeps a label with probability | labels for 10 % |')
  print('| --- ' * 4 + '|')
  for case in _TABLE:
    needed = (relative_error(case, 1) / _GOAL) ** 2
    keep = case.mechanism.keep_probability
    print(f'| {case.num_classes} | {case.epsilon} | {keep:.3f} | {needed:,.0f} |')


def main(arguments: list[str]) -> int:
  """Draws the picture and prints the table."""
  if len(arguments) != 1:
    print(__doc__, file=sys.stderr)
    return 2
  with open(arguments[0], 'wb') as file:
    file.write(style.png(_figure()))
  print_table()
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
