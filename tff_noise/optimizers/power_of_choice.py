"""Power-of-Choice: of some candidates, those with the largest losses take part (Cho et al. 2022).

In each round d candidates are drawn with probabilities proportional to their examples, told the
global model, and report their mean loss; the m with the largest losses train. Two variants save
what that costs: cpow-d computes the loss on one batch, and rpow-d asks nobody, but takes the
training loss that each reported when it last took part, and first those that never did. The
paper's mean of their models counts clients alike, for sizes are in the draw already; here it
counts examples, as all optimizers' do, so that sizes are in it twice.

A client with wrong labels has a large loss: of noisy clients it chooses more, not fewer. The loss
that candidates report is of the labels that they were given, also under methods that correct some
(fedcorr, jointopt, fedelc): who had wrong ones goes on being chosen. It is the cross-entropy of
local training, with its smoothing, temperature and known flips; rpow-d's is the method's own loss,
of what is trained on.
"""

import numpy as np
import tensorflow as tf

from tff_noise import types
from tff_noise.clients import program
from tff_noise.clients import seeds
from tff_noise.federated import computation
from tff_noise.federated import optimizer
from tff_noise.federated import task as task_lib
from tff_noise.models import losses
from tff_noise.optimizers import parameters
from tff_noise.selection import policies
from tff_noise.uplink import uplink

_MAX_LOSS = 100.0
_REASON = 'mean loss on the own examples, by which the server chooses who takes part'
# What rpow-d remembers of each client.
_LAST_LOSS = 'last_loss'


def build(
    task: task_lib.Task, params: parameters.PowerOfChoiceParams
) -> optimizer.FederatedOptimizer:
  """FedAvg of the candidates with the largest losses."""
  if params.candidates < task.clients_per_round:
    raise types.UsageError(
        f'power of choice needs at least --clients_per_round={task.clients_per_round} '
        f'candidates, got candidates={params.candidates}'
    )
  fed_avg = optimizer.fed_avg(task.model.weights_type)
  ratio = params.candidates / task.clients_per_round  # d/m, also where fewer than usual take part.
  poll = None
  if params.loss != 'stale':
    poll = _poll(task, on_one_batch=params.loss == 'batch')

  def choose(clients, state, among, size):
    round_num = state.round_num + 1
    candidates = policies.proportional(
        task.seed, round_num, among, task.client_sizes, round(ratio * size)
    )
    if poll is None:
      found = state.records[_LAST_LOSS][candidates]
    else:
      found = clients.run(poll, state, candidates).reports['loss']
    return policies.largest(task.seed, round_num, candidates, found, size)

  if poll is not None:
    return fed_avg._replace(sampler=optimizer.Sampler(choose, computations=(poll,)))

  def observe(records, cohort, reports):
    last = records[_LAST_LOSS].copy()
    last[cohort] = reports['loss']
    return {**records, _LAST_LOSS: last}

  # The training loss, which some methods have below 0.
  report = uplink.UplinkReport('loss', np.float32, -_MAX_LOSS, _MAX_LOSS, _REASON)
  return fed_avg._replace(
      client=program.ClientProgram(
          final=lambda result: program.Sent(reports={'loss': result.loss}), reports=(report,)
      ),
      sampler=optimizer.Sampler(choose, {_LAST_LOSS: np.full(task.num_clients, np.inf)}, observe),
  )


def _poll(task, on_one_batch):
  """The computation that asks candidates for their loss."""
  form = task.training.loss._replace(temperature_reading='divide')

  def final(result):
    client = result.client
    labels, batch = client.labels, None
    if on_one_batch:
      # Another batch in each round.
      seed = seeds.fold(client.seed, client.round_num)
      order = seeds.batch_order(seed, client.num_examples)
      batch = order[: task.training.batch_size]
      labels = tf.gather(labels, batch)
    # Of several networks their mean; a head that only judges labels is no network.
    logits = tf.nest.flatten(client.predict(positions=batch))[: max(1, len(task.model.draws))]
    each = [losses.cross_entropy(z, labels, form) for z in logits]
    return program.Sent(reports={'loss': tf.add_n(each) / len(logits)})

  report = uplink.UplinkReport('loss', np.float32, 0.0, _MAX_LOSS, _REASON)
  return computation.collect(
      'asking candidates', task, program.ClientProgram(final=final, reports=(report,))
  )
