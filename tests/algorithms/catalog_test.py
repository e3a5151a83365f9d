"""A method of the user's own that is named wrongly is told so, before it is built."""

import dataclasses
import sys

from absl.testing import absltest
from absl.testing import parameterized

from tff_noise import types
from tff_noise.algorithms import catalog


@dataclasses.dataclass(frozen=True)
class _Params:
  rate: float = 0.5
  name: str = 'a'


@dataclasses.dataclass
class _Changeable:
  rate: float = 0.5


@dataclasses.dataclass(frozen=True)
class _WithoutDefault:
  rate: float


@dataclasses.dataclass(frozen=True)
class _OfPairs:
  pair: tuple[int, int] = (1, 2)


@dataclasses.dataclass(frozen=True)
class _OfNothing:
  rate: float | None = None


@dataclasses.dataclass(frozen=True)
class _NotGiven:
  half: int = dataclasses.field(default=1, init=False)


RIGHT = catalog.Entry('right', 'of a test', 'none', f'{__name__}:build', _Params)
NOT_AN_ENTRY = _Params()
TAKEN = RIGHT._replace(name='gce')
WITHOUT_FUNCTION = RIGHT._replace(place=__name__)
STAGES_ARE_A_TEXT = RIGHT._replace(stages=('warm_up'))
(
    CHANGEABLE, WITHOUT_DEFAULT, OF_PAIRS, OF_NOTHING, NO_PARAMS, OF_A_DICT, AN_INSTANCE, NOT_GIVEN,
) = (
    RIGHT._replace(params=kind) for kind in (
        _Changeable, _WithoutDefault, _OfPairs, _OfNothing, None, dict, _Params(), _NotGiven,
    )
)


def returns_none(task, params):
  del task, params


class OwnTest(parameterized.TestCase):

  def test_right(self):
    self.assertIs(catalog.entry(f'{__name__}:RIGHT'), RIGHT)

  @parameterized.parameters(
      ('NOT_AN_ENTRY', 'must be a tff_noise.algorithms.catalog.Entry, got a _Params$'),
      ('TAKEN', 'gce is the name of another method; give the Entry its own'),
      ('STAGES_ARE_A_TEXT', "its stages have to be a tuple of names, got 'warm_up'"),
      ('WITHOUT_FUNCTION', 'its place has to be package.module:function'),
      *((name, 'its params have to be a frozen dataclass whose fields have defaults') for name in (
          'CHANGEABLE', 'WITHOUT_DEFAULT', 'OF_PAIRS', 'OF_NOTHING', 'NO_PARAMS', 'OF_A_DICT',
          'AN_INSTANCE', 'NOT_GIVEN',
      )),
  )
  def test_wrong(self, name, message):
    place = f'{__name__}:{name}'
    with self.assertRaisesRegex(types.UsageError, f'^--method={place}:? {message}'):
      catalog.entry(place)

  @parameterized.parameters(
      (f'{__name__}:nothing', r'cannot be imported \(AttributeError'),
      ('no_such_module:build', 'there is no module no_such_module; it has to be'),
  )
  def test_a_place_where_nothing_is_is_told_when_it_is_built(self, place, why):
    with self.assertRaisesRegex(types.UsageError, f'^--method=right: place={place}:? {why}'):
      RIGHT._replace(place=place).build(None, _Params())

  def test_a_place_that_returns_nothing_is_told(self):
    with self.assertRaisesRegex(
        types.UsageError, r':returns_none, the place of .* right, has .*, returned a NoneType$'
    ):
      RIGHT._replace(place=f'{__name__}:returns_none').build(None, _Params())

  def test_a_module_that_raises_is_told_with_its_line(self):
    folder = self.create_tempdir()
    path = folder.create_file('raises_here.py', 'import os\n\n\ndef f():\n  return {}[1]\n\nf()\n')
    sys.path.append(folder.full_path)
    self.addCleanup(sys.path.remove, folder.full_path)
    with self.assertRaisesRegex(
        types.UsageError,
        f'^--method=raises_here:X cannot be imported: {path.full_path}, line 5, raises KeyError: 1$'
    ):
      catalog.entry('raises_here:X')


if __name__ == '__main__':
  absltest.main()
