"""ClipFL: prune the clients whose models are seldom among the best (Morafah et al. 2024).

Three phases (section 4):

1. identify: the server compares the local models of the round's clients, averages the best m and
   counts one more candidacy for each of the others.
2. prune, once: the share p of all clients with the highest scores is left out from here on; who
   left before it (--arrivals) is none of them.
3. train: the federated optimizer on the rest, of whom the same share takes part in a round.

The paper compares accuracies on a clean set at the server. Without one, `selector=agreement` asks
how far the models of a round agree on images without labels, `selector=lid` takes FedCorr's LID.
The server sees the models of single clients in the first phase whichever it is.

Without --stages two thirds of --rounds are of the first phase and a third of the last; one that is
named there leaves the other as it is, so that the run has another number of rounds.

Of equal scores at the cut it is drawn who is left out; the paper does not say.

A pruned client drops what it keeps for the optimizer. Where the server has the mean of that over
the clients, it asks those that go on for theirs (one sum); its state otherwise survives the change
of phase.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import ndimage

from tff_noise import rng
from tff_noise import types
from tff_noise.algorithms import algorithm
from tff_noise.algorithms import parameters
from tff_noise.algorithms import plain
from tff_noise.algorithms import summary_lines
from tff_noise.clients import lid_report
from tff_noise.clients import program
from tff_noise.data import client_data
from tff_noise.federated import computation
from tff_noise.federated import selectors
from tff_noise.federated import stacked
from tff_noise.federated import task as task_lib
from tff_noise.selection import candidacy

# Of the paper's 80 and 40 rounds.
_IDENTIFY_SHARE = 2 / 3
# Images that are drawn where the server holds none.
_NUM_GENERATED = 500


def build(task: task_lib.Task, params: parameters.ClipFLParams) -> algorithm.Algorithm:
  """Returns the three phases as one function of a round."""
  _check(task, params)
  stages = _stage_lengths(task, params)
  identify = computation.train(
      'a round of identify', task, _client(task, params),
      selector=_selector(task, params), server_data=_server_data(task, params),
  )
  train = computation.train('a round of train', task, plain.client(task.training))
  restriction = train.optimizer.restriction
  restrict = () if restriction is None else (_mean_of_rest(task, restriction.own),)

  def round_(state, clients):
    if state.round_num < stages['identify']:
      return identify_round(state, clients)
    if state.round_num == stages['identify']:
      state = prune(state, clients)
    stays = task.staying(stages['identify'] + 1)
    rest = np.flatnonzero(~state.records['pruned'] & stays)
    # The share of all clients that takes part in a round is that of those that are left, too.
    size = max(1, int(task.clients_per_round / task.num_clients * len(rest) + 1e-9))
    return clients.train(train, state, clients.sample(train, state, rest, size)).state

  def identify_round(state, clients):
    output = clients.train(identify, state, clients.sample(identify, state))
    state, cohort = output.state, output.cohort
    candidacies, participations = (
        state.records[name].copy() for name in ('candidacies', 'participations')
    )
    participations[cohort] += 1
    candidacies[cohort] += ~output.reports[stacked.KEPT]  # One more for each that was not used.
    return state.record(candidacies=candidacies, participations=participations)

  def prune(state, clients):
    # Of who has left none can be left out; who comes later can, with the scores of the others.
    stays = task.staying(stages['identify'] + 1)
    pruned = np.zeros(task.num_clients, bool)
    scores = _scores(state.records, params)[stays]
    pruned[stays] = candidacy.prune(scores, params.prune, task.seed)
    clients.forget(np.flatnonzero(pruned), *train.optimizer.client.own)
    if restriction is not None and pruned.any():
      rest = np.intersect1d(np.flatnonzero(~pruned), clients.present)
      if len(rest):
        # Who comes later goes on too, and keeps nothing yet.
        goes_on = ~pruned & stays
        examples = task.client_sizes[goes_on].sum()
        share = np.float32(task.client_sizes[rest].sum() / examples)
        mean = [kept * share for kept in clients.run(restrict[0], state, rest).mean]
        name = train.optimizer.name
        server = restriction.apply(state.optimizers[name], mean, np.float32(examples))
        state = state._replace(optimizers={**state.optimizers, name: server})
    return state.record(pruned=pruned)

  records = {
      'candidacies': np.zeros(task.num_clients, np.int64),
      'participations': np.zeros(task.num_clients, np.int64),
      'pruned': np.zeros(task.num_clients, bool),
  }
  return algorithm.Algorithm(
      round_, algorithm.computations_of(identify, *restrict, train), stages, records,
      times={identify.name: stages['identify'], train.name: stages['train'],
             **{c.name: int(params.prune > 0 and stages['train'] > 0) for c in restrict}},
      report=algorithm.Report(
          columns=lambda state: {'pruned_clients': int(state.records['pruned'].sum())},
          summary=lambda records: {'clipfl': {'pruned_clients': int(records['pruned'].sum())}},
          noisy_clients=lambda records: records['pruned'],
          client_columns=lambda records: _client_columns(records, params),
          client_scores=('candidacy_score',),
          lines=lambda summary: [
              summary_lines.noisy_clients(summary, summary['clipfl']['pruned_clients'], 'pruned')
          ],
      ),
  )


def _check(task, params):
  """Raises `UsageError` where parameters do not fit the task."""
  if params.keep > task.clients_per_round:
    raise types.UsageError(
        f'--param=keep={params.keep} is more than --clients_per_round={task.clients_per_round}: of '
        'a round\'s clients so many cannot be kept'
    )
  if params.prune > 0 and params.keep == task.clients_per_round:
    raise types.UsageError(
        f'--param=keep={params.keep} keeps all of --clients_per_round={task.clients_per_round}: no '
        'client would ever score, and pruning would be random; keep fewer, or give '
        '--param=prune=0'
    )
  rounds = range(1, _stage_lengths(task, params)['identify'] + 1)
  there = max((min(task.clients_per_round, len(task.present(r))) for r in rounds), default=0)
  if params.prune > 0 and rounds and params.keep >= there:
    raise types.UsageError(
        f'--param=keep={params.keep} keeps all of the {there} clients that are there in a round of '
        'the stage identify (--arrivals): no client would ever score, and pruning would be '
        'random; keep fewer, or give --param=prune=0'
    )
  if params.selector == 'validation' and task.validation is None:
    raise types.UsageError(
        'clipfl compares models on a clean set at the server: give it one by --validation_fraction '
        'or --validation_dir, or do without by --param=selector=agreement or lid'
    )
  if params.selector == 'lid' and task.client_sizes.min() <= params.lid_neighbours:
    raise types.UsageError(
        f'--param=lid_neighbours={params.lid_neighbours} must be below the examples of every '
        f'client, of whom one has {task.client_sizes.min()}'
    )
  generates = params.selector == 'agreement' and task.validation is None
  if generates and len(task.model.input_shape) != 3:
    raise types.UsageError(
        'clipfl: a server without clean examples generates images to compare models on, and the '
        f'model takes {list(task.model.input_shape)}: give --validation_fraction, or '
        '--param=selector=lid'
    )
  if task.optimizer is not None and task.optimizer.client_model is None:
    raise types.UsageError(
        '--base: the server has to compare whole models, of which this optimizer\'s clients send '
        'only a part; use another one'
    )


def _stage_lengths(task, params):
  identify = task.stages.get('identify', round(_IDENTIFY_SHARE * task.rounds))
  train = task.stages.get('train', task.rounds - round(_IDENTIFY_SHARE * task.rounds))
  stages = {'identify': identify, 'train': train}
  algorithm.require_rounds(task, stages)
  if not identify and params.prune:
    raise types.UsageError(
        'without a round of the stage identify nobody knows whom to prune: give it some by '
        '--stages, or prune nobody by --param=prune=0'
    )
  return stages


def _client(task, params):
  if params.selector != 'lid':
    return plain.client(task.training)
  final = lid_report.final(params.lid_neighbours, task.training.loss.temperature)
  return plain.client(task.training, final=final, reports=(lid_report.REPORT,))


def _selector(task, params):
  if params.selector == 'validation':
    return selectors.validation(task.model, params.keep)
  if params.selector == 'lid':
    return selectors.reported('lid', params.keep)
  by_agreement = selectors.agreement(task.model, params.keep)
  if task.validation is not None:
    return by_agreement
  # Generated images are pixels, also where clients hold image files.
  pixels = client_data.client_data_type(np.uint8, task.model.input_shape)
  return by_agreement._replace(server_data_type=client_data.server_data_type(pixels))


def _server_data(task, params):
  """What the server compares models on, as TFF takes it."""
  if params.selector == 'lid':
    return None
  if task.validation is not None:
    if task.validation.x.nbytes > types.MAX_PIXEL_BYTES:
      raise types.UsageError(
          f'the server\'s {len(task.validation.y)} clean images have '
          f'{task.validation.x.nbytes / 2**20:.0f} MiB, and TFF carries at most 100 MiB: use a '
          'smaller --validation_fraction, or images as files (--dataset=image_folder)'
      )
    return client_data.server_dataset(task.validation.x, task.validation.y)
  x = generated_images(task.model.input_shape, task.seed)
  return client_data.server_dataset(x, np.zeros(len(x), np.int32))


def _mean_of_rest(task, name):
  """What clients keep under this name, averaged over those that go on, by their examples."""
  return computation.collect(
      'what clients keep, averaged', task,
      program.ClientProgram(
          final=lambda result: program.Sent(result.client.own[name]),
          own={name: task.optimizer.client.own[name]},
      ),
      mean_for='the mean that the server\'s optimizer has of it, without pruned clients',
  )


def generated_images(shape: tuple[int, ...], seed: int) -> np.ndarray:
  """Returns uint8 `[n, h, w, c]`, images of random coloured clouds: what a server without data has.

  From 0 to 255, so up to 16 times as bright as the built-in digits.

  Args:
    shape: `(h, w, c)`.
    seed: The experiment's seed.
  """
  draw = rng.generator(seed, 'generated images')
  smooth = ndimage.gaussian_filter(
      draw.standard_normal((_NUM_GENERATED, *shape), np.float32), (0, shape[0] / 8, shape[1] / 8, 0)
  )
  low, high = (f(smooth, axis=(1, 2, 3), keepdims=True) for f in (np.min, np.max))
  return np.round(255 * (smooth - low) / (high - low)).astype(np.uint8)


def _client_columns(records: algorithm.Records, params: Any) -> Mapping[str, np.ndarray]:
  return {
      'candidacies': records['candidacies'],
      'candidacy_score': _scores(records, params),
      'taken_for_noisy': records['pruned'].astype(int),
  }


def _scores(records, params):
  return candidacy.scores(records['candidacies'], records['participations'], params.score)
