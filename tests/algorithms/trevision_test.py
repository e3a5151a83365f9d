"""T-revision: whole runs in NumPy, readings of the public code, and what equals other methods."""

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tests.algorithms import method_runs
from tff_noise import params as params_lib
from tff_noise import types
from tff_noise.algorithms import catalog
from tff_noise.algorithms import lc
from tff_noise.algorithms import parameters
from tff_noise.algorithms import trevision
from tff_noise.clients import program
from tff_noise.federated import aggregation
from tff_noise.models import losses
from tff_noise.program import clients as clients_lib
from tff_noise.selection import availability

_STAGES = {'estimate': 2, 'correct': 1, 'revise': 2}
_RATE = 0.05


def _softmax(z):
  e = np.exp(z - z.max(axis=1, keepdims=True))
  return e / e.sum(axis=1, keepdims=True)


def _loss(weights, t, x, y, beta=None):
  """The reweighted loss; `beta` where it is a constant."""
  p = _softmax(x @ weights)
  rows = np.arange(len(y))
  if beta is None:
    beta = p[rows, y] / (p @ t)[rows, y]
  return np.mean(beta * -np.log(p[rows, y]))


def _slope(function, value):
  """By differences, float64."""
  gradient = np.zeros_like(value)
  for i in np.ndindex(value.shape):
    step = np.zeros_like(value)
    step[i] = 1e-6
    gradient[i] = (function(value + step) - function(value - step)) / 2e-6
  return gradient


def _objective(stage, w, t, delta, x, y, params):
  """What a step minimises, from the weights to a number."""
  rows = np.arange(len(y))
  if stage == 'estimate':
    return lambda v: _loss(v, np.eye(2), x, y)
  if stage == 'correct' and params.get('correction') != 'reweight':
    return lambda v: np.mean(-np.log((_softmax(x @ v) @ t)[rows, y]))
  if stage == 'correct' or params.get('gradient') == 'code':
    p = _softmax(x @ w)
    beta = (p / (p @ (t + delta)))[rows, y]
    return lambda v: _loss(v, t, x, y, beta)
  return lambda v: _loss(v, t + delta, x, y)


def _of_delta(w, t, x, y):
  """What dT minimises."""
  return lambda delta: _loss(w, t + delta, x, y)


class _Adam:
  """A round's, of one variable."""

  def __init__(self, rate):
    self._rate, self._step, self._a, self._p = rate, 0, 0.0, 0.0

  def __call__(self, value, gradient):
    self._step += 1
    self._a = 0.9 * self._a + 0.1 * gradient
    self._p = 0.999 * self._p + 0.001 * gradient**2
    rate = self._rate * np.sqrt(1 - 0.999**self._step) / (1 - 0.9**self._step)
    return value - rate * self._a / (np.sqrt(self._p) + 1e-8)


def _in_numpy(x, y, params, epochs=2):
  """The weights, and dT, after all stages; of one client, in full batches."""
  w, delta, t = np.zeros((2, 2)), np.zeros((2, 2)), np.eye(2)
  for stage, rounds in _STAGES.items():
    if stage == 'correct':
      p = _softmax(x @ w)
      t = p[p.argmax(axis=0)]
    for _ in range(rounds):
      move_w, move_delta = (_Adam(params['revise_learning_rate']) for _ in range(2))
      for _ in range(epochs):
        of_w = _slope(_objective(stage, w, t, delta, x, y, params), w)
        if stage != 'revise':
          w = w - _RATE * of_w
          continue
        if params.get('gradient') != 'code':
          delta = move_delta(delta, _slope(_of_delta(w, t, x, y), delta))
        w = move_w(w, of_w)
  return w, delta


def _task(federation, **changes):
  changes = {'rounds': sum(_STAGES.values()), 'stages': _STAGES, **changes}
  return method_runs.task(federation, training=types.LocalTraining(2, 100, _RATE), **changes)


class RunTest(federated_test_case.FederatedTestCase):

  @parameterized.parameters(
      {'revise_learning_rate': 0.05},
      {'revise_learning_rate': 0.05, 'correction': 'reweight'},
      {'revise_learning_rate': 0.05, 'gradient': 'code'},
      {'revise_learning_rate': 0.05, 'revision': 'averaged'},
  )
  def test_equals_numpy(self, **params):
    federation = method_runs.one_client()
    if params.get('revision') == 'averaged':  # Of two clients that hold the same.
      federation = types.Federation(federation.clients * 2, 2, method_runs.SEED)
    state, clients = method_runs.run('trevision', federation, _task(federation), **params)
    weights, delta = _in_numpy(
        method_runs.X.astype(np.float64), method_runs.Y, params
    )
    np.testing.assert_allclose(state.weights.trainable[0], weights, atol=1e-5)
    if params.get('revision') == 'averaged':
      found = state.received[trevision.REVISION]
    else:
      found = clients.own[trevision.REVISION][0]
    np.testing.assert_allclose(found, delta, atol=1e-5)
    told = method_runs.build('trevision', _task(federation), **params).report.kept_summary(
        state, clients_lib.by_client(clients.own, 1)
    )['transition']
    np.testing.assert_allclose(
        told['estimate'], clients.own[lc.TRANSITION][0] + delta, atol=1e-5
    )
    self.assertEqual((told['clients'], told['shared']), (1, False))
    # Without its gradient, as in public code, T is not revised.
    self.assertEqual(bool(np.abs(delta).max() > 1e-3), params.get('gradient') != 'code')

  def test_published_step_size_moves_next_to_nothing(self):
    federation = toy.two_corners([5, 7, 4])
    stages = {'estimate': 2, 'correct': 0, 'revise': 0}
    before, _ = method_runs.trained('trevision', federation, _task(federation, stages=stages))
    task = _task(federation, stages={**stages, 'revise': 3})
    after, clients = method_runs.trained('trevision', federation, task)
    moved = [np.abs(after - before), *map(np.abs, clients.own[trevision.REVISION])]
    self.assertBetween(max(m.max() for m in moved), 1e-7, 1e-4)

  def test_network_that_learns_fast_enough_unlearns_its_labels(self):
    # l = -p_y log p_y / q_y is 0 at p_y = 0, too.
    t = tf.constant([[0.7, 0.3], [0.3, 0.7]])
    found = [
        losses.reweighted_cross_entropy(tf.constant([[z, -z]]), [0], t, attached=True).numpy()
        for z in (-6.0, 0.0, 6.0)
    ]
    self.assertLess(found[0], 1e-3)
    self.assertLess(found[2], 1e-3)
    self.assertGreater(found[1], 0.5)

  @parameterized.parameters('', 'fedprox', 'median')
  def test_before_the_estimate_it_is_the_optimizer_alone(self, base):
    federation = toy.two_corners([5, 7, 4])
    task = method_runs.task(federation, base, stages={'estimate': 3, 'correct': 0, 'revise': 0})
    weights, clients = method_runs.trained('trevision', federation, task)
    alone, _ = method_runs.trained(base or 'fedavg', federation, method_runs.task(federation))
    np.testing.assert_array_equal(weights, alone)
    for found in clients.own[lc.TRANSITION]:
      np.testing.assert_array_equal(found, np.eye(2))

  def test_power_of_choice_chooses_in_all_stages(self):
    federation = toy.two_corners([5, 7, 4])
    task = _task(federation, base='poc', clients_per_round=2)
    state, clients = method_runs.run('trevision', federation, task)
    self.assertEqual(state.round_num, 5)
    self.assertEqual(clients.participations.sum(), 2 * 5)

  def test_until_it_revises_it_is_loss_correction_by_anchors(self):
    federation = toy.two_corners([5, 7, 4])
    task = method_runs.task(federation, rounds=4, stages={'train': 2, 'correct': 2})
    expected, _ = method_runs.trained('lc', federation, task, estimator='anchor')
    task = task._replace(stages={'estimate': 2, 'correct': 2, 'revise': 0})
    found, _ = method_runs.trained('trevision', federation, task)
    np.testing.assert_array_equal(found, expected)

  def test_averaged_revisions_are_the_mean_of_those_of_the_cohort(self):
    federation = toy.two_corners([5, 7])
    task = _task(federation)._replace(stages={'estimate': 2, 'correct': 0, 'revise': 1}, rounds=3)
    params = {'revise_learning_rate': 0.1}
    _, clients = method_runs.run('trevision', federation, task, **params)
    state, _ = method_runs.run('trevision', federation, task, revision='averaged', **params)
    own = clients.own[trevision.REVISION]
    self.assertGreater(np.abs(own[0] - own[1]).max(), 1e-4)
    np.testing.assert_allclose(state.received[trevision.REVISION], (own[0] + own[1]) / 2, atol=1e-6)
    secure = aggregation.secure_weighted_mean(update_bound=10.0, max_examples=7)
    summed, _ = method_runs.run(
        'trevision', federation, task._replace(aggregation=secure), revision='averaged', **params
    )
    np.testing.assert_allclose(
        summed.received[trevision.REVISION], state.received[trevision.REVISION], atol=1e-4
    )

  def test_clients_of_one_example_or_class_stay_finite(self):
    clients = tuple(
        types.ClientExamples(x, np.int32(y), np.arange(len(y)))
        for x, y in (
            (np.float32([[50, 0]]), [1]), (np.float32([[1, 0], [1, 0]]), [0, 0]),
            (np.float32([[0, 0]] * 3), [0, 1, 1]),
        )
    )
    federation = types.Federation(clients, 2, method_runs.SEED)
    state, own = method_runs.run(
        'trevision', federation, _task(federation, clients_per_round=3), revise_learning_rate=1.0
    )
    self.assertTrue(np.isfinite(state.weights.trainable[0]).all())
    for revision in own.own[trevision.REVISION]:
      self.assertTrue(np.isfinite(revision).all())

  def test_mean_of_the_only_one_that_is_there_is_refused(self):
    federation = toy.two_corners([5, 7])
    there = availability.Availability(np.array([1, 1]), np.array([9, 3]))
    task = _task(federation)._replace(
        stages={'estimate': 1, 'correct': 1, 'revise': 1}, rounds=3, availability=there
    )
    with self.assertRaisesRegex(types.UsageError, 'revision=averaged: a sum over one client'):
      method_runs.build('trevision', task, revision='averaged')
    method_runs.run('trevision', federation, task)


class ReadingTest(federated_test_case.FederatedTestCase):

  def test_code_divides_columns_by_the_sums_of_rows(self):
    rows = tf.constant([[0.8, 0.15, 0], [0.1, 0.6, 0.2], [0, 0.3, 0.9]])
    found = trevision.normalised_as_in_code(rows)
    np.testing.assert_allclose(
        found, [[0.842105, 0.166667, 0], [0.105263, 0.666667, 0.166667], [0, 0.333333, 0.75]],
        atol=1e-6,
    )
    np.testing.assert_allclose(
        tf.reduce_sum(found, axis=1), [1.008772, 0.938596, 1.083333], atol=1e-6
    )

  @parameterized.parameters(
      ('row', [[0.48, 0.3, 0.22], [0, 0.9, 0.1], [0.3, 0.3, 0.4]]),
      # Row 1 has lost its .5: its sum is .5, by which column 1 is divided.
      ('code', [[0.48, 0.6, 0.22], [0, 0.9, 0.05], [0.3, 0.6, 0.4]]),
  )
  def test_code_divides_what_its_anchors_have_lost(self, normalise, expected):
    p = np.tile(np.float32([0.3, 0.3, 0.4]), (100, 1))
    p[0:3], p[3], p[10:13], p[20:24] = (
        [0.5, 0.45, 0.05], [0.48, 0.3, 0.22], [0.2, 0.6, 0.2], [0.1, 0.1, 0.8]
    )
    params = catalog.ALGORITHMS['trevision'].params(anchors='code', normalise=normalise)
    np.testing.assert_allclose(trevision.estimated(tf.constant(p), params), expected, atol=1e-6)

  def test_client_without_examples_keeps_the_identity(self):
    nobody = types.ClientExamples(
        np.zeros((0, 2), np.float32), np.zeros(0, np.int32), np.zeros(0, np.int64)
    )
    some = toy.two_corners([5, 7]).clients
    federation = types.Federation((*some, nobody), 2, method_runs.SEED)
    for normalise in ('row', 'code'):
      _, clients = method_runs.run(
          'trevision', federation, _task(federation, clients_per_round=3), normalise=normalise
      )
      np.testing.assert_array_equal(clients.own[lc.TRANSITION][2], np.eye(2))

  def test_revision_is_added_once_whatever_the_place_in_the_batch(self):
    # An earlier loss of the public code adds it i + 1 times to the i-th: .516415 of the second.
    t = tf.constant([[0.8, 0.2, 0], [0.1, 0.7, 0.2], [0, 0.3, 0.7]])
    delta = tf.constant([[0, -0.01, 0.01], [0, 0, 0], [0, 0, 0]])
    client, step = (
        kind(**dict.fromkeys(kind._fields)) for kind in (program.Client, program.Step)
    )
    step = step._replace(
        client=client._replace(own={lc.TRANSITION: t}), carry=(delta, ()),
        logits=tf.constant([[2.0, 1, 0], [0, 1, 2]]), labels=tf.constant([1, 2]),
    )
    revise = trevision.revising(parameters.TRevisionParams(), types.LocalTraining(), 3)
    value, slope = revise.loss(step)
    p, q = np.array([0.665241, 0.244728, 0.090031]), np.array([0.324715, 0.515515])
    p_y, each = np.array([0.244728, 0.665241]), np.array([1.407606, 0.407606])
    np.testing.assert_allclose(value, np.mean(p_y / q * each), atol=1e-5)
    first, second = -p_y / q**2 * each / 2
    np.testing.assert_allclose(
        slope, np.stack([0 * p, first * p, second * p[::-1]], axis=1), atol=1e-5
    )


class SentTest(absltest.TestCase):

  def _build(self, name, **params):
    return method_runs.build(name, method_runs.task(toy.two_corners([5, 7])), **params)

  def test_own_matrices_never_leave(self):
    self.assertEqual(self._build('trevision').fields, self._build('fedavg').fields)

  def test_averaged_revisions_are_a_sum(self):
    fields = self._build('trevision', revision='averaged').fields
    self.assertIn(('revisions', 'float32[2,2]'), {(f.name, f.type_spec) for f in fields})
    self.assertFalse(any(f.disclosure.shows_single_clients for f in fields))

  def test_stages_are_the_shares_of_fed_dp_cont(self):
    task = method_runs.task(toy.two_corners([5, 7]), rounds=300)
    self.assertEqual(
        trevision.stage_lengths(task), {'estimate': 20, 'correct': 140, 'revise': 140}
    )
    # T is never of a model that has not been trained.
    self.assertEqual(trevision.stage_lengths(task._replace(rounds=5))['estimate'], 1)


class ParamsTest(parameterized.TestCase):

  def test_optimizer_that_reckons_with_sgd_is_refused(self):
    task = method_runs.task(toy.two_corners([5, 7]), 'scaffold')
    with self.assertRaisesRegex(types.UsageError, '^--base=scaffold: .*Adam.*--stages=revise:0$'):
      method_runs.build('trevision', task)
    stages = {'estimate': 1, 'correct': 2, 'revise': 0}
    self.assertLen(method_runs.build('trevision', task._replace(stages=stages)).computations, 3)

  def test_optimizer_whose_server_goes_on_by_itself_is_refused(self):
    task = method_runs.task(toy.two_corners([5, 7]), 'feddyn')
    with self.assertRaisesRegex(types.UsageError, '^--base=feddyn: .*too short.*=revise:0$'):
      method_runs.build('trevision', task)

  @parameterized.parameters(
      ('trevision', {'estimate': 5}, 'for the stage revise, the others take 6'),
      ('trevision', {'estimate': 0, 'correct': 0, 'revise': 0}, 'leaves no round'),
      ('lc', {'train': 0, 'correct': 0}, 'leaves no round'),
      ('dividemix', {'warm_up': 4}, 'for the stage divide, the others take 4'),
      ('lc', {'train': 4}, 'for the stage correct, the others take 4'),
      ('fedrn', {'warm_up': 4}, 'for the stage neighbours, the others take 4'),
  )
  def test_stages_that_leave_nothing_are_refused(self, name, stages, message):
    task = method_runs.task(toy.two_corners([5, 7, 4]), stages=stages)
    with self.assertRaisesRegex(types.UsageError, message):
      method_runs.build(name, task)

  def test_mean_of_one_client_is_refused(self):
    task = method_runs.task(toy.two_corners([5, 7]), clients_per_round=1)
    with self.assertRaisesRegex(types.UsageError, 'revision=averaged: a sum over one client'):
      method_runs.build('trevision', task, revision='averaged')

  @parameterized.parameters(
      ('correction=backward', 'correction must be one of'), ('gradient=v1', 'gradient must be'),
      ('revision=mean', 'revision must be one of'),
      ('revise_learning_rate=0', 'must be positive'),
  )
  def test_out_of_range_is_refused_in_one_line(self, given, message):
    with self.assertRaisesRegex(types.UsageError, f'^--param: .*{message}'):
      params_lib.parse('trevision', catalog.ALGORITHMS['trevision'].params, [given])


if __name__ == '__main__':
  absltest.main()
