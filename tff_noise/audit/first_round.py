"""The first measured round of a run, computed again by this code and compared with its metrics.

Other labels, another step size or other noise lead to another first model. Its numbers are in no
chain, and are not what ties a run to the code that is audited: `last_rounds` is.
"""

import math

import numpy as np

from tff_noise import types
from tff_noise.audit import computed_again
from tff_noise.audit import finding
from tff_noise.data import scene as scene_lib
from tff_noise.federated import evaluation
from tff_noise.program import chosen_round
from tff_noise.program import clients as clients_lib
from tff_noise.program import run_config
from tff_noise.program import task as task_lib
from tff_noise.program import training
from tff_noise.program import training_run
from tff_noise.report import runs

_ROUND = 'metrics.csv: the first measured round, computed again by this code, comes to the same'
# Columns that data decide; nan where nothing was measured.
_MEASURED = (
    'train_loss', 'test_accuracy', chosen_round.BY_SERVER, chosen_round.BY_CLIENTS,
)
_ALSO = ('test_loss', 'validation_loss', 'rejected')
# Another machine sums in another order. Relative, and absolute of accuracies and of losses.
_RELATIVE, _OF_ACCURACY, _OF_LOSS = 0.01, 0.01, 0.001


def check(
    run: runs.Run,
    config: run_config.RunConfig,
    prepared: task_lib.Prepared,
    dataset: types.Dataset,
    scene: scene_lib.Scene,
    same_code: bool,
) -> finding.Finding:
  """Computes all rounds until the first that was measured again, with the clients' data.

  Args:
    run: The run.
    config: Its configuration.
    prepared: Its method.
    dataset: What the configuration names.
    scene: The run's.
    same_code: Whether this code made it; noise of other code is other noise.
  """
  if not len(run.rounds):
    return finding.no_evidence(_ROUND, 'no round is done')
  texts = [n for n in (*_MEASURED, *_ALSO) if n in run.metrics and run.metrics[n].dtype.kind != 'f']
  if texts:
    return finding.failed(_ROUND, f'{", ".join(texts)}: a text in a column of numbers')
  known = np.array([np.isfinite(run.metrics[n]) for n in _MEASURED if n in run.metrics])
  if not known.any():
    return finding.no_evidence(_ROUND, 'nothing was measured')
  first = int(known.any(axis=0).argmax())
  row = _row(config, prepared, dataset, scene, first + 1)
  # What nobody may know is not known, and what is measured is there.
  other = [
      name for name, value in row.items()
      if name not in run.metrics or np.isfinite(value) != np.isfinite(run.metrics[name][first])
  ]
  if other:
    why = 'missing, or a number that nobody could know'
    return finding.failed(_ROUND, f'{", ".join(other)}: {why}')
  compared = {name: value for name, value in row.items() if np.isfinite(value)}
  for name, value in compared.items():
    then = float(run.metrics[name][first])
    absolute = _OF_ACCURACY if name.endswith('accuracy') else _OF_LOSS
    if not math.isclose(then, value, rel_tol=_RELATIVE, abs_tol=absolute):
      # Not what it is: who made the file would write that.
      found = finding.failed if same_code else finding.no_evidence
      return found(_ROUND, f'{name} was {then:.6g}, and is another')
  # No numbers: with the clients' data, seeds could be tried until one gives them.
  return finding.passed(_ROUND, f'{", ".join(compared)}: equal to {_RELATIVE:.0%}')


def _row(config, prepared, dataset, scene, rounds):
  """What the last of so many rows of `metrics.csv` has of numbers that data decide."""
  algorithm, task = prepared.algorithm, prepared.task
  clients, state = computed_again.begin(config, prepared)
  state = computed_again.go_on(algorithm, clients, state, rounds)
  row = {'train_loss': clients.traffic.train_loss, 'rejected': clients.traffic.rejected}
  columns = algorithm.report.columns(state)
  row |= {name: columns[name] for name in _MEASURED if name in columns}
  own = clients_lib.by_client(clients.own, task.num_clients)
  is_evaluated = training.is_evaluated(algorithm, rounds, config.eval_every)
  models = algorithm.evaluated(state, own) if is_evaluated else []
  for name, evaluate in training_run.evaluations_of(task.model, dataset, scene).items():
    found = evaluate(models) if is_evaluated else dict.fromkeys(evaluation.MEASURES, np.nan)
    row |= {f'{name}_{measure}': found[measure] for measure in evaluation.MEASURES}
  return {k: float(v) for k, v in row.items()}
