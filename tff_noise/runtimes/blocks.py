"""Computations as trees of TFF's building blocks."""

import functools

import tensorflow_federated as tff


# Of those of a method: each is read when it is composed, checked, compiled, asked again.
@functools.lru_cache(8)
def of(computation: tff.Computation) -> tff.framework.ComputationBuildingBlock:
  """Returns the tree of a computation; to read it from its message takes as long as compiling."""
  return computation.to_building_block()
