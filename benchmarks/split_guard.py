"""Does FedCorr's split guard hold? Runs with and without it, on digits.

  python -m benchmarks.split_guard --seeds=0-39 --clients=20 --noise=0:0.5,0.2:0,0.2:0.5

Runs pre-processing alone, as bin/train does it, and prints for each noise (rho:tau) with and
without the guard: in how many runs anybody was taken for noisy in any iteration, recall and
precision of the last one, and the share of right labels before and after. Other flags are those of
bin/train. A run of 20 clients takes some ten seconds.
"""

import sys

import numpy as np
from absl import flags

from tff_noise import heaps
from tff_noise.algorithms import algorithm as algorithm_lib
from tff_noise.data import client_data
from tff_noise.data import scene as scene_lib
from tff_noise.privacy import ledger as ledger_lib
from tff_noise.program import clients as clients_lib
from tff_noise.program import command_line
from tff_noise.program import data
from tff_noise.program import flags as program_flags
from tff_noise.program import ground_truth
from tff_noise.program import task as task_lib
from tff_noise.program import training
from tff_noise.runtimes import local
from tff_noise.uplink import uplink

_FLAGS = flags.FlagValues()
flags.DEFINE_string('seeds', '0-39', 'First and last seed.', flag_values=_FLAGS)
flags.DEFINE_list(
    'noise', ['0:0.5'] + [f'{rho}:{tau}' for rho in (0.2, 0.4, 0.6, 0.8) for tau in (0, 0.5)],
    'rho:tau of each setting.', flag_values=_FLAGS,
)
_FIXED = (
    '--method=fedcorr', '--allow_per_client_disclosure', '--dataset=digits', '--partition=iid',
    '--noise=client_uniform', '--param=score=cumulative', '--stages=finetune:1,usual:0',
    '--rounds=1000',
)


def main(argv: list[str]) -> None:
  """Prints a row after each run, and the table at the end."""
  values, rest = command_line.parse(_FLAGS, argv, known_only=True)
  first, last = map(int, values.seeds.split('-'))
  heaps.limit()
  found = {}
  with local.runtime(max_concurrent_clients=1):
    for seed in range(first, last + 1):
      for guard in ('false', 'true'):
        arguments = (*_FIXED, *rest, f'--seed={seed}', f'--param=split_guard={guard}')
        built = None
        for setting in values.noise:
          rho, tau = setting.split(':')
          config = program_flags.config_from(program_flags.parse(
              ['split_guard', *arguments, f'--noise_rho={rho}', f'--noise_tau={tau}']
          ))
          dataset = data.load_dataset(config)
          scene = data.load_scene(config, dataset, None)
          # Noise changes labels alone: what is compiled for a seed and a guard is the same.
          built = built or task_lib.prepare(config, dataset, scene)
          row = _preprocess(built, scene, scene_lib.federation(dataset, scene, seed))
          found.setdefault((setting, guard), []).append(row)
          print(setting, guard, seed, *row, file=sys.stderr, flush=True)
  print('| rho:tau | guard | runs | anybody called | recall | precision | labels | after |')
  print('| --- | --- | --- | --- | --- | --- | --- | --- |')
  for (setting, guard), rows in found.items():
    called, *means = np.array(rows, np.float64).T
    shown = ' | '.join(f'{np.nanmean(m):.3f}' if np.isfinite(m).any() else '–' for m in means)
    print(f'| {setting} | {guard} | {len(rows)} | {called.sum():.0f} | {shown} |')


def _preprocess(built, scene, federation):
  """Returns whether anybody was called, recall, precision, right labels before and after."""
  algorithm = built.algorithm
  clients = clients_lib.SimulatedClients(
      algorithm, built.task, federation, client_data.federation_datasets(federation),
      ledger_lib.Ledger(algorithm.fields, uplink.to_json(algorithm.fields), ''),
  )
  state = algorithm.init()
  while algorithm_lib.stage_of(algorithm.stages, state.round_num + 1) == 'preprocess':
    state = training.run_round(algorithm, state, clients)
  agreement = ground_truth.identification(scene, state.records['noisy'])
  labels = ground_truth.current_labels(algorithm, scene, clients.own)
  return (
      bool(state.records['noisy_by_iteration'].any()),
      agreement['noisy_client_recall'], agreement['noisy_client_precision'],
      ground_truth.label_accuracy(scene, scene.noisy_label),
      ground_truth.label_accuracy(scene, labels),
  )


if __name__ == '__main__':
  main(sys.argv)
