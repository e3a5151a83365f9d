"""Tests of what an algorithm can do with the clients of a simulation, and what it cannot."""

import collections
import types as python_types
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
from tff_noise.algorithms import plain
from tff_noise.clients import program
from tff_noise.federated import aggregation
from tff_noise.federated import computation
from tff_noise.federated import label_histogram
from tff_noise.federated import learning_round
from tff_noise.federated import optimizer
from tff_noise.federated import processes
from tff_noise.federated import stacked
from tff_noise.federated import task as task_lib
from tff_noise.privacy import costs as costs_lib
from tff_noise.privacy import mechanism
from tff_noise.privacy import protection
from tff_noise.program import clients as clients_lib
from tff_noise.program import training
from tff_noise.runtimes import connection
from tff_noise.selection import availability
from tff_noise.selection import policies
from tff_noise.uplink import uplink

_SIZES = (3, 1, 4, 2, 5)
_SEED = 7
_TASK = task_lib.Task(None, seed=_SEED, clients_per_round=2, client_sizes=np.array(_SIZES))

_MESSAGES = (
    uplink.Message('shift', np.float32, 'a test'),
    uplink.Message('pair', np.int32, 'a test', shape=(2,)),
)
# 4 + 8 bytes for each client.
_SENT = {'shift': np.float32([0.5, 1.5]), 'pair': np.int32([[1, 2], [3, 4]])}
_OWN = {
    'seen': program.PerExample(np.float32(0)), 'labels': program.GivenLabels(),
    'count': np.int32(0),
}
_DRIFT = {'drift': np.zeros(2, np.float32)}


def _federation():
  draw = np.random.default_rng(0)
  clients, first = [], 0
  for n in _SIZES:
    x, y = draw.normal(size=(n, 2)).astype(np.float32), draw.integers(0, 2, n).astype(np.int32)
    clients.append(types.ClientExamples(x, y, np.arange(first, first + n)))
    first += n
  return types.Federation(tuple(clients), 2, _SEED)


def _field(name, num_bytes=4):
  return uplink.UplinkField(
      name, 'float32', 'federated_sum', uplink.Disclosure.SUM, None, None, 'a test', num_bytes
  )


class _Computed:
  """What clients compute, in NumPy: everything is returned in the opposite order.

  Attributes:
    calls: What it was given.
    before: Called first.
    kept: By client id, whether a selector used its contribution; all, if not given.
    loss: Of the training.
  """

  def __init__(self):
    self.calls, self.before, self.kept, self.loss = [], lambda: None, None, 1.0

  def __call__(self, state, data, local=None, server_data=None):
    self.calls.append((state, data, local, server_data))
    self.before()
    ids = [int(d.get_single_element()['client']) for d in data][::-1]
    reports = {'client': np.array(ids), 'tenfold': 10 * np.array(ids)}
    if self.kept is not None:
      reports[stacked.KEPT] = np.array([self.kept[i] for i in ids])
    change = {
        'count': lambda v, i: v + 1, 'labels': lambda v, i: 1 - v, 'seen': lambda v, i: v + i,
        'drift': lambda v, i: v + i,
    }
    returned = [
        uplink.ReturnedState(np.int32(i), {n: change[n](v, i) for n, v in own.items()})
        for i, own in zip(ids, [given.own for given in local or ()][::-1], strict=bool(local))
    ]
    sums = {'loss': 2 * self.loss, 'examples': 2.0, 'rejected': 1}
    if not isinstance(state, tff.learning.templates.LearningAlgorithmState):
      return {'sums': sums, 'reports': reports, 'mean': 'a mean', 'local': returned}
    after = tff.learning.templates.LearningAlgorithmState(
        global_model_weights='trained', distributor=(), client_work=None, aggregator='aggregated',
        finalizer='stepped',
    )
    metrics = {'client_work': {'train': learning_round.mean_loss(sums)}, 'reports': reports}
    return processes.StatefulOutput(after, metrics, returned)


def _look(name='look', **parts):
  """A computation without a next model, and what runs."""
  computed = _Computed()
  parts = {'own': _OWN, 'messages': _MESSAGES, 'receives': {'prior': np.zeros(2)}, **parts}
  declared = program.declared((program.ClientProgram(**parts),))
  fields = (_field(f'{name}, a sum', 3), _field(f'{name}, another'))
  return computation.Computation(
      name, processes.Collection(computed), fields, declared, broadcast_bytes=11
  ), computed


def _train(name='train', sampler=None, server_data=None, **parts):
  """A round of training, and what runs."""
  computed = _Computed()
  mine, optimizers = (
      program.ClientProgram(**p) for p in ({'own': _OWN, **parts}, {'own': _DRIFT})
  )
  first = tff.learning.templates.LearningAlgorithmState((), (), (), 'averages', ())
  process = processes.StatefulProcess(
      lambda: first, computed, None, None, None, None, None,
      server_data and tff.TensorType(np.int32),
  )
  return computation.Computation(
      name, process, (_field(f'{name}, the update', 20),), program.declared((mine, optimizers)),
      broadcast_bytes=30, server_data=server_data, trains=True,
      optimizer=optimizer.FederatedOptimizer(None, optimizers, sampler=sampler, name='mine'),
  ), computed


def _algorithm(*computations, round_=None):
  return algorithm_lib.Algorithm(round_, computations, {'train': 9})


def _clients(*computations, task=_TASK, **more):
  """The clients of an algorithm with these computations, and their ledger."""
  algorithm = _algorithm(*computations, **more)
  ledger = runs.open_ledger(algorithm)
  clients = runs.clients_of(algorithm, task, _federation(), ledger)
  clients.begin_round(3, 'train')
  return clients, ledger


_STATE = algorithm_lib.State(
    {'model': 'weights', 'other': 'others'}, {'mine': 'server', 'else': 'elsewhere'},
    {'prior': 'the prior', 'noise': 'the noise'}, {'seen': np.zeros(5)}, round_num=2,
)
_COHORT = np.array([1, 4])


class RefusalTest(parameterized.TestCase):

  def _assert_refused(self, clients, ledger, message, ask, *args, **messages):
    before = clients.own
    with self.assertRaisesRegex(ValueError, message):
      ask(*args, **messages)
    self.assertEmpty(ledger.entries)
    self.assertEqual(clients.traffic.bytes_up, 0)
    self.assertEqual(clients.participations.tolist(), [0] * 5)
    for name, states in clients.own.items():
      self.assertIs(states, before[name])

  def test_computations_that_the_algorithm_does_not_list(self):
    (look, _), (train, _) = _look(), _train()
    clients, ledger = _clients(look, train)
    for other, computed in (
        _look('elsewhere'), _train('elsewhere'),
        # Of a name that is listed.
        _look('look'), _train('train'), _look('train'), _train('look'),
    ):
      for ask in (clients.run, clients.train):
        self._assert_refused(
            clients, ledger, f"does not list the computation '{other.name}'", ask, other, _STATE,
            _COHORT, **_SENT,
        )
      self.assertEmpty(computed.calls)

  def test_what_is_declared_of_a_listed_computation_is_what_counts(self):
    look, _ = _look(messages=())
    clients, ledger = _clients(look)
    # The same process, said to send nothing.
    clients.run(look._replace(fields=(), broadcast_bytes=0), _STATE, _COHORT)
    self.assertEqual([entry.fields for entry in ledger.entries], [(0, 1)])
    self.assertEqual((clients.traffic.bytes_up, clients.traffic.bytes_down), (2 * 7, 2 * 11))

  def test_training_is_trained_and_the_rest_is_run(self):
    look, computed = _look(messages=())
    train, trained = _train()
    clients, ledger = _clients(look, train)
    self._assert_refused(
        clients, ledger, "'look' has no next model", clients.train, look, _STATE, _COHORT
    )
    self._assert_refused(
        clients, ledger, "'train' makes a next model", clients.run, train, _STATE, _COHORT
    )
    self.assertEmpty(computed.calls + trained.calls)

  @parameterized.named_parameters(
      ('missing', {'pair': None}, r"sends to single clients \['pair', 'shift'\], got \['shift'\]"),
      ('undeclared', {'more': np.zeros(2)}, r"got \['more', 'pair', 'shift'\]"),
      ('of_another_shape', {'pair': np.zeros((2, 3), np.int32)}, r"'pair' has to be int32\[2, 2\]"),
      ('without_its_shape', {'pair': np.zeros(2, np.int32)}, r"'pair' has to be int32\[2, 2\]"),
      ('of_more_clients', {'shift': np.zeros(3, np.float32)}, r"'shift' has to be float32\[2\]"),
      ('of_fewer_clients', {'shift': np.zeros(1, np.float32)}, r"'shift' has to be float32\[2\]"),
      ('one_for_all', {'shift': np.float32(1)}, r"'shift' has to be float32\[2\]"),
      ('of_another_type', {'shift': np.zeros(2)}, r"'shift' has to be float32\[2\]"),
      ('whole_numbers', {'shift': np.zeros(2, np.int32)}, r"'shift' has to be float32\[2\]"),
  )
  def test_messages_that_are_not_as_declared(self, changes, message):
    (look, _), (train, _) = _look(), _train(messages=_MESSAGES)
    clients, ledger = _clients(look, train)
    sent = {name: v for name, v in {**_SENT, **changes}.items() if v is not None}
    for ask, asked in ((clients.run, look), (clients.train, train)):
      self._assert_refused(clients, ledger, message, ask, asked, _STATE, _COHORT, **sent)


  @parameterized.parameters(
      ([1, 1],), ([-1],), ([5],), ([[1, 2]],), ([0.5],), (['a'],),
  )
  def test_cohorts_that_are_none(self, cohort):
    (look, _), (train, _) = _look(messages=()), _train()
    clients, ledger = _clients(look, train)
    for ask, asked in ((clients.run, look), (clients.train, train)):
      self._assert_refused(
          clients, ledger, 'a cohort has to be ids of clients, each once', ask, asked, _STATE,
          np.array(cohort),
      )

  def test_cohort_is_looked_at_once(self):
    class Changing:
      """Another cohort each time."""

      times = 0

      def __array__(self, *args, **more):
        self.times += 1
        return np.array([0] if self.times == 1 else [1, 2, 3])

      def __len__(self):
        return 1

    look, computed = _look(messages=())
    clients, ledger = _clients(look)
    clients.run(look, _STATE, Changing())
    self.assertEqual([entry.clients for entry in ledger.entries], [1])
    self.assertLen(computed.calls[0][1], 1)

  def test_process_that_was_changed_after_it_was_listed(self):
    look, computed = _look(messages=())
    other, elsewhere = _look('other', messages=())
    clients, _ = _clients(look)
    process = look.process._replace(next=other.next)
    with self.assertRaisesRegex(ValueError, 'does not list'):
      clients.run(look._replace(process=process), _STATE, _COHORT)
    self.assertEmpty(computed.calls + elsewhere.calls)

  def test_two_computations_that_would_draw_the_same_noise(self):
    noisy = _field('update')._replace(protection=protection.NoisySum(1.0, 1.0, 2, 5))
    train, again, plain = (_train(name)[0] for name in ('train', 'again', 'plain'))
    train, again = (c._replace(fields=(noisy,)) for c in (train, again))
    with self.assertRaisesRegex(ValueError, r"can draw noise, and here \['train', 'again'\] do"):
      _clients(train, again)
    _clients(train, plain)

  def test_what_noise_is_drawn_from_goes_on_whatever_state_is_given(self):
    train, computed = _train()
    clients, _ = _clients(train)
    for _ in range(2):
      clients.train(train, _STATE, _COHORT)
    self.assertEqual([c[0].aggregator for c in computed.calls], ['averages', 'aggregated'])

  @parameterized.parameters('fixed', protection.CYCLIC)
  def test_noise_is_of_the_sample_of_its_round_which_answers_once(self, sampling):
    noisy = _field('update')._replace(protection=protection.NoisySum(1.0, 1.0, 2, 5))
    train, computed = _train()
    train = train._replace(fields=(noisy,))
    clients, ledger = _clients(train, task=_TASK._replace(sampling=sampling))
    sample = clients.sample(train, _STATE)
    for other in (np.arange(5), sample[:1], np.setdiff1d(np.arange(5), sample)):
      with self.assertRaisesRegex(ValueError, "of 'train' is not the sample of its round"):
        clients.train(train, _STATE, other)
    self.assertEmpty(ledger.entries)
    clients.train(train, _STATE, sample[::-1])
    with self.assertRaisesRegex(ValueError, 'second release with noise in round 3: the cohort'):
      clients.train(train, _STATE, sample)
    self.assertLen(ledger.entries, 1)
    self.assertLen(computed.calls, 1)


  def test_a_round_without_noise_would_tell_who_was_drawn(self):
    noisy = _field('update')._replace(protection=protection.NoisySum(1.0, 1.0, 2, 5))
    train, _ = _train()
    train = train._replace(fields=(noisy,))
    clients, _ = _clients(train)
    with self.assertRaisesRegex(ValueError, 'had no release with noise: each has to have one'):
      clients.require_noise()
    clients.train(train, _STATE, clients.sample(train, _STATE))
    clients.require_noise()
    _clients(_train()[0])[0].require_noise()

  def test_with_noise_no_optimizer_chooses_who_takes_part(self):
    noisy = _field('update')._replace(protection=protection.NoisySum(1.0, 1.0, 2, 5))
    train, computed = _train()
    chooses = train.optimizer._replace(sampler=object())
    train = train._replace(fields=(noisy,), optimizer=chooses)
    with self.assertRaisesRegex(ValueError, "'train' draws noise, and its optimizer chooses"):
      _clients(train)[0].train(train, _STATE, _COHORT)
    self.assertEmpty(computed.calls)


class CohortSecretTest(absltest.TestCase):

  def test_cohorts_follow_from_their_secret_where_there_is_one(self):
    train, _ = _train()
    for sampling, draw in (
        (protection.FIXED, lambda seed, r: policies.uniform(seed, r, np.arange(5), 2)),
        (protection.POISSON, lambda seed, r: policies.poisson(seed, r, 5, 2)),
    ):
      drawn = {}
      for secret in (None, 99):
        task = _TASK._replace(sampling=sampling, cohort_secret=secret)
        clients, _ = _clients(train, task=task)
        drawn[secret] = []
        for round_num in range(1, 20):
          clients.begin_round(round_num, 'train')
          cohort = clients.sample(train, _STATE).tolist()
          self.assertEqual(cohort, draw(_SEED if secret is None else secret, round_num).tolist())
          drawn[secret].append(cohort)
      self.assertNotEqual(drawn[None], drawn[99])


class PoissonTest(parameterized.TestCase):
  """Cohorts that are Poisson samples."""

  def setUp(self):
    super().setUp()
    task = _TASK._replace(sampling=protection.POISSON)
    shield = protection.NoisySum(1.0, 1.0, 2, 5, sampling=protection.POISSON)
    train, self.computed = _train()
    self.train = train._replace(fields=(_field('update')._replace(protection=shield),))
    self.clients, self.ledger = _clients(self.train, task=task)
    # The first round in which two or more of five are drawn.
    self.drawn = next(
        r for r in range(1, 99) if len(policies.poisson(_SEED, r, 5, 2)) > 1
    )
    self.clients.begin_round(self.drawn, 'train')

  def test_cohort_is_the_sample_of_its_round(self):
    cohort = self.clients.sample(self.train, _STATE)
    expected = policies.poisson(_SEED, self.drawn, 5, 2)
    np.testing.assert_array_equal(cohort, expected)
    self.clients.train(self.train, _STATE, cohort)
    [entry] = self.ledger.entries
    self.assertEqual((entry.round_num, entry.clients), (self.drawn, len(expected)))
    self.assertEqual(self.clients.traffic.clients, len(expected))
    self.assertEqual(np.flatnonzero(self.clients.participations).tolist(), expected.tolist())

  def test_no_other_cohort_answers(self):
    cohort = self.clients.sample(self.train, _STATE)
    others = np.setdiff1d(np.arange(5), cohort)
    for other in (cohort[1:], cohort[:0], others, np.arange(5)):
      with self.assertRaisesRegex(ValueError, "'train' is not the sample of its round"):
        self.clients.train(self.train, _STATE, other)
    self.assertEmpty(self.ledger.entries)
    self.assertEmpty(self.computed.calls)
    # Nothing was released, and no noise was used.
    self.clients.train(self.train, _STATE, cohort)

  @parameterized.parameters({'among': np.array([0, 1])}, {'size': 2}, {'among': np.arange(5)})
  def test_all_are_drawn_alike(self, **asked):
    with self.assertRaisesRegex(types.UsageError, "^--client_sampling=poisson .* 'train', whose"):
      self.clients.sample(self.train, _STATE, **asked)

  def test_optimizer_that_chooses(self):
    sampler = optimizer.Sampler((), {}, lambda *_: np.arange(5), lambda records, *_: records)
    train = self.train._replace(optimizer=self.train.optimizer._replace(sampler=sampler))
    with self.assertRaisesRegex(types.UsageError, 'not drawn from everybody alike: use'):
      self.clients.sample(train, _STATE)


class LedgerTest(parameterized.TestCase):

  def test_has_the_entry_before_the_computation_runs(self):
    (look, looked), (train, trained) = _look(messages=()), _train()
    clients, ledger = _clients(look, train)
    found = []
    looked.before = trained.before = lambda: found.append(ledger.entries[-1])
    clients.run(look, _STATE, np.array([0, 2, 3]))
    clients.train(train, _STATE, _COHORT)
    clients.begin_round(4, 'later')
    clients.train(train, _STATE, _COHORT)
    self.assertEqual([(e.round_num, e.stage) for e in found], [(3, 'train')] * 2 + [(4, 'later')])
    self.assertEqual([(e.fields, e.clients) for e in found], [((0, 1), 3), ((2,), 2), ((2,), 2)])
    self.assertEqual(list(ledger.entries), found)
    self.assertEqual(found[1].cohort, found[2].cohort)
    self.assertNotEqual(found[0].cohort, found[1].cohort)

  def test_keeps_the_entry_of_a_computation_that_fails(self):
    look, looked = _look(messages=())
    clients, ledger = _clients(look)

    def fail():
      raise OSError('the worker is gone')

    looked.before = fail
    with self.assertRaisesRegex(OSError, 'the worker is gone'):
      clients.run(look, _STATE, _COHORT)
    self.assertLen(ledger.entries, 1)

  def test_names_messages_that_hold_values_of_other_clients(self):
    others = uplink.Message('prototypes', np.float32, 'a test', from_others=True)
    (look, _), (silent, _) = _look(messages=(others,)), _look('silent', messages=())
    silent = silent._replace(fields=())
    clients, ledger = _clients(look, silent)
    clients.run(silent, _STATE, _COHORT)  # Nothing is sent, and nothing is entered.
    clients.run(look, _STATE, _COHORT, prototypes=np.zeros(2, np.float32))
    self.assertEqual([e.fields for e in ledger.entries], [(0, 1, 2)])


class GivenTest(parameterized.TestCase):
  """What clients are given."""

  def test_in_training(self):
    train, computed = _train(
        messages=_MESSAGES, receives={'prior': np.zeros(2)}, server_data='clean images'
    )
    clients, _ = _clients(train)
    clients.train(train, _STATE, _COHORT, **_SENT)
    ((state, data, local, server_data),) = computed.calls
    self.assertEqual(server_data, 'clean images')
    self.assertEqual(
        (state.global_model_weights, state.finalizer, state.aggregator, state.distributor),
        ('weights', 'server', 'averages', ()),
    )
    # The state knows the rounds that are done; the number in it is that of the next.
    self.assertEqual(
        state.client_work,
        collections.OrderedDict(round_num=3, hparams=collections.OrderedDict(prior='the prior')),
    )
    self._assert_each_has_its_own(data, local)

  def test_without_a_next_model(self):
    look, computed = _look()
    clients, _ = _clients(look)
    clients.run(look, _STATE, _COHORT, **_SENT)
    ((broadcast, data, local, _),) = computed.calls
    self.assertEqual(
        broadcast,
        program.Broadcast('weights', 3, collections.OrderedDict(prior='the prior')),
    )
    self.assertEqual(broadcast.round_num.dtype, np.int32)
    self._assert_each_has_its_own(data, local)
    without, computed = _look(messages=())
    without = without._replace(sends_model=False)
    clients, _ = _clients(without)
    clients.run(without, _STATE, _COHORT)
    self.assertEqual(computed.calls[0][0].weights, ())

  def _assert_each_has_its_own(self, data, local):
    federation = _federation()
    for i, (client, dataset, given) in enumerate(zip(_COHORT, data, local, strict=True)):
      examples = dataset.get_single_element()
      self.assertEqual(int(examples['client']), client)
      np.testing.assert_array_equal(examples['x'], federation.clients[client].x)
      # In the order in which they travel.
      self.assertEqual(list(given.messages), ['pair', 'shift'])
      np.testing.assert_array_equal(given.messages['pair'], _SENT['pair'][i])
      self.assertEqual(given.messages['shift'], _SENT['shift'][i])
      own = {**given.own}
      own.pop('drift', None)
      self.assertEqual(list(own), ['count', 'labels', 'seen'])
      np.testing.assert_array_equal(own['labels'], federation.clients[client].y)
      np.testing.assert_array_equal(own['seen'], np.zeros(_SIZES[client], np.float32))


class ReturnedTest(parameterized.TestCase):
  """What comes back, in another order than clients were asked in."""

  def test_state_of_training(self):
    train, _ = _train()
    again, _ = _train('again')
    clients, _ = _clients(train, again)
    state = clients.train(train, _STATE, _COHORT).state
    self.assertEqual(state.models, {'model': 'trained', 'other': 'others'})
    self.assertEqual(state.optimizers, {'mine': 'stepped', 'else': 'elsewhere'})
    self.assertEqual(clients.aggregators, {'train': 'aggregated', 'again': 'averages'})
    # A round may train several times: the loop counts.
    self.assertEqual(state.round_num, 2)
    self.assertIs(state.records, _STATE.records)
    self.assertEqual(_STATE.models, {'model': 'weights', 'other': 'others'})

  def test_state_of_what_has_no_next_model(self):
    look, _ = _look(messages=())
    clients, _ = _clients(look)
    output = clients.run(look, _STATE, _COHORT)
    self.assertIs(output.state, _STATE)
    self.assertEqual(output.mean, 'a mean')
    self.assertEqual(output.sums['loss'], 1)

  @parameterized.parameters(([1, 4],), ([4, 1],), ([3, 0, 2],))
  def test_reports_are_in_the_order_of_the_cohort(self, cohort):
    (look, _), (train, _) = _look(messages=()), _train()
    clients, _ = _clients(look, train)
    for output in (
        clients.run(look, _STATE, np.array(cohort)), clients.train(train, _STATE, np.array(cohort)),
    ):
      self.assertEqual(list(output.reports), ['tenfold'])
      self.assertEqual(output.reports['tenfold'].tolist(), [10 * i for i in cohort])
      self.assertEqual(output.cohort.tolist(), cohort)

  @parameterized.parameters(([1, 4],), ([4, 1],))
  def test_clients_keep_their_own_whatever_the_order(self, cohort):
    (look, _), (train, _) = _look(messages=()), _train()
    clients, _ = _clients(look, train)
    first = clients.own
    clients.run(look, _STATE, np.array(cohort))
    self._assert_kept(clients.own, first, {1: 1, 4: 1}, drift={})
    clients.train(train, _STATE, np.array(cohort[:1] + [2]))
    self._assert_kept(clients.own, first, {1: 1, 4: 1, 2: 1, cohort[0]: 2}, {cohort[0]: 1, 2: 1})

  def _assert_kept(self, own, first, times, drift):
    for client, examples in enumerate(_federation().clients):
      n, y = times.get(client, 0), examples.y
      self.assertEqual(own['count'][client], n)
      np.testing.assert_array_equal(own['seen'][client], np.full(len(y), n * client, np.float32))
      np.testing.assert_array_equal(own['labels'][client], 1 - y if n % 2 else y)
      np.testing.assert_array_equal(own['drift'][client], [drift.get(client, 0) * client] * 2)
      if not n:
        for name, states in own.items():
          self.assertIs(states[client], first[name][client])
    # What was handed out before is what it was.
    self.assertEqual(first['count'], [0] * 5)

  def test_only_what_the_computation_declares_changes(self):
    (look, _), (counts, _) = _look(messages=()), _look('counts', own={'count': np.int32(0)})
    counts = counts._replace(declared=counts.declared._replace(messages=()))
    clients, _ = _clients(look, counts)
    before = clients.own
    clients.run(counts, _STATE, _COHORT)
    self.assertEqual(clients.own['count'], [0, 1, 0, 0, 1])
    for name in ('labels', 'seen'):
      self.assertIs(clients.own[name], before[name])

  def test_states_of_others_than_were_asked_are_an_error(self):
    look, computed = _look(messages=())
    clients, _ = _clients(look)
    computed.before = lambda: computed.calls[-1][1].append(toy.client(0, [[0, 1]], [1])) or (
        computed.calls[-1][2].append(computed.calls[-1][2][0])
    )
    with self.assertRaisesRegex(ValueError, r'states of clients \[0, 1, 4\], expected \[1, 4\]'):
      clients.run(look, _STATE, _COHORT)
    self.assertEqual(clients.own['count'], [0] * 5)

  def test_clients_that_a_selector_left_out_keep_what_is_the_algorithms_alone(self):
    train, computed = _train()
    computed.kept = {1: False, 4: True}
    clients, _ = _clients(train)
    output = clients.train(train, _STATE, _COHORT)
    self.assertEqual(output.reports[stacked.KEPT].tolist(), [False, True])
    self.assertEqual(clients.own['count'], [0, 1, 0, 0, 1])
    np.testing.assert_array_equal(clients.own['drift'], [[0, 0]] * 4 + [[4, 4]])
    # They took part all the same.
    self.assertEqual(clients.participations.tolist(), [0, 1, 0, 0, 1])

  def test_forgotten_is_what_was_there_at_first(self):
    (look, _), (train, _) = _look(messages=()), _train()
    clients, ledger = _clients(look, train)
    clients.train(train, _STATE, _COHORT)
    clients.forget(np.array([0, 4]), 'labels', 'seen', 'drift')
    own, (_, first, *_, last) = clients.own, _federation().clients
    np.testing.assert_array_equal(own['labels'][4], last.y)
    np.testing.assert_array_equal(own['seen'][4], np.zeros(5, np.float32))
    np.testing.assert_array_equal(own['drift'], [[0, 0], [1, 1], [0, 0], [0, 0], [0, 0]])
    # Neither the other client nor what was not named.
    np.testing.assert_array_equal(own['labels'][1], 1 - first.y)
    self.assertEqual(own['count'], [0, 1, 0, 0, 1])
    # Nothing is sent for it.
    self.assertLen(ledger.entries, 1)


class TrafficTest(absltest.TestCase):

  def test_counts_what_everything_costs_both_ways(self):
    (look, _), (train, _) = _look(), _train()
    labels, computed = _look('labels')
    labels = labels._replace(
        declared=program.declared(()), on_labels=True, sends_model=False, broadcast_bytes=0,
        process=processes.Collection(lambda data: computed.calls.append(data) or [8, 7]),
    )
    clients, _ = _clients(look, train, labels)
    sums = clients.run(labels, _STATE, clients.everybody).sums
    self.assertEqual(sums, {label_histogram.NAME: [8, 7]})
    self.assertEqual((clients.traffic.bytes_up, clients.traffic.bytes_down), (5 * 7, 0))
    clients.run(look, _STATE, _COHORT, **_SENT)
    self.assertEqual(
        (clients.traffic.bytes_up, clients.traffic.bytes_down), (7 * 7, 2 * (11 + 12))
    )
    clients.train(train, _STATE, np.array([0, 1, 2]))
    self.assertEqual(
        (clients.traffic.bytes_up, clients.traffic.bytes_down), (7 * 7 + 3 * 20, 46 + 3 * 30)
    )
    clients.begin_round(4, 'train')
    self.assertEqual((clients.traffic.bytes_up, clients.traffic.bytes_down), (0, 0))
    # Of labels clients give what they put into the communication, and nothing else.
    self.assertEqual(
        [set(given) for given in computed.calls[0]], [{'y', 'example_id', 'secret'}] * 5
    )

  def test_participations_and_the_loss_are_those_of_training(self):
    (look, _), (train, trained) = _look(messages=()), _train()
    again, trained_again = _train('again')
    clients, _ = _clients(look, train, again)
    clients.run(look, _STATE, np.array([0, 3]))
    self.assertEqual(clients.participations.tolist(), [0] * 5)
    self.assertEqual(clients.traffic.clients, 0)
    self.assertTrue(np.isnan(clients.traffic.train_loss))
    trained.loss, trained_again.loss = 2.0, 5.0
    before = clients.participations
    clients.train(train, _STATE, _COHORT)
    self.assertEqual(clients.traffic.train_loss, 2)
    clients.train(again, _STATE, np.array([2]))
    self.assertEqual(clients.participations.tolist(), [0, 1, 1, 0, 1])
    self.assertEqual(before.tolist(), [0] * 5)
    # Two clients of 2, one of 5.
    self.assertEqual((clients.traffic.clients, clients.traffic.train_loss), (3, 3))
    self.assertEqual(clients.traffic.rejected, 2)
    clients.begin_round(4, 'train')
    clients.train(train, _STATE, _COHORT)
    self.assertEqual(clients.participations.tolist(), [0, 2, 1, 0, 2])
    self.assertEqual(clients.traffic.clients, 2)

  def test_nobody_to_run_on(self):
    look, computed = _look()
    clients, ledger = _clients(look)
    sent = {'shift': np.zeros(0, np.float32), 'pair': np.zeros((0, 2), np.int32)}
    output = clients.run(look, _STATE, np.zeros(0, np.int64), **sent)
    self.assertIs(output.state, _STATE)
    self.assertEqual((len(output.cohort), output.sums, output.reports), (0, {}, {}))
    self.assertEmpty(computed.calls)
    self.assertEmpty(ledger.entries)
    self.assertEqual(clients.traffic, clients_lib.Traffic(train_loss=clients.traffic.train_loss))

  def test_goes_on_as_it_was_left(self):
    train, _ = _train()
    clients, _ = _clients(train)
    clients.train(train, _STATE, _COHORT)
    left, participations = clients.own, clients.participations
    others, _ = _clients(train)
    others.resume(left, participations, clients.aggregators)
    for resumed in (clients, others):
      resumed.train(train, _STATE, np.array([2, 4]))
      self.assertEqual(resumed.own['count'], [0, 1, 1, 0, 2])
      self.assertEqual(resumed.participations.tolist(), [0, 1, 1, 0, 2])
    self.assertEqual((left['count'], participations.tolist()), ([0, 1, 0, 0, 1], [0, 1, 0, 0, 1]))


class SampleTest(parameterized.TestCase):

  def _task(self, joins=(1, 1, 1, 4, 1), leaves=(9, 9, 3, 9, 9)):
    return _TASK._replace(
        availability=availability.Availability(np.array(joins), np.array(leaves))
    )

  def test_without_arrivals_all_are_there(self):
    clients, _ = _clients(_train()[0])
    self.assertEqual(clients.everybody.tolist(), [0, 1, 2, 3, 4])
    self.assertEqual(clients.present.tolist(), [0, 1, 2, 3, 4])

  def test_who_is_there_is_of_the_round(self):
    clients, _ = _clients(_train()[0], task=self._task())
    present = []
    for round_num in (1, 3, 4):
      clients.begin_round(round_num, 'train')
      self.assertEqual(clients.everybody.tolist(), [0, 1, 2, 3, 4])
      present.append(clients.present.tolist())
    self.assertEqual(present, [[0, 1, 2, 4], [0, 1, 4], [0, 1, 3, 4]])

  @parameterized.parameters(
      # among, size, of whom how many are drawn
      (None, None, [0, 1, 4], 2),
      (None, 1, [0, 1, 4], 1),
      (None, 9, [0, 1, 4], 3),
      ([1, 2, 3, 4], None, [1, 4], 2),
      ([4, 1, 0], 2, [0, 1, 4], 2),
      ([2, 4], 2, [4], 1),
  )
  def test_draws_among_those_that_may_and_are_there(self, among, size, may, count):
    train, _ = _train()
    there = self._task(joins=(1, 1, 1, 100, 1), leaves=(100, 100, 3, 101, 100))
    clients, ledger = _clients(train, task=there)
    drawn = []
    for round_num in range(3, 100):
      clients.begin_round(round_num, 'train')
      drawn.append(
          clients.sample(train, _STATE, None if among is None else np.array(among), size).tolist()
      )
      self.assertEqual(
          drawn[-1], policies.uniform(_SEED, round_num, np.array(may), count).tolist()
      )
    # Everybody who may does in some round.
    self.assertEqual(sorted({client for cohort in drawn for client in cohort}), may)
    self.assertEmpty(ledger.entries)

  @parameterized.parameters(([2, 3],), ([],))
  def test_nobody_that_may_is_there(self, among):
    train, _ = _train()
    clients, _ = _clients(train, task=self._task())
    with self.assertRaises(types.UsageError) as caught:
      clients.sample(train, _STATE, np.array(among, np.int64))
    self.assertEqual(
        str(caught.exception),
        'no client can take part in round 3: no eligible client is there (--arrivals)',
    )

  def test_clients_have_turns(self):
    train, _ = _train()
    clients, _ = _clients(train, task=_TASK._replace(sampling='cyclic'))
    taken = []
    for round_num in range(1, 6):
      clients.begin_round(round_num, 'train')
      cohort = clients.sample(train, _STATE).tolist()
      self.assertEqual(cohort, policies.cyclic(_SEED, round_num, np.arange(5), 2).tolist())
      taken += cohort
    # 5 rounds of 2 are the order of the 5 clients, twice.
    self.assertEqual(sorted(taken), [0, 0, 1, 1, 2, 2, 3, 3, 4, 4])

  def test_who_has_turns_is_there_and_is_not_chosen(self):
    turns = {'sampling': 'cyclic'}
    train, _ = _train()
    choosing, _ = _train(sampler=optimizer.Sampler(lambda clients, state, among, size: among))
    for asked, task, given in (
        (train, _TASK, (np.array([1, 2]),)), (train, _TASK, (None, 1)), (choosing, _TASK, ()),
        (train, self._task(), ()),
    ):
      clients, _ = _clients(asked, task=task._replace(**turns))
      with self.assertRaisesRegex(types.UsageError, '^--client_sampling=cyclic .* which chooses'):
        clients.sample(asked, _STATE, *given)

  def test_optimizer_may_choose_and_remember(self):
    asked = []

    def choose(clients, state, among, size):
      asked.append((clients, state, among.tolist(), size))
      return among[-1:]

    def observe(records, cohort, reports):
      seen = records['seen'].copy()
      seen[cohort] = reports['tenfold']
      return {**records, 'seen': seen}

    train, _ = _train(sampler=optimizer.Sampler(choose, observe=observe))
    clients, _ = _clients(train, task=self._task())
    cohort = clients.sample(train, _STATE, np.array([1, 2, 4]))
    self.assertEqual(cohort.tolist(), [4])
    ((view, state, among, size),) = asked
    self.assertIs(state, _STATE)
    self.assertEqual((among, size), ([1, 4], 2))
    # It gets no more to see than the algorithm.
    self.assertFalse(hasattr(view, 'own'))
    state = clients.train(train, _STATE, cohort).state
    self.assertEqual(state.records['seen'].tolist(), [0, 0, 0, 0, 40])
    self.assertEqual(_STATE.records['seen'].tolist(), [0] * 5)


def _reachable(root):
  """Everything that can be had from an object without a name that begins with an underscore."""
  found, todo = {}, [root]
  while todo:
    value = todo.pop()
    if id(value) in found:
      continue
    found[id(value)] = value  # It stays alive: no other object gets its id.
    # Arrays are looked at as a whole.
    if isinstance(value, (str, bytes, int, float, np.ndarray, np.generic, tf.Tensor, type(None))):
      continue
    if isinstance(value, collections.abc.Mapping):
      todo += [*value.keys(), *value.values()]
    elif isinstance(value, (list, tuple, set, frozenset)):
      todo += value
    todo += [getattr(value, name) for name in dir(value) if not name.startswith('_')]
  return list(found.values())


def _secret(clients, federation):
  """All that is the clients' own: images, labels, and what they keep."""
  data = [array for examples in federation.clients for array in examples]
  return data + [np.asarray(v) for states in clients.own.values() for v in tf.nest.flatten(states)]


class ViewTest(parameterized.TestCase):
  """What an algorithm gets hands out no data."""

  def _shown(self, reached, secrets):
    """Those of what was reached that hold a secret."""
    arrays = [v for v in reached if isinstance(v, (np.ndarray, tf.Tensor))]
    return [
        a for a in map(np.asarray, arrays)
        if any(
            np.shares_memory(a, s) or (s.ndim and a.shape == s.shape and np.array_equal(a, s))
            for s in secrets
        )
    ]

  def test_the_walk_finds_what_lies_open(self):
    clients, federation = _clients(_train()[0])[0], _federation()
    secrets = _secret(clients, federation)
    for hidden in (federation, clients, [{'a': clients.own}]):
      open_to_all = python_types.SimpleNamespace(a=[{'b': hidden}])
      self.assertNotEmpty(self._shown(_reachable(open_to_all), secrets))

  def test_neither_data_nor_own_states_can_be_reached(self):
    (look, _), (train, _) = _look(messages=()), _train()
    algorithm = _algorithm(look, train)
    clients, federation = _clients(look, train)[0], _federation()
    rounds = []

    def round_(state, view):
      cohort = view.sample(train, state)
      trained = view.train(train, state, cohort)
      looked = view.run(look, trained.state, cohort)
      view.forget(cohort[:1], 'labels')
      rounds.append((view, cohort, trained, looked, view.everybody, view.present))
      return looked.state

    state = training.run_round(algorithm._replace(round=round_), _STATE, clients)
    self.assertEqual(state.round_num, 3)
    self.assertEqual(clients.own['count'].count(2), 2)
    reached = _reachable(rounds)
    self.assertEmpty(self._shown(reached, _secret(clients, federation)))
    for value in reached:
      self.assertNotIsInstance(
          value,
          (clients_lib.SimulatedClients, types.Federation, types.ClientExamples, tf.data.Dataset),
      )

  def test_has_the_methods_of_the_protocol_and_nothing_else(self):
    clients, _ = _clients(_train()[0])
    methods = {name for name in vars(algorithm_lib.Clients) if not name.startswith('_')}
    self.assertEqual({n for n in dir(clients.view) if not n.startswith('_')}, methods)
    self.assertContainsSubset({'everybody', 'present', 'sample', 'train', 'run', 'forget'}, methods)

  @parameterized.parameters(
      'federation', 'datasets', 'own', 'participations', 'ledger', 'traffic', 'resume',
      'begin_round', 'view',
  )
  def test_algorithm_that_wants_more_fails(self, name):
    train, _ = _train()
    algorithm = _algorithm(train, round_=lambda state, clients: getattr(clients, name))
    clients, _ = _clients(train)
    with self.assertRaisesRegex(AttributeError, name):
      training.run_round(algorithm, _STATE, clients)


def _is_at_server(type_signature):
  return isinstance(type_signature, tff.FederatedType) and type_signature.placement is tff.SERVER


class RuntimeTest(federated_test_case.FederatedTestCase):
  """The same with computations of TFF."""

  def _task(self):
    return _TASK._replace(
        model=toy.linear_model(), training=types.LocalTraining(epochs=1, batch_size=2),
        label_privacy=task_lib.LabelPrivacy('1.0'),
    )

  def test_client_whose_computation_fails_is_named(self):
    def final(result):
      fails = tf.debugging.Assert(result.client.id < 4, ['no more than three'])
      with tf.control_dependencies([fails]):
        return program.Sent(sums={'one': tf.constant(1)})

    asks = program.ClientProgram(
        final=final, sums=(uplink.UplinkSum('one', np.int32, 0, 1, 'a test'),)
    )
    task = self._task()
    look = computation.collect('look', task, asks)
    train = computation.train(
        'train', task, plain.client(task.training, final=final, sums=asks.sums)
    )
    algorithm = _algorithm(look, train)
    clients = runs.clients_of(algorithm, task, _federation())
    clients.begin_round(3, 'train')
    state = algorithm.init()
    self.assertEqual(clients.run(look, state, np.array([1, 3])).sums['one'], 2)
    for ask, asked in ((clients.run, look), (clients.train, train)):
      # Not even the kind of the error is for the algorithm.
      with self.assertRaisesRegex(
          types.RunError, '^round 3: the computation of client 4 failed$'
      ) as caught:
        ask(asked, state, np.array([1, 4]))
      self.assertIsNone(caught.exception.__cause__ or caught.exception.__context__)
      with self.assertRaisesRegex(
          types.RunError, '^round 3: the computation of client 4 failed: INTERNAL .--debug'
      ) as caught:
        clients.end_round()
      self.assertNotIn('\n', str(caught.exception))

  @parameterized.parameters(3, 100)
  def test_ledger_has_every_computation_that_released_something(self, first_that_fails):
    # What is run again to find out who failed has to release nothing, or be entered.
    def loss(s):
      fails = tf.debugging.Assert(s.client.id < first_that_fails, ['no more than two'])
      with tf.control_dependencies([fails]):
        return tf.reduce_mean(s.logits)

    secure = aggregation.secure_weighted_mean(update_bound=1.0, max_examples=max(_SIZES))
    task = self._task()._replace(aggregation=secure)
    train = computation.train('train', task, program.ClientProgram(loss=loss))
    algorithm = _algorithm(train)
    ledger = runs.open_ledger(algorithm)
    clients = runs.clients_of(algorithm, task, _federation(), ledger)
    state = algorithm.init()
    ran, invoke = [], connection.OnceContext.invoke

    def watch(context, called, argument):
      ran.append(called.type_signature)
      return invoke(context, called, argument)

    with mock.patch.object(connection.OnceContext, 'invoke', watch):
      try:
        clients.train(train, state, np.arange(5))
      except types.RunError:
        self.assertEqual(first_that_fails, 3)
    released = [t for t in ran if tff.types.contains(t.result, _is_at_server)]
    self.assertLen(released, len(ledger.entries))
    # Clients 0 to 3 alone, of which the last one fails.
    self.assertLen(ran, 1 + 4 * (first_that_fails == 3))
    for other in ran[1:]:
      self.assertRegex(str(other.result), '^<({bool}@CLIENTS,?)+>$')

  def test_secure_sum_over_one_client_is_refused_before_it_is_made(self):
    secure = aggregation.secure_weighted_mean(update_bound=1.0, max_examples=max(_SIZES))
    task = self._task()._replace(aggregation=secure)
    train = computation.train('train', task, plain.client(task.training))
    algorithm = _algorithm(train)
    ledger = runs.open_ledger(algorithm)
    clients = runs.clients_of(algorithm, task, _federation(), ledger)
    with self.assertRaisesRegex(types.UsageError, 'a secure sum over one client is that client'):
      clients.train(train, algorithm.init(), np.array([2]))
    self.assertEmpty(ledger.entries)
    self.assertEqual(algorithm.smallest_cohorts(task), {'train': 2})
    alone = availability.Availability(np.array([1, 1, 1, 1, 1]), np.array([100, 1, 1, 1, 1]))
    self.assertEqual(
        algorithm.smallest_cohorts(task._replace(availability=alone)), {'train': 1}
    )

  def test_errors_that_are_shown_end_all_claims(self):
    labels = label_histogram.of_task(self._task())
    costs = []
    for algorithm in (_algorithm(labels), _algorithm(labels).showing_errors()):
      ledger = runs.open_ledger(algorithm)
      clients = runs.clients_of(algorithm, self._task(), _federation(), ledger)
      clients.run(algorithm.computations[0], _STATE, clients.everybody)
      declared = uplink.to_json(algorithm.fields)
      costs.append(costs_lib.totals(ledger.entries, declared)[protection.Unit.LABEL])
    self.assertAlmostEqual(costs[0].epsilon, 1.0)
    self.assertEqual((costs[1].epsilon, costs[1].status), (np.inf, protection.Status.NONE))

  def test_algorithm_cannot_go_on_after_a_client_failed(self):
    def final(result):
      fails = tf.debugging.Assert(result.client.id < 4, ['no more than three'])
      with tf.control_dependencies([fails]):
        return program.Sent(sums={'one': tf.constant(1)})

    look = computation.collect('look', self._task(), program.ClientProgram(
        final=final, sums=(uplink.UplinkSum('one', np.int32, 0, 1, 'a test'),)
    ))

    def round_(state, clients):
      try:
        clients.run(look, state, np.array([4]))
      except types.RunError:
        return state

    train = computation.train('train', self._task(), plain.client(types.LocalTraining()))
    algorithm = _algorithm(look, train, round_=round_)
    clients = runs.clients_of(algorithm, self._task(), _federation())
    with self.assertRaisesRegex(types.RunError, 'client 4 failed: INTERNAL'):
      training.run_round(algorithm, algorithm.init(), clients)
    # Nothing came of it.
    self.assertEqual(clients.participations.tolist(), [0] * 5)

  def test_label_communication(self):
    labels = label_histogram.of_task(self._task())
    clients = runs.clients_of(_algorithm(labels), self._task(), _federation())
    output = clients.run(labels, _STATE, clients.everybody)
    flipped = [
        mechanism.flip(
            examples.y, examples.example_id, mechanism.simulation_secret(_SEED, i),
            mechanism.randomized_response('1.0', 2),
        )
        for i, examples in enumerate(_federation().clients)
    ]
    np.testing.assert_array_equal(
        output.sums[label_histogram.NAME], np.bincount(np.concatenate(flipped), minlength=2)
    )
    self.assertIs(output.state, _STATE)
    self.assertEmpty(output.reports)
    # Two int64 of each client; nothing goes down.
    self.assertEqual((clients.traffic.bytes_up, clients.traffic.bytes_down), (5 * 16, 0))
    with self.assertRaisesRegex(ValueError, "^'label communication' is with everybody: "):
      clients.run(labels, _STATE, clients.everybody[1:])

  def test_bytes_of_real_computations(self):
    task = self._task()
    sums = (uplink.UplinkSum('of classes', np.float32, 0, 9, 'a test', shape=(2,)),)
    look = computation.collect(
        'look', task,
        program.ClientProgram(
            final=lambda r: program.Sent(sums={'of classes': r.client.messages['pair']}),
            messages=(uplink.Message('pair', np.float32, 'a test', shape=(2,)),), sums=sums,
        ),
    )
    train = computation.train('train', task, plain.client(task.training))
    algorithm = _algorithm(look, train)
    clients, state = runs.clients_of(algorithm, task, _federation()), algorithm.init()
    pairs = np.float32([[1, 2], [4, 1]])
    output = clients.run(look, state, _COHORT, pair=pairs)
    np.testing.assert_array_equal(output.sums['of classes'], [5, 3])
    # Four weights and the number of the round, and the message of two numbers.
    self.assertEqual((clients.traffic.bytes_up, clients.traffic.bytes_down), (2 * 8, 2 * (20 + 8)))
    clients.train(train, state, _COHORT)
    # Four weights and their weight in the mean; loss, examples, rejected. Down as before.
    up = sum(field.num_bytes for field in train.fields)
    self.assertGreaterEqual(up, 16 + 3 * 4)
    self.assertEqual(
        (clients.traffic.bytes_up, clients.traffic.bytes_down), (16 + 2 * up, 56 + 2 * 20)
    )


if __name__ == '__main__':
  absltest.main()
