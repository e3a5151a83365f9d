"""RHFL: clients with models of their own learn from each other's predictions (Fang and Ye, 2022).

There is no global model. Each client k has one of its own, of an architecture that need not be the
others', and all know images without labels. First each trains alone (stage `pretrain`). Then, in
each round (stage `collaborate`),

  `l_k` = the mean of `alpha CE + beta_r RCE` over its own examples
  `q_k = (l_k(t-1) - l_k(t)) / l_k(t)`
  `v_k = u_k / sum_j u_j`, `u_k = exp(1/(N-1) + beta q_k / sum_j q_j)`
  model k <- steps of Adam on `sum_{j != k} v_j KL(p_j || p_k)` over the public images
  model k <- epochs on its own examples by the same `alpha CE + beta_r RCE`

with p_k its predictions on the public images, and N the clients of the round. What is reported is
the mean test accuracy of the clients' models.

There every client sees the predictions of every other. But for fixed weights

  `sum_j v_j KL(p_j || p) = V KL(pbar || p) + const`, `V = sum_j v_j`, `pbar = sum_j v_j p_j / V`,

so a client needs two sums over the others, of `u_j p_j` and of u_j: here it gets those over all and
subtracts its own. First the sum of q_k is taken, then these two, all as secure sums if asked for:
no value of a single client is used by anybody. Of two clients each would learn the other's; a
round of fewer than three does not collaborate.

In the form of that identity the targets of a round are of its start. The public code
(FangXiuwen/Robust_FL) computes them anew for every batch of public images, at which all clients
have to be there at once: that is the one step which is not its own here. Besides,
- `sum_j q_j` is near 0 or below it when losses rise and fall late in training: then weights are
  noise, or those whose loss rose most weigh most. `confidence=guarded` takes equal ones where the
  sum is not above 1e-3; the default is literal. Exponents are cut to +-10 and q_k to +-100.
- The code makes a new Adam for every public batch, whose first step is `-eta g / (|g| + 1e-8)` in
  each weight: its size does not depend on the loss, nor on V. `adam=kept` has one for the images.
- In its first round v_k is `1/(N-1)`, not normalised: by the above of no effect.
- It takes l_k and p_k in training mode; here statistics of batches are not moved by that.
- Its clients train alone by Adam of step size 1e-3, as many epochs as the public images are times
  their own, without the last batch; here by the task's optimizer, --local_epochs, on all batches.
- Its models start from different random weights. Here those of an architecture start equal, and
  part when they are trained alone.

A client that joins after `pretrain` (--arrivals) begins to collaborate with its first weights, and
the mean accuracy is over all clients, whether they are there or not.

Several architectures (`--param=architectures=cnn+mlp`) are dealt out in turn, client k gets the
(k mod G)-th. Those of one are summed apart, so an architecture needs two clients or more of a
round to take part in it. Each client stores room for one model of every architecture.

--temperature divides the logits of what clients exchange and learn as those of their own loss.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_noise import types
from tff_noise.algorithms import algorithm
from tff_noise.algorithms import parameters
from tff_noise.clients import program
from tff_noise.federated import computation
from tff_noise.federated import task as task_lib
from tff_noise.models import keras_model
from tff_noise.models import losses
from tff_noise.uplink import uplink

# What clients keep.
_MODEL, _LOSS, _DROP = 'rhfl_model', 'rhfl_loss', 'rhfl_drop'
# What they send, and receive as sums over all.
_DROPS, _OUTPUTS, _WEIGHTS = 'loss_drops', 'outputs', 'output_weights'
# What they receive besides.
_PARTICIPANTS = 'participants'

_MAX_DROP, _MAX_EXPONENT = 100.0, 10.0
# Below which a sum of q tells nothing, see the module.
_SMALLEST_SUM = 1e-3
_ADAM_EPSILON = 1e-8
# Before a client's loss is known.
_UNKNOWN = np.float32(-1)
# 1 / (N - 1) is at most 1/2.
_MAX_WEIGHT = float(np.exp(0.5 + _MAX_EXPONENT))
# Of two, each would learn the other's predictions.
_FEWEST = 3


def loss_drop(last: tf.Tensor, now: tf.Tensor) -> tf.Tensor:
  """Returns float32, q_k of two losses; 0 without a last one (`_UNKNOWN`), or if one is NaN."""
  drop = tf.math.divide_no_nan(last - now, now)
  known = (last >= 0) & tf.math.is_finite(drop)
  return tf.where(known, tf.clip_by_value(drop, -_MAX_DROP, _MAX_DROP), 0.0)


def confidence(
    drop: tf.Tensor, drops: tf.Tensor, participants: tf.Tensor, p: parameters.RHFLParams
) -> tf.Tensor:
  """Returns float32, u_k, of q_k, `sum_j q_j` and int32 N, at least 2."""
  share = tf.math.divide_no_nan(drop, drops)
  if p.confidence == 'guarded':
    share = tf.where(drops > _SMALLEST_SUM, share, 0.0)
  exponent = tf.clip_by_value(p.beta * share, -_MAX_EXPONENT, _MAX_EXPONENT)
  return tf.exp(1 / (tf.cast(participants, tf.float32) - 1) + exponent)


def of_others(
    outputs: tf.Tensor, weights: tf.Tensor, own: tf.Tensor, weight: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns pbar float32 `[S, K]`, the other clients' mean prediction, and V float32.

  Args:
    outputs: float32 `[S, K]`, `sum_j u_j p_j`.
    weights: float32, `sum_j u_j`.
    own: float32 `[S, K]`, p_k.
    weight: float32, u_k.
  """
  # A difference of sums: what rounding leaves below 0 is no probability.
  others = tf.maximum(outputs - weight * own, 0.0)
  mean = tf.math.divide_no_nan(others, tf.reduce_sum(others, axis=1, keepdims=True))
  return mean, tf.math.divide_no_nan(weights - weight, weights)


def divergence(targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
  """Returns float32, the mean of `KL(pbar || p)` over a batch; pbar and logits `[b, K]`."""
  log_p = tf.nn.log_softmax(logits)
  return tf.reduce_mean(
      tf.reduce_sum(tf.math.xlogy(targets, targets) - targets * log_p, axis=1)
  )


class _Group(NamedTuple):
  """The clients of one architecture, and what they take part in.

  Attributes:
    own: Under which name they keep their model.
    model: What it is.
    members: int64, their ids.
    pretrain: Training alone.
    compare: Their loss against their last.
    predict: Their predictions on the public images.
    learn: Steps towards those of the others.
    train: Training on their own examples.
  """

  own: str
  model: keras_model.KerasModel
  members: np.ndarray
  pretrain: computation.Computation
  compare: computation.Computation
  predict: computation.Computation
  learn: computation.Computation
  train: computation.Computation

  @property
  def computations(self) -> tuple[computation.Computation, ...]:
    """In the order of a run."""
    return self.pretrain, self.compare, self.predict, self.learn, self.train


def build(task: task_lib.Task, p: parameters.RHFLParams) -> algorithm.Algorithm:
  """Training alone, then rounds of comparing losses, exchanging predictions, and training."""
  _check(task)
  stages = _stage_lengths(task)
  groups = _groups(task, p)
  fewest = 2 if len(groups) > 1 else 1

  def round_(state, clients):
    if state.round_num < stages['pretrain']:
      return run('pretrain', state, clients, _parts(groups, clients.present, fewest)).state
    cohort = clients.sample(groups[0].train, state)
    parts = _parts(groups, cohort, fewest)
    if sum(len(part) for part in parts) >= _FEWEST:
      state = collaborate(state, clients, parts)
    else:
      state = state.record(loss_drops=np.float32(np.nan))
    return run('train', state, clients, parts).state

  def collaborate(state, clients, parts):
    state = state.send(**{_PARTICIPANTS: np.int32(sum(len(part) for part in parts))})
    drops = run('compare', state, clients, parts).sums[_DROPS]  # sum_j q_j
    state = state.send(**{_DROPS: drops}).record(loss_drops=drops)
    sums = run('predict', state, clients, parts).sums  # sum_j u_j p_j and sum_j u_j
    state = state.send(**{_OUTPUTS: sums[_OUTPUTS], _WEIGHTS: sums[_WEIGHTS]})
    return run('learn', state, clients, parts).state

  def run(name, state, clients, parts):
    """One of a group's computations, in each group with its part of the cohort."""
    totals = {}
    for group, part in zip(groups, parts, strict=True):
      for key, value in clients.run(getattr(group, name), state, part).sums.items():
        totals[key] = totals.get(key, np.zeros_like(value)) + value
    return algorithm.Output(state, np.sort(np.concatenate(parts)), totals, {})

  def evaluate(state, own):
    del state  # There is no global model.
    return [
        algorithm.Evaluated(group.model, _weights(own[client][group.own]))
        for group in groups for client in group.members
    ]

  return algorithm.Algorithm(
      round_, tuple(c for group in groups for c in group.computations), stages,
      records={'loss_drops': np.float32(0)},
      times={
          c.name: stages['pretrain' if c is group.pretrain else 'collaborate']
          for group in groups for c in group.computations
      },
      # Of several architectures each is asked of its own clients alone.
      cohorts={
          c.name: fewest for group in groups for c in group.computations
      } if len(groups) > 1 else {},
      evaluate=evaluate,
      report=algorithm.Report(columns=lambda s: {'loss_drops': float(s.records['loss_drops'])}),
  )


def _check(task):
  """Raises `UsageError` where the task lacks what the method needs."""
  if task.public is None:
    raise types.UsageError(
        'rhfl: clients compare what their models say of images that all of them know: name some by '
        '--public_dataset, with --public_dir where it is in files'
    )
  if task.public.nbytes > types.MAX_PIXEL_BYTES:
    raise types.UsageError(
        f'rhfl: the public images have {task.public.nbytes / 2**20:.0f} MiB, and TFF carries at '
        'most 100 MiB: use fewer --public_examples'
    )
  if task.clients_per_round < _FEWEST:
    raise types.UsageError(
        f'rhfl: of fewer than {_FEWEST} clients each would learn the predictions of the other: use '
        f'more --clients_per_round than {task.clients_per_round}'
    )


def _stage_lengths(task):
  return algorithm.two_stages(task, 'pretrain', min(1, task.rounds), 'collaborate')


def _groups(task, p):
  """The architectures, or the task's own model alone."""
  names = p.architectures.split('+') if p.architectures else ['']
  groups = []
  for i, name in enumerate(names):
    members = np.arange(i, task.num_clients, len(names))
    if len(names) > 1 and len(members) < 2:
      raise types.UsageError(
          f'--param=architectures has {len(names)} for {task.num_clients} clients: each needs two '
          'clients, or the server would see the sums of one'
      )
    model = _build_model(task, name) if name else task.model
    groups.append(_group(task, p, model, members, f' of {name} {i}' if name else ''))
  # Of so many there are always three that are not the only one of their architecture.
  fewest = len(names) + 2
  if len(names) > 1 and task.clients_per_round < fewest:
    raise types.UsageError(
        'rhfl: those of an architecture take part where a round has two or more of them, and '
        f'--clients_per_round={task.clients_per_round} of {len(names)} architectures may have too '
        f'few: use {fewest} or more'
    )
  return groups


def _build_model(task, name):
  try:
    return task.build_model(name)
  except types.UsageError as error:
    raise types.UsageError(f'--param=architectures: {error}') from error


def _group(task, p, model, members, suffix):
  own = _MODEL + suffix.replace(' ', '_')
  first = keras_model.read(keras_model.build_seeded(model, task.seed))
  kept = {own: _to_keep(tf.nest.map_structure(lambda v: v.numpy(), first))}

  def compose(name, client, **more):
    on_its_model = client._replace(
        start=lambda known: _weights(known.own[own]), own={**kept, **client.own}
    )
    return computation.collect(
        name + suffix, task, on_its_model, model=model, sends_model=False, **more
    )

  alone = task.training._replace(epochs=p.pretrain_epochs)
  shape, tau = (len(task.public), task.num_classes), task.training.loss.temperature
  return _Group(
      own, model, members,
      pretrain=compose('training alone', _train(p, own, task.training), training=alone),
      compare=compose('comparing losses', _compare(p, task.training)),
      predict=compose('predicting public images', _predict(p, shape, tau), public=task.public),
      learn=compose(
          'learning from predictions', _learn(p, own, shape, tau), training=_public_training(p),
          public=task.public,
      ),
      train=compose('training', _train(p, own, task.training), training=task.training),
  )


def _to_keep(weights):
  return {'trainable': list(weights.trainable), 'non_trainable': list(weights.non_trainable)}


def _weights(kept):
  return tff.learning.models.ModelWeights(kept['trainable'], kept['non_trainable'])


def _train(p, own, training):
  """Epochs on the client's own examples."""
  return program.ClientProgram(
      loss=lambda s: losses.symmetric_cross_entropy(
          s.logits, s.labels, forward=p.forward, reverse=p.reverse, form=training.loss
      ),
      final=lambda result: program.Sent(own={own: _to_keep(result.weights)}),
  )


def _compare(p, training):
  """q_k."""

  def final(result):
    client = result.client
    now = losses.symmetric_cross_entropy(
        client.predict(), client.labels, forward=p.forward, reverse=p.reverse, form=training.loss
    )
    drop = loss_drop(client.own[_LOSS], now)
    return program.Sent(
        own={_LOSS: tf.where(tf.math.is_finite(now), now, _UNKNOWN), _DROP: drop},
        sums={_DROPS: drop},
    )

  return program.ClientProgram(
      final=final,
      own={_LOSS: _UNKNOWN, _DROP: np.float32(0)},
      sums=(
          uplink.UplinkSum(
              _DROPS, np.float32, -_MAX_DROP, _MAX_DROP,
              'relative drop of the loss, which weights are shares of',
          ),
      ),
  )


def _confidence_of(client, p):
  received = client.received
  return confidence(client.own[_DROP], received[_DROPS], received[_PARTICIPANTS], p)


def _received(shape: tuple[int, int] | None = None) -> Mapping[str, np.ndarray]:
  """What clients get before the first collaboration; sums of predictions `[S, K]` if asked for."""
  first = {_PARTICIPANTS: np.int32(_FEWEST), _DROPS: np.float32(0)}
  if shape is None:
    return first
  return {**first, _OUTPUTS: np.zeros(shape, np.float32), _WEIGHTS: np.float32(0)}


def _predict(p, shape, tau):
  """`u_k p_k` and u_k; nothing of a model whose predictions are not numbers."""

  def final(result):
    outputs = tf.nn.softmax(result.client.predict() / tau)  # p_k
    usable = tf.reduce_all(tf.math.is_finite(outputs))
    u = tf.where(usable, _confidence_of(result.client, p), 0.0)
    return program.Sent(
        sums={_OUTPUTS: tf.where(usable, u * outputs, 0.0), _WEIGHTS: u}
    )

  return program.ClientProgram(
      final=final,
      own={_DROP: np.float32(0)},
      receives=_received(),
      sums=(
          uplink.UplinkSum(
              _OUTPUTS, np.float32, 0.0, _MAX_WEIGHT,
              'predictions on the public images, from which the others learn', shape=shape,
          ),
          uplink.UplinkSum(
              _WEIGHTS, np.float32, 0.0, _MAX_WEIGHT, 'how much these predictions weigh'
          ),
      ),
  )


def _public_training(p):
  """Adam over the public images; a new one for each batch is its first step, see `_learn`."""
  optimizer = 'adam' if p.adam == 'kept' else 'sgd'
  return types.LocalTraining(
      p.public_epochs, p.public_batch_size, p.public_learning_rate, optimizer=optimizer
  )


def _learn(p, own, shape, tau):
  """Steps on `V KL(pbar || p_k)`."""

  def columns(client):
    received = client.received
    targets, share = of_others(
        received[_OUTPUTS], received[_WEIGHTS], tf.nn.softmax(client.predict() / tau),
        _confidence_of(client, p),
    )
    return program.Columns({'targets': targets, 'share': tf.fill([shape[0]], share)})

  def first_adam_step(s):
    return [g / (tf.abs(g) + _ADAM_EPSILON) for g in s.gradients], s.carry

  return program.ClientProgram(
      loss=lambda s: s.columns['share'][0] * divergence(s.columns['targets'], s.logits / tau),
      columns=columns,
      step=None if p.adam == 'kept' else first_adam_step,
      final=lambda result: program.Sent(own={own: _to_keep(result.weights)}),
      own={_DROP: np.float32(0)},
      receives=_received(shape),
  )


def _parts(groups, cohort, fewest):
  """Who of a cohort is of each group; nobody, where they are too few for a sum to hide them."""
  parts = [np.intersect1d(group.members, cohort) for group in groups]
  return [part if len(part) >= fewest else part[:0] for part in parts]
