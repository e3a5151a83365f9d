"""Tests of Power-of-Choice: what is asked, who is chosen, what that costs, and what comes of it."""

import itertools
from unittest import mock

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tests.optimizers import rounds
from tests.program import runs
from tff_noise import rng
from tff_noise import types
from tff_noise.algorithms import catalog
from tff_noise.clients import seeds
from tff_noise.federated import task as task_lib
from tff_noise.optimizers import catalog as optimizers
from tff_noise.optimizers import parameters
from tff_noise.program import training
from tff_noise.selection import availability
from tff_noise.selection import policies
from tff_noise.uplink import disclosure
from tff_noise.uplink import uplink

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


def _sample_losses(w, examples):
  """float64 `[n]`, cross-entropy of the linear model."""
  logits = np.asarray(examples.x, np.float64) @ w
  return np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(examples.y)), examples.y]


class _Algorithm:
  """Power-of-Choice, or another optimizer, on these clients."""

  def __init__(self, federation, candidates=4, loss='all', name='poc', **changes):
    entry = catalog.ALGORITHMS[name]
    params = entry.params() if name != 'poc' else entry.params(candidates=candidates, loss=loss)
    self.federation = federation
    task = task_lib.Task(
        toy.linear_model(), rounds.full_batch(1), seed=3, client_sizes=federation.sizes,
        clients_per_round=2, rounds=5,
    )
    self.task = task._replace(**changes)
    self.algorithm = entry.build(self.task, params)
    self.sampler = self.algorithm.computations[-1].optimizer.sampler

  def start(self, w=None):
    """The state before the first round."""
    state = self.algorithm.init()
    if w is None:
      return state
    weights = type(state.weights)([np.array(w, np.float32)], [])
    return state._replace(models={'model': weights})

  def clients(self):
    """The clients before the first round, and their ledger."""
    ledger = runs.open_ledger(self.algorithm)
    return runs.clients_of(self.algorithm, self.task, self.federation, ledger), ledger

  def states(self, state=None):
    """All of a run before the first round, from the given state, and after each that follows."""
    state, (clients, ledger) = state or self.start(), self.clients()
    found = [training.program_state(state, clients, ledger)]
    for _ in range(self.algorithm.rounds):
      state = training.run_round(self.algorithm, state, clients)
      found.append(training.program_state(state, clients, ledger))
    return found


def _w(state):
  return np.asarray(state.weights.trainable[0])


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
      parameters.PowerOfChoiceParams(**change)

  @parameterized.parameters('all', 'batch', 'stale')
  def test_fewer_candidates_than_clients_of_a_round(self, loss):
    federation = _federation()
    with self.assertRaisesRegex(types.UsageError, '--clients_per_round=5 .*candidates=4'):
      _Algorithm(federation, 4, loss, clients_per_round=5)


class PollTest(federated_test_case.FederatedTestCase):

  def _ask(self, federation, asked, round_num=1, loss='all', batch_size=3, seed=3):
    poc = _Algorithm(
        federation, loss=loss, training=types.LocalTraining(1, batch_size, 0.1), seed=seed
    )
    (poll,) = poc.sampler.computations
    state = poc.start(_W)._replace(round_num=round_num - 1)
    return poc.clients()[0].run(poll, state, np.array(asked)).reports['loss']

  @parameterized.parameters(1, 3, 100)
  def test_mean_loss_of_the_global_model_on_all_examples(self, batch_size):
    federation = _federation()
    expected = [_sample_losses(_W, examples).mean() for examples in federation.clients]
    found = self._ask(federation, range(6), loss='all', batch_size=batch_size)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    some = self._ask(federation, [5, 2], loss='all', batch_size=batch_size)
    np.testing.assert_allclose(some, np.array(expected)[[5, 2]], rtol=1e-5)

  @parameterized.parameters('divide', 'rescale')
  def test_the_loss_is_that_of_local_training(self, reading):
    # Reports of labels kept with .75 in a model of two classes, of logits divided by 4.
    form = types.CrossEntropy(0.0, 4.0, reading, keep_probability=0.75)
    federation = _federation()
    poc = _Algorithm(federation, training=types.LocalTraining(1, 3, 0.1, loss=form))
    (poll,) = poc.sampler.computations
    found = poc.clients()[0].run(poll, poc.start(_W), np.arange(6)).reports['loss']
    expected = [
        -np.log(0.25 + 0.5 * np.exp(-_sample_losses(_W / 4, examples))).mean()
        for examples in federation.clients
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-5)

  def test_a_head_that_only_judges_labels_is_not_asked(self):
    federation = _federation()
    task = _Algorithm(federation).task
    poc = optimizers.OPTIMIZERS['poc']
    task = task._replace(optimizer=poc.build(task, poc.params(candidates=4)))
    entry = catalog.ALGORITHMS['fedtally']
    built = entry.build(task, entry.params(loss_q=0.7))
    (poll,) = [c for c in built.computations if c.name == 'asking candidates']
    state = built.init()
    trainable = [_W, *map(np.asarray, state.weights.trainable[1:])]
    state = state._replace(models={'model': type(state.weights)(trainable, [])})
    clients = runs.clients_of(built, task, federation, runs.open_ledger(built))
    expected = [_sample_losses(_W, examples).mean() for examples in federation.clients]
    found = clients.run(poll, state, np.arange(6)).reports['loss']
    np.testing.assert_allclose(found, expected, rtol=1e-5)

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
    (poll,) = _Algorithm(_federation(), loss=loss).sampler.computations
    (field,) = poll.fields
    self.assertEqual(field.disclosure, uplink.Disclosure.PER_CLIENT)
    self.assertEqual(field.type_spec, '<client=int32,loss=float32>')
    disclosure.check(poll.next, poll.fields)
    self.assertNotEmpty(catalog.ALGORITHMS['poc'].per_client)


class ChooseTest(federated_test_case.FederatedTestCase):

  def _asked(self, clients):
    """Lists the candidates of each poll that follows."""
    asked = []
    run = clients.run

    def watched(computation, state, cohort):
      asked.append(cohort.tolist())
      return run(computation, state, cohort)

    self.enter_context(mock.patch.object(clients, 'run', watched))
    return asked

  def test_of_the_candidates_those_with_the_largest_losses(self):
    federation = _federation()
    poc = _Algorithm(federation)
    (clients, ledger), state = poc.clients(), poc.start(_W)
    asked_of_all_rounds = self._asked(clients)
    for round_num in range(1, 6):
      candidates = policies.proportional(3, round_num, np.arange(6), federation.sizes, 4)
      losses = [_sample_losses(_w(state), federation.clients[i]).mean() for i in candidates]
      expected = np.sort(candidates[np.argsort(losses)[-2:]])
      before = clients.participations
      state = training.run_round(poc.algorithm, state, clients)
      self.assertEqual(asked_of_all_rounds[round_num - 1 :], [candidates.tolist()])
      self.assertEqual(np.flatnonzero(clients.participations - before).tolist(), expected.tolist())
      self.assertEqual(clients.traffic.clients, 2)
      # Those who are asked are in the ledger before those who train.
      asked, trained = ledger.entries[-2:]
      self.assertEqual((asked.round_num, asked.clients, asked.fields), (round_num, 4, (0,)))
      self.assertEqual((trained.clients, 0 in trained.fields), (2, False))

  def test_those_who_take_part_train_as_in_fed_avg(self):
    federation = _federation()
    poc = _Algorithm(federation, rounds=1)
    first, last = poc.states(poc.start(_W))
    cohort = np.flatnonzero(last.participations)
    # One full-batch step each: a mean over all of their examples.
    examples = [(federation.clients[i].x, federation.clients[i].y) for i in cohort]
    x, y = (np.concatenate(part) for part in zip(*examples, strict=True))
    expected = _W - 0.5 * rounds.gradient(_W, x, y)
    np.testing.assert_allclose(_w(last.state), expected, atol=1e-5)
    np.testing.assert_array_equal(_w(first.state), _W)

  @parameterized.parameters('all', 'stale')
  def test_as_many_candidates_as_clients_of_a_round_are_the_draw_itself(self, loss):
    federation = _federation()
    found = _cohorts(_Algorithm(federation, 2, loss).states())
    expected = [
        policies.proportional(3, r, np.arange(6), federation.sizes, 2).tolist()
        for r in range(1, 6)
    ]
    self.assertEqual(found, expected)

  def test_everybody_a_candidate_is_a_choice_by_loss_alone(self):
    federation = _federation()
    states = _Algorithm(federation, 6).states()
    for state, cohort in zip(states, _cohorts(states), strict=False):
      if state.round_num == 0:
        continue  # At W = 0 all losses are log 2.
      losses = [_sample_losses(_w(state.state), examples).mean() for examples in federation.clients]
      self.assertEqual(cohort, sorted(np.argsort(losses)[-2:]))

  def test_only_clients_that_are_there_are_asked(self):
    federation = _federation()
    there = availability.Availability(np.array([1, 1, 4, 1, 1, 1]), np.array([9, 9, 9, 3, 9, 9]))
    poc = _Algorithm(federation, 4, availability=there)
    (clients, _), state = poc.clients(), poc.start()
    asked = self._asked(clients)
    for round_num in range(1, 6):
      state = training.run_round(poc.algorithm, state, clients)
      self.assertLen(asked[-1], 4)
      self.assertContainsSubset(asked[-1], there.present(round_num).tolist())
    self.assertLen(asked, 5)

  @parameterized.parameters('all', 'stale')
  def test_noisy_clients_are_chosen_more_often(self, loss):
    # Two of ten clients of equal size have wrong labels: their losses stay large.
    federation = _federation((12,) * 10, flipped=(2, 5))
    poc = _Algorithm(federation, 8, loss, rounds=25, clients_per_round=3)
    times = poc.states()[-1].participations
    self.assertEqual(times.sum(), 75)
    noisy, others = times[[2, 5]].mean(), np.delete(times, [2, 5]).mean()
    # Drawn uniformly each would take part in 7.5 of 25 rounds, standard deviation 2.3.
    self.assertGreater(noisy, 7.5 + 3 * 2.3 / np.sqrt(2))
    self.assertGreater(noisy, 2 * others)


class StaleTest(federated_test_case.FederatedTestCase):

  def test_nobody_is_asked(self):
    poc = _Algorithm(_federation(), 6, 'stale')
    self.assertEmpty(poc.sampler.computations)
    (train,) = poc.algorithm.computations
    self.assertEqual(poc.algorithm.fields, train.fields)
    shown = [
        f.type_spec for f in train.fields if f.disclosure is uplink.Disclosure.PER_CLIENT
    ]
    self.assertEqual(shown, ['<client=int32,loss=float32>'])

  def test_first_those_never_seen_then_the_loss_last_reported(self):
    federation = _federation()
    # Candidates are all.
    states = _Algorithm(federation, 6, 'stale', rounds=8).states()
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
        last[client] = _sample_losses(_w(state.state), federation.clients[client]).mean()

  def test_new_clients_come_before_one_that_diverged(self):
    poc = _Algorithm(_federation(), 6, 'stale')
    last = np.array([np.nan, 3.0, np.inf, 9.0, np.inf, 1.0])
    state = poc.start()
    records = poc.sampler.observe(
        state.records, np.array([0, 1, 3, 5]), {'loss': last[[0, 1, 3, 5]]}
    )
    np.testing.assert_array_equal(records['last_loss'], last)
    seen = set()
    for round_num in range(30):
      state = state._replace(records=records, round_num=round_num)
      chosen = poc.sampler.choose(None, state, np.arange(6), 2)
      self.assertContainsSubset(chosen, [0, 2, 4])
      seen |= set(chosen.tolist())
    # What diverged counts as new ones do, no more.
    self.assertEqual(seen, {0, 2, 4})


class RunTest(federated_test_case.FederatedTestCase):

  def _run(self, poc, folder=None, stop_after=None):
    metrics = []

    def on_round(result):
      metrics.append(result.metrics)
      if result.round_num == stop_after:
        raise InterruptedError

    def evaluate(models):
      ((_, weights),) = models
      return {'accuracy': 0.5, 'loss': float(weights.trainable[0][0, 0])}

    state, _ = runs.run(
        poc.algorithm, poc.task, poc.federation, folder or self.create_tempdir().full_path,
        evaluations={'test': evaluate}, on_round=on_round,
    )
    return state, metrics

  @parameterized.parameters('all', 'stale')
  def test_resumed_it_chooses_the_same_clients(self, loss):
    poc = _Algorithm(_federation(), 5, loss)
    whole, metrics = self._run(poc)
    for stop_after in range(1, 5):
      folder = self.create_tempdir().full_path
      with self.assertRaises(InterruptedError):
        self._run(poc, folder, stop_after)
      state, rest = self._run(poc, folder)
      self.assertEqual(rest, metrics[stop_after:])
      np.testing.assert_array_equal(_w(state.state), _w(whole.state))
      self.assertEqual(state.records.keys(), whole.records.keys())
      for name, value in whole.records.items():
        np.testing.assert_array_equal(state.records[name], value)

  def test_bytes_include_what_candidates_send_and_receive(self):
    federation = _federation()
    found = {}
    for name, loss in (('fedavg', ''), ('poc', 'all'), ('poc', 'batch'), ('poc', 'stale')):
      _, metrics = self._run(_Algorithm(federation, 4, loss, name, rounds=2))
      for row in metrics:
        self.assertEqual(row['clients'], 2)
      found[loss] = {(row['bytes_up'], row['bytes_down']) for row in metrics}
    # Of each of 2 clients: 4 weights up and down, and its number of examples, loss, examples and
    # rejected up, the number of the round down.
    up, down = 2 * (16 + 4 + 3 * 4), 2 * (16 + 4)
    self.assertEqual(found[''], {(up, down)})
    # And each of 4 candidates receives 4 weights and the round's number, and sends its number and
    # its loss.
    self.assertEqual(found['all'], {(up + 4 * 8, down + 4 * 20)})
    self.assertEqual(found['batch'], found['all'])
    # Nobody is asked, but who takes part says its number and its loss.
    self.assertEqual(found['stale'], {(up + 2 * 8, down)})


if __name__ == '__main__':
  absltest.main()
