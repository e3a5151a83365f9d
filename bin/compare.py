"""Compares methods over settings and seeds: `bazel run //bin:compare -- --grid=FILE`."""

import hashlib
import math
import os
import shlex
import sys
import time

from absl import flags

from tff_noise import child
from tff_noise import types
from tff_noise.compare import documents
from tff_noise.compare import grid as grid_lib
from tff_noise.compare import metrics
from tff_noise.compare import records
from tff_noise.compare import runner
from tff_noise.compare import same_inputs
from tff_noise.compare import shards
from tff_noise.compare import tables
from tff_noise.program import code_version
from tff_noise.program import command_line
from tff_noise.program import run_directory

_FLAGS = flags.FlagValues()
_HELP = 'Every other flag is one of bin/train, such as --rounds=50, and holds for all runs.'

for _define, _name, _default, _text in (
    (flags.DEFINE_string, 'grid', None,
     'A grid file, such as configs/grids/feddpcont_table2.yaml.'),
    (flags.DEFINE_string, 'scale', 'reduced', 'Which of the scales that the grid file names.'),
    (flags.DEFINE_list, 'methods', ['fedavg', 'feddpcont'],
     'Without a grid file: methods, each NAME or NAME:flag=value:flag=value; in double quotes '
     'where it has a comma, as of --stages.'),
    (flags.DEFINE_multi_string, 'vary', [],
     'Without a grid file: flag=value,value; settings are all combinations.'),
    (flags.DEFINE_list, 'seeds', None, 'Seeds; by default those of the grid file, or 0,1,2.'),
    (flags.DEFINE_list, 'metric', ['best_test_accuracy'],
     'Without a grid file, what is compared: ' + ', '.join(metrics.NAMES) + '.'),
    (flags.DEFINE_string, 'baseline', None, 'What differences are taken against.'),
    (flags.DEFINE_string, 'root_dir', 'runs', 'Folder of run directories.'),
    (flags.DEFINE_string, 'out_dir', None, 'Where tables go; by default ROOT_DIR/compare/NAME.'),
    (flags.DEFINE_string, 'results', None,
     'A CSV file of results: what it has is not run again, and what is finished is added; with '
     '--shard to a file of the shard beside it, such as FILE.0-of-4.csv, which is read as well.'),
    (flags.DEFINE_string, 'shard', None,
     'i/n: only the i-th (from 0) of n parts of the grid, without tables. When all are done, the '
     'same command without it tabulates what lies in --root_dir and --results.'),
    (flags.DEFINE_integer, 'jobs', 1, 'Runs at the same time.'),
    (flags.DEFINE_list, 'also', [], 'Forms of the pictures besides PNG: pdf, svg or both.'),
    (flags.DEFINE_boolean, 'run', True, '--norun: only tabulate what is there.'),
    (flags.DEFINE_boolean, 'mixed_code', False, 'Tabulate runs made by different code.'),
    (flags.DEFINE_boolean, 'help', False, 'Show this help, and stop.'),
):
  _define(_name, _default, _text, flag_values=_FLAGS)


def main(argv: list[str] = sys.argv) -> int:
  """Returns 0 if every cell (of the shard) has a result, 1 if some have none, 2 after a mistake."""
  return command_line.run(
      'compare', lambda: _main(argv), 'the same command continues the grid'
  )


def _main(argv):
  values, rest = command_line.parse(_FLAGS, argv, known_only=True)
  if values.help:
    print(command_line.as_called(_help_text()))
    return 0
  command = command_line.as_called(
      shlex.join(['./bazelw', 'run', '//bin:compare', '--', *argv[1:]])
  )
  return _compare(values, rest, command)


def _help_text():
  lines = ['Runs a grid of methods, settings and seeds, and tabulates it.', _HELP, '']
  for name in sorted(_FLAGS):
    lines += command_line.help_lines(_FLAGS[name])
  return '\n'.join(lines)


def _compare(values, extra, command):
  if values.jobs < 1:
    raise types.UsageError(f'--jobs must be at least 1, got {values.jobs}')
  stray = [text for text in extra if not text.startswith('--')]
  if stray:
    raise types.UsageError(f'unexpected argument {stray[0]!r}; flags are written --name=value')
  command_line.check_forms(values.also)
  if values.results and values.run:
    _require_folder_of(values.results)
  shard = None if values.shard is None else shards.parse(values.shard)
  grid, name = _grid(values, extra)
  if shard is not None:
    grid = shards.part(grid, shard)
  own = values.results
  if own and shard is not None:
    own = shards.results_file(own, shard)
  files = shards.results_files(values.results) if values.results else ()
  of_files = {path: records.read(path, grid) for path in files}
  known = {name: record for found in of_files.values() for name, record in found.items()}
  left = _left(grid, known) if values.run else []
  if values.run:
    _require_one_comparison(grid, known, left, values.mixed_code)
  if left and own:
    records.require_metrics(own, grid.metrics)
  if values.out_dir:
    out = run_directory.locate(values.out_dir, '', flag='out_dir')
  else:
    out = run_directory.locate(os.path.join(values.root_dir, 'compare'), name)
  failed = []
  if values.run:
    with child.terminable():
      failed = _run(grid, left, out, values.jobs, own)
  results = tables.collect(grid, known=known, mixed_code=values.mixed_code)
  if own:
    _add(own, of_files.get(own, {}), grid, results)
  if shard is None:
    _tabulate(out, grid, results, command, values.also)
  else:
    _list_left(shard, results)
  for outcome in failed:
    print(
        f'compare: {_title(outcome.cell)} failed with status {outcome.status}: '
        f'{outcome.message} (all of it: {outcome.log})',
        file=sys.stderr,
    )
  return 1 if any(r.problem for r in results) else 0


def _add(path, there, grid, results):
  """Adds to the file at `path` what it does not have, if there is any."""
  found = [(r.cell, r.record) for r in results if r.record is not None]
  new = [
      (cell, record) for cell, record in found
      if not records.is_in(there.get(cell.config.name()), record)
  ]
  if new:
    _require_folder_of(path)
    run_directory.write_text(path, records.added(path, new, grid.metrics))


def _left(grid, known):
  """The cells that are neither finished nor known."""
  return [
      cell for cell in grid.cells
      if cell.config.name() not in known and not runner.is_finished(cell)
  ]


def _require_one_comparison(grid, known, left, mixed_code):
  """Refuses, before hours of runs and not after them, what could not be set side by side."""
  there = tables.collect(grid, known=known, mixed_code=mixed_code)
  if not mixed_code:
    same_inputs.require_code(there, code_version.digest())
  same_inputs.require_inputs(there)
  same_inputs.require_there(left)


def _require_folder_of(path):
  """Refuses a file of results that could not be written, before hours of runs."""
  folder = os.path.dirname(os.path.abspath(path))
  if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
    raise types.UsageError(
        f'--results={path}: {folder} is no folder that can be written to; make it, or give another'
    )


def _tabulate(out, grid, results, command, also):
  os.makedirs(out.path, exist_ok=True)
  markdown = documents.to_markdown(grid, results)
  for file, text in (
      ('table.md', markdown),
      ('table.tex', documents.to_latex(grid, results)),
      ('table.csv', tables.to_csv(grid, results)),
  ):
    run_directory.write_text(out.file(file), text)
  command_line.load_matplotlib()
  from tff_noise.compare import page

  page.write(out.path, grid, results, command, also)
  print(markdown)
  print(f'written to {out.path}', file=sys.stderr)


def _list_left(shard, results):
  """Says what a shard has not done. Tables are of whole grids, and written by one process."""
  left = tables.problems(results)
  print(f'shard {shard}: {len(results) - len(left)} of {len(results)} cells are done')
  for line in left:
    print(f'- {line}')


def _grid(values, extra):
  seeds = None
  if values.seeds is not None:
    try:
      seeds = [int(s) for s in values.seeds]
    except ValueError:
      raise types.UsageError(f'--seeds must be whole numbers, got {values.seeds}') from None
  if values.grid is not None:
    ignored = [f'--{n}' for n in ('methods', 'vary', 'metric', 'baseline') if values[n].present]
    if ignored:
      raise types.UsageError(f'{", ".join(ignored)} cannot be given with --grid, which fixes them')
    grid = grid_lib.load(values.grid, values.scale, seeds, extra, values.root_dir)
    return grid, f'{os.path.splitext(os.path.basename(values.grid))[0]}_{values.scale}'
  if values['scale'].present:
    raise types.UsageError('--scale needs a grid file: give --grid, or leave it out')
  grid = grid_lib.from_flags(
      values.methods,
      values.vary,
      [0, 1, 2] if seeds is None else seeds,
      extra,
      values.root_dir,
      metric=values.metric,
      baseline=values.baseline,
  )
  names = sorted(cell.config.name() for cell in grid.cells)
  names += [*grid.metrics, grid.baseline]
  return grid, 'flags_' + hashlib.sha256('\n'.join(names).encode()).hexdigest()[:8]


def _run(grid, left, out, jobs, results_path):
  """Runs what is left, adds each that ends to the file of results; returns those that failed."""
  print(
      f'{grid.title}: {len(grid.cells)} runs, {len(grid.cells) - len(left)} of them finished',
      file=sys.stderr,
  )
  started, done = time.monotonic(), 0

  def on_outcome(outcome):
    nonlocal done
    done += 1
    if outcome.status == 0 and results_path:
      cell = grid._replace(cells=(outcome.cell,))
      _add(results_path, {}, grid, tables.collect(cell, mixed_code=True))
    minutes = (time.monotonic() - started) / done * (len(left) - done) / 60
    state = 'done' if outcome.status == 0 else f'FAILED: {outcome.message}'
    print(
        f'[{done}/{len(left)}] {_title(outcome.cell)}: {state} ({outcome.seconds:.0f} s); '
        f'about {math.ceil(minutes)} min left',
        file=sys.stderr,
        flush=True,
    )

  outcomes = runner.run_cells(
      left, jobs=jobs, log_dir=out.file('logs'), on_outcome=on_outcome
  )
  return [outcome for outcome in outcomes if outcome.status != 0]


def _title(cell):
  return f'{cell.method}, {cell.setting}, seed {cell.seed}'


if __name__ == '__main__':
  sys.exit(main(sys.argv))
