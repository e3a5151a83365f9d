"""Tests of the command line."""

import dataclasses
import itertools
import os
import re
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized

from tff_noise import types
from tff_noise.methods import registry
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

  def assert_refused(self, message, *arguments):
    with self.assertRaises(types.UsageError) as caught:
      self.config(*arguments)
    self.assertRegex(str(caught.exception), message)
    self.assertNotIn('\n', str(caught.exception))


class DefaultsTest(FlagsTestCase):

  def test_defaults_are_a_valid_configuration_of_every_field(self):
    config = self.config()
    self.assertEqual(config.method, 'feddpcont')
    self.assertEqual(config.dataset, 'digits')
    for name in _FIELDS:
      default = flags.parse(['train'])[name].default
      self.assertEqual(getattr(config, name), tuple(default) if name == 'param' else default)


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

  def test_parameters_add_up(self):
    config = self.config('--param=weight=0.5', '--param=warmup_rounds=3')
    self.assertEqual(config.param, ('weight=0.5', 'warmup_rounds=3'))
    self.assertEqual(config.method_params().warmup_rounds, 3)

  def test_later_flags_win_over_a_flag_file(self):
    path = self.create_tempfile(content='# A comment.\n--rounds=7\n--seed=3\n').full_path
    config = self.config(f'--flagfile={path}', '--seed=4')
    self.assertEqual((config.rounds, config.seed), (7, 4))

  @parameterized.parameters(
      ('--clientz=3', "Unknown command line flag 'clientz'. Did you mean: clients"),
      ('--clients=many', 'flag --clients=many: .*int'),
      ('--clients=1.5', 'flag --clients=1.5: .*int'),
      ('--clients=', 'flag --clients='),
      ('--noise_rate=high', 'flag --noise_rate=high: .*float'),
      ('--resume=maybe', 'flag --resume=maybe: .*boolean'),
      ('--clients', 'Missing value for flag --clients'),
      ('--flagfile=/no/such.flags', '/no/such.flags'),
      ('stray', "unexpected argument 'stray'; flags are written --name=value"),
      ('-', "unexpected argument '-'"),
  )
  def test_mistakes_of_the_command_line(self, argument, message):
    self.assert_refused(message, argument)

  @parameterized.parameters(
      ('--momentum=nan', r'^--momentum must be in \[0, 1\), got nan$'),
      ('--learning_rate=inf', '^--learning_rate must be a positive number, got inf$'),
      ('--method=sgd', '^--method must be one of fedavg, feddpcont, got sgd$'),
      ('--param=weight=nan', "^--param: weight must be finite, got 'nan'$"),
      ('--param=weight', "^--param must be NAME=VALUE, got 'weight'$"),
      ('--seed=9223372036854775808', r'^--seed must be in \[0, 2\*\*63\), got 92'),
  )
  def test_mistakes_of_the_values(self, argument, message):
    # All ranges are in run_config_test; here that the command line gets there.
    self.assert_refused(message, argument)


class SceneTest(FlagsTestCase):

  @parameterized.parameters(
      '--clients=20', '--partition=iid', '--openset_q=0.5', '--noise=none', '--noise_rate=0.4'
  )
  def test_flag_that_the_scene_overrides_is_refused_even_at_its_default(self, argument):
    name = argument.split('=')[0]
    self.assert_refused(
        f'^{name} cannot be given with --scene, which fixes them$', '--scene=s.npz', argument
    )

  def test_all_of_them_are_named(self):
    self.assert_refused(
        '^--clients, --noise cannot be given with --scene',
        '--noise=none', '--clients=3', '--scene=s.npz',
    )

  def test_other_flags_may_be_given(self):
    config = self.config('--scene=s.npz', '--seed=3', '--clients_per_round=50')
    self.assertEqual((config.scene, config.clients_per_round), ('s.npz', 50))


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
    for name in (*registry.METHODS, *run_config.MODELS, *run_config.NORMS,
                 *run_config.AGGREGATIONS, *run_config.partition.PARTITIONS,
                 *run_config.noise.NOISES, *run_config.sources.DATASETS,
                 *run_config.estimator.PRIORS):
      self.assertRegex(text, rf'\b{name}\b')

  def test_can_be_asked_for(self):
    self.assertTrue(flags.parse(['train', '--help']).help)
    self.assertTrue(flags.parse(['train', '--list_methods']).list_methods)

  def test_list_of_methods_shows_every_parameter_with_its_default(self):
    text = flags.methods_text()
    for name, method in registry.METHODS.items():
      self.assertIn(f'{name}\n  {method.title}\n  {method.paper}\n', text + '\n')
      for field in dataclasses.fields(method.params):
        self.assertIn(f'  --param={field.name}={field.default}', text)


class ImportTest(parameterized.TestCase):

  @parameterized.parameters(
      'tff_noise.program.flags',
      'tff_noise.program.run_config',
      'tff_noise.methods.registry',
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
