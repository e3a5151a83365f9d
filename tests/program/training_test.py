"""The training loop: stages, client state, checkpoints, with a method made for the test."""

import asyncio
import collections
import gc
import os
import shutil
from unittest import mock

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tff_noise import types
from tff_noise.data import client_data
from tff_noise.federated import client_work
from tff_noise.federated import compose
from tff_noise.federated import optimizer
from tff_noise.federated import stacked
from tff_noise.federated import uplink
from tff_noise.methods import method
from tff_noise.models import losses
from tff_noise.program import managers
from tff_noise.program import run_directory
from tff_noise.program import training
from tff_noise.selection import policies

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


def _two_clients(round_num, records):
  del records  # Unused.
  return policies.uniform(0, round_num, np.arange(_CLIENTS), 2)


def _stage(name, rounds, learning_rate=0.1, **changes):
  """A stage whose clients keep how often they took part, and train a little more each time."""
  work = client_work.ClientWork(
      lambda i: losses.cross_entropy(i.logits, i.labels) * (1 + tf.cast(i.local, tf.float32)),
      types.LocalTraining(epochs=1, batch_size=2, learning_rate=learning_rate),
      local_type=tff.TensorType(np.int32),
      finish=lambda i: client_work.Finished(i.local + 1),
  )
  return method.Stage(
      name,
      rounds,
      compose.build_round_process(toy.linear_model(), work, seed=0),
      _two_clients,
      initial_local=lambda _: np.int32(0),
      **changes,
  )


def _judging_stage(name, rounds, **changes):
  """As FedCorr's pre-processing: clients report, the server keeps it, and sends it to all."""
  work = client_work.ClientWork(
      lambda i: losses.cross_entropy(i.logits, i.labels) * (1 + i.hparams['seen']),
      types.LocalTraining(epochs=1, batch_size=2, learning_rate=0.1, momentum=0.5),
      local_type=tff.TensorType(np.int32),
      hparams={'seen': np.float32(0)},
      finish=lambda i: client_work.Finished(
          i.local + 1, reports={'norm': tf.reduce_sum(i.update.trainable[0] ** 2)}
      ),
      reports=(uplink.UplinkReport('norm', np.float32, 0.0, 1e6, 'a test'),),
  )
  process = compose.build_round_process(toy.linear_model(), work, seed=0)

  def after(clients, progress, reports, cohort):
    del clients  # Unused.
    norms = progress.records['norms'].copy()
    norms[cohort] = reports['norm']
    hparams = collections.OrderedDict(seen=np.float32(norms.sum()))
    # What happens between rounds may change the clients' states, too.
    local = tuple(np.int32(own + 10) for own in progress.local)
    server = process.process.set_hparams(progress.server, hparams)
    return progress._replace(server=server, local=local, records={'norms': norms})

  return method.Stage(
      name, rounds, process, _two_clients, after=after, initial_local=lambda _: np.int32(0),
      records={'norms': np.zeros(_CLIENTS)}, **changes,
  )


def _remembering_stage(name, rounds, own=False, **changes):
  """A stage whose optimizer keeps at each client how often it took part, and where it went.

  The clients add where they went to their gradients, the server has momentum; with `own`, the
  method keeps a number as well.
  """
  def loss(i):
    scale = 1 + tf.cast(i.local, tf.float32) if own else 1.0
    return losses.cross_entropy(i.logits, i.labels) * scale

  work = client_work.ClientWork(
      loss, types.LocalTraining(epochs=1, batch_size=3, learning_rate=0.1)
  )
  if own:
    work = work._replace(
        local_type=tff.TensorType(np.int32), finish=lambda i: client_work.Finished(i.local + 1)
    )
  rule = optimizer.ClientRule(
      initial_state=collections.OrderedDict(
          count=np.int32(0), drift=[np.zeros((2, 2), np.float32)]
      ),
      gradients=lambda i: [g + d for g, d in zip(i.gradients, i.state['drift'], strict=True)],
      send=lambda r: optimizer.Sent(
          r.update,
          collections.OrderedDict(
              count=r.state['count'] + 1,
              drift=[d / 3 + u for d, u in zip(r.state['drift'], r.update.trainable, strict=True)],
          ),
      ),
  )
  model = toy.linear_model()
  step = tff.learning.optimizers.build_sgdm(1.0, 0.5)
  process = compose.build_round_process(
      model, work, seed=0,
      optimizer=optimizer.FederatedOptimizer(
          optimizer.apply_update(step, model.weights_type), rule
      ),
  )
  return method.Stage(
      name, rounds, process, _two_clients, initial_local=(lambda _: np.int32(0)) if own else None,
      **changes,
  )


def _counting_stage(name, rounds, initial_state=None, judge=None, **of_optimizer):
  """A stage of FedAvg whose clients add 1 to all that the optimizer keeps at them."""
  initial_state = np.zeros(3, np.float32) if initial_state is None else initial_state
  model = toy.linear_model()
  rule = optimizer.ClientRule(
      initial_state=initial_state,
      send=lambda r: optimizer.Sent(r.update, tf.nest.map_structure(lambda v: v + 1, r.state)),
  )
  process = compose.build_round_process(
      model,
      client_work.ClientWork(
          lambda i: losses.cross_entropy(i.logits, i.labels),
          types.LocalTraining(epochs=1, batch_size=3, learning_rate=0.1),
      ),
      seed=0,
      optimizer=optimizer.fed_avg(model.weights_type)._replace(client=rule, **of_optimizer),
      judge=judge,
  )
  return method.Stage(name, rounds, process, _two_clients)


def _counts(state):
  """How often each client took part, as the optimizer says."""
  return [int(kept['count']) for kept in state.local_optimizer]


def _handing_over(stage):
  """The stage after one of another process."""
  def enter(clients, progress):
    del clients  # Unused.
    server = compose.hand_over(stage.round_process.process, progress.server)
    return progress._replace(server=server)

  return stage._replace(enter=enter)


def _schedule(*stages):
  return method.Schedule(stages)


def _weights(kernel):
  return tff.learning.models.ModelWeights([np.array(kernel, np.float32)], [])


class _Stop(Exception):
  """Ends a run the way a kill would, between any two rounds."""


class TrainingTest(federated_test_case.FederatedTestCase):

  def setUp(self):
    super().setUp()
    self.run_dir = run_directory.RunDirectory(self.create_tempdir().full_path)
    self.federation = _federation()

  def _run(
      self, schedule, *, stop_after=None, run_dir=None, eval_every=1, checkpoint_every=3,
      on_round=lambda _: None, **more
  ):
    run_dir = run_dir or self.run_dir
    results = []

    def collect(result):
      results.append(result)
      on_round(result)
      if result.round_num == stop_after:
        raise _Stop

    state = asyncio.run(
        training.run_schedule(
            schedule=schedule,
            federation=self.federation,
            datasets=client_data.federation_datasets(self.federation),
            evaluations={
                'test': lambda w: {'accuracy': 0.5, 'loss': float(w.trainable[0].sum())}
            },
            state_manager=managers.build_state_manager(run_dir),
            metrics_managers=managers.build_metrics_managers(run_dir),
            timing_manager=managers.build_timing_manager(run_dir),
            on_round=collect,
            eval_every=eval_every,
            checkpoint_every=checkpoint_every,
            ledger=federated_test_case.open_ledger(schedule, run_dir.file('ledger.jsonl')),
            **more,
        )
    )
    return state, results

  def _evaluated(self, results):
    return [r.round_num for r in results if not np.isnan(r.metrics['test_accuracy'])]

  def _metrics(self, run_dir):
    with open(run_dir.file('metrics.csv'), encoding='utf-8') as file:
      return file.read()

  def test_only_the_cohorts_states_change_and_all_rounds_are_counted(self):
    state, _ = self._run(_schedule(_stage('train', 6)))
    self.assertEqual([int(v) for v in state.local], state.participations.tolist())
    self.assertEqual(state.participations.sum(), 6 * 2)
    self.assertGreater(len(set(state.participations.tolist())), 1)

  def test_stages_follow_each_other_and_hand_the_state_on(self):
    entered = []

    def enter(clients, progress):
      entered.append((len(clients.federation.clients), len(clients.datasets), progress.round_num))
      return progress._replace(records={**progress.records, 'note': np.array([3])})

    first, second = _stage('first', 2), _stage(
        'second', 3, enter=enter, records={'note': np.array([0])}
    )
    state, results = self._run(_schedule(first, second))
    self.assertEqual([r.metrics['stage'] for r in results], ['first'] * 2 + ['second'] * 3)
    self.assertEqual([r.round_num for r in results], [1, 2, 3, 4, 5])
    self.assertEqual(entered, [(_CLIENTS, _CLIENTS, 2)])
    self.assertEqual(state.records['note'].tolist(), [3])
    self.assertEqual(state.server.client_work['round_num'], 6)

  def test_stage_of_no_rounds_is_skipped(self):
    _, results = self._run(_schedule(_stage('first', 0), _stage('second', 2)))
    self.assertEqual([r.metrics['stage'] for r in results], ['second'] * 2)

  def test_evaluates_every_so_often_and_at_the_end(self):
    _, results = self._run(_schedule(_stage('train', 5)), eval_every=2)
    self.assertEqual(self._evaluated(results), [2, 4, 5])

  def test_evaluates_at_the_ends_of_steps_where_rounds_belong_together(self):
    stages = _stage('steps', 6, step_ends=(2, 5, 6)), _stage('rounds', 3)
    _, results = self._run(_schedule(*stages))
    self.assertEqual(self._evaluated(results), [2, 5, 6, 7, 8, 9])

  def test_every_so_often_counts_steps(self):
    stages = _stage('steps', 7, step_ends=(1, 3, 4, 5, 7)), _stage('rounds', 3)
    _, results = self._run(_schedule(*stages), eval_every=2)
    # Steps 2 and 4 and the last; then rounds 2 and 3 of the next stage.
    self.assertEqual(self._evaluated(results), [3, 5, 7, 9, 10])

  def test_last_round_is_evaluated_also_in_the_middle_of_a_step(self):
    _, results = self._run(_schedule(_stage('steps', 5, step_ends=(2, 4))), eval_every=100)
    self.assertEqual(self._evaluated(results), [5])

  def test_a_round_is_reported_when_it_is_on_disk(self):
    found = []

    def on_round(result):
      with open(self.run_dir.file('metrics.csv'), encoding='utf-8') as file:
        rows = len(file.readlines()) - 1
      states = {name for name in os.listdir(self.run_dir.file('state')) if '_temp' not in name}
      found.append((result.round_num, rows, f'round_{result.round_num}' in states))

    self._run(_schedule(_stage('train', 4)), on_round=on_round, checkpoint_every=2)
    self.assertEqual(found, [(1, 1, False), (2, 2, True), (3, 3, False), (4, 4, True)])

  @parameterized.parameters(1, 3)
  def test_what_cannot_be_written_ends_the_run(self, failing_round):
    class Full(tff.program.ReleaseManager):

      async def release(self, value, key):
        if key == failing_round:
          raise OSError('no space left')

    with (
        mock.patch.object(managers, 'build_timing_manager', return_value=Full()),
        self.assertRaisesRegex(OSError, 'no space left'),
    ):
      self._run(_schedule(_stage('train', 3)), checkpoint_every=1)
    # The round was not saved: it is run again.
    _, results = self._run(_schedule(_stage('train', 3)))
    self.assertEqual(results[0].round_num, failing_round)

  def test_ground_truth_is_a_column_of_every_round(self):
    _, results = self._run(
        _schedule(_stage('train', 3)), ground_truth=lambda s: {'taken_part': s.participations.sum()}
    )
    self.assertEqual([r.metrics['taken_part'] for r in results], [2, 4, 6])

  def test_selection_sees_the_number_of_the_round_and_the_records(self):
    seen = []

    def select(round_num, records):
      seen.append((round_num, int(records['norms'].astype(bool).sum())))
      return np.array([round_num, 0]) if round_num == 1 else np.array([round_num])

    state, _ = self._run(_schedule(_judging_stage('judge', 3)._replace(select=select)))
    # Clients 1 and 0 report in the first round, client 2 in the second.
    self.assertEqual(seen, [(1, 0), (2, 2), (3, 3)])
    self.assertEqual(state.participations.tolist(), [1, 1, 1, 1, 0])

  def test_reports_reach_the_server_between_rounds_by_client(self):
    cohorts, by_client = [], []

    def after(clients, progress, reports, cohort):
      self.assertLen(clients.datasets, _CLIENTS)
      self.assertEqual(progress.round_num, len(cohorts) + 1)
      cohorts.append(cohort.tolist())
      by_client.append(dict(zip(cohort.tolist(), reports['norm'].tolist(), strict=True)))
      return progress

    stage = _judging_stage('judge', 4)._replace(after=after)
    self._run(_schedule(stage))
    self.assertEqual(cohorts, [_two_clients(r, {}).tolist() for r in range(1, 5)])
    # A client alone in the first round, from the same model, reports what it reported in company.
    for client, norm in dict(by_client[0]).items():
      cohorts.clear()
      run_dir = run_directory.RunDirectory(self.create_tempdir().full_path)
      alone = stage._replace(rounds=1, select=lambda *_, c=client: np.array([c]))
      self._run(_schedule(alone), run_dir=run_dir)
      self.assertEqual(by_client[-1], {client: norm})

  def test_what_happens_after_a_round_is_kept(self):
    state, _ = self._run(_schedule(_judging_stage('judge', 4)))
    seen = state.participations > 0
    np.testing.assert_array_equal(state.records['norms'] > 0, seen)
    self.assertEqual([int(v) for v in state.local], (40 + state.participations).tolist())
    hparams = state.server.client_work['hparams']
    self.assertAlmostEqual(hparams['seen'], state.records['norms'].sum(), places=5)

  def test_process_may_change_between_stages(self):
    changed = _schedule(_judging_stage('judge', 3), _handing_over(_stage('train', 2)))
    state, results = self._run(changed)
    self.assertEqual([r.metrics['stage'] for r in results], ['judge'] * 3 + ['train'] * 2)
    # The number of the round goes on: no client repeats its random numbers.
    self.assertEqual(state.server.client_work['round_num'], 6)
    self.assertEmpty(state.server.client_work['hparams'])
    self.assertEqual([int(v) for v in state.local], (30 + state.participations).tolist())

  def _stop_and_go_on(self, schedule, rounds, assert_same):
    """Stops the last run after each of its rounds, and compares the state it then ends in."""
    for stop_after in range(1, rounds):
      with self.subTest(stop_after):
        run_dir = run_directory.RunDirectory(self.create_tempdir().full_path)
        with self.assertRaises(_Stop):
          self._run(schedule, stop_after=stop_after, run_dir=run_dir, checkpoint_every=1)
        state, results = self._run(schedule, run_dir=run_dir, checkpoint_every=1)
        self.assertEqual(results[0].round_num, stop_after + 1)
        self.assertEqual(self._metrics(run_dir), self._metrics(self.run_dir))
        assert_same(state)

  def test_interrupted_anywhere_it_ends_the_same_where_stages_differ(self):
    schedule = _schedule(
        _judging_stage('judge', 4, step_ends=(2, 4)),
        _stage('skipped', 0),
        _handing_over(_stage('train', 2)),
        _handing_over(_judging_stage('again', 2)),
    )
    whole, _ = self._run(schedule)

    def assert_same(state):
      tf.nest.map_structure(
          np.testing.assert_array_equal, state.server.global_model_weights.trainable,
          whole.server.global_model_weights.trainable,
      )
      np.testing.assert_array_equal(state.records['norms'], whole.records['norms'])
      self.assertEqual([int(v) for v in state.local], [int(v) for v in whole.local])

    self._stop_and_go_on(schedule, 8, assert_same)

  def test_optimizer_states_are_keyed_by_client_whatever_the_order_of_the_cohort(self):
    for cohort in ([3, 0], [0, 3]):
      with self.subTest(cohort):
        run_dir = run_directory.RunDirectory(self.create_tempdir().full_path)
        stage = _remembering_stage('train', 1)._replace(select=lambda *_, c=cohort: np.array(c))
        state, _ = self._run(_schedule(stage), run_dir=run_dir)
        self.assertEqual(_counts(state), [1, 0, 0, 1, 0])
        for client, kept in enumerate(state.local_optimizer):
          # At W = 0, a step of .1 against x^T (p - e_y) / 3, p = 1/2; nothing for the others.
          examples = self.federation.clients[client]
          moved = 0.1 * examples.x.T @ (0.5 - np.eye(2)[examples.y]) / 3
          expected = moved if client in cohort else np.zeros((2, 2))
          np.testing.assert_allclose(kept['drift'][0], expected, atol=1e-6)
          self.assertIsInstance(kept['drift'], list)

  def test_order_of_the_cohort_makes_no_difference_to_later_rounds(self):
    # Cohorts overlap, so that a state in another's place would be trained with.
    cohorts = {1: [3, 0], 2: [0, 4], 3: [4, 3]}
    states = []
    for step in (1, -1):
      run_dir = run_directory.RunDirectory(self.create_tempdir().full_path)
      stage = _remembering_stage('train', 3, own=True)._replace(
          select=lambda round_num, _, s=step: np.array(cohorts[round_num][::s])
      )
      states.append(self._run(_schedule(stage), run_dir=run_dir)[0])
    self.assertEqual(_counts(states[0]), [2, 0, 0, 2, 2])
    self.assertEqual([int(v) for v in states[0].local], [2, 0, 0, 2, 2])
    for first, second in zip(*map(tf.nest.flatten, states), strict=True):
      np.testing.assert_array_equal(first, second)

  def test_optimizer_states_are_kept_between_stages_that_both_have_them(self):
    seen = []

    def watched(stage):
      entering = _handing_over(stage)

      def enter(clients, progress):
        seen.append([int(kept['count']) for kept in progress.local_optimizer])
        return entering.enter(clients, progress)

      return entering._replace(enter=enter)

    state, _ = self._run(
        _schedule(
            _remembering_stage('first', 3),
            _remembering_stage('skipped', 0),
            watched(_remembering_stage('second', 2, own=True)),
        )
    )
    first_three = np.zeros(_CLIENTS, int)
    for round_num in (1, 2, 3):
      first_three[_two_clients(round_num, {})] += 1
    self.assertEqual(seen, [first_three.tolist()])
    self.assertEqual(_counts(state), state.participations.tolist())
    # The method's part began with the second stage.
    self.assertEqual([int(v) for v in state.local], (state.participations - first_three).tolist())

  def test_optimizer_states_are_dropped_and_created_with_their_stages(self):
    states = {}

    def watch(state):
      states[state.round_num] = state
      return {}

    self._run(
        _schedule(
            _remembering_stage('with', 2, own=True),
            _handing_over(_stage('without', 2)),
            _handing_over(_remembering_stage('with again', 1)),
            _handing_over(_remembering_stage('and own', 1, own=True)),
        ),
        ground_truth=watch,
    )
    self.assertEqual([len(s.local_optimizer) for s in states.values()], [5, 5, 0, 0, 5, 5])
    self.assertEqual([len(s.local) for s in states.values()], [5, 5, 5, 5, 0, 5])
    self.assertEqual(_counts(states[2]), states[2].participations.tolist())
    # What a method keeps does not go with it.
    self.assertEqual([int(v) for v in states[4].local], states[4].participations.tolist())
    # Counting starts anew.
    fifth, sixth = (np.zeros(_CLIENTS, int) for _ in range(2))
    fifth[_two_clients(5, {})] = 1
    self.assertEqual(_counts(states[5]), fifth.tolist())
    sixth[_two_clients(6, {})] = 1
    self.assertEqual(_counts(states[6]), (fifth + sixth).tolist())
    self.assertEqual([int(v) for v in states[6].local], sixth.tolist())

  def test_states_of_another_shape_begin_anew(self):
    states = {}

    def watch(state):
      states[state.round_num] = state
      return {}

    small = collections.OrderedDict(a=np.float32(5), b=[np.full(2, 7, np.int32)])
    schedule = _schedule(
        _counting_stage('first', 2), _handing_over(_counting_stage('second', 2, small))
    )
    whole, _ = self._run(schedule, ground_truth=watch, checkpoint_every=1)
    for kept, times in zip(
        states[2].local_optimizer, states[2].participations, strict=True
    ):
      np.testing.assert_array_equal(kept, np.full(3, times, np.float32))
    times = whole.participations - states[2].participations
    self.assertGreater(len(set(times.tolist())), 1)
    for kept, n in zip(whole.local_optimizer, times, strict=True):
      self.assertEqual(kept['a'], 5 + n)
      np.testing.assert_array_equal(kept['b'][0], [7 + n, 7 + n])
    for stop_after in (1, 2, 3):
      run_dir = run_directory.RunDirectory(self.create_tempdir().full_path)
      with self.assertRaises(_Stop):
        self._run(schedule, stop_after=stop_after, run_dir=run_dir, checkpoint_every=1)
      state, _ = self._run(schedule, run_dir=run_dir, checkpoint_every=1)
      self._assert_same_bits(state, whole)

  def test_weights_that_are_evaluated_may_be_others_than_the_servers(self):
    def evaluated(weights, states):
      # W starts at 0: the sum is that of the states, but for what was trained.
      return _weights(np.asarray(weights.trainable[0]) * 0 + sum(np.sum(s) for s in states))

    stage = _counting_stage('train', 3, evaluated=evaluated)
    state, results = self._run(_schedule(stage))
    # Two clients a round add 1 to three numbers; the four weights are added up.
    self.assertEqual([r.metrics['test_loss'] for r in results], [24, 48, 72])
    found = training.evaluated_weights(stage, state).trainable[0]
    np.testing.assert_array_equal(found, np.full((2, 2), 18))
    # The server's are what they were.
    plain = _counting_stage('train', 3)
    run_dir = run_directory.RunDirectory(self.create_tempdir().full_path)
    same, _ = self._run(_schedule(plain), run_dir=run_dir)
    np.testing.assert_array_equal(
        training.evaluated_weights(plain, same).trainable[0],
        state.server.global_model_weights.trainable[0],
    )

  def test_own_models_are_those_of_the_last_stage_that_has_rounds(self):
    def own_models(weights, states):
      return [_weights(weights.trainable[0] + s[0]) for s in states if s[0]]

    owning = _counting_stage('owning', 2, own_models=own_models)
    schedule = _schedule(owning, _counting_stage('skipped', 0))
    state, _ = self._run(schedule)
    models = training.own_models(schedule, state)
    times = [n for n in state.participations if n]
    self.assertLen(models, len(times))
    self.assertLess(len(times), _CLIENTS)
    for model, n in zip(models, times, strict=True):
      np.testing.assert_array_equal(
          model.trainable[0], state.server.global_model_weights.trainable[0] + np.float32(n)
      )
    then = _schedule(owning, _counting_stage('train', 1))
    self.assertEqual(training.own_models(then, state), [])

  def test_clients_whose_contribution_was_left_out_keep_the_state_they_came_with(self):
    # The longer a client's model, the better; of two one is kept.
    def build_score():
      return lambda inputs: tf.map_fn(
          lambda i: tf.reduce_sum(inputs.model(i).trainable[0] ** 2),
          tf.range(inputs.num_clients), fn_output_signature=tf.float32,
      )

    cohorts, kept = [], []

    def after(clients, progress, reports, cohort):
      del clients  # Unused.
      cohorts.append(cohort.tolist())
      kept.append(cohort[reports['kept']].tolist())
      return progress

    judge = stacked.Judge(build_score, keep=1, reason='a test')
    stage = _counting_stage('judge', 4, judge=judge)._replace(
        # In any order: states are keyed by client.
        select=lambda round_num, records: _two_clients(round_num, records)[::-1], after=after,
    )
    state, _ = self._run(_schedule(stage))
    self.assertEqual([len(k) for k in kept], [1] * 4)
    # In the first round, from W = 0, a client's model is a step against its gradient.
    norms = {
        c: np.sum((e.x.T @ (0.5 - np.eye(2)[e.y])) ** 2)
        for c, e in enumerate(self.federation.clients)
    }
    self.assertEqual(kept[0], [max(cohorts[0], key=norms.get)])
    expected = np.bincount(np.concatenate(kept), minlength=_CLIENTS)
    self.assertEqual([int(s[0]) for s in state.local_optimizer], expected.tolist())
    # They took part all the same.
    self.assertEqual(state.participations.sum(), 8)

  def test_what_happens_after_a_round_sees_and_may_change_optimizer_states(self):
    seen = []

    def after(clients, progress, reports, cohort):
      del clients, reports, cohort  # Unused.
      seen.append([int(kept['count']) for kept in progress.local_optimizer])
      changed = tuple(
          collections.OrderedDict(kept, count=kept['count'] + np.int32(10))
          for kept in progress.local_optimizer
      )
      return progress._replace(local_optimizer=changed)

    state, _ = self._run(_schedule(_remembering_stage('train', 2, after=after)))
    first = np.zeros(_CLIENTS, int)
    first[_two_clients(1, {})] = 1
    self.assertEqual(seen, [first.tolist(), (10 + state.participations).tolist()])
    self.assertEqual(_counts(state), (20 + state.participations).tolist())

  def test_saved_optimizer_states_are_restored_bit_for_bit(self):
    schedule = _schedule(
        _remembering_stage('first', 3), _handing_over(_remembering_stage('second', 3, own=True))
    )
    states = {}

    def watch(state):
      states[state.round_num] = state
      return {}

    for middle in (2, 3, 5):
      run_dir = run_directory.RunDirectory(self.create_tempdir().full_path)
      with self.assertRaises(_Stop):
        self._run(
            schedule, stop_after=middle, run_dir=run_dir, checkpoint_every=1, ground_truth=watch
        )
      structure = training.initial_state(
          schedule, self.federation, training.stage_of_round(schedule, middle)
      )
      restored = asyncio.run(managers.build_state_manager(run_dir).load(middle, structure))
      # TFF saves a Python number as a tensor of 32 bits.
      names = ('round_num', 'stage', 'stage_round')
      numbers = {name: int(getattr(restored, name)) for name in names}
      position = restored.ledger._replace(count=int(restored.ledger.count))
      self._assert_same_bits(
          restored._replace(**numbers, ledger=position), states[middle]
      )
      self.assertGreater(np.abs(restored.local_optimizer[0]['drift'][0]).max(), 0)

  def test_interrupted_anywhere_it_ends_the_same_with_optimizer_states(self):
    schedule = _schedule(
        _remembering_stage('first', 3),
        _handing_over(_remembering_stage('second', 2, own=True)),
        _handing_over(_stage('without', 2)),
        _handing_over(_remembering_stage('again', 2)),
    )
    whole, _ = self._run(schedule)
    self.assertLen(whole.local_optimizer, _CLIENTS)
    self._stop_and_go_on(schedule, 9, lambda state: self._assert_same_bits(state, whole))

  def _assert_same_bits(self, first, second):
    tf.nest.assert_same_structure(first, second)
    for a, b in zip(tf.nest.flatten(first), tf.nest.flatten(second), strict=True):
      a, b = np.asarray(a), np.asarray(b)
      self.assertEqual((a.shape, a.tobytes()), (b.shape, b.tobytes()))

  def test_starts_from_weights_that_are_given(self):
    weights = _weights([[1, 2], [3, 4]])
    stages = _stage('first', 0), _stage('train', 2, learning_rate=1e-30)
    state, results = self._run(_schedule(*stages), initial_weights=weights)
    np.testing.assert_array_equal(state.server.global_model_weights.trainable[0], [[1, 2], [3, 4]])
    self.assertEqual(results[0].metrics['test_loss'], 10)

  def test_resume_does_not_start_from_the_given_weights_again(self):
    schedule = _schedule(_stage('train', 6))
    whole_dir = run_directory.RunDirectory(self.create_tempdir().full_path)
    weights = _weights([[1, 2], [3, 4]])
    self._run(schedule, run_dir=whole_dir, initial_weights=weights)
    with self.assertRaises(_Stop):
      self._run(schedule, stop_after=4, initial_weights=weights)
    self._run(schedule, initial_weights=weights)
    self.assertEqual(self._metrics(self.run_dir), self._metrics(whole_dir))

  def test_metrics_file_keeps_the_documented_order_of_columns(self):
    self._run(_schedule(_stage('train', 1)))
    header = self._metrics(self.run_dir).splitlines()[0]
    self.assertEqual(
        header,
        'round,stage,test_accuracy,test_loss,train_loss,clients,rejected,bytes_up,bytes_down',
    )

  def test_rounds_leave_next_to_nothing_in_memory(self):
    def objects_after(rounds):
      self._run(
          _schedule(_stage('train', rounds)),
          run_dir=run_directory.RunDirectory(self.create_tempdir().full_path),
      )
      gc.collect()
      return len(gc.get_objects())

    objects_after(1)
    few = objects_after(1)
    self.assertLess(objects_after(21) - few, 20 * 10)

  def test_interrupted_anywhere_it_ends_the_same(self):
    schedule = _schedule(_stage('first', 4), _stage('second', 5, learning_rate=0.3))
    whole, _ = self._run(schedule)
    for stop_after in range(1, 10):
      run_dir = run_directory.RunDirectory(self.create_tempdir().full_path)
      with self.assertRaises(_Stop):
        self._run(schedule, stop_after=stop_after, run_dir=run_dir)
      state, _ = self._run(schedule, run_dir=run_dir)
      self.assertEqual(self._metrics(run_dir), self._metrics(self.run_dir))
      np.testing.assert_array_equal(
          state.server.global_model_weights.trainable[0],
          whole.server.global_model_weights.trainable[0],
      )
      self.assertEqual([int(v) for v in state.local], [int(v) for v in whole.local])
      np.testing.assert_array_equal(state.participations, whole.participations)

  def test_resume_continues_from_the_checkpoint(self):
    schedule = _schedule(_stage('train', 9))
    with self.assertRaises(_Stop):
      self._run(schedule, stop_after=8)
    _, results = self._run(schedule)
    self.assertEqual([r.round_num for r in results], [7, 8, 9])

  def test_entering_a_stage_is_not_repeated_by_a_resume(self):
    entered = []

    def enter(clients, progress):
      del clients  # Unused.
      entered.append(1)
      return progress

    schedule = _schedule(_stage('train', 6, enter=enter))
    with self.assertRaises(_Stop):
      self._run(schedule, stop_after=4)
    self._run(schedule)
    self.assertLen(entered, 1)

  def test_damaged_checkpoint_is_named_and_kept(self):
    schedule = _schedule(_stage('train', 9))
    with self.assertRaises(_Stop):
      self._run(schedule, stop_after=8)
    variables = self.run_dir.file('state/round_6/variables/variables.data-00000-of-00001')
    with open(variables, 'r+b') as file:
      file.truncate(10)
    with self.assertRaisesRegex(types.UsageError, 'round_6 cannot be read.*was kept'):
      self._run(schedule)
    self.assertTrue(tf.io.gfile.exists(variables))

  def test_without_the_damaged_checkpoint_the_one_before_is_used(self):
    schedule = _schedule(_stage('train', 9))
    whole_dir = run_directory.RunDirectory(self.create_tempdir().full_path)
    self._run(schedule, run_dir=whole_dir)
    with self.assertRaises(_Stop):
      self._run(schedule, stop_after=8)
    shutil.rmtree(self.run_dir.file('state/round_6'))
    _, results = self._run(schedule)
    self.assertEqual(results[0].round_num, 4)
    self.assertEqual(self._metrics(self.run_dir), self._metrics(whole_dir))

  def test_leftovers_of_a_killed_save_are_removed(self):
    leftover = self.run_dir.file('state/round_3_temp1234')
    tf.io.gfile.makedirs(leftover)
    with open(self.run_dir.file('metrics.csv_temp55'), 'w', encoding='utf-8') as file:
      file.write('half a')
    self._run(_schedule(_stage('train', 1)))
    self.assertFalse(tf.io.gfile.exists(leftover))
    self.assertFalse(tf.io.gfile.exists(self.run_dir.file('metrics.csv_temp55')))


if __name__ == '__main__':
  absltest.main()
