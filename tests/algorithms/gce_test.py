"""GCE: its loss in clients' training by hand, what it sends, and what it degenerates to."""

import numpy as np
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tests.algorithms import method_runs
from tff_noise import params as params_lib
from tff_noise import types
from tff_noise.algorithms import catalog


class GCETest(federated_test_case.FederatedTestCase):

  def test_one_step_by_hand(self):
    # At W = 0, p_y = 1/2: the gradient is sqrt(1/2) (p - e_y) x, the loss (1 - sqrt(1/2)) / .5.
    federation = method_runs.one_client(method_runs.X[:1], method_runs.Y[:1])
    task = method_runs.task(federation, training=types.LocalTraining(1, 1, 1.0), rounds=1)
    weights, clients = method_runs.trained('gce', federation, task, q=0.5)
    np.testing.assert_allclose(weights, [[0.3535534, -0.3535534], [0, 0]], atol=1e-6)
    self.assertAlmostEqual(clients.traffic.train_loss, 0.5857864, places=5)

  @parameterized.parameters(0.3, 0.7, 1.0)
  def test_equals_numpy_over_epochs_and_rounds(self, q):
    # In batches of all examples: their order does not matter.
    federation = method_runs.one_client()
    task = method_runs.task(federation, training=types.LocalTraining(3, 4, 0.5), rounds=2)
    found, _ = method_runs.trained('gce', federation, task, q=q)
    weights = np.zeros((2, 2))
    for _ in range(2 * 3):
      p = np.exp(method_runs.X @ weights)
      p /= p.sum(axis=1, keepdims=True)
      p_y = p[np.arange(4), method_runs.Y][:, np.newaxis]
      # As public code has it: d(1 - p_y^q) / q = -p_y^(q - 1) dp_y, dp_y = p_y (e_y - p) dz.
      of_logits = -(p_y ** (q - 1)) * p_y * (np.eye(2)[method_runs.Y] - p)
      weights -= 0.5 * method_runs.X.T @ of_logits / 4
    np.testing.assert_allclose(found, weights, atol=1e-5)

  @parameterized.parameters('', 'fedprox', 'scaffold', 'feddyn')
  def test_almost_without_q_it_is_the_optimizer_alone(self, base):
    federation = toy.two_corners([5, 7, 4])
    task = method_runs.task(federation, base)
    weights, _ = method_runs.trained('gce', federation, task, q=1e-6)  # --base
    alone, _ = method_runs.trained(base or 'fedavg', federation, method_runs.task(federation))
    np.testing.assert_allclose(weights, alone, atol=1e-5)
    robust, _ = method_runs.trained('gce', federation, method_runs.task(federation, base))
    self.assertGreater(np.abs(robust - alone).max(), 1e-2)

  def test_a_label_that_the_model_rules_out_moves_nothing(self):
    # exp(-2000) is 0 in float32; the power of it would have a gradient of 0 times infinity.
    task = method_runs.task(method_runs.one_client(), training=types.LocalTraining(1, 1, 1.0))
    entry = catalog.ALGORITHMS['gce']
    process = entry.build(task, entry.params()).computations[0].process
    sure = np.array([[1, -1], [0, 0]], np.float32)
    state = process.set_model_weights(
        process.initialize(), tff.learning.models.ModelWeights([sure], [])
    )
    output = process.next(state, [toy.client(0, [[1000, 0]], [1])])
    self.assertEqual(output.metrics['client_work']['train']['rejected'], 0)
    np.testing.assert_array_equal(process.get_model_weights(output.state).trainable[0], sure)

  def test_sends_what_fed_avg_sends(self):
    federation = toy.two_corners([5, 7])

    def build(name):
      entry = catalog.ALGORITHMS[name]
      return entry.build(method_runs.task(federation), entry.params())

    self.assertEqual(build('gce').fields, build('fedavg').fields)
    self.assertEmpty(build('gce').own)


class ParamsTest(parameterized.TestCase):

  @parameterized.parameters('0', '-0.5', '1.01')
  def test_q_out_of_range_is_refused_in_one_line(self, q):
    entry = catalog.ALGORITHMS['gce']
    message = f'^--param: q must be above 0 and at most 1, got {float(q)}$'
    with self.assertRaisesRegex(types.UsageError, message):
      params_lib.parse('gce', entry.params, [f'q={q}'])

  def test_default_is_the_papers(self):
    self.assertEqual(catalog.ALGORITHMS['gce'].params().q, 0.7)


if __name__ == '__main__':
  absltest.main()
