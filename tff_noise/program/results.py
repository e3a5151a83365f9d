"""What a finished run leaves: clients, labels, privacy, and last of all its summary."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tff_noise.data import scene as scene_lib
from tff_noise.methods import method
from tff_noise.privacy import ledger
from tff_noise.program import ground_truth
from tff_noise.program import run_config
from tff_noise.program import run_directory
from tff_noise.program import summary


def write(
    directory: run_directory.RunDirectory,
    config: run_config.RunConfig,
    scene: scene_lib.Scene,
    schedule: method.Schedule,
    state: Any,
    own_models: Mapping[str, Any],
) -> None:
  """Writes the files of a finished run.

  Args:
    directory: The run's.
    config: Its configuration.
    scene: The ground truth.
    schedule: The method.
    state: The last `training.ProgramState`.
    own_models: What is told of clients' own models; empty where they have none.
  """
  own_columns = schedule.client_columns(state.records)
  summary.write_clients(directory.file('clients.csv'), scene, state.participations, own_columns)
  if schedule.labels is not None:
    ground_truth.save_labels(directory.file('labels.npz'), schedule, scene, state.local)
  declared = run_directory.read_json(directory.file('uplink.json'))
  entries, _ = ledger.read(directory.file('ledger.jsonl'), declared)
  run_directory.write_json(directory.file('privacy.json'), ledger.to_json(entries, declared))
  # Last: a run with a summary is complete.
  run_directory.write_json(
      directory.file('summary.json'),
      {
          'method': config.method,
          'seed': config.seed,
          **summary.summarize(directory),
          **summary.describe(scene),
          **_judgement(scene, schedule, state, own_columns),
          'extra_bytes_up': _extra_bytes_up(schedule, entries, declared),
          **schedule.summary(state.records),
          **own_models,
      },
  )


def _extra_bytes_up(schedule, entries, declared):
  """What clients have sent besides the rounds, whose traffic is in `metrics.csv`."""
  extra = {
      i
      for exchange in schedule.exchanges.values()
      for i, field in enumerate(schedule.fields)
      if field in exchange.fields
  }
  sizes = {i: declared[i]['num_bytes'] for i in extra}
  return sum(entry.clients * sizes.get(i, 0) for entry in entries for i in entry.fields)


def _judgement(scene, schedule, state, own_columns):
  """How the method's judgement of labels and clients compares with the truth."""
  found = {}
  if schedule.labels is not None:
    labels = ground_truth.current_labels(schedule, scene, state.local)
    found.update(ground_truth.correction_summary(scene, labels))
  if schedule.noisy_clients is not None:
    judged = schedule.noisy_clients(state.records)
    found.update(ground_truth.identification(scene, judged))
  for name in schedule.client_scores:
    agreement = ground_truth.rate_correlation(scene, own_columns[name])
    found.update({f'{name}_{measure}': value for measure, value in agreement.items()})
  return {k: None if isinstance(v, float) and np.isnan(v) else v for k, v in found.items()}
