"""The server's step on single contributions: medians, and the best by a selector."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tests.optimizers import rounds
from tff_noise import types
from tff_noise.algorithms import plain
from tff_noise.clients import program
from tff_noise.federated import aggregation
from tff_noise.federated import computation
from tff_noise.federated import optimizer
from tff_noise.federated import processes
from tff_noise.federated import stacked
from tff_noise.federated import task as task_lib
from tff_noise.optimizers import catalog
from tff_noise.uplink import disclosure
from tff_noise.uplink import per_client
from tff_noise.uplink import uplink

_ZEROS = tff.learning.models.ModelWeights([tf.zeros((2, 2))], [])
_TWICE = uplink.UplinkSum('twice', np.float32, 0.0, 1e6, 'a test')


def _fed_avg(**changes):
  return optimizer.fed_avg(toy.linear_model().weights_type)._replace(**changes)


def _selector(keep, build_score, **changes):
  return stacked.Selector(build_score, keep, 'a test', **changes)


def _same_score(keep):
  """A selector to whom all are alike."""
  return _selector(keep, lambda: lambda inputs: tf.zeros(inputs.num_clients))


def _by_report(keep):
  return _selector(keep, lambda: lambda inputs: inputs.reports['grade'])


class CombineTest(parameterized.TestCase):

  def _median(self, updates, weights=None):
    updates = np.array(updates, np.float32)
    weights = np.ones(len(updates)) if weights is None else weights
    return stacked.median(tf.constant(updates), tf.constant(weights, tf.float32)).numpy()

  @parameterized.parameters(1, 2, 3, 8)
  def test_median_of_identical_updates_is_that_update(self, count):
    update = np.array([0.1, -3, 1e-7, 0], np.float32)
    np.testing.assert_array_equal(self._median([update] * count), update)

  def test_median_by_hand(self):
    rows = [[1, 9, -5], [7, 8, 0], [2, 7, 100]]
    np.testing.assert_array_equal(self._median(rows), [2, 8, 0])
    # Of four, the mean of the middle two.
    np.testing.assert_array_equal(self._median([*rows, [4, 0, 1]]), [3, 7.5, 0.5])
    np.testing.assert_array_equal(self._median(rows[:2]), [4, 8.5, -2.5])

  def test_one_bad_client_cannot_move_the_median_far(self):
    rows = [[1.0], [2.0], [3.0], [4.0], [1e30]]
    np.testing.assert_array_equal(self._median(rows), [3])

  def test_rows_without_weight_do_not_count_in_the_median(self):
    rows = [[1, 9], [1e9, -1e9], [2, 7], [np.nan, np.inf], [4, 0]]
    np.testing.assert_array_equal(self._median(rows, [1, 0, 50, 0, 2]), [2, 7])

  @parameterized.parameters(stacked.median, stacked.weighted_mean)
  def test_of_none_it_is_zero(self, combine):
    updates = tf.constant([[1.0, 9], [3, 5]])
    np.testing.assert_array_equal(combine(updates, tf.zeros(2)), [0, 0])
    np.testing.assert_array_equal(combine(updates[:0], tf.zeros(0)), [0, 0])

  @parameterized.parameters(*range(8))
  def test_numpy_says_the_same(self, seed):
    draw = np.random.default_rng(seed)
    count, size = draw.integers(2, 12), draw.integers(1, 30)
    updates = draw.normal(size=(count, size)).astype(np.float32)
    weights = draw.integers(0, 3, count).astype(np.float32)
    weights[0] = 2
    np.testing.assert_allclose(
        self._median(updates, weights), np.median(updates[weights > 0], axis=0), rtol=1e-6
    )
    np.testing.assert_allclose(
        stacked.weighted_mean(tf.constant(updates), tf.constant(weights)),
        np.average(updates, axis=0, weights=weights), rtol=1e-4, atol=1e-6,
    )

  def test_mean_by_hand(self):
    found = stacked.weighted_mean(tf.constant([[1.0, 0], [5, 4], [9, 9]]), tf.constant([3.0, 1, 0]))
    np.testing.assert_allclose(found, [2, 1])


class RowTest(parameterized.TestCase):

  def test_flat_and_back(self):
    like = tff.learning.models.ModelWeights(
        [tf.reshape(tf.range(6.0), (2, 3)), tf.constant(6.0)], [tf.constant([7.0, 8])]
    )
    output = uplink.ClientOutput(
        like, tf.constant(4.0), {'twice': tf.constant(8.0), 'loss': tf.constant(1.0)},
        collections.OrderedDict(client=tf.constant(5), grade=tf.constant(0.5)), (),
    )
    row = stacked.make_row(output, (_TWICE,))
    self.assertEqual(list(row), ['client', 'update', 'weight', 'twice', 'grade'])
    np.testing.assert_array_equal(row['update'], np.arange(9))
    scalars = [float(row[name]) for name in ('client', 'weight', 'twice', 'grade')]
    self.assertEqual(scalars, [5, 4, 8, 0.5])
    type_spec = tff.to_type(
        tff.learning.models.ModelWeights([(np.float32, (2, 3)), np.float32], [(np.float32, (2,))])
    )
    back = stacked.unflatten(row['update'], type_spec)
    tf.nest.assert_same_structure(back, like)
    tf.nest.map_structure(np.testing.assert_array_equal, back, like)


class DecideTest(parameterized.TestCase):

  def _rows(self, count, seed=0, **changes):
    draw = np.random.default_rng(seed)
    rows = {
        'client': draw.permutation(40)[:count].astype(np.int32),
        'update': draw.normal(size=(count, 4)).astype(np.float32),
        'weight': draw.integers(1, 9, count).astype(np.float32),
        'twice': draw.normal(size=count).astype(np.float32),
        'grade': draw.permutation(count).astype(np.float32),
    }
    changed = {name: np.array(v, rows[name].dtype) for name, v in changes.items()}
    return {**rows, **changed}

  def _decide(
      self, rows, selector=None, combine=None, round_num=1, seed=0, client_model=None,
      optimizer=None,
  ):
    opt = optimizer or _fed_avg(combine=combine)
    opt = opt._replace(client=program.ClientProgram(sums=(_TWICE,)))
    if client_model is not None:
      opt = opt._replace(client_model=client_model)
    keep = None
    if selector is not None:
      keep = stacked.best_of(selector, selector.build_score(), (), tf.constant(round_num), seed)
    return stacked.decide(
        {name: tf.constant(v) for name, v in rows.items()}, weights=_ZEROS,
        update_type=toy.linear_model().weights_type, optimizer=opt, keep=keep,
    )

  def _kept(self, decision):
    kept = decision.reports['kept'].numpy()
    return set(decision.reports['client'].numpy()[kept].tolist())

  def test_best_by_hand(self):
    rows = self._rows(
        4, client=[3, 9, 5, 1], update=np.arange(16).reshape(4, 4), weight=[1, 2, 3, 4],
        twice=[10, 20, 30, 40], grade=[0.1, 0.9, 0.5, 0.4],
    )
    found = self._decide(rows, _by_report(2))
    # Clients 9 and 5, with weights 2 and 3 and second and third rows.
    np.testing.assert_allclose(
        found.inputs.update.trainable[0], [[6.4, 7.4], [8.4, 9.4]], rtol=1e-6
    )
    self.assertEqual(
        {name: float(v) for name, v in found.inputs.sums.items()}, {'twice': 50, 'examples': 5}
    )
    self.assertEqual(list(found.reports), ['client', 'grade', 'score', 'kept'])
    self.assertEqual(found.reports['client'].numpy().tolist(), [1, 3, 5, 9])
    np.testing.assert_allclose(found.reports['score'], [0.4, 0.1, 0.5, 0.9])
    self.assertEqual(found.reports['kept'].numpy().tolist(), [False, False, True, True])

  def test_without_a_selector_all_finite_are_used(self):
    rows = self._rows(3, weight=[2, 0, 1])
    found = self._decide(rows)
    np.testing.assert_allclose(
        tf.reshape(found.inputs.update.trainable[0], [-1]),
        (2 * rows['update'][0] + rows['update'][2]) / 3, rtol=1e-5,
    )
    self.assertAlmostEqual(
        float(found.inputs.sums['twice']), rows['twice'][0] + rows['twice'][2], places=5
    )
    self.assertEqual(float(found.inputs.sums['examples']), 3)
    self.assertEqual(list(found.reports), ['client', 'grade'])

  @parameterized.product(
      selector=(None, _by_report(3), _same_score(3)), combine=(None, stacked.median), seed=(0, 1)
  )
  def test_order_of_the_rows_does_not_matter(self, selector, combine, seed):
    rows = self._rows(7, seed)
    rows['weight'][2] = 0
    first = self._decide(rows, selector, combine)
    for _ in range(3):
      order = np.random.default_rng(seed).permutation(7)
      second = self._decide({n: v[order] for n, v in rows.items()}, selector, combine)
      tf.nest.map_structure(np.testing.assert_array_equal, first, second)

  def test_property_the_best_are_used_and_no_others(self):
    for seed in range(20):
      rows = self._rows(6, seed)
      keep = 1 + seed % 7
      used = np.argsort(-rows['grade'])[:keep]
      found = self._decide(rows, _by_report(keep))
      self.assertEqual(self._kept(found), set(rows['client'][used].tolist()))
      np.testing.assert_allclose(
          tf.reshape(found.inputs.update.trainable[0], [-1]),
          np.average(rows['update'][used], axis=0, weights=rows['weight'][used]),
          rtol=1e-4, atol=1e-6,
      )
      for name, column in (('twice', 'twice'), ('examples', 'weight')):
        self.assertAlmostEqual(
            float(found.inputs.sums[name]), float(rows[column][used].sum()), places=4
        )

  def test_best_are_combined_by_the_optimizers_own_rule(self):
    rows = self._rows(6)
    used = np.argsort(-rows['grade'])[:4]
    found = self._decide(rows, _by_report(4), stacked.median)
    np.testing.assert_allclose(
        tf.reshape(found.inputs.update.trainable[0], [-1]),
        np.median(rows['update'][used], axis=0), rtol=1e-5,
    )

  def test_an_optimizer_may_weigh_clients_by_what_they_report_and_send(self):
    seen = []

    def weigh(contributions):
      seen.append([t.shape.as_list() for t in contributions.tensors(0)])
      return contributions.weights * contributions.reports['grade']

    rows = self._rows(4, weight=[1, 0, 2, 3], grade=[5, 9, 1, 0])
    found = self._decide(rows, optimizer=_fed_avg(weigh=weigh))
    np.testing.assert_allclose(
        tf.reshape(found.inputs.update.trainable[0], [-1]),
        (5 * rows['update'][0] + 2 * rows['update'][2]) / 7, rtol=1e-5,
    )
    self.assertEqual(seen, [[[2, 2]]])
    self.assertEqual(float(found.inputs.sums['examples']), 6)

  def test_clients_differ_as_their_models_do_whatever_they_send(self):
    seen = {}

    def noting(name):
      def weigh(contributions):
        seen[name] = [contributions.tensors(i)[0].numpy() for i in range(2)]
        return contributions.weights

      return weigh

    rows = self._rows(2)
    self._decide(rows, optimizer=_fed_avg(weigh=noting('update')))
    halved = _fed_avg(
        weigh=noting('model'),
        client_model=lambda inputs: tf.nest.map_structure(
            lambda w, u: w - u * inputs.sums['examples'], inputs.weights, inputs.update
        ),
    )
    self._decide(rows, optimizer=halved)
    for name, scale in (('update', np.ones(2)), ('model', -rows['weight'])):
      for i in range(2):
        difference = seen[name][i] - seen[name][0]
        expected = rows['update'][i] * scale[i] - rows['update'][0] * scale[0]
        np.testing.assert_allclose(difference.reshape(-1), expected, rtol=1e-5, atol=1e-6)

  def test_diverged_clients_are_never_kept(self):
    rows = self._rows(4, client=[0, 1, 2, 3], weight=[1, 0, 1, 0], grade=[1, 9, 2, 8])
    found = self._decide(rows, _by_report(3))
    self.assertEqual(self._kept(found), {0, 2})
    np.testing.assert_array_equal(found.reports['score'], [1, -np.inf, 2, -np.inf])

  @parameterized.parameters(np.nan, np.inf, -np.inf)
  def test_score_that_is_no_number_is_never_kept(self, value):
    for keep in (1, 2, 3, 4):
      rows = self._rows(3, client=[0, 1, 2], grade=[value, 5, -5])
      found = self._decide(rows, _by_report(keep))
      self.assertEqual(self._kept(found), {1} if keep == 1 else {1, 2})

  def test_nobody_can_be_kept(self):
    rows = self._rows(3, grade=[np.nan] * 3)
    for combine in (None, stacked.median):
      found = self._decide(rows, _by_report(2), combine)
      self.assertEmpty(self._kept(found))
      np.testing.assert_array_equal(found.inputs.update.trainable[0], np.zeros((2, 2)))
      self.assertEqual(float(found.inputs.sums['examples']), 0)

  def test_selector_sees_each_clients_model_and_sums_alone(self):
    def client_model(inputs):
      # What a server does with one client's contribution.
      scale = inputs.sums['twice'] + 100 * inputs.sums['examples']
      return tf.nest.map_structure(lambda w, u: w - scale * u, inputs.weights, inputs.update)

    selector = _selector(
        2,
        lambda: lambda inputs: tf.stack([
            tf.reduce_sum(inputs.model(tf.constant(i)).trainable[0])
            for i in range(int(inputs.num_clients))
        ]),
    )
    rows = self._rows(5)
    found = self._decide(rows, selector, client_model=client_model)
    expected = -(rows['twice'] + 100 * rows['weight']) * rows['update'].sum(axis=1)
    np.testing.assert_allclose(
        found.reports['score'], expected[np.argsort(rows['client'])], rtol=1e-4
    )


class TiesTest(parameterized.TestCase):

  def _kept(self, keep, clients, scores=None, seed=0, rounds_=600):
    """bool `[R, k]`, who is kept in each round."""
    scores = np.zeros(len(clients)) if scores is None else scores
    selector = _selector(keep, lambda: lambda inputs: tf.constant(scores, tf.float32))
    clients = tf.constant(clients, tf.int32)

    @tf.function
    def kept(round_num):
      decide = stacked.best_of(selector, selector.build_score(), (), round_num, seed)
      return decide(None, clients, tf.ones(len(clients), tf.bool), {})[1]

    return np.array([kept(tf.constant(r)) for r in range(1, rounds_ + 1)])

  def test_each_of_tied_clients_is_kept_about_equally_often(self):
    kept = self._kept(2, [0, 3, 7, 8, 90])
    np.testing.assert_array_equal(kept.sum(axis=1), np.full(600, 2))
    # 240 times each, standard deviation 12; 60 times each of the ten pairs, 7.3.
    np.testing.assert_allclose(kept.sum(axis=0), 240, atol=60)
    pairs, counts = np.unique(kept, axis=0, return_counts=True)
    self.assertLen(pairs, 10)
    np.testing.assert_allclose(counts, np.full(10, 60), atol=37)
    # Nor does a round say who is next.
    again = (kept[1:] & kept[:-1]).sum()
    self.assertBetween(again / kept[1:].sum(), 0.3, 0.5)

  def test_only_ties_are_drawn(self):
    # The best is always kept, the worst never; one of three that are tied is.
    kept = self._kept(2, [4, 5, 6, 7, 8], [1, 2, 0, 1, 1], rounds_=300)
    self.assertTrue(kept[:, 1].all())
    self.assertFalse(kept[:, 2].any())
    np.testing.assert_allclose(kept[:, [0, 3, 4]].sum(axis=0), 100, atol=41)

  def test_is_a_function_of_seed_round_and_client(self):
    clients = np.array([3, 1, 4, 15, 9])
    first = self._kept(2, clients, rounds_=40)
    np.testing.assert_array_equal(first, self._kept(2, clients, rounds_=40))
    order = np.array([2, 0, 4, 1, 3])
    np.testing.assert_array_equal(first[:, order], self._kept(2, clients[order], rounds_=40))
    self.assertTrue((first != self._kept(2, clients, seed=1, rounds_=40)).any())
    self.assertTrue((first != self._kept(2, clients + 1, rounds_=40)).any())

  @parameterized.parameters(3, 4, 100)
  def test_more_than_there_are(self, keep):
    self.assertTrue(self._kept(keep, [5, 2, 8], rounds_=5).all())


# Three clients of 1, 3 and 6 examples.
_UNEQUAL = (([[1, 0]], [0]), ([[0, 1], [1, 2], [3, 1]], [1, 0, 1]), rounds.DISAGREEING[0])
_EVEN = (*_UNEQUAL, rounds.DISAGREEING[1])


def _datasets(clients, ids=None):
  return [toy.client(i, *c) for i, c in zip(ids or range(len(clients)), clients, strict=True)]


def _build(opt=None, selector=None, training=None, **options):
  """A round of the linear model; `options` are of the clients' program."""
  training = training or rounds.full_batch(3)
  return computation.train(
      'a round', task_lib.Task(toy.linear_model(), training), plain.client(training, **options),
      optimizer=opt, selector=selector,
  )


class MedianRoundTest(federated_test_case.FederatedTestCase):

  def test_result_is_numpys(self):
    for clients in (_UNEQUAL, _EVEN):
      process = _build(_fed_avg(combine=stacked.median)).process
      self.assertIsInstance(process, tff.learning.templates.LearningProcess)
      state, w = process.initialize(), np.zeros((2, 2))
      for _ in range(3):
        output = process.next(state, _datasets(clients))
        state = output.state
        w = np.median([rounds.train(w, c, 3) for c in clients], axis=0)
        np.testing.assert_allclose(process.get_model_weights(state).trainable[0], w, atol=1e-5)
      train = output.metrics['client_work']['train']
      self.assertEqual(train['examples'], sum(len(y) for _, y in clients))

  def test_diverged_client_is_left_out(self):
    process = _build(_fed_avg(combine=stacked.median)).process
    broken = ([[np.nan, 0]] * 50, [0] * 50)
    output = process.next(process.initialize(), _datasets((*_UNEQUAL, broken)))
    w = np.median([rounds.train(np.zeros((2, 2)), c, 3) for c in _UNEQUAL], axis=0)
    np.testing.assert_allclose(
        process.get_model_weights(output.state).trainable[0], w, atol=1e-5
    )
    train = output.metrics['client_work']['train']
    self.assertEqual((train['examples'], train['rejected']), (10, 1))
    # Nobody is left.
    output = process.next(process.initialize(), _datasets((broken,)))
    np.testing.assert_array_equal(
        process.get_model_weights(output.state).trainable[0], np.zeros((2, 2))
    )

  def test_reports_come_with_the_clients_ids(self):
    process = _build(_fed_avg(combine=stacked.median)).process
    output = process.next(process.initialize(), _datasets(_UNEQUAL, [8, 2, 5]))
    self.assertEqual(list(output.metrics['reports']), ['client'])
    self.assertEqual(output.metrics['reports']['client'].tolist(), [2, 5, 8])


class SelectedRoundTest(federated_test_case.FederatedTestCase):

  def _steps_selector(self, keep):
    """Fewer steps are better."""
    selector = _selector(keep, lambda: lambda inputs: -tf.cast(inputs.reports['steps'], tf.float32))
    return selector, {
        'reports': (uplink.UplinkReport('steps', np.int32, 0, 1000, 'a test'),),
        'final': lambda result: program.Sent(reports={'steps': result.steps}),
    }

  def test_best_two_of_three(self):
    selector, options = self._steps_selector(2)
    training = types.LocalTraining(epochs=2, batch_size=1, learning_rate=0.1)
    process = _build(None, selector, training, **options).process
    output = process.next(process.initialize(), _datasets(_UNEQUAL, [8, 2, 5]))
    reports = output.metrics['reports']
    self.assertEqual(list(reports), ['client', 'steps', 'score', 'kept'])
    in_order = per_client.in_order(reports, np.array([8, 2, 5]))
    self.assertEqual(in_order['steps'].tolist(), [2, 6, 12])
    self.assertEqual(in_order['score'].tolist(), [-2, -6, -12])
    self.assertEqual(in_order['kept'].tolist(), [True, True, False])
    self.assertEqual(in_order['kept'].dtype, bool)
    # The third is left out of the model, and trains all the same.
    alone = _build(training=training).process
    expected = alone.next(alone.initialize(), _datasets(_UNEQUAL[:2], [8, 2])).state
    np.testing.assert_allclose(
        output.state.global_model_weights.trainable[0],
        expected.global_model_weights.trainable[0], atol=1e-6,
    )
    self.assertEqual(output.metrics['client_work']['train']['examples'], 10)

  def test_what_is_held_comes_to_the_selector(self):
    server_data_type = tff.TensorType(np.float32, (3,))
    selector = _selector(
        1,
        lambda: lambda inputs: inputs.server_data * tf.stack(
            [tf.reduce_sum(tf.abs(inputs.model(tf.constant(i)).trainable[0])) for i in range(3)]
        ),
        server_data_type=server_data_type,
    )
    built = _build(selector=selector)
    process, nothing = built.process, built.initial_input(np.zeros(0, np.int32))
    self.assertIsInstance(process, processes.StatefulProcess)
    self.assertEqual(process.server_data_type, server_data_type)
    norms = [np.abs(rounds.train(np.zeros((2, 2)), c, 3)).sum() for c in _UNEQUAL]
    for best in range(3):
      server_data = np.eye(3, dtype=np.float32)[best]
      output = process.next(
          process.initialize(), _datasets(_UNEQUAL), [nothing] * 3, server_data
      )
      np.testing.assert_allclose(output.metrics['reports']['score'], server_data * norms, rtol=1e-4)
      np.testing.assert_allclose(
          output.state.global_model_weights.trainable[0],
          rounds.train(np.zeros((2, 2)), _UNEQUAL[best], 3), atol=1e-5,
      )

  def test_ties_change_from_round_to_round(self):
    process = _build(selector=_same_score(1)).process
    state, kept = process.initialize(), []
    for _ in range(12):
      output = process.next(state, _datasets(_UNEQUAL))
      state = output.state
      kept.append(int(np.flatnonzero(output.metrics['reports']['kept'])[0]))
    self.assertLen(set(kept), 3)

  @parameterized.parameters(
      (True, {}, 'a test; '),
      (False, {'combine': stacked.median}, 'what is made of single updates'),
      (False, {'weigh': lambda contributions: contributions.weights}, 'what updates are weighted'),
  )
  def test_declares_exactly_a_row_of_each_client_and_sums(self, by_selector, sees_updates, reason):
    selector, options = self._steps_selector(2)
    opt = _fed_avg(
        client=program.ClientProgram(
            final=lambda result: program.Sent(sums={'twice': 2 * result.num_examples}),
            sums=(_TWICE,),
        ),
        **sees_updates,
    )
    result = _build(opt, selector if by_selector else None, **options)
    *sums, row = result.fields
    self.assertEqual([f.name for f in sums], ['loss', 'examples', 'rejected'])
    for field in sums:
      self.assertIs(field.disclosure, uplink.Disclosure.SUM)
    self.assertIs(row.disclosure, uplink.Disclosure.PER_CLIENT)
    self.assertEqual(
        row.type_spec,
        '<client=int32,update=float32[4],weight=float32,twice=float32,steps=int32>',
    )
    self.assertEqual(row.num_bytes, 4 * (1 + 4 + 1 + 1 + 1))
    self.assertEqual(result.uplink_bytes, row.num_bytes + 3 * 4)
    self.assertIn('twice: a test; steps: a test', row.reason)
    self.assertStartsWith(row.reason, reason)
    # Four weights and the number of the round.
    self.assertEqual(result.broadcast_bytes, 16 + 4)
    self.assertLen(disclosure.client_to_server_edges(result.process.next), 4)
    for i in range(4):
      with self.assertRaisesRegex(disclosure.UndeclaredUplinkError, 'sent, not declared'):
        disclosure.check(result.process.next, result.fields[:i] + result.fields[i + 1 :])

  def test_scalars_stay_secure(self):
    task = task_lib.Task(
        toy.linear_model(),
        aggregation=aggregation.secure_weighted_mean(update_bound=1.0, max_examples=10),
        optimizer=_fed_avg(combine=stacked.median),
    )
    result = plain.build_process(task)
    *scalars, row = (f.disclosure for f in result.fields)
    self.assertEqual(set(scalars), {uplink.Disclosure.SECURE_SUM})
    self.assertIs(row, uplink.Disclosure.PER_CLIENT)


# FedBN's clients keep a part of theirs.
_WHOLE_MODELS = tuple(sorted(set(catalog.OPTIMIZERS) - {'fedbn'}))


# Numbers of steps differ: 2, 4 and 6.
_TRAINING = types.LocalTraining(epochs=2, batch_size=2, learning_rate=0.1, momentum=0.9)


class OptimizersTest(federated_test_case.FederatedTestCase):
  """In three rounds, so that servers and clients have a state."""

  def _run(self, name, selector):
    federation = rounds.Federation(
        name, _UNEQUAL, _TRAINING, toy.linear_model('batch'), selector=selector
    )
    for _ in range(3):
      train = federation.round()
    # What an optimizer sums is seen by client where somebody selects, and is no metric.
    metrics = [train[name] for name in ('loss', 'examples', 'rejected')]
    return federation.weights, federation.state.finalizer, federation.kept, metrics

  @parameterized.parameters(*_WHOLE_MODELS)
  def test_who_keeps_all_changes_nothing(self, name):
    # Batch normalisation goes its own way; the server's state goes on.
    plain_ = self._run(name, None)
    selected = self._run(name, _same_score(3))
    for found, expected in zip(tf.nest.flatten(selected), tf.nest.flatten(plain_), strict=True):
      np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)

  @parameterized.parameters(*_WHOLE_MODELS)
  def test_selector_sees_the_true_local_models(self, name):
    look = np.random.default_rng(0).normal(size=(2, 2)).astype(np.float32)
    selector = _selector(
        3,
        lambda: lambda inputs: tf.stack([
            tf.reduce_sum(look * inputs.model(tf.constant(i)).trainable[0]) for i in range(3)
        ]),
    )
    # Clients keep their model as well.
    keeps_model = plain.client(
        _TRAINING,
        own={'model': np.zeros((2, 2), np.float32)},
        final=lambda result: program.Sent(own={'model': result.weights.trainable[0]}),
    )
    federation = rounds.Federation(
        name, _UNEQUAL, _TRAINING, program=keeps_model, selector=selector
    )
    for _ in range(3):
      federation.round()
      np.testing.assert_allclose(
          federation.reports['score'],
          [np.sum(look * w) for w in federation.own('model')], rtol=1e-4, atol=1e-5,
      )

  def test_fed_bn_has_no_whole_model(self):
    entry = catalog.OPTIMIZERS['fedbn']
    opt = entry.build(task_lib.Task(toy.linear_model('batch')), entry.params())
    self.assertIsNone(opt.client_model)


if __name__ == '__main__':
  absltest.main()
