"""That a grid's finished runs are of the code and the data that are there now.

Cells that are left will be, and a table compares them all. `bin/train` says the same of one run.
What they need has to be there before the first of them starts.
"""

import os
from collections.abc import Mapping, Sequence

from tff_noise import types
from tff_noise.compare import grid as grid_lib
from tff_noise.compare import runner
from tff_noise.compare import tables
from tff_noise.program import data
from tff_noise.program import inputs
from tff_noise.program import run_config
from tff_noise.program import run_directory

_OTHERWISE = (
    ', or give another --root_dir (and --results) to begin anew; --norun shows what is there'
)


def require_code(results: Sequence[tables.Result], now: str) -> None:
  """Raises `UsageError` if the runs were made by other code, or are in part.

  What a file of results has may be of other code where nothing is left to run: nobody takes it for
  a result of this one's.

  Args:
    results: Of all cells.
    now: Digest of the code that would make what is left.
  """
  there = [r for r in results if r.record is not None]
  left = len(results) - len(there)
  other = [r for r in there if r.record.code != now and (left or runner.is_finished(r.cell))]
  if other:
    would = f', {left} would be by this ({now})' if left else f', this is {now}'
    raise types.UsageError(
        f'{len(other)} of these runs were made by other code ({other[0].record.code or "unknown"})'
        f'{would}: --norun shows those that are there, another --root_dir (and --results) begins '
        'anew, --mixed_code compares them all the same'
    )


def require_inputs(results: Sequence[tables.Result]) -> None:
  """Raises `UsageError` if a finished run was made from other data or files, naming what differs.

  Of what a file of results has that is not known.

  Args:
    results: Of all cells.
  """
  of_data = {}
  for result in results:
    if result.record is not None and runner.is_finished(result.cell):
      directory = run_directory.RunDirectory(_path(result))
      inputs.check(directory, _now(result.cell.config, of_data), _OTHERWISE)


def require_there(cells: Sequence[grid_lib.Cell]) -> None:
  """Raises `UsageError` if a cell would not find its data, or a file or module that it names.

  It would be said once for each cell, and the rest of the grid would be no comparison.

  Args:
    cells: Those that are left to run.
  """
  by_data = {}
  for cell in cells:
    by_data.setdefault(_read_by(cell.config), []).append(cell.config)
  try:
    for configs in by_data.values():
      dataset = data.load_dataset(configs[0])
      for config in configs:
        data.check_flags(config, dataset)
        inputs.require(config, begun=os.path.isdir(config.path()))
  except types.UsageError as error:
    raise types.UsageError(f'{error}; --norun shows the runs that are there') from error


def _read_by(config):
  """All that `data.load_dataset` reads by; public images are drawn."""
  return (
      config.data_spec(), config.subset, config.validation_dir, config.public_dataset,
      config.public_dir, config.public_examples, config.public_dataset and config.seed,
  )


def _now(
    config: run_config.RunConfig, of_data: dict[tuple, Mapping[str, str]]
) -> Mapping[str, str]:
  """As `inputs.recorded`; data that many cells have are read once."""
  key = _read_by(config)
  if key not in of_data:
    try:
      of_data[key] = inputs.recorded_of_data(data.load_dataset(config))
    except types.UsageError as error:
      raise types.UsageError(f'{error}; --norun shows the runs that are there') from error
  return {**of_data[key], **inputs.recorded_of_files(config)}


def _path(result):
  return result.cell.config.path()
