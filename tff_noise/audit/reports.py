"""Label reports of a run, worked out anew in NumPy and compared with what the run used."""

from collections.abc import Sequence

import numpy as np

from tff_noise import types
from tff_noise.audit import finding
from tff_noise.data import scene as scene_lib
from tff_noise.federated import label_histogram
from tff_noise.federated import task as task_lib
from tff_noise.privacy import mechanism as mechanism_lib
from tff_noise.program import task as program_task
from tff_noise.program import training

_HISTOGRAM = 'labels: the histogram that was released is that of the reports of all labels'
_TRAINED_ON = 'labels: clients train on the reports of their labels'


def _reports_of(labels, ids, seed, mechanism, cohort):
  """The reports of each client of a cohort."""
  secrets = [mechanism_lib.simulation_secret(seed, int(i)) for i in cohort]
  clients = [(labels[i], ids[i], secret) for i, secret in zip(cohort, secrets, strict=True)]
  return mechanism_lib.flip_all(clients, mechanism)


def histogram(
    task: task_lib.Task, federation: types.Federation, cohort: np.ndarray
) -> np.ndarray:
  """Returns int64 `[K]`, the sum of the histograms that a cohort reports.

  Args:
    task: How labels are communicated.
    federation: What clients hold: labels, or reports where they train on these.
    cohort: int64 `[k]`, ids.
  """
  labels = [c.y for c in federation.clients]
  mechanism = task.label_privacy.mechanism(task.num_classes)
  if mechanism is None or task.label_privacy.in_training:
    reported = [labels[i] for i in cohort]
  else:
    ids = [c.example_id for c in federation.clients]
    reported = _reports_of(labels, ids, federation.seed, mechanism, cohort)
  return np.bincount(np.concatenate(reported), minlength=task.num_classes).astype(np.int64)


def findings(
    prepared: program_task.Prepared,
    scene: scene_lib.Scene,
    seed: int,
    states: Sequence[training.ProgramState],
) -> list[finding.Finding]:
  """Compares the reports of a run with those of its configuration, scene and secrets.

  Args:
    prepared: The run's method, built by the code that is audited.
    scene: Who holds which label.
    seed: The run's.
    states: Its checkpoints.
  """
  found = []
  task = prepared.task
  if any(c.on_labels for c in prepared.algorithm.used):
    found.append(_histogram(prepared, states))
  if task.label_privacy.in_training:
    found.append(_trained_on(prepared, scene, seed))
  return found


def _histogram(prepared, states):
  records = [s.records for s in states if label_histogram.NAME in s.records]
  if not records:
    return finding.no_evidence(_HISTOGRAM, 'no checkpoint holds one')
  federation = prepared.federation
  expected = histogram(prepared.task, federation, np.arange(len(federation.clients)))
  for record in records:
    different = int((np.asarray(record[label_histogram.NAME]) != expected).sum())
    if different:
      return finding.failed(_HISTOGRAM, f'{different} of {len(expected)} counts are others')
  return finding.passed(_HISTOGRAM, f'{expected.sum()} reports in {len(expected)} classes')


def _trained_on(prepared, scene, seed):
  """From the scene, not from what clients hold, whose flips are what is in question."""
  task, clients = prepared.task, prepared.federation.clients
  examples = scene_lib.examples_of(scene)
  mechanism = mechanism_lib.randomized_response(task.label_privacy.epsilon, task.num_classes)
  expected = _reports_of(
      [scene.noisy_label[e] for e in examples], [e.astype(np.int64) for e in examples], seed,
      mechanism, range(len(examples)),
  )
  total = sum(map(len, expected))
  different = sum(int((c.y != y).sum()) for c, y in zip(clients, expected, strict=True))
  if different:
    return finding.failed(
        _TRAINED_ON, f'{different} of {total} labels that this code hands out are not the reports'
    )
  return finding.passed(_TRAINED_ON, f'{total} reports, as this code hands them out')
