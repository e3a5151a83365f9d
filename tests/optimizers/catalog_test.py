"""What holds for every federated optimizer."""

import copy
import dataclasses
import functools
import subprocess
import sys

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tests.optimizers import rounds
from tff_noise import types
from tff_noise.federated import task as task_lib
from tff_noise.optimizers import catalog

# So large that its variance overflows.
_HUGE = ([[3e38, 0.0]], [0])
_CLIENTS = (*rounds.DISAGREEING, _HUGE)
_TRAINING = rounds.full_batch(2, learning_rate=1.0)


# Those whose server averages; others have their own tests.
_NAMES = (
    'fedavg', 'fedprox', 'fednova', 'fedadam', 'fedyogi', 'fedadagrad', 'feddyn', 'scaffold',
    'fedbn',
)


@functools.cache
def _started(name):
  return rounds.Federation(name, _CLIENTS, _TRAINING, toy.linear_model('batch'))


class CatalogTest(parameterized.TestCase):

  @parameterized.parameters('feddyn', 'scaffold', 'fednova')
  def test_who_has_to_know_how_many_examples_there_are_says_so(self, name):
    task = task_lib.Task(toy.linear_model(), _TRAINING)
    entry = catalog.OPTIMIZERS[name]
    with self.assertRaisesRegex(ValueError, 'build it from a task with client_sizes'):
      optimizer = entry.build(task, entry.params())
      optimizer.server.initialize()

  def test_names(self):
    self.assertContainsSubset(_NAMES, catalog.OPTIMIZERS)
    for name, entry in catalog.OPTIMIZERS.items():
      self.assertEqual(entry.name, name)

  @parameterized.parameters(*catalog.OPTIMIZERS)
  def test_params_are_frozen_and_have_defaults(self, name):
    params = catalog.OPTIMIZERS[name].params()
    for field in dataclasses.fields(params):
      with self.assertRaises(dataclasses.FrozenInstanceError):
        setattr(params, field.name, getattr(params, field.name))

  def test_names_and_params_are_there_before_tensorflow(self):
    code = (
        'import sys; from tff_noise.optimizers import catalog; '
        '[entry.params() for entry in catalog.OPTIMIZERS.values()]; '
        'sys.exit("tensorflow" in sys.modules)'
    )
    subprocess.run([sys.executable, '-c', code], check=True, env={'PYTHONPATH': ':'.join(sys.path)})


class EveryOptimizerTest(federated_test_case.FederatedTestCase):

  def _federation(self, name):
    """Before the first round; built once, which takes most of the time."""
    federation = copy.copy(_started(name))
    federation.kept = list(federation.kept)
    return federation

  def _snapshot(self, federation, client=None):
    kept = () if client is None else federation.kept[client]
    values = (federation.weights, federation.state.finalizer, kept)
    return [np.asarray(v) for v in tf.nest.flatten(values)]

  def _assert_same(self, found, expected, tolerance=0.0):
    self.assertEqual(len(found), len(expected))
    for a, b in zip(found, expected, strict=True):
      self.assertTrue(np.isfinite(a).all())
      np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)

  @parameterized.parameters(*_NAMES)
  def test_client_that_diverged_changes_nothing(self, name):
    federation, without = self._federation(name), self._federation(name)
    never = self._snapshot(federation, 2)
    self.assertEqual(federation.round(2)['rejected'], 1)
    self._assert_same(self._snapshot(federation, 2), never)
    for _ in range(2):
      self.assertEqual(federation.round(0, 1, 2)['rejected'], 1)
      without.round(0, 1)
      # Sums of three terms, one of them 0, and of two: the last digit may differ.
      self._assert_same(self._snapshot(federation, 0), self._snapshot(without, 0), 1e-4)
    # Alone again, now that the server remembers something.
    before = self._snapshot(federation, 2)
    self.assertEqual(federation.round(2)['rejected'], 1)
    self._assert_same(self._snapshot(federation, 2), before)

  @parameterized.parameters('fednova', 'scaffold')
  def test_what_reckons_with_steps_of_sgd_refuses_others(self, name):
    with self.assertRaisesRegex(
        types.UsageError, f'^--local_optimizer=adam: {name} reckons with .*--local_optimizer=sgd'
    ):
      rounds.Federation(name, _CLIENTS, _TRAINING._replace(optimizer='adam'))

  @parameterized.parameters('feddyn', 'scaffold', 'fedbn')
  def test_client_that_diverges_later_keeps_what_it_had(self, name):
    federation = self._federation(name)
    federation.round(0, 1)
    before = self._snapshot(federation, 0)
    federation.clients = (_HUGE, *_CLIENTS[1:])
    self.assertEqual(federation.round(0)['rejected'], 1)
    self._assert_same(self._snapshot(federation, 0), before)

  @parameterized.parameters(*_NAMES)
  def test_order_of_the_clients_does_not_matter(self, name):
    one, other = self._federation(name), self._federation(name)
    for _ in range(2):
      one.round(0, 1)
      other.round(1, 0)
    self._assert_same(self._snapshot(one, 0), self._snapshot(other, 0), 1e-4)


if __name__ == '__main__':
  absltest.main()
