"""FedDPCont: label communication, contrastive training, and what they degenerate to."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tests.program import runs
from tff_noise import types
from tff_noise.algorithms import feddpcont
from tff_noise.algorithms import parameters
from tff_noise.algorithms import plain
from tff_noise.federated import task as task_lib
from tff_noise.privacy import costs as costs_lib
from tff_noise.privacy import estimator
from tff_noise.privacy import mechanism as mechanism_lib
from tff_noise.privacy import protection
from tff_noise.program import training
from tff_noise.uplink import uplink

_DATA = (([[1, 0], [0, 1], [1, 1], [2, 0]], [0, 1, 1, 0]), ([[0, 2], [1, 2]], [1, 0]))
_TRAINING = types.LocalTraining(epochs=3, batch_size=2, learning_rate=0.2)


def _clients():
  return [toy.client(i, *examples) for i, examples in enumerate(_DATA)]


def _train(built, rounds=2, prior=None):
  state = built.process.initialize()
  if prior is not None:
    state = built.send(state, label_prior=np.array(prior))
  for _ in range(rounds):
    state = built.process.next(state, _clients()).state
  return built.process.get_model_weights(state).trainable[0]


def _built(seed=1, training=_TRAINING, **params):
  return feddpcont.build_process(
      task_lib.Task(toy.linear_model(), training, seed), parameters.FedDPContParams(**params)
  )


def _fed_avg_weights():
  return _train(plain.build_process(task_lib.Task(toy.linear_model(), _TRAINING, 1)))


class TrainingTest(federated_test_case.FederatedTestCase):

  def test_weight_zero_is_fed_avg(self):
    weights = _train(_built(weight=0.0))
    np.testing.assert_allclose(weights, _fed_avg_weights(), atol=1e-6)

  def test_warm_up_is_fed_avg_and_then_no_more(self):
    warm = _built(warmup_rounds=2)
    np.testing.assert_allclose(_train(warm), _fed_avg_weights(), atol=1e-6)
    self.assertGreater(np.abs(_train(warm, 3) - _train(_built(weight=0.0), 3)).max(), 1e-3)

  def test_one_expected_step_by_hand(self):
    # At W = 0 and far from the floor the gradient with respect to the logits is pi - e_y.
    one_step = types.LocalTraining(epochs=1, batch_size=1, learning_rate=1.0)
    built = _built(0, one_step, contrast='expected')
    process = built.process
    state = built.send(process.initialize(), label_prior=np.array([0.25, 0.75]))
    state = process.next(state, [toy.client(0, [[1, 0]], [0])]).state
    weights = process.get_model_weights(state).trainable[0]
    np.testing.assert_allclose(weights, [[0.75, -0.75], [0, 0]], atol=1e-5)

  def test_certain_prior_makes_sampling_the_expectation(self):
    prior = [0.0, 1.0]
    np.testing.assert_allclose(
        _train(_built(contrast='sampled'), prior=prior),
        _train(_built(contrast='expected'), prior=prior),
        atol=1e-6,
    )

  def test_sampled_labels_follow_the_prior_and_change_every_round(self):
    # One step a round on n equal examples: the gradient of the logits is mean(e_y') - e_y, so the
    # update shows the share of each drawn label.
    n = 2000
    built = _built(0, types.LocalTraining(epochs=1, batch_size=n, learning_rate=1.0))
    process = built.process
    prior = np.array([0.3, 0.7])
    shares, state = [], process.initialize()
    for _ in range(2):
      state = built.send(state, label_prior=prior)
      state = process.set_model_weights(
          state, tff.learning.models.ModelWeights([np.zeros((2, 2), np.float32)], [])
      )
      state = process.next(state, [toy.client(0, [[1, 0]] * n, [0] * n)]).state
      shares.append(process.get_model_weights(state).trainable[0][0, 0])
    # w_00 = 1 - share of label 0; binomial standard error .0102, tolerance 4 of them.
    np.testing.assert_allclose(shares, [0.7, 0.7], atol=0.041)
    self.assertNotEqual(shares[0], shares[1])

  def test_training_on_labels_it_must_forget_stays_finite(self):
    # The literal loss at beta = 1 is linear in the logits: without the floor the weights run away
    # with every step.
    many_steps = types.LocalTraining(epochs=50, batch_size=4, learning_rate=5.0)
    built = _built(0, many_steps, contrast='expected')
    weights = _train(built, rounds=20, prior=[0.5, 0.5])
    # log(1e-8) bounds the margin of an example at about 18.4 plus one step.
    self.assertLess(np.abs(weights).max(), 60)

  @parameterized.parameters((1, 0.0), (2, 0.0), (3, 0.5), (4, 1.0), (5, 1.5), (9, 1.5))
  def test_schedule_in_the_graph_equals_the_one_on_numbers(self, round_num, expected):
    params = parameters.FedDPContParams(weight=1.5, warmup_rounds=2, ramp_rounds=3)
    self.assertAlmostEqual(feddpcont.contrastive_weight(round_num, params), expected, places=6)
    in_graph = feddpcont.contrastive_weight(tf.constant(round_num), params)
    self.assertAlmostEqual(in_graph.numpy(), expected, places=6)


class LabelCommunicationTest(federated_test_case.FederatedTestCase):

  def setUp(self):
    super().setUp()
    draw = np.random.default_rng(0)
    labels = [draw.choice(2, 300, p=[0.9, 0.1]) for _ in range(4)]
    ids = np.arange(1200).reshape(4, 300)
    self.federation = types.Federation(
        tuple(
            types.ClientExamples(np.zeros((300, 2), np.float32), y.astype(np.int32), i)
            for y, i in zip(labels, ids, strict=True)
        ),
        num_classes=2,
        seed=7,
    )
    self.true_counts = np.bincount(np.concatenate(labels), minlength=2)

  def _task(self, prior, epsilon='1.5'):
    return task_lib.Task(
        toy.linear_model(), _TRAINING, 7,
        client_sizes=self.federation.sizes, clients_per_round=2, rounds=3,
        label_privacy=task_lib.LabelPrivacy(epsilon, prior),
    )

  def _algorithm(self, prior):
    return feddpcont.build(self._task(prior), parameters.FedDPContParams())

  def _first_round(self, algorithm, federation=None):
    """What clients receive after the first round, what is recorded, and the ledger."""
    federation = federation or self.federation
    opened = runs.open_ledger(algorithm)
    clients = runs.clients_of(algorithm, self._task('shrinkage'), federation, opened)
    state = training.run_round(algorithm, algorithm.init(), clients)
    return state.received['label_prior'], state.records, opened

  def test_server_gets_the_sum_of_flipped_labels(self):
    _, records, _ = self._first_round(self._algorithm('inverse'))
    mechanism = mechanism_lib.randomized_response('1.5', 2)
    flipped = [
        mechanism_lib.flip(
            c.y, c.example_id, mechanism_lib.simulation_secret(7, i), mechanism
        )
        for i, c in enumerate(self.federation.clients)
    ]
    expected = np.bincount(np.concatenate(flipped), minlength=2)
    np.testing.assert_array_equal(records['label_histogram'], expected)
    self.assertNotEqual(records['label_histogram'].tolist(), self.true_counts.tolist())

  @parameterized.parameters('inverse', 'projected', 'shrinkage')
  def test_clients_get_the_recovered_distribution(self, prior):
    found, records, _ = self._first_round(self._algorithm(prior))
    mechanism = mechanism_lib.randomized_response('1.5', 2)
    expected = estimator.estimate(records['label_histogram'], prior, mechanism)
    np.testing.assert_allclose(found, expected.prior, atol=1e-6)
    # 1,200 labels at epsilon 1.5: standard error .018.
    np.testing.assert_allclose(found, self.true_counts / 1200, atol=0.08)

  def test_without_dp_the_counts_are_exact(self):
    found, records, _ = self._first_round(self._algorithm('none'))
    np.testing.assert_array_equal(records['label_histogram'], self.true_counts)
    np.testing.assert_allclose(found, self.true_counts / 1200, atol=1e-6)

  def test_uniform_asks_for_no_labels(self):
    algorithm = self._algorithm('uniform')
    found, records, opened = self._first_round(algorithm)
    np.testing.assert_allclose(found, [0.5, 0.5])
    self.assertEmpty(records)
    self.assertNotIn('label histogram', [f.name for f in algorithm.fields])
    self.assertLen(opened.entries, 1)

  def test_uniform_is_what_a_prior_without_signal_becomes(self):
    # Shrunk to nothing: epsilon so small that the labels cannot be told from noise.
    task = self._task('shrinkage', '0.0001')
    shrunk = feddpcont.build(task, parameters.FedDPContParams())
    last = [
        runs.all_rounds(a, task, self.federation)[0]
        for a in (shrunk, self._algorithm('uniform'))
    ]
    np.testing.assert_allclose(last[0].received['label_prior'], [0.5, 0.5])
    np.testing.assert_array_equal(last[0].weights.trainable[0], last[1].weights.trainable[0])

  def test_asked_again_the_clients_report_the_same(self):
    algorithm = self._algorithm('shrinkage')
    _, first, _ = self._first_round(algorithm)
    _, second, _ = self._first_round(algorithm)
    np.testing.assert_array_equal(first['label_histogram'], second['label_histogram'])

  def test_another_seed_draws_other_flips(self):
    algorithm = self._algorithm('shrinkage')
    _, first, _ = self._first_round(algorithm)
    _, second, _ = self._first_round(algorithm, self.federation._replace(seed=8))
    self.assertNotEqual(
        first['label_histogram'].tolist(), second['label_histogram'].tolist()
    )

  def test_histograms_are_released_once_by_all_and_first(self):
    algorithm = self._algorithm('shrinkage')
    _, _, opened = self._first_round(algorithm)
    first, *_ = opened.entries
    self.assertEqual((first.fields, first.clients), ((0,), 4))
    labels, _ = algorithm.computations
    self.assertEqual([f.name for f in labels.fields], ['label histogram'])

  def _entries(self, prior):
    """The ledger's entries of all rounds, and the declaration."""
    algorithm = self._algorithm(prior)
    _, _, opened = runs.all_rounds(algorithm, self._task(prior), self.federation)
    return opened.entries, uplink.to_json(algorithm.fields)

  def test_ledger_has_the_label_release_at_its_actual_epsilon(self):
    entries, declared = self._entries('shrinkage')
    # Once, before the first round, by all; then three rounds of two.
    self.assertEqual(
        [(e.round_num, e.clients, 0 in e.fields) for e in entries],
        [(1, 4, True), (1, 2, False), (2, 2, False), (3, 2, False)],
    )
    label, *others = costs_lib.releases(entries, declared)
    self.assertEqual((label.field['name'], label.times), ('label histogram', 1))
    self.assertLessEqual(label.cost.epsilon, 1.5)
    self.assertAlmostEqual(label.cost.epsilon, 1.5, places=9)
    self.assertEqual({r.times for r in others}, {3})
    label_unit = protection.Unit.LABEL
    self.assertEqual(costs_lib.totals(entries[:1], declared)[label_unit], label.cost)
    self.assertEqual(costs_lib.totals(entries, declared)[label_unit].epsilon, np.inf)

  def test_ledger_bounds_what_the_sum_alone_costs(self):
    entries, declared = self._entries('shrinkage')
    label, *others = costs_lib.releases(entries, declared)
    # Each report among 1,200.
    self.assertEqual(label.protection.num_labels, 1200)
    self.assertLess(label.central.upper, label.cost.epsilon)
    self.assertEqual({r.central for r in others}, {None})

  def test_ledger_claims_nothing_without_dp(self):
    label, *_ = costs_lib.releases(*self._entries('none'))
    self.assertEqual(label.field['name'], 'label histogram')
    self.assertIs(label.cost.status, protection.Status.NONE)
    self.assertEqual(label.cost.epsilon, np.inf)

  def test_uplink_is_the_histogram_and_fed_avgs(self):
    fields = self._algorithm('shrinkage').fields
    self.assertEqual(
        [f.name for f in fields],
        ['label histogram', 'update', 'update weight', 'loss', 'examples', 'rejected'],
    )

  def test_one_client_is_refused(self):
    self.federation = self.federation._replace(clients=self.federation.clients[:1])
    with self.assertRaisesRegex(ValueError, 'at least 2 clients'):
      self._algorithm('shrinkage')


class RandomnessTest(federated_test_case.FederatedTestCase):

  def test_contrastive_labels_are_a_function_of_the_seed(self):
    def weights(seed):
      return _train(_built(seed))

    np.testing.assert_array_equal(weights(1), weights(1))
    self.assertGreater(np.abs(weights(1) - weights(2)).max(), 1e-3)

  def test_clients_draw_different_labels(self):
    # Two clients with the same data; if they shared draws, their mean would be each one's update.
    n = 100
    process = _built(0, types.LocalTraining(epochs=1, batch_size=n, learning_rate=1.0)).process

    def update(*clients):
      data = [toy.client(c, [[1, 0]] * n, [0] * n) for c in clients]
      state = process.next(process.initialize(), data).state
      return process.get_model_weights(state).trainable[0][0, 0]

    self.assertNotAlmostEqual(update(0), update(1), places=3)
    self.assertAlmostEqual(update(0, 1), (update(0) + update(1)) / 2, places=5)


if __name__ == '__main__':
  absltest.main()
