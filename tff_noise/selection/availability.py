"""Who is there: clients that join late or drop out."""

import csv
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tff_noise import rng
from tff_noise import types

_FORMS = 'a file with the columns client, joins, leaves, or uniform:SHARE:LAST_ROUND'


class Availability(NamedTuple):
  """The rounds in which each client can take part.

  Attributes:
    joins: int64 `[C]`, the first round, 1 or more.
    leaves: int64 `[C]`, the first round without it; `NEVER` if it stays.
  """

  joins: np.ndarray
  leaves: np.ndarray

  def present(self, round_num: int) -> np.ndarray:
    """Returns int64, ascending: the ids of those that can take part in round `round_num`."""
    return np.flatnonzero((self.joins <= round_num) & (round_num < self.leaves))


NEVER = np.iinfo(np.int64).max


def always(num_clients: int) -> Availability:
  """Everybody is there from the first round to the last."""
  return Availability(np.ones(num_clients, np.int64), np.full(num_clients, NEVER))


def parse(
    text: str, num_clients: int, seed: int, client_names: Sequence[str] = ()
) -> Availability:
  """Reads `--arrivals`.

  Args:
    text: `uniform:SHARE:LAST_ROUND`: a random share of the clients joins in a round from 1 to
      LAST_ROUND, drawn uniformly, the others are there from the start. Or a CSV file with the
      columns client (its name), joins and, if you like, leaves (rounds; empty for never); clients
      that it does not name are always there.
    num_clients: C.
    seed: Of the draw.
    client_names: C texts; empty where clients are called 0 to C-1.

  Raises:
    types.UsageError: If it is neither, or names a client that is not there.
  """
  match = re.fullmatch(r'uniform:([0-9.]+):([0-9]{1,9})', text)
  if match is None:
    return _read(text, num_clients, client_names)
  share, last = match.groups()
  try:
    share = float(share)
  except ValueError:
    share = -1.0
  if not 0 <= share <= 1 or int(last) < 1:
    raise types.UsageError(
        f'--arrivals={text}: SHARE must be in [0, 1] and LAST_ROUND at least 1'
    )
  draw = rng.generator(seed, 'arrivals')
  late = draw.permutation(num_clients)[: round(share * num_clients)]
  drawn = always(num_clients)
  drawn.joins[late] = draw.integers(1, int(last) + 1, len(late))
  return drawn


def _read(path, num_clients, client_names):
  try:
    with open(path, encoding='utf-8-sig', newline='') as file:
      reader = csv.DictReader(file)
      columns, rows = reader.fieldnames or [], list(reader)
  except (OSError, UnicodeDecodeError, csv.Error) as error:
    raise types.UsageError(
        f'--arrivals={path} cannot be read ({type(error).__name__}); it takes {_FORMS}'
    ) from error
  if not {'client', 'joins'} <= set(columns) <= {'client', 'joins', 'leaves'}:
    raise types.UsageError(
        f'--arrivals={path} has the columns {", ".join(map(str, columns)) or "none"}; it takes '
        f'{_FORMS}'
    )
  result = always(num_clients)
  named = set()
  for line, row in enumerate(rows, start=2):
    where = f'--arrivals={path}, line {line}'
    if None in row:
      raise types.UsageError(f'{where}: it has more values than there are columns')
    client = _client(row, num_clients, client_names, where)
    if client in named:
      raise types.UsageError(
          f'{where}: client {row["client"]} is named twice; give each client one line'
      )
    named.add(client)
    result.joins[client] = max(1, _whole_number(row, 'joins', where))
    if row.get('leaves'):
      result.leaves[client] = _whole_number(row, 'leaves', where)
    if result.leaves[client] <= result.joins[client]:
      raise types.UsageError(f'{where}: client {row["client"]} leaves before it has joined')
  return result


def _client(row, num_clients, client_names, where):
  """The client that a row is about."""
  if client_names:
    if row['client'] in client_names:
      return client_names.index(row['client'])
    raise types.UsageError(
        f'{where}: there is no client {row["client"]!r}, the data call them '
        f'{", ".join(client_names[:3])}' + (', ...' if num_clients > 3 else '')
    )
  client = _whole_number(row, 'client', where)
  if client >= num_clients:
    raise types.UsageError(
        f'{where}: there is no client {client}, they are 0 to {num_clients - 1}'
    )
  return client


def _whole_number(row, column, where):
  text = row.get(column) or ''
  if not re.fullmatch(r'\s*[0-9]{1,9}\s*', text):
    raise types.UsageError(f'{where}: {column} must be a whole number, got {text!r}')
  return int(text)
