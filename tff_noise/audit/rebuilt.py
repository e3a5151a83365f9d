"""What this code says of a run, built anew from the run's configuration and scene."""

import numpy as np

from tff_noise import types
from tff_noise.audit import computations
from tff_noise.audit import drawn_scene
from tff_noise.audit import finding
from tff_noise.audit import first_round
from tff_noise.audit import last_rounds
from tff_noise.audit import noisy_sum
from tff_noise.audit import replay
from tff_noise.audit import reports
from tff_noise.audit import runs as audit_runs
from tff_noise.data import scene as scene_lib
from tff_noise.privacy import ledger
from tff_noise.program import chosen_round
from tff_noise.program import code_version
from tff_noise.program import early_stopping
from tff_noise.program import noise_secret
from tff_noise.program import run_config
from tff_noise.program import run_directory
from tff_noise.program import summary
from tff_noise.program import task as task_lib
from tff_noise.report import runs
from tff_noise.runtimes import opening

# Clients computed at the same time: whatever a run's memory allowed it, an audit has as much.
_AT_ONCE = 2
_STATE = 'state: every checkpoint can be read'
_NOISE = 'config.json: names the noise that the run draws'


def audit(
    run: runs.Run,
    seal: ledger.Seal,
    config: run_config.RunConfig,
    dataset: types.Dataset,
    scene: scene_lib.Scene,
    delta: float,
) -> audit_runs.ByCode:
  """Builds the run's method and does the run again.

  Args:
    run: The run.
    seal: Of its ledger.
    config: Its configuration.
    dataset: What it names.
    scene: The run's.
    delta: Of Gaussian mechanisms and central bounds, in (0, 1).

  Raises:
    types.UsageError: If the method cannot be built.
  """
  with opening.opened('local', max_concurrent_clients=_AT_ONCE):
    key = noise_secret.system_key(config, run_directory.RunDirectory(run.path))
    prepared = task_lib.prepare(config, dataset, scene, key)
    cohorts = prepared.algorithm.smallest_cohorts(prepared.task)
    method = computations.audit(
        '', prepared.algorithm, summary.units(scene), cohorts, delta, {}
    )
    found = findings(run, seal, config, prepared, dataset, scene)
    return audit_runs.ByCode(method, tuple(found))


def findings(
    run: runs.Run,
    seal: ledger.Seal,
    config: run_config.RunConfig,
    prepared: task_lib.Prepared,
    dataset: types.Dataset,
    scene: scene_lib.Scene,
) -> list[finding.Finding]:
  """Does the run again; arguments are those of `audit`, and the method as this code builds it."""
  algorithm, task, federation = prepared.algorithm, prepared.task, prepared.federation
  if config.early_stopping:
    algorithm = algorithm._replace(ends_after=_ended_after(run, config, algorithm))
  path = run_directory.RunDirectory(run.path).file('ledger.jsonl')
  try:
    lines = ledger.read_lines(path, run.uplink or [], seal)
  except ledger.LedgerError:
    return []  # That it is broken is a finding of its own.
  if len(run.uplink or []) != len(algorithm.fields):
    return []  # So is that this code sends other values.
  entries = ledger.entries(lines)
  same_code = ledger.codes(lines, seal) == {code_version.digest()}
  replayed = replay.run(algorithm, task, federation, run.uplink, seal)
  states, damaged = [], []
  try:
    states = replay.load_states(run, algorithm, task, federation)
  except types.UsageError as error:
    damaged = [finding.failed(_STATE, audit_runs.without_name(error, run))]
  return [
      *damaged,
      drawn_scene.check(config, dataset, scene, same_code),
      *replay.findings(run, seal, lines, replayed, code_version.digest(), states),
      *reports.findings(prepared, scene, config.seed, states),
      *noisy_sum.findings(prepared),
      *noisy_sum.counted(prepared, entries, states),
      *_named_noise(run, config, dataset, federation, same_code),
      first_round.check(run, config, prepared, dataset, scene, same_code),
      last_rounds.check(config, prepared, states, same_code),
  ]


def _ended_after(run, config, algorithm):
  """After which round early stopping ends a run of these accuracies.

  They are the run's own. What labels cost does not depend on where it ends, and with client DP it
  cannot end early.
  """
  accuracy = run.metrics.get(chosen_round.column(run.metrics), np.zeros(0))
  found = np.isfinite(accuracy)
  *_, last = (name for name, rounds in algorithm.stages.items() if rounds)
  return early_stopping.ends_after(
      config.early_stopping, run.rounds[found].tolist(),
      (run.metrics['stage'][found] == last).tolist(), accuracy[found].tolist(),
  )


def _named_noise(run, config, dataset, federation, same_code):
  """Whether its name tells what noise the run draws, or `--runs` is misled."""
  key = noise_secret.system_key(config, run_directory.RunDirectory(run.path))
  name = noise_secret.name(config, dataset, federation, key)
  if run.noise == name:
    return [finding.passed(_NOISE, 'the same')] if name else []
  if not same_code:
    return [finding.no_evidence(_NOISE, 'other code may name it otherwise')]
  return [finding.failed(_NOISE, 'other flags, data, files or secrets than the run was begun with')]
