"""Label reports of a run, worked out anew in NumPy and compared with what the run used."""

import collections
from collections.abc import Sequence

import numpy as np

from tff_noise import types
from tff_noise.audit import black_box
from tff_noise.audit import finding
from tff_noise.data import scene as scene_lib
from tff_noise.federated import computation as computation_lib
from tff_noise.federated import label_histogram
from tff_noise.federated import task as task_lib
from tff_noise.privacy import mechanism as mechanism_lib
from tff_noise.program import task as program_task
from tff_noise.program import training

_HISTOGRAM = 'labels: the histogram that was released is that of the reports of all labels'
_COUNTED = 'labels: what clients run on labels counts their reports, and nothing else'
_TRAINED_ON = 'labels: clients train on the reports of their labels'
# Whose labels are drawn at random.
_CLIENTS = 8
# How often an honest run fails for how many labels its flips keep.
_ALPHA = 1e-6


def _reports_of(labels, ids, seed, mechanism, cohort):
  """The reports of each client of a cohort."""
  return mechanism_lib.simulated_reports(
      {int(i): (labels[i], ids[i]) for i in cohort}, seed, mechanism
  )


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
  for computation in prepared.algorithm.used:
    if computation.on_labels:
      found += [counted(computation, task, prepared.federation), _histogram(prepared, states)]
  if task.label_privacy.in_training:
    found.append(_trained_on(prepared, scene, seed))
  return found


def counted(
    computation: computation_lib.Computation, task: task_lib.Task, federation: types.Federation
) -> finding.Finding:
  """Asks label communication about labels, examples and secrets: the run's, and random ones.

  Needs a TFF runtime.
  """
  everybody = np.arange(len(federation.clients))
  flipped = task.label_privacy.in_training
  own = [label_histogram.client_labels(federation, i, flipped) for i in everybody]
  for clients, expected in (
      (own, histogram(task, federation, everybody)), _drawn_at_random(task)
  ):
    different = int((np.asarray(computation.next(clients)) != expected).sum())
    if different:
      return finding.failed(_COUNTED, f'{different} of {len(expected)} counts are others')
  return finding.passed(
      _COUNTED, f'its {len(own)} clients, and {_CLIENTS} with labels drawn at random'
  )


def _drawn_at_random(task):
  """Clients of label communication, and the counts of their reports."""
  draw = np.random.default_rng()
  largest = int(task.client_sizes.max())
  clients = [
      collections.OrderedDict(
          y=draw.integers(0, task.num_classes, size, np.int32),
          example_id=draw.choice(2**40, size, replace=False),
          secret=draw.integers(1, 2**62, 2),
      )
      for size in (largest, largest, *draw.integers(0, largest + 1, _CLIENTS - 2))
  ]
  mechanism = task.label_privacy.mechanism(task.num_classes)
  if mechanism is None or task.label_privacy.in_training:
    reports = [c['y'] for c in clients]
  else:
    reports = mechanism_lib.flip_all(
        [(c['y'], c['example_id'], c['secret']) for c in clients], mechanism
    )
  return clients, np.bincount(np.concatenate(reports), minlength=task.num_classes)


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
  mechanism = prepared.task.label_privacy.mechanism(len(expected))
  if mechanism is not None and not prepared.task.label_privacy.in_training:
    labels, ids = zip(*((c.y, c.example_id) for c in federation.clients), strict=True)
    reported = _reports_of(labels, ids, federation.seed, mechanism, range(len(labels)))
    chosen = _kept_by_choice(labels, reported, mechanism)
    if chosen:
      return finding.failed(_HISTOGRAM, chosen)
  return finding.passed(_HISTOGRAM, f'{expected.sum()} reports in {len(expected)} classes')


def _trained_on(prepared, scene, seed):
  """From the scene, not from what clients hold, whose flips are what is in question."""
  task, federation = prepared.task, prepared.federation
  mechanism = mechanism_lib.randomized_response(task.label_privacy.epsilon, task.num_classes)
  different, labels, reported = 0, [], []
  for clients, examples in (
      (federation.clients, scene_lib.examples_of(scene)),
      (federation.withheld, scene_lib.withheld_of(scene)),
  ):
    given = [scene.noisy_label[e] for e in examples]
    expected = _reports_of(
        given, [e.astype(np.int64) for e in examples], seed, mechanism, range(len(examples))
    )
    labels, reported = [*labels, *given], [*reported, *expected]
    different += sum(int((c.y != y).sum()) for c, y in zip(clients, expected, strict=True))
  total = sum(map(len, reported))
  if different:
    return finding.failed(
        _TRAINED_ON, f'{different} of {total} labels that this code hands out are not the reports'
    )
  chosen = _kept_by_choice(labels, reported, mechanism)
  if chosen:
    return finding.failed(_TRAINED_ON, chosen)
  return finding.passed(_TRAINED_ON, f'{total} reports, as this code hands them out')


def _kept_by_choice(labels, reports, mechanism):
  """How many reports are the labels themselves, where that is not by chance; '' where it may be.

  Labels that were chosen so that their flips keep them are reported as they are: all of them, or
  those of one client, for which others have fewer.
  """
  sizes = np.array([len(y) for y in labels])
  kept = np.array([int((a == b).sum()) for a, b in zip(labels, reports, strict=True)])
  sizes, kept = sizes[sizes > 0], kept[sizes > 0]
  expected = f'of which {mechanism.keep_probability:.1%} are expected'
  p = mechanism.keep_probability
  if len(sizes) and black_box.two_sided(kept.sum(), sizes.sum(), p) < _ALPHA / 2:
    return f'{kept.sum()} of {sizes.sum()} reports are the labels themselves, {expected}'
  of_clients = black_box.two_sided(kept, sizes, p)
  if len(sizes) and of_clients.min() < _ALPHA / 2 / len(sizes):
    k = int(of_clients.argmin())
    return f'{kept[k]} of {sizes[k]} reports of a client are its labels themselves, {expected}'
  return ''
