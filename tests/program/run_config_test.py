"""Tests of the configuration's checks and of the run's identity."""

import dataclasses
import json
import os
import re

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise import step_sizes
from tff_noise import types
from tff_noise.algorithms import catalog
from tff_noise.optimizers import catalog as optimizers
from tff_noise.privacy import protection
from tff_noise.program import run_config

_VALID = {
    'method': 'feddpcont',
    'param': (),
    'base': '',
    'base_param': (),
    'stages': None,
    'allow_per_client_disclosure': False,
    'dataset': 'digits',
    'data_dir': None,
    'human_labels': '',
    'validation_fraction': 0.0,
    'validation_dir': None,
    'client_validation_fraction': 0.0,
    'public_dataset': None,
    'public_dir': None,
    'public_examples': 5000,
    'clients': 20,
    'partition': 'openset_uniform',
    'partition_p': 0.7,
    'partition_alpha': 1.0,
    'partition_min_size': 1,
    'openset_q': '0.5',
    'scene': None,
    'centralised': False,
    'noise': 'symmetric',
    'noise_rate': 0.4,
    'noise_rho': 0.6,
    'noise_tau': 0.5,
    'noise_semantics': 'paper',
    'noise_matrix': None,
    'model': 'mlp',
    'norm': 'group',
    'image_size': 0,
    'subset': 0,
    'weights': None,
    'rounds': 100,
    'early_stopping': 0,
    'average_models': 0.0,
    'clients_per_round': 10,
    'client_sampling': 'fixed',
    'arrivals': None,
    'local_epochs': 5,
    'batch_size': 20,
    'learning_rate': 0.05,
    'learning_rate_schedule': 'constant',
    'local_optimizer': 'sgd',
    'momentum': 0.0,
    'weight_decay': 0.0,
    'augmentation': 'none',
    'label_smoothing': 0.0,
    'temperature': 1.0,
    'temperature_reading': 'divide',
    'mixup_alpha': 0.0,
    'logit_adjustment': 0.0,
    'seed': 0,
    'aggregation': 'mean',
    'update_bound': 1.0,
    'label_epsilon': '0.81',
    'label_prior': 'shrinkage',
    'training_labels': 'local',
    'client_dp_noise': 0.0,
    'client_dp_clip': 1.0,
    'client_dp_mechanism': 'gaussian',
    'target_client_epsilon': None,
    'noise_source': 'seed',
    'debug_client_errors': False,
    'runtime': 'local',
    'workers': (),
    'mixed_precision': False,
    'max_concurrent_clients': None,
    'run_name': None,
    'root_dir': 'runs',
    'resume': True,
    'resume_other_code': False,
    'overwrite': False,
    'extend': None,
    'metrics_hook': None,
    'log_level': 'info',
    'eval_every': 1,
    'checkpoint_every': 5,
}

_NAN, _INF = float('nan'), float('inf')

# For each flag with a range: values outside it, and what the message says of the range.
_INVALID = {
    'method': (
        ['', 'sgd', 'FedAvg'],
        'one of ' + ', '.join(catalog.ALGORITHMS) + '; or package.module:ENTRY of your own',
    ),
    'base': (['sgd', 'clipfl'], 'one of ' + ', '.join(optimizers.OPTIMIZERS)),
    'dataset': (
        ['', 'mnist'],
        'one of digits, cifar10, cifar100, cifar10n, cifar100n, clothing1m, image_folder, npz',
    ),
    'public_dataset': (
        ['', 'mnist'],
        'one of digits, cifar10, cifar100, cifar10n, cifar100n, clothing1m, image_folder, npz',
    ),
    'public_examples': ([0, -1], 'at least 1'),
    'partition': (
        ['shards', ''],
        'one of iid, bernoulli_dirichlet, dirichlet, openset_uniform, openset_dirichlet, natural',
    ),
    'noise': (
        ['loud', ''],
        'one of none, symmetric, random, pairflip, asymmetric, instance, matrix, human, '
        'client_uniform, client_symmetric',
    ),
    'noise_semantics': (['code', ''], 'paper or reference'),
    'model': (
        ['resnet', ''],
        'one of mlp, cnn, resnet18, resnet34, resnet50, vit_tiny; or package.module:function of '
        'your own',
    ),
    'norm': (['layer', ''], 'one of group, batch'),
    'augmentation': (['mixup', ''], 'one of none, crop_flip'),
    'temperature_reading': (['multiply', ''], 'one of divide, rescale'),
    'aggregation': (
        ['median'],
        "one of mean, secure_sum; or package.module:function of your own or of TFF's, "
        'tensorflow_federated.python.learning:robust_aggregator for one',
    ),
    'label_prior': (['bayes'], 'one of shrinkage, projected, inverse, none, uniform'),
    'training_labels': (['', 'public'], 'one of local, private'),
    'log_level': (['', 'warning'], 'one of quiet, info, debug'),
    'runtime': (['', 'gpu'], 'one of local, remote, accelerator'),
    'client_dp_noise': ([-1e-9, 1e-5, 2e6, _NAN, _INF, -_INF], '0, or in [1e-4, 1e6]'),
    'client_dp_clip': ([0.0, -0.1, 1e-31, 1e31, _NAN, _INF, -_INF], 'in [1e-30, 1e30]'),
    'client_sampling': (['', 'shuffled'], 'one of fixed, poisson, cyclic'),
    'client_dp_mechanism': (['', 'skellam'], 'one of gaussian, discrete_gaussian, tree'),
    'target_client_epsilon': ([0.0, -1.0, 2e6, _NAN, _INF, -_INF], 'positive, at most 1e6'),
    'noise_source': (['', 'time'], 'one of seed, system'),
    'clients': ([0, -1], 'at least 1'),
    'clients_per_round': ([0, -1], 'at least 1'),
    'rounds': ([0, -1], 'at least 1'),
    'early_stopping': ([-1], 'at least 0'),
    'average_models': ([-0.1, 1.0, _NAN], 'at least 0 and below 1'),
    'learning_rate_schedule': (['', 'linear'], step_sizes.FORMS),
    'local_epochs': ([0, -1], 'at least 1'),
    'batch_size': ([0, -1], 'at least 1'),
    'max_concurrent_clients': ([0, -1], 'at least 1'),
    'eval_every': ([0, -1], 'at least 1'),
    'checkpoint_every': ([0, -1], 'at least 1'),
    'partition_min_size': ([0, -1], 'at least 1'),
    'image_size': ([-1], 'at least 0'),
    'subset': ([-1], 'at least 0'),
    'temperature': ([0.0, -1.0, _NAN, _INF, -_INF], 'a positive number'),
    'learning_rate': ([0.0, -0.1, _NAN, _INF, -_INF], 'a positive number'),
    'update_bound': ([0.0, -0.1, 2e9, _NAN, _INF, -_INF], 'a positive number, at most 1e9'),
    'weight_decay': ([-1e-9, _NAN, _INF, -_INF], 'at least 0'),
    'local_optimizer': (['', 'SGD', 'rmsprop'], 'one of sgd, adam'),
    'momentum': ([-0.1, 1.0, 1.5, _NAN, _INF], 'in [0, 1)'),
    'validation_fraction': ([-0.1, 1.0, 1.5, _NAN, _INF], 'in [0, 1)'),
    'client_validation_fraction': ([-0.1, 1.0, 1.5, _NAN, _INF], 'in [0, 1)'),
    'label_smoothing': ([-0.1, 1.0, 1.5, _NAN, _INF], 'in [0, 1)'),
    'mixup_alpha': ([-0.1, 0.04, 2e6, _NAN, _INF], '0, for none, or from 0.05 to 1e6'),
    'logit_adjustment': ([-0.1, 2e6, _NAN, _INF], 'from 0 to 1e6'),
    'partition_p': ([0.0, -0.1, 1.0001, _NAN, _INF], 'in (0, 1]'),
    'partition_alpha': ([0.0, -0.1, _NAN, _INF, -_INF], 'positive and finite'),
    'noise_rate': ([-0.1, 1.0001, _NAN, _INF], 'in [0, 1]'),
    'noise_rho': ([-0.1, 1.0001, _NAN, _INF], 'in [0, 1]'),
    'noise_tau': ([-0.1, 1.0, _NAN, _INF], 'in [0, 1)'),
    'openset_q': (
        ['0.0', '1.0', '-0.1', '1.1', 'nan', 'inf', '-inf'], 'in (0, 1), both ends excluded'
    ),
    'seed': ([-1, 2**63], 'in [0, 2**63)'),
    'run_name': (
        ['', '.', '..', '.hidden', '-x', 'a/b', '../x', 'a b', 'a\n', 'é', 'x' * 201],
        'at most 200 letters, digits, dots, dashes and underscores, the first a letter or digit',
    ),
}

# Checked with the data set (label_epsilon, human_labels), where it is read (files and folders), by
# the method (param, base, stages), or a plain switch.
_WITHOUT_RANGE = {
    'param', 'stages', 'allow_per_client_disclosure', 'arrivals', 'scene', 'root_dir', 'resume',
    'resume_other_code', 'overwrite', 'extend', 'metrics_hook', 'debug_client_errors',
    'base_param', 'workers', 'mixed_precision', 'centralised',
    'label_epsilon', 'human_labels', 'data_dir', 'validation_dir', 'noise_matrix', 'weights',
    'public_dir',
}

# A valid other value for every flag.
_OTHER = {
    'method': 'fedavg', 'base': 'fedprox', 'param': ('server_learning_rate=0.5',), 'dataset': 'npz',
    'data_dir': 'data', 'human_labels': 'worse', 'validation_fraction': 0.1,
    'validation_dir': 'validation', 'client_validation_fraction': 0.2,
    'public_dataset': 'digits', 'public_dir': 'public',
    'public_examples': 500, 'clients': 21, 'partition': 'iid', 'partition_p': 0.6,
    'partition_alpha': 0.5, 'partition_min_size': 2, 'openset_q': '0.6', 'scene': 'scene.npz',
    'noise': 'none', 'noise_rate': 0.5, 'noise_rho': 0.5, 'noise_tau': 0.4,
    'noise_semantics': 'reference', 'noise_matrix': 'T.csv', 'model': 'cnn', 'norm': 'batch',
    'subset': 100,
    'image_size': 32, 'weights': 'weights.h5', 'rounds': 101, 'clients_per_round': 11,
    'local_epochs': 6, 'batch_size': 21, 'learning_rate': 0.06, 'momentum': 0.1,
    'local_optimizer': 'adam', 'early_stopping': 3, 'average_models': 0.8,
    'learning_rate_schedule': 'cosine:50',
    'weight_decay': 0.1, 'augmentation': 'crop_flip', 'label_smoothing': 0.1, 'temperature': 10.0,
    'temperature_reading': 'rescale', 'mixup_alpha': 0.2, 'logit_adjustment': 1.0,
    'seed': 1, 'aggregation': 'secure_sum', 'update_bound': 2.0,
    'label_epsilon': '0.82', 'label_prior': 'inverse',
    'training_labels': 'private', 'client_dp_noise': 0.5, 'client_dp_clip': 2.0, 'eval_every': 2,
    'client_dp_mechanism': 'discrete_gaussian', 'noise_source': 'system',
    'client_sampling': 'poisson', 'target_client_epsilon': 3.0,
    'debug_client_errors': True,
    'arrivals': 'arrivals.csv',
    'allow_per_client_disclosure': True, 'mixed_precision': True, 'centralised': True,
}
# What some of these need besides: a folder is only looked into for what is in it.
_NEEDED = {
    'public_dir': {'public_dataset': 'digits'},
    'centralised': {'method': 'fedavg', 'clients_per_round': 1},
    'client_sampling': {'client_dp_noise': 1.0},
}
# The same, where it needs another method.
_OTHER_STAGES = {
    'method': 'fedcorr', 'allow_per_client_disclosure': True, 'stages': 'finetune:0',
}
_EXECUTION = {
    'root_dir': 'elsewhere', 'resume': False, 'resume_other_code': True, 'overwrite': True,
    'extend': 'other',
    'metrics_hook': 'm:f', 'log_level': 'quiet',
    'max_concurrent_clients': 1, 'checkpoint_every': 6,
    'runtime': 'accelerator',
}


def _config(**changes):
  return run_config.RunConfig(**{**_VALID, **changes})


class RangeTest(parameterized.TestCase):

  def test_ways_to_add_noise_and_to_sample_are_those_of_the_accounts(self):
    # Not imported there: the accountant takes a second to load.
    p = protection
    self.assertEqual(run_config.CLIENT_SAMPLINGS, (p.FIXED, p.POISSON, p.CYCLIC))
    self.assertEqual(run_config.CLIENT_DP_MECHANISMS, (p.GAUSSIAN, p.DISCRETE_GAUSSIAN, p.TREE))

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

  @parameterized.parameters('local_epochs', 'batch_size')
  def test_counts_whose_sums_clients_cannot_hold_are_refused(self, name):
    self.assertEqual(getattr(_config(**{name: 2**30}), name), 2**30)
    with self.assertRaisesRegex(types.UsageError, f'^--{name} must be at most 1073741824, got'):
      _config(**{name: 2**31 - 1})

  @parameterized.parameters(
      *(('method', m) for m in ('fedavg', 'feddpcont')),
      *(('dataset', d) for d in ('digits', 'cifar10', 'cifar100', 'image_folder', 'npz')),
      *(('partition', p) for p in ('iid', 'bernoulli_dirichlet', 'dirichlet', 'openset_uniform',
                                   'openset_dirichlet', 'natural')),
      *(('noise', n) for n in ('none', 'symmetric', 'random', 'pairflip', 'asymmetric', 'instance',
                               'matrix', 'human', 'client_uniform', 'client_symmetric')),
      *(('noise_semantics', n) for n in ('paper', 'reference')),
      *(('model', m) for m in ('mlp', 'cnn', 'resnet18', 'resnet34', 'resnet50', 'vit_tiny')),
      *(('augmentation', a) for a in ('none', 'crop_flip')),
      *(('temperature_reading', t) for t in ('divide', 'rescale')),
      *(('norm', n) for n in ('group', 'batch')),
      *(('aggregation', a) for a in ('mean', 'secure_sum')),
      *(('label_prior', p) for p in ('shrinkage', 'projected', 'inverse', 'none', 'uniform')),
      *(('training_labels', t) for t in ('local', 'private')),
      ('client_dp_noise', 0.0), ('client_dp_noise', 1e-4), ('client_dp_noise', 1e6),
      ('client_dp_clip', 1e-30), ('client_dp_clip', 1e30),
      *(('client_dp_mechanism', m) for m in ('gaussian', 'discrete_gaussian')),
      *(('client_sampling', s) for s in ('fixed', 'cyclic')),
      *(('noise_source', s) for s in ('seed', 'system')),
      ('target_client_epsilon', None), ('target_client_epsilon', 1e-300),
      ('target_client_epsilon', 1e6),
      ('noise_rate', 0.0), ('noise_rate', 1.0), ('momentum', 0.0), ('momentum', 0.999),
      ('noise_rho', 0.0), ('noise_rho', 1.0), ('noise_tau', 0.0), ('noise_tau', 0.999),
      ('partition_p', 1e-300), ('partition_p', 1.0), ('partition_alpha', 1e-300),
      ('partition_alpha', 1e300), ('partition_min_size', 1), ('validation_fraction', 0.999),
      ('label_smoothing', 0.999), ('temperature', 1e-3), ('image_size', 1),
      ('openset_q', '1e-300'), ('openset_q', str(1 - 1e-16)), ('weight_decay', 0.0),
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
        types.UsageError, '^an open-set partition needs at least 2 --clients, got 1: '
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

  @parameterized.parameters({'scene': 'scene.npz'}, {'partition': 'natural'})
  def test_clients_are_not_compared_with_the_data_where_they_are_not_drawn(self, **changes):
    _config(**changes).check_with_data(5, 10)

  def test_natural_clients_are_counted_when_the_data_are_read(self):
    # --clients is not theirs: its default must not refuse a cohort of 30.
    config = _config(partition='natural', clients_per_round=30)
    config.check_clients(30)
    with self.assertRaisesRegex(types.UsageError, 'the number of clients, 29, got 30'):
      config.check_clients(29)

  def test_server_validates_on_one_thing(self):
    with self.assertRaisesRegex(
        types.UsageError, '^--validation_dir and --validation_fraction cannot be given together: '
    ):
      _config(validation_dir='x', validation_fraction=0.1)
    _config(validation_dir='x')

  @parameterized.product(
      dataset=['cifar10n', 'cifar100n', 'clothing1m'], noise=['symmetric', 'none', 'instance']
  )
  def test_sets_of_human_labels_take_no_other_noise(self, dataset, noise):
    with self.assertRaisesRegex(
        types.UsageError, f'^--noise must be human for --dataset={dataset}, got {noise}$'
    ):
      _config(dataset=dataset, noise=noise)
    _config(dataset=dataset, noise='human')
    # A scene has its labels already; --noise, which cannot be given, is the default.
    _config(dataset=dataset, noise=noise, scene='scene.npz')

  @parameterized.parameters(
      {'noise_rate': 2.0}, {'noise_tau': 1.0}, {'partition_p': 0.0}, {'openset_q': '2'}
  )
  def test_what_a_scene_replaces_is_not_checked(self, **changes):
    _config(scene='scene.npz', **changes)

  def test_reports_that_clients_train_on_need_a_mechanism(self):
    with self.assertRaisesRegex(
        types.UsageError,
        '^--label_prior must be another than none with --training_labels=private, got none$',
    ):
      _config(label_prior='none', training_labels='private')
    _config(method='fedavg', training_labels='private')
    with self.assertRaisesRegex(types.UsageError, '^--logit_adjustment cannot be given with --tr'):
      _config(method='fedavg', training_labels='private', logit_adjustment=1.0)
    _config(method='fedavg', training_labels='private', mixup_alpha=1.0)

  def test_method_that_corrects_labels_takes_no_reports(self):
    fedcorr = {'method': 'fedcorr', 'allow_per_client_disclosure': True}
    with self.assertRaisesRegex(
        types.UsageError,
        '^--training_labels=private cannot be given with --method=fedcorr, which corrects labels: ',
    ):
      _config(training_labels='private', **fedcorr)
    _config(**fedcorr)

  @parameterized.parameters(
      ({'client_dp_noise': 0.0}, '^--client_dp_noise must be above 0 with'),
      (
          {'client_dp_mechanism': 'discrete_gaussian'},
          '^--client_dp_mechanism must be gaussian with --client_sampling=poisson, got discrete_',
      ),
      (
          {'aggregation': 'secure_sum'},
          '^--aggregation must be mean with --client_sampling=poisson, got secure_sum$',
      ),
      ({'arrivals': 'uniform:0.5:9'}, '^--client_sampling=poisson cannot be given with --arrivals'),
  )
  def test_poisson_samples_are_for_the_noise_of_a_server(self, changes, message):
    poisson = {'client_sampling': 'poisson', 'client_dp_noise': 1.0}
    _config(**poisson)
    _config(client_sampling='poisson', target_client_epsilon=2.0)
    with self.assertRaisesRegex(types.UsageError, message):
      _config(**{**poisson, **changes})

  @parameterized.parameters('0', '-1', 'nan', 'inf', '0.81abc', '', '1e6', '1e-30')
  def test_epsilon_is_checked_for_the_classes_of_the_data(self, epsilon):
    with self.assertRaisesRegex(types.UsageError, '^--label_epsilon: epsilon '):
      _config(label_epsilon=epsilon).check_with_data(1400, 10)

  def test_epsilon_may_fit_one_number_of_classes_and_not_another(self):
    config = _config(label_epsilon='2e-17')
    config.check_with_data(1400, 10)
    with self.assertRaisesRegex(types.UsageError, '--label_epsilon: .*too small'):
      config.check_with_data(1400, 1000)


class TurnsTest(parameterized.TestCase):
  """--client_sampling=cyclic."""

  def test_a_tree_of_noise_needs_turns(self):
    with self.assertRaisesRegex(
        types.UsageError, '^--client_dp_mechanism=tree needs --client_sampling=cyclic: '
    ):
      _config(client_dp_mechanism='tree')
    _config(client_dp_mechanism='tree', client_sampling='cyclic')

  def test_nobody_is_late_for_a_turn(self):
    with self.assertRaisesRegex(
        types.UsageError, '^--client_sampling=cyclic cannot be given with --arrivals: '
    ):
      _config(client_sampling='cyclic', arrivals='uniform:0.5:9')

  @parameterized.parameters(
      ({'method': 'fedcorr'}, '--method=fedcorr'), ({'method': 'clipfl'}, '--method=clipfl'),
      ({'method': 'rhfl'}, '--method=rhfl'),
      ({'method': 'poc'}, '--method=poc'), ({'base': 'poc'}, '--base=poc'),
      ({'method': 'gce', 'base': 'poc'}, '--base=poc'),
  )
  def test_who_chooses_clients_takes_none_by_turns(self, changes, named):
    with self.assertRaises(types.UsageError) as caught:
      _config(client_sampling='cyclic', allow_per_client_disclosure=True, **changes)
    self.assertEqual(
        str(caught.exception),
        f'--client_sampling=cyclic cannot be given with {named}, which chooses clients itself',
    )


class StagesTest(parameterized.TestCase):

  def _fedcorr(self, stages):
    return _config(method='fedcorr', allow_per_client_disclosure=True, stages=stages)

  @parameterized.parameters(
      (None, {}),
      ('', {}),
      ('finetune:0', {'finetune': 0}),
      ('preprocess:5,finetune:50,usual:45', {'preprocess': 5, 'finetune': 50, 'usual': 45}),
      (' usual:7 , preprocess:999999', {'usual': 7, 'preprocess': 999999}),
  )
  def test_lengths_by_name(self, text, expected):
    self.assertEqual(self._fedcorr(text).stage_lengths(), expected)

  @parameterized.parameters(
      ('finetune', "--stages must be NAME:LENGTH,..., got 'finetune'"),
      ('finetune:', "--stages must be NAME:LENGTH,..., got 'finetune:'"),
      ('finetune:-1', "--stages must be NAME:LENGTH,..., got 'finetune:-1'"),
      ('finetune:1.5', "--stages must be NAME:LENGTH,..., got 'finetune:1.5'"),
      ('finetune:1000000', "--stages must be NAME:LENGTH,..., got 'finetune:1000000'"),
      ('finetune:1,', "--stages must be NAME:LENGTH,..., got ''"),
      (':1', "--stages must be NAME:LENGTH,..., got ':1'"),
      ('tune:1', '--stages: tune is no stage; fedcorr has preprocess, finetune, usual'),
      (
          'usual:1,usual:1',
          '--stages: usual is given twice; fedcorr has preprocess, finetune, usual',
      ),
  )
  def test_mistakes(self, text, message):
    with self.assertRaises(types.UsageError) as caught:
      self._fedcorr(text)
    self.assertEqual(str(caught.exception), message)

  @parameterized.parameters('fedavg', 'feddpcont')
  def test_method_without_stages(self, method):
    with self.assertRaisesRegex(
        types.UsageError, f'^--stages: usual is no stage; {method} has none$'
    ):
      _config(method=method, stages='usual:3')


class DisclosureTest(parameterized.TestCase):

  def test_what_the_server_sees_of_single_clients_has_to_be_allowed(self):
    with self.assertRaises(types.UsageError) as caught:
      _config(method='fedcorr')
    message = str(caught.exception)
    self.assertStartsWith(message, 'fedcorr shows the server ')
    self.assertIn('LID score', message)
    self.assertIn('--allow_per_client_disclosure', message)
    self.assertNotIn('\n', message)
    _config(method='fedcorr', allow_per_client_disclosure=True)

  @parameterized.parameters('fedavg', 'feddpcont')
  def test_may_be_allowed_where_nothing_is_shown(self, method):
    _config(method=method, allow_per_client_disclosure=True)

  def test_mistake_of_a_parameter_is_said_first(self):
    # Who is asked to allow something should know that it would run.
    with self.assertRaisesRegex(types.UsageError, '^--param: confidence must be'):
      _config(method='fedcorr', param=('confidence=2',))


class AvailabilityTest(parameterized.TestCase):

  def test_without_arrivals_everybody_is_there(self):
    found = _config().availability(7)
    for round_num in (1, 10**9):
      np.testing.assert_array_equal(found.present(round_num), np.arange(7))

  def test_arrivals_are_a_function_of_the_seed(self):
    joins = [
        _config(arrivals='uniform:1:100', seed=seed).availability(20).joins.tolist()
        for seed in (0, 0, 1)
    ]
    self.assertEqual(joins[0], joins[1])
    self.assertNotEqual(joins[0], joins[2])

  def test_file_of_arrivals(self):
    path = self.create_tempfile(content='client,joins,leaves\n1,3,5\n').full_path
    found = _config(arrivals=path).availability(2)
    self.assertEqual([found.present(r).tolist() for r in (2, 3, 5)], [[0], [0, 1], [0]])

  def test_mistake_names_the_flag(self):
    with self.assertRaisesRegex(types.UsageError, '^--arrivals=missing.csv cannot be read'):
      _config(arrivals='missing.csv').availability(3)


class PartsTest(parameterized.TestCase):

  def _file(self, name, content):
    path = os.path.join(self.create_tempdir().full_path, name)
    np.savetxt(path, content, delimiter=',')
    return path

  def test_scene_spec_takes_the_flags_of_data_and_noise(self):
    spec = _config(
        clients=30, partition='openset_dirichlet', partition_p=0.2, partition_alpha=0.3,
        partition_min_size=4, openset_q='0.7', noise='random', noise_rate=0.1, noise_rho=0.25,
        noise_tau=0.35, noise_semantics='reference', validation_fraction=0.05,
        client_validation_fraction=0.15,
    ).scene_spec()
    self.assertEqual(
        spec.partition._asdict(),
        {'name': 'openset_dirichlet', 'num_clients': 30, 'p': 0.2, 'alpha': 0.3, 'min_size': 4,
         'q': 0.7},
    )
    self.assertEqual(
        spec.noise._asdict(),
        {'name': 'random', 'rate': 0.1, 'rho': 0.25, 'tau': 0.35, 'semantics': 'reference',
         'matrix': None},
    )
    self.assertEqual(spec.validation_fraction, 0.05)
    self.assertEqual(spec.client_validation_fraction, 0.15)

  def test_q_may_be_a_file(self):
    q = np.linspace(0.1, 0.9, 10)
    spec = _config(openset_q=self._file('q.csv', q)).scene_spec()
    np.testing.assert_allclose(spec.partition.q, q)
    matrix = np.tile(q, (20, 1))
    spec = _config(openset_q=self._file('q.txt', matrix)).scene_spec()
    np.testing.assert_allclose(spec.partition.q, matrix)

  @parameterized.parameters(
      (np.zeros(10), '^--openset_q is all 0'),
      (np.full(10, 1.5), r'^--openset_q must be within \[0, 1\], got 1.5 at \[0\]'),
      (np.full((7, 10), 0.5), '^--openset_q has 7 rows, one for each of the 20 clients'),
  )
  def test_file_of_q_is_checked_at_once(self, q, message):
    with self.assertRaisesRegex(types.UsageError, message):
      _config(openset_q=self._file('q.csv', q)).check_openset_q()

  @parameterized.parameters(
      ('much', r"^--openset_q must be a number in \(0, 1\), or a file of numbers .*, got 'much'$"),
      ('', "^--openset_q must be a number .*, got ''$"),
      ('0.5.1', "^--openset_q must be a number .*, got '0.5.1'$"),
      ('q.yaml', "^--openset_q must be a number .*, got 'q.yaml'$"),
  )
  def test_q_that_is_neither_a_number_nor_a_file(self, text, message):
    with self.assertRaisesRegex(types.UsageError, message):
      _config(openset_q=text)

  def test_missing_file_of_q(self):
    with self.assertRaisesRegex(types.UsageError, '^--openset_q=no/q.csv: no such file'):
      _config(openset_q='no/q.csv').check_openset_q()

  def test_matrix_is_read_where_it_is_asked_for(self):
    matrix = np.roll(np.eye(10), 1, axis=1)
    path = self._file('T.csv', matrix)
    spec = _config(noise='matrix', noise_matrix=path).scene_spec()
    np.testing.assert_array_equal(spec.noise.matrix, matrix)
    self.assertIsNone(_config(noise_matrix=path).scene_spec().noise.matrix)

  def test_matrix_needs_its_file(self):
    config = _config(noise='matrix')
    with self.assertRaisesRegex(
        types.UsageError, '^--noise_matrix must be given with --noise=matrix, got nothing$'
    ):
      config.scene_spec()
    with self.assertRaisesRegex(types.UsageError, '^--noise_matrix=no.csv: no such file'):
      _config(noise='matrix', noise_matrix='no.csv').scene_spec()

  def test_data_spec_takes_the_flags_of_the_data_set(self):
    spec = _config(
        dataset='cifar10n', data_dir='here', human_labels='aggre', image_size=48, noise='human'
    ).data_spec()
    self.assertEqual(spec._asdict(), {
        'name': 'cifar10n', 'data_dir': 'here', 'human_labels': 'aggre', 'image_size': 48,
    })

  def test_local_training_takes_the_flags_of_training(self):
    training = _config(
        local_epochs=3, batch_size=7, learning_rate=0.1, momentum=0.9, weight_decay=1e-4,
        augmentation='crop_flip', label_smoothing=0.2, temperature=10.0,
        temperature_reading='rescale', mixup_alpha=0.2, logit_adjustment=1.0,
    ).local_training
    self.assertEqual(
        training,
        types.LocalTraining(
            epochs=3, batch_size=7, learning_rate=0.1, momentum=0.9, weight_decay=1e-4,
            augmentation='crop_flip',
            loss=types.CrossEntropy(
                label_smoothing=0.2, temperature=10.0, temperature_reading='rescale'
            ),
            mixup_alpha=0.2, logit_adjustment=1.0,
        ),
    )


class BaseTest(parameterized.TestCase):

  def test_none_unless_it_is_asked_for(self):
    self.assertIsNone(_config().base_params())

  def test_parameters_are_the_optimizers(self):
    found = _config(base='fedprox', base_param=('mu=0.5',)).base_params()
    self.assertEqual((found.mu, found.term), (0.5, 'squared'))

  def test_adam_has_no_momentum(self):
    with self.assertRaisesRegex(
        types.UsageError, '^--momentum must be 0 with --local_optimizer=adam, got 0.9$'
    ):
      _config(local_optimizer='adam', momentum=0.9)
    self.assertEqual(_config(local_optimizer='adam').local_training.optimizer, 'adam')

  @parameterized.parameters(
      ({'base_param': ('mu=1',)}, '--base_param needs --base'),
      ({'base': 'fedprox', 'base_param': ('nu=1',)}, "--base_param: fedprox has no 'nu'; it has"),
      ({'base': 'fedprox', 'base_param': ('mu=-1',)}, '--base_param: mu must not be negative'),
      ({'base': 'feddyn', 'base_param': ('alpha=0',)}, '--base_param: alpha must be positive'),
      ({'method': 'median', 'aggregation': 'secure_sum', 'allow_per_client_disclosure': True},
       '--aggregation=secure_sum cannot be given with --method=median: the server compares'),
      ({'base': 'median', 'aggregation': 'secure_sum', 'allow_per_client_disclosure': True},
       '--aggregation=secure_sum cannot be given with --base=median'),
      ({'early_stopping': 2, 'client_dp_noise': 1.0},
       '--early_stopping cannot be given with client DP'),
      ({'method': 'median', 'aggregation': 'm:f', 'allow_per_client_disclosure': True},
       '--aggregation=m:f cannot be given with --method=median: the server compares'),
      ({'aggregation': 'm:f', 'client_dp_noise': 1.0},
       '--aggregation of your own cannot be given with client DP'),
      ({'base': 'median'}, "--base=median shows the server each client's model, .*--allow_per"),
      ({'method': 'clipfl'}, "clipfl shows the server each client's model"),
      ({'method': 'fedprox', 'base': 'fedavg'},
       '--base cannot be given with --method=fedprox, .* only with clipfl, .* takes_base=True'),
  )
  def test_mistakes(self, flags, message):
    with self.assertRaisesRegex(types.UsageError, '^' + message):
      _config(**flags)


class IdentityTest(parameterized.TestCase):

  def test_every_flag_is_one_or_the_other(self):
    flags = set(_OTHER) | {'stages', 'base_param', 'workers'} | set(_EXECUTION) | {'run_name'}
    self.assertEqual(flags, {f.name for f in dataclasses.fields(run_config.RunConfig)})

  def test_what_determines_the_result_changes_the_name(self):
    names = {'': _config().name()}
    for name, value in _OTHER.items():
      changed = _config(**{**_NEEDED.get(name, {}), name: value})
      names[name] = changed.name()
      # The seed stands in the name anyway; a run is compared by its identity.
      self.assertNotEqual(changed.identity()[name], _config().identity()[name])
    self.assertLen(set(names.values()), len(names), names)

  def test_stages_change_the_name(self):
    whole = _config(**{**_OTHER_STAGES, 'stages': None})
    self.assertNotEqual(_config(**_OTHER_STAGES).name(), whole.name())

  def test_parameters_of_the_base_change_the_name(self):
    names = {
        _config(base='fedprox', base_param=base_param).name()
        for base_param in ((), ('mu=0.5',), ('mu=0.5', 'term=norm'))
    }
    self.assertLen(names, 3)
    first, second = (
        _config(base='fedprox', base_param=given)
        for given in (('mu=1', 'term=norm'), ('term=norm', 'mu=1'))
    )
    self.assertEqual(first.name(), second.name())

  @parameterized.parameters(*_EXECUTION)
  def test_where_and_how_it_is_executed_does_not(self, name):
    changed = _config(**{name: _EXECUTION[name]})
    self.assertEqual(changed.name(), _config().name())
    self.assertEqual(changed.identity(), _config().identity())
    self.assertNotIn(name, changed.identity())

  def test_workers_do_not_change_the_name(self):
    remote = _config(runtime='remote', workers=('one:1', '[::1]:2'))
    self.assertEqual(remote.name(), _config().name())

  @parameterized.parameters(
      ('remote', (), 'HOST:PORT,... with --runtime=remote'),
      ('remote', ('here',), "HOST:PORT,..., got 'here'"),
      ('remote', ('a..b:80',), "HOST:PORT,..., got 'a..b:80'"),
      ('remote', ('a:1', 'b:2', 'a:1'), 'one worker twice'),
      ('local', ('a:1',), 'empty with --runtime=local'),
  )
  def test_workers_that_cannot_be_used_are_refused(self, runtime, workers, message):
    with self.assertRaisesRegex(types.UsageError, '--workers.*' + re.escape(message)):
      _config(runtime=runtime, workers=workers)

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
