"""The static audit of a method: what its compiled computations send, against what it declares."""

from collections.abc import Mapping

from tff_noise import types
from tff_noise.algorithms import algorithm as algorithm_lib
from tff_noise.audit import finding
from tff_noise.federated import computation as computation_lib
from tff_noise.privacy import costs as costs_lib
from tff_noise.privacy import ledger
from tff_noise.privacy import protection
from tff_noise.report import blocks
from tff_noise.report import sections
from tff_noise.uplink import disclosure
from tff_noise.uplink import operations
from tff_noise.uplink import uplink

_LIMITS = (
    'The walk over the compiled computation proves through which intrinsic each value of which '
    'type goes to the server, and that nothing else does; an intrinsic that it does not know '
    'counts as a release. It does not prove what a value means: labels packed into an update would '
    'look like an update. What flips labels is looked at by the empirical audit (--mechanism). '
    'How large cohorts that depend on data become, and how often values are sent, is in the ledger '
    'of a run (--run_dir).'
)


def check(computation: computation_lib.Computation) -> finding.Finding:
  """Holds a compiled computation against its declaration."""
  test = f'{computation.name}: sends what is declared, and nothing else'
  try:
    disclosure.check(computation.next, computation.fields)
  except (disclosure.UndeclaredUplinkError, operations.OperationError) as error:
    return finding.failed(test, str(error))
  edges = disclosure.client_to_server_edges(computation.next)
  return finding.passed(test, f'{len(edges)} values, each as declared')


def check_cohort(computation: computation_lib.Computation, num_clients: int) -> finding.Finding:
  """Says whether a secure sum may be over one client; `num_clients` take part at least."""
  test = f'{computation.name}: no secure sum is over one client, whose value it would show'
  try:
    computation.require_company(num_clients)
  except types.UsageError as error:
    return finding.failed(test, str(error))
  return finding.passed(test, f'{num_clients} clients at least, as far as is known before a run')


def planned(algorithm: algorithm_lib.Algorithm, num_clients: int) -> list[ledger.Entry]:
  """Returns the ledger of a whole run in which everything that may happen does, with everybody."""
  book = ledger.Ledger(algorithm.fields, uplink.to_json(algorithm.fields))
  for computation in algorithm.computations:
    # Noise is on what each round releases: what a method says of itself counts for nothing there.
    rounds = algorithm.rounds
    if not computation.is_noisy:
      rounds = min(rounds, algorithm.times.get(computation.name, rounds))
    for round_num in range(rounds):
      book.record(round_num + 1, computation.name, computation.released, range(num_clients))
  return list(book.entries)


def audit(
    title: str,
    algorithm: algorithm_lib.Algorithm,
    units: Mapping[protection.Unit, int],
    cohorts: Mapping[str, int],
    delta: float,
    about: Mapping[str, str],
) -> finding.Audit:
  """Audits a method without running it.

  Args:
    title: Of the audit.
    algorithm: The method.
    units: How many there are of each, clients at least.
    cohorts: By name of a computation, over how few clients it may be.
    delta: Of Gaussian mechanisms and central bounds, in (0, 1).
    about: What was audited, by name.
  """
  declared = uplink.to_json(algorithm.fields)
  privacy = costs_lib.to_json(
      planned(algorithm, units[protection.Unit.CLIENT]), declared, delta, units
  )
  edges = {c.name: disclosure.client_to_server_edges(c.next) for c in algorithm.computations}
  return finding.Audit(
      title,
      (
          *map(check, algorithm.computations),
          *(check_cohort(c, cohorts[c.name]) for c in algorithm.used),
      ),
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
