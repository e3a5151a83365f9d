"""Longer runs that take over the rounds of a finished one.

`--rounds=200` goes on from a run of 100 where nothing else changed, found by its name, which both
have from their flags; `--extend=runs/NAME --rounds=200` from one that is named.

What comes of it is the run of all rounds, to the byte, as if it had been stopped after those that
are taken over. So it is for methods of which each round is the same however many there are; not
for noise on updates either, whose key is of all flags: the rest would draw other noise. The
finished run stays as it is. Its ledger is carried over line by line, under the configuration of the
longer run and the key of both: an account of several runs takes them for one, and asks for the
longer.
"""

import glob
import os
import sys
from collections.abc import Mapping

from tff_noise import types
from tff_noise.algorithms import catalog
from tff_noise.program import flags
from tff_noise.program import inputs
from tff_noise.program import ledger_seal
from tff_noise.program import run_config
from tff_noise.program import run_directory


def find(
    config: run_config.RunConfig, made_from: Mapping[str, str]
) -> run_directory.RunDirectory | None:
  """Returns the longest finished run that `config` is a longer one of; None if there is none.

  Runs with a name of their own, begun anew, or of a method of the user's are not looked for, and
  look for none. If the only ones are of other code or data, stderr is told so: whoever asks for
  more rounds expects to go on.

  Args:
    config: The flags.
    made_from: From `inputs.recorded`.
  """
  if config.run_name is not None or config.overwrite or not config.resume:
    return None
  if ':' in config.method:
    return None  # Nobody said that its rounds do not depend on how many there are.
  # All but the digest of its flags.
  name = config.name().rpartition('_')[0]
  found, changed = {}, ''
  for path in glob.glob(os.path.join(glob.escape(os.path.abspath(config.root_dir)), f'{name}_*')):
    source = run_directory.RunDirectory(path)
    try:
      _check_flags(config, source)
    except types.UsageError:
      continue  # Another run: of other flags, mostly.
    try:
      different = ledger_seal.other_code_of(source) or inputs.difference(source, made_from)
      ended = run_directory.read_json(source.file('summary.json')).get('rounds')
    except types.UsageError as error:
      different = str(error)  # It is damaged.
    if different:
      changed = different
      continue
    rounds = _flags(source)['rounds']
    if ended != rounds:
      continue  # It ended early.
    if os.path.exists(source.file(os.path.join('state', f'round_{rounds}.npz'))):
      found[rounds] = source
    else:
      changed = f'run {source.name} has lost its last state'
  if changed and not found:
    print(f'extend: this run begins anew: {changed}', file=sys.stderr)
  return found[max(found)] if found else None


def check(config: run_config.RunConfig, source: run_directory.RunDirectory) -> None:
  """Checks that a run can be extended to `config`; its data are not looked at.

  Args:
    config: The longer run's, with `--extend`.
    source: The finished run.

  Raises:
    types.UsageError: If it cannot.
  """
  _check_flags(config, source)
  ledger_seal.check_code(source, other_code=False, otherwise=_OR_NOT)


_OR_NOT = 'use the same code, or leave --extend out'


def _check_flags(config, source):
  if not source.exists:
    raise types.UsageError(
        f'--extend={source.path}: no such run; name the folder of a finished one'
    )
  if not run_directory.is_complete(source):
    raise types.UsageError(
        f'--extend={source.path} is no finished run: continue it first, by its own flags'
    )
  rounds = _flags(source).get('rounds')
  run_directory.check_same_run(
      source, {**config.identity(), 'rounds': rounds}, flags.defaults(),
      'Give the same flags, or leave --extend out',
  )
  if not isinstance(rounds, int) or rounds >= config.rounds:
    raise types.UsageError(f'--extend={source.path} has {rounds} rounds: give more --rounds')
  entry = catalog.entry(config.method)
  for what, is_so in (
      (f'--method={config.method} plans its rounds by how many there are',
       not entry.is_extensible),
      ('noise on updates is keyed by all flags, --rounds too', config.client_dp_noise),
      (f'its last round was evaluated, which --eval_every={config.eval_every} would not do',
       rounds % config.eval_every),
  ):
    if is_so:
      raise types.UsageError(f'--extend={source.path}: {what}; begin a run of its own, without it')


def _flags(source):
  return run_directory.read_json(source.file('config.json')).get('flags', {})
