"""Tests of the command line."""

import contextlib
import dataclasses
import importlib.util
import io
import itertools
import os
import re
import subprocess
import sys
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from tff_noise import types
from tff_noise.algorithms import catalog
from tff_noise.data import human_labels
from tff_noise.program import command_line
from tff_noise.program import flags
from tff_noise.program import run_config

_FIELDS = tuple(f.name for f in dataclasses.fields(run_config.RunConfig))


def _python(code):
  """Runs `code` in a new process, with the import path of this one; returns what it printed."""
  environment = {**os.environ, 'PYTHONPATH': os.pathsep.join(p for p in sys.path if p)}
  done = subprocess.run(
      [sys.executable, '-c', code], env=environment, capture_output=True, text=True, check=False
  )
  if done.returncode:
    raise AssertionError(done.stderr)
  return done.stdout


class FlagsTestCase(parameterized.TestCase):
  def config(self, *arguments):
    return flags.config_from(flags.parse(['train', *arguments]))

  def command_line(self, *arguments):
    return flags.config_of_command_line(['train', *arguments])

  def assert_refused(self, message, *arguments):
    self._assert_refused(message, self.config, arguments)

  def assert_misled(self, message, *arguments):
    """What configures a run, but not as whoever wrote it thinks."""
    self._assert_refused(message, self.command_line, arguments)

  def _assert_refused(self, message, read, arguments):
    with self.assertRaises(types.UsageError) as caught:
      read(*arguments)
    self.assertRegex(str(caught.exception), message)
    self.assertNotIn('\n', str(caught.exception))


class DefaultsTest(FlagsTestCase):

  def test_defaults_are_a_valid_configuration_of_every_field(self):
    config = self.config()
    self.assertEqual(config.method, 'feddpcont')
    self.assertEqual(config.dataset, 'digits')
    for name in _FIELDS:
      default = flags.parse(['train'])[name].default
      expected = tuple(default) if isinstance(default, list) else default
      self.assertEqual(getattr(config, name), expected)


class ParseTest(FlagsTestCase):

  def test_values_arrive_with_their_types(self):
    config = self.config(
        '--method=fedavg', '--clients=7', '--clients_per_round', '3', '--noise_rate=1e-1',
        '--noresume', '--label_epsilon=0.010', '--run_name=x',
    )
    self.assertEqual(
        (config.method, config.clients, config.clients_per_round, config.noise_rate),
        ('fedavg', 7, 3, 0.1),
    )
    self.assertIs(config.resume, False)
    # As text: a float would have lost what was written.
    self.assertEqual(config.label_epsilon, '0.010')

  def test_values_of_data_and_noise_arrive_with_their_types(self):
    config = self.config(
        '--dataset=npz', '--data_dir=mine.npz', '--validation_fraction=.1',
        '--partition=bernoulli_dirichlet', '--partition_p=1', '--partition_alpha=1e-2',
        '--partition_min_size=3', '--openset_q=0.50', '--noise=client_uniform', '--noise_rho=.25',
        '--noise_tau=0', '--noise_semantics=reference', '--image_size=32',
        '--augmentation=crop_flip', '--label_smoothing=.2', '--temperature=10',
        '--temperature_reading=rescale',
    )
    self.assertEqual(
        (config.data_dir, config.validation_fraction, config.partition_p, config.partition_alpha),
        ('mine.npz', 0.1, 1.0, 0.01),
    )
    self.assertEqual(
        (config.partition_min_size, config.noise_rho, config.noise_tau, config.noise_semantics),
        (3, 0.25, 0.0, 'reference'),
    )
    self.assertEqual(
        (config.image_size, config.augmentation, config.label_smoothing, config.temperature),
        (32, 'crop_flip', 0.2, 10.0),
    )
    # As text: it may be the name of a file.
    self.assertEqual(config.openset_q, '0.50')

  def test_values_of_stages_arrive_with_their_types(self):
    config = self.config(
        '--method=fedcorr', '--allow_per_client_disclosure', '--stages=preprocess:1,usual:0',
        '--arrivals=uniform:.5:9',
    )
    self.assertIs(config.allow_per_client_disclosure, True)
    self.assertEqual(config.stage_lengths(), {'preprocess': 1, 'usual': 0})
    self.assertEqual(config.arrivals, 'uniform:.5:9')

  def test_values_of_privacy_arrive_with_their_types(self):
    config = self.config(
        '--training_labels=private', '--client_dp_noise=.5', '--client_dp_clip=2',
        '--label_epsilon=2', '--label_prior=inverse', '--debug_client_errors',
    )
    self.assertIs(config.debug_client_errors, True)
    self.assertEqual(
        (config.training_labels, config.client_dp_noise, config.client_dp_clip),
        ('private', 0.5, 2.0),
    )
    self.assertEqual((config.label_epsilon, config.label_prior), ('2', 'inverse'))

  def test_noise_of_a_target_is_part_of_the_configuration(self):
    flags_ = ('--method=fedavg', '--rounds=5', '--client_sampling=cyclic')
    config = self.config(*flags_, '--target_client_epsilon=2')
    self.assertGreater(config.client_dp_noise, 0)
    self.assertEqual(config.client_sampling, 'cyclic')
    # Given both, as in a configuration that is read back, it is the same run.
    again = self.config(
        *flags_, '--target_client_epsilon=2', f'--client_dp_noise={config.client_dp_noise}'
    )
    self.assertEqual(again, config)
    self.assertEqual(again.name(), config.name())
    self.assertIsNone(self.config().target_client_epsilon)

  def test_parameters_add_up(self):
    config = self.config('--param=weight=0.5', '--param=warmup_rounds=3')
    self.assertEqual(config.param, ('weight=0.5', 'warmup_rounds=3'))
    self.assertEqual(config.method_params().warmup_rounds, 3)

  def test_later_flags_win_over_a_flag_file(self):
    path = self.create_tempfile(content='# A comment.\n--rounds=7\n--seed=3\n').full_path
    config = self.config(f'--flagfile={path}', '--seed=4')
    self.assertEqual((config.rounds, config.seed), (7, 4))

  def test_later_parameters_win_over_a_flag_file(self):
    path = self.create_tempfile(content='--param=weight=0.5\n--param=ramp_rounds=2\n').full_path
    config = self.config(f'--flagfile={path}', '--param=weight=0.25')
    self.assertEqual(config.param, ('weight=0.25', 'ramp_rounds=2'))
    self.assertEqual(config.method_params().weight, 0.25)

  def test_a_file_of_flags_cannot_hide_what_is_misspelt_either(self):
    path = self.create_tempfile(content='--undefok=clientz\n--clientz=3\n').full_path
    self.assert_refused('^--undefok is not taken', f'--flagfile={path}')

  def test_a_file_of_flags_without_a_name_as_a_word_of_its_own(self):
    self.assert_refused('^--flagfile= names no file', '--flagfile', '')
    self.assert_refused('^--flagfile= names no file', '--flagfile')

  @parameterized.parameters(
      ('--clientz=3', "Unknown command line flag 'clientz'. Did you mean: .*\\bclients\\b"),
      ('--clients=many', "^--clients must be a whole number, got 'many'$"),
      ('--clients=1.5', '--clients must be a whole number'),
      ('--noresume=true', '--noresume=true does not take an argument'),
      ('--rounds', 'Missing value for flag --rounds; flags are written --name=value'),
      ('--clients=', "--clients must be a whole number, got ''"),
      ('--momentum=0: 5', "--momentum must be a number, got '0: 5'"),
      ('--noise_rate=high', '--noise_rate must be a number'),
      ('--resume=maybe', "--resume must be true or false, got 'maybe'"),
      ('--clients', 'Missing value for flag --clients'),
      ('--flagfile=/no/such.flags', r'^--flagfile=/no/such.flags cannot be read \(No such file'),
      ('--flagfile=', '^--flagfile= names no file; name one, or leave it out$'),
      ('--undefok=clientz', '^--undefok is not taken'),
      ('-undefok', '^--undefok is not taken'),
      ('stray', "unexpected argument 'stray'; flags are written --name=value"),
      ('-', "unexpected argument '-'"),
  )
  def test_mistakes_of_the_command_line(self, argument, message):
    self.assert_refused(message, argument)

  @parameterized.parameters(
      ('--momentum=nan', r'^--momentum must be in \[0, 1\), got nan$'),
      ('--learning_rate=inf', '^--learning_rate must be a positive number, got inf$'),
      ('--method=sgd', '^--method must be one of fedavg, fedprox, .*, feddpcont, .* got sgd$'),
      ('--param=weight=nan', "^--param: weight must be finite, got 'nan'$"),
      ('--param=weight', "^--param must be NAME=VALUE, got 'weight'$"),
      ('--seed=9223372036854775808', r'^--seed must be in \[0, 2\*\*63\), got 92'),
      ('--openset_q=1', r'^--openset_q must be in \(0, 1\), both ends excluded, got 1.0$'),
      ('--partition_alpha=0', '^--partition_alpha must be positive and finite, got 0.0$'),
      ('--stages=usual:1', '^--stages: usual is no stage; feddpcont has none$'),
      ('--method=fedcorr', '^fedcorr shows the server .*--allow_per_client_disclosure'),
      ('--noise_semantics=code', '^--noise_semantics must be paper or reference, got code$'),
      ('--training_labels=no', '^--training_labels must be one of local, private, got no$'),
      ('--client_dp_noise=-1', r'^--client_dp_noise must be 0, or in \[1e-4, 1e6\], got -1.0$'),
      ('--target_client_epsilon=0', '^--target_client_epsilon must be positive, .* got 0.0$'),
      ('--target_client_epsilon=nan', '^--target_client_epsilon must be positive, .* got nan$'),
      ('--client_sampling=poisson', '^--client_dp_noise must be above 0 with .*=poisson, got 0.0$'),
      ('--client_dp_clip=0', r'^--client_dp_clip must be in \[1e-30, 1e30\], got 0.0$'),
  )
  def test_mistakes_of_the_values(self, argument, message):
    # All ranges are in run_config_test; here that the command line gets there.
    self.assert_refused(message, argument)


class RunTest(absltest.TestCase):
  """The configuration of a run that is there."""

  def test_a_run_has_the_flags_that_came_later_as_by_default(self):
    identity = flags.config_from(flags.parse(['train', '--rounds=7', '--seed=3'])).identity()
    del identity['mixup_alpha'], identity['aggregation']
    config = flags.config_of_run(identity)
    self.assertEqual((config.rounds, config.seed), (7, 3))
    self.assertEqual((config.mixup_alpha, config.aggregation), (0.0, 'mean'))

  def test_a_tilde_is_the_home_folder(self):
    config = flags.config_from(flags.parse([
        'train', '--root_dir=~/runs', '--weights=~/w.h5', '--data_dir=~/x', '--scene=a~/b',
    ]))
    home = os.path.expanduser('~')
    self.assertEqual(
        (config.root_dir, config.weights, config.data_dir, config.scene),
        # Where data lie is in a run's name: as it was given.
        (f'{home}/runs', f'{home}/w.h5', '~/x', 'a~/b'),
    )

  def test_flags_that_are_gone_are_named(self):
    with self.assertRaisesRegex(types.UsageError, 'does not know, old, older: use the one'):
      flags.config_of_run({**flags.defaults(), 'older': 1, 'old': 2})


class SceneTest(FlagsTestCase):

  @parameterized.parameters(
      '--clients=20', '--validation_fraction=0', '--partition=iid', '--partition_p=0.7',
      '--partition_alpha=1', '--partition_min_size=1', '--openset_q=0.5', '--noise=none',
      '--noise_rate=0.4', '--noise_rho=0.6', '--noise_tau=0.5', '--noise_semantics=paper',
      '--noise_matrix=T.csv', '--human_labels=aggre',
  )
  def test_flag_that_the_scene_overrides_is_refused_even_at_its_default(self, argument):
    name = argument.split('=')[0]
    self.assert_misled(
        f'^{name} cannot be given with --scene, which fixes them: leave them out$',
        '--scene=s.npz', argument,
    )

  def test_all_of_them_are_named(self):
    self.assert_misled(
        '^--clients, --noise cannot be given with --scene',
        '--noise=none', '--clients=3', '--scene=s.npz',
    )

  def test_other_flags_may_be_given(self):
    config = self.command_line(
        '--scene=s.npz', '--seed=3', '--clients_per_round=50', '--dataset=cifar10n', '--data_dir=d',
        '--validation_dir=v',
    )
    self.assertEqual((config.scene, config.clients_per_round), ('s.npz', 50))


class EffectTest(FlagsTestCase):

  @parameterized.parameters(
      ('data_dir', '--data_dir=d'),
      ('public_dataset', '--public_dataset=digits', '--method=fedavg'),
      ('public_examples', '--public_examples=7'),
      ('norm', '--norm=batch', '--model=vit_tiny'),
      ('model', '--model=cnn', '--method=rhfl', '--param=architectures=mlp+cnn',
       '--public_dataset=digits', '--allow_per_client_disclosure'),
      ('param=lid_neighbours=5', '--param=lid_neighbours=5', '--method=clipfl',
       '--allow_per_client_disclosure', '--validation_fraction=0.1'),
      ('param=beta=0.5', '--param=beta=0.5', '--param=weight=0', '--method=elr'),
      ('base_param=term=norm', '--base_param=term=norm', '--base_param=mu=0', '--base=fedprox'),
      ('clients', '--clients=20', '--partition=natural'),
      ('partition_p', '--partition_p=0.5'),
      ('partition_alpha', '--partition_alpha=0.5', '--partition=iid'),
      ('openset_q', '--openset_q=0.3', '--partition=iid'),
      ('noise_rate', '--noise_rate=0.9', '--noise=client_uniform', '--partition=iid'),
      ('noise_rate', '--noise_rate=0.4', '--noise=none'),
      ('noise_rho', '--noise_rho=0.9'),
      ('noise_tau', '--noise_tau=0.9', '--noise=client_symmetric', '--partition=iid'),
      ('noise_semantics', '--noise_semantics=paper'),
      ('noise_matrix', '--noise_matrix=T.csv'),
      ('momentum', '--momentum=0', '--local_optimizer=adam'),
      ('update_bound', '--update_bound=2'),
      ('aggregation', '--aggregation=a.b:factory', '--method=rhfl',
       '--allow_per_client_disclosure', '--public_dataset=digits'),
      ('temperature_reading', '--temperature_reading=rescale'),
      ('label_prior', '--label_prior=inverse', '--method=fedavg'),
      ('label_epsilon', '--label_epsilon=2', '--method=fedavg'),
      ('label_epsilon', '--label_epsilon=2', '--label_prior=uniform'),
      ('client_dp_clip', '--client_dp_clip=2'),
      ('client_dp_mechanism', '--client_dp_mechanism=gaussian'),
      ('noise_source', '--noise_source=system'),
      ('update_bound', '--update_bound=5', '--aggregation=secure_sum', '--method=rhfl',
       '--public_dataset=digits'),
      ('max_concurrent_clients', '--max_concurrent_clients=1', '--runtime=remote',
       '--workers=a:1'),
  )
  def test_a_flag_that_nothing_reads_is_refused_with_what_would(self, name, *arguments):
    self.assert_misled(f'^--{name} has no effect here: .* would read it; give', *arguments)
    self.config(*arguments)  # As a grid has it, whose cells share flags.

  @parameterized.parameters(
      ('iterations', 'preprocess', '--method=fedcorr', '--allow_per_client_disclosure'),
      ('warm_up_iterations', 'warm_up', '--method=feddiv'),
  )
  def test_a_length_that_stages_give_is_no_parameter(self, name, stage, *method):
    self.assert_misled(
        f'^--param={name}=9 has no effect here: --stages without {stage} would read it',
        *method, f'--param={name}=9', f'--stages={stage}:5',
    )
    self.config(*method, f'--param={name}=9')

  @parameterized.parameters(
      ('--noise_rho=0.9', '--noise=client_symmetric', '--partition=iid'),
      ('--label_epsilon=2', '--method=fedavg', '--training_labels=private'),
      ('--label_prior=uniform',),
      ('--client_dp_clip=2', '--client_dp_noise=1', '--method=fedavg'),
      ('--data_dir=d', '--dataset=npz'),
      ('--data_dir=d', '--public_dataset=npz', '--method=rhfl', '--allow_per_client_disclosure'),
      ('--temperature_reading=rescale', '--temperature=10'),
      ('--model=cnn', '--method=rhfl', '--allow_per_client_disclosure', '--public_dataset=digits'),
      ('--param=lid_neighbours=5', '--param=selector=lid', '--method=clipfl',
       '--allow_per_client_disclosure'),
      ('--base_param=term=norm', '--base_param=mu=0.1', '--base=fedprox'),
  )
  def test_a_flag_that_something_reads_is_taken(self, *arguments):
    self.command_line(*arguments)

  def _file(self, *lines):
    return f'--flagfile={self.create_tempfile(content=chr(10).join(lines)).full_path}'

  def test_a_file_may_have_flags_for_other_runs(self):
    file = self._file('--noise_rho=0.9', '--label_epsilon=2')
    config = self.command_line(file, '--method=fedavg', '--scene=s.npz')
    self.assertEqual(config.noise_rho, 0.9)
    file = self._file('--method=elr', '--param=beta=0.9')
    self.assertEqual(self.command_line(file, '--param=weight=0').method_params().beta, 0.9)

  def test_a_flag_that_is_given_twice_is_said(self):
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
      config = self.command_line(
          '--method=fedprox', '--rounds=3', '--param=mu=1', '--rounds=5', '--param=term=norm',
          '--param=mu=2',
      )
    self.assertEqual(config.rounds, 5)
    self.assertEqual(config.method_params().mu, 2)
    self.assertEqual(said.getvalue().splitlines(), [
        'flags: --param=mu=1 is given again; the last holds',
        'flags: --rounds is given 2 times; the last, 5, holds',
    ])

  def test_what_a_later_file_changes_is_said(self):
    file = self._file('--dataset=digits', '--rounds=7', '--param=weight=0.5')
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
      config = self.command_line('--dataset=npz', '--rounds=7', '--param=weight=1', file)
    self.assertEqual(config.dataset, 'digits')
    self.assertEqual(said.getvalue().splitlines(), [
        'flags: a --flagfile that comes later on the command line changes --param from weight=1 to '
        'weight=0.5',
        'flags: a --flagfile that comes later on the command line changes --dataset from npz to '
        'digits',
    ])
    with contextlib.redirect_stderr(said):
      self.assertEqual(self.command_line(file, '--rounds=9').rounds, 9)
    self.assertLen(said.getvalue().splitlines(), 2)

  def test_files_are_told_from_flags_however_they_are_written(self):
    argv = ['train', '--flagfile=a', '--seed=1', '--flagfile', 'b', '-flagfile', 'c', '--resume']
    self.assertEqual(flags.without_files(argv), ['train', '--seed=1', '--resume'])


class AsCalledTest(absltest.TestCase):

  def test_programs_are_called_as_they_are_here(self):
    text = 'Try:\n  ./bazelw run //bin:train -- --seed=1'
    self.assertEqual(command_line.as_called(text), text)
    with mock.patch.object(importlib.util, 'find_spec'):  # Where this is installed it finds one.
      self.assertEqual(command_line.as_called(text), 'Try:\n  tff-noise-train --seed=1')

  def test_flags_that_may_be_given_several_times(self):
    self.assertEqual(flags.repeated(), {'param', 'base_param'})


class NaturalTest(FlagsTestCase):

  def test_cohort_may_be_larger_than_the_default_of_clients(self):
    config = self.config('--partition=natural', '--clients_per_round=50')
    self.assertEqual(config.clients_per_round, 50)


class ConflictTest(FlagsTestCase):

  def test_two_validation_sets(self):
    self.assert_refused(
        '^--validation_dir and --validation_fraction cannot be given together',
        '--validation_dir=v', '--validation_fraction=0.1',
    )

  @parameterized.parameters('cifar10n', 'cifar100n', 'clothing1m')
  def test_sets_of_human_labels_need_noise_human(self, name):
    # The default noise is another one: it must be said.
    self.assert_refused(
        f'^--noise must be human for --dataset={name}, got symmetric$', f'--dataset={name}'
    )
    self.assertEqual(self.config(f'--dataset={name}', '--noise=human').noise, 'human')
    self.assertEqual(self.config(f'--dataset={name}', '--scene=s.npz').scene, 's.npz')


class HelpTest(FlagsTestCase):

  def test_lists_every_field_with_its_default(self):
    lines = flags.help_text().splitlines()
    for name in (*_FIELDS, 'help', 'list_methods'):
      with self.subTest(name):
        (line,) = [x for x in lines if x.split(' [')[0] == f'  --{name}']
        default = flags.parse(['train'])[name].default
        if default not in (None, []):
          self.assertIn(str(default).lower(), line)

  def test_lists_nothing_else(self):
    listed = re.findall(r'^  --(\w+)', flags.help_text(), re.MULTILINE)
    self.assertCountEqual(listed, (*_FIELDS, 'help', 'list_methods'))

  def test_every_flag_is_explained_within_the_width_of_a_terminal(self):
    lines = flags.help_text().splitlines()
    for line, following in itertools.pairwise(lines):
      self.assertLessEqual(len(line), 100)
      if line.startswith('  --'):
        self.assertRegex(following, r'^ {6}\S')

  def test_names_every_choice(self):
    text = flags.help_text()
    for name in (*catalog.ALGORITHMS, *run_config.MODELS, *run_config.NORMS,
                 *run_config.AUGMENTATIONS, *run_config.TEMPERATURE_READINGS,
                 *run_config.noise.SEMANTICS,
                 *run_config.AGGREGATIONS, *run_config.partition.PARTITIONS,
                 *run_config.TRAINING_LABELS,
                 *run_config.noise.NOISES, *run_config.sources.DATASETS,
                 *run_config.estimator.PRIORS):
      self.assertRegex(text, rf'\b{name}\b')
    for names in human_labels.CHOICES.values():
      for name in names:
        self.assertRegex(text, rf'\b{name}\b')

  def test_can_be_asked_for(self):
    self.assertTrue(flags.parse(['train', '--help']).help)
    self.assertTrue(flags.parse(['train', '--list_methods']).list_methods)

  def test_list_of_methods_shows_every_parameter_with_its_default(self):
    text = flags.methods_text()
    for name, method in catalog.ALGORITHMS.items():
      self.assertIn(f'{name}\n  {method.title}\n  {method.paper}\n', text + '\n')
      for field in dataclasses.fields(method.params):
        self.assertIn(f'  --param={field.name}={field.default}', text)


class ImportTest(parameterized.TestCase):

  @parameterized.parameters(
      'tff_noise.program.flags',
      'tff_noise.program.run_config',
      'tff_noise.program.data',
      'tff_noise.algorithms.catalog',
      'tff_noise.program.run_directory',
      'tff_noise.program.summary',
  )
  def test_does_not_load_what_takes_seconds(self, module):
    # --help, mistakes and reports are answered at once.
    loaded = _python(f'import sys, {module}; print(*sys.modules, sep="\\n")').split()
    self.assertIn(module, loaded)
    for heavy in ('tensorflow', 'tensorflow_federated', 'keras', 'jax', 'sklearn', 'grpc'):
      self.assertNotIn(heavy, loaded)


if __name__ == '__main__':
  absltest.main()
