"""What only a simulation knows: how many labels are right now, and who really is noisy.

Computed from the scene beside the training, for metrics; no federated computation sees it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tff_noise.data import scene as scene_lib
from tff_noise.privacy import mechanism as mechanism_lib
from tff_noise.program import run_directory

if TYPE_CHECKING:
  from tff_noise.algorithms import algorithm as algorithm_lib
  from tff_noise.program import clients as clients_lib


def reported(scene: scene_lib.Scene, epsilon: str, num_classes: int, seed: int) -> scene_lib.Scene:
  """Returns the scene as clients know it under --training_labels=private: labels are reports.

  Args:
    scene: The ground truth.
    epsilon: Of a report, see `mechanism.randomized_response`.
    num_classes: K.
    seed: The run's.

  Raises:
    types.UsageError: If epsilon or K is none.
  """
  mechanism = mechanism_lib.randomized_response(epsilon, num_classes)
  owned = scene_lib.examples_of(scene)
  reports = mechanism_lib.simulated_reports(
      {i: (scene.noisy_label[ids], ids) for i, ids in enumerate(owned)}, seed, mechanism
  )
  labels = scene.noisy_label.copy()
  for ids, y in zip(owned, reports, strict=True):
    labels[ids] = y
  return scene._replace(noisy_label=labels)


def current_labels(
    algorithm: algorithm_lib.Algorithm, scene: scene_lib.Scene, own: clients_lib.OwnStates
) -> np.ndarray:
  """Returns int32 `[n]`, the labels that the clients believe now."""
  labels = scene.noisy_label.copy()
  for ids, believed in zip(scene_lib.examples_of(scene), own[algorithm.report.labels], strict=True):
    labels[ids] = believed
  return labels


def current_posteriors(
    algorithm: algorithm_lib.Algorithm, scene: scene_lib.Scene, own: clients_lib.OwnStates
) -> np.ndarray:
  """Returns float32 `[n]`, how likely each label is right for its client; nan: not judged."""
  posteriors = np.full(len(scene.client_of), np.nan, np.float32)
  kept = own[algorithm.report.posterior]
  for ids, of_client in zip(scene_lib.examples_of(scene), kept, strict=True):
    posteriors[ids] = of_client
  return posteriors


def wrong_label_auc(scene: scene_lib.Scene, posteriors: np.ndarray) -> float:
  """Returns the area under the ROC curve by which posteriors tell wrong labels from right ones.

  That is the share of pairs of a wrong and a right label in which the wrong one has the smaller
  posterior, ties counting half; nan where one of both is missing.

  Args:
    scene: The ground truth, with the labels that clients judge; those whose truth is unknown do not
      count.
    posteriors: float32 `[n]`; labels with nan do not count.
  """
  from sklearn import metrics  # Takes a second: only where it is used.

  counts = scene.is_known & np.isfinite(posteriors)
  wrong = scene.flipped[counts]
  if wrong.all() or not wrong.any():
    return np.nan
  return float(metrics.roc_auc_score(wrong, -posteriors[counts]))


def label_accuracy(scene: scene_lib.Scene, labels: np.ndarray) -> float:
  """Returns the share of right labels among the clients' known ones; nan if none is known."""
  known = scene.is_known
  return float(np.mean(labels[known] == scene.clean_label[known])) if known.any() else np.nan


def identification(scene: scene_lib.Scene, judged_noisy: np.ndarray) -> dict[str, float]:
  """Returns precision, recall and F1 of `judged_noisy`, bool `[C]`, against the noisy clients.

  Of the clients of whom it is known whether they are noisy. nan where there is nothing to find, or
  nothing was found.
  """
  known = np.isfinite(scene.nominal_rate)
  hits = float(np.sum(judged_noisy & scene.is_noisy_client))
  found, there = float((judged_noisy & known).sum()), float(scene.is_noisy_client.sum())
  return {
      'noisy_client_precision': hits / found if found else np.nan,
      'noisy_client_recall': hits / there if there else np.nan,
      'noisy_client_f1': 2 * hits / (found + there) if found + there else np.nan,
  }


def build_columns(
    algorithm: algorithm_lib.Algorithm, scene: scene_lib.Scene
) -> Callable[[Any], dict[str, float]]:
  """Returns what computes the columns of `metrics.csv` from a `training.ProgramState`."""

  def columns(state):
    values = {}
    if algorithm.report.labels:
      values['label_accuracy'] = label_accuracy(
          scene, current_labels(algorithm, scene, state.own)
      )
    if algorithm.report.noisy_clients is not None:
      values.update(identification(scene, algorithm.report.noisy_clients(state.records)))
    return values

  return columns


def save_labels(
    path: str, algorithm: algorithm_lib.Algorithm, scene: scene_lib.Scene, own:
      clients_lib.OwnStates, rows: np.ndarray | None
) -> None:
  """Writes `labels.npz`: `label` int32 `[n]` at the end, `corrected` bool `[n]`, and `row`.

  Args:
    path: The file.
    algorithm: What keeps labels.
    scene: Who holds what.
    own: What clients keep.
    rows: See `types.Dataset.train_rows`.
  """
  labels = current_labels(algorithm, scene, own)
  run_directory.write_arrays(
      path, label=labels, corrected=labels != scene.noisy_label, row=_rows(scene, rows)
  )


def save_posteriors(
    path: str, algorithm: algorithm_lib.Algorithm, scene: scene_lib.Scene, own:
      clients_lib.OwnStates, rows: np.ndarray | None
) -> None:
  """Writes `posteriors.npz`: `posterior`, see `current_posteriors`, and `row`, as `save_labels`."""
  posteriors = current_posteriors(algorithm, scene, own)
  run_directory.write_arrays(path, posterior=posteriors, row=_rows(scene, rows))


def _rows(scene, rows):
  return np.arange(len(scene.noisy_label)) if rows is None else rows


def correction_summary(
    scene: scene_lib.Scene, labels: np.ndarray
) -> dict[str, Any]:
  """Returns what the correction came to, for `summary.json`, over what clients train on.

  Where the truth is known of none, only how many were changed.
  """
  known = scene.is_known
  if not known.any():
    return {'labels_changed': int(np.sum(labels != scene.noisy_label))}
  changed = (labels != scene.noisy_label) & scene.is_trained_on
  right = labels == scene.clean_label
  return {
      'label_accuracy_before': label_accuracy(scene, scene.noisy_label),
      'label_accuracy_after': label_accuracy(scene, labels),
      'labels_changed': int(changed.sum()),
      'labels_changed_to_the_true_one': int((changed & known & right).sum()),
      'labels_changed_that_were_right': int((changed & known & ~scene.flipped).sum()),
      'labels_changed_of_unknown_truth': int((changed & ~known).sum()),
  }


def rate_correlation(scene: scene_lib.Scene, score: np.ndarray) -> dict[str, float]:
  """Returns how well a score of clients, float `[C]`, follows their noise (FedCorr, figure 3).

  Args:
    scene: The ground truth.
    score: Higher for noisier clients; nan for clients that have none.

  Returns:
    Pearson correlation and Spearman's rank correlation with the realised rate, and the share of
    pairs of clients, of which one is noisier, that the score puts in the right order (ties count
    half): of noisy and clean clients, where this is the area under the ROC curve, and by the
    realised rate where noise is graded. nan where a side is missing or nothing differs.
  """
  rate, score = scene.realised_rate, np.asarray(score, np.float64)  # It may be of truth values.
  known = np.isfinite(score) & np.isfinite(rate)
  result = {'correlation': np.nan, 'rank_correlation': np.nan, 'auc': np.nan}
  if known.sum() > 1 and np.ptp(score[known]) > 0 and np.ptp(rate[known]) > 0:
    from scipy import stats  # Takes a second: only where it is used.

    result['correlation'] = float(np.corrcoef(score[known], rate[known])[0, 1])
    result['rank_correlation'] = float(stats.spearmanr(score[known], rate[known]).correlation)
  known &= np.isfinite(scene.nominal_rate)  # Else nobody knows whether a client is noisy.
  noisier = rate if scene.is_graded else scene.is_noisy_client.astype(float)
  result['auc'] = _right_order(noisier[known], score[known])
  return result


def _right_order(noisier, score):
  """The share of pairs that differ in `noisier` and stand in that order by `score`."""
  right = pairs = 0.0
  for rate, value in zip(noisier, score, strict=True):
    of_noisier = score[noisier > rate]
    right += np.sum(of_noisier > value) + np.sum(of_noisier == value) / 2
    pairs += len(of_noisier)
  return float(right / pairs) if pairs else np.nan
