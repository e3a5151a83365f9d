"""The sections of a run's report, in order.

A method that has more to show names modules of this folder in its catalog entry, each with a
`blocks.Section` as its `SECTION`.
"""

import contextlib
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tff_noise import params as params_lib
from tff_noise import types
from tff_noise.algorithms import catalog
from tff_noise.data import scene as scene_lib
from tff_noise.privacy import rounding
from tff_noise.program import chosen_round
from tff_noise.program import command_line
from tff_noise.program import effect
from tff_noise.program import flags as flags_lib
from tff_noise.report import blocks
from tff_noise.report import by_class
from tff_noise.report import plots
from tff_noise.report import runs

# What `disclosure` in uplink.json means; the words are `uplink.Disclosure`'s, which would
# import TensorFlow.
_DISCLOSURE = {
    'sum': 'sum: the server handles single contributions and keeps their sum',
    'secure sum': 'secure sum: nobody but the client sees less than the sum',
    'DP, secure sum': (
        'DP, secure sum: nobody but the client sees less than the sum, and each contribution is '
        'differentially private'
    ),
    'per client': 'per client: the server uses single contributions',
    'other clients': 'other clients: the server passes single contributions on to other clients',
}
# A tensor within the text of a TFF type; a name before '=' may look like one.
_TENSOR = re.compile(r'\b(bool|string|u?int\d+|b?float\d+|complex\d+)\b(?!=)(\[[\d,?]*\])?')
# Measured on digits, seed 0: benchmarks/update_leak.py; docs/privacy.md has the whole table.
_LEAK = (
    'What that means, measured on digits with 20 clients (python -m benchmarks.update_leak): from '
    "the last layer's bias in one client's own update, a server recovers the client's label "
    'histogram with a correlation of 0.98 under FedDPCont in its first round, 0.81 under FedAvg. '
    "From a secure sum over 10 clients it learns a single client's labels no better than by "
    'guessing, but the labels of the 10 together. Mislabelled examples can be told from the '
    'trained model in up to 9 of 10 cases.'
)
_LONG_TYPE = 40
_LONG_COMMAND = 90


class Built(NamedTuple):
  """A section with its content."""

  title: str
  blocks: Sequence[blocks.Block]


def build(run: runs.Run, scene: scene_lib.Scene) -> list[Built]:
  """Returns the sections that the run has, in order."""
  return [
      Built(section.title, tuple(section.build(run, scene)))
      for section in (*_FIRST, *_of_method(run), *_LAST)
      if section.applies(run)
  ]


def _of_method(run):
  """What the catalog names; a method of one's own may call something else as one of ours does."""
  entry = catalog.ALGORITHMS.get(run.flags.get('method'))
  if entry is not None:
    return [_METHOD_SECTIONS[module] for module in entry.report]
  there = os.path.exists(os.path.join(run.path, 'posteriors.npz'))
  return [_METHOD_SECTIONS['posteriors']] if there else []


def command(run: runs.Run) -> str:
  """Returns the command that makes the run again: its flags where they are not the defaults.

  Those are left out that the run does not read, which the command line refuses: a file of flags or
  a grid may have them. A long one is broken into lines, which a shell takes as they are.
  """
  defaults, unread = flags_lib.parse(['train']), set()
  with contextlib.suppress(types.UsageError):  # A run of another version has other flags.
    config = flags_lib.config_of_run(run.flags)
    unread = {*effect.unread(config), *effect.unread_parameters(config)}
  words = ['./bazelw', 'run', '//bin:train', '--']
  for name, value in run.flags.items():
    default = defaults[name].value if name in defaults else None
    # The method and the seed are said even where they are the defaults.
    is_default = value == default and name not in ('method', 'seed')
    if value is None or is_default or name in unread:
      continue
    if isinstance(value, bool):
      words.append(f'--{name}' if value else f'--no{name}')
    elif isinstance(value, list):
      words += [word for item in value if (word := f'--{name}={item}') not in unread]
    else:
      words.append(f'--{name}={value}')
  line = shlex.join(words)
  if len(line) > _LONG_COMMAND:
    line = ' \\\n    '.join([shlex.join(words[:4]), *(shlex.quote(word) for word in words[4:])])
  return command_line.as_called(line)


def _number(value):
  return f'{value:,}' if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _duration(seconds):
  if seconds < 120:
    return f'{seconds:.3g} s'
  if seconds < 7200:
    return f'{seconds / 60:.1f} min'
  return f'{seconds / 3600:.1f} h'


def _bytes(count):
  for unit in ('bytes', 'kB', 'MB', 'GB'):
    if count < 1000:
      return f'{count:.3g} {unit}'
    count /= 1000
  return f'{count:,.3g} TB'


def _headline(run, scene):
  shown = []
  if not run.finished:
    # Stages may have more rounds than --rounds, as those of one client have.
    method = catalog.ALGORITHMS.get(run.flags.get('method'))
    planned = '' if method and method.stages else f' of {run.flags.get("rounds", "?")}'
    shown.append(blocks.Text(
        f'This run is not finished: {len(run.rounds)}{planned} rounds are done. Its command, given '
        'again, continues it. What follows is what there is so far.',
        'warning',
    ))
  planned = (run.summary or {}).get('planned_rounds')
  if planned is not None:
    shown.append(blocks.Text(
        f'This run {run.summary["status"]}: after round {run.summary["rounds"]} of {planned}.'
    ))
  shown += [blocks.Text(_what(run)), blocks.Text(_data(run, scene))]
  accuracy = runs.accuracy(run)
  if accuracy is None:
    shown.append(blocks.Text('The test accuracy was not measured in any round.', 'warning'))
  else:
    shown.append(_accuracies(run, accuracy))
  rejected = run.metrics.get('rejected')
  if rejected is not None and rejected.dtype.kind == 'f' and np.nansum(rejected) > 0:
    shown.append(blocks.Text(
        f'{int(np.nansum(rejected))} client updates were not finite and were left out; a smaller '
        'step size may help.', 'warning',
    ))
  return shown


def _what(run):
  method = str(run.flags.get('method', '?'))
  known = catalog.ALGORITHMS.get(method)
  title = f': {known.title} ({known.paper})' if known else ''
  return f'Method {method}{title}.'


def _data(run, scene):
  flags = run.flags
  drawn = (
      f'scene {flags["scene"]}' if flags.get('scene') else
      f'partition {flags.get("partition")}, {noise_text(flags)}'
  )
  held, withheld = scene.server_size, scene.withheld_size
  server = f' The server validates on {held:,} more.' if held else ''
  if withheld:
    server += f' Clients validate on {withheld:,} more of theirs.'
  return (
      f'Data: {flags.get("dataset")}, {int(scene.sizes.sum()):,} training examples of '
      f'{scene.num_clients} clients, {drawn}; {_wrong(scene)}.{server} Seed {flags.get("seed")}.'
  )


def noise_text(flags: Mapping[str, Any]) -> str:
  """Returns what label noise the flags of a run say, with the numbers that it has."""
  name, rate = flags.get('noise'), flags.get('noise_rate')
  share = f'noise {name} at a share {flags.get("noise_rho")} of the clients'
  return {
      'none': 'no label noise',
      'human': 'labels that people gave',
      'matrix': f'noise by the matrix {flags.get("noise_matrix")}',
      'client_uniform': f'{share}, from {flags.get("noise_tau")} on',
      'client_symmetric': f'{share}, of rate {rate}',
  }.get(name, f'noise {name} of rate {rate}')


def _wrong(scene):
  if np.isnan(scene.noise_rate):
    return 'how many of the labels are wrong is unknown'
  return f'{scene.noise_rate:.1%} of the labels are wrong'


def _accuracies(run, accuracy):
  seconds = run.seconds[np.isfinite(run.seconds)]
  numbers = [
      blocks.Number(f'{accuracy.best:.4f}', 'best test accuracy',
                    f'round {accuracy.best_round}; chosen on the test set'),
      blocks.Number(f'{accuracy.last10:.4f}',
                    f'mean of the last {min(10, accuracy.evaluations)}',
                    f'of {accuracy.evaluations} evaluations'),
      blocks.Number(f'{accuracy.final:.4f}', 'final test accuracy', 'the last evaluation'),
  ]
  chosen = (run.summary or {}).get('validation_chosen_test_accuracy')
  if chosen is not None:
    numbers.insert(1, blocks.Number(
        f'{chosen:.4f}',
        'test accuracy of the round chosen on '
        + chosen_round.words(run.summary.get('validation_chosen_by')),
        f'round {run.summary["validation_chosen_round"]}',
    ))
  if len(seconds):
    numbers.append(blocks.Number(
        _duration(float(seconds.sum())), f'for {len(seconds)} rounds',
        f'median {float(np.median(seconds)):.3g} s a round',
    ))
  return blocks.Numbers(numbers)


def _repeat(run, scene):
  del scene  # Unused.
  shown = [blocks.Code(command(run))]
  code = f'Digest of the code: {run.code} (of its sources, no commit). ' if run.code else ''
  shown.append(blocks.Text(
      f'{code}All randomness is a function of the seed: with the same code and packages, on the '
      'same kind of processor, the numbers are the same.'
  ))
  if run.flags.get('scene'):
    shown.append(blocks.Text(
        'The clients and labels are those of another run, whose scene.npz this command needs; the '
        'copy in this run directory is the same.'
    ))
  shown.append(blocks.Table(
      (), [(n, _number(v)) for n, v in run.method_parameters.items()], "The method's parameters"
  ))
  shown.append(blocks.Table((), [(f'--{n}', str(v)) for n, v in run.flags.items()], 'All flags'))
  return shown


def _curves(run, scene):
  del scene  # Unused.
  stages = run.metrics.get('stage', ())
  spans = plots.stage_spans(stages)
  nothing = np.full(len(run.rounds), np.nan)
  shown = []
  if runs.accuracy(run) is not None:
    shown.append(blocks.Picture(
        'accuracy',
        plots.accuracy(
            run.rounds, run.metrics['test_accuracy'], stages,
            _numeric(run, chosen_round.column(run.metrics) or '', None),
        ),
        'Share of the clean test examples that the global model gets right.' + _stages(spans)
        + _of_validation(run),
    ))
  shown.append(blocks.Picture(
      'losses',
      plots.losses(
          run.rounds, _numeric(run, 'train_loss', nothing), _numeric(run, 'test_loss', nothing),
          stages,
      ),
      "The training loss is the method's own objective on the noisy labels: the mean over a "
      "client's batches, weighted with its examples. It is not comparable between methods, and "
      'below 0 where a contrastive term is subtracted.',
  ))
  return shown


def _of_validation(run):
  if chosen_round.column(run.metrics) != chosen_round.BY_CLIENTS:
    return ''
  return (
      ' Validation is on examples that clients withhold, with the labels that they believe: where '
      'these are wrong the right answer counts as a mistake, so it stays lower.'
  )


def _numeric(run, name, default):
  values = run.metrics.get(name)
  return values if values is not None and values.dtype.kind == 'f' else default


def _stages(spans):
  if len(spans) < 2:
    return ''
  return ' Stages: ' + ', '.join(f'{s.name} (rounds {s.first} to {s.last})' for s in spans) + '.'


def _federation(run, scene):
  clients = scene.num_clients
  classes = int(max(scene.noisy_label.max(), scene.clean_label.max())) + 1
  ours = scene.is_trained_on
  counts = np.bincount(
      scene.client_of[ours].astype(np.int64) * classes + scene.noisy_label[ours],
      minlength=clients * classes,
  ).reshape(clients, classes)
  held = (counts > 0).sum(axis=1)
  return [
      blocks.Picture(
          'federation',
          plots.federation(counts, run.names_of_classes(classes)),
          f'Labels as the clients hold them, after noise; white: none. A client holds '
          f'{_range(scene.sizes)} examples of {_range(held)} classes.',
      ),
      *_noise_rates(scene),
      *(blocks.Text(f'Scene: {note}.') for note in scene.notes),
  ]


def _noise_rates(scene):
  """The picture of the clients' noise; a sentence where the truth is not known."""
  known = np.isfinite(scene.nominal_rate)
  if not known.any():
    return [blocks.Text('Nobody knows which labels are wrong: there is no picture of the noise.')]
  missing = f' Unknown for {int((~known).sum())} clients, left out.' if not known.all() else ''
  return [
      blocks.Picture(
          'noise_rates',
          plots.noise_rates(
              scene.nominal_rate[known], scene.realised_rate[known], scene.sizes[known],
              noisy=scene.is_noisy_client[known], numbers=np.flatnonzero(known),
          ),
          'Nominal: the mean probability with which the labels were changed. Realised: the share '
          f'that did change. Realised over all: {scene.noise_rate:.1%} of '
          f'{int(scene.is_known.sum()):,} labels.{missing} Ground truth: no federated computation '
          'sees it.',
      )
  ]


def _range(values):
  low, high = int(values.min()), int(values.max())
  return f'{low}' if low == high else f'{low} to {high} (median {np.median(values):g})'


def short_type(type_spec: str) -> str:
  """Returns a TFF type in few words: '10 tensors, 27,530 float32' for a model."""
  if len(type_spec) <= _LONG_TYPE:
    return type_spec
  tensors = _TENSOR.findall(type_spec)
  if not tensors:
    return type_spec[:_LONG_TYPE] + '...'
  sizes: dict[str, int | None] = {}
  for dtype, shape in tensors:
    dims = shape.strip('[]').split(',') if shape else []
    if '?' in dims or sizes.get(dtype, 0) is None:
      sizes[dtype] = None
    else:
      sizes[dtype] = sizes.get(dtype, 0) + int(np.prod([int(d) for d in dims if d], dtype=np.int64))
  numbers = ', '.join(f'{"?" if n is None else f"{n:,}"} {dtype}' for dtype, n in sizes.items())
  return f'{len(tensors)} tensor{"" if len(tensors) == 1 else "s"}: {numbers}'


def _uplink(run, scene):
  del scene  # Unused.
  shown = [uplink_table(run.uplink)]
  sent = [
      f'{_bytes(float(np.nansum(run.metrics[column])))} {direction}'
      for column, direction in (('bytes_up', 'from clients to the server'),
                                ('bytes_down', 'from the server to clients'))
      if column in run.metrics and run.metrics[column].dtype.kind == 'f'
  ]
  if sent:
    shown.append(blocks.Text(f'In {len(run.rounds)} rounds: {" and ".join(sent)}.'))
  return shown


def uplink_table(declared: Sequence[Mapping[str, Any]]) -> blocks.Table:
  """Returns the content of `uplink.json` as a table."""
  with_bytes = any('num_bytes' in field for field in declared)
  header = ['what', 'type', 'intrinsic', 'who can see it', 'bounds']
  if with_bytes:
    header.append('size')
  return blocks.Table((*header, 'why'), [_field(field, with_bytes) for field in declared])


def _field(field, with_bytes):
  type_spec = str(field.get('type_spec', ''))
  short = short_type(type_spec)
  disclosure = str(field.get('disclosure', ''))
  cells = [
      str(field.get('name', '')),
      type_spec if short == type_spec else blocks.Folded(short, type_spec),
      str(field.get('intrinsic', '')),
      _DISCLOSURE.get(disclosure, disclosure),
      _bounds(field.get('lower'), field.get('upper')),
  ]
  if with_bytes:
    size = field.get('num_bytes')
    cells.append(_bytes(size) if isinstance(size, int) else '')
  return (*cells, str(field.get('reason', '')))


def _bounds(lower, upper):
  if lower is None and upper is None:
    return 'none'
  if upper is None:
    return f'at least {lower:g}' if isinstance(lower, int | float) else str(lower)
  if lower is None:
    return f'at most {upper}'
  return f'{lower} to {upper}'


def _privacy(run, scene):
  del scene  # Unused.
  return privacy_blocks(run.privacy)


def privacy_blocks(privacy: Mapping[str, Any]) -> list[blocks.Block]:
  """Returns the content of `privacy.json` as blocks."""
  rows = [
      (
          str(r.get('name', '')), str(r.get('recipient', '')), str(r.get('aggregation', '')),
          str(r.get('mechanism', '')), _epsilon(r.get('epsilon')), str(r.get('unit', '')),
          _number(r.get('times', '')), str(r.get('accounting', '')), str(r.get('status', '')),
      )
      for r in privacy['releases']
  ]
  totals = [
      f'The whole run: {_whole(t)} for {t.get("unit")}.' for t in privacy['totals']
  ]
  shown = [
      blocks.Text(' '.join([*totals, privacy['statement']]), 'notice'),
      blocks.Table(
          ('release', 'to whom', 'in what form', 'protected by', 'epsilon', 'for', 'times',
           'accounting', 'status'),
          rows,
      ),
  ]
  if any(r.get('epsilon') == 'inf' for r in privacy['releases']):
    shown.append(blocks.Text(_LEAK))
  return shown + [
      _central(r['name'], r['central_epsilon'])
      for r in privacy['releases']
      if r.get('central_epsilon')
  ]


def _central(name, bounds):
  # Older code wrote neither delta nor what the bounds are of.
  delta = f' at delta {bounds["delta"]:g}' if 'delta' in bounds else ''
  holds = bounds.get('holds', 'of this sum alone, not of the run')
  return blocks.Text(
      f'Central epsilon of the {name}: between {rounding.down(bounds["lower"])} and '
      f'{rounding.up(bounds["upper"])}'
      f'{delta} (privacy blanket; Balle et al. 2019). That is {holds}.'
  )


def _epsilon(value):
  if value == 'inf':
    return 'infinite'
  return rounding.up(value) if isinstance(value, int | float) else str(value)


def _whole(total):
  if total.get('epsilon') == 'inf':
    return 'no finite epsilon'
  delta = f' at delta {total["delta"]:g}' if total.get('delta') else ''
  return f'epsilon {_epsilon(total.get("epsilon"))}{delta}'


def _times(run, scene):
  del scene  # Unused.
  shown = [blocks.Picture(
      'seconds',
      plots.seconds(run.seconds),
      'Wall time without evaluation on the test set. The first round of a process also compiles.',
  )]
  spans = plots.stage_spans(run.metrics.get('stage', ()))
  if len(spans) > 1:
    shown.append(blocks.Table(
        ('stage', 'rounds', 'seconds'),
        [
            (s.name, f'{s.first} to {s.last}',
             f'{float(np.nansum(run.seconds[s.first - 1:s.last])):.4g}')
            for s in spans
        ],
    ))
  return shown


def _versions(run, scene):
  del scene  # Unused.
  return [blocks.Table((), [(name, str(version)) for name, version in run.versions.items()])]


def _always(run):
  del run  # Unused.
  return True


def _has_rounds(run):
  return len(run.rounds) > 0


# What single methods have to show.
_METHOD_SECTIONS: Mapping[str, blocks.Section] = {
    module: params_lib.implementation(f'tff_noise.report.{module}:SECTION')
    for entry in catalog.ALGORITHMS.values() for module in entry.report
}

_FIRST: tuple[blocks.Section, ...] = (
    blocks.Section('Result', _always, _headline),
    blocks.Section('How to repeat it', _always, _repeat),
    blocks.Section('Training', _has_rounds, _curves),
    by_class.SECTION,
    blocks.Section('Federation and label noise', _always, _federation),
)
_LAST: tuple[blocks.Section, ...] = (
    blocks.Section('What left the clients', lambda run: run.uplink is not None, _uplink),
    blocks.Section('What it cost in privacy', lambda run: run.privacy is not None, _privacy),
    blocks.Section(
        'Times', lambda run: bool(np.isfinite(run.seconds).any()), _times
    ),
    blocks.Section('Package versions', lambda run: bool(run.versions), _versions),
)
