"""Tests that flags reach the runtime that they ask for."""

from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from tff_noise.runtimes import accelerator
from tff_noise.runtimes import local
from tff_noise.runtimes import opening
from tff_noise.runtimes import remote
from tff_noise.runtimes import worker_process


class OpeningTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.opened = {
        name: self.enter_context(mock.patch.object(module, 'runtime'))
        for name, module in (('local', local), ('remote', remote), ('accelerator', accelerator))
    }

  @parameterized.product(name=['local', 'remote', 'accelerator'], shows=[True, False])
  def test_opens_the_one_that_is_named(self, name, shows):
    workers = ('a:1', 'b:2')
    opening.opened(name, workers=workers, shows_client_errors=shows)
    given = {
        'local': worker_process.cores(), 'accelerator': 2, 'remote': workers,
    }[name]
    self.opened.pop(name).assert_called_once_with(given, shows_client_errors=shows)
    for other in self.opened.values():
      other.assert_not_called()

  @parameterized.parameters('local', 'accelerator')
  def test_a_number_of_clients_that_is_given(self, name):
    opening.opened(name, max_concurrent_clients=7)
    self.opened[name].assert_called_once_with(7, shows_client_errors=False)

  def test_rounds_repeat_to_the_bit_where_neither_gpus_nor_numbers_of_workers_decide(self):
    for gpu in (True, False):
      with mock.patch.object(accelerator, 'has_gpu', lambda gpu=gpu: gpu):
        found = [opening.repeats(name) for name in ('local', 'accelerator', 'remote')]
      self.assertEqual(found, [True, not gpu, False])


if __name__ == '__main__':
  absltest.main()
