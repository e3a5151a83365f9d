"""Tests of FedDyn."""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests.optimizers import rounds
from tff_noise.optimizers import parameters

_CLIENTS = (*rounds.DISAGREEING, ([[1, 2]] * 3, [0, 1, 1]))
_SIZES = np.array([6, 9, 3])
_GRADIENT = 'feddyn_gradient'


class _ByHand:
  """FedDyn on the clients above, in NumPy."""

  def __init__(self, alpha, steps, **training):
    self.alpha, self.steps, self.training = alpha, steps, training
    self.w, self.h = np.zeros((2, 2)), np.zeros((2, 2))
    self.h_k = [np.zeros((2, 2)) for _ in _CLIENTS]
    self.n = _SIZES.sum()

  def round(self, *cohort):
    w_t, moved = self.w, {}
    for k in cohort:
      change = lambda w, h_k=self.h_k[k]: -h_k + self.alpha * (w - w_t)  # noqa: E731
      moved[k] = rounds.train(w_t, _CLIENTS[k], self.steps, change=change, **self.training) - w_t
      self.h_k[k] = self.h_k[k] - self.alpha * moved[k]
    mean = np.average(list(moved.values()), axis=0, weights=_SIZES[list(moved)])
    self.h = self.h - self.alpha * _SIZES[list(moved)].sum() / self.n * mean
    self.w = w_t + mean - self.h / self.alpha

  def go_on_with(self, *clients):
    sizes = _SIZES[list(clients)]
    self.h = np.average([self.h_k[k] for k in clients], axis=0, weights=sizes)
    self.n = sizes.sum()


class FedDynTest(federated_test_case.FederatedTestCase):

  @parameterized.parameters(
      (0.3, {}), (0.3, {'rho': 0.9, 'decay': 0.05})
  )
  def test_rounds_of_some_clients_by_hand(self, alpha, options):
    federation = rounds.Federation(
        'feddyn',
        _CLIENTS,
        rounds.full_batch(
            3, momentum=options.get('rho', 0.0), weight_decay=options.get('decay', 0.0)
        ),
        alpha=alpha,
    )
    expected = _ByHand(alpha, 3, **options)
    for cohort in [(0, 1), (1, 2), (0, 1, 2)]:
      federation.round(*cohort)
      expected.round(*cohort)
      np.testing.assert_allclose(federation.w, expected.w, atol=1e-5)
      for found, h_k in zip(federation.own(_GRADIENT), expected.h_k, strict=True):
        np.testing.assert_allclose(found[0], h_k, atol=1e-5)
      # What the server remembers is the mean of what the clients do.
      np.testing.assert_allclose(
          federation.state.finalizer['h'][0],
          np.average([h[0] for h in federation.own(_GRADIENT)], axis=0, weights=_SIZES),
          atol=1e-6,
      )

  def test_goes_on_with_some_clients_alone_by_hand(self):
    federation = rounds.Federation('feddyn', _CLIENTS, rounds.full_batch(3), alpha=0.3)
    expected = _ByHand(0.3, 3)
    for either in (federation, expected):
      either.round(0, 1, 2)
      either.round(1, 2)
      either.go_on_with(0, 2)
    self.assertEqual(federation.state.finalizer['population'], 9)
    for cohort in [(0,), (0, 2)]:
      federation.round(*cohort)
      expected.round(*cohort)
      np.testing.assert_allclose(federation.w, expected.w, atol=1e-5)
      # Of them alone it is the mean again.
      kept = federation.own(_GRADIENT)
      np.testing.assert_allclose(
          federation.state.finalizer['h'][0], (6 * kept[0][0] + 3 * kept[2][0]) / 9, atol=1e-6
      )

  def test_with_small_alpha_the_first_step_is_a_longer_one_of_fed_avg(self):
    training = rounds.full_batch(3)
    dyn = rounds.Federation('feddyn', _CLIENTS, training, alpha=1e-6)
    plain = rounds.Federation('fedavg', _CLIENTS, training)
    step = plain.steps(1, 0, 1)[0]
    np.testing.assert_allclose(dyn.steps(1, 0, 1)[0], (1 + 15 / 18) * step, atol=1e-5)
    # Local models are FedAvg's: what a client keeps is alpha times how far it moved.
    for k in (0, 1):
      moved = rounds.train(np.zeros((2, 2)), _CLIENTS[k], 3)
      np.testing.assert_allclose(np.asarray(dyn.own(_GRADIENT)[k][0]) / -1e-6, moved, atol=1e-5)

  def test_reaches_the_optimum_where_fed_avg_does_not(self):
    best = rounds.optimum(rounds.DISAGREEING)
    training = rounds.full_batch(20)
    dyn = rounds.Federation('feddyn', rounds.DISAGREEING, training, alpha=0.3)
    plain = rounds.Federation('fedavg', rounds.DISAGREEING, training)
    np.testing.assert_allclose(dyn.steps(40)[-1], best, atol=1e-4)
    self.assertGreater(np.abs(plain.steps(40)[-1] - best).max(), 0.05)
    # What clients keep are their gradients there.
    for h_k, client in zip(dyn.own(_GRADIENT), rounds.DISAGREEING, strict=True):
      np.testing.assert_allclose(h_k[0], rounds.gradient(best, *client), atol=1e-4)

  def test_round_without_any_update_changes_nothing(self):
    clients = (rounds.DISAGREEING[0], ([], []))
    federation = rounds.Federation('feddyn', clients, rounds.full_batch(3), alpha=0.3)
    federation.round(0)
    before = federation.w
    federation.round(1)
    np.testing.assert_array_equal(federation.w, before)


class ParamsTest(absltest.TestCase):

  def test_mistakes_are_told(self):
    with self.assertRaisesRegex(ValueError, 'alpha must be positive, got 0.0'):
      parameters.FedDynParams(alpha=0.0)


if __name__ == '__main__':
  absltest.main()
