"""Tests of what a run's noise is keyed by."""

import os
from unittest import mock

import numpy as np
from absl.testing import absltest
from PIL import Image

from tff_noise import types
from tff_noise.program import code_version
from tff_noise.program import flags
from tff_noise.program import noise_secret
from tff_noise.program import run_directory


def _config(*arguments):
  return flags.config_from(flags.parse(['train', '--client_dp_noise=1', *arguments]))


def _held(label=0, x=None):
  """The data, and what a client has of it."""
  x = np.zeros((2, 3), np.float32) if x is None else x
  client = types.ClientExamples(x, np.array([label, 1], np.int32), np.arange(2))
  dataset = types.Dataset(
      'npz', client.x, client.y, client.x, client.y, 2, (3, 1, 1), 1.0, 0.0, ('a', 'b')
  )
  return dataset, types.Federation((client,), 2, 3)


class NoiseSecretTest(absltest.TestCase):

  def test_any_flag_that_determines_the_result_gives_other_noise(self):
    keys = {
        noise_secret.of_run(_config(*given), *_held())
        for given in (
            (), ('--client_dp_noise=4',), ('--client_dp_clip=2',), ('--clients_per_round=9',),
            ('--aggregation=secure_sum',), ('--learning_rate=0.06',), ('--method=fedavg',),
            ('--seed=1',), ('--rounds=101',), ('--client_dp_mechanism=discrete_gaussian',),
            ('--client_sampling=cyclic',),
            ('--client_sampling=cyclic', '--client_dp_mechanism=tree'),
        )
    }
    self.assertLen(keys, 12)

  def test_data_and_code_give_other_noise(self):
    first = noise_secret.of_run(_config(), *_held())
    self.assertNotEqual(noise_secret.of_run(_config(), *_held(label=1)), first)
    # A run that was killed, and is continued with other code of its clients.
    with mock.patch.object(code_version, 'digest', return_value='0123456789ab'):
      self.assertNotEqual(noise_secret.of_run(_config(), *_held()), first)
    weights = self.create_tempfile(content='a')
    config = _config(f'--weights={weights.full_path}')
    before = noise_secret.of_run(config, *_held())
    weights.write_text('b')
    self.assertNotEqual(noise_secret.of_run(config, *_held()), before)

  def test_where_images_lie_gives_no_other_noise_and_what_is_in_them_does(self):
    keys = []
    for shade in (0, 0, 9):
      folder = self.create_tempdir().full_path
      paths = [os.path.join(folder, f'{i}.png') for i in range(2)]
      for path in paths:
        Image.fromarray(np.full((3, 1), shade, np.uint8)).save(path)
      keys.append(noise_secret.of_run(_config(), *_held(x=np.array(paths, 'S'))))
    self.assertEqual(keys[0], keys[1])
    self.assertNotEqual(keys[0], keys[2])

  def test_a_run_that_drew_other_noise_is_not_continued(self):
    run = self._run()
    os.mkdir(run.path)
    run_directory.write_json(run.file('config.json'), {'noise': '01'})
    noise_secret.check(run, '01')
    for other in ('02', ''):
      with self.assertRaisesRegex(types.UsageError, 'was begun with other noise: its scene'):
        noise_secret.check(run, other)

  def test_the_same_run_draws_the_same_again_however_it_is_executed(self):
    first = noise_secret.of_run(_config(), *_held())
    self.assertLen(first, 32)
    for given in ((), ('--runtime=accelerator',), ('--checkpoint_every=2',)):
      self.assertEqual(noise_secret.of_run(_config(*given), *_held()), first)

  def test_of_the_system_it_is_another_for_each_run(self):
    config = _config('--noise_source=system')
    keys = [noise_secret.of_run(config, *_held()) for _ in range(2)]
    self.assertNotEqual(*keys)
    given = noise_secret.system_key(config, self._run())
    keys = [noise_secret.of_run(config, *_held(), given) for _ in range(2)]
    self.assertEqual(*keys)
    self.assertNotEqual(noise_secret.of_run(_config(), *_held()), keys[0])

  def test_the_name_is_the_same_where_all_but_the_code_is(self):
    first = noise_secret.name(_config(), *_held())
    self.assertLen(first, 64)
    with mock.patch.object(code_version, 'digest', return_value='0123456789ab'):
      self.assertEqual(noise_secret.name(_config(), *_held()), first)
    weights = self.create_tempfile(content='a')
    config = _config(f'--weights={weights.full_path}')
    names = [first, noise_secret.name(config, *_held())]
    weights.write_text('b')
    names.append(noise_secret.name(config, *_held()))
    names.append(noise_secret.name(_config('--seed=1'), *_held()))
    names.append(noise_secret.name(_config(), *_held(label=1)))
    names.append(noise_secret.name(_config('--noise_source=system'), *_held(), bytes(32)))
    names.append(noise_secret.name(_config('--noise_source=system'), *_held(), b'1' * 32))
    self.assertLen(set(names), 7)
    self.assertEqual(noise_secret.name(_config('--client_dp_noise=0'), *_held()), '')

  def _run(self):
    return run_directory.locate(self.create_tempdir().full_path, 'run')

  def test_a_run_that_is_there_has_its_own(self):
    run = self._run()
    self.assertIsNone(noise_secret.system_key(_config(), run))
    config = _config('--noise_source=system')
    key = noise_secret.system_key(config, run)
    self.assertNotEqual(noise_secret.system_key(config, run), key)
    os.mkdir(run.path)
    noise_secret.write(run.path, key)
    self.assertEqual(noise_secret.system_key(config, run), key)

  def test_cohorts_follow_from_it_and_the_seed_and_not_from_that_alone(self):
    self.assertIsNone(noise_secret.of_cohorts(None, 3))
    secrets = [
        noise_secret.of_cohorts(*drawn_by)
        for drawn_by in ((bytes(32), 3), (bytes(32), 3), (b'1' * 32, 3), (bytes(32), 4))
    ]
    self.assertEqual(secrets[0], secrets[1])
    # Of runs with one key, too: accounts of several runs tell shared cohorts by their seeds.
    self.assertLen(set(secrets), 3)
    for secret in secrets:
      self.assertBetween(secret, 0, 2**63 - 1)

  def test_the_key_is_its_owners_alone(self):
    path = os.path.join(self.create_tempdir().full_path, 'noise.key')
    key = os.urandom(32)
    run_directory.write_secret(path, key)
    self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
    self.assertEqual(run_directory.read_secret(path), key)
    for content in ('', 'ab', 'no digits'):
      damaged = self.create_tempfile(content=content).full_path
      with self.assertRaisesRegex(types.UsageError, 'cannot be read|no key of 32 bytes'):
        run_directory.read_secret(damaged)
    with self.assertRaisesRegex(types.UsageError, 'cannot be read'):
      run_directory.read_secret(path + '.lost')


if __name__ == '__main__':
  absltest.main()
