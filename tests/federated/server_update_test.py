"""Tests of the server's step."""

import numpy as np
import tensorflow_federated as tff
from absl.testing import absltest

from tests import federated_test_case
from tff_noise.federated import server_update

_WEIGHTS = tff.learning.models.ModelWeights
_TYPE = tff.to_type(_WEIGHTS([(np.float32, (2,))], [(np.float32, (1,))]))


def _weights(trainable, non_trainable):
  return _WEIGHTS([np.array(trainable, np.float32)], [np.array(non_trainable, np.float32)])


class ServerUpdateTest(federated_test_case.FederatedTestCase):

  def _step(self, optimizer, steps=1):
    process = server_update.build_server_update(optimizer, _TYPE)
    state, weights = process.initialize(), _weights([1, 1], [4])
    for _ in range(steps):
      output = process.next(state, weights, _weights([0.5, -0.5], [1]))
      state, weights = output.state, output.result
    return weights

  def test_type_signature(self):
    process = server_update.build_server_update(tff.learning.optimizers.build_sgdm(1.0), _TYPE)
    weights = '<trainable=<float32[2]>,non_trainable=<float32[1]>>@SERVER'
    self.assertEqual(
        str(process.next.type_signature),
        f'(<state=<learning_rate=float32>@SERVER,weights={weights},update={weights}> -> '
        f'<state=<learning_rate=float32>@SERVER,result={weights},measurements=<>@SERVER>)',
    )

  def test_step_size_one_moves_to_the_mean_of_the_clients(self):
    weights = self._step(tff.learning.optimizers.build_sgdm(1.0))
    np.testing.assert_allclose(weights.trainable[0], [0.5, 1.5])

  def test_step_size_scales_towards_the_clients_not_away(self):
    weights = self._step(tff.learning.optimizers.build_sgdm(0.5))
    np.testing.assert_allclose(weights.trainable[0], [0.75, 1.25])

  def test_batch_statistics_bypass_step_size_and_momentum(self):
    weights = self._step(tff.learning.optimizers.build_sgdm(0.5, momentum=0.9), steps=2)
    np.testing.assert_allclose(weights.non_trainable[0], [2])
    # v1 = u, v2 = .9 u + u: w = 1 - .5 (1 + 1.9) u.
    np.testing.assert_allclose(weights.trainable[0], [1 - 1.45 * 0.5, 1 + 1.45 * 0.5])


if __name__ == '__main__':
  absltest.main()
