"""Tests of the privacy ledger."""

import hashlib
import itertools
import json
import os

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tests.privacy import uplinks
from tff_noise.privacy import ledger
from tff_noise.privacy import protection


class _Case(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.path = os.path.join(self.create_tempdir().full_path, 'ledger.jsonl')

  def _open(self, declared=uplinks.DECLARED):
    return ledger.Ledger(uplinks.NAMES, declared, self.path)

  def _lines(self):
    with open(self.path, encoding='utf-8') as file:
      return file.read().splitlines(keepends=True)

  def _write(self, lines):
    with open(self.path, 'w', encoding='utf-8') as file:
      file.writelines(lines)

  def _record(self, book, rounds, first=1):
    for i in range(first, first + rounds):
      book.record(i, 'train', ['size', 'update'], np.array([i, 0]))

  def _saved(self, book, round_num, digest=b'a state'):
    """What a checkpoint after this round tells the ledger of a run that is continued."""
    book.save(round_num, digest)
    return book.position, digest


class FileTest(_Case):

  def test_says_what_when_and_by_whom(self):
    book = self._open()
    book.record(1, 'train', ['labels'], np.arange(20))
    self._record(book, 2)
    entries, head = ledger.read(self.path, uplinks.DECLARED)
    self.assertEqual([e.fields for e in entries], [(0,), (1, 2), (1, 2)])
    self.assertEqual([e.round_num for e in entries], [1, 1, 2])
    self.assertEqual([e.clients for e in entries], [20, 2, 2])
    self.assertEqual(tuple(entries), book.entries)
    self.assertEqual(bytes.fromhex(head), bytes(book.position.head))

  def test_a_cohort_is_told_apart_whatever_its_order(self):
    book = self._open()
    for ids in ([3, 1], [1, 3], [13], [1, 2]):
      book.record(1, 'train', ['size'], np.array(ids))
    cohorts = [entry.cohort for entry in book.entries]
    self.assertEqual(cohorts[0], cohorts[1])
    self.assertLen(set(cohorts), 3)

  def test_nothing_sent_is_no_entry(self):
    book = self._open()
    book.record(1, 'train', [], np.arange(3))
    book.record(1, 'train', ['size'], np.array([], int))
    self.assertEmpty(book.entries)
    self.assertFalse(os.path.exists(self.path))

  def test_what_was_not_declared_cannot_be_recorded(self):
    with self.assertRaises(KeyError):
      self._open().record(1, 'train', ['secret'], np.arange(3))

  @parameterized.parameters(
      ('"clients": 2', '"clients": 3'),
      ('"fields": [1, 2]', '"fields": [2]'),
      ('"round_num": 2', '"round_num": 1'),
      ('"stage": "train"', '"stage": "other"'),
      ('{', '[{'), ('{', '[' * 100_000),
      ('"hash": "', '"hash": "0'),
  )
  def test_a_changed_line_is_noticed(self, old, new):
    self._record(self._open(), 3)
    lines = self._lines()
    self._write([lines[0], lines[1].replace(old, new), lines[2]])
    with self.assertRaisesRegex(ledger.LedgerError, 'line 2'):
      ledger.read(self.path, uplinks.DECLARED)

  @parameterized.parameters(
      {'clients': '3'}, {'clients': True}, {'clients': -1}, {'clients': 1.5}, {'round_num': None},
      {'stage': 1}, {'cohort': None}, {'fields': ['1']}, {'fields': []}, {'fields': [1, 1]},
  )
  def test_a_line_of_other_types_is_no_entry_though_its_hash_is_right(self, **changes):
    book = self._open()
    self._record(book, 1)
    content = {**json.loads(self._lines()[0]), **changes}
    del content['hash']
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    self._write([json.dumps({**content, 'hash': digest}) + '\n'])
    with self.assertRaisesRegex(ledger.LedgerError, 'line 1 is not an entry of a ledger'):
      ledger.read(self.path, uplinks.DECLARED)

  @parameterized.parameters(([1, 2], 1), ([0, 2], 2), ([1, 0, 2], 1), ([0, 0, 1, 2], 2))
  def test_missing_moved_and_doubled_lines_are_noticed(self, order, line):
    self._record(self._open(), 3)
    lines = self._lines()
    self._write([lines[i] for i in order])
    with self.assertRaisesRegex(ledger.LedgerError, f'line {line} does not follow'):
      ledger.read(self.path, uplinks.DECLARED)

  def test_another_declaration_is_noticed(self):
    self._record(self._open(), 1)
    weaker = uplinks.declare(
        labels=uplinks.REPORTS, update=protection.Counts(), size=protection.Counts()
    )
    with self.assertRaisesRegex(ledger.LedgerError, 'uplink.json was changed'):
      ledger.read(self.path, weaker)

  def test_a_value_that_is_not_declared_is_noticed(self):
    book = ledger.Ledger((*uplinks.NAMES, 'more'), uplinks.DECLARED, self.path)
    book.record(1, 'train', ['more'], np.arange(3))
    with self.assertRaisesRegex(ledger.LedgerError, 'does not declare'):
      ledger.read(self.path, uplinks.DECLARED)

  def test_without_a_file_entries_are_kept_in_memory(self):
    book = ledger.Ledger(uplinks.NAMES, uplinks.DECLARED)
    self._record(book, 2)
    self.assertLen(book.entries, 2)


class ResumeTest(_Case):

  def test_repeated_rounds_are_neither_forgotten_nor_counted_twice(self):
    first = self._open()
    self._record(first, 2)
    checkpoint = self._saved(first, 2)
    self._record(first, 3, first=3)
    whole = self._lines()

    again = self._open()
    again.resume(*checkpoint)
    self.assertLen(again.entries, 2)
    self._record(again, 2, first=3)
    self.assertEqual(self._lines(), whole)  # Round 5 stays, it was announced.
    self._record(again, 3, first=5)
    self.assertLen(self._lines(), 8)
    self.assertEqual(self._lines()[:6], whole)
    self.assertEqual(tuple(ledger.read(self.path, uplinks.DECLARED)[0]), again.entries)

  def test_a_state_that_was_not_saved_is_refused(self):
    # The attack: weights are changed, or a count of rounds is set back, so that the same noise is
    # on other sums.
    first = self._open()
    self._record(first, 2)
    position, _ = self._saved(first, 2, b'a state')
    self._record(first, 1, first=3)
    for digest in (b'another state', b''):
      with self.assertRaisesRegex(ledger.LedgerError, 'the checkpoint is not the one that'):
        self._open().resume(position, digest)
    # Nor is one that says to be of a place where none was saved.
    with self.assertRaisesRegex(ledger.LedgerError, 'the checkpoint is not the one that'):
      self._open().resume(first.position, b'a state')
    self._open().resume(position, b'a state')

  def test_another_state_in_place_of_one_that_was_saved_is_refused(self):
    first = self._open()
    self._record(first, 1)
    self._saved(first, 1)
    again = self._open()
    self._record(again, 1)
    with self.assertRaisesRegex(ledger.LedgerError, 'another state in place of .* round 1'):
      again.save(1, b'another state')
    self.assertLen(self._lines(), 2)

  def test_where_rounds_are_repeated_states_are_saved_where_they_were(self):
    first = self._open()
    for i in (1, 2, 3, 4):
      self._record(first, 1, first=i)
      if i in (2, 4):
        self._saved(first, i)
    whole = self._lines()
    often = self._open()
    kept = []
    for i in (1, 2, 3, 4, 5):
      self._record(often, 1, first=i)
      kept.append(often.save(i, b'a state'))
    self.assertEqual(kept, [False, True, False, True, True])
    self.assertEqual(self._lines()[:6], whole)
    self.assertLen(self._lines(), 8)
    never = self._open()
    self._record(never, 6)
    self.assertLen(self._lines(), 9)
    self.assertEqual([e.round_num for e in never.entries], [1, 2, 3, 4, 5, 6])
    self.assertEqual(tuple(ledger.read(self.path, uplinks.DECLARED)[0]), never.entries)

  def test_without_a_checkpoint_everything_is_repeated(self):
    self._record(self._open(), 3)
    whole = self._lines()
    self._record(self._open(), 3)
    self.assertEqual(self._lines(), whole)

  def test_another_release_in_place_of_one_that_was_made_is_refused(self):
    self._record(self._open(), 3)
    book = self._open()
    with self.assertRaisesRegex(ledger.LedgerError, 'round 1'):
      book.record(1, 'train', ['update'], np.array([7]))

  @parameterized.parameters(1, 3)
  def test_a_shortened_file_is_refused(self, left):
    book = self._open()
    self._record(book, 4)
    self._write(self._lines()[:left])
    with self.assertRaisesRegex(ledger.LedgerError, 'the 4 releases'):
      self._open().resume(book.position, b'')

  def test_a_lost_file_is_refused(self):
    book = self._open()
    self._record(book, 1)
    os.remove(self.path)
    with self.assertRaisesRegex(ledger.LedgerError, 'does not hold'):
      self._open().resume(book.position, b'')

  def test_another_runs_file_is_refused(self):
    book = ledger.Ledger(uplinks.NAMES, uplinks.DECLARED)
    self._record(book, 2, first=5)
    self._record(self._open(), 2)
    with self.assertRaisesRegex(ledger.LedgerError, 'another run'):
      self._open().resume(book.position, b'')

  @parameterized.parameters(1, 40)
  def test_a_line_without_its_end_was_never_released(self, cut):
    self._record(self._open(), 2)
    whole = self._lines()
    self._write([whole[0], whole[1][:-cut]])
    self.assertLen(ledger.read(self.path, uplinks.DECLARED)[0], 1)
    book = self._open()
    self._record(book, 2)
    self.assertEqual(self._lines(), whole)


class SealTest(_Case):

  _SEAL = ledger.Seal('of this run', 'abc', b'k' * 32)

  def test_the_genesis_is_of_run_code_and_key(self):
    book = ledger.Ledger(uplinks.NAMES, uplinks.DECLARED, self.path, self._SEAL)
    self._record(book, 2)
    self.assertLen(ledger.read(self.path, uplinks.DECLARED, self._SEAL)[0], 2)
    for change in ({'run': 'of another'}, {'code': 'def'}, {'key': b'l' * 32}):
      with self.assertRaisesRegex(ledger.LedgerError, 'line 1 does not follow'):
        ledger.read(self.path, uplinks.DECLARED, self._SEAL._replace(**change))

  def test_without_the_key_no_cohort_can_be_tried(self):
    # The attack: all cohorts of 2 of 5, by the hash that was there before, and by every unkeyed one
    # of the text that is hashed.
    book = ledger.Ledger(uplinks.NAMES, uplinks.DECLARED, self.path, self._SEAL)
    book.record(1, 'train', ['size'], np.array([1, 3]))
    found = book.entries[0].cohort
    for key in (b'', b'0' * 32):
      tried = {
          ledger.commitment(key, b'', f'{i},{j}'.encode())
          for i, j in itertools.combinations(range(5), 2)
      }
      self.assertNotIn(found, tried)
    for i, j in itertools.combinations(range(5), 2):
      self.assertNotStartsWith(found, hashlib.sha256(f'{i},{j}'.encode()).hexdigest()[:16])
    # Who has the key finds it.
    self.assertEqual(found, ledger.commitment(self._SEAL.key, b'', b'1,3'))
    self.assertNotIn(self._SEAL.key.hex(), json.dumps(self._SEAL.public))

  def test_without_the_key_no_state_can_be_tried(self):
    # A state has who took part how often, of which there are few.
    book = ledger.Ledger(uplinks.NAMES, uplinks.DECLARED, self.path, self._SEAL)
    book.save(1, b'a state')
    (line,) = ledger.read_lines(self.path, uplinks.DECLARED, self._SEAL)
    self.assertTrue(ledger.tells_of([line], b'a state', self._SEAL))
    for key in (b'', b'0' * 32):
      self.assertFalse(ledger.tells_of([line], b'a state', self._SEAL._replace(key=key)))
    self.assertNotEqual(line.content.state, hashlib.sha256(b'a state').hexdigest())

  def test_equal_cohorts_show_only_where_no_claim_counts_on_their_secrecy(self):
    declared = uplinks.declare(
        labels=uplinks.REPORTS, update=uplinks.NOISE, size=protection.Counts()
    )
    book = ledger.Ledger(uplinks.NAMES, declared, '', self._SEAL)
    for field in ('size', 'update'):
      for round_num in (1, 2):
        book.record(round_num, 'train', [field], np.array([1, 3]))
    cohorts = [entry.cohort for entry in book.entries]
    self.assertEqual(cohorts[0], cohorts[1])
    self.assertLen(set(cohorts), 3)


class CodeTest(_Case):
  """A run that was killed goes on with other code."""

  _SEAL = ledger.Seal('', 'abc', b'k' * 32)

  def _open(self, code, declared=uplinks.DECLARED, **options):
    return ledger.Ledger(uplinks.NAMES, declared, self.path, self._SEAL, code, **options)

  def _kinds(self):
    lines = ledger.read_lines(self.path, uplinks.DECLARED, self._SEAL)
    return [
        line.content.code if isinstance(line.content, ledger.CodeChange)
        else line.content.round_num for line in lines
        if not isinstance(line.content, ledger.SavedState)
    ]

  def test_what_is_released_again_counts_again(self):
    first = self._open('abc')
    self._record(first, 2)
    checkpoint = self._saved(first, 2)
    self._record(first, 2, first=3)
    again = self._open('def')
    again.resume(*checkpoint)
    self._record(again, 3, first=3)
    self.assertEqual(self._kinds(), [1, 2, 3, 4, 'def', 3, 4, 5])
    self.assertEqual([e.round_num for e in again.entries], [1, 2, 3, 4, 3, 4, 5])

    # Killed once more, before the next checkpoint and after it: the same code repeats its own.
    for position, left in ((checkpoint, 3), (self._saved(again, 5), 6)):
      more = self._open('def')
      more.resume(*position)
      self._record(more, 7 - left, first=left)
    self.assertEqual(self._kinds(), [1, 2, 3, 4, 'def', 3, 4, 5, 6])
    lines = ledger.read_lines(self.path, uplinks.DECLARED, self._SEAL)
    self.assertEqual(ledger.last_code(lines, self._SEAL), 'def')
    self.assertEqual(ledger.codes(lines, self._SEAL), {'abc', 'def'})
    self.assertEqual(ledger.codes(lines[:4], self._SEAL), {'abc'})

  def test_a_checkpoint_that_is_gone_from_which_other_code_went_on(self):
    first = self._open('abc')
    self._record(first, 1)
    earlier = self._saved(first, 1)
    self._record(first, 1, first=2)
    later = self._saved(first, 2)
    again = self._open('def')
    again.resume(*later)
    self._record(again, 2, first=3)
    more = self._open('def')
    more.resume(*earlier)
    self._record(more, 3, first=2)
    self.assertEqual(self._kinds(), [1, 2, 'def', 3, 4, 'def', 2, 3, 4])
    # All are gone.
    self._record(self._open('def'), 2)
    self.assertEqual(self._kinds(), [1, 2, 'def', 3, 4, 'def', 2, 3, 4, 'def', 1, 2])

  def test_without_a_checkpoint(self):
    self._record(self._open('abc'), 2)
    self._record(self._open('def'), 2)
    self._record(self._open('def'), 2)
    self._record(self._open('abc'), 1)
    self.assertEqual(self._kinds(), [1, 2, 'def', 1, 2, 'abc', 1])

  _NOISY = uplinks.declare(labels=uplinks.REPORTS, update=uplinks.NOISE, size=protection.Counts())

  def _noisy_run(self, rounds):
    """Code abc releases noise in these rounds; returns what it saved after round 2 and the last."""
    first = self._open('abc', self._NOISY)
    self._record(first, 2)
    checkpoint = self._saved(first, 2)
    self._record(first, rounds - 2, first=3)
    return checkpoint, self._saved(first, rounds)

  def test_no_secret_cohort_answers_twice(self):
    # The attack: the same rounds released by two codes.
    noisy = self._NOISY
    checkpoint, position = self._noisy_run(4)
    before = self._lines()
    again = self._open('def', noisy)
    again.resume(*checkpoint)
    with self.assertRaisesRegex(ledger.LedgerError, 'other code released round 3'):
      self._record(again, 1, first=3)
    self.assertEqual(self._lines(), before)
    # Where nothing was released since the checkpoint, nothing is released twice.
    last = self._open('def', noisy)
    last.resume(*position)
    self._record(last, 1, first=5)
    self.assertLen(self._lines(), 8)
    # Nor is it where the other code died with nothing written but that it was there.
    self._write(self._lines()[:-1])
    more = self._open('def', noisy)
    self.assertLen(self._lines(), 7)
    with self.assertRaisesRegex(ledger.LedgerError, 'other code released round 3'):
      self._record(more, 1, first=3)

  def test_no_noise_is_on_two_sums_where_rounds_do_not_repeat(self):
    checkpoint, position = self._noisy_run(3)
    before = self._lines()
    for repeats in (True, False):
      again = self._open('abc', self._NOISY, repeats=repeats)
      again.resume(*checkpoint)
      if repeats:
        self._record(again, 1, first=3)
      else:
        with self.assertRaisesRegex(ledger.LedgerError, '^round 3 was released with noise after'):
          self._record(again, 1, first=3)
    self.assertEqual(self._lines(), before)
    # What was not released before is.
    last = self._open('abc', self._NOISY, repeats=False)
    last.resume(*position)
    self._record(last, 1, first=4)
    self.assertLen(self._lines(), len(before) + 1)

  def test_what_is_done_again_counts_anew_where_rounds_do_not_repeat(self):
    first = self._open('abc')
    self._record(first, 1)
    checkpoint = self._saved(first, 1)
    self._record(first, 1, first=2)
    first.save(2, b'bits that come once')  # The process dies here, and its file is not there.
    again = self._open('abc')
    again.resume(*checkpoint)
    self._record(again, 1, first=2)
    with self.assertRaisesRegex(ledger.LedgerError, 'another state in place of the one in round 2'):
      again.save(2, b'other bits')
    # The losses are others, and so are the clients that a method asks for by them.
    again = self._open('abc', repeats=False)
    again.resume(*checkpoint)
    again.record(2, 'train', ['update', 'size'], np.array([5, 6, 7]))
    self.assertTrue(again.save(2, b'other bits'))
    self.assertEqual(self._kinds(), [1, 2, 'abc', 2])
    # Killed, and with nothing after the checkpoint nothing is done again.
    last = self._open('abc', repeats=False)
    last.resume(again.position, b'other bits')
    self._record(last, 1, first=3)
    self.assertTrue(last.save(3, b'the last'))
    self.assertEqual(self._kinds(), [1, 2, 'abc', 2, 3])
    lines = ledger.read_lines(self.path, uplinks.DECLARED, self._SEAL)
    self.assertEqual(ledger.codes(lines, self._SEAL), {'abc'})

  def test_what_died_before_its_first_checkpoint_counts_anew_too(self):
    self._record(self._open('abc'), 2)
    again = self._open('abc', repeats=False)
    again.record(1, 'train', ['update', 'size'], np.array([5, 6, 7]))
    self.assertEqual(self._kinds(), [1, 2, 'abc', 1])


if __name__ == '__main__':
  absltest.main()
