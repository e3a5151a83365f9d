"""FedCorr: multi-stage label correction (Xu et al., CVPR 2022).

1. Pre-processing, T1 iterations (section 3.2). Every client takes part once in each, few at a time
   (one by default, the paper's fraction 1/N): local training on mixup batches with a proximal term
   scaled by the client's estimated noise (eq. 5), then the LID score of its predictions (eq. 2) and
   the loss of each example. At the end of an iteration the server splits the clients by their LID
   scores; each noisy one splits its examples by their losses, which estimates its noise level, and
   relabels the most suspicious by the global model where that is confident (eq. 6 and 7).
2. Fine-tuning on the clients with an estimated noise of at most kappa; then the others relabel all
   examples of which the global model is confident (section 3.3).
3. Usual training of all clients on the corrected labels (section 3.4).

Labels and losses never leave a client. LID scores and noise estimates do, and the server sees whose
they are; with one client a round it sees that client's model, too.
"""

from __future__ import annotations

import collections
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tff_noise import rng
from tff_noise import types
from tff_noise.methods import fedcorr_params
from tff_noise.methods import method
from tff_noise.selection import noisy_clients

if TYPE_CHECKING:
  from tff_noise.methods import fedcorr_clients

STAGES = ('preprocess', 'finetune', 'usual')

# What noisy clients do between rounds.
_CORRECTION = 'correction'
_RELABELLING = 'relabelling'

# The public code fine-tunes for 500 rounds and trains for 450 more.
_FINETUNE_SHARE = 500 / 950

class _Lengths(NamedTuple):
  """Iterations of pre-processing, rounds of the other stages."""

  preprocess: int
  finetune: int
  usual: int


def stage_lengths(task: method.Task, params: fedcorr_params.FedCorrParams) -> _Lengths:
  """Returns the length of each stage.

  Raises:
    types.UsageError: If --rounds leaves nothing after pre-processing.
  """
  iterations = task.stages.get('preprocess', params.iterations)
  cost = math.ceil(iterations * len(task.client_sizes) / task.clients_per_round)
  left = task.rounds - cost
  finetune = task.stages.get('finetune', round(_FINETUNE_SHARE * left))
  usual = task.stages.get('usual', left - round(_FINETUNE_SHARE * left))
  if min(finetune, usual) < 0 or finetune + usual == 0:
    raise types.UsageError(
        f'--rounds={task.rounds} leaves nothing after {iterations} iterations over '
        f'{len(task.client_sizes)} clients, which cost as much as {cost} rounds: use more '
        '--rounds, fewer --param=iterations, or set --stages'
    )
  return _Lengths(iterations, finetune, usual)


def plan_iterations(
    task: method.Task, iterations: int, per_round: int
) -> tuple[list[np.ndarray], tuple[int, ...]]:
  """Returns the cohort of each round of pre-processing, and the rounds that end an iteration.

  In each iteration everybody who is there at its start takes part once, in a random order.
  """
  cohorts, ends = [], []
  for iteration in range(iterations):
    order = task.availability.present(len(cohorts) + 1)
    order = rng.generator(task.seed, 'fedcorr order', iteration).permutation(order)
    cohorts += [
        np.sort(order[i : i + per_round]) for i in range(0, len(order), per_round)
    ]
    ends.append(len(cohorts))
  return cohorts, tuple(ends)


def initial_local(examples: types.ClientExamples) -> Any:
  """Returns what a client keeps before the first round: labels, losses, estimated noise."""
  return collections.OrderedDict(
      labels=examples.y.astype(np.int32),
      losses=np.zeros(len(examples.y), np.float32),
      noise=np.float32(0),
  )


def _flat(weights: Any) -> np.ndarray:
  return np.concatenate([np.asarray(w, np.float32).ravel() for w in weights.trainable])


def _run_pass(name, part, clients, progress, chosen):
  """Runs a pass over the chosen clients; returns the states of all and the reports in order."""
  from tff_noise.federated import per_client
  from tff_noise.federated import uplink

  local = list(progress.local)
  if not len(chosen):
    return tuple(local), {}
  clients.announce(name, chosen)
  output = part.run(
      progress.server.global_model_weights,
      [clients.datasets[i] for i in chosen],
      [local[i] for i in chosen],
  )
  for i, kept in uplink.by_client(output['local'], chosen).items():
    local[i] = kept.own
  reports = per_client.in_order(output['reports'], chosen) if part.fields else {}
  return tuple(local), reports


def mixture_seed(seed: int, iteration: int) -> int:
  """Returns the seed of the mixture over clients at the end of an iteration, 0 the first."""
  return rng.integer(seed, 'fedcorr mixture', iteration)


class _Iterations(NamedTuple):
  """The hooks of pre-processing.

  Attributes:
    task: The task.
    params: FedCorr's own parameters.
    parts: The computations.
    ends: The rounds that end an iteration.
  """

  task: method.Task
  params: fedcorr_params.FedCorrParams
  parts: fedcorr_clients.Parts
  ends: tuple[int, ...]

  def enter(self, clients, progress):
    """The first iteration's proximal terms pull towards the initial model."""
    del clients  # Unused.
    return self._with_anchor(progress)

  def after(self, clients, progress, reports, cohort):
    """Keeps the LID scores; at the end of an iteration, judges and corrects."""
    if not np.isfinite(reports['lid']).all():
      raise types.UsageError(
          f'the training of client {cohort[~np.isfinite(reports["lid"])][0]} diverged: its losses '
          'are not finite; use a smaller --learning_rate'
      )
    iteration = int(np.searchsorted(self.ends, progress.round_num))
    lid = progress.records['lid'].copy()
    # From fewer than k neighbours LID is too large: such clients would be a component of their own.
    enough = self.task.client_sizes[cohort] > self.params.lid_neighbours
    lid[iteration, cohort] = np.where(enough, reports['lid'], np.nan)
    progress = progress._replace(records={**progress.records, 'lid': lid})
    if progress.round_num not in self.ends:
      return progress
    return self._with_anchor(self._judge(clients, progress, iteration))

  def _judge(self, clients, progress, iteration):
    lid = progress.records['lid'][: iteration + 1]
    unjudged = ~np.isfinite(lid).any(axis=0)
    scores = noisy_clients.client_scores(lid, self.params.score)
    scores[unjudged] = np.nan  # Where they are summed, 0.
    split = noisy_clients.split(
        scores,
        guard=self.params.split_guard,
        seed=mixture_seed(self.task.seed, iteration),
        reliability=noisy_clients.score_reliability(lid),
    )
    present = np.zeros(len(split.noisy), bool)
    present[self.task.availability.present(progress.round_num)] = True
    judged = np.flatnonzero(split.noisy & present)
    local, reports = _run_pass(_CORRECTION, self.parts.correct, clients, progress, judged)
    noise = np.where(split.noisy, progress.records['noise'], 0.0)
    noise[unjudged] = np.nan  # They have not come yet, or hold too few examples.
    if len(judged):
      noise[judged] = reports['noise']
    # What a client of the clean part hears from the server: its noise is taken for 0.
    local = [
        own if is_noisy else collections.OrderedDict(own, noise=np.float32(0))
        for own, is_noisy in zip(local, split.noisy, strict=True)
    ]
    records = {
        **progress.records,
        'noise': noise,
        'noisy': split.noisy,
        'split': np.array(split[1:], np.float64),
        **_with_rows(
            progress.records, iteration, noise_by_iteration=noise, noisy_by_iteration=split.noisy
        ),
    }
    return progress._replace(local=tuple(local), records=records)

  def _with_anchor(self, progress):
    process = self.parts.preprocess.process
    hparams = process.get_hparams(progress.server)
    if 'anchor' not in hparams:
      return progress
    hparams = collections.OrderedDict(anchor=_flat(progress.server.global_model_weights))
    return progress._replace(server=process.set_hparams(progress.server, hparams))


def clean_clients(records: method.Records, params: fedcorr_params.FedCorrParams) -> np.ndarray:
  """Returns int64, the clients whose noise is estimated to be at most kappa (section 3.3).

  Raises:
    types.UsageError: If there is none.
  """
  clean = np.flatnonzero(records['noise'] <= params.clean_threshold)
  if not len(clean):
    raise types.UsageError(
        f'no client has an estimated noise of at most {params.clean_threshold}: nobody is left to '
        'fine-tune on; raise --param=clean_threshold, or skip the stage with --stages=finetune:0'
    )
  return clean


def _build(task: method.Task, params: fedcorr_params.FedCorrParams) -> method.Schedule:
  from tff_noise.federated import uplink
  from tff_noise.methods import fedcorr_clients

  lengths = stage_lengths(task, params)
  if lengths.preprocess:
    _check_neighbours(task, params)
  parts = fedcorr_clients.build(task, params)
  num_clients = len(task.client_sizes)
  per_round = max(1, round(params.fraction * num_clients))
  cohorts, ends = plan_iterations(task, lengths.preprocess, per_round)
  iterations = _Iterations(task, params, parts, ends)
  smallest = min(map(len, cohorts), default=per_round)  # The last one of an iteration.
  preprocess_fields = _fields_of_cohort(parts.preprocess.fields, smallest)

  chooser = method.build_chooser(task)

  def starting(part):
    from tff_noise.federated import compose

    return lambda _, progress: progress._replace(
        server=compose.hand_over(part.process, progress.server)
    )

  def after_finetuning(clients, progress, reports, cohort):
    del reports, cohort  # Unused.
    if not params.correction or progress.round_num < len(cohorts) + lengths.finetune:
      return progress
    present = task.availability.present(progress.round_num)
    chosen = np.intersect1d(relabelled_clients(progress.records, params), present)
    local, _ = _run_pass(_RELABELLING, parts.relabel_all, clients, progress, chosen)
    return progress._replace(local=local)

  def select_clean(round_num, records):
    present = task.availability.present(round_num)
    # The optimizer of the last stage may choose clients in another way.
    fed_avg = task._replace(optimizer=None)
    return method.draw_cohort(
        fed_avg, round_num, np.intersect1d(clean_clients(records, params), present)
    )

  common = {'initial_local': initial_local, 'columns': _columns}
  stages = (
      method.Stage(
          'preprocess', len(cohorts), parts.preprocess._replace(fields=preprocess_fields),
          select=lambda round_num, _: cohorts[round_num - 1],
          step_ends=ends, enter=iterations.enter, after=iterations.after,
          records=_initial_records(lengths.preprocess, num_clients), **common,
      ),
      method.Stage(
          'finetune', lengths.finetune, parts.finetune, select_clean,
          enter=starting(parts.finetune), after=after_finetuning, **common
      ),
      method.Stage(
          'usual', lengths.usual, parts.usual, method.uniform_selection(task),
          enter=starting(parts.usual), chooser=chooser, **common,
      ),
  )
  passes = {_CORRECTION: parts.correct} if cohorts else {}
  if params.correction:
    passes[_RELABELLING] = parts.relabel_all
  weights_bytes = uplink.num_bytes(task.model.weights_type)
  return method.Schedule(
      stages=stages,
      exchanges={
          name: method.Exchange(part.run, part.fields, weights_bytes)
          for name, part in passes.items()
      },
      summary=_summary,
      labels=lambda local: np.asarray(local['labels']),
      noisy_clients=lambda records: records['noisy'],
      client_columns=lambda records: _client_columns(records, params),
      client_scores=('lid', 'lid_score'),
  )


def _check_neighbours(task, params):
  if params.lid_neighbours >= task.client_sizes.max():
    raise types.UsageError(
        f'--param=lid_neighbours={params.lid_neighbours} asks for more neighbours than the largest '
        f'client has, which holds {task.client_sizes.max()} examples: use a smaller number'
    )


def _fields_of_cohort(fields, smallest):
  """In a round of one client, the sum over the round is that client's own value."""
  from tff_noise.federated import uplink

  if smallest > 1:
    return fields
  return tuple(
      f._replace(
          disclosure=uplink.Disclosure.PER_CLIENT,
          reason=f.reason + '; in a round of one client the sum is its own (--param=fraction)',
      )
      for f in fields
  )


def relabelled_clients(records: method.Records, params: fedcorr_params.FedCorrParams) -> np.ndarray:
  """Returns int64, the clients that relabel everything after fine-tuning."""
  if params.follows('relabelled_clients') == 'last_split':
    return np.flatnonzero(records['noisy'])
  # Not `>`: clients that nobody has judged are not known to be clean.
  return np.flatnonzero(~(records['noise'] <= params.clean_threshold))


def _initial_records(iterations, num_clients):
  return {
      'lid': np.full((max(iterations, 1), num_clients), np.nan),
      'noise': np.zeros(num_clients),
      'noisy': np.zeros(num_clients, bool),
      'split': np.zeros(4),
      'noise_by_iteration': np.full((max(iterations, 1), num_clients), np.nan),
      'noisy_by_iteration': np.zeros((max(iterations, 1), num_clients), bool),
  }


def _with_rows(records, iteration, **rows):
  """The named records of all iterations, with the rows of this one."""
  changed = {name: records[name].copy() for name in rows}
  for name, row in rows.items():
    changed[name][iteration] = row
  return changed


def _columns(round_num, records):
  del round_num  # Unused.
  return {'noisy_clients': int(records['noisy'].sum())}


def _client_columns(records, params):
  judged = np.isfinite(records['lid']).any(axis=0)
  score = noisy_clients.client_scores(records['lid'], params.score)
  columns = {
      'lid': noisy_clients.client_scores(records['lid'], 'mean'),
      'lid_score': np.where(judged, score, np.nan),  # Where they are summed, 0.
      'estimated_noise_rate': records['noise'],
      'taken_for_noisy': records['noisy'].astype(int),
  }
  # Each iteration by itself: what the report draws. Without pre-processing there is none.
  for i in np.flatnonzero(np.isfinite(records['lid']).any(axis=1)):
    columns |= {
        f'lid_{i + 1}': records['lid'][i],
        f'estimated_noise_rate_{i + 1}': records['noise_by_iteration'][i],
        f'taken_for_noisy_{i + 1}': records['noisy_by_iteration'][i].astype(int),
    }
  return columns


def _summary(records):
  separated, separation, evidence, reliability = records['split'].tolist()
  return {
      'fedcorr': {
          # How often the server judged the clients: 0 without pre-processing.
          'judgements': int(np.isfinite(records['lid']).any(axis=1).sum()),
          'noisy_clients': int(records['noisy'].sum()),
          'mean_estimated_noise': float(np.nan_to_num(records['noise']).mean()),
          'separated': bool(separated),
          'separation': separation,
          'evidence': evidence,
          'reliability': None if np.isnan(reliability) else reliability,
      }
  }


METHOD = method.Method(
    name='fedcorr',
    title='finds noisy clients by LID, corrects labels in three stages',
    paper='Xu et al., FedCorr: Multi-Stage Federated Learning for Label Noise Correction, '
    'CVPR 2022',
    params=fedcorr_params.FedCorrParams,
    build=_build,
    stages=STAGES,
    per_client='the LID score and the estimated noise of each client, and in pre-processing with '
    'one client a round its model',
    takes_base=True,
    corrects_labels=True,
)
