"""The audit of a run: its ledger, its totals, and whether this code sends what the run declared.

What comes of it can be handed to an auditor outside: it names neither the seed nor anything else
from which cohorts could be worked out, see `docs/privacy.md`.
"""

import collections
import json
import math
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tff_noise import types
from tff_noise.audit import claimed
from tff_noise.audit import export
from tff_noise.audit import finding
from tff_noise.privacy import costs as costs_lib
from tff_noise.privacy import exposure as exposure_lib
from tff_noise.privacy import ledger
from tff_noise.privacy import protection
from tff_noise.privacy import rounding
from tff_noise.program import code_version
from tff_noise.program import summary
from tff_noise.report import blocks
from tff_noise.report import runs
from tff_noise.report import sections

_CHAIN = (
    'ledger: every entry follows from the one before it, the first from uplink.json, configuration '
    'and scene'
)
_ROUNDS = 'ledger: every round of metrics.csv has its releases'
_ALONE = 'ledger: no secure sum is over one client, whose value it would show'
_TOTALS = 'privacy.json: the totals are those of the ledger'
_BUDGET = 'ledger: what it costs a client is within --target_client_epsilon'
# Of which a sum is claimed to hide single values, as declarations write it (`uplink.Disclosure`).
_SECURE = ('secure sum', 'DP, secure sum')
# What is sent by clients that train, of whom some may be left out of it.
_TRAINED = frozenset({'update', 'rejected'})
_CODE = 'uplink.json: is what this code sends'
_REPLAY = 'replay: the run done again from configuration and scene'
# From the seed, cohorts, flips and noise of a simulation can be worked out; the path of another run
# has the seed of that one in it, which often is the same: that there was a file is shown.
_PATHS = frozenset({'scene', 'weights', 'arrivals'})
A_FILE = '(a file)'


class ByCode(NamedTuple):
  """What this code says of a run.

  Attributes:
    method: The audit of the run's method as this code builds it.
    findings: What was found by doing the run again.
  """

  method: finding.Audit
  findings: tuple[finding.Finding, ...]


def audit(
    run: runs.Run, seal: ledger.Seal, delta: float, code: ByCode | None, why_not: str
) -> finding.Audit:
  """Audits a run.

  Args:
    run: It may be finished or not.
    seal: Of its ledger.
    delta: Of Gaussian mechanisms and central bounds, in (0, 1).
    code: What this code says of it; None if its method cannot be built.
    why_not: Why not.

  Raises:
    types.UsageError: If it has no declaration, or one that cannot be read.
  """
  if run.uplink is None:
    raise types.UsageError(f'{run.path} has no uplink.json: what may leave clients is not declared')
  declared = run.uplink
  title = f'Audit of run {seal.run[:16]}'
  evidence = [
      finding.about({
          'run': f'{seal.run[:16]}..., the commitment to its configuration and scene',
          'flags': shlex.join(public_flags(run)),
          'made by code': run.code or 'unknown',
          'audited by code': code_version.digest(),
          'packages': ', '.join(f'{k} {v}' for k, v in run.versions.items()),
          'delta': f'{delta:g}',
      }),
      sections.Built('What may leave a client', (sections.uplink_table(declared),)),
  ]
  by_code = _by_code(run, declared, code, why_not)
  checked = check_ledger(run, seal)
  findings = (*checked.findings, *by_code)
  if checked.broken:
    content, files = checked.content(run, seal), export.files((), ())
    return finding.Audit(title, findings, tuple(evidence), content, files)
  units = summary.units(runs.read_scene(run))
  codes = len(ledger.codes(checked.lines, seal))
  privacy = costs_lib.to_json(checked.entries, declared, delta, units, codes)
  exposed = _exposed(checked.entries, declared, delta, codes)
  curves = export.curves(exposed, delta)
  remarks = [blocks.Text(f'The run {text}.', 'warning') for text in not_covered(run)]
  evidence += [
      sections.Built(
          'What left the clients, and when',
          (_entries(checked.entries, declared), *_changes(checked.lines, seal)),
      ),
      sections.Built(
          'What the run costs', (*remarks, *sections.privacy_blocks(privacy))
      ),
      export.section(curves),
  ]
  content = {**checked.content(run, seal), 'privacy': privacy}
  return finding.Audit(
      title, findings, tuple(evidence), content, export.files(exposed, curves)
  )


def not_covered(run: runs.Run) -> list[str]:
  """Returns what is no part of what a run's account says that it costs, a sentence each."""
  found = []
  if not run.finished:
    found.append('is not finished: what it goes on to release is not in its account')
  if run.flags.get('weights'):
    found.append(
        "was begun from a given model: what it knows of clients' data is not in its account"
    )
  return found


def without_name(error: Exception, run: runs.Run) -> str:
  """Returns what an error says but the name of the run's directory, which has the seed in it."""
  text = str(error).replace(run.path, '\0')
  for name in _PATHS:
    path = run.flags.get(name)
    if path:  # It may be of another run's folder; a relative one is no part of a longer path.
      text = text.replace(os.path.abspath(os.path.expanduser(path)), f'the file of --{name}')
      text = re.sub(rf'(?<![\w./-]){re.escape(path)}', f'the file of --{name}', text)
  text = text.replace('\0' + os.sep, '').replace('\0', 'the run')
  return text.replace(f'run {run.name} ', 'the run ')


def public_flags(run: runs.Run) -> list[str]:
  """Returns the flags of a run that may be shown to anybody, in the order of their names."""
  shown = {k: v for k, v in run.flags.items() if k != 'seed' and k not in _PATHS}
  shown |= {k: _file_or_rule(run.flags[k]) for k in _PATHS if run.flags.get(k)}
  return [f'--{k}={v}' for k, v in sorted(shown.items())]


def _file_or_rule(value):
  """A path, but of --arrivals, which may be drawn by a rule."""
  return value if str(value).startswith('uniform:') else A_FILE


class Checked(NamedTuple):
  """A ledger that was read.

  Attributes:
    findings: What was found.
    broken: Whether it is not what the run wrote; it has no lines then.
    lines: Its lines.
    head: The hash of the last one, '' if it is broken.
  """

  findings: tuple[finding.Finding, ...]
  broken: bool
  lines: Sequence[ledger.Line]
  head: str

  @property
  def entries(self) -> list[ledger.Entry]:
    """Its entries."""
    return ledger.entries(self.lines)

  def content(self, run: runs.Run, seal: ledger.Seal) -> dict[str, Any]:
    """Returns what an auditor follows its chain by, as JSON has it."""
    public = {'declared': run.uplink, 'seal': seal.public}
    if self.broken:
      return public
    entries = [line.content._asdict() for line in self.lines]
    return {**public, 'entries': entries, 'head': self.head}


def check_ledger(run: runs.Run, seal: ledger.Seal) -> Checked:
  """Follows the chain of a run's ledger, and compares it with what else the run left.

  Args:
    run: With a declaration.
    seal: Of its ledger.

  Raises:
    types.UsageError: If the declaration does not say what protects its values.
  """
  try:
    lines = ledger.read_lines(os.path.join(run.path, 'ledger.jsonl'), run.uplink, seal)
  except ledger.LedgerError as error:
    broken = finding.failed(_CHAIN, without_name(error, run))
    return Checked((broken,), True, (), '')
  head = lines[-1].head if lines else ledger.genesis(run.uplink, seal)
  entries = ledger.entries(lines)
  codes = len(ledger.codes(lines, seal))
  scene = runs.read_scene(run)
  units = summary.units(scene)
  findings = (
      finding.passed(_CHAIN, f'{len(entries)} entries, the last with hash {head[:16]}...'),
      claimed.check(run, scene),
      _rounds(run, entries),
      _alone(run, lines),
      _totals(run, entries, run.uplink, units, codes),
      *_budget(run, entries, run.uplink, codes),
  )
  return Checked(findings, False, lines, head)


def _exposed(entries, declared, delta, codes):
  """What each unit is exposed to, with what the run is said to cost it."""
  times = costs_lib.times(entries, declared)
  costs = costs_lib.totals(entries, declared, delta, codes)
  exposed = []
  for unit, cost in costs.items():
    name, exposure = unit.value, exposure_lib.of_run(times, unit, codes)
    if protection.neighbours(times, unit) != 'replaced':
      name, cost = f'{name}, replaced', exposure.total(delta).cost
    exposed.append(export.Exposed(name, exposure, cost))
  return exposed


def _rounds(run, entries):
  recorded = {entry.round_num for entry in entries}
  missing = [i for i, r in enumerate(run.rounds) if int(r) not in recorded]
  # In some rounds of some methods nobody is asked: of RHFL where no two of a cohort are alike.
  asked = sum(run.metrics.get(name, np.ones(len(run.rounds))) for name in ('clients', 'bytes_up'))
  for i in missing:
    if asked[i]:
      return finding.failed(_ROUNDS, f'round {int(run.rounds[i])} has none')
  if missing:
    return finding.no_evidence(
        _ROUNDS, f'nobody was asked in {len(missing)} rounds, as metrics.csv has it'
    )
  if not len(run.rounds):
    return finding.no_evidence(_ROUNDS, 'no round is done')
  return finding.passed(_ROUNDS, f'{len(run.rounds)} rounds')


def _alone(run, lines):
  rejected = _rejected(run)
  entries, unsure = ledger.entries(lines), ''
  counted = _training_of_rows(run, lines)
  together = collections.Counter(entries[i].round_num for i in counted)
  for i, entry in enumerate(entries):
    shown = [run.uplink[i]['name'] for i in entry.fields if not _hides_one(run.uplink[i])]
    if not shown:
      continue
    where = f'in round {entry.round_num}'
    if entry.clients == 1:
      return finding.failed(_ALONE, f'{where} one client sent: {", ".join(shown)}')
    left = entry.clients - rejected.get(entry.round_num, 0)
    if i not in counted or left == entry.clients:
      continue
    if together[entry.round_num] == 1 and left == 1:
      return finding.failed(_ALONE, f'{where} the updates of all clients but one were rejected')
    if together[entry.round_num] > 1 and left <= 1:
      unsure = f'{where} several groups trained, and nobody can tell whose updates were rejected'
  if unsure:
    return finding.no_evidence(_ALONE, unsure)
  return finding.passed(_ALONE, f'{len(entries)} exchanges')


def _training_of_rows(run, lines):
  """Positions of entries in which clients trained, of rounds as metrics.csv has them: done last."""
  found, position, anew = {}, 0, False
  for line in lines:
    if isinstance(line.content, ledger.CodeChange):
      anew = True
    elif isinstance(line.content, ledger.Entry):
      entry = line.content
      if anew:
        found = {r: of_round for r, of_round in found.items() if r < entry.round_num}
        anew = False
      if _TRAINED & {run.uplink[i]['name'] for i in entry.fields}:
        found.setdefault(entry.round_num, set()).add(position)
      position += 1
  return set().union(*found.values())


def _rejected(run):
  """How many clients' updates were rejected, by round, where some were."""
  rejected = run.metrics.get('rejected', np.zeros(len(run.rounds)))
  return dict(zip(run.rounds[rejected > 0], rejected[rejected > 0], strict=True))


def _hides_one(field):
  """Of which no secure sum is claimed; or one whose noise is that of any number of clients."""
  protected = protection.from_json(field.get('protection'))
  return field['disclosure'] not in _SECURE or protection.is_poisson(protected)


def _budget(run, entries, declared, codes):
  """Nothing of a run without one; at the delta that a budget is for."""
  target = run.flags.get('target_client_epsilon')
  if target is None:
    return []
  costs = costs_lib.totals(entries, declared, codes=codes)
  epsilon = costs[protection.Unit.CLIENT].epsilon
  found = finding.passed if epsilon <= target else finding.failed
  return [found(
      _BUDGET, f'epsilon {rounding.up(epsilon)} of {target:g} at delta {costs_lib.DELTA:g}'
  )]


def _totals(run, entries, declared, units, codes):
  """Recomputed at the delta they were written with."""
  if run.privacy is None:
    return finding.no_evidence(_TOTALS, 'the run is not finished and has no privacy.json')
  expected = costs_lib.to_json(entries, declared, units=units, codes=codes)
  expected = json.loads(json.dumps(expected))
  for name in sorted(expected.keys() | run.privacy.keys()):
    if not _close(run.privacy.get(name), expected.get(name)):
      other = '' if _same_code(run) else '; other code wrote it, whose words may differ'
      return finding.failed(_TOTALS, f'its {name} are not those of the ledger{other}')
  costs = [
      f'{t["epsilon"]} for {t["unit"]}' + (f' at delta {t["delta"]:g}' if t['delta'] else '')
      for t in expected['totals']
  ]
  return finding.passed(_TOTALS, 'epsilon ' + ', '.join(costs))


def _close(a, b):
  """Equal but for the last digits, in which another machine may differ."""
  if isinstance(a, Mapping) and isinstance(b, Mapping):
    return a.keys() == b.keys() and all(_close(a[k], b[k]) for k in a)
  if isinstance(a, list) and isinstance(b, list):
    return len(a) == len(b) and all(map(_close, a, b))
  if isinstance(a, float) and isinstance(b, float):
    return math.isclose(a, b, rel_tol=1e-9)
  return a == b


def _by_code(run, declared, code, why_not):
  """What this code would send."""
  if code is None:
    return finding.no_evidence(_CODE, why_not), finding.no_evidence(_REPLAY, why_not)
  now, more = code.method.content['declared'], (*code.method.findings, *code.findings)
  if now != declared:
    return finding.failed(_CODE, _difference(now, declared)), *more
  remark = 'the code that made the run' if _same_code(run) else 'not the code that made the run'
  return finding.passed(_CODE, f'{len(declared)} values; {remark}'), *more


def _same_code(run):
  return run.code == code_version.digest()


def _difference(now: Sequence[Mapping[str, Any]], then: Sequence[Mapping[str, Any]]) -> str:
  new = [field['name'] for field in now if field not in then]
  gone = [str(field.get('name')) for field in then if field not in now]
  parts = [f'{what}: {", ".join(names)}' for what, names in (
      ('this code sends what the run did not declare', new),
      ('the run declares what this code does not send', gone),
  ) if names]
  return '; '.join(parts) or 'the same values in another order'


def _changes(lines, seal):
  """A sentence for each time that rounds since a checkpoint were not repeated, but done anew."""
  shown, code = [], seal.code
  for i, line in enumerate(lines, 1):
    if isinstance(line.content, ledger.CodeChange):
      other = line.content.code
      if other == code:
        why = (
            f'Resumed from entry {i} on, where rounds do not repeat to the bit, or a state from '
            'before the last change was gone back to.'
        )
      else:
        why = f'Resumed with other code: other code made the run from entry {i} on: {other}.'
      shown.append(blocks.Text(
          f'{why} What was released since the checkpoint before that counts twice.', 'warning'
      ))
      code = other
  return shown


def _entries(entries, declared):
  """One row for each kind of exchange."""
  kinds = {}
  for entry in entries:
    kinds.setdefault((entry.stage, entry.fields), []).append(entry)
  rows = []
  for (stage, fields), made in kinds.items():
    clients = sorted({entry.clients for entry in made})
    cohorts = len({entry.cohort for entry in made})
    rows.append((
        stage,
        ', '.join(declared[i]['name'] for i in fields),
        f'{made[0].round_num} to {made[-1].round_num}',
        str(len(made)),
        f'{clients[0]} to {clients[-1]}' if len(clients) > 1 else str(clients[0]),
        str(cohorts),
    ))
  header = ('stage', 'values', 'rounds', 'times', 'clients', 'different cohorts')
  return blocks.Table(header, rows)
