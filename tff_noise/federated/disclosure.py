"""Static check: what a compiled computation sends to the server is what was declared.

It proves through which intrinsic each value of which type goes up. It cannot prove what a value
means: labels packed into a model update would look like an update. That is why label histograms
have a computation of their own whose type admits nothing else (`label_communication`).
"""

import collections
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow_federated as tff

from tff_noise.federated import uplink

# Intrinsics that move nothing from clients to the server. Everything else counts as a release, so
# an intrinsic that this list does not know fails the check instead of passing unseen.
_NOT_RELEASES = frozenset({
    'federated_apply',
    'federated_broadcast',
    'federated_eval_at_clients',
    'federated_eval_at_server',
    'federated_map',
    'federated_map_all_equal',
    'federated_value_at_clients',
    'federated_value_at_server',
    'federated_zip_at_clients',
    'federated_zip_at_server',
})


class UndeclaredUplinkError(ValueError):
  """A computation sends something that its uplink specification does not declare, or less."""


class Edge(NamedTuple):
  """A value that goes from clients to server: the intrinsic's URI and the TFF type, as text."""

  intrinsic: str
  type_spec: str


def client_to_server_edges(computation: tff.Computation) -> tuple[Edge, ...]:
  """Returns every client-to-server edge of a computation, in order of appearance."""
  edges = []

  def visit(block):
    if isinstance(block, tff.framework.Call) and isinstance(
        block.function, tff.framework.Intrinsic
    ):
      uri = block.function.uri
      if uri not in _NOT_RELEASES:
        edges.append(Edge(uri, str(_travelling_type(block.argument.type_signature))))
    return block, False

  tff.framework.transform_postorder(
      tff.framework.to_call_dominant(computation.to_building_block()), visit
  )
  return tuple(edges)


def _travelling_type(argument_type: tff.Type) -> tff.Type:
  """The member type of what the clients contribute: the intrinsic's argument, or its first part."""
  if isinstance(argument_type, tff.StructType) and len(argument_type):
    argument_type = argument_type[0]
  return getattr(argument_type, 'member', argument_type)


def check(computation: tff.Computation, fields: Sequence[uplink.UplinkField]) -> None:
  """Raises `UndeclaredUplinkError` unless `computation` sends exactly `fields`."""
  compiled = collections.Counter(client_to_server_edges(computation))
  declared = collections.Counter(Edge(f.intrinsic, f.type_spec) for f in fields)
  undeclared, missing = compiled - declared, declared - compiled
  if undeclared or missing:
    raise UndeclaredUplinkError(
        'The computation and its uplink specification differ.'
        + ''.join(f'\n  sent, not declared: {" ".join(e)}' for e in undeclared.elements())
        + ''.join(f'\n  declared, not sent: {" ".join(e)}' for e in missing.elements())
    )
