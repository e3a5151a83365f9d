"""Are noisy clients that join late found? FedCorr's rule against scores by participation.

  python -m benchmarks.late_arrivals --dataset=digits --partition=iid --noise=client_uniform \
      --arrivals=uniform:0.5:60

Runs FedCorr's pre-processing for seeds 0, 1 and 2 with labels left alone, and judges the same LID
scores by each rule: recall among the noisy clients that were there from the start and among those
that came later, and precision. Other flags are those of
bin/train.
"""

import csv
import os
import sys

import numpy as np

from tff_noise.data import scene as scene_lib
from tff_noise.program import flags
from tff_noise.program import run
from tff_noise.selection import noisy_clients

_SEEDS = (0, 1, 2)
# Nothing in the training depends on how clients are judged.
_FIXED = (
    '--method=fedcorr', '--allow_per_client_disclosure', '--param=correction=false',
    '--param=proximal=0', '--stages=finetune:0,usual:1', '--eval_every=1000',
)


def main(argv: list[str]) -> None:
  """Prints a table."""
  found = [_judgements(argv, seed) for seed in _SEEDS]
  print('| score | recall, from the start | recall, late | precision |')
  print('| --- | --- | --- | --- |')
  for rule in found[0]:
    hits = np.array([f[rule] for f in found])
    columns = ' | '.join(' '.join(f'{v:.2f}' for v in column) for column in hits.T)
    print(f'| {rule} | {columns} |')


def _judgements(argv, seed):
  """Returns {rule: (recall early, recall late, precision)} of one seed."""
  config = flags.config_from(flags.parse(['late_arrivals', *_FIXED, *argv, f'--seed={seed}']))
  run.run(config)
  scene = scene_lib.read(os.path.join(config.path(), 'scene.npz'))
  with open(os.path.join(config.path(), 'clients.csv'), encoding='utf-8', newline='') as file:
    rows = list(csv.DictReader(file))
  names = [n for n in rows[0] if n.startswith('lid_') and n[4:].isdigit()]
  lid = np.array([[float(row[name]) for row in rows] for name in names])
  late = np.isnan(lid[0])
  noisy = scene.is_noisy_client
  result = {}
  for rule in noisy_clients.SCORES:
    judged = noisy_clients.split(noisy_clients.client_scores(lid, rule), seed).noisy
    result[rule] = (
        _share(judged, noisy & ~late), _share(judged, noisy & late), _share(noisy, judged)
    )
  print(f'seed {seed}: {int((noisy & late).sum())} noisy clients of {int(late.sum())} late ones, '
        f'{int((noisy & ~late).sum())} of {int((~late).sum())} others', file=sys.stderr)
  return result


def _share(values, where):
  return float(values[where].mean()) if where.any() else np.nan


if __name__ == '__main__':
  main(sys.argv[1:])
