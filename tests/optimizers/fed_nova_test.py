"""Tests of FedNova."""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tests.optimizers import rounds
from tff_noise import types
from tff_noise.federated import aggregation

# Batches of one of equal examples: any order gives the same steps, n_k of them an epoch.
_ONE = ([[1.0, 0.0]], [0])
_THREE = ([[0.5, 1.0]] * 3, [1] * 3)
_UNEQUAL = (_ONE, _THREE)


def _batches_of_one(rho=0.0):
  return types.LocalTraining(epochs=2, batch_size=1, learning_rate=0.5, momentum=rho)


def _coefficients(steps, rho):
  return sum((1 - rho ** (steps - i)) / (1 - rho) for i in range(steps))


class FedNovaTest(federated_test_case.FederatedTestCase):

  @parameterized.parameters(0.0, 0.9)
  def test_equals_fed_avg_where_all_take_as_many_steps(self, rho):
    training = rounds.full_batch(4, momentum=rho)
    nova = rounds.Federation('fednova', rounds.DISAGREEING, training)
    plain = rounds.Federation('fedavg', rounds.DISAGREEING, training)
    np.testing.assert_allclose(nova.steps(2), plain.steps(2), atol=1e-6)

  @parameterized.parameters(0.0, 0.9)
  def test_unequal_steps_by_hand(self, rho):
    federation = rounds.Federation('fednova', _UNEQUAL, _batches_of_one(rho))
    w = np.zeros((2, 2))
    for found in federation.steps(2):
      a = np.array([_coefficients(2, rho), _coefficients(6, rho)])
      w_k = [rounds.train(w, _ONE, 2, rho=rho), rounds.train(w, _THREE, 6, rho=rho)]
      direction = sum(p * (w - v) / s for p, v, s in zip([0.25, 0.75], w_k, a, strict=True))
      w = w - (0.25 * a[0] + 0.75 * a[1]) * direction
      np.testing.assert_allclose(found, w, atol=1e-5)

  def test_clients_weigh_by_their_examples_alone(self):
    # In short steps gradients stay as they are at 0. Each row of the matrix is moved by a client of
    # its own, by gradients of the same size: rows move like 1 to 3 by examples, and like 1 to 9
    # where three times the steps count too.
    clients = (([[1.0, 0.0]], [0]), ([[0.0, 1.0]] * 3, [0] * 3))
    training = types.LocalTraining(epochs=1, batch_size=1, learning_rate=1e-3)
    for name, ratio in (('fednova', 3), ('fedavg', 9)):
      w = rounds.Federation(name, clients, training).steps(1)[0]
      self.assertAlmostEqual(w[1, 0] / w[0, 0], ratio, places=1)

  def test_client_without_examples_counts_for_nothing(self):
    with_empty = rounds.Federation('fednova', (*_UNEQUAL, ([], [])), _batches_of_one(0.9))
    without = rounds.Federation('fednova', _UNEQUAL, _batches_of_one(0.9))
    np.testing.assert_allclose(with_empty.steps(2, 0, 1, 2), without.steps(2), atol=1e-6)
    before = with_empty.w
    np.testing.assert_array_equal(with_empty.steps(1, 2)[0], before)

  def test_moving_statistics_are_not_normalised(self):
    federations = [
        rounds.Federation(name, _UNEQUAL, _batches_of_one(), model=toy.linear_model('batch'))
        for name in ('fednova', 'fedavg')
    ]
    for federation in federations:
      federation.round()
    for nova, plain in zip(*(f.weights.non_trainable for f in federations), strict=True):
      self.assertGreater(np.abs(plain - np.round(plain)).max(), 0.01)  # Neither 0 nor 1.
      np.testing.assert_allclose(nova, plain, atol=1e-6)

  def test_normalizer_fits_its_public_bound(self):
    federation = rounds.Federation('fednova', _UNEQUAL, _batches_of_one(0.9))
    self.assertAlmostEqual(
        federation.round()['normalizer'],
        _coefficients(2, 0.9) + 3 * _coefficients(6, 0.9),
        places=4,
    )
    secure = rounds.Federation(
        'fednova', _UNEQUAL, _batches_of_one(0.9),
        aggregation=aggregation.secure_weighted_mean(update_bound=4.0, max_examples=3),
    )
    (field,) = (f for f in secure.built.fields if f.name == 'normalizer')
    self.assertEqual(field.lower, 0)
    self.assertAlmostEqual(field.upper, 3 * _coefficients(6, 0.9), places=6)

  def test_secure_sums_give_the_same(self):
    plain = rounds.Federation('fednova', _UNEQUAL, _batches_of_one(0.9))
    secure = rounds.Federation(
        'fednova', _UNEQUAL, _batches_of_one(0.9),
        aggregation=aggregation.secure_weighted_mean(update_bound=4.0, max_examples=3),
    )
    np.testing.assert_allclose(secure.steps(3), plain.steps(3), atol=1e-5)


if __name__ == '__main__':
  absltest.main()
