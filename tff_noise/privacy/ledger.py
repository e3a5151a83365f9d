"""The ledger: every release of a run, in order, in a file that can only grow.

What may be released is declared in `uplink.json`; the ledger says when it was, by how many clients
and by whom. Each entry holds the hash of the one before it, the first that of the declaration and
of what the run was made from, so that none of it can be changed unnoticed. An entry is on disk
before the computation runs: a crash may leave an entry without its release, never a release without
its entry.

A run that is killed repeats the rounds since its last checkpoint. All its randomness is a function
of the seed, so the same code releases the same values again, which tells nobody anything new: the
repeated entries have to equal those in the file, and are not written twice. Other code releases
other values, and so does a device that rounds otherwise each time: the file says from where on, and
the entries count anew.

A state that a run goes on from is part of the chain, too: under other weights, or with a count of
rounds that was set back, the same noise would be on other sums.

Who took part is in no entry: a commitment is, under a key that stays with the run's owner.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tff_noise import types


class LedgerError(types.UsageError):
  """A ledger that was changed, or is not that of this run."""


class Position(NamedTuple):
  """How far a run is in its ledger; part of every checkpoint.

  Attributes:
    count: Lines so far.
    head: uint8 `[32]`, the hash of the last one.
  """

  count: int
  head: np.ndarray


class Seal(NamedTuple):
  """What ties a ledger to its run.

  Attributes:
    run: Commitment to what the run was made from, its configuration and scene, under the key.
    code: Digest of the code that began it.
    key: The owner's secret; whoever has it can try cohorts until one fits an entry.
  """

  run: str
  code: str
  key: bytes

  @property
  def public(self) -> Mapping[str, str]:
    """What can be shown to anybody: the key's digest in place of the key."""
    return {**self._asdict(), 'key': hashlib.sha256(self.key).hexdigest()}


_NOT_REPEATED = (
    'round {} was released with noise after the last checkpoint, and this --runtime does not '
    'repeat it to the bit: the difference of the two would show clients without noise; begin a new '
    'run with another --run_name'
)
_OF_OTHER_CODE = (
    'other code released round {} after the last checkpoint with noise; released again, the same '
    'secret cohort would answer twice, for which there is no bound: continue with that code, or '
    'begin a new run with another --run_name'
)

# Of what is no run's: plans, and ledgers that end with their process.
UNSEALED = Seal('', '', b'')


class Entry(NamedTuple):
  """One exchange in which values left clients.

  Attributes:
    round_num: 1 in the run's first round; what comes before it belongs to it.
    stage: The stage's name.
    fields: Positions in `uplink.json`, ascending.
    clients: How many clients sent them.
    cohort: HMAC-SHA256 of their ids, in hexadecimal digits. It is equal for the same clients; where
      a claim counts on their being secret, within a round alone.
  """

  round_num: int
  stage: str
  fields: tuple[int, ...]
  clients: int
  cohort: str


class SavedState(NamedTuple):
  """A state that a run may be continued from was saved.

  Attributes:
    round_num: After which round.
    state: HMAC-SHA256 of its digest, in hexadecimal digits: it holds who took part how often.
  """

  round_num: int
  state: str


class CodeChange(NamedTuple):
  """From here on other code made the run, from its last checkpoint on; or the same did once more.

  Attributes:
    code: Its digest. That of the code before, where rounds do not repeat to the bit, or a state
      from before the last change was gone back to.
  """

  code: str


class Line(NamedTuple):
  """A line of the file.

  Attributes:
    content: What it says.
    head: Its hash, 64 hexadecimal digits.
  """

  content: Entry | SavedState | CodeChange
  head: str


def commitment(key: bytes, *parts: bytes) -> str:
  """Returns HMAC-SHA256 of `parts`, each of its own length, as 64 hexadecimal digits."""
  digests = b''.join(hashlib.sha256(part).digest() for part in parts)
  return hmac.new(key, digests, hashlib.sha256).hexdigest()


def genesis(declared: Sequence[Mapping[str, Any]], seal: Seal = UNSEALED) -> str:
  """Returns what the first entry follows: the hash of the declaration and the seal."""
  return _hash(json.dumps([declared, seal.public], sort_keys=True))


def _hash(text):
  return hashlib.sha256(text.encode()).hexdigest()


def _text(content, previous):
  content = {**content._asdict(), 'previous': previous}
  return json.dumps({**content, 'hash': _hash(json.dumps(content, sort_keys=True))})


def read(
    path: str, declared: Sequence[Mapping[str, Any]], seal: Seal = UNSEALED
) -> tuple[list[Entry], str]:
  """Returns the entries of a ledger and the hash of its last line; see `read_lines`."""
  lines = read_lines(path, declared, seal)
  return entries(lines), lines[-1].head if lines else genesis(declared, seal)


def read_lines(
    path: str, declared: Sequence[Mapping[str, Any]], seal: Seal = UNSEALED
) -> list[Line]:
  """Reads a ledger and checks it.

  Args:
    path: The file; one that is not there is an empty ledger.
    declared: The content of `uplink.json`.
    seal: Of its run.

  Raises:
    LedgerError: If a line does not follow from the one before it, or from the declaration and the
      seal.
  """
  lines, head = [], genesis(declared, seal)
  if not os.path.exists(path):
    return lines
  try:
    with open(path, encoding='utf-8', errors='replace') as file:
      texts = file.read().split('\n')
  except OSError as error:
    raise LedgerError(f'{path} cannot be read ({error.strerror})') from error
  # Without its end a line was not on disk yet when the run died, and its release never happened.
  for number, text in enumerate(texts[:-1], 1):
    content, previous, digest = _parse(text, path, number)
    if previous != head or _text(content, previous) != text:
      raise LedgerError(
          f'{path} line {number} does not follow from what is before it: the ledger, uplink.json '
          'was changed, or what the run was made from: config.json, scene.npz, ledger.key'
      )
    if isinstance(content, Entry) and not all(0 <= i < len(declared) for i in content.fields):
      raise LedgerError(f'{path} line {number} names a value that uplink.json does not declare')
    lines.append(Line(content, digest))
    head = digest
  return lines


def rechained(
    lines: Sequence[Line], declared: Sequence[Mapping[str, Any]], seal: Seal
) -> tuple[str, str]:
  """Returns the text of a ledger with the same content under another seal, and its last hash.

  Args:
    lines: Of a ledger that was read.
    declared: The content of `uplink.json`.
    seal: Of the run that takes them over, with the same key.
  """
  texts, head = [], genesis(declared, seal)
  for line in lines:
    texts.append(_text(line.content, head) + '\n')
    head = json.loads(texts[-1])['hash']
  return ''.join(texts), head


def _parse(text, path, number):
  try:
    content = json.loads(text)
    if 'code' in content:
      return CodeChange(str(content['code'])), content['previous'], content['hash']
    if 'state' in content:
      saved = SavedState(int(content['round_num']), str(content['state']))
      return saved, content['previous'], content['hash']
    entry = Entry(
        content['round_num'], content['stage'], tuple(content['fields']), content['clients'],
        content['cohort'],
    )
    if _is_entry(entry):
      return entry, content['previous'], content['hash']
  except (ValueError, KeyError, TypeError, RecursionError) as error:
    raise LedgerError(f'{path} line {number} is not an entry of a ledger') from error
  raise LedgerError(f'{path} line {number} is not an entry of a ledger')


def _is_entry(entry):
  """Of the right types: whoever has the keys can write whatever he likes."""
  counts = (entry.round_num, entry.clients, *entry.fields)
  texts = (entry.stage, entry.cohort)
  return (
      all(type(n) is int and n >= 0 for n in counts)
      and all(isinstance(text, str) for text in texts)
      and len(entry.fields) > 0 and len(set(entry.fields)) == len(entry.fields)
  )


def entries(lines: Sequence[Line]) -> list[Entry]:
  """Returns the exchanges among lines."""
  return [line.content for line in lines if isinstance(line.content, Entry)]


def codes(lines: Sequence[Line], seal: Seal) -> frozenset[str]:
  """Returns the digests of all codes that made the run."""
  changes = (line.content for line in lines)
  return frozenset({seal.code, *(c.code for c in changes if isinstance(c, CodeChange))})


def last_code(lines: Sequence[Line], seal: Seal) -> str:
  """Returns the digest of the code that made the run last."""
  changes = [line.content.code for line in lines if isinstance(line.content, CodeChange)]
  return changes[-1] if changes else seal.code


def tells_of(lines: Sequence[Line], digest: bytes, seal: Seal) -> bool:
  """Returns whether a ledger ends with a state of this digest that is saved.

  Args:
    lines: From its first.
    digest: Of a checkpoint that has the place where they end.
    seal: The ledger's.
  """
  last = lines[-1].content if lines else None
  return isinstance(last, SavedState) and last.state == _commitment_to_state(digest, seal)


def _commitment_to_state(digest, seal):
  return commitment(seal.key, b'state', digest)


class Ledger:
  """The ledger of a run that goes on."""

  def __init__(
      self,
      fields: Sequence[Any],
      declared: Sequence[Mapping[str, Any]],
      path: str = '',
      seal: Seal = UNSEALED,
      code: str | None = None,
      *,
      repeats: bool = True,
  ):
    """Opens a ledger at its start.

    Args:
      fields: What may be released, hashable, in the order of `declared`.
      declared: The content of `uplink.json`.
      path: The file; '' to keep entries in memory alone.
      seal: Of the run.
      code: Digest of the code that goes on; that of the last line if not given.
      repeats: Whether rounds that are done again come to the same bits. If not, what was released
        with noise is not released again: the difference of the two would have none.

    Raises:
      LedgerError: If there is a file, and it is damaged.
    """
    self._positions = {field: i for i, field in enumerate(fields)}
    self._declared, self._seal, self._path = declared, seal, path
    self._head = genesis(declared, seal)
    self._lines, self._written = [], []
    if path:
      self._written = read_lines(path, declared, seal)
      _drop_torn_line(path)
    last = last_code(self._written, seal)
    self._new_code = code if code not in (None, last) else ''
    # What other code released before is not repeated.
    changes = [i for i, w in enumerate(self._written, 1) if isinstance(w.content, CodeChange)]
    self._advance(max(changes, default=0))
    noisy = [e.round_num for e in self.entries if self._has_noise(e.fields)]
    self._last_noisy_of_other_code = max(noisy, default=0)
    self._repeats = repeats

  def _advance(self, count):
    """Takes lines of the file as they are, until there are so many."""
    self._lines += self._written[len(self._lines) : count]
    if self._lines:
      self._head = self._lines[-1].head

  @property
  def entries(self) -> tuple[Entry, ...]:
    """All entries up to the current position."""
    return tuple(entries(self._lines))

  @property
  def position(self) -> Position:
    """How far the run is."""
    return Position(len(self._lines), np.frombuffer(bytes.fromhex(self._head), np.uint8))

  def resume(self, position: Position, digest: bytes) -> None:
    """Goes on from a checkpoint, from whose releases on they are repeated.

    Args:
      position: That of the checkpoint, `save` included.
      digest: Of the state in the checkpoint.

    Raises:
      LedgerError: If the file does not hold what had been released at the checkpoint, or the state
        is not the one that was saved.
    """
    count = position.count
    heads = [genesis(self._declared, self._seal), *(line.head for line in self._written)]
    if count >= len(heads) or bytes(position.head).hex() != heads[count]:
      raise LedgerError(
          f'{self._path} does not hold the {count} releases that were made before the checkpoint: '
          'it was changed, or belongs to another run'
      )
    if not tells_of(self._written[:count], digest, self._seal):
      raise LedgerError(
          f'the checkpoint is not the one that {self._path} tells of: it was changed; bring it '
          'back, or move it away to continue from the one before, or from the start'
      )
    self._advance(count)

  def save(self, round_num: int, digest: bytes) -> bool:
    """Records that a state is about to be saved after a round.

    Args:
      round_num: 1 after the run's first round.
      digest: Of everything that the state holds.

    Returns:
      Whether it can be: not where rounds are repeated after which none was saved at first.

    Raises:
      LedgerError: If this is a repetition to the bit, and another state was saved in its place.
    """
    done = len(self._lines)
    if not self._begins_anew and done < len(self._written):
      repeated = self._written[done].content
      if not isinstance(repeated, SavedState) or repeated.round_num != round_num:
        return False
    self._enter(SavedState(round_num, _commitment_to_state(digest, self._seal)))
    return True

  def record(self, round_num: int, stage: str, fields: Sequence[Any], clients: np.ndarray) -> None:
    """Records that `clients` are about to send `fields`.

    Args:
      round_num: 1 in the run's first round.
      stage: The stage's name.
      fields: Of those that were declared.
      clients: int, the ids of those that send. Without any, noise alone is a release.

    Raises:
      LedgerError: If this is a repetition, and the file has another release in its place; or if
        other code would release with noise that was used.
    """
    positions = tuple(sorted(self._positions[f] for f in fields))
    if not positions or not (len(clients) or self._has_noise(positions)):
      return
    entry = Entry(
        round_num, stage, positions, len(clients), self._cohort(round_num, positions, clients)
    )
    if self._has_noise(positions):
      self._require_first(entry)
    self._enter(entry)

  def _require_first(self, entry):
    """Refuses noise that would be on two sums, or a second answer of a secret cohort."""
    if entry.round_num <= self._last_noisy_of_other_code:
      raise LedgerError(_OF_OTHER_CODE.format(entry.round_num))

  @property
  def _begins_anew(self):
    """Whether other values will be released in place of those since the checkpoint."""
    return bool(self._new_code) or (not self._repeats and len(self._lines) < len(self._written))

  def _is_before_change(self, content):
    """Whether a checkpoint is gone that this code went on from: it repeats nothing of its own."""
    done, written = len(self._lines), self._written
    return (
        0 < done < len(written) and isinstance(written[done - 1].content, CodeChange)
        and isinstance(content, Entry) and content.round_num < written[done].content.round_num
    )

  def _enter(self, content):
    """Adds a line, or finds it where it was added before."""
    if self._begins_anew or self._is_before_change(content):
      self._begin_anew(content.round_num)
    done, written = len(self._lines), self._written
    while isinstance(content, Entry) and done < len(written) and isinstance(
        written[done].content, SavedState
    ):
      done += 1  # States need not be saved as often as at first.
    self._advance(done)
    if done >= len(written):
      self._append(content)
    elif written[done].content == content:
      self._advance(done + 1)
    else:
      what = 'release' if isinstance(content, Entry) else 'state'
      raise LedgerError(
          f'{self._path} has another {what} in place of the one in round {content.round_num}: the '
          'run is not continued as it was begun, or by a processor that rounds otherwise; go on '
          'where it was begun, or begin another run (--run_name)'
      )

  def _cohort(self, round_num, positions, clients):
    """The commitment to who sends."""
    ids = ','.join(str(i) for i in sorted(int(i) for i in clients))
    # Which rounds have the same clients would tell of a draw that is claimed to be secret.
    secret = str(round_num).encode() if self._has_noise(positions) else b''
    return commitment(self._seal.key, secret, ids.encode())

  def _has_noise(self, positions):
    return any(is_noisy(self._declared[i]) for i in positions if i < len(self._declared))

  def _begin_anew(self, round_num):
    """Leaves what was released since the checkpoint where it is."""
    refusal = _OF_OTHER_CODE if self._new_code else _NOT_REPEATED
    for line in self._written[len(self._lines) :]:
      entry = line.content
      noisy = isinstance(entry, Entry) and any(is_noisy(self._declared[i]) for i in entry.fields)
      if noisy and entry.round_num >= round_num:
        raise LedgerError(refusal.format(entry.round_num))
    self._advance(len(self._written))
    code, self._new_code = self._new_code or last_code(self._written, self._seal), ''
    self._append(CodeChange(code))

  def _append(self, content):
    text = _text(content, self._head)
    if self._path:
      with open(self._path, 'a', encoding='utf-8') as file:
        file.write(text + '\n')
        file.flush()
        os.fsync(file.fileno())
    self._head = json.loads(text)['hash']
    self._lines.append(Line(content, self._head))


def is_noisy(field: Mapping[str, Any]) -> bool:
  """Returns whether a declared value has noise, whose claim may count on a secret cohort."""
  return 'cohort' in (field.get('protection') or {})


def _drop_torn_line(path):
  if not os.path.exists(path):
    return
  with open(path, 'r+b') as file:
    content = file.read()
    file.truncate(content.rfind(b'\n') + 1)
