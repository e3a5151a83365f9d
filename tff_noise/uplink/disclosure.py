"""Static check: what a compiled computation sends to the server is what was declared.

It proves through which intrinsic each value of which type goes up. It cannot prove what a value
means: labels packed into a model update would look like an update. That is why label histograms
have a computation of their own, whose one value has room for nothing else (`label_histogram`).
"""

import collections
import functools
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow_federated as tff

from tff_noise.runtimes import blocks
from tff_noise.uplink import operations
from tff_noise.uplink import uplink

SECURE_SUM = 'federated_secure_sum_bitwidth'
# Its second argument is the modulus, which has to be a power of two.
SECURE_MODULAR_SUM = 'federated_secure_modular_sum'
_BROADCAST = 'federated_broadcast'

# What shows no more of contributions that nothing protects; by any other intrinsic the server has
# single ones.
SUMS = {
    'federated_sum': uplink.Disclosure.SUM,
    SECURE_SUM: uplink.Disclosure.SECURE_SUM,
    SECURE_MODULAR_SUM: uplink.Disclosure.SECURE_SUM,
}

# Intrinsics that move nothing from clients to the server. Everything else counts as a release, so
# an intrinsic that this list does not know fails the check instead of passing unseen.
_NOT_RELEASES = frozenset({
    'federated_apply',
    _BROADCAST,
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
  """A value that goes from clients to server.

  Attributes:
    intrinsic: The intrinsic's URI.
    type_spec: TFF type, as text.
    bitwidth: Of a secure sum, as text: of each number in it, if they differ; '' where there is
      none, 'computed' where it is no constant.
  """

  intrinsic: str
  type_spec: str
  bitwidth: str = ''


def client_to_server_edges(computation: tff.Computation) -> tuple[Edge, ...]:
  """Returns every client-to-server edge of a computation, in order of appearance."""
  return _edges(_intrinsics(computation))


def travelling(computation: tff.Computation) -> tuple[tuple[Edge, tff.Type], ...]:
  """Returns the same edges, each with the type of what one client sends."""
  calls = [c for c in _intrinsics(computation) if c.function.uri not in _NOT_RELEASES]
  sent = (_travelling_type(call.argument.type_signature) for call in calls)
  return tuple(zip(_edges(calls), sent, strict=True))


def _intrinsics(computation):
  """The calls of intrinsics, in order of appearance."""
  calls = []

  def visit(block):
    if isinstance(block, tff.framework.Call) and isinstance(
        block.function, tff.framework.Intrinsic
    ):
      calls.append(block)
    return block, False

  tff.framework.transform_postorder(
      tff.framework.to_call_dominant(blocks.of(computation)), visit
  )
  return calls


def _edges(calls):
  return tuple(
      Edge(
          call.function.uri, str(_travelling_type(call.argument.type_signature)),
          _bitwidth(call) if call.function.uri in (SECURE_SUM, SECURE_MODULAR_SUM) else '',
      )
      for call in calls
      if call.function.uri not in _NOT_RELEASES
  )


def _bitwidth(call: tff.framework.Call) -> str:
  """The second argument of a secure sum."""

  def constants(block):
    if isinstance(block, tff.framework.Struct):
      return [value for part in block for value in constants(part)]
    # Anything else is computed, and so may be anything.
    if not isinstance(block, tff.framework.Literal):
      return ['computed']
    modular = call.function.uri == SECURE_MODULAR_SUM
    return [_bits_of_modulus(int(block.value)) if modular else str(block.value)]

  return ','.join(sorted(set(constants(call.argument[1]))))


def _bits_of_modulus(modulus):
  """b of 2^b."""
  bits = modulus.bit_length() - 1
  return str(bits) if modulus == 2**bits else f'log2({modulus})'


def _travelling_type(argument_type: tff.Type) -> tff.Type:
  """The member type of what the clients contribute: the intrinsic's argument, or its first part."""
  if isinstance(argument_type, tff.StructType) and len(argument_type):
    argument_type = argument_type[0]
  return getattr(argument_type, 'member', argument_type)


def check(computation: tff.Computation, fields: Sequence[uplink.UplinkField]) -> int:
  """Checks that `computation` sends exactly `fields`, and only computes besides.

  What it returns of clients is `local` alone, what they keep: whoever calls it sees the rest. Of no
  value less is said to be seen than what carries it shows.

  Returns:
    How many bytes it broadcasts to each client, constants of the aggregation included.

  Raises:
    UndeclaredUplinkError: If it sends something else, or shows more of it.
    operations.OperationError: If it does something else.
  """
  calls = _checked(computation)
  compiled = collections.Counter(_edges(calls))
  declared = collections.Counter(
      Edge(f.intrinsic, f.type_spec, str(f.bitwidth or '')) for f in fields
  )
  undeclared, missing = compiled - declared, declared - compiled
  if undeclared or missing:
    raise UndeclaredUplinkError(
        'The computation and its uplink specification differ.'
        + ''.join(f'\n  sent, not declared: {_text(e)}' for e in undeclared.elements())
        + ''.join(f'\n  declared, not sent: {_text(e)}' for e in missing.elements())
    )
  for field in fields:
    _require_shown(field)
  return sum(
      uplink.num_bytes(call.argument.type_signature.member)
      for call in calls
      if call.function.uri == _BROADCAST
  )


def _require_shown(field):
  shown = SUMS.get(field.intrinsic)
  if field.disclosure.shows_single_clients or (shown and field.disclosure is uplink.Disclosure.SUM):
    return
  if shown is None or not shown.is_secure_sum:
    raise UndeclaredUplinkError(
        f'{field.name!r} is declared as {field.disclosure.value!r}, and {field.intrinsic} shows '
        'more'
    )
  if field.disclosure is uplink.Disclosure.DP_SECURE_SUM and field.protection is None:
    raise UndeclaredUplinkError(
        f'{field.name!r} is declared as {field.disclosure.value!r}, and nothing protects it'
    )


# Of the computations of a method: each is checked when it is composed, and when it is to run.
@functools.lru_cache(8)
def _checked(computation):
  """The intrinsics of what sends nothing on other ways than by these."""
  operations.check(computation)
  _check_result(computation.type_signature.result)
  return tuple(_intrinsics(computation))


def _check_result(result):
  parts = [(None, result)]
  if isinstance(result, tff.StructType):
    parts = tff.structure.iter_elements(result)
  for name, part in parts:
    if name == 'local':
      if not _is_kept(part):
        raise UndeclaredUplinkError(f'The result `local` has to be what clients keep, is {part}')
    elif tff.types.contains(part, lambda t: getattr(t, 'placement', None) is tff.CLIENTS):
      raise UndeclaredUplinkError(f'The computation returns values of single clients: {part}')


def _is_kept(local):
  return (
      isinstance(local, tff.FederatedType) and local.placement is tff.CLIENTS
      and isinstance(local.member, tff.StructType)
      and [name for name, _ in tff.structure.iter_elements(local.member)] == list(
          uplink.ReturnedState._fields
      )
  )


def _text(edge):
  bits = f' in {edge.bitwidth} bits' if edge.bitwidth else ''
  return f'{edge.intrinsic} {edge.type_spec}{bits}'
