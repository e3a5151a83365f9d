"""Clients in a sentence: by their names, where the data give them any."""

from collections.abc import Sequence

import numpy as np

_MAX_LISTED = 12


def listed(mask: np.ndarray, names: Sequence[str] = ()) -> str:
  """Returns the clients of a bool `[C]` by name or number, or how many where they are many."""
  ids = np.flatnonzero(mask)
  if len(ids) > _MAX_LISTED:
    return f'{len(ids)} clients'
  return ('client ' if len(ids) == 1 else 'clients ') + ', '.join(
      names[i] if names else str(i) for i in ids
  )
