"""Tests of what users are told of data of their own."""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise import types
from tff_noise.program import flags
from tff_noise.program import notices

_OWN = ('--dataset=npz', '--data_dir=x')


def _told(x, *words, **fields):
  nobody = np.zeros(len(x), np.int32)
  dataset = types.Dataset('npz', x, nobody, x, nobody, 2, x.shape[1:], 1.0, 0.0, ('a', 'b'))
  dataset = dataset._replace(**fields)
  return notices.of(flags.config_from(flags.parse(['test', *words])), dataset)


class NoticesTest(parameterized.TestCase):

  @parameterized.parameters(
      (('--noise=none',), 0), (('--noise=human',), 0), (('--noise=pairflip',), 1),
      (('--scene=x.npz',), 0),
  )
  def test_noise_on_labels_of_ones_own(self, words, count):
    told = _told(np.full((4, 2, 2, 1), 9, np.uint8), *_OWN, *words)
    self.assertLen(told, count)

  @parameterized.parameters(
      ('iid', [0, 0, 1, 1], 1), ('natural', [0, 0, 1, 1], 0), ('iid', [0] * 4, 0)
  )
  def test_clients_that_are_not_used(self, partition, clients, count):
    told = _told(
        np.full((4, 2, 2, 1), 9, np.uint8), *_OWN, '--noise=none', f'--partition={partition}',
        client=np.array(clients, np.int32),
    )
    self.assertLen(told, count)
    if count:
      self.assertEndsWith(told[0], 'client of --data_dir is not used; --partition=natural takes it')

  @parameterized.parameters(
      (('--client_dp_noise=1', '--method=fedavg'), 1), (('--training_labels=private',), 1), ((), 1),
      (('--method=fedavg',), 0), (('--label_prior=none',), 0),
      (('--method=fedavg', '--client_dp_noise=1', '--partition=iid'), 0),
  )
  def test_clients_whose_examples_the_server_has_under_a_claim(self, words, count):
    words = words if '--partition=iid' in words else (*words, '--partition=natural')
    x = np.full((9, 2, 2, 1), 9, np.uint8)
    for of_server in ({'test_rows': np.arange(3)}, {}):
      told = _told(
          x, *_OWN, '--noise=none', *words, *(() if of_server else ('--validation_fraction=0.1',)),
          client=np.zeros(9, np.int32), test_y=np.zeros(3, np.int32), **of_server,
      )
      self.assertLen(told, count)
      self.assertTrue(all(text.startswith('privacy: ') for text in told))

  @parameterized.parameters(
      (('0', '1', '10', '2'), 'class 2 is called 10: '), (('1', '2'), 'class 0 is called 1: '),
      (('0', '1', '2'), ''), (('0', 'b'), ''),
  )
  def test_classes_whose_names_are_other_numbers(self, class_names, expected):
    told = _told(
        np.full((4, 2, 2, 1), 9, np.uint8), *_OWN, '--noise=none', class_names=class_names
    )
    self.assertLen(told, bool(expected))
    self.assertIn(expected, ''.join(told))

  @parameterized.parameters((1, 1), (3, 0))
  def test_a_test_set_of_few_clients(self, size, count):
    x = np.full((9, 2, 2, 1), 9, np.uint8)
    told = _told(
        x, *_OWN, '--method=fedavg', '--noise=none', '--partition=natural',
        client=np.arange(9, dtype=np.int32),
        test_y=np.zeros(size, np.int32), test_rows=np.arange(size),
    )
    self.assertLen(told, count)
    if count:
      self.assertStartsWith(told[0], 'data: the test set is 1 of 10 examples, and none of a client')

  @parameterized.parameters(('none', 1), ('pairflip', 1), ('human', 0))
  def test_labels_of_people_that_are_not_used(self, noise, count):
    told = _told(
        np.full((4, 2, 2, 1), 9, np.uint8), *_OWN, f'--noise={noise}', human_y=np.zeros(4, np.int32)
    )
    self.assertLen(told, count)
    if count:
      self.assertEndsWith(told[0], 'is not used; --noise=human takes y')

  @parameterized.parameters(((4, 3, 8, 8), 1), ((4, 8, 8, 3), 0), ((4, 3, 3, 3), 0))
  def test_channels_that_come_first(self, shape, count):
    told = _told(np.full(shape, 9, np.uint8), *_OWN, '--noise=none')
    self.assertLen(told, count)
    if count:
      self.assertEndsWith(told[0], 'if channels come first, give x.transpose(0, 2, 3, 1)')

  def test_labels_that_are_right_may_be_made_wrong(self):
    self.assertEmpty(_told(np.zeros((4, 64), np.float32), '--dataset=digits', '--noise=pairflip'))

  @parameterized.parameters((9.9, False), (10.1, True), (-1e30, True))
  def test_features_of_no_common_scale(self, value, is_told):
    x = np.ones((4, 3), np.float32)
    x[:, 1] = value
    told = _told(x, *_OWN, '--noise=none')
    self.assertLen(told, int(is_told))
    if is_told:
      size = f'{abs(value):.3g}'
      self.assertStartsWith(told[0], f'data: feature 1 has a root mean square of {size}: ')

  def test_bytes_are_scaled_by_the_models(self):
    self.assertEmpty(_told(np.full((4, 2, 2, 1), 255, np.uint8), *_OWN, '--noise=none'))
    self.assertEmpty(_told(np.array([b'a.png', b'b.png']), *_OWN, '--noise=none'))
    # Fractions that were made bytes as they are.
    (told,) = _told(np.ones((4, 2, 2, 1), np.uint8), *_OWN, '--noise=none')
    self.assertStartsWith(told, 'data: no pixel of x is above 1, where bytes go to 255')


if __name__ == '__main__':
  absltest.main()
