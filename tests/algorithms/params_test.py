"""Tests of the algorithms' own parameters, which are read and checked without TensorFlow."""

import dataclasses
import sys
from importlib import machinery
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from tff_noise import params as params_lib
from tff_noise import types
from tff_noise.algorithms import catalog
from tff_noise.algorithms import feddpcont
from tff_noise.algorithms import parameters

_ALL = tuple((name,) for name in catalog.ALGORITHMS)


@dataclasses.dataclass(frozen=True)
class _Params:
  """A field of each type, whose sum must stay below 100."""

  flag: bool = False
  count: int = 1
  rate: float = 0.5
  kind: str = 'a'

  def __post_init__(self):
    if self.count + self.rate >= 100:
      raise ValueError(f'count + rate must be below 100, got {self.count + self.rate}')
    assert self.rate >= 0  # As a user's class may ask, without a text.


def _parse(entry, assignments):
  return params_lib.parse(entry.name, entry.params, assignments)


_FAKE = catalog.Entry('fake', 'an algorithm', 'no paper', 'nowhere:build', _Params)
_BARE = _FAKE._replace(name='bare', params=dataclasses.make_dataclass('_NoParams', []))


class CatalogTest(parameterized.TestCase):

  @parameterized.parameters(*_ALL)
  def test_entry_is_complete_and_its_defaults_are_valid(self, name):
    entry = catalog.ALGORITHMS[name]
    self.assertEqual(entry.name, name)
    self.assertNotEmpty(entry.title)
    self.assertNotEmpty(entry.paper)
    params = _parse(entry, [])
    self.assertEqual(params, entry.params())

  @parameterized.parameters(*_ALL)
  def test_every_parameter_can_be_given_as_text_and_is_documented(self, name):
    entry = catalog.ALGORITHMS[name]
    for field in dataclasses.fields(entry.params):
      params = _parse(entry, [f'{field.name}={field.default}'])
      self.assertEqual(params, entry.params(), field.name)
      self.assertIn(f'  {field.name}: ', entry.params.__doc__)

  @parameterized.parameters(*_ALL)
  def test_what_a_parameter_is_read_by_is_another_that_may_say_so(self, name):
    params = catalog.ALGORITHMS[name].params()
    for field in dataclasses.fields(params):
      if 'read_if' in field.metadata:
        other, values = field.metadata['read_if']
        for value in values:
          dataclasses.replace(params, **{other: value})
        self.assertIsInstance(getattr(params, other), str if values else bool | int | float)

  @parameterized.parameters(*_ALL)
  def test_parameters_cannot_be_changed_after_they_were_checked(self, name):
    params = catalog.ALGORITHMS[name].params()
    with self.assertRaises(dataclasses.FrozenInstanceError):
      params.server_learning_rate = -1.0


class SourceTest(absltest.TestCase):

  def test_the_file_is_found_without_importing_what_it_is_in(self):
    folder = self.create_tempdir()
    folder.create_file('loud/__init__.py', 'raise ValueError("imported")')
    files = {
        place: folder.create_file(name, 'x = 1').full_path
        for place, name in (
            ('loud.inner:x', 'loud/inner.py'), ('no_init.deeper.inner:x', 'no_init/deeper/inner.py')
        )
    }
    with mock.patch.object(sys, 'path', [folder.full_path, *sys.path]):
      for place, path in files.items():
        self.assertEqual(params_lib.source_of(place), path)
      for place in ('loud.nothing:x', 'loud.inner.nothing:x', 'nowhere_at_all:x'):
        self.assertEqual(params_lib.source_of(place), '')
    self.assertNoCommonElements(sys.modules, ('loud', 'no_init'))

  def test_a_module_that_is_not_there_is_told_without_importing_any(self):
    folder = self.create_tempdir()
    folder.create_file('loud/__init__.py', 'raise ValueError("imported")')
    folder.create_file('loud/inner.py', '')
    with mock.patch.object(sys, 'path', [folder.full_path, *sys.path]):
      params_lib.require_module('loud.inner:x', 'model')
      for module in ('loud.other', 'nowhere_at_all', 'nowhere_at_all.inner'):
        with self.assertRaisesRegex(types.UsageError, f'--model={module}:x: there is no module'):
          params_lib.require_module(f'{module}:x', 'model')
      with self.assertRaisesRegex(types.UsageError, 'in the program that is running'):
        params_lib.require_module('__main__:x', 'model')
    self.assertNotIn('loud', sys.modules)

  def test_what_others_than_the_path_find_is_left_to_the_import(self):
    params_lib.require_module('absl.made_as_it_runs:x', 'model')  # It is installed.
    finder = mock.Mock(spec=['find_spec'])
    finder.find_spec.side_effect = lambda name, path, target=None: (
        machinery.ModuleSpec(name, None) if name == 'edited' else None
    )
    with mock.patch.object(sys, 'meta_path', [*sys.meta_path, finder]):
      params_lib.require_module('edited.inner:x', 'model')


class ParseTest(parameterized.TestCase):

  def test_values_take_the_types_of_their_defaults(self):
    params = _parse(_FAKE, ['flag=True', 'count=-7', 'rate=1e-3', 'kind=b c'])
    self.assertEqual(params, _Params(True, -7, 0.001, 'b c'))
    self.assertEqual(
        [type(v) for v in dataclasses.astuple(params)], [bool, int, float, str]
    )

  def test_order_is_irrelevant_and_the_rest_keeps_its_default(self):
    params = _parse(_FAKE, ['rate=2', 'count=3'])
    self.assertEqual(params, _parse(_FAKE, ['count=3', 'rate=2']))
    self.assertEqual(params, _Params(count=3, rate=2.0))

  def test_value_may_contain_the_separator(self):
    self.assertEqual(_parse(_FAKE, ['kind=a=b']).kind, 'a=b')

  @parameterized.parameters('true', 'TRUE', 'True')
  def test_true(self, text):
    self.assertIs(_parse(_FAKE, [f'flag={text}']).flag, True)

  def test_false_is_not_a_non_empty_text(self):
    self.assertIs(_parse(_FAKE, ['flag=false']).flag, False)

  @parameterized.named_parameters(
      ('no_separator', ['rate'], "--param must be NAME=VALUE, got 'rate'"),
      ('empty', [''], "--param must be NAME=VALUE, got ''"),
      ('unknown', ['rat=1'], "--param: fake has no 'rat'; it has: flag, count, rate, kind"),
      ('other_case', ['Rate=1'], "--param: fake has no 'Rate'; it has: flag, count, rate, kind"),
      ('no_name', ['=1'], "--param: fake has no ''; it has: flag, count, rate, kind"),
      ('not_an_integer', ['count=1.5'], "--param: count must be an integer, got '1.5'"),
      ('integer_with_exponent', ['count=1e3'], "--param: count must be an integer, got '1e3'"),
      ('no_integer', ['count='], "--param: count must be an integer, got ''"),
      ('not_a_number', ['rate=fast'], "--param: rate must be a number, got 'fast'"),
      ('no_number', ['rate='], "--param: rate must be a number, got ''"),
      ('nan', ['rate=nan'], "--param: rate must be finite, got 'nan'"),
      ('inf', ['rate=inf'], "--param: rate must be finite, got 'inf'"),
      ('minus_inf', ['rate=-inf'], "--param: rate must be finite, got '-inf'"),
      ('overflow', ['rate=1e400'], "--param: rate must be finite, got '1e400'"),
      ('not_a_bool', ['flag=1'], "--param: flag must be true or false, got '1'"),
      ('range', ['count=99', 'rate=1'], '--param: count + rate must be below 100, got 100.0'),
      ('without_a_text', ['rate=-0.5'], '--param: it refuses these values'),
  )
  def test_mistakes(self, assignments, message):
    with self.assertRaises(types.UsageError) as caught:
      _parse(_FAKE, assignments)
    self.assertEqual(str(caught.exception), message)

  def test_algorithm_without_parameters(self):
    _parse(_BARE, [])
    with self.assertRaisesRegex(types.UsageError, "bare has no 'a'; it has: none"):
      _parse(_BARE, ['a=1'])


class FedAvgParamsTest(parameterized.TestCase):

  @parameterized.parameters('0', '-1', '1e-400')
  def test_server_learning_rate_must_be_positive(self, value):
    with self.assertRaisesRegex(
        types.UsageError, '^--param: server_learning_rate must be positive, got '
    ):
      _parse(catalog.ALGORITHMS['fedavg'], [f'server_learning_rate={value}'])

  def test_names_of_another_algorithm_are_unknown(self):
    with self.assertRaisesRegex(
        types.UsageError, "fedavg has no 'contrast'; it has: server_learning_rate"
    ):
      _parse(catalog.ALGORITHMS['fedavg'], ['contrast=sampled'])


class FedDPContParamsTest(parameterized.TestCase):

  @parameterized.parameters(
      ('contrast=both', "contrast must be one of sampled, expected, got 'both'"),
      ('contrast=', "contrast must be one of sampled, expected, got ''"),
      ('weight=-0.1', 'weight must not be negative, got -0.1'),
      ('warmup_rounds=-1', 'warmup_rounds must not be negative, got -1'),
      ('ramp_rounds=-1', 'ramp_rounds must not be negative, got -1'),
      ('log_floor=0', 'log_floor must be positive, got 0.0'),
      ('log_floor=-1', 'log_floor must be positive, got -1.0'),
      ('log_floor=1', 'log_floor must be below 1, got 1.0'),
      ('server_learning_rate=0', 'server_learning_rate must be positive, got 0.0'),
  )
  def test_out_of_range(self, assignment, message):
    with self.assertRaises(types.UsageError) as caught:
      _parse(catalog.ALGORITHMS['feddpcont'], [assignment])
    self.assertEqual(str(caught.exception), f'--param: {message}')

  def test_boundaries_are_allowed(self):
    params = _parse(
        catalog.ALGORITHMS['feddpcont'],
        ['weight=0', 'warmup_rounds=0', 'ramp_rounds=0', 'contrast=expected', 'log_floor=1e-30'],
    )
    self.assertEqual((params.weight, params.contrast, params.log_floor), (0, 'expected', 1e-30))

  def test_default_is_the_paper(self):
    params = parameters.FedDPContParams()
    self.assertEqual((params.contrast, params.weight), ('sampled', 1.0))
    self.assertEqual((params.warmup_rounds, params.ramp_rounds), (0, 0))


class PowerOfChoiceParamsTest(parameterized.TestCase):

  @parameterized.parameters(
      ('candidates=0', 'candidates must be positive, got 0'),
      ('candidates=-3', 'candidates must be positive, got -3'),
      ('candidates=2.5', "candidates must be an integer, got '2.5'"),
      ('loss=mean', "loss must be one of all, batch, stale, got 'mean'"),
  )
  def test_out_of_range(self, assignment, message):
    with self.assertRaises(types.UsageError) as caught:
      _parse(catalog.ALGORITHMS['poc'], [assignment])
    self.assertEqual(str(caught.exception), f'--param: {message}')

  @parameterized.parameters('all', 'batch', 'stale')
  def test_kinds_of_loss(self, loss):
    params = _parse(catalog.ALGORITHMS['poc'], [f'loss={loss}', 'candidates=1'])
    self.assertEqual((params.loss, params.candidates), (loss, 1))

  @parameterized.parameters('median', 'fedbn')
  def test_optimizers_without_parameters(self, name):
    with self.assertRaisesRegex(types.UsageError, f"{name} has no 'candidates'; it has: none"):
      _parse(catalog.ALGORITHMS[name], ['candidates=3'])


class ContrastiveWeightTest(parameterized.TestCase):

  @parameterized.parameters(
      # weight, warm-up, ramp, then beta in rounds 1, 2, ...
      (1.0, 0, 0, [1, 1, 1]),
      (0.7, 0, 0, [0.7, 0.7]),
      (1.0, 2, 0, [0, 0, 1, 1]),
      (1.0, 2, 1, [0, 0, 1, 1]),
      (1.0, 0, 4, [0.25, 0.5, 0.75, 1, 1]),
      (0.4, 2, 4, [0, 0, 0.1, 0.2, 0.3, 0.4, 0.4]),
      (0.0, 0, 4, [0, 0, 0]),
  )
  def test_schedule(self, weight, warmup, ramp, expected):
    params = parameters.FedDPContParams(weight=weight, warmup_rounds=warmup, ramp_rounds=ramp)
    found = [feddpcont.contrastive_weight(r, params) for r in range(1, len(expected) + 1)]
    self.assertSequenceAlmostEqual(found, expected)

  def test_far_rounds_stay_at_full_weight(self):
    params = parameters.FedDPContParams(weight=0.4, warmup_rounds=2, ramp_rounds=4)
    self.assertEqual(feddpcont.contrastive_weight(10**6, params), 0.4)


if __name__ == '__main__':
  absltest.main()
