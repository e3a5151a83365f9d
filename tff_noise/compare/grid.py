"""A grid of runs: methods x settings x seeds, from a file or from flags.

Cells of one seed and setting are paired by construction: the scene and the initial weights are
functions of the seed and the setting, not of the method. So is each round's cohort, for methods
that draw it alike: not for those that visit clients in an order (FedCorr's pre-processing), choose
them (Power-of-Choice, ClipFL once it has pruned) or ask them all (RHFL).
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml

from tff_noise import types
from tff_noise.compare import metrics
from tff_noise.program import effect
from tff_noise.program import flags as program_flags
from tff_noise.program import run_config

# Shown besides the grid's own.
_ALWAYS = ('best_test_accuracy', 'last10_test_accuracy')
_KEYS = ('title', 'source', 'metric', 'baseline', 'scales', 'settings', 'methods', 'published')
# Of a paper's table.
_PUBLISHED = {'source': '', 'published': {}}
_SCALE_KEYS = ('seeds', 'flags', 'methods', 'settings')
_PARAMETERS = frozenset({'param', 'base_param'})
# What the grid itself decides, or what would put two cells under one name.
_RESERVED = (
    'run_name', 'root_dir', 'seed', 'resume', 'resume_other_code', 'overwrite', 'extend',
    'flagfile', 'help', 'list_methods',
)


class Cell(NamedTuple):
  """One run of the grid.

  Attributes:
    method: Name of its row.
    setting: Name of its column.
    seed: Its seed.
    arguments: The flags of `bin/train`, as on its command line.
    config: What they resolve to.
  """

  method: str
  setting: str
  seed: int
  arguments: tuple[str, ...]
  config: run_config.RunConfig


class Grid(NamedTuple):
  """What is compared.

  Attributes:
    title: Heading of the tables.
    source: Where published numbers come from; '' without any.
    scale: What was run: the name of the scale and the flags all cells share.
    metrics: What is compared, names that `metrics.get` knows; published numbers are of the first.
    baseline: The method that paired differences are taken against.
    methods: Rows, in order.
    settings: Columns, in order.
    seeds: Seeds, in order.
    cells: All runs.
    published: From (method, setting) to (mean, standard deviation or None), in percent.
  """

  title: str
  source: str
  scale: str
  metrics: tuple[str, ...]
  baseline: str
  methods: tuple[str, ...]
  settings: tuple[str, ...]
  seeds: tuple[int, ...]
  cells: tuple[Cell, ...]
  published: Mapping[tuple[str, str], tuple[float, float | None]]

  @property
  def metric(self) -> str:
    """The first of its metrics."""
    return self.metrics[0]


class _Part(NamedTuple):
  """A row or a column: its name, its flags, and those that a row has in single columns, by name."""

  name: str
  flags: Mapping[str, Any]
  at: Mapping[str, Mapping[str, Any]] = MappingProxyType({})


class _Loader(yaml.SafeLoader):
  """Refuses a key that a mapping has twice, of which YAML's own keeps the last."""

  def construct_mapping(self, node, deep=False):
    seen = set()
    for key, _ in node.value:
      if not isinstance(key, yaml.ScalarNode):
        raise yaml.constructor.ConstructorError(
            None, None, 'a key is no text', key.start_mark
        )
      value = self.construct_object(key)  # 0.1 and 0.10 are one.
      if value in seen:
        raise yaml.constructor.ConstructorError(
            None, None, f'{key.value!r} is there twice', key.start_mark
        )
      seen.add(value)
    return super().construct_mapping(node, deep)


def load(
    path: str, scale: str, seeds: Sequence[int] | None, extra: Sequence[str], root_dir: str
) -> Grid:
  """Reads a grid file.

  A scale has `flags` of all its cells, `seeds`, and, where rows or columns differ there, `methods`
  and `settings`: flags by the name, null for one that is not there. A row's `at` has flags by a
  setting's name, which stand in place of all others of their names there.

  Args:
    path: The file, YAML.
    scale: A key of its `scales`.
    seeds: Instead of the file's, if given.
    extra: Flags of `bin/train` for every cell; they win over the file's.
    root_dir: Where the runs lie.

  Raises:
    types.UsageError: If the file cannot be read, or is not a grid; names what is wrong.
  """
  try:
    with open(path, encoding='utf-8') as file:
      content = yaml.load(file, _Loader)
  except OSError as error:
    raise types.UsageError(f'grid {path} cannot be read ({error.strerror})') from error
  except (yaml.YAMLError, UnicodeDecodeError) as error:
    reason = ' '.join(str(error).split())
    raise types.UsageError(f'grid {path} is not YAML ({reason})') from error
  try:
    grid = _from_content(content, scale, seeds, extra, root_dir)
    # Not those that --vary makes: of all its combinations some read nothing of a flag.
    changes = _by_text(content['scales'])[scale].get('settings') or {}
    for column in _at_scale(_parts(content['settings'], 'settings'), 'setting', changes):
      _check_part_read(column, [cell for cell in grid.cells if cell.setting == column.name])
    return grid
  except types.UsageError as error:
    raise types.UsageError(f'grid {path}: {error}') from error


def from_flags(
    methods: Sequence[str],
    vary: Sequence[str],
    seeds: Sequence[int],
    extra: Sequence[str],
    root_dir: str,
    *,
    metric: str | Sequence[str],
    baseline: str | None,
) -> Grid:
  """Makes a grid from the command line.

  Args:
    methods: Each `NAME` or `NAME:flag=value:flag=value`, such as 'feddpcont:label_prior=none'; a
      name may be that of a method of one's own, 'package.module:ENTRY'.
    vary: Each `flag=value,value`; settings are all combinations.
    seeds: Seeds.
    extra: Flags of `bin/train` for every cell.
    root_dir: Where the runs lie.
    metric: A name that `metrics.get` knows, or several.
    baseline: A method as written in `methods`; the first if None.

  Raises:
    types.UsageError: If a part is not of that form.
  """
  if not methods:
    raise types.UsageError('--methods must name at least one method')
  if not all(methods):
    raise types.UsageError(f'--methods={",".join(methods)} names nothing beside a comma')
  rows = []
  for text in methods:
    name, *assignments = _name_and_assignments(text)
    rows.append({'name': text, 'flags': {'method': name, **_flags_of(assignments)}})
  choices = []
  for text in vary:
    name, values = _assignment(text)
    if name in [choice[0][0] for choice in choices]:
      raise types.UsageError(f'--vary: {name} is given twice; write --vary={name}=VALUE,VALUE')
    choices.append([(name, value) for value in values.split(',')])
  settings = [
      {'name': ', '.join(f'{n}={v}' for n, v in chosen) or 'all', 'flags': dict(chosen)}
      for chosen in itertools.product(*choices)
  ]
  content = {
      'title': 'Comparison',
      'source': '',
      'metric': metric,
      'baseline': baseline or methods[0],
      'scales': {'command line': {'seeds': list(seeds), 'flags': {}}},
      'settings': settings,
      'methods': rows,
      'published': {},
  }
  _check_given_once([*rows, *settings], extra)
  grid = _from_content(content, 'command line', None, extra, root_dir)
  _check_read(grid.cells, [name for (name, _), *_ in choices])
  return grid


def _check_given_once(parts, extra):
  """Refuses a flag of all runs that a row or a column, which is named after it, has too."""
  given = {*program_flags.given(['compare', *extra])} - program_flags.repeated()
  twice = [name for part in parts for name in part['flags'] if name in given]
  _require(
      not twice,
      f'--{"".join(twice[:1])} is given for all runs, and in --methods or --vary: leave one out',
  )


def _name_and_assignments(text):
  """A method's name and assignments; what has no '=' belongs to what is before it."""
  found = []
  for part in text.split(':'):
    if found and '=' not in part:
      found[-1] += ':' + part
    else:
      found.append(part)
  return found


def _flags_of(assignments):
  """Flags by name; of one that may be given several times the list of its values."""
  found = {}
  for name, value in map(_assignment, assignments):
    if name in program_flags.repeated():
      found.setdefault(name, []).append(value)
    elif name in found:
      raise types.UsageError(f'--methods: {name} is given twice to one method; leave one out')
    else:
      found[name] = value
  return found


def _assignment(text):
  name, separator, value = text.partition('=')
  if not separator or not name:
    raise types.UsageError(f'expected flag=value, got {text!r}')
  return name, value


def _from_content(content, scale, seeds, extra, root_dir):
  """Builds the grid from what a file says."""
  _require(isinstance(content, dict), 'expected keys ' + ', '.join(_KEYS))
  unknown = sorted(set(content) - set(_KEYS))
  _require(not unknown, f'unknown key {", ".join(map(str, unknown))}; known: {", ".join(_KEYS)}')
  content = _PUBLISHED | content
  missing = [key for key in _KEYS if key not in content]
  _require(not missing, f'no {", ".join(missing)}')
  compared = _metrics(content['metric'])
  scales = content['scales']
  _require(isinstance(scales, dict) and scales, 'scales must name at least one scale')
  scales = _by_text(scales)
  _require(scale in scales, f'no scale {scale!r}; it has: {", ".join(map(str, scales))}')
  chosen = scales[scale]
  _require(
      isinstance(chosen, dict) and not set(chosen) - set(_SCALE_KEYS),
      f'scales: {scale}: expected {", ".join(_SCALE_KEYS)}, got {chosen!r}',
  )
  common = chosen.get('flags') or {}
  _require(_is_flags(common), f'scales: {scale}: flags must be name: value, got {common!r}')
  seeds = chosen.get('seeds', ()) if seeds is None else seeds
  _require(
      isinstance(seeds, Sequence) and bool(seeds)
      and all(isinstance(s, int) and s >= 0 for s in seeds),
      f'seeds must be whole numbers, at least one, got {seeds!r}',
  )
  seeds = tuple(seeds)
  _require(len(set(seeds)) == len(seeds), f'a seed is given twice: {list(seeds)}')
  parts = _parts(content['settings'], 'settings')
  rows = _parts(content['methods'], 'methods', [p.name for p in parts])
  settings = _at_scale(parts, 'setting', chosen.get('settings') or {})
  methods = _at_scale(rows, 'method', chosen.get('methods') or {})
  _require(settings and methods, f'scales: {scale}: it leaves no settings, or no methods')
  names, columns = [p.name for p in methods], [p.name for p in settings]
  baseline = str(content['baseline'])
  _require(
      baseline in names, f'baseline {baseline!r} is no method of it; methods: {", ".join(names)}'
  )
  published = _published(
      content['published'] or {}, [p.name for p in rows], [p.name for p in parts]
  )
  cells = tuple(
      cell
      for setting in settings
      for method in methods
      for cell in _cells(method, setting, seeds, common, extra, root_dir)
  )
  _check_names(cells)
  _check_read(cells, program_flags.given(['compare', *program_flags.without_files(extra)]))
  for row in methods:
    _check_part_read(row, [cell for cell in cells if cell.method == row.name])
  return Grid(
      title=' '.join(str(content['title']).split()),
      source=' '.join(str(content['source'] or '').split()),
      scale=' '.join([f'scale "{scale}":', *_arguments(common), *extra]),
      metrics=compared,
      baseline=baseline,
      methods=tuple(names),
      settings=tuple(columns),
      seeds=seeds,
      cells=cells,
      published={
          (row, column): value for (row, column), value in published.items()
          if row in names and column in columns
      },
  )


def _require(holds, message):
  if not holds:
    raise types.UsageError(message)


def _metrics(names):
  """A name or several, and those that are always shown."""
  names = [names] if isinstance(names, str) else names
  _require(
      isinstance(names, Sequence) and names and all(isinstance(name, str) for name in names),
      'metric must be a name, or a list of names',
  )
  for name in names:
    metrics.get(name)
  return tuple(dict.fromkeys((*names, *_ALWAYS)))


def _parts(parts, key, columns=()):
  _require(isinstance(parts, list) and parts, f'{key} must be a list of name and flags')
  for part in parts:
    _require(
        isinstance(part, dict)
        and {'name', 'flags'} <= set(part) <= {'name', 'flags', *(['at'] if columns else [])}
        and _is_flags(part['flags']),
        f'{key}: expected name and flags, got {part!r}',
    )
    at = part.get('at', {})
    _require(
        isinstance(at, dict) and set(_by_text(at)) <= {*columns}
        and all(map(_is_flags, at.values())),
        f'{key}: {part["name"]}: at must be flags by the name of a setting, got {at!r}',
    )
  names = [str(part['name']) for part in parts]
  broken = [name for name in names if not name.isprintable() or not name.strip()]
  _require(not broken, f'{key}: a name is one line of text, got {"".join(broken[:1])!r}')
  doubled = sorted({name for name in names if names.count(name) > 1})
  _require(not doubled, f'{key}: {", ".join(doubled)} is given twice')
  return tuple(_Part(str(p['name']), p['flags'], _by_text(p.get('at', {}))) for p in parts)


def _by_text(named):
  """With names as texts: YAML takes 0.2 for a number."""
  return {str(name): value for name, value in named.items()}


def _is_flags(flags):
  """Whether these are values of flags, by name."""
  if not isinstance(flags, dict) or not all(isinstance(name, str) for name in flags):
    return False
  values = itertools.chain(*(v if isinstance(v, list) else [v] for v in flags.values()))
  return all(isinstance(value, str | int | float) for value in values)


def _at_scale(parts, kind, changes):
  """What a part has at this scale alone wins over what it has at all; null: it is not there."""
  names = [part.name for part in parts]
  _require(isinstance(changes, dict), f'scales: {kind}s must be flags by name, got {changes!r}')
  changes = _by_text(changes)
  for name, flags in changes.items():
    _require(name in names, f'scales: no {kind} {name!r}; {kind}s: {", ".join(names)}')
    _require(
        flags is None or _is_flags(flags),
        f'scales: {name}: expected flags, or null to leave it out, got {flags!r}',
    )
  return tuple(
      part._replace(
          flags={**part.flags, **changes.get(part.name, {})},
          at={name: _changed_at(at, changes.get(part.name, {})) for name, at in part.at.items()},
      )
      for part in parts
      if changes.get(part.name, {}) is not None
  )


def _changed_at(at, changes):
  """What a row has in a column, at a scale that changes the row."""
  both = {
      name: [*_values(at[name]), *_values(value)]
      for name, value in changes.items() if name in program_flags.repeated() and name in at
  }
  single = {n: value for n, value in changes.items() if n not in program_flags.repeated()}
  return {**at, **single, **both}


def _published(published, methods, settings):
  numbers = {}
  _require(isinstance(published, dict), f'published must be rows by name, got {published!r}')
  for method, row in _by_text(published).items():
    _require(method in methods, f'published: no method {method!r}')
    _require(
        isinstance(row, dict), f'published: {method}: expected numbers by setting, got {row!r}'
    )
    for setting, value in _by_text(row).items():
      _require(setting in settings, f'published: {method} has no setting {setting!r}')
      _require(
          isinstance(value, list) and len(value) in (1, 2)
          and all(isinstance(number, int | float) for number in value),
          f'published: {method}, {setting} must be [mean] or [mean, sd], got {value!r}',
      )
      numbers[method, setting] = (value[0], value[1] if len(value) == 2 else None)
  return numbers


def _cells(method, setting, seeds, common, extra, root_dir):
  """The cells of a method in a setting, one for each seed."""
  chosen = {
      **_merged(common, setting.flags, method.flags), **method.at.get(setting.name, {}),
  }
  given = program_flags.given(['compare', *extra])
  reserved = [name for name in _RESERVED if name in chosen or name in given]
  _require(not reserved, f'--{", --".join(reserved)} cannot be set in a grid')
  several = [name for name, value in chosen.items() if isinstance(value, list)]
  several = [name for name in several if name not in program_flags.repeated()]
  _require(
      not several,
      f'{method.name}, {setting.name}: {", ".join(several)} takes one value: make settings of it',
  )
  shared, root = (*_arguments(chosen), *extra), f'--root_dir={root_dir}'
  try:
    # Once for all seeds: absl copies every flag there is.
    config = program_flags.config_from(program_flags.parse(['train', *shared, root]))
    effect.check_drawn(config, [*chosen, *given])
    return [
        Cell(
            method.name, setting.name, seed, (*shared, f'--seed={seed}', root),
            dataclasses.replace(config, seed=seed),
        )
        for seed in seeds
    ]
  except types.UsageError as error:
    raise types.UsageError(f'{method.name}, {setting.name}: {error}') from error


def _merged(*parts):
  """The flags of all; the last counts, but for one that may be given several times: all do."""
  merged = {}
  for part in parts:
    for name, value in part.items():
      if name in program_flags.repeated():
        value = [*merged.get(name, []), *_values(value)]
      merged[name] = value
  return merged


def _arguments(chosen):
  for name, value in chosen.items():
    if isinstance(value, bool):
      value = str(value).lower()
    for one in _values(value):
      yield f'--{name}={one}'


def _values(value):
  return value if isinstance(value, list) else [value]


def _check_read(cells, given):
  """Refuses a flag that was given for all cells, or a parameter, and none of them reads."""
  for name in given:
    problems = [effect.problem_of(cell.config, name) for cell in cells]
    _require(not all(problems), problems[-1])
  if _PARAMETERS & set(given):
    for problem in _unread_in_all(cells):
      raise types.UsageError(effect.as_text(*problem))


def _check_part_read(part, cells):
  """Refuses a flag of a row or a column that none of its cells reads."""
  try:
    _check_read(cells, [name for name in part.flags if name not in _PARAMETERS])
    for name in _PARAMETERS & part.flags.keys():
      for problem in _unread_in_all(cells):
        own = [f'--{name}={text}' for text in _values(part.flags[name])]
        _require(problem[0] not in own, effect.as_text(*problem))
  except types.UsageError as error:
    raise types.UsageError(f'{part.name}: {error}') from error


def _unread_in_all(cells):
  """The parameters that no cell reads, and what would read them."""
  unread = [effect.unread_parameters(cell.config) for cell in cells]
  return [item for item in unread[0].items() if all(item in of_cell.items() for of_cell in unread)]


def _check_names(cells):
  """Refuses two cells that would be one run."""
  seen = {}
  for cell in cells:
    name = cell.config.name()
    other = seen.setdefault(name, cell)
    _require(
        other is cell,
        f'"{other.method}, {other.setting}" and "{cell.method}, {cell.setting}" are the same run, '
        f'{name}: give them different flags',
    )
