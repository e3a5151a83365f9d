"""Tests of FedAvg."""

import numpy as np
from absl.testing import absltest

from tests import federated_test_case
from tests.optimizers import rounds
from tff_noise.optimizers import parameters


class FedAvgTest(federated_test_case.FederatedTestCase):

  def test_one_round_by_hand(self):
    federation = rounds.Federation(
        'fedavg', rounds.DISAGREEING, rounds.full_batch(3), server_learning_rate=0.5
    )
    w_k = [rounds.train(np.zeros((2, 2)), client, 3) for client in rounds.DISAGREEING]
    expected = 0.5 * np.average(w_k, axis=0, weights=[6, 9])
    np.testing.assert_allclose(federation.steps(1)[0], expected, atol=1e-6)


class ParamsTest(absltest.TestCase):

  def test_mistakes_are_told(self):
    for bad in (0.0, -1.0, float('nan')):
      with self.assertRaisesRegex(ValueError, f'server_learning_rate must be positive, got {bad}'):
        parameters.FedAvgParams(server_learning_rate=bad)


if __name__ == '__main__':
  absltest.main()
