"""Whether the report of a method of one's own can be made, asked before a run and not after it.

Most of its functions are called when all rounds are done; mended code is other code, which no run
goes on with.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from tff_noise import errors
from tff_noise import types
from tff_noise.algorithms import algorithm as algorithm_lib
from tff_noise.program import summary


def check(method: str, algorithm: algorithm_lib.Algorithm, num_clients: int) -> None:
  """Asks a report about first values.

  What fails on these may not in the end, so that is a warning alone.

  Args:
    method: Its name, as `--method` has it.
    algorithm: What it built.
    num_clients: C.

  Raises:
    types.UsageError: If columns are not of all clients, names are of nothing, or a value is none
      that the files of a run can hold.
  """
  report, state = algorithm.report, algorithm.init()
  for name in ('labels', 'posterior'):
    kept = getattr(report, name)
    if kept and kept not in algorithm.own:
      raise types.UsageError(
          f'--method={method}: {name} of its report is {kept!r}, which clients do not keep; they '
          f'keep: {", ".join(algorithm.own) or "nothing"}'
      )
  columns = _asked(method, 'client_columns', lambda: dict(report.client_columns(state.records)))
  if columns is not None:
    unknown = [name for name in report.client_scores if name not in columns]
    if unknown:
      raise types.UsageError(
          f'--method={method}: client_scores of its report are of {", ".join(unknown)}, which '
          f'client_columns has not; it has: {", ".join(columns) or "nothing"}'
      )
  of_clients = {**(columns or {})}
  if report.noisy_clients is not None:
    of_clients['noisy_clients'] = _asked(
        method, 'noisy_clients', lambda: report.noisy_clients(state.records)
    )
  for name, values in of_clients.items():
    if values is not None and np.shape(values) != (num_clients,):
      raise types.UsageError(
          f'--method={method}: {name} of its report has to be of {num_clients} numbers, one for '
          f'each client, and has the shape {np.shape(values)}'
      )
    wanted = 'b' if name == 'noisy_clients' else 'biuf'
    if values is not None and np.asarray(values).dtype.kind not in wanted:
      raise types.UsageError(
          f'--method={method}: {name} of its report has to be of '
          f'{"bool" if wanted == "b" else "numbers"}, is of {np.asarray(values).dtype}'
      )
  row = _asked(method, 'columns', lambda: dict(report.columns(state)))
  for name, value in (row or {}).items():
    is_number = not np.ndim(value) and np.asarray(value).dtype.kind in 'biuf'
    if not is_number and not isinstance(value, str):
      raise types.UsageError(
          f'--method={method}: {name} of the columns of its report has to be a number or a text, '
          f'is {value!r}'
      )
  found = _asked(method, 'summary', lambda: dict(report.summary(state.records)))
  try:
    json.dumps(summary.plain(found))
  except TypeError as error:
    raise types.UsageError(
        f'--method={method}: the summary of its report has what no JSON file can hold ({error})'
    ) from None


def _asked(method: str, name: str, ask: Callable[[], Any]) -> Any:
  try:
    return ask()
  except Exception as error:  # It is the user's code.
    print(
        f'report: {name} of --method={method} fails on first values ({errors.named_line(error)}); '
        'if it does so when it is asked, the run ends there'
        + ('' if name == 'columns' else ', without a summary of its rounds'),
        file=sys.stderr,
    )
    return None
