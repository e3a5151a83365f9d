"""Loss correction: whole runs in NumPy, what is estimated when, and what equals FedAvg."""

import os

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tests.algorithms import method_runs
from tests.program import runs
from tff_noise import params as params_lib
from tff_noise import types
from tff_noise.algorithms import catalog
from tff_noise.algorithms import lc
from tff_noise.federated import aggregation
from tff_noise.program import clients as clients_lib
from tff_noise.selection import availability as availability_lib

_T = np.array([[0.8, 0.2], [0.3, 0.7]])
# Points that a linear model soon is sure of, two of them with the wrong label.
_X = np.array([[9, 0], [0, 9], [8, 0], [0, 8], [9, 1], [1, 9]], np.float32)
_Y = np.array([0, 1, 0, 1, 1, 0], np.int32)


def _softmax(z):
  e = np.exp(z - z.max(axis=1, keepdims=True))
  return e / e.sum(axis=1, keepdims=True)


def _step(weights, x, y, slope, learning_rate):
  """A full-batch step; `slope` is of the loss of each example, by p and y."""
  p = _softmax(x @ weights)
  gradient = np.stack([slope(p[i], y[i]) for i in range(len(y))])
  return weights - learning_rate * x.T @ gradient / len(y)


def _plain(p, y):
  return p - np.eye(2)[y]


def _forward(t):
  return lambda p, y: p - p * t[:, y] / (t.T @ p)[y]


def _backward(t):
  inverse = np.linalg.inv(t)
  return lambda p, y: p - inverse[y]


def _counted(weights, x, y, confidence):
  p, counts = _softmax(x @ weights), np.zeros((2, 2))
  for row, label in zip(p, y, strict=True):
    if row.max() > confidence:
      counts[row.argmax(), label] += 1
  sums = counts.sum(axis=1, keepdims=True)
  return np.where(sums > 0, counts / np.where(sums > 0, sums, 1), np.eye(2))


def _task(federation, rounds=6, **changes):
  return method_runs.task(
      federation, training=types.LocalTraining(2, 100, 0.05), rounds=rounds, **changes
  )


class RunTest(federated_test_case.FederatedTestCase):

  def _save(self, matrix):
    path = os.path.join(self.create_tempdir().full_path, 't.csv')
    np.savetxt(path, matrix, delimiter=',')
    return path

  @parameterized.parameters(('forward', _forward), ('backward', _backward))
  def test_given_matrix_equals_numpy(self, correction, slope):
    federation = method_runs.one_client()
    found, _ = method_runs.trained(
        'lc', federation, _task(federation), correction=correction, estimator='given',
        transition=self._save(_T),
    )
    weights = np.zeros((2, 2))
    for step in range(2 * 6):
      of = _plain if step < 2 * 3 else slope(_T)
      weights = _step(weights, method_runs.X, method_runs.Y, of, 0.05)
    np.testing.assert_allclose(found, weights, atol=1e-5)

  @parameterized.parameters('client', 'pooled')
  def test_counts_at_the_switch_equal_numpy(self, scope):
    federation = method_runs.one_client(_X, _Y)
    if scope == 'pooled':  # Everybody holds the same, so what is pooled is what each would find.
      federation = types.Federation(federation.clients * 2, 2, method_runs.SEED)
    task = _task(federation, 7)
    state, clients = method_runs.run('lc', federation, task, scope=scope, confidence=0.6)
    weights = np.zeros((2, 2))
    for _ in range(2 * 4):  # Of seven rounds four come first.
      weights = _step(weights, _X, _Y, _plain, 0.05)
    t = _counted(weights, _X, _Y, 0.6)
    self.assertGreater(np.abs(t - np.eye(2)).max(), 0.1)
    for _ in range(2 * 3):
      weights = _step(weights, _X, _Y, _forward(t), 0.05)
    np.testing.assert_allclose(state.weights.trainable[0], weights, atol=1e-5)
    kept = clients.own if scope == 'client' else {}
    for found in kept.get(lc.TRANSITION, [state.records.get(lc.TRANSITION)]):
      np.testing.assert_allclose(found, t, atol=1e-6)

  @parameterized.parameters('client', 'pooled')
  def test_tells_the_mean_of_matrices_or_that_of_all(self, scope):
    federation = toy.two_corners([5, 7, 4])
    task = _task(federation, 2)
    state, clients = method_runs.run('lc', federation, task, scope=scope, confidence=0.5)
    report = method_runs.build('lc', task, scope=scope, confidence=0.5).report
    found = report.kept_summary(state, clients_lib.by_client(clients.own, 3))['transition']
    kept = (
        np.mean(clients.own[lc.TRANSITION], axis=0) if scope == 'client'
        else state.received[lc.TRANSITION]
    )
    np.testing.assert_allclose(found['estimate'], kept, atol=1e-6)
    self.assertEqual((found['clients'], found['shared']), (3, scope == 'pooled'))

  def test_tells_no_matrix_where_none_was_estimated(self):
    federation = toy.two_corners([5, 7])
    never = _task(federation, 2, stages={'train': 2, 'correct': 0})
    given = {'estimator': 'given', 'transition': self._save(_T)}
    for task, params in ((never, {}), (_task(federation, 2), given)):
      algorithm = method_runs.build('lc', task, **params)
      self.assertEqual(algorithm.report.kept_summary(algorithm.init(), [{}, {}]), {})
    self.assertEqual(lc.transition_summary([np.eye(2), np.full((2, 2), np.nan)], 2), {})

  @parameterized.parameters(('lc', 1), ('lc', 0.2), ('trevision', 0.2))
  def test_anchors_are_predictions_of_the_global_model(self, name, temperature):
    # Of the same logits over T as the loss that is corrected.
    federation = toy.two_corners([5, 7, 4])
    task = _task(federation, 2)
    task = task._replace(
        training=task.training._replace(loss=types.CrossEntropy(temperature=temperature))
    )
    state, _ = method_runs.run('fedavg', federation, task._replace(rounds=1))
    params = {'estimator': 'anchor'} if name == 'lc' else {}
    stages = {'lc': {}, 'trevision': {'estimate': 1, 'correct': 1}}[name]
    _, clients = method_runs.run(name, federation, task._replace(stages=stages), **params)
    for examples, found in zip(federation.clients, clients.own[lc.TRANSITION], strict=True):
      p = _softmax(examples.x @ state.weights.trainable[0] / temperature)
      np.testing.assert_allclose(found, p[p.argmax(axis=0)], atol=1e-5)

  def test_of_fed_bn_they_are_predictions_with_the_clients_own_layers(self):
    federation = toy.two_corners([5, 7, 4])
    far = tuple(c._replace(x=c.x + 5) for c in federation.clients)
    federation = federation._replace(clients=far)
    task = _task(
        federation, 2, base='fedbn', model=toy.linear_model('batch'), clients_per_round=3
    )
    ran = runs.states(method_runs.build('lc', task, estimator='anchor'), task, federation)
    first, last = ran[1:]
    for i, examples in enumerate(federation.clients):
      own = first.own['fedbn_norms'][i]
      (gamma, beta), (mean, variance) = own['trainable'], own['non_trainable']
      x = gamma * (examples.x - mean) / np.sqrt(variance + 1e-3) + beta
      p = _softmax(x @ first.state.weights.trainable[2])
      np.testing.assert_allclose(last.own[lc.TRANSITION][i], p[p.argmax(axis=0)], atol=1e-5)

  @parameterized.parameters('', 'fedprox', 'scaffold', 'feddyn')
  def test_where_nothing_is_confident_it_is_the_optimizer_alone(self, base):
    federation = toy.two_corners([5, 7, 4])
    weights, _ = method_runs.trained(
        'lc', federation, method_runs.task(federation, base), confidence=0.999
    )
    alone, _ = method_runs.trained(base or 'fedavg', federation, method_runs.task(federation))
    np.testing.assert_allclose(weights, alone, atol=1e-6)

  def test_is_fed_avg_to_the_bit_before_the_switch(self):
    federation = toy.two_corners([5, 7, 4])
    task = method_runs.task(federation, stages={'train': 3, 'correct': 0})
    weights, clients = method_runs.trained('lc', federation, task, confidence=0.5)
    alone, _ = method_runs.trained('fedavg', federation, method_runs.task(federation))
    np.testing.assert_array_equal(weights, alone)
    for found in clients.own[lc.TRANSITION]:
      np.testing.assert_array_equal(found, np.eye(2))

  def test_restart_trains_a_first_model_with_corrected_losses(self):
    federation = method_runs.one_client()
    task = _task(federation, stages={'train': 2, 'correct': 1})
    found, _ = method_runs.trained(
        'lc', federation, task, estimator='given', transition=self._save(_T), restart=True
    )
    weights = np.zeros((2, 2))
    for _ in range(2):
      weights = _step(weights, method_runs.X, method_runs.Y, _forward(_T), 0.05)
    np.testing.assert_allclose(found, weights, atol=1e-6)

  def test_client_of_one_example_and_clients_who_come_late(self):
    federation = toy.two_corners([1, 9, 4])
    there = availability_lib.Availability(np.array([1, 1, 5]), np.array([100, 100, 100]))
    task = method_runs.task(federation, rounds=6, availability=there)
    state, clients = method_runs.run('lc', federation, task, confidence=0.5)
    self.assertTrue(np.isfinite(state.weights.trainable[0]).all())
    one, many, late = clients.own[lc.TRANSITION]
    for found in (one, many, late):
      np.testing.assert_allclose(found.sum(axis=1), [1, 1], atol=1e-6)
    np.testing.assert_array_equal(late, np.eye(2))


class SentTest(federated_test_case.FederatedTestCase):

  def _build(self, name, **params):
    return method_runs.build(name, method_runs.task(toy.two_corners([5, 7])), **params)

  def test_own_matrices_never_leave(self):
    self.assertEqual(self._build('lc').fields, self._build('fedavg').fields)

  @parameterized.parameters(('counts', 'int32[2,2]'), ('anchor', 'float32[2,2]'))
  def test_pooled_ones_are_a_sum(self, estimator, type_spec):
    fields = self._build('lc', scope='pooled', estimator=estimator).fields
    found = [f for f in fields if f.name == 'transition_evidence']
    self.assertLen(found, 1)
    self.assertEqual(found[0].type_spec, type_spec)
    self.assertFalse(any(f.disclosure.shows_single_clients for f in fields))

  @parameterized.parameters('counts', 'anchor')
  def test_secure_sums_give_the_same(self, estimator):
    federation = toy.two_corners([5, 7, 4])
    secure = aggregation.secure_weighted_mean(update_bound=10.0, max_examples=7)
    weights, _ = method_runs.trained(
        'lc', federation, method_runs.task(federation), scope='pooled', estimator=estimator,
        confidence=0.5,
    )
    same, _ = method_runs.trained(
        'lc', federation, method_runs.task(federation, aggregation=secure), scope='pooled',
        estimator=estimator, confidence=0.5,
    )
    np.testing.assert_allclose(same, weights, atol=1e-4)

  def test_a_client_whose_predictions_are_no_numbers_has_no_part_in_anchors(self):
    federation = toy.two_corners([5, 7, 4])
    x = federation.clients[2].x.copy()
    x[:] = np.inf
    broken = (*federation.clients[:2], federation.clients[2]._replace(x=x))
    task = method_runs.task(federation, rounds=2)
    states = [
        method_runs.run('lc', f, task, scope='pooled', estimator='anchor')[0].records
        for f in (federation._replace(clients=broken), federation)
    ]
    for name, values in states[0].items():
      self.assertTrue(np.all(np.isfinite(values)), name)
      if values.shape == (2, 2):
        self.assertGreater(np.abs(values - np.eye(2)).max(), 1e-3)


class PrivateLabelsTest(federated_test_case.FederatedTestCase):

  def test_flips_are_taken_out_of_the_estimate(self):
    # All labels are kept or flipped with .75 / .25; a quarter of the counts is flips alone.
    x = np.tile(np.float32([[9, 0], [0, 9]]), (20, 1))
    y = np.tile(np.int32([0, 1]), 20)
    y[:10] = 1 - y[:10]
    loss = types.CrossEntropy(keep_probability=0.75)
    federation = method_runs.one_client(x, y)
    task = method_runs.task(
        federation, training=types.LocalTraining(5, 100, 0.5, loss=loss), rounds=2
    )
    _, clients = method_runs.run('lc', federation, task, confidence=0.8)
    np.testing.assert_allclose(clients.own[lc.TRANSITION][0], np.eye(2), atol=1e-5)


class LateTest(federated_test_case.FederatedTestCase):

  def test_one_client_that_is_there_pools_nothing(self):
    federation = toy.two_corners([5, 9, 4])
    there = availability_lib.Availability(np.array([1, 9, 9]), np.array([100, 100, 100]))
    task = method_runs.task(federation, clients_per_round=1, availability=there)
    with self.assertRaisesRegex(types.UsageError, 'scope=pooled: one client is there'):
      method_runs.build('lc', task, scope='pooled')


class MistakesTest(parameterized.TestCase):

  def _refused(self, message, **params):
    federation = toy.two_corners([5, 7])
    with self.assertRaisesRegex(types.UsageError, message) as raised:
      method_runs.build('lc', method_runs.task(federation), estimator='given', **params)
    self.assertNotIn('\n', str(raised.exception))

  def _file(self, text):
    path = os.path.join(self.create_tempdir().full_path, 't.csv')
    with open(path, 'w', encoding='utf-8') as file:
      file.write(text)
    return path

  def test_matrix_is_missing_or_none(self):
    self._refused('--param=transition=FILE')
    self._refused('no such file', transition='/nowhere/t.csv')
    self._refused('1 rows of 3, and the data has 2', transition=self._file('1,0,0'))
    self._refused('row 1 is', transition=self._file('1,0\n.5,.4'))
    self._refused('row 0 is', transition=self._file('1.5,-.5\n0,1'))

  def test_one_client_cannot_pool(self):
    federation = method_runs.one_client()
    with self.assertRaisesRegex(types.UsageError, 'scope=pooled: one client is there'):
      method_runs.build('lc', method_runs.task(federation), scope='pooled')

  @parameterized.parameters(
      (['correction=both'], 'correction must be one of'),
      (['confidence=1'], 'confidence must be'),
      (['transition=t.csv'], 'transition names the T of estimator=given'),
      (['estimator=given', 'scope=pooled'], 'there are none'),
  )
  def test_out_of_range_is_refused_in_one_line(self, given, message):
    with self.assertRaisesRegex(types.UsageError, f'^--param: .*{message}'):
      params_lib.parse('lc', catalog.ALGORITHMS['lc'].params, given)


if __name__ == '__main__':
  absltest.main()
