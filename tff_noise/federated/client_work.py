"""What a client does in a round: local training of a Keras model, with the method's own loss."""

import collections
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_noise import rng
from tff_noise import types
from tff_noise.federated import loops
from tff_noise.federated import optimizer as optimizer_lib
from tff_noise.federated import per_client
from tff_noise.federated import prediction
from tff_noise.federated import seeds
from tff_noise.federated import uplink
from tff_noise.models import images
from tff_noise.models import keras_model
from tff_noise.privacy import protection

# Public bounds of the metrics; the secure sum clips to them.
_MAX_LOSS = 100.0
_MAX_EXAMPLES = 2.0**24  # Up to here float32 counts exactly.

# What is folded into an epoch's seed besides `seeds.SHUFFLE`, so that no two uses share random
# numbers.
_DRAW, _FIRST_STEP = 1, 2
_PREDICT = -1  # Into a client's seed, where epochs count from 0.
_AUGMENT, _MIX = 0, 1  # Into a step's seed.

_NO_RULE = optimizer_lib.ClientRule()

TRAINING_SUMS = (
    uplink.UplinkSum(
        'loss', np.float32, -_MAX_LOSS * 2**16, _MAX_LOSS * 2**16,
        'training loss times examples, shown each round',
    ),
    uplink.UplinkSum(
        'examples', np.float32, 0.0, _MAX_EXAMPLES, 'turns the summed loss into a mean',
        protection.Counts(),
    ),
    uplink.UplinkSum(
        'rejected', np.int32, 0, 1, 'clients whose update was not finite and was left out'
    ),
)


class LossInputs(NamedTuple):
  """What a loss may look at.

  Attributes:
    logits: float32 `[b, K]`.
    features: float32 `[b, d]`, the last hidden layer.
    labels: int32 `[b]`.
    mixed_labels: int32 `[b]`, the labels of what each example is mixed with; `labels` without
      mixup.
    mixed_share: float32, lambda of mixup, the share of the example itself; 1 without mixup.
    seed: int32 `[2]`, for stateless random operations; differs for each round, client and step.
    round_num: int32, 1 in the first round.
    hparams: The broadcast hyper-parameters of `ClientWork.hparams`.
    local: The client's own state, or `()`.
    drawn: The batch's part of what `ClientWork.draw` drew for the epoch, or `()`.
  """

  logits: tf.Tensor
  features: tf.Tensor
  labels: tf.Tensor
  mixed_labels: tf.Tensor
  mixed_share: tf.Tensor
  seed: tf.Tensor
  round_num: tf.Tensor
  hparams: Mapping[str, tf.Tensor]
  local: Any
  drawn: Any


class GradientInputs(NamedTuple):
  """What a change of the gradient may look at.

  Attributes:
    gradients: Of the loss, one for each trainable variable.
    weights: The variables' values.
    anchor: Their values at the start of the round.
    epoch_step: int32, 0 in the first step of an epoch.
    hparams: As in `LossInputs`.
    local: As in `LossInputs`.
  """

  gradients: list[tf.Tensor]
  weights: list[tf.Tensor]
  anchor: list[tf.Tensor]
  epoch_step: tf.Tensor
  hparams: Mapping[str, tf.Tensor]
  local: Any


class DrawInputs(NamedTuple):
  """What random numbers of an epoch may depend on.

  Attributes:
    seed: int32 `[2]`; differs for each round, client and epoch.
    num_examples: int32, n_c.
    hparams: As in `LossInputs`.
  """

  seed: tf.Tensor
  num_examples: tf.Tensor
  hparams: Mapping[str, tf.Tensor]


class FinishInputs(NamedTuple):
  """What a client knows after its last step.

  Attributes:
    update: `w_t - w_c`, structure of the model's weights.
    steps: int32, the number of local steps.
    labels: int32 `[n_c]`, the labels that were trained on.
    predict: To float32 `[n_c, K]`, the logits of the trained local model; of True on augmented
      images, where training augments them.
    hparams: As in `LossInputs`.
    local: The client's own state as it came.
  """

  update: Any
  steps: tf.Tensor
  labels: tf.Tensor
  predict: Callable[[bool], tf.Tensor]
  hparams: Mapping[str, tf.Tensor]
  local: Any


class Finished(NamedTuple):
  """What a method adds to a client's result.

  Attributes:
    local: The client's new own state.
    sums: A value for each of `ClientWork.sums`.
    reports: A value for each of `ClientWork.reports`.
  """

  local: Any = ()
  sums: Mapping[str, tf.Tensor] = {}
  reports: Mapping[str, tf.Tensor] = {}


class ClientWork(NamedTuple):
  """A client's work, by composition.

  Its functions are traced without AutoGraph: they loop with `loops.repeat`, and branch with
  `tf.cond`.

  Attributes:
    loss: From `LossInputs` to a scalar.
    training: Local SGD, fresh in every round; the last batch of an epoch may be smaller.
    hparams: Initial values of what the server may change between rounds and broadcasts.
    draw: From `DrawInputs` to a tensor `[n_c, ...]`, one entry for each example of an epoch, in the
      order they are visited. Drawing once an epoch, not once a step, keeps steps short.
    mixup: alpha of mixup (Zhang et al. 2018): every image is blended with another of its batch,
      `lambda x_i + (1 - lambda) x_j` with lambda from Beta(alpha, alpha), drawn once a batch; 0
      for none. Bytes stay bytes: blended pixels are rounded.
    labels: From the data's labels, int32 `[n_c]`, and the client's own state to the labels that are
      trained on; None for the data's.
    gradient: From `GradientInputs` to the gradients that are used in place of the loss's, before
      weight decay; None for the loss's.
    local_type: TFF type of the client's own state; None for a stateless method.
    finish: From `FinishInputs` to `Finished`. Of a client whose update is not finite, only the
      reports are used; its sums are 0 and its own state stays. New state has the shapes of the old.
    sums: What `finish` sends to be summed.
    reports: What `finish` sends for the server to see by client.
  """

  loss: Callable[[LossInputs], tf.Tensor]
  training: types.LocalTraining = types.LocalTraining()
  hparams: Mapping[str, np.ndarray] = {}
  draw: Callable[[DrawInputs], tf.Tensor] | None = None
  mixup: float = 0.0
  labels: Callable[[tf.Tensor, Any], tf.Tensor] | None = None
  gradient: Callable[[GradientInputs], list[tf.Tensor]] | None = None
  local_type: tff.Type | None = None
  finish: Callable[[FinishInputs], Finished] | None = None
  sums: tuple[uplink.UplinkSum, ...] = ()
  reports: tuple[uplink.UplinkReport, ...] = ()


class Broadcast(NamedTuple):
  """What the server sends to each client of a round.

  Attributes:
    weights: w_t.
    round_num: int32, 1 in the first round.
    hparams: See `ClientWork.hparams`.
    optimizer: What the federated optimizer's server sends besides.
  """

  weights: Any
  round_num: Any
  hparams: Any
  optimizer: Any = ()


def hparams_type(work: ClientWork) -> tff.Type:
  """The TFF type of `work.hparams`."""
  return tff.to_type(
      collections.OrderedDict(
          (name, tff.TensorType(np.asarray(v).dtype, np.shape(v)))
          for name, v in work.hparams.items()
      )
  )


def state_type(work: ClientWork, rule: optimizer_lib.ClientRule) -> tff.Type:
  """The TFF type of a client's `uplink.ClientState`."""
  own = tff.to_type(()) if work.local_type is None else work.local_type
  kept = tf.nest.map_structure(
      lambda v: tff.TensorType(np.asarray(v).dtype, np.shape(v)), rule.initial_state
  )
  return tff.to_type(uplink.ClientState(own, kept))


def build_client_update(
    model: keras_model.KerasModel,
    work: ClientWork,
    seed: int,
    rule: optimizer_lib.ClientRule = _NO_RULE,
    received_type: tff.Type | tuple[()] = (),
    *,
    identified: bool = False,
) -> tff.Computation:
  """Returns the computation of one client.

  Args:
    model: The model to train.
    work: How.
    seed: The experiment's seed. Batches and the loss's random numbers are a function of (seed,
      round, client, step) alone.
    rule: What the federated optimizer adds.
    received_type: TFF type of what its server sends besides the model.
    identified: Whether the reports have the client's id though there may be none.

  Returns:
    A computation `(<broadcast=Broadcast, data=D*, local=ClientState> -> ClientOutput)`. A client
    without examples, or whose update is not finite, contributes a zero update of weight zero.
  """
  base_seed = rng.tf_seed(seed, 'local training')
  broadcast_type = tff.to_type(
      Broadcast(model.weights_type, np.int32, hparams_type(work), received_type)
  )

  @tff.tensorflow.computation(broadcast_type, model.data_type, state_type(work, rule))
  def client_update(broadcast, data, local):
    network = keras_model.build_zeros(model)

    @tf.function(autograph=False)
    def run(broadcast, data, local):
      anchor = broadcast.weights
      if rule.start is not None:
        anchor = rule.start(anchor, local.optimizer)
      keras_model.assign(network, anchor)
      examples = data.get_single_element()
      labels = examples['y'] if work.labels is None else work.labels(examples['y'], local.own)
      client = _Client(network, model.input_shape, anchor, examples, labels, local)
      seed = seeds.fold(base_seed, broadcast.round_num, examples['client'])
      loss, steps = _train(client, work, rule, seed, broadcast)
      update = tf.nest.map_structure(tf.subtract, anchor, keras_model.read(network))
      output = _finish(client, work, rule, seed, broadcast, update, loss, steps)
      if identified and not output.reports:
        output = output._replace(reports=collections.OrderedDict(client=examples['client']))
      return output

    return run(broadcast, data, local)

  return client_update


class _Client(NamedTuple):
  """What a client computes with."""

  network: tf.keras.Model
  input_shape: tuple[int, ...]
  anchor: tff.learning.models.ModelWeights
  examples: Mapping[str, tf.Tensor]
  labels: tf.Tensor
  local: uplink.ClientState


def _load(client, batch, training, seed):
  """The images of a batch, read where they are files, changed at random where that is asked for."""
  x = images.read(tf.gather(client.examples['x'], batch), client.input_shape)
  if training.augmentation == 'crop_flip':
    x = images.crop_and_flip(x, seeds.fold(seed, _AUGMENT))
  return x


def _mix(x, labels, alpha, seed):
  """Mixup: returns the blended images, the labels of the others, and the share of the first."""
  if not alpha:
    return x, labels, tf.constant(1.0)
  for_share, for_others = tf.unstack(
      tf.random.experimental.stateless_split(seeds.fold(seed, _MIX), 2)
  )
  # Beta(a, a) is G / (G + G') of two Gamma(a).
  gamma = tf.random.stateless_gamma([2], for_share, alpha)
  share = tf.math.divide_no_nan(gamma[0], gamma[0] + gamma[1])
  other = tf.random.experimental.stateless_shuffle(
      tf.range(tf.shape(labels)[0]), for_others
  )
  pixels = tf.cast(x, tf.float32)
  blended = share * pixels + (1 - share) * tf.gather(pixels, other)
  if x.dtype.is_integer:
    blended = tf.round(blended)
  return tf.cast(blended, x.dtype), tf.gather(labels, other), share


def _train(client, work, rule, client_seed, broadcast):
  """Runs E epochs; returns the mean batch loss and the number of steps."""
  training = work.training
  optimizer = tff.learning.optimizers.build_sgdm(
      training.learning_rate, training.momentum or None
  )
  variables = list(client.network.trainable_variables)
  num_examples = tf.shape(client.labels)[0]
  state = optimizer.initialize([tf.TensorSpec(v.shape, v.dtype) for v in variables])

  def epoch(number, progress):
    seed = seeds.fold(client_seed, number)
    order = seeds.batch_order(seed, num_examples)
    drawn = ()
    if work.draw is not None:
      drawn = work.draw(DrawInputs(seeds.fold(seed, _DRAW), num_examples, broadcast.hparams))

    def step(epoch_step, progress):
      state, total_loss, steps = progress
      start = epoch_step * training.batch_size
      batch = order[start : start + training.batch_size]
      step_seed = seeds.fold(seed, _FIRST_STEP + start)
      labels = tf.gather(client.labels, batch)
      x = _load(client, batch, training, step_seed)
      x, mixed_labels, mixed_share = _mix(x, labels, work.mixup, step_seed)
      with tf.GradientTape() as tape:
        logits, features = client.network(x, training=True)
        loss = work.loss(
            LossInputs(
                logits=logits,
                features=features,
                labels=labels,
                mixed_labels=mixed_labels,
                mixed_share=mixed_share,
                seed=step_seed,
                round_num=broadcast.round_num,
                hparams=broadcast.hparams,
                local=client.local.own,
                drawn=() if work.draw is None else drawn[start : start + training.batch_size],
            )
        )
      gradients = tape.gradient(loss, variables)
      values = [v.read_value() for v in variables]
      if work.gradient is not None:
        gradients = work.gradient(
            GradientInputs(
                gradients=gradients,
                weights=values,
                anchor=list(client.anchor.trainable),
                epoch_step=epoch_step,
                hparams=broadcast.hparams,
                local=client.local.own,
            )
        )
      if rule.gradients is not None:
        gradients = rule.gradients(
            optimizer_lib.StepInputs(
                gradients, values, list(client.anchor.trainable), client.local.optimizer,
                broadcast.optimizer,
            )
        )
      if training.weight_decay:
        gradients = [g + training.weight_decay * v for g, v in zip(gradients, values, strict=True)]
      state, values = optimizer.next(state, values, gradients)
      for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
      return state, total_loss + loss, steps + 1

    num_steps = (num_examples + training.batch_size - 1) // training.batch_size
    return loops.repeat(num_steps, step, progress)

  _, total_loss, steps = loops.repeat(
      training.epochs, epoch, (state, tf.constant(0.0), tf.constant(0))
  )
  return tf.math.divide_no_nan(total_loss, tf.cast(steps, tf.float32)), steps


def _finish(client, work, rule, client_seed, broadcast, update, loss, steps):
  """Packs a client's result; one that is not finite is replaced by nothing."""
  # A sum is finite only if all of its terms are; it is the quicker question.
  finite = tf.math.is_finite(
      tf.add_n([loss, *(tf.reduce_sum(t) for t in tf.nest.flatten(update))])
  )

  def keep(values):
    return _or_zeros(finite, values)

  update = keep(update)
  weight = keep(tf.cast(tf.shape(client.labels)[0], tf.float32))
  sums = collections.OrderedDict(
      loss=keep(loss) * weight,
      examples=weight,
      rejected=tf.cast(tf.logical_not(finite), tf.int32),
  )
  finished = Finished(local=client.local.own)
  if work.finish is not None:
    seed = seeds.fold(client_seed, _PREDICT)
    finished = work.finish(_finish_inputs(client, work, seed, broadcast, update, steps))
    sums.update({name: keep(tf.convert_to_tensor(v)) for name, v in finished.sums.items()})
  sent = rule.send(
      optimizer_lib.LocalResult(
          update,
          keep(keras_model.read(client.network)),
          steps,
          weight,
          loss,
          client.local.optimizer,
          broadcast.optimizer,
      )
  )
  sums.update({name: keep(tf.convert_to_tensor(v)) for name, v in sent.sums.items()})
  # What a model that diverged says of the client's own state is not kept either.
  state = uplink.ClientState(finished.local, sent.state)
  local = tf.cond(finite, lambda: state, lambda: client.local)
  reports = collections.OrderedDict([*finished.reports.items(), *sent.reports.items()])
  # Whatever the rule makes of no update: in the mean, 0 times what is not finite would be seen.
  update = _or_zeros(weight > 0, sent.update)
  return uplink.ClientOutput(
      update,
      weight,
      sums,
      per_client.pack_reports(client.examples, reports),
      uplink.ReturnedState(client.examples['client'], *local),
  )


def _or_zeros(condition, values):
  """The values, uncopied, or zeros; not a product: NaN * 0 is NaN."""
  return tf.cond(condition, lambda: values, lambda: tf.nest.map_structure(tf.zeros_like, values))


def _finish_inputs(client, work, seed, broadcast, update, steps):
  def predict_own(augmented):
    augments = augmented and work.training.augmentation == 'crop_flip'
    return prediction.predict(
        client.network, client.input_shape, client.examples['x'], seed if augments else None
    )

  return FinishInputs(
      update, steps, client.labels, predict_own, broadcast.hparams, client.local.own
  )
