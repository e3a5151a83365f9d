"""Tests of the audit of several runs: what all of them cost, and that each was looked at."""

import hashlib
import json
import math
import os
import shutil
from unittest import mock

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tests.report import run_files
from tff_noise import types
from tff_noise.audit import claimed
from tff_noise.audit import finding
from tff_noise.audit import several
from tff_noise.privacy import accountant
from tff_noise.privacy import costs as costs_lib
from tff_noise.privacy import ledger
from tff_noise.privacy import protection
from tff_noise.privacy import rounding
from tff_noise.program import ledger_seal
from tff_noise.program import run_directory

_PASSED, _FAILED, _NO_EVIDENCE = finding.Verdict
_REPORTS = protection.LabelReports(3, '0.81')
_NOISE = protection.NoisySum(2.0, 1.0, cohort=2, population=3)
_ROUNDS = 4
_DELTA = 1e-5


# Of a method that sends nothing but updates.
_FLAGS = {'method': 'fedavg', 'param': [], 'clients_per_round': 2}


_NO_FLAGS = {'training_labels': 'local', 'client_dp_noise': 0.0}


def _flags_of(shield):
  """Those that give it."""
  if isinstance(shield, protection.LabelReports):
    return {'training_labels': 'private', 'label_epsilon': shield.epsilon}
  if not isinstance(shield, protection.NoisySum):
    return {}
  return {
      'client_dp_noise': shield.noise_multiplier, 'client_dp_clip': shield.clip,
      'client_sampling': shield.sampling, 'client_dp_mechanism': shield.mechanism,
      'noise_source': shield.noise_source,
  }


class SeveralTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.root = self.create_tempdir().full_path

  def _write(self, name, shield, *, seed=3, scene=None, finished=True, inputs=None, **flags):
    """Writes a run of four rounds, in each of which two clients send one value."""
    path = os.path.join(self.root, f'{name}_seed{seed}')
    write = run_files.write if finished else run_files.write_unfinished
    declared = [{**run_files.UPLINK[0], 'protection': protection.to_json(shield)}]
    noise = hashlib.sha256(repr((seed, flags, scene)).encode()).hexdigest()
    given = {**_FLAGS, **_flags_of(shield), **flags}
    config = {**run_files.config(seed=seed, **given), 'noise': noise}
    write(
        path, uplink=declared, scene=scene or run_files.scene(),
        config={
            **config, 'inputs': inputs or config['inputs'], 'class_names': ['a', 'b', 'c'],
        },
    )
    seal = ledger_seal.of_run(run_directory.RunDirectory(path))
    book = ledger.Ledger(['update'], declared, os.path.join(path, 'ledger.jsonl'), seal)
    for i in range(1, _ROUNDS + 1):
      book.record(i, 'train', ['update'], np.array([i % 3, (i + 1) % 3]))
    if finished:
      run_files.write_json(
          os.path.join(path, 'privacy.json'), costs_lib.to_json(book.entries, declared)
      )
    return path

  def _release_again(self, path, rounds):
    """Gives a run another ledger, with releases in these rounds."""
    book_path = os.path.join(path, 'ledger.jsonl')
    os.remove(book_path)
    with open(os.path.join(path, 'uplink.json'), encoding='utf-8') as file:
      declared = json.load(file)
    seal = ledger_seal.of_run(run_directory.RunDirectory(path))
    book = ledger.Ledger(['update'], declared, book_path, seal)
    for i in rounds:
      book.record(i, 'train', ['update'], np.array([i % 3, (i + 1) % 3]))
    cost = costs_lib.to_json(book.entries, declared)
    run_files.write_json(os.path.join(path, 'privacy.json'), cost)

  def _audit(self, *paths):
    return several.audit([several.read(path) for path in paths], _DELTA)

  def _together(self, audit):
    """Epsilon by unit and runs."""
    return {(t['unit'], tuple(t['runs'])): t['epsilon'] for t in audit.content['together']}

  def _failed(self, audit):
    return {f.name: f.detail for f in audit.findings if f.verdict is _FAILED}

  def test_adds_up_what_all_of_them_cost(self):
    audit = self._audit(self._write('a', _NOISE), self._write('b', _NOISE, seed=4))
    self.assertEqual(audit.status, 0, audit.text())
    expected = accountant.gaussian_epsilon(
        2.0, population=3, cohort=2, rounds=2 * _ROUNDS, delta=_DELTA
    )
    for unit in protection.Unit:
      self.assertAlmostEqual(self._together(audit)[unit.value, (1, 2)], expected, places=5)
    text = ' '.join(audit.text().split())
    self.assertIn(f'epsilon {rounding.up(expected)} at delta 1e-05 for one client', text)
    self.assertIn('composed', text)

  def test_says_what_is_not_in_the_accounts_and_where_delta_is_large(self):
    path = self._write('a', _NOISE, weights='first.npz')
    members = [several.read(path), several.read(self._write('b', _NOISE, seed=4))]
    text = ' '.join(several.audit(members, 0.4).text().split())
    self.assertIn("Run 1 was begun from a given model: what it knows of clients' data", text)
    self.assertNotIn('Run 2 was', text)
    self.assertIn('--weights=(a file)', text)
    self.assertNotIn('first.npz', text)
    self.assertEqual(text.count('WARNING: delta 0.4 is not below one over the number of client'), 1)

  def test_each_run_is_checked_and_one_that_fails_fails_all(self):
    paths = [self._write('a', _NOISE), self._write('b', _NOISE, seed=4)]
    ledger_path = os.path.join(paths[1], 'ledger.jsonl')
    with open(ledger_path, encoding='utf-8') as file:
      lines = file.readlines()
    with open(ledger_path, 'w', encoding='utf-8') as file:
      file.writelines([lines[1], lines[0], *lines[2:]])
    audit = self._audit(*paths)
    self.assertEqual(audit.status, 1)
    [(name, detail)] = self._failed(audit).items()
    self.assertStartsWith(name, 'run 2: ledger: every entry follows')
    self.assertIn('ledger.jsonl line 1 does not follow', detail)
    self.assertNotIn('together', audit.content)
    self.assertIn('nothing is added up', audit.text())
    self.assertNotIn('All runs together', audit.text())
    self.assertEqual(audit.files['delta_epsilon.csv'], 'unit,epsilon,delta\n')

  def test_what_else_does_not_fit_fails_too(self):
    path = self._write('a', _NOISE)
    run_files.write_json(os.path.join(path, 'privacy.json'), run_files.PRIVACY)
    with open(os.path.join(path, 'ledger.jsonl'), encoding='utf-8') as file:
      lines = file.readlines()
    with open(os.path.join(path, 'ledger.jsonl'), 'w', encoding='utf-8') as file:
      file.writelines(lines[:-1])
    audit = self._audit(self._write('b', _NOISE, seed=4), path)
    self.assertEqual(audit.status, 1)
    self.assertEqual(self._failed(audit), {
        'run 2: ledger: every round of metrics.csv has its releases': 'round 4 has none',
        'run 2: privacy.json: the totals are those of the ledger': mock.ANY,
    })

  @parameterized.parameters(
      (_NOISE._replace(noise_multiplier=100.0), _NOISE), (_NOISE._replace(population=9), _NOISE),
      (_NOISE._replace(reports=_REPORTS), _NOISE), (_REPORTS, None), (_NOISE, None),
      (_REPORTS._replace(epsilon='0.01'), _REPORTS), (_REPORTS._replace(num_classes=2), _REPORTS),
      (_REPORTS._replace(num_labels=10**6), _REPORTS), (_REPORTS._replace(num_labels=12), _REPORTS),
      (protection.Counts(), None), (protection.Counts(), _NOISE),
  )
  def test_a_claim_that_flags_do_not_give(self, claimed, given):
    # Whoever has the key writes another declaration, and chains the ledger anew.
    name = 'uplink.json: no value is said to be better protected than by the flags'
    honest = self._audit(self._write('a', given), self._write('b', given, seed=4))
    self.assertNotIn(name, ' '.join(self._failed(honest)))
    path = self._write('c', claimed, **{**_NO_FLAGS, **_flags_of(given)})
    audit = self._audit(path, self._write('d', given, seed=4))
    self.assertEqual(audit.status, 1)
    self.assertEqual(
        self._failed(audit), {f'run 1: {name}': 'the flags give something else to: update'}
    )

  @parameterized.parameters('update: contributions', 'label histogram', 'label histogram of update')
  def test_a_name_alone_is_no_claim(self, name):
    shield = _REPORTS._replace(num_labels=12) if 'histogram' in name else protection.Counts()
    path = self._write('c', shield, **_NO_FLAGS)
    declared = [{**run_files.UPLINK[0], 'name': name, 'protection': protection.to_json(shield)}]
    run_files.write_json(os.path.join(path, 'uplink.json'), declared)
    found = claimed.check(several.read(path).run, run_files.scene())
    self.assertEqual(found.verdict, _FAILED)
    self.assertEndsWith(found.detail, name)

  def test_what_goes_with_a_secure_sum_is_its_1_of_each_client(self):
    path = self._write('c', None, **_NO_FLAGS)
    one = {
        **run_files.UPLINK[0], 'name': 'update: contributions', 'type_spec': 'int32', 'lower': 1,
        'intrinsic': 'federated_secure_sum_bitwidth', 'upper': 1,
        'protection': protection.to_json(protection.Counts()),
    }
    update = {**run_files.UPLINK[0], 'name': 'update', 'protection': None}
    for declared, verdict in (([update, one], _PASSED), ([one], _FAILED)):
      run_files.write_json(os.path.join(path, 'uplink.json'), declared)
      found = claimed.check(several.read(path).run, run_files.scene())
      self.assertEqual(found.verdict, verdict)

  def test_a_run_that_goes_on_counts_as_far_as_it_is(self):
    audit = self._audit(
        self._write('a', _NOISE, finished=False), self._write('b', _NOISE, seed=4)
    )
    self.assertEqual(audit.status, 3)
    self.assertIn('Run 1 is not finished', audit.text())
    finished = self._audit(self._write('c', _NOISE, seed=5), self._write('d', _NOISE, seed=6))
    self.assertEqual(self._together(audit), self._together(finished))

  def test_a_run_without_a_guarantee_makes_the_total_infinite(self):
    audit = self._audit(self._write('a', _NOISE), self._write('b', None, seed=4))
    self.assertEqual(set(self._together(audit).values()), {'inf'})
    self.assertEqual(audit.status, 0)  # That is no violation.
    self.assertIn('in run 2 values are released that nothing protects', audit.text())
    json.loads(audit.json())

  def test_reports_of_one_seed_count_once(self):
    once = self._audit(self._write('a', _REPORTS), self._write('b', _REPORTS, rounds=5))
    self.assertAlmostEqual(self._together(once)[protection.Unit.LABEL.value, (1, 2)], 0.81)
    twice = self._audit(self._write('c', _REPORTS), self._write('d', _REPORTS, seed=4))
    self.assertAlmostEqual(self._together(twice)[protection.Unit.LABEL.value, (1, 2)], 1.62)
    [entry] = [t for t in twice.content['together'] if t['unit'] == protection.Unit.LABEL.value]
    self.assertEqual(entry['reports'][0]['count'], 2)
    self.assertEqual((entry['how'], entry['delta']), ('added', 0))

  def test_one_random_number_for_two_labels_fails(self):
    scene = run_files.scene()
    other = scene._replace(noisy_label=scene.noisy_label[::-1].copy())
    audit = self._audit(self._write('a', _REPORTS), self._write('b', _REPORTS, scene=other))
    self.assertEqual(
        self._failed(audit),
        {'label reports: no random number answered for two labels': 'runs 1 and 2'},
    )
    self.assertEqual(self._together(audit)[protection.Unit.LABEL.value, (1, 2)], 'inf')

  def test_runs_of_one_seed_have_no_protection_by_sampling(self):
    audit = self._audit(self._write('a', _NOISE), self._write('b', _NOISE, learning_rate=0.5))
    self.assertEqual(audit.status, 0)
    expected = accountant.gaussian_epsilon(
        2.0, population=2, cohort=2, rounds=2 * _ROUNDS, delta=_DELTA
    )
    self.assertAlmostEqual(
        self._together(audit)[protection.Unit.CLIENT.value, (1, 2)], expected, places=6
    )
    self.assertIn('Runs 1 and 2 have one seed', audit.text())

  def test_the_same_flags_draw_the_same_noise(self):
    a, b = self._write('a', _NOISE), self._write('b', _NOISE)
    audit = self._audit(a, b)
    [(name, detail)] = self._failed(audit).items()
    self.assertEqual(name, 'noise: no two runs drew the same')
    self.assertStartsWith(detail, 'runs 1 and 2: the same flags, code and data.')
    self.assertEqual(set(self._together(audit).values()), {'inf'})

  def test_another_source_or_other_code_drew_other_noise(self):
    a, b = self._write('a', _NOISE), self._write('b', _NOISE)
    path = os.path.join(b, 'config.json')
    config = run_directory.read_json(path)
    for change in ({'code': 'def456'}, {'noise': '02'}):
      run_files.write_json(path, {**config, **change})
      self._reseal(b)
      self.assertEmpty(self._failed(self._audit(a, b)))

  def _reseal(self, path):
    """Writes the ledger anew, for a configuration that was changed."""
    declared = run_directory.read_json(os.path.join(path, 'uplink.json'))
    os.remove(os.path.join(path, 'ledger.jsonl'))
    seal = ledger_seal.of_run(run_directory.RunDirectory(path))
    book = ledger.Ledger(['update'], declared, os.path.join(path, 'ledger.jsonl'), seal)
    for i in range(1, _ROUNDS + 1):
      book.record(i, 'train', ['update'], np.array([i % 3, (i + 1) % 3]))

  def test_nothing_is_added_up_where_a_ledger_is_missing(self):
    paths = [self._write('a', _NOISE), self._write('b', _NOISE, seed=4)]
    os.remove(os.path.join(paths[1], 'ledger.jsonl'))
    audit = self._audit(*paths)
    self.assertEqual(audit.status, 1)
    self.assertNotIn('together', audit.content)
    self.assertNotIn('epsilon 0 ', audit.text())

  def test_a_copy_is_one_run(self):
    path = self._write('a', _NOISE._replace(noise_source='system'))
    copy = shutil.copytree(path, os.path.join(self.root, 'copy'))
    for paths in ((path, path), (path, copy)):
      with self.assertRaisesRegex(types.UsageError, 'are one run; give the one whose ledger is'):
        self._audit(*paths)
    # One that went on by itself has the same secrets.
    declared = run_directory.read_json(os.path.join(path, 'uplink.json'))
    for place, clients in ((path, [0, 1]), (copy, [0, 1, 2])):
      seal = ledger_seal.of_run(run_directory.RunDirectory(place))
      book = ledger.Ledger(['update'], declared, os.path.join(place, 'ledger.jsonl'), seal)
      for i in range(1, _ROUNDS + 1):
        book.record(i, 'train', ['update'], np.array([i % 3, (i + 1) % 3]))
      book.record(_ROUNDS + 1, 'train', ['update'], np.array(clients))
      for name in ('summary.json', 'privacy.json'):
        os.remove(os.path.join(place, name))
    self.assertIn('noise: no two runs drew the same', self._failed(self._audit(path, copy)))

  def test_other_data_are_refused(self):
    scene = run_files.scene()
    other = scene._replace(clean_label=scene.clean_label[::-1].copy())
    a, b = self._write('a', _NOISE), self._write('b', _NOISE, seed=4, scene=other)
    with self.assertRaisesRegex(types.UsageError, r'--runs: .*b_seed4 is on other data \(digits'):
      self._audit(a, b)

  def test_the_same_noise_is_found_where_nothing_is_claimed_of_it(self):
    turns = _NOISE._replace(sampling=protection.CYCLIC)
    a = self._write('a', turns)
    b = self._write('b', turns)
    # A round twice: of turns that are not one in each round nothing is claimed.
    self._release_again(b, [*range(1, _ROUNDS + 1), _ROUNDS])
    audit = self._audit(a, b)
    [found] = [f for f in audit.findings if f.name.startswith('noise:')]
    self.assertIs(found.verdict, _FAILED)

  def test_a_run_without_a_seed_is_refused(self):
    path = self._write('a', _NOISE, seed=None)
    with self.assertRaisesRegex(types.UsageError, 'without a seed'):
      several.read(path)

  def test_data_of_other_images_are_other_data_whatever_their_labels(self):
    a, b, c = (
        self._write(name, _NOISE, seed=seed, inputs={'training images': images})
        for name, seed, images in (('a', 3, '01'), ('b', 4, '02'), ('c', 5, '01'))
    )
    self.assertEqual(self._audit(a, c).status, 0)
    with self.assertRaisesRegex(types.UsageError, 'is on other data'):
      self._audit(a, b)

  def test_another_scene_of_the_same_data_has_the_same_examples_and_other_clients(self):
    scene = run_files.scene()
    other = scene._replace(client_of=scene.client_of[::-1].copy())
    audit = self._audit(
        self._write('a', _NOISE), self._write('b', _NOISE, seed=4, scene=other),
        self._write('c', _NOISE, seed=5),
    )
    self.assertEqual(audit.status, 0)
    together = self._together(audit)
    example, client = protection.Unit.EXAMPLE.value, protection.Unit.CLIENT.value
    self.assertEqual(together[client, (1, 2, 3)], 'inf')
    self.assertLess(together[client, (2,)], together[client, (1, 3)])
    self.assertLess(together[client, (1, 3)], together[example, (1, 2, 3)])
    self.assertLess(together[example, (1, 2, 3)], math.inf)
    self.assertIn('The clients of these runs differ.', audit.text())
    units = {u['unit'] for u in json.loads(audit.files['events.json'])['units']}
    self.assertIn('one client of runs 1 and 3', units)

  def test_shows_neither_seeds_nor_names(self):
    audit = self._audit(
        self._write('a', _NOISE, seed=987654), self._write('b', _NOISE, seed=4)
    )
    for text in (audit.text(), audit.json(), *audit.files.values()):
      self.assertNotIn('987654', text)
      self.assertNotIn(self.root, text)

  def test_the_chains_can_be_followed_from_json(self):
    audit = self._audit(self._write('a', _NOISE), self._write('b', _NOISE, seed=4))
    for run in json.loads(audit.json())['runs']:
      self.assertLen(run['entries'], _ROUNDS)
      self.assertEqual(set(run), {'declared', 'seal', 'entries', 'head'})

  def test_a_run_that_declares_nothing_is_refused(self):
    path = self._write('a', _NOISE, finished=False)
    os.remove(os.path.join(path, 'uplink.json'))
    with self.assertRaisesRegex(types.UsageError, 'has no uplink.json'):
      self._audit(path)


if __name__ == '__main__':
  absltest.main()
