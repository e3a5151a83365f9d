"""Chooses a step size and one parameter for each method, each by the same six tries.

  python -m benchmarks.tune_methods --root_dir=runs/tries --out=configs/grids/all_methods_tuned.yaml

Takes the rows of configs/grids/all_methods_digits.yaml. A try is a step size with a value of one
parameter, three by two, or six step sizes where a method has no parameter worth trying. It is three
runs, one in each of the grid's first three columns, on seeds 101, 102 and 103, which no table
reports; the try with the highest mean accuracy of the last 10 evaluations is chosen, one for all
columns. --rounds (60) is that of the tries alone: 432 runs of some ten seconds. What is finished is
not run again; --part=0/2 and --part=1/2 share the work between two processes, and the last to end
writes the file. A try whose training diverges counts as an accuracy of 0. --only=FedTally tries one
row; the others of the file stay.
"""

import copy
import os
import sys
import time

import yaml
from absl import flags

from tff_noise import heaps
from tff_noise import loading
from tff_noise import types
from tff_noise.compare import grid as grid_lib
from tff_noise.compare import runner
from tff_noise.compare import tables
from tff_noise.program import command_line
from tff_noise.program import data
from tff_noise.program import run_directory

_FLAGS = flags.FlagValues()
flags.DEFINE_string('root_dir', 'runs/tries', 'Where runs lie.', flag_values=_FLAGS)
flags.DEFINE_string('out', '', 'The grid that is written.', flag_values=_FLAGS)
flags.DEFINE_integer('rounds', 60, 'Of a try.', flag_values=_FLAGS)
flags.DEFINE_string('only', '', 'The row that is tried; all if not given.', flag_values=_FLAGS)
flags.DEFINE_string('part', '0/1', 'Which runs, of how many parts.', flag_values=_FLAGS)

# Says in a run's directory why it has no end.
_DIVERGED = 'diverged.txt'
_GRID = 'configs/grids/all_methods_digits.yaml'
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
}


def main(argv: list[str]) -> None:
  """Runs the tries, and writes the grid of what was chosen."""
  values, _ = command_line.parse(_FLAGS, argv)
  part, parts = map(int, values.part.split('/'))
  with open(_GRID, encoding='utf-8') as file:
    content = yaml.safe_load(file)
  if values.only:
    names = [row['name'] for row in content['methods']]
    if values.only not in names:
      raise types.UsageError(f'--only must be one of {", ".join(names)}, got {values.only!r}')
    content['methods'] = [content['methods'][names.index(values.only)]]
  tried = _with_tries(content)
  os.makedirs(values.root_dir, exist_ok=True)
  path = os.path.join(values.root_dir, f'tries_{part}.yaml')
  with open(path, 'w', encoding='utf-8') as file:
    yaml.safe_dump(tried, file, sort_keys=False)
  grid = grid_lib.load(
      path, 'reduced', None, [f'--rounds={values.rounds}'], values.root_dir
  )
  column = dict(zip(grid.settings, _SEEDS, strict=False))
  cells = [c for c in grid.cells if column.get(c.setting) == c.seed]
  heaps.limit()
  _run(cells[part::parts])
  if values.out and all(map(_is_done, cells)):
    _write(values.out, content, grid._replace(cells=tuple(cells)))


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
    dataset = data.load_dataset(cell.config)
    scene = data.load_scene(cell.config, dataset, None)
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


def _is_done(cell):
  return runner.is_finished(cell) or os.path.exists(os.path.join(cell.config.path(), _DIVERGED))


def _write(path, content, grid):
  """Writes the grid in which each row has the try with the highest mean."""
  results = tables.collect(grid)
  scores = {}
  for result in results:
    [value] = tables.by_seed(
        [result], 'last10_test_accuracy', result.cell.method, result.cell.setting
    ).values() or [0.0]
    scores.setdefault(result.cell.method, []).append(value)
  rows = []
  for row in content['methods']:
    tries = _tries(row['name'])
    means = [sum(scores[f'{row["name"]} / {i}']) / len(_SEEDS) for i in range(len(tries))]
    best = max(range(len(tries)), key=means.__getitem__)
    print(row['name'], tries[best], [f'{m:.2f}' for m in means])
    rows.append(_changed(row, *tries[best]))
  if len(rows) == 1:  # As --only asks.
    rows = _with_row(path, rows[0])
  title = content['title'].replace('at its published settings', 'after six tries')
  text = yaml.safe_dump(
      {**content, 'title': title, 'methods': rows}, sort_keys=False, allow_unicode=True
  )
  with open(path, 'w', encoding='utf-8') as file:
    file.write(f'# Written by benchmarks/tune_methods.py, from {_GRID}.\n{text}')


def _with_row(path, row):
  """The rows of the file, with this one in place of its own, or last."""
  with open(path, encoding='utf-8') as file:
    others = yaml.safe_load(file)['methods']
  names = [other['name'] for other in others]
  at = names.index(row['name']) if row['name'] in names else len(others)
  return [*others[:at], row, *others[at + 1 :]]


if __name__ == '__main__':
  sys.exit(command_line.run('tune_methods', lambda: main(sys.argv)))
