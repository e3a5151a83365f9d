"""Attacks on the files of a real run, by one who owns it and knows its key."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import shutil
import tempfile
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tff_noise.algorithms import averaged_model
from tff_noise.audit import drawn_scene
from tff_noise.audit import finding
from tff_noise.audit import first_round
from tff_noise.audit import last_rounds
from tff_noise.audit import rebuilt
from tff_noise.audit import replay
from tff_noise.audit import reports
from tff_noise.audit import runs
from tff_noise.data import scene as scene_lib
from tff_noise.federated import computation
from tff_noise.federated import gaussian_sum
from tff_noise.privacy import accountant
from tff_noise.privacy import costs as costs_lib
from tff_noise.privacy import ledger
from tff_noise.privacy import mechanism
from tff_noise.program import data
from tff_noise.program import flags
from tff_noise.program import ledger_seal
from tff_noise.program import model_files
from tff_noise.program import private_labels
from tff_noise.program import run_directory
from tff_noise.program import task as task_lib
from tff_noise.program import trained_models
from tff_noise.program import training_run
from tff_noise.report import runs as report_runs
from tff_noise.selection import policies

_PASSED, _FAILED = finding.Verdict.PASSED, finding.Verdict.FAILED
_ROUNDS = 3


def _config(root, **changes):
  given = {
      'method': 'feddpcont', 'rounds': _ROUNDS, 'clients': 6, 'clients_per_round': 3,
      'local_epochs': 1, 'checkpoint_every': 2, 'noise_rate': 0.1, 'batch_size': 256,
      'root_dir': root, 'run_name': 'run', **changes,
  }
  return flags.config_from(flags.parse(['test', *(f'--{k}={v}' for k, v in given.items())]))


def _no_noise(self, parts, round_num):
  del self, round_num  # Unused.
  return [tf.zeros_like(part) for part in parts]


class AttackTest(federated_test_case.FederatedTestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    root = tempfile.mkdtemp(dir=absltest.get_default_test_tmpdir())
    cls.config = _config(os.path.join(root, 'whole'))
    cls.dataset = data.load_dataset(cls.config)
    cls.scene = data.load_scene(cls.config, cls.dataset, None)
    directory = run_directory.locate(cls.config.root_dir, 'run')
    training_run.run(cls.config, cls.dataset, cls.scene, directory)
    cls.whole = directory.path
    cls.prepared = {}
    # A function of what was prepared, and most of what an audit takes.
    row = functools.cache(lambda i: cls.row(*cls.asked[i]))
    cls.row, cls.asked = staticmethod(first_round._row), {}

    def cached(config, prepared, *args):
      cls.asked[id(prepared)] = (config, prepared, *args)
      return row(id(prepared))

    patch = mock.patch.object(first_round, '_row', cached)
    patch.start()
    cls.addClassCleanup(patch.stop)

  def setUp(self):
    super().setUp()
    self.run_ = os.path.join(self.create_tempdir().full_path, 'run')
    shutil.copytree(self.whole, self.run_)

  def _file(self, name):
    return os.path.join(self.run_, name)

  def _read(self, name):
    with open(self._file(name), encoding='utf-8') as file:
      return file.read()

  def _write(self, name, text):
    with open(self._file(name), 'w', encoding='utf-8') as file:
      file.write(text)

  def _rows(self):
    """The lines of the metrics, the header first."""
    return [line.split(',') for line in self._read('metrics.csv').splitlines()]

  def _write_rows(self, *rows):
    self._write('metrics.csv', '\n'.join(map(','.join, rows)) + '\n')

  @contextlib.contextmanager
  def _another_run(self, change=lambda scene: scene, **flags_):
    """Puts a run of these flags, on a changed scene, in the place of the whole one."""
    root = self.create_tempdir().full_path
    config = _config(root, **flags_)
    scene = change(data.load_scene(config, self.dataset, None))
    directory = run_directory.locate(root, 'run')
    with mock.patch.object(self, 'scene', scene):
      training_run.run(config, self.dataset, scene, directory)
      shutil.rmtree(self.run_)
      shutil.copytree(directory.path, self.run_)
      yield config

  def _audit(self, **changes):
    """The audit of the files, by the configuration that they have."""
    config = dataclasses.replace(self.config, **changes)
    key = tuple(sorted(changes.items()))
    if key not in self.prepared:
      self.prepared[key] = task_lib.prepare(config, self.dataset, self.scene)
    run = report_runs.read_run(self.run_)
    seal = ledger_seal.of_run(run_directory.RunDirectory(self.run_))
    found = rebuilt.findings(run, seal, config, self.prepared[key], self.dataset, self.scene)
    method = finding.Audit('', (), (), {'declared': run.uplink})
    return runs.audit(run, seal, 1e-5, runs.ByCode(method, tuple(found)), '')

  def _assert_found(self, audit, *tests):
    failed = [f.name for f in audit.findings if f.verdict is _FAILED]
    for test in tests:
      self.assertTrue(any(name.startswith(test) for name in failed), f'{test} not in {failed}')
    self.assertEqual(audit.status, 1)

  def _forge(self, change):
    """Changes the lines of the ledger, recomputes the chain, and makes `privacy.json` anew."""
    lines = [json.loads(line) for line in self._read('ledger.jsonl').splitlines()]
    seal = ledger_seal.of_run(run_directory.RunDirectory(self.run_))
    declared = json.loads(self._read('uplink.json'))
    head, texts = ledger.genesis(declared, seal), []
    for line in change(lines):
      content = {k: v for k, v in line.items() if k not in ('previous', 'hash')}
      content['previous'] = head
      head = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
      texts.append(json.dumps({**content, 'hash': head}) + '\n')
    self._write('ledger.jsonl', ''.join(texts))
    entries, _ = ledger.read(self._file('ledger.jsonl'), declared, seal)
    self._write('privacy.json', json.dumps(costs_lib.to_json(entries, declared)))

  def _edit_config(self, **flags_):
    config = json.loads(self._read('config.json'))
    config['flags'].update(flags_)
    self._write('config.json', json.dumps(config))

  def _cut(self, rounds):
    """Takes all but the first rounds out of the metrics."""
    for name in ('metrics.csv', 'timing.csv'):
      self._write(name, ''.join(self._read(name).splitlines(keepends=True)[: rounds + 1]))
    self._write('summary.json', json.dumps({**json.loads(self._read('summary.json')), 'rounds': 1}))

  def test_a_run_as_it_was_made_passes_every_test(self):
    audit = self._audit()
    not_passed = [f for f in audit.findings if f.verdict is not finding.Verdict.PASSED]
    self.assertEqual(not_passed, [])
    self.assertEqual(audit.status, 0)

  def test_updates_dropped_from_every_entry(self):
    self._forge(lambda lines: [{**line, 'fields': [0]} for line in lines if 'fields' in line])
    privacy = json.loads(self._read('privacy.json'))
    self.assertAlmostEqual(privacy['totals'][0]['epsilon'], 0.81)  # What was gained by it.
    self._assert_found(self._audit(), 'ledger: its entries', 'state')

  def test_text_in_place_of_a_measured_number(self):
    header, first, *rest = self._read('metrics.csv').splitlines()
    cells = first.split(',')
    cells[header.split(',').index('test_accuracy')] = 'high'
    self._write('metrics.csv', '\n'.join([header, ','.join(cells), *rest]) + '\n')
    self._assert_found(self._audit(), 'metrics.csv: the first measured round')

  def _change_metrics(self, change):
    """Puts `change(header, rows)` in place of the columns and rows of `metrics.csv`."""
    header, *rows = [line.split(',') for line in self._read('metrics.csv').splitlines()]
    header, rows = change(header, rows)
    self._write('metrics.csv', '\n'.join(map(','.join, [header, *rows])) + '\n')

  def test_what_is_measured_cannot_be_left_out(self):
    def blank(header, rows):
      for row in rows:
        for name in ('test_accuracy', 'test_loss'):
          row[header.index(name)] = 'nan'
      return header, rows

    self._change_metrics(blank)
    self._assert_found(self._audit(), 'metrics.csv: the first measured round')

  @parameterized.parameters('rejected', 'bytes_up', 'train_loss')
  def test_no_column_can_be_left_out(self, name):
    def without(header, rows):
      i = header.index(name)
      return header[:i] + header[i + 1 :], [row[:i] + row[i + 1 :] for row in rows]

    self._change_metrics(without)
    self._assert_found(self._audit(), 'metrics.csv: stages')

  def test_a_damaged_checkpoint_hides_no_other_finding(self):
    self._forge(lambda lines: lines[1:])
    for folder, _, files in os.walk(os.path.join(self.run_, 'state')):
      for name in files:
        os.truncate(os.path.join(folder, name), 10)
    self._assert_found(self._audit(), 'state: every checkpoint', 'ledger: its entries')

  def _edit_checkpoint(self, place, change, **changes):
    """Changes an array of the last checkpoint; returns the digest of the state that it is then."""
    folder = self._file('state')
    path = os.path.join(folder, sorted(os.listdir(folder))[-1])
    with np.load(path) as file:
      arrays = dict(file)
    (name,) = [name for name in arrays if name.endswith(place)]
    np.savez(path, **{**arrays, name: change(arrays[name])})
    self._audit(**changes)
    prepared = self.prepared[tuple(sorted(changes.items()))]
    states = replay.load_states(
        report_runs.read_run(self.run_), prepared.algorithm, prepared.task, prepared.federation
    )
    return states[-1].digest

  def test_a_checkpoint_with_other_weights(self):
    self._edit_checkpoint('trainable/0', lambda weights: weights + 1e-3)
    self._assert_found(self._audit(), 'state: checkpoints are those of the ledger')
    directory = run_directory.RunDirectory(self.run_)
    os.remove(directory.file('summary.json'))
    with self.assertRaisesRegex(ledger.LedgerError, 'the checkpoint is not the one that'):
      training_run.run(self.config, self.dataset, self.scene, directory)

  def test_label_exchange_dropped(self):
    self._forge(lambda lines: lines[1:])
    self._assert_found(self._audit(), 'ledger: its entries', 'state')

  def test_entries_added_doubled_and_of_fewer_clients(self):
    for change in (
        lambda lines: [*lines[:-1], lines[-2], lines[-1]],
        lambda lines: [lines[0], *lines],
        lambda lines: [*lines[:-2], {**lines[-2], 'clients': 2}, lines[-1]],
        lambda lines: [*lines[:-2], {**lines[-2], 'stage': 'other'}, lines[-1]],
    ):
      shutil.copytree(self.whole, self.run_, dirs_exist_ok=True)
      self._forge(change)
      self._assert_found(self._audit(), 'ledger: its entries')

  def test_ledger_of_another_seed(self):
    # As it is, and made to follow from this run's files.
    other = os.path.join(self.create_tempdir().full_path, 'other')
    shutil.copytree(self.run_, other)
    config = json.loads(self._read('config.json'))
    config['flags']['seed'] = 1
    with open(os.path.join(other, 'config.json'), 'w', encoding='utf-8') as file:
      json.dump(config, file)
    seal = ledger_seal.of_run(run_directory.RunDirectory(other))
    fields = self.prepared_fields()
    book = ledger.Ledger(fields, json.loads(self._read('uplink.json')), '', seal)
    mine = [json.loads(line) for line in self._read('ledger.jsonl').splitlines()]
    path = os.path.join(other, 'ledger.jsonl')
    os.remove(path)
    book = ledger.Ledger(fields, json.loads(self._read('uplink.json')), path, seal)
    for line in [line for line in mine if 'fields' in line]:
      sent = [fields[i] for i in line['fields']]
      cohort = np.arange(6) if line['clients'] == 6 else np.array([1, 2, 3])
      book.record(line['round_num'], line['stage'], sent, cohort)
    shutil.copy(path, self._file('ledger.jsonl'))
    self._assert_found(self._audit(), 'ledger: every entry follows')
    self._write('ledger.jsonl', '')
    with open(path, encoding='utf-8') as file:
      foreign = [json.loads(line) for line in file]
    self._forge(lambda _: foreign)
    self._assert_found(self._audit(), 'ledger: its entries', 'state')

  def prepared_fields(self):
    self._audit()
    return self.prepared[()].algorithm.fields

  def test_rounds_cut(self):
    self._cut(1)
    self._forge(lambda lines: [line for line in lines if line['round_num'] == 1])
    self._assert_found(self._audit(), 'metrics.csv: stages', 'state', 'clients.csv')
    # And the configuration made to say so.
    self._edit_config(rounds=1)
    self._forge(lambda lines: lines)
    self._assert_found(self._audit(rounds=1), 'state', 'clients.csv')

  @parameterized.parameters(('seed', 1), ('rounds', 2), ('learning_rate', 0.3))
  def test_configuration_edited(self, name, value):
    self._edit_config(**{name: value})
    self._assert_found(self._audit(), 'ledger: every entry follows')
    # And the chain made to follow from it.
    self._forge(lambda lines: lines)
    tests = {
        'seed': ('ledger: its entries', 'clients.csv', 'metrics.csv: the first measured round'),
        'rounds': ('ledger: its entries', 'metrics.csv: stages'),
        'learning_rate': ('metrics.csv: the first measured round',),
    }
    self._assert_found(self._audit(**{name: value}), 'state', *tests[name])

  def test_histogram_of_labels_that_were_not_flipped(self):
    config = self.config
    self._audit()
    prepared = self.prepared[()]
    states = replay.load_states(
        report_runs.read_run(self.run_), prepared.algorithm, prepared.task, prepared.federation
    )
    found = reports.findings(prepared, self.scene, config.seed, states)
    self.assertEqual([f.verdict.value for f in found], ['passed', 'passed'])
    labels = np.bincount(self.scene.noisy_label[self.scene.client_of >= 0], minlength=10)
    true = [
        s._replace(state=s.state._replace(records={**s.records, 'label_histogram': labels}))
        for s in states
    ]
    found = reports.findings(prepared, self.scene, config.seed, true)
    self.assertEqual([f.verdict.value for f in found], ['passed', 'failed'])

  def test_code_that_trains_on_labels_that_were_not_flipped(self):
    config = _config('unused', training_labels='private', method='fedavg')
    right = task_lib.prepare(config, self.dataset, self.scene)
    found = reports.findings(right, self.scene, config.seed, [])
    self.assertEqual([f.verdict.value for f in found], ['passed'])
    with mock.patch.object(private_labels, 'flip', lambda federation, *_: federation):
      wrong = task_lib.prepare(config, self.dataset, self.scene)
    found = reports.findings(wrong, self.scene, config.seed, [])
    self.assertEqual([f.verdict.value for f in found], ['failed'])

  def test_another_scene(self):
    labels = self.scene.noisy_label.copy()
    labels[:5] = (labels[:5] + 1) % 10
    scene_lib.save(self.scene._replace(noisy_label=labels), self._file('scene.npz'))
    self._assert_found(self._audit(), 'ledger: every entry follows')

  def test_labels_that_were_chosen_for_their_flips(self):
    labels = self.scene.noisy_label.copy()
    labels[:5] = (labels[:5] + 1) % 10
    for change, what in (({'noisy_label': labels}, 'labels'), (
        {'client_of': np.roll(self.scene.client_of, 1)}, "clients' examples"
    )):
      found = drawn_scene.check(self.config, self.dataset, self.scene._replace(**change), True)
      self.assertEqual((found.verdict, found.detail), (_FAILED, f'{what} are others'))
    found = drawn_scene.check(self.config, self.dataset, self.scene, True)
    self.assertEqual(found.verdict, finding.Verdict.PASSED)
    given = dataclasses.replace(self.config, scene='given.npz')
    found = drawn_scene.check(given, self.dataset, self.scene, True)
    self.assertEqual(found.verdict, finding.Verdict.NO_EVIDENCE)

  def test_data_whose_order_their_owner_chose_are_no_evidence_of_flips(self):
    for dataset, change, verdict in (
        ('npz', {}, finding.Verdict.NO_EVIDENCE), ('npz', {'label_prior': 'none'}, _PASSED),
        ('digits', {}, _PASSED),
    ):
      config = dataclasses.replace(self.config, dataset=dataset, **change)
      with mock.patch.object(drawn_scene.data, 'load_scene', return_value=self.scene):
        found = drawn_scene.check(config, self.dataset, self.scene, True)
      self.assertEqual(found.verdict, verdict, (dataset, change))

  def test_all_labels_of_one_client_that_are_reported_as_they_are(self):
    # As many as the mechanism keeps in all, and of one client all.
    flips = mechanism.randomized_response('0.81', 10)
    labels = [np.zeros(100, np.int32)] * 10
    rest = [np.repeat([0, 1], [11, 89])] * 8
    chosen = [np.zeros(100, np.int32), *rest, np.repeat([0, 1], [12, 88])]
    self.assertRegex(reports._kept_by_choice(labels, chosen, flips), '^100 of 100 reports of a')
    honest = [np.repeat([0, 1], [20, 80])] * 10
    self.assertEqual(reports._kept_by_choice(labels, honest, flips), '')
    self.assertRegex(reports._kept_by_choice(labels, labels, flips), '^1000 of 1000 reports are')

  def test_reports_that_are_the_labels_themselves(self):
    config = _config('unused', training_labels='private', method='fedavg')
    # Each example belongs to a client whose flip keeps its label, where there is one.
    flips = mechanism.randomized_response(config.label_epsilon, 10)
    ids = np.concatenate(scene_lib.examples_of(self.scene)).astype(np.int64)
    labels, owners = self.scene.noisy_label[ids], self.scene.client_of.copy()
    for i in range(self.scene.num_clients):
      secret = mechanism.simulation_secret(config.seed, i)
      [reports_] = mechanism.flip_all([(labels, ids, secret)], flips)
      owners[ids[reports_ == labels]] = i
    scene = self.scene._replace(client_of=owners)
    prepared = task_lib.prepare(config, self.dataset, scene)
    [found] = reports.findings(prepared, scene, config.seed, [])
    self.assertEqual(found.verdict, _FAILED)
    self.assertRegex(found.detail, 'are the labels themselves, of which 20.0% are expected')

  def test_exchanges_that_only_what_clients_sent_decides(self):
    asked = [
        replay.Exchange(ledger.Entry(1, 'train', fields, clients, ''), decided, trains)
        for fields, clients, decided, trains in (
            ((0,), 6, True, False), ((1,), 3, False, False), ((2,), 3, False, True)
        )
    ]
    done = replay.Replayed((replay.Round(tuple(asked), None, None),), 1)
    entries = [e.entry for e in asked]
    for there, expected in ((3, ('', 1, 0, 0)), (2, ('', 1, 1, 1)), (1, ('', 1, 2, 1))):
      self.assertEqual(replay.differences(done, entries[:there], 1)[:4], expected)
    for change, of_cohort in (({'cohort': 'ab'}, True), ({'cohort': 'ab', 'clients': 5}, False)):
      found = replay.differences(done, [entries[0]._replace(**change), *entries[1:]], 1)
      self.assertEqual((bool(found.different), found.of_cohort), (True, of_cohort))

  def test_a_part_in_which_nobody_was_asked(self):
    nobody = replay.Round((), None, None)
    asked = replay.Exchange(ledger.Entry(1, 'train', (0,), 3, ''), True, True)
    done = replay.Replayed((replay.Round((asked,), None, None), nobody), 2)
    self.assertEqual(replay.differences(done, [], 2, first=2).different, '')
    self.assertNotEmpty(replay.differences(done, [], 2).different)

  def test_participations_and_metrics_edited(self):
    rows = self._read('clients.csv').splitlines()
    column = rows[0].split(',').index('participations')
    cells = rows[1].split(',')
    cells[column] = str(int(float(cells[column])) + 1)
    self._write('clients.csv', '\n'.join([rows[0], ','.join(cells), *rows[2:]]) + '\n')
    self._assert_found(self._audit(), 'clients.csv')
    text = self._read('metrics.csv').splitlines()
    column, cells = text[0].split(',').index('clients'), text[2].split(',')
    cells[column] = '2'
    self._write('metrics.csv', '\n'.join([*text[:2], ','.join(cells), *text[3:]]) + '\n')
    self._assert_found(self._audit(), 'metrics.csv: stages')

  def test_turns_and_a_tree_of_noise(self):
    root = self.create_tempdir().full_path
    turns = {
        'method': 'fedavg', 'clients_per_round': 4, 'client_dp_noise': 1, 'client_dp_clip': 0.3,
        'client_sampling': 'cyclic', 'client_dp_mechanism': 'tree',
    }
    config = _config(root, **turns)
    directory = run_directory.locate(root, 'run')
    training_run.run(config, self.dataset, self.scene, directory)
    shutil.rmtree(self.run_)
    shutil.copytree(directory.path, self.run_)
    audit = self._audit(**dataclasses.asdict(config))
    not_passed = [f for f in audit.findings if f.verdict is not finding.Verdict.PASSED]
    self.assertEqual(not_passed, [])
    # Of 6 clients 4 a round, two of them in rounds 1 and 2, and in node 1-2 twice: 1 + 4.
    expected = accountant.gaussian_epsilon(1.0, population=4, cohort=4, rounds=5, delta=1e-5)
    privacy = json.loads(self._read('privacy.json'))
    self.assertEqual([t['epsilon'] for t in privacy['totals']], [expected] * 3)
    self.assertIn('in a public order of 6 clients', privacy['releases'][0]['accounting'])
    # As if noise that was used could be drawn again, by one who makes the ledger anew.
    digest = self._edit_checkpoint(
        'numerator_state/round_num', lambda n: n - 1, **dataclasses.asdict(config)
    )
    key = ledger_seal.of_run(run_directory.RunDirectory(self.run_)).key
    state = ledger.commitment(key, b'state', digest)
    self._forge(lambda lines: [*lines[:-1], {**lines[-1], 'state': state}])
    self._assert_found(self._audit(**dataclasses.asdict(config)), 'noisy sum: every round of')
    # As if the clients of each round were drawn.
    with mock.patch.object(policies, 'cyclic', policies.uniform):
      self._assert_found(
          self._audit(**dataclasses.asdict(config)), 'ledger: its entries', 'clients.csv'
      )

  @parameterized.named_parameters(
      # Steps so short that no accuracy or loss tells.
      ('labels_as_they_are', {'training_labels': 'private', 'learning_rate': 1e-4},
       (private_labels, 'flip', lambda federation, *_: federation)),
      ('no_noise', {'client_dp_noise': 1, 'client_dp_clip': 1e-3},
       (gaussian_sum.GaussianSum, 'noise', _no_noise)),
  )
  def test_a_run_by_code_that_protects_nothing(self, changes, patched):
    root = self.create_tempdir().full_path
    config = _config(root, method='fedavg', noise_rate=0, **changes)
    directory = run_directory.locate(root, 'run')
    scene = data.load_scene(config, self.dataset, None)
    self.enter_context(mock.patch.object(self, 'scene', scene))
    for honest in (True, False):
      with contextlib.nullcontext() if honest else mock.patch.object(*patched):
        training_run.run(config, self.dataset, self.scene, directory)
      shutil.rmtree(self.run_)
      shutil.move(directory.path, self.run_)
      audit = self._audit(**dataclasses.asdict(config))
      failed = [f.name for f in audit.findings if f.verdict is _FAILED]
      self.assertLen(failed, 0 if honest else 1)
      self.assertStartsWith(''.join(failed), '' if honest else 'state: the rounds up to the last')

  def test_a_hook_that_ran_beside_the_code_is_told(self):
    run = report_runs.read_run(self.run_)._replace(hook='my.code:watch')
    self.enter_context(mock.patch.object(report_runs, 'read_run', lambda _: run))
    [found] = [f for f in self._audit().findings if f.name.startswith('ledger: one code made')]
    self.assertIn('; beside it ran --metrics_hook=my.code:watch, which is no part', found.detail)

  def test_what_other_code_comes_to_is_no_evidence(self):
    def double(header, rows):
      cell = header.index('train_loss')
      rows[0][cell] = str(2 * float(rows[0][cell]))
      return header, rows

    self._change_metrics(double)
    self._edit_checkpoint('trainable/0', lambda weights: weights + 1)
    tests = ('metrics.csv: the first measured round', 'state: the rounds up to the last')
    self._assert_found(self._audit(), *tests)
    self.enter_context(mock.patch.object(rebuilt.code_version, 'digest', lambda: 'another'))
    found = [f.verdict for f in self._audit().findings if f.name.startswith(tests)]
    self.assertEqual(found, [finding.Verdict.NO_EVIDENCE] * 2)

  def test_a_model_that_diverged_ends_where_it_was(self):
    self._audit()
    prepared = self.prepared[()]
    states = replay.load_states(
        report_runs.read_run(self.run_), prepared.algorithm, prepared.task, prepared.federation
    )
    diverged = [
        s._replace(state=s.state._replace(
            models=tf.nest.map_structure(lambda w: np.full_like(w, np.nan), s.state.models)
        )) for s in states
    ]
    for last, verdict in ((diverged[-1], 'passed'), (states[-1], 'failed')):
      found = last_rounds.check(self.config, prepared, [diverged[0], last], True)
      self.assertEqual(found.verdict.value, verdict)
    # One infinite number is as far from everything.
    weights = [np.array(w) for w in states[-1].state.weights.trainable]
    weights[-1][..., 0] = -np.inf
    models = {'model': type(states[-1].state.weights)(weights, [])}
    infinite = states[-1]._replace(state=states[-1].state._replace(models=models))
    found = last_rounds.check(self.config, prepared, [states[0], infinite], True)
    self.assertEqual(found.verdict.value, 'failed')

  def test_a_mean_of_models_hides_no_other_models(self):
    # It begins at 0, so that it seems to go far; a model that stays where it began does not.
    self._audit()
    prepared = self.prepared[()]
    last = replay.load_states(
        report_runs.read_run(self.run_), prepared.algorithm, prepared.task, prepared.federation
    )[-1]
    prepared = prepared._replace(
        algorithm=averaged_model.of(prepared.algorithm, prepared.task.model, 0.8)
    )
    first = prepared.algorithm.init().weights
    for changed, verdict in ((last.state.weights, 'passed'), (first, 'failed')):
      models = {'model': changed, averaged_model.AVERAGED: last.state.weights}
      state = last._replace(state=last.state._replace(models=models))
      found = last_rounds.check(self.config, prepared, [state], True)
      self.assertEqual(found.verdict.value, verdict)

  def test_a_checkpoint_that_is_there_twice_hides_no_round(self):
    first, last = sorted(os.listdir(self._file('state')))
    shutil.copyfile(self._file(f'state/{last}'), self._file(f'state/{first}'))
    audit = self._audit()
    self._assert_found(audit, 'state: checkpoints are those of the ledger')
    [verdict] = [f for f in audit.findings if 'end at it' in f.name]
    self.assertIs(verdict.verdict, finding.Verdict.NO_EVIDENCE)

  def test_where_noise_is_most_of_the_way_less_of_it_shows(self):
    self._audit()
    prepared = self.prepared[()]
    states = replay.load_states(
        report_runs.read_run(self.run_), prepared.algorithm, prepared.task, prepared.federation
    )
    first, last = (s.state.weights for s in states)

    def check(share):
      """Of a run that went this share of the way."""
      weights = tf.nest.map_structure(lambda a, b: a + share * (b - a), first, last)
      state = states[-1].state._replace(models={'model': weights})
      changed = [states[0], states[-1]._replace(state=state)]
      return last_rounds.check(self.config, prepared, changed, True).verdict.value

    self.assertEqual([check(share) for share in (1, 0.6, 0.4)], ['passed', 'passed', 'failed'])
    noisy = property(lambda self: self.trains)
    with mock.patch.object(computation.Computation, 'is_noisy', noisy):
      self.assertEqual(
          [check(share) for share in (1, 0.95, 0.8, 0.4)],
          ['passed', 'passed', 'no evidence', 'failed'],
      )

  def test_from_the_start_where_there_is_one_checkpoint(self):
    folder = self._file('state')
    first, _ = sorted(os.listdir(folder))
    os.remove(os.path.join(folder, first))
    [verdict] = [f for f in self._audit().findings if 'end at it' in f.name]
    self.assertEqual(verdict.detail, 'rounds 1 to 3, to 50% of how far they go')
    self.assertIs(verdict.verdict, finding.Verdict.PASSED)
    os.remove(os.path.join(folder, sorted(os.listdir(folder))[0]))
    [verdict] = [f for f in self._audit().findings if 'end at it' in f.name]
    self.assertIs(verdict.verdict, finding.Verdict.NO_EVIDENCE)

  def test_the_last_checkpoint_has_to_be_there(self):
    folder = self._file('state')
    os.remove(os.path.join(folder, sorted(os.listdir(folder))[-1]))
    self._assert_found(self._audit(), 'state: checkpoints')
    # A run that goes on may have died before it was written.
    os.remove(self._file('summary.json'))
    [verdict] = [f for f in self._audit().findings if f.name.startswith('state: checkpoints')]
    self.assertIs(verdict.verdict, finding.Verdict.NO_EVIDENCE)
    self.assertIn('and one of round 3 was saved', verdict.detail)

  def test_a_run_that_ended_early(self):
    # The smallest step size: no round is better than the first.
    changes = {
        'method': 'fedavg', 'rounds': 8, 'learning_rate': 1e-12, 'early_stopping': 2,
        'validation_fraction': 0.05,
    }
    with self._another_run(**changes) as config:
      summary = json.loads(self._read('summary.json'))
      self.assertEqual(
          (summary['status'], summary['rounds'], summary['planned_rounds']), ('ended early', 3, 8)
      )
      self.assertEqual(self._audit(**dataclasses.asdict(config)).status, 0)
      # As if it had gone on being better.
      header, *rows = self._rows()
      rows[1][header.index('validation_accuracy')] = '0.99'
      self._write_rows(header, *rows)
      self._assert_found(self._audit(**dataclasses.asdict(config)), 'metrics.csv: stages')

  def test_a_run_that_clients_ended_early(self):
    # Client 0 alone is there at first, and withholds nothing: nothing is validated then.
    arrivals = os.path.join(self.create_tempdir().full_path, 'arrivals.csv')
    with open(arrivals, 'w', encoding='utf-8') as file:
      file.write('client,joins,leaves\n' + ''.join(f'{i},4,\n' for i in range(1, 6)))
    # The smallest step size: no round is better than the first that is validated.
    changes = {
        'method': 'fedavg', 'rounds': 9, 'learning_rate': 1e-12, 'early_stopping': 2,
        'client_validation_fraction': 0.2, 'clients_per_round': 1, 'arrivals': arrivals,
    }

    def but_of_the_first(scene):
      return scene._replace(is_withheld=scene.is_withheld & (scene.client_of > 0))

    with self._another_run(but_of_the_first, **changes) as config:
      summary = json.loads(self._read('summary.json'))
      self.assertEqual((summary['status'], summary['rounds']), ('ended early', 6))
      self.assertEqual(
          (summary['validation_chosen_by'], summary['validation_chosen_round']),
          ('client_validation_accuracy', 4),
      )
      directory = run_directory.RunDirectory(self.run_)
      best = trained_models.load(directory, model_files.BEST)
      self.assertEqual(best.round_num, 4)
      final = trained_models.load(directory, model_files.FINAL)
      header, *rows = self._rows()
      column = header.index('client_validation_accuracy')
      self.assertEqual([row[column] == 'nan' for row in rows], [True] * 3 + [False] * 3)
      self.assertEqual(
          (best.validation_accuracy, final.validation_accuracy),
          (float(rows[3][column]), float(rows[5][column])),
      )
      others = [
          f.name for f in self._audit(**dataclasses.asdict(config)).findings
          if f.verdict is not finding.Verdict.PASSED
      ]
      self.assertEqual(others, ['scene: is the one that the flags draw'])
      rows[4][column] = '0.99'  # As if it had gone on being better.
      self._write_rows(header, *rows)
      self._assert_found(self._audit(**dataclasses.asdict(config)), 'metrics.csv: stages')

  def test_what_clients_measure_first_is_computed_again(self):
    with self._another_run(method='fedavg', client_validation_fraction=0.2) as config:
      self.assertEqual(self._audit(**dataclasses.asdict(config)).status, 0)
      header, *rows = self._rows()
      column = header.index('client_validation_accuracy')
      rows[0][column] = str(float(rows[0][column]) + 0.1)
      self._write_rows(header, *rows)
      self._assert_found(
          self._audit(**dataclasses.asdict(config)), 'metrics.csv: the first measured round'
      )

  def test_code_that_validates_with_labels_that_were_not_flipped(self):
    config = _config(
        'unused', training_labels='private', method='fedavg', client_validation_fraction=0.2
    )
    scene = data.load_scene(config, self.dataset, None)
    flip = private_labels.flip

    def of_training_alone(federation, *args):
      return flip(federation, *args)._replace(withheld=federation.withheld)

    for code, verdict in ((flip, 'passed'), (of_training_alone, 'failed')):
      with mock.patch.object(private_labels, 'flip', code):
        prepared = task_lib.prepare(config, self.dataset, scene)
      found = reports.findings(prepared, scene, config.seed, [])
      self.assertEqual([f.verdict.value for f in found], [verdict])

  def test_what_is_written_tells_neither_seed_nor_cohorts(self):
    audit = self._audit()
    for text in (audit.text(), audit.json()):
      self.assertNotIn('seed=', text)
      self.assertNotIn(self.run_, text)
    key = ledger_seal.of_run(run_directory.RunDirectory(self.run_)).key
    self.assertNotIn(key.hex(), audit.json())
    self.assertNotIn('participations":', audit.json())

  def test_an_outsider_can_follow_the_chain(self):
    content = json.loads(self._audit().json())
    head = hashlib.sha256(
        json.dumps([content['declared'], content['seal']], sort_keys=True).encode()
    ).hexdigest()
    for entry in content['entries']:
      line = json.dumps({**entry, 'previous': head}, sort_keys=True)
      head = hashlib.sha256(line.encode()).hexdigest()
    self.assertEqual(head, content['head'])


class CheckpointsTest(absltest.TestCase):

  def test_rounds_that_other_code_did_before_it_was_replaced_are_undone(self):
    path = os.path.join(self.create_tempdir().full_path, 'ledger.jsonl')
    declared = [{'name': 'update', 'disclosure': 'sum', 'protection': {'kind': 'none'}}]
    seal = ledger.Seal('run', 'first', b'k' * 32)
    first = ledger.Ledger(('update',), declared, path, seal)
    for round_num in (1, 2):
      first.record(round_num, 'train', ['update'], np.arange(3))
    # It dies after round 2, without a checkpoint: the second code begins with round 1.
    second = ledger.Ledger(('update',), declared, path, seal, 'second')
    second.record(1, 'train', ['update'], np.arange(3))
    second.save(1, b'state')
    lines = ledger.read_lines(path, declared, seal)
    state = mock.Mock(round_num=1, ledger=second.position, digest=b'state')
    run = mock.Mock(uplink=declared, rounds=[1], finished=False)
    replayed = mock.Mock(rounds=[])
    found = replay._checkpoints(lines, replayed, [state], seal, run)
    self.assertIs(found.verdict, finding.Verdict.PASSED, found.detail)
    # A round more than is said, of the code that went on, is found.
    second.record(2, 'train', ['update'], np.arange(3))
    second.save(1, b'state')
    lines = ledger.read_lines(path, declared, seal)
    state = mock.Mock(round_num=1, ledger=second.position, digest=b'state')
    found = replay._checkpoints(lines, replayed, [state], seal, run)
    self.assertIs(found.verdict, finding.Verdict.FAILED)


if __name__ == '__main__':
  absltest.main()
