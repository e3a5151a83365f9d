"""What the releases that a ledger tells of cost, each and all together, and what may be claimed."""

import collections
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tff_noise.privacy import amplification
from tff_noise.privacy import ledger
from tff_noise.privacy import protection as protection_lib
from tff_noise.privacy import rounding

# The usual choice; it should be well below one over the number of units.
DELTA = 1e-5
# `uplink.Disclosure.PER_CLIENT` and `OTHER_CLIENTS`, as declarations write them.
_PER_CLIENT, _OTHER_CLIENTS = 'per client', 'other clients'

_SIMULATION = (
    'This is a simulation: secure sums run as plain sums, which shows the data flow and not the '
    'cryptography, and flips are drawn from the seed, as noise is unless its release says '
    'otherwise, which protects nobody.'
)
_LABEL_SHARING = (
    'Theorem 1 of FedDPCont covers the label sharing only; with the contrastive loss, the bias of '
    'the last layer gives the label histogram of a client away.'
)
_NO_LABEL_GUARANTEE = (
    'The model updates are trained on the true local labels and carry no label-DP guarantee, '
    'so the run as a whole has no finite label epsilon.'
)
_SEVERAL_CODES = (
    'Labels were reported to several codes, which may flip otherwise by the same random number, so '
    'the run as a whole has no finite label epsilon.'
)
_CENTRAL = (
    'of this sum alone, not of the run, for one who sees nothing else that was computed from the '
    'same labels; the sum has to be securely aggregated, over this cohort and no other'
)


class Release(NamedTuple):
  """All releases of one declared value.

  Attributes:
    field: What it is, an entry of `uplink.json`.
    protection: What protects it.
    times: In how many exchanges.
    unit: What the cost is about, the coarsest that the protection covers.
    cost: All repetitions included.
    central: Bounds of what the sum alone costs, if it is securely aggregated over a fixed cohort
      and nothing else of the same labels is released; None where there is no such sum.
  """

  field: Mapping[str, Any]
  protection: protection_lib.Protection
  times: int
  unit: protection_lib.Unit
  cost: protection_lib.Cost
  central: amplification.CentralEpsilon | None


def releases(
    entries: Sequence[ledger.Entry],
    declared: Sequence[Mapping[str, Any]],
    delta: float = DELTA,
    codes: int = 1,
) -> list[Release]:
  """Returns what was released, in the order of the declaration.

  Args:
    entries: Of the ledger.
    declared: The content of `uplink.json`.
    delta: Of each Gaussian mechanism and of central bounds, in (0, 1).
    codes: How many codes made the run, see `ledger.codes`.

  Raises:
    ledger.LedgerError: If the declaration does not say what protects its values.
  """
  found = []
  for i, (field, protection) in enumerate(zip(declared, _protections(declared), strict=True)):
    made = [entry for entry in entries if i in entry.fields]
    if made:
      protection = protection_lib.with_clients(protection, min(entry.clients for entry in made))
      protection = protection_lib.in_rounds(protection, [entry.round_num for entry in made])
      unit = protection_lib.own_unit(protection)
      cost = protection_lib.cost(protection, len(made), unit, delta, codes)
      central = _central(protection, made, delta, codes)
      found.append(Release(field, protection, len(made), unit, cost, central))
  return found


def _protections(declared):
  try:
    return [protection_lib.from_json(field['protection']) for field in declared]
  except (KeyError, ValueError) as error:
    raise ledger.LedgerError(
        f'uplink.json does not say what protects the values it declares ({error!r})'
    ) from error


def _central(protection, made, delta, codes):
  if not isinstance(protection, protection_lib.LabelReports) or not protection.num_labels:
    return None
  # The difference of the sums of two cohorts shows the reports of those that are in one alone, and
  # two sums of one cohort, flipped by two codes, are no memoised one.
  if len({entry.cohort for entry in made}) > 1 or codes > 1:
    return None
  return amplification.central_epsilon(protection.mechanism, protection.num_labels, delta)


def times(
    entries: Sequence[ledger.Entry], declared: Sequence[Mapping[str, Any]]
) -> dict[protection_lib.Protection, int]:
  """Returns in how many exchanges values were released under each protection.

  Raises:
    ledger.LedgerError: If the declaration does not say what protects its values.
  """
  protections = _protections(declared)
  rounds = collections.defaultdict(list)
  for entry in entries:
    released = {protection_lib.with_clients(protections[i], entry.clients) for i in entry.fields}
    for protection in released:
      rounds[protection].append(entry.round_num)
  made = collections.Counter()
  for protection, numbers in rounds.items():
    made[protection_lib.in_rounds(protection, numbers)] += len(numbers)
  return dict(made)


def totals(
    entries: Sequence[ledger.Entry],
    declared: Sequence[Mapping[str, Any]],
    delta: float = DELTA,
    codes: int = 1,
) -> dict[protection_lib.Unit, protection_lib.Cost]:
  """Returns what the whole run costs, for each unit; units are never added.

  Args:
    entries: Of the ledger.
    declared: The content of `uplink.json`.
    delta: Of all Gaussian mechanisms together, in (0, 1).
    codes: How many codes made the run, see `ledger.codes`.

  Raises:
    ledger.LedgerError: If the declaration does not say what protects its values.
  """
  made = times(entries, declared)
  return {unit: protection_lib.total(made, unit, delta, codes) for unit in protection_lib.Unit}


def statement(
    found: Sequence[Release],
    costs: Mapping[protection_lib.Unit, protection_lib.Cost],
    units: Mapping[protection_lib.Unit, int] = {},
) -> str:
  """Returns what the run may and may not claim, in plain words.

  Args:
    found: What was released.
    costs: What all of it costs each unit.
    units: How many there are of each unit, where that is known.
  """
  said = []
  for unit, cost in costs.items():
    if cost.status is not protection_lib.Status.NONE:
      at_delta = f' at delta {cost.delta:g}' if cost.delta else ''
      neighbours = protection_lib.neighbours((r.protection for r in found), unit)
      who = unit.value if neighbours == 'replaced' else f'{unit.value}, {neighbours},'
      said.append(f'The whole run costs {who} epsilon {rounding.up(cost.epsilon)}{at_delta}.')
  said += large_deltas(costs, units)
  if costs[protection_lib.Unit.LABEL].status is protection_lib.Status.NONE:
    said += _no_label_guarantee(found)
  alone = [r.field['name'] for r in found if r.field['disclosure'] == _PER_CLIENT]
  if alone:
    said.append(f'One by one, not in sums, the server sees: {", ".join(alone)}.')
  passed_on = [r.field['name'] for r in found if r.field['disclosure'] == _OTHER_CLIENTS]
  if passed_on:
    said.append(f'Other clients see, one by one: {", ".join(passed_on)}.')
  return ' '.join([*said, _SIMULATION])


def _no_label_guarantee(found):
  """Why labels have no finite epsilon."""
  reported = [r for r in found if isinstance(r.protection, protection_lib.LabelReports)]
  bare = [
      r.field['name'] for r in found
      if protection_lib.for_unit(r.protection, protection_lib.Unit.LABEL) is None
  ]
  if not bare:
    return [_SEVERAL_CODES]
  if any(r.field['name'] == 'update' for r in reported):
    return [
        f'Nothing protects labels in: {", ".join(bare)}; so the run as a whole has no finite label '
        'epsilon.'
    ]
  return [*([_LABEL_SHARING] if reported else []), _NO_LABEL_GUARANTEE]


def large_deltas(
    costs: Mapping[protection_lib.Unit, protection_lib.Cost],
    units: Mapping[protection_lib.Unit, int],
) -> list[str]:
  """Returns a sentence for each unit whose delta is at least one over how many there are."""
  return [
      f'WARNING: delta {cost.delta:g} is not below one over the number of {unit.name.lower()}s, '
      f'{units[unit]}: to publish one of them at random would count as private.'
      for unit, cost in costs.items()
      if math.isfinite(cost.epsilon) and cost.delta * units.get(unit, 0) >= 1
  ]


def to_json(
    entries: Sequence[ledger.Entry],
    declared: Sequence[Mapping[str, Any]],
    delta: float = DELTA,
    units: Mapping[protection_lib.Unit, int] = {},
    codes: int = 1,
) -> dict[str, Any]:
  """Returns the content of `privacy.json`; infinity is the text 'inf', as JSON has no other.

  Args:
    entries: Of the ledger.
    declared: The content of `uplink.json`.
    delta: Of each Gaussian mechanism and of central bounds, in (0, 1).
    units: How many there are of each unit, where that is known.
    codes: How many codes made the run, see `ledger.codes`.

  Raises:
    ledger.LedgerError: If the declaration does not say what protects its values.
  """
  found = releases(entries, declared, delta, codes)
  costs = totals(entries, declared, delta, codes)
  return {
      'releases': [
          {
              'name': r.field['name'],
              'recipient': (
                  'other clients' if r.field['disclosure'] == _OTHER_CLIENTS else 'server'
              ),
              'aggregation': r.field['disclosure'],
              'times': r.times,
              **protection_lib.describe(r.protection)._asdict(),
              **cost_to_json(r.unit, r.cost),
              'central_epsilon': r.central and {**r.central._asdict(), 'holds': _CENTRAL},
          }
          for r in found
      ],
      'totals': [cost_to_json(unit, cost) for unit, cost in costs.items()],
      'statement': statement(found, costs, units),
  }


def number_to_json(number: float) -> float | str:
  """Returns a number as JSON has it: infinity as the text 'inf'."""
  return 'inf' if math.isinf(number) else number


def cost_to_json(unit: protection_lib.Unit, cost: protection_lib.Cost) -> dict[str, Any]:
  """Returns what releases cost a unit, as JSON has it."""
  return {
      'unit': unit.value,
      'epsilon': number_to_json(cost.epsilon),
      'delta': cost.delta,
      'status': cost.status.value,
  }
