"""FedRN: clients find their clean examples with the models of reliable neighbours (CIKM 2022).

Kim, Shin, Jang, Song and Yun, FedRN: Exploiting k-Reliable Neighbors Towards Robust Federated
Learning. The first rounds (stage `warm_up`) are FedAvg. After each, a client reports

  `e_c` = the accuracy of its local model on its own labels, noisy as they are (expertise)
  `o_c` = that model's logits on one image of Gaussian noise, the same for all

and the server keeps its local model. In the others (stage `neighbours`), for each client c of the
round, with sim and exp scaled to [0, 1] over all clients,

  `score_j = a exp_j + (1 - a) sim_j`,  `exp_j = e_j`,  `sim_j = cos(o_c, o_j)`

and the h others of the largest scores are c's neighbours. The client gets their last local models
and the weights `v_m = score_m / sum_m score_m`, of itself first (its own sim is 1), and finds

  p_0 = the clean posterior by its own last model;  C_0 = {p_0 > 1/2}
  p_m = that by neighbour m, the linear head of which is first trained one epoch on C_0
  C   = {sum_m v_m p_m > 1/2}

where a clean posterior is that of the small losses in a mixture of two Gaussians of all the
client's losses. It trains the global model on C alone, and is averaged by its n_c all the same.

What crosses the network, beside FedAvg's: up e_c, o_c `[K]` and the model itself `[P]`; so a model
is sent twice, as an update for the mean and under its client's name for the server's table. Down
the h neighbours' models and 1 + h weights. **Single models reach other clients**, with all that can
be concluded from a model; the ledger enters that as a release to them. A client keeps its own last
model. The table, float32 `[N, P]`, is part of every checkpoint, and so is what clients keep, as
much again: this is for small networks.

The numbers are those of the public code (ElvinKim/FedRN): h = 2, a = 0.6 in its scripts (0.5 where
none is given), a mixture with DivideMix's constants but up to 100 steps, and where training
augments images, losses and accuracies of augmented ones (`augmented=false` is without). Where this
differs from that code:

- Tables are of a round's start. In the code clients of a round take turns, so the later ones see
  models that the earlier ones have just made: impossible where they train at once.
- A client that has not been trained yet is nobody's neighbour, and trains on all its examples when
  its turn comes. In the code it has random weights of its own, an accuracy of 0.5 and a random
  output, and may be anybody's neighbour; that is rare there after 100 rounds of a tenth of the
  clients, but not after a few.
- Scaling takes the clients that were trained. Equal values become 1 (in the code 0 / 0, an error):
  all are as good as the best.
- Scores that sum to 0 leave a client its own mixture. So does h = 0.
- Nobody clean is everybody, as in the code; equal losses are all clean (in the code 0 / 0).
- The features that a head is trained on are those that its losses are computed from: one look at
  the images, with the neighbour's own statistics of batch norm. The code augments anew in each pass
  and normalises by the batch, in a model that has no such statistics. Heads are tuned by SGD with
  --learning_rate and --momentum, whatever --local_optimizer.
- Models take bytes here, so the Gaussian image is one too: `127.5 + 64 g`, cut to [0, 255], which
  is about a standard normal image after normalisation. (Not of digits, whose bytes end at 16: it
  is up to 16 times as bright, but the same for all models that are compared.) For other inputs
  it is g. It is on models whole, so under --base=fedbn normalisation layers are sent too.
- A model that is not finite, on the client's images or on the Gaussian one, is not kept: the last
  one stays, at the server and at the client.

Equal scores are ordered by id. Mixtures are of plain cross-entropy; --label_smoothing and
--temperature are of the trained losses, those of the heads included. So is the correction for
private labels, which is right for labels that were flipped at random: what is left out here are
those that look flipped.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_noise import rng
from tff_noise import types
from tff_noise.algorithms import algorithm
from tff_noise.algorithms import parameters
from tff_noise.clients import gaussian_mixture
from tff_noise.clients import loops
from tff_noise.clients import program
from tff_noise.clients import seeds
from tff_noise.clients import step_size
from tff_noise.federated import computation
from tff_noise.federated import stacked
from tff_noise.federated import task as task_lib
from tff_noise.models import keras_model
from tff_noise.models import losses
from tff_noise.uplink import uplink

# What a client keeps: its last local model, float32 [P]; and of each label the weighted posterior,
# for who looks at a simulation.
LAST_MODEL, _POSTERIOR = 'last_model', 'clean_posterior'
# What it reports, and under which names the server remembers it by client.
EXPERTISE, OUTPUT, MODEL = 'expertise', 'output', 'model'
# How often the server chose each client as a neighbour, counted in the round.
_CHOSEN = 'chosen'
# What it receives in the second stage.
_MODELS, _WEIGHTS = 'neighbour_models', 'neighbour_weights'

# As in the public code; of DivideMix's but for the number of steps.
_MIXTURE = gaussian_mixture.DIVIDEMIX._replace(max_iterations=100)
# Of all rounds: 100 of 500 in the public code.
_WARM_UP_SHARE = 0.2
# Cosines of equal outputs differ by less.
_ROUNDING = 1e-9


def scores(client: int, expertise: np.ndarray, outputs: np.ndarray, a: float) -> np.ndarray:
  """Returns float64 `[N]`, `a exp_j + (1 - a) sim_j` for a client; nan for those without an e_j.

  Args:
    client: c, who has an e_c.
    expertise: float32 `[N]`, e_j in [0, 1]; nan where there is none.
    outputs: float32 `[N, K]`, o_j.
    a: In [0, 1].
  """
  known = np.isfinite(expertise)
  result = np.full(len(expertise), np.nan)
  similarity = _scaled(_cosines(outputs[client], outputs[known]))
  similarity[np.flatnonzero(known) == client] = 1
  result[known] = a * _scaled(expertise[known]) + (1 - a) * similarity
  return result


def _cosines(vector, rows):
  """float64 `[n]`, of a vector with rows; 0 where one of the two is 0."""
  vector, rows = vector.astype(np.float64), rows.astype(np.float64)
  norms = np.linalg.norm(rows, axis=1) * np.linalg.norm(vector)
  return rows @ vector / np.where(norms > 0, norms, 1)


def _scaled(values):
  """float64, `(v - min v) / (max v - min v)`; 1 where all are equal."""
  values = values.astype(np.float64)
  low, high = values.min(), values.max()
  if high - low < _ROUNDING:
    return np.ones_like(values)
  return (values - low) / (high - low)


class Neighbours(NamedTuple):
  """Whose models a client looks with.

  Attributes:
    ids: int64 `[m]`, the neighbours, the best first; at most h.
    weights: float32 `[1 + h]`, of its own model, then of theirs, with sum 1; 0 of those that are
      not there, all 0 for a client that has no model yet.
  """

  ids: np.ndarray
  weights: np.ndarray


def neighbours(
    client: int, expertise: np.ndarray, outputs: np.ndarray, p: parameters.FedRNParams
) -> Neighbours:
  """Returns the h others of the largest scores, and `v_m = score_m / sum_m score_m`.

  Args:
    client: c.
    expertise: float32 `[N]`, e_j; nan where there is none yet.
    outputs: float32 `[N, K]`, o_j.
    p: h and a.
  """
  weights = np.zeros(1 + p.neighbours, np.float32)
  if np.isnan(expertise[client]):
    return Neighbours(np.zeros(0, np.int64), weights)
  score = scores(client, expertise, outputs, p.expertise_weight)
  others = np.setdiff1d(np.flatnonzero(np.isfinite(score)), [client])
  ids = others[np.argsort(-score[others], kind='stable')][: p.neighbours]
  chosen = score[[client, *ids]]
  if not chosen.sum():
    chosen[0] = 1
  weights[: len(chosen)] = chosen / chosen.sum()
  return Neighbours(ids, weights)


def weighted_posterior(posteriors: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
  """Returns float32 `[n]`, `sum_m v_m p_m`.

  Args:
    posteriors: float32 `[1 + h, n]`, p_m.
    weights: float32 `[1 + h]`, v_m.
  """
  return tf.linalg.matvec(posteriors, weights, transpose_a=True)


class Head(NamedTuple):
  """Where a model's linear head is among its trainable weights.

  Attributes:
    kernel: Position of the kernel `[d, K]`.
    bias: That of the bias `[K]`; None without one.
  """

  kernel: int
  bias: int | None


def head_of(model: keras_model.KerasModel) -> Head:
  """Returns where the head of a model is.

  Raises:
    types.UsageError: If its logits are not a dense layer of its features, and nothing else.
  """
  network = keras_model.build_zeros(model)
  logits, features = network.outputs[:2]
  layer = logits.node.layer
  is_head = isinstance(layer, tf.keras.layers.Dense) and layer.input is features
  if not is_head or layer.activation is not tf.keras.activations.linear:
    raise types.UsageError(
        'fedrn trains the last layer of neighbours\' models: it needs a --model whose logits are '
        f'one dense layer of its features without an activation, got {type(layer).__name__}'
    )
  places = {id(v): i for i, v in enumerate(network.trainable_variables)}
  return Head(places[id(layer.kernel)], places[id(layer.bias)] if layer.use_bias else None)


def tuned_logits(
    features: tf.Tensor,
    labels: tf.Tensor,
    clean: tf.Tensor,
    head: list[tf.Tensor],
    training: types.LocalTraining,
    seed: tf.Tensor,
    round_num: tf.Tensor | int = 1,
) -> tf.Tensor:
  """Returns float32 `[n, K]`, logits after an epoch of SGD of the head on the clean examples.

  Args:
    features: float32 `[n, d]`.
    labels: int32 `[n]`.
    clean: bool `[n]`, C_0; if nobody is in it, everybody is.
    head: Kernel `[d, K]`, and bias `[K]` if there is one.
    training: Step size, momentum, decay, batch size and loss.
    seed: int32 `[2]`, of the order.
    round_num: int32, of the run; the step size may depend on it.
  """

  def logits_of(features, head):
    kernel, *bias = head
    return sum(bias, start=tf.matmul(features, kernel))

  order = seeds.batch_order(seed, tf.shape(labels)[0])
  order = tf.boolean_mask(order, tf.gather(clean | ~tf.reduce_any(clean), order))
  optimizer = tff.learning.optimizers.build_sgdm(
      step_size.of_round(training, round_num), training.momentum or None
  )

  def step(i, progress):
    state, head = progress
    batch = order[i * training.batch_size : (i + 1) * training.batch_size]
    with tf.GradientTape() as tape:
      tape.watch(head)
      loss = losses.cross_entropy(
          logits_of(tf.gather(features, batch), head), tf.gather(labels, batch), training.loss
      )
    gradients = [
        g + training.weight_decay * v
        for g, v in zip(tape.gradient(loss, head), head, strict=True)
    ]
    return optimizer.next(state, head, gradients)

  state = optimizer.initialize([tf.TensorSpec(v.shape, v.dtype) for v in head])
  num_steps = (tf.size(order) + training.batch_size - 1) // training.batch_size
  _, head = loops.repeat(num_steps, step, (state, head))
  return logits_of(features, head)


def clean_posterior(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
  """Returns float32 `[n]`, the posterior of the small losses; what is not finite is the largest.

  Args:
    logits: float32 `[n, K]`.
    labels: int32 `[n]`.
  """
  each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
  each = tf.where(tf.math.is_finite(each), each, types.MAX_FLOAT32)
  return gaussian_mixture.clean_posterior(each, _MIXTURE)


def shared_image(model: keras_model.KerasModel, seed: int) -> np.ndarray:
  """Returns `[1, ...]`, the Gaussian image, as the model takes it."""
  noise = rng.generator(seed, 'fedrn image').standard_normal((1, *model.input_shape), np.float32)
  dtype = keras_model.build_zeros(model).inputs[0].dtype
  if not dtype.is_integer:
    return noise
  return np.clip(np.rint(127.5 + 64 * noise), 0, 255).astype(dtype.as_numpy_dtype)


def _flat(weights):
  """float32 `[P]`."""
  return tf.concat([tf.reshape(t, [-1]) for t in tf.nest.flatten(weights)], axis=0)


def warm_up_client(
    model: keras_model.KerasModel,
    p: parameters.FedRNParams,
    training: types.LocalTraining,
    image: np.ndarray,
) -> program.ClientProgram:
  """The first stage: FedAvg's training, and a report of what came of it.

  Args:
    model: What is trained.
    p: The parameters.
    training: Local training.
    image: From `shared_image`.
  """
  size = uplink.num_entries(model.weights_type)

  def final(result):
    client = result.client
    logits = client.predict(augmented=p.augmented)
    output = client.predict(images=tf.constant(image))  # o_c
    right = tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), client.labels)
    usable = (result.num_examples > 0) & tf.reduce_all(
        tf.math.is_finite(tf.concat([logits, output], axis=0))
    )
    model = tf.where(usable, _flat(result.weights), client.own[LAST_MODEL])
    return program.Sent(
        own={LAST_MODEL: model},
        reports={
            EXPERTISE: tf.where(usable, tf.reduce_mean(tf.cast(right, tf.float32)), np.nan),  # e_c
            OUTPUT: tf.where(usable, output[0], 0.0),
            MODEL: model,
        },
    )

  return program.ClientProgram(
      loss=lambda s: losses.cross_entropy(s.logits, s.labels, training.loss),
      final=final,
      own={LAST_MODEL: np.zeros(size, np.float32)},
      reports=(
          uplink.UplinkReport(
              EXPERTISE, np.float32, 0.0, 1.0,
              'accuracy on its own labels, by which the server chooses neighbours for others',
          ),
          uplink.UplinkReport(
              OUTPUT, np.float32, -types.MAX_FLOAT32, types.MAX_FLOAT32,
              'logits on a shared image, by which the server tells whose models are alike',
              (model.num_classes,),
          ),
          uplink.UplinkReport(
              MODEL, np.float32, -types.MAX_FLOAT32, types.MAX_FLOAT32,
              'the local model, which those clients get whose neighbour this one is', (size,),
          ),
      ),
  )


def _neighbours_client(
    model: keras_model.KerasModel,
    p: parameters.FedRNParams,
    training: types.LocalTraining,
    image: np.ndarray,
) -> program.ClientProgram:
  """The second stage: the same on C, what the client and its neighbours find clean."""
  head = [place for place in head_of(model) if place is not None]
  size, h = uplink.num_entries(model.weights_type), p.neighbours

  def columns(client):

    def look(flat):
      weights = stacked.unflatten(flat, model.weights_type)
      logits, features = client.predict_with_features(augmented=p.augmented, weights=weights)
      return logits, features, [weights.trainable[place] for place in head]

    logits, _, _ = look(client.own[LAST_MODEL])
    posteriors = [clean_posterior(logits, client.labels)]  # p_0
    clean = posteriors[0] > p.threshold  # C_0
    for m in range(h):
      _, features, first = look(client.messages[_MODELS][m])
      seed = seeds.fold(client.seed, seeds.COLUMNS)
      tuned = tuned_logits(
          features, client.labels, clean, first, training, seed, client.round_num
      )
      posteriors.append(clean_posterior(tuned, client.labels))  # p_m
    weights = client.messages[_WEIGHTS]
    found = weighted_posterior(tf.stack(posteriors), weights)
    # One without a model, or neighbours, has judged nothing.
    judged = tf.where(tf.reduce_any(weights > 0), found, np.nan)
    # Nobody clean is everybody: see `program.Columns`.
    return program.Columns({_POSTERIOR: judged}, visit=found > p.threshold)

  weights = uplink.Message(
      _WEIGHTS, np.float32, 'how much its own model counts, and each neighbour\'s', (1 + h,),
      from_others=h > 0,
  )
  models = uplink.Message(
      _MODELS, np.float32, 'neighbours\' models, with which a client finds its clean examples',
      (h, size), from_others=True,
  )
  warm_up = warm_up_client(model, p, training, image)

  def final(result):
    sent = warm_up.final(result)
    return sent._replace(own={**sent.own, _POSTERIOR: result.columns[_POSTERIOR]})

  return warm_up._replace(
      columns=columns, final=final, messages=(weights, models) if h else (weights,),
      own={**warm_up.own, _POSTERIOR: program.PerExample(np.float32(np.nan))},
  )


def build(task: task_lib.Task, p: parameters.FedRNParams) -> algorithm.Algorithm:
  """FedAvg with reports, then rounds on what clients and their neighbours find clean.

  Raises:
    types.UsageError: If there are too few clients, or no linear head.
  """
  _check(task, p)
  stages = _stage_lengths(task)
  image = shared_image(task.model, task.seed)
  warm_up = computation.train(
      'a round of warm_up', task, warm_up_client(task.model, p, task.training, image)
  )
  with_neighbours = computation.train(
      'a round of neighbours', task, _neighbours_client(task.model, p, task.training, image)
  )
  records = {
      EXPERTISE: np.full(task.num_clients, np.nan, np.float32),
      OUTPUT: np.zeros((task.num_clients, task.num_classes), np.float32),
      MODEL: np.zeros((task.num_clients, uplink.num_entries(task.model.weights_type)), np.float32),
      _CHOSEN: np.zeros(task.num_clients, np.int64),
  }

  def round_(state, clients):
    if state.round_num < stages['warm_up']:
      return remember(clients.train(warm_up, state, clients.sample(warm_up, state)))
    cohort = clients.sample(with_neighbours, state)
    # Of the table as it is before any of them trains.
    table = state.records
    found = [neighbours(c, table[EXPERTISE], table[OUTPUT], p) for c in cohort]
    chosen = table[_CHOSEN].copy()
    np.add.at(chosen, np.concatenate([n.ids for n in found]), 1)
    state = state.record(**{_CHOSEN: chosen})
    messages = messages_to(found, table)
    return remember(clients.train(with_neighbours, state, cohort, **messages))

  def messages_to(found, table):
    weights = np.stack([n.weights for n in found])
    if not p.neighbours:
      return {_WEIGHTS: weights}
    models = np.zeros((len(found), p.neighbours, table[MODEL].shape[1]), np.float32)
    for row, n in zip(models, found, strict=True):
      row[: len(n.ids)] = table[MODEL][n.ids]
    return {_WEIGHTS: weights, _MODELS: models}

  def remember(output):
    """The table with what the cohort reported, but for models that are not finite."""
    usable = np.isfinite(output.reports[EXPERTISE])
    changed = {}
    for name in (EXPERTISE, OUTPUT, MODEL):
      changed[name] = output.state.records[name].copy()
      changed[name][output.cohort[usable]] = output.reports[name][usable]
    return output.state.record(**changed)

  return algorithm.Algorithm(
      round_, algorithm.computations_of(warm_up, with_neighbours), stages, records,
      times={warm_up.name: stages['warm_up'], with_neighbours.name: stages['neighbours']},
      report=algorithm.Report(
          posterior=_POSTERIOR,
          client_columns=lambda records: {
              EXPERTISE: records[EXPERTISE], 'times_chosen': records[_CHOSEN],
          },
      ),
  )


def _check(task, p):
  """Raises `UsageError` where there are too few clients."""
  if p.neighbours >= task.num_clients:
    raise types.UsageError(
        f'--param=neighbours={p.neighbours} must be below the number of clients, '
        f'{task.num_clients}: nobody is its own neighbour'
    )


def _stage_lengths(task):
  warm_up = round(_WARM_UP_SHARE * task.rounds)
  return algorithm.two_stages(task, 'warm_up', warm_up, 'neighbours')
