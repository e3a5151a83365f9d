"""Whole methods give the same in every runtime."""

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tests.runtimes import workers as workers_lib
from tff_noise import types
from tff_noise.federated import aggregation
from tff_noise.methods import method as method_lib
from tff_noise.methods import registry
from tff_noise.runtimes import accelerator
from tff_noise.runtimes import local
from tff_noise.runtimes import remote
from tff_noise.selection import availability

# One for each way in which values go between clients and server: weighted sums, secure sums, label
# histograms, client state, single clients' models, iterations over single clients.
_METHODS = {
    'fedavg': {}, 'feddpcont': {}, 'scaffold': {}, 'clipfl': {'keep': 2},
    'fedcorr': {'lid_neighbours': 2, 'split_guard': False},
}


def _schedule(name, federation):
  method = registry.METHODS[name]
  task = method_lib.Task(
      model=toy.linear_model('batch'),
      training=types.LocalTraining(2, 3, 0.1),
      aggregation=(
          aggregation.secure_weighted_mean(update_bound=4.0, max_examples=100)
          if name == 'feddpcont' else aggregation.weighted_mean()
      ),
      label_privacy=method_lib.LabelPrivacy('1.0', 'shrinkage'),
      rounds=3 + 8 * len(method.stages),
      stages=dict.fromkeys(method.stages, 2),
      clients_per_round=3,
      availability=availability.always(len(federation.clients)),
      client_sizes=federation.sizes,
      seed=3,
      validation=types.Examples(np.eye(2, dtype=np.float32), np.array([0, 1], np.int32)),
  )
  return method.build(task, method.params(**_METHODS[name]))


class ParityTest(parameterized.TestCase):

  @parameterized.parameters(*_METHODS)
  def test_same_weights_and_client_states(self, name):
    federation = toy.two_corners((9, 4, 12, 7))
    workers = workers_lib.Workers(2)
    self.addCleanup(workers.stop_all)
    # The same computations, compiled for each.
    schedule = _schedule(name, federation)
    found = {}
    for runtime, opened in (
        ('local', local.runtime(2)),
        ('accelerator', accelerator.runtime(2)),
        ('remote', remote.runtime(workers.addresses)),
    ):
      with opened:
        found[runtime], _ = federated_test_case.run(
            schedule, federation, self.create_tempdir().full_path
        )
    expected = found.pop('local')
    for runtime, state in found.items():
      with self.subTest(runtime):
        for kept in ('server', 'local', 'local_optimizer', 'records'):
          for own, other in zip(
              tf.nest.flatten(getattr(state, kept)), tf.nest.flatten(getattr(expected, kept)),
              strict=True,
          ):
            np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-6)


if __name__ == '__main__':
  absltest.main()
