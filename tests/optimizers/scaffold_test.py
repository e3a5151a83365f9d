"""Tests of SCAFFOLD."""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tests.optimizers import rounds
from tff_noise import types
from tff_noise.federated import aggregation
from tff_noise.optimizers import parameters

_CLIENTS = (*rounds.DISAGREEING, ([[1, 2]] * 3, [0, 1, 1]))
_SIZES = np.array([6, 9, 3])
_ETA = 0.5
_VARIATE = 'scaffold_variate'


class _ByHand:
  """SCAFFOLD, option II, on the clients above, in NumPy."""

  def __init__(self, steps, server_learning_rate=1.0, rho=0.0, decay=0.0, falls=1.0):
    self.steps, self.server_learning_rate = steps, server_learning_rate
    self.rho, self.decay = rho, decay
    self.eta, self.falls = _ETA, falls
    # How far local momentum goes, found by going: not by the formula that is tested.
    velocity = self.reach = 0.0
    for _ in range(steps):
      velocity = rho * velocity + 1
      self.reach += velocity
    self.w, self.c = np.zeros((2, 2)), np.zeros((2, 2))
    self.c_k = [np.zeros((2, 2)) for _ in _CLIENTS]
    self.n = _SIZES.sum()

  def round(self, *cohort):
    w_t, c, moved = self.w, self.c, 0.0
    cohort_size = _SIZES[list(cohort)].sum()
    for k in cohort:
      change = lambda w, c_k=self.c_k[k]: c - c_k  # noqa: E731
      w_k = rounds.train(
          w_t, _CLIENTS[k], self.steps, self.eta, rho=self.rho, decay=self.decay, change=change
      )
      moved += _SIZES[k] / cohort_size * (w_k - w_t)
      new = self.c_k[k] - c + (w_t - w_k) / (self.reach * self.eta)
      self.c = self.c + _SIZES[k] / self.n * (new - self.c_k[k])
      self.c_k[k] = new
    self.w = w_t + self.server_learning_rate * moved
    self.eta *= self.falls

  def go_on_with(self, *clients):
    sizes = _SIZES[list(clients)]
    self.c = np.average([self.c_k[k] for k in clients], axis=0, weights=sizes)
    self.n = sizes.sum()


def _server_variate(federation):
  return np.asarray(federation.state.finalizer['variate'][0])


class ScaffoldTest(federated_test_case.FederatedTestCase):

  @parameterized.parameters(0.0, 0.9)
  def test_first_round_is_fed_avg(self, rho):
    training = rounds.full_batch(3, momentum=rho)
    first = rounds.Federation('scaffold', _CLIENTS, training).steps(1)
    plain = rounds.Federation('fedavg', _CLIENTS, training).steps(1)
    np.testing.assert_array_equal(first, plain)

  @parameterized.parameters(
      {}, {'rho': 0.9, 'decay': 0.05}, {'server_learning_rate': 0.5}, {'falls': 0.5}
  )
  def test_rounds_of_some_clients_by_hand(self, **options):
    params = {k: v for k, v in options.items() if k == 'server_learning_rate'}
    training = rounds.full_batch(
        3, _ETA, momentum=options.get('rho', 0.0), weight_decay=options.get('decay', 0.0)
    )
    if 'falls' in options:
      training = training._replace(schedule=types.Schedule('exponential', options['falls']))
    federation = rounds.Federation('scaffold', _CLIENTS, training, **params)
    expected = _ByHand(3, **options)
    for cohort in [(0, 1), (1, 2), (0, 1, 2)]:
      federation.round(*cohort)
      expected.round(*cohort)
      np.testing.assert_allclose(federation.w, expected.w, atol=1e-5)
      np.testing.assert_allclose(_server_variate(federation), expected.c, atol=1e-5)
      for found, c_k in zip(federation.own(_VARIATE), expected.c_k, strict=True):
        np.testing.assert_allclose(found[0], c_k, atol=1e-5)
      # The server's is the mean of all clients', of those not in the round too.
      np.testing.assert_allclose(
          _server_variate(federation),
          np.average([c[0] for c in federation.own(_VARIATE)], axis=0, weights=_SIZES),
          atol=1e-6,
      )

  def test_goes_on_with_some_clients_alone_by_hand(self):
    federation = rounds.Federation('scaffold', _CLIENTS, rounds.full_batch(3, _ETA))
    expected = _ByHand(3)
    for either in (federation, expected):
      either.round(0, 1, 2)
      either.round(1, 2)
      either.go_on_with(0, 2)
    self.assertEqual(federation.state.finalizer['population'], 9)
    for cohort in [(0,), (0, 2)]:
      federation.round(*cohort)
      expected.round(*cohort)
      np.testing.assert_allclose(federation.w, expected.w, atol=1e-5)
      np.testing.assert_allclose(_server_variate(federation), expected.c, atol=1e-5)
      # Of them alone it is the mean again.
      kept = federation.own(_VARIATE)
      np.testing.assert_allclose(
          _server_variate(federation), (6 * kept[0][0] + 3 * kept[2][0]) / 9, atol=1e-6
      )

  @parameterized.parameters(0.0, 0.9)
  def test_a_variate_is_the_mean_gradient_of_the_clients_own_loss(self, rho):
    training = rounds.full_batch(3, 1e-4, momentum=rho)  # So short that gradients stay the same.
    federation = rounds.Federation('scaffold', _CLIENTS, training)
    for _ in range(2):
      federation.round()
    for c_k, client in zip(federation.own(_VARIATE), _CLIENTS, strict=True):
      np.testing.assert_allclose(c_k[0], rounds.gradient(np.zeros((2, 2)), *client), atol=2e-3)

  @parameterized.parameters(0.0, 0.5)
  def test_reaches_the_optimum_where_fed_avg_does_not(self, rho):
    best = rounds.optimum(rounds.DISAGREEING)
    training = rounds.full_batch(20, 0.5 * (1 - rho), momentum=rho)
    corrected = rounds.Federation('scaffold', rounds.DISAGREEING, training)
    plain = rounds.Federation('fedavg', rounds.DISAGREEING, training)
    np.testing.assert_allclose(corrected.steps(40)[-1], best, atol=1e-4)
    self.assertGreater(np.abs(plain.steps(40)[-1] - best).max(), 0.05)

  def test_client_without_a_step_keeps_its_variate(self):
    clients = (*rounds.DISAGREEING, ([], []))
    federation = rounds.Federation('scaffold', clients, rounds.full_batch(3))
    federation.round(0, 1, 2)
    federation.round(0, 2)  # The server's variate is not 0 any more.
    np.testing.assert_array_equal(federation.own(_VARIATE)[2][0], np.zeros((2, 2)))
    before = federation.w, _server_variate(federation)
    federation.round(2)
    np.testing.assert_array_equal((federation.w, _server_variate(federation)), before)

  def test_moving_statistics_have_no_variate(self):
    model = toy.linear_model('batch')
    federation = rounds.Federation('scaffold', _CLIENTS, rounds.full_batch(3), model)
    plain = rounds.Federation('fedavg', _CLIENTS, rounds.full_batch(3), model)
    for _ in range(2):
      federation.round()
      plain.round()
    self.assertLen(federation.own(_VARIATE)[0], len(model.weights_type.trainable))
    for found, expected in zip(
        federation.weights.non_trainable, plain.weights.non_trainable, strict=True
    ):
      np.testing.assert_allclose(found, expected, atol=1e-6)

  def test_secure_sums_give_the_same(self):
    training = rounds.full_batch(5, momentum=0.5)
    plain = rounds.Federation('scaffold', _CLIENTS, training)
    secure = rounds.Federation(
        'scaffold', _CLIENTS, training,
        # Fits the updates; variates, which are longer without the factor eta, fit too.
        aggregation=aggregation.secure_weighted_mean(update_bound=2.0, max_examples=9),
    )
    for cohort in [(0, 1), (1, 2), (0, 1, 2)]:
      plain.round(*cohort)
      secure.round(*cohort)
      np.testing.assert_allclose(secure.w, plain.w, atol=1e-5)
      np.testing.assert_allclose(_server_variate(secure), _server_variate(plain), atol=1e-5)


class ParamsTest(absltest.TestCase):

  def test_mistakes_are_told(self):
    with self.assertRaisesRegex(ValueError, 'server_learning_rate must be positive, got -1'):
      parameters.ScaffoldParams(server_learning_rate=-1.0)


if __name__ == '__main__':
  absltest.main()
