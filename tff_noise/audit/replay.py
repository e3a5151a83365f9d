"""A run done again without its clients: what its configuration says has to be in its ledger.

Cohorts, stages, exchanges and bytes are functions of the configuration and the scene, as long as a
method does not make them depend on what clients sent. So every round is run with clients that send
ones, and what they are asked for is compared with what the run's files say. What a method worked
out of that itself, such as the clients it takes for noisy, is compared no further than by stage and
values: a cohort counts as decided by the configuration only if it is one that `algorithm.Clients`
gave, as it gave it.
"""

import asyncio
import os
import types as python_types
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow_federated as tff

from tff_noise import types
from tff_noise.algorithms import algorithm as algorithm_lib
from tff_noise.audit import finding
from tff_noise.audit import reports
from tff_noise.federated import task as task_lib
from tff_noise.privacy import ledger
from tff_noise.program import checkpoints
from tff_noise.program import clients as clients_lib
from tff_noise.program import training
from tff_noise.report import runs
from tff_noise.uplink import per_client
from tff_noise.uplink import uplink

_ENTRIES = 'ledger: its entries are those that configuration and scene lead to'
_COLUMNS = ('stage', 'clients', 'rejected', 'bytes_up', 'bytes_down', 'train_loss')
_ROWS = 'metrics.csv: stages, clients and bytes are those of the configuration'
_PARTICIPATIONS = 'clients.csv: clients took part as often as the configuration says'
_ANEW = 'ledger: rounds that were done anew follow from a saved state, and had no noise'
_CHECKPOINTS = 'state: checkpoints are those of the ledger, with their participations'
_CODE = 'ledger: one code made the run, and it is this one'


class Exchange(NamedTuple):
  """What a run has to have asked of clients.

  Attributes:
    entry: Of the ledger.
    decided: Whether configuration and scene alone say who takes part.
    trains: Whether it counts as a participation.
  """

  entry: ledger.Entry
  decided: bool
  trains: bool


class Round(NamedTuple):
  """What a round has to have left.

  Attributes:
    exchanges: In order.
    traffic: What goes into `metrics.csv`.
    participations: int64 `[C]`, up to and with this round.
  """

  exchanges: tuple[Exchange, ...]
  traffic: clients_lib.Traffic
  participations: np.ndarray

  @property
  def decided(self) -> bool:
    """Whether configuration and scene alone say who takes part."""
    return all(e.decided for e in self.exchanges)


class Replayed(NamedTuple):
  """A run done again.

  Attributes:
    rounds: From the first on.
    total: How many rounds the configuration has.
    stopped: Why there are no more, '' if these are all.
  """

  rounds: tuple[Round, ...]
  total: int
  stopped: str = ''


class _Clients(clients_lib.SimulatedClients):
  """Clients that send ones, and remember what they were asked for."""

  def __init__(self, algorithm, *args):
    self._given = {}
    self._decided = False
    self._fields = algorithm.fields
    super().__init__(algorithm, *args)

  def begin_round(self, round_num, stage):
    super().begin_round(round_num, stage)
    self.exchanges = []

  def _give(self, cohort):
    cohort = np.array(cohort)
    cohort.flags.writeable = False
    self._given[id(cohort)] = cohort  # Kept, or its id could be that of another.
    return cohort

  @property
  def everybody(self):
    return self._give(super().everybody)

  @property
  def present(self):
    return self._give(super().present)

  def sample(self, computation, state, among=None, size=None):
    chosen = super().sample(computation, state, among, size)
    chooses = computation.optimizer is not None and computation.optimizer.sampler is not None
    decided = size is None and (among is None or id(among) in self._given) and not chooses
    return self._give(chosen) if decided else chosen

  def train(self, computation, state, cohort, **messages):
    self._decided = id(cohort) in self._given
    return super().train(computation, state, cohort, **messages)

  def run(self, computation, state, cohort, **messages):
    self._decided = id(cohort) in self._given
    if not len(cohort) and not self._decided:
      # What clients really sent may have led to somebody.
      positions = tuple(sorted(self._fields.index(f) for f in computation.released))
      entry = ledger.Entry(self._round_num, self._stage, positions, 0, '')
      self.exchanges.append(Exchange(entry, False, computation.trains))
    return super().run(computation, state, cohort, **messages)

  def _record(self, computation, cohort):
    before = len(self._ledger.entries)
    super()._record(computation, cohort)
    self.exchanges += [
        Exchange(e, self._decided, computation.trains) for e in self._ledger.entries[before:]
    ]

  def _data(self, computation, cohort):
    return []

  def _inputs(self, computation, cohort, messages):
    return []

  def _call(self, computation, cohort, args):
    if computation.on_labels:
      # Reports are functions of the configuration, too, and their number is checked.
      return reports.histogram(self._task, self._federation, cohort)
    result = computation.next.type_signature.result
    types_ = dict(tff.structure.iter_elements(result))
    parts = {
        n: _ones(t.member, cohort) for n, t in types_.items() if n not in ('state', 'local')
    }
    if 'state' not in types_:
      return {**parts, 'local': None}
    return python_types.SimpleNamespace(state=args[0], local=None, **parts)

  def _keep(self, computation, cohort, returned, used):
    pass  # Who sends ones keeps nothing.


def _ones(type_spec, cohort):
  """A value of a type whose open dimensions are the clients of a cohort."""
  ones = tff.types.structure_from_tensor_type_tree(
      lambda t: np.ones([len(cohort) if n is None else n for n in t.shape], t.dtype), type_spec
  )
  return _with_ids(ones, cohort)


def _with_ids(value, cohort):
  if not isinstance(value, dict):
    return value
  value = {name: _with_ids(part, cohort) for name, part in value.items()}
  if per_client.CLIENT in value:
    value[per_client.CLIENT] = np.array(cohort)
  return value


def run(
    algorithm: algorithm_lib.Algorithm,
    task: task_lib.Task,
    federation: types.Federation,
    declared: Sequence[Any],
    seal: ledger.Seal,
) -> Replayed:
  """Runs all rounds of an algorithm with clients that send ones.

  Args:
    algorithm: What ran.
    task: What it was built from.
    federation: Who held what.
    declared: The content of `uplink.json`.
    seal: Of the run's ledger.
  """
  book = ledger.Ledger(algorithm.fields, declared, seal=seal)
  clients = _Clients(algorithm, task, federation, [], book)
  state, rounds = algorithm.init(), []
  while state.round_num < algorithm.rounds:
    try:
      state = training.run_round(algorithm, state, clients)
    except Exception as error:  # What a method says to ones that no client would send.
      why = f'round {state.round_num + 1} needs what clients sent ({error})'
      return Replayed(tuple(rounds), algorithm.rounds, why)
    rounds.append(Round(tuple(clients.exchanges), clients.traffic, clients.participations))
  return Replayed(tuple(rounds), algorithm.rounds)


class _Part(NamedTuple):
  """What a ledger has between changes of the code.

  Attributes:
    code: Whose it is.
    lines: Entries and saved states.
  """

  code: str
  lines: list[ledger.Entry | ledger.SavedState]

  @property
  def entries(self) -> list[ledger.Entry]:
    """What was released."""
    return [line for line in self.lines if isinstance(line, ledger.Entry)]

  @property
  def first(self) -> int:
    """The round that it begins with: one in which nobody is asked leaves a state alone."""
    return self.lines[0].round_num if self.lines else 1


def _runs_of_one_code(lines, seal):
  parts = [_Part(seal.code, [])]
  for line in lines:
    if isinstance(line.content, ledger.CodeChange):
      parts.append(_Part(line.content.code, []))
    else:
      parts[-1].lines.append(line.content)
  return parts


class Compared(NamedTuple):
  """What came of comparing a ledger.

  Attributes:
    different: The first difference, '' if there is none.
    same: How many entries were compared in all they say.
    unseen: How many exchanges have no entry, and may have had nobody: who takes part in them
      follows from what clients sent.
    untrained: In how many of these clients would have trained.
    of_cohort: Whether the first difference is who took part, and nothing else.
  """

  different: str
  same: int
  unseen: int = 0
  untrained: int = 0
  of_cohort: bool = False


def differences(
    replayed: Replayed, entries: Sequence[ledger.Entry], rounds_done: int, first: int = 1
) -> Compared:
  """Compares a ledger without a change of code with what it has to hold.

  Args:
    replayed: The run, done again.
    entries: Of the ledger, from the first entry of some round on.
    rounds_done: Rounds that the run finished.
    first: That round.
  """
  expected = [e for r in replayed.rounds[first - 1 :] for e in r.exchanges]
  last, compared, position, unseen, untrained = len(replayed.rounds), 0, 0, 0, 0
  for exchange in expected:
    entry = entries[position] if position < len(entries) else None
    if entry is None and exchange.entry.round_num > rounds_done:
      break  # Not asked for yet.
    alike = entry is not None and entry[:3] == exchange.entry[:3]
    if exchange.decided and (not alike or entry != exchange.entry):
      different = f'{_place(entry, position)}, expected is {_words(exchange.entry)}'
      of_cohort = entry is not None and entry._replace(cohort='') == exchange.entry._replace(
          cohort=''
      )
      return Compared(different, compared, of_cohort=of_cohort)
    compared += exchange.decided
    unseen += not alike
    untrained += not alike and exchange.trains and exchange.entry.clients > 0
    position += alike  # What a method worked out may have come to nobody.
  if position < len(entries) and (entries[position].round_num <= last or not replayed.stopped):
    return Compared(f'{_place(entries[position], position)}, which is not expected', compared)
  return Compared('', compared, unseen, untrained)


def _place(entry, position):
  return f'entry {position + 1} is {_words(entry)}' if entry else f'entry {position + 1} is missing'


def _words(entry):
  values = ', '.join(map(str, entry.fields))
  return (
      f'round {entry.round_num}, {entry.stage}, values {values} of {entry.clients} clients '
      f'({entry.cohort[:8]})'
  )


def findings(
    run_: runs.Run,
    seal: ledger.Seal,
    lines: Sequence[ledger.Line],
    replayed: Replayed,
    code: str,
    states: Sequence[training.ProgramState],
) -> list[finding.Finding]:
  """Holds a run's files against the run done again.

  Args:
    run_: The run.
    seal: Of its ledger.
    lines: Of its ledger.
    replayed: The run done again.
    code: Digest of this code.
    states: Its checkpoints.
  """
  parts = _runs_of_one_code(lines, seal)
  return [
      _same_code(parts, code, run_.hook),
      _entries(run_, parts, replayed, code),
      _rows(run_, replayed),
      _participations(run_, replayed),
      *_done_anew(lines, replayed, run_.uplink),
      _checkpoints(lines, replayed, states, seal, run_),
  ]


def _done_anew(lines, replayed, declared):
  """Whether rounds that were done anew follow from a state that was saved, and had no noise."""
  saved, goes_on, noisy = {0}, True, set()
  for line in lines:
    content = line.content
    if isinstance(content, ledger.CodeChange):
      goes_on = False
      continue
    is_state = isinstance(content, ledger.SavedState)
    if not goes_on and not _follows(content.round_num - (not is_state), saved, replayed):
      what = 'a state' if is_state else 'what was sent'
      return [finding.failed(
          _ANEW, f'{what} in round {content.round_num} is after no state that was saved before'
      )]
    goes_on = True
    if is_state:
      saved.add(content.round_num)
    elif any(ledger.is_noisy(declared[i]) for i in content.fields):
      if content.round_num in noisy:
        return [finding.failed(_ANEW, f'round {content.round_num} was released with noise twice')]
      noisy.add(content.round_num)
  times = sum(isinstance(line.content, ledger.CodeChange) for line in lines)
  return [finding.passed(_ANEW, f'{times} times')] if times or noisy else []


def _follows(last, saved, replayed):
  """Whether there is a state from which on until after round `last` nobody had to be asked."""
  asked = {
      i for i, r in enumerate(replayed.rounds, 1) if any(e.decided for e in r.exchanges)
  }
  return any(asked.isdisjoint(range(state + 1, last + 1)) for state in saved if state <= last)


def _same_code(parts, code, hook):
  made = list(dict.fromkeys(part.code for part in parts))
  if len(made) > 1:
    return finding.no_evidence(
        _CODE, f'it was resumed with other code: made by {", then ".join(c or "?" for c in made)}'
    )
  if made[0] != code:
    return finding.no_evidence(_CODE, f'made by {made[0] or "unknown"}, audited by {code}')
  beside = f'; beside it ran --metrics_hook={hook}, which is no part of it' if hook else ''
  return finding.passed(_CODE, code + beside)


def _entries(run_, parts, replayed, code):
  compared = total = unseen = untrained = 0
  excused = ''
  for i, part in enumerate(parts):
    entries = part.entries
    # Rows of rounds that were undone stay until they are done anew.
    done = entries[-1].round_num - 1 if entries else 0
    if i == len(parts) - 1 and (len(parts) == 1 or run_.finished):
      done = len(run_.rounds)
    found = differences(replayed, entries, done, part.first if i else 1)
    if found.of_cohort and part.code != code and run_.flags.get('noise_source') == 'system':
      excused = f'{found.different}; other code may draw other cohorts from the same secret'
      continue
    if found.different:
      return finding.failed(_ENTRIES, found.different)
    compared, total = compared + found.same, total + len(entries)
    unseen, untrained = unseen + found.unseen, untrained + found.untrained
  if excused:
    return finding.no_evidence(_ENTRIES, excused)
  if not total:
    return finding.no_evidence(_ENTRIES, 'no client was asked for anything')
  detail = f'{compared} of {total} entries, cohort by cohort'
  if compared < total:
    detail += '; who took part in the others follows from what clients sent'
  if unseen:
    detail += f'; {unseen} exchanges have no entry, and may have been with nobody'
  if untrained:
    return finding.no_evidence(_ENTRIES, f'{detail}, though clients train in {untrained} of them')
  if replayed.stopped:
    return finding.no_evidence(_ENTRIES, f'{detail}: {replayed.stopped}')
  return finding.passed(_ENTRIES, detail)


def _rows(run_, replayed):
  """Rounds that the configuration alone decides, and those before the replay stopped."""
  if not len(run_.rounds):
    return finding.no_evidence(_ROWS, 'no round is done')
  done, total = len(run_.rounds), replayed.total
  if done > total or (run_.finished and done < total):
    return finding.failed(_ROWS, f'{done} rounds are done, the configuration has {total}')
  missing = [name for name in _COLUMNS if name not in run_.metrics]
  if missing:
    return finding.failed(_ROWS, f'no column {", ".join(missing)}')
  compared = 0
  for i, expected in enumerate(replayed.rounds[: len(run_.rounds)]):
    stage = expected.exchanges[0].entry.stage if expected.exchanges else None
    wanted = {'stage': stage}
    if expected.decided:
      compared += 1
      wanted |= {n: getattr(expected.traffic, n) for n in ('clients', 'bytes_up', 'bytes_down')}
    for name, value in wanted.items():
      if value is not None and run_.metrics[name][i] != value:
        return finding.failed(
            _ROWS, f'round {i + 1}: {name} is {run_.metrics[name][i]}, expected is {value}'
        )
  detail = f'{compared} of {len(run_.rounds)} rounds'
  made = finding.passed if compared else finding.no_evidence
  return made(_ROWS, detail)


def _decided_participations(replayed, rounds_done):
  """int64 `[C]` after so many rounds, or None where it follows from what clients sent."""
  rounds = replayed.rounds[:rounds_done]
  if not rounds or len(rounds) < rounds_done:
    return None
  if not all(e.decided for r in rounds for e in r.exchanges if e.trains):
    return None
  return rounds[-1].participations


def _participations(run_, replayed):
  """Says how many clients differ, not which: who took part may be a secret."""
  columns = runs.read_clients(run_)
  if 'participations' not in columns:
    return finding.no_evidence(_PARTICIPATIONS, 'the run is not finished and has no clients.csv')
  expected = _decided_participations(replayed, len(run_.rounds))
  if expected is None:
    return finding.no_evidence(_PARTICIPATIONS, 'who took part follows from what clients sent')
  found = columns['participations']
  if len(found) != len(expected):
    return finding.failed(_PARTICIPATIONS, f'{len(found)} clients, not {len(expected)}')
  different = int((found != expected).sum())
  if different:
    return finding.failed(_PARTICIPATIONS, f'those of {different} clients are others')
  return finding.passed(_PARTICIPATIONS, f'{len(found)} clients')


def load_states(
    run_: runs.Run,
    algorithm: algorithm_lib.Algorithm,
    task: task_lib.Task,
    federation: types.Federation,
) -> list[training.ProgramState]:
  """Returns the checkpoints of a run, the oldest first; nothing is written or removed.

  Raises:
    types.UsageError: If one cannot be read.
  """
  folder = os.path.join(run_.path, 'state')
  if not os.path.isdir(folder):
    return []
  book = ledger.Ledger(algorithm.fields, uplink.to_json(algorithm.fields))
  clients = _Clients(algorithm, task, federation, [], book)
  structure = training.program_state(algorithm.init(), clients, book)
  return asyncio.run(_load(checkpoints.CheckpointManager(folder), structure))


async def _load(reader, structure):
  versions = await reader.get_versions()
  return [await reader.load(version, structure) for version in versions or ()]


def _checkpoints(lines, replayed, states, seal, run_):
  if not states:
    return finding.no_evidence(_CHECKPOINTS, 'there is none')
  after = [state.round_num for state in states]
  if after != sorted(set(after)):
    return finding.failed(_CHECKPOINTS, f'they are of rounds {after}, as their files are numbered')
  if run_.finished and after[-1] != len(run_.rounds):
    return finding.failed(
        _CHECKPOINTS, f'the last is of round {after[-1]}, of {len(run_.rounds)} that are done'
    )
  genesis = ledger.genesis(run_.uplink, seal)
  heads = [genesis, *(line.head for line in lines)]
  for state in states:
    done, (count, head) = state.round_num, state.ledger
    if count >= len(heads) or heads[count] != bytes(head).hex():
      return finding.failed(
          _CHECKPOINTS, f'that of round {done} was made after {count} lines of another ledger'
      )
    if not ledger.tells_of(lines[:count], state.digest, seal):
      return finding.failed(
          _CHECKPOINTS, f'that of round {done} holds another state than was saved'
      )
    # What other code did after the checkpoint that was gone on from was undone.
    changes = [
        i for i, line in enumerate(lines[:count]) if isinstance(line.content, ledger.CodeChange)
    ]
    last = max((e.content.round_num for e in lines[max(changes, default=0) : count]
                if isinstance(e.content, ledger.Entry)), default=0)
    if last > done or done > len(run_.rounds):
      return finding.failed(_CHECKPOINTS, f'there is one of round {done}, which is not done')
    expected = _decided_participations(replayed, done)
    if expected is not None and not np.array_equal(state.participations, expected):
      return finding.failed(_CHECKPOINTS, f'that of round {done} has other participations')
  saved = [c.round_num for c, _ in lines if isinstance(c, ledger.SavedState)]
  if saved and saved[-1] > after[-1]:
    return finding.no_evidence(
        _CHECKPOINTS, f'the last is of round {after[-1]}, and one of round {saved[-1]} was saved'
    )
  return finding.passed(_CHECKPOINTS, f'{len(states)} checkpoints')
