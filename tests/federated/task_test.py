"""Tests of a task that changes its model."""

from absl.testing import absltest

from tests import federated_test_case
from tests import toy
from tff_noise.federated import optimizer
from tff_noise.federated import task as task_lib
from tff_noise.models import keras_model
from tff_noise.optimizers import catalog


class WithModelTest(federated_test_case.FederatedTestCase):

  def setUp(self):
    super().setUp()
    self.task = task_lib.Task(toy.linear_model())
    self.twin = keras_model.several(self.task.model, 2, 'first')

  def test_optimizer_is_that_of_the_new_model(self):
    entry = catalog.OPTIMIZERS['fedadam']
    optimizer_of_one = entry.build(self.task, entry.params(tau=0.5))
    task = self.task._replace(optimizer=optimizer_of_one).with_model(self.twin)
    self.assertIs(task.model, self.twin)
    self.assertEqual(task.optimizer.name, 'fedadam')
    for t in (task, task.with_model(self.twin)):
      state = t.optimizer.server.initialize()
      self.assertEqual([v.numpy().tolist() for v in state['v']], [[[0.25] * 2] * 2] * 2)

  def test_without_an_optimizer(self):
    self.assertIsNone(self.task.with_model(self.twin).optimizer)

  def test_an_optimizer_that_nobody_can_rebuild_is_refused(self):
    fed_avg = optimizer.fed_avg(self.task.model.weights_type)
    with self.assertRaisesRegex(ValueError, 'fedavg.*built for one model: take it from the catal'):
      self.task._replace(optimizer=fed_avg).with_model(self.twin)


if __name__ == '__main__':
  absltest.main()
