"""Tests of FedProx."""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests.optimizers import rounds
from tff_noise.optimizers import parameters

_START = [[0.3, -0.2], [0.1, 0.4]]


def _force(term, mu, w_t):
  def force(w):
    moved = w - w_t
    norm = np.linalg.norm(moved)
    if term == 'norm':
      return mu * moved / norm if norm else 0 * moved
    return mu * moved

  return force


class FedProxTest(federated_test_case.FederatedTestCase):

  @parameterized.product(term=['squared', 'norm'], steps=[2, 3], rho=[0.0, 0.9])
  def test_later_steps_are_pulled_to_the_start_by_hand(self, term, steps, rho):
    client, w_t = rounds.DISAGREEING[0], np.array(_START)
    training = rounds.full_batch(steps, momentum=rho)
    federation = rounds.Federation(
        'fedprox', [client], training, weights=_START, mu=0.7, term=term
    )
    expected = rounds.train(w_t, client, steps, rho=rho, change=_force(term, 0.7, w_t))
    np.testing.assert_allclose(federation.steps(1)[0], expected, atol=1e-6)
    # Not what code does whose term is always 0.
    self.assertGreater(np.abs(expected - rounds.train(w_t, client, steps, rho=rho)).max(), 0.01)

  @parameterized.parameters('squared', 'norm')
  def test_first_step_feels_nothing(self, term):
    training = rounds.full_batch(1)
    prox = rounds.Federation(
        'fedprox', rounds.DISAGREEING, training, weights=_START, mu=5.0, term=term
    )
    plain = rounds.Federation('fedavg', rounds.DISAGREEING, training, weights=_START)
    np.testing.assert_array_equal(prox.steps(1), plain.steps(1))

  def test_without_mu_it_is_fed_avg(self):
    training = rounds.full_batch(3, momentum=0.9, weight_decay=0.01)
    prox = rounds.Federation('fedprox', rounds.DISAGREEING, training, mu=0.0)
    plain = rounds.Federation('fedavg', rounds.DISAGREEING, training)
    np.testing.assert_array_equal(prox.steps(2), plain.steps(2))

  def test_a_strong_term_keeps_the_model_near(self):
    training = rounds.full_batch(50, learning_rate=0.1)
    moved = [
        np.abs(rounds.Federation('fedprox', rounds.DISAGREEING, training, mu=mu).steps(1)[0]).max()
        for mu in (0.0, 1.0, 8.0)
    ]
    self.assertGreater(moved[0], 2 * moved[1])
    self.assertGreater(moved[1], 2 * moved[2])


class ParamsTest(absltest.TestCase):

  def test_mistakes_are_told(self):
    with self.assertRaisesRegex(ValueError, 'mu must not be negative, got -1'):
      parameters.FedProxParams(mu=-1.0)
    with self.assertRaisesRegex(ValueError, "term must be one of squared, norm, got 'l1'"):
      parameters.FedProxParams(term='l1')


if __name__ == '__main__':
  absltest.main()
