"""The table of FedAvg and FedDPCont on digits: seeds x methods x noise, as Markdown.

  python -m benchmarks.digits_table --seeds=0,1,2,3,4

Every run is an ordinary run directory under --root_dir and is not repeated when it is there
already, so the table can be interrupted and asked for again.
"""

import contextlib
import io
import os
import sys

import numpy as np
from absl import flags

from tff_noise.program import flags as program_flags
from tff_noise.program import run
from tff_noise.program import run_directory

_ROOT_DIR = flags.DEFINE_string('root_dir', 'runs', 'Folder of run directories.')
_SEEDS = flags.DEFINE_list('seeds', ['0', '1', '2', '3', '4'], 'Seeds.')
_EXTRA = flags.DEFINE_multi_string('flag', [], 'A flag for every run, such as --flag=--rounds=50.')

_ROWS = (
    ('FedAvg', ('--method=fedavg',)),
    ('FedDPCont, inverse', ('--method=feddpcont', '--label_prior=inverse')),
    ('FedDPCont, shrinkage', ('--method=feddpcont', '--label_prior=shrinkage')),
    ('FedDPCont, none (no DP)', ('--method=feddpcont', '--label_prior=none')),
)
_NOISES = ('symmetric', 'random')


def _summary(root_dir, seed, arguments):
  values = program_flags.parse(
      ['table', f'--root_dir={root_dir}', f'--seed={seed}', *arguments, *_EXTRA.value]
  )
  config = program_flags.config_from(values)
  with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    run.run(config)
  return run_directory.read_json(os.path.join(root_dir, config.name(), 'summary.json'))


def _cell(values):
  return f'{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}'


def main() -> None:
  """Runs what is missing and prints the table."""
  root_dir, seeds = _ROOT_DIR.value, [int(s) for s in _SEEDS.value]
  print('| noise | method | best accuracy | last 10 | s a round |')
  print('| --- | --- | --- | --- | --- |')
  for noise in _NOISES:
    for title, arguments in _ROWS:
      summaries = []
      for seed in seeds:
        print(f'{noise}, {title}, seed {seed}', file=sys.stderr, flush=True)
        summaries.append(_summary(root_dir, seed, (f'--noise={noise}', *arguments)))
      best, last10, seconds = (
          [s[name] for s in summaries]
          for name in ('best_test_accuracy', 'last10_test_accuracy', 'seconds_per_round')
      )
      print(
          f'| {noise} | {title} | {_cell(best)} | {_cell(last10)} | {np.median(seconds):.3f} |',
          flush=True,
      )


if __name__ == '__main__':
  os.chdir(os.environ.get('BUILD_WORKING_DIRECTORY', '.'))
  # Not absl's app.run: TensorFlow imported after it has started does not come up eager.
  flags.FLAGS(sys.argv)
  main()
