"""FedTally: its filter and its tallies by hand, whole runs in NumPy, and what it degenerates to."""

import types as python_types

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tests.algorithms import method_runs
from tests.clients import one_client
from tff_noise import rng
from tff_noise import types
from tff_noise.algorithms import elr
from tff_noise.algorithms import fedtally
from tff_noise.algorithms import parameters
from tff_noise.clients import seeds
from tff_noise.federated import aggregation
from tff_noise.uplink import uplink

_K = 10
_RATES = fedtally.RATES
_SUMS = (fedtally.POSTERIORS, fedtally.CORRECTIONS, fedtally.SURE, fedtally.AGREED)


def _softmax(z):
  p = np.exp(z - z.max(axis=-1, keepdims=True))
  return p / p.sum(axis=-1, keepdims=True)


def _table(num_classes=_K):
  return fedtally.first_table(num_classes)


def _post(r, y, table=None, prior=None):
  table = _table() if table is None else table
  prior = np.full(len(_RATES), 1 / len(_RATES), np.float32) if prior is None else prior
  found = fedtally.log_likelihoods(tf.constant(r, tf.float32), y, table, _RATES)
  return fedtally.posterior(found, prior).numpy()


def _filtered(r, y, table, rate):
  """With one rate for all classes."""
  rates = np.full(len(table), rate, np.float32)
  return fedtally.filtered(tf.constant(r, tf.float32), y, tf.constant(table), rates)


class FilterTest(parameterized.TestCase):

  def test_a_model_that_knows_nothing_tells_nothing(self):
    y = np.arange(40, dtype=np.int32) % _K
    r = np.full((40, _K), 1 / _K)
    prior = fedtally.first_prior()
    np.testing.assert_allclose(_post(r, y, prior=prior), prior, atol=1e-5)
    np.testing.assert_allclose(_filtered(r, y, _table(), 0.3).clean, 0.7, atol=1e-6)
    np.testing.assert_array_equal(fedtally.certainty_bins(r), 0)

  def test_of_a_perfect_model_the_labels_it_denies_are_counted(self):
    draw = np.random.default_rng(0)
    truth = draw.integers(0, _K, 10)
    y = truth.astype(np.int32)
    y[:3] = (y[:3] + 1) % _K
    r = np.eye(_K)[truth]
    expected = (1 - _RATES) ** 7 * _RATES**3
    found = _post(r, y)
    np.testing.assert_allclose(found, expected / expected.sum(), atol=1e-4)
    self.assertAlmostEqual(_RATES[found.argmax()], 0.3, places=6)
    judged = _filtered(r, y, _table(), 0.3)
    targets = judged.clean[:, tf.newaxis] * tf.one_hot(y, _K) + judged.wrong
    np.testing.assert_allclose(targets, np.eye(_K)[truth], atol=1e-5)

  @parameterized.parameters((0.2, 0.5, 0.2), (0.5, 0.3, 0.7), (0.9, 0.5, 0.9))
  def test_two_classes_by_hand(self, of_label, rate, clean):
    # c = (1 - e) r(y) / ((1 - e) r(y) + e r(other)).
    judged = _filtered([[of_label, 1 - of_label]], np.array([0], np.int32), _table(2), rate)
    np.testing.assert_allclose(judged.clean, [clean], atol=1e-6)
    np.testing.assert_allclose(judged.wrong, [[0, 1 - clean]], atol=1e-6)

  def test_nobody_has_the_prior(self):
    prior = fedtally.first_prior()
    found = _post(np.zeros((0, _K)), np.zeros(0, np.int32), prior=prior)
    np.testing.assert_allclose(found, prior, atol=1e-5)

  @parameterized.parameters(False, True)
  def test_classes_have_no_order(self, by_class):
    draw = np.random.default_rng(1)
    new = draw.permutation(_K)  # Class k is called new[k].
    r = _softmax(2 * draw.normal(size=(30, _K))).astype(np.float32)
    y = draw.integers(0, _K, 30).astype(np.int32)
    table = (draw.random((_K, _K)) * (1 - np.eye(_K))).astype(np.float32)
    table /= table.sum(axis=1, keepdims=True)
    old = np.argsort(new)

    def judged(r, y, table):
      if by_class:
        return fedtally.filtered_by_class(tf.constant(r), y, tf.constant(table), tf.constant(0.3))
      return _filtered(r, y, table, 0.3)

    first = judged(r, y, table)
    second = judged(r[:, old], new[y].astype(np.int32), table[np.ix_(old, old)])
    np.testing.assert_allclose(second.clean, first.clean, atol=1e-5)
    np.testing.assert_allclose(np.array(second.wrong)[:, new], first.wrong, atol=1e-5)

  def test_examples_have_no_order(self):
    draw = np.random.default_rng(2)
    r = _softmax(draw.normal(size=(30, _K)))
    y = draw.integers(0, _K, 30).astype(np.int32)
    other = draw.permutation(30)
    np.testing.assert_allclose(_post(r[other], y[other]), _post(r, y), rtol=1e-3)

  def test_labels_of_pure_noise_give_way_to_the_model(self):
    draw = np.random.default_rng(3)
    r = _softmax(3 * draw.normal(size=(60, _K)))
    judged = _filtered(r, draw.integers(0, _K, 60).astype(np.int32), _table(), 0.95)
    self.assertLess(np.median(judged.clean), 0.1)

  def test_classes_have_rates_of_their_own(self):
    # Labels 0 are right, two in three of the labels 1 are not; the model is sure.
    truth = np.repeat([0, 0, 1], 20)
    y = np.repeat([0, 1, 1], 20).astype(np.int32)
    r = np.where(np.eye(2)[truth] > 0, 0.8, 0.2)
    rate = tf.constant(1 / 3, tf.float32)
    same = _filtered(r, y, _table(2), 1 / 3)
    own = fedtally.filtered_by_class(tf.constant(r, tf.float32), y, tf.constant(_table(2)), rate)
    self.assertGreater(own.clean[0], same.clean[0])
    self.assertLess(own.clean[20], same.clean[20])
    e = self._rates_in_numpy(r, y, 1 / 3)
    of_label = r[np.arange(60), y]
    expected = (1 - e[y]) * of_label / ((1 - e[y]) * of_label + e[y] * (1 - of_label))
    np.testing.assert_allclose(own.clean, expected, atol=1e-4)

  def _rates_in_numpy(self, r, y, rate):
    """Of two classes, whose table has nothing to learn."""
    e = np.full(2, rate)
    of_label = r[np.arange(len(y)), y]
    for _ in range(3):
      clean = (1 - e[y]) * of_label / ((1 - e[y]) * of_label + e[y] * (1 - of_label))
      wrong, counts = np.bincount(y, weights=1 - clean), np.bincount(y)
      e = (wrong + 10 * rate) / (counts + 10)
    return e

  def test_bins_of_certainty(self):
    # -20 log10(1 - p): 0.1 is 20 away, 1e-3 is 60; 1e-9 is beyond the last.
    p = np.array([0.5, 0.905, 0.9991, 1 - 1e-9])
    r = np.stack([p, 1 - p], axis=1)
    np.testing.assert_array_equal(fedtally.certainty_bins(r), [6, 20, 60, 99])


class ServerTest(parameterized.TestCase):

  def test_anchor(self):
    # Top down (10, 9), (90, 51), (900, 400); a twentieth of 1,000 needs the first two.
    sure, agreed = np.array([900.0, 90, 10]), np.array([400.0, 51, 9])
    self.assertAlmostEqual(fedtally.anchor(sure, agreed, 0.05), 0.4)
    self.assertAlmostEqual(fedtally.anchor(sure, agreed, 0.01), 0.1)
    self.assertAlmostEqual(fedtally.anchor(sure, agreed, 1.0), 0.54)
    self.assertEqual(fedtally.anchor(np.zeros(3), np.zeros(3), 0.05), 1)

  def test_sharpness(self):
    self.assertAlmostEqual(fedtally.next_sharpness(1.0, 0.4, 0.1, 4.0), 1.0942, places=4)
    self.assertEqual(fedtally.next_sharpness(1.0, 0.1, 0.4, 4.0), 1)
    self.assertEqual(fedtally.next_sharpness(3.9, 1.0, 0.0, 4.0), 4)

  def test_q_follows_what_noise_rates_do_not_explain(self):
    self.assertAlmostEqual(fedtally.next_loss_q(0.4, 0.1, least=0.1, most=0.7), 0.45)
    self.assertEqual(fedtally.next_loss_q(0.8, 0.1, least=0.1, most=0.7), 0.7)
    self.assertEqual(fedtally.next_loss_q(0.4, 0.5, least=0.1, most=0.7), 0.1)

  def test_model_is_compared_with_labels_by_what_both_say(self):
    # Right in T of all examples, beside labels of which .4 are wrong, it agrees with them in
    # .6 T + (1 - T) .4 / 9.
    def judged(right, noise):
      agree = (1 - noise) * right + (1 - right) * noise / 9
      return fedtally.is_better_than_labels(
          np.array([1000.0]), np.array([1000 * agree]), noise, 10
      )

    # Where .1 are wrong, nine in ten have to be right; elsewhere four in five, or else the surest
    # predictions, which tell of the noise, may be wrong too.
    for right, noise, better in (
        (0.89, 0.1, False), (0.91, 0.1, True), (0.79, 0.4, False), (0.81, 0.4, True),
        (0.9, 0.74, True), (0.9, 0.76, False),
    ):
      self.assertEqual(judged(right, noise), better, (right, noise))
    self.assertFalse(fedtally.is_better_than_labels(np.zeros(2), np.zeros(2), 0.4, 10))
    # Labels at random say nothing of anybody.
    self.assertFalse(fedtally.is_better_than_labels(np.ones(1), np.ones(1), 0.9, 10))

  def test_table_follows_corrections_and_forgets_nothing_at_once(self):
    corrections = np.zeros((3, 3))
    np.testing.assert_allclose(fedtally.next_table(corrections), _table(3))
    corrections[0] = 0, 10, 0
    # (10 + 5 / 2) / 15.
    np.testing.assert_allclose(fedtally.next_table(corrections)[0], [0, 12.5 / 15, 2.5 / 15])
    np.testing.assert_allclose(fedtally.next_table(corrections)[1], [0.5, 0, 0.5])
    # Secure sums round.
    np.testing.assert_array_equal(fedtally.next_table(np.full((2, 2), -1e-9)), _table(2))

  def test_prior_and_mean_rate(self):
    posteriors = np.zeros(len(_RATES))
    posteriors[[0, 11]] = 3, 1  # Rates 0 and .5.
    self.assertAlmostEqual(_RATES[11], 0.5)
    self.assertAlmostEqual(fedtally.mean_rate(posteriors), 0.125)
    prior = fedtally.next_prior(posteriors)
    self.assertAlmostEqual(prior.sum(), 1, places=6)
    self.assertAlmostEqual(prior[0], (0.75 + 0.02 / 21) / 1.02, places=6)


def _task(federation, base='', rounds=3, **changes):
  # One batch an epoch: the order of examples is nothing to care for.
  return method_runs.task(federation, base, **{
      'rounds': rounds, 'training': types.LocalTraining(2, 100, 0.5), **changes,
  })


class _NumPy:
  """FedTally of the linear model of two classes, everybody in each round."""

  def __init__(self, federation, params, training, warm_up, rounds):
    self.clients, self.params, self.training = federation.clients, params, training
    self.warm_up, self.rounds, self.t = warm_up, rounds, 0
    # The network's weights, and kernel and bias of the head that judges where there are two.
    self.w = self.mean = [np.zeros((2, 2)), np.zeros((2, 2)), np.zeros(2)]
    self.prior, self.table, self.gamma = fedtally.first_prior(), _table(2), 1.0
    self.posteriors, self.corrections = 20.0 * self.prior, np.zeros((2, 2))
    self.counts = np.zeros((2, 100))
    self.loss_q = params.loss_q
    self.targets = [np.zeros((len(c.y), 2)) for c in self.clients]

  def judge(self, x, y):
    w, kernel, bias = self.mean if self.params.average else self.w
    z = x @ kernel + bias if self.params.loss_q else x @ w
    p, r = _softmax(z), _softmax(self.gamma * z)
    of_label, of_other = r[np.arange(len(y)), y], (self.table[y] * r).sum(axis=1)
    likelihoods = (1 - _RATES) * of_label[:, None] + _RATES * of_other[:, None]
    post = self.prior * np.prod(likelihoods, axis=0)
    post /= post.sum()
    eta = post @ _RATES
    clean, wrong = self.filtered(r, y, self.table, np.full(2, eta))
    if self.params.noise_by_class:
      clean, wrong = self.by_class(r, y, eta)
    bins = np.minimum((-20 * np.log10(1 - p.max(axis=1))).astype(int), 99)
    return post, eta, clean, wrong, bins, p.argmax(axis=1) == y

  def filtered(self, r, y, table, rates):
    right, others = (1 - rates[y]) * r[np.arange(len(y)), y], (table[y] * r).sum(axis=1)
    clean = right / (right + rates[y] * others)
    return clean, (1 - clean)[:, None] * table[y] * r / others[:, None]

  def by_class(self, r, y, eta):
    rates, table, mean_row = np.full(2, eta), self.table, self.table.mean(axis=0)
    given = np.eye(2)[y]
    for _ in range(3):
      clean, wrong = self.filtered(r, y, table, rates)
      rates = (given.T @ (1 - clean) + 10 * eta) / (given.sum(axis=0) + 10)
      rho = (wrong.sum(axis=0) + 10 * mean_row) / ((1 - clean).sum() + 10)
      table = self.table * rho / mean_row
      table = table / table.sum(axis=1, keepdims=True)
    return self.filtered(r, y, table, rates)

  def held_out(self, i, y):
    """None where all are counted, and trained on."""
    if not self.params.held_out:
      return None
    seed = seeds.fold(rng.tf_seed(method_runs.SEED, 'fedtally: held out'), i)
    return tf.random.stateless_uniform([len(y)], seed).numpy() < self.params.held_out

  def train(self, i, x, q, held):
    w, kernel, bias = (array.copy() for array in self.w)
    adjustment = np.log(2 * (q.sum(axis=0) + 1) / (len(x) + 2))
    visited = np.ones(len(x), bool) if held is None else ~held
    x, q = x[visited], q[visited]
    step = self.training.learning_rate / len(x)
    for _ in range(self.training.epochs):
      p = _softmax(x @ w + adjustment)
      # Of sum_k q_k (1 - p_k^b) / b, which is cross-entropy for b = 0.
      pull = q * p**self.loss_q
      error = _softmax(x @ kernel + bias + adjustment) - q
      early = self.early_learning(i, visited, p)
      w -= step * x.T @ (p * pull.sum(axis=1, keepdims=True) - pull + early)
      kernel -= step * x.T @ error
      bias -= step * error.sum(axis=0)
    return w, kernel, bias

  def early_learning(self, i, visited, p):
    """The gradient of lambda sum_i log(1 - <p_i, t_i>) by the logits, once the targets moved."""
    beta, weight = self.params.elr_beta, self.params.elr_weight
    if not weight:
      return 0
    t = self.targets[i][visited] = beta * self.targets[i][visited] + (1 - beta) * p
    agreement = (p * t).sum(axis=1, keepdims=True)
    return -weight * p * (t - agreement) / (1 - agreement)

  def round(self):
    self.t += 1
    filters = self.t > self.warm_up
    models, weights = [], []
    posteriors, corrections, counts = 0, 0, 0
    for i, (x, y, _) in enumerate(self.clients):
      held = self.held_out(i, y)
      post, eta, clean, wrong, bins, agrees = self.judge(x, y)
      given = np.eye(2)[y]
      q = clean[:, None] * given + wrong if filters else given
      models.append(self.train(i, x, q, held))
      weights.append(len(y) * (max(1 - eta, 0.02) if filters else 1))
      posteriors = posteriors + post
      corrections = corrections + given.T @ wrong
      counted = np.ones(len(y), bool) if held is None else held
      counts = counts + np.stack([
          np.bincount(bins[c], minlength=100) for c in (counted, counted & agrees)
      ])
    old = self.w
    shares = np.array(weights) / sum(weights)
    self.w = [np.tensordot(shares, arrays, 1) for arrays in zip(*models, strict=True)]
    b = min(self.params.average, self.t / (self.t + 4))
    means = old if self.t == 1 else self.mean
    self.mean = [b * m + (1 - b) * w for m, w in zip(means, self.w, strict=True)]
    self.count(posteriors, corrections, counts)

  def count(self, posteriors, corrections, counts):
    self.posteriors = 0.9 * self.posteriors + posteriors
    self.corrections = 0.9 * self.corrections + corrections
    self.counts = 0.9 * self.counts + counts
    rows = self.corrections * (1 - np.eye(2)) + 5 * _table(2)
    self.table = rows / rows.sum(axis=1, keepdims=True)
    shares = self.posteriors / self.posteriors.sum()
    if self.params.learned_prior:
      self.prior = (shares + 0.02 / 21) / 1.02
    sure, agreed = self.counts[:, ::-1].cumsum(axis=1)
    last = np.searchsorted(sure, self.params.top_share * sure[-1])
    noise = 1 - agreed[last] / sure[last]
    if self.params.least_q < self.params.loss_q:
      self.loss_q = min(
          max(1.5 * (noise - shares @ _RATES), self.params.least_q), self.params.loss_q
      )
    if self.params.max_sharpness > 1 and self.t > 0.2 * self.rounds:
      agree = agreed[-1] / sure[-1]
      if noise < 0.5 and (agree - noise) / (1 - 2 * noise) >= max(1 - noise, 0.8):
        self.gamma *= np.exp(0.3 * (noise - shares @ _RATES))
        self.gamma = min(max(self.gamma, 1), self.params.max_sharpness)


def _noisy(sizes=(30, 20, 40), noise=(0.0, 0.1, 0.4)):
  """Two corners, and clients with different shares of wrong labels."""
  draw = np.random.default_rng(5)
  clients = []
  for n, share in zip(sizes, noise, strict=True):
    truth = draw.integers(0, 2, n)
    x = (np.eye(2)[truth] + draw.normal(0, 0.3, (n, 2))).astype(np.float32)
    y = np.where(np.arange(n) < share * n, 1 - truth, truth).astype(np.int32)
    clients.append(types.ClientExamples(x, y, np.arange(n)))
  return types.Federation(tuple(clients), 2, 3)


class RunTest(federated_test_case.FederatedTestCase):

  @parameterized.named_parameters(
      ('simple', {}),
      ('learned_prior', {'learned_prior': True}),
      ('noise_by_class', {'noise_by_class': True}),
      ('average', {'average': 0.5}),
      ('early_learning', {'elr_weight': 2.0, 'elr_beta': 0.6}),
      ('early_learning_averaged', {'elr_weight': 2.0, 'average': 0.5, 'held_out': 0.25}),
      ('held_out', {'held_out': 0.25}),
      ('two_heads', {'loss_q': 0.7}),
      ('loss_follows_anchor', {'loss_q': 0.7, 'least_q': 0.1}),
      ('two_heads_averaged', {'loss_q': 0.7, 'average': 0.5, 'held_out': 0.25}),
      ('sharpness', {'max_sharpness': 4.0, 'top_share': 0.5, 'held_out': 0.25}),
  )
  def test_whole_run_equals_numpy(self, params):
    federation = _noisy()
    task = _task(federation, rounds=8, clients_per_round=3)
    params['warm_up_share'] = 0.25
    expected = _NumPy(federation, parameters.FedTallyParams(**params), task.training, 2, 8)
    for _ in range(8):
      expected.round()
    state, _ = method_runs.run('fedtally', federation, task, **params)
    self._assert_weights(state.weights, expected.w, params)
    np.testing.assert_allclose(state.records[fedtally.POSTERIORS], expected.posteriors, atol=1e-3)
    np.testing.assert_allclose(state.records[fedtally.CORRECTIONS], expected.corrections, rtol=1e-4)
    np.testing.assert_array_equal(
        np.round(state.records[fedtally.SURE], 3), np.round(expected.counts[0], 3)
    )
    np.testing.assert_allclose(state.received[fedtally.TABLE], expected.table, atol=1e-4)
    np.testing.assert_allclose(state.received[fedtally.PRIOR], expected.prior, atol=1e-4)
    self.assertAlmostEqual(float(state.received[fedtally.SHARPNESS]), expected.gamma, places=4)
    if 'max_sharpness' in params:
      self.assertGreater(expected.gamma, 1)
    if 'least_q' in params:
      self.assertAlmostEqual(float(state.received[fedtally.LOSS_Q]), expected.loss_q, places=4)
      self.assertBetween(expected.loss_q, 0.11, 0.69)
    evaluated = method_runs.build('fedtally', task, **params).evaluated(state, [])
    found = expected.mean if 'average' in params else expected.w
    self._assert_weights(evaluated[0].weights, found, params)
    model = evaluated[0].model or task.model
    self.assertLen(model.weights_type.trainable, len(evaluated[0].weights.trainable))

  def _assert_weights(self, weights, expected, params):
    expected = expected if 'loss_q' in params else expected[:1]
    self.assertLen(weights.trainable, len(expected))
    for found, array in zip(weights.trainable, expected, strict=True):
      np.testing.assert_allclose(found, array, atol=2e-5)

  @parameterized.parameters('', 'scaffold')
  def test_before_it_filters_clients_with_equal_classes_do_as_without_it(self, base):
    # Then pi is uniform, and nothing is adjusted.
    draw = np.random.default_rng(0)
    clients = tuple(
        types.ClientExamples(
            draw.normal(size=(n, 2)).astype(np.float32), np.arange(n, dtype=np.int32) % 2,
            np.arange(n),
        )
        for n in (4, 8, 6)
    )
    federation = types.Federation(clients, 2, 3)
    task = _task(federation, base)
    weights, _ = method_runs.trained('fedtally', federation, task, warm_up_share=0.99)
    alone, _ = method_runs.trained(base or 'fedavg', federation, task)
    np.testing.assert_allclose(weights, alone, atol=1e-6)

  def test_before_it_filters_its_network_is_that_of_gce(self):
    federation = _noisy()
    training = types.LocalTraining(2, 10, 0.2)
    state, _ = method_runs.run(
        'fedtally', federation, _task(federation, training=training), warm_up_share=0.99, loss_q=0.7
    )
    task = _task(federation, training=training._replace(logit_adjustment=1.0))
    alone, _ = method_runs.run('gce', federation, task, q=0.7)
    np.testing.assert_allclose(
        state.weights.trainable[0], alone.weights.trainable[0], atol=1e-6
    )
    self.assertGreater(np.abs(state.weights.trainable[1]).max(), 0.1)

  def test_a_client_of_which_nothing_is_left_tells_nothing(self):
    federation = _noisy((1,) * 8, (0.0,) * 8)
    task = _task(federation, rounds=1, clients_per_round=8)
    state, _ = method_runs.run('fedtally', federation, task, held_out=0.9)
    self.assertEqual(state.records[fedtally.SURE].sum(), 0)
    self.assertTrue(state.weights.trainable[0].any())

  def test_the_mean_is_of_a_global_model(self):
    task = _task(_noisy(), 'fedbn', model=toy.linear_model('batch'))
    with self.assertRaisesRegex(types.UsageError, '^--param=average is of the global model'):
      method_runs.build('fedtally', task, average=0.5)

  def test_secure_sums_come_to_the_same(self):
    federation = _noisy()
    task = _task(federation, rounds=8)
    plain, _ = method_runs.run('fedtally', federation, task)
    secure = aggregation.secure_weighted_mean(update_bound=10.0, max_examples=40)
    summed, _ = method_runs.run('fedtally', federation, task._replace(aggregation=secure))
    np.testing.assert_allclose(summed.weights.trainable[0], plain.weights.trainable[0], atol=1e-4)
    for name in _SUMS:
      np.testing.assert_allclose(summed.records[name], plain.records[name], atol=1e-3)

  def test_it_finds_how_much_noise_there_is(self):
    federation = _noisy((80, 80, 80, 80), (0.0, 0.0, 0.4, 0.4))
    task = _task(
        federation, rounds=40, clients_per_round=4,
        training=types.LocalTraining(5, 20, 0.5),
    )
    state, _ = method_runs.run('fedtally', federation, task)
    algorithm = method_runs.build('fedtally', task)
    found = algorithm.report.summary(state.records)['fedtally']
    self.assertAlmostEqual(found['mean_rate'], 0.2, delta=0.06)
    np.testing.assert_allclose(sum(found['clients_by_rate']), 1, atol=1e-6)
    columns = algorithm.report.columns(state)
    self.assertAlmostEqual(columns['mean_noise_rate'], found['mean_rate'], places=6)

  def test_known_flips_are_no_reason_for_a_bounded_loss(self):
    federation, keep = _noisy(), 0.9
    training = types.LocalTraining(2, 100, 0.5, loss=types.CrossEntropy(keep_probability=keep))
    task = _task(federation, rounds=6, training=training, clients_per_round=3)
    state, _ = method_runs.run('fedtally', federation, task, loss_q=0.7, least_q=0.01)
    noise = fedtally.anchor(state.records[fedtally.SURE], state.records[fedtally.AGREED], 0.2)
    rate = fedtally.mean_rate(state.records[fedtally.POSTERIORS])
    # Of two classes a wrong label is flipped back where it is not kept.
    expected = 1.5 * (noise - (1 - (1 - rate) * keep - rate * (1 - keep)))
    self.assertAlmostEqual(
        float(state.received[fedtally.LOSS_Q]), np.clip(expected, 0.01, 0.7), places=5
    )

  def test_odd_clients_train(self):
    federation = toy.two_corners([0, 1, 4])
    state, _ = method_runs.run('fedtally', federation, _task(federation, clients_per_round=3))
    self.assertTrue(np.isfinite(state.weights.trainable[0]).all())
    np.testing.assert_allclose(state.records[fedtally.SURE].sum(), 5 * (1 + 0.9 + 0.81))

  def test_an_update_that_is_not_finite_is_not_tallied(self):
    federation = _noisy((10, 10), (0.0, 0.0))
    x = federation.clients[0].x.copy()
    x[0, 0] = np.inf
    broken = (federation.clients[0]._replace(x=x), federation.clients[1])
    federation = federation._replace(clients=broken)
    state, clients = method_runs.run('fedtally', federation, _task(federation, rounds=1))
    self.assertEqual(clients.traffic.rejected, 1)
    self.assertEqual(state.records[fedtally.SURE].sum(), 10)
    self._assert_finite(state)

  @parameterized.parameters(0.0, 0.5)
  def test_a_client_whose_logits_overflow_is_judged_by_its_other_examples(self, held_out):
    federation = _noisy((10, 10), (0.0, 0.0))
    x = federation.clients[0].x.copy()
    x[0] = 3e38
    broken = (federation.clients[0]._replace(x=x), federation.clients[1])
    state, _ = method_runs.run(
        'fedtally', federation._replace(clients=broken), _task(federation, rounds=4),
        warm_up_share=0.25, held_out=held_out,
    )
    self._assert_finite(state)

  def _assert_finite(self, state):
    for values in tf.nest.flatten([state.weights.trainable, dict(state.records)]):
      self.assertTrue(np.all(np.isfinite(values)))


class LossTest(parameterized.TestCase):
  """Of one example of two classes, whose logits say p = (.8, .2)."""

  _P = np.array([0.8, 0.2])

  def _loss(
      self, form, q, *, round_num=1, warm_up=0, adjustment=(0.0, 0.0), mixup=None, loss_q=0.0
  ):
    columns = {
        'targets': tf.constant(q, tf.float32),
        'adjustment': tf.fill([len(q), 1], 1.0) * tf.constant(adjustment, tf.float32),
    }
    params = parameters.FedTallyParams(mixup_alpha=1.0 if mixup else 0.0, loss_q=loss_q)
    if mixup:
      columns.update(others=tf.constant(mixup[0]), share=tf.constant(mixup[1]))
    step = python_types.SimpleNamespace(
        columns=columns, logits=tf.repeat(tf.math.log([self._P]), len(q), axis=0),
        client=python_types.SimpleNamespace(round_num=round_num),
    )
    task = _task(_noisy(), training=types.LocalTraining(1, 10, 0.1, loss=form))
    step.logits = tf.cast(step.logits, tf.float32)
    if loss_q:
      step.logits = [step.logits, step.logits]
    return float(fedtally.client(task, params, warm_up).loss(step))

  def test_soft_targets(self):
    expected = -(0.7 * np.log(0.8) + 0.3 * np.log(0.2))
    self.assertAlmostEqual(self._loss(types.CrossEntropy(), [[0.7, 0.3]]), expected, places=5)

  def test_adjusted_logits(self):
    # log p + log(K pi): (.8 x 1.5, .2 x .5) is (12, 1) / 13.
    found = self._loss(types.CrossEntropy(), [[1, 0]], adjustment=np.log([1.5, 0.5]))
    self.assertAlmostEqual(found, -np.log(12 / 13), places=5)

  def test_temperature_is_of_the_network_and_not_of_the_adjustment(self):
    # softmax(z / 2 + log(K pi)): (sqrt(.8) x 1.5, sqrt(.2) x .5).
    form = types.CrossEntropy(temperature=2.0)
    found = self._loss(form, [[1, 0]], adjustment=np.log([1.5, 0.5]))
    self.assertAlmostEqual(found, -np.log(6 / 7), places=5)

  def test_mixup_mixes_targets(self):
    # q of the first is .75 (1, 0) + .25 (0, 1), of the second the reverse.
    found = self._loss(types.CrossEntropy(), [[1, 0], [0, 1]], mixup=([1, 0], 0.75))
    self.assertAlmostEqual(found, -np.log(0.8) / 2 - np.log(0.2) / 2, places=5)
    found = self._loss(types.CrossEntropy(), [[1, 0], [1, 0]], mixup=([1, 0], 0.75))
    self.assertAlmostEqual(found, -np.log(0.8), places=5)

  def test_two_heads_by_hand(self):
    # Of the network 1 - p, of the other head, here the same, cross-entropy; flipped labels are .65
    # and .35 likely.
    kept = types.CrossEntropy()
    found = self._loss(kept, [[0.7, 0.3]], loss_q=1.0)
    proper = -(0.7 * np.log(0.8) + 0.3 * np.log(0.2))
    self.assertAlmostEqual(found, 0.7 * 0.2 + 0.3 * 0.8 + proper, places=5)
    flipped = types.CrossEntropy(keep_probability=0.75)
    warm = self._loss(flipped, [[1, 0]], round_num=2, warm_up=2, loss_q=1.0)
    self.assertAlmostEqual(warm, 0.35 - np.log(0.65), places=5)
    later = self._loss(flipped, [[1, 0]], round_num=3, warm_up=2, loss_q=1.0)
    self.assertAlmostEqual(later, 0.2 - np.log(0.8), places=5)

  def test_reports_are_corrected_for_their_flips_until_the_filter_takes_them_out(self):
    form = types.CrossEntropy(keep_probability=0.75)
    # P(report 0) = .75 x .8 + .25 x .2.
    warm = self._loss(form, [[1, 0]], round_num=2, warm_up=2)
    self.assertAlmostEqual(warm, -np.log(0.65), places=5)
    self.assertAlmostEqual(
        self._loss(form, [[1, 0]], round_num=3, warm_up=2), -np.log(0.8), places=5
    )


class DeclaredTest(federated_test_case.FederatedTestCase):

  def test_sends_sums_alone(self):
    task = _task(_noisy())
    fields = set(method_runs.build('fedtally', task).fields)
    more = fields - set(method_runs.build('fedavg', task).fields)
    self.assertEqual({f.name for f in more}, set(_SUMS))
    self.assertEqual({f.disclosure for f in more}, {uplink.Disclosure.SUM})
    self.assertEqual(sum(f.num_bytes for f in more), 4 * (21 + 2 * 2 + 2 * 100))

  def test_with_client_dp_nothing_but_the_update_leaves(self):
    task = _task(_noisy())
    task = task._replace(aggregation=task.aggregation._replace(scalar=None))
    for params in ({'learned_prior': True}, {'loss_q': 0.7, 'least_q': 0.4}):
      with self.assertRaisesRegex(types.UsageError, 'learned_prior, max_sharpness and least_q'):
        method_runs.build('fedtally', task, **params)
    with self.assertRaisesRegex(types.UsageError, 'give --average_models=B'):
      method_runs.build('fedtally', task, average=0.8)
    self.assertEmpty(fedtally.client(task, parameters.FedTallyParams(), 0, tallies=False).sums)

  def test_targets_are_kept_where_nothing_is_tallied(self):
    x = np.eye(2, dtype=np.float32)[np.arange(4) % 2]
    y = (np.arange(4) % 2).astype(np.int32)
    training = types.LocalTraining(1, 4, 0.1)
    task = _task(method_runs.one_client(x, y), training=training)
    client = fedtally.client(
        task, parameters.FedTallyParams(elr_weight=2.0, elr_beta=0.6), warm_up=1, tallies=False
    )
    output = one_client.run(
        toy.client(0, x, y), weights=np.zeros((2, 2)), training=training._asdict(),
        received=client.receives, **client._asdict(),
    )
    # (1 - beta) p, p = (.5, .5).
    np.testing.assert_allclose(output.local.own[elr.TARGETS], np.full((4, 2), 0.2), atol=1e-6)

  @parameterized.parameters(1.0, 0.75)
  def test_known_flips_are_part_of_every_rate(self, keep):
    # A model that is sure, and denies 4 of 10 labels.
    x = np.eye(2, dtype=np.float32)[np.arange(10) % 2]
    y = np.where(np.arange(10) < 4, 1 - np.arange(10) % 2, np.arange(10) % 2).astype(np.int32)
    form = types.CrossEntropy(keep_probability=keep)
    training = types.LocalTraining(1, 10, 0.1, loss=form)
    task = _task(method_runs.one_client(x, y), training=training)
    client = fedtally.client(task, parameters.FedTallyParams(), warm_up=0)
    output = one_client.run(
        toy.client(0, x, y), weights=50 * np.eye(2), training=training._asdict(),
        received=client.receives, **client._asdict(),
    )
    wrong = 1 - (1 - _RATES) * keep - _RATES * (1 - keep)
    expected = fedtally.first_prior() * (1 - wrong) ** 6 * wrong**4
    expected /= expected.sum()
    np.testing.assert_allclose(output.sums[fedtally.POSTERIORS], expected, atol=1e-4)
    self.assertAlmostEqual(output.weight, 10 * (1 - expected @ _RATES), places=3)

  def test_a_wrong_label_may_be_reported_right(self):
    # a = .6, b = .2: of labels half of which are wrong .3 + .1 of the reports are right.
    np.testing.assert_allclose(
        fedtally.rates_of_reports(np.array([0, 0.5, 1]), 0.6, 3), [0.4, 0.6, 0.8]
    )
    np.testing.assert_allclose(fedtally.rates_of_reports(_RATES, 1.0, 3), _RATES, atol=1e-7)

  def test_warm_up_is_a_share_of_the_rounds(self):
    task = _task(_noisy(), rounds=40)
    self.assertEqual(fedtally.warm_up_rounds(task, parameters.FedTallyParams()), 6)

  @parameterized.parameters(
      {'warm_up_share': 1.0}, {'average': 1.0}, {'max_sharpness': 0.5}, {'max_sharpness': 2.0},
      {'top_share': 0.0}, {'top_share': 1.5}, {'mixup_alpha': -1.0}, {'held_out': 1.0},
      {'loss_q': 1.5}, {'loss_q': -0.5}, {'mixup_alpha': 0.01}, {'least_q': -0.5},
      {'least_q': 1.5}, {'least_q': 0.4, 'loss_q': 0.4}, {'elr_weight': -1.0},
      {'elr_weight': 1.0, 'loss_q': 0.4}, {'elr_weight': 1.0, 'mixup_alpha': 0.4},
      {'elr_beta': 1.0, 'elr_weight': 1.0},
  )
  def test_parameters_are_checked(self, **wrong):
    with self.assertRaisesRegex(ValueError, next(iter(wrong))):
      parameters.FedTallyParams(**wrong)


if __name__ == '__main__':
  absltest.main()
