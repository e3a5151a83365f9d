"""What a curious server learns about labels: from the last layer's bias, and from canaries.

  python -m benchmarks.update_leak [SEED [PICTURE.png]]

Prints two Markdown tables, in a few minutes, and draws the attacks on one client; see
`tff_noise.audit.update_leak` and `tff_noise.audit.canaries` for what is done.
"""

import math
import os
import sys

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

from tff_noise.audit import canaries
from tff_noise.audit import leak_plot
from tff_noise.audit import update_leak
from tff_noise.runtimes import local


def _number(value, digits=2):
  return '-' if math.isnan(value) else f'{value:.{digits}f}'


def print_demonstration(demonstration: update_leak.Demonstration) -> None:
  """Prints the table of the recovered histograms."""
  print(
      '| method | server sees | rounds before | target | attacks | correlation | '
      'total variation (standard error) | below floor |'
  )
  print('| --- ' * 8 + '|')
  for row in demonstration.rows():
    print(
        f'| {row.method} | {row.setting} | {row.rounds} | {row.target} | {row.attacks} | '
        f'{_number(row.correlation)} | {_number(row.total_variation, 3)} '
        f'({_number(row.total_variation_error, 3)}) | {_number(row.below_floor)} |',
        flush=True,
    )


def _name(arm):
  name = arm.method
  if arm.noise is not None:
    name += f', DP-FedAvg noise {arm.noise:g}'
  return name + (f', private labels {arm.epsilon}' if arm.epsilon else '')


def print_canaries(rows: tuple[canaries.CanaryRow, ...]) -> None:
  """Prints the table of the canaries."""
  print('| trained by | rounds | accuracy | guesses | correct | claimed epsilon | finding |')
  print('| --- ' * 7 + '|')
  for row in rows:
    claim = 'none' if math.isinf(row.claim) else f'{row.claim:.2f}'
    print(
        f'| {_name(row.arm)} | {row.rounds} | {row.accuracy:.3f} | {row.guesses} of '
        f'{row.canaries} | {row.correct} | {claim} | {row.verdict} |',
        flush=True,
    )


def main(arguments: list[str]) -> int:
  """Prints both tables, and draws the picture where a path is given."""
  seed = int(arguments[0]) if arguments else 0
  with local.runtime(2):
    demonstration = update_leak.demonstrate(seed)
    print_demonstration(demonstration)
    if len(arguments) > 1:
      leak_plot.draw(demonstration, arguments[1])
    print()
    print_canaries(canaries.canary_exposure(seed))
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
