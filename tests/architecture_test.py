"""Tests that the layers depend on each other in one direction, and where TensorFlow is loaded."""

import ast
import pathlib
from typing import NamedTuple

from absl.testing import absltest
from absl.testing import parameterized

from tff_noise import types

# From the bottom to the top. A layer imports itself and the layers below; layers of one line do
# not know each other.
_LAYERS = (
    ('tff_noise.errors',),
    ('tff_noise.types', 'tff_noise.rng', 'tff_noise.child', 'tff_noise.heaps', 'tff_noise.loading'),
    ('tff_noise.params', 'tff_noise.step_sizes', 'tff_noise.weights_file', 'tff_noise.runtimes'),
    ('tff_noise.data',),
    ('tff_noise.models', 'tff_noise.privacy', 'tff_noise.selection'),
    ('tff_noise.uplink',),
    ('tff_noise.clients',),
    ('tff_noise.federated',),
    ('tff_noise.optimizers',),
    ('tff_noise.algorithms',),
    ('tff_noise.program',),
    ('tff_noise.report',),
    ('tff_noise.audit', 'tff_noise.compare', 'tff_noise.evaluation'),
    ('tff_noise.api',),
    ('tff_noise.__init__',),
    ('bin',),
)

# The only places that load TensorFlow when they are imported. Elsewhere it is imported inside
# functions, if at all, so that --help, mistakes and reports take no ten seconds.
_LOADS_TENSORFLOW = (
    'tff_noise.data.client_data',
    'tff_noise.data.client_ids',
    'tff_noise.models',
    'tff_noise.uplink',
    'tff_noise.clients',
    'tff_noise.federated',
    'tff_noise.optimizers',
    'tff_noise.algorithms',
    'tff_noise.program.carried',
    'tff_noise.program.checkpoints',
    'tff_noise.program.claims',
    'tff_noise.program.client_validation',
    'tff_noise.program.clients',
    'tff_noise.program.managers',
    'tff_noise.program.private_labels',
    'tff_noise.program.progress',
    'tff_noise.program.results',
    'tff_noise.program.task',
    'tff_noise.program.own_model',
    'tff_noise.program.own_report',
    'tff_noise.program.trained_models',
    'tff_noise.program.training',
    'tff_noise.program.training_run',
    'tff_noise.runtimes.accelerator',
    'tff_noise.runtimes.blocks',
    'tff_noise.runtimes.client_error',
    'tff_noise.runtimes.client_probe',
    'tff_noise.runtimes.connection',
    'tff_noise.runtimes.data_cache',
    'tff_noise.runtimes.federating',
    'tff_noise.runtimes.local',
    'tff_noise.runtimes.messages',
    'tff_noise.runtimes.opening',
    'tff_noise.runtimes.peer',
    'tff_noise.runtimes.remote',
    'tff_noise.runtimes.tensorflow_function',
    'tff_noise.audit.arms',
    'tff_noise.audit.canaries',
    'tff_noise.audit.computations',
    'tff_noise.audit.computed_again',
    'tff_noise.audit.labels',
    'tff_noise.audit.first_round',
    'tff_noise.audit.last_rounds',
    'tff_noise.audit.noisy_sum',
    'tff_noise.audit.rebuilt',
    'tff_noise.audit.replay',
    'tff_noise.audit.reports',
    'tff_noise.audit.update_leak',
    'tff_noise.evaluation.evaluation',
    'tff_noise.evaluation.page',
)

# But these of them do not: names and parameters are read and checked before it is loaded.
_WITHOUT_TENSORFLOW = (
    'tff_noise.optimizers.catalog',
    'tff_noise.optimizers.parameters',
    'tff_noise.algorithms.catalog',
    'tff_noise.algorithms.parameters',
    'tff_noise.algorithms.fedcorr_params',
)

_TENSORFLOW = ('tensorflow', 'tensorflow_federated', 'tensorflow_privacy', 'keras', 'grpc')


class Import(NamedTuple):
  """One imported module; `at_load` if it is imported when the importing module is."""

  name: str
  line: int
  at_load: bool


def _within(module, package):
  return module == package or module.startswith(package + '.')


def _may_load_tensorflow(module):
  return module not in _WITHOUT_TENSORFLOW and any(_within(module, m) for m in _LOADS_TENSORFLOW)


def _rank(module):
  """Returns the index of the module's layer and the layer, or None."""
  for rank, layers in enumerate(_LAYERS):
    for layer in layers:
      if _within(module, layer):
        return rank, layer
  return None


def _is_type_checking(node):
  return isinstance(node, ast.If) and 'TYPE_CHECKING' in ast.unparse(node.test)


def imports_of(source):
  """Yields every import of a module's source text, wherever it stands."""

  def visit(node, at_load):
    if isinstance(node, ast.Import):
      for alias in node.names:
        yield Import(alias.name, node.lineno, at_load)
    elif isinstance(node, ast.ImportFrom):
      if node.level:
        raise AssertionError(f'line {node.lineno}: relative import')
      for alias in node.names:
        # `from a import b` may name a module b: both readings are looked at.
        yield Import(f'{node.module}.{alias.name}', node.lineno, at_load)
    else:
      inside = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
      body = node.body if _is_type_checking(node) else ()
      for child in ast.iter_child_nodes(node):
        yield from visit(child, at_load and not inside and child not in body)

  return list(visit(ast.parse(source), True))


def violations(module, source):
  """Returns what is wrong with the imports of `module`, one sentence each."""
  place = _rank(module)
  if place is None:
    return [f'{module} belongs to no layer: add it to the table']
  rank, layer = place
  found = []
  for imported in imports_of(source):
    where = f'{module}:{imported.line}'
    target = _rank(imported.name)
    if target is None and _within(imported.name, 'tff_noise'):
      found.append(f'{where} imports {imported.name}, which belongs to no layer')
    elif _within(imported.name, 'tests') or _within(imported.name, 'benchmarks'):
      found.append(f'{where} imports {imported.name}: the product does not need its tests')
    elif target is not None and target[1] != layer and target[0] >= rank:
      found.append(f'{where} imports {imported.name}, which is not below {layer}')
    if (
        imported.at_load
        and any(_within(imported.name, t) for t in _TENSORFLOW)
        and not _may_load_tensorflow(module)
    ):
      found.append(f'{where} loads {imported.name}')
  return found


def _sources():
  """Returns {module name: source} of the product."""
  root = pathlib.Path(types.__file__).parent.parent
  return {
      '.'.join(path.relative_to(root).with_suffix('').parts): path.read_text(encoding='utf-8')
      for package in ('tff_noise', 'bin')
      for path in sorted((root / package).rglob('*.py'))
  }


def _own_imports_at_load(module, source, modules):
  """Returns the product's own modules that are loaded with `module`."""
  return {
      name
      for imported in imports_of(source) if imported.at_load
      for name in (imported.name, imported.name.rpartition('.')[0])
      if name in modules and name != module
  }


class ProductTest(absltest.TestCase):

  def test_sources_are_found(self):
    # Without this, a wrong path would pass every other test.
    sources = _sources()
    for module in ('tff_noise.types', 'tff_noise.algorithms.catalog', 'tff_noise.program.run',
                   'tff_noise.program.data', 'tff_noise.federated.computation', 'bin.scene',
                   'bin.train'):
      self.assertIn(module, sources)

  def test_layers_and_tensorflow(self):
    found = [v for module, source in _sources().items() for v in violations(module, source)]
    self.assertEqual(found, [], '\n' + '\n'.join(found))

  def test_tensorflow_is_not_loaded_through_another_module(self):
    sources = _sources()
    graph = {m: _own_imports_at_load(m, source, sources) for m, source in sources.items()}
    for module in sources:
      if _may_load_tensorflow(module):
        continue
      reached, todo = set(), [module]
      while todo:
        for name in graph[todo.pop()] - reached:
          reached.add(name)
          todo.append(name)
      heavy = {r for r in reached if _may_load_tensorflow(r)}
      self.assertEqual(heavy, set(), f'{module} loads TensorFlow through these')

  def test_no_cycles(self):
    sources = _sources()
    graph = {m: _own_imports_at_load(m, source, sources) for m, source in sources.items()}
    # Take away what imports nothing that is left, until nothing is.
    while graph:
      leaves = {m for m, needs in graph.items() if not needs & graph.keys()}
      self.assertNotEmpty(leaves, f'these import each other: {sorted(graph)}')
      graph = {m: needs for m, needs in graph.items() if m not in leaves}

  def test_table_has_no_stale_rows(self):
    modules = set(_sources())
    rows = (*(layer for layers in _LAYERS for layer in layers), *_LOADS_TENSORFLOW)
    for package in (*rows, *_WITHOUT_TENSORFLOW):
      self.assertTrue(any(_within(m, package) for m in modules), package)


class RuleTest(parameterized.TestCase):
  """The rule itself: sources that must be caught, and some that must not."""

  @parameterized.parameters(
      ('tff_noise.data.x', 'from tff_noise.federated import computation'),
      ('tff_noise.data.x', 'import tff_noise.algorithms.catalog'),
      ('tff_noise.privacy.x', 'from tff_noise.models import losses'),
      ('tff_noise.models.x', 'from tff_noise.privacy import mechanism'),
      ('tff_noise.federated.x', 'from tff_noise.algorithms import algorithm'),
      ('tff_noise.selection.x', 'from tff_noise.algorithms import algorithm'),
      ('tff_noise.algorithms.x', 'from tff_noise.program import training'),
      ('tff_noise.program.x', 'from bin import train'),
      ('tff_noise.types', 'from tff_noise import rng'),
      ('tff_noise.rng', 'from tff_noise.data import noise'),
      # Hiding it does not help.
      ('tff_noise.data.x', 'def f():\n  from tff_noise.program import run'),
      ('tff_noise.data.x', 'class A:\n  def f(self):\n    import tff_noise.program.run'),
      ('tff_noise.federated.x',
       'if TYPE_CHECKING:\n  from tff_noise.algorithms import algorithm'),
      ('tff_noise.data.x', 'try:\n  import tff_noise.models.losses\nexcept ImportError:\n  pass'),
  )
  def test_import_from_above_is_caught(self, module, source):
    self.assertRegex('\n'.join(violations(module, source)), rf'^{module}:\d imports .* not below')

  @parameterized.parameters(
      ('tff_noise.algorithms.catalog', 'import tensorflow as tf'),
      ('tff_noise.algorithms.parameters', 'import tensorflow_federated as tff'),
      ('tff_noise.optimizers.catalog', 'from tensorflow.keras import layers'),
      ('tff_noise.privacy.x', 'class A:\n  import tensorflow'),
      ('tff_noise.data.x', 'try:\n  import tensorflow\nexcept ImportError:\n  pass'),
      ('tff_noise.selection.x', 'if not TYPE:\n  import tensorflow'),
      ('tff_noise.program.flags', 'if TYPE_CHECKING:\n  pass\nelse:\n  import tensorflow'),
      ('tff_noise.program.flags', 'import tensorflow'),
      ('bin.x', 'import tensorflow'),
  )
  def test_tensorflow_at_load_is_caught(self, module, source):
    self.assertRegex('\n'.join(violations(module, source)), rf'^{module}:\d loads tensorflow')

  @parameterized.parameters(
      ('tff_noise.unknown.x', '', 'belongs to no layer: add it'),
      ('tff_noise.data.x', 'from tff_noise import unknown', 'tff_noise.unknown, which belongs to'),
      ('tff_noise.program.x', 'from tests import toy', 'does not need its tests'),
  )
  def test_unknown_places_are_caught(self, module, source, message):
    self.assertRegex('\n'.join(violations(module, source)), message)

  def test_relative_import_is_caught(self):
    with self.assertRaisesRegex(AssertionError, 'line 2: relative import'):
      violations('tff_noise.data.x', '\nfrom . import noise')

  @parameterized.parameters(
      ('tff_noise.algorithms.x', 'from tff_noise.selection import policies\nimport numpy as np'),
      ('tff_noise.algorithms.x', 'def f():\n  import tensorflow as tf'),
      ('tff_noise.algorithms.x', 'if TYPE_CHECKING:\n  import tensorflow as tf'),
      ('tff_noise.algorithms.x', 'from tff_noise.algorithms import algorithm'),
      ('tff_noise.federated.x', 'import tensorflow as tf\nfrom tff_noise.privacy import ledger'),
      ('tff_noise.data.client_data', 'import tensorflow as tf'),
      ('tff_noise.program.x', 'import tensorflow_hub_lookalike'),
      ('bin.x', 'from tff_noise import types\nfrom tff_noise.program import flags'),
  )
  def test_allowed(self, module, source):
    self.assertEqual(violations(module, source), [])


if __name__ == '__main__':
  absltest.main()
