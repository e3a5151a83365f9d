"""Audits privacy: `bazel run //bin:audit -- --method=feddpcont`, `--run_dir=runs/NAME`, ..."""

import logging
import os
import shlex
import sys

from absl import flags

from tff_noise import types
from tff_noise.program import command_line

_FLAGS = flags.FlagValues()
flags.DEFINE_string('run_dir', None, 'The directory of a run.', flag_values=_FLAGS)
flags.DEFINE_string('method', None, 'A method.', flag_values=_FLAGS)
flags.DEFINE_boolean('mechanism', False, 'The label mechanism.', flag_values=_FLAGS)
flags.DEFINE_string('out_dir', None, 'Where to write.', flag_values=_FLAGS)
flags.DEFINE_float('delta', 1e-5, 'Of Gaussian mechanisms.', flag_values=_FLAGS)
flags.DEFINE_string('label_epsilon', '0.81', 'The claim.', flag_values=_FLAGS)
flags.DEFINE_string('label_flips', 'driver', 'Who flips.', flag_values=_FLAGS)
flags.DEFINE_integer('num_classes', 10, 'K.', flag_values=_FLAGS)
flags.DEFINE_integer('trials', 20_000, 'Reports.', flag_values=_FLAGS)
flags.DEFINE_float('alpha', 1e-6, 'Probability of a false alarm.', flag_values=_FLAGS)
flags.DEFINE_boolean('help', False, 'Help.', flag_values=_FLAGS)

_HELP = """\
Says what leaves a client, in what form, who sees it and what it costs, and checks that it is so.
Exit status 1 if anything fails.

  bazel run //bin:audit -- --run_dir=runs/NAME
      A run: its ledger has no gap, its totals are right, and this code sends what it declared.

  bazel run //bin:audit -- --method=feddpcont [flags of bin/train]
      A method: what its compiled computations send, against what it declares, without running it.

  bazel run //bin:audit -- --mechanism [--label_epsilon=0.81] [--num_classes=10]
      [--label_flips=driver|client] [--trials=20000] [--alpha=1e-6]
      The label mechanism: it is asked often, and what it answers is held against its claim.
      alpha is the probability of any false alarm.

  --delta [1e-05]
      Of Gaussian mechanisms, in (0, 1); well below one over the number of clients.
  --out_dir
      Write audit.html, audit.json and audit.txt there; for a run, by default into its directory."""


def main(argv: list[str]) -> int:
  """Returns the exit status: 0; 1 if anything failed; 2 after one line about what to change."""
  return command_line.run('audit', lambda: _main(argv))


def _main(argv):
  values, rest = command_line.parse(_FLAGS, argv, known_only=True)
  if values.help:
    print(_HELP)
    return 0
  if sum(bool(v) for v in (values.run_dir, values.method, values.mechanism)) != 1:
    raise types.UsageError('one of --run_dir, --method and --mechanism is needed; see --help')
  if rest and not values.method:
    raise types.UsageError(f'{rest[0]!r} can be given with --method only')
  for name in ('num_classes', 'trials', 'alpha'):
    if values[name].present and not values.mechanism:
      raise types.UsageError(f'--{name} can be given with --mechanism only')
  if not 0 < values.delta < 1:
    raise types.UsageError(f'--delta must be in (0, 1), got {values.delta}')
  # They tell of hardware that is not there, and of caches that cannot be written.
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  logging.getLogger('matplotlib').setLevel(logging.ERROR)
  result = _audit(values, rest)
  print(result.text())
  out_dir = values.out_dir or values.run_dir
  if out_dir:
    from tff_noise.audit import page

    print(f'written to {page.write(result, out_dir)}')
  return int(result.failed)


def _audit(values, rest):
  if values.mechanism:
    return _audit_mechanism(values)
  if values.method:
    from tff_noise.program import flags as train_flags

    shared = ('method', 'label_epsilon', 'label_flips')
    given = [f'--{name}={values[name].value}' for name in shared if values[name].present]
    config = train_flags.config_from(train_flags.parse(['audit', *given, *rest]))
    about = {'command': shlex.join(['bin/audit', *given, *rest])}
    return _audit_method(f'Audit of --method={config.method}', config, values.delta, about)
  from tff_noise.audit import runs

  code, why_not = None, ''
  try:
    from tff_noise.program import run_config

    config = run_config.RunConfig(**_tuples(runs.config_flags(values.run_dir)))
    scene = os.path.join(values.run_dir, 'scene.npz')
    code = _audit_method('', config, values.delta, {}, scene)
  except types.UsageError as error:
    why_not = f'the method cannot be built here: {error}'
  except TypeError:
    why_not = 'the run has not the flags of this version, so its method cannot be built'
  return runs.audit(values.run_dir, values.delta, code, why_not)


def _tuples(values):
  return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}


def _audit_method(title, config, delta, about, scene=None):
  from tff_noise.program import data

  dataset = data.load_dataset(config)
  drawn = data.load_scene(config, dataset, scene)
  print('Loading TensorFlow Federated...', file=sys.stderr)
  from tff_noise.audit import computations
  from tff_noise.program import code_version
  from tff_noise.program import task

  prepared = task.prepare(config, dataset, drawn)
  about = {**about, 'code': code_version.digest()}
  return computations.audit(title, prepared.schedule, drawn.num_clients, delta, about)


def _audit_mechanism(values):
  from tff_noise.audit import labels

  if values.label_flips not in labels.FORMS:
    raise types.UsageError(f'--label_flips must be one of {", ".join(labels.FORMS)}')
  if values.trials < 0 or not 0 < values.alpha < 1:
    raise types.UsageError('--trials must be at least 0, --alpha in (0, 1)')
  return labels.audit(
      values.label_epsilon, values.num_classes, values.label_flips, values.trials, values.alpha
  )


if __name__ == '__main__':
  sys.exit(main(sys.argv))
