"""Audits privacy: `bazel run //bin:audit -- --method=feddpcont`, `--run_dir=runs/NAME`, ..."""

import os
import shlex
import sys

from absl import flags

from tff_noise import loading
from tff_noise import types
from tff_noise.privacy import mechanism
from tff_noise.program import command_line

_FLAGS = flags.FlagValues()
flags.DEFINE_string('run_dir', None, 'The directory of a run.', flag_values=_FLAGS)
flags.DEFINE_list('runs', [], 'The directories of runs.', flag_values=_FLAGS)
flags.DEFINE_string('method', None, 'A method.', flag_values=_FLAGS)
flags.DEFINE_boolean('mechanism', False, 'The label mechanism.', flag_values=_FLAGS)
flags.DEFINE_string('out_dir', None, 'Where to write.', flag_values=_FLAGS)
flags.DEFINE_float('delta', 1e-5, 'Of what a run costs.', flag_values=_FLAGS)
flags.DEFINE_string('label_epsilon', '0.81', 'The claim.', flag_values=_FLAGS)
flags.DEFINE_integer('num_classes', 10, 'K.', flag_values=_FLAGS)
flags.DEFINE_integer('trials', 20_000, 'Reports.', flag_values=_FLAGS)
flags.DEFINE_float('alpha', 1e-6, 'Probability of a false alarm.', flag_values=_FLAGS)
flags.DEFINE_integer('audit_seed', None, "The auditor's.", flag_values=_FLAGS)
flags.DEFINE_boolean('help', False, 'Help.', flag_values=_FLAGS)

# What is audited, and which of the flags of others have a meaning for it.
_TAKES = {
    'run_dir': {'delta'},
    'runs': {'delta'},
    'method': {'delta', 'label_epsilon'},
    'mechanism': {'label_epsilon', 'num_classes', 'trials', 'alpha', 'audit_seed'},
}

_HELP = """\
Says what leaves a client, in what form, who sees it and what it costs, and checks that it is so.
Exit status 0 if all passes, 1 if anything fails, 2 after one line about what to change, 3 if there
was no evidence for something.

  ./bazelw run //bin:audit -- --run_dir=runs/NAME
      A run: its ledger has no gap and belongs to its configuration, its totals are right, this
      code sends what it declared, and the run done again leads to its cohorts, entries, reports
      and first round. Needs the run's data and its ledger.key.

  ./bazelw run //bin:audit -- --runs=runs/A,runs/B,...
      Runs on the same clients' data, those of tuning included: each ledger as above, and what all
      of them cost together. Needs their ledger.key, and no data.

  ./bazelw run //bin:audit -- --method=feddpcont [flags of bin/train]
      A method: what its compiled computations send, against what it declares, without running it.

  ./bazelw run //bin:audit -- --mechanism [--label_epsilon=0.81] [--num_classes=10]
      [--trials=20000] [--alpha=1e-6] [--audit_seed=N]
      The label mechanism: it is asked often, and what it answers is held against its claim.
      alpha is the probability of any false alarm. trials is the budget: 600 times as many
      reports are asked for. The auditor's seed decides whom it asks about which examples; it
      comes from the system's randomness unless given, and is printed.

  --delta [1e-05]
      At which a run, runs together or a method are accounted for, in (0, 1); well below one over
      the number of clients.
  --out_dir
      Write audit.html, audit.json and audit.txt there; for a run, by default into its directory.
      For a run or runs, also events.json, the releases as events of dp_accounting, and
      delta_epsilon.csv, delta for every epsilon. They are what an auditor outside may have: see
      docs/privacy.md."""


def main(argv: list[str] = sys.argv) -> int:
  """Returns the exit status, see `_HELP`."""
  return command_line.run('audit', lambda: _main(argv))


def _main(argv):
  values, rest = command_line.parse(_FLAGS, argv, known_only=True)
  if values.help:
    print(command_line.as_called(_HELP))
    return 0
  _check(values, rest)
  # It tells of hardware that is not there.
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  command_line.load_matplotlib()
  if values.mechanism:
    result = _audit_mechanism(values)
  elif values.method:
    result = _audit_flags(argv, values, rest)
  elif values.runs:
    result = _audit_runs(values)
  else:
    result = _audit_run(values)
  print(result.text())
  out_dir = values.out_dir or values.run_dir
  if out_dir:
    from tff_noise.audit import page

    print(f'written to {page.write(result, out_dir)}')
  return result.status


def _check(values, rest):
  asked = [name for name in _TAKES if values[name].value]
  if not asked:
    raise types.UsageError(
        'one of --run_dir, --runs, --method and --mechanism is needed; see --help'
    )
  if len(asked) > 1:
    given = ' and '.join(f'--{name}' for name in asked)
    raise types.UsageError(f'{given} are audits of their own: give one of them')
  if rest and not values.method:
    raise types.UsageError(f'{rest[0]!r} can be given with --method only')
  for name in sorted(set().union(*_TAKES.values()).difference(_TAKES[asked[0]])):
    if values[name].present:
      raise types.UsageError(f'--{name} cannot be given with --{asked[0]}')
  if not 0 < values.delta < 1:
    raise types.UsageError(f'--delta must be in (0, 1), got {values.delta}')


def _audit_flags(argv, values, rest):
  from tff_noise.program import flags as train_flags

  shared = ('method', 'label_epsilon')
  given = [f'--{name}={values[name].value}' for name in shared if values[name].present]
  own_values, own = command_line.parse(
      _FLAGS, train_flags.without_files(argv), known_only=True
  )
  own = [*(f'--{n}={own_values[n].value}' for n in shared if own_values[n].present), *own]
  config = train_flags.config_of_command_line(['audit', *given, *rest], ['audit', *own])
  about = {'command': shlex.join(['bin/audit', *given, *rest])}
  return _audit_method(f'Audit of --method={config.method}', config, values.delta, about)


def _audit_run(values):
  from tff_noise.audit import runs
  from tff_noise.program import ledger_seal
  from tff_noise.program import run_directory
  from tff_noise.report import runs as report_runs

  run = report_runs.read_run(values.run_dir)
  seal = ledger_seal.of_run(run_directory.RunDirectory(run.path))
  code, why_not = None, ''
  try:
    code = _do_again(run, seal, values.delta)
  except types.UsageError as error:
    why_not = f'the method cannot be built here: {runs.without_name(error, run)}'
  return runs.audit(run, seal, values.delta, code, why_not)


def _audit_runs(values):
  from tff_noise.audit import several

  return several.audit([several.read(path) for path in values.runs], values.delta)


def _do_again(run, seal, delta):
  from tff_noise.program import data
  from tff_noise.program import flags as train_flags
  from tff_noise.program import inputs
  from tff_noise.program import run_directory

  config = train_flags.config_of_run(run.flags)
  dataset = data.load_dataset(config)
  inputs.check(run_directory.RunDirectory(run.path), inputs.digests(config, dataset))
  scene = data.load_scene(config, dataset, os.path.join(run.path, 'scene.npz'))
  print('Loading TensorFlow Federated...', file=sys.stderr)
  with loading.large_modules():
    from tff_noise.audit import rebuilt

  return rebuilt.audit(run, seal, config, dataset, scene, delta)


def _audit_method(title, config, delta, about):
  from tff_noise.program import data

  dataset = data.load_dataset(config)
  drawn = data.load_scene(config, dataset, None)
  print('Loading TensorFlow Federated...', file=sys.stderr)
  with loading.large_modules():
    from tff_noise.audit import computations
    from tff_noise.program import code_version
    from tff_noise.program import summary
    from tff_noise.program import task
    from tff_noise.runtimes import opening

  with opening.opened('local', max_concurrent_clients=1):  # First values may be computed.
    prepared = task.prepare(config, dataset, drawn)
  about = {**about, 'code': code_version.digest()}
  cohorts = prepared.algorithm.smallest_cohorts(prepared.task)
  units = summary.units(drawn)
  return computations.audit(title, prepared.algorithm, units, cohorts, delta, about)


def _audit_mechanism(values):
  if values.trials < 0 or not 0 < values.alpha < 1:
    raise types.UsageError('--trials must be at least 0, --alpha in (0, 1)')
  try:
    flips = mechanism.randomized_response(values.label_epsilon, values.num_classes)
  except types.UsageError as error:
    raise types.UsageError(f'--label_epsilon, --num_classes: {error}') from error
  print('Loading TensorFlow Federated...', file=sys.stderr)
  with loading.large_modules():
    from tff_noise.audit import empirical_audit
    from tff_noise.audit import labels

  seed = values.audit_seed
  if seed is None:
    seed = empirical_audit.new_seed()
  return labels.audit(flips, values.trials, values.alpha, seed)


if __name__ == '__main__':
  sys.exit(main(sys.argv))
