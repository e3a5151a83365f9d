"""What a run came to: `summary.json`, `clients.csv`, and the text a person reads at the end.

Reads the run directory and imports no TensorFlow.
"""

import csv
import io
import math
import textwrap
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from tff_noise.data import scene as scene_lib
from tff_noise.privacy import protection
from tff_noise.privacy import rounding
from tff_noise.program import chosen_round
from tff_noise.program import run_directory

_LAST = 10


def read_rows(path: str) -> list[dict[str, str]]:
  """Returns the rows of a CSV file, as text by column."""
  with open(path, encoding='utf-8', newline='') as file:
    return list(csv.DictReader(file))


class Accuracy(NamedTuple):
  """Test accuracy of a run, over the rounds that were evaluated.

  Attributes:
    best: The highest, which is chosen on the test set.
    best_round: The first round that reached it.
    last10: Mean of the last ten evaluations.
    final: The last.
    evaluations: How many there were.
  """

  best: float
  best_round: int
  last10: float
  final: float
  evaluations: int


def accuracy(rounds: np.ndarray, values: np.ndarray) -> Accuracy | None:
  """Returns the accuracy of a run, or None where it was never measured.

  FedCorr and FedDPCont report the best test accuracy, ClipFL the mean over the last 10 rounds; the
  first selects on the test set, so both are given.

  Args:
    rounds: int `[rounds]`, their numbers.
    values: float `[rounds]`, test accuracy; nan where it was not measured.
  """
  known = np.flatnonzero(np.isfinite(values))
  if not len(known):
    return None
  best = known[np.argmax(values[known])]  # The first of equals.
  return Accuracy(
      best=float(values[best]),
      best_round=int(rounds[best]),
      last10=float(np.mean(values[known[-_LAST:]])),
      final=float(values[known[-1]]),
      evaluations=len(known),
  )


def summarize(run: run_directory.RunDirectory) -> dict[str, Any]:
  """Returns the accuracies, and what the run cost in rounds, bytes and seconds."""
  rows = read_rows(run.file('metrics.csv'))
  reached = accuracy(
      np.array([int(r['round']) for r in rows]),
      np.array([float(r['test_accuracy']) for r in rows]),
  )
  chosen = _chosen_by_validation(rows)
  seconds = [float(r['seconds']) for r in read_rows(run.file('timing.csv'))]
  return {
      'best_test_accuracy': reached.best,
      'best_round': reached.best_round,
      'last10_test_accuracy': reached.last10,
      'final_test_accuracy': reached.final,
      'evaluations': reached.evaluations,
      **chosen,
      'rounds': len(rows),
      'rejected_updates': _rejected(rows),
      'bytes_up': sum(int(r['bytes_up']) for r in rows),
      'bytes_down': sum(int(r['bytes_down']) for r in rows),
      'seconds_per_round': float(np.median(seconds)),
      'seconds': float(np.sum(seconds)),
  }


def _rejected(rows):
  """How many updates were not finite; None where clients do not say."""
  count = sum(float(r['rejected']) for r in rows)
  return int(count) if math.isfinite(count) else None


def _chosen_by_validation(rows: list[dict[str, str]]) -> dict[str, Any]:
  """Test accuracy in the round that is best by validation, see `chosen_round`."""
  column = chosen_round.column(rows[0])
  if column is None:
    return {}
  reached = accuracy(np.arange(len(rows)), np.array([float(r[column]) for r in rows]))
  if reached is None:  # Clients that withhold something were never there.
    return {}
  row = rows[reached.best_round]
  return {
      'validation_chosen_by': column,
      'validation_chosen_round': int(row['round']),
      'validation_chosen_test_accuracy': float(row['test_accuracy']),
      'last10_validation_accuracy': reached.last10,
  }


# What some runs have, which `text`, the report or a comparison would take it for.
_RESERVED = frozenset((
    'lines', 'status', 'planned_rounds', 'target_client_epsilon', 'own_models',
    'validation_chosen_round', 'validation_chosen_test_accuracy', 'validation_chosen_by',
    'last10_validation_accuracy', 'label_accuracy_before', 'label_accuracy_after', 'labels_changed',
    'labels_changed_to_the_true_one', 'labels_changed_that_were_right',
    'labels_changed_of_unknown_truth', 'wrong_label_auc', 'noisy_client_precision',
    'noisy_client_recall', 'noisy_client_f1', 'noisy_client_auc', 'noisy_client_rank_correlation',
    'extra_bytes_up',
))


def apart(own: Mapping[str, Any], taken: Collection[str]) -> dict[str, Any]:
  """Returns what a method says, by other names where these are taken or mean something else."""
  return {
      f'own_{name}' if name in taken or name in _RESERVED else name: value
      for name, value in own.items()
  }


def plain(value: Any) -> Any:
  """As JSON has it: a method's own report may hold NumPy's numbers, and some that are none."""
  if isinstance(value, Mapping):
    return {str(key): plain(one) for key, one in value.items()}
  if isinstance(value, np.ndarray | np.generic):
    value = value.tolist()
  if isinstance(value, list | tuple):
    return [plain(one) for one in value]
  return None if isinstance(value, float) and not math.isfinite(value) else value


def write_clients(
    path: str,
    scene: scene_lib.Scene,
    participations: np.ndarray,
    accuracy: np.ndarray,
    own_columns: Mapping[str, np.ndarray],
) -> None:
  """Writes `clients.csv`: one row a client, with the ground truth of its labels.

  Args:
    path: The file.
    scene: The ground truth.
    participations: int64 `[C]`, rounds each client took part in.
    accuracy: float `[C]`, see `quality.client_accuracy`.
    own_columns: What the method says of each client.
  """
  columns = {
      'client': range(len(scene.sizes)),
      **({'name': scene.client_names} if scene.client_names else {}),
      'examples': scene.sizes,
      'nominal_noise_rate': scene.nominal_rate,
      'realised_noise_rate': scene.realised_rate,
      'is_noisy': scene.is_noisy_client.astype(int),
      'participations': participations,
      'test_accuracy': accuracy,
  }
  # Truth values, too, are numbers there.
  own_columns = {name: np.asarray(values) * 1 for name, values in own_columns.items()}
  columns |= apart(own_columns, columns)
  file = io.StringIO(newline='')
  writer = csv.writer(file)
  writer.writerow(columns)
  writer.writerows(zip(*columns.values(), strict=True))
  run_directory.write_text(path, file.getvalue())


def units(scene: scene_lib.Scene) -> Mapping[protection.Unit, int]:
  """Returns how many there are of each unit of a guarantee."""
  # What clients withhold is asked about, too.
  examples = int(scene.sizes.sum()) + scene.withheld_size
  return {
      protection.Unit.LABEL: examples,
      protection.Unit.EXAMPLE: examples,
      protection.Unit.CLIENT: scene.num_clients,
  }


def describe(scene: scene_lib.Scene) -> dict[str, Any]:
  """Returns the ground truth of the scene in a few numbers."""
  return {
      'clients': len(scene.sizes),
      'noisy_clients': int(scene.is_noisy_client.sum()),
      'clean_client_rate': scene.clean_rate,
      'label_noise_rate': None if np.isnan(scene.noise_rate) else scene.noise_rate,
  }


def text(run: run_directory.RunDirectory) -> str:
  """Returns the closing summary of a finished run."""
  summary = run_directory.read_json(run.file('summary.json'))
  privacy = run_directory.read_json(run.file('privacy.json'))
  # Summaries of earlier versions do not say.
  evaluated = min(_LAST, summary.get('evaluations', _LAST))
  lines = [
      '',
      f'Run {run.name}: {summary["rounds"]} rounds, '
      f'{summary["seconds_per_round"]:.2f} s a round (median)',
      f'  test accuracy   best {summary["best_test_accuracy"]:.4f} (round '
      f'{summary["best_round"]}), last {evaluated} evaluations '
      f'{summary["last10_test_accuracy"]:.4f}, final {summary["final_test_accuracy"]:.4f}',
  ]
  if 'validation_chosen_round' in summary:
    lines.append(
        f'                  {summary["validation_chosen_test_accuracy"]:.4f} in round '
        f'{summary["validation_chosen_round"]}, the best on '
        + chosen_round.words(summary.get('validation_chosen_by'))
    )
  if 'own_models' in summary:
    own = summary['own_models']
    lines.append(
        f'                  {own["mean_test_accuracy"]:.4f} on average of the own models of '
        f'{own["clients"]} clients'
    )
  lines.append(_noise_line(summary))
  lines += summary.get('lines', []) + _correction_lines(summary)
  if summary.get('status') == 'ended early':
    lines.append(
        f'  early stopping  ended after round {summary["rounds"]} of {summary["planned_rounds"]}'
    )
  elif 'planned_rounds' in summary:
    lines.append(
        f'  budget          {summary["status"]}: round {summary["rounds"] + 1} of '
        f'{summary["planned_rounds"]} would pass epsilon {summary["target_client_epsilon"]:g} for '
        'one client'
    )
  if summary['rejected_updates']:
    lines.append(
        f'  WARNING         {summary["rejected_updates"]} updates were not finite and left out; '
        'a smaller --learning_rate may help'
    )
  lines += [f'  privacy         whole run: {total}' for total in _totals(privacy['totals'])]
  lines += [
      *textwrap.wrap(
          privacy['statement'], 96, initial_indent=' ' * 18, subsequent_indent=' ' * 18
      ),
      f'  written to      {run.path}',
  ]
  return '\n'.join(lines)


def _totals(totals):
  """What the whole run costs, for labels always, for larger units where it is finite."""
  label, *larger = totals
  if label['epsilon'] == 'inf':
    return [f'no finite epsilon for {label["unit"]}']
  return [
      f'epsilon {rounding.up(total["epsilon"])} for {total["unit"]}'
      + (f', delta {total["delta"]:g}' if total['delta'] else '')
      for total in (label, *larger)
      if total['epsilon'] != 'inf'
  ]


def _noise_line(summary):
  rate = summary['label_noise_rate']
  if rate is None:
    return '  label noise     unknown: nobody knows the true labels of the training data'
  clean = summary.get('clean_client_rate', 0)  # Earlier runs have none.
  above = f' (more than {clean:.0%} wrong)' if clean else ''
  return (
      f'  label noise     {rate:.1%} of the training labels are wrong, '
      f'{summary["noisy_clients"]} of {summary["clients"]} clients are noisy{above}'
  )


def _correction_lines(summary):
  """What became of the labels, for methods that correct them."""
  changed = summary.get('labels_changed')
  if not changed:
    return [] if changed is None else ['  labels          none was changed']
  if 'labels_changed_to_the_true_one' not in summary:
    return [f'  labels          {changed:,} changed; whether that was right, nobody knows']
  before, after = (1 - summary[f'label_accuracy_{when}'] for when in ('before', 'after'))
  unknown = summary.get('labels_changed_of_unknown_truth', 0)  # Earlier runs have none.
  lines = [
      f'  labels          {changed:,} changed, {summary["labels_changed_to_the_true_one"]:,} to '
      f'the true one; {summary["labels_changed_that_were_right"]:,} were right before'
      + (f'; of {unknown:,} nobody knows' if unknown else ''),
      f'                  wrong labels: {before:.1%} before, {after:.1%} after',
  ]
  if after > before:
    lines.append('  WARNING         the correction made the labels worse')
  return lines
