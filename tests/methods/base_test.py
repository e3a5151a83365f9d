"""Methods on another federated optimizer (--base), and every optimizer as a method of its own."""

import asyncio
import functools
import itertools
import os
import tempfile

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tff_noise import rng
from tff_noise import types
from tff_noise.data import client_data
from tff_noise.federated import aggregation
from tff_noise.federated import compose
from tff_noise.federated import disclosure
from tff_noise.federated import label_communication
from tff_noise.methods import fedcorr
from tff_noise.methods import fedcorr_params
from tff_noise.methods import feddpcont
from tff_noise.methods import method
from tff_noise.methods import registry as methods
from tff_noise.optimizers import registry as optimizers
from tff_noise.privacy import estimator
from tff_noise.privacy import mechanism
from tff_noise.privacy import protection
from tff_noise.program import managers
from tff_noise.program import run_directory
from tff_noise.program import training
from tff_noise.selection import availability
from tff_noise.selection import policies

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


def _task(base='', norm=None, **changes):
  task = method.Task(**{
      'model': toy.linear_model(norm),
      'training': types.LocalTraining(epochs=2, batch_size=3, learning_rate=0.2),
      'aggregation': aggregation.weighted_mean(),
      'label_privacy': method.LabelPrivacy('1.0', 'shrinkage'),
      'rounds': 3,
      'stages': {},
      'clients_per_round': _PER_ROUND,
      'availability': availability.always(len(_SIZES)),
      'client_sizes': np.array(_SIZES, np.int64),
      'seed': 3,
      **changes,
  })
  if not base:
    return task
  spec = optimizers.OPTIMIZERS[base]
  params = spec.params(**_PARAMS.get(base, {}))
  return task._replace(optimizer=spec.build(task.setting(), params))


@functools.cache
def _datasets():
  return client_data.federation_datasets(_federation())


@functools.cache
def _ledger_path(*run):
  """Where a run's ledger is: one that goes on from a state has to find what was before it."""
  del run  # Unused.
  folder = tempfile.mkdtemp(dir=absltest.get_default_test_tmpdir())
  return os.path.join(folder, 'ledger.jsonl')


def _states(schedule, first=None, ledger_path=''):
  """The state before the first round, or the given one, and after each that follows."""
  states = [first or training.initial_state(schedule, _federation())]
  ledger = federated_test_case.open_ledger(schedule, ledger_path)
  if first is not None:
    ledger.resume(first.ledger)
  while True:
    stage, state = training.next_stage(schedule, states[-1])
    if stage is None:
      return states
    states.append(training.run_round(schedule, state, _federation(), _datasets(), ledger)[0])


def _weights(state):
  return [np.asarray(w) for w in tf.nest.flatten(state.server.global_model_weights)]


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

  def saved_and_restored(self, schedule, state):
    """What a run that was killed after this round goes on from."""
    run_dir = run_directory.RunDirectory(self.create_tempdir().full_path)
    asyncio.run(managers.build_state_manager(run_dir).save(state, state.round_num))
    index = training.stage_of_round(schedule, state.round_num)
    structure = training.initial_state(schedule, _federation(), index)
    # Anew, as in another process.
    manager = managers.build_state_manager(run_dir)
    restored = asyncio.run(manager.load(state.round_num, structure))
    # TFF saves a Python number as a tensor of 32 bits.
    names = ('round_num', 'stage', 'stage_round')
    numbers = {name: int(getattr(restored, name)) for name in names}
    position = restored.ledger._replace(count=int(restored.ledger.count))
    return restored._replace(**numbers, ledger=position)


@functools.cache
def _fedcorr(base=''):
  """The schedule of FedCorr with a base, and its states."""
  params = fedcorr_params.FedCorrParams(lid_neighbours=2, confidence=0.01, clean_threshold=1.0)
  schedule = fedcorr.METHOD.build(_task(base, stages=_STAGES, rounds=20), params)
  return schedule, _states(schedule, ledger_path=_ledger_path('fedcorr', base))


class FedCorrTest(_TestCase):

  @parameterized.parameters('fedavg', 'feddyn', 'median', 'poc')
  def test_before_the_usual_stage_it_is_fed_avg(self, base):
    _, plain = _fedcorr()
    schedule, states = _fedcorr(base)
    self.assertEqual([s.rounds for s in schedule.stages], [6, 2, 3])
    self.assertEqual(_cohorts(states)[:_BEFORE_USUAL], _cohorts(plain)[:_BEFORE_USUAL])
    for found, expected in zip(states[: _BEFORE_USUAL + 1], plain, strict=False):
      self.assert_same_weights(found, expected)
      for name, value in expected.records.items():
        np.testing.assert_array_equal(found.records[name], value, name)
      for own, same in zip(found.local, expected.local, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, own, same)
      self.assertEmpty(found.local_optimizer)

  @parameterized.parameters('feddyn', 'median', 'poc')
  def test_usual_stage_runs_on_the_base(self, base):
    _, plain = _fedcorr()
    _, states = _fedcorr(base)
    self.assertGreater(_furthest(states[-1], plain[-1]), 1e-3)
    # The same clients train, where the base does not choose them.
    same = _cohorts(states)[_BEFORE_USUAL:] == _cohorts(plain)[_BEFORE_USUAL:]
    self.assertEqual(same, base != 'poc')
    self.assertLen(states[-1].local_optimizer, 6 if base == 'feddyn' else 0)

  def test_power_of_choice_chooses_in_the_usual_stage_alone(self):
    schedule, states = _fedcorr('poc')
    self.assertEqual([s.chooser is None for s in schedule.stages], [True, True, False])
    self.assertEqual([len(c) for c in _cohorts(states)], [1] * 6 + [3] * 5)
    stage = schedule.stages[-1]
    for state in states[_BEFORE_USUAL:-1]:
      round_num = state.round_num + 1
      np.testing.assert_array_equal(
          stage.select(round_num, state.records),
          policies.proportional(3, round_num, np.arange(6), np.array(_SIZES), 5),
      )

  @parameterized.parameters('feddyn', 'median', 'poc')
  def test_interrupted_in_the_usual_stage_it_ends_the_same(self, base):
    schedule, states = _fedcorr(base)
    # Also right before and at its start: a state of fine-tuning has another structure.
    for state in states[_BEFORE_USUAL - 1 : -1]:
      with self.subTest(state.round_num):
        restored = self.saved_and_restored(schedule, state)
        self.assert_same_bits(restored, state)
        resumed = _states(schedule, restored, _ledger_path('fedcorr', base))
        self.assert_same_bits(resumed[-1], states[-1])

  def test_without_base_the_usual_stage_goes_on_as_fine_tuning_trained(self):
    schedule, states = _fedcorr()
    _, finetune, usual = schedule.stages
    self.assertIs(usual.round_process, finetune.round_process)
    # The process that fine-tuned, with nothing done to its state.
    bare = schedule._replace(
        stages=(*schedule.stages[:2], usual._replace(enter=None, chooser=None))
    )
    resumed = _states(bare, states[_BEFORE_USUAL], _ledger_path('fedcorr', ''))
    self.assert_same_bits(resumed[-1], states[-1])

  def test_fed_avg_as_base_is_no_base(self):
    self.assert_same_weights(_fedcorr('fedavg')[1][-1], _fedcorr()[1][-1])


@functools.cache
def _feddpcont(base='', **params):
  schedule = feddpcont.METHOD.build(_task(base), feddpcont.FedDPContParams(**params))
  path = _ledger_path('feddpcont', base, *params.items())
  return schedule, _states(schedule, ledger_path=path)


class FedDPContTest(_TestCase):

  @parameterized.parameters('', 'fedprox', 'scaffold', 'fedavg', 'poc')
  def test_labels_are_communicated_all_the_same(self, base):
    schedule, states = _feddpcont(base)
    histogram = np.sum(
        [
            feddpcont.client_histogram(
                i, examples, mechanism.randomized_response('1.0', 2), num_classes=2,
                key=rng.key(3, 'label reports'),
            )
            for i, examples in enumerate(_federation().clients)
        ],
        axis=0,
    )
    self.assertEqual(histogram.sum(), sum(_SIZES))
    prior = estimator.estimate(
        histogram, 'shrinkage', mechanism.randomized_response('1.0', 2)
    ).prior
    process = schedule.stages[0].round_process.process
    for state in states[1:]:
      np.testing.assert_array_equal(state.records['label_histogram'], histogram)
      found = process.get_hparams(state.server)['label_prior']
      np.testing.assert_allclose(found, prior, rtol=1e-6)

  @parameterized.parameters('fedprox', 'scaffold')
  def test_is_neither_the_method_nor_the_base_alone(self, base):
    _, states = _feddpcont(base)
    self.assertGreater(_furthest(states[-1], _feddpcont()[1][-1]), 1e-3)
    entry = methods.METHODS[base]
    alone = _states(entry.build(_task(), entry.params(**_PARAMS.get(base, {}))))
    self.assertGreater(_furthest(states[-1], alone[-1]), 1e-2)
    self.assertEqual(_cohorts(states), _cohorts(alone))

  @parameterized.parameters('fedprox', 'scaffold')
  def test_without_contrast_it_is_the_base_alone(self, base):
    _, states = _feddpcont(base, weight=0.0)
    entry = methods.METHODS[base]
    alone = _states(entry.build(_task(), entry.params(**_PARAMS.get(base, {}))))
    for a, b in zip(_weights(states[-1]), _weights(alone[-1]), strict=True):
      np.testing.assert_allclose(a, b, atol=1e-6)

  def test_fed_avg_as_base_is_no_base(self):
    self.assert_same_bits(_feddpcont('fedavg')[1][-1], _feddpcont()[1][-1])

  def test_scaffold_keeps_its_states_beside_the_prior(self):
    schedule, states = _feddpcont('scaffold')
    self.assertLen(states[-1].local_optimizer, 6)
    for state in states[1:-1]:
      restored = self.saved_and_restored(schedule, state)
      resumed = _states(schedule, restored, _ledger_path('feddpcont', 'scaffold'))
      self.assert_same_bits(resumed[-1], states[-1])


class EveryOptimizerTest(_TestCase):

  def _check(self, schedule):
    states = _states(schedule)
    self.assertEqual([len(c) for c in _cohorts(states)], [_PER_ROUND] * 2)
    for before, after in itertools.pairwise(states):
      for w in _weights(after):
        self.assertTrue(np.isfinite(w).all())
      self.assertGreater(_furthest(before, after), 0)
    (stage,) = schedule.stages
    disclosure.check(stage.round_process.process.next, stage.round_process.fields)
    if stage.poll is not None:
      disclosure.check(stage.poll.computation, stage.poll.fields)
    kept = isinstance(stage.round_process.process, compose.StatefulProcess)
    self.assertLen(states[-1].local_optimizer, len(_SIZES) if kept else 0)
    return stage.fields

  @parameterized.parameters(*optimizers.OPTIMIZERS)
  def test_as_a_method_of_its_own(self, name):
    entry = methods.METHODS[name]
    schedule = entry.build(
        _task(norm='batch', rounds=2), entry.params(**_PARAMS.get(name, {}))
    )
    self.assertEqual(schedule.fields, self._check(schedule))
    self.assertEqual(entry.per_client, optimizers.OPTIMIZERS[name].per_client)
    self.assertFalse(entry.takes_base)

  @parameterized.parameters(*optimizers.OPTIMIZERS)
  def test_as_the_base_of_a_method(self, name):
    schedule = feddpcont.METHOD.build(
        _task(name, 'batch', rounds=2), feddpcont.FedDPContParams()
    )
    _, labels = label_communication.build_label_communication(
        2, max_count=max(_SIZES), max_clients=len(_SIZES),
        protection=protection.LabelReports(2, '1.0', num_labels=sum(_SIZES)),
    )
    self.assertEqual(schedule.fields, (*labels, *self._check(schedule)))


if __name__ == '__main__':
  absltest.main()
