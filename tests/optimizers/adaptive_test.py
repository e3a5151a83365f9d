"""Tests of FedAdam, FedYogi and FedAdagrad."""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tests.optimizers import rounds
from tff_noise.optimizers import parameters

_TRAINING = rounds.full_batch(3)

# From (v, Delta, beta2) to the next v.
_SECOND_MOMENTS = {
    'fedadam': lambda v, d, beta2: beta2 * v + (1 - beta2) * d**2,
    'fedyogi': lambda v, d, beta2: v - (1 - beta2) * d**2 * np.sign(v - d**2),
    'fedadagrad': lambda v, d, beta2: v + d**2,
}


def _by_hand(name, num_rounds, eta, beta1, beta2, tau):
  w, m, v = np.zeros((2, 2)), np.zeros((2, 2)), np.full((2, 2), tau**2)
  found = []
  for _ in range(num_rounds):
    delta = sum(
        p * (rounds.train(w, client, 3) - w)
        for p, client in zip([0.4, 0.6], rounds.DISAGREEING, strict=True)
    )
    m = beta1 * m + (1 - beta1) * delta
    v = _SECOND_MOMENTS[name](v, delta, beta2)
    w = w + eta * m / (np.sqrt(v) + tau)
    found.append(w)
  return found


class AdaptiveTest(federated_test_case.FederatedTestCase):

  @parameterized.product(name=list(_SECOND_MOMENTS), tau=[0.01, 0.2])
  def test_three_rounds_by_hand(self, name, tau):
    params = {'server_learning_rate': 0.1, 'beta1': 0.8, 'beta2': 0.7, 'tau': tau}
    expected = _by_hand(name, 3, *params.values())
    if name == 'fedadagrad':
      del params['beta2']
    federation = rounds.Federation(name, rounds.DISAGREEING, _TRAINING, **params)
    np.testing.assert_allclose(federation.steps(3), expected, atol=1e-5)

  @parameterized.parameters(
      ('fedadam', 0.9, 0.99), ('fedyogi', 0.9, 0.99), ('fedadagrad', 0.0, 0.0)
  )
  def test_defaults_are_those_of_the_paper(self, name, beta1, beta2):
    federation = rounds.Federation(name, rounds.DISAGREEING, _TRAINING)
    expected = _by_hand(name, 2, 0.01, beta1, beta2, 0.001)
    np.testing.assert_allclose(federation.steps(2), expected, atol=1e-6)

  def test_first_step_is_not_corrected_for_bias(self):
    # With correction it would be eta in every entry that moves.
    federation = rounds.Federation('fedadam', rounds.DISAGREEING, _TRAINING, tau=1e-6)
    moved = np.abs(federation.steps(1)[0])
    np.testing.assert_allclose(moved, 0.01 * 0.1 / np.sqrt(0.01), rtol=1e-3)

  @parameterized.parameters(*_SECOND_MOMENTS)
  def test_moving_statistics_are_averaged_as_by_fed_avg(self, name):
    model = toy.linear_model('batch')
    plain = rounds.Federation('fedavg', rounds.DISAGREEING, _TRAINING, model)
    federation = rounds.Federation(name, rounds.DISAGREEING, _TRAINING, model)
    start = federation.weights.non_trainable
    # Moving statistics are a function of the examples alone in this model.
    for _ in range(2):
      plain.round()
      federation.round()
    for found, expected, first in zip(
        federation.weights.non_trainable, plain.weights.non_trainable, start, strict=True
    ):
      self.assertGreater(np.abs(found - first).max(), 0.1)
      np.testing.assert_allclose(found, expected, atol=1e-6)

  @parameterized.parameters(*_SECOND_MOMENTS)
  def test_round_without_any_update_changes_nothing(self, name):
    clients = (rounds.DISAGREEING[0], ([], []))
    federation = rounds.Federation(name, clients, _TRAINING, beta1=0.9)
    federation.round(0)
    before = federation.w
    federation.round(1)
    np.testing.assert_array_equal(federation.w, before)
    federation.round(0)
    direct = rounds.Federation(name, clients, _TRAINING, beta1=0.9)
    np.testing.assert_array_equal(direct.steps(2, 0)[1], federation.w)


class ParamsTest(parameterized.TestCase):

  @parameterized.parameters(
      ({'server_learning_rate': 0.0}, 'server_learning_rate must be positive, got 0.0'),
      ({'tau': 0.0}, 'tau must be positive, got 0.0'),
      ({'beta1': 1.0}, 'beta1 must be at least 0 and below 1, got 1.0'),
      ({'beta2': -0.1}, 'beta2 must be at least 0 and below 1, got -0.1'),
  )
  def test_mistakes_are_told(self, params, message):
    with self.assertRaisesRegex(ValueError, message):
      parameters.FedAdamParams(**params)
    if 'beta2' not in params:
      with self.assertRaisesRegex(ValueError, message):
        parameters.FedAdagradParams(**params)


if __name__ == '__main__':
  absltest.main()
