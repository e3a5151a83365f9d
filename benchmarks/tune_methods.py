"""Chooses a step size and one parameter for each method, each by the same six tries.

  python -m benchmarks.tune_methods --grid=configs/grids/evidence_cifar10_published.yaml \
    --root_dir=runs/noisy_tries --out=configs/grids/evidence_cifar10.yaml --data_dir=...

Takes the rows of --grid. A try is a step size with a value of one parameter, three by two, or six
step sizes where a method has no parameter worth trying. It is three runs, one in each of the grid's
first three columns, on seeds 101, 102 and 103, which no table reports. A tenth of each client's
examples, with the labels that it believes, is withheld from it and is the validation set of the
run: the try with the highest mean of the last 10 validation accuracies is chosen, one for all
columns, so that no clean label and no test image chooses anything. A method that has clean examples
at the server, as ClipFL, is chosen on these.

--rounds (60) is that of the tries alone. What is finished is not run again; --part=0/2 and
--part=1/2 share the work between two processes, and the last to end writes the file. A try whose
training diverges counts as an accuracy of 0. --only=FedAvg,ELR tries these rows; the others of the
file stay. Other flags are those of all runs.
"""

import copy
import dataclasses
import os
import sys
import time

import numpy as np
import yaml
from absl import flags

from tff_noise import heaps
from tff_noise import loading
from tff_noise import types
from tff_noise.compare import grid as grid_lib
from tff_noise.compare import runner
from tff_noise.compare import shards
from tff_noise.data import scene as scene_lib
from tff_noise.program import command_line
from tff_noise.program import data
from tff_noise.program import run_directory
from tff_noise.program import summary

_FLAGS = flags.FlagValues()
flags.DEFINE_string('root_dir', 'runs/noisy_tries', 'Where runs lie.', flag_values=_FLAGS)
flags.DEFINE_string('grid', '', 'The grid whose rows are tried.', flag_values=_FLAGS)
flags.DEFINE_string('out', '', 'The grid that is written.', flag_values=_FLAGS)
flags.DEFINE_integer('rounds', 60, 'Of a try.', flag_values=_FLAGS)
flags.DEFINE_list('only', [], 'The rows that are tried; all if not given.', flag_values=_FLAGS)
flags.DEFINE_string('part', '0/1', 'Which runs, of how many parts.', flag_values=_FLAGS)

# Says in a run's directory why it has no end.
_DIVERGED = 'diverged.txt'
_WITHHELD = 0.1
_SEEDS = (101, 102, 103)
_STEP_SIZES = (0.03, 0.1, 0.3)
_MORE_STEP_SIZES = (0.01, 0.03, 0.05, 0.1, 0.2, 0.3)
# Beside the published value, which comes first.
_PARAMETERS = {
    'FedProx, norm': ('mu=1', 'mu=0.3'),
    'ARFL': ('weight=2', 'weight=1'),
    'GCE': ('q=0.7', 'q=0.4'),
    'SCE': ('beta=1', 'beta=0.3'),
    'ELR': ('weight=3', 'weight=1'),
    'FedLSR': ('cross_entropy=probabilities', 'cross_entropy=log'),
    'LC': ('confidence=0.95', 'confidence=0.6'),
    'LC, pooled': ('confidence=0.95', 'confidence=0.6'),
    'T-revision': ('correction=forward', 'correction=reweight'),
    'Co-teaching': ('ramp_rounds=10', 'ramp_rounds=30'),
    'JointOpt': ('alpha=1.2', 'alpha=0.4'),
    'DivideMix': ('unlabelled_weight=25', 'unlabelled_weight=5'),
    'RoFL': ('entropy_weight=0.8', 'entropy_weight=0.2'),
    'RHFL': ('public_learning_rate=0.001', 'public_learning_rate=0.01'),
    'FedRN': ('neighbours=2', 'neighbours=1'),
    'FedNoRo': ('weight=0.8', 'weight=0.4'),
    'FedELC': ('compatibility_weight=0.5', 'compatibility_weight=0.1'),
    'FedDiv': ('mixup_alpha=1', 'mixup_alpha=0.2'),
    'FedCorr': ('mixup=true', 'mixup=false'),
    'ClipFL': ('prune=0.5', 'prune=0.3'),
    'FedDPCont': ('weight=1', 'weight=0.5'),
    'FedTally': ('average=0', 'average=0.8'),
    'FedTally, two heads': ('loss_q=0.7', 'loss_q=0.4'),
}


def main(argv: list[str]) -> None:
  """Runs the tries, and writes the grid of what was chosen."""
  values, shared = command_line.parse(_FLAGS, argv, known_only=True)
  part, parts = shards.parse(values.part, 'part')
  if not os.path.isfile(values.grid):
    raise types.UsageError(f'--grid must be a file in configs/grids, got {values.grid!r}')
  with open(values.grid, encoding='utf-8') as file:
    content = yaml.safe_load(file)
  rows = {row['name']: row for row in content['methods']}
  for name in values.only:
    if name not in rows:
      raise types.UsageError(f'--only must be some of {", ".join(rows)}, got {name!r}')
  content['methods'] = [row for name, row in rows.items() if name in (values.only or rows)]
  others = bool(values.out) and os.path.exists(values.out)
  if values.only and content['baseline'] not in values.only and not others:
    raise types.UsageError(f'--only must name {content["baseline"]}, or --out a grid that has it')
  tried = _with_tries(content)
  os.makedirs(values.root_dir, exist_ok=True)
  path = os.path.join(values.root_dir, f'tries_{part}.yaml')
  with open(path, 'w', encoding='utf-8') as file:
    yaml.safe_dump(tried, file, sort_keys=False)
  grid = grid_lib.load(
      path, 'reduced', None, [f'--rounds={values.rounds}', *shared], values.root_dir
  )
  column = dict(zip(grid.settings, _SEEDS, strict=False))
  cells = [c for c in grid.cells if column.get(c.setting) == c.seed]
  heaps.limit()
  _run(cells[part::parts])
  if values.out and all(map(_is_done, cells)):
    _write(values, content, cells)


def _with_tries(content):
  """The grid with a row for each try of each method, and the seeds of tries."""
  rows = []
  for row in content['methods']:
    for i, (step_size, parameter) in enumerate(_tries(row['name'])):
      rows.append({**_changed(row, step_size, parameter), 'name': f'{row["name"]} / {i}'})
  scale = {**content['scales']['reduced'], 'seeds': list(_SEEDS)}
  return {
      **content, 'methods': rows, 'baseline': rows[0]['name'], 'scales': {'reduced': scale},
  }


def _tries(name):
  if name not in _PARAMETERS:
    return [(step_size, None) for step_size in _MORE_STEP_SIZES]
  return [(step_size, p) for p in _PARAMETERS[name] for step_size in _STEP_SIZES]


def _changed(row, step_size, parameter):
  """The row with this step size and parameter, in all of its columns."""
  row = copy.deepcopy(row)
  row['flags']['learning_rate'] = step_size
  if parameter is not None:
    for given in (row['flags'], *row.get('at', {}).values()):
      given['param'] = [*given.get('param', []), parameter]
  return row


def _run(cells):
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  with loading.large_modules():
    from tff_noise.program import training_run
  for i, cell in enumerate(cells):
    if _is_done(cell):
      continue
    started = time.monotonic()
    dataset, scene = _load(cell.config)
    directory = run_directory.locate(cell.config.root_dir, cell.config.name())
    try:
      training_run.run(cell.config, dataset, scene, directory)
    except (types.RunError, types.UsageError) as error:
      if 'diverged' not in str(error):
        raise
      run_directory.write_text(directory.file(_DIVERGED), f'{error}\n')
    print(
        f'[{i + 1}/{len(cells)}] {cell.method}, {cell.setting}, {cell.seed}: '
        f'{time.monotonic() - started:.0f} s', file=sys.stderr, flush=True,
    )


def _load(config):
  """The data and the scene; where the server has no clean set, one of what clients withhold.

  Not by the run's own flag: every method can be tried so, what is evaluated by what clients keep
  too.
  """
  dataset = data.load_dataset(config)
  scene = data.load_scene(config, dataset, None)
  if scene_lib.validation(dataset, scene) is not None:
    return dataset, scene
  withholding = dataclasses.replace(config, client_validation_fraction=_WITHHELD)
  return _with_noisy_validation(dataset, data.load_scene(withholding, dataset, None))


def _with_noisy_validation(dataset, scene):
  """Hands what clients withhold, with the labels that they believe, to the server."""
  withheld = scene.is_withheld
  examples = types.Examples(dataset.train_x[withheld], scene.noisy_label[withheld])
  client_of = np.where(withheld, scene_lib.SERVER, scene.client_of)
  return (
      dataset._replace(validation=examples),
      scene._replace(client_of=client_of.astype(np.int32), is_withheld=None),
  )


def _is_done(cell):
  return runner.is_finished(cell) or os.path.exists(os.path.join(cell.config.path(), _DIVERGED))


def _score(cell):
  """Mean of the last 10 validation accuracies, percent."""
  if not runner.is_finished(cell):
    return 0.0
  rows = summary.read_rows(os.path.join(cell.config.path(), 'metrics.csv'))
  values = np.array([float(row['validation_accuracy']) for row in rows])
  return 100 * summary.accuracy(np.arange(len(values)), values).last10


def _write(values, content, cells):
  """Writes the grid in which each row has the try with the highest mean."""
  scores = {}
  for cell in cells:
    scores.setdefault(cell.method, []).append(_score(cell))
  rows = []
  for row in content['methods']:
    tries = _tries(row['name'])
    means = [sum(scores[f'{row["name"]} / {i}']) / len(_SEEDS) for i in range(len(tries))]
    best = max(range(len(tries)), key=means.__getitem__)
    print(row['name'], tries[best], [f'{m:.2f}' for m in means])
    rows.append(_changed(row, *tries[best]))
  if values.only and os.path.exists(values.out):
    rows = _with_rows(values.out, rows)
  title = content['title'].replace('at its published settings', 'after six tries')
  text = yaml.safe_dump(
      {**content, 'title': title, 'methods': rows}, sort_keys=False, allow_unicode=True
  )
  with open(values.out, 'w', encoding='utf-8') as file:
    file.write(f'# Written by benchmarks/tune_methods.py, from {values.grid}.\n{text}')


def _with_rows(path, rows):
  """The rows of the file, with these in place of those of their names, or last."""
  with open(path, encoding='utf-8') as file:
    others = {row['name']: row for row in yaml.safe_load(file)['methods']}
  return [*{**others, **{row['name']: row for row in rows}}.values()]


if __name__ == '__main__':
  sys.exit(command_line.run('tune_methods', lambda: main(sys.argv)))
