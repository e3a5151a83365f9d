"""Whole algorithms give the same in every runtime."""

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from tests import toy
from tests.program import runs
from tests.runtimes import workers as workers_lib
from tff_noise import types
from tff_noise.algorithms import catalog
from tff_noise.federated import aggregation
from tff_noise.federated import task as task_lib
from tff_noise.privacy import protection
from tff_noise.runtimes import accelerator
from tff_noise.runtimes import local
from tff_noise.runtimes import remote

# One for each way in which values go between clients and server: weighted sums, secure sums, label
# histograms, client state, single clients' models, iterations over single clients, nobody.
_ALGORITHMS = {
    'fedavg': {}, 'feddpcont': {}, 'scaffold': {}, 'clipfl': {'keep': 2},
    'fedcorr': {'lid_neighbours': 2, 'split_guard': False}, 'elr': {},
}


def _task(name, federation):
  stages = catalog.ALGORITHMS[name].stages
  task = task_lib.Task(
      toy.linear_model('batch'),
      types.LocalTraining(2, 3, 0.1),
      seed=3,
      client_sizes=federation.sizes,
      clients_per_round=3,
      rounds=3 + 8 * len(stages),
      stages=dict.fromkeys(stages, 2),
      label_privacy=task_lib.LabelPrivacy('1.0'),
      validation=types.Examples(np.eye(2, dtype=np.float32), np.array([0, 1], np.int32)),
  )
  if name == 'feddpcont':
    secure = aggregation.secure_weighted_mean(update_bound=4.0, max_examples=100)
    task = task._replace(aggregation=secure)
  if name == 'elr':
    # Poisson samples of one on average; the second is empty.
    shield = protection.NoisySum(1.0, 1.0, 1, 4, sampling=protection.POISSON)
    task = task._replace(
        model=toy.linear_model(), sampling=protection.POISSON, clients_per_round=1,
        aggregation=aggregation.dp_mean(shield, noise_key=bytes(32), secure=False),
    )
  return task


class ParityTest(parameterized.TestCase):

  @parameterized.parameters(*_ALGORITHMS)
  def test_same_weights_and_client_states(self, name):
    federation = toy.two_corners((9, 4, 12, 7))
    workers = workers_lib.Workers(2)
    self.addCleanup(workers.stop_all)
    # The same computations, compiled for each.
    task, entry = _task(name, federation), catalog.ALGORITHMS[name]
    algorithm = entry.build(task, entry.params(**_ALGORITHMS[name]))
    found = {}
    for runtime, opened in (
        ('local', local.runtime(2)),
        ('accelerator', accelerator.runtime(2)),
        ('remote', remote.runtime(workers.addresses)),
    ):
      with opened:
        found[runtime], _ = runs.run(
            algorithm, task, federation, self.create_tempdir().full_path
        )
    expected = found.pop('local')
    for runtime, state in found.items():
      with self.subTest(runtime):
        for own, other in zip(
            tf.nest.flatten((state.state, state.own)),
            tf.nest.flatten((expected.state, expected.own)),
            strict=True,
        ):
          if np.asarray(own).dtype.kind == 'S':  # The state of a sum with noise has names in it.
            self.assertEqual(own, other)
          else:
            np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-6)


if __name__ == '__main__':
  absltest.main()
