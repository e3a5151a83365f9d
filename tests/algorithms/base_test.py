"""Algorithms on another optimizer (--base), and every optimizer as an algorithm of its own."""

import asyncio
import functools
import itertools
import os
import tempfile
from typing import NamedTuple
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tests.program import runs
from tff_noise import types
from tff_noise.algorithms import algorithm as algorithm_lib
from tff_noise.algorithms import catalog as algorithms
from tff_noise.algorithms import fedcorr
from tff_noise.algorithms import fedcorr_params
from tff_noise.algorithms import feddpcont
from tff_noise.algorithms import parameters
from tff_noise.federated import label_histogram
from tff_noise.federated import processes
from tff_noise.federated import task as task_lib
from tff_noise.optimizers import catalog as optimizers
from tff_noise.privacy import estimator
from tff_noise.privacy import mechanism
from tff_noise.program import managers
from tff_noise.program import run_directory
from tff_noise.program import training
from tff_noise.selection import availability
from tff_noise.selection import policies
from tff_noise.uplink import disclosure

_SIZES = (5, 8, 3, 6, 7, 4)
_PER_ROUND = 3
# Power-of-Choice takes 20 candidates if not told otherwise: of six clients there would be no
# choice.
_PARAMS = {'poc': {'candidates': 5}, 'feddyn': {'alpha': 0.5}, 'fedprox': {'mu': 1.0}}
# FedCorr: one iteration over six clients, then two and three rounds.
_STAGES = {'preprocess': 1, 'finetune': 2, 'usual': 3}
_BEFORE_USUAL = 6 + 2


@functools.cache
def _federation():
  return toy.two_corners(_SIZES)


def _task(base='', norm=None, base_params=None, **changes):
  task = task_lib.Task(**{
      'model': toy.linear_model(norm),
      'training': types.LocalTraining(epochs=2, batch_size=3, learning_rate=0.2),
      'label_privacy': task_lib.LabelPrivacy('1.0', 'shrinkage'),
      'rounds': 3,
      'clients_per_round': _PER_ROUND,
      'availability': availability.always(len(_SIZES)),
      'client_sizes': np.array(_SIZES, np.int64),
      'seed': 3,
      **changes,
  })
  if not base:
    return task
  entry = optimizers.OPTIMIZERS[base]
  params = entry.params(**(base_params or _PARAMS.get(base, {})))
  return task._replace(optimizer=entry.build(task, params))


class _Ran(NamedTuple):
  """An algorithm, the task it was built from, and what became of it.

  Attributes:
    algorithm: What ran.
    task: Of the algorithm.
    states: The state before the first round, or that it went on from, and after each that followed.
    ledger_path: Where its ledger is: what goes on from a state has to find what was before it.
  """

  algorithm: algorithm_lib.Algorithm
  task: task_lib.Task
  states: list[training.ProgramState]
  ledger_path: str

  def go_on(self, first, **changes):
    """Returns the last state of a run that goes on from one of these."""
    return _run(self.algorithm._replace(**changes), self.task, first, self.ledger_path).states[-1]


def _run(algorithm, task, first=None, ledger_path=''):
  if not ledger_path:
    folder = tempfile.mkdtemp(dir=absltest.get_default_test_tmpdir())
    ledger_path = os.path.join(folder, 'ledger.jsonl')
  ledger = runs.open_ledger(algorithm, ledger_path)
  clients = runs.clients_of(algorithm, task, _federation(), ledger)
  if first is None:
    first = training.program_state(algorithm.init(), clients, ledger)
  else:
    ledger.resume(first.ledger, first.digest)
    clients.resume(first.own, first.participations, first.aggregators)
  states = [first]
  while states[-1].round_num < algorithm.rounds:
    state = training.run_round(algorithm, states[-1].state, clients)
    states.append(training.entered(training.program_state(state, clients, ledger), ledger))
  return _Ran(algorithm, task, states, ledger_path)


def _alone(name, **changes):
  """A run of an optimizer as an algorithm of its own."""
  entry, task = algorithms.ALGORITHMS[name], _task(**changes)
  return _run(entry.build(task, entry.params(**_PARAMS.get(name, {}))), task)


def _weights(state):
  return [np.asarray(w) for w in tf.nest.flatten(state.state.weights)]


def _furthest(first, second):
  """The largest difference of two states' weights."""
  return max(np.abs(a - b).max() for a, b in zip(_weights(first), _weights(second), strict=True))


def _cohorts(states):
  return [
      np.flatnonzero(b.participations - a.participations).tolist()
      for a, b in itertools.pairwise(states)
  ]


class _TestCase(federated_test_case.FederatedTestCase):

  def assert_same_weights(self, first, second):
    for a, b in zip(_weights(first), _weights(second), strict=True):
      np.testing.assert_array_equal(a, b)

  def assert_same_bits(self, first, second):
    tf.nest.assert_same_structure(first, second)
    for a, b in zip(tf.nest.flatten(first), tf.nest.flatten(second), strict=True):
      a, b = np.asarray(a), np.asarray(b)
      self.assertEqual((a.shape, a.tobytes()), (b.shape, b.tobytes()))

  def saved_and_restored(self, ran, state):
    """What a run that was killed after this round goes on from."""
    run_dir = run_directory.RunDirectory(self.create_tempdir().full_path)
    asyncio.run(managers.build_state_manager(run_dir).save(state, state.round_num))
    ledger = runs.open_ledger(ran.algorithm)
    clients = runs.clients_of(ran.algorithm, ran.task, _federation(), ledger)
    structure = training.program_state(ran.algorithm.init(), clients, ledger)
    # Anew, as in another process.
    manager = managers.build_state_manager(run_dir)
    return asyncio.run(manager.load(state.round_num, structure))


@functools.cache
def _fedcorr(base='', **base_params):
  """FedCorr with a base."""
  params = fedcorr_params.FedCorrParams(lid_neighbours=2, confidence=0.01, clean_threshold=1.0)
  task = _task(base, base_params=base_params, stages=_STAGES, rounds=20)
  return _run(fedcorr.build(task, params), task)


def _optimizers_own(ran):
  """Names of what clients keep for the last optimizer."""
  return ran.algorithm.optimizer.client.own


class FedCorrTest(_TestCase):

  @parameterized.parameters(
      ('fedavg', {}), ('fedavg', {'server_learning_rate': 0.5}), ('feddyn', {}), ('median', {}),
      ('poc', {}),
  )
  def test_before_the_usual_stage_it_is_fed_avg(self, base, params):
    plain, ran = _fedcorr().states, _fedcorr(base, **params)
    states = ran.states
    self.assertEqual(list(ran.algorithm.stages.values()), [6, 2, 3])
    self.assertEqual(_cohorts(states)[:_BEFORE_USUAL], _cohorts(plain)[:_BEFORE_USUAL])
    for found, expected in zip(states[: _BEFORE_USUAL + 1], plain, strict=False):
      self.assert_same_weights(found, expected)
      for name, value in expected.records.items():
        np.testing.assert_array_equal(found.records[name], value, name)
      for name, own in expected.own.items():
        tf.nest.map_structure(np.testing.assert_array_equal, found.own[name], own)
      # What the base's clients keep is there, and untouched.
      self.assertEqual(found.own.keys() - expected.own.keys(), set(_optimizers_own(ran)))
      for name in _optimizers_own(ran):
        self.assert_same_bits(found.own[name], states[0].own[name])
    if params:
      self.assertGreater(_furthest(states[-1], plain[-1]), 1e-3)

  @parameterized.parameters('feddyn', 'median', 'poc')
  def test_usual_stage_runs_on_the_base(self, base):
    plain, ran = _fedcorr().states, _fedcorr(base)
    states = ran.states
    self.assertGreater(_furthest(states[-1], plain[-1]), 1e-3)
    # The same clients train, where the base does not choose them.
    same = _cohorts(states)[_BEFORE_USUAL:] == _cohorts(plain)[_BEFORE_USUAL:]
    self.assertEqual(same, base != 'poc')
    # Those who did keep what it has them keep.
    self.assertLen(_optimizers_own(ran), base == 'feddyn')
    took_part = set().union(*_cohorts(states)[_BEFORE_USUAL:])
    for name in _optimizers_own(ran):
      kept = {i for i, own in enumerate(states[-1].own[name]) if np.any(own[0])}
      self.assertEqual(kept, took_part)

  def test_power_of_choice_chooses_in_the_usual_stage_alone(self):
    ran = _fedcorr('poc')
    chosen = {
        c.name: c.optimizer.sampler is not None
        for c in ran.algorithm.computations if c.optimizer is not None
    }
    self.assertEqual(
        chosen,
        {'a round of preprocess': False, 'a round of finetune': False, 'a round of usual': True},
    )
    cohorts = _cohorts(ran.states)
    self.assertEqual([len(c) for c in cohorts], [1] * 6 + [3] * 5)
    (usual,) = [c for c in ran.algorithm.computations if c.name == 'a round of usual']
    for state, cohort in zip(ran.states[_BEFORE_USUAL:-1], cohorts[_BEFORE_USUAL:], strict=True):
      clients = runs.clients_of(ran.algorithm, ran.task, _federation())
      clients.begin_round(state.round_num + 1, 'usual')
      with mock.patch.object(clients, 'run', wraps=clients.run) as asked:
        self.assertEqual(clients.sample(usual, state.state).tolist(), cohort)
      _, _, candidates = asked.call_args.args
      np.testing.assert_array_equal(
          candidates,
          policies.proportional(3, state.round_num + 1, np.arange(6), np.array(_SIZES), 5),
      )

  @parameterized.parameters('feddyn', 'median', 'poc')
  def test_interrupted_in_the_usual_stage_it_ends_the_same(self, base):
    ran = _fedcorr(base)
    # Also right before and at its start.
    for state in ran.states[_BEFORE_USUAL - 1 : -1]:
      with self.subTest(state.round_num):
        restored = self.saved_and_restored(ran, state)
        self.assert_same_bits(restored, state)
        self.assert_same_bits(ran.go_on(restored), ran.states[-1])

  def test_without_base_the_usual_stage_goes_on_as_fine_tuning_trained(self):
    ran = _fedcorr()
    trains = [c for c in ran.algorithm.computations if c.optimizer is not None]
    self.assertEqual([c.name for c in trains], ['a round of preprocess', 'a round of finetune'])

    # What fine-tuned, and nothing else.
    def round_(state, clients):
      return clients.train(trains[1], state, clients.sample(trains[1], state)).state

    resumed = ran.go_on(ran.states[_BEFORE_USUAL], round=round_)
    self.assert_same_bits(resumed, ran.states[-1])

  def test_fed_avg_as_base_is_no_base(self):
    self.assert_same_weights(_fedcorr('fedavg').states[-1], _fedcorr().states[-1])


@functools.cache
def _feddpcont(base='', **params):
  task = _task(base)
  return _run(feddpcont.build(task, parameters.FedDPContParams(**params)), task)


class FedDPContTest(_TestCase):

  @parameterized.parameters('', 'fedprox', 'scaffold', 'fedavg', 'poc')
  def test_labels_are_communicated_all_the_same(self, base):
    reports = [
        mechanism.flip(
            examples.y, examples.example_id, mechanism.simulation_secret(3, i),
            mechanism.randomized_response('1.0', 2),
        )
        for i, examples in enumerate(_federation().clients)
    ]
    histogram = np.bincount(np.concatenate(reports), minlength=2)
    self.assertEqual(histogram.sum(), sum(_SIZES))
    prior = estimator.estimate(
        histogram, 'shrinkage', mechanism.randomized_response('1.0', 2)
    ).prior
    for state in _feddpcont(base).states[1:]:
      np.testing.assert_array_equal(state.records['label_histogram'], histogram)
      np.testing.assert_allclose(state.state.received['label_prior'], prior, rtol=1e-6)

  @parameterized.parameters('fedprox', 'scaffold')
  def test_is_neither_the_method_nor_the_base_alone(self, base):
    states, alone = _feddpcont(base).states, _alone(base).states
    self.assertGreater(_furthest(states[-1], _feddpcont().states[-1]), 1e-3)
    self.assertGreater(_furthest(states[-1], alone[-1]), 1e-2)
    self.assertEqual(_cohorts(states), _cohorts(alone))

  @parameterized.parameters('fedprox', 'scaffold')
  def test_without_contrast_it_is_the_base_alone(self, base):
    states, alone = _feddpcont(base, weight=0.0).states, _alone(base).states
    for a, b in zip(_weights(states[-1]), _weights(alone[-1]), strict=True):
      np.testing.assert_allclose(a, b, atol=1e-6)

  def test_fed_avg_as_base_is_no_base(self):
    self.assert_same_bits(_feddpcont('fedavg').states[-1], _feddpcont().states[-1])

  def test_scaffold_keeps_its_states_beside_the_prior(self):
    ran = _feddpcont('scaffold')
    self.assertEqual({n: len(v) for n, v in ran.states[-1].own.items()}, {'scaffold_variate': 6})
    for state in ran.states[1:-1]:
      restored = self.saved_and_restored(ran, state)
      self.assert_same_bits(restored, state)
      self.assert_same_bits(ran.go_on(restored), ran.states[-1])


class EveryOptimizerTest(_TestCase):

  def _check(self, ran):
    """Trains, and sends what it declares."""
    self.assertEqual([len(c) for c in _cohorts(ran.states)], [_PER_ROUND] * 2)
    for before, after in itertools.pairwise(ran.states):
      for w in _weights(after):
        self.assertTrue(np.isfinite(w).all())
      self.assertGreater(_furthest(before, after), 0)
    for c in ran.algorithm.computations:
      disclosure.check(c.next, c.fields)
    (train,) = [c for c in ran.algorithm.computations if c.optimizer is not None]
    kept = isinstance(train.process, processes.StatefulProcess)
    self.assertEqual(bool(ran.states[-1].own), kept)
    for states in ran.states[-1].own.values():
      self.assertLen(states, len(_SIZES))

  @parameterized.parameters(*optimizers.OPTIMIZERS)
  def test_as_an_algorithm_of_its_own(self, name):
    entry, ran = algorithms.ALGORITHMS[name], _alone(name, norm='batch', rounds=2)
    self._check(ran)
    asked = [c.name for c in ran.algorithm.computations]
    self.assertEqual(asked, ['asking candidates'] * (name == 'poc') + ['a round of train'])
    self.assertEqual(entry.per_client, optimizers.OPTIMIZERS[name].per_client)
    self.assertFalse(entry.takes_base)

  @parameterized.parameters(*optimizers.OPTIMIZERS)
  def test_as_the_base_of_a_method(self, name):
    task = _task(name, 'batch', rounds=2)
    ran = _run(feddpcont.build(task, parameters.FedDPContParams()), task)
    self._check(ran)
    # It sends the labels once, and what the optimizer alone sends.
    entry, bare = algorithms.ALGORITHMS[name], _task(norm='batch')
    alone = entry.build(bare, entry.params(**_PARAMS.get(name, {})))
    self.assertEqual(
        ran.algorithm.fields, (*label_histogram.of_task(bare).fields, *alone.fields)
    )


if __name__ == '__main__':
  absltest.main()
