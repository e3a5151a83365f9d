"""Tests of the configuration's checks and of the run's identity."""

import dataclasses
import json

from absl.testing import absltest
from absl.testing import parameterized

from tff_noise import types
from tff_noise.program import run_config

_VALID = {
    'method': 'feddpcont',
    'param': (),
    'dataset': 'digits',
    'clients': 20,
    'partition': 'openset_uniform',
    'openset_q': 0.5,
    'scene': None,
    'noise': 'symmetric',
    'noise_rate': 0.4,
    'model': 'mlp',
    'norm': 'group',
    'rounds': 100,
    'clients_per_round': 10,
    'local_epochs': 5,
    'batch_size': 20,
    'learning_rate': 0.05,
    'momentum': 0.0,
    'weight_decay': 0.0,
    'seed': 0,
    'aggregation': 'mean',
    'update_bound': 1.0,
    'label_epsilon': '0.81',
    'label_prior': 'shrinkage',
    'max_concurrent_clients': 2,
    'run_name': None,
    'root_dir': 'runs',
    'resume': True,
    'eval_every': 1,
    'checkpoint_every': 5,
}

_NAN, _INF = float('nan'), float('inf')

# For each flag with a range: values outside it, and what the message says of the range.
_INVALID = {
    'method': (['', 'sgd', 'FedAvg'], 'one of fedavg, feddpcont'),
    'dataset': (['', 'mnist'], 'one of digits'),
    'partition': (['shards'], 'one of iid, openset_uniform, openset_dirichlet'),
    'noise': (['human', ''], 'one of none, symmetric, random'),
    'model': (['resnet'], 'one of mlp, cnn'),
    'norm': (['layer', ''], 'one of group, batch'),
    'aggregation': (['median'], 'one of mean, secure_sum'),
    'label_prior': (['bayes'], 'one of shrinkage, projected, inverse, none'),
    'clients': ([0, -1], 'at least 1'),
    'clients_per_round': ([0, -1], 'at least 1'),
    'rounds': ([0, -1], 'at least 1'),
    'local_epochs': ([0, -1], 'at least 1'),
    'batch_size': ([0, -1], 'at least 1'),
    'max_concurrent_clients': ([0, -1], 'at least 1'),
    'eval_every': ([0, -1], 'at least 1'),
    'checkpoint_every': ([0, -1], 'at least 1'),
    'learning_rate': ([0.0, -0.1, _NAN, _INF, -_INF], 'a positive number'),
    'update_bound': ([0.0, -0.1, _NAN, _INF, -_INF], 'a positive number'),
    'weight_decay': ([-1e-9, _NAN, _INF, -_INF], 'at least 0'),
    'momentum': ([-0.1, 1.0, 1.5, _NAN, _INF], 'in [0, 1)'),
    'noise_rate': ([-0.1, 1.0001, _NAN, _INF], 'in [0, 1]'),
    'openset_q': ([0.0, 1.0, -0.1, 1.1, _NAN, _INF], 'in (0, 1), both ends excluded'),
    'seed': ([-1, 2**63], 'in [0, 2**63)'),
    'run_name': (
        ['', '.', '..', '.hidden', '-x', 'a/b', '../x', 'a b', 'a\n', 'é', 'x' * 201],
        'letters, digits, dots, dashes and underscores, not starting with a dot',
    ),
}

# Checked with the data set (label_epsilon), where it is read (scene, root_dir), by the method
# (param), or a plain switch.
_WITHOUT_RANGE = {'param', 'scene', 'root_dir', 'resume', 'label_epsilon'}

# A valid other value for every flag.
_OTHER = {
    'method': 'fedavg', 'param': ('server_learning_rate=0.5',), 'clients': 21,
    'partition': 'iid', 'openset_q': 0.6, 'scene': 'scene.npz', 'noise': 'none',
    'noise_rate': 0.5, 'model': 'cnn', 'norm': 'batch', 'rounds': 101, 'clients_per_round': 11,
    'local_epochs': 6, 'batch_size': 21, 'learning_rate': 0.06, 'momentum': 0.1,
    'weight_decay': 0.1, 'seed': 1, 'aggregation': 'secure_sum', 'update_bound': 2.0,
    'label_epsilon': '0.82', 'label_prior': 'inverse', 'eval_every': 2,
}
_EXECUTION = {
    'root_dir': 'elsewhere', 'resume': False, 'max_concurrent_clients': 1, 'checkpoint_every': 6,
}


def _config(**changes):
  return run_config.RunConfig(**{**_VALID, **changes})


class RangeTest(parameterized.TestCase):

  def test_every_flag_is_covered_here(self):
    fields = {f.name for f in dataclasses.fields(run_config.RunConfig)}
    self.assertEqual(fields, set(_VALID))
    self.assertEqual(fields, set(_INVALID) | _WITHOUT_RANGE)

  @parameterized.parameters(
      *((name, value, allowed) for name, (values, allowed) in _INVALID.items() for value in values)
  )
  def test_value_outside_is_refused_with_the_flag_and_its_range(self, name, value, allowed):
    with self.assertRaises(types.UsageError) as caught:
      _config(**{name: value})
    self.assertEqual(str(caught.exception), f'--{name} must be {allowed}, got {value}')

  @parameterized.parameters(
      *(('method', m) for m in ('fedavg', 'feddpcont')),
      *(('partition', p) for p in ('iid', 'openset_uniform', 'openset_dirichlet')),
      *(('noise', n) for n in ('none', 'symmetric', 'random')),
      *(('model', m) for m in ('mlp', 'cnn')),
      *(('norm', n) for n in ('group', 'batch')),
      *(('aggregation', a) for a in ('mean', 'secure_sum')),
      *(('label_prior', p) for p in ('shrinkage', 'projected', 'inverse', 'none')),
      ('noise_rate', 0.0), ('noise_rate', 1.0), ('momentum', 0.0), ('momentum', 0.999),
      ('openset_q', 1e-300), ('openset_q', 1 - 1e-16), ('weight_decay', 0.0),
      ('learning_rate', 1e-300), ('seed', 0), ('seed', 2**63 - 1), ('rounds', 1),
      ('clients_per_round', 20), ('clients_per_round', 1), ('clients', 10),
      ('run_name', 'a'), ('run_name', 'A-1_b.c'), ('run_name', 'x' * 200), ('run_name', '7'),
  )
  def test_boundary_is_allowed(self, name, value):
    self.assertEqual(getattr(_config(**{name: value}), name), value)

  def test_parameters_of_the_method_are_checked_at_once(self):
    with self.assertRaisesRegex(types.UsageError, "--param: feddpcont has no 'wait'"):
      _config(param=('wait=1',))
    self.assertEqual(_config(param=('weight=0.5',)).method_params().weight, 0.5)

  def test_is_frozen(self):
    with self.assertRaises(dataclasses.FrozenInstanceError):
      _config().rounds = 0


class CombinationTest(parameterized.TestCase):

  def test_more_clients_a_round_than_clients(self):
    with self.assertRaisesRegex(
        types.UsageError,
        '^--clients_per_round must be at most the number of clients, 20, got 21$',
    ):
      _config(clients_per_round=21)

  @parameterized.parameters('openset_uniform', 'openset_dirichlet')
  def test_single_client_cannot_be_openset(self, partition):
    with self.assertRaisesRegex(
        types.UsageError, f'^--clients must be at least 2 for {partition}, got 1$'
    ):
      _config(clients=1, clients_per_round=1, partition=partition, method='fedavg')

  def test_single_client_cannot_share_labels(self):
    with self.assertRaisesRegex(
        types.UsageError, 'feddpcont needs at least 2 clients, got 1.*--clients'
    ):
      _config(clients=1, clients_per_round=1, partition='iid')

  def test_scene_of_a_single_client_may_run_fedavg(self):
    # The partition that --scene replaces must not stand in its way.
    _config(scene='scene.npz', method='fedavg', clients_per_round=1).check_clients(1)

  def test_single_client_may_run_fedavg(self):
    _config(clients=1, clients_per_round=1, partition='iid', method='fedavg')

  def test_number_of_clients_of_a_scene_is_checked_when_it_is_known(self):
    config = _config(scene='scene.npz', clients_per_round=30)
    config.check_clients(30)
    with self.assertRaisesRegex(
        types.UsageError, 'clients_per_round must be at most the number of clients, 29, got 30'
    ):
      config.check_clients(29)

  def test_more_clients_than_examples(self):
    config = _config(clients=101, clients_per_round=1)
    config.check_with_data(101, 10)
    with self.assertRaisesRegex(
        types.UsageError,
        '^--clients must be at most the 100 training examples of digits, got 101$',
    ):
      config.check_with_data(100, 10)

  def test_clients_are_not_compared_with_the_data_where_a_scene_fixes_them(self):
    _config(scene='scene.npz').check_with_data(5, 10)

  @parameterized.parameters('0', '-1', 'nan', 'inf', '0.81abc', '', '1e6', '1e-30')
  def test_epsilon_is_checked_for_the_classes_of_the_data(self, epsilon):
    with self.assertRaisesRegex(types.UsageError, '^--label_epsilon: epsilon '):
      _config(label_epsilon=epsilon).check_with_data(1400, 10)

  def test_epsilon_may_fit_one_number_of_classes_and_not_another(self):
    config = _config(label_epsilon='2e-17')
    config.check_with_data(1400, 10)
    with self.assertRaisesRegex(types.UsageError, '--label_epsilon: .*too small'):
      config.check_with_data(1400, 1000)


class PartsTest(absltest.TestCase):

  def test_scene_spec_takes_the_flags_of_data_and_noise(self):
    spec = _config(
        clients=30, partition='openset_dirichlet', openset_q=0.7, noise='random', noise_rate=0.1
    ).scene_spec
    self.assertEqual(tuple(spec), (30, 'openset_dirichlet', 0.7, 'random', 0.1))
    self.assertEqual((spec.num_clients, spec.openset_q, spec.noise_rate), (30, 0.7, 0.1))

  def test_local_training_takes_the_flags_of_training(self):
    training = _config(
        local_epochs=3, batch_size=7, learning_rate=0.1, momentum=0.9, weight_decay=1e-4
    ).local_training
    self.assertEqual(training, types.LocalTraining(3, 7, 0.1, 0.9, 1e-4))


class IdentityTest(parameterized.TestCase):

  def test_every_flag_is_one_or_the_other(self):
    # There is one data set so far, hence no other value of it.
    flags = set(_OTHER) | set(_EXECUTION) | {'run_name', 'dataset'}
    self.assertEqual(flags, {f.name for f in dataclasses.fields(run_config.RunConfig)})

  def test_what_determines_the_result_changes_the_name(self):
    names = {'': _config().name()}
    for name, value in _OTHER.items():
      changed = _config(**{name: value})
      names[name] = changed.name()
      # The seed stands in the name anyway; a run is compared by its identity.
      self.assertNotEqual(changed.identity()[name], _config().identity()[name])
    self.assertLen(set(names.values()), len(names), names)

  @parameterized.parameters(*_EXECUTION)
  def test_where_and_how_it_is_executed_does_not(self, name):
    changed = _config(**{name: _EXECUTION[name]})
    self.assertEqual(changed.name(), _config().name())
    self.assertEqual(changed.identity(), _config().identity())
    self.assertNotIn(name, changed.identity())

  def test_name_says_method_data_and_seed(self):
    self.assertRegex(_config(seed=7).name(), r'^feddpcont_digits_seed7_[0-9a-f]{8}$')

  def test_name_is_a_valid_run_name(self):
    _config(run_name=_config().name())

  def test_name_that_was_given_is_taken(self):
    config = _config(run_name='mine')
    self.assertEqual(config.name(), 'mine')
    self.assertEqual(config.identity(), _config().identity())

  def test_order_of_parameters_does_not_matter(self):
    one = _config(param=('weight=0.5', 'warmup_rounds=2'))
    other = _config(param=('warmup_rounds=2', 'weight=0.5'))
    self.assertEqual(one.name(), other.name())

  def test_identity_survives_json(self):
    # It is compared with what config.json holds: a tuple would come back as a list, and differ.
    identity = _config(param=('weight=0.5', 'warmup_rounds=2')).identity()
    self.assertEqual(json.loads(json.dumps(identity, allow_nan=False)), identity)


if __name__ == '__main__':
  absltest.main()
