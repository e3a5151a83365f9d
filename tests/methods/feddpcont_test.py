"""FedDPCont: label communication, contrastive training, and what they degenerate to."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tff_noise import rng
from tff_noise import types
from tff_noise.data import client_data
from tff_noise.federated import aggregation
from tff_noise.federated import uplink
from tff_noise.methods import feddpcont
from tff_noise.methods import method
from tff_noise.methods import plain
from tff_noise.privacy import estimator
from tff_noise.privacy import ledger
from tff_noise.privacy import mechanism as mechanism_lib
from tff_noise.privacy import protection
from tff_noise.program import training
from tff_noise.selection import availability

_DATA = (([[1, 0], [0, 1], [1, 1], [2, 0]], [0, 1, 1, 0]), ([[0, 2], [1, 2]], [1, 0]))
_TRAINING = types.LocalTraining(epochs=3, batch_size=2, learning_rate=0.2)


def _clients():
  return [toy.client(i, *examples) for i, examples in enumerate(_DATA)]


def _train(process, rounds=2, prior=None):
  state = process.initialize()
  if prior is not None:
    state = feddpcont.set_label_prior(process, state, np.array(prior))
  for _ in range(rounds):
    state = process.next(state, _clients()).state
  return process.get_model_weights(state).trainable[0]


def _process(**params):
  return feddpcont.build_process(
      toy.linear_model(), training=_TRAINING, params=feddpcont.FedDPContParams(**params), seed=1
  ).process


def _fed_avg_weights():
  return _train(
      plain.build_process(toy.linear_model(), training=_TRAINING, seed=1).process
  )


class TrainingTest(federated_test_case.FederatedTestCase):

  def test_weight_zero_is_fed_avg(self):
    weights = _train(_process(weight=0.0))
    np.testing.assert_allclose(weights, _fed_avg_weights(), atol=1e-6)

  def test_warm_up_is_fed_avg_and_then_no_more(self):
    warm = _process(warmup_rounds=2)
    np.testing.assert_allclose(_train(warm), _fed_avg_weights(), atol=1e-6)
    self.assertGreater(np.abs(_train(warm, 3) - _train(_process(weight=0.0), 3)).max(), 1e-3)

  def test_one_expected_step_by_hand(self):
    # At W = 0 and far from the floor the gradient with respect to the logits is pi - e_y.
    process = feddpcont.build_process(
        toy.linear_model(),
        training=types.LocalTraining(epochs=1, batch_size=1, learning_rate=1.0),
        params=feddpcont.FedDPContParams(contrast='expected'),
    ).process
    state = feddpcont.set_label_prior(process, process.initialize(), np.array([0.25, 0.75]))
    state = process.next(state, [toy.client(0, [[1, 0]], [0])]).state
    weights = process.get_model_weights(state).trainable[0]
    np.testing.assert_allclose(weights, [[0.75, -0.75], [0, 0]], atol=1e-5)

  def test_certain_prior_makes_sampling_the_expectation(self):
    prior = [0.0, 1.0]
    np.testing.assert_allclose(
        _train(_process(contrast='sampled'), prior=prior),
        _train(_process(contrast='expected'), prior=prior),
        atol=1e-6,
    )

  def test_sampled_labels_follow_the_prior_and_change_every_round(self):
    # One step a round on n equal examples: the gradient of the logits is mean(e_y') - e_y, so the
    # update shows the share of each drawn label.
    n = 2000
    process = feddpcont.build_process(
        toy.linear_model(), training=types.LocalTraining(epochs=1, batch_size=n, learning_rate=1.0)
    ).process
    prior = np.array([0.3, 0.7])
    shares, state = [], process.initialize()
    for _ in range(2):
      state = feddpcont.set_label_prior(process, state, prior)
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
    process = feddpcont.build_process(
        toy.linear_model(),
        training=types.LocalTraining(epochs=50, batch_size=4, learning_rate=5.0),
        params=feddpcont.FedDPContParams(contrast='expected'),
    ).process
    weights = _train(process, rounds=20, prior=[0.5, 0.5])
    # log(1e-8) bounds the margin of an example at about 18.4 plus one step.
    self.assertLess(np.abs(weights).max(), 60)

  @parameterized.parameters((1, 0.0), (2, 0.0), (3, 0.5), (4, 1.0), (5, 1.5), (9, 1.5))
  def test_schedule_in_the_graph_equals_the_one_on_numbers(self, round_num, expected):
    params = feddpcont.FedDPContParams(weight=1.5, warmup_rounds=2, ramp_rounds=3)
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

  def _schedule(self, prior, epsilon='1.5'):
    task = method.Task(
        model=toy.linear_model(),
        training=_TRAINING,
        aggregation=aggregation.weighted_mean(),
        label_privacy=method.LabelPrivacy(epsilon, prior),
        rounds=3,
        stages={},
        clients_per_round=2,
        availability=availability.always(4),
        client_sizes=self.federation.sizes,
        seed=7,
    )
    return feddpcont.METHOD.build(task, feddpcont.FedDPContParams())

  def _enter(self, schedule, federation=None, announced=None):
    announced = [] if announced is None else announced
    stage = schedule.stages[0]
    process = stage.round_process.process
    progress = stage.enter(
        method.Clients(
            federation or self.federation, (),
            lambda name, ids: announced.append((name, ids.tolist())),
        ),
        method.Progress(process.initialize(), (), {'kept': np.array(5)}, 0),
    )
    # What others have recorded is kept.
    self.assertEqual(progress.records['kept'], 5)
    return process.get_hparams(progress.server)['label_prior'], progress.records

  def test_server_gets_the_sum_of_flipped_labels(self):
    _, records = self._enter(self._schedule('inverse'))
    mechanism = mechanism_lib.randomized_response('1.5', 2)
    flipped = [
        mechanism_lib.flip_labels(
            c.y, c.example_id, client=i, mechanism=mechanism, key=rng.key(7, 'label reports')
        )
        for i, c in enumerate(self.federation.clients)
    ]
    expected = np.bincount(np.concatenate(flipped), minlength=2)
    np.testing.assert_array_equal(records['label_histogram'], expected)
    self.assertNotEqual(records['label_histogram'].tolist(), self.true_counts.tolist())

  @parameterized.parameters('inverse', 'projected', 'shrinkage')
  def test_clients_get_the_recovered_distribution(self, prior):
    found, records = self._enter(self._schedule(prior))
    mechanism = mechanism_lib.randomized_response('1.5', 2)
    expected = estimator.estimate(records['label_histogram'], prior, mechanism)
    np.testing.assert_allclose(found, expected.prior, atol=1e-6)
    # 1,200 labels at epsilon 1.5: standard error .018.
    np.testing.assert_allclose(found, self.true_counts / 1200, atol=0.08)

  def test_without_dp_the_counts_are_exact(self):
    found, records = self._enter(self._schedule('none'))
    np.testing.assert_array_equal(records['label_histogram'], self.true_counts)
    np.testing.assert_allclose(found, self.true_counts / 1200, atol=1e-6)

  def test_asked_again_the_clients_report_the_same(self):
    schedule = self._schedule('shrinkage')
    _, first = self._enter(schedule)
    _, second = self._enter(schedule)
    np.testing.assert_array_equal(first['label_histogram'], second['label_histogram'])

  def test_another_seed_draws_other_flips(self):
    schedule = self._schedule('shrinkage')
    _, first = self._enter(schedule)
    _, second = self._enter(schedule, self.federation._replace(seed=8))
    self.assertNotEqual(
        first['label_histogram'].tolist(), second['label_histogram'].tolist()
    )

  def test_histograms_are_announced_once_by_all(self):
    schedule, announced = self._schedule('shrinkage'), []
    self._enter(schedule, announced=announced)
    self.assertEqual(announced, [('label communication', [0, 1, 2, 3])])
    self.assertEqual([f.name for f in schedule.exchanges['label communication'].fields],
                     ['label histogram'])

  def _entries(self, schedule):
    """The ledger's entries of all rounds, and the declaration."""
    opened = federated_test_case.open_ledger(schedule)
    datasets = client_data.federation_datasets(self.federation)
    state = training.initial_state(schedule, self.federation)
    while True:
      stage, state = training.next_stage(schedule, state)
      if stage is None:
        return opened.entries, uplink.to_json(schedule.fields)
      state, _ = training.run_round(schedule, state, self.federation, datasets, opened)

  def test_ledger_has_the_label_release_at_its_actual_epsilon(self):
    entries, declared = self._entries(self._schedule('shrinkage'))
    # Once, before the first round, by all; then three rounds of two.
    self.assertEqual(
        [(e.round_num, e.clients, 0 in e.fields) for e in entries],
        [(1, 4, True), (1, 2, False), (2, 2, False), (3, 2, False)],
    )
    label, *others = ledger.releases(entries, declared)
    self.assertEqual((label.field['name'], label.times), ('label histogram', 1))
    self.assertLessEqual(label.cost.epsilon, 1.5)
    self.assertAlmostEqual(label.cost.epsilon, 1.5, places=9)
    self.assertEqual({r.times for r in others}, {3})
    label_unit = protection.Unit.LABEL
    self.assertEqual(ledger.totals(entries[:1], declared)[label_unit], label.cost)
    self.assertEqual(ledger.totals(entries, declared)[label_unit].epsilon, np.inf)

  def test_ledger_bounds_what_the_sum_alone_costs(self):
    entries, declared = self._entries(self._schedule('shrinkage'))
    label, *others = ledger.releases(entries, declared)
    # Each report among 1,200.
    self.assertEqual(label.protection.num_labels, 1200)
    self.assertLess(label.central.upper, label.cost.epsilon)
    self.assertEqual({r.central for r in others}, {None})

  def test_ledger_claims_nothing_without_dp(self):
    label, *_ = ledger.releases(*self._entries(self._schedule('none')))
    self.assertEqual(label.field['name'], 'label histogram')
    self.assertIs(label.cost.status, protection.Status.NONE)
    self.assertEqual(label.cost.epsilon, np.inf)

  def test_uplink_is_the_histogram_and_fed_avgs(self):
    fields = self._schedule('shrinkage').fields
    self.assertEqual(
        [f.name for f in fields],
        ['label histogram', 'update', 'update weight', 'loss', 'examples', 'rejected'],
    )

  def test_one_client_is_refused(self):
    self.federation = self.federation._replace(clients=self.federation.clients[:1])
    with self.assertRaisesRegex(ValueError, 'at least 2 clients'):
      self._schedule('shrinkage')


class RandomnessTest(federated_test_case.FederatedTestCase):

  def test_contrastive_labels_are_a_function_of_the_seed(self):
    def weights(seed):
      process = feddpcont.build_process(toy.linear_model(), training=_TRAINING, seed=seed).process
      return _train(process)

    np.testing.assert_array_equal(weights(1), weights(1))
    self.assertGreater(np.abs(weights(1) - weights(2)).max(), 1e-3)

  def test_clients_draw_different_labels(self):
    # Two clients with the same data; if they shared draws, their mean would be each one's update.
    n = 100
    process = feddpcont.build_process(
        toy.linear_model(), training=types.LocalTraining(epochs=1, batch_size=n, learning_rate=1.0)
    ).process

    def update(*clients):
      data = [toy.client(c, [[1, 0]] * n, [0] * n) for c in clients]
      state = process.next(process.initialize(), data).state
      return process.get_model_weights(state).trainable[0][0, 0]

    self.assertNotAlmostEqual(update(0), update(1), places=3)
    self.assertAlmostEqual(update(0, 1), (update(0) + update(1)) / 2, places=5)


if __name__ == '__main__':
  absltest.main()
