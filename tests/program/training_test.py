"""The training loop: stages, client state, checkpoints, with algorithms made for the test."""

import asyncio
import collections
import functools
import gc
import os
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tests.program import runs
from tff_noise import types
from tff_noise.algorithms import algorithm as algorithm_lib
from tff_noise.clients import program
from tff_noise.federated import computation
from tff_noise.federated import optimizer
from tff_noise.federated import stacked
from tff_noise.federated import task as task_lib
from tff_noise.models import losses
from tff_noise.program import managers
from tff_noise.program import run_directory
from tff_noise.program import training
from tff_noise.selection import policies
from tff_noise.uplink import uplink

_CLIENTS = 5


def _federation():
  draw = np.random.default_rng(0)
  return types.Federation(
      tuple(
          types.ClientExamples(
              draw.normal(size=(3, 2)).astype(np.float32),
              draw.integers(0, 2, 3).astype(np.int32),
              np.arange(3) + 3 * i,
          )
          for i in range(_CLIENTS)
      ),
      num_classes=2,
      seed=0,
  )


@functools.cache
def _task():
  return task_lib.Task(
      toy.linear_model(), client_sizes=np.full(_CLIENTS, 3), clients_per_round=2
  )


def _two_clients(round_num):
  """Who is sampled."""
  return policies.uniform(0, round_num, np.arange(_CLIENTS), 2)


def _cross_entropy(s):
  return losses.cross_entropy(s.logits, s.labels)


# What the algorithm's clients keep: how often they took part, and when they last did.
_COUNT = {'count': np.int32(0), 'last': np.int32(0)}


def _counted(result, **more):
  count = result.client.own['count'] + 1
  return program.Sent(own={'count': count, 'last': result.client.round_num}, **more)


def _trained_by(**training):
  return _task().with_training(types.LocalTraining(**training))


@functools.cache
def _counting(learning_rate=0.1):
  """Clients keep how often they took part, and train a little more each time."""
  return computation.train(
      f'counting {learning_rate}', _trained_by(epochs=1, batch_size=2, learning_rate=learning_rate),
      program.ClientProgram(
          loss=lambda s: _cross_entropy(s) * (1 + tf.cast(s.client.own['count'], tf.float32)),
          final=_counted, own=_COUNT,
      ),
  )


@functools.cache
def _judging():
  """As FedCorr's pre-processing: clients report, the server keeps it, and sends it to all."""
  return computation.train(
      'judging', _trained_by(epochs=1, batch_size=2, learning_rate=0.1, momentum=0.5),
      program.ClientProgram(
          loss=lambda s: _cross_entropy(s) * (1 + s.client.received['seen']),
          final=lambda r: _counted(
              r, reports={'norm': tf.reduce_sum(r.update.trainable[0] ** 2)}
          ),
          own=_COUNT,
          receives={'seen': np.float32(0)},
          reports=(uplink.UplinkReport('norm', np.float32, 0.0, 1e6, 'a test'),),
      ),
  )


@functools.cache
def _adding(name, of_optimizer=False):
  """Clients add 10 to a number that they keep, and send what it was."""
  first = (_remembering().optimizer.client.own if of_optimizer else _COUNT)[name]

  def final(result):
    own = result.client.own[name]
    return program.Sent(own={name: own + 10}, sums={'before': own})

  return computation.collect(
      f'adding to {name}', _task(),
      program.ClientProgram(
          final=final, own={name: first},
          sums=(uplink.UplinkSum('before', np.int32, 0, 1000, 'a test'),),
      ),
  )


@functools.cache
def _remembering(own=False):
  """The optimizer keeps at each client how often it took part, and where it went.

  The clients add where they went to their gradients, the server has momentum; with `own`, the
  algorithm keeps a number as well.
  """
  def loss(s):
    scale = 1 + tf.cast(s.client.own['count'], tf.float32) if own else 1.0
    return _cross_entropy(s) * scale

  def final(result):
    kept = result.client.own
    drift = [d / 3 + u for d, u in zip(kept['drift'], result.update.trainable, strict=True)]
    return program.Sent(own={'times': kept['times'] + 1, 'drift': drift})

  mine = program.ClientProgram(loss=loss)
  if own:
    mine = mine._replace(final=_counted, own=_COUNT)
  rule = program.ClientProgram(
      own={'times': np.int32(0), 'drift': [np.zeros((2, 2), np.float32)]},
      step=lambda s: (
          [g + d for g, d in zip(s.gradients, s.client.own['drift'], strict=True)], s.carry
      ),
      final=final,
  )
  step = tff.learning.optimizers.build_sgdm(1.0, 0.5)
  return computation.train(
      f'remembering {own}', _trained_by(epochs=1, batch_size=3, learning_rate=0.1), mine,
      optimizer=optimizer.FederatedOptimizer(
          optimizer.apply_update(step, _task().model.weights_type), rule, name='remembering'
      ),
  )


def _keeping(name='kept', initial=None, selector=None, own=False, **of_optimizer):
  """FedAvg whose clients add 1 to all that the optimizer keeps at them."""
  initial = np.zeros(3, np.float32) if initial is None else initial
  rule = program.ClientProgram(
      own={name: initial},
      final=lambda r: program.Sent(
          own={name: tf.nest.map_structure(lambda v: v + 1, r.client.own[name])}
      ),
  )
  mine = program.ClientProgram(loss=_cross_entropy)
  if own:
    mine = mine._replace(final=_counted, own=_COUNT)
  fed_avg = optimizer.fed_avg(_task().model.weights_type)
  return computation.train(
      f'keeping {name}', _trained_by(epochs=1, batch_size=3, learning_rate=0.1), mine,
      optimizer=fed_avg._replace(client=rule, **of_optimizer), selector=selector,
  )


class _Stage(NamedTuple):
  """A stretch of rounds of the same training.

  Attributes:
    name: Its name.
    rounds: How many.
    train: What a round is.
    cohort: From the number of a round and the records to who takes part; None for a sample.
    enter: From the state and the clients to the state, before the first of these rounds.
    after: From what came of a round and the clients to the state, after each of them.
  """

  name: str
  rounds: int
  train: computation.Computation
  cohort: Callable[[int, algorithm_lib.Records], np.ndarray] | None = None
  enter: Callable[[algorithm_lib.State, Any], algorithm_lib.State] = lambda state, clients: state
  after: Callable[[algorithm_lib.Output, Any], algorithm_lib.State] = (
      lambda output, clients: output.state
  )


def _judge_stage(name, rounds, **changes):
  """What clients report is remembered and sent to all; everybody adds 10 to what it keeps."""
  def after(output, clients):
    norms = output.state.records['norms'].copy()
    norms[output.cohort] = output.reports['norm']
    state = output.state.record(norms=norms).send(seen=np.float32(norms.sum()))
    clients.run(_adding('count'), state, clients.everybody)
    return state

  return _Stage(name, rounds, _judging(), **{'after': after, **changes})


def _algorithm(*stages, asks=(), records=None, step_ends=(), **changes):
  """Runs the stages; with `asks`, what their `after` asks of clients."""
  lengths = {stage.name: stage.rounds for stage in stages}
  by_name = {stage.name: stage for stage in stages}
  computations = algorithm_lib.computations_of(*asks, *(stage.train for stage in stages))

  def round_(state, clients):
    stage = by_name[algorithm_lib.stage_of(lengths, state.round_num + 1)]
    if not state.round_num or algorithm_lib.stage_of(lengths, state.round_num) != stage.name:
      state = stage.enter(state, clients)
    if stage.cohort is None:
      cohort = clients.sample(stage.train, state)
    else:
      cohort = stage.cohort(state.round_num + 1, state.records)
    return stage.after(clients.train(stage.train, state, cohort), clients)

  return algorithm_lib.Algorithm(
      round_, computations, lengths, records or {}, step_ends=step_ends, **changes
  )


def _counting_algorithm(rounds, **changes):
  return _algorithm(_Stage('train', rounds, _counting()), **changes)


def _judging_algorithm(*stages, **changes):
  return _algorithm(
      *stages, asks=(_adding('count'),), records={'norms': np.zeros(_CLIENTS)}, **changes
  )


def _weights(kernel):
  return tff.learning.models.ModelWeights([np.array(kernel, np.float32)], [])


def _ints(values):
  return [int(v) for v in values]


def _took_part(*rounds):
  """How often each client did in these."""
  return np.bincount(np.concatenate([_two_clients(r) for r in rounds]), minlength=_CLIENTS)


class _Stop(Exception):
  """Ends a run the way a kill would, between any two rounds."""


class TrainingTest(federated_test_case.FederatedTestCase):

  def setUp(self):
    super().setUp()
    self.run_dir = self._another_run()
    self.federation = _federation()

  def _another_run(self):
    return run_directory.RunDirectory(self.create_tempdir().full_path)

  def _run(
      self, algorithm, *, stop_after=None, run_dir=None, checkpoint_every=3,
      on_round=lambda _: None, **more
  ):
    results = []

    def collect(result):
      results.append(result)
      on_round(result)
      if result.round_num == stop_after:
        raise _Stop

    state, _ = runs.run(
        algorithm, _task(), self.federation, (run_dir or self.run_dir).path, on_round=collect,
        checkpoint_every=checkpoint_every,
        **{
            'evaluations': {
                'test': lambda models: {
                    'accuracy': 0.5, 'loss': float(models[0].weights.trainable[0].sum())
                }
            },
            **more,
        },
    )
    return state, results

  def _states(self, algorithm, **more):
    """The last state, and those after each round."""
    states = {}

    def watch(state):
      states[state.round_num] = state
      return {}

    last, _ = self._run(algorithm, ground_truth=watch, **more)
    return last, states

  def _evaluated(self, results):
    return [r.round_num for r in results if not np.isnan(r.metrics['test_accuracy'])]

  def _metrics(self, run_dir):
    with open(run_dir.file('metrics.csv'), encoding='utf-8') as file:
      return file.read()

  def _assert_same_bits(self, first, second):
    tf.nest.assert_same_structure(first, second)
    for a, b in zip(tf.nest.flatten(first), tf.nest.flatten(second), strict=True):
      a, b = np.asarray(a), np.asarray(b)
      self.assertEqual((a.shape, a.tobytes()), (b.shape, b.tobytes()))

  def test_only_the_cohorts_states_change_and_all_rounds_are_counted(self):
    state, _ = self._run(_counting_algorithm(6))
    self.assertEqual(_ints(state.own['count']), state.participations.tolist())
    self.assertEqual(state.participations.sum(), 6 * 2)
    self.assertGreater(len(set(state.participations.tolist())), 1)

  def test_two_computations_of_one_name_are_a_mistake(self):
    first = _adding('count')
    self.assertEqual(algorithm_lib.computations_of(first, first), (first,))
    with self.assertRaisesRegex(types.UsageError, "two computations are named 'adding to count'"):
      algorithm_lib.computations_of(first, first._replace(server_data=0))

  def test_stages_follow_each_other_and_hand_the_state_on(self):
    entered = []

    def enter(state, clients):
      entered.append((len(clients.everybody), state.round_num))
      return state.record(note=np.array([3]))

    stages = _Stage('first', 2, _counting()), _Stage('second', 3, _counting(), enter=enter)
    state, results = self._run(_algorithm(*stages, records={'note': np.array([0])}))
    self.assertEqual([r.metrics['stage'] for r in results], ['first'] * 2 + ['second'] * 3)
    self.assertEqual([r.round_num for r in results], [1, 2, 3, 4, 5])
    self.assertEqual(entered, [(_CLIENTS, 2)])
    self.assertEqual(state.records['note'].tolist(), [3])
    self.assertEqual((state.round_num, state.state.round_num), (5, 5))

  def test_stage_of_no_rounds_is_skipped(self):
    stages = _Stage('first', 0, _counting()), _Stage('second', 2, _counting())
    _, results = self._run(_algorithm(*stages))
    self.assertEqual([r.metrics['stage'] for r in results], ['second'] * 2)

  def test_evaluates_every_so_often_and_at_the_end(self):
    _, results = self._run(_counting_algorithm(5), eval_every=2)
    self.assertEqual(self._evaluated(results), [2, 4, 5])

  def test_evaluates_at_the_end_of_each_stage_and_counts_in_each_anew(self):
    stages = _Stage('first', 3, _counting()), _Stage('second', 3, _counting())
    _, results = self._run(_algorithm(*stages), eval_every=2)
    self.assertEqual(self._evaluated(results), [2, 3, 5, 6])

  @parameterized.named_parameters(
      ('at_the_ends_of_steps', 6, (2, 5, 6), 1, [2, 5, 6, 7, 8, 9]),
      # Steps 2 and 4 and the last; then rounds 2 and 3 of the next stage.
      ('every_so_often_counts_steps', 7, (1, 3, 4, 5, 7), 2, [3, 5, 7, 9, 10]),
      # The last round also in the middle of a step.
      ('in_the_middle_of_a_step', 5, (2, 4), 100, [5, 8]),
      # Also where an earlier stage has none.
      ('steps_of_a_later_stage', 2, (4, 5), 1, [1, 2, 4, 5]),
  )
  def test_evaluates_where_rounds_belong_together(self, rounds, step_ends, eval_every, expected):
    stages = _Stage('steps', rounds, _counting()), _Stage('rounds', 3, _counting())
    _, results = self._run(_algorithm(*stages, step_ends=step_ends), eval_every=eval_every)
    self.assertEqual(self._evaluated(results), expected)

  def test_a_round_is_reported_when_it_is_on_disk(self):
    found = []

    def on_round(result):
      rows = len(self._metrics(self.run_dir).splitlines()) - 1
      saved = os.path.exists(self.run_dir.file(f'state/round_{result.round_num}.npz'))
      found.append((result.round_num, rows, saved))

    self._run(_counting_algorithm(4), on_round=on_round, checkpoint_every=2)
    self.assertEqual(found, [(1, 1, False), (2, 2, True), (3, 3, False), (4, 4, True)])

  @parameterized.parameters(1, 3)
  def test_what_cannot_be_written_ends_the_run(self, failing_round):
    timing = managers.build_timing_manager(self.run_dir)

    class Full(tff.program.ReleaseManager):

      async def release(self, value, key):
        if key == failing_round:
          raise OSError('no space left')
        await timing.release(value, key)

    with (
        mock.patch.object(managers, 'build_timing_manager', return_value=Full()),
        self.assertRaisesRegex(OSError, 'no space left'),
    ):
      self._run(_counting_algorithm(3), checkpoint_every=1)
    # The round was not saved: it is run again.
    _, results = self._run(_counting_algorithm(3))
    self.assertEqual(results[0].round_num, failing_round)

  def test_ground_truth_is_a_column_of_every_round(self):
    _, results = self._run(
        _counting_algorithm(3), ground_truth=lambda s: {'taken_part': s.participations.sum()}
    )
    self.assertEqual([r.metrics['taken_part'] for r in results], [2, 4, 6])

  def test_columns_of_the_algorithm_are_of_the_state_after_the_round(self):
    report = algorithm_lib.Report(columns=lambda state: {'done': state.round_num})
    _, results = self._run(_counting_algorithm(3, report=report))
    self.assertEqual([r.metrics['done'] for r in results], [1, 2, 3])

  def test_a_round_sees_its_number_and_the_records(self):
    seen = []

    def cohort(round_num, records):
      seen.append((round_num, int(records['norms'].astype(bool).sum())))
      return np.array([round_num, 0]) if round_num == 1 else np.array([round_num])

    state, _ = self._run(_judging_algorithm(_judge_stage('judge', 3, cohort=cohort)))
    # Clients 1 and 0 report in the first round, client 2 in the second.
    self.assertEqual(seen, [(1, 0), (2, 2), (3, 3)])
    self.assertEqual(state.participations.tolist(), [1, 1, 1, 1, 0])
    self.assertEqual(_ints(state.own['last']), [1, 1, 2, 3, 0])

  def test_what_a_run_keeps_has_to_be_there_from_its_start(self):
    algorithm = _counting_algorithm(3)
    round_ = algorithm.round

    def adds(state, clients):
      new = round_(state, clients)
      return new._replace(models={**new.models, 'teacher': new.weights})

    with self.assertRaisesRegex(types.UsageError, 'whose models are model, teacher, and began wit'):
      self._run(algorithm._replace(round=adds))

  @parameterized.parameters('round', 'test_accuracy', 'clients')
  def test_columns_of_a_method_are_in_the_place_of_no_other(self, name):
    report = algorithm_lib.Report(columns=lambda state: {name: 1.0, 'own': 2.0})
    algorithm = _counting_algorithm(3)._replace(report=report)
    with self.assertRaisesRegex(types.UsageError, f'^the columns {name} of the method.s report'):
      self._run(algorithm)

  def test_a_round_that_returns_no_state_is_a_mistake(self):
    algorithm = _counting_algorithm(3)._replace(round=lambda state, clients: None)
    with self.assertRaisesRegex(types.UsageError, 'round has to return the next State, found None'):
      self._run(algorithm)

  def test_a_round_that_returns_the_state_it_was_given_is_a_mistake(self):
    algorithm = _counting_algorithm(3)

    def round_(state, clients):
      algorithm.round(state, clients)
      return state

    with self.assertRaisesRegex(types.UsageError, 'the state that it was given, though clients'):
      self._run(algorithm._replace(round=round_))

  def test_record_that_is_changed_in_place_is_a_mistake_at_once(self):
    # It would be another one by the time it is saved.
    def cohort(round_num, records):
      records['norms'][0] += 1
      return np.array([0, 1])

    with self.assertRaisesRegex(ValueError, 'read-only'):
      self._run(_judging_algorithm(_judge_stage('judge', 3, cohort=cohort)))

  def test_number_of_the_round_is_the_loops(self):
    algorithm = _counting_algorithm(3)

    def round_(state, clients):
      return algorithm.round(state, clients)._replace(round_num=7)

    _, results = self._run(algorithm._replace(round=round_))
    self.assertEqual([r.round_num for r in results], [1, 2, 3])

  def test_reports_reach_the_server_within_the_round_by_client(self):
    cohorts, by_client = [], []

    def after(output, clients):
      self.assertLen(clients.everybody, _CLIENTS)
      self.assertEqual(output.state.round_num, len(cohorts))
      cohorts.append(output.cohort.tolist())
      norms = output.reports['norm'].tolist()
      by_client.append(dict(zip(output.cohort.tolist(), norms, strict=True)))
      return output.state

    stage = _judge_stage('judge', 4, after=after)
    self._run(_judging_algorithm(stage))
    self.assertEqual(cohorts, [_two_clients(r).tolist() for r in range(1, 5)])
    # A client alone in the first round, from the same model, reports what it reported in company.
    for client, norm in dict(by_client[0]).items():
      cohorts.clear()
      alone = stage._replace(rounds=1, cohort=lambda *_, c=client: np.array([c]))
      self._run(_judging_algorithm(alone), run_dir=self._another_run())
      self.assertEqual(by_client[-1], {client: norm})

  def test_what_happens_after_training_is_kept(self):
    state, _ = self._run(_judging_algorithm(_judge_stage('judge', 4)))
    seen = state.participations > 0
    np.testing.assert_array_equal(state.records['norms'] > 0, seen)
    self.assertEqual(_ints(state.own['count']), (40 + state.participations).tolist())
    self.assertAlmostEqual(
        float(state.state.received['seen']), state.records['norms'].sum(), places=5
    )

  def test_computation_may_change_between_stages(self):
    state, results = self._run(
        _judging_algorithm(_judge_stage('judge', 3), _Stage('train', 2, _counting()))
    )
    self.assertEqual([r.metrics['stage'] for r in results], ['judge'] * 3 + ['train'] * 2)
    # The number of the round goes on: no client repeats its random numbers.
    last = [max([r for r in range(1, 6) if c in _two_clients(r)], default=0) for c in range(5)]
    self.assertEqual(_ints(state.own['last']), last)
    self.assertEqual(state.round_num, 5)
    self.assertEqual(_ints(state.own['count']), (30 + state.participations).tolist())

  def _stop_and_go_on(self, algorithm, whole, checkpoint_every=1):
    """Stops the last run after each of its rounds; going on, it has to end as it did."""
    for stop_after in range(1, whole.round_num):
      with self.subTest(stop_after):
        run_dir = self._another_run()
        with self.assertRaises(_Stop):
          self._run(
              algorithm, stop_after=stop_after, run_dir=run_dir, checkpoint_every=checkpoint_every
          )
        state, results = self._run(algorithm, run_dir=run_dir, checkpoint_every=checkpoint_every)
        saved = stop_after // checkpoint_every * checkpoint_every
        self.assertEqual(results[0].round_num, saved + 1)
        self.assertEqual(self._metrics(run_dir), self._metrics(self.run_dir))
        # States that are saved are lines of the ledger, and here they are saved more often.
        self._assert_same_bits(state._replace(ledger=()), whole._replace(ledger=()))

  def test_interrupted_anywhere_it_ends_the_same_where_stages_differ(self):
    algorithm = _judging_algorithm(
        _judge_stage('judge', 4),
        _Stage('skipped', 0, _counting()),
        _Stage('train', 2, _counting()),
        _judge_stage('again', 2),
        step_ends=(2, 4),
    )
    whole, _ = self._run(algorithm)
    self._stop_and_go_on(algorithm, whole)

  def test_optimizer_states_are_keyed_by_client_whatever_the_order_of_the_cohort(self):
    for cohort in ([3, 0], [0, 3]):
      with self.subTest(cohort):
        stage = _Stage('train', 1, _remembering(), lambda *_, c=cohort: np.array(c))
        state, _ = self._run(_algorithm(stage), run_dir=self._another_run())
        self.assertEqual(_ints(state.own['times']), [1, 0, 0, 1, 0])
        for client, kept in enumerate(state.own['drift']):
          # At W = 0, a step of .1 against x^T (p - e_y) / 3, p = 1/2; nothing for the others.
          examples = self.federation.clients[client]
          moved = 0.1 * examples.x.T @ (0.5 - np.eye(2)[examples.y]) / 3
          expected = moved if client in cohort else np.zeros((2, 2))
          np.testing.assert_allclose(kept[0], expected, atol=1e-6)
          self.assertIsInstance(kept, list)

  def test_order_of_the_cohort_makes_no_difference_to_later_rounds(self):
    # Cohorts overlap, so that a state in another's place would be trained with.
    cohorts = {1: [3, 0], 2: [0, 4], 3: [4, 3]}
    states = []
    for step in (1, -1):
      stage = _Stage(
          'train', 3, _remembering(own=True),
          lambda round_num, _, s=step: np.array(cohorts[round_num][::s]),
      )
      states.append(self._run(_algorithm(stage), run_dir=self._another_run())[0])
    for name in ('times', 'count'):
      self.assertEqual(_ints(states[0].own[name]), [2, 0, 0, 2, 2])
    for first, second in zip(*map(tf.nest.flatten, states), strict=True):
      np.testing.assert_array_equal(first, second)

  def test_optimizer_states_are_kept_between_stages_that_both_have_them(self):
    last, states = self._states(
        _algorithm(
            _Stage('first', 3, _remembering()),
            _Stage('skipped', 0, _remembering()),
            _Stage('second', 2, _remembering(own=True)),
        )
    )
    first_three = _took_part(1, 2, 3)
    self.assertEqual(_ints(states[3].own['times']), first_three.tolist())
    self.assertEqual(_ints(last.own['times']), last.participations.tolist())
    # The algorithm's part began with the second stage.
    self.assertEqual(_ints(last.own['count']), (last.participations - first_three).tolist())
    # The server's momentum went on, too.
    same, _ = self._run(
        _algorithm(_Stage('first', 3, _remembering())), run_dir=self._another_run()
    )
    self._assert_same_bits(states[3].state.optimizers, same.state.optimizers)
    (momentum,) = [v for v in tf.nest.flatten(states[4].state.optimizers) if np.ndim(v)]
    before = states[3].state.weights.trainable[0]
    np.testing.assert_array_equal(states[4].state.weights.trainable[0], before - momentum)
    self.assertGreater(np.abs(momentum).max(), 0)

  def test_what_a_stage_does_not_use_stays_as_it_was(self):
    _, states = self._states(
        _algorithm(
            _Stage('with', 2, _remembering(own=True)),
            _Stage('without', 2, _counting()),
            _Stage('with again', 1, _remembering()),
            _Stage('and own', 1, _remembering(own=True)),
        )
    )
    for round_num, used in ((2, (1, 2)), (4, (1, 2)), (5, (1, 2, 5)), (6, (1, 2, 5, 6))):
      self.assertEqual(_ints(states[round_num].own['times']), _took_part(*used).tolist())
    for round_num, used in ((2, (1, 2)), (4, (1, 2, 3, 4)), (5, (1, 2, 3, 4)),
                            (6, (1, 2, 3, 4, 6))):
      self.assertEqual(_ints(states[round_num].own['count']), _took_part(*used).tolist())
    for a, b in zip(states[2].own['drift'], states[4].own['drift'], strict=True):
      np.testing.assert_array_equal(a[0], b[0])

  def test_what_is_forgotten_starts_anew(self):
    def forget(state, clients):
      clients.forget(clients.everybody, 'times', 'drift')
      return state

    last, states = self._states(
        _algorithm(
            _Stage('with', 2, _remembering(own=True)),
            _Stage('again', 2, _remembering(own=True), enter=forget),
        )
    )
    self.assertEqual(_ints(states[2].own['times']), _took_part(1, 2).tolist())
    self.assertEqual(_ints(states[3].own['times']), _took_part(3).tolist())
    self.assertEqual(_ints(last.own['times']), _took_part(3, 4).tolist())
    for client, drift in enumerate(states[3].own['drift']):
      self.assertEqual(np.any(drift[0]), client in _two_clients(3))
    # What the algorithm keeps does not go with it.
    self.assertEqual(_ints(last.own['count']), last.participations.tolist())

  def test_each_optimizer_keeps_its_own_from_its_own_start(self):
    small = collections.OrderedDict(a=np.float32(5), b=[np.full(2, 7, np.int32)])
    algorithm = _algorithm(
        _Stage('first', 2, _keeping()), _Stage('second', 2, _keeping('small', small))
    )
    whole, states = self._states(algorithm, checkpoint_every=1)
    for state in (states[2], whole):
      for kept, times in zip(state.own['kept'], states[2].participations, strict=True):
        np.testing.assert_array_equal(kept, np.full(3, times, np.float32))
    times = whole.participations - states[2].participations
    self.assertGreater(len(set(times.tolist())), 1)
    for kept, n in zip(whole.own['small'], times, strict=True):
      self.assertEqual(kept['a'], 5 + n)
      np.testing.assert_array_equal(kept['b'][0], [7 + n, 7 + n])
    self._stop_and_go_on(algorithm, whole)

  def test_weights_that_are_evaluated_may_be_others_than_the_servers(self):
    def evaluated(weights, own):
      # W starts at 0: the sum is that of the states, but for what was trained.
      return _weights(np.asarray(weights.trainable[0]) * 0 + sum(np.sum(o['kept']) for o in own))

    algorithm = _algorithm(_Stage('train', 3, _keeping(evaluated=evaluated)))
    state, results = self._run(algorithm)
    # Two clients a round add 1 to three numbers; the four weights are added up.
    self.assertEqual([r.metrics['test_loss'] for r in results], [24, 48, 72])
    ((model, found),) = algorithm.evaluated(state.state, state.own_of_clients)
    self.assertIs(model, algorithm.model)
    np.testing.assert_array_equal(found.trainable[0], np.full((2, 2), 18))
    # The server's are what they were.
    plain = _algorithm(_Stage('train', 3, _keeping()))
    same, _ = self._run(plain, run_dir=self._another_run())
    ((_, found),) = plain.evaluated(same.state, same.own_of_clients)
    np.testing.assert_array_equal(found.trainable[0], state.state.weights.trainable[0])

  def test_models_of_single_clients_are_those_of_the_optimizer(self):
    def own_models(weights, own):
      return [_weights(weights.trainable[0] + o['kept'][0]) for o in own if o['kept'][0]]

    owning = _Stage('owning', 2, _keeping(own_models=own_models))
    algorithm = _algorithm(owning)
    state, _ = self._run(algorithm)
    models = algorithm.own_models(state.state, state.own_of_clients)
    times = [n for n in state.participations if n]
    self.assertLen(models, len(times))
    self.assertLess(len(times), _CLIENTS)
    for model, n in zip(models, times, strict=True):
      np.testing.assert_array_equal(
          model.trainable[0], state.state.weights.trainable[0] + np.float32(n)
      )
    then = _algorithm(owning, _Stage('train', 1, _counting()))
    self.assertEqual(then.own_models(state.state, state.own_of_clients), [])

  def test_algorithm_may_say_which_models_are_evaluated(self):
    def evaluate(state, own):
      return [
          algorithm_lib.Evaluated(None, _weights(np.full((2, 2), o['count'] + state.round_num)))
          for o in own
      ]

    _, results = self._run(
        _counting_algorithm(2, evaluate=evaluate),
        evaluations={
            'test': lambda models: {
                'accuracy': len(models), 'loss': sum(m.weights.trainable[0][0, 0] for m in models)
            }
        },
    )
    # Two clients count in each round.
    self.assertEqual([r.metrics['test_accuracy'] for r in results], [5, 5])
    self.assertEqual([r.metrics['test_loss'] for r in results], [2 + 5, 4 + 10])

  def test_clients_whose_contribution_was_left_out_keep_the_state_they_came_with(self):
    # The longer a client's model, the better; of two one is kept.
    def build_score():
      return lambda inputs: tf.map_fn(
          lambda i: tf.reduce_sum(inputs.model(i).trainable[0] ** 2),
          tf.range(inputs.num_clients), fn_output_signature=tf.float32,
      )

    cohorts, kept = [], []

    def after(output, clients):
      del clients  # Unused.
      cohorts.append(output.cohort.tolist())
      kept.append(output.cohort[output.reports['kept']].tolist())
      return output.state

    stage = _Stage(
        'judge', 4,
        _keeping(own=True, selector=stacked.Selector(build_score, keep=1, reason='a test')),
        # In any order: states are keyed by client.
        lambda round_num, _: _two_clients(round_num)[::-1], after=after,
    )
    state, _ = self._run(_algorithm(stage))
    self.assertEqual([len(k) for k in kept], [1] * 4)
    # In the first round, from W = 0, a client's model is a step against its gradient.
    norms = {
        c: np.sum((e.x.T @ (0.5 - np.eye(2)[e.y])) ** 2)
        for c, e in enumerate(self.federation.clients)
    }
    self.assertEqual(kept[0], [max(cohorts[0], key=norms.get)])
    expected = np.bincount(np.concatenate(kept), minlength=_CLIENTS)
    self.assertEqual([int(s[0]) for s in state.own['kept']], expected.tolist())
    # They took part all the same, and know it.
    self.assertEqual(state.participations.sum(), 8)
    self.assertEqual(_ints(state.own['count']), state.participations.tolist())

  def test_clients_may_change_optimizer_states_after_a_round(self):
    adding, seen = _adding('times', of_optimizer=True), []

    def after(output, clients):
      seen.append(int(clients.run(adding, output.state, clients.everybody).sums['before']))
      return output.state

    stage = _Stage('train', 2, _remembering(), after=after)
    state, _ = self._run(_algorithm(stage, asks=(adding,)))
    # Two of the first round; of the second, and ten of each client.
    self.assertEqual(seen, [2, 4 + 50])
    self.assertEqual(_ints(state.own['times']), (20 + state.participations).tolist())

  def test_saved_states_are_restored_bit_for_bit(self):
    algorithm = _algorithm(
        _Stage('first', 3, _remembering()), _Stage('second', 3, _remembering(own=True))
    )
    for middle in (2, 3, 5):
      run_dir, states = self._another_run(), {}

      def watch(state, states=states):
        states[state.round_num] = state
        return {}

      with self.assertRaises(_Stop):
        self._run(
            algorithm, stop_after=middle, run_dir=run_dir, checkpoint_every=1, ground_truth=watch
        )
      ledger = runs.open_ledger(algorithm)
      structure = training.program_state(
          algorithm.init(), runs.clients_of(algorithm, _task(), self.federation, ledger), ledger
      )
      restored = asyncio.run(managers.build_state_manager(run_dir).load(middle, structure))
      # That it is saved is entered into the ledger after this was seen.
      self.assertEqual(restored.ledger.count, states[middle].ledger.count + 1)
      self._assert_same_bits(restored._replace(ledger=()), states[middle]._replace(ledger=()))
      self.assertGreater(np.abs(np.stack([d[0] for d in restored.own['drift']])).max(), 0)

  def test_interrupted_anywhere_it_ends_the_same_with_optimizer_states(self):
    algorithm = _algorithm(
        _Stage('first', 3, _remembering()),
        _Stage('second', 2, _remembering(own=True)),
        _Stage('without', 2, _counting()),
        _Stage('again', 2, _remembering()),
    )
    whole, _ = self._run(algorithm)
    self.assertLen(whole.own['drift'], _CLIENTS)
    self._stop_and_go_on(algorithm, whole)

  def test_starts_from_weights_that_are_given(self):
    weights = _weights([[1, 2], [3, 4]])
    stages = _Stage('first', 0, _counting()), _Stage('train', 2, _counting(1e-30))
    state, results = self._run(_algorithm(*stages), initial_weights=weights)
    np.testing.assert_array_equal(state.state.weights.trainable[0], [[1, 2], [3, 4]])
    self.assertEqual(results[0].metrics['test_loss'], 10)

  def test_resume_does_not_start_from_the_given_weights_again(self):
    algorithm, whole_dir = _counting_algorithm(6), self._another_run()
    weights = _weights([[1, 2], [3, 4]])
    self._run(algorithm, run_dir=whole_dir, initial_weights=weights)
    with self.assertRaises(_Stop):
      self._run(algorithm, stop_after=4, initial_weights=weights)
    self._run(algorithm, initial_weights=weights)
    self.assertEqual(self._metrics(self.run_dir), self._metrics(whole_dir))

  def test_metrics_file_keeps_the_documented_order_of_columns(self):
    self._run(_counting_algorithm(1))
    header = self._metrics(self.run_dir).splitlines()[0]
    self.assertEqual(
        header,
        'round,stage,test_accuracy,test_loss,train_loss,clients,rejected,bytes_up,bytes_down',
    )

  def test_rounds_leave_next_to_nothing_in_memory(self):
    def objects_after(rounds):
      self._run(_counting_algorithm(rounds), run_dir=self._another_run())
      gc.collect()
      return len(gc.get_objects())

    objects_after(1)
    few = objects_after(1)
    self.assertLess(objects_after(21) - few, 20 * 10)

  def test_interrupted_anywhere_it_ends_the_same(self):
    stages = _Stage('first', 4, _counting()), _Stage('second', 5, _counting(0.3))
    algorithm = _algorithm(*stages)
    whole, _ = self._run(algorithm)
    self._stop_and_go_on(algorithm, whole, checkpoint_every=3)

  def test_resume_continues_from_the_checkpoint(self):
    algorithm = _counting_algorithm(9)
    with self.assertRaises(_Stop):
      self._run(algorithm, stop_after=8)
    _, results = self._run(algorithm)
    self.assertEqual([r.round_num for r in results], [7, 8, 9])

  def test_entering_a_stage_is_not_repeated_by_a_resume(self):
    entered = []

    def enter(state, clients):
      del clients  # Unused.
      entered.append(1)
      return state

    algorithm = _algorithm(_Stage('train', 6, _counting(), enter=enter))
    with self.assertRaises(_Stop):
      self._run(algorithm, stop_after=4)
    self._run(algorithm)
    self.assertLen(entered, 1)

  def test_damaged_checkpoint_is_named_and_kept(self):
    algorithm = _counting_algorithm(9)
    with self.assertRaises(_Stop):
      self._run(algorithm, stop_after=8)
    checkpoint = self.run_dir.file('state/round_6.npz')
    os.truncate(checkpoint, 10)
    with self.assertRaisesRegex(types.UsageError, 'round_6.npz cannot be read.*was kept'):
      self._run(algorithm)
    self.assertTrue(os.path.exists(checkpoint))

  def test_without_the_damaged_checkpoint_the_one_before_is_used(self):
    algorithm, whole_dir = _counting_algorithm(9), self._another_run()
    self._run(algorithm, run_dir=whole_dir)
    with self.assertRaises(_Stop):
      self._run(algorithm, stop_after=8)
    os.remove(self.run_dir.file('state/round_6.npz'))
    _, results = self._run(algorithm)
    self.assertEqual(results[0].round_num, 4)
    self.assertEqual(self._metrics(self.run_dir), self._metrics(whole_dir))

  def test_ends_where_it_is_over_also_when_it_is_resumed(self):
    algorithm, whole_dir = _counting_algorithm(9), self._another_run()
    over = lambda done: done == 5  # noqa: E731
    whole, results = self._run(algorithm, run_dir=whole_dir, is_over=over)
    self.assertEqual([r.round_num for r in results], [1, 2, 3, 4, 5])
    with self.assertRaises(_Stop):
      self._run(algorithm, stop_after=4, is_over=over)
    state, results = self._run(algorithm, is_over=over)
    self.assertEqual([r.round_num for r in results], [4, 5])
    self._assert_same_bits(state, whole)
    self.assertEqual(self._metrics(self.run_dir), self._metrics(whole_dir))
    # Its last state was saved, and there it is over.
    self.assertTrue(os.path.exists(self.run_dir.file('state/round_5.npz')))
    state, results = self._run(algorithm, is_over=over)
    self.assertEmpty(results)
    self._assert_same_bits(state, whole)

  @parameterized.parameters((1, [7, 8, 9, 10]), (2, [8, 10]), (5, [10]))
  def test_evaluations_of_the_last_stage(self, eval_every, expected):
    stages = _Stage('first', 6, _counting()), _Stage('last', 4, _counting())
    algorithm = _algorithm(*stages, _Stage('left out', 0, _counting()))
    found = training.evaluated_in_last_stage(algorithm, eval_every, 10)
    self.assertEqual(found, expected)
    self.assertEqual(
        training.evaluated_in_last_stage(algorithm, eval_every, 9), [n for n in expected if n < 10]
    )

  def test_leftovers_of_a_killed_save_are_removed(self):
    os.mkdir(self.run_dir.file('state'))
    leftover = self.run_dir.file('state/round_3.npz.partial-1234')
    with open(leftover, 'w', encoding='utf-8') as file:
      file.write('half a')
    with open(self.run_dir.file('metrics.csv.partial-55'), 'w', encoding='utf-8') as file:
      file.write('half a')
    self._run(_counting_algorithm(1))
    self.assertFalse(tf.io.gfile.exists(leftover))
    self.assertFalse(tf.io.gfile.exists(self.run_dir.file('metrics.csv.partial-55')))


if __name__ == '__main__':
  absltest.main()
