"""FedDiv: filter, selection and bias by hand, whole runs in NumPy, and what sums come to."""

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized
from sklearn import mixture

from tests import federated_test_case
from tests import toy
from tests.algorithms import method_runs
from tests.program import runs
from tff_noise import params as params_lib
from tff_noise import rng
from tff_noise import types
from tff_noise.algorithms import catalog
from tff_noise.algorithms import feddiv
from tff_noise.algorithms import parameters
from tff_noise.clients import seeds
from tff_noise.federated import aggregation
from tff_noise.federated import task as task_lib
from tff_noise.program import training
from tff_noise.uplink import uplink

# Asks both models from the first round on, relabels where it may, mixes nothing.
_EAGER = {
    'sampler_from': 0, 'relabel_above': 0.1, 'confidence': 0.7, 'bias_confidence': 0.5,
    'mixup_alpha': 0.0,
}
_LABELS = np.array([0, 0, 1, 1, 0], np.int32)
# Losses of these labels are small but for the last two; of the fourth one nobody is sure.
_LOGITS = np.array([[4, 0], [3, 0], [0, 4], [0.6, 0], [0, 5]], np.float32)


def _softmax(z):
  p = np.exp(z - z.max(axis=1, keepdims=True))
  return p / p.sum(axis=1, keepdims=True)


def _task(federation, base='', warm_up=0, train=3, **changes):
  return method_runs.task(
      federation, base, stages={'warm_up': warm_up, 'train': train}, rounds=warm_up + train,
      **changes,
  )


def _losses(z, y):
  """As the public code has them: scaled to [0, 1], of the softmax of the softmax."""
  each = -np.log(_softmax(_softmax(z))[np.arange(len(y)), y])
  return (each - each.min()) / (each.max() - each.min())


def _mixture(w, steps=1):
  mu, sigma, pi = w
  # A filter of float32 sums to one but for 6e-8, and scikit-learn asks for 1e-8.
  return mixture.GaussianMixture(
      2, max_iter=steps, tol=0, means_init=mu[:, np.newaxis], weights_init=pi / pi.sum(),
      precisions_init=1 / sigma[:, np.newaxis, np.newaxis], warm_start=True,
  )


def _fit(x, w, steps):
  """W_k by scikit-learn, one step after another as in the public code."""
  fitted = _mixture(w)
  for _ in range(steps):
    fitted.fit(x[:, np.newaxis])
  order = fitted.means_[:, 0].argsort()
  return np.stack([
      fitted.means_[order, 0], fitted.covariances_[order, 0, 0], fitted.weights_[order]
  ])


def _posterior(x, w):
  """Of the lower component."""
  mu, sigma, pi = w
  densities = pi / np.sqrt(sigma) * np.exp(-((x[:, np.newaxis] - mu) ** 2) / (2 * sigma))
  return densities[:, 0] / densities.sum(axis=1)


class FilterTest(parameterized.TestCase):

  def test_losses_of_a_double_softmax(self):
    x = feddiv.filter_losses(_LOGITS, _LABELS, 'double_softmax').numpy()
    np.testing.assert_allclose(x, _losses(_LOGITS, _LABELS), atol=1e-6)
    self.assertEqual((x.min(), x.max()), (0, 1))
    single = feddiv.filter_losses(_LOGITS, _LABELS, 'single').numpy()
    each = -np.log(_softmax(_LOGITS)[np.arange(5), _LABELS])
    expected = (each - each.min()) / (each.max() - each.min())
    np.testing.assert_allclose(single, expected, atol=1e-6)
    self.assertLess(single[3], x[3])

  @parameterized.parameters(1, 3, 20)
  def test_local_filter_is_scikit_learns_from_the_global_one(self, steps):
    draw = np.random.default_rng(0)
    x = np.clip(np.concatenate([draw.normal(0.1, 0.05, 40), draw.normal(0.7, 0.1, 25)]), 0, 1)
    x = x.astype(np.float32)
    w = np.array([[0.2, 0.6], [0.02, 0.05], [0.375, 0.625]])
    found = feddiv.local_filter(x, w.astype(np.float32), steps)
    expected = _fit(x.astype(np.float64), w, steps)
    np.testing.assert_allclose(found, expected, rtol=1e-5)

  def test_mean_of_two_clients(self):
    # mu, sigma, pi of clients with 100 and 300 examples.
    first = np.array([[0.1, 0.8], [0.05, 0.1], [0.7, 0.3]])
    second = np.array([[0.2, 0.6], [0.1, 0.2], [0.5, 0.5]])
    totals = np.append((100 * first + 300 * second).ravel(), 400)
    found = feddiv.next_filter(totals, 'paper')
    np.testing.assert_allclose(found, [[0.175, 0.65], [0.0875, 0.175], [0.55, 0.45]], atol=1e-6)
    self.assertEqual(found.dtype, np.float32)
    # Variances of a mean, in the code: (1/4)^2 .05 + (3/4)^2 .1.
    totals[2:4] = 100**2 * first[1] + 300**2 * second[1]
    found = feddiv.next_filter(totals, 'code')
    np.testing.assert_allclose(found, [[0.175, 0.65], [0.059375, 0.11875], [0.55, 0.45]], atol=1e-6)

  def test_filter_of_nobody_is_the_first(self):
    np.testing.assert_array_equal(feddiv.next_filter(np.zeros(7), 'code'), feddiv.FIRST_FILTER)

  def test_filter_of_rounded_sums_stays_one(self):
    found = feddiv.next_filter(np.array([0.1, 0.9, -1e-7, 0.1, 1 + 1e-4, -1e-4, 1]), 'paper')
    self.assertGreater(found[1].min(), 0)
    np.testing.assert_allclose(found[2], [1, 0])

  def test_first_filter_parts_the_losses_in_the_middle(self):
    x = tf.constant([0.0, 0.49, 0.51, 1.0])
    clean = feddiv.gaussian_mixture.smaller_posterior(x, feddiv.mixture_of(feddiv.FIRST_FILTER))
    np.testing.assert_array_equal(clean.numpy() > 0.5, [True, True, False, False])


class SelectionTest(parameterized.TestCase):

  def _select(self, debiased=(0, 0, 1, 0, 1), visits=9, **params):
    p = parameters.FedDivParams(**params)
    return feddiv.select(
        _LOGITS, _LABELS, feddiv.FIRST_FILTER, tf.constant(debiased), tf.constant(visits), p
    )

  def test_confident_examples_are_relabelled(self):
    found = self._select()
    np.testing.assert_allclose(found.noise, 0.4, atol=1e-6)
    np.testing.assert_array_equal(found.labels, [0, 0, 1, 1, 1])
    np.testing.assert_array_equal(found.chosen, [True, True, True, False, True])

  @parameterized.named_parameters(
      ('confidence', {'confidence': 1.0}, [1, 1, 1, 0, 0], 0),
      ('any_confidence', {'confidence': 0.5}, [1, 1, 1, 1, 1], 2),
      ('less_noise_than_asked_for', {'relabel_above': 0.41}, [1, 1, 1, 0, 0], 0),
      ('clean_client', {'clean_below': 0.41}, [1, 1, 1, 1, 1], 0),
      ('before_its_round', {'visits': 4}, [1, 1, 1, 0, 0], 0),
      ('in_its_round', {'visits': 5}, [1, 1, 1, 0, 1], 1),
      ('models_disagree', {'debiased': (0, 1, 1, 0, 0)}, [1, 0, 1, 0, 0], 0),
      ('which_matters_late', {'debiased': (0, 1, 1, 0, 0), 'visits': 4}, [1, 1, 1, 0, 0], 0),
      ('nothing_to_disagree_with', {'debiased': (1, 1, 0, 1, 0), 'visits': 0, 'sampler_from': 0},
       [1, 1, 1, 0, 1], 1),
      ('none_left', {'debiased': (1, 1, 0, 1, 0)}, [0, 0, 0, 0, 0], 0),
  )
  def test_chosen(self, changes, chosen, relabelled):
    found = self._select(**changes)
    np.testing.assert_array_equal(found.chosen.numpy().astype(int), chosen)
    changed = (found.labels.numpy() != _LABELS) & found.chosen.numpy()
    self.assertEqual(changed.sum(), relabelled)

  def test_equal_losses_are_clean(self):
    found = feddiv.select(
        np.zeros((3, 2), np.float32), np.array([0, 1, 1], np.int32), feddiv.FIRST_FILTER,
        tf.constant([0, 0, 0]), tf.constant(0), parameters.FedDivParams(),
    )
    self.assertTrue(found.chosen.numpy().all())
    self.assertEqual(found.noise.numpy(), 0)

  def test_debiased_logits_by_hand(self):
    found = feddiv.debiased(np.log([[2.0, 3.0]]).astype(np.float32), tf.constant([0.04, 0.96]), 0.5)
    np.testing.assert_allclose(np.exp(found), [[2 / 0.2, 3 / 0.96**0.5]], rtol=1e-5)
    # At strength 0, and at a class that is never predicted.
    np.testing.assert_array_equal(feddiv.debiased(_LOGITS, tf.constant([0.9, 0.1]), 0.0), _LOGITS)
    self.assertTrue(np.isfinite(feddiv.debiased(_LOGITS, tf.constant([1.0, 0.0]), 0.5)).all())

  def test_bias_moves_by_certain_predictions(self):
    bias = tf.constant([0.5, 0.5])
    p = _softmax(_LOGITS)
    found = feddiv.next_bias(_LOGITS, bias, parameters.FedDivParams())
    np.testing.assert_allclose(found, 0.1 + 0.8 * p[[0, 1, 2, 4]].mean(axis=0), atol=1e-6)
    everything = feddiv.next_bias(_LOGITS, bias, parameters.FedDivParams(bias_confidence=0.0))
    np.testing.assert_allclose(everything, 0.1 + 0.8 * p.mean(axis=0), atol=1e-6)
    uncertain = feddiv.next_bias(_LOGITS[3:4], bias, parameters.FedDivParams())
    np.testing.assert_array_equal(uncertain, bias)

  def test_penalty_by_hand(self):
    # log(1 / 3) - mean log (.7, .2, .1), as DivideMix has it.
    logits = np.log([[0.8, 0.1, 0.1], [0.6, 0.3, 0.1]]).astype(np.float32)
    self.assertAlmostEqual(feddiv.prior_penalty(logits).numpy(), 0.324287, places=5)


class _NumPy:
  """FedDiv of the linear model without mixup, in float64; everybody takes part in each round."""

  def __init__(self, federation, p):
    self.clients, self.p = federation.clients, p
    self.w = np.zeros((2, 2))
    self.filter = feddiv.FIRST_FILTER.astype(np.float64)
    self.bias = [np.full(2, 0.5) for _ in self.clients]
    self.debiased = [None for _ in self.clients]
    self.relabelled = self.left_out = 0

  def train(self, w, client, round_num, labels, chosen):
    x, n = self.clients[client].x, len(labels)
    for epoch in range(2):
      base = rng.tf_seed(method_runs.SEED, 'local training')
      order = seeds.batch_order(seeds.fold(base, round_num, client, epoch), n).numpy()
      order = order[chosen[order]]
      for first in range(0, len(order), 3):
        batch = order[first : first + 3]
        s = _softmax(x[batch] @ w)
        q = 0.5 / s.mean(axis=0)
        penalty = s * ((s * q).sum(axis=1, keepdims=True) - q)
        of_logits = (s - np.eye(2)[labels[batch]] + self.p.prior_weight * penalty) / len(batch)
        w = w - 0.2 * x[batch].T @ of_logits
    return w

  def select(self, client):
    x, y, _ = self.clients[client]
    p, z = self.p, x @ self.w
    clean = np.ones(len(y), bool)
    if np.ptp(z):
      clean = _posterior(_losses(z, y), self.filter) > 0.5
    predicted = z.argmax(axis=1)
    agree = predicted == (predicted if self.debiased[client] is None else self.debiased[client])
    relabelled = ~clean & (_softmax(z).max(axis=1) > p.confidence) & agree
    if np.mean(~clean) <= p.clean_below:
      return y, np.ones(len(y), bool)
    self.relabelled += relabelled.sum()
    self.left_out += (~relabelled & ~(clean & agree)).sum()
    return np.where(relabelled, predicted, y), (clean & agree) | relabelled

  def round(self, round_num):
    sizes = np.array([len(c.y) for c in self.clients])
    models, filters = [], []
    for i, (x, y, _) in enumerate(self.clients):
      w = self.train(self.w, i, round_num, *self.select(i))
      z = x @ w
      of_f = z - self.p.debias * np.log(self.bias[i])
      self.debiased[i] = of_f.argmax(axis=1)
      certain = _softmax(of_f).max(axis=1) > self.p.bias_confidence
      if certain.any():
        mean = _softmax(z)[certain].mean(axis=0)
        self.bias[i] = self.p.momentum * self.bias[i] + (1 - self.p.momentum) * mean
      models.append(w)
      filters.append(_fit(_losses(z, y), self.filter, self.p.filter_steps))
    shares = sizes / sizes.sum()
    self.w = np.tensordot(shares, models, 1)
    self.filter = np.tensordot(shares, filters, 1)
    if self.p.variances == 'code':
      self.filter[1] = np.tensordot(shares**2, np.array(filters)[:, 1], 1)


class TrainingTest(federated_test_case.FederatedTestCase):

  @parameterized.parameters('code', 'paper')
  def test_whole_run_equals_numpy(self, variances):
    federation = toy.two_corners([12, 18])
    params = {**_EAGER, 'variances': variances, 'prior_weight': 0.5}
    expected = _NumPy(federation, parameters.FedDivParams(**params))
    for round_num in range(1, 6):
      expected.round(round_num)
    self.assertGreater(expected.relabelled, 0)
    self.assertGreater(expected.left_out, 0)
    state, clients = method_runs.run('feddiv', federation, _task(federation, train=5), **params)
    np.testing.assert_allclose(state.weights.trainable[0], expected.w, atol=1e-5)
    np.testing.assert_allclose(state.received[feddiv.FILTER], expected.filter, rtol=1e-4)
    for i in range(2):
      np.testing.assert_allclose(clients.own[feddiv.BIAS][i], expected.bias[i], atol=1e-5)
      np.testing.assert_array_equal(clients.own[feddiv.DEBIASED][i], expected.debiased[i])

  @parameterized.parameters('', 'scaffold')
  def test_of_clients_that_are_all_clean_it_is_the_optimizer_alone(self, base):
    federation = toy.two_corners([5, 7, 4])
    params = {'clean_below': 0.999, 'prior_weight': 0.0, 'mixup_alpha': 0.0}
    task = _task(federation, base, warm_up=1, train=2)
    weights, _ = method_runs.trained('feddiv', federation, task, **params)
    alone, _ = method_runs.trained(base or 'fedavg', federation, method_runs.task(federation))
    np.testing.assert_allclose(weights, alone, atol=1e-6)
    mixed, _ = method_runs.trained('feddiv', federation, task)
    self.assertGreater(np.abs(mixed - alone).max(), 1e-3)

  @parameterized.parameters('code', 'paper')
  def test_sums_of_changes_are_those_of_the_last_filters_of_all(self, variances):
    # Equation 5, without anybody knowing whose filters these are.
    federation = toy.two_corners([6, 9, 12, 7])
    task = _task(federation, train=6, clients_per_round=1)
    state, clients = method_runs.run('feddiv', federation, task, variances=variances)
    self.assertGreater(clients.participations.max(), 1)
    added = np.array(clients.own[feddiv.ADDED], np.float64)
    sizes = np.where(clients.participations > 0, federation.sizes, 0)
    np.testing.assert_allclose(added[:, 6], sizes / 12, atol=1e-6)
    totals = state.records['filter_totals']
    np.testing.assert_allclose(totals, added.sum(axis=0), atol=1e-5)
    np.testing.assert_allclose(
        state.received[feddiv.FILTER], feddiv.next_filter(added.sum(axis=0), variances), rtol=1e-4
    )

  def test_secure_sums_come_to_the_same_filter(self):
    federation = toy.two_corners([6, 9, 12])
    task = _task(federation, train=6)
    plain, _ = method_runs.run('feddiv', federation, task)
    secure = aggregation.secure_weighted_mean(update_bound=10.0, max_examples=12)
    summed, _ = method_runs.run('feddiv', federation, task._replace(aggregation=secure))
    np.testing.assert_allclose(
        summed.received[feddiv.FILTER], plain.received[feddiv.FILTER], atol=1e-4
    )

  def _after_a_round(self, federation, task, y, **own):
    """The state after the second round, of clients that kept other things from the first."""
    algorithm = method_runs.build('feddiv', task, sampler_from=0)
    first = runs.clients_of(algorithm, task, federation)
    state = training.run_round(algorithm, algorithm.init(), first)
    clients = runs.clients_of(algorithm, task, y)
    clients.resume({**first.own, **own}, first.participations, first.aggregators)
    return state, training.run_round(algorithm, state, clients), first, clients

  def test_without_an_example_left_the_model_comes_back(self):
    x = np.repeat([[2, 0], [0, 2], [1, 0]], 3, axis=0).astype(np.float32)
    federation = method_runs.one_client(x, np.array([0, 0, 1, 1, 1, 0, 0, 0, 0], np.int32))
    task = _task(federation, train=2)
    no_agreement = {feddiv.DEBIASED: [1 - (x[:, 1] > x[:, 0]).astype(np.int32)]}
    before, after, _, clients = self._after_a_round(federation, task, federation, **no_agreement)
    np.testing.assert_array_equal(after.weights.trainable[0], before.weights.trainable[0])
    self.assertEqual(clients.traffic.train_loss, 0)
    np.testing.assert_array_equal(clients.own[feddiv.VISITS], [2])

  def test_without_one_left_the_filter_is_of_the_model_that_fed_bns_client_started_from(self):
    x = np.repeat([[2, 0], [0, 2], [1, 0]], 3, axis=0).astype(np.float32) + 5
    y = np.array([0, 0, 1, 1, 1, 0, 0, 0, 0], np.int32)
    federation = method_runs.one_client(x, y)
    task = _task(federation, 'fedbn', train=2, model=toy.linear_model('batch'))
    [_, first] = runs.states(
        method_runs.build('feddiv', task, sampler_from=0), task, federation, rounds=1
    )
    own = first.own['fedbn_norms'][0]
    (gamma, beta), (mean, variance) = own['trainable'], own['non_trainable']
    z = (gamma * (x - mean) / np.sqrt(variance + 1e-3) + beta) @ first.state.weights.trainable[2]
    no_agreement = {feddiv.DEBIASED: [1 - z.argmax(axis=1).astype(np.int32)]}
    before, after, _, clients = self._after_a_round(federation, task, federation, **no_agreement)
    np.testing.assert_array_equal(after.weights.trainable[2], before.weights.trainable[2])
    # Nor does it keep what passes without a loss did to its norms.
    kept = clients.own['fedbn_norms'][0]
    for kind in ('trainable', 'non_trainable'):
      for mine, first in zip(kept[kind], own[kind], strict=True):
        np.testing.assert_allclose(mine, first, atol=1e-6)
    w_k = _fit(_losses(z, y), before.received[feddiv.FILTER].astype(np.float64), 3)
    np.testing.assert_allclose(clients.own[feddiv.ADDED][0][:6], w_k.ravel(), atol=1e-4)

  def test_an_update_that_is_not_finite_changes_no_filter(self):
    federation = toy.two_corners([5, 6])
    task = _task(federation, train=2)
    x = federation.clients[0].x.copy()
    x[0, 0] = np.inf
    broken = federation._replace(
        clients=(federation.clients[0]._replace(x=x), federation.clients[1])
    )
    _, after, first, clients = self._after_a_round(federation, task, broken)
    self.assertEqual(clients.traffic.rejected, 1)
    np.testing.assert_array_equal(clients.own[feddiv.ADDED][0], first.own[feddiv.ADDED][0])
    np.testing.assert_allclose(
        after.records['filter_totals'], np.sum(clients.own[feddiv.ADDED], axis=0), atol=1e-6
    )

  def test_odd_clients_train_and_change_no_filter(self):
    # None, one example, and equal ones: no two different losses.
    same = types.ClientExamples(np.ones((4, 2), np.float32), np.ones(4, np.int32), np.arange(4))
    federation = toy.two_corners([0, 1, 4])
    federation = federation._replace(clients=(*federation.clients[:2], same))
    task = _task(federation, clients_per_round=3)
    state, clients = method_runs.run('feddiv', federation, task)
    self.assertTrue(np.isfinite(state.weights.trainable[0]).all())
    self.assertGreater(np.abs(state.weights.trainable[0]).max(), 0.1)
    np.testing.assert_array_equal(state.received[feddiv.FILTER], feddiv.FIRST_FILTER)
    np.testing.assert_array_equal(np.array(clients.own[feddiv.ADDED]), 0)

  def test_filter_finds_wrong_labels(self):
    draw = np.random.default_rng(0)
    clients = []
    for _ in range(2):
      truth = draw.integers(0, 2, 40).astype(np.int32)
      x = (2 * np.eye(2)[truth] + draw.normal(0, 0.1, (40, 2))).astype(np.float32)
      wrong = np.arange(40) < 12
      clients.append(types.ClientExamples(x, np.where(wrong, 1 - truth, truth), np.arange(40)))
    federation = types.Federation(tuple(clients), 2, 3)
    task = _task(federation, warm_up=3, train=12)
    state, clients = method_runs.run('feddiv', federation, task)
    mu, _, pi = state.received[feddiv.FILTER]
    self.assertLess(mu[0], 0.2)
    self.assertGreater(mu[1], 0.8)
    np.testing.assert_allclose(pi, [0.7, 0.3], atol=0.02)
    for found in clients.own['clean_posterior']:
      self.assertLess(found[:12].max(), 0.5)
      self.assertGreater(found[12:].min(), 0.5)
    columns = method_runs.build('feddiv', task).report.columns(state)
    self.assertAlmostEqual(columns['filter_clean_weight'], pi[0], places=6)


class DeclaredTest(federated_test_case.FederatedTestCase):

  def test_sends_seven_numbers_to_be_summed(self):
    task = _task(toy.two_corners([5, 7]))
    fields = set(method_runs.build('feddiv', task).fields)
    more = fields - set(method_runs.build('fedavg', task).fields)
    names = {'filter_means', 'filter_variances', 'filter_weights', 'filter_share'}
    self.assertEqual({f.name for f in more}, names)
    self.assertEqual({f.disclosure for f in more}, {uplink.Disclosure.SUM})
    self.assertEqual(sum(f.num_bytes for f in more), 7 * 4)

  def test_private_labels_are_refused_where_they_would_be_replaced(self):
    task = _task(toy.two_corners([5, 7]))
    task = task._replace(label_privacy=task_lib.LabelPrivacy('1', 'shrinkage', in_training=True))
    with self.assertRaisesRegex(types.UsageError, 'with --param=confidence=1 it replaces none$'):
      method_runs.build('feddiv', task)
    method_runs.build('feddiv', task, confidence=1.0)

  def test_warm_up_is_five_rounds_of_everybody(self):
    task = _task(toy.two_corners([5, 7, 4]))._replace(rounds=20, stages={})
    self.assertEqual(
        feddiv.stage_lengths(task, parameters.FedDivParams()), {'warm_up': 8, 'train': 12}
    )

  def test_too_few_rounds_are_refused(self):
    for rounds in (4, 5):
      task = _task(toy.two_corners([5, 7]))._replace(rounds=rounds, stages={})
      message = f'^--rounds={rounds} leaves nothing for the stage train'
      with self.assertRaisesRegex(types.UsageError, message):
        feddiv.stage_lengths(task, parameters.FedDivParams())
    asked = task._replace(stages={'train': 0})
    self.assertEqual(feddiv.stage_lengths(asked, parameters.FedDivParams())['train'], 0)


class ParamsTest(parameterized.TestCase):

  @parameterized.parameters(
      ('confidence=0', 'confidence must be positive, got 0.0'),
      ('confidence=1.1', 'confidence must be at most 1, got 1.1'),
      ('clean_below=1', 'clean_below must be at least 0 and below 1, got 1.0'),
      ('momentum=1', 'momentum must be at least 0 and below 1, got 1.0'),
      ('sampler_from=-1', 'sampler_from must not be negative, got -1'),
      ('debias=-1', 'debias must not be negative, got -1.0'),
      ('filter_steps=0', 'filter_steps must be positive, got 0'),
      ('variances=mean', "variances must be one of .*, got 'mean'"),
      ('sample_loss=plain', "sample_loss must be one of .*, got 'plain'"),
  )
  def test_out_of_range_is_refused_in_one_line(self, param, message):
    with self.assertRaisesRegex(types.UsageError, f'^--param: {message}$'):
      params_lib.parse('feddiv', catalog.ALGORITHMS['feddiv'].params, [param])

  def test_constants_are_the_papers(self):
    p = catalog.ALGORITHMS['feddiv'].params()
    self.assertEqual(
        (p.confidence, p.clean_below, p.debias, p.momentum, p.mixup_alpha, p.warm_up_iterations),
        (0.75, 0.1, 0.5, 0.2, 1.0, 5),
    )


if __name__ == '__main__':
  absltest.main()
