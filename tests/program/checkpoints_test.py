"""Tests of a run's checkpoints."""

import asyncio
import collections
import os
from unittest import mock

import numpy as np
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise import types
from tff_noise.program import checkpoints

_Inner = collections.namedtuple('_Inner', ('labels', 'nothing'))
_Outer = collections.namedtuple(
    '_Outer', ('weights', 'own', 'inner', 'round_num', 'rate', 'stage', 'key')
)


def _state(scale=1):
  draw = np.random.default_rng(0)
  return _Outer(
      weights=tff.learning.models.ModelWeights(
          [draw.normal(size=(2, 3)).astype(np.float32) * scale, np.float32(-0.0)], []
      ),
      own={'b/c': [np.array([], np.int32), np.array([1, 2], np.int32)], 'a': [True, False]},
      inner=_Inner(np.array([np.nan, np.inf, 5e-324]), ()),
      round_num=2**40,
      rate=0.1,
      stage='fine-tuning, é',
      key=b'a\0\0',
  )


class CheckpointsTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = os.path.join(self.create_tempdir().full_path, 'state')
    self.manager = checkpoints.CheckpointManager(self.folder)

  def _save(self, state, version):
    asyncio.run(self.manager.save(state, version))

  def _load(self, version, structure):
    return asyncio.run(self.manager.load(version, structure))

  def test_a_state_comes_back_to_the_bit_with_its_types(self):
    self._save(_state(), 3)
    found = self._load(3, _state(scale=0))
    self.assertIsInstance(found.weights, tff.learning.models.ModelWeights)
    self.assertEqual(found.inner.nothing, ())
    for mine, other in (
        (found.weights.trainable[0], _state().weights.trainable[0]),
        (found.weights.trainable[1], _state().weights.trainable[1]),
        (found.own['b/c'][0], _state().own['b/c'][0]),
        (found.own['b/c'][1], _state().own['b/c'][1]),
        (found.inner.labels, _state().inner.labels),
    ):
      self.assertEqual(mine.dtype, other.dtype)
      self.assertEqual(mine.tobytes(), other.tobytes())
    for value in (found.round_num, found.rate, found.stage, found.key, found.own['a'][0]):
      self.assertIn(type(value), (int, float, str, bytes, bool))
    number = _state()._replace(rate=np.float64(0.1))
    self._save(number, 4)
    self.assertIs(type(self._load(4, number).rate), np.float64)
    self.assertEqual(
        (found.round_num, found.rate, found.stage, found.key, found.own['a']),
        (2**40, 0.1, 'fine-tuning, é', b'a\0\0', [True, False]),
    )

  def test_the_last_two_are_kept(self):
    self.assertIsNone(asyncio.run(self.manager.get_versions()))
    for version in (1, 5, 10, 9):
      self._save(_state(version), version)
    self.assertEqual(asyncio.run(self.manager.get_versions()), [9, 10])
    self.assertCountEqual(os.listdir(self.folder), ['round_9.npz', 'round_10.npz'])
    _, version = asyncio.run(self.manager.load_latest(_state()))
    self.assertEqual(version, 10)
    asyncio.run(self.manager.remove_all())
    self.assertIsNone(asyncio.run(self.manager.get_versions()))

  def test_one_that_is_there_is_not_written_over(self):
    self._save(_state(), 1)
    with self.assertRaises(tff.program.ProgramStateExistsError):
      self._save(_state(2), 1)
    with self.assertRaises(tff.program.ProgramStateNotFoundError):
      self._load(2, _state())

  def test_a_save_that_fails_leaves_nothing(self):
    self._save(_state(), 1)
    with mock.patch.object(os, 'replace', side_effect=OSError('no space left')):
      with self.assertRaisesRegex(OSError, 'no space left'):
        self._save(_state(), 2)
    self.assertEqual(os.listdir(self.folder), ['round_1.npz'])

  @parameterized.parameters(None, [np.array([b'a\0'])], [np.array(['x', None], object)])
  def test_what_would_not_come_back_is_not_written(self, leaf):
    with self.assertRaisesRegex(TypeError, 'a state has numbers'):
      self._save({'leaf': leaf}, 1)
    self.assertEqual(os.listdir(self.folder), [])

  def test_two_places_of_one_name_are_not_written_over_each_other(self):
    with self.assertRaisesRegex(ValueError, 'the same name'):
      self._save({'a/b': 1, 'a': {'b': 2}}, 1)
    self.assertEqual(os.listdir(self.folder), [])

  def test_other_places_than_the_structure_has(self):
    self._save({'a': 1, 'b': 2}, 1)
    with self.assertRaisesRegex(types.UsageError, r"lacks \['c'\] and has \['b'\]"):
      self._load(1, {'a': 1, 'c': 2})

  @parameterized.parameters(0, 10, 300, -1)
  def test_damage_is_named_and_kept(self, length):
    self._save(_state(), 1)
    path = self.manager.path(1)
    os.truncate(path, os.path.getsize(path) + length if length < 0 else length)
    with self.assertRaisesRegex(types.UsageError, 'round_1.npz cannot be read .* It was kept'):
      self._load(1, _state())
    self.assertTrue(os.path.exists(path))

  def test_a_changed_bit_is_found(self):
    self._save(_state(), 1)
    path = self.manager.path(1)
    with open(path, 'r+b') as file:
      content = file.read()
      at = content.index(_state().weights.trainable[0].tobytes())
      file.seek(at)
      file.write(bytes([content[at] ^ 1]))
    with self.assertRaisesRegex(types.UsageError, 'Bad CRC-32'):
      self._load(1, _state())


if __name__ == '__main__':
  absltest.main()
