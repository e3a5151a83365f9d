"""DP-FedAvg under methods and optimizers: what runs, what is refused, what the ledger says."""

import os
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tests.optimizers import rounds
from tests.program import runs
from tff_noise import types
from tff_noise.algorithms import catalog
from tff_noise.data import client_data
from tff_noise.federated import aggregation
from tff_noise.federated import gaussian_sum
from tff_noise.federated import processes
from tff_noise.federated import task as task_lib
from tff_noise.federated import tree_sum
from tff_noise.optimizers import catalog as optimizers
from tff_noise.privacy import accountant
from tff_noise.privacy import costs as costs_lib
from tff_noise.privacy import cyclic
from tff_noise.privacy import protection
from tff_noise.program import training
from tff_noise.selection import policies
from tff_noise.uplink import disclosure
from tff_noise.uplink import uplink

_SIZES = (5, 8, 4, 6)
_NOISY = protection.NoisySum(2.0, 0.5, cohort=2, population=4)
_POISSON = _NOISY._replace(cohort=1, sampling=protection.POISSON)
_DISCRETE = _NOISY._replace(mechanism=protection.DISCRETE_GAUSSIAN, population=2)
_TREE = _NOISY._replace(mechanism=protection.TREE, sampling=protection.CYCLIC)
_SINGLE_MODELS = (
    '^--client_dp_noise protects a sum of updates, and here the server takes single models$'
)
_ALSO_SENT = '^--client_dp_noise protects updates alone, and here clients also send: '
_STATISTICS = '^--client_dp_noise would put noise on batch statistics: use --norm=group$'


def _federation():
  draw, clients = np.random.default_rng(0), []
  for n in _SIZES:
    y = draw.integers(0, 2, n).astype(np.int32)
    x = (np.eye(2)[y] + draw.normal(0, 0.3, (n, 2))).astype(np.float32)
    clients.append(types.ClientExamples(x, y, np.arange(n)))
  return types.Federation(tuple(clients), 2, 3)


def _task(base='', norm='group', shield=_NOISY, secure=False):
  task = task_lib.Task(
      toy.linear_model(norm), rounds.full_batch(2), 3,
      aggregation.dp_mean(shield, noise_key=bytes(32), secure=secure),
      client_sizes=np.array(_SIZES, np.int64),
      clients_per_round=2,
      rounds=3,
      label_privacy=task_lib.LabelPrivacy('1.0', 'shrinkage'),
      validation=types.Examples(np.eye(2, dtype=np.float32), np.array([0, 1], np.int32)),
  )
  if not base:
    return task
  entry = optimizers.OPTIMIZERS[base]
  return task._replace(optimizer=entry.build(task, entry.params()))


def _turns(mechanism, secure=False):
  """4 rounds in which clients have turns."""
  task = _task(shield=_TREE._replace(mechanism=mechanism), secure=secure)
  return task._replace(rounds=4, sampling=protection.CYCLIC)


def _build(name, task, **params):
  entry = catalog.ALGORITHMS[name]
  return entry.build(task, entry.params(**params))


def _run(algorithm, **task):
  """The last state, the clients, the ledger."""
  return runs.all_rounds(algorithm, _task(**task), _federation())


class RefusalTest(parameterized.TestCase):

  @parameterized.parameters(
      ('clipfl', {'keep': 1, 'lid_neighbours': 2}, _SINGLE_MODELS),
      ('median', {}, _SINGLE_MODELS),
      ('fednova', {}, _ALSO_SENT + '.*normalizer'),
      ('scaffold', {}, _ALSO_SENT + '.*examples$'),
      ('feddyn', {}, _ALSO_SENT + 'examples$'),
      ('fedcorr', {'iterations': 1, 'lid_neighbours': 2}, _ALSO_SENT + 'lid$'),
      ('poc', {'candidates': 3, 'loss': 'stale'}, _ALSO_SENT + 'loss$'),
      ('fednoro', {}, '^--client_dp_noise .* send: class_losses$'),
      ('fedelc', {}, '^--client_dp_noise .* send: class_losses$'),
  )
  def test_method_that_sends_more_than_updates(self, name, params, message):
    with self.assertRaisesRegex(types.UsageError, message):
      _build(name, _task(), **params)

  @parameterized.parameters(
      ('median', _SINGLE_MODELS),
      ('fednova', _ALSO_SENT + '.*normalizer'),
      ('scaffold', _ALSO_SENT + '.*examples$'),
      ('feddyn', _ALSO_SENT + 'examples$'),
  )
  def test_base_that_sends_more_than_updates(self, base, message):
    with self.assertRaisesRegex(types.UsageError, message):
      _build('feddpcont', _task(base))

  def test_layers_of_clients_that_are_evaluated(self):
    # They would be in metrics.csv, and no noise is on them.
    with self.assertRaisesRegex(types.UsageError, 'what clients keep is evaluated too.*fedbn$'):
      _build('fedbn', _task(norm='group'))

  @parameterized.parameters('fedavg', 'feddpcont')
  def test_batch_statistics(self, name):
    with self.assertRaisesRegex(types.UsageError, _STATISTICS):
      _build(name, _task(norm='batch'))


class RunTest(federated_test_case.FederatedTestCase):

  @parameterized.parameters('fedavg', 'fedprox', 'fedadam', 'fedyogi', 'fedadagrad')
  def test_updates_alone_leave_clients(self, name):
    algorithm = _build(name, _task())
    [train] = algorithm.computations
    self.assertEqual([f.name for f in algorithm.fields], ['update'])
    self.assertLen(disclosure.client_to_server_edges(train.next), 1)
    state, clients, _ = _run(algorithm)
    # Neither the loss nor how many updates were left out is known.
    self.assertEqual(clients.traffic.clients, 2)
    self.assertTrue(np.isnan(clients.traffic.rejected))
    self.assertTrue(np.isnan(clients.traffic.train_loss))
    for weights in tf.nest.flatten(state.weights):
      self.assertTrue(np.isfinite(weights).all())

  def test_round_without_noise_is_the_mean_of_clipped_updates_by_hand(self):
    shield = protection.NoisySum(0.0, 0.1, cohort=4, population=4)
    toys = rounds.Federation(
        'fedavg', rounds.DISAGREEING, rounds.full_batch(3),
        aggregation=aggregation.dp_mean(shield, noise_key=bytes(32), secure=False),
    )
    toys.round()
    moved = [rounds.train(np.zeros((2, 2)), client, 3) for client in rounds.DISAGREEING]
    norms = [np.linalg.norm(m) for m in moved]
    self.assertGreater(min(norms), 0.1)
    # Of a cohort of four two came; their numbers of examples, 6 and 9, do not count.
    expected = sum(0.1 * m / n for m, n in zip(moved, norms, strict=True)) / 4
    np.testing.assert_allclose(toys.w, expected, atol=1e-6)

  def test_update_that_is_not_finite_is_left_out(self):
    shield = protection.NoisySum(0.0, 0.1, cohort=2, population=2)
    good, (x, y) = rounds.DISAGREEING
    broken = (np.full_like(np.array(x, np.float32), np.inf), y)
    toys = rounds.Federation(
        'fedavg', (good, broken), rounds.full_batch(3),
        aggregation=aggregation.dp_mean(shield, noise_key=bytes(32), secure=False),
    )
    toys.round()
    moved = rounds.train(np.zeros((2, 2)), good, 3)
    np.testing.assert_allclose(toys.w, 0.1 * moved / np.linalg.norm(moved) / 2, atol=1e-6)

  def test_ledger_has_the_epsilon_of_all_rounds_for_every_unit(self):
    algorithm = _build('fedavg', _task())
    _, _, opened = _run(algorithm)
    declared = uplink.to_json(algorithm.fields)
    expected = accountant.gaussian_epsilon(2.0, population=4, cohort=2, rounds=3, delta=1e-5)
    for unit, cost in costs_lib.totals(opened.entries, declared).items():
      self.assertEqual(
          cost, protection.Cost(expected, 1e-5, protection.Status.CONDITIONAL), unit
      )
    [release] = costs_lib.releases(opened.entries, declared)
    self.assertEqual((release.times, release.unit), (3, protection.Unit.CLIENT))

  @parameterized.product(secure=(False, True), mechanism=(protection.GAUSSIAN, protection.TREE))
  def test_turns_cost_by_how_often_a_client_has_one(self, secure, mechanism):
    # 4 clients, 2 a round: each in every second; 4 rounds, of which the ledger may have fewer.
    task = _turns(mechanism, secure)
    algorithm = _build('fedavg', task)
    _, clients, opened = runs.all_rounds(algorithm, task, _federation())
    self.assertEqual(clients.participations.tolist(), [2] * 4)
    self.assertEqual(
        clients.participations.tolist(), np.repeat(cyclic.participations(4, 2, 4), 2).tolist()
    )
    declared = uplink.to_json(algorithm.fields)
    costs = {protection.GAUSSIAN: (1, 1, 2, 2), protection.TREE: (1, 2, 3, 7)}[mechanism]
    for released, expected in enumerate(costs, 1):
      epsilon = accountant.gaussian_epsilon(
          2.0, population=2, cohort=2, rounds=expected, delta=1e-5
      )
      for cost in costs_lib.totals(opened.entries[:released], declared).values():
        self.assertEqual(cost, protection.Cost(epsilon, 1e-5, protection.Status.CONDITIONAL))
    # Their turns are counted: what is not there cannot be left out.
    cost = costs_lib.totals(opened.entries[1:], declared)[protection.Unit.CLIENT]
    self.assertIs(cost.status, protection.Status.NONE)

  def test_the_model_has_the_noise_of_the_nodes_of_the_last_round(self):
    # Without steps of clients it is what moves the model: of rounds 1 to 4 one node, of 1 to 3 two.
    task = _turns(protection.TREE)
    task = task._replace(training=task.training._replace(learning_rate=1e-30))
    with mock.patch.object(tree_sum, 'TreeSum', wraps=tree_sum.TreeSum) as made:
      algorithm = _build('fedavg', task)
    (clip, deviation, key), _ = made.call_args
    self.assertEqual((clip, deviation), (0.5, 1.0))
    models = [
        np.concatenate([np.ravel(w) for w in s.state.weights.trainable])
        for s in runs.states(algorithm, task, _federation())
    ]
    noise = gaussian_sum.GaussianSum(clip, deviation, key).noise
    like = [tf.convert_to_tensor(w) for w in algorithm.init().weights.trainable]
    node = [np.concatenate([np.ravel(n) for n in noise(like, i)]) for i in range(4)]
    for model, ends in zip(models[1:], ([0], [1], [1, 2], [3]), strict=True):
      # An update is what is taken off.
      np.testing.assert_allclose(models[0] - model, sum(node[i] for i in ends) / 2, atol=1e-5)

  def test_secure_sum_costs_the_same(self):
    algorithm = _build('fedavg', _task(secure=True))
    self.assertEqual({f.disclosure for f in algorithm.fields}, {uplink.Disclosure.SECURE_SUM})
    _, _, opened = _run(algorithm)
    costs = costs_lib.totals(opened.entries, uplink.to_json(algorithm.fields))
    expected = accountant.gaussian_epsilon(2.0, population=4, cohort=2, rounds=3, delta=1e-5)
    self.assertEqual(costs[protection.Unit.CLIENT].epsilon, expected)

  def test_shares_of_clients_in_a_secure_sum_need_no_trusted_server(self):
    algorithm = _build('fedavg', _task(shield=_DISCRETE, secure=True))
    [field] = algorithm.fields
    self.assertEqual(
        (field.disclosure, field.type_spec, field.intrinsic),
        (uplink.Disclosure.DP_SECURE_SUM, 'int32[8]', disclosure.SECURE_MODULAR_SUM),
    )
    state, _, opened = _run(algorithm, shield=_DISCRETE, secure=True)
    again, _, _ = _run(algorithm, shield=_DISCRETE, secure=True)
    for a, b in zip(tf.nest.flatten(state.weights), tf.nest.flatten(again.weights), strict=True):
      self.assertTrue(np.isfinite(a).all())
      np.testing.assert_array_equal(a, b)
    declared = uplink.to_json(algorithm.fields)
    cost = costs_lib.totals(opened.entries, declared)[protection.Unit.CLIENT]
    expected = accountant.gaussian_epsilon(2.0, population=2, cohort=2, rounds=3, delta=1e-5)
    self.assertBetween(cost.epsilon / expected, 1, 1 + 1e-8)
    # A round that a share was missing from.
    fewer = [opened.entries[0]._replace(clients=1), *opened.entries[1:]]
    cost = costs_lib.totals(fewer, declared)[protection.Unit.CLIENT]
    self.assertIs(cost.status, protection.Status.NONE)
    [release] = costs_lib.releases(fewer, declared)
    self.assertIs(release.cost.status, protection.Status.NONE)

  @parameterized.product(
      secure=(False, True), mechanism=(protection.GAUSSIAN, protection.DISCRETE_GAUSSIAN)
  )
  def test_a_huge_step_size_moves_the_model_by_no_more_than_the_norm(self, secure, mechanism):
    # Updates of 1e25: the model became NaN, and moved by S sqrt(d) in a secure sum.
    shield = protection.NoisySum(0.0, 0.1, cohort=1, population=1, mechanism=mechanism)
    huge = rounds.full_batch(1)._replace(learning_rate=1e25)
    toys = rounds.Federation(
        'fedavg', rounds.DISAGREEING[:1], huge,
        aggregation=aggregation.dp_mean(shield, noise_key=bytes(32), secure=secure),
    )
    toys.round()
    self.assertBetween(np.linalg.norm(toys.w), 0.09, 0.1 * (1 + 0.01))

  def test_label_reports_cost_labels_more_and_clients_everything(self):
    algorithm = _build('feddpcont', _task())
    self.assertEqual([f.name for f in algorithm.fields], ['label histogram', 'update'])
    _, _, opened = _run(algorithm)
    costs = costs_lib.totals(opened.entries, uplink.to_json(algorithm.fields))
    updates = accountant.gaussian_epsilon(2.0, population=4, cohort=2, rounds=3, delta=1e-5)
    self.assertAlmostEqual(costs[protection.Unit.LABEL].epsilon, updates + 1.0, places=9)
    # A histogram of flipped labels protects each label, and not who has how many.
    self.assertIs(costs[protection.Unit.CLIENT].status, protection.Status.NONE)

  def _poisson_task(self):
    task = _task(shield=_POISSON)
    return task._replace(sampling=protection.POISSON, rounds=6, clients_per_round=1)

  @parameterized.parameters('fedavg', 'elr', 'coteaching', 'fedtally')
  def test_poisson_samples_may_be_empty_and_release_noise_all_the_same(self, name):
    # Clients of elr keep something, which TFF cannot return of nobody.
    task = self._poisson_task()
    algorithm = _build(name, task)
    sizes = [len(policies.poisson(3, r, 4, 1)) for r in range(1, 7)]
    self.assertIn(0, sizes)
    self.assertGreater(max(sizes), 1)
    opened = runs.open_ledger(algorithm)
    clients, state = runs.clients_of(algorithm, task, _federation(), opened), algorithm.init()
    for size in sizes:
      before = tf.nest.flatten(state.weights)
      state = training.run_round(algorithm, state, clients)
      self.assertEqual(clients.traffic.clients, size)
      self.assertEqual(clients.traffic.bytes_up == 0, size == 0)
      self.assertTrue(np.isnan(clients.traffic.train_loss))
      for old, new in zip(before, tf.nest.flatten(state.weights), strict=True):
        self.assertTrue((np.asarray(old) != np.asarray(new)).any())
    self.assertEqual([entry.clients for entry in opened.entries], sizes)
    self.assertEqual([entry.round_num for entry in opened.entries], list(range(1, 7)))
    self.assertEqual(clients.participations.sum(), sum(sizes))
    # Secret even where it is empty.
    self.assertLen({entry.cohort for entry in opened.entries}, 6)
    costs = costs_lib.totals(opened.entries, uplink.to_json(algorithm.fields))
    self.assertEqual(
        costs[protection.Unit.CLIENT].epsilon,
        accountant.poisson_gaussian_epsilon(2.0, 0.25, 6, 1e-5),
    )
    self.assertEqual(
        costs[protection.Unit.EXAMPLE].epsilon,
        accountant.poisson_replaced_epsilon(2.0, 0.25, 6, 1e-5),
    )

  @parameterized.parameters('fedavg', 'elr')
  def test_what_a_round_of_nobody_releases_is_the_noise_of_any_round(self, name):
    # With a step size of almost nothing, what clients send is zero, and noise is all there is.
    task = self._poisson_task()
    still = task._replace(training=task.training._replace(learning_rate=1e-30))
    [train] = _build(name, still).computations
    data = list(client_data.federation_datasets(_federation()))
    state = train.process.initialize()
    if name == 'fedavg':
      nobody, everybody = train.next(state, []), train.next(state, data)
    else:
      given = [train.initial_input(client.y) for client in _federation().clients]
      nobody = processes.without_clients(train.next)(state, [], [])
      everybody = train.next(state, data, given)
    moved = [
        [new - old for new, old in zip(
            tf.nest.flatten(output.state.global_model_weights.trainable),
            tf.nest.flatten(state.global_model_weights.trainable), strict=True,
        )]
        for output in (nobody, everybody)
    ]
    for alone, beside in zip(*moved, strict=True):
      np.testing.assert_allclose(alone, beside, atol=1e-6)
    # Of deviation Z S = 1, over an expected cohort of one.
    noise = np.concatenate([np.ravel(part) for part in moved[0]])
    self.assertLen(noise, 8)
    self.assertBetween(np.sqrt(np.mean(noise**2)), 0.4, 1.8)

  def test_poisson_divisor_is_the_expected_size(self):
    shield = _POISSON._replace(noise_multiplier=0.0, clip=0.1, cohort=1, population=2)
    toys = rounds.Federation(
        'fedavg', rounds.DISAGREEING, rounds.full_batch(3),
        aggregation=aggregation.dp_mean(shield, noise_key=bytes(32), secure=False),
    )
    toys.round()
    moved = [rounds.train(np.zeros((2, 2)), client, 3) for client in rounds.DISAGREEING]
    # Two came where one was expected.
    expected = sum(0.1 * m / np.linalg.norm(m) for m in moved) / 1
    np.testing.assert_allclose(toys.w, expected, atol=1e-6)

  @parameterized.parameters('fedavg', 'elr')
  def test_poisson_samples_resumed_anywhere_end_the_same_to_the_bit(self, name):
    task = self._poisson_task()
    algorithm, copies = _build(name, task), self.create_tempdir().full_path
    folder = self.create_tempdir().full_path
    whole, metrics = runs.run(algorithm, task, _federation(), folder, copies)
    rows = metrics.splitlines()[1:]
    self.assertLen(rows, 6)
    sizes = [len(policies.poisson(3, r, 4, 1)) for r in range(1, 7)]
    column = metrics.splitlines()[0].split(',').index('clients')
    self.assertEqual([int(row.split(',')[column]) for row in rows], sizes)
    for done in range(1, 6):
      again, text = runs.run(
          algorithm, task, _federation(), os.path.join(copies, str(done))
      )
      self.assertEqual(text, metrics)
      for a, b in zip(tf.nest.flatten(whole), tf.nest.flatten(again), strict=True):
        np.testing.assert_array_equal(a, b)
      with open(os.path.join(copies, str(done), 'ledger.jsonl'), 'rb') as file:
        ledger_text = file.read()
      with open(os.path.join(folder, 'ledger.jsonl'), 'rb') as file:
        self.assertEqual(ledger_text, file.read())

  @parameterized.parameters(protection.GAUSSIAN, protection.TREE)
  def test_continued_it_draws_the_same_noise(self, mechanism):
    task = _turns(mechanism)
    algorithm = _build('fedavg', task)
    expected, _, _ = runs.all_rounds(algorithm, task, _federation())
    state = algorithm.init()
    aggregators = runs.clients_of(algorithm, task, _federation()).aggregators
    for _ in range(4):
      # Each round twice, as after a crash.
      repeated = []
      for _ in range(2):
        clients = runs.clients_of(algorithm, task, _federation())
        clients.resume(clients.own, clients.participations, aggregators)
        repeated.append(training.run_round(algorithm, state, clients))
      first, state = repeated
      aggregators = clients.aggregators
      for a, b in zip(tf.nest.flatten(first), tf.nest.flatten(state), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(tf.nest.flatten(expected), tf.nest.flatten(state), strict=True):
      np.testing.assert_array_equal(a, b)


if __name__ == '__main__':
  absltest.main()
