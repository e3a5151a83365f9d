"""The least noise for a target, and the rounds that one allows, held against the accountant."""

import math
import os
import types as python_types

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise import types
from tff_noise.data import scene as scene_lib
from tff_noise.data import sources
from tff_noise.privacy import accountant
from tff_noise.privacy import protection
from tff_noise.program import client_noise
from tff_noise.program import flags

_MANY = ('--method=fedavg', '--rounds=20', '--clients=100', '--clients_per_round=10')


def _config(*arguments):
  return flags.config_from(flags.parse(['train', *_MANY, *arguments]))


def _cost(config, noise, rounds=20):
  """Of a client, at delta 1e-5."""
  if config.client_sampling == 'poisson':
    return accountant.poisson_gaussian_epsilon(noise, 0.1, rounds, 1e-5)
  account = {
      'gaussian': accountant.gaussian_epsilon,
      'discrete_gaussian': accountant.discrete_gaussian_epsilon,
  }[config.client_dp_mechanism]
  population = 100 if config.aggregation == 'mean' else 10
  return account(noise, population=population, cohort=10, rounds=rounds, delta=1e-5)


def _field(shield, name='update'):
  return python_types.SimpleNamespace(name=name, protection=shield)


class LeastNoiseTest(parameterized.TestCase):

  @parameterized.parameters(
      ('2',), ('0.05',), ('300',), ('2', '--client_sampling=poisson'),
      ('2', '--client_dp_mechanism=discrete_gaussian'),
      ('9', '--client_dp_mechanism=discrete_gaussian', '--aggregation=secure_sum'),
  )
  def test_four_digits_that_are_enough_and_one_less_that_is_not(self, target, *arguments):
    config = _config(f'--target_client_epsilon={target}', *arguments)
    noise = config.client_dp_noise
    mantissa = f'{noise:.16e}'.split('e')[0]
    self.assertEqual(float(mantissa), round(float(mantissa), 3))
    self.assertLessEqual(_cost(config, noise), float(target))
    step = 10.0 ** (math.floor(math.log10(noise)) - 3)
    self.assertGreater(_cost(config, noise - step), float(target))

  def test_multipliers_are_all_of_four_digits(self):
    found = [client_noise._multiplier(i) for i in client_noise._MULTIPLIERS]
    self.assertEqual((found[0], found[9000], found[-1]), (1e-4, 1e-3, 1e6))
    self.assertTrue((np.diff(found) > 0).all())
    self.assertIn(1.234, found)
    self.assertIn(98760.0, found)

  def test_samples_of_secret_size_need_less_noise_than_replacing(self):
    fixed, poisson = (
        _config('--target_client_epsilon=2', f'--client_sampling={s}').client_dp_noise
        for s in ('fixed', 'poisson')
    )
    self.assertLess(poisson, fixed)

  def test_noise_that_is_given_stays(self):
    config = _config('--target_client_epsilon=2', '--client_dp_noise=0.5')
    self.assertEqual((config.client_dp_noise, config.target_client_epsilon), (0.5, 2.0))

  def test_a_target_that_any_noise_meets_takes_the_least_there_is(self):
    config = _config('--target_client_epsilon=1e6', '--rounds=1', '--client_sampling=poisson')
    self.assertLess(config.client_dp_noise, 0.001)

  @parameterized.parameters(
      (
          ('--target_client_epsilon=1e-9', '--rounds=1000000', '--clients=10'),
          '^--target_client_epsilon=1e-09 cannot be reached: .* 1000000 rounds cost 0.00[0-9]+; ',
      ),
      (
          ('--target_client_epsilon=2', '--partition=natural', '--dataset=npz'),
          '^--target_client_epsilon needs to know .* give --scene, or give --client_dp_noise$',
      ),
      (
          ('--target_client_epsilon=2', '--scene=nowhere.npz'),
          '^scene nowhere.npz: no such file$',
      ),
      (
          ('--target_client_epsilon=2', '--method=lc', '--stages=train:19,correct:0'),
          '^--target_client_epsilon counts --rounds=20, and --stages has 19 rounds: ',
      ),
  )
  def test_mistakes(self, arguments, message):
    # --clients cannot be given with a scene or with clients of the data.
    given = ['train', '--method=fedavg', '--rounds=20', *arguments]
    with self.assertRaisesRegex(types.UsageError, message) as caught:
      flags.config_from(flags.parse(given))
    self.assertNotIn('\n', str(caught.exception))

  def test_lengths_of_stages_that_add_up_are_fine(self):
    config = _config(
        '--target_client_epsilon=2', '--method=lc', '--stages=train:20,correct:0'
    )
    self.assertLessEqual(_cost(config, config.client_dp_noise), 2)

  def test_number_of_clients_of_a_scene(self):
    dataset = sources.load(sources.DataSpec('digits'))
    path = os.path.join(self.create_tempdir().full_path, 'scene.npz')
    scene_lib.save(scene_lib.build(dataset, _config().scene_spec(), 0), path)
    given = ['train', '--method=fedavg', '--rounds=20', '--target_client_epsilon=2']
    drawn = flags.config_from(flags.parse([*given, f'--scene={path}']))
    self.assertEqual(drawn.client_dp_noise, _config('--target_client_epsilon=2').client_dp_noise)
    with self.assertRaisesRegex(types.UsageError, '^--clients_per_round must be at most the numb'):
      flags.config_from(flags.parse([*given, f'--scene={path}', '--clients_per_round=101']))
    together = flags.config_from(
        flags.parse([*given, f'--scene={path}', '--centralised', '--clients_per_round=1'])
    )
    one = accountant.gaussian_epsilon(
        together.client_dp_noise, population=1, cohort=1, rounds=20, delta=1e-5
    )
    self.assertBetween(one, 1.99, 2)


class RoundsTest(parameterized.TestCase):

  def _rounds(self, *arguments, more=(), rounds=20):
    config = _config(*arguments)
    shield = client_noise.of_config(config, 100)
    return config, client_noise.rounds_within(config, [_field(shield), *more], rounds)

  def test_what_clients_keep_tells_of_cohorts_of_a_fixed_size(self):
    for sampling, population in (('fixed', 10), ('poisson', 100)):
      config = _config('--client_dp_noise=1', f'--client_sampling={sampling}')
      shield = client_noise.of_config(config, 100, keeps_state=True)
      self.assertEqual((shield.cohort, shield.population), (10, population))
      self.assertEqual(client_noise.of_config(config, 100).population, 100)

  def test_without_a_target_all(self):
    self.assertIsNone(self._rounds('--client_dp_noise=1')[1])

  @parameterized.parameters('fixed', 'poisson')
  def test_the_last_round_that_the_target_allows(self, sampling):
    config, rounds = self._rounds(
        f'--client_sampling={sampling}', '--client_dp_noise=1', '--target_client_epsilon=8',
        rounds=1000,
    )
    self.assertLessEqual(_cost(config, 1.0, rounds), 8)
    self.assertGreater(_cost(config, 1.0, rounds + 1), 8)

  def test_a_target_for_all_rounds(self):
    _, rounds = self._rounds('--target_client_epsilon=8')
    self.assertEqual(rounds, 20)
    config = _config('--client_dp_noise=1')
    exact = _cost(config, 1.0)
    both = ('--client_dp_noise=1', f'--target_client_epsilon={exact!r}')
    self.assertEqual(self._rounds(*both)[1], 20)
    below = f'--target_client_epsilon={exact * (1 - 1e-12)!r}'
    self.assertEqual(self._rounds('--client_dp_noise=1', below)[1], 19)

  def test_not_even_one(self):
    with self.assertRaisesRegex(types.UsageError, 'does not allow one round, which costs [0-9.]+:'):
      self._rounds('--client_dp_noise=0.1', '--target_client_epsilon=1')

  @parameterized.parameters(
      (None,), (protection.Counts(),), (protection.LabelReports(10, '0.81'),)
  )
  def test_what_no_noise_protects(self, shield):
    with self.assertRaisesRegex(types.UsageError, 'here they send: histogram; leave it out, or'):
      self._rounds('--target_client_epsilon=8', more=[_field(shield, 'histogram')])

  def test_all_values_of_one_sum(self):
    config = _config('--target_client_epsilon=8')
    shield = client_noise.of_config(config, 100)
    fields = [_field(shield), _field(shield, 'update: contributions')]
    self.assertEqual(client_noise.rounds_within(config, fields, 20), 20)


if __name__ == '__main__':
  absltest.main()
