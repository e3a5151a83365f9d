"""What every registered method must hold; a new method is picked up from the registry."""

import dataclasses
import functools
import json
import os
import shutil
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
from tests import toy
from tff_noise import types
from tff_noise.federated import aggregation
from tff_noise.federated import compose
from tff_noise.federated import disclosure
from tff_noise.federated import evaluation
from tff_noise.federated import uplink
from tff_noise.methods import method as method_lib
from tff_noise.methods import registry
from tff_noise.privacy import ledger
from tff_noise.privacy import protection
from tff_noise.program import training
from tff_noise.selection import availability as availability_lib

_ALL = tuple((name, name) for name in registry.METHODS)
_ROUNDS = 3
# Of a method that has stages, each: two iterations, or two rounds.
_STAGE_LENGTH = 2
# Parameters for which everything that a method does happens on four small clients: FedCorr with
# the paper's split, which always calls some client noisy, so that labels are corrected.
_PARAMS = {
    'clipfl': {'keep': 1},
    'fedcorr': {
        'split_guard': False, 'confidence': 0.01, 'relabel_ratio': 1.0, 'lid_neighbours': 2,
    },
}

# And where one of its stages is left out.
_WITHOUT_A_STAGE = {'clipfl': {'prune': 0.0}}


def _federation():
  draw = np.random.default_rng(0)
  # The third holds more than the 20 neighbours of an intrinsic dimension, the second one example.
  sizes = (4, 1, 27, 3)
  clients, first = [], 0
  for n in sizes:
    x = draw.normal(size=(n, 2)).astype(np.float32)
    y = draw.integers(0, 2, n).astype(np.int32)
    clients.append(types.ClientExamples(x, y, np.arange(first, first + n)))
    first += n
  return types.Federation(tuple(clients), 2, 3)


def _task(federation, method, aggregate=None, availability=None):
  num_clients = len(federation.clients)
  stages = dict.fromkeys(method.stages, _STAGE_LENGTH)
  return method_lib.Task(
      model=toy.linear_model('batch'),
      training=types.LocalTraining(2, 3, 0.1),
      aggregation=aggregate or aggregation.weighted_mean(),
      label_privacy=method_lib.LabelPrivacy('1.0', 'shrinkage'),
      rounds=_ROUNDS + num_clients * sum(stages.values()),
      stages=stages,
      clients_per_round=2,
      availability=availability or availability_lib.always(num_clients),
      client_sizes=federation.sizes,
      seed=federation.seed,
      validation=types.Examples(np.eye(2, dtype=np.float32), np.array([0, 1], np.int32)),
  )


def _build_anew(name, **changes):
  method = registry.METHODS[name]
  params = method.params(**_PARAMS.get(name, {}))
  return method.build(_task(_federation(), method, **changes), params)


def _ledger_file(folder):
  with open(os.path.join(folder, 'ledger.jsonl'), encoding='utf-8') as file:
    return file.read()


def _write_ledger(folder, text):
  with open(os.path.join(folder, 'ledger.jsonl'), 'w', encoding='utf-8') as file:
    file.write(text)


# A schedule has no state: tests share what takes seconds to build.
_build = functools.cache(_build_anew)


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
  """Runs a method once, for all tests that only look at what a run leaves; none changes it."""
  root = tempfile.mkdtemp(dir=absltest.get_default_test_tmpdir())
  folder, copies = (os.path.join(root, part) for part in ('run', 'copies'))
  os.mkdir(folder)
  return _Ran(*_run(_build(name), folder, copies), folder, copies)


def _run(schedule, folder, copies=None):
  """Runs in `folder`; puts a copy of it as it is after each round into `copies`."""
  return federated_test_case.run(
      schedule, _federation(), folder, copies, {'test': _build_evaluator()}
  )


@functools.cache
def _build_evaluator():
  evaluate = evaluation.build_evaluation(toy.linear_model('batch'))
  test_examples = types.Examples(np.eye(2, dtype=np.float32), np.array([0, 1], np.int32))
  return evaluation.build_evaluator(evaluate, test_examples)


class ContractTest(federated_test_case.FederatedTestCase):

  def _assert_same(self, first, second):
    """All of two states: server, records, participations, clients' own states, the ledger."""
    self.assertEqual(first.ledger.count, second.ledger.count)
    np.testing.assert_array_equal(first.ledger.head, second.ledger.head)
    for a, b in zip(tf.nest.flatten(first.server), tf.nest.flatten(second.server), strict=True):
      np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(first.participations, second.participations)
    self.assertEqual(first.records.keys(), second.records.keys())
    for key, value in first.records.items():
      np.testing.assert_array_equal(value, second.records[key], key)
      self.assertEqual(np.asarray(value).dtype, np.asarray(second.records[key]).dtype, key)
    for kept in ('local', 'local_optimizer'):
      mine, others = getattr(first, kept), getattr(second, kept)
      self.assertLen(mine, len(others), kept)
      for own, other in zip(mine, others, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, own, other)

  @parameterized.named_parameters(*_ALL)
  def test_names_and_parameters(self, name):
    method = registry.METHODS[name]
    self.assertEqual(method.name, name)
    self.assertTrue(method.title and method.paper)
    self.assertTrue(dataclasses.is_dataclass(method.params))
    with self.assertRaises(dataclasses.FrozenInstanceError):
      method.params().anything = 1

  @parameterized.named_parameters(*_ALL)
  def test_trains_finite_and_repeatably(self, name):
    schedule = _build(name)
    state, metrics, _, _ = _ran(name)
    again, same_metrics = _run(_build_anew(name), self.create_tempdir().full_path)
    self.assertEqual(state.round_num, sum(s.rounds for s in schedule.stages))
    self.assertEqual(metrics, same_metrics)
    for weights in tf.nest.flatten(state.server.global_model_weights):
      self.assertTrue(np.isfinite(weights).all())
    self._assert_same(state, again)

  @parameterized.named_parameters(*_ALL)
  def test_resumes_anywhere_to_the_same_numbers(self, name):
    # Also in the middle of an iteration over all clients, right after labels were corrected, and
    # right after a change of stage.
    schedule = _build(name)
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
        state, resumed_metrics = _run(schedule, copy)
        self.assertEqual(metrics, resumed_metrics)
        self._assert_same(whole, state)
        # Nothing is forgotten, nothing is added.
        self.assertStartsWith(ledger_file, before)
        self.assertEqual(_ledger_file(copy), ledger_file)
        self.assertEqual(
            json.dumps(schedule.summary(whole.records)),
            json.dumps(schedule.summary(state.records)),
        )

  def test_what_resumes_has_to_carry_is_there(self):
    # Or the test above would say little of FedCorr.
    schedule = _build('fedcorr')
    self.assertEqual([s.rounds for s in schedule.stages], [8, 2, 2])
    self.assertEqual(schedule.stages[0].step_ends, (4, 8))
    state = _ran('fedcorr').state
    changed = [
        (schedule.labels(own) != examples.y).sum()
        for own, examples in zip(state.local, _federation().clients, strict=True)
    ]
    self.assertGreater(sum(changed), 0)

  @parameterized.named_parameters(*_ALL)
  def test_state_keeps_its_structure(self, name):
    # What a checkpoint is read into is built anew.
    schedule = _build(name)
    state = _ran(name).state
    for index, stage in enumerate(schedule.stages):
      fresh = training.initial_state(schedule, _federation(), index)
      self.assertEqual(state.records.keys(), fresh.records.keys())
      for key, value in fresh.records.items():
        found = np.asarray(state.records[key])
        self.assertEqual((found.shape, found.dtype), (value.shape, value.dtype), key)
      for kept in ('local', 'local_optimizer'):
        found, expected = getattr(state, kept), getattr(fresh, kept)
        self.assertLen(found, len(expected), (stage.name, kept))
        for own, first in zip(found, expected, strict=True):
          tf.nest.map_structure(
              lambda a, b: self.assertEqual(
                  (np.shape(a), np.asarray(a).dtype), (np.shape(b), np.asarray(b).dtype)
              ),
              own, first,
          )

  @parameterized.named_parameters(*_ALL)
  def test_judges_all_its_clients(self, name):
    schedule = _build(name)
    state = _ran(name).state
    federation = _federation()
    if schedule.labels is not None:
      for own, examples in zip(state.local, federation.clients, strict=True):
        labels = schedule.labels(own)
        self.assertEqual((labels.shape, labels.dtype), (examples.y.shape, np.int32))
        self.assertTrue((0 <= labels).all() and (labels < federation.num_classes).all())
    if schedule.noisy_clients is not None:
      noisy = schedule.noisy_clients(state.records)
      self.assertEqual((np.shape(noisy), np.asarray(noisy).dtype), ((4,), bool))
    columns = schedule.client_columns(state.records)
    for column in columns.values():
      self.assertLen(column, 4)
    self.assertContainsSubset(schedule.client_scores, columns)

  @parameterized.named_parameters(*_ALL)
  def test_stages_are_those_that_can_be_asked_for(self, name):
    names = registry.METHODS[name].stages
    if names:
      self.assertEqual(tuple(s.name for s in _build(name).stages), names)

  @parameterized.named_parameters(*_ALL)
  def test_lengths_that_are_asked_for_are_kept(self, name):
    method = registry.METHODS[name]
    for skipped in method.stages:
      task = _task(_federation(), method)
      task = task._replace(stages={**task.stages, skipped: 0})
      params = {**_PARAMS.get(name, {}), **_WITHOUT_A_STAGE.get(name, {})}
      rounds = {s.name: s.rounds for s in method.build(task, method.params(**params)).stages}
      self.assertEqual(rounds.pop(skipped), 0)
      self.assertGreater(min(rounds.values()), 0)

  @parameterized.named_parameters(*_ALL)
  def test_takes_only_clients_that_are_there(self, name):
    # Client 2 joins in the third round, client 3 leaves before it.
    availability = availability_lib.Availability(
        np.array([1, 1, 3, 1]), np.array([100, 100, 100, 3])
    )
    schedule = _build_anew(name, availability=availability)
    present = []

    def watched(stage):
      def select(round_num, records):
        cohort = stage.select(round_num, records)
        self.assertContainsSubset(cohort.tolist(), allowed(round_num).tolist())
        self.assertTrue((np.diff(cohort) > 0).all())
        present.append(round_num)
        return cohort

      def allowed(round_num):
        # Where rounds belong together, who was there at the start of the first of them.
        before = [end for end in stage.step_ends if end < round_num]
        start = 1 + max(before, default=0) if stage.step_ends else round_num
        return availability.present(start)

      return stage._replace(select=select)

    schedule = schedule._replace(stages=tuple(map(watched, schedule.stages)))
    state, _ = _run(schedule, self.create_tempdir().full_path)
    self.assertEqual(present, list(range(1, state.round_num + 1)))

  @parameterized.named_parameters(*_ALL)
  def test_declares_what_its_rounds_send_and_why(self, name):
    schedule = _build(name)
    for stage in schedule.stages:
      fields = stage.round_process.fields
      disclosure.check(stage.round_process.process.next, fields)
      self.assertContainsSubset(fields, schedule.fields)
      self.assertLen({f.name for f in fields}, len(fields))
    for field in schedule.fields:
      self.assertTrue(field.reason, field.name)
    # Stages may show the same value to others, and then say it; none is declared twice.
    self.assertLen(set(schedule.fields), len(schedule.fields))
    json.dumps(uplink.to_json(schedule.fields), allow_nan=False)

  @parameterized.named_parameters(*_ALL)
  def test_says_before_it_is_built_whether_it_shows_single_clients(self, name):
    shown = [
        field.name
        for field in _build(name).fields
        if field.disclosure is uplink.Disclosure.PER_CLIENT
    ]
    self.assertEqual(bool(registry.METHODS[name].per_client), bool(shown), shown)

  @parameterized.named_parameters(*_ALL)
  def test_secure_aggregation_leaves_no_plain_sum(self, name):
    secure = aggregation.secure_weighted_mean(update_bound=1.0, max_examples=27)
    checked = 0
    for stage in _build_anew(name, aggregate=secure).stages:
      per_client = uplink.Disclosure.PER_CLIENT
      if all(field.disclosure is not per_client for field in stage.round_process.fields):
        tff.test.assert_not_contains_unsecure_aggregation(stage.round_process.process.next)
        checked += 1
    # A method may show single clients in some stages, but not in all; unless it compares models.
    if not registry.METHODS[name].compares_models:
      self.assertGreater(checked, 0)

  @parameterized.named_parameters(*_ALL)
  def test_stateless_stages_are_learning_processes(self, name):
    for stage in _build(name).stages:
      process = stage.round_process.process
      if isinstance(process, compose.StatefulProcess):
        keeps = tf.nest.flatten(stage.round_process.optimizer.client.initial_state)
        self.assertTrue(stage.initial_local or keeps or stage.held is not None)
      else:
        self.assertIsInstance(process, tff.learning.templates.LearningProcess)

  @parameterized.named_parameters(*_ALL)
  def test_ledger_names_exactly_what_was_sent_and_by_how_many(self, name):
    schedule, sent = _build(name), []
    senders = {id(s.round_process.process.next): s.round_process.fields for s in schedule.stages}
    polls = (s.poll for s in schedule.stages if s.poll is not None)
    for exchange in (*schedule.exchanges.values(), *polls):
      senders[id(exchange.computation)] = exchange.fields
    invoke = computation_impl.ConcreteComputation.__call__

    def watch(computation, *args, **kwargs):
      fields = senders.get(id(computation))
      if fields:
        [num_clients] = {len(a) for a in args if isinstance(a, list)}
        sent.append((tuple(sorted(schedule.fields.index(f) for f in fields)), num_clients))
      return invoke(computation, *args, **kwargs)

    folder = self.create_tempdir().full_path
    with mock.patch.object(computation_impl.ConcreteComputation, '__call__', watch):
      _run(schedule, folder)
    declared = uplink.to_json(schedule.fields)
    entries, _ = ledger.read(os.path.join(folder, 'ledger.jsonl'), declared)
    self.assertEqual([(entry.fields, entry.clients) for entry in entries], sent)
    self.assertEqual({i for entry in entries for i in entry.fields}, set(range(len(declared))))

  @parameterized.named_parameters(*_ALL)
  def test_updates_trained_on_true_labels_claim_no_label_epsilon(self, name):
    declared = uplink.to_json(_build(name).fields)
    entries, _ = ledger.read(os.path.join(_ran(name).folder, 'ledger.jsonl'), declared)
    cost = ledger.totals(entries, declared)[protection.Unit.LABEL]
    self.assertEqual((cost.epsilon, cost.status), (np.inf, protection.Status.NONE))
    json.dumps(ledger.to_json(entries, declared), allow_nan=False)


if __name__ == '__main__':
  absltest.main()
