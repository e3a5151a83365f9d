"""The static audit of a method: what its compiled computations send, against what it declares."""

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow_federated as tff

from tff_noise.audit import finding
from tff_noise.federated import disclosure
from tff_noise.federated import uplink
from tff_noise.methods import method
from tff_noise.privacy import ledger
from tff_noise.report import blocks
from tff_noise.report import sections

_LIMITS = (
    'The walk over the compiled computation proves through which intrinsic each value of which '
    'type goes to the server, and that nothing else does; an intrinsic that it does not know '
    'counts as a release. It does not prove what a value means: labels packed into an update would '
    'look like an update. What flips labels is looked at by the empirical audit (--mechanism). '
    'How large cohorts are, and how often values are sent, is in the ledger of a run (--run_dir).'
)


class Computation(NamedTuple):
  """A computation in which clients send something.

  Attributes:
    computation: What runs.
    fields: What it was declared to send.
  """

  computation: tff.Computation
  fields: tuple[uplink.UplinkField, ...]


def of_schedule(schedule: method.Schedule) -> dict[str, Computation]:
  """Returns every computation of a method in which clients take part, by what it is."""
  found = {
      name: Computation(exchange.computation, exchange.fields)
      for name, exchange in schedule.exchanges.items()
  }
  for stage in schedule.stages:
    if stage.poll is not None:
      found[f'asking candidates in {stage.name}'] = Computation(*stage.poll[:2])
    process = stage.round_process
    found[f'a round of {stage.name}'] = Computation(process.process.next, process.fields)
  return found


def check(name: str, computation: Computation) -> finding.Finding:
  """Holds a compiled computation against its declaration."""
  test = f'{name}: sends what is declared, and nothing else'
  try:
    disclosure.check(computation.computation, computation.fields)
  except disclosure.UndeclaredUplinkError as error:
    return finding.failed(test, str(error))
  edges = disclosure.client_to_server_edges(computation.computation)
  return finding.passed(test, f'{len(edges)} values, each as declared')


def planned(schedule: method.Schedule, num_clients: int) -> list[ledger.Entry]:
  """Returns the ledger of a whole run, in which every exchange happens once."""
  book = ledger.Ledger(schedule.fields, uplink.to_json(schedule.fields))
  everybody = range(num_clients)
  for name, exchange in schedule.exchanges.items():
    book.record(1, name, exchange.fields, everybody)
  stages = [stage for stage in schedule.stages for _ in range(stage.rounds)]
  for round_num, stage in enumerate(stages, 1):
    book.record(round_num, stage.name, stage.fields, everybody)
  return list(book.entries)


def audit(
    title: str,
    schedule: method.Schedule,
    num_clients: int,
    delta: float,
    about: Mapping[str, str],
) -> finding.Audit:
  """Audits a method without running it.

  Args:
    title: Of the audit.
    schedule: The method.
    num_clients: C.
    delta: Of Gaussian mechanisms and central bounds, in (0, 1).
    about: What was audited, by name.
  """
  found = of_schedule(schedule)
  declared = uplink.to_json(schedule.fields)
  privacy = ledger.to_json(planned(schedule, num_clients), declared, delta)
  edges = {name: disclosure.client_to_server_edges(c.computation) for name, c in found.items()}
  return finding.Audit(
      title,
      tuple(check(name, computation) for name, computation in found.items()),
      (
          finding.about({**about, 'delta': f'{delta:g}'}),
          sections.Built('What may leave a client', (sections.uplink_table(declared),)),
          sections.Built(
              'What the compiled computations send', (_edge_table(edges), blocks.Text(_LIMITS))
          ),
          sections.Built('What a whole run costs', tuple(sections.privacy_blocks(privacy))),
      ),
      {
          'declared': declared,
          'edges': {name: [edge._asdict() for edge in e] for name, e in edges.items()},
          'privacy': privacy,
      },
  )


def _edge_table(edges: Mapping[str, tuple[disclosure.Edge, ...]]) -> blocks.Table:
  rows = []
  for name, sent in edges.items():
    rows += [(name, e.intrinsic, e.bitwidth or '–', _shortened(e.type_spec)) for e in sent]
    if not sent:
      rows.append((name, '–', '–', 'nothing'))
  return blocks.Table(('computation', 'intrinsic', 'bits', 'type'), rows)


def _shortened(type_spec):
  short = sections.short_type(type_spec)
  return type_spec if short == type_spec else blocks.Folded(short, type_spec)
