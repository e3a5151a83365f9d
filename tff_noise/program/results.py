"""What a finished run leaves: clients, labels, privacy, and last of all its summary."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tff_noise.algorithms import algorithm as algorithm_lib
from tff_noise.data import scene as scene_lib
from tff_noise.privacy import costs as costs_lib
from tff_noise.privacy import ledger
from tff_noise.program import ground_truth
from tff_noise.program import ledger_seal
from tff_noise.program import quality
from tff_noise.program import run_config
from tff_noise.program import run_directory
from tff_noise.program import summary


def write(
    directory: run_directory.RunDirectory,
    config: run_config.RunConfig,
    scene: scene_lib.Scene,
    algorithm: algorithm_lib.Algorithm,
    state: Any,
    confusion: np.ndarray,
    own_models: Mapping[str, Any],
    rows: np.ndarray | None,
) -> None:
  """Writes the files of a finished run.

  Args:
    directory: The run's.
    config: Its configuration.
    scene: The ground truth.
    algorithm: What ran.
    state: The last `training.ProgramState`.
    confusion: int64 `[K, K]`, of the last models on the test set; rows are true classes.
    own_models: What is told of clients' own models; empty where they have none.
    rows: See `types.Dataset.train_rows`.
  """
  own_columns = algorithm.report.client_columns(state.records)
  by_client = quality.client_accuracy(confusion, scene)
  summary.write_clients(
      directory.file('clients.csv'), scene, state.participations, by_client, own_columns
  )
  run_directory.write_text(directory.file('confusion.csv'), _csv(confusion))
  if algorithm.report.labels:
    ground_truth.save_labels(directory.file('labels.npz'), algorithm, scene, state.own, rows)
  if algorithm.report.posterior:
    path = directory.file('posteriors.npz')
    ground_truth.save_posteriors(path, algorithm, scene, state.own, rows)
  declared = run_directory.read_json(directory.file('uplink.json'))
  seal = ledger_seal.of_run(directory)
  lines = ledger.read_lines(directory.file('ledger.jsonl'), declared, seal)
  privacy = costs_lib.to_json(
      ledger.entries(lines), declared, units=summary.units(scene),
      codes=len(ledger.codes(lines, seal)),
  )
  run_directory.write_json(directory.file('privacy.json'), privacy)
  found = {
      'method': config.method,
      'seed': config.seed,
      **summary.summarize(directory),
      **_ended_before_its_rounds(config, algorithm),
      **summary.describe(scene),
      **_verdict(config, scene, algorithm, state, own_columns, len(confusion)),
      **own_models,
      **_by_client(by_client),
  }
  own = {
      **algorithm.report.summary(state.records),
      **algorithm.report.kept_summary(state.state, state.own_of_clients),
  }
  found |= summary.apart(own, found)
  # What it says of itself, it finds by the names that it gave.
  found['lines'] = list(algorithm.report.lines({**found, **own}))
  # Last: a run with a summary is complete.
  run_directory.write_json(directory.file('summary.json'), summary.plain(found))


def _csv(matrix):
  return ''.join(','.join(map(str, row)) + '\n' for row in matrix.tolist())


def _by_client(accuracy):
  """Nothing where nobody knows what clients hold."""
  if not np.isfinite(accuracy).any():
    return {}
  return {
      'mean_client_accuracy': float(np.nanmean(accuracy)),
      'worst_tenth_client_accuracy': quality.worst_tenth(accuracy),
  }


def _ended_before_its_rounds(config, algorithm):
  """Nothing of a run that had all its rounds."""
  if algorithm.rounds == algorithm.planned_rounds:
    return {}
  if config.early_stopping:
    return {'status': 'ended early', 'planned_rounds': algorithm.planned_rounds}
  return {
      'status': 'ended by budget',
      'planned_rounds': algorithm.planned_rounds,
      'target_client_epsilon': config.target_client_epsilon,
  }


def _verdict(config, scene, algorithm, state, own_columns, num_classes):
  """How the algorithm's verdict on labels and clients compares with the truth."""
  found = {}
  if algorithm.report.labels:
    labels = ground_truth.current_labels(algorithm, scene, state.own)
    found.update(ground_truth.correction_summary(scene, labels))
  if algorithm.report.posterior:
    posteriors = ground_truth.current_posteriors(algorithm, scene, state.own)
    judged = scene
    if config.training_labels == 'private':
      judged = ground_truth.reported(scene, config.label_epsilon, num_classes, config.seed)
    found['wrong_label_auc'] = ground_truth.wrong_label_auc(judged, posteriors)
  if algorithm.report.noisy_clients is not None:
    noisy = algorithm.report.noisy_clients(state.records)
    found.update(ground_truth.identification(scene, noisy))
  for name in algorithm.report.client_scores:
    agreement = ground_truth.rate_correlation(scene, own_columns[name])
    found.update({f'{name}_{measure}': value for measure, value in agreement.items()})
    # Of the last one, by which the server judges, under a name that all methods have.
    found['noisy_client_auc'] = agreement['auc']
    found['noisy_client_rank_correlation'] = agreement['rank_correlation']
  return {k: None if isinstance(v, float) and np.isnan(v) else v for k, v in found.items()}
