"""What a client's update tells about its labels, and what a trained model tells about single ones.

FedDPCont's theorem 1 is about the flipped labels that clients report. Its clients then train on
their true local (noisy) labels and send the result, to which no theorem applies. Two attacks show
what that is worth to a curious server:

* **The bias of the last layer.** At beta = 1 cross-entropies cancel, `CE(y) - CE(y') = z_y' - z_y`:
  the gradient of the logits is `e_y' - e_y`, whatever the model and the image. A step on a batch of
  size B moves the bias by `lr / B * (hist(y) - hist(y'))`, and the server knows the distribution
  of y', because it is what the server itself sent. Plain cross-entropy gives `p - e_y`, and the
  server has to guess the mean prediction p.
* **Canaries.** Examples with a random one of two wrong labels; the trained model is asked which.

Both are run against the project's own TFF processes, each protection of which they are to meet:
sums over a cohort, DP-FedAvg, and training on flipped labels alone.

**An attack that fails proves nothing.** It is one attack, without background knowledge about the
client and without memory over rounds. One that succeeds shows that there is no protection.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tff_noise import rng
from tff_noise import types
from tff_noise.data import client_data
from tff_noise.data import noise
from tff_noise.data import partition
from tff_noise.data import scene as scene_lib
from tff_noise.data import sources
from tff_noise.federated import aggregation as aggregation_lib
from tff_noise.methods import feddpcont
from tff_noise.methods import plain
from tff_noise.models import architectures
from tff_noise.models import keras_model
from tff_noise.privacy import accountant
from tff_noise.privacy import empirical_audit
from tff_noise.privacy import estimator
from tff_noise.privacy import mechanism as mechanism_lib
from tff_noise.privacy import protection

# The default job: `bin/train` without flags.
_CLIENTS, _COHORT = 20, 10
_NOISE_RATE = 0.4
_TRAINING = types.LocalTraining()
_FLOOR = feddpcont.FedDPContParams().log_floor
_UPDATE_BOUND = 1.0
_PRIOR = 'shrinkage'

_DELTA = 1e-5


class Arm(NamedTuple):
  """A way to train.

  Attributes:
    method: 'feddpcont' or 'fedavg'.
    secure: Whether updates are summed securely, clipped to the default bound.
    noise: DP-FedAvg's noise multiplier, positive, at clipping norm 1; None for none.
    epsilon: Of private training labels, decimal text; None where clients train on their labels.
  """

  method: str
  secure: bool = False
  noise: float | None = None
  epsilon: str | None = None


METHODS = ('feddpcont', 'fedavg')
# Two levels of noise: little more than clipping, and what begins to be a guarantee.
NOISES = (0.1, 1.0)
# The epsilon of the paper's table.
EPSILON = '0.81'


def num_local_steps(num_examples: int, training: types.LocalTraining) -> int:
  """Returns a client's steps in a round; the last batch of an epoch may be smaller."""
  return training.epochs * math.ceil(num_examples / training.batch_size)


def recovered_histogram(
    bias_update: np.ndarray,
    *,
    learning_rate: float,
    num_steps: float,
    num_labels: int,
    contrast: np.ndarray | None = None,
    weight: float = 1.0,
    prediction: np.ndarray | None = None,
    keep_probability: float = 1.0,
    below_floor: float = 0.0,
) -> np.ndarray:
  """Returns the server's estimate of a client's counts of labels, from what the bias did.

  With beta the weight, the gradient of the logits is `(1 - beta) p - e_y + beta e_y'`. Averaged
  over the steps of plain SGD that moves the bias by `lr * steps * (hist(y) / n - beta * q
  - (1 - beta) * mean p)`, q being the distribution of y'. Solved for the histogram this is

      n * (move / (lr * steps) + beta * q + (1 - beta) * mean p)

  and at beta = 1 no prediction occurs: with y' known, and batches that divide the examples, the
  histogram is exact. With the distribution alone known, each count is off by what the draws of y'
  scatter, a standard deviation of about `sqrt(n q (1 - q) / epochs)`; where the last batch is
  smaller its examples count for more, which vanishes on average over the shuffles.

  The floor of `losses.contrastive_cross_entropy` takes part of this away, without being meant to.
  Where y' has a probability below it, `e_y' - e_y` becomes `p - e_y`, which fades as the model
  learns y. If that is so for a share s of the pairs, the estimate tends to
  `(1 - s) * hist(y) + s * n * q`: towards what the server knows anyway. Models soon become sure of
  themselves; on the digits s is near a half after the local training of the very first round, and
  the attack on later rounds is the weaker for it (`Attack.below_floor`). It is no guarantee: the
  server can estimate s on images of its own and undo what it does on average.

  At beta = 0, plain cross-entropy, all depends on a guess of the mean prediction over the local
  steps, which the server has only for images of its own.

  On labels that are reports, the loss knows the flips, and the gradient above is multiplied by
  `(a - b) p_k / ((a - b) p_k + b)`, k being the label; that is a - b while predictions are uniform,
  which is taken for all of them.

  Args:
    bias_update: float `[K]`, the bias of the logits after local training minus before; of a mean of
      updates, as if it were one client's.
    learning_rate: Step size of plain local SGD, without momentum and weight decay; positive.
    num_steps: Local steps, positive; their mean over a cohort need not be whole.
    num_labels: n, what the estimate sums to (if `bias_update` sums to 0).
    contrast: float `[K]`, q; may be None at weight 0.
    weight: beta, at least 0.
    prediction: float `[K]`, the mean prediction; uniform if None. Without effect at weight 1.
    keep_probability: a, if labels are reports of randomised response.
    below_floor: s, as far as the server knows it, in [0, 1); at weight 1.

  Returns:
    float64 `[K]`; entries may be negative.

  Raises:
    ValueError: If a step size, number of steps or distribution is missing or out of range.
  """
  move = np.asarray(bias_update, np.float64)
  num_classes = len(move)
  if not learning_rate > 0 or not num_steps > 0 or not weight >= 0:
    raise ValueError(
        'expected a positive learning rate and number of steps and a weight of at least 0, got '
        f'{learning_rate}, {num_steps} and {weight}'
    )
  if contrast is None and weight > 0:
    raise ValueError('the distribution of the contrastive labels is needed')
  if not 1 / num_classes < keep_probability <= 1:
    raise ValueError(f'keep_probability must be in (1/{num_classes}, 1], got {keep_probability}')
  if not 0 <= below_floor < 1:
    raise ValueError(f'below_floor must be in [0, 1), got {below_floor}')
  # a - b is 1 without flips.
  slope = (1 - below_floor) * (num_classes * keep_probability - 1) / (num_classes - 1)
  known = np.zeros(num_classes)
  if weight > 0:
    known = known + weight * np.asarray(contrast, np.float64)
  if weight != 1:
    uniform = np.full(num_classes, 1 / num_classes)
    mean = uniform if prediction is None else np.asarray(prediction, np.float64)
    known = known + (1 - weight) * mean
  return num_labels * (move / (learning_rate * num_steps * slope) + known)


def labels_from_reports(
    reports: np.ndarray, mechanism: mechanism_lib.RandomizedResponse
) -> np.ndarray:
  """Returns float `[K]`, shares of labels, from (estimated) shares of their reports, float `[K]`.

  The plain inverse, projected: with a client's few labels it is mostly the scatter of the flips.
  """
  a, b = mechanism.keep_probability, mechanism.other_probability
  return estimator.project_simplex((np.asarray(reports) - b) / (a - b))


class Attack(NamedTuple):
  """One attempt to recover a label distribution.

  Attributes:
    method: 'feddpcont' or 'fedavg', or '-' for who has seen no update.
    setting: What the server sees.
    rounds: Rounds that the model had been trained for before.
    target: Whose distribution: 'labels' or 'reports' of the client, or labels of the 'cohort'.
    victim: The numbers of the scene and of the client.
    truth: float64 `[K]`, the true shares.
    recovered: float64 `[K]` on the simplex.
    below_floor: Share of pairs of an example and a contrastive label whose contrastive term the
      floor had switched off, mean of before and after local training; nan where not measured.
  """

  method: str
  setting: str
  rounds: int
  target: str
  victim: tuple[int, int]
  truth: np.ndarray
  recovered: np.ndarray
  below_floor: float = math.nan

  @property
  def correlation(self) -> float:
    """Pearson's, over the classes; nan if one of both is constant."""
    if min(np.ptp(self.truth), np.ptp(self.recovered)) < 1e-9:
      return math.nan
    return float(np.corrcoef(self.truth, self.recovered)[0, 1])

  @property
  def total_variation(self) -> float:
    """Half the sum of absolute differences, in [0, 1]: the share of labels put in wrong classes."""
    return float(np.abs(self.truth - self.recovered).sum() / 2)


class Row(NamedTuple):
  """Means over the attacks of one kind.

  Attributes:
    method: As in `Attack`, and so `setting`, `rounds` and `target`.
    setting: See there.
    rounds: See there.
    target: See there.
    attacks: How many there were.
    correlation: Mean over those that have one; nan without any.
    total_variation: Mean.
    total_variation_error: Standard error of it over the attacks; nan for a single one.
    below_floor: Mean; nan where not measured.
  """

  method: str
  setting: str
  rounds: int
  target: str
  attacks: int
  correlation: float
  total_variation: float
  total_variation_error: float
  below_floor: float


class Demonstration(NamedTuple):
  """All attacks of a demonstration."""

  attacks: tuple[Attack, ...]

  def rows(self) -> tuple[Row, ...]:
    """Returns the means, in the order in which kinds of attacks first occur."""
    kinds = {}
    for attack in self.attacks:
      key = (attack.method, attack.setting, attack.rounds, attack.target)
      kinds.setdefault(key, []).append(attack)
    return tuple(_row(key, attacks) for key, attacks in kinds.items())


def _row(key, attacks):
  distances = np.array([a.total_variation for a in attacks])
  n = len(attacks)
  return Row(
      *key,
      attacks=n,
      correlation=_mean([a.correlation for a in attacks]),
      total_variation=float(distances.mean()),
      total_variation_error=float(distances.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan,
      below_floor=_mean([a.below_floor for a in attacks]),
  )


def _mean(values):
  known = [v for v in values if not math.isnan(v)]
  return float(np.mean(known)) if known else math.nan


class _Scene(NamedTuple):
  """What is attacked.

  Attributes:
    number: Its own.
    federation: The clients and their noisy labels.
    reports: The same clients with flipped labels.
    mechanism: What flips them.
    prior: float64 `[K]`, what the server recovered from the summed reports.
    images: The server's own, uint8 `[m, ...]`.
  """

  number: int
  federation: types.Federation
  reports: types.Federation
  mechanism: mechanism_lib.RandomizedResponse
  prior: np.ndarray
  images: np.ndarray

  def clients(self, arm: Arm) -> tuple[types.ClientExamples, ...]:
    """Returns what clients train on."""
    return (self.federation if arm.epsilon is None else self.reports).clients

  def contrast(self, arm: Arm) -> np.ndarray:
    """Returns the distribution of contrastive labels, as FedDPCont broadcasts it."""
    # In training on reports, contrastive labels are of their kind.
    return self.prior if arm.epsilon is None else self.prior @ self.mechanism.transition_matrix()


def _federation(dataset, seed):
  spec = scene_lib.SceneSpec(
      partition.PartitionSpec('openset_uniform', _CLIENTS),
      noise.NoiseSpec('symmetric', rate=_NOISE_RATE),
  )
  return scene_lib.federation(dataset, scene_lib.build(dataset, spec, seed), seed)


def _scene(number, federation, images):
  """Adds what the exchange of labels makes of a federation."""
  num_classes = federation.num_classes
  mechanism = mechanism_lib.randomized_response(EPSILON, num_classes)
  key = mechanism_lib.simulation_key(federation.seed)
  reports = federation._replace(
      clients=tuple(
          c._replace(
              y=mechanism_lib.flip_labels(
                  c.y, c.example_id, client=i, mechanism=mechanism, key=key
              )
          )
          for i, c in enumerate(federation.clients)
      )
  )
  counts = sum(mechanism_lib.histogram(c.y, num_classes) for c in reports.clients)
  prior = estimator.estimate(counts, _PRIOR, mechanism).prior
  return _Scene(number, federation, reports, mechanism, prior, images)


def _model(dataset):
  return keras_model.from_keras(
      architectures.mlp(
          dataset.image_shape, dataset.num_classes, pixel_scale=dataset.pixel_scale,
          pixel_offset=dataset.pixel_offset,
      )
  )


def _training(arm: Arm, num_classes: int) -> types.LocalTraining:
  if arm.epsilon is None:
    return _TRAINING
  mechanism = mechanism_lib.randomized_response(arm.epsilon, num_classes)
  loss = _TRAINING.loss._replace(keep_probability=mechanism.keep_probability)
  return _TRAINING._replace(loss=loss)


def noisy_sum(arm: Arm) -> protection.NoisySum:
  """Returns the DP-FedAvg of an arm that has one."""
  return protection.NoisySum(arm.noise, 1.0, _COHORT, _CLIENTS)


# Scenes and canaries change the data, not the process; building one takes seconds.
@functools.cache
def _process(arm: Arm, seed: int):
  """Returns the arm's learning process on the digits, and its model."""
  dataset = sources.load(sources.DataSpec('digits'))
  model = _model(dataset)
  aggregation = aggregation_lib.weighted_mean()
  if arm.noise is not None:
    aggregation = aggregation_lib.dp_mean(noisy_sum(arm), seed=seed, secure=arm.secure)
  elif arm.secure:
    aggregation = aggregation_lib.secure_weighted_mean(
        update_bound=_UPDATE_BOUND, max_examples=len(dataset.train_y)
    )
  build = {'feddpcont': feddpcont.build_process, 'fedavg': plain.build_process}[arm.method]
  built = build(
      model, training=_training(arm, model.num_classes), seed=seed, aggregation=aggregation
  )
  return built.process, model


def _initial_state(process, arm, scene):
  state = process.initialize()
  if arm.method == 'feddpcont':
    state = feddpcont.set_label_prior(process, state, scene.contrast(arm))
  return state


def _datasets(clients):
  return [client_data.client_dataset(c.x, c.y, i) for i, c in enumerate(clients)]


def _train(process, state, datasets, rounds, seed):
  """Returns the state after some rounds of random cohorts."""
  for r in range(rounds):
    draw = rng.generator(seed, 'audit: cohort', r)
    cohort = draw.choice(len(datasets), _COHORT, replace=False)
    state = process.next(state, [datasets[i] for i in cohort]).state
  return state


def _forward(model: keras_model.KerasModel) -> Callable[[Any, np.ndarray], np.ndarray]:
  """Returns what takes weights and images to logits, float64 `[n, K]`."""
  network = keras_model.build_zeros(model)

  def logits(weights, x):
    keras_model.assign(network, weights)
    return network(x, training=False)[0].numpy().astype(np.float64)

  return logits


def _softmax(logits):
  return np.exp(logits - tf.reduce_logsumexp(logits, axis=1, keepdims=True).numpy())


class _Seen(NamedTuple):
  """What the server has after a round: the weights before and after, and public numbers."""

  before: Any
  after: Any
  num_steps: float


def _recover(arm, scene, seen, num_labels, logits, below_floor=0.0):
  """float64 `[K]`, shares on the simplex: the bias attack with what the server knows."""
  contrastive = arm.method == 'feddpcont'
  prediction = None
  if not contrastive:
    # The best it can do for the path is the mean of both ends, on images of its own.
    ends = [_softmax(logits(w, scene.images)).mean(axis=0) for w in (seen.before, seen.after)]
    prediction = np.mean(ends, axis=0)
  keep = 1.0 if arm.epsilon is None else scene.mechanism.keep_probability
  estimate = recovered_histogram(
      # The last of the model's trainable weights is the bias of the logits.
      seen.after.trainable[-1] - seen.before.trainable[-1],
      learning_rate=_TRAINING.learning_rate,
      num_steps=seen.num_steps,
      num_labels=num_labels,
      contrast=scene.contrast(arm) if contrastive else None,
      weight=1.0 if contrastive else 0.0,
      prediction=prediction,
      keep_probability=keep,
      below_floor=below_floor,
  )
  return estimator.project_simplex(estimate / num_labels)


def _below_floor(arm, scene, seen, images, logits):
  """Share of (example, contrastive label) without a contrastive term, of one client."""
  if arm.method != 'feddpcont':
    return math.nan
  if arm.epsilon is not None:
    return 0.0  # Of reports the loss is at most -log(b): the floor is never met.
  shares = [
      ((_softmax(logits(w, images)) < _FLOOR) @ scene.contrast(arm)).mean()
      for w in (seen.before, seen.after)
  ]
  return float(np.mean(shares))


def _shares(labels, num_classes):
  return mechanism_lib.histogram(labels, num_classes) / len(labels)


class _Round(NamedTuple):
  """One round to attack.

  Attributes:
    arm: How it is run.
    setting: Its name.
    rounds: Rounds before it.
    victim: The client.
    cohort: int `[m]`, clients that take part, the victim among them.
  """

  arm: Arm
  setting: str
  rounds: int
  victim: int
  cohort: np.ndarray


def _attack(task, scene, seen, logits):
  """Returns the attacks on what was seen of one round."""
  arm, num_classes = task.arm, scene.federation.num_classes
  own = scene.federation.clients[task.victim]
  recover = functools.partial(_recover, arm, scene, seen, len(own.y), logits)
  found, labels = recover(), _shares(own.y, num_classes)
  names = (arm.method, task.setting, task.rounds)
  victim = (scene.number, task.victim)
  if len(task.cohort) > 1:
    together = np.concatenate([scene.federation.clients[i].y for i in task.cohort])
    return [
        Attack(*names, 'labels', victim, labels, found),
        Attack(*names, 'cohort', victim, _shares(together, num_classes), found),
    ]
  floor = _below_floor(arm, scene, seen, own.x, logits)
  if arm.epsilon is not None:
    reports = _shares(scene.reports.clients[task.victim].y, num_classes)
    inverted = labels_from_reports(found, scene.mechanism)
    return [
        Attack(*names, 'reports', victim, reports, found, floor),
        Attack(*names, 'labels', victim, labels, inverted, floor),
    ]
  attacks = [Attack(*names, 'labels', victim, labels, found, floor)]
  if arm.method == 'feddpcont':
    # On images of its own, the clients' being unknown.
    guessed = _below_floor(arm, scene, seen, scene.images, logits)
    names = (arm.method, f'{task.setting}, floor undone', task.rounds)
    attacks.append(
        Attack(*names, 'labels', victim, labels, recover(below_floor=guessed), floor)
    )
  return attacks


def _mean_steps(task, sizes):
  """The mean of the cohort's local steps, weighted as its updates are."""
  steps = [num_local_steps(int(sizes[i]), _TRAINING) for i in task.cohort]
  equal = task.arm.noise is not None
  return float(np.average(steps, weights=None if equal else sizes[task.cohort]))


def _settings(method, noises):
  """Pairs of a name and an arm; the first is trained without protection."""
  return (
      ('own update', Arm(method)),
      (f'secure sum of {_COHORT}', Arm(method, secure=True)),
      *((f'DP-FedAvg, noise {z:g}', Arm(method, noise=z)) for z in noises),
      (f'private labels, epsilon {EPSILON}', Arm(method, epsilon=EPSILON)),
  )


def _is_alone(arm):
  """Whether the server sees one client's update by itself."""
  return not arm.secure and arm.noise is None


def _cohort(arm, victim, seed):
  if _is_alone(arm):
    return np.array([victim])
  others = np.delete(np.arange(_CLIENTS), victim)
  draw = rng.generator(seed, 'audit: cohort of a victim', victim)
  return np.append(victim, draw.choice(others, _COHORT - 1, replace=False))


def _attack_method(method, scene, rounds, victims, noises, seed):
  """Returns the attacks on all settings of one method, at one age of the model."""
  attacks, unprotected = [], None
  sizes, scene_seed = scene.federation.sizes, scene.federation.seed
  for setting, arm in _settings(method, noises):
    process, model = _process(arm, seed)
    datasets = _datasets(scene.clients(arm))
    state = _initial_state(process, arm, scene)
    if _is_alone(arm):
      state = _train(process, state, datasets, rounds, scene_seed)
      start = process.get_model_weights(state)
      unprotected = unprotected or start
    else:
      # The same model: what differs is what of one round is seen.
      start = unprotected
    logits = _forward(model)
    for victim in map(int, victims):
      task = _Round(arm, setting, rounds, victim, _cohort(arm, victim, scene_seed))
      # The state goes on: each attack meets other batches and other noise.
      state = process.set_model_weights(state, start)
      state = process.next(state, [datasets[i] for i in task.cohort]).state
      seen = _Seen(start, process.get_model_weights(state), _mean_steps(task, sizes))
      attacks += _attack(task, scene, seen, logits)
  return attacks


def _guesses(scene, victims):
  """Returns what who sees no update can say of each target."""
  num_classes = scene.federation.num_classes
  labels = [c.y for c in scene.federation.clients]
  attacks = []
  for name, guess in (
      ('no update: uniform', np.full(num_classes, 1 / num_classes)),
      ('no update: p_hat', scene.prior),
  ):
    for v in victims:
      cohort = _cohort(Arm('fedavg', secure=True), v, scene.federation.seed)
      reported = guess @ scene.mechanism.transition_matrix()
      for target, held, guessed in (
          ('labels', labels[v], guess),
          ('cohort', np.concatenate([labels[i] for i in cohort]), guess),
          ('reports', scene.reports.clients[v].y, reported),
      ):
        truth = _shares(held, num_classes)
        attacks.append(Attack('-', name, 0, target, (scene.number, int(v)), truth, guessed))
  return attacks


def demonstrate(
    seed: int,
    *,
    methods: Sequence[str] = METHODS,
    scenes: int = 2,
    victims: int = 6,
    rounds: Sequence[int] = (0, 20),
    noises: Sequence[float] = NOISES,
) -> Demonstration:
  """Recovers clients' label histograms from single rounds of the default job.

  20 open-set clients of the digits with 40 % symmetric noise, the small perceptron, 5 epochs of
  plain SGD. The server sees one client's update; the secure sum over a cohort of 10, or DP-FedAvg's
  noisy mean of one at clipping norm 1, either of which it takes for the client's own; or the update
  of one client that trains on flipped labels alone. Call it in a runtime: `runtime.local`.

  Args:
    seed: Of everything.
    methods: Among 'feddpcont' and 'fedavg'.
    scenes: Federations to draw, at least 1.
    victims: Clients to attack in each, 1 to 20.
    rounds: Ages of the attacked model, in rounds; 0 is the first round.
    noises: DP-FedAvg's noise multipliers, positive.
  """
  dataset = sources.load(sources.DataSpec('digits'))
  attacks = []
  for i in range(scenes):
    scene = _scene(
        i, _federation(dataset, rng.integer(seed, 'audit: scene', i)), dataset.test_x
    )
    chosen = rng.generator(seed, 'audit: victims', i).choice(_CLIENTS, victims, replace=False)
    attacks += _guesses(scene, chosen)
    for method in methods:
      for age in rounds:
        attacks += _attack_method(method, scene, age, chosen, noises, seed)
  return Demonstration(tuple(attacks))


class Canaries(NamedTuple):
  """Examples that are inserted with one of two wrong labels each.

  Attributes:
    x: uint8 `[m, ...]`.
    pairs: int32 `[m, 2]`, different wrong labels in random order.
    bits: int `[m]`, which label of the pair is inserted: independent coins.
    client: int `[m]`, who gets it.
  """

  x: np.ndarray
  pairs: np.ndarray
  bits: np.ndarray
  client: np.ndarray

  @property
  def y(self) -> np.ndarray:
    """int32 `[m]`, the inserted labels."""
    return self.pairs[np.arange(len(self.bits)), self.bits]


def draw_canaries(
    examples: types.Examples, num_classes: int, num_clients: int, seed: int
) -> Canaries:
  """Makes canaries of examples with true labels; clients get equally many, but for a remainder.

  Args:
    examples: m of them, of which no client holds any.
    num_classes: K, at least 3.
    num_clients: C.
    seed: Of the pairs, the bits and the owners.

  Raises:
    ValueError: If there are not two wrong labels.
  """
  if num_classes < 3:
    raise ValueError(f'canaries need two wrong labels, there are {num_classes} classes')
  draw = rng.generator(seed, 'audit: canaries')
  m = len(examples.y)
  # The true label, and two steps from it around the circle of labels: never back to it.
  steps = 1 + np.argsort(draw.random((m, num_classes - 1)), axis=1)[:, :2]
  pairs = ((examples.y[:, np.newaxis] + steps) % num_classes).astype(np.int32)
  return Canaries(
      examples.x, pairs, draw.integers(0, 2, m), draw.permutation(np.arange(m) % num_clients)
  )


def insert(federation: types.Federation, canaries: Canaries) -> types.Federation:
  """Returns the federation whose clients hold the canaries too, under ids that nobody has."""
  first = 1 + max(int(c.example_id.max(initial=-1)) for c in federation.clients)
  ids, clients = first + np.arange(len(canaries.bits)), []
  for i, c in enumerate(federation.clients):
    own = canaries.client == i
    clients.append(
        types.ClientExamples(
            np.concatenate([c.x, canaries.x[own]]),
            np.concatenate([c.y, canaries.y[own]]),
            np.concatenate([c.example_id, ids[own]]),
        )
    )
  return federation._replace(clients=tuple(clients))


def guess_bits(logits: np.ndarray, canaries: Canaries, share: float) -> tuple[int, int]:
  """Guesses which label of each pair was inserted: the one of lesser loss.

  Only where the losses differ most: how many are guessed is fixed beforehand, which ones may depend
  on the model (Steinke, Nasr and Jagielski 2023).

  Args:
    logits: float `[m, K]`, of the trained model on the canaries' images.
    canaries: m of them.
    share: Of the canaries that are guessed, in (0, 1].

  Returns:
    The number of guesses and how many are correct.

  Raises:
    ValueError: If the share is out of range.
  """
  if not 0 < share <= 1:
    raise ValueError(f'share must be in (0, 1], got {share}')
  both = np.take_along_axis(np.asarray(logits), canaries.pairs, axis=1)
  margin = both[:, 1] - both[:, 0]
  guessed = np.argsort(-np.abs(margin), kind='stable')[: round(share * len(margin))]
  correct = (margin[guessed] > 0) == (canaries.bits[guessed] == 1)
  return len(guessed), int(correct.sum())


class CanaryRow(NamedTuple):
  """What canaries found of one arm.

  Attributes:
    arm: How the model was trained.
    rounds: R.
    canaries: m.
    guesses: Bits guessed.
    correct: Of which correctly.
    bound: Lower bound of the epsilon of one label at confidence 1 - alpha. 0 is no evidence.
    claim: The epsilon that is claimed for one label, with delta 1e-5 of DP-FedAvg; infinite
      without a claim.
    accuracy: Of the model, on clean images that are no canaries.
  """

  arm: Arm
  rounds: int
  canaries: int
  guesses: int
  correct: int
  bound: float
  claim: float
  accuracy: float

  @property
  def verdict(self) -> str:
    """What may be concluded; never that there is privacy."""
    if self.bound > self.claim:
      return 'claim refuted'
    return 'no evidence' if self.bound == 0 else f'epsilon is at least {self.bound:.2f}'


def _claim(arm, rounds):
  if arm.epsilon is not None:
    return float(arm.epsilon)
  if arm.noise is None:
    return math.inf
  guarantee = noisy_sum(arm)
  return accountant.gaussian_epsilon(
      arm.noise, population=guarantee.population, cohort=guarantee.cohort, rounds=rounds,
      delta=_DELTA,
  )


CANARY_ARMS = (
    Arm('fedavg'),
    Arm('feddpcont'),
    *(Arm('fedavg', noise=z) for z in NOISES),
    Arm('fedavg', epsilon=EPSILON),
    Arm('feddpcont', epsilon=EPSILON),
)


def canary_exposure(
    seed: int,
    *,
    arms: Sequence[Arm] = CANARY_ARMS,
    rounds: int = 30,
    canaries: int = 200,
    share: float = 0.5,
    alpha: float = 0.05,
) -> tuple[CanaryRow, ...]:
  """Trains the default job with canaries and asks the model for their labels.

  Canaries are held-out images of the digits, in equal numbers with every client. The bound is that
  of one run (`empirical_audit.one_run_lower_bound`), for replacing the label of one example; so it
  bounds from below the epsilon of a whole client too. Call it in a runtime: `runtime.local`.

  Args:
    seed: Of everything.
    arms: How to train.
    rounds: R.
    canaries: m, below 397.
    share: Of the canaries that are guessed, in (0, 1].
    alpha: Probability of a bound above the true epsilon, at most, for each arm; in (0, 1).
  """
  dataset = sources.load(sources.DataSpec('digits'))
  inserted = draw_canaries(
      types.Examples(dataset.test_x[:canaries], dataset.test_y[:canaries]),
      dataset.num_classes, _CLIENTS, seed,
  )
  federation = insert(_federation(dataset, seed), inserted)
  scene = _scene(0, federation, dataset.test_x[canaries:])
  return tuple(
      _expose(arm, scene, inserted, dataset.test_y[canaries:], rounds, share, alpha, seed)
      for arm in arms
  )


def _expose(arm, scene, canaries, clean, rounds, share, alpha, seed):
  process, model = _process(arm, seed)
  state = _initial_state(process, arm, scene)
  state = _train(process, state, _datasets(scene.clients(arm)), rounds, seed)
  weights, logits = process.get_model_weights(state), _forward(model)
  guesses, correct = guess_bits(logits(weights, canaries.x), canaries, share)
  m = len(canaries.bits)
  bound = empirical_audit.one_run_lower_bound(
      guesses, correct, alpha, delta=0.0 if arm.noise is None else _DELTA, examples=m
  )
  accuracy = float((logits(weights, scene.images).argmax(axis=1) == clean).mean())
  return CanaryRow(arm, rounds, m, guesses, correct, bound, _claim(arm, rounds), accuracy)
