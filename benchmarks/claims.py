"""The papers' orders of methods, each held against a grid's results.

An order is one of FedCorr (F, Xu et al., CVPR 2022), ClipFL (C, Morafah et al., 2024) or FedDPCont
(D, Di et al., ECCV 2024), numbered by us: one method above others in a federation that a grid's
column stands for, which has other data, other sizes and another network than the paper. Where a
paper has several noise levels the nearest column is asked.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from tff_noise import types
from tff_noise.compare import grid as grid_lib
from tff_noise.compare import metrics
from tff_noise.compare import statistics
from tff_noise.compare import tables

_OPEN_SET = 'open-set, symmetric 0.4'
_RHO = 'IID, rho 0.6, tau 0.5'
_HALF = 'Dirichlet 0.5, half at 0.8'
_CLEAN = 'IID, no noise'
_HUMAN = 'IID, CIFAR-10N worse'


class Order(NamedTuple):
  """Attributes:

    paper: Its letter and number, and the table where it stands.
    above: The method that has the higher accuracy by the paper.
    below: Those that it is above.
    setting: The column that is asked.
    says: What the paper's numbers are, percent, in the order of `below`.
  """

  paper: str
  above: str
  below: tuple[str, ...]
  setting: str
  says: str


ORDERS = (
    Order(
        'F1, table 2', 'FedCorr',
        ('FedAvg', 'FedProx, norm', 'RoFL', 'DivideMix', 'JointOpt', 'ARFL'), _RHO,
        'CIFAR-10: 92.5 for 81.2, 85.3, 83.4, 72.8, 74.1, 64.3',
    ),
    Order('F2, table 2', 'FedCorr', ('FedAvg',), _CLEAN, 'CIFAR-10: 93.8 for 93.1'),
    Order('F3, table 2', 'FedProx, norm', ('FedAvg',), _RHO, 'CIFAR-10: 85.3 for 81.2'),
    Order('F3, table 2', 'FedAvg', ('FedProx, norm',), _CLEAN, 'CIFAR-10: 93.1 for 92.3'),
    Order('F4, table 2', 'FedAvg', ('ARFL',), _RHO, 'CIFAR-10: 81.2 for 64.3'),
    Order('C1, table 1', 'ClipFL', ('FedAvg',), _HALF, 'CIFAR-10, pre-trained: 48.3 for 34.6'),
    Order('C6, table 3', 'ClipFL', ('FedAvg', 'RHFL'), _HALF, 'CIFAR-10: 38.5 for 26.2, 18.1'),
    Order('C6, table 3', 'FedCorr', ('ClipFL',), _HALF, 'CIFAR-10: 39.1 for 38.5'),
    Order(
        'D1, table 2', 'FedDPCont',
        ('FedAvg', 'Co-teaching', 'RoFL', 'FedCorr', 'FedRN', 'FedNoRo', 'RHFL'), _OPEN_SET,
        'CIFAR-10: 75.8 for 63.3, 70.6, 68.2, 62.7, 55.8, 44.0, 40.2',
    ),
    Order('D4, table 2', 'FedDPCont', ('LC',), _OPEN_SET, 'CIFAR-10, random .2: 82.2 for 75.0'),
    Order('D6, table 2', 'FedAvg', ('FedNoRo', 'RHFL'), _OPEN_SET, 'CIFAR-10: 63.3 for 44.0, 40.2'),
    Order(
        'D8, table 8', 'FedDPCont', ('DivideMix',), _OPEN_SET,
        'above it but on CIFAR-100 at .6 and .8, and random .4',
    ),
    Order(
        'D7, table 3', 'FedDPCont', ('FedAvg', 'FedCorr'), _HUMAN,
        'CIFAR-10N worst, open-set: 63.5 for 46.6, 49.4',
    ),
)


def table(
    grid: grid_lib.Grid, results: Sequence[tables.Result], metric: str
) -> tables.Table:
  """Returns what becomes of each order whose methods and setting the grid has.

  A difference is of the upper method to a lower one, paired over seeds, with the 95 % interval of
  Student's t by itself: the order is seen if it lies above 0, reversed if below, undecided if it
  holds 0 or there are fewer than three seeds.
  """
  if not metrics.get(metric).highest:
    raise types.UsageError(f'orders are of metrics of which more is better, {metric} is none')
  rows = []
  for order in ORDERS:
    if order.above not in grid.methods or order.setting not in grid.settings:
      continue
    found = {'seen': [], 'undecided': [], 'reversed': []}
    above = tables.by_seed(results, metric, order.above, order.setting)
    for method in order.below:
      if method in grid.methods:
        below = tables.by_seed(results, metric, method, order.setting)
        difference = statistics.paired(above, below)
        if difference.n:
          found[_verdict(difference)].append(f'{method} {_text(difference)}')
    texts = ('; '.join(part) or '–' for part in found.values())
    if any(found.values()):
      rows.append((f'{order.paper}: {order.above} above', order.says, order.setting, *texts))
  return tables.Table(
      f'{metrics.get(metric).title}: the papers\' orders',
      ('the paper', 'its numbers', 'here', 'seen', 'undecided', 'reversed'),
      tuple(rows),
      ('Differences of the first to each other, paired over seeds, each interval by itself.',),
  )


def _verdict(difference):
  if difference.low > 0:
    return 'seen'
  return 'reversed' if difference.high < 0 else 'undecided'


def _text(difference):
  shown = statistics.text(difference)
  return f'{shown} (n={difference.n})' if math.isnan(difference.low) else shown
