"""SCE: its loss in clients' training by hand, what it sends, and what it degenerates to."""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tests.algorithms import method_runs
from tff_noise import params as params_lib
from tff_noise import types
from tff_noise.algorithms import catalog


class SCETest(federated_test_case.FederatedTestCase):

  def test_one_step_by_hand(self):
    # At W = 0, p_y = 1/2: CE's gradient is (p - e_y) x, RCE's 9.210340 p_y (p - e_y) x.
    federation = method_runs.one_client(method_runs.X[:1], method_runs.Y[:1])
    task = method_runs.task(federation, training=types.LocalTraining(1, 1, 0.1), rounds=1)
    weights, clients = method_runs.trained('sce', federation, task, alpha=0.5, beta=1.0)
    pull = 0.1 * (0.5 + 9.210340 / 2) / 2
    np.testing.assert_allclose(weights, [[pull, -pull], [0, 0]], atol=1e-6)
    self.assertAlmostEqual(
        clients.traffic.train_loss, 0.5 * np.log(2) + 9.210340 / 2, places=5
    )

  @parameterized.parameters((0.1, 1.0), (6.0, 0.1), (0.0, 1.0))
  def test_equals_numpy_over_epochs_and_rounds(self, alpha, beta):
    # In batches of all examples: their order does not matter.
    federation = method_runs.one_client()
    task = method_runs.task(federation, training=types.LocalTraining(3, 4, 0.05), rounds=2)
    found, _ = method_runs.trained('sce', federation, task, alpha=alpha, beta=beta)
    weights = np.zeros((2, 2))
    for _ in range(2 * 3):
      p = np.exp(method_runs.X @ weights)
      p /= p.sum(axis=1, keepdims=True)
      p_y = p[np.arange(4), method_runs.Y][:, np.newaxis]
      # d p_y = p_y (e_y - p) dz.
      of_logits = (alpha - beta * np.log(1e-4) * p_y) * (p - np.eye(2)[method_runs.Y])
      weights -= 0.05 * method_runs.X.T @ of_logits / 4
    np.testing.assert_allclose(found, weights, atol=1e-5)

  @parameterized.parameters('', 'fedprox', 'scaffold', 'feddyn')
  def test_without_the_reverse_term_it_is_the_optimizer_alone(self, base):
    federation = toy.two_corners([5, 7, 4])
    task = method_runs.task(federation, base)
    weights, _ = method_runs.trained('sce', federation, task, alpha=1.0, beta=0.0)  # --base
    alone, _ = method_runs.trained(base or 'fedavg', federation, method_runs.task(federation))
    np.testing.assert_allclose(weights, alone, atol=1e-6)
    robust, _ = method_runs.trained('sce', federation, method_runs.task(federation, base))
    self.assertGreater(np.abs(robust - alone).max(), 1e-2)

  def test_sends_what_fed_avg_sends(self):
    federation = toy.two_corners([5, 7])

    def build(name):
      entry = catalog.ALGORITHMS[name]
      return entry.build(method_runs.task(federation), entry.params())

    self.assertEqual(build('sce').fields, build('fedavg').fields)
    self.assertEmpty(build('sce').own)


class ParamsTest(parameterized.TestCase):

  @parameterized.parameters(
      (['alpha=-1'], 'alpha must not be negative'), (['alpha=0', 'beta=0'], 'must not both be 0'),
  )
  def test_out_of_range_is_refused_in_one_line(self, given, message):
    entry = catalog.ALGORITHMS['sce']
    with self.assertRaisesRegex(types.UsageError, f'^--param: .*{message}'):
      params_lib.parse('sce', entry.params, given)

  def test_default_is_that_of_rhfls_public_code(self):
    params = catalog.ALGORITHMS['sce'].params()
    self.assertEqual((params.alpha, params.beta), (0.1, 1.0))


if __name__ == '__main__':
  absltest.main()
