"""Tests of Power-of-Choice: what is asked, who is chosen, what that costs, and what comes of it."""

import asyncio
import itertools

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tests.optimizers import rounds
from tff_noise import rng
from tff_noise import types
from tff_noise.data import client_data
from tff_noise.federated import aggregation
from tff_noise.federated import disclosure
from tff_noise.federated import optimizer
from tff_noise.federated import per_client
from tff_noise.federated import seeds
from tff_noise.federated import uplink
from tff_noise.methods import method
from tff_noise.methods import registry
from tff_noise.optimizers import power_of_choice
from tff_noise.program import managers
from tff_noise.program import run_directory
from tff_noise.program import training
from tff_noise.selection import availability
from tff_noise.selection import policies

_W = np.array([[1.0, -0.5], [0.25, 2.0]], np.float32)
_SIZES = (3, 5, 4, 8, 6, 7)


def _federation(sizes=_SIZES, flipped=()):
  """Points around two corners; some clients' labels are all wrong."""
  draw = np.random.default_rng(0)
  clients = []
  for i, n in enumerate(sizes):
    y = draw.integers(0, 2, n).astype(np.int32)
    x = (2 * np.eye(2)[y] + draw.normal(0, 0.7, (n, 2))).astype(np.float32)
    clients.append(types.ClientExamples(x, 1 - y if i in flipped else y, np.arange(n)))
  return types.Federation(tuple(clients), 2, 3)


def _task(federation, **changes):
  return method.Task(**{
      'model': toy.linear_model(),
      'training': rounds.full_batch(1),
      'aggregation': aggregation.weighted_mean(),
      'label_privacy': method.LabelPrivacy('1.0', 'shrinkage'),
      'rounds': 5,
      'stages': {},
      'clients_per_round': 2,
      'availability': availability.always(len(federation.clients)),
      'client_sizes': federation.sizes,
      'seed': 3,
      **changes,
  })


def _schedule(federation, candidates=4, loss='all', name='poc', **changes):
  entry = registry.METHODS[name]
  params = entry.params() if name != 'poc' else entry.params(candidates=candidates, loss=loss)
  return entry.build(_task(federation, **changes), params)


def _choice(loss, seed=3, batch_size=3, candidates=4):
  setting = optimizer.Setting(
      toy.linear_model(), types.LocalTraining(1, batch_size, 0.1), np.array(_SIZES), 2, seed
  )
  params = power_of_choice.PowerOfChoiceParams(candidates=candidates, loss=loss)
  return power_of_choice.SPEC.build(setting, params).choice


def _sample_losses(w, examples):
  """float64 `[n]`, cross-entropy of the linear model."""
  logits = np.asarray(examples.x, np.float64) @ w
  return np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(examples.y)), examples.y]


def _start(schedule, federation, w=None):
  state = training.initial_state(schedule, federation)
  if w is None:
    return state
  process = schedule.stages[0].round_process.process
  weights = type(process.get_model_weights(state.server))([np.array(w, np.float32)], [])
  return state._replace(server=process.set_model_weights(state.server, weights))


def _w(state):
  return np.asarray(state.server.global_model_weights.trainable[0])


def _states(schedule, federation, state=None):
  """The state before the first round, or the given one, and after each that follows."""
  datasets = client_data.federation_datasets(federation)
  ledger = federated_test_case.open_ledger(schedule)
  states = [state or _start(schedule, federation)]
  while True:
    stage, current = training.next_stage(schedule, states[-1])
    if stage is None:
      return states
    states.append(training.run_round(schedule, current, federation, datasets, ledger)[0])


def _cohorts(states):
  """Who took part in each round."""
  return [
      np.flatnonzero(b.participations - a.participations).tolist()
      for a, b in itertools.pairwise(states)
  ]


class ParamsTest(parameterized.TestCase):

  @parameterized.parameters({'candidates': 0}, {'candidates': -1}, {'loss': 'mean'}, {'loss': ''})
  def test_out_of_range(self, **change):
    [name] = change
    with self.assertRaisesRegex(ValueError, f'^{name} must'):
      power_of_choice.PowerOfChoiceParams(**change)

  @parameterized.parameters('all', 'batch', 'stale')
  def test_fewer_candidates_than_clients_of_a_round(self, loss):
    federation = _federation()
    with self.assertRaisesRegex(types.UsageError, '--clients_per_round=5 .*candidates=4'):
      _schedule(federation, 4, loss, clients_per_round=5)


class PollTest(federated_test_case.FederatedTestCase):

  def _ask(self, federation, asked, round_num=1, **options):
    poll = _choice(**options).poll
    state = _start(_schedule(federation), federation, _W)
    output = poll.run(
        state.server.global_model_weights,
        [client_data.federation_datasets(federation)[i] for i in asked],
        [np.int32(round_num)] * len(asked),
    )
    return per_client.in_order(output['reports'], np.array(asked))['loss']

  @parameterized.parameters(1, 3, 100)
  def test_mean_loss_of_the_global_model_on_all_examples(self, batch_size):
    federation = _federation()
    expected = [_sample_losses(_W, examples).mean() for examples in federation.clients]
    found = self._ask(federation, range(6), loss='all', batch_size=batch_size)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    some = self._ask(federation, [5, 2], loss='all', batch_size=batch_size)
    np.testing.assert_allclose(some, np.array(expected)[[5, 2]], rtol=1e-5)

  def test_by_hand(self):
    # Logits (1, -.5) and (.25, 2): losses log(1 + e^-1.5) = .2014 and log(1 + e^1.75) = 1.9101.
    examples = types.ClientExamples(np.eye(2, dtype=np.float32), np.array([0, 0]), np.arange(2))
    (found,) = self._ask(types.Federation((examples,), 2, 3), [0], loss='all')
    self.assertAlmostEqual(found, (0.2014 + 1.9101) / 2, places=3)

  def test_of_one_batch_without_repetitions(self):
    federation = _federation()
    found = self._ask(federation, range(6), loss='batch')
    for client, value in enumerate(found):
      losses = _sample_losses(_W, federation.clients[client])
      means = [np.mean(some) for some in itertools.combinations(losses, 3)]
      self.assertLess(np.abs(np.array(means) - value).min(), 1e-5)
      # The batch is a function of (seed, client, round).
      seed = seeds.fold(rng.tf_seed(3, 'client pass'), client, 1)
      order = seeds.batch_order(seed, len(losses)).numpy()
      self.assertAlmostEqual(value, losses[order[:3]].mean(), places=4)
    # Where a batch holds all examples it is their loss.
    everything = [_sample_losses(_W, examples).mean() for examples in federation.clients]
    found = self._ask(federation, range(6), loss='batch', batch_size=8)
    np.testing.assert_allclose(found, everything, rtol=1e-5)

  def test_batch_depends_on_seed_and_round_alone(self):
    federation = _federation()
    first = self._ask(federation, range(6), loss='batch')
    np.testing.assert_array_equal(self._ask(federation, [4, 1], loss='batch'), first[[4, 1]])
    for changes in ({'seed': 4}, {'round_num': 2}):
      other = self._ask(federation, range(6), loss='batch', **changes)
      self.assertGreater(np.abs(other - first)[1:].max(), 1e-3)

  @parameterized.parameters('all', 'batch')
  def test_is_declared_to_show_single_clients(self, loss):
    poll = _choice(loss).poll
    (field,) = poll.fields
    self.assertEqual(field.disclosure, uplink.Disclosure.PER_CLIENT)
    self.assertEqual(field.type_spec, '<client=int32,loss=float32>')
    disclosure.check(poll.run, poll.fields)
    self.assertNotEmpty(power_of_choice.SPEC.per_client)


class ChooseTest(federated_test_case.FederatedTestCase):

  def test_of_the_candidates_those_with_the_largest_losses(self):
    federation = _federation()
    schedule = _schedule(federation)
    (stage,) = schedule.stages
    datasets = client_data.federation_datasets(federation)
    ledger, state = federated_test_case.open_ledger(schedule), _start(schedule, federation, _W)
    for _ in range(stage.rounds):
      round_num = state.round_num + 1
      candidates = policies.proportional(3, round_num, np.arange(6), federation.sizes, 4)
      np.testing.assert_array_equal(stage.select(round_num, state.records), candidates)
      losses = [_sample_losses(_w(state), federation.clients[i]).mean() for i in candidates]
      expected = np.sort(candidates[np.argsort(losses)[-2:]])
      before = state.participations
      state, metrics = training.run_round(schedule, state, federation, datasets, ledger)
      self.assertEqual(np.flatnonzero(state.participations - before).tolist(), expected.tolist())
      self.assertEqual((metrics['clients'], metrics['candidates']), (2, 4))
      # Those who are asked are in the ledger before those who train.
      asked, trained = ledger.entries[-2:]
      self.assertEqual((asked.round_num, asked.clients, asked.fields), (round_num, 4, (0,)))
      self.assertEqual((trained.clients, 0 in trained.fields), (2, False))

  def test_those_who_take_part_train_as_in_fed_avg(self):
    federation = _federation()
    schedule = _schedule(federation, rounds=1)
    first, last = _states(schedule, federation, _start(schedule, federation, _W))
    cohort = np.flatnonzero(last.participations)
    # One full-batch step each: a mean over all of their examples.
    examples = [(federation.clients[i].x, federation.clients[i].y) for i in cohort]
    x, y = (np.concatenate(part) for part in zip(*examples, strict=True))
    expected = _W - 0.5 * rounds.gradient(_W, x, y)
    np.testing.assert_allclose(_w(last), expected, atol=1e-5)
    np.testing.assert_array_equal(_w(first), _W)

  @parameterized.parameters('all', 'stale')
  def test_as_many_candidates_as_clients_of_a_round_are_the_draw_itself(self, loss):
    federation = _federation()
    found = _cohorts(_states(_schedule(federation, 2, loss), federation))
    expected = [
        policies.proportional(3, r, np.arange(6), federation.sizes, 2).tolist()
        for r in range(1, 6)
    ]
    self.assertEqual(found, expected)

  def test_everybody_a_candidate_is_a_choice_by_loss_alone(self):
    federation = _federation()
    states = _states(_schedule(federation, 6), federation)
    for state, cohort in zip(states, _cohorts(states), strict=False):
      if state.round_num == 0:
        continue  # At W = 0 all losses are log 2.
      losses = [_sample_losses(_w(state), examples).mean() for examples in federation.clients]
      self.assertEqual(cohort, sorted(np.argsort(losses)[-2:]))

  def test_only_clients_that_are_there_are_asked(self):
    federation = _federation()
    there = availability.Availability(np.array([1, 1, 4, 1, 1, 1]), np.array([9, 9, 9, 3, 9, 9]))
    schedule = _schedule(federation, 4, availability=there)
    for round_num in range(1, 6):
      candidates = schedule.stages[0].select(round_num, {})
      self.assertLen(candidates, 4)
      self.assertContainsSubset(candidates.tolist(), there.present(round_num).tolist())

  @parameterized.parameters('all', 'stale')
  def test_noisy_clients_are_chosen_more_often(self, loss):
    # Two of ten clients of equal size have wrong labels: their losses stay large.
    federation = _federation((12,) * 10, flipped=(2, 5))
    schedule = _schedule(federation, 8, loss, rounds=25, clients_per_round=3)
    times = _states(schedule, federation)[-1].participations
    self.assertEqual(times.sum(), 75)
    noisy, others = times[[2, 5]].mean(), np.delete(times, [2, 5]).mean()
    # Drawn uniformly each would take part in 7.5 of 25 rounds, standard deviation 2.3.
    self.assertGreater(noisy, 7.5 + 3 * 2.3 / np.sqrt(2))
    self.assertGreater(noisy, 2 * others)


class StaleTest(federated_test_case.FederatedTestCase):

  def test_nobody_is_asked(self):
    schedule = _schedule(_federation(), 6, 'stale')
    (stage,) = schedule.stages
    self.assertIsNone(stage.chooser.poll)
    self.assertEqual(schedule.fields, stage.round_process.fields)
    shown = [
        f.type_spec for f in schedule.fields if f.disclosure is uplink.Disclosure.PER_CLIENT
    ]
    self.assertEqual(shown, ['<client=int32,loss=float32>'])

  def test_first_those_never_seen_then_the_loss_last_reported(self):
    federation = _federation()
    # Candidates are all.
    states = _states(_schedule(federation, 6, 'stale', rounds=8), federation)
    cohorts = _cohorts(states)
    # In three rounds of two everybody has been seen once.
    self.assertCountEqual(itertools.chain(*cohorts[:3]), range(6))
    last = np.full(6, np.inf)
    for state, cohort in zip(states, cohorts, strict=False):
      np.testing.assert_allclose(state.records['last_loss'], last, rtol=1e-4)
      if state.round_num >= 3:
        self.assertEqual(cohort, sorted(np.argsort(last)[-2:]))
      for client in cohort:
        # One full-batch step: the training loss is that of the model it received.
        last[client] = _sample_losses(_w(state), federation.clients[client]).mean()

  def test_new_clients_come_before_one_that_diverged(self):
    federation = _federation()
    (stage,) = _schedule(federation, 6, 'stale').stages
    last = np.array([np.nan, 3.0, np.inf, 9.0, np.inf, 1.0])
    records = stage.chooser.remember(
        {'last_loss': np.full(6, np.inf)}, {'loss': last[[0, 1, 3, 5]]}, np.array([0, 1, 3, 5])
    )
    np.testing.assert_array_equal(records['last_loss'], last)
    seen = set()
    for round_num in range(30):
      progress = method.Progress(None, (), records, round_num)
      chosen = stage.chooser.choose(None, progress, np.arange(6))
      self.assertContainsSubset(chosen, [0, 2, 4])
      seen |= set(chosen.tolist())
    # What diverged counts as new ones do, no more.
    self.assertEqual(seen, {0, 2, 4})


class RunTest(federated_test_case.FederatedTestCase):

  def _run(self, schedule, federation, folder=None, stop_after=None):
    run_dir = run_directory.RunDirectory(folder or self.create_tempdir().full_path)
    metrics = []

    def on_round(result):
      metrics.append(result.metrics)
      if result.round_num == stop_after:
        raise InterruptedError

    state = asyncio.run(
        training.run_schedule(
            schedule=schedule,
            federation=federation,
            datasets=client_data.federation_datasets(federation),
            evaluations={'test': lambda w: {'accuracy': 0.5, 'loss': float(w.trainable[0][0, 0])}},
            state_manager=managers.build_state_manager(run_dir),
            metrics_managers=managers.build_metrics_managers(run_dir),
            timing_manager=managers.build_timing_manager(run_dir),
            on_round=on_round,
            ground_truth=lambda s: {f'times_{i}': n for i, n in enumerate(s.participations)},
            eval_every=1,
            checkpoint_every=1,
            ledger=federated_test_case.open_ledger(schedule, run_dir.file('ledger.jsonl')),
        )
    )
    return state, metrics

  @parameterized.parameters('all', 'stale')
  def test_resumed_it_chooses_the_same_clients(self, loss):
    federation = _federation()
    schedule = _schedule(federation, 5, loss)
    whole, metrics = self._run(schedule, federation)
    for stop_after in range(1, 5):
      folder = self.create_tempdir().full_path
      with self.assertRaises(InterruptedError):
        self._run(schedule, federation, folder, stop_after)
      state, rest = self._run(schedule, federation, folder)
      self.assertEqual(rest, metrics[stop_after:])
      np.testing.assert_array_equal(_w(state), _w(whole))
      self.assertEqual(state.records.keys(), whole.records.keys())
      for name, value in whole.records.items():
        np.testing.assert_array_equal(state.records[name], value)

  def test_bytes_include_what_candidates_send_and_receive(self):
    federation = _federation()
    found = {}
    for name, loss in (('fedavg', ''), ('poc', 'all'), ('poc', 'batch'), ('poc', 'stale')):
      schedule = _schedule(federation, 4, loss, name, rounds=2)
      _, metrics = self._run(schedule, federation)
      for row in metrics:
        self.assertEqual(row['clients'], 2)
      found[loss] = {(row['bytes_up'], row['bytes_down']) for row in metrics}
    # Of each of 2 clients: 4 weights up and down, and its number of examples, loss, examples and
    # rejected up, the number of the round down.
    up, down = 2 * (16 + 4 + 3 * 4), 2 * (16 + 4)
    self.assertEqual(found[''], {(up, down)})
    # And each of 4 candidates receives 4 weights and sends its number and its loss.
    self.assertEqual(found['all'], {(up + 4 * 8, down + 4 * 16)})
    self.assertEqual(found['batch'], found['all'])
    # Nobody is asked, but who takes part says its number and its loss.
    self.assertEqual(found['stale'], {(up + 2 * 8, down)})


if __name__ == '__main__':
  absltest.main()
