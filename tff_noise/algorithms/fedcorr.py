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

Where the paper contradicts itself: algorithm 1 compares estimates with a strict .1 (line 14) and
section 3.3 with `<= kappa`, which holds here; its lines 13 and 18 relabel without pi and theta, the
text with them; equation 7 has `>=` where the words say "exceeds", and equation 5 pulls towards the
model of the previous iteration in algorithm 1 and of the previous "round" in the text
(`fedcorr_params` names both readings of these two, and six differences of the public code).

Deviations: clients with at most k examples are not judged; a client's scores of several iterations
are centred before they are added, which differs where clients join late or drop out
(`score=cumulative` is the paper's sum); --temperature divides the logits that LID is computed from;
--base is the optimizer of the last stage alone, the others average.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tff_noise import rng
from tff_noise import types
from tff_noise.algorithms import algorithm
from tff_noise.algorithms import fedcorr_clients
from tff_noise.algorithms import fedcorr_params
from tff_noise.algorithms import summary_lines
from tff_noise.federated import task as task_lib
from tff_noise.selection import noisy_clients

# The public code fine-tunes for 500 rounds and trains for 450 more.
_FINETUNE_SHARE = 500 / 950


def build(task: task_lib.Task, params: fedcorr_params.FedCorrParams) -> algorithm.Algorithm:
  """Returns the three stages as one function of a round."""
  plan = plan_visits(task, params)
  stages = stage_lengths(task, params, len(plan))
  if plan:
    _check_neighbours(task, params)
    _check_guard(plan[-1].iteration + 1, task, params)
  c = fedcorr_clients.build(task, params, smallest=min((len(v.cohort) for v in plan), default=2))

  def round_(state, clients):
    match algorithm.stage_of(stages, state.round_num + 1):
      case 'preprocess':
        return preprocess(state, clients)
      case 'finetune':
        return finetune(state, clients)
      case 'usual':
        return clients.train(c.usual, state, clients.sample(c.usual, state)).state

  def preprocess(state, clients):  # Section 3.2
    visit = plan[state.round_num]
    if state.round_num == 0:
      state = anchored(state)
    noise = np.nan_to_num(state.records['noise'])[visit.cohort]
    output = clients.train(c.preprocess, state, visit.cohort, noise=noise.astype(np.float32))
    lid = state.records['lid'].copy()
    lid[visit.iteration, visit.cohort] = usable(output.reports['lid'], visit.cohort)
    state = output.state.record(lid=lid)
    return end_iteration(state, clients, visit.iteration) if visit.is_last else state

  def end_iteration(state, clients, iteration):
    lid = state.records['lid'][: iteration + 1]
    unjudged = ~np.isfinite(lid).any(axis=0)
    scores = noisy_clients.client_scores(lid, params.score)
    scores[unjudged] = np.nan  # Where they are summed, 0.
    separated, reliability = _evidence(state.records, lid, params)
    split = noisy_clients.Split(np.zeros(task.num_clients, bool), 0.0)
    if separated:  # By a mixture of two Gaussians over the clients' LID scores.
      split = noisy_clients.split(scores, noisy_clients.mixture_seed(task.seed, iteration))
    correcting = np.intersect1d(np.flatnonzero(split.noisy), clients.present)
    output = clients.run(c.correct, state, correcting)  # Equations 6 and 7, at each noisy client.
    noise = last_estimates(state.records, iteration, split.noisy)
    noise[unjudged] = np.nan  # They have not come yet, or hold too few examples.
    if len(correcting):
      noise[correcting] = output.reports['noise']
    history = {
        'noise_by_iteration': _with_row(state, 'noise_by_iteration', iteration, noise),
        'noisy_by_iteration': _with_row(state, 'noisy_by_iteration', iteration, split.noisy),
    }
    return anchored(
        state.record(
            noise=noise, noisy=split.noisy,
            split=np.array([separated, split.separation, reliability]), **history
        )
    )

  def finetune(state, clients):  # Section 3.3
    clean = clean_clients(state.records, params)
    state = clients.train(c.finetune, state, clients.sample(c.finetune, state, among=clean)).state
    if params.correction and state.round_num + 1 == stages['preprocess'] + stages['finetune']:
      relabelling = np.intersect1d(relabelled_clients(state.records, params), clients.present)
      clients.run(c.relabel_all, state, relabelling)
    return state

  def anchored(state):
    """Equation 5 pulls towards the model at the iteration's start."""
    return state.send(anchor=list(state.weights.trainable)) if 'anchor' in state.received else state

  def usable(lid, cohort):
    if not np.isfinite(lid).all():
      raise types.UsageError(
          f'the training of client {cohort[~np.isfinite(lid)][0]} diverged: its losses are not '
          'finite; use a smaller --learning_rate'
      )
    # With all others for neighbours LID tells how far a client's predictions spread, which is less
    # where labels are noisy: such clients are not judged. (The public code takes n - 1 of them.)
    return np.where(task.client_sizes[cohort] > params.lid_neighbours, lid, np.nan)

  asked = ((c.preprocess, c.correct) if plan else (), (c.relabel_all,) if params.correction else ())
  return algorithm.Algorithm(
      round_, algorithm.computations_of(*sum(asked, ()), c.finetune, c.usual), stages,
      _initial_records(plan, task.num_clients),
      times={
          c.preprocess.name: len(plan), c.correct.name: sum(visit.is_last for visit in plan),
          c.relabel_all.name: 1,
          # One computation where the last stage has no optimizer of its own.
          c.finetune.name: stages['finetune'] + (c.usual is c.finetune) * stages['usual'],
          **({} if c.usual is c.finetune else {c.usual.name: stages['usual']}),
      },
      # Who is taken for noisy may be one client.
      cohorts={
          c.preprocess.name: min((len(visit.cohort) for visit in plan), default=0),
          c.correct.name: 1, c.relabel_all.name: 1,
      },
      step_ends=tuple(i for i, visit in enumerate(plan, 1) if visit.is_last),
      report=algorithm.Report(
          columns=lambda state: {'noisy_clients': int(state.records['noisy'].sum())},
          summary=_summary,
          labels=fedcorr_clients.LABELS,
          noisy_clients=lambda records: records['noisy'],
          client_columns=lambda records: _client_columns(records, params),
          client_scores=('lid', 'lid_score'),
          lines=_lines,
      ),
  )


class Visit(NamedTuple):
  """A round of pre-processing.

  Attributes:
    iteration: 0 the first.
    cohort: int64, who takes part, ascending.
    is_last: Whether it ends the iteration.
  """

  iteration: int
  cohort: np.ndarray
  is_last: bool


def plan_visits(task: task_lib.Task, params: fedcorr_params.FedCorrParams) -> list[Visit]:
  """Returns the rounds of pre-processing.

  In each iteration everybody who is there at its start takes part once, in a random order, a few at
  a time, but for those who have left when it is their turn.
  """
  per_round, plan = max(1, round(params.fraction * task.num_clients)), []
  for iteration in range(task.stages.get('preprocess', params.iterations)):
    begun, order = len(plan), task.present(len(plan) + 1)
    order = rng.generator(task.seed, 'fedcorr order', iteration).permutation(order)
    for i in range(0, len(order), per_round):
      cohort = np.intersect1d(order[i : i + per_round], task.present(len(plan) + 1))
      if len(cohort):
        plan.append(Visit(iteration, cohort, False))
    if len(plan) > begun:
      plan[-1] = plan[-1]._replace(is_last=True)
  return plan


def stage_lengths(
    task: task_lib.Task, params: fedcorr_params.FedCorrParams, preprocess: int
) -> Mapping[str, int]:
  """Returns the rounds of each stage, `preprocess` those of the first.

  Raises:
    types.UsageError: If --rounds leaves nothing after pre-processing.
  """
  iterations = task.stages.get('preprocess', params.iterations)
  cost = math.ceil(iterations * task.num_clients / task.clients_per_round)
  left = task.rounds - cost
  finetune = task.stages.get('finetune', round(_FINETUNE_SHARE * left))
  usual = task.stages.get('usual', left - round(_FINETUNE_SHARE * left))
  if min(finetune, usual) < 0 or finetune + usual == 0:
    fewer = 'of --stages=preprocess' if 'preprocess' in task.stages else '--param=iterations'
    raise types.UsageError(
        f'--rounds={task.rounds} leaves nothing after {iterations} iterations over '
        f'{task.num_clients} clients, which cost as much as {cost} rounds: use more '
        f'--rounds, fewer {fewer}, or set --stages'
    )
  return {'preprocess': preprocess, 'finetune': finetune, 'usual': usual}


def _evidence(
    records: algorithm.Records, lid: np.ndarray, params: fedcorr_params.FedCorrParams
) -> tuple[bool, float]:
  """Returns whether there are noisy clients, and the reliability of LID that says so.

  Without the guard there always are, and the reliability is nan. With it, what iterations on the
  given labels have told stays: a correction changes LID, and takes back nothing.
  """
  separated, _, reliability = records['split']
  if separated or not params.split_guard:
    return True, reliability
  agreement = noisy_clients.agreement(lid)
  return agreement.holds, agreement.reliability


def last_estimates(
    records: algorithm.Records, iteration: int, noisy: np.ndarray
) -> np.ndarray:
  """Returns float64 `[C]`, what is known of clients' noise before noisy ones estimate it anew.

  0 of those who are not taken for noisy, bool `[C]`, now; nan of who never estimated any: some have
  left by then.
  """
  last = np.full(len(noisy), np.nan)
  for taken, noise in zip(
      records['noisy_by_iteration'][:iteration], records['noise_by_iteration'], strict=False
  ):
    last = np.where(taken & np.isfinite(noise), noise, last)
  return np.where(noisy, last, 0.0)


def clean_clients(
    records: algorithm.Records, params: fedcorr_params.FedCorrParams
) -> np.ndarray:
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


def relabelled_clients(
    records: algorithm.Records, params: fedcorr_params.FedCorrParams
) -> np.ndarray:
  """Returns int64, the clients that relabel everything after fine-tuning."""
  if params.follows('relabelled_clients') == 'last_split':
    return np.flatnonzero(records['noisy'])
  # Clients that nobody has judged, whose noise is nan, keep their labels.
  return np.flatnonzero(records['noise'] > params.clean_threshold)


def _with_row(state: algorithm.State, name: str, iteration: int, row: np.ndarray) -> np.ndarray:
  """Returns a record of all iterations with the row of this one."""
  rows = state.records[name].copy()
  rows[iteration] = row
  return rows


def _check_neighbours(task, params):
  if params.lid_neighbours >= task.client_sizes.max():
    raise types.UsageError(
        f'--param=lid_neighbours={params.lid_neighbours} asks for more neighbours than the largest '
        f'client has, which holds {task.client_sizes.max()} examples: use a smaller number'
    )


def _check_guard(iterations, task, params):
  if params.split_guard and iterations < 2:
    more = '--stages=preprocess:2,...' if 'preprocess' in task.stages else '--param=iterations=2'
    raise types.UsageError(
        '--param=split_guard=true asks whether iterations agree, and there is one: use '
        f'{more} or more, or leave it out'
    )


def _initial_records(plan, num_clients):
  iterations = plan[-1].iteration + 1 if plan else 1
  return {
      'lid': np.full((iterations, num_clients), np.nan),
      'noise': np.zeros(num_clients),
      'noisy': np.zeros(num_clients, bool),
      'split': np.array([0.0, 0.0, np.nan]),  # Separated, separation, reliability.
      'noise_by_iteration': np.full((iterations, num_clients), np.nan),
      'noisy_by_iteration': np.zeros((iterations, num_clients), bool),
  }


def _client_columns(records: algorithm.Records, params: Any) -> Mapping[str, np.ndarray]:
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
  separated, separation, reliability = records['split'].tolist()
  known = records['noise'][np.isfinite(records['noise'])]
  return {
      'fedcorr': {
          # How often the server judged the clients: 0 without pre-processing.
          'judgements': int(np.isfinite(records['lid']).any(axis=1).sum()),
          'noisy_clients': int(records['noisy'].sum()),
          # Over those of whom there is one.
          'mean_estimated_noise': float(known.mean()) if len(known) else 0.0,
          'separated': bool(separated),
          'separation': separation,
          'reliability': None if np.isnan(reliability) else reliability,
      }
  }


def _lines(summary):
  found = summary['fedcorr']
  if not found['judgements']:
    return ['  noisy clients   not looked for: no iteration of pre-processing']
  if not found['separated']:
    why = (
        'iterations do not agree whose LID is larger' if found['reliability'] is not None
        else 'too few clients have a LID to tell'
    )
    return [f'  noisy clients   nobody was taken for noisy: {why}']
  return [summary_lines.noisy_clients(summary, found['noisy_clients'], 'taken for noisy')]
