"""What every algorithm must hold; a new one is picked up from the catalog."""

import collections
import dataclasses
import functools
import json
import os
import re
import shutil
import sys
import tempfile
from typing import NamedTuple
from unittest import mock

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized
from tensorflow_federated.python.core.impl.computation import computation_impl

from tests import federated_test_case
from tests import graphs
from tests import toy
from tests.algorithms import contract_runs
from tests.algorithms import plans
from tests.program import runs
from tff_noise import types
from tff_noise.algorithms import catalog
from tff_noise.audit import replay
from tff_noise.federated import aggregation
from tff_noise.federated import evaluation
from tff_noise.federated import processes
from tff_noise.optimizers import catalog as optimizers
from tff_noise.privacy import costs as costs_lib
from tff_noise.privacy import ledger
from tff_noise.privacy import protection
from tff_noise.program import clients as clients_lib
from tff_noise.program import training
from tff_noise.runtimes import local
from tff_noise.selection import availability as availability_lib
from tff_noise.selection import policies
from tff_noise.uplink import bounds
from tff_noise.uplink import disclosure
from tff_noise.uplink import uplink

# One of your own, package.module:ENTRY; without it, all of the catalog.
_OWN = os.environ.get('METHOD')
if _OWN is not None and ':' not in _OWN:
  sys.exit(f'METHOD has to be package.module:ENTRY, got {_OWN!r}')
# Bazel's parts have whole methods, each built once; absl, which must not see them, deals out tests.
_PARTS = int(os.environ.pop('TEST_TOTAL_SHARDS', '1'))
_PART = int(os.environ.get('TEST_SHARD_INDEX', '0'))
_NAMES = tuple(catalog.ALGORITHMS)[_PART::_PARTS]
_ALL = (('own', _OWN),) if _OWN else tuple((name, name) for name in _NAMES)
# And where one of its stages is left out.
_WITHOUT_A_STAGE = {'clipfl': {'prune': 0.0}}


def _ledger_file(folder):
  with open(os.path.join(folder, 'ledger.jsonl'), encoding='utf-8') as file:
    return file.read()


def _write_ledger(folder, text):
  with open(os.path.join(folder, 'ledger.jsonl'), 'w', encoding='utf-8') as file:
    file.write(text)


def _unclipped(declared, values):
  shapes = {one.name: one.shape for one in declared}
  return {name: tf.ensure_shape(value, shapes[name]) for name, value in values.items()}


# An algorithm has no state: tests share what takes seconds to build.
_build = functools.cache(contract_runs.build)


@functools.cache
def _build_again(name):
  """The same, of twice as many rounds where the first do not depend on how many there are."""
  entry = catalog.entry(name)
  if entry.stages or entry.plans_rounds:
    return contract_runs.build(name)
  return contract_runs.build(name, rounds=2 * contract_runs.ROUNDS)


class _Ran(NamedTuple):
  """A run from start to end.

  Attributes:
    state: The last.
    metrics: The text of `metrics.csv`.
    folder: Where it ran.
    copies: Where a copy of it as it was after each round is, under the round's number.
  """

  state: training.ProgramState
  metrics: str
  folder: str
  copies: str


@functools.cache
def _ran(name):
  """Runs an algorithm once, for all tests that only look at what a run leaves; none changes it."""
  root = tempfile.mkdtemp(dir=absltest.get_default_test_tmpdir())
  folder, copies = (os.path.join(root, part) for part in ('run', 'copies'))
  os.mkdir(folder)
  return _Ran(*_run(_build(name), folder, copies), folder, copies)


def _run(built, folder, copies=None):
  """Runs in `folder`; puts a copy of it as it is after each round into `copies`."""
  return runs.run(*built, contract_runs.federation(), folder, copies, _evaluators())


@functools.cache
def _evaluators():
  test_examples = types.Examples(np.eye(2, dtype=np.float32), np.array([0, 1], np.int32))
  return evaluation.build_evaluators(toy.linear_model('batch'), {'test': test_examples})


def _entries(name, folder):
  """The entries of a run's ledger, and what may be in them."""
  declared = uplink.to_json(_build(name).algorithm.fields)
  return ledger.read(os.path.join(folder, 'ledger.jsonl'), declared)[0], declared


class ContractTest(federated_test_case.FederatedTestCase):
  # As what programs run; other tests of methods do not.
  OPTIMIZES_GRAPHS = True

  def _assert_same(self, first, second):
    """All of two states: server, records, participations, clients' own states, the ledger."""
    self.assertEqual(first.ledger.count, second.ledger.count)
    np.testing.assert_array_equal(first.ledger.head, second.ledger.head)
    np.testing.assert_array_equal(first.participations, second.participations)
    self.assertEqual(first.records.keys(), second.records.keys())
    for key, value in first.records.items():
      np.testing.assert_array_equal(value, second.records[key], key)
      self.assertEqual(np.asarray(value).dtype, np.asarray(second.records[key]).dtype, key)
    for a, b in ((first.state, second.state), (first.own, second.own)):
      for mine, other in zip(tf.nest.flatten(a), tf.nest.flatten(b), strict=True):
        np.testing.assert_array_equal(mine, other)

  @parameterized.named_parameters(*_ALL)
  def test_names_and_parameters(self, name):
    entry = catalog.entry(name)
    self.assertIn(entry.name, (name, name if _OWN is None else entry.name))
    self.assertTrue(entry.title and entry.paper)
    self.assertTrue(dataclasses.is_dataclass(entry.params))
    with self.assertRaises(dataclasses.FrozenInstanceError):
      entry.params().anything = 1

  @parameterized.named_parameters(*_ALL)
  def test_losses_know_smoothing_temperature_and_flips_of_the_flags(self, name):
    _build(name)
    # Or --temperature, --label_smoothing and private labels would be wrong without a word.
    asked = {'label_smoothing', 'temperature'}
    if _OWN is None:  # One's own may refuse private labels.
      asked.add('keep_probability')
    self.assertLessEqual(
        asked, contract_runs.LOOKED[name],
        'its loss does not take `task.training.loss`',
    )

  @parameterized.named_parameters(*_ALL)
  def test_trains_finite(self, name):
    state = _ran(name).state
    self.assertEqual(state.round_num, _build(name).algorithm.rounds)
    for weights in tf.nest.flatten(state.state.models):
      self.assertTrue(np.isfinite(weights).all())

  @parameterized.named_parameters(*_ALL)
  def test_is_built_the_same_again(self, name):
    # That these operations, which draw nothing without a seed, give the same again is seen where
    # rounds are repeated and resumed.
    first, again = _build(name).algorithm, _build_again(name).algorithm
    for one, other in zip(first.computations, again.computations, strict=True):
      self.assertEqual(graphs.contents(one.next), graphs.contents(other.next), one.name)
    for one, other in zip(*(tf.nest.flatten(a.init()) for a in (first, again)), strict=True):
      np.testing.assert_array_equal(one, other)

  @parameterized.named_parameters(*_ALL)
  def test_draws_the_same_on_a_gpu(self, name):
    # TensorFlow's kernel of this one for GPUs gives other numbers from the same seed.
    for computation_ in _build(name).algorithm.computations:
      found = graphs.devices(computation_.next, 'StatelessMultinomial')
      self.assertLessEqual(found, {'/device:CPU:0'}, computation_.name)

  @parameterized.named_parameters(*_ALL)
  def test_resumes_anywhere_to_the_same_numbers(self, name):
    # Also in the middle of an iteration over all clients, right after labels were corrected, and
    # right after a change of stage.
    summary = _build(name).algorithm.report.summary
    whole, metrics, folder, copies = _ran(name)
    ledger_file = _ledger_file(folder)
    for stopped_after in range(1, whole.round_num):
      with self.subTest(stopped_after):
        copy = os.path.join(self.create_tempdir().full_path, 'copy')
        shutil.copytree(os.path.join(copies, str(stopped_after)), copy)
        before = _ledger_file(copy)
        # The next round is running: what it is about to release may be on disk already.
        self.assertLessEqual(len(before), len(ledger_file))
        # Killed in the middle of the next round, or of the one after a checkpoint that was lost:
        # what is about to be released is on disk, but for the end of a line.
        if stopped_after % 3 == 1:
          _write_ledger(copy, ledger_file[: len(before) + (len(ledger_file) - len(before)) // 2])
        state, resumed_metrics = _run(_build(name), copy)
        self.assertEqual(metrics, resumed_metrics)
        self._assert_same(whole, state)
        # Nothing is forgotten, nothing is added.
        self.assertStartsWith(ledger_file, before)
        self.assertEqual(_ledger_file(copy), ledger_file)
        self.assertEqual(
            json.dumps(summary(whole.records)), json.dumps(summary(state.records))
        )

  @parameterized.named_parameters(*_ALL)
  def test_same_without_optimised_graphs_and_without_cuts(self, name):
    # On graphs that are not optimised other tests hold whole runs against NumPy's. And what is sent
    # lies within its bounds by itself: nothing is lost where it is cut to them.
    optimised = _ran(name).state
    with mock.patch.object(bounds, 'clip', _unclipped):
      uncut = contract_runs.build(name)
    with federated_test_case.unoptimised_graphs(), local.runtime(max_concurrent_clients=2):
      plain, _ = _run(uncut, self.create_tempdir().full_path)
    # Most within 1e-5; what RHFL and RoFL train grows rounding.
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
        *((s.state, s.own) for s in (plain, optimised)),
    )

  @absltest.skipUnless('fedcorr' in _NAMES, 'Another part has FedCorr.')
  def test_what_resumes_has_to_carry_is_there(self):
    # Or the test above would say little of FedCorr.
    algorithm, _ = _build('fedcorr')
    self.assertEqual(list(algorithm.stages.values()), [8, 2, 2])
    self.assertEqual(algorithm.step_ends, (4, 8))
    state = _ran('fedcorr').state
    changed = [
        (labels != examples.y).sum()
        for labels, examples in zip(
            state.own[algorithm.report.labels], contract_runs.federation().clients, strict=True
        )
    ]
    self.assertGreater(sum(changed), 0)

  @parameterized.named_parameters(*_ALL)
  def test_state_keeps_its_structure(self, name):
    # What a checkpoint is read into is built anew.
    algorithm, task = _build(name)
    ledger_ = runs.open_ledger(algorithm)
    fresh = training.program_state(
        algorithm.init(), runs.clients_of(algorithm, task, contract_runs.federation(), ledger_),
        ledger_,
    )
    found = _ran(name).state
    tf.nest.assert_same_structure(found, fresh)
    for part in ('models', 'optimizers', 'received', 'records'):
      first, last = (getattr(s.state, part) for s in (fresh, found))
      self.assertEqual(first.keys(), last.keys(), part)
      tf.nest.map_structure(self._assert_alike, last, first)
    self.assertEqual(found.own.keys(), fresh.own.keys())
    for key, states in found.own.items():
      self.assertLen(states, len(contract_runs.federation().clients), key)
    tf.nest.map_structure(self._assert_alike, found.own, fresh.own)
    tf.nest.map_structure(self._assert_alike, found.aggregators, fresh.aggregators)

  def _assert_alike(self, a, b):
    self.assertEqual((np.shape(a), np.asarray(a).dtype), (np.shape(b), np.asarray(b).dtype))

  @parameterized.named_parameters(*_ALL)
  def test_ledger_is_the_one_that_a_replay_expects(self, name):
    algorithm, task = _build(name)
    entries, declared = _entries(name, _ran(name).folder)
    replayed = replay.run(algorithm, task, contract_runs.federation(), declared, ledger.UNSEALED)
    self.assertEqual(replayed.stopped, '')
    different, compared, *_ = replay.differences(replayed, entries, algorithm.rounds)
    self.assertEqual(different, '')
    # Of these who takes part follows from what clients sent.
    if not catalog.entry(name).chooses_clients:
      self.assertLen(entries, compared)

  @parameterized.named_parameters(*_ALL)
  def test_takes_clients_in_turns_or_says_that_it_chooses_them(self, name):
    algorithm, task = _build(name)
    _, declared = _entries(name, _ran(name).folder)
    replayed = replay.run(
        algorithm, task._replace(sampling='cyclic'), contract_runs.federation(), declared,
        ledger.UNSEALED,
    )
    everybody, before = np.arange(task.num_clients), np.zeros(task.num_clients, np.int64)
    in_turns = not replayed.stopped
    for round_num, done in enumerate(replayed.rounds, 1):
      turn = policies.cyclic(task.seed, round_num, everybody, task.clients_per_round)
      in_turns &= np.array_equal(np.flatnonzero(done.participations - before), turn)
      before = done.participations
    self.assertEqual(in_turns, not catalog.entry(name).chooses_clients, replayed.stopped)

  @parameterized.named_parameters(*_ALL)
  def test_on_a_base_that_chooses_clients_no_more_of_them_train(self, name):
    entry = catalog.entry(name)
    if not entry.takes_base or entry.chooses_clients:
      return
    chooser = optimizers.OPTIMIZERS['poc']
    base = chooser.build(contract_runs.task(entry), chooser.params(candidates=3))
    algorithm, task = contract_runs.build(name, optimizer=base)
    declared = uplink.to_json(algorithm.fields)
    replayed = replay.run(algorithm, task, contract_runs.federation(), declared, ledger.UNSEALED)
    self.assertEqual(replayed.stopped, '')
    for done in replayed.rounds:
      self.assertEqual(done.traffic.clients, task.clients_per_round)

  @parameterized.named_parameters(*_ALL)
  def test_judges_all_its_clients(self, name):
    report = _build(name).algorithm.report
    state = _ran(name).state
    federation = contract_runs.federation()
    if report.labels:
      for labels, examples in zip(state.own[report.labels], federation.clients, strict=True):
        self.assertEqual((labels.shape, labels.dtype), (examples.y.shape, np.int32))
        self.assertTrue((0 <= labels).all() and (labels < federation.num_classes).all())
    self.assertEqual(bool(report.labels), catalog.entry(name).corrects_labels)
    if report.noisy_clients is not None:
      noisy = report.noisy_clients(state.records)
      self.assertEqual((np.shape(noisy), np.asarray(noisy).dtype), ((4,), bool))
    columns = report.client_columns(state.records)
    for column in columns.values():
      self.assertLen(column, 4)
    self.assertContainsSubset(report.client_scores, columns)
    with open('docs/columns.md', encoding='utf-8') as file:
      explained = file.read()
    if ':' not in name:  # A user's own are not ours to explain.
      for column in (*columns, *report.columns(state.state)):
        first = re.sub(r'_\d+$', '_1', column)  # Of those that are numbered.
        self.assertIn(f'`{first}`', explained)

  @parameterized.named_parameters(*_ALL)
  def test_a_round_is_the_same_however_many_follow_or_it_says_that_it_plans_them(self, name):
    entry = catalog.entry(name)
    if entry.stages or entry.plans_rounds:
      return
    built = _build_again(name)
    shorter = built.algorithm._replace(ends_after=contract_runs.ROUNDS)
    state, metrics = _run((shorter, built.task), self.create_tempdir().full_path)
    self.assertEqual(metrics, _ran(name).metrics)
    self._assert_same(state, _ran(name).state)

  @parameterized.named_parameters(*_ALL)
  def test_stages_are_those_that_can_be_asked_for(self, name):
    names = catalog.entry(name).stages
    if names:
      self.assertEqual(tuple(_build(name).algorithm.stages), names)

  @parameterized.named_parameters(*_ALL)
  def test_lengths_that_are_asked_for_are_kept(self, name):
    entry = catalog.entry(name)
    self.enter_context(plans.with_computations_of(_build(name).algorithm))
    for skipped in entry.stages:
      task = contract_runs.task(entry)
      task = task._replace(stages={**task.stages, skipped: 0})
      params = {**contract_runs.PARAMS.get(name, {}), **_WITHOUT_A_STAGE.get(name, {})}
      rounds = dict(entry.build(task, entry.params(**params)).stages)
      self.assertEqual(rounds.pop(skipped), 0)
      self.assertGreater(min(rounds.values()), 0)

  @parameterized.named_parameters(*_ALL)
  def test_takes_only_clients_that_are_there(self, name):
    # Client 2 joins in the third round, client 3 leaves before it.
    availability = availability_lib.Availability(
        np.array([1, 1, 3, 1]), np.array([100, 100, 100, 3])
    )
    built = _build(name)
    # Rounds that belong together are planned ahead, when the algorithm is built.
    if built.algorithm.step_ends:
      built = contract_runs.build(name, availability=availability)
    algorithm, task = built.algorithm, built.task._replace(availability=availability)
    trained = []

    def there(round_num):
      # Where rounds belong together, who was there at the start of the first of them.
      before = [end for end in algorithm.step_ends if end < round_num]
      if not any(end >= round_num for end in algorithm.step_ends):
        return availability.present(round_num)
      return availability.present(1 + max(before, default=0))

    def watched(ask, allowed):
      def watch(clients, asked, state, cohort, **messages):
        round_num = state.round_num + 1
        # Labels are communicated once, by everybody.
        if not asked.on_labels:
          self.assertContainsSubset(cohort.tolist(), allowed(round_num).tolist())
        self.assertTrue((np.diff(cohort) > 0).all())
        if asked.trains:
          trained.append(round_num)
        return ask(clients, asked, state, cohort, **messages)

      return watch

    simulated = clients_lib.SimulatedClients
    with (
        mock.patch.object(simulated, 'train', watched(simulated.train, there)),
        mock.patch.object(simulated, 'run', watched(simulated.run, availability.present)),
    ):
      state, _ = _run((algorithm, task), self.create_tempdir().full_path)
    self.assertEqual(trained, list(range(1, state.round_num + 1)))

  @parameterized.named_parameters(*_ALL)
  def test_declares_what_its_computations_send_and_why(self, name):
    algorithm, _ = _build(name)
    self.assertLen({c.name for c in algorithm.computations}, len(algorithm.computations))
    for c in algorithm.computations:
      disclosure.check(c.next, c.fields)
      self.assertContainsSubset(c.released, algorithm.fields)
      self.assertLen({f.name for f in c.released}, len(c.released))
    for field in algorithm.fields:
      self.assertTrue(field.reason, field.name)
    # Computations may show the same value to others, and then say it; none is declared twice.
    self.assertLen(set(algorithm.fields), len(algorithm.fields))
    json.dumps(uplink.to_json(algorithm.fields), allow_nan=False)

  @parameterized.named_parameters(*_ALL)
  def test_says_before_it_is_built_whether_it_shows_single_clients(self, name):
    shown = [
        field.name
        for field in _build(name).algorithm.fields
        if field.disclosure.shows_single_clients
    ]
    self.assertEqual(bool(catalog.entry(name).per_client), bool(shown), shown)

  @parameterized.named_parameters(*_ALL)
  def test_secure_aggregation_leaves_no_plain_sum(self, name):
    secure = aggregation.secure_weighted_mean(update_bound=1.0, max_examples=27)
    checked = 0
    for c in contract_runs.build(name, aggregation=secure).algorithm.computations:
      if not any(field.disclosure.shows_single_clients for field in c.fields):
        tff.test.assert_not_contains_unsecure_aggregation(c.next)
        checked += c.trains
    # A method may show single clients in some stages, but not in all; unless it compares models.
    if not catalog.entry(name).compares_models:
      self.assertGreater(checked, 0)

  @parameterized.named_parameters(*_ALL)
  def test_stateless_training_is_a_learning_process(self, name):
    for c in _build(name).algorithm.computations:
      if c.optimizer is None:
        self.assertIsInstance(c.process, processes.Collection)
      elif isinstance(c.process, processes.StatefulProcess):
        self.assertTrue(
            c.declared.own or c.declared.messages or c.process.server_data_type is not None
        )
      else:
        self.assertIsInstance(c.process, tff.learning.templates.LearningProcess)

  @parameterized.named_parameters(*_ALL)
  def test_repeated_run_is_the_same_and_ledger_names_what_is_sent_before_it_is(self, name):
    built, sent, before = _build(name), [], []
    algorithm, folder = built.algorithm, self.create_tempdir().full_path
    senders = {id(c.next): c.released for c in algorithm.computations}
    invoke = computation_impl.ConcreteComputation.__call__

    def watch(called, *args, **kwargs):
      fields = senders.get(id(called))
      if fields:
        [num_clients] = {len(a) for a in args if isinstance(a, list)}
        sent.append((tuple(sorted(algorithm.fields.index(f) for f in fields)), num_clients))
        before.append(_entries(name, folder)[0])
      return invoke(called, *args, **kwargs)

    with mock.patch.object(computation_impl.ConcreteComputation, '__call__', watch):
      state, metrics = _run(built, folder)
    self.assertEqual(metrics, _ran(name).metrics)
    self._assert_same(state, _ran(name).state)
    entries, declared = _entries(name, folder)
    self.assertEqual([(entry.fields, entry.clients) for entry in entries], sent)
    self.assertEqual(before, [entries[: i + 1] for i in range(len(entries))])
    self.assertEqual({i for entry in entries for i in entry.fields}, set(range(len(declared))))

  @parameterized.named_parameters(*_ALL)
  def test_asks_no_more_often_than_it_says(self, name):
    # What audits without a run go by.
    algorithm, _ = _build(name)
    self.assertContainsSubset(algorithm.times, {c.name for c in algorithm.computations})
    said = collections.Counter()
    for c in algorithm.computations:
      fields = tuple(sorted(algorithm.fields.index(f) for f in c.released))
      said[fields] += algorithm.times.get(c.name, algorithm.rounds)
    entries, _ = _entries(name, _ran(name).folder)
    made = collections.Counter(entry.fields for entry in entries)
    self.assertEmpty(made - said)

  @parameterized.named_parameters(*_ALL)
  def test_updates_trained_on_true_labels_claim_no_label_epsilon(self, name):
    entries, declared = _entries(name, _ran(name).folder)
    cost = costs_lib.totals(entries, declared)[protection.Unit.LABEL]
    self.assertEqual((cost.epsilon, cost.status), (np.inf, protection.Status.NONE))
    json.dumps(costs_lib.to_json(entries, declared), allow_nan=False)


if __name__ == '__main__':
  if not _OWN and 'own' in sys.argv[1:]:
    sys.exit('METHOD is not set: METHOD=package.module:ENTRY names the method that -k own is about')
  absltest.main()
