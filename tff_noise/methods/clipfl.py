"""ClipFL: prune the clients whose models are seldom among the best (Morafah et al. 2024).

Three phases (section 4):

1. identify: the server judges the local model of each client of the round, averages the best m and
   counts one more candidacy for each of the others.
2. prune, once: the share p of all clients with the highest scores is left out from here on.
3. train: the federated optimizer on the rest, of whom the same share takes part in a round.

The paper judges by accuracy on a clean set at the server. Without one, `judge=agreement` asks how
far the models of a round agree on images without labels, `judge=lid` takes FedCorr's LID. The
server sees the models of single clients in the first phase whichever judges.

A pruned client's optimizer state is dropped, and the server's optimizer goes on without what it
contributed; the server's state otherwise survives the change of phase.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from tff_noise import params as params_lib
from tff_noise import rng
from tff_noise import types
from tff_noise.methods import method
from tff_noise.methods import plain
from tff_noise.selection import candidacy

if TYPE_CHECKING:
  from tff_noise.federated import stacked

_JUDGES = ('validation', 'agreement', 'lid')
# Of the paper's 80 and 40 rounds.
_IDENTIFY_SHARE = 2 / 3
# Images that are drawn where the server holds none.
_NUM_GENERATED = 500


@dataclasses.dataclass(frozen=True)
class ClipFLParams:
  """ClipFL's own parameters.

  Attributes:
    keep: m, how many models of a round are averaged in the first phase, at most the cohort's size.
    prune: p, the share of clients that is pruned, in [0, 1).
    score: 'count', the paper's number of candidacies, or 'rate', candidacies per participation.
    judge: 'validation', 'agreement' or 'lid'.
    lid_neighbours: k of the LID score, at least 2.
  """

  keep: int = 5
  prune: float = 0.5
  score: str = 'count'
  judge: str = 'validation'
  lid_neighbours: int = 20

  def __post_init__(self):
    params_lib.require_positive(self, 'keep')
    params_lib.require_share(self, 'prune')
    params_lib.require_one_of(self, 'score', candidacy.SCORES)
    params_lib.require_one_of(self, 'judge', _JUDGES)
    if self.lid_neighbours < 2:
      raise ValueError(f'lid_neighbours must be at least 2, got {self.lid_neighbours}')


def _check(task, params):
  """Raises `UsageError` where parameters do not fit the task."""
  if params.keep > task.clients_per_round:
    raise types.UsageError(
        f'--param=keep={params.keep} is more than --clients_per_round={task.clients_per_round}: of '
        'a round\'s clients so many cannot be kept'
    )
  if params.judge == 'validation' and task.validation is None:
    raise types.UsageError(
        'clipfl judges models on a clean set at the server: give it one by --validation_fraction '
        'or --validation_dir, or judge without by --param=judge=agreement or lid'
    )
  if params.judge == 'lid' and task.client_sizes.min() <= params.lid_neighbours:
    raise types.UsageError(
        f'--param=lid_neighbours={params.lid_neighbours} must be below the examples of every '
        f'client, of whom one has {task.client_sizes.min()}'
    )
  if task.optimizer is not None and task.optimizer.client_model is None:
    raise types.UsageError(
        '--base: the server has to judge whole models, of which this optimizer\'s clients send '
        'only a part; use another one'
    )


def _stage_lengths(task, params):
  identify = task.stages.get('identify', round(_IDENTIFY_SHARE * task.rounds))
  train = task.stages.get('train', task.rounds - round(_IDENTIFY_SHARE * task.rounds))
  if identify + train == 0:
    raise types.UsageError('--stages leaves no round to run')
  if not identify and params.prune:
    raise types.UsageError(
        'without a round of the stage identify nobody knows whom to prune: give it some by '
        '--stages, or prune nobody by --param=prune=0'
    )
  return identify, train


def _judge(task: method.Task, params: ClipFLParams) -> stacked.Judge:
  from tff_noise.data import client_data
  from tff_noise.federated import judges

  if params.judge == 'validation':
    return judges.validation(task.model, params.keep)
  if params.judge == 'agreement':
    judge = judges.agreement(task.model, params.keep)
    if task.validation is not None:
      return judge
    # Generated images are pixels, also where clients hold image files.
    return judge._replace(
        held_type=client_data.client_data_type(np.uint8, task.model.input_shape)
    )
  return judges.reported('lid', params.keep)


def _work(task, params):
  if params.judge != 'lid':
    return plain.cross_entropy_work(task.training)
  from tff_noise.federated import lid_report

  return plain.cross_entropy_work(task.training, **lid_report.reporting(params.lid_neighbours))


def _held(task: method.Task, params: ClipFLParams) -> Any:
  """What the server judges by, as TFF takes it."""
  from tff_noise.data import client_data

  if params.judge == 'lid':
    return None
  if task.validation is not None:
    if task.validation.x.nbytes > types.MAX_PIXEL_BYTES:
      raise types.UsageError(
          f'the server\'s {len(task.validation.y)} clean images have '
          f'{task.validation.x.nbytes / 2**20:.0f} MiB, and TFF carries at most 100 MiB: use a '
          'smaller --validation_fraction, or images as files (--dataset=image_folder)'
      )
    return client_data.client_dataset(task.validation.x, task.validation.y, 0)
  x = generated_images(task.model.input_shape, task.seed)
  return client_data.client_dataset(x, np.zeros(len(x), np.int32), 0)


def generated_images(shape: tuple[int, ...], seed: int) -> np.ndarray:
  """Returns uint8 `[n, h, w, c]`, images of random coloured clouds: what a server without data has.

  Args:
    shape: `(h, w, c)`.
    seed: The experiment's seed.
  """
  from scipy import ndimage

  draw = rng.generator(seed, 'generated images')
  smooth = ndimage.gaussian_filter(
      draw.standard_normal((_NUM_GENERATED, *shape), np.float32), (0, shape[0] / 8, shape[1] / 8, 0)
  )
  low, high = (f(smooth, axis=(1, 2, 3), keepdims=True) for f in (np.min, np.max))
  return np.round(255 * (smooth - low) / (high - low)).astype(np.uint8)


def _go_on(task, process, progress, pruned):
  """The state in which the rest goes on: without what pruned clients keep or have contributed."""
  from tff_noise.federated import compose

  state = compose.hand_over(process.process, progress.server, keep_optimizer=True)
  local = tuple(
      process.optimizer.client.initial_state if pruned[i] else own
      for i, own in enumerate(progress.local_optimizer)
  )
  if task.optimizer is not None and task.optimizer.restrict is not None:
    rest = np.flatnonzero(~pruned)
    optimizer_state = task.optimizer.restrict(
        state.finalizer, [local[i] for i in rest], task.client_sizes[rest]
    )
    state = compose.replace_optimizer_state(state, optimizer_state)
  return progress._replace(server=state, local_optimizer=local)


def _build(task: method.Task, params: ClipFLParams) -> method.Schedule:
  _check(task, params)
  identify, train = _stage_lengths(task, params)
  num_clients = len(task.client_sizes)
  judged = task.build_process(_work(task, params), judge=_judge(task, params))
  process = task.build_process(plain.cross_entropy_work(task.training))

  def after(clients, progress, reports, cohort):
    del clients  # Unused.
    candidacies, participations = (
        progress.records[name].copy() for name in ('candidacies', 'participations')
    )
    participations[cohort] += 1
    candidacies[cohort] += ~reports['kept']
    records = {
        **progress.records, 'candidacies': candidacies, 'participations': participations
    }
    return progress._replace(records=records)

  def enter_training(clients, progress):
    del clients  # Unused.
    pruned = candidacy.prune(_scores(progress.records, params), params.prune, task.seed)
    progress = progress._replace(records={**progress.records, 'pruned': pruned})
    return _go_on(task, process, progress, pruned)

  def size(records):
    # The share of all clients that takes part in a round is that of those that are left, too.
    share = task.clients_per_round / num_clients
    return max(1, int(share * (~records['pruned']).sum() + 1e-9))

  def select(round_num, records):
    present = task.availability.present(round_num)
    candidates = present[~records['pruned'][present]]
    return method.draw_cohort(task, round_num, candidates, size(records))

  chooser = method.build_chooser(task, size)
  common = {
      'columns': lambda _, records: {'pruned_clients': int(records['pruned'].sum())},
      'chooser': chooser,
  }
  stages = (
      method.Stage(
          'identify', identify, judged, method.uniform_selection(task), after=after,
          records={
              'candidacies': np.zeros(num_clients, np.int64),
              'participations': np.zeros(num_clients, np.int64),
              'pruned': np.zeros(num_clients, bool),
          },
          held=_held(task, params), **common,
      ),
      method.Stage('train', train, process, select, enter=enter_training, **common),
  )
  return method.Schedule(
      stages=stages,
      summary=lambda records: {'clipfl': {'pruned_clients': int(records['pruned'].sum())}},
      noisy_clients=lambda records: records['pruned'],
      client_columns=lambda records: {
          'candidacies': records['candidacies'],
          'candidacy_score': _scores(records, params),
          'taken_for_noisy': records['pruned'].astype(int),
      },
      client_scores=('candidacy_score',),
  )


def _scores(records, params):
  return candidacy.scores(records['candidacies'], records['participations'], params.score)


METHOD = method.Method(
    name='clipfl',
    title='prune the clients whose models are seldom among the best',
    paper='Morafah et al., 2024',
    params=ClipFLParams,
    build=_build,
    stages=('identify', 'train'),
    per_client="each client's model, which it compares, and with judge=lid its LID score",
    takes_base=True,
    compares_models=True,
)
