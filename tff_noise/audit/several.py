"""The audit of several runs on the same clients' data: their ledgers, and what all cost together.

As that of one run, what comes of it can be handed to an auditor outside: runs have numbers in place
of the names of their directories, which have the seed in them.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tff_noise import types
from tff_noise.audit import export
from tff_noise.audit import finding
from tff_noise.audit import runs as audit_runs
from tff_noise.data import scene as scene_lib
from tff_noise.privacy import costs as costs_lib
from tff_noise.privacy import exposure
from tff_noise.privacy import ledger
from tff_noise.privacy import protection
from tff_noise.privacy import rounding
from tff_noise.privacy import several_runs
from tff_noise.program import code_version
from tff_noise.program import ledger_seal
from tff_noise.program import run_directory
from tff_noise.program import summary
from tff_noise.report import blocks
from tff_noise.report import runs as report_runs
from tff_noise.report import sections

_NOISE = 'noise: no two runs drew the same'
_LABELS = 'label reports: no random number answered for two labels'
_REPEATED = (
    ': the same flags, code and data. Where both released the same to the last digit, name one of '
    'them; otherwise the noise can be taken off'
)
_BROKEN = 'A run fails what is asked of it alone: nothing is added up.'
_LIMITS = (
    'Runs that are not named are not in it; whether each sent what it declares is what --run_dir '
    'looks at. A run may depend on what earlier ones released, as in tuning. Which runs there are, '
    'how long they are and with how much noise has to be settled before the first: where that was '
    'decided on the way, the sums are no guarantee.'
)
_ADDED = (
    'Added: the epsilons of the mechanisms of each run, of noisy sums at equal parts of delta. '
    'Composed: the distributions of their privacy losses, convolved. The smaller one is the total.'
)
_POISSON = (
    'Of Poisson samples alone, what a run costs a client is where one is added or removed; what '
    'runs cost together is where one is replaced, which is more.'
)
_CLIENTS = (
    'The clients of these runs differ. Examples and their labels are the same in all of them; for '
    'a client there is a sum over the runs that have it, which leaves out what the other runs '
    'release of its examples.'
)


class Member(NamedTuple):
  """One of the runs.

  Attributes:
    run: It may be finished or not.
    seal: Of its ledger.
    scene: Who holds what.
  """

  run: report_runs.Run
  seal: ledger.Seal
  scene: scene_lib.Scene


def read(path: str) -> Member:
  """Reads one of the runs.

  Raises:
    types.UsageError: If it is no run, has not begun to release, or a file of it is damaged.
  """
  run = report_runs.read_run(path)
  if run.uplink is None:
    raise types.UsageError(f'{run.path} has no uplink.json: what may leave clients is not declared')
  if type(run.flags.get('seed')) is not int:
    raise types.UsageError(f'{run.path} has a config.json without a seed: it is damaged')
  seal = ledger_seal.of_run(run_directory.RunDirectory(run.path))
  return Member(run, seal, report_runs.read_scene(run))


def audit(members: Sequence[Member], delta: float) -> finding.Audit:
  """Audits runs together.

  Args:
    members: At least one.
    delta: Of all of them together, in (0, 1).

  Raises:
    types.UsageError: If they are on different data, or one of them is there twice.
  """
  for member in members[1:]:
    _require_same_data(members[0], member)
  ledgers = [audit_runs.check_ledger(m.run, m.seal) for m in members]
  findings = [
      f._replace(name=f'run {i}: {f.name}')
      for i, checked in enumerate(ledgers, 1) for f in checked.findings
  ]
  title = f'Audit of {len(members)} runs together'
  about = finding.about({**_about(members), 'delta': f'{delta:g}'})
  content = {'runs': [c.content(m.run, m.seal) for c, m in zip(ledgers, members, strict=True)]}
  if any(f.verdict is finding.Verdict.FAILED for f in findings):
    alone = sections.Built('What the runs cost together', (blocks.Text(_BROKEN, 'warning'),))
    return finding.Audit(
        title, tuple(findings), (about, alone), content, export.files((), ())
    )
  _require_once(members, ledgers)
  known = [_known(m, c) for m, c in zip(members, ledgers, strict=True)]
  together = [
      (each.runs, each.exposure, each.exposure.total(delta))
      for each in several_runs.exposed(known)
  ]
  exposed = [
      export.Exposed(_name(runs, unit, len(members)), unit, total.cost)
      for runs, unit, total in together
  ]
  curves = export.curves(exposed, delta)
  evidence = (
      about,
      sections.Built('What each run costs', _alone(members, ledgers, delta)),
      sections.Built(
          'What the runs cost together',
          (*_large_deltas(members, together), *_together(known, together, delta)),
      ),
      export.section(curves),
  )
  findings += [
      _pairs(_NOISE, several_runs.same_noise(known), _REPEATED),
      _pairs(_LABELS, several_runs.two_labels(known), ''),
  ]
  content = {
      **content, 'delta': delta, 'together': [_to_json(*each) for each in together]
  }
  return finding.Audit(
      title, tuple(findings), evidence, content, export.files(exposed, curves)
  )


def _require_same_data(first, other):
  """Of which the same images are in the same places."""
  ours, theirs = first.scene.clean_label, other.scene.clean_label
  images = [m.run.inputs.get('training images') for m in (first, other)]
  if not np.array_equal(ours, theirs) or images[0] != images[1]:
    raise types.UsageError(
        f'--runs: {other.run.path} is on other data ({other.run.flags.get("dataset")}, '
        f'{len(theirs)} examples) than {first.run.path} ({first.run.flags.get("dataset")}, '
        f'{len(ours)}): what they cost is about other people and cannot be added up; give the '
        'runs of one data set'
    )


def _require_once(members, ledgers):
  """A copy of a run releases nothing; that went on by itself it shares its secrets, a finding."""
  for i, (member, checked) in enumerate(zip(members, ledgers, strict=True)):
    for k in range(i):
      # Without hashes: what a longer run took over is under a configuration of its own.
      lines = ([line.content for line in each.lines] for each in (checked, ledgers[k]))
      short, long = sorted(lines, key=len)
      if member.seal.key == members[k].seal.key and long[: len(short)] == short:
        raise types.UsageError(
            f'--runs: {members[k].run.path} and {member.run.path} are one run; give the one whose '
            'ledger is longer'
        )


def _known(member, checked):
  return several_runs.Run(
      costs_lib.times(checked.entries, member.run.uplink),
      int(member.run.flags['seed']),
      member.scene.client_of,
      member.scene.noisy_label,
      _noise(member, checked),
      ledger.codes(checked.lines, member.seal),
  )


def _noise(member, checked):
  """What the noise was keyed by, see `noise_secret.name`; all runs without a name share one.

  By what was declared: what is claimed of noise may be less than that there is some.
  """
  declared = [protection.from_json(field['protection']) for field in member.run.uplink]
  released = {declared[i] for entry in checked.entries for i in entry.fields}
  if not any(isinstance(p, protection.NoisySum) for p in released):
    return frozenset()
  codes = ledger.codes(checked.lines, member.seal)
  return frozenset((member.run.noise, code) for code in codes)


def _about(members):
  """The flags that all runs have, and the others of each."""
  flags = [audit_runs.public_flags(m.run) for m in members]
  common = set.intersection(*map(set, flags))
  common = {flag for flag in common if not flag.endswith(audit_runs.A_FILE)}
  found = {'flags of all runs': shlex.join(sorted(common))}
  for i, (member, own) in enumerate(zip(members, flags, strict=True), 1):
    found[f'run {i}'] = '; '.join([
        f'{member.seal.run[:16]}..., the commitment to its configuration and scene',
        f'made by code {member.run.code or "unknown"}',
        shlex.join(flag for flag in own if flag not in common) or 'no other flags',
    ])
  return {**found, 'audited by code': code_version.digest()}


def _name(runs, unit, count):
  if len(runs) == count:
    return unit.unit.value
  return f'{unit.unit.value} of {_numbers(runs)}'


def _numbers(runs):
  numbers = [str(i + 1) for i in runs]
  if len(numbers) == 1:
    return f'run {numbers[0]}'
  return f'runs {", ".join(numbers[:-1])} and {numbers[-1]}'


def _alone(members, ledgers, delta):
  rows = []
  for i, (member, checked) in enumerate(zip(members, ledgers, strict=True), 1):
    codes = len(ledger.codes(checked.lines, member.seal))
    costs = costs_lib.totals(checked.entries, member.run.uplink, delta, codes)
    rows.append((
        str(i), str(len(member.run.rounds)), str(len(checked.entries)),
        *(_epsilon(cost) for cost in costs.values()),
    ))
  header = ('run', 'rounds', 'exchanges', *(f'epsilon, {u.value}' for u in protection.Unit))
  remarks = [
      blocks.Text(f'Run {i} {text}.', 'warning')
      for i, member in enumerate(members, 1) for text in audit_runs.not_covered(member.run)
  ]
  poisson = any(
      protection.is_poisson(p)
      for m, c in zip(members, ledgers, strict=True)
      for p in costs_lib.times(c.entries, m.run.uplink)
  )
  if poisson:
    remarks.append(blocks.Text(_POISSON))
  return (blocks.Table(header, rows), *remarks)


def _large_deltas(members, together):
  """Warnings, of each unit once, by the run that has most of them."""
  found = {}
  for runs, unit, total in together:
    most = max(summary.units(members[i].scene)[unit.unit] for i in runs)
    for text in costs_lib.large_deltas({unit.unit: total.cost}, {unit.unit: most}):
      found[text] = blocks.Text(text, 'warning')
  return tuple(found.values())


def _together(known, together, delta):
  shown = [blocks.Text(_statement(unit, runs, total, len(known)), 'notice')
           for runs, unit, total in together]
  header = ('unit', 'runs', 'reports of a label', 'added', 'composed', 'total is', 'status')
  rows = [
      (
          unit.unit.value,
          ', '.join(str(i + 1) for i in runs),
          ', '.join(f'{n} at {m.epsilon}' for m, n in unit.reports.items()) or '–',
          rounding.up(total.added),
          '–' if total.composed is None else rounding.up(total.composed),
          '–' if unit.flaw else total.how,
          total.cost.status.value,
      )
      for runs, unit, total in together
  ]
  shown += [blocks.Table(header, rows), blocks.Text(f'{_ADDED} At delta {delta:g}.')]
  if len(several_runs.same_clients(known)) > 1:
    shown.append(blocks.Text(_CLIENTS))
  shown += [
      blocks.Text(
          f'{_numbers(group).capitalize()} have one seed and so the same cohorts: for these no '
          'protection by sampling is counted. Their reports of an example are one if its client, '
          'its label, the mechanism and the code are the same.'
      )
      for group in several_runs.same_seed(known)
  ]
  return (*shown, blocks.Text(_LIMITS))


def _statement(unit, runs, total, count):
  whose = 'All runs together' if len(runs) == count else f'{_numbers(runs).capitalize()} alone'
  if unit.flaw:
    return f'{whose}: no finite epsilon for {unit.unit.value}; {unit.flaw}.'
  return f'{whose}: epsilon {_epsilon(total.cost)} for {unit.unit.value}.'


def _epsilon(cost):
  if cost.status is protection.Status.NONE:
    return 'none'
  at_delta = f' at delta {cost.delta:g}' if cost.delta else ''
  return f'{rounding.up(cost.epsilon)}{at_delta}'


def _pairs(test, pairs, remark):
  if not pairs:
    return finding.passed(test, 'none')
  return finding.failed(test, '; '.join(_numbers(pair) for pair in pairs) + remark)


def _to_json(
    runs: Sequence[int], unit: exposure.Exposure, total: exposure.Total
) -> Mapping[str, Any]:
  return {
      'runs': [i + 1 for i in runs],
      **costs_lib.cost_to_json(unit.unit, total.cost),
      'how': total.how,
      'added': costs_lib.number_to_json(total.added),
      'composed': None if total.composed is None else costs_lib.number_to_json(total.composed),
      'reports': [{**m._asdict(), 'count': n} for m, n in unit.reports.items()],
      'flaw': unit.flaw,
  }
