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
  """A data source of type `{str}@CLIENTS` that gives the same cohorts whenever it is asked."""

  def __init__(self, client_ids: Sequence[str], seed: int):
    """Initialises the source.

    Args:
      client_ids: One for each client, all different.
      seed: Of the cohorts, in [0, 2**63).

    Raises:
      ValueError: If there are no ids, or some are equal.
    """
    if not client_ids or len(set(client_ids)) < len(client_ids):
      raise ValueError(f'client_ids must be there and all different, got {list(client_ids)}')
    self._client_ids = tuple(client_ids)
    self._seed = seed

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
    if k is None or not 1 <= k <= len(self._client_ids):
      raise ValueError(f'k must be from 1 to {len(self._client_ids)}, got {k}')
    self._selections += 1
    draw = rng.generator(self._seed, 'client ids', self._selections)
    return [self._client_ids[i] for i in draw.choice(len(self._client_ids), k, replace=False)]

  def __eq__(self, other: object) -> bool:
    return isinstance(other, ClientIdsIterator) and self.to_bytes() == other.to_bytes()
