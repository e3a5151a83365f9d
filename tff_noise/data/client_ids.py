"""Ids of clients for TFF's programs, drawn from a seed and the round alone.

`tff.program.ClientIdDataSource` draws from Python's global generator, which other code draws from
too, so its cohorts differ from run to run and after a resume.
"""

import json
from collections.abc import Sequence

import numpy as np
import tensorflow_federated as tff

from tff_noise import rng

_TYPE = tff.FederatedType(np.str_, tff.CLIENTS)


class ClientIds(tff.program.FederatedDataSource):
  """A data source of type `{str}@CLIENTS` that gives the same cohorts whenever it is asked.

  So a round that `train_model` discards (`should_discard_round`) is the same when it is tried
  again.
  """

  def __init__(self, client_ids: Sequence[str], seed: int):
    """Initialises the source.

    Args:
      client_ids: One for each client, all different.
      seed: Of the cohorts, in [0, 2**63).

    Raises:
      TypeError: If an id is no text.
      ValueError: If there are no ids, some are equal, or the seed is outside.
    """
    ids = tuple(client_ids)
    if not all(isinstance(i, str) for i in ids):
      raise TypeError(f'client_ids must be str, got {[type(i).__name__ for i in ids][:3]}')
    if not ids or len(set(ids)) < len(ids):
      raise ValueError(f'client_ids must be at least one and all different, got {len(ids)}')
    if not 0 <= seed < 2**63:
      raise ValueError(f'seed must be in [0, 2**63), got {seed}')
    self._client_ids = ids
    self._seed = int(seed)

  @property
  def federated_type(self) -> tff.FederatedType:
    """What is selected, `{str}@CLIENTS`."""
    return _TYPE

  def iterator(self) -> 'ClientIdsIterator':
    """Returns an iterator before the first round."""
    return ClientIdsIterator(self._client_ids, self._seed, 0)


class ClientIdsIterator(tff.program.FederatedDataSourceIterator):
  """Selects without replacement, with the number of selections so far as its only state."""

  def __init__(self, client_ids: Sequence[str], seed: int, selections: int):
    self._client_ids = tuple(client_ids)
    self._seed = seed
    self._selections = selections

  @classmethod
  def from_bytes(cls, buffer: bytes) -> 'ClientIdsIterator':
    """Returns the iterator that `to_bytes` was called on."""
    return cls(*json.loads(buffer))

  def to_bytes(self) -> bytes:
    """Returns all of it, as JSON."""
    return json.dumps([self._client_ids, self._seed, self._selections]).encode()

  @property
  def federated_type(self) -> tff.FederatedType:
    """What is selected, `{str}@CLIENTS`."""
    return _TYPE

  def select(self, k: int | None = None) -> list[str]:
    """Returns the ids of `k` clients, which are those of the next round.

    Raises:
      ValueError: If `k` is not from 1 to the number of clients.
    """
    if not isinstance(k, int) or not 1 <= k <= len(self._client_ids):
      raise ValueError(f'k must be from 1 to {len(self._client_ids)}, got {k}')
    self._selections += 1
    draw = rng.generator(self._seed, 'client ids', self._selections)
    return [self._client_ids[i] for i in draw.choice(len(self._client_ids), k, replace=False)]

  def __eq__(self, other: object) -> bool:
    return isinstance(other, ClientIdsIterator) and self.to_bytes() == other.to_bytes()
